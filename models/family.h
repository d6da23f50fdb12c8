/* Families of models as one table: the weights of its decode step, the tensors of a checkpoint that each is packed
 * from, their shapes, and what stands for them in a hash checkpoint (models/synth.h). What checks a checkpoint, builds
 * a graph, counts parameters or writes a hash checkpoint is a loop over the table. Families that differ in what
 * mk_config has fields for share a table and a graph builder: a row or a tensor says which configurations have it. Any
 * other family is another table and another graph builder.
 *
 * Constant data and pure functions of the configuration; any thread may call. Failure: MK_ERR_RUNTIME (memory). */
#ifndef MK_FAMILY_H
#define MK_FAMILY_H

#include "models/graph.h"

/* A size that the configuration gives. */
typedef enum mk_size {
  MK_SIZE_NONE, /* as columns: the tensor is a vector */
  MK_SIZE_HIDDEN,
  MK_SIZE_INTERMEDIATE,
  MK_SIZE_VOCAB,
  MK_SIZE_QUERY, /* heads x head_dim */
  MK_SIZE_KV,    /* kv_heads x head_dim */
  MK_SIZE_HEAD,  /* head_dim */
  MK_SIZE_QKV,   /* query, and kv twice: three sources in one tensor */
  MK_SIZE_GLU,   /* intermediate twice: two sources in one tensor */
} mk_size;

/* Which configurations have a row of the table, or a tensor of it. */
typedef enum mk_having {
  MK_HAVE_ALWAYS,
  MK_HAVE_UNTIED,        /* not a model with tied embeddings */
  MK_HAVE_NORM_BEFORE,   /* norms of what attention and MLP take */
  MK_HAVE_NORM_AFTER,    /* norms of what they add */
  MK_HAVE_NORM_ONE_SIDE, /* norms of one of the two */
  MK_HAVE_NORM_AROUND,   /* norms of both */
  MK_HAVE_APART,         /* q, k, v, gate and up in tensors of their own */
  MK_HAVE_FUSED,
  MK_HAVE_PLAIN_QKV,  /* nothing beside the frequencies in QKV's vector, which all layers share then */
  MK_HAVE_QKV_VECTOR, /* something */
  MK_HAVE_QKV_BIAS,
  MK_HAVE_O_BIAS,
  MK_HAVE_O_PLAIN_BIAS, /* which is not within a norm */
  MK_HAVE_MLP_BIAS,
  MK_HAVE_NORM_HEAD, /* of q and k, by heads */
  MK_HAVE_NORM_ALL,  /* over all heads */
} mk_having;

typedef struct mk_family_tensor {
  const char *name;   /* in the checkpoint; of a layer: after the layer's number and a point */
  mk_size rows, cols; /* in the checkpoint */
  /* In a hash checkpoint. Matrices: the standard deviation of the output for an input of unit variance. Vectors: their
   * own, unless they are around one. */
  double gain;
  double mean; /* 1, -1: around that, half to either side, for gains of norms; else 0 */
  mk_having when;
} mk_family_tensor;

enum { MK_FAMILY_TENSORS = 7 }; /* of a row; a configuration has at most MK_MAX_SOURCES of them */
typedef struct mk_family_weight {
  const char *name; /* in the graph; of a layer: after "layers.N." */
  bool of_layer;    /* every layer has one; such rows stand side by side */
  mk_having when;
  mk_pack pack;
  uint32_t tensor_count; /* 0: derived from the configuration */
  mk_family_tensor tensors[MK_FAMILY_TENSORS];
} mk_family_weight;

/* A tensor that some exporters write, and nobody needs. */
typedef struct mk_family_extra {
  const char *name; /* as in mk_family_tensor */
  bool of_layer;
} mk_family_extra;

typedef struct mk_family {
  const char *layer_prefix; /* of the tensors of a layer, before its number: "model.layers." */
  const mk_family_weight *weights;
  uint32_t weight_count;
  const mk_family_extra *extras;
  uint32_t extra_count;
} mk_family;

/* The family of a configuration that has passed mk_config_parse. */
const mk_family *mk_family_of(const mk_config *config);

/* A tensor of a checkpoint. */
typedef struct mk_wanted_tensor {
  const mk_family_weight *weight;
  const mk_family_tensor *tensor; /* its row of the table */
  uint32_t layer;                 /* of weights of a layer */
  uint32_t rank;                  /* 1 or 2 */
  uint64_t shape[2];              /* shape[1] is 1 for rank 1 */
} mk_wanted_tensor;

/* The tensors that a configuration asks for, in the table's order: layer after layer where its layers stand. index <
 * count. */
uint64_t mk_family_tensor_count(const mk_config *config);
void mk_family_tensor_at(const mk_config *config, uint64_t index, mk_wanted_tensor *out);
void mk_family_tensor_name(const mk_config *config, const mk_wanted_tensor *tensor, char name[MK_TENSOR_NAME]);
/* The name that a tensor of the text model has in the checkpoint, from the plain one (mk_naming). */
void mk_family_stored_name(const mk_config *config, const char *plain, char name[MK_TENSOR_NAME]);

/* Whether it is a matrix that may be quantised, which an embedding table is not; and the number of one of a layer among
 * all that the table has. */
bool mk_family_is_module(const mk_wanted_tensor *tensor);
uint32_t mk_family_module(const mk_config *config, const mk_wanted_tensor *tensor);

/* What a checkpoint's tensor of that name is to a configuration. */
typedef enum mk_tensor_use {
  MK_TENSOR_WANTED, /* *out says what; with tied embeddings an untied one, too */
  MK_TENSOR_EXTRA,  /* is tolerated */
  MK_TENSOR_ASIDE,  /* of layer out->layer, which the configuration does not have */
  MK_TENSOR_BESIDE, /* of what a model has for images */
  MK_TENSOR_UNKNOWN,
} mk_tensor_use;
mk_tensor_use mk_family_find(const mk_config *config, const char *name, mk_wanted_tensor *out);

/* What QKV's vector has beside the frequencies (MK_VECTOR_BIASES, MK_VECTOR_GAINS). */
uint32_t mk_family_qkv_extras(const mk_config *config);

/* Adds weight `index` of the table to a graph, of layer `layer` if it is one of a layer; *out: its number in the graph,
 * MK_NONE when the configuration has no such weight. */
mk_status mk_family_add_weight(mk_graph *graph, uint32_t index, uint32_t layer, int *out);

/* Parameters of the model, tied embeddings counted once. */
uint64_t mk_family_parameters(const mk_config *config);

#endif
