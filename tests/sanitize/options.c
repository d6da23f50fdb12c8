/* Defaults of the sanitizers for every program of a sanitizer build; ASAN_OPTIONS and UBSAN_OPTIONS still override
 * them. An allocation too large for the machine returns NULL, as it does without a sanitizer: how that is handled is
 * under test. */
const char *__asan_default_options(void);
const char *__ubsan_default_options(void);

const char *__asan_default_options(void) {
  return "allocator_may_return_null=1:detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1";
}

const char *__ubsan_default_options(void) { return "print_stacktrace=1"; }
