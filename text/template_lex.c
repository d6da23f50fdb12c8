/* Source to tokens: the text between tags with its white space as trim_blocks and lstrip_blocks leave it, and the tags'
 * words. */
#include <string.h>

#include "text/template_literals.h"

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

/* White space at text[from], in bytes. */
static size_t space_at(const lexer *l, size_t from) {
  size_t at = from;
  while (at < l->length) {
    size_t length;
    if (!mk_jinja_is_space(mk_jinja_decode(l->text + at, &length))) {
      break;
    }
    at += length;
  }
  return at - from;
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
    advance(l, space_at(l, l->at));
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
  bool element = l->at > 0 && l->text[l->at - 1] == '.'; /* a.0.1 is two elements */
  size_t used;
  jinja_value value;
  MK_TRY(mk_jinja_read_number(l->line, l->text + l->at, l->length - l->at, element, &used, &value));
  MK_TRY(add(l, value.kind == JINJA_FLOAT ? TOKEN_FLOAT : TOKEN_INT, 0, value));
  advance(l, used);
  return MK_OK;
}

static mk_status string(lexer *l) {
  size_t used;
  jinja_value value;
  MK_TRY(mk_jinja_read_string(l->pool, l->line, l->text + l->at, l->length - l->at, &used, &value));
  MK_TRY(add(l, TOKEN_STRING, 0, value));
  advance(l, used);
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
    size_t space = space_at(l, l->at);
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

/* The length of `{% word` at text[at], with a sign and white space on both sides; 0: something else stands there. */
static size_t tag_start(const lexer *l, size_t at, const char *word) {
  size_t end = at + 2, length = strlen(word);
  if (at + 2 > l->length || memcmp(l->text + at, "{%", 2) != 0) {
    return 0;
  }
  end += end < l->length && (l->text[end] == '-' || l->text[end] == '+');
  end += space_at(l, end);
  if (l->length - end < length || memcmp(l->text + end, word, length) != 0) {
    return 0;
  }
  end += length;
  return end + space_at(l, end) - at;
}

/* The length of `{% raw %}`, after which a line end stays, or of `{% raw -%}` with the white space after it. */
static size_t raw_start(const lexer *l, size_t at) {
  size_t end = at + tag_start(l, at, "raw");
  if (end == at) {
    return 0;
  }
  bool minus = end < l->length && l->text[end] == '-';
  end += minus;
  if (l->length - end < 2 || memcmp(l->text + end, "%}", 2) != 0) {
    return 0;
  }
  end += 2;
  return end + (minus ? space_at(l, end) : 0) - at;
}

/* What stands between {% raw %}, whose `start` bytes are at hand, and {% endraw %} is text. */
static mk_status raw_text(lexer *l, size_t start) {
  uint32_t line = l->line;
  advance(l, start);
  l->line_start = l->text[l->at - 1] == '\n';
  for (size_t end = l->at; end < l->length; end++) {
    size_t tail = l->text[end] == '{' ? tag_start(l, end, "endraw") : 0;
    lexer behind = *l;
    behind.at = end + tail;
    if (tail == 0 || behind.at >= l->length || !take_end(&behind, "%}")) {
      continue;
    }
    size_t kept = trim_before(l, l->text + l->at, end - l->at, l->text[end + 2], false);
    if (kept > 0) {
      MK_TRY(add(l, TOKEN_TEXT, 0, mk_jinja_string(l->text + l->at, kept)));
    }
    advance(l, behind.at - l->at);
    l->line_start = behind.line_start;
    return MK_OK;
  }
  return mk_jinja_fail(line, "the raw text that starts here does not end; write {%% endraw %%} where it should");
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
  size_t raw = what == '%' ? raw_start(l, end) : 0;
  size_t kept = last ? end - start : trim_before(l, l->text + start, end - start, sign, what == '{');
  if (kept > 0) {
    MK_TRY(add(l, TOKEN_TEXT, 0, mk_jinja_string(l->text + start, kept)));
  }
  advance(l, end - start);
  if (last) {
    return MK_OK;
  }
  if (raw > 0) {
    return raw_text(l, raw);
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
