/* Upper and lower case, as Python has them in every script: one character may become several, and a sigma that ends a
 * word has a form of its own. */
#include <string.h>

#include "text/letters.h"
#include "text/template_strings.h"

enum { SIGMA = 0x3a3, SMALL_SIGMA = 0x3c3, FINAL_SIGMA = 0x3c2 };

static size_t character_before(const char *text, size_t at) {
  do {
    at--;
  } while (((unsigned char)text[at] & 0xc0) == 0x80);
  return at;
}

/* Whether the sigma at `at`, of `length` bytes, ends a word of text[start, end): letters before it, none after
 * it. */
static bool ends_word(const char *text, size_t start, size_t end, size_t at, size_t length) {
  unsigned flags = 0;
  for (size_t i = at; i > start;) {
    i = character_before(text, i);
    size_t bytes;
    flags = mk_letter_flags(mk_jinja_decode(text + i, &bytes));
    if ((flags & MK_LETTER_IGNORABLE) == 0) {
      break;
    }
    flags = 0;
  }
  if ((flags & MK_LETTER_CASED) == 0) {
    return false;
  }
  for (size_t i = at + length, bytes; i < end; i += bytes) {
    flags = mk_letter_flags(mk_jinja_decode(text + i, &bytes));
    if ((flags & MK_LETTER_IGNORABLE) == 0) {
      return (flags & MK_LETTER_CASED) == 0;
    }
  }
  return true;
}

static mk_letter_case case_of(jinja_case how, bool first, unsigned flags) {
  switch (how) {
    case CASE_UPPER:
      return MK_CASE_UPPER;
    case CASE_FOLD:
      return MK_CASE_FOLD;
    case CASE_SWAP:
      return (flags & MK_LETTER_UPPER) != 0 ? MK_CASE_LOWER : MK_CASE_UPPER;
    case CASE_LOWER:
      return MK_CASE_LOWER;
    case CASE_WORDS:
      return first ? MK_CASE_UPPER : MK_CASE_LOWER;
    default:
      return first ? MK_CASE_TITLE : MK_CASE_LOWER;
  }
}

/* The end of the word, or of what stands between words, that starts at `at`. */
static size_t word_end(jinja_value text, size_t at) {
  bool between = false;
  for (size_t start = at, length; at < text.length; at += length) {
    uint32_t c = mk_jinja_decode(text.text + at, &length);
    bool separates = mk_jinja_is_space(c) || (c != 0 && c < 0x80 && strchr("-({[<", (int)c) != NULL);
    if (at > start && separates != between) {
      break;
    }
    between = separates;
  }
  return at;
}

mk_status mk_jinja_case(jinja *m, jinja_value text, jinja_case how, jinja_value *out) {
  char *bytes;
  size_t written = 0, start = 0, end = text.length;
  bool first = true;
  MK_TRY(mk_jinja_step(m, (size_t)4 * text.length));
  MK_TRY(mk_jinja_alloc(&m->pool, text.length, 3,
                        &bytes)); /* no image of a character takes more than three times its bytes */
  for (size_t at = 0, length; at < text.length; at += length) {
    if (how == CASE_WORDS && (at == 0 || at == end)) {
      end = word_end(text, at);
      first = true;
    }
    uint32_t c = mk_jinja_decode(text.text + at, &length), image[3];
    unsigned flags = mk_letter_flags(c);
    mk_letter_case to = case_of(how, first, flags);
    size_t count = mk_letter_to_case(c, to, image);
    if (how == CASE_SWAP && (flags & (MK_LETTER_UPPER | MK_LETTER_LOWER)) == 0) {
      image[0] = c; /* a letter in title case stays as it is */
      count = 1;
    }
    if (c == SIGMA && to == MK_CASE_LOWER) {
      image[0] = ends_word(text.text, start, end, at, length) ? FINAL_SIGMA : SMALL_SIGMA;
    }
    for (size_t i = 0; i < count; i++) {
      written += mk_jinja_encode(image[i], bytes + written);
    }
    if (how == CASE_WORDS && first) {
      start = at + length; /* Python looks at the rest of the word alone */
    }
    first = how == CASE_TITLE && (flags & MK_LETTER_CASED) == 0;
  }
  *out = mk_jinja_string(bytes, written);
  out->markup = text.markup;
  return MK_OK;
}
