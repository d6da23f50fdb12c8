/* Work lists: what is made of a step has every row and head once, the longest first, and what has not is refused. */
#include <criterion/criterion.h>
#include <string.h>

#include "vm/program/attend_list.h"

enum { ROWS = 256, GROUP = 3, WORDS = MK_ATTEND_ITEM_WORDS * (1 + MK_LINE_TILE + 2 * MK_ATTEND_MOST_HEADS) };

static mk_program program = {.ranges = {.batch = {1, ROWS}, .slot = {0, 9}}};

static void put_run(mk_step_row *rows, uint32_t line, uint32_t count, uint32_t slot, uint32_t position) {
  for (uint32_t i = 0; i < count; i++) {
    rows[line + i] = (mk_step_row){.slot = slot, .position = position + i, .flags = MK_ROW_ACTIVE};
  }
}

/* Lines 3 to 5, 6, and 40 to 127 of the first tile; all of the second one. */
static void put_step(mk_step_row rows[ROWS]) {
  memset(rows, 0, ROWS * sizeof *rows);
  put_run(rows, 3, 3, 1, 100);
  put_run(rows, 6, 1, 2, 5000);
  put_run(rows, 40, 88, 3, 7);
  put_run(rows, 128, 128, 4, 0);
}

static mk_attend_item *items_of(uint32_t *list) { return (mk_attend_item *)(void *)list + 1; }

static void expect_item(const mk_attend_item *item, mk_attend_item want) {
  cr_assert_eq(memcmp(item, &want, sizeof want), 0, "lines %u + %u, heads %u + %u, position %u", item->first,
               item->lines, item->head, item->heads, item->position);
}

Test(attend_list, items_of_a_step) {
  mk_step_row rows[ROWS];
  uint32_t list[WORDS];
  put_step(rows);
  mk_attend_list_make(&program, rows, 0, GROUP, list);
  cr_assert_eq(list[0], 5);
  expect_item(&items_of(list)[0], (mk_attend_item){6, 1, 2, 5000, 0, 3, {0}});
  expect_item(&items_of(list)[1], (mk_attend_item){3, 3, 1, 100, 0, 3, {0}});
  for (uint32_t head = 0; head < GROUP; head++) {
    expect_item(&items_of(list)[2 + head], (mk_attend_item){40, 88, 3, 7, head, 1, {0}});
  }
  cr_assert_eq(mk_attend_list_check(&program, rows, 0, GROUP, list), MK_OK, "%s", mk_error_message());
  mk_attend_list_make(&program, rows, 1, GROUP, list);
  cr_assert_eq(list[0], GROUP);
  expect_item(&items_of(list)[1], (mk_attend_item){0, 128, 4, 0, 1, 1, {0}});
  cr_assert_eq(mk_attend_list_check(&program, rows, 1, GROUP, list), MK_OK, "%s", mk_error_message());
}

Test(attend_list, nobody_is_there) {
  static const mk_step_row rows[ROWS];
  uint32_t list[WORDS];
  mk_attend_list_make(&program, rows, 1, GROUP, list);
  cr_assert_eq(list[0], 0);
  cr_assert_eq(mk_attend_list_check(&program, rows, 1, GROUP, list), MK_OK);
}

/* Whatever a step has, its list passes the check and fits its buffer. */
Test(attend_list, any_step) {
  static const uint32_t groups[] = {1, 2, 7, 16, 128};
  uint32_t list[WORDS], random = 1;
  for (uint32_t n = 0; n < 2000; n++) {
    mk_step_row rows[ROWS] = {{0}};
    const uint32_t group = groups[n % 5], most = n % 3 == 0 ? 3 : 100;
    for (uint32_t line = 0, count; line < ROWS; line += count) {
      random = random * 1664525u + 1013904223u;
      count = 1 + (random >> 16) % most;
      count = count < ROWS - line ? count : ROWS - line;
      if ((random >> 8) % 4 != 0) {
        put_run(rows, line, count, (random >> 10) % 10, random >> 20);
      }
    }
    for (uint32_t tile = 0; tile < 2; tile++) {
      mk_attend_list_make(&program, rows, tile, group, list);
      cr_assert_leq(MK_ATTEND_ITEM_WORDS * (1 + list[0]), mk_attend_list_words(MK_LINE_TILE, group));
      cr_assert_eq(mk_attend_list_check(&program, rows, tile, group, list), MK_OK, "%s", mk_error_message());
      for (uint32_t i = 1; i < list[0]; i++) {
        const mk_attend_item *a = &items_of(list)[i - 1], *b = a + 1;
        cr_assert_geq(a->position + a->lines, b->position + b->lines);
      }
    }
  }
}

#define REFUSES(name, words, ...)                                                                        \
  Test(attend_list, name) {                                                                              \
    mk_step_row rows[ROWS];                                                                              \
    uint32_t list[WORDS];                                                                                \
    put_step(rows);                                                                                      \
    mk_attend_list_make(&program, rows, 0, GROUP, list);                                                 \
    mk_attend_item *items = items_of(list);                                                              \
    __VA_ARGS__;                                                                                         \
    (void)items;                                                                                         \
    cr_assert_eq(mk_attend_list_check(&program, rows, 0, GROUP, list), MK_ERR_USAGE, "it passed");       \
    cr_assert_not_null(strstr(mk_error_message(), words), "`%s` not in: %s", words, mk_error_message()); \
  }

REFUSES(a_line_twice, "item 5 has line 4 and head 0, which another one has",
        { items[list[0]++] = (mk_attend_item){4, 1, 1, 101, 0, 1, {0}}; })
REFUSES(a_line_that_is_missing, "no item has line 127 and head 0", items[2].lines--)
REFUSES(a_head_that_is_missing, "no item has line 6 and head 2", items[0].heads--)
REFUSES(an_item_that_is_missing, "no item has line 40 and head 2", list[0]--)
REFUSES(a_head_twice, "which another one has", items[4].head = 0)
REFUSES(an_idle_line, "an idle row", items[0] = (mk_attend_item){20, 1, 2, 5000, 0, 3, {0}})
REFUSES(a_line_of_another_slot, "position 5000 of slot 1; the plan has 5000 of slot 2", items[0].slot = 1)
REFUSES(a_line_at_another_position, "item 1 has line 3 at position 99 of slot 1", items[1].position--)
REFUSES(lines_of_two_slots, "item 1 has line 6 at position 103", items[1].lines++)
REFUSES(a_line_of_another_tile, "item 2 has 89 lines from 40 on", items[2].lines++)
REFUSES(no_lines, "item 0 has 0 lines", items[0].lines = 0)
REFUSES(lines_that_wrap, "item 0 has 4294967295 lines", items[0].lines = UINT32_MAX)
REFUSES(heads_that_wrap, "4294967295 heads from 1 on", {
  items[0].heads = UINT32_MAX;
  items[0].head = 1;
})
REFUSES(too_many_queries, "an item has at most 128 queries", items[2].heads = 2)
REFUSES(a_range_of_tokens, "item 3 has 88 lines", items[3].zero[1] = 64)
REFUSES(more_items_than_there_is_room_for, "135 items of 3 heads", list[0] = MK_LINE_TILE + 2 * GROUP + 1)
