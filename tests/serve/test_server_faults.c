/* The server over a GPU that is none (tests/support/fake_gpu.h): its machine fails, and the next request works; logits that are not
 * numbers end their request alone. */
#include "tests/serve/server.h"

#include "tests/support/fake_gpu.h"

FAKE_GPU_IMAGE

TestSuite(server_faults, .timeout = MK_HANG_SECONDS);

static fake_gpu kernel;

static void start_on_gpu(rig *r) {
  prepare(r);
  fake_cuda *cuda = fake_gpu_start(&kernel);
  cuda->blocks_per_sm = 1 + 132 / FAKE_CUDA_SMS; /* the library compiles for an H200 */
  r->options.engine.device = "cuda";
  r->options.engine.max_batch = 1;
  start_ready(r);
}

static const char body[] = "{\"prompt\":[1,2,3],\"max_tokens\":20,\"temperature\":0,\"ignore_eos\":true}";
static const char stream[] =
    "{\"prompt\":[1,2,3],\"max_tokens\":20,\"temperature\":0,\"ignore_eos\":true,\"stream\":true}";

Test(server_faults, the_machine) {
  rig r;
  start_on_gpu(&r);
  free(ask(&r, "POST", "/v1/completions", body, 200));
  kernel.fault_at = 5;
  char *answer = ask(&r, "POST", "/v1/completions", body, 500);
  cr_expect_not_null(strstr(answer, "\"type\":\"server_error\""), "%s", answer);
  free(answer);
  kernel.fault_at = UINT32_MAX;
  free(ask(&r, "POST", "/v1/completions", body, 200));
  kernel.fault_at = 8;
  answer = ask(&r, "POST", "/v1/completions", stream, 200);
  cr_expect_not_null(strstr(answer, "data: {\"error\":"), "%s", answer);
  cr_expect_null(strstr(answer, "[DONE]"));
  free(answer);
  kernel.fault_at = UINT32_MAX;
  answer = ask(&r, "POST", "/v1/completions", stream, 200);
  cr_expect_not_null(strstr(answer, "[DONE]"), "%s", answer);
  free(answer);
  cr_expect(answers(&r, "/ready", 200));
  stop(&r);
}

Test(server_faults, logits_that_are_no_numbers) {
  rig r;
  start_on_gpu(&r);
  kernel.nan_at = 6;
  char *answer = ask(&r, "POST", "/v1/completions", body, 500);
  cr_expect_not_null(strstr(answer, "not numbers"), "%s", answer);
  free(answer);
  kernel.nan_at = UINT32_MAX;
  free(ask(&r, "POST", "/v1/completions", body, 200));
  stop(&r);
}
