/* How edits of generated programs are chosen, and what they share. See generated.h and edits.h. */
#include "tests/mutation/edits.h"

#include <stdio.h>
#include <string.h>

#include "instructions/mla.h"
#include "tests/mutation/generated.h"

enum { TRIES = 8, ALIGNMENT = 128 };

mk_instruction *edit_any_of(mk_program *p, mk_opcode opcode, uint64_t *random) {
  uint32_t count = 0, chosen = 0;
  for (size_t i = 0; i < p->instruction_count; i++) {
    count += p->instructions[i].opcode == opcode;
  }
  chosen = edit_draw(random, count);
  for (size_t i = 0; i < p->instruction_count; i++) {
    if (p->instructions[i].opcode == opcode && chosen-- == 0) {
      return &p->instructions[i];
    }
  }
  return NULL;
}

uint32_t edit_queue_of(const mk_program *p, uint32_t index) {
  uint32_t q = 0;
  while (index < p->queues[q].first || index >= p->queues[q].first + p->queues[q].count) {
    q++;
  }
  return q;
}

static void set_firsts(mk_program *p) {
  uint32_t first = 0;
  for (size_t q = 0; q < p->queue_count; q++) {
    p->queues[q].first = first;
    first += p->queues[q].count;
  }
}

void edit_remove(mk_program *p, uint32_t index) {
  p->queues[edit_queue_of(p, index)].count--;
  p->instruction_count--;
  memmove(&p->instructions[index], &p->instructions[index + 1],
          (p->instruction_count - index) * sizeof *p->instructions);
  set_firsts(p);
}

static mk_instruction *insert(mk_program *p, const mk_instruction *in, uint32_t queue, uint32_t at) {
  mk_instruction kept = *in;
  if (mk_grow(&p->instructions, &p->instruction_capacity, p->instruction_count + 1, sizeof *p->instructions) != MK_OK) {
    return NULL;
  }
  uint32_t index = p->queues[queue].first + (at < p->queues[queue].count ? at : p->queues[queue].count);
  memmove(&p->instructions[index + 1], &p->instructions[index],
          (p->instruction_count - index) * sizeof *p->instructions);
  p->instructions[index] = kept;
  p->instruction_count++;
  p->queues[queue].count++;
  set_firsts(p);
  return &p->instructions[index];
}

void edit_move(mk_program *p, uint32_t index, uint32_t queue, uint32_t at) {
  mk_instruction kept = p->instructions[index];
  edit_remove(p, index);
  (void)insert(p, &kept, queue, at); /* there is room for one more: there was */
}

mk_instruction *edit_insert(mk_program *p, const mk_instruction *in, uint32_t queue, uint32_t at) {
  uint32_t uid = 0;
  for (size_t i = 0; i < p->instruction_count; i++) {
    uid = p->instructions[i].uid > uid ? p->instructions[i].uid : uid;
  }
  mk_instruction *copy = insert(p, in, queue, at);
  if (copy != NULL) {
    copy->uid = uid + 1;
  }
  return copy;
}

uint16_t edit_clone(mk_program *p, uint16_t buffer) {
  mk_buffer copy = p->buffers[buffer];
  uint16_t index;
  snprintf(copy.name, sizeof copy.name, "%.30s.%zu", p->buffers[buffer].name, p->buffer_count);
  return mk_program_add_buffer(p, &copy, &index) == MK_OK ? index : EDIT_NO_BUFFER;
}

/* [at, at + count) in tiles of `from`, of a side of `size` elements, in tiles of `to`. */
static bool retile_side(uint16_t *at, uint16_t *count, uint32_t size, uint32_t from, uint32_t to) {
  uint64_t first = (uint64_t)*at * from, end = ((uint64_t)*at + *count) * from;
  end = end < size ? end : size;
  if (first % to != 0 || (end % to != 0 && end != size) || end <= first) {
    return false;
  }
  *at = (uint16_t)(first / to);
  *count = (uint16_t)((end - first + to - 1) / to);
  return true;
}

bool edit_retile(mk_program *p, uint16_t buffer, uint32_t tile_rows, uint32_t tile_cols) {
  mk_buffer *b = &p->buffers[buffer];
  for (uint32_t apply = 0; apply < 2; apply++) {
    for (size_t i = 0; i < p->instruction_count; i++) {
      for (uint32_t slot = 0; slot < mk_opcode_lookup(p->instructions[i].opcode)->operand_count; slot++) {
        mk_operand *at = &p->instructions[i].operands[slot], o = *at;
        if (o.buffer != buffer || o.rows == 0) {
          continue;
        }
        if (!retile_side(&o.row, &o.rows, b->rows, b->tile_rows, tile_rows) ||
            !retile_side(&o.col, &o.cols, b->cols, b->tile_cols, tile_cols)) {
          return false;
        }
        *at = apply != 0 ? o : *at;
      }
    }
  }
  b->tile_rows = tile_rows;
  b->tile_cols = tile_cols;
  return true;
}

/* Choosing. */

static bool is_about_lists(const edit *e) { return strcmp(e->name, "change_listed") == 0; }

static const char *one_of(const edit *edits, size_t count, mk_program *p, uint64_t *random, bool *order) {
  uint32_t all = 0;
  bool listed = mk_program_listed(p) && mutation_draw(random, 2) == 0;
  for (size_t i = 0; i < count; i++) {
    all += edits[i].weight;
  }
  uint32_t at = mutation_draw(random, all);
  size_t chosen = 0;
  for (; at >= edits[chosen].weight; chosen++) {
    at -= edits[chosen].weight;
  }
  for (size_t i = 0; listed && i < count; i++) { /* where most edits have no place */
    chosen = is_about_lists(&edits[i]) ? i : chosen;
  }
  for (uint32_t i = 0; i < TRIES; i++) {
    if (edits[chosen].change(p, random)) {
      *order |= edits[chosen].order;
      return edits[chosen].name;
    }
  }
  return NULL;
}

const char *generated_edit(mk_program *program, uint64_t *random, bool *order) {
  return mutation_draw(random, 3) != 0 ? one_of(edit_orders, edit_order_count, program, random, order)
                                       : one_of(edit_parts, edit_part_count, program, random, order);
}

/* Fitting. */

static void reseal_counters(mk_program *p) {
  for (size_t c = 0; c < p->counter_count; c++) {
    uint32_t total = 0;
    for (size_t i = 0; i < p->instruction_count; i++) {
      const mk_instruction *in = &p->instructions[i];
      for (uint32_t s = 0; s < in->signal_count; s++) {
        total += in->signals[s].counter == c ? in->signals[s].amount : 0;
      }
    }
    for (size_t i = 0; i < p->instruction_count; i++) {
      mk_instruction *in = &p->instructions[i];
      for (uint32_t w = 0; w < in->wait_count; w++) {
        mk_wait *wait = &in->waits[w];
        if (wait->counter == c && (wait->threshold > total || wait->threshold == p->counters[c].total)) {
          wait->threshold = (uint16_t)total;
        }
        if (wait->counter == c && total == 0) { /* nobody signals any more */
          in->waits[w] = in->waits[--in->wait_count];
          in->waits[in->wait_count] = (mk_wait){0};
          w--;
        }
      }
    }
    p->counters[c].total = total;
  }
}

/* Places buffers one after the other, each in its arena. */
static void place_buffers(mk_program *p) {
  p->weight_bytes = p->work_bytes = 0;
  for (size_t b = 0; b < p->buffer_count; b++) {
    mk_buffer *buffer = &p->buffers[b];
    uint64_t *arena = buffer->kind == MK_KIND_WEIGHT ? &p->weight_bytes : &p->work_bytes;
    buffer->bytes = mk_buffer_bytes(buffer);
    buffer->offset = *arena;
    if (buffer->bytes < UINT32_MAX) {
      *arena += (buffer->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
  }
}

/* Marks what may be fused, but now and then leaves marks as they are, or one out: a mark allows, and asks for
 * nothing. */
static void reseal_fusions(mk_program *p, uint64_t *random) {
  bool keep = mutation_draw(random, 16) == 0;
  for (uint32_t q = 0; q < p->queue_count && !keep; q++) {
    mk_instruction *in = &p->instructions[p->queues[q].first];
    for (uint32_t i = 0; i < p->queues[q].count; i++) {
      bool known = mk_opcode_lookup(in[i].opcode) != NULL;
      bool fuses = known && mk_fuses(p, i == 0 ? NULL : &in[i - 1], &in[i]);
      in[i].flags = fuses && mutation_draw(random, 16) != 0 ? MK_FUSED : 0;
    }
  }
}

void generated_reseal(mk_program *p, uint64_t *random) {
  if (mutation_draw(random, 24) != 0) {
    reseal_counters(p);
  }
  place_buffers(p);
  bool keep = mutation_draw(random, 64) == 0;
  for (size_t i = 0; !keep && i < p->instruction_count; i++) {
    mk_instruction *in = &p->instructions[i];
    in->pages = mk_instruction_pages(p, in);
    in->resident = (uint16_t)(mk_instruction_resident(p, in) / MK_RESIDENT_UNIT);
  }
  reseal_fusions(p, random);
}
