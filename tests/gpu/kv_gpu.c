/* A KV cache in fp8 on the GPU: every instruction of one row, of several and of wide steps beside its plain C
 * reference, alone, in company and in repeated launches; and the bits of a bf16 cache that has what the codes stand
 * for. */
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "instructions/dequantise.h"
#include "models/synth.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/shape.h"

enum { SEED = 3, STEPS = 8, CONTEXT = 1500, SMALLEST = 112, EXPONENTS = 8 };

static void have_head_norms(mk_config *config) { config->qk_norm = MK_QK_NORM_HEAD; }

static const shape shapes[] = {
    {"fp8 cache, 64 dims", 512, 1024, 8, 2, 64, 2, CONTEXT, NULL},
    {"fp8 cache, 128 dims", 1024, 2048, 8, 2, 128, 2, CONTEXT, NULL},
    {"fp8 cache, 128 dims, int4", 1024, 2048, 16, 2, 128, 2, 600, have_int4},
    {"fp8 cache, norms of heads", 512, 1024, 8, 4, 128, 2, 600, have_head_norms},
    {"fp8 cache, norms of heads of 64 dims", 512, 1024, 8, 2, 64, 2, 600, have_head_norms},
    {"fp8 cache, odd", 203, 331, 3, 1, 128, 2, 600, NULL},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static bool open_with(const mk_config *config, mk_dtype cache, uint32_t rows, const char *name, mk_engine **engine) {
  const mk_engine_options options = {.device = device,
                                     .synth = config,
                                     .synth_seed = SEED,
                                     .rows = rows,
                                     .max_seq = CONTEXT,
                                     .kv = cache,
                                     .gpu_deadline_ms = deadline_ms};
  *engine = NULL;
  return expect_ok(mk_engine_open(NULL, &options, engine), name);
}

/* K and V of new tokens become zero, which both caches have exactly. */
static mk_status clear_rows(mk_engine *engine, const mk_config *config) {
  const mk_program *program = mk_engine_program(engine);
  mk_status status = MK_OK;
  for (uint32_t layer = 0; layer < config->layers && status == MK_OK; layer++) {
    char name[64];
    uint8_t *zeros;
    snprintf(name, sizeof name, "layers.%u.qkv", layer);
    const int buffer = mk_program_find_buffer(program, name);
    if (buffer < 0) {
      return mk_error(MK_ERR_USAGE, "there is no %s", name);
    }
    const uint64_t row_tile = (uint64_t)mk_buffer_grid_cols(&program->buffers[buffer]) * 512,
                   first = config->heads * config->head_dim / MK_TILE * row_tile,
                   bytes = program->buffers[buffer].bytes - first;
    MK_TRY(mk_alloc(bytes, 1, &zeros));
    memset(zeros, 0, bytes);
    status = mk_gpu_write(mk_engine_gpu(engine), (size_t)buffer, first, zeros, bytes);
    mk_free(zeros);
  }
  return status;
}

/* Codes of all kinds but NaN, and scales: some 0, else powers of two. */
static void fill_half(const mk_buffer *b, uint64_t key, uint8_t *half) {
  const uint64_t codes = mk_half_codes(b);
  for (uint64_t i = 0; i < codes; i++) {
    const uint8_t code = (uint8_t)mk_synth_mix(key + i);
    half[i] = (code & 0x7f) == 0x7f ? 0 : code;
  }
  for (uint64_t i = 0; i < b->block_tokens; i++) {
    const uint64_t random = mk_synth_mix(key + codes + i);
    const uint16_t scale = random % 17 == 0 ? 0 : (uint16_t)((SMALLEST + random % EXPONENTS) << 7);
    memcpy(half + codes + i * sizeof scale, &scale, sizeof scale);
  }
}

/* Fills the cache of one layer with codes, and the other with what they stand for. */
static mk_status fill_layer(mk_engine *codes, mk_engine *plain, size_t buffer, uint64_t key) {
  const mk_buffer *b = &mk_engine_program(codes)->buffers[buffer], *other = &mk_engine_program(plain)->buffers[buffer];
  const uint64_t half = mk_half_bytes(b), halves = b->bytes / half, elements = mk_half_codes(b);
  uint8_t *bytes = NULL;
  uint16_t *tiles = NULL;
  mk_status status = mk_alloc(b->bytes, 1, &bytes);
  if (status == MK_OK) {
    status = mk_alloc(other->bytes, 1, &tiles);
  }
  for (uint64_t h = 0; status == MK_OK && h < halves; h++) {
    fill_half(b, key + (h << 20), bytes + h * half);
    for (uint32_t t = 0; t < b->block_tokens; t += MK_TILE) {
      mk_dequantise_tokens(b, bytes + h * half, h % 2, t, tiles + h * elements + (uint64_t)t * b->head_dim);
    }
  }
  if (status == MK_OK) {
    status = mk_gpu_write(mk_engine_gpu(codes), buffer, 0, bytes, b->bytes);
  }
  if (status == MK_OK) {
    status = mk_gpu_write(mk_engine_gpu(plain), buffer, 0, tiles, other->bytes);
  }
  mk_free(tiles);
  mk_free(bytes);
  return status;
}

static mk_status fill_both(mk_engine *codes, mk_engine *plain) {
  for (size_t b = 0; b < mk_engine_program(codes)->buffer_count; b++) {
    if (mk_engine_program(codes)->buffers[b].kind == MK_KIND_KV) {
      MK_TRY(fill_layer(codes, plain, b, (uint64_t)b << 40));
    }
  }
  return MK_OK;
}

/* Sixteen sequences, at positions of all kinds. */
static bool run(mk_engine *engine, uint32_t rows, uint32_t depth, const char *name, float *logits) {
  const mk_program *program = mk_engine_program(engine);
  const size_t buffer = (size_t)mk_program_find_buffer(program, "logits");
  mk_step_row plan[STEPS][MK_MAX_ROWS];
  for (uint32_t step = 0; step < STEPS; step++) {
    for (uint32_t r = 0; r < rows; r++) {
      plan[0][step * rows + r] = (mk_step_row){.slot = r,
                                               .position = (depth + 67 * r) % (CONTEXT - STEPS) + step,
                                               .token = (r * 31 + step * 7) % 1000,
                                               .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
    }
  }
  return (rows == 1 || write_table(mk_engine_gpu(engine), program, name)) &&
         expect_ok(mk_gpu_run_plan(mk_engine_gpu(engine), plan[0], STEPS, NULL, NULL), name) &&
         expect_ok(mk_gpu_read(mk_engine_gpu(engine), buffer, 0, logits, program->buffers[buffer].bytes), name);
}

static void compare_caches(const shape *s, uint32_t rows) {
  static const uint32_t depths[] = {0, 31, 64, 300, 1023, 1400};
  const mk_config config = config_of(s);
  mk_engine *codes = NULL, *plain = NULL;
  float *logits = NULL;
  char name[96];
  snprintf(name, sizeof name, "%s, %u rows beside bf16", s->name, rows);
  const uint64_t count = (uint64_t)rows * config.vocab;
  if (expect_ok(mk_alloc(2 * count, sizeof *logits, &logits), name) &&
      open_with(&config, MK_DTYPE_E4M3, rows, name, &codes) && open_with(&config, MK_DTYPE_BF16, rows, name, &plain) &&
      expect_ok(clear_rows(codes, &config), name) && expect_ok(clear_rows(plain, &config), name) &&
      expect_ok(fill_both(codes, plain), name)) {
    for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++) {
      if (run(codes, rows, depths[d], name, logits) && run(plain, rows, depths[d], name, logits + count)) {
        expect(memcmp(logits, logits + count, count * sizeof *logits) == 0, name,
               "a bf16 cache with the same numbers gives other bits of the last logits");
      }
    }
  }
  mk_engine_close(plain);
  mk_engine_close(codes);
  mk_free(logits);
}

void test_kv(bool quick) {
  static const mk_opcode late[] = {MK_OP_ATTENTION, MK_OP_NONE};
  const mk_dtype before = kv;
  kv = MK_DTYPE_E4M3;
  for (size_t i = 0; i < SHAPES; i++) {
    test_one_row_of(&shapes[i]);
    if (!quick || i < 2 || i + 1 == SHAPES) {
      test_rows_of(&shapes[i], late, quick);
    }
    if (!quick || i < 3 || i + 1 == SHAPES) {
      test_prompts_of(&shapes[i], i == 0 ? MK_MOST_ROWS : MK_WIDE_ROWS, quick);
      test_many_of(&shapes[i], i == 1 ? 128 : 64, quick);
    }
    if (shapes[i].change == NULL) {
      compare_caches(&shapes[i], 1);
      compare_caches(&shapes[i], MK_MAX_ROWS);
    }
  }
  kv = before;
}
