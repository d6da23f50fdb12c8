// The linear opcodes but HEAD of the kernel for wide steps, on the device. Equations are those of qkv.cuh, glu.cuh, linear_add.cuh and linear_part.cuh, for
// 256 lines and at most eight row tiles of the weight.
//
// Each warpgroup multiplies 64 rows by all lines, chain by chain (docs/NUMERICS.md), of each chain first the one part of the lines and then the other: its sums
// begin from zero, and are added to those before when it has ended. Meanwhile the other warpgroup's products go on. So a line's bits are those of a
// program of one row.
// Tiles: weight [16 n, 16 k] bf16, n up to 8, and lines [128, 64] bf16, both through the page ring; sums 2 x [64, 128] fp32 of each warpgroup.
// Waits: the loader for the instruction's counters. Where x is normed it is h, times gain already, and the scale comes from the squares of its chains.
#pragma once
#include "instructions/canon.cuh"
#include "instructions/linear_operands.cuh"
#include "vm/gpu/wide.cuh"

namespace mk {

// 1 / rms of the lines, from the squares of their chains: by eights as a tree, and these one after the other. A thread has a line.
__device__ inline void put_scales(const wide_consumer &c, const mk_instruction_word &in, const mk_operand &operand) {
  enum { EIGHT = 8 };
  uint32_t line = threadIdx.x, chains = operand.cols;
  if (line >= active_lines(c.d, operand.row)) {
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

// The warp's row tile of the stage's chain.
__device__ inline uint8_t *own_weights(const wide_consumer &c, const stage_cursor &stage) {
  return c.d.page(page_of(stage, c.group())) + c.d.warp % 4 * CHAIN_BYTES;
}

struct unit_sums {  // of a warpgroup: 64 rows by a line tile
  tile::group_sums part[PARTS];
};

// A chain of a part: its products go out two steps at a time, and the weights of the next ones come into registers while they run.
__device__ __forceinline__ void multiply_chain(const wide_consumer &c, const stage_cursor &stage, uint32_t part,
                                               const uint8_t *weights, tile::group_sums &chain) {
  enum { PAIRS = CHAIN_STEPS / 2, PANEL_PAIRS = PAIRS / PANELS };
  tile::weight_steps steps[2];
  tile::pin(chain.value);
  tile::load(steps[0], weights);
  tile::panel lines = 0;
#pragma unroll
  for (uint32_t i = 0; i < PAIRS; i++) {
    if (i % PANEL_PAIRS == 0) {
      const uint8_t *page = wait_page(c, stage, LINES_AT + part * PANELS + i / PANEL_PAIRS);
      lines = tile::panel_of(tile::shared_address(page), 16);
    }
    tile::panel at = tile::panel_at(lines, i % PANEL_PAIRS * 64);
    if (i == 0) {
      tile::begin_steps<false>(chain, steps[i % 2], at);
    } else {
      tile::begin_steps<true>(chain, steps[i % 2], at);
    }
    if (i + 1 < PAIRS) {
      if (i > 0) {
        tile::products_wait<1>();
      }
      tile::keep_until_here(steps[(i + 1) % 2]);
      tile::load(steps[(i + 1) % 2], weights + (i + 1) * 1024);
    }
  }
  tile::products_wait<0>();
  tile::pin(chain.value);
  tile::keep_until_here(steps[0]);
  tile::keep_until_here(steps[1]);
}

// What is left of K, in steps, and whether both parts of the lines have active ones, in one register.
struct steps_left {
  uint32_t word;

  __device__ steps_left(uint32_t steps, bool both) : word(steps << 1 | (both ? 1u : 0u)) {}
  __device__ uint32_t steps() const { return word >> 1; }
  __device__ bool both() const { return word % 2 != 0; }
  __device__ void next_chain() { word = word > CHAIN_STEPS * 2 + 1 ? word - CHAIN_STEPS * 2 : 0; }
};

// sums = weight times lines, of `lines` active ones; those of a row tile that is not the instruction's mean nothing. Behind the first chain `meanwhile`
// is called, while the other warpgroup's products are under way.
template <typename function>
__device__ __forceinline__ void multiply(wide_consumer &c, uint32_t lines, function meanwhile, unit_sums &sums) {
  tile::group_sums chain;
  stage_cursor stage = next_stage(c);
#pragma unroll
  for (uint32_t part = 0; part < PARTS; part++) {
    tile::zero(sums.part[part]);
  }
  steps_left left(instruction_at_hand(c).parts[LINEAR_WEIGHT].cols, lines > PART_LINES);
#pragma unroll 1
  for (; left.steps() != 0; left.next_chain()) {
    wait_page(c, stage, c.group());
    if (left.steps() < CHAIN_STEPS) {  // columns of the weight that are another part's, or nobody's
      tile::clear_steps(own_weights(c, stage), left.steps(), CHAIN_STEPS);
    }
#pragma unroll
    for (uint32_t part = 0; part < PARTS; part++) {
      if (part == 0 || left.both()) {
        multiply_chain(c, stage, part, own_weights(c, stage), chain);
        tile::add(sums.part[part], chain);
      } else {
        wait_page(c, stage, LINES_AT + part * PANELS);
        wait_page(c, stage, LINES_AT + part * PANELS + 1);
      }
#pragma unroll
      for (uint32_t panel = 0; panel < PANELS; panel++) {
        release_page(c, stage, LINES_AT + part * PANELS + panel, 1);
      }
    }
    tile::fence_shared_for_copies();
    release_page(c, stage, c.group(), PAGE_ARRIVALS / 4);
    if (stage.at == next_stage(c).at) {  // the first chain
      meanwhile();
    }
    stage.next();
  }
  put_next_stage(c, stage);
}

// A part of a line tile: its number, and how many lines of it are active.
struct line_part {
  uint32_t number, lines;
};

// The part's first line of an operand of a plain value, from its first column on.
template <typename element>
__device__ inline element *part_lines(const wide_consumer &c, const mk_operand &operand, const line_part &part) {
  return plain_lines<element>(c.d, operand) +
         static_cast<uint64_t>(part.number * PART_LINES) * c.d.buffer(operand).cols;
}

// Where the lane's upper row of the warp's row tile lies.
template <typename element>
__device__ inline element *own_rows(const wide_consumer &c, const mk_operand &operand, const line_part &part) {
  return part_lines<element>(c, operand, part) + c.d.warp * 16 + tile::row_in_tile();
}

__device__ inline void put_floats(const wide_consumer &c, const mk_operand &out, const line_part &part,
                                  tile::group_sums &y) {
  float *to = own_rows<float>(c, out, part);
  uint32_t cols = c.d.buffer(out).cols;
  tile::each_line(y, [&](uint32_t line, float &upper, float &lower) {
    if (line < part.lines) {
      to[line * cols] = upper;
      to[line * cols + 8] = lower;
    }
  });
}

__device__ inline void finish_QKV(const wide_consumer &c, const mk_instruction_word &in, const line_part &part,
                                  tile::group_sums &y) {
  uint32_t tile = in.parts[MK_PART_QKV_weight].row + c.d.warp;
  if (tile < param(in, MK_PARAM_QKV_rope_tiles)) {
    const float *inv_freq = reinterpret_cast<const float *>(whole_buffer(in, MK_WHOLE_QKV_inv_freq).address);
    uint32_t tiles_per_head = param(in, MK_PARAM_QKV_head_dim) / 16;
    uint32_t first = lines_of(c.d).first + in.parts[MK_PART_QKV_x].row * LINES + part.number * PART_LINES;
    float frequency = __ldg(inv_freq + tile % tiles_per_head * 8 + tile::row_in_tile());
    tile::each_line(y, [&](uint32_t line, float &upper, float &lower) {
      angle a = angle_of(first + line, frequency);
      float turned = rotated(upper, lower, a.cosine, -a.sine);
      lower = rotated(lower, upper, a.cosine, a.sine);
      upper = turned;
    });
  }
  put_floats(c, in.parts[MK_PART_QKV_out], part, y);
}

__device__ inline void finish_GLU(const wide_consumer &c, const mk_instruction_word &in, const line_part &part,
                                  tile::group_sums &y) {
  const mk_operand &out = in.parts[MK_PART_GLU_out];
  uint32_t cols = c.d.buffer(out).cols;
  uint16_t *to = part_lines<uint16_t>(c, out, part) + c.d.warp * 8;
  tile::each_line(y, [&](uint32_t, float &gate, float &up) { gate = gated(gate, up); });
  tile::each_pair_of_rows(y, [&](uint32_t line, uint32_t rows, uint32_t values, uint32_t) {
    if (line < part.lines) {
      *reinterpret_cast<uint32_t *>(to + line * cols + rows) = values;
    }
  });
}

__device__ inline void finish_LINEAR_PART(const wide_consumer &c, const mk_instruction_word &in, const line_part &part,
                                          tile::group_sums &y) {
  put_floats(c, in.parts[MK_PART_LINEAR_PART_out], part, y);
}

// y += the lines' residuals: plain, or the embedding rows of their tokens; residual_out = y; out = bf16(y).
__device__ inline void finish_residual(const wide_consumer &c, const mk_operand &from, const mk_operand &to,
                                       const mk_operand &out, const line_part &part, tile::group_sums &y) {
  if ((from.flags & MK_OPERAND_TOKEN_ROW) != 0) {
    const mk_gpu_buffer &b = c.d.buffer(from);
    tile::each_line(y, [&](uint32_t line, float &upper, float &lower) {
      uint32_t token = line < part.lines ? lines_of(c.d).tokens[out.row * LINES + part.number * PART_LINES + line] : 0;
      const uint16_t *step = reinterpret_cast<const uint16_t *>(b.address) +
                             (static_cast<uint64_t>(token / 16) * b.grid_cols + from.col + c.d.warp) * 256 +
                             mk_step_offset(token, tile::row_in_tile());
      upper = __fadd_rn(tile::load_bf16(step), upper);
      lower = __fadd_rn(tile::load_bf16(step + 4), lower);  // eight columns further on
    });
  } else {
    const float *residual = own_rows<float>(c, from, part);
    uint32_t cols = c.d.buffer(from).cols;
    tile::each_line(y, [&](uint32_t line, float &upper, float &lower) {
      upper = __fadd_rn(line < part.lines ? tile::load_relaxed(residual + line * cols) : 0.0f, upper);
      lower = __fadd_rn(line < part.lines ? tile::load_relaxed(residual + line * cols + 8) : 0.0f, lower);
    });
  }
  put_floats(c, to, part, y);
  uint16_t *rounded = part_lines<uint16_t>(c, out, part) + c.d.warp * 16;
  uint32_t cols = c.d.buffer(out).cols;
  tile::each_pair_of_rows(y, [&](uint32_t line, uint32_t rows, uint32_t upper, uint32_t lower) {
    if (line < part.lines) {
      *reinterpret_cast<uint32_t *>(rounded + line * cols + rows) = upper;
      *reinterpret_cast<uint32_t *>(rounded + line * cols + rows + 8) = lower;
    }
  });
}

__device__ inline void finish_LINEAR_ADD(const wide_consumer &c, const mk_instruction_word &in, const line_part &part,
                                         tile::group_sums &y) {
  finish_residual(c, in.parts[MK_PART_LINEAR_ADD_residual_in], in.parts[MK_PART_LINEAR_ADD_residual_out],
                  in.parts[MK_PART_LINEAR_ADD_out], part, y);
}

// The squares of the input, where it is normed.
__device__ inline const mk_operand *squares_of(const mk_instruction_word &in) {
  return in.opcode == MK_OP_QKV   ? &in.parts[MK_PART_QKV_squares]
         : in.opcode == MK_OP_GLU ? &in.parts[MK_PART_GLU_squares]
                                  : nullptr;
}

template <typename role>
__device__ __forceinline__ void finish_sums(const role &c, const mk_instruction_word &in, const line_part &part,
                                            tile::group_sums &y) {
#define MK_OPCODE(NAME, text, state, semantics)                                                                       \
  static_assert(!is_linear(MK_OP_##NAME) || places_of(MK_OP_##NAME).logits || MK_HAS(finish_##NAME(c, in, part, y)), \
                "no finish_" #NAME);
#include "vm/program/opcodes.def"
  switch (in.opcode) {
#define MK_OPCODE(NAME, text, state, semantics)                       \
  case case_of(MK_HAS(finish_##NAME(c, in, part, y)), MK_OP_##NAME): \
    if constexpr (MK_HAS(finish_##NAME(c, in, part, y))) {           \
      finish_##NAME(c, in, part, y);                                 \
    }                                                                 \
    break;
#include "vm/program/opcodes.def"
    default:
      break;
  }
}

// The instruction is looked up anew behind the products: registers are short.
__device__ __forceinline__ void finish_linear(const wide_consumer &c, uint32_t number, tile::group_sums &y) {
  const mk_instruction_word &in = instruction_at_hand(c);
  const line_part part = {number, lines_of_part(active_lines(c.d, in.parts[LINEAR_X].row), number)};
  if (squares_of(in) != nullptr) {
    tile::each_line(y, [&](uint32_t line, float &upper, float &lower) {
      float scale = wide_shared()->scales[number * PART_LINES + line];
      upper = __fmul_rn(upper, scale);
      lower = __fmul_rn(lower, scale);
    });
  }
  finish_sums(c, in, part, y);
}

__device__ __forceinline__ void consume_linear(wide_consumer &c) {
  uint32_t lines = active_lines(c.d, instruction_at_hand(c).parts[LINEAR_X].row);
  if (lines != 0) {
    unit_sums y;
    multiply(
        c, lines,
        [&] {
          look_up_epoch(c);
          const mk_instruction_word &in = instruction_at_hand(c);
          if (const mk_operand *squares = squares_of(in); squares != nullptr) {
            put_scales(c, in, *squares);
          }
        },
        y);
    look_up_epoch(c);
    consumers_meet();  // all scales are there
    if (c.d.warp < instruction_at_hand(c).parts[LINEAR_WEIGHT].rows) {
      finish_linear(c, 0, y.part[0]);
      if (active_lines(c.d, instruction_at_hand(c).parts[LINEAR_X].row) > PART_LINES) {
        finish_linear(c, 1, y.part[1]);
      }
    }
  } else {
    consumers_wait(c, instruction_at_hand(c));
  }
  consumers_signal(c, instruction_at_hand(c));
}

// Parts of K are added in order.
__device__ inline void consume_REDUCE_ADD(wide_consumer &c, const mk_instruction_word &in) {
  const mk_operand &parts = in.parts[MK_PART_REDUCE_ADD_parts], &out = in.parts[MK_PART_REDUCE_ADD_out];
  uint32_t lines = active_lines(c.d, out.row);
  consumers_wait(c, in);
#pragma unroll 1
  for (uint32_t number = 0; number * PART_LINES < lines && c.d.warp < parts.cols; number++) {
    const line_part part = {number, lines_of_part(lines, number)};
    const mk_gpu_buffer &b = c.d.buffer(parts);
    const float *from = own_rows<float>(c, parts, part);
    tile::group_sums y;
    tile::zero(y);
#pragma unroll 1
    for (uint32_t k = 0; k < parts.rows; k++, from += static_cast<uint64_t>(b.tile_rows) * b.cols) {
      tile::each_line(y, [&](uint32_t line, float &upper, float &lower) {
        if (line < part.lines) {
          upper = __fadd_rn(upper, tile::load_relaxed(from + line * b.cols));
          lower = __fadd_rn(lower, tile::load_relaxed(from + line * b.cols + 8));
        }
      });
    }
    finish_residual(c, in.parts[MK_PART_REDUCE_ADD_residual_in], in.parts[MK_PART_REDUCE_ADD_residual_out], out, part,
                    y);
  }
  consumers_signal(c, in);
}

}  // namespace mk
