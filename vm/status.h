/* The error idiom and the allocator: the only header that every folder includes.
 *
 * A function that can fail returns mk_status. On failure it has called mk_error(), which keeps one message per thread;
 * the message names the field or value at fault and what to do next. Library code never exits and never prints.
 * The values of mk_status are the exit codes of the command (docs: README, "Exit codes").
 *
 * Memory comes from mk_alloc() and friends, so that tests can make the n-th allocation fail (mk_alloc_fail_at).
 * All functions here may be called from any thread; the message and the fault counter belong to the calling thread. */
#ifndef MK_STATUS_H
#define MK_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum mk_status {
  MK_OK = 0,
  MK_ERR_RUNTIME = 1,  /* out of memory, I/O, anything of the host */
  MK_ERR_USAGE = 2,    /* a wrong flag or argument */
  MK_ERR_FILE = 3,     /* a model, tokenizer or program file is bad, malformed or not supported */
  MK_ERR_REJECTED = 4, /* a well-formed program that the verifier does not accept */
  MK_ERR_DEVICE = 5,   /* the machine faulted or ran into a deadline */
  MK_ERR_BUSY = 6,     /* a queue is full: later there may be room */
  MK_ERR_TOO_LONG = 7, /* a prompt has more tokens than there is room for */
} mk_status;

/* Sets this thread's message and returns `status`, so that `return mk_error(...)` reads as one step. */
#define mk_error(status, ...) mk_error_at((status), __FILE__, __LINE__, __VA_ARGS__)
mk_status mk_error_at(mk_status status, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Puts "context: " in front of this thread's message and returns `status`: the caller knows the file, the callee the
 * field. */
mk_status mk_error_prefix(mk_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __clang_analyzer__ /* tools/lint sees one file at a time: what these functions return must be told here */
#undef mk_error
#define mk_error(status, ...) (mk_error_at((status), __FILE__, __LINE__, __VA_ARGS__), (status))
#define mk_error_prefix(status, ...) (mk_error_prefix((status), __VA_ARGS__), (status))
#endif

/* This thread's last message ("" when none), and the place in the source that raised it ("file:line"). */
const char *mk_error_message(void);
const char *mk_error_place(void);

/* Returns from the enclosing function when `expression` fails. */
#define MK_TRY(expression)                   \
  do {                                       \
    mk_status mk_try_status_ = (expression); \
    if (mk_try_status_ != MK_OK) {           \
      return mk_try_status_;                 \
    }                                        \
  } while (0)

/* Jumps to `label` when `expression` fails; the enclosing function has a variable `mk_status status`. */
#define MK_TRY_GOTO(expression, label) \
  do {                                 \
    status = (expression);             \
    if (status != MK_OK) {             \
      goto label;                      \
    }                                  \
  } while (0)

/* Zeroed memory for count * size bytes in *out (void **); MK_ERR_RUNTIME, and NULL there, when it overflows or there is
 * none. count * size == 0 gives a valid pointer that can be freed. */
mk_status mk_alloc(size_t count, size_t size, void *out);
/* Resizes *inout (which may be NULL) to count * size bytes, keeping its content; new bytes are not zeroed. */
mk_status mk_realloc(size_t count, size_t size, void *inout);
/* Zeroed memory aligned to `alignment` (a power of two >= sizeof(void *)); freed with mk_free. */
mk_status mk_alloc_aligned(size_t alignment, size_t bytes, void *out);
mk_status mk_strdup(const char *text, char **out);
void mk_free(void *memory);

/* Grows an array to hold at least `need` elements (doubling); *capacity is in elements. */
mk_status mk_grow(void *inout, size_t *capacity, size_t need, size_t size);

/* Tests: the n-th allocation of this thread from now on fails (0: none); `forever` makes all later ones fail too.
 * mk_alloc_calls counts this thread's allocations since the last call of mk_alloc_fail_at. */
void mk_alloc_fail_at(uint64_t n, bool forever);
uint64_t mk_alloc_calls(void);

#ifdef __clang_analyzer__ /* as above: whose memory is used after its end, freed twice or lost */
#include <stdlib.h>
static inline mk_status mk_alloc_analyzed(size_t count, size_t size, void *out) {
  void *memory = calloc(count == 0 ? 1 : count, size == 0 ? 1 : size);
  *(void **)out = memory;
  return memory == NULL ? MK_ERR_RUNTIME : MK_OK;
}
#define mk_alloc(count, size, out) mk_alloc_analyzed(count, size, out)
#define mk_free(memory) free(memory)
#endif

#endif
