/* See vectors.h. */
#include "engine/vectors.h"

#include <string.h>

#include "models/llama.h"
#include "vm/program/program.h"

typedef struct joiner {
  const mk_graph *graph;
  const mk_weight *weight;
  uint16_t *values;                /* of all sources, one after the other */
  uint32_t starts[MK_MAX_SOURCES]; /* of each */
} joiner;

static float widen(uint16_t bits) { return mk_param_float((uint32_t)bits << 16); }

/* Which row of which source (q, k, v) each row of QKV's weight is. */
static mk_weight qkv_order(const mk_config *c) {
  const uint32_t query = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
  return (mk_weight){.pack = MK_PACK_ROPE,
                     .rotary = c->rotary,
                     .source_count = 3,
                     .sources = {{.rows = query}, {.rows = kv}, {.rows = kv}}};
}

/* A head's gain, or a heads' one; and where some dims alone are rotated, those have the factor on sine and cosine. */
static float gain_of(const joiner *j, uint32_t source, uint32_t row) {
  const mk_config *c = &j->graph->config;
  const uint32_t dim = row % c->head_dim, first = (j->weight->extras & MK_VECTOR_BIASES) != 0 ? 3 : 0;
  if (source == 2) {
    return 1;
  }
  const uint32_t at = c->qk_norm == MK_QK_NORM_HEAD ? dim : row;
  const float plus = c->norm_plus_one ? 1 : 0;
  const float gain = c->qk_norm == MK_QK_PLAIN ? 1 : plus + widen(j->values[j->starts[first + source] + at]);
  return c->rotary != 0 && dim < c->rotary && c->rope_attention != 0 ? gain * (float)c->rope_attention : gain;
}

static void join_qkv(const joiner *j, float *out) {
  const mk_config *c = &j->graph->config;
  const mk_weight order = qkv_order(c);
  const uint32_t rows = (c->heads + 2 * c->kv_heads) * c->head_dim;
  if ((j->weight->extras & MK_VECTOR_LOCAL) != 0) {
    mk_llama_local_frequencies(c, out);
  } else {
    mk_llama_frequencies(c, out);
  }
  out += c->head_dim / 2;
  float *gains = (j->weight->extras & MK_VECTOR_BIASES) != 0 ? out + rows : out;
  for (uint32_t row = 0; row < rows; row++) {
    uint32_t source = 0, at = 0;
    (void)mk_weight_row(&order, c->head_dim, row, &source, &at); /* whole heads have no padding */
    if ((j->weight->extras & MK_VECTOR_BIASES) != 0) {
      out[row] = widen(j->values[j->starts[source] + at]);
    }
    if ((j->weight->extras & MK_VECTOR_GAINS) != 0) {
      gains[row] = gain_of(j, source, at);
    }
  }
}

static void join_glu(const joiner *j, uint16_t *out) {
  const mk_weight_source *sources = j->weight->sources;
  const mk_weight order = {
      .pack = MK_PACK_GLU, .source_count = 2, .sources = {{.rows = sources[1].rows}, {.rows = sources[2].rows}}};
  memcpy(out, j->values, sources[0].rows * sizeof *out);
  out += sources[0].rows;
  for (uint32_t row = 0; row < j->weight->cols - sources[0].rows; row++) {
    uint32_t source, at;
    const bool real = mk_weight_row(&order, 0, row, &source, &at);
    out[row] = real ? j->values[j->starts[1 + source] + at] : 0;
  }
}

mk_status mk_vector_join(const mk_graph *graph, const mk_weight *weight, mk_vector_read read, void *user,
                         void *memory) {
  joiner j = {.graph = graph, .weight = weight};
  uint32_t count = 0;
  if (!mk_vector_is_joined(weight)) {
    return read(user, 0, weight->cols, memory);
  }
  for (uint32_t s = 0; s < weight->source_count; s++) {
    j.starts[s] = count;
    count += weight->sources[s].rows;
  }
  MK_TRY(mk_alloc(count, sizeof *j.values, &j.values));
  mk_status status = MK_OK;
  for (uint32_t s = 0; s < weight->source_count && status == MK_OK; s++) {
    status = read(user, s, weight->sources[s].rows, j.values + j.starts[s]);
  }
  if (status == MK_OK && mk_pack_has_frequencies(weight->pack)) {
    join_qkv(&j, memory);
  } else if (status == MK_OK && weight->pack == MK_PACK_GLU_VECTOR) {
    join_glu(&j, memory);
  } else if (status == MK_OK) {
    memcpy(memory, j.values, count * sizeof *j.values);
  }
  mk_free(j.values);
  return status;
}
