// The recorder: what each role does from which tick on (vm/trace/activity.h), for the steps of a launch that the host
// asks for.
//
// A role leaves notes of sixteen bytes (mk_gpu_note) in a track of its own per SM, and the host makes records of them
// (trace.c). To write a note takes some ten instructions. That code stands at every wait, and the kernel has to fit the
// instruction cache with all of it (docs/results/decode.md). One lane of a role writes its notes, so no role ever waits
// for another; when a track is full, notes are only counted. What runs once a step or once a launch is in functions of
// its own, out of the way. Only kernels that record (recording.cu and its like) have this code in them.
#pragma once
#include "vm/gpu/device.cuh"

namespace mk {

// With several rows, in wide steps that sequences share, and with several ranks there is no register for the thread's
// number.
enum : bool { THREAD_ANEW = MK_GPU_ROWS || MK_GPU_SLOTS || MK_GPU_RANKS };
__device__ inline uint32_t recording_thread() { return THREAD_ANEW ? tile::thread_anew() : tile::thread(); }
__device__ inline uint32_t recording_warp(const device &d) {
  return THREAD_ANEW ? tile::warp_of_thread(tile::thread_anew()) : d.warp;
}

// Whether this thread keeps the records: one lane of a role does; of the consumers the first warp's, and of two storers
// the first one's.
__device__ inline bool keeps_records(const device &d) {
  if (!MK_GPU_RECORDS) {
    return false;
  }
  uint32_t warp = recording_warp(d), thread = recording_thread();
  return (role_of(warp) == ROLE_CONSUMER ? thread == 0 : tile::lane_of_thread(thread) == 0) &&
         (STORERS == 1 || warp != MK_GPU_WARPS - 1);
}

__device__ inline track_end &track_of(role who) { return const_cast<track_end &>(device::words()->tracks[who]); }

// The word of a note that comes after its uid: mk_gpu_note.
__device__ inline uint32_t note_of(uint32_t activity, uint32_t edge, uint32_t records) {
  return activity | records << 8 | edge << 16;
}

enum : uint32_t { NOWHERE = 0xffffffff };

__device__ inline uint32_t place_of(const mk_gpu_trace &trace, const track_end &end) {
  return end.first + end.at / MK_GPU_TRACK_TURN * trace.stride + end.at % MK_GPU_TRACK_TURN;
}

// Takes the place of this role's next note, which stands for so many records.
__device__ inline uint32_t take_place(const device &d, uint32_t records) {
  // The consumers' warp that records is warp 0, so nothing is added: but this sum is in a register, while the plain
  // address takes four instructions.
  uint32_t warp = recording_warp(d), nothing = role_of(warp) == ROLE_CONSUMER ? 4 * warp : 0;
  track_end &track = *tile::view<track_end>(tile::view<uint8_t>(&track_of(role_of(warp))) + nothing);
  track_end end = tile::load_whole(track);
  tile::view<uint2>(&track)[1] = make_uint2(end.at + 1, end.records + records);
  return end.at < end.room ? place_of(d.params.trace, end) : NOWHERE;
}

// Writes a note. By a predicate, not by a branch.
__device__ inline void put_note(const device &d, uint32_t place, uint32_t since, uint32_t uid, uint32_t note) {
  tile::store_timed_unless<NOWHERE>(place, d.params.trace.notes + place, since, uid, note);
}

// This role does `activity` from now on.
__device__ inline void record(const device &d, uint32_t activity, uint32_t edge) {
  if (keeps_records(d)) {
    put_note(d, take_place(d, 1), 0, d.uid(), note_of(activity, edge, 1));
  }
}

// When a wait begins, and where its note goes: the place is taken before the wait, so that only a store is left after
// it. With the opcodes of sampling, in wide steps and with several ranks there are no registers for that; there only
// the time is kept, in shared memory.
enum : bool { STARTS_ARE_SHARED = MK_GPU_WIDE || MK_GPU_SAMPLES || MK_GPU_RANKS };

struct wait_start {
  uint32_t since;  // the lower half, since registers are short; a wait of seconds ends the launch
  uint32_t place;
};

__device__ inline wait_start wait_begins(const device &d) {
  if (!MK_GPU_RECORDS) {
    return {};
  }
  if (!STARTS_ARE_SHARED) {
    return {tile::clock_low(), keeps_records(d) ? take_place(d, 2) : NOWHERE};
  }
  if (keeps_records(d)) {
    device::words()->starts[role_of(d.warp)] = tile::clock_low();
  }
  return {};
}

// This role has waited since `start`, and works from now on: two records.
__device__ inline void record_wait(const device &d, const wait_start &start, uint32_t activity, uint32_t edge) {
  uint32_t note = note_of(activity, edge, 2);
  if (MK_GPU_RECORDS && !STARTS_ARE_SHARED) {
    put_note(d, start.place, start.since, 0, note);
  } else if (keeps_records(d)) {
    put_note(d, take_place(d, 2), device::words()->starts[role_of(d.warp)], 0, note);
  }
}

// The same after a wait for which no place was taken: the other warps come soon, and a warp that looked for a place
// meanwhile would come later itself. A meeting that nobody was late for is recorded as work.
enum { SHORT_MEETING = 100 };  // ticks

__device__ inline uint32_t meeting_begins() { return MK_GPU_RECORDS ? tile::clock_low() : 0; }

__device__ inline void record_meeting(const device &d, uint32_t since) {
  if (keeps_records(d) && tile::clock_low() - since > SHORT_MEETING) {
    put_note(d, take_place(d, 2), since, 0, note_of(MK_ACTIVITY_MEETING, 0, 2));
  }
}

__device__ inline void prepare_tracks() {
  for (uint32_t who = 0; MK_GPU_RECORDS && who < MK_TRACE_ROLES; who++) {
    uint32_t track = blockIdx.x * MK_TRACE_ROLES + who;
    tile::store_whole(track_of(static_cast<role>(who)), track_end{track * MK_GPU_TRACK_TURN});
  }
}

static __device__ __noinline__ void put_boundary(const mk_gpu_trace &trace, uint32_t epoch) {
  uint32_t warp = tile::warp_of_thread(tile::thread());
  role who = role_of(warp);
  device::words()->uid[warp] = 0;  // between steps a role has no instruction
  track_end &track = track_of(who), end = tile::load_whole(track);
  bool records = epoch - trace.first_epoch < trace.epochs;
  if (!records && end.room == 0) {
    return;
  }
  if (end.room == 0) {
    end.at = end.records = 0;
  }
  uint32_t place = end.at < trace.capacity ? place_of(trace, end) : NOWHERE;
  end.at++;
  end.records++;
  end.room = records ? trace.capacity : 0;
  tile::store_whole(track, end);
  trace.sms[blockIdx.x].notes[who] = end.at;
  trace.sms[blockIdx.x].records[who] = end.records;
  if (place != NOWHERE) {
    uint64_t now = tile::clock_ticks();
    tile::store<uint4>(trace.notes + place, make_uint4(static_cast<uint32_t>(now >> 32), static_cast<uint32_t>(now),
                                                       epoch, note_of(MK_ACTIVITY_BOUNDARY, 0, 1)));
  }
}

// Called where a role begins a step of the launch, and where it leaves: decides whether the role records from here on.
__device__ inline void record_boundary(const device &d) {
  if (keeps_records(d)) {
    put_boundary(d.params.trace, d.epoch);
  }
}

enum { BEACON_WRITES = 400, BEACON_PAUSE = 200, BEACON_LOOKS = 20000 };  // times, ticks, times at most

__device__ inline bool beacons(const device &d) {
  return MK_GPU_RECORDS && d.params.trace.capacity != 0 && tile::lane() == 0;
}

// Block 0 writes its clock for the others to see (about 80 us).
static __device__ __noinline__ void write_clock(uint64_t *beacon) {
  for (uint32_t i = 0; i <= BEACON_WRITES; i++) {
    uint64_t now = tile::clock_ticks();
    tile::store_relaxed(beacon, i < BEACON_WRITES ? now : ~0ull);
    while (tile::clock_ticks() - now < BEACON_PAUSE) {
    }
  }
}

// The clocks of several ranks: block 0 of each other rank asks that of rank 0 for its time, again and again, and keeps
// what came back after the shortest time (mk_gpu_clock_offset). Of rank 0 a lane answers each of them. Whoever hears
// nothing gives up long before others are missed.
enum { EXCHANGE_ROUNDS = 32, EXCHANGE_LOOKS = 64, EXCHANGE_PATIENCE = 4 };  // looks from one look at the time on

__device__ inline mk_gpu_clock_words *clock_words_of(const mk_gpu_peers *peers, uint32_t rank) {
  return tile::global<mk_gpu_clock_words>(peers->aborts[rank] + MK_GPU_CLOCK_WORDS_AFTER);
}

// The word by which a rank asks: another one in each round of each launch.
__device__ inline uint64_t question_of(const mk_gpu_params &params, uint32_t which, uint32_t round) {
  return static_cast<uint64_t>(params.first_epoch + 1) << 32 | (which * EXCHANGE_ROUNDS + round + 1);
}

// Waits until the word is, or is no more, `value`; false: in vain.
template <bool equal>
__device__ inline bool wait_for_exchange(const mk_gpu_params &params, uint64_t since, const uint64_t *word,
                                         uint64_t value, uint64_t &seen) {
  for (uint32_t looks = 1;; looks++) {
    seen = tile::load_relaxed(word);
    if ((seen == value) == equal) {
      return true;
    }
    uint64_t most = static_cast<uint64_t>(params.deadline) * 1024 / EXCHANGE_PATIENCE;
    if (looks % EXCHANGE_LOOKS == 0 &&
        (tile::load_relaxed(params.abort) != 0 || tile::global_nanoseconds() - since > most)) {
      return false;
    }
  }
}

// By one lane of rank 0, for rank `rank`.
static __device__ __noinline__ void answer_clock(const mk_gpu_params &params, uint32_t which, uint32_t rank) {
  const uint64_t *question = &clock_words_of(params.peers, 0)->questions[rank];
  uint64_t *answer = &clock_words_of(params.peers, rank)->answer;
  uint64_t since = tile::global_nanoseconds(), seen;
  for (uint32_t round = 0; round < EXCHANGE_ROUNDS; round++) {
    if (!wait_for_exchange<true>(params, since, question, question_of(params, which, round), seen)) {
      return;
    }
    tile::store_relaxed(answer, tile::clock_ticks());
  }
}

// By one lane of another rank.
static __device__ __noinline__ void ask_for_clock(const mk_gpu_params &params, uint32_t which) {
  const mk_gpu_peers *peers = params.peers;
  uint64_t *question = &clock_words_of(peers, 0)->questions[peers->rank];
  const uint64_t *answer = &clock_words_of(peers, peers->rank)->answer;
  uint64_t since = tile::global_nanoseconds(), last = tile::load_relaxed(answer), least = ~0ull;
  mk_gpu_clock_offset *out = tile::view<mk_gpu_clock_offset>(params.trace.beacons + 2);
  for (uint32_t round = 0; round < EXCHANGE_ROUNDS; round++) {
    uint64_t sent = tile::clock_ticks(), seen;
    tile::store_relaxed(question, question_of(params, which, round));
    if (!wait_for_exchange<false>(params, since, answer, last, seen)) {
      return;
    }
    uint64_t took = tile::clock_ticks() - sent;
    last = seen;
    if (took < least) {
      least = took;
      out->seen_at[which] = sent + took / 2;
      out->offset[which] = static_cast<int64_t>(sent + took / 2 - seen);
      out->round[which] = took;
    }
  }
}

__device__ inline void exchange_clocks(const device &d, uint32_t which) {
  if constexpr (MK_GPU_RANKS && MK_GPU_RECORDS) {
    uint32_t lane = tile::lane();
    if (blockIdx.x != 0 || d.params.trace.capacity == 0) {
      return;
    }
    if (d.params.peers->rank != 0 && lane == 0) {
      ask_for_clock(d.params, which);
    } else if (d.params.peers->rank == 0 && lane != 0 && lane < d.params.peers->ranks) {
      answer_clock(d.params, which, lane);
    }
    __syncwarp();
  }
}

__device__ inline void light_beacon(const device &d, uint32_t which) {
  if (beacons(d) && blockIdx.x == 0) {
    write_clock(d.params.trace.beacons + which);
  }
  exchange_clocks(d, which);
}

static __device__ __noinline__ void compare_clocks(const mk_gpu_trace &trace, uint32_t which) {
  int64_t least = 0;
  uint64_t seen_at = 0;
  uint32_t looks = 0;
  uint64_t last = 0;
  for (uint32_t tries = 0; last != ~0ull && tries < BEACON_LOOKS; tries++) {
    uint64_t seen = tile::load_relaxed(trace.beacons + which);
    uint64_t now = tile::clock_ticks();
    int64_t difference = static_cast<int64_t>(now - seen);
    if (seen != last && seen != ~0ull && seen != 0) {
      if (looks++ == 0 || difference < least) {
        least = difference;
        seen_at = now;
      }
    }
    last = seen;
  }
  trace.sms[blockIdx.x].seen_at[which] = seen_at;
  trace.sms[blockIdx.x].offset[which] = least;
  trace.sms[blockIdx.x].looks[which] = looks;
}

// Notes this SM's clock beside the beacon's.
__device__ inline void look_at_beacon(const device &d, uint32_t which) {
  if (beacons(d)) {
    compare_clocks(d.params.trace, which);
  }
}

// The test fault point of the recorder: an instruction that takes its time.
__device__ inline void planted_delay(const device &d) {
  if (!MK_GPU_RECORDS || d.params.delay_uid == 0 || d.uid() != d.params.delay_uid) {
    return;
  }
  uint64_t start = tile::global_nanoseconds();
  while (tile::global_nanoseconds() - start < d.params.delay_ns) {
  }
}

}  // namespace mk
