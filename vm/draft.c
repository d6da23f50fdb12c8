/* See draft.h.
 *
 * All drafts are in one list, so that a signal handler finds them. Who changes the list has all signals blocked and
 * holds the lock: the handler may then wait for the lock on any thread, since it never comes upon the holder's own. */
#define _GNU_SOURCE /* fallocate */
#include "vm/draft.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct mk_draft {
  mk_draft *next;
  char *path, *temporary; /* temporary: NULL for a directory */
  int fd;
  bool made;        /* of a directory: it was not there before */
  uint64_t written; /* bytes, up to the last one */
};

static mk_draft *newest; /* those in a directory come before it */
static atomic_flag locked = ATOMIC_FLAG_INIT;

static void lock(sigset_t *before) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, before);
  while (atomic_flag_test_and_set_explicit(&locked, memory_order_acquire)) {
  }
}

static void unlock(const sigset_t *before) {
  atomic_flag_clear_explicit(&locked, memory_order_release);
  pthread_sigmask(SIG_SETMASK, before, NULL);
}

static void add(mk_draft *draft) {
  draft->next = newest;
  newest = draft;
}

static void take_out(const mk_draft *draft) {
  mk_draft **at = &newest;
  while (*at != NULL && *at != draft) {
    at = &(*at)->next;
  }
  if (*at != NULL) {
    *at = draft->next;
  }
}

static void erase(const mk_draft *draft) {
  if (draft->temporary != NULL) {
    unlink(draft->temporary);
  } else if (draft->made) {
    rmdir(draft->path);
  }
}

void mk_drafts_abandon(void) {
  sigset_t before;
  lock(&before);
  for (const mk_draft *draft = newest; draft != NULL; draft = draft->next) {
    erase(draft);
  }
}

static void free_draft(mk_draft *draft) {
  if (draft->fd >= 0) {
    close(draft->fd);
  }
  mk_free(draft->temporary);
  mk_free(draft->path);
  mk_free(draft);
}

void mk_draft_drop(mk_draft *draft) {
  sigset_t before;
  if (draft == NULL) {
    return;
  }
  lock(&before);
  erase(draft);
  take_out(draft);
  unlock(&before);
  free_draft(draft);
}

static mk_status failed(const mk_draft *draft, const char *what) {
  bool full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG, nowhere = errno == ENOENT || errno == ENOTDIR;
  return mk_error(MK_ERR_RUNTIME, "%s: cannot be %s: %s%s", draft->path, what, strerror(errno),
                  full      ? "; free some space or choose another place"
                  : nowhere ? "; create the directory for it or choose another place"
                            : "");
}

static mk_status new_draft(const char *path, mk_draft **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  (*out)->fd = -1;
  mk_status status = mk_strdup(path, &(*out)->path);
  if (status != MK_OK) {
    mk_free(*out);
    *out = NULL;
  }
  return status;
}

/* No signal comes between the file and its place in the list. */
static bool create(mk_draft *draft, size_t size) {
  sigset_t before;
  lock(&before);
  for (int attempt = 0; attempt < 100 && draft->fd < 0; attempt++) {
    snprintf(draft->temporary, size, "%s.%ld.%d.tmp", draft->path, (long)getpid(), attempt);
    draft->fd = open(draft->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (draft->fd < 0 && errno != EEXIST) {
      break;
    }
  }
  if (draft->fd >= 0) {
    add(draft);
  }
  unlock(&before);
  return draft->fd >= 0;
}

mk_status mk_draft_open(const char *path, mk_draft **out) {
  mk_draft *draft;
  struct stat info;
  size_t size = strlen(path) + 64;
  *out = NULL;
  MK_TRY(new_draft(path, &draft));
  mk_status status;
  if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
    status = mk_error(MK_ERR_RUNTIME, "%s: is not a regular file; name another file to write", path);
    goto fail;
  }
  MK_TRY_GOTO(mk_alloc(size, 1, &draft->temporary), fail);
  if (!create(draft, size)) {
    status = failed(draft, "created");
    goto fail;
  }
  *out = draft;
  return MK_OK;
fail:
  free_draft(draft);
  return status;
}

mk_status mk_draft_directory(const char *path, mk_draft **out) {
  mk_draft *draft;
  sigset_t before;
  *out = NULL;
  MK_TRY(new_draft(path, &draft));
  lock(&before);
  draft->made = mkdir(path, 0777) == 0;
  bool good = draft->made || errno == EEXIST;
  if (draft->made) {
    add(draft);
  }
  unlock(&before);
  if (!good) {
    mk_status status = failed(draft, "created");
    free_draft(draft);
    return status;
  }
  *out = draft;
  return MK_OK;
}

mk_status mk_draft_write_at(mk_draft *draft, uint64_t offset, const void *data, size_t bytes) {
  const char *at = data;
  while (bytes > 0) {
    ssize_t put = pwrite(draft->fd, at, bytes, (off_t)offset);
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      errno = put == 0 ? ENOSPC : errno;
      return failed(draft, "written");
    }
    at += put;
    offset += (uint64_t)put;
    bytes -= (size_t)put;
    draft->written = offset > draft->written ? offset : draft->written;
  }
  return MK_OK;
}

mk_status mk_draft_write(mk_draft *draft, const void *data, size_t bytes) {
  return mk_draft_write_at(draft, draft->written, data, bytes);
}

mk_status mk_draft_reserve(mk_draft *draft, uint64_t bytes) {
  bool full = fallocate(draft->fd, 0, 0, (off_t)bytes) != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG);
  return full ? failed(draft, "written") : MK_OK;
}

mk_status mk_draft_sync(mk_draft *draft) {
  return fsync(draft->fd) != 0 && errno != EINVAL ? failed(draft, "written") : MK_OK;
}

/* Network file systems report a full disk here. */
mk_status mk_draft_close(mk_draft *draft) {
  int fd = draft->fd;
  draft->fd = -1;
  return fd >= 0 && close(fd) != 0 ? failed(draft, "written") : MK_OK;
}

/* No signal comes between the names. */
static mk_status name_all(mk_draft *const *drafts, size_t count) {
  mk_status status = MK_OK;
  size_t named = 0;
  sigset_t before;
  lock(&before);
  for (; named < count && status == MK_OK; named++) {
    if (drafts[named]->temporary != NULL && rename(drafts[named]->temporary, drafts[named]->path) != 0) {
      status = failed(drafts[named], "renamed from its temporary name");
      break;
    }
  }
  for (size_t i = 0; i < count; i++) {
    if (status == MK_OK) {
      take_out(drafts[i]);
    } else if (i < named && drafts[i]->temporary != NULL) {
      unlink(drafts[i]->path);
    }
  }
  unlock(&before);
  return status;
}

mk_status mk_drafts_finish(mk_draft *const *drafts, size_t count) {
  mk_status status = MK_OK;
  for (size_t i = 0; i < count && status == MK_OK; i++) {
    status = mk_draft_close(drafts[i]);
  }
  if (status == MK_OK) {
    status = name_all(drafts, count);
  }
  for (size_t i = count; i-- > 0;) {
    if (status == MK_OK) {
      free_draft(drafts[i]);
    } else {
      mk_draft_drop(drafts[i]);
    }
  }
  return status;
}
