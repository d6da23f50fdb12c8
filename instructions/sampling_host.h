/* Sampling as the host sees it: what a user asks for, and a plain definition of the token that comes of it.
 *
 * A mk_sampling owns nothing. Any thread may call. Failure: MK_ERR_USAGE, with field and value. */
#ifndef MK_SAMPLING_HOST_H
#define MK_SAMPLING_HOST_H

#include "instructions/sampling.h"
#include "vm/status.h"

typedef struct mk_logit_bias {
  uint32_t token;
  float bias; /* -INFINITY bans the token */
} mk_logit_bias;

enum { MK_MOST_BIASES = 1024 };

typedef struct mk_sampling {
  double temperature; /* 0: the first rank, whatever the filters say */
  uint32_t top_k;     /* 0 or at least the vocabulary: off */
  double top_p;       /* 1: off */
  double min_p;       /* 0: off */
  double repetition;  /* 1: off */
  double presence;    /* 0: off, as frequency */
  double frequency;
  uint64_t seed;
  const mk_logit_bias *biases; /* a token at most once */
  size_t bias_count;
} mk_sampling;

/* Greedy, everything off: what a mk_sampling starts from. */
#define MK_SAMPLING_OFF ((mk_sampling){.top_p = 1, .repetition = 1})

mk_status mk_sampling_check(const mk_sampling *sampling, uint32_t vocab);
/* Whether a greedy program gives the same tokens. */
bool mk_sampling_is_greedy(const mk_sampling *sampling);
/* Whether it matters which tokens the sequence has had. */
bool mk_sampling_penalizes(const mk_sampling *sampling);
/* Checked parameters as the words of the `sampling` buffer. */
void mk_sampling_words(const mk_sampling *sampling, uint32_t vocab, uint32_t words[MK_SAMPLING_WORDS]);

/* The token that `words` draw for `position` from logits, bias and counts [vocab] each (bias and counts may be NULL:
 * none): the definition, by sorting. *token is that of the lowest index of a NaN when there is one, and *failed is set.
 * MK_ERR_RUNTIME for memory. */
mk_status mk_sampling_choose(const uint32_t words[MK_SAMPLING_WORDS], const float *logits, const float *bias,
                             const uint32_t *counts, uint32_t vocab, uint32_t position, uint32_t *token, bool *failed);

/* Natural logarithms of the probabilities of `token` and of the `count` most probable tokens, most probable first,
 * equal ones by the lower index: of the logits as they are, at temperature 1. *top holds `count` entries, of which
 * those beyond the vocabulary have token UINT32_MAX. */
typedef struct mk_logprob {
  uint32_t token;
  double logprob;
} mk_logprob;
void mk_logprobs(const float *logits, uint32_t vocab, uint32_t token, uint32_t count, double *logprob, mk_logprob *top);
/* The place of `token` among all tokens in that order, from 1. */
uint32_t mk_logit_rank(const float *logits, uint32_t vocab, uint32_t token);

/* Both of these: how a token stands among all that its logits could have given. */
enum { MK_MOST_RANKED = 20 };
typedef struct mk_ranking {
  uint32_t most;  /* how many of the most probable ones are asked for, at most MK_MOST_RANKED */
  uint32_t count; /* how many there are in `top` */
  uint32_t rank;
  double logprob;
  mk_logprob top[MK_MOST_RANKED];
} mk_ranking;
/* Fills in all but `most`. */
void mk_rank_logits(const float *logits, uint32_t vocab, uint32_t token, mk_ranking *ranking);

#endif
