/* A file that is being written: its name is PATH.PID.N.tmp until it is complete. Nothing of it stays when it is
 * dropped, nor when a signal ends the process whose handler calls mk_drafts_abandon. Every file that mkvm writes is one
 * of these first.
 *
 * Ownership: a draft is the caller's until mk_drafts_finish or mk_draft_drop. Any thread may call, one at a time per
 * draft.
 * Failure: MK_ERR_RUNTIME; messages begin with the path. */
#ifndef MK_DRAFT_H
#define MK_DRAFT_H

#include "vm/status.h"

typedef struct mk_draft mk_draft;

/* Refuses to take the place of what is no regular file. */
mk_status mk_draft_open(const char *path, mk_draft **out);
/* The directory that other drafts go to. It is made if it is not there. When this draft is dropped, a directory that
 * was made is removed, if nothing else is in it. */
mk_status mk_draft_directory(const char *path, mk_draft **out);
/* Writes after all that has been written, or at a place. */
mk_status mk_draft_write(mk_draft *draft, const void *data, size_t bytes);
mk_status mk_draft_write_at(mk_draft *draft, uint64_t offset, const void *data, size_t bytes);
/* Asks the file system for room for so many bytes, where it can do that, so that a full disk shows early. */
mk_status mk_draft_reserve(mk_draft *draft, uint64_t bytes);
/* The content is on the disk before the name is. */
mk_status mk_draft_sync(mk_draft *draft);
/* All is written: closes the file's descriptor. */
mk_status mk_draft_close(mk_draft *draft);
/* Gives all these drafts their names, in this order, or none of them; they are freed in both cases. */
mk_status mk_drafts_finish(mk_draft *const *drafts, size_t count);
void mk_draft_drop(mk_draft *draft); /* NULL is fine */

/* For a signal handler that then ends the process: removes every draft there is, of any thread. From then on whoever
 * opens, finishes or drops a draft waits for that end. */
void mk_drafts_abandon(void);

#endif
