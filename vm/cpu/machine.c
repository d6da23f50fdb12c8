/* Memory and life of the CPU machine, and what its two drivers (threads.c, interleave.c) share. */
#include "vm/cpu/machine_internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "instructions/mla.h"
#include "instructions/reference.h"
#include "vm/program/attend_list.h"

static mk_status init_scratch(mk_cpu *cpu) {
  size_t floats = mk_reference_scratch(cpu->program) + 64;
  MK_TRY(mk_alloc(cpu->options.threads, sizeof *cpu->scratch, &cpu->scratch));
  for (uint32_t t = 0; t < cpu->options.threads; t++) {
    MK_TRY(mk_alloc_aligned(64, floats * sizeof **cpu->scratch, &cpu->scratch[t]));
  }
  return MK_OK;
}

static bool borrows(const mk_cpu *cpu, size_t buffer) {
  uint32_t kind = cpu->program->buffers[buffer].kind;
  return cpu->lender != NULL && (kind == MK_KIND_WEIGHT || kind == MK_KIND_KV);
}

static mk_status borrow(mk_cpu *cpu, size_t buffer) {
  const mk_buffer *b = &cpu->program->buffers[buffer];
  int lent = cpu->options.accesses_only ? -1 : mk_program_find_shared(cpu->lender->program, b);
  cpu->memory[buffer] = lent < 0 ? NULL : cpu->lender->memory[lent];
  return cpu->memory[buffer] != NULL
             ? MK_OK
             : mk_error(MK_ERR_USAGE, "the machine beside has no buffer %s of this shape to lend", b->name);
}

/* All ranks share one memory, but for buffers with a copy on each rank that programs write. A buffer that is dealt to
 * ranks is one piece of memory, too: the race detector finds an instruction that touches another rank's tile. */
static mk_status init_ranks(mk_cpu *cpu) {
  const mk_program *program = cpu->program;
  for (uint32_t rank = 1; rank < program->machine.ranks; rank++) {
    uint8_t **memory = mk_cpu_memory_of(cpu, rank);
    for (size_t b = 0; b < program->buffer_count; b++) {
      memory[b] = cpu->memory[b];
      if (mk_buffer_is_pushed(program, &program->buffers[b]) && !cpu->options.accesses_only) {
        memory[b] = NULL; /* of a machine that is given up here */
        MK_TRY(mk_alloc_aligned(64, program->buffers[b].bytes, &memory[b]));
      }
    }
  }
  return MK_OK;
}

static mk_status init_memory(mk_cpu *cpu) {
  const mk_program *program = cpu->program;
  MK_TRY(mk_alloc(program->machine.ranks * program->buffer_count, sizeof *cpu->memory, &cpu->memory));
  for (size_t b = 0; b < program->buffer_count; b++) {
    if (borrows(cpu, b)) {
      MK_TRY(borrow(cpu, b));
    } else if (!cpu->options.accesses_only) {
      MK_TRY(mk_alloc_aligned(64, program->buffers[b].bytes, &cpu->memory[b]));
    }
  }
  MK_TRY(init_ranks(cpu));
  return program->machine.ranks > 1 ? mk_program_readers(program, &cpu->readers) : MK_OK;
}

static void free_memory(mk_cpu *cpu) {
  const mk_program *program = cpu->program;
  for (uint32_t rank = 0; cpu->memory != NULL && rank < program->machine.ranks; rank++) {
    for (size_t b = 0; b < program->buffer_count; b++) {
      const bool own = rank == 0 ? !borrows(cpu, b) : mk_buffer_is_pushed(program, &program->buffers[b]);
      mk_free(own ? mk_cpu_memory_of(cpu, rank)[b] : NULL);
    }
  }
  mk_free(cpu->memory);
  mk_readers_free(&cpu->readers);
}

static mk_status init(mk_cpu *cpu) {
  const mk_program *program = cpu->program;
  MK_TRY(init_memory(cpu));
  MK_TRY(mk_alloc(program->queue_count, sizeof *cpu->sms, &cpu->sms));
  for (size_t q = 0; q < program->queue_count; q++) {
    mk_cpu_sm *sm = &cpu->sms[q];
    sm->rank = mk_queue_rank(program, q);
    sm->count = program->queues[q].count;
    sm->queue = sm->count == 0 ? NULL : program->instructions + program->queues[q].first;
    MK_TRY(mk_alloc(program->machine.result_slots, sizeof *sm->rows_used, &sm->rows_used));
    if (mk_program_rows(program) > 1) {
      MK_TRY(mk_alloc(program->machine.result_slots, sizeof *sm->parts_used, &sm->parts_used));
      MK_TRY(mk_alloc(program->machine.result_slots, sizeof *sm->tiles_used, &sm->tiles_used));
    }
    for (uint32_t i = 0; i < sm->count; i++) {
      sm->has_boundary |= mk_opcode_lookup(sm->queue[i].opcode)->state == MK_STATE_WRITE;
      cpu->listed |= mk_instruction_listed(&sm->queue[i]);
    }
    cpu->has_boundary |= sm->has_boundary;
  }
  MK_TRY(mk_alloc(program->machine.ranks * program->counter_count, sizeof *cpu->counters, &cpu->counters));
  if (cpu->options.accesses_only && cpu->listed) {
    return mk_error(MK_ERR_USAGE,
                    "accesses_only has no inputs, and this program follows a work list; run it with arithmetic");
  }
  if (cpu->options.accesses_only) {
    MK_TRY(mk_accesses_new(program, &cpu->accesses));
  } else {
    MK_TRY(init_scratch(cpu));
  }
  if (cpu->options.adversarial) {
    MK_TRY(mk_alloc(mk_cpu_actors(cpu), sizeof *cpu->order, &cpu->order));
    MK_TRY(mk_alloc(mk_cpu_actors(cpu), sizeof *cpu->frozen, &cpu->frozen));
    for (uint32_t i = 0; i < mk_cpu_actors(cpu); i++) {
      cpu->order[i] = i;
    }
  }
  if (cpu->options.check_races) {
    MK_TRY(mk_race_new(program, &cpu->race));
    MK_TRY(cpu->options.accesses_only ? MK_OK : mk_race_memory(cpu->race, cpu->memory));
  }
  if ((cpu->options.check_races || cpu->options.adversarial) && !cpu->options.accesses_only) {
    MK_TRY(mk_written_new(program, &cpu->written));
  }
  return MK_OK;
}

static bool roles_apart(const mk_cpu *cpu) {
  const mk_cpu_options *o = &cpu->options;
  return o->seed != 0 || o->adversarial || o->check_races || o->accesses_only;
}

mk_status mk_cpu_new(const mk_program *program, const mk_cpu_options *options, mk_cpu **out) {
  return mk_cpu_new_beside(program, options, NULL, out);
}

mk_status mk_cpu_new_beside(const mk_program *program, const mk_cpu_options *options, const mk_cpu *lender,
                            mk_cpu **out) {
  *out = NULL;
  if (options->accesses_only && mk_program_rows(program) > 1) {
    return mk_error(MK_ERR_USAGE, "accesses alone are for programs of one row per step; this one has %u",
                    mk_program_rows(program));
  }
  if (options->threads > MK_CPU_MOST_THREADS) {
    return mk_error(MK_ERR_USAGE, "%u threads; the CPU machine has at most %d", options->threads, MK_CPU_MOST_THREADS);
  }
  MK_TRY(mk_alloc(1, sizeof **out, out));
  mk_cpu *cpu = *out;
  cpu->program = program;
  cpu->options = *options;
  cpu->lender = lender;
  cpu->options.threads = options->threads == 0 || roles_apart(cpu) ? 1 : options->threads;
  pthread_mutex_init(&cpu->failing, NULL);
  cpu->random = options->seed;
  mk_status status = init(cpu);
  if (status != MK_OK) {
    mk_cpu_free(cpu);
    *out = NULL;
  }
  return status;
}

static void forget_signals(mk_cpu_sm *sm) {
  for (size_t s = 0; s < sm->signal_count; s++) {
    mk_race_view_free(sm->signals[s].view);
  }
  sm->signal_count = 0;
}

void mk_cpu_free(mk_cpu *cpu) {
  if (cpu == NULL) {
    return;
  }
  free_memory(cpu);
  for (size_t q = 0; cpu->sms != NULL && q < cpu->program->queue_count; q++) {
    forget_signals(&cpu->sms[q]);
    mk_free(cpu->sms[q].signals);
    mk_free(cpu->sms[q].late);
    mk_free(cpu->sms[q].rows_used);
    mk_free(cpu->sms[q].parts_used);
    mk_free(cpu->sms[q].tiles_used);
  }
  mk_free(cpu->sms);
  mk_free(cpu->counters);
  for (uint32_t t = 0; cpu->scratch != NULL && t < cpu->options.threads; t++) {
    mk_free(cpu->scratch[t]);
  }
  mk_free(cpu->scratch);
  pthread_mutex_destroy(&cpu->failing);
  mk_free(cpu->order);
  mk_free(cpu->frozen);
  mk_written_free(cpu->written);
  mk_race_free(cpu->race);
  mk_recorder_free(cpu->recorder);
  mk_accesses_free(cpu->accesses);
  mk_free(cpu);
}

void *mk_cpu_copy(mk_cpu *cpu, uint32_t rank, size_t index) {
  return cpu->accesses != NULL ? (void *)mk_accesses_words(cpu->accesses, rank, index)
                               : mk_cpu_memory_of(cpu, rank)[index];
}

void *mk_cpu_memory(mk_cpu *cpu, size_t index) { return mk_cpu_copy(cpu, 0, index); }

uint32_t mk_cpu_generation(const mk_cpu *cpu) { return cpu->first_epoch; }

/* Reads a counter. What came before the signals that are counted is visible to the caller after that. */
static uint32_t count_of(const mk_cpu *cpu, uint32_t rank, uint32_t counter) {
  return atomic_load_explicit(mk_cpu_count(cpu, rank, counter), memory_order_acquire);
}

uint32_t mk_cpu_counter(const mk_cpu *cpu, size_t index) {
  const uint64_t ranks = mk_cpu_ranks_of_counter(cpu, (uint32_t)index);
  return count_of(cpu, (uint32_t)__builtin_ctzll(ranks), (uint32_t)index);
}

static uint32_t wanted(const mk_cpu *cpu, const mk_wait *wait, uint64_t epoch) {
  return (cpu->first_epoch + (uint32_t)epoch) * cpu->program->counters[wait->counter].total + wait->threshold;
}

static bool waits_satisfied(const mk_cpu *cpu, const mk_cpu_sm *sm, const mk_instruction *in, uint64_t epoch) {
  for (uint32_t w = 0; w < in->wait_count; w++) {
    if ((int32_t)(count_of(cpu, sm->rank, in->waits[w].counter) - wanted(cpu, &in->waits[w], epoch)) < 0) {
      return false;
    }
  }
  return true;
}

bool mk_cpu_loader_may(const mk_cpu *cpu, const mk_cpu_sm *sm, const mk_instruction *in, uint64_t epoch) {
  return !mk_opcode_loader_waits(mk_opcode_lookup(in->opcode)) || waits_satisfied(cpu, sm, in, epoch);
}

/* The test fault point: one instruction takes longer. */
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

void mk_cpu_record_work(const mk_cpu *cpu, const mk_cpu_sm *sm, mk_role role) {
  const mk_cpu_cursor *c = &sm->roles[role];
  mk_recorder_work(cpu->recorder, (uint32_t)(sm - cpu->sms), role, c->epoch, sm->since, sm->queue[c->at].uid);
}

void mk_cpu_advance(const mk_cpu *cpu, mk_cpu_sm *sm, mk_role role) {
  mk_cpu_cursor *c = &sm->roles[role];
  sm->steps[role]++;
  if (++c->at == sm->count) {
    c->at = 0;
    c->epoch++;
  }
  mk_recorder_leave(cpu->recorder, (uint32_t)(sm - cpu->sms), role, c->epoch, c->at == 0);
}

void mk_cpu_fail(mk_cpu *cpu, mk_status status) {
  pthread_mutex_lock(&cpu->failing);
  if (cpu->failure == MK_OK) {
    snprintf(cpu->failure_message, sizeof cpu->failure_message, "%s", mk_error_message());
    cpu->failure = (int)status;
  }
  pthread_mutex_unlock(&cpu->failing);
}

void mk_cpu_announce(mk_cpu *cpu, const mk_cpu_sm *sm, uint64_t epoch) {
  if (cpu->fn != NULL && !cpu->fn(cpu->user, (uint32_t)epoch, sm->step.results)) {
    cpu->limit = epoch + 1;
  }
}

static bool execute_arithmetic(mk_cpu *cpu, mk_cpu_sm *sm, uint32_t publish, float *scratch) {
  const mk_cpu_cursor *c = &sm->roles[MK_ROLE_CONSUMER];
  const mk_instruction *in = &sm->queue[c->at];
  const size_t slots = (size_t)(in - cpu->program->instructions) * MK_MAX_OPERANDS;
  const mk_copies copies = {.memory = cpu->memory,
                            .readers = cpu->readers.operands == NULL ? NULL : cpu->readers.operands + slots,
                            .plain_later = cpu->options.adversarial};
  mk_reference reference = {.program = cpu->program,
                            .memory = mk_cpu_memory_of(cpu, sm->rank),
                            .rank = sm->rank,
                            .copies = copies.readers == NULL ? NULL : &copies,
                            .state = &sm->step,
                            .generation = mk_cpu_epoch_generation(cpu, c->epoch),
                            .publish = publish,
                            .scratch = scratch,
                            .sm = (uint32_t)(sm - cpu->sms),
                            .written = cpu->written};
  mk_reference_result result = mk_reference_run(&reference, in);
  if (result != MK_REFERENCE_DONE) {
    if (result == MK_REFERENCE_FAULT) {
      mk_cpu_fail(cpu, MK_ERR_DEVICE);
    }
    return false;
  }
  uint64_t slot = sm->steps[MK_ROLE_CONSUMER] % cpu->program->machine.result_slots;
  memcpy(sm->rows_used[slot], reference.rows_used, sizeof reference.rows_used);
  if (sm->parts_used != NULL) {
    memcpy(sm->parts_used[slot], reference.parts_used, sizeof reference.parts_used);
    sm->tiles_used[slot] = reference.active_tiles;
  }
  return true;
}

mk_word_range mk_cpu_words(const mk_cpu *cpu, uint32_t rank, const mk_operand *operand) {
  const mk_buffer *buffer = &cpu->program->buffers[operand->buffer];
  uint32_t per_word = buffer->dtype == MK_DTYPE_BF16 ? 2 : 1,
           end_row = (operand->row + operand->rows) * buffer->tile_rows;
  size_t row_words = (buffer->cols + per_word - 1) / per_word;
  size_t first = (size_t)operand->col * buffer->tile_cols / per_word;
  size_t end = first + (size_t)operand->cols * buffer->tile_cols / per_word;
  return (mk_word_range){.words = (uint64_t *)(void *)mk_cpu_memory_of(cpu, rank)[operand->buffer],
                         .row_words = row_words,
                         .first = first,
                         .end = end < row_words ? end : row_words,
                         .first_row = operand->row * buffer->tile_rows,
                         .end_row = end_row < buffer->rows ? end_row : buffer->rows};
}

static bool has_stale_word(const mk_cpu *cpu, const mk_cpu_sm *sm, const mk_instruction *in, uint32_t slot,
                           uint32_t generation) {
  const mk_step_state *state = &sm->step;
  const mk_operand *operand = &in->operands[slot];
  const mk_buffer *buffer = &cpu->program->buffers[operand->buffer];
  const uint32_t rows = mk_program_rows(cpu->program), lines = mk_instruction_lines(cpu->program, in);
  mk_word_range range = mk_cpu_words(cpu, sm->rank, operand);
  for (uint32_t r = range.first_row; range.words != NULL && r < range.end_row; r++) {
    const uint32_t tile = mk_row_tile_lines(cpu->program, lines, buffer, r / buffer->tile_rows);
    const uint32_t line = tile == MK_ALL_LINES ? r % rows : tile * buffer->tile_rows + r % buffer->tile_rows;
    if ((state->rows[line].flags & MK_ROW_ACTIVE) == 0) {
      continue;
    }
    for (size_t w = range.first; w < range.end; w++) {
      if (mk_word_load(&range.words[r * range.row_words + w]) >> 32 != generation) {
        return true;
      }
    }
  }
  return false;
}

/* The first counter or stamped input that the consumer waits for. */
static void record_wait(const mk_cpu *cpu, const mk_cpu_sm *sm) {
  const mk_cpu_cursor *c = &sm->roles[MK_ROLE_CONSUMER];
  const mk_instruction *in = &sm->queue[c->at];
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  uint32_t generation = mk_cpu_epoch_generation(cpu, c->epoch), edge = 0;
  mk_activity activity = MK_ACTIVITY_STAMP;
  if (!mk_recorder_wants(cpu->recorder, c->epoch)) {
    return;
  }
  for (uint32_t slot = info->operand_count; slot-- != 0;) {
    const mk_operand *operand = &in->operands[slot];
    if (info->operands[slot].role == MK_ROLE_CONSUMER && info->operands[slot].access == MK_ACCESS_READ &&
        cpu->program->buffers[operand->buffer].store == MK_STORE_STAMPED &&
        (info->operands[slot].when == MK_WHEN_LISTED || has_stale_word(cpu, sm, in, slot, generation))) {
      edge = operand->buffer;
    }
  }
  for (uint32_t w = in->wait_count; w-- != 0;) {
    if ((int32_t)(count_of(cpu, sm->rank, in->waits[w].counter) - wanted(cpu, &in->waits[w], c->epoch)) < 0) {
      activity = MK_ACTIVITY_COUNTER;
      edge = in->waits[w].counter;
    }
  }
  mk_recorder_wait(cpu->recorder, (uint32_t)(sm - cpu->sms), MK_ROLE_CONSUMER, c->epoch, sm->since, activity, in->uid,
                   edge);
}

bool mk_cpu_execute(mk_cpu *cpu, mk_cpu_sm *sm, uint32_t publish, float *scratch) {
  const mk_cpu_cursor *c = &sm->roles[MK_ROLE_CONSUMER];
  const mk_instruction *in = &sm->queue[c->at];
  sm->since = mk_recorder_now(cpu->recorder);
  if (!waits_satisfied(cpu, sm, in, c->epoch) ||
      !(cpu->accesses != NULL ? mk_cpu_execute_accesses(cpu, sm) : execute_arithmetic(cpu, sm, publish, scratch))) {
    record_wait(cpu, sm);
    return false;
  }
  planted_delay(cpu, in);
  mk_cpu_record_work(cpu, sm, MK_ROLE_CONSUMER);
  if (mk_cpu_at_boundary(sm)) {
    sm->boundaries++;
    mk_recorder_rest(cpu->recorder, (uint32_t)(sm - cpu->sms), MK_ROLE_CONSUMER, c->epoch); /* the host has the token */
  }
  return true;
}

void mk_cpu_signal(mk_cpu *cpu, const mk_instruction *in) {
  for (uint32_t s = 0; s < in->signal_count; s++) {
    const uint32_t counter = in->signals[s].counter;
    for (uint64_t ranks = mk_cpu_ranks_of_counter(cpu, counter); ranks != 0; ranks &= ranks - 1) {
      atomic_fetch_add_explicit(mk_cpu_count(cpu, (uint32_t)__builtin_ctzll(ranks), counter), in->signals[s].amount,
                                memory_order_release);
    }
  }
}

mk_status mk_cpu_deadlock(const mk_cpu *cpu) {
  const mk_cpu_sm *last = NULL;
  for (size_t q = 0; q < cpu->program->queue_count; q++) {
    const mk_cpu_sm *sm = &cpu->sms[q];
    uint64_t epoch = sm->roles[MK_ROLE_CONSUMER].epoch;
    if (sm->count != 0 && epoch < cpu->limit && (last == NULL || epoch < last->roles[MK_ROLE_CONSUMER].epoch)) {
      last = sm;
    }
  }
  if (last == NULL) {
    return MK_OK;
  }
  const mk_cpu_cursor *c = &last->roles[MK_ROLE_CONSUMER];
  const mk_instruction *in = &last->queue[c->at];
  char what[128] = "a stamped input that nobody writes";
  for (uint32_t w = 0; w < in->wait_count; w++) {
    uint32_t counter = in->waits[w].counter, want = wanted(cpu, &in->waits[w], c->epoch);
    if ((int32_t)(count_of(cpu, last->rank, counter) - want) < 0) {
      snprintf(what, sizeof what, "counter %s has %u and must have %u", cpu->program->counters[counter].name,
               count_of(cpu, last->rank, counter), want);
      break;
    }
  }
  return mk_error(MK_ERR_DEVICE, "deadlock: SM %zu waits for ever in epoch %llu at instruction %u (%s): %s",
                  (size_t)(last - cpu->sms), (unsigned long long)c->epoch, in->uid, mk_opcode_lookup(in->opcode)->name,
                  what);
}

/* An aborted run leaves stamps and counters of epochs that do not count, so they are set to those of a new machine. */
static void clear_after_abort(mk_cpu *cpu) {
  for (size_t b = 0; b < cpu->program->buffer_count; b++) {
    const mk_buffer *buffer = &cpu->program->buffers[b];
    size_t tiles = (size_t)mk_buffer_grid_rows(buffer) * mk_buffer_grid_cols(buffer);
    for (uint32_t rank = 0; buffer->store == MK_STORE_STAMPED && rank < cpu->program->machine.ranks; rank++) {
      if (cpu->accesses != NULL) {
        memset(mk_accesses_words(cpu->accesses, rank, b), 0, tiles * sizeof(uint64_t));
      } else {
        memset(mk_cpu_memory_of(cpu, rank)[b], 0, buffer->bytes);
      }
    }
  }
  for (size_t q = 0; q < cpu->program->queue_count; q++) {
    cpu->sms[q].late_count = 0;
    forget_signals(&cpu->sms[q]);
  }
  if (cpu->written != NULL) {
    mk_written_clear(cpu->written);
  }
  for (size_t c = 0; c < cpu->program->counter_count * cpu->program->machine.ranks; c++) {
    cpu->counters[c] = 0;
  }
  cpu->first_epoch = 0;
}

/* The rows of the first step, for all SMs. */
/* Of the first step that is recorded: a step of a prompt goes on by as many positions as it has rows. */
static uint32_t recorded_position(const mk_cpu *cpu, const mk_step_row *first, uint64_t epochs) {
  const uint32_t step = mk_recorder_first(cpu->recorder);
  return first != cpu->plan ? first->position + step
         : step < epochs    ? first[(size_t)step * mk_program_rows(cpu->program)].position
                            : 0;
}

static mk_status run(mk_cpu *cpu, const mk_step_row *first, uint64_t epochs) {
  if (cpu->listed && epochs > 1) {
    return mk_error(MK_ERR_USAGE, "%llu epochs of a program with a work list; a run of it is one epoch",
                    (unsigned long long)epochs);
  }
  cpu->limit = epochs;
  cpu->announced = cpu->passing = cpu->passed = 0;
  cpu->failure = MK_OK;
  for (size_t q = 0; q < cpu->program->queue_count; q++) {
    mk_cpu_sm *sm = &cpu->sms[q];
    memset(sm->roles, 0, sizeof sm->roles);
    memset(sm->steps, 0, sizeof sm->steps);
    sm->boundaries = 0;
    sm->computed = sm->stored = false;
    sm->pages_in_flight = 0;
    mk_step_begin(&sm->step, cpu->program, first);
  }
  if (roles_apart(cpu) && cpu->random == 0) {
    cpu->random = 1;
  }
  if (cpu->race != NULL) {
    mk_race_barrier(cpu->race);
    mk_race_fuse(cpu->race, cpu->random % 2 != 0);
  }
  mk_recorder_begin(cpu->recorder, recorded_position(cpu, first, epochs), roles_apart(cpu));
  mk_status status = roles_apart(cpu) ? mk_cpu_run_interleaved(cpu) : mk_cpu_run_greedy(cpu);
  mk_recorder_end(cpu->recorder, status == MK_OK ? cpu->limit : 0);
  if (status != MK_OK) {
    clear_after_abort(cpu);
    return status;
  }
  cpu->first_epoch += (uint32_t)cpu->limit;
  return MK_OK;
}

mk_status mk_cpu_run(mk_cpu *cpu, uint64_t epochs) {
  const mk_step_ranges *ranges = &cpu->program->ranges;
  const mk_step_row none = {.position = ranges->position.low, .token = ranges->token.low, .flags = MK_ROW_ACTIVE};
  if (cpu->has_boundary || mk_program_rows(cpu->program) > 1) {
    return mk_error(MK_ERR_USAGE, "the program goes from step to step by a plan; run it with one");
  }
  cpu->fn = NULL;
  cpu->plan = NULL;
  return run(cpu, &none, epochs);
}

/* Copies the plan to where every NEXT reads it, which is one buffer in a program that mk_plan_find passes. */
static void copy_plan(const mk_cpu *cpu, const mk_step_row *plan, uint32_t steps) {
  uint64_t bytes = (uint64_t)steps * mk_program_rows(cpu->program) * sizeof *plan;
  uint32_t done = UINT32_MAX;
  for (size_t i = 0; i < cpu->program->instruction_count; i++) {
    const mk_instruction *in = &cpu->program->instructions[i];
    uint32_t buffer = in->operands[MK_SLOT_NEXT_plan].buffer;
    if (mk_opcode_lookup(in->opcode)->state == MK_STATE_WRITE && buffer != done) {
      uint64_t room = cpu->program->buffers[buffer].bytes;
      memcpy(cpu->memory[buffer], plan, bytes < room ? bytes : room);
      done = buffer;
    }
  }
}

/* Of a wide program of several slots. */
static mk_status make_lists(const mk_cpu *cpu, const mk_step_row *plan, uint32_t steps) {
  mk_plan_buffers buffers;
  if (mk_plan_find(cpu->program, &buffers) != MK_OK || buffers.work == MK_NO_PLAN_BUFFER) {
    return MK_OK; /* of a program that nobody has verified */
  }
  steps = steps < buffers.steps ? steps : buffers.steps;
  return mk_attend_lists(cpu->program, &buffers, plan, steps, (uint32_t *)(void *)cpu->memory[buffers.work]);
}

mk_status mk_cpu_run_plan(mk_cpu *cpu, const mk_step_row *plan, uint32_t steps, mk_step_fn fn, void *user) {
  mk_plan_buffers buffers;
  if (!cpu->options.unchecked_plans) {
    MK_TRY(mk_plan_find(cpu->program, &buffers));
    bool blocks = cpu->accesses == NULL && buffers.table != MK_NO_PLAN_BUFFER;
    MK_TRY(mk_plan_check(cpu->program, plan, steps, blocks ? mk_cpu_memory(cpu, buffers.table) : NULL));
  }
  if (cpu->accesses == NULL) {
    copy_plan(cpu, plan, steps);
    MK_TRY(make_lists(cpu, plan, steps));
  }
  cpu->plan = plan;
  cpu->plan_steps = steps;
  cpu->fn = fn;
  cpu->user = user;
  return run(cpu, plan, steps);
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
