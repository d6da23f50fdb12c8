/* Chats with the demo model, and log-probabilities: what the server answers is what libmkvm gives. */
#include "tests/serve/server.h"

TestSuite(server_chat, .timeout = MK_HANG_SECONDS);

enum { TOKENS = 12, TOP = 3 };

static void start_demo(rig *r) {
  prepare(r);
  r->options.directory = MK_SOURCE_DIR "/models/demo";
  r->options.engine.max_batch = 4;
  start_ready(r);
}

/* ---- libmkvm's own ---- */

typedef struct heard {
  char text[4096];
  size_t length, tokens, prompt_tokens, asked;
  float logprob[TOKENS], top[TOKENS][TOP], prompt[64];
} heard;

static int hear(void *user, const mkvm_token *token) {
  heard *h = user;
  memcpy(h->text + h->length, token->text, token->length);
  h->length += token->length;
  if (token->token != MKVM_NO_TOKEN) {
    cr_assert(h->tokens < TOKENS && token->top_count == TOP);
    h->logprob[h->tokens] = (float)token->logprob;
    for (size_t i = 0; i < TOP; i++) {
      h->top[h->tokens][i] = (float)token->top[i].logprob;
    }
    h->tokens++;
  }
  return 0;
}

static void hear_prompt(void *user, const mkvm_token *token) {
  heard *h = user;
  cr_assert_lt(h->asked, sizeof h->prompt / sizeof h->prompt[0]);
  h->prompt[h->asked++] = (float)token->logprob;
}

static void hear_end(void *user, const mkvm_end *end) { ((heard *)user)->prompt_tokens = end->prompt_tokens; }

/* Greedy, TOKENS of them; of a chat when `prompt` is NULL. */
static void ask_libmkvm(const rig *r, const char *prompt, heard *h) {
  static const mkvm_turn turn = {.role = "user", .content = "What is a database?", .content_length = 19};
  mkvm_engine *engine;
  mkvm_request request;
  mkvm_options options = r->options.engine;
  *h = (heard){.tokens = 0};
  cr_assert_eq(mkvm_open(r->options.directory, &options, &engine), MKVM_OK, "%s", mkvm_message());
  mkvm_request_init(&request);
  request.text = prompt;
  request.text_length = prompt == NULL ? 0 : strlen(prompt);
  request.turns = prompt == NULL ? &turn : NULL;
  request.turn_count = prompt == NULL;
  request.max_tokens = TOKENS;
  request.ignore_end = 1;
  request.logprobs = 1;
  request.top_logprobs = TOP;
  request.on_token = hear;
  request.on_prompt = prompt == NULL ? NULL : hear_prompt;
  request.on_end = hear_end;
  request.user = h;
  cr_assert_eq(mkvm_submit(engine, &request, NULL), MKVM_OK, "%s", mkvm_message());
  cr_assert_eq(mkvm_run(engine), MKVM_OK);
  mkvm_close(engine);
  cr_assert_eq(h->tokens, TOKENS);
}

/* ---- What the server says ---- */

static const json_t *get(const json_t *object, const char *key) { return json_object_get(object, key); }
static const json_t *first(const json_t *answer) { return json_array_get(get(answer, "choices"), 0); }

static float number(const json_t *value) {
  cr_assert(json_is_number(value));
  return (float)json_number_value(value);
}

/* Entries of `content` are those of libmkvm from token `at` on; how many there are. */
static size_t expect_content(const json_t *content, const heard *h, size_t at) {
  const size_t count = json_array_size(content);
  for (size_t i = 0; i < count; i++) {
    const json_t *entry = json_array_get(content, i), *top = get(entry, "top_logprobs");
    cr_assert(at + i < TOKENS && json_array_size(top) == TOP);
    cr_expect_eq(number(get(entry, "logprob")), h->logprob[at + i], "token %zu", at + i);
    cr_expect_eq(json_real_value(get(entry, "logprob")), json_real_value(get(json_array_get(top, 0), "logprob")));
    for (size_t j = 0; j < TOP; j++) {
      cr_expect_eq(number(get(json_array_get(top, j), "logprob")), h->top[at + i][j], "token %zu, %zu", at + i, j);
    }
  }
  return count;
}

#define CHAT                                                                                              \
  "{\"messages\":[{\"role\":\"user\",\"content\":\"What is a database?\"}],\"max_completion_tokens\":12," \
  "\"temperature\":0,\"repetition_penalty\":1.0,\"ignore_eos\":true,\"logprobs\":true,\"top_logprobs\":3"

Test(server_chat, in_one_piece) {
  rig r;
  heard own;
  start_demo(&r);
  ask_libmkvm(&r, NULL, &own);
  json_t *answer = ask_json(&r, "POST", "/v1/chat/completions", CHAT "}", 200);
  const json_t *choice = first(answer), *message = get(choice, "message"), *usage = get(answer, "usage");
  cr_expect_str_eq(json_string_value(get(message, "role")), "assistant");
  cr_expect_str_eq(json_string_value(get(message, "content")), own.text);
  cr_expect_str_eq(json_string_value(get(choice, "finish_reason")), "length");
  cr_expect_eq(expect_content(get(get(choice, "logprobs"), "content"), &own, 0), TOKENS);
  cr_expect_eq(json_integer_value(get(usage, "prompt_tokens")), (json_int_t)own.prompt_tokens);
  cr_expect_eq(json_integer_value(get(usage, "completion_tokens")), TOKENS);
  json_decref(answer);
  stop(&r);
}

static json_int_t prompt_length(const rig *r, const char *fields) {
  char body[512];
  snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]%s}", fields);
  json_t *answer = ask_json(r, "POST", "/tokenize", body, 200);
  const json_int_t count = json_integer_value(get(answer, "count"));
  json_decref(answer);
  snprintf(body, sizeof body, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]%s}", fields);
  answer = ask_json(r, "POST", "/v1/chat/completions", body, 200);
  cr_expect_eq(json_integer_value(get(get(answer, "usage"), "prompt_tokens")), count, "%s", fields);
  json_decref(answer);
  return count;
}

/* The demo's template writes bos_token once. */
Test(server_chat, variables_of_the_template) {
  rig r;
  start_demo(&r);
  const json_int_t usual = prompt_length(&r, "");
  cr_expect_eq(prompt_length(&r, ",\"chat_template_kwargs\":{\"bos_token\":\"\"}"), usual - 1);
  cr_expect_eq(prompt_length(&r, ",\"chat_template_kwargs\":{\"enable_thinking\":false}"), usual);
  char *answer =
      ask(&r, "POST", "/v1/chat/completions",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"chat_template_kwargs\":{\"tools\":[]}}", 400);
  cr_expect_not_null(strstr(answer, "'tools' cannot be given"), "%s", answer);
  free(answer);
  stop(&r);
}

typedef struct streamed {
  char text[4096];
  size_t roles, ends, usages, events, tokens;
} streamed;

static void take_event(const json_t *event, const heard *own, streamed *s) {
  const json_t *choice = first(event), *delta = get(choice, "delta"), *usage = get(event, "usage");
  const char *text = json_string_value(get(delta, "content"));
  cr_assert(json_is_null(usage) || json_is_object(usage));
  cr_expect_eq(json_integer_value(get(usage, "prompt_tokens")), (json_int_t)own->prompt_tokens, "event %zu", s->events);
  s->events++;
  s->usages += choice == NULL;
  s->roles += get(delta, "role") != NULL;
  s->ends += json_is_string(get(choice, "finish_reason"));
  strcat(s->text, text == NULL ? "" : text);
  s->tokens += expect_content(get(get(choice, "logprobs"), "content"), own, s->tokens);
}

/* Events that have continuous usage know the prompt's length from the first one on. */
Test(server_chat, in_a_stream) {
  rig r;
  heard own;
  streamed s = {.tokens = 0};
  start_demo(&r);
  ask_libmkvm(&r, NULL, &own);
  char *answer =
      ask(&r, "POST", "/v1/chat/completions",
          CHAT ",\"stream\":true,\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}}", 200);
  for (const char *at = strstr(answer, "data: {"); at != NULL; at = strstr(at + 1, "data: {")) {
    json_t *event = json_loads(at + 6, JSON_DISABLE_EOF_CHECK, NULL);
    cr_assert_not_null(event, "%s", at);
    take_event(event, &own, &s);
    json_decref(event);
  }
  cr_expect_str_eq(s.text, own.text);
  cr_expect(s.roles == 1 && s.ends == 1 && s.usages == 1 && s.tokens == TOKENS, "%zu, %zu, %zu, %zu", s.roles, s.ends,
            s.usages, s.tokens);
  cr_expect_not_null(strstr(answer, "data: [DONE]\n\n"));
  free(answer);
  stop(&r);
}

/* The prompt's and the answer's, as lm-eval reads them. */
Test(server_chat, log_probabilities_of_a_completion) {
  rig r;
  heard own;
  start_demo(&r);
  ask_libmkvm(&r, "A database is a file", &own);
  json_t *answer = ask_json(&r, "POST", "/v1/completions",
                            "{\"prompt\":\"A database is a file\",\"max_tokens\":12,\"temperature\":0,\"echo\":true,"
                            "\"logprobs\":3,\"ignore_eos\":true,\"repetition_penalty\":1.0}",
                            200);
  const json_t *told = get(get(first(answer), "logprobs"), "token_logprobs");
  cr_assert_eq(json_array_size(told), 1 + own.asked + TOKENS);
  cr_assert_eq(own.asked + 1, own.prompt_tokens);
  cr_expect(json_is_null(json_array_get(told, 0)));
  for (size_t i = 0; i < own.asked; i++) {
    cr_expect_eq(number(json_array_get(told, 1 + i)), own.prompt[i], "token %zu of the prompt", i + 1);
  }
  for (size_t i = 0; i < TOKENS; i++) {
    cr_expect_eq(number(json_array_get(told, 1 + own.asked + i)), own.logprob[i], "token %zu", i);
  }
  json_decref(answer);
  stop(&r);
}

/* The answer ends before a text that it has; which one is known from the whole answer. */
Test(server_chat, stop_texts) {
  rig r;
  heard own;
  char body[512], four[5];
  start_demo(&r);
  ask_libmkvm(&r, NULL, &own);
  cr_assert_gt(own.length, 12);
  snprintf(four, sizeof four, "%.4s", own.text + 8);
  json_t *text = json_string(four);
  char *quoted = json_dumps(text, JSON_ENCODE_ANY);
  snprintf(body, sizeof body, CHAT ",\"stop\":[%s]}", quoted);
  json_t *answer = ask_json(&r, "POST", "/v1/chat/completions", body, 200);
  const char *content = json_string_value(get(get(first(answer), "message"), "content"));
  cr_expect_str_eq(json_string_value(get(first(answer), "finish_reason")), "stop");
  cr_expect(strstr(content, four) == NULL && strncmp(content, own.text, strlen(content)) == 0, "%s", content);
  json_decref(answer);
  json_decref(text);
  free(quoted);
  stop(&r);
}
