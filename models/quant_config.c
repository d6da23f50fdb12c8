/* quantization_config of config.json. See quant.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "models/config_internal.h"
#include "models/family.h"

enum { MATCH_LIMIT = 100000, MOST_PATTERNS = 4096, PATTERN_SIZE = 1024 };

static mk_status refuse(const char *key, const json_t *value, const char *only) {
  char shown[MK_JSON_SHOWN];
  return mk_error(MK_ERR_FILE, "quantization_config.%s: %s is not supported; %s", key,
                  value == NULL ? "none" : mk_json_show(value, shown), only);
}

static bool says(const json_t *object, const char *key, const char *text) {
  const char *value = json_string_value(mk_json_get(object, key));
  return value != NULL && strcmp(value, text) == 0;
}

/* Null, false, and an empty list or object ask for nothing. */
static bool is_nothing(const json_t *value) {
  return value == NULL || json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
         (json_is_object(value) && json_object_size(value) == 0);
}

static mk_status take_number(const json_t *object, const char *key, json_int_t otherwise, json_int_t *out) {
  const json_t *value = mk_json_get(object, key);
  *out = otherwise;
  if (value != NULL && !json_is_integer(value)) {
    return refuse(key, value, "it must be a whole number");
  }
  *out = value == NULL ? otherwise : json_integer_value(value);
  return MK_OK;
}

static mk_status take_flag(const json_t *object, const char *key, bool otherwise, bool *out) {
  const json_t *value = mk_json_get(object, key);
  *out = value == NULL ? otherwise : json_is_true(value);
  return value == NULL || json_is_boolean(value) ? MK_OK : refuse(key, value, "it must be true or false");
}

/* Groups are divisors or multiples of a strip of packed weights; -1, as 0: one to a row. */
static mk_status take_group(const json_t *object, json_int_t otherwise, mk_quant *quant) {
  json_int_t group;
  MK_TRY(take_number(object, "group_size", otherwise, &group));
  if (group != -1 && group != 0 && group != 32 && group != 64 && (group < 0 || group % 128 != 0 || group > 1 << 20)) {
    return refuse("group_size", mk_json_get(object, "group_size"), "groups of 32, 64, 128 or a multiple, or -1 are");
  }
  quant->group = group < 0 ? 0 : (uint32_t)group;
  return MK_OK;
}

static mk_status take_block(const char *key, const json_t *value, mk_quant *quant) {
  const json_t *rows = json_array_get(value, 0), *cols = json_array_get(value, 1);
  if (json_array_size(value) != 2 || !json_is_integer(rows) || !json_is_integer(cols) || json_integer_value(rows) < 1 ||
      json_integer_value(rows) > MK_MAX_WIDTH || json_integer_value(cols) < 1) {
    return refuse(key, value, "it must be a list of rows and columns, such as [128, 128]");
  }
  const json_int_t group = json_integer_value(cols);
  if (group != 32 && group != 64 && (group % 128 != 0 || group > 1 << 20)) {
    return refuse(key, value, "blocks of 32, 64, 128 columns or a multiple are");
  }
  quant->layout = MK_QUANT_BLOCKS;
  quant->block = (uint32_t)json_integer_value(rows);
  quant->group = (uint32_t)group;
  return MK_OK;
}

/* What compressed-tensors says of the weights of a group of modules. */
static mk_status take_scheme(const json_t *root, const json_t *weights, mk_quant *quant) {
  json_int_t bits;
  bool symmetric;
  const bool is_float = says(weights, "type", "float"), packed = says(root, "format", "pack-quantized");
  const json_t *strategy = mk_json_get(weights, "strategy"), *order = mk_json_get(weights, "actorder");
  MK_TRY(take_number(weights, "num_bits", 8, &bits));
  MK_TRY(take_flag(weights, "symmetric", true, &symmetric));
  if (is_float != says(root, "format", "float-quantized") && !says(root, "format", "naive-quantized")) {
    return refuse("config_groups.weights.type", mk_json_get(weights, "type"), "it must be what format says");
  }
  if (bits != (packed ? 4 : 8)) {
    return refuse("config_groups.weights.num_bits", mk_json_get(weights, "num_bits"),
                  "8 bits of float-quantized and int-quantized and 4 of pack-quantized are");
  }
  if (!symmetric && !packed) {
    return refuse("config_groups.weights.symmetric", mk_json_get(weights, "symmetric"), "only true is with 8 bits");
  }
  quant->codes = packed ? MK_CODES_INT4 : is_float ? MK_CODES_E4M3 : MK_CODES_INT8;
  quant->layout = packed ? MK_QUANT_PACKED : MK_QUANT_PLAIN;
  quant->zeros = !symmetric;
  if (order != NULL && !json_is_false(order)) {
    const bool grouped = says(weights, "actorder", "group") || says(weights, "actorder", "dynamic");
    if (!grouped && !says(weights, "actorder", "weight") && !says(weights, "actorder", "static")) {
      return refuse("config_groups.weights.actorder", order, "\"group\" and \"weight\" are");
    }
    quant->may_order = grouped && packed;
  }
  const char *name = json_string_value(strategy);
  if (name != NULL && strcmp(name, "group") == 0 && packed) {
    return take_group(weights, 128, quant);
  }
  if (name != NULL && strcmp(name, "block") == 0 && is_float) {
    return take_block("config_groups.weights.block_structure", mk_json_get(weights, "block_structure"), quant);
  }
  quant->by_tensor = name != NULL && strcmp(name, "tensor") == 0 && !packed;
  return name != NULL && (quant->by_tensor || strcmp(name, "channel") == 0)
             ? MK_OK
             : refuse(
                   "config_groups.weights.strategy", strategy,
                   "\"tensor\" and \"channel\" are with 8 bits, \"block\" with fp8, \"group\" and \"channel\" with 4");
}

static mk_status take_compressed(const json_t *root, mk_quant *quant) {
  static const char *const nothing[] = {"sparsity_config", "transform_config"};
  const json_t *groups = mk_json_get(root, "config_groups"), *format = mk_json_get(root, "format");
  if (!says(root, "format", "float-quantized") && !says(root, "format", "int-quantized") &&
      !says(root, "format", "naive-quantized") && !says(root, "format", "pack-quantized")) {
    return refuse("format", format, "\"float-quantized\", \"int-quantized\" and \"pack-quantized\" are");
  }
  /* Many files of 2024 with codes in them say frozen; where weights are stored instead, their dtype is refused. */
  if (mk_json_get(root, "quantization_status") != NULL && !says(root, "quantization_status", "compressed") &&
      !says(root, "quantization_status", "frozen")) {
    return refuse("quantization_status", mk_json_get(root, "quantization_status"), "\"compressed\" and \"frozen\" are");
  }
  for (size_t i = 0; i < sizeof nothing / sizeof nothing[0]; i++) {
    const json_t *value = mk_json_get(root, nothing[i]);
    if (!is_nothing(value) && !says(value, "format", "dense")) {
      return refuse(nothing[i], value, "it must be left out");
    }
  }
  const json_t *first = NULL;
  const char *key;
  const json_t *group;
  json_object_foreach((json_t *)(uintptr_t)groups, key, group) {
    const json_t *weights = mk_json_get(group, "weights"), *own = mk_json_get(group, "format");
    if (!json_is_object(weights) || (own != NULL && !json_equal(own, format))) {
      return refuse("config_groups", groups, "every group must quantise weights, in one format");
    }
    if (first != NULL && !json_equal(first, weights)) {
      return refuse("config_groups", groups, "groups must have the same weights");
    }
    first = weights;
  }
  return first == NULL ? refuse("config_groups", groups, "it must have a group of weights")
                       : take_scheme(root, first, quant);
}

static mk_status take_fp8(const json_t *root, mk_quant *quant) {
  const json_t *format = mk_json_get(root, "fmt"), *scales = mk_json_get(root, "scale_fmt");
  if (format != NULL && !says(root, "fmt", "e4m3")) {
    return refuse("fmt", format, "only \"e4m3\" is");
  }
  if (scales != NULL && !says(root, "scale_fmt", "float")) {
    return refuse("scale_fmt", scales, "scales must be floating-point numbers");
  }
  quant->codes = MK_CODES_E4M3;
  quant->inverse = true;
  return take_block("weight_block_size", mk_json_get(root, "weight_block_size"), quant);
}

static mk_status need_four_bits(const json_t *root) {
  json_int_t bits;
  MK_TRY(take_number(root, "bits", 4, &bits));
  return bits == 4 ? MK_OK : refuse("bits", mk_json_get(root, "bits"), "only 4 is");
}

static mk_status take_awq(const json_t *root, mk_quant *quant) {
  bool zeros;
  const char *version = json_string_value(mk_json_get(root, "version"));
  MK_TRY(need_four_bits(root));
  MK_TRY(take_flag(root, "zero_point", true, &zeros));
  if (mk_json_get(root, "version") != NULL && (version == NULL || strcasecmp(version, "gemm") != 0)) {
    return refuse("version", mk_json_get(root, "version"), "only \"gemm\" is");
  }
  if (!zeros) {
    return refuse("zero_point", mk_json_get(root, "zero_point"), "only true is");
  }
  quant->codes = MK_CODES_INT4;
  quant->layout = MK_QUANT_AWQ;
  quant->zeros = true;
  return take_group(root, 128, quant);
}

static mk_status take_gptq(const json_t *root, mk_quant *quant) {
  bool symmetric, ordered;
  const bool second = says(root, "checkpoint_format", "gptq_v2");
  MK_TRY(need_four_bits(root));
  MK_TRY(take_flag(root, "sym", true, &symmetric));
  MK_TRY(take_flag(root, "desc_act", false, &ordered));
  if (mk_json_get(root, "checkpoint_format") != NULL && !second && !says(root, "checkpoint_format", "gptq")) {
    return refuse("checkpoint_format", mk_json_get(root, "checkpoint_format"), "\"gptq\" and \"gptq_v2\" are");
  }
  static const char *const nothing[] = {"dynamic", "is_marlin_format", "adapter"};
  for (size_t i = 0; i < sizeof nothing / sizeof nothing[0]; i++) {
    const json_t *value = mk_json_get(root, nothing[i]);
    if (!is_nothing(value)) {
      return refuse(nothing[i], value, "it must be left out");
    }
  }
  if (mk_json_get(root, "pack_dtype") != NULL && !says(root, "pack_dtype", "int32")) {
    return refuse("pack_dtype", mk_json_get(root, "pack_dtype"), "only \"int32\" is");
  }
  quant->codes = MK_CODES_INT4;
  quant->layout = MK_QUANT_GPTQ;
  quant->zeros = !symmetric;
  quant->less_one = !second;
  quant->may_order = true;
  return take_group(root, 128, quant);
}

/* How a method's patterns name modules. */
typedef enum matching {
  MATCH_COMPRESSED, /* the whole name, the class "Linear", or a regular expression after "re:" */
  MATCH_CONVERT,    /* transformers' should_convert_module: an expression up to a point or the end, or the name's end */
  MATCH_ENDS,       /* the name's end, after a point */
} matching;

static mk_status match_expression(const char *pattern, const char *name, bool *matches) {
  int code;
  PCRE2_SIZE offset;
  pcre2_code *compiled =
      pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED | PCRE2_UTF, &code, &offset, NULL);
  if (compiled == NULL) {
    return mk_error(MK_ERR_FILE,
                    "quantization_config: the expression \"%.200s\" is not understood from character %zu on", pattern,
                    (size_t)offset);
  }
  pcre2_match_data *data = pcre2_match_data_create(1, NULL);
  pcre2_match_context *context = pcre2_match_context_create(NULL);
  int found = PCRE2_ERROR_NOMEMORY;
  if (data != NULL && context != NULL) {
    pcre2_set_match_limit(context, MATCH_LIMIT);
    found = pcre2_match(compiled, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, 0, data, context);
  }
  pcre2_match_context_free(context);
  pcre2_match_data_free(data);
  pcre2_code_free(compiled);
  *matches = found >= 0;
  return found >= 0 || found == PCRE2_ERROR_NOMATCH
             ? MK_OK
             : mk_error(MK_ERR_FILE, "quantization_config: the expression \"%.200s\" takes too long, or is too deep",
                        pattern);
}

static bool ends_with(const char *name, const char *end) {
  const size_t length = strlen(name), tail = strlen(end);
  return length >= tail && strcmp(name + length - tail, end) == 0;
}

static mk_status matches(matching how, const char *pattern, const char *name, bool *out) {
  char expression[PATTERN_SIZE + 32];
  if (strlen(pattern) >= PATTERN_SIZE) {
    return mk_error(MK_ERR_FILE, "quantization_config: the pattern \"%.60s...\" has %zu bytes; at most %d are read",
                    pattern, strlen(pattern), PATTERN_SIZE - 1);
  }
  switch (how) {
    case MATCH_COMPRESSED:
      *out = strcmp(pattern, name) == 0 || strcmp(pattern, "Linear") == 0;
      return strncmp(pattern, "re:", 3) == 0 ? match_expression(pattern + 3, name, out) : MK_OK;
    case MATCH_CONVERT:
      *out = ends_with(name, pattern);
      snprintf(expression, sizeof expression, "(?:%s)(?:(?<=\\.)|(?=\\.|$))", pattern);
      return *out ? MK_OK : match_expression(expression, name, out);
    case MATCH_ENDS:
      *out =
          ends_with(name, pattern) && strlen(name) > strlen(pattern) && name[strlen(name) - strlen(pattern) - 1] == '.';
      return MK_OK;
  }
  return MK_OK;
}

static mk_status match_any(matching how, const char *key, const json_t *list, const char *name, bool *out) {
  *out = false;
  if (list != NULL && (!json_is_array(list) || json_array_size(list) > MOST_PATTERNS)) {
    return refuse(key, list, "it must be a list of names");
  }
  for (size_t i = 0; i < json_array_size(list) && !*out; i++) {
    const json_t *item = json_array_get(list, i);
    if (json_is_array(item)) {
      MK_TRY(match_any(how, key, item, name, out));
      continue;
    }
    const char *pattern = json_string_value(item);
    if (pattern == NULL) {
      return refuse(key, list, "it must be a list of names");
    }
    MK_TRY(matches(how, pattern, name, out));
  }
  return MK_OK;
}

/* Whether a module is quantised. */
static mk_status judge(const json_t *root, const mk_quant *quant, const char *name, bool is_head, bool *out) {
  bool spared = false, meant = false;
  *out = false;
  if (quant->layout == MK_QUANT_GPTQ) {
    const json_t *within = mk_json_get(root, "modules_in_block_to_quantize");
    MK_TRY(is_head ? take_flag(root, "lm_head", false, out)
                   : match_any(MATCH_ENDS, "modules_in_block_to_quantize", within, name, out));
    *out = *out || (!is_head && within == NULL);
    return MK_OK;
  }
  if (says(root, "quant_method", "compressed-tensors")) {
    const char *key;
    const json_t *group;
    json_object_foreach((json_t *)(uintptr_t)mk_json_get(root, "config_groups"), key, group) {
      bool more;
      MK_TRY(match_any(MATCH_COMPRESSED, "config_groups.targets", mk_json_get(group, "targets"), name, &more));
      meant = meant || more;
    }
    MK_TRY(match_any(MATCH_COMPRESSED, "ignore", mk_json_get(root, "ignore"), name, &spared));
    *out = meant && !spared;
    return MK_OK;
  }
  MK_TRY(
      match_any(MATCH_CONVERT, "modules_to_not_convert", mk_json_get(root, "modules_to_not_convert"), name, &spared));
  *out = !is_head && !spared;
  return MK_OK;
}

static mk_status take_modules(const json_t *root, mk_config *config) {
  mk_quant *quant = &config->quant;
  bool any = false;
  for (uint64_t i = 0, count = mk_family_tensor_count(config); i < count; i++) {
    mk_wanted_tensor want;
    char name[MK_TENSOR_NAME];
    bool quantised;
    mk_family_tensor_at(config, i, &want);
    if (!mk_family_is_module(&want)) {
      continue;
    }
    mk_family_tensor_name(config, &want, name);
    name[strlen(name) - strlen(".weight")] = '\0';
    MK_TRY(judge(root, quant, name, !want.weight->of_layer, &quantised));
    any = any || quantised;
    if (!want.weight->of_layer) {
      quant->head = quantised;
    } else if (quantised) {
      quant->modules[want.layer] |= (uint16_t)(1U << mk_family_module(config, &want));
    }
  }
  for (uint32_t layer = 0; layer < config->layers && quant->may_order; layer++) {
    quant->ordered[layer] = quant->modules[layer];
  }
  return any ? MK_OK
             : mk_error(MK_ERR_FILE, "quantization_config: names no matrix of the model that is quantised; remove it");
}

/* The dtype that scales probably have, which is the model's as a rule; the checkpoint decides. */
static mk_tensor_dtype expect_scale(const json_t *root, const mk_quant *quant) {
  const json_t *dtype =
      mk_json_get(root, "dtype") != NULL ? mk_json_get(root, "dtype") : mk_json_get(root, "torch_dtype");
  const char *name = json_string_value(dtype);
  return quant->inverse || name == NULL  ? MK_TENSOR_F32
         : strcmp(name, "float16") == 0  ? MK_TENSOR_F16
         : strcmp(name, "bfloat16") == 0 ? MK_TENSOR_BF16
                                         : MK_TENSOR_F32;
}

mk_status mk_config_quant(const json_t *root, mk_config *config) {
  static const struct {
    const char *method;
    mk_status (*take)(const json_t *root, mk_quant *quant);
  } methods[] = {{"compressed-tensors", take_compressed}, {"fp8", take_fp8}, {"awq", take_awq}, {"gptq", take_gptq}};
  const json_t *quantization = mk_json_get(root, "quantization_config");
  config->quant = (mk_quant){0};
  if (quantization == NULL) {
    return mk_json_get(root, "compression_config") == NULL
               ? MK_OK
               : mk_error(MK_ERR_FILE, "compression_config: is not supported; only quantization_config is");
  }
  if (!json_is_object(quantization)) {
    return mk_error(MK_ERR_FILE, "quantization_config: must be an object");
  }
  for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
    if (says(quantization, "quant_method", methods[i].method)) {
      MK_TRY(methods[i].take(quantization, &config->quant));
      config->quant.scale = (uint8_t)expect_scale(root, &config->quant);
      return take_modules(quantization, config);
    }
  }
  return refuse("quant_method", mk_json_get(quantization, "quant_method"),
                "\"compressed-tensors\", \"fp8\", \"awq\" and \"gptq\" are; or use a bf16, fp16 or fp32 model");
}
