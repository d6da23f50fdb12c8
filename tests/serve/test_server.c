/* The server over the tiny model on the CPU: every endpoint, streams, keys, errors; and that what it answers is what
 * libmkvm gives. */
#include "tests/serve/server.h"

#include <math.h>

TestSuite(server, .timeout = MK_HANG_SECONDS);

static const char *text_in(const json_t *object, const char *key) {
  return json_string_value(json_object_get(object, key));
}

static const json_t *choice_of(const json_t *answer, size_t index) {
  return json_array_get(json_object_get(answer, "choices"), index);
}

Test(server, what_is_there) {
  rig r;
  prepare(&r);
  start_ready(&r);
  static const char *const paths[] = {"/",        "/health",    "/ready",         "/version",
                                      "/metrics", "/v1/models", "/tokenizer_info"};
  for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
    free(ask(&r, "GET", paths[i], NULL, 200));
    char *head = ask(&r, "HEAD", paths[i], NULL, 200);
    cr_expect_str_empty(body_of(head), "%s", paths[i]);
    free(head);
  }
  json_t *models = ask_json(&r, "GET", "/v1/models", NULL, 200);
  cr_expect_eq(json_array_size(json_object_get(models, "data")), 2);
  cr_expect_str_eq(text_in(json_array_get(json_object_get(models, "data"), 1), "root"), "tiny");
  json_decref(models);
  json_t *model = ask_json(&r, "GET", "/v1/models/other%2Fname", NULL, 200);
  cr_expect_str_eq(text_in(model, "id"), "other/name");
  json_decref(model);
  free(ask(&r, "GET", "/v1/models/other/name", NULL, 200));
  free(ask(&r, "GET", "/v1/models/none", NULL, 404));
  json_t *info = ask_json(&r, "GET", "/tokenizer_info", NULL, 200);
  const json_t *ends = json_object_get(info, "eos_token_ids");
  const mk_config config = test_model_config(TEST_MODEL_TINY);
  cr_expect_eq(json_array_size(ends), config.eos_count);
  cr_expect_eq(json_integer_value(json_array_get(ends, 0)), config.eos[0]);
  json_decref(info);
  free(ask(&r, "OPTIONS", "/v1/models", NULL, 204));
  end(&r);
  cr_expect_not_null(strstr(r.log, "\"path\":\"/v1/models\",\"status\":204"), "%s", r.log);
  release(&r);
}

Test(server, text_and_ids) {
  rig r;
  prepare(&r);
  start_ready(&r);
  json_t *ids = ask_json(&r, "POST", "/tokenize", "{\"prompt\":\"hello there\",\"add_special_tokens\":false}", 200);
  char *list = json_dumps(json_object_get(ids, "tokens"), JSON_COMPACT), body[512];
  snprintf(body, sizeof body, "{\"tokens\":%s}", list);
  json_t *text = ask_json(&r, "POST", "/detokenize", body, 200);
  cr_expect_str_eq(text_in(text, "prompt"), "hello there");
  json_t *content = ask_json(&r, "POST", "/tokenize", "{\"content\":\"hello there\"}", 200);
  cr_expect(json_equal(json_object_get(content, "tokens"), json_object_get(ids, "tokens")));
  json_decref(content);
  json_decref(text);
  json_decref(ids);
  free(list);
  free(ask(&r, "POST", "/detokenize", "{\"tokens\":[99999999]}", 400));
  stop(&r);
}

/* The text of a stream, and how its events end. */
static char *stream_text(const char *answer, bool chat) {
  char *all = calloc(1, strlen(answer) + 1);
  const char *at = body_of(answer);
  for (at = strstr(at, "data: {"); at != NULL; at = strstr(at + 1, "data: {")) {
    json_t *event = json_loads(at + 6, JSON_DISABLE_EOF_CHECK, NULL);
    cr_assert_not_null(event, "%s", at);
    const json_t *choice = choice_of(event, 0);
    const char *text = text_in(chat ? json_object_get(choice, "delta") : choice, chat ? "content" : "text");
    strcat(all, text == NULL ? "" : text);
    json_decref(event);
  }
  cr_expect_not_null(strstr(answer, "data: [DONE]\n\n"), "%s", answer);
  return all;
}

static char *libmkvm_text(const rig *r, const char *prompt, size_t tokens);

/* Both ways give the text that libmkvm gives. */
Test(server, completions) {
  rig r;
  prepare(&r);
  start_ready(&r);
  json_t *whole = ask_json(&r, "POST", "/v1/completions",
                           "{\"prompt\":\"abc\",\"max_tokens\":20,\"temperature\":0,\"ignore_eos\":true}", 200);
  char *stream =
      ask(&r, "POST", "/v1/completions",
          "{\"prompt\":\"abc\",\"max_tokens\":20,\"temperature\":0,\"ignore_eos\":true,\"stream\":true}", 200);
  char *streamed = stream_text(stream, false), *own = libmkvm_text(&r, "abc", 20);
  cr_expect_str_eq(text_in(choice_of(whole, 0), "text"), own);
  cr_expect_str_eq(streamed, own);
  cr_expect_str_eq(text_in(choice_of(whole, 0), "finish_reason"), "length");
  cr_expect_eq(json_integer_value(json_object_get(json_object_get(whole, "usage"), "completion_tokens")), 20);
  free(own);
  free(streamed);
  free(stream);
  json_decref(whole);
  stop(&r);
}

typedef struct heard {
  char text[4096];
  size_t length;
} heard;

static int hear(void *user, const mkvm_token *token) {
  heard *h = user;
  memcpy(h->text + h->length, token->text, token->length);
  h->length += token->length;
  return 0;
}

static char *libmkvm_text(const rig *r, const char *prompt, size_t tokens) {
  mkvm_engine *engine;
  mkvm_options options;
  mkvm_request request;
  heard h = {{0}, 0};
  mkvm_options_init(&options);
  options.device = "cpu";
  options.max_context = 200;
  cr_assert_eq(mkvm_open(r->directory, &options, &engine), MKVM_OK);
  mkvm_request_init(&request);
  request.text = prompt;
  request.text_length = strlen(prompt);
  request.max_tokens = tokens;
  request.ignore_end = 1;
  request.on_token = hear;
  request.user = &h;
  cr_assert_eq(mkvm_submit(engine, &request, NULL), MKVM_OK);
  cr_assert_eq(mkvm_run(engine), MKVM_OK);
  mkvm_close(engine);
  return strndup(h.text, h.length);
}

Test(server, several_choices_and_seeds) {
  rig r;
  prepare(&r);
  start_ready(&r);
  static const char body[] =
      "{\"prompt\":[\"abc\",\"de\"],\"n\":2,\"max_tokens\":12,\"temperature\":1,\"seed\":7,\"ignore_eos\":true}";
  json_t *a = ask_json(&r, "POST", "/v1/completions", body, 200),
         *b = ask_json(&r, "POST", "/v1/completions", body, 200);
  cr_assert_eq(json_array_size(json_object_get(a, "choices")), 4);
  for (size_t i = 0; i < 4; i++) {
    cr_expect_eq(json_integer_value(json_object_get(choice_of(a, i), "index")), (json_int_t)i);
    cr_expect_str_eq(text_in(choice_of(a, i), "text"), text_in(choice_of(b, i), "text"), "choice %zu", i);
  }
  cr_expect_str_neq(text_in(choice_of(a, 0), "text"), text_in(choice_of(a, 1), "text"), "each has a seed of its own");
  json_decref(a);
  json_decref(b);
  json_t *alone =
      ask_json(&r, "POST", "/v1/completions",
               "{\"prompt\":\"abc\",\"max_tokens\":12,\"temperature\":1,\"seed\":8,\"ignore_eos\":true}", 200);
  a = ask_json(&r, "POST", "/v1/completions", body, 200);
  cr_expect_str_eq(text_in(choice_of(a, 1), "text"), text_in(choice_of(alone, 0), "text"), "choice j has seed + j");
  json_decref(a);
  json_decref(alone);
  stop(&r);
}

Test(server, log_probabilities) {
  rig r;
  prepare(&r);
  start_ready(&r);
  json_t *answer = ask_json(
      &r, "POST", "/v1/completions",
      "{\"prompt\":[5,7,11,13],\"max_tokens\":3,\"temperature\":0,\"logprobs\":2,\"echo\":true,\"ignore_eos\":true}",
      200);
  const json_t *found = json_object_get(choice_of(answer, 0), "logprobs");
  const json_t *chosen = json_object_get(found, "token_logprobs"), *top = json_object_get(found, "top_logprobs");
  cr_assert_eq(json_array_size(chosen), 7);
  cr_expect(json_is_null(json_array_get(chosen, 0)));
  for (size_t i = 1; i < 7; i++) {
    const double logprob = json_real_value(json_array_get(chosen, i));
    const char *name;
    json_t *value;
    double most = -INFINITY;
    json_object_foreach(json_array_get(top, i), name, value) { most = fmax(most, json_number_value(value)); }
    cr_expect(logprob <= 0 && logprob <= most, "token %zu: %g, the most probable %g", i, logprob, most);
    cr_expect(i < 4 || logprob == most, "greedy: the most probable one, to the digit");
  }
  json_decref(answer);
  stop(&r);
}

static void expect_error(const rig *r, const char *method, const char *path, const char *body, int status,
                         const char *words) {
  json_t *answer = ask_json(r, method, path, body, status), *error = json_object_get(answer, "error");
  cr_expect_eq(json_object_size(error), 4, "%s", path);
  cr_expect_not_null(strstr(text_in(error, "message"), words), "%s: %s", path, text_in(error, "message"));
  json_decref(answer);
}

Test(server, errors) {
  rig r;
  prepare(&r);
  start_ready(&r);
  expect_error(&r, "GET", "/nothing", NULL, 404, "/nothing");
  expect_error(&r, "GET", "/v1/../v1/models", NULL, 404, "..");
  expect_error(&r, "GET", "/v1/completions", NULL, 405, "POST");
  expect_error(&r, "POST", "/v1/models", "{}", 405, "GET");
  expect_error(&r, "POST", "/v1/completions", "{", 400, "JSON");
  expect_error(&r, "POST", "/v1/completions", "{\"prompt\":\"a\",\"model\":\"none\"}", 404, "none");
  expect_error(&r, "POST", "/v1/completions", "{\"prompt\":\"a\",\"n\":0}", 400, "n");
  free(ask(&r, "POST", "/v1/completions", "{\"prompt\":\"a\",\"model\":\"\",\"max_tokens\":1}", 200));
  expect_error(&r, "POST", "/v1/chat/completions", "{\"messages\":[],\"tools\":[1]}", 400, "tools");
  char *long_prompt = calloc(1, 4096);
  strcpy(long_prompt, "{\"prompt\":[1");
  for (size_t i = 0; i < 300; i++) {
    strcat(long_prompt, ",1");
  }
  strcat(long_prompt, "]}");
  json_t *answer = ask_json(&r, "POST", "/v1/completions", long_prompt, 400);
  cr_expect_str_eq(text_in(json_object_get(answer, "error"), "code"), "context_length_exceeded");
  cr_expect_str_eq(text_in(json_object_get(answer, "error"), "param"), "prompt");
  json_decref(answer);
  free(long_prompt);
  stop(&r);
}

/* A packed body is not read as JSON that is broken. */
Test(server, encodings_of_a_body) {
  rig r;
  prepare(&r);
  start_ready(&r);
  static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":1}";
  char *answer = ask_with(&r, "POST", "/v1/completions", "Content-Encoding: gzip\r\n", body);
  cr_expect_eq(status_of(answer), 400);
  cr_expect_not_null(strstr(answer, "Content-Encoding is 'gzip'"), "%s", answer);
  free(answer);
  answer = ask_with(&r, "POST", "/v1/completions", "Content-Encoding: identity\r\n", body);
  cr_expect_eq(status_of(answer), 200, "%s", answer);
  free(answer);
  stop(&r);
}

/* A prompt of `count` tokens of the context's 200, asked for with more fields. */
static json_t *ask_long(const rig *r, size_t count, const char *more, int status) {
  char body[4096];
  size_t length = (size_t)snprintf(body, sizeof body, "{\"prompt\":[[1,2],[1");
  for (size_t i = 1; i < count; i++) {
    length += (size_t)snprintf(body + length, sizeof body - length, ",%zu", i % 49 + 1);
  }
  snprintf(body + length, sizeof body - length, "]],\"max_tokens\":1%s}", more);
  return ask_json(r, "POST", "/v1/completions", body, status);
}

/* Nothing can be told of the tokens of a prompt that fills the context, so that is refused, and not answered with
 * nothing; one token less is told of whole. */
Test(server, log_probabilities_of_a_full_context) {
  static const char echo[] = ",\"echo\":true,\"logprobs\":0";
  rig r;
  prepare(&r);
  start_ready(&r);
  json_t *answer = ask_long(&r, 200, echo, 400), *error = json_object_get(answer, "error");
  cr_expect_str_eq(text_in(error, "code"), "context_length_exceeded");
  cr_expect_str_eq(text_in(error, "param"), "prompt[1]");
  cr_expect_not_null(strstr(text_in(error, "message"), "199"), "%s", text_in(error, "message"));
  json_decref(answer);
  answer = ask_long(&r, 199, echo, 200);
  const json_t *tokens = json_object_get(json_object_get(choice_of(answer, 1), "logprobs"), "token_logprobs");
  cr_assert_eq(json_array_size(tokens), 200);
  for (size_t i = 1; i < 200; i++) {
    cr_expect(json_is_real(json_array_get(tokens, i)), "token %zu", i);
  }
  json_decref(answer);
  answer = ask_long(&r, 200, "", 200);
  cr_expect_str_eq(text_in(choice_of(answer, 1), "finish_reason"), "length");
  json_decref(answer);
  stop(&r);
}

Test(server, keys) {
  rig r;
  prepare(&r);
  cr_assert_eq(mk_keys_add(&r.keys, "Right-key"), MK_OK);
  cr_assert_eq(mk_keys_add(&r.keys, "second"), MK_OK);
  start_ready(&r);
  static const struct {
    const char *header;
    int status;
  } cases[] = {{"", 401},
               {"Authorization: Bearer Right-key\r\n", 200},
               {"authorization: bearer second\r\n", 200},
               {"Authorization: Bearer right-key\r\n", 401},
               {"Authorization: Bearer Right-keys\r\n", 401},
               {"Authorization: Bearer Right-ke\r\n", 401},
               {"Authorization: Bearer \r\n", 401},
               {"Authorization: Basic Right-key\r\n", 401},
               {"Authorization: Right-key\r\n", 401}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char *answer = ask_with(&r, "GET", "/v1/models", cases[i].header, NULL);
    cr_expect_eq(status_of(answer), cases[i].status, "%s: %s", cases[i].header, answer);
    free(answer);
  }
  free(ask(&r, "GET", "/health", NULL, 200));
  free(ask(&r, "GET", "/", NULL, 200));
  free(ask(&r, "GET", "/nothing", NULL, 401));
  free(ask(&r, "GET", "/metrics", NULL, 401));
  stop(&r);
}

Test(server, options_and_origins) {
  rig r;
  prepare(&r);
  r.options.page = false;
  start_ready(&r);
  free(ask(&r, "GET", "/", NULL, 404));
  char *answer = ask(&r, "OPTIONS", "/v1/completions", NULL, 204);
  cr_expect_not_null(strstr(answer, "Allow: POST, OPTIONS"), "%s", answer);
  cr_expect_null(strstr(answer, "Access-Control"));
  free(answer);
  stop(&r);
  prepare(&r);
  r.options.origin = "https://page.example";
  start_ready(&r);
  answer = ask(&r, "OPTIONS", "/v1/completions", NULL, 204);
  cr_expect_not_null(strstr(answer, "Access-Control-Allow-Origin: https://page.example"), "%s", answer);
  cr_expect_not_null(strstr(answer, "Access-Control-Allow-Headers: Authorization, Content-Type"), "%s", answer);
  free(answer);
  answer = ask_with(&r, "OPTIONS", "/v1/completions",
                    "Access-Control-Request-Headers: authorization,x-stainless-lang\r\n", NULL);
  cr_expect_not_null(strstr(answer, "Access-Control-Allow-Headers: authorization,x-stainless-lang"), "%s", answer);
  free(answer);
  stop(&r);
}

/* A fit id comes back; an unfit one does not. Neither prompts nor answers are in the log. */
Test(server, ids_and_log) {
  rig r;
  prepare(&r);
  start_ready(&r);
  char *answer = ask_with(&r, "POST", "/v1/completions", "X-Request-Id: mine-1\r\n",
                          "{\"prompt\":\"a secret\",\"max_tokens\":2,\"temperature\":0}");
  cr_expect_not_null(strstr(answer, "X-Request-Id: mine-1\r\n"), "%s", answer);
  free(answer);
  answer = ask_with(&r, "GET", "/version", "X-Request-Id: \"; drop\r\n", NULL);
  cr_expect_null(strstr(answer, "drop"), "%s", answer);
  free(answer);
  end(&r);
  cr_expect_not_null(strstr(r.log, "\"id\":\"mine-1\""), "%s", r.log);
  cr_expect_not_null(strstr(r.log, "\"tokens\":2"), "%s", r.log);
  cr_expect_null(strstr(r.log, "secret"), "%s", r.log);
  release(&r);
}
