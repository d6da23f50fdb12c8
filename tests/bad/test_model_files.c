/* Hostile model directories through the command: exit code 3, and a message that names the file, the field and the
 * value. Each test breaks one thing in a directory that is good otherwise. tests/bad/README.md lists them. */
#define _GNU_SOURCE /* memmem */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/engine.h"
#include "models/checkpoint.h"
#include "models/json.h"
#include "tests/support/model.h"

#define WEIGHTS "model.safetensors"
#define INDEX "model.safetensors.index.json"

static char directory[TEST_PATH];

static void make(void) {
  mk_config config = test_model_config(TEST_MODEL_TINY);
  test_model_write(&config, directory);
}

static void drop(void) {
  DIR *entries = opendir(directory);
  for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
    char path[TEST_PATH + 300];
    snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
    remove(path);
  }
  if (entries != NULL) {
    closedir(entries);
  }
  remove(directory);
}

TestSuite(bad_model, .init = make, .fini = drop, .timeout = MK_HANG_SECONDS);

static const char *path_of(const char *name) {
  static char paths[4][TEST_PATH + 64];
  static unsigned next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", directory, name);
  return path;
}

static char *read_file(const char *name, size_t *length) {
  char *text;
  cr_assert_eq(mk_file_read(path_of(name), false, SIZE_MAX, &text, length), MK_OK, "%s", mk_error_message());
  return text;
}

/* The parts of a file, one after the other. */
static void write_file(const char *name, size_t count, const void *const *parts, const size_t *lengths) {
  FILE *file = fopen(path_of(name), "w");
  cr_assert_not_null(file);
  for (size_t i = 0; i < count; i++) {
    cr_assert_eq(fwrite(parts[i], 1, lengths[i], file), lengths[i]);
  }
  fclose(file);
}

static void put(const char *name, const char *text) {
  size_t length = strlen(text);
  write_file(name, 1, (const void *[]){text}, &length);
}

/* Replaces the first `from` after `start` bytes; gives by how much the file grew. */
static size_t replace(const char *name, size_t start, const char *from, const char *to) {
  size_t length;
  char *text = read_file(name, &length);
  char *at = memmem(text + start, length - start, from, strlen(from));
  cr_assert_not_null(at, "%s is not in %s", from, name);
  const char *rest = at + strlen(from);
  write_file(name, 3, (const void *[]){text, to, rest},
             (size_t[]){(size_t)(at - text), strlen(to), (size_t)(text + length - rest)});
  mk_free(text);
  return strlen(to) - strlen(from);
}

static void put_header_length(uint64_t value) {
  int file = open(path_of(WEIGHTS), O_WRONLY | O_CLOEXEC);
  cr_assert_eq(pwrite(file, &value, sizeof value, 0), (ssize_t)sizeof value);
  close(file);
}

static uint64_t header_length(void) {
  uint64_t value = 0;
  int file = open(path_of(WEIGHTS), O_RDONLY | O_CLOEXEC);
  cr_assert_eq(pread(file, &value, sizeof value, 0), (ssize_t)sizeof value);
  close(file);
  return value;
}

static void edit_header(const char *from, const char *to) {
  uint64_t length = header_length();
  put_header_length(length + replace(WEIGHTS, sizeof length, from, to));
}

/* Runs `mkvm COMMAND -m DIRECTORY ...` and gives its exit code and its messages. */
static int run(const char *command, char *messages, size_t size) {
  const bool generate = strcmp(command, "run") == 0;
  const char *const arguments[] = {"mkvm", command, "-m", directory, generate ? "-p" : NULL, "a", "-n", "1", "--device",
                                   "cpu",  "--sms", "2",  NULL};
  FILE *err = tmpfile();
  cr_assert_not_null(err);
  pid_t child = fork();
  if (child == 0) {
    dup2(open("/dev/null", O_RDWR), STDOUT_FILENO);
    dup2(open("/dev/null", O_RDWR), STDIN_FILENO);
    dup2(fileno(err), STDERR_FILENO);
    execv(MK_COMMAND, (char *const *)(uintptr_t)arguments);
    _exit(127);
  }
  int status;
  cr_assert_eq(waitpid(child, &status, 0), child);
  rewind(err);
  messages[fread(messages, 1, size - 1, err)] = '\0';
  fclose(err);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void expect_refused(const char *command, const char *file, const char *words, const char *more) {
  char messages[4096];
  int code = run(command, messages, sizeof messages);
  cr_assert_eq(code, MK_ERR_FILE, "mkvm %s: exit code %d; %s", command, code, messages);
  cr_assert_not_null(strstr(messages, path_of(file)), "%s is not named: %s", path_of(file), messages);
  cr_assert_not_null(strstr(messages, words), "`%s` is not in: %s", words, messages);
  cr_assert_not_null(strstr(messages, more), "`%s` is not in: %s", more, messages);
  const char *end = strchr(messages, '\n');
  cr_assert(end != NULL && end[1] == '\0', "not one line: %s", messages);
}

/* `words` name the field, `more` the value. */
static void refused(const char *file, const char *words, const char *more) {
  expect_refused("run", file, words, more);
  expect_refused("info", file, words, more);
}

Test(bad_model, good_as_it_is) {
  char messages[4096];
  cr_assert_eq(run("run", messages, sizeof messages), 0, "%s", messages);
  cr_assert_eq(run("info", messages, sizeof messages), 0, "%s", messages);
}

/* Files that are no files. */

static const char *const files[] = {"config.json", "generation_config.json", WEIGHTS, "tokenizer.json"};
enum { FILES = 4 };

Test(bad_model, empty) {
  for (size_t i = 0; i < FILES; i++) {
    cr_assert_eq(rename(path_of(files[i]), path_of("kept")), 0);
    put(files[i], "");
    refused(files[i], "is empty", "0 bytes");
    cr_assert_eq(rename(path_of("kept"), path_of(files[i])), 0);
  }
}

Test(bad_model, missing) {
  for (size_t i = 0; i < FILES; i++) {
    char messages[4096];
    cr_assert_eq(rename(path_of(files[i]), path_of("kept")), 0);
    int code = run("run", messages, sizeof messages);
    if (strcmp(files[i], "generation_config.json") == 0) { /* older models have none */
      cr_assert_eq(code, 0, "%s", messages);
    } else {
      cr_assert_eq(code, MK_ERR_FILE, "%s", messages);
      cr_assert_not_null(strstr(messages, directory), "%s", messages);
      cr_assert_not_null(strstr(messages, files[i]), "%s", messages);
    }
    cr_assert_eq(rename(path_of("kept"), path_of(files[i])), 0);
  }
}

/* As of a download's cache that was copied without its blobs: it is not that the file was never there. */
Test(bad_model, a_link_to_nothing) {
  for (size_t i = 0; i < FILES; i++) {
    cr_assert_eq(rename(path_of(files[i]), path_of("kept")), 0);
    cr_assert_eq(symlink("../blobs/1a2b", path_of(files[i])), 0);
    refused(files[i], "is a link to what is not there", "");
    cr_assert_eq(unlink(path_of(files[i])), 0);
    cr_assert_eq(symlink("kept", path_of(files[i])), 0);
    char messages[4096];
    cr_assert_eq(run("run", messages, sizeof messages), 0, "%s", messages);
    cr_assert_eq(rename(path_of("kept"), path_of(files[i])), 0);
  }
}

Test(bad_model, another_tokenizer_in_the_place) {
  cr_assert_eq(unlink(path_of("tokenizer.json")), 0);
  expect_refused("run", "tokenizer.json", "text needs it", "No such file");
  put("tokenizer.model", "pieces");
  expect_refused("run", "tokenizer.json", "tokenizer.model is not read", "save_pretrained");
}

/* Named once. */
Test(bad_model, files_beside_the_tokenizer) {
  static const char *const beside[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"};
  for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++) {
    char messages[4096], start[256];
    unlink(path_of("tokenizer_config.json"));
    put(beside[i], "{");
    expect_refused("run", beside[i], "line 1", "not valid JSON");
    run("run", messages, sizeof messages);
    snprintf(start, sizeof start, "mkvm run: %s: line 1", path_of(beside[i]));
    cr_expect(strncmp(messages, start, strlen(start)) == 0, "%s", messages);
    cr_assert_eq(unlink(path_of(beside[i])), 0);
  }
}

Test(bad_model, weights_of_another_format) {
  static const char *const others[] = {"model.gguf", "consolidated.00.pth", "pytorch_model.bin"};
  const char *at = WEIGHTS;
  char messages[4096];
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    cr_assert_eq(rename(path_of(at), path_of(others[i])), 0);
    at = others[i];
    for (int info = 0; info < 2; info++) {
      cr_expect_eq(run(info ? "info" : "run", messages, sizeof messages), MK_ERR_FILE, "%s", messages);
      cr_expect(strstr(messages, at) != NULL && strstr(messages, "is not supported; convert it") != NULL, "%s",
                messages);
    }
  }
  cr_assert_eq(rename(path_of(at), path_of("training_args.bin")), 0); /* no weights at all */
  cr_expect_eq(run("info", messages, sizeof messages), 0, "%s", messages);
}

Test(bad_model, a_directory) {
  for (size_t i = 0; i < FILES; i++) {
    cr_assert_eq(rename(path_of(files[i]), path_of("kept")), 0);
    cr_assert_eq(mkdir(path_of(files[i]), 0700), 0);
    refused(files[i], "is a directory", "");
    cr_assert_eq(rmdir(path_of(files[i])), 0);
    cr_assert_eq(rename(path_of("kept"), path_of(files[i])), 0);
  }
}

Test(bad_model, a_fifo) {
  for (size_t i = 0; i < FILES; i++) {
    cr_assert_eq(rename(path_of(files[i]), path_of("kept")), 0);
    cr_assert_eq(mkfifo(path_of(files[i]), 0600), 0);
    refused(files[i], "is a FIFO", ""); /* and does not wait for a writer */
    cr_assert_eq(unlink(path_of(files[i])), 0);
    cr_assert_eq(rename(path_of("kept"), path_of(files[i])), 0);
  }
}

/* The header of the weights. */

Test(bad_model, header_length_0) {
  put_header_length(0);
  refused(WEIGHTS, "header length is 0", "");
}
Test(bad_model, header_length_7) {
  put_header_length(7);
  refused(WEIGHTS, "header length is 7", "");
}
Test(bad_model, header_longer_than_the_file) {
  put_header_length(99999999);
  refused(WEIGHTS, "header length is 99999999", "the file has");
}
Test(bad_model, header_length_2_to_the_63) {
  put_header_length(UINT64_C(1) << 63);
  refused(WEIGHTS, "header length is 9223372036854775808", "");
}
Test(bad_model, header_not_utf8) {
  edit_header("\"pt\"", "\"\xff\xfe\"");
  refused(WEIGHTS, "header: line 1", "0xff");
}
Test(bad_model, duplicate_names) {
  edit_header("model.layers.0.input_layernorm.weight", "model.embed_tokens.weight");
  refused(WEIGHTS, "duplicate object key", "model.embed_tokens.weight");
}

#define NORM "tensor model.layers.0.input_layernorm.weight"
Test(bad_model, negative_dimension) {
  edit_header("\"shape\":[128]", "\"shape\":[-128]");
  refused(WEIGHTS, NORM ": shape", "[-128]");
}
Test(bad_model, fractional_dimension) {
  edit_header("\"shape\":[128]", "\"shape\":[128.5]");
  refused(WEIGHTS, NORM ": shape", "[128.5]");
}
Test(bad_model, overflowing_dimensions) { /* they wrap to 4 */
  edit_header("\"shape\":[320,128]", "\"shape\":[4194305,4194305,211106198978564]");
  refused(WEIGHTS, "tensor model.embed_tokens.weight: shape", "[4194305,4194305,211106198978564]");
}
Test(bad_model, size_unlike_offsets) {
  edit_header("\"shape\":[128]", "\"shape\":[127]");
  refused(WEIGHTS, NORM ": data_offsets", "span 256 bytes, but dtype and shape [127] need 254");
}
Test(bad_model, hole) {
  edit_header("\"shape\":[128],\"data_offsets\":[81920,", "\"shape\":[127],\"data_offsets\":[81922,");
  refused(WEIGHTS, NORM ": starts at byte 81922", "hole");
}
Test(bad_model, overlap) {
  edit_header("\"shape\":[128],\"data_offsets\":[81920,", "\"shape\":[129],\"data_offsets\":[81918,");
  refused(WEIGHTS, NORM ": starts at byte 81918", "overlap");
}
Test(bad_model, begin_after_end) {
  edit_header("[81920,82176]", "[82176,81920]");
  refused(WEIGHTS, NORM ": data_offsets", "[82176,81920]");
}
Test(bad_model, trailing_bytes) {
  size_t length;
  char *text = read_file(WEIGHTS, &length);
  write_file(WEIGHTS, 2, (const void *[]){text, "xyz"}, (size_t[]){length, 3});
  mk_free(text);
  refused(WEIGHTS, "3 bytes follow the last tensor", "");
}
Test(bad_model, unknown_dtype) {
  edit_header("\"BF16\"", "\"F8_E5M2\"");
  refused(WEIGHTS, "tensor model.embed_tokens.weight: dtype", "F8_E5M2");
}
Test(bad_model, truncated_file) {
  cr_assert_eq(truncate(path_of(WEIGHTS), (off_t)(8 + header_length() + 82000)), 0);
  refused(WEIGHTS, "data_offsets", "82000 bytes of data");
}

/* The weights against the configuration. */

Test(bad_model, shape_unlike_config) {
  edit_header("\"shape\":[320,128]", "\"shape\":[128,320]");
  refused(WEIGHTS, "tensor model.embed_tokens.weight: shape is [128, 320]", "[320, 128]");
}
Test(bad_model, missing_tensor) {
  edit_header("model.norm.weight", "model.rotary_emb.inv_freq"); /* which is tolerated */
  refused(WEIGHTS, "tensor model.norm.weight: is missing", "2 layers");
}
Test(bad_model, surplus_tensor) {
  edit_header("model.norm.weight", "score.weight");
  refused(WEIGHTS, "tensor score.weight", "not part of a Llama");
}

/* Shards: the weights become two files that say the same. */
static void split(const char *first_file, const char *other_file) {
  mk_checkpoint *checkpoint;
  size_t length, used;
  cr_assert_eq(mk_checkpoint_open(directory, &checkpoint), MK_OK, "%s", mk_error_message());
  char map[8192] = "{\"weight_map\":{";
  used = strlen(map);
  for (size_t i = 0; i < mk_checkpoint_count(checkpoint); i++) {
    used += (size_t)snprintf(map + used, sizeof map - used, "%s\"%s\":\"%s\"", i == 0 ? "" : ",",
                             mk_checkpoint_tensor(checkpoint, i)->name, i == 0 ? first_file : other_file);
  }
  snprintf(map + used, sizeof map - used, "}}");
  put(INDEX, map);
  char *text = read_file(WEIGHTS, &length);
  const void *part = text;
  write_file("one.safetensors", 1, &part, &length);
  write_file("two.safetensors", 1, &part, &length);
  mk_free(text);
  mk_checkpoint_close(checkpoint);
  cr_assert_eq(unlink(path_of(WEIGHTS)), 0);
}

Test(bad_model, doubled_tensor) {
  split("one.safetensors", "two.safetensors");
  refused(INDEX, "weight_map: tensor model", "also or only in");
}
Test(bad_model, shard_name_with_a_slash) {
  split("sub/one.safetensors", "two.safetensors");
  refused(INDEX, "weight_map: model", "sub/one.safetensors");
}
Test(bad_model, shard_name_from_the_root) {
  split("/etc/one.safetensors", "two.safetensors");
  refused(INDEX, "weight_map: model", "/etc/one.safetensors");
}
Test(bad_model, shard_name_with_dots) {
  split("../one.safetensors", "two.safetensors");
  refused(INDEX, "weight_map: model", "../one.safetensors");
}

/* The file shrinks while its weights are being loaded: after the first weight the rest is gone. */
static void cut(void *user, uint64_t done, uint64_t total) {
  (void)total;
  if (done > 0 && !*(bool *)user) {
    *(bool *)user = true;
    cr_assert_eq(truncate(path_of(WEIGHTS), (off_t)(8 + header_length() + 90000)), 0);
  }
}

Test(bad_model, truncated_while_it_is_loaded) {
  bool done = false;
  mk_engine *engine;
  mk_engine_options options = {.device = "cpu", .sms = 2, .progress = cut, .progress_user = &done};
  cr_assert_eq(mk_engine_open(directory, &options, &engine), MK_ERR_FILE, "%s", mk_error_message());
  cr_assert(done);
  cr_assert_not_null(strstr(mk_error_message(), path_of(WEIGHTS)), "%s", mk_error_message());
  cr_assert_not_null(strstr(mk_error_message(), "truncated while it was read"), "%s", mk_error_message());
}

/* config.json. */

static void config_refused(const char *from, const char *to, const char *field, const char *value) {
  replace("config.json", 0, from, to);
  refused("config.json", field, value);
}

Test(bad_model, missing_key) {
  config_refused("\"num_hidden_layers\"", "\"layers\"", "num_hidden_layers: is missing", "");
}
/* The default is the size of Llama 2 7B; these weights are none. */
Test(bad_model, missing_size) {
  replace("config.json", 0, "\"hidden_size\"", "\"hidden\"");
  refused(WEIGHTS, "shape is [320, 128]", "[320, 4096]");
}
Test(bad_model, zero_heads) {
  config_refused("\"num_attention_heads\": 4", "\"num_attention_heads\": 0", "num_attention_heads", "is 0");
}
Test(bad_model, heads_not_divisible_by_kv_heads) {
  config_refused("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", "num_key_value_heads", "is 3");
}
Test(bad_model, unknown_rope_type) { config_refused("\"llama3\"", "\"su\"", "rope_scaling.rope_type", "su"); }

#define LAYERS "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1000000000"
Test(bad_model, a_thousand_million_layers) { config_refused(LAYERS, "num_hidden_layers", "is 1000000000"); }
/* Two allocations read the file; a third one fails, and is not asked for. */
Test(bad_model, refused_before_anything_is_allocated) {
  mk_config config;
  replace("config.json", 0, LAYERS);
  mk_alloc_fail_at(3, true);
  mk_status status = mk_config_load(directory, &config);
  mk_alloc_fail_at(0, false);
  cr_assert_eq(status, MK_ERR_FILE, "%s", mk_error_message());
}
/* A shape that a configuration may have, with the weights of another: gigabytes would be taken for it. */
Test(bad_model, large_shape_over_small_weights) {
  replace("config.json", 0, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1024");
  replace("config.json", 0, "\"intermediate_size\": 352", "\"intermediate_size\": 500000");
  replace("config.json", 0, "\"hidden_size\": 128", "\"hidden_size\": 8192");
  refused(WEIGHTS, "shape is [320, 128]", "[320, 8192]");
}
Test(bad_model, control_characters_in_a_value) {
  replace("config.json", 0, "\"llama3\"", "\"\\u001b[2J\"");
  char messages[4096];
  cr_assert_eq(run("run", messages, sizeof messages), MK_ERR_FILE, "%s", messages);
  cr_assert_null(strchr(messages, '\033'), "%s", messages);
}
Test(bad_model, control_characters_in_a_name) {
  edit_header("model.norm.weight", "\\u001b[2J\\r\\n");
  char messages[4096];
  cr_assert_eq(run("run", messages, sizeof messages), MK_ERR_FILE, "%s", messages);
  cr_assert_null(strpbrk(messages, "\033\r"), "%s", messages);
}

Test(bad_model, eos_id_that_is_no_number) {
  put("generation_config.json", "{\"eos_token_id\":[5,\"320\"]}");
  refused("generation_config.json", "eos_token_id", "is \"320\"");
}

/* tokenizer.json. */

static void tokenizer_refused(const char *from, const char *to, const char *field, const char *value) {
  replace("tokenizer.json", 0, from, to);
  refused("tokenizer.json", field, value);
}

Test(bad_model, id_far_beyond_the_others) {
  tokenizer_refused("\"\\u0100\": 0", "\"\\u0100\": 1000000", "model.vocab", "ids up to 1000000");
}
Test(bad_model, duplicate_id) {
  tokenizer_refused("\"\\u0100\": 0", "\"\\u0100\": 1", "model.vocab", "id 1 is already that of");
}
/* Listed it does no harm; a prompt that has it is the user's to change. */
Test(bad_model, id_not_below_vocab_size) {
  char messages[4096];
  replace("tokenizer.json", 0, "\"\\u0100\": 0", "\"\\u0100\": 320");
  cr_assert_eq(run("run", messages, sizeof messages), 0, "%s", messages);
  cr_assert_eq(run("info", messages, sizeof messages), 0, "%s", messages);
  replace("tokenizer.json", 0, "\"a\": 97", "\"a\": 321");
  cr_assert_eq(run("run", messages, sizeof messages), MK_ERR_USAGE, "%s", messages);
  cr_assert_not_null(strstr(messages, "token \"a\" with the id 321, but the model's vocabulary has 320"), "%s",
                     messages);
}
Test(bad_model, merge_of_an_unknown_piece) {
  tokenizer_refused("\"merges\": []", "\"merges\": [\"a zz\"]", "model.merges[0]", "\"zz\"");
}
Test(bad_model, tokenizer_not_utf8) { tokenizer_refused("\"normalizer\"", "\"\xc3\x28\"", "line", "0xc3"); }
Test(bad_model, tokenizer_with_a_lone_surrogate) {
  tokenizer_refused("\"\\u0100\": 0", "\"\\ud800\": 0", "line", "\\uD800");
}
