/* Memory that runs out: the n-th allocation fails, alone or with all that follow, for every n from opening a model directory to the
 * last token. Each time there is an error that says so, nothing leaks (the sanitizer build looks), and the next run works. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/engine.h"
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

/* Configuration, tokenizer, checkpoint, graph, program, verifier, machine, weights, three tokens with races looked for. */
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

Test(allocation, mla) { cr_assert_eq(fail_every_allocation(use_mla, 20), 0); }

Test(allocation, program) { cr_assert_eq(fail_every_allocation(use_program, 20), 0); }
