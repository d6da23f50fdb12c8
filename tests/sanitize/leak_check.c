/* Makes a leak fail the test that leaks. Linked into every test program of a sanitizer build.
 *
 * Criterion runs each test in a process of its own and has its verdict when the test's body returns: a process that
 * then dies in its tear-down, or exits non-zero because LeakSanitizer found something, gets a warning at most and
 * counts as passed. So here the body is followed, while it still counts, by the tear-downs of the test and of its suite
 * and by a leak check. The linker sends criterion_internal_test_main through the wrapper below (--wrap); tests need no
 * line of their own. Everything here runs in the test's process, on its one Criterion thread. */
#include <criterion/criterion.h>
#include <sanitizer/lsan_interface.h>

void __real_criterion_internal_test_main(void (*body)(void));
void __wrap_criterion_internal_test_main(void (*body)(void));

static void (*test_body)(void);

/* The hook is taken out before it runs: Criterion must not run it a second time. Criterion hands these structures to
 * the process as packed bytes, so they may be misaligned. */
__attribute__((no_sanitize("alignment"))) static void (*take_tear_down(struct criterion_test_extra_data *data))(void) {
  void (*tear_down)(void) = data != NULL ? data->fini : NULL;
  if (tear_down != NULL) {
    data->fini = NULL;
  }
  return tear_down;
}

static void tear_down_then_check(void) {
  void (*of_test)(void) = take_tear_down(criterion_current_test->data);
  void (*of_suite)(void) = take_tear_down(criterion_current_suite->data);
  if (of_test != NULL) {
    of_test();
  }
  if (of_suite != NULL) {
    of_suite();
  }
  if (__lsan_do_recoverable_leak_check() != 0) {
    cr_assert_fail("memory leaked: the report of LeakSanitizer is above");
  }
}

static void plain_body(void) {
  test_body();
  tear_down_then_check();
}

static void parameterized_body(void *parameter) {
  void (*body)(void *) = (void (*)(void *))test_body;
  body(parameter);
  tear_down_then_check();
}

__attribute__((no_sanitize("alignment"))) void __wrap_criterion_internal_test_main(void (*body)(void)) {
  test_body = body;
  bool parameterized = criterion_current_test->data->kind_ == CR_TEST_PARAMETERIZED;
  __real_criterion_internal_test_main(parameterized ? (void (*)(void))parameterized_body : plain_body);
}
