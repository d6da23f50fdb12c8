/* A radix sort from the lowest byte on. Bytes in which all keys are the same, as most are, cost nothing. See sort.h. */
#include "vm/verify/sort.h"

#include <string.h>

enum { BYTES = 16, VALUES = 256 };

static uint32_t byte_of(const mk_keyed *item, uint32_t byte) {
  return (uint32_t)(byte < 8 ? item->low >> (8 * byte) : item->high >> (8 * (byte - 8))) & 0xff;
}

static void sort_by_byte(const mk_keyed *from, mk_keyed *to, size_t count, uint32_t byte) {
  size_t places[VALUES] = {0}, next = 0;
  for (size_t i = 0; i < count; i++) {
    places[byte_of(&from[i], byte)]++;
  }
  for (uint32_t value = 0; value < VALUES; value++) {
    const size_t items = places[value];
    places[value] = next;
    next += items;
  }
  for (size_t i = 0; i < count; i++) {
    to[places[byte_of(&from[i], byte)]++] = from[i];
  }
}

/* Which bytes differ between the keys: a bit for each. */
static uint32_t differing(const mk_keyed *items, size_t count) {
  uint64_t low = 0, high = 0;
  uint32_t bytes = 0;
  for (size_t i = 1; i < count; i++) {
    low |= items[i].low ^ items[0].low;
    high |= items[i].high ^ items[0].high;
  }
  for (uint32_t byte = 0; byte < BYTES; byte++) {
    const mk_keyed difference = {.low = low, .high = high};
    bytes |= byte_of(&difference, byte) != 0 ? 1U << byte : 0;
  }
  return bytes;
}

mk_status mk_sort_keyed(mk_keyed *items, size_t count) {
  mk_keyed *other = NULL, *from = items;
  uint32_t bytes = differing(items, count);
  if (bytes == 0) {
    return MK_OK;
  }
  MK_TRY(mk_alloc(count, sizeof *other, &other));
  for (; bytes != 0; bytes &= bytes - 1) {
    mk_keyed *to = from == items ? other : items;
    sort_by_byte(from, to, count, (uint32_t)__builtin_ctz(bytes));
    from = to;
  }
  if (from != items) {
    memcpy(items, from, count * sizeof *items);
  }
  mk_free(other);
  return MK_OK;
}

mk_status mk_sort_table(mk_keyed *items, size_t count, void *table, size_t size) {
  char *sorted, *unsorted;
  MK_TRY(mk_sort_keyed(items, count));
  MK_TRY(mk_alloc(count, size, &sorted));
  memcpy(&unsorted, table, sizeof unsorted);
  for (size_t i = 0; i < count; i++) {
    memcpy(sorted + i * size, unsorted + items[i].entry * size, size);
  }
  memcpy(table, &sorted, sizeof sorted);
  mk_free(unsorted);
  return MK_OK;
}
