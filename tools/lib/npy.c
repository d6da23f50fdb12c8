/* See npy.h. */
#include "tools/lib/npy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_BYTES = 128 };

struct mk_npy {
  FILE *file;
  char *path, *temporary;
  uint64_t rows, cols;
};

static mk_status failed(const mk_npy *npy) {
  return mk_error(MK_ERR_RUNTIME, "%s: cannot be written: %s", npy->path, strerror(errno));
}

/* The header has one size whatever the number of rows, so that it can be written twice. */
static mk_status write_header(mk_npy *npy) {
  char header[HEADER_BYTES + 1];
  int used =
      snprintf(header, sizeof header,
               "\x93NUMPY\x01%c%c%c{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRIu64 ", %" PRIu64 "), }", 0,
               HEADER_BYTES - 10, 0, npy->rows, npy->cols);
  memset(header + used, ' ', HEADER_BYTES - (size_t)used);
  header[HEADER_BYTES - 1] = '\n';
  return fwrite(header, 1, HEADER_BYTES, npy->file) == HEADER_BYTES ? MK_OK : failed(npy);
}

void mk_npy_discard(mk_npy *npy) {
  if (npy == NULL) {
    return;
  }
  if (npy->file != NULL) {
    fclose(npy->file);
  }
  if (npy->temporary != NULL) {
    unlink(npy->temporary);
  }
  mk_free(npy->temporary);
  mk_free(npy->path);
  mk_free(npy);
}

static mk_status open_file(mk_npy *npy, const char *path) {
  size_t size = strlen(path) + 32;
  struct stat info;
  char *temporary;
  MK_TRY(mk_strdup(path, &npy->path));
  if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
    return mk_error(MK_ERR_RUNTIME, "%s: is not a regular file; name another file to write", path);
  }
  MK_TRY(mk_alloc(size, 1, &temporary));
  snprintf(temporary, size, "%s.%ld.tmp", path, (long)getpid());
  int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) {
    mk_free(temporary);
    return failed(npy);
  }
  npy->temporary = temporary;
  npy->file = fdopen(fd, "wb");
  if (npy->file == NULL) {
    close(fd);
    return failed(npy);
  }
  return write_header(npy);
}

mk_status mk_npy_create(const char *path, uint64_t cols, mk_npy **out) {
  mk_npy *npy;
  *out = NULL;
  MK_TRY(mk_alloc(1, sizeof *npy, &npy));
  npy->cols = cols;
  mk_status status = open_file(npy, path);
  if (status != MK_OK) {
    mk_npy_discard(npy);
    return status;
  }
  *out = npy;
  return MK_OK;
}

mk_status mk_npy_row(mk_npy *npy, const float *row) {
  if (fwrite(row, sizeof *row, npy->cols, npy->file) != npy->cols) {
    return failed(npy);
  }
  npy->rows++;
  return MK_OK;
}

mk_status mk_npy_finish(mk_npy *npy) {
  mk_status status = fseek(npy->file, 0, SEEK_SET) == 0 ? write_header(npy) : failed(npy);
  FILE *file = npy->file;
  npy->file = NULL;
  if (fclose(file) != 0 && status == MK_OK) {
    status = failed(npy);
  }
  if (status == MK_OK && rename(npy->temporary, npy->path) != 0) {
    status = failed(npy);
  }
  if (status == MK_OK) { /* nothing temporary is left to remove */
    mk_free(npy->temporary);
    npy->temporary = NULL;
  }
  mk_npy_discard(npy);
  return status;
}
