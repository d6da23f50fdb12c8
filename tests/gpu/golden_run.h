/* Running a golden (tests/oracle) on an engine and judging what comes out: what golden_gpu.c and fault_gpu.c
 * share. One thread; memory that fails ends the program. */
#ifndef MK_GOLDEN_RUN_H
#define MK_GOLDEN_RUN_H

#include "engine/engine.h"
#include "tests/support/golden_file.h"

typedef golden_file golden;

extern const char *model; /* of goldens whose weights are files; NULL: those are left out */

typedef struct output {
  uint32_t vocab, limit, count;
  uint32_t *tokens; /* [limit] */
  float *logits;    /* [limit][vocab] */
  bool has_logits;
  uint32_t stop_after; /* 0: never */
} output;

void new_output(output *o, uint32_t limit, uint32_t vocab);
void free_output(output *o);

/* What transformers chose at each step. */
const uint32_t *chosen(const golden *g);
/* More than the CPU machine computes in good time. */
bool is_large(const golden *g);

mk_status open_engine_rows(const golden *g, const char *on, bool want_logits, uint32_t rows, mk_engine **engine);
mk_status open_engine(const golden *g, const char *on, bool want_logits, mk_engine **engine); /* of one row */
mk_status generate(const golden *g, mk_engine *engine, output *out);

/* |got - want| over |want|; NaN when a number is one. */
double relative_error(const float *got, const float *want, size_t count);
/* The largest of any of the first `rows` rows of logits; NaN when a number is one. */
double worst_error(const output *got, const float *want, uint32_t rows);
/* Counts a check: the first `rows` rows of logits, together, differ from those of transformers in fp32 by no more than
 * transformers in bf16 do. */
void expect_bf16_error(const golden *g, const output *got, uint32_t rows);
/* The first row where tokens differ is a fault unless that row's two are closer than the margin. */
bool tokens_agree(const golden *g, const output *got);
/* Rows until the first token that differs: after it the two runs are of different texts. */
uint32_t common_rows(const golden *g, const output *got);

/* A skipped signal of an instruction of that opcode ends in a message that names what stood still, within the deadline;
 * then the machine works again (fault_gpu.c). */
void test_fault(const golden *g, mk_opcode opcode);
/* A GPU that is not there, and a program for more SMs than there are. */
void test_refusals(const golden *g);
/* Opening, one token and closing, again and again: device memory and host memory stay what they were. */
void test_cycles(const golden *g, unsigned cycles);

#endif
