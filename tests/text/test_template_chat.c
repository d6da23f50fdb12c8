/* The chat template of a directory and its tokens: which file goes before which, as transformers 5 has it. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text/template_chat.h"

static const struct tm now = {.tm_year = 126, .tm_mday = 5, .tm_wday = 1, .tm_yday = 4};

static char directory[] = "/tmp/mk-template-XXXXXX";

static const char *const files[] = {
    "tokenizer_config.json",
    "special_tokens_map.json",
    "config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/default.jinja",
    "additional_chat_templates/tool_use.jinja",
};

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

/* No file but those that are put next. */
static void clear(void) {
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    put(files[i], NULL);
  }
}

static void make_directory(void) {
  char path[128];
  cr_assert_not_null(mkdtemp(directory));
  snprintf(path, sizeof path, "%s/additional_chat_templates", directory);
  cr_assert_eq(mkdir(path, 0700), 0);
}

static void drop_directory(void) {
  char path[128];
  clear();
  snprintf(path, sizeof path, "%s/additional_chat_templates", directory);
  rmdir(path);
  rmdir(directory);
}

static void expect_chat(const char *want) {
  mk_chat *chat = NULL;
  json_t *messages = json_array();
  char *text;
  size_t length;
  cr_assert_eq(mk_chat_load(directory, &chat), MK_OK, "%s", mk_error_message());
  cr_assert_not_null(chat);
  cr_assert_eq(mk_chat_add(messages, "user", "a\xff", 2), MK_OK);
  cr_assert_eq(mk_chat_render(chat, messages, NULL, &now, &text, &length), MK_OK, "%s", mk_error_message());
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

static void expect_none(void) {
  mk_chat *chat;
  cr_assert_eq(mk_chat_load(directory, &chat), MK_OK, "%s", mk_error_message());
  cr_assert_null(chat);
}

/* A template that shows every token there may be, from tokenizer_config.json with `members` besides. */
static void put_config(const char *members) {
  char text[1024];
  snprintf(
      text, sizeof text,
      "{%s%s\"chat_template\": \"{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ image_token }}|{{ eoi }}|"
      "{{ bos_token is defined }}{{ additional_special_tokens is defined }}{{ extra_special_tokens is defined }}\"}",
      members, members[0] != 0 ? ", " : "");
  put("tokenizer_config.json", text);
}

TestSuite(template_chat, .init = make_directory, .fini = drop_directory);

Test(template_chat, of_the_configuration) {
  expect_none();
  put("tokenizer_config.json", "{\"eos_token\": \"</s>\"}");
  expect_none();
  put("tokenizer_config.json",
      "{\"chat_template\": \"{{ bos_token }}{{ messages[0].content }}\", "
      "\"bos_token\": {\"content\": \"<s>\", \"lstrip\": false}}");
  expect_chat("<s>a\xef\xbf\xbd");
  put("tokenizer_config.json",
      "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"t\"}, "
      "{\"name\": \"default\", \"template\": \"d{{ tools is none }}{{ eos_token is defined }}\"}]}");
  expect_chat("dTrueFalse");
  put("tokenizer_config.json", "{\"chat_template\": {\"tool_use\": \"t\", \"default\": \"d\"}}");
  expect_chat("d");
  put("chat_template.jinja", "own{{ add_generation_prompt }}");
  expect_chat("ownTrue");
}

Test(template_chat, faults_are_named) {
  put("chat_template.jinja", "{{ x | nope }}");
  expect_no_chat("chat_template.jinja: chat template, line 1: the filter 'nope' does not exist");
  clear();
  put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"t\"}]}");
  expect_no_chat("none of its templates has the name \"default\"");
  put("tokenizer_config.json", "{\"chat_template\": [{\"template\": \"t\"}]}");
  expect_no_chat("chat_template: element 0 has no \"name\"");
  put("tokenizer_config.json", "{\"chat_template\": 5}");
  expect_no_chat("tokenizer_config.json: chat_template: 5 is not a text");
  put("tokenizer_config.json", "{\"bos_token\": [1], \"chat_template\": \"\"}");
  expect_no_chat("tokenizer_config.json: bos_token: [1] is neither");
  put("tokenizer_config.json", "{\"extra_special_tokens\": {\"x\": 1}, \"chat_template\": \"\"}");
  expect_no_chat("extra_special_tokens: x: 1 is neither");
  put("tokenizer_config.json", "{\"chat_template\": ");
  expect_no_chat("tokenizer_config.json");
  put("tokenizer_config.json", "{\"chat_template\": \"\"}");
  put("special_tokens_map.json", "{\"bos_token\": 5}");
  expect_no_chat("special_tokens_map.json: bos_token: 5 is neither");
}

Test(template_chat, named_template_files) {
  put("tokenizer_config.json", "{\"chat_template\": \"config\"}");
  put("chat_template.json", "{\"chat_template\": \"of a processor\"}");
  expect_chat("config");
  put("additional_chat_templates/tool_use.jinja", "tools");
  expect_no_chat("none is default.jinja");
  put("chat_template.jinja", "file");
  expect_chat("file");
  put("additional_chat_templates/default.jinja", "folder");
  expect_chat("folder");
}

Test(template_chat, a_template_of_processors_alone_is_named) {
  put("chat_template.json", "{\"chat_template\": \"of a processor\"}");
  expect_no_chat("chat_template.json: is read by processors of images and sound alone");
  put("tokenizer_config.json", "{\"chat_template\": null}");
  expect_no_chat("write its template to chat_template.jinja");
  put("chat_template.jinja", "file");
  expect_chat("file");
}

Test(template_chat, tokens_of_special_tokens_map) {
  put_config("");
  expect_chat("|||||FalseFalseFalse");
  put("special_tokens_map.json", "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\", \"lstrip\": false}}");
  expect_chat("<s>|</s>||||TrueFalseFalse");
  put_config("\"bos_token\": \"<a>\", \"unk_token\": \"<u>\"");
  expect_chat("<s>|</s>|<u>|||TrueFalseFalse");
  put_config("\"bos_token\": \"<a>\", \"added_tokens_decoder\": {}");
  expect_chat("<a>|||||TrueFalseFalse");
  put_config("\"bos_token\": \"<a>\"");
  put("special_tokens_map.json", "{\"bos_token\": null}");
  expect_chat("|||||FalseFalseFalse");
  put("tokenizer_config.json", NULL);
  put("chat_template.jinja", "{{ bos_token }}");
  put("special_tokens_map.json", "{\"bos_token\": \"<s>\"}");
  expect_chat("<s>");
}

Test(template_chat, tokens_with_names_of_their_own) {
  put_config("\"image_token\": \"<im>\"");
  expect_chat("|||<im>||FalseFalseFalse");
  put_config("\"extra_special_tokens\": {\"image_token\": \"<x>\", \"eoi\": \"<e>\"}, \"image_token\": \"<im>\"");
  expect_chat("|||<x>|<e>|FalseFalseFalse");
  put_config("\"extra_special_tokens\": [\"<x>\"], \"additional_special_tokens\": [\"<y>\"]");
  expect_chat("|||||FalseFalseFalse");
  put_config("\"image_token\": {\"__type\": \"AddedToken\", \"content\": \"<im>\"}");
  expect_chat("|||<im>||FalseFalseFalse");
  put_config("\"image_token\": {\"content\": \"<im>\"}");
  expect_chat("|||||FalseFalseFalse");
  put_config("\"model_specific_special_tokens\": {\"eoi\": \"<e>\"}");
  expect_chat("||||<e>|FalseFalseFalse");
  put_config("\"model_specific_special_tokens\": {\"eoi\": \"<e>\"}, \"image_token\": \"<im>\"");
  expect_chat("|||<im>||FalseFalseFalse");
  put("special_tokens_map.json", "{\"image_token\": \"<m>\"}");
  expect_chat("|||<im>||FalseFalseFalse");
  put("special_tokens_map.json", "{\"extra_special_tokens\": {\"image_token\": \"<m>\"}}");
  expect_chat("|||<m>||FalseFalseFalse");
}

Test(template_chat, tokens_that_the_class_assumes) {
  put_config("\"tokenizer_class\": \"LlamaTokenizerFast\"");
  put("tokenizer.json", "{\"decoder\": {\"type\": \"Metaspace\"}}");
  expect_chat("<s>|</s>|<unk>|||TrueFalseFalse");
  put_config("\"tokenizer_class\": \"LlamaTokenizer\", \"bos_token\": null, \"eos_token\": \"<e>\"");
  expect_chat("|<e>|<unk>|||FalseFalseFalse");
  put("tokenizer.json", "{\"decoder\": {\"type\": \"ByteLevel\"}}");
  expect_chat("|<e>||||FalseFalseFalse");
  put_config("\"tokenizer_class\": \"GPT2Tokenizer\"");
  expect_chat("<|endoftext|>|<|endoftext|>|<|endoftext|>|||TrueFalseFalse");
  put_config("\"tokenizer_class\": \"PreTrainedTokenizerFast\"");
  expect_chat("|||||FalseFalseFalse");
  put_config("");
  put("config.json", "{\"tokenizer_class\": \"CodeLlamaTokenizer\"}");
  expect_chat("<s>|</s>|<unk>|||TrueFalseFalse");
}

/* Every allocation of loading fails once. */
Test(template_chat, allocation) {
  mk_chat *chat = NULL;
  put_config("\"tokenizer_class\": \"LlamaTokenizer\"");
  put("special_tokens_map.json", "{\"bos_token\": \"<s>\"}");
  mk_status status = MK_ERR_RUNTIME;
  for (uint64_t n = 1; status != MK_OK && n < 10000; n++) {
    mk_alloc_fail_at(n, false);
    status = mk_chat_load(directory, &chat);
    cr_assert(status == MK_OK || status == MK_ERR_RUNTIME, "allocation %lu: %s", n, mk_error_message());
  }
  mk_alloc_fail_at(0, false);
  cr_assert_eq(status, MK_OK);
  mk_chat_free(chat);
}
