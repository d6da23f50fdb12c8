/* See file.h. */
#include "vm/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vm/draft.h"

uint64_t mk_fnv1a(const void *data, size_t length) {
  const unsigned char *bytes = data;
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < length; i++) {
    hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
  }
  return hash;
}

static mk_status read_exactly(int fd, void *into, size_t length) {
  size_t have = 0;
  while (have < length) {
    ssize_t got = read(fd, (unsigned char *)into + have, length - have);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return mk_error(MK_ERR_RUNTIME, "cannot be read: %s", strerror(errno));
    }
    if (got == 0) {
      return mk_error(MK_ERR_FILE, "ends after %zu of %zu bytes; it was truncated while it was read", have, length);
    }
    have += (size_t)got;
  }
  return MK_OK;
}

static mk_status load(int fd, const mk_file_kind *kind, void **bytes, size_t *length) {
  struct stat info;
  if (fstat(fd, &info) != 0) {
    return mk_error(MK_ERR_RUNTIME, "cannot be read: %s", strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) {
    return mk_error(MK_ERR_FILE, "is not a regular file; name %s that %s wrote", kind->what, kind->writer);
  }
  uint64_t size = (uint64_t)info.st_size;
  if (size < kind->start) {
    return mk_error(MK_ERR_FILE, "has %llu bytes; %s has at least %zu", (unsigned long long)size, kind->what,
                    kind->start);
  }
  /* The start alone first: a huge file of another kind is refused before memory is taken for it. */
  unsigned char start[MK_FILE_START], *all;
  MK_TRY(read_exactly(fd, start, kind->start));
  MK_TRY(kind->check(start, size));
  MK_TRY(mk_alloc((size_t)size, 1, &all));
  memcpy(all, start, kind->start);
  mk_status status = read_exactly(fd, all + kind->start, (size_t)size - kind->start);
  if (status != MK_OK) {
    mk_free(all);
    return status;
  }
  *bytes = all;
  *length = (size_t)size;
  return MK_OK;
}

mk_status mk_load_bytes(const char *path, const mk_file_kind *kind, void **bytes, size_t *length) {
  *bytes = NULL;
  *length = 0;
  /* Non-blocking, so that a FIFO without a writer is refused instead of waited for. */
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return mk_error(MK_ERR_FILE, "%s: cannot be opened: %s", path, strerror(errno));
  }
  mk_status status = load(fd, kind, bytes, length);
  close(fd);
  return status == MK_OK ? MK_OK : mk_error_prefix(status, "%s", path);
}

mk_status mk_save_bytes(const char *path, const void *bytes, size_t length) {
  mk_draft *draft;
  MK_TRY(mk_draft_open(path, &draft));
  mk_status status = mk_draft_write(draft, bytes, length);
  if (status == MK_OK) {
    status = mk_draft_sync(draft);
  }
  if (status != MK_OK) {
    mk_draft_drop(draft);
    return status;
  }
  return mk_drafts_finish(&draft, 1);
}
