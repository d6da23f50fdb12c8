/* Quantised checkpoints that are not what they say: refused with the tensor and the value, and never read beyond an
 * end. The good ones are those of tests/oracle/goldens/quantised. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "instructions/reference.h"
#include "models/directory.h"
#include "vm/cpu/machine.h"
#include "vm/program/strips.h"

static char folder[] = "/tmp/mk-bad-quantised-XXXXXX";

static void make(void) { cr_assert_not_null(mkdtemp(folder)); }
static void leave(void) {
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  cr_expect_eq(system(command), 0);
}
TestSuite(quantised_files, .init = make, .fini = leave);

typedef struct bytes {
  char *data;
  size_t length;
} bytes;

static bytes slurp(const char *golden, const char *name) {
  char path[512];
  snprintf(path, sizeof path, "%s/tests/oracle/goldens/quantised/%s/%s", MK_SOURCE_DIR, golden, name);
  FILE *file = fopen(path, "rb");
  cr_assert_not_null(file, "%s", path);
  bytes b = {.data = malloc(1 << 20)};
  b.length = fread(b.data, 1, 1 << 20, file);
  cr_assert_lt(b.length, 1 << 20);
  b.data[b.length] = 0;
  fclose(file);
  return b;
}

static void store(const char *name, const bytes *b) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "wb");
  cr_assert_not_null(file);
  cr_assert_eq(fwrite(b->data, 1, b->length, file), b->length);
  fclose(file);
}

/* The first `from` becomes `to`, in its length: in a header, or in a text. */
static void edit(bytes *b, size_t start, const char *from, const char *to) {
  cr_assert_eq(strlen(from), strlen(to), "%s", to);
  char *at = strstr(b->data + start, from);
  cr_assert_not_null(at, "%s", from);
  memcpy(at, to, strlen(to));
}

static void change(const char *golden, const char *file, const char *from, const char *to) {
  bytes config = slurp(golden, "config.json"), weights = slurp(golden, "model.safetensors");
  bool header = strcmp(file, "model.safetensors") == 0;
  edit(header ? &weights : &config, header ? 8 : 0, from, to);
  store("config.json", &config);
  store("model.safetensors", &weights);
  free(config.data);
  free(weights.data);
}

/* The data of a tensor, by the header. */
static void poke(const char *golden, const char *tensor, size_t offset, const void *value, size_t size) {
  bytes config = slurp(golden, "config.json"), weights = slurp(golden, "model.safetensors");
  uint64_t header;
  unsigned long begin;
  memcpy(&header, weights.data, 8);
  char *at = strstr(weights.data + 8, tensor);
  cr_assert_not_null(at, "%s", tensor);
  at = strstr(at, "data_offsets");
  cr_assert_eq(sscanf(at, "data_offsets\":[%lu", &begin), 1);
  memcpy(weights.data + 8 + header + begin + offset, value, size);
  store("config.json", &config);
  store("model.safetensors", &weights);
  free(config.data);
  free(weights.data);
}

static void expect(const char *message) {
  mk_directory directory;
  cr_assert_eq(mk_directory_open(folder, MK_WEIGHTS_NEEDED, NULL, &directory), MK_ERR_FILE, "accepted: %s", message);
  cr_expect_not_null(strstr(mk_error_message(), message), "\"%s\" lacks \"%s\"", mk_error_message(), message);
}

#define WEIGHTS "model.safetensors"
#define LAYER "model.layers.0.mlp.down_proj."

Test(quantised_files, names_and_dtypes) {
  change("fp8_row", WEIGHTS, LAYER "weight_scale\"", LAYER "weight_scala\"");
  expect(LAYER "weight_scala: is not part of");
  change("int8", WEIGHTS, "\"I8\"", "\"U8\"");
  expect("dtype \"U8\" is not supported");
  change("int8", WEIGHTS, "\"dtype\":\"I8\",\"shape\":[136,136]", "\"dtype\":\"I8\",\"shape\":[ 68,272]");
  expect(LAYER "weight: shape is [68, 272], config.json asks for [136, 136]");
  change("w4_symmetric", WEIGHTS, LAYER "weight_packed", LAYER "weight_pucked");
  expect("is not part of");
  change("fp8_tensor", "config.json", "float-quantized\"", "int-quantized\"  ");
  expect("must be what format says");
  change("fp8_row", "config.json", "\"type\": \"float\"", "\"type\": \"int\"  ");
  expect("must be what format says");
  change("gptq_symmetric", WEIGHTS, LAYER "qzeros", LAYER "qzeroz");
  expect("is not part of");
  change("awq", WEIGHTS, LAYER "scales", LAYER "scalos");
  expect("is not part of");
}

/* Each by a config.json that says otherwise. */
Test(quantised_files, what_is_missing_or_too_much) {
  change("w4_asymmetric", "config.json", "\"symmetric\": false", "\"symmetric\": true ");
  expect("weight_zero_point: is not part of");
  change("w4_symmetric", "config.json", "\"symmetric\": true", "\"symmetric\":false");
  expect("weight_zero_point: is missing; quantization_config asks for it");
  change("int8", "config.json", "\"lm_head\"", "\"re:.*k_\"");
  expect("k_proj.weight");
  change("fp8_inverse", "config.json", "\"quant_method\": \"fp8\"", "\"quant_method\": \"awq\"");
  expect("weight: is there, but quantization_config says that it is quantised");
}

Test(quantised_files, shapes_that_do_not_fit_the_groups) {
  change("w4_symmetric", "config.json", "\"group_size\": 128", "\"group_size\": 64 ");
  expect("weight_scale: shape is");
  change("gptq_symmetric", "config.json", "\"group_size\": 128", "\"group_size\": 32 ");
  expect("shape is");
  change("awq", "config.json", "\"group_size\": 128", "\"group_size\": 0  ");
  expect("shape is");
  change("w4_symmetric", "config.json", "\"group_size\": 128", "\"group_size\": 999");
  expect("group_size: 999");
}

Test(quantised_files, lists_of_groups) {
  const int32_t values[] = {2, -2, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
    char message[128];
    poke("gptq_ordered", LAYER "g_idx", 4 * 135, &values[i], 4);
    snprintf(message, sizeof message, LAYER "g_idx: column 135 is in group %d; there are 2", values[i]);
    expect(message);
  }
  poke("w4_ordered", LAYER "weight_g_idx", 0, &values[1], 4);
  expect("column 0 is in group -2");
}

Test(quantised_files, stored_shapes) {
  const int64_t values[] = {135, -136, INT64_MAX};
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
    poke("w4_symmetric", LAYER "weight_shape", 8, &values[i], 8);
    expect(LAYER "weight_shape: says [136, ");
  }
}

static mk_status load(void) {
  mk_engine *engine;
  mk_status status = mk_engine_open(folder, &(mk_engine_options){.device = "cpu", .max_seq = 16}, &engine);
  if (status == MK_OK) {
    mk_engine_close(engine);
  }
  return status;
}

Test(quantised_files, zeros_of_symmetric_files) {
  const uint32_t word = 0x77777778, other = 0x66666666;
  poke("gptq_symmetric", LAYER "qzeros", 4, &word, 4);
  cr_expect_eq(load(), MK_ERR_FILE);
  cr_expect_not_null(strstr(mk_error_message(), LAYER "qzeros: word 1 is 0x77777778; with sym true every zero is 8"),
                     "%s", mk_error_message());
  poke("gptq_symmetric", LAYER "qzeros", 0, &other, 4);
  cr_expect_eq(load(), MK_ERR_FILE);
  cr_expect_not_null(strstr(mk_error_message(), "word 0 is 0x66666666"), "%s", mk_error_message());
}

static bool note_nan(void *user, uint32_t token, const float *logits) {
  *(bool *)user = isnan(logits[0]);
  (void)token;
  return true;
}

/* How many scales of weights in fp8 are no numbers; machines look at these, and not at codes (vm/program/strips.h). */
static uint32_t count_nan_scales(mk_engine *engine) {
  const mk_program *program = mk_engine_program(engine);
  uint32_t count = 0;
  for (size_t i = 0; i < program->buffer_count; i++) {
    const mk_buffer *b = &program->buffers[i];
    if (b->kind == MK_KIND_WEIGHT && b->dtype == MK_DTYPE_E4M3) {
      cr_assert_eq(b->scale, MK_SCALE_BF16);
      const uint8_t *memory = mk_cpu_memory(mk_engine_cpu(engine), i);
      const uint64_t strips = (b->cols + MK_STRIP_COLS - 1) / MK_STRIP_COLS * mk_buffer_grid_rows(b);
      for (uint64_t s = 0; s < strips; s++) {
        for (uint32_t at = 0; at < mk_strip_scales(b); at += sizeof(uint16_t)) {
          uint16_t scale;
          memcpy(&scale, memory + s * mk_strip_bytes(b) + mk_strip_codes(b) + at, sizeof scale);
          count += isnan(mk_bf16_to_float(scale)) ? 1 : 0;
        }
      }
    }
  }
  return count;
}

/* As transformers does: the number is no number, and the sequence fails with that. */
static void expect_nan(bool of_code) {
  const uint32_t prompt[] = {1, 2};
  mk_engine *engine;
  bool nan = false;
  cr_assert_eq(mk_engine_open(folder, &(mk_engine_options){.device = "cpu", .max_seq = 16}, &engine), MK_OK, "%s",
               mk_error_message());
  if (of_code) {
    cr_expect_eq(count_nan_scales(engine), 1, "%u", count_nan_scales(engine));
  }
  const mk_status status = mk_engine_generate(engine, prompt, 2, 1, note_nan, &nan);
  cr_expect(nan || (status != MK_OK && strstr(mk_error_message(), "NaN") != NULL), "%d: %s", (int)status,
            mk_error_message());
  mk_engine_close(engine);
}

Test(quantised_files, codes_and_scales_that_are_no_numbers) {
  const uint8_t code = 0x7f;
  const uint16_t scale = 0x7fc0;
  poke("fp8_row", LAYER "weight\"", 0, &code, 1);
  expect_nan(true);
  poke("fp8_row", LAYER "weight_scale", 0, &scale, 2);
  expect_nan(false);
  poke("w4_symmetric", LAYER "weight_scale", 0, &scale, 2);
  expect_nan(false);
}

/* Random bytes in a header, and files cut off anywhere: an error or a model, and nothing else. */
Test(quantised_files, mutations) {
  static const char *const goldens[] = {"fp8_block", "w4_asymmetric", "awq", "gptq_ordered"};
  uint64_t seed = 7;
  for (size_t i = 0; i < 200; i++) {
    const char *golden = goldens[i % 4];
    bytes config = slurp(golden, "config.json"), weights = slurp(golden, "model.safetensors");
    uint64_t header;
    mk_directory directory;
    memcpy(&header, weights.data, 8);
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    if (i % 5 == 0) {
      weights.length = (size_t)(seed >> 33) % weights.length + 1;
    } else {
      weights.data[8 + (seed >> 33) % header] = (char)(seed >> 20);
    }
    store("config.json", &config);
    store("model.safetensors", &weights);
    if (mk_directory_open(folder, MK_WEIGHTS_NEEDED, NULL, &directory) == MK_OK) {
      mk_directory_close(&directory);
    }
    free(config.data);
    free(weights.data);
  }
}
