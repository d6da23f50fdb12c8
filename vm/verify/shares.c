/* Phase 1, of attention that is shared: rule L05.
 *
 * The shares of a tile of lines and a KV head write one rectangle, each the lines and heads of its items of the work
 * list. Which ones these are is data; the list's checker (vm/program/attend_list.h) says that every active line is in
 * one item with each head, and in no other. So what shares of one tile write in one step is disjoint, and together all
 * of it, if every share from the first to the last is carried out once: that is proven here. Shares of another step,
 * layer or tile are ordered with these as everybody is (race.c). */
#include <stdlib.h>
#include <string.h>

#include "vm/verify/internal.h"

typedef struct mk_share_of { /* an instruction that has a work list */
  const mk_instruction *in;
  uint32_t index;
} mk_share_of;

/* All but the share itself: operands, shares and scale. */
static int compare_teams(const mk_instruction *a, const mk_instruction *b) {
  const uint32_t *x = a->params, *y = b->params;
  const int order = memcmp(a->operands, b->operands, sizeof a->operands);
  if (order != 0) {
    return order;
  }
  if (x[MK_PARAM_ATTEND_shares] != y[MK_PARAM_ATTEND_shares]) {
    return x[MK_PARAM_ATTEND_shares] < y[MK_PARAM_ATTEND_shares] ? -1 : 1;
  }
  return memcmp(&x[MK_PARAM_ATTEND_scale], &y[MK_PARAM_ATTEND_scale], sizeof *x);
}

static int by_share(const void *a, const void *b) {
  const mk_share_of *x = a, *y = b;
  const uint32_t share_x = x->in->params[MK_PARAM_ATTEND_share], share_y = y->in->params[MK_PARAM_ATTEND_share];
  const int order = compare_teams(x->in, y->in);
  if (order != 0 || share_x == share_y) {
    return order != 0 ? order : x->index < y->index ? -1 : x->index > y->index;
  }
  return share_x < share_y ? -1 : 1;
}

/* Whether shares[0] begins a team, and is followed by all others. */
static mk_status check_team(mk_verifier *v, const mk_share_of *shares, size_t left, uint32_t team) {
  const uint32_t count = shares[0].in->params[MK_PARAM_ATTEND_shares];
  for (uint32_t i = 0; i < count; i++) {
    const bool same = i < left && compare_teams(shares[i].in, shares[0].in) == 0;
    if (!same || shares[i].in->params[MK_PARAM_ATTEND_share] != i) {
      return mk_reject(v, "L05", shares[same ? i : 0].index,
                       "share %u of %u is %s; of the rows of a tile each share is carried out once", i, count,
                       same ? "not there, or this one is there twice" : "not there");
    }
    v->team_of[shares[i].index] = team;
  }
  return MK_OK;
}

mk_status mk_verify_shares(mk_verifier *v) {
  const mk_program *p = v->program;
  mk_share_of *shares;
  size_t count = 0, at = 0;
  uint32_t team = 0;
  mk_status status = MK_OK;
  MK_TRY(mk_alloc(p->instruction_count, sizeof *v->team_of, &v->team_of));
  MK_TRY(mk_alloc(p->instruction_count, sizeof *shares, &shares));
  for (uint32_t i = 0; i < p->instruction_count; i++) {
    const int slot = mk_opcode_reads(mk_info(mk_at(v, i)), MK_CONTENT_WORK);
    if (slot >= 0 && !mk_operand_empty(&mk_at(v, i)->operands[slot])) {
      shares[count++] = (mk_share_of){mk_at(v, i), i};
    }
  }
  if (count != 0) {
    qsort(shares, count, sizeof *shares, by_share);
  }
  while (at < count && status == MK_OK) {
    status = check_team(v, shares + at, count - at, ++team);
    at += shares[at].in->params[MK_PARAM_ATTEND_shares];
  }
  mk_free(shares);
  return status;
}
