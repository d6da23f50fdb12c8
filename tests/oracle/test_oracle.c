/* The engine against Hugging Face transformers: every golden file, with the program of the default machine; and those
 * of kv_fp8, of which transformers rounded K and V as a cache in fp8 does. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <dirent.h>
#include <unistd.h>

#include "tests/oracle/golden.h"
#include "tests/support/effort.h"

enum {
  MAX_GOLDENS = 64,
  RANDOM_MODELS = 14,
};

typedef struct golden_name {
  char text[GOLDEN_NAME];
} golden_name;

/* The one that takes more time than all others. */
#define LONGEST "d128_g8_longest"

/* The names of the golden files; the number of them. */
static size_t list_goldens(golden_name names[MAX_GOLDENS], bool with_longest) {
  size_t count = 0;
  DIR *folder = opendir(GOLDEN_FOLDER);
  if (folder == NULL) {
    return 0;
  }
  for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    size_t length = strlen(entry->d_name);
    if (length > 4 && length < GOLDEN_NAME && strcmp(entry->d_name + length - 4, ".bin") == 0 && count < MAX_GOLDENS &&
        (with_longest || strcmp(entry->d_name, LONGEST ".bin") != 0)) {
      snprintf(names[count++].text, GOLDEN_NAME, "%.*s", (int)length - 4, entry->d_name);
    }
  }
  closedir(folder);
  return count;
}

/* No golden, no test: an empty folder must not pass, and a trained demo model must have its golden. */
Test(oracle, goldens_are_there) {
  golden_name names[MAX_GOLDENS];
  size_t count = list_goldens(names, true), demo = 0;
  for (size_t i = 0; i < count; i++) {
    demo += strcmp(names[i].text, "demo") == 0;
  }
  cr_expect_eq(count - demo, RANDOM_MODELS, "%s has %zu goldens of random models, %d are expected", GOLDEN_FOLDER,
               count - demo, RANDOM_MODELS);
  bool has_weights = access(GOLDEN_DEMO "/model.safetensors", F_OK) == 0;
  cr_expect_eq(demo != 0, has_weights, "%s",
               has_weights ? GOLDEN_DEMO " has weights but demo.bin is missing: run make_goldens.py --demo"
                           : "demo.bin is there but " GOLDEN_DEMO "/model.safetensors is not");
}

/* Once there are any, every golden of a random model has its error of transformers in bf16; the demo has none. */
Test(oracle, bf16_errors_are_of_all_goldens) {
  golden_name names[MAX_GOLDENS];
  size_t count = list_goldens(names, true);
  bool there = access(GOLDEN_FOLDER "/" GOLDEN_BF16_FILE, F_OK) == 0;
  for (size_t i = 0; i < count; i++) {
    golden g;
    golden_load(names[i].text, &g);
    cr_expect_eq(isfinite(g.bf16_error), there && !g.is_directory, "%s: %g; run make_goldens.py --bf16-errors", g.name,
                 g.bf16_error);
    golden_free(&g);
  }
}

ParameterizedTestParameters(oracle, matches_transformers) {
  static golden_name names[MAX_GOLDENS];
  size_t count = list_goldens(names, !test_is_quick());
  return cr_make_param_array(golden_name, names, count);
}

static void match(const golden_name *name, const char *what, const mk_engine_options *options) {
  golden g;
  golden_load(name->text, &g);
  char directory[TEST_PATH];
  golden_directory(&g, directory);
  mk_engine *engine;
  mk_status status = mk_engine_open(directory, options, &engine);
  golden_directory_remove(&g, directory); /* the weights are in memory now */
  cr_assert_eq(status, MK_OK, "%s: %s", g.name, mk_error_message());
  cr_assert_eq(mk_engine_config(engine)->vocab, g.config.vocab, "%s: the golden is of another model", g.name);
  golden_result result;
  status = golden_compare(&g, engine, g.steps, &result);
  mk_engine_close(engine);
  golden_print(g.name, what, &result);
  cr_expect_eq(status, MK_OK, "%s: %s", g.name, mk_error_message());
  cr_expect(result.passed, "%s: %s", g.name, result.why);
  cr_expect_eq(result.compared, g.steps, "%s: %u of %u steps were compared", g.name, result.compared, g.steps);
  golden_free(&g);
}

ParameterizedTest(const golden_name *name, oracle, matches_transformers) { match(name, "", &(mk_engine_options){0}); }

ParameterizedTestParameters(oracle, matches_transformers_in_chunks) {
  static golden_name names[MAX_GOLDENS];
  size_t count = list_goldens(names, true);
  return cr_make_param_array(golden_name, names, count);
}

/* The prompt sixteen tokens at a time; tests/engine/test_rows.c has that the bits are the same, and other numbers of
 * rows. */
ParameterizedTest(const golden_name *name, oracle, matches_transformers_in_chunks) {
  match(name, "16 rows", &(mk_engine_options){.device = "cpu", .rows = 16, .kv_blocks = 64});
}

enum { KV_FP8_GOLDENS = 5 };

/* The error of all steps. */
static double kv_error(const golden *g, const char *directory, mk_dtype kv, uint32_t rows, bool *passed) {
  const mk_engine_options options = {.device = "cpu", .rows = rows, .kv = kv};
  mk_engine *engine;
  golden_result result;
  cr_assert_eq(mk_engine_open(directory, &options, &engine), MK_OK, "%s: %s", g->name, mk_error_message());
  cr_assert_eq(golden_compare(g, engine, g->steps, &result), MK_OK, "%s: %s", g->name, mk_error_message());
  mk_engine_close(engine);
  golden_print(g->name,
               kv == MK_DTYPE_BF16 ? "KV cache bf16"
               : rows == 1         ? "KV cache fp8"
                                   : "KV cache fp8, 16 rows",
               &result);
  *passed = result.passed;
  cr_expect(result.passed || kv == MK_DTYPE_BF16, "%s: %s", g->name, result.why);
  return golden_error(&result);
}

/* A step may be off as far as elsewhere; with a cache in bf16 it is further off, so the comparison sees the
 * rounding. */
Test(oracle, a_cache_in_fp8_matches_transformers) {
  uint32_t count = 0;
  DIR *folder = opendir(GOLDEN_FOLDER "/kv_fp8");
  for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
    char name[GOLDEN_NAME + 8], directory[TEST_PATH];
    golden g;
    bool passed;
    const size_t length = strlen(entry->d_name);
    if (length <= 4 || strcmp(entry->d_name + length - 4, ".bin") != 0) {
      continue;
    }
    snprintf(name, sizeof name, "kv_fp8/%.*s", (int)(length < GOLDEN_NAME ? length - 4 : 0), entry->d_name);
    golden_load(name, &g);
    golden_directory(&g, directory);
    const double error = kv_error(&g, directory, MK_DTYPE_E4M3, 1, &passed);
    cr_expect_eq(mk_float_param((float)kv_error(&g, directory, MK_DTYPE_E4M3, 16, &passed)),
                 mk_float_param((float)error), "%s: sixteen rows have other bits", g.name);
    const double other = kv_error(&g, directory, MK_DTYPE_BF16, 1, &passed);
    cr_expect(!passed && other > 2 * error, "%s: %g with a cache in bf16, %g with one in fp8", g.name, other, error);
    golden_directory_remove(&g, directory);
    golden_free(&g);
    count++;
  }
  if (folder != NULL) {
    closedir(folder);
  }
  cr_expect_eq(count, KV_FP8_GOLDENS);
}
