/* See process.h. */
#include "tests/support/process.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_ARGUMENTS = 40 };

char *test_slurp(int fd, size_t *length) {
  size_t size = (size_t)lseek(fd, 0, SEEK_END);
  char *text = calloc(1, size + 1);
  *length = (size_t)pread(fd, text, size, 0);
  return text;
}

pid_t test_start(const char *program, const char *const *arguments, int in, int out, int err) {
  pid_t child = fork();
  if (child == 0) {
    char *argv[MOST_ARGUMENTS + 2] = {strdup(program)};
    for (int i = 0; arguments[i] != NULL && i < MOST_ARGUMENTS; i++) {
      argv[i + 1] = strdup(arguments[i]);
    }
    setenv("CUDA_VISIBLE_DEVICES", "", 1); /* the same everywhere: no GPU */
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execv(program, argv);
    _exit(127);
  }
  cr_assert_gt(child, 0);
  return child;
}

int test_finish(pid_t child) {
  int status;
  cr_assert_eq(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int test_scratch_file(void) {
  FILE *file = tmpfile();
  cr_assert_not_null(file);
  int fd = dup(fileno(file));
  fclose(file);
  return fd;
}

test_result test_process(const char *program, const char *const *arguments) {
  int in = open("/dev/null", O_RDONLY), out = test_scratch_file(), err = test_scratch_file();
  size_t length;
  test_result r = {.code = test_finish(test_start(program, arguments, in, out, err))};
  r.out = test_slurp(out, &r.out_length);
  r.err = test_slurp(err, &length);
  close(in);
  close(out);
  close(err);
  return r;
}

void test_drop(test_result *r) {
  free(r->out);
  free(r->err);
}
