/* The Llama family (2, 3, 3.1, 3.2): its table of tensors, the graph of a decode step, and its rotary frequencies.
 * Pure functions of the configuration; any thread may call. Failure: MK_ERR_RUNTIME (memory). */
#ifndef MK_LLAMA_H
#define MK_LLAMA_H

#include "models/family.h"

extern const mk_family mk_llama;

/* The caller frees *out with mk_graph_free. The configuration has passed mk_config_parse (or is as sound). */
mk_status mk_llama_graph(const mk_config *config, mk_graph **out);

/* Inverse frequencies in radians per position, out[head_dim / 2]: theta^(-2 i / head_dim), divided by the
 * factor of the "linear" type or with the "llama3" scaling of long wavelengths where the configuration asks for it (transformers,
 * modeling_rope_utils.py). The "dynamic" type differs only for sequences longer than max_position, of which there are none. */
void mk_llama_frequencies(const mk_config *config, float *out);

#endif
