/* A trace as intervals: what every role of every SM did from when to when, and which of it belongs to which
 * instruction.
 *
 * Ownership: a mk_profile owns its arrays and refers to the trace, which the caller keeps until mk_profile_free.
 * Immutable once made: any thread may read it. Failure: MK_ERR_RUNTIME for memory. A trace of any content can be
 * analysed: what makes no sense in it is left out here and named by mk_profile_check. All times are nanoseconds from
 * the start of the trace. */
#ifndef MK_PROFILE_H
#define MK_PROFILE_H

#include "vm/trace/trace.h"

#define MK_NO_INSTRUCTION UINT32_MAX

typedef struct mk_interval {
  uint64_t start, end;
  uint32_t instruction; /* index in the program; of a dispatch and of an idle role: the one before, or none */
  uint32_t step;        /* from 0, the first recorded one */
  uint16_t edge;
  uint8_t activity;
} mk_interval;

/* One role's part of one instruction in one step: intervals [first, end) of its track, but for idling between them. */
typedef struct mk_execution {
  uint32_t instruction, step;
  uint32_t first, end;
  uint64_t start, finish;
} mk_execution;

typedef struct mk_profile_track {
  mk_interval *intervals; /* by time, without gaps */
  mk_execution *executions;
  uint32_t count, execution_count;
} mk_profile_track;

typedef struct mk_profile {
  const mk_trace *trace;
  const mk_program *program;
  uint32_t sms, steps;      /* SMs of all ranks; steps with records */
  mk_profile_track *tracks; /* [sms][MK_TRACE_ROLES] */
  uint64_t *by_uid;         /* sorted: uid in the upper half, index of the instruction in the lower */
  uint32_t *sm_of;          /* per instruction */
  uint64_t records, dropped;
  bool serial;        /* one role at a time: the CPU machine, whose thread moves all SMs */
  double token_us;    /* a step, from a consumer's boundary to its next, mean */
  double unaccounted; /* largest share of a role's time that its intervals miss or exceed */
} mk_profile;

mk_status mk_profile_new(const mk_trace *trace, mk_profile **out);
void mk_profile_free(mk_profile *profile); /* NULL is fine */

static inline const mk_profile_track *mk_profile_track_of(const mk_profile *profile, uint32_t sm, uint32_t role) {
  return &profile->tracks[(size_t)sm * MK_TRACE_ROLES + role];
}

/* The role's part of that instruction in that step; NULL when it was not recorded. */
const mk_execution *mk_profile_find(const mk_profile *profile, uint32_t instruction, uint32_t step, uint32_t role);

/* The role that writes what others read: the storer, or the consumer where the storer has nothing to do. */
mk_role mk_publishing_role(uint32_t opcode);

/* The last part of the name of the stamped buffer that it writes, "mid" for "layers.3.mid"; "" when there is none. An
 * opcode that serves twice in a layer is told apart by it. */
const char *mk_value_name(const mk_program *program, uint32_t instruction);

/* Nanoseconds of an execution at activities of one kind. */
uint64_t mk_execution_time(const mk_profile_track *track, const mk_execution *execution, mk_activity_kind kind);

/* MK_OK when every role that keeps records accounts for all of its time: tracks begin and end at the boundaries of the
 * recorded steps, steps and instructions come in order, nothing was dropped, and the intervals add up to the time that
 * passed within 1 %. Else MK_ERR_FILE, naming SM and role. */
mk_status mk_profile_check(const mk_profile *profile);

/* "SM 17"; where there are several ranks "rank 1, SM 17", the 18th SM of the second rank. Returns text. */
enum { MK_SM_LABEL_SIZE = 32 };
const char *mk_profile_sm_label(const mk_profile *profile, uint32_t sm, char text[MK_SM_LABEL_SIZE]);

static inline bool mk_profile_has_ranks(const mk_profile *profile) { return profile->program->machine.ranks > 1; }

/* "glu, layer 3, instruction 123"; returns text. */
enum { MK_LABEL_SIZE = 64 };
const char *mk_profile_label(const mk_profile *profile, uint32_t instruction, char text[MK_LABEL_SIZE]);

/* Weight tiles and KV blocks that the loader reads for an instruction in a step; with several rows per step weight
 * tiles alone, since a trace does not tell how long the sequences were. */
double mk_profile_bytes(const mk_profile *profile, uint32_t instruction, uint32_t step);

#endif
