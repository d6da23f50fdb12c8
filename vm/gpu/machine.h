/* The GPU machine: runs a program as one persistent kernel on one GPU, or, of a program of several ranks, on a GPU for
 * each rank (docs/RANKS.md); a launch may make many steps. Ranks are in one process, or each in its own (group.h).
 *
 * Ownership: a mk_gpu owns all device and pinned memory that it uses; the program stays the caller's and must outlive
 * the mk_gpu. One thread at a time. Only verified programs may be run: operands outside their buffers are not noticed
 * here.
 *
 * Failure: MK_ERR_RUNTIME when this machine has no fitting GPU, driver, memory or device image; MK_ERR_FILE when the
 * program is for another machine; MK_ERR_USAGE for steps outside the program's ranges; MK_ERR_DEVICE when the kernel
 * ran into its deadline (the message names SM, role, instruction, edge, have and want), or the driver reports an error.
 * After a deadline everything but weights and inputs has been cleared, and the next run works. */
#ifndef MK_GPU_MACHINE_H
#define MK_GPU_MACHINE_H

#include "instructions/sampling_host.h"
#include "vm/gpu/group.h"
#include "vm/gpu/peers.h"
#include "vm/gpu/rank.h"
#include "vm/program/plan.h"
#include "vm/trace/trace.h"

typedef struct mk_gpu mk_gpu;

/* Bytes that a program takes on a machine, and what the machine has. */
typedef struct mk_memory_plan {
  uint64_t weights, kv, activations; /* activations: all that is neither weight nor KV cache */
  uint64_t program;                  /* instructions and tables */
  uint64_t available, total;
} mk_memory_plan;

/* Fills in weights, kv and activations of a program; the rest of *plan is left alone. */
void mk_memory_of(const mk_program *program, mk_memory_plan *plan);

typedef struct mk_gpu_options {
  uint32_t device;         /* index of the GPU; of several ranks that of the first, the others have the next ones */
  const uint32_t *devices; /* NULL, or one for each rank instead; copied. Tests name a GPU several times */
  /* NULL: all ranks are in this process. Else one of them is, and the others open the same machine at the same time;
   * the group must live longer, and `deadline_ms` of 0 is the group's deadline. */
  mk_group *group;
  uint32_t deadline_ms;     /* how long any wait in the kernel may take; 0: 1500 */
  uint32_t skip_signal_uid; /* test fault point: this instruction publishes and signals nothing; 0: none */
  bool unchecked_plans;     /* tests: runs plans that mk_plan_check refuses, of at most as many steps as a launch has */
  void (*memory)(void *user, const mk_memory_plan *plan); /* called before memory is allocated; NULL: none */
  void *user;                                             /* what `memory` is called with */
} mk_gpu_options;

/* True when there is a device image, a driver and a GPU of that index that it runs on. No memory is touched. */
bool mk_gpu_present(uint32_t device);

mk_status mk_gpu_new(const mk_program *program, const mk_gpu_options *options, mk_gpu **out);
void mk_gpu_free(mk_gpu *gpu); /* NULL is fine */
/* A second machine for another program of the same model, on the same GPU. It uses the weights and the KV cache of
 * `lender`, which must live longer, and whose cache must have blocks of the same size, and at least as many. The two
 * machines run in turns. Between launches a sequence may go from one to the other with its row of the block table. */
mk_status mk_gpu_new_beside(const mk_program *program, const mk_gpu_options *options, const mk_gpu *lender,
                            mk_gpu **out);

/* Whether nothing works on the machine any more, on one of its GPUs at least: a kernel never ended, or the driver fails
 * whatever it is asked, as after a wrong address. To be called after a run that failed. */
bool mk_gpu_lost(const mk_gpu *gpu);

/* How many ranks the machine has. */
uint32_t mk_gpu_rank_count(const mk_gpu *gpu);

/* Copies between the host and bytes [offset, offset + bytes) of a buffer; MK_ERR_USAGE when they are not all inside.
 * Everything is zero at first. Not during a run. Of several ranks, a write reaches every rank that has the bytes; a
 * read takes those of the first rank that has them. */
mk_status mk_gpu_write(mk_gpu *gpu, size_t buffer, uint64_t offset, const void *data, uint64_t bytes);
mk_status mk_gpu_read(mk_gpu *gpu, size_t buffer, uint64_t offset, void *data, uint64_t bytes);
/* The bytes of a weight that this process has: all of them, but, as a process of several, those of its rank. From byte
 * *offset on: that goes on to the next one that is here. Returns how many are from there on, without a gap; 0: none.
 * They can be read while weights are loaded, too, when no others follow yet. */
uint64_t mk_gpu_next_here(const mk_gpu *gpu, size_t buffer, uint64_t *offset);
/* Asks, of a machine of one rank, how tokens rank among all tokens, by the logits of their rows in a buffer
 * [lines][vocabulary]; for at most MK_MOST_SHARED_ROWS tokens. The answers are those of mk_rank_logits, but their sums
 * are added in another order. */
typedef struct mk_gpu_ranks {
  size_t buffer;
  const mk_gpu_rank_row *rows; /* [count] */
  uint32_t count, most;        /* count: of rows; most: how many of the most probable tokens each gets */
  mk_ranking *out;             /* [count] */
} mk_gpu_ranks;
/* Zeroes counters, activations, KV and outputs, and counts epochs from 0 again; weights and inputs stay. */
mk_status mk_gpu_clear(mk_gpu *gpu);

/* Tests: fault points of later runs; uid 0: none. The delay stops the consumers of that instruction at its start (not
 * in programs that sample). */
void mk_gpu_skip_signal(mk_gpu *gpu, uint32_t uid);
void mk_gpu_delay(mk_gpu *gpu, uint32_t uid, uint32_t nanoseconds);

/* One launch of one step of a program that follows a work list, and takes no plan. */
mk_status mk_gpu_run(mk_gpu *gpu);

/* `launches` launches of one step each, from position 0, one after another; *microseconds: the time between two events
 * around them all. Only for programs that may begin a step before the host has seen the last one: those with a work
 * list. A wait that outlives its deadline ends its launch and all later ones; the error comes after the last one. */
mk_status mk_gpu_repeat(mk_gpu *gpu, uint32_t launches, double *microseconds);
/* What comes before a launch that is timed by itself. */
typedef enum mk_gpu_before {
  MK_GPU_BEFORE_NOTHING, /* only the launch before it */
  MK_GPU_BEFORE_READ,    /* the L2 cache was read full of other memory */
  MK_GPU_BEFORE_WRITTEN, /* it was written full: the launch also waits for that to be written back */
} mk_gpu_before;

/* `launches` launches as of mk_gpu_repeat, each timed by itself: microseconds[i] is the time between an event right
 * before launch i, after what `before` asks for, and an event right after it. All launches are queued before the first
 * one has ended, so the time that the host takes is not in it. `empty`: launches a kernel that does nothing, on all
 * SMs, instead, which tells how long events and a launch take. */
mk_status mk_gpu_time_each(mk_gpu *gpu, mk_gpu_before before, bool empty, uint32_t launches, double *microseconds);
/* One launch of the steps of a plan [steps][rows of the program] (vm/program/plan.h); the block table must have been
 * filled. MK_ERR_USAGE when mk_plan_check refuses the plan. fn (may be NULL) is called during the launch for each step
 * in turn, as soon as the host sees the step's results. When fn returns false the kernel is told to stop, and steps
 * that it still computes are not reported. Afterwards the logits buffer holds the last step's logits. */
mk_status mk_gpu_run_plan(mk_gpu *gpu, const mk_step_row *plan, uint32_t steps, mk_step_fn fn, void *user);
/* The same in parts, with the rankings that are asked for from the last step's logits (`ranks` may be NULL).
 * `enqueue` returns at once; what `ranks` points to must stay until `finish`.
 * `follow` calls fn for the steps of the launch that was queued last. It returns when fn has heard of all steps, or has
 * returned false, or when nothing more comes. When fn has heard of all steps, one more launch may be queued (of one
 * rank), so that the GPU need not wait for what the host does with results.
 * `finish` waits for the end of the launch that was queued first, and fills in its rankings, unless a step is missing.
 * That launch's logits can be read only then, and only if no other launch is queued. A failure ends all that is queued.
 */
mk_status mk_gpu_enqueue(mk_gpu *gpu, const mk_step_row *plan, uint32_t steps, const mk_gpu_ranks *ranks);
mk_status mk_gpu_follow(mk_gpu *gpu, mk_step_fn fn, void *user);
mk_status mk_gpu_finish(mk_gpu *gpu);

/* The recorder. After _on, each run keeps what every role did in `steps` steps of the launch, from `first_step` on: at
 * most `capacity` notes for a role of an SM. _take gives those of the last run; _off frees the memory. */
mk_status mk_gpu_trace_on(mk_gpu *gpu, uint32_t first_step, uint32_t steps, uint32_t capacity);
mk_status mk_gpu_trace_off(mk_gpu *gpu);
mk_status mk_gpu_trace_take(mk_gpu *gpu, mk_trace **out);

/* Measurement: later runs leave out parts of the machine (mk_gpu_part of launch.h; their tokens are wrong). Clear the
 * machine after. */
void mk_gpu_leave_out(mk_gpu *gpu, uint32_t parts);

/* For the last run: milliseconds between two events around the kernel, and the steps that it computed. Rank: from the
 * end of that kernel until its rankings had been made; 0 where there are none. */
double mk_gpu_time_ms(const mk_gpu *gpu);
double mk_gpu_rank_ms(const mk_gpu *gpu);
uint32_t mk_gpu_steps(const mk_gpu *gpu);
/* The SM clock during the last run, from the GPU's own clocks; 0 when it was too short to tell. */
double mk_gpu_clock_mhz(const mk_gpu *gpu);
/* The generation of the last step's stamps; 0: none since the machine was cleared. */
uint32_t mk_gpu_generation(const mk_gpu *gpu);
/* Launches of the kernel so far. */
uint64_t mk_gpu_launches(const mk_gpu *gpu);
/* The GPU's name, as the driver tells it; as long-lived as the machine. */
const char *mk_gpu_name(const mk_gpu *gpu);

#endif
