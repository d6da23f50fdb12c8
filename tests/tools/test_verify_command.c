/* `mkvm verify`, its --explain, and `mkvm run --program`, on sound, faulty and malformed programs: exit codes and
 * messages. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/support/text.h"

static char directory[] = "/tmp/mk-verify-XXXXXX";

static void make_directory(void) { cr_assert_not_null(mkdtemp(directory)); }
static void remove_directory(void) {
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", directory);
  cr_assert_eq(system(command), 0);
}
TestSuite(verify_command, .init = make_directory, .fini = remove_directory, .timeout = MK_HANG_SECONDS);

static const char *path_of(const char *name) {
  static char paths[4][64];
  static unsigned next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", directory, name);
  return path;
}

typedef struct result {
  int code;
  char *out, *err;
} result;

/* The arguments are split by the shell. */
static result run(const char *arguments) {
  char command[1024];
  snprintf(command, sizeof command, "%s %s >%s/out 2>%s/err </dev/null", MK_COMMAND, arguments, directory, directory);
  int status = system(command);
  cr_assert(WIFEXITED(status), "%s: status %d", command, status);
  char out[64], err[64];
  snprintf(out, sizeof out, "%s/out", directory);
  snprintf(err, sizeof err, "%s/err", directory);
  return (result){.code = WEXITSTATUS(status), .out = test_read_file(out), .err = test_read_file(err)};
}

static void expect(const char *before, const char *path, const char *after, int code, const char *in_out,
                   const char *in_err) {
  char arguments[512];
  snprintf(arguments, sizeof arguments, "%s %s %s", before, path, after);
  result r = run(arguments);
  cr_assert_eq(r.code, code, "%s: exit code %d, not %d\n%s%s", arguments, r.code, code, r.out, r.err);
  cr_assert_not_null(strstr(r.out, in_out), "%s: `%s` is not in the output: %s", arguments, in_out, r.out);
  cr_assert_not_null(strstr(r.err, in_err), "%s: `%s` is not in the errors: %s", arguments, in_err, r.err);
  free(r.out);
  free(r.err);
}

static const char *save(const char *name, const test_edit *edits) {
  mk_program *program = test_assemble(name, edits);
  const char *path = path_of("program.mkp");
  cr_assert_eq(mk_program_save(program, path), MK_OK, "%s", mk_error_message());
  mk_program_free(program);
  return path;
}

Test(verify_command, every_fault_is_exit_code_4) {
  for (size_t i = 0; i < TEST_FAULTS; i++) {
    const char *path = save(test_faults[i].file, test_faults[i].edits);
    char begin[128];
    snprintf(begin, sizeof begin, "mkvm verify: %s: %s: ", path, test_faults[i].rule);
    expect("verify", path, "", 4, "", begin);
    expect("verify", path, "", 4, "", test_faults[i].words);
  }
  expect("run --program", save("layer.mks", test_faults[TEST_FAULT_threshold_lowered].edits), "", 4, "", ": R01: ");
}

static void write_file(const char *path, const void *bytes, size_t length) {
  FILE *file = fopen(path, "wb");
  cr_assert_not_null(file);
  cr_assert_eq(fwrite(bytes, 1, length, file), length);
  cr_assert_eq(fclose(file), 0);
}

static void expect_malformed(const char *path, const char *words) {
  expect("verify", path, "", 3, "", words);
  expect("verify", path, "--explain 1", 3, "", words);
  expect("run --program", path, "", 3, "", words);
  expect("disasm", path, "", 3, "", words);
}

Test(verify_command, malformed_files_are_exit_code_3) {
  const char *path = path_of("bad.mkp");
  expect_malformed(path, "cannot be opened");
  expect_malformed(directory, "is not a regular file");
  cr_assert_eq(mkfifo(path_of("fifo"), 0600), 0);
  expect_malformed(path_of("fifo"), "is not a regular file");
  write_file(path, "", 0);
  expect_malformed(path, "has 0 bytes");
  char *text = test_read_file(MK_SOURCE_DIR "/tests/vm/data/layer.mks");
  write_file(path, text, strlen(text));
  expect_malformed(path, "mkp");
  free(text);
  void *bytes;
  size_t length;
  mk_program *program = test_assemble("layer.mks", NULL);
  cr_assert_eq(mk_program_serialize(program, &bytes, &length), MK_OK);
  mk_program_free(program);
  write_file(path, bytes, length - 1);
  expect_malformed(path, "bad.mkp: header:");
  ((unsigned char *)bytes)[length / 2] ^= 4;
  write_file(path, bytes, length);
  expect_malformed(path, "checksum");
  ((unsigned char *)bytes)[length / 2] ^= 4;
  ((unsigned char *)bytes)[4]++;
  write_file(path, bytes, length);
  expect_malformed(path, "version");
  mk_free(bytes);
}

/* Well sealed, but no program: the number of SMs is not that of its queues, a queue leaves an instruction out. */
Test(verify_command, inconsistent_files_are_exit_code_3) {
  mk_program *program = test_assemble("layer.mks", NULL);
  const char *path = path_of("bad.mkp");
  program->machine.sms = 3;
  cr_assert_eq(mk_program_save(program, path), MK_OK);
  expect_malformed(path, "2 queues; 3 SMs");
  program->machine.sms = 2;
  program->queues[1].count--;
  cr_assert_eq(mk_program_save(program, path), MK_OK);
  expect_malformed(path, "queues: they hold 16 instructions");
  program->queues[1].count++;
  program->buffers[3].offset += 256;
  cr_assert_eq(mk_program_save(program, path), MK_OK);
  expect_malformed(path, "buffer w_qkv");
  mk_program_free(program);
}

Test(verify_command, explain) {
  const char *path = save("layer.mks", NULL);
  expect("verify", path, "--explain 7", 0, "SM 0 position 6 #7 linear_add, one of 9 in its queue\n", "");
  expect("verify --explain=19", path, "", 0, ": verified: 17 instructions", "");
  expect("verify", path, "--explain 10", 2, "", "no instruction has uid 10");
  expect("verify", path, "--explain seven", 2, "", "--explain: 'seven' is not a whole number");
  expect("verify", path, "--explain 4294967296", 2, "", "--explain: '4294967296'");
  expect("verify --explain 7", "", "", 2, "", "FILE is missing");
  expect("verify", path, "more.mkp", 2, "", "one FILE at a time");
  path = save("one_tile.mks", test_faults[TEST_FAULT_read_after_write_of_one_tile].edits);
  expect("verify", path, "--explain 12", 4, "waits for no counter\n", ": R01: ");
}

Test(verify_command, run_a_program) {
  const char *path = save("layer.mks", NULL);
  char arguments[256];
  snprintf(arguments, sizeof arguments, "run --program %s -n 9", path);
  result want = run(arguments);
  cr_assert_eq(want.code, 0, "%s", want.err);
  cr_assert_not_null(strstr(want.out, "9 steps from position 0\nring: 17 "), "%s", want.out);
  cr_assert_not_null(strstr(want.out, "\nlogits: "), "%s", want.out);
  expect("run -n 9 --check --interleave 5 --adversarial --program", path, "", 0, want.out, "");
  expect("run -n -1 --program", path, "", 0, "512 steps from position 0\n", "");
  expect("run --program", path, "-m model", 2, "", "--program goes with neither --model");
  expect("run --program", path, "-p hello", 2, "", "--program goes with neither");
  expect("run --program", path, "--device cuda", 2, "", "nor --device cuda");
  expect("run --program", save("two_ranks.mks", NULL), "-n 3", 0, "\nlogits.1: ", "");
  free(want.out);
  free(want.err);
}
