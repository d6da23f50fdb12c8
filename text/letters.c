/* See letters.h. */
#include "text/letters.h"

enum { FLAG_BITS = 10 };

/* `count` characters, `step` apart, whose images are `delta` away. */
typedef struct mk_case_run {
  uint32_t first;
  uint16_t count;
  uint8_t step;
  int32_t delta;
} mk_case_run;

/* A character whose image is several; 0 where there are fewer than three. */
typedef struct mk_case_special {
  uint32_t character, image[3];
} mk_case_special;

#include "text/letters_tables.h"

unsigned mk_letter_flags(uint32_t character) {
  size_t low = 0,
         high = sizeof kFlags / sizeof kFlags[0]; /* kFlags[low] starts at or before it, kFlags[high] after it */
  while (high - low > 1) {
    size_t middle = (low + high) / 2;
    if (kFlags[middle] >> FLAG_BITS <= character) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return kFlags[low] & ((1u << FLAG_BITS) - 1);
}

static uint32_t simple(const mk_case_run *runs, size_t count, uint32_t character) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    const mk_case_run *run = &runs[middle];
    if (character < run->first) {
      high = middle;
    } else if (character > run->first + (run->count - 1u) * run->step) {
      low = middle + 1;
    } else {
      return (character - run->first) % run->step == 0 ? (uint32_t)((int64_t)character + run->delta) : character;
    }
  }
  return character;
}

static const mk_case_special *special(const mk_case_special *specials, size_t count, uint32_t character) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (specials[middle].character == character) {
      return &specials[middle];
    }
    if (specials[middle].character < character) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return NULL;
}

#define COUNTED(table) (table), sizeof(table) / sizeof(table)[0]

size_t mk_letter_to_case(uint32_t character, mk_letter_case to, uint32_t out[3]) {
  static const struct {
    const mk_case_run *runs;
    size_t run_count;
    const mk_case_special *specials;
    size_t special_count;
  } tables[] = {
      [MK_CASE_UPPER] = {COUNTED(kUpperRuns), COUNTED(kUpperSpecials)},
      [MK_CASE_LOWER] = {COUNTED(kLowerRuns), COUNTED(kLowerSpecials)},
      [MK_CASE_TITLE] = {COUNTED(kTitleRuns), COUNTED(kTitleSpecials)},
      [MK_CASE_FOLD] = {COUNTED(kFoldRuns), COUNTED(kFoldSpecials)},
  };
  const mk_case_special *several = special(tables[to].specials, tables[to].special_count, character);
  if (several == NULL || character == 0) {
    out[0] = simple(tables[to].runs, tables[to].run_count, character);
    return 1;
  }
  size_t count = 0;
  while (count < 3 && several->image[count] != 0) {
    out[count] = several->image[count];
    count++;
  }
  return count;
}
