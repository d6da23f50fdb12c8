/* Encoding with loaded tables. See tokenizer.h.
 *
 * Text goes through three sieves: added tokens found in the raw text; added tokens found in what is between them,
 * normalised part by part; and the pre-tokeniser. What remains is merged piece by piece. */
#include <string.h>

#include "text/tokenizer_internal.h"
#include "text/unicode.h"

enum { TEXT_LIMIT = 1 << 30 }; /* bytes: positions in a piece are 32-bit */

typedef struct encoder {
  const mk_tokenizer *tokenizer;
  mk_bpe bpe;
  mk_bytes normalized[2]; /* of the part at hand */
  mk_matcher matcher;
  mk_pre pre;
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

/* Whether text[begin, end) has no character of a word beside it. */
static mk_status stands_alone(encoder *e, const uint8_t *text, size_t size, size_t begin, size_t end, bool *alone) {
  size_t before = begin, from, to;
  bool word = false;
  *alone = false;
  while (before > 0 && (text[--before] & 0xc0) == 0x80) {
  }
  if (begin > 0) {
    MK_TRY(mk_match(&e->matcher, e->tokenizer->word, text + before, begin - before, 0, &word, &from, &to));
  }
  if (!word && end < size) {
    size_t length;
    mk_utf8_step(text + end, size - end, &length);
    MK_TRY(mk_match(&e->matcher, e->tokenizer->word, text + end, length, 0, &word, &from, &to));
  }
  *alone = !word;
  return MK_OK;
}

static mk_status encode_level(encoder *e, unsigned level, const uint8_t *text, size_t size, bool first) {
  if (level == 2) {
    return mk_pre_encode(&e->pre, text, size, first);
  }
  if (level == 1) {
    MK_TRY(mk_normalize(&e->tokenizer->normalizer, &e->matcher, e->normalized, &text, &size));
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

/* Mirrors of models list tokens that were never trained; the model has nothing for them. */
static mk_status check_ids(const mk_tokenizer *t, const mk_tokens *tokens, size_t first) {
  for (size_t i = first; i < tokens->count; i++) {
    const uint32_t id = tokens->ids[i];
    if (id >= t->model_vocab) {
      const mk_piece *piece = &t->pieces[id];
      return mk_error(
          MK_ERR_USAGE,
          "the text gives the token \"%.*s\" with the id %u, but the model's vocabulary has %u (vocab_size in "
          "config.json); keep it out of the text",
          (int)(piece->length < 100 ? piece->length : 100), (const char *)t->arena + piece->text, id, t->model_vocab);
    }
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
  const size_t before = inout->count;
  MK_TRY(mk_matcher_begin(tokenizer, length, &e.matcher));
  e.pre = (mk_pre){.tokenizer = tokenizer, .matcher = &e.matcher, .bpe = &e.bpe, .tokens = inout};
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
  status = check_ids(tokenizer, inout, before);
done:
  mk_free(repaired);
  mk_free(e.normalized[0].bytes);
  mk_free(e.normalized[1].bytes);
  mk_pre_free(&e.pre);
  mk_bpe_free(&e.bpe);
  mk_matcher_end(&e.matcher);
  return status;
}
