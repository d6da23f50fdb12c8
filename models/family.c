/* See family.h. */
#include "models/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/llama.h"

const mk_family *mk_family_of(const mk_config *config) {
  (void)config; /* mk_config_parse accepts one family */
  return &mk_llama;
}

static uint64_t size_value(const mk_config *config, mk_size which) {
  switch (which) {
    case MK_SIZE_HIDDEN:
      return config->hidden;
    case MK_SIZE_INTERMEDIATE:
      return config->intermediate;
    case MK_SIZE_VOCAB:
      return config->vocab;
    case MK_SIZE_QUERY:
      return (uint64_t)config->heads * config->head_dim;
    case MK_SIZE_KV:
      return (uint64_t)config->kv_heads * config->head_dim;
    case MK_SIZE_NONE:
      break;
  }
  return 1;
}

static void describe(const mk_config *config, const mk_family_weight *weight, const mk_family_tensor *tensor,
                     uint32_t layer, mk_wanted_tensor *out) {
  *out = (mk_wanted_tensor){.weight = weight,
                            .tensor = tensor,
                            .layer = layer,
                            .rank = tensor->cols == MK_SIZE_NONE ? 1 : 2,
                            .shape = {size_value(config, tensor->rows), size_value(config, tensor->cols)}};
}

static uint32_t tensors_of(const mk_config *config, const mk_family_weight *weight) {
  return weight->untied && config->tied ? 0 : weight->tensor_count;
}

/* Rows of the table: [0, first) stand before the layers, [first, end) are those of a layer, the rest follows. */
typedef struct layer_rows {
  uint32_t first, end;
  uint64_t tensors; /* of one layer */
} layer_rows;

static layer_rows find_layer_rows(const mk_config *config, const mk_family *family) {
  layer_rows rows = {.first = 0};
  while (rows.first < family->weight_count && !family->weights[rows.first].of_layer) {
    rows.first++;
  }
  for (rows.end = rows.first; rows.end < family->weight_count && family->weights[rows.end].of_layer; rows.end++) {
    rows.tensors += tensors_of(config, &family->weights[rows.end]);
  }
  return rows;
}

uint64_t mk_family_tensor_count(const mk_config *config) {
  const mk_family *family = mk_family_of(config);
  uint64_t count = 0;
  for (uint32_t w = 0; w < family->weight_count; w++) {
    count += (uint64_t)tensors_of(config, &family->weights[w]) * (family->weights[w].of_layer ? config->layers : 1);
  }
  return count;
}

void mk_family_tensor_at(const mk_config *config, uint64_t index, mk_wanted_tensor *out) {
  const mk_family *family = mk_family_of(config);
  const layer_rows rows = find_layer_rows(config, family);
  uint32_t layer = 0;
  for (uint32_t w = 0; w < family->weight_count; w++) {
    const mk_family_weight *weight = &family->weights[w];
    if (w == rows.first && index < rows.tensors * config->layers) {
      layer = (uint32_t)(index / rows.tensors);
      index %= rows.tensors;
    } else if (w == rows.first) {
      index -= rows.tensors * config->layers;
      w = rows.end - 1; /* the next row is the first one after the layers */
      continue;
    }
    if (index < tensors_of(config, weight)) {
      describe(config, weight, &weight->tensors[index], layer, out);
      return;
    }
    index -= tensors_of(config, weight);
  }
}

void mk_family_tensor_name(const mk_config *config, const mk_wanted_tensor *tensor, char name[MK_TENSOR_NAME]) {
  if (tensor->weight->of_layer) {
    snprintf(name, MK_TENSOR_NAME, "%s%u.%s", mk_family_of(config)->layer_prefix, tensor->layer, tensor->tensor->name);
  } else {
    snprintf(name, MK_TENSOR_NAME, "%s", tensor->tensor->name);
  }
}

/* Splits "model.layers.7.REST"; false for anything else, "07" included. */
static bool split_layer_name(const mk_family *family, const char *name, uint32_t *layer, const char **rest) {
  const size_t prefix = strlen(family->layer_prefix);
  if (strncmp(name, family->layer_prefix, prefix) != 0) {
    return false;
  }
  const char *digits = name + prefix;
  size_t length = strspn(digits, "0123456789");
  if (length == 0 || length > 9 || (length > 1 && digits[0] == '0') || digits[length] != '.') {
    return false;
  }
  *layer = (uint32_t)strtoul(digits, NULL, 10);
  *rest = digits + length + 1;
  return true;
}

mk_tensor_use mk_family_find(const mk_config *config, const char *name, mk_wanted_tensor *out) {
  const mk_family *family = mk_family_of(config);
  uint32_t layer = 0;
  const bool of_layer = split_layer_name(family, name, &layer, &name);
  *out = (mk_wanted_tensor){.layer = layer};
  if (of_layer && layer >= config->layers) {
    return MK_TENSOR_ASIDE;
  }
  for (uint32_t w = 0; w < family->weight_count; w++) {
    const mk_family_weight *weight = &family->weights[w];
    for (uint32_t t = 0; weight->of_layer == of_layer && t < weight->tensor_count; t++) {
      if (strcmp(name, weight->tensors[t].name) == 0) {
        describe(config, weight, &weight->tensors[t], layer, out);
        return MK_TENSOR_WANTED;
      }
    }
  }
  for (uint32_t e = 0; e < family->extra_count; e++) {
    if (family->extras[e].of_layer == of_layer && strcmp(name, family->extras[e].name) == 0) {
      return MK_TENSOR_EXTRA;
    }
  }
  return MK_TENSOR_UNKNOWN;
}

static uint32_t whole_tiles(uint64_t rows) { return (uint32_t)((rows + 15) / 16 * 16); }

mk_status mk_family_add_weight(mk_graph *graph, uint32_t index, uint32_t layer, int *out) {
  const mk_config *config = &graph->config;
  const mk_family_weight *row = &mk_family_of(config)->weights[index];
  const bool vector = row->pack == MK_PACK_VECTOR || row->pack == MK_PACK_FREQUENCIES;
  mk_weight weight = {.pack = row->pack,
                      .rows = vector ? 1 : 0,
                      .cols = row->pack == MK_PACK_FREQUENCIES ? config->head_dim / 2 : 0,
                      .source_count = row->tensor_count};
  *out = MK_NONE;
  if (row->untied && config->tied) {
    return MK_OK;
  }
  if (row->of_layer) {
    snprintf(weight.name, sizeof weight.name, "layers.%u.%s", layer, row->name);
  } else {
    snprintf(weight.name, sizeof weight.name, "%s", row->name);
  }
  for (uint32_t t = 0; t < row->tensor_count; t++) {
    mk_wanted_tensor tensor;
    describe(config, row, &row->tensors[t], layer, &tensor);
    mk_family_tensor_name(config, &tensor, weight.sources[t].tensor);
    weight.sources[t].rows = vector ? 1 : (uint32_t)tensor.shape[0];
    weight.rows += vector ? 0 : whole_tiles(tensor.shape[0]);
    weight.cols = (uint32_t)tensor.shape[vector ? 0 : 1];
  }
  return mk_graph_add_weight(graph, &weight, out);
}

uint64_t mk_family_parameters(const mk_config *config) {
  const mk_family *family = mk_family_of(config);
  uint64_t parameters = 0;
  for (uint32_t w = 0; w < family->weight_count; w++) {
    const mk_family_weight *weight = &family->weights[w];
    for (uint32_t t = 0; t < tensors_of(config, weight); t++) {
      parameters += size_value(config, weight->tensors[t].rows) * size_value(config, weight->tensors[t].cols) *
                    (weight->of_layer ? config->layers : 1);
    }
  }
  return parameters;
}
