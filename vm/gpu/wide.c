/* What programs of wide steps need of the GPU machine beside others: tensor maps, by which their kernel copies panels of values that are
 * multiplied. See vm/gpu/wide_loader.cuh. */
#include <string.h>

#include "vm/gpu/machine_internal.h"

size_t mk_gpu_map_count(const mk_program *program) {
  return mk_program_rows(program) > MK_PROMPT_ROWS ? program->buffer_count : 0;
}

/* Boxes of 64 columns and 128 lines of a plain value; what lies beyond its columns comes as zeros. */
static mk_status encode(const mk_gpu *gpu, size_t buffer, void *to) {
  const mk_buffer *b = &gpu->program->buffers[buffer];
  _Alignas(64) uint64_t map[16];
  const uint64_t sizes[] = {b->cols, b->rows}, strides[] = {b->cols * UINT64_C(2)};
  const uint32_t box[] = {MK_WIDE_GPU_PANEL_COLS, MK_WIDE_GPU_LINES}, steps[] = {1, 1};
  MK_TRY(mk_gpu_check(
      gpu,
      gpu->driver->tensor_map(map, MK_CU_TENSOR_BF16, 2, (void *)(uintptr_t)mk_gpu_address(gpu, buffer), sizes, strides,
                              box, steps, 0, MK_CU_TENSOR_SWIZZLE_128, MK_CU_TENSOR_PROMOTE_NONE, 0),
      b->name));
  memcpy(to, map, sizeof map);
  return MK_OK;
}

mk_status mk_gpu_encode_maps(const mk_gpu *gpu, void *to) {
  const mk_program *program = gpu->program;
  for (size_t b = 0; b < mk_gpu_map_count(program); b++) {
    const mk_buffer *buffer = &program->buffers[b];
    if (buffer->kind == MK_KIND_ACTIVATION && buffer->dtype == MK_DTYPE_BF16 && buffer->store == MK_STORE_PLAIN) {
      MK_TRY(encode(gpu, b, (uint8_t *)to + b * sizeof(mk_gpu_tensor_map)));
    }
  }
  return MK_OK;
}
