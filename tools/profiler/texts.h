/* The instructions of a program as text, for files that carry them along.
 *
 * The caller frees what it gets with mk_free. One thread. Failure: MK_ERR_RUNTIME for memory. */
#ifndef MK_TEXTS_H
#define MK_TEXTS_H

#include "tools/profiler/bytes.h"
#include "vm/program/program.h"

/* The disassembler's lines of all instructions, in their order, each with a line end. */
mk_status mk_instruction_texts(const mk_program *program, mk_bytes *out);

#endif
