/* See quant.h. */
#include "models/quant.h"

#include <stdio.h>
#include <string.h>

#include "models/checkpoint.h"
#include "models/family.h"

#define BIT(dtype) (1U << (dtype))
enum { PACKED = 8 /* codes of four bits in a word */, FLOATS = 7 /* bits of BF16, F16 and F32 */ };

static const struct {
  const char *name;
  uint32_t bytes;
} dtypes[MK_TENSOR_DTYPES] = {
    [MK_TENSOR_BF16] = {"BF16", 2},    [MK_TENSOR_F16] = {"F16", 2}, [MK_TENSOR_F32] = {"F32", 4},
    [MK_TENSOR_E4M3] = {"F8_E4M3", 1}, [MK_TENSOR_I8] = {"I8", 1},   [MK_TENSOR_I32] = {"I32", 4},
    [MK_TENSOR_I64] = {"I64", 8}};

const char *mk_tensor_dtype_name(mk_tensor_dtype dtype) { return dtypes[dtype].name; }
uint64_t mk_tensor_dtype_bytes(mk_tensor_dtype dtype) { return dtypes[dtype].bytes; }

const char *mk_codes_name(mk_codes codes) {
  static const char *const names[] = {"bf16", "fp8 (e4m3)", "int8", "int4"};
  return names[codes];
}

static bool bit_of(const mk_config *config, const mk_wanted_tensor *tensor, const uint16_t *bits) {
  return (bits[tensor->layer] >> mk_family_module(config, tensor) & 1) != 0;
}

bool mk_quant_has(const mk_config *config, const mk_wanted_tensor *tensor) {
  const mk_quant *quant = &config->quant;
  if (quant->layout == MK_QUANT_NONE || !mk_family_is_module(tensor)) {
    return false;
  }
  return tensor->weight->of_layer ? bit_of(config, tensor, quant->modules) : quant->head;
}

bool mk_quant_is_ordered(const mk_config *config, const mk_wanted_tensor *tensor) {
  return mk_quant_has(config, tensor) && tensor->weight->of_layer && bit_of(config, tensor, config->quant.ordered);
}

static uint64_t divide_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit; }

uint64_t mk_quant_groups(const mk_quant *quant, uint64_t cols) {
  return quant->group == 0 ? 1 : divide_up(cols, quant->group);
}

static mk_quant_part part_of(const char *name, uint32_t part_dtypes, uint64_t rows, uint64_t cols) {
  return (mk_quant_part){.name = name, .dtypes = part_dtypes, .needed = true, .shape = {rows, cols}};
}

void mk_quant_parts(const mk_config *config, const mk_wanted_tensor *tensor, mk_quant_part parts[MK_QUANT_PARTS]) {
  const mk_quant *quant = &config->quant;
  const uint64_t rows = tensor->shape[0], cols = tensor->shape[1], groups = mk_quant_groups(quant, cols);
  const uint32_t eight = quant->codes == MK_CODES_INT8 ? BIT(MK_TENSOR_I8) : BIT(MK_TENSOR_E4M3);
  const uint32_t words = BIT(MK_TENSOR_I32);
  memset(parts, 0, MK_QUANT_PARTS * sizeof *parts);
  mk_quant_part *ignored = &parts[MK_PART_IGNORED];
  switch ((mk_quant_layout)quant->layout) {
    case MK_QUANT_NONE:
      return;
    case MK_QUANT_PLAIN:
      parts[MK_PART_CODES] = part_of("weight", eight, rows, cols);
      parts[MK_PART_SCALES] = part_of("weight_scale", FLOATS, quant->by_tensor ? 1 : rows, 1);
      break;
    case MK_QUANT_BLOCKS:
      parts[MK_PART_CODES] = part_of("weight", eight, rows, cols);
      parts[MK_PART_SCALES] =
          part_of(quant->inverse ? "weight_scale_inv" : "weight_scale", FLOATS, divide_up(rows, quant->block), groups);
      break;
    case MK_QUANT_PACKED:
      parts[MK_PART_CODES] = part_of("weight_packed", words, rows, divide_up(cols, PACKED));
      parts[MK_PART_SCALES] = part_of("weight_scale", FLOATS, rows, groups);
      parts[MK_PART_SHAPE] = part_of("weight_shape", words | BIT(MK_TENSOR_I64), 2, 1);
      if (quant->zeros) {
        parts[MK_PART_ZEROS] = part_of("weight_zero_point", words, divide_up(rows, PACKED), groups);
      }
      if (quant->may_order) {
        parts[MK_PART_ORDER] = part_of("weight_g_idx", words, cols, 1);
        parts[MK_PART_ORDER].needed = false;
      }
      break;
    case MK_QUANT_AWQ:
      parts[MK_PART_CODES] = part_of("qweight", words, cols, divide_up(rows, PACKED));
      parts[MK_PART_SCALES] = part_of("scales", FLOATS, groups, rows);
      parts[MK_PART_ZEROS] = part_of("qzeros", words, groups, divide_up(rows, PACKED));
      break;
    case MK_QUANT_GPTQ:
      parts[MK_PART_CODES] = part_of("qweight", words, divide_up(cols, PACKED), rows);
      parts[MK_PART_SCALES] = part_of("scales", FLOATS, groups, rows);
      parts[MK_PART_ZEROS] = part_of("qzeros", words, groups, divide_up(rows, PACKED)); /* symmetric ones, too */
      parts[MK_PART_ORDER] = part_of("g_idx", words, cols, 1);
      parts[MK_PART_ORDER].needed = false;
      *ignored = (mk_quant_part){.name = "bias"}; /* zeros, which some exporters write */
      return;
  }
  if (quant->layout != MK_QUANT_AWQ) { /* scales and zeros of inputs and outputs, which stay as they are here */
    static const char *const others[] = {"input_scale", "input_zero_point", "output_scale", "input_global_scale"};
    for (uint32_t i = 0; i < sizeof others / sizeof others[0]; i++) {
      ignored[i] = (mk_quant_part){.name = others[i]};
    }
  }
}

/* The name of a part, of the tensor "....weight". */
static void name_part(const char *name, const mk_quant_part *part, char out[MK_TENSOR_NAME + 32]) {
  snprintf(out, MK_TENSOR_NAME + 32, "%.*s%s", (int)(strlen(name) - strlen("weight")), name, part->name);
}

const mk_tensor *mk_quant_find(const mk_checkpoint *checkpoint, const char *name, const mk_quant_part *part) {
  char full[MK_TENSOR_NAME + 32];
  if (part->name == NULL) {
    return NULL;
  }
  name_part(name, part, full);
  return mk_checkpoint_find(checkpoint, full);
}

bool mk_quant_owner(const mk_config *config, const char *name, mk_wanted_tensor *tensor, mk_quant_part *part) {
  mk_quant_part parts[MK_QUANT_PARTS];
  char weight[MK_TENSOR_NAME];
  const char *point = strrchr(name, '.');
  if (config->quant.layout == MK_QUANT_NONE || point == NULL ||
      (size_t)(point - name) + sizeof ".weight" > sizeof weight) {
    return false;
  }
  snprintf(weight, sizeof weight, "%.*s.weight", (int)(point - name), name);
  mk_wanted_tensor found;
  if (mk_family_find(config, weight, &found) != MK_TENSOR_WANTED || !mk_quant_has(config, &found)) {
    return false;
  }
  mk_quant_parts(config, &found, parts);
  for (uint32_t i = 0; i < MK_QUANT_PARTS; i++) {
    if (parts[i].name != NULL && strcmp(parts[i].name, point + 1) == 0) {
      mk_wanted_tensor own;
      if (parts[i].dtypes == 0 && mk_family_find(config, name, &own) == MK_TENSOR_WANTED) {
        return false; /* a bias that the family has */
      }
      *tensor = found;
      *part = parts[i];
      return true;
    }
  }
  return false;
}

mk_status mk_quant_check_part(const mk_checkpoint *checkpoint, const mk_tensor *tensor, const mk_quant_part *part) {
  char is[MK_SHAPE_SHOWN], must[MK_SHAPE_SHOWN];
  const char *path = mk_checkpoint_path(checkpoint, tensor);
  if (part->dtypes == 0) {
    return MK_OK;
  }
  if ((part->dtypes & BIT(tensor->dtype)) == 0) {
    const mk_tensor_dtype first = (mk_tensor_dtype)__builtin_ctz(part->dtypes);
    return mk_error(MK_ERR_FILE, "%s: tensor %.200s: dtype is %s; quantization_config asks for %s", path, tensor->name,
                    mk_tensor_dtype_name(tensor->dtype),
                    part->dtypes == FLOATS ? "BF16, F16 or F32" : mk_tensor_dtype_name(first));
  }
  if (tensor->rank > 2 || tensor->shape[0] != part->shape[0] || tensor->shape[1] != part->shape[1]) {
    return mk_error(MK_ERR_FILE, "%s: tensor %.200s: shape is %s, config.json asks for %s", path, tensor->name,
                    mk_shape_show(tensor->rank, tensor->shape, is), mk_shape_show(2, part->shape, must));
  }
  return MK_OK;
}

mk_status mk_quant_check_present(const mk_checkpoint *checkpoint, const mk_config *config,
                                 const mk_wanted_tensor *tensor) {
  mk_quant_part parts[MK_QUANT_PARTS];
  char name[MK_TENSOR_NAME], full[MK_TENSOR_NAME + 32];
  mk_family_tensor_name(config, tensor, name);
  mk_quant_parts(config, tensor, parts);
  const uint64_t rows = tensor->shape[0], cols = tensor->shape[1];
  const mk_quant_layout layout = (mk_quant_layout)config->quant.layout;
  /* Words of eight rows or columns that are not all there have no meaning that all writers share. */
  if ((layout == MK_QUANT_AWQ && rows % PACKED != 0) ||
      (layout == MK_QUANT_GPTQ && (rows % PACKED != 0 || cols % PACKED != 0))) {
    return mk_error(MK_ERR_FILE, "%s: tensor %s: is %llu x %llu; quantised it must have multiples of %d",
                    mk_checkpoint_source(checkpoint), name, (unsigned long long)rows, (unsigned long long)cols, PACKED);
  }
  for (uint32_t i = 0; i < MK_PART_IGNORED; i++) {
    if (parts[i].name != NULL && parts[i].needed && mk_quant_find(checkpoint, name, &parts[i]) == NULL) {
      name_part(name, &parts[i], full);
      return mk_error(MK_ERR_FILE, "%s: tensor %s: is missing; quantization_config asks for it",
                      mk_checkpoint_source(checkpoint), full);
    }
  }
  return MK_OK;
}

/* The list of groups, which is the plain one if column k is in group k / group. */
static mk_status look_at_order(const mk_checkpoint *checkpoint, const mk_tensor *list, const mk_quant *quant,
                               uint64_t cols, bool *plain) {
  int32_t *groups;
  const uint64_t count = mk_quant_groups(quant, cols);
  MK_TRY(mk_alloc((size_t)cols, sizeof *groups, &groups));
  mk_status status = mk_tensor_read_raw(checkpoint, list, 0, cols, groups);
  *plain = true;
  for (uint64_t k = 0; status == MK_OK && k < cols && quant->layout == MK_QUANT_PACKED; k++) {
    if (groups[k] == -1) { /* as compressed-tensors has it: no list was ever made */
      mk_free(groups);
      return MK_OK;
    }
  }
  for (uint64_t k = 0; status == MK_OK && k < cols; k++) {
    if (groups[k] < 0 || (uint64_t)groups[k] >= count) {
      status = mk_error(MK_ERR_FILE, "%s: tensor %.200s: column %llu is in group %d; there are %llu",
                        mk_checkpoint_path(checkpoint, list), list->name, (unsigned long long)k, groups[k],
                        (unsigned long long)count);
    }
    *plain = *plain && (uint64_t)groups[k] == (quant->group == 0 ? 0 : k / quant->group);
  }
  mk_free(groups);
  return status;
}

static mk_status check_stored_shape(const mk_checkpoint *checkpoint, const mk_tensor *shape,
                                    const mk_wanted_tensor *want) {
  int64_t wide[2];
  int32_t narrow[2];
  if (shape->dtype == MK_TENSOR_I64) {
    MK_TRY(mk_tensor_read_raw(checkpoint, shape, 0, 2, wide));
  } else {
    MK_TRY(mk_tensor_read_raw(checkpoint, shape, 0, 2, narrow));
    wide[0] = narrow[0], wide[1] = narrow[1];
  }
  return wide[0] == (int64_t)want->shape[0] && wide[1] == (int64_t)want->shape[1]
             ? MK_OK
             : mk_error(MK_ERR_FILE, "%s: tensor %.200s: says [%lld, %lld], config.json asks for [%llu, %llu]",
                        mk_checkpoint_path(checkpoint, shape), shape->name, (long long)wide[0], (long long)wide[1],
                        (unsigned long long)want->shape[0], (unsigned long long)want->shape[1]);
}

static mk_status settle_module(const mk_checkpoint *checkpoint, mk_config *config, const mk_wanted_tensor *want,
                               uint32_t *scales) {
  mk_quant_part parts[MK_QUANT_PARTS];
  char name[MK_TENSOR_NAME];
  bool plain = true;
  mk_family_tensor_name(config, want, name);
  mk_quant_parts(config, want, parts);
  const mk_tensor *order = mk_quant_find(checkpoint, name, &parts[MK_PART_ORDER]),
                  *shape = mk_quant_find(checkpoint, name, &parts[MK_PART_SHAPE]);
  *scales |= BIT(mk_quant_find(checkpoint, name, &parts[MK_PART_SCALES])->dtype);
  MK_TRY(shape == NULL ? MK_OK : check_stored_shape(checkpoint, shape, want));
  MK_TRY(order == NULL ? MK_OK : look_at_order(checkpoint, order, &config->quant, want->shape[1], &plain));
  if (!want->weight->of_layer) {
    return plain ? MK_OK
                 : mk_error(MK_ERR_FILE, "%s: tensor %.200s: a list of groups of lm_head is not supported",
                            mk_checkpoint_path(checkpoint, order), order->name);
  }
  const uint16_t bit = (uint16_t)(1U << mk_family_module(config, want));
  uint16_t *ordered = &config->quant.ordered[want->layer];
  *ordered = plain ? (uint16_t)(*ordered & ~bit) : (uint16_t)(*ordered | bit);
  return MK_OK;
}

mk_status mk_quant_settle(const mk_checkpoint *checkpoint, mk_config *config) {
  uint32_t scales = 0;
  for (uint64_t i = 0, count = mk_family_tensor_count(config); i < count; i++) {
    mk_wanted_tensor want;
    mk_family_tensor_at(config, i, &want);
    MK_TRY(mk_quant_has(config, &want) ? settle_module(checkpoint, config, &want, &scales) : MK_OK);
  }
  if (scales != 0) {
    config->quant.scale = (uint8_t)(scales == BIT(MK_TENSOR_BF16)  ? MK_TENSOR_BF16
                                    : scales == BIT(MK_TENSOR_F16) ? MK_TENSOR_F16
                                                                   : MK_TENSOR_F32);
  }
  return MK_OK;
}
