/* The sampling part of the token boundary, between HEAD and NEXT. See lower.h and docs/SAMPLING.md.
 *
 * Per SM: SCORE over the logits that its HEAD has left (both are the storer's, whose queue orders them), so many rounds
 * of SIFT, and DRAW, which comes to the same choice on every SM: NEXT takes that of its own. What an SM publishes stays
 * in a row tile of its own, in buffers with one for each SM. With several rows per step, parameters, bias and counts
 * have a line for each slot, and all else one for each row of the step: there are as many of both, and twice as many
 * rounds (instructions/sampling.h). */
#include <stdio.h>

#include "instructions/sampling.h"
#include "scheduler/lower_internal.h"

static mk_status declare_rows(mk_lowering *lowering, const char *name, uint32_t cols, uint16_t *index) {
  return mk_add_vector(lowering->program, name,
                       (mk_vector){.kind = MK_KIND_ACTIVATION,
                                   .dtype = MK_DTYPE_U32,
                                   .store = MK_STORE_STAMPED,
                                   .rows = lowering->sms,
                                   .cols = cols,
                                   .tile = cols,
                                   .lines = lowering->lines},
                       index);
}

static mk_status declare_vocab(mk_lowering *lowering, const char *name, mk_buffer_kind kind, mk_dtype dtype,
                               mk_store store, uint16_t *index) {
  return mk_add_vector(lowering->program, name,
                       (mk_vector){.kind = kind,
                                   .dtype = dtype,
                                   .store = store,
                                   .cols = lowering->graph->config.vocab,
                                   .tile = MK_TILE,
                                   .lines = lowering->lines,
                                   .dealt = kind == MK_KIND_ACTIVATION && store == MK_STORE_PLAIN},
                       index);
}

static uint32_t rounds_of(const mk_lowering *lowering) { return lowering->lines > 1 ? MK_SIFT_MOST : MK_SIFT_ROUNDS; }

static mk_status declare_all(mk_lowering *lowering) {
  mk_lowered_sampling *s = &lowering->sampling;
  MK_TRY(mk_add_vector(lowering->program, "sampling",
                       (mk_vector){.kind = MK_KIND_INPUT,
                                   .dtype = MK_DTYPE_U32,
                                   .store = MK_STORE_PLAIN,
                                   .cols = MK_SAMPLING_WORDS,
                                   .tile = MK_SAMPLING_WORDS,
                                   .lines = lowering->lines},
                       &s->sampling));
  MK_TRY(declare_vocab(lowering, "logit_bias", MK_KIND_INPUT, MK_DTYPE_F32, MK_STORE_PLAIN, &s->bias));
  MK_TRY(declare_vocab(lowering, "token_counts", MK_KIND_ACTIVATION, MK_DTYPE_U32, MK_STORE_PLAIN, &s->counts));
  MK_TRY(declare_vocab(lowering, "scores", MK_KIND_ACTIVATION, MK_DTYPE_F32, MK_STORE_STAMPED, &s->scores));
  MK_TRY(declare_rows(lowering, "fronts", MK_FRONT_WORDS, &s->fronts));
  for (uint32_t r = 0; r < rounds_of(lowering); r++) {
    char name[24];
    snprintf(name, sizeof name, "rounds.%u", r);
    MK_TRY(declare_rows(lowering, name, MK_SIFT_WORDS, &s->rounds[r]));
  }
  return declare_rows(lowering, "choices", 2, &s->choices);
}

static mk_operand part(uint16_t buffer, mk_share share) {
  return mk_tiles(buffer, 0, share.count != 0, share.count != 0 ? share.first : 0, share.count);
}

static mk_operand own_row(uint16_t buffer, uint32_t sm) { return mk_tiles(buffer, sm, 1, 0, 1); }

static mk_status lower_score(mk_lowering *lowering, uint32_t sm, mk_share share, uint16_t ready) {
  const mk_lowered_sampling *s = &lowering->sampling;
  mk_instruction in = MK_START(SCORE, MK_NO_LAYER);
  in.operands[MK_SLOT_SCORE_logits] = part(lowering->logits, share);
  in.operands[MK_SLOT_SCORE_sampling] = mk_whole(lowering, s->sampling);
  in.operands[MK_SLOT_SCORE_bias] = part(s->bias, share);
  in.operands[MK_SLOT_SCORE_counts] = part(s->counts, share);
  in.operands[MK_SLOT_SCORE_scores] = part(s->scores, share);
  in.operands[MK_SLOT_SCORE_front] = own_row(s->fronts, sm);
  return mk_emit(lowering, sm, &in, ready);
}

/* What SIFT and DRAW look at, in the same slots. */
static void add_search(const mk_lowering *lowering, mk_instruction *in, uint32_t round) {
  const mk_lowered_sampling *s = &lowering->sampling;
  in->operands[MK_SLOT_SIFT_fronts] = mk_whole(lowering, s->fronts);
  in->operands[MK_SLOT_SIFT_rounds] =
      round == 0 ? mk_tiles(s->rounds[0], 0, 0, 0, 0) : mk_whole(lowering, s->rounds[round - 1]);
  in->operands[MK_SLOT_SIFT_sampling] = mk_whole(lowering, s->sampling);
}

static mk_status lower_rounds(mk_lowering *lowering, uint32_t sm, mk_share share) {
  const mk_lowered_sampling *s = &lowering->sampling;
  for (uint32_t r = 0; r < rounds_of(lowering); r++) {
    mk_instruction in = MK_START(SIFT, MK_NO_LAYER);
    add_search(lowering, &in, r);
    in.operands[MK_SLOT_SIFT_scores] = part(s->scores, share);
    in.operands[MK_SLOT_SIFT_round] = own_row(s->rounds[r], sm);
    MK_TRY(mk_emit(lowering, sm, &in, MK_NO_COUNTER));
  }
  return MK_OK;
}

mk_status mk_lower_sampling(mk_lowering *lowering, const mk_share *shares, uint16_t *choices) {
  const mk_lowered_sampling *s = &lowering->sampling;
  uint16_t ready;
  MK_TRY(declare_all(lowering));
  MK_TRY(mk_program_add_counter(lowering->program, "fronts", mk_edge_kind(lowering), &ready));
  for (uint32_t sm = 0; sm < lowering->sms; sm++) {
    MK_TRY(lower_score(lowering, sm, shares[sm], ready));
    MK_TRY(lower_rounds(lowering, sm, shares[sm]));
  }
  for (uint32_t sm = 0; sm < lowering->sms; sm++) { /* by now the counter's total is known */
    mk_instruction in = MK_START(DRAW, MK_NO_LAYER);
    add_search(lowering, &in, rounds_of(lowering));
    in.operands[MK_SLOT_DRAW_scores] = mk_whole(lowering, s->scores);
    in.operands[MK_SLOT_DRAW_choice] = own_row(s->choices, sm);
    mk_add_wait(lowering, &in, ready);
    MK_TRY(mk_emit(lowering, sm, &in, MK_NO_COUNTER));
  }
  *choices = s->choices;
  return MK_OK;
}
