/* config.json of every family: what sets it apart is read, and what is not computed is refused by name. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/llama.h"

#define SIZES                                                                                                       \
  "\"hidden_size\":256,\"intermediate_size\":344,\"num_hidden_layers\":5,\"num_attention_heads\":4,\"vocab_size\":" \
  "300,\"num_key_value_heads\":2,\"max_position_embeddings\":4096,"

static mk_status parse(const char *type, const char *keys, mk_config *out) {
  char text[2048];
  snprintf(text, sizeof text, "{\"model_type\":\"%s\"," SIZES "%s\"use_cache\":true}", type, keys);
  return mk_config_parse(text, strlen(text), out);
}

static mk_config accepted(const char *type, const char *keys) {
  mk_config config;
  cr_assert_eq(parse(type, keys, &config), MK_OK, "%s %s: %s", type, keys, mk_error_message());
  return config;
}

static void refused(const char *type, const char *keys, const char *message) {
  mk_config config;
  cr_expect_eq(parse(type, keys, &config), MK_ERR_FILE, "%s %s", type, keys);
  cr_expect_not_null(strstr(mk_error_message(), message), "\"%s\" lacks \"%s\"", mk_error_message(), message);
}

Test(families, plain_llama_has_no_differences) {
  mk_config c = accepted("llama", "");
  cr_expect(c.kind == MK_MODEL_LLAMA && !c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.fused && !c.norm_after);
  cr_expect(c.qk_norm == MK_QK_PLAIN && c.rotary == 0 && c.rope_attention == 0 && c.attention_multiplier == 0);
  cr_expect_eq(mk_family_qkv_extras(&c), 0);
}

Test(families, differences) {
  mk_config c = accepted("qwen2", "\"use_sliding_window\":false,\"sliding_window\":1024,");
  cr_expect(c.kind == MK_MODEL_QWEN2 && c.qkv_bias && !c.o_bias && c.head_dim == 64);
  c = accepted("qwen3", "");
  cr_expect(c.qk_norm == MK_QK_NORM_HEAD && c.head_dim == 128 && !c.qkv_bias);
  c = accepted("qwen3", "\"attention_bias\":true,");
  cr_expect(c.qkv_bias && c.o_bias);
  c = accepted("olmo2", "");
  cr_expect(c.qk_norm == MK_QK_NORM_ALL && c.norm_after && c.rms_eps == 1e-5f);
  c = accepted("granite", "\"embedding_multiplier\":12,\"residual_multiplier\":0.22,\"logits_scaling\":8.0,");
  cr_expect(c.embedding_multiplier == 12 && c.residual_multiplier == 0.22 && c.logits_scaling == 8);
  cr_expect_eq(c.attention_multiplier, 1, "the class's value, not 1 / sqrt(head_dim)");
  c = accepted("phi3", "\"partial_rotary_factor\":0.75,");
  cr_expect(c.fused && c.rotary == 48);
  c = accepted("mistral", "\"sliding_window\":null,\"head_dim\":128,");
  cr_expect(c.kind == MK_MODEL_MISTRAL && c.head_dim == 128);
  refused("granite", "\"residual_multiplier\":0,", "residual_multiplier: is 0");
  refused("phi3", "\"head_dim\":96,", "head_dim: 96 is not supported; only 64, 128 and 256 are");
  refused("qwen2", "\"partial_rotary_factor\":0.5,",
          "partial_rotary_factor: 0.5 is not supported; only 1 is in a Qwen2");
}

Test(families, layers_without_rotation) {
  mk_config c = accepted("smollm3", "");
  cr_expect(c.tied && c.rope_theta == 2000000 && mk_config_rotates(&c, 2) && !mk_config_rotates(&c, 3));
  c = accepted("smollm3", "\"no_rope_layer_interval\":2,");
  cr_expect(mk_config_rotates(&c, 0) && !mk_config_rotates(&c, 1) && !mk_config_rotates(&c, 3));
  c = accepted("smollm3", "\"no_rope_layers\":[0,1,1,1,0],");
  cr_expect(!mk_config_rotates(&c, 0) && mk_config_rotates(&c, 3) && !mk_config_rotates(&c, 4));
  refused("smollm3", "\"no_rope_layers\":[0,1],", "no_rope_layers: is [0,1], must be a list");
  refused("smollm3", "\"no_rope_layers\":[0,1,2,1,0],", "no_rope_layers: is 2");
}

/* The windows of five layers, one after the other. */
static void expect_windows(const mk_config *c, const char *what, const uint32_t want[5]) {
  for (uint32_t layer = 0; layer < 5; layer++) {
    cr_expect_eq(mk_config_window(c, layer), want[layer], "%s, layer %u: %u", what, layer, mk_config_window(c, layer));
  }
}

#define LAYER_TYPES(a, b, c, d, e)                                                                        \
  "\"layer_types\":[\"" a "_attention\",\"" b "_attention\",\"" c "_attention\",\"" d "_attention\",\"" e \
  "_attention\"],"
#define MIXED LAYER_TYPES("full", "sliding", "sliding", "full", "sliding")

Test(families, sliding_windows) {
  static const struct {
    const char *type, *keys;
    uint32_t want[5];
  } cases[] = {
      {"mistral", "\"sliding_window\":4095,", {4095, 4095, 4095, 4095, 4095}},
      {"mistral", "\"sliding_window\":4096,", {0}}, /* of 4,096 positions: it holds every context */
      {"mistral", "\"sliding_window\":null,", {0}},
      {"mistral", "", {0}},                                        /* 4,096 */
      {"mistral", "\"sliding_window\":9," MIXED, {9, 9, 9, 9, 9}}, /* its class does not look at layer_types */
      {"ministral", "\"sliding_window\":9,", {9, 9, 9, 9, 9}},
      {"ministral", "\"sliding_window\":9," MIXED, {0, 9, 9, 0, 9}},
      {"ministral", "\"sliding_window\":9," LAYER_TYPES("full", "full", "full", "full", "full"), {0}},
      {"ministral", "\"sliding_window\":null," MIXED, {0}},
      {"qwen2", "\"use_sliding_window\":true,\"sliding_window\":64,\"max_window_layers\":3,", {0, 0, 0, 64, 64}},
      {"qwen2", "\"use_sliding_window\":true,\"sliding_window\":64,\"max_window_layers\":5,", {0}},
      {"qwen2", "\"use_sliding_window\":true,\"sliding_window\":64,", {0}}, /* 28 */
      {"qwen3", "\"use_sliding_window\":true,\"sliding_window\":64," MIXED, {0, 64, 64, 0, 64}},
      {"qwen3", "\"use_sliding_window\":false,\"sliding_window\":64," MIXED, {0}},
      {"qwen3", "\"sliding_window\":64,\"max_window_layers\":0,", {0}},
      {"smollm3", "\"use_sliding_window\":true,\"sliding_window\":64,", {0, 0, 0, 64, 0}}, /* where nothing rotates */
      {"smollm3", "\"use_sliding_window\":true,\"sliding_window\":64," MIXED, {0, 64, 64, 0, 64}},
      {"smollm3", "\"use_sliding_window\":true,", {0}},
      {"phi3", "\"sliding_window\":2047,", {2047, 2047, 2047, 2047, 2047}},
      {"phi3", "\"sliding_window\":null,", {0}},
      {"phi3", "", {0}},
      {"llama", "\"sliding_window\":9,", {0}}, /* whose class has none */
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char what[256];
    const mk_config c = accepted(cases[i].type, cases[i].keys);
    snprintf(what, sizeof what, "%s %.200s", cases[i].type, cases[i].keys);
    expect_windows(&c, what, cases[i].want);
  }
  refused("mistral", "\"sliding_window\":0,", "sliding_window: is 0, must be from 1");
  refused("ministral", "\"sliding_window\":9,\"layer_types\":[\"full_attention\"],",
          "must be a list with a kind for each of 5 layers");
  refused("qwen3",
          "\"use_sliding_window\":true,\"sliding_window\":9," LAYER_TYPES("full", "full", "chunked", "full", "full"),
          "layer_types: \"chunked_attention\" is not supported; only \"full_attention\" and \"sliding_attention\" are");
}

Test(families, a_window_that_holds_the_context_is_none) {
  static const uint32_t windowed[5] = {0, 300, 300, 0, 300}, none[5] = {0};
  mk_config c = accepted("ministral", "\"sliding_window\":300," MIXED);
  mk_config_set_context(&c, 301);
  expect_windows(&c, "context of 301", windowed);
  mk_config_set_context(&c, 300);
  expect_windows(&c, "context of 300", none);
}

Test(families, gemma3) {
  mk_config c = accepted("gemma3_text", "");
  cr_expect(c.head_dim == 256 && c.tied && c.rope_theta == 1e6 && c.rope_local_theta == 1e4 && c.rms_eps == 1e-6f);
  cr_expect(c.qk_norm == MK_QK_NORM_HEAD && c.norm_around && !c.norm_after && c.norm_plus_one && c.gelu);
  cr_expect(c.embedding_multiplier == 16 && c.attention_multiplier == 1.0 / 16 && c.window == 0 && !c.qkv_bias);
  static const bool first[5] = {true, true, true, true, true}, third[5] = {true, true, false, true, true};
  for (uint32_t layer = 0; layer < 5; layer++) { /* layers without a window rotate by rope_theta, all others not */
    c = accepted("gemma3_text", "\"sliding_window\":512,");
    cr_expect_eq(mk_config_is_local(&c, layer), first[layer]);
    cr_expect_eq(mk_config_window(&c, layer), 512);
    c = accepted("gemma3_text", "\"sliding_window\":512,\"sliding_window_pattern\":3,");
    cr_expect_eq(mk_config_is_local(&c, layer), third[layer]);
    cr_expect_eq(mk_config_window(&c, layer), third[layer] ? 512 : 0);
    mk_config_set_context(&c, 512); /* the rotation stays */
    cr_expect_eq(mk_config_is_local(&c, layer), third[layer]);
    cr_expect_eq(mk_config_window(&c, layer), 0);
    c = accepted("gemma3_text", "\"sliding_window\":null," MIXED);
    cr_expect_eq(mk_config_is_local(&c, layer), layer != 0 && layer != 3);
    cr_expect_eq(mk_config_window(&c, layer), 0);
  }
  c = accepted("gemma3_text", "\"query_pre_attn_scalar\":168,\"attention_bias\":true,\"head_dim\":128,");
  cr_expect(c.attention_multiplier == 1 / sqrt(168) && c.qkv_bias && c.o_bias && c.head_dim == 128);
  cr_expect_eq(mk_family_qkv_extras(&c), MK_VECTOR_BIASES | MK_VECTOR_GAINS);
  refused("gemma3_text", "\"hidden_activation\":\"gelu\",",
          "hidden_activation: \"gelu\" is not supported; only \"gelu_pytorch_tanh\" is");
  refused("gemma3_text", "\"attn_logit_softcapping\":50.0,", "attn_logit_softcapping: is 50.0: soft caps are not");
  refused("gemma3_text", "\"final_logit_softcapping\":30,", "final_logit_softcapping: is 30: soft caps are not");
  refused("gemma3_text", "\"use_bidirectional_attention\":true,", "attention to later tokens is not supported");
  accepted("gemma3_text", "\"use_bidirectional_attention\":false,\"final_logit_softcapping\":null,");
}

/* Embeddings are multiplied by sqrt(hidden) as bf16 has it. */
Test(families, gemma3_scales_its_embeddings) {
  static const struct {
    const char *hidden;
    double scale;
  } cases[] = {{"640", 25.25}, {"1152", 34}, {"2304", 48}, {"2560", 50.5}, {"3072", 55.5}, {"1", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[256];
    mk_config c;
    snprintf(text, sizeof text,
             "{\"model_type\":\"gemma3_text\",\"num_attention_heads\":4,\"num_hidden_layers\":1,\"hidden_size\":%s}",
             cases[i].hidden);
    cr_assert_eq(mk_config_parse(text, strlen(text), &c), MK_OK, "%s", mk_error_message());
    cr_expect_eq(c.embedding_multiplier, cases[i].scale, "%s: %g", cases[i].hidden, c.embedding_multiplier);
  }
}

Test(families, gemma3_rotates_in_two_ways) {
  static const char *const spellings[] = {
      "\"rope_theta\":5000,\"rope_local_base_freq\":100,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8},",
      "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8,\"rope_theta\":5000},"
      "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":100}},"};
  float all[128], local[128];
  for (size_t i = 0; i < 2; i++) {
    const mk_config c = accepted("gemma3_text", spellings[i]);
    cr_expect(c.rope_theta == 5000 && c.rope_local_theta == 100 && c.rope_type == MK_ROPE_LINEAR && c.rope_factor == 8);
    mk_llama_frequencies(&c, all);
    mk_llama_local_frequencies(&c, local);
    for (uint32_t pair = 0; pair < 128; pair++) {
      cr_expect_float_eq(all[pair], (float)pow(5000, -2.0 * pair / 256) / 8, 1e-7f);
      cr_expect_float_eq(local[pair], (float)pow(100, -2.0 * pair / 256), 1e-7f);
    }
  }
  refused("gemma3_text", "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8},",
          "\"yarn\" is not supported in a Gemma3; only \"default\" and \"linear\" are");
  refused("gemma3_text", "\"rope_parameters\":{\"rope_theta\":5},", "must have \"full_attention\" and");
  refused("gemma3_text", "\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"linear\",\"factor\":2}},",
          "rope_parameters.sliding_attention.rope_type: \"linear\" is not supported");
  refused("gemma3_text", "\"rope_local_base_freq\":5,\"rope_parameters\":{\"sliding_attention\":{\"rope_theta\":6}},",
          "rope_local_base_freq: is 5, but rope_parameters.sliding_attention.rope_theta is 6; keep one");
}

/* Each layer has the frequencies that it rotates by, and the checkpoint all four norms of a layer. */
Test(families, gemma3_tensors) {
  static const char *const names[] = {"input_layernorm.weight",           "post_attention_layernorm.weight",
                                      "pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight",
                                      "self_attn.q_norm.weight",          "self_attn.k_norm.weight"};
  const mk_config c = accepted("gemma3_text", "\"sliding_window\":64," MIXED);
  mk_wanted_tensor want;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    char name[96];
    snprintf(name, sizeof name, "model.layers.4.%s", names[i]);
    cr_expect_eq(mk_family_find(&c, name, &want), MK_TENSOR_WANTED, "%s", name);
    cr_expect_eq(want.shape[0], 256);
  }
  const mk_config llama = accepted("llama", "");
  cr_expect_eq(mk_family_find(&llama, "model.layers.4.pre_feedforward_layernorm.weight", &want), MK_TENSOR_UNKNOWN);
  mk_graph *graph;
  cr_assert_eq(mk_llama_graph(&c, &graph), MK_OK);
  uint32_t local = 0, vectors = 0;
  for (size_t w = 0; w < graph->weight_count; w++) {
    vectors += graph->weights[w].pack == MK_PACK_QKV_VECTOR;
    local += (graph->weights[w].extras & MK_VECTOR_LOCAL) != 0;
  }
  cr_expect(vectors == 5 && local == 3, "%u of %u", local, vectors);
  mk_graph_free(graph);
}

/* ---- Models of text and images, of which the text model is read ---- */

static mk_status parse_whole(const char *type, const char *text_keys, const char *keys, mk_config *out) {
  char text[2048];
  snprintf(text, sizeof text, "{\"model_type\":\"%s\",\"text_config\":{%s},\"vision_config\":{\"hidden_size\":7}%s}",
           type, text_keys, keys);
  return mk_config_parse(text, strlen(text), out);
}

static mk_config accepted_whole(const char *type, const char *text_keys, const char *keys) {
  mk_config config;
  cr_assert_eq(parse_whole(type, text_keys, keys, &config), MK_OK, "%s {%s} %s: %s", type, text_keys, keys,
               mk_error_message());
  return config;
}

static void refused_whole(const char *type, const char *text_keys, const char *keys, const char *message) {
  mk_config config;
  cr_expect_eq(parse_whole(type, text_keys, keys, &config), MK_ERR_FILE, "%s {%s} %s", type, text_keys, keys);
  cr_expect_not_null(strstr(mk_error_message(), message), "\"%s\" lacks \"%s\"", mk_error_message(), message);
}

static void refused_text(const char *text, const char *message) {
  mk_config config;
  cr_expect_eq(mk_config_parse(text, strlen(text), &config), MK_ERR_FILE, "%s", text);
  cr_expect_not_null(strstr(mk_error_message(), message), "\"%s\" lacks \"%s\"", mk_error_message(), message);
}

/* As the files of Gemma 3 4B have it, and as transformers writes it today. */
Test(families, gemma3_with_images) {
  static const char *const spellings[] = {
      "\"hidden_size\":2560,\"intermediate_size\":10240,\"model_type\":\"gemma3_text\",\"num_hidden_layers\":34,"
      "\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024",
      "\"hidden_size\":2560,\"intermediate_size\":10240,\"num_hidden_layers\":34,\"sliding_window\":1024,"
      "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0,\"rope_theta\":1000000.0},"
      "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0}}"};
  for (size_t i = 0; i < 2; i++) {
    const mk_config c = accepted_whole("gemma3", spellings[i], ",\"eos_token_id\":[1,106]");
    cr_expect(c.kind == MK_MODEL_GEMMA3 && c.naming == MK_NAMES_WITHIN && c.tied && c.gelu && c.norm_around);
    cr_expect(c.hidden == 2560 && c.intermediate == 10240 && c.layers == 34 && c.vocab == 262208);
    cr_expect(c.heads == 8 && c.kv_heads == 4 && c.head_dim == 256 && c.max_position == 131072);
    cr_expect(c.rope_type == MK_ROPE_LINEAR && c.rope_factor == 8 && c.rope_theta == 1e6);
    cr_expect(c.rope_local_theta == 10000 && c.window == 1024 && mk_config_window(&c, 5) == 0);
    cr_expect(c.eos_count == 2 && c.eos[0] == 1 && c.eos[1] == 106);
  }
  const mk_config c = accepted_whole("gemma3", "", "");
  cr_expect(c.hidden == 2304 && c.intermediate == 9216 && c.layers == 26 && c.heads == 8, "the class's values");
  cr_expect(c.rope_type == MK_ROPE_DEFAULT && c.window == 4096 && c.rms_eps == 1e-6f);
}

/* What stands beside text_config counts. */
Test(families, a_whole_model_says_it_beside_its_text) {
  mk_config c = accepted_whole("gemma3", "\"tie_word_embeddings\":false,\"eos_token_id\":5,\"bos_token_id\":2", "");
  cr_expect(c.tied && c.eos_count == 1 && c.eos[0] == 5 && c.has_bos && c.bos == 2);
  c = accepted_whole("gemma3", "\"eos_token_id\":5", ",\"tie_word_embeddings\":false,\"eos_token_id\":[7,8]");
  cr_expect(!c.tied && c.eos_count == 2 && c.eos[0] == 7);
  c = accepted_whole("mistral3", "\"head_dim\":128,\"sliding_window\":null",
                     ",\"architectures\":[\"Mistral3ForConditionalGeneration\"]");
  cr_expect(c.kind == MK_MODEL_MISTRAL && c.naming == MK_NAMES_WITHIN && c.head_dim == 128 && c.window == 0);
  cr_expect(c.layers == 32 && c.heads == 32 && c.kv_heads == 8);
  const char *by_class = "{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"text_config\":{}}";
  cr_expect_eq(mk_config_parse(by_class, strlen(by_class), &c), MK_OK, "%s", mk_error_message());
  cr_expect_eq(accepted("gemma3_text", "\"text_config\":{\"hidden_size\":1},").naming, MK_NAMES_PLAIN);
}

Test(families, whole_models_that_are_refused) {
  refused_text("{\"model_type\":\"gemma3\"}", "text_config: is missing");
  refused_text("{\"model_type\":\"gemma3\",\"text_config\":null}", "text_config: is missing");
  refused_text("{\"model_type\":\"gemma3\",\"text_config\":[]}", "text_config: is [], must be an object");
  refused_text("{\"model_type\":\"mistral3\",\"text_config\":\"mistral\"}", "text_config: is \"mistral\"");
  refused_text("{\"model_type\":\"gemma3_text\",\"hidden_size\":64}", "num_hidden_layers: is missing");
  refused_whole("gemma3", "\"hidden_size\":\"2560\"", "", "text_config: hidden_size: is \"2560\"");
  refused_whole("gemma3", "\"num_hidden_layers\":0", "", "text_config: num_hidden_layers: is 0");
  refused_whole("gemma3", "\"num_attention_heads\":6", "", "text_config: num_key_value_heads: is 4");
  refused_whole("gemma3", "\"model_type\":\"llama\",\"num_attention_heads\":8", "",
                "text_config: model_type: is \"llama\"; the text model of a gemma3 is a gemma3_text");
  refused_whole("gemma3", "\"model_type\":\"gemma3\"", "", "text_config: model_type: \"gemma3\" is not supported");
  refused_whole("gemma3", "\"final_logit_softcapping\":30", "", "text_config: final_logit_softcapping: is 30");
  refused_whole("gemma3", "\"eos_token_id\":\"x\"", "", "text_config: eos_token_id: is \"x\"");
  refused_whole("gemma3", "", ",\"eos_token_id\":\"x\"", "eos_token_id: is \"x\"");
  refused_whole("gemma3", "", ",\"architectures\":[\"Gemma3ForCausalLM\"]",
                "only [\"Gemma3ForConditionalGeneration\"] is");
  refused_whole("gemma3", "", ",\"tie_word_embeddings\":3", "tie_word_embeddings: is 3");
  refused_whole("mistral3", "\"model_type\":\"ministral3\"", "", "it needs queries that are scaled by their position");
  refused_whole("gemma3n", "", "", "it needs layers of several kinds");
  refused_whole("llava", "", "", "it needs images");
}

/* Plain names, and what they are in either naming; NULL: the text model has no such tensor. */
Test(families, names_of_the_text_of_a_whole_model) {
  static const struct {
    const char *within, *inner;
  } names[] = {
      {"language_model.model.embed_tokens.weight", "model.language_model.embed_tokens.weight"},
      {"language_model.model.layers.33.self_attn.q_norm.weight",
       "model.language_model.layers.33.self_attn.q_norm.weight"},
      {"language_model.model.norm.weight", "model.language_model.norm.weight"},
      {"language_model.lm_head.weight", "lm_head.weight"},
  };
  static const char *const strange[] = {"model.norm.weight",
                                        "norm.weight",
                                        "language_model.norm.weight",
                                        "model.language_model.lm_head.weight",
                                        "language_model.",
                                        "model.language_model.",
                                        "language_model.language_model.model.norm.weight",
                                        ""};
  static const char *const beside[] = {"vision_tower.vision_model.encoder.layers.0.layer_norm1.weight",
                                       "multi_modal_projector.mm_input_projection_weight"};
  mk_config c = accepted_whole("gemma3", "\"num_hidden_layers\":34", "");
  mk_wanted_tensor want;
  char name[MK_TENSOR_NAME], longer[512];
  for (int inner = 0; inner < 2; inner++) {
    c.naming = inner ? MK_NAMES_INNER : MK_NAMES_WITHIN;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
      const char *own = inner ? names[i].inner : names[i].within, *other = inner ? names[i].within : names[i].inner;
      cr_expect_eq(mk_family_find(&c, own, &want), MK_TENSOR_WANTED, "%s", own);
      mk_family_tensor_name(&c, &want, name);
      cr_expect_str_eq(name, own);
      cr_expect_eq(mk_family_find(&c, other, &want), MK_TENSOR_UNKNOWN, "%s", other);
    }
    for (size_t i = 0; i < sizeof strange / sizeof strange[0]; i++) {
      cr_expect_eq(mk_family_find(&c, strange[i], &want), MK_TENSOR_UNKNOWN, "%s", strange[i]);
    }
    for (size_t i = 0; i < 2; i++) {
      snprintf(name, sizeof name, "%s%s", inner ? "model." : "", beside[i]);
      cr_expect_eq(mk_family_find(&c, name, &want), MK_TENSOR_BESIDE, "%s", name);
    }
    snprintf(longer, sizeof longer, "%s%0400d", inner ? "model.language_model." : "language_model.", 7);
    cr_expect_eq(mk_family_find(&c, longer, &want), MK_TENSOR_UNKNOWN);
    snprintf(longer, sizeof longer, "%s.layers.34.x", inner ? "model.language_model" : "language_model.model");
    cr_expect_eq(mk_family_find(&c, longer, &want), MK_TENSOR_ASIDE);
  }
  c.naming = MK_NAMES_PLAIN;
  cr_expect_eq(mk_family_find(&c, beside[0], &want), MK_TENSOR_UNKNOWN);
}

Test(families, other_architectures_say_what_they_lack) {
  static const struct {
    const char *type, *keys, *lacks;
  } cases[] = {{"mixtral", "", "a mixture of experts"},
               {"gemma", "", "its table of tensors"},
               {"gemma2", "", "soft caps on scores and logits"},
               {"gemma3n_text", "", "layers of several kinds, embeddings of each layer, images and sound"},
               {"gpt2", "", "layer norms and learned positions"},
               {"deepseek_v3", "", "latent attention and a mixture of experts"},
               {"qwen3_moe", "", "a mixture of experts"},
               {"mamba2", "", "state-space layers"},
               {"falcon_mamba", "", "state-space layers"},
               {"falcon", "", "layer norms, and attention beside the MLP"},
               {"glm4_moe", "", "a mixture of experts"},
               {"ernie4_5_moe", "", "a mixture of experts"},
               {"ernie4_5", "\"is_encoder_decoder\":false,", "rotation of neighbouring dims"},
               {"granitemoehybrid", "\"num_local_experts\":0,", "state-space layers, or a mixture of experts"},
               {"nobody_knows", "\"is_encoder_decoder\":true,", "an encoder"},
               {"nobody_knows", "\"is_encoder_decoder\":false,\"num_experts\":0,",
                "its table of tensors and its graph (docs/FAMILY.md)"},
               {"nobody_knows", "\"num_experts\":8,", "a mixture of experts"},
               {"nobody_knows", "\"vision_config\":{},", "images"},
               {"nobody_knows", "", "its table of tensors and its graph (docs/FAMILY.md)"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char message[128];
    snprintf(message, sizeof message, "model_type: \"%s\" is not supported: it needs %s;", cases[i].type,
             cases[i].lacks);
    char *cut = strrchr(message, ';');
    *cut = '\0';
    refused(cases[i].type, cases[i].keys, message);
  }
  refused("nobody_knows", "",
          "supported are llama, qwen2, qwen3, mistral, ministral, granite, smollm3, phi3, olmo2, gemma3_text, gemma3, "
          "mistral3");
  refused("qwen3", "\"architectures\":[\"LlamaForCausalLM\"],", "only [\"Qwen3ForCausalLM\"] is");
}

#define YARN "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":2048"

Test(families, yarn) {
  mk_config c = accepted("llama", YARN "},");
  cr_expect(c.rope_type == MK_ROPE_YARN && c.max_position == 8192 && c.rope_beta_fast == 32 && c.rope_beta_slow == 1);
  cr_expect_float_eq(c.rope_attention, 0.1 * log(4) + 1, 1e-12);
  c = accepted("llama", YARN ",\"mscale\":1.0,\"mscale_all_dim\":0.5,\"truncate\":false},");
  cr_expect_float_eq(c.rope_attention, (0.1 * log(4) + 1) / (0.05 * log(4) + 1), 1e-12);
  cr_expect(c.rope_no_truncate);
  cr_expect_eq(accepted("llama", YARN ",\"attention_factor\":1.5},").rope_attention, 1.5);
  refused("llama", YARN ",\"beta_fast\":-1},", "rope_scaling.beta_fast: is -1");
  refused("llama", "\"rope_theta\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4},", "needs one above 1");
}

/* 16 pairs: a head of 64, half of it rotated. */
#define LIST(x) "[" x "," x "," x "," x "," x "," x "," x "," x "," x "," x "," x "," x "," x "," x "," x "," x "]"
#define LONGROPE(type)                                                                                         \
  "\"partial_rotary_factor\":0.5,\"original_max_position_embeddings\":1024,\"rope_scaling\":{\"type\":\"" type \
  "\",\"short_factor\":" LIST("1.0") ",\"long_factor\":" LIST("4") "},"

Test(families, longrope) {
  static const char *const names[] = {LONGROPE("longrope"), LONGROPE("su"), LONGROPE("yarn")};
  for (size_t i = 0; i < 3; i++) {
    float near[64], far[64];
    mk_config c = accepted("phi3", names[i]);
    cr_expect(c.rope_type == MK_ROPE_LONGROPE && c.rope_original_max_position == 1024 && c.rotary == 32);
    cr_expect_float_eq(c.rope_attention, sqrt(1 + log(4) / log(1024)), 1e-12);
    cr_expect_eq(mk_family_qkv_extras(&c), MK_VECTOR_GAINS);
    mk_config_set_context(&c, 1024);
    mk_llama_frequencies(&c, near);
    mk_config_set_context(&c, 1025);
    mk_llama_frequencies(&c, far);
    for (uint32_t p = 0; p < 32; p++) {
      cr_expect(p < 16 ? near[p] > 0 && fabsf(near[p] / far[p] - 4) < 1e-5f : near[p] == 0 && far[p] == 0, "pair %u",
                p);
    }
  }
  refused("phi3", "\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1],\"long_factor\":[1]},",
          "short_factor: is [1], must be a list of 32 numbers");
  refused("phi3", "\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1]},", "long_factor: is missing");
}

/* Every row of a head is there once, rotated dims pair up with rotated ones, and the others with each other. */
Test(families, order_of_a_partial_rotation) {
  const mk_weight weight = {.pack = MK_PACK_ROPE,
                            .rows = 128 * 3,
                            .rotary = 96,
                            .source_count = 3,
                            .sources = {{.rows = 128}, {.rows = 128}, {.rows = 128}}};
  bool seen[2][128] = {{false}};
  for (uint32_t row = 0; row < 256; row++) {
    uint32_t source, dim, other_source, other;
    cr_assert(mk_weight_row(&weight, 128, row, &source, &dim));
    cr_assert(!seen[source][dim]);
    seen[source][dim] = true;
    if (row % 16 < 8) {
      cr_assert(mk_weight_row(&weight, 128, row + 8, &other_source, &other));
      cr_expect_eq(other - dim, dim < 96 ? 48 : 16, "row %u: %u and %u", row, dim, other);
    }
  }
}
