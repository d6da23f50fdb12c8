/* Pre-tokenisers: a text becomes pieces that no merge may leave. See tokenizer_internal.h.
 *
 * Hugging Face passes a list of all pieces through each step in turn. Here a piece goes through all steps before the
 * next one, so that no list is made; a step that rewrites its piece has memory of its own. */
#include <string.h>

#include "text/tokenizer_internal.h"
#include "text/unicode.h"

/* Steps of PCRE2 per match: some for any text, and a few for each of its bytes. */
enum { FEW_STEPS = 1000000, STEPS_PER_BYTE = 64, HEAP_KIB = 1 << 20 };

mk_status mk_matcher_begin(const mk_tokenizer *t, size_t size, mk_matcher *out) {
  out->data = pcre2_match_data_create(1, t->context);
  out->context = pcre2_match_context_create(t->context);
  if (out->data == NULL || out->context == NULL) {
    mk_matcher_end(out);
    return mk_error(MK_ERR_RUNTIME, "out of memory for the match data of PCRE2");
  }
  const size_t most = UINT32_MAX / (2 * STEPS_PER_BYTE);
  pcre2_set_match_limit(out->context, FEW_STEPS + STEPS_PER_BYTE * (uint32_t)(size < most ? size : most));
  pcre2_set_heap_limit(out->context, HEAP_KIB);
  return MK_OK;
}

void mk_matcher_end(mk_matcher *matcher) {
  pcre2_match_data_free(matcher->data);
  pcre2_match_context_free(matcher->context);
  *matcher = (mk_matcher){0};
}

mk_status mk_match(const mk_matcher *matcher, const pcre2_code *code, const uint8_t *text, size_t size, size_t at,
                   bool *found, size_t *begin, size_t *end) {
  int rc = pcre2_match(code, text, size, at, PCRE2_NO_UTF_CHECK, matcher->data, matcher->context);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
    rc = pcre2_match(code, text, size, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, matcher->data, matcher->context);
  }
  *found = rc >= 0;
  if (*found) {
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(matcher->data);
    *begin = range[0];
    *end = range[1];
  } else if (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_DEPTHLIMIT || rc == PCRE2_ERROR_HEAPLIMIT) {
    return mk_error(MK_ERR_USAGE,
                    "a pattern of tokenizer.json takes too many steps on this text of %zu bytes; shorten the text, or "
                    "mend the pattern",
                    size);
  } else if (rc != PCRE2_ERROR_NOMATCH) {
    PCRE2_UCHAR message[128] = "";
    pcre2_get_error_message(rc, message, sizeof message);
    return mk_error(MK_ERR_RUNTIME, "splitting %zu bytes of text: PCRE2: %s", size, (const char *)message);
  }
  return MK_OK;
}

mk_status mk_next_match(const mk_matcher *matcher, const pcre2_code *code, const uint8_t *text, size_t size,
                        mk_matches *m, bool *found, size_t *begin, size_t *end) {
  for (*found = false; !m->done;) {
    MK_TRY(mk_match(matcher, code, text, size, m->at, found, begin, end));
    if (!*found || *begin != *end || !m->any || m->last != *end) {
      m->done = !*found;
      m->any = true;
      m->at = m->last = *found ? *end : 0;
      return MK_OK;
    }
    size_t length = 1; /* an empty match where the last one ended: on by a character */
    if (m->at < size) {
      mk_utf8_step(text + m->at, size - m->at, &length);
    }
    m->at += length;
    m->done = m->at > size;
    *found = false;
  }
  return MK_OK;
}

static mk_status run_step(mk_pre *pre, size_t step, const uint8_t *text, size_t size, bool first);

/* Pieces as they come out of a Split. One piece is held back, since what comes after it may join it. */
typedef struct cutter {
  mk_pre *pre;
  const mk_pre_step *step;
  const uint8_t *text;
  size_t begin, end;
  bool holds, matched; /* matched: what came last is a match */
  bool first;
} cutter;

static mk_status let_go(cutter *c) {
  const bool holds = c->holds;
  c->holds = false;
  return holds && c->end > c->begin ? run_step(c->pre, (size_t)(c->step - c->pre->tokenizer->pre.list) + 1,
                                               c->text + c->begin, c->end - c->begin, c->first && c->begin == 0)
                                    : MK_OK;
}

/* Whether [begin, end) belongs to the piece that is held. */
static bool joins(const cutter *c, bool match) {
  switch (c->step->behavior) {
    case MK_CONTIGUOUS:
      return c->holds && match == c->matched;
    case MK_MERGED_WITH_PREVIOUS:
      return c->holds && match && !c->matched;
    case MK_MERGED_WITH_NEXT:
      return c->holds && !match && c->matched;
    case MK_ISOLATED:
    case MK_REMOVED:
      break;
  }
  return false;
}

static mk_status cut(cutter *c, size_t begin, size_t end, bool match) {
  match = match != c->step->invert;
  if (joins(c, match)) {
    c->end = end;
  } else {
    MK_TRY(let_go(c));
    c->begin = begin;
    c->end = end;
    c->holds = !(match && c->step->behavior == MK_REMOVED);
  }
  c->matched = match;
  return MK_OK;
}

/* The next match of the step's pattern or text. */
static mk_status next(const mk_pre *pre, const mk_pre_step *s, const uint8_t *text, size_t size, mk_matches *m,
                      bool *found, size_t *begin, size_t *end) {
  if (s->code != NULL) {
    return mk_next_match(pre->matcher, s->code, text, size, m, found, begin, end);
  }
  const uint8_t *at = mk_find(text + m->at, size - m->at, s->text, s->length);
  *found = at != NULL;
  if (*found) {
    *begin = (size_t)(at - text);
    m->at = *end = *begin + s->length;
  }
  return MK_OK;
}

static mk_status split(mk_pre *pre, const mk_pre_step *s, const uint8_t *text, size_t size, bool first) {
  cutter c = {.pre = pre, .step = s, .text = text, .first = first};
  mk_matches m = {0};
  size_t done = 0, begin = 0, end = 0;
  for (bool found = true; found; done = found ? end : done) {
    MK_TRY(next(pre, s, text, size, &m, &found, &begin, &end));
    const size_t stop = found ? begin : size;
    if (stop > done) {
      MK_TRY(cut(&c, done, stop, false));
    }
    if (found) {
      MK_TRY(cut(&c, begin, end, true));
    }
  }
  return let_go(&c);
}

/* Spaces become the replacement character, one goes in front if need be, and pieces start with it. */
static mk_status metaspace(mk_pre *pre, size_t step, const uint8_t *text, size_t size, bool first) {
  const mk_pre_step *s = &pre->tokenizer->pre.list[step];
  mk_bytes *spaced = &pre->text[step][0];
  const mk_step replace = {
      .pattern = (uint8_t[]){' '}, .pattern_length = 1, .content = s->text, .content_length = s->length};
  const bool marked = text[0] == ' ' || (size >= s->length && memcmp(text, s->text, s->length) == 0);
  spaced->length = 0;
  if (!marked && (s->prepend == MK_PREPEND_ALWAYS || (s->prepend == MK_PREPEND_FIRST && first))) {
    MK_TRY(mk_bytes_append(spaced, s->text, s->length));
  }
  MK_TRY(mk_step_replace(&replace, text, size, spaced));
  return s->cut ? split(pre, s, spaced->bytes, spaced->length, first)
                : run_step(pre, step + 1, spaced->bytes, spaced->length, first);
}

/* A piece goes on as bytes to the model, or as the characters for them to a further step. */
static mk_status pass_bytes(mk_pre *pre, size_t step, const uint8_t *text, size_t size, bool first) {
  if (size == 0) {
    return MK_OK;
  }
  mk_bytes *characters = &pre->text[step][1];
  characters->length = 0;
  if (step + 1 == pre->tokenizer->pre.count) {
    return run_step(pre, step + 1, text, size, first);
  }
  for (size_t i = 0; i < size; i++) {
    uint8_t character[2];
    MK_TRY(mk_bytes_append(characters, character, mk_byte_to_utf8(text[i], character)));
  }
  return run_step(pre, step + 1, characters->bytes, characters->length, first);
}

static mk_status byte_level(mk_pre *pre, size_t step, const uint8_t *text, size_t size, bool first) {
  const mk_pre_step *s = &pre->tokenizer->pre.list[step];
  mk_matches m = {0};
  size_t done = 0, begin = 0, end = 0;
  if (s->prefix && text[0] != ' ') {
    mk_bytes *spaced = &pre->text[step][0];
    spaced->length = 0;
    MK_TRY(mk_bytes_append(spaced, " ", 1));
    MK_TRY(mk_bytes_append(spaced, text, size));
    text = spaced->bytes;
    size = spaced->length;
  }
  for (bool found = s->code != NULL; found; done = found ? end : done) {
    MK_TRY(mk_next_match(pre->matcher, s->code, text, size, &m, &found, &begin, &end));
    if (found) { /* what the pattern skips is a piece too */
      MK_TRY(pass_bytes(pre, step, text + done, begin - done, first && done == 0));
      MK_TRY(pass_bytes(pre, step, text + begin, end - begin, first && begin == 0));
    }
  }
  return pass_bytes(pre, step, text + done, size - done, first && done == 0);
}

static mk_status run_step(mk_pre *pre, size_t step, const uint8_t *text, size_t size, bool first) {
  if (step == pre->tokenizer->pre.count) {
    return mk_bpe_encode(pre->tokenizer, pre->bpe, text, size, pre->tokens);
  }
  switch (pre->tokenizer->pre.list[step].kind) {
    case MK_PRE_SPLIT:
      return split(pre, &pre->tokenizer->pre.list[step], text, size, first);
    case MK_PRE_METASPACE:
      return metaspace(pre, step, text, size, first);
    case MK_PRE_BYTE_LEVEL:
      break;
  }
  return byte_level(pre, step, text, size, first);
}

mk_status mk_pre_encode(mk_pre *pre, const uint8_t *text, size_t size, bool first) {
  return size == 0 ? MK_OK : run_step(pre, 0, text, size, first);
}

void mk_pre_free(mk_pre *pre) {
  for (size_t i = 0; i < MK_PRE_STEPS; i++) {
    mk_free(pre->text[i][0].bytes);
    mk_free(pre->text[i][1].bytes);
  }
}

void mk_pre_steps_free(mk_pre_steps *steps) {
  for (size_t i = 0; i < steps->count; i++) {
    pcre2_code_free(steps->list[i].code);
    mk_free(steps->list[i].text);
  }
  steps->count = 0;
}
