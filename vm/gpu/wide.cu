// The persistent kernel for wide steps, of 128 to 512 rows of one sequence: the same interpreter in another
// configuration (vm/gpu/wide_shared.h). One block per SM, from the first step of the launch to the last; two warpgroups
// consume, with most of the registers, and store what they compute; of the third one warp loads, two pack and one
// controls.
#define MK_GPU_WIDE 1
#if MK_GPU_SLOTS
#include "instructions/append_slots.cuh"
#include "instructions/attend_slots.cuh"
#include "instructions/head_slots.cuh"
#include "instructions/next_slots.cuh"
#else
#include "instructions/append.cuh"
#include "instructions/attend.cuh"
#include "instructions/head_wide.cuh"
#include "instructions/next_wide.cuh"
#endif
#include "instructions/linear_wide.cuh"
#include "instructions/norm.cuh"
#include "instructions/norm_heads_wide.cuh"
#include "instructions/offset_wide.cuh"
#include "instructions/squares.cuh"
#include "vm/gpu/controller.cuh"
#include "vm/gpu/queue.cuh"
#include "vm/gpu/wide_loader.cuh"
#include "vm/gpu/wide_packer.cuh"

namespace mk {

__device__ inline void init_barriers(const device &d) {
  for (uint32_t i = 0; i < MK_GPU_RING_PAGES; i++) {
    tile::barrier_init(d.barrier(PAGE_FULL + i), 1);
    tile::barrier_init(d.barrier(PAGE_EMPTY + i), PAGE_ARRIVALS);
  }
  for (uint32_t i = 0; i < MK_GPU_INSTRUCTION_SLOTS; i++) {
    tile::barrier_init(d.barrier(INSTRUCTION_FULL + i), 1);
    tile::barrier_init(d.barrier(INSTRUCTION_EMPTY + i), MK_GPU_CONSUMER_WARPS + 1);  // and the loader
  }
  tile::barrier_init(d.barrier(STATE_READY), 1);
  tile::barrier_init(d.barrier(LOADER_DONE), 1);
  init_packing(d);
  tile::fence_barriers();
}

__device__ __forceinline__ void run_loader(device d) {
  wide_loader l{d};
  instruction_cursor cursor;
  bool stays = true;
  for (l.d.epoch = 0; stays && l.d.epoch < l.d.params.epochs; l.d.epoch++) {
    record_boundary(l.d);
    for (bool last = false; stays && !last;) {
      const mk_instruction_word *in = fetch(l.d, cursor);
      stays = in != nullptr && load_for_wide(l, *in);
      last = in != nullptr && done_with(l.d, cursor);
    }
  }
  record_boundary(l.d);
  end_packing(l);
  drain_copies();
  if (MK_GPU_RECORDS && d.words()->leave == 0) {
    look_at_beacon(d, 1);
  }
}

// The opcode by whose code an instruction is carried out: a sum of parts is added by one body, normed or not.
__device__ inline uint32_t body_of(uint32_t opcode) {
  return MK_GPU_FAMILIES && opcode == only<&opcode_row::adds_scaled> ? only<&opcode_row::adds_parts> : opcode;
}

// The instruction is looked up anew each time, since registers are short.
template <typename role>
__device__ __forceinline__ void consume_instruction(role &c, const mk_instruction_word &) {
#define MK_OPCODE(NAME, text, state, semantics)                                                               \
  static_assert(!MK_GPU_SAMPLES || !opcodes.NAME.scores || MK_HAS(consume_##NAME(c, instruction_at_hand(c))), \
                "no consume_" #NAME);
#include "vm/program/opcodes.def"
  switch (body_of(instruction_at_hand(c).opcode)) {
#define MK_OPCODE(NAME, text, state, semantics)                               \
  case opcodes.NAME.number:                                                   \
    if constexpr (searches(opcodes.NAME)) {                                   \
      goto search;                                                            \
    } else if constexpr (MK_HAS(consume_##NAME(c, instruction_at_hand(c)))) { \
      consume_##NAME(c, instruction_at_hand(c));                              \
    } else if constexpr (opcodes.NAME.linear) {                               \
      break;                                                                  \
    }                                                                         \
    return;
#include "vm/program/opcodes.def"
    default:
      return;
  }
  consume_linear(c);
  return;
  [[maybe_unused]] search :  // in a kernel that samples
                             if constexpr (MK_GPU_SAMPLES) {
    consume_search(c, instruction_at_hand(c));
  }
}

__device__ __forceinline__ void run_consumer(device d) {
  wide_consumer c{d};
  d.words()->at_hand[d.warp] = 0;
  put_next_stage(c, {});
  consume_queue(c);
}

}  // namespace mk

extern "C" __global__ void __launch_bounds__(MK_GPU_THREADS, 1)
    mk_wide_kernel(const __grid_constant__ mk_gpu_params params) {
  using namespace mk;
  device d{params, tile::warp(), 0};
  clear_warp_words(d);
  find_copies(d);
  if (tile::thread() == 0) {
    init_barriers(d);
    prepare_tracks();
    clear_block_words(d);
    clear(wide_shared()->choices);
    for (uint32_t page = 0; page < MK_GPU_RING_PAGES; page++) {
      wide_shared()->fills[page] = 0;
    }
  }
  if (tile::thread() < 32) {
    __syncwarp();
    put_step(d, params.plan, 0, wide_shared()->choices, wide_shared()->state[0]);
  }
  __syncthreads();
  if (params.queues[blockIdx.x].count == 0) {
    return;
  }
  if (d.warp < MK_GPU_CONSUMER_WARPS) {
    tile::take_registers<224>();
    run_consumer(d);
  } else {
    tile::give_registers<56>();
    if (d.warp == MK_GPU_CONSUMER_WARPS) {
      run_loader(d);
    } else if (d.warp == MK_GPU_CONSUMER_WARPS + 2) {
      run_controller(d);
    } else {
      if (d.warp == MK_GPU_WARPS - 1) {
        look_at_beacon(d, 0);
      }
      run_packer(d);
    }
  }
}
