/* What the edits of generated programs (generated.h) are made of. Shared by edits.c, edits_order.c,
 * edits_parts.c and edits_boundary.c. */
#ifndef MK_TEST_EDITS_H
#define MK_TEST_EDITS_H

#include "tests/mutation/mutation.h"

/* A change; false: there is no place for it, and the program is as it was. */
typedef bool edit_change(mk_program *p, uint64_t *random);

typedef struct edit {
  const char *name;
  edit_change *change;
  uint32_t weight;
  bool order;
} edit;

/* Of the token boundary (edits_boundary.c), for edits_parts.c. */
edit_change edit_empty_head, edit_other_candidates, edit_other_writer, edit_signal_next, edit_drop_next,
    edit_change_search;

extern const edit edit_orders[], edit_parts[];
extern const size_t edit_order_count, edit_part_count;

static inline uint32_t edit_draw(uint64_t *random, uint32_t below) {
  return below == 0 ? 0 : mutation_draw(random, below);
}
static inline mk_instruction *edit_any(mk_program *p, uint64_t *random) {
  return &p->instructions[mutation_draw(random, (uint32_t)p->instruction_count)];
}
/* A random instruction of the opcode, or NULL. */
mk_instruction *edit_any_of(mk_program *p, mk_opcode opcode, uint64_t *random);
uint32_t edit_queue_of(const mk_program *p, uint32_t index);
/* Takes instruction `index` out of its queue and puts it at place `at` of queue `queue` (which then has it). */
void edit_move(mk_program *p, uint32_t index, uint32_t queue, uint32_t at);
/* Puts a copy of an instruction, with a uid of its own, at a place; NULL for lack of memory. */
mk_instruction *edit_insert(mk_program *p, const mk_instruction *in, uint32_t queue, uint32_t at);
void edit_remove(mk_program *p, uint32_t index);
/* A buffer like another one, of another name; MK_NO_BUFFER for lack of room. */
enum { EDIT_NO_BUFFER = 0xffff };
uint16_t edit_clone(mk_program *p, uint16_t buffer);
/* Gives the buffer tiles of another size, and operands what they had, in the new tiles; false: they would not have. */
bool edit_retile(mk_program *p, uint16_t buffer, uint32_t tile_rows, uint32_t tile_cols);

#endif
