/* mkvm run with several prompts: side by side where a step takes several rows, else (--rows 1, or a model that a GPU's
 * kernels of several rows do not take) one after the other.
 *
 * Texts and everything else stay the caller's. One thread. Failure: that of the first prompt that failed, after all
 * have ended. */
#ifndef MK_RUN_MANY_H
#define MK_RUN_MANY_H

#include "text/tokenizer.h"
#include "tools/mkvm/run_option.h"

enum { MK_DEVICE_TEXT = 160 };

typedef struct mk_prompt_text {
  char *text;
  size_t length;
} mk_prompt_text;

/* Rows per step, and their KV blocks, for so many prompts of which the longest has so many tokens: as --rows says, or
 * what suits. */
void mk_run_rows(const mk_run_option *option, size_t prompts, size_t longest, mk_engine_options *engine);

/* texts: option->prompt_count of them. Prints each answer when it is finished, or all as JSON. */
mk_status mk_run_many(const mk_run_option *option, const mk_config *config, uint32_t context,
                      const mk_tokenizer *tokenizer, const mk_prompt_text *texts);

#endif
