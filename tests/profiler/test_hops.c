/* Time per hop, within a rank and between two, on made-up traces in which every hop is known; who ended a wait, against
 * a look at every instruction; and that ranks are named wherever SMs are. */
#define _GNU_SOURCE /* memmem */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/traced.h"
#include "tools/profiler/page.h"
#include "tools/profiler/perfetto.h"
#include "tools/profiler/picture.h"

enum { RANKS = 2, SMS = 4, STEPS = 3, REMOTE = 600, DONE = 5000 };

typedef struct fixture {
  mk_program *program;
  mk_trace *trace;
  mk_summary *summary;
} fixture;

static void summarise(fixture *f) {
  cr_assert_eq(mk_summary_new(f->trace, MK_MEDIAN_STEP, 0, &f->summary), MK_OK, "%s", mk_error_message());
  cr_expect_str_empty(f->summary->problem, "%s", f->summary->problem);
}

static void start(fixture *f, uint32_t ranks, uint32_t sms) {
  f->program = test_traced_program_of_ranks(ranks, sms);
  f->trace = test_traced_make(f->program, &(test_traced){.steps = STEPS, .remote_ns = REMOTE});
  summarise(f);
}

static void stop(fixture *f) {
  mk_summary_free(f->summary);
  mk_trace_free(f->trace);
  mk_program_free(f->program);
}

/* Without any, zeros. */
static mk_hop_time hops_of(const fixture *f, uint32_t opcode, mk_hop_kind kind) {
  for (size_t i = 0; i < f->summary->waits.hop_count; i++) {
    if (f->summary->waits.hops[i].opcode == opcode) {
      return f->summary->waits.hops[i].of[kind];
    }
  }
  return (mk_hop_time){0};
}

static void expect_hops(const fixture *f, uint32_t opcode, mk_hop_kind kind, uint64_t count, double p50, double p90) {
  const mk_hop_time hop = hops_of(f, opcode, kind);
  cr_expect(hop.count == count && fabs(hop.p50 - p50) < 1e-9 && fabs(hop.p90 - p90) < 1e-9,
            "%s, %s: %lu hops, p50 %g, p90 %g", mk_opcode_text(opcode), kind == MK_HOP_LOCAL ? "local" : "remote",
            (unsigned long)hop.count, hop.p50, hop.p90);
}

/* Whether the instruction writes something that the reader reads from that buffer. */
static bool feeds(const mk_instruction *writer, const mk_instruction *reader, uint32_t buffer) {
  const mk_opcode_info *out = mk_opcode_lookup(writer->opcode), *in = mk_opcode_lookup(reader->opcode);
  for (uint32_t o = 0; o < out->operand_count; o++) {
    for (uint32_t i = 0; i < in->operand_count; i++) {
      const mk_operand *to = &writer->operands[o], *from = &reader->operands[i];
      if (out->operands[o].access != MK_ACCESS_READ && in->operands[i].access == MK_ACCESS_READ &&
          to->buffer == buffer && from->buffer == buffer && to->row < from->row + from->rows &&
          from->row < to->row + to->rows && to->col < from->col + from->cols && from->col < to->col + to->cols) {
        return true;
      }
    }
  }
  return false;
}

/* What a look at every instruction gives: in these traces whatever is waited for is there at the end of the wait. */
static const mk_execution *last_writer(const mk_profile *p, const mk_interval *wait) {
  const mk_program *program = p->program;
  const mk_execution *last = NULL;
  for (uint32_t i = 0; i < program->instruction_count; i++) {
    if (feeds(&program->instructions[i], &program->instructions[wait->instruction], wait->edge)) {
      const mk_execution *e = mk_profile_find(p, i, wait->step, mk_publishing_role(program->instructions[i].opcode));
      cr_assert_not_null(e);
      last = last == NULL || e->finish > last->finish ? e : last;
    }
  }
  return last;
}

/* Counts the hops of a trace wait by wait, and compares each wait's publisher. */
static void count_hops(const fixture *f, uint64_t counts[MK_OP_COUNT][MK_HOP_KINDS]) {
  const mk_profile *p = f->summary->profile;
  memset(counts, 0, MK_OP_COUNT * sizeof counts[0]);
  for (uint32_t t = 0; t < p->sms * MK_TRACE_ROLES; t++) {
    for (uint32_t i = 0; i < p->tracks[t].count; i++) {
      const mk_interval *in = &p->tracks[t].intervals[i];
      uint32_t role;
      if (in->activity != MK_ACTIVITY_STAMP) {
        continue;
      }
      const mk_execution *want = last_writer(p, in), *found = mk_edges_publisher(f->summary->edges, in, &role);
      cr_assert(want != NULL && found == want, "track %u, interval %u: another publisher", t, i);
      bool remote = t / MK_TRACE_ROLES / SMS != p->sm_of[want->instruction] / SMS && p->program->machine.ranks > 1;
      if (want->finish > in->start) {
        counts[p->program->instructions[in->instruction].opcode][remote]++;
        counts[0][remote]++;
      }
    }
  }
}

TestSuite(hops, .timeout = MK_HANG_SECONDS);

Test(hops, of_one_rank) {
  fixture f = {0};
  uint64_t counts[MK_OP_COUNT][MK_HOP_KINDS];
  start(&f, 1, RANKS * SMS);
  count_hops(&f, counts);
  cr_expect_gt(counts[0][MK_HOP_LOCAL], 20);
  for (uint32_t opcode = 0; opcode < MK_OP_COUNT; opcode++) {
    uint64_t count = counts[opcode][MK_HOP_LOCAL];
    double us = count == 0 ? 0 : TEST_TRACED_HOP * 1e-3;
    expect_hops(&f, opcode, MK_HOP_LOCAL, count, us, us);
    expect_hops(&f, opcode, MK_HOP_REMOTE, 0, 0, 0);
  }
  stop(&f);
}

/* Where the last one of all that is waited for comes from another rank, it ends the wait. Where it comes from the own
 * one, something from the other one may still be on its way: such a hop looks longer than it is. */
Test(hops, of_two_ranks) {
  fixture f = {0};
  uint64_t counts[MK_OP_COUNT][MK_HOP_KINDS];
  start(&f, RANKS, SMS);
  count_hops(&f, counts);
  cr_expect(counts[0][MK_HOP_LOCAL] > 10 && counts[0][MK_HOP_REMOTE] > 10);
  for (uint32_t opcode = 0; opcode < MK_OP_COUNT; opcode++) {
    const mk_hop_time local = hops_of(&f, opcode, MK_HOP_LOCAL);
    uint64_t remote = counts[opcode][MK_HOP_REMOTE];
    double us = remote == 0 ? 0 : (TEST_TRACED_HOP + REMOTE) * 1e-3;
    expect_hops(&f, opcode, MK_HOP_REMOTE, remote, us, us);
    cr_expect_eq(local.count, counts[opcode][MK_HOP_LOCAL]);
    cr_expect(local.count == 0 || (local.p50 >= TEST_TRACED_HOP * 1e-3 && local.p90 <= us + REMOTE * 1e-3));
  }
  stop(&f);
}

/* By hand: instructions of one layer, of which the readers wait for what the writers make. */

/* The first of that opcode on the SM that writes the buffer, or reads it. */
static uint32_t find(const mk_program *program, mk_opcode opcode, uint32_t slot, uint32_t buffer, uint32_t sm) {
  for (uint32_t i = 0; i < program->queues[sm].count; i++) {
    uint32_t at = program->queues[sm].first + i;
    if (program->instructions[at].opcode == opcode && program->instructions[at].operands[slot].buffer == buffer) {
      return at;
    }
  }
  cr_assert_fail("no such instruction on SM %u", sm);
  return 0;
}

static uint32_t mid_of(const mk_program *program) {
  for (uint32_t i = 0; i < program->instruction_count; i++) {
    if (program->instructions[i].opcode == MK_OP_GLU) {
      return program->instructions[i].operands[MK_SLOT_GLU_x].buffer;
    }
  }
  cr_assert_fail("no glu");
  return 0;
}

static void begin(fixture *f, uint32_t ranks, uint32_t sms, double alignment_ns) {
  f->program = test_traced_program_of_ranks(ranks, sms);
  cr_assert_eq(mk_trace_new(f->program, ranks * sms, &f->trace), MK_OK, "%s", mk_error_message());
  f->trace->steps = f->trace->launch_steps = 1;
  f->trace->alignment_ns = alignment_ns;
}

/* The SM's writer is done at that time, its storer last. */
static void write_until(fixture *f, uint32_t sm, uint64_t done) {
  uint32_t writer = find(f->program, MK_OP_LINEAR_ADD, MK_SLOT_LINEAR_ADD_out, mid_of(f->program), sm);
  test_traced_record_part(f->trace, writer, MK_ROLE_CONSUMER, 0, 0, done - 300, MK_ACTIVITY_WORK, 0);
  test_traced_record_part(f->trace, writer, MK_ROLE_STORER, 200, done - 300, done, MK_ACTIVITY_RESULT_FULL, 0);
}

/* The SM's reader waits from one time to the other. */
static void wait_until(fixture *f, uint32_t sm, uint64_t from, uint64_t until) {
  uint32_t mid = mid_of(f->program), reader = find(f->program, MK_OP_GLU, MK_SLOT_GLU_x, mid, sm);
  test_traced_record_part(f->trace, reader, MK_ROLE_CONSUMER, from, until, until + 500, MK_ACTIVITY_STAMP, mid);
}

Test(hops, one_by_one) {
  enum { ALIGNMENT = 200 };
  static const struct {
    uint32_t writer, reader; /* SMs: 0 to 3 are rank 0, 4 to 7 rank 1 */
    uint64_t from, until;    /* the reader waits; the writer is done at DONE */
    mk_hop_kind kind;        /* MK_HOP_KINDS: it is no hop */
    double us;
  } cases[] = {
      {1, 2, DONE - 1000, DONE + 700, MK_HOP_LOCAL, 0.7},
      {5, 6, DONE - 1000, DONE + 700, MK_HOP_LOCAL, 0.7},
      {1, 6, DONE - 1000, DONE + 1900, MK_HOP_REMOTE, 1.9},
      {5, 2, DONE - 1, DONE + 1900, MK_HOP_REMOTE, 1.9},
      /* The value may have been there. */
      {1, 2, DONE, DONE + 700, MK_HOP_KINDS, 0},
      {1, 6, DONE + 600, DONE + 700, MK_HOP_KINDS, 0},
      /* Clocks may differ, but by no more. */
      {1, 2, DONE - 1000, DONE - ALIGNMENT, MK_HOP_LOCAL, -0.2},
      {1, 2, DONE - 1000, DONE - ALIGNMENT - 1, MK_HOP_KINDS, 0},
      {1, 6, DONE - 4000, DONE - 3000, MK_HOP_KINDS, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    fixture f = {0};
    begin(&f, RANKS, SMS, ALIGNMENT);
    write_until(&f, cases[i].writer, DONE);
    wait_until(&f, cases[i].reader, cases[i].from, cases[i].until);
    summarise(&f);
    for (uint32_t opcode = 0; opcode < MK_OP_COUNT; opcode++) {
      for (mk_hop_kind kind = 0; kind < MK_HOP_KINDS; kind++) {
        bool is = (opcode == 0 || opcode == MK_OP_GLU) && kind == cases[i].kind;
        expect_hops(&f, opcode, kind, is, is ? cases[i].us : 0, is ? cases[i].us : 0);
      }
    }
    stop(&f);
  }
}

/* Of two publishers the one that was done last counts; a wait for which nobody's end was recorded is no hop. */
Test(hops, of_the_last_publisher) {
  fixture f = {0};
  begin(&f, RANKS, SMS, 0);
  write_until(&f, 0, DONE);
  write_until(&f, 4, DONE + 300);
  wait_until(&f, 1, 400, DONE + 1500);
  wait_until(&f, 5, 400, DONE + 1100);
  wait_until(&f, 6, 400, DONE + 200); /* ended by SM 0 */
  summarise(&f);
  expect_hops(&f, MK_OP_GLU, MK_HOP_LOCAL, 1, 0.8, 0.8);
  expect_hops(&f, MK_OP_GLU, MK_HOP_REMOTE, 1, 1.2, 1.2);
  stop(&f);
  begin(&f, RANKS, SMS, 0);
  wait_until(&f, 1, 400, DONE);
  summarise(&f);
  expect_hops(&f, 0, MK_HOP_LOCAL, 0, 0, 0);
  expect_hops(&f, 0, MK_HOP_REMOTE, 0, 0, 0);
  stop(&f);
}

Test(hops, quantiles) {
  enum { READERS = 11 };
  fixture f = {0};
  begin(&f, 1, READERS + 1, 0);
  write_until(&f, 0, DONE);
  for (uint32_t sm = 1; sm <= READERS; sm++) {
    wait_until(&f, sm, 400, DONE + sm * 100);
  }
  summarise(&f);
  expect_hops(&f, 0, MK_HOP_LOCAL, READERS, 0.6, 1);
  stop(&f);
}

/* Values of wide steps come by counters. */
Test(hops, by_a_counter) {
  fixture f = {0};
  begin(&f, RANKS, SMS, 0);
  const mk_program *p = f.program;
  uint32_t mid = mid_of(p), signaller = 0, waiter = find(p, MK_OP_GLU, MK_SLOT_GLU_x, mid, RANKS * SMS - 1);
  while (signaller < p->instruction_count && p->instructions[signaller].signal_count == 0) {
    signaller++;
  }
  cr_assert_lt(signaller, p->instruction_count);
  cr_assert_eq(mk_queue_rank(p, test_traced_sm(p, signaller)), 0);
  uint32_t role = mk_publishing_role(p->instructions[signaller].opcode);
  test_traced_record_part(f.trace, signaller, role, 0, 0, DONE, MK_ACTIVITY_WORK, 0);
  test_traced_record_part(f.trace, waiter, MK_ROLE_CONSUMER, 400, DONE + 1300, DONE + 1500, MK_ACTIVITY_COUNTER,
                          p->instructions[signaller].signals[0].counter);
  summarise(&f);
  expect_hops(&f, MK_OP_GLU, MK_HOP_LOCAL, 0, 0, 0);
  expect_hops(&f, MK_OP_GLU, MK_HOP_REMOTE, 1, 1.3, 1.3);
  stop(&f);
}

static void expect_text(const mk_summary *summary, void (*print)(const mk_summary *, FILE *), const char *words) {
  char *text = test_traced_text(summary, print);
  cr_expect_not_null(strstr(text, words), "no \"%s\" in\n%s", words, text);
  free(text);
}

static double number(const json_t *json, const char *object, const char *key) {
  return json_number_value(json_object_get(json_object_get(json, object), key));
}

/* Several hops, and where they are shown. */
Test(hops, shown) {
  fixture f = {0};
  begin(&f, RANKS, SMS, 250);
  write_until(&f, 0, DONE);
  for (uint32_t sm = 1; sm < RANKS * SMS; sm++) { /* 0.1 to 0.3 us on rank 0, 0.4 to 0.7 on rank 1 */
    wait_until(&f, sm, 400, DONE + sm * 100);
  }
  summarise(&f);
  expect_hops(&f, MK_OP_GLU, MK_HOP_LOCAL, 3, 0.2, 0.3);
  expect_hops(&f, MK_OP_GLU, MK_HOP_REMOTE, 4, 0.5, 0.7);
  expect_text(f.summary, mk_summary_print_short,
              "\nhops to, us    local, per step      p50      p90  remote, per step      p50      p90\n"
              "all                        3.0     0.20     0.30               4.0     0.50     0.70\n"
              "glu                        3.0     0.20     0.30               4.0     0.50     0.70\n"
              "from the end of who published last to the end of the wait; clocks agree within 0.25 us, and less means "
              "little\na local hop may be the longer for a word of another rank");
  json_t *json = mk_summary_json(f.summary);
  const json_t *glu = json_array_get(json_object_get(json, "hops"), 1);
  cr_expect_str_eq(json_string_value(json_object_get(glu, "opcode")), "glu");
  cr_expect(number(glu, "local", "count") == 3 && number(glu, "remote", "count") == 4);
  cr_expect_float_eq(number(glu, "local", "p50_us"), 0.2, 1e-9);
  cr_expect_float_eq(number(glu, "local", "p90_us"), 0.3, 1e-9);
  cr_expect_float_eq(number(glu, "remote", "p50_us"), 0.5, 1e-9);
  cr_expect_float_eq(number(glu, "remote", "p90_us"), 0.7, 1e-9);
  json_decref(json);
  stop(&f);
}

static bool holds(const void *data, size_t length, const char *text) {
  return memmem(data, length, text, strlen(text)) != NULL;
}

static mk_status make_picture(const mk_summary *summary, void **data, size_t *length) {
  return mk_picture_make(summary, (mk_picture_window){0}, data, length);
}

/* "SM 7" with one rank, which no text mentions, and "rank 1, SM 3" with two. */
Test(hops, ranks_are_named) {
  for (uint32_t ranks = 1; ranks <= RANKS; ranks++) {
    fixture f = {0};
    void *data;
    size_t length;
    start(&f, ranks, RANKS * SMS / ranks);
    char *text = test_traced_text(f.summary, mk_summary_print),
         *path = test_traced_text(f.summary, mk_summary_print_path);
    json_t *json = mk_summary_json(f.summary);
    char *dumped = json_dumps(json, JSON_COMPACT);
    if (ranks == 1) {
      cr_expect_not_null(strstr(text, "; 8 SMs; "));
      cr_expect(strstr(text, "rank") == NULL && strstr(path, "rank") == NULL && strstr(text, "remote") == NULL);
      cr_expect(strstr(dumped, "\"rank\"") == NULL && strstr(dumped, "\"remote\"") == NULL);
      cr_expect_not_null(strstr(dumped, "\"sm\":4"));
    } else {
      cr_expect_not_null(strstr(text, "; 8 SMs of 2 ranks; "));
      cr_expect_not_null(strstr(text, "clocks   of two SMs, on two ranks too, agree within 32 ns"));
      cr_expect_not_null(strstr(text, "for rank 1, SM "));
      cr_expect(strstr(path, "  rank 0, SM ") != NULL && strstr(path, " <- rank 1, SM ") != NULL, "%s", path);
      cr_expect_null(strstr(path, "SM 4"));
      cr_expect_not_null(strstr(dumped, "\"rank\":1,\"sm\":3"));
      cr_expect_null(strstr(dumped, "\"sm\":4"));
    }
    cr_expect_eq(json_integer_value(json_object_get(json_object_get(json, "trace"), "ranks")), ranks);
    json_decref(json);
    free(dumped);
    free(path);
    free(text);
    cr_assert_eq(mk_perfetto_make(f.summary, &data, &length), MK_OK, "%s", mk_error_message());
    cr_expect_eq(holds(data, length, "rank 1, SM 3"), ranks > 1);
    cr_expect_eq(holds(data, length, "SM 7"), ranks == 1);
    mk_free(data);
    cr_assert_eq(make_picture(f.summary, &data, &length), MK_OK, "%s", mk_error_message());
    cr_expect_eq(holds(data, length, ">rank 1</text>"), ranks > 1);
    cr_expect_eq(holds(data, length, "8 SMs of 2 ranks</text>"), ranks > 1);
    cr_expect_eq(holds(data, length, ">SM 7</text>"), ranks == 1);
    mk_free(data);
    mk_profile *p;
    mk_trace_track_of(f.trace, 7, MK_ROLE_STORER)->dropped = 9;
    cr_assert_eq(mk_profile_new(f.trace, &p), MK_OK);
    cr_expect_eq(mk_profile_check(p), MK_ERR_FILE);
    cr_expect(strncmp(mk_error_message(), ranks == 1 ? "SM 7, storer: 9" : "rank 1, SM 3, storer: 9", 15) == 0, "%s",
              mk_error_message());
    mk_profile_free(p);
    stop(&f);
  }
}
