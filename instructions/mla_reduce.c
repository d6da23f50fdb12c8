/* MLA_REDUCE: the reductions in one row of the work list (mla.h): the partial slots of a block become its output, out =
 * sum_s f_s o_s / sum_s f_s, f_s = 2^(l_s - max), l_s the logarithm of the slot's sum of weights, slots added in their
 * order; slots that saw no token do not count, and a row without any is zero. Units are computed by themselves. Waits
 * for the stamps of what it reads: of each slot its units. */
#include <math.h>
#include <string.h>

#include "instructions/mla.h"
#include "instructions/reference.h"

typedef struct parts_view {
  const uint64_t *words;
  size_t slot_words;
  uint32_t generation;
} parts_view;

static const uint64_t *words_of(const parts_view *view, uint32_t slot, uint32_t unit) {
  return view->words + slot * view->slot_words + (size_t)unit * MK_MLA_UNIT_WORDS;
}

static bool stamped(const parts_view *view, const uint64_t *words, uint32_t count) {
  uint32_t late = 0;
  for (uint32_t i = 0; i < count; i++) {
    late |= (uint32_t)(mk_word_load(&words[i]) >> 32) ^ view->generation;
  }
  return late == 0;
}

static bool is_there(const parts_view *view, const mk_mla_reduction *r) {
  for (uint32_t s = r->first_slot; s < r->first_slot + r->slots; s++) {
    for (uint32_t u = mk_mla_first_unit(r); u < mk_mla_first_unit(r) + mk_mla_unit_count(r); u++) {
      if (!stamped(view, words_of(view, s, u), MK_MLA_UNIT_WORDS)) {
        return false;
      }
    }
  }
  return true;
}

static void note_reads(mk_reference *machine, const mk_span *parts, const mk_mla_reduction *r) {
  for (uint32_t s = r->first_slot; s < r->first_slot + r->slots; s++) {
    mk_note_read(machine, parts, s, mk_mla_first_unit(r) * MK_MLA_UNIT_WORDS, mk_mla_unit_count(r) * MK_MLA_UNIT_WORDS);
  }
}

static float number(const uint64_t *word) { return mk_param_float((uint32_t)mk_word_load(word)); }

static void reduce_unit(const parts_view *view, const mk_mla_reduction *r, uint32_t unit, uint16_t *out) {
  float max = -INFINITY, total = 0, sum[MK_MLA_UNIT] = {0};
  for (uint32_t s = r->first_slot; s < r->first_slot + r->slots; s++) {
    float size = number(words_of(view, s, unit));
    max = size > max || isnan(size) ? size : max;
  }
  for (uint32_t s = r->first_slot; s < r->first_slot + r->slots; s++) {
    const uint64_t *words = words_of(view, s, unit);
    if (number(words) == -INFINITY) {
      continue;
    }
    float weight = exp2f(number(words) - max), factor = weight * number(words + 1);
    total += weight;
    for (uint32_t d = 0; d < MK_MLA_UNIT; d += 2) {
      uint64_t word = mk_word_load(&words[MK_MLA_UNIT_HEAD + d / 2]);
      sum[d] += factor * mk_half_to_float((uint16_t)word);
      sum[d + 1] += factor * mk_half_to_float((uint16_t)(word >> 16));
    }
  }
  for (uint32_t d = 0; d < MK_MLA_UNIT; d++) {
    out[d] = total == 0 ? 0 : mk_float_to_bf16(sum[d] / total);
  }
}

mk_reference_result mk_reference_MLA_REDUCE(mk_reference *machine, const mk_instruction *instruction) {
  mk_span work = mk_operand_span(machine, instruction, MK_SLOT_MLA_REDUCE_work);
  mk_span parts = mk_operand_span(machine, instruction, MK_SLOT_MLA_REDUCE_parts);
  mk_span out = mk_operand_span(machine, instruction, MK_SLOT_MLA_REDUCE_out);
  const uint32_t *row = (const uint32_t *)(const void *)work.memory + (size_t)work.row * work.buffer->cols;
  parts_view view = {.words = (const uint64_t *)(const void *)parts.memory,
                     .slot_words = parts.buffer->cols,
                     .generation = machine->generation};
  mk_mla_list list = mk_mla_list_of(row);
  for (uint32_t i = 0; i < list.reductions; i++) {
    if (!is_there(&view, &list.reduction[i])) {
      return MK_REFERENCE_WAIT;
    }
    note_reads(machine, &parts, &list.reduction[i]);
  }
  for (uint32_t i = 0; i < list.reductions; i++) {
    const mk_mla_reduction *r = &list.reduction[i];
    uint16_t *block = (uint16_t *)(void *)out.memory + (size_t)r->block * out.buffer->cols;
    for (uint32_t u = mk_mla_first_unit(r); u < mk_mla_first_unit(r) + mk_mla_unit_count(r); u++) {
      reduce_unit(&view, r, u, block + (size_t)u * MK_MLA_UNIT);
      mk_note_write(machine, &out, r->block, u * MK_MLA_UNIT, MK_MLA_UNIT);
    }
  }
  return MK_REFERENCE_DONE;
}
