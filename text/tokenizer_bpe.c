/* Byte-pair merging of one piece of text.
 *
 * Symbols are a linked list over the bytes (byte level) or the characters (else). All pairs that merge wait in a heap,
 * lowest rank first and leftmost among equals; a merge replaces its left symbol, unlinks the right one, and pushes the
 * two pairs that arise. Entries whose pair has changed meanwhile are dropped when they come up. n log n for n bytes,
 * whatever the text. */
#include <string.h>

#include "text/tokenizer_internal.h"
#include "text/unicode.h"

#define NONE UINT32_MAX
enum { PIECE_LIMIT = 1 << 30 }; /* bytes: positions are 32-bit */

mk_status mk_tokens_push(mk_tokens *tokens, uint32_t id) {
  MK_TRY(mk_grow(&tokens->ids, &tokens->capacity, tokens->count + 1, sizeof *tokens->ids));
  tokens->ids[tokens->count++] = id;
  return MK_OK;
}

void mk_bpe_free(mk_bpe *bpe) {
  mk_free(bpe->symbols);
  mk_free(bpe->heap);
  mk_free(bpe->text);
}

static void sift_down(mk_bpe *bpe, size_t at) {
  uint64_t *heap = bpe->heap;
  const size_t count = bpe->heap_count;
  const uint64_t value = heap[at];
  for (size_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
    bpe->work++;
    if (child + 1 < count && heap[child + 1] < heap[child]) {
      child++;
    }
    if (heap[child] >= value) {
      break;
    }
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = value;
}

static uint64_t heap_pop(mk_bpe *bpe) {
  uint64_t top = bpe->heap[0];
  bpe->heap[0] = bpe->heap[--bpe->heap_count];
  if (bpe->heap_count > 0) {
    sift_down(bpe, 0);
  }
  return top;
}

/* Puts the pair that starts at `position` in the heap, if it merges. */
static mk_status push_pair(const mk_tokenizer *tokenizer, mk_bpe *bpe, uint32_t position, bool ordered) {
  const mk_bpe_symbol *left = &bpe->symbols[position];
  if (left->next == NONE) {
    return MK_OK;
  }
  uint32_t rank = mk_merges_find(&tokenizer->merges, left->id, bpe->symbols[left->next].id);
  if (rank == MK_NO_ID) {
    return MK_OK;
  }
  MK_TRY(mk_grow(&bpe->heap, &bpe->heap_capacity, bpe->heap_count + 1, sizeof *bpe->heap));
  size_t at = bpe->heap_count++;
  const uint64_t value = (uint64_t)rank << 32 | position;
  while (ordered && at > 0 && bpe->heap[(at - 1) / 2] > value) {
    bpe->heap[at] = bpe->heap[(at - 1) / 2];
    at = (at - 1) / 2;
    bpe->work++;
  }
  bpe->heap[at] = value;
  return MK_OK;
}

static void add_symbol(mk_bpe *bpe, uint32_t *count, uint32_t id) {
  bpe->symbols[*count] = (mk_bpe_symbol){.id = id, .previous = *count == 0 ? NONE : *count - 1, .next = *count + 1};
  (*count)++;
  bpe->work++;
}

/* The id of a character of the piece, MK_NO_ID when the model lacks it. */
static uint32_t character_id(const mk_tokenizer *tokenizer, const uint8_t *text, size_t length) {
  const uint32_t id = length == 1 ? tokenizer->byte_ids[text[0]] : mk_tokenizer_lookup(tokenizer, text, length);
  return id != MK_NO_ID && tokenizer->pieces[id].model ? id : MK_NO_ID;
}

/* The symbols of a character that the model lacks, if it has all of its bytes as <0xNN>. */
static bool add_fallback(const mk_tokenizer *tokenizer, mk_bpe *bpe, const uint8_t *text, size_t length,
                         uint32_t *count) {
  uint8_t character[2]; /* of the byte alphabet */
  if (tokenizer->byte_level) {
    length = mk_byte_to_utf8(text[0], character);
    text = character;
  }
  for (size_t i = 0; i < length; i++) {
    if (tokenizer->fallback_ids[text[i]] == MK_NO_ID) {
      return false;
    }
  }
  for (size_t i = 0; i < length; i++) {
    add_symbol(bpe, count, tokenizer->fallback_ids[text[i]]);
  }
  return true;
}

/* The symbols of the piece. Characters that the model lacks become bytes, else the unknown token, else nothing. The
 * unknown token waits for the next character that the model has, to be fused: bytes in between overtake it, as they do
 * in Hugging Face tokenizers. */
static void make_symbols(const mk_tokenizer *tokenizer, mk_bpe *bpe, const uint8_t *text, size_t size,
                         uint32_t *count) {
  const bool byte_level = tokenizer->byte_level;
  bool unknown = false;
  size_t length = 1;
  for (size_t at = 0; at < size; at += length) {
    if (!byte_level) {
      mk_utf8_step(text + at, size - at, &length);
    }
    const uint32_t id = character_id(tokenizer, text + at, length);
    if (id == MK_NO_ID && (add_fallback(tokenizer, bpe, text + at, length, count) || tokenizer->unknown == MK_NO_ID)) {
      continue;
    }
    if (unknown && (id != MK_NO_ID || !tokenizer->fuse_unknown)) {
      add_symbol(bpe, count, tokenizer->unknown);
    }
    unknown = id == MK_NO_ID;
    if (!unknown) {
      add_symbol(bpe, count, id);
    }
  }
  if (unknown) {
    add_symbol(bpe, count, tokenizer->unknown);
  }
}

static mk_status start(const mk_tokenizer *tokenizer, mk_bpe *bpe, const uint8_t *text, size_t length,
                       uint32_t *count) {
  *count = 0;
  /* A character of the byte alphabet has up to two bytes to fall back to. */
  const size_t most = tokenizer->byte_level ? 2 * length : length;
  MK_TRY(mk_grow(&bpe->symbols, &bpe->symbol_capacity, most, sizeof *bpe->symbols));
  make_symbols(tokenizer, bpe, text, length, count);
  if (*count == 0) {
    return MK_OK;
  }
  bpe->symbols[*count - 1].next = NONE;
  bpe->heap_count = 0;
  for (uint32_t i = 0; i < *count; i++) {
    MK_TRY(push_pair(tokenizer, bpe, i, false));
  }
  for (size_t i = bpe->heap_count / 2; i-- > 0;) {
    sift_down(bpe, i);
  }
  return MK_OK;
}

static mk_status merge_all(const mk_tokenizer *tokenizer, mk_bpe *bpe) {
  const mk_merges *merges = &tokenizer->merges;
  while (bpe->heap_count > 0) {
    uint64_t top = heap_pop(bpe);
    uint32_t position = (uint32_t)top;
    mk_bpe_symbol *left = &bpe->symbols[position];
    if (left->id == MK_NO_ID || left->next == NONE) {
      continue;
    }
    mk_bpe_symbol *right = &bpe->symbols[left->next];
    uint32_t result = merges->results[top >> 32];
    uint32_t rank = mk_merges_find(merges, left->id, right->id);
    if (rank == MK_NO_ID || merges->results[rank] != result) {
      continue;
    }
    left->id = result;
    left->next = right->next;
    right->id = MK_NO_ID;
    if (left->next != NONE) {
      bpe->symbols[left->next].previous = position;
    }
    if (left->previous != NONE) {
      MK_TRY(push_pair(tokenizer, bpe, left->previous, true));
    }
    MK_TRY(push_pair(tokenizer, bpe, position, true));
  }
  return MK_OK;
}

/* The whole piece as one token, for vocabularies that say so (ignore_merges). */
static mk_status find_whole(const mk_tokenizer *tokenizer, mk_bpe *bpe, const uint8_t *text, size_t length,
                            uint32_t *id) {
  *id = MK_NO_ID;
  if (length > tokenizer->longest) {
    return MK_OK;
  }
  if (tokenizer->byte_level) {
    size_t used = 0;
    MK_TRY(mk_grow(&bpe->text, &bpe->text_capacity, 2 * length, 1));
    for (size_t i = 0; i < length; i++) {
      used += mk_byte_to_utf8(text[i], bpe->text + used);
    }
    text = bpe->text;
    length = used;
  }
  *id = mk_tokenizer_lookup(tokenizer, text, length);
  if (*id != MK_NO_ID && !tokenizer->pieces[*id].model) {
    *id = MK_NO_ID;
  }
  return MK_OK;
}

mk_status mk_bpe_encode(const mk_tokenizer *tokenizer, mk_bpe *bpe, const uint8_t *text, size_t length,
                        mk_tokens *inout) {
  if (length > PIECE_LIMIT) {
    return mk_error(MK_ERR_USAGE, "a piece of %zu bytes of normalised text: at most %d can be merged; shorten the text",
                    length, PIECE_LIMIT);
  }
  if (tokenizer->ignore_merges) {
    uint32_t id;
    MK_TRY(find_whole(tokenizer, bpe, text, length, &id));
    if (id != MK_NO_ID) {
      return mk_tokens_push(inout, id);
    }
  }
  uint32_t count;
  MK_TRY(start(tokenizer, bpe, text, length, &count));
  if (count == 0) {
    return MK_OK;
  }
  MK_TRY(merge_all(tokenizer, bpe));
  for (uint32_t at = 0; at != NONE; at = bpe->symbols[at].next) {
    MK_TRY(mk_tokens_push(inout, bpe->symbols[at].id));
  }
  return MK_OK;
}
