/* Checkpoint -> packed weights, as the buffers of a program hold them (models/graph.h: mk_pack; vm/program/program.h:
 * tiles). Any thread may call, one at a time per checkpoint. Failure: that of mk_tensor_read and of the GPU machine. */
#ifndef MK_WEIGHTS_H
#define MK_WEIGHTS_H

#include "models/checkpoint.h"
#include "models/graph.h"
#include "vm/gpu/upload.h"

/* Called when `bytes` more bytes of the checkpoint are packed or on their way; anything but MK_OK ends the work. NULL:
 * none. */
typedef mk_status (*mk_weights_tick)(void *user, uint64_t bytes);

/* Packed by the host. `memory` is the caller's, mk_buffer.bytes bytes, zero where padding lies. */
mk_status mk_weights_pack(const mk_checkpoint *checkpoint, const mk_graph *graph, const mk_weight *weight, void *memory,
                          mk_weights_tick tick, void *user);
/* The same without a tick. */
mk_status mk_weights_load(const mk_checkpoint *checkpoint, const mk_graph *graph, const mk_weight *weight,
                          void *memory);

/* The buffer that a matrix becomes: its shape and form. */
mk_buffer mk_matrix_buffer(const mk_weight *weight);

/* The same bits packed by the GPU, but quantised ones by the host, into buffer `buffer` of the upload's machine, zero
 * where padding lies. They are in place after mk_gpu_upload_end. */
mk_status mk_weights_upload(const mk_checkpoint *checkpoint, const mk_graph *graph, const mk_weight *weight,
                            mk_gpu_upload *upload, size_t buffer, mk_weights_tick tick, void *user);

#endif
