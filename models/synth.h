/* Hash checkpoints: a model directory of a given shape whose weights are an integer hash of (seed, tensor, index), so
 * that a file, the CPU and the GPU can each make the same bits without exchanging them.
 *
 * Element `index` (row-major) of tensor `name` under `seed`, bit for bit:
 *   mix(z): z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;  z = (z ^ z >> 27) * 0x94D049BB133111EB;  z ^ z >> 31   (mod 2^64)
 *   key   = mix(mix(seed + 0x9E3779B97F4A7C15) ^ FNV-1a-64(name))
 *   z     = mix(key + index * 0x9E3779B97F4A7C15)
 *   r     = (z >> 48) - 32768                                                    a whole number in [-32768, 32767]
 *   value = bf16(offset + r * scale)                     in fp32; bf16() rounds to nearest even
 * with, per tensor,
 *   matrices [out, in]      offset 0, scale = (float)(gain * sqrt(3 / in) / 32768); variance gain^2 / in
 *   norm weights of layers  offset 1, scale = 2^-16: from 0.5 to 1.5
 *   model.norm.weight       offset 0, scale = (float)(sqrt(3) / 32768): mean 0, variance 1; of Gemma 3, which adds 1,
 *                           offset -1, scale = 2^-16
 * One of the product and the sum is always exact, so a fused multiply-add gives the same bits. Gains are in the
 * family's table (models/llama.c): logits reach about 10, greedy decoding wanders, and rounding does not grow from
 * layer to layer. The final norm has mean zero because a tied head would else answer with the token it was given.
 *
 * Nothing here is shared: any thread may call. A caller owns what it receives as char ** (mk_free). Failure:
 * MK_ERR_USAGE (unknown shape, directory in use), MK_ERR_RUNTIME (I/O, memory); the message names the path or the
 * field. */
#ifndef MK_SYNTH_H
#define MK_SYNTH_H

#include "models/family.h"

typedef struct mk_synth_tensor {
  char name[MK_TENSOR_NAME];
  uint32_t rank;     /* 1 or 2 */
  uint64_t shape[2]; /* shape[1] is 1 for rank 1 */
  float offset, scale;
} mk_synth_tensor;

/* The configuration of a named shape. */
mk_status mk_synth_shape(const char *name, mk_config *out);
/* The names of the shapes, NULL past the last; and all of them, with commas between. */
const char *mk_synth_shape_name(size_t index);
enum { MK_SYNTH_NAMES = 512 };
void mk_synth_shape_names(char out[MK_SYNTH_NAMES]);

/* The same with quantised matrices in all layers: `codes` (none: as it is), groups of so many columns (0: of a row),
 * scales of this type, zeros or not. What is in a matrix's place then is said in engine/synth_weights.c; there are no
 * files of such a checkpoint. */
void mk_synth_quantise(mk_config *config, mk_codes codes, uint32_t group, mk_tensor_dtype scale, bool zeros);

/* The tensors of a checkpoint of that configuration, in the order in which the file has them: index < count. */
uint64_t mk_synth_tensor_count(const mk_config *config);
void mk_synth_tensor_at(const mk_config *config, uint64_t index, mk_synth_tensor *out);

static inline uint64_t mk_synth_mix(uint64_t z) {
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

uint64_t mk_synth_key(uint64_t seed, const char *name);

/* z of one element. */
static inline uint64_t mk_synth_hash(uint64_t key, uint64_t index) {
  return mk_synth_mix(key + index * UINT64_C(0x9E3779B97F4A7C15));
}

/* The bf16 bits of one element. */
static inline uint16_t mk_synth_value(uint64_t key, uint64_t index, float offset, float scale) {
  const uint64_t z = mk_synth_hash(key, index);
  float value = offset + (float)((int32_t)(z >> 48) - 32768) * scale;
  union {
    float value;
    uint32_t bits;
  } word = {.value = value};
  return (uint16_t)((word.bits + 0x7fffu + ((word.bits >> 16) & 1u)) >> 16);
}

/* Elements [first, first + count). */
void mk_synth_fill(uint64_t key, uint64_t first, uint64_t count, float offset, float scale, uint16_t *out);

/* Bytes written so far and altogether; false stops the writing. */
typedef bool (*mk_synth_progress)(void *user, uint64_t done, uint64_t total);

typedef struct mk_synth_options {
  uint64_t seed;
  bool config_only;           /* config.json and generation_config.json alone: enough to compile for */
  uint64_t shard_bytes;       /* the most bytes of tensors per file; 0: 5 GB, as Hugging Face does */
  mk_synth_progress progress; /* may be NULL */
  void *user;
} mk_synth_options;

/* Writes the model directory, creating it if need be: config.json, generation_config.json, tokenizer.json,
 * tokenizer_config.json and model.safetensors, or shards and model.safetensors.index.json. The tokenizer is the 256
 * bytes, then fillers, then the special tokens. Streams: about 1 MiB of memory at any size. A file gets its name when
 * it is complete, config.json last; on failure everything this call wrote is removed. A directory that holds a model
 * already is refused. */
mk_status mk_synth_write(const char *directory, const mk_config *config, const mk_synth_options *options);

#endif
