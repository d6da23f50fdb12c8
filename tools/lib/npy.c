/* See npy.h. */
#include "tools/lib/npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "vm/draft.h"

enum { HEADER_BYTES = 128 };

struct mk_npy {
  mk_draft *draft;
  uint64_t rows, cols;
};

/* The header has one size whatever the number of rows, so that it can be written twice. */
static mk_status write_header(const mk_npy *npy) {
  char header[HEADER_BYTES + 1];
  int used =
      snprintf(header, sizeof header,
               "\x93NUMPY\x01%c%c%c{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRIu64 ", %" PRIu64 "), }", 0,
               HEADER_BYTES - 10, 0, npy->rows, npy->cols);
  memset(header + used, ' ', HEADER_BYTES - (size_t)used);
  header[HEADER_BYTES - 1] = '\n';
  return mk_draft_write_at(npy->draft, 0, header, HEADER_BYTES);
}

void mk_npy_discard(mk_npy *npy) {
  if (npy != NULL) {
    mk_draft_drop(npy->draft);
    mk_free(npy);
  }
}

mk_status mk_npy_create(const char *path, uint64_t cols, mk_npy **out) {
  mk_npy *npy;
  *out = NULL;
  MK_TRY(mk_alloc(1, sizeof *npy, &npy));
  npy->cols = cols;
  mk_status status = mk_draft_open(path, &npy->draft);
  if (status == MK_OK) {
    status = write_header(npy);
  }
  if (status != MK_OK) {
    mk_npy_discard(npy);
    return status;
  }
  *out = npy;
  return MK_OK;
}

mk_status mk_npy_row(mk_npy *npy, const float *row) {
  MK_TRY(mk_draft_write(npy->draft, row, npy->cols * sizeof *row));
  npy->rows++;
  return MK_OK;
}

mk_status mk_npy_finish(mk_npy *npy) {
  mk_status status = write_header(npy);
  if (status == MK_OK) {
    status = mk_drafts_finish(&npy->draft, 1);
    npy->draft = NULL;
  }
  mk_npy_discard(npy);
  return status;
}
