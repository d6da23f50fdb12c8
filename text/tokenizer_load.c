/* tokenizer.json -> the tables of a tokenizer: the model and the added tokens. See tokenizer_parts.c for the rest. */
#include <stdlib.h>
#include <string.h>

#include "models/json.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_internal.h"
#include "text/unicode.h"

enum {
  FILE_LIMIT = 256 << 20, /* bytes */
  ID_LIMIT = 1 << 24,     /* tokens */
};

/* Pieces and the text table. */

static uint64_t hash_text(const uint8_t *text, size_t length) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < length; i++) {
    hash = (hash ^ text[i]) * 0x100000001b3u;
  }
  return hash ^ hash >> 32;
}

/* The slot of a text: where it is, or where it would go. */
static size_t find_slot(const mk_tokenizer *t, const uint8_t *text, size_t length) {
  size_t slot = hash_text(text, length) & (t->slot_count - 1);
  while (t->slots[slot] != MK_NO_ID) {
    const mk_piece *piece = &t->pieces[t->slots[slot]];
    if (piece->length == length && memcmp(t->arena + piece->text, text, length) == 0) {
      break;
    }
    slot = (slot + 1) & (t->slot_count - 1);
  }
  return slot;
}

uint32_t mk_tokenizer_lookup(const mk_tokenizer *t, const uint8_t *text, size_t length) {
  return t->slots[find_slot(t, text, length)];
}

static size_t table_size(size_t entries) {
  size_t size = 64;
  while (size < 2 * entries) {
    size *= 2;
  }
  return size;
}

static mk_status store(mk_tokenizer *t, const uint8_t *text, size_t length, size_t *offset) {
  MK_TRY(mk_grow(&t->arena, &t->arena_capacity, t->arena_used + length + 1, 1)); /* never NULL: a text may be empty */
  memcpy(t->arena + t->arena_used, text, length);
  *offset = t->arena_used;
  t->arena_used += length;
  return MK_OK;
}

/* Enters `text` under the id that the file gives it. */
static mk_status add_piece(mk_tokenizer *t, const char *where, const char *text, const json_t *id) {
  const size_t length = strlen(text);
  char shown[MK_JSON_SHOWN];
  if (!json_is_integer(id) || json_integer_value(id) < 0) {
    return mk_error(MK_ERR_FILE, "%s: \"%.100s\": id %s must be a whole number of at least 0", where, text,
                    mk_json_show(id, shown));
  }
  mk_piece *piece = &t->pieces[json_integer_value(id)];
  if (piece->present) {
    return mk_error(MK_ERR_FILE, "%s: \"%.100s\": id %lld is already that of \"%.*s\"", where, text,
                    (long long)json_integer_value(id), (int)(piece->length < 100 ? piece->length : 100),
                    (const char *)t->arena + piece->text);
  }
  *piece = (mk_piece){.length = (uint32_t)length, .shown_length = (uint32_t)length, .present = true};
  MK_TRY(store(t, (const uint8_t *)text, length, &piece->text));
  piece->shown = piece->text;
  t->slots[find_slot(t, (const uint8_t *)text, length)] = (uint32_t)json_integer_value(id);
  return MK_OK;
}

/* Ids may have gaps, as long as most of them are there. */
static mk_status count_ids(mk_tokenizer *t, const json_t *vocab, const json_t *added) {
  enum { MOST_TIMES = 4, MOST_MORE = 1 << 16 };
  const char *text;
  const json_t *id;
  size_t entries = json_object_size(vocab) + json_array_size(added);
  json_int_t highest = -1;
  json_object_foreach((json_t *)(uintptr_t)vocab, text, id) {
    highest = json_integer_value(id) > highest ? json_integer_value(id) : highest;
  }
  for (size_t i = 0; i < json_array_size(added); i++) {
    const char *content = json_string_value(mk_json_get(json_array_get(added, i), "content"));
    if (content == NULL || content[0] == '\0') {
      return mk_error(MK_ERR_FILE, "added_tokens[%zu].content: must be a string that is not empty", i);
    }
    const json_int_t own = json_integer_value(mk_json_get(json_array_get(added, i), "id"));
    highest = own > highest ? own : highest;
  }
  if (entries > ID_LIMIT || highest >= MOST_TIMES * (json_int_t)entries + MOST_MORE) {
    return mk_error(MK_ERR_FILE,
                    "model.vocab: has %zu tokens with ids up to %lld; at most %d, with ids below %zu, are supported",
                    entries, (long long)highest, ID_LIMIT, MOST_TIMES * entries + MOST_MORE);
  }
  t->count = (size_t)(highest + 1);
  t->slot_count = table_size(entries);
  return MK_OK;
}

static mk_status load_pieces(mk_tokenizer *t, const json_t *vocab, const json_t *added) {
  if (!json_is_object(vocab) || json_object_size(vocab) == 0) {
    return mk_error(MK_ERR_FILE, "model.vocab: must be an object of token to id");
  }
  if (added != NULL && !json_is_array(added)) {
    return mk_unsupported("added_tokens", added, "a list is");
  }
  MK_TRY(count_ids(t, vocab, added));
  MK_TRY(mk_alloc(t->count, sizeof *t->pieces, &t->pieces));
  MK_TRY(mk_alloc(t->slot_count, sizeof *t->slots, &t->slots));
  memset(t->slots, 0xff, t->slot_count * sizeof *t->slots);
  const char *text;
  const json_t *id;
  json_object_foreach((json_t *)(uintptr_t)vocab, text, id) {
    MK_TRY(add_piece(t, "model.vocab", text, id));
    mk_piece *piece = &t->pieces[json_integer_value(id)];
    piece->model = true;
    t->longest = piece->length > t->longest ? piece->length : t->longest;
  }
  for (unsigned byte = 0; byte < 256; byte++) {
    uint8_t character[2] = {(uint8_t)byte};
    t->byte_ids[byte] =
        mk_tokenizer_lookup(t, character, t->byte_level ? mk_byte_to_utf8((uint8_t)byte, character) : 1);
  }
  return MK_OK;
}

/* What stands for characters that are not in the vocabulary. */
static mk_status load_fallback(mk_tokenizer *t, const json_t *model) {
  const json_t *unknown = mk_json_get(model, "unk_token");
  bool fallback;
  char shown[MK_JSON_SHOWN];
  t->unknown = MK_NO_ID;
  if (unknown != NULL) {
    const char *text = json_string_value(unknown);
    t->unknown = text == NULL ? MK_NO_ID : mk_tokenizer_lookup(t, (const uint8_t *)text, strlen(text));
    if (t->unknown == MK_NO_ID) {
      return mk_error(MK_ERR_FILE, "model.unk_token: %s is not in model.vocab", mk_json_show(unknown, shown));
    }
  }
  MK_TRY(mk_load_bool(model, "model", "fuse_unk", false, &t->fuse_unknown));
  MK_TRY(mk_load_bool(model, "model", "byte_fallback", false, &fallback));
  for (unsigned byte = 0; byte < 256; byte++) {
    char text[8];
    snprintf(text, sizeof text, "<0x%02X>", byte);
    t->fallback_ids[byte] = fallback ? mk_tokenizer_lookup(t, (const uint8_t *)text, 6) : MK_NO_ID;
  }
  return MK_OK;
}

/* Merges. */

static size_t merge_slot(const mk_merges *merges, uint64_t key) {
  size_t slot = (size_t)(key * 0x9e3779b97f4a7c15u >> 32) & (merges->slots - 1);
  while (merges->keys[slot] != UINT64_MAX && merges->keys[slot] != key) {
    slot = (slot + 1) & (merges->slots - 1);
  }
  return slot;
}

uint32_t mk_merges_find(const mk_merges *merges, uint32_t left, uint32_t right) {
  const uint64_t key = (uint64_t)left << 32 | right;
  size_t slot = merge_slot(merges, key);
  return merges->keys[slot] == key ? merges->ranks[slot] : MK_NO_ID;
}

/* The two parts of "a b" or ["a", "b"]. */
static bool merge_parts(const json_t *merge, const char *parts[2], size_t lengths[2]) {
  if (json_is_array(merge) && json_array_size(merge) == 2) {
    for (size_t i = 0; i < 2; i++) {
      parts[i] = json_string_value(json_array_get(merge, i));
      lengths[i] = parts[i] == NULL ? 0 : strlen(parts[i]);
    }
    return parts[0] != NULL && parts[1] != NULL;
  }
  const char *line = json_string_value(merge);
  const char *space = line == NULL ? NULL : strchr(line, ' ');
  if (space == NULL || strchr(space + 1, ' ') != NULL) {
    return false;
  }
  parts[0] = line;
  lengths[0] = (size_t)(space - line);
  parts[1] = space + 1;
  lengths[1] = strlen(space + 1);
  return true;
}

static mk_status add_merge(mk_tokenizer *t, size_t rank, const json_t *merge, uint8_t **joined, size_t *capacity) {
  const char *parts[2];
  size_t lengths[2];
  char shown[MK_JSON_SHOWN];
  uint32_t ids[3];
  if (!merge_parts(merge, parts, lengths)) {
    return mk_error(MK_ERR_FILE, "model.merges[%zu]: %s must be \"a b\" or [\"a\", \"b\"]", rank,
                    mk_json_show(merge, shown));
  }
  const size_t length = lengths[0] + lengths[1];
  MK_TRY(mk_grow(joined, capacity, length + 1, 1));
  memcpy(*joined, parts[0], lengths[0]);
  memcpy(*joined + lengths[0], parts[1], lengths[1]);
  ids[0] = mk_tokenizer_lookup(t, *joined, lengths[0]);
  ids[1] = mk_tokenizer_lookup(t, *joined + lengths[0], lengths[1]);
  ids[2] = mk_tokenizer_lookup(t, *joined, length);
  for (size_t i = 0; i < 3; i++) {
    if (ids[i] == MK_NO_ID) {
      const size_t from = i == 1 ? lengths[0] : 0;
      const size_t bytes = i == 2 ? length : lengths[i];
      return mk_error(MK_ERR_FILE, "model.merges[%zu]: %s: \"%.*s\" is not in model.vocab", rank,
                      mk_json_show(merge, shown), (int)(bytes < 100 ? bytes : 100), (const char *)*joined + from);
    }
  }
  size_t slot = merge_slot(&t->merges, (uint64_t)ids[0] << 32 | ids[1]);
  t->merges.keys[slot] = (uint64_t)ids[0] << 32 | ids[1];
  t->merges.ranks[slot] = (uint32_t)rank;
  t->merges.results[rank] = ids[2];
  return MK_OK;
}

static mk_status load_merges(mk_tokenizer *t, const json_t *list) {
  mk_merges *merges = &t->merges;
  if (!json_is_array(list) || json_array_size(list) > 4 * (size_t)ID_LIMIT) {
    return mk_error(MK_ERR_FILE, "model.merges: must be a list of at most %d merges", 4 * ID_LIMIT);
  }
  merges->count = json_array_size(list);
  merges->slots = table_size(merges->count);
  MK_TRY(mk_alloc(merges->slots, sizeof *merges->keys, &merges->keys));
  MK_TRY(mk_alloc(merges->slots, sizeof *merges->ranks, &merges->ranks));
  MK_TRY(mk_alloc(merges->count, sizeof *merges->results, &merges->results));
  memset(merges->keys, 0xff, merges->slots * sizeof *merges->keys);
  uint8_t *joined = NULL;
  size_t capacity = 0;
  mk_status status = MK_OK;
  for (size_t rank = 0; rank < merges->count && status == MK_OK; rank++) {
    status = add_merge(t, rank, json_array_get(list, rank), &joined, &capacity);
  }
  mk_free(joined);
  return status;
}

/* Added tokens. */

static int by_text(const void *left, const void *right) {
  const mk_added *a = left, *b = right;
  int order = memcmp(a->text, b->text, a->length < b->length ? a->length : b->length);
  return order != 0 ? order : (a->length > b->length) - (a->length < b->length);
}

/* Hugging Face numbers tokens that the model lacks by itself, whatever the file says: from the size of the vocabulary,
 * and on from the highest id of an added token. A file that says something else would be read in two ways. */
static mk_status check_next_id(const char *where, const char *content, const json_t *id, uint32_t next) {
  char shown[MK_JSON_SHOWN];
  return json_is_integer(id) && json_integer_value(id) == (json_int_t)next
             ? MK_OK
             : mk_error(MK_ERR_FILE,
                        "%s.id: \"%.100s\": is %s, but Hugging Face tokenizers would take %u; give it that id", where,
                        content, mk_json_show(id, shown), next);
}

/* next: the id of a token that the model lacks. */
static mk_status add_added(mk_tokenizer *t, size_t index, const json_t *entry, uint32_t *next, bool *normalized,
                           mk_added *out) {
  char where[64];
  const char *content = json_string_value(mk_json_get(entry, "content"));
  const json_t *id = mk_json_get(entry, "id");
  bool special;
  snprintf(where, sizeof where, "added_tokens[%zu]", index);
  MK_TRY(mk_load_bool(entry, where, "special", false, &special));
  MK_TRY(mk_load_bool(entry, where, "single_word", false, &out->single_word));
  MK_TRY(mk_load_bool(entry, where, "lstrip", false, &out->lstrip));
  MK_TRY(mk_load_bool(entry, where, "rstrip", false, &out->rstrip));
  MK_TRY(mk_load_bool(entry, where, "normalized", !special, normalized));
  uint32_t known = mk_tokenizer_lookup(t, (const uint8_t *)content, strlen(content));
  if (known == MK_NO_ID) {
    MK_TRY(check_next_id(where, content, id, *next));
    MK_TRY(add_piece(t, where, content, id));
    known = (uint32_t)json_integer_value(id);
  } else if (t->pieces[known].added) {
    return mk_error(MK_ERR_FILE, "%s.content: \"%.100s\" is there twice", where, content);
  } else if (!json_is_integer(id) || json_integer_value(id) != (json_int_t)known) {
    char shown[MK_JSON_SHOWN];
    return mk_error(MK_ERR_FILE, "%s.id: is %s, but model.vocab gives \"%.100s\" the id %u", where,
                    mk_json_show(id, shown), content, known);
  }
  *next = known >= *next ? known + 1 : *next;
  t->pieces[known].added = true;
  t->pieces[known].special = special;
  out->id = known;
  return MK_OK;
}

/* The text by which a normalised token is found, and which the decoder starts from. */
static mk_status normalize_added(mk_tokenizer *t, size_t index, uint32_t id, const mk_matcher *matcher,
                                 mk_bytes buffers[2]) {
  const uint8_t *text = t->arena + t->pieces[id].text;
  size_t length = t->pieces[id].length;
  MK_TRY(mk_normalize(&t->normalizer, matcher, buffers, &text, &length));
  if (length == 0 || length > UINT32_MAX) {
    return mk_error(MK_ERR_FILE, "added_tokens[%zu].content: becomes %zu bytes by the normalizer", index, length);
  }
  t->pieces[id].shown_length = (uint32_t)length;
  return t->normalizer.count == 0 ? MK_OK : store(t, text, length, &t->pieces[id].shown);
}

static mk_status read_added(mk_tokenizer *t, const json_t *list, uint32_t next, const mk_matcher *matcher,
                            mk_bytes buffers[2]) {
  for (size_t i = 0; i < json_array_size(list); i++) {
    mk_added token = {0};
    bool normalized;
    MK_TRY(add_added(t, i, json_array_get(list, i), &next, &normalized, &token));
    if (normalized) {
      MK_TRY(normalize_added(t, i, token.id, matcher, buffers));
    }
    if (token.single_word && t->word == NULL) {
      MK_TRY(mk_load_word(t));
    }
    mk_added_set *set = &t->added[normalized];
    set->tokens[set->count++] = token;
  }
  return MK_OK;
}

/* The decoder knows special tokens by the text it starts from, as Hugging Face's does. */
static void hide_special(mk_tokenizer *t) {
  for (size_t id = 0; id < t->count; id++) {
    mk_piece *piece = &t->pieces[id];
    uint32_t known = piece->present ? mk_tokenizer_lookup(t, t->arena + piece->shown, piece->shown_length) : MK_NO_ID;
    piece->hidden = known != MK_NO_ID && t->pieces[known].special;
  }
}

static mk_status load_added(mk_tokenizer *t, const json_t *list, size_t vocab) {
  const size_t count = json_array_size(list);
  mk_bytes buffers[2] = {0};
  MK_TRY(mk_alloc(count, sizeof(mk_added), &t->added[0].tokens));
  MK_TRY(mk_alloc(count, sizeof(mk_added), &t->added[1].tokens));
  mk_matcher matcher;
  MK_TRY(mk_matcher_begin(t, 0, &matcher));
  mk_status status = read_added(t, list, (uint32_t)vocab, &matcher, buffers);
  mk_matcher_end(&matcher);
  mk_free(buffers[0].bytes);
  mk_free(buffers[1].bytes);
  MK_TRY(status);
  hide_special(t);
  for (size_t s = 0; s < 2; s++) { /* the arena has come to rest: texts can be pointed at */
    mk_added_set *set = &t->added[s];
    for (size_t i = 0; i < set->count; i++) {
      mk_added *token = &set->tokens[i];
      token->text = t->arena + t->pieces[token->id].shown;
      token->length = t->pieces[token->id].shown_length;
      set->first[token->text[0]] = true;
    }
    qsort(set->tokens, set->count, sizeof(mk_added), by_text);
    for (size_t i = 1; i < set->count; i++) {
      if (by_text(&set->tokens[i - 1], &set->tokens[i]) == 0) {
        return mk_error(MK_ERR_FILE, "added_tokens: ids %u and %u are the same text once normalized; remove one",
                        set->tokens[i - 1].id, set->tokens[i].id);
      }
    }
  }
  return MK_OK;
}

static bool unset(const json_t *value) {
  return value == NULL || json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0) ||
         (json_is_string(value) && json_string_length(value) == 0);
}

static mk_status load_model(mk_tokenizer *t, const json_t *root) {
  static const char *const unused[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
  const json_t *model = mk_json_get(root, "model");
  if (!mk_is_type(model, "BPE")) {
    return mk_unsupported("model.type", mk_json_get(model, "type"), "\"BPE\" is");
  }
  for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++) {
    const json_t *value = json_object_get(model, unused[i]);
    if (value != NULL && !json_is_null(value) && !unset(value)) {
      char field[64];
      snprintf(field, sizeof field, "model.%s", unused[i]);
      return mk_unsupported(field, value, "null is");
    }
  }
  MK_TRY(mk_load_bool(model, "model", "ignore_merges", false, &t->ignore_merges));
  MK_TRY(load_pieces(t, mk_json_get(model, "vocab"), mk_json_get(root, "added_tokens")));
  MK_TRY(load_fallback(t, model));
  MK_TRY(load_merges(t, mk_json_get(model, "merges")));
  return load_added(t, mk_json_get(root, "added_tokens"), json_object_size(mk_json_get(model, "vocab")));
}

static mk_status load_all(mk_tokenizer *t, const json_t *root) {
  MK_TRY(mk_load_normalizer(t, mk_json_get(root, "normalizer")));
  MK_TRY(mk_load_pre_tokenizer(t, mk_json_get(root, "pre_tokenizer")));
  MK_TRY(mk_load_decoder(t, mk_json_get(root, "decoder")));
  MK_TRY(load_model(t, root));
  return mk_load_post_processor(t, mk_json_get(root, "post_processor"));
}

static void *pcre2_take(PCRE2_SIZE size, void *data) {
  void *memory = NULL;
  (void)data;
  return mk_realloc(1, size, &memory) == MK_OK ? memory : NULL;
}

static void pcre2_give(void *memory, void *data) {
  (void)data;
  mk_free(memory);
}

static mk_status build(const json_t *root, mk_tokenizer **out) {
  mk_tokenizer *t = NULL;
  mk_status status;
  MK_TRY_GOTO(mk_alloc(1, sizeof *t, &t), done);
  t->context = pcre2_general_context_create(pcre2_take, pcre2_give, NULL);
  t->compile_context = t->context == NULL ? NULL : pcre2_compile_context_create(t->context);
  if (t->compile_context == NULL) {
    status = mk_error(MK_ERR_RUNTIME, "out of memory for the contexts of PCRE2");
    goto done;
  }
  t->model_vocab = UINT32_MAX;
  MK_TRY_GOTO(load_all(t, root), done);
  *out = t;
  t = NULL;
done:
  mk_tokenizer_free(t);
  return status;
}

mk_status mk_tokenizer_parse(const char *json, size_t length, mk_tokenizer **out) {
  *out = NULL;
  json_t *root;
  MK_TRY(mk_json_parse(json, length, &root));
  mk_status status = build(root, out);
  json_decref(root);
  return status;
}

/* Says what is there in the place of tokenizer.json. */
static mk_status refuse_missing(const char *directory, const char *path) {
  static const char *const others[] = {"tokenizer.model", "tekken.json", "vocab.json"};
  bool there = false;
  size_t at = 0;
  for (size_t i = 0; i < sizeof others / sizeof others[0] && !there; i++) {
    char *other;
    MK_TRY(mk_path_join(directory, others[i], &other));
    there = mk_file_is_there(other);
    at = i;
    mk_free(other);
  }
  return there
             ? mk_error(MK_ERR_FILE,
                        "%s: cannot be opened: No such file or directory; %s is not read: take a directory that has "
                        "tokenizer.json, or let transformers write it (AutoTokenizer, save_pretrained)",
                        path, others[at])
             : mk_error(MK_ERR_FILE,
                        "%s: cannot be opened: No such file or directory; text needs it: take a directory that has it",
                        path);
}

mk_status mk_tokenizer_load(const char *directory, uint32_t vocab, mk_tokenizer **out) {
  *out = NULL;
  char *path = NULL, *text = NULL;
  size_t length;
  json_t *root = NULL;
  MK_TRY(mk_path_join(directory, "tokenizer.json", &path));
  mk_status status;
  MK_TRY_GOTO(mk_file_is_there(path) ? MK_OK : refuse_missing(directory, path), done);
  MK_TRY_GOTO(mk_file_read(path, false, FILE_LIMIT, &text, &length), done);
  status = mk_json_parse(text, length, &root);
  mk_free(text); /* not needed any more: files are large */
  text = NULL;
  MK_TRY_GOTO(status == MK_OK ? MK_OK : mk_error_prefix(status, "%s", path), done);
  MK_TRY_GOTO(mk_tokenizer_add_configured(directory, root), done);
  status = build(root, out);
  MK_TRY_GOTO(status == MK_OK ? MK_OK : mk_error_prefix(status, "%s", path), done);
  (*out)->model_vocab = vocab;
done:
  json_decref(root);
  mk_free(text);
  mk_free(path);
  return status;
}

void mk_tokenizer_free(mk_tokenizer *t) {
  if (t == NULL) {
    return;
  }
  mk_free(t->arena);
  mk_free(t->pieces);
  mk_free(t->slots);
  mk_free(t->merges.keys);
  mk_free(t->merges.ranks);
  mk_free(t->merges.results);
  mk_free(t->added[0].tokens);
  mk_free(t->added[1].tokens);
  mk_free(t->template_ids);
  mk_steps_free(&t->normalizer);
  mk_steps_free(&t->decoder);
  mk_pre_steps_free(&t->pre);
  pcre2_code_free(t->word);
  pcre2_compile_context_free(t->compile_context);
  pcre2_general_context_free(t->context);
  mk_free(t);
}
