// SCORE on the device: penalties and bias, the count of the step's token, and what this SM's tokens bring into the
// draw; score.c.
//
// It is the storer's work, done within the HEAD before it: on each row tile of logits as soon as that is finished,
// while the next row tiles stream. When the storer comes to SCORE itself, only SCORE's signals are left to do. After
// the last row tile the storer publishes the front, and tells its SM's consumers that the logits are there; from these
// a SIFT computes the scores of this SM that it needs. The scores themselves are published only where another SM reads
// them, since a megabyte of them costs a token 2 us: where a search goes on in DRAW, or where, with min-p, a front
// overflows. The consumers find that out before the storer does, and alike on all SMs.
//
// The front lies in registers, an entry for each lane. Without min-p it is the best draw, which each lane finds for
// itself. With min-p it has only those of the reference's entries that min-p does not drop when compared with this SM's
// own highest score: what is dropped there is also dropped when compared with the highest score of all SMs, which is no
// lower.
#pragma once
#include "instructions/front.cuh"
#include "instructions/head.cuh"

namespace mk {

static_assert(MK_GPU_INSTRUCTION_SLOTS > 4,
              "with four, a SIFT of two ranks waited for ever for one after it to have room");

// SCORE, which is in the ring's slot after that of HEAD.
__device__ inline const mk_instruction_word &score_after(const mk_instruction_word &head) {
  const uint8_t *next = tile::view<uint8_t>(&head) + MK_GPU_INSTRUCTION_SLOT_BYTES;
  bool last = &head == &device::slot(MK_GPU_INSTRUCTION_SLOTS - 1)->instruction;
  return last ? device::slot(0)->instruction : *tile::view<mk_instruction_word>(next);
}

// Waits for the instruction after HEAD, which always comes. The controller fills a slot as soon as all roles have left
// the instruction that was in it a whole ring earlier, and none of them needs this storer for that any more. SCORE
// stays in its slot until this storer has been there, too.
__device__ inline void begin_SCORE(const storer &s, const mk_instruction_word &head, const instruction_cursor &cursor,
                                   row_store &r, score_store &q) {
  instruction_cursor next = cursor;
  next.next();
  q = {};
  if (!wait_instruction(s.d, next)) {
    return;
  }
  const mk_instruction_word &in = score_after(head);
  const uint32_t *words = start_of<const uint32_t>(in, whole_at(MK_WHOLE_SCORE_sampling));
  volatile shared_words *shared = s.d.words();  // this warp's: every lane writes the same
  uint32_t position =
      shared->state[s.d.epoch % 2].position;  // read here, as otherwise the compiler keeps multiples of it for long
  shared->logits = start_of<const float>(in, MK_PART_SCORE_logits);
  shared->bias = start_of<const float>(in, MK_PART_SCORE_bias);
  shared->counts = start_of<const uint32_t>(in, MK_PART_SCORE_counts);
  shared->inverse_temperature = mk_sampling_float(words, MK_SAMPLING_INVERSE_TEMPERATURE);
  shared->noise_start = mk_draw_key(mk_sampling_seed(words), position + 1);
  bool hidden = s.d.params.skip_signal_uid != 0 && in.uid == s.d.params.skip_signal_uid;
  q.flags = words[MK_SAMPLING_FLAGS] | SCORE_FOLLOWS | (publishes(s.d) && !hidden ? SCORE_PUBLISHES : 0) |
            ((state_of(s).flags & MK_ROW_CHOOSES) == 0 ? SCORE_INSIDE : 0) |
            (mk_sampling_cuts(words) ? SCORE_CUTS : 0) | (mk_sampling_one_draw(words) ? SCORE_ONE_DRAW : 0);
}

// Fetches the count of this lane's row of tile i for the next prepare_SCORE: it comes from memory, and so after the
// weights that were asked for before.
__device__ inline void fetch_count(const storer &s, const mk_instruction_word &head, uint32_t i, score_store &q) {
  const mk_operand &weight = head.parts[MK_PART_HEAD_weight];
  uint32_t row = (weight.row + i) * 16 + s.lane;
  bool mine = i < weight.rows && s.lane < 16 && row < param(head, MK_PARAM_HEAD_vocab);
  bool seen = row == state_of(s).token && (q.flags & SCORE_FOLLOWS) != 0;
  q.count = 0;
  if (mine && (seen || (q.flags & MK_SAMPLE_PENALTIES) != 0)) {
    q.count = __ldcg(start_of<uint32_t>(score_after(head), MK_PART_SCORE_counts) + row);
  }
}

// What can be done for row tile i before its logits are there.
__device__ inline void prepare_SCORE(const storer &s, const mk_instruction_word &head, uint32_t i, row_store &r,
                                     score_store &q) {
  const mk_operand &weight = head.parts[MK_PART_HEAD_weight];
  uint32_t row = (weight.row + i) * 16 + s.lane;
  if ((q.flags & MK_SAMPLE_DRAWS) != 0 && i % 2 == 0) {
    q.noise = mk_draw_gumbel(s.d.words()->noise_start, row);
  }
  bool mine = i < weight.rows && s.lane < 16 && row < param(head, MK_PARAM_HEAD_vocab);
  bool seen = row == state_of(s).token && (q.flags & SCORE_FOLLOWS) != 0;
  uint32_t count = q.count;
  r.a.even = 0.0f;
  if (mine && seen) {
    count = (state_of(s).flags & MK_ROW_PROMPT) != 0 ? count | MK_COUNT_PROMPT : count + 1;
    start_of<uint32_t>(score_after(head), MK_PART_SCORE_counts)[row] = count;
  }
  r.b.even = __uint_as_float(count);
  if (mine && (q.flags & MK_SAMPLE_BIAS) != 0) {
    r.a.even = __ldg(start_of<const float>(score_after(head), MK_PART_SCORE_bias) + row);
  }
  fetch_count(s, head, i + 1, q);
}

// Whether min-p drops the score when it is compared with `highest`, the highest score so far of this SM, as mk_peak has
// it.
__device__ inline bool is_dropped(const mk_instruction_word &head, float score, uint32_t highest) {
  const uint32_t *words = start_of<const uint32_t>(score_after(head), whole_at(MK_WHOLE_SCORE_sampling));
  return mk_sample_drops(words, mk_sample_distance(words, score, mk_unordered(highest)));
}

// Takes the lanes' new tokens (key 0: none) into the front: score.c, insert. A row tile has few for a front that
// stands; with several rows, where a front is made of many at once, enter_front does it in turns (score_lines.cuh).
__device__ inline void extend_front(uint32_t lane, float score, uint64_t key, score_store &q) {
#pragma unroll 1
  for (uint32_t left = tile::lanes_where(q.key != 0); left != 0; left &= left - 1) {
    uint32_t from = __ffs(left) - 1;
    float entry = tile::from_lane(q.score, from);
    if (tile::from_lane(q.key, from) > key && entry >= score) {
      key = 0;
    }
  }
#pragma unroll 1
  for (uint32_t left = tile::lanes_where(key != 0); left != 0; left &= left - 1) {
    uint32_t from = __ffs(left) - 1;
    float new_score = tile::from_lane(score, from);
    uint64_t new_key = tile::from_lane(key, from);
    if (tile::any_lane(q.key > new_key && q.score >= new_score)) {
      continue;  // one of its own tile is better
    }
    if (new_key > q.key && new_score >= q.score) {
      q.key = 0;
    }
    uint32_t free = tile::lanes_where(q.key == 0);
    q.flags |= free == 0 ? SCORE_OVERFLOWS : 0;
    if (lane == __ffs(free) - 1) {
      q.score = new_score;
      q.key = new_key;
    }
  }
}

// Comes after finish_HEAD, which gives the logit y of this lane's row of tile i.
__device__ inline void finish_SCORE(const storer &s, const mk_instruction_word &head, uint32_t i, float y,
                                    const row_store &r, score_store &q) {
  const mk_operand &weight = head.parts[MK_PART_HEAD_weight];
  uint32_t row = (weight.row + i) * 16 + s.lane, flags = q.flags;
  bool mine = i < weight.rows && s.lane < 16 && row < param(head, MK_PARAM_HEAD_vocab);
  float noise = tile::from_lane(q.noise, i % 2 * 16 + tile::place_in_group<16>(s.lane)), score = mk_plus(y, 0.0f);
  if ((flags & (MK_SAMPLE_PENALTIES | MK_SAMPLE_BIAS)) != 0) {
    score = mk_sample_score(start_of<const uint32_t>(score_after(head), whole_at(MK_WHOLE_SCORE_sampling)), y,
                            __float_as_uint(r.b.even), r.a.even);
  }
  score = (flags & SCORE_INSIDE) != 0 ? 0.0f : score;
  uint32_t peak = mine && (flags & SCORE_INSIDE) == 0 ? mk_peak(score) : 0;
  if (peak > q.peak) {
    q.peak = peak;
    q.peak_index = row;
  }
  uint64_t key = 0;
  if (peak != 0 && peak != MK_PEAK_NAN && (flags & SCORE_CUTS) == 0) {
    key = (flags & MK_SAMPLE_DRAWS) != 0 ? mk_draw_rank(score, s.d.words()->inverse_temperature, noise, row)
                                         : mk_rank_key(score, row);
  }
  if ((flags & SCORE_ONE_DRAW) == 0) {
    uint32_t highest = tile::largest_of_lanes(q.peak);
    extend_front(s.lane, score, is_dropped(head, score, highest) ? 0 : key, q);
  } else if (key > q.key) {
    q.key = key;
  }
}

enum { REHEARSAL_TILES = 4 };  // so many tiles before the end: early enough to be over, late enough to be remembered

// Writes every word of the front, each by one lane: first the entries by their score, then lanes that have none. Where
// not `publishes`, this is a rehearsal, which brings the code into the instruction cache while nobody waits for it.
__device__ inline void end_SCORE(const storer &s, const mk_instruction_word &head, uint32_t stop, bool publishes,
                                 const score_store &q) {
  uint64_t key = q.key;
  uint32_t peak = tile::largest_of_lanes(q.peak);
  uint32_t index = tile::smallest_of_lanes(q.peak == peak ? q.peak_index : MK_SAMPLING_INDEX_MASK);
  if ((q.flags & SCORE_ONE_DRAW) != 0) {
    uint64_t best = highest_key(key);
    key = key == best ? best : 0;
  } else if (is_dropped(head, q.score, peak)) {
    key = 0;
  }
  uint32_t entries = tile::lanes_where(key != 0), before = tile::lanes_before(s.lane), count = __popc(entries);
  uint32_t at = key != 0 ? 0 : count + __popc(~entries & before);
#pragma unroll 1
  for (uint32_t left = entries; count > 1 && left != 0; left &= left - 1) {  // no two scores are equal
    float other = tile::from_lane(q.score, __ffs(left) - 1);
    at += key != 0 && other > q.score ? 1 : 0;
  }
  const mk_instruction_word &in = score_after(head);
  uint64_t *front = start_of<uint64_t>(in, MK_PART_SCORE_front) + in.parts[MK_PART_SCORE_front].row * MK_FRONT_WORDS;
  uint32_t generation = s.d.generation();
  uint32_t about = index | count << MK_FRONT_COUNT_AT | ((q.flags & SCORE_OVERFLOWS) != 0 ? MK_FRONT_OVERFLOW : 0) |
                   (stop != 0 ? MK_FRONT_STOP : 0);
  if (!publishes || (q.flags & SCORE_PUBLISHES) == 0) {
    return;
  }
  to_readers(readers_of(in.parts[MK_PART_SCORE_front]), front, [=](uint64_t *to) {
    tile::store_stamped(to + MK_FRONT_KEYS + 2 * at, static_cast<uint32_t>(key), generation);
    tile::store_stamped(to + MK_FRONT_KEYS + 2 * at + 1, static_cast<uint32_t>(key >> 32), generation);
    tile::store_stamped(to + MK_FRONT_SCORES + at, __float_as_uint(q.score), generation);
    if (s.lane < MK_FRONT_KEYS) {
      tile::store_stamped(to + s.lane, s.lane == MK_FRONT_PEAK ? peak : about, generation);
    }
  });
}

// HEAD with the SCORE that is fused into it: a loop of its own, since in a common loop other opcodes would take the
// registers of what it keeps, too.
__device__ inline void store_HEAD(storer &s, const mk_instruction_word &head, const instruction_cursor &cursor,
                                  row_store &r) {
  score_store q;
  begin_HEAD(s, head, r);
  begin_SCORE(s, head, cursor, r, q);
  q.flags = tile::uniform(q.flags);  // loaded from memory, but the same for all lanes
  fetch_count(s, head, 0, q);
  for (uint32_t i = 0; i < r.tiles; i++) {
    prepare_SCORE(s, head, i, r, q);
    two_rows rows = take_results(s, head, i, r);
    rows = finish_HEAD(s, head, i, rows, r);
    // From here on each lane has one row.
    float even = tile::from_lane(rows.even, tile::group_of_lane<2>(tile::place_in_group<16>(s.lane)));
    float odd = tile::from_lane(rows.odd, tile::group_of_lane<2>(tile::place_in_group<16>(s.lane)));
    finish_SCORE(s, head, i, tile::place_in_group<2>(s.lane) == 0 ? even : odd, r, q);
    if (i + 1 == r.tiles) {
      // The logits are announced before the front is published. No consumer comes to the next step without that front,
      // so a warp that waits for this barrier, which only few steps do, never takes another step's phase for its own.
      __syncwarp();  // all lanes' logits and counts
      if (s.lane == 0) {
        tile::arrive(s.d.barrier(SCORED));
      }
    }
    if (i + 1 == r.tiles || i + REHEARSAL_TILES == r.tiles) {
      end_SCORE(s, head, r.stop, i + 1 == r.tiles, q);
    }
  }
  end_HEAD(s, head, (q.flags & SCORE_INSIDE) != 0, r);  // after the front, for which the draw waits
  r.tiles = 0;
}

// The score of a token of this SM, once its logits are there.
__device__ inline float own_score(const device &d, const uint32_t *words, uint32_t token, float logit) {
  uint32_t flags = words[MK_SAMPLING_FLAGS];
  uint32_t count = (flags & MK_SAMPLE_PENALTIES) != 0 ? __ldcg(d.words()->counts + token) : 0;
  float bias = (flags & MK_SAMPLE_BIAS) != 0 ? __ldg(d.words()->bias + token) : 0.0f;
  return mk_sample_score(words, logit, count, bias);
}

// Nothing is left to begin at SCORE's own turn: the storer did its work within the HEAD before it.
__device__ inline void begin_SCORE(const storer &, const mk_instruction_word &, row_store &) {}

// Except for this, which comes after its signals: the storer waits for the end of the step, as it would do next anyway.
// If the consumers want the scores before that, it publishes them, and DRAW waits for them on all SMs.
__device__ inline void after_SCORE(const storer &s, const mk_instruction_word &in) {
  const uint32_t *words = start_of<const uint32_t>(in, whole_at(MK_WHOLE_SCORE_sampling));
  if (tile::uniform(!mk_sampling_cuts(words) && mk_sampling_one_draw(words))) {
    return;  // nobody can want the scores
  }
  uint32_t tries = 0;
  bool wanted = false;
  while (!wanted && !tile::all_lanes(tile::try_wait(s.d.barrier(STATE_READY), s.d.epoch % 2))) {
    wanted = tile::uniform(s.d.words()->scores_wanted == s.d.generation());
    if (!keep_waiting(s.d, tries, MK_ACTIVITY_STEP_STATE, 0, 0, 0)) {
      break;
    }
  }
  waited(s.d, tries);
  const mk_operand &scores = in.parts[MK_PART_SCORE_scores];
  uint32_t first = scores.col * 16, end = min(first + scores.cols * 16u, buffer_of(in, MK_PART_SCORE_scores).cols);
  for (uint32_t row = first; wanted && row < end; row += 32) {
    uint32_t mine = row + s.lane;
    if (mine < end && publishes(s.d)) {
      float score = own_score(s.d, words, mine, __ldcg(s.d.words()->logits + mine));
      uint64_t *own = start_of<uint64_t>(in, MK_PART_SCORE_scores) + mine;
      to_readers(readers_of(scores), own,
                 [=](uint64_t *to) { tile::store_stamped(to, __float_as_uint(score), s.d.generation()); });
    }
  }
}

}  // namespace mk
