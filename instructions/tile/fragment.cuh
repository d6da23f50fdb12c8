// Register tiles of one warp for mma.m16n8k16, bf16 in and fp32 out. PTX ISA, "Matrix fragments for mma.m16n8k16". A
// weight step in memory is the A fragment itself (vm/program/program.h, mk_tile_offset): lane l's 16 bytes are its
// fragment.
#pragma once
#include <cstdint>

namespace mk::tile {

struct weight_tile {  // A, 16 x 16 bf16
  uint32_t word[4];
};
struct vector_tile {  // B, 16 x 8 bf16: column n is held by lanes 4 n .. 4 n + 3
  uint32_t word[2];
};
struct sum_tile {  // C, 16 x 8 fp32: lane 4 g + t holds rows g, g + 8 of columns 2 t, 2 t + 1
  float value[4];
};

__device__ inline void zero(sum_tile &to) {
  for (int i = 0; i < 4; i++) {
    to.value[i] = 0.0f;
  }
}

// The same where it is seldom done: the compiler would do it before it knows whether to.
__device__ inline void zero_here(sum_tile &to) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    asm volatile("mov.f32 %0, 0f00000000;" : "=f"(to.value[i]));
  }
}

__device__ inline void zero(weight_tile &to) {
  for (int i = 0; i < 4; i++) {
    to.word[i] = 0;
  }
}

// An 8 x 8 tile of bf16, lane 4 g + t with elements 2 t and 2 t + 1 of row g, becomes its transpose. PTX ISA,
// "movmatrix".
__device__ inline uint32_t transpose(uint32_t pair) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

// Lane l's fragment of the step at this shared-memory address (512-byte aligned): one 16-byte load without conflicts.
__device__ inline void load(weight_tile &to, const uint8_t *step) {
  const uint4 raw = *reinterpret_cast<const uint4 *>(step + (threadIdx.x % 32) * 16);
  to.word[0] = raw.x, to.word[1] = raw.y, to.word[2] = raw.z, to.word[3] = raw.w;
}

// sums += weights x vectors.
__device__ inline void multiply_add(sum_tile &sums, const weight_tile &weights, const vector_tile &vectors) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sums.value[0]), "+f"(sums.value[1]), "+f"(sums.value[2]), "+f"(sums.value[3])
      : "r"(weights.word[0]), "r"(weights.word[1]), "r"(weights.word[2]), "r"(weights.word[3]), "r"(vectors.word[0]),
        "r"(vectors.word[1]));
}

}  // namespace mk::tile
