// What the roles do with an instruction of one row per step, and how they begin. rows_roles.cuh has the counterparts
// for several rows.
#pragma once
#include "instructions/attention.cuh"
#include "instructions/combine.cuh"
#include "instructions/glu.cuh"
#include "instructions/head.cuh"
#include "instructions/linear_part.cuh"
#include "instructions/next.cuh"
#include "instructions/qkv.cuh"
#include "instructions/reduce_add.cuh"
#include "vm/gpu/one_row_loader.cuh"
#if MK_GPU_FAMILIES
#include "instructions/norm_add.cuh"
#include "instructions/norm_heads.cuh"
#include "instructions/offset.cuh"
#endif
#if MK_GPU_SAMPLES
#include "instructions/score.cuh"
#include "instructions/search.cuh"
#endif

namespace mk {

using queue_consumer = consumer;
using queue_storer = storer;

// The row of the launch's first step, from the plan.
__device__ inline mk_step_row first_row(const device &d) {
  uint4 words = tile::load<uint4>(d.params.plan);
  return {words.x, words.y, words.z, words.w};
}

// A consumer's own copy of it.
__device__ inline void take_first_step(queue_consumer &c) {
  mk_step_row row = first_row(c.d);
  set_row(c, row.token, row.position, row.flags);
}

// The state of the launch's first step.
__device__ __forceinline__ void put_first_step(const device &d) {
  if (tile::thread() == 0) {
    volatile step_state &state = d.words()->state[0];
    mk_step_row row = first_row(d);
    state.token = row.token;
    state.position = row.position;
    state.flags = row.flags;
    state.choice = 0;
  }
}

__device__ __forceinline__ void load_from_queue(loader &l, const mk_instruction_word &in) {
  if (tile::elect()) {
    if (MK_GPU_FAMILIES && in.opcode == only<&opcode_row::rotates>) {
      prefetch_QKV(l.d, in);
    }
    load_instruction(l, in);
  }
}

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
#define HAS_BEGIN(NAME) (MK_HAS(begin_##NAME(s, in, r)) || opcodes.NAME.adds)
#define MK_OPCODE(NAME, text, state, semantics) \
  static_assert(!opcodes.NAME.row_tiles() || HAS_LOOP(NAME) || HAS_BEGIN(NAME), "no begin_" #NAME);
#include "vm/program/opcodes.def"
  switch (in.opcode) {
#define MK_OPCODE(NAME, text, state, semantics)                  \
  case case_of(HAS_LOOP(NAME) || HAS_BEGIN(NAME), opcodes.NAME): \
    r.rounds = rounds_of<opcodes.NAME>(in);                      \
    if constexpr (HAS_LOOP(NAME)) {                              \
      store_##NAME(s, in, cursor, r);                            \
    } else if constexpr (MK_HAS(begin_##NAME(s, in, r))) {       \
      begin_##NAME(s, in, r);                                    \
    } else if constexpr (opcodes.NAME.adds) {                    \
      begin_residual(s, in, opcodes.NAME.residual, r);           \
    }                                                            \
    break;
#include "vm/program/opcodes.def"
    default:
      return;  // the consumers publish and signal themselves
  }
  for (uint32_t i = 0; i < r.tiles; i++) {
#define ADDS_ALONE(NAME) (opcodes.NAME.adds && !HAS_LOOP(NAME))
#define MK_OPCODE(NAME, text, state, semantics)                                                        \
  if ((MK_HAS(prepare_##NAME(s, in, i, r)) || ADDS_ALONE(NAME)) && in.opcode == opcodes.NAME.number) { \
    if constexpr (MK_HAS(prepare_##NAME(s, in, i, r))) {                                               \
      prepare_##NAME(s, in, i, r);                                                                     \
    } else if constexpr (ADDS_ALONE(NAME)) {                                                           \
      r.a = load_residual(s, in.parts[opcodes.NAME.residual], i);                                      \
    }                                                                                                  \
  } else
#include "vm/program/opcodes.def"
    {}
    two_rows y = take_results(s, in, i, r);
#define MK_OPCODE(NAME, text, state, semantics) \
  static_assert(!opcodes.NAME.linear || opcodes.NAME.adds || HAS_LOOP(NAME) || HAS_FINISH(NAME), "no finish_" #NAME);
#include "vm/program/opcodes.def"
    switch (in.opcode) {
#define MK_OPCODE(NAME, text, state, semantics)                    \
  case case_of(HAS_FINISH(NAME) && !HAS_LOOP(NAME), opcodes.NAME): \
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
    if (in.opcode == opcodes.NAME.number) {                        \
      end_##NAME(s, in, r);                                        \
    }                                                              \
  }
#include "vm/program/opcodes.def"
  signal_from_warp(s.d, s.lane, in);
#define MK_OPCODE(NAME, text, state, semantics) \
  if constexpr (MK_HAS(after_##NAME(s, in))) {  \
    if (in.opcode == opcodes.NAME.number) {     \
      after_##NAME(s, in);                      \
    }                                           \
  }
#include "vm/program/opcodes.def"
#undef ADDS_ALONE
#undef HAS_LOOP
#undef HAS_BEGIN
#undef HAS_FINISH
}

// Linear instructions share one body, and so do those that search; every other opcode has its own. An instruction that
// the storer does not finish signals here.
template <typename role>
__device__ __forceinline__ void consume_instruction(role &c, const mk_instruction_word &in) {
  bool normed;
  if constexpr (MK_GPU_RECORDS) {
    tile::forget(c.lane);  // registers are short
  }
  consumers_wait(c, in);
#define MK_OPCODE(NAME, text, state, semantics) \
  static_assert(!opcodes.NAME.consumed_apart() || MK_HAS(consume_##NAME(c, in)), "no consume_" #NAME);
#include "vm/program/opcodes.def"
  switch (in.opcode) {
#define MK_OPCODE(NAME, text, state, semantics)                                                               \
  case case_of(opcodes.NAME.linear || searches(opcodes.NAME) || MK_HAS(consume_##NAME(c, in)), opcodes.NAME): \
    if constexpr (opcodes.NAME.linear) {                                                                      \
      normed = opcodes.NAME.normed && (!MK_GPU_FAMILIES || has_norm(in));                                     \
      break;                                                                                                  \
    } else if constexpr (searches(opcodes.NAME)) {                                                            \
      goto search;                                                                                            \
    } else if constexpr (MK_HAS(consume_##NAME(c, in))) {                                                     \
      consume_##NAME(c, in);                                                                                  \
      if constexpr (opcodes.NAME.consumers_finish()) {                                                        \
        goto finish;                                                                                          \
      }                                                                                                       \
    }                                                                                                         \
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

}  // namespace mk
