/* The comparison can fail: faults planted in the configuration, the position and the verified program must each break
 * it, on a model that passes without them. */
#include <unistd.h>

#include "tests/oracle/golden.h"

static uint32_t planted; /* instructions or fields that the hook changed */

static uint32_t last_layer(const mk_program *program) {
  uint32_t last = 0;
  for (size_t i = 0; i < program->instruction_count; i++) {
    uint32_t layer = program->instructions[i].layer;
    last = layer != MK_NO_LAYER && layer > last ? layer : last;
  }
  return last;
}

/* The next instruction of the last layer from *index on, NULL past the last one. */
static mk_instruction *next_of_last_layer(mk_program *program, size_t *index) {
  uint32_t layer = last_layer(program);
  while (*index < program->instruction_count) {
    mk_instruction *in = &program->instructions[(*index)++];
    if (in->layer == layer) {
      return in;
    }
  }
  return NULL;
}

/* Opens the golden's model, tampered with or not, and compares. */
static mk_status run(const golden *g, const char *directory, const mk_tamper *tamper, golden_result *result) {
  mk_engine *engine;
  mk_engine_options options = {.tamper = tamper};
  MK_TRY(mk_engine_open(directory, &options, &engine));
  mk_status status = golden_compare(g, engine, g->steps, result);
  mk_engine_close(engine);
  return status;
}

/* A fault must show in the comparison: an engine that refuses to run it proves nothing. */
static void expect_caught(const char *name, const char *fault, const mk_tamper *tamper) {
  golden g;
  golden_load(name, &g);
  char directory[TEST_PATH];
  golden_directory(&g, directory);
  golden_result sound, faulty;
  planted = 0;
  mk_status status = run(&g, directory, NULL, &sound);
  status = status == MK_OK ? run(&g, directory, tamper, &faulty) : status;
  golden_directory_remove(&g, directory);
  cr_assert_eq(status, MK_OK, "%s: %s", name, mk_error_message());
  golden_print(name, "(sound)", &sound);
  golden_print(name, fault, &faulty);
  cr_expect(sound.passed, "%s: %s", name, sound.why);
  cr_expect(tamper->position_shift != 0 || planted != 0, "%s: the hook found nothing to change", fault);
  cr_expect_not(faulty.passed, "%s goes unnoticed on %s", fault, name);
  cr_expect_gt(faulty.wrong_logits, 0, "%s: no step has wrong logits on %s", fault, name);
  golden_free(&g);
}

static void lose_rope_scaling(mk_config *config) {
  planted += config->rope_type == MK_ROPE_LLAMA3;
  config->rope_type = MK_ROPE_DEFAULT;
}

Test(faults, no_rope_scaling) {
  expect_caught("d64_g2_tied_scaled", "no rope scaling", &(mk_tamper){.config = lose_rope_scaling});
}

/* Rotations see differences of positions alone; what shows is the empty slot that a run from position 1 attends to. */
Test(faults, position_plus_one) { expect_caught("d128_g4_tied", "position + 1", &(mk_tamper){.position_shift = 1}); }

/* Attention of each KV head of the last layer takes the new key and value of the next one. */
static void swap_kv_heads(mk_program *program) {
  size_t index = 0;
  for (mk_instruction *in; (in = next_of_last_layer(program, &index)) != NULL;) {
    if (in->opcode == MK_OP_ATTENTION) {
      const mk_operand *kv = &in->operands[MK_SLOT_ATTENTION_kv];
      mk_operand *k = &in->operands[MK_SLOT_ATTENTION_k], *v = &in->operands[MK_SLOT_ATTENTION_v];
      uint32_t head = kv->col, other = (head + 1) % program->buffers[kv->buffer].cols;
      planted += other != head;
      k->col = (uint16_t)(k->col + (other - head) * k->cols);
      v->col = (uint16_t)(v->col + (other - head) * v->cols);
    }
  }
}

Test(faults, wrong_kv_head) {
  expect_caught("d64_g2_tied_scaled", "wrong kv head", &(mk_tamper){.program = swap_kv_heads});
}

/* 1 / sqrt(sum / width + eps) becomes 1. */
static void skip_norm(mk_program *program) {
  size_t index = 0;
  for (mk_instruction *in; (in = next_of_last_layer(program, &index)) != NULL;) {
    if (in->opcode == MK_OP_GLU) {
      in->params[MK_PARAM_GLU_eps] = mk_float_param(1.0f);
      in->params[MK_PARAM_GLU_width] = UINT32_MAX;
      planted++;
    }
  }
}

Test(faults, norm_skipped) { expect_caught("d64_g3_tied", "norm skipped", &(mk_tamper){.program = skip_norm}); }

/* What attention adds to in the last layer has no columns, so nothing is there to add to: y = 0 + W x. */
static void lose_residual(mk_program *program) {
  char mid[64];
  snprintf(mid, sizeof mid, "layers.%u.mid", last_layer(program));
  size_t index = 0;
  for (mk_instruction *in; (in = next_of_last_layer(program, &index)) != NULL;) {
    bool whole = in->opcode == MK_OP_LINEAR_ADD;
    if (!whole && in->opcode != MK_OP_REDUCE_ADD) {
      continue;
    }
    uint32_t out = whole ? MK_SLOT_LINEAR_ADD_out : MK_SLOT_REDUCE_ADD_out;
    uint32_t residual = whole ? MK_SLOT_LINEAR_ADD_residual_in : MK_SLOT_REDUCE_ADD_residual_in;
    if (strcmp(program->buffers[in->operands[out].buffer].name, mid) == 0) {
      in->operands[residual].cols = 0;
      planted++;
    }
  }
}

Test(faults, residual_lost) { expect_caught("d64_g2_scaled", "residual lost", &(mk_tamper){.program = lose_residual}); }

/* One step whose logits are the oracle's times `scale`, element `broken` replaced by `value`, and another token by
 * `shift`. */
static golden_result judge(const golden *g, float scale, uint32_t broken, float value, uint32_t shift) {
  golden_result result = {.passed = true};
  golden_run step = {.golden = g, .result = &result, .steps = 1};
  uint32_t vocab = g->config.vocab;
  float *logits = malloc(vocab * sizeof *logits);
  cr_assert_not_null(logits);
  for (uint32_t i = 0; i < vocab; i++) {
    logits[i] = i == broken ? value : g->logits[i] * scale;
  }
  golden_step(&step, (g->tokens[g->prompt_count] + shift) % vocab, logits);
  golden_judge(g, &result);
  free(logits);
  return result;
}

Test(faults, comparison_of_one_step) {
  golden g;
  golden_load("d64_g1_plain", &g);
  uint32_t none = UINT32_MAX, last = g.config.vocab - 1;
  cr_expect(judge(&g, 1.0f, none, 0, 0).passed);
  g.bf16_error = INFINITY; /* the fixed limit alone */
  cr_expect(judge(&g, 1.009f, none, 0, 0).passed);
  cr_expect_not(judge(&g, 1.011f, none, 0, 0).passed, "an error above the limit passes");
  cr_expect_not(judge(&g, 1.0f, last, NAN, 0).passed, "NaN passes");
  cr_expect_not(judge(&g, 1.0f, last, INFINITY, 0).passed, "infinity passes");
  cr_expect_not(judge(&g, 1.0f, none, 0, 1).passed, "a token that is not the arg-max passes");
  g.bf16_error = 4e-3;
  cr_expect(judge(&g, 1.0039f, none, 0, 0).passed);
  cr_expect_not(judge(&g, 1.0041f, none, 0, 0).passed, "an error above that of transformers in bf16 passes");
  g.bf16_error = NAN;
  cr_expect_not(judge(&g, 1.0f, none, 0, 0).passed, "a golden without an error of transformers in bf16 passes");
  golden_free(&g);
}

/* The golden d64_g1_plain in a folder of its own, whose bf16_errors.txt has these lines (NULL: there is none). */
static double read_bf16_error(const char *lines) {
  char folder[] = "/tmp/mkvm_bf16_XXXXXX", link[64], list[64];
  const char *why;
  golden g;
  cr_assert_not_null(mkdtemp(folder));
  snprintf(link, sizeof link, "%s/golden.bin", folder);
  snprintf(list, sizeof list, "%s/" GOLDEN_BF16_FILE, folder);
  cr_assert_eq(symlink(GOLDEN_FOLDER "/d64_g1_plain.bin", link), 0);
  FILE *file = lines != NULL ? fopen(list, "w") : NULL;
  if (file != NULL) {
    cr_assert(fputs(lines, file) >= 0);
    cr_assert_eq(fclose(file), 0);
    cr_assert(golden_file_read(link, &g, &why), "%s", why);
    cr_assert_eq(unlink(list), 0);
  } else {
    cr_assert(golden_file_read(link, &g, &why), "%s", why);
  }
  double error = g.bf16_error;
  golden_free(&g);
  cr_assert_eq(unlink(link), 0);
  cr_assert_eq(rmdir(folder), 0);
  return error;
}

Test(faults, bf16_errors_are_read_by_name) {
  cr_expect_eq(read_bf16_error(NULL), INFINITY, "without the file there is no such limit");
  cr_expect_eq(read_bf16_error("# name\nd64_g1_plainer 1e-3 1e-2\nd64_g1_plain             5.1250e-03 7.5e-03\n"),
               5.125e-3);
  static const char *const bad[] = {"",
                                    "# d64_g1_plain 1e-3 2e-3\n",
                                    "d64_g1_plainer 1e-3 2e-3\n",
                                    "d64_g1 1e-3 2e-3\n",
                                    "d64_g1_plain\n",
                                    "d64_g1_plain x 2e-3\n",
                                    "d64_g1_plain 0 0\n",
                                    "d64_g1_plain -1e-3 2e-3\n",
                                    "d64_g1_plain inf inf\n",
                                    "d64_g1_plain nan nan\n"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    cr_expect(isnan(read_bf16_error(bad[i])), "`%s` gives a limit", bad[i]);
  }
}

/* Every attention that has a window sees `planted_window` tokens more; 0: all. */
static uint32_t planted_window;
static void widen_windows(mk_program *program) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    mk_instruction *in = &program->instructions[i];
    if (in->opcode == MK_OP_ATTENTION && in->params[MK_PARAM_ATTENTION_window] != 0) {
      in->params[MK_PARAM_ATTENTION_window] = planted_window == 0 ? 0 : in->params[MK_PARAM_ATTENTION_window] + 1;
      planted++;
    }
  }
}

Test(faults, no_window) { expect_caught("families/mistral_8", "no window", &(mk_tamper){.program = widen_windows}); }

Test(faults, a_window_of_one_token_more) {
  planted_window = 1;
  expect_caught("families/gemma3_2", "a window of one token more", &(mk_tamper){.program = widen_windows});
}

static void take_silu(mk_program *program) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    mk_instruction *in = &program->instructions[i];
    planted += in->opcode == MK_OP_GLU && in->params[MK_PARAM_GLU_gelu] != 0;
    in->params[MK_PARAM_GLU_gelu] = in->opcode == MK_OP_GLU ? 0 : in->params[MK_PARAM_GLU_gelu];
  }
}

Test(faults, silu_for_gelu) { expect_caught("families/gemma3_2", "SiLU for GELU", &(mk_tamper){.program = take_silu}); }

static void rotate_all_alike(mk_config *config) {
  planted += config->rope_local_theta != config->rope_theta;
  config->rope_local_theta = config->rope_theta;
}

Test(faults, one_rotation_for_all_layers) {
  expect_caught("families/gemma3_2", "one rotation for all layers", &(mk_tamper){.config = rotate_all_alike});
}

/* Of one norm of the last layer. */
static void lose_plus(mk_program *program) {
  size_t index = 0;
  for (mk_instruction *in; (in = next_of_last_layer(program, &index)) != NULL;) {
    if (in->opcode == MK_OP_GLU) {
      planted += in->params[MK_PARAM_GLU_plus] != 0;
      in->params[MK_PARAM_GLU_plus] = 0;
    }
  }
}

Test(faults, a_gain_of_w) { expect_caught("families/gemma3_2", "a gain of w", &(mk_tamper){.program = lose_plus}); }
