// How consumers walk their queue, from step to step; the same in every kernel of token programs. A kernel's consumers
// are the type `role`, for which it has consume_instruction, stops, and where a warp keeps its place.
#pragma once
#include "vm/gpu/controller.cuh"

namespace mk {

// False: the controller hands out no more.
template <typename role>
__device__ __forceinline__ bool consume_steps(role &c) {
  for (c.d.epoch = 0; c.d.epoch < c.d.params.epochs && !stops(c); c.d.epoch++) {
    record_boundary(c.d);
    put_down_epoch(c);
    for (bool last = false; !last;) {
      const mk_instruction_word *in = fetch(c.d, at_hand(c));
      if (in == nullptr) {
        return false;
      }
      planted_delay(c.d);
      consume_instruction(c, *in);
      look_up_epoch(c);
      instruction_cursor cursor = at_hand(c);
      last = done_with(c.d, cursor);
      set_at_hand(c, cursor);
    }
  }
  return true;
}

template <typename role>
__device__ __forceinline__ void consume_queue(role &c) {
  bool whole = consume_steps(c);
  record_boundary(c.d);
  if (is_first(c)) {
    if (stops(c)) {
      c.d.words()->leave = 1;  // the roles that run ahead then have nothing to wait for
    }
    c.d.words()->finished = 1;
    if (whole && blockIdx.x == 0) {
      *c.d.params.epochs_done = c.d.epoch;
    }
  }
}

}  // namespace mk
