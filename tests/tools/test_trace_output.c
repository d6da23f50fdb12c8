/* `mkvm trace -o NAME` as a user meets it: three kinds of files, on traces of the CPU machine, and what is refused. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_OUTPUT = 1 << 16 };

static char directory[] = "/tmp/mk-trace-XXXXXX";

static void make_directory(void) { cr_assert_not_null(mkdtemp(directory)); }

static void remove_directory(void) {
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", directory);
  cr_expect_eq(system(command), 0);
}

/* Runs `mkvm ARGUMENTS` in the directory; `words` stand in its output. */
static void expect(const char *arguments, int code, const char *words) {
  char command[512], *output = calloc(1, MOST_OUTPUT);
  snprintf(command, sizeof command, "cd %s && CUDA_VISIBLE_DEVICES= %s %s 2>&1", directory, MK_COMMAND, arguments);
  FILE *pipe = popen(command, "r");
  cr_assert_not_null(pipe);
  cr_assert_lt(fread(output, 1, MOST_OUTPUT, pipe), (size_t)MOST_OUTPUT);
  int status = pclose(pipe);
  cr_assert_eq(WEXITSTATUS(status), code, "mkvm %s: exit code %d\n%s", arguments, WEXITSTATUS(status), output);
  cr_expect_not_null(strstr(output, words), "mkvm %s: no \"%s\" in\n%s", arguments, words, output);
  free(output);
}

/* The file begins with that text. */
static void expect_file(const char *name, const char *start) {
  char path[128], have[64] = {0};
  snprintf(path, sizeof path, "%s/%s", directory, name);
  FILE *file = fopen(path, "rb");
  cr_assert_not_null(file, "%s was not written", name);
  cr_assert_gt(fread(have, 1, sizeof have - 1, file), 0);
  fclose(file);
  cr_expect(strncmp(have, start, strlen(start)) == 0, "%s begins with %s", name, have);
}

static void expect_no_file(const char *name) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  cr_expect_neq(access(path, F_OK), 0, "%s was written", name);
}

#define DEMO "-m " MK_SOURCE_DIR "/models/demo --device cpu --sms 4 -p Once -n 4 "

TestSuite(trace_output, .init = make_directory, .fini = remove_directory, .timeout = 120);

Test(trace_output, three_formats) {
  expect("run " DEMO "--trace a.mktrace", 0, "trace: ");
  expect("run " DEMO "--interleave 3 --trace b.mktrace", 0, "trace: ");
  for (const char *name = "ab"; *name != 0; name++) {
    char arguments[96], file[16];
    static const char *const ends[] = {"html", "pftrace", "svg"}, *const starts[] = {"<!DOCTYPE html>", "\n", "<svg "};
    for (size_t i = 0; i < 3; i++) {
      snprintf(arguments, sizeof arguments, "trace %c.mktrace -o %c.%s", *name, *name, ends[i]);
      expect(arguments, 0, "");
      snprintf(file, sizeof file, "%c.%s", *name, ends[i]);
      expect_file(file, starts[i]);
    }
  }
  expect("trace a.mktrace -o a.svg --from 10 --to 200", 0, "");
  expect("trace a.mktrace -o a.svg --step 2", 0, "");
  expect("trace a.mktrace -o a.svg --step 99", 2, "step 99 was not recorded");
  expect("trace a.mktrace -o late.svg --from 1e9 --to 2e9", 2, "nothing was recorded there");
  expect_no_file("late.svg");
}

Test(trace_output, refuses) {
  expect("run " DEMO "--trace a.mktrace", 0, "trace: ");
  for (const char *const *name = (const char *const[]){"a.png", "a", "a.HTML", "html", "a.html.", NULL}; *name != NULL;
       name++) {
    char arguments[96];
    snprintf(arguments, sizeof arguments, "trace a.mktrace -o %s", *name);
    expect(arguments, 2, ".html (a page), .pftrace (for Perfetto) or .svg (a picture)");
    expect_no_file(*name);
  }
  expect("trace a.mktrace -o a.html --json", 2, "-o goes with none of");
  expect("trace --diff a.mktrace a.mktrace -o a.html", 2, "-o goes with none of");
  expect("trace a.mktrace --step 3", 2, "need -o NAME");
  expect("trace a.mktrace -o a.html --from 1 --to 2", 2, "are of a picture");
  expect("trace a.mktrace -o a.svg --from 5 --to 2", 2, "--to is the later one");
  expect("trace a.mktrace -o a.svg --from x", 2, "is not a number of microseconds");
  expect("trace a.mktrace -o nowhere/a.html", 1, "nowhere/a.html: cannot be created");
  expect("trace nowhere.mktrace -o a.html", 3, "nowhere.mktrace: cannot be opened");
  expect_no_file("a.html");
}

/* A full disk leaves no half file, and none of those that were there is lost. */
Test(trace_output, full_disk) {
  expect("run " DEMO "--trace a.mktrace", 0, "trace: ");
  expect("trace a.mktrace -o a.html", 0, "");
  char command[512];
  snprintf(command, sizeof command,
           "cd %s && (ulimit -f 8; trap '' XFSZ; %s trace a.mktrace -o a.html) 2>&1 | grep -q 'a.html: cannot be "
           "written' && ls | wc -l | grep -qx 2",
           directory, MK_COMMAND);
  cr_expect_eq(system(command), 0, "%s", command);
  expect_file("a.html", "<!DOCTYPE html>");
}
