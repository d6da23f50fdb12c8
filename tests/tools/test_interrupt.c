/* Ctrl-C during mkvm run: it ends with what is there. */
#define _GNU_SOURCE /* F_SETPIPE_SZ */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tests/support/process.h"

static char directory[] = "/tmp/mk-interrupt-XXXXXX";

static const char *in_directory(const char *name) {
  static char paths[4][128];
  static unsigned next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", directory, name);
  return path;
}

static void make_tiny(void) {
  cr_assert_not_null(mkdtemp(directory));
  const char *const arguments[] = {"synth", "--like", "tiny", "-o", in_directory("tiny"), "--seed", "3", NULL};
  test_result r = test_process(MK_COMMAND, arguments);
  cr_assert_eq(r.code, 0, "%s", r.err);
  test_drop(&r);
}

static void remove_all(void) {
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", directory);
  cr_expect_eq(system(command), 0);
}

TestSuite(interrupt, .init = make_tiny, .fini = remove_all, .timeout = MK_HANG_SECONDS);

/* `blocked`: Ctrl-C comes while a write waits for a reader. */
static void interrupt_a_run(bool blocked) {
  const char *const arguments[] = {"run", "-m", in_directory("tiny"), "-n", "-1", "--ignore-eos", NULL};
  int in = open("/dev/null", O_RDONLY), err = test_scratch_file(), ends[2], waiting = 0, before = -1;
  char piece[4096];
  size_t length;
  cr_assert_eq(pipe(ends), 0);
  cr_assert_geq(fcntl(ends[1], F_SETPIPE_SZ, 4096), 4096);
  pid_t child = test_start(MK_COMMAND, arguments, in, ends[1], err);
  close(ends[1]);
  while (blocked && (waiting == 0 || waiting != before)) { /* until nothing more goes in */
    before = waiting;
    usleep(500000);
    cr_assert_eq(ioctl(ends[0], FIONREAD, &waiting), 0);
  }
  if (!blocked) {
    cr_assert_gt(read(ends[0], piece, sizeof piece), 0);
  }
  cr_assert_eq(kill(child, SIGINT), 0);
  usleep(blocked ? 100000 : 0);
  while (read(ends[0], piece, sizeof piece) > 0) {
  }
  int code = test_finish(child);
  char *text = test_slurp(err, &length);
  cr_assert_eq(code, 0, "exit code %d: %s", code, text);
  cr_assert_not_null(strstr(text, "generated"), "%s", text);
  free(text);
  close(in);
  close(err);
  close(ends[0]);
}

Test(interrupt, ends_with_what_is_there) { interrupt_a_run(false); }

Test(interrupt, while_nobody_reads) { interrupt_a_run(true); }

/* Ctrl-C after so long: what has come on standard output; *code: as test_finish has it. */
static char *interrupt_after(useconds_t microseconds, const char *const *arguments, int *code) {
  int in = open("/dev/null", O_RDONLY), out = test_scratch_file(), err = test_scratch_file();
  size_t length;
  pid_t child = test_start(MK_COMMAND, arguments, in, out, err);
  usleep(microseconds);
  cr_assert_eq(kill(child, SIGINT), 0);
  *code = test_finish(child);
  char *text = test_slurp(out, &length);
  close(in);
  close(out);
  close(err);
  return text;
}

/* A prompt that takes far longer than the wait: the step at hand is the last, and nothing has been generated. Where the
 * command has not come to the prompt yet, it ends with another code, and the wait was too short. */
Test(interrupt, inside_the_prompt) {
  const char *path = in_directory("long");
  FILE *file = fopen(path, "w");
  for (int i = 0; i < 1900; i++) {
    fputc('a' + i % 26, file);
  }
  fclose(file);
  const char *const arguments[] = {"run", "-m",     in_directory("tiny"), "-f", path, "-n",
                                   "9",   "--json", "--interleave",       "7",  NULL};
  int code = -1;
  char *text = NULL;
  for (useconds_t wait = 200000; code != 0; wait *= 2) {
    free(text);
    text = interrupt_after(wait, arguments, &code);
    cr_assert(code == 0 || code == 1 || code == 1000 + SIGINT, "exit code %d", code);
  }
  cr_assert_not_null(strstr(text, "\"tokens\": []"), "%s", text);
  cr_assert_not_null(strstr(text, "\"finish_reason\": \"interrupted\""), "%s", text);
  free(text);
}
