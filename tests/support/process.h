/* The command as a process of its own: arguments as they are, its outputs apart, signals while it runs.
 *
 * The caller frees what comes back. Failure fails the running test. */
#ifndef MK_TEST_PROCESS_H
#define MK_TEST_PROCESS_H

#include <stddef.h>
#include <sys/types.h>

typedef struct test_result {
  int code; /* exit code, or 1000 + signal */
  char *out, *err;
  size_t out_length;
} test_result;

/* Begins `program` ARGUMENTS (up to NULL) without a GPU, on these descriptors. */
pid_t test_start(const char *program, const char *const *arguments, int in, int out, int err);
/* Waits for it; its exit code, or 1000 + signal. */
int test_finish(pid_t child);
/* From start to end, with nothing to read; test_drop(). */
test_result test_process(const char *program, const char *const *arguments);
void test_drop(test_result *result);

/* A file without a name; close(). */
int test_scratch_file(void);
/* All that is in it, with a zero after it; free(). */
char *test_slurp(int fd, size_t *length);

#endif
