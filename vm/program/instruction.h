/* The instruction word: 32 x u32 = 128 bytes, fetched by one SM from its queue.
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
 * 10-27 |  buffer                          |  flags                          |  operand i at 10 + 3 i,
 *       |  row                             |  rows                           |  i = 0..5
 *       |  col                             |  cols                           |
 *       +----------------------------------+---------------------------------+
 * 28-31 |                            parameters                              |
 *       +--------------------------------------------------------------------+
 *
 * Rows and columns count tiles of the buffer (mk_buffer.tile_rows, tile_cols). Unused waits, signals, operands and
 * parameters are zero. A wait is `counter >= epoch * total + threshold` in wrap-safe arithmetic, epoch from 0 and total the
 * counter's signals per epoch (mk_counter.total). Layer MK_NO_LAYER: the instruction belongs to no layer.
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
  MK_INSTRUCTION_VERSION = 1,
  MK_MAX_WAITS = 4,
  MK_MAX_SIGNALS = 2,
  MK_MAX_OPERANDS = 6,
  MK_MAX_PARAMS = 4,
  MK_MAX_COORDINATE = 0xffff, /* tiles per buffer side, counters, signals per counter and epoch, buffers */
  MK_NO_LAYER = 0xffff,
  MK_RESIDENT_UNIT = 64,
};

/* Operand slots by name: MK_SLOT_QKV_x and so on; parameter indices: MK_PARAM_QKV_eps. */
enum {
#define MK_OPERAND(NAME, slot, field, access, role, when, dtype, store) MK_SLOT_##NAME##_##field = (slot),
#define MK_PARAM(NAME, index, field, type) MK_PARAM_##NAME##_##field = (index),
#include "vm/program/opcodes.def"
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
  MK_FUSED =
      1, /* a machine may do it within the instruction before it: MK_FUSES in opcodes.def; without it, none does */
};

/* Flags of an operand. */
enum {
  MK_OPERAND_TOKEN_ROW = 1, /* the element row is the token of the step; row and rows are the tiles all tokens lie in */
};

/* Index word of a candidate for the next token. */
#define MK_CANDIDATE_NONE 0x7fffffffu /* no row */
#define MK_CANDIDATE_STOP 0x80000000u /* added to the index: the host wants this token to be the last */

typedef struct mk_operand {
  uint16_t flags;
  uint16_t buffer;
  uint16_t rows;
  uint16_t row;
  uint16_t cols;
  uint16_t col;
} mk_operand;

typedef struct mk_instruction {
  uint8_t opcode;
  uint8_t version;
  uint8_t wait_count : 4;
  uint8_t signal_count : 4;
  uint8_t flags;
  uint32_t uid; /* unique in the program; names the instruction in messages, traces and fault records */
  mk_wait waits[MK_MAX_WAITS];
  mk_signal signals[MK_MAX_SIGNALS];
  uint32_t pages;
  uint16_t resident;
  uint16_t layer;
  mk_operand operands[MK_MAX_OPERANDS];
  uint32_t params[MK_MAX_PARAMS]; /* floats by their bits */
} mk_instruction;

#ifdef __cplusplus
#define MK_STATIC_ASSERT static_assert
#else
#define MK_STATIC_ASSERT _Static_assert
#endif
MK_STATIC_ASSERT(sizeof(mk_instruction) == 128, "an instruction is 128 bytes");
MK_STATIC_ASSERT(sizeof(mk_operand) == 12, "an operand is three words");

#endif
