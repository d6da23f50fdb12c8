/* Quantised weights on the GPU, form by form: every instruction of one row, of several and of wide steps beside its
 * plain C reference; the same bits alone, in company and in repeated launches, and with one row; and the bits of a
 * model that has the same weights in bf16, of logits, and of what is drawn and ranked. */
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

void have_fp8(mk_config *config) { mk_synth_quantise(config, MK_CODES_E4M3, 0, MK_TENSOR_BF16, false); }
void have_fp8_by_64(mk_config *config) { mk_synth_quantise(config, MK_CODES_E4M3, 64, MK_TENSOR_F16, false); }
void have_int8(mk_config *config) { mk_synth_quantise(config, MK_CODES_INT8, 0, MK_TENSOR_F32, false); }
void have_int4(mk_config *config) { mk_synth_quantise(config, MK_CODES_INT4, 128, MK_TENSOR_BF16, false); }
void have_int4_zeros(mk_config *config) { mk_synth_quantise(config, MK_CODES_INT4, 128, MK_TENSOR_F16, true); }
void have_int4_by_32(mk_config *config) { mk_synth_quantise(config, MK_CODES_INT4, 32, MK_TENSOR_F16, true); }
static void have_fp8_of_fp32(mk_config *config) { mk_synth_quantise(config, MK_CODES_E4M3, 0, MK_TENSOR_F32, false); }
static void have_int4_by_64(mk_config *config) { mk_synth_quantise(config, MK_CODES_INT4, 64, MK_TENSOR_BF16, true); }
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
  bool quick; /* several rows are tested in a quick run, too; and all of sampling in any run */
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
enum { SHAPES = sizeof shapes / sizeof shapes[0] };
static const uint32_t prompt_rows[SHAPES] = {MK_WIDE_ROWS, MK_MOST_ROWS, 256, 128}; /* in wide steps */
static const uint32_t many_rows[SHAPES] = {64, 256, 128, 64};                       /* and in shared ones */

/* sampling: NULL, or how its program draws. */
static bool open_on(const mk_config *config, uint32_t rows, const mk_sampling *sampling, const char *name,
                    mk_engine **engine) {
  const mk_engine_options options = {.device = device,
                                     .synth = config,
                                     .synth_seed = SEED,
                                     .rows = rows,
                                     .max_seq = CONTEXT,
                                     .kv = kv,
                                     .gpu_deadline_ms = deadline_ms,
                                     .sampling = sampling};
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
      open_on(&config, 1, NULL, s->name, &quantised) && open_on(&plain, 1, NULL, s->name, &bf16) &&
      expand_all(&config, s->name, bf16) && generate(quantised, s->name, &one, logits) &&
      generate(bf16, s->name, &other, logits + config.vocab)) {
    expect(memcmp(one.at, other.at, sizeof one.at) == 0 &&
               memcmp(logits, logits + config.vocab, config.vocab * sizeof *logits) == 0,
           s->name, "the same weights in bf16 give other tokens, or other bits of the last logits");
  }
  mk_engine_close(bf16);
  mk_engine_close(quantised);
  mk_free(logits);
}

/* ---- What is drawn ---- */

enum { SEQUENCES = 8, PROMPT = 9, DRAWN = 12 };

typedef struct draws {
  uint32_t count[SEQUENCES], tokens[SEQUENCES][DRAWN];
  mk_ranking now[SEQUENCES], rankings[SEQUENCES][DRAWN];
} draws;

static bool keep_draw(void *user, size_t sequence, uint32_t token, const float *logits) {
  draws *d = user;
  (void)logits;
  d->rankings[sequence][d->count[sequence]] = d->now[sequence];
  d->tokens[sequence][d->count[sequence]++] = token;
  return true;
}

static void end_draws(void *user, size_t sequence, mk_status status) {
  (void)user;
  (void)sequence;
  (void)expect_ok(status, "a sequence that draws");
}

static const mk_sampling drawn_ways[SEQUENCES] = {
    {.top_p = 1, .repetition = 1, .temperature = 1, .seed = 1},
    {.top_p = 0.9, .repetition = 1, .temperature = 0.8, .seed = 2},
    {.top_p = 1, .repetition = 1, .temperature = 1, .top_k = 50, .seed = 3},
    {.top_p = 1, .repetition = 1, .temperature = 1.5, .min_p = 0.05, .seed = 4},
    {.top_p = 1, .repetition = 1.2, .presence = 0.5, .frequency = 0.2, .temperature = 1, .seed = 5},
    {.top_p = 1, .repetition = 1},
    {.top_p = 0.95, .repetition = 1.1, .temperature = 1.1, .top_k = 100, .min_p = 0.01, .seed = 6},
    {.top_p = 1, .repetition = 1.3},
};

static bool draw_all(mk_engine *engine, const char *name, draws *to) {
  static uint32_t prompts[SEQUENCES][PROMPT];
  mk_sequence sequences[SEQUENCES];
  const mk_sequence_calls calls = {.token = keep_draw, .ended = end_draws, .user = to};
  memset(to, 0, sizeof *to);
  for (uint32_t s = 0; s < SEQUENCES; s++) {
    for (uint32_t i = 0; i < PROMPT; i++) {
      prompts[s][i] = (s * 31 + i * 7) % mk_engine_config(engine)->vocab;
    }
    to->now[s].most = 5;
    sequences[s] = (mk_sequence){.prompt = prompts[s],
                                 .prompt_count = PROMPT - s % 3,
                                 .n_predict = DRAWN,
                                 .sampling = &drawn_ways[s],
                                 .ranking = &to->now[s]};
  }
  return expect_ok(mk_engine_generate_all(engine, sequences, SEQUENCES, &calls), name);
}

/* Beside bf16: tokens, and their log-probabilities to the last bit. */
static void compare_draws(const shape *s, uint32_t rows) {
  static draws one, other;
  const mk_config config = config_of(s);
  mk_config plain = config;
  mk_engine *quantised = NULL, *bf16 = NULL;
  char name[128];
  snprintf(name, sizeof name, "%s, %u rows that draw", s->name, rows);
  mk_synth_quantise(&plain, MK_CODES_NONE, 0, MK_TENSOR_BF16, false);
  if (open_on(&config, rows, &drawn_ways[0], name, &quantised) && open_on(&plain, rows, &drawn_ways[0], name, &bf16) &&
      expand_all(&config, name, bf16) && draw_all(quantised, name, &one) && draw_all(bf16, name, &other)) {
    expect(one.count[0] == DRAWN && memcmp(&one, &other, sizeof one) == 0, name,
           "the same weights in bf16 give other draws, or other log-probabilities");
  }
  mk_engine_close(bf16);
  mk_engine_close(quantised);
}

static void test_form(const char *form, void (*change)(mk_config *config), bool rows, bool quick) {
  static const mk_opcode late[] = {MK_OP_QKV, MK_OP_NONE};
  char name[96];
  mk_config tiny;
  for (size_t i = 0; i < SHAPES; i++) {
    shape s = shapes[i];
    snprintf(name, sizeof name, "%s, %s", form, shapes[i].name);
    s.name = name;
    s.change = change;
    test_one_row_of(&s);
    compare_bits(&s);
    if (!quick || (rows && i != 1)) {
      test_rows_of(&s, late, quick);
    }
    if (!quick || (rows && i != 1)) {
      test_prompts_of(&s, prompt_rows[i], quick);
      test_many_of(&s, many_rows[i], quick);
    }
    if (i == 0) {
      compare_draws(&s, 1);
      compare_draws(&s, MK_MAX_ROWS);
    }
  }
  snprintf(name, sizeof name, "%s, tiny", form);
  if (rows && expect_ok(mk_synth_shape("tiny", &tiny), name)) {
    change(&tiny);
    test_draws_of(name, &tiny);
  }
}

void test_quantised(const char *form, bool quick) {
  bool found = false;
  for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
    if (form == NULL || strcmp(form, forms[f].name) == 0) {
      found = true;
      test_form(forms[f].name, forms[f].change, forms[f].quick, quick);
    }
  }
  expect(found, form, "there is no such form");
}
