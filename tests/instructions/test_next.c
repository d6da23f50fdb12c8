/* NEXT: the choice among candidates, the plan's precedence, the step state and the ring. */
#include <criterion/criterion.h>
#include <math.h>

#include "tests/support/numbers.h"
#include "tests/support/rig.h"

enum { SMS = 5, STEPS = 100 };

typedef struct next {
  test_rig rig;
  uint16_t candidates, plan, ring;
} next;

static void set_up(next *t) {
  test_rig *rig = &t->rig;
  test_rig_start(rig, MK_OP_NEXT, 1);
  t->candidates = test_rig_vector(rig, MK_DTYPE_U32, MK_STORE_STAMPED, SMS, 2, 2);
  t->plan = test_rig_vector(rig, MK_DTYPE_U32, MK_STORE_PLAIN, 1, STEPS * MK_ROW_WORDS, 4);
  t->ring = test_rig_vector(rig, MK_DTYPE_U32, MK_STORE_PLAIN, 1, STEPS, 64);
  test_rig_whole(rig, MK_SLOT_NEXT_candidates, t->candidates);
  test_rig_whole(rig, MK_SLOT_NEXT_plan, t->plan);
  test_rig_whole(rig, MK_SLOT_NEXT_ring, t->ring);
}

/* The step at hand, and what the plan says of the one that follows. */
static mk_step_row *at_step(next *t, uint32_t step, uint32_t flags) {
  mk_step_row *plan = (mk_step_row *)(void *)t->rig.memory[t->plan];
  t->rig.state.step = step;
  t->rig.state.rows[0] = (mk_step_row){.position = 20 + step, .token = 3, .flags = MK_ROW_ACTIVE | flags};
  if (step + 1 < STEPS) {
    plan[step + 1] = (mk_step_row){.position = 21 + step, .token = MK_TOKEN_CHOSEN, .flags = MK_ROW_ACTIVE};
  }
  return &plan[step + 1];
}

static void candidate(next *t, uint32_t sm, float value, uint32_t index) {
  *test_rig_word(&t->rig, t->candidates, sm, 0) = (uint64_t)t->rig.generation << 32 | mk_float_param(value);
  *test_rig_word(&t->rig, t->candidates, sm, 1) = (uint64_t)t->rig.generation << 32 | index;
}

static void choose(const float values[SMS], const uint32_t indices[SMS], uint32_t want, bool nan) {
  next t;
  set_up(&t);
  for (uint32_t sm = 0; sm < SMS; sm++) {
    candidate(&t, sm, values[sm], indices[sm]);
  }
  (void)at_step(&t, 10, MK_ROW_CHOOSES);
  test_rig_expect_waits(&t.rig, SMS);
  test_rig_expect_done(&t.rig);
  uint32_t token = t.rig.state.rows[0].token, result = want | (nan ? MK_RESULT_NAN : 0);
  cr_assert_eq(token, want, "token %u, not %u", token, want);
  cr_assert_eq(t.rig.state.rows[0].position, 31);
  cr_assert_eq(t.rig.state.step, 11);
  cr_assert_eq(t.rig.state.results[0], result);
  const uint32_t *ring = (const uint32_t *)(const void *)t.rig.memory[t.ring];
  for (uint32_t i = 0; i < STEPS; i++) {
    cr_assert_eq(ring[i], i == 10 ? result : 0);
  }
  test_rig_stop(&t.rig);
}

Test(next, highest_value_wins) {
  choose((float[]){1, -2, 7.5f, 7, 0}, (uint32_t[]){1, 2, 33, 4, 5}, 33, false);
  choose((float[]){-5, -4, -9, -8, -7}, (uint32_t[]){10, 20, 30, 40, 50}, 20, false);
}

Test(next, ties_go_to_the_lowest_index_in_any_order_of_sms) {
  choose((float[]){2, 9, 9, 9, 1}, (uint32_t[]){1, 70, 50, 60, 5}, 50, false);
  choose((float[]){9, 9, 9, 9, 9}, (uint32_t[]){4, 3, 2, 1, 0}, 0, false);
  choose((float[]){0, -0.0f, -1, -1, -1}, (uint32_t[]){9, 8, 7, 6, 5}, 8, false);
}

Test(next, empty_candidates_never_win) {
  choose((float[]){-INFINITY, -INFINITY, -3e38f, -INFINITY, -INFINITY},
         (uint32_t[]){MK_CANDIDATE_NONE, MK_CANDIDATE_NONE, 12, MK_CANDIDATE_NONE, MK_CANDIDATE_NONE}, 12, false);
  choose((float[]){-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY},
         (uint32_t[]){MK_CANDIDATE_NONE, MK_CANDIDATE_NONE, 12, MK_CANDIDATE_NONE, 11}, 11, false);
}

Test(next, the_stop_bit_is_no_part_of_the_index) {
  choose((float[]){1, 2, 9, 9, 1}, (uint32_t[]){MK_CANDIDATE_STOP | 1, 2, MK_CANDIDATE_STOP | 44, 45, 5}, 44, false);
}

Test(next, not_a_number_is_noticed) {
  choose((float[]){INFINITY, NAN, 3, NAN, 4}, (uint32_t[]){1, 20, 3, 10, 5}, 10, true);
  choose((float[]){-NAN, 1, 3, 2, 4}, (uint32_t[]){6, 20, 3, 10, 5}, 6, true);
}

Test(next, the_plan_has_precedence) {
  next t;
  set_up(&t);
  for (uint32_t sm = 0; sm < SMS; sm++) {
    candidate(&t, sm, NAN, 77); /* nobody may look */
  }
  *at_step(&t, 62, 0) = (mk_step_row){.position = 83, .token = 1063, .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
  test_rig_expect_waits(&t.rig, SMS);
  test_rig_expect_done(&t.rig);
  cr_assert_eq(t.rig.state.rows[0].token, 1063);
  cr_assert_eq(t.rig.state.results[0], MK_CANDIDATE_NONE);
  ((mk_step_row *)(void *)t.rig.memory[t.plan])[64] =
      (mk_step_row){.position = 84, .token = MK_TOKEN_CHOSEN, .flags = MK_ROW_ACTIVE};
  for (uint32_t sm = 0; sm < SMS; sm++) {
    candidate(&t, sm, (float)sm, 70 + sm);
  }
  test_rig_expect_done(&t.rig); /* the last token that is given */
  cr_assert_eq(t.rig.state.rows[0].token, 74);
  cr_assert_eq(t.rig.state.rows[0].position, 84);
  test_rig_stop(&t.rig);
}

/* A step that does not choose leaves the choice before it. */
Test(next, an_earlier_choice) {
  next t;
  set_up(&t);
  for (uint32_t sm = 0; sm < SMS; sm++) {
    candidate(&t, sm, 1, 7);
  }
  (void)at_step(&t, 2, 0);
  t.rig.state.choices[0] = 55;
  test_rig_expect_done(&t.rig);
  cr_assert_eq(t.rig.state.rows[0].token, 55);
  test_rig_stop(&t.rig);
}

Test(next, last_step_of_the_plan) {
  next t;
  set_up(&t);
  for (uint32_t sm = 0; sm < SMS; sm++) {
    candidate(&t, sm, 1, 7);
  }
  (void)at_step(&t, STEPS - 1, MK_ROW_CHOOSES);
  test_rig_expect_done(&t.rig);
  cr_assert_eq(((const uint32_t *)(const void *)t.rig.memory[t.ring])[STEPS - 1], 7);
  cr_assert_eq(t.rig.state.rows[0].flags, 0, "no step follows");
  test_rig_stop(&t.rig);
}

Test(next, without_a_ring_nothing_is_written) {
  next t;
  set_up(&t);
  for (uint32_t sm = 0; sm < SMS; sm++) {
    candidate(&t, sm, 1, 7);
  }
  (void)at_step(&t, 4, MK_ROW_CHOOSES);
  test_rig_operand(&t.rig, MK_SLOT_NEXT_ring, t.ring, 0, 0, 0, 0);
  test_rig_expect_done(&t.rig);
  cr_assert_eq(t.rig.state.rows[0].token, 7);
  cr_assert_eq(((const uint32_t *)(const void *)t.rig.memory[t.ring])[4], 0);
  test_rig_stop(&t.rig);
}
