/* The CPU machine: the same bits of all logits with any number of rows, in any company, and however often a sequence
 * changes the machine. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "models/synth.h"
#include "tests/support/effort.h"
#include "tests/support/mixture.h"

static const mixture_demands demands = {
    .one_row = MIXTURE_ALWAYS, .several = MIXTURE_ALWAYS, .prompts = MIXTURE_ALWAYS};

/* Two layers. */
static mk_config config_of(uint32_t head_dim, uint32_t heads, uint32_t kv_heads, uint32_t hidden, uint32_t intermediate,
                           uint32_t vocab) {
  mk_config config;
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  config.head_dim = head_dim;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.hidden = hidden;
  config.intermediate = intermediate;
  config.layers = 2;
  config.vocab = vocab;
  config.max_position = 8192;
  return config;
}

static void expect_same_bits(const mk_config *config, const mixture_work *work) {
  static mixture_result results[MIXTURE_RESULTS];
  beside_options options = {.config = config, .seed = 3, .sms = 4, .threads = 2};
  beside *machines;
  uint32_t count;
  char line[320];
  mixture_needs(work, &options.max_seq, &options.blocks);
  cr_assert_eq(beside_open(&options, &machines), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mixture_run(machines, work, &demands, results, &count), MK_OK, "%s", mk_error_message());
  for (uint32_t i = 0; i < count; i++) {
    mixture_describe(&results[i], line, sizeof line);
    fprintf(stderr, "mixture: %s\n", line);
    cr_expect(results[i].demanded != 0 && results[i].wrong == 0, "%s", line);
    cr_expect(results[i].error < 1e-2, "%s", line);
  }
  beside_close(machines);
}

Test(mixture, same_bits_64_dims) {
  mk_config config = config_of(64, 4, 1, 80, 208, 67);
  expect_same_bits(&config, test_repeats(true, false) ? &mixture_quick : &mixture_whole);
}

Test(mixture, same_bits_128_dims_deep_k) {
  mk_config config = config_of(128, 3, 1, 80, 2100, 33);
  expect_same_bits(&config, test_repeats(true, false) ? &mixture_short : &mixture_quick);
}

/* Windows that begin in the middle of a part, in the second layer alone. */
Test(mixture, same_bits_with_a_window) {
  mk_config config = config_of(64, 4, 2, 80, 208, 67);
  config.window = 333;
  config.windowed[0] = 2;
  expect_same_bits(&config, &mixture_short);
}
