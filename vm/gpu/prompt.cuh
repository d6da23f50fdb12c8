// What the roles of the kernel for prompts share. A step computes up to 64 rows, its *lines*, at neighbouring positions of one sequence; eight
// warps consume, with most of the registers, and store themselves.
//
// A value that is multiplied by a weight (bf16, stamped) lies in the order of the B fragments, in steps of 2048 bytes: sixteen elements of
// 64 lines, sixteen lines at a time in 512 bytes as rows.cuh has them. Behind all steps comes a flag for each half of a step, eight elements
// of all lines: a generation, released by the writer and acquired by the readers, in the words of vm/program/program.h the stamp of all its words.
#pragma once
#include "instructions/tile/fragment.cuh"
#include "vm/gpu/loader.cuh"
#include "vm/program/plan.h"

namespace mk {

struct prompt_state {     // of a step, in shared memory, double-buffered by the parity of the epoch
  uint32_t first, count;  // position of line 0, active lines: the first ones
  uint32_t chooses;       // the last of them does
  uint32_t stop;
  uint32_t tokens[MK_PROMPT_ROWS];
};

// Of each warp that consumes, since registers are short: where it is in the page ring, and how many results and normed instructions there
// have been, as results and squares take turns at two places; in ATTENTION, which span and set it has at hand; and the epoch.
struct warp_words {
  uint32_t pages, results, normed, span, set, epoch;
};

struct prompt_words {
  prompt_state state[2];
  warp_words warps[MK_GPU_CONSUMER_WARPS];
  float squares[2][MK_GPU_CONSUMER_WARPS][MK_PROMPT_ROWS];  // sums of x^2, of this instruction and of the one before
  float scales[MK_PROMPT_ROWS];                             // 1 / rms by line
  float best[32];                                           // of this SM's logits, by lane, and where
  uint32_t index[32];
  uint32_t choice;  // the last token that was chosen in this launch
};
static_assert(sizeof(prompt_words) <= MK_GPU_PROMPT_WORDS_BYTES, "prompt_shared.h has room for them");
static_assert(MK_GPU_SHARED_BYTES <= MK_PROMPT_GPU_SHARED_BYTES, "what the host asks for");

enum {
  RESULT_THERE = OWN_BARRIERS,  // two barriers, one for each place
  LINE_TILES = MK_PROMPT_ROWS / 8,
  VALUE_STEP_WORDS = 16 * MK_PROMPT_ROWS / 2,
  HALF_FLAGS = 2,                           // of a step
  CHUNK_STEPS = MK_PROMPT_GPU_CHUNK_STEPS,  // of a row tile: each warp has one part of it
  PART_STEPS = CHUNK_STEPS / MK_GPU_CONSUMER_WARPS,
  CHUNK_PAGES = CHUNK_STEPS * 512 / MK_GPU_PAGE_BYTES,
  PAGE_PARTS = MK_GPU_CONSUMER_WARPS / CHUNK_PAGES,  // warps that share a page
  PAGE_ARRIVALS = MK_GPU_CONSUMER_WARPS,             // that empty a page
  RESULT_FLOATS = 16 * MK_PROMPT_ROWS * MK_GPU_CONSUMER_WARPS,
};
static_assert(2 * RESULT_FLOATS * 4 <= MK_GPU_ACTIVATION_BYTES, "two results have room");
static_assert(LINE_TILES == MK_GPU_CONSUMER_WARPS, "each warp finishes the sums of eight lines");

__device__ inline volatile prompt_words *prompt_shared() {
  return reinterpret_cast<volatile prompt_words *>(shared_memory + MK_GPU_PROMPT_WORDS_AT);
}
__device__ inline volatile prompt_state &lines_of(const device &d) { return prompt_shared()->state[d.epoch % 2]; }

struct prompt_consumer {
  device d;
};

using page_cursor = ring_cursor<MK_GPU_RING_PAGES>;

__device__ inline volatile warp_words &words_of(const prompt_consumer &c) { return prompt_shared()->warps[c.d.warp]; }
// Changes one of them.
__device__ inline void put_word(volatile uint32_t &word, uint32_t value) {
  __syncwarp();
  word = value;
  __syncwarp();
}
// The page `number` from the next one on.
__device__ inline page_cursor page_ahead(const prompt_consumer &c, uint32_t number) {
  page_cursor at{words_of(c).pages};
  at.advance(number);
  return at;
}
__device__ inline void pass_pages(const prompt_consumer &c, uint32_t count) {
  put_word(words_of(c).pages, page_ahead(c, count).at);
}
// Its place in the instruction ring, and the epoch.
__device__ inline volatile uint32_t &at_hand(const prompt_consumer &c) { return c.d.words()->at_hand[c.d.warp]; }
__device__ inline const mk_instruction_word &instruction_at_hand(const prompt_consumer &c) {
  return c.d.slot(instruction_cursor{at_hand(c)}.slot())->instruction;
}
__device__ inline void set_epoch(prompt_consumer &c, uint32_t epoch) {
  c.d.epoch = epoch;
  words_of(c).epoch = epoch;
  __syncwarp();
}
// So that it need not be kept meanwhile.
__device__ inline void look_up_epoch(prompt_consumer &c) { c.d.epoch = words_of(c).epoch; }

// All consumer warps meet. Every warp comes to every meeting of an instruction, also when a wait has been given up (wait.cuh).
__device__ inline void consumers_meet() { tile::meet<MK_GPU_CONSUMER_WARPS * 32>(); }

__device__ inline void release_page(const prompt_consumer &c, uint32_t slot, uint32_t arrivals) {
  __syncwarp();
  if (tile::lane() == 0) {
    tile::arrive(c.d.barrier(PAGE_EMPTY + slot), arrivals);
  }
}

// Line of the lane's sums number i, among those that its warp finishes.
__device__ inline uint32_t line_of(const prompt_consumer &c, uint32_t lane, uint32_t i) {
  return c.d.warp * 8 + lane % 4 * 2 + i % 2;
}

// A value in this order.
struct value_view {
  uint32_t *words;

  __device__ explicit value_view(const mk_gpu_buffer &b) : words(reinterpret_cast<uint32_t *>(b.address)) {}
  // Where elements 2 pair and 2 pair + 1 of a line lie.
  __device__ uint32_t *word(uint32_t line, uint32_t pair) const {
    return words + pair / 8 * VALUE_STEP_WORDS + line / 16 * 128 + (line % 8 * 4 + pair % 4) * 4 + line / 8 % 2 * 2 +
           pair / 4 % 2;
  }
  __device__ uint32_t *flags(const mk_gpu_buffer &b) const { return words + b.cols / 16 * VALUE_STEP_WORDS; }
};

// The first word of a stamped operand, one row of tiles.
__device__ inline uint64_t *stamped_line(const device &d, const mk_operand &operand) {
  const mk_gpu_buffer &b = d.buffer(operand);
  return reinterpret_cast<uint64_t *>(b.address) + static_cast<uint64_t>(operand.row) * b.tile_rows * b.row_words +
         operand.col * b.tile_cols;
}

// Tells that all warps have written their lines of `halves` halves of steps from half `first` on: once an instruction.
__device__ inline void raise_flags(const prompt_consumer &c, const mk_gpu_buffer &out, uint32_t first,
                                   uint32_t halves) {
  consumers_meet();
  if (c.d.warp == 0 && publishes(c.d)) {
    tile::fence_release();
    uint32_t *flags = value_view(out).flags(out);
    for (uint32_t i = first + tile::lane(); i < first + halves; i += 32) {
      tile::store_relaxed(flags + i, c.d.generation());
    }
  }
}

// Makes the state of a step of its rows in the plan (nullptr: there is none), whose active ones are the first ones at neighbouring
// positions (vm/program/plan.h). A whole warp.
__device__ inline void put_step(const device &d, const uint32_t *step, uint32_t stop, volatile prompt_state &to) {
  uint32_t count = 0, chooses = 0;
#pragma unroll 1
  for (uint32_t i = 0; i < MK_PROMPT_ROWS / 32; i++) {
    uint32_t line = i * 32 + tile::lane();
    uint4 row = make_uint4(0, 0, 0, 0);
    if (step != nullptr && line < d.params.rows) {
      row = reinterpret_cast<const uint4 *>(step)[line];
    }
    count += __popc(__ballot_sync(0xffffffffu, (row.w & MK_ROW_ACTIVE) != 0));
    chooses |= __ballot_sync(0xffffffffu, (row.w & MK_ROW_CHOOSES) != 0);
    uint32_t token = row.z;
    if (token == MK_TOKEN_CHOSEN) {
      token = prompt_shared()->choice;
      token = index_fits(d, MK_GPU_FAULT_TOKEN, token, d.params.tokens) ? token : 0;
    }
    to.tokens[line] = token;
    if (line == 0) {
      to.first = row.y;
    }
  }
  if (tile::lane() == 0) {
    to.count = count;
    to.chooses = chooses;
    to.stop = stop;
  }
}

}  // namespace mk
