/* The wide form of programs: prompts have the bits that they have token by token, whatever the shape, the rows of a
 * step, the number of SMs and the order in which things happen. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "models/llama.h"
#include "scheduler/compile.h"
#include "tests/support/effort.h"
#include "tests/support/prompts.h"
#include "vm/verify/verify.h"

TestSuite(wide_form, .timeout = MK_HANG_SECONDS);

enum { CONTEXT = 768, LENGTHS = 8 };
static const uint32_t lengths[LENGTHS] = {1, 31, 100, 128, 129, 300, 512, 700};

#define COMMON .max_position = 1024, .rms_eps = 1e-5f, .rope_theta = 10000
static const mk_config shapes[] = {
    {.hidden = 256, .intermediate = 160, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 64, .vocab = 299, COMMON},
    /* Nothing in whole tiles but the heads, and no groups. */
    {.hidden = 203, .intermediate = 331, .layers = 2, .heads = 2, .kv_heads = 2, .head_dim = 128, .vocab = 131, COMMON},
    {.hidden = 72,
     .intermediate = 1040,
     .layers = 1,
     .heads = 8,
     .kv_heads = 1,
     .head_dim = 64,
     .vocab = 77,
     .tied = true,
     COMMON},
    {.hidden = 400, .intermediate = 96, .layers = 3, .heads = 3, .kv_heads = 1, .head_dim = 128, .vocab = 513, COMMON},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct single { /* the whole prompt token by token, and logits at those lengths */
  mk_program *program;
  mk_cpu *cpu;
  float *logits;
} single;

static bool keep(void *user, uint32_t step, const uint32_t *results) {
  single *s = user;
  const uint32_t vocab = s->program->ranges.token.high + 1;
  (void)results;
  for (uint32_t i = 0; i < LENGTHS; i++) {
    if (lengths[i] == step + 1) {
      memcpy(s->logits + (size_t)i * vocab, test_prompt_logits(s->program, s->cpu, 1), vocab * sizeof *s->logits);
    }
  }
  return true;
}

static void run_single(const mk_config *config, single *s) {
  s->program = test_prompt_program(config, 3, CONTEXT, 1);
  s->cpu = test_prompt_machine(s->program, &(mk_cpu_options){.threads = 1});
  cr_assert_eq(mk_alloc((size_t)LENGTHS * config->vocab, sizeof *s->logits, &s->logits), MK_OK);
  cr_assert_eq(test_prompt_run(s->program, s->cpu, 0, lengths[LENGTHS - 1], keep, s), MK_OK, "%s", mk_error_message());
}

static void free_single(single *s) {
  mk_cpu_free(s->cpu);
  mk_program_free(s->program);
  mk_free(s->logits);
}

static void expect_prompt(const single *s, const mk_program *p, uint32_t length, uint32_t which,
                          const mk_cpu_options *options) {
  const uint32_t vocab = p->ranges.token.high + 1, rows = mk_program_rows(p);
  mk_cpu *cpu = test_prompt_machine(p, options);
  cr_assert_eq(test_prompt_run(p, cpu, 0, length, NULL, NULL), MK_OK, "%s", mk_error_message());
  const float *have = test_prompt_logits(p, cpu, length), *want = s->logits + (size_t)which * vocab;
  for (uint32_t i = 0; i < vocab; i++) {
    cr_assert(mk_float_param(have[i]) == mk_float_param(want[i]) && isfinite(want[i]),
              "%u rows, %u SMs, %u tokens: logit %u is %a, not %a", rows, p->machine.sms, length, i, (double)have[i],
              (double)want[i]);
  }
  test_prompt_expect_cache(p, cpu, s->program, s->cpu, length);
  mk_cpu_free(cpu);
}

static bool has(const mk_program *p, mk_opcode opcode) {
  for (size_t i = 0; i < p->instruction_count; i++) {
    if (p->instructions[i].opcode == opcode) {
      return true;
    }
  }
  return false;
}

static void expect_shape(const mk_config *config, uint64_t seed) {
  static const uint32_t sms[] = {1, 7, 132};
  single s;
  run_single(config, &s);
  for (uint32_t rows = MK_LINE_TILE; rows <= MK_MOST_ROWS; rows *= 2) {
    for (uint32_t i = 0; i < 3; i++) {
      mk_program *p = test_prompt_program(config, sms[i], CONTEXT, rows);
      cr_assert_eq(mk_verify(p, NULL), MK_OK, "%u rows, %u SMs: %s", rows, sms[i], mk_error_message());
      cr_assert(has(p, MK_OP_NORM) && has(p, MK_OP_APPEND) && has(p, MK_OP_ATTEND) && !has(p, MK_OP_ATTENTION));
      for (uint32_t l = 0; l < LENGTHS; l++) {
        if (test_is_quick() && (l + i + rows / MK_LINE_TILE) % 4 != 0) {
          continue;
        }
        seed++;
        const mk_cpu_options races = {.seed = seed, .adversarial = seed % 3 == 0, .check_races = true};
        const mk_cpu_options threads = {.threads = 4};
        expect_prompt(&s, p, lengths[l], l, seed % 4 == 0 ? &threads : &races);
      }
      mk_program_free(p);
    }
  }
  free_single(&s);
}

Test(wide_form, groups_of_two) { expect_shape(&shapes[0], 1); }
Test(wide_form, nothing_in_whole_tiles) { expect_shape(&shapes[1], 100); }
Test(wide_form, one_layer_and_groups_of_eight) { expect_shape(&shapes[2], 200); }
Test(wide_form, chains_that_end_early) { expect_shape(&shapes[3], 300); }
Test(wide_form, biases_and_norms_of_heads) {
  for (size_t i = 0; i < 2; i++) {
    mk_config c = shapes[i];
    c.qkv_bias = i == 0;
    c.qk_norm = MK_QK_NORM_HEAD;
    expect_shape(&c, 400 + 100 * (uint32_t)i);
  }
}

static void have_factors(mk_config *c) {
  c->embedding_multiplier = 12;
  c->residual_multiplier = 0.22;
  c->attention_multiplier = 0.1;
  c->logits_scaling = 7;
}
Test(wide_form, factors) {
  for (size_t i = 0; i < 2; i++) {
    mk_config c = shapes[i];
    have_factors(&c);
    expect_shape(&c, 600 + 100 * (uint32_t)i);
  }
}

static void have_biases(mk_config *c) {
  c->qkv_bias = true;
  c->o_bias = true;
  c->mlp_bias = true;
}
Test(wide_form, all_biases) {
  for (size_t i = 0; i < 2; i++) {
    mk_config c = shapes[1 + 2 * i];
    have_biases(&c);
    if (i == 1) {
      have_factors(&c);
    }
    expect_shape(&c, 1000 + 100 * (uint32_t)i);
  }
}

Test(wide_form, norms_after_and_over_all_heads) {
  for (size_t i = 0; i < SHAPES; i++) {
    mk_config c = shapes[i];
    c.norm_after = true;
    c.qk_norm = MK_QK_NORM_ALL;
    c.qkv_bias = i % 2 != 0;
    c.o_bias = i % 2 != 0;
    expect_shape(&c, 1200 + 100 * (uint32_t)i);
  }
}

/* The factor on sine and cosine is in attention's, or, of a part of the dims, in gains. */
Test(wide_form, stretched_rotations) {
  for (size_t i = 0; i < 2; i++) {
    mk_config c = shapes[i];
    c.rope_type = MK_ROPE_LONGROPE;
    c.rope_original_max_position = CONTEXT / 2;
    c.rope_attention = 1.2;
    c.rotary = i == 0 ? 0 : c.head_dim / 4 * 3;
    c.fused = true;
    for (uint32_t pair = 0; pair < c.head_dim / 2; pair++) {
      c.rope_short[pair] = 1;
      c.rope_long[pair] = 1 + (float)pair / 16;
    }
    expect_shape(&c, 800 + 100 * (uint32_t)i);
  }
}

/* A prompt that comes in several launches, and is not begun with a whole step. */
Test(wide_form, launch_by_launch) {
  single s;
  run_single(&shapes[0], &s);
  mk_program *p = test_prompt_program(&shapes[0], 5, CONTEXT, 2 * MK_LINE_TILE);
  mk_cpu *cpu = test_prompt_machine(p, &(mk_cpu_options){.seed = 7, .check_races = true});
  static const uint32_t counts[] = {31, 69, 200, 1, 256, 143};
  uint32_t at = 0, last = 0;
  for (uint32_t i = 0; i < sizeof counts / sizeof counts[0]; at += counts[i++]) {
    last = counts[i];
    cr_assert_eq(test_prompt_run(p, cpu, at, last, NULL, NULL), MK_OK, "%s", mk_error_message());
  }
  cr_assert_eq(at, lengths[LENGTHS - 1]);
  const float *have = test_prompt_logits(p, cpu, last), *want = s.logits + (size_t)(LENGTHS - 1) * shapes[0].vocab;
  cr_assert_eq(memcmp(have, want, shapes[0].vocab * sizeof *want), 0);
  test_prompt_expect_cache(p, cpu, s.program, s.cpu, at);
  mk_cpu_free(cpu);
  mk_program_free(p);
  free_single(&s);
}

/* A residual unit, and what is made of it, has one SM for ever. */
Test(wide_form, residual_units_have_owners) {
  mk_program *p = test_prompt_program(&shapes[3], 7, CONTEXT, MK_MOST_ROWS);
  for (uint32_t q = 0; q < p->queue_count; q++) {
    for (uint32_t i = p->queues[q].first; i < p->queues[q].first + p->queues[q].count; i++) {
      const mk_instruction *in = &p->instructions[i];
      if (in->opcode == MK_OP_NORM) {
        const mk_operand *squares = &in->operands[MK_SLOT_NORM_squares];
        cr_assert_eq((squares->col * (uint32_t)(MK_MOST_ROWS / MK_LINE_TILE) + squares->row) % 7, q);
      }
    }
  }
  mk_program_free(p);
}

static mk_status compile(const mk_config *config, mk_compile_options options, mk_program **out) {
  mk_graph *graph;
  cr_assert_eq(mk_llama_graph(config, &graph), MK_OK, "%s", mk_error_message());
  mk_status status = mk_compile(graph, &options, out);
  mk_graph_free(graph);
  return status;
}

static void expect_wide(const mk_config *config, mk_compile_options options, bool wide) {
  mk_program *p;
  options.sms = 4;
  options.max_seq = 128;
  cr_assert_eq(compile(config, options, &p), MK_OK, "%s", mk_error_message());
  cr_assert_eq(has(p, MK_OP_ATTEND), wide, "%u rows, %u slots", options.rows, options.slots);
  cr_assert_eq(has(p, MK_OP_ATTENTION), !wide);
  cr_assert_eq(mk_verify(p, NULL), MK_OK, "%s", mk_error_message());
  mk_program_free(p);
}

static size_t buffers_of(uint32_t layers, bool keep) {
  mk_config c = shapes[0];
  mk_program *p;
  c.layers = layers;
  cr_assert_eq(
      compile(&c, (mk_compile_options){.sms = 4, .max_seq = 128, .rows = 256, .slots = 1, .keep_values = keep}, &p),
      MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_verify(p, NULL), MK_OK, "%s", mk_error_message());
  size_t values = 0;
  for (size_t b = 0; b < p->buffer_count; b++) {
    values += p->buffers[b].kind == MK_KIND_ACTIVATION;
  }
  mk_program_free(p);
  return values;
}

/* Layers have the same values, where nobody wants to see them all. */
Test(wide_form, values_are_reused) {
  cr_assert_eq(buffers_of(2, false), buffers_of(5, false));
  cr_assert_gt(buffers_of(5, true), buffers_of(2, true) + 3 * 8);
}

/* Other rows, and families with other gates or gains, are as they were. */
Test(wide_form, is_of_llamas_and_their_kin) {
  mk_config c = shapes[0];
  expect_wide(&c, (mk_compile_options){.rows = 128, .slots = 1}, true);
  expect_wide(&c, (mk_compile_options){.rows = 512, .slots = 1}, true);
  expect_wide(&c, (mk_compile_options){.rows = 64}, false);
  expect_wide(&c, (mk_compile_options){.rows = 32, .slots = 1}, false);
  expect_wide(&c, (mk_compile_options){.rows = 256, .slots = 2}, true);
  c.qkv_bias = true;
  expect_wide(&c, (mk_compile_options){.rows = 128, .slots = 1}, true);
  c.qk_norm = MK_QK_NORM_HEAD;
  expect_wide(&c, (mk_compile_options){.rows = 256, .slots = 1}, true);
  c.qk_norm = MK_QK_NORM_ALL;
  expect_wide(&c, (mk_compile_options){.rows = 256, .slots = 1}, true);
  c = shapes[0];
  have_factors(&c);
  expect_wide(&c, (mk_compile_options){.rows = 128, .slots = 1}, true);
  c = shapes[0];
  have_biases(&c);
  expect_wide(&c, (mk_compile_options){.rows = 128, .slots = 1}, true);
  c = shapes[0];
  c.gelu = true;
  expect_wide(&c, (mk_compile_options){.rows = 128, .slots = 1}, false);
  c = shapes[0];
  c.norm_after = true;
  expect_wide(&c, (mk_compile_options){.rows = 128, .slots = 1}, true);
  c = shapes[0];
  c.norm_around = true;
  expect_wide(&c, (mk_compile_options){.rows = 128, .slots = 1}, true);
  c.norm_plus_one = true;
  expect_wide(&c, (mk_compile_options){.rows = 128, .slots = 1}, false);
}
