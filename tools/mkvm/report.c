/* See report.h. */
#include "tools/mkvm/report.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/mkvm/command.h"

mk_status mk_report_token(mk_run_report *report, uint32_t token) {
  mk_tokens *tokens = &report->tokens;
  MK_TRY(mk_grow(&tokens->ids, &tokens->capacity, tokens->count + 1, sizeof *tokens->ids));
  tokens->ids[tokens->count++] = token;
  return MK_OK;
}

mk_status mk_report_logprobs(mk_run_report *report, const float *logits, uint32_t vocab) {
  size_t count = report->tokens.count, n = report->logprob_count;
  MK_TRY(mk_grow(&report->logprobs, &report->logprobs_capacity, count, sizeof *report->logprobs));
  MK_TRY(mk_grow(&report->top, &report->top_capacity, count * n + 1, sizeof *report->top));
  mk_logprobs(logits, vocab, report->tokens.ids[count - 1], report->logprob_count, &report->logprobs[count - 1],
              report->top + (count - 1) * n);
  return MK_OK;
}

mk_status mk_report_text(mk_run_report *report, const char *text, size_t length) {
  MK_TRY(mk_grow(&report->text, &report->text_capacity, report->text_length + length, 1));
  memcpy(report->text + report->text_length, text, length);
  report->text_length += length;
  return MK_OK;
}

void mk_report_free(mk_run_report *report) {
  mk_free(report->text);
  mk_free(report->logprobs);
  mk_free(report->top);
  report->logprobs = NULL;
  report->top = NULL;
  mk_tokens_free(&report->tokens);
  report->text = NULL;
}

static double rate(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

/* The first token comes with the last step of the prompt, so `count` tokens span count - 1 steps. */
static double steps(const mk_run_report *report) {
  return report->tokens.count == 0 ? 0 : (double)(report->tokens.count - 1);
}

static json_t *ids(const mk_tokens *tokens) {
  json_t *array = json_array();
  for (size_t i = 0; i < tokens->count; i++) {
    json_array_append_new(array, json_integer(tokens->ids[i]));
  }
  return array;
}

/* A path need not be UTF-8, a JSON string must be: what is not prints as '?'. */
static json_t *path_string(const char *path) {
  json_t *string = json_string(path);
  char *copy = string == NULL ? strdup(path) : NULL;
  if (copy != NULL) {
    for (char *c = copy; *c != 0; c++) {
      *c = (unsigned char)*c < 128 ? *c : '?';
    }
    string = json_string(copy);
    free(copy);
  }
  return string;
}

static json_t *logprob_json(uint32_t token, double logprob) {
  json_t *object = json_object();
  json_object_set_new(object, "token", json_integer(token));
  json_object_set_new(object, "logprob", isfinite(logprob) ? json_real(logprob) : json_null());
  return object;
}

static json_t *logprobs_json(const mk_run_report *r) {
  json_t *array = json_array();
  for (size_t i = 0; i < r->tokens.count; i++) {
    json_t *object = logprob_json(r->tokens.ids[i], r->logprobs[i]), *top = json_array();
    for (size_t j = i * r->logprob_count; j < (i + 1) * r->logprob_count && r->top[j].token != UINT32_MAX; j++) {
      json_array_append_new(top, logprob_json(r->top[j].token, r->top[j].logprob));
    }
    json_object_set_new(object, "top", top);
    json_array_append_new(array, object);
  }
  return array;
}

mk_status mk_report_print_logprobs(const mk_run_report *r) {
  enum { ENTRY = 64 }; /* separator, id, and a number of as many digits as a float can have before the point */
  char line[(MK_MOST_LOGPROBS + 1) * ENTRY];
  for (size_t i = 0; r->logprobs != NULL && i < r->tokens.count; i++) {
    int used = snprintf(line, sizeof line, "%u %.4f", r->tokens.ids[i], r->logprobs[i]);
    for (size_t j = i * r->logprob_count; j < (i + 1) * r->logprob_count && r->top[j].token != UINT32_MAX; j++) {
      used += snprintf(line + used, sizeof line - (size_t)used, "%s %u %.4f", j == i * r->logprob_count ? " |" : ",",
                       r->top[j].token, r->top[j].logprob);
    }
    line[used++] = '\n';
    MK_TRY(mk_print(line, (size_t)used));
  }
  return MK_OK;
}

/* NULL when memory runs out or a text is not UTF-8. */
static json_t *report_object(const mk_run_report *r) {
  json_t *timings = json_object(), *object = json_object();
  json_object_set_new(timings, "load_s", json_real(r->load_seconds));
  json_object_set_new(timings, "prompt_s", json_real(r->prompt_seconds));
  json_object_set_new(timings, "prompt_tokens_per_s", json_real(rate((double)r->prompt->count, r->prompt_seconds)));
  json_object_set_new(timings, "generate_s", json_real(r->generate_seconds));
  json_object_set_new(timings, "tokens_per_s", json_real(rate(steps(r), r->generate_seconds)));
  json_object_set_new(timings, "ms_per_token", json_real(1e3 * rate(r->generate_seconds, steps(r))));
  int bad = json_object_set_new(object, "model", path_string(r->model));
  bad |= json_object_set_new(object, "device", json_string(r->device));
  bad |= json_object_set_new(object, "prompt_tokens", ids(r->prompt));
  bad |= json_object_set_new(object, "tokens", ids(&r->tokens));
  bad |= json_object_set_new(object, "text", json_stringn(r->text == NULL ? "" : r->text, r->text_length));
  bad |= json_object_set_new(object, "finish_reason", json_string(r->finish_reason));
  bad |= json_object_set_new(object, "sampling", mk_sampling_option_json(r->sampling));
  if (r->logprobs != NULL) {
    bad |= json_object_set_new(object, "logprobs", logprobs_json(r));
  }
  if (r->error != NULL) {
    bad |= json_object_set_new(object, "error", path_string(r->error)); /* may quote what is not UTF-8 */
  }
  bad |= json_object_set_new(object, "timings", timings);
  if (bad != 0) {
    json_decref(object);
    return NULL;
  }
  return object;
}

/* Takes the object, which may be NULL. */
static mk_status print_object(json_t *object) {
  char *text = object == NULL ? NULL : json_dumps(object, JSON_REAL_PRECISION(6));
  json_decref(object);
  if (text == NULL) {
    return mk_error(MK_ERR_RUNTIME, "the result could not be made into JSON: out of memory, or text that is not UTF-8");
  }
  mk_status status = mk_print(text, strlen(text));
  free(text);
  return status == MK_OK ? mk_print("\n", 1) : status;
}

mk_status mk_report_json(const mk_run_report *report) { return print_object(report_object(report)); }

mk_status mk_report_json_all(const mk_run_report *const *reports, size_t count) {
  json_t *object = json_object(), *sequences = json_array();
  int bad = 0;
  for (size_t i = 0; i < count; i++) {
    bad |= json_array_append_new(sequences, report_object(reports[i]));
  }
  bad |= json_object_set_new(object, "sequences", sequences);
  if (bad != 0) {
    json_decref(object);
    object = NULL;
  }
  return print_object(object);
}

void mk_report_timings(const mk_run_report *r) {
  fprintf(stderr, "%s | load %.2f s | prompt %zu tokens, %.1f tokens/s | generated %zu tokens", r->device,
          r->load_seconds, r->prompt->count, rate((double)r->prompt->count, r->prompt_seconds), r->tokens.count);
  if (r->tokens.count > 1) {
    fprintf(stderr, ", %.1f tokens/s, %.2f ms/token", rate(steps(r), r->generate_seconds),
            1e3 * rate(r->generate_seconds, steps(r)));
  }
  fputs("\n", stderr);
}
