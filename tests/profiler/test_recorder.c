/* The CPU machine's recorder: which steps and roles it keeps, that times add up, that a full track counts, and that
 * planted delays are found. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/tiny.h"
#include "tools/profiler/summary.h"

enum { EPOCHS = 9, FIRST = 2, STEPS = 4, RECORDS = 4096, DELAY_NS = 3000000 };

/* The trace of a run of a token loop on two SMs. */
static mk_trace *run(const mk_cpu_options *options, uint32_t first, uint32_t steps, uint32_t records,
                     uint32_t delay_uid) {
  test_tiny tiny;
  mk_trace *trace;
  test_tiny_loop(&tiny, 2);
  mk_cpu *cpu = test_tiny_machine(&tiny, options);
  cr_assert_eq(mk_cpu_trace_on(cpu, first, steps, records), MK_OK, "%s", mk_error_message());
  mk_cpu_delay(cpu, delay_uid, DELAY_NS);
  test_sequence sequence = test_tiny_sequence();
  cr_assert_eq(test_sequence_run(&sequence, cpu, 1, NULL, NULL), MK_OK, "%s",
               mk_error_message()); /* the last run counts */
  cr_assert_eq(test_sequence_run(&sequence, cpu, EPOCHS, NULL, NULL), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_cpu_trace_take(cpu, &trace), MK_OK, "%s", mk_error_message());
  mk_cpu_free(cpu);
  test_tiny_stop(&tiny);
  return trace;
}

static void expect_complete(const mk_trace *trace, bool roles_apart) {
  mk_summary *s;
  cr_assert_eq(mk_summary_new(trace, MK_MEDIAN_STEP, 0, &s), MK_OK, "%s", mk_error_message());
  cr_expect_str_empty(s->problem, "%s", s->problem);
  cr_expect(s->profile->serial);
  cr_expect_eq(s->profile->steps, STEPS);
  cr_expect(s->profile->token_us > 0);
  for (uint32_t sm = 0; sm < 2; sm++) {
    for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
      bool recorded = role == MK_ROLE_CONSUMER || (roles_apart && role != MK_TRACE_CONTROLLER);
      uint32_t instructions = recorded ? trace->program->queues[sm].count : 0;
      cr_expect_eq(mk_profile_track_of(s->profile, sm, role)->execution_count, STEPS * instructions);
    }
  }
  mk_summary_free(s);
}

Test(recorder, greedy) {
  mk_trace *trace = run(&(mk_cpu_options){0}, FIRST, STEPS, RECORDS, 0);
  cr_expect_eq(trace->first_step, FIRST);
  cr_expect_eq(trace->steps, STEPS);
  cr_expect_eq(trace->launch_steps, EPOCHS);
  cr_expect_eq(trace->first_position, FIRST + 1, "a step came before the run");
  expect_complete(trace, false);
  /* SM 1 needs a value of SM 0, which runs first; SM 0 waits for one of SM 1. */
  uint32_t waits[2] = {0};
  for (uint32_t sm = 0; sm < 2; sm++) {
    const mk_trace_track *track = mk_trace_track_of(trace, sm, MK_ROLE_CONSUMER);
    for (uint32_t i = 0; i < track->count; i++) {
      waits[sm] += track->records[i].activity == MK_ACTIVITY_STAMP;
    }
  }
  cr_expect_geq(waits[0], STEPS);
  void *data;
  size_t size;
  mk_trace *again;
  cr_assert_eq(mk_trace_serialize(trace, &data, &size), MK_OK);
  cr_assert_eq(mk_trace_parse(data, size, &again), MK_OK, "%s", mk_error_message());
  mk_trace_free(again);
  mk_free(data);
  mk_trace_free(trace);
}

Test(recorder, roles_apart) {
  mk_trace *trace = run(&(mk_cpu_options){.seed = 5}, FIRST, STEPS, RECORDS, 0);
  expect_complete(trace, true);
  mk_trace_free(trace);
}

Test(recorder, windows) {
  mk_trace *trace = run(&(mk_cpu_options){0}, EPOCHS - 1, STEPS, RECORDS, 0);
  cr_expect_eq(trace->steps, 1, "the run ends before the window");
  mk_trace_free(trace);
  trace = run(&(mk_cpu_options){0}, EPOCHS, STEPS, RECORDS, 0);
  cr_expect_eq(trace->steps, 0);
  mk_trace_free(trace);
}

Test(recorder, full_tracks_count) {
  mk_trace *trace = run(&(mk_cpu_options){0}, FIRST, STEPS, 5, 0);
  mk_summary *s;
  const mk_trace_track *track = mk_trace_track_of(trace, 0, MK_ROLE_CONSUMER);
  cr_expect_eq(track->count, 5);
  cr_expect_geq(track->dropped, STEPS * 5 - 5);
  cr_assert_eq(mk_summary_new(trace, MK_MEDIAN_STEP, 0, &s), MK_OK, "%s", mk_error_message());
  cr_expect_not_null(strstr(s->problem, "dropped"), "%s", s->problem);
  mk_summary_free(s);
  mk_trace_free(trace);
}

/* The slow instruction is the first finding and on the critical path, whichever it is. */
Test(recorder, planted_delays) {
  static const uint32_t uids[] = {101, 105, 106, 108}; /* qkv, next of SM 0; qkv, head of SM 1 */
  for (size_t i = 0; i < sizeof uids / sizeof uids[0]; i++) {
    mk_trace *trace = run(&(mk_cpu_options){0}, FIRST, STEPS, RECORDS, uids[i]);
    mk_summary *s;
    cr_assert_eq(mk_summary_new(trace, MK_MEDIAN_STEP, 0, &s), MK_OK, "%s", mk_error_message());
    cr_assert_gt(s->outlier_count, 0);
    cr_expect_eq(trace->program->instructions[s->outliers[0].instruction].uid, uids[i]);
    cr_expect_not(s->outliers[0].once);
    bool on_path = false;
    for (size_t j = 0; j < s->path.count; j++) {
      const mk_path_part *part = &s->path.parts[j];
      on_path |= trace->program->instructions[part->instruction].uid == uids[i] && part->end - part->start >= DELAY_NS;
    }
    cr_expect(on_path, "instruction %u", uids[i]);
    mk_summary_free(s);
    mk_trace_free(trace);
  }
}

Test(recorder, off) {
  test_tiny tiny;
  mk_trace *trace;
  test_tiny_loop(&tiny, 2);
  mk_cpu *cpu = test_tiny_machine(&tiny, &(mk_cpu_options){0});
  cr_expect_eq(mk_cpu_trace_take(cpu, &trace), MK_ERR_USAGE);
  cr_expect_null(trace);
  mk_cpu_free(cpu);
  test_tiny_stop(&tiny);
}
