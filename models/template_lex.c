/* Source to tokens: the text between tags with its white space as trim_blocks and lstrip_blocks leave it, and the tags' words. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "models/template_internal.h"

typedef struct lexer {
  jinja_pool *pool;
  const char *text;
  size_t length, at;
  uint32_t line;
  bool line_start; /* the last tag took its line end with it */
  jinja_tokens *out;
} lexer;

static mk_status add(lexer *l, jinja_token_kind kind, uint16_t symbol, jinja_value value) {
  MK_TRY(mk_grow(&l->out->items, &l->out->capacity, l->out->count + 1, sizeof *l->out->items));
  l->out->items[l->out->count++] =
      (jinja_token){.kind = (uint8_t)kind, .symbol = symbol, .line = l->line, .value = value};
  return MK_OK;
}

static bool starts(const lexer *l, const char *word) {
  size_t length = strlen(word);
  return l->length - l->at >= length && memcmp(l->text + l->at, word, length) == 0;
}

static void advance(lexer *l, size_t bytes) {
  for (size_t end = l->at + bytes; l->at < end; l->at++) {
    l->line += l->text[l->at] == '\n';
  }
}

/* White space at l->at, in bytes. */
static size_t space_here(const lexer *l) {
  size_t at = l->at;
  while (at < l->length) {
    size_t length;
    if (!mk_jinja_is_space(mk_jinja_decode(l->text + at, &length))) {
      break;
    }
    at += length;
  }
  return at - l->at;
}

static size_t strip_end(const char *text, size_t length) {
  while (length > 0) {
    size_t start = length - 1, bytes;
    while (start > 0 && ((unsigned char)text[start] & 0xc0) == 0x80) {
      start--;
    }
    if (!mk_jinja_is_space(mk_jinja_decode(text + start, &bytes))) {
      break;
    }
    length = start;
  }
  return length;
}

/* The text in front of a tag that opens with `sign` (or none) loses what the tag takes from it. */
static size_t trim_before(const lexer *l, const char *text, size_t length, char sign, bool is_print) {
  if (sign == '-') {
    return strip_end(text, length);
  }
  if (sign == '+' || is_print) {
    return length;
  }
  size_t line = length;
  while (line > 0 && text[line - 1] != '\n') {
    line--;
  }
  bool at_line_start = line > 0 || l->line_start;
  size_t kept = strip_end(text, length);
  return at_line_start && kept <= line ? line : length;
}

/* Takes the end of a tag, whose mark of two characters is `mark`; false when it is not there. */
static bool take_end(lexer *l, const char *mark) {
  char sign = l->text[l->at];
  bool print = mark[0] == '}';
  bool signed_end =
      l->length - l->at >= 3 && (sign == '-' || (sign == '+' && !print)) && memcmp(l->text + l->at + 1, mark, 2) == 0;
  if (!signed_end && !starts(l, mark)) {
    return false;
  }
  size_t start = l->at;
  advance(l, signed_end ? 3 : 2);
  if (signed_end && sign == '-') {
    advance(l, space_here(l));
  } else if (!signed_end && !print && l->at < l->length && l->text[l->at] == '\n') {
    advance(l, 1);
  }
  l->line_start = l->at > start && l->text[l->at - 1] == '\n';
  return true;
}

static mk_status comment(lexer *l) {
  uint32_t line = l->line;
  for (; l->at < l->length; advance(l, 1)) {
    if (take_end(l, "#}")) {
      return MK_OK;
    }
  }
  return mk_jinja_fail(line, "the comment that starts here does not end; write #} where it should");
}

static bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static mk_status number(lexer *l) {
  size_t end = l->at;
  bool real = false;
  while (end < l->length && is_digit(l->text[end])) {
    end++;
  }
  bool element = l->at > 0 && l->text[l->at - 1] == '.'; /* a.0.1 is two elements */
  if (!element && end + 1 < l->length && l->text[end] == '.' && is_digit(l->text[end + 1])) {
    real = true;
    for (end++; end < l->length && is_digit(l->text[end]); end++) {
    }
  }
  if (!element && end < l->length && (l->text[end] | 32) == 'e') {
    size_t digits = end + 1 + (end + 1 < l->length && (l->text[end + 1] == '+' || l->text[end + 1] == '-'));
    if (digits < l->length && is_digit(l->text[digits])) {
      real = true;
      for (end = digits; end < l->length && is_digit(l->text[end]); end++) {
      }
    }
  }
  size_t length = end - l->at;
  char digits[64];
  if (length >= sizeof digits || (end < l->length && (is_name(l->text[end]))) ||
      (!real && length > 1 && l->text[l->at] == '0')) {
    return mk_jinja_fail(l->line, "the number '%.*s' is not supported; write it in plain decimal digits",
                         (int)(length < 40 ? length + 1 : 40), l->text + l->at);
  }
  memcpy(digits, l->text + l->at, length);
  digits[length] = 0;
  errno = 0;
  jinja_value value = real ? mk_jinja_float(strtod(digits, NULL)) : mk_jinja_int(strtoll(digits, NULL, 10));
  if (errno == ERANGE) {
    return mk_jinja_fail(l->line, "the number %s is out of range", digits);
  }
  advance(l, length);
  return add(l, real ? TOKEN_FLOAT : TOKEN_INT, 0, value);
}

static int hex_value(const char *text, size_t digits, uint32_t *out) {
  *out = 0;
  for (size_t i = 0; i < digits; i++) {
    char c = text[i];
    int digit = is_digit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
    if (digit < 0) {
      return -1;
    }
    *out = *out << 4 | (uint32_t)digit;
  }
  return 0;
}

/* One escape at text[0] == '\\'; *used bytes of it become *written bytes at out. */
static mk_status escape(const lexer *l, const char *text, size_t room, size_t *used, char *out, size_t *written) {
  static const char from[] = "ntrabfv\\'\"", to[] = "\n\t\r\a\b\f\v\\'\"";
  const char *known = text[1] == 0 ? NULL : strchr(from, text[1]);
  *used = 2;
  *written = 1;
  if (known != NULL) {
    *out = to[known - from];
    return MK_OK;
  }
  if (text[1] == '\n') {
    *written = 0;
    return MK_OK;
  }
  size_t digits = text[1] == 'x' ? 2 : text[1] == 'u' ? 4 : text[1] == 'U' ? 8 : 0;
  uint32_t character = 0;
  if (text[1] >= '0' && text[1] <= '7') {
    size_t n = 1;
    for (character = 0; n < 4 && n < room && text[n] >= '0' && text[n] <= '7'; n++) {
      character = character * 8 + (uint32_t)(text[n] - '0');
    }
    *used = n;
  } else if (digits > 0) {
    if (room < 2 + digits || hex_value(text + 2, digits, &character) != 0 || character > 0x10ffff ||
        (character >= 0xd800 && character < 0xe000)) {
      return mk_jinja_fail(l->line, "a string holds \\%c without the %zu hexadecimal digits of a character", text[1],
                           digits);
    }
    *used = 2 + digits;
  } else if (text[1] == 'N') {
    return mk_jinja_fail(l->line, "\\N{...} in a string is not supported; write the character itself");
  } else {
    *out = '\\'; /* an escape that Python does not know stays as it is */
    *used = 1;
    return MK_OK;
  }
  *written = mk_jinja_encode(character, out);
  return MK_OK;
}

static mk_status string(lexer *l) {
  char quote = l->text[l->at];
  size_t end = l->at + 1;
  while (end < l->length && l->text[end] != quote) {
    end += l->text[end] == '\\' ? 2 : 1;
  }
  if (end >= l->length) {
    return mk_jinja_fail(l->line, "the string that starts here does not end");
  }
  char *text;
  size_t length = 0;
  MK_TRY(mk_jinja_alloc(l->pool, end - l->at, 1, &text));
  for (size_t i = l->at + 1; i < end;) {
    if (l->text[i] != '\\') {
      text[length++] = l->text[i++];
      continue;
    }
    char decoded[4];
    size_t used, written;
    MK_TRY(escape(l, l->text + i, end - i, &used, decoded, &written));
    memcpy(text + length, decoded, written);
    length += written;
    i += used;
  }
  MK_TRY(add(l, TOKEN_STRING, 0, mk_jinja_string(text, length)));
  advance(l, end + 1 - l->at);
  return MK_OK;
}

static mk_status symbol(lexer *l, char *open, size_t *open_count) {
  static const char two[][3] = {"==", "!=", "<=", ">=", "**", "//"};
  for (size_t i = 0; i < sizeof two / sizeof two[0]; i++) {
    if (starts(l, two[i])) {
      MK_TRY(add(l, TOKEN_OPERATOR, JINJA_OPERATOR(two[i][0], two[i][1]), mk_jinja_string(l->text + l->at, 2)));
      advance(l, 2);
      return MK_OK;
    }
  }
  char c = l->text[l->at];
  if (c == 0 || strchr("+-*/%~[](){}<>=.:|,", c) == NULL) {
    size_t length;
    mk_jinja_decode(l->text + l->at, &length);
    return mk_jinja_fail(l->line, "unexpected character '%.*s'", (int)length, l->text + l->at);
  }
  if (strchr("([{", c) != NULL) {
    if (*open_count == MK_TEMPLATE_MAX_NESTING) {
      return mk_jinja_fail(l->line, "brackets are nested more than %d deep", MK_TEMPLATE_MAX_NESTING);
    }
    open[(*open_count)++] = c == '(' ? ')' : c == '[' ? ']' : '}';
  } else if (strchr(")]}", c) != NULL) {
    if (*open_count == 0 || open[*open_count - 1] != c) {
      return mk_jinja_fail(l->line, "unexpected '%c'", c);
    }
    (*open_count)--;
  }
  MK_TRY(add(l, TOKEN_OPERATOR, JINJA_OPERATOR(0, c), mk_jinja_string(l->text + l->at, 1)));
  advance(l, 1);
  return MK_OK;
}

/* The words of one tag up to and with its end. */
static mk_status tag(lexer *l, bool print) {
  char open[MK_TEMPLATE_MAX_NESTING];
  size_t open_count = 0;
  uint32_t line = l->line;
  const char *mark = print ? "}}" : "%}";
  while (l->at < l->length) {
    size_t space = space_here(l);
    if (open_count == 0 && take_end(l, mark)) {
      return add(l, print ? TOKEN_PRINT_END : TOKEN_BLOCK_END, 0, mk_jinja_literal(mark));
    }
    char c = l->text[l->at];
    if (space > 0) {
      advance(l, space);
    } else if (is_digit(c)) {
      MK_TRY(number(l));
    } else if (is_name(c)) {
      size_t end = l->at;
      while (end < l->length && (is_name(l->text[end]) || is_digit(l->text[end]))) {
        end++;
      }
      MK_TRY(add(l, TOKEN_NAME, 0, mk_jinja_string(l->text + l->at, end - l->at)));
      advance(l, end - l->at);
    } else if (c == '\'' || c == '"') {
      MK_TRY(string(l));
    } else {
      MK_TRY(symbol(l, open, &open_count));
    }
  }
  return mk_jinja_fail(line, "the tag that starts here does not end; write %s where it should", mark);
}

/* Text up to the next tag, then that tag. */
static mk_status piece(lexer *l) {
  size_t start = l->at, end = start;
  while (end < l->length && !(l->text[end] == '{' && end + 1 < l->length && strchr("{%#", l->text[end + 1]) != NULL &&
                              l->text[end + 1] != 0)) {
    end++;
  }
  bool last = end == l->length;
  char what = last ? '#' : l->text[end + 1];
  char sign = end + 2 < l->length ? l->text[end + 2] : 0;
  size_t kept = last ? end - start : trim_before(l, l->text + start, end - start, sign, what == '{');
  if (kept > 0) {
    MK_TRY(add(l, TOKEN_TEXT, 0, mk_jinja_string(l->text + start, kept)));
  }
  advance(l, end - start);
  if (last) {
    return MK_OK;
  }
  advance(l, sign == '-' || sign == '+' ? 3 : 2);
  l->line_start = false;
  if (what == '#') {
    return comment(l);
  }
  MK_TRY(add(l, what == '{' ? TOKEN_PRINT : TOKEN_BLOCK, 0, mk_jinja_string(l->text + end, 2)));
  return tag(l, what == '{');
}

/* Line ends become \n, and one at the very end goes. */
static mk_status normalise(jinja_pool *pool, const char *text, size_t length, lexer *l) {
  char *copy;
  size_t used = 0;
  MK_TRY(mk_jinja_alloc(pool, length + 1, 1, &copy));
  for (size_t i = 0; i < length; i++) {
    if (text[i] == '\r' && i + 1 < length && text[i + 1] == '\n') {
      continue;
    }
    copy[used++] = text[i] == '\r' ? '\n' : text[i];
  }
  l->text = copy;
  l->length = used > 0 && copy[used - 1] == '\n' ? used - 1 : used;
  return MK_OK;
}

mk_status mk_jinja_lex(jinja_pool *pool, const char *text, size_t length, jinja_tokens *out) {
  lexer l = {.pool = pool, .line = 1, .line_start = true, .out = out};
  MK_TRY(normalise(pool, text, length, &l));
  while (l.at < l.length) {
    MK_TRY(piece(&l));
  }
  return add(&l, TOKEN_END, 0, mk_jinja_literal("the end of the template"));
}
