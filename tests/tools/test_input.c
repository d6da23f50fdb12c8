/* Where mkvm run takes its prompt from when none is named, and what it shows while it reads a long one. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/shell.h"

static void expect(const char *command, int code, const char *text) {
  test_shell_expect(MK_COMMAND, command, code, text);
}

static void make(void) { test_shell_enter(MK_COMMAND); }

TestSuite(input, .init = make, .fini = test_shell_leave, .timeout = MK_HANG_SECONDS);

/* 510 is what the tokenizer of the tiny model puts before a text; its other tokens are bytes. */
Test(input, a_prompt_on_standard_input) {
  expect("printf abc | $MKVM run -m m -n 2 --json", 0, "\"prompt_tokens\": [510, 97, 98, 99]");
  expect("printf 'a\\n' >text; $MKVM run -m m -n 2 --json <text", 0, "\"prompt_tokens\": [510, 97, 10]");
  expect("printf abc | $MKVM run -m m -n 2 --echo 2>/dev/null", 0, "abc");
  expect("printf abc | $MKVM run -m m -n 2 --compare 2>&1", 0, "");
  expect("$MKVM run --help", 0, "standard input");
}

Test(input, what_is_named_goes_before_standard_input) {
  expect("printf abc | $MKVM run -m m -p x -n 2 --json", 0, "\"prompt_tokens\": [510, 120]");
  expect("printf x >text; printf abc | $MKVM run -m m -f text -n 2 --json", 0, "\"prompt_tokens\": [510, 120]");
  expect("printf abc | $MKVM run --program p.mkp -n 2", 0, "2 steps from position 0");
  expect("printf 'What?\\n' | $MKVM run -m $DEMO --chat -n 4 2>/dev/null", 0, "");
}

/* As jobs and services run things. */
Test(input, no_standard_input_is_an_empty_prompt) {
  expect("$MKVM run -m m -n 2 --json </dev/null", 0, "\"prompt_tokens\": [510]");
  expect("$MKVM run -m m -n 2 --json <&-", 0, "\"prompt_tokens\": [510]");
  expect("$MKVM run -m m -n 2 --json </dev/null >text; cat text", 0, "\"prompt_tokens\": [510]");
}

Test(input, standard_input_that_cannot_be_read) {
  expect("$MKVM run -m m -n 2 2>&1 <.", 1, "standard input: cannot be read: Is a directory");
  expect("$MKVM run -m m -n 2 2>&1 </dev/zero", 2, "standard input: holds more than 16777216 bytes");
}

/* All that the command writes to a terminal. */
static int on_a_terminal(const char *command) {
  struct winsize size = {.ws_row = 24, .ws_col = 200};
  int terminal, status;
  size_t length = 0;
  ssize_t got;
  setenv("MKVM", MK_COMMAND, 1);
  pid_t child = forkpty(&terminal, NULL, NULL, &size);
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
  }
  if (child < 0 && (errno == ENOENT || errno == ENODEV)) {
    cr_skip_test("there are no pseudo-terminals here (/dev/pts is not mounted)");
  }
  cr_assert_gt(child, 0, "forkpty: %s", strerror(errno));
  while ((got = read(terminal, test_output + length, sizeof test_output - 1 - length)) > 0) {
    length += (size_t)got;
  }
  test_output[length] = 0;
  cr_assert_eq(waitpid(child, &status, 0), child);
  close(terminal);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

Test(input, a_terminal_is_no_prompt) {
  cr_assert_eq(on_a_terminal("$MKVM run -m m -n 2 --json"), 0, "%s", test_output);
  cr_assert_not_null(strstr(test_output, "\"prompt_tokens\": [510]"), "%s", test_output);
}

#define RUN_LONG "$MKVM run -m m -f long -n 2 --interleave 7 --check --ignore-eos "
#define PROGRESS "\r\033[Kreading the prompt: "

static void write_long(size_t length) {
  FILE *file = fopen("long", "w");
  cr_assert_not_null(file);
  for (size_t i = 0; i < length; i++) {
    fputc('x', file);
  }
  cr_assert_eq(fclose(file), 0);
}

/* A prompt that takes this machine, in a random interleaving, long enough for a line about it on a terminal; its
 * length, with what was printed in test_output. The longest one takes any machine seconds. */
static size_t find_long(const char *options) {
  char command[256];
  snprintf(command, sizeof command, "exec " RUN_LONG "%s", options);
  for (size_t length = 150;; length = length < 950 ? 2 * length : 1900) {
    write_long(length);
    cr_assert_eq(on_a_terminal(command), 0, "%s", test_output);
    if (strstr(test_output, PROGRESS) != NULL) {
      return length;
    }
    cr_assert_lt(length, 1900, "no line about the prompt: %s", test_output);
  }
}

Test(input, progress_of_a_long_prompt) {
  static const char *const ways[] = {"", "--rows 4"};
  char words[64];
  for (size_t i = 0; i < 2; i++) {
    snprintf(words, sizeof words, " of %zu tokens, ", find_long(ways[i]) + 1);
    const char *line = strstr(test_output, PROGRESS), *last = line;
    cr_assert_not_null(strstr(line, words), "%s", test_output);
    for (; line != NULL; line = strstr(line + 1, "reading the prompt: ")) {
      last = line;
    }
    cr_assert_not_null(strstr(last, "tokens/s\r\033[K"), "the line has not been cleared: %s", last);
    cr_assert_not_null(strstr(last, "generated 2 tokens"), "%s", last);
  }
}

Test(input, no_progress_without_a_terminal_or_beside_an_echo) {
  (void)find_long("");
  expect(RUN_LONG "2>&1", 0, "generated");
  cr_assert_null(strstr(test_output, "reading"), "%s", test_output);
  cr_assert_eq(on_a_terminal("exec " RUN_LONG "--echo"), 0, "%s", test_output);
  cr_assert_null(strstr(test_output, "reading"), "%s", test_output);
}

/* Loading clears its own line: what is echoed comes after that. */
Test(input, an_echo_on_a_terminal_stays) {
  cr_assert_eq(on_a_terminal("$MKVM run -m m -p 'said first' -n 2 --echo"), 0, "%s", test_output);
  const char *echo = strstr(test_output, "said first");
  cr_assert_not_null(echo, "%s", test_output);
  cr_assert_null(strstr(echo, "\r\033[K"), "%s", test_output);
}
