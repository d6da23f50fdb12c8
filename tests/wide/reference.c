/* The reference of the test's opcode. */
#include "instructions/reference.h"

static const void *first_element(mk_reference *machine, const mk_span *span, size_t size) {
  mk_note_read(machine, span, 0, 0, span->cols);
  return span->memory + ((size_t)span->row * span->buffer->cols + span->col) * size;
}

static const float *floats(mk_reference *machine, const mk_instruction *in, uint32_t slot) {
  mk_span span = mk_operand_span(machine, in, slot);
  return first_element(machine, &span, sizeof(float));
}

static const uint16_t *halves(mk_reference *machine, const mk_instruction *in, uint32_t slot) {
  mk_span span = mk_operand_span(machine, in, slot);
  return first_element(machine, &span, sizeof(uint16_t));
}

static float number(const mk_instruction *in, uint32_t param) { return mk_param_float(in->params[param]); }

mk_reference_result mk_reference_WIDE(mk_reference *machine, const mk_instruction *in) {
  mk_span x = mk_operand_span(machine, in, MK_SLOT_WIDE_x), out = mk_operand_span(machine, in, MK_SLOT_WIDE_out);
  mk_span expert = mk_operand_span(machine, in, MK_SLOT_WIDE_expert);
  float *y = machine->scratch;
  if (!mk_stage_rows(machine, &x, 1, y)) {
    return MK_REFERENCE_WAIT;
  }
  const uint32_t *chosen = first_element(machine, &expert, sizeof(uint32_t));
  const uint16_t *first_gain = halves(machine, in, MK_SLOT_WIDE_first_gain),
                 *second_gain = halves(machine, in, MK_SLOT_WIDE_second_gain);
  const float *bias = floats(machine, in, MK_SLOT_WIDE_bias), *scales = floats(machine, in, MK_SLOT_WIDE_scales),
              *zeros = floats(machine, in, MK_SLOT_WIDE_zeros), *experts = floats(machine, in, MK_SLOT_WIDE_experts);
  experts += (size_t)chosen[in->params[MK_PARAM_WIDE_index]] * in->params[MK_PARAM_WIDE_stride];
  for (uint32_t i = 0; i < x.cols; i++) {
    float sum = number(in, MK_PARAM_WIDE_a) * (y[i] * mk_bf16_to_float(first_gain[i]) + bias[i]);
    sum += number(in, MK_PARAM_WIDE_b) * scales[i];
    sum += number(in, MK_PARAM_WIDE_c) * (zeros[i] - mk_bf16_to_float(second_gain[i]));
    sum += number(in, MK_PARAM_WIDE_d) * experts[i];
    y[i] = sum + number(in, MK_PARAM_WIDE_e) * (float)(i % in->params[MK_PARAM_WIDE_modulus]);
  }
  mk_publish_floats(machine, &out, 0, 0, x.cols, y);
  return MK_REFERENCE_DONE;
}
