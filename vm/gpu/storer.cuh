// The storer: one warp that adds up the consumers' sums, finishes each row tile, publishes it and signals.
// Lane p holds rows 2 p and 2 p + 1 of the tile at hand (lanes from 8 on hold copies).
#pragma once
#include "instructions/canon.cuh"
#include "instructions/linear_operands.cuh"
#include "vm/gpu/wait.cuh"

namespace mk {

struct storer {
  device d;
  uint32_t lane;
  ring_cursor<MK_GPU_RESULT_SLOTS> results;
};

// The state of the step at hand. In shared memory, since registers are short.
__device__ inline const volatile step_state &state_of(const storer &s) { return s.d.words()->state[s.d.epoch % 2]; }

__device__ inline bool stops(const storer &s) { return (state_of(s).token & MK_CANDIDATE_STOP) != 0; }

struct two_rows {
  float even, odd;
};

// Eight lanes have two neighbouring rows of a tile each, and so have the eights of lanes after them. This is the first
// one of the lane's two.
__device__ inline uint32_t even_row(const storer &s) { return 2 * tile::place_in_group<8>(s.lane); }

__device__ inline two_rows from_partner(const two_rows &y, uint32_t lanes_away) {
  return {tile::exchange(y.even, lanes_away), tile::exchange(y.odd, lanes_away)};
}

// Takes the next result: y += its sixteen chains, one after the other, for the row that the lane's place among sixteen
// names; squares += their part of the sum of x^2. Every stage waits for what stands here, from the last sum to the
// departure of the tile: so there are few instructions, and no load waits for another. Afterwards the consumers may
// fill the slot again.
__device__ inline void take_result(storer &s, bool takes_squares, float &y, float &squares) {
  enum { CHAINS = MK_GPU_CONSUMER_WARPS };
  wait_phase(s.d, RESULT_FULL + s.results.slot(), s.results.phase(), MK_ACTIVITY_RESULT_FULL, s.results.slot());
  const float *sums = s.d.result(s.results.slot()) + tile::place_in_group<16>(s.lane);
  float chain[CHAINS];
#pragma unroll
  for (uint32_t i = 0; i < CHAINS; i++) {
    chain[i] = sums[i * RESULT_CHAIN];
  }
#pragma unroll
  for (uint32_t i = 0; i < CHAINS; i++) {
    y += chain[i];
  }
  if (takes_squares) {
    const uint32_t past = tile::place_in_group<16>(s.lane) * (RESULT_SQUARE - 1);  // of the lane's first sum
    float eight = tile::sum_tree<8>(sums[RESULT_SQUARES + past]);
    squares = (squares + tile::from_lane(eight, 0)) + tile::from_lane(eight, 8);
  }
  __syncwarp();
  if (s.lane == 0) {
    tile::arrive(s.d.barrier(RESULT_EMPTY + s.results.slot()));
  }
  s.results.next();
}

__device__ inline uint64_t *stamped_row(const device &d, const mk_operand &operand) {
  const mk_gpu_buffer &b = d.buffer(operand);
  uint32_t per_word = b.dtype == MK_DTYPE_BF16 ? 2 : 1;
  return tile::global<uint64_t>(b.address) + static_cast<uint64_t>(operand.row) * b.tile_rows * b.row_words +
         operand.col * b.tile_cols / per_word;
}

// Where words are published that go to all ranks with readers (publish_bf16): the lane's copy of the row, which may be
// nullptr.
__device__ inline uint64_t *published_row(const storer &s, const mk_operand &operand) {
  uint64_t *own = stamped_row(s.d, operand);
  return MK_GPU_RANKS ? copy_of_lane(s.lane, operand, own) : own;
}

// Publishes the rows of the first `count` lanes, 4 or 8, as bf16 pairs, from word `first` on. With several ranks, four
// lanes have one or two of these words each, for the copy of one rank.
__device__ inline void publish_bf16(const storer &s, uint64_t *row, uint32_t first, const two_rows &value,
                                    uint32_t count) {
  if constexpr (MK_GPU_RANKS) {
    uint32_t words = tile::pack_bf16(value.even, value.odd), at = tile::lane_of_quad(s.lane) * (count / 4);
    uint32_t low = tile::from_lane(words, at), high = tile::from_lane(words, at + 1);
    if (row == nullptr || !publishes(s.d)) {
    } else if (count == 8) {
      tile::store_stamped_pair(row + first + at, low, high, s.d.generation());
    } else {
      tile::store_stamped(row + first + at, low, s.d.generation());
    }
  } else if (s.lane < count && publishes(s.d)) {
    tile::store_stamped(row + first + s.lane, tile::pack_bf16(value.even, value.odd), s.d.generation());
  }
}

__device__ inline void signal_from_warp(const device &d, uint32_t lane, const mk_instruction_word &in) {
  if (!has_flag(in, SLOT_SIGNALS_RELEASE)) {
    return;
  }
  __syncwarp();
  if (lane == 0 && publishes(d)) {
    signal_counters(d, in);
  }
}

// This lane's elements of row tile `tile` of a residual: plain fp32, or the embedding row of the step's token.
__device__ inline two_rows load_residual(const storer &s, const mk_operand &operand, uint32_t tile) {
  const mk_gpu_buffer &b = s.d.buffer(operand);
  uint32_t column_tile = operand.col + tile, element = even_row(s);
  if ((operand.flags & MK_OPERAND_TOKEN_ROW) == 0) {
    float2 two = __ldcg(tile::global<const float2>(b.address) + (column_tile * 16 + element) / 2);
    return {two.x, two.y};
  }
  uint32_t row = state_of(s).token;
  const uint16_t *step =
      tile::global<const uint16_t>(b.address) + (static_cast<uint64_t>(row / 16) * b.grid_cols + column_tile) * 256;
  uint32_t two = tile::load<uint32_t>(step + mk_step_offset(row, element));
  return {tile::low_bf16(two), tile::high_bf16(two)};
}

// An instruction in the storer's hands. begin_X sets what all row tiles of opcode X share; prepare_X does for one tile
// what can be done before its sums are there; finish_X does the rest; end_X is for what comes after the last tile, and
// after_X for what comes after the signals. One loop in one_row_roles.cuh runs these functions for every opcode. Where
// an opcode that adds to the residual has none of the first three, the loop does what all such opcodes do. An opcode
// with a store_X has a loop of its own, with its end.
struct row_store : kept_readers<MK_GPU_RANKS> {  // of QKV and LINEAR_PART
  uint32_t tiles;                                // 0: the storer has nothing to do
  uint32_t rounds;                               // results of each tile, one for every sixteen chains
  uint64_t *row;                                 // stamped words of the first tile
  float scale;                                   // of the norm, from the first tile on: x is the same for all
  two_rows a, b;        // of the tile at hand: cosine and sine, the residual, or bias and count
  two_rows bias, gain;  // of other families' QKV, and of their norms after a sum
  float *plain;         // residual_out or logits, at the first tile
  float best;           // HEAD: the candidate so far
  uint32_t index, stop;
};

// Publishes all 16 rows.
__device__ inline void publish_floats(const storer &s, const row_store &r, uint32_t first, const two_rows &value) {
  if (s.lane < 16 && publishes(s.d)) {
    float own = s.lane < 8 ? value.even : value.odd;
    to_readers(r.readers(), r.row + first + even_row(s) + tile::group_of_lane<8>(s.lane),
               [&](uint64_t *to) { tile::store_stamped(to, __float_as_uint(own), s.d.generation()); });
  }
}

// How many results the consumers make of a sum that is normed.
__device__ inline uint32_t norm_rounds(const mk_instruction_word &in) {
  constexpr uint32_t tiles = MK_GPU_CONSUMER_WARPS * MK_CHAIN_COLS / MK_TILE;
  return (in.parts[MK_PART_NORM_ADD_parts].cols + tiles - 1) / tiles;
}

// How many results the consumers make of a row tile: one for each sixteen chains.
template <opcode_row row>
__device__ inline uint32_t rounds_of(const mk_instruction_word &in) {
  if constexpr (row.linear) {
    const mk_operand &weight = in.parts[LINEAR_WEIGHT];
    uint32_t chains = (weight.cols + MK_CHAIN_COLS / 16 - 1) / (MK_CHAIN_COLS / 16);
    return weight.rows == 0 ? 1 : (chains + MK_GPU_CONSUMER_WARPS - 1) / MK_GPU_CONSUMER_WARPS;
  }
  if constexpr (row.adds_norm) {
    return norm_rounds(in);
  }
  return 1;
}

// The sums of row tile i; with those of the first tile comes the scale of a norm.
__device__ inline two_rows take_results(storer &s, const mk_instruction_word &in, uint32_t i, row_store &r) {
  float y = 0.0f, squares = 0.0f;
  bool scales = i == 0 && has_squares(in);
#pragma unroll 1
  for (uint32_t round = 0; round < r.rounds; round++) {
    take_result(s, scales, y, squares);
  }
  if (scales) {
    r.scale = with_factor(
        in, norm_scale(squares, reciprocal_of(static_cast<float>(param(in, 1))), __uint_as_float(param(in, 0))));
  }
  uint32_t row = even_row(s);
  return {tile::from_lane(y, row), tile::from_lane(y, row + 1)};
}

// y times the scale of the norm.
__device__ inline two_rows normed(const two_rows &y, const row_store &r) { return {y.even * r.scale, y.odd * r.scale}; }

// The end of additions to the residual: y = residual_in + sum; residual_out = y; out = bf16(y). `residual`: the number
// of residual_in.
__device__ inline void begin_residual(const storer &s, const mk_instruction_word &in, int residual, row_store &r) {
  const mk_operand &to = in.parts[residual + 1];
  r.tiles = to.cols;
  r.plain = tile::global<float>(s.d.buffer(to).address) + to.col * 16;
  r.row = published_row(s, in.parts[residual + 2]);
}

__device__ inline void finish_residual(const storer &s, uint32_t tile, two_rows y, const row_store &r) {
  y = {r.a.even + y.even, r.a.odd + y.odd};
  publish_bf16(s, r.row, tile * 8, y, 8);
  if (s.lane < 8) {
    tile::view<float2>(r.plain)[tile * 8 + s.lane] = make_float2(y.even, y.odd);
  }
}

}  // namespace mk
