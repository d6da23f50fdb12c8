// The controller fetches instructions, with the descriptors of all buffers that they name, into the ring of
// instructions. Meanwhile it watches over the waits of all warps of its SM, and ends the launch where one has outlived
// its deadline (wait.cuh). The functions by which other roles take instructions from the ring are here as well. All of
// it is the same in every kernel.
#pragma once
#include "vm/gpu/opcodes.cuh"
#include "vm/gpu/wait.cuh"

namespace mk {

// These clear shared words at the start of a launch: each warp those in which it tells of itself, and the first thread
// those of the whole block.
__device__ inline void clear_warp_words(const device &d) {
  if (tile::lane() == 0) {
    volatile shared_words *words = d.words();
    words->waits[d.warp].what = 0;
    words->tickets[d.warp] = 0;
    words->uid[d.warp] = 0;
  }
}
__device__ inline void clear_block_words(const device &d) {
  volatile shared_words *words = d.words();
  words->leave = 0;
  words->gone = 0;
  words->finished = 0;
  words->fault.what = 0;
}

// The next instruction of the ring; nullptr when the controller hands out no more. Consumer warps end only where they
// get nullptr. As the controller hands out the same instructions to all of them, they all end at the same instruction.
__device__ inline const mk_instruction_word *fetch(device &d, const instruction_cursor &cursor) {
  if (!wait_instruction(d, cursor)) {
    return nullptr;
  }
  const mk_instruction_word *in = &d.slot(cursor.slot())->instruction;
  d.set_uid(in->uid);
  record(d, MK_ACTIVITY_WORK, 0);
  return in;
}

// Moves on in the ring. True: that was the last instruction of the queue.
__device__ inline bool done_with(const device &d, instruction_cursor &cursor) {
  bool last = (d.slot(cursor.slot())->flags & SLOT_IS_LAST) != 0;
  __syncwarp();
  if (tile::lane() == 0) {
    tile::arrive(d.barrier(INSTRUCTION_EMPTY + cursor.slot()));
  }
  cursor.next();
  return last;
}

// With several rows the controller also looks up what the draws of a step depend on, while the HEAD before them is
// under way. Kernels that do so have a prepare_draws.
template <typename role>
constexpr bool PREPARES_DRAWS = requires(const role &d, const mk_instruction_word &in) {
  prepare_draws(d, in);
};

// An instruction, the descriptors of the buffers that it names, and the totals of its counters, a few words in each
// lane. They are on their way from memory while the controller waits for room in the ring.
struct looked_up {
  enum { BUFFER_WORDS = sizeof(mk_gpu_buffer) / 4, WORDS = DESCRIPTORS * BUFFER_WORDS, ROUNDS = (WORDS + 31) / 32 };
  uint32_t instruction, buffers[ROUNDS], total;
};

// How many PARTs the opcodes have: four bits for each of sixteen opcodes.
__device__ constexpr uint64_t parts_by_opcode(uint32_t sixteen) {
  uint64_t parts = 0;
#define MK_OPCODE(NAME, text, state, semantics) \
  parts += opcodes.NAME.number / 16 != sixteen  \
               ? 0                              \
               : static_cast<uint64_t>(opcodes.NAME.parts) << 4 * (opcodes.NAME.number % 16);
#include "vm/program/opcodes.def"
  return parts;
}
#define MK_OPCODE(NAME, text, state, semantics)                        \
  static_assert(opcodes.NAME.absent || opcodes.NAME.number < 32, #NAME \
                ": four bits for each opcode, in two "                 \
                "constants");
#include "vm/program/opcodes.def"
__device__ constexpr uint32_t parts_of(uint32_t opcode) {
  constexpr uint64_t low = parts_by_opcode(0), high = parts_by_opcode(1);  // zero in most kernels
  return static_cast<uint32_t>((high != 0 && opcode >= 16 ? high : low) >> 4 * (opcode % 16)) & 15;
}

// Which buffer is that of descriptor number `descriptor` of an instruction, whose words the lanes hold, and which has
// `parts` PARTs. MK_ABSENT: an operand that the instruction does without. 0: the instruction has fewer operands; the
// words between operands and parameters are zero.
__device__ inline uint32_t buffer_named(uint32_t instruction, uint32_t parts, uint32_t descriptor) {
  uint32_t half = MK_HEAD_BYTES / 2 + (descriptor < parts ? descriptor * MK_PART_HALVES + 1
                                                          : parts * MK_PART_HALVES + whole_at(descriptor));
  uint32_t word = tile::from_lane(instruction, half / 2);
  return half % 2 != 0 ? word >> 16 : word & 0xffffu;
}
#define MK_PARAM(NAME, index, field, type)                                                                       \
  static_assert(opcodes.NAME.absent || opcodes.NAME.parts * MK_PART_HALVES + DESCRIPTORS - opcodes.NAME.parts <= \
                                           2 * (MK_POOL_WORDS - 1 - index),                                      \
                #NAME ": " #field " stands where buffer_named looks for buffers");
#include "vm/program/opcodes.def"

__device__ inline void look_up(const device &d, uint32_t index, looked_up &to) {
  uint32_t lane = tile::lane();
  to.instruction = __ldg(tile::view<uint32_t>(d.params.instructions + index) + lane);
  uint32_t parts = parts_of(tile::from_lane(to.instruction, 0) & 0xffu);
#pragma unroll
  for (uint32_t r = 0; r < looked_up::ROUNDS; r++) {
    uint32_t word = r * 32 + lane, descriptor = min(word / looked_up::BUFFER_WORDS, DESCRIPTORS - 1u);
    uint32_t buffer = buffer_named(to.instruction, parts, descriptor);
    to.buffers[r] = buffer == MK_ABSENT
                        ? 0
                        : __ldg(tile::view<uint32_t>(d.params.buffers + buffer) + word % looked_up::BUFFER_WORDS);
  }
  uint32_t edges = tile::from_lane(to.instruction, 0) >> 16,
           edge = tile::from_lane(to.instruction, 2 + tile::place_in_group<6>(lane));
  uint32_t waits = edges & 15, signals = edges >> 4 & 15;
  bool used = lane < MK_MAX_WAITS ? lane < waits : lane - MK_MAX_WAITS < signals;
  to.total = lane < MK_MAX_WAITS + MK_MAX_SIGNALS && used ? __ldg(d.params.counter_totals + (edge >> 16)) : 0;
}

// Writes the instruction into the ring slot at hand, which is empty, and gives it to the other roles.
template <typename role>
__device__ __forceinline__ void hand_out(const role &d, instruction_cursor &cursor, const looked_up &words, bool last) {
  uint32_t lane = tile::lane();
  d.set_uid(tile::from_lane(words.instruction, offsetof(mk_instruction_word, uid) / 4));
  record(d, MK_ACTIVITY_WORK, 0);
  instruction_slot *slot = d.slot(cursor.slot());
  tile::view<uint32_t>(&slot->instruction)[lane] = words.instruction;
#pragma unroll
  for (uint32_t r = 0; r < looked_up::ROUNDS; r++) {
    if (r * 32 + lane < looked_up::WORDS) {
      tile::view<uint32_t>(slot->buffers)[r * 32 + lane] = words.buffers[r];
    }
  }
  if (lane < MK_MAX_WAITS + MK_MAX_SIGNALS) {
    slot->wait_totals[lane] = words.total;  // the totals of the signals come after those of the waits
  }
  bool release = (words.total & MK_GPU_COUNTER_RELEASE) != 0;
  bool waits = tile::any_lane(release && lane < MK_MAX_WAITS);
  bool signals = tile::any_lane(release && lane >= MK_MAX_WAITS);
  if (lane == 0) {
    slot->flags = (last ? SLOT_IS_LAST : 0) | (waits ? SLOT_WAITS_RELEASE : 0) | (signals ? SLOT_SIGNALS_RELEASE : 0);
  }
  __syncwarp();
  if constexpr (PREPARES_DRAWS<role>) {
    if (slot->instruction.opcode == only<&opcode_row::scores>) {
      prepare_draws(d, slot->instruction);
    }
  }
  if (lane == 0) {
    tile::arrive(d.barrier(INSTRUCTION_FULL + cursor.slot()));
  }
  cursor.next();
}

// Watches over all waits until the barrier has come to that phase. False: all roles are to leave.
__device__ __forceinline__ bool watch_until(const device &d, uint32_t barrier, uint32_t parity, watch &w) {
  while (!tile::all_lanes(tile::try_wait(barrier, parity))) {
    watch_over(d, w);
    if (tile::all_lanes(d.words()->leave != 0)) {
      return false;
    }
  }
  return true;
}

// Hands out all instructions, and watches over all waits, meanwhile and until the consumers are done.
template <typename role>
__device__ __forceinline__ void control_queue(role &d) {
  instruction_cursor cursor;
  watch w;
  bool searches = true;  // whether some line of this step needs the SIFTs
  const mk_gpu_queue queue = d.params.queues[blockIdx.x];
  for (d.epoch = 0; d.epoch < d.params.epochs; d.epoch++) {
    record_boundary(d);
    for (uint32_t i = 0; i < queue.count; i++) {
      looked_up words;
      look_up(d, queue.first + i, words);
      uint32_t opcode = tile::from_lane(words.instruction, 0) & 0xffu;
      if (PREPARES_DRAWS<role> && opcode == only<&opcode_row::sifts> && !searches) {
        continue;  // it would do nothing, and so the instructions after it are handed out sooner
      }
      uint32_t empty = d.barrier(INSTRUCTION_EMPTY + cursor.slot());
      if (!tile::all_lanes(tile::test_wait(empty, cursor.phase() ^ 1))) {
        record(d, MK_ACTIVITY_INSTRUCTION_SPACE, cursor.slot());
        if (!watch_until(d, empty, cursor.phase() ^ 1, w)) {
          return;
        }
      }
      // prepare_draws reads the rows of the step.
      if (PREPARES_DRAWS<role> && opcode == only<&opcode_row::scores> && d.epoch != 0 &&
          !watch_until(d, d.barrier(STATE_READY), (d.epoch - 1) % 2, w)) {
        return;
      }
      hand_out(d, cursor, words, i + 1 == queue.count);
      if constexpr (PREPARES_DRAWS<role>) {
        if (opcode == only<&opcode_row::scores>) {
          searches = lines_search(d);
        }
      }
    }
  }
  while (tile::all_lanes(d.words()->finished == 0 && d.words()->leave == 0)) {
    watch_over(d, w);
  }
  watch_over(d, w);  // once more: in the last step an index may have been found out of range
}

__device__ inline void note_clocks(const device &d, uint32_t which) {
  if (blockIdx.x == 0 && tile::lane() == 0) {
    d.params.clocks->nanoseconds[which] = tile::global_nanoseconds();
    d.params.clocks->ticks[which] = tile::clock_ticks();
  }
}

__device__ __forceinline__ void run_controller(device d) {
  note_clocks(d, 0);
  light_beacon(d, 0);
  control_queue(d);
  d.words()->gone = 1;
  record_boundary(d);
  note_clocks(d, 1);
  light_beacon(d, 1);
}

}  // namespace mk
