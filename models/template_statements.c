/* Statements: the tags of a template and the text between them. See template_parser.h. */
#include <string.h>

#include "models/template_parser.h"

static mk_status statements(jinja_parser *p, const char *const *ends, jinja_node **out);

static mk_status end_tag(jinja_parser *p) {
  if (p->token->kind != TOKEN_BLOCK_END) {
    return mk_jinja_unexpected(p, "the end of the tag");
  }
  p->token++;
  return MK_OK;
}

/* Statements up to a tag that starts with one of `ends`; the token is then that word. Takes the end of the opening tag. */
static mk_status block(jinja_parser *p, const char *const *ends, jinja_node **out) {
  MK_TRY(end_tag(p));
  return statements(p, ends, out);
}

/* An elif is an if of its own in the else of the one before; the last takes the endif. */
static mk_status branch(jinja_parser *p, uint32_t line, jinja_node **out) {
  static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last_end[] = {"endif", NULL};
  jinja_node *condition, *body;
  MK_TRY(mk_jinja_deeper(p));
  MK_TRY(mk_jinja_parse_logic(p, true, &condition)); /* without a condition of its own, as in jinja2 */
  MK_TRY(block(p, ends, &body));
  MK_TRY(mk_jinja_make(p, NODE_IF, line, condition, body, out));
  uint32_t next = p->token->line;
  if (mk_jinja_skip_word(p, "elif")) {
    MK_TRY(branch(p, next, &(*out)->kids[2]));
  } else if (mk_jinja_skip_word(p, "else")) {
    MK_TRY(block(p, last_end, &(*out)->kids[2]));
    p->token++;
  } else {
    p->token++;
  }
  p->depth--;
  return mk_jinja_measure(*out);
}

/* One name, or several that a tuple is taken apart into. */
static mk_status target(jinja_parser *p, jinja_node **out) {
  uint32_t line = p->token->line;
  jinja_node *first = NULL, **last = &first;
  bool several = false, parenthesised = mk_jinja_skip_char(p, '(');
  do {
    if (first != NULL && p->token->kind != TOKEN_NAME) {
      break;
    }
    if (p->token->kind != TOKEN_NAME || mk_jinja_at_word(p, "in") || mk_jinja_at_word(p, "loop")) {
      return mk_jinja_unexpected(p, "a name to assign to");
    }
    MK_TRY(mk_jinja_parse_name(p, last));
    if ((*last)->kind != NODE_NAME) {
      return mk_jinja_unexpected(p, "a name to assign to");
    }
    p->token++;
    last = &(*last)->next;
  } while (mk_jinja_skip_char(p, ',') && (several = true));
  if (parenthesised) {
    MK_TRY(mk_jinja_expect_char(p, ')'));
  }
  if (several) {
    return mk_jinja_make(p, NODE_TUPLE, line, first, NULL, out);
  }
  *out = first;
  return MK_OK;
}

static mk_status loop(jinja_parser *p, uint32_t line, jinja_node **out) {
  static const char *const ends[] = {"else", "endfor", NULL}, *const last_end[] = {"endfor", NULL};
  jinja_node *node, *items, **last = &items;
  bool several = false;
  MK_TRY(mk_jinja_new_node(p, NODE_FOR, &node));
  node->line = line;
  MK_TRY(target(p, &node->kids[0]));
  if (!mk_jinja_skip_word(p, "in")) {
    return mk_jinja_unexpected(p, "'in'");
  }
  do { /* a tuple needs no brackets; `if` belongs to the loop */
    MK_TRY(mk_jinja_parse_logic(p, true, last));
    last = &(*last)->next;
  } while (mk_jinja_skip_char(p, ',') && (several = true) && p->token->kind != TOKEN_BLOCK_END);
  if (several) {
    MK_TRY(mk_jinja_make(p, NODE_TUPLE, line, items, NULL, &items));
  }
  node->kids[1] = items;
  if (mk_jinja_skip_word(p, "if")) {
    MK_TRY(mk_jinja_parse_expression(p, &node->kids[4]));
  }
  if (mk_jinja_at_word(p, "recursive")) {
    return mk_jinja_fail(p->token->line, "recursive loops are not supported");
  }
  p->loops++;
  MK_TRY(block(p, ends, &node->kids[2]));
  p->loops--;
  if (mk_jinja_skip_word(p, "else")) {
    MK_TRY(block(p, last_end, &node->kids[3]));
  }
  p->token++;
  *out = node;
  return mk_jinja_measure(node);
}

static mk_status assignment(jinja_parser *p, uint32_t line, jinja_node **out) {
  static const char *const ends[] = {"endset", NULL};
  jinja_node *to, *value;
  if (p->token->kind == TOKEN_NAME && p->token[1].kind == TOKEN_OPERATOR &&
      p->token[1].symbol == JINJA_OPERATOR(0, '.')) {
    MK_TRY(mk_jinja_parse_name(p, &to));
    p->token += 2;
    if (p->token->kind != TOKEN_NAME) {
      return mk_jinja_unexpected(p, "the name of an attribute");
    }
    MK_TRY(mk_jinja_make(p, NODE_ATTRIBUTE, line, to, NULL, &to));
    to->value = p->token->value;
    p->token++;
  } else {
    MK_TRY(target(p, &to));
  }
  if (mk_jinja_skip_char(p, '=')) {
    MK_TRY(mk_jinja_parse_tuple(p, false, &value));
    return mk_jinja_make(p, NODE_SET, line, to, value, out);
  }
  if (p->token->kind == TOKEN_OPERATOR) {
    return mk_jinja_unexpected(p, "'=' or the end of the tag");
  }
  MK_TRY(block(p, ends, &value));
  p->token++;
  return mk_jinja_make(p, NODE_SET_BLOCK, line, to, value, out);
}

static mk_status macro(jinja_parser *p, uint32_t line, jinja_node **out) {
  static const char *const ends[] = {"endmacro", NULL};
  jinja_node *first = NULL, **last = &first, *body;
  if (p->token->kind != TOKEN_NAME) {
    return mk_jinja_unexpected(p, "the name of the macro");
  }
  jinja_value word = p->token->value;
  p->token++;
  MK_TRY(mk_jinja_expect_char(p, '('));
  bool defaults = false;
  while (!mk_jinja_skip_char(p, ')')) {
    if (first != NULL) {
      MK_TRY(mk_jinja_expect_char(p, ','));
    }
    if (p->token->kind != TOKEN_NAME) {
      return mk_jinja_unexpected(p, "the name of a parameter");
    }
    MK_TRY(mk_jinja_parse_name(p, last));
    p->token++;
    if (mk_jinja_skip_char(p, '=')) {
      defaults = true;
      MK_TRY(mk_jinja_parse_expression(p, &(*last)->kids[0]));
      MK_TRY(mk_jinja_measure(*last));
    } else if (defaults) {
      return mk_jinja_unexpected(p, "'=' and a default, as the parameter before has");
    }
    last = &(*last)->next;
  }
  unsigned loops = p->loops;
  p->loops = 0;
  MK_TRY(block(p, ends, &body));
  p->loops = loops;
  p->token++;
  MK_TRY(mk_jinja_make(p, NODE_MACRO, line, first, body, out));
  (*out)->value = word;
  return MK_OK;
}

static mk_status statement(jinja_parser *p, jinja_node **out) {
  static const char *const generation_end[] = {"endgeneration", NULL};
  uint32_t line = p->token->line;
  if (p->token->kind != TOKEN_NAME) {
    return mk_jinja_unexpected(p, "the name of a tag");
  }
  if (mk_jinja_skip_word(p, "if")) {
    return branch(p, line, out);
  }
  if (mk_jinja_skip_word(p, "for")) {
    return loop(p, line, out);
  }
  if (mk_jinja_skip_word(p, "set")) {
    return assignment(p, line, out);
  }
  if (mk_jinja_skip_word(p, "macro")) {
    return macro(p, line, out);
  }
  if (mk_jinja_skip_word(p, "generation")) {
    jinja_node *body;
    MK_TRY(block(p, generation_end, &body));
    p->token++;
    return mk_jinja_make(p, NODE_SCOPE, line, body, NULL, out);
  }
  if (mk_jinja_at_word(p, "break") || mk_jinja_at_word(p, "continue")) {
    if (p->loops == 0) {
      return mk_jinja_fail(line, "'%.*s' stands outside of a loop", JINJA_SHOWN(p->token->value));
    }
    jinja_node_kind kind = mk_jinja_at_word(p, "break") ? NODE_BREAK : NODE_CONTINUE;
    p->token++;
    return mk_jinja_make(p, kind, line, NULL, NULL, out);
  }
  return mk_jinja_fail(line, "the tag '%.*s' is not supported or not expected here", JINJA_SHOWN(p->token->value));
}

static bool is_end(const jinja_parser *p, const char *const *ends) {
  for (size_t i = 0; ends != NULL && ends[i] != NULL; i++) {
    if (p->token[1].kind == TOKEN_NAME && mk_jinja_is(p->token[1].value, ends[i])) {
      return true;
    }
  }
  return false;
}

static mk_status statements(jinja_parser *p, const char *const *ends, jinja_node **out) {
  jinja_node **last = out;
  *out = NULL;
  MK_TRY(mk_jinja_deeper(p));
  while (p->token->kind != TOKEN_END && !(p->token->kind == TOKEN_BLOCK && is_end(p, ends))) {
    uint32_t line = p->token->line;
    if (p->token->kind == TOKEN_TEXT) {
      MK_TRY(mk_jinja_new_node(p, NODE_TEXT, last));
      (*last)->value = p->token++->value;
    } else if (p->token->kind == TOKEN_PRINT) {
      jinja_node *value;
      p->token++;
      MK_TRY(mk_jinja_parse_tuple(p, false, &value));
      if (p->token->kind != TOKEN_PRINT_END) {
        return mk_jinja_unexpected(p, "the end of the tag");
      }
      p->token++;
      MK_TRY(mk_jinja_make(p, NODE_PRINT, line, value, NULL, last));
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
  jinja_parser p = {.pool = pool, .token = tokens->items};
  return statements(&p, NULL, out);
}
