// What an SM's tokens bring into a draw (MK_FRONT_..., instructions/sampling.h), while a warp puts it together: an
// entry for each lane, in registers. For SCORE of one row and of several.
#pragma once
#include "instructions/candidate.cuh"

namespace mk {

// The buffer of an operand, by the number of its descriptor: as device::buffer, in fewer instructions, since this code
// is seldom in the instruction cache.
__device__ inline const mk_gpu_buffer &buffer_of(const mk_instruction_word &in, uint32_t slot) {
  return device::slot_of(in).buffers[slot];
}
template <typename type>
__device__ inline type *start_of(const mk_instruction_word &in, uint32_t slot) {
  return tile::global<type>(buffer_of(in, slot).address);
}

// These stand beside the flags of the parameters.
enum {
  SCORE_FOLLOWS = 1 << 16,  // otherwise it does not come, as the launch was given up
  SCORE_PUBLISHES = 1 << 17,
  SCORE_INSIDE = 1 << 18,  // the row does not choose
  SCORE_CUTS = 1 << 19,
  SCORE_ONE_DRAW = 1 << 20,
  SCORE_OVERFLOWS = 1 << 21,
};

// Beside the row_store of HEAD, which has, for the row at hand, the bias in `a` and the bits of the count in `b`.
struct score_store {
  uint32_t flags;
  float noise;                // of two row tiles: lanes 16 to 31 have those of the second one
  uint32_t peak, peak_index;  // of this lane's rows
  float score;                // this lane's entry
  uint64_t key;               // 0: it has none
  uint32_t count;             // of the next row tile
};

}  // namespace mk
