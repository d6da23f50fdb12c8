/* What the host hands to the persistent kernel, and what comes back. Shared by C (vm/gpu/machine.c) and CUDA (vm/gpu/kernel.cu).
 * Plain data; all addresses are device addresses unless said otherwise. */
#ifndef MK_GPU_LAUNCH_H
#define MK_GPU_LAUNCH_H

#include "vm/instruction.h"

enum {
  MK_GPU_CONSUMER_WARPS = 16,
  MK_GPU_WARPS = 20, /* consumers, then loader, storer, controller and one that idles: whole warpgroups */
  MK_GPU_THREADS = MK_GPU_WARPS * 32,
  MK_GPU_COUNTER_STRIDE = 32, /* u32s between counters: one 128-byte line each */

  /* Shared memory of a block, in bytes from its start: the page ring, then the resident area, then barriers. */
  MK_GPU_PAGE_BYTES = 16384,
  MK_GPU_RING_PAGES = 12,
  MK_GPU_COPY_BYTES = 4096, /* of one bulk copy; so many lanes issue in turn that a page is one round */
  MK_GPU_ACTIVATION_AT = MK_GPU_PAGE_BYTES * MK_GPU_RING_PAGES,
  MK_GPU_ACTIVATION_BYTES = 23552,
  MK_GPU_RESULT_SLOTS = 6,
  MK_GPU_RESULT_BYTES = (16 * 16 + 16) * 4, /* per warp 16 row sums, then per warp its sum of squares */
  MK_GPU_RESULTS_AT = MK_GPU_ACTIVATION_AT + MK_GPU_ACTIVATION_BYTES,
  MK_GPU_INSTRUCTION_SLOTS = 8,
  MK_GPU_INSTRUCTION_SLOT_BYTES = 512, /* the instruction, then what the controller looked up for it */
  MK_GPU_INSTRUCTIONS_AT = MK_GPU_RESULTS_AT + MK_GPU_RESULT_SLOTS * MK_GPU_RESULT_BYTES,
  MK_GPU_BARRIERS_AT = MK_GPU_INSTRUCTIONS_AT + MK_GPU_INSTRUCTION_SLOTS * MK_GPU_INSTRUCTION_SLOT_BYTES,
  MK_GPU_SHARED_BYTES = MK_GPU_BARRIERS_AT + 1024,

  MK_GPU_COUNTER_RELEASE = 1u << 31, /* in counter_totals: this counter is a release counter */
};

/* A buffer as the kernel sees it (vm/program.h: mk_buffer). */
typedef struct mk_gpu_buffer {
  uint64_t address;
  uint32_t rows, cols; /* elements */
  uint32_t tile_rows, tile_cols;
  uint32_t grid_cols;                 /* tiles */
  uint32_t row_words;                 /* STAMPED: 64-bit words per row; else elements per row */
  uint8_t store, dtype;               /* mk_store, mk_dtype */
  uint16_t head_dim;                  /* BLOCKS */
  uint32_t block_tokens, span_tokens; /* BLOCKS */
} mk_gpu_buffer;

typedef struct mk_gpu_queue {
  uint32_t first, count;
} mk_gpu_queue;

/* Who saw a spin run into its deadline, and what it waited for. */
typedef enum mk_gpu_wait_kind {
  MK_GPU_WAIT_NONE,
  MK_GPU_WAIT_COUNTER,   /* edge: counter; have, want: its values */
  MK_GPU_WAIT_STAMP,     /* edge: buffer; have, want: generations */
  MK_GPU_WAIT_PAGE_FULL, /* edge: ring slot; have, want: unused from here on */
  MK_GPU_WAIT_PAGE_EMPTY,
  MK_GPU_WAIT_RESULT,      /* result slot */
  MK_GPU_WAIT_INSTRUCTION, /* slot of the instruction ring */
  MK_GPU_WAIT_STATE,       /* step state */
} mk_gpu_wait_kind;

typedef struct mk_gpu_fault {
  uint32_t claimed; /* 0: no fault; set once by the first to time out */
  uint32_t sm, role, uid;
  uint32_t kind, edge, have, want;
  uint32_t epoch;
  uint32_t nan_position; /* 1 + position whose logits were NaN; 0: none */
} mk_gpu_fault;

/* The token ring is pinned host memory: entry p holds the token of position p as a stamped word whose generation is the
 * epoch's (first_epoch + epoch + 1, never 0); the host clears nothing and waits for the generation. */
typedef struct mk_gpu_params {
  const mk_instruction *instructions;
  const mk_gpu_queue *queues; /* per block */
  const mk_gpu_buffer *buffers;
  uint32_t *counters;             /* MK_GPU_COUNTER_STRIDE apart */
  const uint32_t *counter_totals; /* per epoch; MK_GPU_COUNTER_RELEASE set for release counters */
  uint64_t *token_ring;           /* device pointer to pinned memory, max position + 2 entries */
  const uint32_t *stop;           /* pinned: the host sets it to end after the current token */
  uint32_t *abort;                /* set by the first fault; every spin watches it */
  mk_gpu_fault *fault;
  uint64_t deadline_ns;                    /* of every spin */
  uint32_t token, position, prompt_length; /* step state at the start */
  uint32_t first_epoch;                    /* epochs since counters and stamps were cleared */
  uint32_t epochs;                         /* tokens of this launch */
  uint32_t *epochs_done;                   /* the kernel writes how many epochs it ran */
  uint32_t skip_signal_uid; /* test fault point: this instruction publishes and signals nothing; 0: none */
} mk_gpu_params;

#endif
