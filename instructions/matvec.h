/* The vector widths that mk_matvec (reference.h) is compiled for. It takes the widest that the CPU has, and the bits
 * are the same in all of them; tests compare them.
 *
 * Pure functions: any thread may call. */
#ifndef MK_MATVEC_H
#define MK_MATVEC_H

#include "instructions/reference.h"

/* Each vector width has the instructions of those before it. */
typedef enum mk_vector_width {
  MK_VECTOR_PLAIN, /* whatever the compiler's target has: SSE2 on x86-64 */
  MK_VECTOR_AVX2,
  MK_VECTOR_AVX512,
} mk_vector_width;

mk_vector_width mk_vector_widest(void);

/* mk_matvec in a width of at most mk_vector_widest(). */
void mk_matvec_at(mk_vector_width width, const mk_span *weight, uint32_t count, const float *x, float *scratch,
                  float *y);

#endif
