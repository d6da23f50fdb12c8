/* The program of an MLA decode call (models/mla.h): per SM an mla_part, then an mla_reduce, for any batch up to the
 * declared maximum. What each does is in the work list of the batch, an input (instructions/mla.h), which
 * mla_schedule.h writes and vm/verify/mla_check.h checks.
 *
 * Inputs: q, kv, sequences, work. Output: out. The caller owns the program. Failure: MK_ERR_USAGE for the shape or the
 * SMs, MK_ERR_FILE where a buffer outgrows the format, MK_ERR_RUNTIME for memory. */
#ifndef MK_MLA_COMPILE_H
#define MK_MLA_COMPILE_H

#include "models/mla.h"
#include "vm/program/program.h"

/* The machine of MLA programs on `sms` SMs: 8 consumer warps, pages that hold one KV page each. */
mk_machine mk_machine_mla(uint32_t sms);

mk_status mk_mla_compile(const mk_mla_shape *shape, uint32_t sms, mk_program **out);

#endif
