/* See model.h. */
#include "tests/support/model.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "models/checkpoint.h"
#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"

#define COMMON .max_position = 1024, .rms_eps = 1e-5f, .rope_theta = 10000, .eos_count = 1
#define LLAMA3                                                                                          \
  .rope_type = MK_ROPE_LLAMA3, .rope_factor = 8, .rope_low_freq_factor = 1, .rope_high_freq_factor = 4, \
  .rope_original_max_position = 256

mk_config test_model_config(size_t which) {
  static const mk_config configs[TEST_MODELS] = {
      [TEST_MODEL_TINY] = {.hidden = 128,
                           .intermediate = 352,
                           .layers = 2,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 64,
                           .vocab = 320,
                           .eos = {319},
                           .tied = true,
                           LLAMA3,
                           COMMON},
      [TEST_MODEL_ODD] = {.hidden = 203,
                          .intermediate = 331,
                          .layers = 2,
                          .heads = 3,
                          .kv_heads = 1,
                          .head_dim = 128,
                          .vocab = 301,
                          .eos = {300},
                          COMMON},
      [TEST_MODEL_DEEP_K] = {.hidden = 64,
                             .intermediate = 1040,
                             .layers = 1,
                             .heads = 8,
                             .kv_heads = 8,
                             .head_dim = 64,
                             .vocab = 290,
                             .eos = {289},
                             .tied = true,
                             COMMON},
      [TEST_MODEL_WIDE] = {.hidden = 520,
                           .intermediate = 777,
                           .layers = 1,
                           .heads = 8,
                           .kv_heads = 1,
                           .head_dim = 64,
                           .vocab = 513,
                           .eos = {512},
                           LLAMA3,
                           COMMON},
  };
  cr_assert_lt(which, TEST_MODELS);
  return configs[which];
}

/* With many rows with a gate that no wide program has. */
static mk_program *small_program(mk_compile_options options) {
  mk_config config = {.hidden = 64,
                      .intermediate = 96,
                      .layers = 2,
                      .heads = 2,
                      .kv_heads = 1,
                      .head_dim = 64,
                      .vocab = 100,
                      .max_position = options.max_seq,
                      .rms_eps = 1e-5f,
                      .rope_theta = 10000,
                      .gelu = options.rows > MK_MAX_ROWS};
  mk_graph *graph;
  mk_program *program;
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

mk_program *test_small_program(uint32_t sms, uint32_t context, uint32_t rows) {
  return small_program((mk_compile_options){.sms = sms, .max_seq = context, .rows = rows});
}

mk_program *test_small_sampling_program(uint32_t sms, uint32_t context, uint32_t rows) {
  return small_program((mk_compile_options){.sms = sms, .max_seq = context, .rows = rows, .sampling = true});
}

void test_model_write(const mk_config *config, char directory[TEST_PATH]) {
  const char *base = getenv("TMPDIR");
  snprintf(directory, TEST_PATH, "%s/mkvm_test_XXXXXX", base != NULL && base[0] != '\0' ? base : "/tmp");
  cr_assert_not_null(mkdtemp(directory), "%s cannot be made", directory);
  mk_synth_options options = {.seed = TEST_MODEL_SEED};
  cr_assert_eq(mk_synth_write(directory, config, &options), MK_OK, "%s", mk_error_message());
}

void test_model_poke(const char *directory, const char *tensor, uint64_t element, uint16_t bits) {
  mk_checkpoint *checkpoint;
  cr_assert_eq(mk_checkpoint_open(directory, &checkpoint), MK_OK, "%s", mk_error_message());
  const mk_tensor *found = mk_checkpoint_find(checkpoint, tensor);
  cr_assert_not_null(found, "no tensor %s", tensor);
  cr_assert_eq(found->dtype, MK_TENSOR_BF16);
  int file = open(mk_checkpoint_path(checkpoint, found), O_WRONLY | O_CLOEXEC);
  cr_assert_geq(file, 0);
  cr_assert_eq(pwrite(file, &bits, sizeof bits, (off_t)(found->offset + element * 2)), (ssize_t)sizeof bits);
  cr_assert_eq(close(file), 0);
  mk_checkpoint_close(checkpoint);
}

void test_model_remove(const char *directory) {
  DIR *open_directory = opendir(directory);
  cr_assert_not_null(open_directory, "%s cannot be read", directory);
  for (const struct dirent *entry = readdir(open_directory); entry != NULL; entry = readdir(open_directory)) {
    if (entry->d_name[0] != '.') {
      char path[TEST_PATH + 300];
      snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
      cr_assert_eq(unlink(path), 0, "%s cannot be removed", path);
    }
  }
  closedir(open_directory);
  cr_assert_eq(rmdir(directory), 0);
}
