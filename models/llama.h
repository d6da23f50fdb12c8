/* Dense decoders in the manner of Llama: Llama itself, Qwen2, Qwen3, Mistral, Granite, SmolLM3, Phi-3, OLMo 2 and
 * Gemma 3. Their table of tensors, the graph of a decode step, and their rotary frequencies. Pure functions of the
 * configuration; any thread may call. Failure: MK_ERR_RUNTIME (memory). */
#ifndef MK_LLAMA_H
#define MK_LLAMA_H

#include "models/family.h"

extern const mk_family mk_llama;

/* The caller frees *out with mk_graph_free. The configuration has passed mk_config_parse (or is as sound). */
mk_status mk_llama_graph(const mk_config *config, mk_graph **out);

/* Inverse frequencies in radians per position, out[head_dim / 2]: theta^(-2 i / rotary) for the pairs that are rotated,
 * 0 for the others, and with the scaling that the configuration asks for (transformers, modeling_rope_utils.py):
 * divided by the factor of the "linear" type, by the pair's own of "longrope"; long wavelengths alone scaled by
 * "llama3" and "yarn". The "dynamic" type differs only for sequences longer than max_position, of which there are
 * none. */
void mk_llama_frequencies(const mk_config *config, float *out);
/* Those of the layers that rotate by rope_local_theta: theta^(-2 i / rotary). */
void mk_llama_local_frequencies(const mk_config *config, float *out);

#endif
