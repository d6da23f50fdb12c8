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
  return reinterpret_cast<const uint4 *>(d.params.plan) + static_cast<uint64_t>(d.epoch) * d.params.rows;
}

// The step's state from its rows in the plan (nullptr: there is none). A whole warp.
__device__ inline void put_step(const device &d, const uint32_t *step, uint32_t stop,
                                const volatile wide_choices &choices, volatile wide_state &to) {
  enum { BATCH = 2, BATCH_LINES = BATCH * 32 };  // whose rows are fetched together: there are whole batches of them
  static_assert(MK_PROMPT_ROWS % BATCH_LINES == 0, "rows are 64, 128, 256 or 512");
  uint32_t count = 0, chooses = 0;
#pragma unroll 1
  for (uint32_t base = 0; base < d.params.rows; base += BATCH_LINES) {
    uint4 rows[BATCH];
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
      rows[i] = make_uint4(0, 0, 0, 0);
      if (step != nullptr) {
        rows[i] = reinterpret_cast<const uint4 *>(step)[base + i * 32 + tile::lane()];
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
      uint32_t first = base + i * 32, line = first + tile::lane();
      bool active = (rows[i].w & MK_ROW_ACTIVE) != 0, choosing = active && (rows[i].w & MK_ROW_CHOOSES) != 0;
      uint32_t actives = __ballot_sync(0xffffffffu, active);
      count = actives != 0 ? first + 32 - __clz(actives) : count;
      chooses |= __any_sync(0xffffffffu, choosing) ? 1u << first / MK_WIDE_GPU_LINES : 0;
      uint32_t token = active ? rows[i].z : 0;
      if (token == MK_TOKEN_CHOSEN) {
        token = choices.of_slot[min(rows[i].x, MK_MOST_SHARED_ROWS - 1u)];
        token = index_fits(d, MK_GPU_FAULT_TOKEN, token, d.params.tokens) ? token : 0;
      }
      to.tokens[line] = token;
      to.places[line] = (active ? rows[i].y : 0) | (choosing ? static_cast<uint32_t>(LINE_CHOOSES) : 0);
    }
  }
  if (tile::lane() == 0) {
    to.count = count;
    to.chooses = chooses;
    to.stop = stop;
  }
}

}  // namespace mk
