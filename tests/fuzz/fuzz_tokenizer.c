/* tokenizer.json: an accepted one encodes a fixed text, unless a pattern gives up on it, and what comes out decodes. */
#include <string.h>

#include "tests/fuzz/support.h"
#include "text/tokenizer.h"

/* Letters, digits, a combining mark, white space of all kinds, two scripts, an emoji, a lone byte and a surrogate. */
static const char text[] =
    " Hello,\two\xcc\x88rld's 1234 <s>  \xe4\xb8\x96\xe7\x95\x8c\r\n\xf0\x9f\x98\x80 a b\xff\xed\xa0\x80"
    "ab ";

static void decode(const mk_tokenizer *tokenizer, const mk_tokens *tokens) {
  mk_decoder *decoder;
  const char *part;
  size_t length;
  fuzz_require(mk_decoder_new(tokenizer, &decoder) == MK_OK, "%s", mk_error_message());
  for (size_t i = 0; i <= tokens->count; i++) {
    mk_status status = i < tokens->count ? mk_decoder_push(decoder, tokens->ids[i], &part, &length)
                                         : mk_decoder_finish(decoder, &part, &length);
    fuzz_require(status == MK_OK, "id %zu of %zu: %s", i, tokens->count, mk_error_message());
    fuzz_require(part[length] == '\0' && (length == 0 || memchr(part, 0xff, length) == NULL), "bytes that are no text");
  }
  mk_decoder_free(decoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mk_tokenizer *tokenizer;
  mk_status status = mk_tokenizer_parse((const char *)data, size, &tokenizer);
  fuzz_expect_parsed(status);
  if (status != MK_OK) {
    fuzz_require(tokenizer == NULL, "a refused file leaves a tokenizer");
    return 0;
  }
  mk_tokens tokens = {0};
  status = mk_tokenizer_encode(tokenizer, text, sizeof text - 1, true, &tokens);
  fuzz_require(status == MK_OK || status == MK_ERR_USAGE, "%s", mk_error_message());
  for (size_t i = 0; i < tokens.count; i++) {
    fuzz_require(tokens.ids[i] < mk_tokenizer_vocab(tokenizer), "id %u", tokens.ids[i]);
  }
  decode(tokenizer, &tokens);
  tokens.count = 0; /* and every token by itself */
  status = MK_OK;
  for (uint32_t id = 0; id < mk_tokenizer_vocab(tokenizer) + 2 && status == MK_OK; id++) {
    status = mk_grow(&tokens.ids, &tokens.capacity, tokens.count + 1, sizeof *tokens.ids);
    tokens.ids[tokens.count++] = id;
  }
  decode(tokenizer, &tokens);
  mk_tokens_free(&tokens);
  mk_tokenizer_free(tokenizer);
  return 0;
}
