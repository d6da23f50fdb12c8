/* A program: what the scheduler writes, the verifier proves, every machine runs, and a .mkp file holds.
 *
 * Ownership: a mk_program owns all of its arrays; mk_program_free releases them. It is written by one thread (through
 * the mk_program_add_* functions, or by mk_program_load) and immutable after that: any thread may read it.
 * Failure: MK_ERR_FILE for a malformed file (message: what is wrong at which place), MK_ERR_RUNTIME for I/O and memory.
 *
 * How instructions are ordered (the verifier and the CPU machine each implement these rules, and only these):
 *   1. Each SM has three threads of execution, one per role: loader, consumer, storer. Each role walks the SM's queue
 *      in order. Of one instruction the loader's work happens before the consumer's, and the consumer's before the
 *      storer's; but the consumer goes on to the next instruction without waiting for the storer.
 *      The loader streams pages through a ring of ring_pages, and runs ahead of the consumer. It loads blocks of a
 *      cache only after the consumer of its SM has done the last `next` instruction of the previous epoch. Where other
 *      instructions write to that cache in the same step (the operand's `when` is WAITS), the loader also makes the
 *      instruction's waits itself, and loads after them.
 *      Each SM has a step state of its own, in two copies that take turns from epoch to epoch.
 *      An instruction's waits come first, its signals last. The role that finishes the instruction sends the signals
 *      (mk_opcode_finisher). If that is the consumer, the work of all earlier consumers of the queue is done by then,
 *      but perhaps not that of earlier storers.
 *   2. Release counter: all that happens before a signal happens before all that follows a wait that needed this
 *      signal.
 *   3. Relaxed counter: orders nothing; it makes waiting cheap.
 *   4. Stamp: a reader of a stamped word waits until the word carries the generation of this epoch. For this one word
 *      that gives the reader what the writer wrote, and of other words the writer's it promises nothing. But the reader
 *      does run after the writer, which is called a dependency. Dependencies and rule 1 together prove that a stamped
 *      word is not overwritten before its readers have read it.
 *      An instruction publishes its tiles one after the other, and signals after the last one. One of its stamps proves
 *      that its waits are over. That it has read its inputs is proven by the stamps of all of its tiles, or, if its
 *      opcode reads all inputs before it publishes anything (all opcodes but those of MK_STREAMS in opcodes.def), by
 *      any one of them. No stamp proves that the same instruction has signalled.
 *   5. Fusion: a machine may do a SCORE that is marked as fused (MK_FUSED) within the HEAD before it in its queue. Then
 *      its stamps do not prove the signals of the HEAD either. It may do each line of a marked COMBINE within an
 *      ATTENTION on any SM, and then the COMBINE's stamps prove nothing of its queue. mk_fuses says where the mark may
 *      stand; an instruction without the mark is done by itself.
 * An epoch is one step: one pass over all queues. Epochs follow each other without a barrier. The generation of every
 * stamped word written in epoch e (from 0) is e + 1 counted from the last time the buffers were cleared. */
#ifndef MK_PROGRAM_H
#define MK_PROGRAM_H

#include "vm/program/instruction.h"
#include "vm/status.h"

/* The last three are of quantised weights, stored in tiles, and the first of them of KV caches, too (strips.h). */
typedef enum mk_dtype {
  MK_DTYPE_BF16,
  MK_DTYPE_F32,
  MK_DTYPE_U32,
  MK_DTYPE_E4M3, /* fp8 of 4 bits of exponent, without infinities */
  MK_DTYPE_I8,
  MK_DTYPE_I4,
  MK_DTYPE_COUNT
} mk_dtype;

/* What the scales of a quantised buffer are. */
typedef enum mk_scale { MK_SCALE_NONE, MK_SCALE_F32, MK_SCALE_BF16, MK_SCALE_F16, MK_SCALE_COUNT } mk_scale;

typedef enum mk_buffer_kind {
  MK_KIND_WEIGHT,     /* constant, from the checkpoint or derived from the configuration */
  MK_KIND_ACTIVATION, /* written and read within a step, or carried by its owner to the next instruction */
  MK_KIND_KV,         /* the paged KV cache of one layer */
  MK_KIND_INPUT,      /* written by the host before the launch, constant during it */
  MK_KIND_OUTPUT,     /* read by the host */
  MK_KIND_COUNT
} mk_buffer_kind;

typedef enum mk_store {
  MK_STORE_PLAIN,   /* row-major elements */
  MK_STORE_STAMPED, /* 64-bit words: low half one f32/u32 or two bf16 (even index low), high half the generation */
  MK_STORE_TILES,   /* weight tiles, see mk_tile_offset */
  MK_STORE_BLOCKS,  /* [block][kv head][K, V], see mk_block_offset, or strips.h; found through a block table */
  MK_STORE_COUNT
} mk_store;

typedef enum mk_scope { MK_SCOPE_SM, MK_SCOPE_GPU, MK_SCOPE_SYS, MK_SCOPE_COUNT } mk_scope;

/* Which proxies may touch a buffer. */
enum {
  MK_PROXY_GENERIC = 1, /* ordinary loads and stores */
  MK_PROXY_ASYNC = 2,   /* bulk copies */
};

/* Where a buffer or a counter lies in a program for several GPUs (ranks; docs/RANKS.md): on the rank whose number its
 * field `rank` holds, or
 *   EACH   every rank has a copy. A reader, or an instruction that waits, takes the copy of its own rank. A writer, or
 *          an instruction that signals, changes the copies of all ranks that have readers (mk_program_readers). The
 *          change reaches them at different times, but a word, or an amount, arrives as a whole. Constant data are the
 *          same on all ranks.
 *   DEALT  (buffers alone) each rank has the tiles that its queues name. A tile that the program writes belongs to one
 *          rank. */
enum { MK_RANK_EACH = 0xffff, MK_RANK_DEALT = 0xfffe };

/* A buffer is a grid of tiles: rows x cols elements in tiles of tile_rows x tile_cols (the last ones may be partial).
 *
 * A KV cache (MK_STORE_BLOCKS) is a grid of units and KV heads: row u stands for all tokens t of slot c for which u is
 * mk_unit_of(t / span_tokens, c, rows) (spans.h), column h for KV head h. The block table says where these tokens lie:
 * tokens [64 b, 64 b + 64) of slot c are in block table[c][b]. A block that a launch fills stands once in all the
 * table, one that the launch only reads at most once for each slot (mk_plan_check). A program of one row per step has
 * slot 0 alone. */
typedef struct mk_buffer {
  char name[48];
  uint8_t kind;  /* mk_buffer_kind */
  uint8_t dtype; /* mk_dtype */
  uint8_t store; /* mk_store */
  uint8_t scope; /* mk_scope: who may access it: one SM, one GPU, every GPU and the host */
  uint8_t proxy;
  uint8_t scale;      /* mk_scale. This field and the two below are for quantised buffers; else they are 0. Of a KV
                         cache BF16 */
  uint8_t scale_cols; /* columns of a row that share a scale: 32, 64 or 128; of a KV cache head_dim */
  uint8_t zeros;      /* 1: with zeros, I4 alone */
  uint16_t rank;      /* the GPU that holds it, MK_RANK_EACH or MK_RANK_DEALT */
  uint16_t head_dim;  /* this field and the three below are for MK_STORE_BLOCKS; else they are 0 */
  uint32_t block_tokens;
  uint32_t span_tokens;
  uint32_t blocks;
  uint32_t rows, cols; /* elements */
  uint32_t tile_rows, tile_cols;
  uint64_t offset; /* bytes from the start of the arena: weights have their own, everything else shares one */
  uint64_t bytes;
} mk_buffer;

typedef enum mk_counter_kind { MK_COUNTER_RELAXED, MK_COUNTER_RELEASE, MK_COUNTER_KIND_COUNT } mk_counter_kind;

typedef struct mk_counter {
  char name[48];
  uint8_t kind;   /* mk_counter_kind */
  uint8_t scope;  /* mk_scope */
  uint16_t rank;  /* the GPU that holds it, or MK_RANK_EACH */
  uint32_t total; /* signals per epoch */
} mk_counter;

/* The machine a program was compiled for: named constants of one machine configuration. */
typedef struct mk_machine {
  uint32_t sms;            /* queues, one block each */
  uint32_t page_bytes;     /* 16384 */
  uint32_t ring_pages;     /* pages per SM */
  uint32_t resident_bytes; /* shared memory for long-lived tiles */
  uint32_t copy_bytes;     /* size of one bulk copy */
  uint32_t consumer_warps;
  uint32_t loader_warps;
  uint32_t instruction_ring; /* instructions fetched ahead */
  uint32_t result_slots;     /* results the storer may owe: the consumer is at most this many instructions ahead */
  uint32_t ranks;            /* GPUs, 1..MK_MAX_RANKS */
} mk_machine;

/* Step parameters and their declared ranges, inclusive: what the verifier proves, it proves for all of these. */
typedef struct mk_range {
  uint32_t low, high;
} mk_range;
typedef struct mk_step_ranges {
  mk_range position; /* of the token that the step computes */
  mk_range token;
  mk_range block; /* entries of the block table */
  /* How many rows of a step are active (vm/program/plan.h). batch.high is the program's rows, a power of two up to
   * MK_MOST_ROWS. Where that is more than 1, a value of a step has a line for each row. Lines lie in tiles of
   * mk_line_tile(high) lines, and an instruction computes one such tile; but the parts of attention lie in one tile
   * with all lines. Lines of rows that are not active are neither written nor waited for. */
  mk_range batch;
  mk_range slot; /* in which a row's sequence may be: from 0 on; at most as many slots as rows */
} mk_step_ranges;

typedef struct mk_queue {
  uint32_t first, count; /* instructions[first, first + count) */
  uint32_t rank;
} mk_queue;

typedef struct mk_program {
  mk_machine machine;
  mk_step_ranges ranges;
  char model[64];       /* a label for people */
  uint64_t config_hash; /* of the configuration it was compiled from: run refuses another model's weights */
  mk_buffer *buffers;
  size_t buffer_count, buffer_capacity;
  mk_counter *counters;
  size_t counter_count, counter_capacity;
  mk_queue *queues; /* machine.sms * machine.ranks entries; queue q runs on SM q % sms of rank q / sms */
  size_t queue_count;
  mk_instruction *instructions; /* grouped by queue */
  size_t instruction_count, instruction_capacity;
  uint64_t weight_bytes, work_bytes; /* the two arenas */
} mk_program;

enum {
  MK_MAX_RANKS = 64,          /* a bit for each in mk_program_readers */
  MK_MOST_ROWS = 1024,        /* most rows of a step, of any program */
  MK_MAX_ROWS = 16,           /* most rows of a step that sequences share on a GPU */
  MK_MOST_DRAWING_ROWS = 128, /* most rows of a step that draws: one tile of lines */
  MK_MOST_SHARED_ROWS = 512,  /* most rows of a step of a program that is not wide */
  MK_WIDE_ROWS = 128,         /* fewest rows of a step of a wide program (scheduler/compile.h) */
  MK_LINE_TILE = 128,         /* most lines of a value that an instruction computes, but for attention */
  MK_PROMPT_ROWS = 64,        /* rows of a step that computes a chunk of one sequence on a GPU */
  MK_MAX_UNITS = 128,         /* most units of attention per KV head, where there are several rows */
  MK_PIECE_TOKENS = 256,      /* tokens of a span that ATTENTION takes at a time */
  MK_COMBINE_SLICES = 4,      /* of a head: with one row a COMBINE may have one of them, or several */
};
/* How many of a value's `lines` lines lie in one tile. An instruction computes one such tile. */
static inline uint32_t mk_line_tile(uint32_t lines) { return lines < MK_LINE_TILE ? lines : (uint32_t)MK_LINE_TILE; }

/* Rows per step; within 1 to MK_MOST_ROWS for any program. */
static inline uint32_t mk_program_rows(const mk_program *program) {
  uint32_t rows = program->ranges.batch.high;
  return rows < 1 ? 1 : rows > MK_MOST_ROWS ? MK_MOST_ROWS : rows;
}
/* Sequences at a time; within 1 to the rows for any program. */
static inline uint32_t mk_program_slots(const mk_program *program) {
  uint32_t slots = program->ranges.slot.high, rows = mk_program_rows(program);
  return slots < rows ? slots + 1 : rows;
}
/* Whether it is a program for prompts: each step computes a chunk of one sequence. */
static inline bool mk_program_is_for_prompts(const mk_program *program) {
  return mk_program_rows(program) > 1 && mk_program_slots(program) == 1;
}

/* Whether its machine computes whole tiles of lines: with 128 rows or more, or with 64 rows and several slots. Such a
 * machine signals for all lines of a tile together, and its `next` waits for the loader of its SM. */
static inline bool mk_program_has_tiles(const mk_program *program) {
  const uint32_t rows = mk_program_rows(program);
  return rows > MK_PROMPT_ROWS || (rows == MK_PROMPT_ROWS && !mk_program_is_for_prompts(program));
}

/* The latency machine on `sms` SMs (an H200 has 132). */
mk_machine mk_machine_latency(uint32_t sms);
/* The machine for programs for prompts: fewer warps, each with more registers, and a shorter ring. */
mk_machine mk_machine_prompt(uint32_t sms);
/* The machine for wide programs, in which the ring brings not only weights but also the inputs of products. */
mk_machine mk_machine_wide(uint32_t sms);

mk_status mk_program_new(const mk_machine *machine, mk_program **out);
void mk_program_free(mk_program *program); /* NULL is fine */

/* Appends a buffer (name, kind, dtype, store, scope, proxy, rank, shape, tile and KV fields given; bytes and offset are
 * computed here) or a counter. MK_ERR_FILE when it has more tiles or the program more buffers than an operand can
 * address. */
mk_status mk_program_add_buffer(mk_program *program, const mk_buffer *buffer, uint16_t *index);
/* A counter for all SMs; of several ranks each has a copy. */
mk_status mk_program_add_counter(mk_program *program, const char *name, mk_counter_kind kind, uint16_t *index);
/* Whether the GPUs of a program write to each other's copies of the buffer. */
static inline bool mk_buffer_is_pushed(const mk_program *program, const mk_buffer *buffer) {
  return buffer->rank == MK_RANK_EACH && program->machine.ranks > 1 && buffer->kind != MK_KIND_WEIGHT &&
         buffer->kind != MK_KIND_INPUT;
}
static inline uint32_t mk_queue_rank(const mk_program *program, size_t queue) {
  return (uint32_t)(queue / program->machine.sms);
}
/* Which ranks have a reader of what is written to a buffer, or signalled to a counter, of MK_RANK_EACH: a bit for each
 * rank, as writers go to the copies of these ranks alone. `operands` is [instruction][MK_MAX_OPERANDS], 0 for an
 * operand that writes no such buffer; `counters` has an entry for each counter. The caller owns both until
 * mk_readers_free. The program's bounds must have been checked. MK_ERR_RUNTIME for memory. */
typedef struct mk_readers {
  uint64_t *operands, *counters;
} mk_readers;
mk_status mk_program_readers(const mk_program *program, mk_readers *out);
void mk_readers_free(mk_readers *readers);
/* Index of the buffer of that name, or -1. */
int mk_program_find_buffer(const mk_program *program, const char *name);
/* For two programs of one model that share memory: the buffer of `program` whose bytes lie at the same places as those
 * of `buffer`, weights or a KV cache, of the other program (in a KV cache, at the same places within each block). -1 if
 * there is none. */
int mk_program_find_shared(const mk_program *program, const mk_buffer *buffer);
/* How a host finds its inputs and outputs, as in MK_OPERAND_BUFFER(program, HEAD, logits): the buffer of operand `slot`
 * of the first instruction of that opcode in which the operand is not empty; -1 if there is none. */
int mk_program_find_operand(const mk_program *program, uint32_t opcode, uint32_t slot);
#define MK_OPERAND_BUFFER(program, NAME, operand) \
  mk_program_find_operand(program, MK_OP_##NAME, MK_SLOT_##NAME##_##operand)

uint32_t mk_buffer_grid_rows(const mk_buffer *buffer); /* in tiles */
uint32_t mk_buffer_grid_cols(const mk_buffer *buffer);
/* 0 where dtype, store, scales and zeros do not go together; UINT64_MAX on overflow. */
uint64_t mk_buffer_bytes(const mk_buffer *buffer);
/* Bytes that `rows` row tiles of a MK_STORE_TILES buffer take in tile columns [col, col + cols). Of a quantised weight:
 * the bytes of all strips (strips.h) that have some of these columns. */
uint64_t mk_tiles_bytes(const mk_buffer *buffer, uint32_t rows, uint32_t col, uint32_t cols);

/* MK_STORE_TILES: bf16 (quantised weights: strips.h), tiles of 16 x 16, rows and columns padded with zeros to whole
 * tiles. A row tile is grid_cols steps of 512 bytes; a step holds 32 lanes of 8 bf16, lane 4 g + t (g = 0..7, t =
 * 0..3):
 *   W[g][2t], W[g][2t+1], W[g+8][2t], W[g+8][2t+1], W[g][2t+8], W[g][2t+9], W[g+8][2t+8], W[g+8][2t+9]
 * which is the A fragment of mma.m16n8k16 (PTX ISA, "Matrix fragments for mma.m16n8k16"): one 16-byte load per lane,
 * and any K range of a row tile is one contiguous piece of memory. The layout depends on nothing but the tensor's
 * shape. */
enum { MK_TILE = 16, MK_TILE_STEP_ELEMENTS = 256 };
/* A chain is the sum over so many columns of K; chains are added one after the other, in fp32 (docs/NUMERICS.md). */
enum { MK_CHAIN_COLS = 128 };
/* Marks functions that kernels use as well. */
#ifdef __CUDACC__
#define MK_HOST_DEVICE __host__ __device__
#else
#define MK_HOST_DEVICE
#endif
/* Element index of W[row][col] in its step. */
MK_HOST_DEVICE static inline uint32_t mk_step_offset(uint32_t row, uint32_t col) {
  uint32_t r = row % MK_TILE, c = col % MK_TILE;
  uint32_t lane = (r % 8) * 4 + (c % 8) / 2;
  uint32_t element = (c / 8) * 4 + (r / 8) * 2 + c % 2;
  return lane * 8 + element;
}
/* Element index of W[row][col] in a TILES buffer with `grid_cols` column tiles. */
static inline uint64_t mk_tile_offset(uint32_t grid_cols, uint32_t row, uint32_t col) {
  return ((uint64_t)(row / MK_TILE) * grid_cols + col / MK_TILE) * MK_TILE_STEP_ELEMENTS + mk_step_offset(row, col);
}

/* The sizes that heads have. */
static inline bool mk_head_dim_exists(uint32_t head_dim) {
  return head_dim == 64 || head_dim == 128 || head_dim == 256;
}

/* MK_STORE_BLOCKS, bf16: of each block and KV head a pair, K (which = 0), then V (1), together
 * 2 * block_tokens * head_dim elements. Both are in 16 x 16 tiles, and a tile has the order of a step of weights
 * (above). Tile (token / 16, dim / 16) is number token / 16 * (head_dim / 16) + dim / 16. A tile of K has tokens as
 * rows and dims as columns, a tile of V dims as rows and tokens as columns: each is the A operand of its product (K q,
 * and V p). The result is the element's index from the start of the pair; token < block_tokens, and block_tokens and
 * head_dim are multiples of 16. */
MK_HOST_DEVICE static inline uint64_t mk_block_offset(uint32_t block_tokens, uint32_t head_dim, uint32_t which,
                                                      uint32_t token, uint32_t dim) {
  uint64_t tile = (uint64_t)(token / MK_TILE) * (head_dim / MK_TILE) + dim / MK_TILE;
  return (uint64_t)which * block_tokens * head_dim + tile * MK_TILE_STEP_ELEMENTS +
         (which == 0 ? mk_step_offset(token, dim) : mk_step_offset(dim, token));
}

/* Pages that an instruction streams through the ring, which follow from its operands (KV: at the largest position), and
 * the bytes of resident shared memory that it needs. The scheduler records both numbers in the instruction by these
 * functions, and the verifier checks them. */
uint32_t mk_instruction_pages(const mk_program *program, const mk_instruction *instruction);
uint32_t mk_instruction_resident(const mk_program *program, const mk_instruction *instruction);

/* The opcode table as data. */
typedef enum mk_access { MK_ACCESS_READ, MK_ACCESS_WRITE, MK_ACCESS_UPDATE } mk_access;
typedef enum mk_role { MK_ROLE_LOADER, MK_ROLE_CONSUMER, MK_ROLE_STORER, MK_ROLE_COUNT } mk_role;
typedef enum mk_when { MK_WHEN_EARLY, MK_WHEN_STATE, MK_WHEN_WAITS, MK_WHEN_USED, MK_WHEN_LISTED } mk_when;
/* PART: a rectangle of its buffer's tiles. WHOLE: all of them, or none (absent). What the word holds: instruction.h. */
typedef enum mk_extent_kind { MK_EXTENT_PART, MK_EXTENT_WHOLE } mk_extent_kind;
typedef enum mk_state_use { MK_STATE_NONE, MK_STATE_READ, MK_STATE_WRITE } mk_state_use;
/* What an operand slot accepts. */
typedef enum mk_operand_store {
  MK_OPERAND_STORE_PLAIN,
  MK_OPERAND_STORE_STAMPED,
  MK_OPERAND_STORE_TILES,
  MK_OPERAND_STORE_BLOCKS,
  MK_OPERAND_STORE_VALUE, /* STAMPED or PLAIN */
  MK_OPERAND_STORE_INPUT,
  MK_OPERAND_STORE_RESIDUAL,
} mk_operand_store;

/* What values mean: the MK_CONTENT lines of opcodes.def. */
typedef enum mk_content {
  MK_CONTENT_NUMBERS, /* any number will do */
  MK_CONTENT_GAIN,
  MK_CONTENT_TABLE,
  MK_CONTENT_WORK,
  MK_CONTENT_PARTS,
  MK_CONTENT_LOGITS,
  MK_CONTENT_SCORES,
  MK_CONTENT_FRONT,
  MK_CONTENT_ROUND,
  MK_CONTENT_CANDIDATE,
  MK_CONTENT_COUNT
} mk_content;
typedef enum mk_sums {
  MK_SUMS_PLAIN,
  MK_SUMS_KEPT,
  MK_SUMS_ROTATED,
  MK_SUMS_GATED,
  MK_SUMS_NORMED,
  MK_SUMS_SCALED
} mk_sums;
typedef enum mk_fusion { MK_FUSION_NONE, MK_FUSION_ALWAYS, MK_FUSION_ALONE } mk_fusion;
typedef enum mk_entries { MK_ENTRIES_NONE, MK_ENTRIES_ITEMS, MK_ENTRIES_REDUCTIONS } mk_entries;

typedef struct mk_operand_info {
  const char *name; /* NULL: no such operand */
  mk_access access;
  mk_role role;
  mk_when when;
  mk_extent_kind extent;
  uint32_t place; /* among the opcode's operands of that extent: in the word */
  mk_dtype dtype;
  mk_operand_store store;
  mk_content content;
  bool optional; /* may be empty */
} mk_operand_info;

typedef struct mk_param_info {
  const char *name; /* NULL: no such parameter */
  bool is_float;
} mk_param_info;

typedef struct mk_opcode_info {
  const char *name; /* NULL for MK_OP_NONE */
  const char *semantics;
  mk_state_use state;
  mk_entries entries;
  bool families_only; /* of the GPU's kernels those for other families than Llama alone have it */
  bool wide_only;     /* of the GPU's kernels that for wide programs alone has it */
  bool streams;       /* takes its inputs word by word: a result may be published before all inputs have been read */
  mk_sums sums;       /* what becomes of the sums of row tiles */
  mk_fusion fusion;   /* whether it may be done within an instruction of opcode fused_into ... */
  mk_opcode fused_into;
  uint32_t fused_slot, fused_made;                 /* ... which has left this operand, as that one of its own */
  uint32_t operand_count, part_count, param_count; /* part_count: operands of extent PART */
  mk_operand_info operands[MK_MAX_OPERANDS];
  mk_param_info params[MK_MAX_PARAMS];
} mk_opcode_info;

extern const mk_opcode_info mk_opcode_table[]; /* by opcode */
/* NULL when `opcode` is not one. */
static inline const mk_opcode_info *mk_opcode_lookup(uint32_t opcode) {
  return opcode > MK_OP_NONE && opcode < MK_OP_COUNT ? &mk_opcode_table[opcode] : NULL;
}
/* Whether its loader needs the step state: it reads a cache, as far as the positions of the step's rows say. */
bool mk_opcode_loads_state(const mk_opcode_info *info);
/* Whether its loader waits for the instruction's counters: it reads what others write in this step. */
bool mk_opcode_loader_waits(const mk_opcode_info *info);
/* Whether it multiplies tiles of lines by tiles of a weight. HEAD does not: it multiplies only the lines that choose,
 * which are few. */
bool mk_opcode_is_product(const mk_opcode_info *info);
/* Whether the machine of a program that mk_program_has_tiles has its loader copy that operand, so that the loader has
 * to wait for its writers: the input of a product (by the table the consumer's operand), or a cache. */
bool mk_opcode_copies(const mk_opcode_info *info, uint32_t slot);
/* The slot of its operand that is a paged cache; -1: none. */
int mk_opcode_cache(const mk_opcode_info *info);
/* The role that finishes it, and sends its signals: the storer where it has an operand, else the consumer. */
mk_role mk_opcode_finisher(const mk_opcode_info *info);
/* The parameter of that name, 0 where the opcode has none: for what parameters of one name ask of all their opcodes. */
uint32_t mk_param_named(const mk_instruction *instruction, const char *name);
/* The slot of that name, and -1. */
int mk_opcode_slot(const mk_opcode_info *info, const char *name);

/* The slot of its first operand with that content that it reads, or writes; -1: none. */
int mk_opcode_reads(const mk_opcode_info *info, mk_content content);
int mk_opcode_writes(const mk_opcode_info *info, mk_content content);

/* Whether `in` may be marked as fused (rule 5), `before` being the instruction before it in its queue, or NULL. The
 * scheduler sets the mark wherever it may stand. */
bool mk_fuses(const mk_program *program, const mk_instruction *before, const mk_instruction *in);

/* Which tile of a step's lines the instruction computes; MK_ALL_LINES: all of them, which is the answer for every
 * instruction where all lines lie in one tile. The program's shapes must have been checked. */
#define MK_ALL_LINES UINT32_MAX
uint32_t mk_instruction_lines(const mk_program *program, const mk_instruction *in);
/* Which tile of lines it is that row `row` of a buffer's tiles belongs to, in an instruction whose mk_instruction_lines
 * is `lines`; MK_ALL_LINES: the row has all lines. */
uint32_t mk_row_tile_lines(const mk_program *program, uint32_t lines, const mk_buffer *buffer, uint32_t row);

static inline float mk_param_float(uint32_t bits) {
  union {
    uint32_t u;
    float f;
  } value = {bits};
  return value.f;
}
static inline uint32_t mk_float_param(float number) {
  union {
    float f;
    uint32_t u;
  } value = {number};
  return value.u;
}

const char *mk_dtype_name(uint32_t dtype);
const char *mk_scale_name(uint32_t scale);
const char *mk_kind_name(uint32_t kind);
const char *mk_store_name(uint32_t store);
const char *mk_scope_name(uint32_t scope);
const char *mk_role_name(uint32_t role);
/* "each" and "dealt"; NULL: of a number. */
const char *mk_rank_name(uint32_t rank);

/* The operand that has all tiles of a buffer of `program`. */
mk_operand mk_operand_whole(const mk_program *program, uint16_t buffer);
/* Whether `o` may be an operand of extent WHOLE: it is what mk_operand_whole gives, or absent, which is without tiles
 * and zero but for the buffer that it names. */
bool mk_operand_is_whole(const mk_program *program, const mk_operand *o);
/* Instruction to word, and back. Both may fail with MK_ERR_FILE, and *out is then of no use. mk_encode fails for an
 * unknown opcode and for what the word has no room for: operands and parameters that the opcode does not have, and an
 * operand of extent WHOLE that mk_operand_is_whole refuses. mk_decode takes any bytes, and fails for those that
 * mk_encode cannot have made. Neither asks whether the instruction makes sense. The word does not keep which buffer an
 * absent operand names; decoded, that is 0. */
mk_status mk_encode(const mk_program *program, const mk_instruction *in, mk_instruction_word *out);
mk_status mk_decode(const mk_program *program, const mk_instruction_word *word, mk_instruction *out);

/* The .mkp file: header (magic "MKPF", version, total size, FNV-1a-64 of all that follows), then the structures of this
 * header in order, instructions as words, little-endian. Save writes a temporary file and renames it. Parse takes any
 * bytes: it checks sizes, counts, enumerations, names and padding, and nothing about what the program does (that is the
 * verifier's part). */
mk_status mk_program_save(const mk_program *program, const char *path);
mk_status mk_program_load(const char *path, mk_program **out);
mk_status mk_program_parse(const void *data, size_t length, mk_program **out);
mk_status mk_program_serialize(const mk_program *program, void **data, size_t *length); /* mk_free(*data) */
mk_status mk_program_hash(const mk_program *program, uint64_t *out); /* FNV-1a-64 of what that gives */

#endif
