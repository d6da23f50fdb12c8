/* See mutants.h. */
#include "tests/support/mutants.h"

#include <criterion/criterion.h>

#include "tests/mutation/mutation.h"
#include "vm/verify/verify.h"

/* MK_OK when all interleavings end in the same words. */
static mk_status judge(const mutant_rig *rig, const mk_program *p, uint32_t mutant) {
  uint64_t want = 0, have;
  for (uint32_t seed = 0; seed < rig->seeds; seed++) {
    const mk_cpu_options options = {
        .seed = seed == 0 ? 0 : mutant * rig->seeds + seed, .adversarial = seed != 0, .check_races = true};
    MK_TRY(rig->run(p, options, &have));
    want = seed == 0 ? have : want;
    if (have != want) {
      return mk_error(MK_ERR_DEVICE, "seed %u gives other bits", seed);
    }
  }
  return MK_OK;
}

void mutants_expect_sound(const mutant_rig *rig, uint32_t times) {
  mk_program *p = rig->base();
  cr_assert_eq(mk_verify(p, NULL), MK_OK, "%s", mk_error_message());
  for (uint32_t i = 1; i <= times; i++) {
    cr_assert_eq(judge(rig, p, i), MK_OK, "%s", mk_error_message());
  }
  mk_program_free(p);
}

mutant_counts mutants_expect(const mutant_rig *rig, uint64_t random, uint32_t mutants) {
  mutant_counts counts = {0};
  for (uint32_t kind = 0; kind < MUTATION_CLASSES + (rig->other != NULL); kind++) {
    const bool other = kind == MUTATION_CLASSES, about_order = other || mutation_infos[kind].order;
    for (uint32_t i = 0; i < mutants; i++) {
      mk_program *p = rig->base();
      const bool changed = other ? rig->other(p, &random) : mutation_apply(p, (mutation_class)kind, &random);
      const uint32_t mutant = kind * mutants + i;
      if (!changed || mk_verify(p, NULL) == MK_OK) {
        cr_assert(!changed || judge(rig, p, mutant) == MK_OK, "mutant %u of class %s was accepted: %s", i,
                  other ? "other" : mutation_infos[kind].name, mk_error_message());
        counts.accepted++;
      } else {
        counts.rejected++;
        counts.failing += about_order && mutation_can_run(p) && judge(rig, p, mutant) != MK_OK;
      }
      mk_program_free(p);
    }
  }
  return counts;
}
