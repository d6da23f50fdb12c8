/* Phase 1, of queues as wholes: the token boundary, rules N01-N10, and what a machine may do within an instruction
 * before it, rule S12.
 *
 * Every SM goes from one step to the next by itself, with a `next` that has waited for all SMs. What kernels do around
 * it rests on these rules: the order of a queue's last instructions, who may write what the next token is taken from,
 * and that roles which run ahead or lag meet there. */
#include <string.h>

#include "instructions/mla.h"
#include "vm/verify/internal.h"

typedef struct mk_ending {          /* of a queue; MK_NONE_INDEX where there is none */
  uint32_t head, score, draw, next; /* head: the last one */
  uint32_t heads;                   /* side by side up to it, where there are several rows per step */
} mk_ending;

typedef struct mk_boundary {
  mk_verifier *v;
  mk_ending first;  /* of the first queue that has instructions; all must agree with it */
  uint32_t rounds;  /* SIFTs on that queue */
  bool samples;     /* some instruction draws */
  bool fuses;       /* some instruction may be done on another SM */
  bool head_exists; /* one with rows */
} mk_boundary;

static const mk_operand *operand(const mk_boundary *b, uint32_t index, uint32_t slot) {
  return &mk_at(b->v, index)->operands[slot];
}

static bool same_operand(const mk_boundary *b, uint32_t i, uint32_t slot_i, uint32_t k, uint32_t slot_k) {
  return memcmp(operand(b, i, slot_i), operand(b, k, slot_k), sizeof(mk_operand)) == 0;
}

/* Whether the queue has an instruction at `index`, and that one writes such values. */
static bool writes(const mk_boundary *b, const mk_queue *q, uint32_t index, mk_content content) {
  return index < q->first + q->count && mk_opcode_writes(mk_info(mk_at(b->v, index)), content) >= 0;
}

/* Whether it takes part in drawing: makes fronts, or looks at them. */
static bool draws(const mk_instruction *in) {
  return mk_opcode_writes(mk_info(in), MK_CONTENT_FRONT) >= 0 || mk_opcode_reads(mk_info(in), MK_CONTENT_FRONT) >= 0;
}

/* Rules N01, N02, N09: all that read the step state come before the one NEXT that moves it on. */
static mk_status check_state(mk_boundary *b, const mk_queue *q, mk_ending *ending) {
  mk_verifier *v = b->v;
  *ending = (mk_ending){MK_NONE_INDEX, MK_NONE_INDEX, MK_NONE_INDEX, MK_NONE_INDEX, 0};
  for (uint32_t i = q->first; i < q->first + q->count; i++) {
    const mk_instruction *in = mk_at(v, i);
    if (mk_info(in)->state == MK_STATE_WRITE) {
      if (ending->next != MK_NONE_INDEX) {
        return mk_reject(v, "N01", i, "a second next after %s; the step state moves on once per epoch",
                         mk_place_of(v, ending->next).text);
      }
      if (in->signal_count != 0) {
        return mk_reject(v, "N09", i,
                         "signals counter %s; a machine's next signals nothing, since who waits for candidates "
                         "knows as much",
                         v->program->counters[in->signals[0].counter].name);
      }
      ending->next = i;
    } else if (mk_reads_state(v, in) && ending->next != MK_NONE_INDEX) {
      return mk_reject(v, "N02", i, "reads the step state after %s has moved it on; put it before",
                       mk_place_of(v, ending->next).text);
    }
  }
  if (ending->next == MK_NONE_INDEX) {
    return mk_reject(v, "N01", q->first,
                     "no next on its queue: it would neither learn the next token nor where a run ends");
  }
  return MK_OK;
}

static uint32_t line_tiles(const mk_boundary *b) {
  const uint32_t rows = mk_program_rows(b->v->program);
  return rows / mk_line_tile(rows);
}

/* Whether head `i` is right after head `before` in their queue, and of the tile of lines after that one's. */
static bool next_lines(const mk_boundary *b, uint32_t before, uint32_t i) {
  return line_tiles(b) > 1 && i == before + 1 &&
         mk_instruction_lines(b->v->program, mk_at(b->v, i)) ==
             mk_instruction_lines(b->v->program, mk_at(b->v, before)) + 1;
}

/* Rule N03. A consumer may be far ahead of its SM's storer, which reads the step state that NEXT overwrites. What NEXT
 * waits for holds the consumer up: so some of that must come from this storer. */
static mk_status check_head(mk_boundary *b, const mk_queue *q, mk_ending *ending) {
  mk_verifier *v = b->v;
  for (uint32_t i = q->first; i < ending->next; i++) {
    const mk_instruction *in = mk_at(v, i);
    if (writes(b, q, i, MK_CONTENT_LOGITS)) {
      bool several = ending->head != MK_NONE_INDEX && (b->samples || mk_program_rows(v->program) > 1);
      if (several && (b->samples || !next_lines(b, ending->head, i))) {
        return mk_reject(v, b->samples ? "N07" : "N06", i, "a second head after %s; a queue has one%s",
                         mk_place_of(v, ending->head).text,
                         line_tiles(b) > 1 ? " for each tile of lines, one after the other" : "");
      }
      ending->head = i;
      ending->heads++;
      b->head_exists |= !mk_operand_empty(&in->operands[MK_SLOT_HEAD_weight]);
      if (!b->samples &&
          in->operands[MK_SLOT_HEAD_candidate].buffer != operand(b, ending->next, MK_SLOT_NEXT_candidates)->buffer) {
        return mk_reject(
            v, "N04", i,
            "candidate: buffer %s is not what %s takes its candidates from, so these tokens could never win",
            v->program->buffers[in->operands[MK_SLOT_HEAD_candidate].buffer].name, mk_place_of(v, ending->next).text);
      }
    }
  }
  return ending->head != MK_NONE_INDEX
             ? MK_OK
             : mk_reject(
                   v, "N03", ending->next,
                   "no head before it on its queue; only the candidate of its own SM tells that its storer is done "
                   "with the step, so put one there, if need be without rows");
}

/* Rule N04: all SMs take the same token. Whose choice it is says rule S11. */
static mk_status check_agreement(mk_boundary *b, const mk_ending *ending) {
  mk_verifier *v = b->v;
  uint32_t next = ending->next, first = b->first.next;
  const mk_operand *from = operand(b, next, MK_SLOT_NEXT_candidates);
  bool same = b->samples || same_operand(b, next, MK_SLOT_NEXT_candidates, first, MK_SLOT_NEXT_candidates);
  if (!same || !same_operand(b, next, MK_SLOT_NEXT_plan, first, MK_SLOT_NEXT_plan)) {
    return mk_reject(v, "N04", next, "candidates or plan differ from those of %s; all SMs must agree on the token",
                     mk_place_of(v, first).text);
  }
  if (!b->samples && (from->row != 0 || from->rows != mk_buffer_grid_rows(&v->program->buffers[from->buffer]))) {
    return mk_reject(v, "N04", next, "candidates: rows %u to %u of buffer %s, which has %u; a next takes all",
                     from->row, from->row + from->rows - 1, v->program->buffers[from->buffer].name,
                     mk_buffer_grid_rows(&v->program->buffers[from->buffer]));
  }
  return MK_OK;
}

/* Rule N06. With several rows per step a storer clears, after the last word of a value, the half that the next step
 * writes; and what is fused may be written by another SM than its own, as early as that SM's step allows. A HEAD's
 * candidates, or the front of its SCORE, tell other SMs that all before it is done: so nothing that reads or writes
 * values may come after the HEAD. Only NEXT does, or between the two what draws, which rule N07 looks at. */
static mk_status check_rows(mk_boundary *b, const mk_queue *q, const mk_ending *ending) {
  const bool several = mk_program_rows(b->v->program) > 1;
  if ((!several && !b->fuses) || b->samples) {
    return MK_OK;
  }
  if (ending->heads != line_tiles(b)) { /* a tile without a head would have no candidates, and tell of nothing */
    return mk_reject(b->v, "N06", ending->head, "%u heads end its queue; there is one for each of %u tiles of lines",
                     ending->heads, line_tiles(b));
  }
  if (ending->next == ending->head + 1 && q->first + q->count == ending->next + 1) {
    return MK_OK;
  }
  return mk_reject(b->v, "N06", ending->head,
                   "%s a queue ends in its head and its next, of which this head is not the last but one",
                   several ? "with several rows per step" : "where a combine is marked as fused");
}

/* Rule N07: HEAD, SCORE of its logits, SIFTs of which each goes on with the round before, DRAW, NEXT that takes its
 * choice. A machine does the score within the head, and keeps rounds and choice to itself. */
static mk_status check_ending(mk_boundary *b, const mk_queue *q, mk_ending *ending, uint32_t *rounds) {
  mk_verifier *v = b->v;
  uint32_t at = ending->head + 1, previous = MK_NONE_INDEX;
  if (!writes(b, q, at, MK_CONTENT_FRONT) || mk_at(v, at)->wait_count != 0 ||
      !same_operand(b, at, MK_SLOT_SCORE_logits, ending->head, MK_SLOT_HEAD_logits)) {
    return mk_reject(v, "N07", ending->head, "sampling: a score of its logits, without waits, must follow this head");
  }
  ending->score = at++;
  for (*rounds = 0; at < q->first + q->count && mk_opcode_reads(mk_info(mk_at(v, at)), MK_CONTENT_FRONT) >= 0;
       previous = at++) {
    const mk_operand *from = operand(b, at, MK_SLOT_SIFT_rounds);
    bool goes_on = previous == MK_NONE_INDEX
                       ? mk_operand_empty(from)
                       : !mk_operand_empty(from) && from->buffer == operand(b, previous, MK_SLOT_SIFT_round)->buffer;
    bool last = writes(b, q, at, MK_CONTENT_CANDIDATE);
    if (!goes_on) {
      return mk_reject(v, "N07", at, "rounds: must be %s",
                       previous == MK_NONE_INDEX ? "empty in the first round" : "those of the sift before it");
    }
    if (!last && !same_operand(b, at, MK_SLOT_SIFT_scores, ending->score, MK_SLOT_SCORE_scores)) {
      return mk_reject(v, "N07", at, "scores: differ from those of %s; a sift looks at its own SM's",
                       mk_place_of(v, ending->score).text);
    }
    if (last) {
      ending->draw = at;
      break;
    }
    ++*rounds;
  }
  if (ending->draw == MK_NONE_INDEX || ending->next != ending->draw + 1 ||
      !same_operand(b, ending->draw, MK_SLOT_DRAW_choice, ending->next, MK_SLOT_NEXT_candidates)) {
    return mk_reject(v, "N07", ending->next,
                     "sampling: it must follow a draw, after the rounds of its queue, and take its choice");
  }
  return MK_OK;
}

/* Rule N05: what SMs decide alike they decide from the same operands, and from the fronts of all scores. */
static mk_status check_search(mk_boundary *b, const mk_ending *ending, uint32_t rounds) {
  mk_verifier *v = b->v;
  const mk_ending *first = &b->first;
  if (rounds != b->rounds) {
    return mk_reject(v, "N05", ending->draw, "%u rounds before it; before %s there are %u, and all SMs must agree",
                     rounds, mk_place_of(v, first->draw).text, b->rounds);
  }
  for (uint32_t r = 0; r <= rounds; r++) { /* of these slots SIFT and DRAW have the same */
    uint32_t at = ending->score + 1 + r, other = first->score + 1 + r;
    bool same = same_operand(b, at, MK_SLOT_SIFT_fronts, first->draw, MK_SLOT_DRAW_fronts) &&
                same_operand(b, at, MK_SLOT_SIFT_sampling, first->draw, MK_SLOT_DRAW_sampling) &&
                operand(b, at, MK_SLOT_SIFT_rounds)->buffer == operand(b, other, MK_SLOT_SIFT_rounds)->buffer;
    if (r == rounds) {
      same = same && same_operand(b, at, MK_SLOT_DRAW_scores, other, MK_SLOT_DRAW_scores);
    }
    if (!same) {
      return mk_reject(v, "N05", at, "fronts, rounds, sampling or scores differ from those of %s; all SMs must agree",
                       mk_place_of(v, other).text);
    }
  }
  const mk_operand *scores = operand(b, ending->score, MK_SLOT_SCORE_scores);
  if (operand(b, ending->score, MK_SLOT_SCORE_front)->buffer != operand(b, first->draw, MK_SLOT_DRAW_fronts)->buffer ||
      !same_operand(b, ending->score, MK_SLOT_SCORE_sampling, first->draw, MK_SLOT_DRAW_sampling) ||
      (!mk_operand_empty(scores) && scores->buffer != operand(b, first->draw, MK_SLOT_DRAW_scores)->buffer)) {
    return mk_reject(v, "N05", ending->score,
                     "front, sampling or scores: not among those that %s looks at, which so misses these tokens",
                     mk_place_of(v, first->draw).text);
  }
  return MK_OK;
}

/* Rule N08. A loader that reads the step state may lag as far as its queue lets it. So after it there must be a page
 * for which a later instruction's consumer waits in every step: that holds NEXT back until the loader has come by. In
 * programs of whole tiles of lines no page is in every step, since all work of a tile without active lines is left
 * out: there NEXT itself waits for its loader. */
static mk_status check_loader(mk_boundary *b, const mk_queue *q, const mk_ending *ending) {
  mk_verifier *v = b->v;
  uint32_t reader = MK_NONE_INDEX;
  if (mk_program_has_tiles(v->program)) {
    return MK_OK;
  }
  for (uint32_t i = q->first; i < ending->next; i++) {
    const mk_opcode_info *info = mk_info(mk_at(v, i));
    bool left_out = writes(b, q, i, MK_CONTENT_LOGITS) && mk_program_rows(v->program) > 1; /* if no row chooses */
    if (mk_opcode_loads_state(info)) {
      reader = i;
    } else if (mk_at(v, i)->pages != 0 && !left_out) {
      reader = MK_NONE_INDEX;
    }
  }
  return reader == MK_NONE_INDEX
             ? MK_OK
             : mk_reject(
                   v, "N08", reader,
                   "its loader reads the step state, and nothing between it and %s streams weights: the loader may "
                   "come so late that the state is that of a later step",
                   mk_place_of(v, ending->next).text);
}

static mk_status check_queue(mk_boundary *b, const mk_queue *q) {
  mk_ending ending;
  uint32_t rounds = 0;
  MK_TRY(check_state(b, q, &ending));
  MK_TRY(check_head(b, q, &ending));
  MK_TRY(check_rows(b, q, &ending));
  if (b->samples) {
    MK_TRY(check_ending(b, q, &ending, &rounds));
  }
  if (b->first.next == MK_NONE_INDEX) {
    b->first = ending;
    b->rounds = rounds;
  }
  MK_TRY(check_agreement(b, &ending));
  if (b->samples) {
    MK_TRY(check_search(b, &ending, rounds));
  }
  return check_loader(b, q, &ending);
}

/* What draws stands at the end of its queue, where check_ending has counted it, and nowhere else. */
static mk_status check_strays(mk_boundary *b, const mk_queue *q) {
  uint32_t count = 0, stray = MK_NONE_INDEX;
  for (uint32_t i = q->first; i < q->first + q->count; i++) {
    count += draws(mk_at(b->v, i));
    stray = stray == MK_NONE_INDEX && draws(mk_at(b->v, i)) ? i : stray;
  }
  return count == (b->samples ? b->rounds + 2 : 0)
             ? MK_OK
             : mk_reject(b->v, "N07", stray,
                         "sampling: %u instructions of the queue draw; only those after its head may", count);
}

static mk_status check_boundary(mk_verifier *v) {
  const mk_program *p = v->program;
  mk_boundary b = {.v = v, .first = {MK_NONE_INDEX, MK_NONE_INDEX, MK_NONE_INDEX, MK_NONE_INDEX, 0}};
  bool listed = false;
  for (uint32_t i = 0; i < p->instruction_count; i++) {
    b.samples |= draws(mk_at(v, i));
    b.fuses |= mk_fused_anywhere(mk_at(v, i));
    listed |= mk_instruction_listed(mk_at(v, i));
  }
  if (listed) { /* rule L04: it has no step state */
    return MK_OK;
  }
  if (p->instruction_count != 0 && p->queues[0].count == 0) {
    return mk_reject(v, "N10", MK_NONE_INDEX,
                     "queue 0 is empty; it is the first SM that counts steps and hears a wish to stop");
  }
  for (size_t q = 0; q < p->queue_count; q++) {
    if (p->queues[q].count != 0) {
      MK_TRY(check_queue(&b, &p->queues[q]));
      MK_TRY(check_strays(&b, &p->queues[q]));
    }
  }
  if (b.first.next != MK_NONE_INDEX && !b.head_exists) {
    return mk_reject(v, "N04", b.first.next, "no head has rows, so there is no next token");
  }
  return MK_OK;
}

/* Rule S12. Where a mark may stand a machine need not heed it; where there is none, it does the instruction by
 * itself. */
static mk_status check_fusions(mk_verifier *v) {
  const mk_program *p = v->program;
  for (uint32_t i = 0; i < p->instruction_count; i++) {
    const mk_instruction *in = mk_at(v, i), *before = mk_position_of(v, i) == 0 ? NULL : mk_at(v, i - 1);
    if ((in->flags & MK_FUSED) == 0 || mk_fuses(p, before, in)) {
      continue;
    }
    if (mk_info(in)->fusion == MK_FUSION_NONE || mk_program_is_for_prompts(p)) {
      return mk_reject(v, "S12", i, "is marked as fused; no machine does %s within another instruction",
                       mk_info(in)->fusion == MK_FUSION_NONE ? "it" : "anything of a program for prompts");
    }
    const char *into = mk_opcode_lookup(mk_info(in)->fused_into)->name;
    return mk_fused_anywhere(in)
               ? mk_reject(v, "S12", i, "is marked as fused; no release counter may order what %s does in its place",
                           into)
               : mk_reject(v, "S12", i,
                           "is marked as fused; before it in its queue there must be the %s that leaves what it takes",
                           into);
  }
  return MK_OK;
}

mk_status mk_verify_boundary(mk_verifier *v) {
  MK_TRY(check_boundary(v));
  return check_fusions(v);
}
