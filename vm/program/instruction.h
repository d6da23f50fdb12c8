/* The instruction, twice: as the word of 32 x u32 = 128 bytes that a .mkp file holds and that an SM fetches from its
 * queue (mk_instruction_word), and decoded, as all code of the host handles it (mk_instruction). mk_encode and
 * mk_decode go from one to the other.
 *
 *  word   31            24 23            16 15             8 7              0
 *       +-----------------+--------+-------+----------------+----------------+
 *   0   |     flags       | signals| waits |    version     |     opcode     |
 *       +-----------------+--------+-------+----------------+----------------+
 *   1   |                               uid                                  |
 *       +----------------------------------+---------------------------------+
 *  2-5  |  counter                         |  threshold                      |  waits 0..3
 *  6-7  |  counter                         |  amount                         |  signals 0..1
 *       +----------------------------------+---------------------------------+
 *   8   |                   pages streamed through the ring                  |
 *   9   |  layer                           |  resident (units of 64 bytes)   |
 *       +----------------------------------+---------------------------------+
 *       |  buffer                          |  flags                          |  operands of extent PART in their order,
 *       |  row                             |  rows                           |  number p of them at 10 + 3 p
 *       |  col                             |  cols                           |
 *       +----------------------------------+---------------------------------+
 * 10-31 |  buffer of WHOLE number 1        |  buffer of WHOLE number 0       |  then those of extent WHOLE, in their
 *       |  buffer of WHOLE number 3        |  ...                            |  order, two to a word; 0xffff: absent
 *       +----------------------------------+---------------------------------+
 *       |                               zero                                 |
 *       +--------------------------------------------------------------------+
 *       |                            parameter i                             |  at 31 - i
 *       +--------------------------------------------------------------------+
 *
 * So the place of an operand or parameter follows from the opcode's lines in the table (opcodes.def), and from nothing
 * else; unused bytes are zero. QKV with its 4 PARTs, 2 WHOLEs and 6 parameters fills 76 of the 88 bytes. A parameter
 * for something optional is zero where that is not wanted. So when the table gets such a parameter, the words of older
 * programs stay the same.
 *
 * Rows and columns count tiles of the buffer (mk_buffer.tile_rows, tile_cols). Decoded, a WHOLE operand has the
 * rectangle of all its buffer's tiles, and an absent one is zero. Unused waits, signals, operands and parameters are
 * zero. A wait is `counter >= epoch * total + threshold` in wrap-safe arithmetic, epoch from 0 and total the counter's
 * signals per epoch (mk_counter.total). Layer MK_NO_LAYER: the instruction belongs to no layer.
 *
 * Plain data without ownership; this header is also compiled as CUDA C++. */
#ifndef MK_INSTRUCTION_H
#define MK_INSTRUCTION_H

#include <stdbool.h>
#include <stdint.h>

typedef enum mk_opcode {
  MK_OP_NONE = 0, /* not executable: a zeroed word is not a program */
#define MK_OPCODE(NAME, text, state, semantics) MK_OP_##NAME,
#include "vm/program/opcodes.def"
  MK_OP_COUNT
} mk_opcode;

enum {
  MK_INSTRUCTION_VERSION = 3,
  MK_MAX_WAITS = 4,
  MK_MAX_SIGNALS = 2,
  MK_MAX_OPERANDS = 12,
  MK_MAX_PARAMS = 8,
  MK_MAX_COORDINATE = 0xffff, /* tiles per buffer side, counters, signals per counter and epoch, buffers */
  MK_NO_LAYER = 0xffff,
  MK_RESIDENT_UNIT = 64,
  MK_ABSENT = 0xffff, /* in the word, the buffer of a WHOLE operand that the instruction does without */
};

/* Operand slots (an operand's number among those of its opcode) by name: MK_SLOT_QKV_x and so on; parameter indices:
 * MK_PARAM_QKV_eps. */
enum {
#define MK_OPERAND(NAME, slot, field, access, role, when, extent, dtype, store) MK_SLOT_##NAME##_##field = (slot),
#define MK_PARAM(NAME, index, field, type) MK_PARAM_##NAME##_##field = (index),
#include "vm/program/opcodes.def"
};

/* Places in the word by name: MK_PART_QKV_x is the number of x among QKV's PARTs, MK_WHOLE_QKV_gain that of gain among
 * its WHOLEs. An operand has one of the two names, so that code cannot look for it in the wrong place. Every opcode
 * counts from 0. */
enum {
#define MK_OPCODE(NAME, text, state, semantics) MK_NO_PART_##NAME = -1,
#define MK_PLACE_PART(NAME, field) MK_PART_##NAME##_##field,
#define MK_PLACE_WHOLE(NAME, field)
#define MK_OPERAND(NAME, slot, field, access, role, when, extent, dtype, store) MK_PLACE_##extent(NAME, field)
#include "vm/program/opcodes.def"
#undef MK_PLACE_PART
#undef MK_PLACE_WHOLE
};
enum {
#define MK_OPCODE(NAME, text, state, semantics) MK_NO_WHOLE_##NAME = -1,
#define MK_PLACE_PART(NAME, field)
#define MK_PLACE_WHOLE(NAME, field) MK_WHOLE_##NAME##_##field,
#define MK_OPERAND(NAME, slot, field, access, role, when, extent, dtype, store) MK_PLACE_##extent(NAME, field)
#include "vm/program/opcodes.def"
#undef MK_PLACE_PART
#undef MK_PLACE_WHOLE
};

typedef struct mk_wait {
  uint16_t threshold;
  uint16_t counter;
} mk_wait;

typedef struct mk_signal {
  uint16_t amount;
  uint16_t counter;
} mk_signal;

/* Flags of an instruction. */
enum {
  /* A machine may do this instruction within the one before it (MK_FUSES in opcodes.def). */
  MK_FUSED = 1,
};

/* Of QKV's parameter `extras`. */
enum {
  MK_QKV_BIASES = 1,  /* added to W norm(x), from the vector that inv_freq goes on with */
  MK_QKV_GAINS = 2,   /* factors after that, from the vector that follows */
  MK_QKV_SQUARES = 4, /* the sum of the squares before the gains follows the 16 values of each tile of out */
  /* Columns of such a tile: 16 values, their squares, and a zero, so that it starts at an even column. */
  MK_SQUARED_TILE = 18,
};

/* Flags of an operand. */
enum {
  /* Which element row is meant follows from the token of the step; row and rows say in which tiles all tokens' rows
   * lie. */
  MK_OPERAND_TOKEN_ROW = 1,
};

/* What the index word of a candidate for the next token may be besides a token. */
#define MK_CANDIDATE_NONE 0x7fffffffu /* there is no candidate */
#define MK_CANDIDATE_STOP 0x80000000u /* added to the index: the host wants this token to be the last */

typedef struct mk_operand {
  uint16_t flags;
  uint16_t buffer;
  uint16_t rows;
  uint16_t row;
  uint16_t cols;
  uint16_t col;
} mk_operand;

/* What both forms of an instruction begin with. uid: unique in the program; names the instruction in messages, traces
 * and fault records. */
#define MK_INSTRUCTION_HEAD          \
  uint8_t opcode;                    \
  uint8_t version;                   \
  uint8_t wait_count : 4;            \
  uint8_t signal_count : 4;          \
  uint8_t flags;                     \
  uint32_t uid;                      \
  mk_wait waits[MK_MAX_WAITS];       \
  mk_signal signals[MK_MAX_SIGNALS]; \
  uint32_t pages;                    \
  uint16_t resident;                 \
  uint16_t layer

enum {
  MK_HEAD_BYTES = 40,
  MK_POOL_BYTES = 88, /* of the word, for operands and parameters */
  MK_POOL_WORDS = MK_POOL_BYTES / 4,
  MK_POOL_HALVES = MK_POOL_BYTES / 2,
  MK_PART_BYTES = 12,
  MK_PART_HALVES = MK_PART_BYTES / 2,
  MK_WHOLE_BYTES = 2,
  MK_PARAM_BYTES = 4,
};

typedef struct mk_instruction {
  MK_INSTRUCTION_HEAD;
  mk_operand operands[MK_MAX_OPERANDS]; /* by slot */
  uint32_t params[MK_MAX_PARAMS];       /* floats by their bits */
} mk_instruction;

typedef struct mk_instruction_word {
  MK_INSTRUCTION_HEAD;
  union { /* the same 88 bytes */
    mk_operand parts[MK_POOL_BYTES / MK_PART_BYTES];
    uint16_t halves[MK_POOL_HALVES]; /* WHOLE number w of an opcode with P PARTs: P * MK_PART_HALVES + w */
    uint32_t words[MK_POOL_WORDS];   /* parameter i: MK_POOL_WORDS - 1 - i */
  };
} mk_instruction_word;

#ifdef __cplusplus
#define MK_STATIC_ASSERT static_assert
#else
#define MK_STATIC_ASSERT _Static_assert
#endif
MK_STATIC_ASSERT(sizeof(mk_instruction_word) == 128, "an instruction word is 128 bytes");
MK_STATIC_ASSERT(sizeof(mk_instruction_word) == MK_HEAD_BYTES + MK_POOL_BYTES, "the pool goes to the end of the word");
MK_STATIC_ASSERT(sizeof(mk_operand) == MK_PART_BYTES, "an operand is three words");

/* The bytes of the pool that an opcode's operands and parameters take, up to each of its lines. */
enum {
#define MK_OPCODE(NAME, text, state, semantics) MK_ROOM_##NAME = -1,
#define MK_OPERAND(NAME, slot, field, access, role, when, extent, dtype, store) \
  MK_ROOM_FROM_##NAME##_##field, MK_ROOM_TO_##NAME##_##field = MK_ROOM_FROM_##NAME##_##field + MK_##extent##_BYTES - 1,
#define MK_PARAM(NAME, index, field, type) \
  MK_ROOM_FROM_##NAME##_param_##field,     \
      MK_ROOM_TO_##NAME##_param_##field = MK_ROOM_FROM_##NAME##_param_##field + MK_PARAM_BYTES - 1,
#include "vm/program/opcodes.def"
};
#define MK_OPERAND(NAME, slot, field, access, role, when, extent, dtype, store)                       \
  MK_STATIC_ASSERT((int)MK_ROOM_TO_##NAME##_##field < (int)MK_POOL_BYTES && (slot) < MK_MAX_OPERANDS, \
                   #NAME ": operand " #field " does not fit the word");
#define MK_PARAM(NAME, index, field, type)                                                                 \
  MK_STATIC_ASSERT((int)MK_ROOM_TO_##NAME##_param_##field < (int)MK_POOL_BYTES && (index) < MK_MAX_PARAMS, \
                   #NAME ": parameter " #field " does not fit the word");
#include "vm/program/opcodes.def"

#endif
