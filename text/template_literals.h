/* Numbers and strings as a template writes them. Private to text/template*.c. */
#ifndef MK_TEMPLATE_LITERALS_H
#define MK_TEMPLATE_LITERALS_H

#include "text/template_tree.h"

/* The number at text[0], a digit; *used: its bytes. `element`: after a dot, where a number has no fraction. */
mk_status mk_jinja_read_number(uint32_t line, const char *text, size_t length, bool element, size_t *used,
                               jinja_value *out);
/* The string whose quote is text[0], with its escapes read as Python does. */
mk_status mk_jinja_read_string(jinja_pool *pool, uint32_t line, const char *text, size_t length, size_t *used,
                               jinja_value *out);

#endif
