/* Encoding with loaded tables. See tokenizer.h.
 *
 * Text goes through three sieves: added tokens found in the raw text; added tokens found in what is between them,
 * normalised part by part; and the pre-tokeniser. What remains is merged piece by piece. */
#include <string.h>

#include "models/tokenizer_internal.h"
#include "models/unicode.h"

enum { TEXT_LIMIT = 1 << 30 }; /* bytes: positions in a piece are 32-bit */

typedef struct encoder {
  const mk_tokenizer *tokenizer;
  mk_bpe bpe;
  mk_bytes normalized[2], spaced; /* of the part at hand */
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

static mk_status match(encoder *e, const pcre2_code *code, const uint8_t *text, size_t size, size_t at, bool *found) {
  int rc = pcre2_match(code, text, size, at, PCRE2_NO_UTF_CHECK, e->match, e->tokenizer->match_context);
  *found = rc >= 0;
  if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
    PCRE2_UCHAR message[128] = "";
    pcre2_get_error_message(rc, message, sizeof message);
    return mk_error(MK_ERR_RUNTIME, "splitting %zu bytes of text: PCRE2: %s", size, (const char *)message);
  }
  return MK_OK;
}

static mk_status split_by_pattern(encoder *e, const uint8_t *text, size_t size) {
  const mk_tokenizer *t = e->tokenizer;
  size_t at = 0;
  while (at < size) {
    bool found;
    MK_TRY(match(e, t->split, text, size, at, &found));
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(e->match);
    const size_t begin = found ? range[0] : size;
    const size_t end = found ? range[1] : size;
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

/* Spaces become the replacement character, one goes in front if need be, and pieces start with it. */
static mk_status split_by_metaspace(encoder *e, const uint8_t *text, size_t size, bool first) {
  const mk_tokenizer *t = e->tokenizer;
  const uint8_t *mark = t->metaspace.replacement;
  const size_t length = t->metaspace.length;
  const mk_step replace = {.pattern = (uint8_t[]){' '},
                           .pattern_length = 1,
                           .content = (uint8_t *)(uintptr_t)mark,
                           .content_length = length};
  const bool marked = text[0] == ' ' || (size >= length && memcmp(text, mark, length) == 0);
  e->spaced.length = 0;
  if (!marked && (t->metaspace.prepend == MK_PREPEND_ALWAYS || (t->metaspace.prepend == MK_PREPEND_FIRST && first))) {
    MK_TRY(mk_bytes_append(&e->spaced, mark, length));
  }
  MK_TRY(mk_step_replace(&replace, text, size, &e->spaced));
  const uint8_t *at = e->spaced.bytes, *end = at + e->spaced.length;
  while (t->metaspace.split && at < end) { /* a character of UTF-8 is found nowhere but at a character */
    const uint8_t *next = mk_find(at + 1, (size_t)(end - at) - 1, mark, length);
    if (next == NULL) {
      break;
    }
    MK_TRY(mk_bpe_encode(t, &e->bpe, at, (size_t)(next - at), e->tokens));
    at = next;
  }
  return mk_bpe_encode(t, &e->bpe, at, (size_t)(end - at), e->tokens);
}

/* `first`: the part begins where the whole text begins. */
static mk_status pre_tokenize(encoder *e, const uint8_t *text, size_t size, bool first) {
  switch (e->tokenizer->pre_tokenizer) {
    case MK_PRE_BYTE_LEVEL:
      return split_by_pattern(e, text, size);
    case MK_PRE_METASPACE:
      return split_by_metaspace(e, text, size, first);
    case MK_PRE_NONE:
      break;
  }
  return mk_bpe_encode(e->tokenizer, &e->bpe, text, size, e->tokens);
}

/* Whether text[begin, end) has no character of a word beside it. */
static mk_status stands_alone(encoder *e, const uint8_t *text, size_t size, size_t begin, size_t end, bool *alone) {
  size_t before = begin;
  bool word = false;
  *alone = false;
  while (before > 0 && (text[--before] & 0xc0) == 0x80) {
  }
  if (begin > 0) {
    MK_TRY(match(e, e->tokenizer->word, text + before, begin - before, 0, &word));
  }
  if (!word && end < size) {
    size_t length;
    mk_utf8_step(text + end, size - end, &length);
    MK_TRY(match(e, e->tokenizer->word, text + end, length, 0, &word));
  }
  *alone = !word;
  return MK_OK;
}

static mk_status encode_level(encoder *e, unsigned level, const uint8_t *text, size_t size, bool first) {
  if (level == 2) {
    return pre_tokenize(e, text, size, first);
  }
  if (level == 1) {
    MK_TRY(mk_normalize(&e->tokenizer->normalizer, e->normalized, &text, &size));
  }
  const mk_added_set *set = &e->tokenizer->added[level];
  size_t done = 0;      /* the text before this is encoded */
  size_t at = 0;        /* the search goes on here: white space that a token took may belong to the next one too */
  size_t space_end = 0; /* the text from the last token to here is white space: not to be scanned again */
  const mk_added *found;
  while ((found = find_added(set, text, size, &at)) != NULL) {
    size_t begin = at;
    size_t end = at + found->length;
    bool alone = true;
    at = end;
    if (found->single_word) {
      MK_TRY(stands_alone(e, text, size, begin, end, &alone));
    }
    if (!alone) {
      continue;
    }
    if (found->lstrip) {
      begin = begin > done ? begin - mk_utf8_trailing_space(text + done, begin - done) : done;
    }
    if (found->rstrip) {
      space_end = end < space_end ? space_end : end + mk_utf8_leading_space(text + end, size - end);
      end = space_end;
    }
    if (begin > done) {
      MK_TRY(encode_level(e, level + 1, text + done, begin - done, first && done == 0));
    }
    if (begin < end) { /* else the token before has taken it all */
      MK_TRY(mk_tokens_push(e->tokens, found->id));
    }
    done = end;
  }
  return done < size ? encode_level(e, level + 1, text + done, size - done, first && done == 0) : MK_OK;
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
  e.match = pcre2_match_data_create(1, tokenizer->context);
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
  MK_TRY_GOTO(encode_level(&e, 0, bytes, length, true), done);
  if (special) {
    MK_TRY_GOTO(push_template(tokenizer, false, inout), done);
  }
done:
  mk_free(repaired);
  mk_free(e.normalized[0].bytes);
  mk_free(e.normalized[1].bytes);
  mk_free(e.spaced.bytes);
  mk_bpe_free(&e.bpe);
  pcre2_match_data_free(e.match);
  return status;
}
