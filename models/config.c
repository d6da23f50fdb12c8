/* See config.h. */
#include "models/config.h"

#include <math.h>
#include <string.h>

#include "models/json.h"

enum { FILE_LIMIT = 16 << 20 }; /* bytes: real files have a few kilobytes */

static mk_status check_u32(const json_t *value, const char *field, uint32_t low, uint32_t high, uint32_t *out) {
  char shown[MK_JSON_SHOWN];
  if (!json_is_integer(value)) {
    return mk_error(MK_ERR_FILE, "%s: is %s, must be a whole number from %u to %u", field, mk_json_show(value, shown),
                    low, high);
  }
  json_int_t number = json_integer_value(value);
  if (number < (json_int_t)low || number > (json_int_t)high) {
    return mk_error(MK_ERR_FILE, "%s: is %lld, must be from %u to %u", field, (long long)number, low, high);
  }
  *out = (uint32_t)number;
  return MK_OK;
}

static mk_status missing(const char *field) {
  return mk_error(MK_ERR_FILE, "%s: is missing; add it or download the file again", field);
}

static mk_status need_u32(const json_t *root, const char *key, uint32_t high, uint32_t *out) {
  const json_t *value = mk_json_get(root, key);
  return value == NULL ? missing(key) : check_u32(value, key, 1, high, out);
}

/* A finite number in (0, high]; `out` keeps its value when the key is absent. */
static mk_status take_positive(const json_t *root, const char *object, const char *key, double high, double *out) {
  const json_t *value = mk_json_get(root, key);
  if (value == NULL) {
    return MK_OK;
  }
  char shown[MK_JSON_SHOWN];
  double number = json_number_value(value);
  if (!json_is_number(value) || !isfinite(number) || number <= 0 || number > high) {
    return mk_error(MK_ERR_FILE, "%s%s: is %s, must be a number above 0 and at most %g", object, key,
                    mk_json_show(value, shown), high);
  }
  *out = number;
  return MK_OK;
}

static mk_status take_bool(const json_t *root, const char *key, bool *out) {
  const json_t *value = mk_json_get(root, key);
  if (value == NULL) {
    return MK_OK;
  }
  char shown[MK_JSON_SHOWN];
  if (!json_is_boolean(value)) {
    return mk_error(MK_ERR_FILE, "%s: is %s, must be true or false", key, mk_json_show(value, shown));
  }
  *out = json_is_true(value);
  return MK_OK;
}

static mk_status refuse_true(const json_t *root, const char *key) {
  bool set = false;
  MK_TRY(take_bool(root, key, &set));
  return set ? mk_error(MK_ERR_FILE, "%s: true is not supported; only Llama models without biases are", key) : MK_OK;
}

/* LlamaForCausalLM by its class name where the file lists classes, else by model_type. */
static mk_status check_architecture(const json_t *root) {
  char shown[MK_JSON_SHOWN];
  const json_t *type = mk_json_get(root, "model_type");
  const json_t *classes = mk_json_get(root, "architectures");
  if (type != NULL && (!json_is_string(type) || strcmp(json_string_value(type), "llama") != 0)) {
    return mk_error(MK_ERR_FILE, "model_type: %s is not supported; only \"llama\" is", mk_json_show(type, shown));
  }
  if (classes == NULL) {
    return type != NULL ? MK_OK : missing("architectures");
  }
  for (size_t i = 0; i < json_array_size(classes); i++) {
    const char *name = json_string_value(json_array_get(classes, i));
    if (name != NULL && strcmp(name, "LlamaForCausalLM") == 0) {
      return MK_OK;
    }
  }
  return mk_error(MK_ERR_FILE, "architectures: %s is not supported; only [\"LlamaForCausalLM\"] is",
                  mk_json_show(classes, shown));
}

static mk_status refuse_unsupported(const json_t *root) {
  char shown[MK_JSON_SHOWN];
  MK_TRY(refuse_true(root, "attention_bias"));
  MK_TRY(refuse_true(root, "mlp_bias"));
  const json_t *activation = mk_json_get(root, "hidden_act");
  if (activation != NULL && (!json_is_string(activation) || strcmp(json_string_value(activation), "silu") != 0)) {
    return mk_error(MK_ERR_FILE, "hidden_act: %s is not supported; only \"silu\" is", mk_json_show(activation, shown));
  }
  const json_t *quantization = mk_json_get(root, "quantization_config");
  if (quantization != NULL) {
    return mk_error(MK_ERR_FILE,
                    "quantization_config: %s: quantized weights are not supported; use a bf16, fp16 or fp32 model",
                    mk_json_show(quantization, shown));
  }
  /* Slices of the projections computed one by one: the sums differ in the last bits, so only 1 is the model meant here.
   */
  const json_t *slices = mk_json_get(root, "pretraining_tp");
  if (slices != NULL && !(json_is_integer(slices) && json_integer_value(slices) == 1)) {
    return mk_error(MK_ERR_FILE, "pretraining_tp: %s is not supported; set it to 1", mk_json_show(slices, shown));
  }
  return MK_OK;
}

typedef struct rope {
  double theta; /* 0: not given */
  bool llama3;
  double factor, low, high;
  uint32_t original;
} rope;

static mk_status parse_rope_type(const json_t *object, const char *key, const char **type) {
  char shown[MK_JSON_SHOWN];
  const json_t *modern = mk_json_get(object, "rope_type");
  const json_t *legacy = mk_json_get(object, "type");
  if (modern != NULL && legacy != NULL && !json_equal(modern, legacy)) {
    return mk_error(MK_ERR_FILE, "%s.rope_type: is %s, but %s.type differs; remove one", key,
                    mk_json_show(modern, shown), key);
  }
  const json_t *value = modern != NULL ? modern : legacy;
  *type = value == NULL ? "default" : json_string_value(value);
  if (*type == NULL || (strcmp(*type, "default") != 0 && strcmp(*type, "llama3") != 0)) {
    return mk_error(MK_ERR_FILE, "%s.rope_type: %s is not supported; only \"default\" and \"llama3\" are", key,
                    mk_json_show(value, shown));
  }
  return MK_OK;
}

/* One of the two objects that describe the rotation: "rope_scaling" (transformers 4) or "rope_parameters" (5). */
static mk_status parse_rope(const json_t *root, const char *key, bool *given, rope *out) {
  char shown[MK_JSON_SHOWN], prefix[32];
  *out = (rope){0};
  const json_t *object = mk_json_get(root, key);
  *given = object != NULL;
  if (object == NULL) {
    return MK_OK;
  }
  if (!json_is_object(object)) {
    return mk_error(MK_ERR_FILE, "%s: is %s, must be an object or null", key, mk_json_show(object, shown));
  }
  snprintf(prefix, sizeof prefix, "%s.", key);
  const char *type = NULL;
  MK_TRY(parse_rope_type(object, key, &type));
  MK_TRY(take_positive(object, prefix, "rope_theta", 1e15, &out->theta));
  double share = 1;
  MK_TRY(take_positive(object, prefix, "partial_rotary_factor", 1, &share));
  if (share < 1) {
    return mk_error(MK_ERR_FILE, "%s.partial_rotary_factor: %g is not supported; only 1 is", key, share);
  }
  out->llama3 = strcmp(type, "llama3") == 0;
  if (!out->llama3) {
    return MK_OK;
  }
  MK_TRY(take_positive(object, prefix, "factor", 1e9, &out->factor));
  MK_TRY(take_positive(object, prefix, "low_freq_factor", 1e9, &out->low));
  MK_TRY(take_positive(object, prefix, "high_freq_factor", 1e9, &out->high));
  if (out->factor == 0 || out->low == 0 || out->high == 0) {
    return mk_error(MK_ERR_FILE, "%s.%s: is missing; rope type \"llama3\" needs it", key,
                    out->factor == 0 ? "factor"
                    : out->low == 0  ? "low_freq_factor"
                                     : "high_freq_factor");
  }
  if (out->factor < 1) {
    return mk_error(MK_ERR_FILE, "%s.factor: is %g, must be at least 1", key, out->factor);
  }
  if (out->high <= out->low) {
    return mk_error(MK_ERR_FILE, "%s.high_freq_factor: is %g, must be above low_freq_factor %g", key, out->high,
                    out->low);
  }
  const json_t *original = mk_json_get(object, "original_max_position_embeddings");
  char field[64];
  snprintf(field, sizeof field, "%s.original_max_position_embeddings", key);
  return original == NULL ? missing(field) : check_u32(original, field, 1, MK_MAX_POSITION, &out->original);
}

static mk_status take_rope(const json_t *root, mk_config *config) {
  rope scaling, parameters;
  bool has_scaling, has_parameters;
  double theta = 0, share = 1;
  MK_TRY(take_positive(root, "", "rope_theta", 1e15, &theta));
  MK_TRY(take_positive(root, "", "partial_rotary_factor", 1, &share));
  if (share < 1) {
    return mk_error(MK_ERR_FILE, "partial_rotary_factor: %g is not supported; only 1 is", share);
  }
  MK_TRY(parse_rope(root, "rope_scaling", &has_scaling, &scaling));
  MK_TRY(parse_rope(root, "rope_parameters", &has_parameters, &parameters));
  if (has_scaling && has_parameters &&
      (scaling.llama3 != parameters.llama3 || scaling.factor != parameters.factor || scaling.low != parameters.low ||
       scaling.high != parameters.high || scaling.original != parameters.original)) {
    return mk_error(MK_ERR_FILE, "rope_scaling: differs from rope_parameters; keep one of them");
  }
  const rope *chosen = has_parameters ? &parameters : &scaling;
  const double given[] = {theta, scaling.theta, parameters.theta};
  config->rope_theta = 0;
  for (size_t i = 0; i < 3; i++) {
    if (given[i] != 0 && config->rope_theta != 0 && given[i] != config->rope_theta) {
      return mk_error(MK_ERR_FILE, "rope_theta: is given twice, as %g and as %g; keep one of them", config->rope_theta,
                      given[i]);
    }
    config->rope_theta = given[i] != 0 ? given[i] : config->rope_theta;
  }
  if (config->rope_theta == 0) {
    config->rope_theta = 10000; /* Llama 2 files do not write it */
  }
  config->rope_llama3 = chosen->llama3;
  config->rope_factor = chosen->factor;
  config->rope_low_freq_factor = chosen->low;
  config->rope_high_freq_factor = chosen->high;
  config->rope_original_max_position = chosen->original;
  return MK_OK;
}

static mk_status take_token_ids(const json_t *root, mk_config *config) {
  const json_t *bos = mk_json_get(root, "bos_token_id");
  if (bos != NULL) {
    MK_TRY(check_u32(bos, "bos_token_id", 0, config->vocab - 1, &config->bos));
    config->has_bos = true;
  }
  const json_t *eos = mk_json_get(root, "eos_token_id");
  if (eos == NULL) {
    return MK_OK;
  }
  size_t count = json_is_array(eos) ? json_array_size(eos) : 1;
  if (count > MK_MAX_EOS) {
    return mk_error(MK_ERR_FILE, "eos_token_id: lists %zu ids, at most %d are supported", count, MK_MAX_EOS);
  }
  config->eos_count = 0;
  for (size_t i = 0; i < count; i++) {
    const json_t *id = json_is_array(eos) ? json_array_get(eos, i) : eos;
    MK_TRY(check_u32(id, "eos_token_id", 0, config->vocab - 1, &config->eos[config->eos_count]));
    config->eos_count++;
  }
  return MK_OK;
}

static mk_status take_heads(const json_t *root, mk_config *config) {
  MK_TRY(need_u32(root, "num_attention_heads", MK_MAX_HEADS, &config->heads));
  config->kv_heads = config->heads; /* Llama 2 7B files do not write it */
  if (mk_json_get(root, "num_key_value_heads") != NULL) {
    MK_TRY(need_u32(root, "num_key_value_heads", MK_MAX_HEADS, &config->kv_heads));
  }
  if (config->heads % config->kv_heads != 0) {
    return mk_error(MK_ERR_FILE, "num_key_value_heads: is %u, must divide num_attention_heads %u", config->kv_heads,
                    config->heads);
  }
  if (mk_json_get(root, "head_dim") != NULL) {
    MK_TRY(need_u32(root, "head_dim", MK_MAX_WIDTH, &config->head_dim));
  } else if (config->hidden % config->heads != 0) {
    return mk_error(MK_ERR_FILE, "head_dim: is missing and hidden_size %u is not a multiple of num_attention_heads %u",
                    config->hidden, config->heads);
  } else {
    config->head_dim = config->hidden / config->heads;
  }
  if (config->head_dim != 64 && config->head_dim != 128) {
    return mk_error(MK_ERR_FILE, "head_dim: %u is not supported; only 64 and 128 are", config->head_dim);
  }
  return MK_OK;
}

static mk_status take_all(const json_t *root, mk_config *config) {
  MK_TRY(check_architecture(root));
  MK_TRY(refuse_unsupported(root));
  MK_TRY(need_u32(root, "hidden_size", MK_MAX_WIDTH, &config->hidden));
  MK_TRY(need_u32(root, "intermediate_size", MK_MAX_WIDTH, &config->intermediate));
  MK_TRY(need_u32(root, "num_hidden_layers", MK_MAX_LAYERS, &config->layers));
  MK_TRY(need_u32(root, "vocab_size", MK_MAX_WIDTH, &config->vocab));
  MK_TRY(need_u32(root, "max_position_embeddings", MK_MAX_POSITION, &config->max_position));
  MK_TRY(take_heads(root, config));
  double eps = 0;
  MK_TRY(take_positive(root, "", "rms_norm_eps", 1, &eps));
  if (eps == 0) {
    return missing("rms_norm_eps");
  }
  config->rms_eps = (float)eps;
  MK_TRY(take_rope(root, config));
  MK_TRY(take_bool(root, "tie_word_embeddings", &config->tied));
  return take_token_ids(root, config);
}

mk_status mk_config_parse(const char *text, size_t length, mk_config *out) {
  json_t *root = NULL;
  mk_config config = {0};
  MK_TRY(mk_json_parse(text, length, &root));
  mk_status status = take_all(root, &config);
  json_decref(root);
  if (status == MK_OK) {
    *out = config;
  }
  return status;
}

mk_status mk_config_parse_generation(const char *text, size_t length, mk_config *inout) {
  json_t *root = NULL;
  mk_config config = *inout;
  MK_TRY(mk_json_parse(text, length, &root));
  mk_status status = take_token_ids(root, &config);
  json_decref(root);
  if (status == MK_OK) {
    *inout = config;
  }
  return status;
}

static mk_status load_file(const char *directory, const char *name, bool optional,
                           mk_status (*parse)(const char *, size_t, mk_config *), mk_config *config) {
  char *path = NULL, *text = NULL;
  size_t length;
  MK_TRY(mk_path_join(directory, name, &path));
  mk_status status = mk_file_read(path, optional, FILE_LIMIT, &text, &length);
  if (status == MK_OK && text != NULL) {
    status = parse(text, length, config);
    if (status != MK_OK) {
      mk_error_prefix(status, "%s", path);
    }
  }
  mk_free(text);
  mk_free(path);
  return status;
}

mk_status mk_config_load(const char *directory, mk_config *out) {
  mk_config config;
  MK_TRY(load_file(directory, "config.json", false, mk_config_parse, &config));
  MK_TRY(load_file(directory, "generation_config.json", true, mk_config_parse_generation, &config));
  *out = config;
  return MK_OK;
}
