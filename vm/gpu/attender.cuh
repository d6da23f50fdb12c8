// What the roles of the MLA configuration hand to each other inside a block: entries of the work list, pages of the
// cache, queries.
//
// The loader reads this SM's row of the list, looks up lengths and pages, and passes entries on through a small ring,
// the entries of each opcode being closed by an end. From outside the block its roles wait for stamps alone. Whatever
// they wait for among themselves comes, as long as each role goes through its entries to the end. So these waits do not
// give up when a launch is to be left, as others do (wait.cuh), and all warps always carry out the same entries. But if
// one still waits long after the launch is to be left, something is broken, and it goes on with what it has rather than
// never end.
#pragma once
#include "instructions/mla.h"
#include "vm/gpu/controller.cuh"

namespace mk {

// A page is filled in four loads of two or three panels, each with a barrier, and emptied in two parts. Each warpgroup
// empties its half of the values. The last panel of keys becomes the weights' place, so the warpgroup that finds the
// weights there, and did not score the page, empties it. Weights are handed over in halves.
enum { PAGE_LOADS = 4, PAGE_PARTS = 2, HALF_PANELS = 4, OTHER_KEYS = 2 * HALF_PANELS, WEIGHT_HALVES = 2 };

enum mla_barrier {
  LOAD_FULL = OWN_BARRIERS,  // slot by slot
  PART_EMPTY = LOAD_FULL + PAGE_LOADS * MK_GPU_RING_PAGES,
  WEIGHTS_FULL = PART_EMPTY + PAGE_PARTS * MK_GPU_RING_PAGES,
  QUERIES_FULL = WEIGHTS_FULL + WEIGHT_HALVES * MK_GPU_RING_PAGES,
  QUERIES_EMPTY,
  ENTRY_FULL,
  ENTRY_EMPTY = ENTRY_FULL + MK_GPU_ENTRY_SLOTS,
  MLA_BARRIERS_END = ENTRY_EMPTY + MK_GPU_ENTRY_SLOTS,
};
static_assert(MLA_BARRIERS_END <= BARRIER_COUNT, "room for the barriers of this configuration");
static_assert(MK_GPU_SHARED_BYTES <= MK_MLA_GPU_SHARED_BYTES, "what the host asks for");

__device__ inline uint32_t full_barrier(uint32_t slot, uint32_t load) { return LOAD_FULL + slot * PAGE_LOADS + load; }
__device__ inline uint32_t empty_barrier(uint32_t slot, uint32_t part) { return PART_EMPTY + slot * PAGE_PARTS + part; }
__device__ inline uint32_t weights_barrier(uint32_t slot, uint32_t half) {
  return WEIGHTS_FULL + slot * WEIGHT_HALVES + half;
}
// The order in which the panels of a page are filled, which is the one in which they become empty: the half of the
// warpgroup that does not score the slot's pages, the last panel of keys, the half of the warpgroup that does.
__device__ inline uint32_t panel_in_order(uint32_t slot, uint32_t i) {
  return i == HALF_PANELS  ? OTHER_KEYS
         : i < HALF_PANELS ? (slot ^ 1) * HALF_PANELS + i
                           : slot * HALF_PANELS + i - HALF_PANELS - 1;
}
// Loads are of panels 0 and 1 in that order, 2 to 4, 5 and 6, 7 and 8.
__device__ constexpr uint32_t start_of_load(uint32_t load) { return load < 2 ? load * 2 : load * 2 + 1; }

enum entry_kind { ENTRY_ITEM, ENTRY_REDUCTION, ENTRY_END };

struct alignas(16) mla_entry {
  uint32_t kind, block;
  union {
    uint32_t first, first_slot;  // ITEM: the first page
  };
  union {
    uint32_t pages, slots;  // ITEM: how many there are, by the sequence's length
    uint32_t reductions;    // END of items: how many are left
  };
  uint32_t length;  // ITEM: of the sequence
  union {
    uint32_t slot, units;  // as in the list
  };
  // ITEM: the rows of the block whose output this item writes itself, low half: the first, high half: the one after the
  // last; and the slots of the block that it adds to its own sums, low half: the first, high half: how many.
  uint32_t own_rows, block_slots;
};
static_assert(sizeof(mla_entry) == MK_GPU_ENTRY_BYTES, "entries of the ring");

__device__ inline mla_entry *entry_at(uint32_t slot) {
  return tile::view<mla_entry>(shared_memory + MK_GPU_ENTRIES_AT) + slot;
}

// Waits for a phase among the roles of this block, as said above. A wait does not say what it waits for: that would
// take fifty instructions in each of thirty places, and a call takes as long as its code takes to arrive. The
// controller reports a block whose consumers take no entry for longer than the deadline.
__device__ inline void wait_within(const device &d, uint32_t index, uint32_t parity) {
  enum { MOST_TRIES = 1 << 20 };  // tries, once everybody is to leave
  uint32_t barrier = d.barrier(index), left = MOST_TRIES;
  while (left != 0 && !tile::all_lanes(tile::try_wait(barrier, parity))) {
    left -= tile::uniform(d.words()->leave != 0);
  }
}

enum { CONTROLLER_WARP = MK_GPU_CONSUMER_WARPS + 2 };

using entry_cursor = ring_cursor<MK_GPU_ENTRY_SLOTS>;

__device__ inline void init_mla_barriers(const device &d) {
  for (uint32_t i = 0; i < MK_GPU_RING_PAGES; i++) {
    for (uint32_t load = 0; load < PAGE_LOADS; load++) {
      tile::barrier_init(d.barrier(full_barrier(i, load)), 1);
    }
    for (uint32_t part = 0; part < PAGE_PARTS; part++) {
      tile::barrier_init(d.barrier(empty_barrier(i, part)), MK_GPU_CONSUMER_WARPS / 2);
    }
    for (uint32_t half = 0; half < WEIGHT_HALVES; half++) {
      tile::barrier_init(d.barrier(weights_barrier(i, half)), MK_GPU_CONSUMER_WARPS / 2);
    }
  }
  for (uint32_t i = 0; i < MK_GPU_INSTRUCTION_SLOTS; i++) {
    tile::barrier_init(d.barrier(INSTRUCTION_FULL + i), 1);
    tile::barrier_init(d.barrier(INSTRUCTION_EMPTY + i), MK_GPU_CONSUMER_WARPS + 1);  // and the loader
  }
  for (uint32_t i = 0; i < MK_GPU_ENTRY_SLOTS; i++) {
    tile::barrier_init(d.barrier(ENTRY_FULL + i), 1);
    tile::barrier_init(d.barrier(ENTRY_EMPTY + i), MK_GPU_CONSUMER_WARPS);
  }
  tile::barrier_init(d.barrier(QUERIES_FULL), 1);
  tile::barrier_init(d.barrier(QUERIES_EMPTY), MK_GPU_CONSUMER_WARPS);
  tile::fence_barriers();
}

// A consumer warp of warpgroup `group`. The group's 128 threads own all rows and half of the columns.
struct attender {
  device d;
  uint32_t warp, lane, group;
  ring_cursor<MK_GPU_RING_PAGES> pages;
  entry_cursor entries;
  uint32_t queries;  // blocks so far

  // This thread's first row among the 64 of a block; its other row is 8 further on.
  __device__ uint32_t row() const { return warp % 4 * 16 + tile::lane_row(lane); }
};

__device__ inline mla_entry take_entry(attender &a) {
  a.entries.at = tile::uniform(a.entries.at);
  a.pages.at = tile::uniform(a.pages.at);
  a.queries = tile::uniform(a.queries);
  uint32_t slot = a.entries.slot();
  wait_within(a.d, ENTRY_FULL + slot, a.entries.phase());
  mla_entry entry = *entry_at(slot);
  // Tells the compiler that all lanes have the same entry: then it counts pages and names panels once for the warp.
  entry.kind = tile::uniform(entry.kind);
  entry.block = tile::uniform(entry.block);
  entry.first = tile::uniform(entry.first);
  entry.pages = tile::uniform(entry.pages);
  entry.length = tile::uniform(entry.length);
  entry.slot = tile::uniform(entry.slot);
  entry.own_rows = tile::uniform(entry.own_rows);
  entry.block_slots = tile::uniform(entry.block_slots);
  if (a.lane == 0) {
    tile::arrive(a.d.barrier(ENTRY_EMPTY + slot));
    if (a.warp == 0) {
      volatile uint32_t &ticket = a.d.words()->tickets[CONTROLLER_WARP];
      ticket = ticket + 1;
    }
  }
  a.entries.next();
  return entry;
}

}  // namespace mk
