/* The CPU machine: runs a program with queues, pages, counters and stamps simulated and the plain C references as
 * opcodes.
 *
 * Ownership: a mk_cpu owns the memory of every buffer; the program stays the caller's and must outlive the mk_cpu.
 * Threads: one thread at a time calls; a run starts as many threads as the options say, and has ended them when it
 * returns. Callbacks are called by the thread that called.
 *
 * Failure: MK_ERR_DEVICE, with SM, role, instruction and reason in the message, when
 *   - the program deadlocks,
 *   - an access is not ordered (looked for with check_races),
 *   - a value is read that nobody wrote in this step (looked for with check_races or adversarial),
 *   - data name what does not exist: a token, position, slot, block, or ring slot (always looked for).
 * The run ends there, and the next one starts afresh. MK_ERR_RUNTIME for memory; MK_ERR_USAGE for a plan that
 * mk_plan_check refuses. The machine runs any well-formed program, accepted by the verifier or not, but operands must
 * lie inside their buffers and fit each other (the verifier's bounds and shape rules).
 *
 * Ways to run (mk_cpu_options), all of which give the same bits:
 *   greedy         queues are dealt over threads, and each goes on as far as it can
 *   a random seed  on one thread, a random legal interleaving of loaders, consumers and storers of all SMs; epochs
 *                  overlap as they do on a GPU, and a storer's words come at another time than its signals. The seed
 *                  decides everything.
 *   adversarial    also: roles or whole SMs stand still for as long as the program lets the others go on; stamped words
 *                  become visible tile by tile, in any order, at a random time, which may be long after relaxed signals
 *   accesses_only  no numbers: a buffer's memory is a word per tile (accesses.h), or NULL where the buffer is
 *                  constant */
#ifndef MK_CPU_MACHINE_H
#define MK_CPU_MACHINE_H

#include "vm/program/plan.h"
#include "vm/trace/trace.h"

typedef struct mk_cpu mk_cpu;

enum { MK_CPU_MOST_THREADS = 1024 };

typedef struct mk_cpu_options {
  uint32_t threads; /* of a greedy run; 0: 1. The bits do not depend on it */
  uint64_t seed;    /* 0: greedy; else a random interleaving */
  bool adversarial;
  bool check_races;
  bool unchecked_plans; /* tests: runs plans and programs that mk_plan_check refuses */
  /* No arithmetic: what is read, written and waited for (vm/cpu/accesses.h); programs of one row alone. */
  bool accesses_only;
} mk_cpu_options;

mk_status mk_cpu_new(const mk_program *program, const mk_cpu_options *options, mk_cpu **out);
/* The same, but on the weights and the KV cache of another machine, the lender, which must live longer. Both programs
 * are of the same model. The two machines take turns, and each reads what the other one has written into the KV cache.
 * MK_ERR_USAGE where the lender has no such buffers, or where one of the two has accesses_only. */
mk_status mk_cpu_new_beside(const mk_program *program, const mk_cpu_options *options, const mk_cpu *lender,
                            mk_cpu **out);
void mk_cpu_free(mk_cpu *cpu); /* NULL is fine */

/* The memory of a buffer, program->buffers[index].bytes bytes, 64-byte aligned and zero at first: the host fills
 * weights and inputs before the first step and reads outputs between steps. */
void *mk_cpu_memory(mk_cpu *cpu, size_t index);
/* The same as a rank has it: where every rank has a copy (mk_buffer_is_pushed), that one; else what all have. */
void *mk_cpu_copy(mk_cpu *cpu, uint32_t rank, size_t index);

/* The generation of the last step's stamps; 0: none since the buffers were cleared. */
uint32_t mk_cpu_generation(const mk_cpu *cpu);

/* Signals that a counter has had since the buffers were cleared. */
uint32_t mk_cpu_counter(const mk_cpu *cpu, size_t index);

/* Runs the steps of a plan [steps][rows of the program], or fewer when fn (may be NULL) returns false. fn is called for
 * each step when the first SM knows what the rows chose; until fn returns, these rows' logits may be read from their
 * buffer. Counters and generations go on from run to run. The caller fills the block table before the call, and changes
 * neither plan nor table during it. MK_ERR_USAGE when mk_plan_check refuses the plan. */
mk_status mk_cpu_run_plan(mk_cpu *cpu, const mk_step_row *plan, uint32_t steps, mk_step_fn fn, void *user);

/* Runs `epochs` epochs of a program without a token boundary, which takes no plan. One that follows a work list
 * (instructions/mla.h) runs one epoch at a time (else MK_ERR_USAGE) and trusts the list that the checker has passed. */
mk_status mk_cpu_run(mk_cpu *cpu, uint64_t epochs);

/* The recorder (recorder.h). After _on, each run keeps what every role did in `steps` steps of that run, from
 * `first_step` on, with at most `capacity` records for a role of an SM. _take gives the records of the last run; _off
 * frees the memory. */
mk_status mk_cpu_trace_on(mk_cpu *cpu, uint32_t first_step, uint32_t steps, uint32_t capacity);
void mk_cpu_trace_off(mk_cpu *cpu);
mk_status mk_cpu_trace_take(const mk_cpu *cpu, mk_trace **out);

/* For tests: in later runs the consumer of the instruction `uid` takes `nanoseconds` longer; uid 0: no consumer
 * does. */
void mk_cpu_delay(mk_cpu *cpu, uint32_t uid, uint32_t nanoseconds);

#endif
