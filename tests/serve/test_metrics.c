/* What /metrics says, line by line, and what it says while others count. */
#include "serve/metrics.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

TestSuite(metrics, .timeout = MK_HANG_SECONDS);

static char *text_of(const mk_metrics *metrics, const char *model) {
  mk_bytes out = {0};
  cr_assert_eq(mk_metrics_write(&out, metrics, model), MK_OK);
  cr_assert_eq(mk_bytes_append(&out, "", 1), MK_OK);
  return (char *)out.bytes;
}

static void has(const char *text, const char *line) {
  const char *at = strstr(text, line);
  cr_assert(at != NULL && (at == text || at[-1] == '\n') && at[strlen(line)] == '\n', "no line %s in:\n%s", line, text);
}

/* The number at the end of the line that begins so. */
static double value(const char *text, const char *line) {
  const char *at = strstr(text, line);
  cr_assert_not_null(at, "no line %s in:\n%s", line, text);
  return atof(at + strlen(line));
}

Test(metrics, values) {
  static mk_metrics m;
  mk_metrics_set(&m, MK_REQUESTS_RUNNING, 3);
  mk_metrics_set(&m, MK_KV_CACHE_USAGE, 0.25);
  mk_metrics_add(&m, MK_PROMPT_TOKENS, 40);
  mk_metrics_add(&m, MK_PROMPT_TOKENS, 2);
  mk_metrics_add(&m, MK_ENDED_BY_LENGTH, 5);
  char *text = text_of(&m, "m");
  has(text, "# HELP vllm:num_requests_running Requests that the engine works on.");
  has(text, "# TYPE vllm:num_requests_running gauge");
  has(text, "vllm:num_requests_running{model_name=\"m\"} 3.0");
  has(text, "vllm:num_requests_waiting{model_name=\"m\"} 0.0");
  has(text, "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.25");
  has(text, "# TYPE vllm:prompt_tokens_total counter");
  has(text, "vllm:prompt_tokens_total{model_name=\"m\"} 42");
  has(text, "# TYPE vllm:request_success_total counter");
  has(text, "vllm:request_success_total{model_name=\"m\",finished_reason=\"stop\"} 0");
  has(text, "vllm:request_success_total{model_name=\"m\",finished_reason=\"length\"} 5");
  free(text);
}

Test(metrics, histograms) {
  static mk_metrics m;
  mk_metrics_observe(&m, MK_INTER_TOKEN, 0);
  mk_metrics_observe(&m, MK_INTER_TOKEN, 250000); /* as great as the bound: within */
  mk_metrics_observe(&m, MK_INTER_TOKEN, 250001);
  mk_metrics_observe(&m, MK_INTER_TOKEN, 600000000000);
  mk_metrics_observe(&m, MK_REQUEST_PROMPT_TOKENS, 3);
  char *text = text_of(&m, "m");
  has(text, "# TYPE vllm:inter_token_latency_seconds histogram");
  has(text, "vllm:inter_token_latency_seconds_bucket{model_name=\"m\",le=\"0.00025\"} 2");
  has(text, "vllm:inter_token_latency_seconds_bucket{model_name=\"m\",le=\"0.0005\"} 3");
  has(text, "vllm:inter_token_latency_seconds_bucket{model_name=\"m\",le=\"1.0\"} 3");
  has(text, "vllm:inter_token_latency_seconds_bucket{model_name=\"m\",le=\"2.5\"} 3");
  has(text, "vllm:inter_token_latency_seconds_bucket{model_name=\"m\",le=\"300.0\"} 3");
  has(text, "vllm:inter_token_latency_seconds_bucket{model_name=\"m\",le=\"+Inf\"} 4");
  has(text, "vllm:inter_token_latency_seconds_sum{model_name=\"m\"} 600.000500001");
  has(text, "vllm:inter_token_latency_seconds_count{model_name=\"m\"} 4");
  has(text, "vllm:request_prompt_tokens_bucket{model_name=\"m\",le=\"2.0\"} 0");
  has(text, "vllm:request_prompt_tokens_bucket{model_name=\"m\",le=\"4.0\"} 1");
  has(text, "vllm:request_prompt_tokens_sum{model_name=\"m\"} 3");
  free(text);
}

/* Times to the socket are some microseconds: their bounds are finer than those of other times. */
Test(metrics, token_writes) {
  mk_metrics m = {0};
  mk_metrics_observe(&m, MK_TOKEN_WRITE, 5000);
  mk_metrics_observe(&m, MK_TOKEN_WRITE, 49999);
  mk_metrics_observe(&m, MK_TOKEN_WRITE, 2000000000);
  char *text = text_of(&m, "m");
  has(text, "mkvm:token_write_seconds_bucket{model_name=\"m\",le=\"0.000005\"} 1");
  has(text, "mkvm:token_write_seconds_bucket{model_name=\"m\",le=\"0.00004\"} 1");
  has(text, "mkvm:token_write_seconds_bucket{model_name=\"m\",le=\"0.00005\"} 2");
  has(text, "mkvm:token_write_seconds_bucket{model_name=\"m\",le=\"1.0\"} 2");
  has(text, "mkvm:token_write_seconds_count{model_name=\"m\"} 3");
  free(text);
}

/* All names that clients read, each once, with its kind; and bounds that ascend from a quarter of a millisecond. */
Test(metrics, names) {
  static const char *const names[][2] = {{"num_requests_running", "gauge"},
                                         {"num_requests_waiting", "gauge"},
                                         {"kv_cache_usage_perc", "gauge"},
                                         {"prompt_tokens_total", "counter"},
                                         {"generation_tokens_total", "counter"},
                                         {"num_preemptions_total", "counter"},
                                         {"prefix_cache_queries_total", "counter"},
                                         {"prefix_cache_hits_total", "counter"},
                                         {"request_success_total", "counter"},
                                         {"time_to_first_token_seconds", "histogram"},
                                         {"inter_token_latency_seconds", "histogram"},
                                         {"request_time_per_output_token_seconds", "histogram"},
                                         {"e2e_request_latency_seconds", "histogram"},
                                         {"request_queue_time_seconds", "histogram"},
                                         {"request_prefill_time_seconds", "histogram"},
                                         {"request_decode_time_seconds", "histogram"},
                                         {"request_prompt_tokens", "histogram"},
                                         {"request_generation_tokens", "histogram"},
                                         {"iteration_tokens_total", "histogram"}};
  static const mk_metrics none;
  char *text = text_of(&none, "m");
  size_t types = 0;
  for (const char *at = text; (at = strstr(at, "# TYPE ")) != NULL; at++) {
    types++;
  }
  cr_assert_eq(types, sizeof names / sizeof names[0] + 1);
  has(text, "# TYPE mkvm:token_write_seconds histogram");
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    char line[128];
    snprintf(line, sizeof line, "# TYPE vllm:%s %s", names[i][0], names[i][1]);
    has(text, line);
    if (names[i][1][0] != 'h') {
      continue;
    }
    snprintf(line, sizeof line, "vllm:%s_bucket{model_name=\"m\",le=\"", names[i][0]);
    double last = 0;
    for (const char *at = text; (at = strstr(at, line)) != NULL; at++) {
      const double bound = at[strlen(line)] == '+' ? 1e300 : atof(at + strlen(line));
      cr_assert(bound > last && (last != 0 || bound == (strstr(names[i][0], "seconds") ? 0.00025 : 1)), "%s%g", line,
                bound);
      last = bound;
    }
    cr_assert_eq(last, 1e300);
  }
  free(text);
}

Test(metrics, labels_are_escaped) {
  static const mk_metrics none;
  char *text = text_of(&none, "a\"b\\c\nd\xc3\xa9");
  has(text, "vllm:prompt_tokens_total{model_name=\"a\\\"b\\\\c\\nd\xc3\xa9\"} 0");
  free(text);
}

enum { ROUNDS = 20000 };

static void *count(void *user) {
  for (int i = 0; i < ROUNDS; i++) {
    mk_metrics_add(user, MK_GENERATION_TOKENS, 1);
    mk_metrics_observe(user, MK_ITERATION_TOKENS, (uint64_t)i % 40);
  }
  return NULL;
}

/* Two threads count while this one reads: nothing goes back, and nothing is lost. */
Test(metrics, threads) {
  static mk_metrics m;
  pthread_t threads[2];
  double last = 0, last_count = 0;
  for (int i = 0; i < 2; i++) {
    cr_assert_eq(pthread_create(&threads[i], NULL, count, &m), 0);
  }
  for (int i = 0; i < 50; i++) {
    char *text = text_of(&m, "m");
    const double tokens = value(text, "vllm:generation_tokens_total{model_name=\"m\"} ");
    const double observed = value(text, "vllm:iteration_tokens_total_count{model_name=\"m\"} ");
    cr_assert_eq(observed, value(text, "vllm:iteration_tokens_total_bucket{model_name=\"m\",le=\"+Inf\"} "));
    cr_assert(tokens >= last && observed >= last_count);
    last = tokens;
    last_count = observed;
    free(text);
  }
  for (int i = 0; i < 2; i++) {
    cr_assert_eq(pthread_join(threads[i], NULL), 0);
  }
  char *text = text_of(&m, "m");
  cr_assert_eq(value(text, "vllm:generation_tokens_total{model_name=\"m\"} "), 2 * ROUNDS);
  cr_assert_eq(value(text, "vllm:iteration_tokens_total_count{model_name=\"m\"} "), 2 * ROUNDS);
  cr_assert_eq(value(text, "vllm:iteration_tokens_total_sum{model_name=\"m\"} "), 2 * ROUNDS * 39 / 2.0);
  free(text);
}

Test(metrics, memory_runs_out) {
  static const mk_metrics none;
  mk_bytes out = {0};
  cr_assert_eq(mk_bytes_append(&out, "kept", 4), MK_OK);
  mk_alloc_fail_at(3, false);
  cr_assert_eq(mk_metrics_write(&out, &none, "m"), MK_ERR_RUNTIME);
  mk_alloc_fail_at(0, false);
  cr_assert(out.length == 4 && memcmp(out.bytes, "kept", 4) == 0);
  mk_free(out.bytes);
}
