// SCORE of several rows per step on the device, as a warp does it with the line at hand; score.c. In the kernel of
// several rows a warp has one line (score_rows.cuh), in that for wide steps one after the other (score_slots.cuh): what
// a `drawer` is, and where it finds what its line draws by, say draw_rows.cuh and draw_slots.cuh, of which one comes
// before this file. Publishes the front of each line. Scores are published only by a DRAW that looks at those of all
// SMs.
#pragma once
#include "instructions/line_search.cuh"

namespace mk {

// What a token's score is made from beside its logit, where the line's parameters ask for it.
struct token_words {
  uint32_t count;
  float bias;
};
__device__ inline bool line_is_plain(const uint32_t *words) {
  return (words[MK_SAMPLING_FLAGS] & (MK_SAMPLE_PENALTIES | MK_SAMPLE_BIAS)) == 0;
}
__device__ inline token_words fetch_words(const drawer &c, const uint32_t *words, const line_tokens &t,
                                          uint32_t token) {
  uint32_t flags = words[MK_SAMPLING_FLAGS];
  return {(flags & MK_SAMPLE_PENALTIES) != 0 ? __ldcg(c.d.words()->counts + t.by_slot + token) : 0,
          (flags & MK_SAMPLE_BIAS) != 0 ? __ldg(c.d.words()->bias + t.by_slot + token) : 0.0f};
}

// The score of one of this SM's tokens. Counts in memory are those before the step, and what the step's lines add to
// them is added here: lines of a slot come in the order of their positions, and each counts the tokens up to its own.
__device__ inline float score_with(const drawer &c, const uint32_t *words, uint32_t counted, uint32_t token,
                                   float logit, const token_words &has) {
  bool counts = (words[MK_SAMPLING_FLAGS] & MK_SAMPLE_PENALTIES) != 0;
  return mk_sample_score(words, logit, counts ? count_with_step(c, counted, token, has.count) : 0, has.bias);
}
__device__ inline float score_of_token(const drawer &c, const uint32_t *words, uint32_t counted, const line_tokens &t,
                                       uint32_t token, float logit) {
  return line_is_plain(words) ? mk_plus(logit, 0.0f)
                              : score_with(c, words, counted, token, logit, fetch_words(c, words, t, token));
}

// The logits of this lane's next tokens, on their way before they are wanted.
struct logits_ahead {
  enum { COUNT = 4 };
  float logit[COUNT];
  const float *from;

  __device__ logits_ahead(const drawer &c, const line_tokens &t) : from(c.d.words()->logits + t.by_line) {
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) {
      logit[i] = fetch(t, t.first + i * 32 + c.lane);
    }
  }
  __device__ float fetch(const line_tokens &t, uint32_t token) const {
    return token < t.end ? __ldcg(from + token) : 0.0f;
  }
  // Gives the logit of `token`, and sends for a later one in its place.
  __device__ float take(const line_tokens &t, uint32_t token) {
    float taken = logit[0];
#pragma unroll
    for (uint32_t i = 0; i + 1 < COUNT; i++) {
      logit[i] = logit[i + 1];
    }
    logit[COUNT - 1] = fetch(t, token + COUNT * 32);
    return taken;
  }
};

// Publishes the front after the last token. Only words that are read are written: the entries in the order of their
// draws, which is that of the lanes, the best one first, and after them one that is no entry.
__device__ inline void publish_front(const drawer &c, const mk_instruction_word &in, const score_store &q) {
  const uint32_t *words = parameters_of(c).words;
  uint64_t key = q.key;
  if (tile::uniform(mk_sampling_one_draw(words) && !mk_sampling_cuts(words))) {
    uint64_t best = highest_key(key);
    key = key == best ? best : 0;
  }
  uint32_t entries = tile::lanes_where(key != 0), before = tile::lanes_before(c.lane), count = __popc(entries);
  uint32_t at = key != 0 ? __popc(entries & before) : count + __popc(~entries & before);
  uint64_t *front = start_of<uint64_t>(in, MK_PART_SCORE_front) +
                    (in.parts[MK_PART_SCORE_front].row * c.d.params.rows + line_at_hand(c)) * MK_FRONT_WORDS;
  uint32_t generation = c.d.generation();
  uint32_t about = q.peak_index | count << MK_FRONT_COUNT_AT |
                   ((q.flags & SCORE_OVERFLOWS) != 0 ? MK_FRONT_OVERFLOW : 0) | (is_to_stop(c) ? MK_FRONT_STOP : 0);
  if (c.d.params.skip_signal_uid != 0 && in.uid == c.d.params.skip_signal_uid) {
    return;
  }
  to_readers(readers_of(in.parts[MK_PART_SCORE_front]), front, [=](uint64_t *to) {
    if (at <= count) {
      tile::store_stamped_pair(to + MK_FRONT_KEYS + 2 * at, static_cast<uint32_t>(key),
                               static_cast<uint32_t>(key >> 32), generation);
      tile::store_stamped(to + MK_FRONT_SCORES + at, __float_as_uint(q.score), generation);
    }
    if (c.lane == 0) {
      tile::store_stamped_pair(to, q.peak, about, generation);
    }
  });
}

// Of this lane's tokens so far: the highest score, with its token; the first token whose score is no number; the best
// draw, roughly, with its token, that token's score, and what the next best of them reaches; and which of the tokens
// are near the first rank of all lanes (near_tokens).
struct best_token {
  float peak;
  uint32_t peak_token, failed;
  float draw, next, score;
  uint32_t token;
  uint64_t near;
};
// Before the first one, which will be `token`: it has the lane's highest score where all are -INFINITY.
__device__ inline best_token no_token(uint32_t token) {
  return {-INFINITY, token, UINT32_MAX, -INFINITY, -INFINITY, 0, 0, 0};
}

// A draw as a number, by the upper half of its key; -INFINITY: none.
__device__ inline float value_of_draw(uint32_t high) {
  uint64_t bits = static_cast<uint64_t>((high >> 31) != 0 ? high & 0x7fffffffu : ~high) << 32;
  return high == 0 ? -INFINITY : static_cast<float>(__longlong_as_double(static_cast<long long>(bits)));
}
// The element of the sequence of random numbers that a token's noise is made from, before it is mixed.
__device__ inline uint64_t draw_state(const line_parameters &p, uint32_t token) {
  return p.key + (token + UINT64_C(1)) * MK_DRAW_STEP;
}
// The x that the token's noise is made from, computed roughly by a few instructions: the noise is at most -log(x).
__device__ inline float random_of(const line_parameters &p, uint32_t token) {
  uint32_t random = static_cast<uint32_t>(mk_draw_mix(draw_state(p, token)) >> 32);
  return static_cast<float>(random) * 0x1p-32f;
}
// Whether the token's draw may reach `value`, by what is quickly known, with a margin for the rounding of these few
// instructions.
__device__ inline bool may_reach(const line_parameters &p, float score, uint32_t token, float value) {
  float scaled = score * mk_sampling_float(p.words, MK_SAMPLING_INVERSE_TEMPERATURE);
  float room = 0.02f + 1e-6f * (fabsf(scaled) + (value == -INFINITY ? 0.0f : fabsf(value)));
  return !(random_of(p, token) > tile::exp2((scaled - value + room) * 1.44269504f));
}

// mk_draw_gumbel by a few instructions of less precision. The uniform variable is the same by bits. A small one's
// exponential variable is a polynomial, within 1e-8 of its size, another one's is a logarithm, within 6e-6 of its size.
// The second logarithm is within 1.1e-5, where its value is largest (44), and so is mk_draw_gumbel of the truth: the
// two are within 4e-5 of each other.
__device__ inline float rough_gumbel(uint64_t state) {
  const float log_2 = 0.693147181f;
  uint64_t bits = mk_draw_mix(state);
  float x = mk_times(static_cast<float>(static_cast<int64_t>(bits >> 1 | 1)), 0x1.fffffep-64f);
  float rest = mk_plus(1.0f, -x), lost = mk_plus(x, -mk_plus(1.0f, -rest));
  float small = x * fmaf(x, fmaf(x, fmaf(x, fmaf(x, 0.2f, 0.25f), 0.333333333f), 0.5f), 1.0f);
  float other = fmaf(tile::log2(rest), -log_2, lost);
  return -log_2 * tile::log2(x < 0x1p-5f ? small : other);
}

// A draw, roughly.
__device__ inline float rough_draw(const line_parameters &p, float score, uint64_t state) {
  return fmaf(score, mk_sampling_float(p.words, MK_SAMPLING_INVERSE_TEMPERATURE), rough_gumbel(state));
}

// How far below a rough draw another one may be and still be higher in truth: twice what a draw is off at most. That is
// its noise, and the rounding of its score, which is not above the draw by more than the noise, and of their sum.
__device__ inline float room_of_draws(float draw) { return 2.5e-4f + 1e-6f * fabsf(draw); }

// What is wanted of a line's tokens beside the first rank: nothing, the best draw, or which tokens are near.
enum line_wish : uint32_t { FIRST_RANK, BEST_DRAW, NEAR_TOKENS };

// How far below the highest score min-p still keeps a token, with a margin for the rounding of these few instructions;
// and whether a token is that near. The range is not above 0.
__device__ inline float near_range(const uint32_t *words) {
  return mk_sampling_float(words, MK_SAMPLING_LOG_MIN_P) * mk_sampling_float(words, MK_SAMPLING_TEMPERATURE);
}
__device__ inline float near_size(float highest, float range) { return fabsf(highest) + fabsf(range); }
__device__ inline float near_floor(float highest, float range) {
  return highest + range - 1e-5f * near_size(highest, range);
}
__device__ inline bool is_near(float score, float floor) { return !(score < floor); }  // also where there is no telling

enum { TOGETHER = 4, STEP = TOGETHER * 32 };  // tokens that a lane takes at a time, and all lanes
static_assert(TOGETHER % 2 == 0, "scores are looked at in pairs");

// Takes a token's score; `token` comes after those before.
__device__ inline void take_peak(uint32_t token, float score, best_token &best) {
  bool higher = score > best.peak;
  best.peak = higher ? score : best.peak;
  best.peak_token = higher ? token : best.peak_token;
}
__device__ inline void take_draw(uint32_t token, float score, float draw, best_token &best) {
  bool better = draw > best.draw;  // not that of a score that is no number
  best.next = fmaxf(best.next, better ? best.draw : draw);
  best.draw = better ? draw : best.draw;
  best.score = better ? score : best.score;
  best.token = better ? token : best.token;
}

// Takes the scores of a lane's next tokens, `token` and every 32nd after it, -INFINITY after the last one. Work on one
// of them does not wait for the others. range: near_range of the line.
__device__ inline void take_scores(const line_parameters &p, uint32_t token, line_wish wish, float range,
                                   const float (&score)[TOGETHER], best_token &best) {
  bool fails = false;
#pragma unroll
  for (uint32_t i = 0; i < TOGETHER; i++) {
    take_peak(token + i * 32, score[i], best);
    // Neither holds where one of the two is no number.
    fails = fails || (i % 2 != 0 && !(score[i - 1] < score[i] || score[i - 1] >= score[i]));
  }
  if (tile::any_lane(fails)) {
#pragma unroll
    for (uint32_t i = 0; i < TOGETHER; i++) {
      best.failed = isnan(score[i]) ? min(best.failed, token + i * 32) : best.failed;
    }
  }
  if (wish == BEST_DRAW) {
    uint64_t state = draw_state(p, token);
#pragma unroll
    for (uint32_t i = 0; i < TOGETHER; i++) {
      take_draw(token + i * 32, score[i], rough_draw(p, score[i], state + i * 32 * MK_DRAW_STEP), best);
    }
  } else if (wish == NEAR_TOKENS) {
    // The first rank so far may still be passed, so more tokens are noted than are near in the end.
    float floor = near_floor(mk_unordered(tile::largest_of_lanes(mk_ordered(best.peak))), range);
    best.near <<= TOGETHER;
#pragma unroll
    for (uint32_t i = 0; i < TOGETHER; i++) {
      best.near |= is_near(score[i], floor) ? 1u << (TOGETHER - 1 - i) : 0;
    }
  }
}

// Makes scores of logits, by the line's penalties and bias.
__device__ inline void make_scores(const drawer &c, const line_parameters &p, const line_tokens &t, uint32_t token,
                                   float (&score)[TOGETHER]) {
  token_words has[TOGETHER];
#pragma unroll
  for (uint32_t i = 0; i < TOGETHER; i++) {
    has[i] = fetch_words(c, p.words, t, min(token + i * 32, t.end - 1));
  }
#pragma unroll 1
  for (uint32_t i = 0; i < TOGETHER; i++) {
    uint32_t at = token + i * 32;
    float made = score_with(c, p.words, p.counted, min(at, t.end - 1), score[0], has[0]);
    // They move up, since an element whose number is not constant would be in memory.
#pragma unroll
    for (uint32_t j = 0; j + 1 < TOGETHER; j++) {
      score[j] = score[j + 1];
      has[j] = has[j + 1];
    }
    score[TOGETHER - 1] = at < t.end ? made : -INFINITY;
  }
}

// Scores all tokens of the line; those from `late` on only once the last logits are there.
__device__ inline void score_all(const drawer &c, const line_parameters &p, const line_tokens &t, uint32_t late,
                                 line_wish wish, best_token &best) {
  const bool plain = tile::uniform(line_is_plain(p.words));  // scores are the logits
  const float *from = c.d.words()->logits + t.by_line + t.first + c.lane;
  float next[TOGETHER] = {}, score[TOGETHER], range = near_range(p.words);
#pragma unroll 1
  for (uint32_t base = t.first; base < t.end + STEP; base += STEP, from += STEP) {
    if (tile::uniform(base + STEP > late)) {
      wait_last_logits(c);
      late = UINT32_MAX;
    }
    uint32_t token = base + c.lane;
    int32_t left = static_cast<int32_t>(t.end - token);
#pragma unroll
    for (uint32_t i = 0; i < TOGETHER; i++) {
      score[i] = next[i];
      next[i] = left > static_cast<int32_t>(i * 32) ? __ldcg(from + i * 32) : -INFINITY;
    }
    if (tile::uniform(base == t.first)) {
      continue;
    }
    if (!plain) {
      make_scores(c, p, t, token - STEP, score);
    }
    take_scores(p, token - STEP, wish, range, score, best);
  }
}

// The best draw of the line's tokens of this SM, of those whose rough draws are not below `least`.
__device__ inline uint64_t draw_those_near(const drawer &c, const line_parameters &p, const line_tokens &t,
                                           float least) {
  uint64_t best = 0;
  logits_ahead ahead(c, t);
#pragma unroll 1
  for (uint32_t base = t.first; base < t.end; base += 32) {
    uint32_t token = base + c.lane;
    float score = score_of_token(c, p.words, p.counted, t, min(token, t.end - 1), ahead.take(t, token));
    float draw = rough_draw(p, score, draw_state(p, token));
    bool near = token < t.end && !mk_is_nan(score) && !(draw < least);
    if (tile::any_lane(near)) {
      uint64_t key = mk_sample_draw(p.words, p.key, score, token);
      best = near ? max(best, key) : best;
    }
  }
  return best;
}

// The lane's part of the best draw: the highest of the lanes' keys is the line's best one on this SM. A draw is worked
// out where its rough value comes that near to the highest one. Where a lane has two such tokens, or there is no
// telling, it looks for them again.
__device__ inline uint64_t best_draw(const drawer &c, const line_parameters &p, const line_tokens &t,
                                     const best_token &best) {
  float highest = mk_unordered(tile::largest_of_lanes(mk_ordered(best.draw)));
  float least = highest - room_of_draws(highest);
  if (tile::any_lane(!(best.next < least)) || tile::uniform(!(fabsf(highest) < 1e30f))) {
    return draw_those_near(c, p, t, least);
  }
  uint64_t key = mk_sample_draw(p.words, p.key, mk_plus(best.score, 0.0f), best.token);
  return best.draw < least ? 0 : key;
}

// The first rank among all lanes' tokens. NaN is above all, the first one of several.
__device__ inline void take_first_rank(const best_token &best, score_store &q) {
  uint32_t failed = tile::smallest_of_lanes(best.failed), peak = mk_ordered(mk_plus(best.peak, 0.0f));
  q.peak = tile::largest_of_lanes(peak);
  q.peak_index = tile::smallest_of_lanes(peak == q.peak ? best.peak_token : MK_SAMPLING_INDEX_MASK);
  if (failed != UINT32_MAX) {
    q.peak = MK_PEAK_NAN;
    q.peak_index = failed;
  }
}

// Tokens that may enter a front, collected as they come until there are enough to draw them side by side. The list lies
// where storers have results before the last logits are there.
struct front_list {
  enum { MOST = MOST_FRONTS / 2, ENOUGH = MOST - 32 };
  uint32_t *tokens, *scores;
  uint32_t count;
};

// Draws the tokens of the list, and makes the front anew of its own entries and of those tokens that min-p does not
// drop when they are compared with `highest`. Lane i then has entry i, in the order of the draws: each is the best draw
// of the tokens whose scores are above those of the entries before.
__device__ inline void enter_front(const drawer &c, const line_parameters &p, const front_list &list, float highest,
                                   score_store &q) {
#pragma unroll 1
  for (uint32_t first = 0; first < list.count; first += 32) {
    uint32_t at = min(first + c.lane, list.count - 1);
    uint32_t token = list.tokens[at];
    float score = __uint_as_float(list.scores[at]), entry_score = 0;
    bool stands = first + c.lane < list.count && !mk_sample_drops(p.words, mk_sample_distance(p.words, score, highest));
    uint64_t draw = mk_sample_draw(p.words, p.key, score, token), entry = 0;
    draw = stands ? draw : 0;
#pragma unroll 1
    for (uint32_t count = 0;; count++) {
      uint64_t own = max(draw, q.key), best = highest_key(own);
      if (best == 0) {
        break;
      }
      float its = tile::from_lane(draw > q.key ? score : q.score, tile::lowest_bit(tile::lanes_where(own == best)));
      q.flags |= count == MK_FRONT_MOST ? SCORE_OVERFLOWS : 0;
      entry = c.lane == count ? best : entry;
      entry_score = c.lane == count ? its : entry_score;
      draw = score > its ? draw : 0;
      q.key = q.score > its ? q.key : 0;
    }
    q.key = entry;
    q.score = entry_score;
  }
}

// The lane's tokens that score_all has noted as near, of a part of the line's: a bit for each of the lane's tokens, the
// lowest one for the last. The words are apart, since few instructions know 64 bits.
struct near_tokens {
  enum { MOST = 64 * 32 };  // tokens in a part
  uint32_t early, late;
  uint32_t last;  // token

  __device__ near_tokens(const drawer &c, const line_tokens &part, uint64_t near)
      : early(static_cast<uint32_t>(near >> 32)),
        late(static_cast<uint32_t>(near)),
        last(part.first + (part.end - part.first + STEP - 1) / STEP * STEP - 32 + c.lane) {}
  __device__ uint32_t count() const { return tile::sum_lanes(static_cast<uint32_t>(__popc(early) + __popc(late))); }
  // Takes one out; `none` where the lane has no more.
  __device__ uint32_t take(uint32_t none) {
    bool is_early = early != 0;
    uint32_t word = is_early ? early : late, place = 31 - __clz(static_cast<int>(word)),
             rest = word & ~(1u << place % 32);
    early = is_early ? rest : early;
    late = is_early ? late : rest;
    return word != 0 ? last - (place + (is_early ? 32 : 0)) * 32 : none;
  }
};

// With min-p, once the first rank of this SM's tokens so far is known: extends the front by those of a part of the
// tokens that min-p does not drop when compared with that rank. Mostly they are few, and drawn side by side. Else a few
// instructions for each tell which ones come into question, as may_reach does: a token whose draw is below the first
// rank's has no place in the front.
__device__ inline void find_front(const drawer &c, const line_parameters &p, const line_tokens &part, near_tokens near,
                                  score_store &q) {
  enum { FEW = 32 };
  uint32_t *words = search_of(c).table;
  front_list list = {words, words + front_list::MOST, 0};
  float highest = mk_unordered(q.peak), range = near_range(p.words), floor = near_floor(highest, range);
  const bool many = tile::uniform(near.count() > FEW);
  float slope = 0, offset = 0;
  if (many) {
    float inverse = mk_sampling_float(p.words, MK_SAMPLING_INVERSE_TEMPERATURE);
    float value = rough_draw(p, highest, draw_state(p, q.peak_index));
    value -= room_of_draws(value);
    float room = 0.02f + 1e-6f * (2 * near_size(highest, range) * inverse + fabsf(value));
    slope = inverse * 1.44269504f;
    offset = (room - value) * 1.44269504f;
  }
  const float *from = c.d.words()->logits + part.by_line;
  auto fetch = [&](uint32_t token) { return token < part.end ? __ldcg(from + token) : 0.0f; };
  uint32_t token = near.take(part.end);
  float logit = fetch(token);
#pragma unroll 1
  for (bool more = tile::any_lane(token < part.end); more;) {
    uint32_t next = near.take(part.end);
    float then = fetch(next);  // under way while this one is looked at
    more = tile::any_lane(next < part.end);
    float random = many ? random_of(p, token) : 0.0f;
    float score = score_of_token(c, p.words, p.counted, part, min(token, part.end - 1), logit);
    bool enters = token < part.end && is_near(score, floor) && !(random > tile::exp2(fmaf(score, slope, offset)));
    uint32_t some = tile::lanes_where(enters), at = list.count + __popc(some & tile::lanes_before(c.lane));
    if (enters) {
      list.tokens[at] = token;
      list.scores[at] = __float_as_uint(score);
    }
    list.count += __popc(some);
    if (list.count > front_list::ENOUGH || !more) {
      __syncwarp();
      enter_front(c, p, list, highest, q);
      list.count = 0;
      __syncwarp();
    }
    token = next;
    logit = then;
  }
}

// What this SM's tokens of the line bring into the draw.
__device__ inline void make_front(const drawer &c, const line_tokens &t, uint32_t late, score_store &q) {
  const line_parameters &p = parameters_of(c);
  const bool one_draw = tile::uniform(mk_sampling_one_draw(p.words)), cuts = tile::uniform(mk_sampling_cuts(p.words)),
             draws = tile::uniform((p.words[MK_SAMPLING_FLAGS] & MK_SAMPLE_DRAWS) != 0);
  const line_wish wish = cuts || !draws ? FIRST_RANK : one_draw ? BEST_DRAW : NEAR_TOKENS;
  best_token best = no_token(t.first + c.lane);
  line_tokens part = t;
  do {
    part.end = wish == NEAR_TOKENS ? min(part.first + near_tokens::MOST, t.end) : t.end;
    score_all(c, p, part, late, wish, best);
    take_first_rank(best, q);
    if (q.peak == MK_PEAK_NAN) {
      return;
    }
    if (wish == NEAR_TOKENS) {
      if (part.end != t.end) {
        wait_last_logits(c);
      }
      find_front(c, p, part, near_tokens(c, part, best.near), q);
      best.near = 0;
    }
    part.first = part.end;
  } while (part.first < t.end);
  if (wish == BEST_DRAW) {
    q.key = best_draw(c, p, t, best);
  } else if (wish == FIRST_RANK) {
    // The first rank of all SMs is kept for sure, so with top-k or top-p the winner's draw is not below its draw.
    float highest = mk_unordered(q.peak);
    q.key = c.lane != 0 ? 0
            : cuts      ? mk_sample_draw(p.words, p.key, highest, q.peak_index)
                        : mk_rank_key(highest, q.peak_index);
  }
}

}  // namespace mk
