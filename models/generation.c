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

/* What transformers computes and this engine does not, with the range of numbers that ask for nothing; in others
 * nothing but null, false, an empty list or an empty object does. */
static const struct refused {
  const char *key;
  double low, high; /* low > high: no number asks for nothing */
} kRefused[] = {
    {"num_beams", 0, 1},
    {"num_beam_groups", 0, 1},
    {"diversity_penalty", 0, 0},
    {"penalty_alpha", 0, 0},
    {"dola_layers", 1, 0},
    {"guidance_scale", 1, 1},
    {"min_length", 0, 0},
    {"min_new_tokens", 0, 0},
    {"max_time", 1, 0},
    {"stop_strings", 1, 0},
    {"no_repeat_ngram_size", 0, 0},
    {"encoder_no_repeat_ngram_size", 0, 0},
    {"encoder_repetition_penalty", 1, 1},
    {"typical_p", 1, 1},
    {"top_h", 1, 0},
    {"epsilon_cutoff", 0, 0},
    {"eta_cutoff", 0, 0},
    {"bad_words_ids", 1, 0},
    {"force_words_ids", 1, 0},
    {"constraints", 1, 0},
    {"forced_bos_token_id", 1, 0},
    {"forced_eos_token_id", 1, 0},
    {"suppress_tokens", 1, 0},
    {"begin_suppress_tokens", 1, 0},
    {"sequence_bias", 1, 0},
    {"exponential_decay_length_penalty", 1, 0},
    {"token_healing", 1, 0},
    {"watermarking_config", 1, 0},
};

static bool asks_for_nothing(const json_t *value, const struct refused *r) {
  const double number = json_number_value(value);
  return value == NULL || json_is_false(value) || (json_is_number(value) && number >= r->low && number <= r->high) ||
         (json_is_array(value) && json_array_size(value) == 0) ||
         (json_is_object(value) && json_object_size(value) == 0);
}

static mk_status refuse(const json_t *root) {
  char shown[MK_JSON_SHOWN];
  for (size_t i = 0; i < sizeof kRefused / sizeof kRefused[0]; i++) {
    const json_t *value = mk_json_get(root, kRefused[i].key);
    if (!asks_for_nothing(value, &kRefused[i])) {
      return mk_error(MK_ERR_FILE,
                      "%s: is %s, and answers made so are not supported; remove it from the file, if answers made "
                      "without it will do",
                      kRefused[i].key, mk_json_show(value, shown));
    }
  }
  return MK_OK;
}

static mk_status take_whole(const json_t *root, const char *key, double low, double high, uint32_t *out) {
  char shown[MK_JSON_SHOWN];
  double number = *out;
  MK_TRY(take_number(root, key, low, high, &number));
  if (number != floor(number)) {
    return mk_error(MK_ERR_FILE, "%s: is %s, must be a whole number", key, mk_json_show(mk_json_get(root, key), shown));
  }
  *out = (uint32_t)number;
  return MK_OK;
}

static mk_status take_all(const json_t *root, mk_generation *out) {
  char shown[MK_JSON_SHOWN];
  const json_t *sample = mk_json_get(root, "do_sample");
  if (sample != NULL && !json_is_boolean(sample)) {
    return mk_error(MK_ERR_FILE, "do_sample: is %s, must be true or false", mk_json_show(sample, shown));
  }
  out->do_sample = json_is_true(sample);
  out->temperature = 1;
  MK_TRY(take_number(root, "temperature", 0, 1000, &out->temperature));
  MK_TRY(take_number(root, "top_p", 0, 1, &out->top_p));
  MK_TRY(take_number(root, "min_p", 0, 1, &out->min_p));
  MK_TRY(take_number(root, "repetition_penalty", 0.01, 100, &out->repetition_penalty));
  out->top_k = out->do_sample ? TRANSFORMERS_TOP_K : 0;
  MK_TRY(take_whole(root, "top_k", 0, HIGHEST_TOP_K, &out->top_k));
  MK_TRY(take_whole(root, "max_new_tokens", 1, UINT32_MAX, &out->max_new_tokens));
  out->temperature = out->do_sample ? out->temperature : 0;
  return refuse(root);
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
