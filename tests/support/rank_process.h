/* Ranks that are processes, over a driver and an NCCL without GPUs (tests/fake_cuda, tests/fake_nccl): children of the
 * test, each of which runs a function of it.
 *
 * The test waits for each of them. Failures fail the running test; in a child they end it with code 99. */
#ifndef MK_TEST_RANK_PROCESS_H
#define MK_TEST_RANK_PROCESS_H

#include <sys/types.h>

#include "tests/fake_nccl/fake_nccl.h"
#include "tests/support/fake_gpu.h"
#include "vm/gpu/group.h"
#include "vm/status.h"

/* What a child has. */
typedef struct rank_world {
  fake_gpu kernel;
  fake_cuda *cuda;
  fake_nccl *nccl;
} rank_world;

/* The GPU of this rank, and NCCL 2.28, or 2.29. */
void rank_world_start(rank_world *world, uint32_t rank, uint32_t ranks, bool tells_peers);
/* Nothing of it is left, and no memory that nobody knows of. */
void rank_world_end(const rank_world *world);

typedef mk_status rank_fn(uint32_t rank, void *user);

typedef struct rank_process {
  pid_t pid;
  int err; /* what its message was, if it failed */
  char message[600];
} rank_process;

/* HOST:PORT that nobody listens at. */
void rank_address(char address[32]);
void rank_start(rank_process *process, rank_fn *fn, uint32_t rank, void *user);
/* The status that it ended with, or 1000 + signal; its message is then there. */
int rank_finish(rank_process *process);
/* Fails the child. */
#define RANK_MUST(condition) rank_must((condition), #condition, __LINE__)
void rank_must(bool good, const char *what, int line);

#endif
