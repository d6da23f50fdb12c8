/* See fake_nccl.h. */
#define _GNU_SOURCE /* memfd_create */
#include "tests/fake_nccl/fake_nccl.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "vm/gpu/nccl.h"

enum { MOST_RANKS = 8, MOST_PIECES = 16, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, UNHANDLED = 1 };

typedef struct place { /* a file of another process */
  int pid, fd;
} place;

typedef struct meeting { /* what the ranks of a communicator share */
  atomic_uint arrived, generation;
  place windows[MOST_RANKS];
} meeting;

struct mk_nccl_comm {
  meeting *shared;
  int rank, ranks;
  mk_nccl_window_ref windows; /* those that are registered */
};

struct mk_nccl_window {
  mk_nccl_window_words words; /* what the handle points to */
  void *flat;
  size_t flat_bytes;
  mk_nccl_window_ref next;
};

static const size_t kStride = (size_t)1 << 32;

static fake_nccl state = {
#ifdef FAKE_NCCL_TELLS_PEERS
    .version = 22902,
#else
    .version = 22809,
#endif
};
static struct {
  void *memory;
  size_t bytes;
  int fd;
} pieces[MOST_PIECES];

fake_nccl *fake_nccl_state(void) { return &state; }

static void *map_file(place at, size_t bytes, void *to) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", at.pid, at.fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  void *memory = mmap(to, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (to == NULL ? 0 : MAP_FIXED), fd, 0);
  close(fd);
  return memory == MAP_FAILED ? NULL : memory;
}

static void meet(mk_nccl_comm_ref comm) {
  meeting *m = comm->shared;
  const unsigned generation = atomic_load(&m->generation);
  if (atomic_fetch_add(&m->arrived, 1) + 1 == (unsigned)comm->ranks) {
    atomic_store(&m->arrived, 0);
    atomic_fetch_add(&m->generation, 1);
  }
  struct timespec since;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &since);
  state.inside++;
  while (atomic_load(&m->generation) == generation) {
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
  }
  clock_gettime(CLOCK_MONOTONIC, &now);
  state.slow |= (now.tv_sec - since.tv_sec) * 1000 + (now.tv_nsec - since.tv_nsec) / 1000000 > 100;
  state.inside--;
}

mk_nccl_result ncclGetVersion(int *version) {
  *version = state.version;
  return 0;
}

mk_nccl_result ncclGetUniqueId(mk_nccl_id *id) {
  const place at = {.pid = getpid(), .fd = memfd_create("fake NCCL", MFD_CLOEXEC)};
  if (at.fd < 0 || ftruncate(at.fd, sizeof(meeting)) != 0) {
    return UNHANDLED;
  }
  memset(id, 0, sizeof *id);
  memcpy(id->bytes, &at, sizeof at);
  return 0; /* as NCCL's, its file stays open */
}

mk_nccl_result ncclCommInitRank(mk_nccl_comm_ref *comm, int ranks, mk_nccl_id id, int rank) {
  place at;
  memcpy(&at, id.bytes, sizeof at);
  mk_nccl_comm_ref c = calloc(1, sizeof *c);
  *comm = c;
  c->rank = rank;
  c->ranks = ranks;
  c->shared = map_file(at, sizeof *c->shared, NULL);
  if (c->shared == NULL) {
    free(c);
    return UNHANDLED;
  }
  while (state.hangs) {
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
  }
  state.live++;
  state.comms++;
  meet(c);
  return 0;
}

static void free_window(mk_nccl_window_ref window) {
  munmap(window->flat, window->flat_bytes);
  free(window);
  state.live--;
}

static void free_comm(mk_nccl_comm_ref comm) {
  while (comm->windows != NULL) {
    mk_nccl_window_ref window = comm->windows;
    comm->windows = window->next;
    free_window(window);
  }
  munmap(comm->shared, sizeof *comm->shared);
  free(comm);
  state.live--;
}

mk_nccl_result ncclCommDestroy(mk_nccl_comm_ref comm) {
  meet(comm);
  free_comm(comm);
  return 0;
}

mk_nccl_result ncclCommAbort(mk_nccl_comm_ref comm) {
  state.aborts++;
  free_comm(comm);
  return 0;
}

mk_nccl_result ncclMemAlloc(void **memory, size_t bytes) {
  for (int i = 0; i < MOST_PIECES && (state.most_memory == 0 || bytes <= state.most_memory); i++) {
    if (pieces[i].memory == NULL) {
      const int fd = memfd_create("fake NCCL's memory", MFD_CLOEXEC);
      if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        return UNHANDLED;
      }
      *memory = map_file((place){.pid = getpid(), .fd = fd}, bytes, NULL);
      pieces[i].memory = *memory;
      pieces[i].bytes = bytes;
      pieces[i].fd = fd;
      state.live++;
      return 0;
    }
  }
  return UNHANDLED;
}

mk_nccl_result ncclMemFree(void *memory) {
  for (int i = 0; i < MOST_PIECES; i++) {
    if (pieces[i].memory == memory) {
      munmap(memory, pieces[i].bytes);
      close(pieces[i].fd);
      pieces[i].memory = NULL;
      state.live--;
      return 0;
    }
  }
  return INVALID_ARGUMENT;
}

/* Each rank's memory at its place; the kernel takes pages for what is written alone. */
static mk_nccl_result map_windows(mk_nccl_comm_ref comm, size_t bytes, mk_nccl_window_ref window) {
  window->flat_bytes = (size_t)comm->ranks * kStride;
  window->flat = mmap(NULL, window->flat_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  bool good = window->flat != MAP_FAILED;
  for (int r = 0; r < comm->ranks && good; r++) {
    good = map_file(comm->shared->windows[r], bytes, (char *)window->flat + (size_t)r * kStride) != NULL;
  }
  return good ? 0 : UNHANDLED;
}

mk_nccl_result ncclCommWindowRegister(mk_nccl_comm_ref comm, void *memory, size_t bytes, mk_nccl_window_ref *window,
                                      int flags) {
  int piece = 0;
  *window = NULL;
  while (piece < MOST_PIECES && (pieces[piece].memory != memory || pieces[piece].bytes != bytes)) {
    piece++;
  }
  if (piece == MOST_PIECES || flags != 0 || bytes % MK_NCCL_WINDOW_ALIGNMENT != 0) {
    return INVALID_ARGUMENT;
  }
  comm->shared->windows[comm->rank] = (place){.pid = getpid(), .fd = pieces[piece].fd};
  meet(comm);
  if (state.host_handles) {
    *window = (mk_nccl_window_ref)(uintptr_t)16;
    return 0;
  }
  if (state.no_windows || state.no_symmetry) {
    return state.no_windows ? INTERNAL_ERROR : 0;
  }
  mk_nccl_window_ref w = calloc(1, sizeof *w);
  if (map_windows(comm, bytes, w) != 0) {
    free(w);
    return UNHANDLED;
  }
  w->words = (mk_nccl_window_words){.flat_base = (uintptr_t)w->flat,
                                    .lsa_rank = state.out_of_reach ? 0 : comm->rank,
                                    .world_rank = state.other_layout ? 1 << 20 : comm->rank,
                                    .stride_4g = 1};
  w->words.flat_base += state.wrong_place ? MK_NCCL_WINDOW_ALIGNMENT : 0;
  *window = w;
  w->next = comm->windows;
  comm->windows = w;
  state.live++;
  meet(comm);
  return 0;
}

mk_nccl_result ncclCommWindowDeregister(mk_nccl_comm_ref comm, mk_nccl_window_ref window) {
  mk_nccl_window_ref *at = &comm->windows;
  while (*at != window) {
    at = &(*at)->next;
  }
  *at = window->next;
  free_window(window);
  return 0;
}

const char *ncclGetErrorString(mk_nccl_result result) {
  return result == UNHANDLED ? "unhandled cuda error" : result == INTERNAL_ERROR ? "internal error" : "no error";
}
const char *ncclGetLastError(mk_nccl_comm_ref comm) {
  (void)comm;
  return "";
}

#ifdef FAKE_NCCL_TELLS_PEERS
mk_nccl_result ncclGetPeerDevicePointer(mk_nccl_window_ref window, size_t offset, int peer, void **out) {
  const bool reached = !state.out_of_reach || peer == window->words.world_rank;
  *out = reached ? (char *)(uintptr_t)window->words.flat_base + (size_t)peer * kStride + offset : NULL;
  return 0;
}
#endif
