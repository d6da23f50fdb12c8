// SIFT and DRAW of the kernel for wide steps of several sequences, on the device: each warp goes through the searches
// of its lines (search_lines.cuh) one after the other. From one round to the next a line's pivots lie in what this SM
// publishes, as in the reference: in a SIFT that tallies they are set and published, and the SIFT after it, which adds
// up, hands them on.
#pragma once
#include "instructions/score_slots.cuh"
#include "instructions/search_lines.cuh"

namespace mk {

__device__ inline uint64_t *own_pivot(const drawer &c, const mk_instruction_word &in, uint32_t part, uint32_t sm) {
  return round_of(c, in, part, sm, c.line) + mk_sift_word(MK_SIFT_PIVOT, c.lane);
}

__device__ inline void publish_pivots(const drawer &c, const mk_instruction_word &in, uint64_t pivot) {
  if (publishes(c.d)) {
    tile::store_stamped_pair(own_pivot(c, in, MK_PART_SIFT_round, in.parts[MK_PART_SIFT_round].row),
                             static_cast<uint32_t>(pivot), static_cast<uint32_t>(pivot >> 32), c.d.generation());
  }
}

// The SM's own place among those that publish: `out`, the operand that it writes.
__device__ inline uint64_t look_up_pivots(const drawer &c, const mk_instruction_word &in, uint32_t out) {
  return pair_value(tile::load_stamped_pair(own_pivot(c, in, MK_PART_SIFT_rounds, in.parts[out].row)));
}

// Hands the pivots of this warp's lines on, and takes part in adding up those that this SM owns.
__device__ inline void add_up(drawer &c, const mk_instruction_word &in, uint32_t count) {
#pragma unroll 1
  for (c.line = c.warp; c.line < count; c.line += MK_GPU_CONSUMER_WARPS) {
    if (line_is_open(c.line)) {
      publish_pivots(c, in, look_up_pivots(c, in, MK_PART_SIFT_round));
    }
  }
#pragma unroll 1
  for (uint32_t base = 0; base < count; base += 32) {
    sum_owned_lines(c, in, base, count - base < 32 ? (1u << (count - base)) - 1 : 0xffffffffu);
  }
}

// A line's SIFT that tallies, or its DRAW.
__device__ inline void search_kept_line(drawer &c, const mk_instruction_word &in, warp_lines &lines, uint32_t place,
                                        bool draw) {
  line_search &l = search_of(c);
  lines.take(c, place);
  lines.resume(c);
  bool cuts = tile::uniform(line_is(c.line, LINE_SEARCHES));
  bool resumes = tile::uniform(cuts && in.parts[MK_PART_SIFT_rounds].rows != 0);
  if (resumes && state_of(l) == MK_SIFT_OPEN) {
    l.pivots[c.lane] = look_up_pivots(c, in, draw ? MK_PART_DRAW_choice : MK_PART_SIFT_round);
    __syncwarp();
  }
  search_line(c, in, l, tile::uniform(line_is(c.line, LINE_WAITS)), cuts, resumes, draw);
  if (draw) {
    choose(c, in, true, l);
    return;
  }
  if (state_of(l) == MK_SIFT_OPEN) {
    publish_pivots(c, in, l.pivots[c.lane]);
  }
  lines.keep(c);
}

// Counts those of the step's tokens that belong to this SM, once no warp reads counts any more.
__device__ inline void count_tokens(const drawer &c, uint32_t count) {
  consumers_meet(c);
#pragma unroll 1
  for (uint32_t line = c.lane; c.warp == 0 && line < count; line += 32) {
    const uint4 row = __ldg(planned_rows(c.d) + line);
    if (has_own_token(c, line, row)) {
      uint32_t *counts = const_cast<uint32_t *>(c.d.words()->counts);
      uint32_t *of = counts + min(row.x, MK_MOST_SHARED_ROWS - 1u) * area().vocab + lines_of(c.d).tokens[line];
      if ((row.w & MK_ROW_PROMPT) != 0) {
        tile::or_relaxed(of, MK_COUNT_PROMPT);
      } else {
        tile::add_relaxed(of, 1);
      }
    }
  }
}

__device__ inline void consume_search(wide_consumer &here, const mk_instruction_word &in) {
  drawer c{here.d, here.d.warp, tile::lane(), 0};
  line_search &l = search_of(c);
  bool draw = tile::uniform(in.opcode == only<&opcode_row::draws>);
  bool adds_up = tile::uniform(l.rounds % 2u != 0);
  uint32_t count = tile::uniform(lines_of(c.d).count);
  __syncwarp();
  if (c.lane == 0) {
    l.rounds++;
    wide_shared()->index[c.warp] = 0;
  }
  if (!draw && adds_up) {
    add_up(c, in, count);
    return;
  }
  warp_lines lines(c, in, MK_WHOLE_SIFT_sampling);
#pragma unroll 1
  for (uint32_t place = 0; warp_lines::line_at(c, place) < count; place++) {
    uint32_t line = warp_lines::line_at(c, place);
    if (tile::uniform(line_is(line, draw ? LINE_IS_ACTIVE : LINE_SEARCHES))) {
      search_kept_line(c, in, lines, place, draw);
    } else if (draw && c.lane == 0) {
      area().kept[line].winner = MK_CANDIDATE_NONE;
    }
  }
  if (draw) {
    count_tokens(c, count);
  }
}

}  // namespace mk
