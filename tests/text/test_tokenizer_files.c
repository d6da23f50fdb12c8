/* tokenizer.json files that are refused, each with a message that names the field and the value. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"

/* A small file to break: replaces the first `from` by `to` and expects the message to contain `message`. */
static const char small[] =
    "{\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true,\"single_word\":false,\"lstrip\":false,"
    "\"rstrip\":false,\"normalized\":false},{\"id\":5,\"content\":\"</s>\",\"special\":true}],\"normalizer\":null,"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
    "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[4]}}},"
    "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
    "\"byte_fallback\":false,\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3},\"merges\":[\"a b\"]}}";

static mk_status parse_broken(const char *from, const char *to, mk_tokenizer **t) {
  char text[4096];
  const char *at = strstr(small, from);
  cr_assert_not_null(at, "%s", from);
  int length = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - small), small, to, at + strlen(from));
  char *exact = malloc((size_t)length);
  memcpy(exact, text, (size_t)length);
  mk_status status = mk_tokenizer_parse(exact, (size_t)length, t);
  free(exact);
  return status;
}

static void refused(const char *from, const char *to, const char *message) {
  mk_tokenizer *t = NULL;
  cr_expect_eq(parse_broken(from, to, &t), MK_ERR_FILE, "%s -> %s", from, to);
  cr_expect_not_null(strstr(mk_error_message(), message), "\"%s\" lacks \"%s\"", mk_error_message(), message);
  cr_expect_null(t);
}

Test(tokenizer_files, the_small_file_is_good_as_it_is) {
  mk_tokenizer *t = NULL;
  mk_tokens tokens = {0};
  cr_assert_eq(parse_broken("BPE", "BPE", &t), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_tokenizer_encode(t, "abz c</s>", 9, true, &tokens), MK_OK);
  const uint32_t want[] = {4, 3, 2, 5}; /* 'z' and ' ' are not in this vocabulary: left out, as Hugging Face does */
  cr_assert_eq(tokens.count, 4);
  cr_assert_eq(memcmp(tokens.ids, want, sizeof want), 0);
  mk_tokens_free(&tokens);
  mk_tokenizer_free(t);
}

/* A hole is no harm: its id stands for no token. */
Test(tokenizer_files, a_hole_in_the_ids) {
  mk_tokenizer *t = NULL;
  mk_tokens tokens = {0};
  mk_decoder *decoder;
  const char *text;
  size_t length;
  cr_assert_eq(parse_broken("\"ab\":3", "\"ab\":6", &t), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_tokenizer_vocab(t), 7);
  cr_assert_eq(mk_tokenizer_encode(t, "ab</s>", 6, true, &tokens), MK_OK);
  const uint32_t want[] = {4, 6, 5};
  cr_assert(tokens.count == 3 && memcmp(tokens.ids, want, sizeof want) == 0);
  cr_assert_eq(mk_decoder_new(t, &decoder), MK_OK);
  cr_assert_eq(mk_decoder_push(decoder, 3, &text, &length), MK_OK);
  cr_assert_eq(length, 0);
  mk_decoder_free(decoder);
  mk_tokens_free(&tokens);
  mk_tokenizer_free(t);
}
Test(tokenizer_files, an_id_far_beyond_the_others) {
  refused("\"ab\":3", "\"ab\":9000000", "model.vocab: has 6 tokens with ids up to 9000000");
}
Test(tokenizer_files, gap_in_the_added_ids) {
  refused("\"id\":5", "\"id\":7", "is 7, but Hugging Face tokenizers would take 5");
}
Test(tokenizer_files, duplicate_id) { refused("\"ab\":3", "\"ab\":2", "already that of \"c\""); }
Test(tokenizer_files, duplicate_id_of_an_added_token) {
  refused("\"id\":5", "\"id\":4", "is 4, but Hugging Face tokenizers would take 5");
}
Test(tokenizer_files, added_token_with_the_id_after_a_hole) {
  refused("\"ab\":3", "\"ab\":4", "added_tokens[0]: \"<s>\": id 4 is already that of \"ab\"");
}
Test(tokenizer_files, duplicate_token) { refused("\"c\":2", "\"a\":2", "duplicate"); }
Test(tokenizer_files, duplicate_added_token) { refused("\"</s>\"", "\"<s>\"", "there twice"); }
Test(tokenizer_files, added_token_contradicts_the_vocabulary) {
  refused("\"</s>\"", "\"ab\"", "gives \"ab\" the id 3");
}
Test(tokenizer_files, negative_id) { refused("\"ab\":3", "\"ab\":-3", "id -3"); }
Test(tokenizer_files, fractional_id) { refused("\"ab\":3", "\"ab\":3.5", "id 3.5"); }
Test(tokenizer_files, overflowing_id) { refused("\"ab\":3", "\"ab\":18446744073709551619", "integer"); }
Test(tokenizer_files, merge_of_an_unknown_piece) { refused("\"a b\"", "\"a x\"", "\"x\" is not in model.vocab"); }
Test(tokenizer_files, merge_into_an_unknown_piece) { refused("\"a b\"", "\"b a\"", "\"ba\" is not in model.vocab"); }
Test(tokenizer_files, merge_of_three) { refused("\"a b\"", "\"a b c\"", "model.merges[0]"); }
Test(tokenizer_files, merge_of_one) { refused("\"a b\"", "[\"a\"]", "model.merges[0]"); }
Test(tokenizer_files, merges_missing) { refused("\"merges\"", "\"merge\"", "model.merges: must be a list"); }
Test(tokenizer_files, vocab_missing) { refused("\"vocab\"", "\"vocabulary\"", "model.vocab: must be an object"); }
Test(tokenizer_files, other_model) { refused("BPE", "Unigram", "\"Unigram\" is not supported"); }
Test(tokenizer_files, dropout) { refused("\"dropout\":null", "\"dropout\":0.1", "model.dropout: 0.1"); }
Test(tokenizer_files, unknown_unk_token) {
  refused("\"unk_token\":null", "\"unk_token\":\"x\"", "model.unk_token: \"x\"");
}
Test(tokenizer_files, unk_token_is_a_number) { refused("\"unk_token\":null", "\"unk_token\":0", "model.unk_token: 0"); }
Test(tokenizer_files, byte_fallback_is_no_flag) {
  refused("\"byte_fallback\":false", "\"byte_fallback\":1", "model.byte_fallback: is 1, must be true or false");
}
Test(tokenizer_files, single_word_is_no_flag) {
  refused("\"single_word\":false", "\"single_word\":\"\"", "single_word: is \"\"");
}

static void normalizer_refused(const char *normalizer, const char *message) {
  char text[512];
  snprintf(text, sizeof text, "\"normalizer\":%s", normalizer);
  refused("\"normalizer\":null", text, message);
}

Test(tokenizer_files, normalizers_that_are_not_computed_here) {
  static const char *const types[] = {"Precompiled", "StripAccents", "BertNormalizer", "Nmt", "ByteLevel"};
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
    char one[64], in_sequence[128], message[128];
    snprintf(one, sizeof one, "{\"type\":\"%s\"}", types[i]);
    snprintf(in_sequence, sizeof in_sequence, "{\"type\":\"Sequence\",\"normalizers\":[%s]}", one);
    snprintf(message, sizeof message, "normalizer: %s is not supported", one);
    normalizer_refused(one, message);
    snprintf(message, sizeof message, "normalizer.normalizers[0]: %s is not supported", one);
    normalizer_refused(in_sequence, message);
  }
}
Test(tokenizer_files, normalizer_without_a_type) { normalizer_refused("{}", "normalizer: {} is not supported"); }
Test(tokenizer_files, normalizer_is_a_list) { normalizer_refused("[]", "normalizer: [] is not supported"); }
Test(tokenizer_files, sequence_in_a_sequence) {
  normalizer_refused("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Sequence\",\"normalizers\":[]}]}",
                     "normalizer.normalizers[0]: {\"type\":\"Sequence\"");
}
Test(tokenizer_files, sequence_without_a_list) {
  normalizer_refused("{\"type\":\"Sequence\"}", "normalizer.normalizers: must be a list");
}
Test(tokenizer_files, sequence_of_seventeen) {
  char list[1024] = "{\"type\":\"Sequence\",\"normalizers\":[0";
  for (int i = 1; i < 17; i++) {
    strcat(list, ",0");
  }
  normalizer_refused(strcat(list, "]}"), "at most 16 steps");
}
Test(tokenizer_files, replace_by_a_pattern_of_nothing) {
  normalizer_refused("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" *\"},\"content\":\"_\"}",
                     "normalizer.pattern.Regex: may match the empty text");
}
Test(tokenizer_files, strip_is_no_flag) {
  normalizer_refused("{\"type\":\"Strip\",\"strip_left\":1}", "normalizer.strip_left: is 1");
}
Test(tokenizer_files, replace_of_nothing) {
  normalizer_refused("{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"_\"}",
                     "normalizer.pattern.String: is \"\"");
}
Test(tokenizer_files, replace_without_content) {
  normalizer_refused("{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"}}", "normalizer.content: is null");
}
Test(tokenizer_files, prepend_is_a_number) {
  normalizer_refused("{\"type\":\"Prepend\",\"prepend\":1}", "normalizer.prepend: is 1, must be a string");
}
Test(tokenizer_files, normalizer_that_lets_text_explode) {
#define FOURFOLD "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaa\"}"
  normalizer_refused("{\"type\":\"Sequence\",\"normalizers\":[" FOURFOLD "," FOURFOLD "," FOURFOLD "," FOURFOLD "]}",
                     "normalizer.normalizers[3]: text may become more than 64 times as long");
}
Test(tokenizer_files, normalizer_that_leaves_nothing_of_a_token) {
  static const char from[] = "\"special\":true}],\"normalizer\":null";
  refused(from,
          "\"special\":true,\"normalized\":true}],\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":"
          "\"</s>\"},\"content\":\"\"}",
          "added_tokens[1].content: becomes 0 bytes");
}

static void pre_tokenizer_refused(const char *members, const char *message) {
  char text[256];
  snprintf(text, sizeof text, "\"pre_tokenizer\":{\"type\":\"Metaspace\"%s}", members);
  refused("\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}", text, message);
}

Test(tokenizer_files, metaspace_without_replacement) {
  pre_tokenizer_refused("", "pre_tokenizer.replacement: is null");
}
Test(tokenizer_files, metaspace_of_two_characters) {
  pre_tokenizer_refused(",\"replacement\":\"__\"", "pre_tokenizer.replacement: is \"__\", must be one character");
}
Test(tokenizer_files, metaspace_of_an_unknown_scheme) {
  pre_tokenizer_refused(",\"replacement\":\"_\",\"prepend_scheme\":\"last\"", "pre_tokenizer.prepend_scheme: \"last\"");
}
Test(tokenizer_files, metaspace_that_contradicts_itself) {
  pre_tokenizer_refused(",\"replacement\":\"_\",\"add_prefix_space\":false",
                        "pre_tokenizer.prepend_scheme: is \"always\", but add_prefix_space is false");
}
Test(tokenizer_files, metaspace_whose_split_is_no_flag) {
  pre_tokenizer_refused(",\"replacement\":\"_\",\"split\":1", "pre_tokenizer.split: is 1");
}
Test(tokenizer_files, first_after_a_prepend) {
  refused("\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false",
          "\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"_\"},\"pre_tokenizer\":{\"type\":\"Metaspace\","
          "\"replacement\":\"_\",\"prepend_scheme\":\"first\"",
          "pre_tokenizer.prepend_scheme: \"first\" is supported only");
}

static void decoder_refused(const char *decoder, const char *message) {
  char text[512];
  snprintf(text, sizeof text, "\"decoder\":%s", decoder);
  refused("\"decoder\":{\"type\":\"ByteLevel\"}", text, message);
}

Test(tokenizer_files, decoders_that_are_not_computed_here) {
  decoder_refused("{\"type\":\"WordPiece\"}", "decoder: {\"type\":\"WordPiece\"} is not supported");
  decoder_refused("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"CTC\"}]}",
                  "decoder.decoders[1]: {\"type\":\"CTC\"}");
}
Test(tokenizer_files, decoder_that_replaces_after_fuse) {
  decoder_refused("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Replace\"}]}",
                  "decoder.decoders[1]: {\"type\":\"Replace\"} is not supported; only Strip and Fuse");
}
Test(tokenizer_files, decoder_that_strips_the_end) {
  decoder_refused("{\"type\":\"Strip\",\"content\":\" \",\"start\":0,\"stop\":1}", "decoder.stop: 1 is not supported");
}
Test(tokenizer_files, decoder_that_strips_half_a_time) {
  decoder_refused("{\"type\":\"Strip\",\"content\":\" \",\"start\":0.5,\"stop\":0}", "decoder.start: is 0.5");
}
Test(tokenizer_files, decoder_that_strips_words) {
  decoder_refused("{\"type\":\"Strip\",\"content\":\"ab\",\"start\":1,\"stop\":0}",
                  "decoder.content: is \"ab\", must be one character");
}
Test(tokenizer_files, lstrip_is_no_flag) {
  refused("\"lstrip\":false", "\"lstrip\":0", "added_tokens[0].lstrip: is 0");
}
Test(tokenizer_files, other_pre_tokenizer) { refused("\"ByteLevel\"", "\"BertPreTokenizer\"", "\"BertPreTokenizer\""); }
Test(tokenizer_files, other_decoder) {
  refused("\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":null", "decoder: null");
}
Test(tokenizer_files, other_post_processor) { refused("TemplateProcessing", "BertProcessing", "\"BertProcessing\""); }
Test(tokenizer_files, template_without_text) {
  refused("\"Sequence\":{\"id\":\"A\"}", "\"Sequence\":{\"id\":\"B\"}", "sequence A");
}
Test(tokenizer_files, template_of_an_unknown_token) { refused("{\"ids\":[4]}", "{\"ids\":[6]}", "id 6 is not below"); }
Test(tokenizer_files, template_of_an_unlisted_token) { refused("{\"<s>\":{", "{\"<t>\":{", "special_tokens lists"); }
Test(tokenizer_files, not_json) { refused("{\"added_tokens\"", "{added_tokens", "line 1"); }
Test(tokenizer_files, text_after_the_end) { refused("[\"a b\"]}}", "[\"a b\"]}}x", "end of file"); }
Test(tokenizer_files, not_utf8) { refused("\"c\"", "\"\xff\"", "unable to decode byte 0xff"); }
static void steps_refused(const char *steps, const char *message) {
  char text[1024];
  snprintf(text, sizeof text, "{\"type\":\"Sequence\",\"pretokenizers\":%s}", steps);
  refused("{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}", text, message);
}

Test(tokenizer_files, pre_tokenizers_that_contradict_themselves) {
  steps_refused("[{\"type\":\"Digits\",\"individual_digits\":1}]", "pretokenizers[0].individual_digits: is 1");
  steps_refused("[{\"type\":\"Punctuation\"},{\"type\":\"Fixed\"}]", "pretokenizers[1]: {\"type\":\"Fixed\"}");
  steps_refused("{}", "a Sequence of a few steps is");
  steps_refused("[{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"X\"}]}]",
                "pre_tokenizer.pretokenizers[0].pretokenizers[0]: {\"type\":\"X\"}");
  steps_refused("[{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Kept\"}]", "behavior: \"Kept\"");
  steps_refused("[{\"type\":\"Split\",\"pattern\":{\"String\":\"\"},\"behavior\":\"Removed\"}]",
                "pattern.String: is \"\"");
  steps_refused("[{\"type\":\"Split\",\"pattern\":{\"Word\":\"a\"},\"behavior\":\"Removed\"}]",
                "pretokenizers[0].pattern: {\"Word\":\"a\"}");
  steps_refused("[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\bx\"},\"behavior\":\"Removed\"}]",
                "pre_tokenizer.pretokenizers[0].pattern: \\b is not supported in a pattern");
}
Test(tokenizer_files, seventeen_pre_tokenizers) {
  char list[1024] = "[{\"type\":\"Digits\"}";
  for (int i = 1; i < 17; i++) {
    strcat(list, ",{\"type\":\"Digits\"}");
  }
  steps_refused(strcat(list, "]"), "more than 16 steps");
}

/* A cut at every byte: never a crash, never accepted. */
Test(tokenizer_files, every_truncation_is_refused) {
  for (size_t length = 0; length + 1 < sizeof small; length++) {
    mk_tokenizer *t = NULL;
    char *exact = malloc(length + (length == 0));
    memcpy(exact, small, length);
    cr_assert_eq(mk_tokenizer_parse(exact, length, &t), MK_ERR_FILE, "%zu bytes", length);
    free(exact);
  }
}
