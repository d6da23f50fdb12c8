/* Which tensors a configuration asks for, and whether a checkpoint has just these. See checkpoint.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/checkpoint.h"

const char *mk_shape_show(uint32_t rank, const uint64_t *shape, char shown[MK_SHAPE_SHOWN]) {
  int used = 0; /* at most 4 sizes of 20 digits: always fits */
  for (uint32_t i = 0; i < rank && i < 4; i++) {
    used += snprintf(shown + used, (size_t)(MK_SHAPE_SHOWN - used), "%s%llu", i == 0 ? "[" : ", ",
                     (unsigned long long)shape[i]);
  }
  snprintf(shown + used, (size_t)(MK_SHAPE_SHOWN - used), "%s", rank == 0 ? "[]" : "]");
  return shown;
}

/* The tensors of a Llama, and which two sizes of the configuration give their shape. */
typedef enum size_of { SIZE_NONE, SIZE_HIDDEN, SIZE_INTERMEDIATE, SIZE_VOCAB, SIZE_QUERY, SIZE_KV } size_of;
typedef struct expected {
  const char *name;
  size_of rows, columns; /* columns SIZE_NONE: a vector */
} expected;

static const expected layer_tensors[] = {
    {"input_layernorm.weight", SIZE_HIDDEN, SIZE_NONE},
    {"self_attn.q_proj.weight", SIZE_QUERY, SIZE_HIDDEN},
    {"self_attn.k_proj.weight", SIZE_KV, SIZE_HIDDEN},
    {"self_attn.v_proj.weight", SIZE_KV, SIZE_HIDDEN},
    {"self_attn.o_proj.weight", SIZE_HIDDEN, SIZE_QUERY},
    {"post_attention_layernorm.weight", SIZE_HIDDEN, SIZE_NONE},
    {"mlp.gate_proj.weight", SIZE_INTERMEDIATE, SIZE_HIDDEN},
    {"mlp.up_proj.weight", SIZE_INTERMEDIATE, SIZE_HIDDEN},
    {"mlp.down_proj.weight", SIZE_HIDDEN, SIZE_INTERMEDIATE},
};
static const expected model_tensors[] = {
    {"model.embed_tokens.weight", SIZE_VOCAB, SIZE_HIDDEN},
    {"model.norm.weight", SIZE_HIDDEN, SIZE_NONE},
    {"lm_head.weight", SIZE_VOCAB, SIZE_HIDDEN}, /* last: not asked for when tied */
};
enum {
  LAYER_TENSORS = sizeof layer_tensors / sizeof layer_tensors[0],
  MODEL_TENSORS = sizeof model_tensors / sizeof model_tensors[0],
  NAME_SIZE = 96,
};

static uint64_t size_value(const mk_config *config, size_of which) {
  switch (which) {
    case SIZE_HIDDEN:
      return config->hidden;
    case SIZE_INTERMEDIATE:
      return config->intermediate;
    case SIZE_VOCAB:
      return config->vocab;
    case SIZE_QUERY:
      return (uint64_t)config->heads * config->head_dim;
    case SIZE_KV:
      return (uint64_t)config->kv_heads * config->head_dim;
    case SIZE_NONE:
      break;
  }
  return 1;
}

/* Splits "model.layers.7.REST"; false for anything else, "07" included. */
static bool split_layer_name(const char *name, uint64_t *layer, const char **rest) {
  static const char head[] = "model.layers.";
  if (strncmp(name, head, sizeof head - 1) != 0) {
    return false;
  }
  const char *digits = name + sizeof head - 1;
  size_t length = strspn(digits, "0123456789");
  if (length == 0 || length > 9 || (length > 1 && digits[0] == '0') || digits[length] != '.') {
    return false;
  }
  *layer = strtoull(digits, NULL, 10);
  *rest = digits + length + 1;
  return true;
}

static const expected *find_expected(const mk_config *config, const char *name) {
  uint64_t layer;
  const char *rest;
  if (!split_layer_name(name, &layer, &rest)) {
    for (size_t i = 0; i < MODEL_TENSORS; i++) {
      if (strcmp(name, model_tensors[i].name) == 0) {
        return &model_tensors[i];
      }
    }
    return NULL;
  }
  for (size_t i = 0; i < LAYER_TENSORS && layer < config->layers; i++) {
    if (strcmp(rest, layer_tensors[i].name) == 0) {
      return &layer_tensors[i];
    }
  }
  return NULL;
}

/* Of a layer that the configuration does not have. */
static bool aside(const mk_config *config, const char *name, uint64_t *layer) {
  const char *rest;
  return split_layer_name(name, layer, &rest) && *layer >= config->layers;
}

static bool tolerated(const mk_config *config, const char *name) {
  uint64_t layer;
  const char *rest;
  if (split_layer_name(name, &layer, &rest)) {
    return layer >= config->layers || strcmp(rest, "self_attn.rotary_emb.inv_freq") == 0;
  }
  return strcmp(name, "model.rotary_emb.inv_freq") == 0;
}

static mk_status check_present(const mk_checkpoint *checkpoint, const mk_config *config, const char *name) {
  if (mk_checkpoint_find(checkpoint, name) != NULL) {
    return MK_OK;
  }
  return mk_error(MK_ERR_FILE, "%s: tensor %s: is missing; config.json asks for %u layers%s",
                  mk_checkpoint_source(checkpoint), name, config->layers, config->tied ? "" : " and an untied lm_head");
}

mk_status mk_checkpoint_check(const mk_checkpoint *checkpoint, const mk_config *config) {
  for (size_t i = 0; i < mk_checkpoint_count(checkpoint); i++) {
    const mk_tensor *tensor = mk_checkpoint_tensor(checkpoint, i);
    const char *file = mk_checkpoint_path(checkpoint, tensor);
    const expected *want = find_expected(config, tensor->name);
    if (want == NULL && tolerated(config, tensor->name)) {
      continue;
    }
    if (want == NULL) {
      return mk_error(MK_ERR_FILE, "%s: tensor %.200s: is not part of a Llama of %u layers without biases", file,
                      tensor->name, config->layers);
    }
    const uint64_t shape[] = {size_value(config, want->rows), size_value(config, want->columns)};
    const uint32_t rank = want->columns == SIZE_NONE ? 1 : 2;
    if (tensor->rank != rank || tensor->shape[0] != shape[0] || tensor->shape[1] != shape[1]) {
      char is[MK_SHAPE_SHOWN], must[MK_SHAPE_SHOWN];
      return mk_error(MK_ERR_FILE, "%s: tensor %s: shape is %s, config.json asks for %s", file, tensor->name,
                      mk_shape_show(tensor->rank, tensor->shape, is), mk_shape_show(rank, shape, must));
    }
  }
  for (size_t i = 0; i < MODEL_TENSORS - (config->tied ? 1 : 0); i++) {
    MK_TRY(check_present(checkpoint, config, model_tensors[i].name));
  }
  for (uint32_t layer = 0; layer < config->layers; layer++) {
    for (size_t i = 0; i < LAYER_TENSORS; i++) {
      char name[NAME_SIZE];
      snprintf(name, sizeof name, "model.layers.%u.%s", layer, layer_tensors[i].name);
      MK_TRY(check_present(checkpoint, config, name));
    }
  }
  return MK_OK;
}

/* The tensors of a layer stand side by side, since a checkpoint sorts them by name. */
mk_checkpoint_survey mk_checkpoint_look(const mk_checkpoint *checkpoint, const mk_config *config) {
  mk_checkpoint_survey survey = {.tensors_aside = 0};
  const expected *head = &model_tensors[MODEL_TENSORS - 1];
  uint64_t last = UINT64_MAX;
  for (size_t i = 0; i < mk_checkpoint_count(checkpoint); i++) {
    const mk_tensor *tensor = mk_checkpoint_tensor(checkpoint, i);
    const expected *want = find_expected(config, tensor->name);
    uint64_t layer;
    survey.used[tensor->dtype] += want != NULL && !(config->tied && want == head);
    if (aside(config, tensor->name, &layer)) {
      survey.tensors_aside++;
      survey.layers_aside += layer != last;
      last = layer;
    }
  }
  return survey;
}
