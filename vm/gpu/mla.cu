// The kernel of MLA programs: the same interpreter in another configuration (vm/gpu/mla_shared.h). One block per SM.
// Two warpgroups consume, with most of the registers; of the third warpgroup one warp loads and one controls. A launch
// has one epoch.
#define MK_GPU_MLA 1
#include "instructions/mla_part.cuh"
#include "instructions/mla_reduce.cuh"
#include "vm/gpu/mla_loader.cuh"

namespace mk {

__device__ __forceinline__ void load_queue(mla_loader &l, const first_entries &first) {
  instruction_cursor cursor;
  for (bool last = false; !last;) {
    const mk_instruction_word *in = fetch(l.d, cursor);
    if (in == nullptr) {
      return;
    }
    if (in->opcode == only<&opcode_row::items>) {
      load_MLA_PART(l, first);
    } else if (in->opcode == only<&opcode_row::reductions>) {
      load_MLA_REDUCE(l, first.head);
    }
    last = done_with(l.d, cursor);
  }
}

// A queue begins with its only MLA_PART (rule L02). It stands outside of the loop: in a loop with other opcodes the
// compiler would keep in registers what each of them needs, and there is no room for that. What follows it are
// reductions: where the list has none, the consumers do not even fetch them.
__device__ __forceinline__ void consume_queue(attender &a) {
  instruction_cursor cursor;
  const mk_instruction_word *in = fetch(a.d, cursor);
  if (in == nullptr) {
    return;
  }
  bool reduces = consume_MLA_PART(a, *in);
  tile::wait_for_launch_before();  // also where there was no item
  for (bool last = !reduces || done_with(a.d, cursor); !last; last = done_with(a.d, cursor)) {
    in = fetch(a.d, cursor);
    if (in == nullptr) {
      return;
    }
    if (in->opcode == only<&opcode_row::reductions>) {
      consume_MLA_REDUCE(a, *in);
    }
  }
}

// As look_up, for the MLA_PART that a queue begins with (rule L02). But what the kernel needs first of all is looked up
// sooner: the table of buffers, being small, is fetched together with the instruction.
__device__ inline void look_up_with_table(const device &d, uint32_t index, looked_up &to) {
  enum { TABLE_ROUNDS = MK_MLA_GPU_MOST_BUFFERS * looked_up::BUFFER_WORDS / 32 };
  static_assert(TABLE_ROUNDS * 32 == MK_MLA_GPU_MOST_BUFFERS * looked_up::BUFFER_WORDS, "whole rounds");
  uint32_t lane = tile::lane(), table[TABLE_ROUNDS];
  to.instruction = __ldg(tile::view<uint32_t>(d.params.instructions + index) + lane);
#pragma unroll
  for (uint32_t r = 0; r < TABLE_ROUNDS; r++) {
    table[r] = __ldg(tile::view<uint32_t>(d.params.buffers) + r * 32 + lane);
  }
#pragma unroll
  for (uint32_t r = 0; r < looked_up::ROUNDS; r++) {
    uint32_t word = r * 32 + lane, descriptor = min(word / looked_up::BUFFER_WORDS, DESCRIPTORS - 1u);
    uint32_t buffer = buffer_named(to.instruction, opcodes.MLA_PART.parts, descriptor);
    uint32_t from = buffer * looked_up::BUFFER_WORDS + word % looked_up::BUFFER_WORDS;
    to.buffers[r] = 0;
#pragma unroll
    for (uint32_t t = 0; t < TABLE_ROUNDS; t++) {
      uint32_t value = tile::from_lane(table[t], from % 32);
      to.buffers[r] = from / 32 == t ? value : to.buffers[r];
    }
  }
  to.total = 0;
}

// A warp may be done long before another one, which still waits for other SMs' sums of its rows.
__device__ inline bool all_finished(const device &d) { return d.words()->finished == MK_GPU_CONSUMER_WARPS; }

// Hands out all instructions, and watches over everybody's waits until the consumers are done.
__device__ __forceinline__ void run_mla_controller(const device &d, looked_up &first, uint32_t index, uint32_t count) {
  enum { LOOKS = 256 };  // for the consumers' end, from one look at everything else, a trip to memory, to the next
  instruction_cursor cursor;
  watch w;
  note_clocks(d, 0);
  hand_out(d, cursor, first, count == 1);
  for (uint32_t i = 1; i < count; i++) {
    look_up(d, index + i, first);
    hand_out(d, cursor, first, i + 1 == count);
  }
  begin_long_wait(d, MK_ACTIVITY_MEETING, 0, 0);  // for the consumers: a new wait with every entry that they take
  while (tile::all_lanes(!all_finished(d) && d.words()->leave == 0)) {
    watch_over(d, w);
    for (uint32_t i = 0; i < LOOKS && tile::all_lanes(!all_finished(d)); i++) {
    }
  }
  d.words()->gone = 1;
  note_clocks(d, 1);
}

__device__ __forceinline__ void run_attender(device d) {
  attender a{d, d.warp, tile::lane(), d.warp / 4, {}, {}, 0};
  consume_queue(a);
  if (a.lane == 0) {
    atomicAdd(const_cast<uint32_t *>(&d.words()->finished), 1u);
    if (a.warp == 0 && blockIdx.x == 0) {
      *d.params.epochs_done = 1;
    }
  }
}

}  // namespace mk

extern "C" __global__ void __launch_bounds__(MK_GPU_THREADS, 1)
    mk_mla_kernel(const __grid_constant__ mk_gpu_mla_params params) {
  using namespace mk;
  device d{params.common, tile::warp(), 0};
  tile::start_next_launch();
  uint32_t index = blockIdx.x * params.queue_length;
  looked_up first;
  first_entries entries;
  if (d.warp == MK_GPU_CONSUMER_WARPS) {
    entries.head = __ldg(list_row(params.inputs));
    entries.mine = look_at_entries(params.inputs, 0);
  } else if (d.warp == MK_GPU_CONSUMER_WARPS + 1 && tile::elect()) {
    tile::prefetch_tensor_map(&params.queries);
    tile::prefetch_tensor_map(&params.pages);
  }
  if (d.warp == CONTROLLER_WARP) {
    look_up_with_table(d, index, first);
  }
  clear_warp_words(d);
  if (tile::thread() == 0) {
    init_mla_barriers(d);
    clear_block_words(d);
  }
  __syncthreads();
  if (d.warp < MK_GPU_CONSUMER_WARPS) {
    tile::take_registers<224>();
    run_attender(d);
  } else {
    tile::give_registers<56>();
    if (d.warp == MK_GPU_CONSUMER_WARPS) {
      look_at_lengths(params.inputs, entries);
      mla_loader l{d, params, tile::lane(), {}, {}, 0, 0, 0};
      start_first_item(l, entries);
      load_queue(l, entries);
    } else if (d.warp == CONTROLLER_WARP) {
      run_mla_controller(d, first, index, params.queue_length);
    }
  }
}
