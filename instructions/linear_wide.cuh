// The linear opcodes but HEAD of the kernel for wide steps, on the device. Equations are those of qkv.cuh, glu.cuh
// and linear_part.cuh, and additions to the residual, for 128 lines and at most eight row tiles of the weight.
//
// Each warpgroup multiplies 64 rows by all lines, chain by chain (docs/NUMERICS.md): the sums of a chain begin from
// zero, and are added to those before when it has ended. Meanwhile the other warpgroup's products go on. So a line's
// bits are those of a program of one row. Tiles: weight [16 n, 16 k] bf16, n up to 8, and lines [128, 64] bf16, both
// through the page ring; sums [64, 128] fp32 of each warpgroup. Waits: the loader for the instruction's counters. Where
// x is normed it is h, times gain already, and the scale comes from the squares of its chains.
#pragma once
#include <type_traits>

#include "instructions/canon.cuh"
#include "instructions/linear_operands.cuh"
#include "instructions/norm_add_element.cuh"
#include "vm/gpu/strips.cuh"
#include "vm/gpu/wide.cuh"

namespace mk {

enum { FEW_THREADS = MK_GPU_CONSUMER_WARPS * 32 / FEW_LINES };  // that a line has, where lines are few

// 1 / rms of the lines, from the squares of their chains: by eights as a tree, and these one after the other. A thread
// has a line, or `threads` neighbouring ones have it, which take the eights in turn.
template <uint32_t threads = 1>
__device__ inline void put_scales(const wide_consumer &c, const mk_instruction_word &in, const mk_operand &operand) {
  enum { EIGHT = 8 };
  uint32_t line = tile::group_of_lane<threads>(tile::thread()), chains = operand.cols;
  if (threads == 1 && line >= LINES) {
    return;
  }
  const float *squares = plain_lines<float>(c.d, operand) + static_cast<uint64_t>(line) * c.d.buffer(operand).cols;
  float sum = 0.0f;
#pragma unroll 1
  for (uint32_t first = 0; first < chains; first += EIGHT * threads) {
    uint32_t at = first + tile::place_in_group<threads>(tile::thread()) * EIGHT;
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
#pragma unroll
    for (uint32_t i = 0; i < threads; i++) {
      sum = __fadd_rn(
          sum, threads == 1 ? of[0] : tile::from_lane(of[0], tile::group_of_lane<threads>(tile::lane()) * threads + i));
    }
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

// The panels of lines that a chain is multiplied by.
struct chain_lines {
  tile::panel first, second;
};

// Calls work(form) with the form of the weight of the instruction at hand: those that checkpoints mostly have get a
// loop over chains of their own (`all`), and the others are looked up for every chain.
template <bool all, typename worker>
__device__ __forceinline__ void with_weights(const wide_consumer &c, worker work) {
  if constexpr (MK_GPU_QUANTISED) {
    const mk_gpu_buffer &b = c.d.buffer(instruction_at_hand(c).parts[LINEAR_WEIGHT]);
    const uint32_t kind = tile::uniform(static_cast<uint32_t>(kind_of(b)));
    if (kind == STRIPS_PLAIN) {
      work(plain_form());
    } else if (all && kind == STRIPS_EVEN_E4M3) {
      work(even_byte_form<e4m3_codes>());
    } else if (all && kind == STRIPS_EVEN_I8) {
      work(even_byte_form<i8_codes>());
    } else if (all && (kind == STRIPS_EVEN_I4 || kind == STRIPS_BF16_I4)) {
      work(nibble_form<false>(b));
    } else if (all && kind == STRIPS_F16_I4) {
      work(nibble_form<true>(b));
    } else {
      work(any_form());
    }
  } else {
    work(plain_form());
  }
}

// A chain's products go out, of what the warp has of it in its warpgroup's page: sixteen rows of 128 columns, of which
// the first `left` steps are the instruction's. The others are another part's, or nobody's. Where codes have a loop of
// their own a step's product is under way while the next step's become bf16. wait_lines: gives the panels, when they
// are there. `has_rows`: the warp's sixteen are the instruction's; others need not be loaded.
template <uint32_t lines, typename form, typename function>
__device__ __forceinline__ void begin_products(const wide_consumer &c, const form &of, const uint8_t *page,
                                               uint32_t left, bool has_rows, function wait_lines,
                                               tile::weight_chain &weights, tile::chain_sums<lines> &chain) {
  const uint32_t warp = c.d.warp % 4;
  if constexpr (std::is_same_v<form, plain_form>) {
    uint8_t *own = const_cast<uint8_t *>(page) + warp * CHAIN_BYTES;
    if (left < CHAIN_STEPS) {
      tile::clear_steps(own, left, CHAIN_STEPS);
    }
    if (has_rows) {
      tile::load(weights, own);
    }
    const chain_lines x = wait_lines();
    tile::begin_chain(chain, weights, x.first, x.second);
  } else if constexpr (std::is_same_v<form, any_form>) {
    const mk_gpu_buffer &b = c.d.buffer(instruction_at_hand(c).parts[LINEAR_WEIGHT]);
    of.template each<true>(
        b, lane_strip(page + warp * b.strip_bytes, tile::lane()), left, [] {},
        [&](uint32_t i, const tile::weight_tile &step) { tile::set_step(weights, i, step); });
    const chain_lines x = wait_lines();
    tile::begin_chain(chain, weights, x.first, x.second);
  } else {
    const mk_gpu_buffer &b = c.d.buffer(instruction_at_hand(c).parts[LINEAR_WEIGHT]);
    const chain_lines x = wait_lines();
    of.template each<true>(
        b, lane_strip(page + warp * b.strip_bytes, tile::lane()), left, [] {},
        [&](uint32_t i, const tile::weight_tile &step) {
          tile::begin_step(chain, weights, i, step, x.first, x.second);
        });
    tile::products_commit();
  }
}

// sums, which are zero, += weight times the first `lines` lines; those of a row tile that is not the instruction's mean
// nothing. While the first chain is under way `meanwhile` is called. A chain's products go out together and are waited
// for together: the other warpgroup's keep the tensor cores busy meanwhile, and with weights fetched ahead, or chains
// in smaller groups, both got in each other's way (docs/results/wide.md).
template <uint32_t lines, typename form, typename function>
__device__ __forceinline__ void multiply_form(wide_consumer &c, const form &of, function meanwhile,
                                              tile::group_sums &sums) {
  tile::weight_chain weights;
  tile::chain_sums<lines> chain;
  stage_cursor stage = next_stage(c);
  uint32_t left = instruction_at_hand(c).parts[LINEAR_WEIGHT].cols;
#pragma unroll 1
  for (; left != 0; left = left > CHAIN_STEPS ? left - CHAIN_STEPS : 0, stage.next()) {
    const uint8_t *page = wait_page(c, stage, c.group());
    if (!group_has_rows(c)) {
      wait_page(c, stage, LINES_AT);
      wait_page(c, stage, LINES_AT + 1);
      release_lines(c, stage);
      release_page(c, stage, c.group(), PAGE_ARRIVALS / 4);
      continue;
    }
    auto wait_lines = [&] {
      tile::panel first = tile::panel_of(tile::shared_address(wait_page(c, stage, LINES_AT)), 16);
      return chain_lines{first, tile::panel_of(tile::shared_address(wait_page(c, stage, LINES_AT + 1)), 16)};
    };
    begin_products(c, of, page, left, true, wait_lines, weights, chain);
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

template <uint32_t lines, bool all = true, typename function>
__device__ __forceinline__ void multiply(wide_consumer &c, function meanwhile, tile::group_sums &sums) {
  with_weights<all>(c, [&](const auto &form) { multiply_form<lines>(c, form, meanwhile, sums); });
}

// The same of few lines (wide.cuh): 64 by each warpgroup, which has four row tiles of its own, or 32, and both have the
// same row tiles; then two chains are under way together, since they take less time than it takes to wait for them.
// Pages of weights go back meanwhile.
struct chain_pages {  // of the ring
  uint32_t weights, lines;
};
template <uint32_t lines, typename form>
__device__ __forceinline__ chain_pages begin_few(const wide_consumer &c, const form &of, page_cursor &place,
                                                 uint32_t left, bool has_rows, tile::weight_chain &weights,
                                                 tile::chain_sums<lines> &chain) {
  constexpr bool shared = lines < FEW_LINES;
  page_cursor own = place;
  place.next();
  if (!shared) {
    if (c.group() != 0) {
      own = place;
    }
    place.next();
  }
  const chain_pages pages = {own.slot(), place.slot()};
  auto wait_lines = [&] {
    uint32_t panel = tile::shared_address(wait_page(c, place.stage, place.page)) +
                     (shared ? c.group() * (lines * MK_WIDE_GPU_PANEL_COLS * 2) : 0);
    place.next();
    return chain_lines{tile::panel_of(panel, 16), tile::panel_of(panel + MK_GPU_PAGE_BYTES / 2, 16)};
  };
  begin_products(c, of, wait_page(c, own.stage, own.page), left, has_rows, wait_lines, weights, chain);
  return pages;
}

template <uint32_t lines, typename form, typename function>
__device__ __forceinline__ void multiply_few_form(wide_consumer &c, const form &of, function meanwhile,
                                                  tile::group_sums &sums) {
  constexpr uint32_t ARRIVALS = lines < FEW_LINES ? 1 : PAGE_ARRIVALS / 4;  // of a warp, at a page of weights
  constexpr bool PAIRS = lines < FEW_LINES;                                 // else registers are too short
  tile::weight_chain weights[2];
  tile::chain_sums<lines> chain[2];
  page_cursor place{next_stage(c)};
  const uint32_t cols = tile::uniform(static_cast<uint32_t>(instruction_at_hand(c).parts[LINEAR_WEIGHT].cols));
  const uint32_t rows = tile::uniform(static_cast<uint32_t>(instruction_at_hand(c).parts[LINEAR_WEIGHT].rows));
  const bool has_rows = (lines < FEW_LINES ? c.d.warp % 4 : c.d.warp) < rows;
  uint32_t left = cols;
  tile::zero(weights[0]);
  tile::zero(weights[1]);
#pragma unroll 1
  for (; PAIRS && left > CHAIN_STEPS; left -= min(left, 2u * CHAIN_STEPS)) {
    const chain_pages first = begin_few(c, of, place, left, has_rows, weights[0], chain[0]);
    const chain_pages second = begin_few(c, of, place, left - CHAIN_STEPS, has_rows, weights[1], chain[1]);
    tile::fence_shared_for_copies();
    release_slot(c, first.weights, ARRIVALS);
    release_slot(c, second.weights, ARRIVALS);
    if (left == cols) {
      meanwhile();
    }
    tile::finish_chain<1>(chain[0], weights[0]);
    release_slot(c, first.lines, 1);
    tile::add(sums, chain[0]);
    tile::finish_chain(chain[1], weights[1]);
    release_slot(c, second.lines, 1);
    tile::add(sums, chain[1]);
  }
#pragma unroll 1
  for (; left != 0; left -= min(left, static_cast<uint32_t>(CHAIN_STEPS))) {
    const chain_pages last = begin_few(c, of, place, left, has_rows, weights[0], chain[0]);
    tile::fence_shared_for_copies();
    release_slot(c, last.weights, ARRIVALS);
    if (left == cols) {
      meanwhile();
    }
    tile::finish_chain(chain[0], weights[0]);
    release_slot(c, last.lines, 1);
    tile::add(sums, chain[0]);
  }
#pragma unroll 1
  for (; place.page != 0; place.next()) {  // what is left of the stage has nothing
    wait_page(c, place.stage, place.page);
    release_page(c, place.stage, place.page, 1);
  }
  put_next_stage(c, place.stage);
}

template <uint32_t lines, bool all = true, typename function>
__device__ __forceinline__ void multiply_few(wide_consumer &c, function meanwhile, tile::group_sums &sums) {
  with_weights<all>(c, [&](const auto &form) { multiply_few_form<lines>(c, form, meanwhile, sums); });
}

// What a warp has of what an instruction makes: a row tile, and lines of it.
struct warp_share {
  uint32_t tile;
  tile::line_range lines;
};
__device__ inline warp_share share_of(const wide_consumer &c, const mk_instruction_word &in, uint32_t lines) {
  enum { SHARED = FEW_LINES / GROUPS };
  if (!few_lines(lines) || !shares_rows(in, in.parts[LINEAR_WEIGHT].rows)) {
    return {c.d.warp, {0, lines}};
  }
  uint32_t first = c.group() * SHARED;
  return {c.d.warp % 4, {first, min(lines, first + SHARED)}};
}

// Where the lane's upper row of the warp's row tile lies in a plain value, line 0. Of other families tiles of q, k and
// v may have squares beside their values.
template <typename element>
__device__ inline element *own_rows(const wide_consumer &c, const mk_operand &operand, const warp_share &own) {
  uint32_t cols = MK_GPU_FAMILIES ? c.d.buffer(operand).tile_cols : 16;
  return plain_lines<element>(c.d, operand) + own.tile * cols + tile::row_in_tile();
}

__device__ inline void put_floats(const wide_consumer &c, const mk_operand &out, const warp_share &own,
                                  tile::group_sums &y) {
  float *first = own_rows<float>(c, out, own);
  uint32_t cols = c.d.buffer(out).cols;
  to_readers(places_of(c.d, out), first, [&](float *to) {
    tile::each_line(y, own.lines, [&](uint32_t line, float &upper, float &lower) {
      if (line < own.lines.end) {
        to[line * cols] = upper;
        to[line * cols + 8] = lower;
      }
    });
  });
}

// Of other families: y + bias, whose squares are summed after the tile's values; then times the gain (qkv.cuh).
__device__ inline void add_extras(const wide_consumer &c, const mk_instruction_word &in, const warp_share &own,
                                  tile::group_sums &y) {
  const mk_operand &weight = in.parts[MK_PART_QKV_weight], &out = in.parts[MK_PART_QKV_out];
  const uint32_t extras = param(in, MK_PARAM_QKV_extras), cols = c.d.buffer(out).cols;
  const bool biased = (extras & MK_QKV_BIASES) != 0, gains = (extras & MK_QKV_GAINS) != 0;
  const float *vector = tile::global<const float>(whole_buffer(in, MK_WHOLE_QKV_inv_freq).address) +
                        param(in, MK_PARAM_QKV_head_dim) / 2 + (weight.row + own.tile) * 16 + tile::row_in_tile();
  const float bias[2] = {biased ? __ldg(vector) : 0.0f, biased ? __ldg(vector + 8) : 0.0f};
  vector += biased ? c.d.buffer(weight).rows : 0;
  const float gain[2] = {gains ? __ldg(vector) : 1.0f, gains ? __ldg(vector + 8) : 1.0f};
  float *squares = plain_lines<float>(c.d, out) + own.tile * MK_SQUARED_TILE + MK_TILE;
  tile::each_line(y, own.lines, [&](uint32_t line, float &upper, float &lower) {
    if (biased) {
      upper = __fadd_rn(upper, bias[0]);
      lower = __fadd_rn(lower, bias[1]);
    }
    if ((extras & MK_QKV_SQUARES) != 0) {
      float sum = tile_squares_of_rows(upper, lower);
      if (tile::row_in_tile() == 0 && line < own.lines.end) {
        to_readers(places_of(c.d, out), squares,
                   [=](float *to) { tile::store<float2>(to + line * cols, make_float2(sum, 0.0f)); });
      }
    }
    upper = __fmul_rn(upper, gain[0]);
    lower = __fmul_rn(lower, gain[1]);
  });
}

__device__ inline void finish_QKV(const wide_consumer &c, const mk_instruction_word &in, const warp_share &own,
                                  tile::group_sums &y) {
  uint32_t tile = in.parts[MK_PART_QKV_weight].row + own.tile;
  if constexpr (MK_GPU_FAMILIES) {
    if (param(in, MK_PARAM_QKV_extras) != 0) {
      add_extras(c, in, own, y);
    }
  }
  if (tile < param(in, MK_PARAM_QKV_rope_tiles)) {
    const float *inv_freq = tile::global<const float>(whole_buffer(in, MK_WHOLE_QKV_inv_freq).address);
    uint32_t tiles_per_head = param(in, MK_PARAM_QKV_head_dim) / 16;
    const line_positions positions = positions_of(lines_of(c.d), in.parts[MK_PART_QKV_x].row);
    float frequency = __ldg(inv_freq + tile % tiles_per_head * 8 + tile::row_in_tile());
    tile::each_line(y, own.lines, [&](uint32_t line, float &upper, float &lower) {
      angle a = angle_of(positions.of(line), frequency);
      float turned = rotated(upper, lower, a.cosine, -a.sine);
      lower = rotated(lower, upper, a.cosine, a.sine);
      upper = turned;
    });
  }
  put_floats(c, in.parts[MK_PART_QKV_out], own, y);
}

__device__ inline void finish_GLU(const wide_consumer &c, const mk_instruction_word &in, const warp_share &own,
                                  tile::group_sums &y) {
  const mk_operand &out = in.parts[MK_PART_GLU_out];
  uint32_t cols = c.d.buffer(out).cols;
  uint16_t *first = plain_lines<uint16_t>(c.d, out) + own.tile * 8;
  if constexpr (MK_GPU_FAMILIES) {
    if (param(in, MK_PARAM_GLU_biased) != 0) {
      const float of_gate = glu_bias(in, own.tile, tile::row_in_tile());
      const float of_up = glu_bias(in, own.tile, tile::row_in_tile() + 8);
      tile::each_line(y, own.lines, [&](uint32_t, float &gate, float &up) {
        gate = __fadd_rn(gate, of_gate);
        up = __fadd_rn(up, of_up);
      });
    }
  }
  tile::each_line(y, own.lines, [&](uint32_t, float &gate, float &up) { gate = gated(gate, up); });
  to_readers(own_place(c.d), first, [&](uint16_t *to) {
    tile::each_pair_of_rows(y, own.lines, [&](uint32_t line, uint32_t rows, uint32_t values, uint32_t) {
      if (line < own.lines.end) {
        tile::store<uint32_t>(to + line * cols + rows, values);
      }
    });
  });
}

__device__ inline void finish_LINEAR_PART(const wide_consumer &c, const mk_instruction_word &in, const warp_share &own,
                                          tile::group_sums &y) {
  put_floats(c, in.parts[MK_PART_LINEAR_PART_out], own, y);
}

// The end of additions to the residual: y += the lines' residuals, plain, or the embedding rows of their tokens;
// residual_out = y; out = bf16(y). `residual`: the number of residual_in.
__device__ inline void finish_residual(const wide_consumer &c, const mk_instruction_word &in, int residual,
                                       const warp_share &own, tile::group_sums &y) {
  const mk_operand &from = in.parts[residual], &to = in.parts[residual + 1], &out = in.parts[residual + 2];
  if ((from.flags & MK_OPERAND_TOKEN_ROW) != 0) {
    const mk_gpu_buffer &b = c.d.buffer(from);
    tile::each_line(y, own.lines, [&](uint32_t line, float &upper, float &lower) {
      uint32_t token = lines_of(c.d).tokens[out.row * LINES + min(line, own.lines.end - 1)];
      const uint16_t *step = tile::global<const uint16_t>(b.address) +
                             (static_cast<uint64_t>(token / 16) * b.grid_cols + from.col + own.tile) * 256 +
                             mk_step_offset(token, tile::row_in_tile());
      upper = __fadd_rn(tile::load_bf16(step), upper);
      lower = __fadd_rn(tile::load_bf16(step + 4), lower);  // eight columns further on
    });
  } else {
    const float *residual = own_rows<float>(c, from, own);
    uint32_t cols = c.d.buffer(from).cols;
    tile::each_line(y, own.lines, [&](uint32_t line, float &upper, float &lower) {
      upper = __fadd_rn(tile::load_relaxed(residual + min(line, own.lines.end - 1) * cols), upper);
      lower = __fadd_rn(tile::load_relaxed(residual + min(line, own.lines.end - 1) * cols + 8), lower);
    });
  }
  put_floats(c, to, own, y);
  uint16_t *first = plain_lines<uint16_t>(c.d, out) + own.tile * 16;
  uint32_t cols = c.d.buffer(out).cols;
  to_readers(places_of(c.d, out), first, [&](uint16_t *rounded) {
    tile::each_pair_of_rows(y, own.lines, [&](uint32_t line, uint32_t rows, uint32_t upper, uint32_t lower) {
      if (line < own.lines.end) {
        tile::store<uint32_t>(rounded + line * cols + rows, upper);
        tile::store<uint32_t>(rounded + line * cols + rows + 8, lower);
      }
    });
  });
}

// The squares of the input, where it is normed.
__device__ inline const mk_operand *squares_of(const mk_instruction_word &in) {
  const mk_operand *squares = in.opcode == only<&opcode_row::rotates> ? &in.parts[MK_PART_QKV_squares]
                              : in.opcode == only<&opcode_row::gates> ? &in.parts[MK_PART_GLU_squares]
                                                                      : nullptr;
  return MK_GPU_FAMILIES && squares != nullptr && squares->rows == 0 ? nullptr : squares;
}

template <typename role>
__device__ __forceinline__ void finish_sums(const role &c, const mk_instruction_word &in, const warp_share &own,
                                            tile::group_sums &y) {
#define MK_OPCODE(NAME, text, state, semantics)                                                                 \
  static_assert(                                                                                                \
      !opcodes.NAME.linear || opcodes.NAME.logits || opcodes.NAME.adds || MK_HAS(finish_##NAME(c, in, own, y)), \
      "no finish_" #NAME);
#include "vm/program/opcodes.def"
  switch (in.opcode) {
#define MK_OPCODE(NAME, text, state, semantics)                                                                   \
  case case_of((opcodes.NAME.linear && opcodes.NAME.adds) || MK_HAS(finish_##NAME(c, in, own, y)), opcodes.NAME): \
    if constexpr (MK_HAS(finish_##NAME(c, in, own, y))) {                                                         \
      finish_##NAME(c, in, own, y);                                                                               \
    } else if constexpr (opcodes.NAME.adds) {                                                                     \
      finish_residual(c, in, opcodes.NAME.residual, own, y);                                                      \
    }                                                                                                             \
    break;
#include "vm/program/opcodes.def"
    default:
      break;
  }
}

// The instruction is looked up anew after the products, since registers are short.
__device__ __forceinline__ void finish_linear(const wide_consumer &c, tile::group_sums &y) {
  const mk_instruction_word &in = instruction_at_hand(c);
  const warp_share own = share_of(c, in, active_lines(c.d, in.parts[LINEAR_X].row));
  if (squares_of(in) != nullptr) {
    consumers_meet();
    tile::each_line(y, own.lines, [&](uint32_t line, float &upper, float &lower) {
      float scale = wide_shared()->scales[line];
      upper = __fmul_rn(upper, scale);
      lower = __fmul_rn(lower, scale);
    });
  }
  if (own.tile < in.parts[LINEAR_WEIGHT].rows) {
    finish_sums(c, in, own, y);
  }
}

__device__ __forceinline__ void consume_linear(wide_consumer &c) {
  uint32_t lines = active_lines(c.d, instruction_at_hand(c).parts[LINEAR_X].row);
  if (lines != 0) {
    auto put_own_scales = [&]<uint32_t threads>() {
      const mk_instruction_word &in = instruction_at_hand(c);
      if (const mk_operand *squares = squares_of(in); squares != nullptr) {
        put_scales<threads>(c, in, *squares);
      }
    };
    tile::group_sums y;
    tile::zero(y);
    if (few_lines(lines)) {
      auto meanwhile = [&] { put_own_scales.template operator()<FEW_THREADS>(); };
      if (shares_rows(instruction_at_hand(c), instruction_at_hand(c).parts[LINEAR_WEIGHT].rows)) {
        multiply_few<FEW_LINES / GROUPS>(c, meanwhile, y);
      } else {
        multiply_few<FEW_LINES>(c, meanwhile, y);
      }
    } else {
      auto meanwhile = [&] { put_own_scales.template operator()<1>(); };
      if (lines > LINES / 2) {
        multiply<LINES>(c, meanwhile, y);
      } else {
        multiply<LINES / 2>(c, meanwhile, y);
      }
    }
    finish_linear(c, y);
    if constexpr (MK_GPU_RANKS) {
      if (instruction_at_hand(c).opcode == only<&opcode_row::gates>) {
        push_lines(c, instruction_at_hand(c).parts[MK_PART_GLU_out], lines);
      }
    }
  } else {
    consumers_wait(c, instruction_at_hand(c));
  }
  consumers_signal(c, instruction_at_hand(c));
}

// y = the parts of the warp's row tile, added in order.
__device__ inline void add_parts(const wide_consumer &c, const mk_operand &parts, const warp_share &own,
                                 tile::group_sums &y) {
  const mk_gpu_buffer &b = c.d.buffer(parts);
  const float *from = own_rows<float>(c, parts, own);
  tile::zero(y);
#pragma unroll 1
  for (uint32_t part = 0; part < parts.rows; part++, from += static_cast<uint64_t>(b.tile_rows) * b.cols) {
    tile::each_line(y, own.lines, [&](uint32_t line, float &upper, float &lower) {
      if (line < own.lines.end) {
        upper = __fadd_rn(upper, tile::load_relaxed(from + line * b.cols));
        lower = __fadd_rn(lower, tile::load_relaxed(from + line * b.cols + 8));
      }
    });
  }
}

// Of other families: ADD_NORMED, which has the operands of REDUCE_ADD, and squares (norm_add.c).
static_assert(MK_PART_ADD_NORMED_parts == MK_PART_REDUCE_ADD_parts &&
                  MK_PART_ADD_NORMED_residual_in == MK_PART_REDUCE_ADD_residual_in &&
                  MK_PART_ADD_NORMED_out == MK_PART_REDUCE_ADD_out,
              "one body adds both");
static_assert(MK_PARAM_ADD_NORMED_eps == 0 && MK_PARAM_ADD_NORMED_width == 1, "where put_scales has them");
static_assert(MK_PARAM_ADD_NORMED_width == MK_PARAM_NORM_ADD_width &&
                  MK_PARAM_ADD_NORMED_biased == MK_PARAM_NORM_ADD_biased &&
                  MK_WHOLE_ADD_NORMED_gain == MK_WHOLE_NORM_ADD_gain,
              "norm_bias and norm_gain have one place to look");
__device__ inline bool is_scaled(const mk_instruction_word &in) {
  return MK_GPU_FAMILIES && in.opcode == only<&opcode_row::adds_scaled>;
}

// The scales of the sums of such an instruction, which then all warps have.
__device__ inline void put_scales_of_sums(const wide_consumer &c, const mk_instruction_word &in, uint32_t lines) {
  if (few_lines(lines)) {
    put_scales<FEW_THREADS>(c, in, in.parts[MK_PART_ADD_NORMED_squares]);
  } else {
    put_scales(c, in, in.parts[MK_PART_ADD_NORMED_squares]);
  }
  consumers_meet();
}

// y, the sums of the warp's row tile, becomes norm(y).
__device__ inline void norm_sums(const mk_instruction_word &in, const warp_share &own, tile::group_sums &y) {
  const uint32_t element = (in.parts[MK_PART_ADD_NORMED_parts].col + own.tile) * MK_TILE + tile::row_in_tile();
  const float bias[2] = {norm_bias(in, element), norm_bias(in, element + 8)};
  const float gain[2] = {norm_gain(in, element), norm_gain(in, element + 8)};
  tile::each_line(y, own.lines, [&](uint32_t line, float &upper, float &lower) {
    float scale = wide_shared()->scales[line];
    upper = __fmul_rn(__fmul_rn(__fadd_rn(upper, bias[0]), scale), gain[0]);
    lower = __fmul_rn(__fmul_rn(__fadd_rn(lower, bias[1]), scale), gain[1]);
  });
}

__device__ inline void consume_REDUCE_ADD(wide_consumer &c, const mk_instruction_word &in) {
  const mk_operand &parts = in.parts[MK_PART_REDUCE_ADD_parts], &out = in.parts[MK_PART_REDUCE_ADD_out];
  uint32_t lines = active_lines(c.d, out.row);
  consumers_wait(c, in);
  if (is_scaled(in) && lines != 0) {
    put_scales_of_sums(c, in, lines);
  }
  if (lines != 0 && c.d.warp < parts.cols) {
    const warp_share own = {c.d.warp, {0, lines}};
    tile::group_sums y;
    add_parts(c, parts, own, y);
    if (is_scaled(in)) {
      norm_sums(in, own, y);
    }
    finish_residual(c, in, MK_PART_REDUCE_ADD_residual_in, own, y);
  }
  if (is_scaled(in) && !has_flag(in, SLOT_SIGNALS_RELEASE)) {
    consumers_meet();  // the next instruction may have scales of its own
  }
  consumers_signal(c, in);
}

}  // namespace mk
