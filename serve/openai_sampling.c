/* How an answer is drawn, and where it ends. */
#include <string.h>

#include "models/json.h"
#include "serve/openai_internal.h"

static mk_status take_stop(const mk_fields *f, const json_t *text, mk_openai_request *out) {
  if (!json_is_string(text)) {
    return mk_fields_type(f, "stop", "a string or a list of strings", text);
  }
  const size_t length = json_string_length(text);
  if (length == 0 || length > MK_OPENAI_STOP_BYTES) {
    return mk_serve_fail(f->error, 400, "stop", "invalid_value",
                         "Invalid value for 'stop': text %zu has %zu bytes, expected from 1 to %d.", out->stop_count,
                         length, MK_OPENAI_STOP_BYTES);
  }
  out->stops[out->stop_count++] = json_string_value(text);
  return MK_OK;
}

static mk_status take_stops(const mk_fields *f, mk_openai_request *out) {
  const json_t *stop = mk_json_get(f->body, "stop");
  const size_t count = json_is_array(stop) ? json_array_size(stop) : stop != NULL;
  if (count > MK_OPENAI_STOPS) {
    return mk_serve_fail(f->error, 400, "stop", "invalid_value",
                         "Invalid value for 'stop': has %zu texts; at most %d are possible.", count, MK_OPENAI_STOPS);
  }
  MK_TRY(mk_alloc(count, sizeof *out->stops, &out->stops));
  for (size_t i = 0; i < count; i++) {
    MK_TRY(take_stop(f, json_is_array(stop) ? json_array_get(stop, i) : stop, out));
  }
  return MK_OK;
}

/* Decimal digits alone, no zero before others: so two keys never name one token. */
static bool parse_id(const char *key, uint32_t vocabulary, uint32_t *out) {
  uint64_t id = 0;
  const size_t length = strlen(key);
  bool good = length > 0 && length <= 10 && (key[0] != '0' || length == 1);
  for (size_t i = 0; i < length && good; i++) {
    good = key[i] >= '0' && key[i] <= '9';
    id = id * 10 + (uint64_t)(key[i] - '0');
  }
  *out = (uint32_t)id;
  return good && id < vocabulary;
}

static mk_status take_bias(const mk_fields *f, const char *key, const json_t *value, mkvm_bias *out) {
  if (!parse_id(key, f->model->vocabulary, &out->token)) {
    return mk_serve_fail(f->error, 400, "logit_bias", "invalid_value",
                         "Invalid key in 'logit_bias': '%.40s' is none of the model's token ids, 0 to %lld.", key,
                         (long long)f->model->vocabulary - 1);
  }
  if (!json_is_number(value)) {
    return mk_fields_type(f, "logit_bias", "numbers as values", value);
  }
  const double bias = json_number_value(value);
  if (!(bias >= -100 && bias <= 100)) {
    return mk_serve_fail(f->error, 400, "logit_bias", "invalid_value",
                         "Invalid value in 'logit_bias': %.9g for token %s, expected from -100 to 100.", bias, key);
  }
  out->bias = (float)bias;
  return MK_OK;
}

static mk_status take_biases(const mk_fields *f, mk_openai_request *out) {
  const json_t *given = mk_json_get(f->body, "logit_bias");
  const size_t count = json_object_size(given);
  if (given != NULL && !json_is_object(given)) {
    return mk_fields_type(f, "logit_bias", "an object of token ids and numbers", given);
  }
  if (count > MK_OPENAI_BIASES) {
    return mk_serve_fail(f->error, 400, "logit_bias", "invalid_value",
                         "Invalid value for 'logit_bias': has %zu tokens; at most %d are possible.", count,
                         MK_OPENAI_BIASES);
  }
  MK_TRY(mk_alloc(count, sizeof *out->biases, &out->biases));
  out->sampling.biases = out->biases;
  /* jansson's iterators do not write, but say they may. */
  json_t *object = (json_t *)given;
  for (void *at = json_object_iter(object); at != NULL; at = json_object_iter_next(object, at)) {
    MK_TRY(
        take_bias(f, json_object_iter_key(at), json_object_iter_value(at), &out->biases[out->sampling.bias_count++]));
  }
  return MK_OK;
}

/* Promised where nothing but max_tokens ends an answer; a least number of tokens cannot be promised otherwise. */
static mk_status check_least(const mk_fields *f, const mk_openai_request *out) {
  json_int_t least = 0;
  MK_TRY(mk_fields_integer(f, "min_tokens", 0, UINT32_MAX, &least));
  if (least > 0 && (!out->ignore_eos || out->stop_count > 0)) {
    return mk_serve_fail(f->error, 400, "min_tokens", "unsupported_parameter",
                         "Unsupported parameter: 'min_tokens' is %lld; it needs 'ignore_eos', and no 'stop'.",
                         (long long)least);
  }
  return MK_OK;
}

mk_status mk_openai_take_sampling(const mk_fields *f, mk_openai_request *out) {
  json_int_t top_k = 0, seed = 0, priority = 0;
  mkvm_sampling *s = &out->sampling;
  *s = *f->model->sampling;
  s->biases = NULL;
  s->bias_count = 0;
  top_k = s->top_k;
  MK_TRY(mk_fields_number(f, "temperature", 0, 2, &s->temperature));
  MK_TRY(mk_fields_number(f, "top_p", 0, 1, &s->top_p));
  MK_TRY(mk_fields_number(f, "min_p", 0, 1, &s->min_p));
  MK_TRY(mk_fields_number(f, "repetition_penalty", 0.01, 100, &s->repetition_penalty));
  MK_TRY(mk_fields_number(f, "presence_penalty", -2, 2, &s->presence_penalty));
  MK_TRY(mk_fields_number(f, "frequency_penalty", -2, 2, &s->frequency_penalty));
  MK_TRY(mk_fields_integer(f, "top_k", -1, UINT32_MAX, &top_k));
  MK_TRY(mk_fields_integer(f, "seed", INT64_MIN, INT64_MAX, &seed));
  MK_TRY(mk_fields_integer(f, "priority", INT32_MIN, INT32_MAX, &priority));
  s->top_k = top_k < 0 ? 0 : (uint32_t)top_k; /* -1: off, as vLLM has it */
  out->has_seed = mk_json_get(f->body, "seed") != NULL;
  s->seed = out->has_seed ? (uint64_t)seed : s->seed;
  out->priority = (int32_t)priority;
  MK_TRY(mk_fields_bool(f, "ignore_eos", &out->ignore_eos));
  MK_TRY(take_stops(f, out));
  MK_TRY(take_biases(f, out));
  return check_least(f, out);
}
