// NEXT of the kernel for wide steps, on the device: every SM takes the lines of the next step from the plan, and where
// the last line chose, its token is the best of all SMs' candidates; next.c. By the first warp. Waits: the candidates
// of the last line, which every SM publishes after all that it does in the step. Publishes the new state to all roles
// of its SM (STATE_READY), and on the SM with a `ring` operand the choice to the host.
#pragma once
#include "instructions/candidate.cuh"
#include "vm/gpu/wide.cuh"

namespace mk {

// Of line `line` of the step; SMs have a row of tiles for each line tile.
__device__ inline merged_candidates merge_line(const wide_consumer &c, const mk_operand &candidates, uint32_t line) {
  const uint64_t *words = tile::global<const uint64_t>(c.d.buffer(candidates).address) + line * 2;
  return merge_candidates(c.d, candidates.buffer, words, c.d.params.rows * 2,
                          candidates.rows * LINES / c.d.params.rows);
}

__device__ inline void consume_NEXT(wide_consumer &c, const mk_instruction_word &in) {
  const volatile wide_state &state = lines_of(c.d);
  consumers_wait(c, in);
  if (c.d.warp == 0) {
    uint32_t chooser = state.count - 1, words = c.d.params.rows * MK_ROW_WORDS;
    const merged_candidates best = merge_line(c, in.parts[MK_PART_NEXT_candidates], chooser);
    uint32_t result = state.chooses != 0 ? best.index | (best.failed ? MK_RESULT_NAN : 0u) : MK_CANDIDATE_NONE;
    // The flag is read after the candidates: so what was computed from a wait that was given up never reaches the host.
    bool host = whole_buffer(in, MK_WHOLE_NEXT_ring).cols != 0;
    uint32_t abort = host ? tile::load_acquire(c.d.params.abort) : 0;
    if (state.chooses != 0 && tile::lane() == 0) {
      wide_shared()->choices.last = best.index;
    }
    __syncwarp();
    put_next_step(c, in, words, best.stop);
    for (uint32_t line = tile::lane(); host && abort == 0 && line < c.d.params.rows; line += 32) {
      tile::store_stamped_system(c.d.params.token_ring + static_cast<uint64_t>(c.d.epoch) * c.d.params.rows + line,
                                 line == chooser ? result : MK_CANDIDATE_NONE, c.d.generation());
    }
  }
  wait_phase(c.d, STATE_READY, c.d.epoch % 2, MK_ACTIVITY_STEP_STATE, 0);
}

}  // namespace mk
