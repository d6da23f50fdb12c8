/* Fills the weight buffers of a machine: from the packed copy on disk, else from the checkpoint, else from the hash.
 *
 * The caller owns everything it passes. One thread. Failure: MK_ERR_FILE and MK_ERR_RUNTIME from the checkpoint,
 * MK_ERR_DEVICE from the GPU, MK_ERR_RUNTIME "interrupted" once *cancel is not 0. Trouble with the packed copy is no
 * failure: `notice` is told. */
#ifndef MK_LOAD_H
#define MK_LOAD_H

#include <signal.h>

#include "models/checkpoint.h"
#include "models/graph.h"
#include "vm/cpu/machine.h"
#include "vm/gpu/machine.h"

typedef struct mk_load {
  const mk_graph *graph;
  const mk_program *program;       /* compiled from the graph */
  const mk_checkpoint *checkpoint; /* NULL: hash weights */
  uint64_t synth_seed;             /* of the hash weights */
  mk_cpu *cpu;                     /* the machine is this one or `gpu`, the other is NULL; its weights are zero */
  mk_gpu *gpu;
  const char *cache;                   /* folder of packed copies: read when there, written when not; NULL: none */
  const volatile sig_atomic_t *cancel; /* NULL: nothing interrupts */
  /* NULL: nobody is told. Bytes of weights, from 0 to total: as a rank that is a process, of its share. */
  void (*progress)(void *user, uint64_t done, uint64_t total);
  void (*notice)(void *user, const char *text); /* one line */
  void *user;
} mk_load;

mk_status mk_load_weights(const mk_load *load);

#endif
