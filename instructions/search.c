/* See search.h. */
#include "instructions/search.h"

#include <math.h>

const uint32_t *mk_sampling_of(const mk_reference *machine, const mk_instruction *instruction, uint32_t operand,
                               const mk_line *line) {
  const uint8_t *memory = mk_operand_span(machine, instruction, operand).memory;
  return (const uint32_t *)(const void *)memory + (size_t)line->row.slot * MK_SAMPLING_WORDS;
}

void mk_search_begin(mk_reference *machine) {
  for (uint32_t slot = MK_SEARCH_FRONTS; slot <= MK_SEARCH_SCORES; slot++) {
    machine->rows_used[slot] = 0;
  }
}

void mk_search_init(mk_search *search, mk_reference *machine, const mk_instruction *instruction, const mk_line *line) {
  *search = (mk_search){.machine = machine, .instruction = instruction, .line = line};
  search->words = mk_sampling_of(machine, instruction, MK_SEARCH_SAMPLING, line);
  search->key = mk_draw_key(mk_sampling_seed(search->words), line->row.position + 1);
}

/* Stages what each of all `*sms` SMs has published for the line. */
static bool stage_all(mk_search *search, uint32_t slot, uint32_t *sms) {
  mk_span span = mk_operand_span(search->machine, search->instruction, slot);
  *sms = search->machine->rows_used[slot] = search->instruction->operands[slot].rows;
  return mk_stage_line(search->machine, &span, search->line->line, search->machine->scratch);
}

/* Words are staged as the floats that have their bits. */
static uint64_t key_of(const float *front, uint32_t entry) {
  const float *pair = front + MK_FRONT_KEYS + (size_t)2 * entry;
  return (uint64_t)mk_bits_of(pair[1]) << 32 | mk_bits_of(pair[0]);
}

static void best_of_front(mk_search *search, const float *front) {
  uint32_t count = mk_bits_of(front[MK_FRONT_ABOUT]) >> MK_FRONT_COUNT_AT & MK_FRONT_COUNT_BITS;
  for (uint32_t i = 0; i < count && i < MK_FRONT_MOST; i++) {
    float distance = mk_sample_distance(search->words, front[MK_FRONT_SCORES + i], search->highest);
    if (key_of(front, i) > search->winner &&
        (mk_sampling_one_draw(search->words) || !mk_sample_drops(search->words, distance))) {
      search->winner = key_of(front, i);
    }
  }
}

bool mk_search_fronts(mk_search *search) {
  const float *staged = search->machine->scratch;
  uint32_t peak = 0, sms;
  if (!stage_all(search, MK_SEARCH_FRONTS, &sms)) {
    return false;
  }
  for (uint32_t i = 0; i < sms; i++) {
    const float *front = staged + (size_t)i * MK_FRONT_WORDS;
    uint32_t about = mk_bits_of(front[MK_FRONT_ABOUT]), token = about & MK_SAMPLING_INDEX_MASK;
    uint32_t own = mk_bits_of(front[MK_FRONT_PEAK]);
    peak = own > peak ? own : peak;
    search->overflows |= (about & MK_FRONT_OVERFLOW) != 0;
    if (own == MK_PEAK_NAN && mk_draw_failed(token) > search->winner) {
      search->winner = mk_draw_failed(token);
    }
  }
  search->highest = mk_unordered(peak);
  search->state = peak == MK_PEAK_NAN ? MK_SIFT_FAILED : MK_SIFT_OPEN;
  for (uint32_t i = 0; search->state == MK_SIFT_OPEN && i < sms; i++) {
    best_of_front(search, staged + (size_t)i * MK_FRONT_WORDS);
  }
  return true;
}

static uint64_t pair_of(const float *row, uint32_t field, uint32_t segment) {
  const float *pair = row + mk_sift_word(field, segment);
  return (uint64_t)mk_bits_of(pair[1]) << 32 | mk_bits_of(pair[0]);
}

/* The sum of all SMs' tallies; the pivots are the same for all. */
static void sum_rounds(mk_search *search, const float *rows, uint32_t count) {
  mk_tally *t = &search->tally;
  memset(t, 0, sizeof *t);
  for (uint32_t r = 0; r < count; r++) {
    const float *row = rows + (size_t)r * MK_SIFT_WORDS;
    for (uint32_t s = 0; s < MK_SIFT_SEGMENTS; s++) {
      uint64_t best = pair_of(row, MK_SIFT_BEST, s);
      t->count[s] += mk_bits_of(row[mk_sift_word(MK_SIFT_COUNT, s)]);
      t->mass[s] += pair_of(row, MK_SIFT_MASS, s);
      t->best[s] = best > t->best[s] ? best : t->best[s];
    }
  }
}

static void begin(mk_search *search) {
  for (uint32_t j = 0; j < MK_SIFT_SEGMENTS; j++) {
    search->pivots[j] = mk_sift_first_pivot(search->words, search->highest, j);
  }
}

/* The row of one SM in the round before. */
static bool stage_one(mk_search *search, uint32_t sm) {
  mk_span one = mk_operand_span(search->machine, search->instruction, MK_SEARCH_ROUNDS);
  one.rows = one.buffer->tile_rows;
  one.row = sm * one.rows;
  return mk_stage_line(search->machine, &one, search->line->line, search->machine->scratch);
}

static void decide(mk_search *search) {
  search->state =
      mk_sift_decide(search->words, &search->tally, search->pivots, &search->winner) ? MK_SIFT_FOUND : MK_SIFT_OPEN;
}

/* Comes after all SMs' tallies. The first round of a pair is followed by a round that publishes their sums; without
 * pairs each SM adds them up by itself. */
static bool add_up(mk_search *search, uint32_t sm, uint32_t owner) {
  uint32_t sms = 0;
  bool sums = search->instruction->opcode == MK_OP_SIFT &&
              mk_operand_span(search->machine, search->instruction, MK_SEARCH_OUT).buffer->tile_rows > 1;
  if ((!sums || sm == owner) && !stage_all(search, MK_SEARCH_ROUNDS, &sms)) {
    return false;
  }
  sum_rounds(search, search->machine->scratch, sms);
  search->state = MK_SIFT_SUMMED;
  if (!sums) {
    decide(search);
  }
  return true;
}

bool mk_search_resume(mk_search *search) {
  const mk_operand *rounds = &search->instruction->operands[MK_SEARCH_ROUNDS],
                   *out = &search->instruction->operands[MK_SEARCH_OUT];
  const float *row = search->machine->scratch;
  if (rounds->rows == 0 || !mk_sampling_cuts(search->words)) {
    begin(search);
    return true;
  }
  uint32_t lines = mk_operand_span(search->machine, search->instruction, MK_SEARCH_ROUNDS).buffer->tile_rows,
           owner = mk_sift_owner(search->line->line, lines, rounds->rows);
  if (!stage_one(search, out->row)) {
    return false;
  }
  mk_sift_state state = (mk_sift_state)mk_bits_of(row[MK_SIFT_STATE_WORD]);
  if (state == MK_SIFT_FOUND) {
    search->state = state;
    search->winner = pair_of(row, MK_SIFT_BEST, 0);
  } else if (state == MK_SIFT_OPEN || state == MK_SIFT_SUMMED) {
    for (uint32_t s = 0; s < MK_SIFT_SEGMENTS; s++) {
      search->pivots[s] = pair_of(row, MK_SIFT_PIVOT, s);
    }
    if (state == MK_SIFT_OPEN) {
      return add_up(search, out->row, owner);
    }
    if (!stage_one(search, owner)) {
      return false;
    }
    sum_rounds(search, row, 1);
    decide(search);
  } else {
    begin(search);
  }
  return true;
}

bool mk_search_tally(mk_search *search, uint32_t first, uint32_t count, float *scratch) {
  mk_tally *t = &search->tally;
  bool mass = (search->words[MK_SAMPLING_FLAGS] & MK_SAMPLE_TOP_P) != 0;
  mk_span span = mk_operand_span(search->machine, search->instruction, MK_SEARCH_SCORES);
  memset(t, 0, sizeof *t);
  if (count == 0) {
    return true;
  }
  if (first == span.col && count == span.cols) {
    search->machine->rows_used[MK_SEARCH_SCORES] = search->instruction->operands[MK_SEARCH_SCORES].rows;
  }
  span.col = first;
  span.cols = count;
  if (!mk_stage_line(search->machine, &span, search->line->line, scratch)) {
    return false;
  }
  for (uint32_t i = 0; i < count; i++) {
    float distance = mk_sample_distance(search->words, scratch[i], search->highest);
    uint32_t segment = mk_sift_segment(search->pivots, mk_rank_key(scratch[i], first + i));
    uint64_t draw = mk_sample_drops(search->words, distance)
                        ? 0
                        : mk_sample_draw(search->words, search->key, scratch[i], first + i);
    t->count[segment]++;
    t->mass[segment] += mass ? mk_sample_weight(distance) : 0;
    t->best[segment] = draw > t->best[segment] ? draw : t->best[segment];
  }
  return true;
}
