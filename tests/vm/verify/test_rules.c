/* The verifier on a one-layer model on two SMs, written by hand: the program is accepted, and each rule broken alone is
 * rejected with that rule's id. */
#include "vm/verify/verify.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  EMBED,
  GAIN,
  FREQ,
  W_QKV,
  W_O,
  W_UP,
  W_DOWN,
  W_HEAD,
  TABLE,
  PLAN,
  RING,
  LOGITS,
  CAND,
  RESIDUAL,
  QKV,
  KV,
  PARTS,
  ATTN,
  SUMS,
  X,
  ACT,
  Y,
  SPARE,
  BUFFERS
};
enum { C_QKV, C_ATTN, C_SUMS, C_X, C_ACT, C_Y, C_CAND, C_MOVED, C_FREE, COUNTERS };

/* hidden 64, one head of 64, intermediate 32, vocabulary 40, 512 tokens of context in two splits. */
static const mk_buffer buffers[BUFFERS] = {
    [EMBED] = {.name = "embed", .kind = MK_KIND_WEIGHT, .store = MK_STORE_TILES, .rows = 40, .cols = 64},
    [GAIN] = {.name = "gain", .kind = MK_KIND_WEIGHT, .rows = 1, .cols = 64},
    [FREQ] = {.name = "freq", .kind = MK_KIND_WEIGHT, .dtype = MK_DTYPE_F32, .rows = 1, .cols = 32},
    [W_QKV] = {.name = "w_qkv", .kind = MK_KIND_WEIGHT, .store = MK_STORE_TILES, .rows = 192, .cols = 64},
    [W_O] = {.name = "w_o", .kind = MK_KIND_WEIGHT, .store = MK_STORE_TILES, .rows = 64, .cols = 64},
    [W_UP] = {.name = "w_up", .kind = MK_KIND_WEIGHT, .store = MK_STORE_TILES, .rows = 64, .cols = 64},
    [W_DOWN] = {.name = "w_down", .kind = MK_KIND_WEIGHT, .store = MK_STORE_TILES, .rows = 64, .cols = 32},
    [W_HEAD] = {.name = "w_head", .kind = MK_KIND_WEIGHT, .store = MK_STORE_TILES, .rows = 48, .cols = 64},
    [TABLE] = {.name = "table", .kind = MK_KIND_INPUT, .dtype = MK_DTYPE_U32, .rows = 1, .cols = 8},
    [PLAN] = {.name = "plan", .kind = MK_KIND_INPUT, .dtype = MK_DTYPE_U32, .rows = 1, .cols = 512, .tile_cols = 64},
    [RING] = {.name = "ring", .kind = MK_KIND_OUTPUT, .dtype = MK_DTYPE_U32, .rows = 1, .cols = 513, .tile_cols = 64},
    [LOGITS] = {.name = "logits", .kind = MK_KIND_OUTPUT, .dtype = MK_DTYPE_F32, .rows = 1, .cols = 40},
    [CAND] = {.name = "cand",
              .kind = MK_KIND_ACTIVATION,
              .dtype = MK_DTYPE_U32,
              .store = MK_STORE_STAMPED,
              .rows = 2,
              .cols = 2,
              .tile_cols = 2},
    [RESIDUAL] = {.name = "residual", .kind = MK_KIND_ACTIVATION, .dtype = MK_DTYPE_F32, .rows = 1, .cols = 64},
    [QKV] = {.name = "qkv",
             .kind = MK_KIND_ACTIVATION,
             .dtype = MK_DTYPE_F32,
             .store = MK_STORE_STAMPED,
             .rows = 1,
             .cols = 192},
    [KV] = {.name = "kv",
            .kind = MK_KIND_KV,
            .store = MK_STORE_BLOCKS,
            .rows = 2,
            .cols = 1,
            .tile_cols = 1,
            .head_dim = 64,
            .block_tokens = 64,
            .span_tokens = 256,
            .blocks = 8},
    [PARTS] = {.name = "parts",
               .kind = MK_KIND_ACTIVATION,
               .dtype = MK_DTYPE_F32,
               .store = MK_STORE_STAMPED,
               .rows = 2,
               .cols = 66,
               .tile_cols = 66},
    [ATTN] = {.name = "attn", .kind = MK_KIND_ACTIVATION, .store = MK_STORE_STAMPED, .rows = 1, .cols = 64},
    [SUMS] = {.name = "sums",
              .kind = MK_KIND_ACTIVATION,
              .dtype = MK_DTYPE_F32,
              .store = MK_STORE_STAMPED,
              .rows = 2,
              .cols = 64},
    [X] = {.name = "x", .kind = MK_KIND_ACTIVATION, .store = MK_STORE_STAMPED, .rows = 1, .cols = 64},
    [ACT] =
        {.name = "act", .kind = MK_KIND_ACTIVATION, .store = MK_STORE_STAMPED, .rows = 1, .cols = 32, .tile_cols = 8},
    [Y] = {.name = "y", .kind = MK_KIND_ACTIVATION, .store = MK_STORE_STAMPED, .rows = 1, .cols = 64},
    [SPARE] = {.name = "spare", .kind = MK_KIND_ACTIVATION, .dtype = MK_DTYPE_F32, .rows = 1, .cols = 64},
};

static mk_operand at(uint32_t buffer, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols) {
  return (mk_operand){.buffer = (uint16_t)buffer,
                      .row = (uint16_t)row,
                      .rows = (uint16_t)rows,
                      .col = (uint16_t)col,
                      .cols = (uint16_t)cols};
}
static mk_operand token(uint32_t col, uint32_t cols) {
  mk_operand o = at(EMBED, 0, 3, col, cols);
  o.flags = MK_OPERAND_TOKEN_ROW;
  return o;
}

typedef struct queue {
  mk_instruction in[16];
  uint32_t count;
} queue;

static mk_instruction *push(queue *q, mk_opcode opcode, int wait, int signal) {
  mk_instruction *in = &q->in[q->count++];
  *in = (mk_instruction){.opcode = (uint8_t)opcode, .version = MK_INSTRUCTION_VERSION};
  if (wait >= 0) {
    in->wait_count = 1;
    in->waits[0].counter = (uint16_t)wait;
  }
  if (signal >= 0) {
    in->signal_count = 1;
    in->signals[0] = (mk_signal){.counter = (uint16_t)signal, .amount = 1};
  }
  return in;
}

static void set(mk_instruction *in, uint32_t count, const mk_operand *operands) {
  memcpy(in->operands, operands, count * sizeof *operands);
}
#define SET(in, ...) set((in), sizeof((mk_operand[]){__VA_ARGS__}) / sizeof(mk_operand), (mk_operand[]){__VA_ARGS__})

static void fill_queue(queue *q, uint32_t sm) {
  const uint32_t eps = mk_float_param(1e-5f);
  mk_instruction *in = push(q, MK_OP_QKV, -1, C_QKV);
  SET(in, token(0, 4), at(GAIN, 0, 1, 0, 4), at(W_QKV, 6 * sm, 6, 0, 4), at(FREQ, 0, 1, 0, 2),
      at(QKV, 0, 1, 6 * sm, 6));
  memcpy(in->params, (uint32_t[]){eps, 64, 8, 64}, 4 * sizeof *in->params);
  in = push(q, MK_OP_ATTENTION, C_QKV, -1);
  SET(in, at(QKV, 0, 1, 0, 4), at(QKV, 0, 1, 4, 4), at(QKV, 0, 1, 8, 4), at(KV, sm, 1, 0, 1), at(TABLE, 0, 1, 0, 1),
      at(PARTS, sm, 1, 0, 1));
  memcpy(in->params, (uint32_t[]){mk_float_param(0.125f), 2, 1, 0}, 4 * sizeof *in->params);
  if (sm == 0) {
    in = push(q, MK_OP_COMBINE, -1, C_ATTN);
    SET(in, at(PARTS, 0, 2, 0, 1), at(ATTN, 0, 1, 0, 4));
    in->params[0] = 256;
    in->params[1] = 1;
  }
  in = push(q, MK_OP_LINEAR_PART, C_ATTN, C_SUMS);
  SET(in, at(ATTN, 0, 1, 2 * sm, 2), at(W_O, 0, 4, 2 * sm, 2), at(SUMS, sm, 1, 0, 4));
  in = push(q, MK_OP_REDUCE_ADD, C_SUMS, C_X);
  SET(in, at(SUMS, 0, 2, 2 * sm, 2), token(2 * sm, 2), at(RESIDUAL, 0, 1, 2 * sm, 2), at(X, 0, 1, 2 * sm, 2));
  in = push(q, MK_OP_GLU, C_X, C_ACT);
  SET(in, at(X, 0, 1, 0, 4), at(GAIN, 0, 1, 0, 4), at(W_UP, 2 * sm, 2, 0, 4), at(ACT, 0, 1, 2 * sm, 2));
  memcpy(in->params, (uint32_t[]){eps, 64, 0, 0}, 4 * sizeof *in->params);
  in = push(q, MK_OP_LINEAR_ADD, C_ACT, C_Y);
  SET(in, at(ACT, 0, 1, 0, 4), at(W_DOWN, 2 * sm, 2, 0, 2), at(RESIDUAL, 0, 1, 2 * sm, 2),
      at(RESIDUAL, 0, 1, 2 * sm, 2), at(Y, 0, 1, 2 * sm, 2));
  in = push(q, MK_OP_HEAD, C_Y, C_CAND);
  uint32_t tiles = sm == 0 ? 2 : 1;
  SET(in, at(Y, 0, 1, 0, 4), at(GAIN, 0, 1, 0, 4), at(W_HEAD, 2 * sm, tiles, 0, 4), at(LOGITS, 0, 1, 2 * sm, tiles),
      at(CAND, sm, 1, 0, 1));
  memcpy(in->params, (uint32_t[]){eps, 64, 40, 0}, 4 * sizeof *in->params);
  in = push(q, MK_OP_NEXT, C_CAND, -1);
  SET(in, at(CAND, 0, 2, 0, 1), at(PLAN, 0, 1, 0, 8), sm == 0 ? at(RING, 0, 1, 0, 9) : at(RING, 0, 0, 0, 0));
}

/* Totals, thresholds that are still 0 (all signals), pages and resident bytes. */
static void seal(mk_program *p) {
  for (size_t c = 0; c < p->counter_count; c++) {
    p->counters[c].total = 0;
  }
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_instruction *in = &p->instructions[i];
    for (uint32_t k = 0; k < in->signal_count; k++) {
      p->counters[in->signals[k].counter].total += in->signals[k].amount;
    }
    in->pages = mk_instruction_pages(p, in);
    in->resident = (uint16_t)(mk_instruction_resident(p, in) / MK_RESIDENT_UNIT);
  }
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_instruction *in = &p->instructions[i];
    for (uint32_t k = 0; k < in->wait_count; k++) {
      if (in->waits[k].threshold == 0) {
        in->waits[k].threshold = (uint16_t)p->counters[in->waits[k].counter].total;
      }
    }
  }
}

static mk_program *start(void) {
  mk_machine machine = mk_machine_latency(2);
  mk_program *p;
  cr_assert_eq(mk_program_new(&machine, &p), MK_OK);
  p->ranges = (mk_step_ranges){.position = {0, 511}, .token = {0, 39}, .block = {0, 7}, .batch = {1, 1}};
  for (size_t i = 0; i < BUFFERS; i++) {
    mk_buffer b = buffers[i];
    uint16_t index;
    b.scope = MK_SCOPE_GPU;
    b.proxy = 3;
    b.tile_rows = b.store == MK_STORE_TILES ? 16 : 1;
    b.tile_cols = b.tile_cols == 0 ? 16 : b.tile_cols;
    cr_assert_eq(mk_program_add_buffer(p, &b, &index), MK_OK, "%s", mk_error_message());
  }
  for (int c = 0; c < COUNTERS; c++) {
    char name[16];
    uint16_t index;
    snprintf(name, sizeof name, "c%d", c);
    cr_assert_eq(mk_program_add_counter(p, name, c >= C_MOVED ? MK_COUNTER_RELEASE : MK_COUNTER_RELAXED, &index),
                 MK_OK);
  }
  return p;
}

static mk_program *finish(mk_program *p, const queue *queues) {
  size_t count = queues[0].count + queues[1].count;
  cr_assert_eq(mk_grow(&p->instructions, &p->instruction_capacity, count, sizeof *p->instructions), MK_OK);
  for (uint32_t sm = 0; sm < 2; sm++) {
    p->queues[sm].first = (uint32_t)p->instruction_count;
    p->queues[sm].count = queues[sm].count;
    for (uint32_t i = 0; i < queues[sm].count; i++) {
      mk_instruction *in = &p->instructions[p->instruction_count++];
      *in = queues[sm].in[i];
      in->uid = (uint32_t)p->instruction_count;
    }
  }
  seal(p);
  return p;
}

static mk_program *model(void) {
  static queue queues[2];
  memset(queues, 0, sizeof queues);
  fill_queue(&queues[0], 0);
  fill_queue(&queues[1], 1);
  return finish(start(), queues);
}

static mk_instruction *find(mk_program *p, uint32_t sm, mk_opcode opcode) {
  for (uint32_t i = 0; i < p->queues[sm].count; i++) {
    mk_instruction *in = &p->instructions[p->queues[sm].first + i];
    if (in->opcode == opcode) {
      return in;
    }
  }
  cr_assert_fail("SM %u has no such instruction", sm);
  abort();
}

/* The rows of the residual change SMs between the two additions: release counters order what queue order did. */
static mk_program *moved_model(void) {
  mk_program *p = model();
  for (uint32_t sm = 0; sm < 2; sm++) {
    mk_instruction *reduce = find(p, sm, MK_OP_REDUCE_ADD), *add = find(p, sm, MK_OP_LINEAR_ADD),
                   *head = find(p, sm, MK_OP_HEAD);
    uint16_t other = (uint16_t)(2 * (1 - sm));
    add->operands[MK_SLOT_LINEAR_ADD_weight].row = other;
    add->operands[MK_SLOT_LINEAR_ADD_residual_in].col = other;
    add->operands[MK_SLOT_LINEAR_ADD_residual_out].col = other;
    add->operands[MK_SLOT_LINEAR_ADD_out].col = other;
    reduce->signals[reduce->signal_count++] = (mk_signal){.counter = C_MOVED, .amount = 1};
    add->waits[add->wait_count++] = (mk_wait){.counter = C_MOVED};
    add->signals[add->signal_count++] = (mk_signal){.counter = C_FREE, .amount = 1};
    head->waits[head->wait_count++] = (mk_wait){.counter = C_FREE};
  }
  seal(p);
  return p;
}

/* As moved_model, but the second addition only reads the residual, and writes a buffer of its own. */
static mk_program *read_only_model(void) {
  mk_program *p = moved_model();
  for (uint32_t sm = 0; sm < 2; sm++) {
    find(p, sm, MK_OP_LINEAR_ADD)->operands[MK_SLOT_LINEAR_ADD_residual_out].buffer = SPARE;
  }
  return p;
}

static void drop_wait(mk_instruction *in, uint32_t index) {
  for (uint32_t k = index; k + 1 < MK_MAX_WAITS; k++) {
    in->waits[k] = in->waits[k + 1];
  }
  in->waits[MK_MAX_WAITS - 1] = (mk_wait){0};
  in->wait_count--;
}

static void swap(mk_instruction *a, mk_instruction *b) {
  mk_instruction c = *a;
  *a = *b;
  *b = c;
}

static void accepted(mk_program *p) {
  mk_verify_report report;
  mk_status status = mk_verify(p, &report);
  cr_assert_eq(status, MK_OK, "%s", mk_error_message());
  cr_assert_str_eq(report.rule, "");
  cr_assert_eq(report.instructions, p->instruction_count);
  cr_assert_gt(report.conflicts, 0);
  mk_program_free(p);
}

/* Rejected by this rule, with a message that starts with its id and contains `words`. */
static void rejected(mk_program *p, const char *rule, const char *words) {
  mk_verify_report report;
  mk_status status = mk_verify(p, &report);
  const char *message = mk_error_message();
  cr_assert_eq(status, MK_ERR_REJECTED, "status %d, expected rule %s", status, rule);
  cr_assert_str_eq(report.rule, rule, "%s", message);
  cr_assert_eq(strncmp(message, rule, strlen(rule)), 0, "%s", message);
  cr_assert_not_null(strstr(message, words), "%s", message);
  if (getenv("SHOW_MESSAGES") != NULL) {
    fprintf(stderr, "%s\n", message);
  }
  mk_program_free(p);
}

Test(verify, accepts_the_model) { accepted(model()); }
Test(verify, accepts_release_counters) { accepted(moved_model()); }
Test(verify, accepts_a_read_on_another_sm) { accepted(read_only_model()); }

Test(verify, report_may_be_null) {
  mk_program *p = model();
  cr_assert_eq(mk_verify(p, NULL), MK_OK);
  mk_program_free(p);
}

Test(verify, empty_program) {
  mk_machine machine = mk_machine_latency(1);
  mk_program *p;
  cr_assert_eq(mk_program_new(&machine, &p), MK_OK);
  p->ranges.batch = (mk_range){1, 1};
  cr_assert_eq(mk_verify(p, NULL), MK_OK, "%s", mk_error_message());
  mk_program_free(p);
}

/* A change to the model and the rule that forbids it. `p` is the program, `I(sm, OPCODE)` an instruction of it. */
#define I(sm, NAME) find(p, (sm), MK_OP_##NAME)
#define REJECTS(name, build, rule, words, ...) \
  Test(verify, name) {                         \
    mk_program *p = build();                   \
    __VA_ARGS__;                               \
    rejected(p, rule, words);                  \
  }

REJECTS(machine_without_ring, model, "S01", "ring_pages", p->machine.ring_pages = 0)
REJECTS(batch_of_three, model, "S01", "batch", p->ranges.batch.high = 3)
REJECTS(batch_of_none, model, "S01", "batch", p->ranges.batch.low = 0)
REJECTS(batch_of_two, model, "S02", "2 rows per step", p->ranges.batch.high = 2)
REJECTS(position_range_falls, model, "S01", "position", p->ranges.position.low = 512)
REJECTS(buffer_kind_unknown, model, "S02", "buffer 13", p->buffers[RESIDUAL].kind = 77)
REJECTS(buffer_tile_zero, model, "S02", "buffer 19", p->buffers[X].tile_cols = 0)
REJECTS(buffer_bytes_wrong, model, "S02", "buffer x", p->buffers[X].bytes += 8)
REJECTS(block_tokens_not_whole_tiles, model, "S02", "buffer kv", p->buffers[KV].block_tokens = 8)
REJECTS(queue_too_long, model, "S03", "queue 1", p->queues[1].count++)
REJECTS(queue_too_short, model, "S03", "the queues hold", p->queues[1].count--)
REJECTS(opcode_unknown, model, "S04", "opcode 200", I(0, GLU)->opcode = 200)
REJECTS(version_unknown, model, "S04", "version 9", I(0, GLU)->version = 9)
REJECTS(unused_operand, model, "S04", "operand 5", I(0, GLU)->operands[5].row = 1)
REJECTS(unused_param, model, "S04", "parameter 5", I(0, GLU)->params[5] = 1)
REJECTS(unused_wait, model, "S04", "wait 2", I(0, GLU)->waits[2].threshold = 1)
REJECTS(uid_twice, model, "S05", "uid 3", I(1, GLU)->uid = 3)
REJECTS(operand_empty, model, "S06", "may not be empty", I(0, GLU)->operands[MK_SLOT_GLU_x].cols = 0)
REJECTS(operand_buffer_unknown, model, "S06", "buffer is 500", I(0, GLU)->operands[MK_SLOT_GLU_x].buffer = 500)
REJECTS(operand_store, model, "S07", "x: buffer gain", I(0, GLU)->operands[MK_SLOT_GLU_x].buffer = GAIN)
REJECTS(operand_dtype, model, "S07", "holds f32", I(0, GLU)->operands[MK_SLOT_GLU_x].buffer = QKV)
REJECTS(operand_flag, model, "S07", "flags 0x2", I(0, GLU)->operands[MK_SLOT_GLU_x].flags = 2)
REJECTS(write_to_weight, model, "S07", "only activation and output", p->buffers[RESIDUAL].kind = MK_KIND_WEIGHT;
        p->buffers[RESIDUAL].offset = (p->weight_bytes + 255) / 256 * 256;
        p->weight_bytes = p->buffers[RESIDUAL].offset + p->buffers[RESIDUAL].bytes)
REJECTS(early_read_of_activation, model, "S08", "gain", p->buffers[GAIN].kind = MK_KIND_ACTIVATION;
        p->buffers[GAIN].offset = (p->work_bytes + 255) / 256 * 256;
        p->work_bytes = p->buffers[GAIN].offset + p->buffers[GAIN].bytes)
REJECTS(eps_nan, model, "S09", "eps", I(0, GLU)->params[MK_PARAM_GLU_eps] = 0x7fc00000)
REJECTS(eps_negative, model, "S09", "eps", I(0, GLU)->params[MK_PARAM_GLU_eps] |= 0x80000000)
REJECTS(width_wrong, model, "S09", "width", I(0, GLU)->params[MK_PARAM_GLU_width] = 65)
REJECTS(head_dim_wrong, model, "S09", "head_dim", I(0, QKV)->params[MK_PARAM_QKV_head_dim] = 96)
REJECTS(group_wrong, model, "S10", "q: number of columns", I(0, ATTENTION)->params[MK_PARAM_ATTENTION_group] = 2)
REJECTS(part_of_k_shifted, model, "S10", "x: first column", I(0, LINEAR_PART)->operands[MK_SLOT_LINEAR_PART_x].col = 1)
REJECTS(result_shifted, model, "S10", "out: first column", I(0, GLU)->operands[MK_SLOT_GLU_out].col = 1)
REJECTS(result_too_wide, model, "S10", "out: number of columns", I(0, GLU)->operands[MK_SLOT_GLU_out].cols = 1)
REJECTS(split_row_wrong, model, "S10", "out: row", I(0, ATTENTION)->operands[MK_SLOT_ATTENTION_out].row = 1)
REJECTS(parts_left_out, model, "S10", "parts: number of rows",
        I(0, REDUCE_ADD)->operands[MK_SLOT_REDUCE_ADD_parts].rows = 1)
REJECTS(operand_outside, model, "B01", "out: tiles", I(1, GLU)->operands[MK_SLOT_GLU_out].col = 3)
REJECTS(token_is_vocab_size, model, "B02", "tokens are 0 to 48", p->ranges.token.high = 48)
REJECTS(token_in_the_padding, model, "B02", "tokens are 0 to 40", p->ranges.token.high = 40)
REJECTS(table_too_short, model, "B03", "table", p->ranges.position.high = 512)
REJECTS(block_outside_cache, model, "B03", "kv", p->ranges.block.high = 8)
REJECTS(gain_in_part, model, "S13", "gain: tiles [0:1,0:3] of buffer gain",
        I(0, GLU)->operands[MK_SLOT_GLU_gain].cols = 3)
REJECTS(gain_beyond_its_end, model, "S13", "gain: tiles [0:1,1:5]", I(0, GLU)->operands[MK_SLOT_GLU_gain].col = 1)
REJECTS(plan_in_part, model, "S13", "plan", I(0, NEXT)->operands[MK_SLOT_NEXT_plan].cols = 7)
REJECTS(ring_in_part, model, "S13", "ring", I(0, NEXT)->operands[MK_SLOT_NEXT_ring].cols = 8)
REJECTS(table_by_token, model, "S13", "table: tiles [0:1,0:1] of buffer table, flags 0x1",
        I(0, ATTENTION)->operands[MK_SLOT_ATTENTION_table].flags = MK_OPERAND_TOKEN_ROW)
REJECTS(arena_overlap, model, "B04", "lies in buffer", p->buffers[X].offset = p->buffers[SUMS].offset)
REJECTS(arena_end, model, "B04", "spare", p->work_bytes -= 1)
REJECTS(arena_misaligned, model, "B04", "multiple", p->buffers[SPARE].offset += 16; p->work_bytes += 16)
REJECTS(pages_wrong, model, "P01", "pages", I(0, GLU)->pages++)
REJECTS(resident_wrong, model, "P02", "resident", I(0, GLU)->resident++)
REJECTS(resident_too_much, model, "P02", "the machine has 64", p->machine.resident_bytes = 64)
REJECTS(proxy_missing, model, "P03", "w_up", p->buffers[W_UP].proxy = MK_PROXY_GENERIC)
REJECTS(proxy_missing_kv, model, "P03", "kv", p->buffers[KV].proxy = MK_PROXY_ASYNC)
REJECTS(scope_sm_shared, model, "P04", "buffer x", p->buffers[X].scope = MK_SCOPE_SM)
REJECTS(scope_sm_counter, model, "P04", "counter c0", p->counters[C_QKV].scope = MK_SCOPE_SM)
REJECTS(counter_unknown, model, "E01", "counter 99", I(0, GLU)->waits[0].counter = 99)
REJECTS(signal_of_zero, model, "E01", "adds 0", I(0, GLU)->signals[0].amount = 0)
REJECTS(signal_dropped, model, "E02", "c4", mk_instruction *in = I(0, GLU); in->signals[0] = (mk_signal){0};
        in->signal_count = 0)
REJECTS(signal_doubled, model, "E02", "c4", I(0, GLU)->signals[0].amount = 2)
REJECTS(threshold_too_high, model, "E03", "waits for 3", I(0, GLU)->waits[0].threshold = 3)
REJECTS(threshold_zero, model, "E03", "waits for 0", I(0, GLU)->waits[0].threshold = 0)
REJECTS(counter_never_signalled, model, "E03", "gets 0",
        I(0, GLU)->waits[0] = (mk_wait){.counter = C_MOVED, .threshold = 1})
REJECTS(no_next, model, "N01", "no next", p->instruction_count--; p->queues[1].count--)
REJECTS(next_before_head, model, "N02", "step state", swap(I(1, NEXT), I(1, HEAD)))
REJECTS(next_without_a_head, model, "N03", "no head before it", swap(I(1, NEXT), I(1, HEAD)); p->instruction_count--;
        p->queues[1].count--; I(1, NEXT)->wait_count = 0; I(1, NEXT)->waits[0] = (mk_wait){0};
        I(0, NEXT)->waits[0].threshold = 1; seal(p))
REJECTS(next_disagrees, model, "N04", "agree", mk_buffer other = p->buffers[PLAN]; uint16_t index;
        strcpy(other.name, "other"); mk_program_add_buffer(p, &other, &index);
        I(1, NEXT)->operands[MK_SLOT_NEXT_plan].buffer = index)

/* Deadlocks. */
REJECTS(wait_for_itself, model, "D01", "#7 linear_add waits for counter c5",
        I(0, LINEAR_ADD)->waits[0] = (mk_wait){.counter = C_Y, .threshold = 2})
REJECTS(stamp_of_itself, model, "D01", "deadlock", swap(I(0, ATTENTION), I(0, COMBINE)))
/* Every edge is in order by itself: only the two queues together are not. */
REJECTS(
    cycle_through_two_queues, model, "D01",
    "SM 1 position 5 #15 linear_add waits for counter c4, which SM 0 position 5 #6 glu signals; SM 0 position 5 #6 glu "
    "waits for counter c7",
    mk_instruction *later = I(1, LINEAR_ADD), *sooner = I(0, GLU);
    later->signals[later->signal_count++] = (mk_signal){.counter = C_MOVED, .amount = 1};
    sooner->waits[sooner->wait_count++] = (mk_wait){.counter = C_MOVED}; seal(p))
REJECTS(nobody_writes, model, "D02", "buffer act",
        I(1, GLU)->operands[MK_SLOT_GLU_out] = I(0, GLU)->operands[MK_SLOT_GLU_out];
        I(1, GLU)->operands[MK_SLOT_GLU_weight] = I(0, GLU)->operands[MK_SLOT_GLU_weight];
        I(0, GLU)->operands[MK_SLOT_GLU_out].cols = 1; I(0, GLU)->operands[MK_SLOT_GLU_weight].rows = 1;
        I(1, GLU)->operands[MK_SLOT_GLU_out].col = 1; I(1, GLU)->operands[MK_SLOT_GLU_out].cols = 1;
        I(1, GLU)->operands[MK_SLOT_GLU_weight].row = 1; I(1, GLU)->operands[MK_SLOT_GLU_weight].rows = 1; seal(p))

/* Races. */
REJECTS(release_wait_dropped, moved_model, "R01", "reduce_add", drop_wait(I(0, LINEAR_ADD), 1))
REJECTS(release_threshold_lowered, moved_model, "R01", "reduce_add", I(1, LINEAR_ADD)->waits[1].threshold = 1)
REJECTS(release_made_relaxed, moved_model, "R01", "reduce_add", p->counters[C_MOVED].kind = MK_COUNTER_RELAXED)
REJECTS(release_signalled_too_early, moved_model, "R01", "reduce_add", mk_instruction *in = I(0, REDUCE_ADD);
        in[-1].signals[1] = in->signals[1]; in[-1].signal_count = 2; in->signals[1] = (mk_signal){0};
        in->signal_count = 1)
REJECTS(write_after_write, moved_model, "R03", "linear_add", drop_wait(I(0, HEAD), 1))
/* The residual is read by one operation of a layer and overwritten by a later one, with only read-after-write edges
 * between. */
REJECTS(write_after_read_on_the_residual, read_only_model, "R02", "which reads it", drop_wait(I(0, HEAD), 1))
REJECTS(write_after_read_threshold, read_only_model, "R02", "which reads it", I(0, HEAD)->waits[1].threshold = 1)
REJECTS(carried_from_the_last_step, model, "R01", "same step",
        I(0, LINEAR_ADD)->operands[MK_SLOT_LINEAR_ADD_residual_in].buffer = SPARE)
REJECTS(stamped_word_written_twice, model, "R04", "same epoch", I(1, GLU)->operands[MK_SLOT_GLU_out].col = 1;
        I(1, GLU)->operands[MK_SLOT_GLU_weight].row = 1)
REJECTS(long_positions_only, model, "S11", "of spans of 256", I(0, COMBINE)->params[MK_PARAM_COMBINE_span] = 128)
REJECTS(output_left_out, model, "O01", "logits", I(1, HEAD)->operands[MK_SLOT_HEAD_weight] = at(W_HEAD, 0, 0, 0, 0);
        I(1, HEAD)->operands[MK_SLOT_HEAD_logits] = at(LOGITS, 0, 0, 0, 0); seal(p))
REJECTS(ring_left_out, model, "O01", "ring", I(0, NEXT)->operands[MK_SLOT_NEXT_ring] = at(RING, 0, 0, 0, 0))

/* The signal of the next step's first instruction can stand in for one of this step that has not come yet. */
REJECTS(counter_overrun_between_epochs, model, "E04", "next epoch", mk_instruction *first = I(0, QKV),
        *head = I(1, HEAD), *last = I(1, NEXT);
        first->signals[first->signal_count++] = (mk_signal){.counter = C_FREE, .amount = 1};
        head->signals[head->signal_count++] = (mk_signal){.counter = C_FREE, .amount = 1};
        last->waits[last->wait_count++] = (mk_wait){.counter = C_FREE, .threshold = 1}; seal(p))

/* SM 1 reads qkv after its candidate has gone out: SM 0 can be a step ahead and overwrite it. */
Test(verify, reader_that_nobody_waits_for) {
  static queue queues[2];
  memset(queues, 0, sizeof queues);
  mk_program *p = start();
  queue source[1] = {{.count = 0}};
  fill_queue(source, 0);
  for (uint32_t sm = 0; sm < 2; sm++) {
    queue *q = &queues[sm];
    if (sm == 0) {
      *push(q, MK_OP_QKV, -1, -1) = source->in[0];
      q->in[0].operands[MK_SLOT_QKV_weight].rows = 12;
      q->in[0].operands[MK_SLOT_QKV_out].cols = 12;
    }
    mk_instruction *in = NULL;
    for (uint32_t i = 0; i < 2; i++) {
      if (i == sm) {
        in = push(q, MK_OP_REDUCE_ADD, -1, -1);
        SET(in, at(QKV, 0, 1, 0, 4), token(0, 4), at(sm == 0 ? RESIDUAL : SPARE, 0, 1, 0, 4),
            at(sm == 0 ? X : Y, 0, 1, 0, 4));
      } else {
        in = push(q, MK_OP_HEAD, -1, -1);
        SET(in, at(X, 0, 1, 0, 4), at(GAIN, 0, 1, 0, 4), at(W_HEAD, 0, 3 - 3 * sm, 0, 4 - 4 * sm),
            at(LOGITS, 0, 1 - sm, 0, 3 - 3 * sm), at(CAND, sm, 1, 0, 1));
        memcpy(in->params, (uint32_t[]){mk_float_param(1e-5f), 64, 40, 0}, 4 * sizeof *in->params);
      }
    }
    in = push(q, MK_OP_NEXT, -1, -1);
    SET(in, at(CAND, 0, 2, 0, 1), at(PLAN, 0, 1, 0, 8), sm == 0 ? at(RING, 0, 1, 0, 9) : at(RING, 0, 0, 0, 0));
  }
  rejected(finish(p, queues), "R02", "stamped buffer qkv");
}

Test(verify, every_allocation_may_fail) {
  mk_program *p = moved_model();
  mk_status status = MK_ERR_RUNTIME;
  uint64_t n = 1;
  for (; status != MK_OK; n++) {
    mk_alloc_fail_at(n, n % 2 == 0);
    status = mk_verify(p, NULL);
    mk_alloc_fail_at(0, false);
    cr_assert(status == MK_OK || status == MK_ERR_RUNTIME, "%s", mk_error_message());
    cr_assert_lt(n, 1000);
  }
  cr_assert_gt(n, 20);
  mk_program_free(p);
}
