/* Patterns of tokenizer.json: which are read, what is refused by name, and that no text makes one go on for ever. That
 * those which are read match as Hugging Face's do is in test_tokenizer_hashes.c. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/effort.h"
#include "text/tokenizer.h"
#include "text/tokenizer_regex.h"

#define DATA MK_SOURCE_DIR "/tests/text/data/"

static mk_status translate(const char *pattern, mk_bytes *out, bool *empty) {
  return mk_regex_translate("here", pattern, strlen(pattern), out, empty);
}

static void refused(const char *pattern, const char *what) {
  mk_bytes out = {0};
  bool empty;
  cr_expect_eq(translate(pattern, &out, &empty), MK_ERR_FILE, "%s", pattern);
  cr_expect_not_null(strstr(mk_error_message(), what), "%s: \"%s\" lacks \"%s\"", pattern, mk_error_message(), what);
  mk_free(out.bytes);
}

static void becomes(const char *pattern, const char *want, bool want_empty) {
  mk_bytes out = {0};
  bool empty;
  cr_assert_eq(translate(pattern, &out, &empty), MK_OK, "%s: %s", pattern, mk_error_message());
  cr_expect_str_eq((const char *)out.bytes, want);
  cr_expect_eq(empty, want_empty, "%s", pattern);
  mk_free(out.bytes);
}

Test(tokenizer_regex, what_means_something_else_is_written_anew) {
  becomes("a.b", "(?:a[^\\n]b)", false);
  becomes("^a$", "(?:(?:\\A|(?<=\\n)(?!\\z))a(?=\\n|\\z))", false);
  becomes("(a|b)*", "(?:(?:a|b)*)", true);
  becomes("a{,2}", "(?:a{0,2})", true);
  becomes("a{1,3}+b", "(?:a+b)", false);
  becomes("xa{2,3}+b", "(?:x(?:a{2,3})+b)", false);
  becomes("\\s", "(?:[" MK_CLASS_SPACE "])", false);
  becomes("\\S", "(?:[^" MK_CLASS_SPACE "])", false);
  becomes("[^\\S\\n-]", "(?:[^\\S\\x{180e}\\x{a}\\x{2d}])", false);
  becomes("(?i)'s|T", "(?i:\\x{27}s|T)", false);
  becomes("\u00e9\\u00e9\\x{e9}\\x41", "(?:\\x{e9}\\x{e9}\\x{e9}A)", false);
  becomes("(?=a)|(?!a)", "(?:(?=a)|(?!a))", true);
  becomes("(?>a+)(?<=a)(?<!b)", "(?:(?>a+)(?<=a)(?<!b))", false);
}

Test(tokenizer_regex, what_differs_is_refused_by_name) {
  static const char *const cases[][2] = {{"\\bx", "\\b is"},
                                         {"(a)\\1", "\\1 is"},
                                         {"\\h", "\\h is"},
                                         {"\\Z", "\\Z is"},
                                         {"\\R", "\\R is"},
                                         {"\\X", "\\X is"},
                                         {"\\K", "\\K is"},
                                         {"\\p{Mn}", "\\p{Mn} is"},
                                         {"\\p{C}", "\\p{C} is"},
                                         {"\\p{l}", "\\p{l} is"},
                                         {"\\pL", "\\p without"},
                                         {"[[:alpha:]]", "\"[\" in"},
                                         {"[a&&b]", "\"&&\" in"},
                                         {"[]a]", "\"]\" in"},
                                         {"[a", "[ without ]"},
                                         {"[\\W]", "\\W in brackets"},
                                         {"[\\P{L}]", "\\P in"},
                                         {"[z-a]", "a range that"},
                                         {"[a-\\d]", "a range that"},
                                         {"[\\d-a]", "a - after a class"},
                                         {"(?m:a)", "(?m:"},
                                         {"(?<n>a)", "(?<n>"},
                                         {"(?#a)", "(?#a"},
                                         {"(*F)", "(*F)"},
                                         {"a(?i)b", "(?i)b"},
                                         {"a**", "a repetition of"},
                                         {"a+*", "a repetition of"},
                                         {"a{2}?", "{n}? is"},
                                         {"a{2", "a { that"},
                                         {"a{}", "a { that"},
                                         {"a{3,2}", "a { that"},
                                         {"a{1001}", "more than 1000"},
                                         {"*a", "* after nothing"},
                                         {"{2}", "{ after"},
                                         {"(a*)*", "may be empty"},
                                         {"(a?){0,2}+", "may be empty"},
                                         {"$+", "of a place"},
                                         {"(?=a)*", "of a place"},
                                         {"(a", "( without )"},
                                         {"a)", ") without ("},
                                         {"a\\", "a backslash"},
                                         {"\\x8", "\\x8"},
                                         {"\\xff", "\\xff"},
                                         {"\\x{110000}", "\\x{110000}"},
                                         {"\\ud800", "\\ud800"},
                                         {"(?i:ss)", "\"ss\" within"},
                                         {"(?i:ST)", "\"st\""},
                                         {"(?i)of+fi", "\"fi\""},
                                         {"(?i:\\w)", "a class"},
                                         {"(?i:[\\d])", "a class"},
                                         {"(?i:[^a])", "[^...]"},
                                         {"(?i:\u00df)", "beyond ASCII"},
                                         {"(?i:[a-\u00df])", "beyond"},
                                         {"(?i:s{2})", "{...} within"},
                                         {"(?i:\\x{df})", "beyond ASCII"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    refused(cases[i][0], cases[i][1]);
  }
  char deep[128] = "";
  for (int i = 0; i < 40; i++) {
    strcat(deep, "(a");
  }
  refused(deep, "more than 32 groups");
}

/* A vocabulary of bytes, pieces by the pattern. */
static mk_tokenizer *with_pattern(const char *pattern) {
  json_t *file = json_load_file(DATA "tokenizer_whole.json", 0, NULL);
  cr_assert_not_null(file);
  json_object_set_new(file, "pre_tokenizer",
                      json_pack("{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s, s:b, s:b}]}", "type", "Sequence", "pretokenizers",
                                "type", "Split", "pattern", "Regex", pattern, "behavior", "Isolated", "type",
                                "ByteLevel", "add_prefix_space", 0, "use_regex", 0));
  char *text = json_dumps(file, JSON_COMPACT);
  mk_tokenizer *t = NULL;
  cr_assert_eq(mk_tokenizer_parse(text, strlen(text), &t), MK_OK, "%s", mk_error_message());
  free(text);
  json_decref(file);
  return t;
}

static mk_status encode_run(const mk_tokenizer *t, const char *run, size_t length, const char *end) {
  mk_tokens tokens = {0};
  char *text = malloc(length + strlen(end));
  for (size_t i = 0; i < length; i++) {
    text[i] = run[i % strlen(run)];
  }
  memcpy(text + length, end, strlen(end));
  mk_status status = mk_tokenizer_encode(t, text, length + strlen(end), false, &tokens);
  free(text);
  mk_tokens_free(&tokens);
  return status;
}

Test(tokenizer_regex, a_pattern_that_doubles_its_steps_gives_up, .timeout = MK_HANG_SECONDS) {
  static const char *const patterns[] = {"(a+)+[bc]", "(a|a)+[bc]", "(?:a|aa)+?[bc]"};
  for (size_t i = 0; i < 3; i++) {
    mk_tokenizer *t = with_pattern(patterns[i]);
    cr_expect_eq(encode_run(t, "a", 10, ""), MK_OK, "%s", mk_error_message());
    cr_expect_eq(encode_run(t, "a", 200, ""), MK_ERR_USAGE, "%s", patterns[i]);
    cr_expect_not_null(strstr(mk_error_message(), "takes too many steps on this text of 200 bytes"), "%s",
                       mk_error_message());
    mk_tokenizer_free(t);
  }
}

/* In n^2 steps this would take hours. DeepSeek V2 has it. */
Test(tokenizer_regex, spaces_up_to_the_end_of_a_line_end, .timeout = MK_HANG_SECONDS) {
  mk_tokenizer *t = with_pattern("\\s+$");
  cr_expect_eq(encode_run(t, " ", 1 << 22, "x"), MK_OK, "%s", mk_error_message());
  cr_expect_eq(encode_run(t, " \n", 1 << 20, "x"), MK_OK, "%s", mk_error_message());
  mk_tokenizer_free(t);
}

/* Every form with a run of everything: what the limits on steps and memory are is far above what the families' patterns
 * take. */
Test(tokenizer_regex, long_runs_are_encoded_by_every_form, .timeout = MK_HANG_SECONDS) {
  static const char *const runs[] = {
      " ", "a", "A", "1", "!", "\n", "\xe4\xb8\x96", "\xcc\x81", "a\xcc\x81\xcc\xa3", "Ab1! \n"};
  static const char *const names[] = {"qwen3",     "tekken", "o200k", "cl100k", "smollm", "granite",   "deepseek3",
                                      "deepseek2", "falcon", "nfkc",  "nfkd",   "twice",  "whitespace"};
  json_t *forms = json_load_file(DATA "tokenizer_forms.json", 0, NULL),
         *whole = json_load_file(DATA "tokenizer_whole.json", 0, NULL);
  cr_assert(forms != NULL && whole != NULL);
  const size_t most = test_effort(1 << 17, 1 << 20);
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    json_t *file = json_copy(whole);
    json_object_update(file, json_object_get(forms, names[i]));
    char *text = json_dumps(file, JSON_COMPACT);
    mk_tokenizer *t = NULL;
    cr_assert_eq(mk_tokenizer_parse(text, strlen(text), &t), MK_OK, "%s: %s", names[i], mk_error_message());
    for (size_t r = 0; r < sizeof runs / sizeof runs[0]; r++) {
      const size_t length = most / strlen(runs[r]) * strlen(runs[r]);
      cr_expect_eq(encode_run(t, runs[r], length, ""), MK_OK, "%s, run %zu: %s", names[i], r, mk_error_message());
    }
    mk_tokenizer_free(t);
    free(text);
    json_decref(file);
  }
  json_decref(forms);
  json_decref(whole);
}
