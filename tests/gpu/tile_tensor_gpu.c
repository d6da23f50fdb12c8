/* Copies by tensor maps on the GPU (tests/gpu/tile/tensor.cu), against plain C loops: boxes anywhere in a tensor, over
 * its edges, and beyond it, with the order of the 128-byte swizzle. What a box does not touch keeps its pattern. */
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/gpu_test.h"
#include "tests/gpu/tile/tile_test.h"
#include "tests/gpu/tile_run.h"

enum { MOST_BOXES = 64, ROOM_WORDS = MK_TENSOR_ROOM / 4 };

static uint32_t unit_of(const tile_map *map) { return map->type == MK_CU_TENSOR_BF16 ? 2 : 8; }

static uint32_t box_bytes(const tile_map *map) {
  uint32_t bytes = unit_of(map);
  for (uint32_t d = 0; d < map->rank; d++) {
    bytes *= map->box[d];
  }
  return bytes;
}

static uint64_t tensor_bytes(const tile_map *map) {
  return map->rank == 1 ? map->sizes[0] * unit_of(map) : map->strides[map->rank - 2] * map->sizes[map->rank - 1];
}

/* Element by element: where it is from, or zero beyond the tensor; and where it goes. */
static void copy_in_c(const tile_map *map, const uint8_t *tensor, const mk_tile_box *box, uint8_t *to) {
  const uint32_t unit = unit_of(map), elements = box_bytes(map) / unit;
  for (uint32_t i = 0; i < elements; i++) {
    uint64_t from = 0;
    uint32_t rest = i, at = i * unit;
    bool inside = true;
    for (uint32_t d = 0; d < map->rank; d++) {
      const uint64_t index = box->at[d] + (uint64_t)(rest % map->box[d]);
      rest /= map->box[d];
      inside = inside && index < map->sizes[d];
      from += index * (d == 0 ? unit : map->strides[d - 1]);
    }
    at = map->swizzle == MK_CU_TENSOR_SWIZZLE_128 ? at ^ at / 128 % 8 * 16 : at;
    memset(to + at, 0, unit);
    if (inside) {
      memcpy(to + at, tensor + from, unit);
    }
  }
}

static void test_boxes(tile_gpu *gpu, const char *kernel, const tile_map *map, const mk_tile_box *boxes,
                       uint32_t count) {
  const size_t bytes = (size_t)tensor_bytes(map), out_bytes = (size_t)count * MK_TENSOR_ROOM;
  const size_t work_bytes = MK_TENSOR_MAP_BYTES + count * sizeof *boxes;
  uint32_t *tensor = random_words((bytes + 3) / 4, 51), *work = new_bytes(work_bytes);
  uint32_t *got = new_bytes(out_bytes), *want = new_bytes(out_bytes);
  memcpy(work + MK_TENSOR_MAP_BYTES / 4, boxes, count * sizeof *boxes);
  for (uint32_t c = 0; c < count; c++) {
    for (uint32_t i = 0; i < ROOM_WORDS; i++) {
      want[(size_t)c * ROOM_WORDS + i] = mk_tile_pattern(c, i);
    }
    copy_in_c(map, (const uint8_t *)tensor, &boxes[c], (uint8_t *)(want + (size_t)c * ROOM_WORDS));
  }
  const tile_run run = {.kernel = kernel,
                        .blocks = 1,
                        .threads = 128,
                        .count = count,
                        .first = box_bytes(map),
                        .in = tensor,
                        .in_bytes = bytes,
                        .out = got,
                        .out_bytes = out_bytes,
                        .work = work,
                        .work_bytes = work_bytes};
  if (tile_ran_mapped(gpu, &run, map)) {
    expect_words(kernel, got, want, out_bytes / 4, ROOM_WORDS);
  }
  free(tensor);
  free(work);
  free(got);
  free(want);
}

/* Of each dimension: the beginning, further on, what begins inside and ends beyond, and what is beyond altogether. */
static uint32_t places_of(uint64_t size, uint32_t box, uint32_t by, uint32_t places[4]) {
  const uint32_t last = (uint32_t)((size - 1) / by * by), end = (uint32_t)((size + by - 1) / by * by);
  const uint32_t all[] = {0, box, last, end};
  uint32_t count = 0;
  for (uint32_t i = 0; i < 4; i++) {
    bool known = false;
    for (uint32_t k = 0; k < count; k++) {
      known = known || places[k] == all[i];
    }
    if (!known) {
      places[count++] = all[i];
    }
  }
  return count;
}

/* All of these places of dimensions x and y, in the z-th box of the others. */
static uint32_t boxes_of(const tile_map *map, uint32_t x, uint32_t by_x, uint32_t y, const uint32_t *others,
                         mk_tile_box *boxes) {
  uint32_t at_x[4], at_y[4], count = 0;
  const uint32_t xs = places_of(map->sizes[x], map->box[x], by_x, at_x);
  const uint32_t ys = places_of(map->sizes[y], map->box[y], 1, at_y);
  for (uint32_t i = 0; i < xs * ys; i++) {
    mk_tile_box *box = &boxes[count++];
    memcpy(box->at, others, sizeof box->at);
    box->at[x] = at_x[i % xs];
    box->at[y] = at_y[i / xs];
  }
  return count;
}

/* Values line by line: panels of 64 columns, which begin at any multiple of 16 of them. */
static void test_matrices(tile_gpu *gpu, bool quick) {
  static const uint32_t shapes[][2] = {{144, 128}, {64, 256}, {32, 128}, {200, 100}, {2048, 128}, {152, 1024}};
  const uint32_t none[4] = {0}, count = quick ? 3 : sizeof shapes / sizeof shapes[0];
  for (uint32_t s = 0; s < count; s++) {
    const tile_map map = {.type = MK_CU_TENSOR_BF16,
                          .swizzle = MK_CU_TENSOR_SWIZZLE_128,
                          .rank = 2,
                          .sizes = {shapes[s][0], shapes[s][1]},
                          .strides = {shapes[s][0] * UINT64_C(2)},
                          .box = {64, 128}};
    mk_tile_box boxes[MOST_BOXES];
    test_boxes(gpu, "mk_tile_tensor_matrix", &map, boxes, boxes_of(&map, 0, 16, 1, none, boxes));
  }
}

/* Weights: words of a piece, pieces, row tiles: steps of bf16, strips of codes or halves of them. */
static void test_solids(tile_gpu *gpu, bool quick) {
  static const struct {
    uint32_t words, pieces, box_pieces, row_tiles;
  } shapes[] = {{64, 9, 8, 7},   {132, 4, 1, 5},  {130, 6, 2, 7}, {64, 8, 8, 4},  {64, 1, 8, 1},  {64, 16, 8, 3},
                {64, 33, 8, 13}, {64, 128, 8, 5}, {134, 9, 1, 3}, {168, 2, 1, 4}, {132, 10, 2, 9}};
  const uint32_t none[4] = {0}, count = quick ? 3 : sizeof shapes / sizeof shapes[0];
  for (uint32_t s = 0; s < count; s++) {
    const uint64_t piece = shapes[s].words * UINT64_C(8);
    const tile_map map = {.type = MK_CU_TENSOR_U64,
                          .swizzle = MK_CU_TENSOR_SWIZZLE_NONE,
                          .rank = 3,
                          .sizes = {shapes[s].words, shapes[s].pieces, shapes[s].row_tiles},
                          .strides = {piece, shapes[s].pieces * piece},
                          .box = {shapes[s].words, shapes[s].box_pieces, 4}};
    mk_tile_box boxes[MOST_BOXES];
    test_boxes(gpu, "mk_tile_tensor_solid", &map, boxes, boxes_of(&map, 1, 1, 2, none, boxes));
  }
}

/* Matrices panel by panel, all rows of one, zeros after the last row; the innermost two places are always zero. */
static void test_panels(tile_gpu *gpu, bool quick) {
  static const struct {
    uint32_t rows, panels, matrices, box_rows, box_panels;
  } shapes[] = {{64, 9, 3, 64, 2}, {20, 3, 2, 32, 3}, {64, 9, 5, 64, 1}, {5, 2, 7, 8, 1}, {128, 4, 2, 128, 1}};
  const uint32_t none[4] = {0}, count = quick ? 2 : sizeof shapes / sizeof shapes[0];
  for (uint32_t s = 0; s < count; s++) {
    const uint64_t row_bytes = shapes[s].panels * UINT64_C(128);
    const tile_map map = {.type = MK_CU_TENSOR_BF16,
                          .swizzle = MK_CU_TENSOR_SWIZZLE_128,
                          .rank = 4,
                          .sizes = {64, shapes[s].rows, shapes[s].panels, shapes[s].matrices},
                          .strides = {row_bytes, 128, shapes[s].rows * row_bytes},
                          .box = {64, shapes[s].box_rows, shapes[s].box_panels, 1}};
    mk_tile_box boxes[MOST_BOXES];
    test_boxes(gpu, "mk_tile_tensor_panels", &map, boxes, boxes_of(&map, 2, 1, 3, none, boxes));
  }
}

void test_tensors(tile_gpu *gpu, bool quick) {
  test_matrices(gpu, quick);
  test_solids(gpu, quick);
  test_panels(gpu, quick);
}
