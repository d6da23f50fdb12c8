/* Edits of the token boundary: heads, candidates, `next`s, and the search where something draws. See edits.h. */
#include <string.h>

#include "tests/mutation/edits.h"

static void clear_operand(mk_operand *o) { *o = (mk_operand){.buffer = o->buffer}; }

/* A head without rows, and what sampling makes of them; or all of them, whose logits nobody then reads. */
bool edit_empty_head(mk_program *p, uint64_t *random) {
  const mk_instruction *chosen = edit_any_of(p, MK_OP_HEAD, random);
  bool all = mutation_draw(random, 2) == 0;
  uint32_t queue = chosen == NULL ? 0 : edit_queue_of(p, (uint32_t)(chosen - p->instructions));
  for (uint32_t i = 0; chosen != NULL && i < p->instruction_count; i++) {
    mk_instruction *in = &p->instructions[i];
    if (!all && edit_queue_of(p, i) != queue) {
      continue;
    }
    if (in->opcode == MK_OP_HEAD) {
      p->buffers[in->operands[MK_SLOT_HEAD_logits].buffer].kind = MK_KIND_ACTIVATION;
      clear_operand(&in->operands[MK_SLOT_HEAD_weight]);
      clear_operand(&in->operands[MK_SLOT_HEAD_logits]);
    } else if (in->opcode == MK_OP_SCORE && mutation_draw(random, 4) != 0) {
      clear_operand(&in->operands[MK_SLOT_SCORE_logits]);
      clear_operand(&in->operands[MK_SLOT_SCORE_bias]);
      clear_operand(&in->operands[MK_SLOT_SCORE_counts]);
      clear_operand(&in->operands[MK_SLOT_SCORE_scores]);
    } else if (in->opcode == MK_OP_SIFT && mutation_draw(random, 4) != 0) {
      clear_operand(&in->operands[MK_SLOT_SIFT_scores]);
    }
  }
  return chosen != NULL;
}

/* All `next`s take pairs of words of some other stamped buffer for candidates. */
bool edit_other_candidates(mk_program *p, uint64_t *random) {
  uint32_t index = mutation_draw(random, (uint32_t)p->buffer_count);
  const mk_buffer *b = &p->buffers[index];
  if (b->store != MK_STORE_STAMPED || b->dtype != MK_DTYPE_U32 || edit_any_of(p, MK_OP_NEXT, random) == NULL ||
      (b->tile_cols != 2 && !edit_retile(p, (uint16_t)index, b->tile_rows, 2))) {
    return false;
  }
  bool own = mutation_draw(random, 4) == 0;
  uint16_t rows = (uint16_t)mk_buffer_grid_rows(b);
  for (uint32_t i = 0; i < p->instruction_count; i++) {
    if (p->instructions[i].opcode == MK_OP_NEXT) {
      p->instructions[i].operands[MK_SLOT_NEXT_candidates] =
          (mk_operand){.buffer = (uint16_t)index,
                       .row = (uint16_t)(own ? edit_queue_of(p, i) % rows : 0),
                       .rows = own ? 1 : rows,
                       .cols = 1};
    }
  }
  return true;
}

/* Somebody writes the candidates who is no head. */
bool edit_other_writer(mk_program *p, uint64_t *random) {
  mk_instruction *head = edit_any_of(p, MK_OP_HEAD, random);
  mk_instruction *draw = edit_any_of(p, MK_OP_DRAW, random), *next = edit_any_of(p, MK_OP_NEXT, random);
  if (head == NULL || next == NULL) {
    return false;
  }
  if (draw != NULL && mutation_draw(random, 2) == 0) {
    mk_operand kept = draw->operands[MK_SLOT_DRAW_choice];
    draw->operands[MK_SLOT_DRAW_choice] = head->operands[MK_SLOT_HEAD_candidate];
    head->operands[MK_SLOT_HEAD_candidate] = kept;
    return true;
  }
  const mk_operand *from = &head->operands[MK_SLOT_HEAD_candidate];
  const mk_buffer *b = &p->buffers[from->buffer];
  for (size_t i = 0; i < p->instruction_count; i++) {
    if (p->instructions[i].opcode == MK_OP_NEXT) { /* the greedy token of a program that samples, or one of its rows */
      bool one = mutation_draw(random, 4) == 0;
      p->instructions[i].operands[MK_SLOT_NEXT_candidates] =
          (mk_operand){.buffer = from->buffer,
                       .row = one ? from->row : 0,
                       .rows = one ? 1 : (uint16_t)mk_buffer_grid_rows(b),
                       .cols = 1};
    }
  }
  return draw != NULL;
}

bool edit_signal_next(mk_program *p, uint64_t *random) {
  mk_instruction *next = edit_any_of(p, MK_OP_NEXT, random), *other = edit_any_of(p, MK_OP_NEXT, random);
  uint16_t counter;
  if (next == NULL || next == other || next->signal_count == MK_MAX_SIGNALS || other->wait_count == MK_MAX_WAITS ||
      mk_program_add_counter(p, "next", MK_COUNTER_RELEASE, &counter) != MK_OK) {
    return false;
  }
  next->signals[next->signal_count++] = (mk_signal){.counter = counter, .amount = 1};
  other->waits[other->wait_count++] = (mk_wait){.counter = counter, .threshold = 1};
  p->counters[counter].total = 1;
  return true;
}

/* The queue of a `next` keeps what does not read the step state; its head's work goes to another one. */
bool edit_drop_next(mk_program *p, uint64_t *random) {
  const mk_instruction *next = edit_any_of(p, MK_OP_NEXT, random);
  if (next == NULL || p->queue_count < 2) {
    return false;
  }
  uint32_t q = edit_queue_of(p, (uint32_t)(next - p->instructions)), to = (q + 1) % (uint32_t)p->queue_count;
  if (next->operands[MK_SLOT_NEXT_ring].rows != 0) {
    return false;
  }
  edit_remove(p, (uint32_t)(next - p->instructions));
  for (uint32_t i = p->queues[q].count; i-- != 0;) {
    uint32_t index = p->queues[q].first + i;
    if (mk_opcode_lookup(p->instructions[index].opcode)->state != MK_STATE_NONE) {
      uint32_t at = i < p->queues[to].count ? i : p->queues[to].count - (p->queues[to].count != 0);
      edit_move(p, index, to, at);
    }
  }
  return true;
}

/* The search: one round less on an SM, a round of another kind, scores of others. */
static bool change_round(mk_program *p, uint64_t *random) {
  mk_instruction *sift = edit_any_of(p, MK_OP_SIFT, random), *draw = edit_any_of(p, MK_OP_DRAW, random);
  const mk_instruction *other = edit_any_of(p, MK_OP_SIFT, random);
  if (draw == NULL || sift == NULL) {
    return false;
  }
  mk_instruction *in = mutation_draw(random, 2) == 0 ? draw : sift;
  mk_operand *scores = &sift->operands[MK_SLOT_SIFT_scores];
  switch (mutation_draw(random, 5)) {
    case 0: /* goes on with the round before its own, or with one after that */
      in->operands[MK_SLOT_SIFT_rounds].buffer = other->operands[MK_SLOT_SIFT_round].buffer;
      in->operands[MK_SLOT_SIFT_rounds].rows =
          (uint16_t)mk_buffer_grid_rows(&p->buffers[other->operands[MK_SLOT_SIFT_round].buffer]);
      in->operands[MK_SLOT_SIFT_rounds].cols = 1;
      return true;
    case 1:
      in->operands[MK_SLOT_SIFT_rounds] = other->operands[MK_SLOT_SIFT_rounds];
      return in != other;
    case 2: /* the tokens of its own SM, and a tile more or less */
      if (scores->cols < 2) {
        return false;
      }
      scores->cols--;
      scores->col = (uint16_t)(scores->col + mutation_draw(random, 2));
      return true;
    case 3:
      *scores = (mk_operand){.buffer = draw->operands[MK_SLOT_DRAW_scores].buffer, .rows = 1, .cols = 1};
      return true;
    default:
      clear_operand(mutation_draw(random, 2) == 0 ? scores : &in->operands[MK_SLOT_SIFT_rounds]);
      return true;
  }
}

bool edit_change_search(mk_program *p, uint64_t *random) {
  bool changed = change_round(p, random);
  for (uint32_t more = mutation_draw(random, 3); more != 0; more--) {
    changed |= change_round(p, random);
  }
  return changed;
}
