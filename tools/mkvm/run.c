/* mkvm run: options, prompt, engine, and the output of what it generates. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/tokenizer.h"
#include "scheduler/compile.h"
#include "tools/lib/engine.h"
#include "tools/lib/npy.h"
#include "tools/lib/stop.h"
#include "tools/mkvm/chat.h"
#include "tools/mkvm/command.h"
#include "tools/mkvm/loading.h"
#include "tools/mkvm/report.h"
#include "tools/mkvm/run_compare.h"
#include "tools/mkvm/run_program.h"
#include "tools/mkvm/trace_option.h"

enum {
  KEY_SMS = 256,
  KEY_DEVICE,
  KEY_JSON,
  KEY_LOGITS,
  KEY_STOP,
  KEY_ECHO,
  KEY_IGNORE_EOS,
  KEY_CHECK,
  KEY_INTERLEAVE,
  KEY_ADVERSARIAL,
  KEY_COMPARE,
  KEY_PROGRAM,
  KEY_CACHE,
  KEY_CHAT,
  KEY_SYSTEM,
  KEY_DATE
};

enum { MAX_STOPS = 64 };

typedef struct options {
  const char *model, *prompt, *file, *logits, *program;
  const char *stops[MAX_STOPS];
  size_t stop_count;
  size_t n_predict;
  uint64_t ctx_size;
  bool json, echo, ignore_eos, compare;
  bool chat, limited; /* limited: --n-predict was given */
  const char *system, *date;
  mk_engine_options engine;
  mk_trace_option trace;
} options;

static const struct argp_option option_table[] = {
    {NULL, 0, NULL, 0, "Model and prompt:", 1},
    {"model", 'm', "DIR", 0, "Model directory in Hugging Face layout (required)", 1},
    {"prompt", 'p', "TEXT", 0, "Prompt; empty when neither this nor --file is given", 1},
    {"file", 'f', "FILE", 0, "Read the prompt from FILE, from standard input when FILE is -", 1},
    {"program", KEY_PROGRAM, "FILE", 0,
     "Instead of a model: run a program file by itself on the cpu, with made-up weights, for N steps, and print its "
     "outputs",
     1},
    {"chat", KEY_CHAT, NULL, 0,
     "Write the prompt as a conversation, by the model's chat template; without a prompt, hold one: a line is a turn",
     1},
    {"system", KEY_SYSTEM, "TEXT", 0, "With --chat: the system prompt", 1},
    {"date", KEY_DATE, "YYYY-MM-DD", 0, "With --chat: the date for templates that state it (today)", 1},
    {NULL, 0, NULL, 0, "Generation (greedy):", 2},
    {"n-predict", 'n', "N", 0,
     "Tokens to generate (128; -1 with --chat); -1: until the model stops or the context is full", 2},
    {"ctx-size", 'c', "L", 0, "Tokens of context, prompt included (the model's limit, at most 4096; so does 0)", 2},
    {"stop", KEY_STOP, "TEXT", 0, "End the output before TEXT; may be given several times", 2},
    {"ignore-eos", KEY_IGNORE_EOS, NULL, 0, "Go on after an end-of-text token", 2},
    {NULL, 0, NULL, 0, "Output:", 3},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object at the end instead of the text", 3},
    {"echo", KEY_ECHO, NULL, 0, "Print the prompt before its continuation", 3},
    {"logits", KEY_LOGITS, "FILE", 0,
     "Write the logits of every generated token to FILE.npy, float32 [tokens, vocabulary]", 3},
    {NULL, 0, NULL, 0, "Machine:", 4},
    {"device", KEY_DEVICE, "NAME", 0, "cpu, cuda or cuda:N (cuda:0 where there is one that fits, else cpu)", 4},
    {"sms", KEY_SMS, "N", 0, "SMs to compile for (132); the result does not depend on it", 4},
    {"cache", KEY_CACHE, "FOLDER", 0,
     "Keep a packed copy of the weights in FOLDER (as large as they are), and load it the next time", 4},
    {"compare", KEY_COMPARE, NULL, 0,
     "Run every instruction of every step on the cpu too, with the device's own inputs, and name the first output that "
     "is "
     "off; prints a table instead of the text",
     4},
    {"check", KEY_CHECK, NULL, 0, "Detect unordered accesses while running (cpu; slow)", 4},
    {"interleave", KEY_INTERLEAVE, "SEED", 0, "Run the queues in a random legal order (cpu)", 4},
    {"adversarial", KEY_ADVERSARIAL, NULL, 0, "Let relaxed counters pass before the data they announce (cpu)", 4},
    {0}};

static const char doc[] =
    "Generates text from a prompt, token by token, and streams it to standard output. A closing line on standard error "
    "states the device and the time it took. The first Ctrl-C ends the generation with what there is; a second one "
    "kills. On cuda the whole generation is one launch; with --logits, the prompt is one and every token another."
    "\v"
    "The object that --json prints has the keys model, device, prompt_tokens, tokens, text, finish_reason (\"stop\": "
    "the "
    "model or a stop text ended it; \"length\": N tokens or the context are full; \"interrupted\") and timings.\n\n"
    "In a conversation, Ctrl-C ends the answer at hand, and twice, or Ctrl-D, the program. Special tokens are "
    "recognised in "
    "what the user writes too, as in the template: text that must not act as one has to be kept from the prompt.\n\n"
    "Examples:\n"
    "  mkvm run -m models/demo -p \"Once upon a time\" -n 200\n"
    "  mkvm run -m DIR -f question.txt --stop \"\\nQ:\" --json\n"
    "  mkvm run -m DIR --chat --system \"Answer in one sentence.\"\n";

static void add_stop(options *o, const char *text, struct argp_state *state) {
  if (text[0] == 0) {
    argp_error(state, "--stop: the text is empty; it would end every output");
  }
  if (o->stop_count == MAX_STOPS) {
    argp_error(state, "--stop: given more than %d times", MAX_STOPS);
  }
  o->stops[o->stop_count++] = text;
}

static void check_device(const options *o, struct argp_state *state) {
  const mk_engine_options *e = &o->engine;
  if (mk_is_cuda(e->device) && (e->check_races || e->interleave_seed != 0 || e->adversarial)) {
    argp_error(state, "--device %s does not go with%s%s%s, which only the cpu has", e->device,
               e->check_races ? " --check" : "", e->interleave_seed != 0 ? " --interleave" : "",
               e->adversarial ? " --adversarial" : "");
  }
}

/* A conversation with the user, rather than one turn. */
static bool is_interactive(const options *o) { return o->chat && o->prompt == NULL && o->file == NULL; }

static void check_chat(const options *o, struct argp_state *state) {
  if (!o->chat && (o->system != NULL || o->date != NULL)) {
    argp_error(state, "%s needs --chat", o->system != NULL ? "--system" : "--date");
  }
  const char *single = o->json             ? "--json"
                       : o->echo           ? "--echo"
                       : o->compare        ? "--compare"
                       : o->logits != NULL ? "--logits"
                                           : o->trace.path;
  if (is_interactive(o) && single != NULL) {
    argp_error(state, "%s is for one turn; give its text with --prompt or --file",
               single == o->trace.path ? "--trace" : single);
  }
}

static void check_options(const options *o, struct argp_state *state) {
  if (o->program != NULL &&
      (o->model != NULL || o->prompt != NULL || o->file != NULL || mk_is_cuda(o->engine.device))) {
    argp_error(state, "--program goes with neither --model, --prompt and --file nor --device cuda");
  }
  if (o->trace.path != NULL && (o->program != NULL || o->compare)) {
    argp_error(state, "--trace goes with neither --program nor --compare");
  }
  if (o->program != NULL) {
    return;
  }
  if (o->model == NULL) {
    argp_error(state, "--model DIR is missing");
  }
  if (o->prompt != NULL && o->file != NULL) {
    argp_error(state, "--prompt and --file are both given; the prompt comes from one of them");
  }
  check_chat(o, state);
  check_device(o, state);
}

static error_t parse(int key, char *text, struct argp_state *state) {
  options *o = state->input;
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = NULL;
      state->child_inputs[1] = &o->trace;
      return 0;
    case 'm':
      o->model = text;
      return 0;
    case 'p':
      o->prompt = text;
      return 0;
    case 'f':
      o->file = text;
      return 0;
    case 'n':
      o->limited = true;
      o->n_predict = strcmp(text, "-1") == 0 ? SIZE_MAX : mk_number(state, "--n-predict", text, 0, UINT32_MAX);
      return 0;
    case 'c':
      o->ctx_size = mk_number(state, "--ctx-size", text, 0, UINT32_MAX);
      return 0;
    case KEY_STOP:
      add_stop(o, text, state);
      return 0;
    case KEY_IGNORE_EOS:
      o->ignore_eos = true;
      return 0;
    case KEY_JSON:
      o->json = true;
      return 0;
    case KEY_CHAT:
      o->chat = true;
      return 0;
    case KEY_SYSTEM:
      o->system = text;
      return 0;
    case KEY_DATE:
      o->date = text;
      return 0;
    case KEY_ECHO:
      o->echo = true;
      return 0;
    case KEY_LOGITS:
      o->logits = text;
      return 0;
    case KEY_DEVICE:
      o->engine.device = mk_device(state, text);
      return 0;
    case KEY_SMS:
      o->engine.sms = (uint32_t)mk_number(state, "--sms", text, 1, MK_MAX_SMS);
      return 0;
    case KEY_CACHE:
      o->engine.cache = text;
      return 0;
    case KEY_CHECK:
      o->engine.check_races = true;
      return 0;
    case KEY_INTERLEAVE:
      o->engine.interleave_seed = mk_number(state, "--interleave", text, 1, UINT64_MAX);
      return 0;
    case KEY_COMPARE:
      o->compare = true;
      return 0;
    case KEY_PROGRAM:
      o->program = text;
      return 0;
    case KEY_ADVERSARIAL:
      o->engine.adversarial = true;
      return 0;
    case ARGP_KEY_ARG:
      argp_error(state, "'%s' is not expected; a prompt is given with --prompt", text);
      return 0;
    case ARGP_KEY_END:
      check_options(o, state);
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

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

static mk_status read_prompt(const options *o, char **text, size_t *length) {
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
  const options *options;
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
  if (r->options->json || is_interactive(r->options)) {
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

static mk_status run_engine(const options *o, run *r, const mk_config *config, uint32_t context,
                            const mk_tokens *prompt) {
  mk_engine *engine;
  mk_engine_options engine_options = o->engine;
  engine_options.max_seq = context;
  engine_options.want_logits = o->logits != NULL;
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

static mk_status run_model(const options *o, const mk_config *config, uint32_t context, const mk_tokenizer *tokenizer,
                           const char *text, size_t length) {
  mk_tokens prompt = {0};
  run r = {.options = o, .config = config, .stop = {.strings = o->stops, .count = o->stop_count}};
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
  if (o->json) {
    status = mk_report_json(&r.report);
  } else {
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
static mk_status as_conversation(const options *o, char **text, size_t *length) {
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
  const options *options;
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
  const options *o = s->options;
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

static mk_status converse(const options *o, const mk_config *config, uint32_t context, const mk_tokenizer *tokenizer) {
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

mk_status mk_command_run(int argc, char **argv) {
  static const struct argp argp = {option_table, parse, "", doc, mk_traced_options, mk_help_filter, NULL};
  options o = {.n_predict = 128};
  argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, &o);
  if (o.program != NULL) {
    return mk_run_program(o.program, o.n_predict,
                          &(mk_cpu_options){.seed = o.engine.interleave_seed,
                                            .adversarial = o.engine.adversarial,
                                            .check_races = o.engine.check_races});
  }
  mk_config config;
  uint32_t context;
  MK_TRY(mk_config_load(o.model, &config));
  MK_TRY(mk_context_size(o.ctx_size, config.max_position, &context));
  mk_tokenizer *tokenizer;
  MK_TRY(mk_tokenizer_load(o.model, config.vocab, &tokenizer));
  char *text = NULL;
  size_t length;
  mk_status status;
  if (o.chat && !o.limited) {
    o.n_predict = SIZE_MAX;
  }
  if (is_interactive(&o)) {
    status = converse(&o, &config, context, tokenizer);
    mk_tokenizer_free(tokenizer);
    return status;
  }
  status = read_prompt(&o, &text, &length);
  if (status == MK_OK && o.chat) {
    status = as_conversation(&o, &text, &length);
  }
  if (status == MK_OK) {
    status = run_model(&o, &config, context, tokenizer, text, length);
  }
  mk_free(text);
  mk_tokenizer_free(tokenizer);
  return status;
}
