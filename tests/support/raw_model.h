/* Checkpoints of random bits in any dtype, for tests of packing: no number is left out, not NaN, not the subnormal
 * ones.
 *
 * Uses no test framework, so that the GPU tests can have it too. The directory is made below the system's temporary
 * directory and holds model.safetensors alone; test_raw_model_remove removes it with whatever files lie in it. Any
 * thread. Failure: MK_ERR_RUNTIME. */
#ifndef MK_TEST_RAW_MODEL_H
#define MK_TEST_RAW_MODEL_H

#include <sys/types.h>

#include "models/checkpoint.h"

enum { TEST_RAW_MODELS = 5, TEST_RAW_DTYPES = 3, TEST_RAW_PATH = 256 };

/* 0: head_dim 128, untied, odd numbers of columns, nothing divides by 16 but the heads; 1: head_dim 64, tied, even
 * ones; 2: fused tensors, of which some dims rotate; 3: biases everywhere, norms of heads; 4: norms after, over all
 * heads. */
mk_config test_raw_config(uint32_t which);
/* "BF16", "F16", "F32", by mk_tensor_dtype. */
const char *test_raw_dtype(mk_tensor_dtype dtype);
mk_status test_raw_model_write(const mk_config *config, mk_tensor_dtype dtype, uint64_t seed,
                               char directory[TEST_RAW_PATH]);
void test_raw_model_remove(const char *directory);

/* Spoils the byte at `at` of a file; false: it could not. */
bool test_flip(const char *path, off_t at);

#endif
