/* Planted fault: a signed addition that overflows. */
#include <criterion/criterion.h>
#include <limits.h>

Test(planted, integer_overflow) {
  volatile int most = INT_MAX;
  volatile int one = 1;
  volatile int sum = most + one;
  (void)sum;
}
