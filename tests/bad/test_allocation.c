/* Memory that runs out: the n-th allocation fails, alone or with all that follow, for every n from opening a model
 * directory to the last token. Each time there is an error that says so, nothing leaks (the sanitizer build looks), and
 * the next run works. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/engine.h"
#include "include/mkvm.h"
#include "tests/support/model.h"
#include "text/tokenizer.h"
#include "tools/lib/mla.h"
#include "vm/program/asm.h"
#include "vm/verify/verify.h"

static char directory[TEST_PATH];

static void make(void) {
  mk_config config = test_model_config(TEST_MODEL_DEEP_K);
  config.heads = config.kv_heads = 1;
  config.intermediate = 80;
  test_model_write(&config, directory);
}

static void drop(void) { test_model_remove(directory); }

TestSuite(allocation, .init = make, .fini = drop, .timeout = MK_HANG_SECONDS);

static bool count(void *user, uint32_t token, const float *logits) {
  (void)token;
  (void)logits;
  ++*(size_t *)user;
  return true;
}

/* Configuration, tokenizer, checkpoint, graph, program, verifier, machine, weights, three tokens with races looked
 * for. */
static mk_status use_model(void) {
  mk_config config;
  mk_tokenizer *tokenizer = NULL;
  mk_engine *engine = NULL;
  mk_decoder *decoder = NULL;
  mk_tokens prompt = {0};
  mk_status status;
  const char *text;
  size_t length, tokens = 0;
  const mk_engine_options options = {
      .device = "cpu", .sms = 2, .max_seq = 40, .interleave_seed = 5, .adversarial = true, .check_races = true};
  MK_TRY_GOTO(mk_config_load(directory, &config), done);
  MK_TRY_GOTO(mk_tokenizer_load(directory, config.vocab, &tokenizer), done);
  MK_TRY_GOTO(mk_tokenizer_encode(tokenizer, "a\xff", 2, true, &prompt), done);
  MK_TRY_GOTO(mk_engine_open(directory, &options, &engine), done);
  MK_TRY_GOTO(mk_engine_generate(engine, prompt.ids, prompt.count, 3, count, &tokens), done);
  MK_TRY_GOTO(mk_decoder_new(tokenizer, &decoder), done);
  MK_TRY_GOTO(mk_decoder_push(decoder, prompt.ids[prompt.count - 1], &text, &length), done);
  status = mk_decoder_finish(decoder, &text, &length);
done:
  mk_decoder_free(decoder);
  mk_engine_close(engine);
  mk_tokens_free(&prompt);
  mk_tokenizer_free(tokenizer);
  return status;
}

/* A program from text to the verifier's word, and to a file in memory and back. */
static mk_status use_program(void) {
  mk_program *program = NULL, *back = NULL;
  void *data = NULL;
  size_t length;
  mk_status status;
  MK_TRY_GOTO(mk_assemble_file(MK_SOURCE_DIR "/tests/vm/data/two_sms.mks", &program), done);
  MK_TRY_GOTO(mk_verify(program, NULL), done);
  MK_TRY_GOTO(mk_program_serialize(program, &data, &length), done);
  status = mk_program_parse(data, length, &back);
done:
  mk_free(data);
  mk_program_free(program);
  mk_program_free(back);
  return status;
}

/* An MLA program, its batch, its work list, and a run. */
static mk_status use_mla(void) {
  const mk_mla_shape shape = {
      .heads = 8, .new_tokens = 1, .max_sequences = 2, .max_pages = 8, .pool_pages = 9, .scale = 0.1f};
  const mk_cpu_options options = {.seed = 5, .adversarial = true, .check_races = true};
  mk_mla_session *session;
  MK_TRY(mk_mla_session_new(&shape, 3, &options, &session));
  mk_status status = mk_mla_session_load(session, (const uint32_t[]){400, 30}, 2, 1);
  status = status != MK_OK ? status : mk_mla_session_schedule(session, MK_MLA_MAKESPAN, NULL);
  status = status != MK_OK ? status : mk_mla_session_run(session);
  mk_mla_session_free(session);
  return status;
}

static void keep_status(void *user, const mkvm_end *end) {
  *(mkvm_status *)user = end->status;
  cr_assert_eq(end->status == MKVM_OK, end->message[0] == 0);
}

/* The same failures through the public library: a request that draws, with a stop text and a bias. */
static mkvm_status use_engine(mkvm_engine *engine, const mkvm_turn *turns) {
  static const char *const stops[] = {"never", "comes"};
  const mkvm_bias bias = {1, 2};
  uint32_t *ids;
  char *text;
  size_t count, length;
  mkvm_sampling sampling;
  mkvm_request request;
  mkvm_status ended = MKVM_ERR_USAGE, status = mkvm_tokenize(engine, "a\xff", 2, 1, &ids, &count);
  if (status == MKVM_OK) {
    status = mkvm_detokenize(engine, ids, count, &text, &length);
    mkvm_free(ids);
  }
  if (status != MKVM_OK) {
    return status;
  }
  mkvm_sampling_init(&sampling);
  sampling.temperature = 1;
  sampling.biases = &bias;
  sampling.bias_count = 1;
  mkvm_request_init(&request);
  request.text = turns == NULL ? text : NULL;
  request.text_length = length;
  request.turns = turns;
  request.turn_count = 1;
  request.max_tokens = 3;
  request.stops = stops;
  request.stop_count = 2;
  request.sampling = &sampling;
  request.on_end = keep_status;
  request.user = &ended;
  status = mkvm_submit(engine, &request, NULL);
  mkvm_free(text);
  if (status == MKVM_OK) {
    status = mkvm_run(engine);
  }
  return status == MKVM_OK ? ended : status;
}

static mk_status use_library_of(const char *model, const mkvm_turn *turns) {
  mkvm_engine *engine = (mkvm_engine *)1;
  mkvm_options options;
  mkvm_options_init(&options);
  options.device = "cpu";
  options.max_context = 40;
  options.threads = 1;
  mkvm_status status = mkvm_open(model, &options, &engine);
  cr_assert_eq(status == MKVM_OK, engine != NULL);
  if (status == MKVM_OK) {
    status = use_engine(engine, turns);
    cr_assert_eq(mkvm_close(engine), MKVM_OK);
  }
  return (mk_status)status;
}

static mk_status use_library(void) { return use_library_of(directory, NULL); }

static mk_status use_conversation(void) {
  const mkvm_turn turn = {"user", "Hello", 5};
  return use_library_of(MK_SOURCE_DIR "/models/demo", &turn);
}

/* Returns how often it succeeded although one allocation had failed; when all later ones fail too, it never may. */
static uint64_t fail_every_allocation(mk_status (*use)(void), uint64_t least) {
  mk_alloc_fail_at(0, false);
  cr_assert_eq(use(), MK_OK, "%s", mk_error_message());
  uint64_t calls = mk_alloc_calls(), succeeded = 0;
  cr_assert_gt(calls, least);
  for (uint64_t n = 1; n <= calls; n++) {
    for (int forever = 0; forever < 2; forever++) {
      mk_alloc_fail_at(n, forever != 0);
      mk_status status = use();
      mk_alloc_fail_at(0, false);
      succeeded += status == MK_OK;
      cr_assert((status == MK_OK && forever == 0) || status == MK_ERR_RUNTIME, "allocation %llu of %llu: status %d: %s",
                (unsigned long long)n, (unsigned long long)calls, (int)status, mk_error_message());
      cr_assert(status == MK_OK || strstr(mk_error_message(), "memory") != NULL, "allocation %llu of %llu: %s",
                (unsigned long long)n, (unsigned long long)calls, mk_error_message());
    }
  }
  cr_assert_eq(use(), MK_OK, "%s", mk_error_message());
  return succeeded;
}

/* PCRE2's just-in-time compiler makes a dozen, and the split pattern works without it. */
Test(allocation, model) { cr_assert_leq(fail_every_allocation(use_model, 150), 24); }

Test(allocation, library) { cr_assert_leq(fail_every_allocation(use_library, 150), 24); }

Test(allocation, conversation) { cr_assert_leq(fail_every_allocation(use_conversation, 250), 24); }

Test(allocation, mla) { cr_assert_eq(fail_every_allocation(use_mla, 20), 0); }

Test(allocation, program) { cr_assert_eq(fail_every_allocation(use_program, 20), 0); }
