// Waiting, with a deadline.
//
// The waits of loaders, consumers and storers are here, but for those named below. A warp that waits long writes into
// shared memory what it waits for, and watches one flag there, `leave`. The controller of its SM watches the clock for
// all warps (watch_over). When a wait outlives the deadline, the controller that sees it first of all on the GPU writes
// the fault record and raises the abort flag, which all controllers watch; each then sets the `leave` of its SM. From
// then on all waits give up at once. A consumer or the storer goes through its instruction to the end with whatever
// data it has, so that no other warp is left alone at a meeting, and ends after the last instruction that the
// controller has handed out, which is the same one for all. Nothing else ends a role but the last epoch or the host's
// stop.
//
// Some waits are elsewhere: the controller's for room in its ring, while it watches (controller.cuh); loaders' until
// copies that are on their way have arrived, and between copies that they pace (loader.cuh, rows_loader.cuh); that of
// the storer of a SCORE, which uses keep_waiting, but waits for either of two things (score.cuh); those of the roles of
// an MLA block for each other, which its controller watches as a whole (attender.cuh); and the recorder's, which makes
// a limited number of tries.
//
// Waits are short on purpose: a copy of this code stands wherever somebody waits, and together they have to fit the
// instruction cache, from which a miss costs about as much as a hop (docs/results/decode.md).
#pragma once
#include "vm/gpu/copies.cuh"
#include "vm/gpu/recorder.cuh"

namespace mk {

enum { LONG_WAIT_TRIES = 64 };

// Says what this warp waits for, after its first try in vain. With several rows there are so many waits that the code
// to count tries at each of them would take more room in the instruction cache than it is worth. `have` is that of a
// lane that still waits.
__device__ inline void say_wait(const device &d, uint32_t what, uint32_t have, uint32_t want) {
  tile::store_shared_unless(have, want, const_cast<long_wait *>(&device::words()->waits[d.warp]), what, d.epoch);
}

// Says what this warp waits for; by one thread.
__device__ inline void begin_long_wait(const device &d, uint32_t what, uint32_t have, uint32_t want) {
  volatile shared_words *words = device::words();
  uint32_t warp = d.warp;
  words->waits[warp].have = have;
  words->waits[warp].want = want;
  words->waits[warp].epoch = d.epoch;
  words->tickets[warp] = words->tickets[warp] + 1;
  words->waits[warp].what = what;
}

// After a try in vain of the whole warp (`alone`: of one thread); `tries` begins at 0. False, for all lanes: do not
// wait any longer.
template <bool alone = false>
__device__ inline bool keep_waiting(const device &d, uint32_t &tries, uint32_t activity, uint32_t edge, uint32_t have,
                                    uint32_t want) {
  if constexpr (MK_GPU_ROWS) {
    if (tries == 0) {
      say_wait(d, activity | edge << 16, have, want);
    }
    tries = 1;
  } else {
    if (++tries % LONG_WAIT_TRIES != 0) {
      return true;
    }
    if (tries == LONG_WAIT_TRIES) {
      uint32_t most = alone ? have : tile::largest_of_lanes(have);
      if (alone || tile::lane() == 0) {
        begin_long_wait(d, activity | edge << 16, most, want);
      }
    }
  }
  bool stay = device::words()->leave == 0;
  return alone ? stay : tile::all_lanes(stay);
}

// Ends such a wait. Called by the lane that called begin_long_wait: the word of a slower lane would end the warp's next
// wait.
template <bool alone = false>
__device__ inline void waited(const device &d, uint32_t tries) {
  if (tries >= (MK_GPU_ROWS ? 1 : LONG_WAIT_TRIES) && (alone || tile::lane() == 0)) {
    device::words()->waits[d.warp].what = 0;
  }
}

// All lanes of the warp wait for a phase; all get the same answer. False: all roles are to leave. `alone`: one thread
// does, the first of its warp, while the others do something else.
template <bool alone = false>
__device__ inline bool wait_phase(const device &d, uint32_t index, uint32_t parity, uint32_t activity, uint32_t edge) {
  uint32_t barrier = d.barrier(index);
  auto all = [](bool there) { return alone ? there : tile::all_lanes(there); };
  if (all(tile::test_wait(barrier, parity))) {
    return true;
  }
  wait_start start = wait_begins(d);
  uint32_t tries = 0;
  bool ok = true;
  while (ok && !all(tile::try_wait(barrier, parity))) {
    ok = keep_waiting<alone>(d, tries, activity, edge, MK_GPU_ROWS ? parity ^ 1 : 0, parity);
  }
  waited<alone>(d, tries);
  record_wait(d, start, activity, edge);
  return ok;
}

// The same without a deadline: for a warp that waits for work which may never come, or for something for which another
// warp waits with a deadline.
__device__ inline bool wait_for_work(const device &d, uint32_t index, uint32_t parity) {
  uint32_t barrier = d.barrier(index);
  while (!tile::all_lanes(tile::try_wait(barrier, parity))) {
    if (!tile::all_lanes(d.words()->leave == 0)) {
      return false;
    }
  }
  return true;
}

// Waits for the instruction at this place of the ring; false: the controller hands out no more.
__device__ inline bool wait_instruction(const device &d, const instruction_cursor &cursor) {
  while (!wait_phase(d, INSTRUCTION_FULL + cursor.slot(), cursor.phase(), MK_ACTIVITY_INSTRUCTION, cursor.slot())) {
    if (tile::all_lanes(d.words()->gone != 0) &&
        !tile::all_lanes(tile::test_wait(d.barrier(INSTRUCTION_FULL + cursor.slot()), cursor.phase()))) {
      return false;
    }
  }
  return true;
}

// Whether an index is below `count`, as it must be; called by one thread. If it is not, the launch ends: the controller
// raises the fault of that kind.
__device__ inline bool index_fits(const device &d, uint32_t kind, uint32_t index, uint32_t count) {
  if (index < count) {
    return true;
  }
  volatile shared_words *words = device::words();
  words->fault.have = index;
  words->fault.want = count;
  words->fault.epoch = d.epoch;
  words->fault_uid = words->uid[d.warp];
  words->fault.what = kind | d.warp << 16;
  return false;
}

// What the controller knows of the others' long waits, lane by lane.
struct watch {
  uint32_t ticket = 0, since = 0;  // since: in units of 1.024 us
};

// One look at all warps of the block and at the abort flag.
__device__ inline watch watch_over(watch w, uint32_t deadline, mk_gpu_fault *fault, uint32_t *abort,
                                   const mk_gpu_peers *peers) {
  volatile shared_words *words = device::words();
  uint32_t warp = tile::lane(), now = static_cast<uint32_t>(tile::global_nanoseconds() >> 10);
  uint32_t what = warp < MK_GPU_WARPS ? words->waits[warp].what : 0;
  uint32_t ticket = 0;
  if constexpr (MK_GPU_ROWS) {
    // It is the same wait if it is of the same instruction and step: one role has no two such waits for as long as a
    // deadline.
    ticket =
        what != 0
            ? ((words->uid[warp] << 12 ^ words->waits[warp].epoch << 4) + (what ^ words->waits[warp].want << 1)) | 1
            : 0;
  } else {
    ticket = what != 0 ? words->tickets[warp] : 0;
  }
  if (ticket != w.ticket) {
    w.ticket = ticket;
    w.since = now;
  }
  // A warp that waits for another SM gives up first, so that the record names the edge, and not what waits because of
  // it.
  uint32_t activity = what & 0xff;
  bool edge_wait = activity == MK_ACTIVITY_COUNTER || activity == MK_ACTIVITY_STAMP;
  bool late = what != 0 && now - w.since > (edge_wait ? deadline : deadline + deadline / 4);
  bool is_index = warp == 0 && words->fault.what != 0;
  late = late || is_index;
  if (late && words->leave == 0 && atomicCAS(&fault->claimed, 0u, 1u) == 0u) {
    const volatile long_wait &seen = is_index ? words->fault : words->waits[warp];
    fault->sm = blockIdx.x;
    fault->role = role_of(is_index ? seen.what >> 16 : warp);
    fault->uid = is_index ? words->fault_uid : words->uid[warp];
    fault->activity = is_index ? seen.what & 0xffff : activity;
    fault->edge = is_index ? 0 : what >> 16;
    fault->have = seen.have;
    fault->want = seen.want;
    fault->epoch = seen.epoch;
    __threadfence_system();
    atomicExch(abort, 1u);
    if constexpr (MK_GPU_RANKS) {
      abort_others(peers);
    }
  }
  if (tile::any_lane(late) || tile::load_acquire(abort) != 0) {
    __threadfence();
    words->leave = 1;
  }
  return w;
}

__device__ inline void watch_over(const device &d, watch &w) {
  w = watch_over(w, d.params.deadline, d.params.fault, d.params.abort, MK_GPU_RANKS ? d.params.peers : nullptr);
}

// One warp waits for the release counters of an instruction; the caller makes the others wait for that warp. Relaxed
// counters are hints, and going straight to the stamps is faster than heeding them (measured: docs/results/gpu.md).
__device__ inline void wait_counters(const device &d, const mk_instruction_word &in) {
  for (uint32_t w = 0; w < in.wait_count; w++) {
    uint32_t counter = in.waits[w].counter, total = device::slot_of(in).wait_totals[w];
    if ((total & MK_GPU_COUNTER_RELEASE) == 0) {
      continue;
    }
    uint32_t want = (d.params.first_epoch + d.epoch) * (total & ~MK_GPU_COUNTER_RELEASE) + in.waits[w].threshold;
    const uint32_t *address = d.params.counters + counter * MK_GPU_COUNTER_STRIDE;
    uint32_t tries = 0;
    wait_start start = {};
    for (;;) {
      uint32_t have = tile::load_acquire(address);
      if (tile::all_lanes(static_cast<int32_t>(have - want) >= 0)) {
        break;
      }
      if (tries == 0) {
        start = wait_begins(d);
      }
      if (!keep_waiting(d, tries, MK_ACTIVITY_COUNTER, counter, have, want)) {
        break;
      }
    }
    waited(d, tries);
    if (tries != 0) {
      record_wait(d, start, MK_ACTIVITY_COUNTER, counter);
    }
  }
}

// Adds to the copies of a release counter: one release for all of them.
__device__ inline void signal_ranks(const device &d, uint32_t counter, uint32_t *own, uint32_t amount) {
  const mk_gpu_peers *peers = d.params.peers;
  tile::fence_release();
  uint32_t waiters = tile::global<const uint32_t>(peers->waiters)[counter];
  for (uint32_t rank = 0; rank < peers->ranks; rank++) {
    if (tile::has_lane(waiters, rank)) {
      tile::add_relaxed(tile::view<uint32_t>(tile::view<uint8_t>(own) + peers->counters[rank]), amount);
    }
  }
}

__device__ inline void signal_counters(const device &d, const mk_instruction_word &in) {
  for (uint32_t s = 0; s < in.signal_count; s++) {
    uint32_t counter = in.signals[s].counter;
    uint32_t *address = d.params.counters + counter * MK_GPU_COUNTER_STRIDE;
    if ((device::slot_of(in).signal_totals[s] & MK_GPU_COUNTER_RELEASE) != 0) {
      if constexpr (MK_GPU_RANKS) {
        signal_ranks(d, counter, address, in.signals[s].amount);
      } else {
        tile::add_release(address, in.signals[s].amount);
      }
    } else {
      tile::add_relaxed(address, in.signals[s].amount);
    }
  }
}

// Waits until look(want) gives 0 in every lane: the bits in which stamps differ from this epoch's generation, `want`.
// The fault record shows a late stamp, or of late ones that differ all bits in which any of them differs from `want`.
template <typename looks>
__device__ inline void wait_generation(const device &d, uint32_t buffer, looks look) {
  uint32_t want = d.generation(), tries = 0;
  wait_start start = {};
  for (;;) {
    uint32_t wrong = look(want);
    if (!tile::any_lane(wrong != 0) || (d.params.left_out & MK_GPU_PART_EDGES) != 0) {
      break;
    }
    if (tries == 0) {
      start = wait_begins(d);
    }
    if (!keep_waiting(d, tries, MK_ACTIVITY_STAMP, buffer, want ^ wrong, want)) {
      break;
    }
  }
  waited(d, tries);
  if (tries != 0) {
    record_wait(d, start, MK_ACTIVITY_STAMP, buffer);
  }
}

// The bits in which stamps of pairs differ from `want`.
template <uint32_t count>
__device__ inline uint32_t wrong_bits(const tile::stamped_pair (&pairs)[count], uint32_t want) {
  uint32_t wrong = 0;
#pragma unroll
  for (uint32_t i = 0; i < count; i++) {
    wrong |= (tile::stamp_generation(pairs[i].low) ^ want) | (tile::stamp_generation(pairs[i].high) ^ want);
  }
  return wrong;
}

// Loads `count` pairs, pair i from at(i).
template <uint32_t count, typename address>
__device__ inline void load_pairs(address at, tile::stamped_pair (&to)[count]) {
#pragma unroll
  for (uint32_t i = 0; i < count; i++) {
    to[i] = tile::load_stamped_pair(at(i));
  }
}

// Each lane waits for `count` pairs of its own stamped words, pair i at at(i) where has(i); elsewhere data are 0. A
// lane loads all of its pairs again while one of them is late: to know which of them is takes more instructions than it
// saves loads. There are no branches: otherwise loads go out one by one, each after the look at the word before.
template <uint32_t count, typename address, typename presence>
__device__ inline void wait_stamped_pairs(const device &d, uint32_t buffer, address at, presence has,
                                          tile::stamped_pair (&to)[count]) {
#pragma unroll
  for (uint32_t i = 0; i < count; i++) {
    to[i].low = to[i].high = tile::stamp(0, d.generation());
  }
  bool late = true;
  wait_generation(d, buffer, [&](uint32_t want) {
#pragma unroll
    for (uint32_t i = 0; i < count; i++) {
      tile::load_stamped_pair_if(late && has(i), at(i), to[i]);
    }
    const uint32_t wrong = wrong_bits(to, want);
    late = wrong != 0;
    return wrong;
  });
}

// The same where every lane has all of its pairs.
template <uint32_t count, typename address>
__device__ inline void wait_stamped_pairs(const device &d, uint32_t buffer, address at,
                                          tile::stamped_pair (&to)[count]) {
#pragma unroll
  for (uint32_t i = 0; i < count; i++) {
    to[i] = {0, 0};  // else the compiler keeps registers for what they hold before
  }
  bool late = true;
  wait_generation(d, buffer, [&](uint32_t want) {
    if (late) {
      load_pairs(at, to);
    }
    const uint32_t wrong = wrong_bits(to, want);
    late = wrong != 0;
    return wrong;
  });
}

// The same for one pair, where the lane has one.
__device__ inline void wait_pair(const device &d, const uint64_t *from, bool here, uint32_t buffer,
                                 tile::stamped_pair &to) {
  tile::stamped_pair pairs[1];
  wait_stamped_pairs<1>(
      d, buffer, [=](uint32_t) { return from; }, [=](uint32_t) { return here; }, pairs);
  to = pairs[0];
}

// The same for `count` pairs that every lane has, pair i at at(i). All of them are loaded again while one is late:
// without conditions the loads of a try go out together.
template <uint32_t count, typename address>
__device__ inline void wait_all_pairs(const device &d, uint32_t buffer, address at, tile::stamped_pair (&to)[count]) {
  wait_generation(d, buffer, [&](uint32_t want) {
    load_pairs(at, to);
    return wrong_bits(to, want);
  });
}

// The same for triples.
template <uint32_t count, typename address>
__device__ inline void wait_all_triples(const device &d, uint32_t buffer, address at,
                                        tile::stamped_triple (&to)[count]) {
  wait_generation(d, buffer, [&](uint32_t want) {
    uint32_t wrong = 0;
#pragma unroll
    for (uint32_t i = 0; i < count; i++) {
      to[i] = tile::load_stamped_triple(at(i));
    }
#pragma unroll
    for (uint32_t i = 0; i < count; i++) {
      wrong |= to[i].generation ^ want;
    }
    return wrong;
  });
}

// The data of stamped words; gives the bits in which their stamps differ from `want`.
template <uint32_t count>
__device__ inline uint32_t take_words(const uint64_t (&words)[count], uint32_t want, uint32_t (&to)[count]) {
  uint32_t wrong = 0;
#pragma unroll
  for (uint32_t i = 0; i < count; i++) {
    to[i] = tile::stamp_data(words[i]);
    wrong |= tile::stamp_generation(words[i]) ^ want;
  }
  return wrong;
}

// The same for single words.
template <uint32_t count, typename address>
__device__ inline void wait_stamped_words(const device &d, uint32_t buffer, address at, uint32_t (&to)[count]) {
  wait_generation(d, buffer, [&](uint32_t want) {
    uint64_t words[count];
#pragma unroll
    for (uint32_t i = 0; i < count; i++) {
      words[i] = tile::load_stamped(at(i));
    }
    return take_words(words, want, to);
  });
}

// The same for words where has(i); 0 elsewhere.
template <uint32_t count, typename address, typename presence>
__device__ inline void wait_line_words(const device &d, uint32_t buffer, address at, presence has,
                                       uint32_t (&to)[count]) {
  uint64_t words[count];
#pragma unroll
  for (uint32_t i = 0; i < count; i++) {
    words[i] = tile::stamp(0, d.generation());
  }
  wait_generation(d, buffer, [&](uint32_t want) {
#pragma unroll
    for (uint32_t i = 0; i < count; i++) {
      tile::load_stamped_if(has(i), at(i), words[i]);
    }
    return take_words(words, want, to);
  });
}

// Each lane that `waits` waits until its flag carries this epoch's generation. What the writers of the flags wrote
// before is then there for the whole warp.
__device__ inline void wait_flags(const device &d, uint32_t buffer, const uint32_t *flag, bool waits) {
  uint32_t want = d.generation(), tries = 0;
  wait_start start = {};
  for (;;) {
    uint32_t have = waits ? tile::load_acquire(flag) : want;
    if (!tile::any_lane(have != want) || (d.params.left_out & MK_GPU_PART_EDGES) != 0) {
      break;
    }
    if (tries == 0) {
      start = wait_begins(d);
    }
    if (!keep_waiting(d, tries, MK_ACTIVITY_STAMP, buffer, have == want ? 0 : have, want)) {
      break;
    }
  }
  __syncwarp();
  waited(d, tries);
  if (tries != 0) {
    record_wait(d, start, MK_ACTIVITY_STAMP, buffer);
  }
}

}  // namespace mk
