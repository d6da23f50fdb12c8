/* The tokenizer against Hugging Face tokenizers (tests/models/data/, made by make_tokenizer_golden.py) and against bad files. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "models/json.h"
#include "models/tokenizer.h"

#define DATA MK_SOURCE_DIR "/tests/models/data/"
static const char *const names[] = {"llama3", "gpt2", "qwen2", "classes"};
enum { NAMES = 4, LLAMA3 = 0, CLASSES = 3 };

static char *read_data(const char *file, size_t *length) {
  char path[512];
  char *text = NULL;
  snprintf(path, sizeof path, DATA "%s", file);
  cr_assert_eq(mk_file_read(path, false, 1 << 24, &text, length), MK_OK, "%s", mk_error_message());
  return text;
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

static double encode_seconds(const mk_tokenizer *t, const char *text, size_t length) {
  struct timespec start, end;
  mk_tokens tokens = {0};
  clock_gettime(CLOCK_MONOTONIC, &start);
  cr_assert_eq(mk_tokenizer_encode(t, text, length, false, &tokens), MK_OK, "%s", mk_error_message());
  clock_gettime(CLOCK_MONOTONIC, &end);
  size_t decoded;
  char *back = decode(t, &tokens, &decoded);
  cr_assert(decoded == length && memcmp(back, text, length) == 0, "does not come back the same");
  mk_free(back);
  mk_tokens_free(&tokens);
  return (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
}

/* A quadratic algorithm would take hours for these, so the bound can be generous to slow machines. */
Test(tokenizer, four_mebibytes_of_one_character_are_fast, .timeout = 300) {
  mk_tokenizer *t = load("llama3");
  const size_t length = 4 << 20;
  char *text = malloc(length);
  static const char fills[] = " \na1!<";
  for (size_t i = 0; fills[i] != '\0'; i++) {
    memset(text, fills[i], length);
    double seconds = encode_seconds(t, text, length);
    fprintf(stderr, "4 MiB of 0x%02x: %.2f s\n", (unsigned)fills[i], seconds);
    cr_expect_lt(seconds, 40, "0x%02x: %.1f s", (unsigned)fills[i], seconds);
  }
  for (size_t i = 0; i < length; i++) {
    text[i] = " \n"[i % 997 == 0];
  }
  cr_expect_lt(encode_seconds(t, text, length), 40);
  free(text);
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

Test(tokenizer, an_id_at_or_above_vocab_size_is_refused) {
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
  cr_assert_eq(mk_tokenizer_load(directory, count - 1, &t), MK_ERR_FILE);
  cr_expect_not_null(strstr(mk_error_message(), "vocab_size"), "%s", mk_error_message());
  cr_expect_null(t);
  remove(path);
  remove(directory);
  mk_free(text);
}

/* A small file to break: replaces the first `from` by `to` and expects the message to contain `message`. */
static const char small[] =
    "{\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true,\"single_word\":false,\"lstrip\":false,"
    "\"rstrip\":false,\"normalized\":false},{\"id\":5,\"content\":\"</s>\",\"special\":true}],\"normalizer\":null,"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
    "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[4]}}},"
    "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
    "\"byte_fallback\":false,\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3},\"merges\":[\"a b\"]}}";

static mk_status parse_broken(const char *from, const char *to, mk_tokenizer **t) {
  char text[4096];
  const char *at = strstr(small, from);
  cr_assert_not_null(at, "%s", from);
  int length = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - small), small, to, at + strlen(from));
  char *exact = malloc((size_t)length);
  memcpy(exact, text, (size_t)length);
  mk_status status = mk_tokenizer_parse(exact, (size_t)length, t);
  free(exact);
  return status;
}

static void refused(const char *from, const char *to, const char *message) {
  mk_tokenizer *t = NULL;
  cr_expect_eq(parse_broken(from, to, &t), MK_ERR_FILE, "%s -> %s", from, to);
  cr_expect_not_null(strstr(mk_error_message(), message), "\"%s\" lacks \"%s\"", mk_error_message(), message);
  cr_expect_null(t);
}

Test(tokenizer, the_small_file_is_good_as_it_is) {
  mk_tokenizer *t = NULL;
  mk_tokens tokens = {0};
  cr_assert_eq(parse_broken("BPE", "BPE", &t), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_tokenizer_encode(t, "abz c</s>", 9, true, &tokens), MK_OK);
  const uint32_t want[] = {4, 3, 2, 5}; /* 'z' and ' ' are not in this vocabulary: left out, as Hugging Face does */
  cr_assert_eq(tokens.count, 4);
  cr_assert_eq(memcmp(tokens.ids, want, sizeof want), 0);
  mk_tokens_free(&tokens);
  mk_tokenizer_free(t);
}

Test(tokenizer, gap_in_the_ids) { refused("\"ab\":3", "\"ab\":6", "id 6 leaves a gap"); }
Test(tokenizer, gap_in_the_added_ids) { refused("\"id\":5", "\"id\":7", "id 7 leaves a gap"); }
Test(tokenizer, duplicate_id) { refused("\"ab\":3", "\"ab\":2", "already that of \"c\""); }
Test(tokenizer, duplicate_id_of_an_added_token) { refused("\"id\":5", "\"id\":4", "already that of \"<s>\""); }
Test(tokenizer, duplicate_token) { refused("\"c\":2", "\"a\":2", "duplicate"); }
Test(tokenizer, duplicate_added_token) { refused("\"</s>\"", "\"<s>\"", "there twice"); }
Test(tokenizer, added_token_contradicts_the_vocabulary) { refused("\"</s>\"", "\"ab\"", "gives \"ab\" the id 3"); }
Test(tokenizer, negative_id) { refused("\"ab\":3", "\"ab\":-3", "id -3"); }
Test(tokenizer, fractional_id) { refused("\"ab\":3", "\"ab\":3.5", "id 3.5"); }
Test(tokenizer, overflowing_id) { refused("\"ab\":3", "\"ab\":18446744073709551619", "integer"); }
Test(tokenizer, merge_of_an_unknown_piece) { refused("\"a b\"", "\"a x\"", "\"x\" is not in model.vocab"); }
Test(tokenizer, merge_into_an_unknown_piece) { refused("\"a b\"", "\"b a\"", "\"ba\" is not in model.vocab"); }
Test(tokenizer, merge_of_three) { refused("\"a b\"", "\"a b c\"", "model.merges[0]"); }
Test(tokenizer, merge_of_one) { refused("\"a b\"", "[\"a\"]", "model.merges[0]"); }
Test(tokenizer, merges_missing) { refused("\"merges\"", "\"merge\"", "model.merges: must be a list"); }
Test(tokenizer, vocab_missing) { refused("\"vocab\"", "\"vocabulary\"", "model.vocab: must be an object"); }
Test(tokenizer, other_model) { refused("BPE", "Unigram", "\"Unigram\" is not supported"); }
Test(tokenizer, dropout) { refused("\"dropout\":null", "\"dropout\":0.1", "model.dropout: 0.1"); }
Test(tokenizer, unk_token) { refused("\"unk_token\":null", "\"unk_token\":\"a\"", "model.unk_token: \"a\""); }
Test(tokenizer, byte_fallback) { refused("\"byte_fallback\":false", "\"byte_fallback\":true", "model.byte_fallback"); }
Test(tokenizer, normalizer) { refused("\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}", "\"NFC\""); }
Test(tokenizer, single_word) { refused("\"single_word\":false", "\"single_word\":true", "single_word: true"); }
Test(tokenizer, lstrip_is_no_flag) { refused("\"lstrip\":false", "\"lstrip\":0", "added_tokens[0].lstrip: is 0"); }
Test(tokenizer, prefix_space) {
  refused("\"add_prefix_space\":false", "\"add_prefix_space\":true", "add_prefix_space");
}
Test(tokenizer, use_regex_alone) { refused("\"use_regex\":true", "\"use_regex\":false", "use_regex"); }
Test(tokenizer, other_pre_tokenizer) { refused("\"ByteLevel\"", "\"Whitespace\"", "\"Whitespace\""); }
Test(tokenizer, other_decoder) { refused("\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":null", "decoder: null"); }
Test(tokenizer, other_post_processor) { refused("TemplateProcessing", "BertProcessing", "\"BertProcessing\""); }
Test(tokenizer, template_without_text) {
  refused("\"Sequence\":{\"id\":\"A\"}", "\"Sequence\":{\"id\":\"B\"}", "sequence A");
}
Test(tokenizer, template_of_an_unknown_token) { refused("{\"ids\":[4]}", "{\"ids\":[6]}", "id 6 is not below"); }
Test(tokenizer, template_of_an_unlisted_token) { refused("{\"<s>\":{", "{\"<t>\":{", "special_tokens lists"); }
Test(tokenizer, not_json) { refused("{\"added_tokens\"", "{added_tokens", "line 1"); }
Test(tokenizer, text_behind_the_end) { refused("[\"a b\"]}}", "[\"a b\"]}}x", "end of file"); }
Test(tokenizer, not_utf8) { refused("\"c\"", "\"\xff\"", "unable to decode byte 0xff"); }
Test(tokenizer, other_split_pattern) {
  refused(
      "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}",
      "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\w+\"},\"behavior\":"
      "\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}",
      "pre_tokenizer.pattern: {\"Regex\":\"\\\\w+\"}");
}

/* A cut at every byte: never a crash, never accepted. */
Test(tokenizer, every_truncation_is_refused) {
  for (size_t length = 0; length + 1 < sizeof small; length++) {
    mk_tokenizer *t = NULL;
    char *exact = malloc(length + (length == 0));
    memcpy(exact, small, length);
    cr_assert_eq(mk_tokenizer_parse(exact, length, &t), MK_ERR_FILE, "%zu bytes", length);
    free(exact);
  }
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

Test(tokenizer, every_allocation_may_fail) {
  size_t length;
  char *json = read_data("tokenizer_llama3.json", &length);
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
  mk_free(json);
}
