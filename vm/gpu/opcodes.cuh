// What opcodes are like, from the table in vm/program/opcodes.def. Switches over all opcodes, whose cases are made from
// the table, are compiled for one opcode at a time, and ask its row, which the compiler knows: opcodes.QKV.gain. With
// an opcode of the queue code asks whether it is the one with a property: in.opcode == only<&opcode_row::rotates>.
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

// What the compiler of a kernel knows of an opcode: a row of the table. An operand is told by its number among the
// opcode's PARTs, a gain among its WHOLEs; -1: there is none.
struct opcode_row {
  uint32_t number = 0;
  bool absent = false;       // programs with it are refused (vm/gpu/refuse.c): for this kernel nothing below is set
  uint32_t parts = 0;        // how many PARTs it has
  int weight = -1;           // goes by in pages
  int cache = -1;            // its blocks do
  int residual = -1;         // comes in; the residual that leaves, and its rounded copy, come next
  int gain = -1;             // of a norm
  bool linear = false;       // multiplies the weight by x, in a body that all such opcodes share
  bool normed = false;       // has a gain
  bool adds = false;         // to the residual
  bool adds_parts = false;   // to the residual, what others have left in parts
  bool adds_norm = false;    // to the residual, the norm of their sum (MK_SUMS)
  bool adds_scaled = false;  // the same by squares that others have made
  bool storer = false;       // touches an operand, and so finishes the instruction
  bool appends = false;      // to the cache that it reads
  bool attends = false;      // reads a cache that others have appended to
  bool logits = false;       // are made
  bool scores = false;       // are made, with their front
  bool fronts = false;       // are looked at
  bool candidate = false;    // is made
  bool draws = false;        // makes one of fronts
  bool sifts = false;        // makes a round of a search
  bool rotates = false;      // what becomes of sums, too
  bool gates = false;        // the same
  bool keeps_sums = false;   // the same
  bool items = false;        // MK_ENTRIES
  bool reductions = false;   // the same
  bool moves_on = false;     // the step state
  mk_state_use state = MK_STATE_NONE;
  int places[MK_MAX_OPERANDS] = {};  // by slot: the operand's number
  bool writes[MK_MAX_OPERANDS] = {};

  __host__ __device__ constexpr void take_operand(uint32_t slot, int place, mk_access access, mk_role role,
                                                  mk_extent_kind extent, mk_operand_store store) {
    bool loads = role == MK_ROLE_LOADER || access == MK_ACCESS_UPDATE;
    places[slot] = place;
    writes[slot] = access != MK_ACCESS_READ;
    parts += extent == MK_EXTENT_PART ? 1 : 0;
    weight = loads && store == MK_OPERAND_STORE_TILES ? place : weight;
    linear = weight >= 0;
    cache = loads && store == MK_OPERAND_STORE_BLOCKS ? place : cache;
    residual = store == MK_OPERAND_STORE_RESIDUAL ? place : residual;
    adds = residual >= 0;
    appends = appends || access == MK_ACCESS_UPDATE;
    attends = cache >= 0 && !appends;
    storer = storer || role == MK_ROLE_STORER;
  }
  __host__ __device__ constexpr void take_content(uint32_t slot, mk_content content) {
    gain = content == MK_CONTENT_GAIN ? places[slot] : gain;
    normed = gain >= 0;
    logits = logits || (content == MK_CONTENT_LOGITS && writes[slot]);
    scores = scores || (content == MK_CONTENT_FRONT && writes[slot]);
    fronts = fronts || (content == MK_CONTENT_FRONT && !writes[slot]);
    candidate = candidate || (content == MK_CONTENT_CANDIDATE && writes[slot]);
    draws = candidate && fronts;
    sifts = sifts || (content == MK_CONTENT_ROUND && writes[slot]);
  }

  // Which PART the loader streams.
  __host__ __device__ constexpr int streamed() const { return linear ? weight : cache; }
  // Whether there is a result for each row tile, which a storer finishes.
  __host__ __device__ constexpr bool row_tiles() const { return linear || adds; }
  // Whether an instruction is over, and signals, when its consumers are done. The opcode that moves the step state on
  // signals nothing (rule N09).
  __host__ __device__ constexpr bool consumers_finish() const { return !storer && !moves_on; }
  // Whether every kernel of token programs must have a consume_X for the opcode: the consumers take part in it, and not
  // in a body that several opcodes share.
  __host__ __device__ constexpr bool consumed_apart() const {
    return !absent && !linear && (adds || (!storer && !fronts && state != MK_STATE_NONE));
  }
};

// The rows by the names of their opcodes.
struct opcode_table {
#define MK_OPCODE(NAME, text, use, semantics) opcode_row NAME;
#include "vm/program/opcodes.def"
};
__host__ __device__ constexpr opcode_table make_opcodes() {
  opcode_table t;
#define MK_OPCODE(NAME, text, use, semantics) \
  t.NAME.number = MK_OP_##NAME;               \
  t.NAME.state = MK_STATE_##use;              \
  t.NAME.moves_on = MK_STATE_##use == MK_STATE_WRITE;
#define MK_OPERAND(NAME, slot, field, access, role, when, extent, dtype, store)                                     \
  t.NAME.take_operand(slot, MK_##extent##_##NAME##_##field, MK_ACCESS_##access, MK_ROLE_##role, MK_EXTENT_##extent, \
                      MK_OPERAND_STORE_##store);
#define MK_CONTENT(NAME, field, content) t.NAME.take_content(MK_SLOT_##NAME##_##field, MK_CONTENT_##content);
#define MK_SUMS(NAME, kind)                              \
  t.NAME.adds_norm = MK_SUMS_##kind == MK_SUMS_NORMED;   \
  t.NAME.adds_scaled = MK_SUMS_##kind == MK_SUMS_SCALED; \
  t.NAME.rotates = MK_SUMS_##kind == MK_SUMS_ROTATED;    \
  t.NAME.gates = MK_SUMS_##kind == MK_SUMS_GATED;        \
  t.NAME.keeps_sums = MK_SUMS_##kind == MK_SUMS_KEPT;
#define MK_STREAMS(NAME) t.NAME.adds_parts = t.NAME.adds && !t.NAME.adds_norm && !t.NAME.adds_scaled;
#define MK_ENTRIES(NAME, kind)                          \
  t.NAME.items = MK_ENTRIES_##kind == MK_ENTRIES_ITEMS; \
  t.NAME.reductions = MK_ENTRIES_##kind == MK_ENTRIES_REDUCTIONS;
#define MK_FAMILIES_ONLY(NAME) t.NAME = MK_GPU_FAMILIES ? t.NAME : opcode_row{t.NAME.number, true};
#define MK_WIDE_ONLY(NAME) t.NAME = MK_GPU_WIDE ? t.NAME : opcode_row{t.NAME.number, true};
#include "vm/program/opcodes.def"
  return t;
}
inline constexpr opcode_table opcodes = make_opcodes();

// The label of an opcode in a switch. Where the opcode has no code in that switch (not `has`), it is a label that no
// opcode's byte reaches: the opcode takes the default.
__host__ __device__ constexpr uint32_t case_of(bool has, const opcode_row &of) {
  return has ? of.number : 0x100 + of.number;
}

// The only opcode whose row has the property. 0x100, which no opcode's byte is, where the kernel has none.
__host__ __device__ uint32_t several_opcodes_have_it();  // never defined: the compiler refuses to call it
template <auto property>
__host__ __device__ constexpr uint32_t find_only() {
  uint32_t number = 0x100, count = 0;
#define MK_OPCODE(NAME, text, state, semantics)                   \
  number = opcodes.NAME.*property ? opcodes.NAME.number : number; \
  count += opcodes.NAME.*property ? 1 : 0;
#include "vm/program/opcodes.def"
  return count < 2 ? number : several_opcodes_have_it();
}
template <auto property>
inline constexpr uint32_t only = find_only<property>();

// Which PART an opcode of the queue streams; -1: none.
__device__ inline int streamed_operand(uint32_t opcode) {
#define MK_OPCODE(NAME, text, state, semantics)                            \
  if constexpr (constexpr int part = opcodes.NAME.streamed(); part >= 0) { \
    if (opcode == opcodes.NAME.number) {                                   \
      return part;                                                         \
    }                                                                      \
  }
#include "vm/program/opcodes.def"
  return -1;
}

}  // namespace mk
