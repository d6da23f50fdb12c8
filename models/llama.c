/* See llama.h. One layer:
 *   qkv  = rope(Wqkv norm(x))            attn = attention(qkv)
 *   mid  = x + Wo attn                   act  = silu(Wg norm(mid)) * (Wu norm(mid))
 *   out  = mid + Wd act
 * and after the last one logits = Whead norm(x). */
#include "models/llama.h"

#include <math.h>
#include <stdio.h>

static uint32_t round_up(uint32_t n, uint32_t unit) { return (n + unit - 1) / unit * unit; }

/* The rows of the table. */
enum {
  EMBEDDING,
  FREQUENCIES,
  INPUT_NORM,
  QKV,
  O,
  MID_NORM,
  GATE_UP,
  DOWN,
  FINAL_NORM,
  LM_HEAD,
  WEIGHTS,
};
#define MATRIX(tensor, of_rows, of_cols, of_gain) \
  { .name = (tensor), .rows = MK_SIZE_##of_rows, .cols = MK_SIZE_##of_cols, .gain = (of_gain) }
#define GAINS(tensor, around) \
  { .name = (tensor), .rows = MK_SIZE_HIDDEN, .mean = (around) }
/* In a hash checkpoint layers are small beside the embedding, so that a rounding at the start does not grow from layer to
 * layer. tests/oracle/make_goldens.py has the same gains. */
static const mk_family_weight weights[WEIGHTS] = {
    [EMBEDDING] =
        {"embedding", false, false, MK_PACK_ROWS, 1, {MATRIX("model.embed_tokens.weight", VOCAB, HIDDEN, 3.0)}},
    [FREQUENCIES] = {"frequencies", false, false, MK_PACK_FREQUENCIES, 0, {{0}}},
    [INPUT_NORM] = {"input_norm", true, false, MK_PACK_VECTOR, 1, {GAINS("input_layernorm.weight", 1)}},
    [QKV] = {"qkv",
             true,
             false,
             MK_PACK_ROPE,
             3,
             {MATRIX("self_attn.q_proj.weight", QUERY, HIDDEN, 1.0), MATRIX("self_attn.k_proj.weight", KV, HIDDEN, 1.0),
              MATRIX("self_attn.v_proj.weight", KV, HIDDEN, 1.0)}},
    [O] = {"o", true, false, MK_PACK_ROWS, 1, {MATRIX("self_attn.o_proj.weight", HIDDEN, QUERY, 0.2)}},
    [MID_NORM] = {"mid_norm", true, false, MK_PACK_VECTOR, 1, {GAINS("post_attention_layernorm.weight", 1)}},
    [GATE_UP] = {"gate_up",
                 true,
                 false,
                 MK_PACK_GLU,
                 2,
                 {MATRIX("mlp.gate_proj.weight", INTERMEDIATE, HIDDEN, 1.0),
                  MATRIX("mlp.up_proj.weight", INTERMEDIATE, HIDDEN, 1.0)}},
    [DOWN] = {"down", true, false, MK_PACK_ROWS, 1, {MATRIX("mlp.down_proj.weight", HIDDEN, INTERMEDIATE, 0.15)}},
    [FINAL_NORM] = {"final_norm", false, false, MK_PACK_VECTOR, 1, {GAINS("model.norm.weight", 0)}},
    [LM_HEAD] = {"lm_head", false, true, MK_PACK_ROWS, 1, {MATRIX("lm_head.weight", VOCAB, HIDDEN, 3.0)}},
};

static const mk_family_extra extras[] = {{"self_attn.rotary_emb.inv_freq", true}, {"model.rotary_emb.inv_freq", false}};

const mk_family mk_llama = {
    .title = "Llama",
    .without = "biases",
    .layer_prefix = "model.layers.",
    .weights = weights,
    .weight_count = WEIGHTS,
    .extras = extras,
    .extra_count = sizeof extras / sizeof extras[0],
};

/* Rows [first, last] of the table; w: their numbers in the graph, by row. */
static mk_status add_weights(mk_graph *graph, uint32_t first, uint32_t last, uint32_t layer, int w[WEIGHTS]) {
  for (uint32_t i = first; i <= last; i++) {
    MK_TRY(mk_family_add_weight(graph, i, layer, &w[i]));
  }
  return MK_OK;
}

static mk_status add_layer(mk_graph *graph, uint32_t layer, int *x) {
  const mk_config *c = &graph->config;
  uint32_t q_rows = c->heads * c->head_dim, kv_rows = c->kv_heads * c->head_dim;
  int w[WEIGHTS];
  MK_TRY(add_weights(graph, INPUT_NORM, DOWN, layer, w));

  int qkv, attn, mid, act, out;
  MK_TRY(mk_graph_add_value(graph, q_rows + 2 * kv_rows, &qkv, "layers.%u.qkv_out", layer));
  MK_TRY(mk_graph_add_value(graph, q_rows, &attn, "layers.%u.attn_out", layer));
  MK_TRY(mk_graph_add_value(graph, round_up(c->hidden, 16), &mid, "layers.%u.mid", layer));
  MK_TRY(mk_graph_add_value(graph, round_up(c->intermediate, 16), &act, "layers.%u.act", layer));
  MK_TRY(mk_graph_add_value(graph, round_up(c->hidden, 16), &out, "layers.%u.out", layer));

  mk_node nodes[] = {
      {.kind = MK_NODE_QKV, .input = *x, .gain = w[INPUT_NORM], .weight = w[QKV], .output = qkv},
      {.kind = MK_NODE_ATTENTION, .input = qkv, .gain = MK_NONE, .weight = MK_NONE, .output = attn},
      {.kind = MK_NODE_ADD, .input = attn, .residual = *x, .gain = MK_NONE, .weight = w[O], .output = mid},
      {.kind = MK_NODE_GLU, .input = mid, .gain = w[MID_NORM], .weight = w[GATE_UP], .output = act},
      {.kind = MK_NODE_ADD, .input = act, .residual = mid, .gain = MK_NONE, .weight = w[DOWN], .output = out},
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
  int x = MK_NONE, w[WEIGHTS];
  MK_TRY(add_weights(graph, EMBEDDING, FREQUENCIES, 0, w));
  graph->embedding = w[EMBEDDING];
  graph->frequencies = w[FREQUENCIES];
  for (uint32_t layer = 0; layer < c->layers; layer++) {
    MK_TRY(add_layer(graph, layer, &x));
  }
  MK_TRY(add_weights(graph, FINAL_NORM, LM_HEAD, 0, w));
  return mk_graph_add_node(graph, &(mk_node){.kind = MK_NODE_HEAD,
                                             .layer = c->layers,
                                             .input = x,
                                             .residual = MK_NONE,
                                             .gain = w[FINAL_NORM],
                                             .weight = c->tied ? w[EMBEDDING] : w[LM_HEAD],
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
