/* Weights on the GPU against the host packer, byte by byte: packed there from every dtype, in one piece and in ranges
 * of a few rows; and through a packed copy on disk. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/cache.h"
#include "engine/load.h"
#include "engine/weights.h"
#include "models/llama.h"
#include "scheduler/compile.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/raw_model.h"

typedef struct model {
  char name[64];
  char directory[TEST_RAW_PATH];
  mk_checkpoint *checkpoint;
  mk_graph *graph;
  mk_program *program;
} model;

static mk_status open_model(model *m, uint32_t which, mk_tensor_dtype dtype) {
  mk_config config = test_raw_config(which);
  mk_compile_options compile = {.sms = 2, .max_seq = 64};
  *m = (model){0};
  snprintf(m->name, sizeof m->name, "packing %s, model %u", test_raw_dtype(dtype), which);
  MK_TRY(test_raw_model_write(&config, dtype, which + 11, m->directory));
  MK_TRY(mk_checkpoint_open(m->directory, &m->checkpoint));
  MK_TRY(mk_llama_graph(&config, &m->graph));
  return mk_compile(m->graph, &compile, &m->program);
}

static void close_model(model *m) {
  mk_program_free(m->program);
  mk_graph_free(m->graph);
  mk_checkpoint_close(m->checkpoint);
  if (m->directory[0] != '\0') {
    test_raw_model_remove(m->directory);
  }
}

static mk_status new_gpu(const model *m, mk_gpu **gpu) {
  mk_gpu_options options = {.device = device_index()};
  return mk_gpu_new(m->program, &options, gpu);
}

static mk_status upload_all(const model *m, mk_gpu *gpu, size_t room) {
  mk_gpu_upload *upload;
  mk_status status = MK_OK;
  MK_TRY(mk_gpu_upload_new(gpu, room, &upload));
  for (size_t w = 0; status == MK_OK && w < m->graph->weight_count; w++) {
    const mk_weight *weight = &m->graph->weights[w];
    size_t buffer = (size_t)mk_program_find_buffer(m->program, weight->name);
    status = mk_weights_upload(m->checkpoint, m->graph, weight, upload, buffer, NULL, NULL);
  }
  if (status == MK_OK) {
    status = mk_gpu_upload_end(upload);
  }
  mk_gpu_upload_free(upload);
  return status;
}

static mk_status compare_weight(const model *m, mk_gpu *gpu, const mk_weight *weight, uint8_t *want, uint8_t *got,
                                uint64_t *bad) {
  size_t index = (size_t)mk_program_find_buffer(m->program, weight->name);
  uint64_t bytes = m->program->buffers[index].bytes;
  memset(want, 0, bytes);
  MK_TRY(mk_weights_load(m->checkpoint, m->graph, weight, want));
  MK_TRY(mk_gpu_read(gpu, index, 0, got, bytes));
  for (*bad = 0; *bad < bytes && got[*bad] == want[*bad]; ++*bad) {
  }
  *bad = *bad == bytes ? UINT64_MAX : *bad;
  return MK_OK;
}

static void expect_weights(const model *m, mk_gpu *gpu, const char *how) {
  uint8_t *want = NULL, *got = NULL;
  mk_status status = mk_alloc_aligned(64, m->program->weight_bytes, &want);
  status = status == MK_OK ? mk_alloc_aligned(64, m->program->weight_bytes, &got) : status;
  for (size_t w = 0; status == MK_OK && w < m->graph->weight_count; w++) {
    uint64_t bad = 0;
    char text[160];
    status = compare_weight(m, gpu, &m->graph->weights[w], want, got, &bad);
    snprintf(text, sizeof text, "%s: %s differs from the host packer's at byte %llu", how, m->graph->weights[w].name,
             (unsigned long long)bad);
    expect(status != MK_OK || bad == UINT64_MAX, m->name, text);
  }
  expect_ok(status, m->name);
  mk_free(want);
  mk_free(got);
}

/* room: 1600 bytes hold the longest row of any of the models, once. */
static void test_upload(const model *m, size_t room, const char *how) {
  mk_gpu *gpu;
  if (expect_ok(new_gpu(m, &gpu), m->name)) {
    if (expect_ok(upload_all(m, gpu, room), m->name)) {
      expect_weights(m, gpu, how);
    }
    mk_gpu_free(gpu);
  }
}

static void count_notice(void *user, const char *text) {
  printf("packed copy: %s\n", text);
  ++*(unsigned *)user;
}

static void spoil(const char *path) {
  FILE *file = fopen(path, "r+b");
  if (file != NULL) {
    if (fseek(file, -100, SEEK_END) == 0) {
      fputc('!', file);
    }
    fclose(file);
  }
}

/* The first turn writes the copy, the second one reads it, the third one meets a spoilt one. */
static void test_copy(const model *m) {
  uint64_t key;
  char *path = NULL;
  unsigned notices = 0;
  if (!expect_ok(mk_cache_key(m->checkpoint, m->graph, &key), m->name) ||
      !expect_ok(mk_cache_path(m->directory, key, &path), m->name)) {
    return;
  }
  for (unsigned turn = 0; turn < 3; turn++) {
    mk_gpu *gpu;
    if (turn == 2) {
      spoil(path);
    }
    if (!expect_ok(new_gpu(m, &gpu), m->name)) {
      break;
    }
    const mk_load load = {.graph = m->graph,
                          .program = m->program,
                          .checkpoint = m->checkpoint,
                          .gpu = gpu,
                          .cache = m->directory,
                          .notice = count_notice,
                          .user = &notices};
    if (expect_ok(mk_load_weights(&load), m->name)) {
      expect(access(path, R_OK) == 0, m->name, "there is no packed copy");
      expect(notices == (turn == 2), m->name, "a spoilt copy, and that alone, is worth a notice");
      expect_weights(m, gpu, turn == 0 ? "beside a copy" : turn == 1 ? "from the copy" : "after a spoilt copy");
    }
    mk_gpu_free(gpu);
  }
  mk_free(path);
}

void test_packing(void) {
  for (uint32_t which = 0; which < TEST_RAW_MODELS; which++) {
    for (int dtype = 0; dtype < TEST_RAW_DTYPES; dtype++) {
      model m;
      if (expect_ok(open_model(&m, which, (mk_tensor_dtype)dtype), "packing")) {
        test_upload(&m, 0, "in one piece");
        test_upload(&m, 1600, "in ranges");
        test_copy(&m);
      }
      close_model(&m);
    }
  }
}
