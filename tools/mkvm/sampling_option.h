/* The options of run that say how the next token is chosen: an argp child, the defaults of the model's
 * generation_config.json, and what came of both. A mk_sampling_option owns its biases until mk_sampling_option_free.
 * One thread. Failure: MK_ERR_USAGE, MK_ERR_FILE for generation_config.json. */
#ifndef MK_SAMPLING_OPTION_H
#define MK_SAMPLING_OPTION_H

#include <argp.h>
#include <jansson.h>
#include <stdio.h>

#include "instructions/sampling_host.h"

enum { MK_MOST_LOGPROBS = 20 };

typedef struct mk_sampling_option {
  mk_sampling sampling; /* as given; complete once resolved */
  uint32_t given;       /* which flags were: bits private to sampling_option.c */
  mk_logit_bias *biases;
  size_t bias_capacity;
  uint32_t max_new_tokens; /* once resolved: of generation_config.json; 0: it says nothing */
  bool logprobs;           /* asked for, with so many alternatives */
  uint32_t logprob_count;
} mk_sampling_option;

/* The child whose child_inputs entry is a zeroed mk_sampling_option. */
extern const struct argp mk_sampling_argp;

/* Fills in what was not given: from DIRECTORY's generation_config.json, and a seed from the system's randomness. */
mk_status mk_sampling_option_resolve(mk_sampling_option *option, const char *directory, uint32_t vocab);
/* One line; nothing for a greedy run. */
void mk_sampling_option_tell(const mk_sampling_option *option, FILE *out);
/* The same as an object, null for a greedy run. */
json_t *mk_sampling_option_json(const mk_sampling_option *option);
void mk_sampling_option_free(mk_sampling_option *option);

#endif
