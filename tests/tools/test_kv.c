/* The form of the KV cache, --kv: of programs, runs and servers; what it goes with, and what says so. */
#include "tests/tools/command_rig.h"

TestSuite(kv, .init = make_tiny, .fini = remove_all, .timeout = MK_HANG_SECONDS);

Test(kv, usage) {
  EXPECT(2, "", "--kv: 'int4' is not a form of the KV cache", "run", "-m", in_directory("tiny"), "--kv", "int4");
  EXPECT(2, "", "there are bf16 and fp8", "bench", "--like", "tiny", "--kv", "");
  EXPECT(2, "", "there are bf16 and fp8", "serve", "-m", in_directory("tiny"), "--kv", "e4m3");
  EXPECT(2, "", "there are bf16 and fp8", "compile", "-m", in_directory("tiny"), "--kv", "FP8", "-o", "x");
  EXPECT(2, "", "--kv goes with --model", "run", "--program", "x.mkp", "--kv", "fp8");
  EXPECT(2, "", "--kv fp8: the latent cache of MLA is of bf16 alone", "bench", "--mla", "64", "--kv", "fp8", "--device",
         "cpu");
}

Test(kv, programs) {
  const char *path = in_directory("fp8.mkp");
  EXPECT(0, "fp8.mkp", "", "compile", "-m", in_directory("tiny"), "--kv", "fp8", "--sms", "3", "-o", path);
  EXPECT(0, "verified", "", "verify", path);
  EXPECT(0, "layers.1.kv kind=kv dtype=e4m3 store=blocks", "", "disasm", path);
  EXPECT(0, "scale=bf16 scale_cols=64 zeros=0", "", "disasm", path);
  EXPECT(0, "logits", "", "run", "--program", path, "-n", "3");
}

static json_t *tokens_of(const char *kv, const char *rows) {
  json_t *answer = RUN_JSON("-m", in_directory("tiny"), "-p", "a prompt of a few tokens, thirty or so", "-n", "24",
                            "--ignore-eos", "--temp", "0", "--device", "cpu", "--kv", kv, "--rows", rows);
  json_t *tokens = json_incref(json_object_get(answer, "tokens"));
  cr_assert_eq(json_array_size(tokens), 24);
  json_decref(answer);
  return tokens;
}

/* One row, sixteen and a wide program. */
Test(kv, runs) {
  json_t *want = tokens_of("fp8", "1"), *rows = tokens_of("fp8", "16"), *wide = tokens_of("fp8", "128");
  cr_assert(json_equal(want, rows) && json_equal(want, wide));
  json_decref(want);
  json_decref(rows);
  json_decref(wide);
  EXPECT(0, "every output inside", "the KV cache is fp8", "run", "-m", in_directory("tiny"), "-p", "abc", "-n", "4",
         "--compare", "--device", "cpu", "--kv", "fp8");
  EXPECT(0, "", "mkvm: the KV cache is fp8 (e4m3), with a scale for each token and KV head\n", "run", "-m",
         in_directory("tiny"), "-p", "abc", "-n", "2", "--device", "cpu", "--kv", "fp8");
  test_result plain = RUN("run", "-m", in_directory("tiny"), "-p", "abc", "-n", "2", "--device", "cpu", "--kv", "bf16");
  cr_assert(plain.code == 0 && strstr(plain.err, "KV cache") == NULL, "%s", plain.err);
  test_drop(&plain);
}

/* Of 2,048 tokens in 64-wide heads: 130 bytes and 4 in the place of 256. */
Test(kv, bytes) {
  EXPECT(0, "(with --kv fp8 ", "", "info", "-m", in_directory("tiny"));
  EXPECT(0, "tg4", "", "bench", "--like", "tiny", "--kv", "fp8", "-p", "0", "-n", "4", "-r", "1", "--device", "cpu");
}
