/* Arbitrary bytes through the demo's tokenizer. Text comes back as it was; bytes that are no text come back as text
 * that has the same ids. Special tokens decode to nothing, so that texts that spell one are left out of this. */
#define _GNU_SOURCE /* memmem */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/support.h"
#include "text/tokenizer.h"

static mk_tokenizer *tokenizer;

static const char *const specials[] = {"<|begin_of_text|>", "<|end_of_text|>"};

static bool spells_special(const uint8_t *data, size_t size) {
  for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++) {
    if (memmem(data, size, specials[i], strlen(specials[i])) != NULL) {
      return true;
    }
  }
  return false;
}

static char *decode(const mk_tokens *tokens, size_t *length) {
  mk_decoder *decoder;
  char *all = malloc(1);
  fuzz_require(mk_decoder_new(tokenizer, &decoder) == MK_OK, "%s", mk_error_message());
  *length = 0;
  for (size_t i = 0; i <= tokens->count; i++) {
    const char *part;
    size_t bytes;
    mk_status status = i < tokens->count ? mk_decoder_push(decoder, tokens->ids[i], &part, &bytes)
                                         : mk_decoder_finish(decoder, &part, &bytes);
    fuzz_require(status == MK_OK, "%s", mk_error_message());
    fuzz_require(fuzz_is_utf8(part, bytes), "a part is not whole characters");
    all = realloc(all, *length + bytes + 1);
    memcpy(all + *length, part, bytes);
    *length += bytes;
  }
  mk_decoder_free(decoder);
  return all;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (tokenizer == NULL && mk_tokenizer_load(MK_SOURCE_DIR "/models/demo", UINT32_MAX, &tokenizer) != MK_OK) {
    fuzz_fail("the demo's tokenizer: %s", mk_error_message());
  }
  mk_tokens tokens = {0}, again = {0};
  size_t length;
  fuzz_require(mk_tokenizer_encode(tokenizer, (const char *)data, size, false, &tokens) == MK_OK, "%s",
               mk_error_message());
  char *text = decode(&tokens, &length);
  if (fuzz_is_utf8((const char *)data, size) && !spells_special(data, size)) {
    fuzz_require(length == size && memcmp(text, data, size) == 0, "%zu bytes of text come back as %zu others", size,
                 length);
  } else if (!spells_special(data, size)) {
    fuzz_require(mk_tokenizer_encode(tokenizer, text, length, false, &again) == MK_OK, "%s", mk_error_message());
    fuzz_require(again.count == tokens.count && memcmp(again.ids, tokens.ids, tokens.count * sizeof *tokens.ids) == 0,
                 "%zu ids come back as %zu others", tokens.count, again.count);
  }
  free(text);
  mk_tokens_free(&tokens);
  mk_tokens_free(&again);
  return 0;
}
