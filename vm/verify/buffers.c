/* Phase 1, of the table of buffers: what each is, and where it lies. Rules S02, B04, P04. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vm/program/strips.h"
#include "vm/verify/internal.h"

enum {
  ARENA_ALIGNMENT = 128,
  MAX_SIDE =
      1 << 30, /* of a buffer; with the next two the sum of two places fits 32 bits, and what all operands stage 64 */
  MAX_TILE_ROWS = 1 << 16,
  MAX_TILE_COLS = 1 << 24,
};

static bool within(uint32_t side, uint32_t most) { return side != 0 && side <= most; }

/* What may lie on several ranks: copies are for words that writers send, tiles of a rank for what it keeps to
 * itself. */
static mk_status check_place(mk_verifier *v, const mk_buffer *b) {
  if (b->rank == MK_RANK_DEALT && b->store == MK_STORE_STAMPED) {
    return mk_reject(v, "S02", MK_NONE_INDEX,
                     "buffer %s: stamped words are for others to read, and this one is dealt to ranks, each of which "
                     "has its tiles to itself; it must be rank=each",
                     b->name);
  }
  if (b->rank == MK_RANK_EACH && b->kind == MK_KIND_KV) {
    return mk_reject(v, "S02", MK_NONE_INDEX,
                     "buffer %s: a KV cache is appended to in place, and this one has a copy on each rank; it must be "
                     "rank=dealt, or lie on one",
                     b->name);
  }
  if (b->rank == MK_RANK_DEALT && b->scope != MK_SCOPE_GPU) {
    return mk_reject(v, "P04", MK_NONE_INDEX,
                     "buffer %s: scope is %s; what is dealt to ranks is touched by queues of one rank each: scope gpu",
                     b->name, mk_scope_name(b->scope));
  }
  return MK_OK;
}

/* What is quantised, and by which scales: of weights those of the checkpoint, of a KV cache one for all of a head. */
static mk_status check_scales(mk_verifier *v, const mk_buffer *b) {
  if ((b->scale != MK_SCALE_NONE || b->scale_cols != 0 || b->zeros != 0) && !mk_dtype_is_quantised(b->dtype)) {
    return mk_reject(v, "S02", MK_NONE_INDEX,
                     "buffer %s: has scales, but its dtype is %s; only e4m3, i8 and i4 have any", b->name,
                     mk_dtype_name(b->dtype));
  }
  if (!mk_dtype_is_quantised(b->dtype)) {
    return MK_OK;
  }
  if (b->kind == MK_KIND_KV) {
    const bool fits = b->dtype == MK_DTYPE_E4M3 && b->scale == MK_SCALE_BF16 && b->scale_cols == b->head_dim;
    return fits && b->zeros == 0
               ? MK_OK
               : mk_reject(v, "S02", MK_NONE_INDEX,
                           "buffer %s: %s, scale %s of %u columns, zeros %u; a quantised KV cache is e4m3 with a bf16 "
                           "scale for all %u columns of a head, and no zeros",
                           b->name, mk_dtype_name(b->dtype), mk_scale_name(b->scale), b->scale_cols, b->zeros,
                           b->head_dim);
  }
  if (b->kind != MK_KIND_WEIGHT || b->store != MK_STORE_TILES || b->scale == MK_SCALE_NONE ||
      b->scale >= MK_SCALE_COUNT || (b->scale_cols != 32 && b->scale_cols != 64 && b->scale_cols != 128) ||
      b->zeros > (b->dtype == MK_DTYPE_I4)) {
    return mk_reject(
        v, "S02", MK_NONE_INDEX,
        "buffer %s: %s of kind %s in %s, scale %s of %u columns, zeros %u; quantised weights are weights in "
        "tiles with scales of 32, 64 or 128 columns, and i4 alone may have zeros",
        b->name, mk_dtype_name(b->dtype), mk_kind_name(b->kind), mk_store_name(b->store), mk_scale_name(b->scale),
        b->scale_cols, b->zeros);
  }
  return MK_OK;
}

static mk_status check_buffer(mk_verifier *v, size_t index) {
  const mk_buffer *b = &v->program->buffers[index];
  bool known = b->kind < MK_KIND_COUNT && b->dtype < MK_DTYPE_COUNT && b->store < MK_STORE_COUNT &&
               b->scope < MK_SCOPE_COUNT && (b->rank < v->program->machine.ranks || mk_rank_name(b->rank) != NULL) &&
               b->proxy >= 1 && b->proxy <= 3 && memchr(b->name, 0, sizeof b->name) != NULL;
  bool sides = within(b->rows, MAX_SIDE) && within(b->cols, MAX_SIDE) && within(b->tile_rows, MAX_TILE_ROWS) &&
               within(b->tile_cols, MAX_TILE_COLS);
  if (!known || !sides || mk_buffer_grid_rows(b) > MK_MAX_COORDINATE || mk_buffer_grid_cols(b) > MK_MAX_COORDINATE) {
    return mk_reject(
        v, "S02", MK_NONE_INDEX,
        "buffer %zu: kind %u, dtype %u, store %u, scope %u, proxy %u, rank %u, shape %ux%u in tiles of %ux%u "
        "is not a buffer that an operand can name",
        index, b->kind, b->dtype, b->store, b->scope, b->proxy, b->rank, b->rows, b->cols, b->tile_rows, b->tile_cols);
  }
  if ((b->kind == MK_KIND_KV) != (b->store == MK_STORE_BLOCKS)) {
    return mk_reject(v, "S02", MK_NONE_INDEX,
                     "buffer %s: kind %s with store %s; the KV cache is stored in blocks, nothing else is", b->name,
                     mk_kind_name(b->kind), mk_store_name(b->store));
  }
  MK_TRY(check_place(v, b));
  /* Nobody would write the stamps that its readers wait for. */
  if (b->store == MK_STORE_STAMPED && mk_constant(b)) {
    return mk_reject(
        v, "S02", MK_NONE_INDEX,
        "buffer %s: kind %s with store stamped; instructions write stamps, so it must be activation or output", b->name,
        mk_kind_name(b->kind));
  }
  if (b->store == MK_STORE_TILES && (b->tile_rows != MK_TILE || b->tile_cols != MK_TILE)) {
    return mk_reject(v, "S02", MK_NONE_INDEX, "buffer %s: tiles of %ux%u; weight tiles are 16x16", b->name,
                     b->tile_rows, b->tile_cols);
  }
  MK_TRY(check_scales(v, b));
  if (b->store == MK_STORE_BLOCKS &&
      (b->tile_rows != 1 || b->tile_cols != 1 || b->block_tokens == 0 || b->block_tokens % mk_block_unit(b) != 0 ||
       b->span_tokens == 0 || b->span_tokens % b->block_tokens != 0 || b->blocks == 0 ||
       !mk_head_dim_exists(b->head_dim))) {
    return mk_reject(
        v, "S02", MK_NONE_INDEX,
        "buffer %s: tile %ux%u, block_tokens %u, span_tokens %u, blocks %u, head_dim %u; tiles are 1x1, block_tokens "
        "is a multiple of %u, a span is whole blocks, head_dim 64, 128 or 256",
        b->name, b->tile_rows, b->tile_cols, b->block_tokens, b->span_tokens, b->blocks, b->head_dim, mk_block_unit(b));
  }
  /* A stamped word holds two bf16: an odd tile would share a word with its neighbour, and an odd row has half a
   * word. */
  if (b->store == MK_STORE_STAMPED && b->dtype == MK_DTYPE_BF16 && (b->tile_cols % 2 != 0 || b->cols % 2 != 0)) {
    return mk_reject(v, "S02", MK_NONE_INDEX,
                     "buffer %s: tile_cols is %u, cols %u; stamped bf16 travels in pairs, so both must be even",
                     b->name, b->tile_cols, b->cols);
  }
  /* A machine lays such values out in fragments of sixteen elements. */
  uint32_t lines = mk_program_rows(v->program);
  if (lines > 1 && b->store == MK_STORE_STAMPED && b->dtype == MK_DTYPE_BF16 &&
      (b->rows != lines || b->cols % MK_TILE != 0)) {
    return mk_reject(v, "S02", MK_NONE_INDEX,
                     "buffer %s: %ux%u; with %u rows per step stamped bf16 has as many rows, and columns by %d",
                     b->name, b->rows, b->cols, lines, MK_TILE);
  }
  uint64_t bytes = mk_buffer_bytes(b);
  if (bytes == 0 || bytes == UINT64_MAX || bytes != b->bytes) {
    return mk_reject(v, "S02", MK_NONE_INDEX, "buffer %s: bytes is %" PRIu64 "; its shape, %s in %s, makes %" PRIu64,
                     b->name, b->bytes, mk_dtype_name(b->dtype), mk_store_name(b->store), bytes);
  }
  return MK_OK;
}

static int by_offset(const void *a, const void *b) {
  const mk_buffer *x = *(const mk_buffer *const *)a, *y = *(const mk_buffer *const *)b;
  return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Offsets are counted over all ranks together, so that a buffer has the same one in the arena of whichever rank holds
 * it. */
static mk_status check_arena(mk_verifier *v, const mk_buffer **sorted, bool weights) {
  const mk_program *p = v->program;
  uint64_t size = weights ? p->weight_bytes : p->work_bytes;
  const mk_buffer *last = NULL;
  for (size_t i = 0; i < p->buffer_count; i++) {
    const mk_buffer *b = sorted[i];
    if ((b->kind == MK_KIND_WEIGHT) != weights) {
      continue;
    }
    if (b->offset % ARENA_ALIGNMENT != 0 || b->offset > size || b->bytes > size - b->offset) {
      return mk_reject(v, "B04", MK_NONE_INDEX,
                       "buffer %s: %" PRIu64 " bytes at offset %" PRIu64 " of an arena of %" PRIu64
                       "; it must lie inside, at a multiple of %d",
                       b->name, b->bytes, b->offset, size, ARENA_ALIGNMENT);
    }
    if (last != NULL && last->offset + last->bytes > b->offset) {
      return mk_reject(v, "B04", MK_NONE_INDEX,
                       "buffer %s: offset %" PRIu64 " lies in buffer %s, which ends at %" PRIu64, b->name, b->offset,
                       last->name, last->offset + last->bytes);
    }
    last = b;
  }
  return MK_OK;
}

mk_status mk_verify_buffers(mk_verifier *v) {
  const mk_program *p = v->program;
  for (size_t i = 0; i < p->buffer_count; i++) {
    MK_TRY(check_buffer(v, i));
  }
  const mk_buffer **sorted;
  MK_TRY(mk_alloc(p->buffer_count, sizeof(mk_buffer *), &sorted));
  for (size_t i = 0; i < p->buffer_count; i++) {
    sorted[i] = &p->buffers[i];
  }
  qsort(sorted, p->buffer_count, sizeof(mk_buffer *), by_offset);
  mk_status status = check_arena(v, sorted, true);
  if (status == MK_OK) {
    status = check_arena(v, sorted, false);
  }
  mk_free(sorted);
  return status;
}
