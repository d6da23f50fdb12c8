/* Tests of the GPU machine, as one plain program that can be carried to a machine with a GPU and nothing but its
 * driver:
 *   mkvm_gpu_tests [--device cuda:N] [--quick] [--model DIR] GOLDEN.bin ...
 *   mkvm_gpu_tests [--device cuda:N] --like SHAPE --depth TOKENS
 *   mkvm_gpu_tests [--device cuda:N] [--quick] [--model DIR] --rows [GOLDEN.bin ...]
 *   mkvm_gpu_tests [--device cuda:N] [--quick] --families [GOLDEN.bin ...]
 *   mkvm_gpu_tests [--device cuda:N] [--quick] --quantised
 *   mkvm_gpu_tests [--device cuda:N] [--quick] --mla
 *   mkvm_gpu_tests [--device cuda:N] [--quick] --mixture
 *   mkvm_gpu_tests [--device cuda:N] [--quick] --many
 *   mkvm_gpu_tests [--device cuda:N] [--quick] --schedules
 *   mkvm_gpu_tests [--device cuda:N] [--quick] --ranks
 *   mkvm_gpu_tests [--device cuda:N] [--quick] --programs FILE.mks ...
 * The first program of --programs also has indices out of range put before it.
 * --deadline MS before these: of every wait, for a tool that slows the GPU down.
 * Prints a line per check and "N passed, N failed"; exit code 0, 1 when a check failed, 77 when there is no GPU to test
 * on. Goldens: tests/oracle/README.md. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "models/llama.h"
#include "scheduler/compile.h"
#include "tests/gpu/golden_run.h"
#include "tests/gpu/gpu_test.h"
#include "tools/lib/compare.h"
#include "vm/gpu/extra.h"

enum {
  REPEATS = 20,
  COMPARED_WITH_CPU = 8,
  COMPARED_STEPS = 3,
  CYCLES = 1000,
  RELAUNCHES = 100,
  RELAUNCH_STEPS = 16,
  QUICK_PROMPT = 300
};

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

static void test_logits(const golden *g) {
  mk_engine *engine;
  if (!expect_ok(open_engine(g, device, true, &engine), g->name)) {
    return;
  }
  output out;
  char text[160];
  new_output(&out, g->steps, g->config.vocab);
  if (expect_ok(generate(g, engine, &out), g->name)) {
    expect(out.count == g->steps && out.has_logits, g->name, "not every token came, or without logits");
    double error = worst_error(&out, g->logits, common_rows(g, &out));
    snprintf(text, sizeof text, "the logits differ from transformers' by %g; %g is allowed", error, g->step_error);
    expect(error <= g->step_error, g->name, text);
    expect_bf16_error(g, &out, common_rows(g, &out));
    expect(tokens_agree(g, &out), g->name, "the tokens differ from transformers'");
    printf("%s: relative error of logits %.2e\n", g->name, error);
    mk_engine *cpu;
    output reference;
    if (is_large(g)) { /* the CPU would take minutes */
      free_output(&out);
      mk_engine_close(engine);
      return;
    }
    new_output(&reference, g->steps < COMPARED_WITH_CPU ? g->steps : COMPARED_WITH_CPU, g->config.vocab);
    if (expect_ok(open_engine(g, "cpu", true, &cpu), g->name)) {
      if (expect_ok(generate(g, cpu, &reference), g->name)) {
        uint32_t rows = 0;
        while (rows < reference.count && reference.tokens[rows] == out.tokens[rows]) {
          rows++;
        }
        rows += rows < reference.count;
        error = worst_error(&out, reference.logits, rows);
        snprintf(text, sizeof text, "the logits differ from the CPU machine's by %g; %g is allowed", error,
                 g->step_error);
        expect(error <= g->step_error, g->name, text);
        printf("%s: against the CPU machine %.2e over %u tokens\n", g->name, error, rows);
      }
      mk_engine_close(cpu);
    }
    free_output(&reference);
  }
  free_output(&out);
  mk_engine_close(engine);
}

/* The prompt in chunks of `rows`, and what follows in single rows. */
static void test_rows_logits(const golden *g, uint32_t rows) {
  mk_engine *engine;
  output out;
  char text[160];
  if (g->config.hidden % MK_TILE != 0 || g->config.intermediate % MK_TILE != 0) {
    return; /* such programs have one row on this machine */
  }
  if (!expect_ok(open_engine_rows(g, device, true, rows, &engine), g->name)) {
    return;
  }
  new_output(&out, g->steps, g->config.vocab);
  if (expect_ok(generate(g, engine, &out), g->name)) {
    double error = worst_error(&out, g->logits, common_rows(g, &out));
    snprintf(text, sizeof text, "in chunks of %u, the logits differ from transformers' by %g; %g is allowed", rows,
             error, g->step_error);
    expect(error <= g->step_error, g->name, text);
    expect_bf16_error(g, &out, common_rows(g, &out));
    expect(tokens_agree(g, &out), g->name, "in chunks, the tokens differ from transformers'");
    printf("%s: in chunks of %u, relative error of logits %.2e\n", g->name, rows, error);
  }
  free_output(&out);
  mk_engine_close(engine);
}

/* One launch for the whole generation; the same bits every time, also in the logits that it leaves. */
static void test_repeat(const golden *g, unsigned repeats) {
  mk_engine *engine;
  if (!expect_ok(open_engine(g, device, false, &engine), g->name)) {
    return;
  }
  output first, again;
  new_output(&first, g->steps, g->config.vocab);
  new_output(&again, g->steps, g->config.vocab);
  size_t bytes = g->config.vocab * sizeof(float);
  size_t logits = (size_t)mk_program_find_buffer(mk_engine_program(engine), "logits");
  mk_gpu *gpu = mk_engine_gpu(engine);
  for (unsigned i = 0; i < repeats; i++) {
    output *out = i == 0 ? &first : &again;
    if (!expect_ok(generate(g, engine, out), g->name) ||
        !expect_ok(mk_gpu_read(gpu, logits, 0, out->logits, bytes), g->name)) {
      break;
    }
    if (i == 0) {
      expect(first.count == g->steps && !first.has_logits, g->name, "not every token came in one launch");
      expect(tokens_agree(g, &first), g->name, "the tokens of one launch differ from transformers'");
      expect(mk_gpu_launches(gpu) == 1, g->name, "one generation took more than one launch");
      continue;
    }
    expect(again.count == first.count && memcmp(again.tokens, first.tokens, first.count * sizeof *first.tokens) == 0,
           g->name, "a repeated run gave other tokens");
    expect(memcmp(again.logits, first.logits, bytes) == 0, g->name, "a repeated run gave other logits");
  }
  free_output(&first);
  free_output(&again);
  mk_engine_close(engine);
}

/* The same bits, logits included, from many launches that go on from the same context. */
static void test_relaunch(const golden *g) {
  mk_engine *engine;
  if (!expect_ok(open_engine(g, device, false, &engine), g->name)) {
    return;
  }
  output out;
  new_output(&out, g->steps, g->config.vocab);
  mk_gpu *gpu = mk_engine_gpu(engine);
  size_t bytes = g->config.vocab * sizeof(float);
  size_t logits = (size_t)mk_program_find_buffer(mk_engine_program(engine), "logits");
  uint32_t position = g->prompt_count - 1, token = g->tokens[position];
  uint32_t steps = g->steps < RELAUNCH_STEPS ? g->steps : RELAUNCH_STEPS;
  float *first = out.logits, *again = out.logits + g->config.vocab; /* two rows of it */
  unsigned differing = 0;
  bool ok = g->steps >= 2 && expect_ok(generate(g, engine, &out), g->name);
  for (unsigned i = 0; ok && i < RELAUNCHES; i++) {
    mk_step_row plan[RELAUNCH_STEPS];
    mk_plan_sequence(plan, steps, position, &token, 1, MK_ROW_PROMPT);
    ok = expect_ok(mk_gpu_run_plan(gpu, plan, steps, NULL, NULL), g->name) &&
         expect_ok(mk_gpu_read(gpu, logits, 0, i == 0 ? first : again, bytes), g->name);
    differing += ok && i != 0 && memcmp(first, again, bytes) != 0;
  }
  printf("%s: %u of %d launches of %u steps after %u tokens differ in a bit of the last logits\n", g->name, differing,
         RELAUNCHES, steps, g->prompt_count);
  expect(ok && differing == 0, g->name, "a launch after the same context gave other logits");
  free_output(&out);
  mk_engine_close(engine);
}

static void test_stop(const golden *g) {
  mk_engine *engine;
  if (!expect_ok(open_engine(g, device, false, &engine), g->name)) {
    return;
  }
  output whole, part;
  new_output(&whole, g->steps, g->config.vocab);
  new_output(&part, g->steps, g->config.vocab);
  part.stop_after = 3;
  if (expect_ok(generate(g, engine, &whole), g->name) && expect_ok(generate(g, engine, &part), g->name)) {
    expect(part.count == 3 && memcmp(part.tokens, whole.tokens, 3 * sizeof *part.tokens) == 0, g->name,
           "stopped by the callback: other tokens, or not three");
    expect(mk_gpu_steps(mk_engine_gpu(engine)) >= g->prompt_count + 2, g->name, "fewer steps than tokens reported");
    part.stop_after = 0;
    if (expect_ok(generate(g, engine, &part), g->name)) {
      expect(part.count == whole.count && memcmp(part.tokens, whole.tokens, whole.count * sizeof *whole.tokens) == 0,
             g->name, "the run after a stopped one gave other tokens");
    }
  }
  free_output(&whole);
  free_output(&part);
  mk_engine_close(engine);
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

/* A skipped signal ends in a message that names what stood still, within the deadline; then the machine works again. */
static void test_fault(const golden *g, mk_opcode opcode) {
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

static void test_refusals(const golden *g) {
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

/* Opening, one token and closing, again and again: device memory and host memory stay what they were. */
static void test_cycles(const golden *g, unsigned cycles) {
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

/* Records without a hole or a step back, on the same time as the launch. */
/* A track that is full counts what it drops. */
static void test_full_trace(const golden *g) {
  mk_engine *engine;
  if (!expect_ok(open_engine(g, device, false, &engine), g->name)) {
    return;
  }
  mk_gpu *gpu = mk_engine_gpu(engine);
  output out;
  new_output(&out, g->steps, g->config.vocab);
  mk_trace *trace = NULL;
  if (expect_ok(mk_gpu_trace_on(gpu, 0, 4, 16), g->name) && expect_ok(generate(g, engine, &out), g->name) &&
      expect_ok(mk_gpu_trace_take(gpu, &trace), g->name)) {
    const mk_trace_track *track = mk_trace_track_of(trace, 0, MK_ROLE_CONSUMER);
    expect(track->count >= 16 && track->count <= 32 && track->dropped > 0, g->name,
           "a full track does not count what it drops");
  }
  mk_trace_free(trace);
  free_output(&out);
  mk_engine_close(engine);
}

/* Every instruction of some steps beside its plain C reference. */
static void test_compare(const golden *g) {
  mk_engine *machine, *oracle;
  if (!expect_ok(open_engine(g, device, false, &machine), g->name)) {
    return;
  }
  if (expect_ok(open_engine(g, "cpu", false, &oracle), g->name)) {
    mk_compare *compare;
    expect_ok(mk_compare_generate(machine, oracle, g->tokens, g->prompt_count, COMPARED_STEPS, NULL, NULL, &compare),
              g->name);
    double worst = 0;
    for (uint32_t op = 0; compare != NULL && op < MK_OP_COUNT; op++) {
      worst = mk_compare_rows(compare)[op].worst > worst ? mk_compare_rows(compare)[op].worst : worst;
    }
    printf("%s: instruction by instruction, the worst output is off by %.2e\n", g->name, worst);
    mk_compare_free(compare);
    mk_engine_close(oracle);
  }
  mk_engine_close(machine);
}

static void test_rows_golden(const char *path, uint32_t rows) {
  golden g;
  const char *why;
  if (!golden_file_read(path, &g, &why)) {
    expect(false, path, why);
  } else if (!g.is_directory || model != NULL) {
    test_rows_logits(&g, rows);
  }
  golden_file_free(&g);
}

static bool goes_wide(const golden *g) {
  const mk_compile_options wide = {.rows = MK_WIDE_ROWS, .slots = 1};
  mk_graph *graph = NULL;
  const bool goes = expect_ok(mk_llama_graph(&g->config, &graph), g->name) && mk_is_wide(graph, &wide);
  mk_graph_free(graph);
  return goes;
}

/* Of a family that may have no program for wide steps; its prompt may be too long for every instruction of it to be
 * computed again. */
static void test_family_golden(const char *path, bool quick) {
  golden g;
  const char *why;
  if (!golden_file_read(path, &g, &why)) {
    expect(false, path, why);
  } else {
    test_logits(&g);
    test_rows_logits(&g, MK_MAX_ROWS);
    if (goes_wide(&g)) {
      test_rows_logits(&g, MK_WIDE_ROWS);
    }
    if (!quick || g.prompt_count <= QUICK_PROMPT) {
      test_compare(&g);
    }
    test_repeat(&g, quick ? 2 : REPEATS);
  }
  golden_file_free(&g);
}

static void test_golden(const char *path, bool first, bool quick) {
  golden g;
  const char *why;
  if (!golden_file_read(path, &g, &why)) {
    expect(false, path, why);
  } else if (g.is_directory && model == NULL) {
    printf("%s: left out, its weights are files: give their folder with --model\n", g.name);
  } else {
    test_logits(&g);
    test_rows_logits(&g, MK_MAX_ROWS);
    test_rows_logits(&g, MK_WIDE_ROWS);
    if (!is_large(&g)) {
      test_compare(&g);
      test_full_trace(&g);
    }
    if (!is_large(&g) || !quick) {
      test_repeat(&g, is_large(&g) || (quick && !first) ? 2 : REPEATS);
    }
    if (!quick) {
      test_relaunch(&g);
    }
    if (!is_large(&g) && (first || !quick)) {
      test_stop(&g);
      test_fault(&g, MK_OP_QKV);
      test_fault(&g, MK_OP_GLU);
      test_fault(&g, MK_OP_HEAD);
    }
    if (!is_large(&g) && first) {
      test_refusals(&g);
      test_cycles(&g, quick ? CYCLES / 20 : CYCLES);
    }
  }
  golden_file_free(&g);
}

static const char usage[] =
    "usage: mkvm_gpu_tests [--device cuda:N] [--quick] [--model DIR] GOLDEN.bin ...\n"
    "       mkvm_gpu_tests [--device cuda:N] --like SHAPE --depth TOKENS\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --many\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --families [GOLDEN.bin ...]\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --quantised [FORM ...]\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --fp8-cache\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --mla\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --mixture\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --sampling\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --schedules\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --tiles\n"
    "       mkvm_gpu_tests [--device cuda:N] --traces\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] --programs FILE.mks ...\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] [--model DIR] --rows [GOLDEN.bin ...]\n"
    "       mkvm_gpu_tests [--device cuda:N] [--quick] [--model DIR] --prompts [GOLDEN.bin ...]\n"
    "--deadline MS: of every wait, for runs under a tool that slows the GPU down (1500)\n"
    "--kv fp8: of every model with a cache that it may have; with --rows, --sampling, --traces, --depth\n"
    "--model DIR: weights of the goldens that are of a model directory (demo.bin: models/demo)\n"
    "--rows: only several rows per step, and of the goldens only their prompts in chunks\n"
    "--prompts: the same of programs for the prompt of one sequence\n"
    "--families: only what sets other families apart, and goldens of those\n"
    "--quantised: only weights of eight and four bits, of all forms or of those named (\"int4\")\n"
    "--fp8-cache: only a KV cache in fp8\n"
    "--quick: fewer repeats, none of large goldens, and faults on the first golden only\n"
    "--like SHAPE --depth TOKENS: only that launches after so many tokens of hash values in the KV cache give the same "
    "bits\n"
    "--mla: only the tile library and MLA decode\n"
    "--mixture: only that logits are the same in every mixture of machines and rows\n"
    "--sampling: only draws\n"
    "--ranks: only models that several GPUs share, from that one on\n"
    "--schedules: only requests that come and go at an engine\n"
    "--tiles: only the tile library\n"
    "--traces: only the recorder\n";

static int finish(void) {
  printf("%u passed, %u failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
  bool quick = false, mla = false, sampling = false, rows = false, prompts = false, programs = false, mixture = false;
  bool schedules = false, tiles = false, traces = false, many = false, families = false, ranks = false;
  bool quantised = false, fp8_cache = false;
  bool first = true;
  const char *shape = NULL;
  uint32_t depth = 0;
  int at = 1;
  for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
    if (strcmp(argv[at], "--quick") == 0) {
      quick = true;
    } else if (strcmp(argv[at], "--mla") == 0) {
      mla = true;
    } else if (strcmp(argv[at], "--sampling") == 0) {
      sampling = true;
    } else if (strcmp(argv[at], "--rows") == 0) {
      rows = true;
    } else if (strcmp(argv[at], "--many") == 0) {
      many = true;
    } else if (strcmp(argv[at], "--prompts") == 0) {
      prompts = true;
    } else if (strcmp(argv[at], "--mixture") == 0) {
      mixture = true;
    } else if (strcmp(argv[at], "--schedules") == 0) {
      schedules = true;
    } else if (strcmp(argv[at], "--ranks") == 0) {
      ranks = true;
    } else if (strcmp(argv[at], "--tiles") == 0) {
      tiles = true;
    } else if (strcmp(argv[at], "--traces") == 0) {
      traces = true;
    } else if (strcmp(argv[at], "--families") == 0) {
      families = true;
    } else if (strcmp(argv[at], "--quantised") == 0) {
      quantised = true;
    } else if (strcmp(argv[at], "--fp8-cache") == 0) {
      fp8_cache = true;
    } else if (strcmp(argv[at], "--kv") == 0 && at + 1 < argc && strcmp(argv[at + 1], "fp8") == 0) {
      kv = MK_DTYPE_E4M3;
      at++;
    } else if (strcmp(argv[at], "--programs") == 0) {
      programs = true;
    } else if (strcmp(argv[at], "--device") == 0 && at + 1 < argc) {
      device = argv[++at];
    } else if (strcmp(argv[at], "--deadline") == 0 && at + 1 < argc) {
      deadline_ms = (uint32_t)strtoul(argv[++at], NULL, 10);
    } else if (strcmp(argv[at], "--model") == 0 && at + 1 < argc) {
      model = argv[++at];
    } else if (strcmp(argv[at], "--like") == 0 && at + 1 < argc) {
      shape = argv[++at];
    } else if (strcmp(argv[at], "--depth") == 0 && at + 1 < argc) {
      depth = (uint32_t)strtoul(argv[++at], NULL, 10);
    } else {
      fputs(usage, stderr);
      return 2;
    }
  }
  if (!mk_gpu_present(device_index())) {
    printf("no GPU to test on: %s\n", mk_error_message());
    return 77;
  }
  if (shape != NULL && at == argc) {
    test_depth(shape, depth);
    return finish();
  }
  if (mla && at == argc) {
    test_tiles(quick);
    test_mla(quick);
    return finish();
  }
  if (sampling && at == argc) {
    test_sampling(quick);
    return finish();
  }
  if (mixture && at == argc) {
    test_mixture(quick);
    return finish();
  }
  if (quantised) {
    for (int i = at; i < argc; i++) {
      test_quantised(argv[i], quick);
    }
    if (at == argc) {
      test_quantised(NULL, quick);
    }
    return finish();
  }
  if (fp8_cache && at == argc) {
    test_kv(quick);
    return finish();
  }
  if (many && at == argc) {
    test_many(quick);
    return finish();
  }
  if (schedules && at == argc) {
    test_schedules(quick);
    return finish();
  }
  if (ranks && at == argc) {
    test_ranks(quick);
    return finish();
  }
  if (tiles && at == argc) {
    test_tiles(quick);
    return finish();
  }
  if (traces && at == argc) {
    test_traces();
    return finish();
  }
  if (programs && at < argc) {
    test_indices(argv[at]);
    for (; at < argc; at++) {
      test_program(argv[at], quick);
    }
    return finish();
  }
  if (families) {
    for (int i = at; i < argc; i++) {
      test_family_golden(argv[i], quick);
    }
    if (at == argc) {
      test_families(quick);
    }
    return finish();
  }
  if (rows) {
    test_rows(quick);
    for (; at < argc; at++) {
      test_rows_golden(argv[at], MK_MAX_ROWS);
    }
    return finish();
  }
  if (prompts) {
    test_prompts(quick);
    for (; at < argc; at++) {
      test_rows_golden(argv[at], MK_WIDE_ROWS);
    }
    return finish();
  }
  if (shape != NULL || mla || sampling || mixture || many || schedules || ranks || tiles || traces || fp8_cache ||
      at == argc) {
    fputs(usage, stderr);
    return 2;
  }
  test_tiles(quick);
  test_packing();
  test_sampling(quick);
  test_mla(quick);
  test_rows(quick);
  test_many(quick);
  test_families(quick);
  test_quantised(NULL, quick);
  test_kv(quick);
  test_prompts(quick);
  test_mixture(quick);
  test_schedules(quick);
  test_ranks(quick);
  test_traces();
  for (; at < argc; at++, first = false) {
    test_golden(argv[at], first, quick);
  }
  return finish();
}
