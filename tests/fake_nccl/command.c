/* The mkvm command over a driver and an NCCL without GPUs: its own main, with the fakes in place before that. The
 * environment says what the process is: MK_FAKE_RANK, MK_FAKE_RANKS; MK_FAKE_SLOW: milliseconds that a step takes. */
#include <stdlib.h>
#include <time.h>

#include "tests/support/rank_process.h"

FAKE_GPU_IMAGE

static rank_world world;
static long slow_ms;
static bool (*usual)(void *user, const mk_gpu_params *params, uint32_t step);

static uint32_t number(const char *name) {
  const char *text = getenv(name);
  return text == NULL ? 0 : (uint32_t)strtoul(text, NULL, 10);
}

static bool slowly(void *user, const mk_gpu_params *params, uint32_t step) {
  (void)nanosleep(&(struct timespec){.tv_nsec = slow_ms * 1000000}, NULL);
  return usual(user, params, step);
}

__attribute__((constructor)) static void begin(void) {
  const uint32_t rank = number("MK_FAKE_RANK"), ranks = number("MK_FAKE_RANKS");
  slow_ms = (long)number("MK_FAKE_SLOW");
  if (ranks != 0) {
    rank_world_start(&world, rank, ranks, true);
    usual = world.cuda->kernel;
    world.cuda->memory = (size_t)1 << 31; /* as little as bench takes to measure bandwidth in, which it fills */
    world.cuda->blocks_per_sm = 1 + 132 / FAKE_CUDA_SMS; /* libmkvm compiles for an H200 */
    world.cuda->kernel = slow_ms != 0 ? slowly : usual;
    world.kernel.one_step = slow_ms != 0;
  }
}

__attribute__((destructor)) static void end(void) {
  if (number("MK_FAKE_RANKS") != 0) {
    rank_world_end(&world);
  }
}
