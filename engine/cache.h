/* A file of packed weights, so that a model need not be packed each time: a header, a checksum per chunk, and the
 * chunks.
 *
 *   0  magic "mkvmpack"    8  version          16  key
 *   24  chunks             32  payload bytes    40  checksum of bytes 0..39 and of the table
 *   64  table: a 64-bit checksum per chunk; then, from the next multiple of 4096 on, the chunks, back to back
 *
 * All numbers are little-endian. Writer and reader know sizes and number of the chunks beforehand, and the key stands
 * for everything that the content follows from, so a file either fits or is of no use. It is written under a temporary
 * name and takes its own one when it is complete. A rank that is a process has a file of its own, of its share.
 *
 * A mk_cache owns its file until mk_cache_close; closed without mk_cache_finish, a file that was being written is gone.
 * One thread. Failure: MK_ERR_FILE when the file is not, or no longer, what was written; MK_ERR_RUNTIME for I/O and
 * memory. Messages begin with the path. */
#ifndef MK_CACHE_H
#define MK_CACHE_H

#include "models/checkpoint.h"
#include "models/graph.h"

enum { MK_CACHE_CHUNK = 16 << 20 }; /* bytes of one chunk at most */

typedef struct mk_cache mk_cache;

/* Stands for what is packed: the weights of the graph, the checkpoint's tensors, the names, sizes and times of its
 * files, and the first elements of every tensor. */
mk_status mk_cache_key(const mk_checkpoint *checkpoint, const mk_graph *graph, uint64_t *key);
/* FOLDER/mkvm-KEY.packed; to be freed with mk_free. */
mk_status mk_cache_path(const char *folder, uint64_t key, char **path);

/* *out is NULL when there is no such file. */
mk_status mk_cache_open(const char *path, uint64_t key, uint64_t chunks, uint64_t payload, mk_cache **out);
/* The next chunk, checked. */
mk_status mk_cache_read(mk_cache *cache, void *memory, size_t bytes);

/* Makes the folder when it is missing, but not those above it. */
mk_status mk_cache_create(const char *folder, const char *path, uint64_t key, uint64_t chunks, uint64_t payload,
                          mk_cache **out);
mk_status mk_cache_write(mk_cache *cache, const void *memory, size_t bytes);
/* All chunks are written: the file takes its name. */
mk_status mk_cache_finish(mk_cache *cache);

void mk_cache_close(mk_cache *cache); /* NULL is fine */

#endif
