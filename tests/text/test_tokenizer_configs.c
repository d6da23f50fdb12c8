/* The files beside tokenizer.json: what they make of its tokens, as transformers has it
 * (tests/text/data/tokenizer_configs.json, written by make_config_golden.py), and what is refused. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/json.h"
#include "text/template_tokens.h"
#include "text/tokenizer.h"
#include "text/tokenizer_added.h"

static char directory[] = "/tmp/mk-configs-XXXXXX";
static const char *const files[] = {"tokenizer.json", "config.json", "tokenizer_config.json", "special_tokens_map.json",
                                    "added_tokens.json"};

static void path_of(char path[128], const char *name) { snprintf(path, 128, "%s/%s", directory, name); }

static void put(const char *name, const json_t *content) {
  char path[128];
  path_of(path, name);
  unlink(path);
  cr_assert(content == NULL || json_is_null(content) || json_dump_file(content, path, 0) == 0, "%s", path);
}

static void make_directory(void) { cr_assert_not_null(mkdtemp(directory)); }

static void drop_directory(void) {
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    put(files[i], NULL);
  }
  rmdir(directory);
}

TestSuite(tokenizer_configs, .init = make_directory, .fini = drop_directory);

static json_t *read_golden(void) {
  json_error_t error;
  json_t *golden = json_load_file(MK_SOURCE_DIR "/tests/text/data/tokenizer_configs.json", JSON_ALLOW_NUL, &error);
  cr_assert_not_null(golden, "%s", error.text);
  return golden;
}

static json_t *ids_of(const mk_tokens *tokens) {
  json_t *ids = json_array();
  for (size_t i = 0; i < tokens->count; i++) {
    json_array_append_new(ids, json_integer(tokens->ids[i]));
  }
  return ids;
}

static json_t *text_of(const mk_tokenizer *t, const mk_tokens *tokens) {
  char all[1024];
  size_t used = 0;
  mk_decoder *decoder;
  cr_assert_eq(mk_decoder_new(t, &decoder), MK_OK);
  for (size_t i = 0; i <= tokens->count; i++) {
    const char *part;
    size_t length;
    cr_assert_eq(i < tokens->count ? mk_decoder_push(decoder, tokens->ids[i], &part, &length)
                                   : mk_decoder_finish(decoder, &part, &length),
                 MK_OK);
    cr_assert_lt(used + length, sizeof all);
    memcpy(all + used, part, length);
    used += length;
  }
  mk_decoder_free(decoder);
  return json_stringn(all, used);
}

/* Takes both. */
static void same(json_t *have, const json_t *want, size_t number, const char *what) {
  char *shown = json_dumps(have, JSON_ENCODE_ANY), *wanted = json_dumps(want, JSON_ENCODE_ANY);
  cr_expect(json_equal(have, want), "case %zu, %s: %s instead of %s", number, what, shown, wanted);
  free(shown);
  free(wanted);
  json_decref(have);
}

static void put_case(const json_t *golden, const json_t *entry) {
  const char *document = json_string_value(json_object_get(entry, "document"));
  json_t *model = json_pack("{s:O}", "model_type", json_object_get(entry, "model_type"));
  put("tokenizer.json", json_object_get(json_object_get(golden, "documents"), document));
  put("config.json", model);
  put("tokenizer_config.json", json_object_get(entry, "config"));
  put("special_tokens_map.json", json_object_get(entry, "map"));
  json_decref(model);
}

static void check(const json_t *entry, const json_t *texts, size_t number) {
  json_t *config = NULL, *named = json_object();
  mk_tokenizer *t = NULL;
  mk_tokens tokens = {0};
  cr_assert_eq(mk_tokenizer_load(directory, UINT32_MAX, &t), MK_OK, "case %zu: %s", number, mk_error_message());
  for (size_t i = 0; i < json_array_size(texts); i++) {
    const json_t *text = json_array_get(texts, i);
    tokens.count = 0;
    cr_assert_eq(mk_tokenizer_encode(t, json_string_value(text), json_string_length(text), true, &tokens), MK_OK);
    same(ids_of(&tokens), json_array_get(json_object_get(entry, "ids"), i), number, json_string_value(text));
    same(text_of(t, &tokens), json_array_get(json_object_get(entry, "decoded"), i), number, json_string_value(text));
  }
  cr_assert_eq(mk_template_read_json(directory, "tokenizer_config.json", &config), MK_OK);
  cr_assert_eq(mk_template_tokens(directory, config, named), MK_OK, "%s", mk_error_message());
  same(named, json_object_get(entry, "tokens"), number, "special tokens");
  json_decref(config);
  mk_tokens_free(&tokens);
  mk_tokenizer_free(t);
}

Test(tokenizer_configs, as_transformers_has_it) {
  json_t *golden = read_golden();
  const json_t *cases = json_object_get(golden, "cases");
  cr_assert_gt(json_array_size(cases), 30);
  for (size_t i = 0; i < json_array_size(cases); i++) {
    put_case(golden, json_array_get(cases, i));
    check(json_array_get(cases, i), json_object_get(golden, "texts"), i);
  }
  json_decref(golden);
}

static void refused(const char *config, const char *message) {
  json_t *golden = read_golden(), *parsed = json_loads(config, 0, NULL);
  mk_tokenizer *t = NULL;
  cr_assert_not_null(parsed, "%s", config);
  put_case(golden, json_array_get(json_object_get(golden, "cases"), 0));
  put("tokenizer_config.json", parsed);
  cr_expect_eq(mk_tokenizer_load(directory, UINT32_MAX, &t), MK_ERR_FILE, "%s", config);
  cr_expect_not_null(strstr(mk_error_message(), message), "\"%s\" lacks \"%s\"", mk_error_message(), message);
  cr_expect_null(t);
  json_decref(parsed);
  json_decref(golden);
}

Test(tokenizer_configs, refusals) {
  refused("{\"added_tokens_decoder\":[]}", "tokenizer_config.json: added_tokens_decoder: is []");
  refused("{\"added_tokens_decoder\":{\"x\":{\"content\":\"<a>\"}}}", "added_tokens_decoder: \"x\" is not an id");
  refused("{\"added_tokens_decoder\":{\"-1\":{\"content\":\"<a>\"}}}", "\"-1\" is not an id");
  refused("{\"added_tokens_decoder\":{\"99999999999999999999\":{\"content\":\"<a>\"}}}", "is not an id");
  refused("{\"added_tokens_decoder\":{\"265\":\"<a>\"}}", "\"265\": content is null, must be a text");
  refused("{\"added_tokens_decoder\":{\"265\":{\"content\":\"\"}}}", "\"265\": a token must not be the empty text");
  refused("{\"added_tokens_decoder\":{\"265\":{\"content\":\"<a>\",\"lstrip\":1}}}", "lstrip: is 1, must be true or");
  refused("{\"added_tokens_decoder\":{\"270\":{\"content\":\"<a>\"}}}",
          "\"<a>\" has the id 270, but tokenizer.json lacks it, and transformers would give it the id 265");
  refused("{\"pad_token\":\"\"}", "pad_token: a token must not be the empty text");
  refused("{\"pad_token\":5}", "tokenizer_config.json: pad_token: 5 is neither");
  refused("{\"extra_special_tokens\":[5]}", "extra_special_tokens[0]: 5 is neither");
}

Test(tokenizer_configs, a_file_of_older_releases) {
  json_t *both = json_pack("{s:i,s:i}", "<one>", 261, "<new>", 265), *known = json_pack("{s:i}", "<one>", 261);
  put("added_tokens.json", both);
  refused("{}", "added_tokens.json: \"<new>\" is not in tokenizer.json");
  json_t *golden = read_golden();
  mk_tokenizer *t = NULL;
  put("added_tokens.json", known);
  cr_assert_eq(mk_tokenizer_load(directory, UINT32_MAX, &t), MK_OK, "%s", mk_error_message());
  mk_tokenizer_free(t);
  put("added_tokens.json", both);
  put_case(golden, json_array_get(json_object_get(golden, "cases"), 2)); /* with added_tokens_decoder */
  cr_assert_eq(mk_tokenizer_load(directory, UINT32_MAX, &t), MK_OK, "%s", mk_error_message());
  mk_tokenizer_free(t);
  json_decref(golden);
  json_decref(both);
  json_decref(known);
}

/* A token that the files add counts as one that tokenizer.json has: a model that lacks it does not get it. */
Test(tokenizer_configs, an_added_token_that_the_model_lacks) {
  json_t *golden = read_golden(), *config = json_pack("{s:s}", "pad_token", "[PAD]");
  mk_tokenizer *t = NULL;
  mk_tokens tokens = {0};
  put_case(golden, json_array_get(json_object_get(golden, "cases"), 0));
  put("tokenizer_config.json", config);
  cr_assert_eq(mk_tokenizer_load(directory, 265, &t), MK_OK, "%s", mk_error_message());
  cr_expect_eq(mk_tokenizer_encode(t, "ab", 2, true, &tokens), MK_OK);
  cr_expect_eq(mk_tokenizer_encode(t, "a[PAD]", 6, true, &tokens), MK_ERR_USAGE);
  cr_expect_not_null(strstr(mk_error_message(), "\"[PAD]\" with the id 265, but the model's vocabulary has 265"));
  mk_tokens_free(&tokens);
  mk_tokenizer_free(t);
  json_decref(config);
  json_decref(golden);
}

/* Every allocation of loading fails once. */
Test(tokenizer_configs, allocation) {
  json_t *golden = read_golden();
  mk_tokenizer *t = NULL;
  mk_status status = MK_ERR_RUNTIME;
  put_case(golden, json_array_get(json_object_get(golden, "cases"), 4));
  for (uint64_t n = 1; status != MK_OK && n < 10000; n++) {
    mk_alloc_fail_at(n, false);
    status = mk_tokenizer_load(directory, UINT32_MAX, &t);
    cr_assert(status == MK_OK || status == MK_ERR_RUNTIME, "allocation %lu: %s", n, mk_error_message());
  }
  mk_alloc_fail_at(0, false);
  cr_assert_eq(status, MK_OK);
  mk_tokenizer_free(t);
  json_decref(golden);
}
