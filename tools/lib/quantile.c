/* See quantile.h. */
#include "tools/lib/quantile.h"

#include <math.h>
#include <stdlib.h>

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double mk_quantile(double *values, size_t count, double part) {
  if (count == 0) {
    return 0;
  }
  qsort(values, count, sizeof *values, by_size);
  size_t index = (size_t)ceil(part * (double)count);
  return values[index == 0 ? 0 : index - 1];
}
