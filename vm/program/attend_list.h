/* The work list of a step: which rows ATTEND looks at together, for each tile of lines of a wide program of several
 * slots (scheduler/compile.h).
 *
 * An item is a run of lines of one slot at neighbouring positions, with some of the query heads of a KV head (the same
 * ones of every KV head): at most MK_ATTEND_QUERIES queries, which look at the same tokens. So the item of a decoding
 * row has all query heads of a KV head, and the cache is read once for them; an item of a whole tile of a prompt has
 * one query head. Items with the most tokens come first. Share s of n takes items s, s + n, s + 2 n, ... of its tile of
 * lines.
 *
 * A list is words: the number of items, which takes the place of one item, then the items. It follows from the plan:
 * when a machine is given a plan, it makes the lists and checks them. Which share has a line changes no bit.
 *
 * Plain data. Any thread may call. Failure: MK_ERR_USAGE, with item, field and value. */
#ifndef MK_ATTEND_LIST_H
#define MK_ATTEND_LIST_H

#include "vm/program/plan.h"

typedef struct mk_attend_item {
  uint32_t first, lines;   /* lines [first, first + lines) of the tile */
  uint32_t slot, position; /* of the first line */
  uint32_t head, heads;    /* query heads [head, head + heads) of a KV head */
  uint32_t zero[2];        /* room for a range of tokens */
} mk_attend_item;

enum {
  MK_ATTEND_ITEM_WORDS = sizeof(mk_attend_item) / sizeof(uint32_t),
  MK_ATTEND_QUERIES = 128,    /* lines x heads of an item, at most */
  MK_ATTEND_MOST_HEADS = 128, /* query heads of a KV head, at most */
};

/* Words of a list of a tile of so many lines, where a KV head has `group` query heads. */
static inline uint32_t mk_attend_list_words(uint32_t lines, uint32_t group) {
  return MK_ATTEND_ITEM_WORDS * (1 + lines + 2 * group);
}

/* The list of tile `tile` of the lines of a step, whose rows are `rows`. */
void mk_attend_list_make(const mk_program *program, const mk_step_row *rows, uint32_t tile, uint32_t group,
                         uint32_t *list);

/* What the verifier takes from a list: every active line of the tile is in one item, with each query head, and in no
 * other; an item's lines are active, of one slot and at neighbouring positions. */
mk_status mk_attend_list_check(const mk_program *program, const mk_step_row *rows, uint32_t tile, uint32_t group,
                               const uint32_t *list);

/* Makes the lists of all steps of a plan, which must have been checked, and checks them. `lists` is the program's
 * buffer for them, [steps][tiles of lines]. */
mk_status mk_attend_lists(const mk_program *program, const mk_plan_buffers *buffers, const mk_step_row *plan,
                          uint32_t steps, uint32_t *lists);

#endif
