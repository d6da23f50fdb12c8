// HEAD on the device. logits = W norm(x), and this SM's candidate for the next token; head.c. The logits are computed in
// prompts too (the loader streams their weights without knowing), but the candidate is then empty.
// Tiles: weight [16 n, 16 k] bf16 through the page ring, n may be 0; logits fp32; candidate 2 stamped words.
// Waits: x (consumers), the step state (storer). Signals: the counter of the candidates. The first SM's candidate carries the
// host's wish to stop.
#pragma once
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

// NaN ranks above every number, equal values by the lower index.
__device__ inline bool candidate_above(float a, uint32_t a_index, float b, uint32_t b_index) {
  bool a_nan = isnan(a), b_nan = isnan(b);
  if (a_nan != b_nan) {
    return a_nan;
  }
  return a > b || ((a == b || a_nan) && a_index < b_index);
}

__device__ inline void best_of_lanes(float &best, uint32_t &index) {
  for (int offset = 16; offset > 0; offset /= 2) {
    float other = __shfl_xor_sync(0xffffffffu, best, offset);
    uint32_t other_index = __shfl_xor_sync(0xffffffffu, index, offset);
    if (candidate_above(other, other_index, best, index)) {
      best = other;
      index = other_index;
    }
  }
}

// An SM without rows waits for x all the same and hands the storer one empty result: its candidate says that everything before it
// on this SM is done (docs/VERIFIER.md).
__device__ inline bool consume_HEAD(consumer &c, const mk_instruction &in) {
  return consume_normed(c, in, MK_SLOT_HEAD_x, MK_SLOT_HEAD_weight, MK_SLOT_HEAD_gain) &&
         (in.operands[MK_SLOT_HEAD_weight].rows != 0 || put_result(c, 0.0f, 0.0f, 0.0f));
}

__device__ inline bool store_HEAD(storer &s, const mk_instruction &in) {
  const mk_operand &weight = in.operands[MK_SLOT_HEAD_weight];
  float *logits = reinterpret_cast<float *>(s.d.buffer(in.operands[MK_SLOT_HEAD_logits]).address);
  float eps = __uint_as_float(in.params[MK_PARAM_HEAD_eps]), width = static_cast<float>(in.params[MK_PARAM_HEAD_width]);
  uint32_t vocab = in.params[MK_PARAM_HEAD_vocab];
  bool stop = blockIdx.x == 0 && tile::load_system(s.d.params.stop) != 0;
  float best = -INFINITY, y, squares;
  uint32_t index = MK_CANDIDATE_NONE;
  if (weight.rows == 0 && !take_result(s, y, squares)) {
    return false;
  }
  for (uint32_t i = 0; i < weight.rows; i++) {
    if (!take_result(s, y, squares)) {
      return false;
    }
    y *= rsqrtf(squares / width + eps);
    uint32_t row = (weight.row + i) * 16 + s.lane % 16;
    if (s.lane < 16 && row < vocab) {
      logits[row] = y;
      if (candidate_above(y, row, best, index)) {
        best = y;
        index = row;
      }
    }
  }
  best_of_lanes(best, index);
  if (s.state.position + 1 < s.state.prompt_length) {
    best = -INFINITY;
    index = MK_CANDIDATE_NONE;
  }
  uint64_t *candidate = stamped_row(s.d, in.operands[MK_SLOT_HEAD_candidate]);
  if (s.lane == 0 && publishes(s.d)) {
    tile::store_stamped(candidate, __float_as_uint(best), s.d.generation());
    tile::store_stamped(candidate + 1, index | (stop ? MK_CANDIDATE_STOP : 0u), s.d.generation());
  }
  signal_from_warp(s.d, s.lane, in);
  return true;
}

}  // namespace mk
