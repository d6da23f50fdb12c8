/* See tile_run.h. */
#include "tests/gpu/tile_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "instructions/reference.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/tile/tile_test.h"

static mk_status new_memory(const mk_driver *cu, mk_cu_address *address, size_t bytes, unsigned char value) {
  bytes = bytes == 0 ? 16 : bytes;
  MK_TRY(mk_driver_check(cu, cu->memory_new(address, bytes), "allocating memory"));
  return mk_driver_check(cu, cu->fill_async(*address, value, bytes, NULL), "filling memory");
}

static mk_status encode(const mk_driver *cu, const tile_map *map, mk_cu_address tensor, uint32_t *to) {
  _Alignas(64) uint64_t words[MK_TENSOR_MAP_BYTES / 8];
  static const uint32_t steps[] = {1, 1, 1, 1};
  MK_TRY(mk_driver_check(cu,
                         cu->tensor_map(words, map->type, map->rank, (void *)(uintptr_t)tensor, map->sizes,
                                        map->strides, map->box, steps, 0, map->swizzle, MK_CU_TENSOR_PROMOTE_NONE, 0),
                         "making a tensor map"));
  memcpy(to, words, sizeof words);
  return MK_OK;
}

static mk_status launch(const tile_gpu *gpu, const tile_run *run, const tile_map *map, uint32_t *states) {
  const mk_driver *cu = gpu->cu;
  mk_cu_address in = 0, out = 0, work = 0, state = 0;
  mk_cu_function_ref function;
  mk_tile_params params = {.count = run->count, .first = run->first};
  void *arguments[] = {&params};
  mk_status status = MK_OK;
  MK_TRY_GOTO(mk_driver_check(cu, cu->module_function(&function, gpu->module, run->kernel), run->kernel), done);
  MK_TRY_GOTO(new_memory(cu, &in, run->in_bytes, 0), done);
  MK_TRY_GOTO(new_memory(cu, &out, run->out_bytes, 0xff), done);
  MK_TRY_GOTO(new_memory(cu, &work, run->work_bytes, 0), done);
  MK_TRY_GOTO(new_memory(cu, &state, run->blocks * sizeof *states, 0xff), done);
  if (run->in_bytes != 0) {
    MK_TRY_GOTO(mk_driver_check(cu, cu->upload_async(in, run->in, run->in_bytes, NULL), "sending inputs"), done);
  }
  if (map != NULL) {
    MK_TRY_GOTO(encode(cu, map, in, run->work), done);
  }
  if (run->work != NULL) {
    MK_TRY_GOTO(mk_driver_check(cu, cu->upload_async(work, run->work, run->work_bytes, NULL), "sending inputs"), done);
  }
  params.in = in, params.out = out, params.work = work, params.status = state;
  MK_TRY_GOTO(
      mk_driver_check(cu, cu->launch_cooperative(function, run->blocks, 1, 1, run->threads, 1, 1, 0, NULL, arguments),
                      run->kernel),
      done);
  MK_TRY_GOTO(mk_driver_check(cu, cu->download_async(states, state, run->blocks * sizeof *states, NULL), run->kernel),
              done);
  MK_TRY_GOTO(mk_driver_check(cu, cu->download_async(run->out, out, run->out_bytes, NULL), run->kernel), done);
  if (run->work != NULL) {
    MK_TRY_GOTO(mk_driver_check(cu, cu->download_async(run->work, work, run->work_bytes, NULL), run->kernel), done);
  }
  status = mk_driver_check(cu, cu->stream_wait(NULL), run->kernel);
done:
  (void)cu->memory_free(in);
  (void)cu->memory_free(out);
  (void)cu->memory_free(work);
  (void)cu->memory_free(state);
  return status;
}

bool tile_ran_mapped(tile_gpu *gpu, const tile_run *run, const tile_map *map) {
  uint32_t states[MK_TILE_MAX_BLOCKS] = {0};
  if (gpu->dead) {
    return false;
  }
  if (!expect_ok(launch(gpu, run, map, states), run->kernel)) {
    gpu->dead = true;
    return false;
  }
  for (uint32_t block = 0; block < run->blocks; block++) {
    char words[96];
    snprintf(words, sizeof words, "block %u ends with state %u: %s", block, states[block],
             states[block] == MK_TILE_LATE ? "a wait outlived its deadline" : "it did not come to its end");
    if (!expect(states[block] == MK_TILE_DONE, run->kernel, words)) {
      return false;
    }
  }
  return true;
}

bool tile_ran(tile_gpu *gpu, const tile_run *run) { return tile_ran_mapped(gpu, run, NULL); }

static uint32_t word_at(const void *words, size_t index) {
  uint32_t word;
  memcpy(&word, (const uint8_t *)words + index * sizeof word, sizeof word);
  return word;
}

void expect_words(const char *kernel, const void *got, const void *want, size_t count, size_t columns) {
  size_t wrong = 0, first = 0;
  for (size_t i = count; i-- > 0;) {
    if (word_at(got, i) != word_at(want, i)) {
      wrong++, first = i;
    }
  }
  char words[192] = "";
  if (wrong != 0) {
    uint32_t had = word_at(got, first), wanted = word_at(want, first);
    snprintf(words, sizeof words, "%zu of %zu words differ, the first at [%zu][%zu]: got %08x (%g), want %08x (%g)",
             wrong, count, first / columns, first % columns, had, (double)mk_param_float(had), wanted,
             (double)mk_param_float(wanted));
  }
  expect(wrong == 0, kernel, words);
}

void *new_bytes(size_t bytes) {
  void *memory = calloc(1, bytes);
  if (memory == NULL) {
    fprintf(stderr, "out of memory\n");
    exit(1);
  }
  return memory;
}

uint32_t random_word(uint64_t *seed) {
  *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(*seed >> 32);
}

uint16_t small_number(uint64_t *seed) { return mk_float_to_bf16((float)(random_word(seed) % 17) - 8.0f); }

uint32_t *random_words(size_t count, uint64_t seed) {
  uint32_t *words = new_bytes(count * sizeof *words);
  for (size_t i = 0; i < count; i++) {
    words[i] = random_word(&seed);
  }
  return words;
}

void test_same(tile_gpu *gpu, const char *kernel, uint32_t blocks, uint32_t rows, uint32_t columns, uint32_t first,
               uint32_t *work, size_t work_bytes) {
  size_t bytes = (size_t)rows * columns * 4;
  uint32_t *in = random_words(bytes / 4, 3), *got = new_bytes(bytes);
  tile_run run = {kernel, blocks, 32, rows, first, in, bytes, got, bytes, work, work_bytes};
  if (tile_ran(gpu, &run)) {
    expect_words(kernel, got, in, bytes / 4, columns);
  }
  free(in);
  free(got);
}
