/* Records which elements of the buffers that a program writes have been written, and in which epoch. So the CPU machine
 * can tell a good read from one of something that nobody wrote, or that is left from an earlier step.
 *
 * Buffers of kind activation and output are recorded, element by element, padding of tiles included in none. Weights
 * and inputs are the host's. The KV cache holds what earlier steps have appended; that this is there is the block
 * table's matter.
 *
 * A mk_written owns its memory; the program outlives it. One thread. Failure: MK_ERR_RUNTIME for memory. */
#ifndef MK_WRITTEN_H
#define MK_WRITTEN_H

#include "vm/program/program.h"

typedef struct mk_written mk_written;

mk_status mk_written_new(const mk_program *program, mk_written **out);
void mk_written_free(mk_written *written); /* NULL is fine */

/* Nothing has been written: as after mk_written_new. */
void mk_written_clear(mk_written *written);

typedef struct mk_written_place { /* elements (row, [col, col + count)) of a buffer of the program */
  const mk_buffer *buffer;
  uint32_t row, col, count;
} mk_written_place;

void mk_written_note(mk_written *written, mk_written_place place, uint32_t generation);
/* false: one of them was not written in this generation. Then gap->col is its column, and gap->written the generation
 * of its last write (0: none). Buffers that are not looked at are always right. */
typedef struct mk_written_gap {
  uint32_t col, written;
} mk_written_gap;
bool mk_written_check(const mk_written *written, mk_written_place place, uint32_t generation, mk_written_gap *gap);

#endif
