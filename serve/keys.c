/* See keys.h. */
#include "serve/keys.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/json.h"

enum { MOST_BYTES = 1 << 16 };

mk_status mk_keys_add(mk_keys *keys, const char *key) {
  if (key[0] == '\0') {
    return mk_error(MK_ERR_USAGE, "an API key is empty");
  }
  for (const char *at = key; *at != '\0'; at++) {
    if (!isgraph((unsigned char)*at)) {
      return mk_error(MK_ERR_USAGE, "an API key has a character that no header carries: white space, or not ASCII");
    }
  }
  MK_TRY(mk_grow(&keys->keys, &keys->capacity, keys->count + 1, sizeof *keys->keys));
  MK_TRY(mk_strdup(key, &keys->keys[keys->count]));
  keys->count++;
  return MK_OK;
}

static mk_status add_lines(mk_keys *keys, char *text, const char *path) {
  size_t before = keys->count;
  char *rest;
  for (char *line = strtok_r(text, "\r\n", &rest); line != NULL; line = strtok_r(NULL, "\r\n", &rest)) {
    line += strspn(line, " \t");
    size_t length = strlen(line);
    while (length > 0 && (line[length - 1] == ' ' || line[length - 1] == '\t')) {
      line[--length] = '\0';
    }
    mk_status status = length == 0 ? MK_OK : mk_keys_add(keys, line);
    if (status != MK_OK) {
      return mk_error_prefix(MK_ERR_FILE, "%s", path);
    }
  }
  return keys->count > before ? MK_OK : mk_error(MK_ERR_FILE, "%s: there is no key in it", path);
}

mk_status mk_keys_load(mk_keys *keys, const char *path, bool *open) {
  char *text;
  size_t length;
  struct stat about;
  const bool there = stat(path, &about) == 0;
  if (!there || access(path, R_OK) != 0) {
    *open = false;
    return mk_error(MK_ERR_FILE, "%s: cannot be opened: %s; give the path of a file of keys, one a line", path,
                    strerror(errno));
  }
  *open = (about.st_mode & (S_IRWXG | S_IRWXO)) != 0;
  if (S_ISREG(about.st_mode) && about.st_size == 0) {
    return mk_error(MK_ERR_FILE, "%s: there is no key in it", path);
  }
  MK_TRY(mk_file_read(path, false, MOST_BYTES, &text, &length));
  mk_status status = strlen(text) == length ? add_lines(keys, text, path)
                                            : mk_error(MK_ERR_FILE, "%s: a zero byte is in it; keys are text", path);
  explicit_bzero(text, length);
  mk_free(text);
  return status;
}

void mk_keys_free(mk_keys *keys) {
  for (size_t i = 0; i < keys->count; i++) {
    explicit_bzero(keys->keys[i], strlen(keys->keys[i]));
    mk_free(keys->keys[i]);
  }
  mk_free(keys->keys);
  *keys = (mk_keys){0};
}

/* 0 when they are the same. */
static size_t difference(const char *given, size_t length, const char *key) {
  const size_t own = strlen(key);
  volatile size_t different = length ^ own;
  for (size_t i = 0; i < length; i++) {
    different |= (size_t)((unsigned char)given[i] ^ (unsigned char)key[i % own]);
  }
  return different;
}

bool mk_keys_accept(const mk_keys *keys, const char *authorization) {
  static const char scheme[] = "Bearer ";
  bool found = false;
  if (authorization == NULL || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0) {
    return false;
  }
  const char *given = authorization + sizeof scheme - 1;
  given += strspn(given, " ");
  const size_t length = strlen(given);
  for (size_t i = 0; i < keys->count; i++) {
    found |= difference(given, length, keys->keys[i]) == 0;
  }
  return found;
}
