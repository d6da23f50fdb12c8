// How a GPU keeps a unit of a partial slot (mla.h): 24 stamped triples of words. The unit has 64 words of data. Word 4
// w + t goes to column t of a product's quad of threads, so each thread of the quad has sixteen words w. A thread
// stores them as triples g = 0 .. 5, words w = 3 g to 3 g + 2; after word 15 come the logarithm and the power of two.
// So each thread stores 16 bytes at a time, and the four threads of a quad 64 bytes side by side.
#pragma once
#include "instructions/mla.h"
#include "vm/gpu/device.cuh"

namespace mk {

enum { SLOT_GROUPS = 6, SLOT_TRIPLES = SLOT_GROUPS * 4 };
static_assert(SLOT_TRIPLES * 16 <= MK_MLA_UNIT_WORDS * 8, "a unit has its place");

struct slot_unit {
  uint8_t *address;
  __device__ void *at(uint32_t triple) const { return address + triple * 16; }
};

// Unit `unit` of a slot; units are counted through all rows of the slot.
__device__ inline slot_unit unit_in(const mk_gpu_buffer &parts, uint32_t slot, uint32_t unit) {
  return {tile::global<uint8_t>(parts.address) + static_cast<uint64_t>(slot) * parts.row_words * 8 +
          unit * (SLOT_TRIPLES * 16)};
}

}  // namespace mk
