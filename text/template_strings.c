/* See template_strings.h. */
#include "text/template_strings.h"

#include <string.h>

static bool in_set(jinja_value set, uint32_t c) {
  if (set.kind != JINJA_STRING) {
    return mk_jinja_is_space(c);
  }
  for (size_t at = 0, length; at < set.length; at += length) {
    if (mk_jinja_decode(set.text + at, &length) == c) {
      return true;
    }
  }
  return false;
}

mk_status mk_jinja_check_text(jinja *m, jinja_value v, const char *what) {
  return v.kind == JINJA_STRING
             ? MK_OK
             : mk_jinja_fail(m->line, "%s: a %s is given where a string must be", what, mk_jinja_type(v));
}

static mk_status check_optional(jinja *m, jinja_value v, const char *what) {
  return v.kind == JINJA_NONE || v.kind == JINJA_MISSING ? MK_OK : mk_jinja_check_text(m, v, what);
}

mk_status mk_jinja_take_whole(jinja *m, jinja_value v, int64_t otherwise, int64_t *out) {
  *out = otherwise;
  if (v.kind != JINJA_MISSING && !mk_jinja_whole(v, out)) {
    return mk_jinja_fail(m->line, "'%s' object cannot be interpreted as an integer", mk_jinja_type(v));
  }
  return MK_OK;
}

/* A part of a text, marked as that is. */
static jinja_value part_of(jinja_value text, const char *start, size_t length) {
  jinja_value part = mk_jinja_string(start, length);
  part.markup = text.markup;
  return part;
}

mk_status mk_jinja_strip(jinja *m, jinja_value text, jinja_value set, jinja_side side, jinja_value *out) {
  size_t start = 0, end = text.length, length;
  MK_TRY(check_optional(m, set, "strip"));
  while ((side & SIDE_LEFT) != 0 && start < end && in_set(set, mk_jinja_decode(text.text + start, &length))) {
    start += length;
    MK_TRY(mk_jinja_step(m, set.kind == JINJA_STRING ? set.length : 0));
  }
  while ((side & SIDE_RIGHT) != 0 && start < end) {
    size_t at = end - 1;
    while (((unsigned char)text.text[at] & 0xc0) == 0x80) {
      at--;
    }
    if (!in_set(set, mk_jinja_decode(text.text + at, &length))) {
      break;
    }
    end = at;
    MK_TRY(mk_jinja_step(m, set.kind == JINJA_STRING ? set.length : 0));
  }
  *out = part_of(text, text.text + start, end - start);
  return MK_OK;
}

mk_status mk_jinja_replace(jinja *m, jinja_value text, jinja_value from, jinja_value to, int64_t count,
                           jinja_value *out) {
  jinja_output o = {0};
  mk_status status;
  MK_TRY(mk_jinja_check_text(m, from, "replace"));
  MK_TRY(mk_jinja_check_text(m, to, "replace"));
  const char *at = text.text, *end = text.text + text.length;
  while (count != 0) {
    const char *hit = from.length == 0 ? at : mk_jinja_search(at, (size_t)(end - at), from.text, from.length);
    size_t skip = from.length;
    if (hit == NULL) {
      break;
    }
    MK_TRY_GOTO(mk_jinja_write(m, &o, at, (size_t)(hit - at)), done);
    MK_TRY_GOTO(mk_jinja_write(m, &o, to.text, to.length), done);
    count -= count > 0;
    if (from.length == 0) { /* in front of every character and at the end */
      if (at == end) {
        break;
      }
      mk_jinja_decode(at, &skip);
      MK_TRY_GOTO(mk_jinja_write(m, &o, at, skip), done);
    }
    at = hit + skip;
  }
  MK_TRY_GOTO(mk_jinja_write(m, &o, at, (size_t)(end - at)), done);
  status = MK_OK;
done:
  MK_TRY(mk_jinja_written(m, status, &o, out));
  out->markup = text.markup;
  return MK_OK;
}

/* The next part of text from *at on; false when there is none. `whole`: up to the end. */
static bool next_part(jinja_value text, jinja_value separator, bool whole, size_t *at, jinja_value *part) {
  bool spaces = separator.kind != JINJA_STRING;
  size_t length;
  if (!spaces) {
    if (*at > text.length) {
      return false;
    }
    const char *start = text.text + *at;
    const char *hit = whole ? NULL : mk_jinja_search(start, text.length - *at, separator.text, separator.length);
    *part = mk_jinja_string(start, hit == NULL ? text.length - *at : (size_t)(hit - start));
    *at = hit == NULL ? (size_t)text.length + 1 : *at + part->length + separator.length;
    return true;
  }
  while (*at < text.length && mk_jinja_is_space(mk_jinja_decode(text.text + *at, &length))) {
    *at += length;
  }
  size_t start = *at;
  while (*at < text.length && (whole || !mk_jinja_is_space(mk_jinja_decode(text.text + *at, &length)))) {
    *at += whole ? 1 : length;
  }
  *part = mk_jinja_string(text.text + start, *at - start);
  return part->length > 0;
}

/* The same in front of *end. */
static bool last_part(jinja_value text, jinja_value separator, bool whole, size_t *end, jinja_value *part) {
  size_t stop = *end, length;
  if (separator.kind == JINJA_STRING) {
    if (stop == SIZE_MAX) {
      return false;
    }
    size_t start = stop;
    bool found = false;
    while (!whole && !found && start >= separator.length) {
      found = memcmp(text.text + start - separator.length, separator.text, separator.length) == 0;
      start -= !found;
    }
    start = found ? start : 0;
    *part = mk_jinja_string(text.text + start, stop - start);
    *end = found ? start - separator.length : SIZE_MAX;
    return true;
  }
  while (stop > 0) {
    size_t at = stop - 1;
    while (((unsigned char)text.text[at] & 0xc0) == 0x80) {
      at--;
    }
    if (!mk_jinja_is_space(mk_jinja_decode(text.text + at, &length))) {
      break;
    }
    stop = at;
  }
  size_t start = stop;
  while (start > 0) {
    size_t at = start - 1;
    while (((unsigned char)text.text[at] & 0xc0) == 0x80) {
      at--;
    }
    if (!whole && mk_jinja_is_space(mk_jinja_decode(text.text + at, &length))) {
      break;
    }
    start = at;
  }
  *part = mk_jinja_string(text.text + start, stop - start);
  *end = start;
  return stop > start;
}

mk_status mk_jinja_split(jinja *m, jinja_value text, jinja_value separator, int64_t most, bool last, jinja_value *out) {
  bool (*const next)(jinja_value, jinja_value, bool, size_t *, jinja_value *) = last ? last_part : next_part;
  jinja_value part = {0};
  size_t count = 0, at = last ? text.length : 0;
  MK_TRY(check_optional(m, separator, "split"));
  if (separator.kind == JINJA_STRING && separator.length == 0) {
    return mk_jinja_fail(m->line, "empty separator");
  }
  if (last && separator.kind == JINJA_STRING) { /* every place is compared */
    MK_TRY(mk_jinja_step(m, (size_t)text.length * separator.length));
  }
  while (next(text, separator, most >= 0 && (int64_t)count >= most, &at, &part)) {
    MK_TRY(mk_jinja_step(m, part.length));
    count++;
  }
  MK_TRY(mk_jinja_new_list(m, count, JINJA_IS_LIST, out));
  at = last ? text.length : 0;
  for (size_t i = 0; i < count; i++) {
    jinja_value *item = &out->list->items[last ? count - 1 - i : i];
    next(text, separator, most >= 0 && (int64_t)i >= most, &at, item);
    item->markup = text.markup;
  }
  return MK_OK;
}

static bool ends_line(uint32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

/* The end of the line that starts at `at`; in *next where the line after it starts. */
static size_t line_end(jinja_value text, size_t at, size_t *next) {
  for (size_t length; at < text.length; at += length) {
    uint32_t c = mk_jinja_decode(text.text + at, &length);
    if (ends_line(c)) {
      *next = at + length + (c == '\r' && at + 1 < text.length && text.text[at + 1] == '\n');
      return at;
    }
  }
  *next = at;
  return at;
}

mk_status mk_jinja_split_lines(jinja *m, jinja_value text, bool keep_ends, jinja_value *out) {
  size_t count = 0, next;
  MK_TRY(mk_jinja_step(m, text.length));
  for (size_t at = 0; at < text.length; at = next) {
    line_end(text, at, &next);
    count++;
  }
  MK_TRY(mk_jinja_new_list(m, count, JINJA_IS_LIST, out));
  for (size_t at = 0, i = 0; i < count; at = next, i++) {
    size_t end = line_end(text, at, &next);
    out->list->items[i] = part_of(text, text.text + at, (keep_ends ? next : end) - at);
  }
  return MK_OK;
}

static mk_status join_into(jinja *m, jinja_value separator, jinja_value items, bool convert, jinja_output *o) {
  jinja_iterator at;
  jinja_value text;
  MK_TRY(mk_jinja_start(m, items, &at));
  for (size_t i = 0;; i++) {
    MK_TRY(mk_jinja_next(m, &at, &text));
    if (text.kind == JINJA_MISSING) {
      return MK_OK;
    }
    if (separator.markup && !convert) {
      MK_TRY(mk_jinja_escape(m, text, &text));
    } else if (convert) {
      MK_TRY(mk_jinja_str(m, text, &text));
    } else if (text.kind != JINJA_STRING) {
      return mk_jinja_fail(m->line, "sequence item %zu: expected str instance, %s found", i, mk_jinja_type(text));
    }
    if (i > 0) {
      MK_TRY(mk_jinja_write(m, o, separator.text, separator.length));
    }
    MK_TRY(mk_jinja_write(m, o, text.text, text.length));
  }
}

mk_status mk_jinja_join(jinja *m, jinja_value separator, jinja_value items, bool convert, jinja_value *out) {
  jinja_output o = {0};
  mk_status status = join_into(m, separator, items, convert, &o);
  MK_TRY(mk_jinja_written(m, status, &o, out));
  out->markup = separator.markup && !convert;
  return MK_OK;
}

mk_status mk_jinja_pad(jinja *m, jinja_value text, int64_t width, jinja_value fill, bool left, bool right,
                       jinja_value *out) {
  jinja_output o = {0};
  mk_status status = MK_OK;
  int64_t have = (int64_t)mk_jinja_characters(text.text, text.length), more = width - have;
  if (fill.kind != JINJA_STRING || mk_jinja_characters(fill.text, fill.length) != 1) {
    return mk_jinja_fail(m->line, "The fill character must be exactly one character long");
  }
  if (more <= 0) {
    *out = text;
    return MK_OK;
  }
  if (more > MK_TEMPLATE_MAX_OUTPUT) {
    return mk_jinja_fail(m->line, "a padded text exceeds %d characters", MK_TEMPLATE_MAX_OUTPUT);
  }
  /* Python puts the odd one of both sides on the left if the width is odd too */
  int64_t before = !left ? 0 : !right ? more : more / 2 + (more & width & 1);
  for (int64_t i = 0; i < more && status == MK_OK; i++) {
    if (i == before) {
      status = mk_jinja_write(m, &o, text.text, text.length);
    }
    status = status == MK_OK ? mk_jinja_write(m, &o, fill.text, fill.length) : status;
  }
  if (status == MK_OK && before == more) {
    status = mk_jinja_write(m, &o, text.text, text.length);
  }
  MK_TRY(mk_jinja_written(m, status, &o, out));
  out->markup = text.markup;
  return MK_OK;
}
