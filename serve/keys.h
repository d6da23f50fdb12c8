/* API keys: which are right, in a time that tells nothing of them.
 *
 * A mk_keys owns its copies until mk_keys_free. Any thread may ask. Failure: MK_ERR_FILE for a file that cannot be read
 * or has no key, MK_ERR_RUNTIME for memory. */
#ifndef MK_KEYS_H
#define MK_KEYS_H

#include "vm/status.h"

typedef struct mk_keys {
  char **keys;
  size_t count, capacity;
} mk_keys;

mk_status mk_keys_add(mk_keys *keys, const char *key);
/* One a line, at most 64 KiB in all; white space around them and empty lines do not count. *open: others than the owner
 * may read the file. */
mk_status mk_keys_load(mk_keys *keys, const char *path, bool *open);
void mk_keys_free(mk_keys *keys); /* a zeroed one is fine */

/* Whether the value of an Authorization header, "Bearer KEY", has a key; NULL never does. The time depends on its
 * length and on how many keys there are, not on their bytes. */
bool mk_keys_accept(const mk_keys *keys, const char *authorization);

#endif
