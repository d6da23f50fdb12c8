/* See bench_load.h. */
#include "tools/mkvm/bench_load.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/prompt.h"
#include "scheduler/compile.h"
#include "tools/mkvm/command.h"
#include "tools/mkvm/signals.h"

enum {
  KEY_LOAD = 500,
  KEY_RATE,
  KEY_CONCURRENCY,
  KEY_REQUESTS,
  KEY_IN,
  KEY_OUT,
  KEY_LENGTHS,
  KEY_SHARED,
  KEY_PREFIX,
  KEY_PROMPT_TOKENS,
  KEY_PROMPT_SLOTS,
  KEY_DECODE_STEPS,
  KEY_KV,
  KEY_DECODE_ONLY,
  KEY_LOGPROBS,
  KEY_JSON
};
enum { DEFAULT_REQUESTS = 64, DEFAULT_IN = 512, DEFAULT_OUT = 128, DECODE_ONLY_OUT = 1024, MOST_REQUESTS = 1000000 };

static const struct argp_option option_table[] = {
    {"load", KEY_LOAD, NULL, 0, "Requests that arrive at one engine: how long each waits and takes", 0},
    {"rate", KEY_RATE, "R", 0, "R requests a second, at random (Poisson; all at once)", 0},
    {"concurrency", KEY_CONCURRENCY, "N", 0, "N requests at a time, a new one when one ends (all at once)", 0},
    {"requests", KEY_REQUESTS, "N", 0, "Requests that count, after two that warm up (64)", 0},
    {"in", KEY_IN, "T", 0, "Tokens of a prompt (512)", 0},
    {"out", KEY_OUT, "T", 0, "Tokens that a request generates (128; with --decode-only 1024)", 0},
    {"lengths", KEY_LENGTHS, "FILE", 0, "In place of both: a JSON array of [in, out] pairs, dealt in turn", 0},
    {"shared", KEY_SHARED, "T", 0, "First tokens of a prompt that all requests have in common (0)", 0},
    {"prefix-tokens", KEY_PREFIX, "T", 0, "Keep keys and values of T tokens of ended requests (0)", 0},
    {"prompt-tokens", KEY_PROMPT_TOKENS, "T", 0, "Tokens of prompts in a launch while others wait (512)", 0},
    {"prompt-slots", KEY_PROMPT_SLOTS, "N", 0,
     "On cuda: prompts that may share a step, 1 to 64 (1); several have steps of 512", 0},
    {"decode-steps", KEY_DECODE_STEPS, "N", 0,
     "Steps of a launch while prompts wait (8), fewer where they have more than 16 rows", 0},
    {"kv-tokens", KEY_KV, "T", 0, "Tokens of KV cache that all requests share (a whole context for each row)", 0},
    {"decode-only", KEY_DECODE_ONLY, NULL, 0,
     "Prompts of one token, as many requests at a time as there are rows: what generating alone reaches", 0},
    {"logprobs", KEY_LOGPROBS, "N", 0, "Log-probabilities of every generated token and the N most probable, 0 to 20",
     0},
    {"json", KEY_JSON, NULL, 0, "As --output json", 0},
    {0}};

static double rate_of(struct argp_state *state, const char *text) {
  char *end;
  double rate = strtod(text, &end);
  if (end == text || *end != '\0' || !isfinite(rate) || !(rate >= 1e-3 && rate <= 1e6)) {
    argp_error(state, "--rate: '%s' is not a number of requests a second from 0.001 to 1000000", text);
    exit(MK_ERR_USAGE);
  }
  return rate;
}

static uint32_t tokens_of(struct argp_state *state, const char *flag, const char *text, uint64_t low) {
  return (uint32_t)mk_number(state, flag, text, low, MK_MAX_POSITION);
}

static void check_option(const mk_bench_load_option *o, struct argp_state *state) {
  if (!o->load && o->given) {
    argp_error(state, "--rate, --requests, --in, --out and the other flags of a load need --load");
  }
  if (o->rate > 0 && o->concurrency != 0) {
    argp_error(state, "--rate and --concurrency: requests come by the one or by the other");
  }
  if (o->lengths != NULL && (o->in != 0 || o->out != 0)) {
    argp_error(state, "--lengths goes without --in and --out");
  }
  if (o->decode_only && (o->rate > 0 || o->lengths != NULL || o->in != 0 || o->shared != 0)) {
    argp_error(state, "--decode-only goes without --rate, --lengths, --in and --shared: its prompts have one token");
  }
}

static error_t parse(int key, char *text, struct argp_state *state) {
  mk_bench_load_option *o = state->input;
  switch (key) {
    case KEY_LOAD:
      o->load = true;
      return 0;
    case KEY_JSON:
      o->json = true;
      return 0;
    case KEY_RATE:
      o->rate = rate_of(state, text);
      break;
    case KEY_CONCURRENCY:
      o->concurrency = (uint32_t)mk_number(state, "--concurrency", text, 1, MOST_REQUESTS);
      break;
    case KEY_REQUESTS:
      o->requests = (uint32_t)mk_number(state, "--requests", text, 1, MOST_REQUESTS);
      break;
    case KEY_IN:
      o->in = tokens_of(state, "--in", text, 1);
      break;
    case KEY_OUT:
      o->out = tokens_of(state, "--out", text, 1);
      break;
    case KEY_LENGTHS:
      o->lengths = text;
      break;
    case KEY_SHARED:
      o->shared = tokens_of(state, "--shared", text, 0);
      break;
    case KEY_PREFIX:
      o->prefix_tokens = mk_number(state, "--prefix-tokens", text, 0, UINT32_MAX);
      break;
    case KEY_PROMPT_TOKENS:
      o->prompt_tokens = tokens_of(state, "--prompt-tokens", text, 1);
      break;
    case KEY_PROMPT_SLOTS:
      o->prompt_slots = (uint32_t)mk_number(state, "--prompt-slots", text, 1, 64);
      break;
    case KEY_DECODE_STEPS:
      o->decode_steps = tokens_of(state, "--decode-steps", text, 1);
      break;
    case KEY_KV:
      o->kv_tokens = mk_number(state, "--kv-tokens", text, MK_BLOCK_TOKENS, UINT32_MAX);
      break;
    case KEY_DECODE_ONLY:
      o->decode_only = true;
      break;
    case KEY_LOGPROBS:
      o->logprobs = true;
      o->most_logprobs = (uint32_t)mk_number(state, "--logprobs", text, 0, MK_MOST_RANKED);
      break;
    case ARGP_KEY_END:
      check_option(o, state);
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
  o->given = true;
  return 0;
}

const struct argp mk_bench_load_argp = {.options = option_table, .parser = parse};

/* ---- Before ---- */

static mk_status choose_context(const mk_load_length *lengths, size_t count, uint64_t ctx_size, const mk_config *config,
                                uint32_t *out) {
  uint64_t need = 0;
  size_t which = 0;
  for (size_t i = 0; i < count; i++) {
    uint64_t tokens = (uint64_t)lengths[i].in + lengths[i].out;
    which = tokens > need ? i : which;
    need = tokens > need ? tokens : need;
  }
  MK_TRY(mk_context_size(ctx_size, config, out));
  uint32_t most = ctx_size == 0 ? config->max_position : *out;
  if (need > most) {
    return mk_error(MK_ERR_USAGE,
                    "length %zu: a prompt of %u tokens and %u generated do not fit into a context of %u; %s", which,
                    lengths[which].in, lengths[which].out, most,
                    ctx_size == 0 ? "this model has no larger one" : "raise --ctx-size");
  }
  *out = ctx_size == 0 ? (uint32_t)need : *out; /* no larger than needed: every row takes KV cache for so many tokens */
  return MK_OK;
}

static mk_status lengths_of(const mk_bench_load_option *o, mk_load_length **out, size_t *count) {
  if (o->lengths != NULL) {
    return mk_load_lengths(o->lengths, out, count);
  }
  uint32_t usual = o->decode_only ? DECODE_ONLY_OUT : DEFAULT_OUT;
  MK_TRY(mk_alloc(1, sizeof **out, out));
  *count = 1;
  **out = (mk_load_length){.in = o->decode_only ? 1
                                 : o->in != 0   ? o->in
                                                : DEFAULT_IN,
                           .out = o->out != 0 ? o->out : usual};
  return MK_OK;
}

static double clock_of(void *load) { return mk_load_clock(load); }

static void prepare_engine(const mk_bench_load_option *o, uint32_t rows, const mk_load_length *lengths, size_t count,
                           mk_engine_options *open) {
  open->rows = rows == 0 ? MK_MAX_ROWS : rows;
  open->slots = open->rows;
  open->rows_or_fewer = rows == 0;
  for (size_t i = 0; i < count && open->rows > 1; i++) {
    open->long_prompts = open->long_prompts || lengths[i].in > MK_LONG_PROMPT;
  }
  open->kv_blocks = (uint32_t)((o->kv_tokens + MK_BLOCK_TOKENS - 1) / MK_BLOCK_TOKENS);
  open->prefix_tokens = o->prefix_tokens;
  open->prompt_tokens = o->prompt_tokens;
  open->prompt_slots = o->prompt_slots;
  open->decode_steps = o->decode_steps;
}

mk_status mk_bench_load_prepare(const mk_bench_load_option *o, uint64_t seed, uint32_t rows, uint64_t ctx_size,
                                const mk_config *config, mk_engine_options *open, mk_load **out) {
  mk_load_length *lengths;
  size_t count;
  *out = NULL;
  if (rows > MK_MOST_SHARED_ROWS) {
    return mk_error(MK_ERR_USAGE, "--rows %u: a load is shared by %d rows at most", rows, MK_MOST_SHARED_ROWS);
  }
  MK_TRY(lengths_of(o, &lengths, &count));
  mk_status status = choose_context(lengths, count, ctx_size, config, &open->max_seq);
  prepare_engine(o, rows, lengths, count, open);
  uint32_t side_by_side = o->decode_only && o->concurrency == 0 ? open->rows : o->concurrency;
  const mk_load_options load = {.requests = o->requests != 0 ? o->requests
                                            : o->decode_only ? side_by_side
                                                             : DEFAULT_REQUESTS,
                                .lengths = lengths,
                                .length_count = count,
                                .shared = o->shared,
                                .rate = o->rate,
                                .concurrency = side_by_side,
                                .seed = seed,
                                .logprobs = o->logprobs,
                                .most_logprobs = o->most_logprobs,
                                .cancel = &mk_interrupted};
  status = status == MK_OK ? mk_load_new(&load, out) : status;
  mk_free(lengths);
  open->poll = mk_load_poll;
  open->poll_user = open->clock_user = *out;
  open->clock = clock_of;
  return status;
}

/* ---- After ---- */

static void load_name(const mk_bench_load_option *o, char *text, size_t size) {
  if (o->rate > 0) {
    snprintf(text, size, "%g requests/s", o->rate);
  } else if (o->concurrency != 0) {
    snprintf(text, size, "%u at a time", o->concurrency);
  } else {
    snprintf(text, size, "%s", o->decode_only ? "decode only" : "all at once");
  }
}

static double hit_share(const mk_load_result *r) {
  return r->prompt_tokens == 0 ? 0 : (double)r->cached_tokens / (double)r->prompt_tokens;
}

static void print_times(const char *name, mk_load_times times) {
  printf("| %-24s | %12.3f | %12.3f |\n", name, times.p50 * 1e3, times.p99 * 1e3);
}

static mk_status print_table(const mk_bench_load_option *o, const mk_bench_about *about, uint32_t rows,
                             const mk_load_result *r) {
  char name[48];
  load_name(o, name, sizeof name);
  printf("| %-24s | %12s | %12s |\n|%.26s|%.13s:|%.13s:|\n", "ms", "p50", "p99", "--------------------------",
         "-------------", "-------------");
  print_times("to the first token", r->first);
  print_times("between two tokens", r->gap);
  print_times("in the queue", r->queue);
  print_times("whole", r->whole);
  printf("\nload: %s, %u rows; %u requests came, %u ended, in %.3f s\n", name, rows, r->arrived, r->ended, r->seconds);
  printf("requests/s: %.3f; generated tokens/s: %.1f\n", r->request_rate, r->token_rate);
  printf("launches: %" PRIu64 "; steps: %" PRIu64
         ", %.1f %% of them by one row, %.1f %% by few; rows of a step: %.2f; preemptions: %" PRIu64 "\n",
         r->launches, r->steps, r->one_row * 100, r->few * 100, r->rows, r->preemptions);
  printf("prompt tokens: %" PRIu64 ", %.1f %% of them known\n", r->prompt_tokens, hit_share(r) * 100);
  if (about->cuda) {
    printf("GPU idle: %.1f %% of the %.3f s with work", mk_load_idle(r) * 100, r->working);
    if (r->ranking > 0 && r->working > 0) {
      printf("; ranking tokens for log-probabilities: %.1f %%", r->ranking / r->working * 100);
    }
    printf("\n");
  }
  printf("device: %s; model: %s; weights: %s; context: %u tokens\n", about->device, about->model, about->weights,
         about->context);
  return mk_print_done();
}

static int set_times(json_t *object, const char *name, mk_load_times times) {
  char key[48];
  snprintf(key, sizeof key, "%s_ms_p50", name);
  int bad = json_object_set_new(object, key, json_real(times.p50 * 1e3));
  snprintf(key, sizeof key, "%s_ms_p99", name);
  return bad | json_object_set_new(object, key, json_real(times.p99 * 1e3));
}

static int set_count(json_t *object, const char *name, uint64_t count) {
  return json_object_set_new(object, name, json_integer((json_int_t)count));
}

static json_t *object_of(const mk_bench_load_option *o, const mk_bench_about *about, uint32_t rows,
                         const mk_load_result *r) {
  char name[48];
  load_name(o, name, sizeof name);
  json_t *object = mk_bench_about_object(about);
  int bad = json_object_set_new(object, "test", json_string("load"));
  bad |= json_object_set_new(object, "load", json_string(name));
  bad |= set_count(object, "n_rows", rows);
  bad |= set_count(object, "requests", r->arrived);
  bad |= set_count(object, "requests_ended", r->ended);
  bad |= json_object_set_new(object, "interrupted", json_boolean(r->interrupted));
  bad |= json_object_set_new(object, "seconds", json_real(r->seconds));
  bad |= json_object_set_new(object, "requests_per_s", json_real(r->request_rate));
  bad |= json_object_set_new(object, "tokens_per_s", json_real(r->token_rate));
  bad |= set_count(object, "tokens", r->generated);
  bad |= set_times(object, "first_token", r->first);
  bad |= set_times(object, "between_tokens", r->gap);
  bad |= set_times(object, "queue", r->queue);
  bad |= set_times(object, "whole", r->whole);
  bad |= json_object_set_new(object, "gpu_idle_share", mk_bench_real_or_null(about->cuda, mk_load_idle(r)));
  bad |= json_object_set_new(
      object, "gpu_ranking_share",
      mk_bench_real_or_null(about->cuda && r->working > 0, r->working > 0 ? r->ranking / r->working : 0));
  bad |= set_count(object, "launches", r->launches);
  bad |= set_count(object, "steps", r->steps);
  bad |= json_object_set_new(object, "rows_per_step", json_real(r->rows));
  bad |= json_object_set_new(object, "one_row_share", json_real(r->one_row));
  bad |= json_object_set_new(object, "few_rows_share", json_real(r->few));
  bad |= set_count(object, "preemptions", r->preemptions);
  bad |= set_count(object, "prompt_tokens", r->prompt_tokens);
  bad |= json_object_set_new(object, "prefix_hit_share", json_real(hit_share(r)));
  return mk_bench_object_or_null(object, bad);
}

mk_status mk_bench_load_table(const mk_bench_load_option *option, mk_load *load, mk_engine *engine,
                              const mk_bench_about *about) {
  mk_load_result result;
  uint32_t rows = mk_program_rows(mk_engine_program(engine));
  MK_TRY(mk_load_run(load, engine, &result));
  mk_release_interrupt();
  if (result.interrupted) {
    fprintf(stderr, "mkvm: interrupted: this is what was measured until then\n");
  }
  if (about->format == MK_BENCH_MD) {
    return print_table(option, about, rows, &result);
  }
  MK_TRY(mk_bench_list_begin(about->format));
  MK_TRY(mk_bench_list_object(about->format, object_of(option, about, rows, &result), true));
  return mk_bench_list_end(about->format, true);
}
