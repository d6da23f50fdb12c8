// The persistent kernel: one block per SM, every warp in its role, from the first epoch of the launch to the last.
//
// Warps 0-15 consume, 16 loads, 17 stores, 18 controls (fetches instructions into their ring), 19 leaves at once.
// Registers: the consumers' warpgroups take what the last warpgroup gives up. This source is compiled several times: as
// it is, for one row per step, which is kept small; with the opcodes of sampling (sampling.cu); for several rows per
// step, with instructions of their own (rows.cu); for these with the opcodes of sampling (rows_sampling.cu); each of
// these with the recorder (recording.cu and the like); all of them once more for other families than Llama (families.cu
// and the like); and for several GPUs that share a model (ranks.cu).
#if MK_GPU_ROWS
#include "vm/gpu/rows_roles.cuh"
#else
#include "vm/gpu/one_row_roles.cuh"
#endif
#include "vm/gpu/controller.cuh"
#include "vm/gpu/queue.cuh"

namespace mk {

__device__ inline void init_barriers(const device &d) {
  for (uint32_t i = 0; i < MK_GPU_RING_PAGES; i++) {
    tile::barrier_init(d.barrier(PAGE_FULL + i), 1);
    tile::barrier_init(d.barrier(PAGE_EMPTY + i), MK_GPU_CONSUMER_WARPS);
  }
  for (uint32_t i = 0; i < MK_GPU_RESULT_SLOTS; i++) {
    tile::barrier_init(d.barrier(RESULT_FULL + i), MK_GPU_ROWS ? MK_GPU_CONSUMER_WARPS / 2 : MK_GPU_CONSUMER_WARPS);
    tile::barrier_init(d.barrier(RESULT_EMPTY + i), STORERS);
  }
  for (uint32_t i = 0; i < MK_GPU_INSTRUCTION_SLOTS; i++) {
    tile::barrier_init(d.barrier(INSTRUCTION_FULL + i), 1);
    tile::barrier_init(d.barrier(INSTRUCTION_EMPTY + i), MK_GPU_CONSUMER_WARPS + 1 + STORERS);  // and loader, storer
  }
  tile::barrier_init(d.barrier(STATE_READY), 1);
  if constexpr (MK_GPU_SAMPLES) {
    tile::barrier_init(d.barrier(SCORED), STORERS);
  }
  tile::fence_barriers();
}

__device__ __forceinline__ void load_queue(loader &l) {
  instruction_cursor cursor;
  for (l.d.epoch = 0; l.d.epoch < l.d.params.epochs; l.d.epoch++) {
    record_boundary(l.d);
    for (bool last = false; !last;) {
      const mk_instruction_word *in = fetch(l.d, cursor);
      if (in == nullptr) {
        return;
      }
      load_from_queue(l, *in);
      last = done_with(l.d, cursor);
    }
  }
}

// Storers that have more in hand keep their position in shared memory.
__device__ inline instruction_cursor look_up(const queue_storer &s, const instruction_cursor &cursor) {
  return STORERS_PUT_DOWN ? instruction_cursor{s.d.words()->at_hand[s.d.warp]} : cursor;
}
__device__ inline void put_down(const queue_storer &s, const instruction_cursor &cursor) {
  if (STORERS_PUT_DOWN) {
    s.d.words()->at_hand[s.d.warp] = cursor.at;
    __syncwarp();
  }
}

__device__ __forceinline__ void store_queue(queue_storer &s) {
  instruction_cursor cursor;
  put_down(s, cursor);
  for (s.d.epoch = 0; s.d.epoch < s.d.params.epochs; s.d.epoch++) {
    record_boundary(s.d);
    if (s.d.epoch > 0 && !wait_phase(s.d, STATE_READY, (s.d.epoch - 1) % 2, MK_ACTIVITY_STEP_STATE, 0)) {
      return;
    }
    if (stops(s)) {
      return;
    }
    for (bool last = false; !last;) {
      cursor = look_up(s, cursor);
      const mk_instruction_word *in = fetch(s.d, cursor);
      if (in == nullptr) {
        return;
      }
      store_instruction(s, *in, cursor);
      cursor = look_up(s, cursor);
      last = done_with(s.d, cursor);
      put_down(s, cursor);
    }
  }
}

__device__ __forceinline__ void run_loader(device d) {
  loader l = make_loader(d);
  load_queue(l);
  record_boundary(l.d);
  drain_copies(l);
}

__device__ __forceinline__ void run_storer(device d) {
  queue_storer s{d, tile::lane()};
  bool second = MK_GPU_RECORDS && STORERS == 2 && d.warp == MK_GPU_WARPS - 1;
  if (second) {
    look_at_beacon(d, 0);  // no warp is idle: the first results of the launch come after this look
  }
  store_queue(s);
  record_boundary(s.d);
  if (!second && d.words()->leave == 0) {
    look_at_beacon(d, 1);
  }
}

__device__ __forceinline__ void run_consumer(device d) {
  queue_consumer c{d, d.warp, tile::lane()};
  take_first_step(c);
  set_at_hand(c, {});
  consume_queue(c);
}

}  // namespace mk

extern "C" __global__ void __launch_bounds__(MK_GPU_THREADS, 1)
    mk_kernel(const __grid_constant__ mk_gpu_params params) {
  using namespace mk;
  device d{params, tile::warp(), 0};
  clear_warp_words(d);
  find_copies(d);
  if (tile::thread() == 0) {
    init_barriers(d);
    prepare_tracks();
    clear_block_words(d);
    volatile shared_words *words = d.words();
    if constexpr (MK_GPU_SAMPLES) {
      words->stopped = 0;
      words->scores_wanted = 0;
    }
  }
  put_first_step(d);
  __syncthreads();
  if (params.queues[blockIdx.x].count == 0) {
    return;
  }
  if (d.warp < MK_GPU_CONSUMER_WARPS) {
    tile::take_registers<104>();
    run_consumer(d);
  } else {
    tile::give_registers<64>();
    if (d.warp == MK_GPU_CONSUMER_WARPS) {
      run_loader(d);
    } else if (d.warp == MK_GPU_CONSUMER_WARPS + 1 || (STORERS == 2 && d.warp == MK_GPU_CONSUMER_WARPS + 3)) {
      run_storer(d);
    } else if (d.warp == MK_GPU_CONSUMER_WARPS + 2) {
      run_controller(d);
    } else {
      look_at_beacon(d, 0);  // nobody waits for this warp
    }
  }
}
