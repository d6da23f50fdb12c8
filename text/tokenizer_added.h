/* The tokens that the files beside tokenizer.json add to it, or give other flags, as transformers 5 does when it opens
 * a directory: added_tokens_decoder of tokenizer_config.json, then the special tokens (bos_token and its like), then
 * the lists of further ones.
 *
 * Any thread may call; `root` belongs to the caller. Failure: MK_ERR_FILE with the file and the token, MK_ERR_RUNTIME
 * for memory. */
#ifndef MK_TOKENIZER_ADDED_H
#define MK_TOKENIZER_ADDED_H

#include <jansson.h>

#include "vm/status.h"

/* Changes added_tokens of `root`, the object of DIRECTORY/tokenizer.json. */
mk_status mk_tokenizer_add_configured(const char *directory, json_t *root);

/* The same from what the files hold: `config` is tokenizer_config.json, `named` what mk_special_tokens found, `map`
 * special_tokens_map.json where it counts. NULL where there is none. */
mk_status mk_tokenizer_add(json_t *root, const json_t *config, const json_t *named, const json_t *map);

#endif
