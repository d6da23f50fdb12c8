// SIFT and DRAW of the kernel of several rows per step, on the device: each warp goes through the search of its line
// (search_lines.cuh), and keeps the choice for NEXT.
#pragma once
#include "instructions/score_rows.cuh"
#include "instructions/search_lines.cuh"

namespace mk {

// Counts those of the step's tokens that belong to this SM, once no warp reads counts any more.
__device__ inline void count_tokens(const drawer &c) {
  uint32_t lines = tile::uniform(lines_of_own_tokens(c));
  if (lines == 0) {
    return;
  }
  consumers_meet(c);
  if (c.warp == 0 && tile::has_lane(lines, c.lane)) {
    const volatile mk_step_row &row = rows_of(c.d).rows[c.lane];
    uint32_t *count = const_cast<uint32_t *>(c.d.words()->counts) + row.slot * rows_sampling()->vocab + row.token;
    if ((row.flags & MK_ROW_PROMPT) != 0) {
      tile::or_relaxed(count, MK_COUNT_PROMPT);
    } else {
      tile::add_relaxed(count, 1);
    }
  }
}

__device__ inline void consume_search(rows_consumer &here, const mk_instruction_word &in) {
  bool draw = tile::uniform(in.opcode == only<&opcode_row::draws>);
  uint32_t searching = tile::uniform(rows_sampling()->searching);
  if (!draw && searching == 0) {
    return;
  }
  rows_consumer c = here;
  c.lane = tile::anew(c.lane);
  c.warp = tile::anew(c.warp);
  look_up_epoch(c);
  line_search &l = search_of(c);
  bool active = tile::uniform((rows_of(c.d).active >> c.warp & 1) != 0);
  bool cuts = tile::uniform((searching >> c.warp & 1) != 0);
  bool resumes = tile::uniform(cuts && in.parts[MK_PART_SIFT_rounds].rows != 0);
  bool adds_up = tile::uniform(l.rounds % 2u != 0);
  __syncwarp();
  if (c.lane == 0) {
    l.rounds++;
  }
  if (!draw && adds_up) {
    sum_owned_lines(c, in, 0, searching);
    return;
  }
  search_line(c, in, l, active, cuts, resumes, draw);
  if (draw) {
    choose(c, in, active, l);
    count_tokens(c);
  }
}

}  // namespace mk
