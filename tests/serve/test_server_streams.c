/* Streams, whoever writes them: the engine's thread right to the socket, the loop, or both in turns. */
#include "tests/serve/server.h"

#include <sys/socket.h>

TestSuite(server_streams, .timeout = MK_HANG_SECONDS);

enum { STREAMS = 6, TOKENS = 60 };

static int ask_at(int fd, const char *body) {
  char *text = NULL;
  cr_assert_geq(
      asprintf(&text, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
               strlen(body), body),
      0);
  cr_assert(mk_test_write(fd, text, strlen(text)));
  free(text);
  return fd;
}

/* jansson takes no NUL in a key, and a token may be one: it becomes a '0'. */
static void replace_nul(char *answer) {
  for (char *at = answer; (at = strstr(at, "\\u0000")) != NULL;) {
    at[4] = '3';
  }
}

static const char *text_of(const json_t *choice) { return json_string_value(json_object_get(choice, "text")); }

/* The texts of a stream's choices. */
static void read_stream(char *answer, char *const texts[], size_t choices) {
  replace_nul(answer);
  for (const char *at = strstr(body_of(answer), "data: {"); at != NULL; at = strstr(at + 1, "data: {")) {
    json_t *event = json_loads(at + 6, JSON_DISABLE_EOF_CHECK, NULL);
    cr_assert_not_null(event, "%s", at);
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const size_t index = (size_t)json_integer_value(json_object_get(choice, "index"));
    cr_assert_lt(index, choices);
    strcat(texts[index], text_of(choice));
    json_decref(event);
  }
  cr_expect_not_null(strstr(answer, "data: [DONE]\n\n"), "%s", answer);
}

static void make_body(char body[512], size_t i, size_t n, bool stream, const char *more) {
  snprintf(body, 512,
           "{\"prompt\":[%zu,7,9],\"max_tokens\":%d,\"temperature\":1,\"seed\":%zu,\"n\":%zu,\"ignore_eos\":true,"
           "\"stream\":%s%s}",
           i + 3, TOKENS, i, n, stream ? "true" : "false", more);
}

/* Several streams run at a time, with two choices each; each choice is what the answer in one piece is. */
static void compare(const char *more) {
  rig r;
  char body[512], places[2][8192];
  int fds[STREAMS];
  prepare(&r);
  start_ready(&r);
  for (size_t i = 0; i < STREAMS; i++) {
    make_body(body, i, 2, true, more);
    fds[i] = ask_at(dial(&r), body);
  }
  for (size_t i = 0; i < STREAMS; i++) {
    char *const texts[2] = {places[0], places[1]}, *answer = mk_test_hear(fds[i], NULL);
    places[0][0] = places[1][0] = '\0';
    read_stream(answer, texts, 2);
    make_body(body, i, 2, false, more);
    char *reply = ask(&r, "POST", "/v1/completions", body, 200);
    replace_nul(reply);
    json_t *whole = json_loads(body_of(reply), 0, NULL);
    cr_assert_eq(json_array_size(json_object_get(whole, "choices")), 2, "%s", reply);
    for (size_t j = 0; j < 2; j++) {
      const json_t *choice = json_array_get(json_object_get(whole, "choices"), j);
      cr_expect_str_eq(texts[j], text_of(choice), "stream %zu, choice %zu", i, j);
    }
    json_decref(whole);
    free(reply);
    free(answer);
    close(fds[i]);
  }
  stop(&r);
}

Test(server_streams, by_the_engine) { compare(""); }
Test(server_streams, by_the_loop) { compare(",\"logprobs\":1"); }

#define LONG(tokens)                                        \
  "{\"prompt\":\"abc\",\"max_tokens\":" tokens              \
  ",\"temperature\":0,\"ignore_eos\":true,\"stream\":true," \
  "\"stream_options\":{\"include_usage\":true}}"

/* Clients at a unix socket, which takes some 200 KiB and no more when nobody reads. */
static int start_unix(rig *r, char path[TEST_PATH + 8]) {
  snprintf(path, TEST_PATH + 8, "%s.s", r->directory);
  r->options.http.unix_path = path;
  start_ready(r);
  return mk_test_connect_unix(path);
}

/* A client that reads late hears all of it, in order: the numbers of tokens go up one by one. */
Test(server_streams, a_client_that_pauses) {
  rig r;
  char path[TEST_PATH + 8];
  enum { LAST = 800 };
  prepare(&r);
  r.options.engine.max_context = LAST + 100;
  const int fd = start_unix(&r, path);
  (void)ask_at(fd,
               "{\"prompt\":\"abc\",\"max_tokens\":800,\"temperature\":0,\"ignore_eos\":true,\"stream\":true,"
               "\"stream_options\":{\"continuous_usage_stats\":true}}");
  until_metric(&r, "vllm:generation_tokens_total", LAST, LAST);
  char *answer = mk_test_hear(fd, NULL);
  long last = 0;
  for (const char *at = strstr(answer, "\"completion_tokens\":"); at != NULL;
       at = strstr(at + 1, "\"completion_tokens\":")) {
    const long tokens = strtol(at + strlen("\"completion_tokens\":"), NULL, 10);
    cr_assert(tokens >= last && tokens <= last + 3, "%ld after %ld", tokens, last); /* parts of characters wait */
    last = tokens;
  }
  cr_expect_eq(last, LAST);
  cr_expect_not_null(strstr(answer, "data: [DONE]\n\n"));
  free(answer);
  close(fd);
  stop(&r);
}

/* One that never reads is cut off, and what runs for it is cancelled. */
Test(server_streams, a_client_that_never_reads) {
  rig r;
  char path[TEST_PATH + 8];
  prepare(&r);
  r.options.engine.max_context = 10000;
  r.options.http.most_unsent = 1 << 16;
  r.options.http.send_seconds = 1000; /* not for taking nothing for a while, but for all that waits */
  const int fd = start_unix(&r, path);
  (void)ask_at(fd, LONG("9900"));
  until_metric(&r, "vllm:generation_tokens_total", 1, 9900);
  until_metric(&r, "vllm:num_requests_running", 0, 0);
  cr_expect_lt(metric(&r, "vllm:generation_tokens_total"), 9900);
  close(fd);
  stop(&r);
}

/* A request alone has a token in each step; the last step is counted when another one begins. */
Test(server_streams, tokens_of_a_step) {
  rig r;
  prepare(&r);
  start_ready(&r);
  free(ask(&r, "POST", "/v1/completions", LONG("20"), 200));
  free(ask(&r, "POST", "/v1/completions", LONG("20"), 200));
  cr_expect_eq(metric(&r, "vllm:iteration_tokens_total_count"), 39);
  cr_expect_eq(metric(&r, "vllm:iteration_tokens_total_sum"), 39);
  stop(&r);
}
