// SCORE of several rows per step on the device; score.c. Consumers only: warp l has line l, from here to the end of DRAW. Waits: this SM's
// storers, for the logits (SCORED). Publishes the front of each line. Scores are published only by a DRAW that looks at all SMs'.
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
  uint32_t state;    // mk_sift_state
  uint32_t flags;    // MK_FRONT_..., of all SMs' fronts
  uint16_t counted;  // a bit for each line whose token counts for it and is one of this SM's
  uint16_t rounds;   // SIFTs so far
};

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
__device__ inline float score_of_token(const consumer &c, const line_search &l, const line_tokens &t, uint32_t token,
                                       float logit) {
  uint32_t flags = l.words[MK_SAMPLING_FLAGS], count = 0;
  if ((flags & (MK_SAMPLE_PENALTIES | MK_SAMPLE_BIAS)) == 0) {
    return mk_plus(logit, 0.0f);
  }
  if ((flags & MK_SAMPLE_PENALTIES) != 0) {
    const volatile rows_state &state = rows_of(c.d);
    count = __ldcg(c.d.words()->counts + t.by_slot + token);
#pragma unroll 1
    for (uint32_t left = l.counted; left != 0; left &= left - 1) {
      uint32_t line = __ffs(static_cast<int>(left)) - 1;
      count = state.rows[line].token == token ? counted_once_more(count, state.rows[line].flags) : count;
    }
  }
  float bias = (flags & MK_SAMPLE_BIAS) != 0 ? __ldg(c.d.words()->bias + t.by_slot + token) : 0.0f;
  return mk_sample_score(l.words, logit, count, bias);
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
__device__ inline void publish_front(const consumer &c, const mk_instruction_word &in, const line_search &l,
                                     const score_store &q, bool one_draw) {
  uint32_t peak = __reduce_max_sync(0xffffffffu, q.peak);
  uint32_t index = __reduce_min_sync(0xffffffffu, q.peak == peak && peak != 0 ? q.peak_index : MK_SAMPLING_INDEX_MASK);
  uint64_t key = q.key;
  if (one_draw) {
    uint64_t best = highest_key(key);
    key = key == best ? best : 0;
  } else if (mk_sample_drops(l.words, mk_sample_distance(l.words, q.score, mk_unordered(peak)))) {
    key = 0;
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
  uint32_t about = (peak == 0 ? 0 : index) | count << MK_FRONT_COUNT_AT |
                   ((q.flags & SCORE_OVERFLOWS) != 0 ? MK_FRONT_OVERFLOW : 0) |
                   (rows_shared()->stop != 0 ? MK_FRONT_STOP : 0);
  if (!publishes(c.d)) {
    return;
  }
  if (at <= count) {
    tile::store_stamped_pair(front + MK_FRONT_KEYS + 2 * at, static_cast<uint32_t>(key),
                             static_cast<uint32_t>(key >> 32), generation);
    tile::store_stamped(front + MK_FRONT_SCORES + at, __float_as_uint(q.score), generation);
  }
  if (c.lane == 0) {
    tile::store_stamped_pair(front, peak, about, generation);
  }
}

// What all warps know of the step's draw, and each of its line.
__device__ inline void begin_line(const consumer &c, const mk_instruction_word &in) {
  volatile shared_words *words = c.d.words();
  volatile rows_words *shared = rows_shared();
  const volatile rows_state &state = rows_of(c.d);
  const mk_operand &scores = in.parts[MK_PART_SCORE_scores];
  if (c.warp == 0 && c.lane == 0) {
    uint32_t vocab = buffer_of(in, MK_PART_SCORE_scores).cols, first = scores.col * 16;
    words->logits = start_of<const float>(in, MK_PART_SCORE_logits);
    words->bias = start_of<const float>(in, MK_PART_SCORE_bias);
    words->counts = start_of<const uint32_t>(in, MK_PART_SCORE_counts);
    shared->vocab = vocab;
    shared->first_token = first;
    shared->end_token = min(first + scores.cols * 16u, vocab);
  }
  line_search &l = area().lines[c.warp];
  const uint32_t *given =
      start_of<const uint32_t>(in, whole_at(MK_WHOLE_SCORE_sampling)) + state.rows[c.warp].slot * MK_SAMPLING_WORDS;
  if (c.lane < MK_SAMPLING_WORDS) {
    l.words[c.lane] = given[c.lane];
  }
  if (c.lane == 0) {
    l.key = mk_draw_key(mk_sampling_seed(given), state.rows[c.warp].position + 1);
    l.state = MK_SIFT_IDLE;
    l.winner = 0;
    l.flags = 0;
  }
}

// The highest score and the front of this warp's line.
__device__ inline void score_line(const consumer &c, const line_search &l, score_store &q, bool one_draw) {
  line_tokens t = own_tokens(c);
  bool draws = tile::uniform((l.words[MK_SAMPLING_FLAGS] & MK_SAMPLE_DRAWS) != 0),
       cuts = tile::uniform(mk_sampling_cuts(l.words));
  logits_ahead ahead(c, t);
#pragma unroll 1
  for (uint32_t base = t.first; base < t.end; base += 32) {
    uint32_t token = base + c.lane;
    bool mine = token < t.end;
    float logit = ahead.take(t, token), score = score_of_token(c, l, t, min(token, t.end - 1), logit);
    uint32_t peak = mine ? mk_peak(score) : 0;
    if (peak > q.peak) {
      q.peak = peak;
      q.peak_index = token;
    }
    if (cuts) {
      continue;
    }
    bool enters = mine && peak != MK_PEAK_NAN;
    if (!one_draw) {
      float highest = mk_unordered(__reduce_max_sync(0xffffffffu, q.peak));
      enters = enters && !mk_sample_drops(l.words, mk_sample_distance(l.words, score, highest));
      if (!__any_sync(0xffffffffu, enters)) {
        continue;
      }
    }
    uint64_t key = draws ? mk_sample_draw(l.words, l.key, score, token) : mk_rank_key(score, token);
    key = enters ? key : 0;
    if (!one_draw) {
      extend_front(c.lane, score, key, q);
    } else if (key > q.key) {
      q.key = key;
    }
  }
}

__device__ inline void consume_SCORE(rows_consumer &here, const mk_instruction_word &in) {
  rows_consumer c = here;
  c.lane = tile::anew(c.lane);
  c.warp = tile::anew(c.warp);
  const volatile rows_state &state = rows_of(c.d);
  wait_phase(c.d, SCORED, c.d.epoch % 2, MK_ACTIVITY_RESULT_FULL, 0);
  begin_line(c, in);
  consumers_meet(c);
  line_search &l = area().lines[c.warp];
  uint32_t active = state.active, below = (2u << c.warp) - 1;
  bool same_slot = state.rows[c.lane % MK_MAX_ROWS].slot == state.rows[c.warp].slot;
  uint32_t counted = lines_of_own_tokens(c) & __ballot_sync(0xffffffffu, same_slot) & below;
  if (c.lane == 0) {
    l.counted = static_cast<uint16_t>(counted);
    l.rounds = 0;
  }
  __syncwarp();
  if ((active >> c.warp & 1) == 0) {
    return;
  }
  score_store q = {};
  bool one_draw = tile::uniform(mk_sampling_one_draw(l.words));
  if (line_chooses(c, c.warp)) {
    score_line(c, l, q, one_draw);
  }
  if ((active & ((1u << c.warp) - 1)) == 0) {
    tile::fence_release();  // behind one line's front: all that this SM did in the step
  }
  publish_front(c, in, l, q, one_draw);
}

}  // namespace mk
