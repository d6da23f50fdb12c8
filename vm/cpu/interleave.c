/* The interleaved driver of the CPU machine: every role of every SM moves on its own, at random, within the limits of
 * the page ring and the result slots. */
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
                          .plan = cpu->plan,
                          .steps = cpu->plan_steps,
                          .rows_used = sm->rows_used[sm->steps[role] % cpu->program->machine.result_slots]};
}

/* Without arithmetic, too, what the consumer writes is visible at once, or only when the storer publishes it. */
bool mk_cpu_execute_accesses(mk_cpu *cpu, mk_cpu_sm *sm) {
  mk_access_turn turn = turn_of(cpu, sm, MK_ROLE_CONSUMER);
  bool waits = false;
  turn.stamp = random_below(cpu, 2) == 0 ? PENDING : turn.stamp;
  mk_status status = mk_accesses_consume(cpu->accesses, &turn, &waits);
  if (status != MK_OK) {
    mk_cpu_fail(cpu, status);
  }
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
                      .tiles = all || sm->tiles_used == NULL ? UINT32_MAX : sm->tiles_used[slot],
                      .state = &sm->step,
                      .generation = mk_cpu_epoch_generation(cpu, sm->roles[role].epoch)};
  return mk_race_step(cpu->race, q, role, cpu->program->queues[q].first + sm->roles[role].at, &used);
}

/* A bit for each rank to whose copy of the operand's buffer the instruction's words come later than they are written.
 * Stamped words come later to the writer's own rank, too. Plain words are on the writer's rank at once, and on others
 * later where there is an adversary. */
static uint64_t destinations(const mk_cpu *cpu, const mk_cpu_sm *sm, const mk_instruction *in, uint32_t slot) {
  const mk_buffer *buffer = &cpu->program->buffers[in->operands[slot].buffer];
  const uint64_t own = UINT64_C(1) << sm->rank;
  uint64_t ranks = buffer->store == MK_STORE_STAMPED ? own : 0;
  if (mk_opcode_lookup(in->opcode)->operands[slot].access == MK_ACCESS_READ || in->operands[slot].rows == 0) {
    return 0;
  }
  if (cpu->readers.operands != NULL) {
    const size_t index = (size_t)(in - cpu->program->instructions);
    const bool sent = buffer->store == MK_STORE_STAMPED || (cpu->options.adversarial && cpu->accesses == NULL);
    ranks |= sent ? cpu->readers.operands[index * MK_MAX_OPERANDS + slot] & ~own : 0;
  }
  return ranks;
}

static void publish_words(uint64_t *words, size_t count, uint32_t generation) {
  for (size_t i = 0; i < count; i++) {
    words[i] = words[i] >> 32 == PENDING ? (uint64_t)generation << 32 | (uint32_t)words[i] : words[i];
  }
}

/* How many pieces of an operand are published one by one: its tiles, or what the work list names. */
static uint32_t count_pieces(const mk_cpu *cpu, const mk_instruction *in, uint32_t slot) {
  if (mk_opcode_lookup(in->opcode)->operands[slot].when != MK_WHEN_LISTED) {
    return (uint32_t)in->operands[slot].rows * in->operands[slot].cols;
  }
  mk_listed_tiles at = {0};
  uint32_t count = 0;
  while (mk_listed_next(cpu->program, cpu->memory, in, slot, &at)) {
    count++;
  }
  return count;
}

static void publish_listed(mk_cpu *cpu, const mk_late_publication *late) {
  const mk_operand *operand = &late->instruction->operands[late->slot];
  const mk_buffer *buffer = &cpu->program->buffers[operand->buffer];
  mk_listed_tiles at = {0};
  for (uint32_t i = 0; i < late->end && mk_listed_next(cpu->program, cpu->memory, late->instruction, late->slot, &at);
       i++) {
    uint64_t *row = (uint64_t *)(void *)cpu->memory[operand->buffer] + (size_t)at.row * buffer->cols;
    if (i >= late->first) {
      publish_words(row + (size_t)at.col * buffer->tile_cols, (size_t)at.cols * buffer->tile_cols, late->generation);
    }
  }
}

/* Copies plain tiles from the writer's rank to another one, as far as their elements are of this generation by now. */
static void push_plain(mk_cpu *cpu, const mk_cpu_sm *sm, const mk_late_publication *late, const mk_operand *part) {
  const mk_buffer *buffer = &cpu->program->buffers[part->buffer];
  const size_t size = buffer->dtype == MK_DTYPE_BF16 ? 2 : 4;
  const uint8_t *from = mk_cpu_memory_of(cpu, sm->rank)[part->buffer];
  uint8_t *to = mk_cpu_memory_of(cpu, late->rank)[part->buffer];
  const uint32_t first = part->col * buffer->tile_cols, end = first + part->cols * buffer->tile_cols;
  const uint32_t end_row = (uint32_t)(part->row + part->rows) * buffer->tile_rows;
  for (uint32_t row = part->row * buffer->tile_rows; row < end_row && row < buffer->rows; row++) {
    for (uint32_t col = first; col < end && col < buffer->cols; col++) {
      const size_t at = ((size_t)row * buffer->cols + col) * size;
      mk_written_place place = {buffer, row, col, 1, sm->rank};
      if (mk_written_has(cpu->written, place, 0, late->generation)) {
        memcpy(to + at, from + at, size);
        place.rank = late->rank;
        mk_written_note(cpu->written, place, late->generation);
      }
    }
  }
}

static void publish(mk_cpu *cpu, const mk_cpu_sm *sm, const mk_late_publication *late) {
  const mk_operand *operand = &late->instruction->operands[late->slot];
  if (mk_opcode_lookup(late->instruction->opcode)->operands[late->slot].when == MK_WHEN_LISTED) {
    publish_listed(cpu, late);
    return;
  }
  for (uint32_t i = late->first; cpu->accesses != NULL && i < late->end; i++) {
    mk_accesses_publish(cpu->accesses, late->rank, operand, i, PENDING, late->generation);
  }
  uint32_t count;
  for (uint32_t i = late->first; cpu->accesses == NULL && i < late->end; i += count) { /* row by row of tiles */
    uint32_t row = i / operand->cols, col = i % operand->cols;
    count = late->end - i < operand->cols - col ? late->end - i : operand->cols - col;
    mk_operand part = {.buffer = operand->buffer,
                       .row = (uint16_t)(operand->row + row),
                       .rows = 1,
                       .col = (uint16_t)(operand->col + col),
                       .cols = (uint16_t)count};
    if (cpu->program->buffers[part.buffer].store != MK_STORE_STAMPED) {
      push_plain(cpu, sm, late, &part);
      continue;
    }
    mk_word_range range = mk_cpu_words(cpu, late->rank, &part);
    for (uint32_t r = range.first_row; r < range.end_row; r++) {
      publish_words(&range.words[r * range.row_words + range.first], range.end - range.first, late->generation);
    }
  }
}

static void publish_late(mk_cpu *cpu, mk_cpu_sm *sm, size_t which) {
  mk_late_publication late = sm->late[which];
  sm->late[which] = sm->late[--sm->late_count];
  publish(cpu, sm, &late);
}

/* Stores of one thread to one word stay in order: what this instruction wrote in earlier epochs becomes visible
 * first. */
static bool publish_earlier(mk_cpu *cpu, mk_cpu_sm *sm, const mk_instruction *in, uint32_t generation) {
  bool any = false;
  for (size_t i = sm->late_count; i-- != 0;) {
    if (sm->late[i].instruction == in && sm->late[i].generation != generation) {
      publish_late(cpu, sm, i);
      any = true;
    }
  }
  return any;
}

static mk_status add_late(mk_cpu *cpu, mk_cpu_sm *sm, mk_late_publication late) {
  late.held = cpu->holds != 0 && random_below(cpu, cpu->holds) == 0;
  MK_TRY(mk_grow(&sm->late, &sm->late_capacity, sm->late_count + 1, sizeof *sm->late));
  sm->late[sm->late_count++] = late;
  return MK_OK;
}

/* Makes visible what the role has written of its instruction: at once, or, with an adversary, later. */
static mk_status publish_role(mk_cpu *cpu, mk_cpu_sm *sm, mk_role role) {
  const mk_cpu_cursor *c = &sm->roles[role];
  const mk_instruction *in = &sm->queue[c->at];
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    bool now = !cpu->options.adversarial && role == MK_ROLE_STORER;
    uint64_t ranks = destinations(cpu, sm, in, slot);
    if (!now && (info->operands[slot].role != role || !cpu->options.adversarial)) {
      continue;
    }
    for (; ranks != 0; ranks &= ranks - 1) {
      mk_late_publication late = {.instruction = in,
                                  .slot = slot,
                                  .generation = mk_cpu_epoch_generation(cpu, c->epoch),
                                  .rank = (uint32_t)__builtin_ctzll(ranks),
                                  .end = count_pieces(cpu, in, slot),
                                  .step = sm->steps[role]};
      if (now) {
        publish(cpu, sm, &late);
      } else {
        MK_TRY(add_late(cpu, sm, late));
      }
    }
  }
  return MK_OK;
}

/* Makes pieces of a late publication visible: all of them, or some, and then the rest comes later, in any order. */
static mk_status publish_some(mk_cpu *cpu, mk_cpu_sm *sm, size_t which) {
  mk_late_publication whole = sm->late[which], now = whole, before = whole, after = whole;
  uint32_t count = whole.end - whole.first;
  if (count > 1 && random_below(cpu, 2) == 0) {
    uint32_t some = 1 + random_below(cpu, count);
    now.first += random_below(cpu, count - some + 1);
    now.end = now.first + some;
  }
  sm->late[which] = sm->late[--sm->late_count];
  publish(cpu, sm, &now);
  before.end = now.first;
  after.first = now.end;
  MK_TRY(before.end > before.first ? add_late(cpu, sm, before) : MK_OK);
  return after.end > after.first ? add_late(cpu, sm, after) : MK_OK;
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
  if (!room || !ready || !mk_cpu_loader_may(cpu, sm, in, c->epoch)) {
    return MK_OK;
  }
  sm->since = mk_recorder_now(cpu->recorder);
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

static bool signals_release(const mk_cpu *cpu, const mk_instruction *in) {
  for (uint32_t s = 0; s < in->signal_count; s++) {
    if (cpu->program->counters[in->signals[s].counter].kind == MK_COUNTER_RELEASE) {
      return true;
    }
  }
  return false;
}

/* Whether the role's instruction has signals that it sends. */
static bool sends(const mk_cpu_sm *sm, mk_role role) {
  const mk_instruction *in = &sm->queue[sm->roles[role].at];
  return in->signal_count != 0 && mk_opcode_finisher(mk_opcode_lookup(in->opcode)) == role;
}

/* Adds the instruction's signals to each copy of their counters, at once or, with an adversary, later. Everything that
 * came before the signals is visible by now. */
static mk_status add_signals(mk_cpu *cpu, uint32_t q, mk_role role, const mk_instruction *in) {
  mk_cpu_sm *sm = &cpu->sms[q];
  if (!cpu->options.adversarial || cpu->readers.counters == NULL) {
    if (cpu->race != NULL) {
      mk_race_signal(cpu->race, q, role, cpu->program->queues[q].first + sm->roles[role].at);
    }
    mk_cpu_signal(cpu, in);
    return MK_OK;
  }
  for (uint32_t s = 0; s < in->signal_count; s++) {
    const uint32_t counter = in->signals[s].counter;
    for (uint64_t ranks = mk_cpu_ranks_of_counter(cpu, counter); ranks != 0; ranks &= ranks - 1) {
      mk_late_signal late = {
          .counter = counter, .amount = in->signals[s].amount, .rank = (uint32_t)__builtin_ctzll(ranks)};
      MK_TRY(mk_grow(&sm->signals, &sm->signal_capacity, sm->signal_count + 1, sizeof *sm->signals));
      MK_TRY(cpu->race == NULL ? MK_OK : mk_race_send(cpu->race, q, role, &late.view));
      sm->signals[sm->signal_count++] = late;
    }
  }
  return MK_OK;
}

/* One of the signals that are under way arrives at its copy of the counter. */
static void arrive(mk_cpu *cpu, mk_cpu_sm *sm) {
  const size_t which = random_below(cpu, (uint32_t)sm->signal_count);
  const mk_late_signal signal = sm->signals[which];
  sm->signals[which] = sm->signals[--sm->signal_count];
  if (cpu->race != NULL) {
    mk_race_arrive(cpu->race, signal.view, signal.counter, signal.rank);
  }
  mk_race_view_free(signal.view);
  atomic_fetch_add_explicit(mk_cpu_count(cpu, signal.rank, signal.counter), signal.amount, memory_order_release);
}

/* Sends the signals of the role's instruction. Before a release signal everything becomes visible that happened before
 * it: if a consumer sends it, all that the SM's consumers have written so far; if a storer does, also what its storers
 * have written. */
static mk_status send(mk_cpu *cpu, uint32_t q, mk_role role) {
  mk_cpu_sm *sm = &cpu->sms[q];
  const mk_instruction *in = &sm->queue[sm->roles[role].at];
  for (size_t i = sm->late_count; i-- != 0 && signals_release(cpu, in);) {
    const mk_late_publication *late = &sm->late[i];
    mk_role writer = mk_opcode_lookup(late->instruction->opcode)->operands[late->slot].role;
    if (late->step <= sm->steps[role] && (writer == MK_ROLE_CONSUMER || role == MK_ROLE_STORER)) {
      publish_late(cpu, sm, i);
    }
  }
  return add_signals(cpu, q, role, in);
}

/* Words and signals are two steps, here and in step_storer: another SM may see the words before the signals. */
static mk_status step_consumer(mk_cpu *cpu, uint32_t q, bool *moved) {
  mk_cpu_sm *sm = &cpu->sms[q];
  const mk_cpu_cursor *c = &sm->roles[MK_ROLE_CONSUMER];
  if (sm->computed) {
    MK_TRY(send(cpu, q, MK_ROLE_CONSUMER));
    sm->computed = false;
    mk_cpu_advance(cpu, sm, MK_ROLE_CONSUMER);
    *moved = true;
    return MK_OK;
  }
  bool loaded = sm->steps[MK_ROLE_LOADER] > sm->steps[MK_ROLE_CONSUMER];
  /* The words of an instruction lie in memory until they are published, which has to happen before the next epoch
   * computes them anew. */
  uint32_t slots = cpu->program->machine.result_slots < sm->count ? cpu->program->machine.result_slots : sm->count;
  bool slot_free = sm->steps[MK_ROLE_CONSUMER] - sm->steps[MK_ROLE_STORER] < slots;
  if (c->epoch >= cpu->limit || !loaded || !slot_free) {
    return MK_OK;
  }
  *moved = publish_earlier(cpu, sm, &sm->queue[c->at], mk_cpu_epoch_generation(cpu, c->epoch));
  if (!mk_cpu_execute(cpu, sm, PENDING, cpu->scratch == NULL ? NULL : cpu->scratch[0])) {
    return (mk_status)cpu->failure;
  }
  if (mk_cpu_at_boundary(sm) && c->epoch == cpu->announced) { /* the first SM that passes it tells the host */
    cpu->announced++;
    mk_cpu_announce(cpu, sm, c->epoch);
  }
  MK_TRY((mk_status)cpu->failure);
  MK_TRY(observe(cpu, q, MK_ROLE_CONSUMER));
  MK_TRY(publish_role(cpu, sm, MK_ROLE_CONSUMER));
  sm->pages_in_flight -= sm->queue[c->at].pages;
  *moved = true;
  sm->computed = sends(sm, MK_ROLE_CONSUMER);
  if (!sm->computed) {
    mk_cpu_advance(cpu, sm, MK_ROLE_CONSUMER);
  }
  return (mk_status)cpu->failure;
}

static mk_status store(mk_cpu *cpu, uint32_t q) {
  mk_cpu_sm *sm = &cpu->sms[q];
  const mk_cpu_cursor *c = &sm->roles[MK_ROLE_STORER];
  MK_TRY(observe(cpu, q, MK_ROLE_STORER));
  if (cpu->accesses != NULL) {
    mk_access_turn turn = turn_of(cpu, sm, MK_ROLE_STORER);
    turn.stamp = PENDING;
    (void)publish_earlier(cpu, sm, &sm->queue[c->at], turn.generation);
    MK_TRY(mk_accesses_store(cpu->accesses, &turn));
  }
  return publish_role(cpu, sm, MK_ROLE_STORER);
}

static mk_status step_storer(mk_cpu *cpu, uint32_t q, bool *moved) {
  mk_cpu_sm *sm = &cpu->sms[q];
  if (sm->steps[MK_ROLE_CONSUMER] == sm->steps[MK_ROLE_STORER]) {
    return MK_OK;
  }
  *moved = true;
  sm->since = mk_recorder_now(cpu->recorder);
  if (!sm->stored) {
    MK_TRY(store(cpu, q));
    sm->stored = sends(sm, MK_ROLE_STORER);
    if (sm->stored) {
      mk_cpu_record_work(cpu, sm, MK_ROLE_STORER);
      mk_recorder_rest(cpu->recorder, q, MK_ROLE_STORER, sm->roles[MK_ROLE_STORER].epoch);
      return MK_OK;
    }
  }
  if (sm->stored) {
    MK_TRY(send(cpu, q, MK_ROLE_STORER));
  }
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
  if (sm->signal_count != 0 && (sm->late_count == 0 || random_below(cpu, 2) == 0)) {
    *moved = true;
    arrive(cpu, sm);
    return MK_OK;
  }
  uint32_t start = sm->late_count == 0 ? 0 : random_below(cpu, (uint32_t)sm->late_count);
  for (size_t i = 0; i < sm->late_count; i++) {
    size_t which = (start + i) % sm->late_count;
    if (!sm->late[which].held) {
      *moved = true;
      return publish_some(cpu, sm, which);
    }
  }
  return MK_OK;
}

static bool interleaved_done(const mk_cpu *cpu) {
  for (size_t q = 0; q < cpu->program->queue_count; q++) {
    const mk_cpu_sm *sm = &cpu->sms[q];
    if (sm->count != 0 &&
        (sm->roles[MK_ROLE_STORER].epoch < cpu->limit || sm->late_count != 0 || sm->signal_count != 0)) {
      return false;
    }
  }
  return true;
}

/* Moves an actor from place `from` of the order to place `to`. */
static void move_actor(mk_cpu *cpu, uint32_t from, uint32_t to) {
  uint32_t actor = cpu->order[from];
  memmove(&cpu->order[from], &cpu->order[from + 1], (mk_cpu_actors(cpu) - 1 - from) * sizeof actor);
  memmove(&cpu->order[to + 1], &cpu->order[to], (mk_cpu_actors(cpu) - 1 - to) * sizeof actor);
  cpu->order[to] = actor;
}

/* How an adversary picks the next actor: the first one that can move, in the order of priorities or from a random
 * one on. */
typedef struct adversary {
  uint32_t seldom;  /* steps between two changes of mind, on average; 0: there is no adversary */
  uint32_t freezes; /* so far */
  bool by_priority;
} adversary;

static void freeze_sm(mk_cpu *cpu, adversary *a, uint32_t actor) {
  uint32_t first = actor - actor % (MK_ROLE_COUNT + 1);
  for (uint32_t i = first; i <= first + MK_ROLE_COUNT; i++) {
    cpu->frozen[i] = ++a->freezes;
  }
}

static void begin_adversary(mk_cpu *cpu, adversary *a) {
  uint32_t actors = mk_cpu_actors(cpu);
  *a = (adversary){.seldom = 4u << random_below(cpu, 6), .by_priority = random_below(cpu, 4) != 0};
  cpu->holds = random_below(cpu, 2) == 0 ? 0 : 2u << random_below(cpu, 3);
  for (uint32_t i = 0; i < actors; i++) {
    move_actor(cpu, i, random_below(cpu, i + 1));
    cpu->frozen[i] = 0;
  }
  if (random_below(cpu, 4) == 0) {
    freeze_sm(cpu, a, random_below(cpu, actors));
  }
}

/* From now on some actor goes first, or last, or it stands still, or its whole SM does. */
static void change_mind(mk_cpu *cpu, adversary *a) {
  uint32_t actors = mk_cpu_actors(cpu), actor = random_below(cpu, actors), what = random_below(cpu, 8);
  if (what == 0) {
    cpu->frozen[actor] = ++a->freezes;
  } else if (what == 1) {
    freeze_sm(cpu, a, actor);
  } else {
    move_actor(cpu, actor, what % 2 * (actors - 1));
  }
}

/* The actor that has stood still for the shortest time may move again; false: none stands still. */
static bool thaw(mk_cpu *cpu) {
  uint32_t last = 0;
  for (uint32_t i = 0; i < mk_cpu_actors(cpu); i++) {
    last = cpu->frozen[i] > cpu->frozen[last] ? i : last;
  }
  bool any = cpu->frozen[last] != 0;
  cpu->frozen[last] = 0;
  return any;
}

/* Some words that are held back may become visible from now on; false: there are none. */
static bool let_go(mk_cpu *cpu) {
  uint32_t queues = (uint32_t)cpu->program->queue_count, start = random_below(cpu, queues);
  for (uint32_t q = 0; q < queues; q++) {
    mk_cpu_sm *sm = &cpu->sms[(start + q) % queues];
    for (size_t i = 0; i < sm->late_count; i++) {
      if (sm->late[i].held) {
        sm->late[i].held = false;
        return true;
      }
    }
  }
  return false;
}

/* Called when no actor can move but those that stand still: one of them may go on. */
static bool relent(mk_cpu *cpu) {
  return random_below(cpu, 2) == 0 ? thaw(cpu) || let_go(cpu) : let_go(cpu) || thaw(cpu);
}

/* Picks an actor at random, or as the adversary does; where that one cannot move, the next one that can. */
mk_status mk_cpu_run_interleaved(mk_cpu *cpu) {
  uint32_t actors = mk_cpu_actors(cpu);
  adversary a = {.seldom = 0};
  if (cpu->options.adversarial) {
    begin_adversary(cpu, &a);
  }
  while (!interleaved_done(cpu)) {
    bool moved = false;
    if (a.seldom != 0 && random_below(cpu, a.seldom) == 0) {
      change_mind(cpu, &a);
    }
    uint32_t start = a.by_priority ? 0 : random_below(cpu, actors);
    for (uint32_t i = 0; i < actors && !moved; i++) {
      uint32_t actor = (start + i) % actors;
      actor = a.by_priority ? cpu->order[actor] : actor;
      MK_TRY(a.seldom != 0 && cpu->frozen[actor] != 0 ? MK_OK : step_any(cpu, actor, &moved));
    }
    if (!moved && (a.seldom == 0 || !relent(cpu))) {
      return mk_cpu_deadlock(cpu);
    }
  }
  return MK_OK;
}
