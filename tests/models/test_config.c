/* config.json: the shapes of the Llama family are read, everything else is refused by name. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "models/config.h"

/* The shape of Llama 3.2 1B. */
static const char base[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"attention_bias\":false,\"mlp_bias\":false,"
    "\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":8192,\"num_hidden_layers\":16,"
    "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"head_dim\":64,\"vocab_size\":128256,"
    "\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-05,\"pretraining_tp\":1,\"rope_theta\":500000.0,"
    "\"rope_scaling\":{\"factor\":32.0,\"high_freq_factor\":4.0,\"low_freq_factor\":1.0,"
    "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"},\"tie_word_embeddings\":true,"
    "\"bos_token_id\":128000,\"eos_token_id\":[128001,128008,128009],\"torch_dtype\":\"bfloat16\"}";

/* Parses the base with the first `from` replaced by `to`, from memory without a byte to spare. */
static mk_status parse_with(const char *from, const char *to, mk_config *out) {
  char text[4096];
  const char *at = strstr(base, from);
  cr_assert_not_null(at, "%s", from);
  int length = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - base), base, to, at + strlen(from));
  char *exact = malloc((size_t)length);
  memcpy(exact, text, (size_t)length);
  mk_status status = mk_config_parse(exact, (size_t)length, out);
  free(exact);
  return status;
}

static mk_config accepted(const char *from, const char *to) {
  mk_config config = {0};
  cr_assert_eq(parse_with(from, to, &config), MK_OK, "%s -> %s: %s", from, to, mk_error_message());
  return config;
}

static void refused(const char *from, const char *to, const char *message) {
  mk_config config, before;
  memset(&config, 0x5a, sizeof config);
  before = config;
  cr_expect_eq(parse_with(from, to, &config), MK_ERR_FILE, "%s -> %s", from, to);
  cr_expect_not_null(strstr(mk_error_message(), message), "\"%s\" lacks \"%s\"", mk_error_message(), message);
  cr_expect_eq(memcmp(&config, &before, sizeof config), 0, "the output changed");
}

Test(config, llama_3_2_1b) {
  mk_config c = accepted("{", "{");
  cr_expect(c.hidden == 2048 && c.intermediate == 8192 && c.layers == 16 && c.heads == 32 && c.kv_heads == 8);
  cr_expect(c.head_dim == 64 && c.vocab == 128256 && c.max_position == 131072 && c.tied);
  cr_expect_eq(c.rms_eps, 1e-5f);
  cr_expect_eq(c.rope_theta, 500000.0);
  cr_expect(c.rope_type == MK_ROPE_LLAMA3 && c.rope_factor == 32 && c.rope_low_freq_factor == 1 &&
            c.rope_high_freq_factor == 4);
  cr_expect_eq(c.rope_original_max_position, 8192);
  cr_expect(c.has_bos && c.bos == 128000 && c.eos_count == 3 && c.eos[0] == 128001 && c.eos[2] == 128009);
}

Test(config, llama_2_7b_leaves_out_what_was_not_there_yet) {
  static const char text[] =
      "{\"architectures\":[\"LlamaForCausalLM\"],\"bos_token_id\":1,\"eos_token_id\":2,\"hidden_act\":\"silu\","
      "\"hidden_size\":4096,\"intermediate_size\":11008,\"max_position_embeddings\":4096,\"model_type\":\"llama\","
      "\"num_attention_heads\":32,\"num_hidden_layers\":32,\"rms_norm_eps\":1e-05,\"rope_scaling\":null,"
      "\"tie_word_embeddings\":false,\"vocab_size\":32000}";
  mk_config c;
  cr_assert_eq(mk_config_parse(text, sizeof text - 1, &c), MK_OK, "%s", mk_error_message());
  cr_expect(c.kv_heads == 32 && c.head_dim == 128 && c.rope_theta == 10000 && c.rope_type == MK_ROPE_DEFAULT &&
            !c.tied);
  cr_expect(c.has_bos && c.bos == 1 && c.eos_count == 1 && c.eos[0] == 2);
}

#define SCALING                                                                                                 \
  "\"rope_theta\":500000.0,\"rope_scaling\":{\"factor\":32.0,\"high_freq_factor\":4.0,\"low_freq_factor\":1.0," \
  "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"}"

Test(config, transformers_5_writes_rope_parameters) {
  mk_config c = accepted(SCALING,
                         "\"rope_parameters\":{\"rope_theta\":250000,\"rope_type\":\"llama3\",\"factor\":8,"
                         "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":512}");
  cr_expect(c.rope_theta == 250000 && c.rope_type == MK_ROPE_LLAMA3 && c.rope_factor == 8 &&
            c.rope_original_max_position == 512);
  c = accepted(SCALING, "\"rope_parameters\":{\"rope_theta\":10000.0,\"rope_type\":\"default\"}");
  cr_expect(c.rope_theta == 10000 && c.rope_type == MK_ROPE_DEFAULT);
}

Test(config, older_spellings_of_the_rope_type) {
  cr_expect_eq(accepted("\"rope_type\"", "\"type\"").rope_type, MK_ROPE_LLAMA3);
  cr_expect_eq(accepted(SCALING, "\"rope_scaling\":{\"type\":\"default\"}").rope_type, MK_ROPE_DEFAULT);
  cr_expect_eq(accepted(SCALING, "\"rope_scaling\":{}").rope_type, MK_ROPE_DEFAULT);
}

Test(config, both_spellings_that_agree) {
  mk_config c = accepted("\"rope_theta\":500000.0,",
                         "\"rope_theta\":500000.0,\"rope_parameters\":{\"rope_theta\":500000,"
                         "\"rope_type\":\"llama3\",\"factor\":32,\"low_freq_factor\":1,\"high_freq_factor\":4,"
                         "\"original_max_position_embeddings\":8192},");
  cr_expect(c.rope_theta == 500000 && c.rope_type == MK_ROPE_LLAMA3);
}

Test(config, groups_from_one_to_all) {
  static const unsigned kv_heads[] = {1, 2, 4, 8, 16, 32};
  for (size_t i = 0; i < 6; i++) {
    char to[64];
    snprintf(to, sizeof to, "\"num_key_value_heads\":%u", kv_heads[i]);
    cr_expect_eq(accepted("\"num_key_value_heads\":8", to).kv_heads, kv_heads[i]);
  }
  cr_expect_eq(accepted("\"num_key_value_heads\":8", "\"num_key_value_heads\":null").kv_heads, 32);
}

Test(config, head_dim_is_free_of_hidden_size) {
  cr_expect_eq(accepted("\"head_dim\":64", "\"head_dim\":128").head_dim, 128);
  cr_expect_eq(accepted("\"head_dim\":64", "\"head_dim\":null").head_dim, 64);
}

Test(config, token_ids_as_number_list_or_null) {
  cr_expect_eq(accepted("[128001,128008,128009]", "7").eos[0], 7);
  cr_expect_eq(accepted("[128001,128008,128009]", "null").eos_count, 0);
  cr_expect_eq(accepted("[128001,128008,128009]", "[]").eos_count, 0);
  cr_expect_eq(accepted("[128001,128008,128009]", "[0,1,2,3,4,5,6,7]").eos_count, MK_MAX_EOS);
  cr_expect_not(accepted("\"bos_token_id\":128000", "\"bos_token_id\":null").has_bos);
}

Test(config, architecture_or_model_type_is_enough) {
  accepted("\"architectures\":[\"LlamaForCausalLM\"],", "");
  accepted("\"model_type\":\"llama\",", "");
}

Test(config, widest_shapes_that_a_program_can_address) {
  cr_expect_eq(accepted("\"intermediate_size\":8192", "\"intermediate_size\":1048560").intermediate, 1048560);
  refused("\"intermediate_size\":8192", "\"intermediate_size\":1048561", "intermediate_size: is 1048561");
  refused("\"hidden_size\":2048", "\"hidden_size\":1048576", "hidden_size: is 1048576");
  refused("\"vocab_size\":128256", "\"vocab_size\":1048561", "vocab_size: is 1048561");
  cr_expect_eq(accepted("\"num_hidden_layers\":16", "\"num_hidden_layers\":1024").layers, 1024);
  refused("\"num_hidden_layers\":16", "\"num_hidden_layers\":1025",
          "num_hidden_layers: is 1025, must be from 1 to 1024");
  refused("\"num_attention_heads\":32", "\"num_attention_heads\":4100", "num_attention_heads: is 4100");
}

Test(config, other_architecture) {
  refused("LlamaForCausalLM", "LlamaForSequenceClassification", "architectures: [\"LlamaForSequenceClassification\"]");
  refused("\"model_type\":\"llama\"", "\"model_type\":\"mixtral\"", "model_type: \"mixtral\" is not supported");
  refused("\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\"", "\"x\":1", "architectures: is missing");
  refused("[\"LlamaForCausalLM\"]", "\"LlamaForCausalLM\"", "architectures");
}

/* Nothing in the weights bears these two out: the same tensors fit other numbers of layers and heads. */
Test(config, every_missing_key) {
  static const char *const keys[] = {"num_hidden_layers", "num_attention_heads"};
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
    char from[64], to[64], message[80];
    snprintf(from, sizeof from, "\"%s\"", keys[i]);
    snprintf(to, sizeof to, "\"no_%s\"", keys[i]);
    snprintf(message, sizeof message, "%s: is missing", keys[i]);
    refused(from, to, message);
  }
}

/* The defaults of LlamaConfig. */
Test(config, missing_keys_take_the_values_of_llama_config) {
  static const char text[] =
      "{\"model_type\":\"llama\",\"num_hidden_layers\":32,\"num_attention_heads\":32,\"vocab_size\":null,"
      "\"rms_norm_eps\":null}";
  mk_config c;
  cr_assert_eq(mk_config_parse(text, sizeof text - 1, &c), MK_OK, "%s", mk_error_message());
  cr_expect(c.hidden == 4096 && c.intermediate == 11008 && c.vocab == 32000 && c.max_position == 2048);
  cr_expect(c.kv_heads == 32 && c.head_dim == 128 && c.rms_eps == 1e-6f && c.rope_theta == 10000 && !c.tied);
  cr_expect(c.rope_type == MK_ROPE_DEFAULT && !c.has_bos && c.eos_count == 0 && c.ignored_count == 0);
}

Test(config, missing_rms_norm_eps) { cr_expect_eq(accepted("\"rms_norm_eps\":1e-05,", "").rms_eps, 1e-6f); }

Test(config, missing_max_position_embeddings) {
  cr_expect_eq(accepted("\"max_position_embeddings\":131072,", "").max_position, 2048);
}

Test(config, missing_head_dim_that_cannot_be_derived) {
  refused(
      "\"hidden_size\":2048,\"intermediate_size\":8192,\"num_hidden_layers\":16,\"num_attention_heads\":32,"
      "\"num_key_value_heads\":8,\"head_dim\":64",
      "\"hidden_size\":2050,\"intermediate_size\":8192,\"num_hidden_layers\":16,\"num_attention_heads\":32,"
      "\"num_key_value_heads\":8",
      "head_dim: is missing and hidden_size 2050");
}

Test(config, zero_heads) {
  refused("\"num_attention_heads\":32", "\"num_attention_heads\":0",
          "num_attention_heads: is 0, must be from 1 to 4096");
  refused("\"num_key_value_heads\":8", "\"num_key_value_heads\":0", "num_key_value_heads: is 0");
}
Test(config, heads_not_divisible_by_kv_heads) {
  refused("\"num_key_value_heads\":8", "\"num_key_value_heads\":5",
          "num_key_value_heads: is 5, must divide num_attention_heads 32");
  refused("\"num_key_value_heads\":8", "\"num_key_value_heads\":64", "num_key_value_heads: is 64");
}
Test(config, a_thousand_million_layers) {
  refused("\"num_hidden_layers\":16", "\"num_hidden_layers\":1000000000", "num_hidden_layers: is 1000000000");
}
Test(config, unsupported_head_dim) {
  refused("\"head_dim\":64", "\"head_dim\":80", "head_dim: 80 is not supported; only 64, 128 and 256 are");
  refused("\"head_dim\":64", "\"head_dim\":0", "head_dim: is 0");
}
Test(config, negative_number) { refused("\"hidden_size\":2048", "\"hidden_size\":-2048", "hidden_size: is -2048"); }
Test(config, fractional_number) { refused("\"hidden_size\":2048", "\"hidden_size\":2048.5", "hidden_size: is 2048.5"); }
Test(config, number_as_text) {
  refused("\"hidden_size\":2048", "\"hidden_size\":\"2048\"", "hidden_size: is \"2048\"");
}
Test(config, number_that_wraps_32_bits) {
  refused("\"hidden_size\":2048", "\"hidden_size\":4294969344", "hidden_size: is 4294969344");
}
Test(config, number_beyond_64_bits) {
  refused("\"hidden_size\":2048", "\"hidden_size\":18446744073709553664", "18446744073709553664");
  refused("1e-05", "1e999", "1e999");
}
Test(config, duplicate_key) {
  refused("\"vocab_size\"", "\"hidden_size\"", "duplicate object key near '\"hidden_size\"'");
}
Test(config, not_json) {
  refused("{", "[", "not valid JSON");
  refused("\"torch_dtype\":\"bfloat16\"}", "", "not valid JSON");
  refused("bfloat16\"}", "bfloat16\"}}", "not valid JSON");
  refused("bfloat16", "\xff", "not valid JSON");
  mk_config c;
  cr_expect_eq(mk_config_parse("[]", 2, &c), MK_ERR_FILE);
  cr_expect_eq(mk_config_parse("", 0, &c), MK_ERR_FILE);
}

Test(config, unknown_rope_type) {
  refused("\"llama3\"", "\"su\"", "rope_scaling.rope_type: \"su\" is not supported");
  refused("\"llama3\"", "4", "rope_scaling.rope_type: 4 is not supported");
  refused(SCALING, "\"rope_parameters\":{\"rope_type\":\"longrope\"}", "rope_parameters.short_factor: is missing");
  refused("\"rope_type\":\"llama3\"", "\"rope_type\":\"llama3\",\"type\":\"default\"", "rope_scaling.type differs");
}
Test(config, rope_values) {
  refused("\"factor\":32.0,", "", "rope_scaling.factor: is missing");
  refused("\"low_freq_factor\":1.0,", "", "rope_scaling.low_freq_factor: is missing");
  refused("\"high_freq_factor\":4.0,", "", "rope_scaling.high_freq_factor: is missing");
  refused("\"original_max_position_embeddings\":8192", "\"original_max_position_embeddings\":0", "embeddings: is 0");
  refused("\"factor\":32.0", "\"factor\":0.5", "rope_scaling.factor: is 0.5");
  refused("\"factor\":32.0", "\"factor\":-1", "rope_scaling.factor: is -1");
  refused("\"high_freq_factor\":4.0", "\"high_freq_factor\":1.0", "rope_scaling.high_freq_factor: is 1");
  refused("\"rope_theta\":500000.0", "\"rope_theta\":0", "rope_theta: is 0");
  refused("\"rope_theta\":500000.0", "\"rope_theta\":\"big\"", "rope_theta: is \"big\"");
  refused("\"rope_theta\":500000.0,", "\"rope_theta\":5,\"rope_parameters\":{\"rope_theta\":6},",
          "rope_scaling: differs");
  refused("\"rope_theta\":500000.0,", "\"rope_theta\":5,\"partial_rotary_factor\":0.5,", "partial_rotary_factor: 0.5");
  refused(SCALING, "\"rope_theta\":5,\"rope_parameters\":{\"rope_theta\":6}",
          "rope_theta: is given twice, as 5 and as 6");
  refused(SCALING, "\"rope_scaling\":[1]", "rope_scaling: is [1]");
}

Test(config, biases) {
  mk_config c = accepted("\"attention_bias\":false", "\"attention_bias\":true");
  cr_expect(c.qkv_bias && c.o_bias && !c.mlp_bias);
  c = accepted("\"mlp_bias\":false", "\"mlp_bias\":true");
  cr_expect(!c.qkv_bias && !c.o_bias && c.mlp_bias);
  refused("\"mlp_bias\":false", "\"mlp_bias\":0", "mlp_bias: is 0, must be true or false");
}
Test(config, other_activation) {
  refused("\"silu\"", "\"gelu\"", "hidden_act: \"gelu\" is not supported");
  refused("\"silu\"", "4", "hidden_act: 4 is not supported");
}
Test(config, swish_is_silu) { accepted("\"silu\"", "\"swish\""); }
Test(config, quantized) {
  refused("{", "{\"quantization_config\":{\"quant_method\":\"bitsandbytes\"},",
          "quantization_config.quant_method: \"bitsandbytes\" is not supported");
}
Test(config, sliced_projections_are_computed_whole) {
  accepted("\"pretraining_tp\":1", "\"pretraining_tp\":2");
  accepted("\"pretraining_tp\":1", "\"pretraining_tp\":null");
  refused("\"pretraining_tp\":1", "\"pretraining_tp\":\"2\"", "pretraining_tp: is \"2\"");
}
/* transformers 5 converts to this dtype; here a tensor is what its file says. */
Test(config, dtype_is_not_looked_at) {
  accepted("\"torch_dtype\":\"bfloat16\"", "\"torch_dtype\":\"float16\"");
  accepted("\"torch_dtype\":\"bfloat16\"", "\"dtype\":\"float64\"");
}
Test(config, null_is_absent) {
  cr_expect_eq(accepted("\"tie_word_embeddings\":true", "\"tie_word_embeddings\":null").tied, false);
  cr_expect_eq(accepted(SCALING, "\"rope_theta\":null,\"rope_scaling\":null,\"rope_parameters\":null").rope_theta,
               10000);
  accepted("\"hidden_act\":\"silu\"", "\"hidden_act\":null,\"quantization_config\":null");
}
Test(config, norm_epsilon) {
  refused("1e-05", "0", "rms_norm_eps: is 0");
  refused("1e-05", "-1e-05", "rms_norm_eps: is -");
}
Test(config, token_ids) {
  refused("128008", "\"x\"", "eos_token_id: is \"x\"");
  refused("128008", "true", "eos_token_id: is true");
  refused("\"bos_token_id\":128000", "\"bos_token_id\":1.5", "bos_token_id: is 1.5");
  refused("[128001,", "[1,2,3,4,5,6,7,", "eos_token_id: lists 9 ids");
}

static void expect_ignored(const mk_config *c, uint32_t index, const char *key, int64_t id) {
  cr_expect_str_eq(c->ignored[index].key, key);
  cr_expect_eq(c->ignored[index].id, id);
}

Test(config, an_id_that_no_token_has_is_ignored) {
  mk_config c = accepted("[128001,128008,128009]", "-1");
  cr_expect(c.eos_count == 0 && c.ignored_count == 1);
  expect_ignored(&c, 0, "eos_token_id", -1);
  c = accepted("128008", "128256");
  cr_expect(c.eos_count == 2 && c.eos[0] == 128001 && c.eos[1] == 128009 && c.ignored_count == 1);
  expect_ignored(&c, 0, "eos_token_id", 128256);
  c = accepted("\"bos_token_id\":128000", "\"bos_token_id\":128256");
  cr_expect(!c.has_bos && c.eos_count == 3);
  expect_ignored(&c, 0, "bos_token_id", 128256);
  c = accepted("{", "{\"pad_token_id\":128256,"); /* as where "<pad>" was added to the tokenizer alone */
  cr_expect(c.has_bos && c.ignored_count == 1);
  expect_ignored(&c, 0, "pad_token_id", 128256);
  cr_expect_eq(accepted("{", "{\"pad_token_id\":128004,").ignored_count, 0);
  cr_expect_eq(accepted("{", "{\"pad_token_id\":\"x\",").ignored_count, 0, "nobody reads it");
  cr_expect_eq(accepted("[128001,", "[-1,-1,-1,-1,-1,-1,-1,-1,-1,128001,").eos_count, 3);
  cr_expect_eq(accepted("[128001,", "[-1,-1,-2,-1,").ignored_count, 2, "each once");
  cr_expect_eq(accepted("[128001,", "[-1,-2,-3,-4,-5,-6,-7,-8,-9,-10,").ignored_count, 10, "more than are listed");
}

Test(config, generation_config_overrides) {
  mk_config c = accepted("{", "{");
  cr_assert_eq(mk_config_parse_generation("{\"bos_token_id\":5,\"eos_token_id\":6}", 35, &c), MK_OK);
  cr_expect(c.bos == 5 && c.eos_count == 1 && c.eos[0] == 6);
  cr_assert_eq(mk_config_parse_generation("{\"do_sample\":true}", 18, &c), MK_OK);
  cr_expect(c.bos == 5 && c.eos_count == 1);
  static const char ignored[] = "{\"eos_token_id\":[6,128256],\"pad_token_id\":-1,\"bos_token_id\":128257}";
  mk_config before = c;
  cr_assert_eq(mk_config_parse_generation(ignored, sizeof ignored - 1, &c), MK_OK, "%s", mk_error_message());
  cr_expect(!c.has_bos && c.eos_count == 1 && c.eos[0] == 6 && c.ignored_count == 3);
  c = before;
  static const char bad[] = "{\"eos_token_id\":[1,\"x\"]}";
  cr_expect_eq(mk_config_parse_generation(bad, sizeof bad - 1, &c), MK_ERR_FILE);
  cr_expect(c.eos_count == 1 && c.eos[0] == 6, "changed by a refused file");
}

Test(config, every_truncation_is_refused) {
  for (size_t length = 0; length + 1 < sizeof base; length++) {
    mk_config c;
    char *exact = malloc(length + (length == 0));
    memcpy(exact, base, length);
    cr_assert_eq(mk_config_parse(exact, length, &c), MK_ERR_FILE, "%zu bytes", length);
    free(exact);
  }
}

/* A directory with the two files; either may be NULL. */
static void make_directory(char *directory, const char *config, const char *generation) {
  cr_assert_not_null(mkdtemp(directory));
  const char *texts[] = {config, generation};
  static const char *const names[] = {"config.json", "generation_config.json"};
  for (size_t i = 0; i < 2; i++) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, names[i]);
    if (texts[i] != NULL) {
      FILE *file = fopen(path, "w");
      cr_assert_not_null(file);
      fputs(texts[i], file);
      fclose(file);
    }
  }
}

static void drop_directory(const char *directory) {
  static const char *const names[] = {"config.json", "generation_config.json"};
  for (size_t i = 0; i < 2; i++) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, names[i]);
    remove(path);
  }
  remove(directory);
}

static void load_refused(const char *directory, const char *message) {
  mk_config c;
  cr_expect_eq(mk_config_load(directory, &c), MK_ERR_FILE);
  cr_expect_not_null(strstr(mk_error_message(), message), "\"%s\" lacks \"%s\"", mk_error_message(), message);
}

Test(config, loads_a_directory_with_and_without_generation_config) {
  char one[] = "/tmp/mk_config_XXXXXX", two[] = "/tmp/mk_config_XXXXXX";
  mk_config c;
  make_directory(one, base, NULL);
  make_directory(two, base, "{\"eos_token_id\":9}");
  cr_expect_eq(mk_config_load(one, &c), MK_OK, "%s", mk_error_message());
  cr_expect_eq(c.eos_count, 3);
  cr_expect_eq(mk_config_load(two, &c), MK_OK, "%s", mk_error_message());
  cr_expect(c.eos_count == 1 && c.eos[0] == 9);
  drop_directory(one);
  drop_directory(two);
}

Test(config, bad_files) {
  char none[] = "/tmp/mk_config_XXXXXX", empty[] = "/tmp/mk_config_XXXXXX", bad[] = "/tmp/mk_config_XXXXXX", path[128];
  load_refused("/nonexistent/model", "/nonexistent/model/config.json: cannot be opened");
  make_directory(none, NULL, NULL);
  load_refused(none, "config.json: cannot be opened: No such file");
  snprintf(path, sizeof path, "%s/config.json", none);
  cr_assert_eq(mkdir(path, 0700), 0);
  load_refused(none, "config.json: is a directory");
  remove(path);
  cr_assert_eq(mkfifo(path, 0600), 0);
  load_refused(none, "config.json: is a FIFO"); /* and does not wait for a writer */
  make_directory(empty, "", NULL);
  load_refused(empty, "config.json: is empty");
  make_directory(bad, base, "{\"eos_token_id\":1.5}");
  load_refused(bad, "generation_config.json: eos_token_id: is 1.5");
  drop_directory(none);
  drop_directory(empty);
  drop_directory(bad);
}

Test(config, every_allocation_may_fail) {
  char directory[] = "/tmp/mk_config_XXXXXX";
  make_directory(directory, base, "{\"eos_token_id\":9}");
  for (int forever = 0; forever < 2; forever++) {
    uint64_t n = 1;
    for (;; n++) {
      mk_config c;
      mk_alloc_fail_at(n, forever);
      mk_status status = mk_config_load(directory, &c);
      uint64_t calls = mk_alloc_calls();
      mk_alloc_fail_at(0, false);
      if (calls < n) {
        cr_assert_eq(status, MK_OK);
        break;
      }
      cr_assert_eq(status, MK_ERR_RUNTIME);
      cr_assert_not_null(strstr(mk_error_message(), "out of memory"), "%s", mk_error_message());
    }
    cr_assert_gt(n, 3);
  }
  drop_directory(directory);
}
