/* See page.h. */
#include "tests/support/page.h"

#include <criterion/criterion.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/support/text.h"

enum { MAX_TEXT = 16384, MAX_COMMAND = 1024 };

typedef struct page {
  char before[256], text[MAX_TEXT], command[MAX_COMMAND]; /* command: "" while a block of text is read */
  bool runs;
  size_t commands;
  test_page_fn block;
  void *user;
} page;

void test_page_normalize(char *text) {
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
  char line[MAX_COMMAND + 16];
  snprintf(line, sizeof line, "{ %s\n} 2>&1", command);
  FILE *pipe = popen(line, "r");
  cr_assert_not_null(pipe);
  printed[fread(printed, 1, MAX_TEXT - 1, pipe)] = 0;
  int status = pclose(pipe);
  cr_assert(WIFEXITED(status) && WEXITSTATUS(status) != 127, "%s: status %d", command, status);
}

/* The command or the block at hand is complete. */
static void finish(page *p) {
  static char printed[MAX_TEXT];
  if (p->command[0] != 0) {
    p->commands++;
    if (p->runs) {
      run(p->command, printed);
      test_page_normalize(printed);
      test_page_normalize(p->text);
      cr_expect_str_eq(printed, p->text, "%s\nprints: %s\n\nbut the page says: %s", p->command, printed, p->text);
    }
  } else if (p->text[0] != 0) {
    p->block(p->before, p->text, p->user);
  }
  p->command[0] = p->text[0] = 0;
}

size_t test_page_follow(const char *path, bool runs, test_page_fn block, void *user) {
  static page p;
  p = (page){.runs = runs, .block = block, .user = user};
  char *whole = test_read_file(path), *rest = whole;
  bool blank = true, in_block = false; /* blank: the line before was empty. A block begins after such a line */
  for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
    if (line[0] == 0) {
      blank = true;
      continue;
    }
    in_block = strncmp(line, "    ", 4) == 0 && (blank || in_block);
    if (!in_block) {
      finish(&p);
      snprintf(p.before, sizeof p.before, "%s", line);
    } else if (strncmp(line, "    $ ", 6) == 0) {
      finish(&p);
      cr_assert_lt((size_t)snprintf(p.command, sizeof p.command, "%s", line + 6), sizeof p.command);
    } else {
      size_t used = strlen(p.text);
      cr_assert_lt((size_t)snprintf(p.text + used, MAX_TEXT - used, "%s%s\n", blank && used != 0 ? "\n" : "", line + 4),
                   MAX_TEXT - used);
    }
    blank = false;
  }
  finish(&p);
  free(whole);
  return p.commands;
}
