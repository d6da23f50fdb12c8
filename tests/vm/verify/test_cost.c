/* What verifying costs: steps that grow as the program does, and 4 GB for a million instructions, whatever their edges
 * look like. (A million take about 2 s of a core; that is for a quiet machine to measure and not for a test.) */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/effort.h"
#include "tests/support/steps.h"
#include "vm/program/asm.h"
#include "vm/verify/verify.h"

enum { MAX_MEGABYTES = 4096 };

TestSuite(verify_cost, .timeout = MK_HANG_SECONDS);

static uint64_t steps_of(mk_program *program) {
  uint64_t before = test_steps();
  cr_assert_eq(mk_verify(program, NULL), MK_OK, "%s", mk_error_message());
  mk_program_free(program);
  return test_steps() - before;
}

static void expect_linear(mk_program *(*make)(int size), int size) {
  struct rusage usage;
  uint64_t quarter = steps_of(make(size / 4));
  test_expect_linear("verifying", quarter, steps_of(make(size)));
  cr_assert_eq(getrusage(RUSAGE_SELF, &usage), 0);
  cr_expect_lt(usage.ru_maxrss / 1024, (long)MAX_MEGABYTES, "%ld MB", usage.ru_maxrss / 1024);
}

static mk_program *compiled(int layers) {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  cr_assert_eq(mk_synth_shape("llama-3.1-70b", &config), MK_OK);
  config.layers = (uint32_t)layers;
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_compile(graph, &(mk_compile_options){.sms = 200, .max_seq = 4096}, &program), MK_OK, "%s",
               mk_error_message());
  mk_graph_free(graph);
  cr_assert_gt(program->instruction_count, 1000 * (size_t)layers);
  return program;
}

Test(verify_cost, a_million_compiled_instructions) { expect_linear(compiled, (int)test_repeats(100, 1000)); }

/* One counter that every instruction waits for and that, in the longest program, gets as many signals as it may: each
 * signal is compared with the waits of the epoch before. */
static mk_program *of_one_counter(int per_sm) {
  enum { SMS = 132, LONGEST = 5000, SIGNALS = 496 };
  const int signals = per_sm * SIGNALS / LONGEST;
  char *text;
  size_t length;
  FILE *out = open_memstream(&text, &length);
  fprintf(out,
          "mkvm-program 1\nmachine sms=%d\nrange position=0..63 token=0..31 block=0..0 batch=1..1\n"
          "buffer e kind=weight dtype=bf16 store=tiles shape=32x16 tile=16x16\n"
          "buffer w kind=weight dtype=bf16 store=tiles shape=16x16 tile=16x16\n"
          "buffer g kind=weight dtype=bf16 store=plain shape=1x16 tile=1x16\n"
          "buffer f kind=weight dtype=f32 store=plain shape=1x32 tile=1x16\n"
          "buffer plan kind=input dtype=u32 store=plain shape=1x256 tile=1x16\n"
          "buffer ring kind=output dtype=u32 store=plain shape=1x65 tile=1x16\n"
          "buffer logits kind=output dtype=f32 store=plain shape=1x32 tile=1x16\n"
          "buffer r kind=activation dtype=f32 store=plain shape=1x16 tile=1x16\n"
          "buffer s kind=activation dtype=bf16 store=stamped shape=1x16 tile=1x16\n"
          "buffer c kind=activation dtype=u32 store=stamped shape=%dx2 tile=1x2\n"
          "buffer last kind=activation dtype=f32 store=stamped shape=%dx16 tile=1x16\n"
          "counter all kind=relaxed\n",
          SMS, SMS, SMS);
  for (int sm = 0; sm < SMS; sm++) {
    fprintf(out, "buffer q%d kind=activation dtype=f32 store=stamped shape=%dx16 tile=1x16\n", sm, per_sm);
  }
  for (int sm = 0, uid = 1; sm < SMS; sm++) {
    fprintf(out, "queue %d:\n", sm);
    for (int i = 0; i < per_sm; i++) {
      bool is_last = i == per_sm - 1;
      fprintf(out, "#%d qkv x=e@token gain=g weight=w inv_freq=f eps=1e-5 width=16 head_dim=64 out=", uid++);
      fprintf(out, is_last ? "last[%d:%d,0:1]" : "q%d[%d:%d,0:1]", sm, is_last ? sm + 1 : i, i + 1);
      fprintf(out, "%s%s\n", sm == 0 && i == 0 ? "" : " wait=all>=1", i < signals ? " signal=all+1" : "");
    }
    if (sm == 0) {
      fprintf(out, "#%d reduce_add parts=last residual_in=e@token residual_out=r out=s\n", uid++);
    }
    fprintf(out, "#%d head x=s gain=g candidate=c[%d:%d,0:1] eps=1e-5 width=16 vocab=32", uid++, sm, sm + 1);
    if (sm < 2) {
      fprintf(out, " weight=e[%d:%d,0:1] logits=logits[0:1,%d:%d]\n", sm, sm + 1, sm, sm + 1);
    } else {
      fputs(" weight=e[0:0,0:0] logits=logits[0:0,0:0]\n", out);
    }
    fprintf(out, "#%d next candidates=c plan=plan ring=ring%s\n", uid++, sm == 0 ? "" : "[0:0,0:0]");
  }
  fclose(out);
  mk_program *program;
  cr_assert_eq(mk_assemble(text, length, &program), MK_OK, "%s", mk_error_message());
  free(text);
  cr_assert_gt(program->instruction_count, (size_t)SMS * (size_t)per_sm);
  return program;
}

Test(verify_cost, one_counter_for_all) { expect_linear(of_one_counter, (int)test_repeats(500, 5000)); }
