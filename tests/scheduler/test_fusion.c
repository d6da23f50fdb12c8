/* Which instructions a compiled program marks as fused, and that a mark changes nothing but what a machine may do. */
#include <criterion/criterion.h>
#include <string.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "vm/verify/verify.h"

static mk_program *compile(mk_compile_options options) {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

typedef struct marks {
  uint32_t combines, scores, fused_combines, fused_scores, others; /* others: marked */
} marks;

static marks count(const mk_program *p) {
  marks m = {0};
  for (size_t q = 0; q < p->queue_count; q++) {
    for (uint32_t i = 0; i < p->queues[q].count; i++) {
      const mk_instruction *in = &p->instructions[p->queues[q].first + i];
      bool fused = (in->flags & MK_FUSED) != 0, combine = in->opcode == MK_OP_COMBINE,
           score = in->opcode == MK_OP_SCORE;
      m.combines += combine;
      m.scores += score;
      m.fused_combines += combine && fused;
      m.fused_scores += score && fused;
      m.others += !combine && !score && fused;
    }
  }
  return m;
}

/* Without marks a program is as sound as with them: its stamps prove more. */
static void expect_sound(mk_program *p) {
  cr_expect_eq(mk_verify(p, NULL), MK_OK, "%s", mk_error_message());
  for (size_t i = 0; i < p->instruction_count; i++) {
    p->instructions[i].flags = 0;
  }
  cr_expect_eq(mk_verify(p, NULL), MK_OK, "%s", mk_error_message());
  mk_program_free(p);
}

Test(fusion, one_row) {
  mk_program *p = compile((mk_compile_options){.sms = 8, .max_seq = 64, .rows = 1});
  marks m = count(p);
  cr_expect(m.combines != 0 && m.fused_combines == m.combines && m.others == 0);
  expect_sound(p);
}

Test(fusion, sampling) {
  mk_program *p = compile((mk_compile_options){.sms = 4, .max_seq = 64, .rows = 1, .sampling = true});
  marks m = count(p);
  cr_expect(m.scores == 4 && m.fused_scores == 4 && m.others == 0);
  expect_sound(p);
}

Test(fusion, several_rows) {
  mk_program *p = compile((mk_compile_options){.sms = 4, .max_seq = 64, .rows = 4});
  marks m = count(p);
  cr_expect(m.combines != 0 && m.fused_combines == m.combines && m.others == 0);
  expect_sound(p);
}

/* A score is done where its head is, with several rows, too; what the mark says of a combine does not hold for it. */
Test(fusion, several_rows_that_sample) {
  mk_program *p = compile((mk_compile_options){.sms = 4, .max_seq = 64, .rows = 4, .sampling = true});
  marks m = count(p);
  cr_expect(m.scores == 4 && m.fused_scores == 4 && m.fused_combines == m.combines && m.others == 0);
  expect_sound(p);
}

Test(fusion, prompts_fuse_nothing) {
  mk_program *p = compile((mk_compile_options){.sms = 4, .max_seq = 128, .rows = MK_PROMPT_ROWS});
  marks m = count(p);
  cr_expect(m.combines != 0 && m.fused_combines + m.others == 0);
  for (size_t i = 0; i < p->instruction_count; i++) {
    if (p->instructions[i].opcode == MK_OP_COMBINE) {
      p->instructions[i].flags = MK_FUSED;
      break;
    }
  }
  cr_expect_eq(mk_verify(p, NULL), MK_ERR_REJECTED);
  cr_expect_eq(strncmp(mk_error_message(), "S12", 3), 0, "%s", mk_error_message());
  mk_program_free(p);
}
