/* What generation_config.json says about sampling and the length of answers; its token ids are config.h's. What it
 * asks for that is not computed here (beams, bans, forced tokens, other filters) is refused by name, unless its value
 * asks for nothing.
 *
 * Plain values. Any thread may call. Failure: MK_ERR_FILE, with file, field and value. */
#ifndef MK_GENERATION_H
#define MK_GENERATION_H

#include "vm/status.h"

/* A key that the file does not have takes the value that transformers gives it: top_k 50 with do_sample, nothing else
 * does anything. Without do_sample the file asks for greedy generation; temperature is then 0. */
typedef struct mk_generation {
  bool do_sample;
  double temperature;
  uint32_t top_k; /* 0: off */
  double top_p, min_p, repetition_penalty;
  uint32_t max_new_tokens; /* of an answer of which nobody says how long it may be; 0: as long as the context */
} mk_generation;

#define MK_GENERATION_GREEDY ((mk_generation){.top_p = 1, .repetition_penalty = 1})

mk_status mk_generation_parse(const char *text, size_t length, mk_generation *out);
/* DIR/generation_config.json; MK_GENERATION_GREEDY where there is none. */
mk_status mk_generation_load(const char *directory, mk_generation *out);

#endif
