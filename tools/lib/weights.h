/* Checkpoint -> packed weights, as the buffers of a program hold them (models/graph.h: mk_pack; vm/program.h: tiles).
 * `memory` is the caller's, mk_buffer.bytes bytes, zero where padding lies. Failure: that of mk_tensor_read. */
#ifndef MK_WEIGHTS_H
#define MK_WEIGHTS_H

#include "models/checkpoint.h"
#include "models/graph.h"

mk_status mk_weights_load(const mk_checkpoint *checkpoint, const mk_graph *graph, const mk_weight *weight,
                          void *memory);

#endif
