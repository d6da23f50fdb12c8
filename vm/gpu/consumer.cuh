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

// Warp 0 waits for the instruction's release counters, the others for warp 0.
__device__ inline bool consumers_wait(consumer &c, const mk_instruction &in) {
  if (!waits_for_release(in)) {
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
    release |= (device::slot_of(in).signal_totals[s] & MK_GPU_COUNTER_RELEASE) != 0;
  }
  if (release && !consumers_meet(c)) {
    return false;
  }
  __syncwarp();
  if (c.warp == 0 && c.lane == 0 && publishes(c.d)) {
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

// What a lane stages: units of four neighbouring values, lane l the units l, l + 32, ... of its warp's slices.
enum {
  NORMED_UNITS = (MK_GPU_ACTIVATION_BYTES / PAGE_SLICES_BYTES / 2 * 8 + 31) / 32,
  BATCH_UNITS = NORMED_UNITS,  // fetched together: what the registers hold
};

struct staged_unit {
  uint32_t page, i;  // unit i of this warp's slice of that page
  uint32_t element;  // of x, from the operand's start
  bool active;       // false: beyond the last step
};

__device__ inline staged_unit unit_of(const consumer &c, uint32_t u, uint32_t steps) {
  uint32_t unit = u * 32 + c.lane, page = unit / 8, i = unit % 8;
  uint32_t element = page * STEPS_PER_PAGE * 16 + c.warp * 32 + 4 * i;
  return {page, i, element, element < steps * 16};
}

// The gains of this lane's values, fetched while x is waited for; zero beyond the vector's end.
struct staged_gains {
  uint2 words[NORMED_UNITS];
};

__device__ inline void load_gains(const consumer &c, const mk_operand &gain, uint32_t steps, staged_gains &to) {
  const uint32_t *from = reinterpret_cast<const uint32_t *>(c.d.buffer(gain).address);
  uint32_t count = c.d.buffer(gain).cols;
#pragma unroll
  for (uint32_t u = 0; u < NORMED_UNITS; u++) {
    staged_unit at = unit_of(c, u, steps);
    to.words[u] = make_uint2(0, 0);
    if (at.active && at.element + 4 <= count) {
      to.words[u] = __ldg(reinterpret_cast<const uint2 *>(from + at.element / 2));
    } else if (at.active) {  // the vector ends within these four
      const uint16_t *tail = reinterpret_cast<const uint16_t *>(from) + at.element;
      uint32_t left = at.element < count ? count - at.element : 0;
      to.words[u].x = (left > 0 ? tail[0] : 0u) | (left > 1 ? static_cast<uint32_t>(tail[1]) << 16 : 0u);
      to.words[u].y = left > 2 ? tail[2] : 0u;
    }
  }
}

// Writes one unit's words to this warp's slice, multiplied by the gain where there is one.
__device__ inline void stage_unit(const consumer &c, const staged_unit &at, uint32_t first, uint32_t second,
                                  bool normed, uint2 gain, activation &out) {
  uint32_t *slice = slice_words(c, at.page);
  if (!normed) {
    put_quad(slice, at.i, first, second);
    return;
  }
  float x[4] = {tile::low_bf16(first), tile::high_bf16(first), tile::low_bf16(second), tile::high_bf16(second)};
  float g[4] = {tile::low_bf16(gain.x), tile::high_bf16(gain.x), tile::low_bf16(gain.y), tile::high_bf16(gain.y)};
  float product[4];
#pragma unroll
  for (uint32_t j = 0; j < 4; j++) {
    out.squares += x[j] * x[j];
    product[j] = x[j] * g[j];
  }
  uint32_t high0 = tile::pack_bf16(product[0], product[1]), high1 = tile::pack_bf16(product[2], product[3]);
  put_quad(slice, at.i, high0, high1);
  put_quad(slice + out.low_at / 4, at.i,
           tile::pack_bf16(product[0] - tile::low_bf16(high0), product[1] - tile::high_bf16(high0)),
           tile::pack_bf16(product[2] - tile::low_bf16(high1), product[3] - tile::high_bf16(high1)));
}

// The units [first_unit, first_unit + BATCH_UNITS) of the embedding row of the step's token.
__device__ inline void fetch_token_row(const consumer &c, const mk_gpu_buffer &x, uint32_t first, uint32_t first_unit,
                                       uint32_t steps, uint2 (&to)[BATCH_UNITS]) {
  uint32_t row = c.state.token;
#pragma unroll
  for (uint32_t u = 0; u < BATCH_UNITS; u++) {
    const staged_unit at = unit_of(c, first_unit + u, steps);
    to[u] = make_uint2(0, 0);
    if (at.active) {
      uint32_t step = (first + at.element) / 16, t = at.element % 8 / 2, b = at.element % 16 / 8;
      const uint32_t *words = reinterpret_cast<const uint32_t *>(x.address) +
                              (static_cast<uint64_t>(row / 16) * x.grid_cols + step) * 128 + (row % 8 * 4 + t) * 4 +
                              row / 8 % 2 + 2 * b;
      to[u] = make_uint2(words[0], words[4]);
    }
  }
}

// The same of a stamped vector: all loads of a lane are under way together, stale words are fetched again.
__device__ inline bool fetch_stamped(const consumer &c, const mk_operand &operand, const mk_gpu_buffer &x,
                                     uint32_t first, uint32_t first_unit, uint32_t steps, uint2 (&to)[BATCH_UNITS]) {
  const uint64_t *from =
      reinterpret_cast<const uint64_t *>(x.address) + static_cast<uint64_t>(operand.row) * x.row_words + first / 2;
  uint32_t want = c.d.generation();
  tile::stamped_pair pairs[BATCH_UNITS];
#pragma unroll
  for (uint32_t u = 0; u < BATCH_UNITS; u++) {
    staged_unit at = unit_of(c, first_unit + u, steps);
    pairs[u].low = pairs[u].high = 0;
    if (at.active) {
      pairs[u] = tile::load_stamped_pair(from + at.element / 2);
    }
  }
#pragma unroll
  for (uint32_t u = 0; u < BATCH_UNITS; u++) {
    staged_unit at = unit_of(c, first_unit + u, steps);
    bool late =
        at.active && (tile::stamp_generation(pairs[u].low) != want || tile::stamp_generation(pairs[u].high) != want);
    if (__any_sync(0xffffffffu, late) &&
        !wait_stamped_pair(c.d, from + at.element / 2, at.active, operand.buffer, pairs[u])) {
      return false;
    }
    to[u] = make_uint2(tile::stamp_data(pairs[u].low), tile::stamp_data(pairs[u].high));
  }
  return true;
}

// Stages x [16 * steps] of operand `slot`: stamped bf16, or the embedding row of the step's token. With gains each value is
// multiplied and its square summed.
template <bool normed>
__device__ inline bool stage_activation(consumer &c, const mk_instruction &in, uint32_t slot, const staged_gains &gains,
                                        uint32_t steps, activation &out) {
  const mk_operand &operand = in.operands[slot];
  const mk_gpu_buffer &x = c.d.buffer(operand);
  uint32_t first = operand.col * x.tile_cols;
  out.pages = page_count(steps);
  out.low_at = normed ? out.pages * PAGE_SLICES_BYTES : 0;
  out.squares = 0.0f;
#pragma unroll 1
  for (uint32_t first_unit = 0; first_unit * 32 < out.pages * 8; first_unit += BATCH_UNITS) {
    uint2 words[BATCH_UNITS];
    if ((operand.flags & MK_OPERAND_TOKEN_ROW) != 0) {
      fetch_token_row(c, x, first, first_unit, steps, words);
    } else if (!fetch_stamped(c, operand, x, first, first_unit, steps, words)) {
      return false;
    }
#pragma unroll
    for (uint32_t u = 0; u < BATCH_UNITS; u++) {
      staged_unit at = unit_of(c, first_unit + u, steps);
      if (at.page < out.pages) {
        stage_unit(c, at, words[u].x, words[u].y, normed, gains.words[u], out);
      }
    }
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

// What one warp takes from a page: its two steps, and its slice of the activation.
struct page_work {
  tile::weight_tile weights[2];
  uint4 x;  // the B fragments of both steps
};

// Copies this warp's part of the next page into registers; `steps` are left in the row tile, from this page on.
__device__ inline bool take_page(consumer &c, const activation &x, uint32_t page, uint32_t steps, page_work &to) {
  uint32_t t = c.lane % 4, column = c.lane / 4;
  to.x = make_uint4(0, 0, 0, 0);
  if (column == 0 || (column == 1 && x.low_at != 0)) {
    to.x = reinterpret_cast<const uint4 *>(slice_words(c, page) + column * (x.low_at / 4))[t];
  }
  if (!wait_phase(c.d, PAGE_FULL + c.pages.slot, c.pages.phase, MK_GPU_WAIT_PAGE_FULL, c.pages.slot)) {
    return false;
  }
  const uint8_t *from = c.d.page(c.pages.slot) + c.warp * 1024;
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    if (2 * c.warp + i < steps) {
      tile::load(to.weights[i], from + i * 512);
    } else {
      tile::zero(to.weights[i]);  // what lies there is of an older page
    }
  }
  return true;
}

// The sums of every row tile of the weight operand, over its steps. A page is released before it is multiplied: the time that it is
// held is what keeps the ring from filling.
__device__ inline bool multiply_pages(consumer &c, const mk_operand &weight, const activation &x) {
  for (uint32_t row = 0; row < weight.rows; row++) {
    tile::sum_tile sums[2];  // two, so that the two products of a page do not wait for each other
    tile::zero(sums[0]);
    tile::zero(sums[1]);
    for (uint32_t page = 0; page < x.pages; page++) {
      page_work work;
      if (!take_page(c, x, page, weight.cols - page * STEPS_PER_PAGE, work)) {
        return false;
      }
      tile::fence_shared_for_copies();
      __syncwarp();
      if (c.lane == 0) {
        tile::arrive(c.d.barrier(PAGE_EMPTY + c.pages.slot));
      }
      c.pages.next();
      tile::multiply_add(sums[0], work.weights[0], tile::vector_tile{{work.x.x, work.x.y}});
      tile::multiply_add(sums[1], work.weights[1], tile::vector_tile{{work.x.z, work.x.w}});
    }
    float low = (sums[0].value[0] + sums[1].value[0]) + (sums[0].value[1] + sums[1].value[1]);
    float high = (sums[0].value[2] + sums[1].value[2]) + (sums[0].value[3] + sums[1].value[3]);
    if (!put_result(c, low, high, x.squares)) {
      return false;
    }
  }
  return true;
}

// Linear instructions as the consumers see them, all but the epilogue: of x as it is, and of norm(x).
__device__ inline bool consume_linear(consumer &c, const mk_instruction &in, uint32_t x_slot, uint32_t weight_slot) {
  uint32_t steps = in.operands[x_slot].cols * c.d.buffer(in.operands[x_slot]).tile_cols / 16;
  activation x;
  return consumers_wait(c, in) && stage_activation<false>(c, in, x_slot, staged_gains{}, steps, x) &&
         multiply_pages(c, in.operands[weight_slot], x);
}

__device__ inline bool consume_normed(consumer &c, const mk_instruction &in, uint32_t x_slot, uint32_t weight_slot,
                                      uint32_t gain_slot) {
  uint32_t steps = in.operands[x_slot].cols * c.d.buffer(in.operands[x_slot]).tile_cols / 16;
  staged_gains gains;
  load_gains(c, in.operands[gain_slot], steps, gains);
  activation x;
  return consumers_wait(c, in) && stage_activation<true>(c, in, x_slot, gains, steps, x) &&
         multiply_pages(c, in.operands[weight_slot], x);
}

}  // namespace mk
