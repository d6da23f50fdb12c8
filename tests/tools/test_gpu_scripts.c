/* tools/gpu-check and tools/bench-pair without a GPU: trees whose programs stand for mkvm and its tests, beside a
 * compute-sanitizer and an nvidia-smi that do (tests/tools/fake_tree). PATH leads to these and to what every Unix has,
 * and nowhere else. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/process.h"
#include "tests/support/shell.h"
#include "tests/support/text.h"

static char folder[] = "/tmp/mk-gpu-scripts-XXXXXX";

static void expect(const char *command, int code, const char *text) {
  test_shell_expect(MK_COMMAND, command, code, text);
}

/* Looks for words in what the last command printed. */
static void expect_text(const char *text) {
  cr_assert_not_null(strstr(test_output, text), "`%s` is not in\n%s", text, test_output);
}

static void expect_no_text(const char *text) {
  cr_assert_null(strstr(test_output, text), "`%s` is in\n%s", text, test_output);
}

static void make_trees(void) {
  static const char commands[] =
      "mkdir path cuda cuda/bin && for tree in old new; do "
      "mkdir -p $tree/bin $tree/goldens $tree/share/mkvm/models/demo $tree/share/mkvm/programs/attack && "
      "cp " MK_SOURCE_DIR
      "/tests/tools/fake_tree/mkvm* $tree/bin && echo 0.62 1790 >$tree/times && "
      "touch $tree/goldens/demo.bin $tree/goldens/a.bin $tree/share/mkvm/models/demo/config.json && "
      "for name in layer a one_tile rows sampling attack/bad; do touch $tree/share/mkvm/programs/$name.mks; done; done "
      "&& "
      "cp " MK_SOURCE_DIR "/tests/tools/fake_tree/compute-sanitizer " MK_SOURCE_DIR
      "/tests/tools/fake_tree/nvidia-smi path && "
      "for tool in awk basename cat cp chmod date dirname env grep head mkdir mktemp mv rm sed seq setsid sh sleep "
      "tail "
      "timeout touch tr wc; do "
      "ln -s \"$(command -v $tool)\" path; done";
  char path[128];
  cr_assert_not_null(mkdtemp(folder));
  cr_assert_eq(chdir(folder), 0);
  expect(commands, 0, "");
  snprintf(path, sizeof path, "%s/path", folder);
  setenv("PATH", path, 1);
  snprintf(path, sizeof path, "%s/calls", folder);
  setenv("FAKE_CALLS", path, 1);
  snprintf(path, sizeof path, "%s/no-cuda", folder);
  setenv("CUDA_HOME", path, 1);
  setenv("TMPDIR", folder, 1);
  setenv("CHECK", MK_SOURCE_DIR "/tools/gpu-check", 1);
  setenv("PAIR", MK_SOURCE_DIR "/tools/bench-pair", 1);
}

static void remove_trees(void) {
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  cr_expect_eq(chdir("/"), 0);
  cr_expect_eq(system(command), 0);
}

TestSuite(gpu_scripts, .init = make_trees, .fini = remove_trees, .timeout = MK_HANG_SECONDS);

/* $CHECK of new, in this environment and with these arguments; $PAIR of old and new. Both outputs. */
static void check(const char *environment, const char *arguments, int code, const char *text) {
  char command[512];
  snprintf(command, sizeof command, "%s $CHECK new %s 2>&1", environment, arguments);
  expect(command, code, text);
}

static void pair(const char *arguments, int code, const char *text) {
  char command[512];
  snprintf(command, sizeof command, "rm -f old/called new/called; $PAIR old new %s 2>&1", arguments);
  expect(command, code, text);
}

/* The calls of the programs so far, in test_output. */
static void expect_calls(const char *text) { expect("sed \"s|$PWD/||g\" calls", 0, text); }

Test(gpu_scripts, check_runs_every_step) {
  check("", "", 0, "115 passed, 0 failed, 1 skipped\n");
  expect_text("GPU: NVIDIA H200, driver 580.159.04\nmkvm: mkvm 0.1.0 (new), ");
  expect_text("| tests              | passed  |     10 |      0 |");
  expect_text("| racecheck demo     | passed  |      1 |      0 |");
  expect_text("llama-3.2-1b at 64: 0.6200 ms a token, SM 1790 MHz, reads 4.60 TB/s");
  expect_text("two_ranks.mks: accepted; not for this machine: it needs 2 GPUs");
  expect_calls(
      "tests --device cuda --model new/share/mkvm/models/demo new/goldens/a.bin new/goldens/demo.bin\n"
      "tests --device cuda --model new/share/mkvm/models/demo --rows new/goldens/a.bin new/goldens/demo.bin\n"
      "tests --device cuda --model new/share/mkvm/models/demo --prompts new/goldens/a.bin new/goldens/demo.bin\n"
      "tests --device cuda --mixture\ntests --device cuda --schedules\ntests --device cuda --ranks\n"
      "tests --device cuda --sampling\ntests --device cuda --traces\ntests --device cuda --mla\n");
  expect_text("tests --device cuda --programs new/share/mkvm/programs/layer.mks new/share/mkvm/programs/a.mks ");
  expect_text(
      " new/share/mkvm/programs/attack/bad.mks\ntests --device cuda --like llama-3.2-1b --depth 64\nsanitizer --tool "
      "memcheck ");
  expect_text("tests --device cuda --quick --deadline 60000 --programs new/share/mkvm/programs/layer.mks");
  expect_text("new run -m new/share/mkvm/models/demo -p A -n 2 --rows 1 --deadline 60000 --device cuda\n");
}

Test(gpu_scripts, check_passes_its_options_on) {
  check("", "--quick --device cuda:0 --only mla,depth --logs here", 0, "\n20 passed, 0 failed, 0 skipped\n");
  expect_text("/here\n");
  expect_calls("tests --device cuda:0 --quick --mla\ntests --device cuda:0 --quick --like llama-3.2-1b --depth 64\n");
  expect("cat here/mla.log here/table.md", 0, "10 passed, 0 failed\n| step ");
}

Test(gpu_scripts, check_goes_on_after_a_test_that_fails) {
  check("FAKE_FAIL=--mla", "", 1, "\n125 passed, 2 failed, 1 skipped\n");
  expect_text("FAILED: mla: exit code 1 (log: ");
  expect_text("    FAILED tiny: the logits differ\n");
  expect_text("| mla                | FAILED  |     20 |      2 |");
  expect_text("| depth              | passed  |");
}

Test(gpu_scripts, check_counts_a_test_that_dies) {
  check("FAKE_DIE=--mla", "--only sampling,mla", 1, "\n10 passed, 1 failed, 0 skipped\n");
  expect_text("did not come to its end: exit code 139");
  expect_text("    out of memory\n");
}

Test(gpu_scripts, check_wants_checks_of_a_test) {
  check("FAKE_EMPTY=--mla", "--only sampling,mla", 1, "not one check ran");
  expect_text("\n10 passed, 1 failed, 0 skipped\n");
}

Test(gpu_scripts, check_fails_where_nothing_runs) {
  check("FAKE_NO_GPU=1", "", 1, "nothing ran: that is a failure\n0 passed, 0 failed, 17 skipped\n");
  expect_text("skipped: tests: no GPU to test on: no driver is loaded");
  check("FAKE_NO_GPU=1", "--only memcheck", 1, "\n0 passed, 0 failed, 2 skipped\n");
}

Test(gpu_scripts, check_says_that_there_is_no_sanitizer) {
  expect("mv path/compute-sanitizer cuda/bin", 0, "");
  check("", "", 0, "\n111 passed, 0 failed, 5 skipped\n");
  expect_text("skipped: racecheck demo: no compute-sanitizer in PATH or ");
  check("CUDA_HOME=cuda", "", 0, "\n115 passed, 0 failed, 1 skipped\n");
  check("CUDA_HOME=cuda FAKE_REFUSES=1", "--only mla,memcheck", 0, "\n10 passed, 0 failed, 2 skipped\n");
  expect_text("skipped: memcheck demo: compute-sanitizer does not support this device");
}

Test(gpu_scripts, check_takes_what_a_sanitizer_finds_for_a_failure) {
  check("FAKE_ERRORS=2", "--only memcheck,synccheck,racecheck", 1, "\n1 passed, 3 failed, 0 skipped\n");
  expect_text("FAILED: synccheck demo: findings: 2; known: 0 (log: ");
  check("FAKE_BREAKS=1", "--only memcheck", 1, "no summary: compute-sanitizer did not come to its end (exit code 9)");
  check("FAKE_FAIL=--programs", "--only memcheck", 1, "what ran under it ended with exit code 1");
  expect_text("\n1 passed, 1 failed, 0 skipped\n");
}

Test(gpu_scripts, check_counts_places_of_hazards_once) {
  check("FAKE_HAZARDS=15", "--only racecheck", 0, "| findings: 15; known: 15 |");
  check("FAKE_HAZARDS=16", "--only racecheck", 1, "FAILED: racecheck demo: findings: 16; known: 15");
  check("FAKE_HAZARDS=16", "--only racecheck --hazards 16", 0, "\n1 passed, 0 failed, 0 skipped\n");
  check("FAKE_HAZARDS=1", "--only racecheck --hazards 0", 1, "\n0 passed, 1 failed, 0 skipped\n");
}

Test(gpu_scripts, check_compares_what_is_served) {
  expect(
      "printf '%s\\n' '#!/bin/sh' 'echo \"{\\\"text\\\":\\\"${FAKE_ANSWER- beginning}\\\"}\"' >path/curl && "
      "chmod +x path/curl",
      0, "");
  check("", "--only served", 0, "\n1 passed, 0 failed, 0 skipped\n");
  expect_text("| served             | passed  |");
  check("FAKE_ANSWER=other", "--only served", 1, "mkvm run drew \" beginning\", mkvm serve \"other\" (exit code 0)");
}

Test(gpu_scripts, check_says_what_failed_in_the_benchmark) {
  expect("echo stalls >new/times", 0, "");
  check("", "--only bench", 1, "    mkvm bench: the program stands still\n");
  expect_text("\n0 passed, 1 failed, 0 skipped\n");
}

Test(gpu_scripts, check_refuses_wrong_arguments) {
  check("", "old", 2, "'old' is one tree too many");
  check("", "--device cpu", 2, "--device: 'cpu' names no GPU");
  check("", "--device cuda:1x", 2, "--device: 'cuda:1x' names no GPU");
  check("", "--device", 2, "--device needs a value");
  check("", "--only mla,tile", 2, "--only: there is no 'tile'; there are: tests rows ");
  check("", "--only ,", 2, "--only names no step");
  check("", "--hazards many", 2, "--hazards: 'many' is no number");
  check("", "--fast", 2, "there is no option '--fast'; see tools/gpu-check --help");
  expect("$CHECK 2>&1", 2, "TREE is missing");
  expect("$CHECK . 2>&1", 2, ". has no bin/mkvm; make it with tools/package BUILD FOLDER");
  expect("chmod -x new/bin/mkvm; $CHECK new 2>&1", 2, "new/bin/mkvm may not be run; chmod +x it");
  expect("chmod +x new/bin/mkvm; rm -r new/goldens; $CHECK new 2>&1", 2, "new has no goldens/demo.bin");
  expect("$CHECK --help", 0, "usage: tools/gpu-check TREE");
}

/* Ctrl-C as a terminal sends it, to the script and to what it runs, while the latter hangs. */
static void interrupt(const char *const *arguments, const char *printed) {
  int in = open("/dev/null", O_RDONLY), out = test_scratch_file();
  size_t length;
  signal(SIGINT, SIG_DFL); /* what a shell runs in the background has it ignored */
  setenv("FAKE_HANG", "--mla", 1);
  pid_t child = test_start("/usr/bin/env", arguments, in, out, out);
  while (access("calls.hangs", F_OK) != 0) {
    usleep(10000);
  }
  cr_assert_eq(kill(-child, SIGINT), 0);
  int code = test_finish(child);
  char *text = test_slurp(out, &length);
  cr_assert_eq(code, 1000 + SIGINT, "exit code %d: %s", code, text);
  cr_assert_not_null(strstr(text, printed), "%s", text);
  cr_assert_null(strstr(text, "FAILED"), "%s", text);
  free(text);
  close(in);
  close(out);
}

Test(gpu_scripts, check_ends_with_ctrl_c) {
  static const char *const arguments[] = {
      "setsid", MK_SOURCE_DIR "/tools/gpu-check", "new", "--only", "sampling,mla,depth", NULL};
  interrupt(arguments, "] ended by a signal in step: mla\n\n| step ");
}

Test(gpu_scripts, pair_ends_with_ctrl_c) {
  static const char *const arguments[] = {
      "setsid", MK_SOURCE_DIR "/tools/bench-pair", "old", "new", "--only", "1b-64,mla", NULL};
  interrupt(arguments, "] ended by a signal; rows that were finished:\n\n| row ");
}

Test(gpu_scripts, pair_measures_old_and_new_in_turn) {
  pair("--only 1b-64 --rounds 4 --device cuda:0", 0, "GPU: NVIDIA H200, driver 580.159.04\nold: mkvm 0.1.0 (old), ");
  expect_text("\nnew: mkvm 0.1.0 (new), ");
  expect_text("\nno ratio is above 1.01\n");
  expect("sed -n 's/^\\([a-z]*\\) bench .*/\\1/p' calls | tr '\\n' ' '", 0, "old new new old old new new old ");
  expect_calls("old bench --like llama-3.2-1b -p 0 -n 128 -d 64 --device cuda:0 -o json\n");
}

Test(gpu_scripts, pair_compares_medians) {
  expect(
      "printf '0.60 1790\\n0.64 1700\\n0.61 1795\\n' >old/times; printf '0.63 1780\\n0.59 1600\\n0.62 1785\\n' "
      ">new/times",
      0, "");
  pair("--only 1b-64 --rounds 3", 1,
       "| 1b-64      |     0.6100 |     0.6200 |  1.0164 | 0.9219..1.0500 |    1790 |    1780 |");
  expect_text("\nslower than 1.01: 1b-64 (1.0164)\n");
  pair("--only 1b-64 --rounds 3 --limit 1.02", 0, "no ratio is above 1.02\n");
  pair("--only 1b-64 --rounds 2 --limit 1.02", 0,
       "|     0.6200 |     0.6100 |  0.9839 | 0.9219..1.0500 |    1745 |    1690 |");
}

Test(gpu_scripts, pair_knows_the_units_of_every_row) {
  expect("echo 28.5 >old/times; echo 28.6 >new/times", 0, "");
  pair("--quick", 0, "| 1b-64      |    28.5000 |    28.6000 |  1.0035 | 1.0035..1.0035 |       - |       - |");
  expect_text("| mla        |    0.02850 |    0.02860 |  1.0035 |");
  expect_text("rounds: 3\n");
  expect_no_text("8b");
  expect_calls("new bench --mla 4641,45118,1730,1696 --new 4 --heads 16 --device cuda -o json\n");
  pair("", 0, "| 8b-16000   |    28.5000 |    28.6000 |");
  expect_text("| 1b-rows    |    28.5000 |    28.6000 |");
  expect_text("| 1b-prompt  |    28.5000 |    28.6000 |");
  expect_text("rounds: 5\n");
}

Test(gpu_scripts, pair_goes_on_after_a_run_that_fails) {
  expect("printf '0.62\\n0.62\\nstalls\\n0.62\\n' >new/times", 0, "");
  pair("--only 1b-64,mla --rounds 3", 1, "FAILED: 1b-64, new, round 3: exit code 5, no token_ms_p50 in ");
  expect_text("    mkvm bench: the program stands still\n");
  expect_text("| 1b-64      |     failed |");
  expect_text("| mla        |    0.00062 |");
  expect_text("\nfailed: 1b-64\n");
  expect_no_text("no ratio is above");
}

Test(gpu_scripts, pair_takes_trees_builds_and_programs) {
  expect("rm -f calls; $PAIR new/bin old/bin/mkvm --only mla --rounds 1 2>&1", 0, "\nold: mkvm 0.1.0 (new), ");
  expect_text("\nnew: mkvm 0.1.0 (old), ");
  expect("$PAIR path new 2>&1", 2, "OLD: path has no bin/mkvm and no mkvm in it, and is not mkvm");
  expect("chmod -x new/bin/mkvm; $PAIR old new 2>&1", 2, "NEW: new/bin/mkvm may not be run; chmod +x it");
  expect("printf '#!/bin/sh\\necho no GLIBC_2.99 >&2\\nexit 1\\n' >mkvm; chmod +x mkvm; $PAIR old mkvm 2>&1", 1,
         "/mkvm does not run here: no GLIBC_2.99\n");
}

Test(gpu_scripts, pair_refuses_wrong_arguments) {
  pair("third", 2, "'third' is one version too many");
  pair("--rounds 0", 2, "--rounds: '0' is no number from 1 to 999");
  pair("--rounds 1000", 2, "--rounds: '1000' is no number from 1 to 999");
  pair("--limit 1,01", 2, "--limit: '1,01' is no ratio, such as 1.01");
  pair("--only 70b", 2, "--only: there is no '70b'; there are: 1b-64 ");
  pair("--only ''", 2, "--only names no row");
  pair("--device 0", 2, "--device: '0' names no GPU");
  pair("--logs", 2, "--logs needs a value");
  expect("$PAIR old 2>&1", 2, "OLD and NEW are needed");
  expect("$PAIR --help", 0, "  1b-rows    --like llama-3.2-1b --rows 16 -p 0 -n 32 -d 512\n");
}

Test(gpu_scripts, gpu_is_told_as_far_as_it_is_known) {
  check("", "--device cuda:1 --only mla", 0, "GPU: cuda:1; nvidia-smi does not know it: No devices were found\n");
  expect("rm path/nvidia-smi", 0, "");
  check("", "--only mla", 0, "GPU: cuda; without nvidia-smi its name and driver are not known\n");
}

/* What stands for mkvm here prints what the scripts read; so does mkvm. */
Test(gpu_scripts, keys_are_those_of_bench) {
  static const char *const tables[] = {"bench_table.c", "bench_rows_table.c", "bench_mla_table.c"};
  static const char *const keys[][3] = {{"\"token_ms_p50\"", "\"sm_mhz\"", "\"read_bytes_per_s\""},
                                        {"\"step_ms_p50\"", "\"first_token_ms_p50\"", "\"sm_mhz\""},
                                        {"\"warm\"", "\"%s_us\"", "\"%s_sm_mhz\""}};
  char path[256];
  for (size_t i = 0; i < 3; i++) {
    snprintf(path, sizeof path, "%s/tools/mkvm/%s", MK_SOURCE_DIR, tables[i]);
    char *text = test_read_file(path);
    for (size_t k = 0; k < 3; k++) {
      cr_assert_not_null(strstr(text, keys[i][k]), "%s has no %s", tables[i], keys[i][k]);
    }
    free(text);
  }
  expect(
      "$MKVM bench --like tiny -p 0 -n 4 -r 1 --device cpu -o json >one.json && "
      ". " MK_SOURCE_DIR
      "/tools/gpu.sh && mk_bench_value token_ms_p50 one.json && ! mk_bench_value sm_mhz one.json && "
      "! mk_bench_value model one.json && mk_bench_value n_gen one.json",
      0, "\n4\n");
}
