// HEAD of the kernel for wide steps, on the device: logits of the line that chooses, the last one, and this SM's
// candidate; head.c. A warp multiplies a row tile at a time by the line's h, chain by chain. Weights come by pages, as
// those of products do. Waits: h and its squares. The first SM's candidate carries the host's wish to stop.
#pragma once
#include "instructions/candidate.cuh"
#include "instructions/linear_wide.cuh"

namespace mk {

// h of a line, as words of two elements. What lies after the last one is zero.
struct line_words {
  const uint32_t *words;
  uint32_t count;

  __device__ uint32_t at(uint32_t i) const { return i < count ? words[i] : 0; }
};

// One chain of the warp's row tile; the line is column 0.
__device__ inline void multiply_line(const mk_gpu_buffer &b, const uint8_t *weights, const line_words &line,
                                     uint32_t chain, uint32_t left, tile::sum_tile &sums) {
  uint32_t lane = tile::lane(), first = chain * CHAIN_STEPS * 8 + lane;
  tile::vector_tile x[CHAIN_STEPS];
#pragma unroll
  for (uint32_t i = 0; i < CHAIN_STEPS; i++) {
    x[i] = {{lane < 4 ? line.at(first + i * 8) : 0, lane < 4 ? line.at(first + i * 8 + 4) : 0}};
  }
  tile::sum_tile of_chain;
  tile::zero(of_chain);
  with_form<false>(b, [&](const auto &form) {
    form.template each<false>(
        b, lane_strip(weights, lane), left, [] {},
        [&](uint32_t i, const tile::weight_tile &step) { tile::multiply_add(of_chain, step, x[i]); });
  });
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    sums.value[i] = __fadd_rn(sums.value[i], of_chain.value[i]);
  }
}

// Whether the line that chooses is one of the instruction's.
__device__ inline bool computes_head(const wide_consumer &c, const mk_instruction_word &in) {
  return lines_of(c.d).chooses != 0 && (lines_of(c.d).count - 1) / LINES == in.parts[MK_PART_HEAD_x].row;
}

// Logits of this warp's row tiles; the best of them, of each lane.
__device__ inline void compute_head(wide_consumer &c, const mk_instruction_word &in, float &best, uint32_t &index) {
  const mk_operand &weight = in.parts[MK_PART_HEAD_weight], &x = in.parts[MK_PART_HEAD_x];
  const mk_gpu_buffer &b = c.d.buffer(weight);
  uint32_t chooser = (lines_of(c.d).count - 1) % LINES, vocab = param(in, MK_PARAM_HEAD_vocab), lane = tile::lane();
  uint32_t chains = (weight.cols + CHAIN_STEPS - 1) / CHAIN_STEPS;
  float *logits = tile::global<float>(c.d.buffer(in.parts[MK_PART_HEAD_logits]).address) +
                  static_cast<uint64_t>(lines_of(c.d).count - 1) * vocab;
  // All warps read it again and again, from their SM's own cache.
  line_words line = {
      tile::view<uint32_t>(plain_lines<uint16_t>(c.d, x) + static_cast<uint64_t>(chooser) * c.d.buffer(x).cols),
      c.d.buffer(x).cols / 2};
  put_scales(c, in, in.parts[MK_PART_HEAD_squares]);
  consumers_meet();
  float scale = with_factor(in, wide_shared()->scales[chooser]);
  stage_cursor stage = next_stage(c);
#pragma unroll 1
  for (uint32_t first = 0; first < weight.rows; first += MK_WIDE_GPU_UNIT_TILES) {
    uint32_t tile = first + c.d.warp;
    tile::sum_tile y;
    tile::zero(y);
#pragma unroll 1
    for (uint32_t chain = 0; chain < chains; chain += 2, stage.next()) {
#pragma unroll 1
      for (uint32_t page = 0; page < MK_GPU_STAGE_PAGES; page++) {
        const uint8_t *weights = wait_page(c, stage, page);
        uint32_t at = chain + page / GROUPS;
        if (page % GROUPS == c.group() && tile < weight.rows && at < chains) {
          multiply_line(b, weights + c.d.warp % 4 * b.strip_bytes, line, at, weight.cols - at * CHAIN_STEPS, y);
        }
        tile::fence_shared_for_copies();
        release_page(c, stage, page, 1);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {  // of the lanes that have column 0
      uint32_t row = (weight.row + tile) * 16 + tile::lane_row(lane) + i * 8;
      float value = __fmul_rn(y.value[2 * i], scale);
      if (tile::lane_of_quad(lane) == 0 && tile < weight.rows && row < vocab) {
        logits[row] = value;
        take_better(best, index, value, row);
      }
    }
  }
  put_next_stage(c, stage);
}

// Publishes the candidates of all active lines, after all that this SM has done: that of the line that chooses, and
// empty ones.
__device__ inline void consume_HEAD(wide_consumer &c, const mk_instruction_word &in) {
  uint32_t line_tile = in.parts[MK_PART_HEAD_x].row, lines = active_lines(c.d, line_tile);
  bool computes = computes_head(c, in);
  float best = -INFINITY;
  uint32_t index = MK_CANDIDATE_NONE;
  consumers_wait(c, in);
  if (computes && in.parts[MK_PART_HEAD_weight].rows != 0) {
    compute_head(c, in, best, index);
  }
  best_of_lanes(best, index);
  if (tile::lane() == 0) {
    wide_shared()->best[c.d.warp] = best;
    wide_shared()->index[c.d.warp] = index;
  }
  consumers_meet();
  if (c.d.warp == 0 && publishes(c.d)) {
    uint32_t lane = tile::lane(), stop = blockIdx.x == 0 ? tile::load_system(c.d.params.stop) : 0;
    best = lane < MK_GPU_CONSUMER_WARPS ? wide_shared()->best[lane] : -INFINITY;
    index = lane < MK_GPU_CONSUMER_WARPS ? wide_shared()->index[lane] : MK_CANDIDATE_NONE;
    best_of_lanes(best, index);
    const mk_operand &candidate = in.parts[MK_PART_HEAD_candidate];
    const mk_gpu_buffer &b = c.d.buffer(candidate);
    uint64_t *words =
        tile::global<uint64_t>(b.address) + static_cast<uint64_t>(candidate.row) * b.tile_rows * b.row_words;
    for (uint32_t line = lane; line < lines; line += 32) {
      bool chooses = computes && line_tile * LINES + line + 1 == lines_of(c.d).count;
      to_readers(places_of(c.d, candidate), words + line * 2, [=](uint64_t *to) {
        tile::store_stamped_pair(to, __float_as_uint(chooses ? best : -INFINITY),
                                 (chooses ? index : MK_CANDIDATE_NONE) | (stop != 0 ? MK_CANDIDATE_STOP : 0u),
                                 c.d.generation());
      });
    }
  }
  consumers_signal(c, in);
}

}  // namespace mk
