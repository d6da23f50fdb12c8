// HEAD on the device. logits = W norm(x), and this SM's candidate for the next token; head.c. The logits are computed
// where the row does not choose, too (the loader streams their weights without knowing), but the candidate is then
// empty. Tiles: weight [16 n, 16 k] bf16 through the page ring, n may be 0; logits fp32; candidate 2 stamped words.
// Waits: x (consumers), the step state (storer). Signals: the counter of the candidates. The first SM's candidate
// carries the host's wish to stop.
#pragma once
#include "instructions/candidate.cuh"
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

// An instruction without rows gets one empty result from the consumers all the same.
__device__ inline void begin_HEAD(const storer &s, const mk_instruction_word &in, row_store &r) {
  r.tiles = max(in.parts[MK_PART_HEAD_weight].rows, static_cast<uint16_t>(1));
  r.plain = tile::global<float>(s.d.buffer(in.parts[MK_PART_HEAD_logits]).address);
  r.best = -INFINITY;
  r.index = MK_CANDIDATE_NONE;
  r.stop = blockIdx.x == 0 ? tile::load_system(s.d.params.stop) : 0;  // from the host: under way meanwhile
}

__device__ inline void take_candidate(float y, uint32_t row, row_store &r) {
  r.plain[row] = y;
  take_better(r.best, r.index, y, row);
}

// Gives the logits.
__device__ inline two_rows finish_HEAD(const storer &s, const mk_instruction_word &in, uint32_t i, two_rows y,
                                       row_store &r) {
  const mk_operand &weight = in.parts[MK_PART_HEAD_weight];
  uint32_t row = (weight.row + i) * 16 + 2 * s.lane, vocab = param(in, MK_PARAM_HEAD_vocab);
  y = normed(y, r);
  if (i < weight.rows && s.lane < 8 && row < vocab) {
    take_candidate(y.even, row, r);
    if (row + 1 < vocab) {
      take_candidate(y.odd, row + 1, r);
    }
  }
  return y;
}

__device__ inline void put_candidate(const storer &s, uint64_t *to, const row_store &r) {
  tile::store_stamped(to, __float_as_uint(r.best), s.d.generation());
  tile::store_stamped(to + 1, r.index | (r.stop != 0 ? MK_CANDIDATE_STOP : 0u), s.d.generation());
}

// Publishes this SM's candidate; `inside`: the row does not choose, and the candidate is empty.
__device__ inline void end_HEAD(const storer &s, const mk_instruction_word &in, bool inside, row_store &r) {
  best_of_lanes(r.best, r.index);
  if (inside) {
    r.best = -INFINITY;
    r.index = MK_CANDIDATE_NONE;
  }
  uint64_t *candidate = stamped_row(s.d, in.parts[MK_PART_HEAD_candidate]);
  if (s.lane == 0 && publishes(s.d)) {
    if constexpr (MK_GPU_RANKS) {
      to_readers(readers_of(in.parts[MK_PART_HEAD_candidate]), candidate,
                 [&](uint64_t *to) { put_candidate(s, to, r); });
    } else {
      put_candidate(s, candidate, r);
    }
  }
}

__device__ inline void end_HEAD(const storer &s, const mk_instruction_word &in, row_store &r) {
  end_HEAD(s, in, (state_of(s).flags & MK_ROW_CHOOSES) == 0, r);
}

}  // namespace mk
