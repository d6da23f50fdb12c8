/* mkvm quantize: what it writes is what it says, runs here, and takes no model's place. */
#include <math.h>
#include <sys/stat.h>

#include "engine/quantised.h"
#include "instructions/reference.h"
#include "models/directory.h"
#include "models/family.h"
#include "tests/tools/command_rig.h"

TestSuite(quantize, .init = make_tiny, .fini = remove_all);

/* Every weight is next to the one it was made from. */
static void expect_near(const char *path, mk_codes codes) {
  mk_directory from, to;
  cr_assert_eq(mk_directory_open(in_directory("tiny"), MK_WEIGHTS_NEEDED, NULL, &from), MK_OK);
  cr_assert_eq(mk_directory_open(path, MK_WEIGHTS_NEEDED, NULL, &to), MK_OK, "%s", mk_error_message());
  cr_assert_eq(to.config.quant.codes, codes);
  uint32_t modules = 0;
  for (uint64_t i = 0; i < mk_family_tensor_count(&to.config); i++) {
    mk_wanted_tensor want;
    char name[MK_TENSOR_NAME];
    mk_quantised module;
    mk_family_tensor_at(&to.config, i, &want);
    mk_family_tensor_name(&to.config, &want, name);
    const mk_tensor *old = mk_checkpoint_find(from.checkpoint, name);
    const uint64_t cols = want.shape[1];
    uint16_t *rows[2] = {malloc(cols * 2), malloc(cols * 2)};
    uint8_t *code = malloc(cols);
    const bool quantised = mk_quant_has(&to.config, &want);
    modules += quantised;
    cr_assert(!quantised || mk_quantised_open(to.checkpoint, &to.config, name, &module) == MK_OK);
    for (uint32_t r = 0; r < want.shape[0]; r++) {
      cr_assert_eq(mk_tensor_read(from.checkpoint, old, r * cols, cols, rows[0]), MK_OK);
      if (!quantised) {
        cr_assert_eq(mk_tensor_read(to.checkpoint, mk_checkpoint_find(to.checkpoint, name), r * cols, cols, rows[1]),
                     MK_OK);
        cr_assert_arr_eq(rows[0], rows[1], cols * 2, "%s", name);
        continue;
      }
      cr_assert_eq(mk_quantised_row(&module, r, code, rows[1]), MK_OK);
      for (uint32_t k = 0; k < cols; k++) {
        const float a = mk_bf16_to_float(rows[0][k]), b = mk_bf16_to_float(rows[1][k]);
        const float step = mk_quantised_scale(&module, r, codes == MK_CODES_INT4 ? k / to.config.quant.group : 0);
        const float most = codes == MK_CODES_INT4 ? 0.54f * step : fmaxf(fabsf(a) * 0.067f, step * 0x1p-9f);
        cr_assert(fabsf(a - b) <= most, "%s [%u, %u]: %g became %g, step %g", name, r, k, (double)a, (double)b,
                  (double)step);
      }
    }
    if (quantised) {
      mk_quantised_close(&module);
    }
    free(rows[0]);
    free(rows[1]);
    free(code);
  }
  cr_expect_eq(modules, (codes == MK_CODES_INT4 ? 6U : 7U) * to.config.layers); /* 32 does not divide down_proj's */
  mk_directory_close(&from);
  mk_directory_close(&to);
}

Test(quantize, fp8) {
  EXPECT(0, "matrices in fp8 (e4m3); ", "", "quantize", "-m", in_directory("tiny"), "-o", in_directory("q"), "--to",
         "fp8");
  expect_near(in_directory("q"), MK_CODES_E4M3);
  EXPECT(0, "fp8 (e4m3) with a scale for each row (compressed-tensors)", "", "info", "-m", in_directory("q"));
  EXPECT(0, "", "matrices are fp8 (e4m3)", "run", "-m", in_directory("q"), "-p", "x", "-n", "2", "--device", "cpu");
}

Test(quantize, int4) {
  EXPECT(0, "24 matrices in int4, groups of 128, 4 left as they are, since 32 does not divide their columns; ", "",
         "quantize", "-m", in_directory("tiny"), "-o", in_directory("q"), "--to", "int4");
  expect_near(in_directory("q"), MK_CODES_INT4);
  EXPECT(0, "(int4 and bf16, packed: ", "", "info", "-m", in_directory("q"));
  EXPECT(0, "", "matrices are int4", "run", "-m", in_directory("q"), "-p", "x", "-n", "2", "--device", "cpu",
         "--check");
  EXPECT(0, "", "", "compile", "-m", in_directory("q"), "-o", in_directory("p.mkp"));
  EXPECT(0, "dtype=i4 store=tiles", "", "disasm", in_directory("p.mkp"));
  EXPECT(0, "", "", "verify", in_directory("p.mkp"));
}

/* Programs of quantised weights have made-up ones, too, that are numbers. */
Test(quantize, programs_run_by_themselves) {
  static const char *const forms[] = {"fp8", "int4"};
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
    EXPECT(0, "", "", "quantize", "-m", in_directory("tiny"), "-o", in_directory(forms[i]), "--to", forms[i]);
    EXPECT(0, "", "", "compile", "-m", in_directory(forms[i]), "-o", in_directory("p.mkp"), "--sms", "3");
    EXPECT(0, "3 steps from position 0", "", "run", "--program", in_directory("p.mkp"), "-n", "3");
  }
}

static void put_text(const char *name, const char *text) {
  FILE *file = fopen(in_directory(name), "w");
  cr_assert_not_null(file);
  fputs(text, file);
  fclose(file);
}

Test(quantize, other_files_come_along) {
  put_text("tiny/notes.md", "words\n");
  EXPECT(0, "", "", "quantize", "-m", in_directory("tiny"), "-o", in_directory("q"), "--to", "fp8");
  static const char *const names[] = {"q/notes.md", "q/tokenizer.json", "q/tokenizer_config.json",
                                      "q/generation_config.json"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    cr_expect_eq(access(in_directory(names[i]), F_OK), 0, "%s", names[i]);
  }
}

/* Nothing of anybody's is replaced, and nothing of another model's is left to the new one. */
Test(quantize, files_in_the_way) {
  static const char *const names[] = {"notes.md", "chat_template.jinja", "generation_config.json"};
  put_text("tiny/notes.md", "words\n");
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    char name[64];
    snprintf(name, sizeof name, "q%zu", i);
    cr_assert_eq(mkdir(in_directory(name), 0700), 0);
    snprintf(name, sizeof name, "q%zu/%s", i, names[i]);
    put_text(name, "{}");
    snprintf(name, sizeof name, "q%zu", i);
    EXPECT(2, "", "exists already", "quantize", "-m", in_directory("tiny"), "-o", in_directory(name), "--to", "fp8");
    snprintf(name, sizeof name, "q%zu/model.safetensors", i);
    cr_expect_neq(access(in_directory(name), F_OK), 0);
  }
  cr_assert_eq(mkdir(in_directory("other"), 0700), 0);
  put_text("other/notes.txt", "words\n");
  EXPECT(0, "", "", "quantize", "-m", in_directory("tiny"), "-o", in_directory("other"), "--to", "fp8");
}

Test(quantize, refusals) {
  EXPECT(2, "", "'q4' is neither fp8 nor int4", "quantize", "-m", "x", "-o", "y", "--to", "q4");
  EXPECT(2, "", "--to fp8 or --to int4 is missing", "quantize", "-m", "x", "-o", "y");
  EXPECT(2, "", "--output DIR is missing", "quantize", "-m", "x", "--to", "fp8");
  EXPECT(3, "", "config.json", "quantize", "-m", in_directory("none"), "-o", in_directory("y"), "--to", "fp8");
  EXPECT(2, "", "exists already", "quantize", "-m", in_directory("tiny"), "-o", in_directory("tiny"), "--to", "fp8");
  EXPECT(0, "", "", "quantize", "-m", in_directory("tiny"), "-o", in_directory("q"), "--to", "int4");
  EXPECT(2, "", "exists already", "quantize", "-m", in_directory("tiny"), "-o", in_directory("q"), "--to", "fp8");
  EXPECT(2, "", "quantised already (int4)", "quantize", "-m", in_directory("q"), "-o", in_directory("r"), "--to",
         "fp8");
  cr_expect_neq(access(in_directory("r"), F_OK), 0);
}
