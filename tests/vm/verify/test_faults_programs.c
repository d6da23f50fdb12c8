/* Programs that must be refused, every kind of fault as a test by name:
 *   faults.<name>   a sound program with one fault (tests/support/faults.def): rejected by the rule that forbids it;
 *   every_rule.*    no rule without such a test, none without its row in docs/VERIFIER.md;
 *   bytes.*         files that are no programs: malformed, never judged, never a crash.
 * tests/tools/test_verify_command.c shows the same programs to the command, which answers with exit codes 4 and 3. */
#include <criterion/criterion.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/numbers.h"
#include "tests/support/text.h"
#include "vm/verify/verify.h"

static void expect_rejected(const mk_program *program, const char *rule, const char *words) {
  mk_verify_report report;
  mk_status status = mk_verify(program, &report);
  const char *message = mk_error_message();
  cr_assert_eq(status, MK_ERR_REJECTED, "status %d, expected rule %s", status, rule);
  cr_assert_str_eq(report.rule, rule, "%s", message);
  cr_assert(strncmp(message, rule, strlen(rule)) == 0 && message[strlen(rule)] == ':', "%s", message);
  cr_assert_not_null(strstr(message, words), "`%s` is not in: %s", words, message);
  cr_assert(
      (strstr(message, "position ") != NULL) == (report.uid != MK_NO_PLACE) || strstr(message, "ranges: ") != NULL,
      "the place is in the report and in the message, or in neither: %s", message);
}

/* Well formed: what it is comes back from a file, and is rejected, before as after. */
static void expect_fault(const test_fault *fault) {
  mk_program *program = test_assemble(fault->file, fault->edits), *back;
  void *bytes;
  size_t length;
  expect_rejected(program, fault->rule, fault->words);
  cr_assert_eq(mk_program_serialize(program, &bytes, &length), MK_OK);
  cr_assert_eq(mk_program_parse(bytes, length, &back), MK_OK, "not well formed: %s", mk_error_message());
  expect_rejected(back, fault->rule, fault->words);
  mk_program_free(back);
  mk_free(bytes);
  mk_program_free(program);
}

#define FAULT(rule, name, words, file, ...) \
  Test(faults, name) { expect_fault(&test_faults[TEST_FAULT_##name]); }
#include "tests/support/faults.def"

/* What no file can hold, because its parser refuses it; the verifier does not rely on that. */
Test(faults, queue_that_leaves_an_instruction_out) {
  mk_program *program = test_assemble("layer.mks", NULL);
  program->queues[1].count--;
  expect_rejected(program, "S03", "the queues hold 16 instructions, the program 17");
  mk_program_free(program);
}

Test(faults, other_sm_count) {
  mk_program *program = test_assemble("layer.mks", NULL);
  program->machine.sms = 3;
  expect_rejected(program, "S03", "2 queues, 17 instructions; 3 SMs on 1 ranks have 3 queues");
  mk_program_free(program);
}

Test(faults, buffers_that_overlap) {
  mk_program *program = test_assemble("layer.mks", NULL);
  int x = mk_program_find_buffer(program, "x"), sums = mk_program_find_buffer(program, "sums");
  program->buffers[x].offset = program->buffers[sums].offset;
  expect_rejected(program, "B04", "lies in buffer");
  mk_program_free(program);
}
/* The assembler refuses it, too. */
Test(faults, part_of_what_is_named_whole) {
  mk_program *program = test_assemble("layer.mks", NULL);
  mk_operand *gain = &program->instructions[0].operands[MK_SLOT_QKV_gain];
  gain->cols--;
  expect_rejected(program, "S13", "gain: tiles [0:1,0:3] of buffer gain");
  gain->cols++;
  cr_assert_eq(mk_verify(program, NULL), MK_OK, "%s", mk_error_message());
  mk_program_free(program);
}

static void expect_cache_rejected(mk_program *program, mk_buffer wrong, const char *why) {
  mk_buffer *kv = &program->buffers[mk_program_find_buffer(program, "kv")];
  const mk_buffer right = *kv;
  const uint64_t bytes = mk_buffer_bytes(&wrong);
  *kv = wrong;
  kv->bytes = bytes != 0 ? bytes : right.bytes;
  expect_rejected(program, "S02", why);
  *kv = right;
}

/* The assembler and the reader of files refuse these, too. */
Test(faults, scales_of_a_cache) {
  mk_program *program =
      test_assemble("layer.mks", (const test_edit[]){{"kind=kv dtype=bf16", "kind=kv dtype=e4m3"},
                                                     {"blocks=8", "blocks=8 scale=bf16 scale_cols=64 zeros=0"},
                                                     {NULL, NULL}});
  cr_assert_eq(mk_verify(program, NULL), MK_OK, "%s", mk_error_message());
  const mk_buffer good = program->buffers[mk_program_find_buffer(program, "kv")];
  mk_buffer bad;
#define WRONG(why, ...) (bad = good, __VA_ARGS__, expect_cache_rejected(program, bad, why))
  WRONG("a bf16 scale for all 64 columns of a head", bad.scale = MK_SCALE_F32);
  WRONG("scale none of 64 columns", bad.scale = MK_SCALE_NONE);
  WRONG("scale f16", bad.scale = MK_SCALE_F16);
  WRONG("scale bf16 of 32 columns", bad.scale_cols = 32);
  WRONG("scale bf16 of 128 columns", bad.scale_cols = 128);
  WRONG("scale bf16 of 64 columns, zeros 1", bad.zeros = 1);
  WRONG("buffer kv: i8", bad.dtype = MK_DTYPE_I8);
  WRONG("buffer kv: i4", bad.dtype = MK_DTYPE_I4);
  WRONG("has scales, but its dtype is bf16", bad.dtype = MK_DTYPE_BF16);
  WRONG("block_tokens is a multiple of 32", bad.block_tokens = 16);
#undef WRONG
  /* The bytes of a cache without its scales. */
  program->buffers[mk_program_find_buffer(program, "kv")].bytes -= 8 * 2 * 64 * 2;
  expect_rejected(program, "S02", "buffer kv: bytes is");
  mk_program_free(program);
}
static const char *const memory_rules[] = {"S03", "S13", "B04"};

/* The programs that are changed are sound as they stand, whole and under a second look at one tile. */
Test(faults, base_programs_are_accepted) {
  static const char *const files[] = {"layer.mks",         "mla.mks",       "one_tile.mks",  "rows.mks",
                                      "rows_sampling.mks", "sampling.mks",  "two_ranks.mks", "copies.mks",
                                      "two_sms.mks",       "cpu/shared.mks"};
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    mk_program *program = test_assemble(files[i], NULL);
    cr_assert_eq(mk_verify(program, NULL), MK_OK, "%s: %s", files[i], mk_error_message());
    mk_program_free(program);
  }
  mk_program *program =
      test_assemble("one_tile.mks", (const test_edit[]){{"residual_in=r[0:1,0:3] residual_out=t[0:1,0:3]",
                                                         "residual_in=zero[0:1,0:3] residual_out=r[0:1,0:3]"},
                                                        {NULL, NULL}});
  cr_assert_eq(mk_verify(program, NULL), MK_OK, "%s", mk_error_message());
  mk_program_free(program);
}

/* The race detector, which shares no code with the verifier, sees the overlap of one tile when the wait is gone. */
static bool runs(const test_edit *edits, uint64_t seed) {
  mk_program *program = test_assemble("one_tile.mks", edits);
  uint64_t got;
  mk_status status = test_run(program, &(mk_cpu_options){.seed = seed, .check_races = true}, 0, &got);
  cr_assert(status == MK_OK || strstr(mk_error_message(), "buffer r") != NULL, "%s", mk_error_message());
  mk_program_free(program);
  return status == MK_OK;
}

Test(faults, overlap_of_one_tile_is_seen_when_it_runs) {
  static const int which[] = {TEST_FAULT_read_after_write_of_one_tile, TEST_FAULT_write_after_read_of_one_tile,
                              TEST_FAULT_write_after_write_of_one_tile};
  for (size_t i = 0; i < 3; i++) {
    uint32_t failed = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
      cr_assert(runs(NULL, seed), "%s", mk_error_message());
      failed += !runs(test_faults[which[i]].edits, seed);
    }
    cr_assert_gt(failed, 0, "%s", test_faults[which[i]].name);
  }
}

/* Rules by their ids: those in the verifier's sources, those that some test breaks, those that the manual explains. */
enum { MAX_RULES = 100 };
typedef struct rule_set {
  char ids[MAX_RULES][4];
  size_t count;
} rule_set;

static bool has(const rule_set *set, const char *id) {
  for (size_t i = 0; i < set->count; i++) {
    if (strncmp(set->ids[i], id, 3) == 0) {
      return true;
    }
  }
  return false;
}

static void add(rule_set *set, const char *id) {
  if (!has(set, id)) {
    cr_assert_lt(set->count, (size_t)MAX_RULES);
    memcpy(set->ids[set->count++], id, 3);
  }
}

static bool is_id(const char *text) {
  return text[0] >= 'A' && text[0] <= 'Z' && text[1] >= '0' && text[1] <= '9' && text[2] >= '0' && text[2] <= '9';
}

static rule_set rules_in_the_code(void) {
  rule_set set = {.count = 0};
  glob_t files;
  cr_assert_eq(glob(MK_SOURCE_DIR "/vm/verify/*.c", 0, NULL, &files), 0);
  for (size_t i = 0; i < files.gl_pathc; i++) {
    char *text = test_read_file(files.gl_pathv[i]);
    for (const char *at = text; (at = strchr(at, '"')) != NULL; at++) {
      if (is_id(at + 1) && at[4] == '"') {
        add(&set, at + 1);
      }
    }
    free(text);
  }
  globfree(&files);
  return set;
}

/* The first cell of a row of a table names one rule, or several after commas. */
static rule_set rules_in_the_manual(void) {
  rule_set set = {.count = 0};
  char *text = test_read_file(MK_SOURCE_DIR "/docs/VERIFIER.md");
  for (const char *at = text; (at = strstr(at, "\n| ")) != NULL; at += 3) {
    for (const char *id = at + 3; is_id(id); id += 5) {
      add(&set, id);
      if (id[3] != ',') {
        break;
      }
    }
  }
  free(text);
  return set;
}

static void expect_covered(const rule_set *what, const rule_set *by, const char *words) {
  for (size_t i = 0; i < what->count; i++) {
    cr_expect(has(by, what->ids[i]), "%.3s %s", what->ids[i], words);
  }
}

Test(every_rule, is_broken_by_some_test) {
  rule_set code = rules_in_the_code(), tested = {.count = 0};
  for (size_t i = 0; i < TEST_FAULTS; i++) {
    add(&tested, test_faults[i].rule);
  }
  for (size_t i = 0; i < sizeof memory_rules / sizeof memory_rules[0]; i++) {
    add(&tested, memory_rules[i]);
  }
  cr_assert_gt(code.count, 30, "only %zu rules found", code.count);
  expect_covered(&code, &tested, "is a rule without a test; add one to tests/support/faults.def");
  expect_covered(&tested, &code, "is tested and no rule");
}

Test(every_rule, is_in_the_manual) {
  rule_set code = rules_in_the_code(), manual = rules_in_the_manual();
  expect_covered(&code, &manual, "is a rule without a row in docs/VERIFIER.md");
  expect_covered(&manual, &code, "is in docs/VERIFIER.md and no rule");
}

/* Files. */
typedef struct file_bytes {
  unsigned char *bytes;
  size_t length;
} file_bytes;

static file_bytes good_file(void) {
  file_bytes file;
  void *bytes;
  mk_program *program = test_assemble("layer.mks", NULL);
  cr_assert_eq(mk_program_serialize(program, &bytes, &file.length), MK_OK);
  file.bytes = bytes;
  mk_program_free(program);
  return file;
}

static void expect_malformed(const void *bytes, size_t length, const char *words) {
  mk_program *program;
  cr_assert_eq(mk_program_parse(bytes, length, &program), MK_ERR_FILE, "it is taken for a program");
  cr_assert_null(program);
  cr_assert_not_null(strstr(mk_error_message(), words), "%s", mk_error_message());
}

Test(bytes, at_random) {
  uint64_t seed = 3;
  unsigned char bytes[4096];
  for (int round = 0; round < 2000; round++) {
    for (size_t i = 0; i < sizeof bytes; i++) {
      bytes[i] = (unsigned char)test_random(&seed);
    }
    expect_malformed(bytes, test_random_below(&seed, sizeof bytes + 1), "");
  }
}

Test(bytes, bit_flips_of_a_good_file) {
  file_bytes file = good_file();
  uint64_t seed = 4;
  for (int round = 0; round < 4000; round++) {
    size_t bit = test_random_below(&seed, (uint32_t)file.length * 8);
    file.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    expect_malformed(file.bytes, file.length, "");
    file.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
  }
  mk_free(file.bytes);
}

Test(bytes, other_version) {
  file_bytes file = good_file();
  file.bytes[4]++;
  expect_malformed(file.bytes, file.length, "version");
  mk_free(file.bytes);
}

Test(bytes, truncated) {
  file_bytes file = good_file();
  for (size_t length = 0; length < file.length; length += 1 + length / 16) {
    expect_malformed(file.bytes, length, "");
  }
  mk_free(file.bytes);
}
