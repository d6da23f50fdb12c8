// The loader: streams weights and KV blocks into the page ring, in queue order, as far ahead as the ring reaches. It
// never waits for activations. One lane does it all.
//
// The ring is deep, so that weights are there when a stage begins. The copies under way are few, because whatever an SM
// reads has to wait for its own copies: with a full ring of them a look at another SM's value took 5 us. For the same
// reason weights are paced: copies in a burst, when a stage has made room, delay the values that the next stage waits
// for. KV blocks are not paced: while they stream, nobody waits for anything else (docs/results/decode.md).
#pragma once
#include "instructions/tile/copy.cuh"
#include "vm/gpu/strips.cuh"
#include "vm/gpu/wait.cuh"

namespace mk {

enum {
  PAGES_UNDER_WAY = MK_GPU_ROWS ? 0 + MK_GPU_ROWS_PAGES_UNDER_WAY : 0 + MK_GPU_PAGES_UNDER_WAY,
  COPY_TICKS = MK_GPU_ROWS ? 0 + MK_GPU_ROWS_COPY_TICKS : 0 + MK_GPU_COPY_TICKS,
};

// Whether the L2 lets go of weights first. Then values, code and the KV cache stay in it, which is worth most where a
// layer has few weights (docs/results/decode.md). With several rows it costs 8B 1.6 % (docs/results/batch.md); with
// several ranks or quantised weights nobody has measured it.
constexpr bool WEIGHTS_PASS = !MK_GPU_ROWS && !MK_GPU_RANKS && !MK_GPU_QUANTISED;

struct loader {
  device d;
  ring_cursor<MK_GPU_RING_PAGES> pages, landing;  // landing: the oldest page that may still be under way
  uint32_t issued = 0;                            // pages since the launch began
  uint32_t last_copy = 0;                         // when the last copy of weights was issued, in clock ticks
  uint64_t policy = WEIGHTS_PASS ? tile::let_go_first() : 0;
};

// `landing` begins PAGES_UNDER_WAY pages before the first page, in an imagined round of the ring in which all pages
// count as full: so the first copies wait for none.
__device__ inline loader make_loader(const device &d) {
  loader l{d};
  l.landing.at = (MK_GPU_RING_PAGES - PAGES_UNDER_WAY) | 0x80000000u;
  return l;
}

// Waits until COPY_TICKS have passed since the last copy of weights.
__device__ __forceinline__ void pace_copy(loader &l) {
  uint32_t now;
  do {
    now = tile::clock_low();
  } while (now - l.last_copy < COPY_TICKS);
  l.last_copy = now;
}

static_assert(MK_GPU_KV_PAGES_UNDER_WAY == MK_GPU_PAGES_UNDER_WAY - 1, "load_page waits for one page more");

// Fills the next page with `bytes` from global memory. False: all roles are to leave. First it waits until the
// consumers have emptied the page, then until an older page has arrived, so that no more pages are under way than
// should be: PAGES_UNDER_WAY of weights, one less of KV. Each phase is tested before it is waited for, so that a page
// that need not wait takes few branches. KV pages are whole, and each is one copy. `idle`: so many of the sixteen that
// empty a page do not come, and the loader takes their part. `paced`: whether copies of weights wait for their turn.
__device__ __forceinline__ bool load_page(loader &l, const uint8_t *from, uint32_t bytes, bool kv, uint32_t idle = 0,
                                          bool paced = true) {
  uint32_t slot = l.pages.slot(), full = l.d.barrier(PAGE_FULL + slot), parity = l.pages.phase() ^ 1;
  if (!tile::test_wait(l.d.barrier(PAGE_EMPTY + slot), parity)) {
    if (!wait_phase<true>(l.d, PAGE_EMPTY + slot, parity, MK_ACTIVITY_PAGE_EMPTY, slot)) {
      return false;
    }
  }
  ring_cursor<MK_GPU_RING_PAGES> landing = l.landing;
  l.landing.next();
  if (kv) {
    landing = l.landing;
  }
  if (!tile::test_wait(l.d.barrier(PAGE_FULL + landing.slot()), landing.phase())) {
    wait_phase<true>(l.d, PAGE_FULL + landing.slot(), landing.phase(), MK_ACTIVITY_PAGE_FULL, landing.slot());
  }
  tile::fence_shared_for_copies();  // the consumers' reads came before, as the barrier says
  bool copies = (l.d.params.left_out & MK_GPU_PART_COPIES) == 0;
  tile::arrive_expect(full, copies ? bytes : 0);
  if (idle != 0) {
    tile::arrive(l.d.barrier(PAGE_EMPTY + slot), idle);
  }
  uint32_t to = tile::shared_address(l.d.page(slot));
  if (kv) {
    if (copies) {
      tile::bulk_load(to, from, bytes, full);
    }
  } else {
#pragma unroll
    for (uint32_t at = 0; at < MK_GPU_PAGE_BYTES; at += MK_GPU_COPY_BYTES) {
      if (copies && at < bytes) {
        if (paced) {
          pace_copy(l);
        }
        uint32_t count = min(bytes - at, static_cast<uint32_t>(MK_GPU_COPY_BYTES));
        if constexpr (WEIGHTS_PASS) {
          tile::bulk_load(to + at, from + at, count, full, l.policy);
        } else {
          tile::bulk_load(to + at, from + at, count, full);
        }
      }
    }
  }
  l.pages.next();
  l.issued++;
  return true;
}

// Waits for the last fill of every slot: no block may end while copies into its shared memory are under way. Copies
// always arrive, so this needs no deadline.
__device__ inline void drain_copies(const loader &l) {
  uint32_t fills = l.issued < MK_GPU_RING_PAGES ? l.issued : MK_GPU_RING_PAGES;
  for (uint32_t i = 1; i <= fills; i++) {
    uint32_t fill = l.issued - i;
    while (!tile::try_wait(l.d.barrier(PAGE_FULL + fill % MK_GPU_RING_PAGES), fill / MK_GPU_RING_PAGES % 2)) {
    }
  }
}

}  // namespace mk
