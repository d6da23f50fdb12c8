/* Programs written by hand to refute the verifier (tests/vm/data/attack), each of which was accepted once and then
 * raced, hung, left its buffers or came out different. Now each is rejected by the rule that it broke, or right on
 * every machine: mkvm_gpu_tests --programs runs those that are. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/text.h"
#include "vm/verify/verify.h"

enum { SEEDS = 1500 };

static const struct {
  const char *name, *rule; /* NULL: accepted */
} programs[] = {
    {"blocks_alias", "B03"},   /* fewer blocks than positions need: two places in one */
    {"combine_signal", "R01"}, /* a consumer's signal was taken to cover what storers had yet to do */
    {"disagree", "N07"},       /* searches that look at other tokens on each SM */
    {"emptyheads", "N04"},     /* no head has rows: the next token was no token */
    {"front_as_candidates", "S10"},
    {"fused_elsewhere", "N06"},  /* what is done on another SM, by what is known of the SM where it stands */
    {"next_signal", "N09"},      /* a machine never sent it */
    {"nonext", "N01"},           /* a queue that never learned that the run was over */
    {"odd17", "S02"},            /* half a stamped word, which nobody wrote */
    {"other_rows", "S10"},       /* operands where kernels do not look for them */
    {"prefetch", NULL},          /* a residual that moves between SMs; a storer fetched it before its wait */
    {"rows_after_head", "N06"},  /* values that are emptied after the candidate that says that all is done */
    {"rows_false_dep", "S10"},   /* parts that no attention wrote, counted as waited for */
    {"scratch_overflow", "S02"}, /* sizes beyond 64 bits */
    {"stamp_before_signal", "E04"},
    {"tile_by_tile", "R02"}, /* one tile was taken to prove what comes after it */
    {"two_tables", "B05"},
    {"uid0_combine", "S05"},
    {"unread_head", "N04"},
};

Test(attack, every_program_is_rejected_or_right) {
  for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
    char name[64];
    mk_verify_report report;
    snprintf(name, sizeof name, "attack/%s.mks", programs[i].name);
    mk_program *program = test_assemble(name, NULL);
    mk_status status = mk_verify(program, &report);
    cr_expect_eq(status, programs[i].rule == NULL ? MK_OK : MK_ERR_REJECTED, "%s: %s", name, mk_error_message());
    cr_expect_str_eq(report.rule, programs[i].rule == NULL ? "" : programs[i].rule, "%s: %s", name, mk_error_message());
    mk_program_free(program);
  }
}

Test(attack, every_file_is_in_the_list) {
  DIR *folder = opendir(MK_SOURCE_DIR "/tests/vm/data/attack");
  cr_assert_not_null(folder);
  for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    bool listed = entry->d_name[0] == '.';
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
      size_t length = strlen(programs[i].name);
      listed |= strncmp(entry->d_name, programs[i].name, length) == 0 && strcmp(entry->d_name + length, ".mks") == 0;
    }
    cr_expect(listed, "%s", entry->d_name);
  }
  closedir(folder);
}

Test(attack, a_residual_that_moves_has_the_same_bits_in_any_interleaving) {
  mk_program *program = test_assemble("attack/prefetch.mks", NULL);
  uint64_t want, got;
  cr_assert_eq(test_run(program, &(mk_cpu_options){0}, 0, &want), MK_OK, "%s", mk_error_message());
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    mk_cpu_options options = {.seed = seed, .adversarial = true, .check_races = true};
    cr_assert_eq(test_run(program, &options, 0, &got), MK_OK, "seed %d: %s", (int)seed, mk_error_message());
    cr_assert_eq(got, want, "seed %d", (int)seed);
  }
  mk_program_free(program);
}

/* What is written by another SM than it stands on, the race detector sees in some interleavings of the first program,
 * and never in that program without the mark, which is accepted. */
Test(attack, what_is_fused_elsewhere_races) {
  mk_program *program = test_assemble("attack/fused_elsewhere.mks", NULL);
  uint64_t hash;
  uint32_t races = 0;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    mk_cpu_options options = {.seed = seed, .adversarial = true, .check_races = true};
    races += test_run(program, &options, 0, &hash) != MK_OK;
  }
  cr_expect_gt(races, 0);
  for (size_t i = 0; i < program->instruction_count; i++) {
    program->instructions[i].flags = 0;
  }
  cr_expect_eq(mk_verify(program, NULL), MK_OK, "%s", mk_error_message());
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    mk_cpu_options options = {.seed = seed, .adversarial = true, .check_races = true};
    cr_assert_eq(test_run(program, &options, 0, &hash), MK_OK, "seed %d: %s", (int)seed, mk_error_message());
  }
  mk_program_free(program);
}
