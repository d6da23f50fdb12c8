// COMBINE of several rows per step on the device: the spans in use of each line become the attention output of some
// query heads; combine.c. A line with one span in use has its output already: its ATTENTION has done the work of this
// instruction, which is fused. Consumers only: a thread has two output values of a line, and adds its spans in order.
// Span s of a line is what unit mk_unit_of has left of it. Waits: the parts in use, by their stamps.
// Signals: nothing.
#pragma once
#include "instructions/combine.cuh"
#include "vm/gpu/rows_consumer.cuh"

namespace mk {

// Waits for four neighbouring spans of a unit, as far as they are in use, and adds them as a tree: pairs 2 j and 2 j +
// 1 are two values of span j, then what its scores are relative to and its sum of p.
template <typename address, typename presence>
__device__ inline merged_unit four_spans(const consumer &c, uint32_t buffer, address at, presence has) {
  tile::stamped_pair pairs[2 * GROUP_SPANS];
  wait_stamped_pairs<2 * GROUP_SPANS>(c.d, buffer, at, has, pairs);
  return tree_of_four([&](uint32_t j) -> merged_unit {
    float2 value = floats(pairs[2 * j]), scale = floats(pairs[2 * j + 1]);
    return has(2 * j) ? merged_unit{value.x, value.y, scale.x, scale.y} : merged_unit();
  });
}

__device__ inline void consume_COMBINE(rows_consumer &c, const mk_instruction_word &in) {
  const mk_operand &parts = in.parts[MK_PART_COMBINE_parts], &out = in.parts[MK_PART_COMBINE_out];
  const mk_gpu_buffer &b = c.d.buffer(parts), &to = c.d.buffer(out);
  const volatile rows_state &state = rows_of(c.d);
  uint32_t rows = c.d.params.rows, stride = b.tile_cols, pair_bits = stride == 66 ? 5 : 6;
  uint32_t heads = out.cols * to.tile_cols >> (pair_bits + 1);
  uint32_t units = parts.rows, span = param(in, MK_PARAM_COMBINE_span);
  auto has_work = [&](uint32_t line) { return (state.active >> line & 1) != 0 && state.rows[line].position >= span; };
  // Empties, for all lines, the words that the next step writes: there this instruction, or an ATTENTION in its place.
  uint32_t words = heads << (pair_bits + 4);
  uint32_t *next = value_view(to, c.d.generation() + 1).words + out.col * to.tile_cols / 16 * STEP_WORDS;
#pragma unroll 1
  for (uint32_t start = c.warp * STEP_WORDS; start < words; start += MK_GPU_CONSUMER_WARPS * STEP_WORDS) {
    to_readers(readers_of(out), next + start + c.lane * 4, [](uint32_t *to) {
      tile::store_relaxed_quad(to, make_uint4(EMPTY_WORD, EMPTY_WORD, EMPTY_WORD, EMPTY_WORD));
    });
  }
  if (!tile::any_lane(has_work(tile::place_in_group<MK_MAX_ROWS>(c.lane)))) {
    return;
  }
#pragma unroll 1
  for (uint32_t start = c.warp * 32; start < (rows * heads) << pair_bits; start += MK_GPU_CONSUMER_WARPS * 32) {
    uint32_t unit = start + c.lane, pair = unit & ((1u << pair_bits) - 1), line = (start >> pair_bits) / heads,
             head = (start >> pair_bits) % heads;
    if (!has_work(line)) {
      continue;
    }
    uint32_t shift = mk_first_unit(state.rows[line].slot, units);
    uint32_t in_use = min(state.rows[line].position / span + 1, units * b.spans);
    const uint64_t *words = tile::global<const uint64_t>(b.address) + static_cast<uint64_t>(line) * b.row_words +
                            (parts.col + head * b.spans) * stride;
    merged_unit sum;
#pragma unroll 1
    for (uint32_t first = 0; first < in_use; first += GROUP_SPANS) {
      auto at = [&](uint32_t j) {
        uint32_t s = first + j / 2, round = s < units ? 0 : s / units, unit = s - round * units + shift;
        unit -= unit >= units ? units : 0;
        return words + static_cast<uint64_t>(unit * rows) * b.row_words + round * stride +
               (j % 2 == 0 ? 2 * pair : stride - 2);
      };
      auto has = [&](uint32_t j) { return first + j / 2 < in_use; };
      add_unit(sum, four_spans(c, parts.buffer, at, has));
    }
    float scale = reciprocal_of(sum.total);
    uint32_t at = (out.col * to.tile_cols + (head << pair_bits) * 2) / 2 + pair;
    if (publishes(c.d)) {
      to_readers(
          readers_of(out), value_view(to, c.d.generation()).word(line, at, has_few_lines(c.d)),
          [&](uint32_t *copy) { tile::store_relaxed(copy, tile::pack_bf16(sum.low * scale, sum.high * scale)); });
    }
  }
}

}  // namespace mk
