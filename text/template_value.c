/* Values: making them, and what Python says of truth, equality, order, length and membership. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/template_internal.h"

struct jinja_chunk {
  struct jinja_chunk *next;
  size_t used, size;
  _Alignas(16) char bytes[];
};

mk_status mk_jinja_alloc(jinja_pool *pool, size_t count, size_t size, void *out) {
  enum { CHUNK = 16 << 10 };
  size_t bytes;
  void *memory = NULL;
  memcpy(out, &memory, sizeof memory);
  if (__builtin_mul_overflow(count, size, &bytes) || bytes > pool->limit || pool->used > pool->limit - bytes) {
    return mk_error(MK_ERR_FILE, "chat template: it needs more than %zu MiB of memory", pool->limit >> 20);
  }
  bytes = (bytes + 15) & ~(size_t)15;
  pool->used += bytes;
  struct jinja_chunk *chunk = pool->chunks;
  if (chunk == NULL || chunk->size - chunk->used < bytes) {
    size_t room = bytes > CHUNK ? bytes : CHUNK;
    MK_TRY(mk_alloc(1, sizeof *chunk + room, &chunk));
    chunk->size = room;
    chunk->next = pool->chunks;
    pool->chunks = chunk;
  }
  memory = chunk->bytes + chunk->used;
  chunk->used += bytes;
  memcpy(out, &memory, sizeof memory);
  return MK_OK;
}

void mk_jinja_pool_free(jinja_pool *pool) {
  while (pool->chunks != NULL) {
    struct jinja_chunk *next = pool->chunks->next;
    mk_free(pool->chunks);
    pool->chunks = next;
  }
}

mk_status(mk_jinja_fail)(uint32_t line, const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return mk_error(MK_ERR_FILE, "chat template, line %u: %s", line, text);
}

mk_status mk_jinja_step(jinja *m, size_t bytes) {
  m->steps += 1 + bytes / 64;
  if (m->steps > MK_TEMPLATE_MAX_STEPS) {
    return mk_jinja_fail(m->line, "it takes more than %d steps", MK_TEMPLATE_MAX_STEPS);
  }
  return MK_OK;
}

mk_status mk_jinja_enter(jinja *m) {
  if (++m->depth > MK_TEMPLATE_MAX_DEPTH) {
    return mk_jinja_fail(m->line, "evaluation is nested more than %d deep", MK_TEMPLATE_MAX_DEPTH);
  }
  return mk_jinja_step(m, 0);
}

jinja_value mk_jinja_string(const char *text, size_t length) {
  return (jinja_value){.kind = JINJA_STRING, .length = (uint32_t)length, .text = text};
}

jinja_value mk_jinja_literal(const char *text) { return mk_jinja_string(text, strlen(text)); }
jinja_value mk_jinja_int(int64_t integer) { return (jinja_value){.kind = JINJA_INT, .integer = integer}; }
jinja_value mk_jinja_bool(bool boolean) { return (jinja_value){.kind = JINJA_BOOL, .boolean = boolean}; }
jinja_value mk_jinja_float(double real) { return (jinja_value){.kind = JINJA_FLOAT, .real = real}; }
jinja_value mk_jinja_none(void) { return (jinja_value){.kind = JINJA_NONE}; }

mk_status mk_jinja_copy(jinja *m, const char *text, size_t length, jinja_value *out) {
  char *copy;
  MK_TRY(mk_jinja_step(m, length));
  MK_TRY(mk_jinja_alloc(&m->pool, length, 1, &copy));
  if (length > 0) {
    memcpy(copy, text, length);
  }
  *out = mk_jinja_string(copy, length);
  return MK_OK;
}

mk_status mk_jinja_new_list(jinja *m, size_t count, jinja_sequence sequence, jinja_value *out) {
  jinja_list *list;
  MK_TRY(mk_jinja_step(m, count));
  MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof *list, &list));
  MK_TRY(mk_jinja_alloc(&m->pool, count, sizeof *list->items, &list->items));
  list->count = count;
  list->sequence = sequence;
  *out = (jinja_value){.kind = JINJA_LIST, .list = list};
  return MK_OK;
}

mk_status mk_jinja_new_pair(jinja *m, jinja_value first, jinja_value second, jinja_value *out) {
  MK_TRY(mk_jinja_new_list(m, 2, JINJA_IS_TUPLE, out));
  out->list->items[0] = first;
  out->list->items[1] = second;
  return MK_OK;
}

mk_status mk_jinja_new_dict(jinja *m, jinja_kind kind, jinja_value *out) {
  jinja_dict *dict;
  MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof *dict, &dict));
  *out = (jinja_value){.kind = (uint8_t)kind, .dict = dict};
  return MK_OK;
}

static mk_status find(jinja *m, const jinja_dict *dict, jinja_value key, size_t *at) {
  for (*at = 0; *at < dict->count; ++*at) {
    bool equal;
    MK_TRY(mk_jinja_equal(m, dict->pairs[*at].key, key, &equal));
    if (equal) {
      break;
    }
  }
  return MK_OK;
}

mk_status mk_jinja_check_key(jinja *m, jinja_value key) {
  if (key.kind == JINJA_DICT ||
      (key.kind == JINJA_LIST && (key.list->sequence == JINJA_IS_LIST || key.list->sequence == JINJA_IS_KEYS ||
                                  key.list->sequence == JINJA_IS_ITEMS))) {
    return mk_jinja_fail(m->line, "a %s cannot be the key of a dict", mk_jinja_type(key));
  }
  for (size_t i = 0; key.kind == JINJA_LIST && key.list->sequence == JINJA_IS_TUPLE && i < key.list->count; i++) {
    MK_TRY(mk_jinja_enter(m));
    MK_TRY(mk_jinja_check_key(m, key.list->items[i]));
    m->depth--;
  }
  return MK_OK;
}

mk_status mk_jinja_put(jinja *m, jinja_dict *dict, jinja_value key, jinja_value value) {
  size_t at;
  MK_TRY(mk_jinja_check_key(m, key));
  MK_TRY(find(m, dict, key, &at));
  if (at < dict->count) {
    dict->pairs[at].value = value;
    return MK_OK;
  }
  if (dict->count == dict->capacity) {
    jinja_pair *more;
    size_t capacity = dict->capacity == 0 ? 8 : 2 * dict->capacity;
    MK_TRY(mk_jinja_alloc(&m->pool, capacity, sizeof *more, &more));
    if (dict->count > 0) {
      memcpy(more, dict->pairs, dict->count * sizeof *more);
    }
    dict->pairs = more;
    dict->capacity = capacity;
  }
  dict->pairs[dict->count++] = (jinja_pair){key, value};
  return MK_OK;
}

mk_status mk_jinja_get(jinja *m, const jinja_dict *dict, jinja_value key, jinja_value *out) {
  size_t at;
  MK_TRY(find(m, dict, key, &at));
  *out = at < dict->count ? dict->pairs[at].value : (jinja_value){.kind = JINJA_MISSING};
  return MK_OK;
}

mk_status mk_jinja_undefined(jinja *m, jinja_value object, jinja_value name, jinja_value *out) {
  jinja_undefined *why;
  MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof *why, &why));
  why->object = object;
  why->name = name;
  *out = (jinja_value){.kind = JINJA_UNDEFINED, .undefined = why};
  return MK_OK;
}

mk_status mk_jinja_new_undefined(jinja *m, const char *hint, jinja_value *out) {
  MK_TRY(mk_jinja_undefined(m, (jinja_value){.kind = JINJA_MISSING}, mk_jinja_literal(""), out));
  ((jinja_undefined *)(uintptr_t)out->undefined)->hint = hint;
  return MK_OK;
}

mk_status mk_jinja_fail_undefined(jinja *m, jinja_value value) {
  const jinja_undefined *why = value.undefined;
  if (why->hint != NULL) {
    return mk_jinja_fail(m->line, "%s", why->hint);
  }
  if (why->object.kind == JINJA_MISSING) {
    return mk_jinja_fail(m->line, "'%.*s' is undefined", JINJA_SHOWN(why->name));
  }
  const char *type = mk_jinja_type(why->object), *object = why->object.kind == JINJA_NONE ? "" : " object";
  type = why->object.kind == JINJA_NONE ? "None" : type;
  if (why->name.kind == JINJA_STRING) {
    return mk_jinja_fail(m->line, "'%s%s' has no attribute '%.*s'", type, object, JINJA_SHOWN(why->name));
  }
  jinja_value shown;
  MK_TRY(mk_jinja_str(m, why->name, &shown));
  return mk_jinja_fail(m->line, "%s%s has no element %.*s", type, object, JINJA_SHOWN(shown));
}

bool mk_jinja_is(jinja_value string, const char *literal) {
  return string.kind == JINJA_STRING && strlen(literal) == string.length &&
         memcmp(string.text, literal, string.length) == 0;
}

bool mk_jinja_truth(jinja_value v) {
  switch (v.kind) {
    case JINJA_MISSING:
    case JINJA_UNDEFINED:
    case JINJA_NONE:
      return false;
    case JINJA_BOOL:
      return v.boolean;
    case JINJA_INT:
      return v.integer != 0;
    case JINJA_FLOAT:
      return v.real != 0;
    case JINJA_STRING:
      return v.length > 0;
    case JINJA_LIST:
      return v.list->count > 0;
    case JINJA_DICT:
      return v.dict->count > 0;
    default:
      return true;
  }
}

bool mk_jinja_whole(jinja_value v, int64_t *out) {
  *out = v.kind == JINJA_BOOL ? v.boolean : v.kind == JINJA_INT ? v.integer : 0;
  return v.kind == JINJA_BOOL || v.kind == JINJA_INT;
}

bool mk_jinja_number(jinja_value v, double *out) {
  int64_t whole;
  bool is_whole = mk_jinja_whole(v, &whole);
  *out = is_whole ? (double)whole : v.kind == JINJA_FLOAT ? v.real : 0;
  return is_whole || v.kind == JINJA_FLOAT;
}

const char *mk_jinja_type(jinja_value v) {
  static const char *const sequences[] = {"list", "tuple", "range", "dict_keys", "dict_values", "dict_items"};
  static const char *const kinds[] = {
      "nothing",   "Undefined",   "NoneType",  "bool",   "int",    "float", "str",      "list",   "dict",
      "Namespace", "LoopContext", "generator", "Cycler", "Joiner", "Macro", "function", "method",
  };
  return v.kind == JINJA_LIST ? sequences[v.list->sequence] : kinds[v.kind];
}

static int order_numbers(jinja_value left, jinja_value right) {
  int64_t a, b;
  double x, y;
  if (mk_jinja_whole(left, &a) && mk_jinja_whole(right, &b)) {
    return (a > b) - (a < b);
  }
  mk_jinja_number(left, &x);
  mk_jinja_number(right, &y);
  return (x > y) - (x < y);
}

static int order_strings(jinja_value left, jinja_value right) {
  size_t least = left.length < right.length ? left.length : right.length;
  int order = least == 0 ? 0 : memcmp(left.text, right.text, least);
  return order != 0 ? order : (left.length > right.length) - (left.length < right.length);
}

/* keys() and items() are equal as sets. */
static mk_status equal_sets(jinja *m, const jinja_list *left, const jinja_list *right, bool *out) {
  for (size_t i = 0; *out && i < left->count; i++) {
    bool found = false;
    for (size_t k = 0; !found && k < right->count; k++) {
      MK_TRY(mk_jinja_equal(m, left->items[i], right->items[k], &found));
    }
    *out = found;
  }
  return MK_OK;
}

static mk_status equal_lists(jinja *m, const jinja_list *left, const jinja_list *right, bool *out) {
  bool sets = left->sequence == JINJA_IS_KEYS || left->sequence == JINJA_IS_ITEMS;
  *out = left == right ||
         (left->sequence == right->sequence && left->count == right->count && (left->sequence < JINJA_IS_VIEW || sets));
  if (left == right) {
    return MK_OK;
  }
  MK_TRY(mk_jinja_enter(m));
  if (*out && sets) {
    MK_TRY(equal_sets(m, left, right, out));
  }
  for (size_t i = 0; *out && !sets && i < left->count; i++) {
    MK_TRY(mk_jinja_equal(m, left->items[i], right->items[i], out));
  }
  m->depth--;
  return MK_OK;
}

static mk_status equal_dicts(jinja *m, const jinja_dict *left, const jinja_dict *right, bool *out) {
  *out = left == right || left->count == right->count;
  if (left == right) {
    return MK_OK;
  }
  MK_TRY(mk_jinja_enter(m));
  for (size_t i = 0; *out && i < left->count; i++) {
    jinja_value other;
    MK_TRY(mk_jinja_get(m, right, left->pairs[i].key, &other));
    *out = other.kind != JINJA_MISSING;
    if (*out) {
      MK_TRY(mk_jinja_equal(m, left->pairs[i].value, other, out));
    }
  }
  m->depth--;
  return MK_OK;
}

mk_status mk_jinja_equal(jinja *m, jinja_value left, jinja_value right, bool *out) {
  double x, y;
  *out = false;
  MK_TRY(mk_jinja_step(m, left.kind == JINJA_STRING ? left.length : 0));
  if (mk_jinja_number(left, &x) && mk_jinja_number(right, &y)) {
    *out = x == y && order_numbers(left, right) == 0; /* a NaN is not equal to itself */
    return MK_OK;
  }
  if (left.kind != right.kind) {
    return MK_OK;
  }
  switch (left.kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
      *out = true;
      return MK_OK;
    case JINJA_STRING:
      *out = left.length == right.length && order_strings(left, right) == 0;
      return MK_OK;
    case JINJA_LIST:
      return equal_lists(m, left.list, right.list, out);
    case JINJA_DICT:
      return equal_dicts(m, left.dict, right.dict, out);
    case JINJA_METHOD:
      *out = false;
      return MK_OK;
    default:
      *out = left.dict == right.dict; /* the same one */
      return MK_OK;
  }
}

mk_status mk_jinja_order(jinja *m, jinja_value left, jinja_value right, uint16_t symbol, int *out) {
  double x, y;
  MK_TRY(mk_jinja_step(m, left.kind == JINJA_STRING ? left.length : 0));
  if (mk_jinja_number(left, &x) && mk_jinja_number(right, &y)) {
    *out = order_numbers(left, right);
    return MK_OK;
  }
  if (left.kind == JINJA_STRING && right.kind == JINJA_STRING) {
    *out = order_strings(left, right);
    return MK_OK;
  }
  if (left.kind == JINJA_UNDEFINED || right.kind == JINJA_UNDEFINED) {
    return mk_jinja_fail_undefined(m, left.kind == JINJA_UNDEFINED ? left : right);
  }
  if (left.kind != JINJA_LIST || right.kind != JINJA_LIST || left.list->sequence != right.list->sequence ||
      left.list->sequence > JINJA_IS_TUPLE) {
    return mk_jinja_fail(m->line, "'%c%s' not supported between instances of '%s' and '%s'",
                         symbol >> 8 != 0 ? symbol >> 8 : symbol & 255, symbol >> 8 != 0 ? "=" : "",
                         mk_jinja_type(left), mk_jinja_type(right));
  }
  MK_TRY(mk_jinja_enter(m));
  size_t i = 0;
  bool equal = true;
  while (i < left.list->count && i < right.list->count) {
    MK_TRY(mk_jinja_equal(m, left.list->items[i], right.list->items[i], &equal));
    if (!equal) {
      MK_TRY(mk_jinja_order(m, left.list->items[i], right.list->items[i], symbol, out));
      break;
    }
    i++;
  }
  if (equal) {
    *out = (left.list->count > right.list->count) - (left.list->count < right.list->count);
  }
  m->depth--;
  return MK_OK;
}

mk_status mk_jinja_contains(jinja *m, jinja_value container, jinja_value item, bool *out) {
  *out = false;
  if (container.kind == JINJA_STRING) {
    if (item.kind == JINJA_UNDEFINED) {
      return mk_jinja_fail(m->line, "'in <string>' requires string as left operand, not Undefined");
    }
    if (item.kind != JINJA_STRING) {
      return mk_jinja_fail(m->line, "'in <string>' requires string as left operand, not %s", mk_jinja_type(item));
    }
    MK_TRY(mk_jinja_step(m, container.length));
    *out = item.length == 0 || mk_jinja_search(container.text, container.length, item.text, item.length) != NULL;
    return MK_OK;
  }
  if (container.kind == JINJA_DICT) {
    jinja_value value;
    MK_TRY(mk_jinja_check_key(m, item));
    MK_TRY(mk_jinja_get(m, container.dict, item, &value));
    *out = value.kind != JINJA_MISSING;
    return MK_OK;
  }
  if (!mk_jinja_can_iterate(container)) {
    return mk_jinja_fail(m->line, "argument of type '%s' is not iterable", mk_jinja_type(container));
  }
  jinja_iterator at;
  if (container.kind == JINJA_LIST && container.list->sequence == JINJA_IS_KEYS) {
    MK_TRY(mk_jinja_check_key(m, item));
  }
  MK_TRY(mk_jinja_start(m, container, &at));
  while (!*out) { /* a generator is gone through only as far as need be */
    jinja_value next;
    MK_TRY(mk_jinja_next(m, &at, &next));
    if (next.kind == JINJA_MISSING) {
      break;
    }
    MK_TRY(mk_jinja_equal(m, next, item, out));
  }
  return MK_OK;
}
