/* See template_chat.h. */
#include "models/template_chat.h"

#include <string.h>

#include "models/json.h"
#include "models/unicode.h"

enum { CONFIG_LIMIT = 64 << 20 }; /* of tokenizer_config.json, which may list every added token */

struct mk_chat {
  mk_template *compiled;
  json_t *tokens;     /* "bos_token": "<s>" and so on */
  const char *source; /* static */
};

static const char kFile[] = "chat_template.jinja", kConfig[] = "tokenizer_config.json";

/* The special tokens that transformers hands to a template; each is a text or an object with "content". */
static mk_status read_tokens(const json_t *config, json_t *tokens) {
  static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                      "pad_token", "cls_token", "mask_token"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    const json_t *token = mk_json_get(config, names[i]);
    const json_t *text = json_is_object(token) ? mk_json_get(token, "content") : token;
    if (token == NULL) {
      continue;
    }
    if (!json_is_string(text)) {
      char shown[MK_JSON_SHOWN];
      return mk_error(MK_ERR_FILE, "%s: %s is neither a text nor an object with \"content\"", names[i],
                      mk_json_show(token, shown));
    }
    if (json_object_set(tokens, names[i], (json_t *)(uintptr_t)text) != 0) {
      return mk_error(MK_ERR_RUNTIME, "out of memory");
    }
  }
  return MK_OK;
}

/* *out: the template in the configuration, NULL when there is none. */
static mk_status find_template(const json_t *config, const json_t **out) {
  const json_t *given = mk_json_get(config, "chat_template");
  *out = json_is_array(given) ? NULL : given;
  for (size_t i = 0; json_is_array(given) && i < json_array_size(given); i++) {
    const json_t *name = mk_json_get(json_array_get(given, i), "name");
    if (json_is_string(name) && strcmp(json_string_value(name), "default") == 0) {
      *out = mk_json_get(json_array_get(given, i), "template");
    }
  }
  if (json_is_array(given) && *out == NULL) {
    return mk_error(MK_ERR_FILE, "chat_template: none of its templates has the name \"default\"");
  }
  if (*out != NULL && !json_is_string(*out)) {
    char shown[MK_JSON_SHOWN];
    return mk_error(MK_ERR_FILE, "chat_template: %s is not a text", mk_json_show(*out, shown));
  }
  return MK_OK;
}

/* `own`: a chat_template.jinja, which goes before what the configuration says; its text or NULL. */
static mk_status compile(const json_t *config, const char *own, size_t length, mk_chat *chat) {
  const json_t *text = NULL;
  if (own != NULL) {
    chat->source = kFile;
    mk_status status = mk_template_compile(own, length, &chat->compiled);
    return status == MK_OK ? MK_OK : mk_error_prefix(status, "%s", kFile);
  }
  if (config != NULL) {
    MK_TRY(find_template(config, &text));
  }
  chat->source = kConfig;
  return text == NULL ? MK_OK : mk_template_compile(json_string_value(text), json_string_length(text), &chat->compiled);
}

static mk_status load(const char *directory, char *paths[2], char *texts[2], mk_chat *chat) {
  static const size_t limits[2] = {MK_TEMPLATE_MAX_BYTES, CONFIG_LIMIT};
  size_t lengths[2] = {0, 0};
  json_t *config = NULL;
  for (size_t i = 0; i < 2; i++) {
    MK_TRY(mk_path_join(directory, i == 0 ? kFile : kConfig, &paths[i]));
    MK_TRY(mk_file_read(paths[i], true, limits[i], &texts[i], &lengths[i]));
  }
  chat->tokens = json_object();
  if (chat->tokens == NULL) {
    return mk_error(MK_ERR_RUNTIME, "out of memory");
  }
  mk_status status = MK_OK;
  if (texts[1] != NULL) {
    status = mk_json_parse(texts[1], lengths[1], &config);
    if (status == MK_OK) {
      status = read_tokens(config, chat->tokens);
    }
  }
  if (status == MK_OK) {
    status = compile(config, texts[0], lengths[0], chat);
  }
  json_decref(config);
  if (status != MK_OK) {
    return mk_error_prefix(status, "%s", chat->source == kFile ? directory : paths[1]);
  }
  return MK_OK;
}

mk_status mk_chat_load(const char *directory, mk_chat **out) {
  char *paths[2] = {NULL, NULL}, *texts[2] = {NULL, NULL};
  mk_chat *chat;
  MK_TRY(mk_alloc(1, sizeof *chat, &chat));
  mk_status status = load(directory, paths, texts, chat);
  for (size_t i = 0; i < 2; i++) {
    mk_free(paths[i]);
    mk_free(texts[i]);
  }
  if (status != MK_OK || chat->compiled == NULL) {
    mk_chat_free(chat);
    chat = NULL;
  }
  if (status == MK_OK) {
    *out = chat;
  }
  return status;
}

void mk_chat_free(mk_chat *chat) {
  if (chat != NULL) {
    mk_template_free(chat->compiled);
    json_decref(chat->tokens);
    mk_free(chat);
  }
}

const char *mk_chat_source(const mk_chat *chat) { return chat->source; }

mk_status mk_chat_add(json_t *messages, const char *role, const char *content, size_t length) {
  char *text;
  size_t used;
  MK_TRY(mk_alloc(length + 1, 3, &text));
  size_t written = mk_utf8_replace((const uint8_t *)content, length, true, (uint8_t *)text, &used);
  json_t *message = json_pack("{s:s,s:o}", "role", role, "content", json_stringn(text, written));
  mk_free(text);
  if (message == NULL || json_array_append_new(messages, message) != 0) {
    return mk_error(MK_ERR_RUNTIME, "out of memory");
  }
  return MK_OK;
}

mk_status mk_chat_render(const mk_chat *chat, json_t *messages, const struct tm *now, char **text, size_t *length) {
  json_t *variables =
      json_pack("{s:O,s:n,s:n,s:b}", "messages", messages, "tools", "documents", "add_generation_prompt", 1);
  if (variables == NULL || json_object_update_missing(variables, chat->tokens) != 0) {
    json_decref(variables);
    return mk_error(MK_ERR_RUNTIME, "out of memory");
  }
  mk_status status = mk_template_render(chat->compiled, variables, now, text, length);
  json_decref(variables);
  return status;
}
