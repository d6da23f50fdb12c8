/* Bodies of requests: what they become, and what is said of those that are refused. */
#include "serve/openai_request.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum parser { CHAT, TEXT, TOKENIZE, DETOKENIZE };

static const mkvm_sampling usual = {
    .size = sizeof usual, .seed = 77, .temperature = 0.6, .top_p = 0.9, .repetition_penalty = 1.1, .top_k = 40};
static const mk_openai_model model = {&usual, 1000};

/* Parses from memory without a byte to spare, which is freed before the result is looked at. */
static mk_status parse_bytes(enum parser p, const char *text, size_t length, mk_openai_request *out,
                             mk_serve_error *error) {
  char *exact = malloc(length == 0 ? 1 : length);
  memcpy(exact, text, length);
  const mk_status status = p == CHAT       ? mk_openai_chat_parse(exact, length, &model, out, error)
                           : p == TEXT     ? mk_openai_completion_parse(exact, length, &model, out, error)
                           : p == TOKENIZE ? mk_openai_tokenize_parse(exact, length, out, error)
                                           : mk_openai_detokenize_parse(exact, length, &model, out, error);
  free(exact);
  return status;
}

static mk_openai_request accepted(enum parser p, const char *text) {
  mk_openai_request r;
  mk_serve_error error;
  cr_assert_eq(parse_bytes(p, text, strlen(text), &r, &error), MK_OK, "%.200s: %s", text, error.message);
  cr_assert_eq(error.http_status, 0);
  return r;
}

/* param "-": null. The message names `words`, and param where there is one. */
static void refused_bytes(enum parser p, const char *text, size_t length, const char *param, const char *words) {
  mk_openai_request r;
  mk_serve_error e;
  cr_assert_eq(parse_bytes(p, text, length, &r, &e), MK_ERR_USAGE, "%.200s", text);
  cr_assert_eq(e.http_status, 400);
  cr_assert_str_eq(e.type, "invalid_request_error");
  cr_assert_str_eq(e.param, param[0] == '-' ? "" : param, "%.200s: %s", text, e.message);
  cr_assert_not_null(strstr(e.message, words), "%.200s: `%s` is not in: %s", text, words, e.message);
  cr_assert(param[0] == '-' || strstr(e.message, param) != NULL, "`%s` is not in: %s", param, e.message);
  cr_assert_str_eq(e.message, mk_error_message());
  cr_assert(r.body == NULL && r.turns == NULL && r.prompts == NULL, "a refused body has left something");
}

static void refused(enum parser p, const char *text, const char *param, const char *words) {
  refused_bytes(p, text, strlen(text), param, words);
}

/* A chat, or a completion, with these fields. */
static const char *with(enum parser p, const char *fields) {
  static char text[4096];
  snprintf(text, sizeof text,
           p == CHAT ? "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]%s%s}" : "{\"prompt\":\"hi\"%s%s}",
           fields[0] == '\0' ? "" : ",", fields);
  return text;
}

Test(request, defaults_of_a_chat) {
  mk_openai_request r = accepted(CHAT, with(CHAT, ""));
  cr_assert(r.chat && r.model == NULL && r.turn_count == 1 && r.prompt_count == 0);
  cr_assert_str_eq(r.turns[0].role, "user");
  cr_assert(r.turns[0].content_length == 2 && memcmp(r.turns[0].content, "hi", 2) == 0);
  cr_assert(r.n == 1 && !r.has_max_tokens && !r.stream && !r.logprobs && !r.echo && !r.ignore_eos && !r.has_seed);
  cr_assert(r.sampling.temperature == 0.6 && r.sampling.top_p == 0.9 && r.sampling.top_k == 40);
  cr_assert(r.sampling.repetition_penalty == 1.1 && r.sampling.seed == 77 && r.sampling.bias_count == 0);
  cr_assert(r.stop_count == 0 && r.priority == 0 && !r.include_usage && !r.continuous_usage);
  mk_openai_request_free(&r);
  cr_assert(r.body == NULL);
  mk_openai_request_free(&r);
}

Test(request, defaults_of_a_completion) {
  mk_openai_request r = accepted(TEXT, with(TEXT, ""));
  cr_assert(!r.chat && r.has_max_tokens && r.max_tokens == 16 && r.prompt_count == 1 && r.turn_count == 0);
  cr_assert(r.prompts[0].length == 2 && r.prompts[0].tokens == NULL);
  cr_assert_str_eq(r.prompts[0].text, "hi");
  mk_openai_request_free(&r);
}

Test(request, everything_at_once) {
  mk_openai_request r = accepted(
      CHAT,
      with(CHAT,
           "\"model\":\"m\",\"n\":3,\"best_of\":3,\"max_tokens\":5,\"max_completion_tokens\":7,\"stream\":true,"
           "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true},\"stop\":[\"a\",\"bc\"],"
           "\"seed\":-1,\"temperature\":2,\"top_p\":1,\"top_k\":3,\"min_p\":0.5,\"presence_penalty\":-2,"
           "\"frequency_penalty\":2,\"repetition_penalty\":1.0,\"logit_bias\":{\"0\":-100,\"999\":1.5},"
           "\"logprobs\":true,\"top_logprobs\":20,\"ignore_eos\":true,\"user\":[1],\"priority\":-3,"
           "\"response_format\":{\"type\":\"text\"},\"tools\":[],\"tool_choice\":\"none\",\"unknown\":{\"x\":[]}"));
  cr_assert_str_eq(r.model, "m");
  cr_assert(r.n == 3 && r.has_max_tokens && r.max_tokens == 7 && r.stream && r.include_usage && r.continuous_usage);
  cr_assert(r.stop_count == 2 && strcmp(r.stops[0], "a") == 0 && strcmp(r.stops[1], "bc") == 0);
  const mkvm_sampling *s = &r.sampling;
  cr_assert(r.has_seed && s->seed == UINT64_MAX && s->temperature == 2 && s->top_p == 1 && s->top_k == 3);
  cr_assert(s->min_p == 0.5 && s->presence_penalty == -2 && s->frequency_penalty == 2 && s->repetition_penalty == 1);
  cr_assert(s->bias_count == 2 && s->biases == r.biases && s->size == sizeof *s);
  const bool swapped = s->biases[0].token == 999;
  cr_assert(s->biases[swapped].token == 0 && s->biases[swapped].bias == -100);
  cr_assert(s->biases[!swapped].token == 999 && s->biases[!swapped].bias == 1.5F);
  cr_assert(r.logprobs && r.top_logprobs == 20 && r.ignore_eos && r.priority == -3);
  mk_openai_request_free(&r);
}

Test(request, null_is_as_good_as_absent) {
  static const char *const names[] = {"model",
                                      "n",
                                      "best_of",
                                      "max_tokens",
                                      "stream",
                                      "stream_options",
                                      "stop",
                                      "seed",
                                      "temperature",
                                      "top_p",
                                      "top_k",
                                      "min_p",
                                      "presence_penalty",
                                      "frequency_penalty",
                                      "repetition_penalty",
                                      "logit_bias",
                                      "logprobs",
                                      "ignore_eos",
                                      "user",
                                      "priority",
                                      "echo",
                                      "suffix",
                                      "response_format",
                                      "tools",
                                      "min_tokens",
                                      "guided_json",
                                      "prompt_logprobs"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    char field[64];
    snprintf(field, sizeof field, "\"%s\":null", names[i]);
    for (enum parser p = CHAT; p <= TEXT; p++) {
      mk_openai_request r = accepted(p, with(p, field));
      cr_assert(r.sampling.temperature == 0.6 && r.n == 1 && !r.stream && !r.logprobs &&
                r.has_max_tokens == (p == TEXT));
      mk_openai_request_free(&r);
    }
  }
}

Test(request, what_known_clients_send) {
  mk_openai_request r = accepted(TEXT,
                                 "{\"model\":\"m\",\"prompt\":\"x\",\"max_tokens\":1,\"temperature\":0,\"logprobs\":1,"
                                 "\"echo\":true,\"seed\":1234}");
  cr_assert(r.echo && r.logprobs && r.top_logprobs == 1 && r.max_tokens == 1 && r.sampling.temperature == 0);
  mk_openai_request_free(&r);
  r = accepted(
      CHAT,
      "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hello\"}]}],"
      "\"max_completion_tokens\":8,\"stream\":true,\"stream_options\":{\"include_usage\":true},\"ignore_eos\":true,"
      "\"repetition_penalty\":1.0,\"logprobs\":null,\"min_tokens\":8}");
  cr_assert(r.turns[0].content_length == 5 && strcmp(r.turns[0].content, "hello") == 0 && r.max_tokens == 8);
  mk_openai_request_free(&r);
  r = accepted(TEXT, "{\"prompt\":\"x\",\"max_tokens\":0,\"echo\":true,\"logprobs\":0,\"stop\":null,\"top_k\":-1}");
  cr_assert(r.has_max_tokens && r.max_tokens == 0 && r.logprobs && r.top_logprobs == 0 && r.sampling.top_k == 0);
  mk_openai_request_free(&r);
}

Test(request, messages) {
  mk_openai_request r = accepted(
      CHAT,
      "{\"messages\":[{\"role\":\"developer\",\"content\":\"be\",\"name\":7},{\"role\":\"assistant\",\"content\":null},"
      "{\"role\":\"assistant\"},{\"role\":\"user\",\"content\":[]},{\"role\":\"user\",\"content\":[{\"type\":\"text\","
      "\"text\":\"a\"},{\"type\":\"text\",\"text\":\"\"},{\"type\":\"text\",\"text\":\"\\u00e9\"}]},{\"role\":"
      "\"system\",\"content\":\"\"}]}");
  static const char *const expected[][2] = {{"system", "be"}, {"assistant", ""},         {"assistant", ""},
                                            {"user", ""},     {"user", "a\n\n\xc3\xa9"}, {"system", ""}};
  cr_assert_eq(r.turn_count, 6);
  for (size_t i = 0; i < r.turn_count; i++) {
    cr_assert_str_eq(r.turns[i].role, expected[i][0]);
    cr_assert_str_eq(r.turns[i].content, expected[i][1]);
    cr_assert_eq(r.turns[i].content_length, strlen(expected[i][1]));
  }
  mk_openai_request_free(&r);
}

Test(request, variables_of_the_template) {
  mk_openai_request r = accepted(CHAT, with(CHAT, ""));
  cr_assert_null(r.variables);
  mk_openai_request_free(&r);
  r = accepted(CHAT, with(CHAT, "\"chat_template_kwargs\": {\"enable_thinking\": false, \"x\": [1, \"\\u00e9\"]}"));
  cr_assert_str_eq(r.variables, "{\"enable_thinking\":false,\"x\":[1,\"\xc3\xa9\"]}");
  mk_openai_request_free(&r);
  r = accepted(TOKENIZE, "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"chat_template_kwargs\":{}}");
  cr_assert_str_eq(r.variables, "{}");
  mk_openai_request_free(&r);
  refused(CHAT, with(CHAT, "\"chat_template_kwargs\": []"), "chat_template_kwargs", "expected an object of names and");
}

Test(request, prompts) {
  mk_openai_request r = accepted(TEXT, "{\"prompt\":[\"a\",\"\",\"bc\"]}");
  cr_assert(r.prompt_count == 3 && r.prompts[1].length == 0 && r.prompts[1].text != NULL && r.prompts[2].length == 2);
  mk_openai_request_free(&r);
  r = accepted(TEXT, "{\"prompt\":[0,999,5]}");
  cr_assert(r.prompt_count == 1 && r.prompts[0].text == NULL && r.prompts[0].token_count == 3);
  cr_assert(r.prompts[0].tokens[0] == 0 && r.prompts[0].tokens[1] == 999 && r.prompts[0].tokens[2] == 5);
  mk_openai_request_free(&r);
  r = accepted(TEXT, "{\"prompt\":[[1],[2,3],\"x\"],\"n\":2}");
  cr_assert(r.prompt_count == 3 && r.n == 2 && r.prompts[0].token_count == 1 && r.prompts[1].token_count == 2);
  cr_assert(r.prompts[0].tokens[0] == 1 && r.prompts[1].tokens[0] == 2 && r.prompts[1].tokens[1] == 3);
  cr_assert_str_eq(r.prompts[2].text, "x");
  mk_openai_request_free(&r);
}

Test(request, refused_prompts) {
  refused(TEXT, "{}", "prompt", "expected a string");
  refused(TEXT, "{\"prompt\":7}", "prompt", "got an integer");
  refused(TEXT, "{\"prompt\":[]}", "prompt", "is empty");
  refused(TEXT, "{\"prompt\":[[]]}", "prompt[0]", "is empty");
  refused(TEXT, "{\"prompt\":[1,\"a\"]}", "prompt[1]", "got a string");
  refused(TEXT, "{\"prompt\":[\"a\",1]}", "prompt[1]", "got an integer");
  refused(TEXT, "{\"prompt\":[[1],[2,-1]]}", "prompt[1][1]", "is -1");
  refused(TEXT, "{\"prompt\":[1000]}", "prompt[0]", "0 to 999");
  refused(TEXT, "{\"prompt\":[4294967297]}", "prompt[0]", "is 4294967297");
  refused(TEXT, "{\"prompt\":[1.5]}", "prompt[0]", "a decimal number");
  char many[20 + 1025 * 4] = "{\"prompt\":[\"\"";
  for (int i = 0; i < MK_OPENAI_PROMPTS; i++) {
    strcat(many, ",\"\"");
  }
  strcat(many, "]}");
  refused(TEXT, many, "prompt", "1025 prompts");
  refused(TEXT, "{\"prompt\":[\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\"],\"n\":128}", "prompt",
          "9 prompts with n = 128");
}

Test(request, refused_messages) {
  refused(CHAT, "{}", "messages", "got nothing");
  refused(CHAT, "{\"messages\":\"hi\"}", "messages", "got a string");
  refused(CHAT, "{\"messages\":[]}", "messages", "is empty");
  refused(CHAT, "{\"messages\":[1]}", "messages[0]", "got an integer");
  static const char *const bad[][3] = {
      {"\"content\":\"x\"", ".role", "got nothing"},
      {"\"role\":1,\"content\":\"x\"", ".role", "got an integer"},
      {"\"role\":\"tool\",\"content\":\"x\"", ".role", "is \"tool\""},
      {"\"role\":\"user\"", ".content", "got nothing"},
      {"\"role\":\"user\",\"content\":{}", ".content", "got an object"},
      {"\"role\":\"user\",\"content\":[\"x\"]", ".content[0]", "got a string"},
      {"\"role\":\"user\",\"content\":[{\"type\":\"text\"}]", ".content[0].text", "got nothing"},
      {"\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\",\"image_url\":{}}]",
       ".content[1].type", "image_url"},
      {"\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]", ".content[0].type", "input_audio"},
      {"\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{}]", ".tool_calls", "tools"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    char text[512], param[64];
    snprintf(text, sizeof text, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{%s}]}", bad[i][0]);
    snprintf(param, sizeof param, "messages[1]%s", bad[i][1]);
    refused(CHAT, text, param, bad[i][2]);
  }
}

Test(request, refused_values) {
  static const char *const bad[][3] = {
      {"\"n\":0", "n", "from 1 to 128"},
      {"\"n\":129", "n", "is 129"},
      {"\"n\":1.0", "n", "expected an integer, but got a decimal number"},
      {"\"n\":\"1\"", "n", "but got a string instead"},
      {"\"n\":true", "n", "a boolean"},
      {"\"best_of\":2", "best_of", "is 2 and n is 1"},
      {"\"max_tokens\":0", "max_tokens", "from 1"},
      {"\"max_tokens\":-1", "max_tokens", "is -1"},
      {"\"stream\":1", "stream", "expected a boolean"},
      {"\"stream\":\"true\"", "stream", "got a string"},
      {"\"stream_options\":{\"include_usage\":true}", "stream_options", "'stream' to true"},
      {"\"stream\":true,\"stream_options\":[]", "stream_options", "an array"},
      {"\"stream\":true,\"stream_options\":{\"include_usage\":1}", "include_usage", "an integer"},
      {"\"stop\":7", "stop", "got an integer"},
      {"\"stop\":[1]", "stop", "got an integer"},
      {"\"stop\":\"\"", "stop", "0 bytes"},
      {"\"stop\":[\"a\",\"\"]", "stop", "text 1 has 0 bytes"},
      {"\"stop\":[\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\"]", "stop",
       "has 17"},
      {"\"seed\":1.5", "seed", "a decimal number"},
      {"\"seed\":9223372036854775808", "-", "integer"},
      {"\"temperature\":-0.1", "temperature", "is -0.1"},
      {"\"temperature\":2.1", "temperature", "from 0 to 2"},
      {"\"temperature\":\"1\"", "temperature", "expected a number"},
      {"\"temperature\":1e400", "-", "real number overflow"},
      {"\"temperature\":NaN", "-", "NaN"},
      {"\"top_p\":1.1", "top_p", "is 1.1"},
      {"\"top_k\":-2", "top_k", "is -2"},
      {"\"min_p\":2", "min_p", "is 2"},
      {"\"presence_penalty\":2.5", "presence_penalty", "from -2 to 2"},
      {"\"frequency_penalty\":-3", "frequency_penalty", "is -3"},
      {"\"repetition_penalty\":0", "repetition_penalty", "is 0"},
      {"\"logit_bias\":[]", "logit_bias", "an array"},
      {"\"logit_bias\":{\"1\":101}", "logit_bias", "101 for token 1"},
      {"\"logit_bias\":{\"1\":\"x\"}", "logit_bias", "a string"},
      {"\"logit_bias\":{\"1000\":1}", "logit_bias", "'1000'"},
      {"\"logit_bias\":{\"01\":1}", "logit_bias", "'01'"},
      {"\"logit_bias\":{\"\":1}", "logit_bias", "''"},
      {"\"logit_bias\":{\"-1\":1}", "logit_bias", "'-1'"},
      {"\"logit_bias\":{\"18446744073709551617\":1}", "logit_bias", "18446744073709551617"},
      {"\"ignore_eos\":0", "ignore_eos", "expected a boolean"},
      {"\"priority\":2147483648", "priority", "2147483648"},
      {"\"model\":5", "model", "expected a string"},
      {"\"min_tokens\":5", "min_tokens", "ignore_eos"},
      {"\"ignore_eos\":true,\"stop\":\"a\",\"min_tokens\":5", "min_tokens", "is 5"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    for (enum parser p = CHAT; p <= TEXT; p++) {
      refused(p, with(p, bad[i][0]), bad[i][1], bad[i][2]);
    }
  }
  refused(CHAT, with(CHAT, "\"logprobs\":1"), "logprobs", "expected a boolean");
  refused(CHAT, with(CHAT, "\"logprobs\":true,\"top_logprobs\":21"), "top_logprobs", "from 0 to 20");
  refused(CHAT, with(CHAT, "\"top_logprobs\":1"), "top_logprobs", "'logprobs' to true");
  refused(CHAT, with(CHAT, "\"max_completion_tokens\":0"), "max_completion_tokens", "is 0");
  refused(TEXT, with(TEXT, "\"logprobs\":true"), "logprobs", "expected an integer");
  refused(TEXT, with(TEXT, "\"logprobs\":6"), "logprobs", "from 0 to 5");
  refused(TEXT, with(TEXT, "\"echo\":\"yes\""), "echo", "expected a boolean");
}

Test(request, not_done_and_said_so) {
  static const char *const both[][2] = {{"response_format", "{\"type\":\"json_object\"}"},
                                        {"response_format", "{\"type\":\"json_schema\"}"},
                                        {"response_format", "\"text\""},
                                        {"guided_json", "{\"a\":1}"},
                                        {"structured_outputs", "{\"regex\":\"x\"}"},
                                        {"use_beam_search", "true"},
                                        {"prompt_logprobs", "0"},
                                        {"stop_token_ids", "[1]"},
                                        {"grammar", "\"root ::= x\""},
                                        {"json_schema", "{\"type\":\"object\"}"},
                                        {"skip_special_tokens", "false"},
                                        {"return_token_ids", "true"},
                                        {"bad_words", "[\"x\"]"}};
  static const char *const chat[][2] = {{"tools", "[{\"type\":\"function\"}]"}, {"tool_choice", "\"auto\""},
                                        {"tool_choice", "{\"type\":\"f\"}"},    {"functions", "[{}]"},
                                        {"function_call", "\"auto\""},          {"audio", "{\"voice\":\"x\"}"},
                                        {"modalities", "[\"text\",\"audio\"]"}, {"modalities", "[\"audio\"]"},
                                        {"documents", "[{\"text\":\"x\"}]"},    {"add_generation_prompt", "false"},
                                        {"add_special_tokens", "true"},         {"echo", "true"}};
  char field[128];
  for (size_t i = 0; i < sizeof both / sizeof both[0]; i++) {
    snprintf(field, sizeof field, "\"%s\":%s", both[i][0], both[i][1]);
    refused(CHAT, with(CHAT, field), both[i][0], "upported");
    refused(TEXT, with(TEXT, field), both[i][0], "upported");
  }
  for (size_t i = 0; i < sizeof chat / sizeof chat[0]; i++) {
    snprintf(field, sizeof field, "\"%s\":%s", chat[i][0], chat[i][1]);
    refused(CHAT, with(CHAT, field), chat[i][0], "upported");
  }
  refused(TEXT, with(TEXT, "\"suffix\":\"end\""), "suffix", "inserted");
  refused(TEXT, with(TEXT, "\"add_special_tokens\":false"), "add_special_tokens", "/tokenize");
  refused(TEXT, with(TEXT, "\"skip_special_tokens\":1"), "skip_special_tokens", "upported");
}

Test(request, harmless_forms_of_what_is_not_done) {
  static const char *const fine[] = {"\"modalities\":[\"text\"]",
                                     "\"tools\":null",
                                     "\"functions\":[]",
                                     "\"echo\":false",
                                     "\"function_call\":\"none\"",
                                     "\"use_beam_search\":false",
                                     "\"suffix\":\"\"",
                                     "\"skip_special_tokens\":true",
                                     "\"skip_special_tokens\":null",
                                     "\"add_generation_prompt\":true",
                                     "\"return_token_ids\":false"};
  for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
    for (enum parser p = CHAT; p <= TEXT; p++) {
      mk_openai_request r = accepted(p, with(p, fine[i]));
      mk_openai_request_free(&r);
    }
  }
}

Test(request, not_json) {
  refused(CHAT, "", "-", "not valid JSON");
  refused(CHAT, "[]", "-", "must be an object");
  refused(CHAT, "{\"messages\":[", "-", "not valid JSON");
  refused(CHAT, "{} {}", "-", "end of file expected");
  refused(CHAT, "{\"n\":1,\"n\":1}", "-", "duplicate");
  refused(CHAT, "{\"stream_options\":{\"a\":1,\"a\":2}}", "-", "duplicate");
  refused(TEXT, "{\"prompt\":\"\xff\"}", "-", "0xff");
  refused(TEXT, "{\"prompt\":\"\xed\xa0\x80\"}", "-", "decode");
  refused(TEXT, "{\"prompt\":\"\\ud800\"}", "-", "not valid JSON");
  refused(TEXT, "{\"prompt\":\"\\u0000\"}", "-", "\\u0000");
  refused_bytes(TEXT, "{\"prompt\":\"a\0b\"}", 16, "-", "not valid JSON");
  refused_bytes(TEXT, "\"\\", 2, "-", "not valid JSON");
}

/* Nested arrays of this depth, the body counted, as a field that nobody reads. */
static char *nested(size_t depth, size_t *length) {
  const char head[] = "{\"prompt\":\"a\",\"x\":";
  *length = sizeof head - 1 + 2 * (depth - 1) + 1;
  char *text = malloc(*length);
  memcpy(text, head, sizeof head - 1);
  memset(text + sizeof head - 1, '[', depth - 1);
  memset(text + sizeof head - 1 + depth - 1, ']', depth - 1);
  text[*length - 1] = '}';
  return text;
}

Test(request, depth) {
  static const size_t depths[] = {MK_OPENAI_DEPTH + 1, 1000, 1000000};
  size_t length;
  for (size_t i = 0; i < sizeof depths / sizeof depths[0]; i++) {
    char *text = nested(depths[i], &length);
    refused_bytes(TEXT, text, length, "-", "nested more than 32 deep");
    free(text);
  }
  char *text = nested(MK_OPENAI_DEPTH, &length);
  mk_openai_request r;
  mk_serve_error error;
  cr_assert_eq(parse_bytes(TEXT, text, length, &r, &error), MK_OK, "%s", error.message);
  mk_openai_request_free(&r);
  free(text);
  /* Brackets in strings do not count, wherever those end. */
  const char brackets[] = "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[";
  char body[256];
  snprintf(body, sizeof body, "{\"prompt\":1,\"x\":\"%s\\\"%s\"}", brackets, brackets);
  refused(TEXT, body, "prompt", "got an integer");
  snprintf(body, sizeof body, "{\"prompt\":1,\"x\":\"\\\\\",\"y\":%s}", brackets);
  refused(TEXT, body, "-", "nested more than 32 deep");
}

/* A field of `count` equal elements. */
static char *many(const char *head, const char *element, size_t count, const char *tail) {
  const size_t one = strlen(element) + 1;
  char *text = malloc(strlen(head) + count * one + strlen(tail) + 1), *at = text + strlen(head);
  strcpy(text, head);
  for (size_t i = 0; i < count; i++, at += one) {
    snprintf(at, one + 1, "%s,", element);
  }
  strcpy(at - 1, tail);
  return text;
}

Test(request, a_million_of_everything) {
  char *text = many("{\"prompt\":\"a\",\"stop\":[", "\"x\"", 1000000, "]}");
  refused(TEXT, text, "-", "more than 262144 values");
  free(text);
  text = many("{\"prompt\":\"a\",\"stop\":[", "\"x\"", 100000, "]}");
  refused(TEXT, text, "stop", "has 100000 texts");
  free(text);
  text = many("{\"prompt\":[", "7", 200000, "]}");
  mk_openai_request r = accepted(TEXT, text);
  cr_assert(r.prompts[0].token_count == 200000 && r.prompts[0].tokens[199999] == 7);
  mk_openai_request_free(&r);
  free(text);
}

Test(request, tokenize) {
  mk_openai_request r = accepted(TOKENIZE, "{\"model\":\"m\",\"prompt\":\"a b\",\"add_special_tokens\":false}");
  cr_assert(strcmp(r.model, "m") == 0 && strcmp(r.prompts[0].text, "a b") == 0 && r.prompts[0].length == 3);
  cr_assert(!r.add_special);
  mk_openai_request_free(&r);
  r = accepted(TOKENIZE, "{\"prompt\":\"\"}");
  cr_assert(r.add_special && r.prompts[0].length == 0 && r.turn_count == 0);
  mk_openai_request_free(&r);
  r = accepted(TOKENIZE, "{\"content\":\"x\",\"add_special\":true}");
  cr_assert(r.add_special && strcmp(r.prompts[0].text, "x") == 0);
  mk_openai_request_free(&r);
  r = accepted(TOKENIZE, "{\"content\":\"x\"}");
  cr_assert(!r.add_special);
  mk_openai_request_free(&r);
  r = accepted(TOKENIZE, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
  cr_assert(r.turn_count == 1 && r.prompt_count == 0 && !r.add_special);
  mk_openai_request_free(&r);
  refused(TOKENIZE, "{}", "prompt", "one of");
  refused(TOKENIZE, "{\"prompt\":\"a\",\"content\":\"b\"}", "prompt", "one of");
  refused(TOKENIZE, "{\"prompt\":[\"a\"]}", "prompt", "expected a string");
  refused(TOKENIZE, "{\"prompt\":\"a\",\"add_special_tokens\":1}", "add_special_tokens", "boolean");
  refused(TOKENIZE, "{\"prompt\":\"a\",\"return_token_strs\":true}", "return_token_strs", "leave it out");
}

Test(request, detokenize) {
  mk_openai_request r = accepted(DETOKENIZE, "{\"tokens\":[5,0]}");
  cr_assert(r.prompts[0].token_count == 2 && r.prompts[0].tokens[0] == 5 && r.prompts[0].tokens[1] == 0);
  mk_openai_request_free(&r);
  r = accepted(DETOKENIZE, "{\"tokens\":[]}");
  cr_assert(r.prompts[0].token_count == 0);
  mk_openai_request_free(&r);
  refused(DETOKENIZE, "{}", "tokens", "got nothing");
  refused(DETOKENIZE, "{\"tokens\":\"a\"}", "tokens", "got a string");
  refused(DETOKENIZE, "{\"tokens\":[1,1000]}", "tokens[1]", "is 1000");
}

Test(request, memory_runs_out) {
  static const char *const bodies[] = {
      "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":"
      "\"b\"}]}],"
      "\"stop\":[\"x\"],\"logit_bias\":{\"1\":1}}",
      "{\"prompt\":[[1,2],[3]],\"stop\":\"x\",\"logit_bias\":{\"1\":1}}", "{\"prompt\":\"a\"}", "{\"tokens\":[1]}"};
  for (enum parser p = CHAT; p <= DETOKENIZE; p++) {
    mk_openai_request r;
    mk_serve_error error;
    mk_alloc_fail_at(0, false);
    mk_openai_request good = accepted(p, bodies[p]);
    mk_openai_request_free(&good);
    const uint64_t calls = mk_alloc_calls();
    cr_assert_gt(calls, 0);
    for (uint64_t n = 1; n <= calls; n++) {
      mk_alloc_fail_at(n, false);
      const mk_status status = parse_bytes(p, bodies[p], strlen(bodies[p]), &r, &error);
      mk_alloc_fail_at(0, false);
      cr_assert_eq(status, MK_ERR_RUNTIME);
      cr_assert(error.http_status == 500 && strcmp(error.type, "server_error") == 0 && r.body == NULL);
      cr_assert_not_null(strstr(error.message, "memory"));
    }
  }
}
