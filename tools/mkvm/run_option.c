/* See run_option.h. */
#include "tools/mkvm/run_option.h"

#include <stdlib.h>
#include <string.h>

#include "scheduler/compile.h"
#include "tools/mkvm/chat.h"
#include "tools/mkvm/command.h"
#include "tools/mkvm/signals.h"

enum {
  KEY_SMS = 256,
  KEY_RANKS,
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
  KEY_DEADLINE,
  KEY_CHAT,
  KEY_SYSTEM,
  KEY_DATE,
  KEY_VARIABLES,
  KEY_ROWS,
  KEY_KV
};

static const struct argp_option option_table[] = {
    {NULL, 0, NULL, 0, "Model and prompt:", 1},
    {"model", 'm', "DIR", 0, "Model directory in Hugging Face layout (required)", 1},
    {"prompt", 'p', "TEXT", 0,
     "Prompt; without this and --file it is what standard input holds, unless that is a terminal: then it is empty. "
     "Given "
     "several times: all are answered, each on its own",
     1},
    {"file", 'f', "FILE", 0, "Read the prompt from FILE, from standard input when FILE is -; at most 16 MiB", 1},
    {"program", KEY_PROGRAM, "FILE", 0,
     "Instead of a model: run a program file by itself on the cpu, with made-up weights, for N steps, and print its "
     "outputs",
     1},
    {"chat", KEY_CHAT, NULL, 0,
     "Write the prompt as a conversation, by the model's chat template; without --prompt and --file, hold one: a line "
     "of "
     "standard input is a turn",
     1},
    {"system", KEY_SYSTEM, "TEXT", 0, "With --chat: the system prompt", 1},
    {"date", KEY_DATE, "YYYY-MM-DD", 0, "With --chat: the date for templates that state it (today)", 1},
    {"chat-variables", KEY_VARIABLES, "JSON", 0,
     "With --chat: further variables of the template, such as '{\"enable_thinking\": false}'", 1},
    {NULL, 0, NULL, 0, "Generation:", 2},
    {"n-predict", 'n', "N", 0,
     "Tokens to generate (128; with --chat max_new_tokens of generation_config.json, else -1); -1: until the model "
     "stops "
     "or the context is full",
     2},
    {"ctx-size", 'c', "L", 0, "Tokens of context, prompt included (the model's limit, at most 4096; so does 0)", 2},
    {"stop", KEY_STOP, "TEXT", 0,
     "End the output before TEXT, in which \\n, \\t, \\\\ and \\x41 are read as in C; may be given several times", 2},
    {"ignore-eos", KEY_IGNORE_EOS, NULL, 0, "Go on after an end-of-text token", 2},
    {NULL, 0, NULL, 0, "Output:", 3},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object at the end instead of the text", 3},
    {"echo", KEY_ECHO, NULL, 0, "Print the prompt before its continuation", 3},
    {"logits", KEY_LOGITS, "FILE", 0,
     "Write the logits of every generated token to FILE, as .npy of float32 [tokens, vocabulary]", 3},
    {NULL, 0, NULL, 0, "Machine:", 4},
    {"device", KEY_DEVICE, "NAME", 0,
     "cpu, cuda, cuda:N, or GPUs that share a model, cuda:N-M (cuda:0 where it fits, else cpu)", 4},
    {"sms", KEY_SMS, "N", 0,
     "SMs to compile for (132; on the cpu four for each thread), of each rank; the result does not depend on it", 4},
    {"ranks", KEY_RANKS, "N", 0,
     "Ranks that share the model: GPUs, from cuda:0 or the cuda:N of --device on, or simulated by the cpu (1); the "
     "result does not depend on it",
     4},
    {"rows", KEY_ROWS, "T", 0,
     "Tokens that a step computes: of the prompt or of several prompts 1, 2, 4, 8 or 16, of one prompt 64, 128, 256, "
     "512 or 1024 (what suits; sampling from one prompt on cuda: 1); 64 on the cpu alone",
     4},
    {"kv", KEY_KV, "FORM", 0, MK_KV_HELP, 4},
    {"threads", 't', "N", 0, MK_THREADS_HELP, 4},
    {"deadline", KEY_DEADLINE, "MS", 0, MK_DEADLINE_HELP, 4},
    {"cache", KEY_CACHE, "FOLDER", 0,
     "Keep a packed copy of the weights in FOLDER (as large as they are), and load it the next time", 4},
    {"compare", KEY_COMPARE, NULL, 0,
     "Run every instruction of every step on the cpu too, with the device's own inputs, and name the first output that "
     "is "
     "off; prints a table instead of the text",
     4},
    {"check", KEY_CHECK, NULL, 0, "Detect unordered accesses while running (cpu; slow)", 4},
    {"interleave", KEY_INTERLEAVE, "SEED", 0, "Run the queues in a random legal order (cpu)", 4},
    {"adversarial", KEY_ADVERSARIAL, NULL, 0,
     "Let SMs lag, and relaxed counters pass before the data they announce (cpu)", 4},
    {0}};

static const char doc[] =
    "Generates text from a prompt, token by token, and streams it to standard output. Standard error says at the start "
    "what "
    "weights and KV cache are where they are not bf16, and on a terminal always; a closing line there states the "
    "device "
    "and the time it took. The first Ctrl-C ends the "
    "generation with what there is; a second one "
    "kills. On cuda the whole generation is one launch; with --logits or --logprobs, the prompt is one and every token "
    "another."
    "\v"
    "The object that --json prints has the keys model, device, prompt_tokens, tokens, text, finish_reason (\"stop\": "
    "the "
    "model or a stop text ended it; \"length\": N tokens or the context are full; \"interrupted\"), sampling (null: "
    "greedy) and timings; "
    "with --logprobs also logprobs. With several prompts it is {\"sequences\": [...]}, in their order; one that failed "
    "has "
    "the finish_reason \"error\" and a key error.\n\n"
    "Several prompts are answered side by side, up to sixteen of them in a step; one after the other with "
    "--rows 1. Each answer is the one that the prompt gets alone, to the bit. Each is printed when it is finished, "
    "under a line "
    "that names its prompt.\n\n"
    "In a conversation, Ctrl-C ends the answer at hand, and twice, or Ctrl-D, the program. Special tokens are "
    "recognised in "
    "what the user writes too, as in the template: text that must not act as one has to be kept from the prompt.\n\n"
    "Examples:\n"
    "  mkvm run -m models/demo -p \"Once upon a time\" -n 200\n"
    "  mkvm run -m DIR -f question.txt --stop \"\\nQ:\" --json\n"
    "  git log -5 | mkvm run -m DIR -n 50\n"
    "  mkvm run -m DIR --chat --system \"Answer in one sentence.\"\n";

static int hex_digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

/* \n, \t, \\ and \x41 in the text of --stop, in place: what they stand for is never longer. */
static void unescape_stop(char *text, struct argp_state *state) {
  char *out = text;
  for (const char *at = text; *at != 0; at++) {
    if (*at != '\\') {
      *out++ = *at;
      continue;
    }
    at++;
    int high = *at == 'x' ? hex_digit(at[1]) : -1, low = high < 0 ? -1 : hex_digit(at[2]);
    if (low >= 0 && high + low == 0) {
      argp_error(state, "--stop: \\x00 is a byte that no stop text may have");
    }
    if (low >= 0) {
      *out++ = (char)(16 * high + low);
      at += 2;
    } else if (*at == 'n' || *at == 't' || *at == '\\') {
      *out++ = *at == 'n' ? '\n' : *at == 't' ? '\t' : '\\';
    } else {
      argp_error(state, "--stop: '\\%.*s' is not an escape; there are \\n, \\t, \\\\ and, with two hex digits, \\x41",
                 *at == 'x' ? 3 : 1, at);
    }
  }
  *out = 0;
}

static void add_stop(mk_run_option *o, char *text, struct argp_state *state) {
  if (text[0] == 0) {
    argp_error(state, "--stop: the text is empty; it would end every output");
  }
  if (o->stop_count == MK_RUN_STOPS) {
    argp_error(state, "--stop: given more than %d times", MK_RUN_STOPS);
  }
  unescape_stop(text, state);
  o->stops[o->stop_count++] = text;
}

static void check_device(const mk_run_option *o, struct argp_state *state) {
  const mk_engine_options *e = &o->engine;
  if (mk_is_cuda(e->device) && (e->check_races || e->interleave_seed != 0 || e->adversarial)) {
    argp_error(state, "--device %s does not go with%s%s%s, which only the cpu has", e->device,
               e->check_races ? " --check" : "", e->interleave_seed != 0 ? " --interleave" : "",
               e->adversarial ? " --adversarial" : "");
  }
  if (e->threads > 1 && (e->check_races || e->interleave_seed != 0 || e->adversarial)) {
    argp_error(state, "--threads %u does not go with --check, --interleave and --adversarial, which take one",
               e->threads);
  }
  if (e->threads != 0 && mk_is_cuda(e->device)) {
    argp_error(state, "--device %s does not go with --threads, which are the cpu's", e->device);
  }
}

static void add_prompt(mk_run_option *o, const char *text, struct argp_state *state) {
  if (o->prompt_count == MK_RUN_PROMPTS) {
    argp_error(state, "--prompt: given more than %d times", MK_RUN_PROMPTS);
  }
  o->prompts[o->prompt_count++] = text;
}

static void check_rows(const mk_run_option *o, struct argp_state *state) {
  const char *single = o->compare ? "--compare" : o->logits != NULL ? "--logits" : NULL;
  if (o->rows > 1 && o->compare) {
    argp_error(state, "--rows %u does not go with --compare", o->rows);
  }
  if (o->prompt_count > 1 && single != NULL) {
    argp_error(state, "%s is for one prompt; %zu are given", single, o->prompt_count);
  }
}

bool mk_run_is_interactive(const mk_run_option *o) { return o->chat && o->prompt_count == 0 && o->file == NULL; }

static void check_chat(const mk_run_option *o, struct argp_state *state) {
  const char *needs = o->system != NULL      ? "--system"
                      : o->date != NULL      ? "--date"
                      : o->variables != NULL ? "--chat-variables"
                                             : NULL;
  if (!o->chat && needs != NULL) {
    argp_error(state, "%s needs --chat", needs);
  }
  const char *single = o->json                ? "--json"
                       : o->echo              ? "--echo"
                       : o->compare           ? "--compare"
                       : o->logits != NULL    ? "--logits"
                       : o->sampling.logprobs ? "--logprobs"
                                              : NULL;
  if (mk_run_is_interactive(o) && single != NULL) {
    argp_error(state, "%s is for one turn; give its text with --prompt or --file", single);
  }
}

/* All ranks need to know the prompt, whose length decides the program: a launcher gives its input to one of them. */
static void check_process(mk_run_option *o, struct argp_state *state) {
  const bool from_input = (o->prompt_count == 0 && o->file == NULL && !mk_run_is_interactive(o)) ||
                          (o->file != NULL && strcmp(o->file, "-") == 0);
  mk_process_option_check(&o->process, o->engine.ranks, o->engine.device, state);
  mk_process_option_refuse(&o->process, o->program != NULL, "--program", "which runs on the cpu", state);
  mk_process_option_refuse(&o->process, o->compare, "--compare", "which has one process", state);
  mk_process_option_refuse(&o->process, o->trace.path != NULL, "--trace", "which records one rank", state);
  mk_process_option_refuse(&o->process, from_input, "a prompt on standard input",
                           "which one rank alone reads; give it by --prompt or --file", state);
  o->process.group.stop = &mk_interrupted;
  o->engine.process = mk_process_option_group(&o->process);
}

static void check_options(mk_run_option *o, struct argp_state *state) {
  if (o->program != NULL &&
      (o->model != NULL || o->prompt_count != 0 || o->file != NULL || mk_is_cuda(o->engine.device))) {
    argp_error(state, "--program goes with neither --model, --prompt and --file nor --device cuda");
  }
  mk_trace_option_check(&o->trace, state);
  if (o->program != NULL && o->engine.kv != MK_DTYPE_BF16) {
    argp_error(state, "--kv goes with --model; a program says itself what its cache is");
  }
  if (o->sampling.given && (o->program != NULL || o->compare)) {
    argp_error(state, "%s is greedy; leave the sampling options out", o->compare ? "--compare" : "--program");
  }
  check_device(o, state);
  if (o->program != NULL) {
    check_process(o, state);
    return;
  }
  if (o->model == NULL) {
    argp_error(state, "--model DIR is missing");
  }
  if (o->prompt_count != 0 && o->file != NULL) {
    argp_error(state, "--prompt and --file are both given; the prompt comes from one of them");
  }
  check_chat(o, state);
  check_rows(o, state);
  check_process(o, state);
}

static error_t parse(int key, char *text, struct argp_state *state) {
  mk_run_option *o = state->input;
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = NULL;
      state->child_inputs[1] = &o->trace;
      state->child_inputs[2] = &o->sampling;
      state->child_inputs[3] = &o->process;
      return 0;
    case 'm':
      o->model = text;
      return 0;
    case 'p':
      add_prompt(o, text, state);
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
    case KEY_VARIABLES:
      o->variables = text;
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
    case KEY_RANKS:
      o->engine.ranks = (uint32_t)mk_number(state, "--ranks", text, 1, MK_MAX_RANKS);
      return 0;
    case KEY_SMS:
      o->engine.sms = (uint32_t)mk_number(state, "--sms", text, 1, MK_MAX_SMS);
      return 0;
    case 't':
      o->engine.threads = mk_threads(state, text);
      return 0;
    case KEY_ROWS:
      o->rows = mk_rows_number(state, text);
      return 0;
    case KEY_KV:
      o->engine.kv = mk_kv(state, text);
      return 0;
    case KEY_CACHE:
      o->engine.cache = text;
      return 0;
    case KEY_DEADLINE:
      o->engine.gpu_deadline_ms = mk_deadline(state, text);
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

void mk_run_option_parse(int argc, char **argv, mk_run_option *option) {
  const struct argp_child children[] = {mk_traced_options[0],
                                        mk_traced_options[1],
                                        {&mk_sampling_argp, 0, "Sampling:", 2},
                                        {&mk_process_argp, 0, "Ranks that are processes:", 5},
                                        {0}};
  const struct argp argp = {option_table, parse, "", doc, children, mk_help_filter, NULL};
  *option = (mk_run_option){.n_predict = 128};
  argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, option);
}

void mk_run_option_free(mk_run_option *option) { mk_sampling_option_free(&option->sampling); }
