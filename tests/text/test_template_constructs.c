/* What templates are made of, group by group, and random templates about scopes: equal to jinja2 to the byte, errors
 * included. Written by make_template_golden.py from constructs.txt and template_scopes.py. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "models/json.h"
#include "text/template.h"

#define FOLDER MK_SOURCE_DIR "/tests/text/data/templates"

/* As make_template_golden.py has it: Monday, 2026-01-05 14:03:09. */
static const struct tm now = {
    .tm_year = 126, .tm_mday = 5, .tm_wday = 1, .tm_yday = 4, .tm_hour = 14, .tm_min = 3, .tm_sec = 9};

static json_t *read_golden(const char *name) {
  char path[512], *text;
  size_t length;
  json_t *golden;
  snprintf(path, sizeof path, FOLDER "/%s", name);
  cr_assert_eq(mk_file_read(path, false, 4 << 20, &text, &length), MK_OK, "%s", mk_error_message());
  golden = json_loadb(text, length, JSON_ALLOW_NUL, NULL);
  cr_assert_not_null(golden);
  mk_free(text);
  return golden;
}

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), tail = strlen(end);
  return tail <= length && strcmp(text + length - tail, end) == 0;
}

static void check(const json_t *entry, const json_t *variables) {
  const json_t *source = json_object_get(entry, "template"), *want = json_object_get(entry, "text");
  const json_t *error = json_object_get(entry, "error");
  const char *shown = json_string_value(source);
  mk_template *compiled = NULL;
  char *have = NULL;
  size_t length = 0;
  mk_status status = mk_template_compile(shown, json_string_length(source), &compiled);
  if (status == MK_OK) {
    status = mk_template_render(compiled, variables, &now, &have, &length);
  }
  if (want != NULL) {
    cr_expect_eq(status, MK_OK, "%s: %s", shown, mk_error_message());
    cr_expect(
        status != MK_OK || (length == json_string_length(want) && memcmp(have, json_string_value(want), length) == 0),
        "%s: `%s` instead of `%s`", shown, have, json_string_value(want));
  } else {
    cr_expect_neq(status, MK_OK, "%s: `%s`", shown, have);
    cr_expect(json_is_null(error) || ends_with(mk_error_message(), json_string_value(error)),
              "%s: `%s` instead of `%s`", shown, mk_error_message(), json_string_value(error));
  }
  mk_template_free(compiled);
  mk_free(have);
}

static void check_group(const char *name) {
  json_t *golden = read_golden("constructs.json");
  const json_t *cases = json_object_get(golden, "cases");
  size_t found = 0;
  for (size_t i = 0; i < json_array_size(cases); i++) {
    const json_t *entry = json_array_get(cases, i);
    if (strcmp(json_string_value(json_object_get(entry, "group")), name) == 0) {
      check(entry, json_object_get(golden, "variables"));
      found++;
    }
  }
  cr_assert_gt(found, 0, "constructs.txt has no group %s", name);
  json_decref(golden);
}

#define CONSTRUCT(name) \
  Test(template_construct, name) { check_group(#name); }

CONSTRUCT(filter_dictsort)
CONSTRUCT(filters_min_max)
CONSTRUCT(filter_sum)
CONSTRUCT(filters_sort_unique)
CONSTRUCT(filter_indent)
CONSTRUCT(filter_round)
CONSTRUCT(filters_batch_slice)
CONSTRUCT(filter_groupby)
CONSTRUCT(filters_of_words)
CONSTRUCT(filters_of_urls_and_html)
CONSTRUCT(filters_of_numbers)
CONSTRUCT(lazy_filters)
CONSTRUCT(other_filters)
CONSTRUCT(unknown_filters)
CONSTRUCT(tests_of_values)
CONSTRUCT(arguments_by_star)
CONSTRUCT(macros_and_callers)
CONSTRUCT(percent_of_strings)
CONSTRUCT(format_of_strings)
CONSTRUCT(string_methods)
CONSTRUCT(dict_and_list_methods)
CONSTRUCT(with_blocks)
CONSTRUCT(filter_blocks)
CONSTRUCT(raw_blocks)
CONSTRUCT(recursive_loops)
CONSTRUCT(loop_variables)
CONSTRUCT(letters_of_every_script)
CONSTRUCT(targets_of_set)
CONSTRUCT(other_statements)
CONSTRUCT(cyclers_and_joiners)
CONSTRUCT(printing)
CONSTRUCT(json)
CONSTRUCT(operators)
CONSTRUCT(time)

/* Loops, macros and the other scopes, inside of each other: which value a name has, and when. */
Test(template_construct, scopes) {
  json_t *golden = read_golden("scopes.json");
  const json_t *cases = json_object_get(golden, "cases");
  cr_assert_geq(json_array_size(cases), 300);
  for (size_t i = 0; i < json_array_size(cases); i++) {
    check(json_array_get(cases, i), json_object_get(golden, "variables"));
  }
  json_decref(golden);
}
