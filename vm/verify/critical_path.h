/* The longest chains of one epoch: what an instruction is held up by, and what it holds up.
 *
 * An edge leads from an instruction to one that runs after it in every run: the next of its queue, the readers of the
 * stamped words it writes, and those whose waits on a counter (release or relaxed) cannot end without its signal. An
 * instruction costs 1 plus the pages that it streams, which the verifier has compared with its operands (KV: at the
 * largest position). A chain costs the sum. That is a model: pages are loaded ahead, and time is not in it.
 *
 * It works on the verifier's tables (internal.h), which must be built. The caller owns the result and frees it with
 * mk_critical_path_free. One thread. Failure: MK_ERR_RUNTIME for memory. */
#ifndef MK_CRITICAL_PATH_H
#define MK_CRITICAL_PATH_H

#include "vm/verify/internal.h"

typedef enum mk_via { MK_VIA_NOTHING, MK_VIA_QUEUE, MK_VIA_STAMPS, MK_VIA_COUNTER } mk_via;

typedef struct mk_chain { /* the longest one that ends right before an instruction, or begins right after it */
  uint64_t cost;
  uint32_t neighbour; /* its instruction next to this one; MK_NONE_INDEX: the chain is empty */
  mk_via via;         /* how that one is tied to this */
  uint32_t through;   /* the buffer or the counter */
} mk_chain;

typedef struct mk_critical_path {
  bool cyclic;           /* the program deadlocks; nothing below is filled in */
  uint32_t *rank;        /* per instruction: its place in an order that all edges allow */
  mk_chain *head, *tail; /* per instruction */
  uint64_t longest;      /* cost of the longest chain of all */
} mk_critical_path;

static inline uint64_t mk_chain_cost(const mk_instruction *in) { return 1 + (uint64_t)in->pages; }

mk_status mk_critical_path_find(const mk_verifier *v, mk_critical_path *out);
void mk_critical_path_free(mk_critical_path *path);

#endif
