/* Sampling: the arithmetic that turns logits into a token, written once for C and CUDA. docs/SAMPLING.md says what it
 * means.
 *
 * Every operation here is exact or rounds once to nearest (no fused multiply-add, no library function), and every sum
 * is an integer, so a token depends on the bits of the logits alone: not on the machine, the number of SMs or the order
 * of anything.
 *
 * Tokens are ranked by score, the logit after penalties and bias: higher first, equal ones by the lower index. All
 * filters keep the tokens of the first so many ranks. Among what they keep, the token of the highest `score /
 * temperature + Gumbel noise` is drawn, of equals the one with the lower index. The noise depends on seed, position and
 * token.
 *
 * Plain data and pure functions. Any thread may call; nothing fails. */
#ifndef MK_SAMPLING_H
#define MK_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define MK_SAMPLING_FUNCTION static __device__ inline
#define MK_SAMPLING_LOOP _Pragma("unroll 1") /* registers and instruction cache are short */
#else
#define MK_SAMPLING_FUNCTION static inline
#define MK_SAMPLING_LOOP
#endif

/* The words of the `sampling` buffer, which the host fills for a sequence (instructions/sampling_host.h). */
enum {
  MK_SAMPLING_FLAGS,
  MK_SAMPLING_SEED_LOW,
  MK_SAMPLING_SEED_HIGH,
  MK_SAMPLING_TEMPERATURE,         /* F32 */
  MK_SAMPLING_INVERSE_TEMPERATURE, /* F32 */
  MK_SAMPLING_TOP_K,
  MK_SAMPLING_TOP_P,     /* in units of 2^-32 */
  MK_SAMPLING_LOG_MIN_P, /* F32: natural logarithm */
  MK_SAMPLING_REPETITION,
  MK_SAMPLING_INVERSE_REPETITION,
  MK_SAMPLING_PRESENCE,
  MK_SAMPLING_FREQUENCY,
  MK_SAMPLING_WORDS = 16,
};

enum {
  MK_SAMPLE_DRAWS = 1, /* the temperature is above 0; else the first rank is taken */
  MK_SAMPLE_TOP_K = 2,
  MK_SAMPLE_TOP_P = 4,
  MK_SAMPLE_MIN_P = 8,
  MK_SAMPLE_PENALTIES = 16,
  MK_SAMPLE_BIAS = 32,
};

/* A word of the `counts` buffer: how often a token was generated, and whether the prompt has it. */
#define MK_COUNT_GENERATED 0x7fffffffu
#define MK_COUNT_PROMPT 0x80000000u

enum {
  MK_SIFT_SEGMENTS = 32,
  MK_SIFT_FIELDS = 4,
  MK_SIFT_WORDS = MK_SIFT_SEGMENTS * MK_SIFT_FIELDS * 2, /* what an SM publishes in a round */
  MK_SIFT_MOST_PASSES = 64,    /* the search ends after half as many: logits that nobody wrote must not hang it */
  MK_SAMPLING_INDEX_BITS = 20, /* vocabularies have at most 65535 tiles of 16 */
};
#define MK_SAMPLING_INDEX_MASK 0xfffffu

/* A round as published, by field: a pair of words, low half first, of each segment. */
enum {
  MK_SIFT_MASS,
  MK_SIFT_BEST,  /* the highest draw key among this SM's tokens of the segment that may win, 0: none */
  MK_SIFT_COUNT, /* a single word of each segment, then the state (mk_sift_state) */
  MK_SIFT_PIVOT,
};
MK_SAMPLING_FUNCTION uint32_t mk_sift_word(uint32_t field, uint32_t segment) {
  return 2 * field * MK_SIFT_SEGMENTS + (field == MK_SIFT_COUNT ? segment : 2 * segment);
}
#define MK_SIFT_STATE_WORD (mk_sift_word(MK_SIFT_COUNT, MK_SIFT_SEGMENTS))

/* IDLE: there is nothing to search. FOUND: the best draw of segment 0 is the winner. FAILED: logits are NaN. SUMMED: as
 * OPEN, but the line's owner has the tally of all SMs, and no other SM has any. */
typedef enum mk_sift_state { MK_SIFT_IDLE, MK_SIFT_OPEN, MK_SIFT_FOUND, MK_SIFT_FAILED, MK_SIFT_SUMMED } mk_sift_state;

/* With several rows per step rounds come in pairs: in the first one all SMs publish their tallies of a line, and in the
 * second one its owner publishes what they add up to. So each SM reads all tallies of few lines, and of the others the
 * sums. */
MK_SAMPLING_FUNCTION uint32_t mk_sift_owner(uint32_t line, uint32_t lines, uint32_t sms) { return line * sms / lines; }

/* What an SM publishes of its tokens. Word 0: the highest score as mk_peak has it. Word 1: the lowest index of that
 * score, with the number of entries and the flags below. Then come the draw keys of the entries, low half first, and
 * then their scores, the highest score first. Words beyond that number are written, and count for nothing. (On a GPU
 * with several rows the best draw stands first, and only one word more is written.)
 *
 * With min-p the entries are the tokens of which no other token of this SM has both a score as high and a higher draw:
 * whatever the threshold, the best draw above it is among them. Without min-p the best draw is the only entry, or the
 * first rank where nothing is drawn. With top-k or top-p, whose search looks at scores, there is no entry, or only the
 * draw of the first rank: the first rank of all SMs is kept whatever is cut, and draws below its draw cannot win. */
enum {
  MK_FRONT_PEAK,
  MK_FRONT_ABOUT,
  MK_FRONT_KEYS,
  MK_FRONT_MOST = 32,
  MK_FRONT_SCORES = MK_FRONT_KEYS + 2 * MK_FRONT_MOST,
  MK_FRONT_WORDS = MK_FRONT_SCORES + MK_FRONT_MOST,
  MK_FRONT_COUNT_AT = 20, /* bits of the number, above those of the index */
  MK_FRONT_COUNT_BITS = 63,
};
#define MK_FRONT_OVERFLOW 0x40000000u /* there are more: all scores have to be looked at */
#define MK_FRONT_STOP 0x80000000u     /* as MK_CANDIDATE_STOP */

/* Of some tokens, segment by segment of the ranking: how many there are, their weights, and the best draw among
 * them. */
typedef struct mk_tally {
  uint32_t count[MK_SIFT_SEGMENTS];
  uint64_t mass[MK_SIFT_SEGMENTS];
  uint64_t best[MK_SIFT_SEGMENTS];
} mk_tally;

MK_SAMPLING_FUNCTION uint32_t mk_bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

MK_SAMPLING_FUNCTION float mk_float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

#ifdef __CUDACC__
MK_SAMPLING_FUNCTION float mk_times(float a, float b) { return __fmul_rn(a, b); }
MK_SAMPLING_FUNCTION float mk_plus(float a, float b) { return __fadd_rn(a, b); }
MK_SAMPLING_FUNCTION double mk_times_plus(double a, double b, double c) { return __dadd_rn(__dmul_rn(a, b), c); }
#else /* with -ffp-contract=off */
MK_SAMPLING_FUNCTION float mk_times(float a, float b) { return a * b; }
MK_SAMPLING_FUNCTION float mk_plus(float a, float b) { return a + b; }
MK_SAMPLING_FUNCTION double mk_times_plus(double a, double b, double c) { return a * b + c; }
#endif

MK_SAMPLING_FUNCTION bool mk_is_nan(float value) { return (mk_bits_of(value) & 0x7fffffffu) > 0x7f800000u; }

/* log(x) of a positive normal number, within 2e-7 of its size: x = 2^e m with m from sqrt(1/2) to sqrt(2), and a
 * polynomial in f = m - 1. */
MK_SAMPLING_FUNCTION float mk_exact_log(float x) {
  uint32_t above = mk_bits_of(x) - 0x3f3504f3u;
  int32_t e = (int32_t)above >> 23;
  float f = mk_plus(mk_float_of((above & 0x7fffffu) + 0x3f3504f3u), -1.0f);
  float p = 0.06915427f;
  p = mk_plus(mk_times(p, f), -0.11789836f);
  p = mk_plus(mk_times(p, f), 0.11872964f);
  p = mk_plus(mk_times(p, f), -0.12384343f);
  p = mk_plus(mk_times(p, f), 0.1421866f);
  p = mk_plus(mk_times(p, f), -0.16669251f);
  p = mk_plus(mk_times(p, f), 0.20002227f);
  p = mk_plus(mk_times(p, f), -0.24999987f);
  p = mk_plus(mk_times(p, f), 0.3333331f);
  float square = mk_times(f, f), scale = (float)e;
  float low = mk_plus(mk_times(mk_times(p, f), square), mk_times(scale, -2.12194440e-4f)); /* log 2 in two parts */
  low = mk_plus(low, mk_times(square, -0.5f));
  return mk_plus(mk_plus(f, low), mk_times(scale, 0.693359375f));
}

/* exp(x) of a number from -80 to 0, within 3e-7 of its size. */
MK_SAMPLING_FUNCTION float mk_exact_exp(float x) {
  const float round = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
  float n = mk_plus(mk_plus(mk_times(x, 1.44269504f), round), -round);
  float r = mk_plus(mk_plus(x, mk_times(n, -0.693359375f)), mk_times(n, 2.12194440e-4f));
  float p = 0.0013946071f;
  p = mk_plus(mk_times(p, r), 0.008333264f);
  p = mk_plus(mk_times(p, r), 0.04166627f);
  p = mk_plus(mk_times(p, r), 0.16666667f);
  p = mk_plus(mk_times(p, r), 0.5f);
  float value = mk_plus(mk_plus(mk_times(p, mk_times(r, r)), r), 1.0f);
  return mk_float_of(mk_bits_of(value) + ((uint32_t)(int32_t)n << 23));
}

/* The finalizer of SplitMix64 (Steele, Lea, Flood 2014). */
MK_SAMPLING_FUNCTION uint64_t mk_draw_mix(uint64_t z) {
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}

#define MK_DRAW_STEP UINT64_C(0x9e3779b97f4a7c15)

/* Of the token that will stand at `position`: the start of the SplitMix64 sequence whose element number i is the noise
 * of token i. */
MK_SAMPLING_FUNCTION uint64_t mk_draw_key(uint64_t seed, uint32_t position) {
  return mk_draw_mix(mk_draw_mix(seed + MK_DRAW_STEP) ^ (position + UINT64_C(1)) * UINT64_C(0xd1342543de82ef95));
}

/* A standard Gumbel variable: -log of a standard exponential variable, which is -log(1 - x) of a uniform x. What
 * rounding 1 - x loses is added again, so that all digits of a small x count: small x make the high values that win. */
MK_SAMPLING_FUNCTION float mk_draw_gumbel(uint64_t key, uint32_t token) {
  uint64_t bits = mk_draw_mix(key + (token + UINT64_C(1)) * MK_DRAW_STEP);
  float x = mk_times((float)(int64_t)(bits >> 1 | 1), 0x1.fffffep-64f); /* below 1, also where rounded up */
  float rest = mk_plus(1.0f, -x), lost = mk_plus(x, -mk_plus(1.0f, -rest));
  return -mk_exact_log(mk_plus(lost, -mk_exact_log(rest)));
}

/* Bits that compare as the numbers do. Not for NaN. */
MK_SAMPLING_FUNCTION uint32_t mk_ordered(float value) {
  uint32_t bits = mk_bits_of(value);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

MK_SAMPLING_FUNCTION float mk_unordered(uint32_t bits) {
  return mk_float_of((bits >> 31) != 0 ? bits & 0x7fffffffu : ~bits);
}

/* A key that ranks tokens: the higher key ranks first. */
MK_SAMPLING_FUNCTION uint64_t mk_rank_key(float value, uint32_t token) {
  return (uint64_t)mk_ordered(value) << MK_SAMPLING_INDEX_BITS | (MK_SAMPLING_INDEX_MASK - token);
}
MK_SAMPLING_FUNCTION uint32_t mk_rank_token(uint64_t key) {
  return MK_SAMPLING_INDEX_MASK - ((uint32_t)key & MK_SAMPLING_INDEX_MASK);
}
MK_SAMPLING_FUNCTION float mk_rank_value(uint64_t key) {
  return mk_unordered((uint32_t)(key >> MK_SAMPLING_INDEX_BITS));
}

MK_SAMPLING_FUNCTION float mk_sampling_float(const uint32_t *words, uint32_t index) {
  return mk_float_of(words[index]);
}

/* Penalties: repetition for a token that prompt or output has, presence and frequency for one that was generated; then
 * the bias. Zero is +0. NaN stays NaN. */
MK_SAMPLING_FUNCTION float mk_sample_score(const uint32_t *words, float logit, uint32_t count, float bias) {
  float score = logit;
  if ((words[MK_SAMPLING_FLAGS] & MK_SAMPLE_PENALTIES) != 0 && count != 0) {
    uint32_t generated = count & MK_COUNT_GENERATED;
    score =
        mk_times(score, mk_sampling_float(words, score > 0 ? MK_SAMPLING_INVERSE_REPETITION : MK_SAMPLING_REPETITION));
    if (generated != 0) {
      float penalty = mk_plus(mk_sampling_float(words, MK_SAMPLING_PRESENCE),
                              mk_times(mk_sampling_float(words, MK_SAMPLING_FREQUENCY), (float)(int32_t)generated));
      score = mk_plus(score, -penalty);
    }
  }
  if ((words[MK_SAMPLING_FLAGS] & MK_SAMPLE_BIAS) != 0) {
    bool banned = bias == mk_float_of(0xff800000u) && !mk_is_nan(score); /* an infinite logit, too */
    score = banned ? bias : mk_plus(score, bias);
  }
  return mk_plus(score, 0.0f);
}

/* Bits that compare as scores do, NaN above all; 0 stands for no score at all. */
#define MK_PEAK_NAN 0xffffffffu
MK_SAMPLING_FUNCTION uint32_t mk_peak(float score) { return mk_is_nan(score) ? MK_PEAK_NAN : mk_ordered(score); }

/* (score - highest score) / temperature: 0 for the highest, -inf where it is infinitely far away. */
MK_SAMPLING_FUNCTION float mk_sample_distance(const uint32_t *words, float score, float highest) {
  float difference = mk_plus(score, -highest);
  return score == highest ? 0.0f : mk_times(difference, mk_sampling_float(words, MK_SAMPLING_INVERSE_TEMPERATURE));
}

/* exp(distance) in units of 2^-40. */
MK_SAMPLING_FUNCTION uint64_t mk_sample_weight(float distance) {
  return distance < -28.0f ? 0 : (uint64_t)(int64_t)mk_times(mk_exact_exp(distance), 0x1p40f);
}

/* The token's key among the draws: score / temperature + noise in double precision, as bits that compare as numbers do,
 * of which the lowest ones are replaced by the index. The higher key wins; no two are equal, and none is 0. Not for
 * NaN. */
MK_SAMPLING_FUNCTION uint64_t mk_draw_rank(float score, float inverse_temperature, float noise, uint32_t token) {
  double value = mk_times_plus((double)score, (double)inverse_temperature, (double)noise);
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits = (bits >> 63) != 0 ? ~bits : bits | UINT64_C(1) << 63;
  return (bits & ~(uint64_t)MK_SAMPLING_INDEX_MASK) | (MK_SAMPLING_INDEX_MASK - token);
}
/* The upper half of the key of a token whose score is NaN: above all draws, the lowest index first. */
#define MK_DRAW_FAILED_HIGH 0xffffffffu
MK_SAMPLING_FUNCTION uint64_t mk_draw_failed(uint32_t token) {
  return ~(uint64_t)MK_SAMPLING_INDEX_MASK | (MK_SAMPLING_INDEX_MASK - token);
}

MK_SAMPLING_FUNCTION uint64_t mk_sample_draw(const uint32_t *words, uint64_t key, float score, uint32_t token) {
  return mk_draw_rank(score, mk_sampling_float(words, MK_SAMPLING_INVERSE_TEMPERATURE), mk_draw_gumbel(key, token),
                      token);
}

/* Whether min-p drops a token at this distance from the highest score; it drops all that are further away, too. */
MK_SAMPLING_FUNCTION bool mk_sample_drops(const uint32_t *words, float distance) {
  return (words[MK_SAMPLING_FLAGS] & MK_SAMPLE_MIN_P) != 0 &&
         distance < mk_sampling_float(words, MK_SAMPLING_LOG_MIN_P);
}

MK_SAMPLING_FUNCTION uint64_t mk_sampling_seed(const uint32_t *words) {
  return (uint64_t)words[MK_SAMPLING_SEED_HIGH] << 32 | words[MK_SAMPLING_SEED_LOW];
}

/* Whether ranks have to be searched: top-k or top-p cut the ranking at a place that no SM can see by itself. */
MK_SAMPLING_FUNCTION bool mk_sampling_cuts(const uint32_t *words) {
  uint32_t flags = words[MK_SAMPLING_FLAGS];
  return (flags & MK_SAMPLE_DRAWS) != 0 && (flags & (MK_SAMPLE_TOP_K | MK_SAMPLE_TOP_P)) != 0;
}

/* Whether a front has one entry at most: without min-p, the best draw decides. */
MK_SAMPLING_FUNCTION bool mk_sampling_one_draw(const uint32_t *words) {
  return (~words[MK_SAMPLING_FLAGS] & (MK_SAMPLE_DRAWS | MK_SAMPLE_MIN_P)) != 0;
}

/* How much of `mass` the nucleus has to reach: the first token that is dropped is the one at which the weights before
 * it do. */
MK_SAMPLING_FUNCTION uint64_t mk_nucleus(const uint32_t *words, uint64_t mass) {
  uint64_t p = words[MK_SAMPLING_TOP_P], low = (mass & 0xffffffffu) * p;
  uint64_t share = (mass >> 32) * p + (low >> 32) + ((uint32_t)low != 0);
  return share == 0 ? 1 : share;
}

#define MK_SIFT_FIRST_STEP 0.009765625f

/* Pivot j > 0 begins segment j: its tokens have keys below pivot j and not below pivot j + 1 (0 after the last pivot).
 * Pivot 0 is just above all keys. This is pivot j of the first round, which looks where most cuts are. */
MK_SAMPLING_FUNCTION uint64_t mk_sift_first_pivot(const uint32_t *words, float highest, uint32_t j) {
  float step =
      mk_times(mk_sampling_float(words, MK_SAMPLING_TEMPERATURE), MK_SIFT_FIRST_STEP); /* closer near the top */
  float value = mk_plus(mk_plus(highest, -mk_times(step, (float)(int32_t)(j * (j + 8)))), 0.0f);
  return (uint64_t)(mk_ordered(value) + (j == 0 ? 1 : 0)) << MK_SAMPLING_INDEX_BITS;
}

MK_SAMPLING_FUNCTION uint32_t mk_sift_segment(const uint64_t *pivots, uint64_t key) {
  uint32_t segment = 0;
  for (uint32_t step = MK_SIFT_SEGMENTS / 2; step != 0; step /= 2) {
    segment += key < pivots[segment + step] ? step : 0;
  }
  return segment;
}

/* Point i of n from `high` down to `low`, both included where there are two. In two divisions of 32 bits: i is below 32
 * and a key has 53 bits at most. */
MK_SAMPLING_FUNCTION uint64_t mk_sift_point(uint64_t high, uint64_t low, uint32_t i, uint32_t n) {
  uint64_t product = (high - low) * i;
  uint32_t by = n == 1 ? 1 : n - 1, upper = (uint32_t)(product >> 26), lower = (uint32_t)product & 0x3ffffffu;
  uint32_t whole = upper / by;
  return high - (((uint64_t)whole << 26) + ((upper - whole * by) << 26 | lower) / by);
}

/* From the tally of all tokens: true when the winner is certain. Else the pivots are set anew for the next round,
 * closer about the places that are still open: where top-k ends, and where everything ends. */
MK_SAMPLING_FUNCTION bool mk_sift_decide(const uint32_t *words, const mk_tally *tally, uint64_t *pivots,
                                         uint64_t *winner) {
  bool top_p = (words[MK_SAMPLING_FLAGS] & MK_SAMPLE_TOP_P) != 0;
  uint32_t k = (words[MK_SAMPLING_FLAGS] & MK_SAMPLE_TOP_K) != 0 ? words[MK_SAMPLING_TOP_K] : 0xffffffffu;
  /* Top-k ends at or after pivot a, and at or before pivot b, with that much weight before it. */
  uint32_t a = 0, b, count = 0, count_a = 0, j;
  uint64_t mass = 0, mass_a = 0, mass_b;
  MK_SAMPLING_LOOP
  for (j = 0; j < MK_SIFT_SEGMENTS && count <= k; j++) {
    a = j;
    count_a = count;
    mass_a = mass;
    count += tally->count[j];
    mass += tally->mass[j];
  }
  if (count <= k) {
    a = b = MK_SIFT_SEGMENTS;
    mass_a = mass_b = mass;
  } else {
    b = count_a == k ? a : a + 1;
    mass_b = count_a == k ? mass_a : mass;
  }
  uint64_t least = top_p ? mk_nucleus(words, mass_a) : UINT64_MAX,
           most = top_p ? mk_nucleus(words, mass_b) : UINT64_MAX;
  /* Segments before pivot h are kept, those from pivot l on dropped, and between them `open` tokens are one or the
   * other. */
  uint32_t h = 0, open = 0;
  uint64_t sure = 0, maybe = 0;
  MK_SAMPLING_LOOP
  for (j = 0, mass = 0; j < b && mass < most; j++) {
    uint64_t best = tally->best[j];
    mass += tally->mass[j];
    if (j < a && mass < least) {
      h = j + 1;
      sure = best > sure ? best : sure;
    } else {
      open += tally->count[j];
      maybe = best > maybe ? best : maybe;
    }
  }
  uint32_t l = j;
  if (maybe <= sure || (open == 1 && a == b)) { /* a single one begins before the nucleus is full: it is kept */
    *winner = maybe > sure ? maybe : sure;
    return true;
  }
  /* The place where top-k ends stays a pivot once it is found. */
  uint64_t high = pivots[h], low = l < MK_SIFT_SEGMENTS ? pivots[l] : 0;
  uint64_t high_k = a < MK_SIFT_SEGMENTS ? pivots[a] : 0, low_k = b < MK_SIFT_SEGMENTS ? pivots[b] : 0;
  uint32_t of_k = !top_p ? 0 : a == b ? 1 : MK_SIFT_SEGMENTS / 2 - 1, of_all = MK_SIFT_SEGMENTS - 1 - of_k;
  uint32_t x = 0, y = 0;
  MK_SAMPLING_LOOP
  for (j = 1; j < MK_SIFT_SEGMENTS; j++) {
    uint64_t next_k = x < of_k ? mk_sift_point(high_k, low_k, x, of_k) : 0;
    uint64_t next = y < of_all ? mk_sift_point(high, low, y, of_all) : 0;
    bool take_k = x < of_k && (y == of_all || next_k > next);
    pivots[j] = take_k ? next_k : next;
    x += take_k;
    y += !take_k;
  }
  return false;
}

#endif
