/* What `mkvm bench --load` measures: requests that arrive at an engine by a plan, and how long each waits and takes.
 *
 * A mk_load owns its tables until mk_load_free, which comes after the engine it was run on is closed. One thread, which
 * is the engine's: the engine is opened with mk_load_poll as its `poll`, and with the load's clock as its `clock`.
 * Failure: MK_ERR_USAGE for a plan that makes no sense, MK_ERR_FILE for a file of lengths, MK_ERR_RUNTIME for memory;
 * else that of the first request that failed, or of the machine. */
#ifndef MK_BENCH_LOAD_H
#define MK_BENCH_LOAD_H

#include "engine/engine.h"

typedef struct mk_load_length {
  uint32_t in, out; /* tokens of the prompt, and generated; both at least 1 */
} mk_load_length;

/* A JSON array of [in, out] pairs; the caller's (mk_free). The message of what is wrong names the file and the pair. */
mk_status mk_load_lengths(const char *path, mk_load_length **out, size_t *count);

typedef struct mk_load_options {
  uint32_t requests; /* at least 1 */
  const mk_load_length *lengths;
  size_t length_count;                      /* dealt in turn */
  uint32_t shared;                          /* tokens at the beginning of every prompt that all have in common */
  double rate;                              /* requests a second, at random (Poisson); 0: by `concurrency` */
  uint32_t concurrency;                     /* so many at a time, a new one when one ends; 0: all at once */
  uint64_t seed;                            /* of token ids and arrivals */
  bool logprobs;                            /* of every generated token, */
  uint32_t most_logprobs;                   /* and of so many of the most probable, at most MK_MOST_RANKED */
  const volatile sig_atomic_t *cancel;      /* NULL: nobody does; once it is not 0 the load ends with what there is */
  double (*clock)(void *user);              /* seconds; NULL: mk_seconds */
  void (*wait)(void *user, double seconds); /* while there is no work; NULL: sleep */
  void *clock_user;
} mk_load_options;

typedef struct mk_load_times {
  double p50, p99; /* seconds; 0: nothing to measure */
} mk_load_times;

typedef struct mk_load_result {
  uint32_t arrived, ended;
  bool interrupted;
  double seconds;           /* from the beginning to the last token */
  double working;           /* of them, with a request there */
  double busy;              /* seconds that GPUs worked; 0 on the cpu. Of them, */
  double ranking;           /* between a step and the rankings of its tokens */
  double request_rate;      /* requests that ended, a second */
  double token_rate;        /* generated tokens a second */
  uint64_t generated;       /* tokens */
  mk_load_times first, gap; /* from arrival to the first token; between two tokens of a request */
  mk_load_times queue;      /* from arrival until it begins */
  mk_load_times whole;      /* from arrival to the last token, of those that ended */
  uint64_t launches, steps, preemptions;
  uint64_t prompt_tokens, cached_tokens; /* of prompts that began; of them, known */
  double rows;                           /* tokens computed in a step */
  double one_row, few;                   /* share of steps by the machine of one row, and by that for few, 0 to 1 */
} mk_load_result;

/* Share of `working` in which no GPU worked, 0 to 1. */
double mk_load_idle(const mk_load_result *result);

/* When request 0, 1, ... of [count] arrives, in seconds from the beginning. */
void mk_load_arrivals(uint64_t seed, double rate, uint32_t count, double *out);

typedef struct mk_load mk_load;
/* Copies the lengths. */
mk_status mk_load_new(const mk_load_options *options, mk_load **out);
void mk_load_free(mk_load *load); /* NULL is fine */

void mk_load_poll(void *load);    /* mk_engine_options.poll */
double mk_load_clock(void *load); /* mk_engine_options.clock */

/* A few requests that warm up, then those that count. */
mk_status mk_load_run(mk_load *load, mk_engine *engine, mk_load_result *out);

#endif
