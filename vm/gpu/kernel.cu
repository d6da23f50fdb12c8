// The persistent kernel: one block per SM, every warp in its role, from the first epoch of the launch to the last.
//
// Warps 0-15 consume, 16 loads, 17 stores, 18 controls (fetches instructions into their ring), 19 leaves at once. Registers: the
// consumers' warpgroups take what the last warpgroup gives up.
#include "instructions/attention.cuh"
#include "instructions/combine.cuh"
#include "instructions/glu.cuh"
#include "instructions/head.cuh"
#include "instructions/linear_add.cuh"
#include "instructions/linear_part.cuh"
#include "instructions/next.cuh"
#include "instructions/qkv.cuh"
#include "instructions/reduce_add.cuh"
#include "vm/gpu/loader.cuh"

namespace mk {

__device__ inline void init_barriers(const device &d) {
  for (uint32_t i = 0; i < MK_GPU_RING_PAGES; i++) {
    tile::barrier_init(d.barrier(PAGE_FULL + i), 1);
    tile::barrier_init(d.barrier(PAGE_EMPTY + i), MK_GPU_CONSUMER_WARPS);
  }
  for (uint32_t i = 0; i < MK_GPU_RESULT_SLOTS; i++) {
    tile::barrier_init(d.barrier(RESULT_FULL + i), MK_GPU_CONSUMER_WARPS);
    tile::barrier_init(d.barrier(RESULT_EMPTY + i), 1);
  }
  for (uint32_t i = 0; i < MK_GPU_INSTRUCTION_SLOTS; i++) {
    tile::barrier_init(d.barrier(INSTRUCTION_FULL + i), 1);
    tile::barrier_init(d.barrier(INSTRUCTION_EMPTY + i), MK_GPU_CONSUMER_WARPS + 2);  // and loader, storer
  }
  tile::barrier_init(d.barrier(STATE_READY), 1);
  tile::barrier_init(d.barrier(CONSUMER_SYNC), MK_GPU_CONSUMER_WARPS);
  tile::fence_barriers();
}

using instruction_cursor = ring_cursor<MK_GPU_INSTRUCTION_SLOTS>;

// The next instruction of the ring, nullptr when everybody is to leave.
__device__ inline const mk_instruction *fetch(device &d, const instruction_cursor &cursor) {
  if (!wait_phase(d, INSTRUCTION_FULL + cursor.slot, cursor.phase, MK_GPU_WAIT_INSTRUCTION, cursor.slot)) {
    return nullptr;
  }
  const mk_instruction *in = &d.slot(cursor.slot)->instruction;
  d.uid = in->uid;
  return in;
}

__device__ inline void done_with(const device &d, instruction_cursor &cursor) {
  __syncwarp();
  if (tile::lane() == 0) {
    tile::arrive(d.barrier(INSTRUCTION_EMPTY + cursor.slot));
  }
  cursor.next();
}

__device__ inline void read_state(const device &d, step_state &state) {
  const volatile step_state &from = d.words()->state[d.epoch % 2];
  state.token = from.token;
  state.position = from.position;
  state.prompt_length = from.prompt_length;
  state.stop = from.stop;
}

// An instruction with all that it names, a few words per lane, on their way while the slot is waited for.
struct looked_up {
  enum { BUFFER_WORDS = sizeof(mk_gpu_buffer) / 4, WORDS = MK_MAX_OPERANDS * BUFFER_WORDS, ROUNDS = (WORDS + 31) / 32 };
  uint32_t instruction, buffers[ROUNDS], total;
};

__device__ inline void look_up(const device &d, uint32_t index, looked_up &to) {
  uint32_t lane = tile::lane();
  to.instruction = __ldg(reinterpret_cast<const uint32_t *>(d.params.instructions + index) + lane);
#pragma unroll
  for (uint32_t r = 0; r < looked_up::ROUNDS; r++) {
    uint32_t word = r * 32 + lane, operand = min(word / looked_up::BUFFER_WORDS, MK_MAX_OPERANDS - 1u);
    uint32_t buffer = __shfl_sync(0xffffffffu, to.instruction, 10 + 3 * operand) >> 16;
    to.buffers[r] =
        __ldg(reinterpret_cast<const uint32_t *>(d.params.buffers + buffer) + word % looked_up::BUFFER_WORDS);
  }
  uint32_t edges = __shfl_sync(0xffffffffu, to.instruction, 0) >> 16,
           edge = __shfl_sync(0xffffffffu, to.instruction, 2 + lane % 6);
  uint32_t waits = edges & 15, signals = edges >> 4 & 15;
  bool used = lane < MK_MAX_WAITS ? lane < waits : lane - MK_MAX_WAITS < signals;
  to.total = lane < MK_MAX_WAITS + MK_MAX_SIGNALS && used ? __ldg(d.params.counter_totals + (edge >> 16)) : 0;
}

__device__ inline void run_controller(device d, const mk_gpu_queue &queue) {
  instruction_cursor cursor;
  uint32_t lane = tile::lane();
  for (d.epoch = 0; d.epoch < d.params.epochs; d.epoch++) {
    for (uint32_t i = 0; i < queue.count; i++) {
      looked_up words;
      look_up(d, queue.first + i, words);
      if (!wait_phase(d, INSTRUCTION_EMPTY + cursor.slot, cursor.phase ^ 1, MK_GPU_WAIT_INSTRUCTION, cursor.slot)) {
        return;
      }
      instruction_slot *slot = d.slot(cursor.slot);
      reinterpret_cast<uint32_t *>(&slot->instruction)[lane] = words.instruction;
#pragma unroll
      for (uint32_t r = 0; r < looked_up::ROUNDS; r++) {
        if (r * 32 + lane < looked_up::WORDS) {
          reinterpret_cast<uint32_t *>(slot->buffers)[r * 32 + lane] = words.buffers[r];
        }
      }
      if (lane < MK_MAX_WAITS + MK_MAX_SIGNALS) {
        slot->wait_totals[lane] = words.total;  // the signals' follow the waits'
      }
      __syncwarp();
      if (lane == 0) {
        tile::arrive(d.barrier(INSTRUCTION_FULL + cursor.slot));
      }
      cursor.next();
    }
  }
}

__device__ inline void run_loader(device d, const mk_gpu_queue &queue) {
  instruction_cursor cursor;
  loader l{d, tile::lane()};
  bool ok = true;
  for (l.d.epoch = 0; ok && l.d.epoch < d.params.epochs; l.d.epoch++) {
    for (uint32_t i = 0; ok && i < queue.count; i++) {
      const mk_instruction *in = fetch(l.d, cursor);
      ok = in != nullptr && load_instruction(l, *in);
      if (ok) {
        done_with(l.d, cursor);
      }
    }
  }
  drain_copies(l);
}

__device__ inline bool store_instruction(storer &s, const mk_instruction &in) {
  switch (in.opcode) {
#define MK_OPCODE(NAME, text, state, semantics) \
  case MK_OP_##NAME:                            \
    return store_##NAME(s, in);
#include "instructions/opcodes.def"
    default:
      return true;
  }
}

__device__ inline bool consume_instruction(consumer &c, const mk_instruction &in) {
  switch (in.opcode) {
#define MK_OPCODE(NAME, text, state, semantics) \
  case MK_OP_##NAME:                            \
    return consume_##NAME(c, in);
#include "instructions/opcodes.def"
    default:
      return true;
  }
}

__device__ inline void run_storer(device d, const mk_gpu_queue &queue) {
  instruction_cursor cursor;
  storer s{d, tile::lane()};
  for (s.d.epoch = 0; s.d.epoch < d.params.epochs; s.d.epoch++) {
    if (s.d.epoch > 0 && !wait_phase(s.d, STATE_READY, (s.d.epoch - 1) % 2, MK_GPU_WAIT_STATE, 0)) {
      return;
    }
    read_state(s.d, s.state);
    if (s.state.stop != 0) {
      return;
    }
    for (uint32_t i = 0; i < queue.count; i++) {
      const mk_instruction *in = fetch(s.d, cursor);
      if (in == nullptr || !store_instruction(s, *in)) {
        return;
      }
      done_with(s.d, cursor);
    }
  }
}

__device__ inline void run_consumer(device d, const mk_gpu_queue &queue) {
  instruction_cursor cursor;
  consumer c{d, threadIdx.x / 32, tile::lane()};
  read_state(c.d, c.state);
  for (c.d.epoch = 0; c.d.epoch < d.params.epochs && c.state.stop == 0; c.d.epoch++) {
    for (uint32_t i = 0; i < queue.count; i++) {
      const mk_instruction *in = fetch(c.d, cursor);
      if (in == nullptr || !consume_instruction(c, *in)) {
        return;
      }
      done_with(c.d, cursor);
    }
  }
  if (c.warp == 0 && c.lane == 0) {
    if (c.state.stop != 0) {
      c.d.words()->leave = 1;  // the roles that run ahead have nothing to wait for
    }
    if (blockIdx.x == 0) {
      *d.params.epochs_done = c.d.epoch;
    }
  }
}

}  // namespace mk

extern "C" __global__ void __launch_bounds__(MK_GPU_THREADS, 1)
    mk_kernel(const __grid_constant__ mk_gpu_params params) {
  using namespace mk;
  device d{params, ROLE_CONTROLLER, 0, 0};
  if (threadIdx.x == 0) {
    init_barriers(d);
    volatile shared_words *words = d.words();
    words->leave = 0;
    words->state[0].token = params.token;
    words->state[0].position = params.position;
    words->state[0].prompt_length = params.prompt_length;
    words->state[0].stop = 0;
  }
  __syncthreads();
  const mk_gpu_queue queue = params.queues[blockIdx.x];
  uint32_t warp = threadIdx.x / 32;
  if (queue.count == 0) {
    return;
  }
  if (warp < MK_GPU_CONSUMER_WARPS) {
    tile::take_registers<104>();
    d.who = ROLE_CONSUMER;
    run_consumer(d, queue);
  } else {
    tile::give_registers<64>();
    if (warp == MK_GPU_CONSUMER_WARPS) {
      d.who = ROLE_LOADER;
      run_loader(d, queue);
    } else if (warp == MK_GPU_CONSUMER_WARPS + 1) {
      d.who = ROLE_STORER;
      run_storer(d, queue);
    } else if (warp == MK_GPU_CONSUMER_WARPS + 2) {
      run_controller(d, queue);
    }
  }
}
