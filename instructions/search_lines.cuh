// SIFT and DRAW of several rows per step on the device: one body for both; search.c, sift.c, draw.c, docs/SAMPLING.md.
// Consumers only: a warp goes through the search of the line at hand by itself, with what SCORE (score_lines.cuh) has
// left of it. A line searches where its parameters (top-k, top-p) ask for that.
//
// SIFTs come in pairs (refuse.c). In the first one all SMs publish their tallies of a line. In the second one a single
// SM, the line's owner, adds these up and publishes the sums, from which the next pair goes on. So an SM reads all SMs'
// tallies of one line, and not of all lines. All warps of the owner take part in adding up.
//
// Waits, by stamps. For a line that does not search: DRAW for the fronts of all SMs. For a line that searches: the
// first SIFT for these fronts; the second of a pair for the tallies; the first of a later pair, and DRAW, for the sums;
// DRAW also for the scores of all SMs, if the search is not over by then. DRAW publishes its choice for every active
// line. SIFT publishes only for lines that search, since nobody reads the tallies of others.
#pragma once
#include "instructions/score_lines.cuh"

namespace mk {

// SIFT and DRAW have what they read in the same places.
static_assert(MK_PART_SIFT_fronts == MK_PART_DRAW_fronts && MK_PART_SIFT_rounds == MK_PART_DRAW_rounds &&
                  MK_PART_SIFT_scores == MK_PART_DRAW_scores && MK_WHOLE_SIFT_sampling == MK_WHOLE_DRAW_sampling,
              "fronts, rounds, scores; sampling");

// Fronts that a lane reads at a time. With five, a warp reads those of 132 SMs at once; a kernel of several rows that
// records has not enough registers for that.
enum { FRONTS_AHEAD = MK_GPU_RECORDS && !MK_GPU_SLOTS ? 3 : 5 };

// Of each front of a line that has min-p and does not search: the upper half of its best draw, and how many entries it
// has. They lie where a line that searches has its table and its pivots. Of several ranks there may be more fronts than
// room: those of every MOST_FRONTS-th SM are one there, with the best of their draws, and without numbers of entries. A
// lane reads and writes those of every 32nd SM alone.
__device__ inline uint32_t *front_draws(line_search &l) { return l.table; }
__device__ inline uint8_t *front_counts(line_search &l) { return tile::view<uint8_t>(l.pivots); }
static_assert(MOST_FRONTS <= sizeof(line_search::pivots), "they have room there");

static_assert(!MK_GPU_RANKS || FRONTS_AHEAD * 32 == MOST_FRONTS, "a lane reads the fronts that are one there");
// Whether all fronts of a line are read at once. Then their words are still at hand when the highest score is known.
constexpr bool FRONTS_AT_ONCE = !MK_GPU_RANKS && FRONTS_AHEAD * 32 >= MOST_FRONTS;

__device__ inline uint32_t fronts_in(const mk_instruction_word &in) { return in.parts[MK_PART_SIFT_fronts].rows; }
__device__ inline const uint64_t *front_of_line(const drawer &c, const mk_instruction_word &in, uint32_t sm) {
  return start_of<const uint64_t>(in, MK_PART_SIFT_fronts) + (sm * c.d.params.rows + line_at_hand(c)) * MK_FRONT_WORDS;
}

// Reads the heads of all SMs' fronts and their first entries. Finds the highest score and the flags. Where the first
// entries are all that count, it also finds the best draw; with top-k or top-p, the draw of the token with the highest
// score, if one SM alone has that score. With min-p it notes which fronts have to be looked through. Where fronts are
// read at once, these are those that have an entry which min-p keeps, and others beside it: an entry alone is the SM's
// first rank, and no more has to be known of it.
__device__ inline void read_fronts(const drawer &c, const mk_instruction_word &in, line_search &l) {
  uint32_t sms = fronts_in(in), peak = 0, flags = 0;
  uint64_t best = 0, failed = 0;
  const uint32_t *words = parameters_of(c).words;
  bool cuts = tile::uniform(mk_sampling_cuts(words)), lists = tile::uniform(!mk_sampling_one_draw(words)) && !cuts;
  // Of this lane's SMs: the upper half of the draw of the token with the highest score; 0 where two have that score.
  uint32_t first = 0;
  tile::stamped_pair pairs[2 * FRONTS_AHEAD];
#pragma unroll 1
  for (uint32_t base = 0; base < (FRONTS_AT_ONCE ? 1 : sms); base += FRONTS_AHEAD * 32) {
    auto sm_of = [&](uint32_t i) { return base + i * 32 + c.lane; };
    const uint64_t *from = front_of_line(c, in, base + c.lane);
    const uint32_t stride = 32 * c.d.params.rows * MK_FRONT_WORDS;
    wait_stamped_pairs<2 * FRONTS_AHEAD>(
        c.d, in.parts[MK_PART_SIFT_fronts].buffer,
        [&](uint32_t i) { return from + i / 2 * stride + i % 2 * MK_FRONT_KEYS; },
        [&](uint32_t i) { return sm_of(i / 2) < sms; }, pairs);
    bool fails = false;
#pragma unroll
    for (uint32_t i = 0; i < FRONTS_AHEAD; i++) {  // of SMs that are not there all words are 0
      uint32_t own = tile::stamp_data(pairs[2 * i].low), draw = tile::stamp_data(pairs[2 * i + 1].high);
      first = own > peak ? draw : own == peak ? 0 : first;
      peak = max(peak, own);
      fails = fails || own == MK_PEAK_NAN;
      flags |= tile::stamp_data(pairs[2 * i].high);
      best = max(best, pair_value(pairs[2 * i + 1]));
      if constexpr (MK_GPU_RANKS) {
        if (lists && sm_of(i) < sms) {
          uint32_t &kept = front_draws(l)[sm_of(i) - base];
          kept = max(base == 0 ? 0 : kept, own == 0 ? 0 : draw);
        }
      } else if (!FRONTS_AT_ONCE && lists && sm_of(i) < sms) {
        front_draws(l)[sm_of(i)] = draw;
        front_counts(l)[sm_of(i)] = own == 0 ? 0 : entries_of(tile::stamp_data(pairs[2 * i].high));
      }
    }
    if (tile::any_lane(fails)) {
#pragma unroll
      for (uint32_t i = 0; i < FRONTS_AHEAD; i++) {
        uint32_t about = tile::stamp_data(pairs[2 * i].high);
        failed = tile::stamp_data(pairs[2 * i].low) == MK_PEAK_NAN
                     ? max(failed, mk_draw_failed(about & MK_SAMPLING_INDEX_MASK))
                     : failed;
      }
    }
  }
  best = failed != 0 ? failed : lists || cuts ? 0 : best;
  if (tells_of_all(c)) {
    tile::fence_acquire();  // by one line's warp: what all SMs did in this step is visible to warps that meet in NEXT
  }
  uint32_t highest = tile::largest_of_lanes(peak);
  uint32_t holders = tile::lanes_where(peak == highest);
  first = tile::from_lane(first, __ffs(static_cast<int>(holders)) - 1);
  peak = highest;
  flags = tile::or_lanes(flags) & (MK_FRONT_OVERFLOW | MK_FRONT_STOP);
  if (FRONTS_AT_ONCE && lists) {
#pragma unroll
    for (uint32_t i = 0; i < FRONTS_AHEAD; i++) {
      uint32_t own = tile::stamp_data(pairs[2 * i].low), count = entries_of(tile::stamp_data(pairs[2 * i].high));
      float distance = mk_sample_distance(words, mk_unordered(own), mk_unordered(peak));
      bool kept = own != 0 && !mk_sample_drops(words, distance);
      best = max(best, kept && count == 1 ? pair_value(pairs[2 * i + 1]) : 0);
      front_draws(l)[i * 32 + c.lane] = kept && count > 1 ? tile::stamp_data(pairs[2 * i + 1].high) : 0;
      front_counts(l)[i * 32 + c.lane] = count;
    }
  }
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
static_assert(!FRONTS_AT_ONCE || FRONTS_AHEAD * 32 == MOST_FRONTS, "there is a word for each");

// Of a front for each lane, of `count` entries: the best draw that min-p keeps, or `best`. Entries come in the order of
// their draws, so it is that of the first one that is kept.
__device__ inline void read_entries_of_front(const drawer &c, const mk_instruction_word &in, const line_search &l,
                                             uint32_t sm, uint32_t count, uint64_t &best) {
  enum { ENTRIES = 4 };  // at a time
  const uint32_t *words = parameters_of(c).words;
#pragma unroll 1
  for (uint32_t entry = 0; tile::any_lane(entry < count); entry += ENTRIES) {
    tile::stamped_pair pairs[ENTRIES + ENTRIES / 2];  // keys, then scores; after the last entry comes one that is none
    wait_stamped_pairs<ENTRIES + ENTRIES / 2>(
        c.d, in.parts[MK_PART_SIFT_fronts].buffer,
        [&](uint32_t i) {
          return front_of_line(c, in, sm) +
                 (i < ENTRIES ? MK_FRONT_KEYS + 2 * (entry + i) : MK_FRONT_SCORES + entry + 2 * (i - ENTRIES));
        },
        [&](uint32_t i) { return entry + (i < ENTRIES ? i : 2 * (i - ENTRIES)) < count; }, pairs);
#pragma unroll
    for (uint32_t i = 0; i < ENTRIES; i++) {
      const tile::stamped_pair &scores = pairs[ENTRIES + i / 2];
      float score = __uint_as_float(tile::stamp_data(i % 2 == 0 ? scores.low : scores.high));
      bool kept = entry + i < count && !mk_sample_drops(words, mk_sample_distance(words, score, l.highest));
      best = kept ? max(best, pair_value(pairs[i])) : best;
      count = kept ? 0 : count;
    }
  }
}

// Finds the best draw of the entries that min-p keeps; read_fronts must have been called. Each lane has some of the
// SMs, and looks through those of their fronts whose best draw may be the winner, the highest one first. Few fronts are
// read: once a draw is found that min-p keeps, no front with a lower best draw matters.
__device__ inline void read_entries(const drawer &c, const mk_instruction_word &in, line_search &l) {
  enum { OF_LANE = MOST_FRONTS / 32 };
  uint32_t draws[OF_LANE], sms = min(fronts_in(in), static_cast<uint32_t>(MOST_FRONTS));
#pragma unroll
  for (uint32_t i = 0; i < OF_LANE; i++) {
    uint32_t sm = i * 32 + c.lane;
    draws[i] = sm < sms ? front_draws(l)[sm] : 0;
  }
  uint64_t best = l.winner;
  for (;;) {
    uint32_t most = 0, sm = 0;
#pragma unroll
    for (uint32_t i = 0; i < OF_LANE; i++) {
      sm = draws[i] > most ? i * 32 + c.lane : sm;
      most = max(most, draws[i]);
    }
    bool looks = most != 0 && most >= static_cast<uint32_t>(best >> 32);
    if (!tile::any_lane(looks)) {
      break;
    }
    uint32_t count = looks && !MK_GPU_RANKS ? front_counts(l)[sm] : 0;
#pragma unroll
    for (uint32_t i = 0; i < OF_LANE; i++) {
      draws[i] = i * 32 + c.lane == sm ? 0 : draws[i];
    }
    if constexpr (MK_GPU_RANKS) {
#pragma unroll 1
      for (uint32_t at = sm; tile::any_lane(looks && at < fronts_in(in)); at += MOST_FRONTS) {
        tile::stamped_pair head;
        bool here = looks && at < fronts_in(in);
        wait_pair(c.d, front_of_line(c, in, at), here, in.parts[MK_PART_SIFT_fronts].buffer, head);
        count = here && tile::stamp_data(head.low) != 0 ? entries_of(tile::stamp_data(head.high)) : 0;
        read_entries_of_front(c, in, l, at, count, best);
      }
    } else {
      read_entries_of_front(c, in, l, sm, count, best);
    }
    best = highest_key(best);
  }
  if (c.lane == 0) {
    l.winner = best;
  }
  __syncwarp();
}

// The pivots of the first round lie at known distances from the highest score. Those of later rounds are set anew,
// within what is still open. Then most tokens lie before the first pivot, or after the last one. That one is the lower
// end of what is open, so the tokens after it are dropped, and their draws do not matter.
enum pivot_kind : uint32_t { PIVOTS_FIRST, PIVOTS_NARROWED };

// The same as mk_sift_segment, but it begins with a guess, which is seldom wrong.
__device__ inline uint32_t segment_of(const line_search &l, uint32_t kind, uint64_t key, float distance) {
  float square = fmaf(fmaxf(distance, -13.0f), -1.0f / MK_SIFT_FIRST_STEP, 16.0f);
  uint32_t guess = static_cast<uint32_t>(fminf(square * rsqrtf(square) - 4.0f, MK_SIFT_SEGMENTS - 1.0f));
  uint32_t segment = kind == PIVOTS_FIRST ? guess : key < l.pivots[MK_SIFT_SEGMENTS - 1] ? MK_SIFT_SEGMENTS - 1 : 0;
  uint64_t end = segment + 1 < MK_SIFT_SEGMENTS ? l.pivots[segment + 1] : 0;
  bool wrong = key >= l.pivots[segment] || key < end;
  return tile::any_lane(wrong) ? mk_sift_segment(l.pivots, key) : segment;
}

// Whether the line's parameters ask for the sums of weights: those with top-p do.
__device__ inline bool line_weighs(const line_parameters &p) {
  return (p.words[MK_SAMPLING_FLAGS] & MK_SAMPLE_TOP_P) != 0;
}

// What a lane has of a tally while that is being made. Lane i stands for segment i: `best` is the best draw in the
// segments up to i, and `reached` is that draw as a number, or what the winner's draw reaches in any case if that is
// more. Many tokens may be in the first and the last segment, so each lane sums up its own tokens of these two; sums of
// the other segments are in the line's table.
struct tally_at_work {
  uint64_t best = 0;
  float reached;
  uint64_t first_mass = 0, last_mass = 0;
  uint32_t first_count = 0, last_count = 0;
};
// The table has three words for each segment: the lower bits of its weights, the rest of them, and its number of
// tokens. None of them overflows within so many tokens.
enum { WEIGHT_BITS = 20, TALLIED_TOGETHER = 2048 };
__device__ inline uint32_t &table_word(line_search &l, uint32_t field, uint32_t segment) {
  return l.table[field * MK_SIFT_SEGMENTS + segment];
}
static_assert(3 * MK_SIFT_SEGMENTS <= MOST_FRONTS, "it has room there");

__device__ inline void tally_lanes(const drawer &c, line_search &l, bool stands, float score, uint32_t token,
                                   uint32_t kind, bool weighs, tally_at_work &t) {
  const line_parameters &p = parameters_of(c);
  float distance = mk_sample_distance(p.words, score, l.highest);
  uint32_t segment = segment_of(l, kind, mk_rank_key(score, token), distance);
  bool last = segment == MK_SIFT_SEGMENTS - 1;
  float reached = tile::from_lane(t.reached, segment);
  bool draws = stands && !(kind == PIVOTS_NARROWED && last) && !mk_sample_drops(p.words, distance) &&
               may_reach(p, score, token, reached);
  uint32_t left = tile::lanes_where(draws);
  if (left != 0) {
    uint64_t draw = mk_sample_draw(p.words, p.key, score, token);
#pragma unroll 1
    for (; left != 0; left &= left - 1) {
      uint32_t from = __ffs(static_cast<int>(left)) - 1;
      uint64_t other = tile::from_lane(draw, from);
      t.best = c.lane >= tile::from_lane(segment, from) ? max(t.best, other) : t.best;
    }
    t.reached = fmaxf(l.bound, value_of_draw(static_cast<uint32_t>(t.best >> 32)));
  }
  uint64_t mass = 0;
  if (weighs) {
    mass = mk_sample_weight(distance);
  }
  t.last_mass += stands && last ? mass : 0;
  t.last_count += stands && last ? 1 : 0;
  t.first_mass += stands && segment == 0 ? mass : 0;
  t.first_count += stands && segment == 0 ? 1 : 0;
  bool inside = stands && !last && segment != 0;
  if (weighs) {
    tile::add_shared_if(inside, table_word(l, 0, segment), static_cast<uint32_t>(mass) & ((1u << WEIGHT_BITS) - 1));
    tile::add_shared_if(inside, table_word(l, 1, segment), static_cast<uint32_t>(mass >> WEIGHT_BITS));
  }
  tile::add_shared_if(inside, table_word(l, 2, segment), 1);
}

__device__ inline uint64_t sum_of_lanes(uint64_t value) {
#pragma unroll 1
  for (uint32_t away = 16; away != 0; away /= 2) {
    value += tile::exchange(value, away);
  }
  return value;
}

// Tallies this SM's tokens of the line, from its logits, or (`all`) the tokens of all SMs, from scores. What is given
// as a segment's best draw is the best one of that segment and all before it; the decision comes out the same.
__device__ inline segment_sum tally_line(const drawer &c, const mk_instruction_word &in, line_search &l, bool all,
                                         uint32_t kind) {
  const line_parameters &p = parameters_of(c);
  line_tokens t = own_tokens(c);
  const uint64_t *scores = start_of<const uint64_t>(in, MK_PART_SIFT_scores) + t.by_line;
  bool weighs = tile::uniform(line_weighs(p));
  segment_sum sum;
  tally_at_work work;
  work.reached = l.bound;
  if (all) {
    t.first = 0;
    t.end = vocabulary_of(c);
  }
  logits_ahead ahead(c, t);
#pragma unroll 1
  for (uint32_t base = t.first; base < t.end;) {
    uint32_t end = min(base + TALLIED_TOGETHER, t.end);
#pragma unroll
    for (uint32_t field = 0; field < 3; field++) {
      table_word(l, field, c.lane) = 0;
    }
    __syncwarp();
#pragma unroll 1
    for (; base < end; base += 32) {
      uint32_t token = base + c.lane, known = min(token, t.end - 1);
      float score;
      if (all) {
        uint32_t word[1];
        wait_stamped_words<1>(
            c.d, in.parts[MK_PART_SIFT_scores].buffer, [&](uint32_t) { return scores + known; }, word);
        score = __uint_as_float(word[0]);
      } else {
        score = score_of_token(c, p.words, p.counted, t, known, ahead.take(t, token));
      }
      tally_lanes(c, l, token < t.end, score, token, kind, weighs, work);
    }
    __syncwarp();
    sum.mass += (static_cast<uint64_t>(table_word(l, 1, c.lane)) << WEIGHT_BITS) + table_word(l, 0, c.lane);
    sum.count += table_word(l, 2, c.lane);
    __syncwarp();
  }
  uint64_t first_mass = sum_of_lanes(work.first_mass), last_mass = sum_of_lanes(work.last_mass);
  uint32_t first_count = tile::sum_lanes(work.first_count);
  uint32_t last_count = tile::sum_lanes(work.last_count);
  if (c.lane == 0) {
    sum = {first_mass, 0, first_count};
  } else if (c.lane == MK_SIFT_SEGMENTS - 1) {
    sum = {last_mass, 0, last_count};
  }
  sum.best = work.best;
  return sum;
}

// Publishes this SM's scores of the line, for a DRAW that looks at those of all SMs.
__device__ inline void publish_scores(const drawer &c, const mk_instruction_word &in) {
  const line_parameters &p = parameters_of(c);
  line_tokens t = own_tokens(c);
  uint64_t *scores = start_of<uint64_t>(in, MK_PART_SIFT_scores) + t.by_line;
  uint32_t readers = all_readers(c.d);  // DRAW's own operand is what it reads
  logits_ahead ahead(c, t);
#pragma unroll 1
  for (uint32_t base = t.first; base < t.end; base += 32) {
    uint32_t token = base + c.lane;
    float score = score_of_token(c, p.words, p.counted, t, min(token, t.end - 1), ahead.take(t, token));
    if (token < t.end && publishes(c.d)) {
      to_readers(readers, scores + token,
                 [=](uint64_t *to) { tile::store_stamped(to, __float_as_uint(score), c.d.generation()); });
    }
  }
}

// The start of the words that an SM publishes of a line in a SIFT.
__device__ inline uint64_t *round_of(const drawer &c, const mk_instruction_word &in, uint32_t part, uint32_t sm,
                                     uint32_t line) {
  return start_of<uint64_t>(in, part) + (sm * c.d.params.rows + line) * MK_SIFT_WORDS;
}

__device__ inline void put_field(const drawer &c, uint32_t readers, uint64_t *round, uint32_t field, uint64_t value) {
  if (publishes(c.d)) {
    to_readers(readers, round + mk_sift_word(field, c.lane), [=](uint64_t *to) {
      tile::store_stamped_pair(to, static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32), c.d.generation());
    });
  }
}
__device__ inline void put_count(const drawer &c, uint32_t readers, uint64_t *round, uint32_t count) {
  if (publishes(c.d)) {
    to_readers(readers, round + mk_sift_word(MK_SIFT_COUNT, c.lane),
               [=](uint64_t *to) { tile::store_stamped(to, count, c.d.generation()); });
  }
}

__device__ inline uint32_t owner_of(const drawer &c, const mk_instruction_word &in, uint32_t line) {
  return mk_sift_owner(line, c.d.params.rows, fronts_in(in));
}

// The rank whose copies the tally of this warp's line goes to: that of the line's owner, as a bit.
__device__ inline uint32_t readers_of_tally(const drawer &c, const mk_instruction_word &in) {
  return MK_GPU_RANKS ? 1u << (owner_of(c, in, line_at_hand(c)) / (fronts_in(in) / c.d.params.peers->ranks)) : 0;
}

// Publishes those words of a tally that other SMs read.
__device__ inline void publish_tally(const drawer &c, const mk_instruction_word &in, const segment_sum &sum) {
  uint64_t *round = round_of(c, in, MK_PART_SIFT_round, in.parts[MK_PART_SIFT_round].row, line_at_hand(c));
  uint32_t owner = readers_of_tally(c, in);
  put_field(c, owner, round, MK_SIFT_BEST, sum.best);
  put_count(c, owner, round, sum.count);
  if (line_weighs(parameters_of(c))) {
    put_field(c, owner, round, MK_SIFT_MASS, sum.mass);
  }
}

// Adds up rounds of a line: those of every `step`-th SM from `first` on, `batch` at a time.
template <uint32_t batch>
__device__ inline segment_sum sum_rounds(const drawer &c, const mk_instruction_word &in, uint32_t line, bool mass,
                                         uint32_t first, uint32_t end, uint32_t step) {
  enum { FIELDS = 3 };
  segment_sum sum;
#pragma unroll 1
  for (uint32_t base = first; base < end; base += batch * step) {
    tile::stamped_pair pairs[batch * FIELDS];
    // A pair of words of counts has the counts of two neighbouring segments.
    wait_stamped_pairs<batch * FIELDS>(
        c.d, in.parts[MK_PART_SIFT_rounds].buffer,
        [&](uint32_t i) {
          uint32_t field = i % FIELDS == 0 ? MK_SIFT_MASS : i % FIELDS == 1 ? MK_SIFT_BEST : MK_SIFT_COUNT;
          uint32_t lane = field == MK_SIFT_COUNT ? c.lane - tile::place_in_group<2>(c.lane) : c.lane;
          return round_of(c, in, MK_PART_SIFT_rounds, base + i / FIELDS * step, line) + mk_sift_word(field, lane);
        },
        [&](uint32_t i) { return base + i / FIELDS * step < end && (i % FIELDS != 0 || mass); }, pairs);
#pragma unroll
    for (uint32_t i = 0; i < batch; i++) {  // what is not there is 0
      const tile::stamped_pair &counts = pairs[i * FIELDS + 2];
      sum.mass += pair_value(pairs[i * FIELDS]);
      sum.best = max(sum.best, pair_value(pairs[i * FIELDS + 1]));
      sum.count += tile::stamp_data(tile::place_in_group<2>(c.lane) == 0 ? counts.low : counts.high);
    }
  }
  return sum;
}

// Adds up the tallies of those of 32 lines, from `base` on, that this SM owns and that are among `lines`. All warps
// take part, each with the tallies of some SMs. Whether a line still searches (its state) is written by the line's warp
// alone, before all warps meet here, and changed next in a later SIFT, to which no warp comes before all have met
// again. So all warps read the same state.
__device__ inline void sum_owned_lines(const drawer &c, const mk_instruction_word &in, uint32_t base, uint32_t lines) {
  warp_tallies &t = tallies_of_warps();
  uint32_t row = in.parts[MK_PART_SIFT_round].row, of_lane = base + c.lane;
  uint32_t owned = tile::lanes_where(of_lane < c.d.params.rows && owner_of(c, in, of_lane) == row);
#pragma unroll 1
  for (uint32_t left = owned & lines; left != 0; left &= left - 1) {
    uint32_t line = base + __ffs(static_cast<int>(left)) - 1;
    consumers_meet(c);
    if (!line_is_open(line)) {
      continue;
    }
    bool mass = line_has_weights(line);
    // A kernel that records has no registers for more than 2 SMs' at a time.
    segment_sum sum =
        sum_rounds < MK_GPU_RECORDS ? 2 : 3 > (c, in, line, mass, c.warp, fronts_in(in), MK_GPU_CONSUMER_WARPS);
    t.mass[c.warp][c.lane] = sum.mass;
    t.best[c.warp][c.lane] = sum.best;
    t.count[c.warp][c.lane] = sum.count;
    consumers_meet(c);
    uint64_t *round = round_of(c, in, MK_PART_SIFT_round, row, line);
    uint32_t readers = readers_of(in.parts[MK_PART_SIFT_round]);
    uint64_t value = 0;
    if (c.warp < 3) {
#pragma unroll 4
      for (uint32_t w = 0; w < MK_GPU_CONSUMER_WARPS; w++) {
        value = c.warp == MK_SIFT_MASS   ? value + t.mass[w][c.lane]
                : c.warp == MK_SIFT_BEST ? max(value, t.best[w][c.lane])
                                         : value + t.count[w][c.lane];
      }
      if (c.warp == MK_SIFT_COUNT) {
        put_count(c, readers, round, static_cast<uint32_t>(value));
      } else if (c.warp != MK_SIFT_MASS || mass) {
        put_field(c, readers, round, c.warp, value);
      }
    }
  }
}
static_assert(MK_SIFT_MASS < 3 && MK_SIFT_BEST < 3 && MK_SIFT_COUNT < 3, "three warps have a field each");

// Decides from the sums over all tokens: afterwards the search is over, or its pivots are set anew.
__device__ inline void decide_line(const drawer &c, line_search &l, const segment_sum &sum) {
  uint64_t best = l.winner;
  bool found = decide_by_lanes(c.lane, parameters_of(c).words, sum, l.pivots, &best);
  __syncwarp();
  if (c.lane == 0) {
    l.state = found ? MK_SIFT_FOUND : MK_SIFT_OPEN;
    l.winner = best;
    l.bound = fmaxf(l.bound, value_of_draw(static_cast<uint32_t>(best >> 32)));
  }
  __syncwarp();
}

// Goes on while the line's search is open: from what earlier rounds have left (`resumes`), or from the highest score
// on. A SIFT ends with this SM's tally, which it publishes. A DRAW tallies all scores instead, until the search is
// over: each SM does so by itself and comes to the same end.
__device__ inline void go_on(const drawer &c, const mk_instruction_word &in, line_search &l, bool resumes, bool draw) {
#pragma unroll 1
  for (uint32_t pass = 0; pass < MK_SIFT_MOST_PASSES && state_of(l) == MK_SIFT_OPEN; pass++) {
    segment_sum sum;
    if (pass != 0) {
      sum = tally_line(c, in, l, draw, resumes || pass != 1 ? PIVOTS_NARROWED : PIVOTS_FIRST);
    } else if (resumes) {
      uint32_t owner = owner_of(c, in, line_at_hand(c));
      sum = sum_rounds<1>(c, in, line_at_hand(c), line_weighs(parameters_of(c)), owner, owner + 1, 1);
    } else {
      l.pivots[c.lane] = mk_sift_first_pivot(parameters_of(c).words, l.highest, c.lane);
      __syncwarp();
    }
    if (pass != 0 && !draw) {
      publish_tally(c, in, sum);
      return;
    }
    if (pass != 0 || resumes) {
      decide_line(c, l, sum);
    }
    if (pass == 0 && draw && state_of(l) == MK_SIFT_OPEN) {
      publish_scores(c, in);
    }
  }
}

// What the line at hand does in a SIFT that tallies, or in a DRAW (`draw`). waits: the fronts of all SMs; cuts: it
// searches, and goes on from earlier rounds if it `resumes`.
__device__ inline void search_line(const drawer &c, const mk_instruction_word &in, line_search &l, bool waits,
                                   bool cuts, bool resumes, bool draw) {
  if (waits && (cuts ? !resumes : draw)) {
    read_fronts(c, in, l);
  }
  if (draw && !cuts && tile::uniform(line_chooses(c) && !mk_sampling_one_draw(parameters_of(c).words)) &&
      state_of(l) == MK_SIFT_OPEN) {
    if (tile::uniform((l.flags & MK_FRONT_OVERFLOW) != 0)) {
      cuts = true;
    } else {
      read_entries(c, in, l);
    }
  }
  if (cuts) {
    go_on(c, in, l, resumes, draw);
  }
}

// Keeps the line's choice, for NEXT. If a wait was given up, the winner may be anything: the host never sees that
// token, but it must still be one that has an embedding.
__device__ inline void choose(const drawer &c, const mk_instruction_word &in, bool active, const line_search &l) {
  bool chooses = line_chooses(c), failed = l.winner >> 32 == MK_DRAW_FAILED_HIGH;
  uint32_t token = min(mk_rank_token(l.winner), vocabulary_of(c) - 1);
  uint32_t stop = active && (l.flags & MK_FRONT_STOP) != 0 ? MK_CANDIDATE_STOP : 0;
  if (c.lane != 0) {
    return;
  }
  keep_choice(c, chooses ? token | (failed ? MK_RESULT_NAN : 0u) : MK_CANDIDATE_NONE, stop);
  if (active && publishes(c.d)) {
    uint64_t *choice = start_of<uint64_t>(in, MK_PART_DRAW_choice) +
                       (in.parts[MK_PART_DRAW_choice].row * c.d.params.rows + line_at_hand(c)) * 2;
    float value = !chooses ? -INFINITY : failed ? NAN : 0.0f;
    tile::store_stamped_pair(choice, __float_as_uint(value), (chooses ? token : MK_CANDIDATE_NONE) | stop,
                             c.d.generation());
  }
}

}  // namespace mk
