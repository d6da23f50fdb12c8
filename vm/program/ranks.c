/* Who reads what others push: mk_program_readers. See program.h. */
#include <string.h>

#include "vm/program/program.h"

typedef struct mk_read_tiles {   /* of one buffer that is pushed */
  uint64_t *ranks;               /* by tile: a bit for each that reads it; NULL: nobody does */
  mk_operand last[MK_MAX_RANKS]; /* SMs of a rank often read the same */
} mk_read_tiles;

static bool is_empty(const mk_operand *o) { return o->rows == 0 || o->cols == 0; }

static mk_status note_read(const mk_program *program, mk_read_tiles *tiles, const mk_operand *o, uint32_t rank) {
  const mk_buffer *b = &program->buffers[o->buffer];
  const size_t cols = mk_buffer_grid_cols(b);
  if (tiles->ranks == NULL) {
    MK_TRY(mk_alloc(mk_buffer_grid_rows(b) * cols, sizeof *tiles->ranks, &tiles->ranks));
  }
  if (memcmp(&tiles->last[rank], o, sizeof *o) == 0) {
    return MK_OK;
  }
  tiles->last[rank] = *o;
  for (uint32_t r = o->row; r < (uint32_t)o->row + o->rows; r++) {
    for (uint32_t c = o->col; c < (uint32_t)o->col + o->cols; c++) {
      tiles->ranks[r * cols + c] |= UINT64_C(1) << rank;
    }
  }
  return MK_OK;
}

static uint64_t readers_of(const mk_program *program, const mk_read_tiles *tiles, const mk_operand *o) {
  const size_t cols = mk_buffer_grid_cols(&program->buffers[o->buffer]);
  uint64_t ranks = 0;
  for (uint32_t r = o->row; tiles->ranks != NULL && r < (uint32_t)o->row + o->rows; r++) {
    for (uint32_t c = o->col; c < (uint32_t)o->col + o->cols; c++) {
      ranks |= tiles->ranks[r * cols + c];
    }
  }
  return ranks;
}

/* Goes through all operands that read what is pushed, or, if `writes`, that write it. */
static mk_status visit(const mk_program *program, mk_read_tiles *tiles, bool writes, uint64_t *operands) {
  for (size_t q = 0; q < program->queue_count; q++) {
    for (uint32_t i = program->queues[q].first; i < program->queues[q].first + program->queues[q].count; i++) {
      const mk_instruction *in = &program->instructions[i];
      const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
      for (uint32_t slot = 0; slot < info->operand_count; slot++) {
        const mk_operand *o = &in->operands[slot];
        if (is_empty(o) || !mk_buffer_is_pushed(program, &program->buffers[o->buffer])) {
          continue;
        }
        if (!writes && info->operands[slot].access != MK_ACCESS_WRITE) {
          MK_TRY(note_read(program, &tiles[o->buffer], o, mk_queue_rank(program, q)));
        } else if (writes && info->operands[slot].access != MK_ACCESS_READ) {
          operands[(size_t)i * MK_MAX_OPERANDS + slot] = readers_of(program, &tiles[o->buffer], o);
        }
      }
    }
  }
  return MK_OK;
}

static void find_waiters(const mk_program *program, uint64_t *counters) {
  for (size_t c = 0; c < program->counter_count; c++) {
    const uint32_t rank = program->counters[c].rank;
    counters[c] = rank == MK_RANK_EACH ? 0 : UINT64_C(1) << rank;
  }
  for (size_t q = 0; q < program->queue_count; q++) {
    for (uint32_t i = program->queues[q].first; i < program->queues[q].first + program->queues[q].count; i++) {
      const mk_instruction *in = &program->instructions[i];
      for (uint32_t w = 0; w < in->wait_count; w++) {
        const uint32_t c = in->waits[w].counter;
        counters[c] |= program->counters[c].rank == MK_RANK_EACH ? UINT64_C(1) << mk_queue_rank(program, q) : 0;
      }
    }
  }
}

mk_status mk_program_readers(const mk_program *program, mk_readers *out) {
  mk_read_tiles *tiles = NULL;
  *out = (mk_readers){.operands = NULL};
  mk_status status = mk_alloc(program->instruction_count, MK_MAX_OPERANDS * sizeof *out->operands, &out->operands);
  if (status == MK_OK) {
    status = mk_alloc(program->counter_count, sizeof *out->counters, &out->counters);
  }
  if (status == MK_OK) {
    find_waiters(program, out->counters);
    status = mk_alloc(program->buffer_count, sizeof *tiles, &tiles);
  }
  if (status == MK_OK) {
    status = visit(program, tiles, false, NULL);
  }
  if (status == MK_OK) {
    status = visit(program, tiles, true, out->operands);
  }
  for (size_t b = 0; tiles != NULL && b < program->buffer_count; b++) {
    mk_free(tiles[b].ranks);
  }
  mk_free(tiles);
  if (status != MK_OK) {
    mk_readers_free(out);
  }
  return status;
}

void mk_readers_free(mk_readers *readers) {
  mk_free(readers->operands);
  mk_free(readers->counters);
  *readers = (mk_readers){.operands = NULL};
}
