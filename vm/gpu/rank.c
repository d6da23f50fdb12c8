/* See machine.h: how tokens stand among all, by a kernel of its own (rank.cu) that is queued right after a launch. */
#include <math.h>
#include <string.h>

#include "instructions/sampling.h"
#include "vm/gpu/image.h"
#include "vm/gpu/machine_internal.h"
#include "vm/gpu/rank.h"

_Static_assert((int)MK_GPU_RANK_MOST == (int)MK_MOST_RANKED, "a kernel ranks as many as may be asked for");

/* The kernel's memory: counts of blocks, and rankings of parts of the vocabulary, of as many rows as a launch of it
 * has. Rankings over all of it are written into the host's memory. */
enum {
  COUNTS_BYTES = MK_MAX_ROWS * sizeof(uint32_t),
  PART_BYTES = MK_MAX_ROWS * sizeof(mk_gpu_ranked),
  OUT_BYTES = MK_MOST_SHARED_ROWS * sizeof(mk_gpu_ranked), /* of a flight */
  PARTS_AT = COUNTS_BYTES,
};

static uint32_t parts_of(const mk_gpu *gpu) {
  return (gpu->program->ranges.token.high + MK_GPU_RANK_PART) / MK_GPU_RANK_PART;
}

/* Makes that memory, once, when somebody first asks. */
static mk_status prepare(mk_gpu *gpu) {
  const mk_driver *cu = gpu->driver;
  if (gpu->rank_module == NULL) {
    MK_TRY(mk_gpu_load(gpu, MK_GPU_IMAGE_RANK, "mk_rank_logits", 0, &gpu->rank_module, &gpu->rank_kernel));
  }
  if (gpu->ranked_pinned == NULL) {
    MK_TRY(mk_gpu_check(gpu, cu->host_new(&gpu->ranked_pinned, (size_t)MK_GPU_FLIGHTS * OUT_BYTES, MK_CU_HOST_MAPPED),
                        "allocating pinned memory"));
  }
  if (gpu->ranked != 0) {
    return MK_OK;
  }
  const uint64_t bytes = PARTS_AT + (uint64_t)parts_of(gpu) * PART_BYTES;
  MK_TRY(mk_gpu_check(gpu, cu->memory_new(&gpu->ranked, bytes), "allocating memory for log-probabilities"));
  return mk_gpu_check(gpu, cu->fill_async(gpu->ranked, 0, COUNTS_BYTES, gpu->stream),
                      "clearing memory for log-probabilities");
}

/* Writes a ranking in the form that mk_rank_logits gives it. */
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

/* Where the host finds the rankings of a flight, in bytes. */
static size_t out_at(const mk_gpu *gpu, const mk_gpu_flight *flight) {
  return (size_t)(flight - gpu->flights) * OUT_BYTES;
}

mk_status mk_gpu_start_ranks(mk_gpu *gpu, const mk_gpu_flight *flight) {
  const mk_driver *cu = gpu->driver;
  const mk_gpu_ranks *ranks = flight->ranks;
  const uint32_t step = flight->params.epochs - 1;
  MK_TRY(prepare(gpu));
  mk_gpu_rank rank = {.logits = mk_gpu_address(gpu, ranks->buffer),
                      .arrived = gpu->ranked,
                      .parts = gpu->ranked + PARTS_AT,
                      .chosen = gpu->pinned_address + MK_GPU_RING_AT + (uint64_t)step * gpu->rows * sizeof(uint64_t),
                      .vocab = gpu->program->ranges.token.high + 1,
                      .part_count = parts_of(gpu)};
  void *arguments[] = {&rank};
  MK_TRY(mk_gpu_check(gpu, cu->host_address(&rank.out, gpu->ranked_pinned, 0), "mapping pinned memory"));
  rank.out += out_at(gpu, flight);
  for (uint32_t first = 0, count; first < ranks->count; first += count) { /* one after the other: in the same memory */
    count = ranks->count - first < MK_MAX_ROWS ? ranks->count - first : (uint32_t)MK_MAX_ROWS;
    memcpy(rank.rows, ranks->rows + first, count * sizeof *ranks->rows);
    MK_TRY(mk_gpu_check(gpu,
                        cu->launch(gpu->rank_kernel, rank.part_count, count, 1, MK_GPU_RANK_THREADS, 1, 1, 0,
                                   gpu->stream, arguments, NULL),
                        "starting the kernel for log-probabilities"));
    rank.out += count * sizeof(mk_gpu_ranked);
  }
  return MK_OK;
}

void mk_gpu_take_ranks(const mk_gpu *gpu, const mk_gpu_flight *flight) {
  const mk_gpu_ranks *ranks = flight->ranks;
  for (uint32_t i = 0; ranks != NULL && i < ranks->count; i++) {
    const void *found = (const uint8_t *)gpu->ranked_pinned + out_at(gpu, flight);
    tell((const mk_gpu_ranked *)found + i, ranks->most, &ranks->out[i]);
  }
}
