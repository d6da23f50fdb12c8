// What the roles do with an instruction of several rows per step, as one_row_roles.cuh has it of one. Nobody waits for
// counters or signals them: such programs have no release counters (refuse.c), and relaxed ones are hints.
#pragma once
#include "instructions/attention_rows.cuh"
#include "instructions/combine_rows.cuh"
#include "instructions/linear_rows.cuh"
#include "instructions/next_rows.cuh"
#include "vm/gpu/rows_loader.cuh"
#if MK_GPU_SAMPLES
#include "instructions/search_rows.cuh"
#endif
#if MK_GPU_FAMILIES
#include "instructions/norm_add_rows.cuh"
#include "instructions/norm_heads_rows.cuh"
#include "instructions/offset_rows.cuh"
#endif

namespace mk {

using queue_consumer = rows_consumer;
using queue_storer = rows_storer;

__device__ inline bool stops(const rows_consumer &c) { return rows_of(c.d).stop != 0; }
__device__ inline bool stops(const rows_storer &s) { return rows_of(s.d).stop != 0; }

// The rows of the launch's first step, from the plan. The consumers need no copy of their own.
__device__ inline void take_first_step(queue_consumer &) {}
__device__ __forceinline__ void put_first_step(const device &d) {
  if (d.warp == 0) {
    put_rows(tile::lane(), planned_row(d, tile::lane(), d.params.plan), 0, rows_shared()->state[0]);
    clear_residuals();
  }
}

// All lanes look up what one of them copies.
__device__ __forceinline__ void load_from_queue(loader &l, const mk_instruction_word &in) {
  if (MK_GPU_FAMILIES && in.opcode == only<&opcode_row::rotates> && tile::elect()) {
    prefetch_QKV(l.d, in);
  }
  load_instruction(l, in);
  __syncwarp();
}

template <typename role>
__device__ __forceinline__ void store_instruction(role &s, const mk_instruction_word &in, const instruction_cursor &) {
  tile::forget(s.lane);
  tile::forget(s.tile);
  tile::forget(s.d.epoch);
  tile::forget(s.d.warp);
  switch (in.opcode) {
#define MK_OPCODE(NAME, text, state, semantics)      \
  case case_of(!opcodes.NAME.absent, opcodes.NAME):  \
    if constexpr (MK_HAS(store_##NAME(s, in))) {     \
      store_##NAME(s, in);                           \
    } else if constexpr (opcodes.NAME.row_tiles()) { \
      break;                                         \
    }                                                \
    return; /* the consumers publish and signal themselves */
#include "vm/program/opcodes.def"
    default:
      return;
  }
  store_rows(s, in);
}

template <typename role>
__device__ __forceinline__ void consume_instruction(role &c, const mk_instruction_word &in) {
  tile::forget(c.lane);
  tile::forget(c.warp);
  tile::forget(c.d.warp);
  tile::forget(c.d.epoch);
#define MK_OPCODE(NAME, text, state, semantics)                                                        \
  static_assert(!opcodes.NAME.consumed_apart() || MK_HAS(consume_##NAME(c, in)), "no consume_" #NAME); \
  static_assert(!MK_GPU_SAMPLES || !opcodes.NAME.scores || MK_HAS(consume_##NAME(c, in)), "no consume_" #NAME);
#include "vm/program/opcodes.def"
  switch (in.opcode) {
#define MK_OPCODE(NAME, text, state, semantics)           \
  case case_of(!opcodes.NAME.absent, opcodes.NAME):       \
    if constexpr (opcodes.NAME.linear) {                  \
      break;                                              \
    } else if constexpr (searches(opcodes.NAME)) {        \
      goto search;                                        \
    } else if constexpr (MK_HAS(consume_##NAME(c, in))) { \
      consume_##NAME(c, in);                              \
    }                                                     \
    return;
#include "vm/program/opcodes.def"
    default:
      return;
  }
  consume_linear(c, in);
  return;
  [[maybe_unused]] search :  // in a kernel that samples
                             if constexpr (MK_GPU_SAMPLES) {
    consume_search(c, in);
  }
}

}  // namespace mk
