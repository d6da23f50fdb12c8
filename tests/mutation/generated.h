/* The campaign of generated programs: random programs, several random edits to each, and an oracle for those that the
 * verifier accepts.
 *
 * A seed stands for all of it: the recipe, the program, the edits, what the host puts into the machine, and the
 * interleavings. The oracle uses nothing of the verifier: what an instruction touches (mutation_footprint), what
 * machines do not do (generated_contract), runs without arithmetic (mutation_oracle), and runs with it, whose bits must
 * be those of the greedy one: several machines, each over several launches from the lowest position, over the border of
 * a span, to the highest, with plans and work lists at random.
 *
 * One thread each; nothing is kept between calls but the messages of vm/status.h. */
#ifndef MK_TEST_GENERATED_H
#define MK_TEST_GENERATED_H

#include <stdio.h>

#include "tests/mutation/mutation.h"

typedef enum generated_kind { GENERATED_ROWS, GENERATED_SAMPLING, GENERATED_LISTED } generated_kind;

typedef struct generated {
  generated_kind kind;
  mk_program *program;
  char edits[160]; /* their names */
  bool reordered;  /* some edit is about order */
} generated;

/* The program of a seed; the caller frees generated->program. */
mk_status generated_new(uint64_t seed, generated *out);

/* A random change of the program; its name, or NULL where there is no place for it. *order: it is about order. */
const char *generated_edit(mk_program *program, uint64_t *random, bool *order);
/* Makes sizes, totals, pages and resident bytes fit what the edits have left, most of the time. */
void generated_reseal(mk_program *program, uint64_t *random);

typedef struct generated_effort {
  uint32_t accesses; /* interleavings without arithmetic */
  uint32_t machines; /* with arithmetic, each over all launches */
} generated_effort;
/* As much as a program's share of the campaign's time allows. */
generated_effort generated_effort_of(const generated *g);

/* MK_OK: nothing fails. MK_ERR_DEVICE: something does, and the message says what. MK_ERR_USAGE: no host can run it, as
 * its buffers are not what a host fills, and the message says why. Else as mk_cpu_new. */
mk_status generated_judge(const mk_program *program, uint64_t seed, generated_effort effort);
/* The static part: what no machine does, whatever its verifier says. */
mk_status generated_contract(const mk_program *program);

typedef enum generated_verdict {
  GENERATED_REJECTED,
  GENERATED_ACCEPTED,   /* and does not fail */
  GENERATED_UNJUDGED,   /* accepted, and no host can run it */
  GENERATED_FAILING,    /* accepted, and fails: mk_error_message says how */
  GENERATED_INCOMPLETE, /* out of memory */
} generated_verdict;

enum { GENERATED_RULES = 48, GENERATED_ROW_KINDS = 7 };

typedef struct generated_counts {
  uint32_t programs, accepted, unjudged, failing, crashed;
  uint32_t opcodes[MK_OP_COUNT];      /* accepted programs with that opcode */
  uint32_t rows[GENERATED_ROW_KINDS]; /* accepted programs of 2^i rows */
  struct {
    char rule[8];
    uint32_t rejected;
  } rules[GENERATED_RULES];
} generated_counts;

/* Of this process: memory, so that a program that asks for a lot of it fails and does no harm. */
void generated_limit(void);
/* Makes, verifies and judges the program of a seed, and counts it; the process gets SIGPROF where that does not come to
 * an end. */
generated_verdict generated_try(uint64_t seed, generated_counts *counts);
void generated_add(generated_counts *into, const generated_counts *from);

typedef struct generated_campaign {
  uint32_t jobs;
  uint32_t from, programs; /* numbers of the first program, and the one after the last */
  uint64_t seed;
  bool until_failing; /* stops at the first failing program */
} generated_campaign;

/* Runs the programs in `jobs` processes, and prints what came of it; whoever crashes or hangs counts as failing. true:
 * nothing fails, and the shares are enough for a verdict. */
bool generated_run(const generated_campaign *campaign);
/* Prints the program of a seed, the verdict, and how it fails. true: it does not. */
bool generated_replay(uint64_t seed, FILE *out);

#endif
