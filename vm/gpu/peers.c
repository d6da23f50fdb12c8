/* Several ranks: which GPUs they have, and how they come to each other's memory. See machine_internal.h.
 *
 * Where all ranks are in one process, a GPU reaches another's memory as soon as the driver is told that it may
 * (cuCtxEnablePeerAccess): then every allocation there has an address here. Where each is a process, it has one by a
 * window (windows.c). Arenas have the same offsets on all ranks, so an address in another rank's copies is the own one
 * plus a constant. */
#include <string.h>

#include "vm/gpu/group_internal.h"

uint32_t mk_gpu_device_of(const mk_gpu_options *options, uint32_t rank) {
  return options->devices == NULL ? options->device + rank : options->devices[rank];
}

uint32_t mk_gpu_rank_count(const mk_gpu *gpu) { return gpu->ranks; }

mk_status mk_gpu_of_rank(const mk_gpu *gpu, mk_status status) {
  return status == MK_OK || gpu->ranks == 1
             ? status
             : mk_error_prefix(status, "rank %u, cuda:%u", gpu->rank, gpu->options.device);
}

static mk_status check_pair(const mk_driver *cu, uint32_t from, uint32_t to) {
  mk_cu_device device, peer;
  int can = 0;
  MK_TRY(mk_driver_device(cu, from, &device));
  MK_TRY(mk_driver_device(cu, to, &peer));
  MK_TRY(mk_driver_check(cu, cu->peer_can(&can, device, peer), "asking for peer access"));
  return can != 0 ? MK_OK
                  : mk_error(MK_ERR_RUNTIME,
                             "cuda:%u cannot reach the memory of cuda:%u (no peer access); the ranks of a model need "
                             "GPUs that do, as those do that NVLink joins",
                             from, to);
}

mk_status mk_gpu_check_peers(const mk_program *program, const mk_gpu_options *options) {
  const uint32_t ranks = program->machine.ranks;
  const mk_driver *cu;
  if (ranks == 1) {
    return MK_OK;
  }
  if (options->group != NULL) { /* NCCL tells what this GPU reaches */
    return mk_group_ranks(options->group) == ranks
               ? MK_OK
               : mk_error(MK_ERR_USAGE, "the program has %u ranks, and there are %u processes", ranks,
                          mk_group_ranks(options->group));
  }
  MK_TRY(mk_driver_open(&cu));
  for (uint32_t r = 0; r < ranks; r++) {
    if (mk_gpu_device_of(options, r) >= (uint32_t)cu->devices) {
      return mk_error(MK_ERR_RUNTIME,
                      "the program has %u ranks, from cuda:%u on, and this machine has %d GPUs: there is no cuda:%u",
                      ranks, mk_gpu_device_of(options, 0), cu->devices, mk_gpu_device_of(options, r));
    }
  }
  for (uint32_t a = 0; a < ranks; a++) {
    for (uint32_t b = 0; b < ranks; b++) {
      if (mk_gpu_device_of(options, a) != mk_gpu_device_of(options, b)) {
        MK_TRY(check_pair(cu, mk_gpu_device_of(options, a), mk_gpu_device_of(options, b)));
      }
    }
  }
  return MK_OK;
}

static mk_status enable(const mk_gpu *gpu, const mk_gpu *other) {
  if (gpu->options.device == other->options.device) {
    return MK_OK;
  }
  MK_TRY(mk_gpu_enter(gpu));
  const mk_cu_result result = gpu->driver->peer_enable(other->context, 0);
  return result == MK_CU_PEER_ENABLED ? MK_OK : mk_gpu_check(gpu, result, "enabling peer access");
}

/* What a rank writes on another one: where that lies, as the first one's GPU sees it. */
typedef struct shown {
  mk_cu_address work, counters, control;
} shown;

static mk_status find_shown(const mk_gpu *gpu, const mk_gpu *own, uint32_t rank, shown *out) {
  if (own->group == NULL || rank == own->rank) {
    const mk_gpu *other = own->group == NULL ? gpu->of_rank[rank] : own;
    *out = (shown){.work = other->work, .counters = other->counters, .control = other->control};
    return enable(own, other);
  }
  const mk_cu_address away = own->window.bases[rank] - own->work; /* all of it is one piece, alike on all ranks */
  *out = (shown){.work = own->work + away, .counters = own->counters + away, .control = own->control + away};
  return MK_OK;
}

static mk_status connect_rank(const mk_gpu *gpu, mk_gpu *own) {
  const mk_gpu_tables at = mk_gpu_plan_tables(own);
  mk_gpu_peers peers = {
      .rank = own->rank, .ranks = own->ranks, .waiters = own->tables + at.waiters, .maps = own->tables + at.maps};
  MK_TRY(own->group == NULL ? MK_OK : mk_window_connect(own));
  for (uint32_t o = 0; o < own->ranks; o++) {
    shown other;
    MK_TRY(find_shown(gpu, own, o, &other));
    peers.away[o] = other.work - own->work;
    peers.counters[o] = other.counters - own->counters;
    peers.aborts[o] = other.control + offsetof(mk_gpu_control, abort);
  }
  MK_TRY(mk_gpu_enter(own));
  return mk_gpu_copy_in(own, own->tables + at.peers, &peers, sizeof peers, "telling the GPU of the others");
}

mk_status mk_gpu_connect(mk_gpu *gpu) {
  for (uint32_t r = 0; r < gpu->here && gpu->ranks > 1; r++) {
    MK_TRY(mk_gpu_of_rank(gpu->of_rank[r], connect_rank(gpu, gpu->of_rank[r])));
  }
  return MK_OK;
}
