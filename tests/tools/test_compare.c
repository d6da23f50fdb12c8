/* The differ: a sound machine passes, and one planted fault is found at the instruction that made it. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "instructions/reference.h"
#include "instructions/sampling.h"
#include "tests/support/page.h"
#include "tests/support/text.h"
#include "tools/lib/compare.h"

enum { STEPS = 6, PROMPT = 3 };

/* Small, with splits of attention, a K split and rows that do not fill their tiles. */
static const mk_config kConfig = {.hidden = 136,
                                  .intermediate = 2100,
                                  .layers = 2,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 64,
                                  .vocab = 300,
                                  .max_position = 64,
                                  .rms_eps = 1e-5f,
                                  .rope_theta = 10000.0};
static const uint32_t kPrompt[PROMPT] = {5, 17, 250};

/* sampling: NULL: greedy. */
static mk_engine *open_drawing(const mk_sampling *sampling, uint32_t rows) {
  mk_engine *engine;
  mk_engine_options options = {
      .device = "cpu", .synth = &kConfig, .synth_seed = 3, .max_seq = 32, .sms = 7, .rows = rows, .sampling = sampling};
  cr_assert_eq(mk_engine_open(NULL, &options, &engine), MK_OK, "%s", mk_error_message());
  return engine;
}

static mk_engine *open_engine(void) { return open_drawing(NULL, 0); }

static bool count(void *user, uint32_t position, uint32_t token, bool generated) {
  (void)token;
  cr_assert_eq(generated, position + 1 >= PROMPT);
  ++*(int *)user;
  return true;
}

Test(compare, a_sound_machine_passes) {
  mk_engine *machine = open_engine(), *oracle = open_engine();
  mk_compare *compare;
  int steps = 0;
  cr_assert_eq(mk_compare_generate(machine, oracle, kPrompt, PROMPT, STEPS, count, &steps, &compare), MK_OK, "%s",
               mk_error_message());
  cr_assert_eq(steps, PROMPT - 1 + STEPS);
  const mk_opcode used[] = {MK_OP_QKV,        MK_OP_ATTENTION, MK_OP_COMBINE, MK_OP_LINEAR_PART,
                            MK_OP_REDUCE_ADD, MK_OP_GLU,       MK_OP_HEAD,    MK_OP_NEXT};
  for (size_t i = 0; i < sizeof used / sizeof used[0]; i++) {
    const mk_compare_row *row = &mk_compare_rows(compare)[used[i]];
    cr_expect(row->outputs > 0, "%s was never compared", mk_opcode_lookup(used[i])->name);
    cr_expect(row->worst == 0, "%s: the same code on the same inputs differs", mk_opcode_lookup(used[i])->name);
  }
  mk_compare_free(compare);
  mk_engine_close(machine);
  mk_engine_close(oracle);
}

/* A rank stores to those that read, so that no copy of a value is whole. */
Test(compare, ranks_pass_too) {
  for (uint32_t ranks = 2; ranks <= 3; ranks++) {
    const mk_engine_options options = {.device = "cpu",
                                       .synth = &kConfig,
                                       .synth_seed = 3,
                                       .max_seq = 32,
                                       .sms = 3,
                                       .ranks = ranks,
                                       .interleave_seed = 5,
                                       .adversarial = ranks == 3};
    mk_engine *machine, *oracle;
    mk_compare *compare;
    int steps = 0;
    cr_assert_eq(mk_engine_open(NULL, &options, &machine), MK_OK, "%s", mk_error_message());
    cr_assert_eq(mk_engine_open(NULL, &options, &oracle), MK_OK, "%s", mk_error_message());
    cr_assert_eq(mk_compare_generate(machine, oracle, kPrompt, PROMPT, STEPS, count, &steps, &compare), MK_OK, "%s",
                 mk_error_message());
    cr_expect_eq(steps, PROMPT - 1 + STEPS);
    for (uint32_t op = 0; op < MK_OP_COUNT; op++) {
      cr_expect_eq(mk_compare_rows(compare)[op].worst, 0, "%u ranks: %s", ranks, mk_opcode_lookup(op)->name);
    }
    mk_compare_free(compare);
    mk_engine_close(machine);
    mk_engine_close(oracle);
  }
}

static const mk_sampling kDrawn[] = {
    {.top_p = 1, .repetition = 1, .temperature = 1, .seed = 1},
    {.top_p = 1, .repetition = 1, .temperature = 1, .min_p = 0.3, .seed = 2},
    {.top_p = 1, .repetition = 1, .temperature = 1, .top_k = 7, .seed = 3},
    {.top_p = 0.8, .repetition = 1.2, .temperature = 1, .top_k = 40, .min_p = 0.01, .frequency = 0.5, .seed = 4},
    {.top_p = 1, .repetition = 1.4, .presence = 0.3},
};

/* Two slots that choose and one in the middle of a chunk, of which each has the parameters of its own. */
static void draw_steps(const mk_sampling *sampling, uint32_t rows) {
  mk_engine *machine = open_drawing(sampling, rows), *oracle = open_drawing(sampling, rows);
  mk_compare *compare;
  uint32_t results[4];
  size_t index = (size_t)mk_program_find_buffer(mk_engine_program(machine), "block_table");
  const mk_buffer *table = &mk_engine_program(machine)->buffers[index];
  for (uint32_t i = 0; i < table->rows * table->cols; i++) { /* a block for each entry */
    ((uint32_t *)(void *)mk_cpu_memory(mk_engine_cpu(machine), index))[i] = i;
  }
  cr_assert_eq(mk_compare_engines(machine, oracle, &compare), MK_OK, "%s", mk_error_message());
  for (uint32_t step = 0; step < STEPS; step++) {
    mk_step_row plan[4] = {{0}};
    for (uint32_t i = 0; i < rows; i++) {
      uint32_t slot = i == 3 ? 2 : i, position = i < 2 ? step : 2 * step + i - 2;
      plan[i] = (mk_step_row){.slot = slot,
                              .position = position,
                              .token = (37 * step + 11 * i) % kConfig.vocab,
                              .flags = MK_ROW_ACTIVE | (i != 2 ? (uint32_t)MK_ROW_CHOOSES : (uint32_t)MK_ROW_PROMPT)};
    }
    cr_assert_eq(mk_compare_step(compare, plan, results), MK_OK, "%s", mk_error_message());
  }
  const mk_compare_row *compared = mk_compare_rows(compare);
  cr_expect(compared[MK_OP_SCORE].outputs > 0 && compared[MK_OP_DRAW].outputs > 0, "draws were never compared");
  mk_compare_free(compare);
  mk_engine_close(machine);
  mk_engine_close(oracle);
}

Test(compare, a_sound_machine_that_draws_passes) {
  for (size_t i = 0; i < sizeof kDrawn / sizeof kDrawn[0]; i++) {
    draw_steps(&kDrawn[i], 1);
    draw_steps(&kDrawn[i], 4);
  }
}

/* A machine that runs right and then has one number of one buffer changed. */
typedef struct faulty {
  mk_engine *engine;
  size_t buffer;
  size_t word; /* 32-bit */
  uint32_t flip;
  bool stepped; /* nothing is wrong before */
} faulty;

static bool keep_choice(void *user, uint32_t step, const uint32_t *results) {
  (void)step;
  *(uint32_t *)user = results[0];
  return true;
}

static mk_status step(void *user, const mk_step_row *rows, uint32_t *results) {
  faulty *f = user;
  f->stepped = true;
  return mk_cpu_run_plan(mk_engine_cpu(f->engine), rows, 1, keep_choice, results);
}

static mk_status read_memory(void *user, size_t buffer, void *data, uint64_t bytes) {
  faulty *f = user;
  memcpy(data, mk_cpu_memory(mk_engine_cpu(f->engine), buffer), bytes);
  if (f->stepped && buffer == f->buffer) {
    uint32_t *words = data;
    words[f->word] ^= f->flip;
  }
  return MK_OK;
}

static uint32_t generation(void *user) { return mk_cpu_generation(mk_engine_cpu(((faulty *)user)->engine)); }

/* Whether docs/DEBUGGING.md shows this message. */
static bool is_on_page(const char *message) {
  char *page = test_read_file(MK_SOURCE_DIR "/docs/DEBUGGING.md"), *told = strdup(message);
  test_page_normalize(page);
  test_page_normalize(told);
  bool found = strstr(page, told) != NULL;
  free(page);
  free(told);
  return found;
}

static void expect_found_in(const mk_sampling *sampling, const char *buffer, size_t word, uint32_t flip,
                            const char *words) {
  mk_engine *machine = open_drawing(sampling, 0), *oracle = open_drawing(sampling, 0);
  const mk_program *program = mk_engine_program(machine);
  int index = mk_program_find_buffer(program, buffer);
  cr_assert_geq(index, 0, "no buffer %s", buffer);
  faulty fault = {.engine = machine, .buffer = (size_t)index, .word = word, .flip = flip};
  uint8_t *weights[512];
  cr_assert_lt(program->buffer_count, sizeof weights / sizeof weights[0]);
  for (size_t b = 0; b < program->buffer_count; b++) {
    weights[b] = mk_cpu_memory(mk_engine_cpu(oracle), b);
  }
  mk_compare_source source = {.step = step, .read = read_memory, .generation = generation, .user = &fault};
  mk_compare *compare;
  uint32_t next;
  mk_step_row row;
  mk_plan_sequence(&row, 1, 0, kPrompt, 1, MK_ROW_PROMPT);
  cr_assert_eq(mk_compare_new(program, weights, &source, &compare), MK_OK);
  cr_expect_eq(mk_compare_step(compare, &row, &next), MK_ERR_DEVICE, "%s: the fault passed", buffer);
  cr_expect_not_null(strstr(mk_error_message(), words), "%s: the message does not say \"%s\": %s", buffer, words,
                     mk_error_message());
  mk_compare_free(compare);
  mk_engine_close(machine);
  mk_engine_close(oracle);
}

static void expect_found(const char *buffer, size_t word, uint32_t flip, const char *words) {
  expect_found_in(NULL, buffer, word, flip, words);
}

/* Words of a stamped buffer are 64 bits, data first; bits 30 and 14 are exponents. */
Test(compare, a_wrong_q_is_named) {
  expect_found("layers.1.qkv_out", 2 * 9, 1u << 30, "(qkv, layer 1): its output out");
}
Test(compare, a_wrong_attention_output_is_named) {
  expect_found("layers.0.attn_out", 2 * 5, 1u << 14, "(combine, layer 0): its output out");
}
Test(compare, a_wrong_activation_is_named) {
  expect_found("layers.1.act", 2 * 100, 1u << 30, "(glu, layer 1): its output out");
  cr_expect(is_on_page(mk_error_message()), "docs/DEBUGGING.md does not have: %s", mk_error_message());
}
Test(compare, a_wrong_residual_is_named) {
  expect_found("layers.0.mid_residual", 77, 1u << 30, "layer 0): its output residual_out");
}
/* The word of K (which = 0) holds dims 0 and 1 of token 0, that of V dim 0 of tokens 0 and 1. */
static void expect_found_in_kv(uint32_t which, uint32_t bit) {
  /* Blocks lie in the table's order, which is not the identity: all but the newest token's elements are inputs. */
  mk_engine *probe = open_engine();
  int kv = mk_program_find_buffer(mk_engine_program(probe), "layers.1.kv");
  int table = mk_program_find_buffer(mk_engine_program(probe), "block_table");
  const mk_buffer *b = &mk_engine_program(probe)->buffers[kv];
  uint32_t block = *(const uint32_t *)mk_cpu_memory(mk_engine_cpu(probe), (size_t)table);
  size_t pair = (size_t)block * b->cols * 2 * b->block_tokens * b->head_dim;
  size_t word = (pair + mk_block_offset(b->block_tokens, b->head_dim, which, 0, 0)) / 2;
  mk_engine_close(probe);
  expect_found("layers.1.kv", word, bit, "(attention, layer 1): its output kv");
}
Test(compare, a_wrong_key_is_named) { expect_found_in_kv(0, 1u << 30); }
Test(compare, a_wrong_value_is_named) { expect_found_in_kv(1, 1u << 14); }
Test(compare, a_wrong_logit_is_named) { expect_found("logits", 211, 1u << 30, "(head): its output logits"); }
Test(compare, a_candidate_that_is_no_logit_is_named) {
  expect_found("candidates", 2, 1, "(head): its candidate is row");
}
Test(compare, a_missing_stamp_is_named) {
  expect_found("layers.0.mid", 1, 1u << 7, "(glu): the machine never wrote one of its inputs");
}
Test(compare, not_a_number_is_named) {
  expect_found("layers.0.out_residual", 3, 0x7f800000u, "layer 0): its output residual_out");
}

/* The second SM's front; the third one's choice; a token that is not the step's. */
Test(compare, a_wrong_front_is_named) {
  const size_t front = 2 * (size_t)MK_FRONT_WORDS;
  expect_found_in(&kDrawn[0], "fronts", front + 2 * MK_FRONT_PEAK, 1, "(score): its front has not the first rank");
  expect_found_in(&kDrawn[0], "fronts", front + 2 * MK_FRONT_ABOUT, 1, "(score): its front has not the first rank");
  expect_found_in(&kDrawn[0], "fronts", front + 2 * MK_FRONT_KEYS, 1, "(score): an entry of its front");
  expect_found_in(&kDrawn[1], "fronts", front + 2 * (MK_FRONT_KEYS + 1), 1, "(score): an entry of its front");
  expect_found_in(&kDrawn[1], "fronts", front + 2 * MK_FRONT_ABOUT, 1u << MK_FRONT_COUNT_AT, "(score): ");
  expect_found_in(&kDrawn[1], "fronts", front + 2 * MK_FRONT_SCORES + 1, 1, "(score): an entry of its front");
}
Test(compare, a_wrong_choice_is_named) {
  expect_found_in(&kDrawn[2], "choices", 10, 1, "(draw): its choice is another token");
}
Test(compare, a_wrong_count_is_named) {
  expect_found_in(&kDrawn[4], "token_counts", 123, 1, "(score): it counts its tokens otherwise");
}
