/* Hostile text: every byte value, surrogates, megabytes of one character. Text comes back as it was; what is no text
 * comes back with U+FFFD in place of what is none. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/effort.h"
#include "tests/support/steps.h"
#include "text/tokenizer.h"

#define REPLACED "\xef\xbf\xbd"

static mk_tokenizer *tokenizer;

static void load(void) {
  cr_assert_eq(mk_tokenizer_load(MK_SOURCE_DIR "/models/demo", UINT32_MAX, &tokenizer), MK_OK, "%s",
               mk_error_message());
}

static void drop(void) { mk_tokenizer_free(tokenizer); }

TestSuite(bad_text, .init = load, .fini = drop, .timeout = MK_HANG_SECONDS);

static void expect_back(const char *text, size_t length, const char *want, size_t want_length) {
  mk_tokens tokens = {0};
  mk_decoder *decoder;
  size_t at = 0;
  cr_assert_eq(mk_tokenizer_encode(tokenizer, text, length, false, &tokens), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_decoder_new(tokenizer, &decoder), MK_OK);
  for (size_t i = 0; i <= tokens.count; i++) {
    const char *part;
    size_t bytes;
    cr_assert_eq(i < tokens.count ? mk_decoder_push(decoder, tokens.ids[i], &part, &bytes)
                                  : mk_decoder_finish(decoder, &part, &bytes),
                 MK_OK);
    cr_assert(bytes <= want_length - at && memcmp(part, want + at, bytes) == 0, "differs at byte %zu: \"%.40s\"", at,
              part);
    at += bytes;
  }
  cr_assert_eq(at, want_length, "%zu bytes come back, not %zu", at, want_length);
  mk_decoder_free(decoder);
  mk_tokens_free(&tokens);
}

Test(bad_text, every_byte_value) {
  char all[256], replaced[128 + 128 * 3];
  for (int i = 0; i < 256; i++) {
    all[i] = (char)i;
    if (i < 128) {
      expect_back(&all[i], 1, &all[i], 1);
      replaced[i] = (char)i;
    } else {
      expect_back(&all[i], 1, REPLACED, 3);
      memcpy(replaced + 128 + 3 * (i - 128), REPLACED, 3);
    }
  }
  expect_back(all, 256, replaced,
              sizeof replaced); /* what would start a character is followed by a byte that cannot go on */
}

Test(bad_text, lone_surrogates) {
  static const char high[] = "a\xed\xa0\x80z", low[] = "a\xed\xbf\xbfz", pair[] = "\xed\xa0\xbd\xed\xb8\x80";
  expect_back(high, 5, "a" REPLACED REPLACED REPLACED "z", 11);
  expect_back(low, 5, "a" REPLACED REPLACED REPLACED "z", 11);
  expect_back(pair, 6, REPLACED REPLACED REPLACED REPLACED REPLACED REPLACED, 18);
}

static uint64_t steps_back(const char *text, size_t length) {
  uint64_t before = test_steps();
  expect_back(text, length, text, length);
  return test_steps() - before;
}

static void mebibytes_of(char character) {
  const size_t length = test_effort(1, 4) << 20;
  char *text = malloc(length);
  memset(text, character, length);
  uint64_t quarter = steps_back(text, length / 4);
  test_expect_linear("megabytes", quarter, steps_back(text, length));
  free(text);
}

Test(bad_text, mebibytes_of_spaces) { mebibytes_of(' '); }
Test(bad_text, mebibytes_of_one_letter) { mebibytes_of('a'); }
