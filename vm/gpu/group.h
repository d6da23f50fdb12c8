/* The processes of a model's ranks, one for each, on one host: how they find each other, and how rank 0 leads the
 * others (docs/RANKS.md, "Processes").
 *
 * Every process opens its group, and then the same machines in the same order (mk_gpu_options.group), and loads the
 * same weights: until then all of them do the same. Then rank 0 calls mk_group_lead: from there on what it asks of its
 * machines, the others do as well. They call mk_group_follow, which comes back when rank 0 ends. A process that ends
 * calls mk_group_end, frees its machines, and then its group.
 *
 * The line is a TCP connection from each rank to rank 0. It stays open while the group lives, so that a process that
 * dies is missed at once. A process that waits for others hears each second that they are there; the deadline is for
 * one that says nothing, as it stands still. NCCL is asked for memory that several processes see (windows.c), and for
 * nothing else.
 *
 * One thread. Failure: MK_ERR_USAGE for ranks that do not fit together, MK_ERR_RUNTIME for what keeps them from
 * meeting, MK_ERR_DEVICE for a rank that is lost later. Messages name the rank. After a failure the group is broken:
 * every later call fails with the same message, on all ranks, and all that is left is to end it. */
#ifndef MK_GPU_GROUP_H
#define MK_GPU_GROUP_H

#include <signal.h>

#include "vm/status.h"

enum {
  MK_GROUP_DEADLINE_S = 60,
  MK_GROUP_MOST_DEADLINE_S = 3600,
};

typedef struct mk_group mk_group;

typedef struct mk_group_options {
  uint32_t rank, ranks;
  const char *address; /* HOST:PORT, the same on all ranks: rank 0 listens there */
  uint32_t deadline_s; /* 0: MK_GROUP_DEADLINE_S */
  const char *version; /* of mkvm; ranks of different ones do not meet */
  /* Once it is not 0, waiting for others ends on rank 0; another rank tells rank 0 to stop. NULL: never. */
  const volatile sig_atomic_t *cancel;
  /* Of rank 0: becomes 1 when another rank says so. NULL: that is a failure. */
  volatile sig_atomic_t *stop;
} mk_group_options;

/* Waits until all ranks have met at the address. `model` stands for all that decides what their machines do; `device`
 * is this process's GPU. */
mk_status mk_group_open(const mk_group_options *options, uint64_t model, uint32_t device, mk_group **out);
/* Of rank 0: waits until all others follow. */
mk_status mk_group_lead(mk_group *group);
/* Of the others: does what rank 0 asks for, until it ends. */
mk_status mk_group_follow(mk_group *group);
/* Looks around without waiting: who is gone, who has ended, who is to stop, who has said nothing for too long. Rank 0
 * is heard of all the time, and the others while they are `at_work`. Fails when the group is broken. */
mk_status mk_group_watch(mk_group *group, bool at_work);
/* Tells the others that this process ends, with its error if there is one; NULL is fine. */
void mk_group_end(mk_group *group, mk_status status);
void mk_group_free(mk_group *group); /* NULL is fine; not before its machines */

uint32_t mk_group_rank(const mk_group *group);
uint32_t mk_group_ranks(const mk_group *group);

#endif
