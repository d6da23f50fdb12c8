/* What the parts of the request parser share: fields of a body, read with their types checked. See openai_request.h.
 *
 * Readers leave *out alone when the field is absent or null. Those that take a `name` look it up in the body; its
 * message and param name it. One thread. Failure: MK_ERR_USAGE with *error filled, or MK_ERR_RUNTIME for memory, and
 * *error is filled at the end (openai_request.c). */
#ifndef MK_OPENAI_INTERNAL_H
#define MK_OPENAI_INTERNAL_H

#include "serve/openai_request.h"

typedef struct mk_fields {
  const json_t *body;
  const mk_openai_model *model; /* NULL where no field needs it */
  mk_serve_error *error;
} mk_fields;

/* The body as a JSON object, within MK_OPENAI_DEPTH and MK_OPENAI_VALUES. */
mk_status mk_fields_open(const char *body, size_t length, json_t **out, mk_serve_error *error);

/* "Invalid type for 'max_tokens': expected an integer, but got a string instead." */
mk_status mk_fields_type(const mk_fields *f, const char *param, const char *expected, const json_t *value);
mk_status mk_fields_bool(const mk_fields *f, const char *name, bool *out);
mk_status mk_fields_integer(const mk_fields *f, const char *name, json_int_t low, json_int_t high, json_int_t *out);
mk_status mk_fields_number(const mk_fields *f, const char *name, double low, double high, double *out);
mk_status mk_fields_text(const mk_fields *f, const char *name, const char **out);

/* 400 for what is asked for by a field that is known and not done. */
mk_status mk_openai_refuse(const mk_fields *f, bool chat);
/* messages -> turns, turn_count. */
mk_status mk_openai_take_messages(const mk_fields *f, mk_openai_request *out);
/* prompt -> prompts, prompt_count. */
mk_status mk_openai_take_prompts(const mk_fields *f, mk_openai_request *out);
/* The elements of a list of ids, into out[0, json_array_size(list)). */
mk_status mk_openai_take_ids(const mk_fields *f, const char *param, const json_t *list, uint32_t *out);
/* stop -> stops, logit_bias -> biases, and all other fields of sampling. */
mk_status mk_openai_take_sampling(const mk_fields *f, mk_openai_request *out);

#endif
