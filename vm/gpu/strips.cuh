// Weights as strips of 128 columns, whatever their form: codes of eight or four bits with scales (vm/program/strips.h),
// or eight steps of bf16, as the head has them beside quantised layers. A strip is a chain of sums, and so the piece of
// a row tile that one warp multiplies.
//
// A page has as many whole strips as there is room for: 7 of eight bits, 12 to 15 of four, 4 of bf16. Row tiles that
// lie side by side in memory follow each other without a gap; parts of K begin a page for each row tile. (Of wide steps
// it has one strip of each of four row tiles: wide_copies.cuh.)
#pragma once
#include <type_traits>

#include "instructions/tile/codes.cuh"
#include "vm/gpu/device.cuh"
#include "vm/program/strips.h"

namespace mk {

// A KV cache of e4m3: whether one is, the bytes of K, or of V, of a block and KV head, and those of a page, which has
// one of them, or of a head of 64 dims both.
__device__ inline bool keeps_codes(const mk_gpu_buffer &kv) { return MK_GPU_QUANTISED && kv.dtype == MK_DTYPE_E4M3; }
__device__ inline uint32_t code_half_bytes(const mk_gpu_buffer &kv) { return BLOCK_TOKENS * (kv.head_dim + 2u); }
__device__ inline uint32_t code_page_bytes(const mk_gpu_buffer &kv) {
  return kv.head_dim == 64 ? 2 * code_half_bytes(kv) : code_half_bytes(kv);
}

__device__ inline uint8_t *code_pair(const mk_gpu_buffer &kv, uint64_t block, uint32_t head) {
  return tile::global<uint8_t>(kv.address) + (block * kv.cols + head) * 2 * code_half_bytes(kv);
}

__device__ inline uint32_t strip_count(uint32_t steps) { return (steps + MK_STRIP_STEPS - 1) / MK_STRIP_STEPS; }

// How an operand's strips lie in memory: the bytes of a row tile of the buffer, and where the operand's begin.
__device__ inline uint64_t strip_pitch(const mk_gpu_buffer &b) {
  return b.dtype == MK_DTYPE_BF16 ? static_cast<uint64_t>(b.grid_cols) * 512
                                  : static_cast<uint64_t>(strip_count(b.grid_cols)) * b.strip_bytes;
}
__device__ inline const uint8_t *first_strip(const mk_gpu_buffer &b, const mk_operand &weight) {
  uint64_t within = b.dtype == MK_DTYPE_BF16 ? static_cast<uint64_t>(weight.col) * 512
                                             : static_cast<uint64_t>(weight.col / MK_STRIP_STEPS) * b.strip_bytes;
  return tile::global<const uint8_t>(b.address) + weight.row * strip_pitch(b) + within;
}
// Of an operand's row tile, the bytes from its first strip on. The last strip of bf16 may be short.
__device__ inline uint32_t strip_run_bytes(const mk_gpu_buffer &b, const mk_operand &weight) {
  return b.dtype == MK_DTYPE_BF16 ? weight.cols * 512u : strip_count(weight.cols) * b.strip_bytes;
}

// How an operand's strips come in pages.
struct strip_pages {
  uint32_t strips;     // of a row tile
  uint32_t most;       // in a page
  uint32_t inverse;    // 2^32 / most and up to 2,048 more
  uint32_t row_pages;  // of a row tile that begins a page; 0: row tiles follow each other
  uint32_t pages;      // of the operand

  // A strip has at most 4 KB, so `most` is from 4 to 15. Exact below MK_GPU_STRIPS_TIMES (refuse.c).
  __device__ uint32_t page_of(uint32_t strip) const { return __umulhi(strip, inverse); }
};

__device__ inline strip_pages strip_pages_of(const mk_gpu_buffer &b, const mk_operand &weight) {
  strip_pages s = {strip_count(weight.cols), b.scale.page_strips, 0, 0, 0};
  // No division of whole numbers, which takes long: this one is off by 2^-22 of itself at most.
  s.inverse = static_cast<uint32_t>(__fdividef(0x1p32f, static_cast<float>(s.most))) + 1024;
  bool whole = weight.cols == b.grid_cols && (b.dtype != MK_DTYPE_BF16 || weight.cols % MK_STRIP_STEPS == 0);
  s.row_pages = whole ? 0 : s.page_of(s.strips + s.most - 1);
  s.pages = whole ? s.page_of(weight.rows * s.strips + s.most - 1) : weight.rows * s.row_pages;
  return s;
}

__device__ inline bool has_ranges(const mk_gpu_buffer &b) { return b.scale.ranges > 1; }

// A strip as a lane sees it: its sixteen bytes of the first line, and its quad's place among words that sixteen rows
// have for every two of them, counted from the strip's start.
struct lane_strip {
  const uint8_t *lines, *words;
  const uint8_t *strip;
  uint32_t lane;

  __device__ lane_strip(const uint8_t *from, uint32_t of)
      : lines(from + of * 16), words(from + tile::lane_row(of) * 4), strip(from), lane(of) {}
  __device__ lane_strip(const uint8_t *lines_at, const uint8_t *words_at, const uint8_t *from, uint32_t of)
      : lines(lines_at), words(words_at), strip(from), lane(of) {}
};

// Where a quarter of a strip has its scales and zeros: those of the lane's two rows, which lie side by side.
struct quarter_scales {
  tile::row_scales scale;
  uint32_t zeros;  // a byte each

  __device__ quarter_scales(const mk_gpu_buffer &b, const uint8_t *strip, uint32_t quarter, uint32_t lane) {
    uint32_t all = b.scale.ranges * MK_TILE, two = quarter * b.scale.ranges / 4 * MK_TILE + 2 * tile::lane_row(lane);
    const uint8_t *scales = strip + (b.dtype == MK_DTYPE_I4 ? 2 * 512 : 4 * 512);
    zeros = MK_PLAIN_ZERO * 0x101u;
    if (b.scale.zeros != 0) {
      zeros = tile::load<uint16_t>(scales + all * (b.scale.type == MK_SCALE_F32 ? 4 : 2) + two);
    }
    if (b.scale.type == MK_SCALE_F32) {
      float2 pair = tile::load<float2>(scales + two * 4);
      scale = {pair.x, pair.y};
    } else {
      uint32_t pair = tile::load<uint32_t>(scales + two * 2);
      float2 halves = tile::unpack_half(pair);
      scale = b.scale.type == MK_SCALE_BF16 ? tile::row_scales{tile::low_bf16(pair), tile::high_bf16(pair)}
                                            : tile::row_scales{halves.x, halves.y};
    }
  }
};

// A lane's 16 bytes of each line of a strip: all of them at once, so that the page can be given back (`early`), or each
// when it is asked for.
template <uint32_t count, bool early>
struct lane_lines {
  const uint8_t *from;
  uint4 line[early ? count : 1];

  __device__ explicit lane_lines(const lane_strip &at) : from(at.lines) {
    if constexpr (early) {
#pragma unroll
      for (uint32_t i = 0; i < count; i++) {
        line[i] = tile::load<uint4>(from + i * 512);
      }
    }
  }
  __device__ uint4 operator[](uint32_t i) const { return early ? line[i] : tile::load<uint4>(from + i * 512); }
};

// What the steps of a strip are made of, form by form, each made once an instruction. each<early>(b, at, left, loaded,
// take) calls loaded() when nothing more is to be read of the strip, and take(i, weights) for each of the eight steps,
// with its fragment in bf16. at: where the strip lies. `left`: how many steps there are; after the last one of bf16
// lies an older page, and codes are whole strips. `early`: all is read at the beginning, where registers suffice.
struct plain_form {
  template <bool early, typename taken, typename taker>
  __device__ void each(const mk_gpu_buffer &, const lane_strip &at, uint32_t left, taken loaded, taker take) const {
    const lane_lines<MK_STRIP_STEPS, early> lines(at);
    if constexpr (early) {
      loaded();
    }
#pragma unroll
    for (uint32_t i = 0; i < MK_STRIP_STEPS; i++) {
      uint4 line = lines[i];
      tile::weight_tile weights = {{line.x, line.y, line.z, line.w}};
      if (i >= left) {
        tile::zero(weights);
      }
      take(i, weights);
    }
    if constexpr (!early) {
      loaded();
    }
  }
};

// Codes of eight bits. expand_short(pair, work): calls work with scales that take fewer instructions, where all of a
// strip suits them.
struct e4m3_codes {
  template <typename scales>
  __device__ static void expand(tile::weight_tile &to, uint32_t first, uint32_t second, const scales &by) {
    tile::expand_e4m3(to, first, second, by);
  }
  template <typename worker>
  __device__ static bool expand_short(uint32_t pair, worker work) {
    const uint32_t raised = tile::raise_scales(pair);
    const bool all = tile::all_lanes(tile::are_finite(raised));
    if (all) {
      work(tile::raised_scales_of(raised));
    }
    return all;
  }
};
struct i8_codes {
  template <typename scales>
  __device__ static void expand(tile::weight_tile &to, uint32_t first, uint32_t second, const scales &by) {
    tile::expand_i8(to, first, second, by);
  }
  template <typename worker>
  __device__ static bool expand_short(uint32_t pair, worker work) {
    const uint32_t raised = tile::raise_whole_scales<8>(pair);
    const bool all = tile::all_lanes(tile::are_finite(raised));
    if (all) {
      work(tile::whole_scales_of<8>(pair, raised));
    }
    return all;
  }
};

template <typename codes, typename scales>
__device__ inline void expand_line(const uint4 &four, uint32_t i, const scales &by, const auto &take) {
  tile::weight_tile weights;
  codes::expand(weights, four.x, four.y, by);
  take(i, weights);
  codes::expand(weights, four.z, four.w, by);
  take(i + 1, weights);
}
template <typename codes, bool early, typename scales>
__device__ inline void expand_lines(const lane_lines<MK_STRIP_STEPS / 2, early> &lines, const scales &by,
                                    const auto &loaded, const auto &take) {
  if constexpr (early) {
    loaded();
  }
#pragma unroll
  for (uint32_t i = 0; i < MK_STRIP_STEPS; i += 2) {
    expand_line<codes>(lines[i / 2], i, by, take);
  }
  if constexpr (!early) {
    loaded();
  }
}

// Scales of bf16, one a row.
__device__ inline bool has_even_scales(const mk_gpu_buffer &b) {
  return !has_ranges(b) && b.scale.type == MK_SCALE_BF16;
}
__device__ inline uint32_t even_pair(const lane_strip &at) { return tile::load<uint32_t>(at.words + 4 * 512); }

template <typename codes>
struct byte_form {
  bool ranges;
  __device__ explicit byte_form(const mk_gpu_buffer &b) : ranges(has_ranges(b)) {}

  template <bool early, typename taken, typename taker>
  __device__ void each(const mk_gpu_buffer &b, const lane_strip &at, uint32_t, taken loaded, taker take) const {
    const lane_lines<MK_STRIP_STEPS / 2, early> lines(at);
    quarter_scales by(b, at.strip, 0, at.lane);
    if (!ranges) {
      expand_lines<codes, early>(lines, by.scale, loaded, take);
      return;
    }
#pragma unroll
    for (uint32_t i = 0; i < MK_STRIP_STEPS; i += 2) {
      if (i != 0) {
        by = quarter_scales(b, at.strip, i / 2, at.lane);
      }
      expand_line<codes>(lines[i / 2], i, by.scale, take);
    }
    loaded();
  }
};

// The same where scales are of bf16, one a row. Whatever they and the codes are, all warps go one way.
template <typename codes>
struct even_byte_form {
  template <bool early, typename taken, typename taker>
  __device__ void each(const mk_gpu_buffer &, const lane_strip &at, uint32_t, taken loaded, taker take) const {
    const lane_lines<MK_STRIP_STEPS / 2, early> lines(at);
    expand_lines<codes, early>(lines, tile::byte_scales_of(even_pair(at)), loaded, take);
  }
};

// The same by fewer instructions in strips whose scales suit them.
template <typename codes>
struct short_byte_form {
  template <bool early, typename taken, typename taker>
  __device__ void each(const mk_gpu_buffer &, const lane_strip &at, uint32_t, taken loaded, taker take) const {
    const lane_lines<MK_STRIP_STEPS / 2, early> lines(at);
    const uint32_t pair = even_pair(at);
    auto expand = [&](const auto &by) { expand_lines<codes, early>(lines, by, loaded, take); };
    if (!codes::expand_short(pair, expand)) {
      expand(tile::byte_scales_of(pair));
    }
  }
};

// Of four bits, where all of the strip has one scale a row, of bf16, or of fp16 (`rests`). `whole`: by fewer
// instructions in strips whose scales suit them, where there are no zeros.
template <bool rests, bool whole = false>
struct nibble_form {
  static_assert(!(rests && whole), "a scale of fp16 has too many bits");
  bool zeros;
  __device__ explicit nibble_form(const mk_gpu_buffer &b) : zeros(!whole && b.scale.zeros != 0) {}

  template <bool early, typename taken, typename taker>
  __device__ void each(const mk_gpu_buffer &, const lane_strip &at, uint32_t, taken loaded, taker take) const {
    uint32_t pair = tile::load<uint32_t>(at.words + 2 * 512), zero = MK_PLAIN_ZERO * 0x101u;
    if (zeros) {
      zero = tile::load<uint16_t>(at.strip + 2 * 512 + MK_TILE * 2 + tile::lane_row(at.lane) * 2);
    }
    const lane_lines<2, early> lines(at);
    if constexpr (early) {
      loaded();
    }
    auto expand = [&](auto make) {
#pragma unroll
      for (uint32_t line = 0; line < 2; line++) {
        uint4 four = lines[line];
        const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
          tile::weight_tile weights;
          make(weights, words[i]);
          take(line * 4 + i, weights);
        }
      }
    };
    auto expand_any = [&] {
      const tile::nibble_scales scales = tile::nibble_scales_of<rests>(pair, zero);
      expand([&](tile::weight_tile &to, uint32_t word) { tile::expand_i4<rests>(to, word, scales); });
    };
    if constexpr (whole) {
      const uint32_t raised = tile::raise_whole_scales<4>(pair);
      if (tile::all_lanes(tile::are_finite(raised))) {
        const tile::whole_scales scales = tile::whole_scales_of<4>(pair, raised);
        expand([&](tile::weight_tile &to, uint32_t word) { tile::expand_i4(to, word, scales); });
      } else {
        expand_any();
      }
    } else {
      expand_any();
    }
    if constexpr (!early) {
      loaded();
    }
  }
};

// Of four bits with scales of fp32, or more of them than one a row and strip.
struct any_nibble_form {
  __device__ explicit any_nibble_form(const mk_gpu_buffer &) {}

  template <bool early, typename taken, typename taker>
  __device__ void each(const mk_gpu_buffer &b, const lane_strip &at, uint32_t, taken loaded, taker take) const {
    tile::weight_tile weights;
#pragma unroll
    for (uint32_t i = 0; i < MK_STRIP_STEPS; i++) {
      quarter_scales by(b, at.strip, i / 2, at.lane);
      tile::expand_i4(weights, tile::load<uint32_t>(at.lines + i / 4 * 512 + i % 4 * 4), by.scale, by.zeros & 0xffu,
                      by.zeros >> 8);
      take(i, weights);
    }
    loaded();
  }
};

// The forms that weights have.
enum strip_kind : uint32_t {
  STRIPS_PLAIN,
  STRIPS_EVEN_I4,  // one scale a row, of bf16, and no zeros
  STRIPS_BF16_I4,  // one scale a row
  STRIPS_F16_I4,
  STRIPS_ANY_I4,
  STRIPS_EVEN_E4M3,
  STRIPS_ANY_E4M3,
  STRIPS_EVEN_I8,
  STRIPS_ANY_I8,
};

__device__ inline strip_kind kind_of(const mk_gpu_buffer &b) {
  if (!MK_GPU_QUANTISED || b.dtype == MK_DTYPE_BF16) {
    return STRIPS_PLAIN;
  }
  const bool even = has_even_scales(b), halves = !has_ranges(b) && b.scale.type == MK_SCALE_F16;
  if (b.dtype == MK_DTYPE_I4) {
    return even ? b.scale.zeros == 0 ? STRIPS_EVEN_I4 : STRIPS_BF16_I4 : halves ? STRIPS_F16_I4 : STRIPS_ANY_I4;
  }
  return b.dtype == MK_DTYPE_E4M3 ? even ? STRIPS_EVEN_E4M3 : STRIPS_ANY_E4M3 : even ? STRIPS_EVEN_I8 : STRIPS_ANY_I8;
}

// Calls work(form) with a weight's form: a loop over strips asks for it once, since to look it up takes as long as to
// expand a quarter of a strip. `shortens`: with the forms of fewer instructions, which are twice the code.
template <bool shortens, typename worker>
__device__ inline void with_form(const mk_gpu_buffer &b, strip_kind kind, worker work) {
  if constexpr (!MK_GPU_QUANTISED) {
    work(plain_form());
    return;
  }
  switch (kind) {
    case STRIPS_EVEN_I4:
      if constexpr (shortens) {
        work(nibble_form<false, shortens>(b));
        break;
      }
      [[fallthrough]];
    case STRIPS_BF16_I4:
      work(nibble_form<false>(b));
      break;
    case STRIPS_F16_I4:
      work(nibble_form<true>(b));
      break;
    case STRIPS_ANY_I4:
      work(any_nibble_form(b));
      break;
    case STRIPS_EVEN_E4M3:
      work(std::conditional_t<shortens, short_byte_form<e4m3_codes>, even_byte_form<e4m3_codes>>());
      break;
    case STRIPS_ANY_E4M3:
      work(byte_form<e4m3_codes>(b));
      break;
    case STRIPS_EVEN_I8:
      work(std::conditional_t<shortens, short_byte_form<i8_codes>, even_byte_form<i8_codes>>());
      break;
    case STRIPS_ANY_I8:
      work(byte_form<i8_codes>(b));
      break;
    default:
      work(plain_form());
  }
}
template <bool shortens, typename worker>
__device__ inline void with_form(const mk_gpu_buffer &b, worker work) {
  with_form<shortens>(b, kind_of(b), work);
}

// A form that is looked up strip by strip: where a loop for each of them would be too much code.
struct any_form {
  template <bool early, typename taken, typename taker>
  __device__ void each(const mk_gpu_buffer &b, const lane_strip &at, uint32_t left, taken loaded, taker take) const {
    with_form<false>(b, [&](const auto &form) { form.template each<early>(b, at, left, loaded, take); });
  }
};

}  // namespace mk
