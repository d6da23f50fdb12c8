/* The log when nobody reads it, and streams while the loop is held up by it: the engine's thread writes them. */
#include "tests/serve/server.h"

#include <fcntl.h>

TestSuite(server_log, .timeout = MK_HANG_SECONDS);

/* ---- A pipe whose reader has stopped ---- */

enum { PATH_BYTES = 126, BATCH = 50, ID_BYTES = 60 };

/* Makes the server log to a pipe of one page; returns the end that reads. */
static int log_to_pipe(rig *r) {
  int ends[2];
  cr_assert_eq(pipe(ends), 0);
  cr_assert_geq(fcntl(ends[1], F_SETPIPE_SZ, 4096), 4096);
  fclose(r->options.log);
  r->options.log = fdopen(ends[1], "w");
  return ends[0];
}

/* Requests `first` to first + BATCH - 1, on one connection; each of them is answered. */
static void ask_batch(int fd, unsigned first) {
  char text[BATCH * 300], last[ID_BYTES + 1];
  size_t length = 0;
  for (unsigned i = first; i < first + BATCH; i++) {
    snprintf(last, sizeof last, "%0*u", ID_BYTES, i);
    length += (size_t)snprintf(text + length, sizeof text - length,
                               "GET /%0*d HTTP/1.1\r\nHost: h\r\nX-Request-Id: %s\r\n\r\n", PATH_BYTES, 0, last);
  }
  cr_assert(mk_test_say(fd, text));
  static char answers[BATCH * 1024]; /* the last one ends with that of its object */
  length = 0;
  do {
    const ssize_t got = read(fd, answers + length, sizeof answers - 1 - length);
    cr_assert_gt(got, 0);
    length += (size_t)got;
    answers[length] = '\0';
  } while (strstr(answers, last) == NULL || answers[length - 1] != '}');
}

/* Reads what is there; the caller frees it. */
static char *drain(int fd) {
  char *text = calloc(1, 4 << 20);
  size_t length = 0;
  struct pollfd more = {.fd = fd, .events = POLLIN};
  while (poll(&more, 1, 100) == 1 && (more.revents & POLLIN) != 0) {
    const ssize_t got = read(fd, text + length, (4u << 20) - 1 - length);
    cr_assert_gt(got, 0);
    length += (size_t)got;
  }
  return text;
}

static size_t count_lines(const char *text) {
  size_t lines = 0;
  for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++) {
    lines++;
  }
  return lines;
}

/* Requests are answered all the same, and their lines come when the log is read again. */
Test(server_log, a_reader_that_pauses) {
  rig r;
  prepare(&r);
  const int log = log_to_pipe(&r), fd = (start_ready(&r), dial(&r));
  for (unsigned i = 0; i < 10 * BATCH; i += BATCH) {
    ask_batch(fd, i);
  }
  char *begun = drain(log);
  const size_t lines = count_lines(begun);
  free(begun);
  cr_assert_geq(fcntl(log, F_SETPIPE_SZ, 1 << 20), 1 << 20);
  ask_batch(fd, 10 * BATCH);
  char *rest = drain(log);
  cr_expect_geq(lines + count_lines(rest), 10 * BATCH, "not only at the end");
  const size_t more = count_lines(rest);
  free(rest);
  close(fd);
  stop(&r);
  rest = drain(log);
  cr_expect_eq(lines + more + count_lines(rest), 11 * BATCH);
  free(rest);
  close(log);
}

/* What there is no room for is counted. */
Test(server_log, a_reader_that_never_comes) {
  rig r;
  prepare(&r);
  const int log = log_to_pipe(&r), fd = (start_ready(&r), dial(&r));
  for (unsigned i = 0; i < 4000; i += BATCH) {
    ask_batch(fd, i);
  }
  cr_assert_geq(fcntl(log, F_SETPIPE_SZ, 1 << 20), 1 << 20);
  ask_batch(fd, 4000);
  char *texts[2] = {drain(log), NULL};
  close(fd);
  stop(&r);
  texts[1] = drain(log); /* a line may come after its answer */
  size_t lines = 0, lost = 0;
  for (size_t i = 0; i < 2; i++) {
    const char *found = strstr(texts[i], "\"lost_lines\":");
    lost += found == NULL ? 0 : strtoul(found + strlen("\"lost_lines\":"), NULL, 10);
    lines += count_lines(texts[i]);
    free(texts[i]);
  }
  cr_expect_gt(lost, 100);
  cr_expect_eq(lines - 1 + lost, 4000 + BATCH, "each line is written or counted");
  close(log);
}

/* ---- A loop that is held up ---- */

typedef struct gate {
  pthread_mutex_t held;
  atomic_int writes; /* that have begun */
} gate;

static ssize_t write_at_gate(void *cookie, const char *bytes, size_t size) {
  gate *g = cookie;
  (void)bytes;
  atomic_fetch_add(&g->writes, 1);
  pthread_mutex_lock(&g->held);
  pthread_mutex_unlock(&g->held);
  return (ssize_t)size;
}

/* Asks for a stream after a prompt of `count` tokens, and holds the loop up meanwhile. false: the first token came
 * before that, since this thread had to wait for a core. */
static bool stream_beside(const rig *r, gate *g, size_t count) {
  char *body = calloc(1, 1 << 16), *head = NULL;
  strcpy(body, "{\"max_tokens\":5,\"ignore_eos\":true,\"temperature\":0,\"stream\":true,\"prompt\":[1");
  for (size_t i = 1, length = strlen(body); i < count; i++, length += 2) {
    memcpy(body + length, ",1", 3);
  }
  strcat(body, "]}");
  cr_assert_geq(
      asprintf(&head, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %zu\r\n\r\n", strlen(body)), 0);
  const int fd = dial(r), other = dial(r), writes = atomic_load(&g->writes);
  pthread_mutex_lock(&g->held);
  cr_assert(mk_test_say(fd, head) && mk_test_say(fd, body));
  struct pollfd client = {.fd = fd, .events = POLLIN};
  while (metric(r, "vllm:num_requests_running") != 1 && poll(&client, 1, 5) == 0) {
  }
  cr_assert(mk_test_say(other, "GET /version HTTP/1.1\r\nHost: h\r\n\r\n"));
  mk_test_until(&g->writes, writes + 1);
  const bool held_up = poll(&client, 1, 0) == 0;
  char *answer = mk_test_hear(fd, "\"text\":");
  cr_expect_eq(strncmp(answer, "HTTP/1.1 200", 12), 0, "%s", answer);
  free(answer);
  pthread_mutex_unlock(&g->held);
  free(mk_test_hear(fd, "[DONE]"));
  free(head);
  free(body);
  close(fd);
  close(other);
  return held_up;
}

/* The first token of a stream, and all that follow, reach the client while the loop does something else. */
Test(server_log, a_stream_beside_a_busy_loop) {
  static gate g = {.held = PTHREAD_MUTEX_INITIALIZER};
  rig r;
  prepare(&r);
  r.options.engine.max_context = 20000;
  fclose(r.options.log);
  r.options.log = fopencookie(&g, "w", (cookie_io_functions_t){.write = write_at_gate});
  cr_assert_not_null(r.options.log);
  setvbuf(r.options.log, NULL, _IONBF, 0);
  start_ready(&r);
  size_t count = 800;
  while (!stream_beside(&r, &g, count)) {
    cr_assert_lt(count *= 2, 16000);
  }
  stop(&r);
}
