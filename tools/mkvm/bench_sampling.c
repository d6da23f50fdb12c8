/* See bench_sampling.h. */
#include "tools/mkvm/bench_sampling.h"

#include <stdio.h>

#include "tools/lib/bench_sampling.h"
#include "tools/mkvm/command.h"
#include "tools/mkvm/loading.h"

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
  printf("\ndevice: %s\nvocabulary: %u; a launch: a prompt of %d and %u tokens; %u rounds, in which each launch is "
         "compared with the greedy ones before and behind it\n",
         mk_engine_device(engine), mk_engine_config(engine)->vocab, MK_BENCH_SAMPLING_PROMPT, tokens, rounds);
  return mk_print_done();
}

mk_status mk_bench_sampling_table(const char *model, const mk_engine_options *open, uint32_t tokens, uint32_t rounds) {
  mk_engine_options drawing = *open;
  mk_engine *greedy, *sampling;
  mk_bench_sampling_result result;
  drawing.sampling = &mk_bench_ways[0].sampling;
  MK_TRY(mk_open_engine(model, open, &greedy));
  mk_status status = mk_open_engine(model, &drawing, &sampling);
  if (status == MK_OK) {
    mk_release_interrupt();
    status = mk_bench_sampling_run(greedy, sampling, tokens, rounds, &result);
    if (status == MK_OK) {
      status = print_table(greedy, &result, tokens, rounds);
    }
    mk_engine_close(sampling);
  }
  mk_engine_close(greedy);
  return status;
}
