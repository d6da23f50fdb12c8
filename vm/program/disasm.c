/* See disasm.h. */
#include "vm/program/disasm.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static mk_status written(FILE *out) {
  return ferror(out) ? mk_error(MK_ERR_RUNTIME, "the text cannot be written: %s", strerror(errno)) : MK_OK;
}

static void print_header(const mk_program *program, FILE *out) {
  const mk_machine *m = &program->machine;
  const mk_step_ranges *r = &program->ranges;
  fprintf(out, "mkvm-program 1\nmodel \"");
  for (const char *c = program->model; *c != 0; c++) {
    fprintf(out, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
  }
  fprintf(out, "\" config_hash=0x%016" PRIx64 "\n", program->config_hash);
  fprintf(out,
          "machine sms=%u page_bytes=%u ring_pages=%u resident_bytes=%u copy_bytes=%u consumer_warps=%u "
          "loader_warps=%u instruction_ring=%u result_slots=%u ranks=%u\n",
          m->sms, m->page_bytes, m->ring_pages, m->resident_bytes, m->copy_bytes, m->consumer_warps, m->loader_warps,
          m->instruction_ring, m->result_slots, m->ranks);
  fprintf(out, "range position=%u..%u token=%u..%u block=%u..%u batch=%u..%u slot=%u..%u\n", r->position.low,
          r->position.high, r->token.low, r->token.high, r->block.low, r->block.high, r->batch.low, r->batch.high,
          r->slot.low, r->slot.high);
}

static void print_rank(uint32_t rank, FILE *out) {
  if (mk_rank_name(rank) != NULL) {
    fprintf(out, " rank=%s", mk_rank_name(rank));
  } else {
    fprintf(out, " rank=%u", rank);
  }
}

static void print_buffer(const mk_buffer *b, FILE *out) {
  static const char *const proxies[4] = {"none", "generic", "async", "generic+async"};
  fprintf(out, "buffer %s kind=%s dtype=%s store=%s shape=%ux%u tile=%ux%u scope=%s proxy=%s", b->name,
          mk_kind_name(b->kind), mk_dtype_name(b->dtype), mk_store_name(b->store), b->rows, b->cols, b->tile_rows,
          b->tile_cols, mk_scope_name(b->scope), proxies[b->proxy & 3]);
  print_rank(b->rank, out);
  if (b->store == MK_STORE_BLOCKS) {
    fprintf(out, " head_dim=%u block_tokens=%u span_tokens=%u blocks=%u", b->head_dim, b->block_tokens, b->span_tokens,
            b->blocks);
  }
  if (b->scale != MK_SCALE_NONE) {
    fprintf(out, " scale=%s scale_cols=%u zeros=%u", mk_scale_name(b->scale), b->scale_cols, b->zeros);
  }
  fprintf(out, " ; offset=%" PRIu64 " bytes=%" PRIu64 "\n", b->offset, b->bytes);
}

static void print_counter(const mk_counter *c, FILE *out) {
  fprintf(out, "counter %s kind=%s scope=%s", c->name, c->kind == MK_COUNTER_RELEASE ? "release" : "relaxed",
          mk_scope_name(c->scope));
  print_rank(c->rank, out);
  fprintf(out, " total=%u\n", c->total);
}

static void print_operand(const mk_program *program, const char *field, const mk_operand *o, FILE *out) {
  if (o->buffer < program->buffer_count) {
    fprintf(out, " %s=%s", field, program->buffers[o->buffer].name);
  } else {
    fprintf(out, " %s=?%u", field, o->buffer);
  }
  fprintf(out, "[%u:%u,%u:%u]", o->row, (uint32_t)o->row + o->rows, o->col, (uint32_t)o->col + o->cols);
  if (o->flags == MK_OPERAND_TOKEN_ROW) {
    fputs("@token", out);
  } else if (o->flags != 0) {
    fprintf(out, "@0x%x", o->flags);
  }
}

static void print_param(const mk_param_info *info, uint32_t bits, FILE *out) {
  float number = mk_param_float(bits);
  if (!info->is_float) {
    fprintf(out, " %s=%u", info->name, bits);
  } else if (isfinite(number)) {
    fprintf(out, " %s=%.9g", info->name, (double)number);
  } else {
    fprintf(out, " %s=0x%08x", info->name, bits);
  }
}

static void print_edge(const mk_program *program, const char *what, uint32_t counter, const char *sign, uint32_t value,
                       FILE *out) {
  if (counter < program->counter_count) {
    fprintf(out, " %s=%s%s%u", what, program->counters[counter].name, sign, value);
  } else {
    fprintf(out, " %s=?%u%s%u", what, counter, sign, value);
  }
}

/* Words of waits and signals that the instruction does not have. */
static void print_stray_words(const mk_instruction *in, FILE *out) {
  enum { FIRST = 2, SIGNALS = FIRST + MK_MAX_WAITS, END = SIGNALS + MK_MAX_SIGNALS };
  uint32_t words[END];
  memcpy(words, in, sizeof words);
  for (uint32_t w = FIRST; w < END; w++) {
    bool used = w < SIGNALS ? w - FIRST < in->wait_count : w - SIGNALS < in->signal_count;
    if (!used && words[w] != 0) {
      fprintf(out, " word.%u=0x%08x", w, words[w]);
    }
  }
}

mk_status mk_disassemble_instruction(const mk_program *program, const mk_instruction *in, FILE *out) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  if (info == NULL) {
    fprintf(out, "#%u ?%u", in->uid, in->opcode);
  } else {
    fprintf(out, "#%u %s", in->uid, info->name);
  }
  if ((in->flags & MK_FUSED) != 0) {
    fputs(" fused", out);
  }
  static const mk_operand none;
  for (uint32_t i = 0; info != NULL && i < info->operand_count; i++) {
    if (memcmp(&in->operands[i], &none, sizeof none) != 0) {
      print_operand(program, info->operands[i].name, &in->operands[i], out);
    }
  }
  for (uint32_t i = 0; info != NULL && i < info->param_count; i++) {
    print_param(&info->params[i], in->params[i], out);
  }
  for (uint32_t i = 0; i < in->wait_count && i < MK_MAX_WAITS; i++) {
    print_edge(program, "wait", in->waits[i].counter, ">=", in->waits[i].threshold, out);
  }
  for (uint32_t i = 0; i < in->signal_count && i < MK_MAX_SIGNALS; i++) {
    print_edge(program, "signal", in->signals[i].counter, "+", in->signals[i].amount, out);
  }
  /* What the assembler would compute is left out only where both are 0: a wrong 0 shows. */
  if (in->pages != 0 || mk_instruction_pages(program, in) != 0) {
    fprintf(out, " pages=%u", in->pages);
  }
  if (in->resident != 0 || mk_instruction_resident(program, in) != 0) {
    fprintf(out, " resident=%u", in->resident * (uint32_t)MK_RESIDENT_UNIT);
  }
  if (in->layer != MK_NO_LAYER) {
    fprintf(out, " layer=%u", in->layer);
  }
  print_stray_words(in, out);
  return written(out);
}

mk_status mk_disassemble(const mk_program *program, FILE *out) {
  print_header(program, out);
  for (size_t i = 0; i < program->buffer_count; i++) {
    print_buffer(&program->buffers[i], out);
  }
  for (size_t i = 0; i < program->counter_count; i++) {
    print_counter(&program->counters[i], out);
  }
  for (size_t q = 0; q < program->queue_count; q++) {
    const mk_queue *queue = &program->queues[q];
    fprintf(out, "queue %zu:\n", q);
    for (uint32_t i = 0; i < queue->count; i++) {
      MK_TRY(mk_disassemble_instruction(program, &program->instructions[queue->first + i], out));
      fputc('\n', out);
    }
  }
  return written(out);
}
