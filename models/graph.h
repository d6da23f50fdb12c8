/* The graph of a model: what one decode step computes, with no word about who computes it or when.
 *
 * A graph owns its arrays; mk_graph_free releases them. It is built by one thread (models/llama.c) and then only read.
 * Building fails with MK_ERR_RUNTIME when memory runs out. */
#ifndef MK_GRAPH_H
#define MK_GRAPH_H

#include "models/config.h"

/* How the rows of the checkpoint's tensors become the rows of one weight. Every weight but a VECTOR or a FREQUENCIES
 * is padded with zeros to whole 16 x 16 tiles. */
typedef enum mk_pack {
  MK_PACK_ROWS,        /* the rows of the sources, one source after the other */
  MK_PACK_ROPE,        /* sources q, k, v: within each q and k head, tile u holds dims [8 u, 8 u + 8) and then
                          [head_dim / 2 + 8 u, ... + 8), so that both halves of a rotated pair lie in one tile; v as it
                          is */
  MK_PACK_GLU,         /* sources gate, up: tile u holds gate rows [8 u, 8 u + 8), then the same rows of up */
  MK_PACK_VECTOR,      /* vectors as they are, one after the other: gains, and what is added before they come */
  MK_PACK_GLU_VECTOR,  /* a vector, then biases of gate and up in the order of GLU's rows */
  MK_PACK_FREQUENCIES, /* derived from the configuration: fp32 inverse frequencies of RoPE, [head_dim / 2] */
  MK_PACK_QKV_VECTOR,  /* fp32: the same, then for each row of ROPE, in its order, what mk_weight.extras says */
} mk_pack;

/* Vectors that are bf16 or fp32 as they are, and no tiles. */
static inline bool mk_pack_is_vector(mk_pack pack) { return pack >= MK_PACK_VECTOR; }
static inline bool mk_pack_has_frequencies(mk_pack pack) {
  return pack == MK_PACK_FREQUENCIES || pack == MK_PACK_QKV_VECTOR;
}

enum { MK_MAX_SOURCES = 5, MK_TENSOR_NAME = 96 };
typedef struct mk_weight_source {
  char tensor[MK_TENSOR_NAME]; /* name in the checkpoint */
  uint32_t rows;               /* elements of a vector; 1 where a VECTOR has no other source */
  uint32_t first;              /* of them in the tensor: not 0 where several sources are fused in one tensor */
  bool quantised;              /* the tensor is its module's "weight", which is stored as others (quant.h) */
} mk_weight_source;

/* What a packed matrix is made of: bf16 (NONE), whatever its sources are, or codes with scales and zeros. */
typedef struct mk_form {
  mk_codes codes;
  mk_tensor_dtype scale;
  uint32_t scale_cols; /* columns of a row that share a scale: 32, 64 or 128 */
  bool zeros;          /* INT4: stored; else they are 8 */
} mk_form;

typedef struct mk_weight {
  char name[48];
  mk_pack pack;
  uint32_t rows;   /* packed, a multiple of 16; 1 for vectors */
  uint32_t cols;   /* as in the checkpoint; of a vector all of its elements */
  uint32_t rotary; /* ROPE and QKV_VECTOR: the first dims of a head, which are rotated; the others pair up by
                      themselves; 0: all */
  uint32_t extras; /* QKV_VECTOR: MK_VECTOR_BIASES and so on. Sources: biases of q, k and v, gains of q and k */
  mk_form form;    /* zero for vectors */
  uint32_t source_count;
  mk_weight_source sources[MK_MAX_SOURCES];
} mk_weight;

/* What a QKV_VECTOR has for each row, and which frequencies it has. */
enum {
  MK_VECTOR_BIASES = 1, /* added to W norm(x) */
  MK_VECTOR_GAINS = 2,  /* then a factor, which comes after that */
  MK_VECTOR_LOCAL = 4,  /* those of rope_local_theta */
};

/* Where row `row` of a packed weight comes from; false for a row of padding. */
bool mk_weight_row(const mk_weight *weight, uint32_t head_dim, uint32_t row, uint32_t *source, uint32_t *source_row);

/* y = W norm(x) with an epilogue, or attention: the grain at which a decode step is scheduled. */
typedef enum mk_node_kind {
  MK_NODE_QKV,        /* output = rope(W norm(input)) for q and k, W norm(input) for v */
  MK_NODE_NORM_HEADS, /* output = input, but q and k normed, each over all of its heads */
  MK_NODE_ATTENTION, /* output = attention(input = q, k, v; KV cache of this layer), over a window where there is one */
  MK_NODE_OFFSET,    /* residual of output = factor residual + vector, which stays where the residual is */
  MK_NODE_ADD,       /* output = residual + W input; with a gain: residual + norm(W input) */
  MK_NODE_GLU,       /* output = silu(G norm(input)) * (U norm(input)), or gelu */
  MK_NODE_HEAD,      /* logits = factor W norm(input), and the choice of the next token */
} mk_node_kind;

enum { MK_NONE = -1 };

typedef struct mk_node {
  mk_node_kind kind;
  uint32_t layer;  /* of HEAD: the number of layers */
  int input;       /* value; MK_NONE: the embedding row of the step's token */
  int residual;    /* value (ADD and OFFSET only); MK_NONE: the embedding row */
  int gain;        /* weight of the norm, or MK_NONE: no norm */
  int weight;      /* MK_NONE for ATTENTION, NORM_HEADS and OFFSET */
  int vector;      /* weight: QKV's frequencies and what follows them, OFFSET's bias, or MK_NONE */
  int output;      /* value, MK_NONE for HEAD */
  float eps;       /* of the norm; ATTENTION: of those of q and k, 0: none */
  float factor;    /* 0: none. ATTENTION: on q k */
  bool unrotated;  /* QKV: q and k are not rotated */
  uint32_t window; /* ATTENTION: how many tokens, up to its own, each sees; 0: all */
  bool biased;     /* GLU: its gain goes on with biases */
  bool gelu;       /* GLU: of the gate, in place of SiLU */
  float plus;      /* is added to each gain */
} mk_node;

typedef struct mk_value {
  char name[48];
  uint32_t length;
} mk_value;

typedef struct mk_graph {
  mk_config config;
  mk_weight *weights;
  size_t weight_count, weight_capacity;
  mk_value *values;
  size_t value_count, value_capacity;
  mk_node *nodes; /* in an order in which they can be computed */
  size_t node_count, node_capacity;
  int embedding; /* weight */
} mk_graph;

void mk_graph_free(mk_graph *graph); /* NULL is fine */
/* Each appends a copy and returns its index through *index. */
mk_status mk_graph_add_weight(mk_graph *graph, const mk_weight *weight, int *index);
mk_status mk_graph_add_value(mk_graph *graph, uint32_t length, int *index, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
mk_status mk_graph_add_node(mk_graph *graph, const mk_node *node);

#endif
