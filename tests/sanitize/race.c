/* A planted fault: two threads write to one number. */
#include <criterion/criterion.h>
#include <pthread.h>

static int number;

static void *count(void *user) {
  (void)user;
  number++;
  return NULL;
}

Test(planted, race) {
  pthread_t other;
  cr_assert_eq(pthread_create(&other, NULL, count, NULL), 0);
  number++;
  cr_assert_eq(pthread_join(other, NULL), 0);
}
