/* Hash checkpoints: the bits against an independent implementation (numpy, tests/oracle/make_goldens.py), the directory
 * against our own readers, and what is left when writing fails. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/checkpoint.h"
#include "models/synth.h"
#include "models/synth_text.h"
#include "text/tokenizer.h"

static char directory[64]; /* a new one per test, with the model in directory/m */
static char model[80];

static void set_up(void) {
  snprintf(directory, sizeof directory, "/tmp/mk_synth_XXXXXX");
  cr_assert_not_null(mkdtemp(directory));
  snprintf(model, sizeof model, "%s/m", directory);
}

/* The number of entries of `path`, hidden ones too; removes them when asked to. -1: no such directory. */
static int list(const char *path, bool removing) {
  DIR *dir = opendir(path);
  if (dir == NULL) {
    return -1;
  }
  int count = 0;
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
      char file[512];
      snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
      count++;
      if (removing) {
        unlink(file);
      }
    }
  }
  closedir(dir);
  return count;
}

static void tear_down(void) {
  list(model, true);
  rmdir(model);
  list(directory, true);
  rmdir(directory);
}

TestSuite(synth, .init = set_up, .fini = tear_down);

static mk_config small_config(void) {
  return (mk_config){.hidden = 102, /* not a multiple of 16 */
                     .intermediate = 57,
                     .layers = 2,
                     .heads = 6,
                     .kv_heads = 3,
                     .head_dim = 64,
                     .vocab = 261,
                     .max_position = 512,
                     .rms_eps = 1e-6f,
                     .rope_theta = 10000.5};
}

static bool same_config(const mk_config *a, const mk_config *b) {
  bool same =
      a->hidden == b->hidden && a->intermediate == b->intermediate && a->layers == b->layers && a->heads == b->heads &&
      a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->vocab == b->vocab &&
      a->max_position == b->max_position && a->rms_eps == b->rms_eps && a->rope_theta == b->rope_theta &&
      a->tied == b->tied && a->rope_type == b->rope_type && a->rope_factor == b->rope_factor &&
      a->rope_low_freq_factor == b->rope_low_freq_factor && a->rope_high_freq_factor == b->rope_high_freq_factor &&
      a->rope_original_max_position == b->rope_original_max_position && a->has_bos == b->has_bos && a->bos == b->bos &&
      a->eos_count == b->eos_count && a->kind == b->kind && a->qkv_bias == b->qkv_bias && a->o_bias == b->o_bias &&
      a->mlp_bias == b->mlp_bias && a->qk_norm == b->qk_norm && a->window == b->window &&
      a->rope_local_theta == b->rope_local_theta && a->norm_around == b->norm_around &&
      a->norm_plus_one == b->norm_plus_one && a->gelu == b->gelu &&
      a->embedding_multiplier == b->embedding_multiplier && a->attention_multiplier == b->attention_multiplier &&
      memcmp(a->unrotated, b->unrotated, sizeof a->unrotated) == 0 &&
      memcmp(a->windowed, b->windowed, sizeof a->windowed) == 0;
  return same && memcmp(a->eos, b->eos, sizeof a->eos) == 0;
}

typedef struct sample {
  const char *name;
  uint64_t key, first;
  float offset, scale;
  uint16_t bits[8];
} sample;

/* seed 7; printed by synth_key and synth_bits of make_goldens.py */
static const sample kSamples[] = {
    {"model.embed_tokens.weight",
     UINT64_C(0x248AD8D5F82E269D),
     0,
     0,
     0x1.4c8dc2p-17f,
     {0x3E9D, 0x3E92, 0xBE25, 0xBE6E, 0x3C5F, 0xBE93, 0x3D76, 0x3EA2}},
    {"model.layers.3.mlp.down_proj.weight",
     UINT64_C(0x0E030258045D5D81),
     176120,
     0,
     0x1.4491c6p-22f,
     {0xBB64, 0xBBFC, 0x3BDE, 0xBAF9, 0xBADC, 0x3B83, 0xBC12, 0xBBD7}},
    {"model.layers.0.input_layernorm.weight",
     UINT64_C(0x3F56EDE3D74916DA),
     0,
     1,
     0x1p-16f,
     {0x3F60, 0x3FA0, 0x3F4F, 0x3F8A, 0x3FA8, 0x3FA4, 0x3F0B, 0x3F51}},
    {"model.norm.weight",
     UINT64_C(0xAD09007062CB0865),
     248,
     0,
     0x1.bb67aep-15f,
     {0xBF9A, 0xBEA6, 0xBEEB, 0xBF47, 0x3F3B, 0xBF66, 0x3FBF, 0x3EF2}},
    {"model.layers.79.self_attn.q_proj.weight",
     UINT64_C(0xC0FA20430D2F6CB3),
     UINT64_C(1099511627781),
     0,
     0x1.4f8b58p-17f,
     {0x3E75, 0xBCAA, 0x3E92, 0x3E2A, 0xBE9F, 0x3E0E, 0x3E2C, 0xBE24}},
};

Test(synth, values_are_those_of_numpy) {
  mk_config tiny;
  cr_assert_eq(mk_synth_shape("tiny", &tiny), MK_OK);
  for (size_t s = 0; s < sizeof kSamples / sizeof kSamples[0]; s++) {
    const sample *want = &kSamples[s];
    uint16_t filled[8];
    uint64_t key = mk_synth_key(7, want->name);
    cr_assert_eq(key, want->key, "%s: key %016llx", want->name, (unsigned long long)key);
    mk_synth_fill(key, want->first, 8, want->offset, want->scale, filled);
    for (uint64_t i = 0; i < 8; i++) {
      cr_assert_eq(filled[i], want->bits[i], "%s[%llu]", want->name, (unsigned long long)(want->first + i));
      cr_assert_eq(mk_synth_value(key, want->first + i, want->offset, want->scale), want->bits[i]);
    }
    for (uint64_t i = 0; i < mk_synth_tensor_count(&tiny); i++) {
      mk_synth_tensor tensor;
      mk_synth_tensor_at(&tiny, i, &tensor);
      if (strcmp(tensor.name, want->name) == 0) {
        cr_assert(tensor.offset == want->offset && tensor.scale == want->scale, "%s: offset %g, scale %a", want->name,
                  (double)tensor.offset, (double)tensor.scale);
      }
    }
  }
  cr_assert_neq(mk_synth_key(8, kSamples[0].name), kSamples[0].key);
}

/* Uniform values of the variance the header states. */
Test(synth, values_have_the_stated_spread) {
  enum { COUNT = 100000, IN = 300 };
  uint16_t *bits = malloc(COUNT * sizeof *bits);
  mk_synth_fill(mk_synth_key(1, "x"), 0, COUNT, 0, (float)(2.0 * sqrt(3.0 / IN) / 32768.0), bits);
  double sum = 0, squares = 0;
  for (size_t i = 0; i < COUNT; i++) {
    uint32_t word = (uint32_t)bits[i] << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    sum += (double)value;
    squares += (double)value * (double)value;
  }
  free(bits);
  double variance = squares / COUNT * IN / 4;
  cr_assert(fabs(variance - 1) < 0.02, "variance %g of gain^2 / in", variance);
  cr_assert(fabs(sum / COUNT) < 0.002, "mean %g", sum / COUNT);
}

Test(synth, every_shape_survives_its_config_json) {
  size_t shapes = 0;
  for (const char *name; (name = mk_synth_shape_name(shapes)) != NULL; shapes++) {
    mk_config config, back;
    mk_text text = {0};
    cr_assert_eq(mk_synth_shape(name, &config), MK_OK);
    cr_assert_eq(mk_synth_config_json(&config, &text), MK_OK);
    cr_assert_eq(mk_config_parse(text.data, text.length, &back), MK_OK, "%s: %s", name, mk_error_message());
    cr_assert(same_config(&config, &back), "%s:\n%s", name, text.data);
    mk_text_free(&text);
  }
  cr_assert_eq(shapes, 19);
  mk_config config;
  cr_assert_eq(mk_synth_shape("llama-9", &config), MK_ERR_USAGE);
  cr_assert(strstr(mk_error_message(), "llama-9") && strstr(mk_error_message(), "llama-3.1-70b"));
}

/* Reads the whole directory back and compares every bit. */
static void check_written(const mk_config *config, uint64_t seed) {
  mk_config back;
  mk_checkpoint *checkpoint = NULL;
  cr_assert_eq(mk_config_load(model, &back), MK_OK, "%s", mk_error_message());
  cr_assert(same_config(config, &back));
  cr_assert_eq(mk_checkpoint_open(model, &checkpoint), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_checkpoint_check(checkpoint, config), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_checkpoint_count(checkpoint), mk_synth_tensor_count(config));
  for (uint64_t t = 0; t < mk_synth_tensor_count(config); t++) {
    mk_synth_tensor tensor;
    mk_synth_tensor_at(config, t, &tensor);
    uint64_t count = tensor.shape[0] * tensor.shape[1];
    uint16_t *want = malloc(count * 2), *got = malloc(count * 2);
    const mk_tensor *found = mk_checkpoint_find(checkpoint, tensor.name);
    cr_assert_not_null(found, "%s", tensor.name);
    cr_assert_eq(mk_tensor_read(checkpoint, found, 0, count, got), MK_OK, "%s", mk_error_message());
    mk_synth_fill(mk_synth_key(seed, tensor.name), 0, count, tensor.offset, tensor.scale, want);
    cr_assert_eq(memcmp(want, got, count * 2), 0, "%s", tensor.name);
    free(want);
    free(got);
  }
  mk_checkpoint_close(checkpoint);
}

static bool count_calls(void *user, uint64_t done, uint64_t total) {
  cr_assert_leq(done, total);
  ++*(int *)user;
  return true;
}

Test(synth, single_file) {
  mk_config config;
  int calls = 0;
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  cr_assert_eq(mk_synth_write(model, &config, &(mk_synth_options){.seed = 7, .progress = count_calls, .user = &calls}),
               MK_OK, "%s", mk_error_message());
  check_written(&config, 7);
  cr_assert_eq(list(model, false), 5);
  cr_assert_gt(calls, 0);
}

Test(synth, shards) {
  mk_config config = small_config();
  config.tied = true;
  cr_assert_eq(mk_synth_write(model, &config, &(mk_synth_options){.seed = 3, .shard_bytes = 60000}), MK_OK, "%s",
               mk_error_message());
  check_written(&config, 3);
  char path[128];
  struct stat info;
  snprintf(path, sizeof path, "%s/model.safetensors", model);
  cr_assert_neq(stat(path, &info), 0);
  snprintf(path, sizeof path, "%s/model.safetensors.index.json", model);
  cr_assert_eq(stat(path, &info), 0);
  cr_assert_gt(list(model, false), 8);
}

Test(synth, config_only) {
  mk_config config, back;
  cr_assert_eq(mk_synth_shape("llama-3.1-70b", &config), MK_OK);
  cr_assert_eq(mk_synth_write(model, &config, &(mk_synth_options){.config_only = true}), MK_OK, "%s",
               mk_error_message());
  cr_assert_eq(mk_config_load(model, &back), MK_OK, "%s", mk_error_message());
  cr_assert(same_config(&config, &back));
  cr_assert_eq(list(model, false), 2);
}

/* Every byte goes through the tokenizer as its own token, with and without special tokens after the fillers. */
static void check_tokenizer(const mk_config *config) {
  mk_tokenizer *tokenizer = NULL;
  mk_decoder *decoder = NULL;
  mk_tokens tokens = {0};
  static const char text[] = "Hello <extra_300>, W\xc3\xb6rld \xf0\x9f\x8c\x8d 12345\n\n \t\x01\x7f\"\\x";
  char back[256] = "";
  cr_assert_eq(mk_synth_write(model, config, &(mk_synth_options){.seed = 1}), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_tokenizer_load(model, config->vocab, &tokenizer), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_tokenizer_vocab(tokenizer), config->vocab);
  cr_assert_eq(mk_tokenizer_encode(tokenizer, text, strlen(text), true, &tokens), MK_OK, "%s", mk_error_message());
  size_t skip = config->has_bos ? 1 : 0;
  cr_assert_eq(tokens.count, strlen(text) + skip);
  cr_assert(!config->has_bos || tokens.ids[0] == config->bos);
  cr_assert_eq(mk_decoder_new(tokenizer, &decoder), MK_OK);
  const char *piece;
  size_t length;
  for (size_t i = 0; i < tokens.count; i++) {
    cr_assert(i < skip || tokens.ids[i] == (uint8_t)text[i - skip], "token %zu is %u", i, tokens.ids[i]);
    cr_assert_eq(mk_decoder_push(decoder, tokens.ids[i], &piece, &length), MK_OK);
    strcat(back, piece);
  }
  cr_assert_eq(mk_decoder_finish(decoder, &piece, &length), MK_OK);
  cr_assert_str_eq(strcat(back, piece), text);
  mk_decoder_free(decoder);
  mk_tokens_free(&tokens);
  mk_tokenizer_free(tokenizer);
}

Test(synth, tokenizer_without_special_tokens) {
  mk_config config = small_config();
  check_tokenizer(&config);
}

Test(synth, tokenizer_with_special_tokens) {
  mk_config config = small_config();
  config.vocab = 400;
  config.has_bos = true;
  config.bos = 396;
  config.eos_count = 2;
  config.eos[0] = 399;
  config.eos[1] = 397;
  check_tokenizer(&config);
}

Test(synth, too_few_tokens_for_bytes) {
  mk_config config = small_config();
  config.vocab = 255;
  cr_assert_eq(mk_synth_write(model, &config, &(mk_synth_options){0}), MK_ERR_USAGE);
  cr_assert(strstr(mk_error_message(), "vocab_size 255"), "%s", mk_error_message());
  cr_assert_eq(list(model, false), -1);
}

Test(synth, a_model_in_the_way_is_kept) {
  mk_config config = small_config();
  cr_assert_eq(mk_synth_write(model, &config, &(mk_synth_options){.seed = 1}), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_synth_write(model, &config, &(mk_synth_options){.seed = 2}), MK_ERR_USAGE);
  cr_assert(strstr(mk_error_message(), model) && strstr(mk_error_message(), "exists"), "%s", mk_error_message());
  check_written(&config, 1);
}

Test(synth, no_such_parent) {
  mk_config config = small_config();
  char path[128];
  snprintf(path, sizeof path, "%s/none/m", directory);
  cr_assert_eq(mk_synth_write(path, &config, &(mk_synth_options){0}), MK_ERR_RUNTIME);
  cr_assert(strstr(mk_error_message(), path), "%s", mk_error_message());
}

/* A limit on the size of files stands in for a full disk: write() comes up short, then fails. */
Test(synth, a_full_disk_leaves_nothing) {
  mk_config config = small_config();
  signal(SIGXFSZ, SIG_IGN);
  static const rlim_t limits[] = {0, 100, 20000, 60000};
  for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
    struct rlimit old, limit;
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = (struct rlimit){.rlim_cur = limits[i], .rlim_max = old.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    mk_status status = mk_synth_write(model, &config, &(mk_synth_options){.shard_bytes = 80000});
    setrlimit(RLIMIT_FSIZE, &old); /* before any message is written to Criterion's pipe or a file */
    cr_assert_eq(status, MK_ERR_RUNTIME, "limit %lu", (unsigned long)limits[i]);
    cr_assert(strstr(mk_error_message(), model) && strstr(mk_error_message(), "free some space"), "%s",
              mk_error_message());
    cr_assert_eq(list(model, false), -1, "limit %lu", (unsigned long)limits[i]);
  }
}

static bool stop_late(void *user, uint64_t done, uint64_t total) {
  (void)user;
  return done < total;
}

Test(synth, stopping_leaves_nothing) {
  mk_config config = small_config();
  mk_synth_options options = {.shard_bytes = 60000, .progress = stop_late};
  cr_assert_eq(mk_synth_write(model, &config, &options), MK_ERR_RUNTIME);
  cr_assert(strstr(mk_error_message(), "stopped"), "%s", mk_error_message());
  cr_assert_eq(list(model, false), -1);
}

/* On failure it removes only what it made itself. */
Test(synth, stopping_leaves_a_directory_that_was_there) {
  mk_config config = small_config();
  mk_synth_options options = {.shard_bytes = 60000, .progress = stop_late};
  cr_assert_eq(mkdir(model, 0700), 0);
  cr_assert_eq(mk_synth_write(model, &config, &options), MK_ERR_RUNTIME);
  cr_assert_eq(list(model, false), 0);
}

Test(synth, every_allocation_may_fail) {
  mk_config config = small_config();
  mk_synth_options options = {.shard_bytes = 60000};
  uint64_t n = 1;
  for (mk_status status = MK_ERR_RUNTIME; status != MK_OK; n++) {
    mk_alloc_fail_at(n, n % 2 == 0);
    status = mk_synth_write(model, &config, &options);
    mk_alloc_fail_at(0, false);
    if (status != MK_OK) {
      cr_assert_eq(status, MK_ERR_RUNTIME);
      cr_assert_eq(list(model, false), -1, "allocation %llu", (unsigned long long)n);
    }
    cr_assert_lt(n, 2000);
  }
  cr_assert_gt(n, 20);
  check_written(&config, 0);
}
