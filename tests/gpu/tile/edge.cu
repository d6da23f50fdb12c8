// instructions/tile/edge.cuh: stamped words, counters and flags between two blocks, words by twos, threes and fours;
// clocks.
#include "tests/gpu/tile/tile_test.cuh"

using namespace mk;

// in: {data, generation} [count]. work [count] takes the stamped words. out [count][6] u64: stamp(), then what every
// kind of load and the parts of the word give. The second half of the words is stored as towards the host. count is
// even.
extern "C" __global__ void __launch_bounds__(32) mk_tile_edge_words(const mk_tile_params params) {
  const uint2 *in = reinterpret_cast<const uint2 *>(params.in);
  uint64_t *work = reinterpret_cast<uint64_t *>(params.work), *out = reinterpret_cast<uint64_t *>(params.out);
  for (uint32_t i = 2 * threadIdx.x; i < params.count; i += 64) {
    for (uint32_t j = i; j < i + 2; j++) {
      if (j < params.count / 2) {
        tile::store_stamped(work + j, in[j].x, in[j].y);
      } else {
        tile::store_stamped_system(work + j, in[j].x, in[j].y);
      }
    }
    const tile::stamped_pair pair = tile::load_stamped_pair(work + i);
    tile::stamped_pair chosen = {1, 2};
    tile::load_stamped_pair_if(i % 4 == 0, work + i, chosen);  // else it stays as it is
    const bool right = i % 4 == 0 ? chosen.low == pair.low && chosen.high == pair.high : chosen.low + chosen.high == 3;
    for (uint32_t j = i; j < i + 2; j++) {
      const uint64_t word = tile::load_stamped(work + j);
      const uint32_t *halves = reinterpret_cast<const uint32_t *>(work + j);
      out[j * 6 + 0] = tile::stamp(in[j].x, in[j].y);
      out[j * 6 + 1] = word;
      out[j * 6 + 2] = !right ? ~pair.low : j == i ? pair.low : pair.high;
      out[j * 6 + 3] = static_cast<uint64_t>(tile::stamp_generation(word)) << 32 | tile::stamp_data(word);
      out[j * 6 + 4] = static_cast<uint64_t>(tile::load_relaxed(halves + 1)) << 32 | tile::load_acquire(halves);
      out[j * 6 + 5] = static_cast<uint64_t>(tile::load_acquire(halves + 1)) << 32 | tile::load_system(halves);
    }
  }
  test::finish(params, true);
}

// Block 0 hands in [count][MK_EDGE_WORDS] to block 1 through MK_EDGE_WORDS stamped words, generation `first` and on (it
// may wrap); block 1 answers each pair with a stamped word, so that none is overwritten before it was read. out as in.
// work: the words, then 32 answers.
extern "C" __global__ void __launch_bounds__(32) mk_tile_edge_stamps(const mk_tile_params params) {
  const uint32_t lane = threadIdx.x;
  const uint32_t *in = reinterpret_cast<const uint32_t *>(params.in);
  uint32_t *out = reinterpret_cast<uint32_t *>(params.out);
  uint64_t *words = reinterpret_cast<uint64_t *>(params.work), *answers = words + MK_EDGE_WORDS;
  bool good = true;
  for (uint32_t round = 0; round < params.count && good; round++) {
    const uint32_t generation = params.first + round, at = round * MK_EDGE_WORDS + 2 * lane;
    if (blockIdx.x == 0) {
      tile::store_stamped(words + 2 * lane, in[at], generation);
      tile::store_stamped(words + 2 * lane + 1, in[at + 1], generation);
      good = test::wait_until([&] {
        const uint64_t answer = tile::load_stamped(answers + lane);
        return tile::stamp_generation(answer) == generation && tile::stamp_data(answer) == (in[at] ^ in[at + 1]);
      });
    } else {
      tile::stamped_pair pair;
      good = test::wait_until([&] {
        pair = tile::load_stamped_pair(words + 2 * lane);
        return tile::stamp_generation(pair.low) == generation && tile::stamp_generation(pair.high) == generation;
      });
      if (good) {
        out[at] = tile::stamp_data(pair.low);
        out[at + 1] = tile::stamp_data(pair.high);
        tile::store_stamped(answers + lane, out[at] ^ out[at + 1], generation);
      }
    }
  }
  test::finish(params, good);
}

// Block 0 hands in [count][MK_EDGE_WORDS] to block 1 by ordinary stores to one place and a release counter; a second
// counter gives the place back. The host has set both to `first`; they may wrap. Block 1 reads the place before the
// hand-over too, so a cache that the acquire leaves stale shows. out as in. work: counters at words 0 and 32, the place
// at word 64.
extern "C" __global__ void __launch_bounds__(32) mk_tile_edge_release(const mk_tile_params params) {
  const uint32_t lane = threadIdx.x;
  const uint32_t *in = reinterpret_cast<const uint32_t *>(params.in);
  uint32_t *out = reinterpret_cast<uint32_t *>(params.out), *work = reinterpret_cast<uint32_t *>(params.work);
  uint32_t *filled = work, *taken = work + 32, *place = work + 64;
  auto wait_counter = [&](const uint32_t *counter, uint32_t target) {  // lane 0 for the warp
    bool ok =
        lane != 0 || test::wait_until([&] { return static_cast<int32_t>(tile::load_acquire(counter) - target) >= 0; });
    return __all_sync(0xffffffffu, ok) != 0;
  };
  bool good = true;
  uint32_t stale = 0;
  for (uint32_t round = 0; round < params.count && good; round++) {
    const uint32_t target = params.first + (round + 1) * MK_EDGE_AMOUNT;
    if (blockIdx.x == 0) {
      place[lane] = in[round * MK_EDGE_WORDS + lane];
      place[lane + 32] = in[round * MK_EDGE_WORDS + 32 + lane];
      __syncwarp();
      if (lane == 0) {
        tile::add_release(filled, MK_EDGE_AMOUNT);
      }
      good = wait_counter(taken, target);
    } else {
      stale += place[lane] + place[lane + 32];
      good = wait_counter(filled, target);
      if (good) {
        out[round * MK_EDGE_WORDS + lane] = place[lane];
        out[round * MK_EDGE_WORDS + 32 + lane] = place[lane + 32];
      }
      __syncwarp();
      if (lane == 0 && good) {
        tile::add_release(taken, MK_EDGE_AMOUNT);
      }
    }
  }
  work[64 + MK_EDGE_WORDS + blockIdx.x * 32 + lane] = stale;  // keeps the early loads
  test::finish(params, good);
}

// Every thread adds its index in the grid + 1 to two counters, `count` times. out [2]: the counters at the end. work:
// the counters at words 0 and 32, the blocks that are done at word 64.
extern "C" __global__ void __launch_bounds__(128) mk_tile_edge_add(const mk_tile_params params) {
  uint32_t *work = reinterpret_cast<uint32_t *>(params.work);
  const uint32_t amount = blockIdx.x * 128 + threadIdx.x + 1;
  for (uint32_t i = 0; i < params.count; i++) {
    tile::add_relaxed(work, amount);
    tile::add_release(work + 32, amount);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    tile::add_release(work + 64, 1);
  }
  bool good = true;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    good = test::wait_until([&] { return tile::load_acquire(work + 64) == gridDim.x; });
    reinterpret_cast<uint32_t *>(params.out)[0] = tile::load_relaxed(work);
    reinterpret_cast<uint32_t *>(params.out)[1] = tile::load_relaxed(work + 32);
  }
  test::finish(params, good);
}

// Both clocks advance. out [count][2]: 1 when the second look gave more than the first, and the lower half of the ticks
// lay between them.
extern "C" __global__ void __launch_bounds__(32) mk_tile_edge_clocks(const mk_tile_params params) {
  uint32_t *out = reinterpret_cast<uint32_t *>(params.out);
  for (uint32_t i = 0; i < params.count && threadIdx.x == 0; i++) {
    const uint64_t ticks = tile::clock_ticks(), time = tile::global_nanoseconds();
    const uint32_t low = tile::clock_low();
    uint64_t later = time;
    for (uint32_t tries = 0; tries < 1u << 16 && later == time; tries++) {
      later = tile::global_nanoseconds();
    }
    const uint64_t end = tile::clock_ticks();
    out[2 * i] = end > ticks && low - static_cast<uint32_t>(ticks) <= end - ticks ? 1 : 0;
    out[2 * i + 1] = later > time && later - time < 1000000000u ? 1 : 0;
  }
  test::finish(params, true);
}

// in [count][4]. work [count][4 times 16 bytes]. out [count][MK_EDGE_LOOKS]: the words as every store of several at a
// time leaves them and every load takes them; of conditional loads every other one, or third one, leaves what was
// there.
extern "C" __global__ void __launch_bounds__(32) mk_tile_edge_vectors(const mk_tile_params params) {
  for (uint32_t i = threadIdx.x; i < params.count; i += 32) {
    const uint4 in = reinterpret_cast<const uint4 *>(params.in)[i];
    uint32_t *out = reinterpret_cast<uint32_t *>(params.out) + i * MK_EDGE_LOOKS;
    uint32_t *quad = reinterpret_cast<uint32_t *>(params.work) + i * 16, *pair = quad + 4;
    uint64_t *triple = reinterpret_cast<uint64_t *>(quad + 8), *stamped = triple + 2;
    tile::store_relaxed_quad(quad, in);
    tile::store_relaxed_pair(pair, in.x, in.y);
    tile::store_relaxed(reinterpret_cast<uint64_t *>(pair + 2), static_cast<uint64_t>(in.w) << 32 | in.z);
    tile::store_stamped_triple(triple, in.x, in.y, in.z, in.w);
    tile::store_stamped_pair(stamped, in.x, in.y, in.w);
    for (uint32_t w = 0; w < 4; w++) {
      out[w] = tile::load_relaxed(quad + w);
    }
    out[4] = tile::load_relaxed(pair);
    out[5] = tile::load_relaxed(pair + 1);
    const uint64_t both = tile::load_relaxed(reinterpret_cast<const uint64_t *>(pair + 2));
    out[6] = static_cast<uint32_t>(both);
    out[7] = static_cast<uint32_t>(both >> 32);
    const tile::stamped_triple three = tile::load_stamped_triple(triple);
    out[8] = three.data[0], out[9] = three.data[1], out[10] = three.data[2], out[11] = three.generation;
    const tile::stamped_pair two = tile::load_stamped_pair(stamped);
    out[12] = tile::stamp_data(two.low), out[13] = tile::stamp_generation(two.low);
    out[14] = tile::stamp_data(two.high), out[15] = tile::stamp_generation(two.high);
    uint4 chosen = make_uint4(1, 2, 3, 4);
    tile::load_relaxed_quad_if(i % 2 == 0, quad, chosen);
    out[16] = chosen.x, out[17] = chosen.y, out[18] = chosen.z, out[19] = chosen.w;
    uint32_t first[2] = {5, 6}, second[2] = {7, 8};
    tile::load_relaxed_quad_if(i % 2 == 1, quad, first, second);
    out[20] = first[0], out[21] = first[1], out[22] = second[0], out[23] = second[1];
    uint64_t word = 10ull << 32 | 9;
    tile::load_stamped_if(i % 3 == 0, stamped + 1, word);
    out[24] = tile::stamp_data(word), out[25] = tile::stamp_generation(word);
    tile::store_relaxed(quad, in.w);  // of one word alone
    out[0] ^= tile::load_relaxed(quad) ^ in.w;
  }
  test::finish(params, true);
}

// in: bf16 [count]; out [count]: as fp32.
extern "C" __global__ void __launch_bounds__(256) mk_tile_edge_bf16(const mk_tile_params params) {
  for (uint32_t i = blockIdx.x * 256 + threadIdx.x; i < params.count; i += gridDim.x * 256) {
    reinterpret_cast<float *>(params.out)[i] = tile::load_bf16(reinterpret_cast<const uint16_t *>(params.in) + i);
  }
  test::finish(params, true);
}

// Block 0 hands in [count][MK_EDGE_TRIPLES] to block 1 through a triple of each lane, which is right whenever its stamp
// is; block 1 answers by a stamped word. Generations from `first` on, which may wrap. out as in. work: the triples,
// then the answers.
extern "C" __global__ void __launch_bounds__(32) mk_tile_edge_triples(const mk_tile_params params) {
  const uint32_t lane = threadIdx.x;
  uint8_t *own = reinterpret_cast<uint8_t *>(params.work) + lane * 16;
  uint64_t *answer = reinterpret_cast<uint64_t *>(params.work) + 64 + lane;
  bool good = true;
  for (uint32_t round = 0; round < params.count && good; round++) {
    const uint32_t generation = params.first + round, at = round * MK_EDGE_TRIPLES + 3 * lane;
    const uint32_t *in = reinterpret_cast<const uint32_t *>(params.in) + at;
    uint32_t *out = reinterpret_cast<uint32_t *>(params.out) + at;
    if (blockIdx.x == 0) {
      tile::store_stamped_triple(own, in[0], in[1], in[2], generation);
      good = test::wait_until([&] { return tile::stamp_generation(tile::load_stamped(answer)) == generation; });
    } else {
      tile::stamped_triple seen;
      good = test::wait_until([&] {
        seen = tile::load_stamped_triple(own);
        return seen.generation == generation;
      });
      if (good) {
        out[0] = seen.data[0], out[1] = seen.data[1], out[2] = seen.data[2];
        tile::store_stamped(answer, 0u, generation);
      }
    }
  }
  test::finish(params, good);
}

// As mk_tile_edge_release, by relaxed flags with fences on both sides.
extern "C" __global__ void __launch_bounds__(32) mk_tile_edge_fences(const mk_tile_params params) {
  const uint32_t lane = threadIdx.x;
  uint32_t *work = reinterpret_cast<uint32_t *>(params.work), *filled = work, *taken = work + 32, *place = work + 64;
  auto wait_flag = [&](const uint32_t *flag, uint32_t want) {  // all lanes look, and each has what came before the flag
    const bool ok = test::wait_until([&] { return tile::load_relaxed(flag) == want; });
    tile::fence_acquire();
    return __all_sync(0xffffffffu, ok) != 0;
  };
  auto raise = [&](uint32_t *flag, uint32_t to) {
    __syncwarp();
    if (lane == 0) {
      tile::fence_release();
      tile::store_relaxed(flag, to);
    }
  };
  bool good = true;
  for (uint32_t round = 0; round < params.count && good; round++) {
    const uint32_t now = params.first + round, at = round * MK_EDGE_WORDS + 2 * lane;
    if (blockIdx.x == 0) {
      good = wait_flag(taken, now);
      if (good) {
        place[2 * lane] = reinterpret_cast<const uint32_t *>(params.in)[at];
        place[2 * lane + 1] = reinterpret_cast<const uint32_t *>(params.in)[at + 1];
        raise(filled, now + 1);
      }
    } else {
      good = wait_flag(filled, now + 1);
      if (good) {
        reinterpret_cast<uint32_t *>(params.out)[at] = place[2 * lane];
        reinterpret_cast<uint32_t *>(params.out)[at + 1] = place[2 * lane + 1];
        raise(taken, now + 1);
      }
    }
  }
  test::finish(params, good);
}
