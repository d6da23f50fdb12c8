/* What run and bench say on standard error while an engine opens, which Ctrl-C ends (signals.h), and run while it reads
 * a prompt. One thread. Failure: that of the engine. */
#ifndef MK_LOADING_H
#define MK_LOADING_H

#include "engine/engine.h"

/* mk_engine_open, with what is to be told: the memory that the model takes, and progress in GB and GB/s, where standard
 * error is a terminal; what is to be noted of the directory (models/directory.h) and trouble with the packed copy
 * always. Interrupts are caught from here on, and mk_interrupted ends the opening. Of a process that is another rank
 * than 0 nothing is told; it follows rank 0 to its end, and *out is then NULL: there is nothing left to do. */
mk_status mk_open_engine(const char *model, const mk_engine_options *options, mk_engine **out);

/* A line on standard error, where that is a terminal, that says what is computed with: the form of the weights, and
 * that of the KV cache. (What is not bf16 is noted by mk_open_engine always.) */
void mk_tell_precision(const mk_config *config, mk_dtype kv);

/* How far loading is, where standard error is a terminal; done == total takes the line away. */
void mk_show_loading(uint64_t done, uint64_t total);

/* A prompt_progress of the engine: a line on standard error, where that is a terminal, while a prompt takes long.
 * mk_clear_prompt takes the line away, before anything else is shown and when a generation has ended. */
void mk_show_prompt(void *user, uint64_t done, uint64_t total);
void mk_clear_prompt(void);

#endif
