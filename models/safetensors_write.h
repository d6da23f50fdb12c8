/* Writing files of a model directory: text that grows, and the header of a safetensors file.
 *
 * An mk_text owns its bytes until mk_text_free (zero-initialised it is empty, and freeing an empty one is fine). One
 * thread per object. Failure: MK_ERR_RUNTIME (memory). */
#ifndef MK_SAFETENSORS_WRITE_H
#define MK_SAFETENSORS_WRITE_H

#include "models/quant.h"

typedef struct mk_text {
  char *data; /* NUL-terminated once anything was added */
  size_t length, capacity;
} mk_text;

mk_status mk_text_add(mk_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void mk_text_free(mk_text *text);

/* The header of a safetensors file, entry by entry: begin (after which the text is for the header
 * alone), add for each tensor in the order of their data, end. What comes out are the bytes of the file up to the
 * data. */
mk_status mk_safetensors_begin(mk_text *header);
mk_status mk_safetensors_add(mk_text *header, const char *name, mk_tensor_dtype dtype, uint32_t rank,
                             const uint64_t *shape, uint64_t offset);
mk_status mk_safetensors_end(mk_text *header);

#endif
