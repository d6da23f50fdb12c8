// NEXT of the kernel for wide steps, on the device: every SM takes the lines of the next step from the plan, and where
// the last line chose, its token is the best of all SMs' candidates; next.c. By the first warp. Waits: the candidates
// of the last line, which every SM publishes after all that it does in the step. Publishes the new state to all roles
// of its SM (STATE_READY), and on the SM with a `ring` operand the choice to the host.
#pragma once
#include "instructions/candidate.cuh"
#include "vm/gpu/wide.cuh"

namespace mk {

// Of line `line` of the step; SMs have a row of tiles for each line tile.
__device__ inline void merge_candidates(const wide_consumer &c, const mk_operand &candidates, uint32_t line,
                                        float &best, uint32_t &index, uint32_t &stop) {
  enum { BATCH = 4 };  // of 32 SMs each
  const uint64_t *words = tile::global<const uint64_t>(c.d.buffer(candidates).address) + line * 2;
  uint32_t sms = candidates.rows * LINES / c.d.params.rows;
#pragma unroll 1
  for (uint32_t base = 0; base < sms; base += BATCH * 32) {
    auto at = [&](uint32_t i) { return words + (base + i * 32 + tile::lane()) * c.d.params.rows * 2; };
    auto has = [&](uint32_t i) { return base + i * 32 + tile::lane() < sms; };
    take_candidates<BATCH>(c.d, candidates.buffer, at, has, best, index, stop);
  }
  best_of_lanes(best, index);
  stop = tile::or_lanes(stop);
}

__device__ inline void consume_NEXT(wide_consumer &c, const mk_instruction_word &in) {
  const volatile wide_state &state = lines_of(c.d);
  consumers_wait(c, in);
  if (c.d.warp == 0) {
    float best = -INFINITY;
    uint32_t index = MK_CANDIDATE_NONE, stop = 0, chooser = state.count - 1, words = c.d.params.rows * MK_ROW_WORDS;
    merge_candidates(c, in.parts[MK_PART_NEXT_candidates], chooser, best, index, stop);
    uint32_t result = state.chooses != 0 ? index | (isnan(best) ? MK_RESULT_NAN : 0u) : MK_CANDIDATE_NONE;
    // The flag is read after the candidates: so what was computed from a wait that was given up never reaches the host.
    bool host = whole_buffer(in, MK_WHOLE_NEXT_ring).cols != 0;
    uint32_t abort = host ? tile::load_acquire(c.d.params.abort) : 0;
    if (state.chooses != 0 && tile::lane() == 0) {
      wide_shared()->choices.last = index;
    }
    __syncwarp();
    put_next_step(c, in, words, stop);
    for (uint32_t line = tile::lane(); host && abort == 0 && line < c.d.params.rows; line += 32) {
      tile::store_stamped_system(c.d.params.token_ring + static_cast<uint64_t>(c.d.epoch) * c.d.params.rows + line,
                                 line == chooser ? result : MK_CANDIDATE_NONE, c.d.generation());
    }
  }
  wait_phase(c.d, STATE_READY, c.d.epoch % 2, MK_ACTIVITY_STEP_STATE, 0);
}

}  // namespace mk
