/* See compare_draw.h. */
#include "tools/lib/compare_draw.h"

#include <string.h>

#include "instructions/search.h"

bool mk_compare_draws(const mk_instruction *in) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  return mk_opcode_writes(info, MK_CONTENT_FRONT) >= 0 || mk_opcode_reads(info, MK_CONTENT_FRONT) >= 0;
}

/* Buffers of rounds are numbered in the order of the rounds. */
uint32_t mk_compare_turn(const mk_instruction *in) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  int round = mk_opcode_writes(info, MK_CONTENT_ROUND);
  return info->state == MK_STATE_WRITE                   ? UINT32_MAX
         : mk_opcode_writes(info, MK_CONTENT_FRONT) >= 0 ? 1
         : round >= 0                                    ? 2u + in->operands[round].buffer
         : mk_opcode_reads(info, MK_CONTENT_FRONT) >= 0  ? UINT32_MAX - 1
                                                         : 0;
}

bool mk_compare_is_carried(const mk_buffer *buffer) {
  return buffer->store == MK_STORE_BLOCKS ||
         (buffer->kind == MK_KIND_ACTIVATION && buffer->store == MK_STORE_PLAIN && buffer->dtype == MK_DTYPE_U32);
}

static mk_status off(const mk_reference *r, const mk_instruction *in, const mk_line *line, const char *what) {
  return mk_error(MK_ERR_DEVICE, "position %u, line %u: SM %u, instruction %u (%s): %s", line->row.position, line->line,
                  r->sm, in->uid, mk_opcode_lookup(in->opcode)->name, what);
}

/* A row of words of which some are there. */
typedef struct stamped {
  const uint64_t *words;
  uint32_t generation;
} stamped;

static stamped row_of(const mk_span *span, const uint8_t *memory, uint32_t line, uint32_t generation) {
  return (stamped){(const uint64_t *)(const void *)memory + (size_t)(span->row + line) * span->buffer->cols + span->col,
                   generation};
}
static bool has(const stamped *s, uint32_t first, uint32_t count) {
  bool there = true;
  for (uint32_t i = first; i < first + count; i++) {
    there = there && s->words[i] >> 32 == s->generation;
  }
  return there;
}
static uint32_t word(const stamped *s, uint32_t at) { return (uint32_t)s->words[at]; }
static uint64_t key_of(const stamped *front, uint32_t entry) {
  const uint32_t at = MK_FRONT_KEYS + 2 * entry;
  return (uint64_t)word(front, at + 1) << 32 | word(front, at);
}
static uint32_t entries_of(const stamped *front) {
  return word(front, MK_FRONT_ABOUT) >> MK_FRONT_COUNT_AT & MK_FRONT_COUNT_BITS;
}

/* The next entry from *at on that counts whatever the other SMs have: one that min-p does not drop beside this SM's own
 * first rank. */
static bool next_entry(const stamped *front, const uint32_t *words, uint32_t *at) {
  const float peak = mk_unordered(word(front, MK_FRONT_PEAK));
  while (*at < entries_of(front) && *at < MK_FRONT_MOST && !mk_sampling_one_draw(words) &&
         mk_sample_drops(words, mk_sample_distance(words, mk_float_of(word(front, MK_FRONT_SCORES + *at)), peak))) {
    ++*at;
  }
  return *at < entries_of(front) && *at < MK_FRONT_MOST;
}

/* In whichever order they stand. */
static bool has_entry(const stamped *want, const uint32_t *words, const stamped *got, uint32_t entry) {
  for (uint32_t w = 0; next_entry(want, words, &w); w++) {
    if (key_of(want, w) == key_of(got, entry)) {
      return mk_sampling_one_draw(words) || word(want, MK_FRONT_SCORES + w) == word(got, MK_FRONT_SCORES + entry);
    }
  }
  return false;
}

/* What a machine's front has of the first rank's draw alone, for a search. */
static mk_status compare_first_rank(const mk_reference *r, const mk_instruction *in, const mk_line *line,
                                    const uint32_t *words, const stamped *got) {
  uint64_t noise = mk_draw_key(mk_sampling_seed(words), line->row.position + 1);
  uint32_t token = word(got, MK_FRONT_ABOUT) & MK_SAMPLING_INDEX_MASK;
  uint64_t draw = mk_sample_draw(words, noise, mk_unordered(word(got, MK_FRONT_PEAK)), token);
  return entries_of(got) == 0 || (entries_of(got) == 1 && has(got, MK_FRONT_KEYS, 2) && key_of(got, 0) == draw)
             ? MK_OK
             : off(r, in, line, "its front has another draw than that of the first rank");
}

static mk_status compare_front(const mk_reference *r, const mk_instruction *in, const mk_line *line,
                               const uint32_t *words, const stamped *got, const stamped *want) {
  const uint32_t first_rank = word(want, MK_FRONT_ABOUT) & MK_SAMPLING_INDEX_MASK;
  if (!has(got, MK_FRONT_PEAK, 2) || word(got, MK_FRONT_PEAK) != word(want, MK_FRONT_PEAK) ||
      (word(got, MK_FRONT_ABOUT) & MK_SAMPLING_INDEX_MASK) != first_rank) {
    return off(r, in, line, "its front has not the first rank of its tokens");
  }
  if (word(want, MK_FRONT_PEAK) == MK_PEAK_NAN) {
    return MK_OK; /* the rest counts for nothing */
  }
  if (mk_sampling_cuts(words)) {
    return compare_first_rank(r, in, line, words, got);
  }
  if (((word(got, MK_FRONT_ABOUT) | word(want, MK_FRONT_ABOUT)) & MK_FRONT_OVERFLOW) != 0) {
    return MK_OK; /* its entries count for nothing */
  }
  uint32_t all = 0, found = 0;
  for (uint32_t w = 0; next_entry(want, words, &w); w++) {
    all++;
  }
  for (uint32_t g = 0; next_entry(got, words, &g); g++) {
    const bool there =
        has(got, MK_FRONT_KEYS + 2 * g, 2) && (mk_sampling_one_draw(words) || has(got, MK_FRONT_SCORES + g, 1));
    found++;
    if (!there || !has_entry(want, words, got, g)) {
      return off(r, in, line, "an entry of its front is another token's");
    }
  }
  return found == all ? MK_OK : off(r, in, line, "its front has another number of entries");
}

static mk_status compare_counts(const mk_reference *r, uint8_t *const *seen, const mk_instruction *in,
                                const mk_line *line) {
  mk_span span = mk_operand_span(r, in, MK_SLOT_SCORE_counts);
  const size_t at = ((size_t)line->row.slot * span.buffer->cols + span.col) * sizeof(uint32_t);
  return memcmp(seen[in->operands[MK_SLOT_SCORE_counts].buffer] + at, span.memory + at, span.cols * sizeof(uint32_t)) ==
                 0
             ? MK_OK
             : off(r, in, line, "it counts its tokens otherwise");
}

mk_status mk_compare_drawn(const mk_reference *r, uint8_t *const *seen, const mk_instruction *in) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const int front = mk_opcode_writes(info, MK_CONTENT_FRONT), choice = mk_opcode_writes(info, MK_CONTENT_CANDIDATE);
  for (uint32_t l = 0; (front >= 0 || choice >= 0) && l < r->line_count; l++) {
    const mk_line *line = &r->lines[l];
    const uint32_t slot = (uint32_t)(front >= 0 ? front : choice);
    const mk_span span = mk_operand_span(r, in, slot);
    const stamped got = row_of(&span, seen[in->operands[slot].buffer], line->line, r->generation),
                  want = row_of(&span, span.memory, line->line, r->generation);
    if (front >= 0) {
      MK_TRY(compare_front(r, in, line, mk_sampling_of(r, in, MK_SLOT_SCORE_sampling, line), &got, &want));
      MK_TRY(compare_counts(r, seen, in, line));
    } else if (!has(&got, 0, 2) || word(&got, 0) != word(&want, 0) || word(&got, 1) != word(&want, 1)) {
      return off(r, in, line, "its choice is another token");
    }
  }
  return MK_OK;
}
