// SIFT and DRAW on the device: one body for both; search.c, sift.c, draw.c, docs/SAMPLING.md.
// Consumers only. Waits, by stamps: DRAW for the fronts of all SMs; both opcodes, where the parameters ask for a
// search, also for these, for the last round of all SMs, and for scores. DRAW always publishes its choice. A round is
// published, as far as others look at it, only while there is a search, which all SMs decide alike: without a search
// nobody looks at it. The search's tables lie in the activation area, from the meeting in take_heads to the one at the
// end of DRAW: these two meetings keep them apart from what linear instructions stage there. From one round to the next
// the tables stay: the host makes sure that the rounds of an SM follow each other (refuse.c).
#pragma once
#include "instructions/next.cuh"
#include "instructions/score.cuh"
#include "instructions/search_lanes.cuh"

namespace mk {

struct search_area {
  warp_tallies of_scores, of_rounds;  // over this SM's tokens, or all; over SMs
  mk_tally sum;                       // over warps
  uint64_t pivots[MK_SIFT_SEGMENTS], winner;
  uint32_t found;
  // The parameters, the key of the noise and the highest score. They are here since registers are short.
  uint32_t words[MK_SAMPLING_WORDS];
  uint64_t key;
  float highest;
};
static_assert(sizeof(search_area) <= MK_GPU_ACTIVATION_BYTES, "the tables of a search lie in the activation area");

__device__ inline search_area &area() { return *tile::view<search_area>(device::activation()); }

__device__ inline bool inside_prompt(const consumer &c) { return (flags_of(c) & MK_ROW_CHOOSES) == 0; }

struct search {
  uint64_t winner;
  uint32_t state;  // mk_sift_state
};

// SIFT and DRAW have what they read in the same places.
static_assert(MK_PART_SIFT_fronts == MK_PART_DRAW_fronts && MK_PART_SIFT_rounds == MK_PART_DRAW_rounds &&
                  MK_PART_SIFT_scores == MK_PART_DRAW_scores && MK_WHOLE_SIFT_sampling == MK_WHOLE_DRAW_sampling,
              "fronts, rounds, scores; sampling");

__device__ inline const uint32_t *sampling_words(const mk_instruction_word &in) {
  return start_of<const uint32_t>(in, whole_at(MK_WHOLE_SIFT_sampling));
}

enum {
  FRONT_AHEAD = 2 * MK_GPU_FRONT_LANES,  // entries that the lanes of a row fetch, two each, with its head
  FRONT_ROWS = 32 / MK_GPU_FRONT_LANES,  // of a warp
  FRONT_PAIRS = 4,                       // of words, that a lane fetches
};

__device__ inline const uint64_t *front_of(const mk_instruction_word &in, uint32_t row) {
  // Where there are no more fronts, the last one is read again: that makes no difference to a maximum.
  uint32_t last = in.parts[MK_PART_SIFT_fronts].rows - 1u;
  return start_of<const uint64_t>(in, MK_PART_SIFT_fronts) + min(row, last) * MK_FRONT_WORDS;
}

// The first of this lane's two entries, where those of its row are from `first` on.
__device__ inline uint32_t front_entry(const consumer &c, uint32_t first) {
  return min(first + tile::place_in_group<MK_GPU_FRONT_LANES>(c.lane) * 2, MK_FRONT_MOST - 2u);
}

// Fetches, of the front in the row after `row` that the lane's group of MK_GPU_FRONT_LANES has: its head, two keys,
// their scores.
__device__ inline void fetch_front(const consumer &c, const mk_instruction_word &in, uint32_t row, uint32_t first,
                                   tile::stamped_pair (&pairs)[FRONT_PAIRS]) {
  const uint64_t *from = front_of(in, row + tile::group_of_lane<MK_GPU_FRONT_LANES>(c.lane));
  uint32_t entry = front_entry(c, first);
  auto at = [&](uint32_t i) {
    return from + (i == 0 ? 0 : i < 3 ? MK_FRONT_KEYS + 2 * (entry + i - 1) : MK_FRONT_SCORES + entry);
  };
  wait_all_pairs<FRONT_PAIRS>(c.d, in.parts[MK_PART_SIFT_fronts].buffer, at, pairs);
}

// Fetches the head of the front in row `row` + c.lane, and its first key.
__device__ inline void fetch_best(const consumer &c, const mk_instruction_word &in, uint32_t row,
                                  tile::stamped_pair (&pairs)[FRONT_PAIRS]) {
  const uint64_t *from = front_of(in, row + c.lane);
  tile::stamped_pair two[2];
  wait_all_pairs<2>(
      c.d, in.parts[MK_PART_SIFT_fronts].buffer, [&](uint32_t i) { return from + i * MK_FRONT_KEYS; }, two);
  pairs[0] = two[0];
  pairs[1] = two[1];
}

// The highest of the peaks that all warps have found: kept from the meeting in take_heads until the next token's.
__device__ inline uint32_t peak_of_all(const consumer &c) {
  return tile::largest_of_lanes(c.d.words()->peaks[tile::place_in_group<MK_GPU_CONSUMER_WARPS>(c.lane)]);
}

// Publishes to the other warps what this warp has seen in the heads of the fronts. If `meets`, all warps meet, and
// `peak` becomes the highest score of all SMs.
__device__ inline void take_heads(consumer &c, bool meets, uint32_t &peak, uint32_t about) {
  volatile shared_words *shared = c.d.words();
  if ((about & MK_FRONT_STOP) != 0) {
    shared->stopped = c.d.generation();
  }
  if ((about & MK_FRONT_OVERFLOW) != 0) {
    shared->scores_wanted = c.d.generation();
  }
  if (meets) {
    peak = tile::largest_of_lanes(peak);
    if (c.lane == 0) {
      shared->peaks[c.warp] = peak;
    }
    consumers_meet(c);
    peak = peak_of_all(c);
  }
}

// Of the two entries from `first` on that the lane has fetched: the best draw that min-p keeps, or `best`. True: it
// keeps the last one, so it may keep the next one, too.
__device__ inline bool take_entries(const consumer &c, const uint32_t *words, uint32_t first, uint32_t count,
                                    float highest, const tile::stamped_pair (&pairs)[FRONT_PAIRS], uint64_t &best) {
  bool more = false;
#pragma unroll
  for (uint32_t j = 0; j < 2; j++) {
    float score = __uint_as_float(tile::stamp_data(j == 0 ? pairs[3].low : pairs[3].high));
    more = front_entry(c, first) + j < count && !mk_sample_drops(words, mk_sample_distance(words, score, highest));
    best = more ? max(best, pair_value(pairs[1 + j])) : best;
  }
  return more;
}

// As read_fronts, of several ranks: there may be more fronts than all warps read at once. So first come all heads, and
// then, with min-p, the entries.
__device__ inline uint64_t read_fronts_of_ranks(consumer &c, const mk_instruction_word &in, bool meets, bool entries,
                                                search &s, float &highest) {
  const uint32_t *words = sampling_words(in);
  uint32_t rows = in.parts[MK_PART_SIFT_fronts].rows, peak = 0, flags = 0;
  tile::stamped_pair pairs[FRONT_PAIRS];
  bool whole = meets && entries;
  uint64_t best = 0;
#pragma unroll 1
  for (uint32_t row = c.warp * 32; row < rows; row += MK_GPU_CONSUMER_WARPS * 32) {
    fetch_best(c, in, row, pairs);
    uint32_t own = tile::stamp_data(pairs[0].low), about = tile::stamp_data(pairs[0].high);
    uint64_t key = own == MK_PEAK_NAN                            ? mk_draw_failed(about & MK_SAMPLING_INDEX_MASK)
                   : entries && !whole && entries_of(about) != 0 ? pair_value(pairs[1])
                                                                 : 0;
    best = max(best, key);
    peak = max(peak, own);
    flags |= about & (MK_FRONT_STOP | MK_FRONT_OVERFLOW);
  }
  take_heads(c, meets, peak, flags);
  if (meets) {
    s.state = peak == MK_PEAK_NAN ? MK_SIFT_FAILED : MK_SIFT_OPEN;
    highest = mk_unordered(peak);
  }
#pragma unroll 1
  for (uint32_t row = c.warp * FRONT_ROWS; whole && row < rows; row += MK_GPU_CONSUMER_WARPS * FRONT_ROWS) {
    uint32_t count = 0;
    bool more = false;
#pragma unroll 1
    for (uint32_t first = 0; first == 0 || tile::any_lane(more && first < count); first += FRONT_AHEAD) {
      fetch_front(c, in, row, first, pairs);
      count = entries_of(tile::stamp_data(pairs[0].high));
      more = take_entries(c, words, first, count, highest, pairs, best);
    }
  }
  return best;
}

// Reads the fronts of all SMs. Gives each lane's best draw of the entries that count; where a score is NaN,
// mk_draw_failed. If `meets`, all warps meet, and this finds the highest score, which min-p and the search need, and a
// state of OPEN or FAILED. `entries`: reads all entries and not only the heads.
__device__ inline uint64_t read_fronts(consumer &c, const mk_instruction_word &in, bool meets, bool entries, search &s,
                                       float &highest) {
  if constexpr (MK_GPU_RANKS) {
    return read_fronts_of_ranks(c, in, meets, entries, s, highest);
  }
  const uint32_t *words = sampling_words(in);
  tile::stamped_pair pairs[FRONT_PAIRS];
  bool whole = meets && entries;  // with min-p; otherwise the first entry is the only one
  uint64_t best = 0;
  uint32_t count = 0;
  bool more = false;  // min-p keeps the last entry that this lane has seen: so it may keep the next one, too
#pragma unroll 1
  for (uint32_t first = 0; first == 0 || tile::any_lane(more && first < count); first += FRONT_AHEAD) {
    if (c.warp * (whole ? FRONT_ROWS : 32) >= in.parts[MK_PART_SIFT_fronts].rows) {
      pairs[0] = pairs[1] = {0, 0};  // there are no rows for this warp
    } else if (whole) {
      fetch_front(c, in, c.warp * FRONT_ROWS, first, pairs);
    } else {
      fetch_best(c, in, c.warp * 32, pairs);
    }
    if (first == 0) {
      uint32_t peak = tile::stamp_data(pairs[0].low), about = tile::stamp_data(pairs[0].high);
      count = entries_of(about);
      best = peak == MK_PEAK_NAN ? mk_draw_failed(about & MK_SAMPLING_INDEX_MASK) : 0;
      take_heads(c, meets, peak, about);
      if (meets) {
        s.state = peak == MK_PEAK_NAN ? MK_SIFT_FAILED : MK_SIFT_OPEN;
        highest = mk_unordered(peak);
      }
    }
    if (!whole) {
      return entries && count != 0 ? max(best, pair_value(pairs[1])) : best;
    }
    more = take_entries(c, words, first, count, highest, pairs, best);
  }
  return best;
}

// Adds this warp's tokens to the segments that the lanes have found for them.
__device__ inline void tally_lanes(const consumer &c, bool stands, float score, uint32_t token) {
  search_area &a = area();
  float distance = mk_sample_distance(a.words, score, a.highest);
  uint32_t segment = mk_sift_segment(a.pivots, mk_rank_key(score, token));
  uint64_t draw = mk_sample_drops(a.words, distance) ? 0 : mk_sample_draw(a.words, a.key, score, token), mass = 0;
  if ((a.words[MK_SAMPLING_FLAGS] & MK_SAMPLE_TOP_P) != 0) {
    mass = mk_sample_weight(distance);
  }
  // The lanes of one segment add up what they have, step by step: each adds the next lane's sum to its own, and then
  // every other one of them is done.
  uint32_t peers = tile::lanes_where(stands);
#pragma unroll
  for (uint32_t bit = 1; bit < MK_SIFT_SEGMENTS; bit *= 2) {
    uint32_t set = tile::lanes_where((segment & bit) != 0);
    peers &= (segment & bit) != 0 ? set : ~set;
  }
  uint32_t rank = __popc(peers & (tile::lanes_before(c.lane))), rest = stands ? peers & (0xfffffffeu << c.lane) : 0;
  bool first = stands && rank == 0;
#pragma unroll 1
  while (tile::any_lane(rest != 0)) {
    uint32_t from = rest != 0 ? __ffs(rest) - 1 : c.lane;
    uint64_t more = tile::from_lane(mass, from), other = tile::from_lane(draw, from);
    mass += rest != 0 ? more : 0;
    draw = max(draw, other);
    rest &= tile::lanes_where(rank % 2 == 0);
    rank /= 2;
  }
  if (first) {
    a.of_scores.mass[c.warp][segment] += mass;
    a.of_scores.best[c.warp][segment] = max(a.of_scores.best[c.warp][segment], draw);
    a.of_scores.count[c.warp][segment] += __popc(peers);
  }
  __syncwarp();
}

enum { SCORES_AHEAD = 2, SCORES_STEP = MK_GPU_CONSUMER_WARPS * 32 };
struct score_range {  // of the tokens that `scores` names, this thread's
  uint32_t token, end;
};
__device__ inline score_range range_of(const consumer &c, const mk_instruction_word &in) {
  const mk_operand &scores = in.parts[MK_PART_SIFT_scores];
  uint32_t first = scores.col * 16;
  return {first + c.warp * 32 + c.lane, min(first + scores.cols * 16u, buffer_of(in, MK_PART_SIFT_scores).cols)};
}

// This SM's first logits, sent for before they are wanted.
struct logits_ahead {
  float logit[SCORES_AHEAD];
};
__device__ inline void send_for_logits(const consumer &c, const mk_instruction_word &in, logits_ahead &ahead) {
  wait_phase(c.d, SCORED, c.d.epoch % 2, MK_ACTIVITY_RESULT_FULL, 0);
  score_range r = range_of(c, in);
  const float *logits = c.d.words()->logits;
#pragma unroll
  for (uint32_t i = 0; i < SCORES_AHEAD; i++) {
    uint32_t token = r.token + i * SCORES_STEP;
    ahead.logit[i] = token < r.end ? __ldcg(logits + token) : 0.0f;
  }
}

// Tallies the tokens of `scores` into the area's `of_scores`: in a SIFT this SM's, from its logits, and in DRAW all
// tokens.
__device__ inline void tally_scores(const consumer &c, const mk_instruction_word &in, bool draw,
                                    const logits_ahead &ahead) {
  warp_tallies &t = area().of_scores;
  t.mass[c.warp][c.lane] = 0;
  t.best[c.warp][c.lane] = 0;
  t.count[c.warp][c.lane] = 0;
  __syncwarp();
  score_range r = range_of(c, in);
  const uint64_t *all = start_of<const uint64_t>(in, MK_PART_SIFT_scores);
  float next = ahead.logit[0], second = ahead.logit[1];
#pragma unroll 1
  for (; tile::any_lane(r.token < r.end); r.token += SCORES_STEP) {
    uint32_t token = min(r.token, r.end - 1), ahead_of = r.token + SCORES_AHEAD * SCORES_STEP;
    float score;
    if (draw) {
      uint32_t word[1];
      wait_stamped_words<1>(
          c.d, in.parts[MK_PART_SIFT_scores].buffer, [&](uint32_t) { return all + token; }, word);
      score = __uint_as_float(word[0]);
    } else {
      score = own_score(c.d, area().words, token, next);
      next = second;
      second = ahead_of < r.end ? __ldcg(c.d.words()->logits + ahead_of) : 0.0f;
    }
    tally_lanes(c, r.token < r.end, score, token);
  }
}

// Adds up what all warps have, into the area's `sum`; the first warp does, after a meeting.
__device__ inline void sum_warps(const consumer &c, const warp_tallies &t) {
  uint64_t mass = 0, best = 0;
  uint32_t count = 0;
#pragma unroll 4
  for (uint32_t w = 0; w < MK_GPU_CONSUMER_WARPS; w++) {
    mass += t.mass[w][c.lane];
    best = max(best, t.best[w][c.lane]);
    count += t.count[w][c.lane];
  }
  mk_tally &sum = area().sum;
  sum.mass[c.lane] = mass;
  sum.best[c.lane] = best;
  sum.count[c.lane] = count;
  __syncwarp();
}

// Adds up the last round of all SMs into the area's `sum`. Lane s of each warp adds up segment s of every 16th SM,
// several loads at a time. All warps meet in between, but not at the end: then warp 0 has the sum.
__device__ inline void sum_rounds(consumer &c, const mk_instruction_word &in) {
  enum { BATCH = 9 };
  const mk_operand &rounds = in.parts[MK_PART_SIFT_rounds];
  search_area &a = area();
  uint32_t rows = rounds.rows;
#pragma unroll 1
  for (uint32_t f = 0; f <= MK_SIFT_COUNT; f++) {
    uint64_t sum = 0;
    bool wanted = f != MK_SIFT_MASS || (a.words[MK_SAMPLING_FLAGS] & MK_SAMPLE_TOP_P) != 0, counts = f == MK_SIFT_COUNT;
    // A pair of words of counts has the counts of two segments: no carry goes from one to the other.
    uint32_t pair = tile::place_in_group(c.lane, counts ? MK_SIFT_SEGMENTS / 2 : MK_SIFT_SEGMENTS);
#pragma unroll 1
    for (uint32_t base = c.warp; wanted && base < rows; base += BATCH * MK_GPU_CONSUMER_WARPS) {
      tile::stamped_pair pairs[BATCH];
      const uint64_t *from = start_of<const uint64_t>(in, MK_PART_SIFT_rounds) + mk_sift_word(f, 0) + 2 * pair;
      auto row = [&](uint32_t i) { return base + i * MK_GPU_CONSUMER_WARPS; };
      wait_all_pairs<BATCH>(
          c.d, rounds.buffer, [&](uint32_t i) { return from + (row(i) < rows ? row(i) : base) * MK_SIFT_WORDS; },
          pairs);
#pragma unroll
      for (uint32_t i = 0; i < BATCH; i++) {
        uint64_t value = row(i) < rows ? pair_value(pairs[i]) : 0;
        sum = f == MK_SIFT_BEST ? max(sum, value) : sum + value;
      }
    }
    if (counts) {
      a.of_rounds.count[c.warp][2 * pair] = static_cast<uint32_t>(sum);
      a.of_rounds.count[c.warp][2 * pair + 1] = static_cast<uint32_t>(sum >> 32);
    } else {
      (f == MK_SIFT_MASS ? a.of_rounds.mass : a.of_rounds.best)[c.warp][c.lane] = sum;
    }
  }
  consumers_meet(c);
  if (c.warp == 0) {
    sum_warps(c, a.of_rounds);
  }
}

// The first warp decides from the area's `sum`; all warps know after the meeting.
__device__ inline void decide(consumer &c, search &s) {
  search_area &a = area();
  if (c.warp == 0) {
    uint64_t winner = 0;
    const segment_sum sum = {a.sum.mass[c.lane], a.sum.best[c.lane], a.sum.count[c.lane]};
    bool found = decide_by_lanes(c.lane, a.words, sum, a.pivots, &winner);
    if (c.lane == 0) {
      a.found = found ? 1 : 0;
      a.winner = winner;
    }
  }
  consumers_meet(c);
  s.state = a.found != 0 ? MK_SIFT_FOUND : MK_SIFT_OPEN;
  s.winner = a.winner;
}

// Goes on with the search: from the highest score on, or (`open`) from what the round before has left in the area.
// Afterwards the search is FOUND, or it is OPEN and the area has pivots and a tally of this SM's scores. DRAW tallies
// all scores instead, until the search is FOUND: each SM does so by itself and comes to the same end.
__device__ inline void go_on(consumer &c, const mk_instruction_word &in, float highest, bool open, bool draw,
                             const logits_ahead &ahead, search &s) {
  search_area &a = area();
  if (open) {
    sum_rounds(c, in);
  } else {
    if (c.warp == 0) {
      const uint32_t *words = sampling_words(in);
      a.words[tile::place_in_group<MK_SAMPLING_WORDS>(c.lane)] = words[tile::place_in_group<MK_SAMPLING_WORDS>(c.lane)];
      a.key = mk_draw_key(mk_sampling_seed(words), position_of(c) + 1);
      a.highest = highest;
      a.pivots[c.lane] = mk_sift_first_pivot(words, highest, c.lane);
      a.found = 0;
    }
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
    if (draw) {
      c.d.words()->scores_wanted = c.d.generation();  // the storer looks at it
    }
    tally_scores(c, in, draw, ahead);
    consumers_meet(c);
    if (!draw) {
      return;
    }
    if (c.warp == 0) {
      sum_warps(c, a.of_scores);
    }
  }
}

__device__ inline void publish_round(const consumer &c, const mk_instruction_word &in) {
  const search_area &a = area();
  uint32_t i = c.warp * 32 + c.lane, field = i / (2 * MK_SIFT_SEGMENTS);
  uint32_t segment = (field == MK_SIFT_COUNT ? i : i / 2) % MK_SIFT_SEGMENTS;
  if (i < MK_SIFT_STATE_WORD && publishes(c.d)) {  // what others look at
    uint64_t pair = 0;
#pragma unroll 4
    for (uint32_t w = 0; w < MK_GPU_CONSUMER_WARPS; w++) {
      const warp_tallies &t = a.of_scores;
      pair = field == MK_SIFT_MASS   ? pair + t.mass[w][segment]
             : field == MK_SIFT_BEST ? max(pair, t.best[w][segment])
                                     : pair + t.count[w][segment];
    }
    uint64_t *round = start_of<uint64_t>(in, MK_PART_SIFT_round) + in.parts[MK_PART_SIFT_round].row * MK_SIFT_WORDS;
    uint32_t word = static_cast<uint32_t>(field == MK_SIFT_COUNT || i % 2 == 0 ? pair : pair >> 32);
    to_readers(readers_of(in.parts[MK_PART_SIFT_round]), round + i,
               [=](uint64_t *to) { tile::store_stamped(to, word, c.d.generation()); });
  }
}

// All warps agree on the best of their keys, of which each lane may bring one, and keep the choice for NEXT. All warps
// meet. Where not `publishes_it`, this is a rehearsal, whose choice the next one replaces.
__device__ inline void choose(consumer &c, const mk_instruction_word &in, bool inside, bool publishes_it,
                              uint64_t key) {
  volatile shared_words *shared = c.d.words();
  uint32_t parity = c.d.epoch % 2;
  key = highest_key(key);
  if (c.lane == 0) {
    shared->best[parity][c.warp] = __uint_as_float(static_cast<uint32_t>(key >> 32));
    shared->index[parity][c.warp] = static_cast<uint32_t>(key);
  }
  consumers_meet(c);
  uint32_t high = __float_as_uint(shared->best[parity][tile::place_in_group<MK_GPU_CONSUMER_WARPS>(c.lane)]);
  uint32_t low = shared->index[parity][tile::place_in_group<MK_GPU_CONSUMER_WARPS>(c.lane)];
  key = highest_key(static_cast<uint64_t>(high) << 32 | low);
  // If nobody filled these words, the host never sees the token; but it must still be one that has an embedding.
  uint32_t token = min(mk_rank_token(key), buffer_of(in, MK_PART_DRAW_scores).cols - 1);
  bool failed = key >> 32 == MK_DRAW_FAILED_HIGH;
  uint32_t stop = shared->stopped == c.d.generation() ? MK_CANDIDATE_STOP : 0;
  set_token(c, token | (failed ? CHOICE_FAILED : 0) | stop);
  if (publishes_it && c.warp == 0 && c.lane == 0 && publishes(c.d)) {
    uint64_t *choice = start_of<uint64_t>(in, MK_PART_DRAW_choice) + in.parts[MK_PART_DRAW_choice].row * 2;
    float value = inside ? -INFINITY : failed ? NAN : 0.0f;
    tile::store_stamped(choice, __float_as_uint(value), c.d.generation());
    tile::store_stamped(choice + 1, (inside ? MK_CANDIDATE_NONE : token) | stop, c.d.generation());
  }
}

// Where there is nothing to search, the first SIFT rehearses the end of DRAW: that SIFT comes while the storer is still
// at the last row tile, and brings the code into the instruction cache.
__device__ inline void consume_search(consumer &here, const mk_instruction_word &in) {
  consumer c = here;  // whose cursors stay where they are
  c.lane = tile::anew(c.lane);
  const uint32_t *words = sampling_words(in);
  bool inside = inside_prompt(c), draw = in.opcode == only<&opcode_row::draws>,
       cuts = tile::uniform(!inside && mk_sampling_cuts(words));
  // After another round of this SM (refuse.c) the search stands where that round has left it.
  bool resumes = in.parts[MK_PART_SIFT_rounds].rows != 0, begins = !resumes || !cuts;
  if (!draw && !cuts && resumes) {
    return;
  }
  search s = {0, MK_SIFT_IDLE};
  if (!begins) {
    s.state = peak_of_all(c) == MK_PEAK_NAN ? MK_SIFT_FAILED : area().found != 0 ? MK_SIFT_FOUND : MK_SIFT_OPEN;
    s.winner = s.state == MK_SIFT_FOUND ? area().winner : 0;
  }
  bool open = s.state == MK_SIFT_OPEN,
       meets = begins && (cuts || !(inside || tile::uniform(mk_sampling_one_draw(words))));
  uint64_t best = 0;
  float highest = 0.0f;
  logits_ahead ahead = {};
  if (cuts && !draw) {
    send_for_logits(c, in, ahead);
  }
  if ((begins && (draw || cuts)) || (draw && s.state == MK_SIFT_FAILED)) {
    best = read_fronts(c, in, meets, !inside && !cuts, s, highest);
  }
  if (s.state == MK_SIFT_OPEN && (cuts || c.d.words()->scores_wanted == c.d.generation())) {
    go_on(c, in, highest, open, draw, ahead, s);
  }
  if (draw || !cuts) {
    choose(c, in, inside_prompt(c), draw, max(best, s.winner));
  } else if (s.state == MK_SIFT_OPEN) {
    publish_round(c, in);
  }
}

}  // namespace mk
