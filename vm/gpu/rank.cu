// How a token stands among all of its row's logits, and the most probable ones: vm/gpu/rank.h. Block (p, r) has part p
// of row r's tokens; the last block of a row to come merges all parts, in their order, so that sums do not depend on
// who that is.
//
// Instructions of the program have nothing to do with this: it runs right after a launch, for those who ask.
#include "instructions/sampling.h"
#include "vm/gpu/rank.h"
#include "vm/program/plan.h"

namespace {

enum { WARPS = MK_GPU_RANK_THREADS / 32 };

struct exchange {  // of a block
  uint64_t keys[WARPS];
  double sums[WARPS];
  uint32_t counts[WARPS];
  bool last;
};
__shared__ exchange shared;

__device__ uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

// Of all threads, to all of them.
__device__ uint64_t largest_of_block(uint64_t key) {
  for (uint32_t away = 16; away != 0; away /= 2) {
    key = larger(key, __shfl_xor_sync(0xffffffffu, key, away));
  }
  __syncthreads();  // what was exchanged before has been read
  if (threadIdx.x % 32 == 0) {
    shared.keys[threadIdx.x / 32] = key;
  }
  __syncthreads();
  for (uint32_t w = 0; w < WARPS; w++) {
    key = larger(key, shared.keys[w]);
  }
  return key;
}

// To the first thread, always added in the same order.
__device__ double sum_of_block(double sum) {
  for (uint32_t away = 16; away != 0; away /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, away);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    shared.sums[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  sum = 0;
  for (uint32_t w = 0; w < WARPS; w++) {
    sum += shared.sums[w];
  }
  return sum;
}

__device__ uint32_t count_of_block(uint32_t count) {
  count = __reduce_add_sync(0xffffffffu, count);
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    shared.counts[threadIdx.x / 32] = count;
  }
  __syncthreads();
  count = 0;
  for (uint32_t w = 0; w < WARPS; w++) {
    count += shared.counts[w];
  }
  return count;
}

__device__ uint64_t largest(const uint64_t (&keys)[MK_GPU_RANK_HELD]) {
  uint64_t key = 0;
#pragma unroll
  for (uint32_t i = 0; i < MK_GPU_RANK_HELD; i++) {
    key = larger(key, keys[i]);
  }
  return key;
}

// The `most` largest keys of all threads, no two of which are equal but for zeros.
__device__ void keep_largest(uint64_t (&keys)[MK_GPU_RANK_HELD], uint32_t most, uint64_t *to) {
  uint64_t own = largest(keys);
  for (uint32_t place = 0; place < most; place++) {
    uint64_t best = largest_of_block(own);
    if (threadIdx.x == 0) {
      to[place] = best;
    }
    if (own == best && best != 0) {
#pragma unroll
      for (uint32_t i = 0; i < MK_GPU_RANK_HELD; i++) {
        keys[i] = keys[i] == best ? 0 : keys[i];
      }
      own = largest(keys);
    }
  }
}

// exp(value - highest), also of two that are infinite.
__device__ double share_of(float value, float highest) {
  return value == highest ? 1.0 : exp(static_cast<double>(value) - static_cast<double>(highest));
}

__device__ float value_of(uint64_t key) { return mk_unordered(static_cast<uint32_t>(key >> MK_SAMPLING_INDEX_BITS)); }

// Minus zero is as probable as zero.
__device__ uint64_t key_of(const float *logits, uint32_t token) {
  return mk_rank_key(mk_plus(logits[token], 0.0f), token);
}

__device__ void rank_part(const mk_gpu_rank &p, const float *logits, uint32_t token, mk_gpu_ranked *to) {
  uint64_t keys[MK_GPU_RANK_HELD], own = key_of(logits, token);
#pragma unroll
  for (uint32_t i = 0; i < MK_GPU_RANK_HELD; i++) {
    uint32_t at = blockIdx.x * MK_GPU_RANK_PART + i * MK_GPU_RANK_THREADS + threadIdx.x;
    keys[i] = at < p.vocab ? key_of(logits, at) : 0;
  }
  float highest = value_of(largest_of_block(largest(keys)));
  double sum = 0;
  uint32_t before = 0;
#pragma unroll
  for (uint32_t i = 0; i < MK_GPU_RANK_HELD; i++) {
    sum += keys[i] != 0 ? share_of(value_of(keys[i]), highest) : 0.0;
    before += keys[i] > own ? 1 : 0;
  }
  sum = sum_of_block(sum);
  before = count_of_block(before);
  if (threadIdx.x == 0) {
    to->sum = sum;
    to->highest = highest;
    to->before = before;
  }
  keep_largest(keys, p.most, to->keys);
}

__device__ void merge_parts(const mk_gpu_rank &p, const float *logits, uint32_t token, const mk_gpu_ranked *parts,
                            mk_gpu_ranked *to) {
  uint64_t keys[MK_GPU_RANK_HELD];
#pragma unroll
  for (uint32_t i = 0; i < MK_GPU_RANK_HELD; i++) {
    uint32_t at = i * MK_GPU_RANK_THREADS + threadIdx.x;
    keys[i] = at < p.part_count * p.most ? __ldcg(&parts[at / p.most].keys[at % p.most]) : 0;
  }
  uint64_t largest_score = 0;
  for (uint32_t i = threadIdx.x; i < p.part_count; i += MK_GPU_RANK_THREADS) {
    largest_score = larger(largest_score, mk_rank_key(__ldcg(&parts[i].highest), 0));
  }
  const float highest = value_of(largest_of_block(largest_score));
  double sum = 0;
  uint32_t before = 0;
  for (uint32_t i = threadIdx.x; i < p.part_count; i += MK_GPU_RANK_THREADS) {
    sum += __ldcg(&parts[i].sum) * share_of(__ldcg(&parts[i].highest), highest);
    before += __ldcg(&parts[i].before);
  }
  sum = sum_of_block(sum);
  before = count_of_block(before);
  if (threadIdx.x == 0) {
    to->sum = sum;
    to->highest = highest;
    to->logit = logits[token];
    to->before = before;
    to->zero = 0;
  }
  keep_largest(keys, p.most, to->keys);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(MK_GPU_RANK_THREADS)
    mk_rank_logits(const __grid_constant__ mk_gpu_rank p) {
  const mk_gpu_rank_row &row = p.rows[blockIdx.y];
  const uint64_t *chosen = reinterpret_cast<const uint64_t *>(p.chosen);
  // What is no token, since the logits are not numbers, nobody asks about afterwards.
  const uint32_t token =
      min(row.token == MK_TOKEN_CHOSEN ? static_cast<uint32_t>(chosen[row.line]) : row.token, p.vocab - 1);
  const float *logits = reinterpret_cast<const float *>(p.logits) + static_cast<uint64_t>(row.line) * p.vocab;
  mk_gpu_ranked *parts = reinterpret_cast<mk_gpu_ranked *>(p.parts) + blockIdx.y * p.part_count;
  uint32_t *arrived = reinterpret_cast<uint32_t *>(p.arrived) + blockIdx.y;
  rank_part(p, logits, token, parts + blockIdx.x);
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    shared.last = atomicAdd(arrived, 1) + 1 == p.part_count;
    __threadfence();
  }
  __syncthreads();
  if (shared.last) {
    merge_parts(p, logits, token, parts, reinterpret_cast<mk_gpu_ranked *>(p.out) + blockIdx.y);
    if (threadIdx.x == 0) {
      *arrived = 0;
    }
  }
}
