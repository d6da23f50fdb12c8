/* docs/OPCODE.md and docs/FAMILY.md: their changes are made in a copy of the sources, and their commands typed there:
 * they build the copy, run the new opcode's test, and put it through assembler, verifier and CPU machine; and they
 * compile a model of a new family. Kernels are compiled where there is nvcc. In quick runs, and under sanitizers,
 * nothing is built: then the changes must only find their places. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/effort.h"
#include "tests/support/page.h"
#include "tests/support/text.h"

/* A copy of what a build needs. Where there is no nvcc, a command of that name does nothing. */
static void enter_copy(void) {
  static char directory[] = "/tmp/mk-page-XXXXXX";
  char command[1024], path[1024];
  cr_assert_not_null(mkdtemp(directory));
  snprintf(command, sizeof command,
           "cd '%s' && cp -r CMakeLists.txt CMakePresets.json LICENSE README.md cmake docs engine examples include "
           "instructions lib models scheduler serve tests text tools vm %s",
           MK_SOURCE_DIR, directory);
  cr_assert_eq(system(command), 0);
  cr_assert_eq(chdir(directory), 0);
  snprintf(path, sizeof path, "%s:/usr/local/cuda/bin", getenv("PATH"));
  setenv("PATH", path, 1);
  unsetenv("BXFI_MAP"); /* by which Criterion would take a test program of the copy for one of its own children */
  unsetenv("CRITERION_VERBOSITY_LEVEL"); /* which tools/test sets: the page shows what a reader's run prints */
  if (system("command -v nvcc > /dev/null") != 0) {
    printf("pages: there is no nvcc, so kernels are not compiled\n");
    cr_assert_eq(system("mkdir none && ln -s /bin/true none/nvcc"), 0);
    snprintf(path, sizeof path, "%s:%s/none", getenv("PATH"), directory);
    setenv("PATH", path, 1);
  }
}

static void leave_copy(void) {
  char here[256], command[300];
  cr_assert_not_null(getcwd(here, sizeof here));
  snprintf(command, sizeof command, "rm -rf '%s'", here);
  cr_assert_eq(chdir("/"), 0);
  cr_assert_eq(system(command), 0);
}
TestSuite(pages, .init = enter_copy, .fini = leave_copy, .timeout = MK_HANG_SECONDS);

/* What stands between the next two ` of *line. */
static char *take_quoted(char **line) {
  char *start = strchr(*line, '`');
  cr_assert_not_null(start, "no file or place is named: %s", *line);
  char *end = strchr(start + 1, '`');
  cr_assert_not_null(end, "%s", *line);
  *end = 0;
  *line = end + 1;
  return start + 1;
}

static void write_file(const char *name, const char *start, size_t bytes, const char *text, const char *rest) {
  FILE *file = fopen(name, "w");
  cr_assert_not_null(file, "%s", name);
  fwrite(start, 1, bytes, file);
  fputs(text, file);
  fputs(rest, file);
  fclose(file);
}

/* "New file `NAME`:", or "In `NAME`, above `WORDS`:", of the one line that has these words first. */
static void make_change(const char *before, const char *text, void *user) {
  size_t *files = user;
  char *line = strdup(before), *words = line, *name = take_quoted(&words);
  if (strncmp(before, "New file ", 9) == 0) {
    cr_assert_neq(access(name, F_OK), 0, "%s is there already", name);
    write_file(name, "", 0, text, "");
    ++*files;
  } else {
    cr_assert(strncmp(before, "In ", 3) == 0 && strstr(words, "above") != NULL, "not understood: %s", before);
    const char *place = take_quoted(&words);
    char *whole = test_read_file(name), *found = strstr(whole, place);
    cr_assert_not_null(found, "%s has no %s", name, place);
    cr_assert_null(strstr(found + 1, place), "%s has more than one %s", name, place);
    while (found > whole && found[-1] == ' ') {
      found--;
    }
    cr_assert(found == whole || found[-1] == '\n', "%s: %s does not begin its line", name, place);
    write_file(name, whole, (size_t)(found - whole), text, found);
    free(whole);
  }
  free(line);
}

/* One after the other: the second page's build goes on from the first one's. */
Test(pages, their_changes_build_and_run) {
  bool runs = test_repeats(0, 1) != 0;
  size_t files = 0, more = 0;
  size_t commands = test_page_follow(MK_SOURCE_DIR "/docs/OPCODE.md", runs, make_change, &files);
  cr_assert_eq(files, 3, "%zu new files", files);
  cr_assert_gt(commands, 12, "only %zu commands found", commands);
  commands = test_page_follow(MK_SOURCE_DIR "/docs/FAMILY.md", runs, make_change, &more);
  cr_assert_eq(more, 0);
  cr_assert_gt(commands, 5, "only %zu commands found", commands);
}
