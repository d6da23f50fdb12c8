/* See config.h. */
#include "models/config.h"

#include <math.h>
#include <string.h>

#include "models/config_internal.h"

enum { FILE_LIMIT = 16 << 20 }; /* bytes: real files have a few kilobytes */

mk_status mk_config_u32(const json_t *value, const char *field, uint32_t low, uint32_t high, uint32_t *out) {
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

mk_status mk_config_missing(const char *field) {
  return mk_error(MK_ERR_FILE, "%s: is missing; add it or download the file again", field);
}

static mk_status need_u32(const json_t *root, const char *key, uint32_t high, uint32_t *out) {
  const json_t *value = mk_json_get(root, key);
  return value == NULL ? mk_config_missing(key) : mk_config_u32(value, key, 1, high, out);
}

static mk_status take_u32(const json_t *root, const char *key, uint32_t otherwise, uint32_t high, uint32_t *out) {
  const json_t *value = mk_json_get(root, key);
  *out = otherwise;
  return value == NULL ? MK_OK : mk_config_u32(value, key, 1, high, out);
}

mk_status mk_config_positive(const json_t *root, const char *object, const char *key, double high, double *out) {
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

mk_status mk_config_bool(const json_t *root, const char *key, bool *out) {
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

/* Of every family but Gemma's: SiLU, of which "swish" is another name. */
static mk_status check_activation(const json_t *root, mk_model_kind kind) {
  char shown[MK_JSON_SHOWN];
  const bool gelu = kind == MK_MODEL_GEMMA3;
  const char *key = gelu ? "hidden_activation" : "hidden_act", *second = gelu ? "gelu_pytorch_tanh" : "swish";
  const json_t *activation = mk_json_get(root, key);
  const char *name = json_string_value(activation);
  if (activation == NULL || (name != NULL && (strcmp(name, second) == 0 || (!gelu && strcmp(name, "silu") == 0)))) {
    return MK_OK;
  }
  return mk_error(MK_ERR_FILE, "%s: %s is not supported; only %s\"%s\" %s", key, mk_json_show(activation, shown),
                  gelu ? "" : "\"silu\" and ", second, gelu ? "is" : "are");
}

static mk_status refuse_unsupported(const json_t *root, mk_model_kind kind) {
  char shown[MK_JSON_SHOWN];
  MK_TRY(check_activation(root, kind));
  /* In how many slices the projections were computed in training: transformers computes them whole, whatever it is. */
  const json_t *slices = mk_json_get(root, "pretraining_tp");
  return slices == NULL || json_is_integer(slices)
             ? MK_OK
             : mk_error(MK_ERR_FILE, "pretraining_tp: is %s, must be a whole number", mk_json_show(slices, shown));
}

static void ignore_id(mk_config *config, const char *key, json_int_t id) {
  for (uint32_t i = 0; i < config->ignored_count && i < MK_MAX_IGNORED; i++) {
    if (config->ignored[i].id == id && strcmp(config->ignored[i].key, key) == 0) {
      return;
    }
  }
  if (config->ignored_count < MK_MAX_IGNORED) {
    config->ignored[config->ignored_count] = (mk_ignored_id){.key = key, .id = id};
  }
  config->ignored_count++;
}

/* An id that no token has says nothing: it is remembered as ignored, and *usable is false. `key` lives for ever. */
static mk_status take_id(const json_t *value, const char *key, mk_config *config, bool *usable, uint32_t *out) {
  char shown[MK_JSON_SHOWN];
  if (!json_is_integer(value)) {
    return mk_error(MK_ERR_FILE, "%s: is %s, must be a whole number", key, mk_json_show(value, shown));
  }
  json_int_t id = json_integer_value(value);
  *usable = id >= 0 && id < (json_int_t)config->vocab;
  if (*usable) {
    *out = (uint32_t)id;
  } else {
    ignore_id(config, key, id);
  }
  return MK_OK;
}

static mk_status take_eos(const json_t *eos, mk_config *config) {
  size_t count = json_is_array(eos) ? json_array_size(eos) : 1;
  config->eos_count = 0;
  for (size_t i = 0; i < count; i++) {
    const json_t *value = json_is_array(eos) ? json_array_get(eos, i) : eos;
    bool usable = false;
    uint32_t id = 0;
    MK_TRY(take_id(value, "eos_token_id", config, &usable, &id));
    if (usable && config->eos_count == MK_MAX_EOS) {
      return mk_error(MK_ERR_FILE, "eos_token_id: lists %zu ids, at most %d are supported", count, MK_MAX_EOS);
    }
    if (usable) {
      config->eos[config->eos_count++] = id;
    }
  }
  return MK_OK;
}

static mk_status take_token_ids(const json_t *root, mk_config *config) {
  const json_t *bos = mk_json_get(root, "bos_token_id");
  if (bos != NULL) {
    MK_TRY(take_id(bos, "bos_token_id", config, &config->has_bos, &config->bos));
  }
  const json_t *eos = mk_json_get(root, "eos_token_id");
  if (eos != NULL) {
    MK_TRY(take_eos(eos, config));
  }
  const json_t *pad = mk_json_get(root, "pad_token_id"); /* of no use here, but worth a word when it is none */
  bool usable;
  uint32_t id;
  return json_is_integer(pad) ? take_id(pad, "pad_token_id", config, &usable, &id) : MK_OK;
}

/* `otherwise` 0: it has to be there. */
static mk_status take_count(const json_t *root, const char *key, uint32_t otherwise, uint32_t high, uint32_t *out) {
  return otherwise == 0 ? need_u32(root, key, high, out) : take_u32(root, key, otherwise, high, out);
}

static mk_status take_heads(const json_t *root, const mk_kind_info *kind, uint32_t otherwise, mk_config *config) {
  MK_TRY(take_count(root, "num_attention_heads", otherwise, MK_MAX_HEADS, &config->heads));
  /* Llama 2 7B files do not write it. */
  const uint32_t kv_heads = kind->kv_heads != 0 ? kind->kv_heads : config->heads;
  MK_TRY(take_u32(root, "num_key_value_heads", kv_heads, MK_MAX_HEADS, &config->kv_heads));
  if (config->heads % config->kv_heads != 0) {
    return mk_error(MK_ERR_FILE, "num_key_value_heads: is %u, must divide num_attention_heads %u", config->kv_heads,
                    config->heads);
  }
  if (mk_json_get(root, "head_dim") != NULL) {
    MK_TRY(need_u32(root, "head_dim", MK_MAX_WIDTH, &config->head_dim));
  } else if (kind->head_dim != 0) {
    config->head_dim = kind->head_dim;
  } else if (config->hidden % config->heads != 0) {
    return mk_error(MK_ERR_FILE, "head_dim: is missing and hidden_size %u is not a multiple of num_attention_heads %u",
                    config->hidden, config->heads);
  } else {
    config->head_dim = config->hidden / config->heads;
  }
  if (config->head_dim != 64 && config->head_dim != 128 && config->head_dim != 256) {
    return mk_error(MK_ERR_FILE, "head_dim: %u is not supported; only 64, 128 and 256 are", config->head_dim);
  }
  return MK_OK;
}

/* The text model, of which the configuration is `root` itself, or text_config of a whole one. */
static mk_status take_text(const json_t *root, const mk_whole_info *whole, mk_config *config) {
  MK_TRY(whole == NULL ? mk_config_kind(root, &config->kind) : mk_config_text_kind(root, whole, &config->kind));
  MK_TRY(refuse_unsupported(root, config->kind));
  const mk_kind_info *kind = mk_kind_lookup(config->kind);
  MK_TRY(take_u32(root, "hidden_size", kind->hidden, MK_MAX_WIDTH, &config->hidden));
  MK_TRY(take_u32(root, "intermediate_size", kind->intermediate, MK_MAX_WIDTH, &config->intermediate));
  MK_TRY(take_count(root, "num_hidden_layers", whole == NULL ? 0 : whole->layers, MK_MAX_LAYERS, &config->layers));
  MK_TRY(take_u32(root, "vocab_size", kind->vocab, MK_MAX_WIDTH, &config->vocab));
  MK_TRY(take_u32(root, "max_position_embeddings", kind->max_position, MK_MAX_POSITION, &config->max_position));
  MK_TRY(take_heads(root, kind, whole == NULL ? 0 : whole->heads, config));
  double eps = kind->eps;
  MK_TRY(mk_config_positive(root, "", "rms_norm_eps", 1, &eps));
  config->rms_eps = (float)eps;
  MK_TRY(mk_config_rope(root, config));
  return mk_config_differences(root, config);
}

/* What is said of the text model beside text_config counts where both say it, as in transformers. */
static mk_status take_whole(const json_t *root, const mk_whole_info *whole, mk_config *config) {
  char shown[MK_JSON_SHOWN];
  const json_t *text = mk_json_get(root, "text_config");
  if (!json_is_object(text)) {
    return text == NULL ? mk_config_missing("text_config")
                        : mk_error(MK_ERR_FILE, "text_config: is %s, must be an object", mk_json_show(text, shown));
  }
  mk_status status = take_text(text, whole, config);
  status = status == MK_OK ? take_token_ids(text, config) : status;
  if (status != MK_OK) {
    return mk_error_prefix(status, "text_config");
  }
  config->naming = MK_NAMES_WITHIN;
  config->tied = true;
  MK_TRY(mk_config_bool(root, "tie_word_embeddings", &config->tied));
  MK_TRY(mk_config_quant(mk_json_get(root, "quantization_config") != NULL ? root : text, config));
  return take_token_ids(root, config);
}

static mk_status take_all(const json_t *root, mk_config *config) {
  const mk_whole_info *whole;
  MK_TRY(mk_config_whole(root, &whole));
  if (whole != NULL) {
    return take_whole(root, whole, config);
  }
  MK_TRY(take_text(root, NULL, config));
  config->tied = mk_kind_lookup(config->kind)->tied;
  MK_TRY(mk_config_bool(root, "tie_word_embeddings", &config->tied));
  MK_TRY(mk_config_quant(root, config));
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
  } else if (status == MK_ERR_FILE && !mk_file_is_there(path)) {
    char why[2048];
    snprintf(why, sizeof why, "%s", mk_error_message());
    status = mk_error(status, "%s; is this a Hugging Face model directory?", why);
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
