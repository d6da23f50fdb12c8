/* See numbers.h. */
#include "tests/support/numbers.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

uint64_t test_random(uint64_t *seed) {
  uint64_t z = *seed += UINT64_C(0x9E3779B97F4A7C15); /* splitmix64, Steele et al. 2014 */
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

uint32_t test_random_below(uint64_t *seed, uint32_t n) { return (uint32_t)((test_random(seed) >> 32) * n >> 32); }

float test_random_float(uint64_t *seed) { return (float)((int32_t)(test_random(seed) >> 40) - (1 << 23)) * 0x1p-23f; }

void test_shuffle(uint64_t *seed, uint32_t *table, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    uint32_t at = test_random_below(seed, i + 1);
    table[i] = table[at];
    table[at] = i;
  }
}

double test_relative_error(const double *got, const double *want, size_t count) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < count; i++) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return difference == 0 ? 0 : sqrt(difference / norm);
}

void test_expect_close(const char *what, const double *got, const double *want, size_t count, double limit) {
  double error = test_relative_error(got, want, count);
  cr_assert(error <= limit, "%s: relative error %g, limit %g", what, error, limit);
}

void test_expect_bf16(const char *what, const double *got, const double *want, size_t count, double slack) {
  double most = 0;
  for (size_t i = 0; i < count; i++) {
    most = fabs(want[i]) > most ? fabs(want[i]) : most;
  }
  for (size_t i = 0; i < count; i++) {
    float value = (float)got[i];
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    cr_assert(value == got[i] && (bits & 0xffff) == 0, "%s: element %zu, %.9g, is not a bf16 number", what, i, got[i]);
    double half_unit = want[i] == 0 ? 0 : ldexp(1, ilogb(want[i]) - 8);
    cr_assert(fabs(got[i] - want[i]) <= half_unit + slack * most, "%s: element %zu is %.9g, not %.9g rounded to bf16",
              what, i, got[i], want[i]);
  }
}
