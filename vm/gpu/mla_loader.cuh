// The loader of the MLA configuration: follows this SM's row of the work list, passes entries on, and streams queries
// and pages of the cache. The whole warp looks things up, a lane per entry or page; one lane copies.
#pragma once
#include "instructions/tile/copy.cuh"
#include "vm/gpu/attender.cuh"

namespace mk {

struct mla_loader {
  device d;
  const mk_gpu_mla_params &params;
  uint32_t lane;
  ring_cursor<MK_GPU_RING_PAGES> pages;
  entry_cursor entries;
  uint32_t queries;  // blocks so far
  uint32_t started;  // 1: the first item's first page and queries are on their way, its entry is not passed on yet
  uint32_t folded;   // how many reductions the items have done: the first ones of the list
};

// What the loader reads before the launch before this one has ended, and before there is an instruction: its row of the
// list, head and entries, by a lane each; then lengths, and the first pages of the first item. No launch that may still
// run writes these inputs.
struct first_entries {
  uint4 head, mine;
  uint32_t length, ahead;
};

__device__ inline const uint4 *list_row(const mk_gpu_mla_inputs &inputs) {
  return tile::view<uint4>(tile::global<const uint32_t>(inputs.work) +
                           static_cast<uint64_t>(blockIdx.x) * inputs.list_words);
}

// A block's sequence: its length, then, from MK_MLA_SEQUENCE_HEAD on, its pages.
__device__ inline const uint32_t *sequence_of(const mk_gpu_mla_inputs &inputs, uint32_t block) {
  return tile::global<const uint32_t>(inputs.sequences) +
         static_cast<uint64_t>(block / inputs.blocks) * inputs.sequence_words;
}

// The pages of an item, by a lane each, before the item's length is known; what lies after the list's end is made a
// place inside the batch.
__device__ inline uint32_t first_pages(const mk_gpu_mla_inputs &inputs, uint32_t block, uint32_t first) {
  uint32_t at = min(first + tile::lane(), inputs.sequence_words - MK_MLA_SEQUENCE_HEAD - 1);
  return __ldg(sequence_of(inputs, min(block, inputs.last_block)) + MK_MLA_SEQUENCE_HEAD + at);
}

// The entries from `base` on; after the last one there may be anything.
__device__ inline uint4 look_at_entries(const mk_gpu_mla_inputs &inputs, uint32_t base) {
  return __ldg(list_row(inputs) + 1 + min(base + tile::lane(), inputs.entries - 1));
}

__device__ inline void look_at_lengths(const mk_gpu_mla_inputs &inputs, first_entries &to) {
  to.ahead = first_pages(inputs, tile::from_lane(to.mine.x, 0), tile::from_lane(to.mine.y, 0));
  to.length = __ldg(sequence_of(inputs, min(to.mine.x, inputs.last_block)));
}

__device__ inline void pass_on(mla_loader &l, const mla_entry &entry) {
  uint32_t slot = l.entries.slot();
  wait_within(l.d, ENTRY_EMPTY + slot, l.entries.phase() ^ 1);
  if (l.lane == 0) {
    *entry_at(slot) = entry;
    tile::arrive(l.d.barrier(ENTRY_FULL + slot));
  }
  __syncwarp();
  l.entries.next();
}

// Copies loads [first, end) of a page; called by one thread.
template <uint32_t first, uint32_t end>
__device__ __forceinline__ void copy_loads_alone(const mla_loader &l, uint32_t slot, uint32_t page) {
#pragma unroll 1
  for (uint32_t load = first; load < end; load++) {
    uint32_t full = l.d.barrier(full_barrier(slot, load)), i = start_of_load(load), next = start_of_load(load + 1);
    tile::arrive_expect(full, (next - i) * MK_GPU_PANEL_BYTES);
#pragma unroll 1
    for (; i < next; i++) {
      uint32_t panel = panel_in_order(slot, i);
      tile::tensor_load(tile::shared_address(l.d.page(slot)) + panel * MK_GPU_PANEL_BYTES, &l.params.pages, panel, page,
                        full);
    }
  }
}

template <uint32_t first, uint32_t end>
__device__ __forceinline__ void copy_loads(const mla_loader &l, uint32_t slot, uint32_t page) {
  if (tile::elect()) {
    copy_loads_alone<first, end>(l, slot, page);
  }
  __syncwarp();
}

// Copies a page part by part, as its parts become empty.
__device__ inline void load_page(mla_loader &l, uint32_t page) {
  uint32_t slot = l.pages.slot(), phase = l.pages.phase() ^ 1;
  wait_within(l.d, empty_barrier(slot, slot ^ 1), phase);
  copy_loads<0, PAGE_LOADS / 2>(l, slot, page);
  wait_within(l.d, empty_barrier(slot, slot), phase);
  copy_loads<PAGE_LOADS / 2, PAGE_LOADS>(l, slot, page);
  l.pages.next();
}

// Copies all 64 rows: where a block has fewer, the copy fills up with zeros. Called by one thread.
__device__ inline void copy_queries(const device &d, const mk_gpu_mla_params &params, uint32_t block) {
  uint32_t full = d.barrier(QUERIES_FULL);
  tile::arrive_expect(full, MK_GPU_PAGE_BYTES);
  tile::tensor_load(tile::shared_address(d.activation()), &params.queries, 0, block, full);
}

__device__ inline void load_queries(mla_loader &l, uint32_t block) {
  wait_within(l.d, QUERIES_EMPTY, ~l.queries & 1);
  if (tile::elect()) {
    copy_queries(l.d, l.params, block);
  }
  __syncwarp();
  l.queries++;
}

// How many pages an item has: `item` is its entry in the list, `length` that of its sequence.
__device__ inline uint32_t pages_of(const uint4 &item, uint32_t length) {
  uint32_t end = min(item.z, (length + MK_MLA_PAGE_TOKENS - 1) / MK_MLA_PAGE_TOKENS);
  return end > item.y ? end - item.y : 0;
}

// Starts copies of the first page and the queries of the first item, while everything is empty and nobody has an
// instruction yet. There are as few instructions as possible from the start of the block to these copies, since none of
// them is in the instruction cache.
__device__ __forceinline__ void start_first_item(mla_loader &l, const first_entries &first) {
  uint32_t page = tile::from_lane(first.ahead, 0), block = tile::from_lane(first.mine.x, 0);
  uint32_t pages = first.head.x == 0 ? 0 : pages_of(first.mine, first.length);
  l.started = tile::from_lane(pages, 0) != 0;
  if (l.started != 0 && tile::elect()) {
    copy_loads_alone<0, PAGE_LOADS>(l, 0, page);
    copy_queries(l.d, l.params, block);
  }
  __syncwarp();
}

// Loads an item. `page`: its first 32 pages, by a lane each. The item's queries are copied after its first page: there
// is room for both when the item before is at its last page.
__device__ inline void load_item(mla_loader &l, const mla_entry &entry, const uint32_t *table, uint32_t page) {
  for (uint32_t i = 0; i < entry.pages; i += 32) {
    if (i != 0 && i + l.lane < entry.pages) {
      page = __ldg(table + entry.first + i + l.lane);
    }
    for (uint32_t j = 0; j < min(entry.pages - i, 32u); j++) {
      if (l.started != 0) {
        l.started = 0;
        l.pages.next();
        l.queries++;
        continue;
      }
      load_page(l, tile::from_lane(page, j));
      if (i + j == 0) {
        load_queries(l, entry.block);
      }
    }
  }
}

__device__ inline uint4 shuffle(uint4 value, uint32_t from) {
  return make_uint4(tile::from_lane(value.x, from), tile::from_lane(value.y, from), tile::from_lane(value.z, from),
                    tile::from_lane(value.w, from));
}

// Where mk_mla_folds says so, the last item carries out the first reduction: then the SM's own sums of those rows stay
// in registers.
__device__ inline void fold(mla_loader &l, const uint4 &reduction, mla_entry &item) {
  enum { GROUP_UNITS = 8 * MK_MLA_ROW_UNITS };
  uint32_t first = reduction.w & 0xffffu, units = reduction.w >> 16;
  if (reduction.x == item.block && reduction.z <= MK_MLA_MOST_FOLDED && first % GROUP_UNITS == 0 &&
      units % GROUP_UNITS == 0) {
    item.own_rows = first / MK_MLA_ROW_UNITS | (first + units) / MK_MLA_ROW_UNITS << 16;
    item.block_slots = reduction.y | reduction.z << 16;
    l.folded = 1;
  }
}

__device__ inline void load_MLA_PART(mla_loader &l, first_entries first) {
  const mk_gpu_mla_inputs &inputs = l.params.inputs;
  for (uint32_t base = 0; base == 0 || base < first.head.x; base += 32) {
    if (base != 0) {
      first.mine = look_at_entries(inputs, base);
      look_at_lengths(inputs, first);
    }
    for (uint32_t i = 0; base + i < first.head.x && i < 32; i++) {
      uint4 item = shuffle(first.mine, i);
      mla_entry entry = {};
      entry.kind = ENTRY_ITEM;
      entry.block = item.x;
      entry.first = item.y;
      entry.length = tile::from_lane(first.length, i);
      entry.pages = pages_of(item, entry.length);
      entry.slot = item.w;
      if (item.w == MK_MLA_OUT) {
        entry.own_rows = inputs.rows << 16;
      } else if (base + i + 1 == first.head.x && first.head.y != 0 && i < 31) {
        fold(l, shuffle(first.mine, i + 1), entry);
      }
      pass_on(l, entry);
      uint32_t page = first.ahead;
      uint4 next = shuffle(first.mine, min(i + 1, 31u));
      first.ahead = first_pages(inputs, next.x, next.y);
      load_item(l, entry, sequence_of(inputs, item.x) + MK_MLA_SEQUENCE_HEAD, page);
    }
  }
  mla_entry end = {};
  end.kind = ENTRY_END;
  end.reductions = first.head.y - l.folded;
  pass_on(l, end);
}

__device__ inline void load_MLA_REDUCE(mla_loader &l, const uint4 &head) {
  const uint4 *row = list_row(l.params.inputs);
  for (uint32_t base = l.folded; base < head.y; base += 32) {
    uint4 mine = base + l.lane < head.y ? __ldg(row + 1 + head.x + base + l.lane) : make_uint4(0, 0, 0, 0);
    for (uint32_t i = 0; i < min(head.y - base, 32u); i++) {
      uint4 reduction = shuffle(mine, i);
      mla_entry entry = {};
      entry.kind = ENTRY_REDUCTION;
      entry.block = reduction.x;
      entry.first_slot = reduction.y;
      entry.slots = reduction.z;
      entry.units = reduction.w;
      pass_on(l, entry);
    }
  }
  mla_entry end = {};
  end.kind = ENTRY_END;
  pass_on(l, end);
}

}  // namespace mk
