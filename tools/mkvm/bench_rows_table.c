/* See bench_rows_table.h. */
#include "tools/mkvm/bench_rows_table.h"

#include <stdio.h>

#include "scheduler/compile.h"
#include "tools/mkvm/command.h"

typedef struct printer {
  mk_engine *engine;
  const mk_bench_about *about;
  uint32_t rows;
  bool printed; /* something */
  mk_bench_rows_options last;
} printer;

static void test_name(const printer *p, const mk_bench_rows_options *test, char *text, size_t size) {
  if (test->prompt != 0) {
    snprintf(text, size, "pp%u in chunks of %u", test->prompt, p->rows);
  } else {
    snprintf(text, size, "%u x tg%u @ d%u", p->rows, test->steps, test->depth);
  }
}

static mk_status print_line(const mk_bench_rows_options *test, const char *name, double rate,
                            const mk_bench_rows_result *r) {
  if (test->prompt != 0) {
    printf("| %s | %.2f / %.2f to the first token | %.0f | %.0f | | |\n", name, r->ms_p50, r->ms_slowest, rate,
           r->sm_mhz);
  } else {
    printf("| %s | %.4f / %.4f a step | %.0f | %.0f | %.1f | %.1f (of %.2f TB/s) |\n", name, r->ms_p50, r->ms_slowest,
           rate, r->sm_mhz, r->bytes / 1e6, r->share * 100, r->bandwidth / 1e12);
  }
  return mk_print_done();
}

static json_t *object_of(const printer *p, const mk_bench_rows_options *test, const char *name, double rate,
                         const mk_bench_rows_result *r) {
  bool prompt = test->prompt != 0;
  json_t *object = mk_bench_about_object(p->about);
  int bad = json_object_set_new(object, "test", json_string(name));
  bad |= json_object_set_new(object, "n_rows", json_integer(p->rows));
  bad |= json_object_set_new(object, "n_prompt", json_integer(test->prompt));
  bad |= json_object_set_new(object, "n_gen", json_integer(prompt ? 0 : test->steps));
  bad |= json_object_set_new(object, "n_depth", json_integer(test->depth));
  bad |= json_object_set_new(object, "launches", json_integer(test->launches));
  bad |= json_object_set_new(object, "avg_ts", json_real(rate));
  bad |= json_object_set_new(object, "first_token_ms_p50", mk_bench_real_or_null(prompt, r->ms_p50));
  bad |= json_object_set_new(object, "first_token_ms_slowest", mk_bench_real_or_null(prompt, r->ms_slowest));
  bad |= json_object_set_new(object, "step_ms_p50", mk_bench_real_or_null(!prompt, r->ms_p50));
  bad |= json_object_set_new(object, "step_ms_slowest", mk_bench_real_or_null(!prompt, r->ms_slowest));
  bad |= json_object_set_new(object, "sm_mhz", mk_bench_real_or_null(r->sm_mhz > 0, r->sm_mhz));
  bad |= json_object_set_new(object, "bytes_per_step", mk_bench_real_or_null(!prompt, r->bytes));
  bad |= json_object_set_new(object, "read_bytes_per_s", mk_bench_real_or_null(r->bandwidth > 0, r->bandwidth));
  bad |= json_object_set_new(object, "read_share", mk_bench_real_or_null(r->share > 0, r->share));
  return mk_bench_object_or_null(object, bad);
}

static mk_status run_test(printer *p, const mk_bench_rows_options *test) {
  mk_bench_rows_result r;
  char name[64];
  MK_TRY(mk_bench_rows_run(p->engine, test, &r));
  test_name(p, test, name, sizeof name);
  double rate = (test->prompt != 0 ? test->prompt : p->rows) / r.ms_p50 * 1e3; /* tokens per second */
  mk_status status = p->about->format == MK_BENCH_MD
                         ? print_line(test, name, rate, &r)
                         : mk_bench_list_object(p->about->format, object_of(p, test, name, rate, &r), !p->printed);
  p->printed = true;
  p->last = *test;
  return status;
}

static mk_status begin(const mk_bench_about *about) {
  static const char head[] =
      "| test | ms (p50 / slowest) | t/s | SM MHz | MB/step | % read |\n|---|---:|---:|---:|---:|---:|\n";
  return about->format == MK_BENCH_MD ? mk_print(head, sizeof head - 1) : mk_bench_list_begin(about->format);
}

static mk_status end(const printer *p) {
  return p->about->format == MK_BENCH_MD ? mk_print_done() : mk_bench_list_end(p->about->format, p->printed);
}

static mk_status run_prompts(printer *p, const mk_bench_rows_tests *tests) {
  for (size_t i = 0; i < tests->prompt_count; i++) {
    const mk_bench_rows_options test = {.prompt = tests->prompts[i], .steps = 1, .launches = tests->launches};
    MK_TRY(test.prompt != 0 ? run_test(p, &test) : MK_OK);
  }
  return MK_OK;
}

static mk_status run_generated(printer *p, const mk_bench_rows_tests *tests) {
  MK_TRY(mk_bench_fill_kv(p->engine, 1));
  for (size_t i = 0; i < tests->depth_count * tests->generated_count; i++) {
    const uint32_t tokens = tests->generated[i % tests->generated_count];
    const mk_bench_rows_options test = {.depth = tests->depths[i / tests->generated_count],
                                        .steps = tokens < MK_PLAN_STEPS ? tokens : MK_PLAN_STEPS,
                                        .launches = tests->launches};
    MK_TRY(test.steps != 0 ? run_test(p, &test) : MK_OK);
  }
  return MK_OK;
}

mk_status mk_bench_rows_table(mk_engine *engine, const mk_bench_about *about, const mk_bench_rows_tests *tests,
                              mk_bench_rows_options *last) {
  printer p = {.engine = engine, .about = about, .rows = mk_program_rows(mk_engine_program(engine))};
  MK_TRY(begin(about));
  MK_TRY(run_prompts(&p, tests));
  if (mk_program_slots(mk_engine_program(engine)) > 1) { /* else no sequences share its steps */
    MK_TRY(run_generated(&p, tests));
  }
  *last = p.last;
  return end(&p);
}
