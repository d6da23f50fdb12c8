/* Small models for tests: their configurations, and their directories with hash weights (models/synth.h).
 *
 * Directories are made below the system's temporary directory; the test removes them with test_model_remove. Failure
 * fails the running test. One thread. */
#ifndef MK_TEST_MODEL_H
#define MK_TEST_MODEL_H

#include "models/config.h"
#include "vm/program/program.h"

enum {
  TEST_PATH = 256,
  TEST_MODEL_SEED = 3,
  TEST_MODEL_TINY = 0, /* head_dim 64, group 2, tied */
  TEST_MODEL_ODD,      /* head_dim 128, group 3, untied, nothing divides by 16 but the heads */
  TEST_MODEL_DEEP_K,   /* K is split, and the kv heads are as many as the heads */
  TEST_MODEL_WIDE,     /* group 8, one kv head, K split into uneven parts */
  TEST_MODELS,
};

/* Contexts of up to 1024 tokens. */
mk_config test_model_config(size_t which);

/* A program of two layers of 64, one KV head of 64, vocabulary 100. */
mk_program *test_small_program(uint32_t sms, uint32_t context, uint32_t rows);
/* The same as a program that draws. */
mk_program *test_small_sampling_program(uint32_t sms, uint32_t context, uint32_t rows);

/* Writes the model into a new directory, whose path it returns. */
void test_model_write(const mk_config *config, char directory[TEST_PATH]);
/* Overwrites one bf16 element of a tensor in DIR/model.safetensors. */
void test_model_poke(const char *directory, const char *tensor, uint64_t element, uint16_t bits);
void test_model_remove(const char *directory);

#endif
