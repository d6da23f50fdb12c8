/* See openai_error.h. */
#include "serve/openai_error.h"

#include <stdio.h>

static const char *type_of(int http_status) {
  return http_status >= 500 ? "server_error" : http_status == 429 ? "rate_limit_error" : "invalid_request_error";
}

mk_status mk_serve_fail(mk_serve_error *error, int http_status, const char *param, const char *code, const char *format,
                        ...) {
  char text[MK_SERVE_MESSAGE];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  const mk_status status = mk_error(http_status >= 500 ? MK_ERR_RUNTIME : MK_ERR_USAGE, "%s", text);
  *error = (mk_serve_error){.http_status = http_status, .type = type_of(http_status), .code = code};
  snprintf(error->param, sizeof error->param, "%s", param == NULL ? "" : param);
  snprintf(error->message, sizeof error->message, "%s", mk_error_message()); /* without control characters */
  return status;
}

mk_status mk_serve_fail_as_libmkvm(mk_serve_error *error, mkvm_status status) {
  const char *message = mkvm_message();
  if (status == MKVM_ERR_BUSY) {
    return mk_serve_fail(error, 429, NULL, "queue_full", "Too many requests wait already; try again later.");
  }
  if (status == MKVM_ERR_TOO_LONG) {
    return mk_serve_fail(error, 400, NULL, "context_length_exceeded", "%s", message);
  }
  return mk_serve_fail(error, status == MKVM_ERR_USAGE || status == MKVM_ERR_FILE ? 400 : 500, NULL, NULL, "%s",
                       message);
}
