// QKV on the device. out = rope(W norm(x), position) for the first rope_tiles row tiles, W norm(x) for the rest; qkv.c.
// Tiles: weight [16 n, 16 k] bf16 through the page ring; x times gain as bf16; out 16 fp32 stamped words per row tile.
// Other families have a bias and a gain for each row, and the sum of a tile's squares after its values.
// Waits: x (consumers), the step state (storer: the position). Signals: the counter of its value, after the last tile.
#pragma once
#include "instructions/tile/copy.cuh"
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

__device__ inline void begin_QKV(const storer &s, const mk_instruction_word &in, row_store &r) {
  r.tiles = in.parts[MK_PART_QKV_weight].rows;
  r.row = stamped_row(s.d, in.parts[MK_PART_QKV_out]);
  r.keep_readers(in.parts[MK_PART_QKV_out]);
}

// Columns of a tile of what it writes.
__device__ inline uint32_t tile_columns(const mk_instruction_word &in) {
  bool squares = MK_GPU_FAMILIES && in.opcode == only<&opcode_row::rotates> &&
                 (param(in, MK_PARAM_QKV_extras) & MK_QKV_SQUARES) != 0;
  return squares ? MK_SQUARED_TILE + 0u : MK_TILE + 0u;
}

// Where the biases, or the gains, of row tile i begin in the vector that inv_freq goes on with, if there are any. (Once
// an address of zero said that there are none; compute-sanitizer told of loads from it. See "Processes that share a
// GPU" in docs/results/quantised.md.)
struct row_vector {
  const float *values;
  bool there;

  __device__ row_vector(const device &d, const mk_instruction_word &in, uint32_t which, uint32_t i) {
    const mk_operand &weight = in.parts[MK_PART_QKV_weight];
    uint32_t extras = param(in, MK_PARAM_QKV_extras), at = param(in, MK_PARAM_QKV_head_dim) / 2 + (weight.row + i) * 16;
    at += which == MK_QKV_GAINS && (extras & MK_QKV_BIASES) != 0 ? d.buffer(weight).rows : 0;
    values = tile::global<const float>(whole_buffer(in, MK_WHOLE_QKV_inv_freq).address) + at;
    there = (extras & which) != 0;
  }
};

// Asks the L2 for the frequencies, biases and gains of the instruction's row tiles, long before they are due. Of other
// families every layer has its own, which come from memory: that takes as long as a small layer's weights. One thread.
__device__ inline void prefetch_QKV(const device &d, const mk_instruction_word &in) {
  const mk_operand &weight = in.parts[MK_PART_QKV_weight];
  if (weight.rows == 0) {
    return;
  }
  tile::prefetch(tile::global<const float>(whole_buffer(in, MK_WHOLE_QKV_inv_freq).address),
                 param(in, MK_PARAM_QKV_head_dim) / 2 * sizeof(float));
  for (uint32_t which : {MK_QKV_BIASES, MK_QKV_GAINS}) {
    const row_vector vector(d, in, which, 0);
    if (vector.there) {
      tile::prefetch(vector.values, weight.rows * MK_TILE * sizeof(float));
    }
  }
}

// The lane's two rows of such a vector.
__device__ inline two_rows load_rows(const storer &s, const row_vector &vector, float without) {
  if (!vector.there) {
    return {without, without};
  }
  float2 two = __ldg(tile::view<float2>(vector.values) + tile::place_in_group<8>(s.lane));
  return {two.x, two.y};
}

// Cosine and sine of the rows' angles; 1 and 0 where nothing is rotated.
__device__ inline void prepare_QKV(const storer &s, const mk_instruction_word &in, uint32_t i, row_store &r) {
  uint32_t tile = in.parts[MK_PART_QKV_weight].row + i, tiles_per_head = param(in, MK_PARAM_QKV_head_dim) / 16;
  r.a = {1.0f, 1.0f};
  r.b = {0.0f, 0.0f};
  if constexpr (MK_GPU_FAMILIES) {
    r.bias = load_rows(s, row_vector(s.d, in, MK_QKV_BIASES, i), 0.0f);
    r.gain = load_rows(s, row_vector(s.d, in, MK_QKV_GAINS, i), 1.0f);
  }
  if (tile < param(in, MK_PARAM_QKV_rope_tiles)) {
    const float *inv_freq = tile::global<const float>(whole_buffer(in, MK_WHOLE_QKV_inv_freq).address);
    // Each lane takes one of its two rows, and the other one's from a lane that has the same.
    bool odd = tile::group_of_two<8>(s.lane) != 0;
    uint32_t row = tile::lane_column(s.lane) + (odd ? 1 : 0);
    angle own = angle_of(state_of(s).position, inv_freq[tile % tiles_per_head * 8 + row]);
    two_rows other = from_partner({own.cosine, own.sine}, 8);
    r.a = odd ? two_rows{other.even, own.cosine} : two_rows{own.cosine, other.even};
    r.b = odd ? two_rows{other.odd, own.sine} : two_rows{own.sine, other.odd};
  }
}

// y + bias, whose squares are summed after the tile's values; then times the gain.
__device__ inline two_rows with_extras(const storer &s, const mk_instruction_word &in, uint32_t i, const two_rows &y,
                                       const row_store &r) {
  uint32_t extras = param(in, MK_PARAM_QKV_extras);
  two_rows sum = y;
  if ((extras & MK_QKV_BIASES) != 0) {
    sum = {__fadd_rn(y.even, r.bias.even), __fadd_rn(y.odd, r.bias.odd)};
  }
  if ((extras & MK_QKV_SQUARES) != 0) {
    float squares = tile_squares(sum.even, sum.odd);
    if (s.lane == 0 && publishes(s.d)) {
      to_readers(r.readers(), r.row + i * MK_SQUARED_TILE + MK_TILE,
                 [&](uint64_t *to) { tile::store_stamped_pair(to, __float_as_uint(squares), 0, s.d.generation()); });
    }
  }
  return {__fmul_rn(sum.even, r.gain.even), __fmul_rn(sum.odd, r.gain.odd)};
}

__device__ inline void finish_QKV(const storer &s, const mk_instruction_word &in, uint32_t i, two_rows y,
                                  row_store &r) {
  y = normed(y, r);
  if constexpr (MK_GPU_FAMILIES) {
    if (param(in, MK_PARAM_QKV_extras) != 0) {
      y = with_extras(s, in, i, y, r);
    }
  }
  two_rows partner = from_partner(y, 4);
  float sign = tile::place_in_group<8>(s.lane) < 4 ? -1.0f : 1.0f;
  publish_floats(
      s, r, i * tile_columns(in),
      {rotated(y.even, partner.even, r.a.even, sign * r.b.even), rotated(y.odd, partner.odd, r.a.odd, sign * r.b.odd)});
}

}  // namespace mk
