/* The bytes of every token, looked up once: log-probabilities name up to twenty tokens for each that is generated.
 *
 * A table owns its memory until mk_token_table_free; immutable once made, so any thread may read it. Failure:
 * MK_ERR_RUNTIME for memory. */
#ifndef MK_TOKENS_H
#define MK_TOKENS_H

#include <stdbool.h>

#include "include/mkvm.h"
#include "vm/status.h"

typedef struct mk_token_text {
  const char *bytes; /* perhaps part of a character */
  size_t length;
  bool special; /* no part of a text; the bytes are its name */
} mk_token_text;

typedef struct mk_token_table {
  char *bytes;
  uint32_t *starts; /* [vocabulary + 1]; the upper bit of an entry: the token is special */
  uint32_t vocabulary;
} mk_token_table;

mk_status mk_token_table_make(const mkvm_engine *engine, uint32_t vocabulary, mk_token_table *out);
void mk_token_table_free(mk_token_table *table); /* a zeroed one is fine */

mk_token_text mk_token_text_of(const mk_token_table *table, uint32_t token);

#endif
