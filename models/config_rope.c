/* The rotation of config.json: rope_theta with rope_scaling (transformers 4), or rope_parameters (5). See config.h. */
#include <stdio.h>
#include <string.h>

#include "models/config_internal.h"

typedef struct rope {
  double theta; /* 0: not given */
  mk_rope_type type;
  double factor, low, high;
  uint32_t original; /* 0: not given */
} rope;

static const char *const type_names[] = {[MK_ROPE_DEFAULT] = "default",
                                         [MK_ROPE_LLAMA3] = "llama3",
                                         [MK_ROPE_LINEAR] = "linear",
                                         [MK_ROPE_DYNAMIC] = "dynamic"};

const char *mk_rope_type_name(mk_rope_type type) { return type_names[type]; }

static mk_status parse_type(const json_t *object, const char *key, mk_rope_type *type) {
  char shown[MK_JSON_SHOWN];
  const json_t *modern = mk_json_get(object, "rope_type");
  const json_t *legacy = mk_json_get(object, "type");
  if (modern != NULL && legacy != NULL && !json_equal(modern, legacy)) {
    return mk_error(MK_ERR_FILE, "%s.rope_type: is %s, but %s.type differs; remove one", key,
                    mk_json_show(modern, shown), key);
  }
  const json_t *value = modern != NULL ? modern : legacy;
  const char *name = value == NULL ? type_names[MK_ROPE_DEFAULT] : json_string_value(value);
  for (size_t i = 0; name != NULL && i < sizeof type_names / sizeof type_names[0]; i++) {
    if (strcmp(name, type_names[i]) == 0) {
      *type = (mk_rope_type)i;
      return MK_OK;
    }
  }
  return mk_error(MK_ERR_FILE,
                  "%s.rope_type: %s is not supported; only \"default\", \"linear\", \"dynamic\" and \"llama3\" are",
                  key, mk_json_show(value, shown));
}

static mk_status need_factor(const char *key, const rope *r) {
  const char *missing = r->factor == 0                              ? "factor"
                        : r->type == MK_ROPE_LLAMA3 && r->low == 0  ? "low_freq_factor"
                        : r->type == MK_ROPE_LLAMA3 && r->high == 0 ? "high_freq_factor"
                                                                    : NULL;
  if (missing != NULL) {
    return mk_error(MK_ERR_FILE, "%s.%s: is missing; rope type \"%s\" needs it", key, missing, type_names[r->type]);
  }
  if (r->factor < 1) {
    return mk_error(MK_ERR_FILE, "%s.factor: is %g, must be at least 1", key, r->factor);
  }
  if (r->type == MK_ROPE_LLAMA3 && r->high <= r->low) {
    return mk_error(MK_ERR_FILE, "%s.high_freq_factor: is %g, must be above low_freq_factor %g", key, r->high, r->low);
  }
  return MK_OK;
}

static mk_status take_original(const json_t *object, const char *prefix, uint32_t *out) {
  const json_t *value = mk_json_get(object, "original_max_position_embeddings");
  char field[64];
  snprintf(field, sizeof field, "%soriginal_max_position_embeddings", prefix);
  return value == NULL ? MK_OK : mk_config_u32(value, field, 1, MK_MAX_POSITION, out);
}

/* One of the two objects that describe the rotation. An empty one says nothing. */
static mk_status parse_object(const json_t *root, const char *key, bool *given, rope *out) {
  char shown[MK_JSON_SHOWN], prefix[32];
  *out = (rope){0};
  *given = false;
  const json_t *object = mk_json_get(root, key);
  if (object == NULL) {
    return MK_OK;
  }
  if (!json_is_object(object)) {
    return mk_error(MK_ERR_FILE, "%s: is %s, must be an object or null", key, mk_json_show(object, shown));
  }
  *given = json_object_size(object) != 0;
  snprintf(prefix, sizeof prefix, "%s.", key);
  MK_TRY(parse_type(object, key, &out->type));
  MK_TRY(mk_config_positive(object, prefix, "rope_theta", 1e15, &out->theta));
  double share = 1;
  MK_TRY(mk_config_positive(object, prefix, "partial_rotary_factor", 1, &share));
  if (share < 1) {
    return mk_error(MK_ERR_FILE, "%s.partial_rotary_factor: %g is not supported; only 1 is", key, share);
  }
  if (out->type == MK_ROPE_DEFAULT) {
    return MK_OK;
  }
  MK_TRY(mk_config_positive(object, prefix, "factor", 1e9, &out->factor));
  if (out->type == MK_ROPE_LLAMA3) {
    MK_TRY(mk_config_positive(object, prefix, "low_freq_factor", 1e9, &out->low));
    MK_TRY(mk_config_positive(object, prefix, "high_freq_factor", 1e9, &out->high));
    MK_TRY(take_original(object, prefix, &out->original));
  }
  return need_factor(key, out);
}

/* rope_theta stands beside the objects or in one of them. Where two differ, releases of transformers disagree on which counts. */
static mk_status take_theta(const json_t *root, const rope *scaling, const rope *parameters, double *out) {
  double beside = 0;
  MK_TRY(mk_config_positive(root, "", "rope_theta", 1e15, &beside));
  const double given[] = {beside, scaling->theta, parameters->theta};
  *out = 0;
  for (size_t i = 0; i < 3; i++) {
    if (given[i] != 0 && *out != 0 && given[i] != *out) {
      return mk_error(MK_ERR_FILE, "rope_theta: is given twice, as %g and as %g; keep one of them", *out, given[i]);
    }
    *out = given[i] != 0 ? given[i] : *out;
  }
  if (*out == 0) {
    *out = 10000; /* Llama 2 files do not write it */
  }
  return MK_OK;
}

/* The context that "llama3" was trained with may stand beside the object, too; else it is the whole one. */
static mk_status settle_original(const json_t *root, const mk_config *config, rope *chosen) {
  uint32_t beside = 0;
  if (chosen->type != MK_ROPE_LLAMA3) {
    return MK_OK;
  }
  MK_TRY(take_original(root, "", &beside));
  if (beside != 0 && chosen->original != 0 && beside != chosen->original) {
    return mk_error(MK_ERR_FILE, "original_max_position_embeddings: is given twice, as %u and as %u; keep one of them",
                    beside, chosen->original);
  }
  chosen->original = beside != 0 ? beside : chosen->original != 0 ? chosen->original : config->max_position;
  return MK_OK;
}

mk_status mk_config_rope(const json_t *root, mk_config *config) {
  rope scaling, parameters;
  bool has_scaling, has_parameters;
  double share = 1;
  MK_TRY(mk_config_positive(root, "", "partial_rotary_factor", 1, &share));
  if (share < 1) {
    return mk_error(MK_ERR_FILE, "partial_rotary_factor: %g is not supported; only 1 is", share);
  }
  MK_TRY(parse_object(root, "rope_scaling", &has_scaling, &scaling));
  MK_TRY(parse_object(root, "rope_parameters", &has_parameters, &parameters));
  if (has_scaling && has_parameters &&
      (scaling.type != parameters.type || scaling.factor != parameters.factor || scaling.low != parameters.low ||
       scaling.high != parameters.high || scaling.original != parameters.original)) {
    return mk_error(MK_ERR_FILE, "rope_scaling: differs from rope_parameters; keep one of them");
  }
  MK_TRY(take_theta(root, &scaling, &parameters, &config->rope_theta));
  rope *chosen = has_parameters ? &parameters : &scaling;
  MK_TRY(settle_original(root, config, chosen));
  config->rope_type = chosen->type;
  config->rope_factor = chosen->factor;
  config->rope_low_freq_factor = chosen->low;
  config->rope_high_freq_factor = chosen->high;
  config->rope_original_max_position = chosen->original;
  return MK_OK;
}
