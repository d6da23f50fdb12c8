/* The weights of a model directory: model.safetensors, or the shards that model.safetensors.index.json lists.
 *
 * A checkpoint owns its open files and its table of tensors until mk_checkpoint_close. Data are read with pread, never
 * mapped, so that a file truncated under us is an error and not a SIGBUS. One thread at a time per checkpoint.
 * Failure: MK_ERR_FILE (malformed, missing, not supported), MK_ERR_RUNTIME (I/O, memory); the message names the file,
 * the tensor and the value. */
#ifndef MK_CHECKPOINT_H
#define MK_CHECKPOINT_H

#include "models/config.h"

typedef struct mk_tensor {
  const char *name; /* as in the file, owned by the checkpoint */
  mk_tensor_dtype dtype;
  uint32_t rank;     /* 1 or 2 for every tensor a Llama uses */
  uint64_t shape[4]; /* unused entries are 1 */
  uint32_t file;     /* index of the shard */
  uint64_t offset;   /* bytes from the start of that file */
  uint64_t bytes;
} mk_tensor;

typedef struct mk_checkpoint mk_checkpoint;

/* Opens every shard and checks every header; reads no weights. model.safetensors is preferred to the index when both
 * are there, as Hugging Face does. Tensors are in the order of their names. */
mk_status mk_checkpoint_open(const char *directory, mk_checkpoint **out);
/* Whether the directory has weights of a format that is not read, such as GGUF. */
bool mk_checkpoint_is_other(const char *directory);
void mk_checkpoint_close(mk_checkpoint *checkpoint); /* NULL is fine */

size_t mk_checkpoint_count(const mk_checkpoint *checkpoint);
const mk_tensor *mk_checkpoint_tensor(const mk_checkpoint *checkpoint, size_t index);
/* NULL when there is none of that name. */
const mk_tensor *mk_checkpoint_find(const mk_checkpoint *checkpoint, const char *name);

/* The path of the file that holds a tensor, owned by the checkpoint. */
const char *mk_checkpoint_path(const mk_checkpoint *checkpoint, const mk_tensor *tensor);

/* The path of the file that lists all tensors, owned by the checkpoint: the weights, or the index of the shards. */
const char *mk_checkpoint_source(const mk_checkpoint *checkpoint);

/* A shape for a message: "[2048, 512]". */
enum { MK_SHAPE_SHOWN = 96 };
const char *mk_shape_show(uint32_t rank, const uint64_t *shape, char shown[MK_SHAPE_SHOWN]);

/* Every tensor the configuration asks for is there with its shape, and nothing is there that it does not ask for.
 * Tolerated are rotary_emb.inv_freq buffers, which some exporters write, layers beyond those of the configuration, and
 * an lm_head.weight of the right shape that the configuration ties: models/directory.h looks at that one. */
mk_status mk_checkpoint_check(const mk_checkpoint *checkpoint, const mk_config *config);

/* What a checkpoint that passed has. */
typedef struct mk_checkpoint_survey {
  size_t used[MK_TENSOR_DTYPES]; /* tensors that the configuration asks for, by dtype; none of quantised modules */
  size_t quantised;              /* modules */
  size_t tensors_aside;          /* those of layers that it does not have */
  uint32_t layers_aside;
  size_t tensors_beside; /* of what the model has for images */
} mk_checkpoint_survey;

mk_checkpoint_survey mk_checkpoint_look(const mk_checkpoint *checkpoint, const mk_config *config);

/* Reads elements [first, first + count) in row-major order as bf16 (round to nearest even from fp16 and fp32). A range
 * outside the tensor is MK_ERR_USAGE, and so is another dtype. bf16 goes straight from the file into bf16_out. */
mk_status mk_tensor_read(const mk_checkpoint *checkpoint, const mk_tensor *tensor, uint64_t first, uint64_t count,
                         uint16_t *bf16_out);
/* The same as the file has them, in tensor->dtype. */
mk_status mk_tensor_read_raw(const mk_checkpoint *checkpoint, const mk_tensor *tensor, uint64_t first, uint64_t count,
                             void *out);
uint64_t mk_tensor_unit(const mk_tensor *tensor); /* bytes of one element */

#endif
