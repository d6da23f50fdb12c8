/* See bench_sampling.h. */
#include "tools/mkvm/bench_sampling.h"

#include <stdio.h>

#include "tools/lib/bench_sampling.h"
#include "tools/mkvm/command.h"
#include "tools/mkvm/loading.h"
#include "tools/mkvm/signals.h"

static mk_status print_table(mk_engine *engine, const mk_bench_sampling_result *r, uint32_t tokens, uint32_t rounds) {
  printf("| %-20s | %9s | %14s | %-13s |\n", "sampling", "ms/token", "us over greedy", "quartiles");
  printf("| %.20s | %.8s: | %.13s: | %.13s |\n", "--------------------", "---------", "--------------",
         "-------------");
  printf("| %-20s | %9.4f | %14s | %-13s |\n", "greedy", r->greedy_us * 1e-3, "", "");
  for (size_t w = 0; w < MK_BENCH_WAYS; w++) {
    char quartiles[32];
    snprintf(quartiles, sizeof quartiles, "%.1f to %.1f", r->ways[w].low_us, r->ways[w].high_us);
    printf("| %-20s | %9.4f | %14.1f | %-13s |\n", mk_bench_ways[w].name, r->ways[w].token_us * 1e-3,
           r->ways[w].over_us, quartiles);
  }
  printf(
      "\ndevice: %s\nvocabulary: %u; rows: %u; a launch: %u tokens of each, after %d; %u rounds, in which each launch "
      "is "
      "compared with the greedy ones before and after it\n",
      mk_engine_device(engine), mk_engine_config(engine)->vocab, mk_program_rows(mk_engine_program(engine)), tokens,
      MK_BENCH_SAMPLING_PROMPT, rounds);
  return mk_print_done();
}

static json_t *object_of(const mk_bench_about *about, const mk_bench_sampling_result *r, size_t way, uint32_t tokens,
                         uint32_t rounds) {
  json_t *object = mk_bench_about_object(about);
  int bad = json_object_set_new(object, "test", json_string("sampling"));
  bad |= json_object_set_new(object, "sampling", json_string(mk_bench_ways[way].name));
  bad |= json_object_set_new(object, "n_prompt", json_integer(MK_BENCH_SAMPLING_PROMPT));
  bad |= json_object_set_new(object, "n_gen", json_integer(tokens));
  bad |= json_object_set_new(object, "rounds", json_integer(rounds));
  bad |= json_object_set_new(object, "greedy_us", json_real(r->greedy_us));
  bad |= json_object_set_new(object, "token_us", json_real(r->ways[way].token_us));
  bad |= json_object_set_new(object, "over_greedy_us", json_real(r->ways[way].over_us));
  bad |= json_object_set_new(object, "over_greedy_us_low", json_real(r->ways[way].low_us));
  bad |= json_object_set_new(object, "over_greedy_us_high", json_real(r->ways[way].high_us));
  return mk_bench_object_or_null(object, bad);
}

static mk_status print_list(const mk_bench_about *about, const mk_bench_sampling_result *r, uint32_t tokens,
                            uint32_t rounds) {
  MK_TRY(mk_bench_list_begin(about->format));
  for (size_t w = 0; w < MK_BENCH_WAYS; w++) {
    MK_TRY(mk_bench_list_object(about->format, object_of(about, r, w, tokens, rounds), w == 0));
  }
  return mk_bench_list_end(about->format, true);
}

mk_status mk_bench_sampling_open(const char *model, const mk_engine_options *open, mk_engine **sampling) {
  mk_engine_options drawing = *open;
  drawing.sampling = &mk_bench_ways[0].sampling;
  MK_TRY(mk_open_engine(model, &drawing, sampling));
  mk_release_interrupt();
  return MK_OK;
}

mk_status mk_bench_sampling_table(mk_engine *greedy, mk_engine *sampling, const mk_bench_about *about, uint32_t tokens,
                                  uint32_t rounds) {
  mk_bench_sampling_result result;
  MK_TRY(mk_bench_sampling_run(greedy, sampling, tokens, rounds, &result));
  return about->format == MK_BENCH_MD ? print_table(greedy, &result, tokens, rounds)
                                      : print_list(about, &result, tokens, rounds);
}
