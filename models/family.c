/* See family.h. */
#include "models/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/llama.h"

const mk_family *mk_family_of(const mk_config *config) {
  (void)config; /* mk_config_parse accepts families that share a table */
  return &mk_llama;
}

/* Where some dims of a head are not rotated, the factor on sine and cosine goes to the rows of the others: attention,
 * which has it for whole heads, cannot. */
uint32_t mk_family_qkv_extras(const mk_config *config) {
  const bool stretched = config->rotary != 0 && config->rope_attention != 0 && config->rope_attention != 1;
  return (config->qkv_bias ? MK_VECTOR_BIASES : 0U) |
         (config->qk_norm != MK_QK_PLAIN || stretched ? MK_VECTOR_GAINS : 0U);
}

static bool has(const mk_config *config, mk_having when) {
  switch (when) {
    case MK_HAVE_ALWAYS:
      return true;
    case MK_HAVE_UNTIED:
      return !config->tied;
    case MK_HAVE_NORM_BEFORE:
      return !config->norm_after;
    case MK_HAVE_NORM_AFTER:
      return config->norm_after || config->norm_around;
    case MK_HAVE_NORM_ONE_SIDE:
      return !config->norm_around;
    case MK_HAVE_NORM_AROUND:
      return config->norm_around;
    case MK_HAVE_APART:
      return !config->fused;
    case MK_HAVE_FUSED:
      return config->fused;
    case MK_HAVE_PLAIN_QKV:
      return mk_family_qkv_extras(config) == 0;
    case MK_HAVE_QKV_VECTOR:
      return mk_family_qkv_extras(config) != 0;
    case MK_HAVE_QKV_BIAS:
      return config->qkv_bias;
    case MK_HAVE_O_BIAS:
      return config->o_bias;
    case MK_HAVE_O_PLAIN_BIAS:
      return config->o_bias && !has(config, MK_HAVE_NORM_AFTER);
    case MK_HAVE_MLP_BIAS:
      return config->mlp_bias;
    case MK_HAVE_NORM_HEAD:
      return config->qk_norm == MK_QK_NORM_HEAD;
    case MK_HAVE_NORM_ALL:
      return config->qk_norm == MK_QK_NORM_ALL;
  }
  return false;
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
    case MK_SIZE_HEAD:
      return config->head_dim;
    case MK_SIZE_QKV:
      return ((uint64_t)config->heads + 2 * (uint64_t)config->kv_heads) * config->head_dim;
    case MK_SIZE_GLU:
      return 2 * (uint64_t)config->intermediate;
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
  uint32_t count = 0;
  for (uint32_t t = 0; has(config, weight->when) && t < weight->tensor_count; t++) {
    count += has(config, weight->tensors[t].when);
  }
  return count;
}

/* Tensor `index` < tensors_of(config, weight) of a row. */
static const mk_family_tensor *tensor_of(const mk_config *config, const mk_family_weight *weight, uint64_t index) {
  uint32_t t = 0;
  for (;; t++) {
    if (has(config, weight->tensors[t].when) && index-- == 0) {
      return &weight->tensors[t];
    }
  }
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
      describe(config, weight, tensor_of(config, weight, index), layer, out);
      return;
    }
    index -= tensors_of(config, weight);
  }
}

enum { PLAIN_NAME = 72 }; /* bytes of the longest plain name, and its end */
static const char within[] = "language_model.", model[] = "model.", inner[] = "model.language_model.";

/* Where the name goes on after a beginning; NULL: it has another one. */
static const char *after(const char *name, const char *beginning) {
  const size_t length = strlen(beginning);
  return strncmp(name, beginning, length) == 0 ? name + length : NULL;
}

void mk_family_stored_name(const mk_config *config, const char *plain, char name[MK_TENSOR_NAME]) {
  const char *rest = config->naming == MK_NAMES_INNER ? after(plain, model) : NULL;
  snprintf(name, MK_TENSOR_NAME, "%s%s",
           config->naming == MK_NAMES_WITHIN ? within
           : rest != NULL                    ? inner
                                             : "",
           rest != NULL ? rest : plain);
}

/* The other way around; false: no tensor of the text model has this name. */
static bool plain_name(const mk_config *config, const char *name, char plain[MK_TENSOR_NAME]) {
  const bool is_inner = config->naming == MK_NAMES_INNER;
  const char *rest = config->naming == MK_NAMES_PLAIN ? name : after(name, is_inner ? inner : within);
  if (rest == NULL && (!is_inner || after(name, model) != NULL)) {
    return false;
  }
  const int length =
      snprintf(plain, MK_TENSOR_NAME, "%s%s", is_inner && rest != NULL ? model : "", rest != NULL ? rest : name);
  return length < MK_TENSOR_NAME;
}

static bool is_beside(const mk_config *config, const char *name) {
  const char *rest = config->naming == MK_NAMES_INNER ? after(name, model) : NULL;
  name = rest != NULL ? rest : name;
  return config->naming != MK_NAMES_PLAIN &&
         (after(name, "vision_tower.") != NULL || after(name, "multi_modal_projector.") != NULL);
}

void mk_family_tensor_name(const mk_config *config, const mk_wanted_tensor *tensor, char name[MK_TENSOR_NAME]) {
  char plain[PLAIN_NAME];
  if (tensor->weight->of_layer) {
    snprintf(plain, PLAIN_NAME, "%s%u.%s", mk_family_of(config)->layer_prefix, tensor->layer, tensor->tensor->name);
  } else {
    snprintf(plain, PLAIN_NAME, "%s", tensor->tensor->name);
  }
  mk_family_stored_name(config, plain, name);
}

bool mk_family_is_module(const mk_wanted_tensor *tensor) {
  return tensor->rank == 2 && (tensor->weight->of_layer || tensor->weight->when == MK_HAVE_UNTIED);
}

uint32_t mk_family_module(const mk_config *config, const mk_wanted_tensor *tensor) {
  const mk_family *family = mk_family_of(config);
  uint32_t number = 0;
  for (uint32_t w = 0; w < family->weight_count; w++) {
    for (uint32_t t = 0; family->weights[w].of_layer && t < family->weights[w].tensor_count; t++) {
      if (&family->weights[w].tensors[t] == tensor->tensor) {
        return number;
      }
      number += family->weights[w].tensors[t].cols != MK_SIZE_NONE;
    }
  }
  return number;
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
  char plain[MK_TENSOR_NAME];
  *out = (mk_wanted_tensor){.layer = 0};
  if (is_beside(config, name) || !plain_name(config, name, plain)) {
    return is_beside(config, name) ? MK_TENSOR_BESIDE : MK_TENSOR_UNKNOWN;
  }
  name = plain;
  const bool of_layer = split_layer_name(family, name, &layer, &name);
  out->layer = layer;
  if (of_layer && layer >= config->layers) {
    return MK_TENSOR_ASIDE;
  }
  for (uint32_t w = 0; w < family->weight_count; w++) {
    const mk_family_weight *weight = &family->weights[w];
    for (uint32_t t = 0; weight->of_layer == of_layer && t < weight->tensor_count; t++) {
      const mk_having when = weight->when == MK_HAVE_UNTIED ? MK_HAVE_ALWAYS : weight->when;
      if (has(config, when) && has(config, weight->tensors[t].when) && strcmp(name, weight->tensors[t].name) == 0) {
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

static void add_source(mk_weight *weight, const char *tensor, uint64_t rows, uint64_t first, bool quantised) {
  mk_weight_source *source = &weight->sources[weight->source_count++];
  snprintf(source->tensor, sizeof source->tensor, "%s", tensor);
  source->rows = (uint32_t)rows;
  source->first = (uint32_t)first;
  source->quantised = quantised;
}

/* The sources of a matrix that a tensor has: several where it is fused of them. */
static void add_matrix(const mk_config *config, const mk_wanted_tensor *tensor, const char *name, mk_weight *weight) {
  const uint64_t query = size_value(config, MK_SIZE_QUERY), kv = size_value(config, MK_SIZE_KV);
  const bool quantised = mk_quant_has(config, tensor);
  if (tensor->tensor->rows == MK_SIZE_QKV) {
    add_source(weight, name, query, 0, quantised);
    add_source(weight, name, kv, query, quantised);
    add_source(weight, name, kv, query + kv, quantised);
  } else if (tensor->tensor->rows == MK_SIZE_GLU) {
    add_source(weight, name, config->intermediate, 0, quantised);
    add_source(weight, name, config->intermediate, config->intermediate, quantised);
  } else {
    add_source(weight, name, tensor->shape[0], 0, quantised);
  }
  weight->cols = (uint32_t)tensor->shape[1];
}

/* As the checkpoint has it where all of its tensors are quantised in plain groups; else it is bf16. */
static mk_form form_of(const mk_config *config, const mk_family_weight *row, uint32_t layer) {
  const mk_quant *quant = &config->quant;
  for (uint32_t t = 0, count = tensors_of(config, row); t < count; t++) {
    mk_wanted_tensor tensor;
    describe(config, row, tensor_of(config, row, t), layer, &tensor);
    if (!mk_quant_has(config, &tensor) || mk_quant_is_ordered(config, &tensor)) {
      return (mk_form){.codes = MK_CODES_NONE};
    }
  }
  return (mk_form){.codes = (mk_codes)quant->codes,
                   .scale = (mk_tensor_dtype)quant->scale,
                   .scale_cols = mk_quant_scale_cols(quant),
                   .zeros = quant->zeros};
}

static mk_weight start_weight(const mk_config *config, const mk_family_weight *row, uint32_t layer) {
  mk_weight weight = {.pack = row->pack, .rows = mk_pack_is_vector(row->pack) ? 1 : 0};
  const uint32_t rows = (uint32_t)size_value(config, MK_SIZE_QKV);
  if (row->of_layer) {
    snprintf(weight.name, sizeof weight.name, "layers.%u.%s", layer, row->name);
  } else {
    snprintf(weight.name, sizeof weight.name, "%s", row->name);
  }
  if (row->pack == MK_PACK_ROPE || row->pack == MK_PACK_QKV_VECTOR) {
    weight.rotary = config->rotary;
  }
  if (mk_pack_has_frequencies(row->pack)) {
    weight.cols = config->head_dim / 2;
  }
  if (row->pack == MK_PACK_QKV_VECTOR) {
    weight.extras = mk_family_qkv_extras(config);
    weight.cols +=
        rows * (((weight.extras & MK_VECTOR_BIASES) != 0 ? 1U : 0U) + ((weight.extras & MK_VECTOR_GAINS) != 0));
    weight.extras |= mk_config_is_local(config, layer) ? MK_VECTOR_LOCAL : 0U;
  }
  return weight;
}

mk_status mk_family_add_weight(mk_graph *graph, uint32_t index, uint32_t layer, int *out) {
  const mk_config *config = &graph->config;
  const mk_family_weight *row = &mk_family_of(config)->weights[index];
  const uint32_t count = tensors_of(config, row);
  *out = MK_NONE;
  if (!has(config, row->when) || (count == 0 && row->tensor_count != 0 && row->pack != MK_PACK_QKV_VECTOR)) {
    return MK_OK;
  }
  mk_weight weight = start_weight(config, row, layer);
  weight.pack = row->pack == MK_PACK_GLU_VECTOR && count == 1 ? MK_PACK_VECTOR : row->pack;
  for (uint32_t t = 0; t < count; t++) {
    mk_wanted_tensor tensor;
    char name[MK_TENSOR_NAME];
    describe(config, row, tensor_of(config, row, t), layer, &tensor);
    mk_family_tensor_name(config, &tensor, name);
    if (!mk_pack_is_vector(row->pack)) {
      add_matrix(config, &tensor, name, &weight);
      continue;
    }
    add_source(&weight, name, weight.pack == MK_PACK_VECTOR && count == 1 ? 1 : tensor.shape[0], 0, false);
    const bool in_rows = row->pack == MK_PACK_GLU_VECTOR && t > 0; /* and its padding */
    weight.cols += in_rows                           ? whole_tiles(tensor.shape[0])
                   : row->pack == MK_PACK_QKV_VECTOR ? 0
                                                     : (uint32_t)tensor.shape[0];
  }
  if (!mk_pack_is_vector(row->pack)) {
    weight.form = form_of(config, row, layer);
  }
  for (uint32_t s = 0; !mk_pack_is_vector(row->pack) && s < weight.source_count; s++) {
    weight.rows += whole_tiles(weight.sources[s].rows);
  }
  return mk_graph_add_weight(graph, &weight, out);
}

uint64_t mk_family_parameters(const mk_config *config) {
  const mk_family *family = mk_family_of(config);
  uint64_t parameters = 0;
  for (uint32_t w = 0; w < family->weight_count; w++) {
    const mk_family_weight *weight = &family->weights[w];
    for (uint32_t t = 0, count = tensors_of(config, weight); t < count; t++) {
      const mk_family_tensor *tensor = tensor_of(config, weight, t);
      parameters +=
          size_value(config, tensor->rows) * size_value(config, tensor->cols) * (weight->of_layer ? config->layers : 1);
    }
  }
  return parameters;
}
