/* Writing files of a model directory: a file that gets its name only when it is complete, text that grows, and the header
 * of a safetensors file.
 *
 * An mk_output owns its descriptor and names until mk_output_commit or mk_output_discard; an mk_text owns its bytes until
 * mk_text_free (zero-initialised it is empty, and freeing an empty one is fine). One thread per object. Failure:
 * MK_ERR_RUNTIME, naming the path and the reason of the system. */
#ifndef MK_SAFETENSORS_WRITE_H
#define MK_SAFETENSORS_WRITE_H

#include "vm/status.h"

typedef struct mk_output {
  int fd;
  char *path;      /* DIRECTORY/NAME */
  char *temporary; /* DIRECTORY/.NAME.PID.part, renamed to `path` by mk_output_commit */
  uint64_t written;
} mk_output;

mk_status mk_output_open(const char *directory, const char *name, mk_output *out);
mk_status mk_output_write(mk_output *output, const void *data, size_t bytes);
/* Gives the file its name, or removes it and fails. The output is closed either way. */
mk_status mk_output_commit(mk_output *output);
/* Closes and removes an output that was not committed; otherwise does nothing. */
void mk_output_discard(mk_output *output);

typedef struct mk_text {
  char *data; /* NUL-terminated once anything was added */
  size_t length, capacity;
} mk_text;

mk_status mk_text_add(mk_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void mk_text_free(mk_text *text);

/* The header of a safetensors file of bf16 tensors, entry by entry: begin (after which the text is for the header alone),
 * add for each tensor in the order of their data, end. What comes out are the bytes of the file up to the data. */
mk_status mk_safetensors_begin(mk_text *header);
mk_status mk_safetensors_add(mk_text *header, const char *name, uint32_t rank, const uint64_t *shape, uint64_t offset);
mk_status mk_safetensors_end(mk_text *header);

#endif
