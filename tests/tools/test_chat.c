/* mkvm run --chat as a user meets it: one turn, lines from a pipe, and a terminal with Ctrl-C and Ctrl-D. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "tests/support/shell.h"

#define DEMO MK_SOURCE_DIR "/models/demo"

enum { PATIENCE_MS = MK_HANG_SECONDS / 4 * 1000 };

TestSuite(chat, .timeout = MK_HANG_SECONDS);

static int shell(const char *command) { return test_shell(MK_COMMAND, command); }

static void expect(const char *command, int code, const char *text) {
  test_shell_expect(MK_COMMAND, command, code, text);
}

Test(chat, usage) {
  expect("$MKVM run -m $DEMO --system x 2>&1", 2, "--system needs --chat");
  expect("$MKVM run -m $DEMO --date 2026-01-01 2>&1", 2, "--date needs --chat");
  expect("$MKVM run -m $DEMO --chat-variables {} 2>&1", 2, "--chat-variables needs --chat");
  expect("$MKVM run -m $DEMO --chat -p x --chat-variables '{\"tools\": 1}' 2>&1", 2, "'tools' cannot be given");
  expect("$MKVM run -m $DEMO --chat --json 2>&1", 2, "--json is for one turn");
  expect("$MKVM run -m $DEMO --chat -p x --date tomorrow 2>&1", 2, "'tomorrow' is not a date");
  expect(
      "d=$(mktemp -d); ln -s $DEMO/*.json $DEMO/model.safetensors $d; $MKVM run -m $d --chat -p x 2>&1; c=$?; rm -r "
      "$d; "
      "exit $c",
      3, "there is no chat template");
}

Test(chat, one_turn) {
  expect("$MKVM run -m $DEMO --chat --system 'A manual.' -p ' How? ' -n 5 --echo 2>&1", 0,
         "<|begin_of_text|>A manual.\n\nQuestion: How?\nAnswer:");
  expect("$MKVM run -m $DEMO --chat -p x -n 1 --echo --chat-variables '{\"bos_token\": \"A title. \"}' 2>&1", 0,
         "A title. Question: x");
  /* one begin-of-text token, which the template writes and the tokenizer does not add again */
  expect("$MKVM run -m $DEMO --chat -p x -n 3 --json", 0, "\"prompt_tokens\": [4094, ");
  cr_assert_null(strstr(test_output, "4094, 4094"), "%s", test_output);
  expect("printf 'x' | $MKVM run -m $DEMO --chat -f - -n 3 --json", 0, "\"finish_reason\": \"length\"");
}

/* The second prompt holds the first answer: the conversation by hand gives the same second answer. */
Test(chat, lines) {
  char first[4096], second[4096], command[8192];
  cr_assert_eq(
      shell("printf 'What is free?\\n\\nAnd then?\\n' | $MKVM run -m $DEMO --chat -n 12 --stop '\n' 2>/dev/null"), 0,
      "%s", test_output);
  cr_assert_eq(sscanf(test_output, " %4095[^\n] %4095[^\n]", first, second), 2, "%s", test_output);
  snprintf(command, sizeof command,
           "$MKVM run -m $DEMO -n 12 --stop '\n' 2>/dev/null -p 'Question: What is free?\nAnswer: %s\n\nQuestion: And "
           "then?\nAnswer:'",
           first);
  cr_assert_eq(shell(command), 0, "%s", test_output);
  cr_assert_not_null(strstr(test_output, second), "`%s` instead of `%s`", test_output, second);
}

/* What generation_config.json says counts where --n-predict does not. */
Test(chat, length_of_answers) {
#define OF_THREE                                                                                      \
  "d=$(mktemp -d); ln -s $DEMO/* $d; rm $d/generation_config.json; echo '{\"max_new_tokens\": 3}' > " \
  "$d/generation_config.json; $MKVM run -m $d --chat -p x --json --ignore-eos %s 2>&1; c=$?; rm -r $d; exit $c"
  static const char *const given[] = {"", "-n 5"};
  for (size_t i = 0; i < 2; i++) {
    char command[512];
    snprintf(command, sizeof command, OF_THREE, given[i]);
    cr_assert_eq(shell(command), 0, "%s", test_output);
    const char *at = strstr(test_output, "\"tokens\": ["), *end = at == NULL ? NULL : strchr(at, ']');
    cr_assert_not_null(end, "%s", test_output);
    size_t count = 1;
    for (; at < end; at++) {
      count += *at == ',';
    }
    cr_expect_eq(count, i == 0 ? 3 : 5, "%s", test_output);
  }
}

Test(chat, context_is_full) {
  expect("printf 'one\\ntwo\\n' | $MKVM run -m $DEMO --chat -c 16 --ignore-eos 2>&1", 2,
         "the context of 16 tokens is full");
  cr_assert_not_null(strstr(test_output, "begin a new one or raise --ctx-size"), "%s", test_output);
}

/* Reads the terminal until `text` has come after what was waited for before. */
static void wait_for(int terminal, size_t *seen, const char *text) {
  struct pollfd event = {.fd = terminal, .events = POLLIN};
  const char *hit;
  while ((hit = strstr(test_output + *seen, text)) == NULL) {
    size_t length = strlen(test_output);
    cr_assert_eq(poll(&event, 1, PATIENCE_MS), 1, "`%s` has not come: %s", text, test_output);
    ssize_t got = read(terminal, test_output + length, sizeof test_output - 1 - length);
    cr_assert_gt(got, 0, "`%s` has not come: %s", text, test_output);
    test_output[length + (size_t)got] = 0;
  }
  *seen = (size_t)(hit - test_output) + strlen(text);
}

static void type(int terminal, const char *keys) {
  cr_assert_eq(write(terminal, keys, strlen(keys)), (ssize_t)strlen(keys));
}

/* The line editor shows its prompt a moment before it takes the terminal over. What is typed in that moment is shown
 * twice, by the terminal and by the editor, and a Ctrl-D is lost. */
static void wait_for_editor(int terminal) {
  struct termios settings;
  for (int tries = 0;; tries++) {
    cr_assert_eq(tcgetattr(terminal, &settings), 0, "tcgetattr: %s", strerror(errno));
    if ((settings.c_lflag & ICANON) == 0) {
      return;
    }
    cr_assert_lt(tries, PATIENCE_MS, "the editor does not begin: %s", test_output);
    poll(NULL, 0, 1);
  }
}

/* A conversation on a terminal; the caller types. */
static pid_t start(int *terminal, size_t *seen) {
  struct winsize size = {.ws_row = 24, .ws_col = 80};
  pid_t child = forkpty(terminal, NULL, NULL, &size);
  if (child == 0) {
    setenv("TERM", "dumb", 1);
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    execl(MK_COMMAND, "mkvm", "run", "-m", DEMO, "--chat", "--ignore-eos", (char *)NULL);
    _exit(127);
  }
  if (child < 0 && (errno == ENOENT || errno == ENODEV)) {
    cr_skip_test("there are no pseudo-terminals here (/dev/pts is not mounted)");
  }
  cr_assert_gt(child, 0, "forkpty: %s", strerror(errno));
  *seen = 0;
  memset(test_output, 0, sizeof test_output);
  wait_for(*terminal, seen, "> ");
  wait_for_editor(*terminal);
  return child;
}

/* Presses the key, and waits for the end. */
static void finish(pid_t child, int terminal, const char *key) {
  struct pollfd event = {.fd = terminal, .events = POLLIN};
  char rest[4096];
  ssize_t got = 1;
  int status;
  wait_for_editor(terminal);
  type(terminal, key);
  while (got > 0) {
    cr_assert_eq(poll(&event, 1, PATIENCE_MS), 1, "it does not end: %s", test_output);
    got = read(terminal, rest, sizeof rest);
  }
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d: %s", status, test_output);
  close(terminal);
}

Test(chat, interrupted_answer) {
  int terminal;
  size_t seen;
  pid_t child = start(&terminal, &seen);
  type(terminal, "What is free software?\n");
  wait_for(terminal, &seen, "free software?");
  wait_for(terminal, &seen, "\n");
  wait_for(terminal, &seen, " "); /* the answer is under way: without an end of text it goes on for seconds */
  type(terminal, "\x03");
  wait_for(terminal, &seen, "^C");
  wait_for(terminal, &seen, "> ");
  finish(child, terminal, "\x04");
}

Test(chat, interrupted_twice) {
  int terminal;
  size_t seen;
  pid_t child = start(&terminal, &seen);
  cr_assert_not_null(strstr(test_output, "precision: weights bf16, KV cache bf16"), "%s", test_output);
  type(terminal, "unfinished\x03");
  wait_for(terminal, &seen, "Ctrl-C again");
  wait_for(terminal, &seen, "> ");
  finish(child, terminal, "\x03");
}
