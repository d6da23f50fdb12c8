/* docs/ISA.md, written from the opcode table so that the manual cannot drift from it (`mkvm isa` prints it).
 * Owns nothing; any thread may call. Failure: MK_ERR_RUNTIME when the stream cannot be written. */
#ifndef MK_ISA_DOC_H
#define MK_ISA_DOC_H

#include <stdio.h>

#include "vm/status.h"

mk_status mk_isa_write(FILE *out);

/* What a parameter of that name means, or NULL: every parameter of the table has its line. */
const char *mk_isa_param_meaning(const char *name);

#endif
