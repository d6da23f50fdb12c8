/* --threads: the logits of the command are the same for every number of them, and on a CPU without fused multiply-adds
 * and wide vectors, as far as the C library can be told to do without (GLIBC_TUNABLES). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/process.h"
#include "tests/support/text.h"

static char path[64], *want, *got;
static size_t want_length;

/* The bytes of the logits of ten tokens. */
static char *logits_of(const char *threads, size_t *length) {
  const char *arguments[] = {"run",
                             "-m",
                             MK_SOURCE_DIR "/models/demo",
                             "-p",
                             "Free software is a matter of",
                             "-n",
                             "10",
                             "--device",
                             "cpu",
                             "--temp",
                             "0",
                             "--logits",
                             path,
                             "-t",
                             threads,
                             NULL};
  test_result r = test_process(MK_COMMAND, arguments);
  cr_assert_eq(r.code, 0, "%s", r.err);
  test_drop(&r);
  FILE *file = fopen(path, "rb");
  cr_assert_not_null(file);
  cr_assert_eq(fseek(file, 0, SEEK_END), 0);
  *length = (size_t)ftell(file);
  rewind(file);
  char *bytes = malloc(*length);
  cr_assert(bytes != NULL && *length > 10 * 1000 * sizeof(float));
  cr_assert_eq(fread(bytes, 1, *length, file), *length);
  fclose(file);
  unlink(path);
  return bytes;
}

static void expect_same(const char *threads) {
  size_t length;
  got = logits_of(threads, &length);
  cr_assert_eq(length, want_length);
  cr_assert_eq(memcmp(got, want, length), 0, "%s threads: other logits", threads);
  free(got);
}

Test(threads, same_logits) {
  snprintf(path, sizeof path, "/tmp/mk-threads-%d.npy", (int)getpid());
  unsetenv("GLIBC_TUNABLES");
  want = logits_of("1", &want_length);
  expect_same("2");
  expect_same("3");
  expect_same("64");
  setenv("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2,-AVX512F", 1);
  expect_same("2");
  free(want);
}

static void expect_usage(const char *const *arguments, const char *words) {
  test_result r = test_process(MK_COMMAND, arguments);
  cr_assert_eq(r.code, 2);
  cr_assert_not_null(strstr(r.err, words), "%s", r.err);
  test_drop(&r);
}

Test(threads, what_they_do_not_go_with) {
  static const char model[] = MK_SOURCE_DIR "/models/demo";
  expect_usage((const char *[]){"run", "-m", model, "-t", "2", "--check", NULL},
               "--threads 2 does not go with --check");
  expect_usage((const char *[]){"run", "-m", model, "-t", "2", "--device", "cuda", NULL}, "does not go with --threads");
  expect_usage((const char *[]){"run", "-m", model, "-t", "0", NULL}, "--threads");
  expect_usage((const char *[]){"run", "-m", model, "-t", "1025", NULL}, "--threads");
  expect_usage((const char *[]){"bench", "-m", model, "-t", "2", "--device", "cuda", NULL},
               "does not go with --threads");
  expect_usage((const char *[]){"bench", "--mla", "64", "-t", "2", NULL}, "--mla goes with");
}
