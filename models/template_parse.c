/* Expressions: tokens to a syntax tree, by recursive descent. What the tree may hold is decided here: a filter or test that is not
 * supported is refused even where it would never be reached. The statements around them: template_statements.c. */
#include <string.h>

#include "models/template_parser.h"

static mk_status unary(jinja_parser *p, bool filters, jinja_node **out);

static bool at_symbol(const jinja_parser *p, uint16_t symbol) {
  return p->token->kind == TOKEN_OPERATOR && p->token->symbol == symbol;
}

static bool at_char(const jinja_parser *p, char c) { return at_symbol(p, JINJA_OPERATOR(0, c)); }

bool mk_jinja_at_word(const jinja_parser *p, const char *word) {
  return p->token->kind == TOKEN_NAME && mk_jinja_is(p->token->value, word);
}

bool mk_jinja_skip_char(jinja_parser *p, char c) {
  bool is = at_char(p, c);
  p->token += is;
  return is;
}

bool mk_jinja_skip_word(jinja_parser *p, const char *word) {
  bool is = mk_jinja_at_word(p, word);
  p->token += is;
  return is;
}

mk_status mk_jinja_unexpected(const jinja_parser *p, const char *wanted) {
  return mk_jinja_fail(p->token->line, "expected %s, not '%.*s'", wanted, JINJA_SHOWN(p->token->value));
}

mk_status mk_jinja_expect_char(jinja_parser *p, char c) {
  return mk_jinja_skip_char(p, c) ? MK_OK : mk_jinja_unexpected(p, (const char[]){'\'', c, '\'', 0});
}

mk_status mk_jinja_new_node(jinja_parser *p, jinja_node_kind kind, jinja_node **out) {
  MK_TRY(mk_jinja_alloc(p->pool, 1, sizeof **out, out));
  (*out)->kind = (uint8_t)kind;
  (*out)->line = p->token->line;
  return MK_OK;
}

/* Gives a node its kids' height: a chain such as a.b.c is deep although its parser did not recurse. */
mk_status mk_jinja_measure(jinja_node *node) {
  for (size_t i = 0; i < sizeof node->kids / sizeof node->kids[0]; i++) {
    for (const jinja_node *kid = node->kids[i]; kid != NULL; kid = kid->next) {
      node->height = node->height > kid->height ? node->height : kid->height + 1;
    }
  }
  if (node->height > MK_TEMPLATE_MAX_NESTING) {
    return mk_jinja_fail(node->line, "nested more than %d deep", MK_TEMPLATE_MAX_NESTING);
  }
  return MK_OK;
}

mk_status mk_jinja_make(jinja_parser *p, jinja_node_kind kind, uint32_t line, jinja_node *a, jinja_node *b,
                        jinja_node **out) {
  jinja_node *node;
  MK_TRY(mk_jinja_new_node(p, kind, &node));
  node->line = line;
  node->kids[0] = a;
  node->kids[1] = b;
  *out = node;
  return mk_jinja_measure(node);
}

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
    if (*out != NULL) {
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

/* Behind '(' or in front of the end of a tag: one expression, or several as a tuple. */
mk_status mk_jinja_parse_tuple(jinja_parser *p, bool parenthesised, jinja_node **out) {
  uint32_t line = p->token->line;
  jinja_node *first = NULL, **last = &first;
  bool several = parenthesised && at_char(p, ')');
  while (!(parenthesised && at_char(p, ')')) && p->token->kind != TOKEN_BLOCK_END &&
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
  static const char *const refused[] = {"self", "super", "caller", "varargs", "kwargs", "lipsum", "cycler", "joiner"};
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

/* Behind '(': arguments by position, then by name. */
static mk_status arguments(jinja_parser *p, jinja_node **out) {
  jinja_node **last = out;
  bool named = false;
  *out = NULL;
  while (!mk_jinja_skip_char(p, ')')) {
    if (*out != NULL) {
      MK_TRY(mk_jinja_expect_char(p, ','));
      if (mk_jinja_skip_char(p, ')')) {
        break;
      }
    }
    if (at_char(p, '*') || at_symbol(p, OPERATOR_POWER)) {
      return mk_jinja_fail(p->token->line, "arguments by * and ** are not supported");
    }
    uint32_t line = p->token->line;
    if (p->token->kind == TOKEN_NAME && p->token[1].kind == TOKEN_OPERATOR &&
        p->token[1].symbol == JINJA_OPERATOR(0, '=')) {
      jinja_value word = p->token->value;
      jinja_node *value;
      p->token += 2;
      MK_TRY(mk_jinja_parse_expression(p, &value));
      MK_TRY(mk_jinja_make(p, NODE_KEYWORD, line, value, NULL, last));
      (*last)->value = word;
      named = true;
    } else if (named) {
      return mk_jinja_unexpected(p, "an argument with a name behind the first such");
    } else {
      MK_TRY(mk_jinja_parse_expression(p, last));
    }
    last = &(*last)->next;
  }
  return MK_OK;
}

static mk_status subscript(jinja_parser *p, jinja_node *object, jinja_node **out) {
  uint32_t line = p->token[-1].line;
  jinja_node *index, *range[3] = {NULL, NULL, NULL};
  size_t part = 0;
  while (!at_char(p, ']')) {
    if (at_char(p, ':')) {
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

static mk_status filter(jinja_parser *p, jinja_node **inout) {
  uint32_t line = p->token->line;
  jinja_node *list = NULL;
  if (p->token->kind != TOKEN_NAME) {
    return mk_jinja_unexpected(p, "the name of a filter");
  }
  const jinja_function *found = mk_jinja_find_filter(p->token->value);
  if (found == NULL) {
    return mk_jinja_fail(line, "the filter '%.*s' is not supported", JINJA_SHOWN(p->token->value));
  }
  p->token++;
  if (mk_jinja_skip_char(p, '(')) {
    MK_TRY(arguments(p, &list));
  }
  MK_TRY(mk_jinja_make(p, NODE_FILTER, line, *inout, list, inout));
  (*inout)->filter = found;
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
      return at_char(p, '[') || at_char(p, '{');
  }
}

static mk_status test(jinja_parser *p, jinja_node **inout) {
  uint32_t line = p->token->line;
  jinja_node *list = NULL;
  bool negated = mk_jinja_skip_word(p, "not");
  if (p->token->kind != TOKEN_NAME) {
    return mk_jinja_unexpected(p, "the name of a test");
  }
  const jinja_function *found = mk_jinja_find_test(p->token->value);
  if (found == NULL) {
    return mk_jinja_fail(line, "the test 'is %.*s' is not supported", JINJA_SHOWN(p->token->value));
  }
  p->token++;
  if (mk_jinja_skip_char(p, '(')) {
    MK_TRY(arguments(p, &list));
  } else if (starts_argument(p)) {
    if (found->required == 0 || mk_jinja_at_word(p, "is")) {
      return mk_jinja_fail(line, "the test 'is %s' is followed by '%.*s'; put brackets around the test", found->name,
                           JINJA_SHOWN(p->token->value));
    }
    MK_TRY(primary(p, &list));
    MK_TRY(postfix(p, &list));
  }
  MK_TRY(mk_jinja_make(p, NODE_TEST, line, *inout, list, inout));
  (*inout)->filter = found;
  return negated ? mk_jinja_make(p, NODE_NOT, line, *inout, NULL, inout) : MK_OK;
}

static mk_status filters(jinja_parser *p, jinja_node **inout) {
  for (;;) {
    uint32_t line = p->token->line;
    jinja_node *list;
    if (mk_jinja_skip_char(p, '|')) {
      MK_TRY(filter(p, inout));
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

static mk_status unary(jinja_parser *p, bool with_filters, jinja_node **out) {
  uint32_t line = p->token->line;
  MK_TRY(mk_jinja_deeper(p));
  if (at_char(p, '-') || at_char(p, '+')) {
    jinja_node_kind kind = at_char(p, '-') ? NODE_NEGATE : NODE_PLUS;
    p->token++;
    MK_TRY(unary(p, false, out));
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

/* Binary operators by how tightly they bind, the tightest last; all associate to the left. */
static mk_status binary(jinja_parser *p, int level, jinja_node **out) {
  static const uint16_t symbols[3][4] = {
      {JINJA_OPERATOR(0, '+'), JINJA_OPERATOR(0, '-')},
      {JINJA_OPERATOR(0, '*'), JINJA_OPERATOR(0, '/'), OPERATOR_FLOOR, JINJA_OPERATOR(0, '%')},
      {OPERATOR_POWER},
  };
  if (level == 4) {
    return unary(p, true, out);
  }
  MK_TRY(binary(p, level + 1, out));
  if (level == 1) { /* ~ takes all its parts at once */
    uint32_t line = p->token->line;
    jinja_node **last = &(*out)->next;
    if (!at_char(p, '~')) {
      return MK_OK;
    }
    while (mk_jinja_skip_char(p, '~')) {
      MK_TRY(binary(p, level + 1, last));
      last = &(*last)->next;
    }
    return mk_jinja_make(p, NODE_CONCAT, line, *out, NULL, out);
  }
  const uint16_t *mine = symbols[level == 0 ? 0 : level - 1];
  for (;;) {
    uint32_t line = p->token->line;
    uint16_t symbol = 0;
    for (size_t i = 0; i < 4 && mine[i] != 0; i++) {
      symbol = at_symbol(p, mine[i]) ? mine[i] : symbol;
    }
    if (symbol == 0) {
      return MK_OK;
    }
    jinja_node *right;
    p->token++;
    MK_TRY(binary(p, level + 1, &right));
    MK_TRY(mk_jinja_make(p, NODE_BINARY, line, *out, right, out));
    (*out)->symbol = symbol;
  }
}

/* The comparison at the token, which is taken; 0: none. */
static uint16_t comparison(jinja_parser *p) {
  static const uint16_t symbols[] = {OPERATOR_EQUAL,    OPERATOR_DIFFERS,       OPERATOR_AT_MOST,
                                     OPERATOR_AT_LEAST, JINJA_OPERATOR(0, '<'), JINJA_OPERATOR(0, '>')};
  for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
    if (at_symbol(p, symbols[i])) {
      p->token++;
      return symbols[i];
    }
  }
  if (mk_jinja_skip_word(p, "in")) {
    return OPERATOR_IN;
  }
  if (mk_jinja_at_word(p, "not") && p->token[1].kind == TOKEN_NAME && mk_jinja_is(p->token[1].value, "in")) {
    p->token += 2;
    return OPERATOR_NOT_IN;
  }
  return 0;
}

static mk_status compare(jinja_parser *p, jinja_node **out) {
  uint32_t line = p->token->line;
  jinja_node *first = NULL, **last = &first;
  MK_TRY(binary(p, 0, out));
  for (uint16_t symbol = comparison(p); symbol != 0; symbol = comparison(p)) {
    jinja_node *right;
    MK_TRY(binary(p, 0, &right));
    MK_TRY(mk_jinja_make(p, NODE_OPERAND, line, right, NULL, last));
    (*last)->symbol = symbol;
    last = &(*last)->next;
  }
  return first == NULL ? MK_OK : mk_jinja_make(p, NODE_COMPARE, line, *out, first, out);
}

static mk_status negation(jinja_parser *p, jinja_node **out) {
  uint32_t line = p->token->line;
  if (!mk_jinja_skip_word(p, "not")) {
    return compare(p, out);
  }
  MK_TRY(mk_jinja_deeper(p));
  MK_TRY(negation(p, out));
  p->depth--;
  return mk_jinja_make(p, NODE_NOT, line, *out, NULL, out);
}

mk_status mk_jinja_parse_logic(jinja_parser *p, bool is_or, jinja_node **out) {
  MK_TRY(is_or ? mk_jinja_parse_logic(p, false, out) : negation(p, out));
  uint32_t line = p->token->line;
  while (mk_jinja_skip_word(p, is_or ? "or" : "and")) {
    jinja_node *right;
    MK_TRY(is_or ? mk_jinja_parse_logic(p, false, &right) : negation(p, &right));
    MK_TRY(mk_jinja_make(p, is_or ? NODE_OR : NODE_AND, line, *out, right, out));
  }
  return MK_OK;
}

mk_status mk_jinja_parse_expression(jinja_parser *p, jinja_node **out) {
  uint32_t line = p->token->line;
  MK_TRY(mk_jinja_deeper(p));
  MK_TRY(mk_jinja_parse_logic(p, true, out));
  while (mk_jinja_skip_word(p, "if")) {
    jinja_node *condition, *otherwise = NULL;
    MK_TRY(mk_jinja_parse_logic(p, true, &condition));
    if (mk_jinja_skip_word(p, "else")) {
      MK_TRY(mk_jinja_parse_expression(p, &otherwise));
    }
    MK_TRY(mk_jinja_make(p, NODE_CHOICE, line, condition, *out, out));
    (*out)->kids[2] = otherwise;
    MK_TRY(mk_jinja_measure(*out));
  }
  p->depth--;
  return MK_OK;
}
