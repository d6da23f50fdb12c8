/* See template_tokens.h. */
#include "text/template_tokens.h"

#include <string.h>

#include "models/json.h"

enum { JSON_LIMIT = 64 << 20, TOKENIZER_LIMIT = 256 << 20 }; /* JSON: the configuration may list every added token */

static const char kConfig[] = "tokenizer_config.json", kMap[] = "special_tokens_map.json";

static bool is_standard(const char *name) {
  static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                      "pad_token", "cls_token", "mask_token"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (strcmp(name, names[i]) == 0) {
      return true;
    }
  }
  return false;
}

static bool is_token_name(const char *name) {
  size_t length = strlen(name);
  return length >= 6 && strcmp(name + length - 6, "_token") == 0;
}

/* The text of a token, which may be an object with "content"; NULL: it is neither. */
static const json_t *text_of(const json_t *token) {
  const json_t *text = json_is_object(token) ? json_object_get(token, "content") : token;
  return json_is_string(text) ? text : NULL;
}

static mk_status set(json_t *tokens, const char *name, const json_t *token) {
  return json_object_set(tokens, name, (json_t *)(uintptr_t)token) == 0 ? MK_OK
                                                                        : mk_error(MK_ERR_RUNTIME, "out of memory");
}

/* Sets a standard token. A null takes away a token that was there before. */
static mk_status set_standard(json_t *tokens, const char *file, const char *name, const json_t *value) {
  char shown[MK_JSON_SHOWN];
  if (json_is_null(value)) {
    json_object_del(tokens, name);
    return MK_OK;
  }
  return text_of(value) != NULL ? set(tokens, name, value)
                                : mk_error(MK_ERR_FILE, "%s: %s: %s is neither a text nor an object with \"content\"",
                                           file, name, mk_json_show(value, shown));
}

/* The members of extra_special_tokens where that is an object: each a name and a token. */
static mk_status set_named(json_t *tokens, const char *file, const json_t *named) {
  const char *name;
  char shown[MK_JSON_SHOWN];
  json_t *value, *object = (json_t *)(uintptr_t)named; /* the iteration macro takes no const */
  if (!json_is_object(named)) {
    return MK_OK; /* a list: those tokens have no names */
  }
  json_object_foreach(object, name, value) {
    if (text_of(value) == NULL) {
      return mk_error(MK_ERR_FILE, "%s: extra_special_tokens: %s: %s is neither a text nor an object with \"content\"",
                      file, name, mk_json_show(value, shown));
    }
    MK_TRY(set(tokens, name, value));
  }
  return MK_OK;
}

/* A file's tokens. Of those without a standard name, the configuration's have to say that they are tokens if they are
 * objects, and the map's do not take the place of the configuration's. */
static mk_status read_file(json_t *tokens, const char *file, const json_t *members) {
  const char *name;
  bool is_map = file == kMap;
  bool named = json_is_object(json_object_get(members, "extra_special_tokens"));
  json_t *value, *object = (json_t *)(uintptr_t)members;
  json_object_foreach(object, name, value) {
    if (is_standard(name)) {
      MK_TRY(set_standard(tokens, file, name, value));
    } else if (is_token_name(name) && text_of(value) != NULL &&
               (is_map ? json_object_get(tokens, name) == NULL
                       : json_is_string(value) || json_object_get(value, "__type") != NULL)) {
      named = true;
      MK_TRY(set(tokens, name, value));
    }
  }
  /* transformers 5 writes the second one too, and reads it only where it finds no such token otherwise */
  return set_named(tokens, file,
                   json_object_get(members, named ? "extra_special_tokens" : "model_specific_special_tokens"));
}

mk_status mk_template_read_json(const char *directory, const char *name, json_t **out) {
  char *path, *text = NULL;
  size_t length;
  *out = NULL;
  MK_TRY(mk_path_join(directory, name, &path));
  mk_status status = mk_file_read(path, true, JSON_LIMIT, &text, &length);
  if (status == MK_OK && text != NULL) {
    status = mk_json_parse(text, length, out);
    status = status == MK_OK ? MK_OK : mk_error_prefix(status, "%s", path);
  }
  mk_free(text);
  mk_free(path);
  return status;
}

/* Whether tokenizer.json has the form of Llama 3, which transformers loads without what its class assumes. */
static mk_status is_byte_level(const char *directory, bool *out) {
  char *path, *text = NULL;
  size_t length;
  *out = false;
  MK_TRY(mk_path_join(directory, "tokenizer.json", &path));
  mk_status status = mk_file_read(path, true, TOKENIZER_LIMIT, &text, &length);
  if (status == MK_OK && text != NULL) {
    *out = strstr(text, "\"ByteLevel\"") != NULL;
  }
  mk_free(text);
  mk_free(path);
  return status;
}

/* What the classes of tokenizers assume of tokens that no file names. */
static const struct class_tokens {
  const char *class_name;
  bool not_byte_level;    /* the class is not used for such a tokenizer.json */
  const char *tokens[12]; /* name, text, name, text... */
} kClasses[] = {
    {"LlamaTokenizer", true, {"bos_token", "<s>", "eos_token", "</s>", "unk_token", "<unk>"}},
    {"CodeLlamaTokenizer", false, {"bos_token", "<s>", "eos_token", "</s>", "unk_token", "<unk>"}},
    {"GPT2Tokenizer",
     false,
     {"bos_token", "<|endoftext|>", "eos_token", "<|endoftext|>", "unk_token", "<|endoftext|>"}},
    {"Qwen2Tokenizer",
     false,
     {"eos_token", "<|endoftext|>", "unk_token", "<|endoftext|>", "pad_token", "<|endoftext|>"}},
    {"GemmaTokenizer",
     false,
     {"bos_token", "<bos>", "eos_token", "<eos>", "unk_token", "<unk>", "pad_token", "<pad>", "mask_token", "<mask>"}},
};

/* The class that a kind of model has where its files name none. Where they name another one, that one counts, unless
 * this is NULL, a class that assumes nothing, or the files are known to be wrong. */
static const struct model_class {
  const char *model_type, *class_name;
  bool always;
} kModels[] = {
    {"gemma", "GemmaTokenizer", false},
    {"gemma2", "GemmaTokenizer", false},
    {"gemma3", "GemmaTokenizer", false},
    {"gemma3_text", "GemmaTokenizer", false},
    {"qwen2", "Qwen2Tokenizer", true},
    {"qwen3", "Qwen2Tokenizer", false},
    {"granite", NULL, true},
    {"ministral", NULL, true},
    {"ministral3", NULL, true},
    {"mistral", NULL, true},
    {"mistral3", NULL, true},
    {"mixtral", NULL, true},
    {"olmo2", NULL, true},
    {"olmo3", NULL, true},
    {"phi3", NULL, true},
};

static bool is_class(const char *name, const char *class_name) {
  size_t length = strlen(class_name);
  return strncmp(name, class_name, length) == 0 && (name[length] == 0 || strcmp(name + length, "Fast") == 0);
}

/* The class that transformers takes for what the files name; NULL: one that assumes nothing. */
static const struct class_tokens *find_class(const char *named, const char *model_type) {
  for (size_t i = 0; i < sizeof kModels / sizeof kModels[0]; i++) {
    const bool same = model_type != NULL && strcmp(model_type, kModels[i].model_type) == 0;
    named = same && (named == NULL || kModels[i].always) ? kModels[i].class_name : named;
  }
  for (size_t i = 0; i < sizeof kClasses / sizeof kClasses[0] && named != NULL; i++) {
    if (is_class(named, kClasses[i].class_name)) {
      return &kClasses[i];
    }
  }
  return NULL;
}

static mk_status set_assumed(const char *directory, const struct class_tokens *found, json_t *tokens) {
  bool byte_level = false;
  if (found->not_byte_level) {
    MK_TRY(is_byte_level(directory, &byte_level));
  }
  for (size_t i = 0; !byte_level && found->tokens[i] != NULL; i += 2) {
    if (json_object_set_new(tokens, found->tokens[i], json_string(found->tokens[i + 1])) != 0) {
      return mk_error(MK_ERR_RUNTIME, "out of memory");
    }
  }
  return MK_OK;
}

/* tokenizer_config.json says of which class the tokenizer is, else config.json. */
static mk_status assume_tokens(const char *directory, const json_t *config, json_t *tokens) {
  json_t *model;
  MK_TRY(mk_template_read_json(directory, "config.json", &model));
  const json_t *name = mk_json_get(config, "tokenizer_class");
  name = name == NULL ? mk_json_get(model, "tokenizer_class") : name;
  const struct class_tokens *found =
      find_class(json_string_value(name), json_string_value(mk_json_get(model, "model_type")));
  mk_status status = found == NULL ? MK_OK : set_assumed(directory, found, tokens);
  json_decref(model);
  return status;
}

mk_status mk_special_tokens(const char *directory, const json_t *config, const json_t *map, json_t *tokens) {
  MK_TRY(assume_tokens(directory, config, tokens));
  MK_TRY(read_file(tokens, kConfig, config));
  return map == NULL ? MK_OK : read_file(tokens, kMap, map);
}

mk_status mk_special_tokens_map(const char *directory, const json_t *config, json_t **out) {
  *out = NULL; /* a newer configuration says all */
  return json_object_get(config, "added_tokens_decoder") != NULL ? MK_OK : mk_template_read_json(directory, kMap, out);
}

mk_status mk_template_tokens(const char *directory, const json_t *config, json_t *tokens) {
  json_t *map, *value;
  const char *name;
  MK_TRY(mk_special_tokens_map(directory, config, &map));
  mk_status status = mk_special_tokens(directory, config, map, tokens);
  json_decref(map);
  json_object_foreach(tokens, name, value) {
    MK_TRY(status);
    status = set(tokens, name, text_of(value));
  }
  return status;
}
