/* NCCL without GPUs, as far as mkvm uses it: a shared library that comes in the place of libnccl.so.2, for the device
 * memory of tests/fake_cuda.
 *
 * Memory is a file without a name, which other processes open through /proc: so windows are shared by processes that
 * are, and nothing is left of one that is killed. Calls that all ranks take part in wait for them all, for ever, as
 * NCCL's do. Built twice: as a 2.28 without ncclGetPeerDevicePointer, and as one that has it. */
#ifndef MK_FAKE_NCCL_H
#define MK_FAKE_NCCL_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fake_nccl {
  int version;
  int live;             /* communicators, memory and windows that have not been freed */
  int aborts, comms;    /* calls so far */
  uint64_t most_memory; /* bytes of one piece; 0: as many as are asked for */
  bool no_symmetry;     /* windows are registered, and are NULL */
  bool host_handles;    /* likewise, and are no memory of the GPU's */
  bool no_windows;      /* they are refused */
  bool other_layout;    /* of what a window's handle points to */
  bool out_of_reach;    /* each rank reaches its own memory alone */
  bool wrong_place;     /* what is told of others' memory is wrong */
  int inside;           /* calls that have not come back */
  bool slow;            /* one took over 100 ms, and may have been given up before it came back */
  bool hangs;           /* a communicator is never there */
} fake_nccl;

/* FAKE_NCCL_STATE in the library. */
typedef fake_nccl *fake_nccl_state_fn(void);
#define FAKE_NCCL_STATE "fake_nccl_state"

#endif
