/* What a drawn program has between its logits and the token, beside what the references make of the same logits: for
 * compare.c.
 *
 * A machine need not publish what nobody looks at, and a front may leave out what cannot win. So the references go on
 * from what they have made themselves, not from the machine's: SCOREs first, then the rounds of the search one after
 * the other, then DRAWs. Of a machine's fronts what counts is compared, the counts of the penalties whole, and the
 * choice, all of them by bits; rounds and scores are not.
 *
 * Nothing is kept. One thread. Failure: MK_ERR_DEVICE, with SM and instruction. */
#ifndef MK_COMPARE_DRAW_H
#define MK_COMPARE_DRAW_H

#include "instructions/reference.h"

/* Whether the instruction is compared here. */
bool mk_compare_draws(const mk_instruction *in);
/* Instructions are compared in the order of this, and of their uids where it is the same. */
uint32_t mk_compare_turn(const mk_instruction *in);
/* Whether the buffer goes from step to step, so that a reference needs it as it was before the step. */
bool mk_compare_is_carried(const mk_buffer *buffer);

/* After the reference has run. seen: the machine's memory, by buffer. */
mk_status mk_compare_drawn(const mk_reference *reference, uint8_t *const *seen, const mk_instruction *in);

#endif
