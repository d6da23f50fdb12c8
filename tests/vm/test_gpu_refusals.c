/* Programs that the GPU machine does not take, although they are whole: refused before a driver is asked for, so no GPU is needed. */
#include <criterion/criterion.h>
#include <string.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "scheduler/mla_compile.h"
#include "vm/gpu/machine.h"

static mk_program *compile_rows(bool sampling, uint32_t rows) {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  mk_compile_options options = {.sms = 4, .max_seq = 64, .sampling = sampling, .rows = rows};
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

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

/* Values of several rows come in whole tiles. */
Test(gpu_refusals, several_rows_of_a_ragged_width) {
  mk_program *program = compile_rows(false, 4);
  program->buffers[first(program, MK_OP_GLU)->operands[MK_SLOT_GLU_out].buffer].cols -= 8;
  expect_refused(program, "with several rows per step this machine has values of whole tiles of 16 alone");
}

Test(gpu_refusals, several_rows_that_signal_a_release) {
  mk_program *program = compile_rows(false, 4);
  program->counters[first(program, MK_OP_GLU)->signals[0].counter].kind = MK_COUNTER_RELEASE;
  expect_refused(program, "release counters");
}

Test(gpu_refusals, several_rows_with_ragged_spans) {
  mk_program *program = compile_rows(false, 4);
  program->buffers[first(program, MK_OP_ATTENTION)->operands[MK_SLOT_ATTENTION_kv].buffer].span_tokens = 768;
  expect_refused(program,
                 "spans of 768 tokens; with several rows per step this machine takes 256 times a power of two");
}

/* With several rows ATTENTION writes what COMBINE has nothing to do for. */
Test(gpu_refusals, several_rows_that_combine_part_of_a_value) {
  mk_program *program = compile_rows(false, 4);
  program->buffers[first(program, MK_OP_COMBINE)->operands[MK_SLOT_COMBINE_out].buffer].cols += 16;
  expect_refused(program, "the whole of one buffer from the whole of another one");
}

Test(gpu_refusals, several_rows_that_combine_into_what_others_write) {
  mk_program *program = compile_rows(false, 4);
  first(program, MK_OP_GLU)->operands[MK_SLOT_GLU_out].buffer =
      first(program, MK_OP_COMBINE)->operands[MK_SLOT_COMBINE_out].buffer;
  expect_refused(program, "(glu) writes buffer layers.0.attn_out, which a combine writes or reads, too");
}

Test(gpu_refusals, several_rows_with_parts_that_nobody_combines) {
  mk_program *program = compile_rows(false, 4);
  first(program, MK_OP_ATTENTION)->operands[MK_SLOT_ATTENTION_out].buffer =
      first(program, MK_OP_GLU)->operands[MK_SLOT_GLU_out].buffer;
  expect_refused(program, "which no combine reads");
}

Test(gpu_refusals, pages_of_another_size) {
  mk_program *program = compile(false);
  program->machine.page_bytes /= 2;
  expect_refused(program, "for another machine");
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

Test(gpu_refusals, a_boundary_without_a_head) {
  mk_program *program = compile(false);
  first(program, MK_OP_HEAD)->opcode = MK_OP_COMBINE;
  expect_refused(program, "no head before it");
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

/* The sampling kernel does some instructions within their neighbours. */
Test(gpu_refusals, a_search_that_something_else_follows) {
  mk_program *program = compile(true);
  first(program, MK_OP_SIFT)[1].opcode = MK_OP_COMBINE;
  expect_refused(program, "(sift): a machine that samples needs behind it on its queue a sift or draw");
}

Test(gpu_refusals, a_round_that_is_left_out) {
  mk_program *program = compile(true);
  mk_instruction *sift = first(program, MK_OP_SIFT);
  sift[1] = sift[2];
  sift[1].uid--;
  expect_refused(program, "a sift or draw that goes on with its round");
  program = compile(true);
  sift = first(program, MK_OP_SIFT);
  sift[0].operands[MK_SLOT_SIFT_rounds] = sift[1].operands[MK_SLOT_SIFT_rounds];
  expect_refused(program, "(score): a machine that samples needs behind it on its queue no sift or draw that goes on");
}

Test(gpu_refusals, a_draw_that_something_else_follows) {
  mk_program *program = compile(true);
  first(program, MK_OP_DRAW)[1].opcode = MK_OP_COMBINE;
  expect_refused(program, "(draw): a machine that samples needs behind it on its queue a next that takes its choice");
}

Test(gpu_refusals, a_choice_that_next_does_not_take) {
  mk_program *program = compile(true);
  first(program, MK_OP_NEXT)->operands[MK_SLOT_NEXT_candidates].row++;
  expect_refused(program, "a next that takes its choice");
}

Test(gpu_refusals, a_next_without_a_draw) {
  mk_program *program = compile(true);
  first(program, MK_OP_DRAW)->opcode = MK_OP_SIFT;
  expect_refused(program, "(sift): a machine that samples needs behind it on its queue a sift or draw");
  program = compile(true);
  first(program, MK_OP_DRAW)->opcode = MK_OP_COMBINE;
  first(program, MK_OP_SIFT)[2].opcode = MK_OP_COMBINE;
  first(program, MK_OP_SIFT)[1].opcode = MK_OP_COMBINE;
  first(program, MK_OP_SIFT)[0].opcode = MK_OP_COMBINE;
  expect_refused(program, "no next, which belongs behind a draw");
}

Test(gpu_refusals, a_sift_of_others_tokens) {
  mk_program *program = compile(true);
  mk_instruction *sift = first(program, MK_OP_SIFT);
  for (uint32_t i = 0; sift[i].opcode == MK_OP_SIFT; i++) {
    sift[i].operands[MK_SLOT_SIFT_scores].col++;
  }
  expect_refused(program, "looks at other tokens than the score before it");
}

Test(gpu_refusals, a_head_without_its_score) {
  mk_program *program = compile(true);
  first(program, MK_OP_SCORE)->opcode = MK_OP_COMBINE;
  expect_refused(program, "(head): a machine that samples needs behind it on its queue a score of its logits");
}

Test(gpu_refusals, a_score_of_other_tiles) {
  mk_program *program = compile(true);
  first(program, MK_OP_SCORE)->operands[MK_SLOT_SCORE_logits].col++;
  expect_refused(program, "a score of its logits");
}

Test(gpu_refusals, a_score_that_waits) {
  mk_program *program = compile(true);
  first(program, MK_OP_SCORE)->wait_count = 1;
  expect_refused(program, "without waits");
}

Test(gpu_refusals, a_score_without_a_head) {
  mk_program *program = compile(true);
  first(program, MK_OP_HEAD)[-1].opcode = MK_OP_SCORE; /* another one, with something before it */
  expect_refused(program, "no score, which belongs behind a head");
}

Test(gpu_refusals, fronts_of_too_many_sms) {
  mk_program *program = compile(true);
  first(program, MK_OP_DRAW)->operands[MK_SLOT_DRAW_fronts].rows = 161;
  expect_refused(program, "the fronts of 161 SMs");
}
