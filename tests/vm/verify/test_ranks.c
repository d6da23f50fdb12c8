/* Programs for several GPUs: what crosses from rank to rank is proven like everything else, and needs scope sys. Wrong
 * scopes are in tests/support/faults.def, under P04. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/text.h"
#include "vm/verify/verify.h"

static void expect_rejected(const char *rule, const char *words, const test_edit *edits) {
  mk_program *program = test_assemble("two_ranks.mks", edits);
  mk_verify_report report;
  cr_assert_eq(mk_verify(program, &report), MK_ERR_REJECTED);
  cr_assert_str_eq(report.rule, rule, "%s", mk_error_message());
  cr_assert_not_null(strstr(mk_error_message(), words), "`%s` is not in: %s", words, mk_error_message());
  mk_program_free(program);
}
#define REJECTS(name, rule, words, ...) \
  Test(ranks, name) { expect_rejected(rule, words, (const test_edit[]){__VA_ARGS__, {NULL, NULL}}); }

Test(ranks, report_names_the_rank) {
  mk_program *program = test_assemble(
      "two_ranks.mks", (const test_edit[]){{"#12 head x=s gain=gain.1", "#12 head x=s gain=gain.0"}, {NULL, NULL}});
  mk_verify_report report;
  cr_assert_eq(mk_verify(program, &report), MK_ERR_REJECTED);
  cr_assert(report.rank == 1 && report.sm == 0 && report.position == 1 && report.uid == 12);
  mk_program_free(program);
}

static void expect_runs(const char *name) {
  mk_program *program = test_assemble(name, NULL);
  uint64_t want, got;
  cr_assert_eq(mk_verify(program, NULL), MK_OK, "%s", mk_error_message());
  cr_assert_eq(test_run(program, &(mk_cpu_options){0}, 0, &want), MK_OK, "%s", mk_error_message());
  for (uint64_t seed = 1; seed <= 50; seed++) {
    mk_cpu_options options = {.seed = seed, .adversarial = seed % 2 != 0, .check_races = true};
    cr_assert_eq(test_run(program, &options, 0, &got), MK_OK, "%s", mk_error_message());
    cr_assert_eq(got, want, "%s, seed %d", name, (int)seed);
  }
  mk_program_free(program);
}

Test(ranks, run_on_the_cpu_machine) {
  expect_runs("two_ranks.mks");
  expect_runs("copies.mks");
}

/* Scope sys makes a counter reach the other rank; only its being a release counter orders plain data there. */
REJECTS(relaxed_counter_across_ranks, "R01",
        "rank 1 SM 0 position 0 #11 reduce_add: residual_in: reads tile (0, 0) of buffer sum",
        {"counter summed kind=release", "counter summed kind=relaxed"})
REJECTS(write_after_read_across_ranks, "R02", "rank 0 SM 0 position 1 #2 reduce_add", {" wait=taken>=1", ""})
/* Order on a rank of its own does not order the other rank. */
REJECTS(counter_that_stays_at_home, "R01", "nothing orders that after rank 0 SM 0 position 1 #2 reduce_add",
        {" wait=summed>=1", ""}, {"#3 head", "#3 head wait=summed>=1"})
REJECTS(deadlock_across_ranks, "D01",
        "rank 0 SM 0 position 0 #1 qkv waits for counter taken, which rank 1 SM 0 position 0 #11 reduce_add signals",
        {"#1 qkv", "#1 qkv wait=taken>=1"})
REJECTS(weight_of_another_rank, "P04", "weight: buffer embedding.0 of scope gpu lies on rank 0",
        {"weight=embedding.1", "weight=embedding.0"})
REJECTS(result_on_another_rank, "P04", "logits: buffer logits.0 of scope gpu lies on rank 0",
        {"logits=logits.1", "logits=logits.0"})
/* The ranks would follow different prompts. */
REJECTS(prompt_of_its_own, "N04", "all SMs must agree",
        {"buffer token_ring",
         "buffer plan.1 kind=input dtype=u32 store=plain shape=1x256 tile=1x16 rank=1\nbuffer token_ring"},
        {"plan=plan ring=token_ring[0:0,0:0]", "plan=plan.1 ring=token_ring[0:0,0:0]"})

/* A private buffer and its SM of the same number on the other rank are not the same thing. */
REJECTS(same_sm_of_another_rank, "P04", "sum of scope sm lies on rank 0",
        {"shape=1x16 tile=1x16 scope=sys\nbuffer total", "shape=1x16 tile=1x16 scope=sm\nbuffer total"})

static void expect_seen(const char *name, const test_edit *fault) {
  mk_program *program = test_assemble(name, fault);
  uint32_t failed = 0;
  for (uint64_t seed = 1; seed <= 50; seed++) {
    uint64_t got;
    failed +=
        test_run(program, &(mk_cpu_options){.seed = seed, .adversarial = true, .check_races = true}, 0, &got) != MK_OK;
  }
  cr_assert_gt(failed, 0, "%s: %s", name, fault->from);
  mk_program_free(program);
}

Test(ranks, race_detector_sees_what_the_verifier_rejects) {
  static const test_edit faults[][2] = {{{"counter summed kind=release", "counter summed kind=relaxed"}},
                                        {{" wait=taken>=1", ""}},
                                        {{" wait=summed>=1", ""}}};
  static const test_edit of_copies[][3] = {
      {{"counter summed kind=release", "counter summed kind=relaxed"}},
      {{" wait=taken>=1", ""}, {"counter both   kind=release", "counter both   kind=relaxed"}},
      {{" wait=summed>=1", ""}},
      {{"buffer sum         kind=activation dtype=f32 store=plain shape=1x16 tile=1x16 scope=sys rank=each",
        "buffer sum kind=activation dtype=f32 store=plain shape=1x16 tile=1x16 rank=dealt"}}};
  for (size_t i = 0; i < 3; i++) {
    expect_seen("two_ranks.mks", faults[i]);
  }
  for (size_t i = 0; i < 4; i++) {
    expect_seen("copies.mks", of_copies[i]);
  }
}

/* The ranks whose copies a write or a signal goes to are those that read, or wait. */
Test(ranks, who_is_told) {
  mk_program *program = test_assemble("copies.mks", NULL);
  mk_readers readers;
  cr_assert_eq(mk_program_readers(program, &readers), MK_OK, "%s", mk_error_message());
  static const struct {
    uint32_t uid, slot;
    uint64_t ranks;
  } want[] = {{1, MK_SLOT_QKV_out, 3},         {2, MK_SLOT_REDUCE_ADD_residual_out, 2},
              {2, MK_SLOT_REDUCE_ADD_out, 0},  {3, MK_SLOT_HEAD_candidate, 3},
              {3, MK_SLOT_HEAD_logits, 0},     {10, MK_SLOT_REDUCE_ADD_out, 3},
              {11, MK_SLOT_LINEAR_PART_out, 0}};
  for (size_t w = 0; w < sizeof want / sizeof want[0]; w++) {
    for (size_t i = 0; i < program->instruction_count; i++) {
      const uint64_t have = readers.operands[i * MK_MAX_OPERANDS + want[w].slot];
      cr_assert(program->instructions[i].uid != want[w].uid || have == want[w].ranks, "#%u: %llx", want[w].uid,
                (unsigned long long)have);
    }
  }
  cr_assert(readers.counters[0] == 2 && readers.counters[1] == 1 && readers.counters[2] == 1);
  mk_readers_free(&readers);
  mk_program_free(program);
}
