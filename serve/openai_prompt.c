/* What is to be answered: the messages of a conversation, or prompts as texts or ids. */
#include <stdio.h>
#include <string.h>

#include "models/json.h"
#include "serve/openai_internal.h"

/* A text part of a message; anything else, as an image, is refused by its type. */
static mk_status take_part(const mk_fields *f, size_t message, size_t index, const json_t *part, const json_t **text) {
  char param[MK_SERVE_PARAM];
  snprintf(param, sizeof param, "messages[%zu].content[%zu]", message, index);
  if (!json_is_object(part)) {
    return mk_fields_type(f, param, "an object with type and text", part);
  }
  const json_t *type = json_object_get(part, "type");
  *text = json_object_get(part, "text");
  if (!json_is_string(type) || strcmp(json_string_value(type), "text") != 0) {
    char shown[MK_JSON_SHOWN];
    strncat(param, ".type", sizeof param - strlen(param) - 1);
    return mk_serve_fail(f->error, 400, param, "unsupported_value",
                         "Unsupported value for '%s': is %s; only \"text\" is supported.", param,
                         mk_json_show(type, shown));
  }
  strncat(param, ".text", sizeof param - strlen(param) - 1);
  return json_is_string(*text) ? MK_OK : mk_fields_type(f, param, "a string", *text);
}

/* A list of parts: the one text, or the texts with a newline between two, as vLLM joins them. */
static mk_status take_parts(const mk_fields *f, size_t message, const json_t *parts, mk_openai_request *out) {
  const size_t count = json_array_size(parts);
  const json_t *text = NULL;
  size_t length = count == 0 ? 0 : count - 1;
  mkvm_turn *turn = &out->turns[message];
  for (size_t i = 0; i < count; i++) {
    MK_TRY(take_part(f, message, i, json_array_get(parts, i), &text));
    length += json_string_length(text);
  }
  turn->content_length = length;
  if (count <= 1) {
    turn->content = count == 0 ? "" : json_string_value(text);
    return MK_OK;
  }
  if (out->joined == NULL) {
    MK_TRY(mk_alloc(json_array_size(json_object_get(f->body, "messages")), sizeof *out->joined, &out->joined));
  }
  char *joined = NULL;
  MK_TRY(mk_alloc(length + 1, 1, &joined));
  out->joined[message] = joined;
  turn->content = joined;
  for (size_t i = 0; i < count; i++) {
    const json_t *one = json_object_get(json_array_get(parts, i), "text");
    memcpy(joined, json_string_value(one), json_string_length(one));
    joined += json_string_length(one);
    *joined++ = i + 1 < count ? '\n' : '\0';
  }
  return MK_OK;
}

static mk_status take_role(const mk_fields *f, size_t message, const json_t *given, const char **role) {
  static const char *const roles[] = {"system", "user", "assistant"};
  char param[MK_SERVE_PARAM], shown[MK_JSON_SHOWN];
  snprintf(param, sizeof param, "messages[%zu].role", message);
  if (!json_is_string(given)) {
    return mk_fields_type(f, param, "a string", given);
  }
  const char *text = strcmp(json_string_value(given), "developer") == 0 ? "system" : json_string_value(given);
  for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
    if (strcmp(text, roles[i]) == 0) {
      *role = roles[i];
      return MK_OK;
    }
  }
  return mk_serve_fail(f->error, 400, param, "unsupported_value",
                       "Unsupported value for '%s': is %s; use 'system', 'developer', 'user' or 'assistant'.", param,
                       mk_json_show(given, shown));
}

static mk_status take_message(const mk_fields *f, size_t message, const json_t *given, mk_openai_request *out) {
  char param[MK_SERVE_PARAM];
  snprintf(param, sizeof param, "messages[%zu]", message);
  if (!json_is_object(given)) {
    return mk_fields_type(f, param, "an object with role and content", given);
  }
  mkvm_turn *turn = &out->turns[message];
  const char *role = "";
  MK_TRY(take_role(f, message, json_object_get(given, "role"), &role));
  turn->role = role;
  const json_t *calls = mk_json_get(given, "tool_calls"), *content = mk_json_get(given, "content");
  if (json_array_size(calls) > 0 || mk_json_get(given, "function_call") != NULL) {
    strncat(param, ".tool_calls", sizeof param - strlen(param) - 1);
    return mk_serve_fail(f->error, 400, param, "unsupported_parameter",
                         "Unsupported parameter: '%s'; tools are not supported.", param);
  }
  if (json_is_array(content)) {
    return take_parts(f, message, content, out);
  }
  const bool absent = json_object_get(given, "content") == NULL && strcmp(role, "assistant") != 0;
  if (absent || (content != NULL && !json_is_string(content))) {
    strncat(param, ".content", sizeof param - strlen(param) - 1);
    return mk_fields_type(f, param, "a string or a list of text parts", content);
  }
  turn->content = content == NULL ? "" : json_string_value(content);
  turn->content_length = content == NULL ? 0 : json_string_length(content);
  return MK_OK;
}

mk_status mk_openai_take_messages(const mk_fields *f, mk_openai_request *out) {
  const json_t *messages = mk_json_get(f->body, "messages");
  const size_t count = json_array_size(messages);
  if (!json_is_array(messages)) {
    return mk_fields_type(f, "messages", "an array of messages", messages);
  }
  if (count == 0) {
    return mk_serve_fail(f->error, 400, "messages", "invalid_value",
                         "Invalid value for 'messages': is empty; send at least one message.");
  }
  MK_TRY(mk_alloc(count, sizeof *out->turns, &out->turns));
  out->turn_count = count;
  for (size_t i = 0; i < count; i++) {
    MK_TRY(take_message(f, i, json_array_get(messages, i), out));
  }
  return MK_OK;
}

mk_status mk_openai_take_ids(const mk_fields *f, const char *param, const json_t *list, uint32_t *out) {
  char place[MK_SERVE_PARAM];
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *id = json_array_get(list, i);
    const json_int_t value = json_integer_value(id);
    if (json_is_integer(id) && value >= 0 && value < (json_int_t)f->model->vocabulary) {
      out[i] = (uint32_t)value;
      continue;
    }
    snprintf(place, sizeof place, "%s[%zu]", param, i);
    return !json_is_integer(id)
               ? mk_fields_type(f, place, "a token id", id)
               : mk_serve_fail(f->error, 400, place, "invalid_value",
                               "Invalid value for '%s': is %lld, and the model has the token ids 0 to %lld.", place,
                               (long long)value, (long long)f->model->vocabulary - 1);
  }
  return MK_OK;
}

/* Element i of a list of prompts; `ids` is where its ids go, if it has any. */
static mk_status take_prompt(const mk_fields *f, const char *param, const json_t *given, uint32_t *ids,
                             mk_openai_prompt *out) {
  if (json_is_string(given)) {
    *out = (mk_openai_prompt){.text = json_string_value(given), .length = json_string_length(given)};
    return MK_OK;
  }
  if (!json_is_array(given)) {
    return mk_fields_type(f, param, "a string or a list of token ids", given);
  }
  if (json_array_size(given) == 0) {
    return mk_serve_fail(f->error, 400, param, "invalid_value",
                         "Invalid value for '%s': is empty; send at least one token.", param);
  }
  *out = (mk_openai_prompt){.tokens = ids, .token_count = json_array_size(given)};
  return mk_openai_take_ids(f, param, given, ids);
}

/* A list is one prompt of ids, unless its first element is a prompt itself. */
static bool is_one_prompt(const json_t *prompt) {
  const json_t *first = json_array_get(prompt, 0);
  return !json_is_array(prompt) || first == NULL || !(json_is_string(first) || json_is_array(first));
}

mk_status mk_openai_take_prompts(const mk_fields *f, mk_openai_request *out) {
  const json_t *prompt = mk_json_get(f->body, "prompt");
  if (!json_is_string(prompt) && !json_is_array(prompt)) {
    return mk_fields_type(f, "prompt", "a string, a list of strings, or token ids", prompt);
  }
  const bool one = is_one_prompt(prompt);
  const size_t count = one ? 1 : json_array_size(prompt);
  size_t ids = one ? json_array_size(prompt) : 0, used = 0;
  if (count > MK_OPENAI_PROMPTS / out->n) {
    return mk_serve_fail(f->error, 400, "prompt", "invalid_value",
                         "Invalid value for 'prompt': %zu prompts with n = %u; at most %d answers are possible.", count,
                         out->n, MK_OPENAI_PROMPTS);
  }
  for (size_t i = 0; i < count && !one; i++) {
    ids += json_array_size(json_array_get(prompt, i));
  }
  MK_TRY(mk_alloc(ids, sizeof *out->ids, &out->ids));
  MK_TRY(mk_alloc(count, sizeof *out->prompts, &out->prompts));
  out->prompt_count = count;
  for (size_t i = 0; i < count; i++) {
    char param[MK_SERVE_PARAM];
    snprintf(param, sizeof param, one ? "prompt" : "prompt[%zu]", i);
    MK_TRY(take_prompt(f, param, one ? prompt : json_array_get(prompt, i), out->ids + used, &out->prompts[i]));
    used += out->prompts[i].token_count;
  }
  return MK_OK;
}
