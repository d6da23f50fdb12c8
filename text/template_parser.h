/* What the parts of the template parser share: expressions (template_parse.c, template_primary.c) and statements
 * (template_statements.c).
 *
 * Private to them. Nodes lie in the parser's pool. Failure: MK_ERR_FILE with the template's line. */
#ifndef MK_TEMPLATE_PARSER_H
#define MK_TEMPLATE_PARSER_H

#include "text/template_tree.h"

typedef struct jinja_parser {
  jinja_pool *pool;
  const jinja_token *token;
  unsigned depth;
  unsigned loops, all_loops; /* inside how many `for` of this macro, and in all */
} jinja_parser;

/* The token at hand. skip: takes it if it is that one; expect: an error if it is not. */
bool mk_jinja_at_symbol(const jinja_parser *p, uint16_t symbol);
bool mk_jinja_at_char(const jinja_parser *p, char c);
bool mk_jinja_at_word(const jinja_parser *p, const char *word);
bool mk_jinja_skip_char(jinja_parser *p, char c);
bool mk_jinja_skip_word(jinja_parser *p, const char *word);
mk_status mk_jinja_unexpected(const jinja_parser *p, const char *wanted);
#ifdef __clang_analyzer__ /* as mk_error in vm/status.h */
#define mk_jinja_unexpected(...) (mk_jinja_unexpected(__VA_ARGS__), MK_ERR_FILE)
#endif
mk_status mk_jinja_expect_char(jinja_parser *p, char c);
/* A node at the token's line; measure sets its height from its kids, and refuses what is too deep; make does both. */
mk_status mk_jinja_new_node(jinja_parser *p, jinja_node_kind kind, jinja_node **out);
mk_status mk_jinja_measure(jinja_node *node);
mk_status mk_jinja_make(jinja_parser *p, jinja_node_kind kind, uint32_t line, jinja_node *a, jinja_node *b,
                        jinja_node **out);
/* One expression, or several with commas as a tuple: in parentheses, or up to the end of a tag. */
mk_status mk_jinja_parse_tuple(jinja_parser *p, bool parenthesised, jinja_node **out);
/* A word: a name, or one of the constants true, false and none. */
mk_status mk_jinja_parse_name(jinja_parser *p, jinja_node **out);
/* Called after `|`, or where a block names its filter: parses the filter, applied to *inout. */
mk_status mk_jinja_parse_filter(jinja_parser *p, jinja_node **inout);
/* What binds tighter than every binary operator. */
mk_status mk_jinja_parse_unary(jinja_parser *p, bool with_filters, jinja_node **out);
/* Counts a level of nesting; the caller takes it back. */
mk_status mk_jinja_deeper(jinja_parser *p);
/* `or` and what binds tighter (is_or), or `and` and what binds tighter: an expression without an inline if. */
mk_status mk_jinja_parse_logic(jinja_parser *p, bool is_or, jinja_node **out);
mk_status mk_jinja_parse_expression(jinja_parser *p, jinja_node **out);

#endif
