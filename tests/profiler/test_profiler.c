/* The profiler on made-up traces, where every time is known: accounting, bytes, who waited for whom, the critical path,
 * planted delays, and that memory may run out anywhere. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/model.h"
#include "tests/support/traced.h"
#include "tools/lib/bench.h"
#include "tools/profiler/summary.h"

enum { SMS = 8, STEPS = 5, MOST_TEXT = 1 << 20 };

typedef struct fixture {
  mk_program *program;
  mk_trace *trace;
  mk_summary *summary;
} fixture;

static void start(fixture *f, uint32_t delay_uid) {
  f->program = test_traced_program(SMS);
  f->trace = test_traced_make(f->program, &(test_traced){.steps = STEPS, .delay_uid = delay_uid, .delay_ns = 20000});
  cr_assert_eq(mk_summary_new(f->trace, MK_MEDIAN_STEP, 0, &f->summary), MK_OK, "%s", mk_error_message());
}

static void stop(fixture *f) {
  mk_summary_free(f->summary);
  mk_trace_free(f->trace);
  mk_program_free(f->program);
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b)); }

Test(profiler, accounts_for_all_time) {
  fixture f;
  start(&f, 0);
  const mk_profile *p = f.summary->profile;
  cr_expect_eq(mk_profile_check(p), MK_OK, "%s", mk_error_message());
  cr_expect_str_empty(f.summary->problem);
  cr_expect_not(p->serial);
  cr_expect_eq(p->steps, STEPS);
  for (uint32_t sm = 0; sm < SMS; sm++) {
    for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
      const mk_trace_track *from = mk_trace_track_of(f.trace, sm, role);
      const mk_profile_track *track = mk_profile_track_of(p, sm, role);
      double sum = 0;
      for (uint32_t i = 0; i < track->count; i++) {
        sum += (double)(track->intervals[i].end - track->intervals[i].start);
      }
      cr_expect(near(sum, (double)(from->records[from->count - 1].time - from->records[0].time)));
      cr_expect_eq(track->execution_count, role == MK_TRACE_CONTROLLER ? 0 : STEPS * f.program->queues[sm].count);
    }
  }
  double sum = 0;
  for (uint32_t a = 0; a < MK_ACTIVITY_COUNT; a++) {
    sum += f.summary->statistics->by_activity[MK_ROLE_CONSUMER][a];
  }
  cr_expect(near(sum, p->token_us), "%g of %g us", sum, p->token_us);
  stop(&f);
}

Test(profiler, names_what_is_missing) {
  fixture f;
  start(&f, 0);
  mk_profile *p;
  mk_trace_track *track = mk_trace_track_of(f.trace, 3, MK_ROLE_STORER);
  mk_trace_record saved = track->records[track->count / 2];

  track->dropped = 7;
  cr_assert_eq(mk_profile_new(f.trace, &p), MK_OK);
  cr_expect_eq(mk_profile_check(p), MK_ERR_FILE);
  cr_expect_not_null(strstr(mk_error_message(), "SM 3, storer: 7 records were dropped"), "%s", mk_error_message());
  mk_profile_free(p);
  track->dropped = 0;

  track->count--;
  cr_assert_eq(mk_profile_new(f.trace, &p), MK_OK);
  cr_expect_eq(mk_profile_check(p), MK_ERR_FILE);
  cr_expect_not_null(strstr(mk_error_message(), "boundary"), "%s", mk_error_message());
  mk_profile_free(p);
  track->count++;

  /* Records that go back in time overlap; a file cannot hold them. */
  track->records[track->count / 2].time = saved.time + f.trace->tracks[1].records[track->count / 2].time;
  cr_assert_eq(mk_profile_new(f.trace, &p), MK_OK);
  cr_expect_eq(mk_profile_check(p), MK_ERR_FILE);
  cr_expect_not_null(strstr(mk_error_message(), "add up"), "%s", mk_error_message());
  mk_profile_free(p);
  track->records[track->count / 2] = saved;

  track->records[track->count / 2].uid = track->records[2].uid;
  cr_assert_eq(mk_profile_new(f.trace, &p), MK_OK);
  cr_expect_eq(mk_profile_check(p), MK_ERR_FILE);
  cr_expect_not_null(strstr(mk_error_message(), "out of order"), "%s", mk_error_message());
  mk_profile_free(p);
  stop(&f);
}

/* Weight bytes are those that mkvm bench states; blocks of KV count when tokens before the position lie in them. */
Test(profiler, bytes) {
  fixture f;
  start(&f, 0);
  double weights = 0, blocks = 0;
  for (uint32_t i = 0; i < f.program->instruction_count; i++) {
    double bytes = mk_profile_bytes(f.summary->profile, i, 4); /* position 64: one block is full */
    if (f.program->instructions[i].opcode == MK_OP_ATTENTION) {
      blocks += bytes;
    } else {
      weights += bytes;
    }
  }
  mk_config config = test_model_config(TEST_MODEL_TINY);
  cr_expect(near(weights, mk_bench_weight_bytes(f.program)));
  cr_expect(near(blocks, 64.0 * 2 * 2 * config.head_dim * config.kv_heads * config.layers), "%g bytes", blocks);
  stop(&f);
}

/* How long the sequences of several rows were a trace does not tell. */
Test(profiler, bytes_of_several_rows) {
  fixture f;
  start(&f, 0);
  f.trace->program->ranges.batch.high = 4;
  for (uint32_t i = 0; i < f.program->instruction_count; i++) {
    cr_expect(f.program->instructions[i].opcode != MK_OP_ATTENTION || mk_profile_bytes(f.summary->profile, i, 4) == 0);
  }
  char *text = test_traced_text(f.summary, mk_summary_print_short);
  cr_expect_not_null(strstr(text, "MB of weights, KV caches left out; %band"), "%s", text);
  free(text);
  stop(&f);
}

/* The parts of the path follow each other, from a boundary to the end of the last `next`. */
static void expect_path(const mk_summary *s) {
  const mk_path *path = &s->path;
  uint64_t end = 0;
  cr_assert_gt(path->count, 10);
  for (size_t i = 1; i < path->count; i++) {
    cr_expect_eq(path->parts[i].start, path->parts[i - 1].end, "part %zu", i);
  }
  for (uint32_t sm = 0; sm < SMS; sm++) {
    const mk_profile_track *track = mk_profile_track_of(s->profile, sm, MK_ROLE_CONSUMER);
    for (uint32_t i = 0; i < track->execution_count; i++) {
      const mk_execution *e = &track->executions[i];
      end = e->step == path->step && e->finish > end ? e->finish : end;
    }
  }
  cr_expect_eq(path->parts[path->count - 1].end, end);
  double us = (double)(end - path->parts[0].start) * 1e-3;
  cr_expect(us > 0.9 * s->profile->token_us && us < 1.3 * s->profile->token_us, "%g of %g us", us,
            s->profile->token_us);
}

Test(profiler, critical_path) {
  fixture f;
  start(&f, 0);
  expect_path(f.summary);
  double totals[MK_OP_COUNT][MK_ACTIVITY_COUNT], hops = 0, others = 0;
  mk_path_totals(f.summary, totals);
  for (uint32_t opcode = 0; opcode < MK_OP_COUNT; opcode++) {
    hops += totals[opcode][MK_ACTIVITY_STAMP];
    others += totals[opcode][MK_ACTIVITY_RESULT_FULL] + totals[opcode][MK_ACTIVITY_STEP_STATE];
  }
  size_t waits = 0;
  for (size_t i = 0; i < f.summary->path.count; i++) {
    const mk_path_part *part = &f.summary->path.parts[i];
    waits += part->from != MK_NO_INSTRUCTION;
    cr_expect(part->from == MK_NO_INSTRUCTION || part->end - part->start <= 300, "a hop takes 0.3 us");
  }
  cr_expect_gt(waits, 4);
  cr_expect(hops > 0.2 * (double)waits && hops <= 0.3 * (double)waits, "%g us in %zu waits", hops, waits);
  cr_expect_eq(others, 0, "a wait within an SM leads to who ended it");
  stop(&f);
}

static uint32_t instruction_of(const mk_program *program, mk_opcode opcode, uint32_t which) {
  for (uint32_t i = 0; i < program->instruction_count; i++) {
    if (program->instructions[i].opcode == opcode && which-- == 0) {
      return i;
    }
  }
  cr_assert_fail("no such instruction");
  return 0;
}

static void expect_words_after(const char *text, const char *place, const char *words) {
  const char *from = strstr(text, place);
  cr_assert_not_null(from, "%s", text);
  cr_expect_not_null(strstr(from, words), "no \"%s\" after \"%s\": %s", words, place, text);
}

/* A delay of 20 us in one instruction comes first among the findings and lies on the printed critical path. */
Test(profiler, planted_delays) {
  static const mk_opcode opcodes[] = {MK_OP_QKV, MK_OP_ATTENTION, MK_OP_GLU, MK_OP_HEAD, MK_OP_NEXT, MK_OP_LINEAR_ADD};
  mk_program *program = test_traced_program(SMS);
  for (size_t i = 0; i < sizeof opcodes / sizeof opcodes[0]; i++) {
    fixture f;
    char label[MK_LABEL_SIZE], words[128];
    uint32_t instruction = instruction_of(program, opcodes[i], 1);
    start(&f, program->instructions[instruction].uid);
    cr_assert_geq(f.summary->outlier_count, 1, "%s", mk_opcode_text(opcodes[i]));
    const mk_outlier *first = &f.summary->outliers[0];
    cr_expect_eq(first->instruction, instruction);
    cr_expect(first->work - first->peers > 19 && first->work - first->peers < 21, "%g us, peers %g us", first->work,
              first->peers);
    expect_path(f.summary);
    bool on_path = false;
    for (size_t j = 0; j < f.summary->path.count; j++) {
      const mk_path_part *part = &f.summary->path.parts[j];
      on_path |=
          part->instruction == instruction && part->activity == MK_ACTIVITY_WORK && part->end - part->start >= 20000;
    }
    cr_expect(on_path, "%s", mk_opcode_text(opcodes[i]));

    char *text = test_traced_text(f.summary, mk_summary_print);
    mk_profile_label(f.summary->profile, instruction, label);
    snprintf(words, sizeof words, "findings\n  1. SM %u, consumer: %s works 2", f.summary->profile->sm_of[instruction],
             label);
    cr_expect_not_null(strstr(text, words), "%s: %s", words, text);
    expect_words_after(text, "longest parts", label);
    free(text);
    stop(&f);
  }
  mk_program_free(program);
}

/* Everybody waits for the planted instruction, and is told so. */
Test(profiler, longest_wait) {
  mk_program *program = test_traced_program(SMS);
  fixture f;
  uint32_t instruction = instruction_of(program, MK_OP_GLU, 2);
  start(&f, program->instructions[instruction].uid);
  mk_program_free(program);
  cr_assert_gt(f.summary->waits.count, 0);
  const mk_long_wait *longest = &f.summary->waits.longest[0];
  cr_expect_eq(longest->publisher, instruction);
  cr_expect_eq(longest->publisher_role, MK_ROLE_STORER);
  cr_expect(longest->longest > 15 && longest->longest < 25, "%g us", longest->longest);
  cr_expect(near((double)longest->example.end * 1e-3 - longest->published, 0.3));
  cr_expect_neq(longest->sm, f.summary->profile->sm_of[instruction]);
  for (size_t i = 1; i < f.summary->waits.count; i++) {
    cr_expect_leq(f.summary->waits.longest[i].longest, f.summary->waits.longest[i - 1].longest);
  }
  stop(&f);
}

Test(profiler, difference) {
  fixture a, b;
  start(&a, 0);
  start(&b, a.program->instructions[instruction_of(a.program, MK_OP_GLU, 2)].uid);
  char *text = calloc(1, MOST_TEXT);
  FILE *file = fmemopen(text, MOST_TEXT, "w");
  cr_expect_eq(mk_summary_print_difference(a.summary, b.summary, file), MK_OK);
  fclose(file);
  const char *stages = strstr(text, "stages");
  cr_assert_not_null(stages, "%s", text);
  const char *line = strchr(stages, '\n') + 1;
  uint32_t layer = a.program->instructions[instruction_of(a.program, MK_OP_GLU, 2)].layer;
  char words[32];
  snprintf(words, sizeof words, "  glu act, layer %u ", layer);
  cr_expect_eq(strncmp(line, words, strlen(words)), 0, "%s", text);
  free(text);
  stop(&a);
  stop(&b);
}

Test(profiler, json_and_texts) {
  fixture f;
  start(&f, 0);
  snprintf(f.trace->facts.model, sizeof f.trace->facts.model, "a\x1b[31m \"model\"\xc2\x9b <b>");
  char *text = test_traced_text(f.summary, mk_summary_print);
  cr_expect_not_null(strstr(text, "a?[31m \"model\"?? <b>"), "%s", text);
  cr_expect_null(strchr(text, 0x1b));
  free(text);
  json_t *json = mk_summary_json(f.summary);
  cr_assert_not_null(json);
  cr_expect_eq(json_array_size(json_object_get(json, "stages")), f.summary->statistics->stage_count);
  cr_expect_eq(json_array_size(json_object_get(json_object_get(json, "critical_path"), "parts")),
               f.summary->path.count);
  json_decref(json);
  text = test_traced_text(f.summary, mk_summary_print_path);
  size_t lines = 0;
  for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++) {
    lines++;
  }
  cr_expect_eq(lines, f.summary->path.count + 3);
  free(text);
  mk_summary *other;
  cr_expect_eq(mk_summary_new(f.trace, 2, 0, &other), MK_ERR_USAGE);
  cr_expect_eq(mk_summary_new(f.trace, 3 + STEPS, 0, &other), MK_ERR_USAGE);
  cr_assert_eq(mk_summary_new(f.trace, 3 + STEPS - 1, 4.6e12, &other), MK_OK);
  cr_expect_eq(other->path.step, STEPS - 1);
  cr_expect(other->bandwidth_given);
  mk_summary_free(other);
  stop(&f);
}

Test(profiler, out_of_memory, .timeout = MK_HANG_SECONDS) {
  fixture f;
  start(&f, 0);
  for (uint64_t n = 1;; n++) {
    mk_summary *summary;
    mk_alloc_fail_at(n, false);
    mk_status status = mk_summary_new(f.trace, MK_MEDIAN_STEP, 0, &summary);
    mk_alloc_fail_at(0, false);
    cr_assert(status == MK_OK || (status == MK_ERR_RUNTIME && summary == NULL));
    if (status == MK_OK) {
      mk_summary_free(summary);
      break;
    }
    n += n / 16; /* later ones are like each other */
  }
  stop(&f);
}

/* A trace without any record, and one of a program that idles. */
Test(profiler, empty) {
  mk_program *program = test_traced_program(2);
  mk_trace *trace;
  mk_summary *summary;
  cr_assert_eq(mk_trace_new(program, 2, &trace), MK_OK);
  cr_assert_eq(mk_summary_new(trace, MK_MEDIAN_STEP, 0, &summary), MK_OK, "%s", mk_error_message());
  cr_expect_not_null(strstr(summary->problem, "no step"), "%s", summary->problem);
  free(test_traced_text(summary, mk_summary_print));
  json_t *json = mk_summary_json(summary);
  cr_expect_not_null(json);
  json_decref(json);
  mk_summary_free(summary);
  mk_trace_free(trace);
  mk_program_free(program);
}
