/* What the files of a group share: rendezvous.c (how its processes find each other), group.c (messages, and who is
 * gone), follow.c (what rank 0 asks for). Rules as in group.h. */
#ifndef MK_GPU_GROUP_INTERNAL_H
#define MK_GPU_GROUP_INTERNAL_H

#include <pthread.h>

#include "vm/gpu/group.h"
#include "vm/gpu/machine_internal.h"
#include "vm/gpu/nccl.h"

enum {
  MK_GROUP_MACHINES = 4, /* that a process may open at a time */
  MK_GROUP_WHY = 400,    /* bytes of a message that travels */
  MK_GROUP_LOOK_MS = 50, /* from one look around to the next, while it waits */
};

/* Who a process is, and what has to be the same on all of them; it travels as it is. */
typedef struct mk_group_member {
  uint32_t rank, ranks, device, pid;
  int32_t nccl;  /* its version */
  uint32_t zero; /* no byte of it is left open */
  uint64_t model;
  uint8_t uuid[16]; /* of the GPU */
  char version[64], host[64], boot[40], gpu[64];
} mk_group_member;

typedef struct mk_group_peer {
  int fd; /* -1: none */
  mk_group_member who;
  char name[128];    /* "rank 2 (host, process 17)" */
  uint64_t heard_ms; /* when it last said something */
} mk_group_peer;

/* What goes over a line. Notes may come at any time; an order of rank 0 has an answer from each other rank. */
typedef enum mk_group_kind {
  MK_NOTE_HERE = 1, /* still at work */
  MK_NOTE_STOP,     /* to rank 0: it was asked to stop */
  MK_NOTE_END,      /* the process ends; status, and why */
  MK_GROUP_ANSWER,  /* to an order, and of ranks that agree */
  MK_ORDER_WRITE,   /* to buffer a from byte b on */
  MK_ORDER_READ,    /* c bytes of buffer a from byte b on */
  MK_ORDER_CLEAR,
  MK_ORDER_PREPARE, /* a launch of a steps; its plan */
  MK_ORDER_START,
  MK_ORDER_FINISH,
  MK_ORDER_BANDWIDTH, /* read a bytes */
} mk_group_kind;

typedef struct mk_group_head {
  uint32_t magic, kind;
  uint32_t machine; /* of an order */
  int32_t status;   /* of an answer, and of a process that ends */
  uint64_t a, b, c;
  uint64_t bytes; /* that follow: a text where the status is not MK_OK */
} mk_group_head;

struct mk_group {
  uint32_t rank, ranks;
  uint64_t deadline_ms;
  const volatile sig_atomic_t *cancel;
  volatile sig_atomic_t *stop;
  mk_group_peer peers[MK_GPU_MOST_RANKS]; /* of rank 0 all others, by rank; of another one rank 0 alone */
  mk_nccl_id id;
  mk_gpu *machines[MK_GROUP_MACHINES]; /* in the order in which they were opened; NULL: closed again */
  uint32_t machine_count;
  bool leads, follows;
  bool over;        /* rank 0 has ended in good order, or this process has */
  bool stuck;       /* a call of NCCL was given up, and goes on */
  bool stopping;    /* rank 0 has been told to stop */
  mk_status broken; /* MK_OK: it is not */
  char why[MK_GROUP_WHY];
  uint64_t said_ms; /* of another rank than 0: when it last said that it is at work */
  /* Rank 0 says so by a thread, as its caller may wait for a user. */
  pthread_t ticker;
  pthread_mutex_t sending; /* one message at a time */
  bool ticks;              /* the thread runs */
  int done;                /* atomic: it is to end */
};

uint64_t mk_group_now_ms(void);

/* What ends a group may fail, and leaves the message of what went wrong before. */
typedef struct mk_group_kept {
  char text[1024];
} mk_group_kept;
mk_group_kept mk_group_keep_message(void);
void mk_group_restore_message(const mk_group_kept *kept);

bool mk_group_start_thread(pthread_t *thread, void *(*run)(void *user), void *user);

/* rendezvous.c. Fills in the lines to all peers, and the id, or fails by the deadline. */
mk_status mk_group_meet(mk_group *group, const char *address, const mk_group_member *own);

/* group.c. Writes or reads so many bytes; MK_ERR_RUNTIME, and a message without a name, when the other end is gone, or
 * says or takes nothing for a deadline (0: now_ms is not looked at). */
mk_status mk_group_put(int fd, const void *from, size_t bytes, uint64_t until_ms);
/* A peer's message, whole. */
mk_status mk_group_send(mk_group *group, mk_group_peer *peer, mk_group_head head, const void *data);
/* Breaks the group, and lets all others know. */
mk_status mk_group_break(mk_group *group, mk_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The others may have been silent: from here on the deadline counts. */
void mk_group_expect(mk_group *group);
/* Whether a peer's next message that is no note is there, or the group is over. */
mk_status mk_group_find(mk_group *group, mk_group_peer *peer, bool at_work, mk_group_head *head, bool *found);
/* Waits for a peer's next message that is no note; *data is NULL or to be freed. */
mk_status mk_group_receive(mk_group *group, mk_group_peer *peer, bool at_work, mk_group_head *head, void **data);
/* All ranks come here, in the same state. Fails on all of them where the values differ: `what` names these. */
mk_status mk_group_agree(mk_group *group, uint64_t value, const char *what);

/* Of rank 0: sends an order to all others, and takes their answers. */
mk_status mk_group_order(mk_group *group, mk_group_head order, const void *data);
/* Called with each rank's answer; it may fail. */
typedef mk_status mk_group_answer_fn(void *user, uint32_t rank, const void *data, uint64_t bytes);
/* After this process has done its own part, which went so; fn may be NULL. */
mk_status mk_group_answers(mk_group *group, mk_status own, mk_group_answer_fn *fn, void *user);

/* A machine gets its number in the group, which is the same on all ranks. */
mk_status mk_group_add(mk_group *group, mk_gpu *gpu);
void mk_group_remove(mk_gpu *gpu);
/* Of another rank: answers an order. */
mk_status mk_group_answer(mk_group *group, mk_status status, const void *data, uint64_t bytes);

/* follow.c. What a machine of rank 0 does, those of the others do, too: `order` tells them, and `ordered` waits for
 * them after this process has done its own part, which went so. Nothing happens where no others follow. */
mk_status mk_gpu_order(const mk_gpu *gpu, mk_group_head order, const void *data);
mk_status mk_gpu_ordered(const mk_gpu *gpu, mk_status own, mk_group_answer_fn *fn, void *user);
/* While weights are loaded: says that this process is at work, and hears of the others. */
mk_status mk_gpu_still_here(const mk_gpu *gpu);
/* Puts what an answer to MK_ORDER_READ has in its place among bytes [offset, offset + bytes) of the buffer. */
mk_status mk_group_each_run(const void *data, uint64_t size, void *to, uint64_t offset, uint64_t bytes);

#endif
