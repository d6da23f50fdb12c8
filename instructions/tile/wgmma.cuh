// Products of a warpgroup: 64 rows by N columns, bf16 in, fp32 sums in registers, operands in shared memory or, of the
// left one, in registers. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
//
// Shared operands are panels: rows of 128 bytes (64 bf16), 16-byte units of row r exchanged by r % 8 (128-byte swizzle,
// as tensor copies write them), 1024-byte aligned. Thread t of warp w of the group holds of the sums rows 16 w + t / 4
// (values 4 j, 4 j + 1) and that + 8 (4 j + 2, 4 j + 3), columns 8 j + 2 (t % 4) and the next one.
//
// Products are asynchronous: between products_begin and products_wait<0> nobody touches sums or the registers of a left
// operand.
#pragma once
#include <cstdint>

#include "instructions/tile/barrier.cuh"
#include "instructions/tile/fragment.cuh"
#include "instructions/tile/warp.cuh"

namespace mk::tile {

// Names a panel by its shared-memory address, the same in all lanes; `stride`: bytes from one panel to the next, where
// an operand is several. The upper half of the name is always the same (eight rows are 1024 bytes; swizzled), so it is
// not kept: names are computed while products are issued, and there is little time for it.
using panel = uint32_t;
__device__ inline panel panel_of(uint32_t address, uint32_t stride) {
  return uniform((address & 0x3ffff) >> 4 | stride >> 4 << 16);
}
// The upper half of the name of a right operand whose eights of rows lie so far apart.
__device__ constexpr uint32_t rows_apart(uint32_t bytes) { return 0x40000000 | bytes >> 4; }
constexpr uint32_t SWIZZLED = rows_apart(1024);
// The same panel `bytes` further on (a multiple of 16).
__device__ inline panel panel_at(panel p, uint32_t bytes) { return p + (bytes >> 4); }

// Tells the compiler that these registers change here: it neither moves nor keeps copies of them across.
template <uint32_t count>
__device__ inline void pin(float (&values)[count]) {
#pragma unroll
  for (uint32_t i = 0; i < count; i++) {
    asm volatile("" : "+f"(values[i])::"memory");
  }
}

template <uint32_t count>
__device__ inline void pin(uint32_t (&values)[count]) {
#pragma unroll
  for (uint32_t i = 0; i < count; i++) {
    asm volatile("" : "+r"(values[i])::"memory");
  }
}

__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// At most `pending` groups are still under way.
template <uint32_t pending>
__device__ inline void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// The accumulators of a product, as an instruction names them and as its operands.
// clang-format off
#define MK_NAMES_16 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define MK_NAMES_32 MK_NAMES_16 ", " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MK_NAMES_64 MK_NAMES_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MK_NAMES_128 MK_NAMES_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define MK_SUMS_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define MK_SUMS_16(i) MK_SUMS_4(i), MK_SUMS_4(i + 4), MK_SUMS_4(i + 8), MK_SUMS_4(i + 12)
#define MK_SUMS_32(i) MK_SUMS_16(i), MK_SUMS_16(i + 16)
#define MK_SUMS_64 MK_SUMS_32(0), MK_SUMS_32(32)
#define MK_SUMS_128 MK_SUMS_32(0), MK_SUMS_32(32), MK_SUMS_32(64), MK_SUMS_32(96)
// clang-format on

// sums (+)= left [64 rows x 16] times the transpose of right [64 rows x 16].
template <bool add>
__device__ inline void multiply_transposed(float (&sums)[32], panel left, panel right) {
  asm volatile(
      "{\n .reg .pred add;\n .reg .b64 left, right;\n mov.b64 left, {%32, 0x40000040};\n mov.b64 right, {%33, "
      "0x40000040};\n setp.ne.s32 add, %34, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" MK_NAMES_32
      "}, "
      "left, right, add, 1, 1, 0, 0;\n}"
      : MK_SUMS_32(0)
      : "r"(left), "r"(right), "n"(add ? 1 : 0));
}

// sums (+)= left [64 x 16] times the transpose of right [128 rows x 16], whose name has this upper half.
template <bool add, uint32_t upper = SWIZZLED>
__device__ inline void multiply_transposed(float (&sums)[64], const uint32_t (&left)[4], panel right) {
  asm volatile(
      "{\n .reg .pred add;\n .reg .b64 right;\n mov.b64 right, {%68, %70};\n setp.ne.s32 add, %69, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" MK_NAMES_64
      "}, "
      "{%64, %65, %66, %67}, right, add, 1, 1, 0;\n}"
      : MK_SUMS_64
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right), "n"(add ? 1 : 0), "n"(upper));
}

// The same of 64 rows of it.
template <bool add, uint32_t upper = SWIZZLED>
__device__ inline void multiply_transposed(float (&sums)[32], const uint32_t (&left)[4], panel right) {
  asm volatile(
      "{\n .reg .pred add;\n .reg .b64 right;\n mov.b64 right, {%36, %38};\n setp.ne.s32 add, %37, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" MK_NAMES_32
      "}, "
      "{%32, %33, %34, %35}, right, add, 1, 1, 0;\n}"
      : MK_SUMS_32(0)
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right), "n"(add ? 1 : 0), "n"(upper));
}

// The same of 32 rows of it.
template <bool add, uint32_t upper = SWIZZLED>
__device__ inline void multiply_transposed(float (&sums)[16], const uint32_t (&left)[4], panel right) {
  asm volatile(
      "{\n .reg .pred add;\n .reg .b64 right;\n mov.b64 right, {%20, %22};\n setp.ne.s32 add, %21, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" MK_NAMES_16
      "}, "
      "{%16, %17, %18, %19}, right, add, 1, 1, 0;\n}"
      : MK_SUMS_16(0)
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right), "n"(add ? 1 : 0), "n"(upper));
}

// sums (+)= left [64 x 16] times right [16 rows x 256], four panels side by side.
template <bool add>
__device__ inline void multiply_by_rows(float (&sums)[128], const uint32_t (&left)[4], panel right) {
  asm volatile(
      "{\n .reg .pred add;\n .reg .b64 right;\n mov.b64 right, {%132, 0x40000040};\n setp.ne.s32 add, %133, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" MK_NAMES_128
      "}, "
      "{%128, %129, %130, %131}, right, add, 1, 1, 1;\n}"
      : MK_SUMS_128
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right), "n"(add ? 1 : 0));
}

// The same with left in shared memory.
template <bool add>
__device__ inline void multiply_by_rows(float (&sums)[128], panel left, panel right) {
  asm volatile(
      "{\n .reg .pred add;\n .reg .b64 left, right;\n mov.b64 left, {%128, 0x40000040};\n mov.b64 right, {%129, "
      "0x40000040};\n setp.ne.s32 add, %130, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" MK_NAMES_128
      "}, "
      "left, right, add, 1, 1, 0, 1;\n}"
      : MK_SUMS_128
      : "r"(left), "r"(right), "n"(add ? 1 : 0));
}

// Stores the left operand of such a product, 16 rows of a warp by 16 columns, as panels want it: lane l names where the
// columns of its half l / 16, 16 bytes, of row l % 16 go. PTX ISA, "stmatrix".
__device__ inline void store_left(uint32_t address, const uint32_t (&left)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(left[0]),
               "r"(left[1]), "r"(left[2]), "r"(left[3])
               : "memory");
}

// Where a lane stores of a tile of sixteen rows whose first one is row `row` of a panel (store_left), in bytes from the
// panel's first: in its first columns; in others it is that, exclusive-or with 16 times the unit of 16 bytes. Only the
// weights of MLA go into panels so; the swizzle is the library's.
__device__ inline uint32_t place_in_panel(uint32_t row, uint32_t lane) {
  return (row + lane % 16) * 128 + (lane / 16 ^ lane % 8) * 16;
}

// Weight tiles (fragment.cuh) become panels, row by row. Where a lane stores of a tile (store_left) whose upper and
// lower eight rows are `rows_bytes` apart: in the first columns of panels at `to`; in others it is that, exclusive-or
// with 16 times the unit of 16 bytes.
__device__ inline uint32_t place_in_panels(uint32_t to, uint32_t rows_bytes) {
  uint32_t at = lane();
  return to + at / 8 % 2 * rows_bytes + at % 8 * 128 + (at / 16 ^ at % 8) * 16;
}

// Sixteen rows of tiles side by side become panels of 64 columns, one after the other: first those of the upper eight
// rows, then those of the lower ones. place: place_in_panels, of rows `tiles` x 256 bytes apart; i: which tile.
__device__ inline void put_in_strip(uint32_t place, uint32_t i, const weight_tile &tile) {
  store_left((place ^ i % 4 * 32) + i / 4 * 1024, tile.word);
}
// The same in the place where the tiles are.
template <uint32_t tiles>
__device__ inline void strip_to_panels(uint8_t *from) {
  weight_tile tile[tiles];
#pragma unroll
  for (uint32_t i = 0; i < tiles; i++) {
    load(tile[i], from + i * 512);
  }
  uint32_t to = place_in_panels(shared_address(from), tiles * 256);
  __syncwarp();  // all of them are in registers
#pragma unroll
  for (uint32_t i = 0; i < tiles; i++) {
    put_in_strip(to, i, tile[i]);
  }
}

// Zeros from the column `columns` of the tile at `from` on, for the loads of the same warp.
__device__ inline void clear_columns(uint8_t *from, uint32_t columns) {
  weight_tile tile;
  load(tile, from);
#pragma unroll
  for (uint32_t w = 0; w < 4; w++) {
    uint32_t column = lane() % 4 * 2 + w / 2 * 8;
    tile.word[w] &= column >= columns ? 0 : column + 1 == columns ? 0xffffu : 0xffffffffu;
  }
  *reinterpret_cast<uint4 *>(from + lane() * 16) = make_uint4(tile.word[0], tile.word[1], tile.word[2], tile.word[3]);
}

// Panels of 32 rows by 64 columns, of eight tiles: two of the first sixteen columns, and so on. Groups of eight rows
// are `stride` bytes apart. place: place_in_panels, of rows so far apart.
template <uint32_t stride>
__device__ inline void put_in_square(uint32_t place, uint32_t i, const weight_tile &tile) {
  store_left((place ^ i / 2 * 32) + i % 2 * 2 * stride, tile.word);
}
// The same in the place where the tiles are: pairs of the same columns side by side, the others `stride` bytes apart;
// where each pair was there is then a group of eight rows. Columns from `columns` on, a multiple of 16, become zeros.
template <uint32_t stride>
__device__ inline void square_to_panels(uint8_t *from, uint32_t columns) {
  weight_tile tile[8];
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    if (i / 2 * 16 < columns) {
      load(tile[i], from + i / 2 * stride + i % 2 * 512);
    } else {
      zero(tile[i]);
    }
  }
  uint32_t to = place_in_panels(shared_address(from), stride);
  __syncwarp();  // all of them are in registers
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    put_in_square<stride>(to, i, tile[i]);
  }
}
// Of `squares` such squares side by side, taken as one operand whose groups of eight rows are 1024 bytes apart: which
// group of eight rows is the n-th one.
template <uint32_t squares>
__device__ constexpr uint32_t rows_in_squares(uint32_t n) {
  return n % squares * 4 + n / squares;
}

#undef MK_NAMES_16
#undef MK_NAMES_32
#undef MK_NAMES_64
#undef MK_NAMES_128
#undef MK_SUMS_4
#undef MK_SUMS_16
#undef MK_SUMS_32
#undef MK_SUMS_64
#undef MK_SUMS_128

}  // namespace mk::tile
