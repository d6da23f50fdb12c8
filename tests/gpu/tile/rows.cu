// instructions/tile/rows.cuh: rows of a warpgroup's sums, step by step as attention takes them; all values are such
// that nothing is rounded, but where rounding is what is asked for.
#include "instructions/tile/rows.cuh"
#include "tests/gpu/tile/tile_test.cuh"

using namespace mk;

// A thread's values of a matrix [64][columns], and back.
template <uint32_t count, typename function>
__device__ inline void each_place(float (&sums)[count], float *matrix, function f) {
  uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (uint32_t i = 0; i < count; i++) {
    f(sums[i], matrix[(row + i / 2 % 2 * 8) * (count * 2) + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2]);
  }
}

// in: sums [64][64], factors [64]; `first`: number of the first of the columns 32 to 63, whose rows have numbers from
// 100 on. out: of these columns what is left of [64][32], its powers [64][32] below the largest one, what rows have:
// the largest [64], the sum [64]; then all sums times factors, and added to that the same times twice the factors
// [64][64].
extern "C" __global__ void __launch_bounds__(128) mk_tile_rows(const mk_tile_params params) {
  float *in = reinterpret_cast<float *>(params.in), *out = reinterpret_cast<float *>(params.out);
  uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  float sums[32], all[32], top[2], total[2], factors[2] = {in[4096 + row], in[4096 + row + 8]};
  auto get = [](float &value, float &place) { value = place; };
  auto put = [](float &value, float &place) { place = value; };
  each_place(sums, in, get);
  each_place(all, in, get);
  float(&part)[16] = tile::columns_32<1>(sums);
  tile::hide_later(part, params.first, 100 + threadIdx.x / 32 * 16);
  each_place(part, out, put);
  tile::row_max(top, part, -12.0f);
  tile::exp2_below(part, top);
  each_place(part, out + 2048, put);
  uint32_t left[2][4];
  tile::to_left(left, part);
  tile::row_sum(total, left);
  for (uint32_t h = 0; h < 2; h++) {
    out[4096 + row + h * 8] = top[h];
    out[4160 + row + h * 8] = total[h];
  }
  each_place(sums, in, get);
  tile::multiply_rows(all, factors);
  factors[0] *= 2, factors[1] *= 2;
  tile::add_rows(all, sums, factors);
  each_place(all, out + 4224, put);
  test::finish(params, true);
}

// in [64][64] as a matrix of rows of 80, of which `count` are there: taken as left operands times `first`, and stored,
// times 3, as bf16 [64][80] where rows are there, in the order of two squares. out: the left operands [64][64], then
// that.
extern "C" __global__ void __launch_bounds__(128) mk_tile_rows_memory(const mk_tile_params params) {
  const float *in = reinterpret_cast<const float *>(params.in);
  uint32_t *out = reinterpret_cast<uint32_t *>(params.out), left[4][4], before = threadIdx.x / 32 * 16;
  uint32_t rows = params.count > before ? params.count - before : 0, row = before + threadIdx.x % 32 / 4;
  float sums[32];
  const float factors[2] = {3.0f, 3.0f};
  tile::load_left(left, in + before * 80, 80, rows, static_cast<float>(params.first));
#pragma unroll
  for (uint32_t w = 0; w < 16; w++) {
    out[(row + w % 2 * 8) * 32 + w / 2 * 4 + threadIdx.x % 4] = left[w / 4][w % 4];
    sums[w * 2] = tile::low_bf16(left[w / 4][w % 4]);
    sums[w * 2 + 1] = tile::high_bf16(left[w / 4][w % 4]);
  }
  tile::store_rows<2>(reinterpret_cast<uint16_t *>(out + 2048) + before * 80, 80, rows, sums, factors);
  test::finish(params, true);
}
