// SCORE of the kernel for wide steps of several sequences, on the device: after the HEAD before it, whose logits all
// consumers have written when they meet here. A warp scores its lines (draw_slots.cuh) one after the other.
#pragma once
#include "instructions/draw_slots.cuh"
// Before this one, which is written with what a line is to the kernel:
#include "instructions/score_lines.cuh"

namespace mk {

// What a line is, for all that comes after.
__device__ inline void describe_line(const drawer &c, uint32_t flags) {
  const line_parameters &p = parameters_of(c);
  bool draws = (flags & MK_ROW_CHOOSES) != 0;
  if (c.lane == 0) {
    area().kept[c.line].is = LINE_IS_ACTIVE | (draws ? LINE_DRAWS : 0) | (draws || tells_of_all(c) ? LINE_WAITS : 0) |
                             (draws && mk_sampling_cuts(p.words) ? LINE_SEARCHES : 0) |
                             ((p.words[MK_SAMPLING_FLAGS] & MK_SAMPLE_TOP_P) != 0 ? LINE_WEIGHS : 0);
  }
  __syncwarp();
}

// By one thread: where this SM's tokens are, and what belongs to them.
__device__ inline void put_tokens(const device &d, const mk_instruction_word &in) {
  volatile shared_words *words = d.words();
  const mk_operand &scores = in.parts[MK_PART_SCORE_scores];
  uint32_t vocab = buffer_of(in, MK_PART_SCORE_scores).cols, first = scores.col * 16;
  words->logits = start_of<const float>(in, MK_PART_SCORE_logits);
  words->bias = start_of<const float>(in, MK_PART_SCORE_bias);
  words->counts = start_of<const uint32_t>(in, MK_PART_SCORE_counts);
  area().vocab = vocab;
  area().first_token = first;
  area().end_token = min(first + scores.cols * 16u, vocab);
}

__device__ inline void consume_SCORE(wide_consumer &here, const mk_instruction_word &in) {
  drawer c{here.d, here.d.warp, tile::lane(), 0};
  consumers_meet(c);  // the HEAD's room is free from here on, and its logits are there
  if (tile::thread() == 0) {
    put_tokens(c.d, in);
  }
  consumers_meet(c);
  uint32_t count = tile::uniform(lines_of(c.d).count);
  warp_lines lines(c, in, MK_WHOLE_SCORE_sampling);
  begin_search(search_of(c), c.lane);
#pragma unroll 1
  for (uint32_t place = 0; warp_lines::line_at(c, place) < count; place++) {
    uint32_t flags = tile::uniform(tile::from_lane(lines.flags, place));
    lines.take(c, place);
    if (c.lane == 0) {
      area().kept[c.line].is = 0;
    }
    lines.keep(c);
    if ((flags & MK_ROW_ACTIVE) == 0) {
      continue;
    }
    describe_line(c, flags);
    const line_tokens t = own_tokens(c);
    score_store q = {};
    if (tile::uniform(line_chooses(c) && t.first < t.end)) {
      make_front(c, t, UINT32_MAX, q);
    }
    if (tile::uniform(tells_of_all(c))) {
      tile::fence_release();  // before one line's front: all that this SM did in the step
    }
    publish_front(c, in, q);
  }
}

}  // namespace mk
