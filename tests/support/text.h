/* Programs from text files under tests/vm/data, with words replaced: how tests break one thing alone.
 *
 * The caller frees what comes back. Failure fails the running test. One thread. */
#ifndef MK_TEST_TEXT_H
#define MK_TEST_TEXT_H

#include "tests/support/sequence.h"

enum { TEST_MAX_EDITS = 5 };

typedef struct test_edit { /* every `from` becomes `to`; there must be one */
  const char *from, *to;
} test_edit;

/* The whole file, with a zero after it; free(). */
char *test_read_file(const char *path);
/* tests/vm/data/NAME, edited (as far as the first edit without `from`) and assembled; mk_program_free(). */
mk_program *test_assemble(const char *name, const test_edit *edits);

/* A CPU machine with random weights, the same every time, and block i at entry i of the block tables, which does not
 * look at plans before it runs them. */
mk_cpu *test_machine(const mk_program *program, const mk_cpu_options *options);
/* Runs five steps from `position` under `options`: as mk_cpu_run_plan; *out is a sum over the tokens and logits it
 * gave. */
mk_status test_run(const mk_program *program, const mk_cpu_options *options, uint32_t position, uint64_t *out);

/* A hash of all memory but the weights: what the host and later steps can see. */
uint64_t test_memory_hash(mk_cpu *cpu, const mk_program *program);

/* A fault of tests/support/faults.def. */
typedef struct test_fault {
  const char *rule, *name, *words, *file;
  test_edit edits[TEST_MAX_EDITS + 1];
} test_fault;

enum {
#define FAULT(rule, name, words, file, ...) TEST_FAULT_##name,
#include "tests/support/faults.def"
  TEST_FAULTS
};
extern const test_fault test_faults[TEST_FAULTS];

#endif
