/* mkvm run: prompt, engine, and the output of what it generates. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "models/tokenizer.h"
#include "tools/lib/npy.h"
#include "tools/lib/stop.h"
#include "tools/mkvm/chat.h"
#include "tools/mkvm/command.h"
#include "tools/mkvm/loading.h"
#include "tools/mkvm/report.h"
#include "tools/mkvm/run_compare.h"
#include "tools/mkvm/run_option.h"
#include "tools/mkvm/run_program.h"

static mk_status read_all(int fd, char **text, size_t *length) {
  size_t capacity = 0;
  for (;;) {
    MK_TRY(mk_grow(text, &capacity, *length + 65536, 1));
    ssize_t got = read(fd, *text + *length, 65536);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return mk_error(MK_ERR_RUNTIME, "cannot be read: %s", strerror(errno));
    }
    if (got == 0) {
      return MK_OK;
    }
    *length += (size_t)got;
  }
}

static mk_status read_prompt(const mk_run_option *o, char **text, size_t *length) {
  *text = NULL;
  *length = 0;
  if (o->file == NULL) {
    const char *prompt = o->prompt == NULL ? "" : o->prompt;
    *length = strlen(prompt);
    return mk_strdup(prompt, text);
  }
  bool standard = strcmp(o->file, "-") == 0;
  int fd = standard ? STDIN_FILENO : open(o->file, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return mk_error(MK_ERR_RUNTIME, "%s: cannot be opened: %s", o->file, strerror(errno));
  }
  mk_status status = read_all(fd, text, length);
  if (!standard) {
    close(fd);
  }
  return status == MK_OK ? MK_OK : mk_error_prefix(status, "%s", standard ? "standard input" : o->file);
}

/* A chat template writes the special tokens itself. */
static mk_status encode_prompt(const mk_tokenizer *tokenizer, const char *text, size_t length, bool chat,
                               uint32_t context, mk_tokens *tokens) {
  MK_TRY(mk_tokenizer_encode(tokenizer, text, length, !chat, tokens));
  if (tokens->count == 0) {
    return mk_error(MK_ERR_USAGE, "the prompt is empty and this tokenizer puts no token before it; give --prompt TEXT");
  }
  if (tokens->count > context) {
    return mk_error(MK_ERR_USAGE, "the %s has %zu tokens, the context %u; %s or raise --ctx-size",
                    chat ? "conversation" : "prompt", tokens->count, context, chat ? "begin a new one" : "shorten it");
  }
  return MK_OK;
}

typedef struct run {
  const mk_run_option *options;
  const mk_config *config;
  mk_decoder *decoder;
  mk_npy *npy;
  mk_stop stop;
  mk_run_report report;
  char device[160]; /* outlives the engine that names it */
  char last;        /* character shown last, for the closing line end */
  double start, first, end;
  mk_status status; /* of the token callback, which cannot return one */
} run;

static mk_status show(run *r, const char *text, size_t length) {
  if (length == 0) {
    return MK_OK;
  }
  r->last = text[length - 1];
  if (r->options->json || mk_run_is_interactive(r->options)) {
    MK_TRY(mk_report_text(&r->report, text, length));
  }
  return r->options->json ? MK_OK : mk_print(text, length);
}

static bool is_eos(const mk_config *config, uint32_t token) {
  for (uint32_t i = 0; i < config->eos_count; i++) {
    if (config->eos[i] == token) {
      return true;
    }
  }
  return false;
}

static mk_status take_token(run *r, uint32_t token, const float *logits, bool *go_on) {
  const char *text;
  size_t length;
  *go_on = false;
  MK_TRY(mk_report_token(&r->report, token));
  if (r->options->sampling.logprobs) {
    MK_TRY(mk_report_logprobs(&r->report, logits, r->config->vocab));
  }
  if (logits != NULL && isnan(logits[token])) {
    return mk_error(MK_ERR_RUNTIME, "token %zu: its logits are not numbers; the weights hold NaN or overflow",
                    r->report.tokens.count);
  }
  if (r->npy != NULL) {
    MK_TRY(mk_npy_row(r->npy, logits));
  }
  if (!r->options->ignore_eos && is_eos(r->config, token)) {
    r->report.finish_reason = "stop";
    return MK_OK;
  }
  MK_TRY(mk_decoder_push(r->decoder, token, &text, &length));
  MK_TRY(mk_stop_push(&r->stop, text, length, &text, &length));
  MK_TRY(show(r, text, length));
  if (r->stop.hit) {
    r->report.finish_reason = "stop";
  } else if (mk_interrupted) {
    r->report.finish_reason = "interrupted";
  } else {
    *go_on = true;
  }
  return MK_OK;
}

static bool on_token(void *user, uint32_t token, const float *logits) {
  run *r = user;
  bool go_on;
  r->end = mk_seconds();
  if (r->report.tokens.count == 0) {
    r->first = r->end;
  }
  r->status = take_token(r, token, logits, &go_on);
  return r->status == MK_OK && go_on;
}

/* Text that was held back: an incomplete character, the beginning of a stop text. */
static mk_status show_rest(run *r) {
  const char *text;
  size_t length;
  MK_TRY(mk_decoder_finish(r->decoder, &text, &length));
  MK_TRY(mk_stop_push(&r->stop, text, length, &text, &length));
  MK_TRY(show(r, text, length));
  mk_stop_finish(&r->stop, &text, &length);
  MK_TRY(show(r, text, length));
  return r->options->json || r->last == '\n' ? MK_OK : mk_print("\n", 1);
}

static mk_status generate(run *r, mk_engine *engine, const mk_tokens *prompt) {
  r->report.finish_reason = "length";
  r->start = r->first = r->end = mk_seconds();
  MK_TRY(mk_engine_generate(engine, prompt->ids, prompt->count, r->options->n_predict, on_token, r));
  MK_TRY(r->status);
  if (mk_interrupted && strcmp(r->report.finish_reason, "length") == 0) {
    r->report.finish_reason = "interrupted"; /* inside the prompt, or in the step at hand: no token came with it */
  }
  MK_TRY(show_rest(r));
  r->report.prompt_seconds = r->first - r->start;
  r->report.generate_seconds = r->end - r->first;
  return MK_OK;
}

static mk_status run_engine(const mk_run_option *o, run *r, const mk_config *config, uint32_t context,
                            const mk_tokens *prompt) {
  mk_engine *engine;
  mk_engine_options engine_options = o->engine;
  engine_options.max_seq = context;
  engine_options.want_logits = o->logits != NULL || o->sampling.logprobs;
  double start = mk_seconds();
  MK_TRY(mk_open_engine(o->model, &engine_options, &engine));
  r->report.load_seconds = mk_seconds() - start;
  snprintf(r->device, sizeof r->device, "%s", mk_engine_device(engine));
  mk_status status = mk_trace_option_begin(&o->trace, engine);
  if (status == MK_OK && o->logits != NULL) {
    status = mk_npy_create(o->logits, config->vocab, &r->npy);
  }
  if (status == MK_OK) {
    status = generate(r, engine, prompt);
  }
  if (status == MK_OK) {
    status = mk_trace_option_end(&o->trace, engine);
  }
  if (status == MK_OK && r->npy != NULL) {
    status = mk_npy_finish(r->npy);
    r->npy = NULL;
  }
  mk_npy_discard(r->npy);
  mk_engine_close(engine);
  return status;
}

/* What follows continues the prompt's text: some tokenizers drop the first space of a text, and this is not its beginning. */
static mk_status pass_over(mk_decoder *decoder, const mk_tokens *prompt) {
  for (size_t i = 0; i < prompt->count; i++) {
    const char *text;
    size_t length;
    MK_TRY(mk_decoder_push(decoder, prompt->ids[i], &text, &length));
  }
  return MK_OK;
}

static mk_status run_model(const mk_run_option *o, const mk_config *config, uint32_t context,
                           const mk_tokenizer *tokenizer, const char *text, size_t length) {
  mk_tokens prompt = {0};
  run r = {.options = o,
           .config = config,
           .stop = {.strings = o->stops, .count = o->stop_count},
           .report = {.logprob_count = o->sampling.logprob_count}};
  mk_status status;
  MK_TRY_GOTO(encode_prompt(tokenizer, text, length, o->chat, context, &prompt), done);
  if (o->compare) {
    mk_engine_options engine = o->engine;
    engine.max_seq = context;
    status = mk_run_compare(o->model, &engine, &prompt, o->n_predict);
    goto done;
  }
  MK_TRY_GOTO(mk_decoder_new(tokenizer, &r.decoder), done);
  if (!o->chat) {
    MK_TRY_GOTO(pass_over(r.decoder, &prompt), done);
  }
  if (o->echo && !o->json) {
    MK_TRY_GOTO(show(&r, text, length), done);
  }
  MK_TRY_GOTO(run_engine(o, &r, config, context, &prompt), done);
  r.report.model = o->model;
  r.report.device = r.device;
  r.report.prompt = &prompt;
  r.report.sampling = &o->sampling;
  if (o->json) {
    status = mk_report_json(&r.report);
  } else {
    status = mk_report_print_logprobs(&r.report);
    mk_report_timings(&r.report);
  }
done:
  mk_decoder_free(r.decoder);
  mk_stop_free(&r.stop);
  mk_report_free(&r.report);
  mk_tokens_free(&prompt);
  return status;
}

/* One turn: the prompt becomes the text of a conversation. */
static mk_status as_conversation(const mk_run_option *o, char **text, size_t *length) {
  mk_conversation conversation;
  char *said = *text;
  *text = NULL;
  mk_status status = mk_conversation_begin(o->model, o->system, o->date, &conversation);
  if (status == MK_OK) {
    status = mk_conversation_ask(&conversation, said, *length, text, length);
  }
  mk_conversation_end(&conversation);
  mk_free(said);
  return status;
}

/* What stays from turn to turn; `run` is that of the last one. */
typedef struct session {
  const mk_run_option *options;
  const mk_config *config;
  const mk_tokenizer *tokenizer;
  uint32_t context;
  mk_engine *engine;
  run run;
} session;

static void end_turn(run *r) {
  mk_decoder_free(r->decoder);
  mk_stop_free(&r->stop);
  mk_report_free(&r->report);
}

/* The engine has no memory of the turns before: the whole conversation is its prompt each time. */
static mk_status answer(void *user, const char *text, size_t length, const char **said, size_t *said_length) {
  session *s = user;
  const mk_run_option *o = s->options;
  mk_tokens prompt = {0};
  end_turn(&s->run);
  s->run = (run){.options = o, .config = s->config, .stop = {.strings = o->stops, .count = o->stop_count}};
  mk_status status;
  MK_TRY_GOTO(encode_prompt(s->tokenizer, text, length, true, s->context, &prompt), done);
  MK_TRY_GOTO(mk_decoder_new(s->tokenizer, &s->run.decoder), done);
  MK_TRY_GOTO(generate(&s->run, s->engine, &prompt), done);
  if (strcmp(s->run.report.finish_reason, "length") == 0 && prompt.count + s->run.report.tokens.count >= s->context) {
    fprintf(stderr, "mkvm: the context of %u tokens is full; begin a new conversation or raise --ctx-size\n",
            s->context);
  }
  *said = s->run.report.text == NULL ? "" : s->run.report.text;
  *said_length = s->run.report.text_length;
done:
  mk_tokens_free(&prompt);
  return status;
}

static mk_status converse(const mk_run_option *o, const mk_config *config, uint32_t context,
                          const mk_tokenizer *tokenizer) {
  mk_conversation conversation;
  session s = {.options = o, .config = config, .tokenizer = tokenizer, .context = context};
  mk_engine_options engine_options = o->engine;
  engine_options.max_seq = context;
  mk_status status;
  MK_TRY_GOTO(mk_conversation_begin(o->model, o->system, o->date, &conversation), done);
  MK_TRY_GOTO(mk_open_engine(o->model, &engine_options, &s.engine), done);
  status = mk_conversation_run(&conversation, answer, &s);
done:
  end_turn(&s.run);
  mk_engine_close(s.engine);
  mk_conversation_end(&conversation);
  return status;
}

static mk_status run_command(mk_run_option *o) {
  mk_config config;
  uint32_t context;
  MK_TRY(mk_config_load(o->model, &config));
  MK_TRY(mk_context_size(o->ctx_size, config.max_position, &context));
  if (!o->compare) {
    MK_TRY(mk_sampling_option_resolve(&o->sampling, o->model, config.vocab));
    mk_sampling_option_tell(&o->sampling, stderr);
    o->engine.sampling = &o->sampling.sampling;
  }
  mk_tokenizer *tokenizer;
  MK_TRY(mk_tokenizer_load(o->model, config.vocab, &tokenizer));
  char *text = NULL;
  size_t length;
  mk_status status;
  if (o->chat && !o->limited) {
    o->n_predict = SIZE_MAX;
  }
  if (mk_run_is_interactive(o)) {
    status = converse(o, &config, context, tokenizer);
    mk_tokenizer_free(tokenizer);
    return status;
  }
  status = read_prompt(o, &text, &length);
  if (status == MK_OK && o->chat) {
    status = as_conversation(o, &text, &length);
  }
  if (status == MK_OK) {
    status = run_model(o, &config, context, tokenizer, text, length);
  }
  mk_free(text);
  mk_tokenizer_free(tokenizer);
  return status;
}

mk_status mk_command_run(int argc, char **argv) {
  mk_run_option o;
  mk_run_option_parse(argc, argv, &o);
  mk_status status = o.program == NULL ? run_command(&o)
                                       : mk_run_program(o.program, o.n_predict,
                                                        &(mk_cpu_options){.seed = o.engine.interleave_seed,
                                                                          .adversarial = o.engine.adversarial,
                                                                          .check_races = o.engine.check_races});
  mk_run_option_free(&o);
  return status;
}
