/* The configuration of the machine that runs MLA programs (vm/gpu/mla.cu), under the names that the device code of all
 * configurations uses. Included by launch.h in place of the latency configuration's. Plain data. */
#ifndef MK_GPU_MLA_SHARED_H
#define MK_GPU_MLA_SHARED_H

#include "vm/gpu/mla_launch.h"

enum {
  MK_GPU_CONSUMER_WARPS = 8, /* two warpgroups */
  MK_GPU_WARPS = 12,         /* consumers, then loader, an idle warp, controller, an idle warp: whole warpgroups */
  MK_GPU_THREADS = MK_MLA_GPU_THREADS,

  /* Shared memory of a block, in bytes from its start: the page ring, the queries, what the warpgroups exchange, then
   * instructions, entries of the work list, barriers. */
  MK_GPU_PANEL_BYTES = 64 * 128, /* 64 rows of 64 columns, 128-byte swizzle */
  MK_GPU_PANELS = 9,
  MK_GPU_PAGE_BYTES = MK_GPU_PANELS * MK_GPU_PANEL_BYTES,
  MK_GPU_RING_PAGES = 2,
  MK_GPU_ACTIVATION_AT = MK_GPU_PAGE_BYTES * MK_GPU_RING_PAGES, /* the queries */
  MK_GPU_ACTIVATION_BYTES = MK_GPU_PAGE_BYTES,
  MK_GPU_EXCHANGE_AT = MK_GPU_ACTIVATION_AT + MK_GPU_ACTIVATION_BYTES, /* between the warpgroups */
  MK_GPU_EXCHANGE_BYTES = 2048,
  MK_GPU_RESULT_SLOTS = 0, /* consumers store themselves */
  MK_GPU_RESULT_BYTES = 0,
  MK_GPU_RESULTS_AT = MK_GPU_EXCHANGE_AT + MK_GPU_EXCHANGE_BYTES,
  MK_GPU_INSTRUCTION_SLOTS = MK_MLA_GPU_MOST_INSTRUCTIONS,
  MK_GPU_INSTRUCTIONS_AT = MK_GPU_RESULTS_AT,
  MK_GPU_ENTRY_SLOTS = 4,
  MK_GPU_ENTRY_BYTES = 32,
  MK_GPU_ENTRIES_AT = MK_GPU_INSTRUCTIONS_AT + MK_GPU_INSTRUCTION_SLOTS * MK_GPU_INSTRUCTION_SLOT_BYTES,
  MK_GPU_BARRIERS_AT = MK_GPU_ENTRIES_AT + MK_GPU_ENTRY_SLOTS * MK_GPU_ENTRY_BYTES,
  MK_GPU_OWN_BARRIERS = 27, /* vm/gpu/attender.cuh */
  MK_GPU_BARRIER_AREA_BYTES = 1312,
  MK_GPU_SHARED_BYTES = MK_GPU_BARRIERS_AT + MK_GPU_BARRIER_AREA_BYTES,
};

#endif
