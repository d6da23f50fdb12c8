// The linear opcodes and REDUCE_ADD of the kernel for prompts, on the device. Equations and waits are those of qkv.cuh, glu.cuh,
// linear_add.cuh, linear_part.cuh, reduce_add.cuh and head.cuh, for every line.
//
// K goes by in chunks of 1,024. For each a warp fetches its part of x, 128 elements of all lines, right into the registers where the products
// take it as B fragments, and multiplies it by every row tile of the instruction; so x is fetched once however many tiles there are. x times
// gain is rounded to bf16. The sums of a row tile, [16, 64 lines] of each warp, change hands in shared memory while the products of the
// next one are under way: warp w adds up those of lines 8 w to 8 w + 7 in the order of K, keeps them in scratch memory until the last
// chunk, and finishes them. All of this depends on the
// shape alone, and columns do not see each other: so a line's bits are the same whoever is beside it.
// Tiles: weight [16 n, 16 k] bf16 through the page ring, sums [16, 64 lines].
#pragma once
#include "instructions/candidate.cuh"
#include "instructions/linear_operands.cuh"
#include "vm/gpu/prompt.cuh"

namespace mk {

// This warp's part of x: [step][line tile] B fragments.
struct line_fragments {
  tile::vector_tile value[PART_STEPS][LINE_TILES];
};

// Values 0, 1 are of row g, 2, 3 of row g + 8; 0, 2 of line 2 t, 1, 3 of line 2 t + 1 of the eight that the warp finishes.
using line_sums = tile::sum_tile;

// Rows of the embedding that the lines' tokens name.
__device__ inline void fetch_token_rows(const prompt_consumer &c, const mk_gpu_buffer &x, uint32_t step, uint32_t steps,
                                        line_fragments &to) {
  uint32_t lane = tile::lane();
  const volatile prompt_state &state = lines_of(c.d);
#pragma unroll
  for (uint32_t i = 0; i < PART_STEPS * LINE_TILES;
       i++) {  // addresses are worked out anew each time: registers are short
    uint32_t s = i / LINE_TILES, n = i % LINE_TILES;
    uint32_t line = n * 8 + lane / 4, row = line < state.count ? state.tokens[line] : 0;
    const uint32_t *words = reinterpret_cast<const uint32_t *>(x.address) +
                            (static_cast<uint64_t>(row / 16) * x.grid_cols + step + s) * 128 +
                            (row % 8 * 4 + lane % 4) * 4 + row % 16 / 8;
    to.value[s][n].word[0] = s < steps ? __ldg(words) : 0;
    to.value[s][n].word[1] = s < steps ? __ldg(words + 2) : 0;
  }
}

// The same of a value: each lane waits for one flag of the warp's steps, then all words are under way together.
__device__ inline void fetch_lines(const prompt_consumer &c, const mk_operand &operand, const mk_gpu_buffer &x,
                                   uint32_t step, uint32_t steps, line_fragments &to) {
  uint32_t lane = tile::lane();
  value_view value(x);
  wait_flags(c.d, operand.buffer, value.flags(x) + step * HALF_FLAGS + lane, lane / HALF_FLAGS < steps);
  const uint4 *from = reinterpret_cast<const uint4 *>(value.words + step * VALUE_STEP_WORDS) + lane;
#pragma unroll
  for (uint32_t s = 0; s < PART_STEPS; s++) {
#pragma unroll
    for (uint32_t n = 0; n < LINE_TILES; n += 2) {
      uint4 words = s < steps ? __ldcg(from + (s * LINE_TILES / 2 + n / 2) * 32) : make_uint4(0, 0, 0, 0);
      to.value[s][n] = {{words.x, words.y}};
      to.value[s][n + 1] = {{words.z, words.w}};
    }
  }
}

// A HEAD that computes nothing waits for x all the same: its candidates tell all SMs what x was computed from, too, and on that rests that nobody
// overwrites what a slower SM still waits for (docs/VERIFIER.md). By the warp that publishes them: looks of more warps keep those SMs
// from their work that x comes from.
__device__ inline void wait_for_input(const prompt_consumer &c, const mk_instruction_word &in, uint32_t steps) {
  const mk_operand &operand = in.parts[LINEAR_X];
  const mk_gpu_buffer &x = device::slot_of(in).buffers[LINEAR_X];
  const uint32_t *flags = value_view(x).flags(x) + operand.col * x.tile_cols / 16 * HALF_FLAGS + tile::lane();
  uint32_t count = steps * HALF_FLAGS;
#pragma unroll 1
  for (uint32_t at = 0; at < count; at += 32) {
    wait_flags(c.d, operand.buffer, flags + at, at + tile::lane() < count);
  }
}

// Multiplies by the gains of this lane's elements, words t and t + 4 of a step; the warp's squares go where all will add them up.
__device__ inline void scale_lines(const prompt_consumer &c, const uint32_t (&gains)[PART_STEPS][2], bool first,
                                   line_fragments &x) {
  uint32_t lane = tile::lane();
  volatile float *squares = prompt_shared()->squares[words_of(c).normed % 2][c.d.warp];
#pragma unroll
  for (uint32_t n = 0; n < LINE_TILES; n++) {
    float sum = 0.0f;
#pragma unroll
    for (uint32_t s = 0; s < PART_STEPS; s++) {
#pragma unroll
      for (uint32_t b = 0; b < 2; b++) {
        uint32_t &word = x.value[s][n].word[b];
        float low = tile::low_bf16(word), high = tile::high_bf16(word);
        sum += low * low;
        sum += high * high;
        word = tile::multiply_bf16(word, gains[s][b]);
      }
    }
    sum = tile::sum_group<4>(sum);
    if (lane % 4 == 0) {
      squares[n * 8 + lane / 4] = first ? sum : squares[n * 8 + lane / 4] + sum;
    }
  }
}

// This warp's part of the chunk whose part begins at `step`, `left` steps of it. The gains are under way while x is waited for.
__device__ inline void fetch_chunk(const prompt_consumer &c, const mk_instruction_word &in, uint32_t step,
                                   uint32_t left, bool first, line_fragments &to) {
  uint32_t lane = tile::lane();
  const mk_operand &operand = in.parts[LINEAR_X];
  const mk_gpu_buffer &x = device::slot_of(in).buffers[LINEAR_X];
  uint32_t x_step = step + operand.col * x.tile_cols / 16, gains[PART_STEPS][2];
  const uint32_t *gain =
      reinterpret_cast<const uint32_t *>(whole_buffer(in, LINEAR_GAIN).address) + step * 8 + lane % 4;
#pragma unroll
  for (uint32_t i = 0; i < PART_STEPS * 2; i++) {
    gains[i / 2][i % 2] = has_norm(in) && i / 2 < left ? __ldg(gain + i * 4) : 0;
  }
  if ((operand.flags & MK_OPERAND_TOKEN_ROW) != 0) {
    fetch_token_rows(c, x, x_step, left, to);
  } else {
    fetch_lines(c, operand, x, x_step, left, to);
  }
  if (has_norm(in)) {
    scale_lines(c, gains, first, to);
  }
}

// 1 / rms of the lines that this warp finishes, once all squares are there.
__device__ inline void put_scales(const prompt_consumer &c, const mk_instruction_word &in) {
  uint32_t line = c.d.warp * 8 + tile::lane() % 8;
  float sum = 0.0f;
#pragma unroll
  for (uint32_t w = 0; w < MK_GPU_CONSUMER_WARPS; w++) {
    sum += prompt_shared()->squares[words_of(c).normed % 2][w][line];
  }
  __syncwarp();
  // Four lanes write the same.
  prompt_shared()->scales[line] =
      rsqrtf(__fdividef(sum, static_cast<float>(param(in, 1))) + __uint_as_float(param(in, 0)));
  __syncwarp();
}

__device__ inline float4 *result_of(uint32_t number) {
  return reinterpret_cast<float4 *>(shared_memory + MK_GPU_ACTIVATION_AT) + number % 2 * (RESULT_FLOATS / 4);
}

// This warp's sums of a row tile's chunk, for those who add them up. What was in that place all have taken: they have told so with the result
// before, which this warp has taken.
__device__ inline void put_sums(const prompt_consumer &c, uint32_t number, const tile::sum_tile (&sums)[LINE_TILES]) {
  uint32_t lane = tile::lane();
  float4 *result = result_of(number);
#pragma unroll
  for (uint32_t n = 0; n < LINE_TILES; n++) {
    result[(c.d.warp * LINE_TILES + n) * 32 + lane] =
        make_float4(sums[n].value[0], sums[n].value[1], sums[n].value[2], sums[n].value[3]);
  }
  __syncwarp();
  if (lane == 0) {
    tile::arrive(c.d.barrier(RESULT_THERE + number % 2));
  }
}

// y += all warps' sums of a result.
__device__ inline void take_sums(const prompt_consumer &c, uint32_t number, line_sums &y) {
  uint32_t lane = tile::lane();
  wait_phase(c.d, RESULT_THERE + number % 2, number / 2 % 2, MK_ACTIVITY_RESULT_FULL, number % 2);
  const float4 *result = result_of(number);
#pragma unroll 4
  for (uint32_t w = 0; w < MK_GPU_CONSUMER_WARPS; w++) {
    float4 sum = result[(w * LINE_TILES + c.d.warp) * 32 + lane];
    y.value[0] += sum.x, y.value[1] += sum.y, y.value[2] += sum.z, y.value[3] += sum.w;
  }
}

// One row tile's chunk times this warp's part of x, `left` steps of it.
__device__ inline void multiply_part(prompt_consumer &c, page_cursor &pages, const line_fragments &x, uint32_t left,
                                     tile::sum_tile (&sums)[LINE_TILES]) {
  page_cursor at = pages;
  at.advance(c.d.warp / PAGE_PARTS);
#pragma unroll
  for (uint32_t n = 0; n < LINE_TILES; n++) {
    tile::zero(sums[n]);
  }
  wait_phase(c.d, PAGE_FULL + at.slot(), at.phase(), MK_ACTIVITY_PAGE_FULL, at.slot());
  const uint8_t *page = c.d.page(at.slot()) + c.d.warp % PAGE_PARTS * (PART_STEPS * 512);
  tile::weight_tile weights[2];
  tile::load(weights[0], page);
#pragma unroll
  for (uint32_t s = 0; s < PART_STEPS; s++) {
    if (s + 1 < PART_STEPS) {
      tile::load(weights[(s + 1) % 2], page + (s + 1) * 512);
    }
    if (s >= left) {
      tile::zero(weights[s % 2]);  // what lies beyond the last step is of an older page
    }
#pragma unroll
    for (uint32_t n = 0; n < LINE_TILES; n++) {
      tile::multiply_add(sums[n], weights[s % 2], x.value[s][n]);
    }
  }
  release_page(c, at.slot(), PAGE_ARRIVALS / PAGE_PARTS);
  pages.advance(CHUNK_PAGES);
}

// The sums of row tile `tile` so far, between chunks. Each lane has its own.
__device__ inline float4 *kept_sums(const prompt_consumer &c, uint32_t tile) {
  return reinterpret_cast<float4 *>(c.d.params.scratch +
                                    static_cast<uint64_t>(blockIdx.x) * c.d.params.scratch_floats) +
         (tile * LINE_TILES + c.d.warp) * 32 + tile::lane();
}

// Both rows of column tile `tile` of the lines' residuals: plain fp32, or the embedding rows of their tokens.
__device__ inline void fetch_residual(const prompt_consumer &c, const mk_operand &operand, uint32_t tile,
                                      line_sums &y) {
  uint32_t lane = tile::lane(), count = lines_of(c.d).count;
  const mk_gpu_buffer &b = c.d.buffer(operand);
  uint32_t column_tile = operand.col + tile, g = lane / 4;
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t line = line_of(c, lane, i);
    y.value[i] = y.value[2 + i] = 0.0f;
    if (line >= count) {
    } else if ((operand.flags & MK_OPERAND_TOKEN_ROW) != 0) {
      uint32_t row = lines_of(c.d).tokens[line];
      const uint16_t *step = reinterpret_cast<const uint16_t *>(b.address) +
                             (static_cast<uint64_t>(row / 16) * b.grid_cols + column_tile) * 256;
      y.value[i] = tile::low_bf16(step[mk_step_offset(row, g)]);
      y.value[2 + i] = tile::low_bf16(step[mk_step_offset(row, g + 8)]);
    } else {
      const float *from =
          reinterpret_cast<const float *>(b.address) + static_cast<uint64_t>(line) * b.cols + column_tile * 16 + g;
      y.value[i] = __ldcg(from);
      y.value[2 + i] = __ldcg(from + 8);
    }
  }
}

// Elements of neighbouring lanes g and g + 1 (g even) as bf16 pairs: the even lane gets those of its line 2 t, the odd one of 2 t + 1.
// That line is line_of(c, lane, g % 2).
__device__ inline uint32_t pair_rows(const prompt_consumer &c, float even_line, float odd_line) {
  uint32_t lane = tile::lane();
  bool odd = (lane / 4 % 2) != 0;
  float other = __shfl_xor_sync(0xffffffffu, odd ? even_line : odd_line, 4);
  return odd ? tile::pack_bf16(other, odd_line) : tile::pack_bf16(even_line, other);
}

// residual_out = y; out = bf16(y).
__device__ inline void finish_residual(const prompt_consumer &c, const mk_operand &to, const mk_operand &out,
                                       uint32_t tile, const line_sums &y) {
  uint32_t lane = tile::lane(), count = lines_of(c.d).count;
  uint32_t column_tile = to.col + tile, cols = c.d.buffer(to).cols, g = lane / 4, line = line_of(c, lane, g);
  uint32_t low = pair_rows(c, y.value[0], y.value[1]), high = pair_rows(c, y.value[2], y.value[3]);
  if (line < count) {
    uint32_t *words = value_view(c.d.buffer(out)).word(line, (out.col + tile) * 8 + g / 2);
    *reinterpret_cast<uint2 *>(words) = make_uint2(low, high);
  }
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    line = line_of(c, lane, i);
    if (line < count) {
      float *plain =
          reinterpret_cast<float *>(c.d.buffer(to).address) + static_cast<uint64_t>(line) * cols + column_tile * 16 + g;
      plain[0] = y.value[i];
      plain[8] = y.value[2 + i];
    }
  }
}

__device__ inline void finish_gated(const prompt_consumer &c, const mk_operand &out, uint32_t tile,
                                    const line_sums &y) {
  uint32_t lane = tile::lane(), count = lines_of(c.d).count;
  float value[2];
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    value[i] = __fdividef(y.value[i], 1.0f + expf(-y.value[i])) * y.value[2 + i];
  }
  uint32_t data = pair_rows(c, value[0], value[1]), line = line_of(c, lane, lane / 4);
  if (line < count) {
    *value_view(c.d.buffer(out)).word(line, (out.col + tile) * 4 + lane / 8) = data;
  }
}

// fp32 words of both rows of row tile `tile`.
__device__ inline void publish_floats(const prompt_consumer &c, const mk_operand &out, uint32_t tile,
                                      const line_sums &y) {
  uint32_t lane = tile::lane(), count = lines_of(c.d).count;
  uint64_t *row = stamped_line(c.d, out) + tile * 16 + lane / 4;
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t line = line_of(c, lane, i);
    if (line < count && publishes(c.d)) {
      uint64_t *to = row + static_cast<uint64_t>(line) * c.d.buffer(out).row_words;
      tile::store_stamped(to, __float_as_uint(y.value[i]), c.d.generation());
      tile::store_stamped(to + 8, __float_as_uint(y.value[2 + i]), c.d.generation());
    }
  }
}

__device__ inline void finish_rotated(const prompt_consumer &c, const mk_instruction_word &in, uint32_t row,
                                      line_sums &y) {
  uint32_t lane = tile::lane();
  uint32_t tile = in.parts[MK_PART_QKV_weight].row + row, tiles_per_head = param(in, MK_PARAM_QKV_head_dim) / 16;
  if (tile < param(in, MK_PARAM_QKV_rope_tiles)) {
    const float *inv_freq = reinterpret_cast<const float *>(whole_buffer(in, MK_WHOLE_QKV_inv_freq).address);
    float frequency = __ldg(inv_freq + tile % tiles_per_head * 8 + lane / 4);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {  // as prepare_QKV does
      float angle = static_cast<float>(lines_of(c.d).first + line_of(c, lane, i)) * frequency, sine, cosine;
      double turns = static_cast<double>(angle) * 0.15915494309189533577;
      float reduced = static_cast<float>((turns - rint(turns)) * 6.283185307179586476925);
      __sincosf(reduced, &sine, &cosine);
      float a = y.value[i], b = y.value[2 + i];
      y.value[i] = a * cosine - b * sine;
      y.value[2 + i] = b * cosine + a * sine;
    }
  }
  publish_floats(c, in.parts[MK_PART_QKV_out], row, y);
}

// Logits of the line that chooses, the last one; the best of them that each lane of its warp has seen lies in shared memory.
__device__ inline void finish_logits(const prompt_consumer &c, const mk_instruction_word &in, uint32_t tile,
                                     const line_sums &y) {
  uint32_t lane = tile::lane();
  const mk_operand &logits = in.parts[MK_PART_HEAD_logits];
  uint32_t vocab = param(in, MK_PARAM_HEAD_vocab), chooser = lines_of(c.d).count - 1;
  volatile float &best = prompt_shared()->best[lane];
  volatile uint32_t &index = prompt_shared()->index[lane];
  if (c.d.warp != chooser / 8) {
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    uint32_t row = (in.parts[MK_PART_HEAD_weight].row + tile) * 16 + lane / 4 + i / 2 * 8;
    if (line_of(c, lane, i) == chooser && row < vocab) {
      reinterpret_cast<float *>(c.d.buffer(logits).address)[static_cast<uint64_t>(chooser) * vocab + row] = y.value[i];
      if (candidate_above(y.value[i], row, best, index)) {
        best = y.value[i];
        index = row;
      }
    }
  }
}

__device__ inline void begin_HEAD(const prompt_consumer &c) {
  if (c.d.warp == (lines_of(c.d).count - 1) / 8) {
    prompt_shared()->best[tile::lane()] = -INFINITY;
    prompt_shared()->index[tile::lane()] = MK_CANDIDATE_NONE;
  }
}

// The candidates of all active lines, behind all that this SM has done in this step: of the one that chooses, and empty ones.
__device__ inline void end_HEAD(const prompt_consumer &c, const mk_instruction_word &in) {
  const volatile prompt_state &state = lines_of(c.d);
  consumers_meet();
  if (c.d.warp != 0 || !publishes(c.d)) {
    return;
  }
  uint32_t stop = blockIdx.x == 0 ? tile::load_system(c.d.params.stop) : 0;
  float best = prompt_shared()->best[tile::lane()];
  uint32_t index = prompt_shared()->index[tile::lane()];
  best_of_lanes(best, index);
  uint64_t *words = stamped_line(c.d, in.parts[MK_PART_HEAD_candidate]);
  for (uint32_t line = tile::lane(); line < state.count; line += 32) {
    bool chooses = state.chooses != 0 && line + 1 == state.count;
    tile::store_stamped_pair(words + line * 2, __float_as_uint(chooses ? best : -INFINITY),
                             (chooses ? index : MK_CANDIDATE_NONE) | (stop != 0 ? MK_CANDIDATE_STOP : 0u),
                             c.d.generation());
  }
}

// How an opcode ends a row tile, of which it has the sums of all of K: finish_X, or with logits.
__device__ inline void finish_QKV(const prompt_consumer &c, const mk_instruction_word &in, uint32_t tile,
                                  line_sums &y) {
  finish_rotated(c, in, tile, y);
}
__device__ inline void finish_GLU(const prompt_consumer &c, const mk_instruction_word &in, uint32_t tile,
                                  line_sums &y) {
  finish_gated(c, in.parts[MK_PART_GLU_out], tile, y);
}
__device__ inline void finish_LINEAR_PART(const prompt_consumer &c, const mk_instruction_word &in, uint32_t tile,
                                          line_sums &y) {
  publish_floats(c, in.parts[MK_PART_LINEAR_PART_out], tile, y);
}
__device__ inline void finish_LINEAR_ADD(const prompt_consumer &c, const mk_instruction_word &in, uint32_t tile,
                                         line_sums &y) {
  finish_residual(c, in.parts[MK_PART_LINEAR_ADD_residual_out], in.parts[MK_PART_LINEAR_ADD_out], tile, y);
}

template <typename role>
__device__ inline void finish_sums(const role &c, const mk_instruction_word &in, uint32_t tile, line_sums &y) {
#define MK_OPCODE(NAME, text, state, semantics)                                                                      \
  static_assert(!is_linear(MK_OP_##NAME) || places_of(MK_OP_##NAME).logits || MK_HAS(finish_##NAME(c, in, tile, y)), \
                "no finish_" #NAME);
#include "vm/program/opcodes.def"
  switch (in.opcode) {
#define MK_OPCODE(NAME, text, state, semantics)                      \
  case case_of(MK_HAS(finish_##NAME(c, in, tile, y)), MK_OP_##NAME): \
    if constexpr (MK_HAS(finish_##NAME(c, in, tile, y))) {           \
      finish_##NAME(c, in, tile, y);                                 \
    }                                                                \
    break;
#include "vm/program/opcodes.def"
    default:
      finish_logits(c, in, tile, y);
      break;
  }
}

// Takes the sums of a chunk of row tile `tile`, the `last` one of its chunks or not.
__device__ inline void take_tile(const prompt_consumer &c, const mk_instruction_word &in, uint32_t rows, uint32_t tile,
                                 bool last, uint32_t number, line_sums &y) {
  uint32_t lane = tile::lane();
  take_sums(c, number, y);
  if (!last) {
    if (rows > 1) {
      __stcg(kept_sums(c, tile), make_float4(y.value[0], y.value[1], y.value[2], y.value[3]));
    }
    return;
  }
  if (has_norm(in)) {
    if (tile == 0) {
      put_scales(c, in);
    }
    float even = prompt_shared()->scales[line_of(c, lane, 0)], odd = prompt_shared()->scales[line_of(c, lane, 1)];
    y.value[0] *= even, y.value[1] *= odd, y.value[2] *= even, y.value[3] *= odd;
  }
  finish_sums(c, in, tile, y);
}

// What came before the sums that are owed: the residual, or the chunks so far. Each lane's, in shared memory since registers are short.
__device__ inline float4 &owed_of(const prompt_consumer &c) {
  return reinterpret_cast<float4 *>(shared_memory + MK_GPU_PROMPT_OWED_AT)[c.d.warp * 32 + tile::lane()];
}
__device__ inline void put_owed(const prompt_consumer &c, const line_sums &y) {
  owed_of(c) = make_float4(y.value[0], y.value[1], y.value[2], y.value[3]);
}
__device__ inline line_sums get_owed(const prompt_consumer &c) {
  float4 y = owed_of(c);
  return {{y.x, y.y, y.z, y.w}};
}

// Sums that have been put are taken behind the products of the next row tile, so that one warp's products go on beside another's sums.
__device__ __forceinline__ void consume_linear(prompt_consumer &c, const mk_instruction_word &in) {
  const mk_operand &from = in.parts[LINEAR_X], &weight = in.parts[LINEAR_WEIGHT];
  uint32_t steps = from.cols * c.d.buffer(from).tile_cols / 16;
  // The row tiles of a HEAD are computed where a line chooses.
  uint32_t rows = in.opcode == MK_OP_HEAD && lines_of(c.d).chooses == 0 ? 0 : weight.rows;
  uint32_t number = words_of(c).results;
  page_cursor pages{words_of(c).pages};
  line_fragments x;
  if (in.opcode == MK_OP_HEAD) {
    begin_HEAD(c);
    if (rows == 0 && c.d.warp == 0) {
      wait_for_input(c, in, steps);
    }
  }
#pragma unroll 1
  for (uint32_t chunk = 0; chunk < steps && rows != 0; chunk += CHUNK_STEPS) {
    uint32_t step = chunk + c.d.warp * PART_STEPS;
    uint32_t left = step < steps ? min(steps - step, static_cast<uint32_t>(PART_STEPS)) : 0;
    look_up_epoch(c);
    fetch_chunk(c, in, step, left, chunk == 0, x);
#pragma unroll 1
    for (uint32_t tile = 0; tile < rows; tile++) {
      line_sums y;
      tile::zero(y);
      look_up_epoch(c);
      if (chunk != 0 && rows > 1) {
        float4 kept = __ldcg(kept_sums(c, tile));
        y.value[0] = kept.x, y.value[1] = kept.y, y.value[2] = kept.z, y.value[3] = kept.w;
      } else if (chunk == 0 && in.opcode == MK_OP_LINEAR_ADD) {
        fetch_residual(c, in.parts[MK_PART_LINEAR_ADD_residual_in], tile, y);
      }
      tile::sum_tile sums[LINE_TILES];
      multiply_part(c, pages, x, left, sums);
      look_up_epoch(c);
      if (chunk + tile != 0) {
        line_sums before = get_owed(c);
        take_tile(c, in, rows, (tile == 0 ? rows : tile) - 1, tile != 0 && chunk + CHUNK_STEPS >= steps, number - 1,
                  before);
        if (chunk != 0 && rows == 1) {  // of one row tile the chunks follow each other
          y = before;
        }
      }
      put_sums(c, number++, sums);
      put_owed(c, y);
    }
  }
  look_up_epoch(c);
  if (rows != 0) {
    line_sums before = get_owed(c);
    take_tile(c, in, rows, rows - 1, true, number - 1, before);
  }
  put_word(words_of(c).results, number);
  put_word(words_of(c).pages, pages.at);
  if (has_norm(in)) {
    put_word(words_of(c).normed, words_of(c).normed + 1);
  }
  if (in.opcode == MK_OP_HEAD) {
    end_HEAD(c, in);
  } else if (in.opcode == MK_OP_GLU) {
    const mk_operand &out = in.parts[MK_PART_GLU_out];
    raise_flags(c, c.d.buffer(out), out.col, rows);
  } else if (in.opcode == MK_OP_LINEAR_ADD) {
    const mk_operand &out = in.parts[MK_PART_LINEAR_ADD_out];
    raise_flags(c, c.d.buffer(out), out.col * 2, rows * 2);
  }
}

// Parts are added in order, two of them under way at a time.
__device__ inline void consume_REDUCE_ADD(prompt_consumer &c, const mk_instruction_word &in) {
  uint32_t lane = tile::lane(), count = lines_of(c.d).count;
  const mk_operand &parts = in.parts[MK_PART_REDUCE_ADD_parts], &out = in.parts[MK_PART_REDUCE_ADD_out];
  const mk_gpu_buffer &b = c.d.buffer(parts);
  const uint64_t *words = stamped_line(c.d, parts) + lane / 4;
#pragma unroll 1
  for (uint32_t tile = 0; tile < parts.cols; tile++) {
    line_sums residual, y;
    fetch_residual(c, in.parts[MK_PART_REDUCE_ADD_residual_in], tile, residual);
    tile::zero(y);
#pragma unroll 1
    for (uint32_t part = 0; part < parts.rows; part += 2) {
      uint32_t data[8];
      auto at = [&](uint32_t i) {
        uint64_t line = static_cast<uint64_t>(part + i / 4) * MK_PROMPT_ROWS + line_of(c, lane, i);
        return words + line * b.row_words + tile * 16 + i / 2 % 2 * 8;
      };
      auto has = [&](uint32_t i) { return part + i / 4 < parts.rows && line_of(c, lane, i) < count; };
      wait_line_words<8>(c.d, parts.buffer, at, has, data);
#pragma unroll
      for (uint32_t i = 0; i < 8; i++) {
        y.value[i % 4] += __uint_as_float(data[i]);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      y.value[i] += residual.value[i];
    }
    finish_residual(c, in.parts[MK_PART_REDUCE_ADD_residual_out], out, tile, y);
  }
  raise_flags(c, c.d.buffer(out), out.col * 2, parts.cols * 2);
}

}  // namespace mk
