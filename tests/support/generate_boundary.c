/* The token boundary of a random program: heads, what sampling puts after them, and `next`s. See generate_internal.h.
 */
#include "instructions/sampling.h"
#include "tests/support/generate_internal.h"

enum { MAX_ROUNDS = 3 };

static mk_operand part_of(uint16_t buffer, uint32_t first, uint32_t count) {
  return count == 0 ? test_tiles(buffer, 0, 0, 0, 0) : test_tiles(buffer, 0, 1, first, count);
}

typedef struct sampled { /* buffers */
  uint16_t sampling, bias, counts, scores, fronts, rounds[MAX_ROUNDS], choices;
  uint16_t ready; /* counter of the fronts, or NONE */
  uint32_t round_count;
} sampled;

static uint16_t add_rows(generator *g, const char *name, uint32_t cols) {
  return test_add_value(g, name, MK_DTYPE_U32, MK_STORE_STAMPED, g->stateful, cols, cols);
}

static sampled add_sampled(generator *g) {
  uint32_t vocab = g->p->buffers[g->logits].cols;
  sampled s = {.round_count = test_below(g, MAX_ROUNDS + 1), .ready = test_new_hint(g)};
  s.sampling =
      test_add_plain(g, "sampling", MK_KIND_INPUT, MK_DTYPE_U32, g->slots, MK_SAMPLING_WORDS, MK_SAMPLING_WORDS);
  s.bias = test_add_value(g, "bias", MK_DTYPE_F32, MK_STORE_PLAIN, 1, vocab, MK_TILE);
  g->p->buffers[s.bias].kind = MK_KIND_INPUT;
  s.counts = test_add_value(g, "counts", MK_DTYPE_U32, MK_STORE_PLAIN, 1, vocab, MK_TILE);
  s.scores = test_add_value(g, "scores", MK_DTYPE_F32, MK_STORE_STAMPED, 1, vocab, MK_TILE);
  s.fronts = add_rows(g, "fronts", MK_FRONT_WORDS);
  for (uint32_t r = 0; r < s.round_count; r++) {
    s.rounds[r] = add_rows(g, "rounds", MK_SIFT_WORDS);
  }
  s.choices = add_rows(g, "choices", 2);
  return s;
}

/* What SIFT and DRAW look at, in the same slots. */
static void set_search(const generator *g, const sampled *s, mk_instruction *in, uint32_t round) {
  in->operands[MK_SLOT_SIFT_fronts] = test_whole(g, s->fronts);
  in->operands[MK_SLOT_SIFT_rounds] =
      round == 0 ? test_tiles(s->fronts, 0, 0, 0, 0) : test_whole(g, s->rounds[round - 1]);
  in->operands[MK_SLOT_SIFT_sampling] = test_whole(g, s->sampling);
}

/* The tiles [first, first + count) of the vocabulary are this SM's. */
static void push_score(generator *g, const sampled *s, uint32_t sm, uint32_t first, uint32_t count) {
  mk_instruction *in = test_push(g, sm, MK_OP_SCORE);
  in->operands[MK_SLOT_SCORE_logits] = part_of(g->logits, first, count);
  in->operands[MK_SLOT_SCORE_sampling] = test_whole(g, s->sampling);
  in->operands[MK_SLOT_SCORE_bias] = part_of(s->bias, first, count);
  in->operands[MK_SLOT_SCORE_counts] = part_of(s->counts, first, count);
  in->operands[MK_SLOT_SCORE_scores] = part_of(s->scores, first, count);
  in->operands[MK_SLOT_SCORE_front] = test_tiles(s->fronts, sm, 1, 0, 1);
  test_hint_signal(g, in, s->ready);
  for (uint32_t r = 0; r < s->round_count; r++) {
    in = test_push(g, sm, MK_OP_SIFT);
    set_search(g, s, in, r);
    in->operands[MK_SLOT_SIFT_scores] = part_of(s->scores, first, count);
    in->operands[MK_SLOT_SIFT_round] = test_tiles(s->rounds[r], sm, 1, 0, 1);
  }
}

static void push_draws(generator *g, const sampled *s) {
  for (uint32_t sm = 0; sm < g->stateful; sm++) {
    mk_instruction *in = test_push(g, sm, MK_OP_DRAW);
    set_search(g, s, in, s->round_count);
    in->operands[MK_SLOT_DRAW_scores] = test_whole(g, s->scores);
    in->operands[MK_SLOT_DRAW_choice] = test_tiles(s->choices, sm, 1, 0, 1);
    test_hint_wait(g, in, s->ready);
  }
  g->candidates = s->choices;
}

void test_push_heads(generator *g) {
  uint32_t tiles = mk_buffer_grid_cols(&g->p->buffers[g->logits]);
  vector x = g->vectors[g->vector_count - 1];
  g->headed_hint = test_new_hint(g);
  sampled s = {.ready = NONE};
  if (g->recipe.sampling) {
    s = add_sampled(g);
  }
  for (uint32_t sm = 0, first = 0; sm < g->headed; sm++) {
    uint32_t end = sm + 1 == g->headed ? tiles : first + test_below(g, tiles - first + 1), count = end - first;
    mk_instruction *in = test_push(g, sm, MK_OP_HEAD);
    in->operands[MK_SLOT_HEAD_x] = test_whole(g, x.buffer);
    in->operands[MK_SLOT_HEAD_gain] = test_whole(g, g->gain);
    in->operands[MK_SLOT_HEAD_weight] =
        count == 0 ? test_tiles(g->embedding, 0, 0, 0, 0) : test_tiles(g->embedding, first, count, 0, g->tiles);
    in->operands[MK_SLOT_HEAD_logits] = part_of(g->logits, first, count);
    in->operands[MK_SLOT_HEAD_candidate] = test_tiles(g->candidates, sm, 1, 0, 1);
    test_set_norm(g, in, MK_PARAM_HEAD_eps, MK_PARAM_HEAD_width);
    in->params[MK_PARAM_HEAD_vocab] = tiles * MK_TILE;
    test_hint_signal(g, in, g->headed_hint);
    test_hint_wait(g, in, x.hint);
    if (g->recipe.sampling) {
      push_score(g, &s, sm, first, count);
    }
    first = end;
  }
  if (g->recipe.sampling) {
    push_draws(g, &s);
  }
}

void test_push_nexts(generator *g) {
  for (uint32_t sm = 0; sm < g->stateful; sm++) {
    mk_instruction *last = g->counts[sm] == 0 ? NULL : &g->queues[sm][g->counts[sm] - 1];
    mk_instruction *in = test_push(g, sm, MK_OP_NEXT);
    in->operands[MK_SLOT_NEXT_candidates] =
        g->recipe.sampling ? test_tiles(g->candidates, sm, 1, 0, 1) : test_whole(g, g->candidates);
    in->operands[MK_SLOT_NEXT_plan] = test_whole(g, g->plan);
    in->operands[MK_SLOT_NEXT_ring] = sm == 0 ? test_whole(g, g->ring) : test_tiles(g->ring, 0, 0, 0, 0);
    test_hint_wait(g, in, g->headed_hint);
    test_hint_wait(g, in, test_any_vector(g).hint); /* of long ago: whoever signals next must come after that */
    if (g->must_wait[sm] && g->acknowledged != NONE) {
      test_wait(last != NULL && test_below(g, 2) == 0 ? last : in, g->acknowledged,
                g->p->counters[g->acknowledged].total);
    }
  }
}
