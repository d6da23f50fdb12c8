/* Templates as a whole: compiling and rendering. See template.h. */
#include <string.h>

#include "text/template_internal.h"
#include "text/unicode.h"

mk_status mk_template_compile(const char *text, size_t length, mk_template **out) {
  jinja_tokens tokens = {0};
  mk_template *made;
  mk_status status;
  if (length > MK_TEMPLATE_MAX_BYTES) {
    return mk_error(MK_ERR_FILE, "chat template: it has %zu bytes; at most %d are supported", length,
                    MK_TEMPLATE_MAX_BYTES);
  }
  size_t valid = length == 0 ? 0 : mk_utf8_valid_prefix((const uint8_t *)text, length);
  if (valid < length) {
    return mk_error(MK_ERR_FILE, "chat template: byte %zu is not UTF-8; save it as UTF-8", valid);
  }
  MK_TRY(mk_alloc(1, sizeof *made, &made));
  made->pool.limit = (size_t)8 * MK_TEMPLATE_MAX_MEMORY;
  MK_TRY_GOTO(mk_jinja_lex(&made->pool, text, length, &tokens), done);
  MK_TRY_GOTO(mk_jinja_parse(&made->pool, &tokens, &made->body), done);
  status = mk_jinja_place_variables(made);
done:
  mk_free(tokens.items);
  if (status != MK_OK) {
    mk_template_free(made);
    return status;
  }
  *out = made;
  return MK_OK;
}

void mk_template_free(mk_template *compiled) {
  if (compiled != NULL) {
    mk_jinja_pool_free(&compiled->pool);
    mk_free(compiled);
  }
}

static mk_status render(jinja *m, const mk_template *compiled, const json_t *variables) {
  const char *key;
  json_t *value, *object = (json_t *)(uintptr_t)variables; /* the iteration macro takes no const */
  json_object_foreach(object, key, value) {
    jinja_value converted;
    MK_TRY(mk_jinja_from_json(m, value, &converted));
    MK_TRY(mk_jinja_put(m, &m->variables, mk_jinja_literal(key), converted));
  }
  MK_TRY(mk_jinja_new_record(m, &compiled->shape, NULL, &m->record));
  MK_TRY(mk_jinja_enter_frame(m, &compiled->frame));
  MK_TRY(mk_jinja_write(m, m->output, "", 0));
  return mk_jinja_run(m, compiled->body);
}

mk_status mk_template_render(const mk_template *compiled, const json_t *variables, const struct tm *now, char **text,
                             size_t *length) {
  jinja_output output = {0};
  jinja m = {.pool = {.limit = MK_TEMPLATE_MAX_MEMORY}, .output = &output, .now = now};
  mk_status status = render(&m, compiled, variables);
  mk_jinja_pool_free(&m.pool);
  if (status != MK_OK) {
    mk_free(output.text);
    return status;
  }
  *text = output.text;
  *length = output.length;
  return MK_OK;
}
