/* The public library in programs that serve: one thread works, others submit and cancel, and any of them may end it. */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/lib/library.h"

TestSuite(serve, .timeout = MK_HANG_SECONDS);

#define WITH_MODEL(name) TEST_WITH_MODEL(serve, name)

/* ---- Serving ---- */

static void *serve(void *user) {
  OK(mkvm_serve(user));
  return NULL;
}

static pthread_t start_serving(mkvm_engine *engine) {
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, serve, engine), 0);
  return thread;
}

static void stop_serving(mkvm_engine *engine, pthread_t thread, mkvm_shutdown_way way) {
  OK(mkvm_shutdown(engine, way));
  cr_assert_eq(pthread_join(thread, NULL), 0);
}

WITH_MODEL(a_drain_lets_all_end) {
  mkvm_engine *engine = open_tiny(2);
  answer all[3];
  pthread_t thread = start_serving(engine);
  for (size_t i = 0; i < 3; i++) {
    all[i] = (answer){.engine = engine};
    submit(&all[i], prompt, 4, 50);
  }
  stop_serving(engine, thread, MKVM_DRAIN);
  for (size_t i = 0; i < 3; i++) {
    cr_assert(all[i].ends == 1 && all[i].end.reason == MKVM_END_LENGTH && all[i].count == 50);
  }
  mkvm_request request = request_of(&all[0], prompt, 4, 5);
  REFUSED(mkvm_submit(engine, &request, NULL), MKVM_ERR_USAGE, "was shut down");
  OK(mkvm_serve(engine)); /* at once: nothing is left, and nothing comes */
  REFUSED(mkvm_shutdown(engine, (mkvm_shutdown_way)3), MKVM_ERR_USAGE, "the way is");
  REFUSED(mkvm_shutdown(NULL, MKVM_DRAIN), MKVM_ERR_USAGE, "missing");
  REFUSED(mkvm_serve(NULL), MKVM_ERR_USAGE, "missing");
  OK(mkvm_close(engine));
}

static void drain(actor *a) { OK(mkvm_shutdown(a->answer.engine, MKVM_DRAIN)); }
static void abort_all(actor *a) { OK(mkvm_shutdown(a->answer.engine, MKVM_ABORT)); }
static void drain_then_abort(actor *a) {
  drain(a);
  abort_all(a);
}

/* Shuts down from a callback, whichever call makes the engine work. */
WITH_MODEL(shutdown_in_a_callback) {
  static void (*const ways[])(actor *) = {drain, abort_all, drain_then_abort};
  static mkvm_status (*const work[])(mkvm_engine *) = {mkvm_serve, mkvm_run};
  for (size_t way = 0; way < 3; way++) {
    for (size_t how = 0; how < 2; how++) {
      mkvm_engine *engine = open_tiny(2);
      answer others[2] = {{.engine = engine}, {.engine = engine}};
      actor first = {.answer = {.engine = engine}, .at = 5, .act = ways[way]};
      submit_actor(&first, 30);
      submit(&others[0], prompt, 4, 30);
      submit(&others[1], prompt, 4, 30); /* waits */
      OK(work[how](engine));
      const mkvm_end_reason want = way == 0 ? MKVM_END_LENGTH : MKVM_END_CANCELLED;
      cr_assert(first.answer.end.reason == want && others[0].end.reason == want && others[1].end.reason == want);
      cr_assert(way == 0 || (first.answer.count == 5 && others[0].count <= 5 && others[1].count == 0));
      OK(mkvm_close(engine));
    }
  }
}

WITH_MODEL(an_engine_with_nothing_to_do_sleeps) {
  mkvm_engine *engine = open_tiny(2);
  answer a = {.engine = engine};
  struct timespec before, after;
  pthread_t thread = start_serving(engine);
  submit(&a, prompt, 4, 5);
  while (stats_of(engine).full == 0) {
    sleep_ms(5);
  }
  sleep_ms(20);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  sleep_ms(500);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  double seconds = (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) * 1e-9;
  cr_assert_lt(seconds, 0.1, "%g s of CPU", seconds);
  stop_serving(engine, thread, MKVM_DRAIN);
  OK(mkvm_close(engine));
}

/* ---- Many threads ---- */

enum { SUBMITTERS = 4, EACH = 12, KINDS = 3 };

typedef struct submitter {
  mkvm_engine *engine;
  const answer *want; /* [KINDS] */
  answer answers[EACH];
  uint64_t ids[EACH];
  atomic_size_t ends;
  size_t seed;
} submitter;

typedef struct tracked {
  submitter *owner;
  answer *answer;
} tracked;

static int track_token(void *user, const mkvm_token *token) { return on_token(((tracked *)user)->answer, token); }

static void count_end(void *user, const mkvm_end *end) {
  tracked *t = user;
  on_end(t->answer, end);
  atomic_fetch_add(&t->owner->ends, 1);
}

static void *submit_many(void *user) {
  submitter *s = user;
  tracked all[EACH];
  for (size_t i = 0; i < EACH; i++) {
    const size_t kind = (i + s->seed) % KINDS;
    s->answers[i] = (answer){.engine = s->engine};
    all[i] = (tracked){s, &s->answers[i]};
    mkvm_request request = request_of(NULL, long_prompt() + kind, 30 + 20 * kind, 12);
    request.on_token = track_token;
    request.on_end = count_end;
    request.user = &all[i];
    request.priority = (int32_t)(i % 3);
    mkvm_status status = mkvm_submit(s->engine, &request, &s->ids[i]);
    while (status == MKVM_ERR_BUSY) {
      sleep_ms(1);
      status = mkvm_submit(s->engine, &request, &s->ids[i]);
    }
    OK(status);
    if (i % 4 == 3) {
      sleep_ms((long)s->seed);
      OK(mkvm_cancel(s->engine, s->ids[i - s->seed % 2]));
    }
    (void)stats_of(s->engine);
  }
  while (atomic_load(&s->ends) < EACH) {
    sleep_ms(1);
  }
  return NULL;
}

WITH_MODEL(submissions_and_cancellations_from_many_threads) {
  mkvm_options options = tiny_options(4);
  options.max_waiting = 8;
  options.kv_tokens = 512;
  answer want[KINDS];
  static submitter all[SUBMITTERS];
  pthread_t threads[SUBMITTERS];
  size_t whole = 0;
  (void)long_prompt();
  for (size_t kind = 0; kind < KINDS; kind++) {
    alone(&options, long_prompt() + kind, 30 + 20 * kind, 12, &want[kind]);
  }
  mkvm_engine *engine = open_with(&options);
  pthread_t server = start_serving(engine);
  for (size_t i = 0; i < SUBMITTERS; i++) {
    all[i].engine = engine;
    all[i].seed = i;
    cr_assert_eq(pthread_create(&threads[i], NULL, submit_many, &all[i]), 0);
  }
  for (size_t i = 0; i < SUBMITTERS; i++) {
    pthread_join(threads[i], NULL);
  }
  stop_serving(engine, server, MKVM_DRAIN);
  for (size_t n = 0; n < (size_t)SUBMITTERS * EACH; n++) {
    const answer *a = &all[n / EACH].answers[n % EACH];
    cr_assert_eq(a->ends, 1);
    if (a->end.reason != MKVM_END_CANCELLED) {
      cr_assert_eq(a->end.reason, MKVM_END_LENGTH);
      expect_same(a, &want[(n % EACH + all[n / EACH].seed) % KINDS]);
      whole++;
    }
  }
  mkvm_stats stats = stats_of(engine);
  cr_assert_geq(whole, (size_t)SUBMITTERS * EACH * 3 / 4);
  cr_assert(stats.submitted == (uint64_t)SUBMITTERS * EACH && stats.full == whole);
  cr_assert(stats.full + stats.cancelled == stats.submitted && stats.waiting == 0 && stats.running == 0);
  cr_assert_eq(stats.kv_tokens_used, 0);
  OK(mkvm_close(engine));
}
