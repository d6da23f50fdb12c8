/* A request's bits depend on model, prompt and parameters alone: random schedules (tests/support/schedule.h), of which
 * tools/soak runs many more. */
#include <criterion/criterion.h>

#include "tests/support/effort.h"
#include "tests/support/schedule.h"

static schedule_world *new_world(void) {
  schedule_world *world;
  cr_assert_eq(schedule_world_new(&world), MK_OK);
  return world;
}

/* Everything that can happen in a schedule does happen. */
Test(schedules, requests_have_their_bits_whatever_comes_and_goes) {
  schedule_world *world = new_world();
  schedule_counts counts = {0};
  uint32_t schedules = test_repeats(150, 600);
  for (uint64_t seed = 1; seed <= schedules; seed++) {
    cr_assert_eq(schedule_run(world, seed, NULL, &counts), MK_OK, "%s", mk_error_message());
  }
  for (size_t i = 0; i < SCHEDULE_COUNTS; i++) {
    cr_log_info("%s: %llu", schedule_count_names[i], (unsigned long long)counts.n[i]);
    cr_expect_neq(counts.n[i], 0, "%s: none", schedule_count_names[i]);
  }
  cr_expect_eq(counts.most_overtaken, MK_MOST_OVERTAKEN, "overtaken %u times", counts.most_overtaken);
  schedule_world_free(world);
}

/* Those of a world whose caches are in fp8. */
Test(schedules, requests_have_their_bits_over_a_cache_in_fp8) {
  schedule_world *world = new_world();
  schedule_counts counts = {0};
  for (uint64_t seed = SCHEDULE_WORLD; seed < SCHEDULE_WORLD + test_repeats(60, 400); seed++) {
    cr_assert_eq(schedule_run(world, seed, NULL, &counts), MK_OK, "%s", mk_error_message());
  }
  cr_expect(counts.n[SCHEDULE_INTERLEAVED] != 0 && counts.n[SCHEDULE_REQUESTS] != 0);
  schedule_world_free(world);
}

Test(schedules, a_seed_is_a_schedule) {
  schedule_world *world = new_world(), *other = new_world();
  schedule_counts first = {0}, again = {0};
  for (uint64_t seed = 30; seed < 40; seed++) {
    cr_assert_eq(schedule_run(world, seed, NULL, &first), MK_OK, "%s", mk_error_message());
    cr_assert_eq(schedule_run(other, 69 - seed, NULL, &again), MK_OK, "%s", mk_error_message());
  }
  for (size_t i = 0; i < SCHEDULE_COUNTS; i++) {
    cr_expect_eq(first.n[i], again.n[i], "%s", schedule_count_names[i]);
  }
  schedule_world_free(world);
  schedule_world_free(other);
}

/* Compares what callers see, without a look into the engine. */
Test(schedules, planted_faults_are_found) {
  enum { MOST = 2000 };
  for (size_t i = 0; i < schedule_plant_count; i++) {
    const schedule_options options = {.plant = &schedule_plants[i], .bits_alone = true};
    schedule_world *world = new_world();
    schedule_counts counts = {0};
    mk_status status = MK_OK;
    uint64_t seed = 0;
    while (status == MK_OK && seed < MOST) {
      status = schedule_run(world, ++seed, &options, &counts);
    }
    cr_expect_eq(status, MK_ERR_DEVICE, "%s: not found by %d schedules", options.plant->name, MOST);
    cr_log_info("%s: found by schedule %llu: %s", options.plant->name, (unsigned long long)seed, mk_error_message());
    schedule_world_free(world);
  }
}
