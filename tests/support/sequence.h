/* One sequence on a CPU machine of one row per step, run after run: the plans that go on from where the last run ended.
 *
 * Plain data; the prompt is the caller's. One thread. Failure: as mk_cpu_run_plan. */
#ifndef MK_TEST_SEQUENCE_H
#define MK_TEST_SEQUENCE_H

#include "vm/cpu/machine.h"

typedef struct test_sequence {
  uint32_t token, position; /* of the next step */
  const uint32_t *prompt;   /* by position; NULL: none */
  uint32_t prompt_length;
} test_sequence;

/* `token` follows `position`. false: no more. */
typedef bool (*test_token_fn)(void *user, uint32_t position, uint32_t token);

typedef struct test_sequence_run_state {
  test_sequence *sequence;
  test_token_fn fn;
  void *user;
} test_sequence_run_state;

static inline bool test_sequence_hear(void *user, uint32_t step, const uint32_t *results) {
  test_sequence_run_state *r = user;
  test_sequence *s = r->sequence;
  (void)step;
  s->position++;
  s->token = s->position < s->prompt_length ? s->prompt[s->position] : results[0];
  return r->fn == NULL || r->fn(r->user, s->position - 1, s->token);
}

/* Whatever `steps` and the tokens are: the machine's options may say that plans go unchecked. */
static inline mk_status test_sequence_run(test_sequence *s, mk_cpu *cpu, uint32_t steps, test_token_fn fn, void *user) {
  mk_step_row *plan;
  MK_TRY(mk_alloc((size_t)steps + 1, sizeof *plan, &plan));
  for (uint32_t i = 0; i < steps; i++) {
    uint32_t position = s->position + i;
    bool given = position < s->prompt_length, more = (uint64_t)position + 1 < s->prompt_length;
    plan[i] = (mk_step_row){
        .position = position,
        .token = i == 0  ? s->token
                 : given ? s->prompt[position]
                         : MK_TOKEN_CHOSEN,
        .flags = MK_ROW_ACTIVE | (given ? (uint32_t)MK_ROW_PROMPT : 0) | (more ? 0 : (uint32_t)MK_ROW_CHOOSES)};
  }
  test_sequence_run_state state = {s, fn, user};
  mk_status status = mk_cpu_run_plan(cpu, plan, steps, test_sequence_hear, &state);
  mk_free(plan);
  return status;
}

/* Runs without a prompt and without a callback. */
static inline mk_status test_sequence_steps(mk_cpu *cpu, uint32_t token, uint32_t position, uint32_t steps) {
  test_sequence sequence = {.token = token, .position = position};
  return test_sequence_run(&sequence, cpu, steps, NULL, NULL);
}

#endif
