/* See openai_request.h. */
#include "serve/openai_request.h"

#include <stdlib.h>
#include <string.h>

#include "models/json.h"
#include "serve/openai_internal.h"

void mk_openai_request_free(mk_openai_request *request) {
  for (size_t i = 0; i < request->turn_count && request->joined != NULL; i++) {
    mk_free(request->joined[i]);
  }
  mk_free(request->joined);
  free(request->variables);
  mk_free(request->turns);
  mk_free(request->prompts);
  mk_free(request->stops);
  mk_free(request->biases);
  mk_free(request->ids);
  json_decref(request->body);
  *request = (mk_openai_request){0};
}

static mk_status take_n(const mk_fields *f, mk_openai_request *out) {
  json_int_t n = 1;
  MK_TRY(mk_fields_integer(f, "n", 1, MK_OPENAI_N, &n));
  json_int_t best = n;
  MK_TRY(mk_fields_integer(f, "best_of", 1, INT32_MAX, &best));
  if (best != n) {
    return mk_serve_fail(f->error, 400, "best_of", "unsupported_value",
                         "Unsupported value for 'best_of': is %lld and n is %lld; leave it out, all n are returned.",
                         (long long)best, (long long)n);
  }
  out->n = (uint32_t)n;
  return MK_OK;
}

/* max_tokens, and the newer name that chats have for it, which counts where both are given. */
static mk_status take_most(const mk_fields *f, mk_openai_request *out) {
  const json_int_t least = out->echo ? 0 : 1, most = INT64_MAX;
  json_int_t tokens = MK_OPENAI_TEXT_TOKENS;
  MK_TRY(mk_fields_integer(f, "max_tokens", least, most, &tokens));
  out->has_max_tokens = !out->chat || mk_json_get(f->body, "max_tokens") != NULL;
  if (out->chat) {
    MK_TRY(mk_fields_integer(f, "max_completion_tokens", least, most, &tokens));
    out->has_max_tokens |= mk_json_get(f->body, "max_completion_tokens") != NULL;
  }
  out->max_tokens = out->has_max_tokens ? (size_t)tokens : 0;
  return MK_OK;
}

static mk_status take_logprobs(const mk_fields *f, mk_openai_request *out) {
  json_int_t top = 0;
  if (!out->chat) {
    MK_TRY(mk_fields_integer(f, "logprobs", 0, MK_OPENAI_TEXT_TOP, &top));
    out->logprobs = mk_json_get(f->body, "logprobs") != NULL;
  } else {
    MK_TRY(mk_fields_bool(f, "logprobs", &out->logprobs));
    MK_TRY(mk_fields_integer(f, "top_logprobs", 0, MK_OPENAI_CHAT_TOP, &top));
    if (top > 0 && !out->logprobs) {
      return mk_serve_fail(f->error, 400, "top_logprobs", "invalid_value",
                           "Invalid value for 'top_logprobs': is %lld without 'logprobs'; set 'logprobs' to true.",
                           (long long)top);
    }
  }
  out->top_logprobs = (uint32_t)top;
  return MK_OK;
}

static mk_status take_stream(const mk_fields *f, mk_openai_request *out) {
  MK_TRY(mk_fields_bool(f, "stream", &out->stream));
  const json_t *options = mk_json_get(f->body, "stream_options");
  if (options == NULL) {
    return MK_OK;
  }
  if (!json_is_object(options)) {
    return mk_fields_type(f, "stream_options", "an object", options);
  }
  if (!out->stream) {
    return mk_serve_fail(f->error, 400, "stream_options", "invalid_value",
                         "Invalid value for 'stream_options': it is for streams; set 'stream' to true.");
  }
  const mk_fields inner = {.body = options, .error = f->error};
  MK_TRY(mk_fields_bool(&inner, "include_usage", &out->include_usage));
  return mk_fields_bool(&inner, "continuous_usage_stats", &out->continuous_usage);
}

static mk_status take_conversation(const mk_fields *f, mk_openai_request *out) {
  static const char name[] = "chat_template_kwargs";
  const json_t *variables = mk_json_get(f->body, name);
  if (variables != NULL && !json_is_object(variables)) {
    return mk_fields_type(f, name, "an object of names and values", variables);
  }
  out->variables = json_dumps(variables, JSON_COMPACT); /* NULL of NULL */
  if (variables != NULL && out->variables == NULL) {
    return mk_error(MK_ERR_RUNTIME, "out of memory for %s", name);
  }
  return mk_openai_take_messages(f, out);
}

static mk_status take_generation(const mk_fields *f, mk_openai_request *out) {
  MK_TRY(mk_fields_text(f, "model", &out->model));
  MK_TRY(mk_openai_refuse(f, out->chat));
  MK_TRY(take_n(f, out));
  if (!out->chat) {
    MK_TRY(mk_fields_bool(f, "echo", &out->echo));
  }
  MK_TRY(take_most(f, out));
  MK_TRY(take_logprobs(f, out));
  MK_TRY(take_stream(f, out));
  MK_TRY(mk_openai_take_sampling(f, out));
  return out->chat ? take_conversation(f, out) : mk_openai_take_prompts(f, out);
}

static mk_status take_chat(const mk_fields *f, mk_openai_request *out) {
  out->chat = true;
  return take_generation(f, out);
}

static mk_status take_tokenize(const mk_fields *f, mk_openai_request *out) {
  const char *prompt = NULL, *content = NULL;
  const bool messages = mk_json_get(f->body, "messages") != NULL;
  MK_TRY(mk_fields_text(f, "model", &out->model));
  MK_TRY(mk_fields_text(f, "prompt", &prompt));
  MK_TRY(mk_fields_text(f, "content", &content));
  if ((prompt != NULL) + (content != NULL) + messages != 1) {
    return mk_serve_fail(f->error, 400, "prompt", "invalid_value",
                         "Invalid request: send one of 'prompt', 'content' and 'messages'.");
  }
  out->add_special = prompt != NULL;
  MK_TRY(mk_fields_bool(f, "add_special", &out->add_special));
  MK_TRY(mk_fields_bool(f, "add_special_tokens", &out->add_special));
  bool strings = false, answer = true;
  MK_TRY(mk_fields_bool(f, "return_token_strs", &strings));
  MK_TRY(mk_fields_bool(f, "add_generation_prompt", &answer));
  if (strings || !answer) {
    const char *name = strings ? "return_token_strs" : "add_generation_prompt";
    return mk_serve_fail(f->error, 400, name, "unsupported_parameter",
                         "Unsupported value for '%s'; leave it out, ids are what there is.", name);
  }
  if (messages) {
    return take_conversation(f, out);
  }
  MK_TRY(mk_alloc(1, sizeof *out->prompts, &out->prompts));
  out->prompt_count = 1;
  out->prompts[0].text = prompt != NULL ? prompt : content;
  out->prompts[0].length = strlen(out->prompts[0].text); /* the JSON parser refuses a NUL in a string */
  return MK_OK;
}

static mk_status take_detokenize(const mk_fields *f, mk_openai_request *out) {
  const json_t *tokens = mk_json_get(f->body, "tokens");
  MK_TRY(mk_fields_text(f, "model", &out->model));
  if (!json_is_array(tokens)) {
    return mk_fields_type(f, "tokens", "an array of token ids", tokens);
  }
  MK_TRY(mk_alloc(json_array_size(tokens), sizeof *out->ids, &out->ids));
  MK_TRY(mk_alloc(1, sizeof *out->prompts, &out->prompts));
  out->prompt_count = 1;
  out->prompts[0] = (mk_openai_prompt){.tokens = out->ids, .token_count = json_array_size(tokens)};
  return mk_openai_take_ids(f, "tokens", tokens, out->ids);
}

/* Parses all or nothing, and fills *error whatever went wrong. */
static mk_status parse(const char *body, size_t length, const mk_openai_model *model,
                       mk_status (*take)(const mk_fields *, mk_openai_request *), mk_openai_request *out,
                       mk_serve_error *error) {
  mk_fields fields = {.model = model, .error = error};
  *error = (mk_serve_error){0};
  *out = (mk_openai_request){.n = 1};
  mk_status status = mk_fields_open(body, length, &out->body, error);
  if (status == MK_OK) {
    fields.body = out->body;
    status = take(&fields, out);
  }
  if (status != MK_OK) {
    mk_openai_request_free(out);
  }
  if (status == MK_ERR_RUNTIME) {
    char message[MK_SERVE_MESSAGE / 2];
    strncpy(message, mk_error_message(), sizeof message - 1);
    message[sizeof message - 1] = '\0';
    return mk_serve_fail(error, 500, NULL, NULL, "%s", message);
  }
  return status;
}

mk_status mk_openai_chat_parse(const char *body, size_t length, const mk_openai_model *model, mk_openai_request *out,
                               mk_serve_error *error) {
  return parse(body, length, model, take_chat, out, error);
}

mk_status mk_openai_completion_parse(const char *body, size_t length, const mk_openai_model *model,
                                     mk_openai_request *out, mk_serve_error *error) {
  return parse(body, length, model, take_generation, out, error);
}

mk_status mk_openai_tokenize_parse(const char *body, size_t length, mk_openai_request *out, mk_serve_error *error) {
  return parse(body, length, NULL, take_tokenize, out, error);
}

mk_status mk_openai_detokenize_parse(const char *body, size_t length, const mk_openai_model *model,
                                     mk_openai_request *out, mk_serve_error *error) {
  return parse(body, length, model, take_detokenize, out, error);
}
