/* See tokenizer_added.h. */
#include "text/tokenizer_added.h"

#include <stdlib.h>
#include <string.h>

#include "models/json.h"
#include "text/template_tokens.h"
#include "text/tokenizer_internal.h"

enum { MOST_TOKENS = 1 << 20 };

static const char kConfig[] = "tokenizer_config.json", kMap[] = "special_tokens_map.json";
static const char kDecoder[] = "added_tokens_decoder", kOlder[] = "added_tokens.json";
static const char *const kFlags[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
enum { FLAGS = sizeof kFlags / sizeof kFlags[0] };

typedef struct adder {
  json_t *list;        /* added_tokens */
  json_t *by_text;     /* its elements */
  const json_t *vocab; /* of the model */
  json_int_t next;     /* the id of a token that neither has */
} adder;

static mk_status no_memory(void) { return mk_error(MK_ERR_RUNTIME, "out of memory for added tokens"); }

static mk_status enter(adder *a, json_t *entry, json_int_t id) {
  a->next = id >= a->next ? id + 1 : a->next;
  return json_object_set(a->by_text, json_string_value(json_object_get(entry, "content")), entry) == 0 ? MK_OK
                                                                                                       : no_memory();
}

/* What tokenizer.json has; what is wrong with it is for its own reader to say. */
static mk_status begin(adder *a, json_t *root) {
  size_t i;
  json_t *entry;
  a->vocab = mk_json_get(mk_json_get(root, "model"), "vocab");
  a->next = (json_int_t)json_object_size(a->vocab);
  a->by_text = json_object();
  if (json_object_get(root, "added_tokens") == NULL || json_is_null(json_object_get(root, "added_tokens"))) {
    json_object_set_new(root, "added_tokens", json_array());
  }
  a->list = json_object_get(root, "added_tokens");
  if (a->by_text == NULL || a->list == NULL) {
    return no_memory();
  }
  json_array_foreach(a->list, i, entry) {
    if (json_is_string(json_object_get(entry, "content"))) {
      MK_TRY(enter(a, entry, json_integer_value(json_object_get(entry, "id"))));
    }
  }
  return MK_OK;
}

/* Flags that `given` lacks are those of a token of which nothing is said, special or not. */
static mk_status set_flags(const char *where, json_t *entry, const json_t *given, bool special) {
  bool flags[FLAGS] = {false};
  MK_TRY(mk_load_bool(given, where, "special", special, &special));
  for (size_t i = 0; i < FLAGS; i++) {
    const bool absent = strcmp(kFlags[i], "special") == 0      ? special
                        : strcmp(kFlags[i], "normalized") == 0 ? !special
                                                               : false;
    MK_TRY(mk_load_bool(given, where, kFlags[i], absent, &flags[i]));
  }
  for (size_t i = 0; i < FLAGS; i++) {
    if (json_object_set_new(entry, kFlags[i], json_boolean(flags[i])) != 0) {
      return no_memory();
    }
  }
  return MK_OK;
}

/* `expected`: the id that the file gives it; less than 0: none. */
static mk_status append(adder *a, const char *where, const char *content, json_int_t expected, json_t **out) {
  const json_t *known = json_object_get(a->vocab, content);
  const json_int_t id = known == NULL ? a->next : json_integer_value(known);
  if (content[0] == 0) {
    return mk_error(MK_ERR_FILE, "%s: a token must not be the empty text", where);
  }
  if (json_array_size(a->list) >= MOST_TOKENS) {
    return mk_error(MK_ERR_FILE, "%s: more than %d added tokens are not supported", where, MOST_TOKENS);
  }
  if (known == NULL && expected >= 0 && expected != id) {
    return mk_error(
        MK_ERR_FILE,
        "%s: \"%.100s\" has the id %lld, but tokenizer.json lacks it, and transformers would give it the id "
        "%lld; add it to tokenizer.json, or give it that id",
        where, content, (long long)expected, (long long)id);
  }
  *out = json_pack("{s:I,s:s}", "id", id, "content", content);
  if (*out == NULL || json_array_append_new(a->list, *out) != 0) {
    return no_memory();
  }
  return enter(a, *out, id);
}

typedef struct numbered {
  json_int_t id;
  const char *key;
  const json_t *token;
} numbered;

static int by_id(const void *left, const void *right) {
  const json_int_t a = ((const numbered *)left)->id, b = ((const numbered *)right)->id;
  return (a > b) - (a < b);
}

static mk_status add_numbered(adder *a, const numbered *n) {
  char where[96];
  json_t *content = json_object_get(n->token, "content");
  snprintf(where, sizeof where, "%s: %s: \"%.20s\"", kConfig, kDecoder, n->key);
  if (!json_is_string(content)) {
    char shown[MK_JSON_SHOWN];
    return mk_error(MK_ERR_FILE, "%s: content is %s, must be a text", where, mk_json_show(content, shown));
  }
  json_t *entry = json_object_get(a->by_text, json_string_value(content));
  if (entry == NULL) {
    MK_TRY(append(a, where, json_string_value(content), n->id, &entry));
  }
  const bool special = json_is_true(json_object_get(entry, "special"));
  MK_TRY(set_flags(where, entry, n->token, false));
  /* The decoder of the reference forgets no special token. */
  return !special || json_object_set_new(entry, "special", json_true()) == 0 ? MK_OK : no_memory();
}

/* Tokens by their ids, in ascending order: they replace what tokenizer.json says of the same text. */
static mk_status add_decoder(adder *a, const json_t *decoder) {
  numbered *all;
  size_t count = 0;
  const char *key;
  json_t *token;
  mk_status status = MK_OK;
  if (decoder == NULL) {
    return MK_OK;
  }
  if (!json_is_object(decoder)) {
    char shown[MK_JSON_SHOWN];
    return mk_error(MK_ERR_FILE, "%s: %s: is %s, must be an object of ids and tokens", kConfig, kDecoder,
                    mk_json_show(decoder, shown));
  }
  MK_TRY(mk_alloc(json_object_size(decoder), sizeof *all, &all));
  json_object_foreach((json_t *)(uintptr_t)decoder, key, token) {
    char *end;
    all[count] = (numbered){.id = strtoll(key, &end, 10), .key = key, .token = token};
    if (key[0] < '0' || key[0] > '9' || *end != 0 || all[count].id > UINT32_MAX) {
      status = mk_error(MK_ERR_FILE, "%s: %s: \"%.20s\" is not an id", kConfig, kDecoder, key);
      goto done;
    }
    count++;
  }
  qsort(all, count, sizeof *all, by_id);
  for (size_t i = 0; i < count; i++) {
    MK_TRY_GOTO(add_numbered(a, &all[i]), done);
  }
done:
  mk_free(all);
  return status;
}

/* A special token, a text or an object. One that is there keeps its flags, but for `special` if it has a name. */
static mk_status add_special(adder *a, const char *where, const json_t *token, bool named) {
  const json_t *content = json_is_object(token) ? json_object_get(token, "content") : token;
  if (!json_is_string(content)) {
    char shown[MK_JSON_SHOWN];
    return mk_error(MK_ERR_FILE, "%s: %s is neither a text nor an object with \"content\"", where,
                    mk_json_show(token, shown));
  }
  json_t *entry = json_object_get(a->by_text, json_string_value(content));
  if (entry == NULL) {
    MK_TRY(append(a, where, json_string_value(content), -1, &entry));
    MK_TRY(set_flags(where, entry, json_is_object(token) ? token : NULL, true));
  }
  return !named || json_object_set_new(entry, "special", json_true()) == 0 ? MK_OK : no_memory();
}

static mk_status add_named(adder *a, const json_t *named) {
  static const char *const standard[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                         "pad_token", "cls_token", "mask_token"};
  char where[128];
  const char *name;
  json_t *token;
  for (size_t i = 0; i < sizeof standard / sizeof standard[0]; i++) { /* ids of new ones follow this order */
    token = json_object_get(named, standard[i]);
    MK_TRY(token == NULL ? MK_OK : add_special(a, standard[i], token, true));
  }
  json_object_foreach((json_t *)(uintptr_t)named, name, token) {
    snprintf(where, sizeof where, "%s: %.80s", kConfig, name);
    MK_TRY(add_special(a, where, token, true));
  }
  return MK_OK;
}

static mk_status add_list(adder *a, const char *file, const char *key, const json_t *list) {
  char where[96];
  for (size_t i = 0; i < json_array_size(list); i++) {
    snprintf(where, sizeof where, "%s: %s[%zu]", file, key, i);
    MK_TRY(add_special(a, where, json_array_get(list, i), false));
  }
  return MK_OK;
}

/* The newer name counts, unless it says nothing or has names for its tokens. */
static mk_status add_further(adder *a, const char *file, const json_t *members) {
  static const char newer[] = "extra_special_tokens", older[] = "additional_special_tokens";
  const json_t *list = mk_json_get(members, newer);
  return json_array_size(list) > 0 ? add_list(a, file, newer, list)
                                   : add_list(a, file, older, mk_json_get(members, older));
}

mk_status mk_tokenizer_add(json_t *root, const json_t *config, const json_t *named, const json_t *map) {
  adder a = {0};
  mk_status status;
  MK_TRY_GOTO(begin(&a, root), done);
  if (json_is_array(a.list)) {
    MK_TRY_GOTO(add_decoder(&a, mk_json_get(config, kDecoder)), done);
    MK_TRY_GOTO(add_named(&a, named), done);
    MK_TRY_GOTO(add_further(&a, kConfig, config), done);
    MK_TRY_GOTO(add_further(&a, kMap, map), done);
  }
done:
  json_decref(a.by_text);
  return status;
}

/* A file that counts where the configuration has no added_tokens_decoder: written by releases of before 2023, whose
 * tokenizer.json has its tokens, too. */
static mk_status check_older(json_t *older, const json_t *root) {
  json_t *id;
  const char *text;
  size_t i;
  const json_t *entry;
  json_array_foreach(json_object_get(root, "added_tokens"), i, entry) {
    const char *content = json_string_value(json_object_get(entry, "content"));
    if (older != NULL && content != NULL) {
      json_object_del(older, content);
    }
  }
  json_object_foreach(older, text, id) {
    return mk_error(MK_ERR_FILE, "%s: \"%.100s\" is not in tokenizer.json, which is not supported; add it there",
                    kOlder, text);
  }
  return MK_OK;
}

mk_status mk_tokenizer_add_configured(const char *directory, json_t *root) {
  json_t *config = NULL, *map = NULL, *older = NULL, *named = json_object();
  mk_status status;
  MK_TRY_GOTO(named != NULL ? MK_OK : no_memory(), done);
  MK_TRY_GOTO(mk_template_read_json(directory, kConfig, &config), done);
  MK_TRY_GOTO(mk_special_tokens_map(directory, config, &map), done);
  if (json_object_get(config, kDecoder) == NULL) {
    MK_TRY_GOTO(mk_template_read_json(directory, kOlder, &older), done);
  }
  status = mk_special_tokens(directory, config, map, named);
  status = status == MK_OK ? mk_tokenizer_add(root, config, named, map) : status;
  status = status == MK_OK ? check_older(older, root) : status;
  status = status == MK_OK ? MK_OK : mk_error_prefix(status, "%s", directory);
done:
  json_decref(named);
  json_decref(older);
  json_decref(map);
  json_decref(config);
  return status;
}
