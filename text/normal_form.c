/* See normal_form.h.
 *
 * A run of characters, decomposed, waits until a character comes that no mark before it can change: an ASCII character,
 * or one that has come into Unicode too late. Then its marks are sorted by their classes and, where asked for, it is
 * composed. */
#include "text/normal_form.h"

#include <utf8proc.h>

#include "text/unicode.h"

enum { LONGEST_DECOMPOSITION = 32, FEW = 16, CLASSES = 256 };

/* Characters since Unicode 9 that have a decomposition or are marks with a class, or that such ones are composed of;
 * and what lies between them and has neither. */
static const struct range {
  uint32_t first, last;
} late[] = {{0x558, 0x558},     {0x58b, 0x58c},     {0x5c8, 0x5c9},     {0x7fd, 0x7fd},     {0x897, 0x8d3},
            {0x9fe, 0x9fe},     {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
            {0x1abf, 0x1af0},   {0x1df6, 0x1dfa},   {0x209d, 0x209f},   {0x32ff, 0x32ff},   {0xa7f1, 0xa7f4},
            {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x105c9, 0x107bf}, {0x10d24, 0x10f85}, {0x11070, 0x11070},
            {0x1133b, 0x1133b}, {0x11383, 0x113d0}, {0x1145e, 0x1145e}, {0x11839, 0x11a99}, {0x11d42, 0x1612f},
            {0x16d63, 0x1b126}, {0x1ccd6, 0x1d128}, {0x1d250, 0x1d281}, {0x1d6a6, 0x1d6a6}, {0x1df95, 0x1dfff},
            {0x1e030, 0x1e6f5}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};

/* Lower case that utf8proc of Debian 12 lacks: so much is added. */
static const struct lower {
  uint32_t first, last;
  int32_t add;
} lower[] = {{0x1c89, 0x1c89, 1},    {0xa7cb, 0xa7cb, -42343}, {0xa7cc, 0xa7cc, 1}, {0xa7ce, 0xa7ce, 1},
             {0xa7d2, 0xa7d2, 1},    {0xa7d4, 0xa7d4, 1},      {0xa7da, 0xa7da, 1}, {0xa7dc, 0xa7dc, -42561},
             {0x10d50, 0x10d65, 32}, {0x16ea0, 0x16eb8, 27}};

typedef struct run {
  int32_t *points;
  int32_t *sorted;
  size_t count, capacity, sorted_capacity;
} run;

static uint32_t next_character(const uint8_t *text, size_t size, size_t *length) {
  utf8proc_int32_t c = 0;
  *length = (size_t)utf8proc_iterate(text, (utf8proc_ssize_t)size, &c);
  return (uint32_t)c;
}

static mk_status append_character(mk_bytes *out, int32_t c) {
  uint8_t text[4];
  return mk_bytes_append(out, text, (size_t)utf8proc_encode_char(c, text));
}

static bool is_late(uint32_t c) {
  size_t low = 0, high = sizeof late / sizeof late[0];
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (late[middle].last < c) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < sizeof late / sizeof late[0] && late[low].first <= c;
}

static unsigned class_of(int32_t c) { return (unsigned)utf8proc_get_property(c)->combining_class; }

/* A few marks in place, many by counting: a text may be nothing but marks. */
static mk_status sort_marks(run *r, size_t first, size_t count) {
  int32_t *marks = r->points + first;
  if (count <= FEW) {
    for (size_t i = 1; i < count; i++) {
      const int32_t mark = marks[i];
      size_t at = i;
      for (; at > 0 && class_of(marks[at - 1]) > class_of(mark); at--) {
        marks[at] = marks[at - 1];
      }
      marks[at] = mark;
    }
    return MK_OK;
  }
  size_t places[CLASSES + 1] = {0};
  MK_TRY(mk_grow(&r->sorted, &r->sorted_capacity, count, sizeof *r->sorted));
  for (size_t i = 0; i < count; i++) {
    places[class_of(marks[i]) + 1]++;
  }
  for (size_t i = 0; i < CLASSES; i++) {
    places[i + 1] += places[i];
  }
  for (size_t i = 0; i < count; i++) {
    r->sorted[places[class_of(marks[i])]++] = marks[i];
  }
  memcpy(marks, r->sorted, count * sizeof *marks);
  return MK_OK;
}

static mk_status end_run(run *r, bool compose, mk_bytes *out) {
  for (size_t at = 0; at < r->count;) {
    size_t marks = 0;
    while (at + marks < r->count && class_of(r->points[at + marks]) != 0) {
      marks++;
    }
    MK_TRY(sort_marks(r, at, marks));
    at += marks + 1;
  }
  utf8proc_ssize_t count = (utf8proc_ssize_t)r->count;
  if (compose && count > 0) {
    count = utf8proc_normalize_utf32(r->points, count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  }
  r->count = 0;
  for (utf8proc_ssize_t i = 0; i < count; i++) {
    MK_TRY(append_character(out, r->points[i]));
  }
  return MK_OK;
}

static mk_status decompose(run *r, uint32_t c, utf8proc_option_t options) {
  int state = 0;
  MK_TRY(mk_grow(&r->points, &r->capacity, r->count + LONGEST_DECOMPOSITION, sizeof *r->points));
  r->count += (size_t)utf8proc_decompose_char((utf8proc_int32_t)c, r->points + r->count, LONGEST_DECOMPOSITION, options,
                                              &state);
  return MK_OK;
}

static mk_status append(run *r, mk_normal_form form, const uint8_t *text, size_t size, mk_bytes *out) {
  const bool compose = form == MK_NFC || form == MK_NFKC;
  const unsigned compatible = form == MK_NFKC || form == MK_NFKD ? UTF8PROC_COMPAT : 0;
  size_t length;
  for (size_t at = 0; at < size; at += length) {
    const uint32_t c = next_character(text + at, size - at, &length);
    if (c < 0x80 || is_late(c)) {
      MK_TRY(end_run(r, compose, out));
    }
    if (is_late(c) || (c < 0x80 && (at + 1 == size || text[at + 1] < 0x80))) {
      MK_TRY(mk_bytes_append(out, text + at, length));
    } else {
      MK_TRY(decompose(r, c, (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | compatible)));
    }
  }
  return end_run(r, compose, out);
}

mk_status mk_normal_form_append(mk_normal_form form, const uint8_t *text, size_t size, mk_bytes *out) {
  run r = {0};
  mk_status status = append(&r, form, text, size, out);
  mk_free(r.points);
  mk_free(r.sorted);
  return status;
}

static int32_t lower_case(uint32_t c) {
  for (size_t i = 0; i < sizeof lower / sizeof lower[0]; i++) {
    if (c >= lower[i].first && c <= lower[i].last) {
      return (int32_t)c + lower[i].add;
    }
  }
  return utf8proc_tolower((utf8proc_int32_t)c);
}

mk_status mk_lowercase_append(const uint8_t *text, size_t size, mk_bytes *out) {
  size_t length;
  for (size_t at = 0; at < size; at += length) {
    const uint32_t c = next_character(text + at, size - at, &length);
    if (c == 0x130) { /* the only one that becomes two */
      MK_TRY(mk_bytes_append(out, "i\u0307", 3));
    } else {
      MK_TRY(append_character(out, lower_case(c)));
    }
  }
  return MK_OK;
}
