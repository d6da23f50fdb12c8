/* See bench_load.h. */
#include "tools/lib/bench_load.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "models/json.h"
#include "models/synth.h"
#include "tools/lib/clock.h"
#include "tools/lib/quantile.h"

enum { WARM_REQUESTS = 2, WARM_TOKENS = 8, LENGTHS_BYTES = 64 << 20 };
static const double kLongestWait = 0.05; /* seconds; a Ctrl-C is noticed after no longer than this */

/* ---- Lengths ---- */

static bool is_length(const json_t *value) {
  return json_is_integer(value) && json_integer_value(value) >= 1 && json_integer_value(value) <= MK_MAX_POSITION;
}

static mk_status take_lengths(const char *path, const json_t *root, mk_load_length **out, size_t *count) {
  if (!json_is_array(root) || json_array_size(root) == 0) {
    return mk_error(MK_ERR_FILE, "%s: an array of [in, out] pairs is expected, such as [[512, 128], [64, 256]]", path);
  }
  *count = json_array_size(root);
  MK_TRY(mk_alloc(*count, sizeof **out, out));
  for (size_t i = 0; i < *count; i++) {
    const json_t *pair = json_array_get(root, i), *in = json_array_get(pair, 0), *generated = json_array_get(pair, 1);
    if (json_array_size(pair) != 2 || !is_length(in) || !is_length(generated)) {
      char shown[MK_JSON_SHOWN];
      return mk_error(MK_ERR_FILE, "%s: element %zu is %s; a pair [in, out] of whole numbers from 1 to %d is expected",
                      path, i, mk_json_show(pair, shown), (int)MK_MAX_POSITION);
    }
    (*out)[i] = (mk_load_length){(uint32_t)json_integer_value(in), (uint32_t)json_integer_value(generated)};
  }
  return MK_OK;
}

mk_status mk_load_lengths(const char *path, mk_load_length **out, size_t *count) {
  char *text;
  size_t length;
  json_error_t error;
  *out = NULL;
  *count = 0;
  MK_TRY(mk_file_read(path, false, LENGTHS_BYTES, &text, &length));
  json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
  mk_free(text);
  if (root == NULL) {
    return mk_error(MK_ERR_FILE, "%s: line %d, column %d: %s", path, error.line, error.column, error.text);
  }
  mk_status status = take_lengths(path, root, out, count);
  json_decref(root);
  if (status != MK_OK) {
    mk_free(*out);
    *out = NULL;
  }
  return status;
}

/* ---- Requests ---- */

typedef struct request {
  double due, first, last; /* on the load's clock */
  uint32_t tokens;         /* generated */
  bool ended;
  mk_sequence_report report;
  mk_ranking ranking;
} request;

struct mk_load {
  mk_load_options options; /* without lengths */
  mk_load_length *lengths;
  request *requests;
  double *gaps, *values; /* values: what quantiles are taken of */
  uint32_t *prompt;
  size_t gap_count;
  mk_engine *engine; /* while it runs */
  /* About the requests that run now, which either warm up or count: */
  bool warm;
  uint32_t count, submitted, ended;
  double start, last, waited;
  uint64_t generated;
  mk_status status; /* of the first that failed */
  char message[512];
};

double mk_load_clock(void *user) {
  const mk_load *load = user;
  return load->options.clock == NULL ? mk_seconds() : load->options.clock(load->options.clock_user);
}

static bool cancelled(const mk_load *load) { return load->options.cancel != NULL && *load->options.cancel != 0; }

static void note_failure(mk_load *load, mk_status status) {
  if (load->status == MK_OK) {
    load->status = status;
    snprintf(load->message, sizeof load->message, "%s", mk_error_message());
  }
}

static mk_load_length length_of(const mk_load *load, uint32_t index) {
  mk_load_length length = load->lengths[index % load->options.length_count];
  length.out = load->warm && length.out > WARM_TOKENS ? WARM_TOKENS : length.out;
  return length;
}

static bool on_token(void *user, size_t index, uint32_t token, const float *logits) {
  mk_load *load = user;
  request *r = &load->requests[index];
  double now = mk_load_clock(load);
  (void)token;
  (void)logits;
  if (r->tokens++ == 0) {
    r->first = now;
  } else if (!load->warm) {
    load->gaps[load->gap_count++] = now - r->last;
  }
  r->last = load->last = now;
  load->generated++;
  return true;
}

static void on_ended(void *user, size_t index, mk_status status) {
  mk_load *load = user;
  load->requests[index].ended = true;
  load->ended++;
  if (status != MK_OK) {
    note_failure(load, status);
  }
}

/* Makes random ids. Requests that warm up get other ids, so that the prefix cache knows no prompt that counts. */
static void make_prompt(mk_load *load, uint32_t index, uint32_t count) {
  uint32_t vocab = mk_engine_config(load->engine)->vocab;
  uint64_t key = mk_synth_key(load->options.seed, load->warm ? "load.warm" : "load");
  for (uint32_t i = 0; i < count; i++) {
    uint64_t whose = i < load->options.shared ? 0 : (uint64_t)index + 1;
    load->prompt[i] = (uint32_t)(mk_synth_mix(key + mk_synth_mix(whose << 32 | i)) % vocab);
  }
}

static mk_status submit(mk_load *load) {
  uint32_t index = load->submitted;
  mk_load_length length = length_of(load, index);
  request *r = &load->requests[index];
  const mk_sequence sequence = {.prompt = load->prompt,
                                .prompt_count = length.in,
                                .n_predict = length.out,
                                .report = &r->report,
                                .ranking = load->options.logprobs ? &r->ranking : NULL};
  const mk_sequence_calls calls = {.token = on_token, .ended = on_ended, .user = load};
  make_prompt(load, index, length.in);
  r->ranking.most = load->options.most_logprobs;
  MK_TRY(mk_engine_submit(load->engine, &sequence, &calls, index, NULL));
  load->submitted++;
  return MK_OK;
}

/* Whether the next request has arrived by now. */
static bool is_due(mk_load *load, double now) {
  const mk_load_options *o = &load->options;
  if (load->submitted == load->count || load->status != MK_OK || cancelled(load)) {
    return false;
  }
  if (!load->warm && o->rate > 0) {
    return load->requests[load->submitted].due <= now;
  }
  load->requests[load->submitted].due = now;
  return load->warm || o->concurrency == 0 || load->submitted - load->ended < o->concurrency;
}

void mk_load_poll(void *user) {
  mk_load *load = user;
  while (load->engine != NULL && is_due(load, mk_load_clock(load))) {
    mk_status status = submit(load);
    if (status != MK_OK) {
      note_failure(load, status);
    }
  }
}

static void wait_for_next(mk_load *load) {
  double now = mk_load_clock(load), rest = load->requests[load->submitted].due - now;
  rest = rest < kLongestWait ? rest : kLongestWait;
  if (load->options.wait != NULL) {
    load->options.wait(load->options.clock_user, rest);
  } else {
    const struct timespec time = {.tv_nsec = (long)(rest * 1e9)};
    nanosleep(&time, NULL);
  }
  load->waited += mk_load_clock(load) - now;
}

/* Whether no request is there, and some will still come. */
static bool has_nothing_to_do(mk_load *load) {
  return load->submitted == load->ended && load->submitted < load->count && !load->warm && load->options.rate > 0 &&
         load->requests[load->submitted].due > mk_load_clock(load);
}

static mk_status run_requests(mk_load *load, uint32_t count, bool warm) {
  size_t left;
  load->warm = warm;
  load->count = count;
  load->submitted = load->ended = 0;
  load->generated = 0;
  load->gap_count = 0;
  load->waited = 0;
  memset(load->requests, 0, count * sizeof *load->requests);
  if (!warm && load->options.rate > 0) {
    for (uint32_t i = 0; i < count; i++) {
      load->requests[i].due = load->start + load->values[i];
    }
  }
  while (load->ended < count && load->status == MK_OK && !cancelled(load)) {
    if (has_nothing_to_do(load)) {
      wait_for_next(load);
      continue;
    }
    MK_TRY(mk_engine_step(load->engine, &left));
  }
  return load->status == MK_OK ? MK_OK : mk_error(load->status, "%s", load->message);
}

/* ---- Results ---- */

void mk_load_arrivals(uint64_t seed, double rate, uint32_t count, double *out) {
  uint64_t key = mk_synth_key(seed, "load.arrivals");
  double at = 0;
  for (uint32_t i = 0; i < count; i++) {
    double part = (double)((mk_synth_mix(key + i) >> 11) + 1) * 0x1p-53; /* above 0, at most 1 */
    at -= log(part) / rate;
    out[i] = at;
  }
}

double mk_load_idle(const mk_load_result *result) {
  double idle = result->working > 0 ? 1 - result->busy / result->working : 0;
  return idle > 0 ? idle : 0;
}

static mk_load_times times_of(double *values, size_t count) {
  mk_load_times times = {.p50 = mk_quantile(values, count, 0.5)};
  times.p99 = mk_quantile(values, count, 0.99);
  return times;
}

static void summarise_requests(mk_load *load, mk_load_result *out) {
  double *first = load->values, *queue = first + load->count, *whole = queue + load->count;
  size_t firsts = 0, begun = 0, wholes = 0;
  for (uint32_t i = 0; i < load->submitted; i++) {
    const request *r = &load->requests[i];
    if (r->tokens != 0) {
      first[firsts++] = r->first - r->due;
    }
    if (r->ended) {
      queue[begun++] = r->report.begun_at - r->due;
      whole[wholes++] = r->last - r->due;
    }
  }
  out->first = times_of(first, firsts);
  out->queue = times_of(queue, begun);
  out->whole = times_of(whole, wholes);
  out->gap = times_of(load->gaps, load->gap_count);
  out->generated = load->generated;
  out->arrived = load->submitted;
  out->ended = load->ended;
  out->seconds = load->last - load->start;
  out->working = out->seconds - load->waited;
  if (out->seconds > 0) {
    out->request_rate = out->ended / out->seconds;
    out->token_rate = (double)out->generated / out->seconds;
  }
}

static void summarise_counters(const mk_load *load, const mk_batch_counters *before, mk_load_result *out) {
  mk_batch_counters after;
  mk_engine_count(load->engine, &after);
  out->launches = after.launches - before->launches;
  out->steps = after.steps - before->steps;
  out->preemptions = after.preemptions - before->preemptions;
  out->prompt_tokens = after.asked_tokens - before->asked_tokens;
  out->cached_tokens = after.cached_tokens - before->cached_tokens;
  const double steps = out->steps == 0 ? 1 : (double)out->steps;
  out->rows = (double)(after.rows - before->rows) / steps;
  out->one_row = (double)(after.one_row_steps - before->one_row_steps) / steps;
  out->few = (double)(after.few_steps - before->few_steps) / steps;
}

static mk_status measure(mk_load *load, mk_load_result *out) {
  const mk_load_options *o = &load->options;
  mk_batch_counters before;
  MK_TRY(run_requests(load, o->requests < WARM_REQUESTS ? o->requests : WARM_REQUESTS, true));
  mk_engine_count(load->engine, &before);
  const mk_engine_busy busy = mk_engine_busy_of(load->engine);
  if (o->rate > 0) {
    mk_load_arrivals(o->seed, o->rate, o->requests, load->values);
  }
  load->start = load->last = mk_load_clock(load);
  MK_TRY(run_requests(load, o->requests, false));
  summarise_requests(load, out);
  summarise_counters(load, &before, out);
  const mk_engine_busy all = mk_engine_busy_of(load->engine);
  out->ranking = (all.ranks_ms - busy.ranks_ms) * 1e-3;
  out->busy = (all.steps_ms - busy.steps_ms) * 1e-3 + out->ranking;
  out->interrupted = cancelled(load);
  return MK_OK;
}

mk_status mk_load_run(mk_load *load, mk_engine *engine, mk_load_result *out) {
  *out = (mk_load_result){0};
  load->engine = engine;
  load->status = MK_OK;
  mk_status status = measure(load, out);
  load->engine = NULL;
  return status;
}

/* ---- A load ---- */

static mk_status check(const mk_load_options *o) {
  if (o->requests == 0 || o->length_count == 0) {
    return mk_error(MK_ERR_USAGE, "a load of %u requests of %zu lengths: at least one of each is needed", o->requests,
                    o->length_count);
  }
  for (size_t i = 0; i < o->length_count; i++) {
    if (o->lengths[i].in == 0 || o->lengths[i].out == 0 || o->shared > o->lengths[i].in) {
      return mk_error(
          MK_ERR_USAGE,
          "length %zu: a prompt of %u tokens, %u of them shared, and %u generated; a prompt has at least 1 and "
          "as many as are shared, and at least 1 is generated",
          i, o->lengths[i].in, o->shared, o->lengths[i].out);
    }
  }
  return MK_OK;
}

static mk_status make_tables(mk_load *load) {
  const mk_load_options *o = &load->options;
  size_t tokens = 0;
  uint32_t longest = 0;
  MK_TRY(mk_alloc(o->length_count, sizeof *load->lengths, &load->lengths));
  memcpy(load->lengths, o->lengths, o->length_count * sizeof *load->lengths);
  load->options.lengths = NULL;
  for (uint32_t i = 0; i < o->requests; i++) {
    tokens += length_of(load, i).out;
  }
  for (size_t i = 0; i < o->length_count; i++) {
    longest = load->lengths[i].in > longest ? load->lengths[i].in : longest;
  }
  MK_TRY(mk_alloc(o->requests, sizeof *load->requests, &load->requests));
  MK_TRY(mk_alloc(tokens, sizeof *load->gaps, &load->gaps));
  MK_TRY(mk_alloc((size_t)o->requests * 3, sizeof *load->values, &load->values));
  return mk_alloc(longest, sizeof *load->prompt, &load->prompt);
}

mk_status mk_load_new(const mk_load_options *options, mk_load **out) {
  *out = NULL;
  mk_load *load;
  MK_TRY(check(options));
  MK_TRY(mk_alloc(1, sizeof *load, &load));
  load->options = *options;
  mk_status status = make_tables(load);
  if (status != MK_OK) {
    mk_load_free(load);
    return status;
  }
  *out = load;
  return MK_OK;
}

void mk_load_free(mk_load *load) {
  if (load == NULL) {
    return;
  }
  mk_free(load->lengths);
  mk_free(load->requests);
  mk_free(load->gaps);
  mk_free(load->values);
  mk_free(load->prompt);
  mk_free(load);
}
