/* Filling weight buffers from files: two pinned buffers that the host fills in turn while the GPU takes in the other
 * one, and a kernel that packs raw tensor rows (vm/gpu/pack.h).
 *
 *   mk_gpu_upload_begin -> the caller fills up to mk_gpu_upload_room bytes -> mk_gpu_upload_rows or _bytes; again;
 *   mk_gpu_upload_end
 *
 * An upload owns pinned and device memory (twice the room, each) until mk_gpu_upload_free, which must be called before
 * the machine is freed. One thread, not during a run. Failure: as machine.h; after one, mk_gpu_upload_free is all that
 * is left to do. */
#ifndef MK_GPU_UPLOAD_H
#define MK_GPU_UPLOAD_H

#include "vm/gpu/machine.h"
#include "vm/gpu/pack.h"

typedef struct mk_gpu_upload mk_gpu_upload;

/* room: bytes of one buffer; 0: 32 MiB. */
mk_status mk_gpu_upload_new(mk_gpu *gpu, size_t room, mk_gpu_upload **out);
void mk_gpu_upload_free(mk_gpu_upload *upload); /* NULL is fine */
size_t mk_gpu_upload_room(const mk_gpu_upload *upload);

/* The buffer to fill next; waits until the GPU has taken in what lay there. */
mk_status mk_gpu_upload_begin(mk_gpu_upload *upload, void **memory);
/* Narrows the rows [first_row, first_row + rows) of a source tensor to those from the first to the last one that this
 * process has (mk_gpu_next_here); none: `rows` becomes 0. */
void mk_gpu_upload_trim(const mk_gpu_upload *upload, size_t buffer, mk_gpu_pack *pack);
/* The buffer holds rows [first_row, first_row + rows) of a source tensor: they go to their places in weight `buffer`.
 * The first four fields of *pack are ignored. MK_ERR_USAGE when the rows and the weight do not go together. */
mk_status mk_gpu_upload_rows(mk_gpu_upload *upload, size_t buffer, const mk_gpu_pack *pack);
/* The first `bytes` bytes of the buffer go to `offset` of weight `buffer` as they are. */
mk_status mk_gpu_upload_bytes(mk_gpu_upload *upload, size_t buffer, uint64_t offset, size_t bytes);
/* Waits until all is in place. */
mk_status mk_gpu_upload_end(mk_gpu_upload *upload);

#endif
