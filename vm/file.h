/* Files of our own formats (.mkp, .mktrace), as bytes: read whole, written whole, checksummed.
 *
 * Ownership: *bytes is the caller's (mk_free). Failure: messages begin with the path. */
#ifndef MK_FILE_H
#define MK_FILE_H

#include "vm/status.h"

enum { MK_FILE_START = 256 };

typedef struct mk_file_kind {
  const char *what, *writer; /* for messages: "a program", "`mkvm compile`" */
  size_t start;              /* bytes that every file of this kind has at least; at most MK_FILE_START */
  mk_status (*check)(const void *start,
                     uint64_t size); /* of the file; refuses it before memory is taken for the rest */
} mk_file_kind;

/* MK_ERR_FILE for what is not a regular, complete file of that kind. */
mk_status mk_load_bytes(const char *path, const mk_file_kind *kind, void **bytes, size_t *length);
/* Writes the whole of a file, by a draft (draft.h). */
mk_status mk_save_bytes(const char *path, const void *bytes, size_t length);

uint64_t mk_fnv1a(const void *data, size_t length); /* FNV-1a-64 */

#endif
