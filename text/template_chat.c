/* See template_chat.h. */
#include "text/template_chat.h"

#include <dirent.h>
#include <string.h>

#include "models/json.h"
#include "text/template_tokens.h"
#include "text/unicode.h"

struct mk_chat {
  mk_template *compiled;
  json_t *tokens;     /* "bos_token": "<s>" and so on */
  const char *source; /* static */
};

static const char kFile[] = "chat_template.jinja", kConfig[] = "tokenizer_config.json";
static const char kProcessor[] = "chat_template.json";
static const char kFolder[] = "additional_chat_templates", kFolderDefault[] = "additional_chat_templates/default.jinja";

/* The template named "default" of an object, or of a list of objects with a name and a template. */
static mk_status find_default(const json_t *given, const json_t **out) {
  *out = json_is_object(given) ? json_object_get(given, "default") : NULL;
  for (size_t i = 0; i < json_array_size(given); i++) {
    const json_t *name = mk_json_get(json_array_get(given, i), "name");
    const json_t *text = mk_json_get(json_array_get(given, i), "template");
    if (!json_is_string(name) || text == NULL) {
      return mk_error(MK_ERR_FILE, "chat_template: element %zu has no \"name\" or no \"template\"", i);
    }
    *out = strcmp(json_string_value(name), "default") == 0 ? text : *out;
  }
  return *out != NULL ? MK_OK : mk_error(MK_ERR_FILE, "chat_template: none of its templates has the name \"default\"");
}

/* *out: the template in the configuration, NULL when there is none. */
static mk_status find_template(const json_t *config, const json_t **out) {
  *out = mk_json_get(config, "chat_template");
  if (json_is_array(*out) || json_is_object(*out)) {
    MK_TRY(find_default(*out, out));
  }
  if (*out != NULL && !json_is_string(*out)) {
    char shown[MK_JSON_SHOWN];
    return mk_error(MK_ERR_FILE, "chat_template: %s is not a text", mk_json_show(*out, shown));
  }
  return MK_OK;
}

/* Compiles the template in a file of the directory; an absent file is none. */
static mk_status compile_file(const char *directory, const char *name, mk_chat *chat) {
  char *path, *text = NULL;
  size_t length;
  MK_TRY(mk_path_join(directory, name, &path));
  mk_status status = mk_file_read(path, true, MK_TEMPLATE_MAX_BYTES, &text, &length);
  if (status == MK_OK && text != NULL) {
    chat->source = name;
    status = mk_template_compile(text, length, &chat->compiled);
    status = status == MK_OK ? MK_OK : mk_error_prefix(status, "%s", path);
  }
  mk_free(text);
  mk_free(path);
  return status;
}

/* Whether the folder of named templates has any. */
static mk_status has_named_files(const char *directory, bool *out) {
  char *path;
  *out = false;
  MK_TRY(mk_path_join(directory, kFolder, &path));
  DIR *folder = opendir(path);
  mk_free(path);
  if (folder == NULL) {
    return MK_OK; /* what is no folder has no templates */
  }
  for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    size_t length = strlen(entry->d_name);
    *out |= length > 6 && strcmp(entry->d_name + length - 6, ".jinja") == 0;
  }
  closedir(folder);
  return MK_OK;
}

/* A template where no tokenizer looks for it is refused by its name: it is not that there is none. */
static mk_status check_unread(const char *directory) {
  char *path;
  MK_TRY(mk_path_join(directory, kProcessor, &path));
  const mk_status status =
      !mk_file_is_there(path)
          ? MK_OK
          : mk_error(MK_ERR_FILE,
                     "%s: is read by processors of images and sound alone; for text write its template to %s", path,
                     kFile);
  mk_free(path);
  return status;
}

/* Files go before what the configuration says, and those in the folder before the one beside it. */
static mk_status compile(const char *directory, const json_t *config, mk_chat *chat) {
  const json_t *text;
  bool named;
  MK_TRY(has_named_files(directory, &named));
  if (named) {
    MK_TRY(compile_file(directory, kFolderDefault, chat));
  }
  if (chat->compiled == NULL) {
    MK_TRY(compile_file(directory, kFile, chat));
  }
  if (chat->compiled != NULL) {
    return MK_OK;
  }
  if (named) {
    return mk_error(MK_ERR_FILE, "%s: %s has templates, but none is default.jinja, and there is no %s", directory,
                    kFolder, kFile);
  }
  mk_status status = find_template(config, &text);
  if (status == MK_OK && text == NULL) {
    return check_unread(directory);
  }
  if (status == MK_OK) {
    chat->source = kConfig;
    status = mk_template_compile(json_string_value(text), json_string_length(text), &chat->compiled);
  }
  return status == MK_OK ? MK_OK : mk_error_prefix(status, "%s/%s", directory, kConfig);
}

static mk_status load(const char *directory, mk_chat *chat) {
  json_t *config;
  chat->tokens = json_object();
  if (chat->tokens == NULL) {
    return mk_error(MK_ERR_RUNTIME, "out of memory");
  }
  MK_TRY(mk_template_read_json(directory, kConfig, &config));
  mk_status status = compile(directory, config, chat);
  if (status == MK_OK && chat->compiled != NULL) { /* without a template nobody asks for its tokens */
    status = mk_template_tokens(directory, config, chat->tokens);
  }
  json_decref(config);
  return status;
}

mk_status mk_chat_load(const char *directory, mk_chat **out) {
  mk_chat *chat;
  MK_TRY(mk_alloc(1, sizeof *chat, &chat));
  mk_status status = load(directory, chat);
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

mk_status mk_chat_variables(const char *text, size_t length, json_t **out) {
  /* Arguments of apply_chat_template with a meaning of their own, or what the caller says otherwise. */
  static const char *const taken[] = {"messages",      "conversation",           "tools",    "documents",
                                      "chat_template", "add_generation_prompt",  "tokenize", "continue_final_message",
                                      "return_dict",   "sanitize_control_tokens"};
  *out = NULL;
  if (text == NULL || length == 0) {
    return MK_OK;
  }
  mk_status status = mk_json_parse(text, length, out);
  if (status != MK_OK) {
    return mk_error_prefix(status == MK_ERR_FILE ? MK_ERR_USAGE : status, "variables of the chat template");
  }
  for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
    if (json_object_get(*out, taken[i]) != NULL) {
      json_decref(*out);
      *out = NULL;
      return mk_error(MK_ERR_USAGE, "variables of the chat template: '%s' cannot be given; leave it out", taken[i]);
    }
  }
  return MK_OK;
}

mk_status mk_chat_render(const mk_chat *chat, json_t *messages, const json_t *more, const struct tm *now, char **text,
                         size_t *length) {
  json_t *variables =
      json_pack("{s:O,s:n,s:n,s:b}", "messages", messages, "tools", "documents", "add_generation_prompt", 1);
  if (variables == NULL || (more != NULL && json_object_update(variables, (json_t *)(uintptr_t)more) != 0) ||
      json_object_update_missing(variables, chat->tokens) != 0) {
    json_decref(variables);
    return mk_error(MK_ERR_RUNTIME, "out of memory");
  }
  mk_status status = mk_template_render(chat->compiled, variables, now, text, length);
  json_decref(variables);
  return status;
}
