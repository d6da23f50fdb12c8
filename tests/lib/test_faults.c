/* The public library when the machine fails, over a GPU that is none (tests/support/fake_gpu.h). */
#include "tests/lib/library.h"
#include "tests/support/fake_gpu.h"

FAKE_GPU_IMAGE

TestSuite(library_faults, .timeout = MK_HANG_SECONDS);

enum { REQUESTS = 6, TOKENS = 40 };

typedef struct rig {
  fake_gpu kernel;
  fake_cuda *cuda;
  mkvm_engine *engine;
  answer answers[REQUESTS];
  size_t faults;      /* so many requests have ended by one */
  size_t sound_after; /* so many of them the machine is sound again */
  uint32_t breaks_at; /* when the first request has so many tokens, the driver works no more; 0: never */
} rig;

typedef struct asked {
  rig *rig;
  answer *answer;
} asked;

static int rig_token(void *user, const mkvm_token *token) {
  rig *r = ((asked *)user)->rig;
  const int goes_on = on_token(((asked *)user)->answer, token);
  r->cuda->broken = r->cuda->broken || (r->breaks_at != 0 && r->answers[0].count == r->breaks_at);
  return goes_on;
}

static void rig_end(void *user, const mkvm_end *end) {
  asked *a = user;
  on_end(a->answer, end);
  a->rig->faults += end->reason == MKVM_END_ERROR;
  if (a->rig->faults == a->rig->sound_after) {
    a->rig->kernel.fault_at = UINT32_MAX;
  }
  OK(mkvm_cancel(a->answer->engine, end->request)); /* leaves no message; what failed is told all the same */
}

/* Submits all requests to a machine that fails at that step of a launch. */
static void start(rig *r, uint32_t batch, uint32_t fault_at, asked *all) {
  static const uint32_t prompts[REQUESTS][3] = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {3, 2, 1}, {9, 9, 9}, {8, 8, 8}};
  mkvm_options options;
  r->cuda = fake_gpu_start(&r->kernel);
  r->kernel.fault_at = fault_at;
  r->cuda->blocks_per_sm = 1 + 132 / FAKE_CUDA_SMS; /* the library compiles for an H200 */
  mkvm_options_init(&options);
  options.device = "cuda";
  options.max_batch = batch;
  options.max_context = 100;
  OK(mkvm_open(directory, &options, &r->engine));
  for (size_t i = 0; i < REQUESTS; i++) {
    r->answers[i] = (answer){.engine = r->engine};
    all[i] = (asked){r, &r->answers[i]};
    mkvm_request request = request_of(NULL, prompts[i], 3, i == 0 ? TOKENS : TOKENS - 10 + i);
    request.on_token = rig_token;
    request.on_end = rig_end;
    request.user = &all[i];
    OK(mkvm_submit(r->engine, &request, NULL));
  }
}

static void stop(rig *r) {
  OK(mkvm_close(r->engine));
  cr_assert_eq(r->cuda->live, 0);
}

static void with_wide_model(void (*body)(void)) {
  config = test_model_config(TEST_MODEL_WIDE); /* a vocabulary of more than the GPU that is none chooses from */
  test_model_write(&config, directory);
  body();
  drop();
}

static void expect_whole(const rig *r, size_t i) {
  static const uint32_t last[REQUESTS] = {3, 6, 9, 1, 9, 8};
  uint32_t token = last[i];
  const answer *a = &r->answers[i];
  cr_assert(a->ends == 1 && a->end.reason == MKVM_END_LENGTH, "request %zu: %s", i, a->message);
  cr_assert_eq(a->count, i == 0 ? TOKENS : TOKENS - 10 + i);
  for (uint32_t t = 0; t < a->count; t++) {
    token = fake_gpu_choice(token, 2 + t);
    cr_assert_eq(a->tokens[t], token);
  }
}

static void expect_faulted(const rig *r, size_t i) {
  const answer *a = &r->answers[i];
  cr_assert(a->ends == 1 && a->end.reason == MKVM_END_ERROR && a->end.status == MKVM_ERR_DEVICE);
  cr_assert_not_null(strstr(a->message, "the program stands still: SM 3"), "'%s'", a->message);
}

static void note_line(void *user, mkvm_log_level level, const char *line) {
  if (level == MKVM_LOG_WARNING && strstr(line, "requests in a step") != NULL) {
    snprintf(user, TEST_PATH, "%s", line);
  }
}

/* Opens the model on so many GPUs for 64 requests in a step: so many there are, and a line says so where they are
 * fewer. */
static void expect_batch(mkvm_kv kv, uint32_t ranks, uint32_t batch, const char *words) {
  char line[TEST_PATH] = "";
  fake_gpu kernel;
  mkvm_options options;
  mkvm_engine *engine;
  mkvm_info info;
  config = test_model_config(TEST_MODEL_TINY);
  test_model_write(&config, directory);
  fake_cuda *cuda = fake_gpu_start(&kernel);
  cuda->blocks_per_sm = 1 + 132 / FAKE_CUDA_SMS; /* the library compiles for an H200 */
  cuda->devices = 2;                             /* a driver is asked for their number once */
  kernel.ranks = ranks == 1 ? 0 : ranks;
  mkvm_options_init(&options);
  options.device = ranks == 1 ? "cuda" : "cuda:0-1";
  options.max_batch = 64;
  options.max_context = 100;
  options.kv = kv;
  options.on_log = note_line;
  options.user = line;
  OK(mkvm_open(directory, &options, &engine));
  OK(mkvm_get_info(engine, &info));
  cr_expect_eq(info.max_batch, batch, "%u", info.max_batch);
  cr_expect_str_eq(line, words);
  OK(mkvm_close(engine));
  cr_assert_eq(cuda->live, 0);
  drop();
}

Test(library_faults, as_many_requests_in_a_step_as_there_can_be) {
  expect_batch(MKVM_KV_BF16, 1, 64, "");
  expect_batch(MKVM_KV_FP8, 1, 64, "");
  expect_batch(MKVM_KV_BF16, 2, 16, "requests in a step, with this model, cache and device: 16 instead of 64");
}

/* Requests in flight end with the error, those that wait get whole answers; and the engine goes on after that. */
static void go_on(uint32_t batch) {
  rig r = {.sound_after = batch};
  asked all[REQUESTS];
  start(&r, batch, 10, all);
  OK(mkvm_shutdown(r.engine, MKVM_DRAIN));
  OK(mkvm_serve(r.engine));
  for (size_t i = 0; i < REQUESTS; i++) {
    (i < batch ? expect_faulted : expect_whole)(&r, i);
  }
  mkvm_stats stats;
  OK(mkvm_get_stats(r.engine, &stats));
  cr_assert(stats.failed == batch && stats.full == REQUESTS - batch && stats.kv_tokens_used == 0);
  stop(&r);
}

static void serving_goes_on_with_four(void) { go_on(4); }
static void serving_goes_on_with_one(void) { go_on(1); }
Test(library_faults, serving_goes_on_with_those_that_wait) {
  with_wide_model(serving_goes_on_with_four);
  with_wide_model(serving_goes_on_with_one);
}

/* mkvm_run says so, and may be called again. */
static void run_and_run_again(void) {
  rig r = {.sound_after = 4};
  asked all[REQUESTS];
  start(&r, 4, 10, all);
  REFUSED(mkvm_run(r.engine), MKVM_ERR_DEVICE, "the program stands still: SM 3");
  cr_assert(r.answers[3].ends == 1 && r.answers[4].ends == 0);
  OK(mkvm_run(r.engine));
  expect_whole(&r, 4);
  expect_whole(&r, 5);
  stop(&r);
}
Test(library_faults, running_ends_and_can_begin_again) { with_wide_model(run_and_run_again); }

/* A machine that fails again before it has computed anything: enough. */
static void give_up(void) {
  rig r = {.sound_after = 99};
  asked all[REQUESTS];
  start(&r, 2, 0, all);
  REFUSED(mkvm_serve(r.engine), MKVM_ERR_DEVICE, "the program stands still: SM 3");
  for (size_t i = 0; i < 4; i++) {
    expect_faulted(&r, i);
  }
  cr_assert(r.answers[4].ends == 0 && r.answers[5].ends == 0);
  stop(&r);
  cr_assert(r.answers[4].end.reason == MKVM_END_CANCELLED && r.answers[5].end.reason == MKVM_END_CANCELLED);
}
Test(library_faults, serving_gives_up_when_nothing_works) { with_wide_model(give_up); }

/* A GPU that is lost: enough at once, whoever waits. */
static void lose_gpu(void) {
  rig r = {.sound_after = 99, .breaks_at = 5};
  asked all[REQUESTS];
  start(&r, 2, UINT32_MAX, all);
  REFUSED(mkvm_serve(r.engine), MKVM_ERR_DEVICE, "");
  for (size_t i = 0; i < REQUESTS; i++) {
    cr_assert_eq(r.answers[i].ends, i < 2 ? 1 : 0, "request %zu", i);
  }
  cr_assert(r.answers[0].end.reason == MKVM_END_ERROR && r.answers[0].end.status == MKVM_ERR_DEVICE);
  stop(&r);
}
Test(library_faults, serving_gives_up_with_a_lost_gpu) { with_wide_model(lose_gpu); }
