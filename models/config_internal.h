/* Reading the members of a config.json, for config.c, config_family.c and config_rope.c. Failure: as in config.h;
 * messages begin with the field. */
#ifndef MK_CONFIG_INTERNAL_H
#define MK_CONFIG_INTERNAL_H

#include "models/config.h"
#include "models/json.h"

mk_status mk_config_missing(const char *field);

/* A whole number in [low, high]. */
mk_status mk_config_u32(const json_t *value, const char *field, uint32_t low, uint32_t high, uint32_t *out);

/* A finite number in (0, high]; `out` keeps its value when the key is absent. `object` is what the message puts before
 * the key. */
mk_status mk_config_positive(const json_t *root, const char *object, const char *key, double high, double *out);

/* Changes *out where the key is there: true or false. */
mk_status mk_config_bool(const json_t *root, const char *key, bool *out);

/* A family, and what its keys are where a config.json does not have them. */
typedef struct mk_kind_info {
  const char *type, *class, *title;
  uint32_t hidden, intermediate, vocab, max_position;
  uint32_t kv_heads; /* 0: as many as heads */
  uint32_t head_dim; /* 0: hidden / heads */
  double eps, theta;
  bool tied;
} mk_kind_info;
const mk_kind_info *mk_kind_lookup(mk_model_kind kind);

/* Whose configuration it is. For another architecture the message says what it lacks here. */
mk_status mk_config_kind(const json_t *root, mk_model_kind *out);

/* A model of text and images, of which the text model is read. */
typedef struct mk_whole_info {
  const char *type, *class;
  mk_model_kind kind;     /* of the text model */
  uint32_t layers, heads; /* where its configuration does not have them */
} mk_whole_info;
/* *out: NULL, where the configuration is that of a text model. */
mk_status mk_config_whole(const json_t *root, const mk_whole_info **out);
/* The kind of its text model, from text_config. */
mk_status mk_config_text_kind(const json_t *text, const mk_whole_info *whole, mk_model_kind *out);

/* What sets the family apart, for a configuration whose sizes are read. */
mk_status mk_config_differences(const json_t *root, mk_config *config);

/* Which weights are quantised and how, for a configuration that is complete but for that. */
mk_status mk_config_quant(const json_t *root, mk_config *config);

/* The rotation, for a configuration whose sizes are read. */
mk_status mk_config_rope(const json_t *root, mk_config *config);

#endif
