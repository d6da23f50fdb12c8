/* See machine.h. Two drivers share the same steps: run_greedy takes an instruction through its three roles at once; run_interleaved
 * lets every role of every SM move on its own, at random, within the limits of the page ring and the result slots. */
#include "vm/cpu/machine.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "instructions/reference.h"
#include "vm/cpu/accesses.h"
#include "vm/cpu/race.h"
#include "vm/cpu/recorder.h"

enum { PENDING = UINT32_MAX }; /* stamp of a word whose publication the machine holds back */

typedef struct cursor { /* of one role: the next instruction */
  uint32_t at;
  uint64_t epoch; /* within this run */
} cursor;

typedef struct late_publication { /* adversarial: stamped words that are written but not yet visible */
  const mk_instruction *instruction;
  uint32_t generation;
} late_publication;

typedef struct sm_state {
  const mk_instruction *queue;
  uint32_t count;
  cursor roles[MK_ROLE_COUNT];
  uint64_t steps[MK_ROLE_COUNT]; /* instructions done in this run */
  uint64_t boundaries;           /* `next` instructions done by the consumer in this run */
  bool stored;                   /* the storer's words are written, its signals are to come */
  bool has_boundary;
  uint64_t pages_in_flight;
  mk_step_state step;
  uint16_t (*rows_used)[MK_MAX_OPERANDS]; /* per result slot: what the consumer touched, for the storer's part */
  late_publication *late;
  size_t late_count, late_capacity;
} sm_state;

struct mk_cpu {
  const mk_program *program;
  mk_cpu_options options;
  uint8_t **memory;
  sm_state *sms;
  uint32_t *counters;
  float *scratch;
  mk_race *race;         /* NULL: not checking */
  mk_accesses *accesses; /* NULL: with arithmetic, else without, and `memory` has no buffers */
  uint32_t *order;       /* unfair: the actors by priority */
  uint64_t random;
  uint32_t first_epoch; /* epochs since the buffers were cleared, before this run */
  uint64_t limit;       /* epochs of this run */
  uint64_t announced;   /* epochs whose token the host has seen */
  mk_epoch_fn fn;
  void *user;
  mk_status failure;
  mk_recorder *recorder; /* NULL: off */
  uint64_t since;        /* when the step of a role at hand began, for the recorder */
  uint32_t delay_uid, delay_ns;
};

/* Every role of every queue, and the late publications of every queue. */
static uint32_t actors_of(const mk_cpu *cpu) { return (uint32_t)cpu->program->queue_count * (MK_ROLE_COUNT + 1); }

static mk_status init(mk_cpu *cpu) {
  const mk_program *program = cpu->program;
  MK_TRY(mk_alloc(program->buffer_count, sizeof *cpu->memory, &cpu->memory));
  for (size_t b = 0; !cpu->options.accesses_only && b < program->buffer_count; b++) {
    MK_TRY(mk_alloc_aligned(64, program->buffers[b].bytes, &cpu->memory[b]));
  }
  MK_TRY(mk_alloc(program->queue_count, sizeof *cpu->sms, &cpu->sms));
  for (size_t q = 0; q < program->queue_count; q++) {
    sm_state *sm = &cpu->sms[q];
    sm->count = program->queues[q].count;
    sm->queue = sm->count == 0 ? NULL : program->instructions + program->queues[q].first;
    MK_TRY(mk_alloc(program->machine.result_slots, sizeof *sm->rows_used, &sm->rows_used));
    for (uint32_t i = 0; i < sm->count; i++) {
      sm->has_boundary |= mk_opcode_lookup(sm->queue[i].opcode)->state == MK_STATE_WRITE;
    }
  }
  MK_TRY(mk_alloc(program->counter_count, sizeof *cpu->counters, &cpu->counters));
  if (cpu->options.accesses_only) {
    MK_TRY(mk_accesses_new(program, &cpu->accesses));
  } else {
    MK_TRY(mk_alloc_aligned(64, (mk_reference_scratch(program) + 64) * sizeof *cpu->scratch, &cpu->scratch));
  }
  if (cpu->options.unfair) {
    MK_TRY(mk_alloc(actors_of(cpu), sizeof *cpu->order, &cpu->order));
    for (uint32_t i = 0; i < actors_of(cpu); i++) {
      cpu->order[i] = i;
    }
  }
  return cpu->options.check_races ? mk_race_new(program, &cpu->race) : MK_OK;
}

mk_status mk_cpu_new(const mk_program *program, const mk_cpu_options *options, mk_cpu **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  mk_cpu *cpu = *out;
  cpu->program = program;
  cpu->options = *options;
  cpu->random = options->seed;
  mk_status status = init(cpu);
  if (status != MK_OK) {
    mk_cpu_free(cpu);
    *out = NULL;
  }
  return status;
}

void mk_cpu_free(mk_cpu *cpu) {
  if (cpu == NULL) {
    return;
  }
  for (size_t b = 0; cpu->memory != NULL && b < cpu->program->buffer_count; b++) {
    mk_free(cpu->memory[b]);
  }
  for (size_t q = 0; cpu->sms != NULL && q < cpu->program->queue_count; q++) {
    mk_free(cpu->sms[q].late);
    mk_free(cpu->sms[q].rows_used);
  }
  mk_free(cpu->memory);
  mk_free(cpu->sms);
  mk_free(cpu->counters);
  mk_free(cpu->scratch);
  mk_free(cpu->order);
  mk_race_free(cpu->race);
  mk_recorder_free(cpu->recorder);
  mk_accesses_free(cpu->accesses);
  mk_free(cpu);
}

void *mk_cpu_memory(mk_cpu *cpu, size_t index) {
  return cpu->accesses != NULL ? (void *)mk_accesses_words(cpu->accesses, index) : cpu->memory[index];
}

uint32_t mk_cpu_generation(const mk_cpu *cpu) { return cpu->first_epoch; }

uint32_t mk_cpu_counter(const mk_cpu *cpu, size_t index) { return cpu->counters[index]; }

void mk_cpu_set_state(mk_cpu *cpu, uint32_t token, uint32_t position, uint32_t prompt_length) {
  for (size_t q = 0; q < cpu->program->queue_count; q++) {
    cpu->sms[q].step = (mk_step_state){.token = token, .position = position, .prompt_length = prompt_length};
  }
}

static uint32_t wanted(const mk_cpu *cpu, const mk_wait *wait, uint64_t epoch) {
  return (cpu->first_epoch + (uint32_t)epoch) * cpu->program->counters[wait->counter].total + wait->threshold;
}

static bool waits_satisfied(const mk_cpu *cpu, const mk_instruction *in, uint64_t epoch) {
  for (uint32_t w = 0; w < in->wait_count; w++) {
    if ((int32_t)(cpu->counters[in->waits[w].counter] - wanted(cpu, &in->waits[w], epoch)) < 0) {
      return false;
    }
  }
  return true;
}

static uint32_t generation_of(const mk_cpu *cpu, uint64_t epoch) { return cpu->first_epoch + (uint32_t)epoch + 1; }

/* The test fault point: an instruction that takes its time. */
static void planted_delay(const mk_cpu *cpu, const mk_instruction *in) {
  struct timespec start, now;
  if (cpu->delay_uid == 0 || in->uid != cpu->delay_uid) {
    return;
  }
  clock_gettime(CLOCK_MONOTONIC, &start);
  do {
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while ((now.tv_sec - start.tv_sec) * 1000000000 + now.tv_nsec - start.tv_nsec < cpu->delay_ns);
}

/* The role has worked at its instruction since cpu->since. */
static void record_work(const mk_cpu *cpu, const sm_state *sm, mk_role role) {
  const cursor *c = &sm->roles[role];
  mk_recorder_work(cpu->recorder, (uint32_t)(sm - cpu->sms), role, c->epoch, cpu->since, sm->queue[c->at].uid);
}

static void advance(const mk_cpu *cpu, sm_state *sm, mk_role role) {
  cursor *c = &sm->roles[role];
  sm->steps[role]++;
  if (++c->at == sm->count) {
    c->at = 0;
    c->epoch++;
  }
  mk_recorder_leave(cpu->recorder, (uint32_t)(sm - cpu->sms), role, c->epoch, c->at == 0);
}

/* The first SM that passes the token boundary tells the host. */
static void announce(mk_cpu *cpu, const sm_state *sm, uint64_t epoch) {
  if (epoch < cpu->announced) {
    return;
  }
  cpu->announced = epoch + 1;
  if (sm->step.nan_logits != 0) {
    cpu->failure = mk_error(MK_ERR_DEVICE, "the logits at position %u are not numbers (NaN)", sm->step.position - 1);
    cpu->limit = epoch + 1;
  } else if (cpu->fn != NULL && !cpu->fn(cpu->user, sm->step.position - 1, sm->step.token)) {
    cpu->limit = epoch + 1;
  }
}

/* xorshift64*, Vigna 2016. */
static uint32_t random_below(mk_cpu *cpu, uint32_t n) {
  cpu->random ^= cpu->random >> 12;
  cpu->random ^= cpu->random << 25;
  cpu->random ^= cpu->random >> 27;
  return (uint32_t)(((cpu->random * 0x2545f4914f6cdd1du) >> 32) * n >> 32);
}

static mk_access_turn turn_of(const mk_cpu *cpu, sm_state *sm, mk_role role) {
  const cursor *c = &sm->roles[role];
  uint32_t queue = (uint32_t)(sm - cpu->sms), generation = generation_of(cpu, c->epoch);
  return (mk_access_turn){.sm = queue,
                          .index = cpu->program->queues[queue].first + c->at,
                          .step = sm->steps[role],
                          .generation = generation,
                          .stamp = generation,
                          .boundaries = sm->boundaries,
                          .epoch = c->epoch,
                          .state = &sm->step,
                          .rows_used = sm->rows_used[sm->steps[role] % cpu->program->machine.result_slots]};
}

/* What the consumer writes without arithmetic may be seen at once, or when the storer publishes. */
static bool execute_accesses(mk_cpu *cpu, sm_state *sm) {
  mk_access_turn turn = turn_of(cpu, sm, MK_ROLE_CONSUMER);
  bool waits = false;
  turn.stamp = random_below(cpu, 2) == 0 ? PENDING : turn.stamp;
  mk_status status = mk_accesses_consume(cpu->accesses, &turn, &waits);
  cpu->failure = status != MK_OK ? status : cpu->failure;
  return !waits;
}

static bool execute_arithmetic(mk_cpu *cpu, sm_state *sm, uint32_t publish) {
  const cursor *c = &sm->roles[MK_ROLE_CONSUMER];
  mk_reference reference = {.program = cpu->program,
                            .memory = cpu->memory,
                            .state = &sm->step,
                            .generation = generation_of(cpu, c->epoch),
                            .publish = publish,
                            .scratch = cpu->scratch};
  if (mk_reference_run(&reference, &sm->queue[c->at]) == MK_REFERENCE_WAIT) {
    return false;
  }
  memcpy(sm->rows_used[sm->steps[MK_ROLE_CONSUMER] % cpu->program->machine.result_slots], reference.rows_used,
         sizeof reference.rows_used);
  return true;
}

typedef struct word_range { /* of a stamped operand */
  uint64_t *words;          /* of the buffer */
  size_t row_words, first, end;
  uint32_t first_row, end_row;
} word_range;

static word_range words_of(const mk_cpu *cpu, const mk_operand *operand) {
  const mk_buffer *buffer = &cpu->program->buffers[operand->buffer];
  uint32_t per_word = buffer->dtype == MK_DTYPE_BF16 ? 2 : 1,
           end_row = (operand->row + operand->rows) * buffer->tile_rows;
  size_t row_words = (buffer->cols + per_word - 1) / per_word;
  size_t first = (size_t)operand->col * buffer->tile_cols / per_word;
  size_t end = first + (size_t)operand->cols * buffer->tile_cols / per_word;
  return (word_range){.words = (uint64_t *)(void *)cpu->memory[operand->buffer],
                      .row_words = row_words,
                      .first = first,
                      .end = end < row_words ? end : row_words,
                      .first_row = operand->row * buffer->tile_rows,
                      .end_row = end_row < buffer->rows ? end_row : buffer->rows};
}

static bool has_stale_word(const mk_cpu *cpu, const mk_operand *operand, uint32_t generation) {
  word_range range = words_of(cpu, operand);
  for (uint32_t r = range.first_row; range.words != NULL && r < range.end_row; r++) {
    for (size_t w = range.first; w < range.end; w++) {
      if (range.words[r * range.row_words + w] >> 32 != generation) {
        return true;
      }
    }
  }
  return false;
}

/* The first counter or stamped input that the consumer waits for. */
static void record_wait(const mk_cpu *cpu, const sm_state *sm) {
  const cursor *c = &sm->roles[MK_ROLE_CONSUMER];
  const mk_instruction *in = &sm->queue[c->at];
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  uint32_t generation = generation_of(cpu, c->epoch), edge = 0;
  mk_activity activity = MK_ACTIVITY_STAMP;
  if (!mk_recorder_wants(cpu->recorder, c->epoch)) {
    return;
  }
  for (uint32_t slot = info->operand_count; slot-- != 0;) {
    const mk_operand *operand = &in->operands[slot];
    if (info->operands[slot].role == MK_ROLE_CONSUMER && info->operands[slot].access == MK_ACCESS_READ &&
        cpu->program->buffers[operand->buffer].store == MK_STORE_STAMPED && has_stale_word(cpu, operand, generation)) {
      edge = operand->buffer;
    }
  }
  for (uint32_t w = in->wait_count; w-- != 0;) {
    if ((int32_t)(cpu->counters[in->waits[w].counter] - wanted(cpu, &in->waits[w], c->epoch)) < 0) {
      activity = MK_ACTIVITY_COUNTER;
      edge = in->waits[w].counter;
    }
  }
  mk_recorder_wait(cpu->recorder, (uint32_t)(sm - cpu->sms), MK_ROLE_CONSUMER, c->epoch, cpu->since, activity, in->uid,
                   edge);
}

/* Computes the consumer's instruction; false: an input is not there yet. */
static bool execute(mk_cpu *cpu, sm_state *sm, uint32_t publish) {
  const cursor *c = &sm->roles[MK_ROLE_CONSUMER];
  const mk_instruction *in = &sm->queue[c->at];
  cpu->since = mk_recorder_now(cpu->recorder);
  if (!waits_satisfied(cpu, in, c->epoch) ||
      !(cpu->accesses != NULL ? execute_accesses(cpu, sm) : execute_arithmetic(cpu, sm, publish))) {
    record_wait(cpu, sm);
    return false;
  }
  planted_delay(cpu, in);
  record_work(cpu, sm, MK_ROLE_CONSUMER);
  if (mk_opcode_lookup(in->opcode)->state == MK_STATE_WRITE) {
    sm->boundaries++;
    mk_recorder_rest(cpu->recorder, (uint32_t)(sm - cpu->sms), MK_ROLE_CONSUMER, c->epoch); /* the host has the token */
    announce(cpu, sm, c->epoch);
  }
  return true;
}

static void signal_all(mk_cpu *cpu, const mk_instruction *in) {
  for (uint32_t s = 0; s < in->signal_count; s++) {
    cpu->counters[in->signals[s].counter] += in->signals[s].amount;
  }
}

/* The SM that is furthest behind, and what it waits for. */
static mk_status stuck(const mk_cpu *cpu) {
  const sm_state *last = NULL;
  for (size_t q = 0; q < cpu->program->queue_count; q++) {
    const sm_state *sm = &cpu->sms[q];
    uint64_t epoch = sm->roles[MK_ROLE_CONSUMER].epoch;
    if (sm->count != 0 && epoch < cpu->limit && (last == NULL || epoch < last->roles[MK_ROLE_CONSUMER].epoch)) {
      last = sm;
    }
  }
  if (last == NULL) {
    return MK_OK;
  }
  const cursor *c = &last->roles[MK_ROLE_CONSUMER];
  const mk_instruction *in = &last->queue[c->at];
  char what[128] = "a stamped input that nobody writes";
  for (uint32_t w = 0; w < in->wait_count; w++) {
    uint32_t counter = in->waits[w].counter, want = wanted(cpu, &in->waits[w], c->epoch);
    if ((int32_t)(cpu->counters[counter] - want) < 0) {
      snprintf(what, sizeof what, "counter %s has %u and must have %u", cpu->program->counters[counter].name,
               cpu->counters[counter], want);
      break;
    }
  }
  return mk_error(MK_ERR_DEVICE, "deadlock: SM %zu waits for ever in epoch %llu at instruction %u (%s): %s",
                  (size_t)(last - cpu->sms), (unsigned long long)c->epoch, in->uid, mk_opcode_lookup(in->opcode)->name,
                  what);
}

static mk_status run_greedy(mk_cpu *cpu) {
  bool moved = true, unfinished = true;
  while (unfinished && moved && cpu->failure == MK_OK) {
    moved = unfinished = false;
    for (size_t q = 0; q < cpu->program->queue_count; q++) {
      sm_state *sm = &cpu->sms[q];
      const cursor *c = &sm->roles[MK_ROLE_CONSUMER];
      while (sm->count != 0 && c->epoch < cpu->limit && execute(cpu, sm, generation_of(cpu, c->epoch))) {
        signal_all(cpu, &sm->queue[c->at]);
        advance(cpu, sm, MK_ROLE_CONSUMER);
        moved = true;
      }
      unfinished |= sm->count != 0 && c->epoch < cpu->limit;
    }
  }
  return cpu->failure != MK_OK ? cpu->failure : unfinished ? stuck(cpu) : MK_OK;
}

static mk_status observe(mk_cpu *cpu, uint32_t q, mk_role role) {
  if (cpu->race == NULL) {
    return MK_OK;
  }
  const sm_state *sm = &cpu->sms[q];
  const uint16_t *rows = sm->rows_used[sm->steps[role] % cpu->program->machine.result_slots];
  return mk_race_step(cpu->race, q, role, cpu->program->queues[q].first + sm->roles[role].at,
                      role == MK_ROLE_LOADER ? NULL : rows);
}

static void publish(mk_cpu *cpu, const mk_instruction *in, uint32_t generation) {
  if (cpu->accesses != NULL) {
    mk_accesses_publish(cpu->accesses, in, PENDING, generation);
    return;
  }
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *operand = &in->operands[slot];
    const mk_buffer *buffer = &cpu->program->buffers[operand->buffer];
    if (info->operands[slot].access == MK_ACCESS_READ || buffer->store != MK_STORE_STAMPED) {
      continue;
    }
    word_range range = words_of(cpu, operand);
    for (uint32_t r = range.first_row; r < range.end_row; r++) {
      for (size_t w = range.first; w < range.end; w++) {
        uint64_t *word = &range.words[r * range.row_words + w];
        if (*word >> 32 == PENDING) {
          *word = (uint64_t)generation << 32 | (uint32_t)*word;
        }
      }
    }
  }
}

static void publish_late(mk_cpu *cpu, sm_state *sm, size_t which) {
  late_publication late = sm->late[which];
  sm->late[which] = sm->late[--sm->late_count];
  publish(cpu, late.instruction, late.generation);
}

/* Stores of one thread to one word stay in order: what this instruction wrote an epoch ago becomes visible first. */
static bool publish_earlier(mk_cpu *cpu, sm_state *sm, const mk_instruction *in) {
  bool any = false;
  for (size_t i = sm->late_count; i-- != 0;) {
    if (sm->late[i].instruction == in) {
      publish_late(cpu, sm, i);
      any = true;
    }
  }
  return any;
}

/* Each step_* moves one role of SM q on if it may; *moved says whether it did. */
static mk_status step_loader(mk_cpu *cpu, uint32_t q, bool *moved) {
  sm_state *sm = &cpu->sms[q];
  const cursor *c = &sm->roles[MK_ROLE_LOADER];
  if (c->epoch >= cpu->limit) {
    return MK_OK;
  }
  const mk_instruction *in = &sm->queue[c->at];
  bool room = in->pages == 0 || sm->pages_in_flight < cpu->program->machine.ring_pages;
  bool ready = !mk_opcode_loads_state(mk_opcode_lookup(in->opcode)) || !sm->has_boundary || sm->boundaries >= c->epoch;
  if (!room || !ready) {
    return MK_OK;
  }
  cpu->since = mk_recorder_now(cpu->recorder);
  MK_TRY(observe(cpu, q, MK_ROLE_LOADER));
  if (cpu->accesses != NULL) {
    mk_access_turn turn = turn_of(cpu, sm, MK_ROLE_LOADER);
    mk_accesses_load(cpu->accesses, &turn);
  }
  sm->pages_in_flight += in->pages;
  record_work(cpu, sm, MK_ROLE_LOADER);
  advance(cpu, sm, MK_ROLE_LOADER);
  *moved = true;
  return MK_OK;
}

static mk_status step_consumer(mk_cpu *cpu, uint32_t q, bool *moved) {
  sm_state *sm = &cpu->sms[q];
  const cursor *c = &sm->roles[MK_ROLE_CONSUMER];
  bool loaded = sm->steps[MK_ROLE_LOADER] > sm->steps[MK_ROLE_CONSUMER];
  bool slot_free = sm->steps[MK_ROLE_CONSUMER] - sm->steps[MK_ROLE_STORER] < cpu->program->machine.result_slots;
  if (c->epoch >= cpu->limit || !loaded || !slot_free) {
    return MK_OK;
  }
  *moved = publish_earlier(cpu, sm, &sm->queue[c->at]);
  if (!execute(cpu, sm, PENDING)) {
    return MK_OK;
  }
  MK_TRY(cpu->failure);
  MK_TRY(observe(cpu, q, MK_ROLE_CONSUMER));
  sm->pages_in_flight -= sm->queue[c->at].pages;
  advance(cpu, sm, MK_ROLE_CONSUMER);
  *moved = true;
  return cpu->failure;
}

static bool signals_release(const mk_cpu *cpu, const mk_instruction *in) {
  for (uint32_t s = 0; s < in->signal_count; s++) {
    if (cpu->program->counters[in->signals[s].counter].kind == MK_COUNTER_RELEASE) {
      return true;
    }
  }
  return false;
}

/* The storer's words. Adversarial: they become visible at any time, but before a release signal. */
static mk_status store(mk_cpu *cpu, uint32_t q) {
  sm_state *sm = &cpu->sms[q];
  const cursor *c = &sm->roles[MK_ROLE_STORER];
  const mk_instruction *in = &sm->queue[c->at];
  MK_TRY(observe(cpu, q, MK_ROLE_STORER));
  if (cpu->accesses != NULL) {
    mk_access_turn turn = turn_of(cpu, sm, MK_ROLE_STORER);
    turn.stamp = PENDING;
    (void)publish_earlier(cpu, sm, in);
    MK_TRY(mk_accesses_store(cpu->accesses, &turn));
  }
  if (!cpu->options.adversarial) {
    publish(cpu, in, generation_of(cpu, c->epoch));
    return MK_OK;
  }
  MK_TRY(mk_grow(&sm->late, &sm->late_capacity, sm->late_count + 1, sizeof *sm->late));
  sm->late[sm->late_count++] = (late_publication){.instruction = in, .generation = generation_of(cpu, c->epoch)};
  return MK_OK;
}

/* Stores and signals are two steps: another SM may see the words before the signals. */
static mk_status step_storer(mk_cpu *cpu, uint32_t q, bool *moved) {
  sm_state *sm = &cpu->sms[q];
  if (sm->steps[MK_ROLE_CONSUMER] == sm->steps[MK_ROLE_STORER]) {
    return MK_OK;
  }
  const mk_instruction *in = &sm->queue[sm->roles[MK_ROLE_STORER].at];
  *moved = true;
  cpu->since = mk_recorder_now(cpu->recorder);
  if (!sm->stored) {
    MK_TRY(store(cpu, q));
    sm->stored = in->signal_count != 0;
    if (sm->stored) {
      record_work(cpu, sm, MK_ROLE_STORER);
      mk_recorder_rest(cpu->recorder, q, MK_ROLE_STORER, sm->roles[MK_ROLE_STORER].epoch);
      return MK_OK;
    }
  }
  while (signals_release(cpu, in) && sm->late_count != 0) {
    publish_late(cpu, sm, 0);
  }
  if (cpu->race != NULL) {
    mk_race_signal(cpu->race, q, cpu->program->queues[q].first + sm->roles[MK_ROLE_STORER].at);
  }
  signal_all(cpu, in);
  sm->stored = false;
  record_work(cpu, sm, MK_ROLE_STORER);
  advance(cpu, sm, MK_ROLE_STORER);
  return MK_OK;
}

static mk_status step_any(mk_cpu *cpu, uint32_t actor, bool *moved) {
  uint32_t q = actor / (MK_ROLE_COUNT + 1), what = actor % (MK_ROLE_COUNT + 1);
  sm_state *sm = &cpu->sms[q];
  if (sm->count == 0) {
    return MK_OK;
  }
  switch (what) {
    case MK_ROLE_LOADER:
      return step_loader(cpu, q, moved);
    case MK_ROLE_CONSUMER:
      return step_consumer(cpu, q, moved);
    case MK_ROLE_STORER:
      return step_storer(cpu, q, moved);
    default:
      break;
  }
  if (sm->late_count != 0) {
    publish_late(cpu, sm, random_below(cpu, (uint32_t)sm->late_count));
    *moved = true;
  }
  return MK_OK;
}

static bool interleaved_done(const mk_cpu *cpu) {
  for (size_t q = 0; q < cpu->program->queue_count; q++) {
    const sm_state *sm = &cpu->sms[q];
    if (sm->count != 0 && (sm->roles[MK_ROLE_STORER].epoch < cpu->limit || sm->late_count != 0)) {
      return false;
    }
  }
  return true;
}

/* Puts the actor at place `from` of the order to place `to`. */
static void move_actor(mk_cpu *cpu, uint32_t from, uint32_t to) {
  uint32_t actor = cpu->order[from];
  memmove(&cpu->order[from], &cpu->order[from + 1], (actors_of(cpu) - 1 - from) * sizeof actor);
  memmove(&cpu->order[to + 1], &cpu->order[to], (actors_of(cpu) - 1 - to) * sizeof actor);
  cpu->order[to] = actor;
}

/* Picks actors at random, and walks on from there past the ones that cannot move. Unfair: takes the first that can in an
 * order that changes now and then, so that some are left behind for as long as the program allows. */
static mk_status run_interleaved(mk_cpu *cpu) {
  uint32_t actors = actors_of(cpu), changes = 0;
  for (uint32_t i = 0; cpu->order != NULL && i < actors; i++) {
    move_actor(cpu, i, random_below(cpu, i + 1));
    changes = 8u << random_below(cpu, 5);
  }
  while (!interleaved_done(cpu)) {
    uint32_t start = cpu->order != NULL ? 0 : random_below(cpu, actors);
    bool moved = false;
    if (cpu->order != NULL && random_below(cpu, changes) == 0) {
      move_actor(cpu, random_below(cpu, actors), random_below(cpu, 2) * (actors - 1));
    }
    for (uint32_t i = 0; i < actors && !moved; i++) {
      MK_TRY(step_any(cpu, cpu->order != NULL ? cpu->order[i] : (start + i) % actors, &moved));
    }
    if (!moved) {
      return stuck(cpu);
    }
  }
  return MK_OK;
}

/* An aborted run leaves stamps and counters of epochs that do not count: back to those of a new machine. */
static void clear_after_abort(mk_cpu *cpu) {
  for (size_t b = 0; b < cpu->program->buffer_count; b++) {
    const mk_buffer *buffer = &cpu->program->buffers[b];
    size_t tiles = (size_t)mk_buffer_grid_rows(buffer) * mk_buffer_grid_cols(buffer);
    if (buffer->store == MK_STORE_STAMPED && mk_cpu_memory(cpu, b) != NULL) {
      memset(mk_cpu_memory(cpu, b), 0, cpu->accesses != NULL ? tiles * sizeof(uint64_t) : buffer->bytes);
    }
  }
  for (size_t q = 0; q < cpu->program->queue_count; q++) {
    cpu->sms[q].late_count = 0;
  }
  memset(cpu->counters, 0, cpu->program->counter_count * sizeof *cpu->counters);
  cpu->first_epoch = 0;
}

mk_status mk_cpu_run(mk_cpu *cpu, uint64_t epochs, mk_epoch_fn fn, void *user) {
  cpu->limit = epochs;
  cpu->announced = 0;
  cpu->fn = fn;
  cpu->user = user;
  cpu->failure = MK_OK;
  for (size_t q = 0; q < cpu->program->queue_count; q++) {
    sm_state *sm = &cpu->sms[q];
    memset(sm->roles, 0, sizeof sm->roles);
    memset(sm->steps, 0, sizeof sm->steps);
    sm->boundaries = 0;
    sm->stored = false;
    sm->pages_in_flight = 0;
  }
  bool roles_apart = cpu->options.seed != 0 || cpu->options.adversarial || cpu->options.check_races ||
                     cpu->options.accesses_only || cpu->options.unfair;
  if (roles_apart && cpu->random == 0) {
    cpu->random = 1;
  }
  if (cpu->race != NULL) {
    mk_race_barrier(cpu->race);
  }
  mk_recorder_begin(cpu->recorder, cpu->sms[0].step.position, roles_apart);
  mk_status status = roles_apart ? run_interleaved(cpu) : run_greedy(cpu);
  mk_recorder_end(cpu->recorder, status == MK_OK ? cpu->limit : 0);
  if (status != MK_OK) {
    clear_after_abort(cpu);
    return status;
  }
  cpu->first_epoch += (uint32_t)cpu->limit;
  return MK_OK;
}

mk_status mk_cpu_trace_on(mk_cpu *cpu, uint32_t first_step, uint32_t steps, uint32_t capacity) {
  mk_cpu_trace_off(cpu);
  return mk_recorder_new(cpu->program, first_step, steps, capacity, &cpu->recorder);
}

void mk_cpu_trace_off(mk_cpu *cpu) {
  mk_recorder_free(cpu->recorder);
  cpu->recorder = NULL;
}

mk_status mk_cpu_trace_take(const mk_cpu *cpu, mk_trace **out) {
  *out = NULL;
  return cpu->recorder != NULL ? mk_recorder_take(cpu->recorder, out)
                               : mk_error(MK_ERR_USAGE, "the recorder is off; mk_cpu_trace_on turns it on");
}

void mk_cpu_delay(mk_cpu *cpu, uint32_t uid, uint32_t nanoseconds) {
  cpu->delay_uid = uid;
  cpu->delay_ns = nanoseconds;
}
