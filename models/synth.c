/* See synth.h. */
#include "models/synth.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Gain of a matrix: the standard deviation of its output for an input of unit variance. Layers are small beside the
 * embedding, so that a rounding at the start does not grow from layer to layer. tests/oracle/make_goldens.py has the
 * same table. */
typedef struct matrix_kind {
  const char *name;
  double gain;
} matrix_kind;

static const matrix_kind kEmbedding = {"model.embed_tokens", 3.0};
static const matrix_kind kHead = {"lm_head", 3.0};

enum { LAYER_TENSORS = 9, INPUT_NORM = 0, MID_NORM = 5 };
static const matrix_kind kLayer[LAYER_TENSORS] = {
    [INPUT_NORM] = {"input_layernorm", 0},
    {"self_attn.q_proj", 1.0},
    {"self_attn.k_proj", 1.0},
    {"self_attn.v_proj", 1.0},
    {"self_attn.o_proj", 0.2},
    [MID_NORM] = {"post_attention_layernorm", 0},
    {"mlp.gate_proj", 1.0},
    {"mlp.up_proj", 1.0},
    {"mlp.down_proj", 0.15},
};

typedef struct shape {
  const char *name;
  mk_config config;
} shape;

#define LLAMA3(original, by)                                                                                        \
  .rms_eps = 1e-5f, .rope_theta = 500000.0, .rope_type = MK_ROPE_LLAMA3, .rope_factor = (by),                       \
  .rope_low_freq_factor = 1, .rope_high_freq_factor = 4, .rope_original_max_position = (original), .has_bos = true, \
  .eos_count = 1
#define LLAMA31(by) .vocab = 128256, .max_position = 131072, .bos = 128000, .eos = {128001}, LLAMA3(8192, by)

/* Sizes: config.json of meta-llama/Llama-3.2-1B, Llama-3.2-3B, Llama-3.1-8B and Llama-3.1-70B. */
static const shape kShapes[] = {
    {"llama-3.2-1b",
     {.hidden = 2048,
      .intermediate = 8192,
      .layers = 16,
      .heads = 32,
      .kv_heads = 8,
      .head_dim = 64,
      .tied = true,
      LLAMA31(32)}},
    {"llama-3.2-3b",
     {.hidden = 3072,
      .intermediate = 8192,
      .layers = 28,
      .heads = 24,
      .kv_heads = 8,
      .head_dim = 128,
      .tied = true,
      LLAMA31(32)}},
    {"llama-3.1-8b",
     {.hidden = 4096, .intermediate = 14336, .layers = 32, .heads = 32, .kv_heads = 8, .head_dim = 128, LLAMA31(8)}},
    {"llama-3.1-70b",
     {.hidden = 8192, .intermediate = 28672, .layers = 80, .heads = 64, .kv_heads = 8, .head_dim = 128, LLAMA31(8)}},
    {"tiny",
     {.hidden = 256,
      .intermediate = 688,
      .layers = 4,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 64,
      .tied = true,
      .vocab = 512,
      .max_position = 2048,
      .bos = 510,
      .eos = {511},
      LLAMA3(256, 8)}},
};
enum { SHAPES = sizeof kShapes / sizeof kShapes[0] };

const char *mk_synth_shape_name(size_t index) { return index < SHAPES ? kShapes[index].name : NULL; }

mk_status mk_synth_shape(const char *name, mk_config *out) {
  char names[256] = "";
  for (size_t i = 0; i < SHAPES; i++) {
    if (strcmp(name, kShapes[i].name) == 0) {
      *out = kShapes[i].config;
      return MK_OK;
    }
    size_t used = strlen(names);
    snprintf(names + used, sizeof names - used, "%s%s", i == 0 ? "" : ", ", kShapes[i].name);
  }
  return mk_error(MK_ERR_USAGE, "shape \"%s\" is unknown; choose one of %s", name, names);
}

uint64_t mk_synth_tensor_count(const mk_config *config) {
  return (uint64_t)config->layers * LAYER_TENSORS + (config->tied ? 2 : 3);
}

static void set_matrix(mk_synth_tensor *out, double gain, uint64_t rows, uint64_t cols) {
  out->rank = 2;
  out->shape[0] = rows;
  out->shape[1] = cols;
  out->offset = 0;
  out->scale = (float)(gain * sqrt(3.0 / (double)cols) / 32768.0);
}

static void set_vector(mk_synth_tensor *out, uint64_t size, float offset, float scale) {
  out->rank = 1;
  out->shape[0] = size;
  out->shape[1] = 1;
  out->offset = offset;
  out->scale = scale;
}

static void layer_tensor(const mk_config *c, uint32_t kind, mk_synth_tensor *out) {
  uint64_t q = (uint64_t)c->heads * c->head_dim, kv = (uint64_t)c->kv_heads * c->head_dim;
  const uint64_t rows[LAYER_TENSORS] = {0, q, kv, kv, c->hidden, 0, c->intermediate, c->intermediate, c->hidden};
  const uint64_t cols[LAYER_TENSORS] = {0, c->hidden, c->hidden, c->hidden,      q,
                                        0, c->hidden, c->hidden, c->intermediate};
  if (kind == INPUT_NORM || kind == MID_NORM) {
    set_vector(out, c->hidden, 1.0f, 0x1p-16f);
  } else {
    set_matrix(out, kLayer[kind].gain, rows[kind], cols[kind]);
  }
}

void mk_synth_tensor_at(const mk_config *config, uint64_t index, mk_synth_tensor *out) {
  *out = (mk_synth_tensor){0};
  uint64_t layer_count = (uint64_t)config->layers * LAYER_TENSORS;
  if (index == 0) {
    snprintf(out->name, sizeof out->name, "%s.weight", kEmbedding.name);
    set_matrix(out, kEmbedding.gain, config->vocab, config->hidden);
  } else if (index <= layer_count) {
    uint32_t layer = (uint32_t)((index - 1) / LAYER_TENSORS), kind = (uint32_t)((index - 1) % LAYER_TENSORS);
    snprintf(out->name, sizeof out->name, "model.layers.%u.%s.weight", layer, kLayer[kind].name);
    layer_tensor(config, kind, out);
  } else if (index == layer_count + 1) {
    snprintf(out->name, sizeof out->name, "model.norm.weight");
    set_vector(out, config->hidden, 0.0f, (float)(sqrt(3.0) / 32768.0));
  } else {
    snprintf(out->name, sizeof out->name, "%s.weight", kHead.name);
    set_matrix(out, kHead.gain, config->vocab, config->hidden);
  }
}

uint64_t mk_synth_key(uint64_t seed, const char *name) {
  uint64_t hash = UINT64_C(0xCBF29CE484222325);
  for (; *name != '\0'; name++) {
    hash = (hash ^ (uint8_t)*name) * UINT64_C(0x100000001B3);
  }
  return mk_synth_mix(mk_synth_mix(seed + UINT64_C(0x9E3779B97F4A7C15)) ^ hash);
}

void mk_synth_fill(uint64_t key, uint64_t first, uint64_t count, float offset, float scale, uint16_t *out) {
  for (uint64_t i = 0; i < count; i++) {
    out[i] = mk_synth_value(key, first + i, offset, scale);
  }
}
