/* Statements: the tags of a template and the text between them. See template_parser.h. */
#include <string.h>

#include "text/template_parser.h"

static mk_status statements(jinja_parser *p, const char *const *ends, jinja_node **out);

static mk_status end_tag(jinja_parser *p) {
  if (p->token->kind != TOKEN_BLOCK_END) {
    return mk_jinja_unexpected(p, "the end of the tag");
  }
  p->token++;
  return MK_OK;
}

/* Statements up to a tag that starts with one of `ends`; the token is then that word. Takes the end of the opening tag,
 * and a colon in front of it, as in Python. */
static mk_status block(jinja_parser *p, const char *const *ends, jinja_node **out) {
  mk_jinja_skip_char(p, ':');
  MK_TRY(end_tag(p));
  return statements(p, ends, out);
}

/* The same up to one closing tag, whose word is taken. */
static mk_status whole_block(jinja_parser *p, const char *end, jinja_node **out) {
  const char *const ends[] = {end, NULL};
  MK_TRY(block(p, ends, out));
  p->token++;
  return MK_OK;
}

/* The same, but what is inside cannot break out of a loop around. */
static mk_status function_body(jinja_parser *p, const char *end, jinja_node **out) {
  unsigned loops = p->loops;
  p->loops = 0;
  MK_TRY(whole_block(p, end, out));
  p->loops = loops;
  return MK_OK;
}

/* An elif is an if of its own in the else of the one before; the last takes the endif. */
static mk_status branch(jinja_parser *p, uint32_t line, jinja_node **out) {
  static const char *const ends[] = {"elif", "else", "endif", NULL};
  jinja_node *condition, *body;
  MK_TRY(mk_jinja_deeper(p));
  MK_TRY(mk_jinja_parse_logic(p, true, &condition)); /* without a condition of its own, as in jinja2 */
  MK_TRY(block(p, ends, &body));
  MK_TRY(mk_jinja_make(p, NODE_IF, line, condition, body, out));
  uint32_t next = p->token->line;
  if (mk_jinja_skip_word(p, "elif")) {
    MK_TRY(branch(p, next, &(*out)->kids[2]));
    (*out)->kids[2]->is_elif = true;
  } else if (mk_jinja_skip_word(p, "else")) {
    MK_TRY(whole_block(p, "endif", &(*out)->kids[2]));
  } else {
    p->token++;
  }
  p->depth--;
  return mk_jinja_measure(*out);
}

static mk_status assignable(jinja_parser *p, jinja_node **out) {
  if (p->token->kind != TOKEN_NAME || mk_jinja_at_word(p, "in")) {
    return mk_jinja_unexpected(p, "a name to assign to");
  }
  MK_TRY(mk_jinja_parse_name(p, out));
  if ((*out)->kind != NODE_NAME) {
    return mk_jinja_unexpected(p, "a name to assign to");
  }
  p->token++;
  return MK_OK;
}

/* A name that no statement but `for` may give a value inside of a loop. */
static mk_status check_loop(const jinja_parser *p, const jinja_node *name) {
  return p->all_loops > 0 && mk_jinja_is(name->value, "loop")
             ? mk_jinja_fail(name->line, "inside of a loop, the name 'loop' cannot be assigned to")
             : MK_OK;
}

static mk_status target(jinja_parser *p, bool attributes, jinja_node **out);

/* A name, a tuple in brackets, or, with `attributes`, an attribute of a namespace. */
static mk_status simple_target(jinja_parser *p, bool attributes, jinja_node **out) {
  uint32_t line = p->token->line;
  if (mk_jinja_skip_char(p, '(')) {
    MK_TRY(mk_jinja_deeper(p));
    MK_TRY(target(p, attributes, out));
    p->depth--;
    return mk_jinja_expect_char(p, ')');
  }
  MK_TRY(assignable(p, out));
  if (!attributes || !mk_jinja_skip_char(p, '.')) {
    return check_loop(p, *out);
  }
  if (p->token->kind != TOKEN_NAME) {
    return mk_jinja_unexpected(p, "the name of an attribute");
  }
  MK_TRY(mk_jinja_make(p, NODE_ATTRIBUTE, line, *out, NULL, out));
  (*out)->value = p->token->value;
  p->token++;
  return MK_OK;
}

/* One target, or several that a tuple is taken apart into. */
static mk_status target(jinja_parser *p, bool attributes, jinja_node **out) {
  uint32_t line = p->token->line;
  jinja_node *first = NULL, **last = &first;
  bool several = false;
  do {
    if (last != &first && p->token->kind != TOKEN_NAME && !mk_jinja_at_char(p, '(')) {
      break; /* after a last comma */
    }
    if (last != &first && mk_jinja_at_word(p, "in")) {
      break;
    }
    MK_TRY(simple_target(p, attributes, last));
    last = &(*last)->next;
  } while (mk_jinja_skip_char(p, ',') && (several = true));
  if (several) {
    return mk_jinja_make(p, NODE_TUPLE, line, first, NULL, out);
  }
  *out = first;
  return MK_OK;
}

static mk_status loop(jinja_parser *p, uint32_t line, jinja_node **out) {
  static const char *const ends[] = {"else", "endfor", NULL};
  jinja_node *node, *items, **last = &items;
  bool several = false;
  MK_TRY(mk_jinja_new_node(p, NODE_FOR, &node));
  node->line = line;
  p->all_loops++;
  MK_TRY(target(p, false, &node->kids[0]));
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
  node->recursive = mk_jinja_skip_word(p, "recursive");
  p->loops++;
  MK_TRY(block(p, ends, &node->kids[2]));
  p->loops--;
  if (mk_jinja_skip_word(p, "else")) {
    unsigned loops = p->loops;
    p->loops = node->recursive ? 0 : loops;
    MK_TRY(whole_block(p, "endfor", &node->kids[3]));
    p->loops = loops;
  } else {
    p->token++;
  }
  p->all_loops--;
  *out = node;
  return mk_jinja_measure(node);
}

/* Filters to put what a block prints through, from the name of the first on. */
static mk_status block_filter(jinja_parser *p, jinja_node **out) {
  MK_TRY(mk_jinja_new_node(p, NODE_CAPTURED, out));
  do {
    MK_TRY(mk_jinja_parse_filter(p, out));
  } while (mk_jinja_skip_char(p, '|'));
  return MK_OK;
}

static mk_status assignment(jinja_parser *p, uint32_t line, jinja_node **out) {
  jinja_node *to, *value, *filter = NULL;
  MK_TRY(target(p, true, &to));
  if (mk_jinja_skip_char(p, '=')) {
    MK_TRY(mk_jinja_parse_tuple(p, false, &value));
    return mk_jinja_make(p, NODE_SET, line, to, value, out);
  }
  if (mk_jinja_skip_char(p, '|')) {
    MK_TRY(block_filter(p, &filter));
  }
  if (p->token->kind == TOKEN_OPERATOR && !mk_jinja_at_char(p, ':')) {
    return mk_jinja_unexpected(p, "'=', a filter or the end of the tag");
  }
  MK_TRY(whole_block(p, "endset", &value));
  MK_TRY(mk_jinja_make(p, NODE_SET_BLOCK, line, to, value, out));
  (*out)->kids[2] = filter;
  return mk_jinja_measure(*out);
}

/* After '(': the parameters of a macro or call block, each a name that may have a default. */
static mk_status parameters(jinja_parser *p, jinja_node **out) {
  jinja_node **last = out;
  bool defaults = false;
  *out = NULL;
  while (!mk_jinja_skip_char(p, ')')) {
    if (last != out) {
      MK_TRY(mk_jinja_expect_char(p, ','));
    }
    MK_TRY(assignable(p, last));
    for (const jinja_node *other = *out; other != *last; other = other->next) {
      if (other->value.length == (*last)->value.length &&
          memcmp(other->value.text, (*last)->value.text, other->value.length) == 0) {
        return mk_jinja_fail((*last)->line, "there are two parameters '%.*s'", JINJA_SHOWN(other->value));
      }
    }
    if (mk_jinja_skip_char(p, '=')) {
      defaults = true;
      MK_TRY(mk_jinja_parse_expression(p, &(*last)->kids[0]));
      MK_TRY(mk_jinja_measure(*last));
    } else if (defaults) {
      return mk_jinja_unexpected(p, "'=' and a default, as the parameter before has");
    }
    last = &(*last)->next;
  }
  return MK_OK;
}

static mk_status macro(jinja_parser *p, uint32_t line, jinja_node **out) {
  jinja_node *first, *body, *name;
  MK_TRY(assignable(p, &name));
  MK_TRY(check_loop(p, name));
  MK_TRY(mk_jinja_expect_char(p, '('));
  MK_TRY(parameters(p, &first));
  MK_TRY(function_body(p, "endmacro", &body));
  MK_TRY(mk_jinja_make(p, NODE_MACRO, line, first, body, out));
  (*out)->kids[2] = name;
  (*out)->value = name->value;
  return MK_OK;
}

static mk_status call_block(jinja_parser *p, uint32_t line, jinja_node **out) {
  jinja_node *first = NULL, *call, *body;
  if (mk_jinja_skip_char(p, '(')) {
    MK_TRY(parameters(p, &first));
  }
  MK_TRY(mk_jinja_parse_expression(p, &call));
  if (call->kind != NODE_CALL) {
    return mk_jinja_fail(line, "'call' is followed by something that is not the call of a macro");
  }
  MK_TRY(function_body(p, "endcall", &body));
  MK_TRY(mk_jinja_make(p, NODE_CALL_BLOCK, line, first, body, out));
  (*out)->kids[2] = call;
  (*out)->value = mk_jinja_literal("caller");
  return mk_jinja_measure(*out);
}

static mk_status with(jinja_parser *p, uint32_t line, jinja_node **out) {
  jinja_node *targets = NULL, **last_target = &targets, *values = NULL, **last_value = &values, *body;
  while (p->token->kind != TOKEN_BLOCK_END && !mk_jinja_at_char(p, ':')) {
    unsigned loops = p->all_loops;
    if (last_target != &targets) {
      MK_TRY(mk_jinja_expect_char(p, ','));
    }
    p->all_loops = 0; /* the name `loop` may be used */
    MK_TRY(simple_target(p, false, last_target));
    p->all_loops = loops;
    MK_TRY(mk_jinja_expect_char(p, '='));
    MK_TRY(mk_jinja_parse_expression(p, last_value));
    last_target = &(*last_target)->next;
    last_value = &(*last_value)->next;
  }
  MK_TRY(whole_block(p, "endwith", &body));
  MK_TRY(mk_jinja_make(p, NODE_WITH, line, targets, values, out));
  (*out)->kids[2] = body;
  return mk_jinja_measure(*out);
}

static mk_status filter_block(jinja_parser *p, uint32_t line, jinja_node **out) {
  jinja_node *filter, *body;
  MK_TRY(block_filter(p, &filter));
  MK_TRY(whole_block(p, "endfilter", &body));
  return mk_jinja_make(p, NODE_FILTER_BLOCK, line, body, filter, out);
}

static mk_status generation(jinja_parser *p, uint32_t line, jinja_node **out) {
  jinja_node *body;
  MK_TRY(function_body(p, "endgeneration", &body));
  return mk_jinja_make(p, NODE_CALL_BLOCK, line, NULL, body, out);
}

static mk_status print(jinja_parser *p, uint32_t line, jinja_node **out) {
  jinja_node *value, **last = out;
  do {
    MK_TRY(mk_jinja_parse_expression(p, &value));
    MK_TRY(mk_jinja_make(p, NODE_PRINT, line, value, NULL, last));
    last = &(*last)->next;
  } while (mk_jinja_skip_char(p, ','));
  return MK_OK;
}

static mk_status jump(jinja_parser *p, uint32_t line, jinja_node **out) {
  if (p->loops == 0) {
    return mk_jinja_fail(line, "'%.*s' stands outside of a loop", JINJA_SHOWN(p->token->value));
  }
  jinja_node_kind kind = mk_jinja_at_word(p, "break") ? NODE_BREAK : NODE_CONTINUE;
  p->token++;
  return mk_jinja_make(p, kind, line, NULL, NULL, out);
}

static mk_status statement(jinja_parser *p, jinja_node **out) {
  static const struct {
    const char *name;
    mk_status (*parse)(jinja_parser *p, uint32_t line, jinja_node **out);
  } tags[] = {
      {"if", branch},       {"for", loop},  {"set", assignment},      {"macro", macro},
      {"call", call_block}, {"with", with}, {"filter", filter_block}, {"generation", generation},
      {"print", print},
  };
  uint32_t line = p->token->line;
  if (p->token->kind != TOKEN_NAME) {
    return mk_jinja_unexpected(p, "the name of a tag");
  }
  for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
    if (mk_jinja_skip_word(p, tags[i].name)) {
      return tags[i].parse(p, line, out);
    }
  }
  if (mk_jinja_at_word(p, "break") || mk_jinja_at_word(p, "continue")) {
    return jump(p, line, out);
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
    while (*last != NULL) { /* {% print %} may be several */
      last = &(*last)->next;
    }
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
