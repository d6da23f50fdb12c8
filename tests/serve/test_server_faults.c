/* The server when its machine fails, over a GPU that is none (tests/support/fake_gpu.h). */
#include "tests/serve/server.h"
#include "tests/support/fake_gpu.h"

FAKE_GPU_IMAGE

TestSuite(server_faults, .timeout = MK_HANG_SECONDS);

static fake_gpu gpu;

/* The engine sleeps while nothing was asked of it: only then is `gpu` changed. */
static void start_gpu(rig *r) {
  mk_config config = test_model_config(TEST_MODEL_WIDE); /* a vocabulary of more than that GPU chooses from */
  prepare(r);
  test_model_remove(r->directory);
  test_model_write(&config, r->directory);
  fake_cuda *cuda = fake_gpu_start(&gpu);
  cuda->blocks_per_sm = 1 + 132 / FAKE_CUDA_SMS; /* libmkvm compiles for an H200 */
  r->options.engine.device = "cuda";
  r->options.engine.max_context = 100;
  r->options.engine.max_batch = 4;
  start_ready(r);
}

static char *complete(const rig *r, const char *more, int status) {
  char body[256];
  snprintf(body, sizeof body, "{\"prompt\":[1,2,3],\"max_tokens\":40,\"temperature\":0,\"ignore_eos\":true%s}", more);
  return ask(r, "POST", "/v1/completions", body, status);
}

static void expect_in(const char *answer, const char *words) {
  cr_expect_not_null(strstr(answer, words), "no '%s' in: %s", words, answer);
}

/* What is asked next, when the machine is sound again. */
static void expect_whole(const rig *r) {
  gpu.fault_at = gpu.nan_at = UINT32_MAX;
  char *answer = complete(r, "", 200);
  expect_in(answer, "\"completion_tokens\":40");
  expect_in(answer, "\"finish_reason\":\"length\"");
  free(answer);
  answer = complete(r, ",\"stream\":true", 200);
  expect_in(answer, "data: [DONE]");
  free(answer);
}

/* An answer of one piece is an error, with the device's own words; the next request is answered. */
static void one_piece(uint32_t fault_at, uint32_t nan_at, const char *words) {
  rig r;
  start_gpu(&r);
  gpu.fault_at = fault_at;
  gpu.nan_at = nan_at;
  char *answer = complete(&r, "", 500);
  expect_in(answer, "\"type\":\"server_error\"");
  expect_in(answer, words);
  free(answer);
  expect_whole(&r);
  stop(&r);
}

/* In mid-stream an event has the error, and neither an end of the choice nor [DONE] comes after it. */
static void stream(uint32_t fault_at, uint32_t nan_at, const char *words) {
  rig r;
  start_gpu(&r);
  gpu.fault_at = fault_at;
  gpu.nan_at = nan_at;
  char *answer = complete(&r, ",\"stream\":true", 200);
  expect_in(answer, "\"text\":");
  expect_in(answer, "data: {\"error\":{");
  expect_in(answer, words);
  cr_expect_null(strstr(answer, "\"finish_reason\":\"length\""));
  free(answer);
  expect_whole(&r);
  stop(&r);
}

/* Before the first token nothing of a stream is sent yet, so the status tells it. */
Test(server_faults, a_stream_that_has_not_begun) {
  rig r;
  start_gpu(&r);
  gpu.fault_at = 0;
  char *answer = complete(&r, ",\"stream\":true", 500);
  expect_in(answer, "\"type\":\"server_error\"");
  expect_in(answer, "Content-Type: application/json");
  cr_expect_null(strstr(answer, "data:"), "%s", answer);
  free(answer);
  expect_whole(&r);
  stop(&r);
}

static const char faulted[] = "the program stands still: SM 3";

Test(server_faults, an_answer_of_one_piece) { one_piece(10, UINT32_MAX, faulted); }
Test(server_faults, a_stream) { stream(10, UINT32_MAX, faulted); }
Test(server_faults, not_a_number) { one_piece(UINT32_MAX, 4, "NaN"); }
Test(server_faults, not_a_number_in_a_stream) { stream(UINT32_MAX, 4, "NaN"); }
