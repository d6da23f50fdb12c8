/* Packed weights straight from the hash of models/synth.h, with no checkpoint on disk: the bits that mk_weights_load
 * would give for a directory that `mkvm synth` wrote with the same seed.
 *
 * Any thread may call. Failure: MK_ERR_FILE for a tensor that the configuration does not have, else that of the GPU
 * machine. */
#ifndef MK_SYNTH_WEIGHTS_H
#define MK_SYNTH_WEIGHTS_H

#include "models/graph.h"
#include "vm/gpu/machine.h"

/* `memory`: the caller's, zero, as many bytes as the weight's buffer has. */
mk_status mk_synth_weights_fill(const mk_graph *graph, const mk_weight *weight, uint64_t seed, void *memory);
/* The same on the GPU. */
mk_status mk_synth_weights_fill_gpu(const mk_graph *graph, const mk_weight *weight, uint64_t seed, mk_gpu *gpu,
                                    size_t buffer);

#endif
