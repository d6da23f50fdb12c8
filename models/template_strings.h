/* Operations on strings that filters and methods share. All take and give Python's str; the letters whose case changes are
 * those of ASCII: a text with others is refused, as their case needs Unicode's tables. Private to models/template*.c. */
#ifndef MK_TEMPLATE_STRINGS_H
#define MK_TEMPLATE_STRINGS_H

#include "models/template_internal.h"

typedef enum jinja_side { SIDE_LEFT = 1, SIDE_RIGHT = 2, SIDE_BOTH = 3 } jinja_side;
typedef enum jinja_case {
  CASE_UPPER,
  CASE_LOWER,
  CASE_CAPITAL, /* the first character of the text */
  CASE_TITLE,   /* of every word, as the filter counts words: behind white space and - ( { [ < */
  CASE_METHOD,  /* of every run of letters, as str.title() does */
} jinja_case;

/* `set`: the characters to take off; none or missing: white space. */
mk_status mk_jinja_strip(jinja *m, jinja_value text, jinja_value set, jinja_side side, jinja_value *out);
mk_status mk_jinja_case(jinja *m, jinja_value text, jinja_case how, jinja_value *out);
/* `count` < 0: all of them. */
mk_status mk_jinja_replace(jinja *m, jinja_value text, jinja_value from, jinja_value to, int64_t count,
                           jinja_value *out);
/* `separator`: none or missing: runs of white space. */
mk_status mk_jinja_split(jinja *m, jinja_value text, jinja_value separator, int64_t most, jinja_value *out);
/* Elements that are no strings are written as str() does if `convert`, and refused otherwise. */
mk_status mk_jinja_join(jinja *m, jinja_value separator, const jinja_list *list, bool convert, jinja_value *out);

#endif
