/* What /metrics shows: counters, gauges and histograms under vLLM's names, in Prometheus' text format; and one of our
 * own.
 *
 * A mk_metrics is plain memory of its owner, zeroed to begin with. Any thread may count and any may write the text, at
 * the same time: every value is one atomic word, added to without order. A reader sees each value as it was at some
 * moment, and of a histogram a count that is the sum of its buckets; its sum may be an observation ahead or late.
 * Nothing fails but mk_metrics_write, for memory. */
#ifndef MK_METRICS_H
#define MK_METRICS_H

#include <stdatomic.h>

#include "text/bytes.h"

typedef enum mk_gauge { MK_REQUESTS_RUNNING, MK_REQUESTS_WAITING, MK_KV_CACHE_USAGE, MK_GAUGES } mk_gauge;

typedef enum mk_counter {
  MK_PROMPT_TOKENS,
  MK_GENERATION_TOKENS,
  MK_PREEMPTIONS,
  MK_CACHE_QUERIES, /* tokens of prompts that were looked up, and those found */
  MK_CACHE_HITS,
  MK_ENDED_BY_STOP, /* vllm:request_success_total, by finished_reason */
  MK_ENDED_BY_LENGTH,
  MK_ENDED_BY_ABORT,
  MK_ENDED_BY_ERROR,
  MK_COUNTERS
} mk_counter;

typedef enum mk_histogram {
  MK_TIME_TO_FIRST_TOKEN, /* times: in nanoseconds, up to and with MK_DECODE_TIME */
  MK_INTER_TOKEN,
  MK_TIME_PER_OUTPUT_TOKEN,
  MK_REQUEST_TIME,
  MK_QUEUE_TIME,
  MK_PREFILL_TIME,
  MK_TOKEN_WRITE, /* from the engine's telling of a token to the return of write() on its socket */
  MK_DECODE_TIME,
  MK_REQUEST_PROMPT_TOKENS, /* numbers of tokens */
  MK_REQUEST_GENERATION_TOKENS,
  MK_ITERATION_TOKENS,
  MK_HISTOGRAMS
} mk_histogram;

enum { MK_BUCKETS = 20 }; /* the last has no bound */

typedef struct mk_metrics {
  _Atomic double gauges[MK_GAUGES];
  _Atomic uint64_t counters[MK_COUNTERS];
  struct {
    _Atomic uint64_t buckets[MK_BUCKETS], sum;
  } histograms[MK_HISTOGRAMS];
} mk_metrics;

void mk_metrics_set(mk_metrics *metrics, mk_gauge gauge, double value);
void mk_metrics_add(mk_metrics *metrics, mk_counter counter, uint64_t more);
void mk_metrics_observe(mk_metrics *metrics, mk_histogram histogram, uint64_t value);

/* Appends the text; `model` is the label model_name of every value. *out is as before when there is no memory. */
mk_status mk_metrics_write(mk_bytes *out, const mk_metrics *metrics, const char *model);

#endif
