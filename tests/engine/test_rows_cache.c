/* Several rows per step and their KV blocks: a sequence has its bits whatever these held before, however few there are,
 * and whoever else reads them. */
#include "tests/engine/rows_rig.h"

/* Not a number in every element of the KV cache: what is read without having been written shows. */
static void poison(mk_engine *engine) {
  const mk_program *program = mk_engine_program(engine);
  for (size_t b = 0; b < program->buffer_count; b++) {
    uint16_t *elements = mk_cpu_memory(mk_engine_cpu(engine), b);
    for (uint64_t i = 0; program->buffers[b].kind == MK_KIND_KV && i < program->buffers[b].bytes / 2; i++) {
      elements[i] = 0x7fc0;
    }
  }
}

/* Few blocks, so that they go from sequence to sequence, and from span to span of others. */
static void blocks_used_again(void) {
  use_model(TEST_MODEL_ODD);
  work *want = ragged(), *got = copy_of(want);
  run((mk_engine_options){.sms = 7}, want);
  mk_engine *engine = open_engine((mk_engine_options){.sms = 5, .rows = 4, .kv_blocks = 13});
  poison(engine);
  run_on(engine, got);
  expect_same("poisoned", got, want);
  run_on(engine, got);
  expect_same("used before", got, want);
  mk_engine_close(engine);
  free_work(want);
  free_work(got);
  test_model_remove(directory);
}

Test(rows_cache, blocks_are_used_again_and_never_read_stale) { blocks_used_again(); }
Test(rows_cache, blocks_are_used_again_and_never_read_stale_in_fp8) {
  cache_form = MK_DTYPE_E4M3;
  blocks_used_again();
}

/* 3 blocks of 64: a prompt that never fits is refused; who finds no block waits, or gives its own back and comes again.
 */
static void full_cache(void) {
  use_model(TEST_MODEL_TINY);
  work *want = new_work();
  add(want, 50, 24, 0); /* grows into a second block */
  add(want, 200, 3, 0); /* four blocks */
  add(want, 60, 20, 0); /* wants another one while the first still has it */
  add(want, 20, 10, 0); /* waits, then runs */
  work *got = copy_of(want);
  run((mk_engine_options){.sms = 7}, want);
  mk_engine *engine = open_engine((mk_engine_options){.sms = 5, .rows = 4, .kv_blocks = 3});
  run_on(engine, got);
  cr_assert_eq(got->outputs[1].status, MK_ERR_USAGE);
  cr_assert_str_eq(got->outputs[1].message, "the prompt has 200 tokens; the KV cache holds 192");
  want->outputs[1] = (output){.logits = want->outputs[1].logits, .status = MK_ERR_USAGE};
  mk_batch_counters counters;
  mk_engine_count(engine, &counters);
  cr_assert_eq(counters.preemptions, 1);
  expect_same("few blocks", got, want);
  mk_engine_close(engine);
  free_work(want);
  free_work(got);
  test_model_remove(directory);
}

Test(rows_cache, a_full_cache_is_nobodys_end) { full_cache(); }
Test(rows_cache, a_full_cache_is_nobodys_end_in_fp8) {
  cache_form = MK_DTYPE_E4M3;
  full_cache();
}

/* A conversation of three turns: each prompt begins with the one before and its answer. Of what is known whole blocks
 * are not computed again, and tokens and logits are those of an engine that keeps nothing. */
static void conversation(uint32_t rows, uint64_t seed) {
  static const size_t said[] = {70, 3, 90};
  mk_engine_options options = {.sms = 5, .rows = rows, .interleave_seed = seed, .check_races = seed != 0};
  mk_engine *plain = open_engine(options);
  options.prefix_tokens = LONGEST;
  mk_engine *keeps = open_engine(options);
  work *w = new_work(), *got;
  size_t length = 0;
  for (size_t turn = 0; turn < sizeof said / sizeof said[0]; turn++) {
    mk_batch_counters before, after;
    w->count = 0;
    add(w, length + said[turn], 20, 0);
    const output *last = &w->outputs[0];
    for (size_t i = 0; turn != 0 && i < last->count; i++) {
      w->prompts[0][length - last->count + i] = last->tokens[i];
    }
    got = copy_of(w);
    mk_engine_count(keeps, &before);
    run_on(plain, w);
    run_on(keeps, got);
    mk_engine_count(keeps, &after);
    cr_assert_eq(after.cached_tokens - before.cached_tokens, turn == 0 ? 0 : (length - 1) / 64 * 64,
                 "turn %zu: %llu tokens were known", turn,
                 (unsigned long long)(after.cached_tokens - before.cached_tokens));
    expect_same("with what is known", got, w);
    free_work(got);
    length += said[turn] + w->outputs[0].count;
  }
  mk_engine_close(plain);
  mk_engine_close(keeps);
  free_work(w);
}

Test(rows_cache, a_turn_computes_what_it_adds) {
  use_model(TEST_MODEL_ODD);
  conversation(1, 0);
  conversation(4, 0);
  conversation(MK_PROMPT_ROWS, 0);
  conversation(8, 3);
  test_model_remove(directory);
}

Test(rows_cache, a_turn_computes_what_it_adds_in_fp8) {
  cache_form = MK_DTYPE_E4M3;
  use_model(TEST_MODEL_ODD);
  conversation(1, 0);
  conversation(4, 0);
  conversation(8, 3);
  test_model_remove(directory);
}

/* Several that begin alike, side by side: who reads whose blocks is nobody's concern. */
static void begin_alike(void) {
  use_model(TEST_MODEL_TINY);
  work *w = new_work();
  for (size_t i = 0; i < 6; i++) {
    add(w, 130 + i % 3 * 64, 5, 0);
    memcpy(w->prompts[i], w->prompts[0], 130 * sizeof w->prompts[0][0]);
  }
  work *got = copy_of(w);
  run((mk_engine_options){.sms = 7}, w);
  mk_engine *engine = open_engine(
      (mk_engine_options){.sms = 5, .rows = 8, .prefix_tokens = LONGEST, .interleave_seed = 9, .check_races = true});
  for (uint32_t round = 0; round < 2; round++) {
    mk_batch_counters counters;
    run_on(engine, got);
    expect_same("alike", got, w);
    mk_engine_count(engine, &counters);
    cr_assert_geq(counters.cached_tokens, (round + 1) * 5 * 128);
  }
  mk_engine_close(engine);
  free_work(w);
  free_work(got);
  test_model_remove(directory);
}

Test(rows_cache, those_who_begin_alike_have_their_bits) { begin_alike(); }
Test(rows_cache, those_who_begin_alike_have_their_bits_in_fp8) {
  cache_form = MK_DTYPE_E4M3;
  begin_alike();
}
