/* docs/ASSEMBLER.md: its program is built from the pieces on the page, its commands are typed one after the other, and
 * each prints what the page says, but for line breaks and seconds. */
#include <criterion/criterion.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/text.h"

enum { MAX_TEXT = 16384 };

/* One space for all white space, and S for every number before " s". */
static void normalize(char *text) {
  char *to = text;
  for (const char *from = text; *from != 0;) {
    size_t digits = strspn(from, "0123456789.");
    if (digits != 0 && strncmp(from + digits, " s", 2) == 0 && !isalpha((unsigned char)from[digits + 2])) {
      *to++ = 'S';
      from += digits;
    } else if (isspace((unsigned char)*from)) {
      from += strspn(from, " \n\t");
      *to++ = ' ';
    } else {
      *to++ = *from++;
    }
  }
  while (to > text && to[-1] == ' ') {
    to--;
  }
  *to = 0;
}

static void run(const char *command, char *printed) {
  char line[1024];
  snprintf(line, sizeof line, "{ %s\n} 2>&1", command);
  FILE *pipe = popen(line, "r");
  cr_assert_not_null(pipe);
  printed[fread(printed, 1, MAX_TEXT - 1, pipe)] = 0;
  int status = pclose(pipe);
  cr_assert(WIFEXITED(status) && WEXITSTATUS(status) != 127, "%s: status %d", command, status);
}

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

typedef struct page {
  char program[MAX_TEXT]; /* indented blocks that are no session */
  char command[1024], expected[MAX_TEXT];
  size_t commands;
} page;

/* The command before has printed all it will: compare. */
static void finish_command(page *p) {
  static char printed[MAX_TEXT];
  if (p->command[0] == 0) {
    return;
  }
  run(p->command, printed);
  normalize(printed);
  normalize(p->expected);
  cr_expect_str_eq(printed, p->expected, "%s\nprints: %s\n\nbut the page says: %s", p->command, printed, p->expected);
  p->command[0] = p->expected[0] = 0;
  p->commands++;
}

static void take_line(page *p, const char *line, bool *session) {
  if (strncmp(line, "    $ ", 6) == 0) {
    finish_command(p);
    *session = true;
    cr_assert_lt((size_t)snprintf(p->command, sizeof p->command, "%s", line + 6), sizeof p->command);
  } else if (strncmp(line, "    ", 4) != 0) {
    finish_command(p);
    *session = false;
  } else {
    char *into = *session ? p->expected : p->program;
    size_t used = strlen(into);
    cr_assert_lt((size_t)snprintf(into + used, MAX_TEXT - used, "%s\n", line + 4), MAX_TEXT - used);
  }
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
  normalize(text);
}

static void expect_same_program(const page *p) {
  char *ours = strdup(p->program), *theirs = test_read_file(MK_SOURCE_DIR "/tests/vm/data/two_sms.mks");
  strip(ours);
  strip(theirs);
  cr_assert_str_eq(ours, theirs);
  free(ours);
  free(theirs);
}

Test(tutorial, every_command_prints_what_the_page_says) {
  static page p;
  char *text = test_read_file(MK_SOURCE_DIR "/docs/ASSEMBLER.md"), *rest = text;
  bool session = false, written = false;
  for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
    if (!written && strncmp(line, "    $ ", 6) == 0) {
      FILE *file = fopen("two.mks", "w");
      fputs(p.program, file);
      fclose(file);
      expect_same_program(&p);
      written = true;
    }
    take_line(&p, line, &session);
  }
  finish_command(&p);
  cr_assert_gt(p.commands, 15, "only %zu commands found", p.commands);
  free(text);
}
