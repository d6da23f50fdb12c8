/* Programs of wide steps that the verifier accepts, or nearly, and the GPU machine does not take: what its kernel has
 * no code for, would take for something else, or would do in another order (vm/gpu/refuse_wide.c). And that it takes
 * what the scheduler makes. */
#include <criterion/criterion.h>
#include <string.h>

#include "instructions/mla.h"
#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/effort.h"
#include "tests/support/prompts.h"
#include "vm/gpu/machine_internal.h"
#include "vm/verify/verify.h"

TestSuite(gpu_refusals_wide, .timeout = MK_HANG_SECONDS);

enum { SMS = 3, CONTEXT = 640, ROWS = 2 * MK_LINE_TILE };

/* The first addition of a layer is of whole products, the second one of parts; the hidden size is no multiple of 16. */
static const mk_config shape = {.hidden = 152,
                                .intermediate = 528,
                                .layers = 2,
                                .heads = 2,
                                .kv_heads = 1,
                                .head_dim = 64,
                                .vocab = 100,
                                .max_position = 1024,
                                .rms_eps = 1e-5f,
                                .rope_theta = 10000};

static mk_program *compile_on(uint32_t sms) { return test_prompt_program(&shape, sms, CONTEXT, ROWS); }
static mk_program *compile(void) { return compile_on(SMS); }

/* With what other families have. */
static void have_factors(mk_config *config) {
  config->embedding_multiplier = 12;
  config->residual_multiplier = 0.22;
  config->logits_scaling = 7;
}
static void have_biases(mk_config *config) {
  config->qkv_bias = true;
  config->o_bias = true;
  config->mlp_bias = true;
}
static void have_norms_after(mk_config *config) {
  config->norm_after = true;
  config->qk_norm = MK_QK_NORM_ALL;
  config->qkv_bias = true;
  config->o_bias = true;
}
static mk_program *compile_kin(void (*have)(mk_config *)) {
  mk_config config = shape;
  have(&config);
  return test_prompt_program(&config, SMS, CONTEXT, ROWS);
}

static mk_instruction *find(mk_program *p, mk_opcode opcode, uint32_t number) {
  for (size_t i = 0; i < p->instruction_count; i++) {
    if (p->instructions[i].opcode == opcode && number-- == 0) {
      return &p->instructions[i];
    }
  }
  cr_assert_fail("no such instruction");
  return NULL;
}

static mk_buffer *buffer_of(mk_program *p, const mk_instruction *in, uint32_t slot) {
  return &p->buffers[in->operands[slot].buffer];
}

static void expect_taken(const mk_program *p) {
  cr_assert_eq(mk_verify(p, NULL), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_gpu_check_program(p), MK_OK, "%s", mk_error_message());
}

/* accepted: the verifier has nothing against it. */
static void expect_refused(mk_program *p, bool accepted, const char *why) {
  cr_assert_eq(mk_verify(p, NULL), accepted ? MK_OK : MK_ERR_REJECTED, "%s", mk_error_message());
  cr_assert_eq(mk_gpu_check_program(p), MK_ERR_FILE, "taken, without \"%s\"", why);
  cr_assert_not_null(strstr(mk_error_message(), why), "\"%s\" is not \"%s\"", mk_error_message(), why);
  mk_program_free(p);
}

/* Of as many sequences as rows. */
static mk_program *compile_shared(const mk_config *config, uint32_t ranks, uint32_t sms, uint32_t rows) {
  const mk_compile_options options = {.ranks = ranks, .sms = sms, .max_seq = 2048, .rows = rows, .slots = rows};
  mk_graph *graph = NULL;
  mk_program *p = NULL;
  cr_assert_eq(mk_llama_graph(config, &graph), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_compile(graph, &options, &p), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return p;
}

/* Nothing that the scheduler makes is refused. */
static void expect_all_taken(const mk_config *config, uint32_t sms) {
  for (uint32_t rows = MK_WIDE_ROWS; rows <= MK_MOST_ROWS; rows *= 2) {
    mk_program *p = test_prompt_program(config, sms, 2048, rows);
    expect_taken(p);
    mk_program_free(p);
  }
  for (uint32_t rows = MK_PROMPT_ROWS; rows <= MK_MOST_SHARED_ROWS; rows *= 2) {
    mk_program *p = compile_shared(config, 1, sms, rows);
    expect_taken(p);
    mk_program_free(p);
  }
}
Test(gpu_refusals_wide, compiled_programs_are_taken) {
  static const mk_config shapes[] = {
      {.hidden = 64, .intermediate = 40, .layers = 1, .heads = 1, .kv_heads = 1, .head_dim = 64, .vocab = 17},
      {.hidden = 144, .intermediate = 1040, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 128, .vocab = 100},
      {.hidden = 2120, .intermediate = 4104, .layers = 1, .heads = 3, .kv_heads = 1, .head_dim = 64, .vocab = 1000}};
  static const uint32_t sms[] = {1, 3, 132};
  static void (*const kin[])(mk_config *) = {NULL, have_factors, have_biases, have_norms_after};
  for (uint32_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
    for (uint32_t k = 0; k < sizeof kin / sizeof kin[0]; k++) {
      mk_config config = shapes[s];
      config.max_position = 2048;
      config.rms_eps = 1e-5f;
      config.rope_theta = 10000;
      if (kin[k] != NULL) {
        kin[k](&config);
      }
      for (uint32_t m = 0; m < sizeof sms / sizeof sms[0]; m++) {
        expect_all_taken(&config, sms[m]);
      }
    }
  }
}
Test(gpu_refusals_wide, compiled_programs_of_known_shapes_are_taken) {
  for (size_t s = 0; mk_synth_shape_name(s) != NULL; s++) {
    mk_config config;
    cr_assert_eq(mk_synth_shape(mk_synth_shape_name(s), &config), MK_OK);
    config.layers = config.layers < test_effort(2, 4) ? config.layers : test_effort(2, 4);
    mk_graph *graph;
    cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK, "%s", mk_error_message());
    const bool wide = mk_is_wide(graph, &(mk_compile_options){.rows = 1024, .slots = 1});
    mk_graph_free(graph);
    cr_assert(wide || (config.kind != MK_MODEL_LLAMA && config.kind != MK_MODEL_MISTRAL));
    if (!wide) {
      continue;
    }
    mk_program *p = test_prompt_program(&config, 132, config.max_position < 4096 ? config.max_position : 4096, 1024);
    expect_taken(p);
    mk_program_free(p);
  }
}

Test(gpu_refusals_wide, compiled_programs_of_ranks_are_taken) {
  static const char *const names[] = {"llama-3.2-1b", "llama-3.1-8b"};
  for (uint32_t s = 0; s < 2; s++) {
    mk_config config;
    cr_assert_eq(mk_synth_shape(names[s], &config), MK_OK);
    config.layers = 2;
    for (uint32_t ranks = 2; ranks <= (s == 0 ? 4 : 8); ranks *= 2) {
      for (uint32_t rows = MK_PROMPT_ROWS; rows <= MK_MOST_SHARED_ROWS; rows *= 8) {
        mk_program *p = compile_shared(&config, ranks, rows == MK_PROMPT_ROWS ? 132 : 33, rows);
        expect_taken(p);
        mk_program_free(p);
      }
    }
  }
}

/* Whatever no compiled program has is no opcode of the kernel: the table says so, and no list. */
Test(gpu_refusals_wide, opcodes_that_know_stamps_alone) {
  bool there[MK_OP_COUNT] = {false};
  uint32_t refused = 0;
  static void (*const kin[])(mk_config *) = {have_factors, have_norms_after};
  for (uint32_t k = 0; k < 2; k++) {
    mk_program *base = compile_kin(kin[k]);
    for (size_t i = 0; i < base->instruction_count; i++) {
      there[base->instructions[i].opcode] = true;
    }
    mk_program_free(base);
  }
  for (uint32_t opcode = 1; opcode < MK_OP_COUNT; opcode++) {
    mk_program *p = compile();
    find(p, MK_OP_QKV, 1)->opcode = (uint8_t)opcode; /* whose operands are then those of a QKV */
    if (there[opcode] || mk_program_listed(p)) {     /* a work list has a kernel of its own, and that is all it has */
      mk_program_free(p);
      continue;
    }
    refused++;
    expect_refused(p, false, "the opcode is not yet in wide steps");
  }
  cr_assert_gt(refused, 5);
}

/* By stamps, which the kernel neither waits for nor writes, nobody would be told. */
Test(gpu_refusals_wide, values_with_stamps) {
  static const struct {
    mk_opcode opcode;
    uint32_t slot;
  } values[] = {{MK_OP_QKV, MK_SLOT_QKV_x},
                {MK_OP_QKV, MK_SLOT_QKV_out},
                {MK_OP_QKV, MK_SLOT_QKV_squares},
                {MK_OP_NORM, MK_SLOT_NORM_out},
                {MK_OP_ATTEND, MK_SLOT_ATTEND_q},
                {MK_OP_ATTEND, MK_SLOT_ATTEND_out},
                {MK_OP_APPEND, MK_SLOT_APPEND_k},
                {MK_OP_LINEAR_PART, MK_SLOT_LINEAR_PART_out},
                {MK_OP_REDUCE_ADD, MK_SLOT_REDUCE_ADD_parts},
                {MK_OP_LINEAR_ADD, MK_SLOT_LINEAR_ADD_out},
                {MK_OP_HEAD, MK_SLOT_HEAD_x}};
  for (uint32_t i = 0; i < sizeof values / sizeof values[0]; i++) {
    mk_program *p = compile();
    buffer_of(p, find(p, values[i].opcode, 0), values[i].slot)->store = MK_STORE_STAMPED;
    cr_assert_eq(mk_gpu_check_program(p), MK_ERR_FILE);
    cr_assert_not_null(strstr(mk_error_message(), "a value with stamps is not yet in wide steps"), "%s",
                       mk_error_message());
    mk_program_free(p);
  }
}

#define REFUSED(name, sms, accepted, why, ...) \
  Test(gpu_refusals_wide, name) {              \
    mk_program *p = compile_on(sms);           \
    __VA_ARGS__;                               \
    expect_refused(p, accepted, why);          \
  }

/* With squares, but the row comes as the embedding has it. */
REFUSED(a_product_of_the_rows_of_tokens, SMS, true, "(qkv): an input that is the row of a token is not yet in wide", {
  mk_instruction *in = find(p, MK_OP_QKV, 0);
  const uint16_t cols = in->operands[MK_SLOT_QKV_x].cols;
  in->operands[MK_SLOT_QKV_x] = find(p, MK_OP_NORM, 0)->operands[MK_SLOT_NORM_x];
  in->operands[MK_SLOT_QKV_x].col = 0;
  in->operands[MK_SLOT_QKV_x].cols = cols;
})
/* It has no tensor map. */
REFUSED(a_product_of_an_output, SMS, true, "(linear_add): an input that is an output is not yet in wide steps",
        buffer_of(p, find(p, MK_OP_LINEAR_ADD, 0), MK_SLOT_LINEAR_ADD_x)->kind = MK_KIND_OUTPUT)
/* It has no other gate. */
REFUSED(a_gate_of_gelu, SMS, true, "(glu): GELU is not yet in wide steps on a GPU",
        find(p, MK_OP_GLU, 0)->params[MK_PARAM_GLU_gelu] = 1)
/* Each warp adds to one. */
REFUSED(more_row_tiles_than_warps, 1, true, "(reduce_add) adds to 9 row tiles; this machine adds to at most 8", {
  static const uint32_t slots[] = {MK_SLOT_REDUCE_ADD_parts, MK_SLOT_REDUCE_ADD_residual_in,
                                   MK_SLOT_REDUCE_ADD_residual_out, MK_SLOT_REDUCE_ADD_out};
  for (uint32_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
    find(p, MK_OP_REDUCE_ADD, 0)->operands[slots[i]].cols = 9;
  }
})

/* More columns, which nobody touches, in a place of its own. */
static void widen(mk_program *p, const mk_instruction *in, uint32_t slot, uint32_t by) {
  mk_buffer *b = buffer_of(p, in, slot);
  b->cols += by;
  b->bytes = mk_buffer_bytes(b);
  b->offset = (p->work_bytes + 255) / 256 * 256;
  p->work_bytes = b->offset + b->bytes;
}
/* Fours of elements would not lie where a load of four takes them. */
REFUSED(values_of_no_whole_tiles, SMS, true,
        "(qkv): out in buffer qkv_out has rows of 258 columns; this machine takes a multiple of 16",
        widen(p, find(p, MK_OP_QKV, 0), MK_SLOT_QKV_out, 2))
/* In values that layers do not share. */
Test(gpu_refusals_wide, keys_and_values_of_other_rows) {
  mk_graph *graph;
  mk_program *p;
  cr_assert_eq(mk_llama_graph(&shape, &graph), MK_OK, "%s", mk_error_message());
  const mk_compile_options options = {.sms = 1, .max_seq = CONTEXT, .rows = ROWS, .slots = 1, .keep_values = true};
  cr_assert_eq(mk_compile(graph, &options, &p), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  const mk_instruction *earlier = find(p, MK_OP_APPEND, 0);
  mk_instruction *in = find(p, MK_OP_APPEND, 1);
  cr_assert_eq(in->layer, 1);
  cr_assert_eq(earlier->layer, 0);
  in->operands[MK_SLOT_APPEND_v] = earlier->operands[MK_SLOT_APPEND_v];
  widen(p, earlier, MK_SLOT_APPEND_v, 16);
  expect_refused(p, true, "(append): k and v are in rows of 256 and 272 columns");
}
REFUSED(keys_in_narrow_tiles, SMS, false, "(append): k and v are in rows of 256 and 256 columns, tiles of 8 and 8",
        buffer_of(p, find(p, MK_OP_APPEND, 0), MK_SLOT_APPEND_k)->tile_cols = 8)

/* Warps have shared scales, and nothing but a signal makes them meet after a product. */
REFUSED(a_normed_product_that_signals_nothing, SMS, false, "(glu) signals no release counter; a normed product", {
  mk_instruction *in = find(p, MK_OP_GLU, 0);
  p->counters[in->signals[0].counter].total--;
  memset(in->signals, 0, sizeof in->signals);
  in->signal_count = 0;
})
REFUSED(a_product_after_one_that_signals_nothing, 1, true, "which signals no release counter; this machine's warps", {
  mk_instruction *add = find(p, MK_OP_LINEAR_ADD, 0), norm = add[1];
  cr_assert_eq(norm.opcode, MK_OP_NORM);
  cr_assert_eq(add[2].opcode, MK_OP_LINEAR_ADD);
  add[1] = add[2];
  add[2] = norm;
})

/* In a program of one queue: the addition of that tile of lines to the first row tiles, once more after the first sum
 * of parts. */
static mk_program *compile_again(uint32_t lines) {
  mk_program *p = compile_on(1);
  cr_assert_eq(mk_grow(&p->instructions, &p->instruction_capacity, p->instruction_count + 1, sizeof *p->instructions),
               MK_OK);
  mk_instruction *to = find(p, MK_OP_REDUCE_ADD, 0) + 1, again = *find(p, MK_OP_LINEAR_ADD, lines);
  cr_assert_eq(again.operands[MK_SLOT_LINEAR_ADD_x].row, lines);
  cr_assert_eq(again.operands[MK_SLOT_LINEAR_ADD_weight].row, 0);
  memmove(to + 1, to, (size_t)(p->instructions + p->instruction_count - to) * sizeof *to);
  *to = again;
  to->uid = 1000000;
  p->instruction_count++;
  p->queues[0].count++;
  return p;
}
Test(gpu_refusals_wide, a_product_over_what_other_warps_may_still_read) {
  expect_refused(compile_again(0), true, "(linear_add) comes after instruction");
  mk_program *p = compile_again(1); /* of lines that the sum is not of */
  expect_taken(p);
  mk_program_free(p);
}
