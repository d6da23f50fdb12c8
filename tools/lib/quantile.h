/* Quantiles of what benchmarks measure. Owns nothing; any thread. */
#ifndef MK_QUANTILE_H
#define MK_QUANTILE_H

#include <stddef.h>

/* Sorts; the smallest value that a share `part` of them (0 to 1; 0.5: a median) does not exceed. 0 of no values. */
double mk_quantile(double *values, size_t count, double part);

#endif
