/* See llama.h. One layer:
 *   qkv  = rope(Wqkv norm(x))            attn = attention(qkv)
 *   mid  = x + Wo attn                   act  = silu(Wg norm(mid)) * (Wu norm(mid))
 *   out  = mid + Wd act
 * and after the last one logits = Whead norm(x).
 *
 * What sets a family apart goes where it costs nothing. The residual stream is kept divided by residual_multiplier:
 * norms do not see a factor, once their eps is divided by its square, and no addition has to multiply. What is left of
 * both multipliers is one factor on the embedding row, where the first addition takes it. The factor that stretched
 * rotations have on sine and cosine is squared in attention's. Dims that are not rotated pair up among themselves, with
 * frequency zero. */
#include "models/llama.h"

#include <math.h>
#include <stdio.h>

static uint32_t round_up(uint32_t n, uint32_t unit) { return (n + unit - 1) / unit * unit; }

/* The rows of the table. */
enum {
  EMBEDDING,
  FREQUENCIES,
  INPUT_NORM,
  QKV_VECTOR,
  QKV,
  QKV_FUSED,
  O,
  O_BIAS,
  ATTENTION_NORM,
  MID_NORM,
  GATE_UP,
  GATE_UP_FUSED,
  DOWN,
  DOWN_BIAS,
  MLP_NORM,
  FINAL_NORM,
  LM_HEAD,
  WEIGHTS,
};
#define MATRIX(tensor, of_rows, of_cols, of_gain) \
  { .name = (tensor), .rows = MK_SIZE_##of_rows, .cols = MK_SIZE_##of_cols, .gain = (of_gain) }
#define VECTOR(tensor, of_size, around, of_gain, having) \
  { .name = (tensor), .rows = MK_SIZE_##of_size, .mean = (around), .gain = (of_gain), .when = MK_HAVE_##having }
/* In a hash checkpoint layers are small beside the embedding, so that a rounding at the start does not grow from layer
 * to layer. tests/oracle/make_goldens.py has the same gains. */
static const mk_family_weight weights[WEIGHTS] = {
    [EMBEDDING] = {"embedding",
                   false,
                   MK_HAVE_ALWAYS,
                   MK_PACK_ROWS,
                   1,
                   {MATRIX("model.embed_tokens.weight", VOCAB, HIDDEN, 3.0)}},
    [FREQUENCIES] = {"frequencies", false, MK_HAVE_PLAIN_QKV, MK_PACK_FREQUENCIES, 0, {{0}}},
    [INPUT_NORM] = {"input_norm",
                    true,
                    MK_HAVE_NORM_BEFORE,
                    MK_PACK_VECTOR,
                    1,
                    {VECTOR("input_layernorm.weight", HIDDEN, 1, 0, ALWAYS)}},
    [QKV_VECTOR] = {"qkv_vector",
                    true,
                    MK_HAVE_QKV_VECTOR,
                    MK_PACK_QKV_VECTOR,
                    7,
                    {VECTOR("self_attn.q_proj.bias", QUERY, 0, 0.5, QKV_BIAS),
                     VECTOR("self_attn.k_proj.bias", KV, 0, 0.5, QKV_BIAS),
                     VECTOR("self_attn.v_proj.bias", KV, 0, 0.5, QKV_BIAS),
                     VECTOR("self_attn.q_norm.weight", HEAD, 1, 0, NORM_HEAD),
                     VECTOR("self_attn.k_norm.weight", HEAD, 1, 0, NORM_HEAD),
                     VECTOR("self_attn.q_norm.weight", QUERY, 1, 0, NORM_ALL),
                     VECTOR("self_attn.k_norm.weight", KV, 1, 0, NORM_ALL)}},
    [QKV] = {"qkv",
             true,
             MK_HAVE_APART,
             MK_PACK_ROPE,
             3,
             {MATRIX("self_attn.q_proj.weight", QUERY, HIDDEN, 1.0), MATRIX("self_attn.k_proj.weight", KV, HIDDEN, 1.0),
              MATRIX("self_attn.v_proj.weight", KV, HIDDEN, 1.0)}},
    [QKV_FUSED] =
        {"qkv", true, MK_HAVE_FUSED, MK_PACK_ROPE, 1, {MATRIX("self_attn.qkv_proj.weight", QKV, HIDDEN, 1.0)}},
    [O] = {"o", true, MK_HAVE_ALWAYS, MK_PACK_ROWS, 1, {MATRIX("self_attn.o_proj.weight", HIDDEN, QUERY, 0.2)}},
    [O_BIAS] = {"o_bias",
                true,
                MK_HAVE_O_PLAIN_BIAS,
                MK_PACK_VECTOR,
                1,
                {VECTOR("self_attn.o_proj.bias", HIDDEN, 0, 0.05, ALWAYS)}},
    [ATTENTION_NORM] = {"attention_norm",
                        true,
                        MK_HAVE_NORM_AFTER,
                        MK_PACK_VECTOR,
                        2,
                        {VECTOR("post_attention_layernorm.weight", HIDDEN, 0, 0.2, ALWAYS),
                         VECTOR("self_attn.o_proj.bias", HIDDEN, 0, 0.05, O_BIAS)}},
    [MID_NORM] = {"mid_norm",
                  true,
                  MK_HAVE_NORM_BEFORE,
                  MK_PACK_GLU_VECTOR,
                  4,
                  {VECTOR("post_attention_layernorm.weight", HIDDEN, 1, 0, NORM_ONE_SIDE),
                   VECTOR("pre_feedforward_layernorm.weight", HIDDEN, 1, 0, NORM_AROUND),
                   VECTOR("mlp.gate_proj.bias", INTERMEDIATE, 0, 0.5, MLP_BIAS),
                   VECTOR("mlp.up_proj.bias", INTERMEDIATE, 0, 0.5, MLP_BIAS)}},
    [GATE_UP] = {"gate_up",
                 true,
                 MK_HAVE_APART,
                 MK_PACK_GLU,
                 2,
                 {MATRIX("mlp.gate_proj.weight", INTERMEDIATE, HIDDEN, 1.0),
                  MATRIX("mlp.up_proj.weight", INTERMEDIATE, HIDDEN, 1.0)}},
    [GATE_UP_FUSED] =
        {"gate_up", true, MK_HAVE_FUSED, MK_PACK_GLU, 1, {MATRIX("mlp.gate_up_proj.weight", GLU, HIDDEN, 1.0)}},
    [DOWN] =
        {"down", true, MK_HAVE_ALWAYS, MK_PACK_ROWS, 1, {MATRIX("mlp.down_proj.weight", HIDDEN, INTERMEDIATE, 0.15)}},
    [DOWN_BIAS] = {"down_bias",
                   true,
                   MK_HAVE_MLP_BIAS,
                   MK_PACK_VECTOR,
                   1,
                   {VECTOR("mlp.down_proj.bias", HIDDEN, 0, 0.05, ALWAYS)}},
    [MLP_NORM] = {"mlp_norm",
                  true,
                  MK_HAVE_NORM_AFTER,
                  MK_PACK_VECTOR,
                  1,
                  {VECTOR("post_feedforward_layernorm.weight", HIDDEN, 0, 0.2, ALWAYS)}},
    [FINAL_NORM] = {"final_norm",
                    false,
                    MK_HAVE_ALWAYS,
                    MK_PACK_VECTOR,
                    2,
                    {VECTOR("model.norm.weight", HIDDEN, 0, 1.0, NORM_ONE_SIDE),
                     VECTOR("model.norm.weight", HIDDEN, -1, 0, NORM_AROUND)}}, /* to which 1 is added */
    [LM_HEAD] = {"lm_head", false, MK_HAVE_UNTIED, MK_PACK_ROWS, 1, {MATRIX("lm_head.weight", VOCAB, HIDDEN, 3.0)}},
};

static const mk_family_extra extras[] = {{"self_attn.rotary_emb.inv_freq", true},
                                         {"model.rotary_emb.inv_freq", false},
                                         {"self_attn.k_scale", true}, /* of a KV cache in fp8 */
                                         {"self_attn.v_scale", true}};

const mk_family mk_llama = {
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

static double multiplier(double given) { return given != 0 ? given : 1; }

/* The eps of the norm of a value of the residual stream (MK_NONE: the embedding row), which is kept divided by a
 * multiplier: so eps is divided by the multiplier's square. */
static float stream_eps(const mk_config *c, int x) {
  const double kept = multiplier(x == MK_NONE ? c->embedding_multiplier : c->residual_multiplier);
  return kept == 1 ? c->rms_eps : (float)((double)c->rms_eps / (kept * kept));
}

static float attention_factor(const mk_config *c, uint32_t layer) {
  /* Else it is in the rows' gains, or nowhere. */
  const bool stretched = c->rotary == 0 && mk_config_rotates(c, layer) && !mk_config_is_local(c, layer);
  if (c->attention_multiplier == 0 && (c->rope_attention == 0 || !stretched)) {
    return 1.0f / sqrtf((float)c->head_dim);
  }
  const double scale = c->attention_multiplier != 0 ? c->attention_multiplier : 1 / sqrt((double)c->head_dim);
  const double stretch = stretched ? multiplier(c->rope_attention) : 1;
  return (float)(scale * stretch * stretch);
}

static mk_node start_node(mk_node_kind kind, uint32_t layer, int input, int output) {
  return (mk_node){.kind = kind,
                   .layer = layer,
                   .input = input,
                   .residual = MK_NONE,
                   .gain = MK_NONE,
                   .weight = MK_NONE,
                   .vector = MK_NONE,
                   .output = output};
}

static float plus_of(const mk_config *c, int gain) { return gain != MK_NONE && c->norm_plus_one ? 1 : 0; }

/* What attention computes of x: *out. */
static mk_status add_attention(mk_graph *graph, uint32_t layer, int x, const int w[WEIGHTS], int *out) {
  const mk_config *c = &graph->config;
  const uint32_t q_rows = c->heads * c->head_dim, rows = q_rows + 2 * c->kv_heads * c->head_dim;
  int qkv;
  MK_TRY(mk_graph_add_value(graph, rows, &qkv, "layers.%u.qkv_out", layer));
  mk_node node = start_node(MK_NODE_QKV, layer, x, qkv);
  node.gain = w[INPUT_NORM];
  node.weight = w[c->fused ? QKV_FUSED : QKV];
  node.vector = w[mk_family_qkv_extras(c) != 0 ? QKV_VECTOR : FREQUENCIES];
  node.eps = stream_eps(c, x);
  node.plus = plus_of(c, node.gain);
  node.unrotated = !mk_config_rotates(c, layer);
  MK_TRY(mk_graph_add_node(graph, &node));
  if (c->qk_norm == MK_QK_NORM_ALL) {
    int normed;
    MK_TRY(mk_graph_add_value(graph, rows, &normed, "layers.%u.qkv_normed", layer));
    node = start_node(MK_NODE_NORM_HEADS, layer, qkv, normed);
    node.eps = c->rms_eps;
    MK_TRY(mk_graph_add_node(graph, &node));
    qkv = normed;
  }
  MK_TRY(mk_graph_add_value(graph, q_rows, out, "layers.%u.attn_out", layer));
  node = start_node(MK_NODE_ATTENTION, layer, qkv, *out);
  node.eps = c->qk_norm == MK_QK_NORM_HEAD ? c->rms_eps : 0;
  node.factor = attention_factor(c, layer);
  node.window = mk_config_window(c, layer);
  return mk_graph_add_node(graph, &node);
}

/* *x += W input, where the bias of the sum comes first, if it has one. */
static mk_status add_to_stream(mk_graph *graph, const mk_node *sum, int bias, int *x) {
  const mk_config *c = &graph->config;
  const double row = multiplier(c->embedding_multiplier) / multiplier(c->residual_multiplier);
  mk_node node = *sum;
  if (bias != MK_NONE || (*x == MK_NONE && row != 1)) {
    mk_node offset = start_node(MK_NODE_OFFSET, sum->layer, MK_NONE, MK_NONE);
    offset.residual = *x;
    offset.vector = bias;
    offset.factor = *x == MK_NONE && row != 1 ? (float)row : 0;
    MK_TRY(
        mk_graph_add_value(graph, round_up(c->hidden, 16), &offset.output, "%s_base", graph->values[sum->output].name));
    MK_TRY(mk_graph_add_node(graph, &offset));
    *x = offset.output;
  }
  node.residual = *x;
  *x = sum->output;
  return mk_graph_add_node(graph, &node);
}

static mk_status add_layer(mk_graph *graph, uint32_t layer, int frequencies, int *x) {
  const mk_config *c = &graph->config;
  int w[WEIGHTS], attn, mid, act, out;
  MK_TRY(add_weights(graph, INPUT_NORM, MLP_NORM, layer, w));
  w[FREQUENCIES] = frequencies;
  MK_TRY(add_attention(graph, layer, *x, w, &attn));
  MK_TRY(mk_graph_add_value(graph, round_up(c->hidden, 16), &mid, "layers.%u.mid", layer));
  MK_TRY(mk_graph_add_value(graph, round_up(c->intermediate, 16), &act, "layers.%u.act", layer));
  MK_TRY(mk_graph_add_value(graph, round_up(c->hidden, 16), &out, "layers.%u.out", layer));

  mk_node node = start_node(MK_NODE_ADD, layer, attn, mid);
  node.weight = w[O];
  node.gain = w[ATTENTION_NORM];
  node.eps = c->rms_eps;
  node.plus = plus_of(c, node.gain);
  node.biased = node.gain != MK_NONE && c->o_bias;
  MK_TRY(add_to_stream(graph, &node, w[O_BIAS], x));

  node = start_node(MK_NODE_GLU, layer, mid, act);
  node.gain = w[MID_NORM];
  node.weight = w[c->fused ? GATE_UP_FUSED : GATE_UP];
  node.eps = stream_eps(c, mid);
  node.plus = plus_of(c, node.gain);
  node.gelu = c->gelu;
  node.biased = c->mlp_bias;
  MK_TRY(mk_graph_add_node(graph, &node));

  node = start_node(MK_NODE_ADD, layer, act, out);
  node.weight = w[DOWN];
  node.gain = w[MLP_NORM];
  node.eps = c->rms_eps;
  node.plus = plus_of(c, node.gain);
  return add_to_stream(graph, &node, w[DOWN_BIAS], x);
}

static mk_status build(mk_graph *graph) {
  const mk_config *c = &graph->config;
  int x = MK_NONE, w[WEIGHTS];
  MK_TRY(add_weights(graph, EMBEDDING, FREQUENCIES, 0, w));
  graph->embedding = w[EMBEDDING];
  for (uint32_t layer = 0; layer < c->layers; layer++) {
    MK_TRY(add_layer(graph, layer, w[FREQUENCIES], &x));
  }
  MK_TRY(add_weights(graph, FINAL_NORM, LM_HEAD, 0, w));
  mk_node node = start_node(MK_NODE_HEAD, c->layers, x, MK_NONE);
  node.gain = w[FINAL_NORM];
  node.weight = c->tied ? w[EMBEDDING] : w[LM_HEAD];
  node.eps = stream_eps(c, x);
  node.plus = plus_of(c, node.gain);
  node.factor = c->logits_scaling != 0 ? (float)(1 / c->logits_scaling) : 0;
  return mk_graph_add_node(graph, &node);
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

static const double two_pi = 6.283185307179586476925;

/* The pair, as a number that need not be whole, that makes so many turns within the original context. */
static double pair_of_turns(const mk_config *c, double turns) {
  return mk_config_rotary(c) * log(c->rope_original_max_position / (turns * two_pi)) / (2 * log(c->rope_theta));
}

/* How much of a frequency "yarn" keeps: all where a pair turns often, nothing where it turns seldom. */
static double yarn_keeps(const mk_config *c, uint32_t pair) {
  double low = pair_of_turns(c, c->rope_beta_fast), high = pair_of_turns(c, c->rope_beta_slow);
  if (!c->rope_no_truncate) {
    low = floor(low);
    high = ceil(high);
  }
  low = fmax(low, 0);
  high = fmin(high, mk_config_rotary(c) - 1.0);
  high = low == high ? high + 0.001 : high;
  return 1 - fmin(fmax((pair - low) / (high - low), 0), 1);
}

static double llama3_keeps(const mk_config *c, double frequency) {
  const double turns = c->rope_original_max_position * frequency / two_pi; /* within the original context */
  const double low = c->rope_low_freq_factor, high = c->rope_high_freq_factor;
  return turns < low ? 0.0 : turns > high ? 1.0 : (turns - low) / (high - low);
}

void mk_llama_local_frequencies(const mk_config *config, float *out) {
  const uint32_t rotary = mk_config_rotary(config);
  for (uint32_t i = 0; i < config->head_dim / 2; i++) {
    out[i] = i < rotary / 2 ? (float)pow(config->rope_local_theta, -2.0 * i / rotary) : 0;
  }
}

void mk_llama_frequencies(const mk_config *config, float *out) {
  const uint32_t rotary = mk_config_rotary(config);
  for (uint32_t i = 0; i < config->head_dim / 2; i++) {
    double frequency = i < rotary / 2 ? pow(config->rope_theta, -2.0 * i / rotary) : 0, keep = 1;
    if (config->rope_type == MK_ROPE_LINEAR) {
      frequency /= config->rope_factor;
    } else if (config->rope_type == MK_ROPE_LLAMA3 || config->rope_type == MK_ROPE_YARN) {
      keep = config->rope_type == MK_ROPE_YARN ? yarn_keeps(config, i) : llama3_keeps(config, frequency);
      frequency = (1.0 - keep) * frequency / config->rope_factor + keep * frequency;
    } else if (config->rope_type == MK_ROPE_LONGROPE && i < rotary / 2) {
      frequency /= (double)(config->rope_is_long ? config->rope_long : config->rope_short)[i];
    }
    out[i] = (float)frequency;
  }
}
