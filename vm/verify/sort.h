/* Sorting of the verifier's tables: stable, in time that is proportional to their length. */
#ifndef MK_VERIFY_SORT_H
#define MK_VERIFY_SORT_H

#include <stddef.h>
#include <stdint.h>

#include "vm/status.h"

typedef struct mk_keyed { /* an entry of a table, by its number */
  uint64_t high, low;     /* what it is sorted by: by `high` first */
  uint32_t entry;
} mk_keyed;

/* Sorts by the keys; what has the same keys stays in its order. Failure: MK_ERR_RUNTIME for memory. */
mk_status mk_sort_keyed(mk_keyed *items, size_t count);
/* The same, and puts in the place of *table, an array of as many entries of `size` bytes that mk_alloc gave, one in
 * their order. */
mk_status mk_sort_table(mk_keyed *items, size_t count, void *table, size_t size);

#endif
