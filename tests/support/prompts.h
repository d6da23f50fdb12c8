/* Prompts on the CPU machine, without an engine: programs of any rows per step, all of one sequence, with the same
 * weights by number. Failure fails the running test, but for what returns a status. One thread. */
#ifndef MK_TEST_PROMPTS_H
#define MK_TEST_PROMPTS_H

#include "models/config.h"
#include "vm/cpu/machine.h"
#include "vm/program/plan.h"

/* A program of one slot. mk_program_free(). */
mk_program *test_prompt_program(const mk_config *config, uint32_t sms, uint32_t context, uint32_t rows);

/* A machine with weights, and a table that names blocks in an order of its own. mk_cpu_free(). */
mk_cpu *test_prompt_machine(const mk_program *program, const mk_cpu_options *options);

/* Token number i of the one prompt that there is. */
uint32_t test_prompt_token(const mk_program *program, uint32_t i);

/* Computes tokens [first, first + count) of the prompt in one launch; the last one chooses. */
mk_status test_prompt_run(const mk_program *program, mk_cpu *cpu, uint32_t first, uint32_t count, mk_step_fn fn,
                          void *user);

/* The logits that the last token of such a launch has left. */
const float *test_prompt_logits(const mk_program *program, mk_cpu *cpu, uint32_t count);

/* Expects K and V of all layers and heads to be the same bits up to position `count`. */
void test_prompt_expect_cache(const mk_program *a, mk_cpu *on_a, const mk_program *b, mk_cpu *on_b, uint32_t count);

#endif
