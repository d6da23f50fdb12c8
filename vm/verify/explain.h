/* What orders one instruction of a program, as text: `mkvm verify --explain UID`.
 *
 * It tells the instruction's place and words, the neighbours of each of its roles in queue order, its waits and who
 * satisfies them, who writes what it reads and reads what it writes, who waits for its signals, and its place on the
 * critical path (critical_path.h). Long lists are cut and say by how much.
 *
 * It verifies the program on the way. Where only the last phase rejects it (deadlock, race, overrun) the text is
 * written all the same, because that is when one needs it; then the verifier's message is returned.
 *
 * The program stays the caller's; nothing is kept. Any thread may call. Failure: MK_ERR_REJECTED as mk_verify;
 * MK_ERR_USAGE when no instruction has that uid; MK_ERR_RUNTIME for memory and for a stream that cannot be written. */
#ifndef MK_EXPLAIN_H
#define MK_EXPLAIN_H

#include <stdio.h>

#include "vm/program/program.h"

mk_status mk_explain(const mk_program *program, uint32_t uid, FILE *out);

#endif
