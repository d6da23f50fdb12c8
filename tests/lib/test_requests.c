/* The public library while its engine works: who joins, who leaves, in which order; its KV cache and its event. */
#include <math.h>
#include <poll.h>

#include "tests/lib/library.h"

TestSuite(requests, .timeout = MK_HANG_SECONDS);

#define WITH_MODEL(name) TEST_WITH_MODEL(requests, name)

/* ---- Joining and leaving ---- */

static void submit_other(actor *a) { submit(a->other, prompt, 4, 5); }

static size_t tokens_of_first;

static int note_first(void *user, const mkvm_token *token) {
  actor *a = user;
  if (a->other->count == 0) {
    tokens_of_first = a->answer.count;
  }
  return on_token(a->other, token);
}

static void submit_noted(actor *a) {
  mkvm_request request = request_of(a->other, prompt, 4, 5);
  request.on_token = note_first;
  request.on_end = NULL;
  request.user = a;
  OK(mkvm_submit(a->answer.engine, &request, NULL));
}

WITH_MODEL(who_arrives_joins_the_launch_at_work) {
  const mkvm_options options = tiny_options(2);
  mkvm_engine *engine = open_with(&options);
  answer other = {.engine = engine}, whole;
  actor first = {.answer = {.engine = engine}, .at = 10, .act = submit_noted, .other = &other};
  submit_actor(&first, 100);
  OK(mkvm_run(engine));
  OK(mkvm_close(engine));
  cr_assert(first.answer.count == 100 && other.count == 5);
  cr_assert_leq(tokens_of_first, 10 + 6, "its first token came when the other one had %zu", tokens_of_first);
  alone(&options, prompt, 4, 5, &whole);
  expect_same(&other, &whole);
}

static void cancel_other(actor *a) {
  a->other_count = a->other->count;
  OK(mkvm_cancel(a->answer.engine, a->other_id));
}

WITH_MODEL(a_cancellation_ends_a_request_within_a_step) {
  for (int early = 0; early < 2; early++) { /* while its prompt is computed, and while it generates */
    mkvm_engine *engine = open_tiny(2);
    answer other = {.engine = engine};
    actor first = {.answer = {.engine = engine}, .at = early != 0 ? 6 : 30, .act = cancel_other, .other = &other};
    submit_actor(&first, 40);
    mkvm_request request = request_of(&other, long_prompt(), early != 0 ? LONG : 4, 40);
    OK(mkvm_submit(engine, &request, &first.other_id));
    while (first.answer.count < first.at) {
      OK(mkvm_step(engine, NULL));
    }
    OK(mkvm_step(engine, NULL));
    cr_assert(other.ends == 1 && other.end.reason == MKVM_END_CANCELLED && other.end.status == MKVM_OK);
    cr_assert(other.count == first.other_count && (early != 0) == (other.count == 0));
    cr_assert_eq(stats_of(engine).kv_tokens_used, first.answer.ends == 0 ? 64 : 0); /* its blocks are free */
    OK(mkvm_run(engine));
    cr_assert(first.answer.count == 40 && first.answer.end.reason == MKVM_END_LENGTH);
    OK(mkvm_close(engine));
  }
}

WITH_MODEL(who_is_half_way_when_the_engine_is_closed_is_told) {
  mkvm_engine *engine = open_tiny(2);
  answer all[4] = {{.stop_after = 1}};
  size_t left;
  for (size_t i = 0; i < 4; i++) {
    all[i].engine = engine;
    submit(&all[i], prompt, 4, 20);
  }
  OK(mkvm_step(engine, &left));
  cr_assert_eq(left, 3);
  mkvm_stats stats = stats_of(engine);
  cr_assert(stats.running + stats.waiting == 3 && stats.launches == 1 && stats.steps > 0 && stats.cancelled == 1);
  OK(mkvm_close(engine));
  for (size_t i = 0; i < 4; i++) {
    cr_assert(all[i].ends == 1 && all[i].end.reason == MKVM_END_CANCELLED);
  }
}

/* ---- The queue ---- */

static void fill_queue(actor *a) {
  mkvm_request request = request_of(a->other, prompt, 4, 2);
  request.on_end = NULL;
  for (int i = 0; i < 2; i++) {
    OK(mkvm_submit(a->answer.engine, &request, NULL));
  }
  REFUSED(mkvm_submit(a->answer.engine, &request, NULL), MKVM_ERR_BUSY, "2 requests wait already");
}

/* A request that runs is not counted among those that wait. */
WITH_MODEL(the_queue_is_bounded) {
  mkvm_options options = tiny_options(1);
  options.max_waiting = 2;
  mkvm_engine *engine = open_with(&options);
  answer other = {.engine = engine};
  actor first = {.answer = {.engine = engine}, .at = 3, .act = fill_queue, .other = &other};
  submit_actor(&first, 5);
  OK(mkvm_run(engine));
  cr_assert(other.count == 4 && stats_of(engine).refused == 1 && stats_of(engine).submitted == 3);
  fill_queue(&first); /* nobody works */
  OK(mkvm_run(engine));
  cr_assert(other.count == 8 && stats_of(engine).refused == 2 && stats_of(engine).waiting == 0);
  OK(mkvm_close(engine));
}

static void expect_full(void *user, const mkvm_end *end) {
  actor *a = user;
  act_on_end(a, end);
  mkvm_stats stats = stats_of(a->answer.engine);
  cr_assert(stats.waiting == 2 && stats.running == 0 && stats.full == 1);
  mkvm_request request = request_of(a->other, prompt, 4, 2);
  REFUSED(mkvm_submit(a->answer.engine, &request, NULL), MKVM_ERR_BUSY, "2 requests wait already");
}

/* A request that came during a step is counted when another one ends in the same step. */
WITH_MODEL(what_waits_is_counted_when_another_one_ends) {
  mkvm_options options = tiny_options(1);
  options.max_waiting = 2;
  mkvm_engine *engine = open_with(&options);
  answer other = {.engine = engine};
  actor first = {.answer = {.engine = engine}, .at = 3, .act = fill_queue, .other = &other};
  mkvm_request request = request_of(&first.answer, prompt, 4, 3);
  request.on_token = act_on_token;
  request.on_end = expect_full;
  request.user = &first;
  OK(mkvm_submit(engine, &request, NULL));
  OK(mkvm_run(engine));
  cr_assert(first.answer.ends == 1 && other.count == 4);
  OK(mkvm_close(engine));
}

typedef struct turn { /* in which they end */
  size_t *next, at;
} turn;

static void note_turn(void *user, const mkvm_end *end) {
  turn *t = user;
  (void)end;
  t->at = (*t->next)++;
}

WITH_MODEL(lower_priorities_first) {
  static const int32_t priorities[] = {5, 0, INT32_MIN, 0, INT32_MAX};
  static const size_t want[] = {3, 1, 0, 2, 4};
  mkvm_engine *engine = open_tiny(1);
  size_t next = 0;
  turn turns[5];
  for (size_t i = 0; i < 5; i++) {
    turns[i] = (turn){.next = &next};
    mkvm_request request = request_of(NULL, prompt, 4, 3);
    request.priority = priorities[i];
    request.on_token = NULL;
    request.on_end = note_turn;
    request.user = &turns[i];
    OK(mkvm_submit(engine, &request, NULL));
  }
  OK(mkvm_run(engine));
  for (size_t i = 0; i < 5; i++) {
    cr_assert_eq(turns[i].at, want[i], "priority %d was number %zu", (int)priorities[i], turns[i].at);
  }
  OK(mkvm_close(engine));
}

/* ---- Deadlines ---- */

static void rest(actor *a) {
  (void)a;
  sleep_ms(300);
}

WITH_MODEL(deadlines_of_the_queue_and_of_all) {
  mkvm_engine *engine = open_tiny(1);
  answer waits = {.engine = engine}, in_time = {.engine = engine};
  actor first = {.answer = {.engine = engine}, .at = 4, .act = rest};
  mkvm_request request = request_of(&first.answer, prompt, 4, 50);
  request.on_token = act_on_token;
  request.on_end = act_on_end;
  request.user = &first;
  request.total_seconds = 0.2;
  OK(mkvm_submit(engine, &request, NULL));
  request = request_of(&waits, prompt, 4, 5);
  request.queue_seconds = 0.1;
  OK(mkvm_submit(engine, &request, NULL));
  request = request_of(&in_time, prompt, 4, 5);
  request.queue_seconds = 1000;
  request.total_seconds = INFINITY;
  OK(mkvm_submit(engine, &request, NULL));
  OK(mkvm_run(engine));
  cr_assert(first.answer.end.reason == MKVM_END_LATE && first.answer.end.status == MKVM_OK);
  cr_assert(first.answer.ends == 1 && first.answer.count <= 4 && first.answer.end.tokens == first.answer.count);
  cr_assert(waits.end.reason == MKVM_END_LATE && waits.count == 0 && waits.end.queue_seconds >= 0.1);
  cr_assert(in_time.end.reason == MKVM_END_LENGTH && in_time.count == 5);
  cr_assert(stats_of(engine).late == 2 && stats_of(engine).full == 1);
  request.queue_seconds = -1;
  REFUSED(mkvm_submit(engine, &request, NULL), MKVM_ERR_USAGE, "queue_seconds is -1");
  request.queue_seconds = 0;
  request.total_seconds = NAN;
  REFUSED(mkvm_submit(engine, &request, NULL), MKVM_ERR_USAGE, "total_seconds is");
  OK(mkvm_close(engine));
}

/* The time to wait is over once it has begun. */
WITH_MODEL(who_has_begun_waits_no_more) {
  mkvm_engine *engine = open_tiny(1);
  actor first = {.answer = {.engine = engine}, .at = 1, .act = rest};
  mkvm_request request = request_of(&first.answer, prompt, 4, 5);
  request.on_token = act_on_token;
  request.on_end = act_on_end;
  request.user = &first;
  for (request.queue_seconds = 0.2; first.answer.end.reason != MKVM_END_LENGTH; request.queue_seconds *= 2) {
    first.answer.count = first.answer.ends = first.answer.length = 0;
    first.at = request.queue_seconds < 0.25 ? 1 : 99; /* on a machine that is slow it may be late indeed */
    OK(mkvm_submit(engine, &request, NULL));
    OK(mkvm_run(engine));
    cr_assert(first.answer.end.reason == MKVM_END_LENGTH || first.answer.count == 0);
  }
  OK(mkvm_close(engine));
}

/* ---- KV cache ---- */

WITH_MODEL(what_is_known_is_not_computed_again) {
  for (uint32_t batch = 1; batch <= 4; batch += 3) {
    mkvm_options options = tiny_options(batch);
    mkvm_sampling sampling;
    mkvm_sampling_init(&sampling);
    sampling.temperature = batch == 1 ? 1.5 : 0;
    sampling.repetition_penalty = batch == 1 ? 1.3 : 1;
    for (int kept = 0; kept < 2; kept++) {
      answer first, again;
      options.prefix_tokens = kept != 0 ? UINT64_MAX : 0;
      mkvm_engine *engine = open_with(&options);
      for (answer *a = &first; a != NULL; a = a == &first ? &again : NULL) {
        *a = (answer){.engine = engine};
        mkvm_request request = request_of(a, long_prompt(), LONG, 20);
        request.sampling = &sampling;
        OK(mkvm_submit(engine, &request, NULL));
        OK(mkvm_run(engine));
      }
      const size_t known = kept != 0 ? 128 : 0;
      cr_assert(first.end.cached_tokens == 0 && again.end.cached_tokens == known);
      expect_same(&first, &again);
      mkvm_stats stats = stats_of(engine);
      cr_assert(stats.asked_tokens == 2 * LONG && stats.cached_tokens == known && stats.kv_tokens_used == 0);
      cr_assert(stats.kv_tokens == (uint64_t)batch * 256 && stats.kv_tokens_kept == known);
      OK(mkvm_close(engine));
    }
  }
}

WITH_MODEL(who_gives_its_room_away_gets_the_same_tokens) {
  enum { REQUESTS = 4, TOKENS = 100 };
  mkvm_options options = tiny_options(4);
  options.kv_tokens = 250; /* four blocks; each wants three in the end */
  answer all[REQUESTS], want;
  uint64_t preemptions = 0;
  mkvm_engine *engine = open_with(&options);
  for (size_t i = 0; i < REQUESTS; i++) {
    all[i] = (answer){.engine = engine};
    submit(&all[i], long_prompt() + i, 40, TOKENS);
  }
  OK(mkvm_run(engine));
  for (size_t i = 0; i < REQUESTS; i++) {
    preemptions += all[i].end.preemptions;
    alone(&options, long_prompt() + i, 40, TOKENS, &want);
    expect_same(&all[i], &want);
  }
  mkvm_stats stats = stats_of(engine);
  cr_assert(preemptions != 0 && stats.preemptions == preemptions && all[0].end.preemptions == 0);
  cr_assert(stats.kv_tokens == 256 && stats.kv_tokens_used == 0);
  OK(mkvm_close(engine));
}

WITH_MODEL(what_can_never_be_computed_is_refused_at_once) {
  mkvm_options options = tiny_options(2);
  options.kv_tokens = 128;
  mkvm_engine *engine = open_with(&options);
  answer a = {.engine = engine};
  mkvm_request request = request_of(&a, long_prompt(), 129, 1);
  REFUSED(mkvm_submit(engine, &request, NULL), MKVM_ERR_TOO_LONG, "the prompt has 129 tokens; the KV cache holds 128");
  submit(&a, long_prompt(), 120, 0);
  OK(mkvm_run(engine));
  cr_assert(a.end.reason == MKVM_END_LENGTH && a.count == 8);
  OK(mkvm_close(engine));
}

/* ---- The event ---- */

static bool readable(const mkvm_engine *engine) {
  struct pollfd event = {.fd = mkvm_event_fd(engine), .events = POLLIN};
  cr_assert_geq(event.fd, 0);
  cr_assert_geq(poll(&event, 1, 0), 0);
  return (event.revents & POLLIN) != 0;
}

static void expect_unreadable(actor *a) {
  cr_assert_not(readable(a->answer.engine));
  submit_other(a);
  cr_assert_not(readable(a->answer.engine));
}

WITH_MODEL(the_event_says_when_to_step) {
  mkvm_engine *engine = open_tiny(1);
  answer other = {.engine = engine};
  actor first = {.answer = {.engine = engine}, .at = 2, .act = expect_unreadable, .other = &other};
  uint64_t id;
  size_t left;
  cr_assert_eq(mkvm_event_fd(NULL), -1);
  cr_assert_not(readable(engine));
  OK(mkvm_step(engine, &left));
  cr_assert(left == 0 && !readable(engine));
  submit_actor(&first, 4);
  cr_assert(readable(engine));
  cr_assert(readable(engine));
  OK(mkvm_step(engine, &left));
  cr_assert(left == 1 && readable(engine));
  while (readable(engine)) {
    OK(mkvm_step(engine, &left));
  }
  cr_assert(left == 0 && other.ends == 1 && first.answer.ends == 1);
  mkvm_request request = request_of(&other, prompt, 4, 5);
  other = (answer){.engine = engine};
  OK(mkvm_submit(engine, &request, &id));
  OK(mkvm_cancel(engine, id));
  cr_assert(readable(engine)); /* its end is to be told */
  OK(mkvm_step(engine, &left));
  cr_assert(left == 0 && other.ends == 1 && !readable(engine));
  OK(mkvm_close(engine));
}
