/* `mkvm bench --load`: its arithmetic by a clock of the test's own, and the command as a user meets it. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/synth.h"
#include "tests/support/process.h"
#include "tests/support/shell.h"
#include "tools/lib/bench_load.h"

static int run(const char *arguments) {
  char command[1024];
  snprintf(command, sizeof command, "$MKVM bench --like tiny --device cpu %s 2>&1 </dev/null", arguments);
  return test_shell(MK_COMMAND, command);
}

static void expect(const char *arguments, int want, const char *words) {
  int code = run(arguments);
  cr_assert_eq(code, want, "%s: exit code %d, not %d\n%s", arguments, code, want, test_output);
  cr_assert_not_null(strstr(test_output, words), "%s: `%s` is not in\n%s", arguments, words, test_output);
}

TestSuite(bench_load, .timeout = MK_HANG_SECONDS);

/* ---- By a clock that goes on by a second at the boundary of every step ---- */

typedef struct fake {
  double now, waited;
  mk_load *load;
  mk_engine *engine;
  volatile sig_atomic_t cancel;
  double cancel_at; /* 0: never */
} fake;

static double fake_clock(void *user) { return ((fake *)user)->now; }

static void fake_wait(void *user, double seconds) {
  fake *f = user;
  cr_assert_gt(seconds, 0);
  f->now += seconds;
  f->waited += seconds;
}

static void boundary(void *user) {
  fake *f = user;
  f->now += 1;
  f->cancel = f->cancel_at > 0 && f->now >= f->cancel_at;
  mk_load_poll(f->load);
}

static mk_load_result run_fake(fake *f, mk_load_options load) {
  mk_config config;
  mk_load_result result;
  load.clock = fake_clock;
  load.wait = fake_wait;
  load.clock_user = f;
  load.cancel = &f->cancel;
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  cr_assert_eq(mk_load_new(&load, &f->load), MK_OK, "%s", mk_error_message());
  const mk_engine_options open = {.device = "cpu",
                                  .synth = &config,
                                  .sms = 4,
                                  .rows = 1,
                                  .max_seq = 64,
                                  .poll = boundary,
                                  .poll_user = f,
                                  .clock = fake_clock,
                                  .clock_user = f};
  cr_assert_eq(mk_engine_open(NULL, &open, &f->engine), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_load_run(f->load, f->engine, &result), MK_OK, "%s", mk_error_message());
  mk_engine_close(f->engine);
  mk_load_free(f->load);
  return result;
}

/* One row and one request at a time: a step for each token, a second for each step. */
Test(bench_load, times_one_at_a_time) {
  static const mk_load_length lengths[] = {{2, 4}, {3, 4}};
  fake f = {.now = 100};
  mk_load_result r =
      run_fake(&f, (mk_load_options){.requests = 6, .lengths = lengths, .length_count = 2, .concurrency = 1});
  cr_assert(r.arrived == 6 && r.ended == 6 && !r.interrupted);
  cr_assert_eq(r.generated, 24);
  cr_assert_eq(r.prompt_tokens, 3 * 2 + 3 * 3);
  cr_assert(r.gap.p50 == 1 && r.gap.p99 == 1, "%g %g", r.gap.p50, r.gap.p99);
  cr_assert_eq(r.steps, 3 * (2 + 3) + 3 * (3 + 3));
  cr_assert_float_eq(r.rows, 1, 1e-12);
  cr_assert(r.first.p99 == r.first.p50 + 1, "a prompt of 3 takes a step more: %g %g", r.first.p50, r.first.p99);
  cr_assert_eq(r.whole.p99 - r.first.p99, 3);
  cr_assert_eq(r.working, r.seconds);
  cr_assert_float_eq(r.token_rate, 24 / r.seconds, 1e-9);
  cr_assert_float_eq(r.request_rate, 6 / r.seconds, 1e-9);
}

/* All requests come at once, on one row: the last one waits for all others. */
Test(bench_load, the_queue_counts) {
  static const mk_load_length length = {1, 5};
  fake f = {.now = 7};
  mk_load_result r = run_fake(&f, (mk_load_options){.requests = 8, .lengths = &length, .length_count = 1});
  cr_assert_geq(r.queue.p99, 7 * 5);
  cr_assert_geq(r.first.p99, r.queue.p99);
  cr_assert_float_eq(r.whole.p99, r.seconds, 1.0 + 1e-9);
}

/* So rarely that every request is alone: the time without work is not counted as such. */
Test(bench_load, waits_are_no_work) {
  static const mk_load_length length = {1, 2};
  fake f = {.now = 3};
  mk_load_result r =
      run_fake(&f, (mk_load_options){.requests = 5, .lengths = &length, .length_count = 1, .rate = 1e-3, .seed = 4});
  double arrivals[5];
  mk_load_arrivals(4, 1e-3, 5, arrivals);
  cr_assert(r.ended == 5 && f.waited > 0);
  cr_assert_float_eq(r.working, r.seconds - f.waited, 1e-6);
  cr_assert(r.seconds > arrivals[4] && r.seconds < arrivals[4] + 20, "%g %g", r.seconds, arrivals[4]);
}

Test(bench_load, ends_when_asked_to) {
  static const mk_load_length length = {1, 9};
  fake f = {.now = 1, .cancel_at = 60};
  mk_load_result r = run_fake(&f, (mk_load_options){.requests = 50, .lengths = &length, .length_count = 1});
  cr_assert(r.interrupted && r.ended >= 1 && r.ended < 50, "%u ended", r.ended);
  cr_assert(r.generated >= 9 * r.ended && r.generated < 9 * (r.ended + 1));
}

Test(bench_load, idle_share) {
  cr_assert_float_eq(mk_load_idle(&(mk_load_result){.working = 4, .busy = 3}), 0.25, 1e-12);
  cr_assert_eq(mk_load_idle(&(mk_load_result){.working = 4, .busy = 4.001}), 0);
  cr_assert_eq(mk_load_idle(&(mk_load_result){0}), 0);
}

/* Poisson: gaps of mean 1 / rate, whose deviation is as large; the same seed gives the same ones. */
Test(bench_load, arrivals) {
  enum { COUNT = 20000 };
  static double at[COUNT], again[COUNT], other[COUNT];
  double squares = 0;
  mk_load_arrivals(1, 50, COUNT, at);
  mk_load_arrivals(1, 50, COUNT, again);
  mk_load_arrivals(2, 50, COUNT, other);
  cr_assert_arr_eq(at, again, sizeof at);
  cr_assert_neq(at[0], other[0]);
  for (size_t i = 0; i < COUNT; i++) {
    double gap = at[i] - (i == 0 ? 0 : at[i - 1]);
    cr_assert_geq(gap, 0);
    squares += gap * gap;
  }
  cr_assert_float_eq(at[COUNT - 1] / COUNT, 0.02, 0.02 * 0.03);
  cr_assert_float_eq(squares / COUNT, 2 * 0.02 * 0.02, 2 * 0.02 * 0.02 * 0.06);
}

/* ---- The command ---- */

static double number(const json_t *row, const char *key) {
  const json_t *value = json_object_get(row, key);
  cr_assert(json_is_number(value), "%s is no number", key);
  return json_number_value(value);
}

/* The only object of the list. */
static json_t *measured(const char *arguments) {
  cr_assert_eq(run(arguments), 0, "%s", test_output);
  json_t *rows = json_loads(test_output, JSON_REJECT_DUPLICATES, NULL);
  cr_assert_eq(json_array_size(rows), 1, "%s", test_output);
  return rows;
}

static void expect_order(const json_t *row) {
  cr_assert_leq(number(row, "first_token_ms_p50"), number(row, "first_token_ms_p99"));
  cr_assert_leq(number(row, "queue_ms_p99"), number(row, "first_token_ms_p99"));
  cr_assert_leq(number(row, "first_token_ms_p99"), number(row, "whole_ms_p99"));
  cr_assert(number(row, "tokens_per_s") > 0 && number(row, "seconds") > 0 && number(row, "between_tokens_ms_p50") > 0);
  cr_assert(json_is_null(json_object_get(row, "gpu_idle_share")));
  cr_assert(json_is_null(json_object_get(row, "gpu_ranking_share")));
  cr_assert(json_is_false(json_object_get(row, "interrupted")));
}

Test(bench_load, closed) {
  json_t *rows = measured("--load --requests 6 --in 20 --out 5 --concurrency 2 --rows 4 --json");
  const json_t *row = json_array_get(rows, 0);
  cr_assert(number(row, "requests") == 6 && number(row, "requests_ended") == 6 && number(row, "tokens") == 30);
  cr_assert(number(row, "n_rows") == 4 && number(row, "prompt_tokens") == 120);
  cr_assert(number(row, "rows_per_step") > 1 && number(row, "rows_per_step") <= 4);
  cr_assert_eq(number(row, "prefix_hit_share"), 0);
  expect_order(row);
  json_decref(rows);
}

Test(bench_load, at_a_rate) {
  json_t *rows = measured("--load --requests 6 --in 9 --out 4 --rate 30 -o json --seed 5");
  const json_t *row = json_array_get(rows, 0);
  double arrivals[6];
  mk_load_arrivals(5, 30, 6, arrivals);
  cr_assert(number(row, "requests_ended") == 6 && number(row, "tokens") == 24);
  cr_assert_gt(number(row, "seconds"), arrivals[5]);
  expect_order(row);
  json_decref(rows);
}

/* Ctrl-C after so long: the measured object, or NULL where the command had not begun to measure. */
static json_t *interrupted_after(useconds_t microseconds) {
  const char *const arguments[] = {"bench",         "--like", "tiny",   "--device", "cpu",        "--load",
                                   "--in",          "4",      "--out",  "4",        "--requests", "100000",
                                   "--concurrency", "20",     "--json", NULL};
  int in = open("/dev/null", O_RDONLY), out = test_scratch_file(), err = test_scratch_file();
  size_t length;
  pid_t child = test_start(MK_COMMAND, arguments, in, out, err);
  usleep(microseconds);
  cr_assert_eq(kill(child, SIGINT), 0);
  int code = test_finish(child);
  char *text = test_slurp(out, &length), *said = test_slurp(err, &length);
  cr_assert(code == 0 || code == 1 || code == 1000 + SIGINT, "exit code %d: %s", code, said);
  cr_assert(code != 0 || strstr(said, "interrupted: this is what was measured") != NULL, "%s", said);
  json_t *rows = code == 0 ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
  cr_assert(code != 0 || rows != NULL, "%s", text);
  free(text);
  free(said);
  close(in);
  close(out);
  close(err);
  return rows;
}

Test(bench_load, interrupt) {
  double ended = 0;
  for (useconds_t wait = 300000; ended == 0; wait *= 2) {
    json_t *rows = interrupted_after(wait);
    const json_t *row = json_array_get(rows, 0);
    cr_assert(rows == NULL || json_is_true(json_object_get(row, "interrupted")));
    ended = rows == NULL ? 0 : number(row, "requests_ended");
    json_decref(rows);
  }
  cr_assert_lt(ended, 100000);
}

/* Blocks that all prompts begin with are known to all but the first. */
Test(bench_load, shared_beginnings) {
  json_t *rows =
      measured("--load --requests 4 --in 140 --out 3 --shared 130 --prefix-tokens 1024 --concurrency 1 --json");
  cr_assert_float_eq(number(json_array_get(rows, 0), "prefix_hit_share"), 3 * 128 / (4 * 140.0), 1e-6, "%s",
                     test_output);
  json_decref(rows);
}

/* Who comes when the one before has gone has no company: two steps of 16 rows for its prompt, then nine of one row. */
Test(bench_load, one_at_a_time) {
  json_t *rows = measured("--load --requests 3 --in 20 --out 10 --concurrency 1 --json");
  const json_t *row = json_array_get(rows, 0);
  cr_assert_eq(number(row, "steps"), 3 * (2 + 9), "%s", test_output);
  cr_assert_float_eq(number(row, "one_row_share"), 9 / 11.0, 1e-6, "%s", test_output);
  cr_assert_eq(number(row, "few_rows_share"), 0, "the cpu has no machine for few");
  json_decref(rows);
}

/* A whole context for each row is room for a sequence in each row. */
Test(bench_load, every_row_generates) {
  json_t *rows = measured("--load --decode-only --out 70 --rows 4 --json");
  const json_t *row = json_array_get(rows, 0);
  cr_assert(number(row, "requests_ended") == 4 && number(row, "tokens") == 280 && number(row, "preemptions") == 0);
  cr_assert(number(row, "rows_per_step") == 4 && number(row, "steps") == 70, "%s", test_output);
  cr_assert_eq(number(row, "one_row_share"), 0);
  json_decref(rows);
  rows = measured("--load --decode-only --out 9 --rows 8 --json");
  cr_assert_eq(number(json_array_get(rows, 0), "rows_per_step"), 8, "%s", test_output);
  json_decref(rows);
}

Test(bench_load, tables) {
  expect("--load --requests 3 --in 4 --out 3", 0, "load: all at once, 16 rows; 3 requests came, 3 ended");
  expect("--load --requests 3 --in 4 --out 3 --logprobs 20", 0, "3 requests came, 3 ended");
  expect("--load --decode-only --out 6 --rows 2", 0, "load: decode only, 2 rows; 2 requests came, 2 ended");
}

static void expect_lengths(const char *text, int want, const char *words) {
  char path[] = "/tmp/mk-lengths-XXXXXX", arguments[128];
  int fd = mkstemp(path);
  FILE *file = fdopen(fd, "w");
  fputs(text, file);
  fclose(file);
  snprintf(arguments, sizeof arguments, "--load --requests 3 --lengths %s", path);
  expect(arguments, want, words);
  remove(path);
}

Test(bench_load, lengths) {
  expect_lengths("[[3, 2], [5, 4]]", 0, "prompt tokens: 11,");
  expect_lengths("[[3, 2], [5]]", 3, "element 1 is [5]; a pair");
  expect_lengths("[[3, 2], [5, 0]]", 3, "element 1 is [5,0]; a pair");
  expect_lengths("[[3, 2], 7]", 3, "element 1 is 7; a pair");
  expect_lengths("{}", 3, "an array of [in, out] pairs is expected");
  expect_lengths("[]", 3, "an array of [in, out] pairs is expected");
  expect_lengths("[[3, 2],\n [5,,]]", 3, "line 2, column");
  expect_lengths("[[3, 2], [3000, 4]]", 2, "length 1: a prompt of 3000 tokens and 4 generated do not fit");
}

Test(bench_load, errors) {
  expect("--load --rate 0", 2, "--rate: '0' is not a number of requests a second");
  expect("--load --rate nan", 2, "--rate: 'nan' is not a number");
  expect("--load --rate 3x", 2, "--rate: '3x' is not a number");
  expect("--load --rate 3 --concurrency 2", 2, "by the one or by the other");
  expect("--rate 3", 2, "need --load");
  expect("--load --lengths f --in 3", 2, "--lengths goes without --in and --out");
  expect("--load --decode-only --in 3", 2, "--decode-only goes without");
  expect("--load --logprobs 21", 2, "--logprobs");
  expect("--logprobs 2", 2, "need --load");
  expect("--load -n 4", 2, "--load goes without other tests");
  expect("--load --rows 1024", 2, "--rows 1024: a load is shared by 512 rows at most");
  expect("--load --in 60 --out 5 -c 64", 2, "do not fit into a context of 64; raise --ctx-size");
  expect("--load --in 5 --shared 6", 2, "a prompt of 5 tokens, 6 of them shared");
  expect("--load --lengths /nothing/there", 3, "/nothing/there");
}
