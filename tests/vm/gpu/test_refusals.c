/* Programs that the GPU machine does not take, although they are whole: refused before a driver is asked for, so no GPU
 * is needed. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "scheduler/mla_compile.h"
#include "vm/gpu/machine_internal.h"
#include "vm/verify/verify.h"

static mk_program *compile_config(const mk_config *config, const mk_compile_options *options) {
  mk_graph *graph;
  mk_program *program;
  cr_assert_eq(mk_llama_graph(config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

static mk_program *compile_slots(bool sampling, uint32_t rows, uint32_t slots) {
  mk_config config;
  mk_compile_options options = {.sms = 4, .max_seq = 64, .sampling = sampling, .rows = rows, .slots = slots};
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  return compile_config(&config, &options);
}

static mk_program *compile_quantised(void) {
  mk_config config;
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  mk_synth_quantise(&config, MK_CODES_E4M3, 0, MK_TENSOR_F32, false);
  return compile_config(&config, &(mk_compile_options){.sms = 4, .max_seq = 64});
}

static mk_program *compile_rows(bool sampling, uint32_t rows) { return compile_slots(sampling, rows, 0); }
static mk_program *compile(bool sampling) { return compile_rows(sampling, 1); }

static mk_instruction *first(mk_program *program, mk_opcode opcode) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    if (program->instructions[i].opcode == opcode) {
      return &program->instructions[i];
    }
  }
  cr_assert_fail("no such instruction");
  return NULL;
}

static void expect_refused(mk_program *program, const char *why) {
  mk_gpu_options options = {0};
  mk_gpu *gpu;
  cr_assert_eq(mk_gpu_new(program, &options, &gpu), MK_ERR_FILE, "taken, or asked for a GPU first: %s",
               mk_error_message());
  cr_assert_null(gpu);
  cr_assert_not_null(strstr(mk_error_message(), why), "%s", mk_error_message());
  mk_program_free(program);
}

static void expect_taken(mk_program *program) {
  cr_assert_eq(mk_gpu_check_program(program), MK_OK, "%s", mk_error_message());
  mk_program_free(program);
}

Test(gpu_refusals, pages_of_another_size) {
  mk_program *program = compile(false);
  program->machine.page_bytes /= 2;
  expect_refused(program, "for another machine");
}

/* Of one row, several and wide steps it is taken, on one GPU and on several. */
Test(gpu_refusals, a_cache_in_fp8) {
  static const uint32_t of[] = {1, 4, 16, 128};
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  for (uint32_t i = 0; i < 8; i++) {
    const uint32_t rows = of[i % 4], ranks = 1 + i / 4;
    const mk_compile_options options = {
        .sms = 4, .ranks = ranks, .max_seq = 64, .rows = rows, .slots = rows == 128, .kv = MK_DTYPE_E4M3};
    cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
    expect_taken(program);
  }
  mk_graph_free(graph);
}

/* Of one row, several, and wide steps of one sequence and of several. */
Test(gpu_refusals, sliding_windows) {
  static const uint32_t rows[] = {1, 4, 16, 128, 128}, slots[] = {1, 4, 16, 1, 128};
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  config.window = 32;
  config.windowed[0] = 2;
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const mk_compile_options options = {.sms = 4, .max_seq = 64, .rows = rows[i], .slots = slots[i]};
    cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
    cr_assert_eq(mk_verify(program, NULL), MK_OK, "%s", mk_error_message());
    expect_refused(program, rows[i] < 128
                                ? "(attention): a sliding window is not yet on a GPU: use --device cpu"
                                : "(attend): a sliding window is not yet in wide steps on a GPU: use --device");
  }
  mk_graph_free(graph);
}

/* One thing of a Gemma after the other. */
static mk_program *compile_gemma(uint32_t head_dim) {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  cr_assert_eq(mk_synth_shape("gemma-3-270m", &config), MK_OK);
  config.vocab = 300;
  config.layers = 1;
  config.head_dim = head_dim;
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &(mk_compile_options){.sms = 4, .max_seq = 64}, &program), MK_OK, "%s",
               mk_error_message());
  cr_assert_eq(mk_verify(program, NULL), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

static void clear_params(mk_program *program, mk_opcode opcode, uint32_t param) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    if (program->instructions[i].opcode == opcode) {
      program->instructions[i].params[param] = 0;
    }
  }
}

Test(gpu_refusals, gemma) {
  static const struct {
    mk_opcode opcode;
    uint32_t param;
    const char *why;
  } steps[] = {{MK_OP_QKV, MK_PARAM_QKV_plus, "(qkv): a gain of 1 + w is not yet on a GPU: use --device cpu"},
               {MK_OP_ATTENTION, MK_PARAM_ATTENTION_window, "(attention): a sliding window is not yet on a GPU"},
               {MK_OP_NORM_ADD, MK_PARAM_NORM_ADD_plus, "(norm_add): a gain of 1 + w is not yet on a GPU"},
               {MK_OP_GLU, MK_PARAM_GLU_plus, "(glu): a gain of 1 + w is not yet on a GPU"},
               {MK_OP_GLU, MK_PARAM_GLU_gelu, "(glu): GELU is not yet on a GPU"},
               {MK_OP_HEAD, MK_PARAM_HEAD_plus, "(head): a gain of 1 + w is not yet on a GPU"}};
  expect_refused(compile_gemma(256), "buffer layers.0.kv: heads of 256 dims are not yet on a GPU: use --device cpu");
  for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
    mk_program *program = compile_gemma(128);
    for (size_t k = 0; k < sizeof steps / sizeof steps[0]; k++) { /* this one alone is left */
      if (k != i) {
        clear_params(program, steps[k].opcode, steps[k].param);
      }
    }
    if (steps[i].opcode == MK_OP_ATTENTION) {
      for (size_t k = 0; k < program->instruction_count; k++) {
        mk_instruction *in = &program->instructions[k];
        in->params[MK_PARAM_ATTENTION_window] =
            in->opcode == MK_OP_ATTENTION ? 9 : in->params[MK_PARAM_ATTENTION_window];
      }
    }
    expect_refused(program, steps[i].why);
  }
}

Test(gpu_refusals, quantised_weights) {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  config.quant = (mk_quant){.layout = MK_QUANT_PACKED, .codes = MK_CODES_INT4, .group = 128, .modules = {[1] = 0x1ff}};
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  for (uint32_t ranks = 1; ranks <= 2; ranks++) {
    const mk_compile_options all[] = {
        {.sms = 4, .ranks = ranks, .max_seq = 64, .rows = 1, .sampling = true},
        {.sms = 4, .ranks = ranks, .max_seq = 64, .rows = 16, .sampling = true},
        {.sms = 4, .ranks = ranks, .max_seq = 64, .rows = 128, .slots = 1},
        {.sms = 4, .ranks = ranks, .max_seq = 64, .rows = 64, .slots = 64, .sampling = ranks == 1},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
      cr_assert_eq(mk_compile(graph, &all[i], &program), MK_OK, "%s", mk_error_message());
      expect_taken(program);
    }
  }
  mk_graph_free(graph);
}

/* A page's number is found by a multiplication that is exact for so many strips. */
Test(gpu_refusals, more_strips_than_are_counted) {
  mk_program *program = compile_quantised();
  first(program, MK_OP_GLU)->operands[MK_SLOT_GLU_weight].rows = UINT16_MAX;
  first(program, MK_OP_GLU)->operands[MK_SLOT_GLU_weight].cols = 40;
  expect_refused(program, "327675 strips of 128 columns of weight layers.0.gate_up: more than this machine counts");
}

/* Parts of K are whole strips, as compiled; by hand they may begin within one. */
Test(gpu_refusals, part_of_a_strip) {
  mk_program *program = compile_quantised();
  mk_instruction *in = first(program, MK_OP_LINEAR_PART);
  const uint32_t uid = in->uid;
  in->operands[MK_SLOT_LINEAR_PART_weight].cols--;
  char why[128];
  snprintf(why, sizeof why, "instruction %u (linear_part) has columns 0 to %u of quantised weight layers.0.", uid,
           in->operands[MK_SLOT_LINEAR_PART_weight].cols * MK_TILE);
  expect_refused(program, why);
}

Test(gpu_refusals, blocks_of_another_size) {
  mk_program *program = compile(false);
  program->buffers[first(program, MK_OP_ATTENTION)->operands[MK_SLOT_ATTENTION_kv].buffer].block_tokens = 32;
  expect_refused(program, "KV blocks of 32 tokens");
}

Test(gpu_refusals, too_many_heads_for_one_kv_head) {
  mk_program *program = compile(false);
  first(program, MK_OP_ATTENTION)->params[MK_PARAM_ATTENTION_group] = 17;
  expect_refused(program, "17 query heads");
}

Test(gpu_refusals, work_lists) {
  mk_mla_shape shape = {
      .heads = 16, .new_tokens = 4, .max_sequences = 2, .max_pages = 4, .pool_pages = 8, .scale = 0.1f};
  mk_program *program;
  cr_assert_eq(mk_mla_compile(&shape, 4, &program), MK_OK, "%s", mk_error_message());
  program->machine.ring_pages = 3;
  expect_refused(program, "the program is for another machine: 1 GPUs, pages of 73728 bytes, 3 of them");
  cr_assert_eq(mk_mla_compile(&shape, 4, &program), MK_OK, "%s", mk_error_message());
  program->instructions[1].signal_count = 1;
  expect_refused(program,
                 "instruction 2 (mla_reduce): this machine runs programs with a work list when they have nothing else");
  cr_assert_eq(mk_mla_compile(&shape, 4, &program), MK_OK, "%s", mk_error_message());
  program->queues[2].count = 1;
  expect_refused(program, "queue 2 has 1 instructions from 4 on");
}

Test(gpu_refusals, fronts_of_too_many_sms) {
  mk_program *program = compile(true);
  first(program, MK_OP_DRAW)->operands[MK_SLOT_DRAW_fronts].rows = 161;
  expect_refused(program, "the fronts of 161 SMs");
}

/* After a tally there must be its sums. */
Test(gpu_refusals, half_a_pair_of_rounds) {
  mk_program *program = compile_rows(true, 2);
  mk_instruction *draw = first(program, MK_OP_DRAW);
  draw->opcode = MK_OP_SIFT;
  char text[80];
  snprintf(text, sizeof text, "instruction %u (sift) is the last of 7 rounds", draw->uid);
  expect_refused(program, text);
}

/* What the kernels do within another instruction alone must be marked as such. With one row per step a combine may
 * stand by itself. */
Test(gpu_refusals, what_is_fused_without_a_mark) {
  mk_program *program = compile(true);
  first(program, MK_OP_SCORE)->flags = 0;
  expect_refused(program, "(score) is not marked as fused");
  program = compile_rows(false, 4);
  first(program, MK_OP_COMBINE)->flags = 0;
  expect_refused(program, "(combine) is not marked as fused");
}

/* What the kernel for wide steps has no room for. */
Test(gpu_refusals, wide_programs) {
  for (uint32_t rows = MK_WIDE_ROWS; rows <= MK_MOST_ROWS; rows *= 2) {
    mk_program *program = compile_slots(false, rows, 1);
    first(program, MK_OP_QKV)->operands[MK_SLOT_QKV_weight].rows = 9;
    expect_refused(program, "(qkv) multiplies 9 row tiles; this machine multiplies at most 8");
    program = compile_slots(false, rows, 1);
    first(program, MK_OP_QKV)->params[MK_PARAM_QKV_plus] = mk_float_param(1);
    expect_refused(program, "(qkv): a gain of 1 + w is not yet in wide steps");
    program = compile_slots(false, rows, 1);
    first(program, MK_OP_GLU)->operands[MK_SLOT_GLU_squares].rows = 0;
    first(program, MK_OP_GLU)->operands[MK_SLOT_GLU_gain] = first(program, MK_OP_NORM)->operands[MK_SLOT_NORM_gain];
    expect_refused(program, "(glu): an input with a gain is not yet in wide steps");
    program = compile_slots(false, rows, 1);
    program->machine.consumer_warps = 16;
    expect_refused(program, "the program is for another machine");
  }
}

/* A program for prompts of fewer rows than wide ones have. */
Test(gpu_refusals, sixty_four_rows) {
  expect_refused(compile_rows(false, MK_PROMPT_ROWS), "64 rows per step and 1 slots; this machine takes up to 16 rows");
}

/* Those of several slots draw; not if the draw's rounds do not come in pairs, and not on several ranks. */
Test(gpu_refusals, wide_programs_that_draw) {
  expect_taken(compile_slots(true, 64, 64));
  expect_taken(compile_slots(true, MK_MOST_DRAWING_ROWS, 2));
  mk_program *program = compile_slots(true, 64, 64);
  mk_instruction *draw = first(program, MK_OP_DRAW);
  draw->opcode = MK_OP_SIFT;
  expect_refused(program, "(sift) is the last of 7 rounds");
  program = compile_slots(true, 64, 64);
  program->machine.ranks = 2;
  expect_refused(program, "(score): the opcode is not yet in wide steps");
  program = compile_slots(true, 64, 64);
  program->ranges.slot.high = 0;
  expect_refused(program, "64 rows per step and 1 slots");
}

/* Lists where they do not belong. */
Test(gpu_refusals, wide_programs_of_several_slots) {
  mk_program *program = compile_slots(false, 128, 2);
  program->ranges.slot.high = 0; /* its lists make it another program, whatever its slots */
  expect_refused(program, "(attend): a work list of one slot is not yet in wide steps");
  program = compile_slots(false, 128, 1);
  program->ranges.slot.high = 1;
  expect_refused(program, "(attend): attention of several slots without a work list is not yet in wide steps");
  program = compile_slots(false, 256, 0);
  program->ranges.position.high = 1U << 31;
  expect_refused(program, "positions go up to 2147483648");
}

/* Kernels of fewer rows have none of what wide programs are made of. */
Test(gpu_refusals, what_wide_programs_are_made_of) {
  static const uint32_t rows[] = {1, 4, MK_MAX_ROWS};
  for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    mk_program *program = compile_rows(false, rows[i]);
    program->buffers[first(program, MK_OP_LINEAR_PART)->operands[MK_SLOT_LINEAR_PART_out].buffer].store =
        MK_STORE_PLAIN;
    expect_refused(program, "(linear_part): a value without stamps is not yet on a GPU: use --device cpu");
    program = compile_rows(false, rows[i]);
    mk_instruction *in = first(program, MK_OP_GLU);
    in->operands[MK_SLOT_GLU_squares] = in->operands[MK_SLOT_GLU_x];
    expect_refused(program, "(glu): an input with squares is not yet on a GPU");
    program = compile_rows(false, rows[i]);
    in = first(program, MK_OP_HEAD);
    in->operands[MK_SLOT_HEAD_squares] = in->operands[MK_SLOT_HEAD_x];
    expect_refused(program, "(head): an input with squares is not yet on a GPU");
    program = compile_rows(false, rows[i]);
    first(program, MK_OP_COMBINE)->opcode = MK_OP_NORM;
    expect_refused(program, "(norm): the opcode is not yet on a GPU");
  }
}
