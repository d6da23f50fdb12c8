/* The rotation of config.json: rope_theta with rope_scaling (transformers 4), or rope_parameters (5). See config.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/config_internal.h"

typedef struct rope {
  double theta; /* 0: not given */
  mk_rope_type type;
  double factor, low, high;
  uint32_t original; /* 0: not given */
  double share;      /* of a head's dims that is rotated; 0: not given */
  /* yarn and longrope; 0: not given */
  double attention, beta_fast, beta_slow, mscale, mscale_all;
  bool no_truncate;
  const json_t *short_factor, *long_factor; /* lists */
} rope;

static const char *const type_names[] = {
    [MK_ROPE_DEFAULT] = "default", [MK_ROPE_LLAMA3] = "llama3", [MK_ROPE_LINEAR] = "linear",
    [MK_ROPE_DYNAMIC] = "dynamic", [MK_ROPE_YARN] = "yarn",     [MK_ROPE_LONGROPE] = "longrope"};

const char *mk_rope_type_name(mk_rope_type type) { return type_names[type]; }

/* The names that early Phi-3 files have for "longrope". */
static bool is_early_longrope(mk_model_kind kind, const char *name) {
  return kind == MK_MODEL_PHI3 && (strcmp(name, "su") == 0 || strcmp(name, "yarn") == 0);
}

static mk_status parse_type(const json_t *object, const char *key, mk_model_kind kind, mk_rope_type *type) {
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
      *type = is_early_longrope(kind, name) ? MK_ROPE_LONGROPE : (mk_rope_type)i;
      return MK_OK;
    }
  }
  if (name != NULL && is_early_longrope(kind, name)) {
    *type = MK_ROPE_LONGROPE;
    return MK_OK;
  }
  return mk_error(MK_ERR_FILE,
                  "%s.rope_type: %s is not supported; only \"default\", \"linear\", \"dynamic\", \"llama3\", \"yarn\" "
                  "and \"longrope\" are",
                  key, mk_json_show(value, shown));
}

static mk_status need_factor(const char *key, const rope *r) {
  const bool derived = r->type == MK_ROPE_YARN || r->type == MK_ROPE_LONGROPE; /* a factor that is not given */
  const bool lists = r->type == MK_ROPE_LONGROPE;
  const char *missing = r->factor == 0 && !derived                  ? "factor"
                        : r->type == MK_ROPE_LLAMA3 && r->low == 0  ? "low_freq_factor"
                        : r->type == MK_ROPE_LLAMA3 && r->high == 0 ? "high_freq_factor"
                        : lists && r->short_factor == NULL          ? "short_factor"
                        : lists && r->long_factor == NULL           ? "long_factor"
                                                                    : NULL;
  if (missing != NULL) {
    return mk_error(MK_ERR_FILE, "%s.%s: is missing; rope type \"%s\" needs it", key, missing, type_names[r->type]);
  }
  if (r->factor < 1 && !(derived && r->factor == 0)) {
    return mk_error(MK_ERR_FILE, "%s.factor: is %g, must be at least 1", key, r->factor);
  }
  if (r->type == MK_ROPE_LLAMA3 && r->high <= r->low) {
    return mk_error(MK_ERR_FILE, "%s.high_freq_factor: is %g, must be above low_freq_factor %g", key, r->high, r->low);
  }
  return MK_OK;
}

static bool has_original(mk_rope_type type) {
  return type == MK_ROPE_LLAMA3 || type == MK_ROPE_YARN || type == MK_ROPE_LONGROPE;
}

static mk_status take_original(const json_t *object, const char *prefix, uint32_t *out) {
  const json_t *value = mk_json_get(object, "original_max_position_embeddings");
  char field[64];
  snprintf(field, sizeof field, "%soriginal_max_position_embeddings", prefix);
  return value == NULL ? MK_OK : mk_config_u32(value, field, 1, MK_MAX_POSITION, out);
}

static mk_status take_stretch(const json_t *object, const char *prefix, rope *out) {
  bool truncate = true;
  MK_TRY(mk_config_positive(object, prefix, "attention_factor", 1e9, &out->attention));
  MK_TRY(mk_config_positive(object, prefix, "beta_fast", 1e9, &out->beta_fast));
  MK_TRY(mk_config_positive(object, prefix, "beta_slow", 1e9, &out->beta_slow));
  MK_TRY(mk_config_positive(object, prefix, "mscale", 1e9, &out->mscale));
  MK_TRY(mk_config_positive(object, prefix, "mscale_all_dim", 1e9, &out->mscale_all));
  MK_TRY(mk_config_bool(object, "truncate", &truncate));
  out->no_truncate = !truncate;
  out->short_factor = mk_json_get(object, "short_factor");
  out->long_factor = mk_json_get(object, "long_factor");
  return MK_OK;
}

/* One of the two objects that describe the rotation. An empty one says nothing. */
static mk_status parse_object(const json_t *root, const char *key, mk_model_kind kind, bool *given, rope *out) {
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
  MK_TRY(parse_type(object, key, kind, &out->type));
  MK_TRY(mk_config_positive(object, prefix, "rope_theta", 1e15, &out->theta));
  MK_TRY(mk_config_positive(object, prefix, "partial_rotary_factor", 1, &out->share));
  if (out->type == MK_ROPE_DEFAULT) {
    return MK_OK;
  }
  MK_TRY(mk_config_positive(object, prefix, "factor", 1e9, &out->factor));
  if (out->type == MK_ROPE_LLAMA3) {
    MK_TRY(mk_config_positive(object, prefix, "low_freq_factor", 1e9, &out->low));
    MK_TRY(mk_config_positive(object, prefix, "high_freq_factor", 1e9, &out->high));
  }
  if (has_original(out->type)) {
    MK_TRY(take_original(object, prefix, &out->original));
    MK_TRY(take_stretch(object, prefix, out));
  }
  return need_factor(key, out);
}

/* rope_theta stands beside the objects or in one of them. Where two differ, releases of transformers disagree on which
 * counts. */
static mk_status take_theta(const json_t *root, const rope *scaling, const rope *parameters, double otherwise,
                            double *out) {
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
    *out = otherwise; /* Llama 2 files do not write it */
  }
  return MK_OK;
}

/* The context that a model was trained with before it was stretched may stand beside the object, too; else it is the
 * whole one, or, in Phi-3's class, 4,096. */
static mk_status settle_original(const json_t *root, const mk_config *config, rope *chosen) {
  uint32_t beside = 0;
  const uint32_t otherwise = config->kind == MK_MODEL_PHI3 ? 4096 : config->max_position;
  if (!has_original(chosen->type)) {
    return MK_OK;
  }
  MK_TRY(take_original(root, "", &beside));
  if (beside != 0 && chosen->original != 0 && beside != chosen->original) {
    return mk_error(MK_ERR_FILE, "original_max_position_embeddings: is given twice, as %u and as %u; keep one of them",
                    beside, chosen->original);
  }
  chosen->original = beside != 0 ? beside : chosen->original != 0 ? chosen->original : otherwise;
  return MK_OK;
}

/* The rotated dims of a head. Only Phi-3's class leaves some as they are; any other would ignore the key, or refuse
 * it. */
static mk_status settle_share(const json_t *root, const rope *chosen, mk_config *config) {
  double share = 0;
  MK_TRY(mk_config_positive(root, "", "partial_rotary_factor", 1, &share));
  share = chosen->share != 0 ? chosen->share : share != 0 ? share : 1;
  if (share == 1) {
    return MK_OK;
  }
  if (config->kind != MK_MODEL_PHI3) {
    return mk_error(MK_ERR_FILE, "partial_rotary_factor: %g is not supported; only 1 is in a %s", share,
                    mk_model_title(config->kind));
  }
  config->rotary = (uint32_t)(config->head_dim * share);
  return config->rotary >= 2 && config->rotary % 2 == 0
             ? MK_OK
             : mk_error(MK_ERR_FILE,
                        "partial_rotary_factor: %g of a head of %u is %u; it must be an even number of dims", share,
                        config->head_dim, config->rotary);
}

static mk_status take_divisors(const json_t *list, const char *field, uint32_t pairs, float *out) {
  char shown[MK_JSON_SHOWN];
  if (!json_is_array(list) || json_array_size(list) != pairs) {
    return mk_error(MK_ERR_FILE, "%s: is %s, must be a list of %u numbers", field, mk_json_show(list, shown), pairs);
  }
  for (uint32_t i = 0; i < pairs; i++) {
    const json_t *value = json_array_get(list, i);
    const double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= 1e-9 && number <= 1e9)) {
      return mk_error(MK_ERR_FILE, "%s: number %u is %s, must be from 1e-9 to 1e9", field, i,
                      mk_json_show(value, shown));
    }
    out[i] = (float)number;
  }
  return MK_OK;
}

static double yarn_scale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1; }

/* The factor on sine and cosine, where it is not given. */
static double attention_factor(const rope *r, double factor) {
  if (r->attention != 0) {
    return r->attention;
  }
  if (r->type == MK_ROPE_LONGROPE) {
    return factor <= 1 ? 1 : sqrt(1 + log(factor) / log(r->original));
  }
  return r->mscale != 0 && r->mscale_all != 0 ? yarn_scale(factor, r->mscale) / yarn_scale(factor, r->mscale_all)
                                              : yarn_scale(factor, 1);
}

/* For yarn and longrope: settles what follows from the original context. A yarn model reaches as far as it is
 * stretched, whatever max_position_embeddings says: files that add a rope_scaling leave it at the original context. */
static mk_status settle_stretch(rope *chosen, mk_config *config) {
  const uint32_t pairs = mk_config_rotary(config) / 2;
  if (chosen->type != MK_ROPE_YARN && chosen->type != MK_ROPE_LONGROPE) {
    return MK_OK;
  }
  if (chosen->original < 2) {
    return mk_error(MK_ERR_FILE, "original_max_position_embeddings: is %u, must be at least 2", chosen->original);
  }
  if (chosen->factor == 0) {
    chosen->factor = (double)config->max_position / chosen->original;
  }
  config->rope_attention = attention_factor(chosen, chosen->factor);
  if (chosen->type == MK_ROPE_LONGROPE) {
    MK_TRY(take_divisors(chosen->short_factor, "short_factor", pairs, config->rope_short));
    return take_divisors(chosen->long_factor, "long_factor", pairs, config->rope_long);
  }
  config->rope_beta_fast = chosen->beta_fast != 0 ? chosen->beta_fast : 32;
  config->rope_beta_slow = chosen->beta_slow != 0 ? chosen->beta_slow : 1;
  config->rope_no_truncate = chosen->no_truncate;
  const double reach = chosen->factor * chosen->original;
  if (reach > config->max_position) {
    config->max_position = reach < MK_MAX_POSITION ? (uint32_t)reach : MK_MAX_POSITION;
  }
  return config->rope_theta > 1
             ? MK_OK
             : mk_error(MK_ERR_FILE, "rope_theta: is %g; rope type \"yarn\" needs one above 1", config->rope_theta);
}

static bool same_list(const json_t *a, const json_t *b) { return (a == NULL && b == NULL) || json_equal(a, b) != 0; }

static bool differ(const rope *a, const rope *b) {
  return a->type != b->type || a->factor != b->factor || a->low != b->low || a->high != b->high ||
         a->original != b->original || a->share != b->share || a->attention != b->attention ||
         a->beta_fast != b->beta_fast || a->beta_slow != b->beta_slow || a->mscale != b->mscale ||
         a->mscale_all != b->mscale_all || a->no_truncate != b->no_truncate ||
         !same_list(a->short_factor, b->short_factor) || !same_list(a->long_factor, b->long_factor);
}

/* Gemma 3 has two rotations: in rope_parameters an object for either kind of layers, else rope_theta and rope_scaling
 * for the layers without a window, and rope_local_base_freq for the others. *root becomes where `key` is found. */
static mk_status take_local(const json_t **root, const char **key, mk_config *config) {
  char shown[MK_JSON_SHOWN];
  bool given;
  rope local;
  double beside = 0;
  const json_t *both = mk_json_get(*root, "rope_parameters");
  MK_TRY(mk_config_positive(*root, "", "rope_local_base_freq", 1e15, &beside));
  config->rope_local_theta = beside != 0 ? beside : 10000;
  if (both == NULL || (json_is_object(both) && json_object_size(both) == 0)) {
    return MK_OK;
  }
  if (mk_json_get(both, "full_attention") == NULL && mk_json_get(both, "sliding_attention") == NULL) {
    return mk_error(MK_ERR_FILE, "rope_parameters: is %s, must have \"full_attention\" and \"sliding_attention\"",
                    mk_json_show(both, shown));
  }
  MK_TRY(parse_object(both, "sliding_attention", config->kind, &given, &local));
  if (local.type != MK_ROPE_DEFAULT) {
    return mk_error(MK_ERR_FILE,
                    "rope_parameters.sliding_attention.rope_type: \"%s\" is not supported; only \"default\" is",
                    type_names[local.type]);
  }
  if (beside != 0 && local.theta != 0 && beside != local.theta) {
    return mk_error(MK_ERR_FILE,
                    "rope_local_base_freq: is %g, but rope_parameters.sliding_attention.rope_theta is %g; keep one",
                    beside, local.theta);
  }
  config->rope_local_theta = local.theta != 0 ? local.theta : config->rope_local_theta;
  *root = both;
  *key = "full_attention";
  return MK_OK;
}

static mk_status check_type(const mk_config *config, mk_rope_type type) {
  return config->rope_local_theta == 0 || type == MK_ROPE_DEFAULT || type == MK_ROPE_LINEAR
             ? MK_OK
             : mk_error(MK_ERR_FILE, "rope_type: \"%s\" is not supported in a %s; only \"default\" and \"linear\" are",
                        type_names[type], mk_model_title(config->kind));
}

mk_status mk_config_rope(const json_t *root, mk_config *config) {
  rope scaling, parameters;
  bool has_scaling, has_parameters;
  const json_t *holder = root;
  const char *key = "rope_parameters";
  MK_TRY(config->kind == MK_MODEL_GEMMA3 ? take_local(&holder, &key, config) : MK_OK);
  MK_TRY(parse_object(root, "rope_scaling", config->kind, &has_scaling, &scaling));
  MK_TRY(parse_object(holder, key, config->kind, &has_parameters, &parameters));
  if (has_scaling && has_parameters && differ(&scaling, &parameters)) {
    return mk_error(MK_ERR_FILE, "rope_scaling: differs from rope_parameters; keep one of them");
  }
  MK_TRY(take_theta(root, &scaling, &parameters, mk_kind_lookup(config->kind)->theta, &config->rope_theta));
  rope *chosen = has_parameters ? &parameters : &scaling;
  MK_TRY(check_type(config, chosen->type));
  MK_TRY(settle_share(root, chosen, config));
  MK_TRY(settle_original(root, config, chosen));
  MK_TRY(settle_stretch(chosen, config));
  config->rope_type = chosen->type;
  config->rope_factor = chosen->factor;
  config->rope_low_freq_factor = chosen->low;
  config->rope_high_freq_factor = chosen->high;
  config->rope_original_max_position = chosen->original;
  return MK_OK;
}

void mk_config_set_context(mk_config *config, uint32_t tokens) {
  config->rope_is_long = config->rope_type == MK_ROPE_LONGROPE && tokens > config->rope_original_max_position;
  config->window = config->window < tokens ? config->window : 0;
}
