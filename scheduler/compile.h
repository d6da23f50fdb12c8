/* Graph -> program: tiles per operation, placement on SM queues, edges, buffer plan.
 *
 * The caller owns the program (mk_program_free). Pure: the same graph and options give the same program, byte for
 * byte; any thread may call. Failure: MK_ERR_FILE when the shape does not fit the program format (the message names
 * the dimension), MK_ERR_USAGE for impossible options, MK_ERR_RUNTIME for memory.
 *
 * What a program computes does not depend on `sms`, `ranks` or `placement`: tile height, K splits and attention
 * splits are functions of the shape alone, so logits are the same bit for bit on any number of SMs and GPUs.
 * Programs of 1 and of 2 to 16 rows give the same bits, too, as long as no split of one row has several spans
 * (32,768 tokens divided by the number of KV heads): beyond that they sum in another order. Programs for prompts
 * always have those of one row (docs/NUMERICS.md). */
#ifndef MK_COMPILE_H
#define MK_COMPILE_H

#include "models/graph.h"
#include "vm/program/program.h"

typedef enum mk_placement {
  MK_PLACE_BALANCED,    /* the SMs with the fewest bytes so far take the extra tiles (default) */
  MK_PLACE_ROUND_ROBIN, /* the first SMs take them, every time */
} mk_placement;

typedef struct mk_compile_options {
  uint32_t sms;     /* queues of each rank, 1..MK_MAX_SMS */
  uint32_t ranks;   /* GPUs, 0 (one) to MK_MAX_RANKS */
  uint32_t max_seq; /* tokens of context, 1..max_position_embeddings */
  mk_placement placement;
  uint32_t rows;   /* per step: 0 or 1, or a power of two up to MK_MOST_ROWS */
  uint32_t slots;  /* sequences that may share it; 0: as many as rows, but one of MK_PROMPT_ROWS: a program for prompts.
                One of 128 rows or more, or several of 64 to 512: a wide program, where the graph is of plain Llama
                shape (wide.c) */
  uint32_t blocks; /* of the KV cache; 0: enough for as many full contexts as there are slots */
  mk_dtype kv;     /* what K and V are stored as: BF16, or E4M3 with a scale for each token and KV head */
  /* The next token is drawn as the `sampling` buffer says, each row's by the words of its slot (1 to 16 rows, or 32 to 128 of several slots); else it
   * is the one of the highest logit. */
  bool sampling;
  /* Of a wide program: every layer has values of its own, so that after a step all that it computed is there to be
   * looked at; else each layer writes over those of the one before. */
  bool keep_values;
} mk_compile_options;

enum {
  MK_DEFAULT_SMS = 132,
  MK_MAX_SMS = 1024,
  MK_BLOCK_TOKENS = 64, /* tokens per KV block */
  MK_SPAN_TOKENS = 256, /* tokens per span: attention is not split below this */
  /* The same of several rows, whose sequences occupy the SMs as the splits of one do: so that those of usual lengths need no combining. */
  MK_ROWS_SPAN_TOKENS = 1024,
  MK_PLAN_STEPS = 64, /* steps of a launch of a program of several rows; one of one row goes through a whole context */
};

/* The first buffers of the program are the graph's weights, in the order of the graph. */
/* What a buffer of weights is made of. */
void mk_set_form(const mk_form *form, mk_buffer *buffer);

mk_status mk_compile(const mk_graph *graph, const mk_compile_options *options, mk_program **out);

/* Sequences that may share a step of such a program. */
uint32_t mk_compile_slots(const mk_compile_options *options);

/* Whether a program by these options has the wide form: of 128 rows or more, all of one sequence, greedily, or of 64 to
 * 512 of several, of which 128 may draw; and of a graph of plain Llama shape. */
bool mk_is_wide(const mk_graph *graph, const mk_compile_options *options);

/* Identifies the configuration a program was compiled from (mk_program.config_hash). */
uint64_t mk_config_hash(const mk_config *config);

/* How many parts the K columns of an [rows, cols] projection are split into: the same for every number of rows per step. */
uint32_t mk_split_k(uint32_t rows, uint32_t cols);
/* How many ways attention over `max_seq` tokens is split per KV head, in a program of so many slots: at least one way for each of them, where
 * there are so many. A split either has one span, or there are as many as `kv_heads` leave room for, so what one computes does
 * not depend on `slots` beyond the span. */
uint32_t mk_split_attention(uint32_t kv_heads, uint32_t max_seq, uint32_t slots);
uint32_t mk_span_tokens(uint32_t slots);

#endif
