// HEAD of the kernel for wide steps of several sequences, on the device: logits of the lines of a tile that choose, and
// this SM's candidates for them; head.c. A product after the other, as the other linear opcodes have it
// (linear_wide.cuh), eight row tiles each, of all lines of the tile; where none chooses nothing is multiplied. Each
// warp keeps the best of its row tiles for every line. Waits: h and its squares. The first SM's candidates carry the
// host's wish to stop.
#pragma once
#include "instructions/candidate.cuh"
#include "instructions/linear_wide.cuh"

namespace mk {

struct line_best {
  float value;
  uint32_t index;
};
__device__ inline volatile line_best *best_of_warp(uint32_t warp) {
  static_assert(MK_GPU_CONSUMER_WARPS * LINES * sizeof(line_best) <= MK_GPU_ACTIVATION_BYTES, "there is room");
  return tile::view<volatile line_best>(shared_memory + MK_GPU_ACTIVATION_AT) + tile::anew(warp) * LINES;
}

// Of the instruction's line tile those that are active; and whether it has something to multiply them by, and one of
// them chooses. Looked up anew after products, since registers are short.
__device__ inline uint32_t head_lines(const wide_consumer &c) {
  return tile::uniform(active_lines(c.d, instruction_at_hand(c).parts[MK_PART_HEAD_x].row));
}
__device__ inline bool computes_head(const wide_consumer &c) {
  const mk_instruction_word &in = instruction_at_hand(c);
  return tile::uniform(in.parts[MK_PART_HEAD_weight].rows != 0 &&
                       tile_chooses(lines_of(c.d), in.parts[MK_PART_HEAD_x].row));
}

// The best of all rows of the row tile, of eight lines that the eight lanes with different rows have: each takes one of
// the lines, which becomes the first, and says its number.
__device__ inline uint32_t take_best_of_rows(float (&best)[tile::BATCH_LINES], uint32_t (&index)[tile::BATCH_LINES]) {
  uint32_t number = 0;
#pragma unroll
  for (uint32_t count = tile::BATCH_LINES / 2; count != 0; count /= 2) {
    // tile: which of two lanes this is, of those whose numbers differ in a bit that goes with the loop's turn.
    bool high = tile::group_of_two<1>(tile::lane() / (4 * count)) != 0;
    number += high ? count : 0;
#pragma unroll
    for (uint32_t i = 0; i < count; i++) {
      float own = high ? best[i + count] : best[i], other = high ? best[i] : best[i + count];
      uint32_t at = high ? index[i + count] : index[i], other_at = high ? index[i] : index[i + count];
      take_better(own, at, tile::exchange(other, 4 * count), tile::exchange(other_at, 4 * count));
      best[i] = own;
      index[i] = at;
    }
  }
  return number;
}

// What eight row tiles make: scaled, to the logits, and the best of the warp's row tile. first: of the instruction's.
__device__ inline void finish_head_unit(const wide_consumer &c, uint32_t first, tile::group_sums &y) {
  const mk_instruction_word &in = instruction_at_hand(c);
  uint32_t lines = head_lines(c);
  const mk_operand &weight = in.parts[MK_PART_HEAD_weight];
  uint32_t line_tile = in.parts[MK_PART_HEAD_x].row, vocab = param(in, MK_PARAM_HEAD_vocab);
  uint32_t row_tile = first + c.d.warp, row = (weight.row + row_tile) * 16 + tile::row_in_tile();
  bool upper_is = row_tile < weight.rows && row < vocab, lower_is = row_tile < weight.rows && row + 8 < vocab;
  float *logits = tile::global<float>(c.d.buffer(in.parts[MK_PART_HEAD_logits]).address) +
                  static_cast<uint64_t>(line_tile * LINES) * vocab + row;
  const volatile uint32_t *places = lines_of(c.d).places + line_tile * LINES;
  float best[tile::BATCH_LINES];  // of the lane's rows, for each of its lines
  uint32_t index[tile::BATCH_LINES], number = 0;
  tile::each_line(
      y, {0, lines},
      [&](uint32_t line, float &upper, float &lower) {
        float scale = with_factor(in, wide_shared()->scales[line]);
        bool chooses = line < lines && (places[line] & LINE_CHOOSES) != 0;
        best[number] = -INFINITY;
        index[number] = MK_CANDIDATE_NONE;
        upper = __fmul_rn(upper, scale);
        lower = __fmul_rn(lower, scale);
        if (chooses && upper_is) {
          logits[static_cast<uint64_t>(line) * vocab] = upper;
          take_better(best[number], index[number], upper, row);
        }
        if (chooses && lower_is) {
          logits[static_cast<uint64_t>(line) * vocab + 8] = lower;
          take_better(best[number], index[number], lower, row + 8);
        }
        number = (number + 1) % tile::BATCH_LINES;
      },
      [&](uint32_t line) {
        if constexpr (!MAKES_CANDIDATES) {
          return;
        }
        line += tile::line_of_batch(take_best_of_rows(best, index));
        volatile line_best &kept = best_of_warp(c.d.warp)[line];
        take_better(best[0], index[0], kept.value, kept.index);
        kept.value = best[0];
        kept.index = index[0];
      });
}

// All row tiles of the instruction.
__device__ inline void compute_head(wide_consumer &c) {
  {
    const mk_instruction_word &in = instruction_at_hand(c);
    put_scales(c, in, in.parts[MK_PART_HEAD_squares]);
  }
#pragma unroll 1
  for (uint32_t line = tile::lane(); MAKES_CANDIDATES && line < LINES; line += 32) {
    best_of_warp(c.d.warp)[line].value = -INFINITY;
    best_of_warp(c.d.warp)[line].index = MK_CANDIDATE_NONE;
  }
  consumers_meet();
#pragma unroll 1
  for (uint32_t first = 0; tile::uniform(first < instruction_at_hand(c).parts[MK_PART_HEAD_weight].rows);
       first += MK_WIDE_GPU_UNIT_TILES) {
    tile::group_sums y;
    tile::zero(y);
    if (head_lines(c) > LINES / 2) {
      multiply<LINES, false>(
          c, [] {}, y);
    } else {
      multiply_few<FEW_LINES, false>(
          c, [] {}, y);
    }
    finish_head_unit(c, first, y);
  }
}

// A candidate for each active line: empty where the line does not choose. A thread has one.
__device__ inline void put_candidates(const wide_consumer &c) {
  const mk_operand &candidate = instruction_at_hand(c).parts[MK_PART_HEAD_candidate];
  const mk_gpu_buffer &b = c.d.buffer(candidate);
  uint64_t *words =
      tile::global<uint64_t>(b.address) + static_cast<uint64_t>(candidate.row) * b.tile_rows * b.row_words;
  uint32_t line = tile::thread(), index = MK_CANDIDATE_NONE;
  float best = -INFINITY;
  uint32_t lines = head_lines(c), warps = computes_head(c) ? static_cast<uint32_t>(MK_GPU_CONSUMER_WARPS) : 0;
  if (line >= lines) {
    return;
  }
  uint32_t stop = blockIdx.x == 0 ? tile::load_system(c.d.params.stop) : 0;
#pragma unroll 1
  for (uint32_t warp = 0; warp < warps; warp++) {
    take_better(best, index, best_of_warp(warp)[line].value, best_of_warp(warp)[line].index);
  }
  to_readers(places_of(c.d, candidate), words + line * 2, [=](uint64_t *to) {
    tile::store_stamped_pair(to, __float_as_uint(best), index | (stop != 0 ? MK_CANDIDATE_STOP : 0u), c.d.generation());
  });
}

// Candidates are published after all that this SM has done.
__device__ inline void consume_HEAD(wide_consumer &c, const mk_instruction_word &in) {
  consumers_wait(c, in);
  if (computes_head(c)) {
    compute_head(c);
  }
  consumers_meet();
  if (MAKES_CANDIDATES && publishes(c.d)) {
    put_candidates(c);
  }
  __syncwarp();
  consumers_signal(c, instruction_at_hand(c));
}

}  // namespace mk
