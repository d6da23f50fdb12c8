/* See status.h. */
#include "vm/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Thread_local char message[4096]; /* a wait cycle through all SMs of a GPU fits */
static _Thread_local char place[256];
static _Thread_local uint64_t alloc_calls;
static _Thread_local uint64_t alloc_fail_from;
static _Thread_local bool alloc_fail_forever;

/* Messages quote what files hold, and end on terminals and in logs: control characters, U+0080 to U+009F included,
 * become question marks, so that a message is one line and cannot steer a terminal. */
static void make_printable(void) {
  for (unsigned char *at = (unsigned char *)message; *at != '\0'; at++) {
    const bool two_bytes = *at == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0;
    if (two_bytes) {
      at[1] = '?';
    }
    if (two_bytes || *at < ' ' || *at == 0x7f) {
      *at = '?';
    }
  }
}

mk_status mk_error_at(mk_status status, const char *file, int line, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  make_printable();
  snprintf(place, sizeof place, "%s:%d", file, line);
  return status;
}

mk_status(mk_error_prefix)(mk_status status, const char *format, ...) {
  char joined[sizeof message];
  va_list args;
  va_start(args, format);
  int used = vsnprintf(joined, sizeof joined, format, args);
  va_end(args);
  size_t at = used < 0 ? 0 : (size_t)used;
  if (at + 3 < sizeof joined) {
    joined[at] = ':';
    joined[at + 1] = ' ';
    size_t room = sizeof joined - at - 3, length = strlen(message);
    length = length < room ? length : room;
    memcpy(joined + at + 2, message, length);
    joined[at + 2 + length] = '\0';
  }
  memcpy(message, joined, sizeof message);
  make_printable();
  return status;
}

const char *mk_error_message(void) { return message; }
const char *mk_error_place(void) { return place; }

static bool alloc_must_fail(void) {
  alloc_calls++;
  return alloc_fail_from != 0 &&
         (alloc_calls == alloc_fail_from || (alloc_fail_forever && alloc_calls > alloc_fail_from));
}

static mk_status out_of_memory(size_t count, size_t size) {
  return mk_error(MK_ERR_RUNTIME, "out of memory: %zu x %zu bytes could not be allocated", count, size);
}

/* Weights are gigabytes, and the tables of a large program tens of megabytes: in pages of 2 MiB the kernel has 512
 * times fewer of them to hand out, and the CPU to look up. */
enum { LARGE = 4 << 20, LARGE_PAGE = 2 << 20 };

/* `memory` is not touched. */
static void use_large_pages(void *memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
  if (bytes >= LARGE) {
    const uintptr_t first = ((uintptr_t)memory + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    const uintptr_t end = ((uintptr_t)memory + bytes) / LARGE_PAGE * LARGE_PAGE;
    /* A kernel that has none gives small ones. NOLINTNEXTLINE(performance-no-int-to-ptr): rounded */
    (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
  }
#else
  (void)memory;
  (void)bytes;
#endif
}

mk_status mk_realloc(size_t count, size_t size, void *inout) {
  size_t bytes;
  void *old;
  memcpy(&old, inout, sizeof old);
  if (__builtin_mul_overflow(count, size, &bytes) || alloc_must_fail()) {
    return out_of_memory(count, size);
  }
  void *fresh = realloc(old, bytes == 0 ? 1 : bytes);
  if (fresh == NULL) {
    return out_of_memory(count, size);
  }
  use_large_pages(fresh, bytes);
  memcpy(inout, &fresh, sizeof fresh);
  return MK_OK;
}

mk_status(mk_alloc)(size_t count, size_t size, void *out) {
  size_t bytes;
  void *fresh = NULL;
  memcpy(out, &fresh, sizeof fresh);
  if (__builtin_mul_overflow(count, size, &bytes) || alloc_must_fail()) {
    return out_of_memory(count, size);
  }
  fresh = calloc(1, bytes == 0 ? 1 : bytes);
  if (fresh == NULL) {
    return out_of_memory(count, size);
  }
  use_large_pages(fresh, bytes);
  memcpy(out, &fresh, sizeof fresh);
  return MK_OK;
}

mk_status mk_alloc_aligned(size_t alignment, size_t bytes, void *out) {
  void *fresh = NULL;
  alignment = bytes >= LARGE && alignment < LARGE_PAGE ? LARGE_PAGE : alignment;
  memcpy(out, &fresh, sizeof fresh);
  if (alloc_must_fail() || posix_memalign(&fresh, alignment, bytes == 0 ? 1 : bytes) != 0) {
    return out_of_memory(1, bytes);
  }
  use_large_pages(fresh, bytes);
  memset(fresh, 0, bytes);
  memcpy(out, &fresh, sizeof fresh);
  return MK_OK;
}

mk_status mk_strdup(const char *text, char **out) {
  size_t bytes = strlen(text) + 1;
  MK_TRY(mk_alloc(bytes, 1, out));
  memcpy(*out, text, bytes);
  return MK_OK;
}

void(mk_free)(void *memory) { free(memory); }

mk_status mk_grow(void *inout, size_t *capacity, size_t need, size_t size) {
  if (need <= *capacity) {
    return MK_OK;
  }
  size_t wanted = *capacity < 16 ? 16 : *capacity * 2;
  if (wanted < need) {
    wanted = need;
  }
  MK_TRY(mk_realloc(wanted, size, inout));
  *capacity = wanted;
  return MK_OK;
}

void mk_alloc_fail_at(uint64_t n, bool forever) {
  alloc_calls = 0;
  alloc_fail_from = n;
  alloc_fail_forever = forever;
}

uint64_t mk_alloc_calls(void) { return alloc_calls; }
