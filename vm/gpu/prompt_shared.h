/* The configuration of the machine that computes prompts in chunks of 64 rows (vm/gpu/prompt.cu), under the names that the device code of all
 * configurations uses. Included by launch.h in place of the latency configuration's. Plain data. */
#ifndef MK_GPU_PROMPT_SHARED_H
#define MK_GPU_PROMPT_SHARED_H

#include "vm/gpu/prompt_launch.h"

enum {
  MK_GPU_CONSUMER_WARPS = MK_PROMPT_GPU_WARPS, /* two warpgroups */
  MK_GPU_WARPS = 12, /* consumers, then loader, none, controller and one that idles: whole warpgroups */
  MK_GPU_THREADS = MK_PROMPT_GPU_THREADS,

  /* Shared memory of a block, in bytes from its start: the page ring, what the consumers exchange, the step, then instructions, barriers. */
  MK_GPU_PAGE_BYTES = 16384,
  MK_GPU_RING_PAGES = MK_PROMPT_GPU_RING_PAGES,
  MK_GPU_COPY_BYTES = 8192,      /* of one bulk copy */
  MK_GPU_PAGES_UNDER_WAY = 5,    /* being copied at a time */
  MK_GPU_KV_PAGES_UNDER_WAY = 4, /* of KV blocks */
  MK_GPU_COPY_TICKS = 250,       /* of the SM's clock, at least, from one copy of weights to the next */
  MK_GPU_ACTIVATION_AT = MK_GPU_PAGE_BYTES * MK_GPU_RING_PAGES,
  MK_GPU_ACTIVATION_BYTES = 65536,
  MK_GPU_RESULT_SLOTS = 0, /* consumers store themselves */
  MK_GPU_RESULT_BYTES = 0,
  MK_GPU_RESULTS_AT = MK_GPU_ACTIVATION_AT + MK_GPU_ACTIVATION_BYTES,
  MK_GPU_PROMPT_WORDS_AT = MK_GPU_RESULTS_AT,
  MK_GPU_PROMPT_WORDS_BYTES = 6144, /* vm/gpu/prompt.cuh */
  MK_GPU_INSTRUCTION_SLOTS = 8,
  MK_GPU_PROMPT_OWED_AT =
      MK_GPU_PROMPT_WORDS_AT + MK_GPU_PROMPT_WORDS_BYTES, /* sixteen bytes for each thread that consumes */
  MK_GPU_INSTRUCTIONS_AT = MK_GPU_PROMPT_OWED_AT + MK_GPU_CONSUMER_WARPS * 32 * 16,
  MK_GPU_BARRIERS_AT = MK_GPU_INSTRUCTIONS_AT + MK_GPU_INSTRUCTION_SLOTS * MK_GPU_INSTRUCTION_SLOT_BYTES,
  MK_GPU_OWN_BARRIERS = 3, /* two, vm/gpu/prompt.cuh, and what stands behind the barriers is aligned to 16 bytes */
  MK_GPU_BARRIER_AREA_BYTES = 1184,
  MK_GPU_SHARED_BYTES = MK_GPU_BARRIERS_AT + MK_GPU_BARRIER_AREA_BYTES,
};

#endif
