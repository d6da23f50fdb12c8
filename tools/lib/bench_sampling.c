/* See bench_sampling.h. */
#include "tools/lib/bench_sampling.h"

#include "models/synth.h"
#include "tools/lib/bench_rows.h"
#include "tools/lib/quantile.h"

#define OFF .top_p = 1, .repetition = 1
const mk_bench_way mk_bench_ways[MK_BENCH_WAYS] = {
    {"temperature 1", {OFF, .temperature = 1, .seed = 1}},
    {"min-p 0.05", {OFF, .temperature = 1, .min_p = 0.05, .seed = 2}},
    {"top-k 50", {OFF, .temperature = 1, .top_k = 50, .seed = 3}},
    {"top-p 0.9", {.repetition = 1, .temperature = 1, .top_p = 0.9, .seed = 4}},
    {"top-k 50, top-p 0.9", {.repetition = 1, .temperature = 0.8, .top_k = 50, .top_p = 0.9, .seed = 5}},
    {"penalties", {.top_p = 1, .temperature = 1, .repetition = 1.2, .presence = 0.5, .frequency = 0.2, .seed = 6}},
    {"penalties, greedy", {.top_p = 1, .repetition = 1.3}},
    {"all",
     {.temperature = 0.8,
      .top_k = 50,
      .top_p = 0.9,
      .min_p = 0.01,
      .repetition = 1.1,
      .presence = 0.1,
      .frequency = 0.1,
      .seed = 7}},
};
#undef OFF

static bool go_on(void *user, uint32_t token, const float *logits) {
  (void)user;
  (void)token;
  (void)logits;
  return true;
}

static bool has_rows(mk_engine *engine) { return mk_program_rows(mk_engine_program(engine)) > 1; }

/* One launch of steps that a sequence in each row takes part in. */
static mk_bench_rows_options rows_test(uint32_t steps) {
  return (mk_bench_rows_options){
      .depth = MK_BENCH_SAMPLING_PROMPT, .steps = steps, .launches = 1, .no_bandwidth = true};
}

static mk_status time_steps(mk_engine *engine, uint32_t steps, double *us) {
  const mk_bench_rows_options options = rows_test(steps);
  mk_bench_rows_result result;
  MK_TRY(mk_bench_rows_run(engine, &options, &result));
  *us = result.ms_p50 * 1e3;
  return MK_OK;
}

/* One launch of a program of one row. */
static mk_status generate(mk_engine *engine, uint32_t tokens) {
  uint32_t prompt[MK_BENCH_SAMPLING_PROMPT], vocab = mk_engine_config(engine)->vocab;
  for (uint32_t i = 0; i < MK_BENCH_SAMPLING_PROMPT; i++) {
    prompt[i] = (uint32_t)(mk_synth_mix(i + 1) % vocab);
  }
  return mk_engine_generate(engine, prompt, MK_BENCH_SAMPLING_PROMPT, tokens, go_on, NULL);
}

static mk_status time_launch(mk_engine *engine, uint32_t tokens, double *us) {
  if (has_rows(engine)) {
    return time_steps(engine, tokens, us);
  }
  MK_TRY(generate(engine, tokens));
  *us = mk_gpu_time_ms(mk_engine_gpu(engine)) * 1e3 / (MK_BENCH_SAMPLING_PROMPT - 1 + tokens);
  return MK_OK;
}

/* over, token: [way][round]; plain: [round][way + 1], of the greedy launches before and after each way. Each round
 * begins with another way: the first one of a round comes after two greedy launches, which a GPU that changes its clock
 * has had more time to recover in. */
static mk_status run_rounds(mk_engine *greedy, mk_engine *sampling, uint32_t tokens, uint32_t rounds, double *over,
                            double *token, double *plain) {
  for (uint32_t r = 0; r <= rounds; r++) { /* the first one warms up, and its times are overwritten */
    uint32_t round = r == 0 ? 0 : r - 1;
    double *around = &plain[(size_t)round * (MK_BENCH_WAYS + 1)];
    MK_TRY(time_launch(greedy, tokens, &around[0]));
    for (size_t i = 0; i < MK_BENCH_WAYS; i++) {
      const size_t w = (i + round) % MK_BENCH_WAYS;
      double *us = &token[w * rounds + round];
      MK_TRY(mk_engine_set_sampling(sampling, &mk_bench_ways[w].sampling));
      MK_TRY(time_launch(sampling, tokens, us));
      MK_TRY(time_launch(greedy, tokens, &around[i + 1]));
      over[w * rounds + round] = *us - (around[i] + around[i + 1]) / 2;
    }
  }
  return MK_OK;
}

mk_status mk_bench_sampling_run(mk_engine *greedy, mk_engine *sampling, uint32_t tokens, uint32_t rounds,
                                mk_bench_sampling_result *out) {
  double *over;
  *out = (mk_bench_sampling_result){0};
  if (mk_engine_gpu(greedy) == NULL || mk_engine_gpu(sampling) == NULL) {
    return mk_error(MK_ERR_USAGE, "what sampling costs is measured on cuda");
  }
  MK_TRY(mk_alloc((size_t)rounds * (3 * MK_BENCH_WAYS + 1), sizeof *over, &over));
  double *token = over + (size_t)rounds * MK_BENCH_WAYS, *plain = token + (size_t)rounds * MK_BENCH_WAYS;
  mk_status status = run_rounds(greedy, sampling, tokens, rounds, over, token, plain);
  if (status == MK_OK) {
    out->greedy_us = mk_quantile(plain, (size_t)rounds * (MK_BENCH_WAYS + 1), 0.5);
    for (size_t w = 0; w < MK_BENCH_WAYS; w++) {
      double *mine = &over[w * rounds];
      out->ways[w].token_us = mk_quantile(&token[w * rounds], rounds, 0.5);
      out->ways[w].over_us = mk_quantile(mine, rounds, 0.5);
      out->ways[w].low_us = mk_quantile(mine, rounds, 0.25);
      out->ways[w].high_us = mk_quantile(mine, rounds, 0.75);
    }
  }
  mk_free(over);
  return status;
}

mk_status mk_bench_sampling_trace(mk_engine *sampling, uint32_t tokens, const mk_trace_window *window, mk_trace **out) {
  const mk_bench_rows_options rows = rows_test(tokens);
  *out = NULL;
  MK_TRY(mk_engine_set_sampling(sampling, &mk_bench_ways[MK_BENCH_WAYS - 1].sampling));
  if (has_rows(sampling)) {
    return mk_bench_rows_trace(sampling, &rows, window, out);
  }
  mk_engine_trace(sampling, window);
  MK_TRY(generate(sampling, tokens));
  return mk_engine_trace_take(sampling, out);
}
