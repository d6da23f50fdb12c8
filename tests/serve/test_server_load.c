/* The server when clients vanish, when too many come, when it is told to end, and when its machine fails. */
#include "tests/serve/server.h"

TestSuite(server_load, .timeout = MK_HANG_SECONDS);

static const char long_stream[] =
    "{\"prompt\":\"abc\",\"max_tokens\":190,\"temperature\":0,\"ignore_eos\":true,\"stream\":true}";

/* A request is sent; its answer is not read. */
static int begin(const rig *r, const char *body) {
  char *text = NULL;
  int fd = dial(r);
  cr_assert_geq(
      asprintf(&text, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body),
      0);
  cr_assert(mk_test_write(fd, text, strlen(text)));
  free(text);
  return fd;
}

static double ended(const rig *r, const char *reason) {
  char *answer = ask(r, "GET", "/metrics", NULL, 200), key[96];
  snprintf(key, sizeof key, "finished_reason=\"%s\"} ", reason);
  const char *found = strstr(answer, key);
  const double value = found == NULL ? -1 : strtod(found + strlen(key), NULL);
  free(answer);
  return value;
}

static void until_idle(const rig *r) {
  until_metric(r, "vllm:num_requests_running", 0, 0);
  until_metric(r, "vllm:num_requests_waiting", 0, 0);
}

/* A client goes while its request is in the queue, in a prompt, in a stream, or waits for an answer of one piece: what
 * runs for it is cancelled. */
Test(server_load, clients_that_vanish) {
  rig r;
  prepare(&r);
  r.options.engine.max_batch = 1;
  r.options.engine.max_context = 2000;
  start_ready(&r);
  static const char endless[] = "{\"prompt\":\"abc\",\"max_tokens\":1900,\"temperature\":0,\"ignore_eos\":true}";
  static const char endless_stream[] =
      "{\"prompt\":\"abc\",\"max_tokens\":1900,\"temperature\":0,\"ignore_eos\":true,\"stream\":true}";
  int streams = begin(&r, endless_stream), waits[2] = {begin(&r, endless), begin(&r, endless_stream)};
  free(mk_test_hear(streams, "data: {"));
  until_metric(&r, "vllm:num_requests_waiting", 2, 2);
  close(waits[0]);
  close(waits[1]);
  until_metric(&r, "vllm:num_requests_waiting", 0, 0);
  cr_expect_eq(metric(&r, "vllm:num_requests_running"), 1);
  close(streams);
  until_idle(&r);
  int whole = begin(&r, endless);
  until_metric(&r, "vllm:num_requests_running", 1, 1);
  close(whole);
  until_idle(&r);
  cr_expect_eq(ended(&r, "abort"), 4);
  cr_expect_eq(ended(&r, "length"), 0);
  stop(&r);
}

/* Several choices are taken whole or not at all, and more than may wait never are. */
Test(server_load, all_choices_or_none) {
  static const char endless_alone[] = "{\"prompt\":\"abc\",\"max_tokens\":1900,\"temperature\":0,\"ignore_eos\":true}";
  rig r;
  prepare(&r);
  r.options.engine.max_batch = 1;
  r.options.engine.max_waiting = 3;
  start_ready(&r);
  int running = begin(&r, endless_alone);
  until_metric(&r, "vllm:num_requests_running", 1, 1);
  int waiting = begin(&r, endless_alone);
  until_metric(&r, "vllm:num_requests_waiting", 1, 1);
  char *answer =
      ask(&r, "POST", "/v1/completions", "{\"prompt\":\"abc\",\"n\":3,\"max_tokens\":5,\"ignore_eos\":true}", 429);
  cr_expect_not_null(strstr(answer, "Retry-After: "), "%s", answer);
  cr_expect_not_null(strstr(answer, "rate_limit_error"), "%s", answer);
  free(answer);
  close(running);
  close(waiting);
  until_idle(&r);
  answer = ask(&r, "POST", "/v1/completions", "{\"prompt\":\"abc\",\"n\":4,\"max_tokens\":5}", 400);
  cr_expect_not_null(strstr(answer, "asks for 4 answers"), "%s", answer);
  free(answer);
  free(ask(&r, "POST", "/v1/completions", "{\"prompt\":\"abc\",\"n\":3,\"max_tokens\":5}", 200));
  free(ask(&r, "POST", "/v1/completions", "{\"prompt\":\"abc\",\"max_tokens\":5}", 200));
  stop(&r);
}

/* SIGTERM: what runs comes to its end, nothing new begins, and the server ends well. */
Test(server_load, drains) {
  rig r;
  prepare(&r);
  start_ready(&r);
  int fd = begin(&r, long_stream);
  free(mk_test_hear(fd, "data: {"));
  mk_server_stop(r.server);
  until(&r, "/ready", 503);
  cr_expect(answers(&r, "/health", 200));
  char *refused = ask(&r, "POST", "/v1/completions", "{\"prompt\":\"a\"}", 503);
  free(refused);
  char *rest = mk_test_hear(fd, "[DONE]");
  cr_expect_not_null(strstr(rest, "\"finish_reason\":\"length\""));
  free(rest);
  close(fd);
  join(&r);
  cr_expect_eq(r.status, MK_OK, "%s", r.message);
  release(&r);
}

static void cut_off(double seconds, unsigned stops) {
  rig r;
  prepare(&r);
  r.options.engine.max_context = 100000;
  r.options.engine.max_batch = 1;
  r.options.shutdown_seconds = seconds;
  start_ready(&r);
  int fd = begin(&r, "{\"prompt\":\"abc\",\"max_tokens\":90000,\"temperature\":0,\"ignore_eos\":true,\"stream\":true}");
  free(mk_test_hear(fd, "data: {"));
  for (unsigned i = 0; i < stops; i++) {
    mk_server_stop(r.server);
  }
  char *rest = mk_test_hear(fd, NULL);
  cr_expect_not_null(strstr(rest, "shutting_down"));
  free(rest);
  close(fd);
  join(&r);
  cr_expect_eq(r.status, MK_OK, "%s", r.message);
  release(&r);
}

Test(server_load, is_cut_off_after_a_while) { cut_off(0.2, 1); }
Test(server_load, is_cut_off_at_once) { cut_off(1000, 2); }

Test(server_load, deadlines) {
  rig r;
  prepare(&r);
  r.options.engine.max_context = 100000;
  r.options.engine.max_batch = 1;
  r.options.total_seconds = 0.2;
  start_ready(&r);
  static const char body[] = "{\"prompt\":\"abc\",\"max_tokens\":90000,\"temperature\":0,\"ignore_eos\":true}";
  char *answer = ask(&r, "POST", "/v1/completions", body, 503);
  cr_expect_not_null(strstr(answer, "\"code\":\"timeout\""), "%s", answer);
  free(answer);
  stop(&r);
}

/* Nothing of a stream has been sent while it waits, so what is wrong is told by the status. */
Test(server_load, a_stream_that_waits_too_long) {
  rig r;
  prepare(&r);
  r.options.engine.max_context = 100000;
  r.options.engine.max_batch = 1;
  r.options.queue_seconds = 1;
  start_ready(&r);
  static const char body[] =
      "{\"prompt\":\"abc\",\"max_tokens\":90000,\"temperature\":0,\"ignore_eos\":true,\"stream\":true}";
  const int fd = begin(&r, body);
  free(mk_test_hear(fd, "data: {"));
  char *answer = ask(&r, "POST", "/v1/completions", body, 503);
  cr_expect_not_null(strstr(answer, "\"code\":\"timeout\""), "%s", answer);
  cr_expect_not_null(strstr(answer, "\r\nRetry-After: 1\r\n"), "%s", answer);
  cr_expect_null(strstr(answer, "text/event-stream"), "%s", answer);
  free(answer);
  close(fd);
  stop(&r);
}

Test(server_load, a_model_that_is_none) {
  rig r;
  prepare(&r);
  r.options.directory = "/nowhere";
  start(&r);
  join(&r);
  cr_expect_eq(r.status, MK_ERR_FILE);
  cr_expect_not_null(strstr(r.message, "/nowhere"), "%s", r.message);
  release(&r);
}

/* A thousand at once, of which sixteen run: each has its answer, or is told to come again. */
Test(server_load, a_thousand) {
  enum { CLIENTS = 1000 };
  static int fds[CLIENTS];
  rig r;
  prepare(&r);
  r.options.engine.max_waiting = 400;
  start_ready(&r);
  unsigned good = 0, full = 0;
  for (size_t i = 0; i < CLIENTS; i++) {
    fds[i] = begin(&r, "{\"prompt\":\"abc\",\"max_tokens\":6,\"temperature\":0,\"ignore_eos\":true}");
  }
  for (size_t i = 0; i < CLIENTS; i++) {
    char *answer = mk_test_hear(fds[i], "}");
    good += status_of(answer) == 200;
    full += status_of(answer) == 429;
    free(answer);
    close(fds[i]);
  }
  cr_expect_eq(good + full, CLIENTS, "%u answered, %u told to come again", good, full);
  cr_expect_geq(good, 416);
  until_idle(&r);
  stop(&r);
}
