// What a warp has of a line while that draws, with several rows per step: from SCORE to DRAW.
#pragma once
#include "instructions/search_lanes.cuh"

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

// What SIFT and DRAW begin with: the state of the line's search after SCORE.
__device__ inline void begin_search(line_search &l, uint32_t lane) {
  if (lane == 0) {
    l.state = MK_SIFT_IDLE;
    l.winner = 0;
    l.flags = 0;
    l.bound = -INFINITY;
    l.rounds = 0;
  }
}

// Tokens [first, end) of a line, dealt to lanes; and where the line's or slot's words of each token begin.
struct line_tokens {
  uint32_t first, end, by_line, by_slot;
};

__device__ inline uint32_t counted_once_more(uint32_t count, uint32_t flags) {
  return (flags & MK_ROW_PROMPT) != 0 ? count | MK_COUNT_PROMPT : count + 1;
}

}  // namespace mk
