/* The checker of MLA work lists: what rules L01-L04 leave to the data of a batch (docs/VERIFIER.md, "Work lists").
 *
 * A list that it passes names nothing outside its buffers, covers every page of every block of query rows exactly once,
 * in slots written once and read by reductions of their own block in the order of their pages, and writes every output
 * of the batch once. Together with the verified program that means: no deadlock, no race, all of `out` for the batch.
 * It shares no code with the scheduler.
 *
 * A checker owns its work space and copies the program's sizes; checking allocates nothing. One thread at a time per
 * checker. Failure: MK_ERR_REJECTED, naming SM, entry and value; MK_ERR_USAGE for a program without a work list,
 * MK_ERR_RUNTIME for memory. */
#ifndef MK_MLA_CHECK_H
#define MK_MLA_CHECK_H

#include "vm/program/program.h"

typedef struct mk_mla_checker mk_mla_checker;

mk_status mk_mla_checker_new(const mk_program *program, mk_mla_checker **out);
void mk_mla_checker_free(mk_mla_checker *checker); /* NULL is fine */

/* `work` is the content of the program's work buffer, for the first `sequences` of a batch, whatever their lengths.
 * Time: items, reductions and blocks. */
mk_status mk_mla_check_list(mk_mla_checker *checker, const uint32_t *work, uint32_t sequences);

/* The content of the program's sequences buffer: lengths within max_pages pages, pages within the cache. To be asked
 * again when lengths grow or tables change; the list stays. Time: pages. */
mk_status mk_mla_check_batch(const mk_mla_checker *checker, const uint32_t *batch, uint32_t sequences);

#endif
