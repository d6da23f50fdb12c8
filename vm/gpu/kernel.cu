// The persistent kernel: one block per SM, every warp in its role, from the first epoch of the launch to the last.
//
// Warps 0-15 consume, 16 loads, 17 stores, 18 controls (fetches instructions into their ring), 19 leaves at once. Registers: the
// consumers' warpgroups take what the last warpgroup gives up. Compiled for one row per step three times: as it is, with the recorder (recording.cu), and
// with the opcodes of sampling (sampling.cu); the first is kept small. rows.cu compiles it for several rows per step, with instructions of
// their own.
#if MK_GPU_ROWS
#include "vm/gpu/rows_roles.cuh"
#else
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
#endif
#include "vm/gpu/controller.cuh"

#if MK_GPU_SAMPLES
#include "instructions/score.cuh"
#include "instructions/search.cuh"
#endif

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
#if MK_GPU_SAMPLES
  tile::barrier_init(d.barrier(SCORED), 1);
#endif
  tile::fence_barriers();
}

#if !MK_GPU_ROWS
using queue_consumer = consumer;
using queue_storer = storer;
#endif

__device__ __forceinline__ void load_queue(loader &l) {
  instruction_cursor cursor;
  for (l.d.epoch = 0; l.d.epoch < l.d.params.epochs; l.d.epoch++) {
    record_boundary(l.d);
    for (bool last = false; !last;) {
      const mk_instruction *in = fetch(l.d, cursor);
      if (in == nullptr) {
        return;
      }
#if MK_GPU_ROWS
      load_instruction(l, *in);
      __syncwarp();
#else
      if (tile::elect()) {
        load_instruction(l, *in);
      }
#endif
      last = done_with(l.d, cursor);
    }
  }
}

#if !MK_GPU_ROWS
__device__ __forceinline__ void store_instruction(storer &s, const mk_instruction &in,
                                                  const instruction_cursor &cursor) {
  row_store r = {};
  if (has_flag(in, SLOT_WAITS_RELEASE)) {  // it may read what they order before the consumers have anything for it
    wait_counters(s.d, in);
  }
  switch (in.opcode) {
    case MK_OP_QKV:
      begin_QKV(s, in, r);
      break;
    case MK_OP_LINEAR_ADD:
      begin_LINEAR_ADD(s, in, r);
      break;
    case MK_OP_LINEAR_PART:
      begin_LINEAR_PART(s, in, r);
      break;
    case MK_OP_REDUCE_ADD:
      begin_REDUCE_ADD(s, in, r);
      break;
    case MK_OP_GLU:
      begin_GLU(s, in, r);
      break;
    case MK_OP_HEAD:
#if MK_GPU_SAMPLES
      store_scored_head(s, in, cursor, r);
      break;
    case MK_OP_SCORE:  // done with the HEAD before it, but for what end_SCORE_late does
#else
      begin_HEAD(s, in, r);
#endif
      break;
    default:
      return;  // the consumers publish and signal themselves
  }
  for (uint32_t i = 0; i < r.tiles; i++) {
    if (in.opcode == MK_OP_QKV) {
      prepare_QKV(s, in, i, r);
    } else if (in.opcode == MK_OP_LINEAR_ADD) {
      prepare_LINEAR_ADD(s, in, i, r);
    } else if (in.opcode == MK_OP_REDUCE_ADD) {
      prepare_REDUCE_ADD(s, in, i, r);
    }
    float squares;
    two_rows y = take_result(s, squares);
    switch (in.opcode) {
      case MK_OP_QKV:
        finish_QKV(s, i, y, squares, r);
        break;
      case MK_OP_LINEAR_PART:
        finish_LINEAR_PART(s, i, y, r);
        break;
      case MK_OP_GLU:
        finish_GLU(s, i, y, squares, r);
        break;
#if !MK_GPU_SAMPLES
      case MK_OP_HEAD:
        finish_HEAD(s, in, i, y, squares, r);
        break;
#endif
      default:
        finish_residual(s, i, y, r);
        break;
    }
    release_result(s);
  }
#if !MK_GPU_SAMPLES
  if (in.opcode == MK_OP_HEAD) {
    end_HEAD(s, in, state_of(s).position + 1 < s.d.params.prompt_length, r);
  }
#endif
  signal_from_warp(s.d, s.lane, in);
#if MK_GPU_SAMPLES
  if (in.opcode == MK_OP_SCORE) {
    end_SCORE_late(s, in);
  }
#endif
}

// Linear instructions share one body; the others have their own, and signal here what they publish themselves.
__device__ __forceinline__ void consume_instruction(consumer &c, const mk_instruction &in) {
  linear_slots slots;
  consumers_wait(c, in);
  switch (in.opcode) {
    case MK_OP_ATTENTION:
    case MK_OP_COMBINE:
      if (in.opcode == MK_OP_ATTENTION) {
        consume_ATTENTION(c, in);
      } else {
        consume_COMBINE(c, in);
      }
      consumers_signal(c, instruction_at_hand(c));
      return;
    case MK_OP_REDUCE_ADD:
      consume_REDUCE_ADD(c, in);
      return;
    case MK_OP_NEXT:
      consume_NEXT(c, in);
      return;
#if MK_GPU_SAMPLES
    case MK_OP_SIFT:
    case MK_OP_DRAW:
      consume_search(c, in);
      consumers_signal(c, instruction_at_hand(c));
      return;
#endif
    case MK_OP_QKV:
      slots = linear_QKV();
      break;
    case MK_OP_LINEAR_ADD:
      slots = linear_LINEAR_ADD();
      break;
    case MK_OP_LINEAR_PART:
      slots = linear_LINEAR_PART();
      break;
    case MK_OP_GLU:
      slots = linear_GLU();
      break;
    case MK_OP_HEAD:
      slots = linear_HEAD();
      break;
    default:
      return;
  }
  consume_linear(c, in, slots);
}
#endif

__device__ __forceinline__ void store_queue(queue_storer &s) {
  instruction_cursor cursor;
  for (s.d.epoch = 0; s.d.epoch < s.d.params.epochs; s.d.epoch++) {
    record_boundary(s.d);
    if (s.d.epoch > 0 && !wait_phase(s.d, STATE_READY, (s.d.epoch - 1) % 2, MK_ACTIVITY_STEP_STATE, 0)) {
      return;
    }
#if MK_GPU_ROWS
    if (rows_of(s.d).stop != 0) {
#else
    if ((state_of(s).token & MK_CANDIDATE_STOP) != 0) {
#endif
      return;
    }
    for (bool last = false; !last;) {
      const mk_instruction *in = fetch(s.d, cursor);
      if (in == nullptr) {
        return;
      }
      store_instruction(s, *in, cursor);
      last = done_with(s.d, cursor);
    }
  }
}

__device__ __forceinline__ bool consume_queue(queue_consumer &c) {
  for (c.d.epoch = 0; c.d.epoch < c.d.params.epochs && !stops(c); c.d.epoch++) {
    record_boundary(c.d);
    for (bool last = false; !last;) {
      const mk_instruction *in = fetch(c.d, at_hand(c));
      if (in == nullptr) {
        return false;
      }
      planted_delay(c.d);
      consume_instruction(c, *in);
      instruction_cursor cursor = at_hand(c);
      last = done_with(c.d, cursor);
      set_at_hand(c, cursor);
    }
  }
  return true;
}

__device__ __forceinline__ void run_loader(device d) {
  loader l = make_loader(d);
  load_queue(l);
  record_boundary(l.d);
  drain_copies(l);
}

__device__ __forceinline__ void run_storer(device d) {
#if MK_GPU_ROWS
  queue_storer s{d, tile::lane(), (d.warp - MK_GPU_CONSUMER_WARPS) / 2};
#else
  queue_storer s{d, tile::lane()};
#endif
  store_queue(s);
  record_boundary(s.d);
  if (d.words()->leave == 0) {
    look_at_beacon(d, 1);
  }
}

__device__ __forceinline__ void run_consumer(device d) {
#if MK_GPU_ROWS
  queue_consumer c{{d, d.warp, tile::lane()}, {}, {}};
#else
  queue_consumer c{d, d.warp, tile::lane()};
  set_state(c, d.params.token, d.params.position);
#endif
  set_at_hand(c, {});
  bool whole = consume_queue(c);
  record_boundary(c.d);
  if (c.warp == 0 && c.lane == 0) {
    if (stops(c)) {
      c.d.words()->leave = 1;  // the roles that run ahead have nothing to wait for
    }
    c.d.words()->finished = 1;
    if (whole && blockIdx.x == 0) {
      *d.params.epochs_done = c.d.epoch;
    }
  }
}

}  // namespace mk

extern "C" __global__ void __launch_bounds__(MK_GPU_THREADS, 1)
    mk_kernel(const __grid_constant__ mk_gpu_params params) {
  using namespace mk;
  device d{params, __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), 0};
  clear_warp_words(d);
  if (threadIdx.x == 0) {
    init_barriers(d);
    prepare_tracks();
    clear_block_words(d);
    volatile shared_words *words = d.words();
    words->combined = 0;
#if MK_GPU_SAMPLES
    words->stopped = 0;
    words->scores_wanted = 0;
#endif
    words->state[0].token = params.token;
    words->state[0].position = params.position;
  }
#if MK_GPU_ROWS
  if (d.warp == 0) {
    put_rows(tile::lane(), planned_row(d, tile::lane(), params.plan), 0, rows_shared()->state[0]);
    clear_residuals();
  }
#endif
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
