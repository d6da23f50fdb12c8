/* generation_config.json: what it says about sampling, and what it must not say. */
#include "models/generation.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* From memory without a byte to spare. */
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
