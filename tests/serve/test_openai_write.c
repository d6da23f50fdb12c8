/* Responses and streams: as bytes, and as a JSON reader that shares no code with ours finds them. */
#include "serve/openai_write.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "serve/json_write.h"
#include "tests/support/process.h"

static const mk_openai_reply chat = {.chat = true, .id = "c-1", .created = 7, .model = "m"};
static const mk_openai_reply text = {.id = "t-1", .created = 7, .model = "m"};
static const mk_openai_usage usage = {.prompt_tokens = 5, .cached_tokens = 4, .completion_tokens = 2};

/* The bytes, which are then empty. */
static void expect(mk_bytes *out, mk_status status, const char *expected) {
  cr_assert_eq(status, MK_OK, "%s", mk_error_message());
  cr_assert(out->length == strlen(expected) && memcmp(out->bytes, expected, out->length) == 0, "%.*s\nis not\n%s",
            (int)out->length, (const char *)out->bytes, expected);
  mk_free(out->bytes);
  *out = (mk_bytes){0};
}

static json_t *parsed(const void *bytes, size_t length) {
  json_error_t error;
  json_t *json = json_loadb(bytes, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
  cr_assert_not_null(json, "%s in %.*s", error.text, (int)length, (const char *)bytes);
  return json;
}

static json_t *taken(mk_bytes *out, mk_status status) {
  cr_assert_eq(status, MK_OK, "%s", mk_error_message());
  json_t *json = parsed(out->bytes, out->length);
  mk_free(out->bytes);
  *out = (mk_bytes){0};
  return json;
}

#define CHUNK "data: {\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"created\":7,\"model\":\"m\",\"choices\":["
#define PIECE "data: {\"id\":\"t-1\",\"object\":\"text_completion\",\"created\":7,\"model\":\"m\",\"choices\":["

Test(write, chat_response) {
  mk_bytes out = {0};
  const mk_openai_choice choices[] = {{.index = 0, .text = "Hi\n", .length = 3, .finish_reason = "stop"},
                                      {.index = 1, .finish_reason = "length"}};
  expect(&out, mk_openai_write_response(&out, &chat, choices, 2, &usage),
         "{\"id\":\"c-1\",\"object\":\"chat.completion\",\"created\":7,\"model\":\"m\",\"choices\":["
         "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hi\\n\",\"refusal\":null},\"logprobs\":null,"
         "\"finish_reason\":\"stop\"},"
         "{\"index\":1,\"message\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},\"logprobs\":null,"
         "\"finish_reason\":\"length\"}],"
         "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7,"
         "\"prompt_tokens_details\":{\"cached_tokens\":4}}}");
}

Test(write, completion_response) {
  mk_bytes out = {0};
  const mk_openai_choice choice = {.text = "Hi", .length = 2, .finish_reason = "stop"};
  expect(&out, mk_openai_write_response(&out, &text, &choice, 1, &usage),
         "{\"id\":\"t-1\",\"object\":\"text_completion\",\"created\":7,\"model\":\"m\",\"choices\":["
         "{\"index\":0,\"text\":\"Hi\",\"logprobs\":null,\"finish_reason\":\"stop\"}],"
         "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7,"
         "\"prompt_tokens_details\":{\"cached_tokens\":4}}}");
}

/* Role with the first token, then never; an end without content; tokens counted; the end of all. */
Test(write, chat_stream) {
  mk_bytes out = {0};
  expect(&out, mk_openai_write_chunk(&out, &chat, &(mk_openai_choice){.first = true, .text = "A", .length = 1}),
         CHUNK
         "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":null},\"logprobs\":null,\"finish_reason\":null}]}"
         "\n\n" CHUNK "{\"index\":0,\"delta\":{\"content\":\"A\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
  expect(&out, mk_openai_write_chunk(&out, &chat, &(mk_openai_choice){.index = 2, .text = "", .finish_reason = "stop"}),
         CHUNK "{\"index\":2,\"delta\":{\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n" CHUNK
               "{\"index\":2,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n");
  expect(&out, mk_openai_write_chunk(&out, &chat, &(mk_openai_choice){.first = true, .finish_reason = "length"}),
         CHUNK
         "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":null},\"logprobs\":null,\"finish_reason\":null}]}"
         "\n\n" CHUNK "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n");
  cr_assert_eq(mk_openai_write_chunk(&out, &chat, &(mk_openai_choice){.index = 1}), MK_OK); /* nothing new, no event */
  expect(&out, mk_openai_write_usage(&out, &chat, &usage),
         CHUNK
         "],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7,"
         "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n");
  expect(&out, mk_openai_write_done(&out), "data: [DONE]\n\n");
}

Test(write, completion_stream) {
  mk_bytes out = {0};
  expect(&out, mk_openai_write_chunk(&out, &text, &(mk_openai_choice){.first = true, .text = "A", .length = 1}),
         PIECE "{\"index\":0,\"text\":\"A\",\"logprobs\":null,\"finish_reason\":null}]}\n\n");
  expect(&out,
         mk_openai_write_chunk(&out, &text, &(mk_openai_choice){.text = "B", .length = 1, .finish_reason = "stop"}),
         PIECE "{\"index\":0,\"text\":\"B\",\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n");
  expect(&out, mk_openai_write_chunk(&out, &text, &(mk_openai_choice){.finish_reason = "stop"}),
         PIECE "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n");
}

Test(write, usage_in_streams) {
  mk_bytes out = {0};
  mk_openai_reply asked = text;
  asked.include_usage = true;
  expect(&out, mk_openai_write_chunk(&out, &asked, &(mk_openai_choice){.text = "A", .length = 1}),
         PIECE "{\"index\":0,\"text\":\"A\",\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n");
  expect(&out, mk_openai_write_chunk(&out, &text, &(mk_openai_choice){.text = "A", .length = 1, .usage = &usage}),
         PIECE
         "{\"index\":0,\"text\":\"A\",\"logprobs\":null,\"finish_reason\":null}],\"usage\":{\"prompt_tokens\":5,"
         "\"completion_tokens\":2,\"total_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n");
}

Test(write, errors) {
  mk_bytes out = {0};
  mk_serve_error error;
  cr_assert_eq(mk_serve_fail(&error, 404, "model", "model_not_found", "no '%s'\x01", "x\"y"), MK_ERR_USAGE);
  expect(&out, mk_openai_write_error(&out, &error),
         "{\"error\":{\"message\":\"no 'x\\\"y'?\",\"type\":\"invalid_request_error\",\"param\":\"model\","
         "\"code\":\"model_not_found\"}}");
  cr_assert_eq(mk_serve_fail(&error, 500, NULL, NULL, "it broke"), MK_ERR_RUNTIME);
  expect(&out, mk_openai_write_error_event(&out, &error),
         "data: {\"error\":{\"message\":\"it broke\",\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\n");
  cr_assert_eq(mk_serve_fail(&error, 429, NULL, NULL, "later"), MK_ERR_USAGE);
  cr_assert_str_eq(error.type, "rate_limit_error");
  /* A message that is cut off within a character is still JSON. */
  char long_text[2000];
  memset(long_text, 'a', sizeof long_text);
  for (size_t i = 1; i + 2 < sizeof long_text; i += 2) {
    memcpy(long_text + i, "\xc3\xa9", 2);
  }
  long_text[sizeof long_text - 1] = '\0';
  for (int shift = 0; shift < 2; shift++) {
    (void)mk_serve_fail(&error, 400, NULL, NULL, "%s", long_text + shift);
    json_decref(taken(&out, mk_openai_write_error(&out, &error)));
  }
}

Test(write, facts) {
  mk_bytes out = {0};
  const mk_openai_served served[] = {{"a", "/models/a", 7, 4096}, {"b", "/models/a", 7, 4096}};
#define MODEL(id)                                                                   \
  "{\"id\":\"" id                                                                   \
  "\",\"object\":\"model\",\"created\":7,\"owned_by\":\"mkvm\",\"root\":\"/models/" \
  "a\",\"parent\":null,\"max_model_len\":4096}"
  expect(&out, mk_openai_write_models(&out, served, 2),
         "{\"object\":\"list\",\"data\":[" MODEL("a") "," MODEL("b") "]}");
  expect(&out, mk_openai_write_model(&out, &served[1]), MODEL("b"));
  const uint32_t ids[] = {0, 4294967295};
  expect(&out, mk_openai_write_tokens(&out, ids, 2, 64),
         "{\"count\":2,\"max_model_len\":64,\"tokens\":[0,4294967295]}");
  expect(&out, mk_openai_write_tokens(&out, NULL, 0, 64), "{\"count\":0,\"max_model_len\":64,\"tokens\":[]}");
  expect(&out, mk_openai_write_detokenized(&out, "a\"\0b", 4), "{\"prompt\":\"a\\\"\\u0000b\"}");
  expect(&out, mk_openai_write_version(&out, "0.1.0"), "{\"version\":\"0.1.0\"}");
  const mk_openai_tokenizer tokenizer = {
      .tokenizer_class = "T", .eos_token = "</s>", .eos_ids = ids, .eos_count = 1, .vocabulary = 9, .max_context = 64};
  expect(&out, mk_openai_write_tokenizer(&out, &tokenizer),
         "{\"tokenizer_class\":\"T\",\"bos_token\":null,\"eos_token\":\"</s>\",\"eos_token_ids\":[0],\"vocab_size\":9,"
         "\"model_max_length\":64,\"chat_template\":null}");
}

static const mk_openai_candidate top[] = {{1, "\xe2\x9c", 2, -0.25F}, {2, "\xe2\x9d", 2, -0.5F}, {3, "a,", 2, -3},
                                          {4, ":x", 2, -4},           {5, ":-3.0,", 6, -5},      {6, "\"", 1, -6}};
enum { TOP = sizeof top / sizeof top[0] };

static mk_openai_token token(const char *bytes, size_t length, float logprob, size_t top_count) {
  return (mk_openai_token){.chosen = {7, bytes, length, logprob}, .top = top, .top_count = top_count};
}

Test(write, chat_logprobs) {
  mk_bytes out = {0};
  mk_openai_reply reply = chat;
  reply.logprobs = true;
  const mk_openai_token tokens[] = {token("\xe2\x9c", 2, -0.25F, 1), token("a", 1, -INFINITY, 0)};
  const mk_openai_choice choice = {.text = "", .tokens = tokens, .token_count = 2};
  expect(&out, mk_openai_write_chunk(&out, &reply, &choice),
         CHUNK
         "{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":{\"content\":["
         "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-0.25,\"bytes\":[226,156],\"top_logprobs\":["
         "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-0.25,\"bytes\":[226,156]}]},"
         "{\"token\":\"a\",\"logprob\":-9999.0,\"bytes\":[97],\"top_logprobs\":[]}],\"refusal\":null},"
         "\"finish_reason\":null}]}\n\n");
}

Test(write, completion_logprobs) {
  mk_bytes out = {0};
  mk_openai_reply reply = text;
  reply.logprobs = true;
  mk_openai_token tokens[] = {token("<s>", 3, 0, 0), token("\xc3\xa9", 2, -1, 1), token("\xe2", 1, -2, 0),
                              token("\x9c\x85", 2, -3, 0), token("b", 1, -7, 0)};
  tokens[0].unknown = tokens[0].unseen = true;
  const mk_openai_choice choice = {
      .text = "x", .length = 1, .tokens = tokens, .token_count = 5, .offset = 10, .finish_reason = "stop"};
  cr_assert_eq(mk_openai_characters(tokens, 5), 3);
  expect(&out, mk_openai_write_response(&out, &reply, &choice, 1, NULL),
         "{\"id\":\"t-1\",\"object\":\"text_completion\",\"created\":7,\"model\":\"m\",\"choices\":[{\"index\":0,"
         "\"text\":\"x\","
         "\"logprobs\":{\"tokens\":[\"<s>\",\"\xc3\xa9\",\"\xef\xbf\xbd\",\"\xef\xbf\xbd\xef\xbf\xbd\",\"b\"],"
         "\"token_logprobs\":[null,-1.0,-2.0,-3.0,-7.0],"
         "\"top_logprobs\":[null,{\"\xef\xbf\xbd\":-0.25,\"\xc3\xa9\":-1.0},{\"\xef\xbf\xbd\":-2.0},"
         "{\"\xef\xbf\xbd\xef\xbf\xbd\":-3.0},{\"b\":-7.0}],"
         "\"text_offset\":[10,10,11,12,12]},\"finish_reason\":\"stop\"}],\"usage\":null}");
}

/* Log-probabilities go with text, and are null in the other events. */
Test(write, events_without_logprobs) {
  mk_bytes out = {0};
  mk_openai_reply reply = chat;
  reply.logprobs = true;
  const mk_openai_token tokens[] = {token("a", 1, -1, 0)};
  const mk_openai_choice choice = {
      .first = true, .text = "a", .length = 1, .tokens = tokens, .token_count = 1, .finish_reason = "stop"};
  cr_assert_eq(mk_openai_write_chunk(&out, &reply, &choice), MK_OK);
  cr_assert_eq(mk_bytes_append(&out, "", 1), MK_OK);
  size_t events = 0, nulls = 0;
  for (const char *at = (const char *)out.bytes; (at = strstr(at, "\"logprobs\":")) != NULL; at++, events++) {
    nulls += strncmp(at, "\"logprobs\":null", 15) == 0;
  }
  cr_assert(events == 3 && nulls == 2, "%s", (const char *)out.bytes);
  mk_free(out.bytes);
}

/* No key twice, whatever the tokens look like: what looks like another one is left out, the more probable stays. */
Test(write, keys_of_top_logprobs) {
  mk_bytes out = {0};
  mk_openai_reply reply = text;
  reply.logprobs = true;
  const mk_openai_token tokens[] = {token("\xf0", 1, -9, TOP), token(":-3.0,", 6, -5, TOP)};
  const mk_openai_choice choice = {.text = "", .tokens = tokens, .token_count = 2};
  json_t *root = taken(&out, mk_openai_write_response(&out, &reply, &choice, 1, NULL));
  const json_t *logprobs = json_object_get(json_array_get(json_object_get(root, "choices"), 0), "logprobs");
  for (size_t i = 0; i < 2; i++) {
    const json_t *map = json_array_get(json_object_get(logprobs, "top_logprobs"), i);
    cr_assert_eq(json_object_size(map), TOP - 1);
    cr_assert_eq(json_real_value(json_object_get(map, "\xef\xbf\xbd")), -0.25);
    for (size_t j = 2; j < TOP; j++) {
      cr_assert_eq(json_real_value(json_object_get(map, top[j].text)), (double)top[j].logprob, "%s", top[j].text);
    }
  }
  json_decref(root);
}

Test(write, integers) {
  mk_bytes out = {0};
  mk_json_writer w = mk_json_begin(&out);
  mk_put_uint(&w, 0);
  mk_put_uint(&w, 10);
  mk_put_uint(&w, UINT64_MAX);
  mk_put_int(&w, INT64_MIN);
  mk_put_int(&w, -7);
  mk_put_int(&w, 7);
  expect(&out, mk_json_end(&w), "01018446744073709551615-9223372036854775808-77");
}

/* A key with an escaped quote and a comma does not hide those after it. */
Test(write, keys_with_quotes) {
  static const mk_openai_candidate some[] = {{1, "\",", 2, -1}, {2, "b", 1, -2}, {3, "b", 1, -3}, {4, "\\", 1, -4}};
  mk_bytes out = {0};
  mk_openai_reply reply = text;
  reply.logprobs = true;
  const mk_openai_token one = {.chosen = some[3], .top = some, .top_count = 4};
  const mk_openai_choice choice = {.text = "", .tokens = &one, .token_count = 1};
  expect(&out, mk_openai_write_response(&out, &reply, &choice, 1, NULL),
         "{\"id\":\"t-1\",\"object\":\"text_completion\",\"created\":7,\"model\":\"m\",\"choices\":[{\"index\":0,"
         "\"text\":\"\","
         "\"logprobs\":{\"tokens\":[\"\\\\\"],\"token_logprobs\":[-4.0],"
         "\"top_logprobs\":[{\"\\\",\":-1.0,\"b\":-2.0,\"\\\\\":-4.0}],"
         "\"text_offset\":[0]},\"finish_reason\":null}],\"usage\":null}");
}

static char *number(float value) {
  mk_bytes out = {0};
  mk_json_writer w = mk_json_begin(&out);
  mk_put_float(&w, value);
  mk_put_bytes(&w, "", 1);
  cr_assert_eq(mk_json_end(&w), MK_OK);
  return (char *)out.bytes;
}

/* Any two floats that differ look different, and read back they are what they were. */
Test(write, numbers) {
  static const float values[] = {0,       -0.0F, -1,           -0.1F, -1e-7F,          -9998.5F,
                                 -1e-30F, 0.25F, -123456.789F, 3e20F, -1.17549435e-38F};
  static const char *const some[] = {"0.0", "0.0", "-1.0", "-0.100000001", "-1.00000001e-07"};
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
    char *shown = number(values[i]);
    cr_assert(i >= sizeof some / sizeof some[0] || strcmp(shown, some[i]) == 0, "%s", shown);
    json_t *json = parsed(shown, strlen(shown));
    cr_assert(json_is_real(json) && (float)json_real_value(json) == values[i], "%s", shown);
    json_decref(json);
    free(shown);
  }
  float value = -0.7F;
  for (int i = 0; i < 1000; i++) {
    const float next = nextafterf(value, -1);
    char *a = number(value), *b = number(next);
    cr_assert_neq(strcmp(a, b), 0, "%s twice", a);
    free(a);
    free(b);
    value = next;
  }
}

/* A locale with a decimal comma, made here, as a machine need not have one. */
Test(write, numbers_in_another_locale) {
  char folder[] = "/tmp/mkvm-locale-XXXXXX", made[64];
  cr_assert_not_null(mkdtemp(folder));
  snprintf(made, sizeof made, "%s/de_DE.UTF-8", folder);
  test_result tool = test_process("/usr/bin/localedef",
                                  (const char *const[]){"--no-archive", "-i", "de_DE", "-f", "UTF-8", made, NULL});
  test_drop(&tool);
  cr_assert_eq(setenv("LOCPATH", folder, 1), 0);
  char *shown = NULL;
  const bool found = setlocale(LC_NUMERIC, "de_DE.UTF-8") != NULL;
  if (found) {
    cr_assert_str_eq(localeconv()->decimal_point, ",");
    shown = number(-0.5F);
    (void)setlocale(LC_NUMERIC, "C");
  }
  test_result gone = test_process("/bin/rm", (const char *const[]){"-r", folder, NULL});
  test_drop(&gone);
  if (!found) {
    cr_skip_test("localedef and its data are not installed");
  }
  cr_assert_str_eq(shown, "-0.5");
  free(shown);
}

/* Every byte, alone and after another: what is written is read back, as UTF-8 with U+FFFD where it was none. */
Test(write, strings) {
  for (unsigned pair = 0; pair < 0x10000; pair++) {
    const char bytes[] = {(char)(pair >> 8), (char)(pair & 0xff), 'z'};
    mk_bytes out = {0};
    json_t *json = taken(&out, mk_openai_write_detokenized(&out, bytes, 3));
    const json_t *value = json_object_get(json, "prompt");
    const char *read = json_string_value(value);
    const size_t length = json_string_length(value);
    const bool ascii = (pair & 0x8080) == 0, two = (pair >> 8) >= 0xc2 && (pair >> 8) < 0xe0 && (pair & 0xc0) == 0x80;
    cr_assert(length >= 3 && read[length - 1] == 'z', "%04x", pair);
    cr_assert_eq(ascii || two, length == 3 && memcmp(read, bytes, 3) == 0, "%04x", pair);
    json_decref(json);
  }
  mk_bytes out = {0};
  expect(&out, mk_openai_write_detokenized(&out, "\b\t\n\f\r\"\\/\x01\x1f\x7f\xe2\x9c\x85\xf0\x9f\x98\x80", 18),
         "{\"prompt\":\"\\b\\t\\n\\f\\r\\\"\\\\/\\u0001\\u001f\\u007f\xe2\x9c\x85\xf0\x9f\x98\x80\"}");
  expect(&out, mk_openai_write_detokenized(&out, "\xed\xa0\x80|\xc0\x80|\xf0\x9f\x98", 10),
         "{\"prompt\":\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd|\xef\xbf\xbd\xef\xbf\xbd|\xef\xbf\xbd\"}");
}

/* What libmkvm refuses has the code of its status, whatever the words are. */
Test(write, what_libmkvm_refuses) {
  static const struct {
    mkvm_status status;
    int http;
    const char *code;
  } cases[] = {{MKVM_ERR_USAGE, 400, NULL},   {MKVM_ERR_TOO_LONG, 400, "context_length_exceeded"},
               {MKVM_ERR_FILE, 400, NULL},    {MKVM_ERR_BUSY, 429, "queue_full"},
               {MKVM_ERR_RUNTIME, 500, NULL}, {MKVM_ERR_DEVICE, 500, NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mk_serve_error error;
    (void)mk_error((mk_status)cases[i].status, "the template says: no context, no KV cache");
    (void)mk_serve_fail_as_libmkvm(&error, cases[i].status);
    cr_expect_eq(error.http_status, cases[i].http, "status %d", cases[i].status);
    cr_expect(
        error.code == NULL ? cases[i].code == NULL : cases[i].code != NULL && strcmp(error.code, cases[i].code) == 0,
        "status %d", cases[i].status);
  }
}

static mk_status write_all(mk_bytes *out) {
  mk_openai_reply reply = text;
  reply.logprobs = true;
  const mk_openai_token tokens[] = {token("\xf0", 1, -9, TOP)};
  const mk_openai_choice choice = {.text = "abc", .length = 3, .tokens = tokens, .token_count = 1, .usage = &usage};
  MK_TRY(mk_openai_write_response(out, &reply, &choice, 1, &usage));
  reply.chat = true;
  MK_TRY(mk_openai_write_chunk(out, &reply, &choice));
  return mk_openai_write_done(out);
}

/* Whichever allocation fails, what was written before stays whole. */
Test(write, memory_runs_out) {
  mk_bytes whole = {0};
  mk_alloc_fail_at(0, false);
  cr_assert_eq(write_all(&whole), MK_OK);
  const uint64_t calls = mk_alloc_calls();
  cr_assert_gt(calls, 3);
  for (uint64_t n = 1; n <= calls; n++) {
    mk_bytes out = {0};
    mk_alloc_fail_at(n, false);
    cr_assert_eq(write_all(&out), MK_ERR_RUNTIME);
    mk_alloc_fail_at(0, false);
    cr_assert(out.length == 0 || out.bytes[out.length - 1] == '}' || out.bytes[out.length - 1] == '\n');
    cr_assert(out.length < whole.length &&
              memcmp(out.bytes == NULL ? whole.bytes : out.bytes, whole.bytes, out.length) == 0);
    mk_free(out.bytes);
  }
  mk_free(whole.bytes);
}
