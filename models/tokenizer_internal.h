/* What the files of the tokenizer share: the loaded tables, and the calls between loading, merging and splitting.
 *
 * Private to models/tokenizer*.c. The tables belong to the tokenizer and do not change after loading. */
#ifndef MK_TOKENIZER_INTERNAL_H
#define MK_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "models/tokenizer.h"

#define MK_NO_ID UINT32_MAX

typedef struct mk_piece {
  size_t text;     /* as in the file: offset into `arena` */
  size_t bytes;    /* what it decodes to: offset into `arena` */
  uint32_t length; /* of the text */
  uint32_t byte_count;
  bool present;
  bool model;   /* in model.vocab: merges and ignore_merges see it */
  bool added;   /* in added_tokens */
  bool special; /* skipped by the decoder */
} mk_piece;

/* A token that is found in the text before it is split. */
typedef struct mk_added {
  const uint8_t *text;
  uint32_t length, id;
  bool lstrip, rstrip; /* takes the white space on that side with it */
} mk_added;

/* Sorted by text, so that a walk down the bytes narrows a range: a trie without nodes. */
typedef struct mk_added_set {
  mk_added *tokens;
  size_t count;
  bool first[256]; /* some token starts with this byte */
} mk_added_set;

/* Pair of ids -> rank, open addressing; a free slot has key UINT64_MAX. */
typedef struct mk_merges {
  uint64_t *keys;
  uint32_t *ranks;
  uint32_t *results; /* by rank: the id of the merged piece */
  size_t count, slots;
} mk_merges;

struct mk_tokenizer {
  uint8_t *arena;
  size_t arena_used, arena_capacity;
  mk_piece *pieces; /* by id */
  size_t count;
  uint32_t *slots; /* text -> id, open addressing, MK_NO_ID when free */
  size_t slot_count;
  size_t longest; /* bytes of text of the longest piece of the model */
  uint32_t byte_ids[256];
  mk_merges merges;
  bool ignore_merges;
  mk_added_set added[2]; /* [1]: those to be found in normalised text, after the others */
  uint32_t *template_ids;
  size_t template_before, template_after; /* how many of them go before and after the text */
  pcre2_general_context *context;
  pcre2_compile_context *compile_context;
  pcre2_match_context *match_context;
  pcre2_code *split;
};

/* Memory that one call of encode reuses for every piece of the text. */
typedef struct mk_bpe_symbol {
  uint32_t id, previous, next;
} mk_bpe_symbol;
typedef struct mk_bpe {
  mk_bpe_symbol *symbols;
  uint64_t *heap; /* rank << 32 | position, smallest first */
  uint8_t *text;
  size_t symbol_capacity, heap_capacity, heap_count, text_capacity;
} mk_bpe;

/* The id of a text, MK_NO_ID when there is none. */
uint32_t mk_tokenizer_lookup(const mk_tokenizer *tokenizer, const uint8_t *text, size_t length);

/* The rank of a pair of ids, MK_NO_ID when the pair does not merge. */
uint32_t mk_merges_find(const mk_merges *merges, uint32_t left, uint32_t right);

/* Appends the ids of one piece of text that no merge may leave: length < 2^31. */
mk_status mk_bpe_encode(const mk_tokenizer *tokenizer, mk_bpe *bpe, const uint8_t *text, size_t length,
                        mk_tokens *inout);
void mk_bpe_free(mk_bpe *bpe);

mk_status mk_tokens_push(mk_tokens *tokens, uint32_t id);

#endif
