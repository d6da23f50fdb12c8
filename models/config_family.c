/* Which family a config.json is of, and what sets it apart. See config.h; docs/FAMILY.md shows how to add one. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/config_internal.h"

/* Key by key what the family's class in transformers 5 has where config.json has nothing. */
static const mk_kind_info kinds[MK_MODEL_KINDS] = {
    [MK_MODEL_LLAMA] = {"llama", "LlamaForCausalLM", "Llama", 4096, 11008, 32000, 2048, 0, 0, 1e-6, 10000, false},
    [MK_MODEL_QWEN2] = {"qwen2", "Qwen2ForCausalLM", "Qwen2", 4096, 22016, 151936, 32768, 32, 0, 1e-6, 10000, false},
    [MK_MODEL_QWEN3] = {"qwen3", "Qwen3ForCausalLM", "Qwen3", 4096, 22016, 151936, 32768, 32, 128, 1e-6, 10000, false},
    [MK_MODEL_MISTRAL] = {"mistral", "MistralForCausalLM", "Mistral", 4096, 14336, 32000, 131072, 8, 0, 1e-6, 10000,
                          false},
    [MK_MODEL_MINISTRAL] = {"ministral", "MinistralForCausalLM", "Ministral", 4096, 14336, 32000, 131072, 8, 0, 1e-6,
                            10000, false},
    [MK_MODEL_GRANITE] = {"granite", "GraniteForCausalLM", "Granite", 4096, 11008, 32000, 2048, 0, 0, 1e-6, 10000,
                          false},
    [MK_MODEL_SMOLLM3] = {"smollm3", "SmolLM3ForCausalLM", "SmolLM3", 2048, 11008, 128256, 32768, 4, 0, 1e-6, 2000000,
                          true},
    [MK_MODEL_PHI3] = {"phi3", "Phi3ForCausalLM", "Phi3", 3072, 8192, 32064, 4096, 0, 0, 1e-5, 10000, false},
    [MK_MODEL_OLMO2] = {"olmo2", "Olmo2ForCausalLM", "OLMo2", 4096, 11008, 50304, 2048, 0, 0, 1e-5, 10000, false},
    [MK_MODEL_GEMMA3] = {"gemma3_text", "Gemma3ForCausalLM", "Gemma3", 2304, 9216, 262208, 131072, 4, 256, 1e-6, 1e6,
                         true},
};

const mk_kind_info *mk_kind_lookup(mk_model_kind kind) { return &kinds[kind]; }
const char *mk_model_title(mk_model_kind kind) { return kinds[kind].title; }
const char *mk_model_type(mk_model_kind kind) { return kinds[kind].type; }

static const mk_whole_info wholes[] = {
    {"gemma3", "Gemma3ForConditionalGeneration", MK_MODEL_GEMMA3, 26, 8},
    {"mistral3", "Mistral3ForConditionalGeneration", MK_MODEL_MISTRAL, 32, 32},
};
enum { WHOLES = sizeof wholes / sizeof wholes[0], MOST_TYPES = 160 }; /* MOST_TYPES: bytes of a list of all types */

/* Families that are known and not computed: by what their model_type, or their class before "For", begins with. The
 * first one that fits counts. */
static const struct {
  const char *type, *lacks;
} others[] = {
    {"gemma3n", "layers of several kinds, embeddings of each layer, images and sound"},
    {"gemma2", "soft caps on scores and logits"},
    {"gemma", "its table of tensors"},
    {"mixtral", "a mixture of experts"},
    {"qwen3_next", "linear attention and a mixture of experts"},
    {"qwen3_5", "linear attention"},
    {"qwen2_moe", "a mixture of experts"},
    {"qwen3_moe", "a mixture of experts"},
    {"qwen2_vl", "images"},
    {"qwen2_5_vl", "images"},
    {"qwen3_vl", "images"},
    {"granitemoehybrid", "state-space layers, or a mixture of experts"},
    {"granitemoe", "a mixture of experts"},
    {"olmoe", "a mixture of experts"},
    {"olmo3", "its table of tensors"},
    {"olmo", "layer norms without weights"},
    {"phimoe", "a mixture of experts"},
    {"phi4mm", "images and sound"},
    {"phi4_multimodal", "images and sound"},
    {"phi", "layer norms, and attention beside the MLP"},
    {"deepseek", "latent attention and a mixture of experts"},
    {"kimi", "latent attention and a mixture of experts"},
    {"llama4", "a mixture of experts and attention in chunks"},
    {"mllama", "images"},
    {"llava", "images"},
    {"ministral3", "queries that are scaled by their position"},
    {"pixtral", "images"},
    {"gpt_oss", "a mixture of experts and attention sinks"},
    {"gpt2", "layer norms and learned positions"},
    {"gpt_neox", "layer norms, and attention beside the MLP"},
    {"gptj", "layer norms, and attention beside the MLP"},
    {"gpt_bigcode", "layer norms and learned positions"},
    {"starcoder2", "layer norms and GELU"},
    {"stablelm", "layer norms"},
    {"falcon_mamba", "state-space layers"},
    {"falcon_h1", "state-space layers"},
    {"falcon", "layer norms, and attention beside the MLP"},
    {"bloom", "layer norms and positions by ALiBi"},
    {"mpt", "layer norms and positions by ALiBi"},
    {"opt", "layer norms and learned positions"},
    {"cohere", "layer norms, and attention beside the MLP"},
    {"nemotron_h", "state-space layers"},
    {"nemotron", "layer norms of (1 + w) and squared ReLU"},
    {"glm4_moe", "a mixture of experts"},
    {"glm", "rotation of neighbouring dims"},
    {"chatglm", "rotation of neighbouring dims"},
    {"ernie4_5_moe", "a mixture of experts"},
    {"ernie4_5", "rotation of neighbouring dims"},
    {"helium", "rotation of neighbouring dims"},
    {"exaone4", "layers of two kinds"},
    {"exaone", "its own names of tensors"},
    {"internlm", "its own names of tensors"},
    {"baichuan", "its own names of tensors"},
    {"smollm", "its own table of tensors"},
    {"mamba", "state-space layers"},
    {"bamba", "state-space layers"},
    {"zamba", "state-space layers"},
    {"jamba", "state-space layers and a mixture of experts"},
    {"rwkv", "recurrent layers"},
    {"recurrent_gemma", "recurrent layers"},
    {"arcee", "squared ReLU, and an MLP without a gate"},
    {"apertus", "the activation xIELU, and an MLP without a gate"},
    {"diffllama", "differences of attention"},
    {"vaultgemma", "soft caps on scores and logits"},
    {"codegen", "layer norms, and attention beside the MLP"},
    {"persimmon", "layer norms"},
    {"xglm", "layer norms and added positions"},
    {"bitnet", "ternary weights, and norms within attention and MLP"},
    {"lfm2", "convolution layers"},
    {"hunyuan", "norms after the rotation, or a mixture of experts"},
    {"t5", "an encoder"},
    {"bart", "an encoder"},
    {"whisper", "an encoder, and sound"},
    {"bert", "an encoder"},
};

static const char *what_lacks(const json_t *root, const char *type) {
  static const char *const experts[] = {"num_experts", "num_local_experts", "n_routed_experts",
                                        "moe_intermediate_size"};
  for (size_t i = 0; type != NULL && i < sizeof others / sizeof others[0]; i++) {
    if (strncmp(type, others[i].type, strlen(others[i].type)) == 0) {
      return others[i].lacks;
    }
  }
  for (size_t i = 0; i < sizeof experts / sizeof experts[0]; i++) {
    if (json_number_value(mk_json_get(root, experts[i])) > 0) {
      return "a mixture of experts";
    }
  }
  return mk_json_get(root, "vision_config") != NULL              ? "images"
         : json_is_true(mk_json_get(root, "is_encoder_decoder")) ? "an encoder"
         : mk_json_get(root, "kv_lora_rank") != NULL             ? "latent attention"
         : mk_json_get(root, "layer_norm_epsilon") != NULL       ? "layer norms"
         : mk_json_get(root, "quantization_config") != NULL      ? "its table of tensors, and quantized weights"
                                                            : "its table of tensors and its graph (docs/FAMILY.md)";
}

static const char *list_types(char list[MOST_TYPES]) {
  size_t used = 0;
  for (int k = 0; k < MK_MODEL_KINDS; k++) {
    used += (size_t)snprintf(list + used, MOST_TYPES - used, "%s%s", k == 0 ? "" : ", ", kinds[k].type);
  }
  for (int w = 0; w < WHOLES; w++) {
    used += (size_t)snprintf(list + used, MOST_TYPES - used, ", %s", wholes[w].type);
  }
  return list;
}

static bool lists_class(const json_t *classes, const char *class) {
  for (size_t i = 0; i < json_array_size(classes); i++) {
    const char *name = json_string_value(json_array_get(classes, i));
    if (name != NULL && strcmp(name, class) == 0) {
      return true;
    }
  }
  return false;
}

/* By model_type, or, where there is none, by class name. */
mk_status mk_config_whole(const json_t *root, const mk_whole_info **out) {
  char shown[MK_JSON_SHOWN];
  const json_t *type = mk_json_get(root, "model_type"), *classes = mk_json_get(root, "architectures");
  const char *name = json_string_value(type);
  *out = NULL;
  for (int w = 0; w < WHOLES; w++) {
    const bool listed = lists_class(classes, wholes[w].class);
    if (type == NULL ? listed : name != NULL && strcmp(name, wholes[w].type) == 0) {
      *out = &wholes[w];
      return classes == NULL || listed ? MK_OK
                                       : mk_error(MK_ERR_FILE, "architectures: %s is not supported; only [\"%s\"] is",
                                                  mk_json_show(classes, shown), wholes[w].class);
    }
  }
  return MK_OK;
}

mk_status mk_config_text_kind(const json_t *text, const mk_whole_info *whole, mk_model_kind *out) {
  *out = whole->kind;
  if (mk_json_get(text, "model_type") != NULL || mk_json_get(text, "architectures") != NULL) {
    MK_TRY(mk_config_kind(text, out));
  }
  return *out == whole->kind ? MK_OK
                             : mk_error(MK_ERR_FILE, "model_type: is \"%s\"; the text model of a %s is a %s",
                                        kinds[*out].type, whole->type, kinds[whole->kind].type);
}

/* By model_type, and by class name where the file lists classes; one of the two is enough. */
mk_status mk_config_kind(const json_t *root, mk_model_kind *out) {
  char shown[MK_JSON_SHOWN], list[MOST_TYPES];
  const json_t *type = mk_json_get(root, "model_type"), *classes = mk_json_get(root, "architectures");
  const char *name = json_string_value(type);
  int kind = MK_MODEL_KINDS;
  for (int k = 0; name != NULL && k < MK_MODEL_KINDS; k++) {
    kind = strcmp(name, kinds[k].type) == 0 ? k : kind;
  }
  if (type != NULL && kind == MK_MODEL_KINDS) {
    return mk_error(MK_ERR_FILE, "model_type: %s is not supported: it needs %s; supported are %s",
                    mk_json_show(type, shown), what_lacks(root, name), list_types(list));
  }
  if (classes == NULL && type == NULL) {
    return mk_config_missing("architectures");
  }
  for (size_t i = 0; i < json_array_size(classes); i++) {
    const char *class = json_string_value(json_array_get(classes, i));
    for (int k = 0; class != NULL && k < MK_MODEL_KINDS; k++) {
      if (strcmp(class, kinds[k].class) == 0 && (type == NULL || k == kind)) {
        *out = (mk_model_kind)k;
        return MK_OK;
      }
    }
  }
  *out = (mk_model_kind)kind;
  return classes == NULL ? MK_OK
                         : mk_error(MK_ERR_FILE, "architectures: %s is not supported; only [\"%s\"] is%s%s",
                                    mk_json_show(classes, shown), kinds[type == NULL ? 0 : kind].class,
                                    type == NULL ? " among others; supported by model_type are " : "",
                                    type == NULL ? list_types(list) : "");
}

static void set_layer(uint8_t *bits, uint32_t layer) { bits[layer / 8] |= (uint8_t)(1U << layer % 8); }

static mk_status check_layer_types(const json_t *types, uint32_t layers) {
  char shown[MK_JSON_SHOWN];
  if (!json_is_array(types) || json_array_size(types) < layers) {
    return mk_error(MK_ERR_FILE, "layer_types: is %s, must be a list with a kind for each of %u layers",
                    mk_json_show(types, shown), layers);
  }
  for (uint32_t layer = 0; layer < layers; layer++) {
    const json_t *type = json_array_get(types, layer);
    const char *name = json_string_value(type);
    if (name == NULL || (strcmp(name, "full_attention") != 0 && strcmp(name, "sliding_attention") != 0)) {
      return mk_error(MK_ERR_FILE,
                      "layer_types: %s is not supported; only \"full_attention\" and \"sliding_attention\" are",
                      mk_json_show(type, shown));
    }
  }
  return MK_OK;
}

/* Which families have windows, and where config.json does not say which layers have one. */
typedef enum window_rule {
  NO_WINDOWS,
  ALL_LAYERS,    /* whatever layer_types says */
  LISTED_LAYERS, /* those of layer_types; without it all */
  LATER_LAYERS,  /* the same; without it those from max_window_layers on */
  MOST_LAYERS,   /* the same; without it all but every sliding_window_pattern-th; they rotate in their own way */
  PLAIN_LAYERS,  /* the same; without it those that do not rotate */
} window_rule;

static const struct {
  window_rule rule;
  bool switched;   /* has use_sliding_window, which is false where it is absent */
  uint32_t absent; /* the window of a file without sliding_window; 0: none */
} windows[MK_MODEL_KINDS] = {
    [MK_MODEL_QWEN2] = {LATER_LAYERS, true, 4096},  [MK_MODEL_QWEN3] = {LATER_LAYERS, true, 4096},
    [MK_MODEL_MISTRAL] = {ALL_LAYERS, false, 4096}, [MK_MODEL_PHI3] = {ALL_LAYERS, false, 0},
    [MK_MODEL_GEMMA3] = {MOST_LAYERS, false, 4096}, [MK_MODEL_MINISTRAL] = {LISTED_LAYERS, false, 4096},
    [MK_MODEL_SMOLLM3] = {PLAIN_LAYERS, true, 0},
};

static mk_status take_windowed_layers(const json_t *root, mk_config *config) {
  const window_rule rule = windows[config->kind].rule;
  const json_t *types = rule == ALL_LAYERS ? NULL : mk_json_get(root, "layer_types");
  const json_t *later = mk_json_get(root, "max_window_layers");
  const json_t *every = mk_json_get(root, "sliding_window_pattern");
  uint32_t first = 28, pattern = 6; /* the classes' values */
  MK_TRY(types == NULL ? MK_OK : check_layer_types(types, config->layers));
  if (rule == LATER_LAYERS && later != NULL) {
    MK_TRY(mk_config_u32(later, "max_window_layers", 0, UINT32_MAX, &first));
  }
  if (rule == MOST_LAYERS && every != NULL) {
    MK_TRY(mk_config_u32(every, "sliding_window_pattern", 1, UINT32_MAX, &pattern));
  }
  for (uint32_t layer = 0; layer < config->layers; layer++) {
    const bool has = types != NULL ? strcmp(json_string_value(json_array_get(types, layer)), "full_attention") != 0
                     : rule == LATER_LAYERS ? layer >= first
                     : rule == MOST_LAYERS  ? (layer + 1) % pattern != 0
                     : rule == PLAIN_LAYERS ? !mk_config_rotates(config, layer)
                                            : true;
    if (has) {
      set_layer(config->windowed, layer);
    }
  }
  return MK_OK;
}

/* A window that holds every context is none. */
static mk_status take_windows(const json_t *root, mk_config *config) {
  const json_t *window = mk_json_get(root, "sliding_window");
  const bool null = window == NULL && json_object_get(root, "sliding_window") != NULL; /* which is no window */
  bool used = !windows[config->kind].switched;
  uint32_t size = null ? 0 : windows[config->kind].absent;
  if (windows[config->kind].rule == NO_WINDOWS) {
    return MK_OK;
  }
  MK_TRY(used ? MK_OK : mk_config_bool(root, "use_sliding_window", &used));
  if (used && window != NULL) {
    MK_TRY(mk_config_u32(window, "sliding_window", 1, UINT32_MAX, &size));
  }
  if (!used || (size == 0 && windows[config->kind].rule != MOST_LAYERS)) {
    return MK_OK;
  }
  MK_TRY(take_windowed_layers(root, config));
  config->window = size < config->max_position ? size : 0;
  return MK_OK;
}

static mk_status take_multiplier(const json_t *root, const char *key, double *out) {
  MK_TRY(mk_config_positive(root, "", key, 1e9, out));
  *out = *out == 1 ? 0 : *out;
  return MK_OK;
}

static mk_status take_multipliers(const json_t *root, mk_config *config) {
  MK_TRY(take_multiplier(root, "embedding_multiplier", &config->embedding_multiplier));
  MK_TRY(take_multiplier(root, "residual_multiplier", &config->residual_multiplier));
  MK_TRY(take_multiplier(root, "logits_scaling", &config->logits_scaling));
  config->attention_multiplier = 1; /* the class's value, not 1 / sqrt(head_dim) */
  return mk_config_positive(root, "", "attention_multiplier", 1e9, &config->attention_multiplier);
}

/* no_rope_layers has a 1 for each layer that rotates; without it every no_rope_layer_interval-th layer does not. */
static mk_status take_unrotated(const json_t *root, mk_config *config) {
  char shown[MK_JSON_SHOWN];
  const json_t *list = mk_json_get(root, "no_rope_layers"), *every = mk_json_get(root, "no_rope_layer_interval");
  uint32_t interval = 4;
  MK_TRY(every == NULL ? MK_OK : mk_config_u32(every, "no_rope_layer_interval", 1, UINT32_MAX, &interval));
  if (list != NULL && (!json_is_array(list) || json_array_size(list) < config->layers)) {
    return mk_error(MK_ERR_FILE, "no_rope_layers: is %s, must be a list with a number for each of %u layers",
                    mk_json_show(list, shown), config->layers);
  }
  for (uint32_t layer = 0; layer < config->layers; layer++) {
    uint32_t rotates = (layer + 1) % interval != 0;
    if (list != NULL) {
      MK_TRY(mk_config_u32(json_array_get(list, layer), "no_rope_layers", 0, 1, &rotates));
    }
    if (rotates == 0) {
      set_layer(config->unrotated, layer);
    }
  }
  return MK_OK;
}

/* Refuses a key that is there and neither null nor false. */
static mk_status refuse_key(const json_t *root, const char *key, const char *what) {
  char shown[MK_JSON_SHOWN];
  const json_t *value = mk_json_get(root, key);
  return value == NULL || json_is_false(value) ? MK_OK
                                               : mk_error(MK_ERR_FILE, "%s: is %s: %s not supported; only null is", key,
                                                          mk_json_show(value, shown), what);
}

/* Embeddings are multiplied by sqrt(hidden), rounded to bf16, which these models were trained with and which their
 * class has in bf16. */
static double embedding_scale(uint32_t hidden) {
  int exponent;
  const double scale = frexp(sqrt((double)hidden), &exponent);
  return ldexp(rint(ldexp(scale, 8)), exponent - 8);
}

static mk_status take_gemma3(const json_t *root, mk_config *config) {
  double scalar = 256;
  MK_TRY(refuse_key(root, "attn_logit_softcapping", "soft caps are"));
  MK_TRY(refuse_key(root, "final_logit_softcapping", "soft caps are"));
  MK_TRY(refuse_key(root, "use_bidirectional_attention", "attention to later tokens is"));
  MK_TRY(mk_config_positive(root, "", "query_pre_attn_scalar", 1e9, &scalar));
  config->attention_multiplier = 1 / sqrt(scalar);
  config->embedding_multiplier = embedding_scale(config->hidden);
  config->embedding_multiplier = config->embedding_multiplier == 1 ? 0 : config->embedding_multiplier;
  config->qk_norm = MK_QK_NORM_HEAD;
  config->norm_around = true;
  config->norm_plus_one = true;
  config->gelu = true;
  return MK_OK;
}

mk_status mk_config_differences(const json_t *root, mk_config *config) {
  bool attention_bias = false;
  switch (config->kind) {
    case MK_MODEL_QWEN2:
      config->qkv_bias = true;
      break;
    case MK_MODEL_QWEN3:
      config->qk_norm = MK_QK_NORM_HEAD;
      MK_TRY(mk_config_bool(root, "attention_bias", &attention_bias));
      break;
    case MK_MODEL_OLMO2:
      config->qk_norm = MK_QK_NORM_ALL;
      config->norm_after = true;
      MK_TRY(mk_config_bool(root, "attention_bias", &attention_bias));
      break;
    case MK_MODEL_PHI3:
      config->fused = true;
      break;
    case MK_MODEL_GRANITE:
      MK_TRY(take_multipliers(root, config));
      MK_TRY(mk_config_bool(root, "attention_bias", &attention_bias));
      MK_TRY(mk_config_bool(root, "mlp_bias", &config->mlp_bias));
      break;
    case MK_MODEL_SMOLLM3:
      MK_TRY(take_unrotated(root, config));
      MK_TRY(mk_config_bool(root, "attention_bias", &attention_bias));
      MK_TRY(mk_config_bool(root, "mlp_bias", &config->mlp_bias));
      break;
    case MK_MODEL_LLAMA:
      MK_TRY(mk_config_bool(root, "attention_bias", &attention_bias));
      MK_TRY(mk_config_bool(root, "mlp_bias", &config->mlp_bias));
      break;
    case MK_MODEL_GEMMA3:
      MK_TRY(take_gemma3(root, config));
      MK_TRY(mk_config_bool(root, "attention_bias", &attention_bias));
      break;
    case MK_MODEL_MISTRAL:
    case MK_MODEL_MINISTRAL:
    case MK_MODEL_KINDS:
      break;
  }
  config->qkv_bias |= attention_bias;
  config->o_bias = attention_bias;
  return take_windows(root, config);
}
