/* Several ranks: a model that GPUs share gives the bits that it gives on one, in every token's logits, and what goes
 * wrong on one rank ends the launch on all of them. On a machine with fewer GPUs than a case has ranks, several ranks
 * lie on a GPU, with fewer SMs each; on one GPU all is tested but the way between GPUs, and that is said. */
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "models/synth.h"
#include "tests/gpu/gpu_test.h"
#include "vm/gpu/extra.h"

enum { MOST_STEPS = 200, FAULT_STEPS = 8, FAULT_MS = 300, LONGEST_PROMPT = 1500 };

typedef struct output {
  uint32_t tokens[MOST_STEPS], count;
  float *logits; /* [MOST_STEPS][vocab]; NULL: the tokens alone */
  size_t vocab;
} output;

static bool keep(void *user, uint32_t token, const float *logits) {
  output *out = user;
  out->tokens[out->count] = token;
  if (out->logits != NULL && logits != NULL) {
    memcpy(out->logits + out->count * out->vocab, logits, out->vocab * sizeof *logits);
  }
  return ++out->count < MOST_STEPS;
}

/* rows: of a step, in which prompts of more than one row go. */
static bool run(const mk_config *config, const char *on, uint32_t sms, uint32_t rows, uint32_t length, bool with_logits,
                uint32_t steps, output *out, const char *test) {
  static uint32_t prompt[LONGEST_PROMPT];
  mk_engine *engine;
  const mk_engine_options options = {.device = on,
                                     .synth = config,
                                     .synth_seed = 3,
                                     .sms = sms,
                                     .rows = rows,
                                     .slots = 1,
                                     .max_seq = length + MOST_STEPS + 1,
                                     .kv = kv,
                                     .want_logits = with_logits,
                                     .gpu_deadline_ms = deadline_ms};
  out->count = 0;
  for (uint32_t i = 0; i < length; i++) {
    prompt[i] = (i * i * 7 + i * 4 + 1) % config->vocab;
  }
  if (!expect_ok(mk_engine_open(NULL, &options, &engine), test)) {
    return false;
  }
  bool good = expect_ok(mk_engine_generate(engine, prompt, length, steps, keep, out), test);
  mk_engine_close(engine);
  return good && expect(out->count == steps, test, "not every token came");
}

/* What other families have, of the kinds that write words of their own. */
static void have_norms_of_heads(mk_config *config) {
  config->qk_norm = MK_QK_NORM_HEAD;
  config->qkv_bias = true;
  config->mlp_bias = true;
}

static void have_norms_after(mk_config *config) {
  config->norm_after = true;
  config->qk_norm = MK_QK_NORM_ALL;
}

/* As wide as Llama 70B: a norm of more columns than the kernel of one row and one GPU has room for. */
static void have_wide_norms(mk_config *config) {
  config->hidden = 8192;
  config->intermediate = 4096;
}

static void have_four_layers(mk_config *config) { config->layers = 4; }

static void have_one_kv_head(mk_config *config) { config->kv_heads = 1; }

/* Of two ranks each has whole units of eight row tiles, as wide steps ask for: of keys two heads, or one. */
static void have_heads_of_64(mk_config *config) {
  config->hidden = 512;
  config->intermediate = 1024;
  config->heads = 8;
  config->kv_heads = 4;
}

/* The same with an offset before each addition. */
static void have_factors_and_biases(mk_config *config) {
  have_heads_of_64(config);
  config->embedding_multiplier = 12;
  config->residual_multiplier = 0.22;
  config->logits_scaling = 7;
  config->qkv_bias = true;
  config->o_bias = true;
  config->mlp_bias = true;
}

/* The same with norms of what is added, and rows of q, k and v that ranks share as they come. */
static void have_wide_norms_after(mk_config *config) {
  have_heads_of_64(config);
  have_norms_after(config);
  config->qkv_bias = true;
  config->o_bias = true;
}

static void have_heads_of_128(mk_config *config) {
  have_heads_of_64(config);
  config->kv_heads = 2;
  config->head_dim = 128;
}

/* The same with an item of attention for each of sixteen query heads and a line, as many as a warp has columns. */
static void have_many_query_heads(mk_config *config) {
  have_heads_of_64(config);
  config->heads = 64;
}

typedef void change(mk_config *config); /* NULL: none */

/* A model, and where it runs: on one GPU, and on several ranks. */
typedef struct trial {
  mk_config config;
  char one[16], on[64];
  uint32_t sms;
} trial;

static bool place_model(const char *shape, change *of, uint32_t ranks, trial *t) {
  if (!expect_ok(mk_synth_shape(shape, &t->config), shape)) {
    return false;
  }
  if (of != NULL) {
    of(&t->config);
  }
  place_ranks(ranks, t->on, sizeof t->on, &t->sms);
  snprintf(t->one, sizeof t->one, "cuda:%u", device_index());
  return true;
}

/* The same bits with a launch for each token, and the same tokens in one launch; after a prompt of `length` tokens in
 * steps of `rows`. */
static void compare_prompt(const char *shape, const char *what, change *of, uint32_t ranks, uint32_t rows,
                           uint32_t length, uint32_t steps) {
  char test[128], text[96];
  trial t;
  output first = {.count = 0}, again = {.count = 0};
  if (!place_model(shape, of, ranks, &t)) {
    return;
  }
  snprintf(test, sizeof test, "%s%s, %u tokens by %u rows, %u ranks on %s", shape, what, length, rows, ranks, t.on);
  first.vocab = again.vocab = t.config.vocab;
  if (expect_ok(mk_alloc(MOST_STEPS * first.vocab, sizeof(float), &first.logits), test) &&
      expect_ok(mk_alloc(MOST_STEPS * first.vocab, sizeof(float), &again.logits), test) &&
      run(&t.config, t.one, 0, rows, length, true, steps, &first, test) &&
      run(&t.config, t.on, t.sms, rows, length, true, steps, &again, test)) {
    uint32_t same = 0;
    while (same < steps && first.tokens[same] == again.tokens[same] &&
           memcmp(first.logits + same * first.vocab, again.logits + same * first.vocab, first.vocab * sizeof(float)) ==
               0) {
      same++;
    }
    snprintf(text, sizeof text, "the logits of token %u have other bits than on one rank", same);
    expect(same == steps, test, text);
    if (run(&t.config, t.on, t.sms, rows, length, false, steps, &again, test)) {
      expect(memcmp(first.tokens, again.tokens, steps * sizeof *first.tokens) == 0, test,
             "one launch gives other tokens");
    }
    printf("%s: the bits of one rank in %u of %u tokens\n", test, same, steps);
  }
  mk_free(first.logits);
  mk_free(again.logits);
}

static void compare(const char *shape, const char *what, change *of, uint32_t ranks, uint32_t steps) {
  compare_prompt(shape, what, of, ranks, 1, 3, steps);
}

enum { MOST_SEQUENCES = 160, MOST_TOKENS = 64, LONGEST = 700 };

/* Sequences of 1 to `longest` tokens, and of `tokens` after them, or some fewer, that share steps of `rows` rows. Of
 * more of them than rows the last ones, with the longest prompts, come when others have ended. */
typedef struct crowd {
  uint32_t rows, count, longest, tokens;
  bool with_logits;  /* a launch for each token */
  bool long_prompts; /* by a machine of their own */
} crowd;

static uint32_t length_of(const crowd *c, uint32_t sequence) {
  return c->count == 1 ? c->longest : 1 + sequence * (c->longest - 1) / (c->count - 1);
}
static uint32_t tokens_of(const crowd *c, uint32_t sequence) { return c->tokens - sequence % 4; }

static uint32_t all_tokens_of(const crowd *c) {
  uint32_t all = 0;
  for (uint32_t s = 0; s < c->count; s++) {
    all += tokens_of(c, s);
  }
  return all;
}

typedef struct outputs { /* of several sequences: each token, and a hash of its logits' bits */
  uint32_t tokens[MOST_SEQUENCES][MOST_TOKENS], count[MOST_SEQUENCES];
  uint64_t hashes[MOST_SEQUENCES][MOST_TOKENS];
  size_t vocab;
} outputs;

static bool keep_one(void *user, size_t sequence, uint32_t token, const float *logits) {
  outputs *out = user;
  uint64_t hash = UINT64_C(0xCBF29CE484222325);
  for (size_t i = 0; logits != NULL && i < out->vocab; i++) {
    uint32_t bits;
    memcpy(&bits, &logits[i], sizeof bits);
    hash = (hash ^ bits) * UINT64_C(0x100000001B3);
  }
  const uint32_t at = out->count[sequence]++;
  out->tokens[sequence][at] = token;
  out->hashes[sequence][at] = hash;
  return true;
}

static void count_ended(void *user, size_t sequence, mk_status status) {
  (void)user, (void)sequence;
  expect(status == MK_OK, "several rows", status == MK_OK ? "" : mk_error_message());
}

static bool run_rows(const mk_config *config, const char *on, uint32_t sms, const crowd *c, outputs *out,
                     const char *test) {
  static uint32_t prompts[MOST_SEQUENCES][LONGEST];
  static mk_sequence sequences[MOST_SEQUENCES];
  mk_engine *engine;
  const mk_engine_options options = {.device = on,
                                     .synth = config,
                                     .synth_seed = 3,
                                     .sms = sms,
                                     .max_seq = LONGEST + MOST_TOKENS,
                                     .kv = kv,
                                     .rows = c->rows,
                                     .slots = c->rows,
                                     .few_rows = c->rows, /* none: all go by these */
                                     .long_prompts = c->long_prompts,
                                     .want_logits = c->with_logits,
                                     .gpu_deadline_ms = deadline_ms};
  memset(out->count, 0, sizeof out->count);
  for (uint32_t s = 0; s < c->count; s++) {
    sequences[s] = (mk_sequence){.prompt = prompts[s], .prompt_count = length_of(c, s), .n_predict = tokens_of(c, s)};
    for (uint32_t i = 0; i < sequences[s].prompt_count; i++) {
      prompts[s][i] = (s * 31 + i * 17 + 1) % config->vocab;
    }
  }
  const mk_sequence_calls calls = {.token = keep_one, .ended = count_ended, .user = out};
  if (!expect_ok(mk_engine_open(NULL, &options, &engine), test)) {
    return false;
  }
  bool good = expect_ok(mk_engine_generate_all(engine, sequences, c->count, &calls), test);
  mk_engine_close(engine);
  return good;
}

/* The tokens of a crowd that are the same in both, with the same bits of logits where these were asked for. */
static uint32_t count_same(const outputs *first, const outputs *again, const crowd *c) {
  uint32_t same = 0;
  for (uint32_t s = 0; s < c->count; s++) {
    for (uint32_t i = 0; i < tokens_of(c, s); i++) {
      same += i < first->count[s] && i < again->count[s] && first->tokens[s][i] == again->tokens[s][i] &&
              (!c->with_logits || first->hashes[s][i] == again->hashes[s][i]);
    }
  }
  return same;
}

/* A crowd on one GPU and on ranks. In wide steps also by launches of several steps, with long prompts for themselves:
 * the same tokens. */
static void compare_crowd(const char *shape, const char *what, change *of, uint32_t ranks, const crowd *c) {
  static outputs first, again;
  char test[160];
  trial t;
  if (!place_model(shape, of, ranks, &t)) {
    return;
  }
  snprintf(test, sizeof test, "%s%s, %u sequences by %u rows, %u ranks on %s", shape, what, c->count, c->rows, ranks,
           t.on);
  first.vocab = again.vocab = t.config.vocab;
  if (!run_rows(&t.config, t.one, 0, c, &first, test) || !run_rows(&t.config, t.on, t.sms, c, &again, test)) {
    return;
  }
  const uint32_t same = count_same(&first, &again, c), all = all_tokens_of(c);
  expect(same == all, test, "the logits of some tokens have other bits than on one rank, or tokens are missing");
  printf("%s: the bits of one rank in %u of %u tokens\n", test, same, all);
  crowd unseen = *c;
  unseen.with_logits = false;
  unseen.long_prompts = true;
  if (c->rows > MK_MAX_ROWS && run_rows(&t.config, t.on, t.sms, &unseen, &again, test)) {
    expect(count_same(&first, &again, &unseen) == all, test, "launches of several steps give other tokens");
  }
}

static void compare_rows(const char *shape, const char *what, change *of, uint32_t ranks, uint32_t rows,
                         uint32_t tokens) {
  compare_crowd(shape, what, of, ranks,
                &(crowd){.rows = rows, .count = rows, .longest = 2 * rows - 1, .tokens = tokens, .with_logits = true});
}

/* Wide steps of several sequences. */
static void compare_many(const char *shape, const char *what, change *of, uint32_t ranks, uint32_t rows,
                         uint32_t count) {
  compare_crowd(shape, what, of, ranks,
                &(crowd){.rows = rows, .count = count, .longest = LONGEST, .tokens = 12, .with_logits = true});
}

/* A model whose norms are too wide for the kernel of one row on one GPU, but not for that of ranks: sixteen sequences,
 * one after the other by one row, and side by side by sixteen, whose kernel stages no x at all. */
static void compare_wide_norms(const char *shape, const char *what, change *of, uint32_t ranks, uint32_t tokens) {
  static outputs first, again;
  char test[128];
  trial t;
  if (!place_model(shape, of, ranks, &t)) {
    return;
  }
  snprintf(test, sizeof test, "%s%s, 1 and 16 rows, %u ranks on %s", shape, what, ranks, t.on);
  const crowd together = {.rows = 16, .count = 16, .longest = 31, .tokens = tokens, .with_logits = true};
  crowd in_turn = together;
  in_turn.rows = 1;
  first.vocab = again.vocab = t.config.vocab;
  if (run_rows(&t.config, t.on, t.sms, &in_turn, &first, test) &&
      run_rows(&t.config, t.on, t.sms, &together, &again, test)) {
    const uint32_t same = count_same(&first, &again, &together), all = all_tokens_of(&together);
    expect(same == all, test, "the logits of some tokens have other bits by one row");
    printf("%s: the same bits in %u of %u tokens\n", test, same, all);
  }
}

/* The uid of the first instruction of an opcode on a rank. */
static uint32_t find_uid(const mk_program *program, uint32_t rank, mk_opcode opcode) {
  const mk_queue *queues = program->queues + (size_t)rank * program->machine.sms;
  for (uint32_t q = 0; q < program->machine.sms; q++) {
    for (uint32_t i = queues[q].first; i < queues[q].first + queues[q].count; i++) {
      if (program->instructions[i].opcode == opcode) {
        return program->instructions[i].uid;
      }
    }
  }
  return 0;
}

/* A rank that keeps a result to itself: all ranks leave within the deadline, the message names a rank, and the next run
 * is right. */
static void test_fault(uint32_t ranks, uint32_t of_rank) {
  static const uint32_t prompt[] = {1, 5, 9};
  char test[96], on[64];
  uint32_t sms;
  mk_config config;
  mk_engine *engine;
  output before = {.count = 0}, after = {.count = 0};
  place_ranks(ranks, on, sizeof on, &sms);
  snprintf(test, sizeof test, "a fault on rank %u of %u, on %s", of_rank, ranks, on);
  if (!expect_ok(mk_synth_shape("tiny", &config), test)) {
    return;
  }
  const mk_engine_options options = {
      .device = on, .synth = &config, .synth_seed = 3, .sms = sms < 16 ? sms : 16, .gpu_deadline_ms = FAULT_MS};
  if (!expect_ok(mk_engine_open(NULL, &options, &engine), test)) {
    return;
  }
  mk_gpu *gpu = mk_engine_gpu(engine);
  if (expect_ok(mk_engine_generate(engine, prompt, 3, FAULT_STEPS, keep, &before), test)) {
    mk_gpu_skip_signal(gpu, find_uid(mk_engine_program(engine), of_rank, MK_OP_GLU));
    mk_status status = mk_engine_generate(engine, prompt, 3, FAULT_STEPS, keep, &after);
    expect(status == MK_ERR_DEVICE, test, "the launch did not end with a fault");
    expect(status == MK_OK || strstr(mk_error_message(), "rank ") != NULL, test, "the message names no rank");
    printf("%s: %s\n", test, mk_error_message());
    mk_gpu_skip_signal(gpu, 0);
    after.count = 0;
    if (expect_ok(mk_engine_generate(engine, prompt, 3, FAULT_STEPS, keep, &after), test)) {
      expect(memcmp(before.tokens, after.tokens, FAULT_STEPS * sizeof *after.tokens) == 0, test,
             "after a fault there are other tokens");
    }
  }
  mk_engine_close(engine);
}

/* The same of a step that 64 sequences share: an instruction of rank 1 of 2 keeps its results to itself. */
static void test_shared_fault(mk_opcode opcode) {
  enum { ROWS = 64 };
  static mk_step_row plan[ROWS];
  char test[128];
  trial t;
  mk_engine *engine;
  if (!place_model("tiny", have_heads_of_64, 2, &t)) {
    return;
  }
  snprintf(test, sizeof test, "%s of a shared step, a fault on rank 1 of 2, on %s", mk_opcode_lookup(opcode)->name,
           t.on);
  const mk_engine_options options = {.device = t.on,
                                     .synth = &t.config,
                                     .synth_seed = 3,
                                     .sms = t.sms,
                                     .rows = ROWS,
                                     .slots = ROWS,
                                     .max_seq = 128,
                                     .gpu_deadline_ms = FAULT_MS};
  if (!expect_ok(mk_engine_open(NULL, &options, &engine), test)) {
    return;
  }
  mk_gpu *gpu = mk_engine_gpu(engine);
  for (uint32_t i = 0; i < ROWS; i++) {
    plan[i] = (mk_step_row){.slot = i, .token = i, .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
  }
  if (write_table(gpu, mk_engine_program(engine), test)) {
    mk_gpu_skip_signal(gpu, find_uid(mk_engine_program(engine), 1, opcode));
    const mk_status status = mk_gpu_run_plan(gpu, plan, 1, NULL, NULL);
    expect(status == MK_ERR_DEVICE, test, "the launch did not end with a fault");
    expect(status == MK_OK || strstr(mk_error_message(), "rank ") != NULL, test, "the message names no rank");
    printf("%s: %s\n", test, mk_error_message());
    mk_gpu_skip_signal(gpu, 0);
    if (write_table(gpu, mk_engine_program(engine), test)) {
      expect_ok(mk_gpu_run_plan(gpu, plan, 1, NULL, NULL), test);
    }
  }
  mk_engine_close(engine);
}

/* Machines of two ranks that come and go leave no memory: less than one of them takes, however often. The driver keeps
 * some pages of 2 MB for itself, the same after 10 starts and after 50. */
static void test_starts(uint32_t starts) {
  enum { KEPT_BY_DRIVER = 8 << 20 };
  static const uint32_t prompt[] = {1, 5, 9};
  static const char test[] = "starts and stops of two ranks";
  char on[64];
  uint32_t sms;
  uint64_t free_bytes = 0;
  mk_config config;
  mk_gpu_description gpu = {.free_bytes = 0};
  output out = {.count = 0};
  place_ranks(2, on, sizeof on, &sms);
  if (!expect_ok(mk_synth_shape("tiny", &config), test)) {
    return;
  }
  /* The context stays open meanwhile, so that memory is what was not freed. */
  mk_engine *holder = NULL;
  const mk_engine_options options = {.device = on, .synth = &config, .synth_seed = 3, .sms = sms < 16 ? sms : 16};
  if (!expect_ok(mk_engine_open(NULL, &options, &holder), test)) {
    return;
  }
  bool good = true;
  for (uint32_t i = 0; i < starts && good; i++) {
    mk_engine *engine;
    out.count = 0;
    good = expect_ok(mk_engine_open(NULL, &options, &engine), test);
    good = good && expect_ok(mk_engine_generate(engine, prompt, 3, FAULT_STEPS, keep, &out), test);
    mk_engine_close(good ? engine : NULL);
    good = good && expect_ok(mk_gpu_describe(device_index(), &gpu), test);
    free_bytes = i == 1 ? gpu.free_bytes : free_bytes; /* what the first one leaves, modules and the like, stays */
  }
  printf("%s: %u, free before and after: %llu and %llu bytes\n", test, starts, (unsigned long long)free_bytes,
         (unsigned long long)gpu.free_bytes);
  expect(good && gpu.free_bytes + KEPT_BY_DRIVER >= free_bytes, test, "memory is left");
  mk_engine_close(holder);
}

/* Draws of ranks, by their definition from the logits, which are those of one GPU. */
static void test_draws(const char *shape, const char *what, change *of, uint32_t ranks) {
  char test[128];
  trial t;
  if (place_model(shape, of, ranks, &t)) {
    snprintf(test, sizeof test, "%s%s, draws of %u ranks on %s", shape, what, ranks, t.on);
    test_draws_of_ranks(t.on, t.sms, test, &t.config);
    printf("%s: compared with the definition\n", test);
  }
}

static void have_int4_and_biases(mk_config *config) {
  have_int4(config);
  have_norms_of_heads(config);
}

static void have_four_layers_in_fp8(mk_config *config) {
  have_fp8(config);
  have_four_layers(config);
}

static void have_heads_of_64_in_fp8(mk_config *config) {
  have_fp8(config);
  have_heads_of_64(config);
}

/* K of many strips, in parts. */
static void have_int4_of_many_strips(mk_config *config) {
  have_int4(config);
  have_wide_norms(config);
  config->layers = 2;
}

static const struct {
  const char *name;
  change *of;
  bool quick; /* tested in a quick run, too */
} forms[] = {
    {" in fp8", have_fp8, true},
    {" in fp8, groups of 64", have_fp8_by_64, false},
    {" in int8", have_int8, true},
    {" in int4", have_int4, true},
    {" in int4 with zeros", have_int4_zeros, true},
    {" in int4 with zeros, groups of 32", have_int4_by_32, false},
    {" in int4, with norms of heads and biases", have_int4_and_biases, false},
    {" in int4, of 8,192 columns", have_int4_of_many_strips, true},
};

/* The bits of one GPU, whose kernels for these weights quantised_gpu.c tests. */
static void test_forms(bool quick) {
  const uint32_t steps = quick ? 20 : MOST_STEPS, tokens = quick ? 8 : 40;
  for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
    if (!quick || forms[f].quick) {
      compare("tiny", forms[f].name, forms[f].of, 2, steps);
      compare_rows("tiny", forms[f].name, forms[f].of, 2, 4, tokens);
      compare_rows("tiny", forms[f].name, forms[f].of, 2, 16, tokens);
    }
  }
  compare("tiny", " in int4 with zeros", have_int4_zeros, 3, steps); /* q, k and v travel */
  compare_prompt("llama-3.2-1b", " in int4 with zeros", have_int4_zeros, 2, 512, 700, 8);
  compare_many("tiny", " in fp8 with heads of 64 dims", have_heads_of_64_in_fp8, 2, 64, 72);
  test_draws("tiny", " in int4 with zeros", have_int4_zeros, 2);
  if (!quick) {
    test_draws("tiny", " in fp8", have_fp8, 2);
    compare("llama-3.2-1b", " in fp8", have_fp8, 2, steps);
    compare("llama-3.2-1b", " in int4 with zeros", have_int4_zeros, 4, steps);
    compare_rows("llama-3.2-1b", " in fp8", have_fp8, 4, 16, tokens);
    compare_rows("llama-3.2-1b", " in int4 with zeros", have_int4_zeros, 2, 16, tokens);
  }
}

/* A KV cache in fp8, with weights of bf16 and in codes. */
static void test_fp8_caches(bool quick) {
  const uint32_t steps = quick ? 20 : MOST_STEPS, tokens = quick ? 8 : 40;
  const mk_dtype before = kv;
  kv = MK_DTYPE_E4M3;
  compare("tiny", ", cache in fp8", NULL, 2, steps);
  compare("tiny", " of one KV head, cache in fp8", have_one_kv_head, 2, steps);
  compare("tiny", " in int4, cache in fp8", have_int4, 2, steps);
  compare_rows("tiny", ", cache in fp8", NULL, 2, 4, tokens);
  compare_rows("tiny", " in int4, cache in fp8", have_int4, 2, 16, tokens);
  compare_many("tiny", " in fp8, cache in fp8", have_fp8, 2, 16, 20); /* prompts of up to 700 tokens */
  compare_prompt("llama-3.2-1b", ", cache in fp8", NULL, 2, 512, 700, 8);
  compare_many("tiny", " in fp8 with heads of 64 dims, cache in fp8", have_heads_of_64_in_fp8, 2, 64, 72);
  if (!quick) {
    compare("llama-3.1-8b", " of 4 layers in fp8, cache in fp8", have_four_layers_in_fp8, 4, steps); /* 128 dims */
    compare_rows("llama-3.1-8b", " of 4 layers in fp8, cache in fp8", have_four_layers_in_fp8, 2, 16, tokens);
    test_draws("tiny", " in int4, cache in fp8", have_int4, 2);
  }
  kv = before;
}

void test_ranks(bool quick) {
  uint32_t gpus = 0;
  int version;
  if (mk_gpu_count(&gpus, &version) == MK_OK && gpus < 2) {
    printf("ranks on several GPUs: left out, as there is %u; they share it\n", gpus);
  }
  const uint32_t steps = quick ? 20 : MOST_STEPS, tokens = quick ? 8 : 40;
  compare("tiny", "", NULL, 2, MOST_STEPS);
  compare("tiny", " of one KV head", have_one_kv_head, 2, steps);
  compare("tiny", "", NULL, 3, steps); /* q, k and v travel */
  compare("tiny", " with norms of heads and biases", have_norms_of_heads, 2, steps);
  compare("tiny", " with norms after", have_norms_after, 2, steps);
  compare("llama-3.2-1b", "", NULL, 2, steps);
  if (!quick) {
    compare("llama-3.2-1b", "", NULL, 4, steps);
    compare("llama-3.2-1b", "", NULL, 8, steps);
    compare("llama-3.1-8b", "", NULL, 2, steps);
    compare("llama-3.1-8b", "", NULL, 4, steps);
  }
  compare_wide_norms("tiny", " of 8,192 columns", have_wide_norms, 2, tokens);
  compare_rows("tiny", "", NULL, 2, 2, 40);
  compare_rows("tiny", "", NULL, 2, 16, 40);
  compare_rows("tiny", " with norms of heads and biases", have_norms_of_heads, 2, 4, tokens);
  compare_rows("tiny", " with norms after", have_norms_after, 2, 4, tokens);
  compare_rows("llama-3.2-1b", "", NULL, 2, 16, tokens);
  if (!quick) {
    compare_rows("llama-3.2-1b", "", NULL, 2, 4, tokens);
    compare_rows("llama-3.2-1b", "", NULL, 8, 16, tokens);
    compare_rows("llama-3.1-8b", "", NULL, 4, 16, 8);
    compare_wide_norms("llama-3.1-70b", " of 4 layers", have_four_layers, 2, tokens);
    compare_wide_norms("llama-3.1-70b", " of 4 layers", have_four_layers, 4, tokens);
  }
  compare_prompt("llama-3.2-1b", "", NULL, 2, 512, 700, 8);
  compare_prompt("llama-3.1-8b", "", NULL, 4, 1024, 1024, 8);
  if (!quick) {
    compare_prompt("llama-3.2-1b", "", NULL, 2, 128, LONGEST_PROMPT, 8);
    compare_prompt("llama-3.2-1b", "", NULL, 4, 1024, LONGEST_PROMPT, 8);
    compare_prompt("llama-3.1-8b", "", NULL, 2, 1024, 1024, 8);
    compare_prompt("llama-3.1-8b", "", NULL, 8, 512, 600, 4);
  }
  compare_many("tiny", " with heads of 64 dims", have_heads_of_64, 2, 64, 72);
  compare_many("tiny", " with heads of 128 dims", have_heads_of_128, 2, 64, 64);
  compare_prompt("tiny", " with factors and biases", have_factors_and_biases, 2, 128, 300, 8);
  compare_many("tiny", " with factors and biases", have_factors_and_biases, 2, 64, 72);
  compare_prompt("tiny", " with norms after", have_wide_norms_after, 2, 128, 300, 8);
  compare_many("tiny", " with norms after", have_wide_norms_after, 2, 64, 72);
  if (!quick) {
    compare_many("tiny", " with heads of 64 dims", have_heads_of_64, 2, 64, 17);
    compare_many("tiny", " with heads of 128 dims", have_heads_of_128, 2, 128, 140);
    compare_many("tiny", " with sixteen query heads", have_many_query_heads, 2, 256, 150);
    compare_many("llama-3.2-1b", "", NULL, 2, 64, 64);
    compare_many("llama-3.2-1b", "", NULL, 4, 64, 72);
    compare_many("llama-3.1-8b", " of 4 layers", have_four_layers, 2, 64, 64);
    compare_many("llama-3.1-8b", " of 4 layers", have_four_layers, 8, 512, 150);
  }
  test_draws("tiny", "", NULL, 2);
  if (!quick) {
    test_draws("llama-3.2-1b", "", NULL, 2);
    test_draws("llama-3.2-1b", "", NULL, 4);
    test_draws("llama-3.2-1b", "", NULL, 8);
  }
  test_forms(quick);
  test_fp8_caches(quick);
  test_fault(2, 0);
  test_fault(2, 1);
  test_shared_fault(MK_OP_ATTEND);
  test_shared_fault(MK_OP_HEAD);
  test_starts(quick ? 10 : 50);
}
