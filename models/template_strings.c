/* See template_strings.h. */
#include "models/template_strings.h"

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

static mk_status check_text(jinja *m, jinja_value v, bool optional, const char *what) {
  if (v.kind == JINJA_STRING || (optional && v.kind == JINJA_NONE) || (optional && v.kind == JINJA_MISSING)) {
    return MK_OK;
  }
  return v.kind == JINJA_UNDEFINED
             ? mk_jinja_fail(m->line, "%s: Undefined is given where a string must be", what)
             : mk_jinja_fail(m->line, "%s: a %s is given where a string must be", what, mk_jinja_type(v));
}

mk_status mk_jinja_strip(jinja *m, jinja_value text, jinja_value set, jinja_side side, jinja_value *out) {
  size_t start = 0, end = text.length, length;
  MK_TRY(check_text(m, set, true, "strip"));
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
  *out = mk_jinja_string(text.text + start, end - start);
  return MK_OK;
}

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

mk_status mk_jinja_case(jinja *m, jinja_value text, jinja_case how, jinja_value *out) {
  char *bytes;
  bool first = true;
  MK_TRY(mk_jinja_step(m, text.length));
  MK_TRY(mk_jinja_alloc(&m->pool, text.length, 1, &bytes));
  for (size_t i = 0; i < text.length; i++) {
    char c = text.text[i];
    if ((c & 0x80) != 0) {
      return mk_jinja_fail(m->line, "upper and lower case of characters beyond ASCII are not supported");
    }
    bool upper = how == CASE_UPPER || (how != CASE_LOWER && first);
    bytes[i] = !is_letter(c) ? c : upper ? (char)(c & ~32) : (char)(c | 32);
    if (how == CASE_METHOD) {
      first = !is_letter(c);
    } else {
      first = how == CASE_TITLE && (mk_jinja_is_space((unsigned char)c) || (c != 0 && strchr("-({[<", c) != NULL));
    }
  }
  *out = mk_jinja_string(bytes, text.length);
  return MK_OK;
}

mk_status mk_jinja_replace(jinja *m, jinja_value text, jinja_value from, jinja_value to, int64_t count,
                           jinja_value *out) {
  jinja_output o = {0};
  mk_status status;
  MK_TRY(check_text(m, from, false, "replace"));
  MK_TRY(check_text(m, to, false, "replace"));
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
  status = mk_jinja_copy(m, o.text, o.length, out);
done:
  mk_free(o.text);
  return status;
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

mk_status mk_jinja_split(jinja *m, jinja_value text, jinja_value separator, int64_t most, jinja_value *out) {
  jinja_value part = {0};
  size_t count = 0, at = 0;
  MK_TRY(check_text(m, separator, true, "split"));
  if (separator.kind == JINJA_STRING && separator.length == 0) {
    return mk_jinja_fail(m->line, "split: empty separator");
  }
  while (next_part(text, separator, most >= 0 && (int64_t)count >= most, &at, &part)) {
    MK_TRY(mk_jinja_step(m, part.length));
    count++;
  }
  MK_TRY(mk_jinja_new_list(m, count, JINJA_IS_LIST, out));
  at = 0;
  for (size_t i = 0; i < count; i++) {
    next_part(text, separator, most >= 0 && (int64_t)i >= most, &at, &out->list->items[i]);
  }
  return MK_OK;
}

mk_status mk_jinja_join(jinja *m, jinja_value separator, const jinja_list *list, bool convert, jinja_value *out) {
  jinja_output o = {0};
  mk_status status = MK_OK;
  for (size_t i = 0; i < list->count; i++) {
    jinja_value text = list->items[i];
    if (convert) {
      MK_TRY_GOTO(mk_jinja_str(m, text, &text), done);
    } else {
      MK_TRY_GOTO(check_text(m, text, false, "join"), done);
    }
    if (i > 0) {
      MK_TRY_GOTO(mk_jinja_write(m, &o, separator.text, separator.length), done);
    }
    MK_TRY_GOTO(mk_jinja_write(m, &o, text.text, text.length), done);
  }
  status = mk_jinja_copy(m, o.text, o.length, out);
done:
  mk_free(o.text);
  return status;
}
