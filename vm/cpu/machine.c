/* See machine.h. Two drivers share the same steps: run_greedy takes an instruction through its three roles at once; run_interleaved
 * lets every role of every SM move on its own, at random, within the limits of the page ring and the result slots. */
#include "vm/cpu/machine.h"

#include <stdio.h>
#include <string.h>

#include "instructions/reference.h"
#include "vm/cpu/race.h"

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
  mk_race *race; /* NULL: not checking */
  uint64_t random;
  uint32_t first_epoch; /* epochs since the buffers were cleared, before this run */
  uint64_t limit;       /* epochs of this run */
  uint64_t announced;   /* epochs whose token the host has seen */
  mk_epoch_fn fn;
  void *user;
  mk_status failure;
};

static mk_status init(mk_cpu *cpu) {
  const mk_program *program = cpu->program;
  MK_TRY(mk_alloc(program->buffer_count, sizeof *cpu->memory, &cpu->memory));
  for (size_t b = 0; b < program->buffer_count; b++) {
    MK_TRY(mk_alloc_aligned(64, program->buffers[b].bytes, &cpu->memory[b]));
  }
  MK_TRY(mk_alloc(program->queue_count, sizeof *cpu->sms, &cpu->sms));
  for (size_t q = 0; q < program->queue_count; q++) {
    sm_state *sm = &cpu->sms[q];
    sm->queue = program->instructions + program->queues[q].first;
    sm->count = program->queues[q].count;
    MK_TRY(mk_alloc(program->machine.result_slots, sizeof *sm->rows_used, &sm->rows_used));
    for (uint32_t i = 0; i < sm->count; i++) {
      sm->has_boundary |= mk_opcode_lookup(sm->queue[i].opcode)->state == MK_STATE_WRITE;
    }
  }
  MK_TRY(mk_alloc(program->counter_count, sizeof *cpu->counters, &cpu->counters));
  MK_TRY(mk_alloc_aligned(64, (mk_reference_scratch(program) + 64) * sizeof *cpu->scratch, &cpu->scratch));
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
  mk_race_free(cpu->race);
  mk_free(cpu);
}

void *mk_cpu_memory(mk_cpu *cpu, size_t index) { return cpu->memory[index]; }

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

static void advance(sm_state *sm, mk_role role) {
  cursor *c = &sm->roles[role];
  sm->steps[role]++;
  if (++c->at == sm->count) {
    c->at = 0;
    c->epoch++;
  }
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

/* Computes the consumer's instruction; false: an input is not there yet. */
static bool execute(mk_cpu *cpu, sm_state *sm, uint32_t publish) {
  const cursor *c = &sm->roles[MK_ROLE_CONSUMER];
  const mk_instruction *in = &sm->queue[c->at];
  if (!waits_satisfied(cpu, in, c->epoch)) {
    return false;
  }
  mk_reference reference = {.program = cpu->program,
                            .memory = cpu->memory,
                            .state = &sm->step,
                            .generation = generation_of(cpu, c->epoch),
                            .publish = publish,
                            .scratch = cpu->scratch};
  if (mk_reference_run(&reference, in) == MK_REFERENCE_WAIT) {
    return false;
  }
  if (mk_opcode_lookup(in->opcode)->state == MK_STATE_WRITE) {
    sm->boundaries++;
    announce(cpu, sm, c->epoch);
  }
  memcpy(sm->rows_used[sm->steps[MK_ROLE_CONSUMER] % cpu->program->machine.result_slots], reference.rows_used,
         sizeof reference.rows_used);
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
        advance(sm, MK_ROLE_CONSUMER);
        moved = true;
      }
      unfinished |= sm->count != 0 && c->epoch < cpu->limit;
    }
  }
  return cpu->failure != MK_OK ? cpu->failure : unfinished ? stuck(cpu) : MK_OK;
}

/* xorshift64*, Vigna 2016. */
static uint32_t random_below(mk_cpu *cpu, uint32_t n) {
  cpu->random ^= cpu->random >> 12;
  cpu->random ^= cpu->random << 25;
  cpu->random ^= cpu->random >> 27;
  return (uint32_t)(((cpu->random * 0x2545f4914f6cdd1du) >> 32) * n >> 32);
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
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *operand = &in->operands[slot];
    const mk_buffer *buffer = &cpu->program->buffers[operand->buffer];
    if (info->operands[slot].access == MK_ACCESS_READ || buffer->store != MK_STORE_STAMPED) {
      continue;
    }
    uint32_t per_word = buffer->dtype == MK_DTYPE_BF16 ? 2 : 1;
    size_t row_words = (buffer->cols + per_word - 1) / per_word;
    size_t first = (size_t)operand->col * buffer->tile_cols / per_word;
    size_t end = first + (size_t)operand->cols * buffer->tile_cols / per_word;
    end = end < row_words ? end : row_words;
    uint64_t *words = (uint64_t *)(void *)cpu->memory[operand->buffer];
    for (uint32_t r = operand->row * buffer->tile_rows; r < (operand->row + operand->rows) * buffer->tile_rows; r++) {
      for (size_t w = first; w < end && r < buffer->rows; w++) {
        uint64_t *word = &words[r * row_words + w];
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
static void publish_earlier(mk_cpu *cpu, sm_state *sm, const mk_instruction *in) {
  for (size_t i = sm->late_count; i-- != 0;) {
    if (sm->late[i].instruction == in) {
      publish_late(cpu, sm, i);
    }
  }
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
  MK_TRY(observe(cpu, q, MK_ROLE_LOADER));
  sm->pages_in_flight += in->pages;
  advance(sm, MK_ROLE_LOADER);
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
  publish_earlier(cpu, sm, &sm->queue[c->at]);
  if (!execute(cpu, sm, PENDING)) {
    return MK_OK;
  }
  MK_TRY(observe(cpu, q, MK_ROLE_CONSUMER));
  sm->pages_in_flight -= sm->queue[c->at].pages;
  advance(sm, MK_ROLE_CONSUMER);
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

static mk_status step_storer(mk_cpu *cpu, uint32_t q, bool *moved) {
  sm_state *sm = &cpu->sms[q];
  const cursor *c = &sm->roles[MK_ROLE_STORER];
  if (sm->steps[MK_ROLE_CONSUMER] == sm->steps[MK_ROLE_STORER]) {
    return MK_OK;
  }
  const mk_instruction *in = &sm->queue[c->at];
  MK_TRY(observe(cpu, q, MK_ROLE_STORER));
  if (cpu->options.adversarial && !signals_release(cpu, in)) {
    MK_TRY(mk_grow(&sm->late, &sm->late_capacity, sm->late_count + 1, sizeof *sm->late));
    sm->late[sm->late_count++] = (late_publication){.instruction = in, .generation = generation_of(cpu, c->epoch)};
  } else {
    while (sm->late_count != 0) {
      publish_late(cpu, sm, 0);
    }
    publish(cpu, in, generation_of(cpu, c->epoch));
  }
  signal_all(cpu, in);
  advance(sm, MK_ROLE_STORER);
  *moved = true;
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

/* Picks actors at random, and walks on from there past the ones that cannot move. */
static mk_status run_interleaved(mk_cpu *cpu) {
  uint32_t actors = (uint32_t)cpu->program->queue_count * (MK_ROLE_COUNT + 1);
  while (!interleaved_done(cpu)) {
    uint32_t start = random_below(cpu, actors);
    bool moved = false;
    for (uint32_t i = 0; i < actors && !moved; i++) {
      MK_TRY(step_any(cpu, (start + i) % actors, &moved));
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
    if (cpu->program->buffers[b].store == MK_STORE_STAMPED) {
      memset(cpu->memory[b], 0, cpu->program->buffers[b].bytes);
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
    sm->pages_in_flight = 0;
  }
  bool roles_apart = cpu->options.seed != 0 || cpu->options.adversarial || cpu->options.check_races;
  if (roles_apart && cpu->random == 0) {
    cpu->random = 1;
  }
  if (cpu->race != NULL) {
    mk_race_barrier(cpu->race);
  }
  mk_status status = roles_apart ? run_interleaved(cpu) : run_greedy(cpu);
  if (status != MK_OK) {
    clear_after_abort(cpu);
    return status;
  }
  cpu->first_epoch += (uint32_t)cpu->limit;
  return MK_OK;
}
