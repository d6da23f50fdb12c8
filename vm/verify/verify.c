/* The verifier's driver and its messages. See verify.h. */
#include "vm/verify/verify.h"

#include <stdio.h>
#include <string.h>

#include "vm/verify/internal.h"

mk_place mk_place_of(const mk_verifier *v, size_t instruction) {
  mk_place place;
  const mk_instruction *in = mk_at(v, instruction);
  const mk_opcode_info *info = mk_info(in);
  uint32_t queue = v->queue_of[instruction], sms = v->program->machine.sms;
  int used = v->program->machine.ranks > 1 ? snprintf(place.text, sizeof place.text, "rank %u ", queue / sms) : 0;
  snprintf(place.text + used, sizeof place.text - (size_t)used, "SM %u position %u #%u %s", queue % sms,
           mk_position_of(v, instruction), in->uid, info == NULL ? "?" : info->name);
  return place;
}

mk_status mk_reject(mk_verifier *v, const char *rule, size_t instruction, const char *format, ...) {
  char text[3600];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  snprintf(v->report.rule, sizeof v->report.rule, "%s", rule);
  if (instruction == MK_NONE_INDEX) {
    return mk_error(MK_ERR_REJECTED, "%s: %s", rule, text);
  }
  uint32_t queue = v->queue_of[instruction], sms = v->program->machine.sms;
  v->report.uid = mk_at(v, instruction)->uid;
  v->report.rank = queue / sms;
  v->report.sm = queue % sms;
  v->report.position = mk_position_of(v, instruction);
  return mk_error(MK_ERR_REJECTED, "%s: %s: %s", rule, mk_place_of(v, instruction).text, text);
}

mk_extent mk_extent_of(const mk_verifier *v, const mk_operand *operand) {
  const mk_buffer *b = &v->program->buffers[operand->buffer];
  uint64_t row = (uint64_t)operand->row * b->tile_rows, row_end = row + (uint64_t)operand->rows * b->tile_rows;
  uint64_t col = (uint64_t)operand->col * b->tile_cols, col_end = col + (uint64_t)operand->cols * b->tile_cols;
  row_end = row_end < b->rows ? row_end : b->rows;
  col_end = col_end < b->cols ? col_end : b->cols;
  return (mk_extent){.row = (uint32_t)row,
                     .rows = row_end > row ? (uint32_t)(row_end - row) : 0,
                     .col = (uint32_t)col,
                     .cols = col_end > col ? (uint32_t)(col_end - col) : 0};
}

void mk_verify_free(mk_verifier *v) {
  mk_free(v->queue_of);
  mk_free(v->lane_of);
  mk_free(v->lines_of);
  mk_free(v->team_of);
  mk_free(v->links);
  mk_free(v->writes);
  mk_free(v->targets);
  mk_free(v->groups);
  mk_free(v->readers);
  mk_free(v->cuts);
  mk_free(v->rows);
  mk_free(v->spans);
}

static mk_status verify(mk_verifier *v) {
  MK_TRY(mk_verify_structure(v));
  MK_TRY(mk_verify_boundary(v));
  MK_TRY(mk_verify_listed(v));
  MK_TRY(mk_verify_shares(v));
  MK_TRY(mk_verify_caches(v));
  MK_TRY(mk_verify_access(v));
  return mk_verify_order(v);
}

mk_status mk_verify(const mk_program *program, mk_verify_report *report) {
  mk_verifier v = {.program = program,
                   .report = {.uid = MK_NO_PLACE, .rank = MK_NO_PLACE, .sm = MK_NO_PLACE, .position = MK_NO_PLACE}};
  mk_status status = verify(&v);
  mk_verify_free(&v);
  if (report != NULL) {
    *report = v.report;
  }
  return status;
}
