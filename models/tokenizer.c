/* Encoding and decoding with loaded tables. See tokenizer.h.
 *
 * Text goes through three sieves: added tokens found in the raw text, added tokens found in normalised text (nothing is
 * normalised here, the order still matters), and the split pattern; what remains is merged piece by piece. */
#include <string.h>

#include "models/tokenizer_internal.h"
#include "models/unicode.h"

enum { TEXT_LIMIT = 1 << 30 }; /* bytes: positions in a piece are 32-bit */

typedef struct encoder {
  const mk_tokenizer *tokenizer;
  mk_bpe bpe;
  pcre2_match_data *match;
  mk_tokens *tokens;
} encoder;

size_t mk_tokenizer_vocab(const mk_tokenizer *tokenizer) { return tokenizer->count; }

bool mk_tokenizer_find(const mk_tokenizer *tokenizer, const char *piece, size_t length, uint32_t *id) {
  uint32_t found = mk_tokenizer_lookup(tokenizer, (const uint8_t *)piece, length);
  if (found != MK_NO_ID) {
    *id = found;
  }
  return found != MK_NO_ID;
}

void mk_tokens_free(mk_tokens *tokens) {
  mk_free(tokens->ids);
  *tokens = (mk_tokens){0};
}

/* The first token in [low, high) whose byte at `depth` is at least `byte`; all of them are longer than `depth`. */
static size_t lower_bound(const mk_added *tokens, size_t low, size_t high, size_t depth, unsigned byte) {
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (tokens[middle].text[depth] < byte) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/* The longest token that text starts with, NULL when there is none. */
static const mk_added *longest_at(const mk_added_set *set, const uint8_t *text, size_t size) {
  const mk_added *best = NULL;
  size_t low = 0, high = set->count;
  for (size_t depth = 0; low < high; depth++) {
    if (set->tokens[low].length == depth) { /* shorter ones sort first */
      best = &set->tokens[low++];
    }
    if (depth == size) {
      break;
    }
    low = lower_bound(set->tokens, low, high, depth, text[depth]);
    high = lower_bound(set->tokens, low, high, depth, text[depth] + 1u);
  }
  return best;
}

static const mk_added *find_added(const mk_added_set *set, const uint8_t *text, size_t size, size_t *at) {
  for (; *at < size; (*at)++) {
    const mk_added *found = set->first[text[*at]] ? longest_at(set, text + *at, size - *at) : NULL;
    if (found != NULL) {
      return found;
    }
  }
  return NULL;
}

static mk_status split_and_merge(encoder *e, const uint8_t *text, size_t size) {
  const mk_tokenizer *t = e->tokenizer;
  size_t at = 0;
  while (at < size) {
    int rc = pcre2_match(t->split, text, size, at, PCRE2_NO_UTF_CHECK, e->match, t->match_context);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
      PCRE2_UCHAR message[128] = "";
      pcre2_get_error_message(rc, message, sizeof message);
      return mk_error(MK_ERR_RUNTIME, "splitting %zu bytes of text: PCRE2: %s", size, (const char *)message);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(e->match);
    const size_t begin = rc < 0 ? size : range[0];
    const size_t end = rc < 0 ? size : range[1];
    if (begin > at) { /* what the pattern skips is a piece too */
      MK_TRY(mk_bpe_encode(t, &e->bpe, text + at, begin - at, e->tokens));
    }
    if (end > begin) {
      MK_TRY(mk_bpe_encode(t, &e->bpe, text + begin, end - begin, e->tokens));
    }
    at = end;
  }
  return MK_OK;
}

static mk_status encode_level(encoder *e, unsigned level, const uint8_t *text, size_t size) {
  if (level == 2) {
    return split_and_merge(e, text, size);
  }
  const mk_added_set *set = &e->tokenizer->added[level];
  size_t done = 0;      /* the text before this is encoded */
  size_t at = 0;        /* the search goes on here: white space that a token took may belong to the next one too */
  size_t space_end = 0; /* the text from the last token to here is white space: not to be scanned again */
  const mk_added *found;
  while ((found = find_added(set, text, size, &at)) != NULL) {
    size_t begin = at;
    size_t end = at + found->length;
    at = end;
    if (found->lstrip && begin > done) {
      begin -= mk_utf8_trailing_space(text + done, begin - done);
    }
    if (found->rstrip) {
      space_end = end < space_end ? space_end : end + mk_utf8_leading_space(text + end, size - end);
      end = space_end;
    }
    if (begin > done) {
      MK_TRY(encode_level(e, level + 1, text + done, begin - done));
    }
    MK_TRY(mk_tokens_push(e->tokens, found->id));
    done = end;
  }
  return done < size ? encode_level(e, level + 1, text + done, size - done) : MK_OK;
}

static mk_status push_template(const mk_tokenizer *t, bool before, mk_tokens *tokens) {
  const size_t first = before ? 0 : t->template_before;
  const size_t count = before ? t->template_before : t->template_after;
  for (size_t i = 0; i < count; i++) {
    MK_TRY(mk_tokens_push(tokens, t->template_ids[first + i]));
  }
  return MK_OK;
}

mk_status mk_tokenizer_encode(const mk_tokenizer *tokenizer, const char *text, size_t length, bool special,
                              mk_tokens *inout) {
  if (length > TEXT_LIMIT) {
    return mk_error(MK_ERR_USAGE, "text of %zu bytes: at most %d can be encoded at once", length, TEXT_LIMIT);
  }
  encoder e = {.tokenizer = tokenizer, .tokens = inout};
  const uint8_t *bytes = (const uint8_t *)text;
  uint8_t *repaired = NULL;
  mk_status status = MK_OK;
  e.match = pcre2_match_data_create_from_pattern(tokenizer->split, tokenizer->context);
  if (e.match == NULL) {
    return mk_error(MK_ERR_RUNTIME, "out of memory for the match data of PCRE2");
  }
  if (mk_utf8_valid_prefix(bytes, length) < length) {
    size_t consumed;
    MK_TRY_GOTO(mk_alloc(length, 3, &repaired), done);
    length = mk_utf8_replace(bytes, length, true, repaired, &consumed);
    bytes = repaired;
  }
  if (special) {
    MK_TRY_GOTO(push_template(tokenizer, true, inout), done);
  }
  MK_TRY_GOTO(encode_level(&e, 0, bytes, length), done);
  if (special) {
    MK_TRY_GOTO(push_template(tokenizer, false, inout), done);
  }
done:
  mk_free(repaired);
  mk_bpe_free(&e.bpe);
  pcre2_match_data_free(e.match);
  return status;
}

struct mk_decoder {
  const mk_tokenizer *tokenizer;
  uint8_t pending[4]; /* the start of a character that is not complete yet */
  size_t pending_count;
  uint8_t *joined, *text;
  size_t joined_capacity, text_capacity;
};

mk_status mk_decoder_new(const mk_tokenizer *tokenizer, mk_decoder **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  (*out)->tokenizer = tokenizer;
  return MK_OK;
}

void mk_decoder_free(mk_decoder *decoder) {
  if (decoder != NULL) {
    mk_free(decoder->joined);
    mk_free(decoder->text);
    mk_free(decoder);
  }
}

/* Emits what is complete of pending bytes + bytes[0, count). */
static mk_status emit(mk_decoder *d, const uint8_t *bytes, size_t count, bool final, const char **text,
                      size_t *length) {
  const size_t total = d->pending_count + count;
  MK_TRY(mk_grow(&d->joined, &d->joined_capacity, total + 1, 1));
  MK_TRY(mk_grow(&d->text, &d->text_capacity, 3 * total + 1, 1));
  memcpy(d->joined, d->pending, d->pending_count);
  if (count > 0) {
    memcpy(d->joined + d->pending_count, bytes, count);
  }
  size_t consumed;
  *length = mk_utf8_replace(d->joined, total, final, d->text, &consumed);
  d->text[*length] = '\0';
  *text = (const char *)d->text;
  d->pending_count = total - consumed;
  memcpy(d->pending, d->joined + consumed, d->pending_count);
  return MK_OK;
}

mk_status mk_decoder_push(mk_decoder *decoder, uint32_t id, const char **text, size_t *length) {
  const mk_tokenizer *t = decoder->tokenizer;
  const bool shown = id < t->count && !t->pieces[id].special;
  return shown ? emit(decoder, t->arena + t->pieces[id].bytes, t->pieces[id].byte_count, false, text, length)
               : emit(decoder, NULL, 0, false, text, length);
}

mk_status mk_decoder_finish(mk_decoder *decoder, const char **text, size_t *length) {
  return emit(decoder, NULL, 0, true, text, length);
}
