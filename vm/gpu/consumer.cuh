// The consumers: 16 warps that multiply pages by activations, attend, and decide the next token.
//
// In a linear instruction four groups of four warps take the pages in turn, each group always the same slots of the ring: so a warp sees
// every filling of its slots, and a phase that it has not seen is never taken for another. Warp i of a group works on steps
// 8 i to 8 i + 7 of its pages. Where a row tile has a multiple of four pages, each warp meets the same pages in all row tiles and stages
// exactly the activation values that it needs, without a barrier between warps; else they share what they have staged.
// Column 0 of the mma holds the activation rounded to bf16, column 1 what rounding left over (x times gain has 16 significant bits; two
// bf16 hold it exactly). A row tile's 16 sums per warp go to a result slot; the storer adds them up in warp order.
#pragma once
#include "instructions/tile/copy.cuh"
#include "instructions/tile/fragment.cuh"
#include "vm/gpu/wait.cuh"

namespace mk {

struct consumer {
  device d;
  uint32_t warp, lane;
  instruction_cursor instructions;  // the one at hand
  ring_cursor<MK_GPU_RING_PAGES> pages;
  ring_cursor<MK_GPU_RESULT_SLOTS> results;
  step_state state;
};

enum {
  STEPS_PER_PAGE = MK_GPU_PAGE_BYTES / 512,
  GROUPS = 4,  // of consumer warps: each takes every fourth page of a row tile
  GROUP_WARPS = MK_GPU_CONSUMER_WARPS / GROUPS,
  WARP_STEPS = STEPS_PER_PAGE / GROUP_WARPS,  // of a page
  SLICE_BYTES = 64,                           // of two steps: 4 lanes x 2 steps x 2 words
  PAGE_SLICES_BYTES = SLICE_BYTES * STEPS_PER_PAGE / 2,
  PAGE_RELEASES =
      MK_GPU_CONSUMER_WARPS / GROUP_WARPS,  // a page is empty after 16 arrivals: so many by each warp of a group
};

__device__ inline uint32_t group_of(const consumer &c) { return c.warp / GROUP_WARPS; }
__device__ inline uint32_t rank_of(const consumer &c) { return c.warp % GROUP_WARPS; }

// All consumer warps meet. Every warp comes to every meeting of an instruction, also when a wait has been given up (wait.cuh).
__device__ inline void consumers_meet(consumer &c) {
  record(c.d, MK_ACTIVITY_MEETING, 0);
  tile::meet<MK_GPU_CONSUMER_WARPS * 32>();
  record(c.d, MK_ACTIVITY_WORK, 0);
}

// Warp 0 waits for the instruction's release counters, the others for warp 0.
__device__ inline void consumers_wait(consumer &c, const mk_instruction &in) {
  if (!has_flag(in, SLOT_WAITS_RELEASE)) {
    return;
  }
  if (c.warp == 0) {
    wait_counters(c.d, in);
  }
  consumers_meet(c);
}

// Signals for what the consumers wrote themselves.
__device__ inline void consumers_signal(consumer &c, const mk_instruction &in) {
  if (!has_flag(in, SLOT_SIGNALS_RELEASE)) {
    return;
  }
  consumers_meet(c);
  if (c.warp == 0 && c.lane == 0 && publishes(c.d)) {
    signal_counters(c.d, in);
  }
}

__device__ inline uint32_t page_count(uint32_t steps) { return (steps + STEPS_PER_PAGE - 1) / STEPS_PER_PAGE; }

// This warp's words for page p, a slice of 64 bytes for every two of its steps: word [t][step][b] of column 0; column 1 lies `low_at`
// bytes further.
__device__ inline uint32_t *slice_words(const consumer &c, uint32_t page) {
  return reinterpret_cast<uint32_t *>(c.d.activation() + page * PAGE_SLICES_BYTES +
                                      rank_of(c) * (WARP_STEPS / 2 * SLICE_BYTES));
}

// Four neighbouring activation values (element 4 i of this warp's part of a page) as two words of two bf16.
__device__ inline void put_quad(uint32_t *words, uint32_t i, uint32_t first_pair, uint32_t second_pair) {
  uint32_t *slice = words + i / 8 * (SLICE_BYTES / 4);
  uint32_t pair = 2 * (i % 8), step = pair / 8, t = pair % 4, b = pair / 4 % 2;
  slice[t * 4 + step * 2 + b] = first_pair;
  slice[(t + 1) * 4 + step * 2 + b] = second_pair;
}

struct activation {
  uint32_t pages;   // per row tile
  uint32_t low_at;  // bytes from column 0 to column 1; 0: there is no column 1
  float squares;    // this warp's share of the sum of x^2
  bool unused;      // MK_GPU_PART_WORK is left out
};

// What a lane stages: unit u is its four neighbouring values of the warp's page number u.
enum {
  MOST_PAGES = MK_GPU_ACTIVATION_BYTES / PAGE_SLICES_BYTES,
  NORMED_UNITS = (MOST_PAGES / 2 + GROUPS - 1) / GROUPS,
  BATCH_UNITS = 4,  // fetched together
};
static_assert(MK_GPU_RING_PAGES % GROUPS == 0, "a group has its own slots of the ring");
static_assert(WARP_STEPS * 16 == 4 * 32, "a warp stages a page with one unit per lane");
static_assert(NORMED_UNITS <= BATCH_UNITS, "a normed activation is fetched at once, with its gains");

// Of the row tile whose pages come next: the first one that is this warp's.
__device__ inline uint32_t first_page(const consumer &c) { return (group_of(c) - c.pages.slot()) % GROUPS; }

struct staged_unit {
  uint32_t page;
  uint32_t element;  // of x, from the operand's start
  bool active;       // false: beyond the last step
};

__device__ inline staged_unit unit_of(const consumer &c, uint32_t u, uint32_t steps) {
  uint32_t page = first_page(c) + u * GROUPS;
  uint32_t element = page * STEPS_PER_PAGE * 16 + rank_of(c) * WARP_STEPS * 16 + 4 * c.lane;
  return {page, element, element < steps * 16};
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
    put_quad(slice, c.lane, first, second);
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
  put_quad(slice, c.lane, high0, high1);
  put_quad(slice + out.low_at / 4, c.lane,
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
      uint32_t column = first + at.element;
      const uint32_t *words = reinterpret_cast<const uint32_t *>(x.address) +
                              (static_cast<uint64_t>(row / 16) * x.grid_cols + column / 16) * 128 +
                              mk_step_offset(row, column) / 2;
      to[u] = make_uint2(words[0], words[4]);
    }
  }
}

// The same of a stamped vector, the first `count` of them: all loads of a lane are under way together, stale words are fetched again.
template <uint32_t count>
__device__ inline void fetch_stamped(const consumer &c, const mk_operand &operand, const mk_gpu_buffer &x,
                                     uint32_t first, uint32_t first_unit, uint32_t steps, uint2 (&to)[BATCH_UNITS]) {
  const uint64_t *from =
      reinterpret_cast<const uint64_t *>(x.address) + static_cast<uint64_t>(operand.row) * x.row_words + first / 2;
  tile::stamped_pair pairs[count];
  auto at = [&](uint32_t u) { return from + unit_of(c, first_unit + u, steps).element / 2; };
  auto has = [&](uint32_t u) { return unit_of(c, first_unit + u, steps).active; };
  wait_stamped_pairs<count>(c.d, operand.buffer, at, has, pairs);
#pragma unroll
  for (uint32_t u = 0; u < count; u++) {
    to[u] = make_uint2(tile::stamp_data(pairs[u].low), tile::stamp_data(pairs[u].high));
  }
}

// Stages x [16 * steps] of operand `slot`: stamped bf16, or the embedding row of the step's token. With gains each value is
// multiplied and its square summed.
__device__ inline void stage_activation(consumer &c, const mk_instruction &in, uint32_t slot, bool normed,
                                        const staged_gains &gains, uint32_t steps, activation &out) {
  const mk_operand &operand = in.operands[slot];
  const mk_gpu_buffer &x = c.d.buffer(operand);
  uint32_t first = operand.col * x.tile_cols;
  out.pages = page_count(steps);
  // Whole rounds of groups: so a place in the area belongs to the same warp in whatever instruction comes next, and nobody stages over
  // what a slower warp still reads.
  out.low_at = normed ? (out.pages + GROUPS - 1) / GROUPS * (GROUPS * PAGE_SLICES_BYTES) : 0;
  out.squares = 0.0f;
  out.unused = (c.d.params.left_out & MK_GPU_PART_WORK) != 0;
  if (out.pages <= GROUPS && (operand.flags & MK_OPERAND_TOKEN_ROW) == 0) {  // the short way: one unit a lane
    uint2 words[BATCH_UNITS];
    fetch_stamped<1>(c, operand, x, first, 0, steps, words);
    staged_unit at = unit_of(c, 0, steps);
    if (at.page < out.pages) {
      stage_unit(c, at, words[0].x, words[0].y, normed, gains.words[0], out);
    }
  } else {
#pragma unroll 1
    for (uint32_t first_unit = 0; first_page(c) + first_unit * GROUPS < out.pages; first_unit += BATCH_UNITS) {
      uint2 words[BATCH_UNITS];
      if ((operand.flags & MK_OPERAND_TOKEN_ROW) != 0) {
        fetch_token_row(c, x, first, first_unit, steps, words);
      } else {
        fetch_stamped<BATCH_UNITS>(c, operand, x, first, first_unit, steps, words);
      }
#pragma unroll
      for (uint32_t u = 0; u < BATCH_UNITS; u++) {
        staged_unit at = unit_of(c, first_unit + u, steps);
        if (at.page < out.pages) {
          stage_unit(c, at, words[u].x, words[u].y, normed, gains.words[u < NORMED_UNITS ? u : 0], out);
        }
      }
    }
  }
  if (normed) {
    out.squares = tile::sum_lanes(out.squares);
  }
  __syncwarp();
}

// Hands 16 sums of this warp (row g in lane 4 g: low, row g + 8: high) to the storer.
__device__ inline void put_result(consumer &c, float low, float high, float squares) {
  wait_phase(c.d, RESULT_EMPTY + c.results.slot(), c.results.phase() ^ 1, MK_ACTIVITY_RESULT_EMPTY, c.results.slot());
  float *slot = c.d.result(c.results.slot());
  if (c.lane % 4 == 0) {
    slot[c.warp * 16 + c.lane / 4] = low;
    slot[c.warp * 16 + c.lane / 4 + 8] = high;
  }
  if (c.lane == 0) {
    slot[256 + c.warp] = squares;
  }
  __syncwarp();
  if (c.lane == 0) {
    tile::arrive(c.d.barrier(RESULT_FULL + c.results.slot()));
  }
  c.results.next();
}

// This warp has read what it needs of a page. The loader fences for everybody before it copies into the page again.
__device__ inline void release_page(const consumer &c, uint32_t slot, uint32_t count) {
  __syncwarp();
  if (c.lane == 0) {
    tile::arrive(c.d.barrier(PAGE_EMPTY + slot), count);
  }
}

// sums += this warp's steps of the page at `slot` times its slices of x. The page is released before it is multiplied: the time that it is
// held is what keeps the ring from filling. `steps` are left in the row tile, from this page on.
__device__ inline void multiply_page(consumer &c, uint32_t slot, const activation &x, uint32_t page, uint32_t steps,
                                     tile::sum_tile (&sums)[2]) {
  tile::weight_tile weights[WARP_STEPS];
  const uint8_t *from = c.d.page(slot) + rank_of(c) * (WARP_STEPS * 512);
#pragma unroll
  for (uint32_t i = 0; i < WARP_STEPS; i++) {
    tile::load(weights[i], from + i * 512);
  }
  release_page(c, slot, PAGE_RELEASES);
  if (x.unused) {
    return;
  }
  uint32_t t = c.lane % 4, column = c.lane / 4;
  const uint32_t *slices = slice_words(c, page) + (column == 1 ? x.low_at / 4 : 0);
  bool has_x = column == 0 || (column == 1 && x.low_at != 0), ragged = steps < STEPS_PER_PAGE;
#pragma unroll
  for (uint32_t i = 0; i < WARP_STEPS; i += 2) {
    uint4 b = make_uint4(0, 0, 0, 0);
    if (has_x) {
      b = reinterpret_cast<const uint4 *>(slices + i / 2 * (SLICE_BYTES / 4))[t];
    }
    if (ragged && rank_of(c) * WARP_STEPS + i + 2 > steps) {  // what lies beyond the last step is of an older page
      if (rank_of(c) * WARP_STEPS + i >= steps) {
        tile::zero(weights[i]);
      }
      tile::zero(weights[i + 1]);
    }
    tile::multiply_add(sums[0], weights[i], tile::vector_tile{{b.x, b.y}});
    tile::multiply_add(sums[1], weights[i + 1], tile::vector_tile{{b.z, b.w}});
  }
}

// The sums of every row tile of the weight operand, over its steps; of an operand without rows one empty sum, which tells the storer
// that everything before it on this SM is done (docs/VERIFIER.md).
__device__ inline void multiply_pages(consumer &c, const mk_operand &weight, const activation &x) {
  uint32_t rows = weight.rows == 0 ? 1 : weight.rows, pages = weight.rows == 0 ? 0 : x.pages;
  bool shared = pages % GROUPS != 0;
  if (shared) {
    consumers_meet(c);
  }
  for (uint32_t row = 0; row < rows; row++) {
    tile::sum_tile sums[2];  // two, so that the products of neighbouring steps do not wait for each other
    tile::zero(sums[0]);
    tile::zero(sums[1]);
    ring_cursor<MK_GPU_RING_PAGES> at = c.pages;
    uint32_t page = first_page(c);
    at.advance(page);
    for (; page < pages; page += GROUPS) {
      wait_phase(c.d, PAGE_FULL + at.slot(), at.phase(), MK_ACTIVITY_PAGE_FULL, at.slot());
      multiply_page(c, at.slot(), x, page, weight.cols - page * STEPS_PER_PAGE, sums);
      at.advance(GROUPS);
    }
    for (uint32_t left = pages; left != 0;) {
      uint32_t part = min(left, static_cast<uint32_t>(MK_GPU_RING_PAGES));
      c.pages.advance(part);
      left -= part;
    }
    float low = (sums[0].value[0] + sums[1].value[0]) + (sums[0].value[1] + sums[1].value[1]);
    float high = (sums[0].value[2] + sums[1].value[2]) + (sums[0].value[3] + sums[1].value[3]);
    put_result(c, low, high, x.squares);
  }
  if (shared) {
    consumers_meet(c);  // before anybody stages something else
  }
}

// A linear instruction as the consumers see it, all but the epilogue: where its x, its weight and, if x is normed, its gain are.
struct linear_slots {
  uint32_t x, weight, gain;
  bool normed;
};

// One body for all of them, so that it stays in the instruction cache from stage to stage.
__device__ __forceinline__ void consume_linear(consumer &c, const mk_instruction &in, const linear_slots &slots) {
  const mk_operand &from = in.operands[slots.x], &weight = in.operands[slots.weight];
  uint32_t steps = from.cols * c.d.buffer(from).tile_cols / 16;
  staged_gains gains;
  if (slots.normed) {
    load_gains(c, in.operands[slots.gain], steps, gains);
  }
  activation x;
  stage_activation(c, in, slots.x, slots.normed, gains, steps, x);
  multiply_pages(c, weight, x);
}

}  // namespace mk
