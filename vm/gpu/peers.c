/* Several ranks: which GPUs they have, and how they come to each other's memory. See machine_internal.h.
 *
 * All ranks are in one process, so a GPU reaches another's memory as soon as the driver is told that it may
 * (cuCtxEnablePeerAccess): then every allocation there has an address here. Arenas have the same offsets on all ranks,
 * so an address in another rank's copies is the own one plus a constant. */
#include <string.h>

#include "vm/gpu/machine_internal.h"

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

mk_status mk_gpu_connect(mk_gpu *gpu) {
  for (uint32_t r = 0; r < gpu->ranks && gpu->ranks > 1; r++) {
    mk_gpu *own = gpu->of_rank[r];
    const mk_gpu_tables at = mk_gpu_plan_tables(own);
    mk_gpu_peers peers = {
        .rank = r, .ranks = gpu->ranks, .waiters = own->tables + at.waiters, .maps = own->tables + at.maps};
    for (uint32_t o = 0; o < gpu->ranks; o++) {
      const mk_gpu *other = gpu->of_rank[o];
      MK_TRY(mk_gpu_of_rank(own, enable(own, other)));
      peers.away[o] = other->work - own->work;
      peers.counters[o] = other->counters - own->counters;
      peers.aborts[o] = other->control + offsetof(mk_gpu_control, abort);
    }
    MK_TRY(mk_gpu_enter(own));
    MK_TRY(mk_gpu_copy_in(own, own->tables + at.peers, &peers, sizeof peers, "telling the GPU of the others"));
  }
  return MK_OK;
}
