/* `mkvm bench` as a user meets it: what it prints as JSON, tables and CSV, of a model or of a shape alone. */
#include "tests/tools/command_rig.h"

TestSuite(bench_command, .init = make_tiny, .fini = remove_all, .timeout = MK_HANG_SECONDS);

static double number_of(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  cr_assert(json_is_number(value), "%s is no number", key);
  return json_number_value(value);
}

/* Weight bytes of the tiny shape by hand: seven matrices a layer and the head, two bytes each, norms and embedding
 * apart. */
static double tiny_weight_bytes(void) {
  test_result r = RUN("info", "-m", in_directory("tiny"));
  unsigned layers, hidden, intermediate, heads, head_dim, kv_heads, vocab;
  const char *shape = strstr(r.out, "Llama, "), *words = strstr(r.out, "vocabulary  ");
  cr_assert_eq(sscanf(shape, "Llama, %u layers, hidden %u, intermediate %u, %u heads of %u, %u KV heads", &layers,
                      &hidden, &intermediate, &heads, &head_dim, &kv_heads),
               6);
  cr_assert_eq(sscanf(words, "vocabulary  %u", &vocab), 1);
  test_drop(&r);
  double per_layer = 2.0 * hidden * heads * head_dim + 2.0 * hidden * kv_heads * head_dim + 3.0 * hidden * intermediate;
  return 2 * (layers * per_layer + (double)vocab * hidden);
}

Test(bench_command, json) {
  test_result r =
      RUN("bench", "--like", "tiny", "--device", "cpu", "-p", "0", "-n", "4,6", "-d", "0,8", "-r", "2", "-o", "json");
  cr_assert_eq(r.code, 0, "%s", r.err);
  json_t *rows = json_loads(r.out, JSON_REJECT_DUPLICATES, NULL);
  cr_assert_eq(json_array_size(rows), 4, "%s", r.out);
  static const char *const tests[] = {"tg4", "tg6", "tg4 @ d8", "tg6 @ d8"};
  for (size_t i = 0; i < 4; i++) {
    const json_t *row = json_array_get(rows, i);
    cr_assert_str_eq(text_of(row, "test"), tests[i]);
    cr_assert_str_eq(text_of(row, "model"), "tiny");
    cr_assert_str_eq(text_of(row, "backend"), "CPU");
    cr_assert_str_eq(text_of(row, "device"), "cpu");
    cr_assert_eq(number_of(row, "n_gen"), i % 2 == 0 ? 4 : 6);
    cr_assert_eq(number_of(row, "n_prompt"), 0);
    cr_assert_eq(number_of(row, "n_depth"), i < 2 ? 0 : 8);
    cr_assert_eq(number_of(row, "launches"), 2);
    cr_assert_eq(number_of(row, "weight_bytes_per_token"), tiny_weight_bytes());
    double rate = number_of(row, "avg_ts"), median = number_of(row, "launch_ms_per_token_p50");
    cr_assert(rate > 0 && median > 0 && number_of(row, "stddev_ts") >= 0);
    /* Of two launches the median is the faster one, and the mean rate lies between both. */
    cr_assert(rate <= 1.001e3 / median && rate >= 0.999e3 / number_of(row, "launch_ms_per_token_p99"), "%s", r.out);
    cr_assert_leq(number_of(row, "token_ms_p50"), number_of(row, "token_ms_p99"));
    cr_assert(json_is_null(json_object_get(row, "read_bytes_per_s")) &&
              json_is_null(json_object_get(row, "read_share")));
  }
  json_decref(rows);
  test_drop(&r);
}

/* Only the shape is taken from the directory: no weights need be there. */
Test(bench_command, like_a_directory) {
  static char path[300];
  snprintf(path, sizeof path, "%s/shape/", directory);
  EXPECT(0, "configuration alone", "", "synth", "--like", "tiny", "--config-only", "-o", path);
  test_result r =
      RUN("bench", "--like", path, "--device", "cpu", "-p", "0", "-n", "4", "-r", "1", "-s", "3", "-o", "json");
  cr_assert_eq(r.code, 0, "%s", r.err);
  json_t *rows = json_loads(r.out, JSON_REJECT_DUPLICATES, NULL);
  cr_assert_eq(json_array_size(rows), 1, "%s", r.out);
  cr_assert_str_eq(text_of(json_array_get(rows, 0), "model"), "shape");
  cr_assert_eq(number_of(json_array_get(rows, 0), "weight_bytes_per_token"), tiny_weight_bytes());
  json_decref(rows);
  test_drop(&r);
  EXPECT(3, "", "config.json", "bench", "--like", "./nothing-here", "--device", "cpu", "-p", "0", "-n", "4");
}

static size_t columns(const char *line) {
  size_t count = 0;
  for (; *line != '\0' && *line != '\n'; line++) {
    count += *line == '|';
  }
  return count;
}

Test(bench_command, tables) {
  const char *model = in_directory("tiny");
  test_result r = RUN("bench", "-m", model, "--device", "cpu", "-p", "5", "-n", "4", "-r", "1");
  cr_assert_eq(r.code, 0, "%s", r.err);
  static const char *const parts[] = {"| model ", "| -----", "pp5 |", "tg4 |"};
  const char *line = r.out;
  for (size_t i = 0; i < 4; i++) {
    cr_assert_eq(columns(line), 14, "line %zu of: %s", i, r.out);
    const char *end = strchr(line, '\n'), *part = strstr(line, parts[i]);
    cr_assert(part != NULL && part < end, "line %zu has no `%s`: %s", i, parts[i], r.out);
    line = end + 1;
  }
  cr_assert_eq(line[0], '\n');
  cr_assert_not_null(strstr(r.out, "\n| tiny "), "the model's name is the directory's: %s", r.out);
  cr_assert_not_null(strstr(r.out, "device: cpu\n"), "%s", r.out);
  test_drop(&r);

  r = RUN("bench", "-m", model, "--device", "cpu", "-p", "0", "-n", "2,3", "-r", "1", "-o", "csv");
  cr_assert_eq(r.code, 0, "%s", r.err);
  size_t lines = 0;
  for (const char *c = r.out; *c != '\0'; c++) {
    lines += *c == '\n';
  }
  cr_assert_eq(lines, 3, "%s", r.out);
  cr_assert_not_null(strstr(r.out, ",\"tg3\",0,3,0,1,"), "%s", r.out);
  test_drop(&r);
  EXPECT(3, "", "config.json", "bench", "-m", directory);
}
