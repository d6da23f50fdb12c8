/* What the tests of the command share: a directory with a tiny model in it, the command's exit code and words, and its
 * JSON.
 *
 * The directory is there from make_tiny to remove_all, a suite's .init and .fini. Failure fails the running test. */
#ifndef MK_TEST_COMMAND_RIG_H
#define MK_TEST_COMMAND_RIG_H

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/process.h"

static char directory[] = "/tmp/mk-command-XXXXXX";

static inline const char *in_directory(const char *name) {
  static char paths[32][128];
  static unsigned next;
  char *path = paths[next++ % 32];
  snprintf(path, sizeof paths[0], "%s/%s", directory, name);
  return path;
}

static inline test_result run(const char *const *arguments) { return test_process(MK_COMMAND, arguments); }
#define RUN(...) run((const char *const[]){__VA_ARGS__, NULL})

static inline void expect(test_result r, int code, const char *in_out, const char *in_err) {
  cr_assert_eq(r.code, code, "exit code %d instead of %d\n%s\n%s", r.code, code, r.out, r.err);
  cr_assert_not_null(strstr(r.out, in_out), "`%s` is not in the output: %s", in_out, r.out);
  cr_assert_not_null(strstr(r.err, in_err), "`%s` is not in the errors: %s", in_err, r.err);
  test_drop(&r);
}
#define EXPECT(code, in_out, in_err, ...) expect(RUN(__VA_ARGS__), code, in_out, in_err)

static inline void make_tiny(void) {
  cr_assert_not_null(mkdtemp(directory));
  EXPECT(0, "parameters", "", "synth", "--like", "tiny", "-o", in_directory("tiny"), "--seed", "3");
}
static inline void remove_all(void) {
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", directory);
  cr_expect_eq(system(command), 0);
}
static inline json_t *run_json(const char *const *arguments) {
  test_result r = run(arguments);
  json_error_t error;
  cr_assert_eq(r.code, 0, "%s", r.err);
  json_t *object = json_loads(r.out, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
  cr_assert_not_null(object, "not JSON: %s: %s", error.text, r.out);
  test_drop(&r);
  return object;
}
#define RUN_JSON(...) run_json((const char *const[]){"run", "--json", __VA_ARGS__, NULL})

static inline const char *text_of(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  cr_assert_not_null(text, "%s is missing", key);
  return text;
}

#endif
