// What every role of a block has in hand: shared memory by name, the launch parameters, waiting with a deadline.
//
// Every spin of the device code is in this file. A wait that outlives the deadline writes the fault record (the first one wins), raises
// the abort flag that all blocks watch, and returns false; so do all other waits from then on, and every role returns.
// Nothing else ends a role but the last epoch or the host's stop.
#pragma once
#include <cstddef>

#include "instructions/tile/barrier.cuh"
#include "instructions/tile/edge.cuh"
#include "instructions/tile/warp.cuh"
#include "vm/gpu/launch.h"
#include "vm/program.h"

namespace mk {

extern __shared__ __align__(1024) uint8_t shared_memory[];

// Shared-memory barriers, in 8-byte units from MK_GPU_BARRIERS_AT.
enum barrier_index {
  PAGE_FULL = 0,
  PAGE_EMPTY = PAGE_FULL + MK_GPU_RING_PAGES,
  RESULT_FULL = PAGE_EMPTY + MK_GPU_RING_PAGES,
  RESULT_EMPTY = RESULT_FULL + MK_GPU_RESULT_SLOTS,
  INSTRUCTION_FULL = RESULT_EMPTY + MK_GPU_RESULT_SLOTS,
  INSTRUCTION_EMPTY = INSTRUCTION_FULL + MK_GPU_INSTRUCTION_SLOTS,
  STATE_READY = INSTRUCTION_EMPTY + MK_GPU_INSTRUCTION_SLOTS,
  CONSUMER_SYNC,
  BARRIER_COUNT,
};

struct step_state {  // of one epoch, in shared memory, double-buffered by parity
  uint32_t token, position, prompt_length, stop;
};

struct shared_words {  // behind the barriers
  step_state state[2];
  uint32_t leave;    // a wait failed somewhere, or the launch is over: everybody returns
  uint32_t kept[4];  // which attention result still lies in the activation area: generation, buffer, row, first column
  float best[2][MK_GPU_CONSUMER_WARPS];  // of the token boundary, by parity: a warp may be one meeting behind
  uint32_t index[2][MK_GPU_CONSUMER_WARPS];
};
static_assert(BARRIER_COUNT * 8 + sizeof(shared_words) <= 1024, "the barrier area of launch.h is too small");

// A slot of the instruction ring. The controller looks up what the instruction names, so that no role waits for tables in global
// memory between a wait and the data: that cost about half a hop (docs/results/gpu.md).
struct instruction_slot {
  mk_instruction instruction;
  mk_gpu_buffer buffers[MK_MAX_OPERANDS];
  uint32_t wait_totals[MK_MAX_WAITS], signal_totals[MK_MAX_SIGNALS];  // of the counters, as counter_totals
};
static_assert(sizeof(instruction_slot) <= MK_GPU_INSTRUCTION_SLOT_BYTES,
              "an instruction slot of launch.h is too small");

enum role { ROLE_LOADER, ROLE_CONSUMER, ROLE_STORER, ROLE_CONTROLLER };

struct device {
  const mk_gpu_params &params;
  role who;
  uint32_t epoch;  // within the launch
  uint32_t uid;    // of the instruction at hand, for the fault record

  __device__ uint8_t *page(uint32_t slot) const { return shared_memory + slot * MK_GPU_PAGE_BYTES; }
  __device__ uint8_t *activation() const { return shared_memory + MK_GPU_ACTIVATION_AT; }
  __device__ float *result(uint32_t slot) const {
    return reinterpret_cast<float *>(shared_memory + MK_GPU_RESULTS_AT + slot * MK_GPU_RESULT_BYTES);
  }
  __device__ instruction_slot *slot(uint32_t index) const {
    return reinterpret_cast<instruction_slot *>(shared_memory + MK_GPU_INSTRUCTIONS_AT +
                                                index * MK_GPU_INSTRUCTION_SLOT_BYTES);
  }
  __device__ uint32_t barrier(uint32_t index) const {
    return tile::shared_address(shared_memory) + MK_GPU_BARRIERS_AT + index * 8;
  }
  __device__ volatile shared_words *words() const {
    return reinterpret_cast<volatile shared_words *>(shared_memory + MK_GPU_BARRIERS_AT + BARRIER_COUNT * 8);
  }
  __device__ uint32_t generation() const { return params.first_epoch + epoch + 1; }
  // Of an instruction, or an operand, in the ring: the slot around it.
  __device__ static const instruction_slot &slot_of(const mk_instruction &in) {
    return reinterpret_cast<const instruction_slot &>(in);
  }
  __device__ const mk_gpu_buffer &buffer(const mk_operand &operand) const {
    uint32_t offset = tile::shared_address(&operand) - tile::shared_address(shared_memory) - MK_GPU_INSTRUCTIONS_AT;
    uint32_t index = (offset % MK_GPU_INSTRUCTION_SLOT_BYTES - offsetof(mk_instruction, operands)) / sizeof(mk_operand);
    return slot(offset / MK_GPU_INSTRUCTION_SLOT_BYTES)->buffers[index];
  }
};

// A clock for one spin: looked at every so many tries only.
struct patience {
  uint64_t start = 0;
  uint32_t tries = 0;
};

// One failed try. False: give up, with the fault recorded if this was the first.
__device__ inline bool keep_waiting(const device &d, patience &p, uint32_t kind, uint32_t edge, uint32_t have,
                                    uint32_t want) {
  if (++p.tries % 64 != 0) {
    return true;
  }
  if (d.words()->leave != 0 || tile::load_relaxed(d.params.abort) != 0) {
    return false;
  }
  uint64_t now = tile::global_nanoseconds();
  if (p.start == 0) {
    p.start = now;
  }
  // Whoever waits for another SM gives up first, so that the record names the edge and not what waits behind it.
  bool edge_wait = kind == MK_GPU_WAIT_COUNTER || kind == MK_GPU_WAIT_STAMP;
  if (now - p.start < d.params.deadline_ns + (edge_wait ? 0 : d.params.deadline_ns / 4)) {
    return true;
  }
  mk_gpu_fault *fault = d.params.fault;
  if (atomicCAS(&fault->claimed, 0u, 1u) == 0u) {
    fault->sm = blockIdx.x;
    fault->role = d.who;
    fault->uid = d.uid;
    fault->kind = kind;
    fault->edge = edge;
    fault->have = have;
    fault->want = want;
    fault->epoch = d.epoch;
    __threadfence_system();
    atomicExch(d.params.abort, 1u);
  }
  return false;
}

// All lanes of the warp wait for a phase; all get the same answer.
__device__ inline bool wait_phase(const device &d, uint32_t index, uint32_t parity, uint32_t kind, uint32_t edge) {
  uint32_t barrier = d.barrier(index);
  bool ok = tile::try_wait(barrier, parity);
  if (__all_sync(0xffffffffu, ok)) {
    return true;
  }
  patience p;
  do {
    ok = ok || tile::try_wait(barrier, parity);
    if (__all_sync(0xffffffffu, ok)) {
      return true;
    }
  } while (__all_sync(0xffffffffu, keep_waiting(d, p, kind, edge, 0, parity)));
  return false;
}

// A position in a ring of `slots`: full phases start at 0, empty ones are already complete the first time round.
template <uint32_t slots>
struct ring_cursor {
  uint32_t slot = 0, phase = 0;
  __device__ void next() {
    if (++slot == slots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// The test fault point: the instruction at hand keeps its results to itself.
__device__ inline bool publishes(const device &d) { return d.uid != d.params.skip_signal_uid; }

__device__ inline bool waits_for_release(const mk_instruction &in) {
  uint32_t any = 0;
  for (uint32_t w = 0; w < in.wait_count; w++) {
    any |= device::slot_of(in).wait_totals[w];
  }
  return (any & MK_GPU_COUNTER_RELEASE) != 0;
}

// One lane waits for the release counters of an instruction; the caller makes the rest wait for it. Relaxed counters are hints, and
// going straight to the stamps is faster than heeding them (measured: docs/results/gpu.md).
__device__ inline bool wait_counters(const device &d, const mk_instruction &in) {
  for (uint32_t w = 0; w < in.wait_count; w++) {
    uint32_t counter = in.waits[w].counter, total = device::slot_of(in).wait_totals[w];
    if ((total & MK_GPU_COUNTER_RELEASE) == 0) {
      continue;
    }
    uint32_t want = (d.params.first_epoch + d.epoch) * (total & ~MK_GPU_COUNTER_RELEASE) + in.waits[w].threshold;
    const uint32_t *address = d.params.counters + counter * MK_GPU_COUNTER_STRIDE;
    patience p;
    for (;;) {
      uint32_t have = tile::load_acquire(address);
      if (static_cast<int32_t>(have - want) >= 0) {
        break;
      }
      if (!keep_waiting(d, p, MK_GPU_WAIT_COUNTER, counter, have, want)) {
        return false;
      }
    }
  }
  return true;
}

__device__ inline void signal_counters(const device &d, const mk_instruction &in) {
  for (uint32_t s = 0; s < in.signal_count; s++) {
    uint32_t counter = in.signals[s].counter;
    uint32_t *address = d.params.counters + counter * MK_GPU_COUNTER_STRIDE;
    if ((device::slot_of(in).signal_totals[s] & MK_GPU_COUNTER_RELEASE) != 0) {
      tile::add_release(address, in.signals[s].amount);
    } else {
      tile::add_relaxed(address, in.signals[s].amount);
    }
  }
}

// Each lane waits for its own two stamped words (active lanes only have some); all lanes get the same answer.
__device__ inline bool wait_stamped_pair(const device &d, const uint64_t *from, bool active, uint32_t buffer,
                                         tile::stamped_pair &to) {
  uint32_t want = d.generation();
  patience p;
  to.low = to.high = 0;
  for (;;) {
    bool ok = true;
    if (active) {
      to = tile::load_stamped_pair(from);
      ok = tile::stamp_generation(to.low) == want && tile::stamp_generation(to.high) == want;
    }
    if (__all_sync(0xffffffffu, ok)) {
      return true;
    }
    bool more = ok || keep_waiting(d, p, MK_GPU_WAIT_STAMP, buffer, tile::stamp_generation(to.low), want);
    if (!__all_sync(0xffffffffu, more)) {
      return false;
    }
  }
}

}  // namespace mk
