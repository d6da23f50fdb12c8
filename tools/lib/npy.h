/* A float32 matrix written row by row as a .npy file (NumPy format 1.0) whose number of rows is not known beforehand.
 *
 * The rows go to a draft of the file (vm/draft.h); mk_npy_finish fixes the header and gives it its name, mk_npy_discard
 * removes it. The caller owns the writer until one of the two. One thread. Failure: MK_ERR_RUNTIME with the path in the
 * message. */
#ifndef MK_NPY_H
#define MK_NPY_H

#include "vm/status.h"

typedef struct mk_npy mk_npy;

mk_status mk_npy_create(const char *path, uint64_t cols, mk_npy **out);
mk_status mk_npy_row(mk_npy *npy, const float *row);
/* Frees the writer in any case; on failure no file is left. */
mk_status mk_npy_finish(mk_npy *npy);
void mk_npy_discard(mk_npy *npy); /* NULL is fine */

#endif
