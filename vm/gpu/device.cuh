// What every role of a block has in hand: shared memory by name, the launch parameters, positions in rings.
#pragma once
#include <cstddef>

#include "instructions/tile/barrier.cuh"
#include "instructions/tile/edge.cuh"
#include "instructions/tile/warp.cuh"
#include "vm/gpu/launch.h"
#include "vm/gpu/opcodes.cuh"
#include "vm/program/plan.h"

#ifndef MK_GPU_SAMPLES
#define MK_GPU_SAMPLES false
#endif
#ifndef MK_GPU_ROWS
#define MK_GPU_ROWS false  // several rows per step
#endif
#ifndef MK_GPU_RANKS
#define MK_GPU_RANKS false  // several GPUs that share a model
#endif
#ifndef MK_GPU_RECORDS
#define MK_GPU_RECORDS false  // what it does
#endif
#ifndef MK_GPU_SLOTS
#define MK_GPU_SLOTS false  // wide steps that several sequences share
#endif

namespace mk {

// Whether the opcode is done in the body that those that search share.
__device__ constexpr bool searches(const opcode_row &of) { return MK_GPU_SAMPLES && of.fronts; }

extern __shared__ __align__(1024) uint8_t shared_memory[];

// Shared-memory barriers, in 8-byte units from MK_GPU_BARRIERS_AT.
enum barrier_index {
  PAGE_FULL = 0,
  PAGE_EMPTY = PAGE_FULL + MK_GPU_RING_PAGES,
  RESULT_FULL = PAGE_EMPTY + MK_GPU_RING_PAGES,
  RESULT_EMPTY = RESULT_FULL + MK_GPU_RESULT_SLOTS,
  INSTRUCTION_FULL = RESULT_EMPTY + MK_GPU_RESULT_SLOTS,
  INSTRUCTION_EMPTY = INSTRUCTION_FULL + MK_GPU_INSTRUCTION_SLOTS,
  STATE_READY = INSTRUCTION_EMPTY + MK_GPU_INSTRUCTION_SLOTS,
  OWN_BARRIERS,           // barriers that some kernels alone use; the words after them are aligned to 16 bytes
  SCORED = OWN_BARRIERS,  // with sampling: this SM's logits of the step are there
  BARRIER_COUNT = OWN_BARRIERS + MK_GPU_OWN_BARRIERS,
};

struct step_state {  // of one epoch, in shared memory, double-buffered by parity
  uint32_t token;    // MK_CANDIDATE_STOP added: the launch ends before this step
  uint32_t position;
  uint32_t flags;   // of the step's row in the plan
  uint32_t choice;  // the last token that was chosen in this launch, before the step
};

struct warp_step {  // a warp's own copy
  uint32_t token, position;
};

struct alignas(16) long_wait {  // what a warp has waited for in vain for some time
  uint32_t what;                // mk_activity, and the edge in the upper half; 0: it does not wait
  uint32_t have, want, epoch;
};

struct alignas(16) track_end {  // where a role's next note goes
  uint32_t first;               // the first of the role's places among all notes
  uint32_t room;                // how many notes it may write; 0: nothing is recorded now
  uint32_t at;                  // notes so far
  uint32_t records;             // how many records these notes stand for
};

// Of several ranks the distances of copies (copies.cuh), eight of them, have the place of tracks, or, where these are
// recorded, come after them.
enum { DISTANCES_AT = MK_GPU_RECORDS ? MK_TRACE_ROLES : 0, DISTANCES = MK_GPU_MOST_RANKS * 8 / sizeof(track_end) };

// Storers of other families' kernels, and with one row of several ranks that are recorded, keep their position in
// shared memory.
enum : bool { STORERS_PUT_DOWN = MK_GPU_FAMILIES || (MK_GPU_RANKS && MK_GPU_RECORDS && !MK_GPU_ROWS && !MK_GPU_WIDE) };

struct shared_words {  // after the barriers
  long_wait waits[MK_GPU_WARPS];
  long_wait fault;  // an index out of its range: `what` is the kind of fault, with the warp in its upper half; 0: none
  track_end tracks[MK_TRACE_ROLES + (MK_GPU_RANKS && MK_GPU_RECORDS ? DISTANCES : 0)];
  uint32_t tickets[MK_GPU_WARPS];            // number of long waits so far: tells one long wait from the next
  uint32_t uid[MK_GPU_WARPS];                // of the instruction that each warp has at hand
  warp_step at_step[MK_GPU_CONSUMER_WARPS];  // each warp's copy of the step
  // Position of each warp in the instruction ring; of storers where they keep it here.
  uint32_t at_hand[STORERS_PUT_DOWN ? MK_GPU_WARPS : MK_GPU_CONSUMER_WARPS];
  uint8_t at_flags[MK_GPU_CONSUMER_WARPS];  // the flags of that warp's step
  step_state state[2];
  uint32_t fault_uid;  // of the instruction that came to the fault
  uint32_t leave;     // not 0: all waits give up, since one outlived its deadline on some SM, or the host wants to stop
  uint32_t gone;      // the controller hands out no more instructions
  uint32_t finished;  // the consumers are done with the launch; in the MLA kernel: how many of their warps are
  uint32_t combines;  // whether the ATTENTION at hand does the work of the COMBINEs of its heads
  // Of the ATTENTION at hand: whether its split has the newest token, whether that token is put into its page when it
  // is staged, and how many blocks and parts the split has.
  uint32_t owns_newest, newest_put, kv_blocks, kv_parts;
  // Of the token boundary: each warp's best candidate. Two copies by the epoch's parity: a warp may be one meeting
  // late.
  float best[2][MK_GPU_CONSUMER_WARPS];
  uint32_t index[2][MK_GPU_CONSUMER_WARPS];
  // Of the draw, which uses the two above for the halves of keys. Each is a generation: that of the last draw in which
  // it held.
  uint32_t peaks[MK_GPU_CONSUMER_WARPS];
  // scores_wanted: another SM looks at the scores.
  uint32_t stopped, scores_wanted;
  // These are the storer's, since its registers are short: the parameters of the draw at hand. The consumers also read
  // where scores come from.
  uint64_t noise_start;
  const float *logits, *bias;
  const uint32_t *counts;
  float inverse_temperature;
  uint32_t starts[MK_TRACE_ROLES];  // of a wait at hand, for the recorder
};
static_assert(BARRIER_COUNT * 8 % 16 == 0, "the words after the barriers are aligned to 16 bytes");
static_assert(BARRIER_COUNT * 8 + sizeof(shared_words) <= MK_GPU_BARRIER_AREA_BYTES,
              "the barrier area of launch.h is too small");

enum slot_flag {
  SLOT_IS_LAST = 1,  // of the queue
  SLOT_WAITS_RELEASE = 2,
  SLOT_SIGNALS_RELEASE = 4,
};

enum { BLOCK_TOKENS = MK_GPU_BLOCK_TOKENS };

// Buffers that an instruction may name.
enum { DESCRIPTORS = 6 };
#define MK_OPERAND(NAME, slot, field, access, role, when, extent, dtype, store) \
  static_assert(slot < DESCRIPTORS, #NAME ": " #field " has no descriptor on the device; raise DESCRIPTORS");
#include "vm/program/opcodes.def"

// The place of a WHOLE's descriptor (MK_WHOLE_...); that of a PART is its number (MK_PART_...).
__device__ constexpr uint32_t whole_at(uint32_t number) { return DESCRIPTORS - 1 - number; }

// A slot of the instruction ring. The controller looks up what the instruction names. Otherwise a role, after its wait,
// would have to read tables in global memory before it could read the data.
struct instruction_slot {
  mk_instruction_word instruction;
  mk_gpu_buffer
      buffers[DESCRIPTORS];  // PARTs from the first place on, as in the word; WHOLEs from the last one on, backwards
  uint32_t wait_totals[MK_MAX_WAITS], signal_totals[MK_MAX_SIGNALS];  // as in counter_totals
  uint32_t flags;                                                     // slot_flag
};
static_assert(sizeof(instruction_slot) <= MK_GPU_INSTRUCTION_SLOT_BYTES,
              "an instruction slot of launch.h is too small");

enum role { ROLE_LOADER, ROLE_CONSUMER, ROLE_STORER, ROLE_CONTROLLER };

enum { STORERS = MK_GPU_ROWS ? 2 : 1 };  // of a block; the second one is its last warp, which idles otherwise

// The role of a warp of the block.
__device__ inline role role_of(uint32_t warp) {
  return warp < MK_GPU_CONSUMER_WARPS                        ? ROLE_CONSUMER
         : warp == MK_GPU_CONSUMER_WARPS                     ? ROLE_LOADER
         : warp == MK_GPU_CONSUMER_WARPS + 1                 ? ROLE_STORER
         : STORERS == 2 && warp == MK_GPU_CONSUMER_WARPS + 3 ? ROLE_STORER
                                                             : ROLE_CONTROLLER;
}

struct device {
  const mk_gpu_params &params;
  uint32_t warp;   // of the block, known to the compiler to be the same for all lanes
  uint32_t epoch;  // within the launch

  __device__ static uint8_t *page(uint32_t slot) { return shared_memory + slot * MK_GPU_PAGE_BYTES; }
  __device__ static uint8_t *activation() { return shared_memory + MK_GPU_ACTIVATION_AT; }
  __device__ static float *result(uint32_t slot) {
    return tile::view<float>(shared_memory + MK_GPU_RESULTS_AT + slot * MK_GPU_RESULT_BYTES);
  }
  __device__ static instruction_slot *slot(uint32_t index) {
    return tile::view<instruction_slot>(shared_memory + MK_GPU_INSTRUCTIONS_AT + index * MK_GPU_INSTRUCTION_SLOT_BYTES);
  }
  __device__ static uint32_t barrier(uint32_t index) {
    return tile::shared_address(shared_memory) + MK_GPU_BARRIERS_AT + index * 8;
  }
  __device__ static volatile shared_words *words() {
    return tile::view<volatile shared_words>(shared_memory + MK_GPU_BARRIERS_AT + BARRIER_COUNT * 8);
  }
  // The uid of the instruction at hand, for records and fault points. In shared memory, since registers are short.
  __device__ uint32_t uid() const { return words()->uid[warp]; }
  __device__ void set_uid(uint32_t uid) const { words()->uid[warp] = uid; }
  __device__ uint32_t generation() const { return params.first_epoch + epoch + 1; }
  // The slot that holds an instruction, or a PART of one.
  __device__ static const instruction_slot &slot_of(const mk_instruction_word &in) {
    return *tile::view<instruction_slot>(&in);
  }
  __device__ const mk_gpu_buffer &buffer(const mk_operand &operand) const {
    uint32_t offset = tile::shared_address(&operand) - tile::shared_address(shared_memory) - MK_GPU_INSTRUCTIONS_AT;
    uint32_t at = offset % MK_GPU_INSTRUCTION_SLOT_BYTES - static_cast<uint32_t>(offsetof(mk_instruction_word, parts));
    uint32_t index = at / static_cast<uint32_t>(sizeof(mk_operand));  // in 32 bits: a third of the instructions
    return slot(offset / MK_GPU_INSTRUCTION_SLOT_BYTES)->buffers[index];
  }
};

// A result of one row, in floats: the sums of sixteen rows for each chain, and its squares. Of strips, which are handed
// over in few instructions, a chain's squares lie after its sums.
enum {
  RESULT_CHAIN = MK_GPU_QUANTISED ? 17 : 16,
  RESULT_SQUARES = MK_GPU_QUANTISED ? 16 : 256,
  RESULT_SQUARE = MK_GPU_QUANTISED ? 17 : 1,
};

// A position in a ring of `slots` slots: phases of full barriers start at 0; those of empty ones are already complete
// in the first round.
template <uint32_t slots>
struct ring_cursor {
  uint32_t at = 0;  // with the phase in the highest bit, to need one register only
  __device__ uint32_t slot() const { return at & 0xffffu; }
  __device__ uint32_t phase() const { return at >> 31; }
  __device__ void next() { at = slot() + 1 == slots ? ~at & 0x80000000u : at + 1; }
  __device__ void advance(uint32_t count) {  // at most once round
    at += count;
    if (slot() >= slots) {
      at = (at - slots) ^ 0x80000000u;
    }
  }
};

using instruction_cursor = ring_cursor<MK_GPU_INSTRUCTION_SLOTS>;

// False at the test fault point: the instruction at hand keeps its results to itself.
__device__ inline bool publishes(const device &d) {
  return d.params.skip_signal_uid == 0 || d.uid() != d.params.skip_signal_uid;
}

// What the instruction's word says besides its PARTs: a parameter (MK_PARAM_...), and the buffer of a WHOLE
// (MK_WHOLE_...), all of it zero where that is absent.
__device__ inline const uint32_t &param(const mk_instruction_word &in, uint32_t index) {
  return in.words[MK_POOL_WORDS - 1 - index];
}
__device__ inline const mk_gpu_buffer &whole_buffer(const mk_instruction_word &in, uint32_t number) {
  return device::slot_of(in).buffers[whole_at(number)];
}

// Of parts of attention: where what fused COMBINEs make of them lies; 0: they are not fused.
__device__ inline uint64_t combined_address(const mk_gpu_buffer &parts) {
  return static_cast<uint64_t>(parts.combined_high) << 32 | parts.combined_low;
}

// Whether the instruction waits for release counters, or signals some (SLOT_...).
__device__ inline bool has_flag(const mk_instruction_word &in, slot_flag flag) {
  return (device::slot_of(in).flags & flag) != 0;
}

}  // namespace mk

#if defined MK_GPU_DEBUG && MK_GPU_DEBUG
#include "vm/gpu/say.cuh"
#endif
