// The consumers: 16 warps that multiply pages by activations, attend, and decide the next token.
//
// In a linear instruction warp w works on steps 2 w and 2 w + 1 of every page and stages exactly the activation values that these steps
// need, so that staging takes no barrier between warps. Column 0 of the mma holds the activation rounded to bf16, column 1 what
// rounding left over (x times gain has 16 significant bits; two bf16 hold it exactly). A row tile's 16 sums per warp go to a result slot;
// the storer adds them up in warp order.
#pragma once
#include "instructions/tile/copy.cuh"
#include "instructions/tile/fragment.cuh"
#include "vm/gpu/device.cuh"

namespace mk {

struct consumer {
  device d;
  uint32_t warp, lane;
  ring_cursor<MK_GPU_RING_PAGES> pages;
  ring_cursor<MK_GPU_RESULT_SLOTS> results;
  uint32_t sync_phase = 0;
  step_state state;
};

enum {
  STEPS_PER_PAGE = MK_GPU_PAGE_BYTES / 512,
  SLICE_BYTES = 64,  // of one warp in one page: 2 steps x 4 lanes x 2 words
  PAGE_SLICES_BYTES = SLICE_BYTES * MK_GPU_CONSUMER_WARPS,
};

// All consumer warps meet. (An mbarrier and not bar.sync, which could not be left when something goes wrong.)
__device__ inline bool consumers_meet(consumer &c) {
  __syncwarp();
  if (c.lane == 0) {
    tile::arrive(c.d.barrier(CONSUMER_SYNC));
  }
  bool ok = wait_phase(c.d, CONSUMER_SYNC, c.sync_phase, MK_GPU_WAIT_RESULT, 0);
  c.sync_phase ^= 1;
  return ok;
}

// Warp 0 waits for the instruction's counters, the others for warp 0.
__device__ inline bool consumers_wait(consumer &c, const mk_instruction &in) {
  if (in.wait_count == 0) {
    return true;
  }
  bool ok = true;
  if (c.warp == 0) {
    if (c.lane == 0) {
      ok = wait_counters(c.d, in);
    }
    ok = __all_sync(0xffffffffu, ok);
  }
  return ok && consumers_meet(c);
}

// Signals for what the consumers wrote themselves. A relaxed counter is a hint, so warp 0 need not wait for the others.
__device__ inline bool consumers_signal(consumer &c, const mk_instruction &in) {
  bool release = false;
  for (uint32_t s = 0; s < in.signal_count; s++) {
    release |= (c.d.params.counter_totals[in.signals[s].counter] & MK_GPU_COUNTER_RELEASE) != 0;
  }
  if (release && !consumers_meet(c)) {
    return false;
  }
  __syncwarp();
  if (c.warp == 0 && c.lane == 0 && in.uid != c.d.params.skip_signal_uid) {
    signal_counters(c.d, in);
  }
  return true;
}

__device__ inline uint32_t page_count(uint32_t steps) { return (steps + STEPS_PER_PAGE - 1) / STEPS_PER_PAGE; }

// Where this warp's words for page p lie: word [t][step][b] of column 0; column 1 lies `low_at` bytes further.
__device__ inline uint32_t *slice_words(const consumer &c, uint32_t page) {
  return reinterpret_cast<uint32_t *>(c.d.activation() + page * PAGE_SLICES_BYTES + c.warp * SLICE_BYTES);
}

// Four neighbouring activation values (element 4 i of this warp's slice of a page) as two words of two bf16.
__device__ inline void put_quad(uint32_t *slice, uint32_t i, uint32_t first_pair, uint32_t second_pair) {
  uint32_t pair = 2 * i, step = pair / 8, t = pair % 4, b = pair / 4 % 2;
  slice[t * 4 + step * 2 + b] = first_pair;
  slice[(t + 1) * 4 + step * 2 + b] = second_pair;
}

struct activation {
  uint32_t pages;   // per row tile
  uint32_t low_at;  // bytes from column 0 to column 1; 0: there is no column 1
  float squares;    // this warp's share of the sum of x^2
};

// Stages x [16 * steps] of operand `slot`: stamped bf16, or the embedding row of the step's token. With `gain` each value is
// multiplied by it and its square summed.
__device__ inline bool stage_activation(consumer &c, const mk_instruction &in, uint32_t slot, const mk_operand *gain,
                                        uint32_t steps, activation &out) {
  const mk_operand &operand = in.operands[slot];
  const mk_gpu_buffer &x = c.d.buffer(operand);
  bool row_of_token = (operand.flags & MK_OPERAND_TOKEN_ROW) != 0;
  uint32_t first = operand.col * x.tile_cols;
  out.pages = page_count(steps);
  out.low_at = gain != nullptr ? out.pages * PAGE_SLICES_BYTES : 0;
  out.squares = 0.0f;
  const uint32_t *gains = nullptr;
  uint32_t gain_count = 0;
  if (gain != nullptr) {
    gains = reinterpret_cast<const uint32_t *>(c.d.buffer(*gain).address);
    gain_count = c.d.buffer(*gain).cols;
  }
  for (uint32_t base = 0; base < out.pages * 8; base += 32) {
    uint32_t unit = base + c.lane, page = unit / 8, i = unit % 8;
    uint32_t element = page * STEPS_PER_PAGE * 16 + c.warp * 32 + 4 * i;
    bool active = page < out.pages && element < steps * 16;
    uint32_t words[2] = {0, 0};
    if (row_of_token) {
      if (active) {
        uint32_t row = c.state.token, step = (first + element) / 16, t = element % 8 / 2, b = element % 16 / 8;
        const uint32_t *tile = reinterpret_cast<const uint32_t *>(x.address) +
                               (static_cast<uint64_t>(row / 16) * x.grid_cols + step) * 128;
        const uint32_t *at = tile + (row % 8 * 4 + t) * 4 + row / 8 % 2 + 2 * b;
        words[0] = at[0];
        words[1] = at[4];
      }
    } else {
      const uint64_t *from = reinterpret_cast<const uint64_t *>(x.address) +
                             static_cast<uint64_t>(operand.row) * x.row_words + (first + element) / 2;
      tile::stamped_pair pair;
      if (!wait_stamped_pair(c.d, from, active, operand.buffer, pair)) {
        return false;
      }
      words[0] = tile::stamp_data(pair.low);
      words[1] = tile::stamp_data(pair.high);
    }
    if (page >= out.pages) {
      continue;
    }
    uint32_t *slice = slice_words(c, page);
    if (gain == nullptr) {
      put_quad(slice, i, words[0], words[1]);
      continue;
    }
    float product[4];
    for (uint32_t j = 0; j < 4; j++) {
      float value = j % 2 == 0 ? tile::low_bf16(words[j / 2]) : tile::high_bf16(words[j / 2]);
      out.squares += value * value;
      float g = 0.0f;
      if (element + j < gain_count) {
        uint32_t word = __ldg(gains + (element + j) / 2);
        g = j % 2 == 0 ? tile::low_bf16(word) : tile::high_bf16(word);
      }
      product[j] = value * g;
    }
    uint32_t high0 = tile::pack_bf16(product[0], product[1]), high1 = tile::pack_bf16(product[2], product[3]);
    put_quad(slice, i, high0, high1);
    put_quad(slice + out.low_at / 4, i,
             tile::pack_bf16(product[0] - tile::low_bf16(high0), product[1] - tile::high_bf16(high0)),
             tile::pack_bf16(product[2] - tile::low_bf16(high1), product[3] - tile::high_bf16(high1)));
  }
  out.squares = tile::sum_lanes(out.squares);
  __syncwarp();
  return true;
}

// Hands 16 sums of this warp (row g in lane 4 g: low, row g + 8: high) to the storer.
__device__ inline bool put_result(consumer &c, float low, float high, float squares) {
  if (!wait_phase(c.d, RESULT_EMPTY + c.results.slot, c.results.phase ^ 1, MK_GPU_WAIT_RESULT, c.results.slot)) {
    return false;
  }
  float *slot = c.d.result(c.results.slot);
  if (c.lane % 4 == 0) {
    slot[c.warp * 16 + c.lane / 4] = low;
    slot[c.warp * 16 + c.lane / 4 + 8] = high;
  }
  if (c.lane == 0) {
    slot[256 + c.warp] = squares;
  }
  __syncwarp();
  if (c.lane == 0) {
    tile::arrive(c.d.barrier(RESULT_FULL + c.results.slot));
  }
  c.results.next();
  return true;
}

// The sums of every row tile of the weight operand, over its steps.
__device__ inline bool multiply_pages(consumer &c, const mk_operand &weight, const activation &x) {
  uint32_t t = c.lane % 4, column = c.lane / 4;
  for (uint32_t row = 0; row < weight.rows; row++) {
    tile::sum_tile sums;
    tile::zero(sums);
    for (uint32_t page = 0; page < x.pages; page++) {
      uint32_t left = weight.cols - page * STEPS_PER_PAGE;  // steps from here on
      uint4 words = make_uint4(0, 0, 0, 0);
      if (column == 0 || (column == 1 && x.low_at != 0)) {
        words = reinterpret_cast<const uint4 *>(slice_words(c, page) + column * (x.low_at / 4))[t];
      }
      if (!wait_phase(c.d, PAGE_FULL + c.pages.slot, c.pages.phase, MK_GPU_WAIT_PAGE_FULL, c.pages.slot)) {
        return false;
      }
      const uint8_t *steps = c.d.page(c.pages.slot) + c.warp * 1024;
      if (2 * c.warp < left) {
        tile::weight_tile a;
        tile::load(a, steps);
        tile::multiply_add(sums, a, tile::vector_tile{{words.x, words.y}});
      }
      if (2 * c.warp + 1 < left) {
        tile::weight_tile a;
        tile::load(a, steps + 512);
        tile::multiply_add(sums, a, tile::vector_tile{{words.z, words.w}});
      }
      tile::fence_shared_for_copies();
      __syncwarp();
      if (c.lane == 0) {
        tile::arrive(c.d.barrier(PAGE_EMPTY + c.pages.slot));
      }
      c.pages.next();
    }
    if (!put_result(c, sums.value[0] + sums.value[1], sums.value[2] + sums.value[3], x.squares)) {
      return false;
    }
  }
  return true;
}

// A linear instruction as the consumers see it: all but the epilogue.
__device__ inline bool consume_linear(consumer &c, const mk_instruction &in, uint32_t x_slot, uint32_t weight_slot,
                                      const mk_operand *gain) {
  const mk_operand &operand = in.operands[x_slot];
  uint32_t steps = operand.cols * c.d.buffer(operand).tile_cols / 16;
  activation x;
  return consumers_wait(c, in) && stage_activation(c, in, x_slot, gain, steps, x) &&
         multiply_pages(c, in.operands[weight_slot], x);
}

}  // namespace mk
