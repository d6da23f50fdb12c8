// How an item of MLA_PART ends: its sums become output, or the item's slot. Where its SM carries out the first
// reduction of the list (mk_mla_folds), the sums in the block's other slots are added to its own first. Waits: for the
// stamps of these slots. Stores outputs as they are, slots as stamped words.
#pragma once
#include "instructions/mla_slot.cuh"
#include "instructions/tile/warp.cuh"
#include "vm/gpu/attender.cuh"

namespace mk {

enum { SUMS = 128 };  // of a thread: 64 columns of each of its two rows

struct softmax_rows {  // of a thread's two rows; sums of weights are over its own tokens
  float max[2], total[2];
};

// The shape of the program's blocks.
struct block_view {
  uint32_t rows, blocks, heads, later;  // later: the number of new tokens, less one
  float scale;                          // for powers of two
};

__device__ inline block_view view_of(const device &d, const mk_instruction_word &in) {
  const mk_gpu_buffer &out = d.buffer(in.parts[MK_PART_MLA_PART_out]);
  uint32_t tokens = param(in, MK_PARAM_MLA_PART_tokens);
  block_view v;
  v.rows = out.cols / MK_MLA_LATENT;
  v.blocks = out.rows / whole_buffer(in, MK_WHOLE_MLA_PART_sequences).rows;
  v.heads = v.rows * v.blocks / tokens;
  v.later = tokens - 1;
  v.scale = __uint_as_float(param(in, MK_PARAM_MLA_PART_scale)) * 1.44269504088896f;
  return v;
}

// The end of an item runs once, so it takes as long as its code takes to arrive, which is not in the instruction cache:
// so the same code runs twice, for a thread's first row and then for its second one.

// Stores the thread's row h, whose sums now stand where those of a first row do. A lane stores sixteen bytes at a time:
// memory takes whole sectors of 32 bytes several times faster than halves of them.
__device__ inline void store_out(const attender &a, const block_view &v, const mk_gpu_buffer &out, uint32_t block,
                                 uint32_t h, float inverse, const float (&sums)[SUMS]) {
  uint32_t row = a.row() + 8 * h;
  uint4 *to = tile::global<uint4>(out.address) + (static_cast<uint64_t>(block) * v.rows + row) * (MK_MLA_LATENT / 8) +
              a.group * (MK_MLA_LATENT / 16) + tile::lane_of_quad(a.lane);
#pragma unroll
  for (uint32_t j = 0; j < SUMS / 4; j += 4) {
    uint32_t words[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      uint32_t at = 4 * (j + i);
      words[i] = tile::pack_bf16(sums[at] * inverse, sums[at + 1] * inverse);
    }
    uint4 whole = tile::transpose_quad(a.lane, make_uint4(words[0], words[1], words[2], words[3]));
    if (row < v.rows) {
      to[j] = whole;
    }
  }
}

// The power of two that brings values of up to `most` below two. fp16 then keeps eleven bits of those that matter.
__device__ inline float unit_above(float most) {
  uint32_t bits = __float_as_uint(most) & 0x7f800000u;
  return __uint_as_float(min(max(bits, 0x0c800000u), 0x72000000u));
}

// This thread's part of a unit: the 32 columns from sums[first] on of its row h.
__device__ inline void store_unit(const slot_unit &to, uint32_t lane, uint32_t first, uint32_t h, float logarithm,
                                  float inverse, uint32_t generation, bool stores, const float (&sums)[SUMS]) {
  float most = 0.0f, mine[SUMS / 4];
  uint32_t words[SLOT_GROUPS * 3];
#pragma unroll
  for (uint32_t i = 0; i < SUMS / 4; i++) {
    uint32_t at = first + i / 2 * 4 + i % 2;
    mine[i] = h == 0 ? sums[at] : sums[at + 2];
    most = fmaxf(most, fabsf(mine[i]));
  }
  float unit = unit_above(tile::largest_tree<4>(most) * inverse),
        factor = inverse * __uint_as_float(0x7f000000u - __float_as_uint(unit));
#pragma unroll
  for (uint32_t w = 0; w < SUMS / 8; w++) {
    words[w] = tile::pack_half(mine[2 * w] * factor, mine[2 * w + 1] * factor);
  }
  words[SUMS / 8] = __float_as_uint(logarithm);
  words[SUMS / 8 + 1] = __float_as_uint(unit);
  if (stores) {
#pragma unroll
    for (uint32_t g = 0; g < SLOT_GROUPS; g++) {
      tile::store_stamped_triple(to.at(g * 4 + tile::lane_of_quad(lane)), words[3 * g], words[3 * g + 1],
                                 words[3 * g + 2], generation);
    }
  }
}

enum { UNIT_HALVES = 2 };  // units of a warpgroup in a row

__device__ inline slot_unit units_of_row(const attender &a, const mk_gpu_buffer &parts, uint32_t slot, uint32_t h) {
  return unit_in(parts, slot, (a.row() + 8 * h) * MK_MLA_ROW_UNITS + a.group * UNIT_HALVES);
}

// What the sums of a row are relative to, a power of two, and the total of its weights.
struct row_sum {
  float logarithm, total;
};

// Adds what the item of another slot has for the thread's row h, whose sums now stand where those of a first row do.
__device__ __forceinline__ void add_slot(const attender &a, const mk_gpu_buffer &parts, uint32_t buffer, uint32_t slot,
                                         uint32_t h, row_sum &s, float (&sums)[SUMS]) {
  slot_unit from = units_of_row(a, parts, slot, h);
  float keep = 0.0f, weight = 0.0f;
#pragma unroll
  for (uint32_t half = 0; half < UNIT_HALVES; half++) {
    tile::stamped_triple words[SLOT_GROUPS];
    wait_all_triples<SLOT_GROUPS>(
        a.d, buffer, [&](uint32_t i) { return from.at(half * SLOT_TRIPLES + i * 4 + tile::lane_of_quad(a.lane)); },
        words);
    if (half == 0) {
      float logarithm = __uint_as_float(words[SLOT_GROUPS - 1].data[1]), max = fmaxf(s.logarithm, logarithm);
      float offset = max == -INFINITY ? 0.0f : max;
      keep = tile::exp2(s.logarithm - offset);
      weight = tile::exp2(logarithm - offset);
      s.logarithm = max;
      s.total = s.total * keep + weight;
    }
    float factor = weight * __uint_as_float(words[SLOT_GROUPS - 1].data[2]);
#pragma unroll
    for (uint32_t w = 0; w < SUMS / 8; w++) {
      float2 pair = tile::unpack_half(words[w / 3].data[w % 3]);
      uint32_t at = half * (SUMS / 2) + 4 * w;
      sums[at] = sums[at] * keep + factor * pair.x;
      sums[at + 1] = sums[at + 1] * keep + factor * pair.y;
    }
  }
}

// Whether the item itself writes the output of these eight rows of the block: of the warp's sixteen the first eight (h
// = 0) or the last eight.
__device__ inline bool is_own(const attender &a, const mla_entry &item, uint32_t h) {
  uint32_t row = a.warp % 4 * 16 + 8 * h;
  return row >= (item.own_rows & 0xffffu) && row < item.own_rows >> 16;
}

// Stores, in the item's slot, rows of the block whose output others write.
__device__ __forceinline__ void store_slot(const attender &a, const block_view &v, const mk_gpu_buffer &parts,
                                           const mla_entry &item, const softmax_rows &r, const float (&sums)[SUMS]) {
#pragma unroll 1
  for (uint32_t h = 0; h < 2; h++) {
    if (is_own(a, item, h) || a.warp % 4 * 16 + 8 * h >= v.rows || !publishes(a.d)) {
      continue;
    }
    float total = h == 0 ? r.total[0] : r.total[1], max = h == 0 ? r.max[0] : r.max[1];
    float inverse = total == 0.0f ? 0.0f : __frcp_rn(total);
    float logarithm = total == 0.0f ? -INFINITY : max + __log2f(total);
    slot_unit to = units_of_row(a, parts, item.slot, h);
#pragma unroll
    for (uint32_t half = 0; half < UNIT_HALVES; half++) {
      store_unit({to.address + half * (SLOT_TRIPLES * 16)}, a.lane, half * (SUMS / 2), h, logarithm, inverse,
                 a.d.generation(), a.row() + 8 * h < v.rows, sums);
    }
  }
}

// The end of an item. It works in groups of eight rows of the block. Rows whose output others write go to the item's
// slot. To rows whose output this item writes, the sums of the other items are added. What other SMs wait for is stored
// before this one waits. Some of the block's last eight rows may have no meaning; such a group is not folded.
__device__ __forceinline__ void end_item(const attender &a, const block_view &v, const mk_instruction_word &in,
                                         const mla_entry &item, const softmax_rows &r, float (&sums)[SUMS]) {
  const mk_operand &operand = in.parts[MK_PART_MLA_PART_parts];
  const mk_gpu_buffer &parts = a.d.buffer(operand);
  store_slot(a, v, parts, item, r, sums);
  uint32_t first = item.block_slots & 0xffffu, end = first + (item.block_slots >> 16);
#pragma unroll 1
  for (uint32_t h = 0; h < 2; h++) {
    if (is_own(a, item, h)) {
      row_sum s = {h == 0 ? r.max[0] : r.max[1], h == 0 ? r.total[0] : r.total[1]};
#pragma unroll 1
      for (uint32_t slot = first; slot < end; slot++) {
        if (slot != item.slot) {
          add_slot(a, parts, operand.buffer, slot, h, s, sums);
        }
      }
      if (publishes(a.d)) {
        store_out(a, v, a.d.buffer(in.parts[MK_PART_MLA_PART_out]), item.block, h,
                  s.total == 0.0f ? 0.0f : __frcp_rn(s.total), sums);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < SUMS; i += 4) {
      sums[i] = sums[i + 2];
      sums[i + 1] = sums[i + 3];
    }
  }
}

}  // namespace mk
