/* The engine against Hugging Face transformers, of every family: goldens/families (families.py makes them). */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <dirent.h>

#include "tests/oracle/golden.h"
#include "tests/support/effort.h"

enum { MAX_GOLDENS = 64, LEAST_OF_EACH = 4, QUICK_PROMPT = 300 };

typedef struct golden_name {
  char text[64]; /* "families/qwen3_2" */
} golden_name;

static size_t list_goldens(golden_name names[MAX_GOLDENS]) {
  size_t count = 0;
  DIR *folder = opendir(GOLDEN_FOLDER "/families");
  for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
    size_t length = strlen(entry->d_name);
    if (length > 4 && length < GOLDEN_NAME && strcmp(entry->d_name + length - 4, ".bin") == 0 && count < MAX_GOLDENS) {
      snprintf(names[count++].text, sizeof names->text, "families/%.*s", (int)length - 4, entry->d_name);
    }
  }
  if (folder != NULL) {
    closedir(folder);
  }
  return count;
}

Test(families, every_family_has_goldens) {
  golden_name names[MAX_GOLDENS];
  size_t count = list_goldens(names);
  uint32_t of[MK_MODEL_KINDS] = {0};
  for (size_t i = 0; i < count; i++) {
    golden g;
    golden_load(names[i].text, &g);
    of[g.config.kind]++;
    golden_free(&g);
  }
  of[MK_MODEL_MISTRAL] += of[MK_MODEL_MINISTRAL]; /* which computes the same */
  for (int kind = 0; kind < MK_MODEL_KINDS; kind++) {
    cr_expect(kind == MK_MODEL_MINISTRAL || of[kind] >= LEAST_OF_EACH, "%s: %u goldens", mk_model_title(kind),
              of[kind]);
  }
}

/* Computes all steps with one row, with sixteen rows, and in a random order of queues with accesses checked. */
static void match(const golden *g, const char *what, const mk_engine_options *options, uint32_t steps) {
  char directory[TEST_PATH];
  mk_engine *engine;
  golden_result result;
  golden_directory(g, directory);
  mk_status status = mk_engine_open(directory, options, &engine);
  golden_directory_remove(g, directory);
  cr_assert_eq(status, MK_OK, "%s: %s", g->name, mk_error_message());
  status = golden_compare(g, engine, steps, &result);
  mk_engine_close(engine);
  golden_print(g->name, what, &result);
  cr_expect_eq(status, MK_OK, "%s: %s", g->name, mk_error_message());
  cr_expect(result.passed, "%s, %s: %s", g->name, what, result.why);
  cr_expect_eq(result.compared, steps, "%s: %u of %u steps were compared", g->name, result.compared, steps);
}

ParameterizedTestParameters(families, match_transformers) {
  static golden_name names[MAX_GOLDENS];
  size_t count = list_goldens(names);
  return cr_make_param_array(golden_name, names, count);
}

ParameterizedTest(const golden_name *name, families, match_transformers) {
  golden g;
  golden_load(name->text, &g);
  const uint32_t context = g.prompt_count + g.steps;
  if (!test_is_quick() || g.prompt_count <= QUICK_PROMPT) {
    match(&g, "", &(mk_engine_options){.device = "cpu", .max_seq = context}, g.steps);
  }
  match(&g, "16 rows", &(mk_engine_options){.device = "cpu", .max_seq = context, .rows = 16, .kv_blocks = 64}, g.steps);
  if (g.prompt_count <= QUICK_PROMPT) {
    const mk_engine_options checked = {
        .device = "cpu", .max_seq = context, .sms = 7, .check_races = true, .adversarial = true, .interleave_seed = 3};
    match(&g, "7 SMs, checked", &checked, 2);
  }
  golden_free(&g);
}
