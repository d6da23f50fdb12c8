/* A made-up GPU under the driver of tests/fake_cuda: its kernel reads plans, prompts and tables where the real ones do,
 * and chooses tokens by a rule in the place of a model. One thread; failures fail the running test. */
#ifndef MK_TEST_FAKE_GPU_H
#define MK_TEST_FAKE_GPU_H

#include "tests/fake_cuda/fake_cuda.h"
#include "vm/gpu/image.h"
#include "vm/program/plan.h"

typedef struct fake_gpu {
  uint32_t chosen[MK_PROMPT_ROWS]; /* by slot; of one row: the step's token */
  uint32_t fault_at, nan_at;       /* steps of a launch; UINT32_MAX: none */
  uint32_t launches[3];            /* so far: of one row, of several, of prompts */
  uint32_t ranked;                 /* rows so far */
  /* Of several ranks, each of which runs this kernel (else 0): how many there are, and the one that comes to fault_at;
   * how often one of them was at work. */
  uint32_t ranks, faulty, at_work[MK_GPU_MOST_RANKS];
  bool apart;              /* these are processes, each with this kernel: a step ends when all ranks have come to it */
  bool one_step;           /* each time that its stream is looked at, and no more */
  uint32_t step, since_ms; /* then: of the launch at hand, and since when the step waits */
  bool came;               /* and this rank has come to it */
  uint32_t began,
      ended; /* the last launch of rank 0: its first epoch, and the one after its last; others end with it */
} fake_gpu;

/* Puts the driver in its place, with this GPU. Before anything asks for a driver. */
fake_cuda *fake_gpu_start(fake_gpu *gpu);

/* The token that follows `token` at `position`, below 500. */
uint32_t fake_gpu_choice(uint32_t token, uint32_t position);

/* Once in a test program: an image in the place of the build's, which may have none. */
#define FAKE_GPU_IMAGE                               \
  const void *mk_gpu_image(mk_gpu_image_part part) { \
    (void)part;                                      \
    return "an image";                               \
  }                                                  \
  bool mk_gpu_image_complete(void) { return true; }  \
  int mk_gpu_image_cuda_version(void) { return 13000; }

#endif
