/* See defaults.h. */
#include "lib/defaults.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

mk_sampling mk_sampling_of_generation(const mk_generation *generation) {
  mk_sampling sampling = MK_SAMPLING_OFF;
  sampling.temperature = generation->temperature;
  sampling.top_k = generation->top_k;
  sampling.top_p = generation->top_p;
  sampling.min_p = generation->min_p;
  sampling.repetition = generation->repetition_penalty;
  return sampling;
}

mk_status mk_random_seed(uint64_t *seed) {
  uint32_t bits;
  if (getrandom(&bits, sizeof bits, 0) != (ssize_t)sizeof bits) {
    return mk_error(MK_ERR_RUNTIME, "the system gives no random seed (%s); give one yourself", strerror(errno));
  }
  *seed = bits;
  return MK_OK;
}
