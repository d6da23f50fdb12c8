// COMBINE of the kernel for prompts, on the device: the splits in use of each line become the attention output of some query heads; combine.c.
// A thread has two output values of four lines at a time, and their splits in order; at the end all meet, and the flags are raised. Waits:
// the parts in use, by their stamps. Signals: the flags of its value.
#pragma once
#include "vm/gpu/prompt.cuh"

namespace mk {

// Two neighbouring output values of a line's head: sums of p v, the largest score in base 2, the sum of p.
struct line_pair {
  float low, high, max, total;
};

__device__ inline void fold_part(float low, float high, float score, float total, line_pair &sum) {
  float top = fmaxf(sum.max, score);
  float keep = tile::exp2(sum.max - top), factor = tile::exp2(score - top);
  sum.low = sum.low * keep + factor * low;
  sum.high = sum.high * keep + factor * high;
  sum.total = sum.total * keep + factor * total;
  sum.max = top;
}

// Items k are lines `line` + k `lines`, each the same for a warp; pair `pair` of a head whose parts begin at `words`.
template <uint32_t items>
__device__ inline void combine_lines(const prompt_consumer &c, const mk_instruction_word &in, const uint64_t *words,
                                     uint32_t line, uint32_t lines, uint32_t head, uint32_t pair) {
  enum { BATCH = 4 };  // splits that are fetched together
  const mk_operand &parts = in.parts[MK_PART_COMBINE_parts], &out = in.parts[MK_PART_COMBINE_out];
  const mk_gpu_buffer &b = c.d.buffer(parts), &to = c.d.buffer(out);
  line_pair sums[items];
  uint32_t count = lines_of(c.d).count, span = param(in, MK_PARAM_COMBINE_span), units = parts.rows;
  uint32_t last = min(line + (items - 1) * lines, count - 1),
           most = min((lines_of(c.d).first + last) / span + 1, units);
  // In use of a line are as many splits as of the last one, but those that begin behind it.
  uint32_t position = lines_of(c.d).first + line;
#pragma unroll
  for (uint32_t k = 0; k < items; k++) {
    sums[k] = {0.0f, 0.0f, -INFINITY, 0.0f};
  }
  words += static_cast<uint64_t>(line) * b.row_words;
  uint32_t pitch = lines * b.row_words, split_pitch = MK_PROMPT_ROWS * b.row_words;
#pragma unroll 1
  for (uint32_t split = 0; split < most; split += BATCH) {
    // First maximum and sum of item i, of split `lane`; then two values of split j of item k.
    tile::stamped_pair pairs[items * (1 + BATCH)];
    auto in_use = [&](uint32_t k, uint32_t j) {
      return j < BATCH && split + j < most && line + k * lines < count && (split + j) * span <= position + k * lines;
    };
    auto at = [&](uint32_t i) {
      return i < items ? words + (split + tile::lane() % BATCH) * split_pitch + i * pitch + (b.tile_cols - 2 - 2 * pair)
                       : words + (split + i % BATCH) * split_pitch + (i - items) / BATCH * pitch;
    };
    auto has = [&](uint32_t i) { return i < items ? in_use(i, tile::lane()) : in_use((i - items) / BATCH, i % BATCH); };
    wait_stamped_pairs<items *(1 + BATCH)>(c.d, parts.buffer, at, has, pairs);
#pragma unroll
    for (uint32_t k = 0; k < items; k++) {
#pragma unroll
      for (uint32_t j = 0; j < BATCH; j++) {
        float score = __uint_as_float(__shfl_sync(0xffffffffu, tile::stamp_data(pairs[k].low), j));
        float total = __uint_as_float(__shfl_sync(0xffffffffu, tile::stamp_data(pairs[k].high), j));
        if (in_use(k, j)) {
          const tile::stamped_pair &value = pairs[items + k * BATCH + j];
          fold_part(__uint_as_float(tile::stamp_data(value.low)), __uint_as_float(tile::stamp_data(value.high)), score,
                    total, sums[k]);
        }
      }
    }
  }
#pragma unroll
  for (uint32_t k = 0; k < items; k++) {
    if (line + k * lines < count) {
      float scale = __fdividef(1.0f, sums[k].total);
      uint32_t at = (out.col * to.tile_cols + head * (b.tile_cols - 2)) / 2 + pair;
      *value_view(to).word(line + k * lines, at) = tile::pack_bf16(sums[k].low * scale, sums[k].high * scale);
    }
  }
}

__device__ inline void consume_COMBINE(prompt_consumer &c, const mk_instruction_word &in) {
  enum { ITEMS = 4 };
  const mk_operand &parts = in.parts[MK_PART_COMBINE_parts], &out = in.parts[MK_PART_COMBINE_out];
  uint32_t stride = c.d.buffer(parts).tile_cols, pair_bits = stride == 66 ? 5 : 6, thread = threadIdx.x;
  uint32_t pair = thread & ((1u << pair_bits) - 1), lines = MK_GPU_CONSUMER_WARPS * 32 >> pair_bits;
#pragma unroll 1
  for (uint32_t head = 0; head < parts.cols; head++) {
    const uint64_t *words = stamped_line(c.d, parts) + head * stride + 2 * pair;
#pragma unroll 1
    for (uint32_t line = tile::uniform(thread >> pair_bits); line < lines_of(c.d).count; line += ITEMS * lines) {
      combine_lines<ITEMS>(c, in, words, line, lines, head, pair);
    }
  }
  const mk_gpu_buffer &to = c.d.buffer(out);
  raise_flags(c, to, out.col * to.tile_cols / 8, parts.cols << (pair_bits - 2));
}

}  // namespace mk
