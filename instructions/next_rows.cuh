// NEXT of several rows per step on the device: every SM merges all SMs' candidates of the lines that choose, and takes
// the rows of the next step from the plan; next.c. Consumers only: warp l has line l. Waits: the candidates of all
// active lines. Publishes the new state to all roles of its SM (STATE_READY), and on the SM with a `ring` operand what
// the lines chose to the host. In the sampling kernel the DRAW right before it has left the lines' choices
// (search_rows.cuh), and it waits for nothing.
#pragma once
#include "instructions/head.cuh"
#include "vm/gpu/rows_consumer.cuh"

namespace mk {

__device__ inline merged_candidates merge_line(const consumer &c, const mk_operand &candidates, uint32_t line) {
  const uint64_t *words = tile::global<const uint64_t>(c.d.buffer(candidates).address) + line * 2;
  uint32_t rows = c.d.params.rows;
  // This SM's own candidates come first, those of both storers: when sixteen warps looked at all SMs' candidates again
  // and again, they kept the storers of the HEAD, which share the way to memory with them, for 20 us.
  uint32_t own = (line + c.lane * (MK_MAX_ROWS / STORERS)) % MK_MAX_ROWS;
  tile::stamped_pair last;
  uint32_t sm = blockIdx.x;
  if constexpr (MK_GPU_RANKS) {
    sm += c.d.params.peers->rank * (candidates.rows / c.d.params.peers->ranks);
  }
  wait_pair(c.d, tile::global<const uint64_t>(c.d.buffer(candidates).address) + (sm * rows + own) * 2,
            c.lane < STORERS && sm < candidates.rows && (rows_of(c.d).active >> own & 1) != 0, candidates.buffer, last);
  return merge_candidates(c.d, candidates.buffer, words, rows * 2, candidates.rows);
}

__device__ inline void consume_NEXT(consumer &c, const mk_instruction_word &in) {
  const volatile rows_state &state = rows_of(c.d);
  volatile rows_words *shared = rows_shared();
  uint32_t rows = c.d.params.rows, parity = c.d.epoch % 2;
  uint32_t stop = 0;
  if constexpr (!MK_GPU_SAMPLES) {
    uint32_t result = MK_CANDIDATE_NONE, line = c.warp;
    if ((state.active >> line & 1) != 0) {
      const merged_candidates best = merge_line(c, in.parts[MK_PART_NEXT_candidates], line);
      if ((state.active & ((1u << line) - 1)) == 0) {
        tile::fence_acquire();  // of one line: what all SMs did in this step is there for those who meet below
      }
      stop = best.stop;
      result = (state.chooses >> line & 1) != 0 ? best.index | (best.failed ? MK_RESULT_NAN : 0u) : MK_CANDIDATE_NONE;
    }
    if (c.lane == 0) {
      shared->results[line] = result;
      c.d.words()->index[parity][c.warp] = stop;
    }
  }
  // The flag is looked at after the candidates: what was computed from a wait that was given up never reaches the host.
  bool host = c.warp == 0 && whole_buffer(in, MK_WHOLE_NEXT_ring).cols != 0;
  uint32_t abort = host ? tile::load_acquire(c.d.params.abort) : 0;
  consumers_meet(c);
  if (c.warp == 0) {
    uint32_t of_lane = c.lane < MK_MAX_ROWS ? shared->results[c.lane] : MK_CANDIDATE_NONE;
    stop = tile::or_lanes(c.d.words()->index[parity][tile::place_in_group<MK_GPU_CONSUMER_WARPS>(c.lane)]);
    bool chose = c.lane < MK_MAX_ROWS && tile::has_lane(state.chooses, c.lane);
    if (chose) {
      shared->choices[state.rows[c.lane].slot] = of_lane & ~MK_RESULT_NAN;
    }
    __syncwarp();
    mk_step_row row = {};
    if (c.d.epoch + 1 < c.d.params.epochs) {  // after the last step lies what an earlier launch left there
      row = planned_row(c.d, c.lane, c.d.params.plan + (c.d.epoch + 1) * rows * MK_ROW_WORDS);
    }
    if ((row.flags & MK_ROW_ACTIVE) != 0 && row.token == MK_TOKEN_CHOSEN) {
      row.token = shared->choices[row.slot];
      row.token = index_fits(c.d, MK_GPU_FAULT_TOKEN, row.token, c.d.params.tokens) ? row.token : 0;
    }
    put_rows(c.lane, row, stop, shared->state[(c.d.epoch + 1) % 2]);
    __syncwarp();
    if (c.lane == 0) {
      tile::arrive(c.d.barrier(STATE_READY));
    }
    if (host && abort == 0 && c.lane < rows) {
      tile::store_stamped_system(c.d.params.token_ring + c.d.epoch * rows + c.lane, of_lane, c.d.generation());
    }
  }
  wait_phase(c.d, STATE_READY, c.d.epoch % 2, MK_ACTIVITY_STEP_STATE, 0);
}

}  // namespace mk
