/* The classes of mutants. See mutation.h. */
#include "tests/mutation/mutation.h"

#include <string.h>

const mutation_info mutation_infos[MUTATION_CLASSES] = {
#define MUTATION(name, order) {#name, order},
    MUTATIONS(MUTATION)
#undef MUTATION
};

enum { TRIES = 200 };

static mk_instruction *any_instruction(mk_program *p, uint64_t *random) {
  return &p->instructions[mutation_draw(random, (uint32_t)p->instruction_count)];
}

static const mk_queue *queue_of(const mk_program *p, const mk_instruction *in) {
  uint32_t index = (uint32_t)(in - p->instructions), q = 0;
  while (index < p->queues[q].first || index >= p->queues[q].first + p->queues[q].count) {
    q++;
  }
  return &p->queues[q];
}

/* An instruction with a wait, of a release counter in two of three tries; *which is its number. */
static mk_instruction *any_wait(mk_program *p, uint64_t *random, uint32_t *which) {
  bool release = mutation_draw(random, 3) != 0;
  for (uint32_t i = 0; i < TRIES; i++) {
    mk_instruction *in = any_instruction(p, random);
    if (in->wait_count != 0) {
      *which = mutation_draw(random, in->wait_count);
      if (!release || p->counters[in->waits[*which].counter].kind == MK_COUNTER_RELEASE) {
        return in;
      }
    }
  }
  return NULL;
}

static mk_instruction *any_signal(mk_program *p, uint64_t *random, uint32_t *which) {
  bool release = mutation_draw(random, 3) != 0;
  for (uint32_t i = 0; i < TRIES; i++) {
    mk_instruction *in = any_instruction(p, random);
    if (in->signal_count != 0) {
      *which = mutation_draw(random, in->signal_count);
      if (!release || p->counters[in->signals[*which].counter].kind == MK_COUNTER_RELEASE) {
        return in;
      }
    }
  }
  return NULL;
}

static mk_wait take_wait(mk_instruction *in, uint32_t which) {
  mk_wait wait = in->waits[which];
  in->waits[which] = in->waits[--in->wait_count];
  in->waits[in->wait_count] = (mk_wait){0};
  return wait;
}

/* Totals follow the signals. Thresholds that a total does not reach any more are lowered to it, and in half of the
 * cases those that asked for all of a total that has grown still ask for all. */
static void reseal(mk_program *p, uint64_t *random) {
  bool follow = mutation_draw(random, 2) == 0;
  for (size_t c = 0; c < p->counter_count; c++) {
    uint32_t total = 0, before = p->counters[c].total;
    for (size_t i = 0; i < p->instruction_count; i++) {
      const mk_instruction *in = &p->instructions[i];
      for (uint32_t s = 0; s < in->signal_count; s++) {
        total += in->signals[s].counter == c ? in->signals[s].amount : 0;
      }
    }
    p->counters[c].total = total;
    for (size_t i = 0; i < p->instruction_count; i++) {
      mk_instruction *in = &p->instructions[i];
      for (uint32_t w = 0; w < in->wait_count; w++) {
        mk_wait *wait = &in->waits[w];
        if (wait->counter == c && (wait->threshold > total || (follow && wait->threshold == before))) {
          wait->threshold = (uint16_t)(total == 0 ? 1 : total);
        }
      }
    }
  }
}

static bool drop_wait(mk_program *p, uint64_t *random) {
  uint32_t which;
  mk_instruction *in = any_wait(p, random, &which);
  if (in != NULL) {
    take_wait(in, which);
  }
  return in != NULL;
}

static bool move_wait(mk_program *p, uint64_t *random) {
  uint32_t which;
  mk_instruction *from = any_wait(p, random, &which);
  if (from == NULL) {
    return false;
  }
  const mk_queue *q = queue_of(p, from);
  mk_instruction *first = &p->instructions[q->first], *to = first + mutation_draw(random, q->count);
  if (mutation_draw(random, 2) == 0) { /* a neighbour */
    to = mutation_draw(random, 2) == 0 ? from + 1 : from - 1;
  }
  if (to < first || to >= first + q->count || to == from || to->wait_count == MK_MAX_WAITS) {
    return false;
  }
  to->waits[to->wait_count++] = take_wait(from, which);
  return true;
}

static bool lower_threshold(mk_program *p, uint64_t *random) {
  uint32_t which;
  mk_instruction *in = any_wait(p, random, &which);
  if (in == NULL || (in->waits[which].threshold < 2 && mutation_draw(random, 64) != 0)) {
    return false;
  }
  uint32_t most = in->waits[which].threshold < 2 ? 1 : in->waits[which].threshold - 1u;
  in->waits[which].threshold = (uint16_t)(in->waits[which].threshold - 1 - mutation_draw(random, most));
  return true;
}

/* A third of them close to the end of the queue, where the token boundary puts one epoch before the next. */
static bool swap_entries(mk_program *p, uint64_t *random) {
  const mk_queue *q = &p->queues[mutation_draw(random, (uint32_t)p->queue_count)];
  if (q->count < 2) {
    return false;
  }
  uint32_t a = mutation_draw(random, q->count), b = mutation_draw(random, q->count);
  switch (mutation_draw(random, 3)) {
    case 0:
      b = (a + 1) % q->count;
      break;
    case 1:
      a = q->count < 2 + 3 ? a : q->count - 2 - mutation_draw(random, 3);
      b = a + 1;
      break;
    default:
      break;
  }
  if (a == b || b == q->count) {
    return false;
  }
  mk_instruction kept = p->instructions[q->first + a];
  p->instructions[q->first + a] = p->instructions[q->first + b];
  p->instructions[q->first + b] = kept;
  return true;
}

static mk_operand *any_operand(mk_program *p, uint64_t *random) {
  mk_instruction *in = any_instruction(p, random);
  mk_operand *o = &in->operands[mutation_draw(random, mk_opcode_lookup(in->opcode)->operand_count)];
  return o->rows == 0 || o->cols == 0 ? NULL : o;
}

static bool shift_operand(mk_program *p, uint64_t *random) {
  mk_operand *o = any_operand(p, random);
  if (o == NULL) {
    return false;
  }
  uint16_t *at = mutation_draw(random, 4) == 0 ? &o->row : &o->col;
  int by = 1 + (int)mutation_draw(random, 2);
  *at = (uint16_t)(*at + (mutation_draw(random, 2) == 0 && *at >= by ? -by : by));
  return true;
}

static bool widen_operand(mk_program *p, uint64_t *random) {
  mk_operand *o = any_operand(p, random);
  if (o == NULL) {
    return false;
  }
  bool rows = mutation_draw(random, 4) == 0;
  uint16_t *at = rows ? &o->row : &o->col, *size = rows ? &o->rows : &o->cols;
  bool down = *at != 0 && mutation_draw(random, 2) == 0;
  *at = (uint16_t)(*at - down);
  *size = (uint16_t)(*size + 1 + (down ? 0 : mutation_draw(random, 2)));
  return true;
}

static bool same_shape(const mk_buffer *a, const mk_buffer *b) {
  return a->kind == b->kind && a->kind == MK_KIND_ACTIVATION && a->dtype == b->dtype && a->store == b->store &&
         a->rank == b->rank && a->scope == b->scope && a->rows == b->rows && a->cols == b->cols &&
         a->tile_rows == b->tile_rows && a->tile_cols == b->tile_cols;
}

/* One buffer takes over from another of the same shape, as if that one's life were over. */
static bool merge_buffers(mk_program *p, uint64_t *random) {
  uint32_t a = mutation_draw(random, (uint32_t)p->buffer_count), b = mutation_draw(random, (uint32_t)p->buffer_count);
  if (a == b || !same_shape(&p->buffers[a], &p->buffers[b])) {
    return false;
  }
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_instruction *in = &p->instructions[i];
    for (uint32_t slot = 0; slot < mk_opcode_lookup(in->opcode)->operand_count; slot++) {
      in->operands[slot].buffer = in->operands[slot].buffer == b ? (uint16_t)a : in->operands[slot].buffer;
    }
  }
  return true;
}

/* Pages or resident bytes that are given back while they are in use. */
static bool shorten(mk_program *p, uint64_t *random) {
  mk_instruction *in = any_instruction(p, random);
  if (mutation_draw(random, 2) == 0) {
    if (in->pages == 0) {
      return false;
    }
    in->pages -= 1 + mutation_draw(random, in->pages);
    return true;
  }
  if (in->resident == 0) {
    return false;
  }
  in->resident = (uint16_t)(in->resident - 1 - mutation_draw(random, in->resident));
  return true;
}

static bool reuse_early(mk_program *p, uint64_t *random) {
  return mutation_draw(random, 4) == 0 ? shorten(p, random) : merge_buffers(p, random);
}

static bool drop_signal(mk_program *p, uint64_t *random) {
  uint32_t which;
  mk_instruction *in = any_signal(p, random, &which);
  if (in == NULL) {
    return false;
  }
  in->signals[which] = in->signals[--in->signal_count];
  in->signals[in->signal_count] = (mk_signal){0};
  if (mutation_draw(random, 3) != 0) {
    reseal(p, random);
  }
  return true;
}

static bool double_signal(mk_program *p, uint64_t *random) {
  uint32_t which;
  mk_instruction *in = any_signal(p, random, &which);
  if (in == NULL) {
    return false;
  }
  if (in->signal_count < MK_MAX_SIGNALS && mutation_draw(random, 2) == 0) {
    in->signals[in->signal_count++] = in->signals[which];
  } else {
    in->signals[which].amount = (uint16_t)(2 * in->signals[which].amount);
  }
  if (mutation_draw(random, 3) != 0) {
    reseal(p, random);
  }
  return true;
}

/* Once in a while, the counter does not exist. */
static bool change_counter(mk_program *p, uint64_t *random) {
  uint32_t which, counters = (uint32_t)p->counter_count + (mutation_draw(random, 32) == 0);
  if (counters == 0) {
    return false;
  }
  uint32_t counter = mutation_draw(random, counters);
  bool signal = mutation_draw(random, 2) == 0;
  mk_instruction *in = signal ? any_signal(p, random, &which) : any_wait(p, random, &which);
  if (in == NULL || counter == (signal ? in->signals[which].counter : in->waits[which].counter)) {
    return false;
  }
  if (signal) {
    in->signals[which].counter = (uint16_t)counter;
  } else {
    in->waits[which].counter = (uint16_t)counter;
  }
  if (mutation_draw(random, 3) != 0) {
    reseal(p, random);
  }
  return true;
}

static bool release_to_relaxed(mk_program *p, uint64_t *random) {
  uint32_t which;
  mk_instruction *in = any_wait(p, random, &which);
  if (in == NULL || p->counters[in->waits[which].counter].kind != MK_COUNTER_RELEASE) {
    return false;
  }
  p->counters[in->waits[which].counter].kind = MK_COUNTER_RELAXED;
  return true;
}

static bool drop_proxy(mk_program *p, uint64_t *random) {
  mk_buffer *b = &p->buffers[mutation_draw(random, (uint32_t)p->buffer_count)];
  uint8_t proxy = mutation_draw(random, 2) == 0 ? MK_PROXY_GENERIC : MK_PROXY_ASYNC;
  if ((b->proxy & proxy) == 0) {
    return false;
  }
  b->proxy = (uint8_t)(b->proxy & ~proxy);
  return true;
}

bool mutation_apply(mk_program *program, mutation_class kind, uint64_t *random) {
  typedef bool change(mk_program *, uint64_t *);
  static change *const changes[MUTATION_CLASSES] = {
#define MUTATION(name, order) name,
      MUTATIONS(MUTATION)
#undef MUTATION
  };
  for (uint32_t i = 0; i < TRIES; i++) {
    if (changes[kind](program, random)) {
      return true;
    }
  }
  return false;
}
