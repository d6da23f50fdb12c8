/* Operations on strings that filters and methods share. All take and give Python's str; what they give is markup where
 * `text` is. Private to text/template*.c. */
#ifndef MK_TEMPLATE_STRINGS_H
#define MK_TEMPLATE_STRINGS_H

#include "text/template_internal.h"

typedef enum jinja_side { SIDE_LEFT = 1, SIDE_RIGHT = 2, SIDE_BOTH = 3 } jinja_side;
typedef enum jinja_case {
  CASE_UPPER,
  CASE_LOWER,
  CASE_CAPITAL, /* the first character of the text */
  CASE_WORDS,   /* of every word, as the filter title counts words: after white space and - ( { [ < */
  CASE_TITLE,   /* of every run of letters, as str.title() does */
  CASE_SWAP,
  CASE_FOLD,
} jinja_case;

/* `set`: the characters to take off; none or missing: white space. */
mk_status mk_jinja_strip(jinja *m, jinja_value text, jinja_value set, jinja_side side, jinja_value *out);
/* In the letters of every script: template_case.c. */
mk_status mk_jinja_case(jinja *m, jinja_value text, jinja_case how, jinja_value *out);
/* `count` < 0: all of them. */
mk_status mk_jinja_replace(jinja *m, jinja_value text, jinja_value from, jinja_value to, int64_t count,
                           jinja_value *out);
/* `separator`: none or missing: runs of white space. At most `most` times, from the right if `last` ones count; < 0:
 * all. */
mk_status mk_jinja_split(jinja *m, jinja_value text, jinja_value separator, int64_t most, bool last, jinja_value *out);
mk_status mk_jinja_split_lines(jinja *m, jinja_value text, bool keep_ends, jinja_value *out);
/* Elements that are no strings are written as str() does if `convert`, and refused otherwise. */
mk_status mk_jinja_join(jinja *m, jinja_value separator, jinja_value items, bool convert, jinja_value *out);
/* To `width` characters with the one in `fill`; `left` and `right`: on which sides that goes. */
mk_status mk_jinja_pad(jinja *m, jinja_value text, int64_t width, jinja_value fill, bool left, bool right,
                       jinja_value *out);
/* Fails for what is no string: "WHAT: a TYPE is given where a string must be". */
mk_status mk_jinja_check_text(jinja *m, jinja_value v, const char *what);
/* A whole number, or `otherwise` when it is missing; fails for anything else. */
mk_status mk_jinja_take_whole(jinja *m, jinja_value v, int64_t otherwise, int64_t *out);

#endif
