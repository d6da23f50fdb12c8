/* See template_names.h. */
#include "text/template_names.h"

#include <string.h>

static size_t bucket(uint64_t key, size_t size) { return (size_t)((key * 0x9e3779b97f4a7c15u) >> 20) & (size - 1); }

const uint32_t *mk_jinja_table_find(const jinja_table *t, uint64_t key) {
  for (size_t i = bucket(key, t->size); t->size > 0; i = (i + 1) & (t->size - 1)) {
    if (t->keys[i] == 0) {
      return NULL;
    }
    if (t->keys[i] == key + 1) {
      return &t->values[i];
    }
  }
  return NULL;
}

mk_status mk_jinja_table_put(jinja_pool *pool, jinja_table *t, uint64_t key, uint32_t value) {
  if (t->count * 2 >= t->size) {
    jinja_table bigger = {.size = t->size == 0 ? 8 : t->size * 2};
    MK_TRY(mk_jinja_alloc(pool, bigger.size, sizeof *bigger.keys, &bigger.keys));
    MK_TRY(mk_jinja_alloc(pool, bigger.size, sizeof *bigger.values, &bigger.values));
    for (size_t i = 0; i < t->size; i++) {
      if (t->keys[i] != 0) {
        MK_TRY(mk_jinja_table_put(pool, &bigger, t->keys[i] - 1, t->values[i]));
      }
    }
    *t = bigger;
  }
  size_t i = bucket(key, t->size);
  while (t->keys[i] != 0) {
    i = (i + 1) & (t->size - 1);
  }
  t->keys[i] = key + 1;
  t->values[i] = value;
  t->count++;
  return MK_OK;
}

static uint64_t hash(jinja_value name) {
  uint64_t h = 14695981039346656037u; /* FNV-1a */
  for (size_t i = 0; i < name.length; i++) {
    h = (h ^ (unsigned char)name.text[i]) * 1099511628211u;
  }
  return h;
}

static void link_name(jinja_names *s, uint32_t number) {
  size_t i = bucket(hash(s->texts[number]), s->bucket_count);
  while (s->buckets[i] != 0) {
    i = (i + 1) & (s->bucket_count - 1);
  }
  s->buckets[i] = number + 1;
}

mk_status mk_jinja_number_of(jinja_pool *pool, jinja_names *s, jinja_value name, uint32_t *out) {
  for (size_t i = bucket(hash(name), s->bucket_count); s->bucket_count > 0 && s->buckets[i] != 0;
       i = (i + 1) & (s->bucket_count - 1)) {
    jinja_value other = s->texts[s->buckets[i] - 1];
    if (other.length == name.length && memcmp(other.text, name.text, name.length) == 0) {
      *out = s->buckets[i] - 1;
      return MK_OK;
    }
  }
  if (s->count == s->capacity) {
    jinja_value *names;
    size_t capacity = s->capacity == 0 ? 32 : s->capacity * 2;
    MK_TRY(mk_jinja_alloc(pool, capacity, sizeof *names, &names));
    if (s->count > 0) {
      memcpy(names, s->texts, s->count * sizeof *names);
    }
    MK_TRY(mk_jinja_alloc(pool, capacity * 2, sizeof *s->buckets, &s->buckets));
    s->texts = names;
    s->capacity = capacity;
    s->bucket_count = capacity * 2;
    for (uint32_t i = 0; i < s->count; i++) {
      link_name(s, i);
    }
  }
  s->texts[s->count] = name;
  *out = (uint32_t)s->count++;
  link_name(s, *out);
  return MK_OK;
}
