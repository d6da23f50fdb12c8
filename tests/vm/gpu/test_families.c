/* Which kernel runs a program: plain Llamas have theirs, whatever another family has goes to those for families. Over a
 * driver without a GPU (tests/fake_cuda). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/fake_gpu.h"
#include "vm/gpu/machine.h"

static mk_gpu_image_part asked;

const void *mk_gpu_image(mk_gpu_image_part part) {
  asked = part;
  return "an image";
}
bool mk_gpu_image_complete(void) { return true; }
int mk_gpu_image_cuda_version(void) { return 13000; }

static const struct {
  const char *type, *keys;
  bool plain; /* for the GPU */
} families[] = {
    {"llama", "", true},
    {"mistral", ",\"sliding_window\":null", true},
    {"phi3", "", true},
    {"smollm3", ",\"no_rope_layer_interval\":2", true},
    {"granite", ",\"logits_scaling\":8", false},
    {"granite", ",\"embedding_multiplier\":12", false},
    {"llama", ",\"attention_bias\":true", false},
    {"llama", ",\"mlp_bias\":true", false},
    {"qwen2", "", false},
    {"qwen3", "", false},
    {"olmo2", "", false},
    {"olmo2", ",\"attention_bias\":true", false},
};

static mk_gpu_image_part image_of_options(const mk_graph *graph, mk_compile_options options) {
  mk_program *program;
  mk_gpu *gpu;
  fake_gpu kernel;
  const uint32_t ranks = options.ranks, rows = options.rows;
  options.sms = 5;
  options.max_seq = 256;
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  fake_gpu_start(&kernel)->devices = 2; /* a driver is asked for their number once */
  cr_assert_eq(mk_gpu_new(program, &(mk_gpu_options){0}, &gpu), MK_OK, "%u ranks, %u rows: %s", ranks, rows,
               mk_error_message());
  const mk_gpu_image_part part = asked; /* its kernel is all that a machine loads */
  mk_gpu_free(gpu);
  mk_program_free(program);
  return part;
}

static mk_gpu_image_part image_of_graph(const mk_graph *graph, uint32_t ranks, uint32_t rows, bool sampling) {
  return image_of_options(graph, (mk_compile_options){.ranks = ranks, .rows = rows, .sampling = sampling});
}

static mk_gpu_image_part image_of(const char *type, const char *keys, uint32_t ranks, uint32_t rows, bool sampling) {
  char text[512];
  mk_config config;
  mk_graph *graph;
  snprintf(text, sizeof text,
           "{\"model_type\":\"%s\",\"hidden_size\":256,\"intermediate_size\":352,\"num_hidden_layers\":2,"
           "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":300,\"head_dim\":64,"
           "\"max_position_embeddings\":512%s}",
           type, keys);
  cr_assert_eq(mk_config_parse(text, strlen(text), &config), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  const mk_gpu_image_part part = image_of_graph(graph, ranks, rows, sampling);
  mk_graph_free(graph);
  return part;
}

/* Whatever the family. */
Test(gpu_families, quantised_weights_have_kernels_of_their_own) {
  static const mk_gpu_image_part of[2][2][2] = {
      /* several ranks, several rows, sampling */
      {{MK_GPU_IMAGE_QUANTISED, MK_GPU_IMAGE_QUANTISED_SAMPLING},
       {MK_GPU_IMAGE_ROWS_QUANTISED, MK_GPU_IMAGE_ROWS_QUANTISED_SAMPLING}},
      {{MK_GPU_IMAGE_RANKS_QUANTISED, MK_GPU_IMAGE_RANKS_QUANTISED_SAMPLING},
       {MK_GPU_IMAGE_ROWS_RANKS_QUANTISED, MK_GPU_IMAGE_ROWS_RANKS_QUANTISED_SAMPLING}}};
  mk_config config;
  mk_graph *graph;
  for (int biased = 0; biased < 2; biased++) {
    cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
    mk_synth_quantise(&config, MK_CODES_INT4, 128, MK_TENSOR_BF16, false);
    config.qkv_bias = biased != 0;
    cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
      for (uint32_t rows = 1; rows <= MK_MAX_ROWS; rows *= 4) {
        for (int sampling = 0; sampling < 2; sampling++) {
          cr_expect_eq(image_of_graph(graph, ranks, rows, sampling != 0), of[ranks > 1][rows > 1][sampling],
                       "biased %d, %u ranks, %u rows, sampling %d", biased, ranks, rows, sampling);
        }
      }
    }
    mk_graph_free(graph);
  }
}

/* Of wide steps, too. */
Test(gpu_families, wide_steps) {
  static const struct {
    uint32_t ranks, rows, slots;
    bool sampling;
    mk_gpu_image_part of[3]; /* plain, families, quantised */
  } of[] = {
      {1, 128, 1, false, {MK_GPU_IMAGE_WIDE, MK_GPU_IMAGE_WIDE_FAMILIES, MK_GPU_IMAGE_WIDE_QUANTISED}},
      {1,
       64,
       64,
       false,
       {MK_GPU_IMAGE_WIDE_SLOTS, MK_GPU_IMAGE_WIDE_SLOTS_FAMILIES, MK_GPU_IMAGE_WIDE_SLOTS_QUANTISED}},
      {1,
       64,
       64,
       true,
       {MK_GPU_IMAGE_WIDE_SLOTS_SAMPLING, MK_GPU_IMAGE_WIDE_SLOTS_FAMILIES_SAMPLING,
        MK_GPU_IMAGE_WIDE_SLOTS_QUANTISED_SAMPLING}},
      {2,
       128,
       1,
       false,
       {MK_GPU_IMAGE_WIDE_RANKS, MK_GPU_IMAGE_WIDE_RANKS_FAMILIES, MK_GPU_IMAGE_WIDE_RANKS_QUANTISED}},
      {2,
       64,
       64,
       false,
       {MK_GPU_IMAGE_WIDE_SLOTS_RANKS, MK_GPU_IMAGE_WIDE_SLOTS_RANKS_FAMILIES,
        MK_GPU_IMAGE_WIDE_SLOTS_RANKS_QUANTISED}},
  };
  enum { PLAIN, HEADS, QUANTISED, QUANTISED_BIASES, FACTORS, BIASES, NORMS_AFTER, FORMS };
  static const int kernels[FORMS] = {0, 1, 2, 2, 1, 1, 1};
  for (int form = 0; form < FORMS; form++) {
    mk_config config;
    mk_graph *graph;
    cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
    config.head_dim = 128;
    config.intermediate = 1024;
    config.qkv_bias = form == HEADS || form == QUANTISED_BIASES;
    config.qk_norm = form == HEADS ? MK_QK_NORM_HEAD : form == NORMS_AFTER ? MK_QK_NORM_ALL : MK_QK_PLAIN;
    config.norm_after = form == NORMS_AFTER;
    config.logits_scaling = form == FACTORS ? 7 : 0;
    config.mlp_bias = form == BIASES;
    if (kernels[form] == 2) {
      mk_synth_quantise(&config, MK_CODES_INT4, 128, MK_TENSOR_BF16, false);
    }
    cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
      const mk_compile_options options = {
          .ranks = of[i].ranks, .rows = of[i].rows, .slots = of[i].slots, .sampling = of[i].sampling};
      cr_expect_eq(image_of_options(graph, options), of[i].of[kernels[form]], "form %d, case %zu", form, i);
    }
    mk_graph_free(graph);
  }
}

Test(gpu_families, have_kernels_of_their_own) {
  static const mk_gpu_image_part of[2][2][2][2] = {
      /* several ranks, several rows, plain, sampling */
      {{{MK_GPU_IMAGE_FAMILIES, MK_GPU_IMAGE_FAMILIES_SAMPLING}, {MK_GPU_IMAGE_KERNEL, MK_GPU_IMAGE_SAMPLING}},
       {{MK_GPU_IMAGE_ROWS_FAMILIES, MK_GPU_IMAGE_ROWS_FAMILIES_SAMPLING},
        {MK_GPU_IMAGE_ROWS, MK_GPU_IMAGE_ROWS_SAMPLING}}},
      {{{MK_GPU_IMAGE_RANKS_FAMILIES, MK_GPU_IMAGE_RANKS_FAMILIES_SAMPLING},
        {MK_GPU_IMAGE_RANKS, MK_GPU_IMAGE_RANKS_SAMPLING}},
       {{MK_GPU_IMAGE_ROWS_RANKS_FAMILIES, MK_GPU_IMAGE_ROWS_RANKS_FAMILIES_SAMPLING},
        {MK_GPU_IMAGE_ROWS_RANKS, MK_GPU_IMAGE_ROWS_RANKS_SAMPLING}}}};
  for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
    for (uint32_t of_case = 0; of_case < 12; of_case++) {
      const uint32_t ranks = 1 + of_case / 6, rows = 1U << of_case % 3 * 2, sampling = of_case / 3 % 2;
      cr_expect_eq(image_of(families[i].type, families[i].keys, ranks, rows, sampling != 0),
                   of[ranks > 1][rows > 1][families[i].plain][sampling], "%s%s, %u ranks, %u rows, sampling %u",
                   families[i].type, families[i].keys, ranks, rows, sampling);
    }
  }
}
