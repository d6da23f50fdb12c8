/* The same bits of all logits however many rows a step has, whoever shares it, and whichever machines compute a
 * sequence (tests/support/mixture.h). */
#include <stdio.h>

#include "tests/gpu/gpu_test.h"
#include "tests/gpu/shape.h"
#include "tests/support/mixture.h"

/* Up to how many tokens of context the same bits are demanded: MIXTURE_ALWAYS; 0, nowhere; or 1, where linear
 * instructions are the same and attention is not, since a context of one token leaves attention nothing to add. What is
 * not demanded is printed, and may differ as much as roundings do. */
static const mixture_demands demands = {
    .one_row = MIXTURE_ALWAYS, /* 2 to 16 rows as one row */
    .several = MIXTURE_ALWAYS, /* 2 to 16 rows as each other */
    .prompts = MIXTURE_ALWAYS, /* wide steps as one row */
};
#define ROUNDINGS 1e-2       /* of all logits of a mix together, relative */
#define WORST_ROUNDINGS 5e-2 /* of those of one row */

enum { VOCAB = 499 };

static const shape shapes[] = {
    {"64 dims a head, four query heads a KV head", 512, 2816, 8, 2, 64, 2, 0, NULL},
    {"128 dims a head, three query heads a KV head, ragged K", 2096, 1040, 6, 2, 128, 2, 0, NULL},
    /* Few splits, which have up to five and seven spans of one row, and two of several. */
    {"64 dims a head, 32 KV heads", 512, 1024, 32, 32, 64, 2, 0, NULL},
    {"128 dims a head, 40 KV heads", 512, 1024, 40, 40, 128, 2, 0, NULL},
};

static void check(const char *name, const mixture_result *result) {
  char line[512];
  int at = snprintf(line, sizeof line, "%s: ", name);
  mixture_describe(result, line + at, sizeof line - (size_t)at);
  printf("%s\n", line);
  expect(result->compared != 0, line, "no logits were compared");
  expect(result->wrong == 0, line, "logits whose bits should be the same differ");
  expect(result->error <= ROUNDINGS && result->worst <= WORST_ROUNDINGS, line, "logits differ by more than roundings");
}

static void test_shape(const shape *s, const mixture_work *work) {
  static mixture_result results[MIXTURE_RESULTS];
  uint32_t count = 0;
  mk_config config = config_of(s);
  config.vocab = VOCAB;
  config.max_position = 8192;
  const mk_gpu_options gpu = {.device = device_index(), .deadline_ms = deadline_ms};
  beside_options options = {.config = &config, .seed = 3, .gpu = &gpu};
  beside *machines = NULL;
  mixture_needs(work, &options.max_seq, &options.blocks);
  if (expect_ok(beside_open(&options, &machines), s->name)) {
    expect_ok(mixture_run(machines, work, &demands, results, &count), s->name);
  }
  for (uint32_t i = 0; i < count; i++) {
    check(s->name, &results[i]);
  }
  beside_close(machines);
}

void test_mixture(bool quick) {
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    test_shape(&shapes[i], quick ? &mixture_quick : &mixture_whole);
  }
}
