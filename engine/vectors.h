/* The vectors of a graph: made of the configuration, and of vectors of a checkpoint in the order in which instructions
 * take them.
 *
 * Any thread may call. Failure: what `read` fails with, MK_ERR_RUNTIME (memory). */
#ifndef MK_VECTORS_H
#define MK_VECTORS_H

#include "models/graph.h"

/* Gives the `count` elements of a weight's source as bf16. */
typedef mk_status (*mk_vector_read)(void *user, uint32_t source, uint32_t count, uint16_t *out);

/* Whether a weight is a vector of more than one tensor of a checkpoint as it is. */
static inline bool mk_vector_is_joined(const mk_weight *weight) {
  return mk_pack_is_vector(weight->pack) && (weight->pack != MK_PACK_VECTOR || weight->source_count != 1);
}
/* Of a vector. */
static inline size_t mk_vector_bytes(const mk_weight *weight) {
  return weight->cols * (mk_pack_has_frequencies(weight->pack) ? sizeof(float) : sizeof(uint16_t));
}

/* Fills the memory of a weight that mk_pack_is_vector: weight->cols elements, bf16, or fp32 where it has
 * frequencies. */
mk_status mk_vector_join(const mk_graph *graph, const mk_weight *weight, mk_vector_read read, void *user, void *memory);

#endif
