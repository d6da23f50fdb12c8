/* Renders templates for scripts that compare with another interpreter: compare_templates.py and
 * make_template_golden.py.
 *
 * Each line of the input is {"template": TEXT, "variables": [OBJECT, ...]}; each line of the output is an array with
 * {"text": TEXT} or
 * {"error": MESSAGE} for each of the variables. strftime_now has the time that test_template.c has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template.h"

static const struct tm kNow = {
    .tm_year = 126, .tm_mday = 5, .tm_wday = 1, .tm_yday = 4, .tm_hour = 14, .tm_min = 3, .tm_sec = 9};

static json_t *rendered(mk_status compile_status, const mk_template *compiled, const json_t *variables) {
  char *text = NULL;
  size_t length = 0;
  mk_status status =
      compile_status != MK_OK ? compile_status : mk_template_render(compiled, variables, &kNow, &text, &length);
  json_t *result = status == MK_OK ? json_pack("{s:o}", "text", json_stringn(text, length))
                                   : json_pack("{s:s}", "error", mk_error_message());
  mk_free(text);
  return result;
}

int main(void) {
  char *line = NULL;
  size_t capacity = 0;
  for (ssize_t length; (length = getline(&line, &capacity, stdin)) > 0;) {
    json_t *request = json_loadb(line, (size_t)length, JSON_ALLOW_NUL, NULL), *variables, *results = json_array();
    const json_t *source = json_object_get(request, "template");
    mk_template *compiled = NULL;
    size_t index;
    if (!json_is_string(source)) {
      fputs("a line is not {\"template\": TEXT, \"variables\": [...]}\n", stderr);
      return EXIT_FAILURE;
    }
    mk_status status = mk_template_compile(json_string_value(source), json_string_length(source), &compiled);
    json_array_foreach(json_object_get(request, "variables"), index, variables) {
      json_array_append_new(results, rendered(status, compiled, variables));
    }
    json_dumpf(results, stdout, JSON_COMPACT);
    putchar('\n');
    fflush(stdout);
    mk_template_free(compiled);
    json_decref(results);
    json_decref(request);
  }
  free(line);
  return EXIT_SUCCESS;
}
