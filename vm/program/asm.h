/* The assembler: text as disasm.h describes it becomes a program, so that a person can write one.
 *
 * For every program that a file can hold, assembling what mk_disassemble printed gives the same bytes back. A person
 * may leave out what follows from the rest:
 *   - all of a machine but sms: then it is the latency machine; ranges: then 0..0, and a batch of 1..1;
 *   - of a buffer scope (gpu), proxy (generic+async) and rank (0); of a counter scope (gpu), rank (0) and total (the
 *     sum of its signals);
 *   - of an operand the rectangle: then it is the whole buffer; parameters: then 0; pages and resident: then what
 *     mk_instruction_pages and mk_instruction_resident say.
 * What is written stands, be it right or wrong, as far as an instruction word can hold it (an operand of extent WHOLE
 * takes no rectangle but that of its whole buffer, or one without tiles): judging a program is the verifier's part.
 * From `;` to the end of a line is a comment, empty lines are skipped, numbers may be 0x..., and the fields of a line
 * come in any order. The first line is `mkvm-program 1`; `machine` comes before what depends on it; declarations come
 * before the first queue; queues rise, and one that is not named is empty.
 *
 * The caller owns the program (mk_program_free) and the text, of which nothing is kept; any bytes may be passed. Any
 * thread may call. Failure: MK_ERR_FILE with the line and the words at fault, MK_ERR_RUNTIME for memory and I/O. */
#ifndef MK_ASM_H
#define MK_ASM_H

#include "vm/program/program.h"

mk_status mk_assemble(const char *text, size_t length, mk_program **out);
/* The same for a file; messages begin with its name. */
mk_status mk_assemble_file(const char *path, mk_program **out);

#endif
