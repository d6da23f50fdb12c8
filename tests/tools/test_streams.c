/* Standard input and output as a shell may give them: a full disk, a reader who has gone, closed descriptors, endless
 * and odd files as prompts. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/process.h"
#include "tests/support/shell.h"

static void expect(const char *command, int code, const char *text) {
  test_shell_expect(MK_COMMAND, command, code, text);
}

static void make(void) { test_shell_enter(MK_COMMAND); }

TestSuite(streams, .init = make, .fini = test_shell_leave, .timeout = MK_HANG_SECONDS);

static const char *const commands[] = {"run",    "bench", "trace", "compile", "verify",
                                       "disasm", "asm",   "isa",   "info",    "synth"};

/* The same for every command, `mkvm run` included: its text did not go out, so it has failed. */
Test(streams, help_that_cannot_be_written_is_an_error) {
  static const char *const forms[] = {"$MKVM %s --help", "$MKVM %s -h", "$MKVM %s --usage", "$MKVM help %s"};
  static const char *const others[] = {"$MKVM --help", "$MKVM help", "$MKVM --version"};
  char form[64], command[128];
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
      snprintf(form, sizeof form, forms[f], commands[i]);
      expect(form, 0, "sage: mkvm");
      snprintf(command, sizeof command, "%s 2>&1 >/dev/full", form);
      expect(command, 1, "standard output cannot be written");
      snprintf(command, sizeof command, "%s 2>&1 >&-", form);
      expect(command, 1, "standard output cannot be written");
    }
  }
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    snprintf(command, sizeof command, "%s 2>&1 >/dev/full", others[i]);
    expect(command, 1, "mkvm: standard output cannot be written");
  }
}

Test(streams, output_that_cannot_be_written_is_an_error) {
  static const char *const lines[] = {"run -m m -p x -n 3",
                                      "run -m m -p x -n 3 --json",
                                      "run -m m -p x -p y -n 3",
                                      "run -m m -p x -n 3 --compare",
                                      "run --program p.mkp -n 2",
                                      "bench --like tiny -p 0 -n 2 -r 1 --device cpu",
                                      "bench --mla 64 --device cpu",
                                      "trace t.mktrace",
                                      "trace t.mktrace --json",
                                      "trace t.mktrace --critical-path",
                                      "trace --diff t.mktrace t.mktrace",
                                      "compile -m m -o q.mkp",
                                      "verify p.mkp",
                                      "verify p.mkp --explain 3",
                                      "disasm p.mkp",
                                      "asm p.mks -o q.mkp",
                                      "isa",
                                      "info",
                                      "info -m m",
                                      "synth --like tiny --config-only -o new"};
  char command[160];
  for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
    snprintf(command, sizeof command, "$MKVM %s 2>&1 >/dev/full", lines[i]);
    expect(command, 1, "cannot be written: No space left on device");
  }
}

/* `mkvm disasm FILE | head`: as any program, killed by SIGPIPE without a word, and without a file that it had begun. */
Test(streams, a_reader_who_has_gone) {
  static const char *const lines[][12] = {{"disasm", "p.mkp"},
                                          {"isa"},
                                          {"info", "-m", "m"},
                                          {"trace", "t.mktrace", "--json"},
                                          {"bench", "--like", "tiny", "-p", "0", "-n", "2", "--device", "cpu"},
                                          {"synth", "--like", "tiny", "--config-only", "-o", "new"},
                                          {"verify", "p.mkp"},
                                          {"run", "-m", "m", "-p", "x", "-n", "3", "--logits", "l.npy"},
                                          {"run", "--help"},
                                          {"--help"}};
  signal(SIGPIPE, SIG_DFL); /* whatever started the tests */
  for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
    int in = open("/dev/null", O_RDONLY), err = test_scratch_file(), ends[2];
    size_t length;
    cr_assert_eq(pipe(ends), 0);
    close(ends[0]);
    cr_assert_eq(test_finish(test_start(MK_COMMAND, lines[i], in, ends[1], err)), 1000 + SIGPIPE, "%s", lines[i][0]);
    char *text = test_slurp(err, &length);
    cr_assert_null(strstr(text, "mkvm"), "%s: %s", lines[i][0], text);
    free(text);
    close(in);
    close(ends[1]);
    close(err);
  }
  expect("ls", 0, "p.mkp");
  cr_assert_null(strstr(test_output, "l.npy"), "%s", test_output);
}

/* A file that is opened must not get the number, and then the text, of a standard descriptor that is closed. */
Test(streams, closed_output_does_not_end_in_a_file) {
  expect("$MKVM run -m m -p x -n 3 --logits l.npy 2>&1 >&-; c=$?; ls; exit $c", 1, "standard output cannot be written");
  cr_assert_null(strstr(test_output, "l.npy"), "%s", test_output);
  expect(
      "$MKVM run -m m -p x -n 3 --logits a.npy >&2 2>/dev/null && $MKVM run -m m -p x -n 3 --logits b.npy "
      ">/dev/null 2>&- && cmp a.npy b.npy && echo same",
      0, "same");
  expect("$MKVM compile -m m -o c.mkp 2>&1 >&-; c=$?; cmp c.mkp p.mkp && echo same; exit $c", 1, "same");
  expect("$MKVM run -m m -f - -n 2 2>&1 <&-", 1, "standard input: cannot be read");
}

/* Under a limit on memory, which stands far above what they take. */
#ifdef __SANITIZE_ADDRESS__
#define LIMITED ""
#else
#define LIMITED "ulimit -v 2000000; "
#endif
Test(streams, prompt_without_an_end) {
  expect(LIMITED "$MKVM run -m m -f /dev/zero 2>&1", 2, "/dev/zero: holds more than 16777216 bytes");
  expect(LIMITED "$MKVM run -m m -f /dev/urandom 2>&1", 2, "/dev/urandom: holds more than 16777216 bytes");
  expect(LIMITED "$MKVM run -m m -f - 2>&1 </dev/zero", 2, "standard input: holds more than 16777216 bytes");
  expect(LIMITED "$MKVM run -m $DEMO --chat 2>&1 </dev/zero", 2, "standard input: a line has more than 16777216 bytes");
  expect("$MKVM run --help", 0, "at most 16 MiB");
}

Test(streams, longest_prompt_is_told_from_one_that_is_longer) {
  expect("head -c 16777216 /dev/zero | $MKVM run -m m -f - 2>&1", 2, "the prompt has 16777217 tokens");
  expect("head -c 16777217 /dev/zero | $MKVM run -m m -f - 2>&1", 2, "holds more than 16777216 bytes");
}

Test(streams, prompts_of_odd_kinds) {
  expect(": >empty; $MKVM run -m m -f empty -n 2 --json", 0, "\"prompt_tokens\": [510]");
  expect("$MKVM run -m m -f . 2>&1", 1, ".: cannot be read: Is a directory");
  expect("$MKVM run -m m -f none 2>&1", 1, "none: cannot be opened");
  expect("mkfifo f; printf abc >f & $MKVM run -m m -f f -n 2 --json", 0, "[510, 97, 98, 99]");
}

Test(streams, program_text_that_is_too_long) {
  expect("truncate -s 1073741825 long; " LIMITED "$MKVM asm long -o x.mkp 2>&1", 3,
         "long: has 1073741825 bytes; a program in text form has at most 1073741824");
  expect("$MKVM asm /dev/zero -o x.mkp 2>&1", 3, "/dev/zero: is not a regular file");
}

/* A file as long as its header says, but with far more bytes than its content takes. */
Test(streams, trace_that_is_too_long) {
  expect(
      "cp t.mktrace l.mktrace; truncate -s 1T l.mktrace && "
      "printf '\\000\\000\\000\\000\\000\\001\\000\\000' | dd of=l.mktrace bs=1 seek=16 conv=notrunc "
      "2>/dev/null; " LIMITED "$MKVM trace l.mktrace 2>&1",
      3, "it never takes 1099511627776 bytes of file");
}
