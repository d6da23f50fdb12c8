/* See process_option.h. */
#include "tools/mkvm/process_option.h"

#include <stdlib.h>
#include <string.h>

#include "mk_version.h"
#include "tools/mkvm/command.h"
#include "tools/mkvm/signals.h"
#include "vm/gpu/machine.h"

enum { KEY_RANK = 700, KEY_RENDEZVOUS, KEY_PATIENCE };

static const struct argp_option option_table[] = {
    {"rendezvous", KEY_RENDEZVOUS, "HOST:PORT", 0,
     "This process is one of --ranks, each with a GPU of this host, and each started with the same command line but "
     "for --rank; they meet at this address, where rank 0 listens. Needs NCCL 2.28 or newer",
     0},
    {"rank", KEY_RANK, "I", 0,
     "With --rendezvous: which of them, from 0 on. Rank 0 reads and prints; the others say nothing but errors. Its GPU "
     "is cuda:I, or the one that --device names",
     0},
    {"rank-deadline", KEY_PATIENCE, "S", 0,
     "With --rendezvous: how many seconds the ranks wait for one that does not come, or says nothing (60)", 0},
    {0}};

static error_t parse(int key, char *text, struct argp_state *state) {
  mk_process_option *o = state->input;
  switch (key) {
    case KEY_RANK:
      o->ranked = true;
      o->group.rank = (uint32_t)mk_number(state, "--rank", text, 0, MK_GPU_MOST_RANKS - 1);
      return 0;
    case KEY_RENDEZVOUS:
      o->group.address = text;
      return 0;
    case KEY_PATIENCE:
      o->group.deadline_s = (uint32_t)mk_number(state, "--rank-deadline", text, 1, MK_GROUP_MOST_DEADLINE_S);
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

const struct argp mk_process_argp = {.options = option_table, .parser = parse};

void mk_process_option_check(mk_process_option *o, uint32_t ranks, const char *device, struct argp_state *state) {
  if (o->group.address == NULL) {
    if (o->ranked || o->group.deadline_s != 0) {
      argp_error(state, "%s needs --rendezvous HOST:PORT", o->ranked ? "--rank" : "--rank-deadline");
    }
    return;
  }
  if (!o->ranked || ranks < 2) {
    argp_error(state, "--rendezvous needs %s", o->ranked ? "--ranks N, of 2 or more" : "--rank I");
  }
  if (ranks > MK_GPU_MOST_RANKS) {
    argp_error(state, "--rendezvous: %u ranks; GPUs have at most %d", ranks, MK_GPU_MOST_RANKS);
  }
  if (o->group.rank >= ranks) {
    argp_error(state, "--rank %u: there are %u ranks, counted from 0", o->group.rank, ranks);
  }
  if (device != NULL && strcmp(device, "cpu") == 0) {
    argp_error(state, "--rendezvous does not go with --device cpu, whose ranks are all in one process");
  }
  o->group.ranks = ranks;
  o->group.version = MK_VERSION_FULL;
  o->group.cancel = &mk_interrupted;
}

void mk_process_option_refuse(const mk_process_option *o, bool given, const char *flag, const char *why,
                              struct argp_state *state) {
  if (o->group.address != NULL && given) {
    argp_error(state, "--rendezvous does not go with %s, %s", flag, why);
  }
}

const mk_group_options *mk_process_option_group(const mk_process_option *o) {
  return o->group.address == NULL ? NULL : &o->group;
}

bool mk_process_option_is_silent(const mk_process_option *o) { return o->group.address != NULL && o->group.rank != 0; }
