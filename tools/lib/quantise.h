/* Model directory -> the same model with quantised weights, in the layout of compressed-tensors, which transformers
 * loads with the package of that name: matrices of the layers alone, round to nearest.
 *   fp8   e4m3, a scale for each row, the largest size / 448
 *   int4  -8 to 7, a scale for each 128 columns of a row, the largest size / 7.5; where 128 does not divide all rows 64
 *         or 32. A matrix that 32 does not divide is left as it is, as the package wants whole groups
 * Scales are bf16. What is not quantised is copied as it is, as are the other files of the directory (but no folders,
 * and no other weights).
 *
 * Memory for a row and the scales of one matrix, at any size of the model. One thread. Failure: that of
 * mk_directory_open, MK_ERR_USAGE where a model is in the way or the weights are quantised already, MK_ERR_RUNTIME
 * (I/O, memory). Nothing stays of a directory that is not complete. */
#ifndef MK_QUANTISE_H
#define MK_QUANTISE_H

#include "models/quant.h"

typedef struct mk_quantise_options {
  mk_codes codes;                                              /* E4M3 or INT4 */
  void (*progress)(void *user, uint64_t done, uint64_t total); /* NULL: nobody is told. Bytes of weights written */
  void *user;
} mk_quantise_options;

typedef struct mk_quantise_result {
  uint64_t before, after; /* bytes of weights */
  uint32_t modules, left; /* of the layers: that were quantised, and that were left as they are */
  uint32_t group;         /* INT4: columns of a scale */
} mk_quantise_result;

mk_status mk_quantise_directory(const char *from, const char *to, const mk_quantise_options *options,
                                mk_quantise_result *result);

#endif
