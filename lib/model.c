/* An engine, from a model directory to its end. See internal.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "lib/internal.h"
#include "lib/prompt.h"
#include "mk_version.h"
#include "scheduler/compile.h"

_Static_assert((int)MKVM_OK == (int)MK_OK && (int)MKVM_ERR_RUNTIME == (int)MK_ERR_RUNTIME &&
                   (int)MKVM_ERR_USAGE == (int)MK_ERR_USAGE && (int)MKVM_ERR_FILE == (int)MK_ERR_FILE &&
                   (int)MKVM_ERR_REJECTED == (int)MK_ERR_REJECTED && (int)MKVM_ERR_DEVICE == (int)MK_ERR_DEVICE &&
                   (int)MKVM_ERR_BUSY == (int)MK_ERR_BUSY && (int)MKVM_ERR_TOO_LONG == (int)MK_ERR_TOO_LONG,
               "one numbering of statuses");

const char *mkvm_version(void) { return MK_VERSION; }
const char *mkvm_message(void) { return mk_error_message(); }
void mkvm_free(void *memory) { mk_free(memory); }

double mkvm_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* What the engine below tells while it opens. */

static void on_notice(void *user, const char *line) {
  const mkvm_engine *e = user;
  if (e->on_log != NULL) {
    e->on_log(e->user, MKVM_LOG_WARNING, line);
  }
}

static void on_memory(void *user, const mk_memory_plan *plan) {
  mkvm_engine *e = user;
  char line[160];
  e->memory = *plan;
  snprintf(line, sizeof line, "weights take %.1f MB, the KV cache %.1f MB, the rest %.1f MB; %.1f MB are available",
           (double)plan->weights * 1e-6, (double)plan->kv * 1e-6, (double)(plan->activations + plan->program) * 1e-6,
           (double)plan->available * 1e-6);
  if (e->on_log != NULL) {
    e->on_log(e->user, MKVM_LOG_INFO, line);
  }
}

static void on_loaded(void *user, uint64_t done, uint64_t total) {
  mkvm_engine *e = user;
  if (e->on_progress != NULL && e->on_progress(e->user, done, total) != 0) {
    e->stop = 1;
  }
}

/* A template that cannot be used is no reason not to open a model that is given text; who asks for it hears why. */
static mk_status load_template(mkvm_engine *e, const char *directory) {
  mk_status status = mk_chat_load(directory, &e->chat);
  if (status != MK_ERR_FILE) {
    return status;
  }
  on_notice(e, mk_error_message());
  return mk_strdup(mk_error_message(), &e->chat_problem);
}

static double clock_below(void *user) {
  (void)user;
  return mkvm_clock();
}

static bool is_power(uint32_t n) { return n != 0 && (n & (n - 1)) == 0; }

static uint32_t blocks_of(uint64_t tokens) {
  const uint64_t blocks = tokens / MK_BLOCK_TOKENS + (tokens % MK_BLOCK_TOKENS != 0);
  return blocks < UINT32_MAX ? (uint32_t)blocks : UINT32_MAX; /* more than the engine takes, either way */
}

/* With as many as suit model and machine, where these are fewer than were asked for. */
static void find_batch(mkvm_engine *e) {
  const uint32_t asked = e->max_batch;
  char line[160];
  const uint32_t slots = mk_program_slots(mk_engine_program(e->engine));
  e->max_batch = slots < asked ? slots : asked;
  if (e->max_batch != asked && e->on_log != NULL) {
    snprintf(line, sizeof line,
             "requests in a step, with this model, cache and device: %" PRIu32 " instead of %" PRIu32, e->max_batch,
             asked);
    e->on_log(e->user, MKVM_LOG_WARNING, line);
  }
}

/* Of another rank than 0 nothing but the machine is needed. */
static mk_status load_text(mkvm_engine *e, const char *directory, uint32_t vocabulary) {
  MK_TRY(mk_generation_load(directory, &e->generation));
  MK_TRY(mk_tokenizer_load(directory, vocabulary, &e->tokenizer));
  return load_template(e, directory);
}

static mk_group_options group_of(mkvm_engine *e, const mkvm_options *options) {
  return (mk_group_options){.rank = options->rank,
                            .ranks = options->ranks,
                            .address = options->rendezvous,
                            .deadline_s = options->rank_seconds,
                            .version = MK_VERSION_FULL,
                            .cancel = &e->stop};
}

static mk_status check_ranks(const mkvm_options *options) {
  if (options->rendezvous == NULL && (options->rank != 0 || options->ranks != 0 || options->rank_seconds != 0)) {
    return mk_error(MK_ERR_USAGE, "rank, ranks and rank_seconds go with rendezvous");
  }
  return options->rank_seconds <= MK_GROUP_MOST_DEADLINE_S
             ? MK_OK
             : mk_error(MK_ERR_USAGE, "rank_seconds is %u; it is %d at most", options->rank_seconds,
                        MK_GROUP_MOST_DEADLINE_S);
}

/* On the CPU a step of several rows takes hardly longer than one of a single row, so those that requests leave go to
 * prompts, also where few requests may share a step. */
static void fill_steps(const mkvm_engine *e, mk_engine_options *below) {
  below->rows = below->slots = MK_MAX_ROWS;
  below->most_sequences = e->max_batch;
  below->kv_blocks = below->kv_blocks != 0 ? below->kv_blocks : e->max_batch * blocks_of(e->max_context);
}

static mk_status open_all(mkvm_engine *e, const char *directory, const mkvm_options *options) {
  enum { USUAL_QUEUE = 1024 };
  mk_config config;
  double start = mkvm_clock();
  e->on_log = options->on_log;
  e->on_progress = options->on_progress;
  e->user = options->user;
  e->max_batch = options->max_batch == 0 ? 1 : options->max_batch;
  e->max_waiting = options->max_waiting == 0 ? USUAL_QUEUE : options->max_waiting;
  if (!is_power(e->max_batch) || e->max_batch > MK_MOST_DRAWING_ROWS) {
    return mk_error(MK_ERR_USAGE, "max_batch is %u; it is 1, 2, 4, 8, 16, 32, 64 or %d", options->max_batch,
                    MK_MOST_DRAWING_ROWS);
  }
  if (options->kv != MKVM_KV_BF16 && options->kv != MKVM_KV_FP8) {
    return mk_error(MK_ERR_USAGE, "kv is %d; it is MKVM_KV_BF16 or MKVM_KV_FP8", (int)options->kv);
  }
  e->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (e->event < 0) {
    return mk_error(MK_ERR_RUNTIME, "eventfd: %s", strerror(errno));
  }
  MK_TRY(mk_config_load(directory, &config));
  MK_TRY(mk_context_size(options->max_context, &config, &e->max_context));
  MK_TRY(check_ranks(options));
  const mk_group_options group = group_of(e, options);
  const bool follows = options->rendezvous != NULL && options->rank != 0;
  MK_TRY(follows ? MK_OK : load_text(e, directory, config.vocab));
  mk_sampling draws = MK_SAMPLING_OFF; /* any that is not greedy: each request brings its own */
  draws.temperature = 1;
  mk_engine_options below = {.device = options->device,
                             .process = options->rendezvous == NULL ? NULL : &group,
                             .max_seq = e->max_context,
                             .rows = e->max_batch,
                             .slots = e->max_batch,
                             .rows_or_fewer = true,
                             .long_prompts = e->max_batch > 1,
                             .kv = options->kv == MKVM_KV_FP8 ? MK_DTYPE_E4M3 : MK_DTYPE_BF16,
                             .kv_blocks = blocks_of(options->kv_tokens),
                             .prefix_tokens = options->prefix_tokens,
                             .prompt_tokens = options->prompt_tokens,
                             .decode_steps = options->decode_steps,
                             .poll = mkvm_look,
                             .poll_user = e,
                             .clock = clock_below,
                             .threads = options->threads,
                             .cache = options->cache_folder,
                             .cancel = &e->stop,
                             .memory = on_memory,
                             .progress = on_loaded,
                             .notice = on_notice,
                             .progress_user = e};
  below.sampling = &draws;
  if (e->max_batch < MK_MAX_ROWS && !mk_engine_takes_cuda(&below)) {
    fill_steps(e, &below);
  }
  MK_TRY(mk_engine_open(directory, &below, &e->engine));
  if (follows) {
    return mk_engine_follow(e->engine);
  }
  e->others = options->rendezvous != NULL;
  find_batch(e);
  e->stop = 0; /* on_progress gave up with the last byte */
  mkvm_count(e);
  e->kv_tokens = e->stats.kv_tokens;
  e->load_seconds = mkvm_clock() - start;
  return MK_OK;
}

static void free_engine(mkvm_engine *e) {
  mk_engine_close(e->engine);
  mk_chat_free(e->chat);
  mk_free(e->chat_problem);
  mk_tokenizer_free(e->tokenizer);
  if (e->event >= 0) {
    (void)close(e->event);
  }
  pthread_cond_destroy(&e->wake);
  pthread_mutex_destroy(&e->lock);
  mk_free(e);
}

static mk_status open_engine(const char *directory, const mkvm_options *options, mkvm_engine **out) {
  mkvm_options own;
  mkvm_options_init(&own);
  if (directory == NULL) {
    return mk_error(MK_ERR_USAGE, "mkvm_open: no directory is given");
  }
  if (options != NULL) {
    MK_TRY(mkvm_take_struct("mkvm_options", options, offsetof(mkvm_options, user) + sizeof own.user, &own, sizeof own));
  }
  MK_TRY(mk_alloc(1, sizeof **out, out));
  (*out)->event = -1;
  (void)pthread_mutex_init(&(*out)->lock, NULL); /* neither can fail with the default attributes */
  (void)pthread_cond_init(&(*out)->wake, NULL);
  mk_status status = open_all(*out, directory, &own);
  if (status != MK_OK || own.rank != 0) {
    free_engine(*out);
    *out = NULL;
  }
  return status;
}

mkvm_status mkvm_open(const char *directory, const mkvm_options *options, mkvm_engine **out) {
  if (out == NULL) {
    return mkvm_status_of(mk_error(MK_ERR_USAGE, "mkvm_open: there is no place for the engine"));
  }
  *out = NULL;
  return mkvm_status_of(open_engine(directory, options, out));
}

mkvm_status mkvm_close(mkvm_engine *e) {
  if (e == NULL) {
    return MKVM_OK;
  }
  pthread_mutex_lock(&e->lock);
  bool busy = e->busy;
  if (!busy) {
    e->busy = e->shut = true;
    e->worker = pthread_self();
    mkvm_cancel_all(e);
    mkvm_set_event(e);
  }
  pthread_mutex_unlock(&e->lock);
  if (busy) {
    return mkvm_status_of(mk_error(MK_ERR_USAGE,
                                   "mkvm_close: the engine works; end that with mkvm_shutdown, and close it when "
                                   "mkvm_step, mkvm_run or mkvm_serve has returned"));
  }
  mkvm_look(e); /* they end, and nobody adds any */
  free_engine(e);
  return MKVM_OK;
}
