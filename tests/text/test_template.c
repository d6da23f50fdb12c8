/* Whole chat templates: equal to jinja2's rendering to the byte, errors included; what is refused, and by what words;
 * the limits. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/json.h"
#include "text/template.h"

#define FOLDER MK_SOURCE_DIR "/tests/text/data/templates"

/* As make_template_golden.py has it: Monday, 2026-01-05 14:03:09. */
static const struct tm now = {
    .tm_year = 126, .tm_mday = 5, .tm_wday = 1, .tm_yday = 4, .tm_hour = 14, .tm_min = 3, .tm_sec = 9};

static mk_status render(const char *source, size_t source_length, const json_t *variables, char **text,
                        size_t *length) {
  mk_template *compiled = NULL;
  *text = NULL;
  MK_TRY(mk_template_compile(source, source_length, &compiled));
  mk_status status = mk_template_render(compiled, variables, &now, text, length);
  mk_template_free(compiled);
  return status;
}

static void read_file(const char *name, char **text, size_t *length) {
  char path[512];
  snprintf(path, sizeof path, FOLDER "/%s", name);
  cr_assert_eq(mk_file_read(path, false, 1 << 20, text, length), MK_OK, "%s", mk_error_message());
}

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), tail = strlen(end);
  return tail <= length && strcmp(text + length - tail, end) == 0;
}

static void check(const json_t *entry, const json_t *variables) {
  const char *name = json_string_value(json_object_get(entry, "template"));
  const long long index = json_integer_value(json_object_get(entry, "variables"));
  const json_t *text = json_object_get(entry, "text"), *error = json_object_get(entry, "error");
  char *source, *have;
  size_t source_length, length;
  read_file(name, &source, &source_length);
  mk_status status = render(source, source_length, json_array_get(variables, (size_t)index), &have, &length);
  if (text != NULL) {
    cr_assert_eq(status, MK_OK, "%s, variables %lld: %s", name, index, mk_error_message());
    cr_assert(length == json_string_length(text) && memcmp(have, json_string_value(text), length) == 0,
              "%s, variables %lld:\n%s\ninstead of\n%s", name, index, have, json_string_value(text));
  } else {
    cr_assert_neq(status, MK_OK, "%s, variables %lld: %s", name, index, have);
    cr_assert(json_is_null(error) || ends_with(mk_error_message(), json_string_value(error)),
              "%s, variables %lld: `%s` instead of `%s`", name, index, mk_error_message(), json_string_value(error));
  }
  mk_free(have);
  mk_free(source);
}

Test(template, golden) {
  char *text;
  size_t length;
  json_t *golden;
  read_file("golden.json", &text, &length);
  cr_assert_eq(mk_json_parse(text, length, &golden), MK_OK, "%s", mk_error_message());
  const json_t *cases = json_object_get(golden, "cases");
  cr_assert_geq(json_array_size(cases), 100);
  for (size_t i = 0; i < json_array_size(cases); i++) {
    check(json_array_get(cases, i), json_object_get(golden, "variables"));
  }
  json_decref(golden);
  mk_free(text);
}

static json_t *some_variables(void) {
  return json_pack("{s:s,s:i,s:[i,i,i],s:{s:s}}", "s", "hello World", "n", 7, "l", 1, 2, 3, "d", "k", "v");
}

/* Renders to `want`, or fails with a message that holds `error`. */
static void expect(const char *source, const char *want, const char *error) {
  json_t *variables = some_variables();
  char *text;
  size_t length = 0;
  mk_status status = render(source, strlen(source), variables, &text, &length);
  if (want != NULL) {
    cr_assert_eq(status, MK_OK, "%s: %s", source, mk_error_message());
    cr_assert_str_eq(text, want, "%s: `%s` instead of `%s`", source, text, want);
    cr_assert_eq(length, strlen(want));
  } else {
    cr_assert_neq(status, MK_OK, "%s: `%s`", source, text);
    cr_assert_not_null(strstr(mk_error_message(), error), "%s: `%s` instead of `%s`", source, mk_error_message(),
                       error);
    cr_assert_not_null(strstr(mk_error_message(), "chat template"), "%s", mk_error_message());
  }
  mk_free(text);
  json_decref(variables);
}

Test(template, white_space) {
  expect("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc", NULL);
  expect("a \n {%- if true -%} \n b {%- endif +%}\nc", "ab\nc", NULL);
  expect("  {{ n }}\n {# note #}\nx", "  7\nx", NULL);
  expect("  {%+ if true %}x{% endif %}", "  x", NULL);
  expect("a\r\nb\rc\n\n", "a\nb\nc\n", NULL);
  expect("{{- 1 -}}  {{ 2 }}", "12", NULL);
  expect("", "", NULL);
}

Test(template, scopes) {
  expect("{% set x = 0 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "0102030", NULL);
  expect("{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "6", NULL);
  expect("{% for i in l %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13", NULL);
  expect("{% for i in [] %}{% else %}none{% endfor %}", "none", NULL);
  expect("{% macro f(a, b=n) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(b=2, a=3) }}", "1732", NULL);
}

Test(template, refused_by_name) {
  const char *const cases[][2] = {
      {"\n{{ s | urlize }}", "line 2: the filter 'urlize' is not supported"},
      {"{{ s | wordwrap }}", "line 1: the filter 'wordwrap' is not supported"},
      {"{{ l | map('pprint') | list }}", "line 1: the filter 'pprint' is not supported"},
      {"{{ s | nope }}", "line 1: the filter 'nope' does not exist"},
      {"{{ s is nope }}", "the test 'is nope' does not exist"},
      {"{% include 'x' %}", "the tag 'include' is not supported"},
      {"{% block b %}{% endblock %}", "the tag 'block' is not supported"},
      {"{% autoescape true %}{% endautoescape %}", "the tag 'autoescape' is not supported"},
      {"{% endif %}", "the tag 'endif' is not supported or not expected here"},
      {"{{ s.translate({}) }}", "the method 'translate' of a str is not supported"},
      {"{{ n.bit_length() }}", "the method 'bit_length' of a int is not supported"},
      {"{{ l.append(3) }}", "access to attribute 'append' of 'list' object is unsafe."},
      {"{{ d.update(k=1) }}", "access to attribute 'update' of 'dict' object is unsafe."},
      {"{{ '%a' % s }}", "%a in a format is not supported"},
      {"{{ '{!a}'.format(s) }}", "converts by '!a', which is not supported"},
      {"{{ '{:010,}'.format(n) }}", "zeros in front of grouped digits is not supported"},
      {"{{ self }}", "'self' is not supported"},
      {"{{ lipsum() }}", "'lipsum' is not supported"},
      {"{{ 2.5 | round(-1) }}", "a negative precision is not supported for a float"},
      {"{% for x in l %}{{ loop | list }}{% endfor %}", "going through 'loop' is not supported"},
      {"{{ '\xd9\xa1' | int }}", "digits beyond ASCII are not supported"},
      {"{{ l | map('upper') }}", "printing a generator is not supported"},
      {"{{ strftime_now('%f') }}", "directive that is not supported"},
      {"{{ 9223372036854775807 + 1 }}", "exceeds 64 bits"},
      {"{{ 99999999999999999999 }}", "out of range"},
      {"{{ namespace(__class__=1) }}", "may not start with an underscore"},
      {"{{ s.__class__ }}{{ s.__class__.x }}", "'str object' has no attribute '__class__'"},
      {"{% break %}", "stands outside of a loop"},
      {"{% if n %}", "{% endif %} is missing"},
      {"{{ n", "does not end"},
      {"{# n", "the comment that starts here does not end"},
      {"{{ 'n }}", "the string that starts here does not end"},
      {"{{ n ? }}", "unexpected character '?'"},
      {"{{ (n] }}", "unexpected ']'"},
      {"{{ }}", "expected an expression, not '}}'"},
      {"{{ x.y }}", "'x' is undefined"},
      {"{{ d.x.y }}", "'dict object' has no attribute 'x'"},
      {"{{ l[9].y }}", "list object has no element 9"},
      {"{{ raise_exception('so ' ~ n) }}", "line 1: so 7"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    expect(cases[i][0], NULL, cases[i][1]);
  }
}

Test(template, who_is_at_fault) {
  char *text;
  size_t length;
  json_t *variables = json_object();
  const char refuses[] = "{{ raise_exception('no') }}", wrong[] = "{{ 1 + 'a' }}", invalid[] = "a\xff";
  cr_assert_eq(render(refuses, strlen(refuses), variables, &text, &length), MK_ERR_USAGE);
  cr_assert_eq(render(wrong, strlen(wrong), variables, &text, &length), MK_ERR_FILE);
  cr_assert_eq(render(invalid, strlen(invalid), variables, &text, &length), MK_ERR_FILE);
  cr_assert_not_null(strstr(mk_error_message(), "byte 1 is not UTF-8"));
  json_decref(variables);
}

/* `part` `count` times between a start and an end. */
static void expect_repeated(const char *start, const char *part, size_t count, const char *end, const char *error) {
  size_t size = strlen(part);
  char *source = malloc(strlen(start) + size * count + strlen(end) + 1), *at = source;
  at = stpcpy(at, start);
  for (size_t i = 0; i < count; i++) {
    at = stpcpy(at, part);
  }
  strcpy(at, end);
  expect(source, NULL, error);
  free(source);
}

Test(template, limits, .timeout = MK_HANG_SECONDS) {
  expect_repeated("{{ ", "(", 100000, "", "nested more than");
  expect("{{ [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]] }}",
         "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]", NULL);
  char nested[512] = "{{ ";
  for (size_t i = 0; i < 150; i++) {
    nested[3 + i] = '(';
    nested[154 + i] = ')';
  }
  strcpy(nested + 304, " }}");
  nested[153] = '1';
  expect(nested, NULL, "nested more than 200 deep");
  expect_repeated("{{ ", "-", 100000, "1 }}", "nested more than");
  expect_repeated("{{ ", "not ", 100000, "1 }}", "nested more than");
  expect_repeated("{{ n", "+1", 10000, " }}", "nested more than");
  expect_repeated("{{ n", ".a", 10000, " }}", "nested more than");
  expect_repeated("{{ ", "1 if 1 else ", 10000, "1 }}", "nested more than");
  expect_repeated("", "{% if 1 %}", 10000, "", "nested more than");
  expect_repeated("{% if 1 %}", "{% elif 1 %}", 10000, "{% endif %}", "nested more than");
  expect_repeated("", "x", MK_TEMPLATE_MAX_BYTES + 1, "", "it has 1048577 bytes");
  expect("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", NULL, "nested more than 500 deep");
  expect("{% set r = range(100000) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}", NULL, "");
  expect("{% for a in range(9999) %}{% for b in range(9999) %}{{ '' }}{% endfor %}{% endfor %}", NULL, "");
  expect("{{ range(100001) }}", NULL, "Range too big");
  expect("{{ 'x' * 99999999999 }}", NULL, "exceeds 16777216 elements");
  expect("{% for a in range(99) %}{{ 'x' * 999999 }}{% endfor %}", NULL, "MiB");
  expect("{% set ns = namespace(x='ab') %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", NULL,
         "MiB of memory");
  expect("{% set ns = namespace(x=[]) %}{% for a in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}", NULL,
         "nested more than 500 deep");
  expect("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", NULL, "nested more than 500 deep");
}

/* What the statements and filters of later days could be made to do without end. */
Test(template, limits_of_constructs, .timeout = MK_HANG_SECONDS) {
  expect("{% for x in l recursive %}{{ loop(l) }}{% endfor %}", NULL, "nested more than 500 deep");
  expect("{% macro m() %}{{ caller }}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}", NULL,
         "nested more than 500 deep");
  expect("{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{{ m(caller=m) }}{% endcall %}", NULL, "");
  expect(
      "{% set ns = namespace(x=l) %}{% for i in range(9999) %}{% set ns.x = ns.x | map('string') %}{% endfor %}"
      "{{ ns.x | list }}",
      NULL, "nested more than 500 deep");
  expect("{{ 'x'.center(99999999) }}", NULL, "a padded text exceeds 16777216 characters");
  expect("{{ '%99999999d' % n }}", NULL, "a width exceeds 16777216 characters");
  expect("{{ '{:.9999f}'.format(1.5) }}", NULL, "a precision above 1000 is not supported");
  expect("{{ l | batch(9999999, 0) | list }}", NULL, "MiB of memory");
  expect("{{ l | slice(9999999) | list }}", NULL, "");
  expect("{{ ('a' * 9999999).rfind('b' * 999) }}", NULL, "steps");
  expect("{{ ('a' * 9999999).rsplit('b' * 999) }}", NULL, "steps");
  expect("{{ range(99999) | list | unique | list | length }}", NULL, "steps");
  expect("{{ ('x' * 9999999) | upper | length }}", "9999999", NULL);
  expect_repeated("", "{% with %}", 10000, "", "nested more than");
  expect_repeated("", "{% filter upper %}", 10000, "", "nested more than");
  expect_repeated("", "{% macro m() %}", 10000, "", "nested more than");
  expect_repeated("{% set ", "(", 10000, "a = 1 %}", "nested more than");
  expect_repeated("{% raw %}", "{% endraw ", 50000, "", "the raw text that starts here does not end");
}

/* Every allocation fails once, and once with all that follow. */
Test(template, allocation) {
  char *source, *text;
  size_t source_length, length;
  json_t *variables =
      json_pack("{s:[{s:s,s:s}],s:s,s:n}", "messages", "role", "user", "content", "Hi", "bos_token", "<s>", "tools");
  read_file("llama31.jinja", &source, &source_length);
  for (int forever = 0; forever < 2; forever++) {
    mk_status status = MK_ERR_RUNTIME;
    uint64_t n = 1;
    for (; status != MK_OK && n < 10000; n++) {
      mk_alloc_fail_at(n, forever != 0);
      status = render(source, source_length, variables, &text, &length);
      cr_assert(status == MK_OK || status == MK_ERR_RUNTIME, "allocation %lu: %s", n, mk_error_message());
    }
    mk_alloc_fail_at(0, false);
    cr_assert(status == MK_OK && n > 5, "%lu: %s", n, mk_error_message());
    mk_free(text);
  }
  json_decref(variables);
  mk_free(source);
}
