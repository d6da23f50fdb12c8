/* Checkpoints put together tensor by tensor: each with a dtype, a shape and a shard of its own choice.
 *
 * Every element is a multiple of 1/512 that all dtypes hold exactly, a hash of a name and of its index; gains are near
 * 1. The list lives until test_parts_free. Failure fails the running test. One thread. */
#ifndef MK_TEST_PARTS_H
#define MK_TEST_PARTS_H

#include "models/checkpoint.h"

typedef struct test_part {
  char name[96], like[96]; /* `like`: the name whose values it has */
  mk_tensor_dtype dtype;
  uint32_t rank;
  uint64_t shape[2]; /* [1] is 1 for rank 1 */
  uint32_t shard;
} test_part;

typedef struct test_parts {
  test_part *parts;
  size_t count, capacity;
} test_parts;

/* What a checkpoint of that configuration has, in bf16 and in one file. */
test_parts test_parts_of(const mk_config *config);
void test_parts_free(test_parts *parts);
test_part *test_parts_find(test_parts *parts, const char *name);
/* columns 0: a vector. like NULL: values of its own. The pointer is good until the next one is added. */
test_part *test_parts_add(test_parts *parts, const char *name, const char *like, uint64_t rows, uint64_t columns);
/* DIR/model.safetensors, or shards and their index when a part has another shard than 0. */
void test_parts_write(const test_parts *parts, const char *directory);

/* The same model as the text of a mistral3 with two tensors for images, named as either kind of transformers' releases
 * names it (mk_naming); rewrites DIR/config.json, which is that of a Llama. */
void test_parts_make_whole(test_parts *parts, const char *directory, bool inner);

#endif
