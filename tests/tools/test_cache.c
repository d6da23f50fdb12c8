/* The packed copy on disk: written whole or not at all, and believed only as far as its checksums go. */
#include "engine/cache.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/load.h"
#include "models/llama.h"
#include "scheduler/compile.h"
#include "tests/support/raw_model.h"

enum { KEY = 77, CHUNKS = 3, PAYLOAD = 5000 + 1 + 300, DATA = 4096 };

static char folder[TEST_RAW_PATH];

static void make_folder(void) {
  const char *parent = getenv("TMPDIR");
  snprintf(folder, sizeof folder, "%s/mkvm-cache-XXXXXX", parent == NULL ? "/tmp" : parent);
  cr_assert_not_null(mkdtemp(folder));
}

static void remove_folder(void) { test_raw_model_remove(folder); }

static const size_t chunk_bytes[CHUNKS] = {5000, 1, 300};

static void fill_chunk(size_t chunk, uint8_t *memory) {
  for (size_t i = 0; i < chunk_bytes[chunk]; i++) {
    memory[i] = (uint8_t)(i * 7 + chunk + 1);
  }
}

static void write_copy(char **path) {
  uint8_t memory[5000];
  mk_cache *cache;
  cr_assert_eq(mk_cache_path(folder, KEY, path), MK_OK);
  cr_assert_eq(mk_cache_create(folder, *path, KEY, CHUNKS, PAYLOAD, &cache), MK_OK, "%s", mk_error_message());
  for (size_t i = 0; i < CHUNKS; i++) {
    fill_chunk(i, memory);
    cr_assert_eq(mk_cache_write(cache, memory, chunk_bytes[i]), MK_OK, "%s", mk_error_message());
  }
  cr_assert_neq(access(*path, F_OK), 0, "it has its name before it is complete");
  cr_assert_eq(mk_cache_finish(cache), MK_OK, "%s", mk_error_message());
  mk_cache_close(cache);
}

static mk_status read_copy(const char *path) {
  uint8_t memory[5000], want[5000];
  mk_cache *cache;
  MK_TRY(mk_cache_open(path, KEY, CHUNKS, PAYLOAD, &cache));
  cr_assert_not_null(cache);
  mk_status status = MK_OK;
  for (size_t i = 0; i < CHUNKS && status == MK_OK; i++) {
    status = mk_cache_read(cache, memory, chunk_bytes[i]);
    fill_chunk(i, want);
    cr_assert(status != MK_OK || memcmp(memory, want, chunk_bytes[i]) == 0);
  }
  mk_cache_close(cache);
  return status;
}

static void expect_bad(const char *path, const char *what) {
  cr_assert_eq(read_copy(path), MK_ERR_FILE, "%s was not noticed", what);
  cr_assert_eq(strncmp(mk_error_message(), path, strlen(path)), 0, "%s", mk_error_message());
}

static size_t files_in_folder(void) {
  char command[TEST_RAW_PATH + 32];
  size_t files = 0;
  snprintf(command, sizeof command, "ls -A '%s' | wc -l", folder);
  FILE *pipe = popen(command, "r");
  cr_assert_not_null(pipe);
  cr_assert_eq(fscanf(pipe, "%zu", &files), 1);
  pclose(pipe);
  return files;
}

Test(cache, what_was_written_is_read, .init = make_folder, .fini = remove_folder) {
  char *path;
  write_copy(&path);
  cr_assert_eq(read_copy(path), MK_OK, "%s", mk_error_message());
  cr_assert_eq(files_in_folder(), 1);
  mk_free(path);
}

Test(cache, every_changed_byte_is_noticed, .init = make_folder, .fini = remove_folder) {
  char *path;
  write_copy(&path);
  for (off_t at = 0; at < DATA + PAYLOAD; at++) {
    if (at == 48) {
      at = 64; /* unused bytes of the header */
    }
    if (at == 64 + CHUNKS * 8) {
      at = DATA; /* the gap after the table */
    }
    cr_assert(test_flip(path, at));
    cr_assert_eq(read_copy(path), MK_ERR_FILE, "byte %lld", (long long)at);
    cr_assert(test_flip(path, at));
  }
  cr_assert_eq(read_copy(path), MK_OK);
  mk_free(path);
}

Test(cache, other_lengths_and_kinds_are_noticed, .init = make_folder, .fini = remove_folder) {
  char *path;
  static const off_t lengths[] = {0, 1, 63, 64, DATA, DATA + PAYLOAD - 1, DATA + PAYLOAD + 1};
  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    write_copy(&path);
    cr_assert_eq(truncate(path, lengths[i]), 0);
    expect_bad(path, "another length");
    cr_assert_eq(unlink(path), 0);
    mk_free(path);
  }
  cr_assert_eq(mk_cache_path(folder, KEY, &path), MK_OK);
  cr_assert_eq(mkfifo(path, 0600), 0);
  expect_bad(path, "a FIFO");
  mk_free(path);
}

Test(cache, another_key_or_shape_is_noticed, .init = make_folder, .fini = remove_folder) {
  char *path;
  mk_cache *cache;
  write_copy(&path);
  cr_assert_eq(mk_cache_open(path, KEY + 1, CHUNKS, PAYLOAD, &cache), MK_ERR_FILE);
  cr_assert_null(cache);
  cr_assert_eq(mk_cache_open(path, KEY, CHUNKS + 1, PAYLOAD, &cache), MK_ERR_FILE);
  cr_assert_eq(mk_cache_open(path, KEY, CHUNKS, PAYLOAD + 1, &cache), MK_ERR_FILE);
  cr_assert_eq(unlink(path), 0);
  cr_assert_eq(mk_cache_open(path, KEY, CHUNKS, PAYLOAD, &cache), MK_OK);
  cr_assert_null(cache, "there is no file");
  mk_free(path);
}

Test(cache, an_unfinished_file_is_gone, .init = make_folder, .fini = remove_folder) {
  char *path;
  uint8_t memory[5000] = {0};
  mk_cache *cache;
  cr_assert_eq(mk_cache_path(folder, KEY, &path), MK_OK);
  cr_assert_eq(mk_cache_create(folder, path, KEY, CHUNKS, PAYLOAD, &cache), MK_OK);
  cr_assert_eq(mk_cache_write(cache, memory, 5000), MK_OK);
  cr_assert_eq(mk_cache_finish(cache), MK_ERR_USAGE, "two chunks are missing");
  cr_assert_eq(mk_cache_write(cache, memory, 302), MK_ERR_USAGE, "more than there is");
  mk_cache_close(cache);
  cr_assert_eq(files_in_folder(), 0);
  mk_free(path);
}

/* A model, and the CPU machine that its weights go to. */
typedef struct model {
  char directory[TEST_RAW_PATH];
  mk_checkpoint *checkpoint;
  mk_graph *graph;
  mk_program *program;
  mk_cpu *cpu;
  unsigned notices;
  uint64_t done, total;
  char notice[1024];
} model;

static void new_machine(model *m) {
  mk_cpu_options options = {0};
  mk_cpu_free(m->cpu);
  cr_assert_eq(mk_cpu_new(m->program, &options, &m->cpu), MK_OK);
}

static void open_model(model *m) {
  mk_config config = test_raw_config(1);
  mk_compile_options compile = {.sms = 2, .max_seq = 64};
  *m = (model){0};
  make_folder();
  cr_assert_eq(test_raw_model_write(&config, MK_TENSOR_F16, 5, m->directory), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_checkpoint_open(m->directory, &m->checkpoint), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_llama_graph(&config, &m->graph), MK_OK);
  cr_assert_eq(mk_compile(m->graph, &compile, &m->program), MK_OK, "%s", mk_error_message());
  new_machine(m);
}

static void close_model(model *m) {
  mk_cpu_free(m->cpu);
  mk_program_free(m->program);
  mk_graph_free(m->graph);
  mk_checkpoint_close(m->checkpoint);
  test_raw_model_remove(m->directory);
  remove_folder();
}

static void take_notice(void *user, const char *text) {
  model *m = user;
  m->notices++;
  snprintf(m->notice, sizeof m->notice, "%s", text);
}

static void take_progress(void *user, uint64_t done, uint64_t total) {
  model *m = user;
  m->done = done;
  m->total = total;
}

static mk_load load_of(model *m, const char *cache) {
  return (mk_load){.graph = m->graph,
                   .program = m->program,
                   .checkpoint = m->checkpoint,
                   .cpu = m->cpu,
                   .cache = cache,
                   .notice = take_notice,
                   .progress = take_progress,
                   .user = m};
}

static uint64_t sum_weights(const model *m) {
  uint64_t sum = 0;
  for (size_t b = 0; b < m->program->buffer_count; b++) {
    const mk_buffer *buffer = &m->program->buffers[b];
    const uint8_t *memory = mk_cpu_memory(m->cpu, b);
    for (uint64_t i = 0; buffer->kind == MK_KIND_WEIGHT && i < buffer->bytes; i++) {
      sum = sum * 31 + memory[i];
    }
  }
  return sum;
}

/* Loads into a fresh machine and compares with the weights that no copy was used for. */
static void expect_load(model *m, const char *cache, uint64_t want, unsigned notices) {
  new_machine(m);
  m->notices = 0;
  m->done = 0;
  mk_load load = load_of(m, cache);
  cr_assert_eq(mk_load_weights(&load), MK_OK, "%s", mk_error_message());
  cr_assert_eq(m->notices, notices, "%s", m->notice);
  cr_assert_eq(sum_weights(m), want, "other weights");
  cr_assert(m->done == m->total && m->total != 0);
}

static char *copy_of(const model *m) {
  uint64_t key;
  char *path;
  cr_assert_eq(mk_cache_key(m->checkpoint, m->graph, &key), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_cache_path(folder, key, &path), MK_OK);
  return path;
}

static uint64_t weights_without_copy(model *m) {
  mk_load load = load_of(m, NULL);
  cr_assert_eq(mk_load_weights(&load), MK_OK, "%s", mk_error_message());
  return sum_weights(m);
}

Test(cache, a_model_is_loaded_from_its_copy) {
  model m;
  open_model(&m);
  uint64_t want = weights_without_copy(&m);
  expect_load(&m, folder, want, 0);
  cr_assert_eq(files_in_folder(), 1);
  char *path = copy_of(&m);
  /* The weights come from the copy: with another tensor after it in the checkpoint, in what the key does not look at,
   * they stay. */
  char file[TEST_RAW_PATH + 32];
  struct stat before;
  const mk_tensor *tensor = mk_checkpoint_find(m.checkpoint, "model.embed_tokens.weight");
  snprintf(file, sizeof file, "%s/model.safetensors", m.directory);
  cr_assert_eq(stat(file, &before), 0);
  cr_assert(test_flip(file, (off_t)(tensor->offset + tensor->bytes - 1)));
  const struct timespec times[2] = {before.st_atim, before.st_mtim};
  cr_assert_eq(utimensat(AT_FDCWD, file, times, 0), 0);
  expect_load(&m, folder, want, 0);
  cr_assert_neq(weights_without_copy(&m), want, "the checkpoint was not changed");
  mk_free(path);
  close_model(&m);
}

Test(cache, a_spoilt_copy_is_made_again) {
  model m;
  open_model(&m);
  uint64_t want = weights_without_copy(&m);
  expect_load(&m, folder, want, 0);
  char *path = copy_of(&m);
  struct stat size;
  cr_assert_eq(stat(path, &size), 0);
  cr_assert(test_flip(path, size.st_size - 5));
  expect_load(&m, folder, want, 1);
  cr_assert_not_null(strstr(m.notice, "packing the weights again"), "%s", m.notice);
  expect_load(&m, folder, want, 0);
  cr_assert_eq(truncate(path, 3000), 0);
  expect_load(&m, folder, want, 1);
  expect_load(&m, folder, want, 0);
  cr_assert_eq(files_in_folder(), 1);
  mk_free(path);
  close_model(&m);
}

Test(cache, a_changed_checkpoint_has_another_key) {
  model m;
  open_model(&m);
  uint64_t first, again, second;
  char file[TEST_RAW_PATH + 32];
  const mk_tensor *tensor = mk_checkpoint_find(m.checkpoint, "model.norm.weight");
  struct stat before;
  snprintf(file, sizeof file, "%s/model.safetensors", m.directory);
  cr_assert_eq(stat(file, &before), 0);
  cr_assert_eq(mk_cache_key(m.checkpoint, m.graph, &first), MK_OK);
  cr_assert_eq(mk_cache_key(m.checkpoint, m.graph, &again), MK_OK);
  cr_assert_eq(first, again);
  cr_assert(test_flip(file, (off_t)tensor->offset + 3));
  const struct timespec times[2] = {before.st_atim, before.st_mtim};
  cr_assert_eq(utimensat(AT_FDCWD, file, times, 0), 0);
  cr_assert_eq(mk_cache_key(m.checkpoint, m.graph, &second), MK_OK);
  cr_assert_neq(first, second, "other bytes, the same time");
  const struct timespec later[2] = {before.st_atim, {.tv_sec = before.st_mtim.tv_sec + 1}};
  cr_assert_eq(utimensat(AT_FDCWD, file, later, 0), 0);
  cr_assert_eq(mk_cache_key(m.checkpoint, m.graph, &again), MK_OK);
  cr_assert_neq(second, again, "another time");
  m.graph->config.rope_theta *= 2;
  cr_assert_eq(mk_cache_key(m.checkpoint, m.graph, &second), MK_OK);
  cr_assert_neq(second, again, "other frequencies");
  close_model(&m);
}

Test(cache, a_full_disk_is_a_notice) {
  model m;
  open_model(&m);
  uint64_t want = weights_without_copy(&m);
  struct rlimit limit;
  cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlim_t usual = limit.rlim_cur;
  signal(SIGXFSZ, SIG_IGN);
  limit.rlim_cur = 100000;
  cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
  expect_load(&m, folder, want, 1);
  cr_assert_not_null(strstr(m.notice, "cannot be written"), "%s", m.notice);
  cr_assert_eq(files_in_folder(), 0);
  limit.rlim_cur = usual;
  cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
  expect_load(&m, "/proc/none/below", want, 1);
  cr_assert_not_null(strstr(m.notice, "/proc/none/below"), "%s", m.notice);
  close_model(&m);
}

static volatile sig_atomic_t cancelled;

static void cancel_late(void *user, uint64_t done, uint64_t total) {
  (void)user;
  cancelled = done == total;
}

Test(cache, an_interrupted_loading_leaves_nothing) {
  model m;
  open_model(&m);
  mk_load load = load_of(&m, folder);
  load.cancel = &cancelled;
  load.progress = cancel_late;
  cr_assert_eq(mk_load_weights(&load), MK_ERR_RUNTIME, "cancelled while the copy is written");
  cr_assert_not_null(strstr(mk_error_message(), "interrupted"), "%s", mk_error_message());
  cr_assert_eq(files_in_folder(), 0);
  cr_assert_eq(mk_load_weights(&load), MK_ERR_RUNTIME, "cancelled before");
  close_model(&m);
}

Test(cache, memory_that_runs_out_leaks_nothing) {
  model m;
  open_model(&m);
  uint64_t want = weights_without_copy(&m);
  for (uint64_t n = 1; n < 100000; n++) {
    new_machine(&m);
    mk_load load = load_of(&m, folder);
    mk_alloc_fail_at(n, n % 2 == 0);
    mk_status status = mk_load_weights(&load);
    bool reached = mk_alloc_calls() >= n;
    mk_alloc_fail_at(0, false);
    cr_assert(status == MK_OK || status == MK_ERR_RUNTIME);
    cr_assert(status != MK_OK || sum_weights(&m) == want);
    if (!reached) {
      break;
    }
    if (n % 3 == 0) { /* with a copy, and without one */
      char *path = copy_of(&m);
      (void)unlink(path);
      mk_free(path);
    }
  }
  expect_load(&m, folder, want, 0);
  close_model(&m);
}

static int run_command(const char *arguments) {
  char command[1024];
  snprintf(command, sizeof command, "'%s' %s >'%s/out' 2>'%s/err'", MK_COMMAND, arguments, folder, folder);
  int status = system(command);
  cr_assert(WIFEXITED(status), "%s", command);
  return WEXITSTATUS(status);
}

static void read_output(const char *name, char text[2000]) {
  char path[TEST_RAW_PATH + 32];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "r");
  cr_assert_not_null(file);
  text[fread(text, 1, 1999, file)] = '\0';
  fclose(file);
}

/* The command's own side of it; `folder` holds the copy and what the command says. */
Test(cache, the_command_takes_a_folder, .init = make_folder, .fini = remove_folder) {
  char arguments[768], first[2000], again[2000];
  snprintf(arguments, sizeof arguments, "run -m '%s/models/demo' -p The -n 12 --device cpu --cache '%s'", MK_SOURCE_DIR,
           folder);
  cr_assert_eq(run_command(arguments), 0);
  read_output("out", first);
  cr_assert_eq(files_in_folder(), 3);
  cr_assert_eq(run_command(arguments), 0);
  read_output("out", again);
  cr_assert_str_eq(first, again);
  read_output("err", again);
  cr_assert_null(strstr(again, "packing"), "%s", again);
  cr_assert_null(strstr(again, "memory:"), "not on a terminal: %s", again);
  snprintf(arguments, sizeof arguments, "bench --like tiny --cache '%s'", folder);
  cr_assert_eq(run_command(arguments), 2);
}
