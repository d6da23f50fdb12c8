// NEXT of the kernel for wide steps of several sequences, on the device: every SM merges all SMs' candidates of all
// active lines, remembers what slots have chosen, and takes the lines of the next step from the plan; next.c. 32 lines
// at a time, one of each lane; the warps share the SMs. Waits: the candidates, which every SM publishes after all that
// it does in the step. Publishes the new state to all roles of its SM (STATE_READY), and on the SM with a `ring`
// operand the choices to the host. In the kernel that samples, the DRAW right before it has left the lines' choices
// (search_slots.cuh), and it waits for nothing.
#pragma once
#include "instructions/head_slots.cuh"

namespace mk {

struct merged_lines {  // by a warp, of 32 lines
  float best[32];
  uint32_t index[32];
};
__device__ inline volatile merged_lines *merged_by(uint32_t warp) {
  static_assert(MK_GPU_CONSUMER_WARPS * sizeof(merged_lines) <= MK_GPU_ACTIVATION_BYTES, "there is room");
  return tile::view<volatile merged_lines>(shared_memory + MK_GPU_ACTIVATION_AT) + tile::anew(warp);
}

// The lane's line, of every eighth SM's candidates. SMs have a row of tiles for each line tile.
__device__ inline void merge_line(const wide_consumer &c, const mk_operand &candidates, uint32_t line, bool active,
                                  float &best, uint32_t &index, uint32_t &stop) {
  enum { BATCH = 6 };  // SMs whose candidates are fetched together
  const mk_gpu_buffer &b = c.d.buffer(candidates);
  const uint64_t *words = tile::global<const uint64_t>(b.address) + line * 2;
  uint32_t rows = c.d.params.rows, sms = tile::uniform(candidates.rows * b.tile_rows / rows);
#pragma unroll 1
  for (uint32_t base = c.d.warp; base < sms; base += BATCH * MK_GPU_CONSUMER_WARPS) {
    tile::stamped_pair pairs[BATCH];
    auto sm = [&](uint32_t i) { return base + i * MK_GPU_CONSUMER_WARPS; };
    auto at = [&](uint32_t i) { return words + static_cast<uint64_t>(sm(i)) * rows * 2; };
    auto has = [&](uint32_t i) { return active && sm(i) < sms; };
    wait_stamped_pairs<BATCH>(c.d, candidates.buffer, at, has, pairs);
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
      uint32_t word = tile::stamp_data(pairs[i].high);
      if (has(i)) {
        stop |= word & MK_CANDIDATE_STOP;
        take_better(best, index, __uint_as_float(tile::stamp_data(pairs[i].low)), word & MK_CANDIDATE_NONE);
      }
    }
  }
}

// By the first warp, of the lane's line, which chooses: what DRAW has left, where the kernel samples, or what all warps
// have found; in the form that the host gets.
template <typename role>
__device__ inline uint32_t choice_of(const role &c, uint32_t line) {
  if constexpr (MK_HAS(drawn_choice(c, line))) {
    return drawn_choice(c, line);
  } else {
    float best = -INFINITY;
    uint32_t index = MK_CANDIDATE_NONE;
#pragma unroll
    for (uint32_t warp = 0; warp < MK_GPU_CONSUMER_WARPS; warp++) {
      take_better(best, index, merged_by(warp)->best[tile::lane()], merged_by(warp)->index[tile::lane()]);
    }
    return index | (isnan(best) ? MK_RESULT_NAN : 0u);
  }
}

// By the first warp, of the lane's line. The abort flag is read after the candidates, so that what was computed from a
// wait that was given up never reaches the host.
__device__ inline void tell_choice(const wide_consumer &c, const mk_instruction_word &in, uint32_t line) {
  bool chooses = line < lines_of(c.d).count && (lines_of(c.d).places[line] & LINE_CHOOSES) != 0;
  uint32_t result = chooses ? choice_of(c, line) : MK_CANDIDATE_NONE;
  // What goes on is the slot's last line that chose: lines that do not choose are each for itself.
  uint32_t slot = min(__ldg(planned_rows(c.d) + line).x, MK_MOST_SHARED_ROWS - 1u);
  uint32_t same = tile::lanes_sharing(chooses ? slot : MK_MOST_SHARED_ROWS + tile::lane());
  if (chooses && same >> tile::lane() == 1) {
    wide_shared()->choices.of_slot[slot] = result & ~MK_RESULT_NAN;
  }
  bool host = whole_buffer(in, MK_WHOLE_NEXT_ring).cols != 0;
  if (host && tile::load_acquire(c.d.params.abort) == 0) {
    tile::store_stamped_system(c.d.params.token_ring + static_cast<uint64_t>(c.d.epoch) * c.d.params.rows + line,
                               result, c.d.generation());
  }
}

__device__ inline void consume_NEXT(wide_consumer &c, const mk_instruction_word &in) {
  uint32_t count = tile::uniform(lines_of(c.d).count), rows = c.d.params.rows, words = rows * MK_ROW_WORDS, stop = 0;
  consumers_wait(c, in);
#pragma unroll 1
  for (uint32_t base = 0; base < rows; base += 32) {
    uint32_t line = base + tile::lane();
    if constexpr (!MK_GPU_SAMPLES) {
      float best = -INFINITY;
      uint32_t index = MK_CANDIDATE_NONE;
      if (base < count) {
        merge_line(c, in.parts[MK_PART_NEXT_candidates], line, line < count, best, index, stop);
      }
      merged_by(c.d.warp)->best[tile::lane()] = best;
      merged_by(c.d.warp)->index[tile::lane()] = index;
    }
    consumers_meet();
    if (tile::thread() < 32) {
      tell_choice(c, in, line);
    }
    consumers_meet();
  }
  if constexpr (!MK_GPU_SAMPLES) {
    stop = tile::or_lanes(stop);
    if (tile::lane() == 0) {
      wide_shared()->index[c.d.warp] = stop;
    }
  }
  consumers_meet();
  if (tile::thread() < 32) {
    stop = tile::or_lanes(wide_shared()->index[tile::place_in_group<MK_GPU_CONSUMER_WARPS>(tile::lane())]);
    put_next_step(c, in, words, stop);
  }
  wait_phase(c.d, STATE_READY, c.d.epoch % 2, MK_ACTIVITY_STEP_STATE, 0);
}

}  // namespace mk
