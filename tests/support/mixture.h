/* Sequences of given tokens through every mixture of machines and rows, and whether all logits are the same bits.
 *
 * What each token is has been fixed beforehand, so that no difference makes another text. First every sequence goes
 * alone, one row per step; then with 2 to 16, 64 and 512 rows, in company, with prompts in chunks, with idle lines in
 * between, and from machine to machine, some of it at random. The logits of each step are compared with those of one
 * row, and with those of two rows where one row takes no part. Free of Criterion: the GPU tests use it, too.
 *
 * Plain functions; results are the caller's. One thread. Failure: the status of the machine, with its message;
 * MK_ERR_DEVICE where a reference has logits that are not numbers, or all zero. */
#ifndef MK_TEST_MIXTURE_H
#define MK_TEST_MIXTURE_H

#include "tests/support/beside.h"

enum { MIXTURE_SEQUENCES = 16, MIXTURE_MIXES = 17, MIXTURE_RESULTS = 2 * MIXTURE_MIXES };

typedef struct mixture_work {
  uint32_t prompts[MIXTURE_SEQUENCES]; /* tokens of each sequence's prompt */
  uint32_t sequences;
  uint32_t generated; /* tokens that follow, of each */
  bool quick;         /* without the mixes that others nearly repeat */
} mixture_work;

/* Two with a sequence of 5,000 tokens, and one that just leaves the first 1,024. */
extern const mixture_work mixture_whole, mixture_quick, mixture_short;

/* The longest sequence, and the KV blocks of all. */
void mixture_needs(const mixture_work *work, uint32_t *max_seq, uint32_t *blocks);

/* Up to how many tokens of context the bits have to be the same. */
#define MIXTURE_ALWAYS UINT32_MAX
typedef struct mixture_demands {
  uint32_t one_row; /* of 2 to 16 rows, as of one row */
  uint32_t several; /* of 2 to 16 rows, whoever shares the step and whichever machine computes it */
  uint32_t prompts; /* of a wide step, as of one row */
} mixture_demands;

typedef struct mixture_result { /* of one mix, compared with one reference */
  const char *mix, *reference;
  uint32_t compared, differing;      /* rows of logits */
  uint32_t demanded, wrong;          /* of these, where the same bits are demanded */
  uint32_t same_up_to;               /* tokens of context; MIXTURE_ALWAYS: nothing differs */
  uint32_t sequence, position, rows; /* of the first difference, and the machine's rows */
  /* |logits - reference| over |reference| in L2: the largest of a row's, and of all rows together; NaN where a logit
   * is. */
  double worst, error;
} mixture_result;

/* results[MIXTURE_RESULTS], *count of them. */
mk_status mixture_run(beside *machines, const mixture_work *work, const mixture_demands *demands,
                      mixture_result *results, uint32_t *count);

/* A line of text, as snprintf does it. */
void mixture_describe(const mixture_result *result, char *line, size_t bytes);

#endif
