// What opcodes are like, from the table in vm/program/opcodes.def. Switches over all opcodes, whose cases are made from
// the table, are compiled for one opcode at a time, and ask here with an opcode that the compiler knows. Functions that
// a kernel calls with an opcode of its queue say so.
//
// A role's code for an opcode is found by its name: consume_X is what the consumers do with opcode X. A kernel that has
// no function of that name for its roles does not have the opcode; assertions beside the switches say which ones it has
// to have.
#pragma once
#include "vm/program/program.h"

// Whether the kernel being compiled is for wide programs.
#ifndef MK_GPU_WIDE
#define MK_GPU_WIDE 0
#endif

// Whether the kernel is for other families than Llama: those have opcodes and parameters that plain Llamas do without.
#ifndef MK_GPU_FAMILIES
#define MK_GPU_FAMILIES false
#endif

// Whether the kernel is for weights of other forms than bf16 as well (vm/program/strips.h).
#ifndef MK_GPU_QUANTISED
#define MK_GPU_QUANTISED false
#endif

// For templates over roles: whether there is such a function for these roles.
#define MK_HAS(call) \
  requires { call; }

namespace mk {

// Where the instruction word has an operand. Among the PARTs: the number of the weight that goes by in pages, of the
// cache whose blocks do, and of the residual that comes in (the residual that leaves, and its rounded copy, come next).
// Among the WHOLEs: the number of a norm's gains. -1: no such operand.
struct opcode_places {
  int weight = -1, cache = -1, residual = -1, gain = -1;
  bool logits = false;  // has some
  bool storer = false;  // touches an operand, and so finishes the instruction
  bool fronts = false;  // are looked at
  mk_state_use state = MK_STATE_NONE;
};

// The number of an operand among the opcode's operands of the same extent.
__host__ __device__ constexpr int place_of(uint32_t opcode, int slot) {
#define MK_OPERAND(NAME, number, field, access, role, when, extent, dtype, store) \
  if (opcode == MK_OP_##NAME && slot == number) {                                 \
    return MK_##extent##_##NAME##_##field;                                        \
  }
#include "vm/program/opcodes.def"
  return -1;
}

// Whether programs with this opcode are refused (vm/gpu/refuse.c): for the kernel being compiled it has no operands and
// no code.
__host__ __device__ constexpr bool is_absent(uint32_t opcode) {
#define MK_FAMILIES_ONLY(NAME)                      \
  if (!MK_GPU_FAMILIES && opcode == MK_OP_##NAME) { \
    return true;                                    \
  }
#define MK_WIDE_ONLY(NAME)                      \
  if (!MK_GPU_WIDE && opcode == MK_OP_##NAME) { \
    return true;                                \
  }
#include "vm/program/opcodes.def"
  return false;
}

__host__ __device__ constexpr opcode_places places_of(uint32_t opcode) {
  opcode_places s;
  if (is_absent(opcode)) {
    return s;
  }
#define MK_OPCODE(NAME, text, use, semantics) s.state = opcode == MK_OP_##NAME ? MK_STATE_##use : s.state;
#define MK_OPERAND(NAME, slot, field, access, role, when, extent, dtype, store)                                       \
  if (opcode == MK_OP_##NAME) {                                                                                       \
    bool tiles = MK_OPERAND_STORE_##store == MK_OPERAND_STORE_TILES;                                                  \
    s.weight = tiles && MK_ROLE_##role == MK_ROLE_LOADER ? MK_##extent##_##NAME##_##field : s.weight;                 \
    bool blocks = MK_OPERAND_STORE_##store == MK_OPERAND_STORE_BLOCKS;                                                \
    s.cache = MK_ACCESS_##access == MK_ACCESS_UPDATE || (blocks && MK_ROLE_##role == MK_ROLE_LOADER)                  \
                  ? MK_##extent##_##NAME##_##field                                                                    \
                  : s.cache;                                                                                          \
    s.residual = MK_OPERAND_STORE_##store == MK_OPERAND_STORE_RESIDUAL ? MK_##extent##_##NAME##_##field : s.residual; \
    s.storer = s.storer || MK_ROLE_##role == MK_ROLE_STORER;                                                          \
  }
#define MK_CONTENT(NAME, field, content)                                                                    \
  if (opcode == MK_OP_##NAME) {                                                                             \
    s.gain = MK_CONTENT_##content == MK_CONTENT_GAIN ? place_of(opcode, MK_SLOT_##NAME##_##field) : s.gain; \
    s.logits = s.logits || MK_CONTENT_##content == MK_CONTENT_LOGITS;                                       \
    s.fronts = s.fronts || MK_CONTENT_##content == MK_CONTENT_FRONT;                                        \
  }
#include "vm/program/opcodes.def"
  s.fronts = s.fronts && !s.storer;
  return s;
}

__host__ __device__ constexpr int streamed_part(uint32_t opcode) {
  return places_of(opcode).weight >= 0 ? places_of(opcode).weight : places_of(opcode).cache;
}
// The label of an opcode in a switch. Where the opcode has no code in that switch (not `has`), it is a label that no
// opcode's byte reaches: the opcode takes the default.
__host__ __device__ constexpr uint32_t case_of(bool has, uint32_t opcode) { return has ? opcode : 0x100 + opcode; }
// Linear opcodes multiply a weight by x, in one body that they share.
__host__ __device__ constexpr bool is_linear(uint32_t opcode) { return places_of(opcode).weight >= 0; }
// Whether the opcode has a result for each row tile, which a storer finishes.
__host__ __device__ constexpr bool has_row_tiles(uint32_t opcode) {
  return is_linear(opcode) || places_of(opcode).residual >= 0;
}
// Whether an instruction of the opcode is over, and signals, when its consumers are done. The opcode that moves the
// step state on signals nothing (rule N09).
__host__ __device__ constexpr bool consumers_finish(uint32_t opcode) {
  return !places_of(opcode).storer && places_of(opcode).state != MK_STATE_WRITE;
}

// Whether every kernel of token programs must have a consume_X for the opcode: the consumers take part in it, and not
// in a body that several opcodes share.
__host__ __device__ constexpr bool is_consumed_apart(uint32_t opcode) {
  opcode_places of = places_of(opcode);
  return !is_absent(opcode) && !is_linear(opcode) &&
         (of.residual >= 0 || (!of.storer && !of.fronts && of.state != MK_STATE_NONE));
}

// Which PART an opcode of the queue streams; -1: none.
__device__ inline int streamed_operand(uint32_t opcode) {
#define MK_OPCODE(NAME, text, state, semantics)                                \
  if constexpr (constexpr int part = streamed_part(MK_OP_##NAME); part >= 0) { \
    if (opcode == MK_OP_##NAME) {                                              \
      return part;                                                             \
    }                                                                          \
  }
#include "vm/program/opcodes.def"
  return -1;
}

}  // namespace mk
