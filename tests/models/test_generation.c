/* generation_config.json: what it says about sampling, and what it must not say. */
#include "models/generation.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Parses from memory without a byte to spare. */
static mk_status parse(const char *text, mk_generation *out) {
  size_t length = strlen(text);
  char *exact = malloc(length == 0 ? 1 : length);
  memcpy(exact, text, length);
  mk_status status = mk_generation_parse(exact, length, out);
  free(exact);
  return status;
}

static mk_generation accepted(const char *text) {
  mk_generation g = {0};
  cr_assert_eq(parse(text, &g), MK_OK, "%s: %s", text, mk_error_message());
  return g;
}

Test(generation, llama_3_instruct) {
  mk_generation g = accepted(
      "{\"bos_token_id\":128000,\"do_sample\":true,\"eos_token_id\":[1,2],\"temperature\":0.6,"
      "\"top_p\":0.9,\"transformers_version\":\"4.45.0\"}");
  cr_assert(g.do_sample && g.temperature == 0.6 && g.top_p == 0.9 && g.top_k == 50);
  cr_assert(g.min_p == 0 && g.repetition_penalty == 1);
}

Test(generation, absent_keys) {
  mk_generation g = accepted("{}");
  cr_assert(!g.do_sample && g.temperature == 0 && g.top_k == 0 && g.top_p == 1 && g.min_p == 0);
  g = accepted("{\"do_sample\":true,\"temperature\":null}");
  cr_assert(g.do_sample && g.temperature == 1 && g.top_k == 50);
}

Test(generation, without_do_sample_it_is_greedy) {
  mk_generation g = accepted("{\"do_sample\":false,\"temperature\":0.7,\"top_k\":20,\"repetition_penalty\":1.1}");
  cr_assert(!g.do_sample && g.temperature == 0 && g.top_k == 20 && g.repetition_penalty == 1.1);
}

Test(generation, everything_given) {
  mk_generation g = accepted("{\"do_sample\":true,\"temperature\":2,\"top_k\":0,\"top_p\":0,\"min_p\":1}");
  cr_assert(g.temperature == 2 && g.top_k == 0 && g.top_p == 0 && g.min_p == 1);
}

Test(generation, length_of_answers) {
  cr_assert_eq(accepted("{}").max_new_tokens, 0);
  cr_assert_eq(accepted("{\"max_new_tokens\":null}").max_new_tokens, 0);
  cr_assert_eq(accepted("{\"max_new_tokens\":2048,\"max_length\":20}").max_new_tokens, 2048);
}

/* A file as releases save it that write every default. */
Test(generation, what_asks_for_nothing) {
  accepted(
      "{\"num_beams\":1,\"num_beam_groups\":1,\"diversity_penalty\":0.0,\"penalty_alpha\":null,\"guidance_scale\":1.0,"
      "\"min_length\":0,\"min_new_tokens\":0,\"no_repeat_ngram_size\":0,\"encoder_no_repeat_ngram_size\":0,"
      "\"encoder_repetition_penalty\":1.0,\"typical_p\":1.0,\"epsilon_cutoff\":0.0,\"eta_cutoff\":0.0,"
      "\"bad_words_ids\":null,\"suppress_tokens\":[],\"sequence_bias\":{},\"token_healing\":false,"
      "\"length_penalty\":2.0,\"early_stopping\":true,\"renormalize_logits\":true,\"cache_implementation\":\"hybrid\","
      "\"num_return_sequences\":1,\"use_cache\":false,\"chat_format\":\"chatml\"}");
}

Test(generation, what_is_not_computed) {
  static const char *const bad[][2] = {{"num_beams", "4"},
                                       {"num_beam_groups", "2"},
                                       {"diversity_penalty", "0.5"},
                                       {"penalty_alpha", "0.6"},
                                       {"dola_layers", "\"high\""},
                                       {"guidance_scale", "1.5"},
                                       {"min_length", "3"},
                                       {"min_new_tokens", "1"},
                                       {"max_time", "2.5"},
                                       {"stop_strings", "\"x\""},
                                       {"no_repeat_ngram_size", "3"},
                                       {"encoder_no_repeat_ngram_size", "3"},
                                       {"encoder_repetition_penalty", "1.1"},
                                       {"typical_p", "0.9"},
                                       {"top_h", "0.4"},
                                       {"epsilon_cutoff", "0.001"},
                                       {"eta_cutoff", "0.001"},
                                       {"bad_words_ids", "[[5]]"},
                                       {"force_words_ids", "[[5]]"},
                                       {"constraints", "[1]"},
                                       {"forced_bos_token_id", "0"},
                                       {"forced_eos_token_id", "[2]"},
                                       {"suppress_tokens", "[1,2]"},
                                       {"begin_suppress_tokens", "[220]"},
                                       {"sequence_bias", "[[[1],-2.0]]"},
                                       {"exponential_decay_length_penalty", "[5,1.1]"},
                                       {"token_healing", "true"},
                                       {"watermarking_config", "{\"bias\":2.5}"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    char text[128], want[128];
    mk_generation g = {.top_k = 77};
    snprintf(text, sizeof text, "{\"%s\":%s}", bad[i][0], bad[i][1]);
    snprintf(want, sizeof want, "%s: is %s, and answers made so are not supported", bad[i][0], bad[i][1]);
    cr_expect_eq(parse(text, &g), MK_ERR_FILE, "%s", text);
    cr_expect_not_null(strstr(mk_error_message(), want), "`%s` is not in: %s", want, mk_error_message());
    cr_expect_eq(g.top_k, 77, "a refused file has changed the result");
  }
}

Test(generation, refusals) {
  static const char *const bad[][2] = {{"{\"do_sample\":1}", "do_sample: is 1"},
                                       {"{\"temperature\":-0.1}", "temperature: is -0.1"},
                                       {"{\"temperature\":\"hot\"}", "temperature: is \"hot\""},
                                       {"{\"top_p\":1.01}", "top_p: is 1.01"},
                                       {"{\"min_p\":-1}", "min_p: is -1"},
                                       {"{\"top_k\":2.5}", "top_k: is 2.5"},
                                       {"{\"top_k\":-1}", "top_k: is -1"},
                                       {"{\"top_k\":1e300}", "top_k"},
                                       {"{\"repetition_penalty\":0}", "repetition_penalty: is 0"},
                                       {"{\"max_new_tokens\":0}", "max_new_tokens: is 0"},
                                       {"{\"max_new_tokens\":1.5}", "max_new_tokens: is 1.5, must be a whole"},
                                       {"[]", ""},
                                       {"", ""},
                                       {"{\"top_p\":0.9", ""}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    mk_generation g = {.top_k = 77};
    cr_assert_eq(parse(bad[i][0], &g), MK_ERR_FILE, "%s", bad[i][0]);
    cr_assert_not_null(strstr(mk_error_message(), bad[i][1]), "`%s` is not in: %s", bad[i][1], mk_error_message());
    cr_assert_eq(g.top_k, 77, "a refused file has changed the result");
  }
}

Test(generation, files) {
  char directory[] = "/tmp/mkvm-generation-XXXXXX", path[64];
  cr_assert_not_null(mkdtemp(directory));
  snprintf(path, sizeof path, "%s/generation_config.json", directory);
  mk_generation g;
  cr_assert_eq(mk_generation_load(directory, &g), MK_OK);
  cr_assert(!g.do_sample && g.top_p == 1);
  FILE *file = fopen(path, "w");
  fputs("{\"do_sample\":true,\"top_p\":7}", file);
  fclose(file);
  cr_assert_eq(mk_generation_load(directory, &g), MK_ERR_FILE);
  cr_assert_not_null(strstr(mk_error_message(), path), "%s", mk_error_message());
  cr_assert_eq(unlink(path), 0);
  cr_assert_eq(rmdir(directory), 0);
}
