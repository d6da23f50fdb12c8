/* See fused.h. */
#include "vm/cpu/fused.h"

#include <string.h>

static bool may_be_elsewhere(const mk_fused *fused, uint32_t index) {
  const mk_instruction *in = &fused->program->instructions[index];
  return mk_program_rows(fused->program) == 1 && (in->flags & MK_FUSED) != 0 &&
         mk_opcode_lookup(in->opcode)->fusion == MK_FUSION_ALONE;
}

/* The instruction that writes the first one of the parts that a COMBINE takes; UINT32_MAX: there is none. */
static uint32_t maker_of(const mk_program *program, const mk_operand *taken) {
  for (uint32_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    const int slot = mk_opcode_writes(mk_opcode_lookup(in->opcode), MK_CONTENT_PARTS);
    const mk_operand *made = slot < 0 ? NULL : &in->operands[slot];
    if (made != NULL && made->buffer == taken->buffer && made->row == 0 && made->col <= taken->col &&
        taken->col + taken->cols <= made->col + made->cols) {
      return i;
    }
  }
  return UINT32_MAX;
}

mk_status mk_fused_init(mk_fused *fused, const mk_program *program) {
  const size_t count = program->instruction_count;
  fused->program = program;
  MK_TRY(mk_alloc(count, sizeof *fused->first, &fused->first));
  MK_TRY(mk_alloc(count, sizeof *fused->next, &fused->next));
  memset(fused->first, 0xff, count * sizeof *fused->first);
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t maker = may_be_elsewhere(fused, i)
                               ? maker_of(program, &program->instructions[i].operands[MK_SLOT_COMBINE_parts])
                               : UINT32_MAX;
    if (maker != UINT32_MAX) {
      fused->next[i] = fused->first[maker];
      fused->first[maker] = i;
    }
  }
  return MK_OK;
}

void mk_fused_free(mk_fused *fused) {
  mk_free(fused->first);
  mk_free(fused->next);
}

bool mk_fused_is_elsewhere(const mk_fused *fused, uint32_t index, const mk_step_state *state) {
  const mk_instruction *in = &fused->program->instructions[index];
  return fused->on && state != NULL && may_be_elsewhere(fused, index) &&
         state->rows[0].position < in->params[MK_PARAM_COMBINE_span];
}
