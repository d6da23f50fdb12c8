/* Chat templates: equal to jinja2's rendering to the byte, errors included; what is refused, and by what words; the limits. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/json.h"
#include "models/template_chat.h"

#define FOLDER MK_SOURCE_DIR "/tests/models/data/templates"

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

static char directory[] = "/tmp/mk-template-XXXXXX";

static void put(const char *name, const char *text) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  if (text == NULL) {
    unlink(path);
    return;
  }
  FILE *file = fopen(path, "w");
  cr_assert(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void expect_chat(const char *want) {
  mk_chat *chat = NULL;
  json_t *messages = json_array();
  char *text;
  size_t length;
  cr_assert_eq(mk_chat_load(directory, &chat), MK_OK, "%s", mk_error_message());
  cr_assert_not_null(chat);
  cr_assert_eq(mk_chat_add(messages, "user", "a\xff", 2), MK_OK);
  cr_assert_eq(mk_chat_render(chat, messages, &now, &text, &length), MK_OK, "%s", mk_error_message());
  cr_assert_str_eq(text, want);
  mk_free(text);
  json_decref(messages);
  mk_chat_free(chat);
}

static void expect_no_chat(const char *error) {
  mk_chat *chat = NULL;
  cr_assert_eq(mk_chat_load(directory, &chat), MK_ERR_FILE);
  cr_assert_null(chat);
  cr_assert_not_null(strstr(mk_error_message(), error), "`%s` instead of `%s`", mk_error_message(), error);
}

static void drop_directory(void) {
  put("tokenizer_config.json", NULL);
  put("chat_template.jinja", NULL);
  rmdir(directory);
}

Test(template, of_a_directory, .fini = drop_directory) {
  mk_chat *chat;
  cr_assert_not_null(mkdtemp(directory));
  cr_assert_eq(mk_chat_load(directory, &chat), MK_OK);
  cr_assert_null(chat);
  put("tokenizer_config.json", "{\"eos_token\": \"</s>\"}");
  cr_assert_eq(mk_chat_load(directory, &chat), MK_OK);
  cr_assert_null(chat);
  put("tokenizer_config.json",
      "{\"chat_template\": \"{{ bos_token }}{{ messages[0].content }}\", "
      "\"bos_token\": {\"content\": \"<s>\", \"lstrip\": false}}");
  expect_chat("<s>a\xef\xbf\xbd");
  put("tokenizer_config.json",
      "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"t\"}, "
      "{\"name\": \"default\", \"template\": \"d{{ tools is none }}{{ eos_token is defined }}\"}]}");
  expect_chat("dTrueFalse");
  put("chat_template.jinja", "own{{ add_generation_prompt }}");
  expect_chat("ownTrue");
  put("chat_template.jinja", "{{ x | nope }}");
  expect_no_chat("chat_template.jinja: chat template, line 1: the filter 'nope' does not exist");
  put("chat_template.jinja", NULL);
  put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"t\"}]}");
  expect_no_chat("none of its templates has the name \"default\"");
  put("tokenizer_config.json", "{\"chat_template\": 5}");
  expect_no_chat("tokenizer_config.json: chat_template: 5 is not a text");
  put("tokenizer_config.json", "{\"bos_token\": [1], \"chat_template\": \"\"}");
  expect_no_chat("bos_token: [1] is neither");
  put("tokenizer_config.json", "{\"chat_template\": ");
  expect_no_chat("tokenizer_config.json");
}
