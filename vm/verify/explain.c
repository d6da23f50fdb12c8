/* See explain.h. Everything but the critical path is found by looking at all instructions once per question: there are
 * few questions, and no table has to be trusted. */
#include "vm/verify/explain.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "vm/program/disasm.h"
#include "vm/verify/critical_path.h"

enum { MAX_LISTED = 8 };

typedef struct explain {
  mk_verifier v;
  mk_critical_path path;
  uint32_t index;
  const mk_instruction *in;
  const mk_opcode_info *info;
  FILE *out;
  uint32_t listed; /* entries of the list being written */
} explain;

/* One entry of a list: an instruction and, where `note` is not empty, more about it. */
static void list(explain *e, uint32_t index, const char *note) {
  if (e->listed < MAX_LISTED) {
    fprintf(e->out, "%s%s%s", e->listed == 0 ? " " : ", ", mk_place_of(&e->v, index).text, note);
  }
  e->listed++;
}

static void end_list(explain *e, const char *none) {
  if (e->listed == 0) {
    fprintf(e->out, " %s", none);
  } else if (e->listed > MAX_LISTED) {
    fprintf(e->out, " and %u more", e->listed - MAX_LISTED);
  }
  fputc('\n', e->out);
  e->listed = 0;
}

static void tell_queue(explain *e) {
  const mk_queue *q = &e->v.program->queues[e->v.queue_of[e->index]];
  fputs("queue order: every role takes it", e->out);
  if (e->index > q->first) {
    fprintf(e->out, " after its part of %s", mk_place_of(&e->v, e->index - 1).text);
  } else {
    fputs(" first", e->out);
  }
  if (e->index + 1 < q->first + q->count) {
    fprintf(e->out, ", before its part of %s\n", mk_place_of(&e->v, e->index + 1).text);
  } else {
    fputs(", last of the epoch\n", e->out);
  }
  fprintf(e->out, "  loader    %u page%s, loaded ahead as far as the ring of %u is free%s\n", e->in->pages,
          e->in->pages == 1 ? "" : "s", e->v.program->machine.ring_pages,
          mk_opcode_loads_state(e->info) ? "; the KV cache only after the previous epoch's next of this SM" : "");
  fputs("  consumer  after the loader's part of it, and after its waits and stamps\n", e->out);
  fprintf(e->out, "  storer    after the consumer's part of it; later than that by at most %u instructions\n",
          e->v.program->machine.result_slots);
}

/* Whether the counter can reach the threshold although the signals of `queue` from `from` on are missing. */
static bool may_be_missing(const explain *e, uint32_t counter, uint32_t threshold, uint32_t from) {
  const mk_program *p = e->v.program;
  const mk_queue *q = &p->queues[e->v.queue_of[from]];
  uint64_t missing = 0;
  for (uint32_t i = from; i < q->first + q->count; i++) {
    for (uint32_t k = 0; k < p->instructions[i].signal_count; k++) {
      missing += p->instructions[i].signals[k].counter == counter ? p->instructions[i].signals[k].amount : 0;
    }
  }
  return p->counters[counter].total - missing >= threshold;
}

static void list_signallers(explain *e, const mk_wait *wait) {
  const mk_program *p = e->v.program;
  for (uint32_t i = 0; i < p->instruction_count; i++) {
    for (uint32_t k = 0; k < p->instructions[i].signal_count; k++) {
      if (p->instructions[i].signals[k].counter == wait->counter) {
        list(e, i, may_be_missing(e, wait->counter, wait->threshold, i) ? " (may still be missing)" : "");
      }
    }
  }
}

static void tell_waits(explain *e) {
  for (uint32_t k = 0; k < e->in->wait_count; k++) {
    const mk_counter *c = &e->v.program->counters[e->in->waits[k].counter];
    bool release = c->kind == MK_COUNTER_RELEASE;
    fprintf(e->out, "waits for %u of %u on counter %s (%s), signalled by", e->in->waits[k].threshold, c->total, c->name,
            release ? "release" : "relaxed: a hint that orders nothing");
    list_signallers(e, &e->in->waits[k]);
    end_list(e, "nobody");
  }
  if (e->in->wait_count == 0) {
    fputs("waits for no counter\n", e->out);
  }
}

static bool overlaps(const mk_operand *a, const mk_operand *b) {
  return a->buffer == b->buffer && a->row < (uint32_t)b->row + b->rows && b->row < (uint32_t)a->row + a->rows &&
         a->col < (uint32_t)b->col + b->cols && b->col < (uint32_t)a->col + a->cols;
}

/* The operand of that instruction that touches some of these tiles for reading (or else for writing), or NULL. */
static const mk_operand *touches(const mk_instruction *in, const mk_operand *o, bool reads) {
  const mk_opcode_info *info = mk_info(in);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    mk_access access = info->operands[slot].access;
    bool fits = access == MK_ACCESS_UPDATE || (access == MK_ACCESS_READ) == reads;
    if (fits && !mk_operand_empty(&in->operands[slot]) && overlaps(&in->operands[slot], o)) {
      return &in->operands[slot];
    }
  }
  return NULL;
}

/* Lists the other instructions that read (write) some of these tiles, for plain words with whether they come before or
 * after this one. */
static void list_partners(explain *e, const mk_operand *o, bool reads) {
  bool plain = e->v.program->buffers[o->buffer].store != MK_STORE_STAMPED && !e->path.cyclic;
  for (uint32_t i = 0; i < e->v.program->instruction_count; i++) {
    if (i != e->index && touches(mk_at(&e->v, i), o, reads) != NULL) {
      list(e, i, !plain ? "" : e->path.rank[i] < e->path.rank[e->index] ? " (before)" : " (after)");
    }
  }
  end_list(e, "nobody else");
}

static void tell_operand(explain *e, uint32_t slot) {
  const mk_operand *o = &e->in->operands[slot];
  const mk_operand_info *info = &e->info->operands[slot];
  const mk_buffer *b = &e->v.program->buffers[o->buffer];
  static const char *const verbs[] = {"reads", "writes", "reads and appends to"};
  if (info->extent == MK_EXTENT_WHOLE && mk_operand_empty(o)) {
    fprintf(e->out, "%s no %s\n", verbs[info->access], info->name);
    return;
  }
  fprintf(e->out, "%s %s, %s[%u:%u,%u:%u]: ", verbs[info->access], info->name, b->name, o->row, o->row + o->rows,
          o->col, o->col + o->cols);
  if (mk_operand_empty(o)) {
    fputs("empty\n", e->out);
  } else if (mk_constant(b)) {
    fprintf(e->out, "%s, constant\n", mk_kind_name(b->kind));
  } else if (info->access == MK_ACCESS_READ && b->store == MK_STORE_STAMPED) {
    fprintf(e->out, "waits for the stamps%s of",
            info->when == MK_WHEN_USED     ? " (of the rows in use at the position)"
            : info->when == MK_WHEN_LISTED ? " (of the slots that the work list names)"
                                           : "");
    list_partners(e, o, false);
  } else if (info->access == MK_ACCESS_READ) {
    fprintf(e->out, "%s, no stamps; written by", mk_store_name(b->store));
    list_partners(e, o, false);
  } else if (info->access == MK_ACCESS_WRITE && b->store == MK_STORE_STAMPED) {
    fputs("stamped; read by", e->out);
    list_partners(e, o, true);
  } else {
    fprintf(e->out, "%s, no stamps; read by", mk_store_name(b->store));
    list_partners(e, o, true);
    fputs("  also written by", e->out);
    list_partners(e, o, false);
  }
}

static void tell_signals(explain *e) {
  const mk_program *p = e->v.program;
  for (uint32_t k = 0; k < e->in->signal_count; k++) {
    uint32_t counter = e->in->signals[k].counter;
    fprintf(e->out, "signals counter %s by %u, waited for by", p->counters[counter].name, e->in->signals[k].amount);
    for (uint32_t i = 0; i < p->instruction_count; i++) {
      for (uint32_t w = 0; w < p->instructions[i].wait_count; w++) {
        if (p->instructions[i].waits[w].counter == counter) {
          list(e, i, "");
        }
      }
    }
    end_list(e, "nobody");
  }
  if (e->in->signal_count == 0) {
    fputs("signals no counter\n", e->out);
  }
}

static void tell_state(explain *e) {
  const mk_queue *q = &e->v.program->queues[e->v.queue_of[e->index]];
  bool reads = mk_reads_state(&e->v, e->in);
  if (!reads && e->info->state == MK_STATE_NONE) {
    return;
  }
  fprintf(e->out, "%s the step state of its SM", reads ? "reads" : "moves on");
  for (uint32_t i = q->first; i < q->first + q->count && reads; i++) {
    if (mk_info(mk_at(&e->v, i))->state == MK_STATE_WRITE) {
      fprintf(e->out, ", which %s moves on", mk_place_of(&e->v, i).text);
    }
  }
  fputc('\n', e->out);
}

static uint32_t steps(const explain *e, const mk_chain *chains) {
  uint32_t count = 0;
  for (uint32_t i = e->index; chains[i].neighbour != MK_NONE_INDEX; i = chains[i].neighbour) {
    count++;
  }
  return count;
}

static void tell_neighbour(explain *e, const char *what, const mk_chain *chain) {
  const mk_program *p = e->v.program;
  if (chain->neighbour == MK_NONE_INDEX) {
    return;
  }
  fprintf(e->out, "  %s %s, through ", what, mk_place_of(&e->v, chain->neighbour).text);
  if (chain->via == MK_VIA_QUEUE) {
    fputs("queue order\n", e->out);
  } else if (chain->via == MK_VIA_STAMPS) {
    fprintf(e->out, "the stamps of %s\n", p->buffers[chain->through].name);
  } else {
    fprintf(e->out, "counter %s\n", p->counters[chain->through].name);
  }
}

static void tell_path(explain *e) {
  if (e->path.cyclic) {
    fputs("critical path: none, the program deadlocks\n", e->out);
    return;
  }
  const mk_chain *head = &e->path.head[e->index], *tail = &e->path.tail[e->index];
  uint64_t own = mk_chain_cost(e->in), cost = head->cost + own + tail->cost;
  uint32_t before = steps(e, e->path.head), after = steps(e, e->path.tail);
  fprintf(e->out, "critical path: step %u of %u on ", before + 1, before + 1 + after);
  if (cost == e->path.longest) {
    fprintf(e->out, "the longest chain, which costs %" PRIu64, cost);
  } else {
    fprintf(e->out, "the longest chain through it, which costs %" PRIu64 "; the longest of all costs %" PRIu64, cost,
            e->path.longest);
  }
  fprintf(e->out, " (%" PRIu64 " before it, %" PRIu64 " itself, %" PRIu64 " after it)\n", head->cost, own, tail->cost);
  tell_neighbour(e, "after", head);
  tell_neighbour(e, "before", tail);
  fputs(
      "  cost: 1 for an instruction and 1 for each page that it streams at the last position; one epoch; a chain "
      "follows\n"
      "  queue order, stamps and counters\n",
      e->out);
}

static mk_status tell(explain *e) {
  const mk_queue *q = &e->v.program->queues[e->v.queue_of[e->index]];
  fprintf(e->out, "%s, one of %u in its queue\n  ", mk_place_of(&e->v, e->index).text, q->count);
  MK_TRY(mk_disassemble_instruction(e->v.program, e->in, e->out));
  fputc('\n', e->out);
  tell_queue(e);
  tell_waits(e);
  for (uint32_t slot = 0; slot < e->info->operand_count; slot++) {
    tell_operand(e, slot);
  }
  tell_state(e);
  tell_signals(e);
  tell_path(e);
  return ferror(e->out) ? mk_error(MK_ERR_RUNTIME, "the text cannot be written: %s", strerror(errno)) : MK_OK;
}

static mk_status find(explain *e, uint32_t uid) {
  const mk_program *p = e->v.program;
  uint32_t low = UINT32_MAX, high = 0;
  for (uint32_t i = 0; i < p->instruction_count; i++) {
    uint32_t have = p->instructions[i].uid;
    if (have == uid) {
      e->index = i;
      e->in = &p->instructions[i];
      e->info = mk_info(e->in);
      return MK_OK;
    }
    low = have < low ? have : low;
    high = have > high ? have : high;
  }
  return p->instruction_count == 0
             ? mk_error(MK_ERR_USAGE, "no instruction has uid %u; the program has no instructions", uid)
             : mk_error(MK_ERR_USAGE,
                        "no instruction has uid %u; the program's %zu instructions have uids from %u to %u", uid,
                        p->instruction_count, low, high);
}

static mk_status explain_program(explain *e, uint32_t uid) {
  MK_TRY(mk_verify_structure(&e->v));
  MK_TRY(mk_verify_shares(&e->v));
  MK_TRY(mk_verify_access(&e->v));
  MK_TRY(find(e, uid));
  MK_TRY(mk_critical_path_find(&e->v, &e->path));
  MK_TRY(tell(e));
  return mk_verify_order(&e->v);
}

mk_status mk_explain(const mk_program *program, uint32_t uid, FILE *out) {
  explain e = {.v = {.program = program}, .out = out};
  mk_status status = explain_program(&e, uid);
  mk_critical_path_free(&e.path);
  mk_verify_free(&e.v);
  return status;
}
