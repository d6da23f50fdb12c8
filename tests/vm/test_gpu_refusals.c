/* Programs that the GPU machine does not take, although they are whole: refused before a driver is asked for, so no GPU is needed. */
#include <criterion/criterion.h>
#include <string.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "vm/gpu/machine.h"

static mk_program *compile(bool sampling) {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  mk_compile_options options = {.sms = 4, .max_seq = 64, .sampling = sampling};
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
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

static void expect_refused(mk_program *program, const char *why) {
  mk_gpu_options options = {0};
  mk_gpu *gpu;
  cr_assert_eq(mk_gpu_new(program, &options, &gpu), MK_ERR_FILE, "taken, or asked for a GPU first: %s",
               mk_error_message());
  cr_assert_null(gpu);
  cr_assert_not_null(strstr(mk_error_message(), why), "%s", mk_error_message());
  mk_program_free(program);
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

Test(gpu_refusals, a_search_that_something_else_follows) {
  mk_program *program = compile(true);
  mk_instruction *draw = first(program, MK_OP_DRAW);
  draw[1].opcode = MK_OP_COMBINE;
  expect_refused(program, "behind it on its queue");
}
