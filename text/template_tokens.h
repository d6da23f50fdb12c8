/* The special tokens that a chat template sees as variables: bos_token and its like, and those that a model names
 * itself, such as image_token. From tokenizer_config.json, special_tokens_map.json and what its class of tokenizer
 * assumes, as transformers 5 has them; docs/MODELS.md says how. */
#ifndef MK_TEMPLATE_TOKENS_H
#define MK_TEMPLATE_TOKENS_H

#include <jansson.h>

#include "vm/status.h"

/* Adds name: text to the object `tokens`. `config`: tokenizer_config.json, NULL when there is none. Failure:
 * MK_ERR_FILE with the file and the token. */
mk_status mk_template_tokens(const char *directory, const json_t *config, json_t *tokens);

/* The same with each token as the file has it, a text or an object with "content". `map`: what mk_special_tokens_map
 * gives. */
mk_status mk_special_tokens(const char *directory, const json_t *config, const json_t *map, json_t *tokens);
/* special_tokens_map.json, where it counts; NULL where it does not or there is none. */
mk_status mk_special_tokens_map(const char *directory, const json_t *config, json_t **out);

/* DIRECTORY/NAME as an object of JSON; *out is NULL when there is no such file. */
mk_status mk_template_read_json(const char *directory, const char *name, json_t **out);

#endif
