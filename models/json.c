/* See json.h. */
#include "models/json.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

mk_status mk_path_join(const char *directory, const char *name, char **out) {
  size_t head = strlen(directory);
  size_t tail = strlen(name);
  MK_TRY(mk_alloc(head + tail + 2, 1, out));
  memcpy(*out, directory, head);
  (*out)[head] = '/';
  memcpy(*out + head + 1, name, tail);
  return MK_OK;
}

bool mk_file_is_there(const char *path) {
  struct stat info;
  return lstat(path, &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

mk_status mk_file_open(const char *path, bool optional, int *fd, uint64_t *size) {
  *fd = -1;
  *size = 0;
  /* O_NONBLOCK: opening a FIFO that nobody writes to returns at once instead of waiting for ever. */
  int opened = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (opened < 0) {
    const int why = errno;
    if (why == ENOENT && mk_file_is_there(path)) { /* such as of a download's cache that was copied without its blobs */
      return mk_error(MK_ERR_FILE, "%s: is a link to what is not there; put the file itself there (cp -L)", path);
    }
    return optional && why == ENOENT ? MK_OK : mk_error(MK_ERR_FILE, "%s: cannot be opened: %s", path, strerror(why));
  }
  struct stat info;
  mk_status status = MK_OK;
  if (fstat(opened, &info) != 0) {
    status = mk_error(MK_ERR_RUNTIME, "%s: fstat: %s", path, strerror(errno));
  } else if (!S_ISREG(info.st_mode)) {
    status = mk_error(MK_ERR_FILE, "%s: is %s, not a regular file; put the file itself there", path,
                      S_ISDIR(info.st_mode)    ? "a directory"
                      : S_ISFIFO(info.st_mode) ? "a FIFO"
                                               : "a device or socket");
  } else if (info.st_size == 0) {
    status = mk_error(MK_ERR_FILE, "%s: is empty (0 bytes); download it again", path);
  }
  if (status != MK_OK) {
    close(opened);
    return status;
  }
  *fd = opened;
  *size = (uint64_t)info.st_size;
  return MK_OK;
}

mk_status mk_file_pread(int fd, const char *path, uint64_t offset, size_t length, void *out) {
  char *at = out;
  const size_t most = (size_t)1 << 30; /* Linux moves at most 2 GiB - 4 KiB per call */
  while (length > 0) {
    ssize_t got = pread(fd, at, length < most ? length : most, (off_t)offset);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return mk_error(MK_ERR_RUNTIME, "%s: reading %zu bytes at %llu: %s", path, length, (unsigned long long)offset,
                      strerror(errno));
    }
    if (got == 0) {
      return mk_error(MK_ERR_FILE, "%s: truncated while it was read: %zu more bytes expected at offset %llu", path,
                      length, (unsigned long long)offset);
    }
    at += got;
    offset += (uint64_t)got;
    length -= (size_t)got;
  }
  return MK_OK;
}

mk_status mk_file_read(const char *path, bool optional, size_t limit, char **text, size_t *length) {
  *text = NULL;
  *length = 0;
  int fd;
  uint64_t size;
  MK_TRY(mk_file_open(path, optional, &fd, &size));
  if (fd < 0) {
    return MK_OK;
  }
  char *buffer = NULL;
  mk_status status = MK_OK;
  if (size > limit) {
    status = mk_error(MK_ERR_FILE, "%s: has %llu bytes, at most %zu are accepted here", path, (unsigned long long)size,
                      limit);
    goto done;
  }
  MK_TRY_GOTO(mk_alloc((size_t)size + 1, 1, &buffer), done);
  MK_TRY_GOTO(mk_file_pread(fd, path, 0, (size_t)size, buffer), done);
  *text = buffer;
  *length = (size_t)size;
  buffer = NULL;
done:
  mk_free(buffer);
  close(fd);
  return status;
}

/* jansson quotes short words alone; of longer ones it gives nothing but the place. */
static mk_status syntax_error(const json_error_t *error, const char *text, size_t length) {
  enum { MOST = 60 };
  const mk_status status = json_error_code(error) == json_error_out_of_memory ? MK_ERR_RUNTIME : MK_ERR_FILE;
  const size_t end = error->position < 0 || (size_t)error->position > length ? 0 : (size_t)error->position;
  if (strstr(error->text, " near ") != NULL || end == 0) {
    return mk_error(status, "line %d, column %d: not valid JSON: %s", error->line, error->column, error->text);
  }
  const size_t start = end > MOST ? end - MOST : 0;
  return mk_error(status, "line %d, column %d: not valid JSON: %s after %s%.*s", error->line, error->column,
                  error->text, start > 0 ? "..." : "", (int)(end - start), text + start);
}

mk_status mk_json_parse(const char *text, size_t length, json_t **out) {
  *out = NULL;
  json_error_t error;
  json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
  if (root == NULL) {
    return syntax_error(&error, text, length);
  }
  if (!json_is_object(root)) {
    json_decref(root);
    return mk_error(MK_ERR_FILE, "line 1: the JSON text must be an object in braces");
  }
  *out = root;
  return MK_OK;
}

const json_t *mk_json_get(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  return json_is_null(value) ? NULL : value;
}

const char *mk_json_show(const json_t *value, char shown[MK_JSON_SHOWN]) {
  memset(shown, 0, MK_JSON_SHOWN);
  if (value == NULL) {
    memcpy(shown, "null", 5);
    return shown;
  }
  size_t need = json_dumpb(value, shown, MK_JSON_SHOWN - 4, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
  if (need > MK_JSON_SHOWN - 4) {
    strcat(shown, "...");
  }
  return shown;
}
