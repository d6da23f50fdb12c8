/* Whether a checkpoint has just the tensors that a configuration asks for. See checkpoint.h. */
#include <stdio.h>

#include "models/checkpoint.h"
#include "models/family.h"

const char *mk_shape_show(uint32_t rank, const uint64_t *shape, char shown[MK_SHAPE_SHOWN]) {
  int used = 0; /* at most 4 sizes of 20 digits: always fits */
  for (uint32_t i = 0; i < rank && i < 4; i++) {
    used += snprintf(shown + used, (size_t)(MK_SHAPE_SHOWN - used), "%s%llu", i == 0 ? "[" : ", ",
                     (unsigned long long)shape[i]);
  }
  snprintf(shown + used, (size_t)(MK_SHAPE_SHOWN - used), "%s", rank == 0 ? "[]" : "]");
  return shown;
}

static mk_status check_shape(const mk_checkpoint *checkpoint, const mk_tensor *tensor, const mk_wanted_tensor *want) {
  if (tensor->rank == want->rank && tensor->shape[0] == want->shape[0] && tensor->shape[1] == want->shape[1]) {
    return MK_OK;
  }
  char is[MK_SHAPE_SHOWN], must[MK_SHAPE_SHOWN];
  return mk_error(MK_ERR_FILE, "%s: tensor %s: shape is %s, config.json asks for %s",
                  mk_checkpoint_path(checkpoint, tensor), tensor->name, mk_shape_show(tensor->rank, tensor->shape, is),
                  mk_shape_show(want->rank, want->shape, must));
}

static mk_status check_plain(const mk_checkpoint *checkpoint, const mk_tensor *tensor, const mk_wanted_tensor *want) {
  if (tensor->dtype > MK_TENSOR_F32) {
    return mk_error(MK_ERR_FILE,
                    "%s: tensor %.200s: dtype is %s; it must be BF16, F16 or F32, or quantised as "
                    "quantization_config of config.json says",
                    mk_checkpoint_path(checkpoint, tensor), tensor->name, mk_tensor_dtype_name(tensor->dtype));
  }
  return check_shape(checkpoint, tensor, want);
}

static mk_status check_present(const mk_checkpoint *checkpoint, const mk_config *config, const mk_wanted_tensor *want) {
  char name[MK_TENSOR_NAME];
  mk_family_tensor_name(config, want, name);
  if (mk_checkpoint_find(checkpoint, name) != NULL) {
    return MK_OK;
  }
  return mk_error(MK_ERR_FILE, "%s: tensor %s: is missing; config.json asks for %u layers%s",
                  mk_checkpoint_source(checkpoint), name, config->layers, config->tied ? "" : " and an untied lm_head");
}

mk_status mk_checkpoint_check(const mk_checkpoint *checkpoint, const mk_config *config) {
  mk_wanted_tensor want;
  for (size_t i = 0; i < mk_checkpoint_count(checkpoint); i++) {
    const mk_tensor *tensor = mk_checkpoint_tensor(checkpoint, i);
    const mk_tensor_use use = mk_family_find(config, tensor->name, &want);
    mk_quant_part part;
    if (use != MK_TENSOR_ASIDE && mk_quant_owner(config, tensor->name, &want, &part)) {
      MK_TRY(mk_quant_check_part(checkpoint, tensor, &part));
      continue;
    }
    if (use == MK_TENSOR_WANTED && mk_quant_has(config, &want)) {
      return mk_error(MK_ERR_FILE, "%s: tensor %.200s: is there, but quantization_config says that it is quantised",
                      mk_checkpoint_path(checkpoint, tensor), tensor->name);
    }
    if (use == MK_TENSOR_UNKNOWN) {
      return mk_error(MK_ERR_FILE, "%s: tensor %.200s: is not part of a %s of %u layers as config.json describes it",
                      mk_checkpoint_path(checkpoint, tensor), tensor->name, mk_model_title(config->kind),
                      config->layers);
    }
    MK_TRY(use == MK_TENSOR_WANTED ? check_plain(checkpoint, tensor, &want) : MK_OK);
  }
  const uint64_t count = mk_family_tensor_count(config);
  for (uint64_t i = 0; i < count; i++) {
    mk_family_tensor_at(config, i, &want);
    MK_TRY(mk_quant_has(config, &want) ? mk_quant_check_present(checkpoint, config, &want)
                                       : check_present(checkpoint, config, &want));
  }
  return MK_OK;
}

/* The tensors of a layer stand side by side, since a checkpoint sorts them by name. */
mk_checkpoint_survey mk_checkpoint_look(const mk_checkpoint *checkpoint, const mk_config *config) {
  mk_checkpoint_survey survey = {.tensors_aside = 0};
  uint64_t last = UINT64_MAX;
  for (size_t i = 0; i < mk_checkpoint_count(checkpoint); i++) {
    const mk_tensor *tensor = mk_checkpoint_tensor(checkpoint, i);
    mk_wanted_tensor want;
    const mk_tensor_use use = mk_family_find(config, tensor->name, &want);
    const bool needed = use == MK_TENSOR_WANTED && !(config->tied && want.weight->when == MK_HAVE_UNTIED);
    survey.used[tensor->dtype] += needed && !mk_quant_has(config, &want);
    survey.tensors_beside += use == MK_TENSOR_BESIDE;
    if (use == MK_TENSOR_ASIDE) {
      survey.tensors_aside++;
      survey.layers_aside += want.layer != last;
      last = want.layer;
    }
  }
  for (uint64_t i = 0, count = mk_family_tensor_count(config); i < count; i++) {
    mk_wanted_tensor want;
    mk_family_tensor_at(config, i, &want);
    survey.quantised += mk_quant_has(config, &want);
  }
  return survey;
}
