// ATTEND on the device, of the kernel for wide steps of one sequence: out = bf16(softmax(scale q k) v) of one query
// head and a line tile, over all tokens of the sequence up to each line's own; attend.c, attend_blocks.cuh. A warpgroup
// has 64 lines. Waits: q; the loader: the head's APPEND. Signals: the counter of the line tile's output.
#pragma once
#include "instructions/attend_blocks.cuh"
#include "instructions/head_norms.cuh"

namespace mk {

// What a warp has to do in an ATTEND, by positions of tokens: attend_blocks.cuh.
struct attended_lines {
  enum { HIDES_BLOCKS = false };
  uint32_t end, own, group_end;

  __device__ static attended_lines at_hand(const wide_consumer &c) {
    enum { GROUP_LINES = LINES / GROUPS };
    uint32_t line_tile = instruction_at_hand(c).parts[MK_PART_ATTEND_q].row,
             group_first = tile::uniform(c.group()) * GROUP_LINES;
    uint32_t first = tile::uniform(lines_of(c.d).first + line_tile * LINES);
    uint32_t lines = tile::uniform(active_lines(c.d, line_tile));
    return {first + lines, first + tile::uniform(c.d.warp) * 16,
            group_first < lines ? first + min(lines, group_first + GROUP_LINES) : 0};
  }
  template <uint32_t count>
  __device__ void hide(float (&scores)[count], uint32_t at) const {
    tile::hide_later(scores, at, own);
  }
};

// Active ones of the warp's sixteen lines of the tile that the operand is in.
__device__ inline uint32_t lines_of_warp(const wide_consumer &c, const mk_operand &operand) {
  uint32_t lines = active_lines(c.d, operand.row), before = c.d.warp * 16;
  return lines > before ? lines - before : 0;
}

template <uint32_t steps>
__device__ __forceinline__ void attend_lines(wide_consumer &c) {
  attended<steps> span;
  clear(span);
  take_room(c, attended_lines::at_hand(c).end);
  {
    const mk_instruction_word &in = instruction_at_hand(c);
    const mk_operand &from = in.parts[MK_PART_ATTEND_q];
    uint32_t q[steps][4], cols = c.d.buffer(from).cols;
    const float *first = plain_lines<float>(c.d, from) + static_cast<uint64_t>(c.d.warp * 16) * cols;
    if constexpr (MK_GPU_FAMILIES) {
      const float *rows[2];
      for (uint32_t h = 0; h < 2; h++) {
        uint32_t row = tile::lane_row(tile::lane()) + h * 8;
        rows[h] = row < lines_of_warp(c, from) ? first + static_cast<uint64_t>(row) * cols : nullptr;
      }
      load_queries(q, in, rows);
    } else {
      tile::load_left(q, first, cols, lines_of_warp(c, from),
                      __fmul_rn(__uint_as_float(param(in, MK_PARAM_ATTEND_scale)), BASE_E_TO_2));
    }
    attend_blocks<attended_lines>(c, q, span);
  }
  uint32_t group_end = attended_lines::at_hand(c).group_end;
  if (group_end != 0) {
    add_tree(c, (group_end - 1) / SPAN_TOKENS, span);
  }
  give_back_room(c);
  if (group_end == 0) {
    return;
  }
  const mk_operand &out = instruction_at_hand(c).parts[MK_PART_ATTEND_out];
  uint32_t cols = c.d.buffer(out).cols;
  const float factors[2] = {__fdividef(1.0f, span.total[0]), __fdividef(1.0f, span.total[1])};
  uint16_t *first = plain_lines<uint16_t>(c.d, out) + static_cast<uint64_t>(c.d.warp * 16) * cols;
  to_readers(own_place(c.d), first,
             [&](uint16_t *to) { tile::store_rows<steps / 2>(to, cols, lines_of_warp(c, out), span.o, factors); });
}

__device__ __forceinline__ void consume_ATTEND(wide_consumer &c, const mk_instruction_word &in) {
  consumers_wait(c, in);
  if (active_lines(c.d, in.parts[MK_PART_ATTEND_q].row) != 0) {
    if (c.d.buffer(in.parts[MK_PART_ATTEND_kv]).head_dim == 64) {
      attend_lines<4>(c);
    } else {
      attend_lines<8>(c);
    }
    if constexpr (MK_GPU_RANKS) {
      const mk_operand &out = instruction_at_hand(c).parts[MK_PART_ATTEND_out];
      push_lines(c, out, active_lines(c.d, out.row));
    }
  }
  consumers_signal(c, instruction_at_hand(c));
}

}  // namespace mk
