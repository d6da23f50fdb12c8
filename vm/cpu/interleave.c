/* The interleaved driver of the CPU machine: every role of every SM moves on its own, at random, within the limits of the page ring
 * and the result slots. */
#include "vm/cpu/machine_internal.h"

#include <string.h>

#include "instructions/mla.h"

enum { PENDING = UINT32_MAX }; /* stamp of a word whose publication the machine holds back */

/* xorshift64*, Vigna 2016. */
static uint32_t random_below(mk_cpu *cpu, uint32_t n) {
  cpu->random ^= cpu->random >> 12;
  cpu->random ^= cpu->random << 25;
  cpu->random ^= cpu->random >> 27;
  return (uint32_t)(((cpu->random * 0x2545f4914f6cdd1du) >> 32) * n >> 32);
}

static mk_access_turn turn_of(const mk_cpu *cpu, mk_cpu_sm *sm, mk_role role) {
  const mk_cpu_cursor *c = &sm->roles[role];
  uint32_t queue = (uint32_t)(sm - cpu->sms), generation = mk_cpu_epoch_generation(cpu, c->epoch);
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
bool mk_cpu_execute_accesses(mk_cpu *cpu, mk_cpu_sm *sm) {
  mk_access_turn turn = turn_of(cpu, sm, MK_ROLE_CONSUMER);
  bool waits = false;
  turn.stamp = random_below(cpu, 2) == 0 ? PENDING : turn.stamp;
  mk_status status = mk_accesses_consume(cpu->accesses, &turn, &waits);
  cpu->failure = status != MK_OK ? status : cpu->failure;
  return !waits;
}

static mk_status observe(mk_cpu *cpu, uint32_t q, mk_role role) {
  if (cpu->race == NULL) {
    return MK_OK;
  }
  const mk_cpu_sm *sm = &cpu->sms[q];
  uint64_t slot = sm->steps[role] % cpu->program->machine.result_slots;
  bool all = role == MK_ROLE_LOADER;
  mk_race_use used = {.rows = all ? NULL : sm->rows_used[slot],
                      .parts = all || sm->parts_used == NULL ? NULL : sm->parts_used[slot],
                      .state = &sm->step,
                      .generation = mk_cpu_epoch_generation(cpu, sm->roles[role].epoch)};
  return mk_race_step(cpu->race, q, role, cpu->program->queues[q].first + sm->roles[role].at, &used);
}

static void publish_words(uint64_t *words, size_t count, uint32_t generation) {
  for (size_t i = 0; i < count; i++) {
    words[i] = words[i] >> 32 == PENDING ? (uint64_t)generation << 32 | (uint32_t)words[i] : words[i];
  }
}

static void publish_listed(mk_cpu *cpu, const mk_instruction *in, uint32_t slot, uint32_t generation) {
  const mk_buffer *buffer = &cpu->program->buffers[in->operands[slot].buffer];
  mk_listed_tiles at = {0};
  while (mk_listed_next(cpu->program, cpu->memory, in, slot, &at)) {
    uint64_t *row = (uint64_t *)(void *)cpu->memory[in->operands[slot].buffer] + (size_t)at.row * buffer->cols;
    publish_words(row + (size_t)at.col * buffer->tile_cols, (size_t)at.cols * buffer->tile_cols, generation);
  }
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
    if (info->operands[slot].when == MK_WHEN_LISTED) {
      publish_listed(cpu, in, slot, generation);
      continue;
    }
    mk_word_range range = mk_cpu_words(cpu, operand);
    for (uint32_t r = range.first_row; r < range.end_row; r++) {
      publish_words(&range.words[r * range.row_words + range.first], range.end - range.first, generation);
    }
  }
}

static void publish_late(mk_cpu *cpu, mk_cpu_sm *sm, size_t which) {
  mk_late_publication late = sm->late[which];
  sm->late[which] = sm->late[--sm->late_count];
  publish(cpu, late.instruction, late.generation);
}

/* Stores of one thread to one word stay in order: what this instruction wrote an epoch ago becomes visible first. */
static bool publish_earlier(mk_cpu *cpu, mk_cpu_sm *sm, const mk_instruction *in) {
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
  mk_cpu_sm *sm = &cpu->sms[q];
  const mk_cpu_cursor *c = &sm->roles[MK_ROLE_LOADER];
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
  mk_cpu_record_work(cpu, sm, MK_ROLE_LOADER);
  mk_cpu_advance(cpu, sm, MK_ROLE_LOADER);
  *moved = true;
  return MK_OK;
}

static mk_status step_consumer(mk_cpu *cpu, uint32_t q, bool *moved) {
  mk_cpu_sm *sm = &cpu->sms[q];
  const mk_cpu_cursor *c = &sm->roles[MK_ROLE_CONSUMER];
  bool loaded = sm->steps[MK_ROLE_LOADER] > sm->steps[MK_ROLE_CONSUMER];
  bool slot_free = sm->steps[MK_ROLE_CONSUMER] - sm->steps[MK_ROLE_STORER] < cpu->program->machine.result_slots;
  if (c->epoch >= cpu->limit || !loaded || !slot_free) {
    return MK_OK;
  }
  *moved = publish_earlier(cpu, sm, &sm->queue[c->at]);
  if (!mk_cpu_execute(cpu, sm, PENDING)) {
    return cpu->failure;
  }
  MK_TRY(cpu->failure);
  MK_TRY(observe(cpu, q, MK_ROLE_CONSUMER));
  sm->pages_in_flight -= sm->queue[c->at].pages;
  mk_cpu_advance(cpu, sm, MK_ROLE_CONSUMER);
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
  mk_cpu_sm *sm = &cpu->sms[q];
  const mk_cpu_cursor *c = &sm->roles[MK_ROLE_STORER];
  const mk_instruction *in = &sm->queue[c->at];
  MK_TRY(observe(cpu, q, MK_ROLE_STORER));
  if (cpu->accesses != NULL) {
    mk_access_turn turn = turn_of(cpu, sm, MK_ROLE_STORER);
    turn.stamp = PENDING;
    (void)publish_earlier(cpu, sm, in);
    MK_TRY(mk_accesses_store(cpu->accesses, &turn));
  }
  if (!cpu->options.adversarial) {
    publish(cpu, in, mk_cpu_epoch_generation(cpu, c->epoch));
    return MK_OK;
  }
  MK_TRY(mk_grow(&sm->late, &sm->late_capacity, sm->late_count + 1, sizeof *sm->late));
  sm->late[sm->late_count++] =
      (mk_late_publication){.instruction = in, .generation = mk_cpu_epoch_generation(cpu, c->epoch)};
  return MK_OK;
}

/* Stores and signals are two steps: another SM may see the words before the signals. */
static mk_status step_storer(mk_cpu *cpu, uint32_t q, bool *moved) {
  mk_cpu_sm *sm = &cpu->sms[q];
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
      mk_cpu_record_work(cpu, sm, MK_ROLE_STORER);
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
  mk_cpu_signal(cpu, in);
  sm->stored = false;
  mk_cpu_record_work(cpu, sm, MK_ROLE_STORER);
  mk_cpu_advance(cpu, sm, MK_ROLE_STORER);
  return MK_OK;
}

static mk_status step_any(mk_cpu *cpu, uint32_t actor, bool *moved) {
  uint32_t q = actor / (MK_ROLE_COUNT + 1), what = actor % (MK_ROLE_COUNT + 1);
  mk_cpu_sm *sm = &cpu->sms[q];
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
    const mk_cpu_sm *sm = &cpu->sms[q];
    if (sm->count != 0 && (sm->roles[MK_ROLE_STORER].epoch < cpu->limit || sm->late_count != 0)) {
      return false;
    }
  }
  return true;
}

/* Puts the actor at place `from` of the order to place `to`. */
static void move_actor(mk_cpu *cpu, uint32_t from, uint32_t to) {
  uint32_t actor = cpu->order[from];
  memmove(&cpu->order[from], &cpu->order[from + 1], (mk_cpu_actors(cpu) - 1 - from) * sizeof actor);
  memmove(&cpu->order[to + 1], &cpu->order[to], (mk_cpu_actors(cpu) - 1 - to) * sizeof actor);
  cpu->order[to] = actor;
}

/* Picks actors at random, and walks on from there past the ones that cannot move. Unfair: takes the first that can in an
 * order that changes now and then, so that some are left behind for as long as the program allows. */
mk_status mk_cpu_run_interleaved(mk_cpu *cpu) {
  uint32_t actors = mk_cpu_actors(cpu), changes = 0;
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
      return mk_cpu_deadlock(cpu);
    }
  }
  return MK_OK;
}
