/* What the work of an MLA batch costs on an SM, and how long a work list takes by that: the one place for such figures,
 * so that placements can be compared and measured constants have one home.
 *
 * Plain data; any thread. mk_mla_simulate allocates nothing. */
#ifndef MK_MLA_COST_H
#define MK_MLA_COST_H

#include "instructions/mla.h"

/* Nanoseconds. The defaults are what `mkvm bench --mla-costs` says on an H200. */
typedef struct mk_mla_costs {
  uint32_t item;      /* an item by itself: its queries, the first page's latency, the last one's drain */
  uint32_t page;      /* a page of 64 tokens */
  uint32_t out_row;   /* an output row, bf16 */
  uint32_t slot_row;  /* a row of a partial slot */
  uint32_t reduction; /* a reduction by itself: the hop from the last part, and its start */
  uint32_t unit;      /* 128 columns of one row of one slot */
} mk_mla_costs;

extern const mk_mla_costs mk_mla_default_costs;

/* The cost of an item of `pages` pages (0 for a sequence without tokens), and that of a reduction of `units` units from
 * `slots` slots. */
static inline uint64_t mk_mla_item_cost(const mk_mla_costs *c, uint32_t rows, uint32_t pages, bool direct) {
  return c->item + (uint64_t)pages * c->page + (uint64_t)rows * (direct ? c->out_row : c->slot_row);
}
static inline uint64_t mk_mla_reduction_cost(const mk_mla_costs *c, uint32_t slots, uint32_t units) {
  return c->reduction + (uint64_t)slots * units * c->unit;
}
/* The cost of a reduction that is folded into an item (mk_mla_folds): the rows that it reduces are neither written to
 * the item's own slot nor read from there. */
static inline uint64_t mk_mla_fold_cost(const mk_mla_costs *c, uint32_t slots, uint32_t units) {
  uint64_t cost = mk_mla_reduction_cost(c, slots - 1, units),
           saved = (uint64_t)(units / MK_MLA_ROW_UNITS) * c->slot_row;
  return cost > saved ? cost - saved : 0;
}

static inline uint32_t mk_mla_pages_of(uint32_t length) {
  return length / MK_MLA_PAGE_TOKENS + (length % MK_MLA_PAGE_TOKENS != 0);
}

/* Nanoseconds until the last SM is done with a list that the checker has passed: items in their order, then reductions,
 * each as soon as all parts of its block are there. `lengths` by sequence; `ready` is room for a time per slot. */
uint64_t mk_mla_simulate(const mk_mla_geometry *geometry, const mk_mla_costs *costs, const uint32_t *work,
                         const uint32_t *lengths, uint64_t *ready);

#endif
