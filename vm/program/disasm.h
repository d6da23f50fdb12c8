/* A program as text: one statement a line, words separated by one space, so that a person can read it and asm.h can
 * read it back.
 *
 *   mkvm-program 1
 *   model "LABEL" config_hash=0xHEX
 *   machine sms=N page_bytes=N ...                      every field of mk_machine
 *   range position=LOW..HIGH token=... block=... batch=...
 *   buffer NAME kind=K dtype=D store=S shape=RxC tile=RxC scope=S proxy=P rank=N [head_dim=N block_tokens=N
 *          span_tokens=N blocks=N] [scale=... scale_cols=N zeros=N] ; offset=N bytes=N
 *   counter NAME kind=K scope=S rank=N total=N
 *   queue N:
 *   #UID OPCODE [fused] FIELD=BUFFER[row:row_end,col:col_end] ... PARAM=VALUE ... [wait=COUNTER>=THRESHOLD ...]
 *          [signal=COUNTER+AMOUNT ...] [pages=N] [resident=BYTES] [layer=N]
 *
 * `fused` is MK_FUSED. Rectangles count tiles and their ends are exclusive; `@token` after one marks
 * MK_OPERAND_TOKEN_ROW. Operands whose words are all zero, a layer of MK_NO_LAYER, and pages and resident bytes that
 * are 0 and should be, are left out. Floats print so that they read back to the same bits. What comes after `;`
 * follows from the rest. A program that the verifier would reject prints too: `?N` is a buffer or counter that does not
 * exist, `word.N=0xHEX` the word of a wait or signal that should be zero.
 *
 * Owns nothing; any thread may call. Failure: MK_ERR_RUNTIME when the stream cannot be written. */
#ifndef MK_DISASM_H
#define MK_DISASM_H

#include <stdio.h>

#include "vm/program/program.h"

mk_status mk_disassemble(const mk_program *program, FILE *out);
/* One instruction without a line end. */
mk_status mk_disassemble_instruction(const mk_program *program, const mk_instruction *instruction, FILE *out);

#endif
