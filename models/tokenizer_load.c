/* tokenizer.json -> the tables of a tokenizer. What the product does not compute exactly is refused by name. */
#include <stdlib.h>
#include <string.h>

#include "models/json.h"
#include "models/tokenizer_internal.h"
#include "models/unicode.h"

enum {
  FILE_LIMIT = 256 << 20, /* bytes */
  ID_LIMIT = 1 << 24,     /* tokens */
};

/* The split patterns known to give the same pieces here as in Hugging Face tokenizers. The reference compiles them with
 * Oniguruma, whose classes are those of Unicode 16. PCRE2's may be those of Unicode 14 (Debian 12), so what has become a
 * letter or number since then is listed (adding what a newer PCRE2 has already changes nothing), and white space is spelled
 * out because PCRE2's \s has U+180E besides, which Unicode no longer calls a space. */
#define LETTER                                                                                                         \
  "\\p{L}\\x{1c89}\\x{1c8a}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d65}"           \
  "\\x{10d6f}-\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{1123f}\\x{11240}\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}"            \
  "\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}\\x{113d3}\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}"            \
  "\\x{11f12}-\\x{11f33}\\x{1342f}\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}\\x{16100}-\\x{1611d}\\x{16d40}-\\x{"      \
  "16d6c}"                                                                                                             \
  "\\x{18cff}\\x{1b132}\\x{1b155}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}\\x{1e4d0}-\\x{1e4eb}\\x{1e5d0}-\\x{1e5ed}" \
  "\\x{1e5f0}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"
#define NUMBER                                                                                                      \
  "\\p{N}\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}\\x{16130}-\\x{16139}" \
  "\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-\\x{1d2d3}\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}"
#define SPACE "\\t-\\r \\x{85}\\p{Z}"

/* The alternatives that all three share, and what Llama 3 and Qwen 2 begin with. */
#define RUNS_OF_SPACE "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"
#define WORDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n" LETTER NUMBER "]?[" LETTER "]+|"
#define OTHERS " ?[^" SPACE LETTER NUMBER "]+[\\r\\n]*|[" SPACE "]*[\\r\\n]+|" RUNS_OF_SPACE
static const struct split_pattern {
  const char *source, *pcre2;
} split_patterns[] = {
    /* Llama 3 */
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
     "\\s+(?!\\S)|\\s+",
     WORDS "[" NUMBER "]{1,3}|" OTHERS},
    /* Qwen 2: digits one by one */
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
     "\\s+(?!\\S)|\\s+",
     WORDS "[" NUMBER "]|" OTHERS},
    /* GPT-2: what ByteLevel with use_regex means */
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     "'s|'t|'re|'ve|'m|'ll|'d| ?[" LETTER "]+| ?[" NUMBER "]+| ?[^" SPACE LETTER NUMBER "]+|" RUNS_OF_SPACE},
};
enum { SPLIT_PATTERNS = sizeof split_patterns / sizeof split_patterns[0] };

static const char *type_of(const json_t *object) {
  const char *type = json_string_value(mk_json_get(object, "type"));
  return type == NULL ? "" : type;
}

static bool is_type(const json_t *object, const char *type) { return strcmp(type_of(object), type) == 0; }

/* A member that must be true or false; `absent` is what its absence means. */
static mk_status get_bool(const json_t *object, const char *where, const char *key, bool absent, bool *out) {
  char shown[MK_JSON_SHOWN];
  const json_t *value = mk_json_get(object, key);
  *out = value == NULL ? absent : json_is_true(value);
  if (value != NULL && !json_is_boolean(value)) {
    return mk_error(MK_ERR_FILE, "%s.%s: is %s, must be true or false", where, key, mk_json_show(value, shown));
  }
  return MK_OK;
}

static mk_status unsupported(const char *field, const json_t *value, const char *supported) {
  char shown[MK_JSON_SHOWN];
  return mk_error(MK_ERR_FILE, "%s: %s is not supported; only %s", field, mk_json_show(value, shown), supported);
}

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

/* Enters `text` under the id that the file gives it. */
static mk_status add_piece(mk_tokenizer *t, const char *where, const char *text, const json_t *id) {
  const size_t length = strlen(text);
  char shown[MK_JSON_SHOWN];
  if (!json_is_integer(id) || json_integer_value(id) < 0) {
    return mk_error(MK_ERR_FILE, "%s: \"%.100s\": id %s must be a whole number of at least 0", where, text,
                    mk_json_show(id, shown));
  }
  if ((uint64_t)json_integer_value(id) >= t->count) {
    return mk_error(MK_ERR_FILE, "%s: \"%.100s\": id %lld leaves a gap: the file has %zu tokens, ids must be 0 to %zu",
                    where, text, (long long)json_integer_value(id), t->count, t->count - 1);
  }
  mk_piece *piece = &t->pieces[json_integer_value(id)];
  if (piece->present) {
    return mk_error(MK_ERR_FILE, "%s: \"%.100s\": id %lld is already that of \"%.*s\"", where, text,
                    (long long)json_integer_value(id), (int)(piece->length < 100 ? piece->length : 100),
                    (const char *)t->arena + piece->text);
  }
  /* The bytes that it decodes to are never longer than the text. */
  MK_TRY(mk_grow(&t->arena, &t->arena_capacity, t->arena_used + 2 * length, 1));
  *piece =
      (mk_piece){.text = t->arena_used, .bytes = t->arena_used + length, .length = (uint32_t)length, .present = true};
  uint8_t *stored = t->arena + piece->text;
  memcpy(stored, text, length);
  size_t written;
  if (!mk_utf8_to_bytes(stored, length, stored + length, &written)) {
    memcpy(stored + length, text, length);
    written = length;
  }
  piece->byte_count = (uint32_t)written;
  t->arena_used += 2 * length;
  t->slots[find_slot(t, (const uint8_t *)text, length)] = (uint32_t)json_integer_value(id);
  return MK_OK;
}

static mk_status load_pieces(mk_tokenizer *t, const json_t *vocab, const json_t *added) {
  if (!json_is_object(vocab) || json_object_size(vocab) == 0) {
    return mk_error(MK_ERR_FILE, "model.vocab: must be an object of token to id");
  }
  if (added != NULL && !json_is_array(added)) {
    return unsupported("added_tokens", added, "a list is");
  }
  t->count = json_object_size(vocab);
  for (size_t i = 0; i < json_array_size(added); i++) {
    const char *content = json_string_value(mk_json_get(json_array_get(added, i), "content"));
    if (content == NULL || content[0] == '\0') {
      return mk_error(MK_ERR_FILE, "added_tokens[%zu].content: must be a string that is not empty", i);
    }
    t->count += json_object_get(vocab, content) == NULL;
  }
  if (t->count > ID_LIMIT) {
    return mk_error(MK_ERR_FILE, "model.vocab: has %zu tokens, at most %d are supported", t->count, ID_LIMIT);
  }
  t->slot_count = table_size(t->count);
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
    uint8_t character[2];
    t->byte_ids[byte] = mk_tokenizer_lookup(t, character, mk_byte_to_utf8((uint8_t)byte, character));
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
  MK_TRY(mk_grow(joined, capacity, length, 1));
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

static mk_status add_added(mk_tokenizer *t, size_t index, const json_t *entry, bool *normalized, mk_added *out) {
  char where[64];
  const char *content = json_string_value(mk_json_get(entry, "content"));
  const json_t *id = mk_json_get(entry, "id");
  bool single_word, special;
  snprintf(where, sizeof where, "added_tokens[%zu]", index);
  MK_TRY(get_bool(entry, where, "special", false, &special));
  MK_TRY(get_bool(entry, where, "single_word", false, &single_word));
  MK_TRY(get_bool(entry, where, "lstrip", false, &out->lstrip));
  MK_TRY(get_bool(entry, where, "rstrip", false, &out->rstrip));
  MK_TRY(get_bool(entry, where, "normalized", !special, normalized));
  if (single_word) {
    return mk_error(MK_ERR_FILE, "%s.single_word: true is not supported (token \"%.100s\")", where, content);
  }
  uint32_t known = mk_tokenizer_lookup(t, (const uint8_t *)content, strlen(content));
  if (known == MK_NO_ID) {
    MK_TRY(add_piece(t, where, content, id));
    known = (uint32_t)json_integer_value(id);
  } else if (t->pieces[known].added) {
    return mk_error(MK_ERR_FILE, "%s.content: \"%.100s\" is there twice", where, content);
  } else if (!json_is_integer(id) || json_integer_value(id) != (json_int_t)known) {
    char shown[MK_JSON_SHOWN];
    return mk_error(MK_ERR_FILE, "%s.id: is %s, but model.vocab gives \"%.100s\" the id %u", where,
                    mk_json_show(id, shown), content, known);
  }
  t->pieces[known].added = true;
  t->pieces[known].special = special;
  out->id = known;
  out->length = t->pieces[known].length;
  return MK_OK;
}

static mk_status load_added(mk_tokenizer *t, const json_t *list) {
  const size_t count = json_array_size(list);
  MK_TRY(mk_alloc(count, sizeof(mk_added), &t->added[0].tokens));
  MK_TRY(mk_alloc(count, sizeof(mk_added), &t->added[1].tokens));
  for (size_t i = 0; i < count; i++) {
    mk_added token = {0};
    bool normalized;
    MK_TRY(add_added(t, i, json_array_get(list, i), &normalized, &token));
    mk_added_set *set = &t->added[normalized];
    set->tokens[set->count++] = token;
  }
  for (size_t s = 0; s < 2; s++) { /* the arena has come to rest: texts can be pointed at */
    mk_added_set *set = &t->added[s];
    for (size_t i = 0; i < set->count; i++) {
      set->tokens[i].text = t->arena + t->pieces[set->tokens[i].id].text;
      set->first[set->tokens[i].text[0]] = true;
    }
    qsort(set->tokens, set->count, sizeof(mk_added), by_text);
  }
  return MK_OK;
}

/* The parts around the model: normaliser, pre-tokeniser, post-processor, decoder. */

static mk_status compile_split(mk_tokenizer *t, const char *pattern) {
  int error;
  PCRE2_SIZE offset;
  t->split = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &offset,
                           t->compile_context);
  if (t->split == NULL) {
    PCRE2_UCHAR text[128] = "";
    pcre2_get_error_message(error, text, sizeof text);
    return mk_error(MK_ERR_RUNTIME, "pre_tokenizer: PCRE2 cannot compile the split pattern: %s", (const char *)text);
  }
  /* Where there is no JIT (no executable memory), pcre2_match interprets: slower, the same pieces. */
  pcre2_jit_compile(t->split, PCRE2_JIT_COMPLETE);
  return MK_OK;
}

static mk_status load_byte_level(const json_t *object, bool *use_regex) {
  bool prefix;
  if (!is_type(object, "ByteLevel")) {
    return unsupported("pre_tokenizer", object, "ByteLevel, or a Sequence of Split and ByteLevel, is");
  }
  MK_TRY(get_bool(object, "pre_tokenizer", "add_prefix_space", true, &prefix));
  MK_TRY(get_bool(object, "pre_tokenizer", "use_regex", true, use_regex));
  return prefix ? mk_error(MK_ERR_FILE, "pre_tokenizer.add_prefix_space: true is not supported") : MK_OK;
}

static mk_status load_split(mk_tokenizer *t, const json_t *object) {
  bool invert;
  if (!is_type(object, "Split")) {
    return unsupported("pre_tokenizer.pretokenizers[0]", object, "Split is");
  }
  MK_TRY(get_bool(object, "pre_tokenizer", "invert", false, &invert));
  const json_t *behavior = mk_json_get(object, "behavior");
  if (invert || !json_is_string(behavior) || strcmp(json_string_value(behavior), "Isolated") != 0) {
    return unsupported(invert ? "pre_tokenizer.invert" : "pre_tokenizer.behavior", invert ? json_true() : behavior,
                       invert ? "false is" : "\"Isolated\" is");
  }
  const json_t *pattern = json_object_get(mk_json_get(object, "pattern"), "Regex");
  for (size_t i = 0; json_is_string(pattern) && i < SPLIT_PATTERNS; i++) {
    if (strcmp(json_string_value(pattern), split_patterns[i].source) == 0) {
      return compile_split(t, split_patterns[i].pcre2);
    }
  }
  return unsupported("pre_tokenizer.pattern", mk_json_get(object, "pattern"),
                     "the patterns of Llama 3, Qwen 2 and GPT-2 are");
}

static mk_status load_pre_tokenizer(mk_tokenizer *t, const json_t *object) {
  bool use_regex;
  if (!is_type(object, "Sequence")) {
    MK_TRY(load_byte_level(object, &use_regex));
    if (!use_regex) {
      return mk_error(MK_ERR_FILE, "pre_tokenizer.use_regex: false without a Split before it is not supported");
    }
    return compile_split(t, split_patterns[SPLIT_PATTERNS - 1].pcre2);
  }
  const json_t *list = mk_json_get(object, "pretokenizers");
  if (json_array_size(list) != 2) {
    return unsupported("pre_tokenizer.pretokenizers", list, "Split followed by ByteLevel is");
  }
  MK_TRY(load_byte_level(json_array_get(list, 1), &use_regex));
  if (use_regex) {
    return mk_error(MK_ERR_FILE, "pre_tokenizer.use_regex: true behind a Split is not supported; only false is");
  }
  return load_split(t, json_array_get(list, 0));
}

static mk_status load_template(mk_tokenizer *t, const json_t *object) {
  const json_t *single = mk_json_get(object, "single");
  bool seen = false;
  size_t capacity = 0;
  if (t->template_ids != NULL) {
    return mk_error(MK_ERR_FILE, "post_processor: more than one TemplateProcessing is not supported");
  }
  for (size_t i = 0; i < json_array_size(single); i++) {
    const json_t *sequence = json_object_get(json_array_get(single, i), "Sequence");
    if (sequence != NULL) {
      const char *name = json_string_value(json_object_get(sequence, "id"));
      if (seen || name == NULL || strcmp(name, "A") != 0) {
        return unsupported("post_processor.single", single, "a template with the sequence A once is");
      }
      seen = true;
      continue;
    }
    const char *name =
        json_string_value(json_object_get(json_object_get(json_array_get(single, i), "SpecialToken"), "id"));
    const json_t *ids =
        name == NULL ? NULL : json_object_get(json_object_get(mk_json_get(object, "special_tokens"), name), "ids");
    if (json_array_size(ids) == 0) {
      return mk_error(MK_ERR_FILE,
                      "post_processor.single[%zu]: must be a Sequence or a SpecialToken that special_tokens lists", i);
    }
    for (size_t k = 0; k < json_array_size(ids); k++) {
      const json_t *id = json_array_get(ids, k);
      if (!json_is_integer(id) || json_integer_value(id) < 0 || (uint64_t)json_integer_value(id) >= t->count) {
        char shown[MK_JSON_SHOWN];
        return mk_error(MK_ERR_FILE, "post_processor.special_tokens: \"%.100s\": id %s is not below the %zu tokens",
                        name, mk_json_show(id, shown), t->count);
      }
      size_t used = t->template_before + t->template_after;
      MK_TRY(mk_grow(&t->template_ids, &capacity, used + 1, sizeof *t->template_ids));
      t->template_ids[used] = (uint32_t)json_integer_value(id);
      *(seen ? &t->template_after : &t->template_before) += 1;
    }
  }
  return seen ? MK_OK : unsupported("post_processor.single", single, "a template with the sequence A once is");
}

static mk_status load_post_processor(mk_tokenizer *t, const json_t *object, unsigned depth) {
  if (object == NULL || is_type(object, "ByteLevel")) { /* ByteLevel moves offsets only */
    return MK_OK;
  }
  if (is_type(object, "TemplateProcessing")) {
    return load_template(t, object);
  }
  const json_t *list = mk_json_get(object, "processors");
  if (!is_type(object, "Sequence") || !json_is_array(list) || depth > 0) {
    return unsupported("post_processor", object, "TemplateProcessing, ByteLevel or a Sequence of them is");
  }
  for (size_t i = 0; i < json_array_size(list); i++) {
    MK_TRY(load_post_processor(t, json_array_get(list, i), depth + 1));
  }
  return MK_OK;
}

static bool unset(const json_t *value) {
  return value == NULL || json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0) ||
         (json_is_string(value) && json_string_length(value) == 0);
}

static mk_status load_model(mk_tokenizer *t, const json_t *root) {
  static const char *const unused[] = {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                                       "byte_fallback"};
  const json_t *model = mk_json_get(root, "model");
  if (!is_type(model, "BPE")) {
    return unsupported("model.type", mk_json_get(model, "type"), "\"BPE\" is");
  }
  for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++) {
    const json_t *value = json_object_get(model, unused[i]);
    if (value != NULL && !json_is_null(value) && !unset(value)) {
      char field[64];
      snprintf(field, sizeof field, "model.%s", unused[i]);
      return unsupported(field, value, "null is");
    }
  }
  MK_TRY(get_bool(model, "model", "ignore_merges", false, &t->ignore_merges));
  MK_TRY(load_pieces(t, mk_json_get(model, "vocab"), mk_json_get(root, "added_tokens")));
  MK_TRY(load_merges(t, mk_json_get(model, "merges")));
  return load_added(t, mk_json_get(root, "added_tokens"));
}

static mk_status load_all(mk_tokenizer *t, const json_t *root) {
  const json_t *normalizer = mk_json_get(root, "normalizer");
  if (normalizer != NULL) {
    return unsupported("normalizer", normalizer, "null is");
  }
  const json_t *decoder = mk_json_get(root, "decoder");
  if (!is_type(decoder, "ByteLevel")) {
    return unsupported("decoder", decoder, "ByteLevel is");
  }
  MK_TRY(load_model(t, root));
  MK_TRY(load_pre_tokenizer(t, mk_json_get(root, "pre_tokenizer")));
  return load_post_processor(t, mk_json_get(root, "post_processor"), 0);
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

mk_status mk_tokenizer_parse(const char *json, size_t length, mk_tokenizer **out) {
  *out = NULL;
  mk_tokenizer *t = NULL;
  json_t *root = NULL;
  mk_status status;
  MK_TRY_GOTO(mk_alloc(1, sizeof *t, &t), done);
  t->context = pcre2_general_context_create(pcre2_take, pcre2_give, NULL);
  t->compile_context = t->context == NULL ? NULL : pcre2_compile_context_create(t->context);
  t->match_context = t->context == NULL ? NULL : pcre2_match_context_create(t->context);
  if (t->compile_context == NULL || t->match_context == NULL) {
    status = mk_error(MK_ERR_RUNTIME, "out of memory for the contexts of PCRE2");
    goto done;
  }
  /* The patterns are linear; limits meant for hostile patterns would only refuse long texts. */
  pcre2_set_match_limit(t->match_context, UINT32_MAX);
  pcre2_set_depth_limit(t->match_context, UINT32_MAX);
  MK_TRY_GOTO(mk_json_parse(json, length, &root), done);
  MK_TRY_GOTO(load_all(t, root), done);
  *out = t;
  t = NULL;
done:
  json_decref(root);
  mk_tokenizer_free(t);
  return status;
}

static mk_status check_vocab(const mk_tokenizer *t, uint32_t vocab) {
  if (t->count <= vocab) {
    return MK_OK;
  }
  const mk_piece *piece = &t->pieces[vocab];
  return mk_error(MK_ERR_FILE, "token \"%.*s\" has id %u, but vocab_size in config.json is %u",
                  (int)(piece->length < 100 ? piece->length : 100), (const char *)t->arena + piece->text, vocab, vocab);
}

mk_status mk_tokenizer_load(const char *directory, uint32_t vocab, mk_tokenizer **out) {
  *out = NULL;
  char *path = NULL, *text = NULL;
  size_t length;
  mk_tokenizer *t = NULL;
  MK_TRY(mk_path_join(directory, "tokenizer.json", &path));
  mk_status status = mk_file_read(path, false, FILE_LIMIT, &text, &length);
  if (status == MK_OK) {
    status = mk_tokenizer_parse(text, length, &t);
    status = status == MK_OK ? check_vocab(t, vocab) : status;
    if (status != MK_OK) {
      mk_error_prefix(status, "%s", path);
      mk_tokenizer_free(t);
      t = NULL;
    }
  }
  mk_free(text);
  mk_free(path);
  *out = t;
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
  pcre2_code_free(t->split);
  pcre2_match_context_free(t->match_context);
  pcre2_compile_context_free(t->compile_context);
  pcre2_general_context_free(t->context);
  mk_free(t);
}
