/* What program.c, program_file.c and trace_file.c share: checks that hold for a program in memory and in a file. Same
 * rules as program.h; the callers put the file's name before a message. */
#ifndef MK_PROGRAM_INTERNAL_H
#define MK_PROGRAM_INTERNAL_H

#include "vm/program/program.h"

enum { MK_STEP_BYTES = MK_TILE_STEP_ELEMENTS * 2 };
#define MK_MAX_ARENA (UINT64_C(1) << 48) /* no machine has more; sums of sizes below it cannot wrap */

mk_status mk_machine_check(const mk_machine *machine);

/* A name of buffers and counters: NUL-terminated in its `size` bytes, not empty, zeros after it. */
bool mk_name_valid(const char *name, size_t size);

/* mk_program_add_buffer without the search for a second buffer of that name, which the caller does. */
mk_status mk_program_append_buffer(mk_program *program, const mk_buffer *buffer, uint16_t *index);

#endif
