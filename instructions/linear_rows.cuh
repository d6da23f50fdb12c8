// The linear opcodes and REDUCE_ADD on the device, with several rows per step: what the storers make of a row tile's
// sums, and the consumer of REDUCE_ADD. (The consumer of products is in vm/gpu/rows_consumer.cuh.) Equations and waits
// are those of qkv.cuh, glu.cuh, linear_part.cuh, reduce_add.cuh and head.cuh, for every line.
// Tiles: weight [16 n, 16 k] bf16 through the page ring; the sums of a row tile are [16 rows, 16 lines].
#pragma once
#include "instructions/glu.cuh"
#include "instructions/head.cuh"
#include "instructions/linear_part.cuh"
#include "instructions/norm_add.cuh"
#include "instructions/qkv.cuh"
#include "vm/gpu/rows_consumer.cuh"
#include "vm/gpu/rows_storer.cuh"

namespace mk {

// Consumer warp p fetches part p of each row tile and hands it to the storers as if it were this warp's sums. So the
// storers add parts as they add chains.
__device__ inline void consume_REDUCE_ADD(rows_consumer &c, const mk_instruction_word &in) {
  const mk_operand &parts = in.parts[MK_PART_REDUCE_ADD_parts];
  const mk_gpu_buffer &b = c.d.buffer(parts);
  uint32_t rows = c.d.params.rows, active = rows_of(c.d).active, g = tile::lane_row(c.lane);
  const uint64_t *part = tile::global<const uint64_t>(b.address) +
                         static_cast<uint64_t>(parts.row + c.warp) * rows * b.row_words + parts.col * 16;
  const float squares[LINE_TILES] = {0.0f, 0.0f};
#pragma unroll 1
  for (uint32_t tile = 0; tile < parts.cols; tile++) {
    tile::sum_tile sums[LINE_TILES];
    tile::zero(sums[0]);
    tile::zero(sums[1]);
    if (c.warp < parts.rows) {
      // A lane fetches the words of the sums that it holds: rows g and g + 8 of its lines.
      uint32_t words[8];
      auto at = [&](uint32_t i) {
        return part + line_of(c.lane, i / 4, i) * b.row_words + tile * 16 + g + i / 2 % 2 * 8;
      };
      auto has = [&](uint32_t i) { return (active >> line_of(c.lane, i / 4, i) & 1) != 0; };
      wait_line_words<8>(c.d, parts.buffer, at, has, words);
#pragma unroll
      for (uint32_t i = 0; i < 8; i++) {
        sums[i / 4].value[i % 4] = __uint_as_float(words[i]);
      }
    }
    put_sums(c, sums, squares);
  }
}

__device__ inline lines_store begin_lines(const mk_operand &weight) {
  return {weight.rows, (weight.cols + CHUNK_STEPS - 1u) / CHUNK_STEPS};
}

__device__ inline lines_store begin_rows(const rows_storer &s, const mk_instruction_word &in) {
  if (in.opcode == only<&opcode_row::adds_parts>) {
    return {in.parts[MK_PART_REDUCE_ADD_residual_out].cols, 1};
  }
  if (MK_GPU_FAMILIES && in.opcode == only<&opcode_row::adds_norm>) {
    return {in.parts[MK_PART_NORM_ADD_residual_out].cols, norm_rounds(in)};
  }
  lines_store r = begin_lines(in.parts[LINEAR_WEIGHT]);
  if (in.opcode == only<&opcode_row::logits>) {
    rows_shared()->stop = blockIdx.x == 0 ? tile::load_system(s.d.params.stop) : 0;
    if constexpr (MAKES_CANDIDATES) {
#pragma unroll
      for (uint32_t i = 0; i < 2; i++) {
        lane_word(s, i) = -INFINITY;
        lane_word(s, 2 + i) = __uint_as_float(MK_CANDIDATE_NONE);
      }
    }
    r.rows = rows_to_do(s.d, in, in.parts[MK_PART_HEAD_weight]);
    if (r.rows == 0) {  // the consumers hand over one empty result all the same
      r.rows = r.chunks = 1;
    }
  }
  return r;
}

// Where a value or a plain vector begins.
template <typename word>
__device__ inline word *words_of(const rows_storer &s, const mk_operand &operand) {
  return tile::global<word>(s.d.buffer(operand).address);
}

// The angle by which each position turns row g of row tile `row`; 0 where nothing is rotated.
__device__ inline float frequency_of(const rows_storer &s, const mk_instruction_word &in, uint32_t row) {
  uint32_t tile = in.parts[MK_PART_QKV_weight].row + row, tiles_per_head = param(in, MK_PARAM_QKV_head_dim) / 16;
  bool rotates = tile < param(in, MK_PARAM_QKV_rope_tiles);
  const float *inv_freq = tile::global<const float>(whole_buffer(in, MK_WHOLE_QKV_inv_freq).address);
  return rotates ? __ldg(inv_freq + tile % tiles_per_head * 8 + tile::lane_row(s.lane)) : 0.0f;
}

// The cosines and sines of row g's angle at the lines' positions; 1 and 0 where nothing is rotated.
__device__ inline void prepare_angles(const rows_storer &s, float frequency) {
#pragma unroll 1
  for (uint32_t i = 0; i < 2; i++) {  // as prepare_QKV does
    angle line = angle_of(rows_of(s.d).rows[line_of(s, i)].position, frequency);
    lane_word(s, i) = line.cosine;
    lane_word(s, 2 + i) = line.sine;
  }
}

// Fetches rows g and g + 8 of column tile `tile` of the lines' residuals to their place in shared memory, unless they
// are there already. In memory residuals are plain fp32, or else the embedding rows of the lines' tokens.
__device__ inline void prepare_residual(const rows_storer &s, const mk_operand &operand, uint32_t tile) {
  const mk_gpu_buffer &b = s.d.buffer(operand);
  uint32_t column_tile = operand.col + tile, g = tile::lane_row(s.lane);
  if (residual_tag(s, column_tile) == tag_of(operand, column_tile)) {
    return;
  }
  float value[4];
  bool token_row = (operand.flags & MK_OPERAND_TOKEN_ROW) != 0;
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t line = line_of(s, i);
    float first = 0.0f, second = 0.0f;
    if (!is_active(s, line)) {
    } else if (token_row) {
      uint32_t row = rows_of(s.d).rows[line].token;
      const uint16_t *step =
          tile::global<const uint16_t>(b.address) + (static_cast<uint64_t>(row / 16) * b.grid_cols + column_tile) * 256;
      first = tile::low_bf16(step[mk_step_offset(row, g)]);
      second = tile::low_bf16(step[mk_step_offset(row, g + 8)]);
    } else {
      const float *from =
          tile::global<const float>(b.address) + static_cast<uint64_t>(line) * b.cols + column_tile * 16 + g;
      first = __ldcg(from);
      second = __ldcg(from + 8);
    }
    value[i] = first;
    value[2 + i] = second;
  }
  *residuals(s, column_tile) = make_float4(value[0], value[1], value[2], value[3]);
}

// Stores one word of a value, or two, to the copies of all ranks that read them.
__device__ inline void put_words(uint32_t readers, uint32_t *words, bool one, uint32_t low, uint32_t high) {
  to_readers(readers, words, [=](uint32_t *to) {
    if (one) {
      tile::store_relaxed(to, low);
    } else {
      tile::store_relaxed_pair(to, low, high);
    }
  });
}

// Where this lane writes what it has of row tile `tile` of a value, one word of a gated value and two of other values;
// nullptr where the lane's line is not active. A value has two halves, which take turns from step to step: the same
// words of the other half, which the next step writes, are emptied here. This is called before the tile's sums are
// there, since all work after the sums delays the instructions that wait for the value.
__device__ inline uint32_t *prepare_value(const rows_storer &s, const mk_operand &out, uint32_t tile, bool gated) {
  const mk_gpu_buffer &b = s.d.buffer(out);
  uint32_t line = paired_line(s), pair = (out.col + tile) * (gated ? 4 : 8) + tile::group_of_lane<8>(s.lane);
  uint32_t *next = value_view(b, s.d.generation() + 1).word(line, pair);
  if constexpr (MK_GPU_RANKS) {
    put_words(readers_of(out), next, gated, EMPTY_WORD, EMPTY_WORD);
  } else if (gated) {
    tile::store_relaxed(next, EMPTY_WORD);
  } else {
    tile::store_relaxed_pair(next, EMPTY_WORD, EMPTY_WORD);
  }
  return is_active(s, line) && publishes(s.d) ? value_view(b, s.d.generation()).word(line, pair, has_few_lines(s.d))
                                              : nullptr;
}

// What has become of a residual: where the next addition looks for it, and to memory.
__device__ inline void keep_residual(const rows_storer &s, const mk_operand &to, uint32_t column_tile,
                                     const line_sums &y) {
  *residuals(s, column_tile) = make_float4(y.value[0], y.value[1], y.value[2], y.value[3]);
  residual_tag(s, column_tile) = tag_of(to, column_tile);
  uint32_t cols = s.d.buffer(to).cols, g = tile::lane_row(s.lane);
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t line = line_of(s, i);
    if (is_active(s, line)) {
      float *plain = words_of<float>(s, to) + static_cast<uint64_t>(line) * cols + column_tile * 16 + g;
      plain[0] = y.value[i];
      plain[8] = y.value[2 + i];
    }
  }
}

// y = residual_in + sum; residual_out = y; out = bf16(y), to `words`. operands: residual_out and out.
__device__ inline void finish_residual(const rows_storer &s, const mk_operand *operands, uint32_t *words, uint32_t tile,
                                       line_sums &y) {
  const mk_operand &to = operands[0];
  uint32_t column_tile = to.col + tile;
  float4 sum = *residuals(s, column_tile);
  y = {{sum.x + y.value[0], sum.y + y.value[1], sum.z + y.value[2], sum.w + y.value[3]}};
  uint32_t low = pair_rows(s, y.value[0], y.value[1]), high = pair_rows(s, y.value[2], y.value[3]);
  if (words == nullptr) {
  } else if constexpr (MK_GPU_RANKS) {
    put_words(readers_of(operands[1]), words, false, low, high);
  } else {
    tile::store_relaxed_pair(words, low, high);
  }
  keep_residual(s, to, column_tile, y);
}

__device__ inline void finish_gated(const rows_storer &s, const mk_operand &out, uint32_t *words, const line_sums &y) {
  float value[2];
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    value[i] = gated(y.value[i], y.value[2 + i]);
  }
  uint32_t data = pair_rows(s, value[0], value[1]);
  if (words == nullptr) {
  } else if constexpr (MK_GPU_RANKS) {
    put_words(readers_of(out), words, true, data, data);
  } else {
    tile::store_relaxed(words, data);
  }
}

// What other families' QKV, and GLU, has for rows g and g + 8 of a row tile.
struct row_extras {
  float2 bias, gain;
};
__device__ inline float2 load_rows(uint32_t g, const row_vector &vector, float without) {
  return vector.there ? make_float2(__ldg(vector.values + g), __ldg(vector.values + g + 8))
                      : make_float2(without, without);
}
__device__ inline row_extras load_extras(const rows_storer &s, const mk_instruction_word &in, uint32_t tile) {
  const row_vector biases(s.d, in, MK_QKV_BIASES, tile);
  uint32_t g = tile::lane_row(s.lane);
  return {load_rows(g, biases, 0.0f), load_rows(g, row_vector(s.d, in, MK_QKV_GAINS, tile), 1.0f)};
}

// Of NORM_ADD.
__device__ inline float2 norm_gains(const rows_storer &s, const mk_instruction_word &in, uint32_t tile) {
  uint32_t element = (in.parts[MK_PART_NORM_ADD_residual_out].col + tile) * MK_TILE + tile::lane_row(s.lane);
  return make_float2(norm_gain(in, element), norm_gain(in, element + 8));
}

__device__ inline void multiply_gains(const float2 &gain, line_sums &y) {
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    y.value[i] = __fmul_rn(y.value[i], gain.x);
    y.value[2 + i] = __fmul_rn(y.value[2 + i], gain.y);
  }
}

__device__ inline void add_biases(const float2 &bias, line_sums &y) {
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    y.value[i] = __fadd_rn(y.value[i], bias.x);
    y.value[2 + i] = __fadd_rn(y.value[2 + i], bias.y);
  }
}

// y + bias, whose squares are summed after the tile's values; then times the gain.
__device__ inline void finish_extras(const rows_storer &s, const mk_instruction_word &in, uint32_t tile,
                                     const row_extras &of, line_sums &y) {
  uint32_t extras = param(in, MK_PARAM_QKV_extras);
  const mk_operand &out = in.parts[MK_PART_QKV_out];
  if ((extras & MK_QKV_BIASES) != 0) {
    add_biases(of.bias, y);
  }
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    float &low = y.value[i], &high = y.value[2 + i];
    if ((extras & MK_QKV_SQUARES) != 0) {
      float squares = tile_squares_of_rows(low, high);
      uint32_t line = line_of(s, i);
      if (s.lane < 4 && is_active(s, line) && publishes(s.d)) {
        uint64_t *to = stamped_row(s.d, out) + static_cast<uint64_t>(line) * s.d.buffer(out).row_words +
                       tile * MK_SQUARED_TILE + MK_TILE;
        if constexpr (MK_GPU_RANKS) {
          to_readers(readers_of(out), to, [&](uint64_t *copy) {
            tile::store_stamped_pair(copy, __float_as_uint(squares), 0, s.d.generation());
          });
        } else {
          tile::store_stamped_pair(to, __float_as_uint(squares), 0, s.d.generation());
        }
      }
    }
  }
  multiply_gains(of.gain, y);
}

__device__ inline void rotate(const rows_storer &s, line_sums &y) {
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    float a = y.value[i], b = y.value[2 + i], cosine = lane_word(s, i), sine = lane_word(s, 2 + i);
    y.value[i] = rotated(a, b, cosine, -sine);
    y.value[2 + i] = rotated(b, a, cosine, sine);
  }
}

// Publishes logits and candidates of the lines that choose. Logits stay in the L2: the next step writes them anew, and
// writing them to memory would delay the weights that come from there.
__device__ inline void finish_logits(const rows_storer &s, const mk_instruction_word &in, uint32_t tile,
                                     const line_sums &y) {
  const mk_operand &weight = in.parts[MK_PART_HEAD_weight];
  uint32_t vocab = param(in, MK_PARAM_HEAD_vocab), chooses = rows_of(s.d).chooses;
  if (rows_to_do(s.d, in, weight) == 0) {
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    uint32_t line = line_of(s, i), row = (weight.row + tile) * 16 + tile::lane_row(s.lane) + i / 2 * 8;
    if ((chooses >> line & 1) != 0 && row < vocab) {
      tile::store_to_stay(words_of<float>(s, in.parts[MK_PART_HEAD_logits]) + static_cast<uint64_t>(line) * vocab + row,
                          y.value[i]);
      if (MAKES_CANDIDATES &&
          candidate_above(y.value[i], row, lane_word(s, i % 2), __float_as_uint(lane_word(s, 2 + i % 2)))) {
        lane_word(s, i % 2) = y.value[i];
        lane_word(s, 2 + i % 2) = __uint_as_float(row);
      }
    }
  }
}

__device__ inline void end_HEAD(const rows_storer &s, const mk_instruction_word &in) {
  uint64_t *words = stamped_row(s.d, in.parts[MK_PART_HEAD_candidate]);
#pragma unroll 1
  for (uint32_t i = 0; i < 2; i++) {
    float best = lane_word(s, i);
    uint32_t index = __float_as_uint(lane_word(s, 2 + i)), line = line_of(s, i);
#pragma unroll 1
    for (uint32_t offset = 4; offset < 32; offset *= 2) {
      float other = tile::exchange(best, offset);
      uint32_t other_index = tile::exchange(index, offset);
      if (candidate_above(other, other_index, best, index)) {
        best = other;
        index = other_index;
      }
    }
    if (s.lane < 4 && is_active(s, line) && publishes(s.d)) {
      if constexpr (MK_GPU_RANKS) {
        to_readers(readers_of(in.parts[MK_PART_HEAD_candidate]), words + line * 2, [&](uint64_t *to) {
          tile::store_stamped_pair(to, __float_as_uint(best),
                                   index | (rows_shared()->stop != 0 ? MK_CANDIDATE_STOP : 0u), s.d.generation());
        });
      } else {
        tile::store_stamped_pair(words + line * 2, __float_as_uint(best),
                                 index | (rows_shared()->stop != 0 ? MK_CANDIDATE_STOP : 0u), s.d.generation());
      }
    }
  }
}

__device__ inline bool adds(const mk_instruction_word &in) {
  return false
#define MK_OPCODE(NAME, text, state, semantics) || (opcodes.NAME.adds && in.opcode == opcodes.NAME.number)
#include "vm/program/opcodes.def"
      ;
}
// Which PART the incoming residual is, of an opcode that adds to it.
__device__ inline int residual_part(uint32_t opcode) {
#define MK_OPCODE(NAME, text, state, semantics)                          \
  if constexpr (constexpr int part = opcodes.NAME.residual; part >= 0) { \
    if (opcode == opcodes.NAME.number) {                                 \
      return part;                                                       \
    }                                                                    \
  }
#include "vm/program/opcodes.def"
  __builtin_unreachable();
}
__device__ inline const mk_operand *addition(const mk_instruction_word &in) {
  return in.parts + residual_part(in.opcode);
}

// Takes, for every opcode above, the sums of all row tiles from the consumers and makes results of them. It is one
// function for all these opcodes, so that code that several need is once in the instruction cache.
__device__ __forceinline__ void store_rows(rows_storer &s, const mk_instruction_word &in) {
  lines_store r = begin_rows(s, in);
  // Results come chunk by chunk of K, and in each chunk row tile by row tile. `kept` has the sums over earlier chunks
  // of the row tile that comes next. With one or two row tiles such sums stay in registers, those of the tile after
  // that in `then`. With more row tiles they lie in memory, and are fetched from there while the tile before is added
  // up.
  line_sums kept, then;
  tile::zero(kept);
  tile::zero(then);
  float frequency =
      in.opcode == only<&opcode_row::rotates> ? frequency_of(s, in, 0) : 0.0f;  // of the tile that comes next
#pragma unroll 1
  for (uint32_t chunk = 0; chunk < r.chunks; chunk++) {
    bool last = chunk + 1 == r.chunks;
#pragma unroll 1
    for (uint32_t tile = 0; tile < r.rows; tile++) {
      line_sums y = kept;
      uint32_t *words = nullptr;
      row_extras extras;
      tile::forget(s.lane);
      tile::forget(s.tile);
      if (last && in.opcode == only<&opcode_row::rotates>) {
        prepare_angles(s, frequency);
        frequency = tile + 1 < r.rows ? frequency_of(s, in, tile + 1) : 0.0f;
        if constexpr (MK_GPU_FAMILIES) {
          extras = load_extras(s, in, tile);
        }
      } else if (last && adds(in)) {
        words = prepare_value(s, addition(in)[2], tile, false);
        prepare_residual(s, addition(in)[0], tile);
        if (MK_GPU_FAMILIES && in.opcode == only<&opcode_row::adds_norm>) {
          extras.gain = norm_gains(s, in, tile);
        }
      } else if (last && in.opcode == only<&opcode_row::gates>) {
        words = prepare_value(s, in.parts[MK_PART_GLU_out], tile, true);
        if constexpr (MK_GPU_FAMILIES) {
          extras.bias =
              make_float2(glu_bias(in, tile, tile::lane_row(s.lane)), glu_bias(in, tile, tile::lane_row(s.lane) + 8));
        }
      }
      take_sums(s, in, tile == 0 && has_squares(in), chunk, r, y);
      if (in.opcode == only<&opcode_row::logits> && chunk == 0 && tile == 0) {
        release_step(s);
      }
      if (r.rows <= 2) {
        kept = r.rows == 1 ? y : then;
        then = y;
      } else {
        if (!last) {
          keep_sums(s, tile, y);
        }
        uint32_t next = tile + 1 < r.rows ? tile + 1 : 0;
        if (next != 0 ? chunk != 0 : !last) {
          get_sums(s, next, kept);
        }
      }
      if (!last) {
        continue;
      }
      if (has_squares(in)) {
        scale_sums(s, y);
      }
      bool rotates = in.opcode == only<&opcode_row::rotates>;
      if (rotates) {
        if constexpr (MK_GPU_FAMILIES) {
          finish_extras(s, in, tile, extras, y);
        }
        rotate(s, y);
      }
      if (rotates || in.opcode == only<&opcode_row::keeps_sums>) {
        publish_floats(s, in.parts[rotates ? MK_PART_QKV_out : MK_PART_LINEAR_PART_out], tile, tile_columns(in), y);
      } else if (in.opcode == only<&opcode_row::gates>) {
        if constexpr (MK_GPU_FAMILIES) {
          add_biases(extras.bias, y);
        }
        finish_gated(s, in.parts[MK_PART_GLU_out], words, y);
      } else if (adds(in)) {
        if (MK_GPU_FAMILIES && in.opcode == only<&opcode_row::adds_norm>) {
          multiply_gains(extras.gain, y);
        }
        finish_residual(s, addition(in) + 1, words, tile, y);
      } else {
        finish_logits(s, in, tile, y);
      }
    }
  }
  if (in.opcode == only<&opcode_row::logits>) {
    if constexpr (MK_GPU_SAMPLES) {
      __syncwarp();  // all lanes' logits
      if (s.lane == 0) {
        tile::arrive(s.d.barrier(SCORED));
      }
    }
    if constexpr (MAKES_CANDIDATES) {
      end_HEAD(s, in);
    }
  }
}

}  // namespace mk
