/* Chat templates: the subset of Jinja that instruct templates of the Llama family use, rendered as transformers'
 * apply_chat_template does (jinja2's ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loop controls).
 *
 * A template is immutable once compiled: any thread may render it. Nothing of the arguments is kept. Failure: MK_ERR_FILE
 * for a template that is malformed, uses what is not supported (named, with its line) or exceeds a limit below;
 * MK_ERR_USAGE when the template itself refuses the conversation with raise_exception; MK_ERR_RUNTIME for memory.
 *
 * Supported: for with else, if, break and continue; if, elif, else; set, of namespace attributes and as a block too; macro;
 * generation blocks; every expression operator but the % of strings; the filters and tests listed in template_filters.c and
 * template_tests.c, the methods in template_methods.c; namespace, dict, range, raise_exception, strftime_now. Upper and
 * lower case are those of ASCII, and whole numbers have 64 bits: what would need more is an error. */
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

/* `variables`: an object whose members the template sees by name. `now`: what strftime_now formats. *text is NUL-terminated
 * (it may hold NULs too) and the caller's (mk_free); *length does not count the NUL. */
mk_status mk_template_render(const mk_template *compiled, const json_t *variables, const struct tm *now, char **text,
                             size_t *length);

#endif
