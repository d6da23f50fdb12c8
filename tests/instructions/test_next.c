/* NEXT: the choice among candidates, the prompt's precedence, the step state and the ring. */
#include <criterion/criterion.h>
#include <math.h>

#include "tests/support/numbers.h"
#include "tests/support/rig.h"

enum { SMS = 5, CONTEXT = 100 };

typedef struct next {
  test_rig rig;
  uint16_t candidates, prompt, ring;
} next;

static void set_up(next *t) {
  test_rig *rig = &t->rig;
  test_rig_start(rig, MK_OP_NEXT, 1);
  t->candidates = test_rig_vector(rig, MK_DTYPE_U32, MK_STORE_STAMPED, SMS, 2, 2);
  t->prompt = test_rig_vector(rig, MK_DTYPE_U32, MK_STORE_PLAIN, 1, CONTEXT, 64);
  t->ring = test_rig_vector(rig, MK_DTYPE_U32, MK_STORE_PLAIN, 1, CONTEXT + 1, 64);
  test_rig_whole(rig, MK_SLOT_NEXT_candidates, t->candidates);
  test_rig_whole(rig, MK_SLOT_NEXT_prompt, t->prompt);
  test_rig_whole(rig, MK_SLOT_NEXT_ring, t->ring);
  for (uint32_t i = 0; i < CONTEXT; i++) {
    ((uint32_t *)(void *)rig->memory[t->prompt])[i] = 1000 + i;
  }
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
  t.rig.state = (mk_step_state){.token = 3, .position = 10, .prompt_length = 11};
  test_rig_expect_waits(&t.rig, SMS);
  test_rig_expect_done(&t.rig);
  cr_assert_eq(t.rig.state.token, want, "token %u, not %u", t.rig.state.token, want);
  cr_assert_eq(t.rig.state.position, 11);
  cr_assert_eq(t.rig.state.prompt_length, 11);
  cr_assert_eq(t.rig.state.nan_logits, nan);
  const uint32_t *ring = (const uint32_t *)(const void *)t.rig.memory[t.ring];
  for (uint32_t i = 0; i <= CONTEXT; i++) {
    cr_assert_eq(ring[i], i == 11 ? want : 0);
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

Test(next, the_prompt_has_precedence) {
  next t;
  set_up(&t);
  for (uint32_t sm = 0; sm < SMS; sm++) {
    candidate(&t, sm, NAN, 77); /* nobody may look */
  }
  t.rig.state = (mk_step_state){.token = 3, .position = 62, .prompt_length = 64};
  test_rig_expect_waits(&t.rig, SMS);
  test_rig_expect_done(&t.rig);
  cr_assert_eq(t.rig.state.token, 1063);
  cr_assert_eq(t.rig.state.nan_logits, 0);
  for (uint32_t sm = 0; sm < SMS; sm++) {
    candidate(&t, sm, (float)sm, 70 + sm);
  }
  test_rig_expect_done(&t.rig); /* position 63 is the prompt's last */
  cr_assert_eq(t.rig.state.token, 74);
  cr_assert_eq(t.rig.state.position, 64);
  test_rig_stop(&t.rig);
}

Test(next, last_position_of_the_context) {
  next t;
  set_up(&t);
  for (uint32_t sm = 0; sm < SMS; sm++) {
    candidate(&t, sm, 1, 7);
  }
  t.rig.state = (mk_step_state){.position = CONTEXT - 1, .prompt_length = CONTEXT};
  test_rig_expect_done(&t.rig);
  cr_assert_eq(((const uint32_t *)(const void *)t.rig.memory[t.ring])[CONTEXT], 7);
  test_rig_stop(&t.rig);
}

Test(next, without_a_ring_nothing_is_written) {
  next t;
  set_up(&t);
  for (uint32_t sm = 0; sm < SMS; sm++) {
    candidate(&t, sm, 1, 7);
  }
  t.rig.state = (mk_step_state){.position = 4, .prompt_length = 2};
  test_rig_operand(&t.rig, MK_SLOT_NEXT_ring, t.ring, 0, 0, 0, 0);
  test_rig_expect_done(&t.rig);
  cr_assert_eq(t.rig.state.token, 7);
  cr_assert_eq(((const uint32_t *)(const void *)t.rig.memory[t.ring])[5], 0);
  test_rig_stop(&t.rig);
}
