/* See metrics.h. */
#include "serve/metrics.h"

#include "serve/json_write.h"

#define NS(seconds) ((uint64_t)((seconds)*1e9 + 0.5))

/* The greatest values of the buckets. The shortest step of a small model takes half a millisecond. */
static const uint64_t time_bounds[MK_BUCKETS - 1] = {
    NS(0.00025), NS(0.0005), NS(0.001), NS(0.0025), NS(0.005), NS(0.01), NS(0.025), NS(0.05), NS(0.1), NS(0.25),
    NS(0.5),     NS(1),      NS(2.5),   NS(5),      NS(10),    NS(30),   NS(60),    NS(120),  NS(300)};
static const uint64_t write_bounds[MK_BUCKETS - 1] = {
    NS(5e-6),   NS(10e-6), NS(20e-6),  NS(30e-6), NS(40e-6), NS(50e-6), NS(75e-6), NS(100e-6), NS(150e-6), NS(250e-6),
    NS(500e-6), NS(0.001), NS(0.0025), NS(0.005), NS(0.01),  NS(0.025), NS(0.1),   NS(0.25),   NS(1)};
static const uint64_t token_bounds[MK_BUCKETS - 1] = {1,    2,    4,    8,    16,    32,    64,    128,    256,   512,
                                                      1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144};

typedef struct metric {
  const char *name, *help;
  bool own; /* no name of vLLM's */
} metric;

static const metric gauges[MK_GAUGES] = {
    [MK_REQUESTS_RUNNING] = {"num_requests_running", "Requests that the engine works on."},
    [MK_REQUESTS_WAITING] = {"num_requests_waiting", "Requests that wait for their turn."},
    [MK_KV_CACHE_USAGE] = {"kv_cache_usage_perc", "Share of the KV blocks in use; 1 is all."},
};

static const metric counters[MK_COUNTERS] = {
    [MK_PROMPT_TOKENS] = {"prompt_tokens_total", "Tokens of prompts, computed or known."},
    [MK_GENERATION_TOKENS] = {"generation_tokens_total", "Tokens generated."},
    [MK_PREEMPTIONS] = {"num_preemptions_total", "Times that a request gave its KV blocks back and waited again."},
    [MK_CACHE_QUERIES] = {"prefix_cache_queries_total", "Tokens of prompts that were looked up in the prefix cache."},
    [MK_CACHE_HITS] = {"prefix_cache_hits_total", "Tokens of prompts that were found in the prefix cache."},
    [MK_ENDED_BY_STOP] = {"request_success_total", "Requests that have ended, by reason."},
};

static const char *const reasons[] = {"stop", "length", "abort", "error"};

static const metric histograms[MK_HISTOGRAMS] = {
    [MK_TIME_TO_FIRST_TOKEN] = {"time_to_first_token_seconds", "Time from a request's arrival to its first token."},
    [MK_INTER_TOKEN] = {"inter_token_latency_seconds", "Time between two tokens of a request."},
    [MK_TIME_PER_OUTPUT_TOKEN] = {"request_time_per_output_token_seconds",
                                  "Mean time of a request's tokens but the first."},
    [MK_REQUEST_TIME] = {"e2e_request_latency_seconds", "Time from a request's arrival to its end."},
    [MK_QUEUE_TIME] = {"request_queue_time_seconds", "Time that a request waited for its turn."},
    [MK_PREFILL_TIME] = {"request_prefill_time_seconds", "Time from a request's turn to its first token."},
    [MK_TOKEN_WRITE] = {"token_write_seconds", "Time from the engine's telling of a streamed token to its socket.",
                        true},
    [MK_DECODE_TIME] = {"request_decode_time_seconds", "Time from a request's first token to its last."},
    [MK_REQUEST_PROMPT_TOKENS] = {"request_prompt_tokens", "Tokens of a request's prompt."},
    [MK_REQUEST_GENERATION_TOKENS] = {"request_generation_tokens", "Tokens that a request generated."},
    [MK_ITERATION_TOKENS] = {"iteration_tokens_total", "Tokens generated in a step."},
};

static bool is_time(mk_histogram h) { return h <= MK_DECODE_TIME; }
static const uint64_t *bounds_of(mk_histogram h) {
  return h == MK_TOKEN_WRITE ? write_bounds : is_time(h) ? time_bounds : token_bounds;
}

void mk_metrics_set(mk_metrics *metrics, mk_gauge gauge, double value) {
  atomic_store_explicit(&metrics->gauges[gauge], value, memory_order_relaxed);
}

void mk_metrics_add(mk_metrics *metrics, mk_counter counter, uint64_t more) {
  atomic_fetch_add_explicit(&metrics->counters[counter], more, memory_order_relaxed);
}

void mk_metrics_observe(mk_metrics *metrics, mk_histogram histogram, uint64_t value) {
  const uint64_t *bounds = bounds_of(histogram);
  size_t bucket = 0;
  while (bucket < MK_BUCKETS - 1 && value > bounds[bucket]) {
    bucket++;
  }
  atomic_fetch_add_explicit(&metrics->histograms[histogram].buckets[bucket], 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&metrics->histograms[histogram].sum, value, memory_order_relaxed);
}

static const char *prefix_of(const metric *m) { return m->own ? "mkvm:" : "vllm:"; }

static void put_head(mk_json_writer *w, const metric *m, const char *type) {
  const char *const prefix = prefix_of(m);
  const char *const parts[] = {"# HELP ", prefix, " ", "\n# TYPE ", prefix, " ", "\n"};
  const char *const words[] = {"", m->name, m->help, "", m->name, type, ""};
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    mk_put(w, parts[i]);
    mk_put(w, words[i]);
  }
}

/* Writes a name up to where another label or the closing brace follows. In a label's value backslash, quote and end of
 * line are escaped, and nothing else is. */
static void put_name(mk_json_writer *w, const metric *m, const char *suffix, const char *model) {
  mk_put(w, prefix_of(m));
  mk_put(w, m->name);
  mk_put(w, suffix);
  mk_put(w, "{model_name=\"");
  for (const char *at = model; *at != '\0'; at++) {
    mk_put(w, *at == '\\' || *at == '"' || *at == '\n' ? "\\" : "");
    mk_put_bytes(w, *at == '\n' ? "n" : at, 1);
  }
  mk_put(w, "\"");
}

static void put_value(mk_json_writer *w, uint64_t value, bool time) {
  mk_put(w, "} ");
  if (time) {
    mk_put_nanoseconds(w, value);
  } else {
    mk_put_uint(w, value);
  }
  mk_put(w, "\n");
}

static void put_histogram(mk_json_writer *w, const mk_metrics *metrics, mk_histogram h, const char *model) {
  uint64_t count = 0;
  put_head(w, &histograms[h], "histogram");
  for (size_t i = 0; i < MK_BUCKETS; i++) {
    count += atomic_load_explicit(&metrics->histograms[h].buckets[i], memory_order_relaxed);
    put_name(w, &histograms[h], "_bucket", model);
    mk_put(w, ",le=\"");
    if (i == MK_BUCKETS - 1) {
      mk_put(w, "+Inf");
    } else if (is_time(h)) {
      mk_put_nanoseconds(w, bounds_of(h)[i]);
    } else {
      mk_put_uint(w, token_bounds[i]);
      mk_put(w, ".0");
    }
    mk_put(w, "\"");
    put_value(w, count, false);
  }
  put_name(w, &histograms[h], "_sum", model);
  put_value(w, atomic_load_explicit(&metrics->histograms[h].sum, memory_order_relaxed), is_time(h));
  put_name(w, &histograms[h], "_count", model);
  put_value(w, count, false);
}

static void put_counter(mk_json_writer *w, const mk_metrics *metrics, mk_counter c, const char *model) {
  const metric *m = &counters[c < MK_ENDED_BY_STOP ? c : MK_ENDED_BY_STOP];
  if (c <= MK_ENDED_BY_STOP) {
    put_head(w, m, "counter");
  }
  put_name(w, m, "", model);
  if (c >= MK_ENDED_BY_STOP) {
    mk_put(w, ",finished_reason=\"");
    mk_put(w, reasons[c - MK_ENDED_BY_STOP]);
    mk_put(w, "\"");
  }
  put_value(w, atomic_load_explicit(&metrics->counters[c], memory_order_relaxed), false);
}

mk_status mk_metrics_write(mk_bytes *out, const mk_metrics *metrics, const char *model) {
  mk_json_writer w = mk_json_begin(out);
  for (mk_gauge g = 0; g < MK_GAUGES; g++) {
    put_head(&w, &gauges[g], "gauge");
    put_name(&w, &gauges[g], "", model);
    mk_put(&w, "} ");
    mk_put_float(&w, (float)atomic_load_explicit(&metrics->gauges[g], memory_order_relaxed));
    mk_put(&w, "\n");
  }
  for (mk_counter c = 0; c < MK_COUNTERS; c++) {
    put_counter(&w, metrics, c, model);
  }
  for (mk_histogram h = 0; h < MK_HISTOGRAMS; h++) {
    put_histogram(&w, metrics, h, model);
  }
  return mk_json_end(&w);
}
