// The storer: one warp that adds up the consumers' sums, finishes each row tile, publishes it and signals.
// Lane r holds row r of the tile at hand (lanes 16 to 31 hold copies).
#pragma once
#include "vm/gpu/wait.cuh"

namespace mk {

struct storer {
  device d;
  uint32_t lane;
  ring_cursor<MK_GPU_RESULT_SLOTS> results;
  step_state state;
};

// The sums of the next row tile; squares: the sum of x^2 over all warps. In the order of the pages that the warps have worked on: which group
// of warps gets the first page depends on where the ring stands, and the bits must not.
__device__ inline void take_result(storer &s, float &y, float &squares) {
  wait_phase(s.d, RESULT_FULL + s.results.slot(), s.results.phase(), MK_ACTIVITY_RESULT_FULL, s.results.slot());
  const float *slot = s.d.result(s.results.slot());
  uint32_t row = s.lane % 16, half = s.lane / 16, first = __float_as_uint(slot[272]) * 4;
  y = 0.0f;
#pragma unroll
  for (uint32_t w = 0; w < 8; w++) {
    y += slot[(first + half * 8 + w) % 16 * 16 + row];
  }
  squares = tile::sum_group<16>(slot[256 + (first + row) % 16]);
  float other = __shfl_xor_sync(0xffffffffu, y, 16);
  y = half == 0 ? y + other : other + y;
  __syncwarp();
  if (s.lane == 0) {
    tile::arrive(s.d.barrier(RESULT_EMPTY + s.results.slot()));
  }
  s.results.next();
}

__device__ inline uint64_t *stamped_row(const device &d, const mk_operand &operand) {
  const mk_gpu_buffer &b = d.buffer(operand);
  uint32_t per_word = b.dtype == MK_DTYPE_BF16 ? 2 : 1;
  return reinterpret_cast<uint64_t *>(b.address) + static_cast<uint64_t>(operand.row) * b.tile_rows * b.row_words +
         operand.col * b.tile_cols / per_word;
}

// Values of lanes 0 .. count - 1 (count even) as bf16 pairs from word `first` on.
__device__ inline void publish_bf16(const storer &s, uint64_t *row, uint32_t first, float value, uint32_t count) {
  float low = __shfl_sync(0xffffffffu, value, 2 * s.lane % 32);
  float high = __shfl_sync(0xffffffffu, value, (2 * s.lane + 1) % 32);
  if (s.lane < count / 2 && publishes(s.d)) {
    tile::store_stamped(row + first + s.lane, tile::pack_bf16(low, high), s.d.generation());
  }
}

__device__ inline void publish_float(const storer &s, uint64_t *row, uint32_t first, float value) {
  if (s.lane < 16 && publishes(s.d)) {
    tile::store_stamped(row + first + s.lane, __float_as_uint(value), s.d.generation());
  }
}

__device__ inline void signal_from_warp(const device &d, uint32_t lane, const mk_instruction &in) {
  if (!has_flag(in, SLOT_SIGNALS_RELEASE)) {
    return;
  }
  __syncwarp();
  if (lane == 0 && publishes(d)) {
    signal_counters(d, in);
  }
}

// Element `lane % 16` of row tile `tile` of a residual: plain fp32, or the embedding row of the step's token.
__device__ inline float load_residual(const storer &s, const mk_operand &operand, uint32_t tile) {
  const mk_gpu_buffer &b = s.d.buffer(operand);
  uint32_t column_tile = operand.col + tile, element = s.lane % 16;
  if ((operand.flags & MK_OPERAND_TOKEN_ROW) == 0) {
    return __ldcg(reinterpret_cast<const float *>(b.address) + column_tile * 16 + element);
  }
  uint32_t row = s.state.token;
  const uint16_t *step = reinterpret_cast<const uint16_t *>(b.address) +
                         (static_cast<uint64_t>(row / 16) * b.grid_cols + column_tile) * 256;
  return tile::low_bf16(step[mk_step_offset(row, element)]);
}

// An instruction in the storer's hands: begin_X sets what all its row tiles share, prepare_X does for one tile what can be done before its
// sums are there, finish_X the rest, end_X what comes after the last one. One loop in kernel.cu runs them for every opcode.
struct row_store {
  uint32_t tiles;    // 0: the storer has nothing to do
  uint64_t *row;     // stamped words of the first tile
  float eps, width;  // of the norm
  float a, b;        // of the tile at hand: cosine and sine, the residual, or bias and count
  float *plain;      // residual_out or logits, at the first tile
  float best;        // HEAD: the candidate so far
  uint32_t index, stop;
};

// y times the scale of the norm.
__device__ inline float normed(const row_store &r, float y, float squares) {
  return y * rsqrtf(squares / r.width + r.eps);
}

// y = residual_in + sum; residual_out = y; out = bf16(y), as LINEAR_ADD and REDUCE_ADD end.
__device__ inline void begin_residual(const storer &s, const mk_instruction &in, uint32_t residual_out, uint32_t out,
                                      row_store &r) {
  const mk_operand &to = in.operands[residual_out];
  r.tiles = to.cols;
  r.plain = reinterpret_cast<float *>(s.d.buffer(to).address) + to.col * 16;
  r.row = stamped_row(s.d, in.operands[out]);
}

__device__ inline void finish_residual(const storer &s, uint32_t tile, float y, const row_store &r) {
  y = r.a + y;
  publish_bf16(s, r.row, tile * 8, y, 16);
  if (s.lane < 16) {
    r.plain[tile * 16 + s.lane] = y;
  }
}

}  // namespace mk
