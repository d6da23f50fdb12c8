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
  uint32_t lines; /* 0: one; else each vector has so many, one for each row of a step */
  bool by_tiles;  /* and they lie in tiles of mk_line_tile lines, each of which is written and read by itself */
} mk_vector;

mk_status mk_add_vector(mk_program *program, const char *name, mk_vector vector, uint16_t *index);
mk_status mk_declare_shared(mk_lowering *lowering);
mk_status mk_declare_value(mk_lowering *lowering, const mk_node *node);
mk_status mk_declare_kv(mk_lowering *lowering, uint32_t layer, uint16_t *index);

/* The instruction writer. layer: MK_NO_LAYER at the token boundary; signal: a counter, or MK_NO_COUNTER. */
#define MK_START(NAME, in_layer) \
  ((mk_instruction){.opcode = MK_OP_##NAME, .version = MK_INSTRUCTION_VERSION, .layer = (uint16_t)(in_layer)})
mk_operand mk_tiles(uint16_t buffer, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols);
mk_operand mk_whole(const mk_lowering *lowering, uint16_t buffer);
void mk_add_wait(const mk_lowering *lowering, mk_instruction *instruction, uint16_t counter);
mk_status mk_emit(mk_lowering *lowering, uint32_t sm, mk_instruction *instruction, uint16_t signal);

/* SCORE, SIFT and DRAW of every SM behind its HEAD, which has the row tiles `shares` (by SM), and their buffers; gives that of the
 * choices, which has a row for each SM. */
mk_status mk_lower_sampling(mk_lowering *lowering, const mk_share *shares, uint16_t *choices);

#endif
