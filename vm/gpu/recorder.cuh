// The recorder: what each role does from which tick on (vm/activity.h), for the steps of a launch that the host asks for.
//
// A record is sixteen bytes in a track of its own per SM and role, written by one lane: no role ever waits for another, and a full
// track only counts. Only the kernel of recording.cu has this code in it.
#pragma once
#include "vm/gpu/device.cuh"

#ifndef MK_GPU_RECORDS
#define MK_GPU_RECORDS false
#endif

namespace mk {

__device__ inline bool keeps_records(const device &d) {
  return MK_GPU_RECORDS && d.params.trace.capacity != 0 && tile::lane() == 0 &&
         (d.warp == 0 || d.warp >= MK_GPU_CONSUMER_WARPS);
}

__device__ inline void put_record(uint64_t to, uint32_t time_low, uint32_t time_high, uint32_t uid, uint32_t what) {
  *reinterpret_cast<uint4 *>(to) = make_uint4(time_low, time_high, uid, what);
}

// This role does `activity` from now on. Of the consumers the first warp keeps the records.
__device__ inline void record(const device &d, uint32_t activity, uint32_t edge) {
  if (!keeps_records(d)) {
    return;
  }
  track_end &track = const_cast<track_end &>(device::words()->tracks[role_of(d.warp)]);
  track_end end = tile::load_whole(track);
  if (end.step == 0) {
    return;
  }
  if (static_cast<int32_t>(end.left) > 0) {
    uint64_t now = tile::clock_ticks();
    put_record(end.next, static_cast<uint32_t>(now), static_cast<uint32_t>(now >> 32), d.uid(),
               activity | (end.step & 0xff00u) | edge << 16);
  }
  end.next += sizeof(mk_trace_record);
  end.left--;
  tile::store_whole(track, end);
}

// The time at which a wait begins, for record_wait. Half of it, since registers are short; a wait of seconds ends the launch.
__device__ inline uint32_t wait_begins() { return MK_GPU_RECORDS ? static_cast<uint32_t>(tile::clock_ticks()) : 0; }

// This role has waited since then, and works from now on: two records at once, since waits are everywhere.
__device__ inline void record_wait(const device &d, uint32_t since, uint32_t activity, uint32_t edge) {
  if (!keeps_records(d)) {
    return;
  }
  track_end &track = const_cast<track_end &>(device::words()->tracks[role_of(d.warp)]);
  track_end end = tile::load_whole(track);
  if (end.step == 0) {
    return;
  }
  uint64_t now = tile::clock_ticks();
  uint32_t low = static_cast<uint32_t>(now), high = static_cast<uint32_t>(now >> 32), uid = d.uid();
  uint32_t step = end.step & 0xff00u;
  if (static_cast<int32_t>(end.left) > 0) {
    put_record(end.next, since, high - (since > low ? 1 : 0), uid, activity | step | edge << 16);
  }
  if (static_cast<int32_t>(end.left) > 1) {
    put_record(end.next + sizeof(mk_trace_record), low, high, uid, MK_ACTIVITY_WORK | step);
  }
  end.next += 2 * sizeof(mk_trace_record);
  end.left -= 2;
  tile::store_whole(track, end);
}

__device__ inline void prepare_tracks(const device &d) {
  const mk_gpu_trace &trace = d.params.trace;
  for (uint32_t role = 0; MK_GPU_RECORDS && role < MK_TRACE_ROLES; role++) {
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
  role who = role_of(d.warp);
  volatile track_end &track = device::words()->tracks[who];
  bool records = d.epoch - trace.first_epoch < trace.epochs, ends = track.step != 0;
  d.set_uid(0);  // between steps a role has no instruction
  if (records || ends) {
    track.step = d.epoch << 8 | 1;
    record(d, MK_ACTIVITY_BOUNDARY, 0);
    track.step = records ? d.epoch << 8 | 1 : 0;
    int32_t left = static_cast<int32_t>(track.left);
    trace.sms[blockIdx.x].count[who] = trace.capacity - max(left, 0);
    trace.sms[blockIdx.x].dropped[who] = max(-left, 0);
  }
}

enum { BEACON_WRITES = 400, BEACON_PAUSE = 200, BEACON_LOOKS = 20000 };  // times, ticks, times at most

__device__ inline bool beacons(const device &d) {
  return MK_GPU_RECORDS && d.params.trace.capacity != 0 && tile::lane() == 0;
}

// Block 0 writes its clock for the others to see (about 80 us).
__device__ inline void light_beacon(const device &d, uint32_t which) {
  if (!beacons(d)) {
    return;
  }
  for (uint32_t i = 0; blockIdx.x == 0 && i <= BEACON_WRITES; i++) {
    uint64_t now = tile::clock_ticks();
    tile::store_relaxed(d.params.trace.beacons + which, i < BEACON_WRITES ? now : ~0ull);
    while (tile::clock_ticks() - now < BEACON_PAUSE) {
    }
  }
}

// This SM's clock beside the beacon.
__device__ inline void look_at_beacon(const device &d, uint32_t which) {
  if (!beacons(d)) {
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
  if (!MK_GPU_RECORDS || d.params.delay_uid == 0 || d.uid() != d.params.delay_uid) {
    return;
  }
  uint64_t start = tile::global_nanoseconds();
  while (tile::global_nanoseconds() - start < d.params.delay_ns) {
  }
}

}  // namespace mk
