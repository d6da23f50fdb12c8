/* Tens of thousands of texts, for every form of tokenizer.json: the ids and what they decode to hash to what Hugging
 * Face tokenizers gave (tests/text/data/tokenizer_hashes.txt). The texts are made here as make_tokenizer_golden.py
 * makes them. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/json.h"
#include "text/tokenizer.h"

#define DATA MK_SOURCE_DIR "/tests/text/data/"
enum { WINDOW = 64, PLANES = 0x32400, TAGS = 0xe0000, TAGS_COUNT = 0x200, SURROGATES = 0x800 };
enum { WINDOWS = (PLANES - SURROGATES + TAGS_COUNT) / WINDOW };

static json_t *read_json(const char *path) {
  json_error_t error;
  json_t *value = json_load_file(path, JSON_ALLOW_NUL, &error);
  cr_assert_not_null(value, "%s: %s", path, error.text);
  return value;
}

/* `name` is a variant of tokenizer_bytes.json, a form of the file that it names or else of tokenizer_whole.json, a file
 * in the data directory, or a path. */
static mk_tokenizer *load(const char *name, json_t *variants, json_t *forms) {
  const json_t *variant = json_object_get(variants, name);
  const char *of = "bytes";
  mk_tokenizer *t = NULL;
  char *text, path[512];
  if (variant == NULL && (variant = json_object_get(forms, name)) != NULL) {
    of = json_object_get(variant, "base") == NULL ? "whole" : json_string_value(json_object_get(variant, "base"));
  }
  if (variant != NULL) {
    snprintf(path, sizeof path, DATA "tokenizer_%s.json", of);
    json_t *base = read_json(path), *whole = json_copy(base);
    json_t *model = json_copy(json_object_get(base, "model"));
    json_object_update(model, json_object_get(variant, "model"));
    json_object_update(whole, (json_t *)(uintptr_t)variant);
    json_object_set_new(whole, "model", model);
    text = json_dumps(whole, JSON_COMPACT);
    json_decref(whole);
    json_decref(base);
  } else {
    size_t length;
    snprintf(path, sizeof path, name[0] == '/' ? "%s" : DATA "tokenizer_%s.json", name);
    cr_assert_eq(mk_file_read(path, false, 1 << 26, &text, &length), MK_OK, "%s", mk_error_message());
  }
  cr_assert_eq(mk_tokenizer_parse(text, strlen(text), &t), MK_OK, "%s: %s", name, mk_error_message());
  free(text);
  return t;
}

/* SplitMix64. */
static uint32_t below(uint64_t *state, uint64_t n) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (uint32_t)(((z ^ z >> 31) >> 32) * n >> 32);
}

typedef struct made {
  char bytes[16384];
  size_t length;
} made;

static void put(made *m, const char *bytes, size_t length) {
  cr_assert_leq(m->length + length, sizeof m->bytes);
  memcpy(m->bytes + m->length, bytes, length);
  m->length += length;
}

static void put_character(made *m, uint32_t c) {
  char out[4];
  const size_t count = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  const uint32_t lead[] = {0, 0xc0, 0xe0, 0xf0};
  for (size_t i = count; i-- > 1; c >>= 6) {
    out[i] = (char)(0x80 | (c & 0x3f));
  }
  out[0] = (char)(lead[count - 1] | c);
  put(m, out, count);
}

/* All code points up to the last script, and the tags. */
static void make_window(made *m, uint32_t index) {
  m->length = 0;
  for (uint32_t i = 0; i < WINDOW; i++) {
    uint32_t c = index * WINDOW + i;
    c += c >= 0xd800 ? SURROGATES : 0;
    if (i % 8 == 0) {
      put(m, " ", 1);
    }
    put_character(m, c < PLANES ? c : c - PLANES + TAGS);
  }
}

static void put_any(made *m, uint64_t *state, const json_t *list) {
  const json_t *text = json_array_get(list, below(state, json_array_size(list)));
  put(m, json_string_value(text), json_string_length(text));
}

static void make_text(made *m, uint64_t *state, const json_t *groups) {
  const json_t *pools = json_object_get(groups, "pools"), *runs = json_object_get(groups, "runs");
  m->length = 0;
  for (uint32_t parts = below(state, 10); parts > 0; parts--) {
    uint32_t kind = below(state, 100);
    if (kind < 35) {
      put_any(m, state, json_object_get(groups, "parts"));
    } else if (kind < 75) {
      const json_t *pool = json_array_get(pools, below(state, json_array_size(pools)));
      for (uint32_t count = 1 + below(state, 8); count > 0; count--) {
        put_any(m, state, pool);
      }
    } else if (kind < 90) {
      kind = below(state, 3);
      const uint32_t c = kind == 0   ? below(state, 0x250)
                         : kind == 1 ? below(state, 0xd800)
                                     : 0xe000 + below(state, 0x12000);
      for (uint32_t count = 1 + below(state, 3); count > 0; count--) {
        put_character(m, c);
      }
    } else {
      const json_t *run = json_array_get(runs, below(state, json_array_size(runs)));
      for (uint32_t count = 1 + below(state, 40); count > 0; count--) {
        put(m, json_string_value(run), json_string_length(run));
      }
    }
  }
  if (below(state, 100) < 15 && m->length > 0) {
    const size_t at = below(state, m->length);
    if (below(state, 2) == 0) {
      memmove(m->bytes + at, m->bytes + at + 1, --m->length - at);
    } else {
      m->bytes[at] = (char)below(state, 256);
    }
  }
}

static void make_ids(mk_tokens *tokens, uint64_t *state, size_t vocab) {
  const uint32_t kind = below(state, 3);
  tokens->count = 0;
  for (uint32_t count = 1 + below(state, 24); count > 0; count--) {
    const bool byte = kind == 1 || (kind == 2 && below(state, 2) == 0);
    cr_assert_eq(mk_grow(&tokens->ids, &tokens->capacity, tokens->count + 1, sizeof *tokens->ids), MK_OK);
    tokens->ids[tokens->count++] = below(state, byte ? 263 : vocab + 2);
  }
}

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t length) {
  for (size_t i = 0; i < length; i++) {
    hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
  }
  return hash;
}

/* The hash of the ids and of the text that they give one by one. */
static uint64_t hash_tokens(const mk_tokenizer *t, const mk_tokens *tokens) {
  uint64_t hash = hash_bytes(0xcbf29ce484222325u, tokens->ids, tokens->count * sizeof *tokens->ids);
  mk_decoder *decoder;
  cr_assert_eq(mk_decoder_new(t, &decoder), MK_OK);
  for (size_t i = 0; i <= tokens->count; i++) {
    const char *part;
    size_t length;
    cr_assert_eq(i < tokens->count ? mk_decoder_push(decoder, tokens->ids[i], &part, &length)
                                   : mk_decoder_finish(decoder, &part, &length),
                 MK_OK);
    cr_assert_eq(part[length], '\0');
    hash = hash_bytes(hash, part, length);
  }
  mk_decoder_free(decoder);
  return hash;
}

static void encode(const mk_tokenizer *t, const made *m, mk_tokens *tokens) {
  char *exact = malloc(m->length + (m->length == 0)); /* the sanitizer sees a read past the end */
  memcpy(exact, m->bytes, m->length);
  cr_assert_eq(mk_tokenizer_encode(t, exact, m->length, true, tokens), MK_OK, "%s", mk_error_message());
  free(exact);
}

/* One line of the file: NAME SEED FIRST COUNT, six digits for each text. */
static size_t check_line(const mk_tokenizer *t, const char *name, const json_t *groups, uint64_t seed, uint32_t first,
                         uint32_t count, const char *digits) {
  made *m = malloc(sizeof *m);
  mk_tokens tokens = {0};
  size_t wrong = 0;
  for (uint32_t index = first; index < first + count; index++, digits += 6) {
    uint64_t state = seed * 0x100000001b3u + index;
    char got[8];
    tokens.count = 0;
    m->length = 0;
    if (index >= WINDOWS && index % 5 == 4) {
      make_ids(&tokens, &state, mk_tokenizer_vocab(t));
    } else {
      index < WINDOWS ? make_window(m, index) : make_text(m, &state, groups);
      encode(t, m, &tokens);
    }
    snprintf(got, sizeof got, "%06x", (unsigned)(hash_tokens(t, &tokens) >> 40));
    if (memcmp(got, digits, 6) != 0 && wrong++ < 5) {
      cr_expect_fail("%s, seed %llu, text %u \"%.*s\": not as Hugging Face has it", name, (unsigned long long)seed,
                     index, (int)m->length, m->bytes);
    }
  }
  cr_expect_eq(wrong, 0, "%s: %zu of %u texts", name, wrong, count);
  mk_tokens_free(&tokens);
  free(m);
  return count;
}

/* MK_TOKENIZER_HASHES names another file, for longer comparisons by hand. */
Test(tokenizer_hashes, tens_of_thousands_of_texts_match_hugging_face, .timeout = MK_HANG_SECONDS) {
  json_t *variants = read_json(DATA "tokenizer_variants.json"), *forms = read_json(DATA "tokenizer_forms.json");
  json_t *groups = read_json(DATA "tokenizer_texts.json");
  const char *other = getenv("MK_TOKENIZER_HASHES");
  FILE *file = fopen(other != NULL ? other : DATA "tokenizer_hashes.txt", "r");
  char *line = NULL;
  size_t capacity = 0, byte_level = 0, characters = 0;
  cr_assert_not_null(file);
  while (getline(&line, &capacity, file) > 0) {
    char name[256];
    unsigned long long seed;
    uint32_t first, count;
    int used;
    cr_assert_eq(sscanf(line, "%255s %llu %u %u %n", name, &seed, &first, &count, &used), 4);
    cr_assert_eq(strlen(line + used), 6 * (size_t)count + 1);
    mk_tokenizer *t = load(name, variants, forms);
    *(json_object_get(variants, name) == NULL ? &byte_level : &characters) +=
        check_line(t, name, groups, seed, first, count, line + used);
    mk_tokenizer_free(t);
  }
  fprintf(stderr, "%zu texts byte-level, %zu with byte fallback\n", byte_level, characters);
  cr_expect(other != NULL || (byte_level > 10000 && characters > 10000));
  free(line);
  fclose(file);
  json_decref(variants);
  json_decref(forms);
  json_decref(groups);
}
