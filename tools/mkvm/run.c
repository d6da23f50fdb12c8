/* mkvm run: prompt, engine, and the output of what it generates. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/prompt.h"
#include "tools/mkvm/answer.h"
#include "tools/mkvm/chat.h"
#include "tools/mkvm/command.h"
#include "tools/mkvm/loading.h"
#include "tools/mkvm/run_compare.h"
#include "tools/mkvm/run_many.h"
#include "tools/mkvm/run_program.h"

static mk_status read_all(int fd, char **text, size_t *length) {
  size_t capacity = 0;
  while (*length <= MK_PROMPT_BYTES) {
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
  return mk_error(MK_ERR_USAGE, "holds more than %d bytes, which a prompt has at most; shorten it", MK_PROMPT_BYTES);
}

/* Nobody has to be at a terminal, and a job may have closed its input: neither is an error of a run that names no
 * prompt. What main puts in the place of a closed one cannot be read. */
static bool input_holds_a_prompt(void) {
  int flags = fcntl(STDIN_FILENO, F_GETFL);
  return flags >= 0 && (flags & O_ACCMODE) != O_WRONLY && !isatty(STDIN_FILENO);
}

/* Prompt `index` of those that are given, or the only one: without any, what is on standard input. */
static mk_status read_prompt(const mk_run_option *o, size_t index, char **text, size_t *length) {
  *text = NULL;
  *length = 0;
  const bool unnamed = o->file == NULL && o->prompt_count == 0;
  if (o->file == NULL && !(unnamed && input_holds_a_prompt())) {
    const char *prompt = unnamed ? "" : o->prompts[index];
    *length = strlen(prompt);
    return mk_strdup(prompt, text);
  }
  bool standard = unnamed || strcmp(o->file, "-") == 0;
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

static mk_status generate(mk_answer *r, mk_engine *engine, const mk_tokens *prompt) {
  mk_answer_start(r);
  mk_status status = mk_engine_generate(engine, prompt->ids, prompt->count, r->options->n_predict, mk_answer_token, r);
  mk_clear_prompt();
  MK_TRY(status);
  MK_TRY(r->status);
  return mk_answer_finish(r);
}

static mk_status run_engine(const mk_run_option *o, mk_answer *r, char device[MK_DEVICE_TEXT], uint32_t context,
                            const mk_tokens *prompt, const mk_prompt_text *text) {
  mk_engine *engine;
  mk_engine_options engine_options = o->engine;
  engine_options.max_seq = context;
  engine_options.want_logits = o->logits != NULL || o->sampling.logprobs;
  const bool echo = o->echo && !o->json;
  engine_options.prompt_progress = echo ? NULL : mk_show_prompt; /* the echo may be on the same terminal's line */
  mk_run_rows(o, 1, prompt->count, &engine_options);
  double start = mk_seconds();
  MK_TRY(mk_open_engine(o->model, &engine_options, &engine));
  if (engine == NULL) {
    return MK_OK;
  }
  r->report.load_seconds = mk_seconds() - start;
  snprintf(device, MK_DEVICE_TEXT, "%s", mk_engine_device(engine));
  mk_trace_option_begin(&o->trace, engine);
  mk_status status = o->logits == NULL ? MK_OK : mk_npy_create(o->logits, r->reply.config->vocab, &r->npy);
  if (status == MK_OK && echo) {
    status = mk_answer_show(r, text->text, text->length); /* what loading shows has been cleared */
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

static mk_status run_model(const mk_run_option *o, const mk_config *config, uint32_t context,
                           const mk_tokenizer *tokenizer, const mk_prompt_text *text) {
  mk_tokens prompt = {0};
  char device[MK_DEVICE_TEXT] = "";
  mk_answer r = mk_answer_of(o, config);
  mk_status status;
  MK_TRY_GOTO(mk_answer_encode(tokenizer, config, text->text, text->length, o->chat, context, &prompt), done);
  if (o->compare) {
    mk_engine_options engine = o->engine;
    engine.max_seq = context;
    status = mk_run_compare(o->model, &engine, &prompt, o->n_predict, &o->trace);
    goto done;
  }
  MK_TRY_GOTO(mk_answer_begin(&r, tokenizer, &prompt), done);
  MK_TRY_GOTO(run_engine(o, &r, device, context, &prompt, text), done);
  if (mk_process_option_is_silent(&o->process)) {
    goto done;
  }
  r.report.model = o->model;
  r.report.device = device;
  r.report.prompt = &prompt;
  r.report.sampling = &o->sampling;
  if (o->json) {
    status = mk_report_json(&r.report);
  } else {
    status = mk_report_print_logprobs(&r.report);
    mk_report_timings(&r.report);
  }
done:
  mk_answer_end(&r);
  mk_tokens_free(&prompt);
  return status;
}

/* Makes the prompt the text of a conversation of one turn. */
static mk_status as_conversation(const mk_run_option *o, char **text, size_t *length) {
  mk_conversation conversation;
  char *said = *text;
  *text = NULL;
  mk_status status = mk_conversation_begin(o->model, o->system, o->date, o->variables, &conversation);
  if (status == MK_OK) {
    status = mk_conversation_ask(&conversation, said, *length, text, length);
  }
  mk_conversation_end(&conversation);
  mk_free(said);
  return status;
}

/* What stays from turn to turn; `last` is the answer of the last one. */
typedef struct session {
  const mk_run_option *options;
  const mk_config *config;
  const mk_tokenizer *tokenizer;
  uint32_t context;
  mk_engine *engine;
  mk_answer last;
} session;

/* The whole conversation is the prompt of every turn; of what it begins with the engine knows whole blocks, and
 * computes what has come since. */
static mk_status answer(void *user, const char *text, size_t length, const char **said, size_t *said_length) {
  session *s = user;
  const mk_run_option *o = s->options;
  mk_tokens prompt = {0};
  mk_answer_end(&s->last);
  s->last = mk_answer_of(o, s->config);
  mk_status status;
  MK_TRY_GOTO(mk_answer_encode(s->tokenizer, s->config, text, length, true, s->context, &prompt), done);
  MK_TRY_GOTO(mk_answer_begin(&s->last, s->tokenizer, &prompt), done);
  MK_TRY_GOTO(generate(&s->last, s->engine, &prompt), done);
  if (strcmp(s->last.report.finish_reason, "length") == 0 && prompt.count + s->last.report.tokens.count >= s->context) {
    fprintf(stderr, "mkvm: the context of %u tokens is full%s\n", s->context,
            s->context < s->config->max_position ? "; begin a new conversation or raise --ctx-size"
                                                 : ", and the model has no more; begin a new conversation");
  }
  *said = s->last.report.text == NULL ? "" : s->last.report.text;
  *said_length = s->last.report.text_length;
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
  engine_options.prompt_progress = mk_show_prompt;
  engine_options.prefix_tokens = context;
  mk_run_rows(o, 1, context, &engine_options);
  mk_status status;
  MK_TRY_GOTO(mk_conversation_begin(o->model, o->system, o->date, o->variables, &conversation), done);
  MK_TRY_GOTO(mk_open_engine(o->model, &engine_options, &s.engine), done);
  if (s.engine == NULL) {
    goto done;
  }
  mk_trace_option_begin(&o->trace, s.engine);
  MK_TRY_GOTO(mk_conversation_run(&conversation, answer, &s), done);
  status = mk_trace_option_end(&o->trace, s.engine);
done:
  mk_answer_end(&s.last);
  mk_engine_close(s.engine);
  mk_conversation_end(&conversation);
  return status;
}

/* The text of prompt `index`, *text the caller's in every case. */
static mk_status make_text(const mk_run_option *o, size_t index, char **text, size_t *length) {
  MK_TRY(read_prompt(o, index, text, length));
  return o->chat ? as_conversation(o, text, length) : MK_OK;
}

static mk_status run_prompt(const mk_run_option *o, const mk_config *config, uint32_t context,
                            const mk_tokenizer *tokenizer) {
  mk_prompt_text text = {0};
  mk_status status = make_text(o, 0, &text.text, &text.length);
  if (status == MK_OK) {
    status = run_model(o, config, context, tokenizer, &text);
  }
  mk_free(text.text);
  return status;
}

static mk_status run_prompts(const mk_run_option *o, const mk_config *config, uint32_t context,
                             const mk_tokenizer *tokenizer) {
  mk_prompt_text texts[MK_RUN_PROMPTS] = {{0}};
  mk_status status = MK_OK;
  for (size_t i = 0; i < o->prompt_count && status == MK_OK; i++) {
    status = make_text(o, i, &texts[i].text, &texts[i].length);
  }
  if (status == MK_OK) {
    status = mk_run_many(o, config, context, tokenizer, texts);
  }
  for (size_t i = 0; i < o->prompt_count; i++) {
    mk_free(texts[i].text);
  }
  return status;
}

static mk_status run_command(mk_run_option *o) {
  mk_config config;
  uint32_t context;
  MK_TRY(mk_config_load(o->model, &config));
  MK_TRY(mk_context_size(o->ctx_size, &config, &context));
  if (!o->compare) {
    MK_TRY(mk_sampling_option_resolve(&o->sampling, o->model, config.vocab));
    if (!mk_process_option_is_silent(&o->process)) {
      mk_sampling_option_tell(&o->sampling, stderr);
    }
    o->engine.sampling = &o->sampling.sampling;
  }
  if (!mk_process_option_is_silent(&o->process)) {
    mk_tell_precision(&config, o->engine.kv);
  }
  mk_tokenizer *tokenizer;
  MK_TRY(mk_tokenizer_load(o->model, config.vocab, &tokenizer));
  mk_status status;
  if (o->chat && !o->limited) {
    o->n_predict = o->sampling.max_new_tokens == 0 ? SIZE_MAX : o->sampling.max_new_tokens;
  }
  if (mk_run_is_interactive(o)) {
    status = converse(o, &config, context, tokenizer);
    mk_tokenizer_free(tokenizer);
    return status;
  }
  status =
      o->prompt_count > 1 ? run_prompts(o, &config, context, tokenizer) : run_prompt(o, &config, context, tokenizer);
  mk_tokenizer_free(tokenizer);
  return status;
}

mk_status mk_command_run(int argc, char **argv) {
  mk_run_option o;
  mk_run_option_parse(argc, argv, &o);
  mk_status status = o.program == NULL ? run_command(&o)
                                       : mk_run_program(o.program, o.n_predict,
                                                        &(mk_cpu_options){.threads = o.engine.threads,
                                                                          .seed = o.engine.interleave_seed,
                                                                          .adversarial = o.engine.adversarial,
                                                                          .check_races = o.engine.check_races},
                                                        &o.trace);
  mk_run_option_free(&o);
  return status;
}
