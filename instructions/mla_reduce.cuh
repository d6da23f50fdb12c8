// MLA_REDUCE: for every reduction of the SM's row of the work list (mla.h), slots o_s with l_s = log2 of their sums of
// weights become out = sum_s 2^(l_s - max) o_s / sum_s 2^(l_s - max), for its units of 128 columns of a row; no slot,
// or none that saw a token: zeros.
//
// A lane has the six columns of a triple of words (mla_slot.cuh), 24 lanes have a unit. A warp takes a batch of units
// and slots at a time, all of whose words are under way together. Where there are many slots, several warps form a team
// that shares units: each warp adds up every n-th slot, n being the number of warps, and what they have is added in the
// order of the warps, through shared memory. Waits for the stamps of what it reads; stores outputs as they are.
#pragma once
#include "instructions/mla_slot.cuh"
#include "vm/gpu/attender.cuh"

namespace mk {

struct alignas(16) merged {  // of one lane and unit
  float sum[6];
  float max, total;
};

__device__ inline void clear(merged &m) { m = {{}, -INFINITY, 0.0f}; }

struct reduction_view {
  const mk_gpu_buffer &parts, &out;
  uint32_t buffer;  // the number of the buffer of parts
  uint32_t block, first_slot, slots, first_unit, units;
};

// Adds slots first, first + step, ... of units [unit, unit + unit_count). Where the units or the slots end early, the
// last one is read again and does not count.
template <uint32_t unit_count, uint32_t slot_count>
__device__ inline void add_slots(const attender &a, const reduction_view &r, uint32_t unit, uint32_t first,
                                 uint32_t step, merged (&m)[unit_count]) {
  uint32_t triple = a.lane < SLOT_TRIPLES ? a.lane : a.lane - 8;
#pragma unroll
  for (uint32_t u = 0; u < unit_count; u++) {
    clear(m[u]);
  }
#pragma unroll 1
  for (uint32_t s = first; s < r.slots; s += step * slot_count) {
    tile::stamped_triple words[unit_count * slot_count];
    auto at = [&](uint32_t i) {
      uint32_t slot = r.first_slot + min(s + i % slot_count * step, r.slots - 1);
      return unit_in(r.parts, slot, r.first_unit + min(unit + i / slot_count, r.units - 1)).at(triple);
    };
    wait_all_triples<unit_count * slot_count>(a.d, r.buffer, at, words);
#pragma unroll
    for (uint32_t u = 0; u < unit_count; u++) {
      float size[slot_count], max = m[u].max;
#pragma unroll
      for (uint32_t i = 0; i < slot_count; i++) {
        bool counts = s + i * step < r.slots;
        // The last triples of a unit, from lane 20 on, end with its head.
        float logarithm = __uint_as_float(tile::from_lane(words[u * slot_count + i].data[1], SLOT_TRIPLES - 1));
        size[i] = counts ? logarithm : -INFINITY;
        max = fmaxf(max, size[i]);
      }
      float offset = max == -INFINITY ? 0.0f : max, keep = tile::exp2(m[u].max - offset);
      m[u].max = max;
      m[u].total *= keep;
#pragma unroll
      for (uint32_t j = 0; j < 6; j++) {
        m[u].sum[j] *= keep;
      }
#pragma unroll
      for (uint32_t i = 0; i < slot_count; i++) {
        const tile::stamped_triple &mine = words[u * slot_count + i];
        float weight = tile::exp2(size[i] - offset);
        float factor = weight * __uint_as_float(tile::from_lane(mine.data[2], SLOT_TRIPLES - 1));
        m[u].total += weight;
#pragma unroll
        for (uint32_t j = 0; j < 3; j++) {
          float2 pair =
              tile::unpack_half(mine.data[j]);  // a head's words are no numbers, and nobody stores what they give
          m[u].sum[2 * j] += factor * pair.x;
          m[u].sum[2 * j + 1] += factor * pair.y;
        }
      }
    }
  }
}

// The team's sums lie where the queries were: nobody reads these any more, since all consumers have met at the end of
// the last item.
template <uint32_t unit_count>
__device__ inline merged &merge_room(uint32_t warp, uint32_t unit, uint32_t lane) {
  static_assert(sizeof(merged) * 32 * unit_count * MK_GPU_CONSUMER_WARPS <= MK_GPU_ACTIVATION_BYTES, "room for all");
  return tile::view<merged>(shared_memory + MK_GPU_ACTIVATION_AT)[(warp * unit_count + unit) * 32 + lane];
}

// Adds up what warps [first, first + warps) have left of a unit.
template <uint32_t unit_count>
__device__ inline merged merge(const attender &a, uint32_t first, uint32_t warps, uint32_t unit) {
  merged m;
  clear(m);
  for (uint32_t w = 0; w < warps; w++) {
    m.max = fmaxf(m.max, merge_room<unit_count>(first + w, unit, a.lane).max);
  }
  float offset = m.max == -INFINITY ? 0.0f : m.max;
  for (uint32_t w = 0; w < warps; w++) {
    const merged &other = merge_room<unit_count>(first + w, unit, a.lane);
    float weight = tile::exp2(other.max - offset);
    m.total += weight * other.total;
#pragma unroll
    for (uint32_t j = 0; j < 6; j++) {
      m.sum[j] += weight * other.sum[j];
    }
  }
  return m;
}

__device__ inline void store_unit(const attender &a, const reduction_view &r, uint32_t unit, const merged &m) {
  float inverse = m.total == 0.0f ? 0.0f : 1.0f / m.total;
  uint4 words = make_uint4(tile::pack_bf16(m.sum[0] * inverse, m.sum[1] * inverse),
                           tile::pack_bf16(m.sum[2] * inverse, m.sum[3] * inverse),
                           tile::pack_bf16(m.sum[4] * inverse, m.sum[5] * inverse), 0);
  uint4 whole = tile::transpose_quad(a.lane, words);  // lane t of a quad: eight columns of its word t
  uint32_t at = tile::lane_row(a.lane) * 3 + tile::lane_of_quad(a.lane);
  if (unit < r.units && tile::lane_of_quad(a.lane) != 3 && at < MK_MLA_UNIT / 8 && publishes(a.d)) {
    tile::global<uint4>(r.out.address)[static_cast<uint64_t>(r.block) * (r.out.cols / 8) +
                                       (r.first_unit + unit) * (MK_MLA_UNIT / 8) + at] = whole;
  }
}

// Reduces with teams of `warps` warps.
template <uint32_t unit_count, uint32_t slot_count>
__device__ __forceinline__ void reduce(const attender &a, const reduction_view &r, uint32_t warps) {
  uint32_t teams = MK_GPU_CONSUMER_WARPS / warps, rank = a.warp % warps;
#pragma unroll 1
  for (uint32_t base = 0; base < r.units; base += teams * unit_count) {
    uint32_t unit = base + a.warp / warps * unit_count;
    merged m[unit_count];
    if (unit < r.units) {
      add_slots<unit_count, slot_count>(a, r, unit, rank, warps, m);
    }
    if (warps == 1) {
#pragma unroll
      for (uint32_t u = 0; u < unit_count; u++) {
        store_unit(a, r, unit + u, m[u]);
      }
      continue;
    }
    if (unit < r.units) {
#pragma unroll
      for (uint32_t u = 0; u < unit_count; u++) {
        merge_room<unit_count>(a.warp, u, a.lane) = m[u];
      }
    }
    tile::meet<MK_GPU_CONSUMER_WARPS * 32>();
    for (uint32_t u = rank; u < unit_count && unit < r.units; u += warps) {
      store_unit(a, r, unit + u, merge<unit_count>(a, a.warp - rank, warps, u));
    }
    tile::meet<MK_GPU_CONSUMER_WARPS * 32>();
  }
}

__device__ __forceinline__ void consume_MLA_REDUCE(attender &a, const mk_instruction_word &in) {
  mla_entry entry = take_entry(a);
  for (; entry.kind == ENTRY_REDUCTION; entry = take_entry(a)) {
    const mk_operand &parts = in.parts[MK_PART_MLA_REDUCE_parts];
    const reduction_view r = {.parts = a.d.buffer(parts),
                              .out = a.d.buffer(in.parts[MK_PART_MLA_REDUCE_out]),
                              .buffer = parts.buffer,
                              .block = entry.block,
                              .first_slot = entry.first_slot,
                              .slots = entry.slots,
                              .first_unit = entry.units & 0xffffu,
                              .units = entry.units >> 16};
    if (r.slots <= 32) {
      reduce<2, 4>(a, r, r.slots <= 4 ? 1 : r.slots <= 8 ? 2 : r.slots <= 16 ? 4 : MK_GPU_CONSUMER_WARPS);
    } else {
      reduce<1, 8>(a, r, MK_GPU_CONSUMER_WARPS);
    }
  }
}

}  // namespace mk
