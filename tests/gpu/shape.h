/* Small models of odd shapes, and what is tested of each. */
#ifndef MK_TESTS_GPU_SHAPE_H
#define MK_TESTS_GPU_SHAPE_H

#include "models/config.h"
#include "tools/lib/compare.h"
#include "vm/program/program.h"

typedef struct shape {
  const char *name;
  uint32_t hidden, intermediate, heads, kv_heads, head_dim, layers, max_seq;
  void (*change)(mk_config *config); /* into another family; NULL: it stays a plain Llama */
} shape;

mk_config config_of(const shape *s);
/* Whether wide steps have such models (scheduler/compile.h: mk_is_wide). */
bool has_wide_steps(const shape *s);

/* The worst error of each opcode that was compared; of none where compare is NULL. */
void print_worst(const char *name, const mk_compare *compare);

/* One row: every instruction of some steps beside its reference. */
void test_one_row_of(const shape *s);

/* All of several rows per step (rows_gpu.c): instruction by instruction, repeats, in company, and each of the `late`
 * opcodes, MK_OP_NONE being the end of them, keeping its results to itself. */
void test_rows_of(const shape *s, const mk_opcode *late, bool quick);

/* The same of each of some opcodes, in steps of so many rows. */
void test_late_of(const shape *s, uint32_t rows, const mk_opcode *late);

/* All of wide steps: of the prompt of one sequence, `rows` at a time (prompt_gpu.c), and such that several sequences
 * share (rows_gpu.c). */
void test_prompts_of(const shape *s, uint32_t rows, bool quick);
void test_many_of(const shape *s, uint32_t rows, bool quick);

#endif
