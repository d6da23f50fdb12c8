/* See traced.h. */
#include "tests/support/traced.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "models/llama.h"
#include "scheduler/compile.h"
#include "tests/support/model.h"

enum {
  FETCH = 50,
  LOAD = 200,
  MEMORY = 600,
  WORK = 400,
  STORE = 250,
  RECORDS = 12,
  LOADS_AHEAD = 2,
  MOST_BY_HAND = 16
};

typedef struct sm {
  uint32_t at, step;              /* the consumer's next instruction */
  uint64_t time[MK_TRACE_ROLES];  /* until when each role is done */
  uint64_t consumed[LOADS_AHEAD]; /* when the consumer was done with its last instructions */
} sm;

typedef struct simulation {
  const mk_program *program;
  const test_traced *options;
  mk_trace *trace;
  sm *sms;
  uint64_t *published; /* [steps][instructions]; 0: not yet */
} simulation;

static void record(simulation *s, uint32_t q, uint32_t role, mk_activity activity, uint32_t uid, uint32_t edge) {
  mk_trace_track *track = mk_trace_track_of(s->trace, q, role);
  track->records[track->count++] = (mk_trace_record){.time = s->sms[q].time[role],
                                                     .uid = uid,
                                                     .activity = (uint8_t)activity,
                                                     .epoch = (uint8_t)(s->trace->first_step + s->sms[q].step),
                                                     .edge = (uint16_t)edge};
}

/* The role waits until that time, unless it has passed. */
static void wait(simulation *s, uint32_t q, uint32_t role, mk_activity activity, const mk_instruction *in,
                 uint32_t edge, uint64_t until) {
  if (until > s->sms[q].time[role]) {
    record(s, q, role, activity, in->uid, edge);
    s->sms[q].time[role] = until;
    record(s, q, role, MK_ACTIVITY_WORK, in->uid, 0);
  }
}

/* *ready: when all stamped inputs are there on queue q, *buffer: the last. False: some are not published yet. */
static bool find_inputs(const simulation *s, uint32_t q, const mk_instruction *in, uint32_t step, uint64_t *ready,
                        uint32_t *buffer) {
  const mk_program *p = s->program;
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  *ready = *buffer = 0;
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *from = &in->operands[slot];
    if (info->operands[slot].access != MK_ACCESS_READ || p->buffers[from->buffer].store != MK_STORE_STAMPED) {
      continue;
    }
    for (uint32_t i = 0; i < p->instruction_count; i++) {
      const mk_opcode_info *writer = mk_opcode_lookup(p->instructions[i].opcode);
      for (uint32_t o = 0; o < writer->operand_count; o++) {
        const mk_operand *to = &p->instructions[i].operands[o];
        bool meets = writer->operands[o].access == MK_ACCESS_WRITE && to->buffer == from->buffer &&
                     to->row < from->row + from->rows && from->row < to->row + to->rows &&
                     to->col < from->col + from->cols && from->col < to->col + to->cols;
        uint64_t published = s->published[step * p->instruction_count + i];
        if (meets && published == 0) {
          return false;
        }
        bool remote =
            s->options->remote_ns != 0 && meets && mk_queue_rank(p, q) != mk_queue_rank(p, test_traced_sm(p, i));
        uint64_t there = published + TEST_TRACED_HOP + (remote ? s->options->remote_ns : 0);
        if (meets && there > *ready) {
          *ready = there;
          *buffer = from->buffer;
        }
      }
    }
  }
  return true;
}

static void begin_step(simulation *s, uint32_t q) {
  sm *m = &s->sms[q];
  uint64_t state = m->time[MK_ROLE_CONSUMER];
  for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
    record(s, q, role, MK_ACTIVITY_BOUNDARY, 0, 0);
  }
  if (m->step < s->options->steps) {
    m->time[MK_ROLE_STORER] += 10;
    wait(s, q, MK_ROLE_STORER, MK_ACTIVITY_STEP_STATE, &s->program->instructions[0], 0, state);
  }
}

static bool stores(const mk_instruction *in) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    if (info->operands[slot].role == MK_ROLE_STORER && info->operands[slot].access == MK_ACCESS_WRITE) {
      return true;
    }
  }
  return false;
}

static void run_instruction(simulation *s, uint32_t q, uint32_t index, uint64_t ready, uint32_t buffer) {
  sm *m = &s->sms[q];
  const mk_instruction *in = &s->program->instructions[index];
  uint64_t *loader = &m->time[MK_ROLE_LOADER], *consumer = &m->time[MK_ROLE_CONSUMER],
           *storer = &m->time[MK_ROLE_STORER];
  uint32_t slot = index % s->program->machine.ring_pages;
  record(s, q, MK_ROLE_LOADER, MK_ACTIVITY_WORK, in->uid, 0);
  if (in->pages != 0) {
    wait(s, q, MK_ROLE_LOADER, MK_ACTIVITY_PAGE_EMPTY, in, slot, m->consumed[index % LOADS_AHEAD]);
    *loader += LOAD;
  }
  record(s, q, MK_ROLE_CONSUMER, MK_ACTIVITY_INSTRUCTION, index == 0 ? 0 : in[-1].uid, 0);
  *consumer += FETCH;
  record(s, q, MK_ROLE_CONSUMER, MK_ACTIVITY_WORK, in->uid, 0);
  *consumer += in->uid == s->options->delay_uid ? s->options->delay_ns : 0;
  *consumer += FETCH;
  wait(s, q, MK_ROLE_CONSUMER, MK_ACTIVITY_STAMP, in, buffer, ready);
  if (in->pages != 0) {
    wait(s, q, MK_ROLE_CONSUMER, MK_ACTIVITY_PAGE_FULL, in, slot, *loader + MEMORY);
  }
  *consumer += WORK + in->uid % 7 * 10;
  m->consumed[index % LOADS_AHEAD] = *consumer;
  uint64_t published = *consumer;
  record(s, q, MK_ROLE_STORER, MK_ACTIVITY_WORK, in->uid, 0);
  *storer += 10;
  if (stores(in)) {
    wait(s, q, MK_ROLE_STORER, MK_ACTIVITY_RESULT_FULL, in, 0, *consumer);
    *storer += STORE;
    published = *storer;
  }
  s->published[m->step * s->program->instruction_count + index] = published;
}

static bool run_queue(simulation *s, uint32_t q) {
  sm *m = &s->sms[q];
  const mk_queue *queue = &s->program->queues[q];
  bool moved = false;
  while (queue->count != 0 && m->step < s->options->steps) {
    uint64_t ready;
    uint32_t buffer, index = queue->first + m->at;
    if (!find_inputs(s, q, &s->program->instructions[index], m->step, &ready, &buffer)) {
      break;
    }
    if (m->at == 0) {
      begin_step(s, q);
    }
    run_instruction(s, q, index, ready, buffer);
    moved = true;
    if (++m->at == queue->count) {
      m->at = 0;
      m->step++;
      if (m->step == s->options->steps) {
        begin_step(s, q);
      }
    }
  }
  return moved;
}

mk_trace *test_traced_make(const mk_program *program, const test_traced *options) {
  simulation s = {.program = program, .options = options};
  uint32_t sms = (uint32_t)program->queue_count;
  cr_assert_eq(mk_trace_new(program, sms, &s.trace), MK_OK, "%s", mk_error_message());
  s.trace->first_step = 3;
  s.trace->steps = options->steps;
  s.trace->launch_steps = options->steps + 5;
  s.trace->first_position = 60;
  s.trace->alignment_ns = 32;
  snprintf(s.trace->facts.device, sizeof s.trace->facts.device, "made up");
  s.sms = calloc(sms, sizeof *s.sms);
  s.published = calloc(options->steps * program->instruction_count, sizeof *s.published);
  for (uint32_t q = 0; q < sms; q++) {
    for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
      mk_trace_track *track = mk_trace_track_of(s.trace, q, role);
      size_t records = (program->queues[q].count * RECORDS + 8) * (options->steps + 1);
      cr_assert_eq(mk_alloc(records, sizeof *track->records, &track->records), MK_OK);
    }
  }
  bool moved = true;
  while (moved) {
    moved = false;
    for (uint32_t q = 0; q < sms; q++) {
      moved |= run_queue(&s, q);
    }
  }
  for (uint32_t q = 0; q < sms; q++) {
    cr_assert(program->queues[q].count == 0 || s.sms[q].step == options->steps, "SM %u is stuck", q);
    s.trace->milliseconds = fmax(s.trace->milliseconds, (double)s.sms[q].time[MK_ROLE_CONSUMER] * 1e-6);
  }
  s.trace->milliseconds *= (double)s.trace->launch_steps / options->steps;
  free(s.sms);
  free(s.published);
  return s.trace;
}

uint32_t test_traced_sm(const mk_program *program, uint32_t instruction) {
  uint32_t q = 0;
  while (instruction >= program->queues[q].first + program->queues[q].count) {
    q++;
  }
  return q;
}

void test_traced_record(mk_trace *trace, uint32_t instruction, uint32_t role, uint64_t time, mk_activity activity,
                        uint32_t edge) {
  mk_trace_track *track = mk_trace_track_of(trace, test_traced_sm(trace->program, instruction), role);
  bool boundary = activity == MK_ACTIVITY_BOUNDARY;
  if (track->records == NULL) {
    cr_assert_eq(mk_alloc(MOST_BY_HAND, sizeof *track->records, &track->records), MK_OK);
  }
  cr_assert_lt(track->count, MOST_BY_HAND);
  track->records[track->count] = (mk_trace_record){.time = time,
                                                   .uid = boundary ? 0 : trace->program->instructions[instruction].uid,
                                                   .activity = (uint8_t)activity,
                                                   .epoch = boundary && track->count != 0,
                                                   .edge = (uint16_t)edge};
  track->count++;
}

void test_traced_record_part(mk_trace *trace, uint32_t instruction, uint32_t role, uint64_t wait, uint64_t until,
                             uint64_t finish, mk_activity activity, uint32_t edge) {
  test_traced_record(trace, instruction, role, 0, MK_ACTIVITY_BOUNDARY, 0);
  test_traced_record(trace, instruction, role, 100, MK_ACTIVITY_WORK, 0);
  if (wait < until) {
    test_traced_record(trace, instruction, role, wait, activity, edge);
    test_traced_record(trace, instruction, role, until, MK_ACTIVITY_WORK, 0);
  }
  test_traced_record(trace, instruction, role, finish, MK_ACTIVITY_BOUNDARY, 0);
}

mk_program *test_traced_program(uint32_t sms) { return test_traced_program_of_ranks(1, sms); }

mk_program *test_traced_program_of_ranks(uint32_t ranks, uint32_t sms) {
  mk_config config = test_model_config(TEST_MODEL_TINY);
  mk_compile_options options = {.sms = sms, .ranks = ranks, .max_seq = 256};
  mk_graph *graph;
  mk_program *program;
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

char *test_traced_text(const mk_summary *summary, void (*print)(const mk_summary *, FILE *)) {
  enum { MOST = 1 << 20 };
  char *text = calloc(1, MOST);
  cr_assert_not_null(text);
  FILE *file = fmemopen(text, MOST, "w");
  cr_assert_not_null(file);
  print(summary, file);
  fclose(file);
  return text;
}
