/* What programs of wide steps need of the GPU machine beside others: tensor maps, by which their kernel copies weights,
 * and panels of the values that are multiplied by them. See vm/gpu/wide_loader.cuh. */
#include <string.h>

#include "vm/gpu/machine_internal.h"
#include "vm/program/strips.h"

size_t mk_gpu_map_count(const mk_gpu *gpu) {
  return gpu->rows > MK_MAX_ROWS ? gpu->program->buffer_count + gpu->more_buffers : 0;
}

uint64_t mk_gpu_list_bytes(const mk_gpu *gpu, uint32_t steps) {
  const uint16_t work = gpu->buffers.work;
  return work == MK_NO_PLAN_BUFFER ? 0 : gpu->program->buffers[work].bytes / gpu->buffers.steps * steps;
}

typedef struct map_shape {
  int type, swizzle;
  unsigned rank;
  uint64_t sizes[3], strides[2]; /* of dimensions, innermost first; bytes, of those but the first */
  uint32_t box[3];
} map_shape;

/* Boxes of 64 columns and half a line tile of a plain value. */
static map_shape shape_of_lines(const mk_buffer *b) {
  return (map_shape){.type = MK_CU_TENSOR_BF16,
                     .swizzle = MK_CU_TENSOR_SWIZZLE_128,
                     .rank = 2,
                     .sizes = {b->cols, b->rows},
                     .strides = {b->cols * UINT64_C(2)},
                     .box = {MK_WIDE_GPU_PANEL_COLS, MK_WIDE_GPU_LINES / 2}};
}

/* As many as a warpgroup multiplies; half as many where no instruction of steps of several sequences has more. */
mk_status mk_gpu_find_box_tiles(mk_gpu *gpu) {
  const mk_program *p = gpu->program;
  const uint16_t group = MK_WIDE_GPU_UNIT_TILES / 2;
  const bool halves = mk_program_slots(p) > 1 && gpu->ranks == 1;
  MK_TRY(mk_alloc(p->buffer_count, sizeof *gpu->box_tiles, &gpu->box_tiles));
  for (size_t b = 0; b < p->buffer_count; b++) {
    gpu->box_tiles[b] = (uint16_t)(halves ? group / 2 : group);
  }
  for (size_t i = 0; i < p->instruction_count; i++) {
    const mk_opcode_info *info = mk_opcode_lookup(p->instructions[i].opcode);
    for (uint32_t slot = 0; slot < info->operand_count; slot++) {
      const mk_operand *o = &p->instructions[i].operands[slot];
      if (info->operands[slot].store == MK_OPERAND_STORE_TILES && o->rows > group / 2) {
        gpu->box_tiles[o->buffer] = group;
      }
    }
  }
  return MK_OK;
}

/* Boxes of a chain of so many row tiles of a weight: words of a piece, pieces, row tiles. */
static map_shape shape_of_weight(const mk_buffer *b, uint32_t box_tiles) {
  const bool quantised = mk_dtype_is_quantised(b->dtype);
  const uint32_t pieces = mk_wide_gpu_pieces(b->dtype), steps = mk_buffer_grid_cols(b);
  const uint32_t words = (quantised ? mk_strip_bytes(b) / pieces : MK_TILE * MK_TILE * 2) / 8;
  const uint64_t all = quantised ? (steps + MK_STRIP_STEPS - 1) / MK_STRIP_STEPS * pieces : steps;
  return (map_shape){.type = MK_CU_TENSOR_U64,
                     .swizzle = MK_CU_TENSOR_SWIZZLE_NONE,
                     .rank = 3,
                     .sizes = {words, all, mk_buffer_grid_rows(b)},
                     .strides = {words * UINT64_C(8), all * words * 8},
                     .box = {words, pieces, box_tiles}};
}

/* What lies beyond the buffer, or beyond a share of it, comes as zeros. */
static mk_status encode(const mk_gpu *gpu, size_t buffer, mk_cu_address at, const map_shape *shape, void *to) {
  _Alignas(64) uint64_t map[16];
  const uint32_t steps[] = {1, 1, 1};
  MK_TRY(mk_gpu_check(
      gpu,
      gpu->driver->tensor_map(map, shape->type, shape->rank, (void *)(uintptr_t)at, shape->sizes, shape->strides,
                              shape->box, steps, 0, shape->swizzle, MK_CU_TENSOR_PROMOTE_NONE, 0),
      gpu->program->buffers[buffer].name));
  memcpy(to, map, sizeof map);
  return MK_OK;
}

mk_status mk_gpu_encode_maps(const mk_gpu *gpu, void *to) {
  const mk_program *program = gpu->program;
  mk_gpu_tensor_map *maps = to;
  if (mk_gpu_map_count(gpu) == 0) {
    return MK_OK;
  }
  for (size_t b = 0; b < program->buffer_count; b++) {
    const mk_buffer *buffer = &program->buffers[b];
    bool lines =
        buffer->kind == MK_KIND_ACTIVATION && buffer->dtype == MK_DTYPE_BF16 && buffer->store == MK_STORE_PLAIN;
    if (lines || (buffer->store == MK_STORE_TILES && !mk_gpu_is_dealt(gpu, b))) {
      const map_shape shape = lines ? shape_of_lines(buffer) : shape_of_weight(buffer, gpu->box_tiles[b]);
      MK_TRY(encode(gpu, b, mk_gpu_address(gpu, b), &shape, &maps[b]));
    }
  }
  for (size_t s = 0; s < gpu->share_count; s++) {
    const mk_gpu_share *share = &gpu->shares[s];
    if (program->buffers[share->buffer].store == MK_STORE_TILES) {
      map_shape shape = shape_of_weight(&program->buffers[share->buffer], gpu->box_tiles[share->buffer]);
      shape.sizes[2] = share->unit + share->units;
      MK_TRY(encode(gpu, share->buffer, mk_gpu_share_base(share), &shape, &maps[share->number]));
    }
  }
  return MK_OK;
}
