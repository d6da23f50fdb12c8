/* Faults that other systems of this kind have been seen with, each as a test by name: what their validators let pass is
 * rejected, and what their machines got wrong comes out right. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/text.h"
#include "vm/program/asm.h"
#include "vm/verify/verify.h"

#define EDITS(...)              \
  (const test_edit[]) {         \
    __VA_ARGS__, { NULL, NULL } \
  }

static void expect_accepted(mk_program *program) {
  cr_assert_eq(mk_verify(program, NULL), MK_OK, "%s", mk_error_message());
  mk_program_free(program);
}

static void expect_rejected(mk_program *program, const char *rule, const char *words) {
  mk_verify_report report;
  mk_status status = mk_verify(program, &report);
  cr_assert_eq(status, MK_ERR_REJECTED, "status %d, expected %s", status, rule);
  cr_assert_str_eq(report.rule, rule, "%s", mk_error_message());
  cr_assert_not_null(strstr(mk_error_message(), words), "`%s` is not in: %s", words, mk_error_message());
  mk_program_free(program);
}

/* A validator that looks at edges alone accepts this: #17 comes before #6, #7 before #16. But #6 comes before #7 on its
 * queue, and #16 before #17. */
Test(peers, deadlock_through_the_order_of_two_queues) {
  expect_rejected(
      test_assemble("layer.mks",
                    EDITS({"counter late ", "counter back kind=release\ncounter late "},
                          {"#6 glu", "#6 glu wait=late>=1"}, {"#7 linear_add", "#7 linear_add signal=back+1"},
                          {"#16 glu", "#16 glu wait=back>=1"}, {"#17 linear_add", "#17 linear_add signal=late+1"})),
      "D01",
      "SM 1 position 4 #16 glu waits for counter back, which SM 0 position 6 #7 linear_add signals; SM 0 position 5 #6 "
      "glu waits "
      "for counter late, which SM 1 position 5 #17 linear_add signals");
}

/* A wait cycle through all SMs of a GPU is told whole. */
Test(peers, deadlock_through_132_queues) {
  enum { SMS = 132 };
  char *text, uid[16];
  size_t length;
  FILE *out = open_memstream(&text, &length);
  fprintf(out,
          "mkvm-program 1\nmachine sms=%d\nbuffer w kind=weight dtype=bf16 store=tiles shape=32x16 tile=16x16\n"
          "buffer g kind=weight dtype=bf16 store=plain shape=1x16 tile=1x16\n"
          "range token=0..31\nbuffer s kind=activation dtype=bf16 store=stamped shape=1x16 tile=1x8\n"
          "buffer logits kind=activation dtype=f32 store=plain shape=1x32 tile=1x16\n"
          "buffer c kind=activation dtype=u32 store=stamped shape=%dx2 tile=1x2\n"
          "buffer p kind=input dtype=u32 store=plain shape=1x4 tile=1x4\n",
          SMS, SMS);
  for (int i = 0; i < SMS; i++) {
    fprintf(out, "buffer v%d kind=activation dtype=bf16 store=stamped shape=1x16 tile=1x8\n", i);
  }
  for (int i = 0; i < SMS; i++) {
    fprintf(out, "queue %d:\n#%d glu x=v%d gain=g weight=w out=v%d eps=1e-5 width=16\n", i, 1000 + i, (i + 1) % SMS, i);
    fprintf(out, "#%d head x=v0 gain=g weight=w%s logits=logits%s candidate=c[%d:%d,0:1] eps=1e-5 width=16 vocab=32\n",
            2000 + i, i == 0 ? "" : "[0:0,0:0]", i == 0 ? "" : "[0:0,0:0]", i, i + 1);
    fprintf(out, "#%d next candidates=c plan=p ring=p[0:0,0:0]\n", 3000 + i);
  }
  fclose(out);
  mk_program *program;
  cr_assert_eq(mk_assemble(text, length, &program), MK_OK, "%s", mk_error_message());
  free(text);
  expect_rejected(program, "D01",
                  "SM 1 position 0 #1001 glu waits for the stamps of v2, which SM 2 position 0 #1002 glu writes; ");
  for (int i = 0; i < SMS; i++) {
    snprintf(uid, sizeof uid, "#%d", 1000 + i);
    cr_expect_not_null(strstr(mk_error_message(), uid), "%s is not in %s", uid, mk_error_message());
  }
}

/* The residual is read by one instruction of a layer and overwritten by a later one, with nothing but read-after-write
 * edges: within a step, and by the first addition of the next step. */
Test(peers, write_after_read_on_the_residual) {
  expect_rejected(test_assemble("one_tile.mks", EDITS({" wait=read>=1", ""})), "R02", "which reads it");
  const test_edit first = {"residual_out=residual[0:1,2:4] out=y", "residual_out=spare[0:1,2:4] out=y"},
                  second = {"residual_out=residual[0:1,0:2] out=y", "residual_out=spare[0:1,0:2] out=y"};
  expect_accepted(test_assemble("layer.mks", EDITS(first, second)));
  expect_rejected(test_assemble("layer.mks", EDITS(first, second, {"vocab=40 wait=freed>=2", "vocab=40"})), "R02",
                  "#15 reduce_add: residual_out: writes tile (0, 2) of buffer residual, and nothing orders that after "
                  "SM 0 position 6 "
                  "#7 linear_add, which reads it");
}

/* Up to position 255 the last of the two attention parts is empty. Both wait for the newest token all the same, and
 * what merges them waits for the parts in use alone: no interleaving changes a bit, before, at and after the
 * boundary. */
Test(peers, empty_last_attention_part) {
  mk_program *program = test_assemble("layer.mks", NULL);
  static const uint32_t positions[] = {0, 253, 254, 255, 256, 507};
  for (size_t i = 0; i < sizeof positions / sizeof positions[0]; i++) {
    uint64_t want, got;
    cr_assert_eq(test_run(program, &(mk_cpu_options){0}, positions[i], &want), MK_OK, "%s", mk_error_message());
    for (uint64_t seed = 1; seed <= 20; seed++) {
      mk_cpu_options options = {.seed = seed, .adversarial = seed % 2 != 0, .check_races = true};
      cr_assert_eq(test_run(program, &options, positions[i], &got), MK_OK, "%s", mk_error_message());
      cr_assert_eq(got, want, "position %u, seed %d", positions[i], (int)seed);
    }
  }
  mk_program_free(program);
  expect_rejected(
      test_assemble("layer.mks", EDITS({"span=256", "span=128"})), "S11",
      "#3 combine: span is 128; the parts are those of SM 0 position 1 #2 attention, of spans of 256 tokens");
}

/* #1 of the next step can stand in for the signal of #18 that has not come, and then the wait of #19 ends too early. */
Test(peers, counter_overrun_between_epochs) {
  expect_rejected(
      test_assemble("layer.mks", EDITS({"#1 qkv", "#1 qkv signal=late+1"}, {"#18 head", "#18 head signal=late+1"},
                                       {"#19 next", "#19 next wait=late>=1"})),
      "E04",
      "#1 qkv: signals counter late in the next epoch before the wait of SM 1 position 7 #19 next in this "
      "one is over and before the "
      "signal of SM 1 position 6 #18 head has come");
}

/* No size above which a check is left out: faults after the 8,000th instruction are found as those before. */
Test(peers, checks_are_not_skipped_above_a_size) {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  cr_assert_eq(mk_synth_shape("llama-3.2-1b", &config), MK_OK);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &(mk_compile_options){.sms = 132, .max_seq = 4096}, &program), MK_OK);
  mk_graph_free(graph);
  cr_assert_gt(program->instruction_count, 10000);
  cr_assert_eq(mk_verify(program, NULL), MK_OK, "%s", mk_error_message());
  for (uint32_t i = 8001; i + 1 < program->instruction_count; i += 97) {
    mk_instruction *a = &program->instructions[i], saved = *a;
    if (a->opcode == MK_OP_GLU) { /* its result lands where that of its neighbour does */
      a->operands[MK_SLOT_GLU_out].col ^= 1;
      cr_expect_eq(mk_verify(program, NULL), MK_ERR_REJECTED, "instruction %u", i);
      *a = saved;
    }
    if (a->wait_count != 0) {
      a->waits[0].threshold++;
      cr_expect_eq(mk_verify(program, NULL), MK_ERR_REJECTED, "instruction %u", i);
      *a = saved;
    }
    if (a->opcode == MK_OP_LINEAR_ADD) { /* the residual of another layer */
      a->operands[MK_SLOT_LINEAR_ADD_residual_in].buffer = a->operands[MK_SLOT_LINEAR_ADD_residual_out].buffer;
      cr_expect_eq(mk_verify(program, NULL), MK_ERR_REJECTED, "instruction %u", i);
      *a = saved;
    }
  }
  mk_program_free(program);
}
