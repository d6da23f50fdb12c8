/* Stages of wide programs, in programs of fewer rows: what they do for one row has the same rules. See generate.h. */
#include "tests/support/generate_internal.h"

void test_hint_wait_all(const generator *g, mk_instruction *in, uint16_t counter) {
  if (counter != NONE) {
    test_wait(in, counter, g->p->counters[counter].total);
  }
}

wide_norm test_push_norm(generator *g, vector x, bool wanted) {
  const mk_buffer *from = &g->p->buffers[x.buffer];
  wide_norm n = {.there = wanted && from->tile_cols == MK_TILE && mk_buffer_grid_cols(from) == g->tiles,
                 .counter = NONE};
  if (!n.there) {
    return n;
  }
  n.one_sm = g->lines == 1 && test_below(g, 2) == 0;
  n.sm = test_below(g, g->stateful);
  const mk_store store = n.one_sm ? MK_STORE_PLAIN : MK_STORE_STAMPED;
  n.out = test_add_value(g, "normed", MK_DTYPE_BF16, store, 1, g->tiles * MK_TILE, MK_TILE);
  n.squares = test_add_value(g, "squares", MK_DTYPE_F32, store, 1, 1, 1);
  mk_instruction *in = test_push(g, n.sm, MK_OP_NORM);
  in->operands[MK_SLOT_NORM_x] = test_whole(g, x.buffer);
  in->operands[MK_SLOT_NORM_gain] = test_whole(g, g->gain);
  in->operands[MK_SLOT_NORM_out] = test_whole(g, n.out);
  in->operands[MK_SLOT_NORM_squares] = test_whole(g, n.squares);
  test_hint_wait(g, in, x.hint);
  if (n.one_sm && !test_slips(g, 8)) {
    n.counter = test_add_counter(g, MK_COUNTER_RELEASE);
    test_signal(g, in, n.counter, 1);
  }
  return n;
}

/* The SM that appends attends, too: so its next step appends when this one's readers are done. */
vector test_push_attend(generator *g, vector x) {
  const uint32_t group = g->heads / g->kv_heads, q_tiles = g->heads * HEAD_TILES;
  const vector qkv = test_push_qkv(g, &x, (g->heads + 2 * g->kv_heads) * HEAD_DIM,
                                   (g->heads + g->kv_heads) * HEAD_TILES, 1 + test_below(g, 2), 0);
  const uint16_t kv = test_add_cache(g, 1);
  const vector out = {
      .buffer = test_add_value(g, "attended", MK_DTYPE_BF16, MK_STORE_STAMPED, 1, g->heads * HEAD_DIM, MK_TILE),
      .hint = test_new_hint(g)};
  for (uint32_t head = 0; head < g->kv_heads; head++) {
    const uint32_t sm = test_below(g, g->stateful);
    const uint16_t appended = test_slips(g, 12) ? NONE : test_add_counter(g, MK_COUNTER_RELEASE);
    mk_instruction *in = test_push(g, sm, MK_OP_APPEND);
    in->operands[MK_SLOT_APPEND_k] = test_tiles(qkv.buffer, 0, 1, q_tiles + head * HEAD_TILES, HEAD_TILES);
    in->operands[MK_SLOT_APPEND_v] =
        test_tiles(qkv.buffer, 0, 1, q_tiles + (g->kv_heads + head) * HEAD_TILES, HEAD_TILES);
    in->operands[MK_SLOT_APPEND_kv] = test_tiles(kv, 0, 1, head, 1);
    in->operands[MK_SLOT_APPEND_table] = test_whole(g, g->table);
    test_hint_wait(g, in, qkv.hint);
    if (appended != NONE) {
      test_signal(g, in, appended, 1);
    }
    for (uint32_t q = head * group; q < (head + 1 == g->kv_heads ? g->heads : (head + 1) * group); q++) {
      in = test_push(g, test_slips(g, 12) ? test_below(g, g->stateful) : sm, MK_OP_ATTEND);
      in->operands[MK_SLOT_ATTEND_q] = test_tiles(qkv.buffer, 0, 1, q * HEAD_TILES, HEAD_TILES);
      in->operands[MK_SLOT_ATTEND_kv] = test_tiles(kv, 0, 1, head, 1);
      in->operands[MK_SLOT_ATTEND_table] = test_whole(g, g->table);
      in->operands[MK_SLOT_ATTEND_out] = test_tiles(out.buffer, 0, 1, q * HEAD_TILES, HEAD_TILES);
      in->params[MK_PARAM_ATTEND_scale] = mk_float_param(0.125f);
      in->params[MK_PARAM_ATTEND_window] = test_below(g, 3) != 0 ? 0 : 1 + test_below(g, 2 * g->span);
      test_hint_wait_all(g, in, appended);
      test_hint_signal(g, in, out.hint);
    }
  }
  return out;
}
