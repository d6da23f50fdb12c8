/* What the files of the tokenizer share: the loaded tables, and the calls between loading, merging and splitting.
 *
 * Private to models/tokenizer*.c. The tables belong to the tokenizer and do not change after loading. */
#ifndef MK_TOKENIZER_INTERNAL_H
#define MK_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "models/json.h"
#include "models/tokenizer.h"

#define MK_NO_ID UINT32_MAX

typedef struct mk_piece {
  size_t text;  /* as in the file: offset into `arena` */
  size_t shown; /* what the decoder starts from, normalised where the added token is: offset into `arena` */
  uint32_t length, shown_length;
  bool present;
  bool model;   /* in model.vocab: merges and ignore_merges see it */
  bool added;   /* in added_tokens */
  bool special; /* said to be so there */
  bool hidden;  /* skipped by the decoder */
} mk_piece;

/* A token that is found in the text before it is split. */
typedef struct mk_added {
  const uint8_t *text;
  uint32_t length, id;
  bool single_word;    /* not beside a character of a word */
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

/* Bytes that grow. */
typedef struct mk_bytes {
  uint8_t *bytes;
  size_t length, capacity;
} mk_bytes;

/* One step of a normaliser or of a decoder. The texts are its own. */
typedef enum mk_step_kind {
  MK_STEP_PREPEND,       /* content, in front of what is not empty */
  MK_STEP_REPLACE,       /* pattern by content */
  MK_STEP_STRIP,         /* at most `limit` times pattern, a character, at the start of a token */
  MK_STEP_METASPACE,     /* pattern, a character, by a space; by nothing in the first token if `limit` */
  MK_STEP_BYTE_FALLBACK, /* runs of <0xNN> by the text that they spell */
  MK_STEP_BYTE_LEVEL,    /* the byte alphabet by its bytes; one token from here on */
  MK_STEP_FUSE,          /* one token from here on */
} mk_step_kind;
typedef struct mk_step {
  mk_step_kind kind;
  bool whole; /* behind FUSE or BYTE_LEVEL: what comes are parts of one token */
  uint8_t *pattern, *content;
  size_t pattern_length, content_length, limit;
} mk_step;
enum { MK_STEPS = 16 };
typedef struct mk_steps {
  mk_step list[MK_STEPS];
  size_t count;
} mk_steps;

typedef enum mk_prepend { MK_PREPEND_NEVER, MK_PREPEND_FIRST, MK_PREPEND_ALWAYS } mk_prepend;
typedef enum mk_pre_tokenizer { MK_PRE_NONE, MK_PRE_BYTE_LEVEL, MK_PRE_METASPACE } mk_pre_tokenizer;

struct mk_tokenizer {
  uint8_t *arena;
  size_t arena_used, arena_capacity;
  mk_piece *pieces; /* by id */
  size_t count;
  uint32_t *slots; /* text -> id, open addressing, MK_NO_ID when free */
  size_t slot_count;
  size_t longest;             /* bytes of text of the longest piece of the model */
  uint32_t byte_ids[256];     /* byte level: of each byte's character; else of the ASCII characters */
  uint32_t fallback_ids[256]; /* of <0xNN>; all MK_NO_ID without byte_fallback */
  uint32_t unknown;           /* id of unk_token or MK_NO_ID */
  bool fuse_unknown;
  mk_merges merges;
  bool ignore_merges;
  mk_steps normalizer, decoder;
  mk_pre_tokenizer pre_tokenizer;
  struct {
    uint8_t replacement[4];
    size_t length;
    mk_prepend prepend;
    bool split; /* before each replacement character */
  } metaspace;
  mk_added_set added[2]; /* [1]: those to be found in normalised text, after the others */
  uint32_t *template_ids;
  size_t template_before, template_after; /* how many of them go before and after the text */
  pcre2_general_context *context;
  pcre2_compile_context *compile_context;
  pcre2_match_context *match_context;
  pcre2_code *split; /* byte level */
  pcre2_code *word;  /* a character of a word; only when a token is single_word */
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
  uint64_t work; /* symbols made and places in the heap looked at so far */
} mk_bpe;

/* The id of a text, MK_NO_ID when there is none. */
uint32_t mk_tokenizer_lookup(const mk_tokenizer *tokenizer, const uint8_t *text, size_t length);

/* The rank of a pair of ids, MK_NO_ID when the pair does not merge. */
uint32_t mk_merges_find(const mk_merges *merges, uint32_t left, uint32_t right);

/* Appends the ids of one piece of text that no merge may leave; MK_ERR_USAGE above 1 GiB. */
mk_status mk_bpe_encode(const mk_tokenizer *tokenizer, mk_bpe *bpe, const uint8_t *text, size_t length,
                        mk_tokens *inout);
void mk_bpe_free(mk_bpe *bpe);

mk_status mk_tokens_push(mk_tokens *tokens, uint32_t id);

mk_status mk_bytes_append(mk_bytes *text, const void *bytes, size_t length);

/* The first place of pattern[0, length) in text[0, size), NULL when there is none; patterns are short. */
const uint8_t *mk_find(const uint8_t *text, size_t size, const uint8_t *pattern, size_t length);

/* Appends text[0, size) to `out`, the step's pattern replaced by its content from left to right. */
mk_status mk_step_replace(const mk_step *step, const uint8_t *text, size_t size, mk_bytes *out);

/* The normalised text, in one of the two buffers or, when there is nothing to do, where it was. */
mk_status mk_normalize(const mk_steps *steps, mk_bytes buffers[2], const uint8_t **text, size_t *size);

/* The parts of the file around the model (tokenizer_parts.c). The post-processor comes last: it names tokens. */
mk_status mk_load_normalizer(mk_tokenizer *tokenizer, const json_t *object);
mk_status mk_load_decoder(mk_tokenizer *tokenizer, const json_t *object);
mk_status mk_load_pre_tokenizer(mk_tokenizer *tokenizer, const json_t *object);
mk_status mk_load_post_processor(mk_tokenizer *tokenizer, const json_t *object);
mk_status mk_load_word(mk_tokenizer *tokenizer);
void mk_steps_free(mk_steps *steps);

/* What both loaders use: true or false, and the message for what is not computed here. */
mk_status mk_load_bool(const json_t *object, const char *where, const char *key, bool absent, bool *out);
mk_status mk_unsupported(const char *field, const json_t *value, const char *supported);
bool mk_is_type(const json_t *object, const char *type);

#endif
