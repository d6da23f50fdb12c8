/* See raw_model.h. */
#include "tests/support/raw_model.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/synth.h"

enum { TENSOR_TEXT = 256 }; /* bytes of one entry of the header, at most */

mk_config test_raw_config(uint32_t which) {
  static const mk_config configs[TEST_RAW_MODELS] = {
      {.hidden = 203, .intermediate = 331, .layers = 1, .heads = 3, .kv_heads = 1, .head_dim = 128, .vocab = 301},
      {.hidden = 130,
       .intermediate = 346,
       .layers = 2,
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 64,
       .vocab = 320,
       .tied = true},
      {.hidden = 100,
       .intermediate = 173,
       .layers = 2,
       .heads = 2,
       .kv_heads = 1,
       .head_dim = 128,
       .vocab = 300,
       .fused = true,
       .rotary = 96,
       .rope_attention = 1.25},
      {.hidden = 101,
       .intermediate = 90,
       .layers = 2,
       .heads = 4,
       .kv_heads = 1,
       .head_dim = 64,
       .vocab = 300,
       .qkv_bias = true,
       .o_bias = true,
       .mlp_bias = true,
       .qk_norm = MK_QK_NORM_HEAD},
      {.hidden = 96,
       .intermediate = 90,
       .layers = 1,
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 64,
       .vocab = 300,
       .o_bias = true,
       .qkv_bias = true,
       .norm_after = true,
       .qk_norm = MK_QK_NORM_ALL}};
  mk_config config = configs[which];
  config.max_position = 256;
  config.rms_eps = 1e-5f;
  config.rope_theta = 10000;
  return config;
}

const char *test_raw_dtype(mk_tensor_dtype dtype) {
  static const char *const names[] = {[MK_TENSOR_BF16] = "BF16", [MK_TENSOR_F16] = "F16", [MK_TENSOR_F32] = "F32"};
  return names[dtype];
}

static uint64_t unit_of(mk_tensor_dtype dtype) { return dtype == MK_TENSOR_F32 ? 4 : 2; }

static uint64_t random_bits(uint64_t *seed) {
  *seed ^= *seed << 13;
  *seed ^= *seed >> 7;
  *seed ^= *seed << 17;
  return *seed;
}

/* Random bits, but for fp32 also those that random ones hardly ever are: half way between two bf16, NaN with few
 * bits. */
static uint32_t random_element(uint64_t *seed, mk_tensor_dtype dtype) {
  uint64_t bits = random_bits(seed);
  uint32_t element = (uint32_t)(bits >> 32);
  if (dtype != MK_TENSOR_F32) {
    return element & 0xffffu;
  }
  switch (bits % 16) {
    case 0:
      return (element & 0xffff0000u) | 0x8000u;
    case 1:
      return (element & 0x80000003u) | 0x7f800000u;
    default:
      return element;
  }
}

static uint64_t make_header(const mk_config *config, mk_tensor_dtype dtype, char *text, size_t size) {
  uint64_t at = 0;
  size_t length = (size_t)snprintf(text, size, "{");
  for (uint64_t i = 0; i < mk_synth_tensor_count(config); i++) {
    mk_synth_tensor tensor;
    mk_synth_tensor_at(config, i, &tensor);
    uint64_t bytes = tensor.shape[0] * tensor.shape[1] * unit_of(dtype);
    char shape[64];
    snprintf(shape, sizeof shape, tensor.rank == 1 ? "%llu" : "%llu,%llu", (unsigned long long)tensor.shape[0],
             (unsigned long long)tensor.shape[1]);
    length += (size_t)snprintf(text + length, size - length,
                               "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
                               i == 0 ? "" : ",", tensor.name, test_raw_dtype(dtype), shape, (unsigned long long)at,
                               (unsigned long long)(at + bytes));
    at += bytes;
  }
  snprintf(text + length, size - length, "}");
  return at;
}

static bool write_file(FILE *file, const char *header, uint64_t data, mk_tensor_dtype dtype, uint64_t seed) {
  uint64_t length = strlen(header);
  bool good = fwrite(&length, sizeof length, 1, file) == 1 && fwrite(header, (size_t)length, 1, file) == 1;
  for (uint64_t at = 0; good && at < data; at += unit_of(dtype)) {
    uint32_t element = random_element(&seed, dtype);
    good = fwrite(&element, (size_t)unit_of(dtype), 1, file) == 1;
  }
  return good;
}

mk_status test_raw_model_write(const mk_config *config, mk_tensor_dtype dtype, uint64_t seed,
                               char directory[TEST_RAW_PATH]) {
  const char *folder = getenv("TMPDIR");
  char path[TEST_RAW_PATH + 32], *header;
  size_t size = (size_t)mk_synth_tensor_count(config) * TENSOR_TEXT + 16;
  MK_TRY(mk_alloc(size, 1, &header));
  uint64_t data = make_header(config, dtype, header, size);
  snprintf(directory, TEST_RAW_PATH, "%s/mkvm-raw-XXXXXX", folder == NULL ? "/tmp" : folder);
  FILE *file = NULL;
  if (mkdtemp(directory) != NULL) {
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    file = fopen(path, "wb");
  }
  bool good = file != NULL && write_file(file, header, data, dtype, seed * 2 + 1);
  good = file != NULL && fclose(file) == 0 && good;
  mk_free(header);
  return good ? MK_OK : mk_error(MK_ERR_RUNTIME, "%s: cannot be written: %s", directory, strerror(errno));
}

void test_raw_model_remove(const char *directory) {
  DIR *entries = opendir(directory);
  for (const struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
    char path[TEST_RAW_PATH + 300];
    snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
    (void)unlink(path);
  }
  if (entries != NULL) {
    closedir(entries);
  }
  (void)rmdir(directory);
}

bool test_flip(const char *path, off_t at) {
  uint8_t byte;
  int fd = open(path, O_RDWR | O_CLOEXEC);
  bool good = fd >= 0 && pread(fd, &byte, 1, at) == 1;
  byte = good ? byte ^ 0x10 : 0;
  good = good && pwrite(fd, &byte, 1, at) == 1;
  if (fd >= 0) {
    close(fd);
  }
  return good;
}
