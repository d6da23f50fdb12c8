/* The steps that rewrite text: literal replacement, and normalisers as lists of steps. */
#include <string.h>

#include "text/tokenizer_internal.h"
#include "text/unicode.h"

const uint8_t *mk_find(const uint8_t *text, size_t size, const uint8_t *pattern, size_t length) {
  const uint8_t *end = text + size;
  while ((size_t)(end - text) >= length) {
    const uint8_t *at = memchr(text, pattern[0], (size_t)(end - text) - length + 1);
    if (at == NULL || memcmp(at, pattern, length) == 0) {
      return at;
    }
    text = at + 1;
  }
  return NULL;
}

mk_status mk_step_replace(const mk_step *step, const uint8_t *text, size_t size, mk_bytes *out) {
  const uint8_t *at = text, *found;
  const uint8_t *end = text + size;
  while ((found = mk_find(at, (size_t)(end - at), step->pattern, step->pattern_length)) != NULL) {
    MK_TRY(mk_bytes_append(out, at, (size_t)(found - at)));
    MK_TRY(mk_bytes_append(out, step->content, step->content_length));
    at = found + step->pattern_length;
  }
  return mk_bytes_append(out, at, (size_t)(end - at));
}

static mk_status replace_matches(const mk_step *step, const mk_matcher *matcher, const uint8_t *text, size_t size,
                                 mk_bytes *out) {
  mk_matches m = {0};
  size_t done = 0, begin = 0, end = 0;
  for (bool found = true; found;) {
    MK_TRY(mk_next_match(matcher, step->code, text, size, &m, &found, &begin, &end));
    if (found) {
      MK_TRY(mk_bytes_append(out, text + done, begin - done));
      MK_TRY(mk_bytes_append(out, step->content, step->content_length));
      done = end;
    }
  }
  return mk_bytes_append(out, text + done, size - done);
}

static mk_status trim(const mk_step *step, const uint8_t *text, size_t size, mk_bytes *out) {
  const size_t left = (step->limit & 1) != 0 ? mk_utf8_leading_space(text, size) : 0;
  const size_t right = (step->limit & 2) != 0 ? mk_utf8_trailing_space(text + left, size - left) : 0;
  return mk_bytes_append(out, text + left, size - left - right);
}

static mk_status apply(const mk_step *step, const mk_matcher *matcher, const uint8_t *text, size_t size,
                       mk_bytes *out) {
  switch (step->kind) {
    case MK_STEP_PREPEND:
      MK_TRY(mk_bytes_append(out, step->content, step->content_length));
      return mk_bytes_append(out, text, size);
    case MK_STEP_REPLACE_REGEX:
      return replace_matches(step, matcher, text, size, out);
    case MK_STEP_NORMAL_FORM:
      return mk_normal_form_append(step->form, text, size, out);
    case MK_STEP_LOWERCASE:
      return mk_lowercase_append(text, size, out);
    case MK_STEP_TRIM:
      return trim(step, text, size, out);
    default:
      return mk_step_replace(step, text, size, out);
  }
}

mk_status mk_normalize(const mk_steps *steps, const mk_matcher *matcher, mk_bytes buffers[2], const uint8_t **text,
                       size_t *size) {
  for (size_t i = 0; i<steps->count && * size> 0; i++) {
    const mk_step *step = &steps->list[i];
    mk_bytes *out = &buffers[i % 2];
    out->length = 0;
    MK_TRY(apply(step, matcher, *text, *size, out));
    *text = out->bytes;
    *size = out->length;
  }
  return MK_OK;
}

void mk_steps_free(mk_steps *steps) {
  for (size_t i = 0; i < steps->count; i++) {
    mk_free(steps->list[i].pattern);
    mk_free(steps->list[i].content);
    pcre2_code_free(steps->list[i].code);
  }
  steps->count = 0;
}
