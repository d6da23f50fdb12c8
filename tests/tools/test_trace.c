/* Traces as a user meets them: run and bench write them, trace reads them and writes pages and pictures, and what is no
 * trace is refused. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/lib/bench_sampling.h"

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

/* The file begins with that text. */
static void expect_file(const char *name, const char *start) {
  char path[128], have[64] = {0};
  snprintf(path, sizeof path, "%s/%s", directory, name);
  FILE *file = fopen(path, "rb");
  cr_assert_not_null(file, "%s was not written", name);
  cr_assert_gt(fread(have, 1, sizeof have - 1, file), 0);
  fclose(file);
  cr_expect(strncmp(have, start, strlen(start)) == 0, "%s begins with %s", name, have);
}

#define DEMO "-m " MK_SOURCE_DIR "/models/demo --device cpu --sms 8 "

TestSuite(trace_command, .init = make_directory, .fini = remove_directory, .timeout = MK_HANG_SECONDS);

Test(trace_command, writes_and_reads) {
  expect("run " DEMO "-p 'Once upon a time' -n 6 --trace a.mktrace --trace-steps 3", 0, "trace: steps ");
  expect("trace a.mktrace", 0, "every role accounts for its time");
  expect("trace a.mktrace --summary", 0, "critical path of step ");
  expect("trace a.mktrace --critical-path", 0, "next, instruction ");
  expect("run " DEMO "--rows 1 -p Hello -n 8 --trace b.mktrace --trace-from 2 --trace-steps 2", 0,
         "trace: steps 2 to 3, ");
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
  expect("bench " DEMO "-p 4 -n 0 -r 1 --trace p.mktrace", 0, "trace: steps 0 to 0, "); /* in one chunk */
}

/* The launches of a comparison have one step each, and one of them is recorded. */
Test(trace_command, compare) {
  expect("run " DEMO "-p 'Once upon a time' -n 3 --compare --trace g.mktrace", 0, "trace: steps 0 to 0, ");
  expect("trace g.mktrace", 0, "1, from step 0 of the launch (position 5); 8 SMs");
  expect("run " DEMO "-p 'Once upon a time' -n 3 --compare --trace g.mktrace --trace-from 2", 0, "every output inside");
  expect("trace g.mktrace --critical-path", 0, "critical path of step 0: ");
  expect("trace g.mktrace", 0, "(position 2); 8 SMs");
  expect("run " DEMO "-p A -n 2 --compare --trace g.mktrace --trace-from 50", 2, "steps none was step 50");
}

Test(trace_command, program) {
  static const char *const sources[] = {"layer", "rows", "rows_sampling", "copies"};
  char arguments[256];
  for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
    snprintf(arguments, sizeof arguments, "asm %s/tests/vm/data/%s.mks -o p.mkp", MK_SOURCE_DIR, sources[i]);
    expect(arguments, 0, "instructions");
    expect("run --program p.mkp -n 5 --trace h.mktrace --trace-from 2 --trace-steps 2", 0, "trace: steps 2 to 3, ");
    expect("trace h.mktrace", 0, "every role accounts for its time");
    expect("run --program p.mkp -n 5 --trace h.mktrace", 0, "trace: steps 0 to 4, ");
    expect("run --program p.mkp -n 5 --trace h.mktrace --trace-from 5", 2, "of 5 steps none was step 5");
  }
  expect("asm " MK_SOURCE_DIR "/tests/vm/data/mla.mks -o p.mkp", 0, "instructions");
  expect("run --program p.mkp -n 1 --trace h.mktrace", 0, "trace: steps 0 to 0, ");
  expect("trace h.mktrace", 0, "mla_part");
}

Test(trace_command, mla) {
  expect("bench --mla 300,70 --device cpu --sms 8 --trace m.mktrace", 0, "trace: steps 0 to 0, ");
  expect("trace m.mktrace", 0, "every role accounts for its time");
  expect("bench --mla 70 --device cpu --sms 8 --trace m.mktrace --trace-from 1", 2, "of 1 steps none was step 1");
  expect("bench --mla 70 --device cpu --trace-from 1", 2, "need --trace FILE");
  expect("bench --mla-sweep --trace m.mktrace", 2, "--trace needs one batch");
}

/* A GPU alone measures what sampling costs, but what is recorded of it is a launch like others. */
Test(trace_command, sampling) {
  const mk_config config = {.hidden = 64,
                            .intermediate = 128,
                            .layers = 1,
                            .heads = 2,
                            .kv_heads = 1,
                            .head_dim = 64,
                            .vocab = 300,
                            .max_position = 64,
                            .rms_eps = 1e-5f,
                            .rope_theta = 10000.0};
  const mk_engine_options options = {
      .device = "cpu", .synth = &config, .max_seq = 32, .sms = 3, .sampling = &mk_bench_ways[0].sampling};
  const mk_trace_window window = {.first = MK_FIRST_GENERATED, .steps = 4};
  mk_engine *engine;
  mk_trace *trace;
  cr_assert_eq(mk_engine_open(NULL, &options, &engine), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_bench_sampling_trace(engine, 6, &window, &trace), MK_OK, "%s", mk_error_message());
  cr_expect_eq(trace->steps, 4);
  cr_expect_eq(trace->first_position, MK_BENCH_SAMPLING_PROMPT - 1);
  mk_trace_free(trace);
  mk_engine_close(engine);
  expect("bench --like tiny --sampling --device cpu --trace s.mktrace", 2, "is measured on cuda alone");
}

/* Rows share a launch with prompts, log-probabilities cut one up, and ranks are one program: each is recorded. */
Test(trace_command, all_kinds) {
  static const char *const kinds[] = {
      "run " DEMO "-p Hello -p World -n 6",
      "run " DEMO "-p Hello -n 6 --logprobs 3",
      "run " DEMO "-p Hello -n 6 --temp 1 -s 3 --top-k 9",
      "run " DEMO "-p Hello -p World -n 6 --temp 1 -s 3 --top-p 0.5",
      "run " DEMO "-p Hello -n 6 --logits l.npy",
      "run " DEMO "--chat --system Yes -p Hello -n 6",
      "run " DEMO "-p Hello -n 6 --ranks 2",
      "run " DEMO "-p Hello -n 6 --check",
      "bench --like tiny --device cpu --load --concurrency 2 --requests 3 --in 8 --out 4 --logprobs 3",
      "bench --like tiny --device cpu -p 8 -n 4 -r 1 --ranks 2",
      "bench --like tiny --device cpu -p 8 -n 0 -r 1 --weights int8",
  };
  char arguments[256];
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    snprintf(arguments, sizeof arguments, "%s --trace k.mktrace", kinds[i]);
    expect(arguments, 0, " records, 0 dropped: k.mktrace");
    expect("trace k.mktrace", 0, "every role accounts for its time");
  }
}

/* Of two ranks all that is shown says of which one an SM is. By one thread the critical path goes over all SMs. How
 * long hops take on the CPU machine is chance. */
Test(trace_command, ranks) {
  char command[256];
  expect("run -m " MK_SOURCE_DIR "/models/demo --device cpu --sms 4 --ranks 2 -t 1 -p Hello -n 6 --trace r.mktrace", 0,
         " records, 0 dropped: r.mktrace");
  expect("trace r.mktrace", 0, "; 8 SMs of 2 ranks; ");
  expect("trace r.mktrace", 0, "\nhops to, us    local, per step      p50      p90  remote, per step ");
  expect("trace r.mktrace --critical-path", 0, "  rank 1, SM 3 ");
  char *text = run("trace r.mktrace --json", 0);
  json_t *json = json_loads(text, 0, NULL);
  cr_assert_not_null(json, "%s", text);
  cr_expect_eq(json_integer_value(json_object_get(json_object_get(json, "trace"), "ranks")), 2);
  cr_expect(json_is_array(json_object_get(json, "hops")));
  const json_t *parts = json_object_get(json_object_get(json, "critical_path"), "parts");
  bool other = false;
  for (size_t i = 0; i < json_array_size(parts); i++) {
    const json_t *part = json_array_get(parts, i);
    cr_expect_lt(json_integer_value(json_object_get(part, "sm")), 4);
    other |= json_integer_value(json_object_get(part, "rank")) == 1;
  }
  cr_expect(other);
  json_decref(json);
  free(text);
  expect("trace r.mktrace -o r.html", 0, "");
  expect_file("r.html", "<!DOCTYPE html>");
  expect("trace r.mktrace -o r.pftrace", 0, "");
  expect("trace r.mktrace -o r.svg", 0, "");
  snprintf(command, sizeof command, "cd %s && grep -qa 'rank 1, SM 3' r.pftrace && grep -q '>rank 1<' r.svg",
           directory);
  cr_expect_eq(system(command), 0);
  expect("bench --like tiny --device cpu --sms 4 -p 0 -n 4 -r 1 --ranks 2 --breakdown", 0, " p90  remote, per step ");
  expect("bench --like tiny --device cpu --sms 4 -p 0 -n 4 -r 1 --breakdown", 0, "\nhops to, us    local, per step ");
}

/* 41 tokens, of which sixteen are a step. */
Test(trace_command, position_within_a_prompt) {
  expect("run " DEMO "-p aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa -n 1 --trace p.mktrace", 0, "trace: steps 2 to 2, ");
  expect("trace p.mktrace", 0, "from step 2 of the launch (position 32)");
}

Test(trace_command, refuses) {
  expect("run " DEMO "-p Hello -n 2 --trace-steps 2", 2, "need --trace FILE");
  expect("run " DEMO "-p Hello -n 2 --trace e.mktrace --trace-from 50", 2, "of 2 steps none was step 50");
  expect("run " DEMO "-p Hello -n 2 --trace nowhere/e.mktrace", 1, "nowhere/e.mktrace: ");
  expect("run " DEMO "-p Hello -n 0 --trace e.mktrace", 2, "none computed a token that was not given");
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

static void expect_no_file(const char *name) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  cr_expect_neq(access(path, F_OK), 0, "%s was written", name);
}

#define SMALL "-m " MK_SOURCE_DIR "/models/demo --device cpu --sms 4 -p Once -n 4 "

Test(trace_command, output_in_three_formats) {
  expect("run " SMALL "--trace a.mktrace", 0, "trace: ");
  expect("run " SMALL "--interleave 3 --trace b.mktrace", 0, "trace: ");
  for (const char *name = "ab"; *name != 0; name++) {
    char arguments[96], file[16];
    static const char *const ends[] = {"html", "pftrace", "svg"}, *const starts[] = {"<!DOCTYPE html>", "\n", "<svg "};
    for (size_t i = 0; i < 3; i++) {
      snprintf(arguments, sizeof arguments, "trace %c.mktrace -o %c.%s", *name, *name, ends[i]);
      expect(arguments, 0, "");
      snprintf(file, sizeof file, "%c.%s", *name, ends[i]);
      expect_file(file, starts[i]);
    }
  }
  expect("trace a.mktrace -o a.svg --from 10 --to 200", 0, "");
  expect("trace a.mktrace -o a.svg --step 2", 0, "");
  expect("trace a.mktrace -o a.svg --step 99", 2, "step 99 was not recorded");
  expect("trace a.mktrace -o late.svg --from 1e9 --to 2e9", 2, "nothing was recorded there");
  expect_no_file("late.svg");
}

Test(trace_command, output_refused) {
  expect("run " SMALL "--trace a.mktrace", 0, "trace: ");
  for (const char *const *name = (const char *const[]){"a.png", "a", "a.HTML", "html", "a.html.", NULL}; *name != NULL;
       name++) {
    char arguments[96];
    snprintf(arguments, sizeof arguments, "trace a.mktrace -o %s", *name);
    expect(arguments, 2, ".html (a page), .pftrace (for Perfetto) or .svg (a picture)");
    expect_no_file(*name);
  }
  expect("trace a.mktrace -o a.html --json", 2, "-o goes with none of");
  expect("trace --diff a.mktrace a.mktrace -o a.html", 2, "-o goes with none of");
  expect("trace a.mktrace --step 3", 2, "need -o NAME");
  expect("trace a.mktrace -o a.html --from 1 --to 2", 2, "are of a picture");
  expect("trace a.mktrace -o a.svg --from 5 --to 2", 2, "--to is the later one");
  expect("trace a.mktrace -o a.svg --from x", 2, "is not a number of microseconds");
  expect("trace a.mktrace -o nowhere/a.html", 1, "nowhere/a.html: cannot be created");
  expect("trace nowhere.mktrace -o a.html", 3, "nowhere.mktrace: cannot be opened");
  expect_no_file("a.html");
}

/* A full disk leaves no half file, and none of those that were there is lost. */
Test(trace_command, output_on_a_full_disk) {
  expect("run " SMALL "--trace a.mktrace", 0, "trace: ");
  expect("trace a.mktrace -o a.html", 0, "");
  char command[512];
  snprintf(command, sizeof command,
           "cd %s && (ulimit -f 8; trap '' XFSZ; %s trace a.mktrace -o a.html) 2>&1 | grep -q 'a.html: cannot be "
           "written' && ls | wc -l | grep -qx 2",
           directory, MK_COMMAND);
  cr_expect_eq(system(command), 0, "%s", command);
  expect_file("a.html", "<!DOCTYPE html>");
}
