/* Runs the tests of a Criterion program in its own process, one after the other, and ends with the first that fails.
 * For ThreadSanitizer, whose memory leaves no room for what Criterion starts processes with: a build with it links this
 * into every test program.
 *
 * Takes the place of Criterion's main and of what its macros call; init and fini of tests are not called, and
 * parameters are not known: tests that have them do not run in such a build. */
#include <criterion/criterion.h>
#include <sanitizer/common_interface_defs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "halt_on_error=1"; }

extern struct criterion_test *__start_cr_tst[], *__stop_cr_tst[]; /* the linker's bounds of the section */

static const struct criterion_test *current;
static size_t passed;

static void end(size_t failed) {
  printf("[====] Synthesis: Tested: %zu | Passing: %zu | Failing: %zu | Crashing: 0\n", passed + failed, passed,
         failed);
  fflush(stdout);
}

/* Also called when the sanitizer ends the process. */
static void fail(void) {
  printf("[FAIL] %s::%s\n", current->category, current->name);
  end(1);
}

void criterion_internal_test_setup(void) {}
void criterion_internal_test_teardown(void) {}
void criterion_internal_test_main(void (*body)(void)) { body(); }
void cri_asserts_passed_incr(void) {}

void criterion_send_assert(struct criterion_assert_stats *stats) {
  printf("[----] %s:%u: Assertion Failed\n[----]   %s\n", stats->file, stats->line, stats->message);
}

/* Criterion's would look for the process that it starts tests from, and end this one. */
void cr_log(enum criterion_severity severity, const char *message, ...) {
  va_list values;
  (void)severity;
  va_start(values, message);
  printf("[----] ");
  vprintf(message, values);
  printf("\n");
  va_end(values);
}

void criterion_abort_test(void) {
  fail();
  _Exit(1);
}

int main(void) {
  __sanitizer_set_death_callback(fail);
  for (struct criterion_test **test = __start_cr_tst; test < __stop_cr_tst; test++) {
    if (*test != NULL) {
      current = *test;
      (*test)->test();
      passed++;
    }
  }
  end(0);
  return passed == 0;
}
