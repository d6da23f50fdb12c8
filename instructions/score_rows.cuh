// SCORE of the kernel of several rows per step, on the device: a line for each warp (draw_rows.cuh). Waits: this SM's
// storers, for the last logits (SCORED). Most tokens are scored while the storers still have the last row tiles of the
// HEAD.
#pragma once
#include "instructions/draw_rows.cuh"
// Before this one, which is written with what a line is to the kernel:
#include "instructions/score_lines.cuh"

namespace mk {

// Row tiles at the end of a HEAD that its storers may still have when a warp has put down its sums of the last one: it
// has waited until they had taken those of two and a half tiles before, and then they have stored all tiles before that
// one.
enum { LATE_TILES = 4 };

__device__ inline void consume_SCORE(rows_consumer &here, const mk_instruction_word &in) {
  rows_consumer c = here;
  c.lane = tile::anew(c.lane);
  c.warp = tile::anew(c.warp);
  look_up_epoch(c);
  const line_tokens t = own_tokens(c);
  uint32_t tiles = (t.end - t.first) / 16;
  bool early = tile::uniform(tiles > LATE_TILES && rows_of(c.d).chooses != 0);
  bool releases = tile::uniform(tells_of_all(c));
  if (early && releases) {
    tile::fence_release();  // before one line's front: all that this SM did in the step before its HEAD's last tiles
  }
  score_store q = {};
  if (tile::uniform(line_chooses(c) && t.first < t.end)) {
    make_front(c, t, early ? t.first + (tiles - LATE_TILES) * 16 : t.first, q);
  }
  wait_last_logits(c);
  begin_search(search_of(c), c.lane);
  if (!early) {
    consumers_meet(c);
    if (releases) {
      tile::fence_release();
    }
  }
  if (tile::uniform((rows_of(c.d).active >> c.warp & 1) != 0)) {
    publish_front(c, in, q);
  }
}

}  // namespace mk
