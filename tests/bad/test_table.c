/* The table in README.md names tests that exist. */
#include <criterion/criterion.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>

#include "models/json.h"

/* Whether some tests/<folder>/test_*.c says Test(suite, test followed by a comma or the closing parenthesis. */
static bool exists(const glob_t *sources, const char *suite, const char *test) {
  char words[256];
  const int used = snprintf(words, sizeof words, "Test(%s, %s", suite, test);
  bool found = false;
  for (size_t i = 0; i < sources->gl_pathc && !found; i++) {
    char *text;
    size_t length;
    cr_assert_eq(mk_file_read(sources->gl_pathv[i], false, 1 << 24, &text, &length), MK_OK, "%s", mk_error_message());
    for (const char *at = strstr(text, words); at != NULL && !found; at = strstr(at + 1, words)) {
      found = at[used] == ')' || at[used] == ',';
    }
    mk_free(text);
  }
  return found;
}

Test(table, every_named_test_exists) {
  glob_t sources;
  cr_assert_eq(glob(MK_SOURCE_DIR "/tests/*/test_*.c", 0, NULL, &sources), 0);
  cr_assert_eq(glob(MK_SOURCE_DIR "/tests/*/*/test_*.c", GLOB_APPEND, NULL, &sources), 0);
  char *text, *rest;
  size_t length, rows = 0;
  cr_assert_eq(mk_file_read(MK_SOURCE_DIR "/tests/bad/README.md", false, 1 << 20, &text, &length), MK_OK);
  rest = strstr(text, "| fault | tests |");
  cr_assert_not_null(rest);
  for (char *line = strtok_r(rest, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
    char *cell = strstr(line + 1, " | "); /* the second one */
    size_t tests = 0;
    for (char *at = cell == NULL ? NULL : strchr(cell, '`'); at != NULL; at = strchr(at + 1, '`')) {
      char suite[64], test[128];
      cr_assert_eq(sscanf(at, "`%63[a-z_0-9].%127[a-z_0-9]`", suite, test), 2, "%s", at);
      cr_expect(exists(&sources, suite, test), "%s.%s is named and is no test", suite, test);
      at = strchr(at + 1, '`');
      tests++;
    }
    rows += tests > 0;
  }
  cr_assert_gt(rows, 40);
  mk_free(text);
  globfree(&sources);
}
