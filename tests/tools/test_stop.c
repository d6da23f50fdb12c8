/* Stop texts: what is shown does not depend on how the text is cut. */
#include "engine/stop.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* Feeds `text` cut where bits of `cuts` are set. */
static void feed(const char *const *strings, size_t count, const char *text, unsigned cuts, char *shown, bool *hit) {
  mk_stop stop = {.strings = strings, .count = count};
  size_t used = 0, start = 0, length = strlen(text), n;
  const char *out;
  for (size_t i = 1; i <= length; i++) {
    if (i == length || (cuts >> (i - 1) & 1) != 0) {
      cr_assert_eq(mk_stop_push(&stop, text + start, i - start, &out, &n), MK_OK);
      memcpy(shown + used, out, n);
      used += n;
      start = i;
    }
  }
  cr_assert_eq(mk_stop_finish(&stop, "", 0, &out, &n), MK_OK);
  memcpy(shown + used, out, n);
  shown[used + n] = 0;
  *hit = stop.hit;
  mk_stop_free(&stop);
}

static void expect(const char *const *strings, size_t count, const char *text, const char *want) {
  for (unsigned cuts = 0; cuts < 1U << (strlen(text) - 1); cuts++) {
    char shown[64];
    bool hit;
    feed(strings, count, text, cuts, shown, &hit);
    cr_assert_str_eq(shown, want, "`%s` cut by %x: `%s` instead of `%s`", text, cuts, shown, want);
    cr_assert_eq(hit, strlen(want) < strlen(text));
  }
}

Test(stop, every_cut) {
  expect((const char *const[]){"END"}, 1, "ab END cd", "ab ");
  expect((const char *const[]){"END"}, 1, "abEN EEND", "abEN E");
  expect((const char *const[]){"END"}, 1, "abEN", "abEN");
  expect((const char *const[]){"END"}, 1, "ENDab", "");
  expect((const char *const[]){"aab"}, 1, "aaaab", "aa");
  expect((const char *const[]){"abX", "b"}, 2, "zabX", "za");
  expect((const char *const[]){"abX", "b"}, 2, "zab", "za");
  expect((const char *const[]){"b", "aab"}, 2, "zaab", "z");
  expect((const char *const[]){"abc", "abd"}, 2, "xabeabd", "xabe");
  expect((const char *const[]){"\n"}, 1, "a\xc3\xa9\nb", "a\xc3\xa9");
  expect(NULL, 0, "nothing", "nothing");
}

Test(stop, shows_what_cannot_be_a_beginning) {
  const char *strings[] = {"END"}, *out;
  size_t length;
  mk_stop stop = {.strings = strings, .count = 1};
  cr_assert_eq(mk_stop_push(&stop, "abcE", 4, &out, &length), MK_OK);
  cr_assert_eq(length, 3);
  cr_assert_eq(mk_stop_push(&stop, "x", 1, &out, &length), MK_OK);
  cr_assert(length == 2 && memcmp(out, "Ex", 2) == 0);
  mk_stop_free(&stop);
}

Test(stop, the_last_piece_brings_what_was_held) {
  const char *strings[] = {"END"}, *out;
  size_t length;
  mk_stop stop = {.strings = strings, .count = 1};
  cr_assert_eq(mk_stop_push(&stop, "abEN", 4, &out, &length), MK_OK);
  cr_assert_eq(mk_stop_finish(&stop, "E", 1, &out, &length), MK_OK);
  cr_assert(length == 3 && memcmp(out, "ENE", 3) == 0);
  mk_stop_free(&stop);
  cr_assert_eq(mk_stop_push(&stop, "abEN", 4, &out, &length), MK_OK);
  cr_assert_eq(mk_stop_finish(&stop, "D!", 2, &out, &length), MK_OK);
  cr_assert(length == 0 && stop.hit);
  mk_stop_free(&stop);
}

Test(stop, allocation_failure) {
  const char *out;
  size_t length;
  mk_stop stop = {0};
  mk_alloc_fail_at(1, false);
  cr_assert_eq(mk_stop_push(&stop, "a", 1, &out, &length), MK_ERR_RUNTIME);
  mk_alloc_fail_at(0, false);
  cr_assert_eq(mk_stop_finish(&stop, "", 0, &out, &length), MK_OK);
  cr_assert_eq(length, 0);
  mk_stop_free(&stop);
}
