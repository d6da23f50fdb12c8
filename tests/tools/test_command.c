/* The mkvm command as a user meets it: exit codes, messages, and what it prints and writes. */
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/support/model.h"
#include "tests/tools/command_rig.h"
#include "text/tokenizer.h"
#include "vm/program/program.h"

TestSuite(command, .init = make_tiny, .fini = remove_all, .timeout = MK_HANG_SECONDS);

Test(command, usage_errors) {
  EXPECT(2, "", "no command given", (const char *)NULL);
  EXPECT(2, "", "'fly' is not a command", "fly");
  EXPECT(2, "", "--model DIR is missing", "run");
  EXPECT(2, "", "unrecognized option", "run", "--fly");
  EXPECT(2, "", "'x' is not a whole number", "run", "-m", in_directory("tiny"), "-n", "x");
  EXPECT(2, "", "from 1 to 1024", "run", "-m", in_directory("tiny"), "--sms", "0");
  EXPECT(2, "", "from 1 to 64", "run", "-m", in_directory("tiny"), "--ranks", "65");
  EXPECT(2, "", "GPUs have at most 8, the cpu more", "run", "-m", in_directory("tiny"), "--device", "cuda", "--ranks",
         "9", "-p", "x");
  EXPECT(2, "", "names 2 GPUs, for 3 ranks", "run", "-m", in_directory("tiny"), "--device", "cuda:0-1", "--ranks", "3",
         "-p", "x");
  EXPECT(2, "", "can be shared by at most 8 GPUs", "run", "-m", in_directory("tiny"), "--device", "cuda:0-8", "-p",
         "x");
  EXPECT(2, "", "device \"cuda:2-1\" is unknown", "run", "-m", in_directory("tiny"), "--device", "cuda:2-1", "-p", "x");
  EXPECT(2, "", "device \"cuda:1,\" is unknown", "run", "-m", in_directory("tiny"), "--device", "cuda:1,", "-p", "x");
  EXPECT(2, "", "'tpu' is not a device", "run", "-m", in_directory("tiny"), "--device", "tpu");
  EXPECT(2, "", "'cuda:' is not a device", "run", "-m", in_directory("tiny"), "--device", "cuda:");
  EXPECT(2, "", "'cuda:-1' is not a device", "bench", "--like", "tiny", "--device", "cuda:-1");
  EXPECT(2, "", "does not go with --check", "run", "-m", in_directory("tiny"), "--device", "cuda", "--check");
  EXPECT(2, "", "--interleave --adversarial", "run", "-m", in_directory("tiny"), "--device", "cuda:1", "--adversarial",
         "--interleave", "3");
  EXPECT(2, "", "--model DIR or --like SHAPE is missing", "bench");
  EXPECT(2, "", "both given", "bench", "-m", in_directory("tiny"), "--like", "tiny");
  EXPECT(2, "", "--seed needs --like", "bench", "-m", in_directory("tiny"), "-s", "1");
  EXPECT(2, "", "choose one of", "bench", "--like", "huge");
  EXPECT(2, "", "'xml' is not a format", "bench", "--like", "tiny", "-o", "xml");
  EXPECT(2, "", "--n-gen: '' is not a whole number", "bench", "--like", "tiny", "-n", "4,,5");
  EXPECT(2, "", "--n-depth: 'a' is not a whole number", "bench", "--like", "tiny", "-d", "4,a");
  EXPECT(2, "", "measured on cuda alone", "bench", "--like", "tiny", "--rows", "4", "--device", "cpu");
  EXPECT(2, "", "3 is none of 1, 2, 4, 8, 16, 64, 128, 256, 512 and 1024", "bench", "--like", "tiny", "--rows", "3");
  EXPECT(2, "", "--sampling goes with one -n", "bench", "--like", "tiny", "--sampling", "-p", "4");
  EXPECT(2, "", "measured on cuda alone", "bench", "--like", "tiny", "--sampling", "--device", "cpu");
  EXPECT(2, "", "nothing to measure", "bench", "--like", "tiny", "-n", "0", "-p", "0");
  EXPECT(2, "", "take 2049 tokens", "bench", "--like", "tiny", "-p", "0", "-d", "2040", "-n", "8", "--device", "cpu");
  EXPECT(2, "", "--ctx-size gives 64", "bench", "--like", "tiny", "-n", "64", "-c", "64", "--device", "cpu");
  EXPECT(2, "", "at depth 0 only", "bench", "--like", "tiny", "-d", "8", "--device", "cpu");
  EXPECT(2, "", "both given", "run", "-m", in_directory("tiny"), "-p", "a", "-f", "b");
  EXPECT(2, "", "would end every output", "run", "-m", in_directory("tiny"), "--stop", "");
  EXPECT(2, "", "'more' is not expected", "run", "-m", in_directory("tiny"), "more");
  EXPECT(2, "", "--output FILE is missing", "compile", "-m", in_directory("tiny"));
  EXPECT(2, "", "FILE is missing", "verify");
  EXPECT(2, "", "one FILE at a time", "disasm", "a", "b");
  EXPECT(2, "", "--like NAME is missing", "synth", "-o", in_directory("x"));
  EXPECT(2, "", "huge", "synth", "--like", "huge", "-o", in_directory("x"));
  EXPECT(2, "", "at most 2048", "info", "-m", in_directory("tiny"), "-c", "2049");
  EXPECT(2, "", "at most 2048", "run", "-m", in_directory("tiny"), "-c", "2049");
  EXPECT(2, "", "needs --model", "info", "-c", "5");
  EXPECT(2, "", "--model DIR is missing", "serve");
  EXPECT(2, "", "can be reached from other machines", "serve", "-m", in_directory("tiny"), "--host", "0.0.0.0");
  EXPECT(2, "", "can be reached from other machines", "serve", "-m", in_directory("tiny"), "--host", "::");
  EXPECT(2, "", "none of them empty", "serve", "-m", in_directory("tiny"), "--served-model-name", "");
  EXPECT(2, "", "--api-key: an API key is empty", "serve", "-m", in_directory("tiny"), "--api-key", "");
  EXPECT(2, "", "keys.txt: cannot be opened", "serve", "-m", in_directory("tiny"), "--api-key-file", "keys.txt");
  EXPECT(2, "", "not a number of seconds", "serve", "-m", in_directory("tiny"), "--shutdown-timeout", "soon");
  EXPECT(2, "", "max_batch is 3", "serve", "-m", in_directory("tiny"), "--max-batch", "3", "--port", "0");
}

Test(command, help_and_version) {
  static const char *const names[] = {"run", "serve",  "bench", "trace", "compile", "verify",
                                      "asm", "disasm", "isa",   "info",  "synth",   "quantize"};
  const size_t count = sizeof names / sizeof names[0];
  test_result r = RUN("--help");
  cr_assert_eq(r.code, 0);
  size_t listed = 0;
  for (const char *line = strstr(r.out, "\n  "); line != NULL; line = strstr(line + 1, "\n  ")) {
    listed += line[3] >= 'a' && line[3] <= 'z' && strncmp(line + 3, "mkvm", 4) != 0;
  }
  cr_assert_eq(listed, count, "the help lists %zu commands", listed);
  for (size_t i = 0; i < count; i++) {
    char line[32];
    snprintf(line, sizeof line, "\n  %-8s ", names[i]);
    cr_assert_not_null(strstr(r.out, line), "%s", names[i]);
    snprintf(line, sizeof line, "Usage: mkvm %s", names[i]);
    EXPECT(0, line, "", names[i], "--help");
    EXPECT(0, line, "", names[i], "-h");
    EXPECT(0, line, "", "help", names[i]);
  }
  test_drop(&r);
  EXPECT(0, "mkvm 0.", "", "--version");
  EXPECT(0, "devices   cpu", "", "info");
  EXPECT(0, "no cuda: ", "", "info");
  EXPECT(0, "image     ", "", "info");
}

Test(command, compile_verify_disasm) {
  const char *model = in_directory("tiny"), *program = in_directory("a.mkp");
  EXPECT(0, "instructions for 7 SMs, 300 tokens", "", "compile", "-m", model, "-o", program, "--sms", "7", "--max-seq",
         "300");
  EXPECT(0, "instructions for 3 SMs on each of 2 ranks,", "", "compile", "-m", model, "-o", program, "--sms", "3",
         "--ranks", "2");
  EXPECT(0, " scope=sys proxy=generic rank=each", "", "disasm", program);
  EXPECT(0, " rank=dealt", "", "disasm", program);
  EXPECT(0, "instructions for 7 SMs, 300 tokens", "", "compile", "-m", model, "-o", program, "--sms", "7", "--max-seq",
         "300");
  EXPECT(0, "verified: ", "", "verify", program);
  EXPECT(0, "\nqueue 6:\n#", "", "disasm", program);
  EXPECT(0, "position=0..299 ", "", "disasm", program);
  EXPECT(1, "", "/dev/full", "compile", "-m", model, "-o", "/dev/full");
  EXPECT(1, "", "No such file", "compile", "-m", model, "-o", in_directory("no/a.mkp"));
  EXPECT(3, "", "config.json", "compile", "-m", directory, "-o", program);

  cr_assert_eq(truncate(program, 1000), 0);
  EXPECT(3, "", "a.mkp: header: size", "verify", program);
  EXPECT(3, "", "a.mkp: header: size", "disasm", program);
  EXPECT(3, "", "line 1", "asm", program, "-o", in_directory("b.mkp"));
  EXPECT(3, "", "not a regular file", "verify", directory);
  EXPECT(3, "", "cannot be opened", "verify", in_directory("none.mkp"));
}

Test(command, the_same_program_every_time) {
  const char *model = in_directory("tiny");
  char *text[2];
  size_t length[2];
  for (int i = 0; i < 2; i++) {
    EXPECT(0, "", "", "compile", "-m", model, "-o", in_directory("a.mkp"));
    int fd = open(in_directory("a.mkp"), O_RDONLY);
    text[i] = test_slurp(fd, &length[i]);
    close(fd);
  }
  cr_assert(length[0] == length[1] && memcmp(text[0], text[1], length[0]) == 0);
  free(text[0]);
  free(text[1]);
}

/* A well-formed program that nobody may run: an instruction with the uid of another. */
Test(command, a_rejected_program) {
  const char *path = in_directory("a.mkp");
  EXPECT(0, "", "", "compile", "-m", in_directory("tiny"), "-o", path, "--sms", "2");
  mk_program *program;
  cr_assert_eq(mk_program_load(path, &program), MK_OK);
  program->instructions[1].uid = program->instructions[0].uid;
  cr_assert_eq(mk_program_save(program, path), MK_OK);
  mk_program_free(program);
  EXPECT(4, "", "a.mkp: ", "verify", path);
  EXPECT(0, "queue 0:", "", "disasm", path);
}

Test(command, info) {
  const char *model = in_directory("tiny");
  EXPECT(0, "supported   yes", "", "info", "-m", model);
  EXPECT(0, "at 100 tokens", "", "info", "-m", model, "-c", "100");
  EXPECT(0, "configuration alone", "", "synth", "--like", "llama-3.2-1b", "-o", in_directory("1b"), "--config-only");
  EXPECT(0, "(1.24 billion)", "", "info", "-m", in_directory("1b"));
  EXPECT(0, "no weights", "", "info", "-m", in_directory("1b"));
  cr_assert_eq(truncate(in_directory("tiny/model.safetensors"), 100000), 0);
  EXPECT(3, "supported   no: ", "model.safetensors", "info", "-m", model);
  FILE *config = fopen(in_directory("tiny/config.json"), "w");
  fputs("{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\"}", config);
  fclose(config);
  EXPECT(3, "supported   no: ", "gpt2", "info", "-m", model);
  EXPECT(3, "", "gpt2", "run", "-m", model, "-p", "a");
  EXPECT(3, "supported   no: ", "", "info", "-m", in_directory("none"));
}

Test(command, synth) {
  EXPECT(0, "", "", "synth", "--like", "tiny", "-o", in_directory("again"), "--seed", "3");
  EXPECT(2, "", "again", "synth", "--like", "tiny", "-o", in_directory("again"));
  char *first, *second;
  size_t first_length, second_length;
  int fd = open(in_directory("tiny/model.safetensors"), O_RDONLY);
  first = test_slurp(fd, &first_length);
  close(fd);
  fd = open(in_directory("again/model.safetensors"), O_RDONLY);
  second = test_slurp(fd, &second_length);
  close(fd);
  cr_assert(first_length == second_length && memcmp(first, second, first_length) == 0);
  free(first);
  free(second);
}

Test(command, run_prints_text_and_json) {
  const char *model = in_directory("tiny");
  json_t *object = RUN_JSON("-m", model, "-p", "hello", "-n", "12", "--ignore-eos");
  static const char *const keys[] = {"model", "device",        "prompt_tokens", "tokens",
                                     "text",  "finish_reason", "sampling",      "timings"};
  cr_assert_eq(json_object_size(object), 8);
  for (size_t i = 0; i < 8; i++) {
    cr_assert_not_null(json_object_get(object, keys[i]), "%s", keys[i]);
  }
  cr_assert_str_eq(text_of(object, "model"), model);
  cr_assert_str_eq(text_of(object, "device"), "cpu");
  cr_assert_str_eq(text_of(object, "finish_reason"), "length");
  cr_assert_eq(json_array_size(json_object_get(object, "tokens")), 12);
  cr_assert_gt(json_array_size(json_object_get(object, "prompt_tokens")), 0);

  const json_t *text = json_object_get(object, "text");
  test_result r = RUN("run", "-m", model, "-p", "hello", "-n", "12", "--ignore-eos");
  cr_assert_eq(r.code, 0);
  cr_assert_geq(r.out_length, json_string_length(text));
  cr_assert_eq(memcmp(r.out, json_string_value(text), json_string_length(text)), 0);
  cr_assert_not_null(strstr(r.err, "ms/token"), "no timings: %s", r.err);
  cr_assert_null(strchr(r.err, '\r'), "progress although standard error is no terminal");
  test_drop(&r);
  expect(RUN("run", "-m", model, "-p", "hello", "-n", "2", "--echo"), 0, "hello", "");
  json_decref(object);
}

Test(command, run_is_the_same_on_any_machine) {
  const char *model = in_directory("tiny");
  json_t *want = RUN_JSON("-m", model, "-p", "Some words", "-n", "8");
  json_t *others[] = {
      RUN_JSON("-m", model, "-p", "Some words", "-n", "8", "--sms", "1"),
      RUN_JSON("-m", model, "-p", "Some words", "-n", "8", "--sms", "7", "--interleave", "5", "--check"),
      RUN_JSON("-m", model, "-p", "Some words", "-n", "8", "--sms", "2", "--ranks", "3", "--adversarial", "--check"),
      RUN_JSON("-m", model, "-p", "Some words", "-n", "8", "--sms", "9", "--adversarial", "--interleave", "6")};
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    cr_assert(json_equal(json_object_get(want, "tokens"), json_object_get(others[i], "tokens")), "run %zu", i);
    json_decref(others[i]);
  }
  json_decref(want);
}

Test(command, run_samples) {
  const char *model = in_directory("tiny");
  json_t *first =
      RUN_JSON("-m", model, "-p", "x", "-n", "9", "--ignore-eos", "--temp", "0.9", "--top-k", "30", "-s", "5");
  json_t *others[] = {
      RUN_JSON("-m", model, "-p", "x", "-n", "9", "--ignore-eos", "--temp", "0.9", "--top-k", "30", "--seed", "5",
               "--sms", "7", "--adversarial", "--interleave", "3", "--check"),
      RUN_JSON("-m", model, "-p", "x", "-n", "9", "--ignore-eos", "--temp", "0.9", "--top-k", "30", "-s", "6"),
      RUN_JSON("-m", model, "-p", "x", "-n", "9", "--ignore-eos", "--top-p", "0.5", "--min-p", "0.01",
               "--repeat-penalty", "1.2", "--presence-penalty", "0.5", "--frequency-penalty", "-0.5", "--logit-bias",
               "7+1.5", "--logit-bias", "9-inf", "--logprobs", "3")};
  cr_assert(json_equal(json_object_get(first, "tokens"), json_object_get(others[0], "tokens")));
  cr_assert(!json_equal(json_object_get(first, "tokens"), json_object_get(others[1], "tokens")));
  const json_t *sampling = json_object_get(first, "sampling"), *logprobs = json_object_get(others[2], "logprobs");
  cr_assert_eq(json_integer_value(json_object_get(sampling, "seed")), 5);
  cr_assert_eq(json_integer_value(json_object_get(sampling, "top_k")), 30);
  cr_assert(json_number_value(json_object_get(sampling, "temperature")) == 0.9);
  sampling = json_object_get(others[2], "sampling");
  const json_t *biases = json_object_get(sampling, "logit_bias");
  cr_assert_eq(json_array_size(biases), 2);
  cr_assert(json_number_value(json_object_get(json_array_get(biases, 0), "bias")) == 1.5);
  cr_assert_eq(json_integer_value(json_object_get(json_array_get(biases, 1), "token")), 9);
  cr_assert(json_is_null(json_object_get(json_array_get(biases, 1), "bias")), "banned");
  cr_assert(json_number_value(json_object_get(sampling, "temperature")) == 1, "a filter asks for sampling");
  cr_assert_eq(json_array_size(logprobs), 9);
  for (size_t i = 0; i < 9; i++) {
    const json_t *one = json_array_get(logprobs, i), *top = json_object_get(one, "top");
    cr_assert(json_equal(json_object_get(one, "token"), json_array_get(json_object_get(others[2], "tokens"), i)));
    cr_assert_eq(json_array_size(top), 3);
    cr_assert_leq(json_number_value(json_object_get(one, "logprob")),
                  json_number_value(json_object_get(json_array_get(top, 0), "logprob")));
  }
  for (size_t i = 0; i < 3; i++) {
    json_decref(others[i]);
  }
  json_decref(first);
  EXPECT(0, "", "sampling: temperature 0.5, top-k 0, top-p 1, min-p 0, seed 7", "run", "-m", model, "-p", "x", "-n",
         "2", "--temp", "0.5", "-s", "7");
  EXPECT(0, " | ", "", "run", "-m", model, "-p", "x", "-n", "2", "--logprobs", "2");
}

Test(command, sampling_options_that_make_no_sense) {
  const char *model = in_directory("tiny");
  EXPECT(2, "", "--temp: 'warm' is not a number", "run", "-m", model, "--temp", "warm");
  EXPECT(2, "", "temperature is -1", "run", "-m", model, "--temp", "-1");
  EXPECT(2, "", "top-p is 1.5", "run", "-m", model, "--top-p", "1.5");
  EXPECT(2, "", "--top-k", "run", "-m", model, "--top-k", "-3");
  EXPECT(2, "", "--seed: 'x' is not a whole number", "run", "-m", model, "--seed", "x");
  EXPECT(2, "", "repetition penalty is 0", "run", "-m", model, "--repeat-penalty", "0");
  EXPECT(2, "", "--logprobs is for one turn", "run", "-m", model, "--chat", "--logprobs", "1");
  EXPECT(2, "", "--logprobs", "run", "-m", model, "--logprobs", "21");
  EXPECT(2, "", "'5' is not TOKEN+B", "run", "-m", model, "--logit-bias", "5");
  EXPECT(2, "", "'5+inf' is not TOKEN+B", "run", "-m", model, "--logit-bias", "5+inf");
  EXPECT(2, "", "'-5+1' is not TOKEN+B", "run", "-m", model, "--logit-bias", "-5+1");
  EXPECT(2, "", "token 99999999", "run", "-m", model, "--logit-bias", "99999999+1");
  EXPECT(2, "", "two logit biases", "run", "-m", model, "--logit-bias", "5+1", "--logit-bias", "5+2");
  EXPECT(2, "", "--compare is greedy", "run", "-m", model, "--compare", "--temp", "1");
}

Test(command, sampling_comes_from_the_model) {
  const char *model = in_directory("tiny"), *path = in_directory("tiny/generation_config.json");
  FILE *file = fopen(path, "w");
  fputs("{\"do_sample\": true, \"temperature\": 0.6, \"top_p\": 0.9}", file);
  fclose(file);
  EXPECT(0, "", "temperature 0.6, top-k 50, top-p 0.9, min-p 0, seed ", "run", "-m", model, "-p", "x", "-n", "2");
  EXPECT(0, "", "temperature 0.6, top-k 0, top-p 0.9, min-p 0, seed ", "run", "-m", model, "-p", "x", "-n", "2",
         "--top-k", "0");
  test_result r = RUN("run", "-m", model, "-p", "x", "-n", "2", "--temp", "0");
  cr_assert_eq(r.code, 0);
  cr_assert_null(strstr(r.err, "sampling:"), "%s", r.err);
  test_drop(&r);
  file = fopen(path, "w");
  fputs("{\"do_sample\": false, \"temperature\": 0.6, \"top_p\": 0.9}", file);
  fclose(file);
  EXPECT(0, "", "temperature 0.7, top-k 0, top-p 0.9, min-p 0, seed 3", "run", "-m", model, "-p", "x", "-n", "2",
         "--temp", "0.7", "-s", "3");
  r = RUN("run", "-m", model, "-p", "x", "-n", "2");
  cr_assert_eq(r.code, 0);
  cr_assert_null(strstr(r.err, "sampling:"), "%s", r.err);
  test_drop(&r);
  file = fopen(path, "w");
  fputs("{\"do_sample\": true, \"top_p\": 9}", file);
  fclose(file);
  EXPECT(3, "", "generation_config.json: top_p: is 9", "run", "-m", model, "-p", "x", "-n", "2");
  file = fopen(path, "w");
  fputs("{\"num_beams\": 4}", file);
  fclose(file);
  EXPECT(3, "", "generation_config.json: num_beams: is 4, and answers made so are not supported", "run", "-m", model,
         "-p", "x", "-n", "2");
  EXPECT(3, "", "generation_config.json: num_beams: is 4", "info", "-m", model);
}

/* Llama 2's decoder drops the first space of a text; the prompt is where the text begins. */
Test(command, a_continuation_keeps_its_first_space) {
  mk_config config = test_model_config(TEST_MODEL_TINY);
  char model[TEST_PATH], path[TEST_PATH + 32];
  config.vocab = 2048;
  test_model_write(&config, model);
  snprintf(path, sizeof path, "%s/tokenizer.json", model);
  cr_assert_eq(unlink(path), 0);
  cr_assert_eq(symlink(MK_SOURCE_DIR "/tests/text/data/tokenizer_bytes.json", path), 0);
  mk_tokenizer *tokenizer;
  mk_decoder *decoder;
  cr_assert_eq(mk_tokenizer_load(model, config.vocab, &tokenizer), MK_OK, "%s", mk_error_message());
  bool spaces = false;
  const char *const prompts[] = {"the", "a file", "one two", "it is", "for"};
  for (size_t p = 0; p < sizeof prompts / sizeof prompts[0]; p++) {
    json_t *object = RUN_JSON("-m", model, "-p", prompts[p], "-n", "4", "--ignore-eos", "--device", "cpu");
    mk_tokens ids = {0};
    char whole[4096] = "";
    const char *text;
    size_t length, prompt_length = 0, i;
    json_t *token;
    cr_assert_eq(mk_tokenizer_encode(tokenizer, prompts[p], strlen(prompts[p]), true, &ids), MK_OK);
    cr_assert_eq(mk_decoder_new(tokenizer, &decoder), MK_OK);
    for (i = 0; i < ids.count; i++) {
      cr_assert_eq(mk_decoder_push(decoder, ids.ids[i], &text, &length), MK_OK);
      prompt_length += length;
    }
    json_array_foreach(json_object_get(object, "tokens"), i, token) {
      cr_assert_eq(mk_decoder_push(decoder, (uint32_t)json_integer_value(token), &text, &length), MK_OK);
      strncat(whole, text, sizeof whole - strlen(whole) - 1);
    }
    cr_assert_eq(mk_decoder_finish(decoder, &text, &length), MK_OK);
    strncat(whole, text, sizeof whole - strlen(whole) - 1);
    cr_expect_str_eq(text_of(object, "text"), whole, "%s: the continuation is not the rest of the whole text",
                     prompts[p]);
    spaces |= whole[0] == ' ';
    cr_expect_gt(prompt_length, 0);
    mk_decoder_free(decoder);
    mk_tokens_free(&ids);
    json_decref(object);
  }
  cr_expect(spaces, "no continuation began with a space: the test shows nothing");
  mk_tokenizer_free(tokenizer);
  test_model_remove(model);
}

Test(command, stop_ends_the_text_before_it) {
  const char *model = in_directory("tiny");
  json_t *whole = RUN_JSON("-m", model, "-p", "a", "-n", "24", "--ignore-eos");
  const char *text = text_of(whole, "text");
  size_t length = strlen(text), at = length / 2;
  while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80) { /* not inside a character */
    at--;
  }
  size_t end = at + 3 < length ? at + 3 : length;
  while (end < length && ((unsigned char)text[end] & 0xc0) == 0x80) {
    end++;
  }
  char stop[16] = {0};
  cr_assert_lt(end - at, sizeof stop);
  memcpy(stop, text + at, end - at);
  cr_assert_gt(strlen(stop), 1, "the model's text is too short for this test: `%s`", text);
  json_t *ended = RUN_JSON("-m", model, "-p", "a", "-n", "24", "--ignore-eos", "--stop", "never this", "--stop", stop);
  cr_assert_str_eq(text_of(ended, "finish_reason"), "stop");
  size_t want = (size_t)(strstr(text, stop) - text);
  cr_assert_eq(strlen(text_of(ended, "text")), want);
  cr_assert_eq(strncmp(text, text_of(ended, "text"), want), 0);
  cr_assert_lt(json_array_size(json_object_get(ended, "tokens")), 24);
  json_decref(ended);
  json_decref(whole);
}

Test(command, logits) {
  const char *path = in_directory("l.npy");
  json_t *object = RUN_JSON("-m", in_directory("tiny"), "-p", "b", "-n", "6", "--ignore-eos", "--logits", path);
  int fd = open(path, O_RDONLY);
  size_t length;
  char *bytes = test_slurp(fd, &length);
  close(fd);
  cr_assert_eq(length, 128 + 6 * 512 * sizeof(float));
  cr_assert_not_null(strstr(bytes + 10, "'shape': (6, 512)"));
  for (size_t step = 0; step < 6; step++) {
    float row[512];
    uint32_t best = 0;
    memcpy(row, bytes + 128 + step * sizeof row, sizeof row);
    for (uint32_t i = 1; i < 512; i++) {
      best = row[i] > row[best] ? i : best;
    }
    cr_assert_eq(best, json_integer_value(json_array_get(json_object_get(object, "tokens"), step)), "step %zu", step);
  }
  free(bytes);
  json_decref(object);
  EXPECT(1, "", "no/l.npy", "run", "-m", in_directory("tiny"), "-n", "1", "--logits", in_directory("no/l.npy"));
}

Test(command, lengths) {
  const char *model = in_directory("tiny");
  json_t *object = RUN_JSON("-m", model, "-p", "hello", "-c", "10", "-n", "-1", "--ignore-eos");
  cr_assert_str_eq(text_of(object, "finish_reason"), "length");
  cr_assert_eq(
      json_array_size(json_object_get(object, "tokens")) + json_array_size(json_object_get(object, "prompt_tokens")),
      10);
  json_decref(object);
  object = RUN_JSON("-m", model, "-p", "hello", "-n", "0");
  cr_assert_eq(json_array_size(json_object_get(object, "tokens")), 0);
  cr_assert_str_eq(text_of(object, "text"), "");
  json_decref(object);
  EXPECT(2, "", "the context 3", "run", "-m", model, "-p", "hello", "-c", "3");
  EXPECT(0, "", "", "run", "-m", model, "-n", "1"); /* an empty prompt: the tokenizer adds a BOS */
}

Test(command, prompts_from_files) {
  const char *model = in_directory("tiny"), *path = in_directory("prompt");
  FILE *file = fopen(path, "w");
  fwrite("one\0two\xff", 1, 8, file); /* any bytes are a prompt */
  fclose(file);
  json_t *object = RUN_JSON("-m", model, "-f", path, "-n", "1");
  cr_assert_geq(json_array_size(json_object_get(object, "prompt_tokens")), 8);
  json_decref(object);
  EXPECT(0, "", "", "run", "-m", model, "-f", "-", "-n", "1");
  EXPECT(1, "", "none: cannot be opened", "run", "-m", model, "-f", in_directory("none"), "-n", "1");
  EXPECT(1, "", "cannot be read", "run", "-m", model, "-f", directory, "-n", "1");
}

Test(command, a_full_disk) {
  const char *const arguments[][10] = {{"run", "-m", in_directory("tiny"), "-n", "2", "--ignore-eos", NULL},
                                       {"run", "-m", in_directory("tiny"), "-n", "2", "--json", NULL},
                                       {"info", NULL},
                                       {"bench", "--like", "tiny", "--device", "cpu", "-n", "2", NULL},
                                       {"--help", NULL},
                                       {"isa", NULL}};
  for (size_t i = 0; i < sizeof arguments / sizeof arguments[0]; i++) {
    int in = open("/dev/null", O_RDONLY), out = open("/dev/full", O_WRONLY), err = test_scratch_file();
    size_t length;
    cr_assert_eq(test_finish(test_start(MK_COMMAND, arguments[i], in, out, err)), 1, "%s", arguments[i][0]);
    char *text = test_slurp(err, &length);
    cr_assert_not_null(strstr(text, "written"), "%s", text);
    free(text);
    close(in);
    close(out);
    close(err);
  }
}

static void expect_one_line(const char *const *arguments) {
  test_result r = run(arguments);
  cr_assert_eq(r.code, 1, "%s: exit code %d: %s", arguments[0], r.code, r.err);
  cr_assert_str_eq(r.out, "");
  const char *end = strchr(r.err, '\n');
  cr_assert(end != NULL && end[1] == '\0', "%s: not one line: %s", arguments[0], r.err);
  cr_assert_not_null(strstr(r.err, "device cpu"), "%s: no way out: %s", arguments[0], r.err);
  test_drop(&r);
}

Test(command, cuda_without_a_gpu) {
  const char *const model = in_directory("tiny");
  expect_one_line((const char *const[]){"run", "-m", model, "-p", "a", "--device", "cuda", NULL});
  expect_one_line((const char *const[]){"bench", "--like", "tiny", "--device", "cuda:0", NULL});
  json_t *object = RUN_JSON("-m", model, "-p", "a", "-n", "1"); /* nobody asked for one: the CPU does it */
  cr_assert_str_eq(text_of(object, "device"), "cpu");
  json_decref(object);
}
