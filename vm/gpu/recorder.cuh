// The recorder: what each role does from which tick on (vm/activity.h), for the steps of a launch that the host asks for.
//
// A record is sixteen bytes in a track of its own per SM and role, written by one lane: no role ever waits for another, and a full
// track only counts. Off, it costs one predicate where a role begins an instruction or has to wait anyway.
#pragma once
#include "vm/gpu/device.cuh"

namespace mk {

__device__ inline bool keeps_records(const device &d) {
  return d.params.trace.capacity != 0 && threadIdx.x % 32 == 0 &&
         (threadIdx.x == 0 || threadIdx.x >= MK_GPU_CONSUMER_WARPS * 32);
}

// This role does `activity` from now on. Of the consumers the first warp keeps the records.
__device__ inline void record(const device &d, uint32_t activity, uint32_t edge) {
  if (!keeps_records(d)) {
    return;
  }
  volatile track_end &track = device::words()->tracks[d.who];
  uint32_t step = track.step, left = track.left;
  if (step == 0) {
    return;
  }
  track.left = left - 1;
  if (static_cast<int32_t>(left) > 0) {
    uint64_t time = tile::clock_ticks(), next = track.next;
    *reinterpret_cast<uint4 *>(next) = make_uint4(static_cast<uint32_t>(time), static_cast<uint32_t>(time >> 32),
                                                  device::uid(), activity | (step & 0xff00u) | edge << 16);
    track.next = next + sizeof(mk_trace_record);
  }
}

__device__ inline void prepare_tracks(const device &d) {
  const mk_gpu_trace &trace = d.params.trace;
  for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
    volatile track_end &track = device::words()->tracks[role];
    track.next = reinterpret_cast<uint64_t>(trace.records) +
                 static_cast<uint64_t>(blockIdx.x * MK_TRACE_ROLES + role) * trace.capacity * sizeof(mk_trace_record);
    track.left = trace.capacity;
    track.step = 0;
  }
}

// Called where a role begins a step of the launch, and where it leaves: from here on it records, or no longer.
__device__ inline void record_boundary(const device &d) {
  if (!keeps_records(d)) {
    return;
  }
  const mk_gpu_trace &trace = d.params.trace;
  volatile track_end &track = device::words()->tracks[d.who];
  bool records = d.epoch - trace.first_epoch < trace.epochs, ends = track.step != 0;
  d.set_uid(0);  // between steps a role has no instruction
  if (records || ends) {
    track.step = d.epoch << 8 | 1;
    record(d, MK_ACTIVITY_BOUNDARY, 0);
    track.step = records ? d.epoch << 8 | 1 : 0;
    int32_t left = static_cast<int32_t>(track.left);
    trace.sms[blockIdx.x].count[d.who] = trace.capacity - max(left, 0);
    trace.sms[blockIdx.x].dropped[d.who] = max(-left, 0);
  }
}

enum { BEACON_WRITES = 400, BEACON_PAUSE = 200, BEACON_LOOKS = 20000 };  // times, ticks, times at most

// Both clocks at about one moment; and block 0 writes its own for the others to see (about 80 us).
__device__ inline void light_beacon(const device &d, uint32_t which) {
  if (d.params.trace.capacity == 0 || threadIdx.x % 32 != 0) {
    return;
  }
  mk_trace_sm &sm = d.params.trace.sms[blockIdx.x];
  sm.nanoseconds[which] = tile::global_nanoseconds();
  sm.ticks[which] = tile::clock_ticks();
  for (uint32_t i = 0; blockIdx.x == 0 && i <= BEACON_WRITES; i++) {
    uint64_t now = tile::clock_ticks();
    tile::store_relaxed(d.params.trace.beacons + which, i < BEACON_WRITES ? now : ~0ull);
    while (tile::clock_ticks() - now < BEACON_PAUSE) {
    }
  }
}

// This SM's clock beside the beacon.
__device__ inline void look_at_beacon(const device &d, uint32_t which) {
  if (d.params.trace.capacity == 0 || threadIdx.x % 32 != 0) {
    return;
  }
  int64_t least = 0;
  uint64_t seen_at = 0;
  uint32_t looks = 0;
  uint64_t last = 0;
  for (uint32_t tries = 0; last != ~0ull && tries < BEACON_LOOKS; tries++) {
    uint64_t seen = tile::load_relaxed(d.params.trace.beacons + which);
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
  d.params.trace.sms[blockIdx.x].seen_at[which] = seen_at;
  d.params.trace.sms[blockIdx.x].offset[which] = least;
  d.params.trace.sms[blockIdx.x].looks[which] = looks;
}

// The test fault point of the recorder: an instruction that takes its time.
__device__ inline void planted_delay(const device &d) {
  if (d.params.delay_uid == 0 || d.uid() != d.params.delay_uid) {
    return;
  }
  uint64_t start = tile::global_nanoseconds();
  while (tile::global_nanoseconds() - start < d.params.delay_ns) {
  }
}

}  // namespace mk
