/* See tokens.h. */
#include "serve/tokens.h"

#include <string.h>

#define SPECIAL 0x80000000u

static mk_status make(const mkvm_engine *engine, mk_token_table *t) {
  size_t capacity = 0, used = 0;
  for (uint32_t token = 0; token < t->vocabulary; token++) {
    enum { USUAL = 64 };
    size_t length;
    int special;
    MK_TRY(mk_grow(&t->bytes, &capacity, used + USUAL, 1));
    mkvm_status status = mkvm_token_bytes(engine, token, t->bytes + used, USUAL, &length, &special);
    if (status == MKVM_OK && length > USUAL) {
      MK_TRY(mk_grow(&t->bytes, &capacity, used + length, 1));
      status = mkvm_token_bytes(engine, token, t->bytes + used, length, &length, &special);
    }
    if (status != MKVM_OK) {
      return (mk_status)status; /* with libmkvm's message */
    }
    t->starts[token] = (uint32_t)used | (special ? SPECIAL : 0);
    used += length;
    if (used >= SPECIAL) {
      return mk_error(MK_ERR_RUNTIME, "the tokens of the vocabulary have 2 GiB of text, and more");
    }
  }
  t->starts[t->vocabulary] = (uint32_t)used;
  return MK_OK;
}

mk_status mk_token_table_make(const mkvm_engine *engine, uint32_t vocabulary, mk_token_table *out) {
  *out = (mk_token_table){.vocabulary = vocabulary};
  mk_status status = mk_alloc((size_t)vocabulary + 1, sizeof *out->starts, &out->starts);
  status = status == MK_OK ? make(engine, out) : status;
  if (status != MK_OK) {
    mk_token_table_free(out);
  }
  return status;
}

void mk_token_table_free(mk_token_table *table) {
  mk_free(table->bytes);
  mk_free(table->starts);
  *table = (mk_token_table){0};
}

mk_token_text mk_token_text_of(const mk_token_table *t, uint32_t token) {
  if (token >= t->vocabulary) {
    return (mk_token_text){.bytes = ""};
  }
  const uint32_t start = t->starts[token] & ~SPECIAL, end = t->starts[token + 1] & ~SPECIAL;
  return (mk_token_text){
      .bytes = t->bytes + start, .length = end - start, .special = (t->starts[token] & SPECIAL) != 0};
}
