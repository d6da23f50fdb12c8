/* See openai_internal.h. */
#include "serve/openai_internal.h"

#include <stdio.h>

#include "models/json.h"

/* Before anything is allocated: how deep the text goes, and how many values it has at most. What is not JSON is counted
 * somehow, and refused by the parser. */
static mk_status measure(const char *body, size_t length, mk_serve_error *error) {
  size_t depth = 0, values = 0;
  bool quoted = false;
  for (size_t i = 0; i < length; i++) {
    const char c = body[i];
    if (quoted) {
      i += c == '\\';
      quoted = c != '"';
      continue;
    }
    const bool opens = c == '[' || c == '{';
    quoted = c == '"';
    depth += opens;
    depth -= (c == ']' || c == '}') && depth > 0;
    values += opens || c == ',';
    if (depth > MK_OPENAI_DEPTH) {
      return mk_serve_fail(error, 400, NULL, NULL,
                           "The body is nested more than %d deep, at byte %zu; make it flatter.", MK_OPENAI_DEPTH, i);
    }
    if (values > MK_OPENAI_VALUES) {
      return mk_serve_fail(error, 400, NULL, NULL,
                           "The body has more than %d values, up to byte %zu; split it into several requests.",
                           MK_OPENAI_VALUES, i);
    }
  }
  return MK_OK;
}

mk_status mk_fields_open(const char *body, size_t length, json_t **out, mk_serve_error *error) {
  *out = NULL;
  MK_TRY(measure(body, length, error));
  const mk_status status = mk_json_parse(body, length, out);
  if (status != MK_ERR_FILE) {
    return status;
  }
  char message[MK_SERVE_MESSAGE / 2];
  snprintf(message, sizeof message, "%s", mk_error_message());
  return mk_serve_fail(error, 400, NULL, NULL, "The body cannot be read: %s", message);
}

static const char *kind(const json_t *value) {
  switch (json_typeof(value)) {
    case JSON_OBJECT:
      return "an object";
    case JSON_ARRAY:
      return "an array";
    case JSON_STRING:
      return "a string";
    case JSON_INTEGER:
      return "an integer";
    case JSON_REAL:
      return "a decimal number";
    case JSON_TRUE:
    case JSON_FALSE:
      return "a boolean";
    case JSON_NULL:
    default:
      return "null";
  }
}

mk_status mk_fields_type(const mk_fields *f, const char *param, const char *expected, const json_t *value) {
  return mk_serve_fail(f->error, 400, param, "invalid_type", "Invalid type for '%s': expected %s, but got %s instead.",
                       param, expected, value == NULL ? "nothing" : kind(value));
}

mk_status mk_fields_bool(const mk_fields *f, const char *name, bool *out) {
  const json_t *value = mk_json_get(f->body, name);
  if (value != NULL && !json_is_boolean(value)) {
    return mk_fields_type(f, name, "a boolean", value);
  }
  *out = value == NULL ? *out : json_is_true(value);
  return MK_OK;
}

mk_status mk_fields_integer(const mk_fields *f, const char *name, json_int_t low, json_int_t high, json_int_t *out) {
  const json_t *value = mk_json_get(f->body, name);
  if (value == NULL) {
    return MK_OK;
  }
  if (!json_is_integer(value)) {
    return mk_fields_type(f, name, "an integer", value);
  }
  const json_int_t given = json_integer_value(value);
  if (given < low || given > high) {
    return mk_serve_fail(f->error, 400, name, "invalid_value",
                         "Invalid value for '%s': is %lld, expected from %lld to %lld.", name, (long long)given,
                         (long long)low, (long long)high);
  }
  *out = given;
  return MK_OK;
}

mk_status mk_fields_number(const mk_fields *f, const char *name, double low, double high, double *out) {
  const json_t *value = mk_json_get(f->body, name);
  if (value == NULL) {
    return MK_OK;
  }
  if (!json_is_number(value)) {
    return mk_fields_type(f, name, "a number", value);
  }
  const double given = json_number_value(value);
  if (!(given >= low && given <= high)) {
    return mk_serve_fail(f->error, 400, name, "invalid_value",
                         "Invalid value for '%s': is %.9g, expected from %.9g to %.9g.", name, given, low, high);
  }
  *out = given;
  return MK_OK;
}

mk_status mk_fields_text(const mk_fields *f, const char *name, const char **out) {
  const json_t *value = mk_json_get(f->body, name);
  if (value != NULL && !json_is_string(value)) {
    return mk_fields_type(f, name, "a string", value);
  }
  *out = value == NULL ? *out : json_string_value(value);
  return MK_OK;
}
