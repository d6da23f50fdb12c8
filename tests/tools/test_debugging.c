/* docs/DEBUGGING.md: its commands are typed one after the other, and each prints what the page says. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/page.h"
#include "tests/support/shell.h"

/* A folder with what the page's commands name: mkvm, two.mks of docs/ASSEMBLER.md, models, docs. */
static void enter(void) {
  char here[256], path[1024];
  test_shell_enter(MK_COMMAND);
  test_shell_expect(MK_COMMAND,
                    "mkdir bin && ln -s $MKVM bin/mkvm && ln -s '" MK_SOURCE_DIR "/models' '" MK_SOURCE_DIR
                    "/docs' . && cp '" MK_SOURCE_DIR "/tests/vm/data/two_sms.mks' two.mks",
                    0, "");
  cr_assert_not_null(getcwd(here, sizeof here));
  snprintf(path, sizeof path, "%s/bin:%s", here, getenv("PATH"));
  setenv("PATH", path, 1);
}
TestSuite(debugging, .init = enter, .fini = test_shell_leave, .timeout = MK_HANG_SECONDS);

static void no_piece(const char *before, const char *text, void *user) {
  (void)user;
  cr_assert_fail("after \"%s\": this is no command: %s", before, text);
}

Test(debugging, every_command_prints_what_the_page_says) {
  size_t commands = test_page_follow(MK_SOURCE_DIR "/docs/DEBUGGING.md", true, no_piece, NULL);
  cr_assert_gt(commands, 12, "only %zu commands found", commands);
}
