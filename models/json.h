/* The text files of a model directory: opening them with care, and JSON through jansson.
 *
 * Buffers handed out belong to the caller (mk_free); a json_t is the caller's reference (json_decref). Any thread may
 * call. jansson keeps its own allocator (malloc): its lexer does not check every allocation, so that making them fail
 * would test jansson and not this code. Failure: MK_ERR_FILE when the file is at fault, MK_ERR_RUNTIME for I/O and
 * memory; the message names the path, or the line and the value. */
#ifndef MK_JSON_H
#define MK_JSON_H

#include <jansson.h>

#include "vm/status.h"

/* "DIRECTORY/NAME". */
mk_status mk_path_join(const char *directory, const char *name, char **out);

/* Whether there is anything of that name, be it a link that leads nowhere. */
bool mk_file_is_there(const char *path);

/* Opens a regular, non-empty file for reading and gives its size; never blocks on a FIFO or a device. With `optional`,
 * a missing file is no error and gives *fd = -1; a link that leads nowhere is one all the same. */
mk_status mk_file_open(const char *path, bool optional, int *fd, uint64_t *size);

/* Reads bytes [offset, offset + length) of an open file; the end of the file before that is MK_ERR_FILE ("truncated").
 * `path` is for the message only. */
mk_status mk_file_pread(int fd, const char *path, uint64_t offset, size_t length, void *out);

/* Reads a whole file of at most `limit` bytes; *text is NUL-terminated for convenience, *length does not count the NUL.
 * With `optional`, a missing file gives *text = NULL. */
mk_status mk_file_read(const char *path, bool optional, size_t limit, char **text, size_t *length);

/* Parses one JSON object: duplicate keys, text after it, numbers out of range and bytes that are not UTF-8 are refused.
 */
mk_status mk_json_parse(const char *text, size_t length, json_t **out);

/* The member `key`, or NULL when it is absent or null: files mean the same by both. */
const json_t *mk_json_get(const json_t *object, const char *key);

enum { MK_JSON_SHOWN = 64 };
/* A value as compact JSON for a message, cut to fit. */
const char *mk_json_show(const json_t *value, char shown[MK_JSON_SHOWN]);

#endif
