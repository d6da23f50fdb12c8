/* Shared by the verifier's phases, in the order in which they run:
 *   structure.c         the program's tables and each instruction by itself (S, B04, P, E01-E03, E05)
 *   shape.c             how the operands of one instruction fit together, for all step parameters (S09, S10, B02,
 *                       B03), with shape_attention.c, and expect.c: what these rules are said in
 *   boundary.c          how queues go from one step to the next (N), and what is fused (S12)
 *   listed.c, shares.c  instructions that follow a work list (L)
 *   access.c            who reads and writes which words (D02, R04, O01), with
 *                       values.c: what values mean to their readers (S11, R05)
 *   order.c             a run over two epochs with vector clocks: deadlock, races, overrun (D01, R01-R03, E04), with
 *                       counters.c, stamps.c, race.c and deadlock.c
 * A later phase relies on what the earlier ones have proven.
 *
 * A mk_verifier belongs to one call of mk_verify; the tables are freed by mk_verify_free. */
#ifndef MK_VERIFY_INTERNAL_H
#define MK_VERIFY_INTERNAL_H

#include "vm/verify/verify.h"

enum { MK_NONE_INDEX = 0xffffffff, MK_EPOCHS = 2 };

/* The moments of an instruction in a thread, in order: its waits for counters are over (ENTERED); its reads and writes
 * are over (DONE); its signals are sent (SIGNALLED). */
typedef enum mk_moment { MK_ENTERED = 1, MK_DONE, MK_SIGNALLED, MK_MOMENTS } mk_moment;

/* The time at which a thread's clock has come to a moment of its instruction number `number`, counted through both
 * epochs; 0 is before all of them. */
static inline uint32_t mk_time(uint32_t number, mk_moment moment) { return number * MK_MOMENTS + (uint32_t)moment; }

typedef struct mk_write { /* one written rectangle, a row of tiles; sorted by key */
  uint64_t key;           /* mk_cell_key(buffer, row, col) */
  uint32_t end;           /* first column after it */
  uint32_t instruction;
  uint8_t slot, content; /* mk_content */
  bool long_only;        /* the write happens only at long positions */
  bool anywhere;         /* mk_fused_anywhere of the instruction */
  uint32_t first_group;  /* targets[first_group, + group_count): groups of readers of these words */
  uint32_t group_count;
} mk_write;

typedef struct mk_target {
  uint32_t group;
  bool certain; /* the readers wait for words of this write at every position */
  bool whole;   /* they wait for all words of this write */
} mk_target;

typedef struct mk_reader { /* the last reader of a group in one thread */
  uint32_t instruction;
  uint32_t thread;
  uint32_t index; /* when it is done, in epoch 0: mk_time */
} mk_reader;

typedef struct mk_group { /* all stamped reads of one rectangle */
  mk_operand where;
  uint32_t certain_rows;               /* of where.rows: read at every position */
  uint32_t span;                       /* of a COMBINE, else 0 */
  uint32_t first_reader, reader_count; /* in readers */
  uint32_t reads;                      /* operands in this group, per epoch */
  uint32_t writers;                    /* per epoch */
} mk_group;

/* Plain and paged buffers are cut at every end of an access. A segment is what lies between two neighbouring cuts:
 * cuts[i] to cuts[i + 1]. A span is a run of segments that something reads. */
typedef uint64_t mk_cut;
typedef struct mk_span {
  uint32_t first, count;
  uint32_t reach; /* of the spans up to this one the end of the one that goes furthest */
} mk_span;
typedef struct mk_tile_row { /* a row of an operand's tiles */
  uint32_t first, count;     /* its segments */
  uint32_t span;             /* that span; of an operand that is only written MK_NONE_INDEX */
} mk_tile_row;

typedef struct mk_verifier {
  const mk_program *program;
  mk_verify_report report;
  uint32_t *queue_of; /* instruction -> queue */
  /* Queue -> lane: its number among the queues that have instructions. A lane has two threads: 2 lane is its consumer,
   * 2 lane + 1 its storer. */
  uint32_t *lane_of;
  uint32_t lanes;
  uint32_t *lines_of; /* instruction -> mk_instruction_lines */
  uint32_t *team_of;  /* instruction -> the team that it is a share of (shares.c), from 1; 0: none */
  /* By instruction * MK_MAX_OPERANDS + slot: of a stamped read its group, of a stamped write its entry in `writes`, of
   * a plain or paged operand the first of its rows in `rows`. MK_NONE_INDEX: the buffer is constant. */
  uint32_t *links;
  mk_write *writes;
  size_t write_count;
  mk_target *targets;
  mk_group *groups;
  size_t group_count;
  mk_reader *readers;
  mk_cut *cuts;
  size_t cut_count;
  mk_tile_row *rows; /* those of one operand follow each other */
  mk_span *spans;    /* by first segment, then by count; each is there once */
  size_t span_count;
} mk_verifier;

/* Fills the report and the message "RULE: SM s position p #uid opcode: ..." and returns MK_ERR_REJECTED. `instruction`
 * is an index or MK_NONE_INDEX. */
mk_status mk_reject(mk_verifier *v, const char *rule, size_t instruction, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* "SM 1 position 3 #17 glu", for the second instruction of a message. */
typedef struct mk_place {
  char text[112];
} mk_place;
mk_place mk_place_of(const mk_verifier *v, size_t instruction);

mk_status mk_verify_structure(mk_verifier *v);
mk_status mk_verify_buffers(mk_verifier *v);
mk_status mk_verify_shape(mk_verifier *v, uint32_t instruction);
mk_status mk_verify_listed_shape(mk_verifier *v, uint32_t instruction); /* of MLA_PART and MLA_REDUCE */
mk_status mk_verify_boundary(mk_verifier *v);
mk_status mk_verify_listed(mk_verifier *v);
mk_status mk_verify_shares(mk_verifier *v);
/* Rule S11: whether the reader's operand `slot` may take the values that this write leaves. */
mk_status mk_verify_value(mk_verifier *v, uint32_t reader, uint32_t slot, const mk_write *write);
mk_status mk_verify_caches(mk_verifier *v); /* R05, B05 */
mk_status mk_verify_access(mk_verifier *v);
mk_status mk_verify_order(mk_verifier *v);
void mk_verify_free(mk_verifier *v);

static inline const mk_instruction *mk_at(const mk_verifier *v, size_t instruction) {
  return &v->program->instructions[instruction];
}
static inline const mk_opcode_info *mk_info(const mk_instruction *in) { return mk_opcode_lookup(in->opcode); }
static inline uint32_t *mk_link_of(const mk_verifier *v, size_t instruction, uint32_t slot) {
  return &v->links[instruction * MK_MAX_OPERANDS + slot];
}
static inline bool mk_operand_empty(const mk_operand *o) { return o->rows == 0 || o->cols == 0; }
static inline uint32_t mk_position_of(const mk_verifier *v, size_t instruction) {
  return (uint32_t)instruction - v->program->queues[v->queue_of[instruction]].first;
}
static inline uint64_t mk_cell_key(uint32_t buffer, uint32_t row, uint32_t col) {
  return (uint64_t)buffer << 32 | row << 16 | col;
}
/* Whether the instruction reads the step state: with several rows all do, to know which are active. */
static inline bool mk_reads_state(const mk_verifier *v, const mk_instruction *in) {
  mk_state_use use = mk_info(in)->state;
  return use == MK_STATE_READ || (use == MK_STATE_NONE && mk_program_rows(v->program) > 1);
}
/* Whether each line of a fused instruction may be done by the instruction that made its input, on any SM (mk_fuses). */
static inline bool mk_fused_anywhere(const mk_instruction *in) {
  return (in->flags & MK_FUSED) != 0 && mk_info(in)->fusion == MK_FUSION_ALONE;
}
/* The thread of an instruction's consumer or storer: a queue with instructions has two. */
static inline uint32_t mk_thread_of(const mk_verifier *v, size_t instruction, mk_role role) {
  return 2 * v->lane_of[v->queue_of[instruction]] + (role == MK_ROLE_STORER);
}
/* Nobody writes such a buffer while the program runs. */
static inline bool mk_constant(const mk_buffer *b) { return b->kind == MK_KIND_WEIGHT || b->kind == MK_KIND_INPUT; }

/* An operand in elements of its buffer, cut off where the buffer ends. */
typedef struct mk_extent {
  uint32_t row, rows, col, cols;
} mk_extent;
mk_extent mk_extent_of(const mk_verifier *v, const mk_operand *operand);

#endif
