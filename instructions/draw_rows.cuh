// Where the kernel of several rows keeps what its lines draw by: warp l has line l from SCORE to DRAW, and what belongs
// to it lies in shared memory all that time. What decides how a line draws the controller has put among the words of
// the roles by then (prepare_draws), while the HEAD is under way.
//
// From SCORED on, a line's search lies in the shared memory that otherwise holds results of linear instructions: from
// then on the storers have none in hand, and no consumer puts one down before all have met in NEXT.
#pragma once
#include "instructions/line_search.cuh"
#include "vm/gpu/rows.cuh"

namespace mk {

using drawer = consumer;

struct search_area {
  line_search lines[MK_MAX_ROWS];
  warp_tallies of_warps;
};
static_assert(sizeof(search_area) <= ROWS_RESIDUALS_AT - ROWS_RESULT_AT, "searches lie where results lie else");

__device__ inline search_area &area() { return *tile::view<search_area>(shared_memory + ROWS_RESULT_AT); }
__device__ inline warp_tallies &tallies_of_warps() { return area().of_warps; }

// Of the line at hand: its number, its search, and what it draws by.
__device__ inline uint32_t line_at_hand(const drawer &c) { return c.warp; }
__device__ inline line_search &search_of(const drawer &c) { return area().lines[c.warp]; }
__device__ inline line_parameters &parameters_of(const drawer &c) {
  return const_cast<line_parameters &>(rows_sampling()->lines[c.warp]);
}

// Whether it is the one line whose front tells that its SM has done all that it does in the step.
__device__ inline bool tells_of_all(const drawer &c) { return (rows_of(c.d).active & ((1u << c.warp) - 1)) == 0; }
// The host's wish to stop, as the HEAD of this SM saw it.
__device__ inline bool is_to_stop(const drawer &) { return rows_shared()->stop != 0; }

__device__ inline bool line_chooses(const drawer &c) { return (rows_of(c.d).chooses >> c.warp & 1) != 0; }

// Whether a line's search goes on, and whether it asks for sums of weights.
__device__ inline bool line_is_open(uint32_t line) { return state_of(area().lines[line]) == MK_SIFT_OPEN; }
__device__ inline bool line_has_weights(uint32_t line) {
  return tile::uniform((rows_sampling()->lines[line].words[MK_SAMPLING_FLAGS] & MK_SAMPLE_TOP_P) != 0);
}

// By one lane, of the line at hand: its choice in the form of NEXT, and whether a front says that the launch stops.
__device__ inline void keep_choice(const drawer &c, uint32_t choice, uint32_t stop) {
  rows_shared()->results[c.warp] = choice;
  c.d.words()->index[c.d.epoch % 2][c.warp] = stop;
}

// All logits of the step are there.
__device__ inline void wait_last_logits(const drawer &c) {
  wait_phase(c.d, SCORED, c.d.epoch % 2, MK_ACTIVITY_RESULT_FULL, 0);
}
__device__ inline uint32_t vocabulary_of(const drawer &) { return rows_sampling()->vocab; }
__device__ inline line_tokens own_tokens(const drawer &c) {
  volatile rows_sampling_words *shared = rows_sampling();
  uint32_t vocab = shared->vocab;
  return {tile::uniform(shared->first_token), tile::uniform(shared->end_token), c.warp * vocab,
          rows_of(c.d).rows[c.warp].slot * vocab};
}

// How often a token counts for the line at hand if memory has `count` from before the step. `counted`: of its
// parameters.
__device__ inline uint32_t count_with_step(const drawer &c, uint32_t counted, uint32_t token, uint32_t count) {
  const volatile rows_state &state = rows_of(c.d);
#pragma unroll 1
  for (uint32_t left = counted; left != 0; left &= left - 1) {
    uint32_t line = __ffs(static_cast<int>(left)) - 1;
    count = state.rows[line].token == token ? counted_once_more(count, state.rows[line].flags) : count;
  }
  return count;
}

// Lines whose tokens are this SM's: a bit for each.
__device__ inline uint32_t lines_of_own_tokens(const drawer &c) {
  const volatile rows_state &state = rows_of(c.d);
  uint32_t line = tile::place_in_group<MK_MAX_ROWS>(c.lane), token = state.rows[line].token;
  bool here =
      (state.active >> line & 1) != 0 && token >= rows_sampling()->first_token && token < rows_sampling()->end_token;
  return tile::lanes_where(here) & 0xffffu;
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

}  // namespace mk
