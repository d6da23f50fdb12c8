/* Tokens to a syntax tree, by recursive descent. What the tree may hold is decided here: a filter, test or tag that is not
 * supported is refused even where it would never be reached. */
#include <string.h>

#include "models/template_internal.h"

typedef struct parser {
  jinja_pool *pool;
  const jinja_token *token;
  unsigned depth, loops; /* loops: inside how many `for` of this macro */
} parser;

static mk_status expression(parser *p, jinja_node **out);
static mk_status unary(parser *p, bool filters, jinja_node **out);
static mk_status statements(parser *p, const char *const *ends, jinja_node **out);

static bool at_symbol(const parser *p, uint16_t symbol) {
  return p->token->kind == TOKEN_OPERATOR && p->token->symbol == symbol;
}

static bool at_char(const parser *p, char c) { return at_symbol(p, JINJA_OPERATOR(0, c)); }

static bool at_word(const parser *p, const char *word) {
  return p->token->kind == TOKEN_NAME && mk_jinja_is(p->token->value, word);
}

static bool skip_char(parser *p, char c) {
  bool is = at_char(p, c);
  p->token += is;
  return is;
}

static bool skip_word(parser *p, const char *word) {
  bool is = at_word(p, word);
  p->token += is;
  return is;
}

static mk_status unexpected(const parser *p, const char *wanted) {
  return mk_jinja_fail(p->token->line, "expected %s, not '%.*s'", wanted, JINJA_SHOWN(p->token->value));
}

static mk_status expect_char(parser *p, char c) {
  return skip_char(p, c) ? MK_OK : unexpected(p, (const char[]){'\'', c, '\'', 0});
}

static mk_status new_node(parser *p, jinja_node_kind kind, jinja_node **out) {
  MK_TRY(mk_jinja_alloc(p->pool, 1, sizeof **out, out));
  (*out)->kind = (uint8_t)kind;
  (*out)->line = p->token->line;
  return MK_OK;
}

/* Gives a node its kids' height: a chain such as a.b.c is deep although its parser did not recurse. */
static mk_status measure(jinja_node *node) {
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

static mk_status make(parser *p, jinja_node_kind kind, uint32_t line, jinja_node *a, jinja_node *b, jinja_node **out) {
  jinja_node *node;
  MK_TRY(new_node(p, kind, &node));
  node->line = line;
  node->kids[0] = a;
  node->kids[1] = b;
  *out = node;
  return measure(node);
}

static mk_status constant(parser *p, jinja_value value, jinja_node **out) {
  MK_TRY(new_node(p, NODE_CONSTANT, out));
  (*out)->value = value;
  return MK_OK;
}

/* Expressions separated by commas up to `end`, which is taken; a comma may follow the last. */
static mk_status elements(parser *p, char end, jinja_node **out) {
  jinja_node **last = out;
  *out = NULL;
  while (!skip_char(p, end)) {
    if (*out != NULL) {
      MK_TRY(expect_char(p, ','));
      if (skip_char(p, end)) {
        break;
      }
    }
    MK_TRY(expression(p, last));
    last = &(*last)->next;
  }
  return MK_OK;
}

static mk_status dict(parser *p, jinja_node **out) {
  uint32_t line = p->token[-1].line;
  jinja_node *first = NULL, **last = &first;
  while (!skip_char(p, '}')) {
    if (first != NULL) {
      MK_TRY(expect_char(p, ','));
      if (skip_char(p, '}')) {
        break;
      }
    }
    MK_TRY(expression(p, last));
    last = &(*last)->next;
    MK_TRY(expect_char(p, ':'));
    MK_TRY(expression(p, last));
    last = &(*last)->next;
  }
  return make(p, NODE_DICT, line, first, NULL, out);
}

/* Behind '(' or in front of the end of a tag: one expression, or several as a tuple. */
static mk_status tuple(parser *p, bool parenthesised, jinja_node **out) {
  uint32_t line = p->token->line;
  jinja_node *first = NULL, **last = &first;
  bool several = parenthesised && at_char(p, ')');
  while (!(parenthesised && at_char(p, ')')) && p->token->kind != TOKEN_BLOCK_END &&
         p->token->kind != TOKEN_PRINT_END) {
    MK_TRY(expression(p, last));
    last = &(*last)->next;
    if (!skip_char(p, ',')) {
      break;
    }
    several = true;
  }
  if (parenthesised) {
    MK_TRY(expect_char(p, ')'));
  }
  if (first == NULL && !several) {
    return unexpected(p, "an expression");
  }
  if (several) {
    return make(p, NODE_TUPLE, line, first, NULL, out);
  }
  *out = first;
  return MK_OK;
}

static mk_status name(parser *p, jinja_node **out) {
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
  MK_TRY(new_node(p, NODE_NAME, out));
  (*out)->value = word;
  return MK_OK;
}

/* Strings side by side are one. */
static mk_status strings(parser *p, jinja_node **out) {
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

static mk_status primary(parser *p, jinja_node **out) {
  uint32_t line = p->token->line;
  jinja_node *first;
  switch (p->token->kind) {
    case TOKEN_NAME:
      MK_TRY(name(p, out));
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
  if (skip_char(p, '(')) {
    return tuple(p, true, out);
  }
  if (skip_char(p, '[')) {
    MK_TRY(elements(p, ']', &first));
    return make(p, NODE_LIST, line, first, NULL, out);
  }
  return skip_char(p, '{') ? dict(p, out) : unexpected(p, "an expression");
}

/* Behind '(': arguments by position, then by name. */
static mk_status arguments(parser *p, jinja_node **out) {
  jinja_node **last = out;
  bool named = false;
  *out = NULL;
  while (!skip_char(p, ')')) {
    if (*out != NULL) {
      MK_TRY(expect_char(p, ','));
      if (skip_char(p, ')')) {
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
      MK_TRY(expression(p, &value));
      MK_TRY(make(p, NODE_KEYWORD, line, value, NULL, last));
      (*last)->value = word;
      named = true;
    } else if (named) {
      return unexpected(p, "an argument with a name behind the first such");
    } else {
      MK_TRY(expression(p, last));
    }
    last = &(*last)->next;
  }
  return MK_OK;
}

static mk_status subscript(parser *p, jinja_node *object, jinja_node **out) {
  uint32_t line = p->token[-1].line;
  jinja_node *index, *range[3] = {NULL, NULL, NULL};
  size_t part = 0;
  while (!at_char(p, ']')) {
    if (at_char(p, ':')) {
      if (++part > 2) {
        return unexpected(p, "']'");
      }
      p->token++;
    } else if (range[part] != NULL) {
      return unexpected(p, "']' or ':'");
    } else {
      MK_TRY(expression(p, &range[part]));
    }
  }
  if (part == 0 && range[0] == NULL) {
    return unexpected(p, "an index");
  }
  p->token++;
  if (part == 0) {
    return make(p, NODE_ITEM, line, object, range[0], out);
  }
  MK_TRY(new_node(p, NODE_SLICE, &index));
  memcpy(index->kids, range, sizeof range);
  MK_TRY(measure(index));
  return make(p, NODE_ITEM, line, object, index, out);
}

static mk_status postfix(parser *p, jinja_node **inout) {
  for (;;) {
    uint32_t line = p->token->line;
    jinja_node *list;
    if (skip_char(p, '(')) {
      MK_TRY(arguments(p, &list));
      MK_TRY(make(p, NODE_CALL, line, *inout, list, inout));
    } else if (skip_char(p, '[')) {
      MK_TRY(subscript(p, *inout, inout));
    } else if (skip_char(p, '.')) {
      jinja_value word = p->token->value;
      if (p->token->kind == TOKEN_INT) {
        MK_TRY(constant(p, word, &list));
        MK_TRY(make(p, NODE_ITEM, line, *inout, list, inout));
      } else if (p->token->kind == TOKEN_NAME) {
        MK_TRY(make(p, NODE_ATTRIBUTE, line, *inout, NULL, inout));
        (*inout)->value = word;
      } else {
        return unexpected(p, "a name or a number");
      }
      p->token++;
    } else {
      return MK_OK;
    }
  }
}

static mk_status filter(parser *p, jinja_node **inout) {
  uint32_t line = p->token->line;
  jinja_node *list = NULL;
  if (p->token->kind != TOKEN_NAME) {
    return unexpected(p, "the name of a filter");
  }
  const jinja_function *found = mk_jinja_find_filter(p->token->value);
  if (found == NULL) {
    return mk_jinja_fail(line, "the filter '%.*s' is not supported", JINJA_SHOWN(p->token->value));
  }
  p->token++;
  if (skip_char(p, '(')) {
    MK_TRY(arguments(p, &list));
  }
  MK_TRY(make(p, NODE_FILTER, line, *inout, list, inout));
  (*inout)->filter = found;
  return MK_OK;
}

static bool starts_argument(const parser *p) {
  switch (p->token->kind) {
    case TOKEN_NAME:
      return !at_word(p, "else") && !at_word(p, "or") && !at_word(p, "and");
    case TOKEN_STRING:
    case TOKEN_INT:
    case TOKEN_FLOAT:
      return true;
    default:
      return at_char(p, '[') || at_char(p, '{');
  }
}

static mk_status test(parser *p, jinja_node **inout) {
  uint32_t line = p->token->line;
  jinja_node *list = NULL;
  bool negated = skip_word(p, "not");
  if (p->token->kind != TOKEN_NAME) {
    return unexpected(p, "the name of a test");
  }
  const jinja_function *found = mk_jinja_find_test(p->token->value);
  if (found == NULL) {
    return mk_jinja_fail(line, "the test 'is %.*s' is not supported", JINJA_SHOWN(p->token->value));
  }
  p->token++;
  if (skip_char(p, '(')) {
    MK_TRY(arguments(p, &list));
  } else if (starts_argument(p)) {
    if (found->required == 0 || at_word(p, "is")) {
      return mk_jinja_fail(line, "the test 'is %s' is followed by '%.*s'; put brackets around the test", found->name,
                           JINJA_SHOWN(p->token->value));
    }
    MK_TRY(primary(p, &list));
    MK_TRY(postfix(p, &list));
  }
  MK_TRY(make(p, NODE_TEST, line, *inout, list, inout));
  (*inout)->filter = found;
  return negated ? make(p, NODE_NOT, line, *inout, NULL, inout) : MK_OK;
}

static mk_status filters(parser *p, jinja_node **inout) {
  for (;;) {
    uint32_t line = p->token->line;
    jinja_node *list;
    if (skip_char(p, '|')) {
      MK_TRY(filter(p, inout));
    } else if (skip_word(p, "is")) {
      MK_TRY(test(p, inout));
    } else if (skip_char(p, '(')) {
      MK_TRY(arguments(p, &list));
      MK_TRY(make(p, NODE_CALL, line, *inout, list, inout));
    } else {
      return MK_OK;
    }
  }
}

static mk_status deeper(parser *p) {
  if (++p->depth > MK_TEMPLATE_MAX_NESTING) {
    return mk_jinja_fail(p->token->line, "nested more than %d deep", MK_TEMPLATE_MAX_NESTING);
  }
  return MK_OK;
}

static mk_status unary(parser *p, bool with_filters, jinja_node **out) {
  uint32_t line = p->token->line;
  MK_TRY(deeper(p));
  if (at_char(p, '-') || at_char(p, '+')) {
    jinja_node_kind kind = at_char(p, '-') ? NODE_NEGATE : NODE_PLUS;
    p->token++;
    MK_TRY(unary(p, false, out));
    MK_TRY(make(p, kind, line, *out, NULL, out));
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
static mk_status binary(parser *p, int level, jinja_node **out) {
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
    while (skip_char(p, '~')) {
      MK_TRY(binary(p, level + 1, last));
      last = &(*last)->next;
    }
    return make(p, NODE_CONCAT, line, *out, NULL, out);
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
    MK_TRY(make(p, NODE_BINARY, line, *out, right, out));
    (*out)->symbol = symbol;
  }
}

/* The comparison at the token, which is taken; 0: none. */
static uint16_t comparison(parser *p) {
  static const uint16_t symbols[] = {OPERATOR_EQUAL,    OPERATOR_DIFFERS,       OPERATOR_AT_MOST,
                                     OPERATOR_AT_LEAST, JINJA_OPERATOR(0, '<'), JINJA_OPERATOR(0, '>')};
  for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
    if (at_symbol(p, symbols[i])) {
      p->token++;
      return symbols[i];
    }
  }
  if (skip_word(p, "in")) {
    return OPERATOR_IN;
  }
  if (at_word(p, "not") && p->token[1].kind == TOKEN_NAME && mk_jinja_is(p->token[1].value, "in")) {
    p->token += 2;
    return OPERATOR_NOT_IN;
  }
  return 0;
}

static mk_status compare(parser *p, jinja_node **out) {
  uint32_t line = p->token->line;
  jinja_node *first = NULL, **last = &first;
  MK_TRY(binary(p, 0, out));
  for (uint16_t symbol = comparison(p); symbol != 0; symbol = comparison(p)) {
    jinja_node *right;
    MK_TRY(binary(p, 0, &right));
    MK_TRY(make(p, NODE_OPERAND, line, right, NULL, last));
    (*last)->symbol = symbol;
    last = &(*last)->next;
  }
  return first == NULL ? MK_OK : make(p, NODE_COMPARE, line, *out, first, out);
}

static mk_status negation(parser *p, jinja_node **out) {
  uint32_t line = p->token->line;
  if (!skip_word(p, "not")) {
    return compare(p, out);
  }
  MK_TRY(deeper(p));
  MK_TRY(negation(p, out));
  p->depth--;
  return make(p, NODE_NOT, line, *out, NULL, out);
}

static mk_status logic(parser *p, bool is_or, jinja_node **out) {
  MK_TRY(is_or ? logic(p, false, out) : negation(p, out));
  uint32_t line = p->token->line;
  while (skip_word(p, is_or ? "or" : "and")) {
    jinja_node *right;
    MK_TRY(is_or ? logic(p, false, &right) : negation(p, &right));
    MK_TRY(make(p, is_or ? NODE_OR : NODE_AND, line, *out, right, out));
  }
  return MK_OK;
}

static mk_status expression(parser *p, jinja_node **out) {
  uint32_t line = p->token->line;
  MK_TRY(deeper(p));
  MK_TRY(logic(p, true, out));
  while (skip_word(p, "if")) {
    jinja_node *condition, *otherwise = NULL;
    MK_TRY(logic(p, true, &condition));
    if (skip_word(p, "else")) {
      MK_TRY(expression(p, &otherwise));
    }
    MK_TRY(make(p, NODE_CHOICE, line, condition, *out, out));
    (*out)->kids[2] = otherwise;
    MK_TRY(measure(*out));
  }
  p->depth--;
  return MK_OK;
}

static mk_status end_tag(parser *p) {
  if (p->token->kind != TOKEN_BLOCK_END) {
    return unexpected(p, "the end of the tag");
  }
  p->token++;
  return MK_OK;
}

/* Statements up to a tag that starts with one of `ends`; the token is then that word. Takes the end of the opening tag. */
static mk_status block(parser *p, const char *const *ends, jinja_node **out) {
  MK_TRY(end_tag(p));
  return statements(p, ends, out);
}

/* An elif is an if of its own in the else of the one before; the last takes the endif. */
static mk_status branch(parser *p, uint32_t line, jinja_node **out) {
  static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last_end[] = {"endif", NULL};
  jinja_node *condition, *body;
  MK_TRY(deeper(p));
  MK_TRY(logic(p, true, &condition)); /* without a condition of its own, as in jinja2 */
  MK_TRY(block(p, ends, &body));
  MK_TRY(make(p, NODE_IF, line, condition, body, out));
  uint32_t next = p->token->line;
  if (skip_word(p, "elif")) {
    MK_TRY(branch(p, next, &(*out)->kids[2]));
  } else if (skip_word(p, "else")) {
    MK_TRY(block(p, last_end, &(*out)->kids[2]));
    p->token++;
  } else {
    p->token++;
  }
  p->depth--;
  return measure(*out);
}

/* One name, or several that a tuple is taken apart into. */
static mk_status target(parser *p, jinja_node **out) {
  uint32_t line = p->token->line;
  jinja_node *first = NULL, **last = &first;
  bool several = false, parenthesised = skip_char(p, '(');
  do {
    if (first != NULL && p->token->kind != TOKEN_NAME) {
      break;
    }
    if (p->token->kind != TOKEN_NAME || at_word(p, "in") || at_word(p, "loop")) {
      return unexpected(p, "a name to assign to");
    }
    MK_TRY(name(p, last));
    if ((*last)->kind != NODE_NAME) {
      return unexpected(p, "a name to assign to");
    }
    p->token++;
    last = &(*last)->next;
  } while (skip_char(p, ',') && (several = true));
  if (parenthesised) {
    MK_TRY(expect_char(p, ')'));
  }
  if (several) {
    return make(p, NODE_TUPLE, line, first, NULL, out);
  }
  *out = first;
  return MK_OK;
}

static mk_status loop(parser *p, uint32_t line, jinja_node **out) {
  static const char *const ends[] = {"else", "endfor", NULL}, *const last_end[] = {"endfor", NULL};
  jinja_node *node, *items, **last = &items;
  bool several = false;
  MK_TRY(new_node(p, NODE_FOR, &node));
  node->line = line;
  MK_TRY(target(p, &node->kids[0]));
  if (!skip_word(p, "in")) {
    return unexpected(p, "'in'");
  }
  do { /* a tuple needs no brackets; `if` belongs to the loop */
    MK_TRY(logic(p, true, last));
    last = &(*last)->next;
  } while (skip_char(p, ',') && (several = true) && p->token->kind != TOKEN_BLOCK_END);
  if (several) {
    MK_TRY(make(p, NODE_TUPLE, line, items, NULL, &items));
  }
  node->kids[1] = items;
  if (skip_word(p, "if")) {
    MK_TRY(expression(p, &node->kids[4]));
  }
  if (at_word(p, "recursive")) {
    return mk_jinja_fail(p->token->line, "recursive loops are not supported");
  }
  p->loops++;
  MK_TRY(block(p, ends, &node->kids[2]));
  p->loops--;
  if (skip_word(p, "else")) {
    MK_TRY(block(p, last_end, &node->kids[3]));
  }
  p->token++;
  *out = node;
  return measure(node);
}

static mk_status assignment(parser *p, uint32_t line, jinja_node **out) {
  static const char *const ends[] = {"endset", NULL};
  jinja_node *to, *value;
  if (p->token->kind == TOKEN_NAME && p->token[1].kind == TOKEN_OPERATOR &&
      p->token[1].symbol == JINJA_OPERATOR(0, '.')) {
    MK_TRY(name(p, &to));
    p->token += 2;
    if (p->token->kind != TOKEN_NAME) {
      return unexpected(p, "the name of an attribute");
    }
    MK_TRY(make(p, NODE_ATTRIBUTE, line, to, NULL, &to));
    to->value = p->token->value;
    p->token++;
  } else {
    MK_TRY(target(p, &to));
  }
  if (skip_char(p, '=')) {
    MK_TRY(tuple(p, false, &value));
    return make(p, NODE_SET, line, to, value, out);
  }
  if (p->token->kind == TOKEN_OPERATOR) {
    return unexpected(p, "'=' or the end of the tag");
  }
  MK_TRY(block(p, ends, &value));
  p->token++;
  return make(p, NODE_SET_BLOCK, line, to, value, out);
}

static mk_status macro(parser *p, uint32_t line, jinja_node **out) {
  static const char *const ends[] = {"endmacro", NULL};
  jinja_node *first = NULL, **last = &first, *body;
  if (p->token->kind != TOKEN_NAME) {
    return unexpected(p, "the name of the macro");
  }
  jinja_value word = p->token->value;
  p->token++;
  MK_TRY(expect_char(p, '('));
  bool defaults = false;
  while (!skip_char(p, ')')) {
    if (first != NULL) {
      MK_TRY(expect_char(p, ','));
    }
    if (p->token->kind != TOKEN_NAME) {
      return unexpected(p, "the name of a parameter");
    }
    MK_TRY(name(p, last));
    p->token++;
    if (skip_char(p, '=')) {
      defaults = true;
      MK_TRY(expression(p, &(*last)->kids[0]));
      MK_TRY(measure(*last));
    } else if (defaults) {
      return unexpected(p, "'=' and a default, as the parameter before has");
    }
    last = &(*last)->next;
  }
  unsigned loops = p->loops;
  p->loops = 0;
  MK_TRY(block(p, ends, &body));
  p->loops = loops;
  p->token++;
  MK_TRY(make(p, NODE_MACRO, line, first, body, out));
  (*out)->value = word;
  return MK_OK;
}

static mk_status statement(parser *p, jinja_node **out) {
  static const char *const generation_end[] = {"endgeneration", NULL};
  uint32_t line = p->token->line;
  if (p->token->kind != TOKEN_NAME) {
    return unexpected(p, "the name of a tag");
  }
  if (skip_word(p, "if")) {
    return branch(p, line, out);
  }
  if (skip_word(p, "for")) {
    return loop(p, line, out);
  }
  if (skip_word(p, "set")) {
    return assignment(p, line, out);
  }
  if (skip_word(p, "macro")) {
    return macro(p, line, out);
  }
  if (skip_word(p, "generation")) {
    jinja_node *body;
    MK_TRY(block(p, generation_end, &body));
    p->token++;
    return make(p, NODE_SCOPE, line, body, NULL, out);
  }
  if (at_word(p, "break") || at_word(p, "continue")) {
    if (p->loops == 0) {
      return mk_jinja_fail(line, "'%.*s' stands outside of a loop", JINJA_SHOWN(p->token->value));
    }
    jinja_node_kind kind = at_word(p, "break") ? NODE_BREAK : NODE_CONTINUE;
    p->token++;
    return make(p, kind, line, NULL, NULL, out);
  }
  return mk_jinja_fail(line, "the tag '%.*s' is not supported or not expected here", JINJA_SHOWN(p->token->value));
}

static bool is_end(const parser *p, const char *const *ends) {
  for (size_t i = 0; ends != NULL && ends[i] != NULL; i++) {
    if (p->token[1].kind == TOKEN_NAME && mk_jinja_is(p->token[1].value, ends[i])) {
      return true;
    }
  }
  return false;
}

static mk_status statements(parser *p, const char *const *ends, jinja_node **out) {
  jinja_node **last = out;
  *out = NULL;
  MK_TRY(deeper(p));
  while (p->token->kind != TOKEN_END && !(p->token->kind == TOKEN_BLOCK && is_end(p, ends))) {
    uint32_t line = p->token->line;
    if (p->token->kind == TOKEN_TEXT) {
      MK_TRY(new_node(p, NODE_TEXT, last));
      (*last)->value = p->token++->value;
    } else if (p->token->kind == TOKEN_PRINT) {
      jinja_node *value;
      p->token++;
      MK_TRY(tuple(p, false, &value));
      if (p->token->kind != TOKEN_PRINT_END) {
        return unexpected(p, "the end of the tag");
      }
      p->token++;
      MK_TRY(make(p, NODE_PRINT, line, value, NULL, last));
    } else {
      p->token++;
      MK_TRY(statement(p, last));
      MK_TRY(end_tag(p));
    }
    last = &(*last)->next;
  }
  p->depth--;
  if (p->token->kind == TOKEN_END && ends != NULL) {
    size_t count = 0;
    while (ends[count + 1] != NULL) {
      count++;
    }
    return mk_jinja_fail(p->token->line, "the template ends inside a block; {%% %s %%} is missing", ends[count]);
  }
  p->token += ends != NULL; /* the start of the closing tag */
  return MK_OK;
}

mk_status mk_jinja_parse(jinja_pool *pool, const jinja_tokens *tokens, jinja_node **out) {
  parser p = {.pool = pool, .token = tokens->items};
  return statements(&p, NULL, out);
}
