/* mkvm serve as ranks of several processes, over a driver and an NCCL without GPUs: it answers, it ends in order, and a
 * rank that dies ends it. */
#include "tests/support/http.h"
#include "tests/tools/rank_rig.h"

TestSuite(serve_processes, .init = make_model, .fini = drop_model);

enum { PATIENCE = 600 }; /* tenths of a second */

static void start_server(ranks *r, const char *slow_ms) {
  start(r, (const char *[]){"serve", "-m", "MODEL", "-p", "0", "-c", "200", "--max-batch", "4", "--no-log", NULL},
        slow_ms);
}

/* The port that rank 0 tells. */
static uint16_t port_of(const ranks *r) {
  unsigned port = 0;
  for (int i = 0; i < PATIENCE && port == 0; i++) {
    char text[256] = "";
    const ssize_t length = pread(r->out[0], text, sizeof text - 1, 0);
    const char *at = length > 0 ? strstr(text, "127.0.0.1:") : NULL;
    if (at == NULL || sscanf(at, "127.0.0.1:%u", &port) != 1) {
      sleep_ms(100);
    }
  }
  cr_assert_neq(port, 0, "rank 0 does not listen");
  return (uint16_t)port;
}

static char *ask(uint16_t port, const char *request) {
  int fd = mk_test_dial(port);
  cr_assert(mk_test_say(fd, request));
  char *answer = mk_test_hear(fd, NULL);
  close(fd);
  return answer;
}

static void wait_until_ready(uint16_t port) {
  bool ready = false;
  for (int i = 0; i < PATIENCE && !ready; i++) {
    char *answer = ask(port, "GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    ready = strstr(answer, " 200 ") != NULL;
    free(answer);
    sleep_ms(ready ? 0 : 100);
  }
  cr_assert(ready, "it does not become ready");
}

static void request_of(char request[512], uint32_t tokens, bool stream) {
  char body[256];
  snprintf(body, sizeof body, "{\"prompt\":[1,2,3],\"max_tokens\":%u,\"temperature\":0,\"ignore_eos\":true%s}", tokens,
           stream ? ",\"stream\":true" : "");
  snprintf(request, 512,
           "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
           "Content-Length: %zu\r\n\r\n%s",
           strlen(body), body);
}

static void expect_answer(uint16_t port, uint32_t tokens) {
  char request[512], usage[64];
  request_of(request, tokens, false);
  char *answer = ask(port, request);
  snprintf(usage, sizeof usage, "\"completion_tokens\":%u", tokens);
  cr_assert_not_null(strstr(answer, usage), "%s", answer);
  free(answer);
}

/* All end with this code, but the one that was killed (RANKS: none), and say of it that it is gone. */
static void expect_end(ranks *r, int code, uint32_t killed) {
  char name[32];
  finish(r);
  snprintf(name, sizeof name, "rank %u (", killed);
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    cr_assert_eq(r->results[rank].code, rank == killed ? SIGNALLED + SIGKILL : code, "rank %u: code %d, %s", rank,
                 r->results[rank].code, r->results[rank].err);
    if (killed != RANKS && rank != killed) {
      cr_assert_not_null(strstr(r->results[rank].err, name), "%s", r->results[rank].err);
      cr_assert_not_null(strstr(r->results[rank].err, ") is gone"), "%s", r->results[rank].err);
    }
  }
  cr_assert_str_empty(r->results[1].out);
  drop(r);
}

/* Whoever stops the service signals all of it. */
Test(serve_processes, answers_and_ends_in_order) {
  ranks r;
  start_server(&r, "0");
  const uint16_t port = port_of(&r);
  wait_until_ready(port);
  expect_answer(port, 9);
  sleep_ms(2500); /* with nothing to do it looks whether the others live, and they do */
  expect_answer(port, 40);
  cr_assert_eq(kill(r.pids[1], SIGTERM), 0);
  sleep_ms(500);
  expect_answer(port, 9); /* rank 1 leaves the end to rank 0 */
  cr_assert_eq(kill(r.pids[0], SIGTERM), 0);
  expect_end(&r, 0, RANKS);
}

/* What is in flight ends with an error, in mid-stream, and the service with the code for a lost device. */
Test(serve_processes, a_rank_that_dies_ends_what_is_in_flight) {
  ranks r;
  char request[512];
  start_server(&r, "50");
  const uint16_t port = port_of(&r);
  wait_until_ready(port);
  request_of(request, 100, true);
  int fd = mk_test_dial(port);
  cr_assert(mk_test_say(fd, request));
  free(mk_test_hear(fd, "\"text\":"));
  cr_assert_eq(kill(r.pids[1], SIGKILL), 0);
  char *answer = mk_test_hear(fd, NULL);
  close(fd);
  cr_assert_not_null(strstr(answer, "data: {\"error\":{"), "%s", answer);
  cr_assert_not_null(strstr(answer, ") is gone"), "%s", answer);
  cr_assert_null(strstr(answer, "[DONE]"), "%s", answer);
  free(answer);
  expect_end(&r, MK_ERR_DEVICE, 1);
}

/* Without a request, too: a supervisor starts it again before the next one comes. */
static void kill_idle(uint32_t rank) {
  ranks r;
  start_server(&r, "0");
  const uint16_t port = port_of(&r);
  wait_until_ready(port);
  expect_answer(port, 5);
  cr_assert_eq(kill(r.pids[rank], SIGKILL), 0);
  expect_end(&r, MK_ERR_DEVICE, rank);
}

Test(serve_processes, rank_1_dies_while_nothing_is_asked) { kill_idle(1); }
Test(serve_processes, rank_0_dies_while_nothing_is_asked) { kill_idle(0); }
