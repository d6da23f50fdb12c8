/* Programs of the other families: sound in every number of rows, and refused once an optional part of them does not
 * fit. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "models/llama.h"
#include "scheduler/compile.h"
#include "vm/verify/verify.h"

static mk_program *compile(const char *type, const char *keys, uint32_t rows) {
  char text[512];
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  snprintf(text, sizeof text,
           "{\"model_type\":\"%s\",\"hidden_size\":250,\"intermediate_size\":344,\"num_hidden_layers\":2,"
           "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"vocab_size\":300,\"head_dim\":64,"
           "\"max_position_embeddings\":2048%s}",
           type, keys);
  cr_assert_eq(mk_config_parse(text, strlen(text), &config), MK_OK, "%s", mk_error_message());
  mk_config_set_context(&config, 600);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  const mk_compile_options options = {.sms = 5, .max_seq = 600, .rows = rows};
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

static const struct {
  const char *type, *keys;
} families[] = {
    {"llama", ""},
    {"llama", ",\"attention_bias\":true"},
    {"llama", ",\"mlp_bias\":true"},
    {"qwen2", ""},
    {"qwen3", ""},
    {"mistral", ",\"sliding_window\":null"},
    {"mistral", ",\"sliding_window\":100"},
    {"qwen3", ",\"use_sliding_window\":true,\"sliding_window\":33,\"max_window_layers\":1"},
    {"granite", ",\"embedding_multiplier\":12,\"residual_multiplier\":0.2,\"logits_scaling\":8"},
    {"granite", ",\"logits_scaling\":8"},
    {"smollm3", ",\"no_rope_layer_interval\":2"},
    {"phi3", ""},
    {"olmo2", ""},
    {"gemma3_text", ",\"sliding_window\":100"},
    {"gemma3_text", ",\"sliding_window_pattern\":2,\"attention_bias\":true"},
};

Test(family_programs, are_sound) {
  static const uint32_t rows[] = {1, 2, 16, 64};
  for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
      mk_program *program = compile(families[i].type, families[i].keys, rows[r]);
      cr_expect_eq(mk_verify(program, NULL), MK_OK, "%s%s, %u rows: %s", families[i].type, families[i].keys, rows[r],
                   mk_error_message());
      mk_program_free(program);
    }
  }
}

static mk_instruction *first(mk_program *program, mk_opcode opcode) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    if (program->instructions[i].opcode == opcode) {
      return &program->instructions[i];
    }
  }
  cr_assert_fail("no such instruction");
  return NULL;
}

#define REJECTS(name, of, with, by, said, edit)                                     \
  Test(family_rules, name) {                                                        \
    mk_program *p = compile(of, with, 1);                                           \
    mk_verify_report report;                                                        \
    edit;                                                                           \
    cr_assert_eq(mk_verify(p, &report), MK_ERR_REJECTED);                           \
    cr_expect_str_eq(report.rule, by, "%s", mk_error_message());                    \
    cr_expect_not_null(strstr(mk_error_message(), said), "%s", mk_error_message()); \
    mk_program_free(p);                                                             \
  }
#define PARAM(NAME, field) first(p, MK_OP_##NAME)->params[MK_PARAM_##NAME##_##field]
#define OPERAND(NAME, field) first(p, MK_OP_##NAME)->operands[MK_SLOT_##NAME##_##field]

REJECTS(unknown_extras, "qwen2", "", "S09", "extras is 8", PARAM(QKV, extras) = 8)
REJECTS(biases_that_are_not_there, "llama", "", "S10", "inv_freq: number of columns is 32", PARAM(QKV, extras) = 1)
REJECTS(vectors_that_are_too_long, "qwen3", "", "S10", "inv_freq: number of columns", PARAM(QKV, extras) = 4)
REJECTS(squares_in_narrow_tiles, "qwen2", "", "S10", "out: tile width is 16", PARAM(QKV, extras) = 5)
REJECTS(values_in_wide_tiles, "qwen3", "", "S10", "out: ", PARAM(QKV, extras) = 2)
REJECTS(heads_normed_without_squares, "llama", "", "S10", "q: tile width is 16",
        PARAM(ATTENTION, eps) = mk_float_param(1e-5f))
REJECTS(squares_taken_for_values, "qwen3", "", "S10", "q: number of columns", PARAM(ATTENTION, eps) = 0)
REJECTS(negative_eps_of_heads, "qwen3", "", "S09", "eps is -1", PARAM(ATTENTION, eps) = mk_float_param(-1))
REJECTS(norm_without_gain, "llama", "", "S09", "eps is", OPERAND(QKV, gain) = (mk_operand){0})
REJECTS(gain_without_norm, "olmo2", "", "S09", "width is 250", PARAM(GLU, width) = 250)
REJECTS(glu_biased_twice, "llama", ",\"mlp_bias\":true", "S09", "biased is 2", PARAM(GLU, biased) = 2)
REJECTS(glu_without_its_biases, "llama", ",\"mlp_bias\":true", "S09", "width is 250", PARAM(GLU, biased) = 0)
REJECTS(factor_of_nan, "granite", ",\"logits_scaling\":8", "S09", "factor is nan", PARAM(HEAD, factor) = 0x7fc00000)
REJECTS(offset_elsewhere, "llama", ",\"mlp_bias\":true", "S10", "residual_in: first column",
        OPERAND(OFFSET, residual_out).col += 1)
REJECTS(norm_of_half_a_sum, "olmo2", "", "S10", "parts: number of columns", OPERAND(NORM_ADD, parts).cols -= 1)
REJECTS(norm_add_of_another_width, "olmo2", "", "S09", "width is 240", PARAM(NORM_ADD, width) = 240)
REJECTS(no_query_tiles, "olmo2", "", "S09", "query_tiles is 0", PARAM(NORM_HEADS, query_tiles) = 0)
REJECTS(more_keys_than_tiles, "olmo2", "", "S09", "key_tiles is 99", PARAM(NORM_HEADS, key_tiles) = 99)
REJECTS(gelu_twice, "gemma3_text", "", "S09", "gelu is 2", PARAM(GLU, gelu) = 2)
REJECTS(negative_plus, "gemma3_text", "", "S09", "plus is -1", PARAM(QKV, plus) = mk_float_param(-1))
REJECTS(plus_of_nan, "gemma3_text", "", "S09", "plus is nan", PARAM(NORM_ADD, plus) = 0x7fc00000)
REJECTS(infinite_plus, "gemma3_text", "", "S09", "plus is inf", PARAM(HEAD, plus) = 0x7f800000)
REJECTS(plus_without_gain, "olmo2", "", "S09", "it must be 0 where there is no gain",
        PARAM(GLU, plus) = mk_float_param(1))
REJECTS(heads_of_512, "gemma3_text", "", "S09", "it must be 64, 128 or 256", PARAM(QKV, head_dim) = 512)
REJECTS(heads_of_half_the_values, "olmo2", "", "S10", "values", OPERAND(NORM_HEADS, values).cols -= 1)

/* The factor of a stretched rotation, squared, is in attention's own: not where nothing rotates. */
Test(family_programs, stretched_rotation_scales_layers_that_rotate) {
  mk_program *p = compile("smollm3",
                          ",\"no_rope_layers\":[1,0],\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,"
                          "\"attention_factor\":2}",
                          1);
  for (size_t i = 0; i < p->instruction_count; i++) {
    const mk_instruction *in = &p->instructions[i];
    if (in->opcode == MK_OP_ATTENTION) {
      cr_expect_eq(mk_param_float(in->params[MK_PARAM_ATTENTION_scale]), in->layer == 0 ? 0.5f : 0.125f);
    }
  }
  mk_program_free(p);
}

/* What the layers of a program see, as far as its attention has a window. */
static void expect_windows(const char *type, const char *keys, uint32_t rows, uint32_t first, uint32_t second) {
  const uint32_t want[2] = {first, second};
  mk_program *p = compile(type, keys, rows);
  uint32_t found = 0;
  for (size_t i = 0; i < p->instruction_count; i++) {
    const mk_instruction *in = &p->instructions[i];
    if (in->opcode == MK_OP_ATTENTION || in->opcode == MK_OP_ATTEND) {
      const uint32_t window =
          in->params[in->opcode == MK_OP_ATTENTION ? MK_PARAM_ATTENTION_window : MK_PARAM_ATTEND_window];
      cr_expect_eq(window, want[in->layer], "%s%s, %u rows, layer %u: %u", type, keys, rows, in->layer, window);
      found |= 1U << in->layer;
    }
  }
  cr_expect_eq(found, 3);
  mk_program_free(p);
}

Test(family_programs, layers_have_their_windows) {
  static const uint32_t rows[] = {1, 4, 16, 64, 256};
  for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
    expect_windows("mistral", ",\"sliding_window\":100", rows[r], 100, 100);
    expect_windows("ministral", ",\"sliding_window\":7,\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
                   rows[r], 0, 7);
    expect_windows("mistral", ",\"sliding_window\":600", rows[r], 0, 0); /* the whole context */
  }
}

/* Programs of models with windows are other programs, by their hash, as long as the window counts. */
Test(family_programs, windows_are_in_the_hash) {
  mk_program *p[] = {compile("mistral", ",\"sliding_window\":null", 1),
                     compile("mistral", ",\"sliding_window\":600", 1), compile("mistral", ",\"sliding_window\":100", 1),
                     compile("mistral", ",\"sliding_window\":101", 1)};
  cr_expect_eq(p[0]->config_hash, p[1]->config_hash);
  cr_expect_neq(p[0]->config_hash, p[2]->config_hash);
  cr_expect_neq(p[2]->config_hash, p[3]->config_hash);
  for (size_t i = 0; i < 4; i++) {
    mk_program_free(p[i]);
  }
}

/* All gains of a Gemma are 1 + what the checkpoint has. */
Test(family_programs, gemma3_adds_one_to_every_gain) {
  mk_program *p = compile("gemma3_text", ",\"sliding_window\":100,\"sliding_window_pattern\":2", 1);
  uint32_t found = 0;
  for (size_t i = 0; i < p->instruction_count; i++) {
    const mk_instruction *in = &p->instructions[i];
    switch (in->opcode) {
      case MK_OP_QKV:
        cr_expect_eq(in->params[MK_PARAM_QKV_plus], mk_float_param(1));
        found |= 1;
        break;
      case MK_OP_GLU:
        cr_expect(in->params[MK_PARAM_GLU_plus] == mk_float_param(1) && in->params[MK_PARAM_GLU_gelu] == 1);
        found |= 2;
        break;
      case MK_OP_HEAD:
        cr_expect_eq(in->params[MK_PARAM_HEAD_plus], mk_float_param(1));
        found |= 4;
        break;
      case MK_OP_NORM_ADD:
        cr_expect_eq(in->params[MK_PARAM_NORM_ADD_plus], mk_float_param(1));
        found |= 8;
        break;
      case MK_OP_ATTENTION:
        cr_expect_eq(in->params[MK_PARAM_ATTENTION_window], in->layer == 0 ? 100 : 0);
        found |= 16;
        break;
      default:
        break;
    }
  }
  cr_expect_eq(found, 31);
  mk_program_free(p);
}

Test(family_programs, heads_of_256_have_no_cache_in_fp8) {
  static const char text[] = "{\"model_type\":\"gemma3_text\",\"num_attention_heads\":4,\"num_hidden_layers\":1}";
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  cr_assert_eq(mk_config_parse(text, sizeof text - 1, &config), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  const mk_compile_options options = {.sms = 5, .max_seq = 64, .kv = MK_DTYPE_E4M3};
  cr_assert_eq(mk_compile(graph, &options, &program), MK_ERR_USAGE);
  cr_expect_not_null(strstr(mk_error_message(), "heads of 256: those of 64 and 128 alone have it"), "%s",
                     mk_error_message());
  mk_graph_free(graph);
}
