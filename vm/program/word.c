/* The word of an instruction, and back. See program.h, and instruction.h for where everything lies. */
#include <stddef.h>
#include <string.h>

#include "vm/program/program.h"

_Static_assert(offsetof(mk_instruction, operands) == MK_HEAD_BYTES &&
                   offsetof(mk_instruction_word, parts) == MK_HEAD_BYTES,
               "both forms begin with the same bytes");

mk_operand mk_operand_whole(const mk_program *program, uint16_t buffer) {
  const mk_buffer *b = &program->buffers[buffer];
  return (mk_operand){
      .buffer = buffer, .rows = (uint16_t)mk_buffer_grid_rows(b), .cols = (uint16_t)mk_buffer_grid_cols(b)};
}

static bool absent(const mk_operand *o) {
  return o->rows == 0 && o->cols == 0 && o->row == 0 && o->col == 0 && o->flags == 0;
}

bool mk_operand_is_whole(const mk_program *program, const mk_operand *o) {
  if (absent(o)) {
    return true;
  }
  if (o->buffer >= program->buffer_count) {
    return false;
  }
  mk_operand whole = mk_operand_whole(program, o->buffer);
  return memcmp(o, &whole, sizeof whole) == 0;
}

static mk_status unknown_opcode(uint32_t opcode) {
  return mk_error(MK_ERR_FILE, "opcode is %u; opcodes are 1 to %d", opcode, MK_OP_COUNT - 1);
}

static mk_status encode_whole(const mk_program *program, const mk_operand_info *slot, const mk_operand *o,
                              uint16_t *half) {
  if (!mk_operand_is_whole(program, o)) {
    bool exists = o->buffer < program->buffer_count;
    return mk_error(
        MK_ERR_FILE,
        "%s: tiles [%u:%u,%u:%u] of buffer %s (number %u), flags 0x%x; this operand is a buffer of the program "
        "from end to end, so give it a buffer of its own",
        slot->name, o->row, (uint32_t)o->row + o->rows, o->col, (uint32_t)o->col + o->cols,
        exists ? program->buffers[o->buffer].name : "?", o->buffer, o->flags);
  }
  *half = absent(o) ? (uint16_t)MK_ABSENT : o->buffer;
  return MK_OK;
}

/* What the opcode does not have is zero: the word has no place for it. */
static mk_status check_unused(const mk_instruction *in, const mk_opcode_info *info) {
  static const mk_operand none;
  for (uint32_t i = info->operand_count; i < MK_MAX_OPERANDS; i++) {
    if (memcmp(&in->operands[i], &none, sizeof none) != 0) {
      return mk_error(MK_ERR_FILE, "operand %u of %s is not zero; it has %u", i, info->name, info->operand_count);
    }
  }
  for (uint32_t i = info->param_count; i < MK_MAX_PARAMS; i++) {
    if (in->params[i] != 0) {
      return mk_error(MK_ERR_FILE, "parameter %u of %s is 0x%x; it has %u, so make it zero", i, info->name,
                      in->params[i], info->param_count);
    }
  }
  return MK_OK;
}

mk_status mk_encode(const mk_program *program, const mk_instruction *in, mk_instruction_word *out) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  if (info == NULL) {
    return unknown_opcode(in->opcode);
  }
  MK_TRY(check_unused(in, info));
  memset(out, 0, sizeof *out);
  memcpy(out, in, MK_HEAD_BYTES);
  for (uint32_t i = 0; i < info->operand_count; i++) {
    const mk_operand_info *slot = &info->operands[i];
    if (slot->extent == MK_EXTENT_PART) {
      out->parts[slot->place] = in->operands[i];
    } else {
      uint16_t *half = &out->halves[info->part_count * MK_PART_HALVES + slot->place];
      MK_TRY(encode_whole(program, slot, &in->operands[i], half));
    }
  }
  for (uint32_t i = 0; i < info->param_count; i++) {
    out->words[MK_POOL_WORDS - 1 - i] = in->params[i];
  }
  return MK_OK;
}

/* Between the last operand and the last parameter. */
static mk_status check_gap(const mk_instruction_word *word, const mk_opcode_info *info) {
  uint32_t wholes = info->operand_count - info->part_count;
  uint32_t from = info->part_count * MK_PART_HALVES + wholes, to = MK_POOL_HALVES - 2 * info->param_count;
  for (uint32_t half = from; half < to; half++) {
    if (word->halves[half] != 0) {
      return mk_error(MK_ERR_FILE, "bytes %u and %u of %s are 0x%04x; nothing is there, so they are zero",
                      MK_HEAD_BYTES + 2 * half, MK_HEAD_BYTES + 2 * half + 1, info->name, word->halves[half]);
    }
  }
  return MK_OK;
}

mk_status mk_decode(const mk_program *program, const mk_instruction_word *word, mk_instruction *out) {
  const mk_opcode_info *info = mk_opcode_lookup(word->opcode);
  if (info == NULL) {
    return unknown_opcode(word->opcode);
  }
  MK_TRY(check_gap(word, info));
  memset(out, 0, sizeof *out);
  memcpy(out, word, MK_HEAD_BYTES);
  for (uint32_t i = 0; i < info->operand_count; i++) {
    const mk_operand_info *slot = &info->operands[i];
    if (slot->extent == MK_EXTENT_PART) {
      out->operands[i] = word->parts[slot->place];
      continue;
    }
    uint16_t buffer = word->halves[info->part_count * MK_PART_HALVES + slot->place];
    if (buffer != MK_ABSENT && buffer >= program->buffer_count) {
      return mk_error(MK_ERR_FILE, "%s of %s: buffer is %u; the program has %zu", slot->name, info->name, buffer,
                      program->buffer_count);
    }
    out->operands[i] = buffer == MK_ABSENT ? (mk_operand){0} : mk_operand_whole(program, buffer);
  }
  for (uint32_t i = 0; i < info->param_count; i++) {
    out->params[i] = word->words[MK_POOL_WORDS - 1 - i];
  }
  return MK_OK;
}
