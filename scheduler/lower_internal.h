/* Shared by the lowering's files: the buffer plan (buffers.c) and the instruction writer (lower.c). */
#ifndef MK_LOWER_INTERNAL_H
#define MK_LOWER_INTERNAL_H

#include "scheduler/lower.h"
#include "vm/program/plan.h"

typedef struct mk_vector { /* a row-major buffer: `rows` (0: one) vectors of `cols` elements in tiles of lines x tile */
  mk_buffer_kind kind;
  mk_dtype dtype;
  mk_store store;
  mk_scope scope; /* MK_SCOPE_SM (0) stands for the default, MK_SCOPE_GPU: no vector here belongs to one SM */
  uint32_t extra_proxy;
  uint32_t rows, cols, tile;
  uint32_t lines; /* how many lines each vector has, one for each row of a step; 0: one */
  bool by_tiles;  /* the lines lie in tiles of mk_line_tile lines, each of which is written and read by itself */
  bool dealt;     /* each of several ranks has the tiles that it alone touches; else every rank has a copy */
  bool at_home;   /* the first rank alone has it */
} mk_vector;

mk_status mk_add_vector(mk_program *program, const char *name, mk_vector vector, uint16_t *index);
/* The same for what the nodes of a layer make; where values are reused the layers have one buffer. */
mk_status mk_add_value(mk_lowering *lowering, const char *name, mk_vector vector, uint16_t *index);
mk_status mk_declare_shared(mk_lowering *lowering);
mk_status mk_declare_value(mk_lowering *lowering, const mk_node *node);
/* The node that norms a value (MK_NONE stands for the embedding) before it multiplies it; NULL when no node does, or
 * several do. */
const mk_node *mk_norm_of(const mk_graph *graph, int value);
/* What NORM makes of the value of that name, or of the embedding's, for a wide program. */
mk_status mk_declare_normed(mk_lowering *lowering, const char *name, mk_lowered_value *value);
/* The work lists of a wide program of several slots (attend_list.h). */
mk_status mk_declare_work(mk_lowering *lowering);
mk_status mk_declare_kv(mk_lowering *lowering, uint32_t layer, uint16_t *index);

/* The instruction writer. layer: MK_NO_LAYER at the token boundary; signal: a counter, or MK_NO_COUNTER. */
#define MK_START(NAME, in_layer) \
  ((mk_instruction){.opcode = MK_OP_##NAME, .version = MK_INSTRUCTION_VERSION, .layer = (uint16_t)(in_layer)})
mk_operand mk_tiles(uint16_t buffer, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols);
mk_operand mk_whole(const mk_lowering *lowering, uint16_t buffer);
void mk_add_wait(const mk_lowering *lowering, mk_instruction *instruction, uint16_t counter);
mk_status mk_emit(mk_lowering *lowering, uint32_t sm, mk_instruction *instruction, uint16_t signal);

/* Operands: columns of tile `lines` of a value's lines; all columns of that tile; columns of the embedding row of each
 * line's token. */
mk_operand mk_columns(uint16_t buffer, uint32_t lines, uint32_t col, uint32_t cols);
mk_operand mk_lines_of_value(const mk_lowering *lowering, uint16_t buffer, uint32_t lines);
mk_operand mk_embedding_row(const mk_lowering *lowering, uint32_t col, uint32_t cols);
const mk_buffer *mk_weight_buffer(const mk_lowering *lowering, const mk_node *node, uint16_t *index);

/* The SM whose turn it is on a rank. */
uint32_t mk_next_sm(const mk_lowering *lowering, uint32_t rank);
/* The rank of split `split` of a KV head. With more ranks than heads a head has several, which take turns. */
uint32_t mk_rank_of_head(const mk_lowering *lowering, uint32_t head, uint32_t split);
/* The rank that has row tile `tile` of `tiles`. */
uint32_t mk_rank_of_tile(const mk_lowering *lowering, uint32_t tiles, uint32_t tile);

/* Where a value is stored; for MK_NONE, where the embedding rows are. */
static inline const mk_lowered_value *mk_value_of(const mk_lowering *lowering, int value) {
  return value == MK_NONE ? &lowering->embedded : &lowering->values[value];
}
/* The kind of counter between instructions: where stamps order them, counters are mere hints. */
static inline mk_counter_kind mk_edge_kind(const mk_lowering *lowering) {
  return lowering->wide ? MK_COUNTER_RELEASE : MK_COUNTER_RELAXED;
}
/* Adds a counter for each tile of lines; *first is the first one, the others follow it. */
mk_status mk_add_counters(mk_lowering *lowering, const char *what, uint16_t *first);
uint16_t mk_signal_of(const mk_lowered_value *value, uint32_t lines);
/* Lets `in` wait for tile `lines` of the lines of a value. */
void mk_wait_for(const mk_lowering *lowering, mk_instruction *in, int value, uint32_t lines);

/* A function that emits a node's instructions for row tiles `share` and tile `lines` of the lines, on an SM. */
typedef mk_status (*mk_emitter)(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share,
                                uint32_t lines);
mk_status mk_emit_qkv(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share, uint32_t lines);
mk_status mk_emit_glu(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share, uint32_t lines);
mk_status mk_emit_norm_heads(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share, uint32_t lines);
/* Whether attention alone reads what the node makes. */
bool mk_goes_to_attention(const mk_graph *graph, const mk_node *node);
/* HEAD and NEXT of every SM. */
mk_status mk_lower_head(mk_lowering *lowering, const mk_node *node);

/* How an addition to the residual is computed. Some row tiles are split: K is cut into `parts` parts, which other SMs
 * may compute and which the tile's owner adds up. The owner computes its other tiles whole. Which tiles are split
 * follows from the shape alone, so that sums do not depend on the SMs: either all, or, where `split` owners have one
 * tile more than the others, namely `stride`, the last tile of each of these. */
typedef struct mk_add_plan {
  uint32_t parts;
  uint32_t stride, split; /* tile number k of the split ones is k * stride + stride - 1 */
  uint16_t buffer;        /* the parts of split tiles: [tile of lines][parts][rows] */
  uint16_t ready;         /* as mk_lowered_value.ready, by tiles */
  /* Wide programs, where the sum is normed: the squares of its chains, and their counters, by tiles. */
  uint16_t squares, squared;
} mk_add_plan;

mk_add_plan mk_plan_add(const mk_lowering *lowering, const mk_node *node);
bool mk_add_splits(const mk_add_plan *plan, uint32_t tile);
uint32_t mk_split_tile(const mk_add_plan *plan, uint32_t number);
mk_status mk_declare_parts(mk_lowering *lowering, const mk_node *node, mk_add_plan *plan);
mk_status mk_emit_part(mk_lowering *lowering, const mk_node *node, const mk_add_plan *plan, uint32_t sm, uint32_t part,
                       mk_share rows, uint32_t lines);
mk_status mk_emit_whole(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share, uint32_t lines);
/* What adds parts to the residual, or, of a node with a gain, the norm of their sum. */
mk_status mk_emit_reduce(mk_lowering *lowering, const mk_node *node, const mk_add_plan *plan, uint32_t sm,
                         mk_share share, uint32_t lines);
/* In a wide program, of the squares of a chain of the sum that the node norms. */
mk_status mk_emit_squares(mk_lowering *lowering, const mk_node *node, const mk_add_plan *plan, uint32_t sm,
                          mk_share share, uint32_t lines);
mk_status mk_lower_add(mk_lowering *lowering, const mk_node *node);
mk_status mk_emit_offset(mk_lowering *lowering, const mk_node *node, uint32_t sm, mk_share share, uint32_t lines);
mk_status mk_lower_offset(mk_lowering *lowering, const mk_node *node);

/* The wide form (wide.c). How many units `tiles` row tiles are; then the lowering of what comes before the first node,
 * and of a node. */
uint32_t mk_wide_units(const mk_lowering *lowering, uint32_t tiles);
mk_status mk_begin_wide(mk_lowering *lowering);
mk_status mk_lower_wide(mk_lowering *lowering, const mk_node *node);

/* Adds SCORE, SIFT and DRAW to every SM's queue, after its HEAD, which has the row tiles shares[SM], and the buffers of
 * all three. *choices becomes the buffer of the choices, which has a row for each SM. */
mk_status mk_lower_sampling(mk_lowering *lowering, const mk_share *shares, uint16_t *choices);

#endif
