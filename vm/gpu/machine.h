/* The GPU machine: runs a program as one persistent kernel on one GPU, a whole generation per launch.
 *
 * Ownership: a mk_gpu owns all device and pinned memory it uses; the program stays the caller's and outlives it. One thread at a
 * time. Only verified programs may be run: operands outside their buffers are not noticed here.
 * Failure: MK_ERR_RUNTIME when this machine has no fitting GPU, driver, memory or device image; MK_ERR_FILE when the program is
 * for another machine; MK_ERR_USAGE for steps outside the program's ranges; MK_ERR_DEVICE when the kernel ran into its deadline
 * (the message names SM, role, instruction, edge, have and want), logits are NaN, or the driver reports an error. After a
 * deadline everything but weights and inputs has been cleared, and the next run works. */
#ifndef MK_GPU_MACHINE_H
#define MK_GPU_MACHINE_H

#include "vm/program.h"

typedef struct mk_gpu mk_gpu;

typedef struct mk_gpu_options {
  uint32_t device;          /* index of the GPU */
  uint32_t deadline_ms;     /* of every wait in the kernel; 0: 1500 */
  uint32_t skip_signal_uid; /* test fault point: this instruction publishes and signals nothing; 0: none */
} mk_gpu_options;

/* True when there is a device image, a driver and a GPU of that index that it runs on. No memory is touched. */
bool mk_gpu_present(uint32_t device);

mk_status mk_gpu_new(const mk_program *program, const mk_gpu_options *options, mk_gpu **out);
void mk_gpu_free(mk_gpu *gpu); /* NULL is fine */

/* Copies between the host and bytes [offset, offset + bytes) of a buffer; MK_ERR_USAGE when they are not all inside. Everything is
 * zero at first. Not during a run. */
mk_status mk_gpu_write(mk_gpu *gpu, size_t buffer, uint64_t offset, const void *data, uint64_t bytes);
mk_status mk_gpu_read(mk_gpu *gpu, size_t buffer, uint64_t offset, void *data, uint64_t bytes);
/* Zeroes counters, activations, KV and outputs, and counts epochs from 0 again; weights and inputs stay. */
mk_status mk_gpu_clear(mk_gpu *gpu);

/* Tests: the fault point of later runs; 0: none. */
void mk_gpu_skip_signal(mk_gpu *gpu, uint32_t uid);

/* Called during the launch for each token in turn, as soon as the host sees it: `token` follows `position`. false: the kernel is told
 * to stop, and tokens that it still computes are not reported. */
typedef bool (*mk_gpu_token_fn)(void *user, uint32_t position, uint32_t token);

/* One launch of `epochs` steps. The first computes `token` at `position`; tokens of the `prompt` buffer follow while
 * position + 1 < prompt_length. Positions up to position + epochs must lie in the program's range. The logits buffer holds those
 * of the last step afterwards. fn may be NULL. */
mk_status mk_gpu_run(mk_gpu *gpu, uint32_t token, uint32_t position, uint32_t prompt_length, uint32_t epochs,
                     mk_gpu_token_fn fn, void *user);

/* Of the last run: milliseconds between two events around the kernel, and the steps that it computed. */
double mk_gpu_time_ms(const mk_gpu *gpu);
uint32_t mk_gpu_steps(const mk_gpu *gpu);
/* Launches of the kernel so far. */
uint64_t mk_gpu_launches(const mk_gpu *gpu);
/* The GPU's name, as the driver tells it; as long-lived as the machine. */
const char *mk_gpu_name(const mk_gpu *gpu);

#endif
