/* See tokenizer_regex.h.
 *
 * What differs and is taken care of: \s has U+180E in PCRE2; \w is more outside of brackets than in them in Oniguruma;
 * the tables of Unicode (tokenizer_classes.c); $ and ^ are of lines in Oniguruma, . is all but a line feed; {n,m}+ is a
 * repetition of a repetition there; without case a pair of letters may stand for one character there (ss for U+00DF),
 * so such pairs are refused; an inline (?i) ends elsewhere. */
#include "text/tokenizer_regex.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/unicode.h"

enum { MOST_DEPTH = 32, MOST_TIMES = 1000, END = -1 };

typedef struct translator {
  const char *where;
  const uint8_t *at, *end;
  mk_bytes *out;
  bool caseless;
  uint32_t before; /* caseless: the letter directly before the one at hand; 0: none */
  unsigned depth;
} translator;

/* What has been read, for the quantifier after it. */
typedef struct piece {
  bool empty;     /* may match the empty text */
  bool assertion; /* matches nothing but a place */
} piece;

static mk_status refuse(const translator *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static mk_status refuse(const translator *t, const char *format, ...) {
  char what[160];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  return mk_error(MK_ERR_FILE, "%s: %s is not supported in a pattern", t->where, what);
}

static mk_status put(translator *t, const char *text) { return mk_bytes_append(t->out, text, strlen(text)); }

static mk_status put_character(translator *t, uint32_t c) {
  char text[16];
  const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  snprintf(text, sizeof text, plain ? "%c" : "\\x{%x}", c);
  return put(t, text);
}

static int peek(const translator *t) { return t->at < t->end ? *t->at : END; }

static bool take(translator *t, const char *text) {
  const size_t length = strlen(text);
  if ((size_t)(t->end - t->at) < length || memcmp(t->at, text, length) != 0) {
    return false;
  }
  t->at += length;
  return true;
}

static uint32_t next_character(translator *t) {
  size_t length;
  mk_utf8_step(t->at, (size_t)(t->end - t->at), &length);
  uint32_t c = length == 1 ? t->at[0] : t->at[0] & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; i++) {
    c = c << 6 | (t->at[i] & 0x3f);
  }
  t->at += length;
  return c;
}

static int hex_digit(int c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

/* Reads from `least` to `most` hexadecimal digits. */
static bool take_hex(translator *t, unsigned least, unsigned most, uint32_t *out) {
  unsigned count = 0;
  *out = 0;
  for (; count < most && hex_digit(peek(t)) >= 0; count++) {
    *out = *out << 4 | (uint32_t)hex_digit(*t->at++);
  }
  return count >= least && *out <= 0x10ffff && (*out < 0xd800 || *out > 0xdfff);
}

/* Reads, after the backslash, the character that an escape stands for. *is: false when it is no character. */
static mk_status escaped_character(translator *t, uint32_t *c, bool *is) {
  static const char letters[] = "nrtfvae", meant[] = "\n\r\t\f\v\a\x1b";
  const uint8_t *start = t->at;
  const int letter = peek(t);
  const char *found = letter > 0 ? strchr(letters, letter) : NULL;
  *is = true;
  if (found != NULL) {
    t->at++;
    *c = (uint8_t)meant[found - letters];
    return MK_OK;
  }
  if (letter == 'x' || letter == 'u') {
    t->at++;
    bool good = letter == 'u'  ? take_hex(t, 4, 4, c)
                : take(t, "{") ? take_hex(t, 1, 8, c) && take(t, "}")
                               : take_hex(t, 2, 2, c) && *c < 0x80;
    return good ? MK_OK : refuse(t, "\\%.*s", (int)(t->end - start < 12 ? t->end - start : 12), (const char *)start);
  }
  if (letter > ' ' && letter < 0x7f && !((letter | 32) >= 'a' && (letter | 32) <= 'z') &&
      !(letter >= '0' && letter <= '9')) {
    *c = (uint32_t)*t->at++;
    return MK_OK;
  }
  *is = false;
  return MK_OK;
}

/* Reads, after the backslash, the class that an escape stands for, as it goes in brackets. *negated: all but that. */
static mk_status escaped_class(translator *t, bool bracketed, bool *negated) {
  const int letter = peek(t);
  bool known;
  *negated = letter == 'S' || letter == 'D' || letter == 'W' || letter == 'P';
  t->at += letter != END;
  switch (letter) {
    case 's':
    case 'S':
      return put(t, MK_CLASS_SPACE);
    case 'w':
    case 'W':
      return put(t, bracketed ? MK_CLASS_WORD : MK_CLASS_WORD MK_CLASS_LATIN_NUMBERS);
    case 'd':
    case 'D':
      return mk_class_property("Nd", 2, t->out, &known);
    case 'p':
    case 'P': {
      const uint8_t *close = t->at < t->end ? memchr(t->at, '}', (size_t)(t->end - t->at)) : NULL;
      if (close == NULL || !take(t, "{")) {
        return refuse(t, "\\%c without {...}", letter);
      }
      if (take(t, "^")) {
        *negated = !*negated;
      }
      const char *name = (const char *)t->at;
      const size_t length = (size_t)(close - t->at);
      MK_TRY(mk_class_property(name, length, t->out, &known));
      t->at = close + 1;
      return known ? MK_OK : refuse(t, "\\p{%.*s}", (int)(length < 60 ? length : 60), name);
    }
    default:
      return letter == END ? refuse(t, "a backslash at the end") : refuse(t, "\\%c", letter < 0x80 ? letter : '?');
  }
}

static bool is_letter(uint32_t c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }

/* Translates a character outside of brackets. */
static mk_status literal(translator *t, uint32_t c) {
  if (t->caseless) {
    static const char *const joined[] = {"ss", "st", "ff", "fi", "fl"}; /* single characters fold to them */
    const uint32_t letter = is_letter(c) ? c | 32 : 0;
    if (c >= 0x80) {
      return refuse(t, "a character beyond ASCII within (?i)");
    }
    for (size_t i = 0; i < sizeof joined / sizeof joined[0]; i++) {
      if (t->before == (uint8_t)joined[i][0] && letter == (uint8_t)joined[i][1]) {
        return refuse(t, "\"%s\" within (?i)", joined[i]);
      }
    }
    t->before = letter;
  }
  return put_character(t, c);
}

/* Reads one character, or the low end of a range. *is: false for a class, which has been appended. */
static mk_status bracket_item(translator *t, uint32_t *c, bool *is) {
  *is = true;
  if (!take(t, "\\")) {
    *c = next_character(t);
    return MK_OK;
  }
  MK_TRY(escaped_character(t, c, is));
  if (*is) {
    return MK_OK;
  }
  const bool space = peek(t) == 'S';
  bool negated;
  if (t->caseless) {
    return refuse(t, "a class within (?i)");
  }
  if (space) { /* PCRE2's own lacks what its \s has too much */
    t->at++;
    return put(t, "\\S\\x{180e}");
  }
  const int letter = peek(t);
  MK_TRY(escaped_class(t, true, &negated));
  return negated ? refuse(t, "\\%c in brackets", letter) : MK_OK;
}

/* Translates a class in brackets, after its [. */
static mk_status bracket(translator *t) {
  bool first = true, closed = false; /* closed: what came last cannot begin a range */
  MK_TRY(put(t, "["));
  if (take(t, "^")) {
    if (t->caseless) {
      return refuse(t, "[^...] within (?i)");
    }
    MK_TRY(put(t, "^"));
  }
  for (; peek(t) != ']' || first; first = false) {
    uint32_t low, high;
    bool is;
    if (peek(t) == END) {
      return refuse(t, "[ without ]");
    }
    if (peek(t) == ']' || peek(t) == '[' || (t->end - t->at > 1 && memcmp(t->at, "&&", 2) == 0)) {
      return refuse(t, "\"%s\" in brackets", peek(t) == ']' ? "]" : peek(t) == '[' ? "[" : "&&");
    }
    const bool hyphen = peek(t) == '-';
    const bool last = t->end - t->at > 1 && t->at[1] == ']';
    if (hyphen && !first && !last) {
      return refuse(t, "a - after %s in brackets", closed ? "a class or range" : "a character");
    }
    MK_TRY(bracket_item(t, &low, &is));
    closed = !is;
    if (!is) {
      continue;
    }
    high = low;
    if (!hyphen && peek(t) == '-' && t->end - t->at > 1 && t->at[1] != ']') {
      t->at++;
      if (peek(t) == '[') {
        return refuse(t, "\"[\" in brackets");
      }
      MK_TRY(bracket_item(t, &high, &is));
      if (!is || high < low) {
        return refuse(t, "a range that does not go up");
      }
      closed = true;
    }
    if (t->caseless && high >= 0x80) {
      return refuse(t, "a character beyond ASCII within (?i)");
    }
    MK_TRY(put_character(t, low));
    if (high != low) {
      MK_TRY(put(t, "-"));
      MK_TRY(put_character(t, high));
    }
  }
  t->at++;
  return put(t, "]");
}

static mk_status alternatives(translator *t, bool *empty);

/* Translates a group, after its (. */
static mk_status group(translator *t, piece *out) {
  static const struct {
    const char *source, *meant;
    bool assertion, caseless;
  } openings[] = {{"?:", "(?:", false, false},  {"?i:", "(?i:", false, true}, {"?>", "(?>", false, false},
                  {"?=", "(?=", true, false},   {"?!", "(?!", true, false},   {"?<=", "(?<=", true, false},
                  {"?<!", "(?<!", true, false}, {"", "(?:", false, false}}; /* nobody asks what a group matched */
  const bool before = t->caseless;
  size_t i = 0;
  while (!take(t, openings[i].source)) {
    i++;
  }
  if (openings[i].source[0] == 0 && (peek(t) == '?' || peek(t) == '*')) {
    const ptrdiff_t left = t->end - t->at;
    return refuse(t, "(%.*s", (int)(left < 4 ? left : 4), (const char *)t->at);
  }
  if (t->depth++ == MOST_DEPTH) {
    return refuse(t, "more than %d groups in one another", MOST_DEPTH);
  }
  t->caseless = t->caseless || openings[i].caseless;
  t->before = 0;
  MK_TRY(put(t, openings[i].meant));
  MK_TRY(alternatives(t, &out->empty));
  if (!take(t, ")")) {
    return refuse(t, "( without )");
  }
  t->before = 0;
  t->caseless = before;
  t->depth--;
  out->assertion = openings[i].assertion;
  out->empty = out->empty || out->assertion;
  return put(t, ")");
}

static mk_status escape(translator *t) {
  uint32_t c;
  bool is, negated;
  MK_TRY(escaped_character(t, &c, &is));
  if (is) {
    return literal(t, c);
  }
  if (t->caseless) {
    return refuse(t, "a class within (?i)");
  }
  const size_t start = t->out->length;
  MK_TRY(put(t, "[ ")); /* the second byte becomes ^ where all but the class is meant */
  MK_TRY(escaped_class(t, false, &negated));
  if (negated) {
    t->out->bytes[start + 1] = '^';
  } else {
    memmove(t->out->bytes + start + 1, t->out->bytes + start + 2, t->out->length - start - 2);
    t->out->length--;
  }
  return put(t, "]");
}

static mk_status atom(translator *t, piece *out) {
  *out = (piece){0};
  const uint32_t before = t->before;
  t->before = 0;
  switch (peek(t)) {
    case '(':
      t->at++;
      return group(t, out);
    case '[':
      t->at++;
      return bracket(t);
    case '\\':
      t->at++;
      t->before = before;
      return escape(t);
    case '.':
      t->at++;
      return put(t, "[^\\n]");
    case '^':
      t->at++;
      *out = (piece){.empty = true, .assertion = true};
      return put(t, "(?:\\A|(?<=\\n)(?!\\z))");
    case '$':
      t->at++;
      *out = (piece){.empty = true, .assertion = true};
      return put(t, "(?=\\n|\\z)");
    case '*':
    case '+':
    case '?':
    case '{':
      return refuse(t, "%c after nothing that could be repeated", peek(t));
    default:
      t->before = before;
      return literal(t, next_character(t));
  }
}

static mk_status number(translator *t, unsigned *out, bool *is) {
  unsigned value = 0;
  *is = false;
  for (; peek(t) >= '0' && peek(t) <= '9'; *is = true) {
    value = 10 * value + (unsigned)(*t->at++ - '0');
    if (value > MOST_TIMES) {
      return refuse(t, "a repetition of more than %d", MOST_TIMES);
    }
  }
  *out = value;
  return MK_OK;
}

/* Reads {n}, {n,}, {n,m} or {,m}, after the {. */
static mk_status interval(translator *t, size_t start, unsigned *low, bool *unbounded, bool *exact) {
  char text[48];
  unsigned high;
  bool has_low, has_high;
  MK_TRY(number(t, low, &has_low));
  const bool comma = take(t, ",");
  high = *low;
  has_high = has_low;
  if (comma) {
    MK_TRY(number(t, &high, &has_high));
  }
  if (!take(t, "}") || !(has_low || has_high) || (has_high && high < *low)) {
    return refuse(t, "a { that is no repetition");
  }
  *unbounded = comma && !has_high;
  *exact = !comma;
  if (*low == 1 && peek(t) == '+') { /* once or more, by whatever steps; these would try all the ways to add up */
    return put(t, "+");
  }
  if (peek(t) == '+') { /* of the repetition, not possessive */
    MK_TRY(put(t, "    "));
    uint8_t *bytes = t->out->bytes;
    memmove(bytes + start + 3, bytes + start, t->out->length - start - 4);
    memcpy(bytes + start, "(?:", 3);
    t->out->length--;
  }
  snprintf(text, sizeof text, *unbounded ? "{%u,}" : "{%u,%u}", *low, high);
  return put(t, text);
}

static bool is_quantifier(int c) { return c == '*' || c == '+' || c == '?' || c == '{'; }

/* Translates the quantifier of the piece that was appended from `start` on. */
static mk_status quantifier(translator *t, size_t start, piece *p) {
  const int sign = peek(t);
  bool unbounded = sign == '*' || sign == '+', exact = false, again = false;
  unsigned low = sign == '+' ? 1 : 0;
  if (!is_quantifier(sign)) {
    return MK_OK;
  }
  if (p->assertion || (t->caseless && sign == '{')) {
    return refuse(t, p->assertion ? "a repetition of a place" : "{...} within (?i)");
  }
  t->at++;
  if (sign == '{') {
    MK_TRY(interval(t, start, &low, &unbounded, &exact));
  } else {
    MK_TRY(put(t, sign == '*' ? "*" : sign == '+' ? "+" : "?"));
  }
  if (exact && peek(t) == '?') {
    return refuse(t, "{n}?");
  }
  if (sign == '{' && peek(t) == '+') {
    t->at++;
    again = true;
    MK_TRY(put(t, low == 1 ? "" : ")+"));
  } else if (peek(t) == '?' || peek(t) == '+') {
    MK_TRY(put(t, *t->at++ == '?' ? "?" : "+"));
  }
  if (((unbounded || again) && p->empty) || (again && low == 0)) {
    return refuse(t, "an endless repetition of what may be empty");
  }
  if (is_quantifier(peek(t))) {
    return refuse(t, "a repetition of a repetition");
  }
  p->empty = p->empty || low == 0;
  t->before = 0;
  return MK_OK;
}

/* Translates alternatives, up to the ) or the end. */
static mk_status alternatives(translator *t, bool *empty) {
  bool all = true; /* of the alternative at hand: every piece may be empty */
  *empty = false;
  while (peek(t) != ')' && peek(t) != END) {
    piece p;
    if (take(t, "|")) {
      *empty = *empty || all;
      all = true;
      t->before = 0;
      MK_TRY(put(t, "|"));
      continue;
    }
    const size_t start = t->out->length;
    MK_TRY(atom(t, &p));
    MK_TRY(quantifier(t, start, &p));
    all = all && p.empty;
  }
  *empty = *empty || all;
  return MK_OK;
}

mk_status mk_regex_translate(const char *where, const char *pattern, size_t length, mk_bytes *out, bool *empty) {
  const uint8_t *bytes = (const uint8_t *)pattern;
  translator t = {.where = where, .at = bytes, .end = bytes + length, .out = out};
  if (length == 4 && memcmp(pattern, "\\s+$", 4) == 0) {
    /* A run of spaces that fails at its first character fails at all: without this, every one would be tried, in n^2
     * steps. */
    *empty = false;
    return mk_bytes_append(out, "(?:\\G|(?<![" MK_CLASS_SPACE "]))[" MK_CLASS_SPACE "]+(?=\\n|\\z)",
                           sizeof "(?:\\G|(?<![" MK_CLASS_SPACE "]))[" MK_CLASS_SPACE "]+(?=\\n|\\z)");
  }
  t.caseless = take(&t, "(?i)");
  MK_TRY(put(&t, t.caseless ? "(?i:" : "(?:"));
  MK_TRY(alternatives(&t, empty));
  if (peek(&t) != END) {
    return refuse(&t, ") without (");
  }
  return mk_bytes_append(out, ")", 2);
}
