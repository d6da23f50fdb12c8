// The loader of the MLA configuration: follows this SM's row of the work list, passes entries on, and streams queries and pages of the cache.
// The whole warp looks things up, a lane per entry or page; one lane copies.
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
};

__device__ inline void pass_on(mla_loader &l, const mla_entry &entry) {
  uint32_t slot = l.entries.slot();
  wait_within(l.d, ENTRY_EMPTY + slot, l.entries.phase() ^ 1, MK_ACTIVITY_INSTRUCTION_SPACE, slot);
  if (l.lane == 0) {
    *entry_at(slot) = entry;
    tile::arrive(l.d.barrier(ENTRY_FULL + slot));
  }
  __syncwarp();
  l.entries.next();
}

// The panels of a map's box, `bytes` of them, from panel `first` on.
__device__ inline void copy_panels(uint8_t *to, const mk_gpu_tensor_map *map, uint32_t matrix, uint32_t first,
                                   uint32_t bytes, uint32_t full) {
  if (tile::elect()) {
    tile::arrive_expect(full, bytes);
    tile::tensor_load(tile::shared_address(to) + first * MK_GPU_PANEL_BYTES, map, first, matrix, full);
  }
  __syncwarp();
}

__device__ inline void load_page(mla_loader &l, uint32_t page) {
  uint32_t slot = l.pages.slot();
  for (uint32_t i = 0; i < PAGE_PARTS; i++) {
    uint32_t part = part_in_order(slot, i);
    wait_within(l.d, empty_barrier(slot, part), l.pages.phase() ^ 1, MK_ACTIVITY_PAGE_EMPTY, slot);
    uint32_t panels = part == OTHER_KEYS ? 1 : MK_MLA_GPU_HALF_PANELS;
    copy_panels(l.d.page(slot), part == OTHER_KEYS ? &l.params.rest : &l.params.halves, page,
                part * MK_MLA_GPU_HALF_PANELS, panels * MK_GPU_PANEL_BYTES, l.d.barrier(full_barrier(slot, part)));
  }
  l.pages.next();
}

__device__ inline void load_queries(mla_loader &l, uint32_t block, uint32_t rows) {
  wait_within(l.d, QUERIES_EMPTY, ~l.queries & 1, MK_ACTIVITY_PAGE_EMPTY, MK_GPU_RING_PAGES);
  uint32_t full = l.d.barrier(QUERIES_FULL);
  if (tile::elect()) {
    tile::arrive_expect(full, rows * (MK_MLA_WIDTH * 2));
    for (uint32_t i = 0; i < MK_GPU_PANELS; i++) {  // each at its own place, also where rows are few
      tile::tensor_load(tile::shared_address(l.d.activation()) + i * MK_GPU_PANEL_BYTES, &l.params.queries, i, block,
                        full);
    }
  }
  __syncwarp();
  l.queries++;
}

// `page`: the first 32 of the item, a lane each. The queries of an item go behind its first page: the place of both is free when the item
// before is at its last page.
__device__ inline void load_item(mla_loader &l, const mla_entry &entry, const uint32_t *table, uint32_t page,
                                 uint32_t rows) {
  for (uint32_t i = 0; i < entry.pages; i += 32) {
    if (i != 0 && i + l.lane < entry.pages) {
      page = __ldg(table + entry.first + i + l.lane);
    }
    for (uint32_t j = 0; j < min(entry.pages - i, 32u); j++) {
      load_page(l, __shfl_sync(0xffffffffu, page, j));
      if (i + j == 0) {
        load_queries(l, entry.block, rows);
      }
    }
  }
}

__device__ inline uint4 shuffle(uint4 value, uint32_t from) {
  return make_uint4(__shfl_sync(0xffffffffu, value.x, from), __shfl_sync(0xffffffffu, value.y, from),
                    __shfl_sync(0xffffffffu, value.z, from), __shfl_sync(0xffffffffu, value.w, from));
}

// The row of the list: its head, then entries of four words.
__device__ inline const uint4 *list_row(const device &d, const mk_operand &work) {
  const mk_gpu_buffer &b = d.buffer(work);
  return reinterpret_cast<const uint4 *>(reinterpret_cast<const uint32_t *>(b.address) +
                                         static_cast<uint64_t>(work.row) * b.cols);
}

__device__ inline void load_MLA_PART(mla_loader &l, const mk_instruction &in) {
  const uint4 *row = list_row(l.d, in.operands[MK_SLOT_MLA_PART_work]);
  const mk_gpu_buffer &sequences = l.d.buffer(in.operands[MK_SLOT_MLA_PART_sequences]);
  const mk_gpu_buffer &out = l.d.buffer(in.operands[MK_SLOT_MLA_PART_out]);
  const uint32_t *batch = reinterpret_cast<const uint32_t *>(sequences.address);
  uint32_t blocks = out.rows / sequences.rows, rows = out.cols / MK_MLA_LATENT;
  uint32_t room = l.d.buffer(in.operands[MK_SLOT_MLA_PART_work]).cols / 4 - 1;
  auto batch_row = [&](uint32_t block) { return batch + static_cast<uint64_t>(block / blocks) * sequences.cols; };
  // Of an item, before its length is known; what lies behind the list's end is kept inside the batch.
  auto first_pages = [&](const uint4 &item) {
    uint32_t at = min(item.y + l.lane, sequences.cols - MK_MLA_SEQUENCE_HEAD - 1);
    return __ldg(batch_row(min(item.x, out.rows - 1)) + MK_MLA_SEQUENCE_HEAD + at);
  };
  uint4 head = __ldg(row);
  for (uint32_t base = 0; base == 0 || base < head.x; base += 32) {
    // Entries behind the last one may be anything.
    uint4 mine = base + l.lane < room ? __ldg(row + 1 + base + l.lane) : make_uint4(0, 0, 0, 0);
    uint32_t length = base + l.lane < head.x ? __ldg(batch_row(mine.x)) : 0;
    uint32_t ahead = first_pages(shuffle(mine, 0));
    for (uint32_t i = 0; base + i < head.x && i < 32; i++) {
      uint4 item = shuffle(mine, i);
      mla_entry entry = {};
      entry.kind = ENTRY_ITEM;
      entry.block = item.x;
      entry.first = item.y;
      entry.length = __shfl_sync(0xffffffffu, length, i);
      uint32_t end = min(item.z, (entry.length + MK_MLA_PAGE_TOKENS - 1) / MK_MLA_PAGE_TOKENS);
      entry.pages = end > item.y ? end - item.y : 0;
      entry.slot = item.w;
      pass_on(l, entry);
      uint32_t page = ahead;
      ahead = first_pages(shuffle(mine, min(i + 1, 31u)));
      load_item(l, entry, batch_row(item.x) + MK_MLA_SEQUENCE_HEAD, page, rows);
    }
  }
  mla_entry end = {};
  end.kind = ENTRY_END;
  pass_on(l, end);
}

__device__ inline void load_MLA_REDUCE(mla_loader &l, const mk_instruction &in) {
  const uint4 *row = list_row(l.d, in.operands[MK_SLOT_MLA_REDUCE_work]);
  uint4 head = __ldg(row);
  for (uint32_t base = 0; base < head.y; base += 32) {
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
