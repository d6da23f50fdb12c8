/* Which unit of attention has which tokens of a slot.
 *
 * A KV head has units 0 to units - 1, a row of its cache each (MK_STORE_BLOCKS, program.h). Tokens come in spans
 * (mk_buffer.span_tokens), and neighbouring spans of a slot go to neighbouring units, round and round. Where span 0
 * goes follows from the slot alone: the numbers of slots are taken with their bits in reverse, so that slots 0 to n - 1
 * begin as far apart as n slots can, if n is a power of two. Were they to begin one after the other, the spans of few
 * slots would meet in few units, and the other SMs would wait for these. Slots from MK_MAX_ROWS on begin where the
 * first ones do. */
#ifndef MK_SPANS_H
#define MK_SPANS_H

#include "vm/program/program.h"

/* The unit that has span 0 of a slot. */
MK_HOST_DEVICE static inline uint32_t mk_first_unit(uint32_t slot, uint32_t units) {
  const uint32_t reversed = (slot & 1) << 3 | (slot & 2) << 1 | (slot >> 1 & 2) | (slot >> 3 & 1);
  return reversed * units / MK_MAX_ROWS;
}
MK_STATIC_ASSERT(MK_MAX_ROWS == 1 << 4, "four bits are reversed");

/* The unit that has span `span` of a slot. */
static inline uint32_t mk_unit_of(uint32_t span, uint32_t slot, uint32_t units) {
  return (span + mk_first_unit(slot, units)) % units;
}

/* The other way round: unit `unit` has spans split, split + units, split + 2 units, ... of a slot, which this gives. */
MK_HOST_DEVICE static inline uint32_t mk_split_of(uint32_t unit, uint32_t slot, uint32_t units) {
  const uint32_t first = mk_first_unit(slot, units);
  return unit >= first ? unit - first : unit + units - first;
}

#endif
