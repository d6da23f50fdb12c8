/* See generation.h. */
#include "models/generation.h"

#include <math.h>

#include "models/json.h"

enum { FILE_LIMIT = 16 << 20, HIGHEST_TOP_K = 1 << 30, TRANSFORMERS_TOP_K = 50 };

static mk_status take_number(const json_t *root, const char *key, double low, double high, double *out) {
  char shown[MK_JSON_SHOWN];
  const json_t *value = mk_json_get(root, key);
  if (value == NULL) {
    return MK_OK;
  }
  double number = json_number_value(value);
  if (!json_is_number(value) || !(number >= low && number <= high)) {
    return mk_error(MK_ERR_FILE, "%s: is %s, must be a number from %g to %g", key, mk_json_show(value, shown), low,
                    high);
  }
  *out = number;
  return MK_OK;
}

static mk_status take_all(const json_t *root, mk_generation *out) {
  char shown[MK_JSON_SHOWN];
  const json_t *sample = mk_json_get(root, "do_sample"), *top_k = mk_json_get(root, "top_k");
  if (sample != NULL && !json_is_boolean(sample)) {
    return mk_error(MK_ERR_FILE, "do_sample: is %s, must be true or false", mk_json_show(sample, shown));
  }
  out->do_sample = json_is_true(sample);
  out->temperature = 1;
  MK_TRY(take_number(root, "temperature", 0, 1000, &out->temperature));
  MK_TRY(take_number(root, "top_p", 0, 1, &out->top_p));
  MK_TRY(take_number(root, "min_p", 0, 1, &out->min_p));
  MK_TRY(take_number(root, "repetition_penalty", 0.01, 100, &out->repetition_penalty));
  double k = out->do_sample ? TRANSFORMERS_TOP_K : 0;
  MK_TRY(take_number(root, "top_k", 0, HIGHEST_TOP_K, &k));
  if (k != floor(k)) {
    return mk_error(MK_ERR_FILE, "top_k: is %s, must be a whole number", mk_json_show(top_k, shown));
  }
  out->top_k = (uint32_t)k;
  out->temperature = out->do_sample ? out->temperature : 0;
  return MK_OK;
}

mk_status mk_generation_parse(const char *text, size_t length, mk_generation *out) {
  json_t *root = NULL;
  mk_generation generation = MK_GENERATION_GREEDY;
  MK_TRY(mk_json_parse(text, length, &root));
  mk_status status = take_all(root, &generation);
  json_decref(root);
  if (status == MK_OK) {
    *out = generation;
  }
  return status;
}

mk_status mk_generation_load(const char *directory, mk_generation *out) {
  char *path = NULL, *text = NULL;
  size_t length;
  *out = MK_GENERATION_GREEDY;
  MK_TRY(mk_path_join(directory, "generation_config.json", &path));
  mk_status status = mk_file_read(path, true, FILE_LIMIT, &text, &length);
  if (status == MK_OK && text != NULL) {
    status = mk_generation_parse(text, length, out);
    if (status != MK_OK) {
      mk_error_prefix(status, "%s", path);
    }
  }
  mk_free(text);
  mk_free(path);
  return status;
}
