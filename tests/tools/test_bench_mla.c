/* `mkvm bench --mla` as a user meets it. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/shell.h"

/* Runs it with arguments that the shell splits, standard error within the output; its exit code. */
static int run(const char *arguments) {
  char command[1024];
  snprintf(command, sizeof command, "$MKVM bench %s 2>&1 </dev/null", arguments);
  return test_shell(MK_COMMAND, command);
}

static void expect(const char *arguments, int want, const char *words) {
  int code = run(arguments);
  cr_assert_eq(code, want, "%s: exit code %d, not %d\n%s", arguments, code, want, test_output);
  cr_assert_not_null(strstr(test_output, words), "%s: `%s` is not in\n%s", arguments, words, test_output);
}

TestSuite(bench_mla, .timeout = MK_HANG_SECONDS);

Test(bench_mla, lengths_in_every_form) {
  expect("--mla 700,0,65 --new 2 --heads 8 --device cpu --sms 5", 0,
         "3 sequences of 0 to 700 tokens, 765 in all; 2 new tokens, 8 heads: 3 blocks of 16 query rows, 13 KV pages");
  expect("--mla 5x64", 0, "5 sequences of 64 to 64 tokens, 320 in all; 1 new token, 16 heads");
  expect("--mla random:6:10:20:1,3x100", 0, "9 sequences of ");
}

Test(bench_mla, costs) {
  expect("--mla 3000,100 --costs 100000,2000,10,40,1500,10 --device cpu", 0,
         "by these costs in ns: item 100000, page 2000, output row 10, slot row 40, reduction 1500, unit 10");
}

/* Both placements are printed, each with an error that is a number and small. */
Test(bench_mla, table) {
  static const char *const names[] = {"| makespan  |", "| naive     |"};
  cr_assert_eq(run("--mla 3000,100 --new 4 --heads 16 --device cpu"), 0, "%s", test_output);
  for (size_t i = 0; i < 2; i++) {
    unsigned items, slots, reductions;
    double schedule, check, simulated, error;
    const char *row = strstr(test_output, names[i]);
    cr_assert_not_null(row, "%s is not in %s", names[i], test_output);
    cr_assert_eq(sscanf(row + strlen(names[i]), " %u | %u | %u | %lf | %lf | %lf | %lf", &items, &slots, &reductions,
                        &schedule, &check, &simulated, &error),
                 7, "%s", row);
    cr_assert(items > 2 && slots > 2 && reductions > 1 && schedule > 0 && check > 0 && simulated > 5, "%s", row);
    cr_assert(error > 1e-4 && error < 2.5e-3, "%s", row);
  }
}

static double number(const json_t *row, const char *key) {
  const json_t *value = json_object_get(row, key);
  cr_assert(json_is_number(value), "%s is no number", key);
  return json_number_value(value);
}

/* The same in JSON: a list of an object each; what is measured on a GPU is null. */
Test(bench_mla, json) {
  static const char *const placements[] = {"makespan", "naive"};
  cr_assert_eq(run("--mla 3000,10x10 --new 2 --device cpu --sms 7 -o json"), 0, "%s", test_output);
  json_t *rows = json_loads(test_output, JSON_REJECT_DUPLICATES, NULL);
  cr_assert_eq(json_array_size(rows), 2, "%s", test_output);
  for (size_t i = 0; i < 2; i++) {
    const json_t *row = json_array_get(rows, i);
    cr_assert_str_eq(json_string_value(json_object_get(row, "placement")), placements[i]);
    cr_assert_str_eq(json_string_value(json_object_get(row, "lengths")), "3000,10x10");
    cr_assert_str_eq(json_string_value(json_object_get(row, "device")), "cpu");
    cr_assert(number(row, "n_sequences") == 11 && number(row, "n_tokens") == 3100 && number(row, "n_new") == 2 &&
              number(row, "n_heads") == 16 && number(row, "sms") == 7);
    cr_assert(number(row, "items") >= 11 && number(row, "schedule_us") > 0 && number(row, "simulated_us") > 2 &&
              number(row, "floor_us") > 0);
    cr_assert(number(row, "error") > 1e-4 && number(row, "error") < 2.5e-3, "%s", test_output);
    static const char *const measured[] = {"warm_us",    "warm_sm_mhz", "sustained_us", "alone_us",
                                           "flushed_us", "written_us",  "empty_us",     "floor_share"};
    for (size_t k = 0; k < sizeof measured / sizeof measured[0]; k++) {
      cr_assert(json_is_null(json_object_get(row, measured[k])), "%s", measured[k]);
    }
  }
  json_decref(rows);
  expect("--mla 64 --device cpu -o csv", 0, ",placement,items,");
}

Test(bench_mla, what_is_refused) {
  expect("--mla 64x --device cpu", 2, "'64x' are no lengths");
  expect("--mla 64,,3", 2, "are no lengths");
  expect("--mla -3", 2, "are no lengths");
  expect("--mla random:1:9:5:1", 2, "are no lengths");
  expect("--mla 0x5", 2, "are no lengths");
  expect("--mla 99999999999999999999", 2, "sequence 0 of");
  expect("--mla 70000x1", 2, "at most 65535 sequences");
  expect("--mla 5 --heads 12", 2, "heads is 12");
  expect("--mla 5 --heads 129", 2, "--heads");
  expect("--mla 5 --new 9", 2, "--new");
  expect("--mla 5 --like tiny", 2, "--mla goes with");
  expect("--mla 5 -n 4", 2, "--mla goes with");
  expect("--like tiny --new 4", 2, "need --mla LENGTHS");
  expect("--like tiny --flush", 2, "need --mla LENGTHS");
  expect("--mla 5 --flush --device cpu", 2, "--flush: times are measured on cuda");
  expect("--mla 5 --costs 1,2,3,4,5 --device cpu", 2, "'1,2,3,4,5' are no costs");
  expect("--mla 5 --costs 1,0,3,4,5,6 --device cpu", 2, "are no costs");
  expect("--mla 5 --mla-sweep", 2, "one at a time");
}
