/* The work list of an MLA batch: which SM attends over which pages, and who reduces what.
 *
 * MAKESPAN cuts long blocks of query rows along their pages so that the last SM is done early by the costs given: it
 * tries several sizes of a part; for each it places parts, longest first, on the SM that is free first, spreads
 * reductions over all SMs after them, and keeps the size that ends first. NAIVE cuts every block into equally many
 * parts, as many as there are SMs for each, and deals them out in turn.
 *
 * The same batch, program and costs give the same list. A list depends on lengths through its quality alone
 * (instructions/mla.h: the last part of a block takes the rest), so it stays right while lengths grow.
 *
 * A scheduler owns its work space; scheduling allocates nothing. One thread at a time per scheduler. Failure:
 * MK_ERR_USAGE for a program without a work list or a batch that it does not take, MK_ERR_RUNTIME for memory. */
#ifndef MK_MLA_SCHEDULE_H
#define MK_MLA_SCHEDULE_H

#include "scheduler/mla_cost.h"

typedef enum mk_mla_placement { MK_MLA_MAKESPAN, MK_MLA_NAIVE } mk_mla_placement;

typedef struct mk_mla_scheduler mk_mla_scheduler;

typedef struct mk_mla_summary {
  uint32_t items, slots, reductions;
  uint64_t makespan; /* nanoseconds by the costs, as mk_mla_simulate finds them */
} mk_mla_summary;

/* costs NULL: mk_mla_default_costs. */
mk_status mk_mla_scheduler_new(const mk_program *program, const mk_mla_costs *costs, mk_mla_scheduler **out);
void mk_mla_scheduler_free(mk_mla_scheduler *scheduler); /* NULL is fine */

/* Writes the list of a batch of `sequences` with these lengths (tokens, the new ones included) into `work`, the content
 * of the program's work buffer; of each row as much as its counts say. summary may be NULL. */
mk_status mk_mla_schedule(mk_mla_scheduler *scheduler, mk_mla_placement placement, const uint32_t *lengths,
                          uint32_t sequences, uint32_t *work, mk_mla_summary *summary);

#endif
