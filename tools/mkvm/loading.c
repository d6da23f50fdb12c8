/* See loading.h. */
#include "tools/mkvm/loading.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/mkvm/command.h"
#include "tools/mkvm/signals.h"

static const char kClear[] = "\r\033[K";
static bool prompt_line;  /* mk_show_prompt has left one */
static bool prompt_begun; /* mk_show_prompt has been called since mk_clear_prompt */

static double gigabytes(uint64_t bytes) { return (double)bytes / 1e9; }

static void show_memory(void *user, const mk_memory_plan *plan) {
  (void)user;
  if (isatty(STDERR_FILENO)) {
    fprintf(stderr,
            "memory: %.2f GB (weights %.2f, KV cache %.2f, activations %.2f, program %.2f) of %.2f free, %.2f in all\n",
            gigabytes(plan->weights + plan->kv + plan->activations + plan->program), gigabytes(plan->weights),
            gigabytes(plan->kv), gigabytes(plan->activations), gigabytes(plan->program), gigabytes(plan->available),
            gigabytes(plan->total));
  }
}

static void clear_line(void) {
  if (isatty(STDERR_FILENO)) {
    fputs(kClear, stderr);
  }
}

/* Shows progress at most ten times a second. */
void mk_show_loading(uint64_t done, uint64_t total) {
  static double start, shown;
  double now = mk_seconds();
  if (done == 0 || start == 0) {
    start = now;
  }
  if (isatty(STDERR_FILENO) && done != 0 && done < total && now > start && now - shown >= 0.1) {
    double rate = gigabytes(done) / (now - start);
    fprintf(stderr, "%sloading weights: %.2f of %.2f GB, %.2f GB/s", kClear, gigabytes(done), gigabytes(total), rate);
    (void)fflush(stderr);
    shown = now;
  } else if (done == total && shown != 0) {
    clear_line();
    shown = 0;
  }
}

static void show_progress(void *user, uint64_t done, uint64_t total) {
  (void)user;
  mk_show_loading(done, total);
}

/* Whether a note was not shown before: some commands open a model twice, and its notes are shown once. */
static bool is_new(const char *text) {
  static char told[8][512];
  static size_t count;
  for (size_t i = 0; i < count && i < sizeof told / sizeof told[0]; i++) {
    if (strncmp(told[i], text, sizeof told[0] - 1) == 0) {
      return false;
    }
  }
  snprintf(told[count++ % (sizeof told / sizeof told[0])], sizeof told[0], "%s", text);
  return true;
}

/* Shows progress at most ten times a second, and not for prompts that are soon done. */
void mk_show_prompt(void *user, uint64_t done, uint64_t total) {
  static double start, shown;
  static uint64_t first;
  enum { PATIENCE_MS = 500, INTERVAL_MS = 100 };
  (void)user;
  double now = mk_seconds();
  if (!prompt_begun) {
    start = shown = now;
    first = done;
    prompt_begun = true;
  }
  if (isatty(STDERR_FILENO) && 1e3 * (now - start) >= PATIENCE_MS && 1e3 * (now - shown) >= INTERVAL_MS) {
    fprintf(stderr, "%sreading the prompt: %" PRIu64 " of %" PRIu64 " tokens, %.0f tokens/s", kClear, done, total,
            (double)(done - first) / (now - start));
    (void)fflush(stderr);
    shown = now;
    prompt_line = true;
  }
}

void mk_clear_prompt(void) {
  if (prompt_line) {
    clear_line();
  }
  prompt_line = prompt_begun = false;
}

/* Of ranks that are processes each may have something to say. */
static const mk_group_options *own_process;

static void show_notice(void *user, const char *text) {
  (void)user;
  if (is_new(text)) {
    clear_line();
    if (own_process != NULL && own_process->rank != 0) {
      fprintf(stderr, "mkvm: rank %u: %s\n", own_process->rank, text);
    } else {
      fprintf(stderr, "mkvm: %s\n", text);
    }
  }
}

void mk_tell_precision(const mk_config *config, mk_dtype kv) {
  const bool quantised = config->quant.layout != MK_QUANT_NONE;
  if (isatty(STDERR_FILENO)) {
    fprintf(stderr, "precision: weights %s%s, KV cache %s\n",
            quantised ? mk_codes_name((mk_codes)config->quant.codes) : "bf16", quantised ? " and bf16" : "",
            mk_kv_name(kv));
  }
}

mk_status mk_open_engine(const char *model, const mk_engine_options *options, mk_engine **out) {
  mk_engine_options told = *options;
  told.memory = show_memory;
  told.progress = show_progress;
  told.notice = show_notice;
  told.cancel = &mk_interrupted;
  const bool follows = told.process != NULL && told.process->rank != 0;
  if (follows) {
    told.memory = NULL;
    told.progress = NULL;
  }
  own_process = told.process;
  mk_catch_interrupt(true);
  mk_status status = mk_engine_open(model, &told, out);
  if (follows && status == MK_OK) {
    status = mk_engine_follow(*out);
    mk_engine_close(*out);
    *out = NULL;
  } else if (!follows) {
    clear_line();
  }
  return status;
}
