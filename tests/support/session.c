/* See session.h. */
#include "tests/support/session.h"

#include <criterion/criterion.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/text.h"

enum { MAX_TEXT = 16384 };

void test_session_normalize(char *text) {
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

static void type(const char *command, char *printed) {
  char line[1024];
  cr_assert_lt((size_t)snprintf(line, sizeof line, "{ %s\n} 2>&1", command), sizeof line);
  FILE *pipe = popen(line, "r");
  cr_assert_not_null(pipe);
  printed[fread(printed, 1, MAX_TEXT - 1, pipe)] = 0;
  int status = pclose(pipe);
  cr_assert(WIFEXITED(status) && WEXITSTATUS(status) != 127, "%s: status %d", command, status);
}

void test_session_enter(const char *mkvm) {
  static char directory[] = "/tmp/mk-session-XXXXXX";
  char path[512], command[1024];
  cr_assert_not_null(mkdtemp(directory));
  snprintf(command, sizeof command, "ln -s '%s' %s/mkvm && ln -s '%s/models' '%s/docs' %s/", mkvm, directory,
           MK_SOURCE_DIR, MK_SOURCE_DIR, directory);
  cr_assert_eq(system(command), 0);
  cr_assert_eq(chdir(directory), 0);
  snprintf(path, sizeof path, "%s:%s", directory, getenv("PATH"));
  setenv("PATH", path, 1);
}

void test_session_leave(void) {
  char here[256], command[300];
  cr_assert_not_null(getcwd(here, sizeof here));
  snprintf(command, sizeof command, "rm -rf '%s'", here);
  cr_assert_eq(chdir("/"), 0);
  cr_assert_eq(system(command), 0);
}

typedef struct session {
  char before[MAX_TEXT]; /* the first command */
  char command[1024], expected[MAX_TEXT];
  size_t commands;
} session;

/* The command has printed all it will: compare. */
static void finish_command(session *s) {
  static char printed[MAX_TEXT];
  if (s->command[0] == 0) {
    return;
  }
  type(s->command, printed);
  test_session_normalize(printed);
  test_session_normalize(s->expected);
  cr_expect_str_eq(printed, s->expected, "%s\nprints: %s\n\nbut the page says: %s", s->command, printed, s->expected);
  s->command[0] = s->expected[0] = 0;
  s->commands++;
}

static void take_line(session *s, const char *line, bool *typed) {
  if (strncmp(line, "    $ ", 6) == 0) {
    finish_command(s);
    *typed = true;
    cr_assert_lt((size_t)snprintf(s->command, sizeof s->command, "%s", line + 6), sizeof s->command);
  } else if (strncmp(line, "    ", 4) != 0) {
    finish_command(s);
    *typed = false;
  } else {
    char *into = *typed ? s->expected : s->before;
    size_t used = strlen(into);
    cr_assert_lt((size_t)snprintf(into + used, MAX_TEXT - used, "%s\n", line + 4), MAX_TEXT - used);
  }
}

size_t test_session_run(const char *page, void (*begin)(const char *text)) {
  static session s;
  char path[512];
  s = (session){.commands = 0};
  snprintf(path, sizeof path, "%s/%s", MK_SOURCE_DIR, page);
  char *text = test_read_file(path), *rest = text;
  bool typed = false, begun = false;
  for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
    if (!begun && begin != NULL && strncmp(line, "    $ ", 6) == 0) {
      begin(s.before);
      begun = true;
    }
    take_line(&s, line, &typed);
  }
  finish_command(&s);
  free(text);
  return s.commands;
}
