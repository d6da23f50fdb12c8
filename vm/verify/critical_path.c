/* See critical_path.h. Nodes are the instructions, then the groups of stamped readers, then one node for every
 * (counter, threshold) that is waited for: with those in between, edges stay proportional to the program. */
#include "vm/verify/critical_path.h"

#include <stdlib.h>

typedef struct user { /* of a counter */
  uint32_t counter, instruction, amount;
} user;

typedef struct edge {
  uint32_t from, to;
} edge;

typedef struct finder {
  const mk_verifier *v;
  uint32_t instructions, groups, nodes;
  edge *edges;
  size_t edge_count, edge_capacity;
  user *signals, *waits;
  size_t signal_count, wait_count;
  size_t *first;         /* node -> its edges in `edges`, once they are sorted; one more at the end */
  uint32_t *missing;     /* node -> edges into it that have not been walked */
  uint32_t *order;       /* nodes, sorted so that all edges go forward */
  mk_chain *head, *tail; /* per node; neighbours are nodes */
  uint32_t *counter_of;  /* node - instructions - groups -> counter */
  size_t counter_of_capacity;
} finder;

static mk_status add_edge(finder *f, uint32_t from, uint32_t to) {
  MK_TRY(mk_grow(&f->edges, &f->edge_capacity, f->edge_count + 1, sizeof *f->edges));
  f->edges[f->edge_count++] = (edge){from, to};
  return MK_OK;
}

static int by_instruction(const void *a, const void *b) {
  const user *x = a, *y = b;
  if (x->counter != y->counter) {
    return x->counter < y->counter ? -1 : 1;
  }
  return x->instruction < y->instruction ? -1 : x->instruction > y->instruction;
}

static int by_amount(const void *a, const void *b) {
  const user *x = a, *y = b;
  if (x->counter != y->counter) {
    return x->counter < y->counter ? -1 : 1;
  }
  return x->amount < y->amount ? -1 : x->amount > y->amount;
}

static mk_status collect_users(finder *f) {
  const mk_program *p = f->v->program;
  MK_TRY(mk_alloc(f->v->report.signals, sizeof *f->signals, &f->signals));
  MK_TRY(mk_alloc(f->v->report.waits, sizeof *f->waits, &f->waits));
  for (uint32_t i = 0; i < f->instructions; i++) {
    const mk_instruction *in = &p->instructions[i];
    for (uint32_t k = 0; k < in->signal_count; k++) {
      f->signals[f->signal_count++] = (user){in->signals[k].counter, i, in->signals[k].amount};
    }
    for (uint32_t k = 0; k < in->wait_count; k++) {
      f->waits[f->wait_count++] = (user){in->waits[k].counter, i, in->waits[k].threshold};
    }
  }
  if (f->signal_count != 0) {
    qsort(f->signals, f->signal_count, sizeof *f->signals, by_instruction);
  }
  if (f->wait_count != 0) {
    qsort(f->waits, f->wait_count, sizeof *f->waits, by_amount);
  }
  return MK_OK;
}

/* Adds an edge from each queue's last signal without which the counter cannot reach the threshold. The queue orders its
 * earlier signals before that one. */
static mk_status add_signals(finder *f, size_t first, size_t end, uint32_t threshold, uint32_t node) {
  for (size_t i = end; i > first;) {
    uint32_t queue = f->v->queue_of[f->signals[i - 1].instruction], left_out = 0;
    uint32_t total = f->v->program->counters[f->signals[i - 1].counter].total;
    bool found = false;
    for (; i > first && f->v->queue_of[f->signals[i - 1].instruction] == queue; i--) {
      left_out += f->signals[i - 1].amount;
      if (!found && total - left_out < threshold) {
        MK_TRY(add_edge(f, f->signals[i - 1].instruction, node));
        found = true;
      }
    }
  }
  return MK_OK;
}

static mk_status add_counters(finder *f) {
  MK_TRY(collect_users(f));
  size_t first = 0, end = 0;
  for (size_t i = 0; i < f->wait_count; i++) {
    const user *wait = &f->waits[i];
    if (i == 0 || by_amount(wait, wait - 1) != 0) {
      for (; first < f->signal_count && f->signals[first].counter < wait->counter; first++) {
      }
      for (end = end < first ? first : end; end < f->signal_count && f->signals[end].counter == wait->counter; end++) {
      }
      uint32_t made = f->nodes - f->instructions - f->groups;
      MK_TRY(mk_grow(&f->counter_of, &f->counter_of_capacity, (size_t)made + 1, sizeof *f->counter_of));
      f->counter_of[made] = wait->counter;
      MK_TRY(add_signals(f, first, end, wait->amount, f->nodes++));
    }
    MK_TRY(add_edge(f, f->nodes - 1, wait->instruction));
  }
  return MK_OK;
}

static mk_status add_queues_and_stamps(finder *f) {
  const mk_verifier *v = f->v;
  for (uint32_t i = 0; i < f->instructions; i++) {
    const mk_instruction *in = mk_at(v, i);
    const mk_opcode_info *info = mk_info(in);
    if (i + 1 < f->instructions && v->queue_of[i] == v->queue_of[i + 1]) {
      MK_TRY(add_edge(f, i, i + 1));
    }
    for (uint32_t slot = 0; slot < info->operand_count; slot++) {
      const uint32_t group = *mk_link_of(v, i, slot);
      if (group != MK_NONE_INDEX && info->operands[slot].access == MK_ACCESS_READ &&
          v->program->buffers[in->operands[slot].buffer].store == MK_STORE_STAMPED) {
        MK_TRY(add_edge(f, f->instructions + group, i));
      }
    }
  }
  for (size_t w = 0; w < v->write_count; w++) {
    for (uint32_t t = 0; t < v->writes[w].group_count; t++) {
      uint32_t group = v->targets[v->writes[w].first_group + t].group;
      MK_TRY(add_edge(f, v->writes[w].instruction, f->instructions + group));
    }
  }
  return MK_OK;
}

/* Edges by the node that they leave, in place of the list. */
static mk_status sort_edges(finder *f) {
  edge *sorted;
  MK_TRY(mk_alloc((size_t)f->nodes + 1, sizeof *f->first, &f->first));
  MK_TRY(mk_alloc(f->nodes, sizeof *f->missing, &f->missing));
  MK_TRY(mk_alloc(f->edge_count, sizeof *sorted, &sorted));
  for (size_t e = 0; e < f->edge_count; e++) {
    f->first[f->edges[e].from]++;
    f->missing[f->edges[e].to]++;
  }
  size_t sum = 0;
  for (uint32_t n = 0; n <= f->nodes; n++) {
    sum += f->first[n];
    f->first[n] = sum;
  }
  for (size_t e = f->edge_count; e-- > 0;) {
    sorted[--f->first[f->edges[e].from]] = f->edges[e];
  }
  mk_free(f->edges);
  f->edges = sorted;
  return MK_OK;
}

static uint64_t cost_of(const finder *f, uint32_t node) {
  return node < f->instructions ? mk_chain_cost(mk_at(f->v, node)) : 0;
}

/* True when some nodes cannot be put in order. */
static bool sort_nodes(finder *f) {
  uint32_t ready = 0;
  for (uint32_t n = 0; n < f->nodes; n++) {
    if (f->missing[n] == 0) {
      f->order[ready++] = n;
    }
  }
  for (uint32_t done = 0; done < ready; done++) {
    uint32_t node = f->order[done];
    for (size_t e = f->first[node]; e < f->first[node + 1]; e++) {
      if (--f->missing[f->edges[e].to] == 0) {
        f->order[ready++] = f->edges[e].to;
      }
    }
  }
  return ready != f->nodes;
}

static void extend(mk_chain *chain, uint32_t neighbour, uint64_t cost) {
  if (chain->neighbour == MK_NONE_INDEX || cost > chain->cost) {
    *chain = (mk_chain){.cost = cost, .neighbour = neighbour};
  }
}

static void walk(finder *f) {
  for (uint32_t n = 0; n < f->nodes; n++) {
    f->head[n].neighbour = f->tail[n].neighbour = MK_NONE_INDEX;
  }
  for (uint32_t i = 0; i < f->nodes; i++) {
    uint32_t from = f->order[i];
    for (size_t e = f->first[from]; e < f->first[from + 1]; e++) {
      extend(&f->head[f->edges[e].to], from, f->head[from].cost + cost_of(f, from));
    }
  }
  for (uint32_t i = f->nodes; i-- > 0;) {
    uint32_t from = f->order[i];
    for (size_t e = f->first[from]; e < f->first[from + 1]; e++) {
      uint32_t to = f->edges[e].to;
      extend(&f->tail[from], to, f->tail[to].cost + cost_of(f, to));
    }
  }
}

/* The chain of an instruction, with the node between two instructions turned into the way they are tied. */
static mk_chain resolve(const finder *f, const mk_chain *chains, uint32_t instruction) {
  mk_chain chain = chains[instruction];
  uint32_t node = chain.neighbour;
  if (node == MK_NONE_INDEX) {
    return chain;
  }
  chain.via = MK_VIA_QUEUE;
  if (node >= f->instructions + f->groups) {
    chain.via = MK_VIA_COUNTER;
    chain.through = f->counter_of[node - f->instructions - f->groups];
  } else if (node >= f->instructions) {
    chain.via = MK_VIA_STAMPS;
    chain.through = f->v->groups[node - f->instructions].where.buffer;
  }
  if (chain.via != MK_VIA_QUEUE) {
    chain.neighbour = chains[node].neighbour;
  }
  return chain;
}

static mk_status find(finder *f, mk_critical_path *out) {
  MK_TRY(add_queues_and_stamps(f));
  MK_TRY(add_counters(f));
  MK_TRY(sort_edges(f));
  MK_TRY(mk_alloc(f->nodes, sizeof *f->order, &f->order));
  MK_TRY(mk_alloc(f->nodes, sizeof *f->head, &f->head));
  MK_TRY(mk_alloc(f->nodes, sizeof *f->tail, &f->tail));
  MK_TRY(mk_alloc(f->instructions, sizeof *out->rank, &out->rank));
  MK_TRY(mk_alloc(f->instructions, sizeof *out->head, &out->head));
  MK_TRY(mk_alloc(f->instructions, sizeof *out->tail, &out->tail));
  out->cyclic = sort_nodes(f);
  if (out->cyclic) {
    return MK_OK;
  }
  walk(f);
  for (uint32_t n = 0; n < f->nodes; n++) {
    if (f->order[n] < f->instructions) {
      out->rank[f->order[n]] = n;
    }
  }
  for (uint32_t i = 0; i < f->instructions; i++) {
    out->head[i] = resolve(f, f->head, i);
    out->tail[i] = resolve(f, f->tail, i);
    uint64_t cost = out->head[i].cost + cost_of(f, i) + out->tail[i].cost;
    out->longest = cost > out->longest ? cost : out->longest;
  }
  return MK_OK;
}

mk_status mk_critical_path_find(const mk_verifier *v, mk_critical_path *out) {
  uint32_t instructions = (uint32_t)v->program->instruction_count, groups = (uint32_t)v->group_count;
  finder f = {.v = v, .instructions = instructions, .groups = groups, .nodes = instructions + groups};
  *out = (mk_critical_path){0};
  mk_status status = find(&f, out);
  mk_free(f.edges);
  mk_free(f.signals);
  mk_free(f.waits);
  mk_free(f.first);
  mk_free(f.missing);
  mk_free(f.order);
  mk_free(f.head);
  mk_free(f.tail);
  mk_free(f.counter_of);
  if (status != MK_OK) {
    mk_critical_path_free(out);
  }
  return status;
}

void mk_critical_path_free(mk_critical_path *path) {
  mk_free(path->rank);
  mk_free(path->head);
  mk_free(path->tail);
  *path = (mk_critical_path){0};
}
