/* Pages with terminal sessions: every command is typed, one after the other, and prints what the page says. The program
 * of docs/ASSEMBLER.md is built from the pieces on the page. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/session.h"
#include "tests/support/text.h"

static void enter(void) { test_session_enter(MK_COMMAND); }
TestSuite(tutorial, .init = enter, .fini = test_session_leave, .timeout = MK_HANG_SECONDS);

static void write_program(const char *text) {
  FILE *file = fopen("two.mks", "w");
  cr_assert_not_null(file);
  fputs(text, file);
  fclose(file);
}

/* Without comments, and with single spaces. */
static char *stripped(char *text) {
  char *to = text;
  for (const char *from = text; *from != 0; from++) {
    if (*from == ';') {
      from += strcspn(from, "\n");
    }
    *to++ = *from;
  }
  *to = 0;
  test_session_normalize(text);
  return text;
}

static char *kept_program(void) { return test_read_file(MK_SOURCE_DIR "/tests/vm/data/two_sms.mks"); }

static void begin_assembler(const char *program) {
  char *ours = strdup(program), *theirs = kept_program();
  write_program(program);
  cr_assert_str_eq(stripped(ours), stripped(theirs));
  free(ours);
  free(theirs);
}

Test(tutorial, every_command_prints_what_the_page_says) {
  size_t commands = test_session_run("docs/ASSEMBLER.md", begin_assembler);
  cr_assert_gt(commands, 15, "only %zu commands found", commands);
}

Test(tutorial, every_command_of_debugging_prints_what_the_page_says) {
  char *program = kept_program();
  write_program(program);
  free(program);
  size_t commands = test_session_run("docs/DEBUGGING.md", NULL);
  cr_assert_gt(commands, 12, "only %zu commands found", commands);
}
