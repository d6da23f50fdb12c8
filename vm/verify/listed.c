/* Phase 1, of instructions whose accesses a work list confines (instructions/mla.h). Rules L01-L04, and of their shapes
 * S09, S10.
 *
 * The list is data: what it says is the checker's to prove (vm/verify/mla_check.h), batch by batch: no word of a listed
 * buffer is written twice, and every slot that a reduction reads is written by some item. What is proven here, once, is
 * what this rests on: nobody but listed operands of the one list touches those buffers, every row of the list is
 * carried out once, and all items of an epoch are over without waiting for anything, so that whatever a reduction waits
 * for comes. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "instructions/mla.h"
#include "vm/verify/internal.h"

static const char *operand_name(const mk_verifier *v, uint32_t index, uint32_t slot) {
  return mk_info(mk_at(v, index))->operands[slot].name;
}

static bool carries_out(const mk_verifier *v, uint32_t index, mk_entries entries) {
  return mk_info(mk_at(v, index))->entries == entries;
}

/* The operand is a whole buffer of `cols` columns, in tiles of `tile` columns and one row (of the cache also more). */
static mk_status expect_whole(mk_verifier *v, uint32_t index, uint32_t slot, uint64_t rows, uint64_t cols,
                              uint64_t tile) {
  const mk_operand *o = &mk_at(v, index)->operands[slot];
  const mk_buffer *b = &v->program->buffers[o->buffer];
  bool cache = carries_out(v, index, MK_ENTRIES_ITEMS) && slot == MK_SLOT_MLA_PART_kv;
  if (b->rows != rows || b->cols != cols || (b->tile_rows != 1 && !cache) || b->tile_cols != tile) {
    return mk_reject(v, "S10", index,
                     "%s: buffer %s is %ux%u in tiles of %ux%u; it must be %" PRIu64 "x%" PRIu64
                     " in tiles of 1x%" PRIu64 " to match the other operands",
                     operand_name(v, index, slot), b->name, b->rows, b->cols, b->tile_rows, b->tile_cols, rows, cols,
                     tile);
  }
  if (o->rows != mk_buffer_grid_rows(b) || o->cols != mk_buffer_grid_cols(b)) {
    return mk_reject(v, "L01", index, "%s: %u x %u tiles of buffer %s; what a list or a batch goes into is named whole",
                     operand_name(v, index, slot), o->rows, o->cols, b->name);
  }
  return MK_OK;
}

/* Query rows of a block, from out. */
static mk_status block_rows(mk_verifier *v, uint32_t index, uint32_t slot, uint32_t *rows) {
  const mk_buffer *out = &v->program->buffers[mk_at(v, index)->operands[slot].buffer];
  *rows = out->cols / MK_MLA_LATENT;
  if (*rows < 1 || *rows > MK_MLA_MOST_ROWS) {
    return mk_reject(v, "S10", index, "%s: buffer %s has %u columns; a block is 1 to %d rows of %d",
                     operand_name(v, index, slot), out->name, out->cols, MK_MLA_MOST_ROWS, MK_MLA_LATENT);
  }
  return MK_OK;
}

static mk_status check_shared(mk_verifier *v, uint32_t index, uint32_t parts, uint32_t out) {
  const mk_operand *o = mk_at(v, index)->operands;
  const mk_buffer *b = v->program->buffers;
  uint32_t rows;
  MK_TRY(block_rows(v, index, out, &rows));
  MK_TRY(expect_whole(v, index, out, b[o[out].buffer].rows, (uint64_t)rows * MK_MLA_LATENT, MK_MLA_UNIT));
  uint64_t width = (uint64_t)rows * MK_MLA_PART_WIDTH;
  return expect_whole(v, index, parts, b[o[parts].buffer].rows, width, width);
}

static mk_status shape_part(mk_verifier *v, uint32_t index) {
  const mk_instruction *in = mk_at(v, index);
  const mk_operand *o = in->operands;
  const mk_buffer *b = v->program->buffers, *sequences = &b[o[MK_SLOT_MLA_PART_sequences].buffer];
  const mk_buffer *out = &b[o[MK_SLOT_MLA_PART_out].buffer];
  float scale = mk_param_float(in->params[MK_PARAM_MLA_PART_scale]);
  uint32_t tokens = in->params[MK_PARAM_MLA_PART_tokens], rows;
  if (!isfinite(scale) || scale <= 0) {
    return mk_reject(v, "S09", index, "scale is %g; it must be finite and above 0", (double)scale);
  }
  MK_TRY(check_shared(v, index, MK_SLOT_MLA_PART_parts, MK_SLOT_MLA_PART_out));
  MK_TRY(block_rows(v, index, MK_SLOT_MLA_PART_out, &rows));
  uint32_t blocks = out->rows / sequences->rows;
  if (blocks == 0 || out->rows % sequences->rows != 0) {
    return mk_reject(v, "S10", index, "sequences: %u of them, and %u blocks in buffer %s; all have as many",
                     sequences->rows, out->rows, out->name);
  }
  if (tokens < 1 || tokens > MK_MLA_MOST_TOKENS || (uint64_t)rows * blocks % tokens != 0) {
    return mk_reject(v, "S09", index, "tokens is %u; it must be from 1 to %d and divide the %u rows of a sequence",
                     tokens, MK_MLA_MOST_TOKENS, rows * blocks);
  }
  if (sequences->kind != MK_KIND_INPUT) {
    return mk_reject(v, "L01", index,
                     "sequences: buffer %s is of kind %s; a batch is an input, which its checker has passed",
                     sequences->name, mk_kind_name(sequences->kind));
  }
  if (sequences->cols <= MK_MLA_SEQUENCE_HEAD) {
    return mk_reject(v, "S10", index, "sequences: rows of %u words; a length and pages take more than %d",
                     sequences->cols, MK_MLA_SEQUENCE_HEAD);
  }
  uint64_t page = (uint64_t)MK_MLA_PAGE_TOKENS * MK_MLA_WIDTH, query = (uint64_t)rows * MK_MLA_WIDTH;
  MK_TRY(expect_whole(v, index, MK_SLOT_MLA_PART_q, out->rows, query, query));
  MK_TRY(expect_whole(v, index, MK_SLOT_MLA_PART_kv, b[o[MK_SLOT_MLA_PART_kv].buffer].rows, page, page));
  return expect_whole(v, index, MK_SLOT_MLA_PART_sequences, sequences->rows, sequences->cols, sequences->cols);
}

mk_status mk_verify_listed_shape(mk_verifier *v, uint32_t index) {
  bool part = carries_out(v, index, MK_ENTRIES_ITEMS);
  uint32_t slot = part ? MK_SLOT_MLA_PART_work : MK_SLOT_MLA_REDUCE_work;
  const mk_operand *work = &mk_at(v, index)->operands[slot];
  const mk_buffer *b = &v->program->buffers[work->buffer];
  if (b->tile_rows != 1 || b->tile_cols != b->cols || b->cols < MK_MLA_LIST_HEAD + MK_MLA_ENTRY ||
      (b->cols - MK_MLA_LIST_HEAD) % MK_MLA_ENTRY != 0) {
    return mk_reject(
        v, "S10", index,
        "work: buffer %s has rows of %u words in tiles of %ux%u; a row is one tile of %d words and %d for each entry",
        b->name, b->cols, b->tile_rows, b->tile_cols, MK_MLA_LIST_HEAD, MK_MLA_ENTRY);
  }
  if (b->kind != MK_KIND_INPUT) {
    return mk_reject(v, "L01", index, "work: buffer %s is of kind %s; a list is an input, which its checker has passed",
                     b->name, mk_kind_name(b->kind));
  }
  /* It names the row of its own SM, so that each row of the list is carried out by one SM. */
  if (work->rows != 1 || work->row != v->queue_of[index] || b->rows != v->program->queue_count) {
    return mk_reject(v, "L01", index,
                     "work: rows %u to %u of %u; an SM follows its own row of a list with one for each SM", work->row,
                     work->row + work->rows - 1u, b->rows);
  }
  return part ? shape_part(v, index) : check_shared(v, index, MK_SLOT_MLA_REDUCE_parts, MK_SLOT_MLA_REDUCE_out);
}

static bool same_buffer(const mk_instruction *a, uint32_t slot_a, const mk_instruction *b, uint32_t slot_b) {
  return a->operands[slot_a].buffer == b->operands[slot_b].buffer;
}

/* L03: the checker looks at one shape; all instructions have it. */
static mk_status check_agreement(mk_verifier *v, uint32_t index, uint32_t first) {
  const mk_instruction *in = mk_at(v, index), *part = mk_at(v, first);
  bool same;
  if (carries_out(v, index, MK_ENTRIES_REDUCTIONS)) {
    same = same_buffer(in, MK_SLOT_MLA_REDUCE_work, part, MK_SLOT_MLA_PART_work) &&
           same_buffer(in, MK_SLOT_MLA_REDUCE_parts, part, MK_SLOT_MLA_PART_parts) &&
           same_buffer(in, MK_SLOT_MLA_REDUCE_out, part, MK_SLOT_MLA_PART_out);
  } else {
    same = memcmp(in->params, part->params, sizeof in->params) == 0;
    for (uint32_t slot = 0; slot < mk_info(in)->operand_count; slot++) {
      same = same && same_buffer(in, slot, part, slot);
    }
  }
  return same ? MK_OK
              : mk_reject(v, "L03", index, "buffers or parameters differ from those of %s; one list is for all SMs",
                          mk_place_of(v, first).text);
}

/* L02: what a list names is carried out, once, and items before reductions. */
static mk_status check_queue(mk_verifier *v, const mk_queue *q) {
  uint32_t reduce = MK_NONE_INDEX;
  if (q->count == 0 || !carries_out(v, q->first, MK_ENTRIES_ITEMS) || mk_at(v, q->first)->wait_count != 0) {
    return q->count == 0
               ? mk_reject(v, "L02", MK_NONE_INDEX,
                           "queue %zu is empty; where one SM has an mla_part, all have, first in their queues",
                           (size_t)(q - v->program->queues))
               : mk_reject(v, "L02", q->first,
                           "where one SM has an mla_part, all begin their queues with one, and it waits for nothing");
  }
  for (uint32_t i = q->first + 1; i < q->first + q->count; i++) {
    if (carries_out(v, i, MK_ENTRIES_ITEMS) || (carries_out(v, i, MK_ENTRIES_REDUCTIONS) && reduce != MK_NONE_INDEX)) {
      return mk_reject(v, "L02", i, "a second one on its queue; a row of the list is carried out once per epoch");
    }
    reduce = carries_out(v, i, MK_ENTRIES_REDUCTIONS) ? i : reduce;
  }
  return reduce != MK_NONE_INDEX
             ? MK_OK
             : mk_reject(v, "L02", q->first, "no mla_reduce on its queue carries out the reductions");
}

/* L01: what the list is about belongs to it. Constant inputs may be read by others, but not as another list or
 * batch. */
static mk_status check_others(mk_verifier *v, uint32_t index, uint32_t first) {
  const mk_instruction *in = mk_at(v, index), *part = mk_at(v, first);
  static const uint32_t own[] = {MK_SLOT_MLA_PART_sequences, MK_SLOT_MLA_PART_work, MK_SLOT_MLA_PART_parts,
                                 MK_SLOT_MLA_PART_out};
  bool listed = mk_instruction_listed(in);
  for (uint32_t slot = 0; slot < mk_info(in)->operand_count; slot++) {
    for (uint32_t i = 0; i < sizeof own / sizeof own[0]; i++) {
      /* Listed instructions agree on which operand a buffer is. Here: no two operands of an item share one. */
      bool itself = listed && (!carries_out(v, index, MK_ENTRIES_ITEMS) || own[i] == slot);
      if (!itself && same_buffer(in, slot, part, own[i])) {
        return mk_reject(v, "L01", index, "%s: buffer %s is the %s of %s, and nothing else may touch it",
                         operand_name(v, index, slot), v->program->buffers[in->operands[slot].buffer].name,
                         operand_name(v, first, own[i]), mk_place_of(v, first).text);
      }
    }
  }
  return MK_OK;
}

mk_status mk_verify_listed(mk_verifier *v) {
  const mk_program *p = v->program;
  uint32_t count = (uint32_t)p->instruction_count, first = MK_NONE_INDEX, reduce = MK_NONE_INDEX;
  for (uint32_t i = count; i-- != 0;) {
    first = carries_out(v, i, MK_ENTRIES_ITEMS) ? i : first;
    reduce = carries_out(v, i, MK_ENTRIES_REDUCTIONS) ? i : reduce;
  }
  if (first == MK_NONE_INDEX) {
    return reduce == MK_NONE_INDEX ? MK_OK : mk_reject(v, "L02", reduce, "no mla_part carries out the items");
  }
  for (size_t q = 0; q < p->queue_count; q++) {
    MK_TRY(check_queue(v, &p->queues[q]));
  }
  for (uint32_t i = 0; i < count; i++) {
    if (mk_instruction_listed(mk_at(v, i))) {
      MK_TRY(check_agreement(v, i, first));
    }
    MK_TRY(check_others(v, i, first));
    /* Nothing orders an epoch's items after the reductions of the one before. */
    if (mk_info(mk_at(v, i))->state != MK_STATE_NONE) {
      return mk_reject(v, "L04", i, "uses the step state; a program with a work list runs one epoch at a time");
    }
  }
  if (p->ranges.position.low != p->ranges.position.high) {
    return mk_reject(v, "L04", first,
                     "position is %u to %u; a program with a work list declares one, so that a run is one epoch",
                     p->ranges.position.low, p->ranges.position.high);
  }
  return MK_OK;
}
