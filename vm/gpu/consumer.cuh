// The consumers: 16 warps that multiply pages by activations, attend, and decide the next token.
//
// In a linear instruction four groups of four warps take the pages in turn. Each group always has the same slots of the
// page ring, and so its warps wait for every filling of these slots: they never take the phase of one filling for that
// of another. Warp i of a group works on K steps 8 i to 8 i + 7 of its pages. Where a row tile has a multiple of four
// pages, a warp meets the same columns of K in all row tiles, and stages exactly the activation values that it needs,
// without a barrier between warps; otherwise the warps share what they have staged. Column 0 of the mma holds the
// activation.
//
// Eight K steps are one chain of the canon (docs/NUMERICS.md). Its 16 sums go to a result slot, page by page, with
// those of the three other pages of the round, and the storer adds chains in the order of K. While x is waited for,
// each warp takes its first page into registers, so that the ring holds four pages more.
//
// In kernels for quantised weights (strips.cuh) pages have more columns than sixteen warps' chains may be dealt to
// evenly: chain i of a row tile is always that of warp i modulo 16, and no warp needs what another one has staged.
#pragma once
#include "instructions/canon.cuh"
#include "instructions/linear_operands.cuh"
#include "instructions/tile/copy.cuh"
#include "instructions/tile/fragment.cuh"
#include "vm/gpu/strips.cuh"
#include "vm/gpu/wait.cuh"

namespace mk {

struct consumer {
  device d;
  uint32_t warp, lane;
  ring_cursor<MK_GPU_RING_PAGES> pages;
  ring_cursor<MK_GPU_RESULT_SLOTS> results;
  uint2 last_input;  // of the normed x at hand: keep_input
};

// Each warp has its own copy of the row of the step and of its place in the instruction ring; in shared memory, since
// registers are short.
__device__ inline uint32_t token_of(const consumer &c) { return c.d.words()->at_step[c.warp].token; }
__device__ inline uint32_t position_of(const consumer &c) { return c.d.words()->at_step[c.warp].position; }
__device__ inline uint32_t flags_of(const consumer &c) { return c.d.words()->at_flags[c.warp]; }
// These two do something in kernels that do not keep the epoch in a register all the time; in this one it is kept.
__device__ inline void put_down_epoch(const consumer &) {}
__device__ inline void look_up_epoch(consumer &) {}
__device__ inline instruction_cursor at_hand(const consumer &c) { return {c.d.words()->at_hand[c.warp]}; }
__device__ inline void set_at_hand(const consumer &c, const instruction_cursor &cursor) {
  c.d.words()->at_hand[c.warp] = cursor.at;
  __syncwarp();
}
// The instruction that the warp works on, looked up anew.
__device__ inline const mk_instruction_word &instruction_at_hand(const consumer &c) {
  return c.d.slot(at_hand(c).slot())->instruction;
}
__device__ inline bool is_first(const consumer &c) { return c.warp == 0 && c.lane == 0; }
__device__ inline bool stops(const consumer &c) { return (token_of(c) & MK_CANDIDATE_STOP) != 0; }

__device__ inline void set_token(consumer &c, uint32_t token) {
  __syncwarp();  // after the last lane's look at the place before
  c.d.words()->at_step[c.warp].token = token;
  __syncwarp();
}

__device__ inline void set_row(consumer &c, uint32_t token, uint32_t position, uint32_t flags) {
  __syncwarp();  // after the last lane's look at the row before
  c.d.words()->at_step[c.warp].token = token;
  c.d.words()->at_step[c.warp].position = position;
  c.d.words()->at_flags[c.warp] = static_cast<uint8_t>(flags);
  __syncwarp();
}

enum {
  STEPS_PER_PAGE = MK_GPU_PAGE_BYTES / 512,
  GROUPS = 4,  // of consumer warps: each takes every fourth page of a row tile
  GROUP_WARPS = MK_GPU_CONSUMER_WARPS / GROUPS,
  WARP_STEPS = STEPS_PER_PAGE / GROUP_WARPS,  // of a page
  SLICE_BYTES = 64,                           // of two steps: 4 lanes x 2 steps x 2 words
  PAGE_SLICES_BYTES = SLICE_BYTES * STEPS_PER_PAGE / 2,
  PAGE_RELEASES = MK_GPU_CONSUMER_WARPS / GROUP_WARPS,  // by each warp: a page is empty after 16 arrivals
};

__device__ inline uint32_t group_of(const consumer &c) { return c.warp / GROUP_WARPS; }
__device__ inline uint32_t rank_of(const consumer &c) { return c.warp % GROUP_WARPS; }

// All consumer warps meet. Every warp comes to every meeting of an instruction, also when a wait has been given up
// (wait.cuh).
__device__ inline void consumers_meet(const consumer &) { tile::meet<MK_GPU_CONSUMER_WARPS * 32>(); }

// The same where each warp has waited for values of its own. The recorder follows the first warp, and sees here how
// late the others are. Other meetings are recorded as work, since there some warp is at work.
__device__ inline void consumers_meet_with_values(consumer &c) {
  uint32_t since = meeting_begins();
  consumers_meet(c);
  record_meeting(c.d, since);
}

// The warps of one rank meet, one of each group: they share what they stage.
__device__ inline void ranks_meet(const consumer &c) { tile::meet_at<GROUPS * 32>(2 + rank_of(c)); }

__device__ inline void ranks_meet_with_values(consumer &c) {
  uint32_t since = meeting_begins();
  ranks_meet(c);
  record_meeting(c.d, since);
}

// Warp 0 waits for the instruction's release counters, the others for warp 0.
__device__ inline void consumers_wait(consumer &c, const mk_instruction_word &in) {
  if (!has_flag(in, SLOT_WAITS_RELEASE)) {
    return;
  }
  if (c.warp == 0) {
    wait_counters(c.d, in);
  }
  consumers_meet(c);
}

// Signals for what the consumers wrote themselves.
__device__ inline void consumers_signal(consumer &c, const mk_instruction_word &in) {
  if (!has_flag(in, SLOT_SIGNALS_RELEASE)) {
    return;
  }
  consumers_meet(c);
  if (c.warp == 0 && c.lane == 0 && publishes(c.d)) {
    signal_counters(c.d, in);
  }
}

__device__ inline uint32_t page_count(uint32_t steps) { return (steps + STEPS_PER_PAGE - 1) / STEPS_PER_PAGE; }

// This warp's words for page p, a slice of 64 bytes for every two of its steps: word [t][step][b].
__device__ inline uint32_t *slice_words(const consumer &c, uint32_t page) {
  return tile::view<uint32_t>(c.d.activation() + page * PAGE_SLICES_BYTES +
                              rank_of(c) * (WARP_STEPS / 2 * SLICE_BYTES));
}

// Four neighbouring activation values (element 4 i of this warp's part of a page) as two words of two bf16.
__device__ inline void put_quad(uint32_t *words, uint32_t i, uint32_t first_pair, uint32_t second_pair) {
  uint32_t *slice = words + i / 8 * (SLICE_BYTES / 4);
  uint32_t pair = 2 * (i % 8), step = pair / 8, t = pair % 4, b = pair / 4 % 2;
  slice[t * 4 + step * 2 + b] = first_pair;
  slice[(t + 1) * 4 + step * 2 + b] = second_pair;
}

// What a lane stages: unit u is its four neighbouring values of the warp's page number u.
enum {
  MOST_PAGES = MK_GPU_ACTIVATION_BYTES / PAGE_SLICES_BYTES,
  BATCH_UNITS = 4,  // fetched together
  NORMED_PAGES = MK_GPU_RANKS || MK_GPU_QUANTISED ? MK_GPU_MOST_NORMED_PAGES : MK_GPU_NORMED_PAGES,
  NORMED_UNITS = (NORMED_PAGES + GROUPS - 1) / GROUPS,  // most of a normed x
  // The raw values of a normed x begin at a whole round of groups: so a place in the area belongs to the same warp in
  // whatever instruction comes next, and nobody stages over what a slower warp still reads. Those of pages for which
  // there is no room stay in the lane's registers, one unit (consumer, last_input).
  RAW_PAGE = NORMED_UNITS * GROUPS,
  RAW_PAGES = MK_GPU_NORMED_PAGES,
  KEEPS_INPUT = NORMED_PAGES > RAW_PAGES,
};
static_assert(RAW_PAGE + RAW_PAGES <= MOST_PAGES, "a normed x has room twice, but for what lanes keep");
static_assert(NORMED_PAGES <= RAW_PAGES + GROUPS, "a lane keeps one unit at most");
static_assert(MK_GPU_PAGE_BYTES / 512 / GROUP_WARPS * 16 == MK_CHAIN_COLS, "a warp's steps of a page are one chain");
static_assert(NORMED_UNITS <= BATCH_UNITS, "a normed activation is fetched at once, with its gains");
static_assert(17 * MK_GPU_CONSUMER_WARPS * 4 <= MK_GPU_RESULT_BYTES, "a result slot has room for sixteen chains");
static_assert(MK_GPU_RING_PAGES % GROUPS == 0, "a group has its own slots of the ring");
static_assert(WARP_STEPS * 16 == 4 * 32, "a warp stages a page with one unit per lane");

// The number of the first page that is this warp's, in the row tile whose pages come next; of quantised weights, of the
// first 512 columns.
__device__ inline uint32_t first_page(const consumer &c) {
  return MK_GPU_QUANTISED ? group_of(c) : (group_of(c) - c.pages.slot()) % GROUPS;
}

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
__device__ inline void load_gains(const consumer &c, const mk_gpu_buffer &gain, bool normed, uint32_t width,
                                  uint32_t steps, uint2 (&to)[NORMED_UNITS]) {
  const uint16_t *from = tile::global<const uint16_t>(gain.address);
  uint32_t cols = normed ? gain.cols : 0;
  if constexpr (MK_GPU_FAMILIES) {
    cols = min(cols, width);  // biases may come next
  }
#pragma unroll
  for (uint32_t u = 0; u < NORMED_UNITS; u++) {
    staged_unit at = unit_of(c, u, steps);
    to[u] = make_uint2(0, 0);
    if (at.element < cols) {
      to[u] = tile::load_constant<uint2>(from + at.element);  // memory goes on after the last gain (arena.c)
      uint32_t left = cols - at.element;
      to[u].x &= left == 1 ? 0xffffu : 0xffffffffu;
      to[u].y &= left >= 4 ? 0xffffffffu : left == 3 ? 0xffffu : 0u;
    }
  }
}

// The raw values of a normed x that this lane has staged of a page: their squares are summed when products are on their
// way.
__device__ inline uint2 &own_input(const consumer &c, uint32_t page) {
  return tile::view<uint2>(c.d.activation() + (RAW_PAGE + page) * PAGE_SLICES_BYTES)[rank_of(c) * 32 + c.lane];
}
__device__ inline void keep_input(consumer &c, uint32_t page, uint2 raw) {
  if (KEEPS_INPUT && page >= RAW_PAGES) {
    c.last_input = raw;
  } else {
    own_input(c, page) = raw;
  }
}
__device__ inline const uint2 &raw_input(const consumer &c, uint32_t page) {
  return KEEPS_INPUT && page >= RAW_PAGES ? c.last_input : own_input(c, page);
}

// Fetches units [first_unit, first_unit + BATCH_UNITS) of the embedding row of the step's token.
__device__ inline void fetch_token_row(const consumer &c, const mk_operand &operand, const mk_gpu_buffer &x,
                                       uint32_t first_unit, uint32_t steps, uint2 (&to)[BATCH_UNITS]) {
  uint32_t row = token_of(c), first = operand.col * x.tile_cols;
#pragma unroll
  for (uint32_t u = 0; u < BATCH_UNITS; u++) {
    const staged_unit at = unit_of(c, first_unit + u, steps);
    to[u] = make_uint2(0, 0);
    if (at.active) {
      uint32_t column = first + at.element;
      const uint32_t *words = tile::global<const uint32_t>(x.address) +
                              (static_cast<uint64_t>(row / 16) * x.grid_cols + column / 16) * 128 +
                              mk_step_offset(row, column) / 2;
      to[u] = make_uint2(words[0], words[4]);
    }
  }
}

// The same for a stamped vector: all loads of a lane are under way together, and stale words are fetched again.
__device__ inline void fetch_stamped(const consumer &c, const mk_operand &operand, const mk_gpu_buffer &x,
                                     uint32_t first_unit, uint32_t steps, uint2 (&to)[BATCH_UNITS]) {
  const uint64_t *from = tile::global<const uint64_t>(x.address) + static_cast<uint64_t>(operand.row) * x.row_words +
                         operand.col * x.tile_cols / 2;
  tile::stamped_pair pairs[BATCH_UNITS];
  auto at = [&](uint32_t u) { return from + unit_of(c, first_unit + u, steps).element / 2; };
  auto has = [&](uint32_t u) { return unit_of(c, first_unit + u, steps).active; };
  wait_stamped_pairs<BATCH_UNITS>(c.d, operand.buffer, at, has, pairs);
#pragma unroll
  for (uint32_t u = 0; u < BATCH_UNITS; u++) {
    to[u] = make_uint2(tile::stamp_data(pairs[u].low), tile::stamp_data(pairs[u].high));
  }
}

// Hands 16 sums of this warp (row g in lane 4 g: low, row g + 8: high) to the storer in result slot `at`, which is
// empty when the phase of this parity is over. own(), squares_at(): the place in the slot of the lane's first sum, and
// of squares; in_column(): whether the lane is one of lanes 4 g.
template <typename placer, typename squares_placer, typename question>
__device__ inline void put_result_at(const consumer &c, uint32_t at, uint32_t parity, float low, float high,
                                     float squares, placer own, squares_placer squares_at, question in_column) {
  wait_phase(c.d, RESULT_EMPTY + at, parity, MK_ACTIVITY_RESULT_EMPTY, at);
  float *slot = c.d.result(at);
  if (in_column()) {
    slot[own()] = low;
    slot[own() + 8] = high;
  }
  if (c.lane == 0) {
    slot[squares_at()] = squares;
  }
  __syncwarp();
  if (c.lane == 0) {
    tile::arrive(c.d.barrier(RESULT_FULL + at));
  }
}

// The same as those of chain `chain` of sixteen, in the next slot.
__device__ inline void put_result(consumer &c, float low, float high, float squares, uint32_t chain) {
  put_result_at(
      c, c.results.slot(), c.results.phase() ^ 1, low, high, squares,
      [&] { return chain * RESULT_CHAIN + tile::lane_row(c.lane); },
      [&] { return RESULT_SQUARES + chain * RESULT_SQUARE; }, [&] { return tile::lane_of_quad(c.lane) == 0; });
  c.results.next();
}

__device__ inline void advance_pages(consumer &c, uint32_t count) {
#pragma unroll 1
  for (; count > MK_GPU_RING_PAGES; count -= MK_GPU_RING_PAGES) {
    c.pages.at ^= 0x80000000u;
  }
  c.pages.advance(count);
}

// Says that this warp has read what it needs of a page. The loader fences for everybody before it copies into the page
// again.
__device__ inline void release_page(const consumer &c, uint32_t slot, uint32_t count) {
  __syncwarp();
  if (c.lane == 0) {
    tile::arrive(c.d.barrier(PAGE_EMPTY + slot), count);
  }
}

// This warp's steps of a page. The page is released as soon as they are in registers: the shorter it is held, the
// fuller the ring.
struct page_weights {
  tile::weight_tile step[WARP_STEPS];
};

__device__ inline void load_weights(const consumer &c, uint32_t slot, page_weights &to) {
  const uint8_t *from = c.d.page(slot) + rank_of(c) * (WARP_STEPS * 512);
#pragma unroll
  for (uint32_t i = 0; i < WARP_STEPS; i++) {
    tile::load(to.step[i], from + i * 512);
  }
  release_page(c, slot, PAGE_RELEASES);
}

// sums += weights times this warp's slices of x. `steps` are left in the row tile, from this page on.
__device__ inline void multiply_page(const consumer &c, page_weights &weights, uint32_t page, uint32_t steps,
                                     tile::sum_tile &sums) {
  const uint32_t *slices = slice_words(c, page);
  bool has_x = c.lane < 4, ragged = steps < STEPS_PER_PAGE;
#pragma unroll
  for (uint32_t i = 0; i < WARP_STEPS; i += 2) {
    uint4 b = make_uint4(0, 0, 0, 0);
    if (has_x) {
      b = tile::view<uint4>(slices + i / 2 * (SLICE_BYTES / 4))[c.lane];
    }
    if (ragged && rank_of(c) * WARP_STEPS + i + 2 > steps) {  // after the last step lies an older page
      if (rank_of(c) * WARP_STEPS + i >= steps) {
        tile::zero(weights.step[i]);
      }
      tile::zero(weights.step[i + 1]);
    }
    tile::multiply_add(sums, weights.step[i], tile::vector_tile{{b.x, b.y}});
    tile::multiply_add(sums, weights.step[i + 1], tile::vector_tile{{b.z, b.w}});
  }
}

// Without this the registers of one instruction would stay taken until the next.
__device__ inline void clear(page_weights &weights) {
#pragma unroll
  for (uint32_t i = 0; i < WARP_STEPS; i++) {
    tile::zero(weights.step[i]);
  }
}

// Loads this warp's first page of an instruction, if it is there already: while x is waited for, these registers
// lengthen the ring by a few pages.
__device__ inline bool load_early(const consumer &c, uint32_t pages, page_weights &to) {
  ring_cursor<MK_GPU_RING_PAGES> at = c.pages;
  uint32_t page = first_page(c);
  at.advance(page);
  if (page >= pages || !tile::all_lanes(tile::test_wait(c.d.barrier(PAGE_FULL + at.slot()), at.phase()))) {
    clear(to);
    return false;
  }
  load_weights(c, at.slot(), to);
  return true;
}

// Stages x [16 * steps]: stamped bf16, or the embedding row of the step's token. If x is normed, each value is
// multiplied by its gain and its square summed. A short x is fetched at once; meanwhile `weights` gets this warp's
// first page, if it is there: then the result is true. (Strips stay in their pages.)
__device__ inline bool stage_activation(consumer &c, const mk_instruction_word &in, bool normed, uint32_t steps,
                                        uint32_t pages, page_weights &weights) {
  const mk_operand &operand = in.parts[LINEAR_X];
  const mk_gpu_buffer &from = c.d.buffer(operand);
  uint32_t x_pages = page_count(steps);
  bool early = false;
  if constexpr (KEEPS_INPUT) {
    c.last_input = make_uint2(0, 0);
  }
  if constexpr (!MK_GPU_QUANTISED) {
    early = load_early(c, pages, weights);
  }
#pragma unroll 1
  for (uint32_t first_unit = 0; first_page(c) + first_unit * GROUPS < x_pages; first_unit += BATCH_UNITS) {
    uint2 gains[NORMED_UNITS], words[BATCH_UNITS];
    load_gains(c, whole_buffer(in, LINEAR_GAIN), normed, param(in, 1), steps, gains);
    if ((operand.flags & MK_OPERAND_TOKEN_ROW) != 0) {
      fetch_token_row(c, operand, from, first_unit, steps, words);
    } else {
      fetch_stamped(c, operand, from, first_unit, steps, words);
    }
#pragma unroll
    for (uint32_t u = 0; u < BATCH_UNITS; u++) {
      staged_unit at = unit_of(c, first_unit + u, steps);
      if (at.page >= x_pages) {
        continue;
      }
      if (normed && u < NORMED_UNITS) {
        keep_input(c, at.page, words[u]);
        words[u].x = tile::multiply_bf16(words[u].x, gains[u < NORMED_UNITS ? u : 0].x);
        words[u].y = tile::multiply_bf16(words[u].y, gains[u < NORMED_UNITS ? u : 0].y);
      }
      put_quad(slice_words(c, at.page), c.lane, words[u].x, words[u].y);
    }
  }
  __syncwarp();
  return early;
}

// Computes the sums of every row tile of the weight operand, over its steps. For an operand without rows there is one
// empty sum, which tells the storer that everything before it on this SM is done (docs/VERIFIER.md). `early`: the
// weights of this warp's first page are there.
__device__ inline void multiply_pages(consumer &c, const mk_operand &weight, uint32_t pages, bool normed,
                                      page_weights &weights, bool early) {
  bool shared = pages % GROUPS != 0;
  if (shared) {
    ranks_meet_with_values(c);
  }
  uint32_t end = max((pages + GROUPS - 1) / GROUPS, 1u) * GROUPS;  // of the last round
  for (uint32_t row = 0; row == 0 || row < weight.rows; row++) {
    ring_cursor<MK_GPU_RING_PAGES> at = c.pages;
    uint32_t page = first_page(c);
    at.advance(page);
#pragma unroll 1
    for (; page < end; page += GROUPS) {
      tile::sum_tile sums;
      tile::zero(sums);
      float squares = 0.0f;
      if (page < pages) {
        if (!early) {
          wait_phase(c.d, PAGE_FULL + at.slot(), at.phase(), MK_ACTIVITY_PAGE_FULL, at.slot());
          load_weights(c, at.slot(), weights);
        }
        if ((c.d.params.left_out & MK_GPU_PART_WORK) == 0) {
          multiply_page(c, weights, page, weight.cols - page * STEPS_PER_PAGE, sums);
        }
        if (normed) {  // while the products are on their way
          squares = chain_squares(raw_input(c, page));
        }
      }
      early = false;
      put_result(c, sums.value[0], sums.value[2], squares, page % GROUPS * GROUP_WARPS + rank_of(c));
      at.advance(GROUPS);
    }
    normed = false;  // the storer has the squares with the first row tile
    advance_pages(c, pages);
  }
  if (shared) {
    ranks_meet(c);  // before anybody stages another x
  }
}

// The way of a warp through the strips of a weight: how far it is from one of its strips to the next, in whole pages
// and bytes of a page, `page_bytes` of which are one page more: to the next round of sixteen, and from the last round
// of a row tile to the first one of the next. It is linear, also where the last round has no strip for the warp. All
// this is worked out once an instruction, so that a strip's place takes additions alone.
struct strip_way {
  struct step {
    uint32_t pages, bytes;
  };
  uint32_t rows, rounds, absent;  // absent: 1 where the last round of a row tile has no strip for the warp
  uint32_t page_bytes, pages;     // pages: of the operand
  step first, round, row;         // first: from the operand's start

  __device__ strip_way(const consumer &c, const mk_gpu_buffer &b, const mk_operand &weight) {
    const strip_pages of = strip_pages_of(b, weight);
    const uint32_t last = (of.strips - 1) / MK_GPU_CONSUMER_WARPS * MK_GPU_CONSUMER_WARPS;  // before the last round
    const bool none = weight.rows == 0;
    auto step_of = [&](uint32_t count) {
      const uint32_t whole = of.page_of(count);
      return step{whole, (count - whole * of.most) * b.strip_bytes};
    };
    rows = tile::uniform(none ? 1u : weight.rows);
    rounds = tile::uniform(none ? 1 : last / MK_GPU_CONSUMER_WARPS + 1);
    absent = tile::uniform(none || last + c.warp >= of.strips ? 1u : 0u);
    page_bytes = of.most * b.strip_bytes;
    pages = of.pages;
    first = step_of(c.warp);
    round = step_of(MK_GPU_CONSUMER_WARPS);
    row = step_of(of.strips - last);
    if (of.row_pages != 0) {  // to the same place of the page that begins the next row tile
      const step from = step_of(last + c.warp);
      row = {of.row_pages + first.pages - from.pages, first.bytes - from.bytes};
      if (first.bytes < from.bytes) {
        row.pages--;
        row.bytes += page_bytes;
      }
    }
  }
};

// Where in the rings a warp is that leaves pages out. Slots and phases are apart, which takes fewer instructions: each
// of them is one for every strip.
struct strip_cursor {
  uint32_t slot, phase, offset = 0;  // offset: of the strip in its page
  uint32_t result, result_parity;    // of the phase after which the slot is empty

  __device__ explicit strip_cursor(const consumer &c)
      : slot(c.pages.slot()), phase(c.pages.phase()), result(c.results.slot()), result_parity(c.results.phase() ^ 1) {}
  // To a page that comes at most once round later.
  __device__ void advance(const strip_way::step &by, uint32_t page_bytes) {
    offset += by.bytes;
    slot += by.pages;
    tile::wrap(offset, page_bytes, slot);
    tile::wrap_phase(slot, MK_GPU_RING_PAGES, phase);
  }
  __device__ void next_result() {
    static_assert(MK_GPU_ROWS || MK_GPU_RESULT_SLOTS == 2, "the phase changes after the second slot");
    result_parity ^= result;
    result ^= 1;
  }
  __device__ void set_results(consumer &c) const { c.results.at = result | (result_parity ^ 1) << 31; }
};

// What a lane adds to places that all lanes share, kept in registers from strip to strip: the compiler would work it
// out anew for each.
struct lane_places {
  uint32_t line, word;  // lane_strip
  uint32_t x;           // words
  uint32_t sums;        // put_result_at
  uint32_t lane;

  __device__ explicit lane_places(const consumer &c)
      : line(tile::anew(c.lane * 16)),
        word(tile::anew(tile::lane_row(c.lane) * 4)),
        x(tile::anew(static_cast<uint32_t>(slice_words(c, group_of(c)) - slice_words(c, 0)) + c.lane * 4)),
        sums(tile::anew(c.warp * RESULT_CHAIN + tile::lane_row(c.lane))),
        lane(tile::anew(c.lane)) {}
};

// The sums of every row tile of a weight that comes as strips; of one without rows one empty sum, as in multiply_pages.
// A warp has one strip of each round of sixteen chains of each row tile, and waits for the pages of these alone: no
// warp is so far ahead that a slot could lack more than one filling, as the storer takes a result of all of them, of
// which there are two slots. A page is given back by who has a strip of it, and by the loader for the rest of sixteen.
template <typename form>
__device__ inline void multiply_strips(consumer &c, const form &of, const mk_gpu_buffer &b, const mk_operand &weight,
                                       const strip_way &way, strip_cursor at, bool normed) {
  const lane_places own(c);
  const uint8_t *lines = c.d.page(0) + own.line, *words = c.d.page(0) + own.word;
  tile::vector_tile x[MK_STRIP_STEPS] = {};  // zero in lanes that have no column
  uint32_t rows = way.rows;
  float squares = 0.0f;  // of a chain; with later row tiles nobody looks at them
#pragma unroll 1
  do {
    uint32_t rounds = way.rounds;
    const uint32_t *slices = slice_words(c, 0) + own.x;
#pragma unroll 1
    for (;;) {
      tile::sum_tile sums;
      auto strip = [&] { return (way.rounds - rounds) * MK_GPU_CONSUMER_WARPS + c.warp; };
      if (rounds > way.absent) {
        tile::zero(sums);
        wait_phase(c.d, PAGE_FULL + at.slot, at.phase, MK_ACTIVITY_PAGE_FULL, at.slot);
        if (own.lane < 4) {
#pragma unroll
          for (uint32_t i = 0; i < MK_STRIP_STEPS; i += 2) {
            uint4 two = tile::load<uint4>(slices + i / 2 * (SLICE_BYTES / 4));
            x[i] = {{two.x, two.y}};
            x[i + 1] = {{two.z, two.w}};
          }
        }
        const uint32_t place = at.slot * MK_GPU_PAGE_BYTES + at.offset;
        of.template each<true>(
            b, lane_strip(lines + place, words + place, c.d.page(0) + place, c.lane),
            weight.cols - strip() * MK_STRIP_STEPS, [&] { release_page(c, at.slot, 1); },
            [&](uint32_t i, const tile::weight_tile &weights) { tile::multiply_add(sums, weights, x[i]); });
        if (normed) {  // while the products are on their way
          squares = chain_squares(raw_input(c, tile::anew(strip()) / GROUP_WARPS));
        }
      } else {
        tile::zero_here(sums);
        squares = 0.0f;
      }
      put_result_at(
          c, at.result, at.result_parity, sums.value[0], sums.value[2], squares, [&] { return own.sums; },
          [&] { return own.sums + RESULT_SQUARES; }, [&] { return tile::lane_of_quad(own.lane) == 0; });
      at.next_result();
      if (--rounds == 0) {
        break;
      }
      slices += GROUPS * PAGE_SLICES_BYTES / sizeof *slices;
      at.advance(way.round, way.page_bytes);
    }
    normed = false;  // the storer has the squares with the first row tile
    at.advance(way.row, way.page_bytes);
  } while (--rows != 0);
  at.set_results(c);
}

// One body for all linear opcodes, so that it stays in the instruction cache from stage to stage.
__device__ __forceinline__ void consume_linear(consumer &c, const mk_instruction_word &in, bool normed) {
  const mk_operand &from = in.parts[LINEAR_X], &weight = in.parts[LINEAR_WEIGHT];
  uint32_t steps = from.cols * c.d.buffer(from).tile_cols / 16;
  uint32_t pages = weight.rows == 0 ? 0 : page_count(steps);
  page_weights weights;
  if constexpr (MK_GPU_QUANTISED) {
    const mk_gpu_buffer &b = c.d.buffer(weight);
    const strip_way way(c, b, weight);  // worked out before x is there, as the form is
    const strip_kind kind = kind_of(b);
    strip_cursor at(c);
    at.advance(way.first, way.page_bytes);
    advance_pages(c, way.pages);  // where the next instruction begins
    stage_activation(c, in, normed, steps, pages, weights);
    with_form<true>(b, kind, [&](const auto &form) { multiply_strips(c, form, b, weight, way, at, normed); });
  } else {
    bool early = stage_activation(c, in, normed, steps, pages, weights);
    multiply_pages(c, weight, pages, normed, weights, early);
  }
}

}  // namespace mk
