/* mkvm run with several prompts, and with prompts in chunks, as a user meets it. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/effort.h"
#include "tests/support/model.h"
#include "tests/support/shell.h"

#define DEMO MK_SOURCE_DIR "/models/demo"

TestSuite(prompts, .timeout = MK_HANG_SECONDS);

static int shell(const char *command) { return test_shell(MK_COMMAND, command); }

static void expect(const char *command, int code, const char *text) {
  test_shell_expect(MK_COMMAND, command, code, text);
}

static json_t *json(const char *command) {
  cr_assert_eq(shell(command), 0, "%s\n%s", command, test_output);
  json_t *object = json_loads(test_output, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
  cr_assert_not_null(object, "not JSON: %s", test_output);
  return object;
}

#define GREEDY "$MKVM run -m $DEMO --temp 0 "
#define THREE "-p 'Once upon a time' -p 'The small cat' -p 'To make a new branch, type' "

/* Each as for its prompt alone, whatever the rows. */
Test(prompts, sequences_in_the_order_of_the_prompts) {
  static const char *const alone[] = {"Once upon a time", "The small cat", "To make a new branch, type"};
  static const char *const together[] = {GREEDY THREE "-n 40 --json --stop .",
                                         GREEDY THREE "-n 40 --json --stop . --rows 1",
                                         GREEDY THREE "-n 40 --json --stop . --rows 2 --sms 3 --interleave 5 --check"};
  static const char *const keys[] = {"prompt_tokens", "tokens", "text", "finish_reason", "sampling", "model", "device"};
  json_t *want[3];
  for (size_t i = 0; i < 3; i++) {
    char command[256];
    snprintf(command, sizeof command, GREEDY "-p '%s' -n 40 --json --stop . --rows 1", alone[i]);
    want[i] = json(command);
  }
  for (size_t t = 0; t < 3; t++) {
    json_t *all = json(together[t]), *sequences = json_object_get(all, "sequences");
    cr_assert_eq(json_object_size(all), 1);
    cr_assert_eq(json_array_size(sequences), 3);
    for (size_t i = 0; i < 3; i++) {
      json_t *have = json_array_get(sequences, i);
      for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        cr_assert(json_equal(json_object_get(have, keys[k]), json_object_get(want[i], keys[k])),
                  "run %zu, prompt %zu: %s", t, i, keys[k]);
      }
      cr_assert_null(json_object_get(have, "error"));
      cr_assert_eq(json_object_size(have), json_object_size(want[i]));
    }
    json_decref(all);
  }
  for (size_t i = 0; i < 3; i++) {
    json_decref(want[i]);
  }
}

/* Under the line of its prompt, when it is finished: the shorter one first. */
Test(prompts, text_under_the_name_of_the_prompt) {
  char want[2][4096];
  cr_assert_eq(shell(GREEDY "-p 'Once upon\n a time' -n 40 --stop . --rows 1 2>/dev/null"), 0);
  snprintf(want[0], sizeof want[0], "==> 1: Once upon  a time <==\n%.3000s", test_output);
  cr_assert_eq(shell(GREEDY "-p 'The' -n 2 --rows 1 2>/dev/null"), 0);
  snprintf(want[1], sizeof want[1], "==> 2: The <==\n%.3000s", test_output);
  cr_assert_eq(shell(GREEDY "-p 'Once upon\n a time' -p The -n 2 2>/dev/null"), 0);
  cr_assert_not_null(strstr(test_output, want[1]), "%s", test_output);
  cr_assert_eq(shell(GREEDY "-p 'Once upon\n a time' -p The -n 40 --stop . 2>/dev/null"), 0);
  cr_assert_not_null(strstr(test_output, want[0]), "`%s` is not in\n%s", want[0], test_output);
  expect(GREEDY THREE "-n 3 --echo 2>/dev/null", 0, "==> 2: The small cat <==\nThe small cat");
  expect(GREEDY THREE "-n 3 2>&1 >/dev/null", 0, "3 prompts, ");
  expect(GREEDY "-n 3 -p 0123456789012345678901234567890123456789012345678901234567\xc3\xa9\xc3\xa9 -p b 2>/dev/null",
         0, "1: 0123456789012345678901234567890123456789012345678901234567\xc3\xa9... <==\n");
}

Test(prompts, drawn_tokens_are_those_of_one_prompt) {
  json_t *one = json("$MKVM run -m $DEMO --temp 1 -s 7 -p The -n 9 --ignore-eos --rows 1 --json");
  json_t *all = json("$MKVM run -m $DEMO --temp 1 -s 7 -p A -p The -n 9 --ignore-eos --json --logprobs 2");
  json_t *have = json_array_get(json_object_get(all, "sequences"), 1);
  cr_assert(json_equal(json_object_get(one, "tokens"), json_object_get(have, "tokens")));
  cr_assert_eq(json_array_size(json_object_get(have, "logprobs")), 9);
  json_decref(one);
  json_decref(all);
}

/* A long file, in chunks by itself and as told. */
Test(prompts, long_files) {
  char command[256];
  snprintf(command, sizeof command, "head -c %u $DEMO/README.md >/tmp/mk-prompts-%d", test_effort(1000, 2000),
           getpid());
  setenv("LONG", strchr(command, '>') + 1, 1);
  cr_assert_eq(shell(command), 0);
  json_t *want = json(GREEDY "-f $LONG -n 6 --json --rows 1");
  cr_assert_gt(json_array_size(json_object_get(want, "prompt_tokens")), 300);
  static const char *const ways[] = {"", "--rows 4", "--rows 16 --sms 5", "--rows 64 --sms 3"};
  for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
    snprintf(command, sizeof command, GREEDY "-f - -n 6 --json %s <$LONG", ways[i]);
    json_t *have = json(command);
    cr_assert(json_equal(json_object_get(want, "tokens"), json_object_get(have, "tokens")), "%s", ways[i]);
    json_decref(have);
  }
  json_decref(want);
  expect(GREEDY "-f $LONG -n 2 --rows 8 --logits $LONG.npy 2>&1; wc -c <$LONG.npy; rm $LONG $LONG.npy", 0, "\n32896\n");
}

Test(prompts, usage) {
  expect(GREEDY "-p a -p b --logits x 2>&1", 2, "--logits is for one prompt; 2 are given");
  expect("$MKVM run -m $DEMO -p a -p b --compare 2>&1", 2, "--compare is for one prompt");
  expect(GREEDY "-p a -p b -f x 2>&1", 2, "--prompt and --file are both given");
  expect(GREEDY "-p a --rows 3 2>&1", 2, "3 is none of 1, 2, 4, 8, 16, 64, 128, 256, 512 and 1024");
  expect("$MKVM run -m $DEMO --temp 1 --rows 64 -p a 2>&1", 2, "a program of so many chooses greedily");
  expect("$MKVM compile -m $DEMO -o /dev/null --rows 64 --sampling 2>&1", 2, "a program of so many chooses greedily");
  expect(GREEDY "-c 4 -p a -p 'one two three four five six' 2>&1", 2, "prompt 2: the prompt has");
  expect("$MKVM run -m $DEMO $(for i in $(seq 65); do echo -p $i; done) 2>&1", 2, "given more than 64 times");
}

/* A token whose embedding is not a number (and not a row of the head, too): its sequence fails, the others go on, and
 * the exit code is its. */
Test(prompts, one_that_fails) {
  static const char *const ways[] = {"", "--rows 1"};
  char directory[TEST_PATH], command[512];
  mk_config config = test_model_config(TEST_MODEL_ODD);
  test_model_write(&config, directory);
  setenv("DIRECTORY", directory, 1);
  json_t *object = json("$MKVM run -m $DIRECTORY -p z -n 0 --json"), *tokens = json_object_get(object, "prompt_tokens");
  uint64_t z = (uint64_t)json_integer_value(json_array_get(tokens, json_array_size(tokens) - 1));
  json_decref(object);
  test_model_poke(directory, "model.embed_tokens.weight", z * config.hidden + 5, 0x7fc0);
  for (size_t i = 0; i < 2; i++) {
    snprintf(command, sizeof command, "$MKVM run -m $DIRECTORY -p a -p z -p b -n 3 --ignore-eos --json %s 2>&1",
             ways[i]);
    cr_assert_eq(shell(command), 5, "%s", test_output);
    char *end = strstr(test_output, "\nmkvm run: prompt 2: the logits at position ");
    cr_assert_not_null(end, "%s", test_output);
    *end = 0;
    object = json_loads(test_output, 0, NULL);
    cr_assert_not_null(object, "%s", test_output);
    for (size_t s = 0; s < 3; s++) {
      json_t *sequence = json_array_get(json_object_get(object, "sequences"), s);
      cr_assert_str_eq(json_string_value(json_object_get(sequence, "finish_reason")), s == 1 ? "error" : "length");
      cr_assert_eq(json_array_size(json_object_get(sequence, "tokens")), s == 1 ? 0 : 3);
      const char *error = json_string_value(json_object_get(sequence, "error"));
      cr_assert(s == 1 ? error != NULL && strstr(error, "NaN") != NULL : error == NULL, "%s", test_output);
    }
    json_decref(object);
    snprintf(command, sizeof command, "$MKVM run -m $DIRECTORY -p a -p z -n 3 --ignore-eos %s 2>/dev/null", ways[i]);
    cr_assert_eq(shell(command), 5);
    cr_assert(strstr(test_output, "==> 1: a <==") != NULL && strstr(test_output, "==> 2") == NULL, "%s", test_output);
  }
  test_model_remove(directory);
}

Test(prompts, compiled_programs_run_by_themselves) {
  expect(
      "f=$(mktemp); $MKVM compile -m $DEMO -o $f --rows 4 --sms 5 --max-seq 300 >/dev/null && $MKVM verify $f && $MKVM "
      "run "
      "--program $f -n 70 --check --interleave 3; c=$?; rm $f; exit $c",
      0, "70 steps from position 0\ntoken_ring: ");
}
