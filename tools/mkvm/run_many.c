/* See run_many.h. */
#include "tools/mkvm/run_many.h"

#include <stdio.h>
#include <string.h>

#include "scheduler/compile.h"
#include "tools/mkvm/answer.h"
#include "tools/mkvm/command.h"
#include "tools/mkvm/loading.h"

enum { SHOWN = 60 }; /* bytes of a prompt that name it */

void mk_run_rows(const mk_run_option *o, size_t prompts, size_t longest, mk_engine_options *engine) {
  bool may = !o->compare && (prompts > 1 || mk_engine_takes_rows(engine));
  /* Tokens. On the cpu a step of one row costs what one of several does. */
  size_t one_by_one = mk_engine_takes_cuda(engine) ? MK_LONG_PROMPT : 1;
  uint32_t suits = prompts > 1 || longest > one_by_one ? MK_MAX_ROWS : 1;
  engine->rows = o->rows != 0 ? o->rows : may ? suits : 1;
  engine->slots = mk_rows_slots(engine->rows);
  engine->rows_or_fewer = o->rows == 0;
  engine->long_prompts = o->rows == 0 && longest > MK_LONG_PROMPT;
  size_t slots = engine->rows > MK_MAX_ROWS ? 1 : engine->rows, contexts = prompts < slots ? prompts : slots;
  uint32_t blocks = (engine->max_seq + MK_BLOCK_TOKENS - 1) / MK_BLOCK_TOKENS;
  engine->kv_blocks = engine->rows > 1 ? (uint32_t)contexts * blocks : 0;
}

typedef struct many {
  const mk_run_option *options;
  const mk_prompt_text *texts;
  size_t count, printed;
  mk_tokens prompts[MK_RUN_PROMPTS];
  mk_answer answers[MK_RUN_PROMPTS];
  mk_sequence sequences[MK_RUN_PROMPTS];
  bool ended[MK_RUN_PROMPTS];
  char errors[MK_RUN_PROMPTS][512];
  size_t failed; /* the first one that failed; `count`: none */
  mk_status status;
} many;

static bool on_token(void *user, size_t sequence, uint32_t token, const float *logits) {
  many *m = user;
  return m->status == MK_OK && mk_answer_token(&m->answers[sequence], token, logits);
}

/* "==> 2: Once upon a time <==", control characters as spaces, cut between characters of UTF-8. */
static mk_status print_name(const many *m, size_t index) {
  char line[SHOWN + 48], shown[SHOWN + 1];
  const char *prompt = m->options->prompts[index];
  size_t length = strlen(prompt), used = length < SHOWN ? length : SHOWN;
  while (used < length && used > 0 && ((unsigned char)prompt[used] & 0xc0) == 0x80) {
    used--;
  }
  for (size_t i = 0; i < used; i++) {
    shown[i] = (unsigned char)prompt[i] < ' ' || prompt[i] == 127 ? ' ' : prompt[i];
  }
  shown[used] = 0;
  int size = snprintf(line, sizeof line, "%s==> %zu: %s%s <==\n", m->printed == 0 ? "" : "\n", index + 1, shown,
                      used < length ? "..." : "");
  return mk_print(line, (size_t)size);
}

static mk_status print_answer(many *m, size_t index) {
  const mk_run_report *r = &m->answers[index].report;
  bool open = r->text_length != 0 && r->text[r->text_length - 1] != '\n';
  MK_TRY(print_name(m, index));
  m->printed++;
  MK_TRY(mk_print(r->text == NULL ? "" : r->text, r->text_length));
  MK_TRY(open ? mk_print("\n", 1) : MK_OK);
  return mk_report_print_logprobs(r);
}

static void note_failure(many *m, size_t index, mk_status status) {
  mk_answer *a = &m->answers[index];
  snprintf(m->errors[index], sizeof m->errors[0], "%s", mk_error_message());
  a->report.finish_reason = "error";
  a->report.error = m->errors[index];
  a->status = status;
  if (m->failed == m->count || index < m->failed) {
    m->failed = index;
  }
}

static void on_end(void *user, size_t sequence, mk_status status) {
  many *m = user;
  mk_answer *a = &m->answers[sequence];
  m->ended[sequence] = true;
  if (status == MK_OK) {
    status = a->status; /* of its token callback, whose message still stands */
  }
  if (status == MK_OK) {
    status = mk_answer_finish(a);
  }
  if (status != MK_OK) {
    note_failure(m, sequence, status);
  }
  if (m->status == MK_OK && !m->options->json && (status == MK_OK || a->report.text_length != 0)) {
    m->status = print_answer(m, sequence);
  }
}

static mk_status begin(many *m, const mk_config *config, uint32_t context, const mk_tokenizer *tokenizer,
                       size_t *longest) {
  const mk_run_option *o = m->options;
  for (size_t i = 0; i < m->count; i++) {
    mk_answer *a = &m->answers[i];
    *a = mk_answer_of(o, config);
    a->kept = true;
    a->report.model = o->model;
    a->report.prompt = &m->prompts[i];
    a->report.sampling = &o->sampling;
    mk_status status =
        mk_answer_encode(tokenizer, config, m->texts[i].text, m->texts[i].length, o->chat, context, &m->prompts[i]);
    if (status != MK_OK) {
      return mk_error_prefix(status, "prompt %zu", i + 1);
    }
    MK_TRY(mk_answer_begin(a, tokenizer, &m->prompts[i]));
    if (o->echo && !o->json && !mk_process_option_is_silent(&o->process)) {
      MK_TRY(mk_answer_show(a, m->texts[i].text, m->texts[i].length));
    }
    m->sequences[i] =
        (mk_sequence){.prompt = m->prompts[i].ids, .prompt_count = m->prompts[i].count, .n_predict = o->n_predict};
    *longest = m->prompts[i].count > *longest ? m->prompts[i].count : *longest;
  }
  return MK_OK;
}

static mk_status print_json(many *m) {
  const mk_run_report *reports[MK_RUN_PROMPTS];
  for (size_t i = 0; i < m->count; i++) {
    reports[i] = &m->answers[i].report;
  }
  return mk_report_json_all(reports, m->count);
}

static void tell_timings(const many *m, const char *device, double load, double seconds) {
  size_t prompts = 0, tokens = 0;
  for (size_t i = 0; i < m->count; i++) {
    prompts += m->prompts[i].count;
    tokens += m->answers[i].report.tokens.count;
  }
  fprintf(stderr, "%s | load %.2f s | %zu prompts, %zu tokens | generated %zu tokens in %.2f s, %.1f tokens/s\n",
          device, load, m->count, prompts, tokens, seconds, seconds > 0 ? (double)tokens / seconds : 0);
}

static mk_status generate(many *m, mk_engine *engine, double load) {
  mk_sequence_calls calls = {.token = on_token, .ended = on_end, .user = m};
  for (size_t i = 0; i < m->count; i++) {
    m->answers[i].report.device = mk_engine_device(engine);
    m->answers[i].report.load_seconds = load;
    mk_answer_start(&m->answers[i]);
  }
  double start = mk_seconds();
  mk_status status = mk_engine_generate_all(engine, m->sequences, m->count, &calls);
  mk_clear_prompt();
  MK_TRY(status);
  for (size_t i = 0; i < m->count; i++) {
    if (!m->ended[i]) { /* interrupted */
      on_end(m, i, MK_OK);
    }
  }
  MK_TRY(m->status);
  if (m->options->json) {
    MK_TRY(print_json(m));
  } else {
    tell_timings(m, mk_engine_device(engine), load, mk_seconds() - start);
  }
  size_t f = m->failed;
  return f == m->count ? MK_OK : mk_error(m->answers[f].status, "prompt %zu: %s", f + 1, m->errors[f]);
}

mk_status mk_run_many(const mk_run_option *o, const mk_config *config, uint32_t context, const mk_tokenizer *tokenizer,
                      const mk_prompt_text *texts) {
  many *m;
  mk_engine *engine = NULL;
  mk_engine_options options = o->engine;
  size_t longest = 0;
  MK_TRY(mk_alloc(1, sizeof *m, &m));
  m->options = o;
  m->texts = texts;
  m->count = m->failed = o->prompt_count;
  options.max_seq = context;
  options.want_logits = o->sampling.logprobs;
  options.prompt_progress = mk_show_prompt;
  mk_status status;
  MK_TRY_GOTO(begin(m, config, context, tokenizer, &longest), done);
  mk_run_rows(o, m->count, longest, &options);
  double start = mk_seconds();
  MK_TRY_GOTO(mk_open_engine(o->model, &options, &engine), done);
  if (engine == NULL) {
    goto done;
  }
  double load = mk_seconds() - start;
  mk_trace_option_begin(&o->trace, engine);
  MK_TRY_GOTO(generate(m, engine, load), done);
  status = mk_trace_option_end(&o->trace, engine);
done:
  mk_engine_close(engine);
  for (size_t i = 0; i < m->count; i++) {
    mk_answer_end(&m->answers[i]);
    mk_tokens_free(&m->prompts[i]);
  }
  mk_free(m);
  return status;
}
