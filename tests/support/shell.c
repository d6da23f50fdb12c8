/* See shell.h. */
#include "tests/support/shell.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

char test_output[1 << 18];
static char folder[] = "/tmp/mk-shell-XXXXXX";

int test_shell(const char *mkvm, const char *command) {
  setenv("MKVM", mkvm, 1);
  setenv("DEMO", MK_SOURCE_DIR "/models/demo", 1);
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  FILE *pipe = popen(command, "r");
  cr_assert_not_null(pipe);
  size_t length = fread(test_output, 1, sizeof test_output - 1, pipe);
  test_output[length] = 0;
  int status = pclose(pipe);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

void test_shell_expect(const char *mkvm, const char *command, int code, const char *text) {
  int have = test_shell(mkvm, command);
  cr_assert_eq(have, code, "%s: exit code %d, not %d\n%s", command, have, code, test_output);
  cr_assert_not_null(strstr(test_output, text), "%s: `%s` is not in\n%s", command, text, test_output);
}

void test_shell_enter(const char *mkvm) {
  cr_assert_not_null(mkdtemp(folder));
  cr_assert_eq(chdir(folder), 0);
  test_shell_expect(
      mkvm,
      "$MKVM synth --like tiny -o m --seed 3 && $MKVM compile -m m -o p.mkp && $MKVM disasm p.mkp >p.mks && "
      "$MKVM run -m m -p x -n 3 --trace t.mktrace >/dev/null 2>&1",
      0, "");
}

void test_shell_leave(void) {
  cr_expect_eq(chdir("/"), 0);
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  cr_expect_eq(system(command), 0);
}
