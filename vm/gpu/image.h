/* The device image: machine code for compute capability 9.0, embedded by the build (cmake/device.cmake) when it found
 * the CUDA toolkit. Constant data; any thread may call. */
#ifndef MK_GPU_IMAGE_H
#define MK_GPU_IMAGE_H

#include "vm/status.h"

typedef enum mk_gpu_image_part {
  /* Each kernel that records stands next to the plain one. */
  MK_GPU_IMAGE_KERNEL, /* mk_kernel, vm/gpu/kernel.cu */
  MK_GPU_IMAGE_RECORDING,
  MK_GPU_IMAGE_SAMPLING, /* the same with the opcodes of sampling, vm/gpu/sampling.cu */
  MK_GPU_IMAGE_SAMPLING_RECORDING,
  MK_GPU_IMAGE_ROWS, /* mk_kernel of several rows per step, vm/gpu/rows.cu */
  MK_GPU_IMAGE_ROWS_RECORDING,
  MK_GPU_IMAGE_WIDE, /* mk_wide_kernel, vm/gpu/wide.cu */
  MK_GPU_IMAGE_WIDE_RECORDING,
  MK_GPU_IMAGE_WIDE_SLOTS, /* mk_wide_kernel of several sequences, vm/gpu/wide_slots.cu */
  MK_GPU_IMAGE_WIDE_SLOTS_RECORDING,
  MK_GPU_IMAGE_ROWS_SAMPLING, /* mk_kernel of several rows with the opcodes of sampling, vm/gpu/rows_sampling.cu */
  MK_GPU_IMAGE_ROWS_SAMPLING_RECORDING,
  /* These for other families than Llama: vm/gpu/families.cu and the like; wide steps below. */
  MK_GPU_IMAGE_FAMILIES,
  MK_GPU_IMAGE_FAMILIES_RECORDING,
  MK_GPU_IMAGE_FAMILIES_SAMPLING,
  MK_GPU_IMAGE_FAMILIES_SAMPLING_RECORDING,
  MK_GPU_IMAGE_ROWS_FAMILIES,
  MK_GPU_IMAGE_ROWS_FAMILIES_RECORDING,
  MK_GPU_IMAGE_ROWS_FAMILIES_SAMPLING,
  MK_GPU_IMAGE_ROWS_FAMILIES_SAMPLING_RECORDING,
  /* And for quantised weights and KV caches in fp8, of any family: vm/gpu/quantised.cu and the like. */
  MK_GPU_IMAGE_QUANTISED,
  MK_GPU_IMAGE_QUANTISED_RECORDING,
  MK_GPU_IMAGE_QUANTISED_SAMPLING,
  MK_GPU_IMAGE_QUANTISED_SAMPLING_RECORDING,
  MK_GPU_IMAGE_ROWS_QUANTISED,
  MK_GPU_IMAGE_ROWS_QUANTISED_RECORDING,
  MK_GPU_IMAGE_ROWS_QUANTISED_SAMPLING,
  MK_GPU_IMAGE_ROWS_QUANTISED_SAMPLING_RECORDING,
  MK_GPU_IMAGE_WIDE_FAMILIES,
  MK_GPU_IMAGE_WIDE_FAMILIES_RECORDING,
  MK_GPU_IMAGE_WIDE_SLOTS_FAMILIES,
  MK_GPU_IMAGE_WIDE_SLOTS_FAMILIES_RECORDING,
  MK_GPU_IMAGE_WIDE_SLOTS_FAMILIES_SAMPLING,
  MK_GPU_IMAGE_WIDE_SLOTS_FAMILIES_SAMPLING_RECORDING,
  MK_GPU_IMAGE_WIDE_QUANTISED,
  MK_GPU_IMAGE_WIDE_QUANTISED_RECORDING,
  MK_GPU_IMAGE_WIDE_SLOTS_QUANTISED,
  MK_GPU_IMAGE_WIDE_SLOTS_QUANTISED_RECORDING,
  MK_GPU_IMAGE_WIDE_SLOTS_QUANTISED_SAMPLING,
  MK_GPU_IMAGE_WIDE_SLOTS_QUANTISED_SAMPLING_RECORDING,
  /* For several GPUs that share a model: vm/gpu/ranks.cu, rows_ranks.cu, wide_ranks.cu and so on. Some have recorders
   * (mk_gpu_image_records). */
  MK_GPU_IMAGE_RANKS,
  MK_GPU_IMAGE_RANKS_RECORDING,
  MK_GPU_IMAGE_RANKS_FAMILIES,
  MK_GPU_IMAGE_RANKS_QUANTISED,
  MK_GPU_IMAGE_RANKS_SAMPLING,
  MK_GPU_IMAGE_RANKS_FAMILIES_SAMPLING,
  MK_GPU_IMAGE_RANKS_QUANTISED_SAMPLING,
  MK_GPU_IMAGE_ROWS_RANKS,
  MK_GPU_IMAGE_ROWS_RANKS_RECORDING,
  MK_GPU_IMAGE_ROWS_RANKS_FAMILIES,
  MK_GPU_IMAGE_ROWS_RANKS_QUANTISED,
  MK_GPU_IMAGE_ROWS_RANKS_SAMPLING,
  MK_GPU_IMAGE_ROWS_RANKS_FAMILIES_SAMPLING,
  MK_GPU_IMAGE_ROWS_RANKS_QUANTISED_SAMPLING,
  MK_GPU_IMAGE_WIDE_RANKS,
  MK_GPU_IMAGE_WIDE_RANKS_RECORDING,
  MK_GPU_IMAGE_WIDE_SLOTS_RANKS,
  MK_GPU_IMAGE_WIDE_SLOTS_RANKS_RECORDING,
  MK_GPU_IMAGE_WIDE_RANKS_FAMILIES,
  MK_GPU_IMAGE_WIDE_SLOTS_RANKS_FAMILIES,
  MK_GPU_IMAGE_WIDE_RANKS_QUANTISED,
  MK_GPU_IMAGE_WIDE_SLOTS_RANKS_QUANTISED,
  MK_GPU_IMAGE_WIDE_SLOTS_SAMPLING, /* mk_wide_kernel that samples, vm/gpu/wide_slots_sampling.cu */
  MK_GPU_IMAGE_WIDE_SLOTS_SAMPLING_RECORDING,
  MK_GPU_IMAGE_MLA,       /* mk_mla_kernel, vm/gpu/mla.cu; no recorder */
  MK_GPU_IMAGE_FILL,      /* mk_fill_hash, vm/gpu/fill.cu */
  MK_GPU_IMAGE_BANDWIDTH, /* mk_read_bandwidth, vm/gpu/bandwidth.cu */
  MK_GPU_IMAGE_PACK,      /* mk_pack_rows, vm/gpu/pack.cu */
  MK_GPU_IMAGE_RANK,      /* mk_rank_logits, vm/gpu/rank.cu */
  MK_GPU_IMAGES,
} mk_gpu_image_part;

/* A cubin, or NULL: this build has none. */
const void *mk_gpu_image(mk_gpu_image_part part);
/* True when all parts are there. */
bool mk_gpu_image_complete(void);
/* 1000 major + 10 minor of the toolkit that made them; 0 without. */
int mk_gpu_image_cuda_version(void);

#endif
