/* Reading work lists. See mla.h. */
#include "instructions/mla.h"

bool mk_instruction_listed(const mk_instruction *instruction) {
  const mk_opcode_info *info = mk_opcode_lookup(instruction->opcode);
  return info != NULL && info->entries != MK_ENTRIES_NONE;
}

static bool carries_out_items(const mk_instruction *instruction) {
  const mk_opcode_info *info = mk_opcode_lookup(instruction->opcode);
  return info != NULL && info->entries == MK_ENTRIES_ITEMS;
}

bool mk_program_listed(const mk_program *program) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    if (mk_instruction_listed(&program->instructions[i])) {
      return true;
    }
  }
  return false;
}

bool mk_mla_geometry_of(const mk_program *program, mk_mla_geometry *out) {
  const mk_instruction *part = NULL;
  for (size_t i = 0; i < program->instruction_count && part == NULL; i++) {
    part = carries_out_items(&program->instructions[i]) ? &program->instructions[i] : NULL;
  }
  if (part == NULL) {
    return false;
  }
  const mk_operand *o = part->operands;
  *out = (mk_mla_geometry){.q = o[MK_SLOT_MLA_PART_q].buffer,
                           .kv = o[MK_SLOT_MLA_PART_kv].buffer,
                           .sequence_buffer = o[MK_SLOT_MLA_PART_sequences].buffer,
                           .work = o[MK_SLOT_MLA_PART_work].buffer,
                           .parts = o[MK_SLOT_MLA_PART_parts].buffer,
                           .out = o[MK_SLOT_MLA_PART_out].buffer};
  const mk_buffer *b = program->buffers;
  out->sms = (uint32_t)program->queue_count;
  out->rows = b[out->out].cols / MK_MLA_LATENT;
  out->sequences = b[out->sequence_buffer].rows;
  out->blocks = b[out->out].rows / out->sequences;
  out->new_tokens = part->params[MK_PARAM_MLA_PART_tokens];
  out->max_pages = b[out->sequence_buffer].cols - MK_MLA_SEQUENCE_HEAD;
  out->pool_pages = b[out->kv].rows;
  out->slots = b[out->parts].rows;
  out->list_words = b[out->work].cols;
  out->capacity = (out->list_words - MK_MLA_LIST_HEAD) / MK_MLA_ENTRY;
  return true;
}

static mk_mla_list list_of(const mk_program *program, uint8_t *const *memory, const mk_operand *work) {
  const uint32_t *words = (const uint32_t *)(const void *)memory[work->buffer];
  return mk_mla_list_of(words + (size_t)work->row * program->buffers[work->buffer].cols);
}

static bool next_of_part(const mk_mla_list *list, const mk_program *program, const mk_operand *operand, bool parts,
                         mk_listed_tiles *t) {
  while (t->entry < list->items) {
    const mk_mla_item *item = &list->item[t->entry++];
    if ((item->slot != MK_MLA_OUT) == parts) {
      t->row = parts ? item->slot : item->block;
      t->col = 0;
      t->cols = mk_buffer_grid_cols(&program->buffers[operand->buffer]);
      return true;
    }
  }
  return false;
}

static bool next_of_reduce(const mk_mla_list *list, const mk_program *program, const mk_operand *operand, bool parts,
                           mk_listed_tiles *t) {
  if (t->entry == list->reductions) {
    return false;
  }
  const mk_mla_reduction *r = &list->reduction[t->entry];
  t->row = parts ? r->first_slot + t->sub : r->block;
  t->col = parts ? 0 : mk_mla_first_unit(r);
  t->cols = parts ? mk_buffer_grid_cols(&program->buffers[operand->buffer]) : mk_mla_unit_count(r);
  if (!parts || ++t->sub == r->slots) {
    t->entry++;
    t->sub = 0;
  }
  return true;
}

bool mk_listed_next(const mk_program *program, uint8_t *const *memory, const mk_instruction *instruction, uint32_t slot,
                    mk_listed_tiles *tiles) {
  const mk_operand *operand = &instruction->operands[slot];
  if (carries_out_items(instruction)) {
    mk_mla_list list = list_of(program, memory, &instruction->operands[MK_SLOT_MLA_PART_work]);
    return next_of_part(&list, program, operand, slot == MK_SLOT_MLA_PART_parts, tiles);
  }
  mk_mla_list list = list_of(program, memory, &instruction->operands[MK_SLOT_MLA_REDUCE_work]);
  return next_of_reduce(&list, program, operand, slot == MK_SLOT_MLA_REDUCE_parts, tiles);
}
