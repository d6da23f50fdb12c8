/* What goes wrong on the GPU and must do no more harm: signals that do not come, GPUs and grids that there are not, and
 * starts and stops without end. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "models/llama.h"
#include "scheduler/compile.h"
#include "tests/gpu/golden_run.h"
#include "tests/gpu/gpu_test.h"
#include "vm/gpu/extra.h"

static long resident_pages(void) {
  long size = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file != NULL) {
    if (fscanf(file, "%ld %ld", &size, &resident) != 2) {
      resident = 0;
    }
    fclose(file);
  }
  return resident;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* An instruction of that opcode that others wait for. */
static uint32_t find_signaller(const mk_program *program, mk_opcode opcode) {
  for (size_t i = program->instruction_count; i-- > 0;) {
    if (program->instructions[i].opcode == opcode) {
      return program->instructions[i].uid;
    }
  }
  return 0;
}

void test_fault(const golden *g, mk_opcode opcode) {
  mk_engine *engine;
  if (!expect_ok(open_engine(g, device, false, &engine), g->name)) {
    return;
  }
  uint32_t uid = find_signaller(mk_engine_program(engine), opcode);
  output before, out;
  new_output(&before, g->steps, g->config.vocab);
  new_output(&out, g->steps, g->config.vocab);
  mk_gpu *gpu = mk_engine_gpu(engine);
  if (uid != 0 && expect_ok(generate(g, engine, &before), g->name)) {
    mk_gpu_skip_signal(gpu, uid);
    double start = seconds();
    mk_status status = generate(g, engine, &out);
    double took = seconds() - start;
    printf("%s, %s %u skipped: %.2f s: %s\n", g->name, mk_opcode_lookup(opcode)->name, uid, took,
           status == MK_OK ? "no fault" : mk_error_message());
    expect(status == MK_ERR_DEVICE, g->name, "a skipped signal was no device fault");
    expect(strstr(mk_error_message(), "SM ") != NULL && strstr(mk_error_message(), "instruction ") != NULL &&
               strstr(mk_error_message(), "have ") != NULL && strstr(mk_error_message(), "want ") != NULL,
           g->name, "the message does not name SM, instruction, edge, have and want");
    expect(took < 2.0, g->name, "the fault took 2 s or more");
    mk_gpu_skip_signal(gpu, 0);
    if (expect_ok(generate(g, engine, &out), g->name)) {
      expect(out.count == before.count && memcmp(out.tokens, before.tokens, out.count * sizeof *out.tokens) == 0,
             g->name, "the run after a fault gave other tokens");
    }
  }
  free_output(&before);
  free_output(&out);
  mk_engine_close(engine);
}

void test_refusals(const golden *g) {
  mk_engine *engine;
  expect(open_engine(g, "cuda:99", false, &engine) == MK_ERR_RUNTIME, "cuda:99", "a GPU that is not there was taken");
  mk_graph *graph = NULL;
  mk_program *program = NULL;
  mk_gpu *gpu = NULL;
  mk_compile_options compile = {.sms = 1024, .max_seq = 64};
  mk_gpu_options options = {0};
  mk_config config = g->config;
  config.max_position = 64;
  if (expect_ok(mk_llama_graph(&config, &graph), "1024 SMs") &&
      expect_ok(mk_compile(graph, &compile, &program), "1024 SMs")) {
    mk_status status = mk_gpu_new(program, &options, &gpu);
    expect(status == MK_ERR_RUNTIME && strstr(mk_error_message(), "compile it for") != NULL, "1024 SMs",
           status == MK_OK ? "a grid larger than the GPU was taken" : mk_error_message());
  }
  mk_gpu_free(gpu);
  mk_program_free(program);
  mk_graph_free(graph);
}

void test_cycles(const golden *g, unsigned cycles) {
  uint64_t before = 0, after = 0;
  long resident = 0, grown = 0;
  for (unsigned i = 0; i < cycles; i++) {
    mk_engine *engine;
    output one;
    new_output(&one, 1, g->config.vocab);
    bool ok = expect_ok(open_engine(g, device, false, &engine), g->name);
    if (ok) {
      ok = expect_ok(generate(g, engine, &one), g->name);
      mk_engine_close(engine);
    }
    free_output(&one);
    mk_gpu_description description;
    if (!ok || !expect_ok(mk_gpu_describe(device_index(), &description), g->name)) {
      return;
    }
    after = description.free_bytes;
    grown = resident_pages();
    if (i == cycles / 10) { /* what the driver and the C library keep has come by then */
      before = after;
      resident = grown;
    }
  }
  printf("%s: %u starts and stops; free device memory %+lld bytes, resident pages %+ld since the %uth\n", g->name,
         cycles, (long long)(after - before), grown - resident, cycles / 10 + 1);
  expect(after >= before, g->name, "starting and stopping loses device memory");
  expect(grown - resident < 1024, g->name, "starting and stopping loses host memory");
}
