/* Instruction by instruction: what a machine computed in one step, beside what the plain C references make of the same
 * inputs.
 *
 * Every value of a step has a buffer of its own, so after a step all inputs and outputs of all instructions still lie
 * in the machine's memory. They are read back; each instruction's reference runs on the machine's own inputs, and its
 * outputs are compared with the machine's. An error therefore shows at the instruction that made it and nowhere else.
 *
 * A mk_compare owns two copies of everything but the weights, which stay the caller's. One thread. Failure:
 * MK_ERR_DEVICE names the first output (by uid) that is off, or an input that the machine never wrote; else what the
 * machine reports. */
#ifndef MK_COMPARE_H
#define MK_COMPARE_H

#include "engine/engine.h"

/* The machine that is looked at. `read` gives all bytes of a buffer; `generation` is that of the last step's stamps. */
typedef struct mk_compare_source {
  /* One step of a plan; results as mk_step_fn has them. */
  mk_status (*step)(void *user, const mk_step_row *rows, uint32_t *results);
  mk_status (*read)(void *user, size_t buffer, void *data, uint64_t bytes);
  uint32_t (*generation)(void *user);
  void *user;
} mk_compare_source;

/* What an output may be off by: |got - want| / |want| (L2) over what one instruction writes to one operand. A sum in
 * another order may round the other way: one unit in the last of 8 significant bits for bf16. */
#define MK_COMPARE_LIMIT_BF16 8e-3
#define MK_COMPARE_LIMIT_F32 1e-5
/* For K and V in a cache of e4m3: one unit in the last of 4 significant bits. */
#define MK_COMPARE_LIMIT_E4M3 0.125
/* For parts of attention: exponentials are approximate on a GPU, and a p that lies between two numbers of bf16 may
 * become either one. In the part of a single token that is one unit in the last of 8 significant bits. */
#define MK_COMPARE_LIMIT_PARTS 4e-3
/* For a candidate, which is a single sum and may be near zero. The logits of its instruction are compared as F32. */
#define MK_COMPARE_LIMIT_CANDIDATE 1e-3

typedef struct mk_compare_row { /* of an opcode */
  uint64_t outputs;
  double worst; /* relative error */
  uint32_t uid; /* where */
} mk_compare_row;

typedef struct mk_compare mk_compare;

/* weights[b]: the packed bytes of buffer b, for buffers of kind WEIGHT. */
mk_status mk_compare_new(const mk_program *program, uint8_t *const *weights, const mk_compare_source *source,
                         mk_compare **out);
void mk_compare_free(mk_compare *compare); /* NULL is fine */

/* Lets the machine compute a step and compares every instruction of it. rows and results: [rows of the program]. Tokens
 * are given, not those that a slot chose. */
mk_status mk_compare_step(mk_compare *compare, const mk_step_row *rows, uint32_t *results);

/* Greedy generation as mk_engine_generate, with every step of `machine` compared (its own launch each); `oracle` is a
 * CPU engine of the same model. fn (may be NULL) hears of every step: of the prompt too, whose tokens are not
 * `generated`; false stops. *out (may be NULL) is the caller's to free, also after a failure. */
typedef bool (*mk_compare_fn)(void *user, uint32_t position, uint32_t token, bool generated);
mk_status mk_compare_generate(mk_engine *machine, mk_engine *oracle, const uint32_t *prompt, size_t prompt_count,
                              size_t n_predict, mk_compare_fn fn, void *user, mk_compare **out);

/* A new comparison of that machine with the references, for mk_compare_step; the oracle lends its weights. */
mk_status mk_compare_engines(mk_engine *machine, mk_engine *oracle, mk_compare **out);

/* The worst of each opcode, over all steps so far: [MK_OP_COUNT]. */
const mk_compare_row *mk_compare_rows(const mk_compare *compare);

#endif
