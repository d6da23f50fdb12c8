/* The sampling part of the token boundary, between HEAD and NEXT. See lower.h and docs/SAMPLING.md.
 *
 * Per SM: SCORE over the logits that its HEAD has left (a release counter of its own orders the two: HEAD's storer writes, SCORE's consumers
 * read), so many rounds of SIFT, and DRAW, whose choices NEXT merges as it merges HEAD's candidates in a greedy program. What an SM
 * publishes stays in a row of its own, in buffers with a row for each SM. */
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
                                   .tile = cols},
                       index);
}

static mk_status declare_vocab(mk_lowering *lowering, const char *name, mk_buffer_kind kind, mk_dtype dtype,
                               mk_store store, uint16_t *index) {
  return mk_add_vector(
      lowering->program, name,
      (mk_vector){.kind = kind, .dtype = dtype, .store = store, .cols = lowering->graph->config.vocab, .tile = MK_TILE},
      index);
}

mk_status mk_declare_sampling(mk_lowering *lowering, uint16_t *logits_ready) {
  mk_lowered_sampling *s = &lowering->sampling;
  for (uint32_t sm = 0; sm < lowering->sms; sm++) {
    char name[24];
    snprintf(name, sizeof name, "logits.%u", sm);
    MK_TRY(mk_program_add_counter(lowering->program, name, MK_COUNTER_RELEASE, &logits_ready[sm]));
  }
  MK_TRY(mk_add_vector(lowering->program, "sampling",
                       (mk_vector){.kind = MK_KIND_INPUT,
                                   .dtype = MK_DTYPE_U32,
                                   .store = MK_STORE_PLAIN,
                                   .cols = MK_SAMPLING_WORDS,
                                   .tile = MK_SAMPLING_WORDS},
                       &s->sampling));
  MK_TRY(declare_vocab(lowering, "logit_bias", MK_KIND_INPUT, MK_DTYPE_F32, MK_STORE_PLAIN, &s->bias));
  MK_TRY(declare_vocab(lowering, "token_counts", MK_KIND_ACTIVATION, MK_DTYPE_U32, MK_STORE_PLAIN, &s->counts));
  MK_TRY(declare_vocab(lowering, "scores", MK_KIND_ACTIVATION, MK_DTYPE_F32, MK_STORE_STAMPED, &s->scores));
  MK_TRY(declare_rows(lowering, "peaks", 2, &s->peaks));
  for (uint32_t r = 0; r < MK_SIFT_ROUNDS; r++) {
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

static mk_status lower_score(mk_lowering *lowering, uint32_t sm, mk_share share, uint16_t logits_ready) {
  const mk_lowered_sampling *s = &lowering->sampling;
  mk_instruction in = mk_start(MK_OP_SCORE, MK_NO_LAYER);
  in.operands[MK_SLOT_SCORE_logits] = part(lowering->logits, share);
  in.operands[MK_SLOT_SCORE_sampling] = mk_whole(lowering, s->sampling);
  in.operands[MK_SLOT_SCORE_bias] = part(s->bias, share);
  in.operands[MK_SLOT_SCORE_counts] = part(s->counts, share);
  in.operands[MK_SLOT_SCORE_scores] = part(s->scores, share);
  in.operands[MK_SLOT_SCORE_peak] = own_row(s->peaks, sm);
  mk_add_wait(lowering, &in, logits_ready);
  return mk_emit(lowering, sm, &in, MK_NO_COUNTER);
}

/* What SIFT and DRAW look at, in the same slots. */
static void add_search(const mk_lowering *lowering, mk_instruction *in, uint32_t round) {
  const mk_lowered_sampling *s = &lowering->sampling;
  in->operands[MK_SLOT_SIFT_candidates] = mk_whole(lowering, lowering->candidates);
  in->operands[MK_SLOT_SIFT_peaks] = mk_whole(lowering, s->peaks);
  in->operands[MK_SLOT_SIFT_rounds] =
      round == 0 ? mk_tiles(s->rounds[0], 0, 0, 0, 0) : mk_whole(lowering, s->rounds[round - 1]);
  in->operands[MK_SLOT_SIFT_sampling] = mk_whole(lowering, s->sampling);
}

static mk_status lower_rounds(mk_lowering *lowering, uint32_t sm, mk_share share) {
  const mk_lowered_sampling *s = &lowering->sampling;
  for (uint32_t r = 0; r < MK_SIFT_ROUNDS; r++) {
    mk_instruction in = mk_start(MK_OP_SIFT, MK_NO_LAYER);
    add_search(lowering, &in, r);
    in.operands[MK_SLOT_SIFT_scores] = part(s->scores, share);
    in.operands[MK_SLOT_SIFT_round] = own_row(s->rounds[r], sm);
    MK_TRY(mk_emit(lowering, sm, &in, MK_NO_COUNTER));
  }
  return MK_OK;
}

mk_status mk_lower_sampling(mk_lowering *lowering, const mk_share *shares, const uint16_t *logits_ready,
                            uint16_t *choices, uint16_t *ready) {
  const mk_lowered_sampling *s = &lowering->sampling;
  MK_TRY(mk_program_add_counter(lowering->program, "choices", MK_COUNTER_RELAXED, ready));
  for (uint32_t sm = 0; sm < lowering->sms; sm++) {
    MK_TRY(lower_score(lowering, sm, shares[sm], logits_ready[sm]));
    MK_TRY(lower_rounds(lowering, sm, shares[sm]));
    mk_instruction in = mk_start(MK_OP_DRAW, MK_NO_LAYER);
    add_search(lowering, &in, MK_SIFT_ROUNDS);
    in.operands[MK_SLOT_DRAW_scores] = mk_whole(lowering, s->scores);
    in.operands[MK_SLOT_DRAW_choice] = own_row(s->choices, sm);
    in.params[MK_PARAM_DRAW_first] = shares[sm].count != 0 ? shares[sm].first : 0;
    in.params[MK_PARAM_DRAW_count] = shares[sm].count;
    MK_TRY(mk_emit(lowering, sm, &in, *ready));
  }
  *choices = s->choices;
  return MK_OK;
}
