/* Edits about order: edges, and the places of instructions. See edits.h. */
#include <string.h>

#include "tests/mutation/edits.h"

static bool class_drop_wait(mk_program *p, uint64_t *random) { return mutation_apply(p, MUTATION_drop_wait, random); }
static bool class_move_wait(mk_program *p, uint64_t *random) { return mutation_apply(p, MUTATION_move_wait, random); }
static bool class_lower(mk_program *p, uint64_t *random) { return mutation_apply(p, MUTATION_lower_threshold, random); }
static bool class_swap(mk_program *p, uint64_t *random) { return mutation_apply(p, MUTATION_swap_entries, random); }
static bool class_drop_signal(mk_program *p, uint64_t *random) {
  return mutation_apply(p, MUTATION_drop_signal, random);
}
static bool class_double(mk_program *p, uint64_t *random) { return mutation_apply(p, MUTATION_double_signal, random); }
static bool class_counter(mk_program *p, uint64_t *random) {
  return mutation_apply(p, MUTATION_change_counter, random);
}
static bool class_relax(mk_program *p, uint64_t *random) {
  return mutation_apply(p, MUTATION_release_to_relaxed, random);
}

/* A random instruction; half of the time one of the last of its queue, about the token boundary. */
static uint32_t any_index(const mk_program *p, uint64_t *random) {
  const mk_queue *q = &p->queues[mutation_draw(random, (uint32_t)p->queue_count)];
  if (q->count == 0 || mutation_draw(random, 2) == 0) {
    return mutation_draw(random, (uint32_t)p->instruction_count);
  }
  uint32_t last = q->count < 4 ? q->count : 4;
  return q->first + q->count - 1 - mutation_draw(random, last);
}

/* An edge from one instruction to another, over a new counter or an old one. */
static bool add_edge(mk_program *p, uint64_t *random) {
  mk_instruction *from = &p->instructions[any_index(p, random)], *to = &p->instructions[any_index(p, random)];
  uint16_t counter = (uint16_t)edit_draw(random, (uint32_t)p->counter_count);
  if (from == to || from->signal_count == MK_MAX_SIGNALS || to->wait_count == MK_MAX_WAITS) {
    return false;
  }
  bool fresh = p->counter_count == 0 || mutation_draw(random, 3) == 0;
  mk_counter_kind kind = mutation_draw(random, 6) == 0 ? MK_COUNTER_RELAXED : MK_COUNTER_RELEASE;
  if (fresh && mk_program_add_counter(p, "edge", kind, &counter) != MK_OK) {
    return false;
  }
  uint32_t amount = 1 + mutation_draw(random, 2), total = p->counters[counter].total += amount;
  from->signals[from->signal_count++] = (mk_signal){.counter = counter, .amount = (uint16_t)amount};
  to->waits[to->wait_count++] =
      (mk_wait){.counter = counter,
                .threshold = (uint16_t)(mutation_draw(random, 4) == 0 ? 1 + mutation_draw(random, total) : total)};
  return true;
}

/* Some instructions tell another one, and that tells the `next`s of some SMs that it has heard: an epoch's way of its
 * own, beside the token boundary. */
static bool add_fence(mk_program *p, uint64_t *random) {
  uint16_t counter, heard;
  mk_instruction *waiter = &p->instructions[any_index(p, random)];
  if (waiter->wait_count == MK_MAX_WAITS || waiter->signal_count == MK_MAX_SIGNALS ||
      mk_program_add_counter(p, "fence", MK_COUNTER_RELEASE, &counter) != MK_OK ||
      mk_program_add_counter(p, "heard", MK_COUNTER_RELEASE, &heard) != MK_OK) {
    return false;
  }
  uint32_t total = 0;
  for (uint32_t i = 1 + mutation_draw(random, 3); i != 0; i--) {
    mk_instruction *from = &p->instructions[any_index(p, random)];
    if (from != waiter && from->signal_count < MK_MAX_SIGNALS) {
      from->signals[from->signal_count++] = (mk_signal){.counter = counter, .amount = 1};
      total++;
    }
  }
  p->counters[counter].total = total;
  waiter->waits[waiter->wait_count++] = (mk_wait){.counter = counter, .threshold = (uint16_t)total};
  waiter->signals[waiter->signal_count++] = (mk_signal){.counter = heard, .amount = 1};
  p->counters[heard].total = 1;
  bool listens = false;
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_instruction *in = &p->instructions[i];
    if (in->opcode == MK_OP_NEXT && in->wait_count < MK_MAX_WAITS && mutation_draw(random, 2) == 0) {
      in->waits[in->wait_count++] = (mk_wait){.counter = heard, .threshold = 1};
      listens = true;
    }
  }
  return total != 0 && listens;
}

static bool add_signal(mk_program *p, uint64_t *random) {
  mk_instruction *in = &p->instructions[any_index(p, random)];
  if (p->counter_count == 0 || in->signal_count == MK_MAX_SIGNALS) {
    return false;
  }
  in->signals[in->signal_count++] =
      (mk_signal){.counter = (uint16_t)mutation_draw(random, (uint32_t)p->counter_count), .amount = 1};
  return true;
}

static bool add_wait(mk_program *p, uint64_t *random) {
  mk_instruction *in = &p->instructions[any_index(p, random)];
  if (p->counter_count == 0 || in->wait_count == MK_MAX_WAITS) {
    return false;
  }
  uint16_t counter = (uint16_t)mutation_draw(random, (uint32_t)p->counter_count);
  uint32_t total = p->counters[counter].total;
  in->waits[in->wait_count++] =
      (mk_wait){.counter = counter,
                .threshold = (uint16_t)(mutation_draw(random, 3) != 0 ? total : 1 + edit_draw(random, total))};
  return total != 0;
}

static bool swap_edges(mk_program *p, uint64_t *random) {
  mk_instruction *a = &p->instructions[any_index(p, random)], *b = &p->instructions[any_index(p, random)];
  if (mutation_draw(random, 2) == 0) {
    if (a->wait_count == 0 || b->wait_count == 0) {
      return false;
    }
    mk_wait *x = &a->waits[mutation_draw(random, a->wait_count)], *y = &b->waits[mutation_draw(random, b->wait_count)];
    mk_wait kept = *x;
    *x = *y;
    *y = kept;
    return x != y;
  }
  if (a->signal_count == 0 || b->signal_count == 0) {
    return false;
  }
  mk_signal *x = &a->signals[mutation_draw(random, a->signal_count)],
            *y = &b->signals[mutation_draw(random, b->signal_count)];
  mk_signal kept = *x;
  *x = *y;
  *y = kept;
  return x != y;
}

static bool move_signal(mk_program *p, uint64_t *random) {
  mk_instruction *a = &p->instructions[any_index(p, random)], *b = &p->instructions[any_index(p, random)];
  if (a == b || a->signal_count == 0 || b->signal_count == MK_MAX_SIGNALS) {
    return false;
  }
  b->signals[b->signal_count++] = a->signals[--a->signal_count];
  a->signals[a->signal_count] = (mk_signal){0};
  return true;
}

/* Within the queue, by a few places. */
static bool move_near(mk_program *p, uint64_t *random) {
  uint32_t index = any_index(p, random), q = edit_queue_of(p, index), at = index - p->queues[q].first;
  uint32_t to = at + mutation_draw(random, 5);
  if (to < 2 || to - 2 == at || to - 2 >= p->queues[q].count) {
    return false;
  }
  edit_move(p, index, q, to - 2);
  return true;
}

/* Right after the head of its queue, or right before the `next`: there nothing tells that it has run. */
static bool move_after_head(mk_program *p, uint64_t *random) {
  uint32_t index = mutation_draw(random, (uint32_t)p->instruction_count), q = edit_queue_of(p, index);
  const mk_queue *queue = &p->queues[q];
  bool last = mutation_draw(random, 2) == 0;
  for (uint32_t i = index + 1; i < queue->first + queue->count; i++) {
    if (p->instructions[i].opcode == (last ? MK_OP_NEXT : MK_OP_HEAD)) {
      edit_move(p, index, q, i - queue->first - last);
      return true;
    }
  }
  return false;
}

static bool move_to_queue(mk_program *p, uint64_t *random) {
  uint32_t index = mutation_draw(random, (uint32_t)p->instruction_count), from = edit_queue_of(p, index);
  uint32_t to = mutation_draw(random, (uint32_t)p->queue_count), opcode = p->instructions[index].opcode;
  if (to == from || (opcode == MK_OP_NEXT && mutation_draw(random, 8) != 0)) {
    return false;
  }
  /* About as far from the beginning as it was. */
  uint32_t at =
      (index - p->queues[from].first) * p->queues[to].count / p->queues[from].count + mutation_draw(random, 3);
  edit_move(p, index, to, at == 0 ? 0 : at - 1);
  return true;
}

static bool strengthen(mk_program *p, uint64_t *random) {
  mk_counter *c = &p->counters[edit_draw(random, (uint32_t)p->counter_count)];
  if (p->counter_count == 0 || c->kind == MK_COUNTER_RELEASE) {
    return false;
  }
  c->kind = MK_COUNTER_RELEASE;
  return true;
}

/* Two counters become one. */
static bool merge_counters(mk_program *p, uint64_t *random) {
  uint32_t a = edit_draw(random, (uint32_t)p->counter_count), b = edit_draw(random, (uint32_t)p->counter_count);
  if (a == b) {
    return false;
  }
  uint32_t total = p->counters[a].total + p->counters[b].total;
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_instruction *in = &p->instructions[i];
    for (uint32_t w = 0; w < in->wait_count; w++) {
      bool whole = in->waits[w].threshold == p->counters[in->waits[w].counter].total;
      if (in->waits[w].counter == a || in->waits[w].counter == b) {
        in->waits[w] = (mk_wait){.counter = (uint16_t)a, .threshold = whole ? (uint16_t)total : in->waits[w].threshold};
      }
    }
    for (uint32_t s = 0; s < in->signal_count; s++) {
      in->signals[s].counter = in->signals[s].counter == b ? (uint16_t)a : in->signals[s].counter;
    }
  }
  p->counters[a].total = total;
  return true;
}

const edit edit_orders[] = {
    {"drop_wait", class_drop_wait, 4, true},
    {"move_wait", class_move_wait, 4, true},
    {"lower_threshold", class_lower, 4, true},
    {"swap_entries", class_swap, 4, true},
    {"drop_signal", class_drop_signal, 3, true},
    {"double_signal", class_double, 2, true},
    {"change_counter", class_counter, 3, true},
    {"release_to_relaxed", class_relax, 2, true},
    {"add_edge", add_edge, 6, true},
    {"add_fence", add_fence, 5, true},
    {"add_signal", add_signal, 3, true},
    {"add_wait", add_wait, 3, true},
    {"swap_edges", swap_edges, 2, true},
    {"move_signal", move_signal, 3, true},
    {"move_near", move_near, 5, true},
    {"move_after_head", move_after_head, 5, true},
    {"move_to_queue", move_to_queue, 4, true},
    {"strengthen", strengthen, 1, true},
    {"merge_counters", merge_counters, 2, true},
};
const size_t edit_order_count = sizeof edit_orders / sizeof edit_orders[0];
