/* A model directory ready to generate: configuration, compiled and verified program, weights on a machine.
 *
 * The engine owns everything it opens until mk_engine_close. One thread at a time per engine. Failure: the status of
 * the step that failed (MK_ERR_FILE for the model, MK_ERR_REJECTED from the verifier, MK_ERR_DEVICE from the machine),
 * with its message. */
#ifndef MK_ENGINE_H
#define MK_ENGINE_H

#include <signal.h>

#include "engine/batch.h"
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
  bool swaps_sampling; /* what a sequence is drawn by goes to the slot beside its own */
  bool forgets_counts; /* where a sequence goes on by another machine, that one is not told which tokens it has had */
} mk_tamper;

typedef struct mk_engine_options {
  const char *device;       /* "cpu", "cuda" or "cuda:N"; NULL or "": cuda:0 where mkvm can use it, else cpu */
  bool want_logits;         /* cuda: every generated token comes with logits, at the price of a launch for each */
  const mk_config *synth;   /* not NULL: no directory; this configuration with the hash weights of models/synth.h */
  uint64_t synth_seed;      /* of those */
  uint32_t gpu_deadline_ms; /* cuda: of every wait in the kernel; 0: 1500 */
  uint32_t ranks;           /* that share the model (docs/RANKS.md); 0: 1. Several: the cpu, so far */
  /* Of each rank; 0: 132; on the cpu as many as keep its threads busy, unless it interleaves or checks for races. */
  uint32_t sms;
  uint32_t threads; /* cpu: 0: one for each core that the process may use; interleaving and checking take one */
  uint32_t max_seq; /* 0: min(max_position_embeddings, 4096) */
  /* Per step: 0 or 1; 2, 4, 8 or 16: so many tokens of prompts or of several sequences at a time, and a sequence that
   * has no company goes on token by token in a program of one row; MK_PROMPT_ROWS, of a greedy program: of one sequence
   * at a time. On the cpu, greedily, 32, 64, 128, 256 and 512 as well (64 with `slots`). cuda: of several, hidden and
   * intermediate sizes are multiples of 16. */
  uint32_t rows;
  /* Sequences that share them: 0: as many as rows, but of MK_PROMPT_ROWS one. 1, with 128 rows or more: a program for
   * prompts, as one of MK_PROMPT_ROWS is, but wide (scheduler/compile.h); so are those of several from 64 rows on. */
  uint32_t slots;
  uint32_t prompt_rows; /* of the program for long prompts below, which has one slot; 0: MK_MOST_ROWS where a model has
                         wide programs, else there is none */
  /* cuda, 2 to 16 rows: prompts of more than MK_LONG_PROMPT tokens are computed before their sequence joins the others,
   * in a program of `prompt_rows`. */
  bool long_prompts;
  bool keep_values; /* of all layers (mk_compile_options) */
  /* One row where the device cannot do as many for this model; on the cpu 16 at most, which is faster there. */
  bool rows_or_one;
  mk_dtype kv;        /* what K and V are stored as (mk_compile_options) */
  uint32_t kv_blocks; /* blocks of 64 tokens that all sequences share; 0: a full context for each row, or of
                         MK_PROMPT_ROWS one */
  /* Tokens of ended sequences whose K and V are kept, for prompts that begin alike, as far as no running one needs the
   * room; 0: none. */
  uint64_t prefix_tokens;
  uint32_t prompt_tokens, decode_steps; /* mk_batch_options */
  /* Called at the boundary of every step, and before work begins, by the thread that works: it may submit and cancel.
   * NULL: nobody is. */
  void (*poll)(void *user);
  void *poll_user;
  double (*clock)(void *user); /* seconds, of the deadlines of sequences; NULL: none is ever over */
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
  /* Told while the engine generates, after steps on the way through prompts: how many of all their tokens are done. The
   * last token of a prompt is not told of, but followed by what is generated. */
  void (*prompt_progress)(void *user, uint64_t done, uint64_t total);
  void *progress_user; /* of these */
} mk_engine_options;

typedef struct mk_engine mk_engine;

/* Called after each generated token; false stops. logits: [vocab], valid during the call; NULL on cuda without
 * want_logits. */
typedef bool (*mk_token_fn)(void *user, uint32_t token, const float *logits);

/* The CPU machine alone interleaves, checks for races and is tampered with: options that ask for these rule cuda out
 * (MK_ERR_USAGE when `device` names it). model_dir may be NULL with `synth`. */
mk_status mk_engine_open(const char *model_dir, const mk_engine_options *options, mk_engine **out);
void mk_engine_close(mk_engine *engine); /* NULL is fine */

/* Whether such an engine would run on a GPU. */
bool mk_engine_takes_cuda(const mk_engine_options *options);

/* Whether such an engine could have several rows: on a GPU it would choose greedily. */
bool mk_engine_takes_rows(const mk_engine_options *options);

const mk_config *mk_engine_config(const mk_engine *engine);
const mk_program *mk_engine_program(const mk_engine *engine);
uint32_t mk_engine_max_seq(const mk_engine *engine);
/* "cpu", or the index and name of the GPU: "cuda:0 (NVIDIA H200)". As long-lived as the engine. */
const char *mk_engine_device(const mk_engine *engine);
/* The GPU machine that the engine owns; NULL when it runs on the CPU. */
mk_gpu *mk_engine_gpu(mk_engine *engine);
/* The CPU machine; NULL when it runs on a GPU. */
mk_cpu *mk_engine_cpu(mk_engine *engine);

/* Of later generations, in all slots: the same seed gives the same tokens again. MK_ERR_USAGE for parameters that make
 * no sense, and for others than greedy ones when the engine was opened with a greedy program. */
mk_status mk_engine_set_sampling(mk_engine *engine, const mk_sampling *sampling);
/* The same of one slot, where a sequence begins between two launches: no token of it has been seen, so its counts begin
 * anew. MK_ERR_USAGE for a slot that there is not, too. */
mk_status mk_engine_set_slot_sampling(mk_engine *engine, uint32_t slot, const mk_sampling *sampling);
/* Then, where it begins behind its first token: the tokens before its first row, which no row counts (their K and V are
 * in the cache already): the first prompt_count of them are the prompt's, the others were generated. */
mk_status mk_engine_set_slot_counts(mk_engine *engine, uint32_t slot, const uint32_t *tokens, size_t prompt_count,
                                    size_t count);

/* ---- Sequences that come and go (batch.h) ---- */

/* mk_batch_add and mk_batch_cancel; not in a callback of a sequence. */
mk_status mk_engine_submit(mk_engine *engine, const mk_sequence *sequence, const mk_sequence_calls *calls, size_t tag,
                           uint64_t *id);
bool mk_engine_cancel(mk_engine *engine, uint64_t id);
/* One launch, of as many steps as may be. *left: sequences that have not ended. Fails when the machine does: those that
 * ran have then ended with that status, the others wait, and the next step begins with them. */
mk_status mk_engine_step(mk_engine *engine, size_t *left);
void mk_engine_count(const mk_engine *engine, mk_batch_counters *out);
/* Milliseconds that GPUs worked in all launches since it was opened, by their events; 0 on the cpu. */
double mk_engine_busy_ms(const mk_engine *engine);

/* ---- Sequences from beginning to end ---- */

/* The prompt (1..max_seq ids, each < vocab), then up to n_predict tokens, fewer when fn returns false or the context is
 * full. Prompt and generated tokens together never exceed max_seq. Greedy unless the engine samples. Nothing else may
 * be submitted. */
mk_status mk_engine_generate(mk_engine *engine, const uint32_t *prompt, size_t prompt_count, size_t n_predict,
                             mk_token_fn fn, void *user);

/* The same for several sequences: side by side when the engine has several rows, else one after the other. Each gives
 * the same tokens and logits as it would alone in this call, whoever is beside it. What goes wrong with one of them
 * ends that one. With several rows the call fails when the machine does; with one, every sequence says so by itself. */
mk_status mk_engine_generate_all(mk_engine *engine, const mk_sequence *sequences, size_t count,
                                 const mk_sequence_calls *calls);

/* Which steps are recorded: all of one launch, the one that has the first of them. */
typedef struct mk_trace_window {
  /* From 0, counted through all launches from mk_engine_trace on; MK_FIRST_GENERATED: the first of a launch that
   * computes a generated token, in the first launch that has all `steps` from there, or else most of them. */
  uint32_t first;
  uint32_t steps;   /* at most; 0: the recorder is off */
  uint32_t records; /* that a role of an SM may keep; 0: mk_trace_records */
} mk_trace_window;
#define MK_FIRST_GENERATED UINT32_MAX

/* Records a role makes in `steps` steps of this program, generously, within what memory allows. */
uint32_t mk_trace_records(const mk_program *program, uint32_t steps);

/* Forgets what was recorded before. */
void mk_engine_trace(mk_engine *engine, const mk_trace_window *window);
/* What was recorded, now the caller's; MK_ERR_USAGE when no launch came to the window. */
mk_status mk_engine_trace_take(mk_engine *engine, mk_trace **out);
/* Fills in the facts that the engine knows: device and model. */
void mk_engine_trace_facts(const mk_engine *engine, mk_trace *trace);

#endif
