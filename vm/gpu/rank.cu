// How a token ranks among all tokens by its row's logits, and which ones are the most probable: vm/gpu/rank.h. Block
// (p, r) has part p of row r's tokens. The block of a row that finishes last merges all parts, in the order of the
// parts, so that sums do not depend on which block that is.
//
// This is no part of the program's instructions: it runs right after a launch, for those who ask.
#include "instructions/sampling.h"
#include "instructions/tile/lanes.cuh"
#include "instructions/tile/view.cuh"
#include "vm/gpu/rank.h"
#include "vm/program/plan.h"

namespace tile = mk::tile;

namespace {

enum {
  WARPS = MK_GPU_RANK_THREADS / 32,
  MOST_MERGED = MK_GPU_RANK_PART / 2,
  MOST_IN_PLAY = MK_GPU_RANK_MOST * MK_GPU_RANK_HELD,
};

// What the threads of a block exchange. The code is kept short, as loops over what lies here and not in registers,
// since it comes from memory each time.
struct exchange {
  union {  // what the threads hold, by turns
    float logits[MK_GPU_RANK_PART];
    uint64_t merged[MOST_MERGED];
  };
  uint64_t maxima[MK_GPU_RANK_THREADS];  // keys, of what each thread holds
  uint64_t in_play[MOST_IN_PLAY];        // keys that may be among the largest
  uint64_t least;                        // what those reach
  uint64_t keys[WARPS];
  double sums[WARPS];
  uint32_t counts[WARPS];
  uint32_t playing, token;
  bool last;
};
__shared__ exchange shared;

__device__ uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

// The largest key of all threads, given to all of them.
__device__ uint64_t largest_of_block(uint64_t key) {
  for (uint32_t away = 16; away != 0; away /= 2) {
    key = larger(key, tile::exchange(key, away));
  }
  __syncthreads();  // what was exchanged before has been read
  if (tile::lane_of_thread(tile::thread()) == 0) {
    shared.keys[tile::warp_of_thread(tile::thread())] = key;
  }
  __syncthreads();
  for (uint32_t w = 0; w < WARPS; w++) {
    key = larger(key, shared.keys[w]);
  }
  return key;
}

// The sum over all threads, given to the first thread; always added in the same order.
__device__ double sum_of_block(double sum) {
  for (uint32_t away = 16; away != 0; away /= 2) {
    sum += tile::exchange(sum, away);
  }
  __syncthreads();
  if (tile::lane_of_thread(tile::thread()) == 0) {
    shared.sums[tile::warp_of_thread(tile::thread())] = sum;
  }
  __syncthreads();
  sum = 0;
  for (uint32_t w = 0; w < WARPS; w++) {
    sum += shared.sums[w];
  }
  return sum;
}

__device__ uint32_t count_of_block(uint32_t count) {
  count = tile::sum_lanes(count);
  __syncthreads();
  if (tile::lane_of_thread(tile::thread()) == 0) {
    shared.counts[tile::warp_of_thread(tile::thread())] = count;
  }
  __syncthreads();
  count = 0;
  for (uint32_t w = 0; w < WARPS; w++) {
    count += shared.counts[w];
  }
  return count;
}

// How many of `count` keys are larger; all threads look at the same one at a time.
__device__ uint32_t larger_ones(const uint64_t *keys, uint32_t count, uint64_t key) {
  uint32_t larger = 0;
#pragma unroll 8
  for (uint32_t i = 0; i < count; i++) {
    larger += keys[i] > key ? 1 : 0;
  }
  return larger;
}

// Finds the `most` largest of the keys that the threads have, `held` in each: key_at(i) is a thread's key number i, and
// `own` the largest of them. No two keys are equal but for zeros. The threads' own largest keys are ranked first. The
// key of rank `most` among them is a lower bound: so many threads have a key that is as large. Keys that reach the
// bound are in play: as a rule few, and at most those of `most` threads. The place of a key is the number of keys in
// play that are larger.
template <typename at>
__device__ void keep_largest(uint64_t own, uint32_t held, at key_at, uint32_t most, uint64_t *to) {
  shared.maxima[tile::thread()] = own;
  if (tile::thread() == 0) {
    shared.least = 1;
    shared.playing = 0;
  }
  __syncthreads();
  if (own != 0 && larger_ones(shared.maxima, MK_GPU_RANK_THREADS, own) + 1 == most) {
    shared.least = own;
  }
  __syncthreads();
  if (most != 0 && own >= shared.least) {
#pragma unroll 4
    for (uint32_t i = 0; i < held; i++) {
      uint64_t key = key_at(i);
      if (key >= shared.least) {
        shared.in_play[atomicAdd(&shared.playing, 1)] = key;
      }
    }
  }
  __syncthreads();
  uint32_t playing = shared.playing;
  for (uint32_t i = tile::thread(); i < playing; i += MK_GPU_RANK_THREADS) {
    uint32_t place = larger_ones(shared.in_play, playing, shared.in_play[i]);
    if (place < most) {
      to[place] = shared.in_play[i];
    }
  }
  if (tile::thread() >= playing && tile::thread() < most) {
    to[tile::thread()] = 0;
  }
}
static_assert(MK_GPU_RANK_MOST <= MK_GPU_RANK_THREADS, "each place has a thread");
static_assert(static_cast<uint64_t>(MK_GPU_RANK_PARTS) * MK_GPU_RANK_PART >= 1u << MK_SAMPLING_INDEX_BITS,
              "what the parts of any vocabulary found has room");

// exp(value - highest), also where both are infinite.
__device__ double share_of(float value, float highest) {
  return value == highest ? 1.0 : exp(static_cast<double>(value) - static_cast<double>(highest));
}

__device__ float value_of(uint64_t key) { return mk_unordered(static_cast<uint32_t>(key >> MK_SAMPLING_INDEX_BITS)); }

// The key of a logit. Minus zero is as probable as zero.
__device__ uint64_t key_of(float logit, uint32_t token) { return mk_rank_key(mk_plus(logit, 0.0f), token); }

// Ranks a part. `chosen`: the token that is asked about, just loaded; 0 in all threads but the first.
__device__ void rank_part(const mk_gpu_rank &p, const float *logits, uint32_t chosen, mk_gpu_ranked *to) {
  const uint32_t first = blockIdx.x * MK_GPU_RANK_PART + tile::thread();
  auto key_at = [&](uint32_t i) {
    uint32_t at = first + i * MK_GPU_RANK_THREADS;
    return at < p.vocab ? key_of(shared.logits[i * MK_GPU_RANK_THREADS + tile::thread()], at) : 0;
  };
  uint64_t own = 0;
#pragma unroll
  for (uint32_t i = 0; i < MK_GPU_RANK_HELD; i++) {
    uint32_t at = first + i * MK_GPU_RANK_THREADS;
    float logit = at < p.vocab ? logits[at] : 0.0f;
    shared.logits[i * MK_GPU_RANK_THREADS + tile::thread()] = logit;
    own = larger(own, at < p.vocab ? key_of(logit, at) : 0);
  }
  if (tile::thread() == 0) {
    shared.token = min(chosen, p.vocab - 1);  // where logits are not numbers it is no token, and nobody asks about it
  }
  float highest = value_of(largest_of_block(own));
  const uint64_t asked = key_of(logits[shared.token], shared.token);
  double sum = 0;
  uint32_t before = 0;
#pragma unroll 2
  for (uint32_t i = 0; i < MK_GPU_RANK_HELD; i++) {
    uint64_t key = key_at(i);
    sum += key != 0 ? share_of(value_of(key), highest) : 0.0;
    before += key > asked ? 1 : 0;
  }
  sum = sum_of_block(sum);
  before = count_of_block(before);
  if (tile::thread() == 0) {
    to->sum = sum;
    to->highest = highest;
    to->before = before;
  }
  keep_largest(own, MK_GPU_RANK_HELD, key_at, p.most, to->keys);
}

__device__ void merge_parts(const mk_gpu_rank &p, const float *logits, const mk_gpu_ranked *parts, mk_gpu_ranked *to) {
  const uint32_t count = p.part_count * p.most;
  auto key_at = [&](uint32_t i) {
    uint32_t at = i * MK_GPU_RANK_THREADS + tile::thread();
    return at < count ? shared.merged[at] : 0;
  };
  uint64_t own = 0, largest_score = 0;
#pragma unroll 2
  for (uint32_t at = tile::thread(); at < count; at += MK_GPU_RANK_THREADS) {
    uint64_t key = __ldcg(&parts[at / p.most].keys[at % p.most]);
    shared.merged[at] = key;
    own = larger(own, key);
  }
#pragma unroll 1
  for (uint32_t i = tile::thread(); i < p.part_count; i += MK_GPU_RANK_THREADS) {
    largest_score = larger(largest_score, mk_rank_key(__ldcg(&parts[i].highest), 0));
  }
  const float highest = value_of(largest_of_block(largest_score));
  double sum = 0;
  uint32_t before = 0;
#pragma unroll 1
  for (uint32_t i = tile::thread(); i < p.part_count; i += MK_GPU_RANK_THREADS) {
    sum += __ldcg(&parts[i].sum) * share_of(__ldcg(&parts[i].highest), highest);
    before += __ldcg(&parts[i].before);
  }
  sum = sum_of_block(sum);
  before = count_of_block(before);
  if (tile::thread() == 0) {
    to->sum = sum;
    to->highest = highest;
    to->logit = logits[shared.token];
    to->before = before;
    to->zero = 0;
  }
  keep_largest(own, (count + MK_GPU_RANK_THREADS - 1) / MK_GPU_RANK_THREADS, key_at, p.most, to->keys);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(MK_GPU_RANK_THREADS)
    mk_rank_logits(const __grid_constant__ mk_gpu_rank p) {
  const mk_gpu_rank_row &row = p.rows[blockIdx.y];
  const volatile uint64_t *chosen = tile::global<const uint64_t>(p.chosen);
  uint32_t token = 0;
  if (tile::thread() == 0) {
    token = row.token == MK_TOKEN_CHOSEN ? static_cast<uint32_t>(chosen[row.line]) : row.token;
  }
  const float *logits = tile::global<const float>(p.logits) + static_cast<uint64_t>(row.line) * p.vocab;
  mk_gpu_ranked *parts = tile::global<mk_gpu_ranked>(p.parts) + blockIdx.y * p.part_count;
  uint32_t *arrived = tile::global<uint32_t>(p.arrived) + blockIdx.y;
  rank_part(p, logits, token, parts + blockIdx.x);
  __syncthreads();
  if (tile::thread() == 0) {
    __threadfence();
    shared.last = atomicAdd(arrived, 1) + 1 == p.part_count;
    __threadfence();
  }
  __syncthreads();
  if (shared.last) {
    merge_parts(p, logits, parts, tile::global<mk_gpu_ranked>(p.out) + blockIdx.y);
    if (tile::thread() == 0) {
      *arrived = 0;
    }
  }
}
