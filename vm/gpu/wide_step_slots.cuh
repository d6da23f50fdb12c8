// The step of the kernel for wide steps that several sequences share: its lines are any rows of the plan, each with a
// slot and a position of its own, and any of them may choose. Idle ones among them are computed like the others, as
// token 0 at position 0, and nobody looks at what comes of it.
#pragma once
#include "instructions/tile/warp.cuh"
#include "vm/gpu/wait.cuh"
#include "vm/program/plan.h"

namespace mk {

struct wide_state {  // of a step, in shared memory, double-buffered by the parity of the epoch
  uint32_t count;    // lines up to the last active one
  uint32_t chooses;  // bit i: a line of line tile i does
  uint32_t stop;
  uint32_t tokens[MK_MOST_SHARED_ROWS];
  uint32_t places[MK_MOST_SHARED_ROWS];  // positions, with LINE_CHOOSES
};
enum : uint32_t { LINE_CHOOSES = 1u << 31 };

struct wide_choices {
  uint32_t of_slot[MK_MOST_SHARED_ROWS];  // token that it chose last in this launch
};
__device__ inline void clear(volatile wide_choices &choices) {
#pragma unroll 1
  for (uint32_t slot = 0; slot < MK_MOST_SHARED_ROWS; slot++) {
    choices.of_slot[slot] = 0;
  }
}

// Positions of the lines of a line tile.
struct line_positions {
  const volatile uint32_t *places;

  __device__ uint32_t of(uint32_t line) const { return places[line] & ~LINE_CHOOSES; }
};
__device__ inline line_positions positions_of(const volatile wide_state &step, uint32_t line_tile) {
  return {step.places + line_tile * MK_WIDE_GPU_LINES};
}

// Whether a line of the tile chooses.
__device__ inline bool tile_chooses(const volatile wide_state &step, uint32_t line_tile) {
  return (step.chooses >> line_tile & 1) != 0;
}

// The rows of the step at hand in the plan, which has it.
__device__ inline const uint4 *planned_rows(const device &d) {
  return tile::view<uint4>(d.params.plan) + static_cast<uint64_t>(d.epoch) * d.params.rows;
}

// The step's state from its rows in the plan (nullptr: there is none). A whole warp, 32 lines at a time.
__device__ inline void put_step(const device &d, const uint32_t *step, uint32_t stop,
                                const volatile wide_choices &choices, volatile wide_state &to) {
  static_assert(MK_PROMPT_ROWS % 32 == 0, "rows are 64, 128, 256 or 512");
  uint32_t count = 0, chooses = 0;
#pragma unroll 1
  for (uint32_t first = 0; first < d.params.rows; first += 32) {
    uint32_t line = first + tile::lane();
    uint4 row = make_uint4(0, 0, 0, 0);
    if (step != nullptr) {
      row = tile::view<uint4>(step)[line];
    }
    if ((row.w & MK_ROW_ACTIVE) == 0) {
      row = make_uint4(0, 0, 0, 0);
    }
    uint32_t actives = tile::lanes_where(row.w != 0);
    uint32_t choosing = tile::lanes_where((row.w & MK_ROW_CHOOSES) != 0);
    count = actives != 0 ? first + 32 - __clz(actives) : count;
    chooses |= min(choosing, 1u) << first / MK_WIDE_GPU_LINES;
    if (row.z == MK_TOKEN_CHOSEN) {
      row.z = choices.of_slot[min(row.x, MK_MOST_SHARED_ROWS - 1u)];
      row.z = index_fits(d, MK_GPU_FAULT_TOKEN, row.z, d.params.tokens) ? row.z : 0;
    }
    to.tokens[line] = row.z;
    to.places[line] = row.y | (row.w / MK_ROW_CHOOSES & 1) * LINE_CHOOSES;
  }
  if (tile::lane() == 0) {
    to.count = count;
    to.chooses = chooses;
    to.stop = stop;
  }
}

}  // namespace mk
