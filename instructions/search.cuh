// SIFT and DRAW on the device: one body for both; search.c, sift.c, draw.c, docs/SAMPLING.md.
// Consumers only. Waits, by stamps: candidates or peaks of all SMs, the last round of all SMs, scores; none of them where the parameters do
// not ask for it. Both always publish. Tables lie in the activation area: the meeting at the end of SCORE and the one in NEXT keep
// them apart from what linear instructions stage there.
#pragma once
#include "instructions/head.cuh"
#include "instructions/sampling.h"

namespace mk {

enum best_place { PLACE_SCORE, PLACE_HIGHEST, PLACE_OWN, BEST_PLACES };  // by who uses it
enum { ROUND_FIELDS = 3 };  // of a segment, each a pair of words: mass, best, count

struct search_area {
  mk_tally tally;                                                         // of this SM's tokens, or of all
  mk_tally sum;                                                           // over SMs
  uint64_t parts[ROUND_FIELDS][MK_GPU_CONSUMER_WARPS][MK_SIFT_SEGMENTS];  // of which each warp adds up some
  uint64_t pivots[MK_SIFT_SEGMENTS], winner;
  uint32_t found;
  // From the meeting in find_highest on: the parameters, the key of the noise and the highest score. Registers are short.
  uint32_t words[MK_SAMPLING_WORDS];
  uint64_t key;
  float highest;
  float best[BEST_PLACES][MK_GPU_CONSUMER_WARPS];
  uint32_t index[BEST_PLACES][MK_GPU_CONSUMER_WARPS];
};
static_assert(sizeof(search_area) <= MK_GPU_ACTIVATION_BYTES, "the tables of a search lie in the activation area");

__device__ inline search_area &area() { return *reinterpret_cast<search_area *>(device::activation()); }

__device__ inline bool inside_prompt(const consumer &c) { return c.position + 1 < c.d.params.prompt_length; }

// The best of every warp's best, for all; all warps meet. Two uses of one place have a meeting between them.
__device__ inline void best_of_block(consumer &c, best_place place, float &best, uint32_t &index) {
  best_of_lanes(best, index);
  volatile search_area &a = area();
  if (c.lane == 0) {
    a.best[place][c.warp] = best;
    a.index[place][c.warp] = index;
  }
  consumers_meet(c);
  best = a.best[place][c.lane % MK_GPU_CONSUMER_WARPS];
  index = a.index[place][c.lane % MK_GPU_CONSUMER_WARPS];
  best_of_lanes(best, index);
}

struct search {
  uint64_t winner;
  uint32_t flags, state;  // of the parameters; mk_sift_state
};

__device__ inline const uint32_t *sampling_words(const consumer &c, const mk_instruction &in) {
  return reinterpret_cast<const uint32_t *>(c.d.buffer(in.operands[MK_SLOT_SIFT_sampling]).address);
}

// The token's key among the draws; 0: it is dropped.
__device__ inline uint64_t draw_of(float distance, uint32_t token) {
  return mk_sample_draw(area().words, area().key, distance, token);
}

// The highest score, or FAILED. A meeting.
__device__ inline void find_highest(consumer &c, const mk_instruction &in, search &s) {
  const uint32_t *words = sampling_words(c, in);
  const mk_operand &tops = in.operands[mk_sampling_adjusts(words) ? MK_SLOT_SIFT_peaks : MK_SLOT_SIFT_candidates];
  if (c.warp == 0) {
    area().words[c.lane % MK_SAMPLING_WORDS] = words[c.lane % MK_SAMPLING_WORDS];
    area().key = mk_draw_key(mk_sampling_seed(words), c.position + 1);
  }
  const uint64_t *from = reinterpret_cast<const uint64_t *>(c.d.buffer(tops).address);
  float best = -INFINITY;
  uint32_t index = MK_CANDIDATE_NONE;
  for (uint32_t base = c.warp * 32; base < tops.rows; base += MK_GPU_CONSUMER_WARPS * 32) {
    uint32_t i = base + c.lane;
    tile::stamped_pair pair;
    wait_stamped_pair(c.d, from + 2 * i, i < tops.rows, tops.buffer, pair);
    float value = __uint_as_float(tile::stamp_data(pair.low));
    uint32_t token = tile::stamp_data(pair.high) & MK_CANDIDATE_NONE;
    if (i < tops.rows && candidate_above(value, token, best, index)) {
      best = value;
      index = token;
    }
  }
  best_of_block(c, PLACE_HIGHEST, best, index);
  area().highest = best;  // the same from all
  s.state = isnan(best) ? MK_SIFT_FAILED : MK_SIFT_OPEN;
  s.winner = mk_rank_key(0.0f, index);
}

__device__ inline void clear_tally(const consumer &c, mk_tally &tally) {
  if (c.warp == 0) {
    tally.count[c.lane] = 0;
    tally.mass[c.lane] = 0;
    tally.best[c.lane] = 0;
  }
}

// Adds the tokens of `scores` to the area's tally, which has been cleared before a meeting.
__device__ inline void tally_scores(const consumer &c, const mk_operand &scores) {
  enum { BATCH = 4, STEP = MK_GPU_CONSUMER_WARPS * 32 };
  search_area &a = area();
  uint32_t token = scores.col * 16, end = min(token + scores.cols * 16u, c.d.buffer(scores).cols);
  for (token += c.warp * 32 + c.lane; __any_sync(0xffffffffu, token < end);) {
    uint32_t words[BATCH], here = token < end ? (end - token - 1) / STEP + 1 : 0;
    wait_stamped_words<BATCH>(
        c.d, scores.buffer, reinterpret_cast<const uint64_t *>(c.d.buffer(scores).address) + token, STEP, here, words);
#pragma unroll 1
    for (uint32_t j = 0; j < BATCH; j++, token += STEP) {
      float score = __uint_as_float(words[0]);
      words[0] = words[1], words[1] = words[2], words[2] = words[3];
      if (token >= end) {
        continue;
      }
      float distance = mk_sample_distance(a.words, score, a.highest);
      uint32_t segment = mk_sift_segment(a.pivots, mk_rank_key(score, token));
      uint64_t draw = draw_of(distance, token);
      atomicAdd(&a.tally.count[segment], 1u);
      if ((a.words[MK_SAMPLING_FLAGS] & MK_SAMPLE_TOP_P) != 0) {
        atomicAdd(reinterpret_cast<unsigned long long *>(&a.tally.mass[segment]), mk_sample_weight(distance));
      }
      if (draw != 0) {
        atomicMax(reinterpret_cast<unsigned long long *>(&a.tally.best[segment]), draw);
      }
    }
  }
}

__device__ inline uint64_t pair_value(const tile::stamped_pair &pair) {
  return static_cast<uint64_t>(tile::stamp_data(pair.high)) << 32 | tile::stamp_data(pair.low);
}

// The last round of all SMs, in the area's `sum`. Lane s of each warp adds up segment s of every 16th SM, several loads at a time. A
// meeting in between and none at the end: warp 0 has the sum.
__device__ inline void sum_rounds(consumer &c, const mk_operand &rounds, uint32_t flags) {
  enum { BATCH = 9 };
  search_area &a = area();
  uint32_t rows = rounds.rows;
#pragma unroll 1
  for (uint32_t f = 0; f < ROUND_FIELDS; f++) {
    uint64_t sum = 0;
    bool wanted = f == MK_SIFT_BEST_LOW / 2 || (flags & (f == 0 ? MK_SAMPLE_TOP_P : MK_SAMPLE_TOP_K)) != 0;
#pragma unroll 1
    for (uint32_t base = c.warp; wanted && base < rows; base += BATCH * MK_GPU_CONSUMER_WARPS) {
      tile::stamped_pair pairs[BATCH];
      const uint64_t *from = reinterpret_cast<const uint64_t *>(c.d.buffer(rounds).address) +
                             static_cast<uint64_t>(base) * MK_SIFT_WORDS + c.lane * MK_SIFT_FIELDS + 2 * f;
      auto at = [&](uint32_t i) { return from + i * (MK_GPU_CONSUMER_WARPS * MK_SIFT_WORDS); };
      auto has = [&](uint32_t i) { return base + i * MK_GPU_CONSUMER_WARPS < rows; };
      wait_stamped_pairs<BATCH>(c.d, rounds.buffer, at, has, pairs);
#pragma unroll
      for (uint32_t i = 0; i < BATCH; i++) {
        uint64_t value = pair_value(pairs[i]);  // 0 where there is no such row
        sum = f == MK_SIFT_BEST_LOW / 2 ? max(sum, value) : sum + value;
      }
    }
    a.parts[f][c.warp][c.lane] = sum;
  }
  clear_tally(c, a.tally);
  consumers_meet(c);
  if (c.warp == 0) {
    uint64_t mass = 0, best = 0, count = 0;  // beside the count stands the state: only the low half of their sum counts
#pragma unroll 1
    for (uint32_t w = 0; w < MK_GPU_CONSUMER_WARPS; w++) {
      mass += a.parts[0][w][c.lane];
      best = max(best, a.parts[1][w][c.lane]);
      count += a.parts[2][w][c.lane];
    }
    a.sum.mass[c.lane] = mass;
    a.sum.best[c.lane] = best;
    a.sum.count[c.lane] = static_cast<uint32_t>(count);
    __syncwarp();
  }
}

// One thread decides from the area's `sum`; all know after the meeting.
__device__ inline void decide(consumer &c, search &s) {
  search_area &a = area();
  if (c.warp == 0 && c.lane == 0) {
    a.found = mk_sift_decide(a.words, &a.sum, a.pivots, &a.winner) ? 1 : 0;
  }
  consumers_meet(c);
  s.state = a.found != 0 ? MK_SIFT_FOUND : MK_SIFT_OPEN;
  s.winner = a.winner;
}

// What this SM published in the round before: the state, IDLE where there is no such round, and the winner or the pivots.
__device__ inline void recall_round(const consumer &c, const mk_instruction &in, search &s) {
  const mk_operand &rounds = in.operands[MK_SLOT_SIFT_rounds];
  if (rounds.rows == 0) {
    return;
  }
  const uint64_t *own = reinterpret_cast<const uint64_t *>(c.d.buffer(rounds).address) +
                        static_cast<uint64_t>(in.operands[MK_SLOT_SIFT_round].row) * MK_SIFT_WORDS;
  tile::stamped_pair pairs[3];  // lane s: its pivot, the state, the winner
  auto at = [&](uint32_t i) {
    return own + (i == 0 ? c.lane * MK_SIFT_FIELDS + MK_SIFT_PIVOT_LOW : i == 1 ? MK_SIFT_COUNT : MK_SIFT_BEST_LOW);
  };
  wait_stamped_pairs<3>(
      c.d, rounds.buffer, at, [](uint32_t) { return true; }, pairs);
  s.state = tile::stamp_data(pairs[1].high);
  s.winner = pair_value(pairs[2]);
  if (s.state == MK_SIFT_OPEN && c.warp == 0) {
    area().pivots[c.lane] = pair_value(pairs[0]);  // as they are, unless another program has gone through here
  }
}

// From the highest score on; `open`: with what the round before has found. Afterwards the search is FOUND, or it is OPEN and the area has
// pivots and a tally of this SM's scores. DRAW tallies all scores instead, each SM by itself and all to the same end, until it is FOUND.
__device__ inline void go_on(consumer &c, const mk_instruction &in, bool open, bool draw, search &s) {
  const mk_operand &scores = in.operands[MK_SLOT_SIFT_scores];
  search_area &a = area();
  if (open) {
    sum_rounds(c, in.operands[MK_SLOT_SIFT_rounds], s.flags);
  } else {
    if (c.warp == 0) {
      a.pivots[c.lane] = mk_sift_first_pivot(a.words, a.highest, c.lane);
    }
    clear_tally(c, a.tally);
    consumers_meet(c);
  }
#pragma unroll 1
  for (uint32_t pass = 0; pass < MK_SIFT_MOST_PASSES; pass++) {
    if (open || pass != 0) {
      decide(c, s);
    }
    if (s.state == MK_SIFT_FOUND) {
      return;
    }
    tally_scores(c, scores);
    consumers_meet(c);
    if (!draw) {
      return;
    }
    if (c.warp == 0) {
      a.sum.count[c.lane] = a.tally.count[c.lane];
      a.sum.mass[c.lane] = a.tally.mass[c.lane];
      a.sum.best[c.lane] = a.tally.best[c.lane];
      __syncwarp();
    }
    clear_tally(c, a.tally);
  }
}

__device__ inline void publish_round(const consumer &c, const mk_operand &out, const search &s) {
  const search_area &a = area();
  uint32_t i = c.warp * 32 + c.lane, segment = i / MK_SIFT_FIELDS, field = i % MK_SIFT_FIELDS;
  bool open = s.state == MK_SIFT_OPEN;
  if (i >= MK_SIFT_WORDS || !publishes(c.d)) {
    return;
  }
  uint64_t pair = 0;
  if (open) {
    pair = field <= MK_SIFT_MASS_HIGH   ? a.tally.mass[segment]
           : field <= MK_SIFT_BEST_HIGH ? a.tally.best[segment]
           : field <= MK_SIFT_STATE     ? a.tally.count[segment]
                                        : a.pivots[segment];
  } else if (i == MK_SIFT_BEST_LOW || i == MK_SIFT_BEST_HIGH) {
    pair = s.winner;
  }
  uint32_t word = i == MK_SIFT_STATE ? s.state : static_cast<uint32_t>(field % 2 == 0 ? pair : pair >> 32);
  tile::store_stamped(stamped_row(c.d, out) + i, word, c.d.generation());
}

// The best of this SM's own tokens, by draw or by rank.
__device__ inline void best_of_own(consumer &c, const mk_instruction &in, bool draws, float &best, uint32_t &index) {
  enum { BATCH = 2, STEP = MK_GPU_CONSUMER_WARPS * 32 };
  const mk_operand &scores = in.operands[MK_SLOT_DRAW_scores];
  uint32_t token = in.params[MK_PARAM_DRAW_first] * 16;
  uint32_t end = min(token + in.params[MK_PARAM_DRAW_count] * 16, c.d.buffer(scores).cols);
  for (token += c.warp * 32 + c.lane; __any_sync(0xffffffffu, token < end);) {
    uint32_t words[BATCH], here = token < end ? (end - token - 1) / STEP + 1 : 0;
    wait_stamped_words<BATCH>(
        c.d, scores.buffer, reinterpret_cast<const uint64_t *>(c.d.buffer(scores).address) + token, STEP, here, words);
#pragma unroll 1
    for (uint32_t j = 0; j < BATCH; j++, token += STEP) {
      float value = __uint_as_float(words[0]);
      words[0] = words[1];
      bool stands = token < end;
      if (draws && !isnan(value)) {
        uint64_t draw = draw_of(mk_sample_distance(area().words, value, area().highest), token);
        value = mk_rank_value(draw);
        stands = stands && draw != 0;
      }
      if (stands && candidate_above(value, token, best, index)) {
        best = value;
        index = token;
      }
    }
  }
  best_of_block(c, PLACE_OWN, best, index);
}

__device__ inline void publish_choice(const consumer &c, const mk_instruction &in, float best, uint32_t index) {
  const mk_operand &out = in.operands[MK_SLOT_DRAW_choice];
  if (c.warp != 0) {
    return;
  }
  // The host's wish to stop comes with the candidate of this SM's HEAD.
  const uint64_t *head = reinterpret_cast<const uint64_t *>(c.d.buffer(in.operands[MK_SLOT_DRAW_candidates]).address);
  tile::stamped_pair pair;
  wait_stamped_pair(c.d, head + 2 * out.row, true, in.operands[MK_SLOT_DRAW_candidates].buffer, pair);
  uint32_t stop = tile::stamp_data(pair.high) & MK_CANDIDATE_STOP;
  if (c.lane == 0 && publishes(c.d)) {
    uint64_t *choice = stamped_row(c.d, out);
    tile::store_stamped(choice, __float_as_uint(best), c.d.generation());
    tile::store_stamped(choice + 1, index | stop, c.d.generation());
  }
}

__device__ inline void consume_search(consumer &c, const mk_instruction &in) {
  const uint32_t *words = sampling_words(c, in);
  bool inside = inside_prompt(c), draw = in.opcode == MK_OP_DRAW, cuts = !inside && mk_sampling_cuts(words);
  search s = {0, words[MK_SAMPLING_FLAGS], MK_SIFT_IDLE};
  bool draws = !inside && (s.flags & MK_SAMPLE_DRAWS) != 0;
  if (cuts) {
    recall_round(c, in, s);
  }
  bool open = s.state == MK_SIFT_OPEN;
  if (draws && (cuts || draw) && (s.state == MK_SIFT_IDLE || open)) {
    find_highest(c, in, s);
  }
  if (cuts && s.state == MK_SIFT_OPEN) {
    go_on(c, in, open, draw, s);
  }
  if (!draw) {
    publish_round(c, in.operands[MK_SLOT_SIFT_round], s);
    return;
  }
  float best = -INFINITY;
  uint32_t index = MK_CANDIDATE_NONE;
  if (cuts || s.state == MK_SIFT_FAILED) {
    best = s.state == MK_SIFT_FAILED ? NAN : mk_rank_value(s.winner);
    index = min(mk_rank_token(s.winner), c.d.buffer(in.operands[MK_SLOT_DRAW_scores]).cols - 1);
  } else if (!inside) {
    best_of_own(c, in, draws, best, index);
  }
  publish_choice(c, in, best, index);
}

}  // namespace mk
