/* See mla_cost.h. */
#include "scheduler/mla_cost.h"

const mk_mla_costs mk_mla_default_costs = {
    .item = 5710, .page = 1741, .out_row = 1, .slot_row = 69, .reduction = 1361, .unit = 20};

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t run_items(const mk_mla_geometry *g, const mk_mla_costs *costs, const mk_mla_list *list,
                          const uint32_t *lengths, uint64_t *ready) {
  uint64_t time = 0;
  for (uint32_t i = 0; i < list->items; i++) {
    const mk_mla_item *item = &list->item[i];
    uint32_t pages = mk_mla_pages_of(lengths[item->block / g->blocks]), end = item->end < pages ? item->end : pages;
    bool direct = item->slot == MK_MLA_OUT;
    time += mk_mla_item_cost(costs, g->rows, end > item->first ? end - item->first : 0, direct);
    if (!direct) {
      ready[item->slot] = time;
    }
  }
  return time;
}

uint64_t mk_mla_simulate(const mk_mla_geometry *g, const mk_mla_costs *costs, const uint32_t *work,
                         const uint32_t *lengths, uint64_t *ready) {
  uint64_t last = 0;
  for (uint32_t sm = 0; sm < g->sms; sm++) {
    mk_mla_list list = mk_mla_list_of(work + (size_t)sm * g->list_words);
    (void)run_items(g, costs, &list, lengths, ready);
  }
  for (uint32_t sm = 0; sm < g->sms; sm++) {
    mk_mla_list list = mk_mla_list_of(work + (size_t)sm * g->list_words);
    uint64_t time = run_items(g, costs, &list, lengths, ready);
    for (uint32_t i = 0; i < list.reductions; i++) {
      const mk_mla_reduction *r = &list.reduction[i];
      for (uint32_t s = r->first_slot; s < r->first_slot + r->slots; s++) {
        time = later(time, ready[s]);
      }
      time += i == 0 && mk_mla_folds(&list) ? mk_mla_fold_cost(costs, r->slots, mk_mla_unit_count(r))
                                            : mk_mla_reduction_cost(costs, r->slots, mk_mla_unit_count(r));
    }
    last = later(last, time);
  }
  return last;
}
