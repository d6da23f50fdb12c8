/* KV blocks by themselves: who has which, which are known, and which are given up. */
#include "engine/blocks.h"

#include <criterion/criterion.h>

static mk_blocks blocks_of(uint32_t slots, uint32_t columns, uint32_t count, uint32_t kept) {
  mk_blocks b;
  const mk_blocks_options options = {
      .slots = slots, .columns = columns, .block_tokens = 4, .count = count, .kept = kept, .seed = 3};
  cr_assert_eq(mk_blocks_init(&b, &options), MK_OK);
  return b;
}

Test(blocks, blocks_go_and_come_back) {
  mk_blocks b = blocks_of(2, 4, 5, 0);
  cr_assert(mk_blocks_hold(&b, 0, 5));
  cr_assert(mk_blocks_hold(&b, 1, 9));
  cr_assert_eq(mk_blocks_available(&b), 0);
  cr_assert(mk_blocks_hold(&b, 0, 8), "it has two");
  cr_assert_not(mk_blocks_hold(&b, 0, 9));
  uint32_t seen = 0;
  for (uint32_t i = 0; i < 5; i++) {
    seen |= 1u << b.table[i < 2 ? i : 4 + i - 2];
  }
  cr_assert_eq(seen, 31, "every block once");
  uint32_t first = b.table[0];
  mk_blocks_release(&b, 0);
  cr_assert_eq(mk_blocks_available(&b), 2);
  cr_assert(mk_blocks_hold(&b, 1, 13));
  cr_assert_eq(b.table[7], first, "what came back goes first");
  mk_blocks_free(&b);
}

static mk_known known_of(const uint32_t *tokens, uint32_t count, uint32_t prompt, uint8_t rest) {
  return (mk_known){.tokens = tokens, .count = count, .origin = {.prompt_count = prompt, .prompt = 1, .rest = rest}};
}

/* Fills a slot with such a sequence, and lets it go. */
static void pass(mk_blocks *b, uint32_t slot, const mk_known *s) {
  (void)mk_blocks_begin(b, slot, s);
  cr_assert(mk_blocks_hold(b, slot, s->count));
  mk_blocks_learn(b, slot, s);
  mk_blocks_release(b, slot);
}

Test(blocks, known_blocks_are_found_by_tokens_and_by_how_they_were_computed) {
  static const uint32_t one[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13},
                        two[] = {1, 2, 3, 4, 5, 6, 7, 9, 9, 10, 11, 12};
  mk_blocks b = blocks_of(2, 8, 8, 8);
  const mk_known s = known_of(one, 12, 9, 2);
  pass(&b, 0, &s);
  cr_assert_eq(b.kept, 3);
  const struct {
    const uint32_t *tokens;
    uint32_t count, prompt;
    uint8_t rest;
    uint32_t want;
  } asks[] = {{one, 13, 9, 2, 3},  {one, 12, 9, 2, 2},     {one, 9, 9, 2, 2},  {one, 8, 8, 2, 1},
              {one, 13, 10, 2, 2}, {one, 13, 13, 2, 2},    {one, 13, 9, 3, 2}, {one, 13, 0, 1, 2},
              {two, 12, 9, 2, 1},  {one + 1, 12, 9, 2, 0}, {one, 13, 2, 2, 0}};
  for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
    const mk_known ask = known_of(asks[i].tokens, asks[i].count, asks[i].prompt, asks[i].rest);
    cr_assert_eq(mk_blocks_match(&b, &ask), asks[i].want, "ask %zu: %u blocks", i, mk_blocks_match(&b, &ask));
  }
  mk_blocks_forget(&b);
  cr_assert_eq(mk_blocks_match(&b, &s), 0);
  cr_assert_eq(mk_blocks_available(&b), 8);
  mk_blocks_free(&b);
}

/* Both fill the same block at the same time: the second one's is given back for the first one's. */
Test(blocks, a_block_is_known_once) {
  static const uint32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8};
  mk_blocks b = blocks_of(2, 4, 6, 6);
  const mk_known s = known_of(tokens, 8, 8, 2);
  for (uint32_t slot = 0; slot < 2; slot++) {
    cr_assert_eq(mk_blocks_begin(&b, slot, &s), 0);
    cr_assert(mk_blocks_hold(&b, slot, 8));
  }
  for (uint32_t slot = 0; slot < 2; slot++) {
    mk_blocks_learn(&b, slot, &s);
  }
  cr_assert_eq(mk_blocks_in_use(&b), 2);
  cr_assert_eq(b.table[0], b.table[4]);
  cr_assert_eq(b.table[1], b.table[5]);
  mk_blocks_release(&b, 0);
  cr_assert_eq(mk_blocks_in_use(&b), 2, "the other one still has them");
  mk_blocks_release(&b, 1);
  cr_assert_eq(b.kept, 2);
  mk_blocks_free(&b);
}

Test(blocks, the_oldest_is_given_up_first_and_never_before_what_follows_it) {
  uint32_t tokens[3][12];
  mk_blocks b = blocks_of(1, 8, 6, 5);
  for (uint32_t i = 0; i < 36; i++) {
    tokens[i / 12][i % 12] = i / 12 * 100 + i % 12;
  }
  const mk_known a = known_of(tokens[0], 12, 12, 2), c = known_of(tokens[1], 12, 12, 2);
  pass(&b, 0, &a);
  pass(&b, 0, &c);
  cr_assert_eq(b.kept, 5, "five at most");
  cr_assert_eq(mk_blocks_match(&b, &(mk_known){a.tokens, 13, a.origin}), 2, "its last block went");
  pass(&b, 0, &(mk_known){a.tokens, 9, a.origin});
  cr_assert(mk_blocks_hold(&b, 0, 12));
  cr_assert_eq(mk_blocks_match(&b, &(mk_known){a.tokens, 13, a.origin}), 2, "it was used last");
  cr_assert_eq(mk_blocks_match(&b, &(mk_known){c.tokens, 13, c.origin}), 1);
  mk_blocks_release(&b, 0);
  mk_blocks_free(&b);
}
