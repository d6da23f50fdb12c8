/* What a rank of several has of the buffers that are dealt: machine_internal.h, mk_gpu_share. The tiles that its own
 * queues name follow from the program, and with them the bytes; nothing else has a place on the rank. */
#include <string.h>

#include "vm/gpu/machine_internal.h"

/* A buffer is dealt by rows of tiles (weights), or by columns of them (caches: KV heads; all else). */
static bool goes_by_rows(const mk_buffer *b) { return b->store == MK_STORE_TILES; }

static uint32_t units_of(const mk_buffer *b) {
  return goes_by_rows(b) ? mk_buffer_grid_rows(b) : mk_buffer_grid_cols(b);
}

bool mk_gpu_is_dealt(const mk_gpu *gpu, size_t buffer) {
  return gpu->ranks > 1 && gpu->program->buffers[buffer].rank == MK_RANK_DEALT;
}

/* Marks the units of all dealt buffers that the rank's queues name; marks: where each buffer's begin. */
static void mark_units(const mk_gpu *gpu, const size_t *marks, uint8_t *named) {
  const mk_program *program = gpu->program;
  for (size_t q = 0; q < program->queue_count; q++) {
    const mk_queue *queue = &program->queues[q];
    for (uint32_t i = queue->first; i < queue->first + queue->count && mk_queue_rank(program, q) == gpu->rank; i++) {
      const mk_instruction *in = &program->instructions[i];
      for (uint32_t slot = 0; slot < mk_opcode_lookup(in->opcode)->operand_count; slot++) {
        const mk_operand *o = &in->operands[slot];
        if (o->rows != 0 && o->cols != 0 && mk_gpu_is_dealt(gpu, o->buffer)) {
          const bool rows = goes_by_rows(&program->buffers[o->buffer]);
          memset(named + marks[o->buffer] + (rows ? o->row : o->col), 1, rows ? o->rows : o->cols);
        }
      }
    }
  }
}

/* The share of units [first, first + count). */
static mk_status describe(const mk_buffer *b, size_t buffer, uint64_t first, uint64_t count, mk_gpu_share *out) {
  const uint64_t bytes = b->dtype == MK_DTYPE_BF16 ? 2 : 4; /* of an element */
  *out = (mk_gpu_share){.buffer = (uint32_t)buffer, .unit = (uint32_t)first, .units = (uint32_t)count, .count = 1};
  if (b->store == MK_STORE_TILES) {
    const uint64_t row_tile = b->bytes / mk_buffer_grid_rows(b);
    out->first = first * row_tile;
    out->bytes = out->step = count * row_tile;
  } else if (b->store == MK_STORE_BLOCKS) {
    const uint64_t pair = b->bytes / b->blocks / b->cols;
    out->first = first * pair;
    out->bytes = out->step = count * pair;
    out->stride = b->cols * pair;
    out->count = b->blocks;
  } else if (b->store == MK_STORE_PLAIN) { /* lies on every rank as in the program */
    const uint64_t last = (first + count) * b->tile_cols;
    out->first = first * b->tile_cols * bytes;
    out->bytes = ((last < b->cols ? last : b->cols) - first * b->tile_cols) * bytes;
    out->stride = out->step = b->cols * bytes;
    out->count = b->rows;
  } else {
    return mk_error(MK_ERR_FILE, "buffer %s is dealt over GPUs; this machine deals weights, caches and plain values",
                    b->name);
  }
  return MK_OK;
}

/* The runs of marked units become shares. */
static mk_status collect(mk_gpu *gpu, const size_t *marks, const uint8_t *named) {
  const mk_program *program = gpu->program;
  size_t capacity = 0;
  for (size_t b = 0; b < program->buffer_count; b++) {
    gpu->share_of[b] = gpu->share_count;
    const uint32_t units = mk_gpu_is_dealt(gpu, b) ? units_of(&program->buffers[b]) : 0;
    for (uint32_t u = 0, end; u < units; u = end) {
      for (end = u + 1; end < units && named[marks[b] + end] == named[marks[b] + u]; end++) {
      }
      if (named[marks[b] + u]) {
        MK_TRY(mk_grow(&gpu->shares, &capacity, gpu->share_count + 1, sizeof *gpu->shares));
        mk_gpu_share *share = &gpu->shares[gpu->share_count];
        MK_TRY(describe(&program->buffers[b], b, u, end - u, share));
        share->number =
            (uint32_t)(gpu->share_count == gpu->share_of[b] ? b : program->buffer_count + gpu->more_buffers++);
        gpu->share_count++;
      }
    }
  }
  gpu->share_of[program->buffer_count] = gpu->share_count;
  return MK_OK;
}

mk_status mk_gpu_find_shares(mk_gpu *gpu) {
  const mk_program *program = gpu->program;
  size_t *marks = NULL, total = 0;
  uint8_t *named = NULL;
  mk_status status = mk_alloc(program->buffer_count + 1, sizeof *gpu->share_of, &gpu->share_of);
  status = status != MK_OK ? status : mk_alloc(program->buffer_count, sizeof *marks, &marks);
  for (size_t b = 0; status == MK_OK && b < program->buffer_count; b++) {
    marks[b] = total;
    total += mk_gpu_is_dealt(gpu, b) ? units_of(&program->buffers[b]) : 0;
  }
  status = status != MK_OK ? status : mk_alloc(total, 1, &named);
  if (status == MK_OK) {
    mark_units(gpu, marks, named);
    status = collect(gpu, marks, named);
  }
  mk_free(marks);
  mk_free(named);
  return status;
}

uint64_t mk_gpu_share_bytes(const mk_gpu *gpu, size_t buffer) {
  uint64_t bytes = 0;
  for (size_t s = gpu->share_of[buffer]; s < gpu->share_of[buffer + 1]; s++) {
    bytes += gpu->shares[s].count * gpu->shares[s].bytes;
  }
  return bytes;
}

/* The part of [offset, end) in one run of a share. */
static mk_status visit_run(const mk_gpu_share *share, uint64_t run, uint64_t offset, uint64_t end, mk_gpu_run_fn *fn,
                           void *user) {
  const uint64_t first = share->first + run * share->stride, last = first + share->bytes;
  const uint64_t from = first > offset ? first : offset, to = last < end ? last : end;
  return from < to ? fn(user, share->at + run * share->step + (from - first), from, to - from) : MK_OK;
}

mk_status mk_gpu_each_run(const mk_gpu *gpu, size_t buffer, uint64_t offset, uint64_t bytes, mk_gpu_run_fn *fn,
                          void *user) {
  if (!mk_gpu_is_dealt(gpu, buffer)) {
    return fn(user, mk_gpu_address(gpu, buffer) + offset, offset, bytes);
  }
  for (size_t s = gpu->share_of[buffer]; s < gpu->share_of[buffer + 1]; s++) {
    const mk_gpu_share *share = &gpu->shares[s];
    const uint64_t end = offset + bytes;
    uint64_t run = share->stride == 0 || offset < share->first ? 0 : (offset - share->first) / share->stride;
    for (; run < share->count && share->first + run * share->stride < end; run++) {
      MK_TRY(visit_run(share, run, offset, end, fn, user));
    }
  }
  return MK_OK;
}

uint64_t mk_gpu_next_here(const mk_gpu *gpu, size_t buffer, uint64_t *offset) {
  if (gpu->group == NULL || !mk_gpu_is_dealt(gpu, buffer)) {
    return gpu->program->buffers[buffer].bytes - *offset;
  }
  for (size_t s = gpu->share_of[buffer]; s < gpu->share_of[buffer + 1]; s++) {
    const mk_gpu_share *share = &gpu->shares[s]; /* of a weight one run */
    if (*offset < share->first + share->bytes) {
      *offset = *offset > share->first ? *offset : share->first;
      return share->first + share->bytes - *offset;
    }
  }
  return 0;
}

const mk_gpu_share *mk_gpu_share_of(const mk_gpu *gpu, const mk_operand *operand) {
  const uint32_t unit = goes_by_rows(&gpu->program->buffers[operand->buffer]) ? operand->row : operand->col;
  size_t s = gpu->share_of[operand->buffer];
  while (s + 1 < gpu->share_of[operand->buffer + 1] && unit >= gpu->shares[s].unit + gpu->shares[s].units) {
    s++;
  }
  return &gpu->shares[s];
}

/* A buffer's tiles keep their numbers: the descriptor says where tile 0 would lie. */
mk_cu_address mk_gpu_share_base(const mk_gpu_share *share) { return share->at - share->first; }

mk_status mk_gpu_borrow_shares(mk_gpu *gpu, size_t buffer, size_t lent) {
  const mk_gpu *lender = gpu->lender;
  for (size_t s = gpu->share_of[buffer]; s < gpu->share_of[buffer + 1]; s++) {
    mk_gpu_share *share = &gpu->shares[s];
    const bool cache = gpu->program->buffers[buffer].kind == MK_KIND_KV;
    bool found = false;
    for (size_t l = lender->share_of[lent]; l < lender->share_of[lent + 1] && !found; l++) {
      const mk_gpu_share *from = &lender->shares[l];
      found = share->unit >= from->unit && share->unit + share->units <= from->unit + from->units &&
              (!cache || share->units == from->units);
      if (found) {
        share->at = from->at + (share->first - from->first);
        share->step = from->step;
      }
    }
    if (!found) {
      return mk_error(MK_ERR_USAGE, "the machine beside has other tiles of %s on this GPU than this program needs",
                      gpu->program->buffers[buffer].name);
    }
  }
  return MK_OK;
}
