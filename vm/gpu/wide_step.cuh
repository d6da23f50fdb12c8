// The step of a kernel for wide steps, of one sequence: its lines are at neighbouring positions, the active ones first,
// and only the last of these may choose (vm/program/plan.h). wide_step_slots.cuh has the same of several sequences.
#pragma once
#include "instructions/tile/warp.cuh"
#include "vm/gpu/wait.cuh"
#include "vm/program/plan.h"

namespace mk {

struct wide_state {       // of a step, in shared memory, double-buffered by the parity of the epoch
  uint32_t first, count;  // position of line 0, active lines: the first ones
  uint32_t chooses;       // the last of them does
  uint32_t stop;
  uint32_t tokens[MK_MOST_ROWS];
};

struct wide_choices {
  uint32_t last;  // token that was chosen in this launch
};
__device__ inline void clear(volatile wide_choices &choices) { choices.last = 0; }

// Positions of the lines of a line tile.
struct line_positions {
  uint32_t first;

  __device__ uint32_t of(uint32_t line) const { return first + line; }
};
__device__ inline line_positions positions_of(const volatile wide_state &step, uint32_t line_tile) {
  return {step.first + line_tile * MK_WIDE_GPU_LINES};
}

// The step's state from its rows in the plan (nullptr: there is none). A whole warp.
__device__ inline void put_step(const device &d, const uint32_t *step, uint32_t stop,
                                const volatile wide_choices &choices, volatile wide_state &to) {
  uint32_t count = 0, chooses = 0;
#pragma unroll 1
  for (uint32_t base = 0; base < d.params.rows; base += 32) {
    uint32_t line = base + tile::lane();
    uint4 row = make_uint4(0, 0, 0, 0);
    if (step != nullptr && line < d.params.rows) {
      row = tile::view<uint4>(step)[line];
    }
    count += __popc(tile::lanes_where((row.w & MK_ROW_ACTIVE) != 0));
    chooses |= tile::lanes_where((row.w & MK_ROW_CHOOSES) != 0);
    uint32_t token = row.z;
    if (token == MK_TOKEN_CHOSEN) {
      token = choices.last;
      token = index_fits(d, MK_GPU_FAULT_TOKEN, token, d.params.tokens) ? token : 0;
    }
    to.tokens[line] = token;
    if (line == 0) {
      to.first = row.y;
    }
  }
  if (tile::lane() == 0) {
    to.count = count;
    to.chooses = chooses;
    to.stop = stop;
  }
}

}  // namespace mk
