/* The steps that rewrite text: literal replacement, and normalisers as lists of steps. */
#include <string.h>

#include "models/tokenizer_internal.h"

mk_status mk_bytes_append(mk_bytes *text, const void *bytes, size_t length) {
  MK_TRY(mk_grow(&text->bytes, &text->capacity, text->length + length + 1, 1)); /* never NULL, room for a NUL */
  if (length > 0) {
    memcpy(text->bytes + text->length, bytes, length);
  }
  text->length += length;
  return MK_OK;
}

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

mk_status mk_normalize(const mk_steps *steps, mk_bytes buffers[2], const uint8_t **text, size_t *size) {
  for (size_t i = 0; i<steps->count && * size> 0; i++) {
    const mk_step *step = &steps->list[i];
    mk_bytes *out = &buffers[i % 2];
    out->length = 0;
    if (step->kind == MK_STEP_PREPEND) {
      MK_TRY(mk_bytes_append(out, step->content, step->content_length));
      MK_TRY(mk_bytes_append(out, *text, *size));
    } else {
      MK_TRY(mk_step_replace(step, *text, *size, out));
    }
    *text = out->bytes;
    *size = out->length;
  }
  return MK_OK;
}

void mk_steps_free(mk_steps *steps) {
  for (size_t i = 0; i < steps->count; i++) {
    mk_free(steps->list[i].pattern);
    mk_free(steps->list[i].content);
  }
  steps->count = 0;
}
