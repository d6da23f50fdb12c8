/* What stands between operators: constants, names, brackets, calls, elements, filters and tests. */
#include <string.h>

#include "text/template_internal.h"
#include "text/template_parser.h"

static mk_status constant(jinja_parser *p, jinja_value value, jinja_node **out) {
  MK_TRY(mk_jinja_new_node(p, NODE_CONSTANT, out));
  (*out)->value = value;
  return MK_OK;
}

/* Expressions separated by commas up to `end`, which is taken; a comma may follow the last. */
static mk_status elements(jinja_parser *p, char end, jinja_node **out) {
  jinja_node **last = out;
  *out = NULL;
  while (!mk_jinja_skip_char(p, end)) {
    if (last != out) {
      MK_TRY(mk_jinja_expect_char(p, ','));
      if (mk_jinja_skip_char(p, end)) {
        break;
      }
    }
    MK_TRY(mk_jinja_parse_expression(p, last));
    last = &(*last)->next;
  }
  return MK_OK;
}

static mk_status dict(jinja_parser *p, jinja_node **out) {
  uint32_t line = p->token[-1].line;
  jinja_node *first = NULL, **last = &first;
  while (!mk_jinja_skip_char(p, '}')) {
    if (first != NULL) {
      MK_TRY(mk_jinja_expect_char(p, ','));
      if (mk_jinja_skip_char(p, '}')) {
        break;
      }
    }
    MK_TRY(mk_jinja_parse_expression(p, last));
    last = &(*last)->next;
    MK_TRY(mk_jinja_expect_char(p, ':'));
    MK_TRY(mk_jinja_parse_expression(p, last));
    last = &(*last)->next;
  }
  return mk_jinja_make(p, NODE_DICT, line, first, NULL, out);
}

/* Parses, after '(' or up to the end of a tag: one expression, or several as a tuple. */
mk_status mk_jinja_parse_tuple(jinja_parser *p, bool parenthesised, jinja_node **out) {
  uint32_t line = p->token->line;
  jinja_node *first = NULL, **last = &first;
  bool several = parenthesised && mk_jinja_at_char(p, ')');
  while (!(parenthesised && mk_jinja_at_char(p, ')')) && p->token->kind != TOKEN_BLOCK_END &&
         p->token->kind != TOKEN_PRINT_END) {
    MK_TRY(mk_jinja_parse_expression(p, last));
    last = &(*last)->next;
    if (!mk_jinja_skip_char(p, ',')) {
      break;
    }
    several = true;
  }
  if (parenthesised) {
    MK_TRY(mk_jinja_expect_char(p, ')'));
  }
  if (first == NULL && !several) {
    return mk_jinja_unexpected(p, "an expression");
  }
  if (several) {
    return mk_jinja_make(p, NODE_TUPLE, line, first, NULL, out);
  }
  *out = first;
  return MK_OK;
}

mk_status mk_jinja_parse_name(jinja_parser *p, jinja_node **out) {
  static const char *const refused[] = {"self", "super", "lipsum"};
  jinja_value word = p->token->value;
  if (mk_jinja_is(word, "true") || mk_jinja_is(word, "True")) {
    return constant(p, mk_jinja_bool(true), out);
  }
  if (mk_jinja_is(word, "false") || mk_jinja_is(word, "False")) {
    return constant(p, mk_jinja_bool(false), out);
  }
  if (mk_jinja_is(word, "none") || mk_jinja_is(word, "None")) {
    return constant(p, mk_jinja_none(), out);
  }
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    if (mk_jinja_is(word, refused[i])) {
      return mk_jinja_fail(p->token->line, "'%s' is not supported", refused[i]);
    }
  }
  MK_TRY(mk_jinja_new_node(p, NODE_NAME, out));
  (*out)->value = word;
  return MK_OK;
}

/* Strings side by side are one. */
static mk_status strings(jinja_parser *p, jinja_node **out) {
  size_t count = 1, length = 0;
  for (; p->token[count].kind == TOKEN_STRING; count++) {
  }
  for (size_t i = 0; i < count; i++) {
    length += p->token[i].value.length;
  }
  char *text;
  MK_TRY(mk_jinja_alloc(p->pool, length + 1, 1, &text));
  jinja_value value = mk_jinja_string(text, length);
  for (size_t i = 0; i < count; i++) {
    memcpy(text, p->token[i].value.text, p->token[i].value.length);
    text += p->token[i].value.length;
  }
  MK_TRY(constant(p, value, out));
  p->token += count;
  return MK_OK;
}

static mk_status primary(jinja_parser *p, jinja_node **out) {
  uint32_t line = p->token->line;
  jinja_node *first;
  switch (p->token->kind) {
    case TOKEN_NAME:
      MK_TRY(mk_jinja_parse_name(p, out));
      p->token++;
      return MK_OK;
    case TOKEN_STRING:
      return strings(p, out);
    case TOKEN_INT:
    case TOKEN_FLOAT:
      MK_TRY(constant(p, p->token->value, out));
      p->token++;
      return MK_OK;
    default:
      break;
  }
  if (mk_jinja_skip_char(p, '(')) {
    return mk_jinja_parse_tuple(p, true, out);
  }
  if (mk_jinja_skip_char(p, '[')) {
    MK_TRY(elements(p, ']', &first));
    return mk_jinja_make(p, NODE_LIST, line, first, NULL, out);
  }
  return mk_jinja_skip_char(p, '{') ? dict(p, out) : mk_jinja_unexpected(p, "an expression");
}

/* One argument; `seen`: the kind of the last one. By position, then by name, then **; a * may stand in front of those
 * by name. */
static mk_status argument(jinja_parser *p, jinja_node_kind *seen, jinja_node **out) {
  uint32_t line = p->token->line;
  jinja_node *value;
  bool power = mk_jinja_at_symbol(p, OPERATOR_POWER);
  if (power || mk_jinja_at_char(p, '*')) {
    if (*seen == NODE_DOUBLE_STAR || (!power && *seen == NODE_STAR)) {
      return mk_jinja_unexpected(p, "no second * or ** among the arguments");
    }
    p->token++;
    MK_TRY(mk_jinja_parse_expression(p, &value));
    *seen = power ? NODE_DOUBLE_STAR : NODE_STAR;
    return mk_jinja_make(p, *seen, line, value, NULL, out);
  }
  if (p->token->kind == TOKEN_NAME && p->token[1].kind == TOKEN_OPERATOR &&
      p->token[1].symbol == JINJA_OPERATOR(0, '=')) {
    jinja_value word = p->token->value;
    if (*seen == NODE_DOUBLE_STAR) {
      return mk_jinja_unexpected(p, "no argument after **");
    }
    p->token += 2;
    MK_TRY(mk_jinja_parse_expression(p, &value));
    MK_TRY(mk_jinja_make(p, NODE_KEYWORD, line, value, NULL, out));
    (*out)->value = word;
    *seen = *seen == NODE_STAR ? NODE_STAR : NODE_KEYWORD;
    return MK_OK;
  }
  if (*seen != NODE_NAME) {
    return mk_jinja_unexpected(p, "an argument with a name after the first such");
  }
  return mk_jinja_parse_expression(p, out);
}

/* Parses the arguments of a call, after its '('. */
static mk_status arguments(jinja_parser *p, jinja_node **out) {
  jinja_node **last = out;
  jinja_node_kind seen = NODE_NAME;
  *out = NULL;
  while (!mk_jinja_skip_char(p, ')')) {
    if (last != out) {
      MK_TRY(mk_jinja_expect_char(p, ','));
      if (mk_jinja_skip_char(p, ')')) {
        break;
      }
    }
    MK_TRY(argument(p, &seen, last));
    last = &(*last)->next;
  }
  return MK_OK;
}

static mk_status subscript(jinja_parser *p, jinja_node *object, jinja_node **out) {
  uint32_t line = p->token[-1].line;
  jinja_node *index, *range[3] = {NULL, NULL, NULL};
  size_t part = 0;
  while (!mk_jinja_at_char(p, ']')) {
    if (mk_jinja_at_char(p, ':')) {
      if (++part > 2) {
        return mk_jinja_unexpected(p, "']'");
      }
      p->token++;
    } else if (range[part] != NULL) {
      return mk_jinja_unexpected(p, "']' or ':'");
    } else {
      MK_TRY(mk_jinja_parse_expression(p, &range[part]));
    }
  }
  if (part == 0 && range[0] == NULL) {
    return mk_jinja_unexpected(p, "an index");
  }
  p->token++;
  if (part == 0) {
    return mk_jinja_make(p, NODE_ITEM, line, object, range[0], out);
  }
  MK_TRY(mk_jinja_new_node(p, NODE_SLICE, &index));
  memcpy(index->kids, range, sizeof range);
  MK_TRY(mk_jinja_measure(index));
  return mk_jinja_make(p, NODE_ITEM, line, object, index, out);
}

static mk_status postfix(jinja_parser *p, jinja_node **inout) {
  for (;;) {
    uint32_t line = p->token->line;
    jinja_node *list;
    if (mk_jinja_skip_char(p, '(')) {
      MK_TRY(arguments(p, &list));
      MK_TRY(mk_jinja_make(p, NODE_CALL, line, *inout, list, inout));
    } else if (mk_jinja_skip_char(p, '[')) {
      MK_TRY(subscript(p, *inout, inout));
    } else if (mk_jinja_skip_char(p, '.')) {
      jinja_value word = p->token->value;
      if (p->token->kind == TOKEN_INT) {
        MK_TRY(constant(p, word, &list));
        MK_TRY(mk_jinja_make(p, NODE_ITEM, line, *inout, list, inout));
      } else if (p->token->kind == TOKEN_NAME) {
        MK_TRY(mk_jinja_make(p, NODE_ATTRIBUTE, line, *inout, NULL, inout));
        (*inout)->value = word;
      } else {
        return mk_jinja_unexpected(p, "a name or a number");
      }
      p->token++;
    } else {
      return MK_OK;
    }
  }
}

mk_status mk_jinja_parse_filter(jinja_parser *p, jinja_node **inout) {
  uint32_t line = p->token->line;
  jinja_node *list = NULL;
  if (p->token->kind != TOKEN_NAME) {
    return mk_jinja_unexpected(p, "the name of a filter");
  }
  jinja_value word = p->token->value;
  p->token++;
  if (mk_jinja_skip_char(p, '(')) {
    MK_TRY(arguments(p, &list));
  }
  MK_TRY(mk_jinja_make(p, NODE_FILTER, line, *inout, list, inout));
  (*inout)->value = word;
  (*inout)->filter = mk_jinja_find_filter(word);
  return MK_OK;
}

static bool starts_argument(const jinja_parser *p) {
  switch (p->token->kind) {
    case TOKEN_NAME:
      return !mk_jinja_at_word(p, "else") && !mk_jinja_at_word(p, "or") && !mk_jinja_at_word(p, "and");
    case TOKEN_STRING:
    case TOKEN_INT:
    case TOKEN_FLOAT:
      return true;
    default:
      return mk_jinja_at_char(p, '[') || mk_jinja_at_char(p, '{'); /* a '(' was taken as that of arguments */
  }
}

static mk_status test(jinja_parser *p, jinja_node **inout) {
  uint32_t line = p->token->line;
  jinja_node *list = NULL;
  bool negated = mk_jinja_skip_word(p, "not");
  if (p->token->kind != TOKEN_NAME) {
    return mk_jinja_unexpected(p, "the name of a test");
  }
  jinja_value word = p->token->value;
  const jinja_function *found = mk_jinja_find_test(word);
  p->token++;
  if (mk_jinja_skip_char(p, '(')) {
    MK_TRY(arguments(p, &list));
  } else if (starts_argument(p)) {
    if ((found != NULL && found->required == 0) || mk_jinja_at_word(p, "is")) {
      return mk_jinja_fail(line, "the test 'is %.*s' is followed by '%.*s'; put brackets around the test",
                           JINJA_SHOWN(word), JINJA_SHOWN(p->token->value));
    }
    MK_TRY(primary(p, &list));
    MK_TRY(postfix(p, &list));
  }
  MK_TRY(mk_jinja_make(p, NODE_TEST, line, *inout, list, inout));
  (*inout)->value = word;
  (*inout)->filter = found;
  return negated ? mk_jinja_make(p, NODE_NOT, line, *inout, NULL, inout) : MK_OK;
}

static mk_status filters(jinja_parser *p, jinja_node **inout) {
  for (;;) {
    uint32_t line = p->token->line;
    jinja_node *list;
    if (mk_jinja_skip_char(p, '|')) {
      MK_TRY(mk_jinja_parse_filter(p, inout));
    } else if (mk_jinja_skip_word(p, "is")) {
      MK_TRY(test(p, inout));
    } else if (mk_jinja_skip_char(p, '(')) {
      MK_TRY(arguments(p, &list));
      MK_TRY(mk_jinja_make(p, NODE_CALL, line, *inout, list, inout));
    } else {
      return MK_OK;
    }
  }
}

mk_status mk_jinja_deeper(jinja_parser *p) {
  if (++p->depth > MK_TEMPLATE_MAX_NESTING) {
    return mk_jinja_fail(p->token->line, "nested more than %d deep", MK_TEMPLATE_MAX_NESTING);
  }
  return MK_OK;
}

mk_status mk_jinja_parse_unary(jinja_parser *p, bool with_filters, jinja_node **out) {
  uint32_t line = p->token->line;
  MK_TRY(mk_jinja_deeper(p));
  if (mk_jinja_at_char(p, '-') || mk_jinja_at_char(p, '+')) {
    jinja_node_kind kind = mk_jinja_at_char(p, '-') ? NODE_NEGATE : NODE_PLUS;
    p->token++;
    MK_TRY(mk_jinja_parse_unary(p, false, out));
    MK_TRY(mk_jinja_make(p, kind, line, *out, NULL, out));
  } else {
    MK_TRY(primary(p, out));
  }
  MK_TRY(postfix(p, out));
  if (with_filters) {
    MK_TRY(filters(p, out));
  }
  p->depth--;
  return MK_OK;
}
