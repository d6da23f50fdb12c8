/* Expressions: tokens to a syntax tree, by recursive descent. Here are the operators; what they stand between is in
 * template_primary.c, the statements around them in template_statements.c. */
#include <string.h>

#include "text/template_parser.h"

bool mk_jinja_at_symbol(const jinja_parser *p, uint16_t symbol) {
  return p->token->kind == TOKEN_OPERATOR && p->token->symbol == symbol;
}

bool mk_jinja_at_char(const jinja_parser *p, char c) { return mk_jinja_at_symbol(p, JINJA_OPERATOR(0, c)); }

bool mk_jinja_at_word(const jinja_parser *p, const char *word) {
  return p->token->kind == TOKEN_NAME && mk_jinja_is(p->token->value, word);
}

bool mk_jinja_skip_char(jinja_parser *p, char c) {
  bool is = mk_jinja_at_char(p, c);
  p->token += is;
  return is;
}

bool mk_jinja_skip_word(jinja_parser *p, const char *word) {
  bool is = mk_jinja_at_word(p, word);
  p->token += is;
  return is;
}

mk_status(mk_jinja_unexpected)(const jinja_parser *p, const char *wanted) {
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

/* Binary operators by how tightly they bind, the tightest last; all associate to the left. */
static mk_status binary(jinja_parser *p, int level, jinja_node **out) {
  static const uint16_t symbols[3][4] = {
      {JINJA_OPERATOR(0, '+'), JINJA_OPERATOR(0, '-')},
      {JINJA_OPERATOR(0, '*'), JINJA_OPERATOR(0, '/'), OPERATOR_FLOOR, JINJA_OPERATOR(0, '%')},
      {OPERATOR_POWER},
  };
  if (level == 4) {
    return mk_jinja_parse_unary(p, true, out);
  }
  MK_TRY(binary(p, level + 1, out));
  if (level == 1) { /* ~ takes all its parts at once */
    uint32_t line = p->token->line;
    jinja_node **last = &(*out)->next;
    if (!mk_jinja_at_char(p, '~')) {
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
    /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): what the table does not name is zero */
    for (size_t i = 0; i < 4 && mine[i] != 0; i++) {
      symbol = mk_jinja_at_symbol(p, mine[i]) ? mine[i] : symbol;
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
    if (mk_jinja_at_symbol(p, symbols[i])) {
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
