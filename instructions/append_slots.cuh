// APPEND on the device, of the kernel for wide steps of several sequences: k and v of all active lines of a KV head, as
// bf16, into the blocks that the table has for their slots and positions; append.c. Runs of lines at neighbouring
// positions go by tiles (append_tiles.cuh), lines by themselves, four of a warp together, by elements. Nothing is put
// after the last token: ATTEND leaves out what lies there. Waits: q, k and v of all line tiles. Signals: that the
// head's cache is up to date.
#pragma once
#include "instructions/append_codes.cuh"
#include "instructions/append_tiles.cuh"

namespace mk {

// K and V of the head, where they come from and where they go.
struct appended_head {
  const float *k, *v;  // of line 0
  uint32_t cols;       // from line to line
  uint8_t *blocks;     // the head's part of block 0
  uint64_t block_bytes;
  uint32_t head_dim;
  const uint32_t *table;
  uint32_t entries;  // of a slot
  appended_norm norm;

  // The tile of 16 tokens at that position, of K or of V, from its first dims on.
  __device__ uint8_t *tile_at(uint32_t slot, uint32_t position, bool is_v) const {
    uint64_t block = __ldg(table + static_cast<uint64_t>(slot) * entries + position / 64);
    return blocks + block * block_bytes +
           ((is_v ? 64 : 0) + position / APPEND_TOKENS % 4 * APPEND_TOKENS) * head_dim * 2;
  }
};

__device__ inline appended_head head_at_hand(const wide_consumer &c, const mk_instruction_word &in) {
  const mk_operand &kv = in.parts[MK_PART_APPEND_kv];
  const mk_gpu_buffer &b = c.d.buffer(kv), &table = whole_buffer(in, MK_WHOLE_APPEND_table);
  return {plain_lines<float>(c.d, in.parts[MK_PART_APPEND_k]),
          plain_lines<float>(c.d, in.parts[MK_PART_APPEND_v]),
          c.d.buffer(in.parts[MK_PART_APPEND_k]).cols,
          tile::global<uint8_t>(b.address) + static_cast<uint64_t>(kv.col) * 256 * b.head_dim,
          static_cast<uint64_t>(b.cols) * 256 * b.head_dim,
          tile::uniform(static_cast<uint32_t>(b.head_dim)),
          tile::global<const uint32_t>(table.address),
          table.cols,
          norm_of_keys(in, b.head_dim)};
}

// `count` lines from `line` on, the first one at `position`, all of one tile of tokens. By a warp.
__device__ inline void append_run(const appended_head &head, uint8_t *room, uint32_t line, uint32_t count,
                                  uint32_t slot, uint32_t position) {
  uint32_t token = position / APPEND_TOKENS * APPEND_TOKENS, end = position + count;
#pragma unroll 1
  for (uint32_t i = 0; i < head.head_dim / APPEND_DIMS * 2; i++) {
    bool is_v = i % 2 != 0;
    uint32_t dims = i / 2 * APPEND_DIMS;
    stage_tokens(room, (is_v ? head.v : head.k) + static_cast<uint64_t>(line) * head.cols, dims, head.cols, token,
                 position, end, !is_v, head.norm);
    put_tiles(room, head.tile_at(slot, position, is_v) + dims / 16 * 512, is_v, token, {position, end, end});
  }
}

// Four neighbouring dims of a token, from `dim` on, into tiles of K or V.
__device__ inline void put_dims(uint8_t *tiles, bool is_v, uint32_t position, uint32_t dim, const float4 &values) {
  uint32_t low = tile::pack_bf16(values.x, values.y), high = tile::pack_bf16(values.z, values.w);
  uint16_t *to = tile::view<uint16_t>(tiles + dim / 16 * 512);
  if (is_v) {
    to[mk_step_offset(dim, position)] = static_cast<uint16_t>(low);
    to[mk_step_offset(dim + 1, position)] = static_cast<uint16_t>(low >> 16);
    to[mk_step_offset(dim + 2, position)] = static_cast<uint16_t>(high);
    to[mk_step_offset(dim + 3, position)] = static_cast<uint16_t>(high >> 16);
  } else {
    tile::store<uint32_t>(to + mk_step_offset(position, dim), low);
    tile::store<uint32_t>(to + mk_step_offset(position, dim + 2), high);
  }
}

enum { LINES_APART = MK_GPU_CONSUMER_WARPS, LINES_TOGETHER = 32 / LINES_APART };

// Of the 32 lines from `base` on, whose rows the lanes have, those of `lines` (a bit each) that are this warp's: every
// eighth one.
__device__ inline void append_lines(const appended_head &head, uint32_t warp, uint32_t base, uint32_t lines,
                                    const uint4 &row) {
  uint32_t units = head.head_dim / 4;  // of four dims, of K and again of V
#pragma unroll 1
  for (uint32_t part = 0; part < head.head_dim / 64; part++) {
    uint32_t unit = part * 32 + tile::lane(), dim = unit % units * 4;
    bool is_v = unit >= units;
    float4 values[LINES_TOGETHER];
    uint8_t *to[LINES_TOGETHER];
#pragma unroll
    for (uint32_t i = 0; i < LINES_TOGETHER; i++) {
      uint32_t at = warp + i * LINES_APART;
      uint32_t slot = tile::from_lane(row.x, at), position = tile::from_lane(row.y, at);
      to[i] = nullptr;
      values[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if ((lines >> at & 1) != 0) {
        to[i] = head.tile_at(slot, position, is_v);
        values[i] = load_dims((is_v ? head.v : head.k) + static_cast<uint64_t>(base + at) * head.cols, dim,
                              head.norm.eps != 0.0f);
      }
    }
    if (MK_GPU_FAMILIES && head.norm.eps != 0.0f) {
#pragma unroll
      for (uint32_t i = 0; i < LINES_TOGETHER; i++) {
        uint32_t at = warp + i * LINES_APART;
        float scale = head_scale(head.k + static_cast<uint64_t>(base + ((lines >> at & 1) != 0 ? at : 0)) * head.cols,
                                 head.head_dim, head.norm.eps);
        multiply_dims(values[i], is_v ? 1.0f : scale);
      }
    }
    // Short code, which comes from far away: the next line moves to where the one at hand is.
#pragma unroll 1
    for (uint32_t at = warp; at < 32; at += LINES_APART) {
      uint32_t position = tile::from_lane(row.y, at);
      if (to[0] != nullptr) {
        put_dims(to[0], is_v, position, dim, values[0]);
      }
#pragma unroll
      for (uint32_t i = 0; i + 1 < LINES_TOGETHER; i++) {
        to[i] = to[i + 1];
        values[i] = values[i + 1];
      }
    }
  }
}

__device__ inline void consume_APPEND(wide_consumer &c, const mk_instruction_word &in) {
  const appended_head head = head_at_hand(c, in);
  const uint4 *rows = planned_rows(c.d);
  uint32_t count = tile::uniform(lines_of(c.d).count), turn = 0;
  uint8_t *room = shared_memory + MK_GPU_ACTIVATION_AT + c.d.warp * APPEND_BYTES;
  auto row_from = [&](uint32_t base) {
    uint32_t line = base + tile::lane();
    return line < count ? __ldg(rows + line) : make_uint4(0, 0, 0, 0);
  };
  uint4 next = row_from(0);
  consumers_wait(c, in);
  if (const mk_gpu_buffer &b = c.d.buffer(in.parts[MK_PART_APPEND_kv]); keeps_codes(b)) {
    append_codes(c, in, count, [&](uint32_t line) {
      const uint4 row = __ldg(rows + line);
      if ((row.w & MK_ROW_ACTIVE) == 0) {
        return appended_place{nullptr, 0};
      }
      uint64_t block = __ldg(head.table + static_cast<uint64_t>(row.x) * head.entries + row.y / 64);
      return appended_place{code_pair(b, block, in.parts[MK_PART_APPEND_kv].col), row.y % 64};
    });
    consumers_signal(c, in);
    return;
  }
#pragma unroll 1
  for (uint32_t base = 0; base < count; base += 32) {
    uint32_t lane = tile::lane();
    const uint4 row = next;
    next = row_from(base + 32);
    bool active = (row.w & MK_ROW_ACTIVE) != 0;
    uint32_t actives = tile::lanes_where(active);
    uint32_t slot_before = tile::from_lane_before(row.x, 1), before = tile::from_lane_before(row.y, 1);
    // Whether the line goes on with the run of the one before it.
    bool goes_on = lane != 0 && active && (actives >> (lane - 1) & 1) != 0 && slot_before == row.x &&
                   before + 1 == row.y && row.y % APPEND_TOKENS != 0;
    uint32_t more = tile::lanes_where(goes_on), alone = actives & ~more & ~(more >> 1);
    append_lines(head, c.d.warp, base, alone, row);
#pragma unroll 1
    for (uint32_t left = tile::uniform(actives & ~more & ~alone); left != 0; left &= left - 1, turn++) {
      uint32_t at = __ffs(left) - 1, length = __ffs(~(more >> 1 >> at));
      uint32_t slot = tile::from_lane(row.x, at), position = tile::from_lane(row.y, at);
      if (turn % MK_GPU_CONSUMER_WARPS == c.d.warp) {
        append_run(head, room, base + at, length, slot, position);
      }
    }
  }
  consumers_signal(c, in);
}

}  // namespace mk
