/* Rankings of an engine on a GPU that is none, in the place of logits, and the step that is queued while the host takes
 * those of the one before. */
#include "tests/engine/gpu_engine_rig.h"

/* Rankings in the place of logits: of what is generated, of what of a prompt follows, and of nobody else. */
typedef struct ranked {
  batch *b;
  mk_ranking of[2];
  uint32_t tokens[2], positions;
} ranked;

static void expect_ranking(const mk_ranking *ranking, uint32_t token) {
  cr_assert(ranking->rank == token + 1 && ranking->logprob == -1.0 - token, "token %u: rank %u, %g", token,
            ranking->rank, ranking->logprob);
  cr_assert_eq(ranking->count, ranking->most);
  for (uint32_t i = 0; i < ranking->count; i++) {
    cr_assert(ranking->top[i].token == i && ranking->top[i].logprob == -1.0 - i);
  }
}

static bool take_ranked(void *user, size_t sequence, uint32_t token, const float *logits) {
  ranked *r = user;
  if (sequence < 2) {
    expect_ranking(&r->of[sequence], token);
    r->tokens[sequence]++;
  }
  return take_token(r->b, sequence, token, logits);
}

static void take_ranked_prompt(void *user, size_t sequence, uint32_t position, const float *logits) {
  ranked *r = user;
  cr_assert(sequence == 1 && logits == NULL);
  expect_ranking(&r->of[1], r->b->prompts[1][position + 1]);
  r->positions++;
}

static void end_ranked(void *user, size_t sequence, mk_status status) {
  take_end(((ranked *)user)->b, sequence, status);
}

static void expect_rankings(uint32_t rows) {
  rig r = {0};
  start(&r, rows, rows > 1, false);
  make_batch(&r.b, 4, 70);
  ranked wanted = {.b = &r.b, .of = {{.most = 20}, {.most = 3}}};
  r.b.sequences[0].ranking = &wanted.of[0];
  r.b.sequences[1].ranking = &wanted.of[1];
  r.b.sequences[1].prompt_logits = true;
  const mk_sequence_calls calls = {
      .token = take_ranked, .prompt = take_ranked_prompt, .ended = end_ranked, .user = &wanted};
  cr_assert_eq(mk_engine_generate_all(r.engine, r.b.sequences, r.b.count, &calls), MK_OK, "%s", mk_error_message());
  expect_answers(&r.b, false);
  cr_assert(wanted.tokens[0] == r.b.answers[0].count && wanted.tokens[1] == r.b.answers[1].count);
  cr_assert_eq(wanted.positions, r.b.sequences[1].prompt_count - 1);
  cr_assert_eq(r.kernel.ranked, wanted.tokens[0] + wanted.tokens[1] + wanted.positions);
  stop(&r);
}

Test(gpu_rankings, rankings_of_one_row) { expect_rankings(1); }
Test(gpu_rankings, rankings_of_four_rows) { expect_rankings(4); }
Test(gpu_rankings, rankings_of_sixteen_rows) { expect_rankings(16); }
Test(gpu_rankings, rankings_of_sixty_four_rows) { expect_rankings(64); } /* more than the kernel ranks at a time */

/* ---- The step after the one whose rankings the host takes ---- */

typedef struct ahead { /* a ranked sequence, alone on a machine of one row until it has company */
  rig r;
  mk_ranking ranking;
  uint64_t launches[MOST_TOKENS]; /* when token i was told */
  uint32_t fault_after;           /* tokens; 0: never */
} ahead;

static bool take_ahead(void *user, size_t sequence, uint32_t token, const float *logits) {
  ahead *a = user;
  answer *to = &a->r.b.answers[sequence];
  if (sequence == 0) {
    expect_ranking(&a->ranking, token);
    a->launches[to->count] = mk_gpu_launches(mk_engine_gpu(a->r.engine));
  }
  if (a->fault_after != 0 && to->count + 1 == a->fault_after) {
    a->r.kernel.fault_at = 0;
  }
  return take_token(&a->r.b, sequence, token, logits);
}

static void end_ahead(void *user, size_t sequence, mk_status status) {
  take_end(&((ahead *)user)->r.b, sequence, status);
}

static void start_ahead(ahead *a, uint32_t rows) {
  start(&a->r, rows, false, false);
  make_batch(&a->r.b, 1, 3);
  a->ranking = (mk_ranking){.most = 2};
  a->r.b.sequences[0].ranking = &a->ranking;
  a->r.b.sequences[0].n_predict = 8;
}

static mk_status generate_ahead(ahead *a) {
  const mk_sequence_calls calls = {.token = take_ahead, .ended = end_ahead, .user = a};
  return mk_engine_generate_all(a->r.engine, a->r.b.sequences, a->r.b.count, &calls);
}

/* Each step but the last is told when the next one is on its way. */
Test(gpu_rankings, the_next_step_is_queued_before_the_rankings_of_one_are_told) {
  ahead a = {0};
  start_ahead(&a, 1);
  cr_assert_eq(generate_ahead(&a), MK_OK, "%s", mk_error_message());
  expect_answers(&a.r.b, false);
  for (uint32_t i = 0; i < 8; i++) {
    cr_assert_eq(a.launches[i], i < 7 ? i + 2 : 8, "token %u: %llu", i, (unsigned long long)a.launches[i]);
  }
  make_batch(&a.r.b, 1, 3); /* who wants logits has the machine for itself until it has them */
  a.r.b.sequences[0].n_predict = 8;
  a.r.b.sequences[0].logits = true;
  cr_assert_eq(generate(a.r.engine, &a.r.b), MK_OK, "%s", mk_error_message());
  expect_answers(&a.r.b, true);
  cr_assert_eq(mk_gpu_launches(mk_engine_gpu(a.r.engine)), 16);
  stop(&a.r);
}

/* Its callback ends it after two tokens: one step was queued in vain, and harms nobody. */
Test(gpu_rankings, a_step_that_nobody_needs_any_more) {
  for (uint32_t rows = 1; rows <= 4; rows *= 4) {
    ahead a = {0};
    start_ahead(&a, rows);
    a.r.b.answers[0].most = 2;
    cr_assert_eq(generate_ahead(&a), MK_OK, "%s", mk_error_message());
    expect_answers(&a.r.b, false);
    expect_whole_batch(&a.r, MOST_SEQUENCES, 90, false);
    stop(&a.r);
  }
}

static void bring_ranked_company(void *user) {
  ahead *a = user;
  const mk_sequence_calls calls = {.token = take_ahead, .ended = end_ahead, .user = a};
  if (a->r.b.count == 1 && a->r.b.answers[0].count == 3) {
    a->r.b.count = 2;
    cr_assert_eq(mk_engine_submit(a->r.engine, &a->r.b.sequences[1], &calls, 1, NULL), MK_OK);
  }
}

Test(gpu_rankings, company_comes_while_a_step_is_queued) {
  ahead a = {0};
  size_t left = 1;
  const mk_sequence_calls calls = {.token = take_ahead, .ended = end_ahead, .user = &a};
  a.r.cuda = fake_gpu_start(&a.r.kernel);
  const mk_engine_options options = {.rows = 4, .poll = bring_ranked_company, .poll_user = &a};
  cr_assert_eq(open_with(options, &a.r.b, &a.r.engine), MK_OK, "%s", mk_error_message());
  make_batch(&a.r.b, 2, 20);
  a.r.b.count = 1;
  a.ranking = (mk_ranking){.most = 3};
  a.r.b.sequences[0].ranking = &a.ranking;
  a.r.b.sequences[0].n_predict = MOST_TOKENS;
  a.r.b.sequences[1].n_predict = 4;
  cr_assert_eq(mk_engine_submit(a.r.engine, &a.r.b.sequences[0], &calls, 0, NULL), MK_OK);
  while (left != 0) {
    cr_assert_eq(mk_engine_step(a.r.engine, &left), MK_OK, "%s", mk_error_message());
  }
  cr_assert_eq(a.r.b.count, 2);
  expect_answers(&a.r.b, false);
  stop(&a.r);
}

/* The step that was queued fails; what was told before it stands. */
Test(gpu_rankings, a_fault_in_a_step_that_was_queued) {
  ahead a = {0};
  start_ahead(&a, 1);
  a.fault_after = 3;
  cr_assert_eq(generate_ahead(&a), MK_OK); /* of one row: it is told to its sequence */
  cr_assert_eq(a.r.b.answers[0].status, MK_ERR_DEVICE);
  cr_assert_eq(a.r.b.answers[0].count, 3);
  a.r.kernel.fault_at = UINT32_MAX;
  a.fault_after = 0;
  expect_whole_batch(&a.r, 6, 40, false);
  stop(&a.r);
}

Test(gpu_rankings, a_call_that_fails_while_a_step_is_queued) {
  uint32_t calls = 0;
  for (uint32_t n = 0; n <= calls; n++) { /* the first time, none */
    ahead a = {0};
    start_ahead(&a, 1);
    a.r.cuda->calls = 0;
    a.r.cuda->fail_at = n;
    const mk_status status = generate_ahead(&a);
    calls = n == 0 ? a.r.cuda->calls : calls;
    cr_assert_eq(status == MK_OK && a.r.b.answers[0].status == MK_OK, n == 0, "call %u of %u", n, calls);
    a.r.cuda->fail_at = 0;
    stop(&a.r);
  }
  cr_assert_gt(calls, 80);
}
