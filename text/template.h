/* Chat templates: Jinja without what needs other files, rendered as transformers' apply_chat_template does (jinja2's
 * ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loop controls).
 *
 * A template is immutable once compiled: any thread may render it. Nothing of the arguments is kept. Failure:
 * MK_ERR_FILE for a template that is malformed, uses what is not supported (named, with its line) or exceeds a limit
 * below; MK_ERR_USAGE when the template itself refuses the conversation with raise_exception; MK_ERR_RUNTIME for
 * memory.
 *
 * Supported, as jinja2 3.1 has it in ImmutableSandboxedEnvironment:
 * - statements: if, for (with a filter, else, recursive, break, continue), set (of several names, of namespace
 * attributes, as a block with a filter), macro, call, with, filter, raw, print and transformers' generation; scopes are
 * those of jinja2 (template_scope.c);
 * - every operator, `%` of strings among them; arguments by * and **; varargs, kwargs and caller;
 * - the filters of template_filters*.c and template_lazy.c, which are all of jinja2 but pprint, random, striptags,
 * urlize and wordwrap; all tests;
 * - the methods of strings but encode, expandtabs, isidentifier, maketrans and translate; those of lists and dicts that
 * change nothing;
 * - cycler, dict, joiner, namespace, raise_exception, range, strftime_now.
 * Upper and lower case, and what is a letter, are those of Python 3.11 in every script (letters.h).
 *
 * Refused by name: block, extends, include, import, autoescape and what belongs to them (self, super), lipsum, the
 * attributes of numbers, names beyond ASCII. Whole numbers have 64 bits: what would need more is an error. Where Python
 * would print an address, as of a generator, printing is refused. A filter that is not there is an error where it is
 * reached, inside of an if, and at once elsewhere, as in jinja2. */
#ifndef MK_TEMPLATE_H
#define MK_TEMPLATE_H

#include <jansson.h>
#include <time.h>

#include "vm/status.h"

enum {
  MK_TEMPLATE_MAX_BYTES = 1 << 20,   /* of a template */
  MK_TEMPLATE_MAX_NESTING = 200,     /* of its expressions and blocks */
  MK_TEMPLATE_MAX_DEPTH = 500,       /* of evaluation, macro calls included */
  MK_TEMPLATE_MAX_STEPS = 1 << 22,   /* expressions evaluated, and 64 bytes of text looked at */
  MK_TEMPLATE_MAX_OUTPUT = 16 << 20, /* bytes */
  MK_TEMPLATE_MAX_MEMORY = 64 << 20, /* bytes of intermediate values */
};

typedef struct mk_template mk_template;

/* text[0, length) is UTF-8 and need not be NUL-terminated. */
mk_status mk_template_compile(const char *text, size_t length, mk_template **out);
void mk_template_free(mk_template *compiled); /* NULL is fine */

/* `variables`: an object whose members the template sees by name. `now`: what strftime_now formats. *text is
 * NUL-terminated (it may hold NULs too) and the caller's (mk_free); *length does not count the NUL. */
mk_status mk_template_render(const mk_template *compiled, const json_t *variables, const struct tm *now, char **text,
                             size_t *length);

#endif
