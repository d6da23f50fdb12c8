/* The verifier: nothing runs that it has not accepted.
 *
 * It proves, from the ordering rules of program.h alone, that a program cannot leave its buffers, hang, or race, for
 * the whole declared ranges of the step parameters and for any number of epochs. docs/VERIFIER.md lists the rules, what
 * they assume and what they leave open. What it cannot prove it rejects: there are no warnings, and no size above which
 * a check is left out.
 *
 * The program stays the caller's and is only read; nothing is kept after the return. Any thread may call. Failure:
 * MK_ERR_REJECTED, with a message that begins with the rule's id and names the SM, queue position, uid, opcode and
 * field or the instructions involved; MK_ERR_RUNTIME for memory alone. */
#ifndef MK_VERIFY_H
#define MK_VERIFY_H

#include "vm/program/program.h"

enum { MK_NO_PLACE = 0xffffffff };

typedef struct mk_verify_report {
  char rule[8]; /* of the rejection, "" when accepted */
  uint32_t uid; /* of the instruction at fault; rank, sm and position too are MK_NO_PLACE when no instruction is */
  uint32_t rank, sm, position;
  uint64_t instructions;
  uint64_t waits, signals;
  uint64_t accesses;  /* operands whose order was checked, both epochs */
  uint64_t conflicts; /* pairs of conflicting accesses proven ordered */
} mk_verify_report;

/* `report` may be NULL; otherwise it is filled in every case. */
mk_status mk_verify(const mk_program *program, mk_verify_report *report);

#endif
