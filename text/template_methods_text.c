/* The methods of strings. */
#include <string.h>

#include "text/letters.h"
#include "text/template_format.h"
#include "text/template_strings.h"

static mk_status strip(JINJA_ARGUMENTS) { return mk_jinja_strip(m, v, slots[0], SIDE_BOTH, out); }
static mk_status lstrip(JINJA_ARGUMENTS) { return mk_jinja_strip(m, v, slots[0], SIDE_LEFT, out); }
static mk_status rstrip(JINJA_ARGUMENTS) { return mk_jinja_strip(m, v, slots[0], SIDE_RIGHT, out); }
static mk_status upper(JINJA_ARGUMENTS) { return mk_jinja_case(m, v, CASE_UPPER, out); }
static mk_status lower(JINJA_ARGUMENTS) { return mk_jinja_case(m, v, CASE_LOWER, out); }
static mk_status capitalize(JINJA_ARGUMENTS) { return mk_jinja_case(m, v, CASE_CAPITAL, out); }
static mk_status title(JINJA_ARGUMENTS) { return mk_jinja_case(m, v, CASE_TITLE, out); }
static mk_status swapcase(JINJA_ARGUMENTS) { return mk_jinja_case(m, v, CASE_SWAP, out); }
static mk_status casefold(JINJA_ARGUMENTS) { return mk_jinja_case(m, v, CASE_FOLD, out); }

static mk_status split(JINJA_ARGUMENTS) {
  int64_t most;
  MK_TRY(mk_jinja_take_whole(m, slots[1], -1, &most));
  return mk_jinja_split(m, v, slots[0], most, false, out);
}

static mk_status rsplit(JINJA_ARGUMENTS) {
  int64_t most;
  MK_TRY(mk_jinja_take_whole(m, slots[1], -1, &most));
  return mk_jinja_split(m, v, slots[0], most, true, out);
}

static mk_status splitlines(JINJA_ARGUMENTS) {
  int64_t keep_ends;
  MK_TRY(mk_jinja_take_whole(m, slots[0], 0, &keep_ends));
  return mk_jinja_split_lines(m, v, keep_ends != 0, out);
}

static mk_status replace(JINJA_ARGUMENTS) {
  int64_t count;
  jinja_value to = slots[1];
  MK_TRY(mk_jinja_take_whole(m, slots[2], -1, &count));
  if (v.markup) {
    MK_TRY(mk_jinja_escape(m, to, &to));
  }
  return mk_jinja_replace(m, v, slots[0], to, count, out);
}

static mk_status join(JINJA_ARGUMENTS) { return mk_jinja_join(m, v, slots[0], false, out); }

static mk_status format(JINJA_ARGUMENTS) { return mk_jinja_format_braces(m, v, all, (jinja_value){0}, out); }

static mk_status format_map(JINJA_ARGUMENTS) {
  const jinja_arguments none = {0};
  return mk_jinja_format_braces(m, v, &none, slots[0], out);
}

static mk_status padded(jinja *m, jinja_value v, const jinja_value *slots, bool left, bool right, jinja_value *out) {
  int64_t width;
  jinja_value fill = slots[1].kind == JINJA_MISSING ? mk_jinja_literal(" ") : slots[1];
  MK_TRY(mk_jinja_take_whole(m, slots[0], 0, &width));
  if (v.markup) {
    MK_TRY(mk_jinja_escape(m, fill, &fill));
  }
  return mk_jinja_pad(m, v, width, fill, left, right, out);
}
static mk_status ljust(JINJA_ARGUMENTS) { return padded(m, v, slots, false, true, out); }
static mk_status rjust(JINJA_ARGUMENTS) { return padded(m, v, slots, true, false, out); }
static mk_status center(JINJA_ARGUMENTS) { return padded(m, v, slots, true, true, out); }

/* Fills with zeros after the sign. */
static mk_status zfill(JINJA_ARGUMENTS) {
  int64_t width;
  bool sign = v.length > 0 && (v.text[0] == '+' || v.text[0] == '-');
  jinja_value head = mk_jinja_string(v.text, sign), rest = mk_jinja_string(v.text + sign, v.length - sign);
  MK_TRY(mk_jinja_take_whole(m, slots[0], 0, &width));
  MK_TRY(mk_jinja_pad(m, rest, width - sign, mk_jinja_literal("0"), true, false, &rest));
  head.markup = v.markup;
  rest.markup = v.markup;
  return mk_jinja_binary(m, JINJA_OPERATOR(0, '+'), head, rest, out);
}

/* The part [start, end) of a text, as characters; *outside: it starts after the end, where nothing is found. */
static mk_status part(jinja *m, jinja_value v, const jinja_value *range, jinja_value *out, bool *outside) {
  int64_t length, at[2];
  *out = v;
  *outside = false;
  if (range[0].kind <= JINJA_NONE && range[1].kind <= JINJA_NONE) {
    return MK_OK;
  }
  MK_TRY(mk_jinja_length(m, v, &length));
  for (size_t i = 0; i < 2; i++) {
    at[i] = i == 0 ? 0 : length;
    if (range[i].kind > JINJA_NONE) {
      MK_TRY(mk_jinja_take_whole(m, range[i], 0, &at[i]));
    }
    at[i] = at[i] < -length ? 0 : at[i] < 0 ? at[i] + length : at[i];
  }
  at[1] = at[1] > length ? length : at[1];
  *outside = at[0] > length || at[0] > at[1];
  size_t start = *outside ? 0 : mk_jinja_offset(v, at[0]), end = *outside ? 0 : mk_jinja_offset(v, at[1]);
  *out = mk_jinja_string(v.text + start, end - start);
  return MK_OK;
}

/* A string, or a tuple of several of which any will do. */
static mk_status affix(jinja *m, jinja_value v, const jinja_value *slots, bool end, jinja_value *out) {
  jinja_value wanted = slots[0];
  bool outside;
  MK_TRY(part(m, v, slots + 1, &v, &outside));
  const jinja_list one = {.items = &wanted, .count = 1};
  bool tuple = wanted.kind == JINJA_LIST && wanted.list->sequence == JINJA_IS_TUPLE;
  const jinja_list *list = tuple ? wanted.list : &one;
  bool has = false;
  for (size_t i = 0; i < list->count && !has; i++) {
    const jinja_value one_of = list->items[i];
    if (one_of.kind != JINJA_STRING) {
      return mk_jinja_fail(m->line, "%s: a %s is given where a string must be", end ? "endswith" : "startswith",
                           mk_jinja_type(one_of));
    }
    has =
        !outside && one_of.length <= v.length &&
        (one_of.length == 0 || memcmp(v.text + (end ? v.length - one_of.length : 0), one_of.text, one_of.length) == 0);
    MK_TRY(mk_jinja_step(m, one_of.length));
  }
  *out = mk_jinja_bool(has);
  return MK_OK;
}
static mk_status startswith(JINJA_ARGUMENTS) { return affix(m, v, slots, false, out); }
static mk_status endswith(JINJA_ARGUMENTS) { return affix(m, v, slots, true, out); }

/* Where the first or last `what` of a part of the text starts, in characters of the whole; -1: nowhere. */
static mk_status locate(jinja *m, jinja_value v, const jinja_value *slots, bool last, const char *name, int64_t *out) {
  jinja_value inside, what = slots[0];
  bool outside;
  *out = -1;
  MK_TRY(mk_jinja_check_text(m, what, name));
  MK_TRY(part(m, v, slots + 1, &inside, &outside));
  const char *hit = NULL;
  if (!outside && last) {
    MK_TRY(mk_jinja_step(m, (size_t)inside.length * (what.length + 1u)));
    for (size_t at = inside.length + 1u; hit == NULL && at-- > 0;) {
      bool fits = inside.length - at >= what.length;
      hit =
          fits && (what.length == 0 || memcmp(inside.text + at, what.text, what.length) == 0) ? inside.text + at : NULL;
    }
  } else if (!outside) {
    MK_TRY(mk_jinja_step(m, inside.length));
    hit = what.length == 0 ? inside.text : mk_jinja_search(inside.text, inside.length, what.text, what.length);
  }
  if (hit != NULL) {
    *out = (int64_t)mk_jinja_characters(v.text, (size_t)(hit - v.text));
  }
  return MK_OK;
}

static mk_status find_it(jinja *m, jinja_value v, const jinja_value *slots, bool last, const char *name, bool must,
                         jinja_value *out) {
  int64_t at;
  MK_TRY(locate(m, v, slots, last, name, &at));
  *out = mk_jinja_int(at);
  return at >= 0 || !must ? MK_OK : mk_jinja_fail(m->line, "substring not found");
}
static mk_status find(JINJA_ARGUMENTS) { return find_it(m, v, slots, false, "find", false, out); }
static mk_status rfind(JINJA_ARGUMENTS) { return find_it(m, v, slots, true, "rfind", false, out); }
static mk_status index_of(JINJA_ARGUMENTS) { return find_it(m, v, slots, false, "index", true, out); }
static mk_status last_index_of(JINJA_ARGUMENTS) { return find_it(m, v, slots, true, "rindex", true, out); }

static mk_status count(JINJA_ARGUMENTS) {
  jinja_value inside, what = slots[0];
  bool outside;
  int64_t found = 0;
  MK_TRY(mk_jinja_check_text(m, what, "count"));
  MK_TRY(part(m, v, slots + 1, &inside, &outside));
  MK_TRY(mk_jinja_step(m, inside.length));
  if (what.length == 0 && !outside) {
    found = (int64_t)mk_jinja_characters(inside.text, inside.length) + 1;
  }
  const char *at = inside.text, *end = at + inside.length;
  for (const char *hit = at; what.length > 0 && hit != NULL;) {
    hit = at == end ? NULL : mk_jinja_search(at, (size_t)(end - at), what.text, what.length);
    if (hit != NULL) {
      at = hit + what.length;
      found++;
    }
  }
  *out = mk_jinja_int(found);
  return MK_OK;
}

/* The tuple of what stands before the separator, the separator, and what stands after it. */
static mk_status partition_at(jinja *m, jinja_value v, const jinja_value *slots, bool last, jinja_value *out) {
  const jinja_value separator = slots[0], whole[3] = {separator, {0}, {0}};
  int64_t at;
  if (separator.kind == JINJA_STRING && separator.length == 0) {
    return mk_jinja_fail(m->line, "empty separator");
  }
  MK_TRY(locate(m, v, whole, last, "partition", &at));
  MK_TRY(mk_jinja_new_list(m, 3, JINJA_IS_TUPLE, out));
  size_t start = at < 0 ? (last ? 0 : v.length) : mk_jinja_offset(v, at), middle = at < 0 ? 0 : separator.length;
  jinja_value *parts = out->list->items;
  parts[0] = mk_jinja_string(v.text, start);
  parts[1] = mk_jinja_string(v.text + start, middle);
  parts[2] = mk_jinja_string(v.text + start + middle, v.length - start - middle);
  for (size_t i = 0; i < 3; i++) {
    parts[i].markup = v.markup;
  }
  return MK_OK;
}
static mk_status partition(JINJA_ARGUMENTS) { return partition_at(m, v, slots, false, out); }
static mk_status rpartition(JINJA_ARGUMENTS) { return partition_at(m, v, slots, true, out); }

static mk_status remove_affix(jinja *m, jinja_value v, jinja_value affix_text, bool end, jinja_value *out) {
  const jinja_value all_of_it[3] = {affix_text, {0}, {0}};
  jinja_value has;
  MK_TRY(mk_jinja_check_text(m, affix_text, end ? "removesuffix" : "removeprefix"));
  MK_TRY(affix(m, v, all_of_it, end, &has));
  *out = v;
  if (has.boolean) {
    out->text += end ? 0 : affix_text.length;
    out->length -= affix_text.length;
  }
  return MK_OK;
}
static mk_status removeprefix(JINJA_ARGUMENTS) { return remove_affix(m, v, slots[0], false, out); }
static mk_status removesuffix(JINJA_ARGUMENTS) { return remove_affix(m, v, slots[0], true, out); }

/* Not empty, and every character has one of the flags. */
static mk_status all_are(jinja *m, jinja_value v, unsigned flags, jinja_value *out) {
  bool all_of_them = v.length > 0 || flags == MK_LETTER_PRINTABLE;
  MK_TRY(mk_jinja_step(m, v.length));
  for (size_t at = 0, length; all_of_them && at < v.length; at += length) {
    all_of_them = (mk_letter_flags(mk_jinja_decode(v.text + at, &length)) & flags) != 0;
  }
  *out = mk_jinja_bool(all_of_them);
  return MK_OK;
}
static mk_status isalpha_(JINJA_ARGUMENTS) { return all_are(m, v, MK_LETTER_ALPHA, out); }
static mk_status isalnum_(JINJA_ARGUMENTS) { return all_are(m, v, MK_LETTER_ALNUM, out); }
static mk_status isdecimal(JINJA_ARGUMENTS) { return all_are(m, v, MK_LETTER_DECIMAL, out); }
static mk_status isdigit_(JINJA_ARGUMENTS) { return all_are(m, v, MK_LETTER_DIGIT, out); }
static mk_status isnumeric(JINJA_ARGUMENTS) { return all_are(m, v, MK_LETTER_NUMERIC, out); }
static mk_status isprintable(JINJA_ARGUMENTS) { return all_are(m, v, MK_LETTER_PRINTABLE, out); }

static mk_status isspace_(JINJA_ARGUMENTS) {
  bool all_of_them = v.length > 0;
  for (size_t at = 0, length; all_of_them && at < v.length; at += length) {
    all_of_them = mk_jinja_is_space(mk_jinja_decode(v.text + at, &length));
  }
  *out = mk_jinja_bool(all_of_them);
  return mk_jinja_step(m, v.length);
}

static mk_status isascii_(JINJA_ARGUMENTS) {
  bool ascii = true;
  for (size_t i = 0; i < v.length; i++) {
    ascii = ascii && (v.text[i] & 0x80) == 0;
  }
  *out = mk_jinja_bool(ascii);
  return mk_jinja_step(m, v.length);
}

/* Some letter has a case, and all that have are `wanted`. */
static mk_status all_cased(jinja *m, jinja_value v, unsigned wanted, jinja_value *out) {
  bool some = false, others = false;
  MK_TRY(mk_jinja_step(m, v.length));
  for (size_t at = 0, length; at < v.length; at += length) {
    unsigned flags = mk_letter_flags(mk_jinja_decode(v.text + at, &length));
    some |= (flags & wanted) != 0;
    others |= (flags & (MK_LETTER_UPPER | MK_LETTER_LOWER | MK_LETTER_TITLE) & ~wanted) != 0;
  }
  *out = mk_jinja_bool(some && !others);
  return MK_OK;
}
static mk_status islower_(JINJA_ARGUMENTS) { return all_cased(m, v, MK_LETTER_LOWER, out); }
static mk_status isupper_(JINJA_ARGUMENTS) { return all_cased(m, v, MK_LETTER_UPPER, out); }

/* Capitals where letters begin, and nowhere else. */
static mk_status istitle(JINJA_ARGUMENTS) {
  bool cased = false, inside = false, right = true;
  for (size_t at = 0, length; at < v.length; at += length) {
    unsigned flags = mk_letter_flags(mk_jinja_decode(v.text + at, &length));
    bool capital = (flags & (MK_LETTER_UPPER | MK_LETTER_TITLE)) != 0, small = (flags & MK_LETTER_LOWER) != 0;
    right = right && !(capital && inside) && !(small && !capital && !inside);
    inside = capital || small;
    cased |= inside;
  }
  *out = mk_jinja_bool(cased && right);
  return mk_jinja_step(m, v.length);
}

const jinja_function mk_jinja_string_methods[] = {
    {"capitalize", "/", 0, capitalize},
    {"casefold", "/", 0, casefold},
    {"center", "/width,fillchar", 1, center},
    {"count", "/sub,start,end", 1, count},
    {"endswith", "/suffix,start,end", 1, endswith},
    {"find", "/sub,start,end", 1, find},
    {"format", NULL, 0, format},
    {"format_map", "/mapping", 1, format_map},
    {"index", "/sub,start,end", 1, index_of},
    {"isalnum", "/", 0, isalnum_},
    {"isalpha", "/", 0, isalpha_},
    {"isascii", "/", 0, isascii_},
    {"isdecimal", "/", 0, isdecimal},
    {"isdigit", "/", 0, isdigit_},
    {"islower", "/", 0, islower_},
    {"isnumeric", "/", 0, isnumeric},
    {"isprintable", "/", 0, isprintable},
    {"isspace", "/", 0, isspace_},
    {"istitle", "/", 0, istitle},
    {"isupper", "/", 0, isupper_},
    {"join", "/iterable", 1, join},
    {"ljust", "/width,fillchar", 1, ljust},
    {"lower", "/", 0, lower},
    {"lstrip", "/chars", 0, lstrip},
    {"partition", "/sep", 1, partition},
    {"removeprefix", "/prefix", 1, removeprefix},
    {"removesuffix", "/suffix", 1, removesuffix},
    {"replace", "/old,new,count", 2, replace},
    {"rfind", "/sub,start,end", 1, rfind},
    {"rindex", "/sub,start,end", 1, last_index_of},
    {"rjust", "/width,fillchar", 1, rjust},
    {"rpartition", "/sep", 1, rpartition},
    {"rsplit", "sep,maxsplit", 0, rsplit},
    {"rstrip", "/chars", 0, rstrip},
    {"split", "sep,maxsplit", 0, split},
    {"splitlines", "keepends", 0, splitlines},
    {"startswith", "/prefix,start,end", 1, startswith},
    {"strip", "/chars", 0, strip},
    {"swapcase", "/", 0, swapcase},
    {"title", "/", 0, title},
    {"upper", "/", 0, upper},
    {"zfill", "/width", 1, zfill},
    {0},
};
