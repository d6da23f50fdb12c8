/* SCORE: what sampling does to the logits of one SM's tokens before they are compared with the others': penalties and
 * bias. logits, bias, counts, scores [n] (n may be 0), sampling [16], front [98]: what these tokens bring into the draw
 * (sampling.h). Counts stay with the SM: the token of each step is counted by the one that owns its row, a token of the
 * prompt by a mark. With several rows per step sampling, bias and counts have a line for each slot, the others one for
 * each row. */
#include "instructions/search.h"

typedef struct front {
  float scores[MK_FRONT_MOST];
  uint64_t keys[MK_FRONT_MOST];
  uint32_t count;
  bool overflows;
} front;

/* Takes a token in, unless some entry is as good in both score and draw; it replaces all entries that are no better in
 * either. The highest score, whose key is the lowest, comes first. */
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

static void publish(const mk_reference *machine, const mk_span *to, uint32_t line, const front *f, uint32_t peak,
                    uint32_t index) {
  uint32_t out[MK_FRONT_WORDS] = {peak};
  out[MK_FRONT_ABOUT] = index | f->count << MK_FRONT_COUNT_AT | (f->overflows ? MK_FRONT_OVERFLOW : 0);
  for (uint32_t i = 0; i < f->count; i++) {
    out[MK_FRONT_KEYS + 2 * i] = (uint32_t)f->keys[i];
    out[MK_FRONT_KEYS + 2 * i + 1] = (uint32_t)(f->keys[i] >> 32);
    out[MK_FRONT_SCORES + i] = mk_bits_of(f->scores[i]);
  }
  mk_publish_words(machine, to, line, 0, MK_FRONT_WORDS, out);
}

/* What a line is scored by: words, bias and counts are those of its slot. */
typedef struct row {
  const mk_line *line;
  const uint32_t *words;
  const float *logits, *bias;
  uint32_t *counts;
} row;

/* Counts the row's token where it is one of this SM's. */
static void count_token(const row *r, const mk_span *counts) {
  uint32_t token = r->line->row.token;
  if (token >= counts->col && token - counts->col < counts->cols) {
    bool prompt = (r->line->row.flags & MK_ROW_PROMPT) != 0;
    r->counts[token] = prompt ? r->counts[token] | MK_COUNT_PROMPT : r->counts[token] + 1;
  }
}

/* Computes the scores of tokens [first, first + count), and the front that they make; zeros and an empty front where
 * the row does not choose. */
static void score_row(const mk_reference *machine, const mk_span *to, const row *r, uint32_t first, uint32_t count,
                      float *score) {
  bool chooses = mk_line_chooses(r->line);
  uint64_t noise = mk_draw_key(mk_sampling_seed(r->words), r->line->row.position + 1);
  uint32_t peak = 0, index = 0;
  front f = {.count = 0};
  for (uint32_t i = 0, token = first; i < count; i++, token++) {
    score[i] = chooses ? mk_sample_score(r->words, r->logits[token], r->counts[token], r->bias[token]) : 0;
    if (chooses && mk_peak(score[i]) > peak) {
      peak = mk_peak(score[i]);
      index = token;
    }
    if (chooses) {
      enter(&f, r->words, noise, score[i], token);
    }
  }
  publish(machine, to, r->line->line, &f, peak, index);
}

/* Lines come in the order of positions, so a row of a chunk counts the tokens up to its own, as in a program of one
 * row. */
mk_reference_result mk_reference_SCORE(mk_reference *machine, const mk_instruction *instruction) {
  mk_span logits = mk_operand_span(machine, instruction, MK_SLOT_SCORE_logits);
  mk_span counts = mk_operand_span(machine, instruction, MK_SLOT_SCORE_counts);
  mk_span scores = mk_operand_span(machine, instruction, MK_SLOT_SCORE_scores);
  mk_span to = mk_operand_span(machine, instruction, MK_SLOT_SCORE_front);
  mk_span bias = mk_operand_span(machine, instruction, MK_SLOT_SCORE_bias);
  float *score = machine->scratch;
  bool any = false;
  for (uint32_t l = 0; l < machine->line_count; l++) {
    const mk_line *line = &machine->lines[l];
    uint32_t slot = line->row.slot;
    row r = {.line = line,
             .words = mk_sampling_of(machine, instruction, MK_SLOT_SCORE_sampling, line),
             .logits = (const float *)(const void *)logits.memory + (size_t)line->line * logits.buffer->cols,
             .bias = (const float *)(const void *)bias.memory + (size_t)slot * bias.buffer->cols,
             .counts = (uint32_t *)(void *)counts.memory + (size_t)slot * counts.buffer->cols};
    if (mk_line_chooses(line)) {
      any = true;
      mk_note_read(machine, &logits, line->line, 0, logits.cols);
    }
    count_token(&r, &counts);
    mk_note_write(machine, &counts, slot, 0, counts.cols); /* in place: what was there first is the host's part */
    score_row(machine, &to, &r, scores.col, scores.cols, score);
    mk_publish_floats(machine, &scores, line->line, 0, scores.cols, score);
  }
  if (!any) {
    machine->rows_used[MK_SLOT_SCORE_logits] = 0;
  }
  return MK_REFERENCE_DONE;
}
