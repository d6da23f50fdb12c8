/* A model directory ready to generate: configuration, compiled and verified program, weights on a machine.
 *
 * The engine owns everything it opens until mk_engine_close. One thread at a time per engine. Failure: MK_ERR_FILE for
 * the model, MK_ERR_REJECTED from the verifier, MK_ERR_DEVICE from the machine, each with a message. */
#ifndef MK_ENGINE_H
#define MK_ENGINE_H

#include <signal.h>

#include "engine/batch.h"
#include "engine/record.h"
#include "instructions/sampling_host.h"
#include "models/config.h"
#include "models/graph.h"
#include "vm/cpu/machine.h"
#include "vm/gpu/machine.h"
#include "vm/program/program.h"

/* For tests that plant faults: each hook may change what it is given. `program` runs after verification. */
typedef struct mk_tamper {
  void (*config)(mk_config *config);
  void (*program)(mk_program *program);
  uint32_t position_shift; /* generation starts at this position instead of 0 */
  mk_blocks_fault blocks;
  bool swaps_sampling; /* a sequence's sampling parameters are given to the slot beside its own */
  bool forgets_counts; /* a machine that takes over a sequence is not told which tokens the sequence has had */
} mk_tamper;

typedef struct mk_engine_options {
  /* "cpu", "cuda" or "cuda:N", or a GPU for each rank: "cuda:0-3", "cuda:0,2". NULL or "": the first GPUs where mkvm
   * can use them, else cpu. With `ranks`, "cuda:N" is the GPU of the first rank, and the others have the next ones. */
  const char *device;
  bool want_logits;         /* cuda: every generated token comes with logits, at the price of a launch for each */
  const mk_config *synth;   /* not NULL: no directory; this configuration with the hash weights of models/synth.h */
  uint64_t synth_seed;      /* of the hash weights */
  uint32_t gpu_deadline_ms; /* cuda: the deadline of every wait in the kernel; 0: 1500 */
  /* NULL: all ranks are in this process. Else it is one of them, each of which opens an engine with the same options
   * but for the rank (vm/gpu/group.h): "cuda:N" is its own GPU, of a list the one of that place; without any it is the
   * one of its rank, or the only one. Rank 0 alone generates; the others call mk_engine_follow. */
  const mk_group_options *process;
  uint32_t ranks; /* that share the model (docs/RANKS.md); 0: as many as GPUs are named, else 1 */
  /* SMs of each rank. 0: 132 on a GPU. 0 on the cpu: as many as keep its threads busy, but 132 when it interleaves or
   * checks for races. */
  uint32_t sms;
  uint32_t threads; /* cpu: 0: one for each core that the process may use; interleaving and checking take one */
  uint32_t max_seq; /* 0: min(max_position_embeddings, 4096) */
  /* Rows per step.
   *   0 or 1           one token of one sequence
   *   2, 4, 8, 16      so many tokens, of prompts or of several sequences; a sequence that is alone goes on token by
   *                    token in a program of one row
   *   32               the same, on the cpu alone
   *   64 to 512        the same with as many `slots`, up to MK_MOST_DRAWING_ROWS where requests may draw; with one
   *                    slot, up to 1024, tokens of one prompt, greedily. cuda: of models that have wide steps */
  uint32_t rows;
  /* Sequences that share the rows of a step. 0: as many as rows, but one with MK_PROMPT_ROWS. 1, with 128 rows or more,
   * gives a program for prompts, as MK_PROMPT_ROWS does, but a wide one (scheduler/compile.h). Several slots with 64
   * rows or more give a wide program, too. */
  uint32_t slots;
  /* Rows of the program for long prompts (below). 0: as many as there may be, MK_MOST_ROWS or MK_MOST_SHARED_ROWS,
   * where the model has wide programs, else there is no such program. */
  uint32_t prompt_rows;
  /* How many prompts may share a step of it; 0: one. More than one have MK_MOST_SHARED_ROWS at most. */
  uint32_t prompt_slots;
  /* Rows of the program for few sequences, which has as many slots: it makes the steps of a program of more rows while
   * it has slots for all, with the same bits. 0: MK_MAX_ROWS on cuda, none on the cpu, where a step takes as long as
   * its active rows. From `rows` on there is none, and with one slot, either. */
  uint32_t few_rows;
  /* cuda, 2 rows and more: prompts of more than MK_LONG_PROMPT tokens are computed before their sequence joins the
   * others, in a program of `prompt_rows`. */
  bool long_prompts;
  bool keep_values; /* those of all layers stay readable (mk_compile_options) */
  /* Fewer where the device cannot do as many: 128 where requests may draw; on GPUs 16 where they have no wide steps of
   * the model, or none that draw, and one where there are more GPUs than KV heads. */
  bool rows_or_fewer;
  mk_dtype kv;             /* what K and V are stored as (mk_compile_options) */
  uint32_t most_sequences; /* that run at a time; 0: as many as there are slots */
  uint32_t kv_blocks; /* blocks of 64 tokens that all sequences share; 0: a full context for each row, but one alone
                         with MK_PROMPT_ROWS */
  /* Tokens of ended sequences whose K and V are kept, for prompts that begin alike, as far as no running one needs the
   * room; 0: none. */
  uint64_t prefix_tokens;
  uint32_t prompt_tokens, decode_steps; /* mk_batch_options */
  /* Called at the boundary of every step, and before work begins, by the thread that works: it may submit and cancel.
   * NULL: nobody is. */
  void (*poll)(void *user);
  void *poll_user;
  double (*clock)(void *user); /* seconds, by which the deadlines of sequences go; NULL: none is ever over */
  void *clock_user;
  uint64_t interleave_seed; /* 0: queues run greedily; else a random legal interleaving of all roles */
  bool adversarial;         /* relaxed counters become visible before the data they announce */
  bool check_races;         /* detect unordered accesses while running */
  const mk_tamper *tamper;  /* NULL outside tests */
  const char *cache;        /* folder of packed copies of checkpoints, read when there, written when not; NULL: none */
  /* How tokens are drawn; NULL, or one that is greedy: a greedy program. */
  const mk_sampling *sampling;
  /* Not NULL: once it is not 0, loading ends with MK_ERR_RUNTIME, and generation after the step at hand. */
  const volatile sig_atomic_t *cancel;
  /* Told while the engine opens; NULL: nobody is. */
  void (*memory)(void *user, const mk_memory_plan *plan);      /* before the machine allocates */
  void (*progress)(void *user, uint64_t done, uint64_t total); /* bytes of weights loaded */
  void (*notice)(void *user, const char *text); /* one line: a packed copy that is no good, or a mk_note */
  /* Told while the engine generates: after a step that computed tokens of prompts, how many tokens of all prompts are
   * done. There is no call for the last token of a prompt: a generated token follows. */
  void (*prompt_progress)(void *user, uint64_t done, uint64_t total);
  void *progress_user; /* handed to memory, progress, notice and prompt_progress */
} mk_engine_options;

typedef struct mk_engine mk_engine;

/* Called after each generated token; false stops. logits: [vocab], valid during the call; NULL on cuda without
 * want_logits. */
typedef bool (*mk_token_fn)(void *user, uint32_t token, const float *logits);

/* The CPU machine alone interleaves, checks for races and is tampered with: options that ask for these rule cuda out
 * (MK_ERR_USAGE when `device` names it). model_dir may be NULL with `synth`. */
mk_status mk_engine_open(const char *model_dir, const mk_engine_options *options, mk_engine **out);
void mk_engine_close(mk_engine *engine); /* NULL is fine */

/* Of a process that is another rank than 0: does what rank 0's engine asks for, until that closes. */
mk_status mk_engine_follow(mk_engine *engine);

/* Of rank 0, while there is nothing to do: whether the other processes still live. MK_ERR_DEVICE, and the engine is
 * lost, once one is gone; MK_OK where there are none. */
mk_status mk_engine_watch(mk_engine *engine);

/* Whether an engine with these options would run on a GPU. */
bool mk_engine_takes_cuda(const mk_engine_options *options);

/* Whether an engine with these options could have several rows; on a GPU it must choose greedily. */
bool mk_engine_takes_rows(const mk_engine_options *options);

const mk_config *mk_engine_config(const mk_engine *engine);
const mk_program *mk_engine_program(const mk_engine *engine);
uint32_t mk_engine_max_seq(const mk_engine *engine);
/* "cpu", or the index and name of the GPU: "cuda:0 (NVIDIA H200)", "cuda:0-1 (NVIDIA H200)" of two ranks. As long-lived
 * as the engine. */
const char *mk_engine_device(const mk_engine *engine);
/* The GPU machine that the engine owns; NULL when it runs on the CPU. */
mk_gpu *mk_engine_gpu(mk_engine *engine);
/* The CPU machine; NULL when it runs on a GPU. */
mk_cpu *mk_engine_cpu(mk_engine *engine);

/* How later generations draw, in all slots: the same seed gives the same tokens again. MK_ERR_USAGE for parameters that
 * make no sense, and for those that are not greedy when the engine was opened with a greedy program. */
mk_status mk_engine_set_sampling(mk_engine *engine, const mk_sampling *sampling);
/* The same for one slot, in which a sequence begins between two launches: no token of the sequence has been seen, so
 * its counts begin anew. MK_ERR_USAGE also for a slot that the program does not have. */
mk_status mk_engine_set_slot_sampling(mk_engine *engine, uint32_t slot, const mk_sampling *sampling);
/* To be called after mk_engine_set_slot_sampling when K and V of the sequence's first tokens are in the cache already,
 * so that no row computes, and counts, these tokens. `tokens` are all tokens before the sequence's first row: the first
 * prompt_count of them are the prompt's, the others were generated. */
mk_status mk_engine_set_slot_counts(mk_engine *engine, uint32_t slot, const uint32_t *tokens, size_t prompt_count,
                                    size_t count);

/* ---- Sequences that come and go (batch.h) ---- */

/* As mk_batch_add and mk_batch_cancel (batch.h); they may not be called in a callback of a sequence. */
mk_status mk_engine_submit(mk_engine *engine, const mk_sequence *sequence, const mk_sequence_calls *calls, size_t tag,
                           uint64_t *id);
bool mk_engine_cancel(mk_engine *engine, uint64_t id);
/* Makes one launch, of as many steps as possible. *left becomes the number of sequences that have not ended. Fails when
 * the machine fails: the sequences that ran have then ended with that status, the others wait, and the next call begins
 * with them. */
mk_status mk_engine_step(mk_engine *engine, size_t *left);
/* Whether a machine of the engine is lost, after a step that failed (mk_gpu_lost): no other step will do. */
bool mk_engine_lost(const mk_engine *engine);
void mk_engine_count(const mk_engine *engine, mk_batch_counters *out);
/* For how many milliseconds, by their events, GPUs have worked in all launches of this engine; 0 on the cpu. */
typedef struct mk_engine_busy {
  double steps_ms;
  double ranks_ms; /* from steps to the rankings of their tokens */
} mk_engine_busy;
mk_engine_busy mk_engine_busy_of(const mk_engine *engine);

/* ---- Sequences from beginning to end ---- */

/* The prompt (1..max_seq ids, each < vocab), then up to n_predict tokens, fewer when fn returns false or the context is
 * full. Prompt and generated tokens together never exceed max_seq. Greedy unless the engine samples. Nothing else may
 * be submitted. */
mk_status mk_engine_generate(mk_engine *engine, const uint32_t *prompt, size_t prompt_count, size_t n_predict,
                             mk_token_fn fn, void *user);

/* The same for several sequences: side by side when the engine has several slots, else one after the other. Each gives
 * the same tokens and logits as it would alone in this call, whoever is beside it. What goes wrong with one sequence
 * ends that one alone. When the machine fails, the call fails if there are several slots; with one slot the failure
 * ends the sequence at hand, and the next sequence begins. */
mk_status mk_engine_generate_all(mk_engine *engine, const mk_sequence *sequences, size_t count,
                                 const mk_sequence_calls *calls);

/* ---- Launches that no sequence is behind ---- */

/* One launch of the main machine by the caller's plan, as mk_cpu_run_plan and mk_gpu_run_plan make it; the block table
 * is the machine's own, or was written by the caller. */
mk_status mk_engine_run_plan(mk_engine *engine, const mk_step_row *plan, uint32_t steps, mk_step_fn fn, void *user);

/* ---- Traces (record.h) ---- */

/* Forgets what was recorded before. Later launches of all machines are recorded by this window. */
void mk_engine_trace(mk_engine *engine, const mk_trace_window *window);
/* What was recorded, now the caller's; MK_ERR_USAGE when no launch came to the window. */
mk_status mk_engine_trace_take(mk_engine *engine, mk_trace **out);
/* Fills in the facts that the engine knows: device and model. */
void mk_engine_trace_facts(const mk_engine *engine, mk_trace *trace);

#endif
