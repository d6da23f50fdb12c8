/* Options of mkvm run whose values are texts, and what its messages advise. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/shell.h"

static void expect(const char *command, int code, const char *text) {
  test_shell_expect(MK_COMMAND, command, code, text);
}

static void make(void) { test_shell_enter(MK_COMMAND); }

TestSuite(run_option, .init = make, .fini = test_shell_leave, .timeout = MK_HANG_SECONDS);

#define GREEDY "$MKVM run -m $DEMO --temp 0 -p 'Once upon a time' -n 60 2>/dev/null "

#define TO_INSTALL "$MKVM run -m $DEMO --temp 0 -p 'To install a package,' -n 100 "

/* The same place, written as itself and as an escape. */
Test(run_option, stop_takes_escapes) {
  char want[4096];
  cr_assert_eq(test_shell(MK_COMMAND, GREEDY "--stop the"), 0);
  cr_assert_lt(strlen(test_output), sizeof want);
  strcpy(want, test_output);
  expect(GREEDY "--stop '\\x74he'", 0, want);
  cr_assert_str_eq(test_output, want);
  expect(GREEDY "--stop 't\\x68\\x65'", 0, want);
  cr_assert_str_eq(test_output, want);
  /* The same text up to its first line break. */
  expect(TO_INSTALL "--json", 0, "\"text\": \"");
  strcpy(want, strstr(test_output, "\"text\": \""));
  cr_assert_not_null(strstr(want, "\\n"), "%s", test_output);
  strcpy(strstr(want, "\\n"), "\", \"finish_reason\": \"stop\"");
  expect(TO_INSTALL "--stop '\\n' --json", 0, want);
  expect("$MKVM run --help", 0, "are read as in C");
}

/* What no text contains is an escape that was read, and no error. */
Test(run_option, stop_takes_every_escape) { expect(GREEDY "--stop '\\t\\\\n\\x0a\\x7E'", 0, "Once" + 4); }

Test(run_option, stop_refuses_other_escapes) {
  expect("$MKVM run -m m --stop 'a\\q' 2>&1", 2, "--stop: '\\q' is not an escape");
  expect("$MKVM run -m m --stop 'a\\' 2>&1", 2, "--stop: '\\' is not an escape");
  expect("$MKVM run -m m --stop '\\x4g' 2>&1", 2, "--stop: '\\x4g' is not an escape");
  expect("$MKVM run -m m --stop '\\x4' 2>&1", 2, "--stop: '\\x4' is not an escape");
  expect("$MKVM run -m m --stop 'a\\x00' 2>&1", 2, "--stop: \\x00 is a byte");
}

/* The tiny model has 2048 positions. */
Test(run_option, ctx_size_is_advised_where_it_helps) {
  expect("$MKVM run -m m -p hello -c 3 2>&1", 2, "the context 3; shorten it or raise --ctx-size");
  expect("head -c 3000 /dev/zero | $MKVM run -m m 2>&1", 2,
         "the context 2048, which is the model's limit; shorten it\n");
  expect("head -c 3000 /dev/zero | $MKVM run -m m -c 2048 2>&1", 2, "which is the model's limit");
  expect("printf 'one\\ntwo\\n' | $MKVM run -m $DEMO --chat -c 16 --ignore-eos 2>&1", 2, "or raise --ctx-size");
}

/* A model that has 64 positions. */
Test(run_option, a_full_conversation_at_the_model_s_limit) {
  expect(
      "mkdir s && ln -s $DEMO/* s && rm s/config.json && sed 's/2048/64/' $DEMO/config.json >s/config.json && "
      "{ yes the | head -n 40 | tr '\\n' ' '; printf '\\ntwo\\n'; } | "
      "$MKVM run -m s --chat -c 64 --ignore-eos 2>&1",
      2, "the context of 64 tokens is full, and the model has no more; begin a new conversation\n");
  cr_assert_not_null(strstr(test_output, "which is the model's limit; begin a new one\n"), "%s", test_output);
  cr_assert_null(strstr(test_output, "--ctx-size"), "%s", test_output);
}

/* What tools/demo tells people to type works as it stands, but for where the program lies. */
Test(run_option, commands_that_the_demo_names) {
  expect("grep '^  build/mkvm' " MK_SOURCE_DIR
         "/tools/demo | sed \"s| *#.*||; s|build/mkvm|$MKVM|g; s|models/demo|$DEMO|g\" >next; "
         "echo lines: $(wc -l <next); echo 'What is free?' | sh -e next",
         0, "lines: 3\n");
  cr_assert_not_null(strstr(test_output, "Usage: mkvm COMMAND"), "%s", test_output);
}
