/* The filters of text. */
#include <string.h>

#include "text/letters.h"
#include "text/template_format.h"
#include "text/template_strings.h"

/* Text stays what it is, marked or not; anything else is written as str() does. */
static mk_status soft(jinja *m, jinja_value v, jinja_value *out) {
  if (v.kind == JINJA_STRING) {
    *out = v;
    return MK_OK;
  }
  return mk_jinja_str(m, v, out);
}

static mk_status string(JINJA_ARGUMENTS) { return soft(m, v, out); }

static mk_status safe(JINJA_ARGUMENTS) {
  MK_TRY(mk_jinja_str(m, v, out));
  out->markup = true;
  return MK_OK;
}

static mk_status escape(JINJA_ARGUMENTS) { return mk_jinja_escape(m, v, out); }

static mk_status force_escape(JINJA_ARGUMENTS) {
  MK_TRY(mk_jinja_str(m, v, &v));
  return mk_jinja_escape(m, v, out);
}

static mk_status trim(JINJA_ARGUMENTS) {
  MK_TRY(soft(m, v, &v));
  return mk_jinja_strip(m, v, slots[0], SIDE_BOTH, out);
}

static mk_status change_case(jinja *m, jinja_value v, jinja_case how, jinja_value *out) {
  MK_TRY(soft(m, v, &v));
  return mk_jinja_case(m, v, how, out);
}
static mk_status upper(JINJA_ARGUMENTS) { return change_case(m, v, CASE_UPPER, out); }
static mk_status lower(JINJA_ARGUMENTS) { return change_case(m, v, CASE_LOWER, out); }
static mk_status capitalize(JINJA_ARGUMENTS) { return change_case(m, v, CASE_CAPITAL, out); }
static mk_status title(JINJA_ARGUMENTS) {
  MK_TRY(change_case(m, v, CASE_WORDS, out));
  out->markup = false; /* it is joined again from plain text */
  return MK_OK;
}

static mk_status center(JINJA_ARGUMENTS) {
  int64_t width;
  MK_TRY(mk_jinja_take_whole(m, slots[0], 80, &width));
  MK_TRY(soft(m, v, &v));
  return mk_jinja_pad(m, v, width, mk_jinja_literal(" "), true, true, out);
}

static mk_status replace(JINJA_ARGUMENTS) {
  jinja_value from, to;
  int64_t count = -1;
  MK_TRY(mk_jinja_str(m, v, &v));
  MK_TRY(mk_jinja_str(m, slots[0], &from));
  MK_TRY(mk_jinja_str(m, slots[1], &to));
  if (slots[2].kind > JINJA_NONE) {
    MK_TRY(mk_jinja_take_whole(m, slots[2], -1, &count));
  }
  return mk_jinja_replace(m, v, from, to, count, out);
}

static mk_status join(JINJA_ARGUMENTS) {
  jinja_value separator = slots[0].kind == JINJA_MISSING ? mk_jinja_literal("") : slots[0], mapped;
  if (slots[1].kind > JINJA_NONE) {
    MK_TRY(mk_jinja_to_list(m, v, &mapped));
    for (size_t i = 0; i < mapped.list->count; i++) {
      jinja_value *item = &mapped.list->items[i];
      MK_TRY(mk_jinja_path(m, *item, slots[1], (jinja_value){0}, item));
    }
    v = mapped;
  }
  MK_TRY(mk_jinja_str(m, separator, &separator));
  return mk_jinja_join(m, separator, v, true, out);
}

static mk_status format(JINJA_ARGUMENTS) {
  jinja_value right;
  MK_TRY(soft(m, v, &v));
  if (all->count > 0 && all->named_count > 0) {
    return mk_jinja_fail(m->line, "can't handle positional and keyword arguments at the same time");
  }
  if (all->named_count > 0) {
    MK_TRY(mk_jinja_new_dict(m, JINJA_DICT, &right));
    for (size_t i = 0; i < all->named_count; i++) {
      MK_TRY(mk_jinja_put(m, right.dict, all->named[i].key, all->named[i].value));
    }
  } else {
    MK_TRY(mk_jinja_new_list(m, all->count, JINJA_IS_TUPLE, &right));
    if (all->count > 0) {
      memcpy(right.list->items, all->positional, all->count * sizeof *all->positional);
    }
  }
  return mk_jinja_format_percent(m, v, right, out);
}

/* Indents all lines but the first; empty lines only if `blank`. */
static mk_status write_indented(jinja *m, const jinja_list *lines, jinja_value indention, bool first, bool blank,
                                jinja_output *o) {
  for (size_t i = 0; i < lines->count; i++) {
    const jinja_value line = lines->items[i];
    MK_TRY(mk_jinja_write_literal(m, o, i > 0 ? "\n" : ""));
    if (i > 0 ? blank || line.length > 0 : first) {
      MK_TRY(mk_jinja_write(m, o, indention.text, indention.length));
    }
    MK_TRY(mk_jinja_write(m, o, line.text, line.length));
  }
  return MK_OK;
}

static mk_status indent(JINJA_ARGUMENTS) {
  jinja_value indention = slots[0], lines;
  jinja_output o = {0};
  bool markup = v.kind == JINJA_STRING && v.markup;
  if (indention.kind != JINJA_STRING) {
    int64_t width;
    MK_TRY(mk_jinja_take_whole(m, indention, 4, &width));
    MK_TRY(mk_jinja_pad(m, mk_jinja_literal(""), width, mk_jinja_literal(" "), false, true, &indention));
  }
  indention.markup = false;
  MK_TRY(mk_jinja_binary(m, JINJA_OPERATOR(0, '+'), v, mk_jinja_literal("\n"), &v));
  v.markup = false;
  MK_TRY(mk_jinja_split_lines(m, v, false, &lines));
  mk_status status = write_indented(m, lines.list, indention, mk_jinja_truth(slots[1]), mk_jinja_truth(slots[2]), &o);
  MK_TRY(mk_jinja_written(m, status, &o, out));
  out->markup = markup;
  return MK_OK;
}

static mk_status truncate(JINJA_ARGUMENTS) {
  int64_t most, leeway, length;
  jinja_value end = slots[2].kind == JINJA_MISSING ? mk_jinja_literal("...") : slots[2], parts;
  MK_TRY(mk_jinja_take_whole(m, slots[0], 255, &most));
  MK_TRY(mk_jinja_take_whole(m, slots[3].kind == JINJA_NONE ? (jinja_value){0} : slots[3], 5, &leeway));
  MK_TRY(mk_jinja_check_text(m, end, "truncate"));
  int64_t tail = (int64_t)mk_jinja_characters(end.text, end.length);
  if (most < tail || leeway < 0) {
    return mk_jinja_fail(m->line, "expected length >= %lld and leeway >= 0", (long long)tail);
  }
  MK_TRY(mk_jinja_length(m, v, &length));
  if (length <= most || length - most <= leeway) {
    *out = v;
    return MK_OK;
  }
  MK_TRY(mk_jinja_check_text(m, v, "truncate"));
  v.length = (uint32_t)mk_jinja_offset(v, most - tail);
  if (!mk_jinja_truth(slots[1])) {
    MK_TRY(mk_jinja_split(m, v, mk_jinja_literal(" "), 1, true, &parts));
    v = parts.list->items[0];
  }
  return mk_jinja_binary(m, JINJA_OPERATOR(0, '+'), v, end, out);
}

/* Runs of letters, digits and underscores. */
static mk_status word_count(JINJA_ARGUMENTS) {
  int64_t count = 0;
  bool inside = false;
  MK_TRY(soft(m, v, &v));
  MK_TRY(mk_jinja_step(m, (size_t)4 * v.length));
  for (size_t at = 0, length; at < v.length; at += length) {
    uint32_t c = mk_jinja_decode(v.text + at, &length);
    bool is_word = c == '_' || (mk_letter_flags(c) & MK_LETTER_ALNUM) != 0;
    count += is_word && !inside;
    inside = is_word;
  }
  *out = mk_jinja_int(count);
  return MK_OK;
}

static mk_status quote(jinja *m, jinja_value v, bool query, jinja_output *o) {
  static const char hex[] = "0123456789ABCDEF";
  MK_TRY(mk_jinja_str(m, v, &v));
  for (size_t i = 0; i < v.length; i++) {
    unsigned char c = (unsigned char)v.text[i];
    bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                 (c != 0 && strchr("_.-~", c) != NULL) || (c == '/' && !query);
    if (plain || (c == ' ' && query)) {
      MK_TRY(mk_jinja_write(m, o, plain ? v.text + i : "+", 1));
    } else {
      MK_TRY(mk_jinja_write(m, o, (const char[]){'%', hex[c >> 4], hex[c & 15]}, 3));
    }
  }
  return MK_OK;
}

static mk_status write_query(jinja *m, jinja_value pairs, jinja_output *o) {
  const jinja_list *list, *pair;
  MK_TRY(mk_jinja_iterate(m, pairs, &list));
  for (size_t i = 0; i < list->count; i++) {
    jinja_value value;
    const jinja_value name = list->items[i];
    if (pairs.kind == JINJA_DICT) {
      MK_TRY(mk_jinja_get(m, pairs.dict, name, &value));
    } else {
      MK_TRY(mk_jinja_iterate(m, name, &pair));
      if (pair->count != 2) {
        return mk_jinja_fail(m->line, "urlencode: an element is not a pair");
      }
      value = pair->items[1];
    }
    MK_TRY(mk_jinja_write_literal(m, o, i > 0 ? "&" : ""));
    MK_TRY(quote(m, pairs.kind == JINJA_DICT ? name : pair->items[0], true, o));
    MK_TRY(mk_jinja_write_literal(m, o, "="));
    MK_TRY(quote(m, value, true, o));
  }
  return MK_OK;
}

static mk_status url_encode(JINJA_ARGUMENTS) {
  jinja_output o = {0};
  bool plain = v.kind == JINJA_STRING || !mk_jinja_can_iterate(v);
  mk_status status = plain ? quote(m, v, false, &o) : write_query(m, v, &o);
  return mk_jinja_written(m, status, &o, out);
}

static mk_status write_attributes(jinja *m, const jinja_dict *dict, bool space, jinja_output *o) {
  for (size_t i = 0; i < dict->count; i++) {
    jinja_value key = dict->pairs[i].key, value = dict->pairs[i].value;
    if (value.kind == JINJA_NONE || value.kind == JINJA_UNDEFINED) {
      continue;
    }
    MK_TRY(mk_jinja_check_text(m, key, "xmlattr"));
    for (size_t k = 0; k < key.length; k++) {
      if (key.text[k] != 0 && strchr(" \t\n\r\f\v/>=", key.text[k]) != NULL) {
        return mk_jinja_fail(m->line, "Invalid character in attribute name: '%.*s'", JINJA_SHOWN(key));
      }
    }
    MK_TRY(mk_jinja_escape(m, key, &key));
    MK_TRY(mk_jinja_escape(m, value, &value));
    MK_TRY(mk_jinja_write_literal(m, o, o->length > 0 || space ? " " : ""));
    MK_TRY(mk_jinja_write(m, o, key.text, key.length));
    MK_TRY(mk_jinja_write_literal(m, o, "=\""));
    MK_TRY(mk_jinja_write(m, o, value.text, value.length));
    MK_TRY(mk_jinja_write_literal(m, o, "\""));
  }
  return MK_OK;
}

static mk_status xml_attributes(JINJA_ARGUMENTS) {
  jinja_output o = {0};
  if (v.kind != JINJA_DICT) {
    return mk_jinja_fail(m->line, "xmlattr: a %s is given where a dict must be", mk_jinja_type(v));
  }
  bool space = slots[0].kind == JINJA_MISSING || mk_jinja_truth(slots[0]);
  return mk_jinja_written(m, write_attributes(m, v.dict, space, &o), &o, out);
}

const jinja_function mk_jinja_text_filters[] = {
    {"capitalize", "", 0, capitalize},
    {"center", "width", 0, center},
    {"e", "", 0, escape},
    {"escape", "", 0, escape},
    {"forceescape", "", 0, force_escape},
    {"format", NULL, 0, format},
    {"indent", "width,first,blank", 0, indent},
    {"join", "d,attribute", 0, join},
    {"lower", "", 0, lower},
    {"replace", "old,new,count", 2, replace},
    {"safe", "", 0, safe},
    {"string", "", 0, string},
    {"title", "", 0, title},
    {"trim", "chars", 0, trim},
    {"truncate", "length,killwords,end,leeway", 0, truncate},
    {"upper", "", 0, upper},
    {"urlencode", "", 0, url_encode},
    {"wordcount", "", 0, word_count},
    {"xmlattr", "autospace", 0, xml_attributes},
    {0},
};
