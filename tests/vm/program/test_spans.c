/* Whose spans lie where: each unit's splits are those whose spans it has, and few slots lie far apart. */
#include "vm/program/spans.h"

#include <criterion/criterion.h>

Test(spans, a_unit_has_the_spans_of_its_split) {
  for (uint32_t units = 1; units <= MK_MAX_UNITS; units++) {
    for (uint32_t slot = 0; slot < 2 * MK_MAX_ROWS; slot++) {
      for (uint32_t span = 0; span < 2 * units; span++) {
        const uint32_t unit = mk_unit_of(span, slot, units);
        cr_assert_lt(unit, units);
        cr_assert_eq(mk_split_of(unit, slot, units), span % units);
      }
    }
  }
}

Test(spans, few_slots_begin_far_apart) {
  for (uint32_t units = 1; units <= MK_MAX_UNITS; units++) {
    for (uint32_t slots = 1; slots <= MK_MAX_ROWS; slots *= 2) {
      for (uint32_t slot = 0; slot < slots; slot++) {
        for (uint32_t other = 0; other < slot; other++) {
          const uint32_t away = mk_split_of(mk_first_unit(slot, units), other, units);
          cr_assert_geq(away, units / slots, "slots %u and %u of %u, %u units", other, slot, slots, units);
          cr_assert_geq(units - away, units / slots, "slots %u and %u of %u, %u units", other, slot, slots, units);
        }
      }
    }
  }
}

/* With as many units as slots no two of them share one. */
Test(spans, sixteen_slots_have_sixteen_units) {
  uint32_t seen = 0;
  for (uint32_t slot = 0; slot < MK_MAX_ROWS; slot++) {
    seen |= 1u << mk_first_unit(slot, MK_MAX_ROWS);
  }
  cr_assert_eq(seen, (1u << MK_MAX_ROWS) - 1);
}
