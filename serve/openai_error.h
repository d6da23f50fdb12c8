/* What a request that is not answered gets instead: an HTTP status and OpenAI's error object.
 *
 * A plain value, text included. Any thread may call; nothing here fails. */
#ifndef MK_OPENAI_ERROR_H
#define MK_OPENAI_ERROR_H

#include "include/mkvm.h"
#include "vm/status.h"

enum { MK_SERVE_PARAM = 96, MK_SERVE_MESSAGE = 640 };

typedef struct mk_serve_error {
  int http_status;
  const char *type;               /* never NULL */
  const char *code;               /* NULL: null */
  char param[MK_SERVE_PARAM];     /* the field at fault, as "messages[0].role"; "": null */
  char message[MK_SERVE_MESSAGE]; /* may be cut within a character */
} mk_serve_error;

/* Fills *error and this thread's message. param, code: NULL for none; `code` is a constant. The type follows from the
 * HTTP status. Returns MK_ERR_USAGE for a fault of the client (4xx) and MK_ERR_RUNTIME for one of the server, so that
 * `return mk_serve_fail(...)` reads as one step. */
mk_status mk_serve_fail(mk_serve_error *error, int http_status, const char *param, const char *code, const char *format,
                        ...) __attribute__((format(printf, 5, 6)));

/* The same for what libmkvm has refused, with its message: 400 for an argument or a model's file, and for a prompt that
 * is too long, which has a code; 429 for a full queue, 500 for anything else. */
mk_status mk_serve_fail_as_libmkvm(mk_serve_error *error, mkvm_status status);

#endif
