// What the roles of the kernels for wide steps share. A step computes up to 1,024 rows, its *lines*: of one sequence
// (wide_step.cuh), or up to 512 of several (wide_step_slots.cuh); an instruction computes 128 of them, a *line tile*.
// Eight warps consume, as two warpgroups, and store themselves; a warp loads.
//
// Values between SMs are plain rows, ordered by release counters: an SM that has written signals after its warps have
// met, and an SM that reads has waited. What copies read (the inputs of products, the cache) is fenced for them on both
// sides.
//
// Pages go by in *stages* of four: for a product two of weights, one for each warpgroup, and two panels of lines.
#pragma once
#include "instructions/tile/copy.cuh"
#include "instructions/tile/group.cuh"
#include "vm/gpu/opcodes.cuh"
#include "vm/gpu/wait.cuh"
#if MK_GPU_SLOTS
#include "vm/gpu/wide_step_slots.cuh"
#else
#include "vm/gpu/wide_step.cuh"
#endif

namespace mk {

struct packing {    // what the loader asks of the packers, page by page
  uint32_t stage;   // where it begins
  uint32_t tokens;  // whole stages of them; 0: the launch ends
  uint32_t form;    // dims of a head; and PACKS_CODES: they are codes (one word, since registers are short)
};
enum : uint32_t { PACKS_CODES = 0x10000 };

enum { WARP_QUERIES = 16, PACKERS = 2 };

// Of several sequences: an item of a work list (vm/program/attend_list.h) and what a warp has of it
// (instructions/attend_slots.cuh).
struct attended_item {
  struct {
    uint32_t first, position, head, heads;
  } of;
  uint32_t turn;            // items of the share so far
  uint32_t together;        // items of few queries that pass together, of which this is one; 0: it has more queries
  uint32_t tokens[8];       // of each of them
  uint32_t query, queries;  // the warp's first, and how many it has
  uint32_t end, own, group_end;
  uint32_t ends[WARP_QUERIES];  // the position after the last token that a query sees
};

struct wide_words {
  wide_state state[2];
  float scales[MK_WIDE_GPU_LINES];  // 1 / rms by line
  uint32_t
      stages[MK_GPU_CONSUMER_WARPS];  // where each warp is in the page ring, between instructions: registers are short
  packing wanted;
  uint32_t taken[PACKERS];
  float best[MK_GPU_CONSUMER_WARPS];
  uint32_t index[MK_GPU_CONSUMER_WARPS];
  wide_choices choices;
  uint32_t fills[MK_GPU_RING_PAGES];                              // of each page, that copies have been announced for
  attended_item items[MK_GPU_SLOTS ? MK_GPU_CONSUMER_WARPS : 1];  // at hand, of each warp
  uint32_t searching;                                             // whether some line of the step does (SIFT)
};
static_assert(sizeof(wide_words) <= MK_GPU_WIDE_WORDS_BYTES, "wide_shared.h has room for them");
static_assert(MK_GPU_SHARED_BYTES <= MK_WIDE_GPU_SHARED_BYTES, "what the host asks for");

enum {
  STAGES = MK_GPU_RING_PAGES / MK_GPU_STAGE_PAGES,
  GROUPS = 2,
  GROUP_TILES = MK_WIDE_GPU_UNIT_TILES / GROUPS,
  CHAIN_STEPS = 8,  // of 16 columns (docs/NUMERICS.md)
  CHAIN_BYTES = CHAIN_STEPS * 512,
  LINES = MK_WIDE_GPU_LINES,
  LINES_AT = GROUPS,                      // the panels' pages in a stage
  PAGE_ARRIVALS = MK_GPU_CONSUMER_WARPS,  // that empty a page
  ATTENDED_ALONE = 256,                   // so many tokens at most are attended to without room for sums
};
static_assert(GROUP_TILES * CHAIN_BYTES == MK_GPU_PAGE_BYTES, "a page is a chain of a warpgroup's row tiles");
static_assert(LINES * MK_WIDE_GPU_PANEL_COLS * 2 == MK_GPU_PAGE_BYTES, "or a panel of a line tile");
static_assert(LINES == MK_LINE_TILE, "an instruction computes one");
static_assert(MK_WIDE_GPU_MOST_ROWS == MK_MOST_ROWS, "all that a program may have");

__device__ inline volatile wide_words *wide_shared() {
  return tile::view<volatile wide_words>(shared_memory + MK_GPU_WIDE_WORDS_AT);
}
__device__ inline volatile wide_state &lines_of(const device &d) {
  return wide_shared()->state[(MK_GPU_SLOTS ? tile::anew(d.epoch) : d.epoch) % 2];
}

// Barriers of this configuration.
enum {
  LOADER_DONE = OWN_BARRIERS,  // with its part of the step: it looks at the step's state no more
  PACKING_FULL,                // the loader wants something packed
  PACKING_EMPTY,               // and the packers have looked at what
  PACKED,                      // a page, of the stages that are packed
  WIDE_BARRIERS_END = PACKED + MK_GPU_RING_PAGES,
};
static_assert(WIDE_BARRIERS_END <= BARRIER_COUNT, "room for the barriers of this configuration");

// A place in the ring of stages. Pages of a stage may be packed (wide_packer.cuh) or not, and a stage may be kept aside
// for a time, which the others then go round: so phases are told stage by stage. All of it in one word, since registers
// are short.
struct stage_cursor {
  enum : uint32_t { SLOT = 0xf, KEPT = 0x10, PHASE = 0x100, PACKED_PHASE = 0x10000 };
  uint32_t at = 0;
  __device__ uint32_t slot() const { return at & SLOT; }
  __device__ uint32_t phase() const { return at / PHASE >> slot() & 1; }
  __device__ uint32_t packed_phase() const { return at / PACKED_PHASE >> slot() & 1; }
  __device__ bool keeps() const { return (at & SLOT * KEPT) != 0; }
  __device__ uint32_t kept() const { return at / KEPT % KEPT - 1; }
  __device__ void next() { pass(PHASE); }
  __device__ void next_packed() {
    pass(PHASE + PACKED_PHASE);
    if (keeps() && slot() == kept()) {
      go_on();
    }
  }
  __device__ void keep() {
    at += (slot() + 1) * KEPT;
    pass(PHASE);
  }
  __device__ void forget() { at &= ~(SLOT * KEPT); }

 private:
  __device__ void go_on() { at = slot() + 1 == STAGES ? at & ~SLOT : at + 1; }
  __device__ void pass(uint32_t phases) {
    at ^= phases << slot();
    go_on();
  }
};
static_assert(STAGES <= 8, "a bit for each");

// Page `page` of a stage, of the ring.
__device__ inline uint32_t page_of(const stage_cursor &stage, uint32_t page) {
  return stage.slot() * MK_GPU_STAGE_PAGES + page;
}

// A place in the ring page by page, where what is handed over is not whole stages.
struct page_cursor {
  stage_cursor stage;
  uint32_t page = 0;  // of the stage

  __device__ uint32_t slot() const { return page_of(stage, page); }
  __device__ void next() {
    page = (page + 1) % MK_GPU_STAGE_PAGES;
    if (page == 0) {
      stage.next();
    }
  }
};

// Of steps of several sequences, where at most half of a line tile is active. A chain of a product then has both
// panels of lines in one page, after one page of weights, or two, one for each warpgroup; so more chains are on their
// way. With one both warpgroups multiply its four row tiles, each by half of the lines.
enum { FEW_LINES = LINES / 2 };
__device__ inline bool few_lines(uint32_t lines) { return MK_GPU_SLOTS && lines <= FEW_LINES; }
__device__ inline bool shares_rows(const mk_instruction_word &in, uint32_t row_tiles) {
  return row_tiles <= GROUP_TILES && in.opcode != only<&opcode_row::logits>;
}

struct wide_consumer {
  device d;

  __device__ uint32_t group() const { return d.warp / 4; }
};

__device__ inline bool is_first(const wide_consumer &c) { return c.d.warp == 0 && tile::lane() == 0; }
__device__ inline void put_down_epoch(const wide_consumer &) {}
__device__ inline void look_up_epoch(const wide_consumer &) {}
__device__ inline instruction_cursor at_hand(const wide_consumer &c) { return {c.d.words()->at_hand[c.d.warp]}; }
__device__ inline void set_at_hand(const wide_consumer &c, const instruction_cursor &cursor) {
  c.d.words()->at_hand[c.d.warp] = cursor.at;
  __syncwarp();
}
__device__ inline const mk_instruction_word &instruction_at_hand(const wide_consumer &c) {
  return c.d.slot(at_hand(c).slot())->instruction;
}

__device__ inline bool stops(const wide_consumer &c) { return lines_of(c.d).stop != 0; }

__device__ inline stage_cursor next_stage(const wide_consumer &c) { return {wide_shared()->stages[c.d.warp]}; }
__device__ inline void put_next_stage(const wide_consumer &c, const stage_cursor &stage) {
  __syncwarp();
  wide_shared()->stages[c.d.warp] = stage.at;
  __syncwarp();
}

// All consumer warps meet. Every warp comes to every meeting of an instruction, also when a wait has been given up
// (wait.cuh).
__device__ inline void consumers_meet() { tile::meet<MK_GPU_CONSUMER_WARPS * 32>(); }

// The first warp waits for the instruction's release counters, the others for it.
__device__ inline void consumers_wait(const wide_consumer &c, const mk_instruction_word &in) {
  if (c.d.warp == 0 && has_flag(in, SLOT_WAITS_RELEASE)) {
    wait_counters(c.d, in);
  }
  consumers_meet();
}

// Signals after all that the consumers have written, which other SMs may then load and copy.
__device__ inline void consumers_signal(const wide_consumer &c, const mk_instruction_word &in) {
  if (!has_flag(in, SLOT_SIGNALS_RELEASE)) {
    return;
  }
  tile::fence_global_for_copies();
  consumers_meet();
  if (c.d.warp == 0 && tile::lane() == 0 && publishes(c.d)) {
    signal_counters(c.d, in);
  }
}

__device__ inline const uint8_t *wait_page(const wide_consumer &c, const stage_cursor &stage, uint32_t page) {
  uint32_t slot = page_of(stage, page);
  wait_phase(c.d, PAGE_FULL + slot, stage.phase(), MK_ACTIVITY_PAGE_FULL, slot);
  return c.d.page(slot);
}

// The same of a page that is packed (wide_packer.cuh), of whose panels this is the name.
__device__ inline tile::panel wait_packed(const wide_consumer &c, const stage_cursor &stage, uint32_t page) {
  uint32_t slot = page_of(stage, page);
  wait_phase(c.d, PACKED + slot, stage.packed_phase(), MK_ACTIVITY_PAGE_FULL, slot);
  return tile::panel_of(tile::shared_address(c.d.page(slot)), 16);
}

__device__ inline void release_slot(const wide_consumer &c, uint32_t slot, uint32_t arrivals) {
  __syncwarp();
  if (tile::lane() == 0) {
    tile::arrive(c.d.barrier(PAGE_EMPTY + slot), arrivals);
  }
}
__device__ inline void release_page(const wide_consumer &c, const stage_cursor &stage, uint32_t page,
                                    uint32_t arrivals) {
  release_slot(c, page_of(stage, page), arrivals);
}

// All pages of a stage, by a slot.
__device__ inline void release_stage(const wide_consumer &c, uint32_t slot) {
  __syncwarp();
  if (tile::lane() < MK_GPU_STAGE_PAGES) {
    tile::arrive(c.d.barrier(PAGE_EMPTY + slot * MK_GPU_STAGE_PAGES + tile::lane()));
  }
}

// Lines of the line tile in which the operand is that are active: 0 where all of them are idle.
__device__ inline uint32_t active_lines(const device &d, uint32_t line_tile) {
  uint32_t count = lines_of(d).count, first = line_tile * LINES;
  return count <= first ? 0 : min(count - first, static_cast<uint32_t>(LINES));
}

// The first line of a PART of a plain value, from its first column on.
template <typename element>
__device__ inline element *plain_lines(const device &d, const mk_operand &operand) {
  const mk_gpu_buffer &b = d.buffer(operand);
  return tile::global<element>(b.address) + static_cast<uint64_t>(operand.row) * b.tile_rows * b.cols +
         operand.col * b.tile_cols;
}

// Of several ranks: what an SM has put down in its own copy of a bf16 value goes on to the copies of the other readers,
// 16 bytes a thread, whole lines after each other: what goes over to another GPU in small pieces takes a multiple of
// the time.
enum { PUSHED_TOGETHER = 4 };  // pieces of 16 bytes that a thread fetches together

// The other ranks that read what the operand writes.
__device__ inline uint32_t other_readers(const wide_consumer &c, const mk_operand &out) {
  return readers_of(out) & ~(1u << c.d.params.peers->rank);
}

// `count` pieces, `pieces` of a line, lines `stride` bytes apart, by so many threads, of which this one is `first`.
__device__ __forceinline__ void push_pieces(uint32_t others, uint8_t *own, uint32_t count, uint32_t pieces,
                                            uint32_t stride, uint32_t first, uint32_t threads) {
#pragma unroll 1
  for (; others != 0 && first < count; first += PUSHED_TOGETHER * threads) {
    uint4 words[PUSHED_TOGETHER];
#pragma unroll
    for (uint32_t i = 0; i < PUSHED_TOGETHER; i++) {
      uint32_t at = min(first + i * threads, count - 1);
      words[i] = tile::load_l2<uint4>(own + static_cast<uint64_t>(at / pieces) * stride + at % pieces * 16);
    }
    to_readers(others, own, [&](uint8_t *copy) {
#pragma unroll
      for (uint32_t i = 0; i < PUSHED_TOGETHER; i++) {
        uint32_t at = min(first + i * threads, count - 1);
        tile::store<uint4>(copy + static_cast<uint64_t>(at / pieces) * stride + at % pieces * 16, words[i]);
      }
    });
  }
}

// The operand's lines. All warps meet before, when the lines have been put down.
__device__ inline void push_lines(const wide_consumer &c, const mk_operand &out, uint32_t lines) {
  enum { THREADS = MK_GPU_CONSUMER_WARPS * 32 };
  const mk_gpu_buffer &b = c.d.buffer(out);
  uint8_t *own = tile::view<uint8_t>(plain_lines<uint16_t>(c.d, out));
  uint32_t pieces = out.cols * b.tile_cols * 2 / 16, count = lines * pieces, stride = b.cols * 2;
  uint32_t others = other_readers(c, out);
  consumers_meet();
  push_pieces(others, own, count, pieces, stride, tile::thread(), THREADS);
}

// By the first warp, at the end of a step: takes the next one from the plan, of `words` words each, and lets all roles
// have it.
__device__ inline void put_next_step(const wide_consumer &c, const mk_instruction_word &in, uint32_t words,
                                     uint32_t stop) {
  wait_phase(c.d, LOADER_DONE, c.d.epoch % 2, MK_ACTIVITY_STEP_STATE, 0);
  // After the launch's last step the plan has what an earlier launch has left.
  bool more = c.d.epoch + 1 < c.d.params.epochs && (c.d.epoch + 2) * words <= whole_buffer(in, MK_WHOLE_NEXT_plan).cols;
  put_step(c.d, more ? c.d.params.plan + (c.d.epoch + 1) * words : nullptr, stop, wide_shared()->choices,
           wide_shared()->state[(c.d.epoch + 1) % 2]);
  __syncwarp();
  if (tile::lane() == 0) {
    tile::arrive(c.d.barrier(STATE_READY));
  }
}

}  // namespace mk
