/* APPEND puts K and V where ATTENTION would, and ATTEND has the bits that ATTENTION and COMBINE make of as many
 * splits as there are spans, whatever lies in the cache beyond the row's own token. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/support/effort.h"
#include "tests/support/numbers.h"
#include "tests/support/rig.h"
#include "vm/program/strips.h"

enum {
  BLOCK = 64,
  SPAN = 256,
  SPLITS = 36,
  CONTEXT = SPLITS * SPAN,
  BLOCKS = CONTEXT / BLOCK,
  GROUP = 3,
  KV_HEADS = 2
};
enum { HEADS = GROUP * KV_HEADS };

typedef struct attend {
  test_rig rig;
  uint16_t qkv, split_kv, kv, table, parts, combined, out;
  uint32_t head_dim, tiles, window;
  bool fp8;
} attend;

static uint16_t add_cache(attend *t, uint32_t rows) {
  return test_rig_add(&t->rig, &(mk_buffer){.kind = MK_KIND_KV,
                                            .dtype = t->fp8 ? MK_DTYPE_E4M3 : MK_DTYPE_BF16,
                                            .store = MK_STORE_BLOCKS,
                                            .scale = t->fp8 ? MK_SCALE_BF16 : MK_SCALE_NONE,
                                            .scale_cols = (uint8_t)(t->fp8 ? t->head_dim : 0),
                                            .head_dim = (uint16_t)t->head_dim,
                                            .block_tokens = BLOCK,
                                            .span_tokens = SPAN,
                                            .blocks = BLOCKS,
                                            .rows = rows,
                                            .cols = KV_HEADS,
                                            .tile_rows = 1,
                                            .tile_cols = 1});
}

/* Codes that are numbers, and scales that need not be powers of two. */
static void fill_fp8(attend *t) {
  const mk_buffer *b = &t->rig.program->buffers[t->split_kv];
  uint8_t *half = t->rig.memory[t->split_kv];
  for (size_t i = 0; i < (size_t)2 * BLOCKS * KV_HEADS; i++, half += mk_half_bytes(b)) {
    for (size_t c = 0; c < mk_half_codes(b); c++) {
      const uint32_t code = test_random_below(&t->rig.seed, 256);
      half[c] = (uint8_t)((code & 0x7f) == 0x7f ? code - 1 : code);
    }
    for (uint32_t token = 0; token < BLOCK; token++) {
      const uint16_t scale = mk_float_to_bf16(test_random_float(&t->rig.seed) / 200);
      memcpy(half + mk_half_scale(b, 0, token), &scale, sizeof scale);
    }
  }
}

static void set_up(attend *t, uint32_t head_dim, bool fp8) {
  test_rig *rig = &t->rig;
  t->fp8 = fp8;
  uint32_t blocks[BLOCKS];
  test_rig_start(rig, MK_OP_ATTENTION, head_dim);
  t->head_dim = head_dim;
  t->tiles = head_dim / 16;
  t->qkv = test_rig_vector(rig, MK_DTYPE_F32, MK_STORE_STAMPED, 1, (HEADS + 2 * KV_HEADS) * head_dim, 16);
  t->split_kv = add_cache(t, SPLITS);
  t->kv = add_cache(t, 1);
  t->table = test_rig_vector(rig, MK_DTYPE_U32, MK_STORE_PLAIN, 1, BLOCKS, 16);
  t->parts = test_rig_vector(rig, MK_DTYPE_F32, MK_STORE_STAMPED, SPLITS, HEADS * (head_dim + 2), head_dim + 2);
  t->combined = test_rig_vector(rig, MK_DTYPE_BF16, MK_STORE_STAMPED, 1, HEADS * head_dim, 16);
  t->out = test_rig_vector(rig, MK_DTYPE_BF16, MK_STORE_STAMPED, 1, HEADS * head_dim, 16);
  test_rig_fill(rig, t->qkv, 2);
  test_shuffle(&rig->seed, blocks, BLOCKS);
  memcpy(rig->memory[t->table], blocks, sizeof blocks);
  if (fp8) {
    fill_fp8(t);
    return;
  }
  uint16_t *cache = (uint16_t *)(void *)rig->memory[t->split_kv];
  for (size_t i = 0; i < rig->program->buffers[t->kv].bytes / 2; i++) {
    cache[i] = mk_float_to_bf16(2 * test_random_float(&rig->seed));
  }
}

static void begin(attend *t, mk_opcode opcode) {
  *t->rig.instruction = (mk_instruction){.opcode = (uint8_t)opcode, .version = MK_INSTRUCTION_VERSION, .uid = 1};
}

/* What one row a step makes of it, with a split for each span. */
static void attend_by_splits(attend *t, uint32_t head) {
  test_rig *rig = &t->rig;
  for (uint32_t split = 0; split < SPLITS; split++) {
    begin(t, MK_OP_ATTENTION);
    test_rig_operand(rig, MK_SLOT_ATTENTION_q, t->qkv, 0, 1, head * GROUP * t->tiles, GROUP * t->tiles);
    test_rig_operand(rig, MK_SLOT_ATTENTION_k, t->qkv, 0, 1, (HEADS + head) * t->tiles, t->tiles);
    test_rig_operand(rig, MK_SLOT_ATTENTION_v, t->qkv, 0, 1, (HEADS + KV_HEADS + head) * t->tiles, t->tiles);
    test_rig_operand(rig, MK_SLOT_ATTENTION_kv, t->split_kv, split, 1, head, 1);
    test_rig_whole(rig, MK_SLOT_ATTENTION_table, t->table);
    test_rig_operand(rig, MK_SLOT_ATTENTION_out, t->parts, split, 1, head * GROUP, GROUP);
    rig->instruction->params[MK_PARAM_ATTENTION_scale] = mk_float_param(0.125f);
    rig->instruction->params[MK_PARAM_ATTENTION_splits] = SPLITS;
    rig->instruction->params[MK_PARAM_ATTENTION_group] = GROUP;
    rig->instruction->params[MK_PARAM_ATTENTION_window] = t->window;
    test_rig_expect_done(rig);
  }
  begin(t, MK_OP_COMBINE);
  test_rig_operand(rig, MK_SLOT_COMBINE_parts, t->parts, 0, SPLITS, head * GROUP, GROUP);
  test_rig_operand(rig, MK_SLOT_COMBINE_out, t->combined, 0, 1, head * GROUP * t->tiles, GROUP * t->tiles);
  rig->instruction->params[MK_PARAM_COMBINE_span] = SPAN;
  rig->instruction->params[MK_PARAM_COMBINE_spans] = 1;
  test_rig_expect_done(rig);
}

static void append(attend *t, uint32_t head) {
  test_rig *rig = &t->rig;
  begin(t, MK_OP_APPEND);
  test_rig_operand(rig, MK_SLOT_APPEND_k, t->qkv, 0, 1, (HEADS + head) * t->tiles, t->tiles);
  test_rig_operand(rig, MK_SLOT_APPEND_v, t->qkv, 0, 1, (HEADS + KV_HEADS + head) * t->tiles, t->tiles);
  test_rig_operand(rig, MK_SLOT_APPEND_kv, t->kv, 0, 1, head, 1);
  test_rig_whole(rig, MK_SLOT_APPEND_table, t->table);
  test_rig_expect_waits(rig, 1);
  test_rig_expect_done(rig);
}

static void attend_to_all(attend *t, uint32_t query) {
  test_rig *rig = &t->rig;
  begin(t, MK_OP_ATTEND);
  test_rig_operand(rig, MK_SLOT_ATTEND_q, t->qkv, 0, 1, query * t->tiles, t->tiles);
  test_rig_operand(rig, MK_SLOT_ATTEND_kv, t->kv, 0, 1, query / GROUP, 1);
  test_rig_whole(rig, MK_SLOT_ATTEND_table, t->table);
  test_rig_operand(rig, MK_SLOT_ATTEND_out, t->out, 0, 1, query * t->tiles, t->tiles);
  rig->instruction->params[MK_PARAM_ATTEND_scale] = mk_float_param(0.125f);
  rig->instruction->params[MK_PARAM_ATTEND_window] = t->window;
  test_rig_expect_waits(rig, 1);
  test_rig_expect_done(rig);
}

/* Tokens [first, end) are no numbers. */
static void spoil(attend *t, uint32_t head, uint32_t first, uint32_t end) {
  const uint32_t *table = (const uint32_t *)(const void *)t->rig.memory[t->table];
  uint16_t *cache = (uint16_t *)(void *)t->rig.memory[t->kv];
  const mk_buffer *b = &t->rig.program->buffers[t->kv];
  for (uint32_t token = first; token < CONTEXT && token < end; token++) {
    for (uint32_t which = 0; which < 2; which++) {
      for (uint32_t d = 0; d < t->head_dim; d++) {
        const size_t pair = (size_t)table[token / BLOCK] * KV_HEADS + head;
        if (t->fp8) {
          t->rig.memory[t->kv][pair * mk_pair_bytes(b) + which * mk_half_bytes(b) +
                               mk_half_code(b, which, token % BLOCK, d)] = 0x7f;
          continue;
        }
        cache[pair * 2 * BLOCK * t->head_dim + mk_block_offset(BLOCK, t->head_dim, which, token % BLOCK, d)] = 0x7fff;
      }
    }
  }
}

static void expect_bits(uint32_t head_dim, bool fp8, uint32_t window) {
  static const uint32_t positions[] = {0,    15,   16,   31,   32,   255,  256,        700,
                                       1023, 2900, 4095, 4096, 5000, 8700, CONTEXT - 1};
  attend t;
  set_up(&t, head_dim, fp8);
  t.window = window;
  const mk_program *p = t.rig.program;
  for (uint32_t i = 0; i < sizeof positions / sizeof positions[0]; i += test_effort(2, 1)) {
    const uint32_t head = i % KV_HEADS;
    t.rig.state.rows[0].position = positions[i];
    memcpy(t.rig.memory[t.kv], t.rig.memory[t.split_kv], p->buffers[t.kv].bytes); /* as it was before this token */
    append(&t, head);
    attend_by_splits(&t, head);
    cr_assert_eq(memcmp(t.rig.memory[t.kv], t.rig.memory[t.split_kv], p->buffers[t.kv].bytes), 0,
                 "position %u: another cache", positions[i]);
    spoil(&t, head, positions[i] + 1, positions[i] + 2 * BLOCK); /* which the row does not see */
    if (window != 0 && window <= positions[i]) {
      spoil(&t, head, 0, positions[i] + 1 - window);
    }
    for (uint32_t query = head * GROUP; query < (head + 1) * GROUP; query++) {
      attend_to_all(&t, query);
      for (uint32_t d = query * head_dim; d < (query + 1) * head_dim; d++) {
        const double have = test_rig_read(&t.rig, t.out, 0, d), want = test_rig_read(&t.rig, t.combined, 0, d);
        cr_assert(have == want && isfinite(want), "position %u, head %u, dim %u: %a, not %a", positions[i], query,
                  d % head_dim, have, want);
      }
    }
  }
  test_rig_stop(&t.rig);
}

Test(attend, has_the_bits_of_splits_64) { expect_bits(64, false, 0); }
Test(attend, has_the_bits_of_splits_128) { expect_bits(128, false, 0); }
Test(attend, has_the_bits_of_splits_64_in_fp8) { expect_bits(64, true, 0); }
Test(attend, has_the_bits_of_splits_128_in_fp8) { expect_bits(128, true, 0); }
Test(attend, has_the_bits_of_splits_in_a_window) { expect_bits(64, false, 1000); }
Test(attend, has_the_bits_of_splits_in_a_small_window) { expect_bits(128, false, 17); }
Test(attend, has_the_bits_of_splits_in_a_window_in_fp8) { expect_bits(64, true, 4099); }

/* A table that names no block is a fault, and nothing is touched. */
Test(attend, blocks_that_do_not_exist) {
  attend t;
  set_up(&t, 64, false);
  uint32_t *table = (uint32_t *)(void *)t.rig.memory[t.table];
  t.rig.state.rows[0].position = 100;
  table[1] = BLOCKS;
  begin(&t, MK_OP_APPEND);
  test_rig_operand(&t.rig, MK_SLOT_APPEND_k, t.qkv, 0, 1, 0, t.tiles);
  test_rig_operand(&t.rig, MK_SLOT_APPEND_v, t.qkv, 0, 1, 0, t.tiles);
  test_rig_operand(&t.rig, MK_SLOT_APPEND_kv, t.kv, 0, 1, 0, 1);
  test_rig_whole(&t.rig, MK_SLOT_APPEND_table, t.table);
  cr_assert_eq(test_rig_run(&t.rig), MK_REFERENCE_FAULT);
  cr_assert_not_null(strstr(mk_error_message(), "is block"), "%s", mk_error_message());
  begin(&t, MK_OP_ATTEND);
  test_rig_operand(&t.rig, MK_SLOT_ATTEND_q, t.qkv, 0, 1, 0, t.tiles);
  test_rig_operand(&t.rig, MK_SLOT_ATTEND_kv, t.kv, 0, 1, 0, 1);
  test_rig_whole(&t.rig, MK_SLOT_ATTEND_table, t.table);
  test_rig_operand(&t.rig, MK_SLOT_ATTEND_out, t.out, 0, 1, 0, t.tiles);
  cr_assert_eq(test_rig_run(&t.rig), MK_REFERENCE_FAULT);
  test_rig_stop(&t.rig);
}
