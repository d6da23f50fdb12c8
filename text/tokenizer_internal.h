/* What the files of the tokenizer share: the loaded tables, and the calls between loading, normalising, splitting and
 * merging.
 *
 * Private to text/tokenizer*.c. The tables belong to the tokenizer and do not change after loading. */
#ifndef MK_TOKENIZER_INTERNAL_H
#define MK_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "models/json.h"
#include "text/normal_form.h"
#include "text/tokenizer.h"

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

/* One step of a normaliser or of a decoder. The texts are its own. */
typedef enum mk_step_kind {
  MK_STEP_PREPEND,       /* content, in front of what is not empty */
  MK_STEP_REPLACE,       /* pattern by content */
  MK_STEP_STRIP,         /* at most `limit` times pattern, a character, at the start of a token */
  MK_STEP_METASPACE,     /* pattern, a character, by a space; by nothing in the first token if `limit` */
  MK_STEP_BYTE_FALLBACK, /* runs of <0xNN> by the text that they spell */
  MK_STEP_BYTE_LEVEL,    /* the byte alphabet by its bytes; one token from here on */
  MK_STEP_FUSE,          /* one token from here on */
  MK_STEP_REPLACE_REGEX, /* what `code` matches by content */
  MK_STEP_NORMAL_FORM,   /* `form` */
  MK_STEP_LOWERCASE,
  MK_STEP_TRIM, /* white space: at the start if limit & 1, at the end if limit & 2 */
} mk_step_kind;
typedef struct mk_step {
  mk_step_kind kind;
  bool whole; /* after FUSE or BYTE_LEVEL: the texts that come are parts of one token */
  uint8_t *pattern, *content;
  size_t pattern_length, content_length, limit;
  pcre2_code *code;
  mk_normal_form form;
} mk_step;
enum { MK_STEPS = 16 };
typedef struct mk_steps {
  mk_step list[MK_STEPS];
  size_t count;
} mk_steps;

typedef enum mk_prepend { MK_PREPEND_NEVER, MK_PREPEND_FIRST, MK_PREPEND_ALWAYS } mk_prepend;

/* What becomes of the matches of a Split, as Hugging Face names it. */
typedef enum mk_behavior {
  MK_ISOLATED,
  MK_REMOVED,
  MK_MERGED_WITH_PREVIOUS,
  MK_MERGED_WITH_NEXT,
  MK_CONTIGUOUS,
} mk_behavior;

/* One step of a pre-tokeniser: pieces become smaller ones, or other text. */
typedef enum mk_pre_kind {
  MK_PRE_SPLIT,      /* by the matches of `code`, or by `text` where that is NULL; `behavior`, `invert` */
  MK_PRE_METASPACE,  /* `text` for spaces, and in front by `prepend`; then, with `cut`, pieces that begin with it */
  MK_PRE_BYTE_LEVEL, /* with `prefix`, a space in front; the matches of `code`, if any; bytes as characters */
} mk_pre_kind;
typedef struct mk_pre_step {
  mk_pre_kind kind;
  pcre2_code *code;
  uint8_t *text;
  size_t length;
  mk_behavior behavior;
  mk_prepend prepend;
  bool invert, cut, prefix;
} mk_pre_step;
enum { MK_PRE_STEPS = 16 };
typedef struct mk_pre_steps {
  mk_pre_step list[MK_PRE_STEPS];
  size_t count;
} mk_pre_steps;

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
  mk_pre_steps pre;
  bool byte_level;       /* its last step is that: the model gets bytes, and its vocabulary writes them as characters */
  uint32_t model_vocab;  /* ids from here on are none of the model that the tokenizer was loaded for */
  mk_added_set added[2]; /* [1]: those to be found in normalised text, after the others */
  uint32_t *template_ids;
  size_t template_before, template_after; /* how many of them go before and after the text */
  pcre2_general_context *context;
  pcre2_compile_context *compile_context;
  pcre2_code *word; /* a character of a word; only when a token is single_word */
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

/* What a thread needs to match patterns against texts of up to `size` bytes. */
typedef struct mk_matcher {
  pcre2_match_data *data;
  pcre2_match_context *context;
} mk_matcher;
mk_status mk_matcher_begin(const mk_tokenizer *tokenizer, size_t size, mk_matcher *out);
void mk_matcher_end(mk_matcher *matcher);

/* The first match that begins at `at` or later. MK_ERR_USAGE when the pattern takes too many steps on this text: the
 * limit grows with its size, and no pattern of a real file comes near. */
mk_status mk_match(const mk_matcher *matcher, const pcre2_code *code, const uint8_t *text, size_t size, size_t at,
                   bool *found, size_t *begin, size_t *end);

/* The matches of a pattern one after the other: an empty one right after another match does not count. Begins
 * zeroed. */
typedef struct mk_matches {
  size_t at, last;
  bool any, done;
} mk_matches;
mk_status mk_next_match(const mk_matcher *matcher, const pcre2_code *code, const uint8_t *text, size_t size,
                        mk_matches *state, bool *found, size_t *begin, size_t *end);

/* Memory of a pre-tokeniser's steps, each with its own, and where their pieces go. */
typedef struct mk_pre {
  const mk_tokenizer *tokenizer;
  const mk_matcher *matcher;
  mk_bpe *bpe;
  mk_tokens *tokens;
  mk_bytes text[MK_PRE_STEPS][2];
} mk_pre;

/* Pre-tokenises and merges. `first`: the text begins where the whole text begins. */
mk_status mk_pre_encode(mk_pre *pre, const uint8_t *text, size_t size, bool first);
void mk_pre_free(mk_pre *pre);

/* The id of a text, MK_NO_ID when there is none. */
uint32_t mk_tokenizer_lookup(const mk_tokenizer *tokenizer, const uint8_t *text, size_t length);

/* The rank of a pair of ids, MK_NO_ID when the pair does not merge. */
uint32_t mk_merges_find(const mk_merges *merges, uint32_t left, uint32_t right);

/* Appends the ids of one piece of text that no merge may leave; MK_ERR_USAGE above 1 GiB. */
mk_status mk_bpe_encode(const mk_tokenizer *tokenizer, mk_bpe *bpe, const uint8_t *text, size_t length,
                        mk_tokens *inout);
void mk_bpe_free(mk_bpe *bpe);

mk_status mk_tokens_push(mk_tokens *tokens, uint32_t id);

/* The first place of pattern[0, length) in text[0, size), NULL when there is none; patterns are short. */
const uint8_t *mk_find(const uint8_t *text, size_t size, const uint8_t *pattern, size_t length);

/* Appends text[0, size) to `out`, the step's pattern replaced by its content from left to right. */
mk_status mk_step_replace(const mk_step *step, const uint8_t *text, size_t size, mk_bytes *out);

/* The normalised text, in one of the two buffers or, when there is nothing to do, where it was. */
mk_status mk_normalize(const mk_steps *steps, const mk_matcher *matcher, mk_bytes buffers[2], const uint8_t **text,
                       size_t *size);

/* The parts of the file around the model (tokenizer_parts.c, tokenizer_pre_load.c). The post-processor comes last: it
 * names tokens. */
mk_status mk_load_normalizer(mk_tokenizer *tokenizer, const json_t *object);
mk_status mk_load_decoder(mk_tokenizer *tokenizer, const json_t *object);
mk_status mk_load_pre_tokenizer(mk_tokenizer *tokenizer, const json_t *object);
mk_status mk_load_post_processor(mk_tokenizer *tokenizer, const json_t *object);
mk_status mk_load_word(mk_tokenizer *tokenizer);
void mk_steps_free(mk_steps *steps);
void mk_pre_steps_free(mk_pre_steps *steps);

/* Of those loaders: a string of the file, and a pattern that PCRE2 runs. `where` names them. */
mk_status mk_copy_text(const char *where, const char *key, const json_t *value, bool may_be_empty, uint8_t **out,
                       size_t *length);
mk_status mk_copy_character(const char *where, const char *key, const json_t *value, uint8_t **out, size_t *length);
mk_status mk_load_prepend_scheme(const char *where, const json_t *object, mk_prepend *out);
mk_status mk_regex_compile(mk_tokenizer *tokenizer, const char *where, const char *pattern, pcre2_code **out);
/* A pattern as the file has it. *empty: it may match the empty text. */
mk_status mk_regex_load(mk_tokenizer *tokenizer, const char *where, const json_t *pattern, pcre2_code **out,
                        bool *empty);

/* What both loaders use: true or false, and the message for what is not computed here. */
mk_status mk_load_bool(const json_t *object, const char *where, const char *key, bool absent, bool *out);
mk_status mk_unsupported(const char *field, const json_t *value, const char *supported);
bool mk_is_type(const json_t *object, const char *type);

#endif
