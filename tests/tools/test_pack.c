/* What the GPU is told to pack, and the code by which it does: run on the host, under the interface of
 * vm/gpu/upload.h, it must give the bytes of the host packer. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/weights.h"
#include "models/llama.h"
#include "scheduler/compile.h"
#include "tests/support/raw_model.h"

/* In place of vm/gpu/upload.c, which is left out of this program: one staging buffer, and a weight in plain memory. */
struct mk_gpu_upload {
  uint8_t staging[4096];
  size_t room;
  const mk_buffer *buffer;
  uint8_t *memory;
  uint64_t rows;
};

size_t mk_gpu_upload_room(const mk_gpu_upload *upload) { return upload->room; }

mk_status mk_gpu_upload_begin(mk_gpu_upload *upload, void **memory) {
  *memory = upload->staging;
  return MK_OK;
}

mk_status mk_gpu_upload_bytes(mk_gpu_upload *upload, size_t buffer, uint64_t offset, size_t bytes) {
  (void)buffer;
  cr_assert_leq(offset + bytes, upload->buffer->bytes);
  memcpy(upload->memory + offset, upload->staging, bytes);
  return MK_OK;
}

void mk_gpu_upload_trim(const mk_gpu_upload *upload, size_t buffer, mk_gpu_pack *pack) {
  (void)upload, (void)buffer, (void)pack; /* all rows are here */
}

mk_status mk_gpu_upload_rows(mk_gpu_upload *upload, size_t buffer, const mk_gpu_pack *pack) {
  (void)buffer;
  mk_gpu_pack whole = *pack;
  whole.to = (uintptr_t)upload->memory;
  whole.from = (uintptr_t)upload->staging;
  whole.grid_cols = mk_buffer_grid_cols(upload->buffer);
  whole.packed_rows = upload->buffer->rows;
  cr_assert_leq(pack->rows * pack->cols * mk_gpu_pack_unit(pack->dtype), upload->room);
  for (uint32_t row = 0; row < pack->rows; row++) {
    for (uint32_t pair = 0; pair < (pack->cols + 1) / 2; pair++) {
      mk_gpu_pack_pair(&whole, row, pair);
    }
  }
  upload->rows += pack->rows;
  return MK_OK;
}

static void expect_same_bytes(const mk_checkpoint *checkpoint, const mk_graph *graph, const mk_program *program,
                              const mk_weight *weight, size_t room) {
  size_t index = (size_t)mk_program_find_buffer(program, weight->name);
  const mk_buffer *buffer = &program->buffers[index];
  uint8_t *want, *got;
  cr_assert_eq(mk_alloc_aligned(64, buffer->bytes, &want), MK_OK);
  cr_assert_eq(mk_alloc_aligned(64, buffer->bytes, &got), MK_OK);
  mk_gpu_upload upload = {.room = room, .buffer = buffer, .memory = got};
  cr_assert_eq(mk_weights_load(checkpoint, graph, weight, want), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_weights_upload(checkpoint, graph, weight, &upload, index, NULL, NULL), MK_OK, "%s",
               mk_error_message());
  for (uint64_t i = 0; i < buffer->bytes; i++) {
    cr_assert_eq(got[i], want[i], "%s, byte %llu is %02x, not %02x", weight->name, (unsigned long long)i, got[i],
                 want[i]);
  }
  mk_free(want);
  mk_free(got);
}

static void expect_model(uint32_t which, mk_tensor_dtype dtype, size_t room) {
  mk_config config = test_raw_config(which);
  char directory[TEST_RAW_PATH];
  mk_checkpoint *checkpoint;
  mk_graph *graph;
  mk_program *program;
  mk_compile_options compile = {.sms = 2, .max_seq = 64};
  cr_assert_eq(test_raw_model_write(&config, dtype, which + 1, directory), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_checkpoint_open(directory, &checkpoint), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_checkpoint_check(checkpoint, &config), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &compile, &program), MK_OK, "%s", mk_error_message());
  for (size_t w = 0; w < graph->weight_count; w++) {
    expect_same_bytes(checkpoint, graph, program, &graph->weights[w], room);
  }
  mk_program_free(program);
  mk_graph_free(graph);
  mk_checkpoint_close(checkpoint);
  test_raw_model_remove(directory);
}

Test(pack, the_gpus_code_gives_the_host_packers_bytes) {
  for (uint32_t which = 0; which < TEST_RAW_MODELS; which++) {
    for (int dtype = 0; dtype < TEST_RAW_DTYPES; dtype++) {
      expect_model(which, (mk_tensor_dtype)dtype, 4096);
    }
  }
}

Test(pack, a_row_at_a_time_gives_them_too) { expect_model(0, MK_TENSOR_F32, 4 * 384 + 1); }

static mk_status stop_at_third(void *user, uint64_t bytes) {
  cr_assert_gt(bytes, 0);
  return ++*(unsigned *)user == 3 ? mk_error(MK_ERR_RUNTIME, "enough") : MK_OK;
}

Test(pack, the_tick_ends_it_and_a_row_too_long_is_refused) {
  mk_config config = test_raw_config(0);
  char directory[TEST_RAW_PATH];
  mk_checkpoint *checkpoint;
  mk_graph *graph;
  static uint16_t memory[304 * 208];
  mk_buffer buffer = {.rows = 304, .cols = 203, .tile_rows = 16, .tile_cols = 16, .bytes = sizeof memory};
  mk_gpu_upload upload = {.room = 2 * 203 * 2, .buffer = &buffer, .memory = (uint8_t *)memory};
  unsigned ticks = 0;
  cr_assert_eq(test_raw_model_write(&config, MK_TENSOR_BF16, 1, directory), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_checkpoint_open(directory, &checkpoint), MK_OK);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  const mk_weight *embedding = &graph->weights[graph->embedding];
  cr_assert_eq(mk_weights_upload(checkpoint, graph, embedding, &upload, 0, stop_at_third, &ticks), MK_ERR_RUNTIME);
  cr_assert_eq(upload.rows, 6);
  upload.room = 203 * 2 - 1;
  cr_assert_eq(mk_weights_upload(checkpoint, graph, embedding, &upload, 0, NULL, NULL), MK_ERR_FILE);
  cr_assert_not_null(strstr(mk_error_message(), "406 bytes"), "%s", mk_error_message());
  mk_graph_free(graph);
  mk_checkpoint_close(checkpoint);
  test_raw_model_remove(directory);
}
