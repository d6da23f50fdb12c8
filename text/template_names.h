/* Names as numbers, and numbers by number: hash tables for template_scope.c, so that a template with very many names
 * takes no longer than its length. Private to text/template*.c; memory is the pool's. */
#ifndef MK_TEMPLATE_NAMES_H
#define MK_TEMPLATE_NAMES_H

#include "text/template_tree.h"

typedef struct jinja_table {
  uint64_t *keys; /* plus one; 0: free */
  uint32_t *values;
  size_t count, size;
} jinja_table;

/* The value of a key; NULL when the key is not there. */
const uint32_t *mk_jinja_table_find(const jinja_table *t, uint64_t key);
/* Adds a key that is not there yet. */
mk_status mk_jinja_table_put(jinja_pool *pool, jinja_table *t, uint64_t key, uint32_t value);

typedef struct jinja_names {
  jinja_value *texts; /* by number */
  size_t count, capacity;
  uint32_t *buckets; /* number + 1; 0: free */
  size_t bucket_count;
} jinja_names;

/* The number of a name, from 0 on in the order in which they come. */
mk_status mk_jinja_number_of(jinja_pool *pool, jinja_names *s, jinja_value name, uint32_t *out);

#endif
