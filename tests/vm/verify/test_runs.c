/* The runs of a long program are shared out to threads, and what is said of the program does not depend on that: one
 * core and all cores give the same report and the same message. (Where the machine has one core, both are the same.) */
#define _GNU_SOURCE /* sched_setaffinity */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/prompts.h"
#include "vm/program/plan.h"
#include "vm/verify/verify.h"

TestSuite(verify_runs, .timeout = MK_HANG_SECONDS);

enum { ROWS = 1024, LONG = 1 << 16 };

static const mk_config shape = {.hidden = 144,
                                .intermediate = 528,
                                .layers = 40,
                                .heads = 2,
                                .kv_heads = 1,
                                .head_dim = 64,
                                .vocab = 100,
                                .max_position = 1024,
                                .rms_eps = 1e-5f,
                                .rope_theta = 10000};

static mk_program *compile(void) {
  mk_program *p = test_prompt_program(&shape, 16, ROWS, ROWS);
  const size_t runs = 1 + ROWS / MK_LINE_TILE;
  cr_assert_geq(runs * p->instruction_count, (size_t)LONG, "%zu instructions: no threads are used for so few",
                p->instruction_count);
  return p;
}

typedef struct verdict {
  mk_status status;
  mk_verify_report report;
  char message[4096];
} verdict;

static void judge(const mk_program *p, verdict *out) {
  memset(out, 0, sizeof *out);
  out->status = mk_verify(p, &out->report);
  snprintf(out->message, sizeof out->message, "%s", out->status == MK_OK ? "" : mk_error_message());
}

/* Gives the process one core, and then what it had before. */
static void judge_by_one_core_and_all(const mk_program *p, verdict *one, verdict *all) {
  cpu_set_t before, single;
  cr_assert_eq(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&single);
  for (size_t core = 0; CPU_COUNT(&single) == 0; core++) {
    if (CPU_ISSET(core, &before)) {
      CPU_SET(core, &single);
    }
  }
  cr_assert_eq(sched_setaffinity(0, sizeof single, &single), 0);
  judge(p, one);
  cr_assert_eq(sched_setaffinity(0, sizeof before, &before), 0);
  judge(p, all);
}

static void expect_alike(const verdict *one, const verdict *all) {
  cr_expect_eq(one->status, all->status);
  cr_expect_str_eq(one->message, all->message);
  cr_expect_str_eq(one->report.rule, all->report.rule);
  cr_expect_eq(one->report.uid, all->report.uid);
  cr_expect_eq(one->report.sm, all->report.sm);
  cr_expect_eq(one->report.position, all->report.position);
  cr_expect_eq(one->report.instructions, all->report.instructions);
  cr_expect_eq(one->report.waits, all->report.waits);
  cr_expect_eq(one->report.signals, all->report.signals);
}

Test(verify_runs, a_sound_program) {
  mk_program *p = compile();
  verdict one, all;
  judge_by_one_core_and_all(p, &one, &all);
  cr_assert_eq(one.status, MK_OK, "%s", one.message);
  expect_alike(&one, &all);
  cr_expect_gt(one.report.accesses, 0);
  cr_expect_eq(one.report.accesses, all.report.accesses);
  cr_expect_eq(one.report.conflicts, all.report.conflicts);
  mk_program_free(p);
}

/* Of an instruction in the middle of the program: that of another tile of lines each time, so that the run that comes
 * upon it is another one, and with the last one left out, too, which only the run of a tile by itself may need. */
Test(verify_runs, a_wait_left_out) {
  uint32_t rejected = 0;
  for (uint32_t lines = 0; lines < ROWS / MK_LINE_TILE; lines++) {
    mk_program *p = compile();
    mk_instruction *in = NULL;
    for (size_t i = p->instruction_count / 2; in == NULL; i++) {
      cr_assert_lt(i, p->instruction_count);
      if (p->instructions[i].wait_count != 0 && mk_instruction_lines(p, &p->instructions[i]) == lines) {
        in = &p->instructions[i];
      }
    }
    in->waits[--in->wait_count] = (mk_wait){0};
    verdict one, all;
    judge_by_one_core_and_all(p, &one, &all);
    expect_alike(&one, &all);
    rejected += one.status == MK_ERR_REJECTED;
    mk_program_free(p);
  }
  cr_expect_gt(rejected, 0, "no program was rejected, so nothing was compared");
}
