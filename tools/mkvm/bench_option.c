/* See bench_option.h. */
#include "tools/mkvm/bench_option.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/mla.h"
#include "scheduler/compile.h"
#include "tools/lib/bench_sampling.h"
#include "tools/mkvm/command.h"
#include "tools/mkvm/signals.h"

enum {
  KEY_BREAKDOWN = 400,
  KEY_ROWS = 401,
  KEY_LIKE = 256,
  KEY_DEVICE,
  KEY_SMS,
  KEY_RANKS,
  KEY_KV,
  KEY_CACHE,
  KEY_DEADLINE,
  KEY_MLA,
  KEY_NEW,
  KEY_HEADS,
  KEY_FLUSH,
  KEY_SWEEP,
  KEY_MEASURE,
  KEY_COSTS,
  KEY_SAMPLING,
  KEY_WEIGHTS
};
enum {
  DEFAULT_PROMPT = 512,
  DEFAULT_GENERATED = 128,
  SAMPLED_GENERATED = 256,
  SAMPLED_STEPS = 64 /* of several rows */
};

static const struct argp_option option_table[] = {
    {NULL, 0, NULL, 0, "Model (one of the two):", 1},
    {"model", 'm', "DIR", 0, "Model directory in Hugging Face layout", 1},
    {"like", KEY_LIKE, "SHAPE", 0,
     "Hash weights of a known shape, made in memory: no disk, no download; or, with a / in it, of the config.json in "
     "that directory",
     1},
    {"weights", KEY_WEIGHTS, "FORM", 0,
     "What hash weights of the layers are: bf16, fp8, int8 (a scale a row), or int4 (groups of 128) (bf16)", 1},
    {"seed", 's', "SEED", 0, "Seed of the hash weights, and of a load's arrivals and prompts (0)", 1},
    {NULL, 0, NULL, 0, "Tests (N may be a list such as 64,1000,4000; flags may be repeated):", 2},
    {"n-prompt", 'p', "N", 0, "Prompt of N tokens: test ppN (512; 0: none)", 2},
    {"n-gen", 'n', "N", 0, "Generate N tokens: test tgN (128; 0: none)", 2},
    {"n-depth", 'd', "N", 0, "Begin each test after N tokens of context: \"@ dN\" (0)", 2},
    {"repetitions", 'r', "REPS", 0, "Counted launches per test, after one that warms up (10 on cuda, 3 on the cpu)", 2},
    {"rows", KEY_ROWS, "T", 0,
     "On cuda: steps that 2, 4, 8 or 16 sequences share (-n, at most 64 a launch), each at depth N, and prompts in "
     "chunks of T to their first token; 128 to 1024: prompts alone, but with -p 0, where 64 to 512 sequences share a "
     "step. With --load: rows of a step, at most 512 (16)",
     2},
    {"sampling", KEY_SAMPLING, NULL, 0,
     "On cuda: what each way of choosing a token takes over a greedy one, in launches of -n tokens (256), or with "
     "--rows of -n "
     "steps (64)",
     2},
    {"ctx-size", 'c', "L", 0, "Tokens of context to compile for (what the tests take, but at least what run takes)", 2},
    {NULL, 0, NULL, 0, "Attention alone (in the place of a model):", 3},
    {"mla", KEY_MLA, "LENGTHS", 0,
     "Decode attention (MLA) of sequences of these lengths: 4641,45118, 64x512, random:COUNT:LOW:HIGH:SEED", 3},
    {"new", KEY_NEW, "Q", 0, "New tokens of each sequence, 1 to 8 (1)", 3},
    {"heads", KEY_HEADS, "H", 0, "Query heads, 8 to 128 in steps of 8 (16)", 3},
    {"flush", KEY_FLUSH, NULL, 0, "On cuda: also the time of a call by itself, alone and after a flush of the L2", 3},
    {"mla-sweep", KEY_SWEEP, NULL, 0, "On cuda, in the place of --mla: 36 batches, a line each", 3},
    {"mla-costs", KEY_MEASURE, NULL, 0, "On cuda, in the place of --mla: measure what schedules are made by", 3},
    {"costs", KEY_COSTS, "LIST", 0, "Schedule by these costs, as --mla-costs prints them", 3},
    {NULL, 0, NULL, 0, "Output:", 4},
    {"output", 'o', "FORMAT", 0, "md, csv or json (md)", 4},
    {"breakdown", KEY_BREAKDOWN, NULL, 0,
     "After the table: where the time of the last test goes, from one more launch that is recorded (md); with "
     "--sampling that of the last way",
     4},
    {NULL, 0, NULL, 0, "Machine:", 5},
    {"device", KEY_DEVICE, "NAME", 0,
     "cpu, cuda, cuda:N, or GPUs that share a model, cuda:N-M (cuda:0 where it fits, else cpu)", 5},
    {"sms", KEY_SMS, "N", 0, "SMs to compile for (132; on the cpu four for each thread), of each rank", 5},
    {"ranks", KEY_RANKS, "N", 0, "Ranks (GPUs) that share the model (1)", 5},
    {"kv", KEY_KV, "FORM", 0, MK_KV_HELP, 5},
    {"threads", 't', "N", 0, MK_THREADS_HELP, 5},
    {"deadline", KEY_DEADLINE, "MS", 0, MK_DEADLINE_HELP, 5},
    {"cache", KEY_CACHE, "FOLDER", 0,
     "With --model: keep a packed copy of the weights in FOLDER, and load it the next time", 5},
    {0}};

static const char doc[] =
    "Measures tokens per second and prints llama-bench's table, with milliseconds per token, the bytes that a token "
    "reads, "
    "and the share of the read bandwidth measured in the same run. Every combination of test and depth is a row."
    "\v"
    "A repetition is one launch of the kernel: all its tokens, with embedding, head, sampling and the token loop "
    "inside.\n\n"
    "  test       ppN: a prompt's tokens, one step each (on the cpu sixteen, as in run); tgN: N generated tokens\n"
    "  t/s        mean and deviation over the launches, timed by GPU events\n"
    "  ms         p50 and p99 between two tokens as they reach the host\n"
    "  MB/token   weight tiles, and keys and values at the mean position\n"
    "  read TB/s  best of three plain reads of 8 GiB right after the test\n"
    "  % read     MB/token over the median launch's time per token, of that\n\n"
    "Depth: on cuda a launch starts at position N right away, with hash values in the KV cache, which takes the time "
    "that "
    "real keys and values take; no prompt is run for it. On the cpu the context is computed, untimed, and prompts "
    "are measured at depth 0 only. The cpu has the columns t/s and ms alone.\n\n"
    "--sampling: two programs of the same weights, one of them greedy. In each of -r rounds, every launch that samples "
    "stands between two greedy ones, whose mean it is compared with.\n\n"
    "Shapes: " MK_HELP_SHAPES
    ".\n\n"
    "--load: requests arrive at one engine at --rate, --concurrency at a time, or all at once, with prompts of random "
    "tokens; nothing but its length ends one. Times count from arrival; in the queue is a request until it begins. On "
    "cuda, idle is the part of the time with work in which no kernel ran: neither a step's nor the one that ranks "
    "tokens "
    "for log-probabilities. Ctrl-C ends it with what was measured.\n\n"
    "In csv and json, columns that llama-bench has too have its names (avg_ts, n_gen, n_depth, ...).\n\n"
    "Examples:\n"
    "  mkvm bench --like llama-3.2-1b -p 0 -n 128 -d 64,1000,4000,16000\n"
    "  mkvm bench -m DIR -o json > result.json\n"
    "  mkvm bench --like llama-3.2-1b --sampling\n"
    "  mkvm bench --like llama-3.2-1b --load --rate 20 --requests 400 --in 512 --out 128\n"
    "  mkvm bench --mla 4641,45118,1730,1696 --new 4 --heads 16 --device cpu\n";

static void add_values(mk_bench_list *to, const char *flag, const char *text, uint64_t low, struct argp_state *state) {
  char part[24];
  for (const char *at = text;; at++) {
    size_t length = strcspn(at, ",");
    snprintf(part, sizeof part, "%.*s", (int)(length < sizeof part ? length : sizeof part - 1), at);
    uint64_t value = mk_number(state, flag, part, low, MK_MAX_POSITION);
    if (to->count == MK_BENCH_VALUES) {
      argp_error(state, "%s: more than %d values", flag, MK_BENCH_VALUES);
      exit(MK_ERR_USAGE);
    }
    to->values[to->count++] = (uint32_t)value;
    at += length;
    if (*at == '\0') {
      return;
    }
  }
}

static mk_bench_format output_format(const char *text, struct argp_state *state) {
  static const char *const names[] = {[MK_BENCH_MD] = "md", [MK_BENCH_CSV] = "csv", [MK_BENCH_JSON] = "json"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (strcmp(text, names[i]) == 0) {
      return (mk_bench_format)i;
    }
  }
  argp_error(state, "--output: '%s' is not a format; formats are md, csv and json", text);
  exit(MK_ERR_USAGE);
}

static void set_default(mk_bench_list *values, uint32_t value) {
  if (values->count == 0) {
    values->values[values->count++] = value;
  }
}

bool mk_bench_option_is_mla(const mk_bench_option *o) {
  return o->mla.lengths != NULL || o->mla.sweep || o->mla.measure;
}

static void check_mla(const mk_bench_option *o, struct argp_state *state) {
  bool other = o->model != NULL || o->like != NULL || o->cache != NULL || o->seeded || o->breakdown ||
               o->prompts.count + o->generated.count + o->depths.count != 0 || o->repetitions != 0 ||
               o->ctx_size != 0 || o->threads != 0 || o->ranks != 0;
  if (other) {
    argp_error(state, "--mla goes with --new, --heads, --flush, --costs, --output, --device, --sms and --trace alone");
  }
  mk_trace_option_check(&o->trace, state);
  if (o->trace.path != NULL && o->mla.lengths == NULL) {
    argp_error(state, "--mla-sweep and --mla-costs are many launches; --trace needs one batch, --mla LENGTHS");
  }
  if (o->kv != MK_DTYPE_BF16) {
    argp_error(state, "--kv %s: the latent cache of MLA is of bf16 alone, so far", mk_kv_name(o->kv));
  }
  if ((o->mla.lengths != NULL) + o->mla.sweep + o->mla.measure != 1) {
    argp_error(state, "--mla, --mla-sweep and --mla-costs: one at a time");
  }
  if (o->mla.flush && o->device != NULL && strcmp(o->device, "cpu") == 0) {
    argp_error(state, "--flush: times are measured on cuda");
  }
}

static void check_load(const mk_bench_option *o, struct argp_state *state) {
  bool other = o->sampling || o->breakdown || o->repetitions != 0 ||
               o->prompts.count + o->generated.count + o->depths.count != 0;
  if (o->load.load && (other || mk_bench_option_is_mla(o))) {
    argp_error(state, "--load goes without other tests and --breakdown; lengths are given by --in and --out");
  }
}

static void check_process(mk_bench_option *o, struct argp_state *state) {
  const mk_process_option *p = &o->process;
  mk_process_option_check(&o->process, o->ranks, o->device, state);
  mk_process_option_refuse(p, mk_bench_option_is_mla(o), "--mla", "which has one GPU", state);
  mk_process_option_refuse(p, o->sampling, "--sampling", "which has the model open twice", state);
  mk_process_option_refuse(p, o->trace.path != NULL || o->breakdown, "--trace and --breakdown", "which record one rank",
                           state);
  if (o->load.load) { /* which ends in order */
    o->process.group.stop = &mk_interrupted;
  }
}

static void check_options(mk_bench_option *o, struct argp_state *state) {
  check_process(o, state);
  check_load(o, state);
  o->format = o->load.json ? MK_BENCH_JSON : o->format;
  if (mk_bench_option_is_mla(o)) {
    check_mla(o, state);
    return;
  }
  if (o->mla.new_tokens != 0 || o->mla.heads != 0 || o->mla.flush || o->mla.costs != NULL) {
    argp_error(state, "--new, --heads, --flush and --costs need --mla LENGTHS");
  }
  if ((o->model == NULL) == (o->like == NULL)) {
    argp_error(state, o->model == NULL ? "--model DIR or --like SHAPE is missing"
                                       : "--model and --like are both given; the weights come from one of them");
  }
  if (o->seeded && o->like == NULL && !o->load.load) {
    argp_error(state, "--seed needs --like SHAPE: a model directory has its weights");
  }
  if (o->weights != MK_CODES_NONE && o->like == NULL) {
    argp_error(state, "--weights needs --like SHAPE: a model directory says what its weights are");
  }
  if (o->threads != 0 && mk_is_cuda(o->device)) {
    argp_error(state, "--device %s does not go with --threads, which are the cpu's", o->device);
  }
  if (o->cache != NULL && o->like != NULL) {
    argp_error(state, "--cache needs --model DIR: hash weights are made faster than they are read");
  }
  if (o->trace.refined && o->trace.path == NULL && !o->breakdown) {
    argp_error(state, "--trace-steps, --trace-from and --trace-records need --trace FILE or --breakdown");
  }
  if (o->breakdown && o->format != MK_BENCH_MD) {
    argp_error(state, "--breakdown is text; it goes with --output md alone");
  }
  if (o->sampling &&
      (o->rows > MK_MOST_DRAWING_ROWS || o->prompts.count + o->depths.count != 0 || o->generated.count > 1)) {
    argp_error(state, "--sampling goes with one -n and at most %d rows, and without other tests", MK_MOST_DRAWING_ROWS);
  }
  set_default(&o->generated, o->sampling ? (o->rows > 1 ? SAMPLED_STEPS : SAMPLED_GENERATED) : DEFAULT_GENERATED);
  set_default(&o->prompts, o->sampling ? 0 : DEFAULT_PROMPT);
  set_default(&o->depths, o->sampling ? MK_BENCH_SAMPLING_PROMPT : 0);
}

static const char *const weights_forms[] = {
    [MK_CODES_NONE] = "bf16", [MK_CODES_E4M3] = "fp8", [MK_CODES_INT8] = "int8", [MK_CODES_INT4] = "int4"};

const char *mk_bench_weights_name(mk_codes weights) { return weights_forms[weights]; }

static mk_codes weights_form(const char *text, struct argp_state *state) {
  for (int i = MK_CODES_NONE; i <= MK_CODES_INT4; i++) {
    if (strcmp(text, weights_forms[i]) == 0) {
      return (mk_codes)i;
    }
  }
  argp_error(state, "--weights %s: it is one of bf16, fp8, int8 and int4", text);
  return MK_CODES_NONE;
}

static error_t parse(int key, char *text, struct argp_state *state) {
  mk_bench_option *o = state->input;
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = NULL;
      state->child_inputs[1] = &o->trace;
      state->child_inputs[2] = &o->load;
      state->child_inputs[3] = &o->process;
      return 0;
    case 'm':
      o->model = text;
      return 0;
    case KEY_LIKE:
      o->like = text;
      return 0;
    case 's':
      o->seed = mk_number(state, "--seed", text, 0, UINT64_MAX);
      o->seeded = true;
      return 0;
    case 'p':
      add_values(&o->prompts, "--n-prompt", text, 0, state);
      return 0;
    case 'n':
      add_values(&o->generated, "--n-gen", text, 0, state);
      return 0;
    case 'd':
      add_values(&o->depths, "--n-depth", text, 0, state);
      return 0;
    case 'r':
      o->repetitions = (uint32_t)mk_number(state, "--repetitions", text, 1, 100000);
      return 0;
    case 't':
      o->threads = mk_threads(state, text);
      return 0;
    case KEY_ROWS:
      o->rows = mk_rows_number(state, text);
      return 0;
    case KEY_SAMPLING:
      o->sampling = true;
      return 0;
    case 'c':
      o->ctx_size = mk_number(state, "--ctx-size", text, 0, UINT32_MAX);
      return 0;
    case 'o':
      o->format = output_format(text, state);
      return 0;
    case KEY_BREAKDOWN:
      o->breakdown = true;
      return 0;
    case KEY_DEVICE:
      o->device = mk_device(state, text);
      return 0;
    case KEY_RANKS:
      o->ranks = (uint32_t)mk_number(state, "--ranks", text, 1, MK_MAX_RANKS);
      return 0;
    case KEY_SMS:
      o->sms = (uint32_t)mk_number(state, "--sms", text, 1, MK_MAX_SMS);
      return 0;
    case KEY_KV:
      o->kv = mk_kv(state, text);
      return 0;
    case KEY_WEIGHTS:
      o->weights = weights_form(text, state);
      return 0;
    case KEY_CACHE:
      o->cache = text;
      return 0;
    case KEY_DEADLINE:
      o->deadline_ms = mk_deadline(state, text);
      return 0;
    case KEY_MLA:
      o->mla.lengths = text;
      return 0;
    case KEY_NEW:
      o->mla.new_tokens = (uint32_t)mk_number(state, "--new", text, 1, MK_MLA_MOST_TOKENS);
      return 0;
    case KEY_HEADS:
      o->mla.heads = (uint32_t)mk_number(state, "--heads", text, 1, MK_MLA_MOST_HEADS);
      return 0;
    case KEY_SWEEP:
      o->mla.sweep = true;
      return 0;
    case KEY_MEASURE:
      o->mla.measure = true;
      return 0;
    case KEY_COSTS:
      o->mla.costs = text;
      return 0;
    case KEY_FLUSH:
      o->mla.flush = true;
      return 0;
    case ARGP_KEY_ARG:
      argp_error(state, "'%s' is not expected; a model is given with --model or --like", text);
      return 0;
    case ARGP_KEY_END:
      check_options(o, state);
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

void mk_bench_option_parse(int argc, char **argv, mk_bench_option *o) {
  const struct argp_child children[] = {mk_traced_options[0],
                                        mk_traced_options[1],
                                        {&mk_bench_load_argp, 0, "A load (--load):", 3},
                                        {&mk_process_argp, 0, "Ranks that are processes:", 6},
                                        {0}};
  const struct argp argp = {option_table, parse, "", doc, children, mk_help_filter, NULL};
  *o = (mk_bench_option){0};
  argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, o);
}
