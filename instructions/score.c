/* SCORE: what sampling does to the logits of one SM's tokens before they are compared with the others': penalties and bias.
 * logits, bias, counts, scores [n] (n may be 0), sampling [16], front [98]: what these tokens bring into the draw (sampling.h). Counts stay
 * with the SM: the token of each step is counted by the one that owns its row, a token of the prompt by a mark. */
#include "instructions/search.h"

typedef struct front {
  float scores[MK_FRONT_MOST];
  uint64_t keys[MK_FRONT_MOST];
  uint32_t count;
  bool overflows;
} front;

/* A token is taken in unless one there is as good in both, and takes the place of all that are no better in either. The highest score is
 * first, which has the lowest key. */
static void insert(front *f, float score, uint64_t key) {
  uint32_t kept = 0, at = 0;
  for (uint32_t i = 0; i < f->count; i++) {
    if (f->scores[i] >= score && f->keys[i] > key) {
      return;
    }
  }
  for (uint32_t i = 0; i < f->count; i++) {
    if (f->scores[i] > score || f->keys[i] > key) {
      f->scores[kept] = f->scores[i];
      f->keys[kept++] = f->keys[i];
    }
  }
  if (kept == MK_FRONT_MOST) {
    f->overflows = true;
  } else {
    while (at < kept && f->scores[at] > score) {
      at++;
    }
    memmove(&f->scores[at + 1], &f->scores[at], (kept - at) * sizeof *f->scores);
    memmove(&f->keys[at + 1], &f->keys[at], (kept - at) * sizeof *f->keys);
    f->scores[at] = score;
    f->keys[at] = key;
    kept++;
  }
  f->count = kept;
}

static void enter(front *f, const uint32_t *words, uint64_t noise, float score, uint32_t token) {
  if (mk_is_nan(score) || mk_sampling_cuts(words)) {
    return;
  }
  bool draws = (words[MK_SAMPLING_FLAGS] & MK_SAMPLE_DRAWS) != 0;
  uint64_t key = draws ? mk_sample_draw(words, noise, score, token) : mk_rank_key(score, token);
  insert(f, mk_sampling_one_draw(words) ? 0 : score, key);
}

static void publish(const mk_reference *machine, const mk_span *to, const front *f, uint32_t peak, uint32_t index) {
  uint32_t out[MK_FRONT_WORDS] = {peak};
  out[MK_FRONT_ABOUT] = index | f->count << MK_FRONT_COUNT_AT | (f->overflows ? MK_FRONT_OVERFLOW : 0);
  for (uint32_t i = 0; i < f->count; i++) {
    out[MK_FRONT_KEYS + 2 * i] = (uint32_t)f->keys[i];
    out[MK_FRONT_KEYS + 2 * i + 1] = (uint32_t)(f->keys[i] >> 32);
    out[MK_FRONT_SCORES + i] = mk_bits_of(f->scores[i]);
  }
  mk_publish_words(machine, to, 0, 0, MK_FRONT_WORDS, out);
}

mk_reference_result mk_reference_SCORE(mk_reference *machine, const mk_instruction *instruction) {
  mk_span logits = mk_operand_span(machine, instruction, MK_SLOT_SCORE_logits);
  mk_span counts = mk_operand_span(machine, instruction, MK_SLOT_SCORE_counts);
  mk_span scores = mk_operand_span(machine, instruction, MK_SLOT_SCORE_scores);
  mk_span to = mk_operand_span(machine, instruction, MK_SLOT_SCORE_front);
  mk_span bias = mk_operand_span(machine, instruction, MK_SLOT_SCORE_bias);
  mk_span sampling = mk_operand_span(machine, instruction, MK_SLOT_SCORE_sampling);
  const uint32_t *words = (const uint32_t *)(const void *)sampling.memory;
  const float *logit = (const float *)(const void *)logits.memory, *added = (const float *)(const void *)bias.memory;
  uint32_t *count = (uint32_t *)(void *)counts.memory, peak = 0, index = 0;
  float *score = machine->scratch;
  const mk_step_row *row = &machine->lines[0].row;
  uint64_t noise = mk_draw_key(mk_sampling_seed(words), row->position + 1);
  bool inside = mk_inside_prompt(machine);
  front f = {.count = 0};
  if (!inside) {
    mk_note_read(machine, &logits, 0, 0, logits.cols);
  }
  if (row->token >= counts.col && row->token - counts.col < counts.cols) {
    count[row->token] = (row->flags & MK_ROW_PROMPT) != 0 ? count[row->token] | MK_COUNT_PROMPT : count[row->token] + 1;
  }
  mk_note_write(machine, &counts, 0, 0, counts.cols); /* written in place: what was there first is the host's part */
  for (uint32_t i = 0, token = scores.col; i < scores.cols; i++, token++) {
    score[i] = inside ? 0 : mk_sample_score(words, logit[token], count[token], added[token]);
    if (!inside && mk_peak(score[i]) > peak) {
      peak = mk_peak(score[i]);
      index = token;
    }
    if (!inside) {
      enter(&f, words, noise, score[i], token);
    }
  }
  if (inside) {
    machine->rows_used[MK_SLOT_SCORE_logits] = 0;
  }
  mk_publish_floats(machine, &scores, 0, 0, scores.cols, score);
  publish(machine, &to, &f, peak, index);
  return MK_REFERENCE_DONE;
}
