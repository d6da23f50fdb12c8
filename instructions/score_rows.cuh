// SCORE of several rows per step on the device; score.c. Consumers only: warp l scores the tokens of line l, and keeps
// that line to itself until the end of DRAW. Waits: this SM's storers, for the last logits (SCORED). Publishes the
// front of each line. Scores are published only by a DRAW that looks at those of all SMs.
//
// What decides how a line draws the controller has put among the words of the roles by then (prepare_draws), while the
// HEAD is under way. Most tokens are scored while the storers still have the last row tiles of the HEAD. From SCORED
// on, a line's search lies in the shared memory that otherwise holds results of linear instructions: from then on the
// storers have none in hand, and no consumer puts one down before all have met in NEXT.
#pragma once
#include "instructions/search_lanes.cuh"
#include "vm/gpu/rows.cuh"

namespace mk {

enum { MOST_FRONTS = 160 };  // of a line

// A line's search. It belongs to the line's warp alone, but for what sum_owned_lines in search_rows.cuh says.
struct line_search {
  uint64_t pivots[MK_SIFT_SEGMENTS];
  // In a search, by segment: the weights of its tokens, in words, and how many tokens it has. Where nothing is
  // searched: the best draws of the fronts.
  uint32_t table[MOST_FRONTS];
  uint64_t winner;  // the best draw so far that is kept for sure
  float highest;    // score
  float bound;      // what the winner's draw reaches at least, as a number; -INFINITY: nobody knows
  uint32_t flags;   // MK_FRONT_..., of all SMs' fronts
  uint8_t rounds;   // SIFTs so far
  uint8_t state;    // mk_sift_state
};

__device__ inline uint32_t state_of(const line_search &l) { return tile::uniform(static_cast<uint32_t>(l.state)); }

struct search_area {
  line_search lines[MK_MAX_ROWS];
  warp_tallies of_warps;
};
static_assert(sizeof(search_area) <= ROWS_RESIDUALS_AT - ROWS_RESULT_AT, "searches lie where results lie else");

__device__ inline search_area &area() { return *tile::view<search_area>(shared_memory + ROWS_RESULT_AT); }
__device__ inline line_parameters &parameters_of(const consumer &c) {
  return const_cast<line_parameters &>(rows_sampling()->lines[c.warp]);
}

__device__ inline bool line_chooses(const consumer &c, uint32_t line) {
  return (rows_of(c.d).chooses >> line & 1) != 0;
}

// Tokens [first, end) of a line, dealt to lanes; and where the line's or slot's words of each token begin.
struct line_tokens {
  uint32_t first, end, by_line, by_slot;
};
__device__ inline line_tokens own_tokens(const consumer &c) {
  volatile rows_sampling_words *shared = rows_sampling();
  uint32_t vocab = shared->vocab;
  return {tile::uniform(shared->first_token), tile::uniform(shared->end_token), c.warp * vocab,
          rows_of(c.d).rows[c.warp].slot * vocab};
}

// Lines whose tokens are this SM's: a bit for each.
__device__ inline uint32_t lines_of_own_tokens(const consumer &c) {
  const volatile rows_state &state = rows_of(c.d);
  uint32_t line = tile::place_in_group<MK_MAX_ROWS>(c.lane), token = state.rows[line].token;
  bool here =
      (state.active >> line & 1) != 0 && token >= rows_sampling()->first_token && token < rows_sampling()->end_token;
  return tile::lanes_where(here) & 0xffffu;
}

__device__ inline uint32_t counted_once_more(uint32_t count, uint32_t flags) {
  return (flags & MK_ROW_PROMPT) != 0 ? count | MK_COUNT_PROMPT : count + 1;
}

// The score of one of this SM's tokens. Counts in memory are those before the step, and what the step's lines add to
// them is added here: lines of a slot come in the order of their positions, and each counts the tokens up to its own.
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

// The logits of this lane's next tokens, on their way before they are wanted.
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
// draws, the best one first, and after them one that is no entry.
__device__ inline void publish_front(const consumer &c, const mk_instruction_word &in, bool one_draw,
                                     const score_store &q) {
  uint64_t key = q.key;
  if (one_draw) {
    uint64_t best = highest_key(key);
    key = key == best ? best : 0;
  }
  uint32_t entries = tile::lanes_where(key != 0), before = tile::lanes_before(c.lane), count = __popc(entries);
  uint32_t at = key != 0 ? 0 : count + __popc(~entries & before);
#pragma unroll 1
  for (uint32_t left = entries; count > 1 && left != 0; left &= left - 1) {
    uint64_t other = tile::from_lane(key, __ffs(static_cast<int>(left)) - 1);
    at += key != 0 && other > key ? 1 : 0;
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

// Done by the controller before it hands SCORE out: writes what all warps have to know of the step's draw, and what
// each has to know of its line while tokens are scored.
__device__ inline void prepare_draws(const device &d, const mk_instruction_word &in) {
  volatile shared_words *words = d.words();
  volatile rows_sampling_words *shared = rows_sampling();
  const volatile rows_state &state = rows_of(d);
  const mk_operand &scores = in.parts[MK_PART_SCORE_scores];
  uint32_t lane = tile::lane(), line = tile::place_in_group<MK_MAX_ROWS>(lane), slot = state.rows[line].slot,
           token = state.rows[line].token;
  uint32_t vocab = buffer_of(in, MK_PART_SCORE_scores).cols, first = scores.col * 16;
  uint32_t end = min(first + scores.cols * 16u, vocab);
  line_parameters &p = const_cast<line_parameters &>(shared->lines[line]);
  const uint32_t *given = start_of<const uint32_t>(in, whole_at(MK_WHOLE_SCORE_sampling)) + slot * MK_SAMPLING_WORDS;
  if (lane < MK_MAX_ROWS) {
#pragma unroll
    for (uint32_t i = 0; i <= MK_SAMPLING_FREQUENCY; i++) {
      p.words[i] = given[i];
    }
    p.key = mk_draw_key(mk_sampling_seed(p.words), state.rows[line].position + 1);
  }
  __syncwarp();
  bool here = (state.active >> line & 1) != 0 && token >= first && token < end;
  uint32_t counted = tile::lanes_where(here) & tile::lanes_sharing(slot);
  uint32_t searching = tile::lanes_where((state.chooses >> line & 1) != 0 && mk_sampling_cuts(p.words));
  if (lane < MK_MAX_ROWS) {
    p.counted = counted & ((2u << line) - 1);
  }
  if (lane == 0) {
    words->logits = start_of<const float>(in, MK_PART_SCORE_logits);
    words->bias = start_of<const float>(in, MK_PART_SCORE_bias);
    words->counts = start_of<const uint32_t>(in, MK_PART_SCORE_counts);
    shared->vocab = vocab;
    shared->first_token = first;
    shared->end_token = end;
    shared->searching = searching & 0xffffu;
  }
  __syncwarp();
}

// Whether some line of this step has to search.
__device__ inline bool lines_search(const device &) { return tile::uniform(rows_sampling()->searching != 0); }

// Of this lane's tokens so far: the best draw, where that is all that counts, and the first rank, whose score is kept
// as mk_peak has it.
struct best_token {
  uint64_t key;
  uint32_t peak, token;
};
// A draw as a number, by the upper half of its key; -INFINITY: none.
__device__ inline float value_of_draw(uint32_t high) {
  uint64_t bits = static_cast<uint64_t>((high >> 31) != 0 ? high & 0x7fffffffu : ~high) << 32;
  return high == 0 ? -INFINITY : static_cast<float>(__longlong_as_double(static_cast<long long>(bits)));
}
// The x that the token's noise is made from, computed roughly by a few instructions: the noise is at most -log(x).
__device__ inline float random_of(const line_parameters &p, uint32_t token) {
  uint32_t random = static_cast<uint32_t>(mk_draw_mix(p.key + (token + UINT64_C(1)) * MK_DRAW_STEP) >> 32);
  return static_cast<float>(random) * 0x1p-32f;
}
// Whether the token's draw may reach `value`, by what is quickly known, with a margin for the rounding of these few
// instructions.
__device__ inline bool may_reach(const line_parameters &p, float score, uint32_t token, float value) {
  float scaled = score * mk_sampling_float(p.words, MK_SAMPLING_INVERSE_TEMPERATURE);
  float room = 0.02f + 1e-6f * (fabsf(scaled) + (value == -INFINITY ? 0.0f : fabsf(value)));
  return !(random_of(p, token) > tile::exp2((scaled - value + room) * 1.44269504f));
}
// The best draw of all lanes so far, as a number.
__device__ inline float best_draw(const best_token &best) {
  return value_of_draw(tile::largest_of_lanes(static_cast<uint32_t>(best.key >> 32)));
}

// Takes the next tokens of all lanes, TOGETHER of each lane: work on one of them does not wait for the others. `draws`:
// the best draw is all that counts; otherwise the first rank is.
enum { TOGETHER = 4 };
__device__ inline void score_tokens(const consumer &c, const line_parameters &p, const line_tokens &t, uint32_t token,
                                    bool draws, const float (&logit)[TOGETHER], best_token &best) {
  float score[TOGETHER];
  uint32_t wins = (1u << TOGETHER) - 1;
#pragma unroll
  for (uint32_t i = 0; i < TOGETHER; i++) {
    uint32_t at = token + i * 32;
    score[i] = score_of_token(c, p.words, p.counted, t, min(at, t.end - 1), logit[i]);
    uint32_t peak = at < t.end ? mk_peak(score[i]) : 0;
    if (peak > best.peak) {
      best.peak = peak;
      best.token = at;
    }
  }
  if (!draws) {
    return;
  }
  float value = best_draw(best);
  if (value != -INFINITY) {
    wins = 0;
#pragma unroll
    for (uint32_t i = 0; i < TOGETHER; i++) {
      bool may = may_reach(p, score[i], token + i * 32, value) && token + i * 32 < t.end;
      wins |= tile::any_lane(may) ? 1u << i : 0;
    }
  }
#pragma unroll 1
  for (uint32_t left = wins; left != 0; left &= left - 1) {
    uint32_t i = __ffs(static_cast<int>(left)) - 1, at = token + i * 32;
    float own = i == 0 ? score[0] : i == 1 ? score[1] : i == 2 ? score[2] : score[3];
    if (left != wins && !tile::any_lane(may_reach(p, own, at, best_draw(best)) && at < t.end)) {
      continue;
    }
    uint64_t key = mk_sample_draw(p.words, p.key, own, at);
    best.key = at < t.end && !mk_is_nan(own) ? max(best.key, key) : best.key;
  }
}

// Scores all tokens of the line; those from `late` on only once the storers have said that the last logits are there.
__device__ inline void score_all(const consumer &c, const line_parameters &p, const line_tokens &t, uint32_t late,
                                 bool draws, best_token &best) {
  enum { STEP = TOGETHER * 32 };
  const float *from = c.d.words()->logits + t.by_line;
  float next[TOGETHER] = {}, logit[TOGETHER];
#pragma unroll 1
  for (uint32_t base = t.first; base < t.end + STEP; base += STEP) {
    if (tile::uniform(base + STEP > late)) {
      wait_phase(c.d, SCORED, c.d.epoch % 2, MK_ACTIVITY_RESULT_FULL, 0);
      late = UINT32_MAX;
    }
#pragma unroll
    for (uint32_t i = 0; i < TOGETHER; i++) {
      uint32_t token = base + i * 32 + c.lane;
      logit[i] = next[i];
      next[i] = token < t.end ? __ldcg(from + token) : 0.0f;
    }
    if (tile::uniform(base != t.first)) {
      score_tokens(c, p, t, base - STEP + c.lane, draws, logit, best);
    }
  }
}

// The first rank among all lanes' tokens. NaN is above all, the first one of several.
__device__ inline void take_first_rank(const best_token &best, score_store &q) {
  q.peak = tile::largest_of_lanes(best.peak);
  q.peak_index = tile::smallest_of_lanes(best.peak == q.peak ? best.token : MK_SAMPLING_INDEX_MASK);
}

// Tokens that may enter a front, collected as they come until there are enough to draw them side by side.
struct front_list {
  enum { MOST = MOST_FRONTS / 2, ENOUGH = MOST - 32 };
  uint32_t *tokens, *scores;
  uint32_t count;
};

// How scores go from lane to lane here: as the words that they lie in memory as, or as numbers. That is the same, but
// the compiler makes other code of it, and each kernel has that with which it was measured.
constexpr bool SCORES_GO_AS_WORDS = MK_GPU_RECORDS && MK_GPU_FAMILIES;

// Draws the tokens of the list. A token enters the front if min-p does not drop it when it is compared with `highest`,
// and if it is the best for its score among the list's 32.
__device__ inline void enter_front(const consumer &c, const line_parameters &p, const front_list &list, float highest,
                                   score_store &q) {
#pragma unroll 1
  for (uint32_t first = 0; first < list.count; first += 32) {
    uint32_t at = min(first + c.lane, list.count - 1), together = min(list.count - first, 32u);
    uint32_t token = list.tokens[at], bits = list.scores[at];
    float score = __uint_as_float(bits);
    uint64_t draw = mk_sample_draw(p.words, p.key, score, token);
    bool enters = c.lane < together && !mk_sample_drops(p.words, mk_sample_distance(p.words, score, highest));
#pragma unroll 4
    for (uint32_t from = 0; from < together; from++) {
      uint64_t other = tile::from_lane(draw, from);
      float its = SCORES_GO_AS_WORDS ? __uint_as_float(tile::from_lane(bits, from)) : tile::from_lane(score, from);
      enters = enters && !(other > draw && its >= score);
    }
    extend_front(c.lane, score, enters ? draw : 0, q);
  }
}

// With min-p, once the first rank of this SM's tokens is known: finds the front, of the tokens that min-p does not drop
// when compared with that rank. A token whose draw is below the first rank's has no place in the front. A few
// instructions for each token tell which ones come into question, as may_reach and mk_sample_drops would, with a margin
// for their rounding.
__device__ inline void find_front(const consumer &c, const line_parameters &p, const line_tokens &t, score_store &q) {
  uint32_t *words = area().lines[c.warp].table;
  front_list list = {words, words + front_list::MOST, 0};
  float highest = mk_unordered(q.peak), inverse = mk_sampling_float(p.words, MK_SAMPLING_INVERSE_TEMPERATURE);
  uint64_t key = mk_sample_draw(p.words, p.key, highest, q.peak_index);
  float value = value_of_draw(static_cast<uint32_t>(key >> 32));
  float range = mk_sampling_float(p.words, MK_SAMPLING_LOG_MIN_P) *
                mk_sampling_float(p.words, MK_SAMPLING_TEMPERATURE);  // of scores, below the highest
  float size = fabsf(highest) + fabsf(range), floor = highest + range - 1e-5f * size;
  float room = 0.02f + 1e-6f * (2 * size * inverse + fabsf(value));
  float slope = inverse * 1.44269504f, offset = (room - value) * 1.44269504f;
  extend_front(c.lane, highest, c.lane == 0 ? key : 0, q);
  logits_ahead ahead(c, t);
#pragma unroll 1
  for (uint32_t base = t.first; base < t.end; base += 32) {
    uint32_t token = base + c.lane;
    float score = score_of_token(c, p.words, p.counted, t, min(token, t.end - 1), ahead.take(t, token));
    float most = tile::exp2(fmaf(score, slope, offset));
    bool enters = token < t.end && !(score < floor) && !(random_of(p, token) > most) && token != q.peak_index;
    uint32_t some = tile::lanes_where(enters), at = list.count + __popc(some & tile::lanes_before(c.lane));
    if (enters) {
      list.tokens[at] = token;
      list.scores[at] = __float_as_uint(score);
    }
    list.count += __popc(some);
    if (list.count > front_list::ENOUGH || base + 32 >= t.end) {
      __syncwarp();
      enter_front(c, p, list, highest, q);
      list.count = 0;
      __syncwarp();
    }
  }
}

// What SIFT and DRAW begin with: the state of the line's search after SCORE.
__device__ inline void begin_search(const consumer &c) {
  line_search &l = area().lines[c.warp];
  if (c.lane == 0) {
    l.state = MK_SIFT_IDLE;
    l.winner = 0;
    l.flags = 0;
    l.bound = -INFINITY;
    l.rounds = 0;
  }
}

// Row tiles at the end of a HEAD that its storers may still have when a warp has put down its sums of the last one: it
// has waited until they had taken those of two and a half tiles before, and then they have stored all tiles before that
// one.
enum { LATE_TILES = 4 };

__device__ inline void consume_SCORE(rows_consumer &here, const mk_instruction_word &in) {
  rows_consumer c = here;
  c.lane = tile::anew(c.lane);
  c.warp = tile::anew(c.warp);
  look_up_epoch(c);
  const line_parameters &p = parameters_of(c);
  line_tokens t = own_tokens(c);
  uint32_t tiles = (t.end - t.first) / 16, active = tile::uniform(rows_of(c.d).active);
  bool early = tile::uniform(tiles > LATE_TILES && rows_of(c.d).chooses != 0);
  bool releases = (active & ((1u << c.warp) - 1)) == 0;
  if (early && releases) {
    tile::fence_release();  // before one line's front: all that this SM did in the step before its HEAD's last tiles
  }
  bool chooses = tile::uniform(line_chooses(c, c.warp)), one_draw = tile::uniform(mk_sampling_one_draw(p.words));
  bool cuts = tile::uniform(mk_sampling_cuts(p.words));
  bool draws = tile::uniform((p.words[MK_SAMPLING_FLAGS] & MK_SAMPLE_DRAWS) != 0), lists = !one_draw && !cuts;
  score_store q = {};
  best_token best = {};
  if (tile::uniform(chooses && t.first < t.end)) {
    score_all(c, p, t, early ? t.first + (tiles - LATE_TILES) * 16 : t.first, draws && one_draw && !cuts, best);
    take_first_rank(best, q);
    if (tile::uniform(lists && q.peak != MK_PEAK_NAN)) {
      find_front(c, p, t, q);
    }
  }
  wait_phase(c.d, SCORED, c.d.epoch % 2, MK_ACTIVITY_RESULT_FULL, 0);
  begin_search(c);
  if (!early) {
    consumers_meet(c);
    if (releases) {
      tile::fence_release();
    }
  }
  if (q.peak != 0 && q.peak != MK_PEAK_NAN && (cuts || (one_draw && !draws))) {
    // The first rank of all SMs is kept for sure, so with top-k or top-p the winner's draw is not below its draw.
    float highest = mk_unordered(q.peak);
    q.key = c.lane != 0 ? 0
            : cuts      ? mk_sample_draw(p.words, p.key, highest, q.peak_index)
                        : mk_rank_key(highest, q.peak_index);
  } else if (one_draw) {
    q.key = best.key;
  }
  if ((active >> c.warp & 1) != 0) {
    publish_front(c, in, one_draw && !cuts, q);
  }
}

}  // namespace mk
