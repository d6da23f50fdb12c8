/* A radix sort from the lowest byte on. Bytes in which all keys are the same, as most are, cost nothing. See sort.h. */
#include "vm/verify/sort.h"

#include <string.h>

enum { BYTES = 16, VALUES = 256 };

static uint32_t byte_of(const mk_keyed *item, uint32_t byte) {
  return (uint32_t)(byte < 8 ? item->low >> (8 * byte) : item->high >> (8 * (byte - 8))) & 0xff;
}

static void sort_by_byte(const mk_keyed *from, mk_keyed *to, size_t count, uint32_t byte, size_t *places) {
  size_t next = 0;
  for (uint32_t value = 0; value < VALUES; value++) {
    const size_t items = places[value];
    places[value] = next;
    next += items;
  }
  for (size_t i = 0; i < count; i++) {
    to[places[byte_of(&from[i], byte)]++] = from[i];
  }
}

mk_status mk_sort_keyed(mk_keyed *items, size_t count) {
  size_t counts[BYTES][VALUES] = {0};
  mk_keyed *other = NULL, *from = items;
  if (count < 2) {
    return MK_OK;
  }
  for (size_t i = 0; i < count; i++) {
    for (uint32_t byte = 0; byte < BYTES; byte++) {
      counts[byte][byte_of(&items[i], byte)]++;
    }
  }
  MK_TRY(mk_alloc(count, sizeof *other, &other));
  for (uint32_t byte = 0; byte < BYTES; byte++) {
    if (counts[byte][byte_of(&items[0], byte)] != count) {
      mk_keyed *to = from == items ? other : items;
      sort_by_byte(from, to, count, byte, counts[byte]);
      from = to;
    }
  }
  if (from != items) {
    memcpy(items, from, count * sizeof *items);
  }
  mk_free(other);
  return MK_OK;
}

mk_status mk_sort_table(mk_keyed *items, size_t count, void *table, size_t size) {
  char *sorted;
  MK_TRY(mk_sort_keyed(items, count));
  MK_TRY(mk_alloc(count, size, &sorted));
  for (size_t i = 0; i < count; i++) {
    memcpy(sorted + i * size, (const char *)table + items[i].entry * size, size);
  }
  memcpy(table, sorted, count * size);
  mk_free(sorted);
  return MK_OK;
}
