/* The configuration of the machine for wide steps (vm/gpu/wide.cu), under the names that the device code of all
 * configurations uses. Included by launch.h in place of the latency configuration's. Plain data. */
#ifndef MK_GPU_WIDE_SHARED_H
#define MK_GPU_WIDE_SHARED_H

#include "vm/gpu/wide_launch.h"

enum {
  MK_GPU_CONSUMER_WARPS = MK_WIDE_GPU_WARPS, /* two warpgroups */
  MK_GPU_WARPS = 12,                         /* consumers, then loader, packer, controller, packer: whole warpgroups */
  MK_GPU_THREADS = MK_WIDE_GPU_THREADS,

  /* Shared memory of a block, in bytes from its start: the page ring, room for what is on its way into the cache, the
   * step, then instructions, barriers. */
  MK_GPU_PAGE_BYTES = 16384,
  MK_GPU_RING_PAGES = MK_WIDE_GPU_RING_PAGES,
  MK_GPU_STAGE_PAGES = 4, /* that are handed over in turn: 128 columns of a unit's weights, and of its lines */
  MK_GPU_ACTIVATION_AT = MK_GPU_PAGE_BYTES * MK_GPU_RING_PAGES,
  MK_GPU_ACTIVATION_BYTES = 16384, /* room of APPEND's warps */
  MK_GPU_RESULT_SLOTS = 0,         /* consumers store themselves */
  MK_GPU_RESULT_BYTES = 0,
  MK_GPU_RESULTS_AT = MK_GPU_ACTIVATION_AT + MK_GPU_ACTIVATION_BYTES,
  MK_GPU_WIDE_WORDS_AT = MK_GPU_RESULTS_AT,
#if MK_GPU_SLOTS
  MK_GPU_WIDE_WORDS_BYTES = 12288, /* vm/gpu/wide.cuh: and what slots chose, items of a work list */
#else
  MK_GPU_WIDE_WORDS_BYTES = 9216, /* vm/gpu/wide.cuh */
#endif
  MK_GPU_INSTRUCTION_SLOTS = 8,
  MK_GPU_INSTRUCTIONS_AT = MK_GPU_WIDE_WORDS_AT + MK_GPU_WIDE_WORDS_BYTES,
  MK_GPU_BARRIERS_AT = MK_GPU_INSTRUCTIONS_AT + MK_GPU_INSTRUCTION_SLOTS * MK_GPU_INSTRUCTION_SLOT_BYTES,
  MK_GPU_OWN_BARRIERS = 3 + MK_WIDE_GPU_RING_PAGES, /* vm/gpu/wide.cuh */
  MK_GPU_BARRIER_AREA_BYTES = 1424,
  MK_GPU_SHARED_BYTES = MK_GPU_BARRIERS_AT + MK_GPU_BARRIER_AREA_BYTES,
};

#endif
