/* mkvm serve as a process: addresses, keys and signals, as a user meets them. */
#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/http.h"
#include "tests/support/process.h"
#include "tests/support/shell.h"

static void enter(void) { test_shell_enter(MK_COMMAND); }

TestSuite(serve_command, .init = enter, .fini = test_shell_leave, .timeout = MK_HANG_SECONDS);

static void expect(const char *command, int code, const char *text) {
  test_shell_expect(MK_COMMAND, command, code, text);
}

Test(serve_command, what_cannot_be) {
  expect("$MKVM serve --help", 0, "--api-key-file");
  expect("$MKVM serve 2>&1", 2, "--model DIR is missing");
  expect("$MKVM serve -m m --host 0.0.0.0 2>&1", 2, "--no-auth");
  expect("$MKVM serve -m m --host :: 2>&1", 2, "--no-auth");
  expect("$MKVM serve -m m --host '[::]' 2>&1", 2, "--host :: can be reached");
  expect("$MKVM serve -m m --host 1.2.3.4 2>&1", 2, "--no-auth");
  expect("$MKVM serve -m m --port 65536 2>&1", 2, "--port");
  expect("$MKVM serve -m m --api-key '' 2>&1", 2, "empty");
  expect("$MKVM serve -m m --api-key 'a b' 2>&1", 2, "white space");
  expect("$MKVM serve -m m --api-key-file none 2>&1", 2, "none: cannot be opened: No such file or directory; give");
  expect(": >empty; $MKVM serve -m m --api-key-file empty 2>&1", 2, "no key");
  expect("$MKVM serve -m m --shutdown-timeout -1 2>&1", 2, "--shutdown-timeout");
  expect("$MKVM serve -m m --log-prompts --no-log 2>&1", 2, "--no-log");
  expect("$MKVM serve -m m more 2>&1", 2, "one argument too many");
}

Test(serve_command, a_model_that_cannot_be_opened) {
  test_shell(MK_COMMAND, "$MKVM run -m none -p a >run.txt 2>&1; echo $? >code.txt");
  expect("$MKVM serve -m none --device cpu --port 0 2>&1; test $? = $(cat code.txt) && echo 'the same code'", 0,
         "the same code");
  cr_expect_not_null(strstr(test_output, "none"), "%s", test_output);
}

/* ---- One that runs ---- */

typedef struct served {
  pid_t child;
  uint16_t port;
} served;

static char *read_file(const char *path) {
  FILE *file = fopen(path, "r");
  char *text = calloc(1, 1 << 16);
  cr_assert_not_null(file);
  cr_assert_lt(fread(text, 1, (1 << 16) - 1, file), (1 << 16) - 1);
  fclose(file);
  return text;
}

static void until_text(const char *path, const char *words) {
  for (unsigned i = 0;; i++) {
    char *text = read_file(path);
    const bool there = strstr(text, words) != NULL;
    cr_assert(there || i < 4000, "no '%s' in: %s", words, text);
    free(text);
    if (there) {
      return;
    }
    (void)poll(NULL, 0, 5);
  }
}

/* Starts a server on any free port, and waits until it is ready; `more`: arguments up to NULL. */
static served begin(const char *const *more) {
  const char *arguments[24] = {"serve", "-m", "m", "--device", "cpu", "--port", "0"};
  size_t count = 7;
  served s = {0};
  FILE *out = fopen("out.txt", "w+"), *err = fopen("err.txt", "w+"), *in = fopen("/dev/null", "r");
  cr_assert(out != NULL && err != NULL && in != NULL);
  for (; *more != NULL; more++) {
    arguments[count++] = *more;
  }
  arguments[count] = NULL;
  s.child = test_start(MK_COMMAND, arguments, fileno(in), fileno(out), fileno(err));
  fclose(in);
  fclose(out);
  fclose(err);
  until_text("err.txt", "ready: ");
  char *text = read_file("out.txt");
  const char *colon = strrchr(text, ':');
  cr_assert(strncmp(text, "listening on http://", 20) == 0 && colon != NULL, "%s", text);
  s.port = (uint16_t)strtoul(colon + 1, NULL, 10);
  free(text);
  return s;
}

static char *ask(const served *s, const char *request) {
  int fd = mk_test_dial(s->port);
  cr_assert(mk_test_say(fd, request));
  char *answer = mk_test_hear(fd, NULL);
  close(fd);
  return answer;
}

static void expect_status(const served *s, const char *path, const char *headers, const char *status) {
  char request[512];
  snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\n%s\r\n", path, headers);
  char *answer = ask(s, request);
  cr_expect_not_null(strstr(answer, status), "%s: %s", path, answer);
  free(answer);
}

static void expect_end(const served *s, int number, int code) {
  cr_assert_eq(kill(s->child, number), 0);
  int ended = test_finish(s->child);
  char *text = read_file("err.txt");
  cr_expect_eq(ended, code, "%d: %s", ended, text);
  free(text);
}

Test(serve_command, from_start_to_end) {
  const served s = begin((const char *const[]){"--served-model-name", "one", "--served-model-name", "two", NULL});
  expect_status(&s, "/ready", "", " 200 ");
  expect_status(&s, "/v1/models/two", "", " 200 ");
  expect_status(&s, "/v1/models/m", "", " 404 ");
  expect_end(&s, SIGTERM, 0);
  until_text("err.txt", "\"path\":\"/v1/models/two\",\"status\":200");
}

Test(serve_command, ctrl_c) {
  const served s = begin((const char *const[]){"--no-page", NULL});
  expect_status(&s, "/", "", " 404 ");
  expect_end(&s, SIGINT, 0);
}

/* Keys of a file; others that can read it are a warning. */
Test(serve_command, keys) {
  FILE *file = fopen("keys", "w");
  cr_assert(file != NULL && fputs("first\n\n  second \n", file) >= 0);
  fclose(file);
  cr_assert_eq(chmod("keys", 0644), 0);
  const served s = begin((const char *const[]){"--host", "127.0.0.1", "--api-key-file", "keys", NULL});
  until_text("err.txt", "others can read keys");
  expect_status(&s, "/v1/models", "", " 401 ");
  expect_status(&s, "/v1/models", "Authorization: Bearer second\r\n", " 200 ");
  expect_status(&s, "/v1/models", "Authorization: Bearer secon\r\n", " 401 ");
  expect_end(&s, SIGTERM, 0);
  char *text = read_file("err.txt");
  cr_expect(strstr(text, "first") == NULL && strstr(text, "second") == NULL, "a key is in the log: %s", text);
  free(text);
}

static int begin_stream(const served *s) {
  static const char body[] =
      "{\"prompt\":\"a\",\"max_tokens\":900,\"temperature\":0,\"ignore_eos\":true,\"stream\":true}";
  char request[512];
  int fd = mk_test_dial(s->port);
  snprintf(request, sizeof request,
           "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
           strlen(body), body);
  cr_assert(mk_test_say(fd, request));
  free(mk_test_hear(fd, "data: {"));
  return fd;
}

/* What runs comes to its end first; or is cut off by the second signal. */
Test(serve_command, drains) {
  const served s = begin((const char *const[]){"--ctx-size", "1000", NULL});
  int fd = begin_stream(&s);
  cr_assert_eq(kill(s.child, SIGTERM), 0);
  char *rest = mk_test_hear(fd, NULL);
  cr_expect_not_null(strstr(rest, "data: [DONE]"), "%s", rest);
  free(rest);
  close(fd);
  cr_expect_eq(test_finish(s.child), 0);
}

Test(serve_command, is_cut_off_by_the_second_signal) {
  const served s = begin((const char *const[]){"--shutdown-timeout", "1000", NULL});
  int fds[16];
  for (size_t i = 0; i < 16; i++) {
    fds[i] = begin_stream(&s);
  }
  cr_assert_eq(kill(s.child, SIGTERM), 0);
  until_text("err.txt", "draining");
  expect_end(&s, SIGTERM, 0);
  for (size_t i = 0; i < 16; i++) {
    close(fds[i]);
  }
}

Test(serve_command, a_port_that_is_taken) {
  const served s = begin((const char *const[]){NULL});
  char command[128];
  snprintf(command, sizeof command, "$MKVM serve -m m --device cpu --port %u 2>&1; test $? = 1 && echo 'code 1'",
           s.port);
  expect(command, 0, "code 1");
  cr_expect_not_null(strstr(test_output, "127.0.0.1"), "%s", test_output);
  expect_end(&s, SIGTERM, 0);
}
