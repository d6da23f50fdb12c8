/* Graph -> program: tiles per operation, placement on SM queues, edges, buffer plan.
 *
 * The caller owns the program (mk_program_free). Pure: the same graph and options give the same program, byte for
 * byte; any thread may call. Failure: MK_ERR_FILE when the shape does not fit the program format (the message names
 * the dimension), MK_ERR_USAGE for impossible options, MK_ERR_RUNTIME for memory.
 *
 * What a program computes does not depend on `sms`, `ranks` or `placement`: tile height, K splits and attention
 * splits are functions of the shape alone, and how many rows a step has changes no order of sums, so logits are the
 * same bit for bit on any number of SMs and GPUs and in every program (docs/NUMERICS.md). */
#ifndef MK_COMPILE_H
#define MK_COMPILE_H

#include "models/graph.h"
#include "vm/program/program.h"

typedef enum mk_placement {
  /* Where tiles cannot be dealt evenly, who takes one more than the others: */
  MK_PLACE_BALANCED,    /* the SMs that stream the fewest bytes so far (default) */
  MK_PLACE_ROUND_ROBIN, /* the first SMs, every time */
} mk_placement;

typedef struct mk_compile_options {
  uint32_t sms;     /* queues of each rank, 1..MK_MAX_SMS */
  uint32_t ranks;   /* GPUs, 0 (one) to MK_MAX_RANKS */
  uint32_t max_seq; /* tokens of context, 1..max_position_embeddings */
  mk_placement placement;
  uint32_t rows; /* per step: 0 or 1, or a power of two up to MK_MOST_ROWS */
  /* Sequences that may share a step. 0: as many as rows, but one with MK_PROMPT_ROWS, which is a program for prompts.
   * One slot with 128 rows or more, or several with 64 to 512, give a wide program, where the graph is of Llama's
   * shape (mk_is_wide). */
  uint32_t slots;
  uint32_t blocks; /* of the KV cache; 0: enough for as many full contexts as there are slots */
  mk_dtype kv;     /* what K and V are stored as: BF16, or E4M3 with a scale for each token and KV head */
  /* The next token is drawn, as the words of the row's slot in the `sampling` buffer say (programs of 1 to 16 rows, or
   * of 32 to 128 with several slots); else it is the one with the highest logit. */
  bool sampling;
  /* Wide programs: every layer has values of its own, so that all that a step has computed can be looked at after the
   * step; else each layer overwrites the values of the layer before. */
  bool keep_values;
} mk_compile_options;

enum {
  MK_DEFAULT_SMS = 132,
  MK_MAX_SMS = 1024,
  MK_BLOCK_TOKENS = 64, /* tokens per KV block */
  MK_SPAN_TOKENS = 256, /* tokens per span: attention is not split below this */
  /* Tokens per span with several rows. Spans can be longer then, since the sequences keep all SMs busy, and so
   * sequences of usual lengths have one split and need no combining. */
  MK_ROWS_SPAN_TOKENS = 1024,
  MK_PLAN_STEPS = 64, /* most steps of a launch with several rows; with one row it may be a whole context */
};

/* Sets the fields of a buffer of weights that say in what form they are stored: dtype, scales and zeros. */
void mk_set_form(const mk_form *form, mk_buffer *buffer);

/* The first buffers of the program are the graph's weights, in the order of the graph. */
mk_status mk_compile(const mk_graph *graph, const mk_compile_options *options, mk_program **out);

/* How many sequences may share a step of a program by these options. */
uint32_t mk_compile_slots(const mk_compile_options *options);

/* Whether a program by these options has the wide form. The graph must be of Llama's shape, but for biases, norms of q
 * and k, norms after a product, and factors. With one slot: 128 rows or more, greedy. With several slots: 64 to 512
 * rows; if it draws, 128 at most. */
bool mk_is_wide(const mk_graph *graph, const mk_compile_options *options);
/* Whether, on so many ranks, a wide program of the graph finds on each rank all row tiles that it multiplies there in
 * what a program of fewer rows has there: units of eight row tiles do not reach into the next rank. False, too, where
 * ranks have different numbers of KV heads. */
bool mk_wide_shares(const mk_graph *graph, uint32_t ranks);

/* Identifies the configuration a program was compiled from (mk_program.config_hash). */
uint64_t mk_config_hash(const mk_config *config);

/* How many parts the K columns of a weight of [rows, cols] are split into: the same for every number of rows per
 * step. */
uint32_t mk_split_k(uint32_t rows, uint32_t cols);
/* How many splits attention over `max_seq` tokens has per KV head, in a program of so many slots and ranks: one for
 * each span of each slot, or as many as `kv_heads` leave room for on all ranks, MK_MAX_UNITS at most. */
uint32_t mk_split_attention(uint32_t kv_heads, uint32_t max_seq, uint32_t slots, uint32_t ranks);
uint32_t mk_span_tokens(uint32_t slots);
/* How many spans a split then has at most, each of which leaves a part. */
uint32_t mk_spans_of_split(uint32_t splits, uint32_t max_seq, uint32_t slots);

#endif
