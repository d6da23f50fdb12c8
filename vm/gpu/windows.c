/* Memory that ranks in several processes see: what peers.c is for ranks of one process. See machine_internal.h.
 *
 * What other ranks write (work arena, counters, control) is one piece of NCCL's memory, as large on all ranks, and
 * registered as a window of theirs. NCCL maps the pieces of all ranks into each process, so that here too a word's
 * place on another rank is the own address plus a constant. Where the others' pieces lie is what NCCL tells
 * (nccl.h), and nothing is launched before each rank has found there what the other one has written.
 *
 * Calls of NCCL in which all ranks take part may never come back once one of them is gone, so they run in a thread of
 * their own, beside which the group is watched. When the group breaks, a call has a moment to come back, as it does
 * where all ranks had entered it; one that is given up goes on in its thread, with what it needs. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "vm/gpu/group_internal.h"
#include "vm/program/program.h"

enum { ABORT_MS = 5000, GRACE_MS = 200, UNMADE = -1 };

typedef enum call_kind { NEW_COMM, NEW_WINDOW, FREE_WINDOW, FREE_COMM, ABORT_COMM } call_kind;

typedef struct nccl_call {
  call_kind kind;
  const mk_nccl *nccl;
  const mk_driver *driver;
  mk_cu_context_ref context;
  uint32_t rank, ranks;
  mk_nccl_id id;
  void *memory;
  uint64_t bytes;
  mk_nccl_comm_ref comm;     /* in, or out of NEW_COMM */
  mk_nccl_window_ref window; /* in, or out of NEW_WINDOW */
  mk_nccl_result result;     /* UNMADE: it has not come back */
  int done;                  /* atomic */
} nccl_call;

static mk_nccl_result make(nccl_call *c) {
  switch (c->kind) {
    case NEW_COMM:
      return c->nccl->comm_new(&c->comm, (int)c->ranks, c->id, (int)c->rank);
    case NEW_WINDOW:
      return c->nccl->window_new(c->comm, c->memory, c->bytes, &c->window, MK_NCCL_WINDOW_DEFAULT);
    case FREE_WINDOW:
      return c->nccl->window_free(c->comm, c->window);
    case FREE_COMM:
      return c->nccl->comm_free(c->comm);
    case ABORT_COMM:
      return c->nccl->comm_abort(c->comm);
  }
  return 0;
}

static void *run_call(void *user) {
  nccl_call *c = user;
  const bool entered = c->driver->context_set(c->context) == 0, opens = c->kind == NEW_COMM || c->kind == NEW_WINDOW;
  c->result = entered || !opens ? make(c) : 1; /* what ends is tried all the same */
  __atomic_store_n(&c->done, 1, __ATOMIC_RELEASE);
  return NULL;
}

static bool is_done(const nccl_call *c) { return __atomic_load_n(&c->done, __ATOMIC_ACQUIRE) != 0; }

static mk_status watch(mk_group *group) {
  MK_TRY(mk_group_watch(group, true));
  return group->over ? mk_error(MK_ERR_RUNTIME, "rank 0 has ended") : MK_OK;
}

/* Waits for the call's end, as long as the group is whole, and a moment longer. */
static mk_status wait_for_call(mk_group *group, const nccl_call *c, uint64_t most_ms, const char *what) {
  const struct timespec moment = {.tv_nsec = 1000000};
  const bool watched = c->kind == NEW_COMM || c->kind == NEW_WINDOW;
  mk_status status = MK_OK;
  for (uint64_t since = mk_group_now_ms(); !is_done(c) && mk_group_now_ms() - since <= most_ms;) {
    if (watched && status == MK_OK && (status = watch(group)) != MK_OK) {
      since = mk_group_now_ms();
      most_ms = GRACE_MS;
    }
    (void)nanosleep(&moment, NULL);
  }
  return status != MK_OK || is_done(c) ? status
                                       : mk_error(MK_ERR_DEVICE, "%s: NCCL does not come back (waited %llu s)", what,
                                                  (unsigned long long)(most_ms / 1000));
}

/* The call; *out is as it was on its return, also where the group broke before, or UNMADE, if it was given up. */
static mk_status call_nccl(const mk_gpu *gpu, nccl_call *out, uint64_t most_ms, const char *what) {
  nccl_call *c;
  pthread_t thread;
  out->result = UNMADE;
  MK_TRY(mk_nccl_open(&out->nccl));
  MK_TRY(mk_alloc(1, sizeof *c, &c));
  out->driver = gpu->driver;
  out->context = gpu->context;
  *c = *out;
  if (!mk_group_start_thread(&thread, run_call, c)) {
    mk_free(c);
    return mk_error(MK_ERR_RUNTIME, "%s: no thread can be started", what);
  }
  const mk_status status = wait_for_call(gpu->group, c, most_ms, what);
  if (!is_done(c)) {
    (void)pthread_detach(thread); /* c is the thread's from here on */
    gpu->group->stuck = true;
    return status;
  }
  (void)pthread_join(thread, NULL);
  *out = *c;
  mk_free(c);
  return status != MK_OK ? status : mk_nccl_check(out->nccl, out->result, what);
}

/* ---- A window's life ---- */

mk_status mk_window_allocate(mk_gpu *gpu, uint64_t bytes, mk_cu_address *out) {
  const mk_nccl *nccl;
  const uint64_t unit = MK_NCCL_WINDOW_ALIGNMENT;
  MK_TRY(mk_nccl_open(&nccl));
  gpu->window.bytes = (bytes + unit - 1) / unit * unit;
  MK_TRY(mk_nccl_check(nccl, nccl->memory_new(&gpu->window.memory, gpu->window.bytes),
                       "allocating the working memory that all ranks see"));
  *out = (mk_cu_address)(uintptr_t)gpu->window.memory;
  return MK_OK;
}

/* Machines beside each other have one communicator, that of the first of them. */
static mk_status open_comm(mk_gpu *gpu) {
  if (gpu->lender != NULL) {
    gpu->window.comm = gpu->lender->window.comm;
    return MK_OK;
  }
  nccl_call c = {.kind = NEW_COMM, .rank = gpu->rank, .ranks = gpu->ranks, .id = gpu->group->id};
  const mk_status status = call_nccl(gpu, &c, gpu->group->deadline_ms, "opening NCCL's communicator");
  gpu->window.comm = c.result == 0 ? c.comm : NULL;
  return status;
}

/* Without symmetric memory there is a handle all the same, or none: one of the host's, for NCCL itself. */
static bool is_symmetric(const mk_gpu *gpu, const mk_nccl *nccl, mk_nccl_window_ref window) {
  unsigned type = 0;
  const mk_cu_address at = (mk_cu_address)(uintptr_t)window;
  return window != NULL &&
         (nccl->peer_pointer != NULL ||
          (gpu->driver->pointer_attribute(&type, MK_CU_POINTER_MEMORY_TYPE, at) == 0 && type == MK_CU_DEVICE_MEMORY));
}

static mk_status open_window(mk_gpu *gpu) {
  nccl_call c = {
      .kind = NEW_WINDOW, .comm = gpu->window.comm, .memory = gpu->window.memory, .bytes = gpu->window.bytes};
  MK_TRY(call_nccl(gpu, &c, gpu->group->deadline_ms, "registering a window"));
  gpu->window.window = c.window;
  return is_symmetric(gpu, c.nccl, c.window)
             ? MK_OK
             : mk_error(MK_ERR_RUNTIME,
                        "registering a window: NCCL has no symmetric memory here (the GPUs have to reach each other, "
                        "and NCCL_CUMEM_ENABLE may not be 0); NCCL_DEBUG=INFO says more");
}

/* 2.28: what the handle points to. */
static mk_status read_window(mk_gpu *gpu, const mk_nccl *nccl) {
  mk_nccl_window_words words = {0};
  const uint64_t unit = MK_NCCL_WINDOW_ALIGNMENT;
  MK_TRY(mk_gpu_copy_out(gpu, &words, (mk_cu_address)(uintptr_t)gpu->window.window, sizeof words,
                         "reading NCCL's window"));
  if (words.flat_base == 0 || words.flat_base % unit != 0 || words.stride_4g == 0 ||
      words.world_rank != (int32_t)gpu->rank) {
    return mk_error(MK_ERR_RUNTIME,
                    "NCCL %d.%d.%d: its windows do not lie in memory as those of 2.28 do that are known",
                    nccl->version / 10000, nccl->version / 100 % 100, nccl->version % 100);
  }
  for (uint32_t r = 0; r < gpu->ranks && words.lsa_rank == words.world_rank; r++) {
    gpu->window.bases[r] = words.flat_base + ((uint64_t)r * words.stride_4g << 32);
  }
  return MK_OK;
}

static mk_status find_bases(mk_gpu *gpu) {
  const mk_nccl *nccl;
  MK_TRY(mk_nccl_open(&nccl));
  if (nccl->peer_pointer == NULL) {
    MK_TRY(read_window(gpu, nccl));
  }
  for (uint32_t r = 0; r < gpu->ranks; r++) {
    void *base = (void *)(uintptr_t)gpu->window.bases[r];
    MK_TRY(nccl->peer_pointer == NULL
               ? MK_OK
               : mk_nccl_check(nccl, nccl->peer_pointer(gpu->window.window, 0, (int)r, &base), "finding a window"));
    gpu->window.bases[r] = (mk_cu_address)(uintptr_t)base;
    if (base == NULL) {
      return mk_error(MK_ERR_RUNTIME,
                      "its GPU does not reach the memory of rank %u's; the ranks of a model need GPUs that do, as "
                      "those do that NVLink joins",
                      r);
    }
  }
  return MK_OK;
}

/* A word that no other rank, and no other model, would have there. */
static uint64_t mark_of(const mk_gpu *gpu, uint32_t rank) {
  uint64_t mark = 0;
  memcpy(&mark, gpu->group->id.bytes, sizeof mark);
  return (mark ^ UINT64_C(0x9E3779B97F4A7C15)) * (2 * ((uint64_t)gpu->number * MK_GPU_MOST_RANKS + rank) + 1);
}

/* Each rank writes its mark at the start of its window, and looks for those of the others. */
static mk_status try_bases(mk_gpu *gpu) {
  const uint64_t own = mark_of(gpu, gpu->rank), none = 0;
  MK_TRY(mk_gpu_copy_in(gpu, gpu->work, &own, sizeof own, "writing to the window"));
  MK_TRY(mk_group_agree(gpu->group, 1, "windows"));
  for (uint32_t r = 0; r < gpu->ranks; r++) {
    uint64_t found = 0;
    MK_TRY(mk_gpu_copy_out(gpu, &found, gpu->window.bases[r], sizeof found, "reading another rank's window"));
    if (found != mark_of(gpu, r)) {
      return mk_error(MK_ERR_DEVICE, "the memory of rank %u is not where NCCL tells that it is", r);
    }
  }
  MK_TRY(mk_group_agree(gpu->group, 2, "windows"));
  return mk_gpu_copy_in(gpu, gpu->work, &none, sizeof none, "writing to the window");
}

mk_status mk_window_connect(mk_gpu *gpu) {
  MK_TRY(mk_gpu_enter(gpu));
  uint64_t program = 0;
  MK_TRY(mk_program_hash(gpu->program, &program));
  MK_TRY(mk_group_agree(gpu->group, program ^ gpu->window.bytes, "their programs"));
  MK_TRY(open_comm(gpu));
  MK_TRY(open_window(gpu));
  MK_TRY(mk_group_agree(gpu->group, 0, "windows")); /* who fails from here on leaves nobody waiting in NCCL */
  MK_TRY(find_bases(gpu));
  return try_bases(gpu);
}

/* The machine's launches have ended. Where all ranks end in order, all come here. While a call is stuck in NCCL nothing
 * of it can be freed; the process is about to end. */
void mk_window_free(mk_gpu *gpu) {
  const mk_nccl *nccl;
  if (gpu->window.memory == NULL || gpu->group->stuck || mk_nccl_open(&nccl) != MK_OK) {
    return;
  }
  const mk_group_kept kept = mk_group_keep_message();
  const bool whole = gpu->group->broken == MK_OK;
  nccl_call window = {.kind = FREE_WINDOW, .comm = gpu->window.comm, .window = gpu->window.window};
  nccl_call comm = {.kind = whole ? FREE_COMM : ABORT_COMM, .comm = gpu->window.comm};
  if (gpu->window.window != NULL && whole) { /* else the end of all of it is the end of its windows */
    (void)call_nccl(gpu, &window, ABORT_MS, "closing a window");
  }
  (void)nccl->memory_free(gpu->window.memory);
  if (gpu->window.comm != NULL && !gpu->lent) {
    (void)call_nccl(gpu, &comm, ABORT_MS, "closing NCCL");
  }
  gpu->window = (mk_gpu_window){0};
  mk_group_restore_message(&kept);
}
