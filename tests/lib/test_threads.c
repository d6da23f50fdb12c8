/* The public library: who may cancel and submit, from where and when, and several threads. */
#include <pthread.h>

#include "tests/lib/library.h"

TestSuite(mkvm_threads, .timeout = MK_HANG_SECONDS);

#define WITH_MODEL(name) TEST_WITH_MODEL(mkvm_threads, name)

WITH_MODEL(cancel_from_a_callback) {
  for (uint32_t batch = 1; batch <= 4; batch += 3) {
    mkvm_engine *engine = open_tiny(batch);
    answer all[3] = {
        {.engine = engine, .stop_after = 3}, {.engine = engine}, {.engine = engine, .stop_after = 5, .cancels = true}};
    for (size_t i = 0; i < 3; i++) {
      mkvm_request request = request_of(&all[i], prompt, 4, 20);
      OK(mkvm_submit(engine, &request, NULL));
    }
    OK(mkvm_run(engine));
    cr_assert(all[0].count == 3 && all[0].end.reason == MKVM_END_CANCELLED && all[0].end.status == MKVM_OK);
    cr_assert(all[1].count == 20 && all[1].end.reason == MKVM_END_LENGTH);
    cr_assert(all[2].count == 5 && all[2].end.reason == MKVM_END_CANCELLED);
    cr_assert(all[0].ends == 1 && all[1].ends == 1 && all[2].ends == 1);
    OK(mkvm_close(engine));
  }
}

WITH_MODEL(cancel_what_waits) {
  mkvm_engine *engine = open_tiny(1);
  answer a = {.engine = engine}, b = {.engine = engine};
  uint64_t first, second;
  mkvm_request request = request_of(&a, prompt, 4, 20);
  OK(mkvm_submit(engine, &request, &first));
  request.user = &b;
  OK(mkvm_submit(engine, &request, &second));
  OK(mkvm_cancel(engine, second));
  OK(mkvm_run(engine));
  cr_assert(a.count == 20 && b.count == 0 && b.ends == 1 && b.end.reason == MKVM_END_CANCELLED);
  OK(mkvm_cancel(engine, first)); /* has ended */
  REFUSED(mkvm_cancel(engine, second + 1), MKVM_ERR_USAGE, "no request has the number 3");
  REFUSED(mkvm_cancel(engine, 0), MKVM_ERR_USAGE, "no request has the number 0");
  mkvm_stats stats;
  OK(mkvm_get_stats(engine, &stats));
  cr_assert(stats.cancelled == 1 && stats.full == 1 && stats.waiting == 0 && stats.running == 0);
  /* Requests that wait when the engine is closed hear of it. */
  b = (answer){.engine = engine};
  OK(mkvm_submit(engine, &request, NULL));
  OK(mkvm_close(engine));
  cr_assert(b.ends == 1 && b.end.reason == MKVM_END_CANCELLED);
}

/* For a cancellation by another thread, while a callback has the first token. */
typedef struct meeting {
  answer answer;
  pthread_barrier_t barrier;
  uint64_t id;
} meeting;

static int meet(void *user, const mkvm_token *token) {
  meeting *m = user;
  if (m->answer.count == 0) {
    pthread_barrier_wait(&m->barrier); /* the other one now cancels */
    pthread_barrier_wait(&m->barrier);
  }
  return on_token(&m->answer, token);
}

static void *cancel_it(void *user) {
  meeting *m = user;
  size_t left;
  pthread_barrier_wait(&m->barrier);
  OK(mkvm_cancel(m->answer.engine, m->id));
  REFUSED(mkvm_step(m->answer.engine, &left), MKVM_ERR_USAGE, "another thread");
  REFUSED(mkvm_close(m->answer.engine), MKVM_ERR_USAGE, "works");
  pthread_barrier_wait(&m->barrier);
  return NULL;
}

WITH_MODEL(cancel_from_another_thread) {
  meeting m = {.answer = {.engine = open_tiny(1)}};
  pthread_t other;
  mkvm_request request = request_of(NULL, prompt, 4, 100);
  request.on_token = meet;
  request.on_end = NULL;
  request.user = &m;
  pthread_barrier_init(&m.barrier, NULL, 2);
  OK(mkvm_submit(m.answer.engine, &request, &m.id));
  cr_assert_eq(pthread_create(&other, NULL, cancel_it, &m), 0);
  OK(mkvm_run(m.answer.engine));
  pthread_join(other, NULL);
  cr_assert_eq(m.answer.count, 1);
  mkvm_stats stats;
  OK(mkvm_get_stats(m.answer.engine, &stats));
  cr_assert(stats.cancelled == 1 && stats.tokens == 1);
  pthread_barrier_destroy(&m.barrier);
  OK(mkvm_close(m.answer.engine));
}

/* A callback may submit, and may not make the engine work. */
static void ask_again(void *user, const mkvm_end *end) {
  answer *a = user;
  const uint32_t other[] = {2};
  size_t left;
  on_end(a, end);
  REFUSED(mkvm_step(a->engine, &left), MKVM_ERR_USAGE, "callback");
  REFUSED(mkvm_run(a->engine), MKVM_ERR_USAGE, "callback");
  REFUSED(mkvm_close(a->engine), MKVM_ERR_USAGE, "works");
  if (end->request < 3) {
    a->ends = 0;
    mkvm_request request = request_of(a, other, 1, 2);
    request.on_end = ask_again;
    OK(mkvm_submit(a->engine, &request, NULL));
  }
}

WITH_MODEL(submit_in_a_callback) {
  answer a = {.engine = open_tiny(2)};
  mkvm_request request = request_of(&a, prompt, 4, 2);
  request.on_end = ask_again;
  OK(mkvm_submit(a.engine, &request, NULL));
  OK(mkvm_run(a.engine));
  cr_assert(a.end.request == 3 && a.count == 6);
  OK(mkvm_close(a.engine));
}

static void submit_while_closing(void *user, const mkvm_end *end) {
  answer *a = user;
  const uint32_t one[] = {2};
  on_end(a, end);
  mkvm_request request = request_of(a, one, 1, 2);
  REFUSED(mkvm_submit(a->engine, &request, NULL), MKVM_ERR_USAGE, "being closed");
}

WITH_MODEL(nothing_is_submitted_to_what_closes) {
  answer a = {.engine = open_tiny(1)};
  mkvm_request request = request_of(&a, prompt, 4, 2);
  request.on_end = submit_while_closing;
  OK(mkvm_submit(a.engine, &request, NULL));
  OK(mkvm_close(a.engine));
  cr_assert_eq(a.ends, 1);
}

static void *run_alone(void *user) {
  answer *a = user;
  mkvm_engine *engine = open_tiny(1);
  generate(engine, NULL, a);
  mkvm_request request = request_of(a, prompt, 4, 2);
  request.size = 3;
  REFUSED(mkvm_submit(engine, &request, NULL), MKVM_ERR_USAGE, "its size is 3");
  OK(mkvm_close(engine));
  return NULL;
}

/* Two engines in one process, each in a thread; and the message of one thread is not another's. */
WITH_MODEL(two_engines_on_two_threads) {
  answer a, b;
  pthread_t threads[2];
  mkvm_engine *none;
  REFUSED(mkvm_open("/nowhere/at/all", NULL, &none), MKVM_ERR_FILE, "/nowhere/at/all");
  cr_assert_null(none);
  cr_assert_eq(pthread_create(&threads[0], NULL, run_alone, &a), 0);
  cr_assert_eq(pthread_create(&threads[1], NULL, run_alone, &b), 0);
  pthread_join(threads[0], NULL);
  pthread_join(threads[1], NULL);
  expect_same(&a, &b);
  cr_assert_not_null(strstr(mkvm_message(), "/nowhere/at/all"));
}
