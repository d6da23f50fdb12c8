/* The tokenizer against Hugging Face tokenizers (tests/text/data/, made by make_tokenizer_golden.py), and what it
 * costs. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/json.h"
#include "tests/support/effort.h"
#include "text/tokenizer.h"
#include "text/tokenizer_internal.h"

#define DATA MK_SOURCE_DIR "/tests/text/data/"
static const char *const names[] = {"llama3", "gpt2", "qwen2", "classes"};
enum { NAMES = 4, LLAMA3 = 0, CLASSES = 3 };

static char *read_data(const char *file, size_t *length) {
  char path[512];
  char *text = NULL;
  snprintf(path, sizeof path, DATA "%s", file);
  cr_assert_eq(mk_file_read(path, false, 1 << 24, &text, length), MK_OK, "%s", mk_error_message());
  return text;
}

static mk_tokenizer *parse_json(json_t *file) {
  char *text = json_dumps(file, JSON_COMPACT);
  mk_tokenizer *t = NULL;
  cr_assert_eq(mk_tokenizer_parse(text, strlen(text), &t), MK_OK, "%s", mk_error_message());
  free(text);
  return t;
}

static mk_tokenizer *load(const char *name) {
  char file[64];
  size_t length;
  mk_tokenizer *t = NULL;
  snprintf(file, sizeof file, "tokenizer_%s.json", name);
  char *text = read_data(file, &length);
  cr_assert_eq(mk_tokenizer_parse(text, length, &t), MK_OK, "%s: %s", file, mk_error_message());
  mk_free(text);
  return t;
}

/* "-" or hexadecimal digits, in place. */
static size_t unhex(char *text) {
  size_t count = 0;
  if (text[0] == '-') {
    return 0;
  }
  for (; text[2 * count] != '\0'; count++) {
    unsigned byte;
    cr_assert_eq(sscanf(text + 2 * count, "%2x", &byte), 1);
    text[count] = (char)byte;
  }
  return count;
}

static mk_tokens parse_ids(const char *text) {
  mk_tokens tokens = {0};
  for (const char *at = text; *at != '-' && *at != '\0';) {
    char *end;
    cr_assert_eq(mk_grow(&tokens.ids, &tokens.capacity, tokens.count + 1, sizeof *tokens.ids), MK_OK);
    tokens.ids[tokens.count++] = (uint32_t)strtoul(at, &end, 10);
    at = *end == ',' ? end + 1 : end;
  }
  return tokens;
}

static bool well_formed(const char *text, size_t length) {
  json_t *string = json_stringn(text, length); /* jansson refuses ill-formed UTF-8 */
  json_decref(string);
  return string != NULL;
}

/* Pushes ids one by one; every part must be whole characters. */
static char *decode(const mk_tokenizer *t, const mk_tokens *tokens, size_t *length) {
  mk_decoder *decoder = NULL;
  char *all = NULL;
  size_t capacity = 0;
  *length = 0;
  cr_assert_eq(mk_decoder_new(t, &decoder), MK_OK);
  for (size_t i = 0; i <= tokens->count; i++) {
    const char *part;
    size_t bytes;
    cr_assert_eq(i < tokens->count ? mk_decoder_push(decoder, tokens->ids[i], &part, &bytes)
                                   : mk_decoder_finish(decoder, &part, &bytes),
                 MK_OK);
    cr_assert_eq(part[bytes], '\0');
    cr_assert(well_formed(part, bytes), "a part is not whole characters");
    cr_assert_eq(mk_grow(&all, &capacity, *length + bytes + 1, 1), MK_OK);
    memcpy(all + *length, part, bytes);
    *length += bytes;
  }
  mk_decoder_free(decoder);
  return all;
}

static void expect_decoded(const mk_tokenizer *t, const mk_tokens *tokens, const char *want, size_t want_length,
                           int line) {
  size_t length;
  char *text = decode(t, tokens, &length);
  cr_assert(length == want_length && memcmp(text, want, length) == 0, "line %d: decodes to \"%.*s\", not \"%.*s\"",
            line, (int)length, text, (int)want_length, want);
  mk_free(text);
}

static void expect_ids(const mk_tokens *got, const mk_tokens *want, int line) {
  for (size_t i = 0; i < got->count || i < want->count; i++) {
    cr_assert(i < got->count && i < want->count && got->ids[i] == want->ids[i], "line %d: id %zu of %zu is %u, not %u",
              line, i, want->count, i < got->count ? got->ids[i] : 0, i < want->count ? want->ids[i] : 0);
  }
}

static const mk_tokenizer *by_name(mk_tokenizer *const *tokenizers, const char *name) {
  for (size_t i = 0; i < NAMES; i++) {
    if (strcmp(names[i], name) == 0) {
      return tokenizers[i];
    }
  }
  cr_assert_fail("no tokenizer %s", name);
  return NULL;
}

/* The file with one more line per case; MK_TOKENIZER_CASES names another one, for longer comparisons by hand. */
Test(tokenizer, golden_cases_match_hugging_face) {
  mk_tokenizer *tokenizers[NAMES];
  for (size_t i = 0; i < NAMES; i++) {
    tokenizers[i] = load(names[i]);
  }
  const char *other = getenv("MK_TOKENIZER_CASES");
  FILE *file = fopen(other != NULL ? other : DATA "tokenizer_cases.txt", "r");
  cr_assert_not_null(file);
  char *text = NULL;
  size_t capacity = 0;
  int line = 0, encoded = 0, decoded = 0;
  while (getline(&text, &capacity, file) > 0) {
    line++;
    char *rest = text;
    const char *kind = strtok_r(rest, " \n", &rest);
    const char *name = strtok_r(NULL, " \n", &rest);
    char *first = strtok_r(NULL, " \n", &rest);
    char *second = strtok_r(NULL, " \n", &rest);
    if (kind[0] == 'C') {
      continue;
    }
    const mk_tokenizer *t = by_name(tokenizers, name);
    mk_tokens want = parse_ids(kind[0] == 'E' ? second : first);
    char *shown = kind[0] == 'E' ? strtok_r(NULL, " \n", &rest) : second;
    if (kind[0] == 'E') {
      mk_tokens got = {0};
      size_t length = unhex(first);
      char *exact = malloc(length + 1); /* no byte to spare: the sanitizer sees a read past the end */
      memcpy(exact, first, length);
      char *fitted = realloc(exact, length == 0 ? 1 : length);
      cr_assert_eq(mk_tokenizer_encode(t, fitted, length, true, &got), MK_OK, "line %d: %s", line, mk_error_message());
      expect_ids(&got, &want, line);
      mk_tokens_free(&got);
      free(fitted);
      encoded++;
    } else {
      decoded++;
    }
    expect_decoded(t, &want, shown, unhex(shown), line);
    mk_tokens_free(&want);
  }
  cr_assert_gt(encoded, 300);
  cr_assert_gt(decoded, 60);
  free(text);
  fclose(file);
  for (size_t i = 0; i < NAMES; i++) {
    mk_tokenizer_free(tokenizers[i]);
  }
}

static size_t put_utf8(uint32_t c, char *out) {
  if (c < 0x80) {
    out[0] = (char)c;
    return 1;
  }
  size_t count = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (size_t i = count; i-- > 1; c >>= 6) {
    out[i] = (char)(0x80 | (c & 0x3f));
  }
  out[0] = (char)(c | (count == 2 ? 0xc0u : count == 3 ? 0xe0u : 0xf0u));
  return count;
}

/* a{c}a 1{c}1 !{c}! {c}{c} a */
static size_t put_probe(uint32_t c, char *out) {
  size_t used = 0;
  for (const char *p = "a.a 1.1 !.! .. a"; *p != '\0'; p++) {
    if (*p == '.') {
      used += put_utf8(c, out + used);
    } else {
      out[used++] = *p;
    }
  }
  return used;
}

/* Which code points are letters, digits and spaces: a hash of the ids of probes for each 1024 of them. */
Test(tokenizer, every_code_point_is_split_as_hugging_face_splits_it) {
  mk_tokenizer *t = load("classes");
  FILE *file = fopen(DATA "tokenizer_cases.txt", "r");
  cr_assert_not_null(file);
  char *text = malloc(1024 * 64);
  char line[128];
  int blocks = 0;
  unsigned first;
  unsigned long long want;
  mk_tokens tokens = {0};
  while (fgets(line, sizeof line, file) != NULL && sscanf(line, "C %x %llx", &first, &want) == 2) {
    size_t used = 0;
    for (uint32_t c = first; c < first + 1024; c++) {
      if (c > first) {
        text[used++] = '\n';
      }
      used += put_probe(c, text + used);
    }
    tokens.count = 0;
    cr_assert_eq(mk_tokenizer_encode(t, text, used, false, &tokens), MK_OK, "%s", mk_error_message());
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < tokens.count; i++) {
      for (int shift = 0; shift < 32; shift += 8) {
        hash = (hash ^ (tokens.ids[i] >> shift & 0xff)) * 0x100000001b3u;
      }
    }
    cr_expect_eq(hash, (uint64_t)want, "code points U+%04X to U+%04X", first, first + 1023);
    blocks++;
  }
  cr_assert_gt(blocks, 250);
  mk_tokens_free(&tokens);
  free(text);
  fclose(file);
  mk_tokenizer_free(t);
}

static void expect_back(const mk_tokenizer *t, const char *text, size_t length) {
  mk_tokens tokens = {0};
  cr_assert_eq(mk_tokenizer_encode(t, text, length, false, &tokens), MK_OK, "%s", mk_error_message());
  size_t decoded;
  char *back = decode(t, &tokens, &decoded);
  cr_assert(decoded == length && memcmp(back, text, length) == 0, "0x%02x does not come back the same",
            (unsigned)text[0]);
  mk_free(back);
  mk_tokens_free(&tokens);
}

/* A quadratic algorithm would take days for 4 MiB, so that they end at all says enough; merging_takes_n_log_n_steps
 * counts. */
static size_t mebibytes(void) { return test_effort(1, 4) << 20; }

Test(tokenizer, mebibytes_of_one_character_end, .timeout = MK_HANG_SECONDS) {
  mk_tokenizer *t = load("llama3");
  const size_t length = mebibytes();
  char *text = malloc(length);
  static const char fills[] = " \na1!<";
  for (size_t i = 0; fills[i] != '\0'; i++) {
    memset(text, fills[i], length);
    expect_back(t, text, length);
  }
  for (size_t i = 0; i < length; i++) {
    text[i] = " \n"[i % 997 == 0];
  }
  expect_back(t, text, length);
  free(text);
  mk_tokenizer_free(t);
}

/* The form of Llama 2: one long piece, and what a split makes of it. */
Test(tokenizer, mebibytes_without_a_pre_tokenizer_end, .timeout = MK_HANG_SECONDS) {
  const size_t length = mebibytes();
  char *text = malloc(length);
  for (int split = 0; split < 2; split++) {
    json_t *file = json_load_file(DATA "tokenizer_bytes.json", 0, NULL);
    if (split) {
      json_object_set_new(file, "normalizer", json_null());
      json_object_set_new(
          file, "pre_tokenizer",
          json_pack("{s:s, s:s, s:s}", "type", "Metaspace", "replacement", "\u2581", "prepend_scheme", "never"));
      /* Without a mark in front there is no space to strip. */
      cr_assert_eq(json_array_remove(json_object_get(json_object_get(file, "decoder"), "decoders"), 3), 0);
    }
    mk_tokenizer *t = parse_json(file);
    static const char fills[] = " \na1!<\x7f";
    for (size_t i = 0; fills[i] != '\0'; i++) {
      memset(text, fills[i], length);
      expect_back(t, text, length);
    }
    mk_tokenizer_free(t);
    json_decref(file);
  }
  free(text);
}

/* Symbols and places in the heap, not seconds: at most a few n log n for any length. */
Test(tokenizer, merging_takes_n_log_n_steps) {
  static const char *const forms[] = {"tokenizer_llama3.json", "tokenizer_bytes.json"};
  static const char fills[] = " a1e\x7f";
  char *text = malloc(1 << 20);
  for (size_t form = 0; form < 2; form++) {
    char path[512];
    snprintf(path, sizeof path, DATA "%s", forms[form]);
    json_t *file = json_load_file(path, 0, NULL);
    mk_tokenizer *t = parse_json(file);
    for (size_t fill = 0; fills[fill] != '\0'; fill++) {
      for (unsigned bits = 10; bits <= 20; bits += 5) {
        const size_t length = (size_t)1 << bits;
        mk_tokens tokens = {0};
        mk_bpe bpe = {0};
        for (size_t i = 0; i < length; i++) { /* 'e': a text, in which all kinds of merges compete */
          text[i] = fills[fill] == 'e' ? "the quick mouse and the cat "[i % 28] : fills[fill];
        }
        cr_assert_eq(mk_bpe_encode(t, &bpe, (const uint8_t *)text, length, &tokens), MK_OK);
        cr_assert_gt(tokens.count, 0);
        cr_expect_geq(bpe.work, length);
        cr_expect_leq(bpe.work, 4 * length * bits, "%s, 0x%02x: %llu steps for %zu bytes", forms[form],
                      (unsigned)fills[fill], (unsigned long long)bpe.work, length);
        mk_bpe_free(&bpe);
        mk_tokens_free(&tokens);
      }
    }
    mk_tokenizer_free(t);
    json_decref(file);
  }
  free(text);
}

/* What Hugging Face tokenizers 0.23.3 gives for a model with some of the bytes only: unknown characters wait to be
 * fused, and bytes overtake them. */
Test(tokenizer, characters_that_only_some_bytes_stand_for) {
  static const char file[] =
      "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true},"
      "{\"id\":8,\"content\":\"foo\",\"special\":false},{\"id\":9,\"content\":\"q r\",\"special\":false}],"
      "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"_\"},"
      "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}]},\"pre_tokenizer\":null,"
      "\"post_processor\":null,\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
      "{\"String\":\"_\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","
      "\"content\":\" "
      "\",\"start\":1,\"stop\":0}]},\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,"
      "\"byte_fallback\":true,\"vocab\":{\"<unk>\":0,\"_\":1,\"a\":2,\"b\":3,\"_a\":4,\"<0x41>\":5,\"<0x42>\":6,"
      "\"<0xE4>\":7},\"merges\":[\"_ a\"]}}";
  static const struct {
    const char *text, *ids, *shown;
  } cases[] = {
      {"zAzBz", "1,5,6,0", "AB"},
      {"zzAzz", "1,5,0", "A"},
      {"zz\xc3\xa4", "1,0", ""},
      {"foo", "8", "foo"},
      {"a foo a", "4,8,4", "a foo a"},
      {"afoo", "4,0", "a"},
      {"a q r q_r", "4,9,9", "a q r q r"},
      {" ", "1,1", " "},
      {"", "-", ""},
      {"AaA", "1,5,2,5", "AaA"},
  };
  mk_tokenizer *t = NULL;
  cr_assert_eq(mk_tokenizer_parse(file, sizeof file - 1, &t), MK_OK, "%s", mk_error_message());
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mk_tokens got = {0}, want = parse_ids(cases[i].ids);
    cr_assert_eq(mk_tokenizer_encode(t, cases[i].text, strlen(cases[i].text), true, &got), MK_OK);
    expect_ids(&got, &want, (int)i);
    expect_decoded(t, &want, cases[i].shown, strlen(cases[i].shown), (int)i);
    mk_tokens_free(&got);
    mk_tokens_free(&want);
  }
  mk_tokenizer_free(t);
}

Test(tokenizer, special_adds_the_template_and_only_then) {
  mk_tokenizer *t = load("llama3");
  uint32_t bos;
  mk_tokens tokens = {0};
  cr_assert(mk_tokenizer_find(t, "<|begin_of_text|>", 17, &bos));
  cr_assert_not(mk_tokenizer_find(t, "<|begin_of_text|", 16, &bos));
  cr_assert_eq(mk_tokenizer_encode(t, "x", 1, false, &tokens), MK_OK);
  cr_assert_eq(tokens.count, 1);
  cr_assert_eq(mk_tokenizer_encode(t, "x", 1, true, &tokens), MK_OK); /* appends */
  cr_assert_eq(tokens.count, 3);
  cr_assert_eq(tokens.ids[1], bos);
  cr_assert_eq(tokens.ids[0], tokens.ids[2]);
  mk_tokens_free(&tokens);
  mk_tokenizer_free(t);
}

/* Mirrors of Llama 2 list <pad> with the id that the vocabulary ends at. */
Test(tokenizer, an_id_at_or_above_vocab_size_is_refused_where_it_is_used) {
  char *text, directory[] = "/tmp/mk_tokenizer_XXXXXX", path[128];
  size_t length;
  mk_tokenizer *t = NULL;
  cr_assert_not_null(mkdtemp(directory));
  snprintf(path, sizeof path, "%s/tokenizer.json", directory);
  cr_assert_eq(mk_tokenizer_load(directory, 100000, &t), MK_ERR_FILE);
  cr_expect_not_null(strstr(mk_error_message(), "tokenizer.json: cannot be opened"), "%s", mk_error_message());
  text = read_data("tokenizer_llama3.json", &length);
  FILE *file = fopen(path, "w");
  cr_assert_eq(fwrite(text, 1, length, file), length);
  fclose(file);
  cr_assert_eq(mk_tokenizer_load(directory, 100000, &t), MK_OK, "%s", mk_error_message());
  uint32_t count = (uint32_t)mk_tokenizer_vocab(t);
  mk_tokenizer_free(t);
  cr_assert_eq(mk_tokenizer_load(directory, count, &t), MK_OK, "%s", mk_error_message());
  mk_tokenizer_free(t);
  mk_tokens tokens = {0};
  cr_assert_eq(mk_tokenizer_load(directory, count - 1, &t), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_tokenizer_encode(t, "the tab", 7, true, &tokens), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_tokenizer_encode(t, "the  tab", 8, true, &tokens), MK_ERR_USAGE);
  char want[128];
  snprintf(want, sizeof want, "the token \"  tab\" with the id %u, but the model's vocabulary has %u (vocab_size",
           count - 1, count - 1);
  cr_expect_not_null(strstr(mk_error_message(), want), "%s", mk_error_message());
  mk_tokens_free(&tokens);
  mk_tokenizer_free(t);
  remove(path);
  remove(directory);
  mk_free(text);
}

static mk_status whole_use(const char *json, size_t length, bool *loaded) {
  mk_tokenizer *t = NULL;
  mk_decoder *decoder = NULL;
  mk_tokens tokens = {0};
  const char *text;
  size_t bytes;
  mk_status status;
  MK_TRY_GOTO(mk_tokenizer_parse(json, length, &t), done);
  *loaded = true;
  MK_TRY_GOTO(mk_tokenizer_encode(t, "the quick <both> mouse\xff", 23, true, &tokens), done);
  MK_TRY_GOTO(mk_decoder_new(t, &decoder), done);
  for (size_t i = 0; i < tokens.count; i++) {
    MK_TRY_GOTO(mk_decoder_push(decoder, tokens.ids[i], &text, &bytes), done);
  }
  status = mk_decoder_finish(decoder, &text, &bytes);
done:
  mk_decoder_free(decoder);
  mk_tokens_free(&tokens);
  mk_tokenizer_free(t);
  return status;
}

static void every_allocation_fails_with(const char *json, size_t length) {
  for (int forever = 0; forever < 2; forever++) {
    bool loaded = false;
    uint64_t n = 1;
    for (;; n++) {
      mk_alloc_fail_at(n, forever);
      mk_status status = whole_use(json, length, &loaded);
      uint64_t calls = mk_alloc_calls();
      mk_alloc_fail_at(0, false);
      if (calls < n) {
        cr_assert_eq(status, MK_OK);
        break;
      }
      /* PCRE2's JIT does without what it cannot have; everything else fails. */
      cr_assert(status == MK_ERR_RUNTIME || status == MK_OK);
      cr_assert(status == MK_OK || strstr(mk_error_message(), "memory") != NULL, "%s", mk_error_message());
    }
    cr_assert(loaded && n > 20);
  }
}

static void every_allocation_fails(const char *name) {
  size_t length;
  char *json = read_data(name, &length);
  every_allocation_fails_with(json, length);
  mk_free(json);
}

Test(tokenizer, every_allocation_may_fail) { every_allocation_fails("tokenizer_llama3.json"); }
Test(tokenizer, every_allocation_may_fail_with_byte_fallback) { every_allocation_fails("tokenizer_bytes.json"); }

/* Normal forms, patterns, and steps that rewrite their pieces. */
Test(tokenizer, every_allocation_may_fail_around_the_model) {
  static const char *const around[] = {"nfkd", "twice", "deepseek2"};
  json_t *forms = json_load_file(DATA "tokenizer_forms.json", 0, NULL);
  json_t *file = json_load_file(DATA "tokenizer_llama3.json", 0, NULL);
  for (size_t i = 0; i < 3; i++) {
    json_t *whole = json_copy(file);
    json_object_update(whole, json_object_get(forms, around[i]));
    char *text = json_dumps(whole, JSON_COMPACT);
    every_allocation_fails_with(text, strlen(text));
    free(text);
    json_decref(whole);
  }
  json_decref(forms);
  json_decref(file);
}
