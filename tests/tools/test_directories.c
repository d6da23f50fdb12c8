/* What the command computes from directories as people have them, and what it says about them. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cache.h"
#include "models/directory.h"
#include "models/llama.h"
#include "scheduler/compile.h"
#include "tests/support/model.h"
#include "tests/support/parts.h"
#include "tests/support/process.h"
#include "tests/support/text.h"
#include "vm/program/program.h"

#define HEAD "lm_head.weight"
#define EMBEDDING "model.embed_tokens.weight"

static char path[TEST_PATH];
static mk_config config; /* tied, two layers */
static test_parts parts;

static void make(void) {
  config = test_model_config(TEST_MODEL_TINY);
  test_model_write(&config, path);
  parts = test_parts_of(&config);
}

static void drop(void) {
  test_parts_free(&parts);
  test_model_remove(path);
}

TestSuite(directories, .init = make, .fini = drop, .timeout = MK_HANG_SECONDS);

static void add_head(const char *like) { test_parts_add(&parts, HEAD, like, config.vocab, config.hidden); }

static const char *file_of(const char *name) {
  static char files[4][TEST_PATH + 64];
  static unsigned next;
  char *file = files[next++ % 4];
  snprintf(file, sizeof files[0], "%s/%s", path, name);
  return file;
}

/* Replaces the one `from` in config.json. */
static void edit_config(const char *from, const char *to) {
  char *text = test_read_file(file_of("config.json"));
  const char *at = strstr(text, from);
  cr_assert_not_null(at, "%s is not in %s", from, text);
  FILE *file = fopen(file_of("config.json"), "w");
  fprintf(file, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
  cr_assert_eq(fclose(file), 0);
  free(text);
}

static void expect(test_result r, int code, const char *in_out, const char *in_err) {
  cr_expect_eq(r.code, code, "exit code %d instead of %d\n%s\n%s", r.code, code, r.out, r.err);
  cr_expect_not_null(strstr(r.out, in_out), "`%s` is not in the output: %s", in_out, r.out);
  cr_expect_not_null(strstr(r.err, in_err), "`%s` is not in the errors: %s", in_err, r.err);
  test_drop(&r);
}
#define RUN(...) test_process(MK_COMMAND, (const char *const[]){__VA_ARGS__, NULL})
#define EXPECT(code, in_out, in_err, ...) expect(RUN(__VA_ARGS__), code, in_out, in_err)
#define INFO(words) EXPECT(0, words, "", "info", "-m", path)
#define GENERATE "run", "-m", path, "-p", "hello", "-n", "12", "--ignore-eos", "--device", "cpu", "--sms", "3"

static unsigned count(const char *text, const char *words) {
  unsigned found = 0;
  for (const char *at = strstr(text, words); at != NULL; at = strstr(at + 1, words)) {
    found++;
  }
  return found;
}

/* What it generates; `line` stands on standard error once, and nothing else does; NULL: nothing does. */
static char *generated(const char *line) {
  test_result r = RUN(GENERATE);
  cr_assert_eq(r.code, 0, "%s", r.err);
  cr_expect_eq(count(r.err, "mkvm: "), line == NULL ? 0 : 1, "%s", r.err);
  cr_expect(line == NULL || count(r.err, line) == 1, "`%s` is not in the errors once: %s", line, r.err);
  char *out = strdup(r.out);
  test_drop(&r);
  return out;
}

static uint64_t program_hash(void) {
  mk_program *program;
  cr_assert_eq(mk_program_load(file_of("p.mkp"), &program), MK_OK, "%s", mk_error_message());
  uint64_t hash = program->config_hash;
  cr_expect_eq(mk_program_find_buffer(program, "lm_head") >= 0, mk_config_hash(&config) != hash);
  mk_program_free(program);
  return hash;
}

/* The stored head is what is computed with, as if config.json did not tie. */
Test(directories, a_tied_head_that_differs_is_computed_with) {
  test_parts_write(&parts, path);
  char *tied = generated(NULL);
  INFO("tied embeddings: no lm_head.weight is stored");
  add_head(NULL);
  test_parts_write(&parts, path);
  char *differs = generated("tie_word_embeddings is true, but the stored lm_head.weight differs");
  INFO("untied embeddings\nhead        tie_word_embeddings is true, but the stored lm_head.weight differs");
  edit_config("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
  char *untied = generated(NULL);
  INFO("untied embeddings, as tie_word_embeddings says");
  cr_expect_str_eq(differs, untied);
  cr_expect_str_neq(differs, tied);
  free(tied);
  free(differs);
  free(untied);
}

Test(directories, a_tied_head_that_is_stored_and_equal_changes_nothing) {
  test_parts_write(&parts, path);
  char *tied = generated(NULL);
  add_head(EMBEDDING);
  test_parts_write(&parts, path);
  char *equal = generated(NULL);
  INFO("tied embeddings: the stored lm_head.weight is the same");
  cr_expect_str_eq(tied, equal);
  free(tied);
  free(equal);
}

/* The tokens of the same text model by itself. */
Test(directories, the_text_of_a_model_with_images) {
  test_parts_write(&parts, path);
  char *alone = generated(NULL);
  for (int inner = 0; inner < 2; inner++) {
    test_parts_make_whole(&parts, path, inner != 0);
    test_parts_write(&parts, path);
    char *text = generated("images are not read: the text model alone is computed, 2 tensors beside it left aside");
    cr_expect_str_eq(text, alone);
    free(text);
    INFO("shape       Mistral, 2 layers");
    INFO("\ntext        images are not read");
    EXPECT(0, "", "", "compile", "-m", path, "-o", file_of("p.mkp"), "--sms", "3");
    EXPECT(2, "", "has parts for images, which would be lost", "quantize", "-m", path, "-o", file_of("less"), "--to",
           "fp8");
    drop();
    make();
  }
  free(alone);
}

Test(directories, compile_makes_the_program_that_run_makes) {
  const char *const program = file_of("p.mkp");
  test_parts_write(&parts, path);
  EXPECT(0, "", "", "compile", "-m", path, "-o", program, "--sms", "3");
  cr_expect_eq(program_hash(), mk_config_hash(&config));
  add_head(NULL);
  test_parts_write(&parts, path);
  EXPECT(0, "", "tie_word_embeddings is true, but", "compile", "-m", path, "-o", program, "--sms", "3");
  cr_expect_neq(program_hash(), mk_config_hash(&config));
  cr_assert_eq(remove(file_of("model.safetensors")), 0);
  EXPECT(0, "", "", "compile", "-m", path, "-o", program, "--sms", "3"); /* config.json alone: tied */
  cr_expect_eq(program_hash(), mk_config_hash(&config));
}

static uint64_t key_of(const mk_directory *directory, bool tied) {
  mk_config chosen = directory->config;
  mk_graph *graph;
  uint64_t key;
  chosen.tied = tied;
  cr_assert_eq(mk_llama_graph(&chosen, &graph), MK_OK);
  cr_assert_eq(mk_cache_key(directory->checkpoint, graph, &key), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return key;
}

/* A packed copy of the tied weights has no head; it must not be taken for the untied ones. */
Test(directories, tied_and_untied_weights_have_packed_copies_of_their_own) {
  mk_directory directory;
  add_head(NULL);
  test_parts_write(&parts, path);
  cr_assert_eq(mk_directory_open(path, MK_WEIGHTS_NEEDED, NULL, &directory), MK_OK, "%s", mk_error_message());
  cr_expect_neq(key_of(&directory, true), key_of(&directory, false));
  mk_directory_close(&directory);
}

Test(directories, a_packed_copy_of_an_untied_head) {
  char folder[TEST_PATH + 16], command[TEST_PATH + 64];
  snprintf(folder, sizeof folder, "%s-copies", path);
  add_head(NULL);
  test_parts_write(&parts, path);
  char *want = generated("differs");
  for (int again = 0; again < 2; again++) {
    test_result r = RUN(GENERATE, "--cache", folder);
    cr_expect_eq(r.code, 0, "%s", r.err);
    cr_expect_str_eq(r.out, want);
    test_drop(&r);
  }
  free(want);
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  cr_expect_eq(system(command), 0);
}

Test(directories, what_is_rounded_is_said_once) {
  test_parts_write(&parts, path);
  INFO("precision   bf16 weights and KV cache, fp32 sums\n");
  char *bf16 = generated(NULL);
  for (size_t i = 0; i < parts.count; i++) {
    parts.parts[i].dtype = MK_TENSOR_F16;
  }
  test_parts_write(&parts, path);
  char *fp16 = generated("20 tensors of fp16 (of 20) rounded to bf16");
  cr_expect_str_eq(fp16, bf16, "these values are exact in both");
  free(fp16);
  free(bf16);
  INFO("fp32 sums; 20 tensors of fp16 (of 20) rounded to bf16");
  test_result r = RUN(GENERATE, "--compare"); /* which opens it twice */
  cr_expect(r.code == 0 && count(r.err, "rounded to bf16") == 1, "%d: %s", r.code, r.err);
  test_drop(&r);
  parts.parts[0].dtype = MK_TENSOR_F32;
  parts.parts[1].dtype = MK_TENSOR_BF16;
  test_parts_write(&parts, path);
  free(generated("18 tensors of fp16 and 1 of fp32 (of 20) rounded to bf16"));
  INFO("fp32 sums; 18 tensors of fp16 and 1 of fp32 (of 20) rounded to bf16");
}

Test(directories, layers_beyond_the_configuration_change_nothing) {
  test_parts_write(&parts, path);
  char *want = generated(NULL);
  test_parts_add(&parts, "model.layers.2.self_attn.q_proj.weight", NULL, 256, 128);
  test_parts_add(&parts, "model.layers.3.self_attn.q_proj.weight", NULL, 256, 128);
  test_parts_write(&parts, path);
  char *got = generated("2 tensors of 2 layers beyond num_hidden_layers 2 left aside");
  INFO("layers      2 tensors of 2 layers beyond num_hidden_layers 2 left aside");
  cr_expect_str_eq(got, want);
  free(got);
  free(want);
}

Test(directories, ids_that_no_token_has_are_ignored) {
  FILE *file = fopen(file_of("generation_config.json"), "w");
  fputs("{\"eos_token_id\": [5, -1, 320], \"pad_token_id\": 320}", file);
  cr_assert_eq(fclose(file), 0);
  INFO("ids         ignored, since no token has them: eos_token_id -1, eos_token_id 320, pad_token_id 320\n");
  free(generated(NULL));
}

#define SCALING "\"rope_scaling\": {"

static void set_rope(const char *type) {
  char *text = test_read_file(file_of("config.json"));
  char *from = strstr(text, SCALING), *end = strchr(from, '}');
  char was[512], now[128];
  snprintf(was, sizeof was, "%.*s", (int)(end + 1 - from), from);
  snprintf(now, sizeof now, SCALING "\"type\": \"%s\", \"factor\": 4.0}", type);
  free(text);
  edit_config(was, now);
}

/* A window counts where the context is longer. */
Test(directories, sliding_windows) {
  char *all = generated(NULL);
  edit_config("LlamaForCausalLM", "MistralForCausalLM");
  edit_config("\"llama\"", "\"mistral\",\n  \"sliding_window\": 5");
  INFO("windows     5 tokens in 2 of 2 layers; with a context of up to 5 tokens there are none\n");
  char *five = generated(NULL);
  cr_expect_str_neq(five, all);
  edit_config("\"sliding_window\": 5", "\"sliding_window\": 900");
  EXPECT(0, "", "", "compile", "-m", path, "-o", file_of("p.mkp"), "--max-seq", "901");
  EXPECT(0, "window=900", "", "disasm", file_of("p.mkp"));
  EXPECT(0, "", "", "compile", "-m", path, "-o", file_of("p.mkp"), "--max-seq", "900");
  EXPECT(0, "window=0", "", "disasm", file_of("p.mkp"));
  char *long_one = generated(NULL);
  cr_expect_str_eq(long_one, all);
  free(all);
  free(five);
  free(long_one);
}

Test(directories, linear_and_dynamic_rope) {
  char *llama3 = generated(NULL);
  INFO(", llama3 scaling by 8 from ");
  set_rope("linear");
  INFO("positions   1024, rope theta 10000, linear scaling by 4\n");
  char *linear = generated(NULL);
  set_rope("dynamic");
  INFO(
      "positions   1024, rope theta 10000, dynamic scaling by 4, without effect up to 1024 tokens, which are the "
      "most\n");
  char *dynamic = generated(NULL);
  EXPECT(2, "", "has at most 1024, its max_position_embeddings: beyond it rope type \"dynamic\" turns", "run", "-m",
         path, "-p", "a", "-c", "1025");
  EXPECT(2, "", "beyond it rope type \"dynamic\"", "info", "-m", path, "-c", "4096");
  EXPECT(2, "", "beyond it rope type \"dynamic\"", "compile", "-m", path, "-o", file_of("p.mkp"), "--max-seq", "1025");
  edit_config(SCALING "\"type\": \"dynamic\", \"factor\": 4.0}", "\"rope_scaling\": null");
  char *none = generated(NULL);
  cr_expect_str_eq(dynamic, none);
  cr_expect_str_neq(linear, none);
  cr_expect_str_neq(linear, llama3);
  free(llama3);
  free(linear);
  free(dynamic);
  free(none);
}
