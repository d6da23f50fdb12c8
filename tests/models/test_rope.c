/* Inverse frequencies against those that transformers computes from the same config.json (make_rope_golden.py). */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/json.h"
#include "models/llama.h"
#include "tests/support/text.h"

enum { CASES = 24 };

static mk_status parse(const char *text, mk_config *config) { return mk_config_parse(text, strlen(text), config); }

static void check_case(const json_t *golden) {
  const char *name = json_string_value(json_object_get(golden, "name"));
  const json_t *want = json_object_get(golden, "frequencies");
  char *text = json_dumps(json_object_get(golden, "config"), 0);
  mk_config config;
  float got[64];
  cr_assert_eq(parse(text, &config), MK_OK, "%s: %s", name, mk_error_message());
  free(text);
  cr_assert_eq(json_array_size(want), config.head_dim / 2, "%s", name);
  mk_llama_frequencies(&config, got);
  for (uint32_t i = 0; i < config.head_dim / 2; i++) {
    double wanted = json_number_value(json_array_get(want, i)); /* of fp32 powers */
    cr_expect_lt(fabs((double)got[i] - wanted), 2e-6 * wanted, "%s: frequency %u is %g, not %g", name, i,
                 (double)got[i], wanted);
  }
}

Test(rope, frequencies_of_transformers) {
  char *text = test_read_file(MK_SOURCE_DIR "/tests/models/data/rope_frequencies.json");
  json_t *golden = json_loads(text, 0, NULL);
  const json_t *cases = json_object_get(golden, "cases");
  cr_assert_eq(json_array_size(cases), CASES);
  for (size_t i = 0; i < CASES; i++) {
    check_case(json_array_get(cases, i));
  }
  json_decref(golden);
  free(text);
}

#define SHAPE \
  "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"num_attention_heads\":32,\"max_position_embeddings\":4096,"

static mk_config accepted(const char *rope) {
  char text[512];
  mk_config config;
  snprintf(text, sizeof text, SHAPE "%s}", rope);
  cr_assert_eq(parse(text, &config), MK_OK, "%s: %s", rope, mk_error_message());
  return config;
}

static void refused(const char *rope, const char *message) {
  char text[512];
  mk_config config;
  snprintf(text, sizeof text, SHAPE "%s}", rope);
  cr_expect_eq(parse(text, &config), MK_ERR_FILE, "%s", rope);
  cr_expect_not_null(strstr(mk_error_message(), message), "\"%s\" lacks \"%s\"", mk_error_message(), message);
}

Test(rope, linear_and_dynamic_in_both_spellings) {
  static const char *const spellings[] = {"\"rope_scaling\":{\"type\":\"%s\",\"factor\":2.5}",
                                          "\"rope_scaling\":{\"rope_type\":\"%s\",\"factor\":2.5}",
                                          "\"rope_scaling\":{\"rope_type\":\"%s\",\"type\":\"%s\",\"factor\":2.5}",
                                          "\"rope_parameters\":{\"rope_type\":\"%s\",\"factor\":2.5}",
                                          "\"rope_scaling\":{},\"rope_parameters\":{\"type\":\"%s\",\"factor\":2.5}"};
  for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
    for (int dynamic = 0; dynamic < 2; dynamic++) {
      char rope[128];
      const char *type = dynamic ? "dynamic" : "linear";
      snprintf(rope, sizeof rope, spellings[i], type, type);
      mk_config c = accepted(rope);
      cr_expect(c.rope_type == (dynamic ? MK_ROPE_DYNAMIC : MK_ROPE_LINEAR) && c.rope_factor == 2.5, "%s", rope);
    }
  }
}

Test(rope, theta_inside_rope_parameters) {
  cr_expect_eq(accepted("\"rope_parameters\":{\"rope_theta\":250000}").rope_theta, 250000);
  cr_expect_eq(accepted("\"rope_parameters\":{\"rope_theta\":null}").rope_theta, 10000);
  cr_expect_eq(accepted("\"rope_theta\":6,\"rope_parameters\":{\"rope_theta\":6}").rope_theta, 6);
}

Test(rope, linear_and_dynamic_need_a_factor) {
  refused("\"rope_scaling\":{\"type\":\"linear\"}", "rope_scaling.factor: is missing; rope type \"linear\" needs it");
  refused("\"rope_parameters\":{\"rope_type\":\"dynamic\",\"factor\":null}", "rope type \"dynamic\" needs it");
  refused("\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}", "rope_scaling.factor: is 0.5, must be at least 1");
  refused("\"rope_scaling\":{\"type\":\"linear\",\"factor\":\"2\"}", "rope_scaling.factor: is \"2\"");
  refused("\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"type\":\"linear\",\"factor\":3}",
          "rope_scaling: differs from rope_parameters");
  refused(
      "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"rope_type\":\"dynamic\",\"factor\":"
      "2}",
      "rope_scaling: differs from rope_parameters");
}

#define LLAMA3 "\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4"

Test(rope, the_original_context_of_llama3) {
  cr_expect_eq(accepted("\"rope_scaling\":{" LLAMA3 "}").rope_original_max_position, 4096);
  cr_expect_eq(
      accepted("\"original_max_position_embeddings\":512,\"rope_scaling\":{" LLAMA3 "}").rope_original_max_position,
      512);
  refused("\"original_max_position_embeddings\":512,\"rope_scaling\":{" LLAMA3
          ",\"original_max_position_embeddings\":1024}",
          "original_max_position_embeddings: is given twice, as 512 and as 1024");
  cr_expect_eq(accepted("\"original_max_position_embeddings\":512,\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}")
                   .rope_type,
               MK_ROPE_DYNAMIC, "which counts from max_position_embeddings");
}
