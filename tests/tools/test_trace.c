/* Traces as a user meets them: run and bench write them, trace reads them, and what is no trace is refused. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_OUTPUT = 1 << 20 };

static char directory[] = "/tmp/mk-trace-XXXXXX";

static void make_directory(void) { cr_assert_not_null(mkdtemp(directory)); }

static void remove_directory(void) {
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", directory);
  cr_expect_eq(system(command), 0);
}

/* Runs `mkvm ARGUMENTS` in the directory; both outputs, which the caller frees. */
static char *run(const char *arguments, int code) {
  char command[512], *output = calloc(1, MOST_OUTPUT);
  snprintf(command, sizeof command, "cd %s && CUDA_VISIBLE_DEVICES= %s %s 2>&1", directory, MK_COMMAND, arguments);
  FILE *pipe = popen(command, "r");
  cr_assert_not_null(pipe);
  cr_assert_lt(fread(output, 1, MOST_OUTPUT, pipe), (size_t)MOST_OUTPUT);
  int status = pclose(pipe);
  cr_assert_eq(WEXITSTATUS(status), code, "mkvm %s: exit code %d\n%s", arguments, WEXITSTATUS(status), output);
  return output;
}

static void expect(const char *arguments, int code, const char *words) {
  char *output = run(arguments, code);
  cr_expect_not_null(strstr(output, words), "mkvm %s: no \"%s\" in\n%s", arguments, words, output);
  free(output);
}

#define DEMO "-m " MK_SOURCE_DIR "/models/demo --device cpu --sms 8 "

TestSuite(trace_command, .init = make_directory, .fini = remove_directory, .timeout = 120);

Test(trace_command, writes_and_reads) {
  expect("run " DEMO "-p 'Once upon a time' -n 6 --trace a.mktrace --trace-steps 3", 0, "trace: steps ");
  expect("trace a.mktrace", 0, "every role accounts for its time");
  expect("trace a.mktrace --summary", 0, "critical path of step ");
  expect("trace a.mktrace --critical-path", 0, "next, instruction ");
  expect("run " DEMO "-p Hello -n 8 --trace b.mktrace --trace-from 2 --trace-steps 2", 0, "trace: steps 2 to 3, ");
  expect("trace b.mktrace --critical-path=3", 0, "critical path of step 3: ");
  expect("trace b.mktrace --critical-path=4", 2, "step 4 was not recorded; the trace has 2 steps from step 2 on");
  expect("trace --diff a.mktrace b.mktrace", 0, "largest changes first");
  expect("run " DEMO "-p Hello -n 8 --trace c.mktrace --trace-records 16", 0, " dropped: c.mktrace");
  expect("trace c.mktrace", 0, "INCOMPLETE: SM 0, consumer: ");
  char *text = run("trace a.mktrace --json --bandwidth 4.6", 0);
  json_t *json = json_loads(text, 0, NULL);
  cr_assert_not_null(json, "%s", text);
  const json_t *facts = json_object_get(json, "trace");
  cr_expect_eq(json_integer_value(json_object_get(facts, "steps")), 3);
  cr_expect_str_eq(json_string_value(json_object_get(facts, "device")), "cpu");
  cr_expect(json_is_null(json_object_get(facts, "problem")));
  cr_expect_not_null(strstr(json_string_value(json_object_get(facts, "command")), "--trace a.mktrace"));
  json_decref(json);
  free(text);
}

Test(trace_command, bench) {
  expect("bench " DEMO "-p 0 -n 4 -r 1 -d 5 --breakdown --trace d.mktrace --trace-steps 2", 0, "\nfindings\n");
  expect("trace d.mktrace", 0, "2, from step 5 of the launch (position 5); 8 SMs");
  expect("bench " DEMO "-p 4 -n 0 -r 1 --trace p.mktrace", 0, "trace: steps 0 to 3, ");
}

Test(trace_command, refuses) {
  expect("run " DEMO "-p Hello -n 2 --trace-steps 2", 2, "need --trace FILE");
  expect("run " DEMO "-p Hello -n 2 --trace e.mktrace --trace-from 50", 2, "none of them to record");
  expect("run " DEMO "-p Hello -n 2 --trace nowhere/e.mktrace", 1, "nowhere/e.mktrace: ");
  expect("bench " DEMO "-p 0 -n 2 -r 1 --trace-from 1", 2, "need --trace FILE");
  expect("bench " DEMO "-p 0 -n 2 -r 1 -o csv --breakdown", 2, "--breakdown");
  expect("trace", 2, "one trace file is needed");
  expect("trace --diff a.mktrace", 2, "--diff needs two files");
  expect("trace --json --critical-path a.mktrace", 2, "one of them at a time");
  expect("trace nowhere.mktrace", 3, "nowhere.mktrace: cannot be opened");
  expect("trace " MK_SOURCE_DIR "/README.md", 3, "README.md: header: magic");
  expect("run " DEMO "-p Hello -n 2 --trace f.mktrace", 0, "trace: ");
  char command[256];
  snprintf(command, sizeof command, "cd %s && truncate -s -1 f.mktrace", directory);
  cr_assert_eq(system(command), 0);
  expect("trace f.mktrace", 3, "f.mktrace: header: size");
}
