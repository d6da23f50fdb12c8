/* A still picture of a trace for documents, as SVG: `mkvm trace FILE -o out.svg`.
 *
 * Rows are SMs (with all roles where there are few SMs, else the consumers), colour is the opcode, thin lines are
 * waits, the black line is the critical path. Time is cut into columns, each of which shows what most of it was spent
 * at; there are as many as keep the file below MK_PICTURE_MOST bytes. The picture has no script and refers to nothing.
 *
 * The summary stays the caller's. One thread. Failure: MK_ERR_USAGE when nothing was recorded in the window,
 * MK_ERR_RUNTIME for memory. */
#ifndef MK_PICTURE_H
#define MK_PICTURE_H

#include "tools/profiler/summary.h"

enum { MK_PICTURE_MOST = 280000 };

/* Microseconds from the start of the trace; both 0: the step whose critical path the summary holds. */
typedef struct mk_picture_window {
  double from, to;
} mk_picture_window;

/* The picture as bytes; mk_free(*data). */
mk_status mk_picture_make(const mk_summary *summary, mk_picture_window window, void **data, size_t *length);

#endif
