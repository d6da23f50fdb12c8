/* See cores.h. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "vm/cores.h"

#include <sched.h>

uint32_t mk_cores(uint32_t most) {
  cpu_set_t cores;
  const int count = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
  return count < 1 ? 1 : (uint32_t)count > most ? most : (uint32_t)count;
}
