/* See race.h.
 *
 * Two clocks per thread (SM, role): `before` follows happens-before edges (queue order, loader -> consumer -> storer
 * inside an instruction, `next` -> later loads that need the state, release counters); `after` follows the same edges
 * and stamps. A read of plain data needs its writer in `before`; overwriting plain data needs writer and readers in
 * `before`; overwriting a stamped word needs its writer in `before` and its readers in `after`.
 *
 * The KV cache is looked at twice. By (row, head), as operands declare it: what is shared there is shared by some step.
 * And by physical block and head, as tables and positions say of this step, so that two rows or two tables that name
 * one block are seen.
 *
 * What is fused (fused.h) is written by its maker, at its time, and the machine computes it later all the same: so what
 * reads such a word must not find that a later step has written it meanwhile. */
#include "vm/cpu/race.h"

#include <stdio.h>
#include <string.h>

#include "instructions/mla.h"
#include "vm/cpu/fused.h"
#include "vm/program/attend_list.h"

typedef struct cell {
  uint32_t writer_thread, writer_clock; /* clock 0: never written */
  uint32_t writer_index;
  uint32_t *readers;     /* per thread: clock of its last read since the last write; NULL: none yet */
  uint64_t writer_epoch; /* of a block of the cache: that in which it was last appended to */
  uint32_t generation;   /* of the step that has written it */
  bool elsewhere;        /* the write was of what is fused */
  uint32_t rank;         /* of a tile of what is dealt to ranks: 1 + that of those who touch it */
} cell;

typedef struct clock_pair {
  uint32_t *before, *after;
} clock_pair;

struct mk_race {
  const mk_program *program;
  uint32_t threads, slots;
  uint32_t *storage;    /* the memory of all clock_pairs */
  clock_pair *clocks;   /* per thread */
  clock_pair *handed;   /* per SM and result slot: what the consumer knew when it handed an instruction to the storer */
  clock_pair *boundary; /* per SM: what the consumer knew after its last `next` */
  clock_pair *counters; /* per counter and rank: what its signallers knew */
  clock_pair *written;  /* per instruction: what its thread knew when it wrote stamped words (`after` only) */
  uint32_t *consumed, *stored; /* per SM: steps of these roles so far; every role steps once per instruction */
  cell **cells;                /* per buffer, NULL for constant ones: a cell for each tile, or each line of one */
  bool *by_lines;              /* per buffer: shares of a work list write it, each some lines of a tile */
  cell **blocks;               /* per buffer that is a KV cache: [blocks][heads]; NULL for others */
  uint32_t runs;               /* generations may begin anew with a run */
  uint32_t generation;         /* of the step at hand */
  mk_fused fused;
  bool elsewhere;         /* what is written at the moment is fused */
  uint8_t *const *memory; /* NULL: neither work lists nor block tables are known */
};

static bool is_tracked(const mk_buffer *buffer) {
  return buffer->kind != MK_KIND_WEIGHT && buffer->kind != MK_KIND_INPUT;
}

static mk_status new_clocks(uint32_t **next, uint32_t threads, size_t count, bool pair, clock_pair **out) {
  MK_TRY(mk_alloc(count, sizeof **out, out));
  for (size_t i = 0; i < count; i++) {
    (*out)[i].after = *next;
    *next += threads;
    if (pair) {
      (*out)[i].before = *next;
      *next += threads;
    }
  }
  return MK_OK;
}

/* The work list that the instruction follows; NULL: it has none. */
static const mk_operand *work_of(const mk_instruction *in) {
  const int slot = mk_opcode_reads(mk_opcode_lookup(in->opcode), MK_CONTENT_WORK);
  return slot >= 0 && in->operands[slot].rows != 0 ? &in->operands[slot] : NULL;
}

static size_t count_cells(const mk_race *race, size_t b) {
  const mk_buffer *buffer = &race->program->buffers[b];
  return (size_t)(race->by_lines[b] ? buffer->rows : mk_buffer_grid_rows(buffer)) * mk_buffer_grid_cols(buffer);
}

static mk_status race_init(mk_race *race, const mk_program *program) {
  uint32_t queues = (uint32_t)program->queue_count;
  race->program = program;
  race->threads = queues * MK_ROLE_COUNT;
  race->slots = program->machine.result_slots + 1;
  size_t pairs =
      race->threads + (size_t)queues * race->slots + queues + program->counter_count * program->machine.ranks;
  MK_TRY(mk_alloc((pairs * 2 + program->instruction_count) * race->threads, sizeof(uint32_t), &race->storage));
  uint32_t *next = race->storage;
  MK_TRY(new_clocks(&next, race->threads, race->threads, true, &race->clocks));
  MK_TRY(new_clocks(&next, race->threads, (size_t)queues * race->slots, true, &race->handed));
  MK_TRY(new_clocks(&next, race->threads, queues, true, &race->boundary));
  MK_TRY(new_clocks(&next, race->threads, program->counter_count * program->machine.ranks, true, &race->counters));
  MK_TRY(new_clocks(&next, race->threads, program->instruction_count, false, &race->written));
  MK_TRY(mk_alloc(queues, sizeof *race->consumed, &race->consumed));
  MK_TRY(mk_alloc(queues, sizeof *race->stored, &race->stored));
  MK_TRY(mk_alloc(program->buffer_count, sizeof *race->by_lines, &race->by_lines));
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    if (work_of(in) != NULL) {
      race->by_lines[in->operands[MK_SLOT_ATTEND_out].buffer] = true;
    }
  }
  MK_TRY(mk_fused_init(&race->fused, program));
  MK_TRY(mk_alloc(program->buffer_count, sizeof(cell *), &race->cells));
  for (size_t b = 0; b < program->buffer_count; b++) {
    if (is_tracked(&program->buffers[b])) {
      MK_TRY(mk_alloc(count_cells(race, b), sizeof(cell), &race->cells[b]));
    }
  }
  return MK_OK;
}

mk_status mk_race_new(const mk_program *program, mk_race **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  mk_status status = race_init(*out, program);
  if (status != MK_OK) {
    mk_race_free(*out);
    *out = NULL;
  }
  return status;
}

static size_t block_cells(const mk_buffer *buffer) { return (size_t)buffer->blocks * buffer->cols; }

mk_status mk_race_memory(mk_race *race, uint8_t *const *memory) {
  const mk_program *program = race->program;
  race->memory = memory;
  MK_TRY(mk_alloc(program->buffer_count, sizeof(cell *), &race->blocks));
  for (size_t b = 0; b < program->buffer_count; b++) {
    if (program->buffers[b].store == MK_STORE_BLOCKS) {
      MK_TRY(mk_alloc(block_cells(&program->buffers[b]), sizeof(cell), &race->blocks[b]));
    }
  }
  return MK_OK;
}

static void free_cells(cell *cells, size_t count) {
  for (size_t i = 0; cells != NULL && i < count; i++) {
    mk_free(cells[i].readers);
  }
  mk_free(cells);
}

void mk_race_free(mk_race *race) {
  if (race == NULL) {
    return;
  }
  for (size_t b = 0; race->cells != NULL && b < race->program->buffer_count; b++) {
    free_cells(race->cells[b], race->cells[b] == NULL ? 0 : count_cells(race, b));
  }
  for (size_t b = 0; race->blocks != NULL && b < race->program->buffer_count; b++) {
    free_cells(race->blocks[b], block_cells(&race->program->buffers[b]));
  }
  mk_fused_free(&race->fused);
  mk_free(race->cells);
  mk_free(race->by_lines);
  mk_free(race->blocks);
  mk_free(race->consumed);
  mk_free(race->stored);
  mk_free(race->clocks);
  mk_free(race->handed);
  mk_free(race->boundary);
  mk_free(race->counters);
  mk_free(race->written);
  mk_free(race->storage);
  mk_free(race);
}

static void join(uint32_t *into, const uint32_t *from, uint32_t threads) {
  for (uint32_t i = 0; i < threads; i++) {
    into[i] = from[i] > into[i] ? from[i] : into[i];
  }
}

static void join_pair(clock_pair into, clock_pair from, uint32_t threads) {
  join(into.before, from.before, threads);
  join(into.after, from.after, threads);
}

static void copy_pair(clock_pair into, clock_pair from, uint32_t threads) {
  memcpy(into.before, from.before, threads * sizeof *into.before);
  memcpy(into.after, from.after, threads * sizeof *into.after);
}

static mk_status unordered(const mk_race *race, uint32_t thread, uint32_t index, uint32_t slot, const char *what,
                           uint32_t other_thread, uint32_t other_index) {
  const mk_instruction *in = &race->program->instructions[index];
  const mk_operand *operand = &in->operands[slot];
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  char other[64] = "an earlier instruction";
  if (other_index != UINT32_MAX) {
    snprintf(other, sizeof other, "instruction %u", race->program->instructions[other_index].uid);
  }
  return mk_error(MK_ERR_DEVICE,
                  "unordered access: SM %u %s, instruction %u (%s), operand %s of buffer %s: %s of %s on SM %u %s",
                  thread / MK_ROLE_COUNT, mk_role_name(thread % MK_ROLE_COUNT), in->uid, info->name,
                  info->operands[slot].name, race->program->buffers[operand->buffer].name, what, other,
                  other_thread / MK_ROLE_COUNT, mk_role_name(other_thread % MK_ROLE_COUNT));
}

/* A tile of what is dealt to ranks is one rank's: another one does not have it. */
static mk_status check_rank(const mk_race *race, uint32_t thread, uint32_t index, uint32_t slot, cell *at) {
  const mk_instruction *in = &race->program->instructions[index];
  const mk_buffer *buffer = &race->program->buffers[in->operands[slot].buffer];
  const uint32_t rank = mk_queue_rank(race->program, thread / MK_ROLE_COUNT);
  if (buffer->rank != MK_RANK_DEALT || at->rank == rank + 1) {
    return MK_OK;
  }
  if (at->rank == 0) {
    at->rank = rank + 1;
    return MK_OK;
  }
  return mk_error(MK_ERR_DEVICE,
                  "tile of another rank: instruction %u (%s) on rank %u, operand %s: touches a tile of buffer %s that "
                  "rank %u has",
                  in->uid, mk_opcode_lookup(in->opcode)->name, rank, mk_opcode_lookup(in->opcode)->operands[slot].name,
                  buffer->name, at->rank - 1);
}

static mk_status read_cell(mk_race *race, uint32_t thread, uint32_t index, uint32_t slot, cell *at, bool stamped,
                           uint32_t *last_joined) {
  clock_pair clock = race->clocks[thread];
  MK_TRY(check_rank(race, thread, index, slot, at));
  if (at->writer_clock != 0 && stamped && at->writer_index != *last_joined) {
    join(clock.after, race->written[at->writer_index].after, race->threads);
    *last_joined = at->writer_index;
  }
  if (at->writer_clock != 0 && stamped && at->generation > race->generation) {
    return unordered(race, thread, index, slot, "reads what a later step has overwritten, by the write",
                     at->writer_thread, at->writer_index);
  }
  if (at->writer_clock != 0 && !stamped && clock.before[at->writer_thread] < at->writer_clock) {
    return unordered(race, thread, index, slot, "reads what may not yet be visible, the write", at->writer_thread,
                     at->writer_index);
  }
  if (at->readers == NULL) {
    MK_TRY(mk_alloc(race->threads, sizeof *at->readers, &at->readers));
  }
  at->readers[thread] = clock.before[thread];
  return MK_OK;
}

static mk_status write_cell(mk_race *race, uint32_t thread, uint32_t index, uint32_t slot, cell *at, bool stamped) {
  clock_pair clock = race->clocks[thread];
  MK_TRY(check_rank(race, thread, index, slot, at));
  /* Of what is fused one SM overwrites what another one has written: by then its readers have seen it
   * (docs/VERIFIER.md, "Stamped buffers"). */
  const uint32_t *over = stamped && (at->elsewhere || race->elsewhere) ? clock.after : clock.before;
  if (at->writer_clock != 0 && over[at->writer_thread] < at->writer_clock) {
    return unordered(race, thread, index, slot, "overwrites the unordered write", at->writer_thread, at->writer_index);
  }
  const uint32_t *known = stamped ? clock.after : clock.before;
  for (uint32_t t = 0; at->readers != NULL && t < race->threads; t++) {
    if (at->readers[t] > known[t]) {
      return unordered(race, thread, index, slot, "overwrites what may still be read by", t, UINT32_MAX);
    }
    at->readers[t] = 0;
  }
  at->writer_thread = thread;
  at->writer_clock = clock.before[thread];
  at->writer_index = index;
  at->generation = race->generation;
  at->elsewhere = race->elsewhere;
  return MK_OK;
}

/* Loaders copy in bulk, the other roles use ordinary accesses. The machine fences between the proxies that a buffer
 * declares, and an access through another one is ordered with nothing. */
static mk_status check_proxy(const mk_race *race, uint32_t thread, uint32_t index, uint32_t slot) {
  const mk_instruction *in = &race->program->instructions[index];
  const mk_operand *operand = &in->operands[slot];
  uint32_t role = thread % MK_ROLE_COUNT, proxy = role == MK_ROLE_LOADER ? MK_PROXY_ASYNC : MK_PROXY_GENERIC;
  const mk_buffer *buffer = &race->program->buffers[operand->buffer];
  if (operand->rows == 0 || operand->cols == 0 || (buffer->proxy & proxy) != 0) {
    return MK_OK;
  }
  return mk_error(
      MK_ERR_DEVICE,
      "unordered access: SM %u %s, instruction %u, operand %s: touches buffer %s through a proxy that it does "
      "not declare",
      thread / MK_ROLE_COUNT, mk_role_name(role), in->uid, mk_opcode_lookup(in->opcode)->operands[slot].name,
      buffer->name);
}

/* What the work list says of the operand. */
static mk_status touch_listed(mk_race *race, uint32_t thread, uint32_t index, uint32_t slot, bool write) {
  const mk_instruction *in = &race->program->instructions[index];
  uint32_t buffer = in->operands[slot].buffer, last_joined = UINT32_MAX;
  bool stamped = race->program->buffers[buffer].store == MK_STORE_STAMPED;
  uint32_t grid_cols = mk_buffer_grid_cols(&race->program->buffers[buffer]);
  mk_listed_tiles at = {0};
  while (race->memory != NULL && mk_listed_next(race->program, race->memory, in, slot, &at)) {
    for (uint32_t c = at.col; c < at.col + at.cols; c++) {
      cell *one = &race->cells[buffer][(size_t)at.row * grid_cols + c];
      MK_TRY(write ? write_cell(race, thread, index, slot, one, stamped)
                   : read_cell(race, thread, index, slot, one, stamped, &last_joined));
    }
  }
  return MK_OK;
}

/* Two SMs append to one block of a head in one step: whatever orders them, one of them has a place that is not its
 * own. */
static mk_status append_block(mk_race *race, uint32_t thread, uint32_t index, uint32_t block, cell *at,
                              uint32_t generation) {
  const mk_instruction *in = &race->program->instructions[index];
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const uint32_t slot = (uint32_t)mk_opcode_cache(info);
  const mk_operand *operand = &in->operands[slot];
  uint32_t sm = thread / MK_ROLE_COUNT, other = at->writer_thread / MK_ROLE_COUNT;
  uint64_t epoch = (uint64_t)race->runs << 32 | generation;
  if (at->writer_clock != 0 && at->writer_epoch == epoch && other != sm) {
    return mk_error(MK_ERR_DEVICE,
                    "block with two owners: SM %u, instruction %u (%s) appends to block %u of head %u of buffer %s, "
                    "to which instruction %u on SM %u has appended in the same step; a block belongs to one SM",
                    sm, in->uid, info->name, block, operand->col, race->program->buffers[operand->buffer].name,
                    race->program->instructions[at->writer_index].uid, other);
  }
  mk_status status = write_cell(race, thread, index, slot, at, false);
  at->writer_epoch = epoch;
  return status == MK_OK ? MK_OK : mk_error_prefix(status, "block %u", block);
}

/* The blocks that one row of the step has in this unit of the cache: the one at its position is appended to, and
 * read as well where what is appended is not at hand; those that begin before it are read. */
static mk_status touch_row_blocks(mk_race *race, uint32_t thread, uint32_t index, const mk_step_row *row, bool write,
                                  uint32_t generation) {
  const mk_instruction *in = &race->program->instructions[index];
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const uint32_t slot = (uint32_t)mk_opcode_cache(info);
  const mk_operand *kv = &in->operands[slot], *table = &in->operands[mk_opcode_reads(info, MK_CONTENT_TABLE)];
  const mk_buffer *cache = &race->program->buffers[kv->buffer], *entries = &race->program->buffers[table->buffer];
  const uint32_t *words = (const uint32_t *)(const void *)race->memory[table->buffer];
  const bool updates = info->operands[slot].access == MK_ACCESS_UPDATE;
  const uint32_t splits = updates ? in->params[MK_PARAM_ATTENTION_splits] : cache->rows;
  uint32_t first = write ? row->position / cache->block_tokens : 0, none = UINT32_MAX;
  uint64_t tokens = (uint64_t)row->position + (info->operands[slot].access == MK_ACCESS_READ);
  uint64_t end = write ? first + 1 : (tokens + cache->block_tokens - 1) / cache->block_tokens;
  for (uint32_t b = first; b < end && b < entries->cols && row->slot < entries->rows; b++) {
    uint32_t span = (uint32_t)((uint64_t)b * cache->block_tokens / cache->span_tokens);
    uint32_t block = words[(size_t)row->slot * entries->cols + b];
    if (mk_unit_of(span, row->slot, splits) != kv->row || block >= cache->blocks) {
      continue; /* another unit's; a block that is not there is the reference's finding */
    }
    cell *at = &race->blocks[kv->buffer][(size_t)block * cache->cols + kv->col];
    if (write) {
      MK_TRY(append_block(race, thread, index, block, at, generation));
      continue;
    }
    mk_status status = read_cell(race, thread, index, slot, at, false, &none);
    MK_TRY(status == MK_OK ? MK_OK : mk_error_prefix(status, "block %u", block));
  }
  return MK_OK;
}

static mk_status touch_blocks(mk_race *race, uint32_t thread, uint32_t index, const mk_race_use *used, bool write) {
  const mk_step_state *state = used->state;
  for (uint32_t r = 0; r < mk_program_rows(race->program); r++) {
    if ((state->rows[r].flags & MK_ROW_ACTIVE) != 0) {
      MK_TRY(touch_row_blocks(race, thread, index, &state->rows[r], write, used->generation));
    }
  }
  return MK_OK;
}

/* Some columns of tiles of a line. */
static mk_status touch_line(mk_race *race, uint32_t thread, uint32_t index, uint32_t slot, uint32_t row, uint32_t col,
                            uint32_t cols, bool write) {
  const uint32_t buffer = race->program->instructions[index].operands[slot].buffer;
  const mk_buffer *b = &race->program->buffers[buffer];
  const bool stamped = b->store == MK_STORE_STAMPED;
  cell *cells = race->cells[buffer] + (size_t)row * mk_buffer_grid_cols(b);
  uint32_t last_joined = UINT32_MAX;
  for (uint32_t c = col; c < col + cols; c++) {
    MK_TRY(write ? write_cell(race, thread, index, slot, &cells[c], stamped)
                 : read_cell(race, thread, index, slot, &cells[c], stamped, &last_joined));
  }
  return MK_OK;
}

/* What its items of the work list name of the tile of lines. */
static mk_status touch_items(mk_race *race, uint32_t thread, uint32_t index, uint32_t slot, const mk_race_use *used) {
  const mk_instruction *in = &race->program->instructions[index];
  const mk_operand *work = work_of(in), *o = &in->operands[slot];
  const mk_buffer *list = &race->program->buffers[work->buffer], *b = &race->program->buffers[o->buffer];
  const uint32_t rows = mk_program_rows(race->program), lines = mk_line_tile(rows);
  const uint32_t head_tiles = race->program->buffers[in->operands[MK_SLOT_ATTEND_kv].buffer].head_dim / b->tile_cols;
  const uint64_t place = (uint64_t)used->state->step * (rows / lines) + o->row;
  const uint32_t *words = (const uint32_t *)(const void *)race->memory[work->buffer] + place * list->cols;
  for (uint32_t i = in->params[MK_PARAM_ATTEND_share]; place < list->rows && i < words[0];
       i += in->params[MK_PARAM_ATTEND_shares]) {
    mk_attend_item item;
    memcpy(&item, words + (size_t)(i + 1) * MK_ATTEND_ITEM_WORDS, sizeof item);
    for (uint32_t line = item.first; line < item.first + item.lines; line++) {
      MK_TRY(touch_line(race, thread, index, slot, o->row * lines + line, o->col + item.head * head_tiles,
                        item.heads * head_tiles, true));
    }
  }
  return MK_OK;
}

/* Of a buffer that shares write: what a share's items name, and of others all active lines. */
static mk_status touch_lines(mk_race *race, uint32_t thread, uint32_t index, uint32_t slot, const mk_race_use *used,
                             bool write) {
  const mk_instruction *in = &race->program->instructions[index];
  const mk_operand *o = &in->operands[slot];
  const mk_buffer *b = &race->program->buffers[o->buffer];
  if (write && work_of(in) != NULL && race->memory != NULL && used->state != NULL) {
    return touch_items(race, thread, index, slot, used);
  }
  const uint32_t end = (uint32_t)(o->row + o->rows) * b->tile_rows;
  for (uint32_t row = o->row * b->tile_rows; row < end && row < b->rows; row++) {
    const mk_step_row *line = used->state == NULL ? NULL : &used->state->rows[row % mk_program_rows(race->program)];
    if (line == NULL || (line->flags & MK_ROW_ACTIVE) != 0) {
      MK_TRY(touch_line(race, thread, index, slot, row, o->col, o->cols, write));
    }
  }
  return MK_OK;
}

static mk_status touch(mk_race *race, uint32_t thread, uint32_t index, uint32_t slot, const mk_race_use *used,
                       bool write) {
  const mk_instruction *in = &race->program->instructions[index];
  const mk_operand *operand = &in->operands[slot];
  const mk_operand_info *info = &mk_opcode_lookup(in->opcode)->operands[slot];
  const mk_buffer *buffer = &race->program->buffers[operand->buffer];
  cell *cells = race->cells[operand->buffer];
  MK_TRY(check_proxy(race, thread, index, slot));
  if (cells == NULL) {
    return MK_OK;
  }
  if (info->when == MK_WHEN_LISTED) {
    return touch_listed(race, thread, index, slot, write);
  }
  if (race->by_lines[operand->buffer]) {
    return touch_lines(race, thread, index, slot, used, write);
  }
  if (buffer->store == MK_STORE_BLOCKS && race->memory != NULL && used->state != NULL) {
    MK_TRY(touch_blocks(race, thread, index, used, write));
  }
  bool stamped = buffer->store == MK_STORE_STAMPED;
  const uint32_t lines = mk_instruction_lines(race->program, in);
  uint32_t grid_cols = mk_buffer_grid_cols(buffer), last_joined = UINT32_MAX;
  uint32_t rows = used->rows == NULL ? operand->rows : used->rows[slot];
  const uint64_t *parts = info->content == MK_CONTENT_PARTS && info->access == MK_ACCESS_READ ? used->parts : NULL;
  for (uint32_t r = operand->row; r < operand->row + rows; r++) {
    const uint32_t tile = mk_row_tile_lines(race->program, lines, buffer, r);
    if (tile != MK_ALL_LINES && (used->tiles >> tile & 1) == 0) {
      continue;
    }
    if (parts != NULL && (parts[r / 64 % (MK_MAX_UNITS / 64)] >> r % 64 & 1) == 0) {
      continue;
    }
    for (uint32_t c = operand->col; c < (uint32_t)operand->col + operand->cols; c++) {
      cell *at = &cells[(size_t)r * grid_cols + c];
      MK_TRY(write ? write_cell(race, thread, index, slot, at, stamped)
                   : read_cell(race, thread, index, slot, at, stamped, &last_joined));
    }
  }
  return MK_OK;
}

/* What this role does to the operands: reads first, then writes. */
static mk_status touch_operands(mk_race *race, uint32_t thread, uint32_t index, mk_role role, const mk_race_use *used) {
  const mk_instruction *in = &race->program->instructions[index];
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand_info *operand = &info->operands[slot];
    bool reads = (operand->access == MK_ACCESS_READ && operand->role == role) ||
                 (operand->access == MK_ACCESS_UPDATE && role == MK_ROLE_LOADER);
    if (reads) {
      MK_TRY(touch(race, thread, index, slot, used, false));
    }
  }
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand_info *operand = &info->operands[slot];
    bool writes = operand->access != MK_ACCESS_READ && operand->role == role;
    if (writes) {
      MK_TRY(touch(race, thread, index, slot, used, true));
    }
  }
  return MK_OK;
}

/* What an instruction writes besides its own operands: what is fused into it. */
static mk_status touch_fused(mk_race *race, uint32_t thread, uint32_t index, const mk_race_use *used) {
  for (uint32_t i = race->fused.first[index]; i != UINT32_MAX; i = race->fused.next[i]) {
    if (mk_fused_is_elsewhere(&race->fused, i, used->state)) {
      race->elsewhere = true;
      mk_status status = touch(race, thread, i, MK_SLOT_COMBINE_out, &(mk_race_use){.tiles = UINT32_MAX}, true);
      race->elsewhere = false;
      MK_TRY(status);
      memcpy(race->written[i].after, race->clocks[thread].after, race->threads * sizeof *race->clocks[thread].after);
    }
  }
  return MK_OK;
}

static bool writes_stamped(const mk_program *program, const mk_instruction *in, mk_role role) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand_info *operand = &info->operands[slot];
    if (operand->access == MK_ACCESS_WRITE && operand->role == role &&
        program->buffers[in->operands[slot].buffer].store == MK_STORE_STAMPED) {
      return true;
    }
  }
  return false;
}

/* That a rank looks at. */
static clock_pair *counter_of(const mk_race *race, uint32_t counter, uint32_t rank) {
  const uint32_t place = race->program->counters[counter].rank;
  return &race->counters[(size_t)counter * race->program->machine.ranks + (place == MK_RANK_EACH ? rank : place)];
}

mk_status mk_race_step(mk_race *race, uint32_t sm, mk_role role, uint32_t index, const mk_race_use *used) {
  const mk_program *program = race->program;
  const mk_instruction *in = &program->instructions[index];
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  uint32_t thread = sm * MK_ROLE_COUNT + (uint32_t)role, n = race->threads;
  clock_pair clock = race->clocks[thread];
  clock_pair *handed = &race->handed[(size_t)sm * race->slots];
  if (role == MK_ROLE_LOADER && mk_opcode_loads_state(info)) {
    join_pair(clock, race->boundary[sm], n);
  }
  for (uint32_t w = 0; w < in->wait_count; w++) {
    bool waits = role == MK_ROLE_CONSUMER || (role == MK_ROLE_LOADER && mk_opcode_loader_waits(info));
    if (waits && program->counters[in->waits[w].counter].kind == MK_COUNTER_RELEASE) {
      join_pair(clock, *counter_of(race, in->waits[w].counter, mk_queue_rank(program, sm)), n);
    }
  }
  if (role == MK_ROLE_CONSUMER) {
    uint32_t loader = sm * MK_ROLE_COUNT + MK_ROLE_LOADER;
    clock.before[loader] = clock.after[loader] = race->consumed[sm] + 1; /* the loader's clock at this instruction */
  } else if (role == MK_ROLE_STORER) {
    join_pair(clock, handed[race->stored[sm]++ % race->slots], n);
  }
  clock.before[thread]++;
  clock.after[thread] = clock.before[thread];
  race->generation = used->generation;
  const bool elsewhere = mk_fused_is_elsewhere(&race->fused, index, used->state);
  MK_TRY(elsewhere ? MK_OK : touch_operands(race, thread, index, role, used));
  MK_TRY(role == MK_ROLE_CONSUMER ? touch_fused(race, thread, index, used) : MK_OK);
  if (!elsewhere && writes_stamped(program, in, role)) {
    memcpy(race->written[index].after, clock.after, n * sizeof *clock.after);
  }
  if (role == MK_ROLE_CONSUMER) {
    copy_pair(handed[race->consumed[sm]++ % race->slots], clock, n);
    if (info->state == MK_STATE_WRITE) {
      copy_pair(race->boundary[sm], clock, n);
    }
  }
  return MK_OK;
}

void mk_race_fuse(mk_race *race, bool fuses) { race->fused.on = fuses; }

void mk_race_signal(mk_race *race, uint32_t sm, mk_role role, uint32_t index) {
  const mk_instruction *in = &race->program->instructions[index];
  clock_pair clock = race->clocks[sm * MK_ROLE_COUNT + (uint32_t)role];
  for (uint32_t s = 0; s < in->signal_count; s++) {
    const uint32_t counter = in->signals[s].counter;
    const bool each = race->program->counters[counter].rank == MK_RANK_EACH;
    for (uint32_t rank = 0; rank < (each ? race->program->machine.ranks : 1); rank++) {
      join_pair(*counter_of(race, counter, rank), clock, race->threads);
    }
  }
}

struct mk_race_view {
  clock_pair clock;
};

mk_status mk_race_send(const mk_race *race, uint32_t sm, mk_role role, mk_race_view **out) {
  uint32_t *words;
  MK_TRY(mk_alloc(1, sizeof **out, out));
  mk_status status = mk_alloc(race->threads, 2 * sizeof *words, &words);
  if (status != MK_OK) {
    mk_free(*out);
    *out = NULL;
    return status;
  }
  (*out)->clock = (clock_pair){.before = words, .after = words + race->threads};
  copy_pair((*out)->clock, race->clocks[sm * MK_ROLE_COUNT + (uint32_t)role], race->threads);
  return MK_OK;
}

void mk_race_arrive(mk_race *race, const mk_race_view *view, uint32_t counter, uint32_t rank) {
  join_pair(*counter_of(race, counter, rank), view->clock, race->threads);
}

void mk_race_view_free(mk_race_view *view) {
  if (view != NULL) {
    mk_free(view->clock.before);
    mk_free(view);
  }
}

void mk_race_barrier(mk_race *race) {
  clock_pair all = race->clocks[0];
  race->runs++;
  for (uint32_t t = 1; t < race->threads; t++) {
    join_pair(all, race->clocks[t], race->threads);
  }
  for (uint32_t t = 1; t < race->threads; t++) {
    copy_pair(race->clocks[t], all, race->threads);
  }
  for (uint32_t sm = 0; sm < race->threads / MK_ROLE_COUNT; sm++) {
    race->consumed[sm] = all.before[sm * MK_ROLE_COUNT + MK_ROLE_LOADER];
    race->stored[sm] = race->consumed[sm];
  }
}
