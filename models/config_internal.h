/* Reading the members of a config.json, for config.c and config_rope.c. Failure: as in config.h; messages begin with the field. */
#ifndef MK_CONFIG_INTERNAL_H
#define MK_CONFIG_INTERNAL_H

#include "models/config.h"
#include "models/json.h"

mk_status mk_config_missing(const char *field);

/* A whole number in [low, high]. */
mk_status mk_config_u32(const json_t *value, const char *field, uint32_t low, uint32_t high, uint32_t *out);

/* A finite number in (0, high]; `out` keeps its value when the key is absent. `object` is what the message puts before the key. */
mk_status mk_config_positive(const json_t *root, const char *object, const char *key, double high, double *out);

/* The rotation, for a configuration whose max_position is read. */
mk_status mk_config_rope(const json_t *root, mk_config *config);

#endif
