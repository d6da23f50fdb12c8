/* How the tokens of a request are drawn: what a caller says, and what the model asks for. See include/mkvm.h. */
#include "lib/defaults.h"
#include "lib/internal.h"

mk_status mkvm_take_sampling(const mkvm_engine *e, const mkvm_sampling *given, mk_sampling *sampling,
                             mk_logit_bias **biases) {
  mkvm_sampling own;
  *sampling = MK_SAMPLING_OFF;
  *biases = NULL;
  if (given == NULL) {
    return MK_OK;
  }
  mkvm_sampling_init(&own);
  MK_TRY(mkvm_take_struct("mkvm_sampling", given, offsetof(mkvm_sampling, top_k) + sizeof own.top_k, &own, sizeof own));
  *sampling = (mk_sampling){.temperature = own.temperature,
                            .top_k = own.top_k,
                            .top_p = own.top_p,
                            .min_p = own.min_p,
                            .repetition = own.repetition_penalty,
                            .presence = own.presence_penalty,
                            .frequency = own.frequency_penalty,
                            .seed = own.seed,
                            .bias_count = own.bias_count};
  if (own.bias_count > MK_MOST_BIASES || (own.biases == NULL && own.bias_count != 0)) {
    return mk_error(MK_ERR_USAGE, "%zu logit biases%s; at most %d are possible", own.bias_count,
                    own.biases == NULL ? " at no address" : "", MK_MOST_BIASES);
  }
  MK_TRY(mk_alloc(own.bias_count, sizeof **biases, biases));
  for (size_t i = 0; i < own.bias_count; i++) {
    (*biases)[i] = (mk_logit_bias){.token = own.biases[i].token, .bias = own.biases[i].bias};
  }
  sampling->biases = *biases;
  return mk_sampling_check(sampling, mk_engine_config(e->engine)->vocab);
}

mkvm_status mkvm_sampling_of_model_size(const mkvm_engine *e, mkvm_sampling *out, size_t size) {
  uint64_t seed;
  if (e == NULL || out == NULL || size < sizeof out->size) {
    return mkvm_status_of(mk_error(MK_ERR_USAGE, "mkvm_sampling_of_model: the engine or the place is missing"));
  }
  mk_status status = mk_random_seed(&seed);
  if (status != MK_OK) {
    return mkvm_status_of(status);
  }
  const mk_sampling model = mk_sampling_of_generation(&e->generation);
  const mkvm_sampling sampling = {.seed = seed,
                                  .temperature = model.temperature,
                                  .top_p = model.top_p,
                                  .min_p = model.min_p,
                                  .repetition_penalty = model.repetition,
                                  .presence_penalty = model.presence,
                                  .frequency_penalty = model.frequency,
                                  .top_k = model.top_k};
  mkvm_give_struct(&sampling, sizeof sampling, out, size);
  return MKVM_OK;
}
