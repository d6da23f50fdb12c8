// How a token ranks among all tokens by its row's logits, and which ones are the most probable: vm/gpu/rank.h. Block
// (p, r) has part p of row r's tokens. The block of a row that finishes last merges all parts, in the order of the
// parts, so that sums do not depend on which block that is.
//
// This is no part of the program's instructions: it runs right after a launch, for those who ask, and the next launch
// waits for it. Most of its time is that of its code, which comes from memory: the step before it has had all caches.
// So there is little code: loops are not unrolled, and what ranks the tokens of a part ranks those of all parts, too.
#include "instructions/sampling.h"
#include "instructions/tile/lanes.cuh"
#include "instructions/tile/view.cuh"
#include "vm/gpu/rank.h"
#include "vm/program/plan.h"

namespace tile = mk::tile;

namespace {

enum {
  THREADS = MK_GPU_RANK_THREADS,
  WARPS = THREADS / 32,
  MOST_KEYS = MK_GPU_RANK_PARTS * MK_GPU_RANK_MOST,  // of the parts of a row; a part has fewer
  MOST_HELD = MOST_KEYS / THREADS,                   // by a thread
  MOST_HOLDERS = 32,  // threads that may have keys in play: more than are asked for, so that a bound is soon found
};
static_assert(static_cast<int>(MK_GPU_RANK_PART) <= static_cast<int>(MOST_KEYS), "a part's keys have room");
static_assert(static_cast<uint64_t>(MK_GPU_RANK_PARTS) * MK_GPU_RANK_PART >= 1u << MK_SAMPLING_INDEX_BITS,
              "what the parts of any vocabulary found has room");
static_assert(static_cast<int>(MK_GPU_RANK_MOST) <= static_cast<int>(MOST_HOLDERS), "as many as may be asked for");

struct range {  // of keys
  uint64_t largest, smallest;
};

struct totals {
  double sum;       // of exp(logit - highest)
  uint32_t before;  // how many tokens rank before the one that is asked about
};

// What the threads of a block exchange.
struct exchange {
  uint64_t keys[MOST_KEYS];                    // those to be ranked; key i is thread i % THREADS's
  uint64_t in_play[MOST_HOLDERS * MOST_HELD];  // keys that may be among the largest
  range ranges[WARPS];
  totals totals_of[WARPS];
  uint32_t playing;
  bool last;
};
__shared__ exchange shared;

// The largest key of all threads, and the smallest that is none of those that are 0 (if there is one).
__device__ range range_of_block(uint64_t key) {
  range r = {key, key - 1};  // of no key the largest number
#pragma unroll 1
  for (uint32_t away = 16; away != 0; away /= 2) {
    r.largest = max(r.largest, tile::exchange(r.largest, away));
    r.smallest = min(r.smallest, tile::exchange(r.smallest, away));
  }
  if (tile::lane_of_thread(tile::thread()) == 0) {
    shared.ranges[tile::warp_of_thread(tile::thread())] = r;
  }
  __syncthreads();
#pragma unroll 1
  for (uint32_t w = 0; w < WARPS; w++) {
    r.largest = max(r.largest, shared.ranges[w].largest);
    r.smallest = min(r.smallest, shared.ranges[w].smallest);
  }
  r.smallest++;
  return r;
}

// A key that as many keys reach as are looked for, or more, all of them held by few threads. `own`: the largest one
// that the thread has, 0: it has none; `r`: of the largest ones of all threads. No two keys are equal, so between the
// smallest and the largest of these there is a key that as many threads reach as one likes.
__device__ uint64_t bound_of(uint64_t own, const range &r) {
  uint64_t low = r.smallest, high = r.largest + 1, middle = 1;  // first: how many threads have keys
  uint32_t holders = THREADS;
#pragma unroll 1
  for (; holders > MOST_HOLDERS; middle = low + (high - low) / 2) {
    const uint32_t reach = __syncthreads_count(own >= middle);
    if (reach < MK_GPU_RANK_MOST && middle == 1) {
      return 1;  // their other keys are wanted, too
    }
    if (reach >= MK_GPU_RANK_MOST) {
      low = max(low, middle);
      holders = reach;
    } else {
      high = middle;
    }
  }
  return low;
}

// Collects those of `count` keys that reach the bound.
__device__ void bring_into_play(uint64_t own, uint64_t bound, uint32_t count) {
  if (own >= bound) {
#pragma unroll 1
    for (uint32_t i = tile::thread(); i < count; i += THREADS) {
      const uint64_t key = shared.keys[i];
      if (key >= bound) {
        shared.in_play[atomicAdd(&shared.playing, 1)] = key;
      }
    }
  }
  __syncthreads();
}

// How many of the keys in play are larger; all threads look at the same one at a time.
__device__ uint32_t larger_ones(uint64_t key) {
  const uint32_t playing = shared.playing;
  uint32_t larger = 0;
#pragma unroll 2
  for (uint32_t i = 0; i < playing; i++) {
    larger += shared.in_play[i] > key ? 1 : 0;
  }
  return larger;
}

// Writes the largest keys in play, each to its place: the number of those that are larger. No key: 0.
__device__ void keep_largest(uint64_t *to) {
  const uint32_t playing = shared.playing;
#pragma unroll 1
  for (uint32_t i = tile::thread(); i < max(playing, MK_GPU_RANK_MOST + 0u); i += THREADS) {
    const uint64_t key = i < playing ? shared.in_play[i] : 0;
    const uint32_t place = i < playing ? larger_ones(key) : i;
    if (place < MK_GPU_RANK_MOST) {
      to[place] = key;
    }
  }
}

// exp(value - highest), also where both are infinite.
__device__ double share_of(float value, float highest) {
  return value == highest ? 1.0 : exp(static_cast<double>(value) - static_cast<double>(highest));
}

// The key of a logit. Minus zero is as probable as zero.
__device__ uint64_t key_of(float logit, uint32_t token) { return mk_rank_key(mk_plus(logit, 0.0f), token); }

// What is added up over all keys of a part, or over all parts, always in the same order.
__device__ totals add_up(totals t) {
#pragma unroll 1
  for (uint32_t away = 16; away != 0; away /= 2) {
    t.sum += tile::exchange(t.sum, away);
  }
  t.before = tile::sum_lanes(t.before);
  if (tile::lane_of_thread(tile::thread()) == 0) {
    shared.totals_of[tile::warp_of_thread(tile::thread())] = t;
  }
  __syncthreads();
  t = {};
#pragma unroll 1
  for (uint32_t w = 0; w < WARPS; w++) {
    t.sum += shared.totals_of[w].sum;
    t.before += shared.totals_of[w].before;
  }
  return t;
}

// Puts the keys of a part's tokens into shared memory; the thread's largest one.
__device__ uint64_t take_logits(const mk_gpu_rank &p, const float *logits) {
  const uint32_t first = blockIdx.x * MK_GPU_RANK_PART + tile::thread();
  const float *from = logits + first;
  uint64_t *to = shared.keys + tile::thread(), own = 0;
  if ((blockIdx.x + 1) * MK_GPU_RANK_PART <= p.vocab) {  // all loads under way at once
    float held[MK_GPU_RANK_HELD];
#pragma unroll
    for (uint32_t i = 0; i < MK_GPU_RANK_HELD; i++) {
      held[i] = from[i * THREADS];
    }
#pragma unroll
    for (uint32_t i = 0; i < MK_GPU_RANK_HELD; i++) {
      *tile::view<float>(to + i * THREADS) = held[i];
    }
  } else {
#pragma unroll 1
    for (uint32_t i = 0; i < MK_GPU_RANK_PART && first + i < p.vocab; i += THREADS) {
      *tile::view<float>(to + i) = from[i];
    }
  }
#pragma unroll 1
  for (uint32_t i = 0; i < MK_GPU_RANK_PART; i += THREADS) {
    const uint64_t key = first + i < p.vocab ? key_of(*tile::view<float>(to + i), first + i) : 0;
    to[i] = key;
    own = max(own, key);
  }
  return own;
}

// The same of what all parts have found.
__device__ uint64_t take_parts(const mk_gpu_ranked *parts, uint32_t count) {
  uint64_t own = 0;
#pragma unroll 1
  for (uint32_t i = tile::thread(); i < count; i += THREADS) {
    const uint64_t key = __ldcg(&parts[i / MK_GPU_RANK_MOST].keys[i % MK_GPU_RANK_MOST]);
    shared.keys[i] = key;
    own = max(own, key);
  }
  return own;
}

// Of the tokens of a row those that rank before the one with this key, which no part has known: the thread's share.
// What no part has kept ranks after all that its part has kept. So where few keys in play are larger, no others are.
__device__ uint32_t count_before(const mk_gpu_rank &p, const float *logits, uint64_t asked, uint64_t bound) {
  uint32_t before = asked >= bound ? larger_ones(asked) : MK_GPU_RANK_MOST;
  if (before < MK_GPU_RANK_MOST) {
    return tile::thread() == 0 ? before : 0;
  }
  before = 0;
#pragma unroll 4
  for (uint32_t at = tile::thread(); at < p.vocab; at += THREADS) {
    before += key_of(logits[at], at) > asked ? 1 : 0;
  }
  return before;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(MK_GPU_RANK_THREADS, 4)
    mk_rank_logits(const __grid_constant__ mk_gpu_rank p) {
  const mk_gpu_rank_row &row = p.rows[blockIdx.y];
  const bool given = row.token != MK_TOKEN_CHOSEN;
  const float *logits = tile::global<const float>(p.logits) + static_cast<uint64_t>(row.line) * p.vocab;
  mk_gpu_ranked *parts = tile::global<mk_gpu_ranked>(p.parts) + blockIdx.y * p.part_count, *to = parts + blockIdx.x;
  uint32_t *arrived = tile::global<uint32_t>(p.arrived) + blockIdx.y;
  uint32_t count = MK_GPU_RANK_PART, chosen = 0, token = 0;
  if (!given && blockIdx.x == 0 && tile::thread() == 0) {
    // Nobody waits for it before the part has been ranked. It is the host's memory, which gives one block after the
    // other what it asks for, so one block of a row asks.
    chosen = static_cast<uint32_t>(tile::global<const volatile uint64_t>(p.chosen)[row.line]);
  }
#pragma unroll 1
  for (bool merges = false;; merges = true) {
    const uint64_t own = merges ? take_parts(parts, count) : take_logits(p, logits);
    if (merges || given) {
      token = given ? row.token : __ldcg(&parts[0].token);
      token = min(token, p.vocab - 1);  // where logits are not numbers it is no token, and nobody asks about it
    }
    if (tile::thread() == 0) {
      shared.playing = 0;
    }
    const range r = range_of_block(own);
    const float highest = mk_rank_value(r.largest);
    const uint64_t bound = bound_of(own, r);
    bring_into_play(own, bound, count);
    const float logit = logits[token];
    const uint64_t asked = merges || given ? key_of(logit, token) : UINT64_MAX;
    const uint32_t items = merges ? p.part_count : count;
    totals t = {};
#pragma unroll 1
    for (uint32_t i = tile::thread(); i < items; i += THREADS) {
      const uint64_t key = merges ? __ldcg(&parts[i].keys[0]) : shared.keys[i];
      const double weight = merges ? __ldcg(&parts[i].sum) : 1.0;
      t.sum += key != 0 ? weight * share_of(mk_rank_value(key), highest) : 0.0;
      t.before += merges ? __ldcg(&parts[i].before) : key > asked ? 1 : 0;
    }
    if (merges && !given) {
      t.before = count_before(p, logits, asked, bound);
    }
    keep_largest(to->keys);
    t = add_up(t);
    if (tile::thread() == 0) {
      to->sum = t.sum;
      to->highest = highest;
      to->logit = logit;
      to->before = t.before;
      to->token = chosen;
    }
    if (merges) {
      break;
    }
    __syncthreads();
    if (tile::thread() == 0) {
      __threadfence();
      shared.last = atomicAdd(arrived, 1) + 1 == p.part_count;
      __threadfence();
    }
    __syncthreads();
    if (!shared.last) {
      return;
    }
    to = tile::global<mk_gpu_ranked>(p.out) + blockIdx.y;
    count = p.part_count * MK_GPU_RANK_MOST;
  }
  if (tile::thread() == 0) {
    *arrived = 0;
  }
}
