/* docs/ASSEMBLER.md: its program is built from the pieces on the page, its commands are typed one after the other, and
 * each prints what the page says, but for line breaks and seconds. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/page.h"
#include "tests/support/text.h"

static void enter_directory(void) {
  static char directory[] = "/tmp/mk-tutorial-XXXXXX";
  char path[512], command[1024];
  cr_assert_not_null(mkdtemp(directory));
  snprintf(command, sizeof command, "ln -s '%s' %s/mkvm", MK_COMMAND, directory);
  cr_assert_eq(system(command), 0);
  cr_assert_eq(chdir(directory), 0);
  snprintf(path, sizeof path, "%s:%s", directory, getenv("PATH"));
  setenv("PATH", path, 1);
}

static void leave_directory(void) {
  char here[256], command[300];
  cr_assert_not_null(getcwd(here, sizeof here));
  snprintf(command, sizeof command, "rm -rf '%s'", here);
  cr_assert_eq(chdir("/"), 0);
  cr_assert_eq(system(command), 0);
}
TestSuite(tutorial, .init = enter_directory, .fini = leave_directory, .timeout = MK_HANG_SECONDS);

/* Pieces of the program, one after the other, without the empty lines in them. */
static void append_piece(const char *before, const char *text, void *user) {
  (void)before;
  (void)user;
  FILE *file = fopen("two.mks", "a");
  cr_assert_not_null(file);
  for (const char *at = text; *at != 0; at++) {
    if (*at != '\n' || at == text || at[-1] != '\n') {
      fputc(*at, file);
    }
  }
  fclose(file);
}

/* Without comments, and with single spaces. */
static void strip(char *text) {
  char *to = text;
  for (const char *from = text; *from != 0; from++) {
    if (*from == ';') {
      from += strcspn(from, "\n");
    }
    *to++ = *from;
  }
  *to = 0;
  test_page_normalize(text);
}

Test(tutorial, every_command_prints_what_the_page_says) {
  size_t commands = test_page_follow(MK_SOURCE_DIR "/docs/ASSEMBLER.md", true, append_piece, NULL);
  cr_assert_gt(commands, 15, "only %zu commands found", commands);
  char *ours = test_read_file("two.mks"), *theirs = test_read_file(MK_SOURCE_DIR "/tests/vm/data/two_sms.mks");
  strip(ours);
  strip(theirs);
  cr_assert_str_eq(ours, theirs);
  free(ours);
  free(theirs);
}
