/* How many threads are worth having. */
#ifndef MK_CORES_H
#define MK_CORES_H

#include <stdint.h>

/* The cores that this thread may use (its affinity: what taskset and containers leave it), at least 1 and at most
 * `most`. Any thread. */
uint32_t mk_cores(uint32_t most);

#endif
