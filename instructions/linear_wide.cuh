// The linear opcodes but HEAD of the kernel for wide steps, on the device. Equations are those of qkv.cuh, glu.cuh,
// linear_add.cuh and linear_part.cuh, for 128 lines and at most eight row tiles of the weight.
//
// Each warpgroup multiplies 64 rows by all lines, chain by chain (docs/NUMERICS.md): the sums of a chain begin from
// zero, and are added to those before when it has ended. Meanwhile the other warpgroup's products go on. So a line's
// bits are those of a program of one row. Tiles: weight [16 n, 16 k] bf16, n up to 8, and lines [128, 64] bf16, both
// through the page ring; sums [64, 128] fp32 of each warpgroup. Waits: the loader for the instruction's counters. Where
// x is normed it is h, times gain already, and the scale comes from the squares of its chains.
#pragma once
#include "instructions/canon.cuh"
#include "instructions/linear_operands.cuh"
#include "vm/gpu/wide.cuh"

namespace mk {

// 1 / rms of the lines, from the squares of their chains: by eights as a tree, and these one after the other. A thread
// has a line.
__device__ inline void put_scales(const wide_consumer &c, const mk_instruction_word &in, const mk_operand &operand) {
  enum { EIGHT = 8 };
  uint32_t line = tile::thread(), chains = operand.cols;
  if (line >= LINES) {
    return;
  }
  const float *squares = plain_lines<float>(c.d, operand) + static_cast<uint64_t>(line) * c.d.buffer(operand).cols;
  float sum = 0.0f;
#pragma unroll 1
  for (uint32_t at = 0; at < chains; at += EIGHT) {
    float of[EIGHT];
#pragma unroll
    for (uint32_t i = 0; i < EIGHT; i++) {
      of[i] = at + i < chains ? __ldcg(squares + at + i) : 0.0f;
    }
#pragma unroll
    for (uint32_t away = 1; away < EIGHT; away *= 2) {
#pragma unroll
      for (uint32_t i = 0; i < EIGHT; i += 2 * away) {
        of[i] = __fadd_rn(of[i], of[i + away]);
      }
    }
    sum = __fadd_rn(sum, of[0]);
  }
  wide_shared()->scales[line] =
      norm_scale(sum, reciprocal_of(static_cast<float>(param(in, 1))), __uint_as_float(param(in, 0)));
}

// Whether the warpgroup has rows of the instruction's weight; of prompts nearly every instruction has some for both.
__device__ inline bool group_has_rows(const wide_consumer &c) {
  return !MK_GPU_SLOTS || tile::uniform(instruction_at_hand(c).parts[LINEAR_WEIGHT].rows > c.group() * GROUP_TILES);
}

__device__ inline void release_lines(const wide_consumer &c, const stage_cursor &stage) {
  release_page(c, stage, LINES_AT, 1);
  release_page(c, stage, LINES_AT + 1, 1);
}

// sums, which are zero, += weight times the first `lines` lines; those of a row tile that is not the instruction's mean
// nothing. While the first chain is under way `meanwhile` is called. A chain's products go out together and are waited
// for together: the other warpgroup's keep the tensor cores busy meanwhile, and with weights fetched ahead, or chains
// in smaller groups, both got in each other's way (docs/results/wide.md).
template <uint32_t lines, typename function>
__device__ __forceinline__ void multiply(wide_consumer &c, function meanwhile, tile::group_sums &sums) {
  tile::weight_chain weights;
  tile::chain_sums<lines> chain;
  stage_cursor stage = next_stage(c);
  uint32_t left = instruction_at_hand(c).parts[LINEAR_WEIGHT].cols;
#pragma unroll 1
  for (; left != 0; left = left > CHAIN_STEPS ? left - CHAIN_STEPS : 0, stage.next()) {
    uint8_t *own = const_cast<uint8_t *>(wait_page(c, stage, c.group())) + c.d.warp % 4 * CHAIN_BYTES;
    if (!group_has_rows(c)) {
      wait_page(c, stage, LINES_AT);
      wait_page(c, stage, LINES_AT + 1);
      release_lines(c, stage);
      release_page(c, stage, c.group(), PAGE_ARRIVALS / 4);
      continue;
    }
    if (left < CHAIN_STEPS) {  // columns of the weight that are another part's, or nobody's
      tile::clear_steps(own, left, CHAIN_STEPS);
    }
    tile::load(weights, own);
    tile::panel first = tile::panel_of(tile::shared_address(wait_page(c, stage, LINES_AT)), 16);
    tile::panel second = tile::panel_of(tile::shared_address(wait_page(c, stage, LINES_AT + 1)), 16);
    tile::begin_chain(chain, weights, first, second);
    if (left == instruction_at_hand(c).parts[LINEAR_WEIGHT].cols) {
      meanwhile();
    }
    tile::finish_chain(chain, weights);
    release_lines(c, stage);
    tile::add(sums, chain);
    tile::fence_shared_for_copies();
    release_page(c, stage, c.group(), PAGE_ARRIVALS / 4);
  }
  put_next_stage(c, stage);
}

// Where the lane's upper row of the warp's row tile lies in a plain value, line 0.
template <typename element>
__device__ inline element *own_rows(const wide_consumer &c, const mk_operand &operand) {
  return plain_lines<element>(c.d, operand) + c.d.warp * 16 + tile::row_in_tile();
}

__device__ inline void put_floats(const wide_consumer &c, const mk_operand &out, uint32_t lines, tile::group_sums &y) {
  float *to = own_rows<float>(c, out);
  uint32_t cols = c.d.buffer(out).cols;
  tile::each_line(y, lines, [&](uint32_t line, float &upper, float &lower) {
    if (line < lines) {
      to[line * cols] = upper;
      to[line * cols + 8] = lower;
    }
  });
}

__device__ inline void finish_QKV(const wide_consumer &c, const mk_instruction_word &in, uint32_t lines,
                                  tile::group_sums &y) {
  uint32_t tile = in.parts[MK_PART_QKV_weight].row + c.d.warp;
  if (tile < param(in, MK_PARAM_QKV_rope_tiles)) {
    const float *inv_freq = tile::global<const float>(whole_buffer(in, MK_WHOLE_QKV_inv_freq).address);
    uint32_t tiles_per_head = param(in, MK_PARAM_QKV_head_dim) / 16;
    const line_positions positions = positions_of(lines_of(c.d), in.parts[MK_PART_QKV_x].row);
    float frequency = __ldg(inv_freq + tile % tiles_per_head * 8 + tile::row_in_tile());
    tile::each_line(y, lines, [&](uint32_t line, float &upper, float &lower) {
      angle a = angle_of(positions.of(line), frequency);
      float turned = rotated(upper, lower, a.cosine, -a.sine);
      lower = rotated(lower, upper, a.cosine, a.sine);
      upper = turned;
    });
  }
  put_floats(c, in.parts[MK_PART_QKV_out], lines, y);
}

__device__ inline void finish_GLU(const wide_consumer &c, const mk_instruction_word &in, uint32_t lines,
                                  tile::group_sums &y) {
  const mk_operand &out = in.parts[MK_PART_GLU_out];
  uint32_t cols = c.d.buffer(out).cols;
  uint16_t *to = plain_lines<uint16_t>(c.d, out) + c.d.warp * 8;
  tile::each_line(y, lines, [&](uint32_t, float &gate, float &up) { gate = gated(gate, up); });
  tile::each_pair_of_rows(y, lines, [&](uint32_t line, uint32_t rows, uint32_t values, uint32_t) {
    if (line < lines) {
      tile::store<uint32_t>(to + line * cols + rows, values);
    }
  });
}

__device__ inline void finish_LINEAR_PART(const wide_consumer &c, const mk_instruction_word &in, uint32_t lines,
                                          tile::group_sums &y) {
  put_floats(c, in.parts[MK_PART_LINEAR_PART_out], lines, y);
}

// y += the lines' residuals: plain, or the embedding rows of their tokens; residual_out = y; out = bf16(y).
__device__ inline void finish_residual(const wide_consumer &c, const mk_operand &from, const mk_operand &to,
                                       const mk_operand &out, uint32_t lines, tile::group_sums &y) {
  if ((from.flags & MK_OPERAND_TOKEN_ROW) != 0) {
    const mk_gpu_buffer &b = c.d.buffer(from);
    tile::each_line(y, lines, [&](uint32_t line, float &upper, float &lower) {
      uint32_t token = lines_of(c.d).tokens[out.row * LINES + min(line, lines - 1)];
      const uint16_t *step = tile::global<const uint16_t>(b.address) +
                             (static_cast<uint64_t>(token / 16) * b.grid_cols + from.col + c.d.warp) * 256 +
                             mk_step_offset(token, tile::row_in_tile());
      upper = __fadd_rn(tile::load_bf16(step), upper);
      lower = __fadd_rn(tile::load_bf16(step + 4), lower);  // eight columns further on
    });
  } else {
    const float *residual = own_rows<float>(c, from);
    uint32_t cols = c.d.buffer(from).cols;
    tile::each_line(y, lines, [&](uint32_t line, float &upper, float &lower) {
      upper = __fadd_rn(tile::load_relaxed(residual + min(line, lines - 1) * cols), upper);
      lower = __fadd_rn(tile::load_relaxed(residual + min(line, lines - 1) * cols + 8), lower);
    });
  }
  put_floats(c, to, lines, y);
  uint16_t *rounded = plain_lines<uint16_t>(c.d, out) + c.d.warp * 16;
  uint32_t cols = c.d.buffer(out).cols;
  tile::each_pair_of_rows(y, lines, [&](uint32_t line, uint32_t rows, uint32_t upper, uint32_t lower) {
    if (line < lines) {
      tile::store<uint32_t>(rounded + line * cols + rows, upper);
      tile::store<uint32_t>(rounded + line * cols + rows + 8, lower);
    }
  });
}

__device__ inline void finish_LINEAR_ADD(const wide_consumer &c, const mk_instruction_word &in, uint32_t lines,
                                         tile::group_sums &y) {
  finish_residual(c, in.parts[MK_PART_LINEAR_ADD_residual_in], in.parts[MK_PART_LINEAR_ADD_residual_out],
                  in.parts[MK_PART_LINEAR_ADD_out], lines, y);
}

// The squares of the input, where it is normed.
__device__ inline const mk_operand *squares_of(const mk_instruction_word &in) {
  return in.opcode == MK_OP_QKV   ? &in.parts[MK_PART_QKV_squares]
         : in.opcode == MK_OP_GLU ? &in.parts[MK_PART_GLU_squares]
                                  : nullptr;
}

template <typename role>
__device__ __forceinline__ void finish_sums(const role &c, const mk_instruction_word &in, uint32_t lines,
                                            tile::group_sums &y) {
#define MK_OPCODE(NAME, text, state, semantics)                                                                       \
  static_assert(!is_linear(MK_OP_##NAME) || places_of(MK_OP_##NAME).logits || MK_HAS(finish_##NAME(c, in, lines, y)), \
                "no finish_" #NAME);
#include "vm/program/opcodes.def"
  switch (in.opcode) {
#define MK_OPCODE(NAME, text, state, semantics)                       \
  case case_of(MK_HAS(finish_##NAME(c, in, lines, y)), MK_OP_##NAME): \
    if constexpr (MK_HAS(finish_##NAME(c, in, lines, y))) {           \
      finish_##NAME(c, in, lines, y);                                 \
    }                                                                 \
    break;
#include "vm/program/opcodes.def"
    default:
      break;
  }
}

// The instruction is looked up anew after the products, since registers are short.
__device__ __forceinline__ void finish_linear(const wide_consumer &c, tile::group_sums &y) {
  const mk_instruction_word &in = instruction_at_hand(c);
  uint32_t lines = active_lines(c.d, in.parts[LINEAR_X].row);
  if (squares_of(in) != nullptr) {
    consumers_meet();
    tile::each_line(y, lines, [&](uint32_t line, float &upper, float &lower) {
      float scale = wide_shared()->scales[line];
      upper = __fmul_rn(upper, scale);
      lower = __fmul_rn(lower, scale);
    });
  }
  if (c.d.warp < in.parts[LINEAR_WEIGHT].rows) {
    finish_sums(c, in, lines, y);
  }
}

__device__ __forceinline__ void consume_linear(wide_consumer &c) {
  uint32_t lines = active_lines(c.d, instruction_at_hand(c).parts[LINEAR_X].row);
  if (lines != 0) {
    auto meanwhile = [&] {
      const mk_instruction_word &in = instruction_at_hand(c);
      if (const mk_operand *squares = squares_of(in); squares != nullptr) {
        put_scales(c, in, *squares);
      }
    };
    tile::group_sums y;
    tile::zero(y);
    if (lines > LINES / 2) {
      multiply<LINES>(c, meanwhile, y);
    } else {
      multiply<LINES / 2>(c, meanwhile, y);
    }
    finish_linear(c, y);
  } else {
    consumers_wait(c, instruction_at_hand(c));
  }
  consumers_signal(c, instruction_at_hand(c));
}

// Parts are added in order.
__device__ inline void consume_REDUCE_ADD(wide_consumer &c, const mk_instruction_word &in) {
  const mk_operand &parts = in.parts[MK_PART_REDUCE_ADD_parts], &out = in.parts[MK_PART_REDUCE_ADD_out];
  uint32_t lines = active_lines(c.d, out.row);
  consumers_wait(c, in);
  if (lines != 0 && c.d.warp < parts.cols) {
    const mk_gpu_buffer &b = c.d.buffer(parts);
    const float *from = own_rows<float>(c, parts);
    tile::group_sums y;
    tile::zero(y);
#pragma unroll 1
    for (uint32_t part = 0; part < parts.rows; part++, from += static_cast<uint64_t>(b.tile_rows) * b.cols) {
      tile::each_line(y, lines, [&](uint32_t line, float &upper, float &lower) {
        if (line < lines) {
          upper = __fadd_rn(upper, tile::load_relaxed(from + line * b.cols));
          lower = __fadd_rn(lower, tile::load_relaxed(from + line * b.cols + 8));
        }
      });
    }
    finish_residual(c, in.parts[MK_PART_REDUCE_ADD_residual_in], in.parts[MK_PART_REDUCE_ADD_residual_out], out, lines,
                    y);
  }
  consumers_signal(c, in);
}

}  // namespace mk
