/* See machine.h: how tokens stand among all, by a kernel of its own (rank.cu) between two launches. */
#include <math.h>
#include <string.h>

#include "instructions/sampling.h"
#include "vm/gpu/image.h"
#include "vm/gpu/machine_internal.h"
#include "vm/gpu/rank.h"

_Static_assert((int)MK_GPU_RANK_MOST == (int)MK_MOST_RANKED, "a kernel ranks as many as may be asked for");

/* What the kernel writes lies in one piece of memory: counts of blocks, then rankings, then those of parts. */
enum { COUNTS_BYTES = MK_MAX_ROWS * sizeof(uint32_t), OUT_BYTES = MK_MAX_ROWS * sizeof(mk_gpu_ranked) };

static uint32_t parts_of(const mk_gpu *gpu) {
  return (gpu->program->ranges.token.high + MK_GPU_RANK_PART) / MK_GPU_RANK_PART;
}

/* Once, for the first who asks. */
static mk_status prepare(mk_gpu *gpu) {
  const mk_driver *cu = gpu->driver;
  if (gpu->rank_module == NULL) {
    MK_TRY(mk_gpu_load(gpu, MK_GPU_IMAGE_RANK, "mk_rank_logits", 0, &gpu->rank_module, &gpu->rank));
  }
  if (gpu->ranked != 0) {
    return MK_OK;
  }
  const uint64_t bytes = COUNTS_BYTES + OUT_BYTES + (uint64_t)parts_of(gpu) * OUT_BYTES;
  MK_TRY(mk_gpu_check(gpu, cu->memory_new(&gpu->ranked, bytes), "allocating memory for log-probabilities"));
  return mk_gpu_check(gpu, cu->fill_async(gpu->ranked, 0, COUNTS_BYTES, gpu->stream),
                      "clearing memory for log-probabilities");
}

/* As mk_rank_logits has it. */
static void tell(const mk_gpu_ranked *found, uint32_t most, mk_ranking *to) {
  const double highest = found->highest, log_sum = log(found->sum);
  *to = (mk_ranking){.most = most,
                     .rank = found->before + 1,
                     .logprob = found->logit == found->highest ? -log_sum : found->logit - (highest + log_sum)};
  while (to->count < most && found->keys[to->count] != 0) {
    const uint64_t key = found->keys[to->count];
    const float logit = mk_unordered((uint32_t)(key >> MK_SAMPLING_INDEX_BITS));
    to->top[to->count++] = (mk_logprob){.token = mk_rank_token(key),
                                        .logprob = logit == found->highest ? -log_sum : logit - (highest + log_sum)};
  }
}

mk_status mk_gpu_rank_logits(mk_gpu *gpu, size_t buffer, const mk_gpu_rank_row *rows, uint32_t count, uint32_t most,
                             mk_ranking *out) {
  mk_gpu_ranked found[MK_MAX_ROWS];
  if (count == 0) {
    return MK_OK;
  }
  MK_TRY(mk_gpu_enter(gpu));
  MK_TRY(prepare(gpu));
  mk_gpu_rank rank = {.logits = mk_gpu_address(gpu, buffer),
                      .arrived = gpu->ranked,
                      .out = gpu->ranked + COUNTS_BYTES,
                      .parts = gpu->ranked + COUNTS_BYTES + OUT_BYTES,
                      .vocab = gpu->program->ranges.token.high + 1,
                      .part_count = parts_of(gpu),
                      .most = most};
  memcpy(rank.rows, rows, count * sizeof *rows);
  void *arguments[] = {&rank};
  MK_TRY(mk_gpu_check(gpu,
                      gpu->driver->launch(gpu->rank, rank.part_count, count, 1, MK_GPU_RANK_THREADS, 1, 1, 0,
                                          gpu->stream, arguments, NULL),
                      "starting the kernel for log-probabilities"));
  MK_TRY(mk_gpu_copy_out(gpu, found, rank.out, count * sizeof *found, "log-probabilities"));
  for (uint32_t i = 0; i < count; i++) {
    tell(&found[i], most, &out[i]);
  }
  return MK_OK;
}
