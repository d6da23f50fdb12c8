/* How a model wants its tokens to be drawn when nobody says otherwise. Plain values; any thread may call. Failure:
 * MK_ERR_RUNTIME when the system gives no random numbers. */
#ifndef MK_DEFAULTS_H
#define MK_DEFAULTS_H

#include "instructions/sampling_host.h"
#include "models/generation.h"

/* What its generation_config.json asks for, with seed 0. */
mk_sampling mk_sampling_of_generation(const mk_generation *generation);
/* 32 random bits: a number that a user can type again. */
mk_status mk_random_seed(uint64_t *seed);

#endif
