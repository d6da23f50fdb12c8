// What the roles do with an instruction of several rows per step: the counterparts of kernel.cu's. Nobody waits for counters or signals them:
// such programs have no release counters (refuse.c), and relaxed ones are hints.
#pragma once
#include "instructions/attention_rows.cuh"
#include "instructions/combine_rows.cuh"
#include "instructions/linear_rows.cuh"
#include "instructions/next_rows.cuh"
#include "vm/gpu/rows_loader.cuh"

namespace mk {

using queue_consumer = rows_consumer;
using queue_storer = rows_storer;

__device__ inline bool stops(const rows_consumer &c) { return rows_of(c.d).stop != 0; }

__device__ __forceinline__ void store_instruction(rows_storer &s, const mk_instruction &in,
                                                  const instruction_cursor &) {
  forget(s.lane);
  forget(s.tile);
  forget(s.d.epoch);
  forget(s.d.warp);
  switch (in.opcode) {
    case MK_OP_QKV:
    case MK_OP_LINEAR_ADD:
    case MK_OP_LINEAR_PART:
    case MK_OP_REDUCE_ADD:
    case MK_OP_GLU:
    case MK_OP_HEAD:
      store_rows(s, in);
      break;
    default:
      break;  // the consumers publish and signal themselves
  }
}

__device__ __forceinline__ void consume_instruction(rows_consumer &c, const mk_instruction &in) {
  forget(c.lane);
  forget(c.warp);
  forget(c.d.warp);
  forget(c.d.epoch);
  switch (in.opcode) {
    case MK_OP_ATTENTION:
      consume_ATTENTION(c, in);
      return;
    case MK_OP_COMBINE:
      consume_COMBINE_rows(c, in);
      return;
    case MK_OP_REDUCE_ADD:
      consume_REDUCE_ADD(c, in);
      return;
    case MK_OP_NEXT:
      consume_NEXT(c, in);
      return;
    case MK_OP_QKV:
    case MK_OP_LINEAR_ADD:
    case MK_OP_LINEAR_PART:
    case MK_OP_GLU:
    case MK_OP_HEAD:
      consume_linear(c, in);
      break;
    default:
      break;
  }
}

}  // namespace mk
