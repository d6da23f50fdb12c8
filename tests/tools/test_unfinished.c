/* Nothing of an unfinished file is left, whatever command wrote it and whatever ended it: a signal, a limit on
 * the size of files, a disk that is full. */
#define _GNU_SOURCE /* nftw */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/process.h"
#include "tests/support/shell.h"

static size_t entries;

static void expect(const char *command, int code, const char *text) {
  test_shell_expect(MK_COMMAND, command, code, text);
}

static void make(void) {
  test_shell_enter(MK_COMMAND);
  expect("mkdir new", 0, "");
}

TestSuite(unfinished, .init = make, .fini = test_shell_leave, .timeout = MK_HANG_SECONDS);

static int note_entry(const char *path, const struct stat *info, int kind, struct FTW *place) {
  (void)info;
  (void)kind;
  entries += place->level > 0;
  if (place->level > 0) {
    size_t used = strlen(test_output);
    snprintf(test_output + used, sizeof test_output - used, "%s\n", path);
  }
  return 0;
}

/* Everything below new/, and its names in test_output; from the start when something goes meanwhile. */
static size_t left_over(void) {
  do {
    entries = 0;
    test_output[0] = 0;
  } while (nftw("new", note_entry, 8, FTW_PHYS) != 0);
  return entries;
}

/* What writes, to which file. All of it goes to new/. */
static const char *const writers[] = {"synth --like tiny -o new/m",
                                      "quantize -m m -o new/q --to fp8",
                                      "quantize -m m -o new/q --to int4",
                                      "compile -m m -o new/a.mkp",
                                      "asm p.mks -o new/a.mkp",
                                      "trace t.mktrace -o new/a.html",
                                      "trace t.mktrace -o new/a.pftrace",
                                      "trace t.mktrace -o new/a.svg",
                                      "run -m m -p x -n 9 --trace new/a.mktrace",
                                      "bench --like tiny -p 0 -n 4 -r 1 --device cpu --trace new/a.mktrace",
                                      "run -m m -p x -n 9 --logits new/a.npy"};
enum { WRITERS = sizeof writers / sizeof writers[0] };

/* A file-size limit is an error with a line, not a death by SIGXFSZ. 1 is 512 or 1024 bytes, by the shell. */
Test(unfinished, file_size_limit) {
  char command[192];
  for (size_t i = 0; i < WRITERS; i++) {
    snprintf(command, sizeof command, "(ulimit -f 1; exec $MKVM %s 2>&1 >/dev/null) | tail -n 1", writers[i]);
    expect(command, 0, "cannot be written: File too large; free some space or choose another place\n");
    cr_assert_eq(left_over(), 0, "%s: %s", writers[i], test_output);
    snprintf(command, sizeof command, "ulimit -f 1; $MKVM %s >/dev/null 2>&1", writers[i]);
    expect(command, 1, "");
  }
}

/* The copy that --cache keeps is not what was asked for: the answer comes all the same. */
Test(unfinished, file_size_limit_of_the_cache) {
  expect("ulimit -f 1; $MKVM run -m m -p x -n 2 --cache new/c 2>&1 >/dev/null", 0, "cannot be written: File too large");
  cr_assert_eq(left_over(), 0, "%s", test_output);
}

/* Where the test may mount a small file system; file_size_limit does the same everywhere. */
Test(unfinished, full_disk) {
  char command[192];
  if (mount("none", "new", "tmpfs", 0, "size=4k") != 0) {
    cr_skip_test("a tmpfs cannot be mounted here: %s", strerror(errno));
  }
  for (size_t i = 0; i < WRITERS; i++) {
    snprintf(command, sizeof command, "$MKVM %s 2>&1 >/dev/null", writers[i]);
    cr_expect_eq(test_shell(MK_COMMAND, command), 1, "%s", command);
    cr_expect_not_null(strstr(test_output, "No space left on device; free some space"), "%s: %s", command, test_output);
    cr_expect_eq(left_over(), 0, "%s: %s", writers[i], test_output);
  }
  cr_assert_eq(umount("new"), 0);
}

Test(unfinished, device_as_output) {
  char command[192];
  static const char *const lines[] = {"compile -m m -o /dev/full", "asm p.mks -o /dev/full",
                                      "run -m m -p x -n 3 --trace /dev/full", "run -m m -p x -n 3 --logits /dev/full"};
  for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
    snprintf(command, sizeof command, "$MKVM %s 2>&1 >/dev/null", lines[i]);
    expect(command, 1, "/dev/full: is not a regular file; name another file to write");
  }
  expect("$MKVM synth --like tiny -o /dev/full 2>&1", 1, "/dev/full");
}

/* Starts the command and sends the signal as soon as something of it is there. Whether it came first or the command's
 * end did: what is left is nothing, or all of it. Returns test_finish's code. */
static int signal_when_it_writes(const char *const *arguments, int signal_number, char **errors) {
  int in = open("/dev/null", O_RDONLY), out = open("/dev/null", O_WRONLY), err = test_scratch_file();
  siginfo_t ended = {0};
  size_t length;
  pid_t child = test_start(MK_COMMAND, arguments, in, out, err);
  while (left_over() == 0 && ended.si_pid == 0) {
    cr_assert_eq(waitid(P_PID, (id_t)child, &ended, WEXITED | WNOHANG | WNOWAIT), 0);
  }
  kill(child, signal_number);
  int code = test_finish(child);
  *errors = test_slurp(err, &length);
  close(in);
  close(out);
  close(err);
  return code;
}

/* One that writes for as long as it is let, or one that is over soon. */
static const struct {
  const char *const arguments[16];
  bool long_enough; /* the signal always comes first */
} signalled[] = {
    {{"synth", "--like", "llama-3.2-1b", "-o", "new/m"}, true},
    {{"run", "-m", "m", "-p", "x", "-n", "2000", "--ignore-eos", "--logits", "new/a.npy"}, true},
    {{"run", "-m", "m", "-p", "x", "-n", "2", "--cache", "new/c"}, false},
    {{"compile", "-m", "m", "-o", "new/a.mkp"}, false},
    {{"asm", "p.mks", "-o", "new/a.mkp"}, false},
    {{"trace", "t.mktrace", "-o", "new/a.html"}, false},
    {{"run", "-m", "m", "-p", "x", "-n", "2", "--trace", "new/a.mktrace"}, false},
};

static void signal_all(int signal_number, const char *name) {
  char line[96], *errors;
  snprintf(line, sizeof line, ": ended by %s; nothing unfinished remains\n", name);
  for (size_t i = 0; i < sizeof signalled / sizeof signalled[0]; i++) {
    const char *what = signalled[i].arguments[0];
    int code = signal_when_it_writes(signalled[i].arguments, signal_number, &errors);
    bool ended = code == 1000 + signal_number;
    size_t left = left_over();
    bool whole = left != 0 && strstr(test_output, ".tmp") == NULL && strstr(test_output, ".part") == NULL;
    cr_expect(ended || (code == 0 && !signalled[i].long_enough), "%s: exit code %d: %s", what, code, errors);
    cr_expect(!ended || strstr(errors, line) != NULL, "%s: %s", what, errors);
    cr_expect(left == 0 || (whole && !signalled[i].long_enough), "%s: exit code %d leaves %s", what, code, test_output);
    free(errors);
    expect("rm -rf new; mkdir new", 0, "");
  }
}

Test(unfinished, SIGTERM_leaves_nothing) { signal_all(SIGTERM, "SIGTERM"); }

Test(unfinished, SIGHUP_leaves_nothing) { signal_all(SIGHUP, "SIGHUP"); }

/* A run that is interrupted ends with what is there (tests/tools/test_interrupt.c); of synth there is nothing to end
 * with. */
Test(unfinished, SIGINT_of_synth_leaves_nothing) {
  char *errors;
  cr_assert_eq(signal_when_it_writes(signalled[0].arguments, SIGINT, &errors), 1000 + SIGINT, "%s", errors);
  cr_assert_str_eq(errors, "mkvm synth: ended by SIGINT; nothing unfinished remains\n");
  cr_assert_eq(left_over(), 0, "%s", test_output);
  free(errors);
}

/* nohup: what was to be ignored is. */
Test(unfinished, ignored_signals_stay_ignored) {
  char *errors;
  signal(SIGHUP, SIG_IGN);
  const char *const arguments[] = {"run", "-m",           "m",        "-p",        "x", "-n",
                                   "300", "--ignore-eos", "--logits", "new/a.npy", NULL};
  cr_assert_eq(signal_when_it_writes(arguments, SIGHUP, &errors), 0, "%s", errors);
  cr_assert_eq(left_over(), 1, "%s", test_output);
  cr_assert_not_null(strstr(test_output, "new/a.npy\n"), "%s", test_output);
  free(errors);
}
