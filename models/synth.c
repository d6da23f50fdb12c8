/* See synth.h. */
#include "models/synth.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/family.h"

typedef struct shape {
  const char *name;
  mk_config config;
} shape;

#define LLAMA3(original, by)                                                                                        \
  .rms_eps = 1e-5f, .rope_theta = 500000.0, .rope_type = MK_ROPE_LLAMA3, .rope_factor = (by),                       \
  .rope_low_freq_factor = 1, .rope_high_freq_factor = 4, .rope_original_max_position = (original), .has_bos = true, \
  .eos_count = 1
#define QWEN(size, positions, end)                                                                       \
  .head_dim = (size), .vocab = 151936, .max_position = (positions), .rms_eps = 1e-6f, .rope_theta = 1e6, \
  .eos_count = 1, .eos = {(end)}
#define QWEN2 .kind = MK_MODEL_QWEN2, .qkv_bias = true
#define QWEN3 .kind = MK_MODEL_QWEN3, .qk_norm = MK_QK_NORM_HEAD, QWEN(128, 40960, 151645)
/* Five layers of six see a window; embeddings are multiplied by bf16(sqrt(hidden)). */
#define GEMMA3(sees, by, ...)                                                                                      \
  .kind = MK_MODEL_GEMMA3, .head_dim = 256, .tied = true, .rms_eps = 1e-6f, .rope_theta = 1e6,                     \
  .rope_local_theta = 10000, .qk_norm = MK_QK_NORM_HEAD, .norm_around = true, .norm_plus_one = true, .gelu = true, \
  .attention_multiplier = 0.0625, .embedding_multiplier = (by), .window = (sees), .windowed = {__VA_ARGS__},       \
  .has_bos = true, .bos = 262142, .eos_count = 1, .eos = {262143} /* low ids are bytes in a synthetic tokenizer */
#define LLAMA31(by) .vocab = 128256, .max_position = 131072, .bos = 128000, .eos = {128001}, LLAMA3(8192, by)

/* Sizes: config.json of meta-llama/Llama-3.2-1B, Llama-3.2-3B, Llama-3.1-8B and Llama-3.1-70B, of Qwen/Qwen2.5-0.5B,
 * -1.5B and -7B, Qwen3-0.6B to -32B, mistralai/Mistral-7B-v0.3, HuggingFaceTB/SmolLM3-3B, google/gemma-3-270m and
 * -1b-pt, and the text model of google/gemma-3-4b-pt. */
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
    {"qwen2.5-0.5b",
     {.hidden = 896,
      .intermediate = 4864,
      .layers = 24,
      .heads = 14,
      .kv_heads = 2,
      .tied = true,
      QWEN2,
      QWEN(64, 32768, 151643)}},
    {"qwen2.5-1.5b",
     {.hidden = 1536,
      .intermediate = 8960,
      .layers = 28,
      .heads = 12,
      .kv_heads = 2,
      .tied = true,
      QWEN2,
      QWEN(128, 131072, 151643)}},
    {"qwen2.5-7b",
     {.hidden = 3584,
      .intermediate = 18944,
      .layers = 28,
      .heads = 28,
      .kv_heads = 4,
      QWEN2,
      .head_dim = 128,
      .vocab = 152064,
      .max_position = 131072,
      .rms_eps = 1e-6f,
      .rope_theta = 1e6,
      .eos_count = 1,
      .eos = {151643}}},
    {"qwen3-0.6b",
     {.hidden = 1024, .intermediate = 3072, .layers = 28, .heads = 16, .kv_heads = 8, .tied = true, QWEN3}},
    {"qwen3-1.7b",
     {.hidden = 2048, .intermediate = 6144, .layers = 28, .heads = 16, .kv_heads = 8, .tied = true, QWEN3}},
    {"qwen3-4b", {.hidden = 2560, .intermediate = 9728, .layers = 36, .heads = 32, .kv_heads = 8, .tied = true, QWEN3}},
    {"qwen3-8b", {.hidden = 4096, .intermediate = 12288, .layers = 36, .heads = 32, .kv_heads = 8, QWEN3}},
    {"qwen3-14b", {.hidden = 5120, .intermediate = 17408, .layers = 40, .heads = 40, .kv_heads = 8, QWEN3}},
    {"qwen3-32b", {.hidden = 5120, .intermediate = 25600, .layers = 64, .heads = 64, .kv_heads = 8, QWEN3}},
    {"mistral-7b",
     {.kind = MK_MODEL_MISTRAL,
      .hidden = 4096,
      .intermediate = 14336,
      .layers = 32,
      .heads = 32,
      .kv_heads = 8,
      .head_dim = 128,
      .vocab = 32768,
      .max_position = 32768,
      .rms_eps = 1e-5f,
      .rope_theta = 1e6,
      .has_bos = true,
      .bos = 1,
      .eos_count = 1,
      .eos = {2}}},
    {"smollm3-3b",
     {.kind = MK_MODEL_SMOLLM3,
      .hidden = 2048,
      .intermediate = 11008,
      .layers = 36,
      .heads = 16,
      .kv_heads = 4,
      .head_dim = 128,
      .tied = true,
      .vocab = 128256,
      .max_position = 65536,
      .rms_eps = 1e-6f,
      .rope_theta = 5e6,
      .unrotated = {0x88, 0x88, 0x88, 0x88, 0x08},
      .has_bos = true,
      .bos = 128000,
      .eos_count = 1,
      .eos = {128012}}},
    {"gemma-3-270m",
     {.hidden = 640,
      .intermediate = 2048,
      .layers = 18,
      .heads = 4,
      .kv_heads = 1,
      .vocab = 262144,
      .max_position = 32768,
      GEMMA3(512, 25.25, 0xdf, 0xf7, 0x01)}},
    {"gemma-3-1b",
     {.hidden = 1152,
      .intermediate = 6912,
      .layers = 26,
      .heads = 4,
      .kv_heads = 1,
      .vocab = 262144,
      .max_position = 32768,
      GEMMA3(512, 34, 0xdf, 0xf7, 0x7d, 0x03)}},
    {"gemma-3-4b",
     {.hidden = 2560,
      .intermediate = 10240,
      .layers = 34,
      .heads = 8,
      .kv_heads = 4,
      .vocab = 262208,
      .max_position = 131072,
      .rope_type = MK_ROPE_LINEAR,
      .rope_factor = 8,
      GEMMA3(1024, 50.5, 0xdf, 0xf7, 0x7d, 0xdf, 0x03)}},
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

void mk_synth_shape_names(char out[MK_SYNTH_NAMES]) {
  size_t used = 0;
  for (size_t i = 0; i < SHAPES; i++) {
    used += (size_t)snprintf(out + used, MK_SYNTH_NAMES - used, "%s%s", i == 0 ? "" : ", ", kShapes[i].name);
  }
}

mk_status mk_synth_shape(const char *name, mk_config *out) {
  char names[MK_SYNTH_NAMES];
  for (size_t i = 0; i < SHAPES; i++) {
    if (strcmp(name, kShapes[i].name) == 0) {
      *out = kShapes[i].config;
      return MK_OK;
    }
  }
  mk_synth_shape_names(names);
  return mk_error(MK_ERR_USAGE, "shape \"%s\" is unknown; choose one of %s", name, names);
}

void mk_synth_quantise(mk_config *config, mk_codes codes, uint32_t group, mk_tensor_dtype scale, bool zeros) {
  config->quant = (mk_quant){0};
  if (codes == MK_CODES_NONE) {
    return;
  }
  config->quant.layout = (uint8_t)(codes == MK_CODES_INT4 ? MK_QUANT_PACKED : MK_QUANT_PLAIN);
  config->quant.codes = (uint8_t)codes;
  config->quant.scale = (uint8_t)scale;
  config->quant.zeros = zeros;
  config->quant.group = group;
  memset(config->quant.modules, 0xff, sizeof config->quant.modules);
}

uint64_t mk_synth_tensor_count(const mk_config *config) { return mk_family_tensor_count(config); }

void mk_synth_tensor_at(const mk_config *config, uint64_t index, mk_synth_tensor *out) {
  mk_wanted_tensor tensor;
  mk_family_tensor_at(config, index, &tensor);
  *out = (mk_synth_tensor){.rank = tensor.rank, .shape = {tensor.shape[0], tensor.shape[1]}};
  mk_family_tensor_name(config, &tensor, out->name);
  out->offset = (float)tensor.tensor->mean;
  if (tensor.rank == 2) {
    out->scale = (float)(tensor.tensor->gain * sqrt(3.0 / (double)tensor.shape[1]) / 32768.0);
  } else {
    out->scale = tensor.tensor->mean != 0 ? 0x1p-16f : (float)(tensor.tensor->gain * sqrt(3.0) / 32768.0);
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
