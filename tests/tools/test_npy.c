/* .npy files: the header NumPy's format asks for, and no file left on failure. */
#include "tools/lib/npy.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

Test(npy, rows_and_header) {
  char directory[] = "/tmp/mk-npy-XXXXXX", path[64], bytes[256] = {0};
  cr_assert_not_null(mkdtemp(directory));
  snprintf(path, sizeof path, "%s/a.npy", directory);
  mk_npy *npy;
  cr_assert_eq(mk_npy_create(path, 3, &npy), MK_OK, "%s", mk_error_message());
  cr_assert_eq(access(path, F_OK), -1, "the file has its name before it is complete");
  const float rows[2][3] = {{1, 2, 3}, {-4, 5, 0.5f}};
  cr_assert_eq(mk_npy_row(npy, rows[0]), MK_OK);
  cr_assert_eq(mk_npy_row(npy, rows[1]), MK_OK);
  cr_assert_eq(mk_npy_finish(npy), MK_OK);
  FILE *file = fopen(path, "rb");
  cr_assert_not_null(file);
  cr_assert_eq(fread(bytes, 1, sizeof bytes, file), 128 + sizeof rows);
  fclose(file);
  cr_assert_eq(memcmp(bytes, "\x93NUMPY\x01\x00\x76\x00", 10), 0);
  cr_assert_eq(bytes[127], '\n');
  bytes[127] = 0;
  cr_assert_not_null(strstr(bytes + 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"));
  cr_assert_eq(memcmp(bytes + 128, rows, sizeof rows), 0);
  unlink(path);
  cr_assert_eq(rmdir(directory), 0, "a temporary file was left");
}

Test(npy, discard_and_bad_paths) {
  char directory[] = "/tmp/mk-npy-XXXXXX", path[64];
  cr_assert_not_null(mkdtemp(directory));
  snprintf(path, sizeof path, "%s/a.npy", directory);
  mk_npy *npy;
  cr_assert_eq(mk_npy_create(path, 3, &npy), MK_OK);
  mk_npy_discard(npy);
  cr_assert_eq(mk_npy_create(directory, 3, &npy), MK_ERR_RUNTIME);
  cr_assert_eq(mk_npy_create("/dev/null", 3, &npy), MK_ERR_RUNTIME);
  cr_assert_eq(mk_npy_create("/no/such/place.npy", 3, &npy), MK_ERR_RUNTIME);
  cr_assert_not_null(strstr(mk_error_message(), "/no/such/place.npy"));
  cr_assert_eq(mk_npy_create(path, 3, &npy), MK_OK);
  cr_assert_eq(mkdir(path, 0700), 0); /* the rename must fail now */
  cr_assert_eq(mk_npy_finish(npy), MK_ERR_RUNTIME);
  rmdir(path);
  for (uint64_t n = 1; n <= 3; n++) {
    mk_alloc_fail_at(n, false);
    cr_assert_eq(mk_npy_create(path, 3, &npy), MK_ERR_RUNTIME);
  }
  mk_alloc_fail_at(0, false);
  cr_assert_eq(rmdir(directory), 0, "a temporary file was left");
}
