// SIFT and DRAW of several rows per step on the device: one body for both; search.c, sift.c, draw.c, docs/SAMPLING.md. Consumers only: warp l
// goes through the search of line l by itself, with what score_rows.cuh keeps of it. Waits, by stamps: DRAW for the fronts of all SMs; both,
// where the line's parameters ask for a search, for those, the sums of the last round, and scores. DRAW always publishes; a round only for lines
// that search, since nobody else looks at it.
//
// SIFTs come in pairs (refuse.c): by the first one all SMs publish their tallies, in the second one a single SM, the line's owner, adds them up and
// publishes the sums, from which the next one goes on. So an SM reads all SMs' tallies of one line, and not of all lines. All warps of
// the owner add up.
#pragma once
#include "instructions/score_rows.cuh"

namespace mk {

// SIFT and DRAW have what they read in the same places.
static_assert(MK_PART_SIFT_fronts == MK_PART_DRAW_fronts && MK_PART_SIFT_rounds == MK_PART_DRAW_rounds &&
                  MK_PART_SIFT_scores == MK_PART_DRAW_scores && MK_WHOLE_SIFT_sampling == MK_WHOLE_DRAW_sampling,
              "fronts, rounds, scores; sampling");

enum { FRONTS_AHEAD = 3, MOST_FRONTS = 160 };  // of each lane at a time; of a line

// Of the fronts of a line, for min-p: highest scores and numbers of entries, where nothing is searched.
__device__ inline float *front_peaks(line_search &l) { return reinterpret_cast<float *>(&l.sum); }
__device__ inline uint8_t *front_counts(line_search &l) { return reinterpret_cast<uint8_t *>(l.pivots); }
static_assert(MOST_FRONTS * 4 <= sizeof(mk_tally) && MOST_FRONTS <= MK_SIFT_SEGMENTS * 8, "they have room there");

__device__ inline uint32_t fronts_in(const mk_instruction_word &in) { return in.parts[MK_PART_SIFT_fronts].rows; }
__device__ inline const uint64_t *front_of_line(const consumer &c, const mk_instruction_word &in, uint32_t sm) {
  return start_of<const uint64_t>(in, MK_PART_SIFT_fronts) + (sm * c.d.params.rows + c.warp) * MK_FRONT_WORDS;
}

// The heads of all SMs' fronts and their first entries: the highest score, the flags, and the best draw, if the first
// entries are all that count, or with top-k or top-p that of the first rank, if one SM alone has its score.
__device__ inline void read_fronts(const consumer &c, const mk_instruction_word &in, line_search &l) {
  uint32_t sms = fronts_in(in), peak = 0, flags = 0;
  uint64_t best = 0;
  bool cuts = tile::uniform(mk_sampling_cuts(l.words)), lists = tile::uniform(!mk_sampling_one_draw(l.words)) && !cuts;
  uint32_t first =
      0;  // of the SMs of this lane: the upper half of the draw of the first rank, 0 where two have its score
#pragma unroll 1
  for (uint32_t base = 0; base < sms; base += FRONTS_AHEAD * 32) {
    tile::stamped_pair pairs[2 * FRONTS_AHEAD];
    auto sm_of = [&](uint32_t i) { return base + i * 32 + c.lane; };
    wait_stamped_pairs<2 * FRONTS_AHEAD>(
        c.d, in.parts[MK_PART_SIFT_fronts].buffer,
        [&](uint32_t i) { return front_of_line(c, in, sm_of(i / 2)) + i % 2 * MK_FRONT_KEYS; },
        [&](uint32_t i) { return sm_of(i / 2) < sms; }, pairs);
#pragma unroll
    for (uint32_t i = 0; i < FRONTS_AHEAD; i++) {
      uint32_t own = tile::stamp_data(pairs[2 * i].low), about = tile::stamp_data(pairs[2 * i].high);
      uint32_t draw = tile::stamp_data(pairs[2 * i + 1].high);
      first = own > peak ? draw : own == peak ? 0 : first;
      peak = max(peak, own);
      flags |= about & (MK_FRONT_OVERFLOW | MK_FRONT_STOP);
      uint64_t key = own == MK_PEAK_NAN ? mk_draw_failed(about & MK_SAMPLING_INDEX_MASK)
                     : lists || cuts    ? 0
                                        : pair_value(pairs[2 * i + 1]);
      best = max(best, sm_of(i) < sms ? key : 0);
      if (lists && sm_of(i) < sms) {
        front_peaks(l)[sm_of(i)] = mk_unordered(own);
        front_counts(l)[sm_of(i)] =
            own == 0 ? 0 : min(about >> MK_FRONT_COUNT_AT & MK_FRONT_COUNT_BITS, static_cast<uint32_t>(MK_FRONT_MOST));
      }
    }
  }
  if ((rows_of(c.d).active & ((1u << c.warp) - 1)) == 0) {
    tile::fence_acquire();  // of one line: what all SMs did in this step is there for those who meet in NEXT
  }
  uint32_t highest = __reduce_max_sync(0xffffffffu, peak);
  uint32_t holders = __ballot_sync(0xffffffffu, peak == highest);
  first = __shfl_sync(0xffffffffu, first, __ffs(static_cast<int>(holders)) - 1);
  peak = highest;
  flags = __reduce_or_sync(0xffffffffu, flags);
  best = highest_key(best);
  if (c.lane == 0) {
    l.highest = mk_unordered(peak);
    l.bound = cuts && __popc(holders) == 1 ? value_of_draw(first) : -INFINITY;
    l.state = peak == MK_PEAK_NAN ? MK_SIFT_FAILED : MK_SIFT_OPEN;
    l.flags = flags;
    l.winner = best;
  }
  __syncwarp();
}

// The best draw of the entries that min-p keeps; read_fronts came before.
__device__ inline void read_entries(const consumer &c, const mk_instruction_word &in, line_search &l) {
  enum { BATCH = 3, PAIRS = 3 };  // SMs of a lane; of each two keys, and their scores
  uint32_t sms = fronts_in(in);
  uint64_t best = l.winner;
#pragma unroll 1
  for (uint32_t base = c.lane; __any_sync(0xffffffffu, base < sms); base += BATCH * 32) {
    uint32_t counts[BATCH];
    bool more = false;
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
      uint32_t sm = min(base + i * 32, sms - 1);
      bool kept =
          base + i * 32 < sms && !mk_sample_drops(l.words, mk_sample_distance(l.words, front_peaks(l)[sm], l.highest));
      counts[i] = kept ? front_counts(l)[sm] : 0;
      more = more || counts[i] != 0;
    }
#pragma unroll 1
    for (uint32_t entry = 0; __any_sync(0xffffffffu, more); entry += 2) {
      tile::stamped_pair pairs[BATCH * PAIRS];
      // Behind the last entry there is one that is none.
      wait_stamped_pairs<BATCH * PAIRS>(
          c.d, in.parts[MK_PART_SIFT_fronts].buffer,
          [&](uint32_t i) {
            const uint64_t *front = front_of_line(c, in, base + i / PAIRS * 32);
            return front + (i % PAIRS < 2 ? MK_FRONT_KEYS + 2 * (entry + i % PAIRS) : MK_FRONT_SCORES + entry);
          },
          [&](uint32_t i) { return entry < counts[i / PAIRS]; }, pairs);
      more = false;
#pragma unroll
      for (uint32_t i = 0; i < BATCH * 2; i++) {
        const tile::stamped_pair &scores = pairs[i / 2 * PAIRS + 2];
        float score = __uint_as_float(tile::stamp_data(i % 2 == 0 ? scores.low : scores.high));
        bool kept =
            entry + i % 2 < counts[i / 2] && !mk_sample_drops(l.words, mk_sample_distance(l.words, score, l.highest));
        best = kept ? max(best, pair_value(pairs[i / 2 * PAIRS + i % 2])) : best;
        more = more || (i % 2 == 1 && kept && entry + 2 < counts[i / 2]);
      }
    }
  }
  best = highest_key(best);
  if (c.lane == 0) {
    l.winner = best;
  }
  __syncwarp();
}

// mk_sift_segment with the pivots of the first round, which lie at known distances.
__device__ inline uint32_t first_segment(const uint64_t *pivots, uint64_t key, float distance) {
  float square = fmaf(fmaxf(distance, -13.0f), -1.0f / MK_SIFT_FIRST_STEP, 16.0f),
        guess = square * rsqrtf(square) - 4.0f;
  uint32_t segment = static_cast<uint32_t>(fminf(guess, MK_SIFT_SEGMENTS - 1.0f));
#pragma unroll 1
  while (segment + 1 < MK_SIFT_SEGMENTS && key < pivots[segment + 1]) {
    segment++;
  }
#pragma unroll 1
  while (segment > 0 && key >= pivots[segment]) {
    segment--;
  }
  return segment;
}

// Tokens of the lanes, to the tally of their segments. Those of the last segment, where most tokens are, each lane keeps to itself at first.
struct lowest_tokens {
  uint64_t mass = 0, best = 0;
  uint32_t count = 0;
};
// What pivots are: those of the first round; set anew by rounds, so that nothing below the last one is kept; or set
// anew, as it may be.
enum pivot_kind : uint32_t { PIVOTS_FIRST, PIVOTS_NARROWED, PIVOTS_ANY };
__device__ inline void tally_lanes(const consumer &c, line_search &l, bool stands, float score, uint32_t token,
                                   uint32_t pivots, lowest_tokens &lowest) {
  float distance = mk_sample_distance(l.words, score, l.highest);
  uint64_t key = mk_rank_key(score, token);
  uint32_t segment = pivots == PIVOTS_FIRST ? first_segment(l.pivots, key, distance) : mk_sift_segment(l.pivots, key);
  uint64_t draw = 0, mass = 0;
  // Once pivots have been set anew the last one is the lower end of what is open: what lies below is dropped, and its draws do not matter.
  bool draws = stands && !(pivots == PIVOTS_NARROWED && segment == MK_SIFT_SEGMENTS - 1) &&
               !mk_sample_drops(l.words, distance) && may_reach(l, score, token, l.bound);
  if (__any_sync(0xffffffffu, draws)) {
    draw = draws ? mk_sample_draw(l.words, l.key, score, token) : 0;
  }
  if ((l.words[MK_SAMPLING_FLAGS] & MK_SAMPLE_TOP_P) != 0) {
    mass = mk_sample_weight(distance);
  }
  if (stands && segment == MK_SIFT_SEGMENTS - 1) {
    lowest.mass += mass;
    lowest.best = max(lowest.best, draw);
    lowest.count++;
    stands = false;
  }
  uint32_t peers = __ballot_sync(0xffffffffu, stands);
  if (peers == 0) {
    return;
  }
  // The lanes of one segment add up what they have, in steps: each takes the next one's, and every other one is through.
#pragma unroll
  for (uint32_t bit = 1; bit < MK_SIFT_SEGMENTS; bit *= 2) {
    uint32_t set = __ballot_sync(0xffffffffu, (segment & bit) != 0);
    peers &= (segment & bit) != 0 ? set : ~set;
  }
  uint32_t rank = __popc(peers & ((1u << c.lane) - 1)), rest = stands ? peers & (0xfffffffeu << c.lane) : 0;
  bool first = stands && rank == 0;
#pragma unroll 1
  while (__any_sync(0xffffffffu, rest != 0)) {
    uint32_t from = rest != 0 ? __ffs(static_cast<int>(rest)) - 1 : c.lane;
    uint64_t more = __shfl_sync(0xffffffffu, mass, from), other = __shfl_sync(0xffffffffu, draw, from);
    mass += rest != 0 ? more : 0;
    draw = max(draw, other);
    rest &= __ballot_sync(0xffffffffu, rank % 2 == 0);
    rank /= 2;
  }
  if (first) {
    l.sum.mass[segment] += mass;
    l.sum.best[segment] = max(l.sum.best[segment], draw);
    l.sum.count[segment] += __popc(peers);
  }
  __syncwarp();
}

__device__ inline uint64_t sum_of_lanes(uint64_t value) {
#pragma unroll 1
  for (uint32_t away = 16; away != 0; away /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, away);
  }
  return value;
}

// The tally of this SM's tokens of the line, from its logits, or (`all`) of all that there are, from scores.
__device__ inline void tally_line(const consumer &c, const mk_instruction_word &in, line_search &l, bool all,
                                  uint32_t pivots) {
  line_tokens t = own_tokens(c);
  const uint64_t *scores = start_of<const uint64_t>(in, MK_PART_SIFT_scores) + t.by_line;
  lowest_tokens lowest;
  if (all) {
    t.first = 0;
    t.end = rows_shared()->vocab;
  }
  l.sum.mass[c.lane] = 0;
  l.sum.best[c.lane] = 0;
  l.sum.count[c.lane] = 0;
  __syncwarp();
  logits_ahead ahead(c, t);
#pragma unroll 1
  for (uint32_t base = t.first; base < t.end; base += 32) {
    uint32_t token = base + c.lane, known = min(token, t.end - 1);
    float score;
    if (all) {
      uint32_t word[1];
      wait_stamped_words<1>(
          c.d, in.parts[MK_PART_SIFT_scores].buffer, [&](uint32_t) { return scores + known; }, word);
      score = __uint_as_float(word[0]);
    } else {
      score = score_of_token(c, l.words, l.counted, t, known, ahead.take(t, token));
    }
    tally_lanes(c, l, token < t.end, score, token, pivots, lowest);
  }
  uint64_t mass = sum_of_lanes(lowest.mass), best = highest_key(lowest.best);
  uint32_t count = __reduce_add_sync(0xffffffffu, lowest.count);
  if (c.lane == 0) {
    l.sum.mass[MK_SIFT_SEGMENTS - 1] = mass;
    l.sum.best[MK_SIFT_SEGMENTS - 1] = best;
    l.sum.count[MK_SIFT_SEGMENTS - 1] = count;
  }
  __syncwarp();
}

// This SM's scores of the line, for a DRAW that looks at all.
__device__ inline void publish_scores(const consumer &c, const mk_instruction_word &in, const line_search &l) {
  line_tokens t = own_tokens(c);
  uint64_t *scores = start_of<uint64_t>(in, MK_PART_SIFT_scores) + t.by_line;
  logits_ahead ahead(c, t);
#pragma unroll 1
  for (uint32_t base = t.first; base < t.end; base += 32) {
    uint32_t token = base + c.lane;
    float score = score_of_token(c, l.words, l.counted, t, min(token, t.end - 1), ahead.take(t, token));
    if (token < t.end && publishes(c.d)) {
      tile::store_stamped(scores + token, __float_as_uint(score), c.d.generation());
    }
  }
}

// Where a line's round of an SM begins.
__device__ inline uint64_t *round_of(const consumer &c, const mk_instruction_word &in, uint32_t part, uint32_t sm,
                                     uint32_t line) {
  return start_of<uint64_t>(in, part) + (sm * c.d.params.rows + line) * MK_SIFT_WORDS;
}
__device__ inline bool weighs(const line_search &l) { return (l.words[MK_SAMPLING_FLAGS] & MK_SAMPLE_TOP_P) != 0; }

__device__ inline void put_field(const consumer &c, uint64_t *round, uint32_t field, uint64_t value) {
  if (publishes(c.d)) {
    tile::store_stamped_pair(round + mk_sift_word(field, c.lane), static_cast<uint32_t>(value),
                             static_cast<uint32_t>(value >> 32), c.d.generation());
  }
}
__device__ inline void put_count(const consumer &c, uint64_t *round, uint32_t count) {
  if (publishes(c.d)) {
    tile::store_stamped(round + mk_sift_word(MK_SIFT_COUNT, c.lane), count, c.d.generation());
  }
}

// The words that are looked at.
__device__ inline void publish_tally(const consumer &c, const mk_instruction_word &in, const line_search &l) {
  uint64_t *round = round_of(c, in, MK_PART_SIFT_round, in.parts[MK_PART_SIFT_round].row, c.warp);
  put_field(c, round, MK_SIFT_BEST, l.sum.best[c.lane]);
  put_count(c, round, l.sum.count[c.lane]);
  if (weighs(l)) {
    put_field(c, round, MK_SIFT_MASS, l.sum.mass[c.lane]);
  }
}

// Adds up rounds of a line, of every `step`-th SM from `first` on: segment c.lane.
struct segment_sum {
  uint64_t mass = 0, best = 0;
  uint32_t count = 0;
};
__device__ inline segment_sum sum_rounds(const consumer &c, const mk_instruction_word &in, uint32_t line, bool mass,
                                         uint32_t first, uint32_t end, uint32_t step) {
  enum { BATCH = MK_GPU_RECORDS ? 2 : 3, FIELDS = 3 };  // while it is recorded there are no registers for more
  segment_sum sum;
#pragma unroll 1
  for (uint32_t base = first; base < end; base += BATCH * step) {
    tile::stamped_pair pairs[BATCH * FIELDS];
    // Of counts a pair is that of two neighbouring segments.
    wait_stamped_pairs<BATCH * FIELDS>(
        c.d, in.parts[MK_PART_SIFT_rounds].buffer,
        [&](uint32_t i) {
          uint32_t field = i % FIELDS == 0 ? MK_SIFT_MASS : i % FIELDS == 1 ? MK_SIFT_BEST : MK_SIFT_COUNT;
          uint32_t lane = field == MK_SIFT_COUNT ? c.lane & ~1u : c.lane;
          return round_of(c, in, MK_PART_SIFT_rounds, base + i / FIELDS * step, line) + mk_sift_word(field, lane);
        },
        [&](uint32_t i) { return base + i / FIELDS * step < end && (i % FIELDS != 0 || mass); }, pairs);
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {  // what is not there is 0
      const tile::stamped_pair &counts = pairs[i * FIELDS + 2];
      sum.mass += pair_value(pairs[i * FIELDS]);
      sum.best = max(sum.best, pair_value(pairs[i * FIELDS + 1]));
      sum.count += tile::stamp_data(c.lane % 2 == 0 ? counts.low : counts.high);
    }
  }
  return sum;
}

__device__ inline uint32_t owner_of(const consumer &c, const mk_instruction_word &in, uint32_t line) {
  return mk_sift_owner(line, c.d.params.rows, fronts_in(in));
}

// Lines that search: a bit for each.
__device__ inline uint32_t searching_lines(const consumer &c) {
  uint32_t line = c.lane % MK_MAX_ROWS;
  return __ballot_sync(0xffffffffu, line_chooses(c, line) && mk_sampling_cuts(area().lines[line].words)) & 0xffffu;
}

// The sums of those of `lines` that are this SM's: all warps add up, each those of some SMs. Whether a line searches
// its warp has said in SCORE, and whether it is still at it before all meet here; afterwards nobody changes that until
// the next SIFT, to which its warp does not come before all have met again.
__device__ inline void sum_owned_lines(const consumer &c, const mk_instruction_word &in, uint32_t lines) {
  warp_tallies &t = area().of_warps;
  uint32_t row = in.parts[MK_PART_SIFT_round].row;
  uint32_t owned = __ballot_sync(0xffffffffu, c.lane < c.d.params.rows && owner_of(c, in, c.lane) == row);
#pragma unroll 1
  for (uint32_t left = owned & lines; left != 0; left &= left - 1) {
    uint32_t line = __ffs(static_cast<int>(left)) - 1;
    line_search &l = area().lines[line];
    consumers_meet(c);
    if (state_of(l) != MK_SIFT_OPEN) {
      continue;
    }
    bool mass = tile::uniform(weighs(l));
    segment_sum sum = sum_rounds(c, in, line, mass, c.warp, fronts_in(in), MK_GPU_CONSUMER_WARPS);
    t.mass[c.warp][c.lane] = sum.mass;
    t.best[c.warp][c.lane] = sum.best;
    t.count[c.warp][c.lane] = sum.count;
    consumers_meet(c);
    uint64_t *round = round_of(c, in, MK_PART_SIFT_round, row, line);
    uint64_t value = 0;
    if (c.warp < 3) {
#pragma unroll 4
      for (uint32_t w = 0; w < MK_GPU_CONSUMER_WARPS; w++) {
        value = c.warp == MK_SIFT_MASS   ? value + t.mass[w][c.lane]
                : c.warp == MK_SIFT_BEST ? max(value, t.best[w][c.lane])
                                         : value + t.count[w][c.lane];
      }
      if (c.warp == MK_SIFT_COUNT) {
        put_count(c, round, static_cast<uint32_t>(value));
      } else if (c.warp != MK_SIFT_MASS || mass) {
        put_field(c, round, c.warp, value);
      }
    }
  }
}
static_assert(MK_SIFT_MASS < 3 && MK_SIFT_BEST < 3 && MK_SIFT_COUNT < 3, "three warps have a field each");

__device__ inline void decide_line(const consumer &c, line_search &l) {
  uint64_t winner = 0;
  bool found = decide_by_lanes(c.lane, l, &winner);
  __syncwarp();
  if (c.lane == 0 && found) {
    l.state = MK_SIFT_FOUND;
    l.winner = winner;
  }
  __syncwarp();
}

// From what the round before has left, or from the highest score on. Afterwards the search is over, or it is OPEN and the line has pivots.
__device__ inline void go_on(const consumer &c, const mk_instruction_word &in, line_search &l, bool behind) {
  if (behind) {
    uint32_t owner = owner_of(c, in, c.warp);
    segment_sum sum = sum_rounds(c, in, c.warp, weighs(l), owner, owner + 1, 1);
    l.sum.mass[c.lane] = sum.mass;
    l.sum.best[c.lane] = sum.best;
    l.sum.count[c.lane] = sum.count;
    __syncwarp();
    decide_line(c, l);
  } else {
    l.pivots[c.lane] = mk_sift_first_pivot(l.words, l.highest, c.lane);
    __syncwarp();
  }
}

// The line's choice, for NEXT. Of words that nobody filled, whose token the host never sees, it must be one that has an embedding all the same.
__device__ inline void choose(const consumer &c, const mk_instruction_word &in, bool active, const line_search &l) {
  bool chooses = line_chooses(c, c.warp), failed = l.winner >> 32 == MK_DRAW_FAILED_HIGH;
  uint32_t token = min(mk_rank_token(l.winner), rows_shared()->vocab - 1);
  uint32_t stop = active && (l.flags & MK_FRONT_STOP) != 0 ? MK_CANDIDATE_STOP : 0;
  if (c.lane != 0) {
    return;
  }
  rows_shared()->results[c.warp] = chooses ? token | (failed ? MK_RESULT_NAN : 0u) : MK_CANDIDATE_NONE;
  c.d.words()->index[c.d.epoch % 2][c.warp] = stop;
  if (active && publishes(c.d)) {
    uint64_t *choice = start_of<uint64_t>(in, MK_PART_DRAW_choice) +
                       (in.parts[MK_PART_DRAW_choice].row * c.d.params.rows + c.warp) * 2;
    float value = !chooses ? -INFINITY : failed ? NAN : 0.0f;
    tile::store_stamped_pair(choice, __float_as_uint(value), (chooses ? token : MK_CANDIDATE_NONE) | stop,
                             c.d.generation());
  }
}

// The step's tokens, where they are this SM's, once nobody looks at counts any more.
__device__ inline void count_tokens(const consumer &c) {
  uint32_t lines = tile::uniform(lines_of_own_tokens(c));
  if (lines != 0) {
    consumers_meet(c);
    lines = c.warp == 0 ? lines : 0;
  }
  const volatile rows_state &state = rows_of(c.d);
#pragma unroll 1
  for (; lines != 0; lines &= lines - 1) {  // all lanes do the same
    uint32_t line = __ffs(static_cast<int>(lines)) - 1;
    uint32_t *count = const_cast<uint32_t *>(c.d.words()->counts) + state.rows[line].slot * rows_shared()->vocab +
                      state.rows[line].token;
    uint32_t more = counted_once_more(__ldcg(count), state.rows[line].flags);
    __syncwarp();
    if (c.lane == 0) {
      *count = more;
    }
    __syncwarp();
  }
}

// DRAW, once the rounds are over: every SM goes on by itself over all scores, and all to the same end.
__device__ inline void search_all(const consumer &c, const mk_instruction_word &in, line_search &l) {
  publish_scores(c, in, l);
#pragma unroll 1
  for (uint32_t pass = 0; pass < MK_SIFT_MOST_PASSES && state_of(l) == MK_SIFT_OPEN; pass++) {
    tally_line(c, in, l, true, PIVOTS_ANY);
    decide_line(c, l);
  }
}

__device__ inline void consume_search(rows_consumer &here, const mk_instruction_word &in) {
  rows_consumer c = here;
  c.lane = tile::anew(c.lane);
  c.warp = tile::anew(c.warp);
  look_up_epoch(c);
  line_search &l = area().lines[c.warp];
  bool draw = in.opcode == MK_OP_DRAW, active = (rows_of(c.d).active >> c.warp & 1) != 0;
  uint32_t searching = searching_lines(c);
  if (!draw && searching == 0) {
    return;
  }
  bool cuts = (searching >> c.warp & 1) != 0;
  bool behind = in.parts[MK_PART_SIFT_rounds].rows != 0;
  bool adds_up = tile::uniform(l.rounds % 2u != 0);
  __syncwarp();
  if (c.lane == 0) {
    l.rounds++;
  }
  if (!draw && adds_up) {
    sum_owned_lines(c, in, searching);
    return;
  }
  if (active && (cuts ? !behind : draw)) {
    read_fronts(c, in, l);
  }
  if (cuts && state_of(l) == MK_SIFT_OPEN) {
    go_on(c, in, l, behind);
    if (!draw && state_of(l) == MK_SIFT_OPEN) {
      tally_line(c, in, l, false, behind ? PIVOTS_NARROWED : PIVOTS_FIRST);
      publish_tally(c, in, l);
    }
  }
  if (!draw) {
    return;
  }
  if (!cuts && line_chooses(c, c.warp) && !tile::uniform(mk_sampling_one_draw(l.words)) &&
      state_of(l) == MK_SIFT_OPEN) {
    if (tile::uniform((l.flags & MK_FRONT_OVERFLOW) != 0)) {
      go_on(c, in, l, false);
      cuts = true;
    } else {
      read_entries(c, in, l);
    }
  }
  if (cuts && state_of(l) == MK_SIFT_OPEN) {
    search_all(c, in, l);
  }
  choose(c, in, active, l);
  count_tokens(c);
}

}  // namespace mk
