/* Quantised weights on the GPU, form by form: every instruction of one row and of several beside its plain C reference;
 * the same bits alone, in company and in repeated launches, and with one row; and the bits of a model that has the same
 * weights in bf16. */
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/synth_weights.h"
#include "engine/weights.h"
#include "instructions/dequantise.h"
#include "models/llama.h"
#include "models/synth.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/shape.h"

enum { SEED = 3, STEPS = 24, CONTEXT = 128 };

static void have_fp8(mk_config *config) { mk_synth_quantise(config, MK_CODES_E4M3, 0, MK_TENSOR_BF16, false); }
static void have_fp8_of_fp32(mk_config *config) { mk_synth_quantise(config, MK_CODES_E4M3, 0, MK_TENSOR_F32, false); }
static void have_fp8_by_64(mk_config *config) { mk_synth_quantise(config, MK_CODES_E4M3, 64, MK_TENSOR_F16, false); }
static void have_int8(mk_config *config) { mk_synth_quantise(config, MK_CODES_INT8, 0, MK_TENSOR_F32, false); }
static void have_int4(mk_config *config) { mk_synth_quantise(config, MK_CODES_INT4, 128, MK_TENSOR_BF16, false); }
static void have_int4_zeros(mk_config *config) { mk_synth_quantise(config, MK_CODES_INT4, 128, MK_TENSOR_F16, true); }
static void have_int4_by_64(mk_config *config) { mk_synth_quantise(config, MK_CODES_INT4, 64, MK_TENSOR_BF16, true); }
static void have_int4_by_32(mk_config *config) { mk_synth_quantise(config, MK_CODES_INT4, 32, MK_TENSOR_F16, true); }
static void have_int4_of_fp32(mk_config *config) {
  mk_synth_quantise(config, MK_CODES_INT4, 128, MK_TENSOR_F32, false);
}
static void have_int4_and_biases(mk_config *config) {
  have_int4(config);
  config->qkv_bias = true;
  config->qk_norm = MK_QK_NORM_HEAD;
}

static const struct {
  const char *name;
  void (*change)(mk_config *config);
  bool quick; /* several rows are tested in a quick run, too */
} forms[] = {
    {"fp8", have_fp8, true},
    {"fp8, scales of fp32", have_fp8_of_fp32, false},
    {"fp8, groups of 64", have_fp8_by_64, false},
    {"int8", have_int8, false},
    {"int4", have_int4, true},
    {"int4 with zeros, scales of fp16", have_int4_zeros, false},
    {"int4 with zeros, groups of 64", have_int4_by_64, false},
    {"int4 with zeros, groups of 32", have_int4_by_32, true},
    {"int4, scales of fp32", have_int4_of_fp32, false},
    {"int4, biases and norms of heads", have_int4_and_biases, false},
};

/* K of a few chains, of more than sixteen, and with a chain that is not whole; parts of K. */
static const shape shapes[] = {
    {"64 dims", 512, 1024, 8, 2, 64, 2, 600, NULL},
    {"128 dims, wide", 2560, 2304, 8, 4, 128, 2, 600, NULL},
    {"a short chain", 1088, 4400, 8, 4, 128, 1, 600, NULL},
    {"odd", 203, 331, 3, 1, 128, 2, 600, NULL},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], EVEN_SHAPES = SHAPES - 1 };

static bool open_on(const mk_config *config, const char *name, mk_engine **engine) {
  const mk_engine_options options = {.device = device,
                                     .synth = config,
                                     .synth_seed = SEED,
                                     .rows = 1,
                                     .max_seq = CONTEXT,
                                     .gpu_deadline_ms = deadline_ms};
  *engine = NULL;
  return expect_ok(mk_engine_open(NULL, &options, engine), name);
}

/* Writes a quantised weight, as bf16, over that of the same name. */
static mk_status expand(const mk_graph *graph, const mk_weight *weight, mk_engine *to) {
  const mk_buffer packed = mk_matrix_buffer(weight);
  const mk_program *program = mk_engine_program(to);
  const int buffer = mk_program_find_buffer(program, weight->name);
  uint8_t *strips = NULL;
  uint16_t *tiles = NULL;
  if (buffer < 0) {
    return mk_error(MK_ERR_USAGE, "there is no %s", weight->name);
  }
  const uint64_t bytes = program->buffers[buffer].bytes;
  const uint32_t steps = mk_buffer_grid_cols(&packed);
  MK_TRY(mk_alloc_aligned(64, mk_buffer_bytes(&packed), &strips));
  mk_status status = mk_alloc_aligned(64, bytes, &tiles);
  if (status == MK_OK) {
    memset(strips, 0, mk_buffer_bytes(&packed));
    status = mk_synth_weights_fill(graph, weight, SEED, strips);
  }
  for (uint32_t row = 0; status == MK_OK && row < mk_buffer_grid_rows(&packed); row++) {
    mk_dequantise(&packed, strips + row * mk_tiles_bytes(&packed, 1, 0, steps), 0, steps,
                  tiles + (size_t)row * steps * MK_TILE_STEP_ELEMENTS);
  }
  if (status == MK_OK) {
    status = mk_gpu_write(mk_engine_gpu(to), (size_t)buffer, 0, tiles, bytes);
  }
  mk_free(tiles);
  mk_free(strips);
  return status;
}

static bool expand_all(const mk_config *config, const char *name, mk_engine *to) {
  mk_graph *graph = NULL;
  bool good = expect_ok(mk_llama_graph(config, &graph), name);
  for (size_t i = 0; good && i < graph->weight_count; i++) {
    if (graph->weights[i].form.codes != MK_CODES_NONE) {
      good = expect_ok(expand(graph, &graph->weights[i], to), name);
    }
  }
  mk_graph_free(graph);
  return good;
}

typedef struct choices {
  uint32_t at[STEPS + 1];
} choices;

static bool keep(void *user, uint32_t step, const uint32_t *results) {
  ((choices *)user)->at[step + 1] = results[0];
  return true;
}

static bool generate(mk_engine *engine, const char *name, choices *to, float *logits) {
  const mk_program *program = mk_engine_program(engine);
  const size_t buffer = (size_t)mk_program_find_buffer(program, "logits");
  mk_step_row plan[STEPS];
  *to = (choices){.at = {7}};
  mk_plan_sequence(plan, STEPS, 0, to->at, 1, 0);
  return expect_ok(mk_gpu_run_plan(mk_engine_gpu(engine), plan, STEPS, keep, to), name) &&
         expect_ok(
             mk_gpu_read(mk_engine_gpu(engine), buffer, 0, logits, program->buffers[buffer].cols * sizeof *logits),
             name);
}

/* Beside bf16: tokens, and the bits of the last logits. */
static void compare_bits(const shape *s) {
  const mk_config config = config_of(s);
  mk_config plain = config;
  mk_engine *quantised = NULL, *bf16 = NULL;
  float *logits = NULL;
  choices one, other;
  mk_synth_quantise(&plain, MK_CODES_NONE, 0, MK_TENSOR_BF16, false);
  if (expect_ok(mk_alloc(2 * (size_t)config.vocab, sizeof *logits, &logits), s->name) &&
      open_on(&config, s->name, &quantised) && open_on(&plain, s->name, &bf16) && expand_all(&config, s->name, bf16) &&
      generate(quantised, s->name, &one, logits) && generate(bf16, s->name, &other, logits + config.vocab)) {
    expect(memcmp(one.at, other.at, sizeof one.at) == 0 &&
               memcmp(logits, logits + config.vocab, config.vocab * sizeof *logits) == 0,
           s->name, "the same weights in bf16 give other tokens, or other bits of the last logits");
  }
  mk_engine_close(bf16);
  mk_engine_close(quantised);
  mk_free(logits);
}

void test_quantised(bool quick) {
  static const mk_opcode late[] = {MK_OP_QKV, MK_OP_NONE};
  for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
    char name[96];
    for (size_t i = 0; i < SHAPES; i++) {
      shape s = shapes[i];
      snprintf(name, sizeof name, "%s, %s", forms[f].name, shapes[i].name);
      s.name = name;
      s.change = forms[f].change;
      test_one_row_of(&s);
      compare_bits(&s);
      if (quick ? i == 0 && forms[f].quick : i < EVEN_SHAPES) {
        test_rows_of(&s, late, quick);
      }
    }
  }
}
