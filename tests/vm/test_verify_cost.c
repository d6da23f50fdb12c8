/* What verifying costs: a million instructions within 30 s of one core and 4 GB, whatever their edges look like. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "vm/asm.h"
#include "vm/verify.h"

/* Under AddressSanitizer a tenth of the work gets the same time. */
#ifdef __SANITIZE_ADDRESS__
enum { SMALLER = 10 };
#else
enum { SMALLER = 1 };
#endif
enum { MAX_SECONDS = 30, MAX_MEGABYTES = 4096 };

TestSuite(verify_cost, .timeout = 600);

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void expect_cheap(mk_program *program, double limit) {
  struct rusage usage;
  double start = seconds();
  cr_assert_eq(mk_verify(program, NULL), MK_OK, "%s", mk_error_message());
  double took = seconds() - start;
  cr_assert_eq(getrusage(RUSAGE_SELF, &usage), 0);
  cr_expect_lt(took, limit, "%zu instructions took %.1f s", program->instruction_count, took);
  cr_expect_lt(usage.ru_maxrss / 1024, (long)MAX_MEGABYTES, "%ld MB", usage.ru_maxrss / 1024);
  mk_program_free(program);
}

Test(verify_cost, a_million_compiled_instructions) {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  cr_assert_eq(mk_synth_shape("llama-3.1-70b", &config), MK_OK);
  config.layers = 1000 / SMALLER;
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_compile(graph, &(mk_compile_options){.sms = 200, .max_seq = 4096}, &program), MK_OK, "%s",
               mk_error_message());
  mk_graph_free(graph);
  cr_assert_gt(program->instruction_count, 1000000 / SMALLER);
  expect_cheap(program, MAX_SECONDS);
}

/* One counter that every instruction waits for and that gets as many signals as it may: each signal is compared with the waits of
 * the epoch before. */
Test(verify_cost, one_counter_for_all) {
  enum { SMS = 132, PER_SM = 5000 / SMALLER, SIGNALS = 496 };
  char *text;
  size_t length;
  FILE *out = open_memstream(&text, &length);
  fprintf(out,
          "mkvm-program 1\nmachine sms=%d\nrange position=0..63 token=0..31 block=0..0 batch=1..1\n"
          "buffer e kind=weight dtype=bf16 store=tiles shape=32x16 tile=16x16\n"
          "buffer w kind=weight dtype=bf16 store=tiles shape=16x16 tile=16x16\n"
          "buffer g kind=weight dtype=bf16 store=plain shape=1x16 tile=1x16\n"
          "buffer f kind=weight dtype=f32 store=plain shape=1x32 tile=1x16\n"
          "buffer prompt kind=input dtype=u32 store=plain shape=1x64 tile=1x16\n"
          "buffer ring kind=output dtype=u32 store=plain shape=1x65 tile=1x16\n"
          "buffer logits kind=output dtype=f32 store=plain shape=1x32 tile=1x16\n"
          "buffer r kind=activation dtype=f32 store=plain shape=1x16 tile=1x16\n"
          "buffer s kind=activation dtype=bf16 store=stamped shape=1x16 tile=1x16\n"
          "buffer c kind=activation dtype=u32 store=stamped shape=%dx2 tile=1x2\n"
          "buffer last kind=activation dtype=f32 store=stamped shape=%dx16 tile=1x16\n"
          "counter all kind=relaxed\n",
          SMS, SMS, SMS);
  for (int sm = 0; sm < SMS; sm++) {
    fprintf(out, "buffer q%d kind=activation dtype=f32 store=stamped shape=%dx16 tile=1x16\n", sm, PER_SM);
  }
  for (int sm = 0, uid = 1; sm < SMS; sm++) {
    fprintf(out, "queue %d:\n", sm);
    for (int i = 0; i < PER_SM; i++) {
      bool is_last = i == PER_SM - 1;
      fprintf(out, "#%d qkv x=e@token gain=g weight=w inv_freq=f eps=1e-5 width=16 head_dim=64 out=", uid++);
      fprintf(out, is_last ? "last[%d:%d,0:1]" : "q%d[%d:%d,0:1]", sm, is_last ? sm + 1 : i, i + 1);
      fprintf(out, "%s%s\n", sm == 0 && i == 0 ? "" : " wait=all>=1", i < SIGNALS ? " signal=all+1" : "");
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
    fprintf(out, "#%d next candidates=c prompt=prompt ring=ring%s\n", uid++, sm == 0 ? "" : "[0:0,0:0]");
  }
  fclose(out);
  mk_program *program;
  cr_assert_eq(mk_assemble(text, length, &program), MK_OK, "%s", mk_error_message());
  free(text);
  cr_assert_gt(program->instruction_count, 600000 / SMALLER);
  expect_cheap(program, MAX_SECONDS / 5.0);
}
