/* What the host hands to the persistent kernel, and what comes back. Shared by C (vm/gpu/machine.c) and CUDA
 * (vm/gpu/kernel.cu). Plain data; all addresses are device addresses unless said otherwise. */
#ifndef MK_GPU_LAUNCH_H
#define MK_GPU_LAUNCH_H

#include "vm/gpu/mla_launch.h"
#include "vm/gpu/peers.h"
#include "vm/gpu/wide_launch.h"
#include "vm/program/instruction.h"
#include "vm/trace/activity.h"

enum {
  MK_GPU_COUNTER_STRIDE = 32,          /* u32s between counters: one 128-byte line each */
  MK_GPU_INSTRUCTION_SLOT_BYTES = 512, /* the instruction, then what the controller has looked up for it */
  MK_GPU_COUNTER_RELEASE = 1u << 31,   /* in counter_totals: this counter is a release counter */
  MK_GPU_BLOCK_TOKENS = 64,            /* of a KV cache */
};

#ifdef MK_GPU_MLA /* device code of the configuration for MLA */
#include "vm/gpu/mla_shared.h"
#elif defined MK_GPU_WIDE /* of the one for wide steps */
#include "vm/gpu/wide_shared.h"
#else
enum {
  MK_GPU_CONSUMER_WARPS = 16,
  MK_GPU_FRONT_LANES = 3, /* lanes of a consumer warp that read the draw of one SM, with min-p */
  MK_GPU_WARPS = 20,      /* consumers, then loader, storer, controller and one that idles: whole warpgroups */
  MK_GPU_THREADS = MK_GPU_WARPS * 32,
  MK_GPU_STRIPS_TIMES = 1 << 21, /* an operand's strips times those of a page are fewer (vm/gpu/strips.cuh: page_of) */

  /* Shared memory of a block, in bytes from its start: the page ring, then the resident area, then barriers. */
  MK_GPU_PAGE_BYTES = 16384,
  MK_GPU_RING_PAGES = 12,
  MK_GPU_COPY_BYTES = 8192,   /* of one bulk copy */
  MK_GPU_PAGES_UNDER_WAY = 5, /* how many pages are being copied at a time */
  MK_GPU_KV_PAGES_UNDER_WAY =
      4,                   /* the same for KV blocks, whose readers look only at every eighth page (attention.cuh) */
  MK_GPU_COPY_TICKS = 250, /* ticks of the SM's clock, at least, from one copy of weights to the next */
  MK_GPU_ACTIVATION_AT = MK_GPU_PAGE_BYTES * MK_GPU_RING_PAGES,
  MK_GPU_NORMED_PAGES = 12,                 /* most columns of an x that is normed: 12 * 512 (vm/gpu/consumer.cuh) */
  MK_GPU_MOST_NORMED_PAGES = 16,            /* the same of several ranks, and where weights are quantised */
  MK_GPU_ACTIVATION_BYTES = 28672,          /* x of 14,336 columns: SPLIT_MAX_COLS of scheduler/compile.c */
  MK_GPU_RESULT_BYTES = (16 * 16 + 16) * 4, /* for each warp 16 row sums, then the warps' sums of squares */
  MK_GPU_RESULTS_AT = MK_GPU_ACTIVATION_AT + MK_GPU_ACTIVATION_BYTES,
/* Barriers, then the words that the roles of a block share. */
#if defined MK_GPU_RANKS && defined MK_GPU_RECORDS && !defined MK_GPU_ROWS
  MK_GPU_BARRIER_AREA_BYTES = 1648,
#else
  MK_GPU_BARRIER_AREA_BYTES = 1632,
#endif
  MK_GPU_SHARED_BYTES = 227 * 1024, /* as much as a block may have */
  MK_GPU_BARRIERS_AT = MK_GPU_SHARED_BYTES - MK_GPU_BARRIER_AREA_BYTES,
#if defined MK_GPU_ROWS && MK_GPU_ROWS
  MK_GPU_RESULT_SLOTS = 3, /* of another kind (vm/gpu/rows.cuh); they lie where one row has activation and results */
  MK_GPU_INSTRUCTION_SLOTS = 5, /* a sixth would take the room of residuals and sums */
#else
  MK_GPU_RESULT_SLOTS = 2,
  MK_GPU_INSTRUCTION_SLOTS = 6,
#endif
  MK_GPU_INSTRUCTIONS_AT = MK_GPU_BARRIERS_AT - MK_GPU_INSTRUCTION_SLOTS * MK_GPU_INSTRUCTION_SLOT_BYTES,
  MK_GPU_OWN_BARRIERS = 1, /* barriers for sampling alone; what stands after all barriers is aligned to 16 bytes */

  MK_GPU_KEPT_UNIT_FLOATS = 4, /* sums of two neighbouring output values, kept between rounds of attention */

  /* For the kernel of several rows. */
  MK_GPU_ROWS_PAGES_UNDER_WAY = 4,
#if defined MK_GPU_QUANTISED && MK_GPU_QUANTISED
  MK_GPU_ROWS_COPY_TICKS = 400,  /* ticks from one page to the next; a page is one copy here */
#else
  MK_GPU_ROWS_COPY_TICKS = 600,
#endif
  MK_GPU_ROWS_LATE_TICKS = 1000, /* how much of a copy's delay the next ones make up for */
  MK_GPU_ROWS_SLOW_PAGES = 2,    /* pages under way while the consumers still have two chunks to do */
  MK_GPU_CHUNK_STEPS = 4 * MK_GPU_PAGE_BYTES / 512, /* K steps of a K chunk */
  MK_GPU_PIECE_TOKENS = 256,                        /* tokens that attention takes at a time */
  MK_GPU_KEPT_SET_FLOATS = 4 * 4 * 8 * 64, /* four sums of a set of eight columns, kept between rounds of attention */
};
#endif

enum {
  /* In the flags of an operand, when the program has been loaded: from this bit on one for each rank that reads what
   * the operand writes. */
  MK_GPU_READERS_SHIFT = 8,
};

/* Whether a kernel of several rows reads half of each value where lines are few. Those for quantised weights are code
 * enough as it is, and that which draws for Llamas on one GPU took 4 us more for sixteen lines with this in it
 * (docs/SAMPLING.md); those that draw for other families, or on several, have not been measured without it. */
#define MK_GPU_KNOWS_FEW_LINES(quantised, samples, family, ranks) (!(quantised) && (!(samples) || (family) || (ranks)))

/* With 2 to 16 rows, a word of a value that is not there yet is four of these bytes (vm/gpu/rows.cuh). */
#define MK_GPU_EMPTY_BYTE 0xff

/* What a strip of quantised weights has beside its codes: of how many ranges of columns it has scales, of which type
 * (mk_scale), and whether it has zeros. */
typedef struct mk_gpu_strip_scales {
  uint8_t ranges, type, zeros;
  uint8_t page_strips; /* whole strips in a page; of every weight */
} mk_gpu_strip_scales;

/* A buffer as the kernel sees it (vm/program/program.h: mk_buffer). */
typedef struct mk_gpu_buffer {
  uint64_t address;
  uint32_t rows, cols; /* elements */
  uint32_t tile_rows, tile_cols;
  uint32_t grid_cols; /* tiles */
  union {
    uint32_t row_words; /* STAMPED: 64-bit words per row; PLAIN, TILES: elements per row */
    uint32_t blocks;    /* BLOCKS */
  };
  uint8_t store, dtype; /* mk_store, mk_dtype */
  union {
    uint16_t head_dim;  /* BLOCKS; with several rows also of what COMBINE writes, which comes line by line */
    uint16_t spans;     /* of ATTENTION's parts: of a split, each with a part of its own */
    uint16_t box_tiles; /* TILES, in wide steps of several sequences: the row tiles of a copy by its tensor map */
  };
  union {
    uint32_t combined_low; /* of ATTENTION's parts: the address of what fused COMBINEs make of them, lower half */
    uint32_t strip_bytes;  /* TILES: of 128 columns of a row tile (vm/program/strips.h; bf16: eight steps) */
  };
  union {
    uint32_t span_tokens;      /* BLOCKS */
    uint32_t combined_high;    /* the upper half of that address */
    mk_gpu_strip_scales scale; /* TILES, of quantised weights */
  };
} mk_gpu_buffer;

typedef struct mk_gpu_queue {
  uint32_t first, count;
} mk_gpu_queue;

/* Faults other than a wait that ran into its deadline: an index of something that does not exist. */
enum {
  MK_GPU_FAULT_TOKEN = MK_ACTIVITY_COUNT, /* `have` is the next token, `want` how many there are */
  MK_GPU_FAULT_BLOCK, /* `have` is what the block table names, `want` how many blocks the cache has */
};

/* The first fault: which role saw a spin run into its deadline, and what it waited for; or an index out of its
 * range. */
typedef struct mk_gpu_fault {
  uint32_t claimed; /* 0: no fault; set once by the first */
  uint32_t sm, role, uid;
  uint32_t activity;   /* mk_activity, or one of the two faults above */
  uint32_t edge;       /* what was waited for: activities.def says what it names for each activity */
  uint32_t have, want; /* COUNTER: values; STAMP: generations; faults: see above; else `want` is the barrier's phase */
  uint32_t epoch;
} mk_gpu_fault;

/* What a role writes about what it does. The host makes one or two records of a note (vm/gpu/trace.c): of an activity,
 * and, with two, of the work that follows it. */
typedef struct mk_gpu_note {
  uint32_t since;   /* with two records: when the first one begins; BOUNDARY: the upper half of the time */
  uint32_t now;     /* when the last record begins: the lower half of the SM's clock */
  uint32_t uid;     /* WORK: of the instruction, also for notes after it without a uid; BOUNDARY: the launch's step */
  uint8_t activity; /* of the first record */
  uint8_t records;  /* 1 or 2 */
  uint16_t edge;
} mk_gpu_note;

/* In memory all tracks take turns: so many notes of one, then of the next. So what all roles of the GPU write at about
 * the same time lies in few pages of memory (measured: docs/results/decode.md). */
enum { MK_GPU_TRACK_TURN = 8 };

/* Where a launch leaves its notes. Each role of each SM has room for `capacity` notes; later ones are counted and
 * dropped. */
typedef struct mk_gpu_trace {
  mk_gpu_note *notes; /* [capacity / MK_GPU_TRACK_TURN][SMs][MK_TRACE_ROLES][MK_GPU_TRACK_TURN] */
  mk_trace_sm *sms;
  uint64_t *beacons; /* [2]: block 0 writes its clock here, at the start and at the end; then mk_gpu_clock_offset */
  uint32_t capacity; /* a multiple of MK_GPU_TRACK_TURN; 0: nothing is recorded */
  uint32_t stride;   /* notes from one turn of a track to the track's next turn */
  uint32_t first_epoch, epochs; /* recorded steps of the launch */
} mk_gpu_trace;

/* How the clock of block 0 of another rank than 0 compares with that of rank 0's, at the start of a launch that is
 * recorded [0] and at its end [1]: of its questions for the time the one that had an answer after the shortest time.
 * The answer's time is taken as that of the middle, so the difference is known within half of `round`. */
typedef struct mk_gpu_clock_offset {
  uint64_t seen_at[2]; /* ticks of this rank's clock */
  int64_t offset[2];   /* ticks: what this rank's clock is ahead */
  uint64_t round[2];   /* ticks from question to answer; 0: there was none */
} mk_gpu_clock_offset;

/* The words of these questions and answers, on each rank; so many bytes after its abort flag, in the place of the
 * control of another launch, as several ranks have one at a time. */
typedef struct mk_gpu_clock_words {
  uint64_t questions[MK_GPU_MOST_RANKS]; /* on rank 0: of each other rank */
  uint64_t answer;                       /* on another rank: rank 0's clock */
} mk_gpu_clock_words;
enum { MK_GPU_CLOCK_WORDS_AFTER = 220 };

/* Parts of the machine that a launch leaves out, to see what the others cost. The tokens are then wrong. */
typedef enum mk_gpu_part {
  MK_GPU_PART_COPIES = 1, /* pages are handed over empty */
  MK_GPU_PART_WORK = 2,   /* pages are released unread */
  MK_GPU_PART_EDGES = 4,  /* stamped words are taken as they are */
} mk_gpu_part;

/* Both clocks of block 0, at the start of the launch and at its end: from these follows the rate of the SMs' clock. */
typedef struct mk_gpu_clocks {
  uint64_t nanoseconds[2], ticks[2];
} mk_gpu_clocks;

/* The token ring is pinned host memory: entry [step][row] holds what that row of that step of the launch chose (with
 * MK_RESULT_NAN, or MK_CANDIDATE_NONE) as a stamped word whose generation is the epoch's (first_epoch + epoch + 1,
 * never 0); the host clears nothing and waits for the generation. */
typedef struct mk_gpu_params {
  const mk_instruction_word *instructions;
  const mk_gpu_queue *queues; /* per block */
  const mk_gpu_buffer *buffers;
  uint32_t *counters;             /* MK_GPU_COUNTER_STRIDE apart */
  const uint32_t *counter_totals; /* per epoch; MK_GPU_COUNTER_RELEASE set for release counters */
  uint64_t *token_ring;           /* device pointer to pinned memory */
  const uint32_t *stop;           /* pinned: the host sets it, and the launch ends after the current token */
  uint32_t *abort;                /* set by the first fault; every controller watches it */
  mk_gpu_fault *fault;
  uint32_t deadline;    /* of every spin, in units of 1.024 us */
  uint32_t first_epoch; /* epochs since counters and stamps were cleared, before this launch */
  uint32_t epochs;      /* steps of this launch */
  uint32_t tokens;      /* size of the vocabulary: all tokens that a step may compute are below it */
  mk_gpu_clocks *clocks;
  uint32_t *epochs_done; /* the kernel writes how many epochs it ran */
  mk_gpu_trace trace;
  uint32_t left_out;        /* mk_gpu_part */
  uint32_t skip_signal_uid; /* test fault point: this instruction publishes and signals nothing; 0: none */
  uint32_t delay_uid;       /* test fault point: the consumers of this instruction stand still at its start; 0: none */
  uint32_t delay_ns;
  const uint32_t *plan; /* [steps][rows][MK_ROW_WORDS] (vm/program/plan.h); the state at the start is its first step */
  uint32_t rows;        /* of a step */
  uint32_t scratch_floats; /* with several rows: how many floats of `scratch` each block has */
  float *scratch;
  union {
    const mk_gpu_tensor_map *maps; /* wide steps: a tensor map of each buffer that is multiplied, by buffer number */
    const mk_gpu_peers *peers;     /* several ranks */
  };
  uint32_t pairs_of_steps; /* 2 to 16 rows: values have whole pairs of steps, and are read by these (vm/gpu/rows.cuh) */
} mk_gpu_params;

/* For vm/gpu/mla.cu: the operands q and kv of MLA_PART as copies see them. */
typedef struct mk_gpu_mla_params {
  mk_gpu_tensor_map queries, pages;
  mk_gpu_params common;
  uint32_t queue_length; /* instructions of each queue; the queues lie one after the other */
  mk_gpu_mla_inputs inputs;
} mk_gpu_mla_params;

#endif
