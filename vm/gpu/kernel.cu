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

#if MK_GPU_FAMILIES && !MK_GPU_ROWS
#include "instructions/norm_add.cuh"
#include "instructions/norm_heads.cuh"
#include "instructions/offset.cuh"
#endif

#if MK_GPU_SAMPLES && !MK_GPU_ROWS
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
  if constexpr (MK_GPU_SAMPLES) {
    tile::barrier_init(d.barrier(SCORED), STORERS);
  }
  tile::fence_barriers();
}

#if !MK_GPU_ROWS
using queue_consumer = consumer;
using queue_storer = storer;

// The row of the launch's first step, from the plan.
__device__ inline mk_step_row first_row(const device &d) {
  uint4 words = tile::load<uint4>(d.params.plan);
  return {words.x, words.y, words.z, words.w};
}
#endif

__device__ __forceinline__ void load_queue(loader &l) {
  instruction_cursor cursor;
  for (l.d.epoch = 0; l.d.epoch < l.d.params.epochs; l.d.epoch++) {
    record_boundary(l.d);
    for (bool last = false; !last;) {
      const mk_instruction_word *in = fetch(l.d, cursor);
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
__device__ constexpr bool searches(uint32_t opcode) { return MK_GPU_SAMPLES && places_of(opcode).fronts; }

template <typename role>
__device__ __forceinline__ void store_instruction(role &s, const mk_instruction_word &in,
                                                  const instruction_cursor &cursor) {
  row_store r = {};
  r.scale = MK_GPU_FAMILIES ? 1.0f : 0.0f;  // some inputs are not normed
  if (has_flag(in, SLOT_WAITS_RELEASE)) {   // it may read what these order before the consumers have a result
    wait_counters(s.d, in);
  }
#define HAS_LOOP(NAME) MK_HAS(store_##NAME(s, in, cursor, r))
#define HAS_FINISH(NAME) MK_HAS(finish_##NAME(s, in, i, y, r))
#define MK_OPCODE(NAME, text, state, semantics) \
  static_assert(!has_row_tiles(MK_OP_##NAME) || HAS_LOOP(NAME) || MK_HAS(begin_##NAME(s, in, r)), "no begin_" #NAME);
#include "vm/program/opcodes.def"
  switch (in.opcode) {
#define MK_OPCODE(NAME, text, state, semantics)                                 \
  case case_of(HAS_LOOP(NAME) || MK_HAS(begin_##NAME(s, in, r)), MK_OP_##NAME): \
    r.rounds = rounds_of<MK_OP_##NAME>(in);                                     \
    if constexpr (HAS_LOOP(NAME)) {                                             \
      store_##NAME(s, in, cursor, r);                                           \
    } else if constexpr (MK_HAS(begin_##NAME(s, in, r))) {                      \
      begin_##NAME(s, in, r);                                                   \
    }                                                                           \
    break;
#include "vm/program/opcodes.def"
    default:
      return;  // the consumers publish and signal themselves
  }
  for (uint32_t i = 0; i < r.tiles; i++) {
#define MK_OPCODE(NAME, text, state, semantics)                           \
  if (MK_HAS(prepare_##NAME(s, in, i, r)) && in.opcode == MK_OP_##NAME) { \
    if constexpr (MK_HAS(prepare_##NAME(s, in, i, r))) {                  \
      prepare_##NAME(s, in, i, r);                                        \
    }                                                                     \
  } else
#include "vm/program/opcodes.def"
    {}
    two_rows y = take_results(s, in, i, r);
#define MK_OPCODE(NAME, text, state, semantics)                                                                \
  static_assert(                                                                                               \
      !is_linear(MK_OP_##NAME) || places_of(MK_OP_##NAME).residual >= 0 || HAS_LOOP(NAME) || HAS_FINISH(NAME), \
      "no finish_" #NAME);
#include "vm/program/opcodes.def"
    switch (in.opcode) {
#define MK_OPCODE(NAME, text, state, semantics)                    \
  case case_of(HAS_FINISH(NAME) && !HAS_LOOP(NAME), MK_OP_##NAME): \
    if constexpr (HAS_FINISH(NAME)) {                              \
      finish_##NAME(s, in, i, y, r);                               \
    }                                                              \
    break;
#include "vm/program/opcodes.def"
      default:
        finish_residual(s, i, y, r);
        break;
    }
  }
#define MK_OPCODE(NAME, text, state, semantics)                    \
  if constexpr (MK_HAS(end_##NAME(s, in, r)) && !HAS_LOOP(NAME)) { \
    if (in.opcode == MK_OP_##NAME) {                               \
      end_##NAME(s, in, r);                                        \
    }                                                              \
  }
#include "vm/program/opcodes.def"
  signal_from_warp(s.d, s.lane, in);
#define MK_OPCODE(NAME, text, state, semantics) \
  if constexpr (MK_HAS(after_##NAME(s, in))) {  \
    if (in.opcode == MK_OP_##NAME) {            \
      after_##NAME(s, in);                      \
    }                                           \
  }
#include "vm/program/opcodes.def"
#undef HAS_LOOP
#undef HAS_FINISH
}

// Linear instructions share one body, and so do those that search; every other opcode has its own. An instruction that
// the storer does not finish signals here.
template <typename role>
__device__ __forceinline__ void consume_instruction(role &c, const mk_instruction_word &in) {
  bool normed;
  consumers_wait(c, in);
#define MK_OPCODE(NAME, text, state, semantics) \
  static_assert(!is_consumed_apart(MK_OP_##NAME) || MK_HAS(consume_##NAME(c, in)), "no consume_" #NAME);
#include "vm/program/opcodes.def"
  switch (in.opcode) {
#define MK_OPCODE(NAME, text, state, semantics)                                                                   \
  case case_of(is_linear(MK_OP_##NAME) || searches(MK_OP_##NAME) || MK_HAS(consume_##NAME(c, in)), MK_OP_##NAME): \
    if constexpr (is_linear(MK_OP_##NAME)) {                                                                      \
      normed = places_of(MK_OP_##NAME).gain >= 0 && (!MK_GPU_FAMILIES || has_norm(in));                           \
      break;                                                                                                      \
    } else if constexpr (searches(MK_OP_##NAME)) {                                                                \
      goto search;                                                                                                \
    } else if constexpr (MK_HAS(consume_##NAME(c, in))) {                                                         \
      consume_##NAME(c, in);                                                                                      \
      if constexpr (consumers_finish(MK_OP_##NAME)) {                                                             \
        goto finish;                                                                                              \
      }                                                                                                           \
    }                                                                                                             \
    return;
#include "vm/program/opcodes.def"
    default:
      return;
  }
  consume_linear(c, in, normed);
  return;
  [[maybe_unused]] search :  // in a kernel that samples
                             if constexpr (MK_GPU_SAMPLES) {
    consume_search(c, in);
    consumers_signal(c, instruction_at_hand(c));
    return;
  }
finish:
  consumers_signal(c, instruction_at_hand(c));
}
#endif

// Storers of other families' kernels, which have more in hand, keep their position in shared memory.
__device__ inline instruction_cursor look_up(const queue_storer &s, const instruction_cursor &cursor) {
  return MK_GPU_FAMILIES ? instruction_cursor{s.d.words()->at_hand[s.d.warp]} : cursor;
}
__device__ inline void put_down(const queue_storer &s, const instruction_cursor &cursor) {
  if (MK_GPU_FAMILIES) {
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

__device__ __forceinline__ bool consume_queue(queue_consumer &c) {
  for (c.d.epoch = 0; c.d.epoch < c.d.params.epochs && !stops(c); c.d.epoch++) {
    record_boundary(c.d);
    put_down_epoch(c);
    for (bool last = false; !last;) {
      const mk_instruction_word *in = fetch(c.d, at_hand(c));
      if (in == nullptr) {
        return false;
      }
      planted_delay(c.d);
      consume_instruction(c, *in);
      look_up_epoch(c);
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
#if MK_GPU_ROWS
  queue_consumer c{{d, d.warp, tile::lane()}, {d.warp / HALF_WARPS}, {}};
#else
  queue_consumer c{d, d.warp, tile::lane()};
  mk_step_row row = first_row(d);
  set_row(c, row.token, row.position, row.flags);
#endif
  set_at_hand(c, {});
  bool whole = consume_queue(c);
  record_boundary(c.d);
  if (c.warp == 0 && c.lane == 0) {
    if (stops(c)) {
      c.d.words()->leave = 1;  // the roles that run ahead then have nothing to wait for
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
  device d{params, tile::warp(), 0};
  clear_warp_words(d);
  find_copies(d);
  if (tile::thread() == 0) {
    init_barriers(d);
    prepare_tracks();
    clear_block_words(d);
    volatile shared_words *words = d.words();
    words->combined = 0;
    if constexpr (MK_GPU_SAMPLES) {
      words->stopped = 0;
      words->scores_wanted = 0;
    }
#if !MK_GPU_ROWS
    mk_step_row row = first_row(d);
    words->state[0].token = row.token;
    words->state[0].position = row.position;
    words->state[0].flags = row.flags;
    words->state[0].choice = 0;
#endif
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
