/* What sets other families apart, piece by piece, on the GPU: every instruction of one row, of several and of wide
 * steps beside its plain C reference; the same bits alone, in company and in repeated launches, and with one row; what
 * stands still, by name. Beside these the goldens of the families (golden_gpu.c). */
#include <stdio.h>

#include "models/synth.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/shape.h"

static void have_qkv_biases(mk_config *config) { config->qkv_bias = true; }

static void have_all_biases(mk_config *config) {
  config->qkv_bias = true;
  config->o_bias = true;
  config->mlp_bias = true;
}

static void norm_heads(mk_config *config) { config->qk_norm = MK_QK_NORM_HEAD; }

static void norm_biased_heads(mk_config *config) {
  config->qk_norm = MK_QK_NORM_HEAD;
  have_all_biases(config);
}

static void have_factors(mk_config *config) {
  config->embedding_multiplier = 12;
  config->residual_multiplier = 0.22;
  config->attention_multiplier = 0.1;
  config->logits_scaling = 7;
}

static void have_factors_and_biases(mk_config *config) {
  have_factors(config);
  have_all_biases(config);
}

static void leave_unrotated(mk_config *config) { config->unrotated[0] = 1; }

static void rotate_partly(mk_config *config) {
  config->fused = true;
  config->rotary = config->head_dim / 4 * 3;
  config->rope_attention = 1.2;
}

static void norm_after(mk_config *config) {
  config->norm_after = true;
  config->qk_norm = MK_QK_NORM_ALL;
}

static void norm_biased_after(mk_config *config) {
  norm_after(config);
  config->qkv_bias = true;
  config->o_bias = true;
}

typedef struct family {
  const char *name;
  void (*change)(mk_config *config);
  mk_opcode late[4];      /* of its own, that keep their results to themselves; MK_OP_NONE: the end */
  mk_opcode wide_late[4]; /* the same in wide steps */
} family;

/* From the least to the most, so that the first failure is the one to look at. */
static const family families[] = {
    {"a layer without rotation", leave_unrotated, {MK_OP_NONE}, {MK_OP_NONE}},
    {"factors", have_factors, {MK_OP_HEAD, MK_OP_NONE}, {MK_OP_NONE}},
    {"biases of q, k and v", have_qkv_biases, {MK_OP_QKV, MK_OP_NONE}, {MK_OP_NONE}},
    {"all biases", have_all_biases, {MK_OP_GLU, MK_OP_NONE}, {MK_OP_NONE}},
    {"factors and biases", have_factors_and_biases, {MK_OP_NONE}, {MK_OP_NONE}},
    {"fused tensors, partly rotated", rotate_partly, {MK_OP_NONE}, {MK_OP_NONE}},
    {"norms of heads", norm_heads, {MK_OP_QKV, MK_OP_ATTENTION, MK_OP_NONE}, {MK_OP_NONE}},
    {"norms of heads, all biases", norm_biased_heads, {MK_OP_NONE}, {MK_OP_NONE}},
    {"norms after",
     norm_after,
     {MK_OP_NORM_HEADS, MK_OP_NORM_ADD, MK_OP_LINEAR_PART, MK_OP_NONE},
     {MK_OP_NORM_HEADS, MK_OP_SQUARES, MK_OP_ADD_NORMED, MK_OP_NONE}},
    {"norms after, with biases", norm_biased_after, {MK_OP_NONE}, {MK_OP_NONE}},
};

/* Heads of 64 and 128 dims, sums of more than one round of chains; the last one has nothing that divides by 16 but the
 * heads. */
static const shape shapes[] = {
    {"64 dims", 512, 1024, 8, 2, 64, 2, 600, NULL},
    {"128 dims, wide", 2560, 2304, 8, 4, 128, 2, 600, NULL},
    {"odd", 203, 331, 3, 1, 128, 2, 600, NULL},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* All ways to sample, with the most that a family of heads that are normed and one of norms after have. */
static void test_draws_of_families(void) {
  static const struct {
    const char *name;
    void (*change)(mk_config *config);
  } drawn[] = {{"tiny, norms of heads, all biases", norm_biased_heads}, {"tiny, norms after", norm_biased_after}};
  for (size_t i = 0; i < sizeof drawn / sizeof drawn[0]; i++) {
    mk_config config;
    if (expect_ok(mk_synth_shape("tiny", &config), drawn[i].name)) {
      drawn[i].change(&config);
      test_draws_of(drawn[i].name, &config);
    }
  }
}

void test_families(bool quick) {
  for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
    char name[96];
    for (size_t i = 0; i < SHAPES; i++) {
      shape s = shapes[i];
      snprintf(name, sizeof name, "%s, %s", families[f].name, shapes[i].name);
      s.name = name;
      s.change = families[f].change;
      test_one_row_of(&s);
      if (!quick || i != 1) {
        test_rows_of(&s, families[f].late, quick);
      }
      if ((!quick || i != 1) && has_wide_steps(&s)) {
        test_prompts_of(&s, i == 0 ? MK_MOST_ROWS : MK_WIDE_ROWS, quick);
        test_many_of(&s, i == 0 ? 64 : 128, quick);
        if (i == 0) {
          test_late_of(&s, 64, families[f].wide_late);
        }
      }
    }
  }
  test_draws_of_families();
}
