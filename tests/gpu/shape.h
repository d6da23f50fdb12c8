/* Small models of odd shapes, for the tests of several rows per step. */
#ifndef MK_TESTS_GPU_SHAPE_H
#define MK_TESTS_GPU_SHAPE_H

#include "models/config.h"

typedef struct shape {
  const char *name;
  uint32_t hidden, intermediate, heads, kv_heads, head_dim, layers, max_seq;
} shape;

mk_config config_of(const shape *s);

#endif
