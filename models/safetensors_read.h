/* The texts that describe a checkpoint: the header of a safetensors file, and the index of shards. They parse bytes
 * that may come from anywhere and open no file.
 *
 * A header and an index own their JSON, into which names point, until they are freed (zero-initialised they are empty,
 * and freeing an empty one is fine). Any thread may call. Failure: MK_ERR_FILE (malformed or not supported) or
 * MK_ERR_RUNTIME (memory), and nothing to free; the message names the tensor or key and the value. */
#ifndef MK_SAFETENSORS_READ_H
#define MK_SAFETENSORS_READ_H

#include <jansson.h>

#include "models/checkpoint.h"

/* A file starts with the length of its header: 8 bytes, little-endian. */
enum { MK_SAFETENSORS_LEAD = 8 };
/* Checks that length against the size of the file; `lead` has size < 8 ? size : 8 bytes. */
mk_status mk_safetensors_header_length(const uint8_t *lead, uint64_t size, size_t *length);

typedef struct mk_safetensors_header {
  json_t *root;
  mk_tensor *tensors; /* in file order; offsets count from the end of the header, `file` is 0 */
  size_t count;
} mk_safetensors_header;

/* `data` bytes follow the header in the file; every one of them belongs to one tensor. */
mk_status mk_safetensors_header_parse(const char *text, size_t length, uint64_t data, mk_safetensors_header *out);
void mk_safetensors_header_free(mk_safetensors_header *header);

typedef struct mk_safetensors_index {
  json_t *root;
  const json_t *map;  /* tensor name -> file name */
  const char **files; /* each once, in the order of their first tensors; plain names that end in .safetensors */
  size_t count;
} mk_safetensors_index;

mk_status mk_safetensors_index_parse(const char *text, size_t length, mk_safetensors_index *out);
void mk_safetensors_index_free(mk_safetensors_index *index);

#endif
