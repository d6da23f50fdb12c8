/* NCCL, opened at run time as the driver is (driver.h): for memory that ranks in several processes share, and for
 * nothing else. No collective of it runs here, and nothing of multicast.
 *
 * One table of the entry points that are used, made by the first mk_nccl_open of the process and kept until it ends.
 * Any thread may call. Failure: MK_ERR_RUNTIME with one line that says whether NCCL is missing, too old, or one whose
 * windows this mkvm does not know.
 *
 * Versions: 2.28 is the first one whose windows a kernel may address by itself. From 2.29 on ncclGetPeerDevicePointer
 * tells the host where another rank's part of a window is. 2.28 has no such call; there a window's handle is the
 * device address of a structure that nccl_device.h publishes (mk_nccl_window_words), and the host reads it. Names and
 * signatures: nccl.h and nccl_device/core.h of 2.28.9 and 2.30.7; types are spelled here so that no header of NCCL is
 * needed. */
#ifndef MK_GPU_NCCL_H
#define MK_GPU_NCCL_H

#include "vm/status.h"

typedef int mk_nccl_result; /* 0: success */
typedef struct mk_nccl_comm *mk_nccl_comm_ref;
typedef struct mk_nccl_window *mk_nccl_window_ref;

/* By which the ranks of a communicator find each other; made by one of them. */
typedef struct mk_nccl_id {
  char bytes[128];
} mk_nccl_id;

enum {
  MK_NCCL_OLDEST = 22800,      /* 10000 major + 100 minor + patch */
  MK_NCCL_TELLS_PEERS = 22900, /* from here on there must be ncclGetPeerDevicePointer */
  MK_NCCL_WINDOW_DEFAULT = 0,  /* NCCL_WIN_DEFAULT: nothing of multicast */
  MK_NCCL_WINDOW_ALIGNMENT = 4096,
};

/* How ncclWindow_vidmem begins, which a window's handle of 2.28 points to. The part of rank r of those that reach each
 * other's memory begins at flat_base + r * stride_4g * 4 GiB. */
typedef struct mk_nccl_window_words {
  uint64_t host, flat_base;
  int32_t lsa_rank, world_rank; /* this rank among those, and among all */
  uint32_t stride_4g, multicast_4k;
} mk_nccl_window_words;

/* FUNCTION(result, member, symbol in libnccl, parameters) */
#define MK_NCCL_FUNCTIONS(FUNCTION)                                                                    \
  FUNCTION(mk_nccl_result, get_version, "ncclGetVersion", (int *version))                              \
  FUNCTION(mk_nccl_result, get_id, "ncclGetUniqueId", (mk_nccl_id * id))                               \
  FUNCTION(mk_nccl_result, comm_new, "ncclCommInitRank",                                               \
           (mk_nccl_comm_ref * comm, int ranks, mk_nccl_id id, int rank))                              \
  FUNCTION(mk_nccl_result, comm_free, "ncclCommDestroy", (mk_nccl_comm_ref comm))                      \
  FUNCTION(mk_nccl_result, comm_abort, "ncclCommAbort", (mk_nccl_comm_ref comm))                       \
  FUNCTION(mk_nccl_result, memory_new, "ncclMemAlloc", (void **memory, size_t bytes))                  \
  FUNCTION(mk_nccl_result, memory_free, "ncclMemFree", (void *memory))                                 \
  FUNCTION(mk_nccl_result, window_new, "ncclCommWindowRegister",                                       \
           (mk_nccl_comm_ref comm, void *memory, size_t bytes, mk_nccl_window_ref *window, int flags)) \
  FUNCTION(mk_nccl_result, window_free, "ncclCommWindowDeregister",                                    \
           (mk_nccl_comm_ref comm, mk_nccl_window_ref window))                                         \
  FUNCTION(const char *, error_text, "ncclGetErrorString", (mk_nccl_result result))                    \
  FUNCTION(const char *, last_error, "ncclGetLastError", (mk_nccl_comm_ref comm))

typedef struct mk_nccl {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): parts of a declaration */
#define MK_NCCL_MEMBER(result, member, symbol, parameters) result(*member) parameters;
  MK_NCCL_FUNCTIONS(MK_NCCL_MEMBER)
#undef MK_NCCL_MEMBER
  /* ncclGetPeerDevicePointer; NULL in 2.28. *out is NULL for a rank whose memory this one does not reach. */
  mk_nccl_result (*peer_pointer)(mk_nccl_window_ref window, size_t offset, int peer, void **out);
  int version;
} mk_nccl;

/* *out is valid until the process ends. */
mk_status mk_nccl_open(const mk_nccl **out);

/* MK_OK for result 0; else MK_ERR_DEVICE and "<what>: <NCCL's words>". */
mk_status mk_nccl_check(const mk_nccl *nccl, mk_nccl_result result, const char *what);

#endif
