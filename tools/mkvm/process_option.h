/* The options by which run, bench and serve are one rank of several processes (docs/RANKS.md, "Processes"). What
 * contradicts itself ends the process with a usage error, as argp does. Texts are argv's. One thread. */
#ifndef MK_PROCESS_OPTION_H
#define MK_PROCESS_OPTION_H

#include <argp.h>

#include "vm/gpu/group.h"

typedef struct mk_process_option {
  bool ranked; /* --rank was given */
  mk_group_options group;
} mk_process_option;

/* A child of the subcommand's argp; its input is a mk_process_option. */
extern const struct argp mk_process_argp;

/* At the end of all options; `ranks` and `device` are those of --ranks and --device. */
void mk_process_option_check(mk_process_option *option, uint32_t ranks, const char *device, struct argp_state *state);
/* --rendezvous does not go with an option that is given. */
void mk_process_option_refuse(const mk_process_option *option, bool given, const char *flag, const char *why,
                              struct argp_state *state);
/* For mk_engine_options.process; NULL: all ranks are in this process. */
const mk_group_options *mk_process_option_group(const mk_process_option *option);
/* Another rank than 0: it says nothing but errors. */
bool mk_process_option_is_silent(const mk_process_option *option);

#endif
