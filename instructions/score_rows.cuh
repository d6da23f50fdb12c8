// SCORE of several rows per step on the device; score.c. Consumers only: warp l scores the tokens of line l, and has the line to itself to the end
// of DRAW. Waits: this SM's storers, for the logits (SCORED). Publishes the front of each line. Scores are published only by a DRAW that
// looks at all SMs'.
//
// What is known of a line lies in shared memory where results of linear instructions lie else: from SCORED on the storers have none in hand,
// and no consumer puts one down before all have met in NEXT.
#pragma once
#include "instructions/search_lanes.cuh"
#include "vm/gpu/rows.cuh"

namespace mk {

// A line's search, its warp's alone but for what sum_owned_lines in search_rows.cuh says.
struct line_search {
  uint64_t pivots[MK_SIFT_SEGMENTS];
  mk_tally sum;
  uint32_t words[MK_SAMPLING_WORDS];  // the parameters of its slot
  uint64_t key;                       // of the noise
  uint64_t winner;
  float highest;     // score
  float bound;       // what the winner's draw reaches at least, as a number; -INFINITY: nobody knows
  uint32_t flags;    // MK_FRONT_..., of all SMs' fronts
  uint16_t counted;  // a bit for each line whose token counts for it and is one of this SM's
  uint8_t rounds;    // SIFTs so far
  uint8_t state;     // mk_sift_state
};

__device__ inline uint32_t state_of(const line_search &l) { return tile::uniform(static_cast<uint32_t>(l.state)); }

struct warp_tallies {  // by segment, of what each warp has added up
  uint64_t mass[MK_GPU_CONSUMER_WARPS][MK_SIFT_SEGMENTS], best[MK_GPU_CONSUMER_WARPS][MK_SIFT_SEGMENTS];
  uint32_t count[MK_GPU_CONSUMER_WARPS][MK_SIFT_SEGMENTS];
};

struct search_area {
  line_search lines[MK_MAX_ROWS];
  warp_tallies of_warps;
};
static_assert(sizeof(search_area) <= ROWS_RESIDUALS_AT - ROWS_RESULT_AT, "searches lie where results lie else");

__device__ inline search_area &area() { return *reinterpret_cast<search_area *>(shared_memory + ROWS_RESULT_AT); }

__device__ inline bool line_chooses(const consumer &c, uint32_t line) {
  return (rows_of(c.d).chooses >> line & 1) != 0;
}

// Tokens [first, end) of a line, by lane; and where its words of each token begin, by line or by slot.
struct line_tokens {
  uint32_t first, end, by_line, by_slot;
};
__device__ inline line_tokens own_tokens(const consumer &c) {
  volatile rows_words *shared = rows_shared();
  uint32_t vocab = shared->vocab;
  return {shared->first_token, shared->end_token, c.warp * vocab, rows_of(c.d).rows[c.warp].slot * vocab};
}

// Lines whose tokens are this SM's: a bit for each.
__device__ inline uint32_t lines_of_own_tokens(const consumer &c) {
  const volatile rows_state &state = rows_of(c.d);
  uint32_t line = c.lane % MK_MAX_ROWS, token = state.rows[line].token;
  bool here =
      (state.active >> line & 1) != 0 && token >= rows_shared()->first_token && token < rows_shared()->end_token;
  return __ballot_sync(0xffffffffu, here) & 0xffffu;
}

__device__ inline uint32_t counted_once_more(uint32_t count, uint32_t flags) {
  return (flags & MK_ROW_PROMPT) != 0 ? count | MK_COUNT_PROMPT : count + 1;
}

// The score of one of this SM's tokens. Counts in memory are those before the step, and what its lines add comes here: lines of a
// slot come in the order of their positions, and each has the tokens up to its own.
__device__ inline float score_of_token(const consumer &c, const uint32_t *words, uint32_t counted, const line_tokens &t,
                                       uint32_t token, float logit) {
  uint32_t flags = words[MK_SAMPLING_FLAGS], count = 0;
  if ((flags & (MK_SAMPLE_PENALTIES | MK_SAMPLE_BIAS)) == 0) {
    return mk_plus(logit, 0.0f);
  }
  if ((flags & MK_SAMPLE_PENALTIES) != 0) {
    const volatile rows_state &state = rows_of(c.d);
    count = __ldcg(c.d.words()->counts + t.by_slot + token);
#pragma unroll 1
    for (uint32_t left = counted; left != 0; left &= left - 1) {
      uint32_t line = __ffs(static_cast<int>(left)) - 1;
      count = state.rows[line].token == token ? counted_once_more(count, state.rows[line].flags) : count;
    }
  }
  float bias = (flags & MK_SAMPLE_BIAS) != 0 ? __ldg(c.d.words()->bias + t.by_slot + token) : 0.0f;
  return mk_sample_score(words, logit, count, bias);
}

// Logits of this lane's tokens, on their way before they are wanted.
struct logits_ahead {
  enum { COUNT = 4 };
  float logit[COUNT];
  const float *from;

  __device__ logits_ahead(const consumer &c, const line_tokens &t) : from(c.d.words()->logits + t.by_line) {
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) {
      logit[i] = fetch(t, t.first + i * 32 + c.lane);
    }
  }
  __device__ float fetch(const line_tokens &t, uint32_t token) const {
    return token < t.end ? __ldcg(from + token) : 0.0f;
  }
  // That of `token`, for which another one is sent for.
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

// Behind the last token. The words that are read are written: the entries by their score, the highest first, and one behind them that is none.
// The index is that of a NaN alone, for which it is looked at.
__device__ inline void publish_front(const consumer &c, const mk_instruction_word &in, const line_search &l,
                                     const score_store &q) {
  uint64_t key = q.key;
  if (mk_sampling_one_draw(l.words)) {
    uint64_t best = highest_key(key);
    key = key == best ? best : 0;
  }
  uint32_t entries = __ballot_sync(0xffffffffu, key != 0), before = (1u << c.lane) - 1, count = __popc(entries);
  uint32_t at = key != 0 ? 0 : count + __popc(~entries & before);
#pragma unroll 1
  for (uint32_t left = entries; count > 1 && left != 0; left &= left - 1) {  // no two scores are equal
    float other = __shfl_sync(0xffffffffu, q.score, __ffs(static_cast<int>(left)) - 1);
    at += key != 0 && other > q.score ? 1 : 0;
  }
  uint64_t *front = start_of<uint64_t>(in, MK_PART_SCORE_front) +
                    (in.parts[MK_PART_SCORE_front].row * c.d.params.rows + c.warp) * MK_FRONT_WORDS;
  uint32_t generation = c.d.generation();
  uint32_t about = q.peak_index | count << MK_FRONT_COUNT_AT |
                   ((q.flags & SCORE_OVERFLOWS) != 0 ? MK_FRONT_OVERFLOW : 0) |
                   (rows_shared()->stop != 0 ? MK_FRONT_STOP : 0);
  if (c.d.params.skip_signal_uid != 0 && in.uid == c.d.params.skip_signal_uid) {
    return;
  }
  if (at <= count) {
    tile::store_stamped_pair(front + MK_FRONT_KEYS + 2 * at, static_cast<uint32_t>(key),
                             static_cast<uint32_t>(key >> 32), generation);
    tile::store_stamped(front + MK_FRONT_SCORES + at, __float_as_uint(q.score), generation);
  }
  if (c.lane == 0) {
    tile::store_stamped_pair(front, q.peak, about, generation);
  }
}

// What all warps know of the step's draw, of which every warp writes the same, and what each has to know of its line while tokens are scored.
__device__ inline void begin_score(const consumer &c, const mk_instruction_word &in) {
  volatile shared_words *words = c.d.words();
  volatile rows_words *shared = rows_shared();
  const volatile rows_state &state = rows_of(c.d);
  const mk_operand &scores = in.parts[MK_PART_SCORE_scores];
  uint32_t vocab = buffer_of(in, MK_PART_SCORE_scores).cols, first = scores.col * 16;
  const uint32_t *given =
      start_of<const uint32_t>(in, whole_at(MK_WHOLE_SCORE_sampling)) + state.rows[c.warp].slot * MK_SAMPLING_WORDS;
  if (c.lane == 0) {
    words->logits = start_of<const float>(in, MK_PART_SCORE_logits);
    words->bias = start_of<const float>(in, MK_PART_SCORE_bias);
    words->counts = start_of<const uint32_t>(in, MK_PART_SCORE_counts);
    shared->vocab = vocab;
    shared->first_token = first;
    shared->end_token = min(first + scores.cols * 16u, vocab);
    shared->noise[c.warp] = mk_draw_key(mk_sampling_seed(given), state.rows[c.warp].position + 1);
  }
  __syncwarp();
  bool same_slot = state.rows[c.lane % MK_MAX_ROWS].slot == state.rows[c.warp].slot;
  uint32_t counted = lines_of_own_tokens(c) & __ballot_sync(0xffffffffu, same_slot) & ((2u << c.warp) - 1);
  if (c.lane == 0) {
    shared->counted[c.warp] = static_cast<uint16_t>(counted);
  }
  __syncwarp();
}

// The parameters of this warp's line, which are the same as long as the launch.
__device__ inline const uint32_t *given_words(const consumer &c, const mk_instruction_word &in) {
  return start_of<const uint32_t>(in, whole_at(MK_WHOLE_SCORE_sampling)) +
         rows_of(c.d).rows[c.warp].slot * MK_SAMPLING_WORDS;
}

// Of this lane's tokens so far: the best draw, where that is all that counts, and the highest score, as mk_peak has it.
struct best_token {
  uint64_t key;
  uint32_t peak;
};
// A draw as a number, from the upper half of its key; -INFINITY: none.
__device__ inline float value_of_draw(uint32_t high) {
  uint64_t bits = static_cast<uint64_t>((high >> 31) != 0 ? high & 0x7fffffffu : ~high) << 32;
  return high == 0 ? -INFINITY : static_cast<float>(__longlong_as_double(static_cast<long long>(bits)));
}
// Whether the token's draw may reach `value`, by what is quickly known: its noise is at most -log(x), of the x that it
// is made of. With room for what these few instructions round.
__device__ inline bool may_reach(const line_search &l, float score, uint32_t token, float value) {
  float scaled = score * mk_sampling_float(l.words, MK_SAMPLING_INVERSE_TEMPERATURE);
  float room = 0.02f + 1e-6f * (fabsf(scaled) + (value == -INFINITY ? 0.0f : fabsf(value)));
  uint32_t random = static_cast<uint32_t>(mk_draw_mix(l.key + (token + UINT64_C(1)) * MK_DRAW_STEP) >> 32);
  float x = static_cast<float>(random) * 0x1p-32f;
  return !(x > tile::exp2((scaled - value + room) * 1.44269504f));
}
// The best draw of all lanes so far, as a number.
__device__ inline float best_draw(const best_token &best) {
  return value_of_draw(__reduce_max_sync(0xffffffffu, static_cast<uint32_t>(best.key >> 32)));
}

// What is kept of a line's tokens: the first rank, or the best draw.
enum scoring : uint32_t { SCORING_RANKS, SCORING_DRAWS };

// The next tokens of all lanes, TOGETHER of each: what is done to one of them does not wait for the others.
enum { TOGETHER = 4 };
__device__ inline void score_tokens(const consumer &c, const line_search &l, const line_tokens &t, uint32_t token,
                                    uint32_t scoring, const float (&logit)[TOGETHER], best_token &best) {
  float score[TOGETHER];
  uint32_t peak[TOGETHER], wins = (1u << TOGETHER) - 1;
#pragma unroll
  for (uint32_t i = 0; i < TOGETHER; i++) {
    uint32_t at = token + i * 32;
    score[i] = score_of_token(c, l.words, l.counted, t, min(at, t.end - 1), logit[i]);
    peak[i] = at < t.end ? mk_peak(score[i]) : 0;
    best.peak = max(best.peak, peak[i]);
  }
  float value = scoring == SCORING_DRAWS ? best_draw(best) : -INFINITY;
  if (value != -INFINITY) {
    wins = 0;
#pragma unroll
    for (uint32_t i = 0; i < TOGETHER; i++) {
      bool may = may_reach(l, score[i], token + i * 32, value) && peak[i] != 0;
      wins |= __any_sync(0xffffffffu, may) ? 1u << i : 0;
    }
  }
#pragma unroll 1
  for (uint32_t left = wins; left != 0; left &= left - 1) {
    uint32_t i = __ffs(static_cast<int>(left)) - 1, at = token + i * 32;
    float own = i == 0 ? score[0] : i == 1 ? score[1] : i == 2 ? score[2] : score[3];
    if (scoring == SCORING_DRAWS && left != wins &&
        !__any_sync(0xffffffffu, may_reach(l, own, at, best_draw(best)) && at < t.end)) {
      continue;
    }
    uint64_t key = scoring == SCORING_DRAWS ? mk_sample_draw(l.words, l.key, own, at) : mk_rank_key(own, at);
    best.key = at < t.end && !mk_is_nan(own) ? max(best.key, key) : best.key;
  }
}

// With min-p, once the first rank of this SM's tokens is known: the front of what min-p does not drop beside that. What
// does not reach the first rank's draw has no place in it.
__device__ inline void find_front(const consumer &c, const line_search &l, uint64_t rank, score_store &q) {
  uint64_t first = highest_key(rank);
  uint32_t highest = __float_as_uint(mk_rank_value(first)), leader = mk_rank_token(first);
  if (first == 0) {
    return;
  }
  uint64_t draw = mk_sample_draw(l.words, l.key, __uint_as_float(highest), leader);
  float least = value_of_draw(static_cast<uint32_t>(draw >> 32));
  extend_front(c.lane, __uint_as_float(highest), c.lane == 0 ? draw : 0, q);
  line_tokens t = own_tokens(c);
  logits_ahead ahead(c, t);
#pragma unroll 1
  for (uint32_t base = t.first; base < t.end; base += 32) {
    uint32_t token = base + c.lane;
    float score = score_of_token(c, l.words, l.counted, t, min(token, t.end - 1), ahead.take(t, token));
    bool enters = token < t.end && token != leader && !mk_is_nan(score) &&
                  !mk_sample_drops(l.words, mk_sample_distance(l.words, score, __uint_as_float(highest))) &&
                  may_reach(l, score, token, least);
    if (__any_sync(0xffffffffu, enters)) {
      extend_front(c.lane, score, enters ? mk_sample_draw(l.words, l.key, score, token) : 0, q);
    }
  }
}

// With top-k or top-p: the draw of the first rank of this SM's tokens, in one lane. Of all SMs' the first rank is kept
// for sure, so that the winner's draw is not below its.
__device__ inline uint64_t draw_of_first_rank(const consumer &c, const line_search &l, uint64_t rank) {
  uint64_t first = highest_key(rank);
  return first == rank && rank != 0 ? mk_sample_draw(l.words, l.key, mk_rank_value(first), mk_rank_token(first)) : 0;
}

// The lowest token whose score is not a number; there is one.
__device__ inline uint32_t first_nan(const consumer &c, const line_search &l) {
  line_tokens t = own_tokens(c);
  uint32_t first = MK_SAMPLING_INDEX_MASK;
#pragma unroll 1
  for (uint32_t base = t.first; base < t.end; base += 32) {
    uint32_t token = min(base + c.lane, t.end - 1);
    float score = score_of_token(c, l.words, l.counted, t, token, __ldcg(c.d.words()->logits + t.by_line + token));
    first = mk_is_nan(score) ? min(first, token) : first;
  }
  return __reduce_min_sync(0xffffffffu, first);
}

__device__ inline void begin_line(const consumer &c, const uint32_t *given) {
  line_search &l = area().lines[c.warp];
  if (c.lane < MK_SAMPLING_WORDS) {
    l.words[c.lane] = given[c.lane];
  }
  if (c.lane == 0) {
    l.key = rows_shared()->noise[c.warp];
    l.state = MK_SIFT_IDLE;
    l.winner = 0;
    l.flags = 0;
    l.bound = -INFINITY;
    l.counted = rows_shared()->counted[c.warp];
    l.rounds = 0;
  }
}

__device__ inline void consume_SCORE(rows_consumer &here, const mk_instruction_word &in) {
  rows_consumer c = here;
  c.lane = tile::anew(c.lane);
  c.warp = tile::anew(c.warp);
  look_up_epoch(c);
  line_search &l = area().lines[c.warp];
  begin_score(c, in);
  wait_phase(c.d, SCORED, c.d.epoch % 2, MK_ACTIVITY_RESULT_FULL, 0);
  begin_line(c, given_words(c, in));
  consumers_meet(c);
  uint32_t active = tile::uniform(rows_of(c.d).active);
  score_store q = {};
  if (tile::uniform(line_chooses(c, c.warp))) {
    best_token best = {};
    line_tokens t = own_tokens(c);
    const float *from = c.d.words()->logits + t.by_line;
    bool draws = tile::uniform((l.words[MK_SAMPLING_FLAGS] & MK_SAMPLE_DRAWS) != 0);
    bool cuts = tile::uniform(mk_sampling_cuts(l.words)), one_draw = tile::uniform(mk_sampling_one_draw(l.words));
    uint32_t scoring = draws && one_draw && !cuts ? SCORING_DRAWS : SCORING_RANKS;
    float next[TOGETHER], logit[TOGETHER];
    auto send = [&](uint32_t token) {
#pragma unroll
      for (uint32_t i = 0; i < TOGETHER; i++) {
        next[i] = token + i * 32 < t.end ? __ldcg(from + token + i * 32) : 0.0f;
      }
    };
    send(t.first + c.lane);
#pragma unroll 1
    for (uint32_t base = t.first; base < t.end; base += TOGETHER * 32) {
#pragma unroll
      for (uint32_t i = 0; i < TOGETHER; i++) {
        logit[i] = next[i];
      }
      send(base + TOGETHER * 32 + c.lane);
      score_tokens(c, l, t, base + c.lane, scoring, logit, best);
    }
    q.key = one_draw && !cuts ? best.key : 0;
    q.peak = __reduce_max_sync(0xffffffffu, best.peak);
    if (q.peak == MK_PEAK_NAN) {
      q.peak_index = first_nan(c, l);
    }
    if (cuts) {
      q.key = draw_of_first_rank(c, l, best.key);
    } else if (!one_draw) {
      find_front(c, l, best.key, q);
    }
  }
  if ((active & ((1u << c.warp) - 1)) == 0) {
    tile::fence_release();  // behind one line's front: all that this SM did in the step
  }
  if ((active >> c.warp & 1) != 0) {
    publish_front(c, in, l, q);
  }
}

}  // namespace mk
