/* See llama.h. One layer:
 *   qkv  = rope(Wqkv norm(x))            attn = attention(qkv)
 *   mid  = x + Wo attn                   act  = silu(Wg norm(mid)) * (Wu norm(mid))
 *   out  = mid + Wd act
 * and after the last one logits = Whead norm(x). */
#include "models/llama.h"

#include <math.h>
#include <stdio.h>

static uint32_t round_up(uint32_t n, uint32_t unit) { return (n + unit - 1) / unit * unit; }

typedef struct source_spec {
  const char *tensor;
  uint32_t rows;
} source_spec;

/* Adds the weight layers.L.NAME whose sources are model.layers.L.TENSOR.weight. */
static mk_status add_layer_weight(mk_graph *graph, uint32_t layer, const char *name, mk_pack pack, uint32_t rows,
                                  uint32_t cols, const source_spec *sources, uint32_t source_count, int *index) {
  mk_weight weight = {.pack = pack, .rows = rows, .cols = cols, .source_count = source_count};
  snprintf(weight.name, sizeof weight.name, "layers.%u.%s", layer, name);
  for (uint32_t s = 0; s < source_count; s++) {
    snprintf(weight.sources[s].tensor, sizeof weight.sources[s].tensor, "model.layers.%u.%s.weight", layer,
             sources[s].tensor);
    weight.sources[s].rows = sources[s].rows;
  }
  return mk_graph_add_weight(graph, &weight, index);
}

static mk_status add_weight(mk_graph *graph, const char *name, mk_pack pack, uint32_t rows, uint32_t cols,
                            const char *tensor, uint32_t tensor_rows, int *index) {
  mk_weight weight = {.pack = pack, .rows = rows, .cols = cols, .source_count = tensor == NULL ? 0 : 1};
  snprintf(weight.name, sizeof weight.name, "%s", name);
  if (tensor != NULL) {
    snprintf(weight.sources[0].tensor, sizeof weight.sources[0].tensor, "%s", tensor);
    weight.sources[0].rows = tensor_rows;
  }
  return mk_graph_add_weight(graph, &weight, index);
}

static mk_status add_layer(mk_graph *graph, uint32_t layer, int *x) {
  const mk_config *c = &graph->config;
  uint32_t q_rows = c->heads * c->head_dim, kv_rows = c->kv_heads * c->head_dim;
  int input_gain, qkv_weight, o_weight, mid_gain, glu_weight, down_weight;
  MK_TRY(add_layer_weight(graph, layer, "input_norm", MK_PACK_VECTOR, 1, c->hidden,
                          (source_spec[]){{"input_layernorm", 1}}, 1, &input_gain));
  MK_TRY(add_layer_weight(
      graph, layer, "qkv", MK_PACK_ROPE, q_rows + 2 * kv_rows, c->hidden,
      (source_spec[]){{"self_attn.q_proj", q_rows}, {"self_attn.k_proj", kv_rows}, {"self_attn.v_proj", kv_rows}}, 3,
      &qkv_weight));
  MK_TRY(add_layer_weight(graph, layer, "o", MK_PACK_ROWS, round_up(c->hidden, 16), q_rows,
                          (source_spec[]){{"self_attn.o_proj", c->hidden}}, 1, &o_weight));
  MK_TRY(add_layer_weight(graph, layer, "mid_norm", MK_PACK_VECTOR, 1, c->hidden,
                          (source_spec[]){{"post_attention_layernorm", 1}}, 1, &mid_gain));
  MK_TRY(add_layer_weight(graph, layer, "gate_up", MK_PACK_GLU, 2 * round_up(c->intermediate, 16), c->hidden,
                          (source_spec[]){{"mlp.gate_proj", c->intermediate}, {"mlp.up_proj", c->intermediate}}, 2,
                          &glu_weight));
  MK_TRY(add_layer_weight(graph, layer, "down", MK_PACK_ROWS, round_up(c->hidden, 16), c->intermediate,
                          (source_spec[]){{"mlp.down_proj", c->hidden}}, 1, &down_weight));

  int qkv, attn, mid, act, out;
  MK_TRY(mk_graph_add_value(graph, q_rows + 2 * kv_rows, &qkv, "layers.%u.qkv_out", layer));
  MK_TRY(mk_graph_add_value(graph, q_rows, &attn, "layers.%u.attn_out", layer));
  MK_TRY(mk_graph_add_value(graph, round_up(c->hidden, 16), &mid, "layers.%u.mid", layer));
  MK_TRY(mk_graph_add_value(graph, round_up(c->intermediate, 16), &act, "layers.%u.act", layer));
  MK_TRY(mk_graph_add_value(graph, round_up(c->hidden, 16), &out, "layers.%u.out", layer));

  mk_node nodes[] = {
      {.kind = MK_NODE_QKV, .input = *x, .gain = input_gain, .weight = qkv_weight, .output = qkv},
      {.kind = MK_NODE_ATTENTION, .input = qkv, .gain = MK_NONE, .weight = MK_NONE, .output = attn},
      {.kind = MK_NODE_ADD, .input = attn, .residual = *x, .gain = MK_NONE, .weight = o_weight, .output = mid},
      {.kind = MK_NODE_GLU, .input = mid, .gain = mid_gain, .weight = glu_weight, .output = act},
      {.kind = MK_NODE_ADD, .input = act, .residual = mid, .gain = MK_NONE, .weight = down_weight, .output = out},
  };
  for (size_t i = 0; i < sizeof nodes / sizeof nodes[0]; i++) {
    nodes[i].layer = layer;
    MK_TRY(mk_graph_add_node(graph, &nodes[i]));
  }
  *x = out;
  return MK_OK;
}

static mk_status build(mk_graph *graph) {
  const mk_config *c = &graph->config;
  uint32_t vocab_rows = round_up(c->vocab, 16);
  MK_TRY(add_weight(graph, "embedding", MK_PACK_ROWS, vocab_rows, c->hidden, "model.embed_tokens.weight", c->vocab,
                    &graph->embedding));
  MK_TRY(add_weight(graph, "frequencies", MK_PACK_FREQUENCIES, 1, c->head_dim / 2, NULL, 0, &graph->frequencies));
  int x = MK_NONE;
  for (uint32_t layer = 0; layer < c->layers; layer++) {
    MK_TRY(add_layer(graph, layer, &x));
  }
  int gain, head = graph->embedding;
  MK_TRY(add_weight(graph, "final_norm", MK_PACK_VECTOR, 1, c->hidden, "model.norm.weight", 1, &gain));
  if (!c->tied) {
    MK_TRY(add_weight(graph, "lm_head", MK_PACK_ROWS, vocab_rows, c->hidden, "lm_head.weight", c->vocab, &head));
  }
  return mk_graph_add_node(graph, &(mk_node){.kind = MK_NODE_HEAD,
                                             .layer = c->layers,
                                             .input = x,
                                             .residual = MK_NONE,
                                             .gain = gain,
                                             .weight = head,
                                             .output = MK_NONE});
}

mk_status mk_llama_graph(const mk_config *config, mk_graph **out) {
  *out = NULL;
  mk_graph *graph;
  MK_TRY(mk_alloc(1, sizeof *graph, &graph));
  graph->config = *config;
  mk_status status = build(graph);
  if (status != MK_OK) {
    mk_graph_free(graph);
    return status;
  }
  *out = graph;
  return MK_OK;
}

void mk_llama_frequencies(const mk_config *config, float *out) {
  const double two_pi = 6.283185307179586476925;
  for (uint32_t i = 0; i < config->head_dim / 2; i++) {
    double frequency = pow(config->rope_theta, -2.0 * i / config->head_dim);
    if (config->rope_type == MK_ROPE_LINEAR) {
      frequency /= config->rope_factor;
    } else if (config->rope_type == MK_ROPE_LLAMA3) {
      double turns = config->rope_original_max_position * frequency / two_pi; /* within the original context */
      double low = config->rope_low_freq_factor, high = config->rope_high_freq_factor;
      double keep = turns < low ? 0.0 : turns > high ? 1.0 : (turns - low) / (high - low);
      frequency = (1.0 - keep) * frequency / config->rope_factor + keep * frequency;
    }
    out[i] = (float)frequency;
  }
}

uint64_t mk_llama_parameters(const mk_config *config) {
  const mk_config *c = config;
  uint64_t hidden = c->hidden, q = (uint64_t)c->heads * c->head_dim, kv = (uint64_t)c->kv_heads * c->head_dim;
  uint64_t layer = 2 * hidden + hidden * (q + 2 * kv) + q * hidden + 3 * hidden * c->intermediate;
  return layer * c->layers + hidden + hidden * c->vocab * (c->tied ? 1 : 2);
}
