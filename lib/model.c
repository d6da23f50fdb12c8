/* An engine, from a model directory to its end. See internal.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "lib/internal.h"
#include "lib/prompt.h"
#include "mk_version.h"

_Static_assert((int)MKVM_OK == (int)MK_OK && (int)MKVM_ERR_RUNTIME == (int)MK_ERR_RUNTIME &&
                   (int)MKVM_ERR_USAGE == (int)MK_ERR_USAGE && (int)MKVM_ERR_FILE == (int)MK_ERR_FILE &&
                   (int)MKVM_ERR_REJECTED == (int)MK_ERR_REJECTED && (int)MKVM_ERR_DEVICE == (int)MK_ERR_DEVICE,
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

/* All requests at work are cancelled: no token has to be waited for. */
static void on_prompt(void *user, uint64_t done, uint64_t total) {
  mkvm_engine *e = user;
  (void)done;
  (void)total;
  for (const job *r = e->working; r != NULL; r = r->next) {
    if (!r->ended && !atomic_load(&r->cancelled)) {
      return;
    }
  }
  e->stop = 1;
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

static bool is_power(uint32_t n) { return n != 0 && (n & (n - 1)) == 0; }

static mk_status open_all(mkvm_engine *e, const char *directory, const mkvm_options *options) {
  mk_config config;
  double start = mkvm_clock();
  e->on_log = options->on_log;
  e->on_progress = options->on_progress;
  e->user = options->user;
  e->max_batch = options->max_batch == 0 ? 1 : options->max_batch;
  if (!is_power(e->max_batch) || e->max_batch > MK_MAX_ROWS) {
    return mk_error(MK_ERR_USAGE, "max_batch is %u; it is 1, 2, 4, 8 or 16", options->max_batch);
  }
  MK_TRY(mk_config_load(directory, &config));
  MK_TRY(mk_context_size(options->max_context, &config, &e->max_context));
  MK_TRY(mk_generation_load(directory, &e->generation));
  MK_TRY(mk_tokenizer_load(directory, config.vocab, &e->tokenizer));
  MK_TRY(load_template(e, directory));
  mk_sampling draws = MK_SAMPLING_OFF; /* any that is not greedy: each request brings its own */
  draws.temperature = 1;
  const mk_engine_options below = {.device = options->device,
                                   .max_seq = e->max_context,
                                   .rows = e->max_batch,
                                   .long_prompts = e->max_batch > 1,
                                   .sampling = e->max_batch > 1 ? NULL : &draws,
                                   .threads = options->threads,
                                   .cache = options->cache_folder,
                                   .cancel = &e->stop,
                                   .memory = on_memory,
                                   .progress = on_loaded,
                                   .notice = on_notice,
                                   .prompt_progress = on_prompt,
                                   .progress_user = e};
  MK_TRY(mk_engine_open(directory, &below, &e->engine));
  e->stop = 0; /* on_progress gave up with the last byte */
  e->load_seconds = mkvm_clock() - start;
  return MK_OK;
}

static void free_engine(mkvm_engine *e) {
  mk_engine_close(e->engine);
  mk_chat_free(e->chat);
  mk_free(e->chat_problem);
  mk_tokenizer_free(e->tokenizer);
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
  (void)pthread_mutex_init(&(*out)->lock, NULL); /* cannot fail with the default attributes */
  mk_status status = open_all(*out, directory, &own);
  if (status != MK_OK) {
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
    e->busy = e->closing = true;
    e->worker = pthread_self();
  }
  pthread_mutex_unlock(&e->lock);
  if (busy) {
    return mkvm_status_of(mk_error(MK_ERR_USAGE,
                                   "mkvm_close: the engine works; cancel its requests, and close it "
                                   "when mkvm_step or mkvm_run has returned"));
  }
  for (job *r = e->waiting; r != NULL; r = e->waiting) { /* nobody adds any */
    e->waiting = r->next;
    atomic_store(&r->cancelled, true);
    mkvm_finish(e, r, MK_OK);
    mkvm_request_free(r);
  }
  free_engine(e);
  return MKVM_OK;
}
