/* See report.h. */
#include "tools/mkvm/report.h"

#include <jansson.h>
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

mk_status mk_report_text(mk_run_report *report, const char *text, size_t length) {
  MK_TRY(mk_grow(&report->text, &report->text_capacity, report->text_length + length, 1));
  memcpy(report->text + report->text_length, text, length);
  report->text_length += length;
  return MK_OK;
}

void mk_report_free(mk_run_report *report) {
  mk_free(report->text);
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

mk_status mk_report_json(const mk_run_report *r) {
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
  bad |= json_object_set_new(object, "timings", timings);
  char *text = bad != 0 ? NULL : json_dumps(object, JSON_REAL_PRECISION(6));
  json_decref(object);
  if (text == NULL) {
    return mk_error(MK_ERR_RUNTIME, "the result could not be made into JSON: out of memory, or text that is not UTF-8");
  }
  mk_status status = mk_print(text, strlen(text));
  free(text);
  return status == MK_OK ? mk_print("\n", 1) : status;
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
