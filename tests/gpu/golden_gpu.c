/* Goldens (tests/oracle) on the GPU: the logits of transformers and of plain C, the same bits in every launch, and what
 * comes of a stop. */
#include <math.h>
#include <stdio.h>
#include <string.h>

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

void test_rows_golden(const char *path, uint32_t rows) {
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

void test_family_golden(const char *path, bool quick) {
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

void test_golden(const char *path, bool first, bool quick) {
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
