/* See profile.h. */
#include "tools/profiler/profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vm/program/strips.h"

static const double kMostUnaccounted = 0.01;

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static uint32_t find_uid(const mk_profile *p, uint32_t uid) {
  size_t low = 0, high = p->program->instruction_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    uint32_t at = (uint32_t)(p->by_uid[middle] >> 32);
    if (at == uid) {
      return (uint32_t)p->by_uid[middle];
    }
    low = at < uid ? middle + 1 : low;
    high = at < uid ? high : middle;
  }
  return MK_NO_INSTRUCTION;
}

static mk_status index_program(mk_profile *p) {
  const mk_program *program = p->program;
  MK_TRY(mk_alloc(program->instruction_count, sizeof *p->by_uid, &p->by_uid));
  MK_TRY(mk_alloc(program->instruction_count, sizeof *p->sm_of, &p->sm_of));
  for (size_t q = 0; q < program->queue_count; q++) {
    for (uint32_t i = 0; i < program->queues[q].count; i++) {
      p->sm_of[program->queues[q].first + i] = (uint32_t)q;
    }
  }
  for (uint32_t i = 0; i < program->instruction_count; i++) {
    p->by_uid[i] = (uint64_t)program->instructions[i].uid << 32 | i;
  }
  qsort(p->by_uid, program->instruction_count, sizeof *p->by_uid, by_value);
  return MK_OK;
}

/* Steps are recorded modulo 256; within a track they never go back. */
static mk_status make_intervals(mk_profile *p, uint32_t sm, const mk_trace_track *from, mk_profile_track *to) {
  const mk_trace_record *r = from->records;
  uint32_t step = 0, instruction = MK_NO_INSTRUCTION;
  to->count = from->count == 0 ? 0 : from->count - 1;
  MK_TRY(mk_alloc(to->count, sizeof *to->intervals, &to->intervals));
  for (uint32_t i = 0; i < to->count; i++) {
    uint8_t before = i == 0 ? (uint8_t)p->trace->first_step : r[i - 1].epoch;
    step += (uint8_t)(r[i].epoch - before);
    step = step < p->steps ? step : p->steps;
    if (i == 0 || r[i].uid != r[i - 1].uid) {
      instruction = r[i].uid == 0 ? MK_NO_INSTRUCTION : find_uid(p, r[i].uid);
      instruction = instruction != MK_NO_INSTRUCTION && p->sm_of[instruction] == sm ? instruction : MK_NO_INSTRUCTION;
    }
    to->intervals[i] = (mk_interval){.start = r[i].time,
                                     .end = r[i + 1].time,
                                     .instruction = instruction,
                                     .step = step,
                                     .edge = r[i].edge,
                                     .activity = r[i].activity};
  }
  return MK_OK;
}

/* Whether an interval is part of an instruction: waiting for the next one is no part of the last one. */
static bool is_part(const mk_interval *interval, uint32_t role) {
  switch (interval->activity) {
    case MK_ACTIVITY_INSTRUCTION:
    case MK_ACTIVITY_INSTRUCTION_SPACE:
    case MK_ACTIVITY_BOUNDARY:
      return false;
    case MK_ACTIVITY_STEP_STATE:
      return role != MK_ROLE_STORER; /* before its first instruction of a step */
    default:
      return true;
  }
}

static mk_status make_executions(mk_profile_track *track, uint32_t role, uint32_t steps) {
  size_t capacity = 0;
  for (uint32_t i = 0; i < track->count; i++) {
    const mk_interval *in = &track->intervals[i];
    if (in->instruction == MK_NO_INSTRUCTION || !is_part(in, role) || in->step >= steps) {
      continue;
    }
    mk_execution *last = track->execution_count == 0 ? NULL : &track->executions[track->execution_count - 1];
    if (last == NULL || last->instruction != in->instruction || last->step != in->step) {
      MK_TRY(mk_grow(&track->executions, &capacity, track->execution_count + (size_t)1, sizeof *track->executions));
      last = &track->executions[track->execution_count++];
      *last = (mk_execution){.instruction = in->instruction, .step = in->step, .first = i, .start = in->start};
    }
    last->end = i + 1;
    last->finish = in->end;
  }
  return MK_OK;
}

/* The time from the first record of a track to its last one. */
static double time_of(const mk_profile *p, uint32_t sm, uint32_t role) {
  const mk_trace_track *track = mk_trace_track_of(p->trace, sm, role);
  return track->count == 0 ? 0 : (double)track->records[track->count - 1].time - (double)track->records[0].time;
}

static double sum_of(const mk_profile_track *track) {
  double sum = 0;
  for (uint32_t i = 0; i < track->count; i++) {
    sum += fabs((double)track->intervals[i].end - (double)track->intervals[i].start);
  }
  return sum;
}

static double unaccounted_of(const mk_profile *p, uint32_t sm, uint32_t role) {
  double wall = time_of(p, sm, role);
  return wall <= 0 ? 0 : fabs(sum_of(mk_profile_track_of(p, sm, role)) - wall) / wall;
}

typedef struct moment { /* when work begins, or ends */
  uint64_t time;
  bool begins;
} moment;

static int by_time(const void *a, const void *b) {
  const moment *x = a, *y = b;
  return x->time != y->time ? (x->time > y->time) - (x->time < y->time) : x->begins - y->begins;
}

/* No two roles ever work at the same time. */
static mk_status find_serial(mk_profile *p) {
  moment *moments;
  size_t count = 0, working = 0;
  MK_TRY(mk_alloc(2 * (size_t)p->records, sizeof *moments, &moments));
  for (size_t t = 0; t < (size_t)p->sms * MK_TRACE_ROLES; t++) {
    for (uint32_t i = 0; i < p->tracks[t].count; i++) {
      const mk_interval *in = &p->tracks[t].intervals[i];
      if (in->activity == MK_ACTIVITY_WORK && in->end > in->start) {
        moments[count++] = (moment){in->start, true};
        moments[count++] = (moment){in->end, false};
      }
    }
  }
  qsort(moments, count, sizeof *moments, by_time);
  p->serial = true;
  for (size_t i = 0; i < count && p->serial; i++) {
    working = moments[i].begins ? working + 1 : working - 1;
    p->serial = working <= 1;
  }
  mk_free(moments);
  return MK_OK;
}

static void measure(mk_profile *p) {
  double time = 0, steps = 0;
  for (uint32_t sm = 0; sm < p->sms; sm++) {
    const mk_profile_track *consumer = mk_profile_track_of(p, sm, MK_ROLE_CONSUMER);
    if (consumer->count != 0) {
      time += time_of(p, sm, MK_ROLE_CONSUMER);
      steps += p->steps;
    }
    for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
      p->unaccounted = fmax(p->unaccounted, unaccounted_of(p, sm, role));
    }
  }
  p->token_us = steps > 0 ? time / steps * 1e-3 : 0;
}

static mk_status build(mk_profile *p) {
  size_t tracks = (size_t)p->sms * MK_TRACE_ROLES;
  MK_TRY(mk_alloc(tracks, sizeof *p->tracks, &p->tracks));
  MK_TRY(index_program(p));
  for (size_t t = 0; t < tracks; t++) {
    p->records += p->trace->tracks[t].count;
    p->dropped += p->trace->tracks[t].dropped;
  }
  p->steps = p->trace->steps < p->records ? p->trace->steps : (uint32_t)p->records;
  for (size_t t = 0; t < tracks; t++) {
    MK_TRY(make_intervals(p, (uint32_t)(t / MK_TRACE_ROLES), &p->trace->tracks[t], &p->tracks[t]));
    MK_TRY(make_executions(&p->tracks[t], t % MK_TRACE_ROLES, p->steps));
  }
  measure(p);
  return find_serial(p);
}

mk_status mk_profile_new(const mk_trace *trace, mk_profile **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  **out = (mk_profile){.trace = trace, .program = trace->program, .sms = trace->sms};
  mk_status status = build(*out);
  if (status != MK_OK) {
    mk_profile_free(*out);
    *out = NULL;
  }
  return status;
}

void mk_profile_free(mk_profile *profile) {
  if (profile == NULL) {
    return;
  }
  for (size_t t = 0; profile->tracks != NULL && t < (size_t)profile->sms * MK_TRACE_ROLES; t++) {
    mk_free(profile->tracks[t].intervals);
    mk_free(profile->tracks[t].executions);
  }
  mk_free(profile->tracks);
  mk_free(profile->by_uid);
  mk_free(profile->sm_of);
  mk_free(profile);
}

/* A role walks its queue in order, and instructions of a queue have rising indices. */
static bool comes_before(const mk_execution *e, uint32_t instruction, uint32_t step) {
  return e->step < step || (e->step == step && e->instruction < instruction);
}

const mk_execution *mk_profile_find(const mk_profile *profile, uint32_t instruction, uint32_t step, uint32_t role) {
  const mk_profile_track *track = mk_profile_track_of(profile, profile->sm_of[instruction], role);
  uint32_t low = 0, high = track->execution_count;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    bool before = comes_before(&track->executions[middle], instruction, step);
    low = before ? middle + 1 : low;
    high = before ? high : middle;
  }
  if (low == track->execution_count) {
    return NULL;
  }
  const mk_execution *found = &track->executions[low];
  return found->instruction == instruction && found->step == step ? found : NULL;
}

mk_role mk_publishing_role(uint32_t opcode) {
  const mk_opcode_info *info = mk_opcode_lookup(opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    if (info->operands[slot].access != MK_ACCESS_READ && info->operands[slot].role == MK_ROLE_STORER) {
      return MK_ROLE_STORER;
    }
  }
  return MK_ROLE_CONSUMER;
}

const char *mk_value_name(const mk_program *program, uint32_t instruction) {
  const mk_instruction *in = &program->instructions[instruction];
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    uint16_t buffer = in->operands[slot].buffer;
    if (info->operands[slot].access == MK_ACCESS_WRITE && buffer < program->buffer_count &&
        program->buffers[buffer].store == MK_STORE_STAMPED) {
      const char *name = program->buffers[buffer].name, *dot = strrchr(name, '.');
      return dot == NULL ? name : dot + 1;
    }
  }
  return "";
}

uint64_t mk_execution_time(const mk_profile_track *track, const mk_execution *execution, mk_activity_kind kind) {
  uint64_t sum = 0;
  for (uint32_t i = execution->first; i < execution->end; i++) {
    const mk_interval *in = &track->intervals[i];
    sum += mk_activity_kind_of(in->activity) == kind ? in->end - in->start : 0;
  }
  return sum;
}

static mk_status check_track(const mk_profile *p, uint32_t sm, uint32_t role) {
  const mk_trace_track *from = mk_trace_track_of(p->trace, sm, role);
  const mk_profile_track *track = mk_profile_track_of(p, sm, role);
  char label[MK_LABEL_SIZE];
  if (from->dropped != 0) {
    return mk_error(MK_ERR_FILE, "%u records were dropped; record fewer steps, or raise --trace-records",
                    from->dropped);
  }
  if (from->count == 0) {
    return MK_OK;
  }
  const mk_trace_record *last = &from->records[from->count - 1];
  if (track->count == 0 || track->intervals[0].activity != MK_ACTIVITY_BOUNDARY ||
      last->activity != MK_ACTIVITY_BOUNDARY || track->intervals[0].step != 0 ||
      (uint8_t)(last->epoch - p->trace->first_step) != (uint8_t)p->trace->steps) {
    return mk_error(MK_ERR_FILE, "its records do not reach from the boundary before step %u to the one after step %u",
                    p->trace->first_step, p->trace->first_step + p->trace->steps - 1);
  }
  for (uint32_t i = 1; i < track->execution_count; i++) {
    const mk_execution *e = &track->executions[i];
    if (!comes_before(&track->executions[i - 1], e->instruction, e->step)) {
      return mk_error(MK_ERR_FILE, "%s comes out of order in step %u", mk_profile_label(p, e->instruction, label),
                      e->step);
    }
  }
  double missing = unaccounted_of(p, sm, role);
  return missing <= kMostUnaccounted ? MK_OK
                                     : mk_error(MK_ERR_FILE, "its intervals add up to %.1f us, of %.1f us that passed",
                                                sum_of(track) * 1e-3, time_of(p, sm, role) * 1e-3);
}

mk_status mk_profile_check(const mk_profile *profile) {
  char label[MK_SM_LABEL_SIZE];
  if (profile->steps == 0 || profile->records == 0) {
    return mk_error(MK_ERR_FILE, "the trace holds no step; record some with --trace-steps and --trace-from");
  }
  for (uint32_t sm = 0; sm < profile->sms; sm++) {
    for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
      mk_status status = check_track(profile, sm, role);
      if (status != MK_OK) {
        return mk_error_prefix(status, "%s, %s", mk_profile_sm_label(profile, sm, label), mk_trace_role_name(role));
      }
    }
  }
  return MK_OK;
}

const char *mk_profile_sm_label(const mk_profile *profile, uint32_t sm, char text[MK_SM_LABEL_SIZE]) {
  if (mk_profile_has_ranks(profile)) {
    snprintf(text, MK_SM_LABEL_SIZE, "rank %u, SM %u", mk_queue_rank(profile->program, sm),
             sm % profile->program->machine.sms);
  } else {
    snprintf(text, MK_SM_LABEL_SIZE, "SM %u", sm);
  }
  return text;
}

const char *mk_profile_label(const mk_profile *profile, uint32_t instruction, char text[MK_LABEL_SIZE]) {
  if (instruction == MK_NO_INSTRUCTION) {
    snprintf(text, MK_LABEL_SIZE, "no instruction");
    return text;
  }
  const mk_instruction *in = &profile->program->instructions[instruction];
  const char *name = mk_opcode_lookup(in->opcode)->name;
  if (in->layer == MK_NO_LAYER) {
    snprintf(text, MK_LABEL_SIZE, "%s, instruction %u", name, in->uid);
  } else {
    snprintf(text, MK_LABEL_SIZE, "%s, layer %u, instruction %u", name, in->layer, in->uid);
  }
  return text;
}

/* Blocks with tokens before the position: those of whole spans of this split, and of the span at hand when it is this
 * split's. */
static double block_bytes(uint32_t row, const mk_buffer *kv, uint32_t position) {
  uint64_t span = kv->span_tokens, block = kv->block_tokens, splits = kv->rows;
  if (span == 0 || block == 0 || splits == 0) {
    return 0;
  }
  uint64_t whole = position / span, mine = whole > row ? (whole - row + splits - 1) / splits : 0;
  uint64_t rest = whole % splits == row ? position % span : 0;
  uint64_t blocks = mine * ((span + block - 1) / block) + (rest + block - 1) / block;
  return (double)blocks * (double)mk_pair_bytes(kv);
}

double mk_profile_bytes(const mk_profile *profile, uint32_t instruction, uint32_t step) {
  const mk_program *program = profile->program;
  const mk_instruction *in = &program->instructions[instruction];
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const bool one_row = mk_program_rows(program) == 1;
  double bytes = 0;
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *operand = &in->operands[slot];
    if (info->operands[slot].role == MK_ROLE_LOADER && info->operands[slot].store == MK_OPERAND_STORE_TILES &&
        operand->buffer < program->buffer_count) {
      bytes += (double)mk_tiles_bytes(&program->buffers[operand->buffer], operand->rows, operand->col, operand->cols);
    } else if (one_row && info->operands[slot].store == MK_OPERAND_STORE_BLOCKS && mk_opcode_loads_state(info) &&
               operand->buffer < program->buffer_count) {
      bytes += block_bytes(operand->row, &program->buffers[operand->buffer], profile->trace->first_position + step);
    }
  }
  return bytes;
}
