// NEXT on the device: every SM merges all candidates, or takes what its DRAW has chosen, and takes the row of the next
// step from the plan; next.c. Consumers only. Waits: the candidates; in the sampling kernel nothing. Publishes the new
// state to the loader and the storer of its SM (STATE_READY), and on the SM with a `ring` operand the choice to the
// host.
#pragma once
#include "instructions/head.cuh"
#include "instructions/sampling.h"

namespace mk {

#define CHOICE_FAILED 0x40000000u  // beside the index of a choice: logits are not numbers

__device__ inline void consume_NEXT(consumer &c, const mk_instruction_word &in) {
  // The row of the next step (slot, position, token, flags), on its way while candidates are waited for. After the last
  // step there is none.
  uint4 row = make_uint4(0, 0, MK_TOKEN_CHOSEN, 0);
  tile::load_relaxed_quad_if(c.d.epoch + 1 < c.d.params.epochs, c.d.params.plan + (c.d.epoch + 1) * MK_ROW_WORDS, row);
  bool chose = (flags_of(c) & MK_ROW_CHOOSES) != 0;
  float best = -INFINITY;
  uint32_t index = MK_CANDIDATE_NONE, stop = 0, abort = 0;
  bool host = false;
  volatile shared_words *shared = c.d.words();
  if constexpr (MK_GPU_SAMPLES) {
    // The DRAW right before this instruction has left each warp the choice that all SMs make.
    uint32_t choice = token_of(c);
    index = choice & MK_SAMPLING_INDEX_MASK;
    stop = choice & MK_CANDIDATE_STOP;
    best = (choice & CHOICE_FAILED) != 0 ? NAN : 0.0f;
  } else {
    const mk_operand &candidates = in.parts[MK_PART_NEXT_candidates];
    const uint64_t *words = tile::global<const uint64_t>(c.d.buffer(candidates).address);
    for (uint32_t base = c.warp * 32; base < candidates.rows; base += MK_GPU_CONSUMER_WARPS * 32) {
      uint32_t i = base + c.lane;
      tile::stamped_pair pair;
      wait_pair(c.d, words + 2 * i, i < candidates.rows, candidates.buffer, pair);
      if (i < candidates.rows) {
        float value = __uint_as_float(tile::stamp_data(pair.low));
        uint32_t word = tile::stamp_data(pair.high);
        stop |= word & MK_CANDIDATE_STOP;
        take_better(best, index, value, word & MK_CANDIDATE_NONE);
      }
    }
    // The flag is looked at after the candidates: what was computed from a wait that was given up never reaches the
    // host.
    host = c.warp == 0 && c.lane == 0 && whole_buffer(in, MK_WHOLE_NEXT_ring).cols != 0;
    abort = host ? tile::load_acquire(c.d.params.abort) : 0;
    best_of_lanes(best, index);
    stop = tile::or_lanes(stop);
    uint32_t parity = c.d.epoch % 2;
    if (c.lane == 0) {
      shared->best[parity][c.warp] = best;
      shared->index[parity][c.warp] = index | stop;
    }
    consumers_meet_with_values(c);
    best = shared->best[parity][tile::place_in_group<16>(c.lane)];
    uint32_t word = shared->index[parity][tile::place_in_group<16>(c.lane)];
    index = word & MK_CANDIDATE_NONE;
    best_of_lanes(best, index);
    stop = tile::or_lanes(word & MK_CANDIDATE_STOP);
  }

  uint32_t before = shared->state[c.d.epoch % 2].choice, latest = chose ? index : before;
  uint32_t token = row.z != MK_TOKEN_CHOSEN ? row.z : latest;
  if (token >= c.d.params.tokens) {  // never looked up
    if (c.warp == 0 && c.lane == 0) {
      index_fits(c.d, MK_GPU_FAULT_TOKEN, token, c.d.params.tokens);
    }
    token = 0;
  }
  set_row(c, token | stop, row.y, row.w);
  if (c.warp == 0 && c.lane == 0) {
    volatile step_state &next = shared->state[(c.d.epoch + 1) % 2];
    next.token = token | stop;
    next.position = row.y;
    next.flags = row.w;
    next.choice = latest;
    tile::arrive(c.d.barrier(STATE_READY));
    if constexpr (MK_GPU_SAMPLES) {  // as in the plain kernel, but after what the other roles wait for
      host = whole_buffer(in, MK_WHOLE_NEXT_ring).cols != 0;
      abort = host ? tile::load_acquire(c.d.params.abort) : 0;
    }
    if (host && abort == 0) {
      uint32_t result = chose ? index | (isnan(best) ? MK_RESULT_NAN : 0u) : MK_CANDIDATE_NONE;
      tile::store_stamped_system(c.d.params.token_ring + c.d.epoch, result, c.d.generation());
    }
  }
}

}  // namespace mk
