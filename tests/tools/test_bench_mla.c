/* `mkvm bench --mla` as a user meets it. */
#include <criterion/criterion.h>
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

TestSuite(bench_mla, .timeout = 240);

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

/* Both placements, each with an error that is a number and small. */
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
