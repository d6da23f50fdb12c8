/* tokenizer.json with a BPE model: text <-> token ids, the same ids as Hugging Face tokenizers.
 *
 * A tokenizer is immutable after loading: any thread may encode; a decoder belongs to one thread. Failure: MK_ERR_FILE
 * for a malformed or unsupported tokenizer.json (the unsupported part is named), MK_ERR_RUNTIME for memory. Any bytes
 * may be encoded; bytes that are not UTF-8 are read as U+FFFD, as Python's errors="replace" does.
 *
 * Read: model BPE with byte_fallback, unk_token, fuse_unk and ignore_merges; normaliser NFC, NFD, NFKC, NFKD,
 * Lowercase, Strip, Prepend, Replace or a Sequence of them; pre-tokeniser Split, Digits, Punctuation, Whitespace,
 * WhitespaceSplit, ByteLevel, Metaspace or Sequences of them, in any order, with patterns as tokenizer_regex.h says;
 * post-processor TemplateProcessing, ByteLevel or both; decoder ByteLevel, Replace, ByteFallback, Metaspace, Strip (of
 * the start), Fuse or a Sequence of them, after Fuse only Strip; added tokens with all their flags. The rest is
 * refused. "truncation" and "padding" are left to the caller, as transformers does. A character that the vocabulary
 * lacks, without a fallback, gives no token, as in Hugging Face tokenizers; so does an id without a token when
 * decoding. */
#ifndef MK_TOKENIZER_H
#define MK_TOKENIZER_H

#include "text/bytes.h"

typedef struct mk_tokenizer mk_tokenizer;
typedef struct mk_decoder mk_decoder;

typedef struct mk_tokens { /* owned by the caller: mk_tokens_free */
  uint32_t *ids;
  size_t count, capacity;
} mk_tokens;

/* Each id once, with gaps at most; ids of added tokens that the model lacks as Hugging Face counts them; every merge
 * must join two known pieces into a third. */
mk_status mk_tokenizer_parse(const char *json, size_t length, mk_tokenizer **out);
/* Reads DIR/tokenizer.json, and what the files beside it add to its tokens (tokenizer_added.h); `vocab` is the model's
 * vocabulary: an id >= vocab may be listed, but is refused where a text gives it. */
mk_status mk_tokenizer_load(const char *directory, uint32_t vocab, mk_tokenizer **out);
void mk_tokenizer_free(mk_tokenizer *tokenizer);
/* One more than the highest id. */
size_t mk_tokenizer_vocab(const mk_tokenizer *tokenizer);
/* The id of an exact token string (special tokens included); false when there is none. */
bool mk_tokenizer_find(const mk_tokenizer *tokenizer, const char *piece, size_t length, uint32_t *id);

/* Appends the ids of text[0, length). `special`: add what the file's post-processor adds (a BOS), as HF's
 * add_special_tokens. Special tokens written in the text are recognised, as HF does. At most 1 GiB of text at once
 * (MK_ERR_USAGE), no id that the model lacks (MK_ERR_USAGE, naming the token), none on which a pattern's steps multiply
 * (MK_ERR_USAGE). n log n time for n bytes, whatever they are, unless a pattern looks far ahead in vain from every
 * character: then n^2. */
mk_status mk_tokenizer_encode(const mk_tokenizer *tokenizer, const char *text, size_t length, bool special,
                              mk_tokens *inout);
void mk_tokens_free(mk_tokens *tokens);

/* Streaming decode: push ids, get bytes. Never splits a UTF-8 character; finish() gives what is left (U+FFFD for an
 * incomplete character, as HF) and ends the text. The concatenation equals HF's decode(ids, skip_special_tokens=True)
 * to the byte. Therefore a run of <0xNN> comes out when it ends, since one bad byte spoils all of it; and the first
 * space of a text is dropped where the file says so: to show the continuation of a prompt, push the prompt too. */
mk_status mk_decoder_new(const mk_tokenizer *tokenizer, mk_decoder **out);
void mk_decoder_free(mk_decoder *decoder);
/* *text is NUL-terminated, valid until the next call on this decoder; *length bytes, possibly 0. */
mk_status mk_decoder_push(mk_decoder *decoder, uint32_t id, const char **text, size_t *length);
mk_status mk_decoder_finish(mk_decoder *decoder, const char **text, size_t *length);

/* The bytes that one token stands for in the midst of a text, appended to *out: perhaps part of a character. *special:
 * the decoder shows nothing of it, and they are its name. An id without a token has none. */
mk_status mk_tokenizer_bytes(const mk_tokenizer *tokenizer, uint32_t id, mk_bytes *out, bool *special);

#endif
