/* Phase 2, of values that mean something to their readers: rules S11, R05 and B05.
 *
 * Most values are numbers, and any number will do. A candidate, however, holds a token's index, a front and a round
 * hold keys and counts, and a machine may keep scores to the SM that has made them. What is read as one of these has
 * been written as such. */
#include <stdio.h>
#include <string.h>

#include "instructions/mla.h"
#include "vm/program/plan.h"
#include "vm/verify/internal.h"

static const char *const meanings[MK_CONTENT_COUNT] = {
    "numbers", "gains",  "a block table", "a work list", "parts of attention",
    "logits",  "scores", "fronts",        "rounds",      "candidates"};

/* Both mean the same spans of tokens by the parts. */
static mk_status check_spans(mk_verifier *v, uint32_t reader, uint32_t writer) {
  const mk_instruction *in = mk_at(v, reader), *from = mk_at(v, writer);
  const uint32_t span = v->program->buffers[from->operands[MK_SLOT_ATTENTION_kv].buffer].span_tokens;
  const uint32_t spans = from->operands[MK_SLOT_ATTENTION_out].cols / from->params[MK_PARAM_ATTENTION_group];
  if (in->params[MK_PARAM_COMBINE_span] != span) {
    return mk_reject(v, "S11", reader, "span is %u; the parts are those of %s, of spans of %u tokens",
                     in->params[MK_PARAM_COMBINE_span], mk_place_of(v, writer).text, span);
  }
  return in->params[MK_PARAM_COMBINE_spans] == spans
             ? MK_OK
             : mk_reject(v, "S11", reader, "spans is %u; the parts are those of %s, which has %u of a head",
                         in->params[MK_PARAM_COMBINE_spans], mk_place_of(v, writer).text, spans);
}

mk_status mk_verify_value(mk_verifier *v, uint32_t reader, uint32_t slot, const mk_write *write) {
  const mk_instruction *in = mk_at(v, reader), *from = mk_at(v, write->instruction);
  mk_content have = mk_info(from)->operands[write->slot].content, want = mk_info(in)->operands[slot].content;
  if (have != want) {
    return mk_reject(v, "S11", reader, "%s: takes %s from buffer %s, where %s writes %s",
                     mk_info(in)->operands[slot].name, meanings[want], v->program->buffers[write->key >> 32].name,
                     mk_place_of(v, write->instruction).text, meanings[have]);
  }
  return want == MK_CONTENT_PARTS ? check_spans(v, reader, write->instruction) : MK_OK;
}

/* Rule R05, of programs of several rows and those in which something is fused. Whoever writes parts may write what is
 * made of them, so SMs that may touch the former must be allowed to touch the latter. `partner`: by buffer, 1 + the
 * other one of parts and value; 0 for all others. */
static mk_status check_pairs(mk_verifier *v, uint32_t *partner) {
  const mk_program *p = v->program;
  for (uint32_t i = 0; i < p->instruction_count; i++) {
    const mk_instruction *in = mk_at(v, i);
    if (mk_opcode_reads(mk_info(in), MK_CONTENT_PARTS) >= 0) {
      uint32_t from = in->operands[MK_SLOT_COMBINE_parts].buffer, to = in->operands[MK_SLOT_COMBINE_out].buffer;
      const mk_buffer *parts = &p->buffers[from], *out = &p->buffers[to];
      const uint32_t heads = parts->cols / parts->tile_cols / in->params[MK_PARAM_COMBINE_spans];
      if (out->cols != heads * (parts->tile_cols - 2u) || out->scope < parts->scope ||
          out->kind != MK_KIND_ACTIVATION || (partner[from] != 0 && partner[from] != to + 1) ||
          (partner[to] != 0 && partner[to] != from + 1)) {
        return mk_reject(
            v, "R05", i,
            "makes columns of buffer %s from %s; with several rows per step, or a mark as fused, one whole "
            "activation is made of another, of no wider scope",
            out->name, parts->name);
      }
      partner[from] = to + 1;
      partner[to] = from + 1;
    }
  }
  for (uint32_t i = 0; i < p->instruction_count; i++) {
    const mk_instruction *in = mk_at(v, i);
    bool combines = mk_opcode_reads(mk_info(in), MK_CONTENT_PARTS) >= 0;
    for (uint32_t slot = 0; slot < mk_info(in)->operand_count; slot++) {
      uint32_t buffer = in->operands[slot].buffer;
      const mk_operand_info *info = &mk_info(in)->operands[slot];
      bool parts = info->access != MK_ACCESS_READ && info->content == MK_CONTENT_PARTS;
      bool writes = info->access != MK_ACCESS_READ && !combines;
      if (parts ? partner[buffer] == 0 : partner[buffer] != 0 && writes) {
        return mk_reject(v, "R05", i, "%s: writes buffer %s, which %s", info->name, p->buffers[buffer].name,
                         parts ? "no combine reads" : "a combine writes or reads, too");
      }
    }
  }
  return MK_OK;
}

/* Rule B05: by one table no block has two places in a cache; by two it might. `tables`: by buffer, 1 + the table of a
 * cache; 0 for all others. */
static mk_status check_tables(mk_verifier *v, uint32_t *tables) {
  for (uint32_t i = 0; i < v->program->instruction_count; i++) {
    const mk_operand *o = mk_at(v, i)->operands;
    const int cache = mk_opcode_cache(mk_info(mk_at(v, i)));
    if (cache >= 0) {
      uint32_t *table = &tables[o[cache].buffer];
      uint32_t have = o[mk_opcode_reads(mk_info(mk_at(v, i)), MK_CONTENT_TABLE)].buffer + 1u;
      if (*table != 0 && *table != have) {
        return mk_reject(v, "B05", i, "table: buffer %s; another instruction finds blocks of cache %s by buffer %s",
                         v->program->buffers[have - 1].name, v->program->buffers[o[cache].buffer].name,
                         v->program->buffers[*table - 1].name);
      }
      *table = have;
    }
  }
  return MK_OK;
}

static mk_status check_plan(mk_verifier *v) {
  mk_plan_buffers buffers;
  char why[200];
  bool empty = mk_program_rows(v->program) == 1 && v->program->instruction_count == 0;
  if (empty || mk_program_listed(v->program) || mk_plan_find(v->program, &buffers) == MK_OK) {
    return MK_OK;
  }
  snprintf(why, sizeof why, "%s", mk_error_message());
  return mk_reject(v, "B05", MK_NONE_INDEX, "%s", why);
}

mk_status mk_verify_caches(mk_verifier *v) {
  uint32_t *partner;
  MK_TRY(mk_alloc(v->program->buffer_count, sizeof *partner, &partner));
  mk_status status = check_tables(v, partner);
  if (status == MK_OK) {
    status = check_plan(v);
  }
  bool pairs = mk_program_rows(v->program) > 1;
  for (uint32_t i = 0; i < v->program->instruction_count; i++) {
    pairs |= mk_fused_anywhere(mk_at(v, i));
  }
  if (status == MK_OK && pairs) {
    memset(partner, 0, v->program->buffer_count * sizeof *partner);
    status = check_pairs(v, partner);
  }
  mk_free(partner);
  return status;
}
