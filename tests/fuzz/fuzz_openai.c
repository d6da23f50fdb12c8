/* A body sent to each of the four endpoints that read one. What is accepted keeps the limits, and can be answered: its
 * texts go through the writer and come back as JSON. What is refused says so in an error that is JSON, too. */
#include <jansson.h>
#include <string.h>

#include "serve/openai_request.h"
#include "serve/openai_write.h"
#include "tests/fuzz/support.h"

enum { VOCABULARY = 1000 };

static void require_json(mk_bytes *out, mk_status status) {
  json_error_t error;
  fuzz_require(status == MK_OK, "not written: %s", mk_error_message());
  json_t *json = json_loadb((const char *)out->bytes, out->length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
  fuzz_require(json != NULL, "%s in %.*s", error.text, (int)out->length, (const char *)out->bytes);
  json_decref(json);
  out->length = 0;
}

/* The request's texts as tokens of an answer, in parts that may split characters. */
static void write(const mk_openai_request *r, mk_bytes *out, const char *text, size_t length) {
  mk_openai_candidate top[4];
  for (size_t i = 0; i < 4; i++) {
    const size_t from = length * i / 4;
    top[i] =
        (mk_openai_candidate){(uint32_t)i, text + from, length * (i + 1) / 4 - from, -(float)length / (float)(i + 1)};
  }
  mk_openai_token tokens[4];
  for (size_t i = 0; i < 4; i++) {
    tokens[i] = (mk_openai_token){.chosen = top[3 - i], .top = top, .top_count = i, .unknown = i == 0};
  }
  /* jansson reads no key with a NUL, and texts are keys in the shape of completions. */
  const bool chat = r->chat || memchr(text, '\0', length) != NULL;
  const mk_openai_reply reply = {.chat = chat, .id = "id", .model = r->model, .logprobs = true};
  const mk_openai_choice choice = {.text = text, .length = length, .tokens = tokens, .token_count = 4};
  require_json(out, mk_openai_write_response(out, &reply, &choice, 1, NULL));
}

static void require_ids(const uint32_t *ids, size_t count) {
  for (size_t i = 0; i < count; i++) {
    fuzz_require(ids[i] < VOCABULARY, "id %u", ids[i]);
  }
}

static void look(const mk_openai_request *r, mk_bytes *out) {
  fuzz_require((r->turn_count == 0) != (r->prompt_count == 0), "%zu turns, %zu prompts", r->turn_count,
               r->prompt_count);
  fuzz_require(r->prompt_count * r->n <= MK_OPENAI_PROMPTS && r->n >= 1 && r->n <= MK_OPENAI_N, "n %u", r->n);
  fuzz_require(r->stop_count <= MK_OPENAI_STOPS && r->sampling.bias_count <= MK_OPENAI_BIASES, "limits");
  fuzz_require(r->top_logprobs <= (r->chat ? MK_OPENAI_CHAT_TOP : MK_OPENAI_TEXT_TOP), "top %u", r->top_logprobs);
  for (size_t i = 0; i < r->turn_count; i++) {
    fuzz_require(strlen(r->turns[i].content) == r->turns[i].content_length, "turn %zu", i);
    fuzz_require(fuzz_is_utf8(r->turns[i].content, r->turns[i].content_length), "turn %zu is not UTF-8", i);
    write(r, out, r->turns[i].content, r->turns[i].content_length);
  }
  for (size_t i = 0; i < r->prompt_count; i++) {
    const mk_openai_prompt *prompt = &r->prompts[i];
    require_ids(prompt->tokens, prompt->token_count);
    if (prompt->text != NULL) {
      fuzz_require(strlen(prompt->text) == prompt->length, "prompt %zu", i);
      write(r, out, prompt->text, prompt->length);
    }
  }
  for (size_t i = 0; i < r->stop_count; i++) {
    fuzz_require(r->stops[i][0] != '\0' && strlen(r->stops[i]) <= MK_OPENAI_STOP_BYTES, "stop %zu", i);
  }
  for (size_t i = 0; i < r->sampling.bias_count; i++) {
    fuzz_require(r->biases[i].token < VOCABULARY && r->biases[i].bias >= -100 && r->biases[i].bias <= 100, "bias %zu",
                 i);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const mkvm_sampling usual = {.size = sizeof usual, .top_p = 1, .repetition_penalty = 1};
  static const mk_openai_model model = {&usual, VOCABULARY};
  const char *text = (const char *)data;
  mk_bytes out = {0};
  for (int which = 0; which < 4; which++) {
    mk_openai_request r;
    mk_serve_error e;
    const mk_status status = which == 0   ? mk_openai_chat_parse(text, size, &model, &r, &e)
                             : which == 1 ? mk_openai_completion_parse(text, size, &model, &r, &e)
                             : which == 2 ? mk_openai_tokenize_parse(text, size, &r, &e)
                                          : mk_openai_detokenize_parse(text, size, &model, &r, &e);
    if (status == MK_OK) {
      look(&r, &out);
      mk_openai_request_free(&r);
    } else {
      fuzz_require(e.http_status == (status == MK_ERR_USAGE ? 400 : 500), "status %d, HTTP %d", (int)status,
                   e.http_status);
      fuzz_require(strlen(e.message) > 8 && r.body == NULL, "message \"%s\"", e.message);
      require_json(&out, mk_openai_write_error(&out, &e));
    }
  }
  /* Bytes of any kind, as tokens have them. */
  const mk_openai_request none = {0};
  write(&none, &out, text, size);
  mk_free(out.bytes);
  return 0;
}
