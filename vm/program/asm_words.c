/* Words, fields and names of the text form. See asm_internal.h. */
#include <stdio.h>
#include <string.h>

#include "vm/program/asm_internal.h"

const char *mk_word_quote(mk_word word, char *out, size_t size) {
  size_t used = 0;
  bool cut = word.length >= size;
  for (size_t i = 0; i < word.length && used + (cut ? 4 : 1) < size; i++) {
    out[used++] = word.at[i] < ' ' || word.at[i] > '~' ? '?' : word.at[i];
  }
  for (int i = 0; cut && i < 3; i++) {
    out[used++] = '.';
  }
  out[used] = 0;
  return out;
}

bool mk_word_is(mk_word word, const char *text) {
  return strlen(text) == word.length && memcmp(word.at, text, word.length) == 0;
}

static bool blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

mk_word mk_word_next(mk_word *line) {
  const char *at = line->at, *end = line->at + line->length;
  while (at < end && blank(*at)) {
    at++;
  }
  mk_word word = {.at = at};
  while (at < end && !blank(*at)) {
    at++;
  }
  word.length = (size_t)(at - word.at);
  *line = (mk_word){.at = at, .length = (size_t)(end - at)};
  return word;
}

bool mk_word_split(mk_word word, const char *separator, mk_word *left, mk_word *right) {
  size_t length = strlen(separator);
  for (size_t i = 0; i + length <= word.length; i++) {
    if (memcmp(word.at + i, separator, length) == 0) {
      *left = (mk_word){.at = word.at, .length = i};
      *right = (mk_word){.at = word.at + i + length, .length = word.length - i - length};
      return true;
    }
  }
  return false;
}

static int digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : 16;
}

mk_status mk_word_number(mk_word word, const char *field, uint64_t most, uint64_t *out) {
  bool hex = word.length > 2 && word.at[0] == '0' && word.at[1] == 'x';
  uint64_t value = 0, base = hex ? 16 : 10;
  bool good = word.length > 0;
  for (size_t i = hex ? 2 : 0; i < word.length && good; i++) {
    uint64_t d = (uint64_t)digit(word.at[i]);
    good = d < base && !__builtin_mul_overflow(value, base, &value) && !__builtin_add_overflow(value, d, &value);
  }
  if (!good || value > most) {
    return mk_error(MK_ERR_FILE, "%s is " MK_WORD_FORMAT "; write a whole number from 0 to %llu", field,
                    MK_WORD_ARGUMENT(word), (unsigned long long)most);
  }
  *out = value;
  return MK_OK;
}

mk_status mk_word_field(mk_word word, const char *what, const char *const *names, uint32_t count, uint32_t *seen,
                        uint32_t *index, mk_word *value) {
  mk_word key = word;
  bool split = mk_word_split(word, "=", &key, value);
  for (uint32_t i = 0; i < count && split; i++) {
    if (mk_word_is(key, names[i])) {
      if ((*seen >> i & 1) != 0) {
        return mk_error(MK_ERR_FILE, MK_WORD_FORMAT ": %s is given twice; keep one", MK_WORD_ARGUMENT(word), names[i]);
      }
      *seen |= UINT32_C(1) << i;
      *index = i;
      return MK_OK;
    }
  }
  char list[512];
  size_t used = 0;
  list[0] = 0;
  for (uint32_t i = 0; i < count && used < sizeof list; i++) {
    int more = snprintf(list + used, sizeof list - used, i == 0 ? "%s" : ", %s", names[i]);
    used += more < 0 ? 0 : (size_t)more;
  }
  return mk_error(MK_ERR_FILE, MK_WORD_FORMAT " is not a FIELD=VALUE of %s; its fields are %s", MK_WORD_ARGUMENT(word),
                  what, count == 0 ? "none" : list);
}

static const char *name_at(const void *names, size_t stride, uint32_t index) {
  return (const char *)names + index * stride;
}

static uint64_t hash(const char *name, size_t length) {
  uint64_t value = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < length; i++) {
    value = (value ^ (unsigned char)name[i]) * UINT64_C(0x100000001b3);
  }
  return value ^ value >> 32;
}

int64_t mk_name_find(const mk_name_table *table, const void *names, size_t stride, mk_word name) {
  if (table->capacity == 0) {
    return -1;
  }
  for (size_t slot = hash(name.at, name.length) & (table->capacity - 1); table->slots[slot] != 0;
       slot = (slot + 1) & (table->capacity - 1)) {
    uint32_t index = table->slots[slot] - 1;
    if (mk_word_is(name, name_at(names, stride, index))) {
      return index;
    }
  }
  return -1;
}

static void insert(mk_name_table *table, const char *name, uint32_t index) {
  size_t slot = hash(name, strlen(name)) & (table->capacity - 1);
  while (table->slots[slot] != 0) {
    slot = (slot + 1) & (table->capacity - 1);
  }
  table->slots[slot] = index + 1;
}

mk_status mk_name_add(mk_name_table *table, const void *names, size_t stride, uint32_t index) {
  if (2 * (table->count + 1) > table->capacity) {
    mk_name_table larger = {.capacity = table->capacity == 0 ? 64 : 2 * table->capacity};
    MK_TRY(mk_alloc(larger.capacity, sizeof *larger.slots, &larger.slots));
    larger.count = table->count;
    for (uint32_t i = 0; i < index; i++) {
      insert(&larger, name_at(names, stride, i), i);
    }
    mk_free(table->slots);
    *table = larger;
  }
  insert(table, name_at(names, stride, index), index);
  table->count++;
  return MK_OK;
}
