// What the roles of the kernel of several rows per step share: the step state, and what lies where in the memory that
// the other kernels use for activations and results.
//
// The 16 x 16 sums of a row tile are two mma tiles of eight columns: column = row of the step, its *line*. A lane holds
// of either tile what sum_tile says: rows g and g + 8 of lines 2 t and 2 t + 1. Sums travel in this order from warp to
// warp.
//
// A value that is multiplied by a weight (bf16, stamped) has no stamp beside each word here: stamps would double what
// all SMs read, and one flag for many words needs a fence, which takes longer than a hop. The value lies in the order
// of the B fragments, in steps of 512 bytes. A step is sixteen elements of sixteen lines; lane 4 g + t of a warp has
// sixteen bytes of it, the words t and t + 4 of line g, then of line g + 8. A word that is not there yet is EMPTY_WORD,
// two numbers that no rounding gives (a NaN comes out as 0x7fff). So each word says by its data alone whether it is
// there, and this needs no order between words.
//
// In a step whose active lines are all among the first eight, these sixteen bytes are of line g alone: the words t and
// t + 4 of a step, then of the next one. So half as much is read. What the next step writes is emptied whole, in
// whatever order that step has.
//
// A value has two halves, by the generation's parity. A step writes one half and empties the other. The other half has
// the words of the step before, whose readers are done; the next step is the first to read that half again. In every
// step the same warp empties a word: the storer that writes it, or the COMBINE of its columns. The token boundary
// orders emptying and writing: the storers meet and release after the first sums of a HEAD, before they publish
// candidates; NEXT acquires once it has the candidates of all SMs for one line. Words of lines that are not active are
// emptied and not written, and readers leave them out.
//
// In the words of vm/program/program.h: a word that is there has the generation of the step whose half it lies in. The
// machine gives such buffers places of their own, and mk_gpu_read gives stamped rows (arena.c).
#pragma once
#include "instructions/sampling.h"
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"
#include "vm/program/plan.h"
#include "vm/program/spans.h"

namespace mk {

// The rows of a step, in shared memory, double-buffered by the parity of the epoch. Masks: a bit for each line.
struct rows_state {
  mk_step_row rows[MK_MAX_ROWS];
  uint32_t active, chooses, stop;
  uint32_t slots;  // a bit for each slot that has lines
  // By slot: its lines, order[start .. start + count - 1], whose positions follow each other from `slot_first` on.
  uint32_t slot_first[MK_MAX_ROWS], slot_start[MK_MAX_ROWS], slot_count[MK_MAX_ROWS];
  uint32_t order[MK_MAX_ROWS];
};

// Residuals that an addition has stored stay with their SM, in shared memory, since the next addition to them is on the
// same SM, and reading them back from global memory takes much longer. Each of the two storers has its own places; a
// column tile's number says which place it takes.
enum { RESIDUAL_TILES = 2, RESIDUAL_BYTES = RESIDUAL_TILES * 2 * 32 * 16 };

struct rows_words {
  rows_state state[2];
  uint32_t choices[MK_MAX_ROWS];  // by slot: the last token that it chose in this launch
  uint32_t results[MK_MAX_ROWS];  // by line, of the step at hand
  float scales[MK_MAX_ROWS];      // 1 / rms by line
  // These are the storers', a word for each lane, since their registers are short: cosines and sines of the tile at
  // hand; a HEAD's candidates so far, first values and then indices.
  float lane_words[2][4][32];
  uint32_t blocks[32];                        // the loader's, of KV: of the pieces that it has looked up
  uint32_t stop;                              // the host's wish, as the storers of the HEAD at hand saw it
  uint32_t residual_tags[2][RESIDUAL_TILES];  // by storer: what residuals() holds
};

// What a line's draw depends on, from its SCORE to its DRAW.
struct line_parameters {
  uint64_t key;                               // of the noise
  uint32_t words[MK_SAMPLING_FREQUENCY + 1];  // of its slot
  uint32_t counted;  // a bit for each line whose token counts for this one and is one of this SM's
};

struct rows_sampling_words : rows_words {  // of a kernel that samples
  line_parameters lines[MK_MAX_ROWS];
  uint32_t searching;                      // a bit for each line that has to search
  uint32_t vocab, first_token, end_token;  // this SM's tokens
};

constexpr uint32_t EMPTY_WORD = MK_GPU_EMPTY_BYTE * 0x1010101u;

enum {
  LINE_TILES = 2,  // of eight lines
  FEW_LINES = 8,
  CHUNK_PAGES = GROUPS,
  CHUNK_BYTES = CHUNK_PAGES * MK_GPU_PAGE_BYTES,
  CHUNK_STEPS = MK_GPU_CHUNK_STEPS,  // of a row tile: each warp has one part of it
  STEP_WORDS = 128,
  PIECE_BLOCKS = MK_GPU_PIECE_TOKENS / BLOCK_TOKENS,
  LOOKED_UP_PIECES = 32 / PIECE_BLOCKS,
  SUMS = 16 * MK_MAX_ROWS,  // of a row tile
  // A result is the sums of eight warps, of the earlier or the later half of a chunk; after these come their squares by
  // line. The halves take turns.
  HALF_WARPS = MK_GPU_CONSUMER_WARPS / 2,
  HALVES = 2,
  ROWS_SQUARES_AT = HALF_WARPS * SUMS * 4,
  ROWS_RESULT_BYTES = ROWS_SQUARES_AT + HALF_WARPS * MK_MAX_ROWS * 4,
  ROWS_RESULT_AT = MK_GPU_ACTIVATION_AT,
  // ATTENTION takes the memory of the results while there are none: for parts, then for queries and scales.
  ROWS_ATTENTION_AT = ROWS_RESULT_AT + MK_GPU_CONSUMER_WARPS * 8 * 32 * 4,
  ROWS_ATTENTION_BYTES = MK_GPU_RESULT_SLOTS * ROWS_RESULT_BYTES - MK_GPU_CONSUMER_WARPS * 8 * 32 * 4,
  ROWS_RESIDUALS_AT = ROWS_RESULT_AT + MK_GPU_RESULT_SLOTS * ROWS_RESULT_BYTES,
  ROWS_WORDS_AT = ROWS_RESIDUALS_AT + RESIDUAL_BYTES,
};
static_assert(ROWS_ATTENTION_AT + ROWS_ATTENTION_BYTES <= ROWS_RESIDUALS_AT, "attention has room where results lie");
static_assert(MK_GPU_RESULT_SLOTS > HALVES, "a warp's next result is in another slot than its last one");
static_assert(CHUNK_STEPS * 16 == MK_GPU_CONSUMER_WARPS * MK_CHAIN_COLS, "a warp's part of a chunk is one chain");
static_assert(ROWS_WORDS_AT + (MK_GPU_SAMPLES ? sizeof(rows_sampling_words) : sizeof(rows_words)) <=
                  MK_GPU_INSTRUCTIONS_AT,
              "the kernel of several rows fits");
static_assert(MK_GPU_RING_PAGES % CHUNK_PAGES == 0, "a chunk begins with the first group's slot");

using results_cursor = ring_cursor<MK_GPU_RESULT_SLOTS>;

__device__ inline volatile rows_words *rows_shared() {
  return tile::view<volatile rows_words>(shared_memory + ROWS_WORDS_AT);
}
__device__ inline volatile rows_sampling_words *rows_sampling() {
  return tile::view<volatile rows_sampling_words>(shared_memory + ROWS_WORDS_AT);
}
__device__ inline volatile rows_state &rows_of(const device &d) { return rows_shared()->state[d.epoch % 2]; }
__device__ inline uint8_t *rows_result(uint32_t slot) {
  return shared_memory + ROWS_RESULT_AT + slot * ROWS_RESULT_BYTES;
}

// Whether the step at hand has few lines, and values in that order.
constexpr bool KNOWS_FEW_LINES =
    MK_GPU_KNOWS_FEW_LINES(MK_GPU_QUANTISED, MK_GPU_SAMPLES, MK_GPU_FAMILIES, MK_GPU_RANKS);
__device__ inline bool has_few_lines(const device &d) {
  return KNOWS_FEW_LINES && d.params.pairs_of_steps != 0 && rows_of(d).active >> FEW_LINES == 0;
}

// A value in this order, namely the half that the step of this generation writes. `cols`: of the value.
struct value_view {
  uint32_t *words;

  __device__ value_view(uint64_t address, uint32_t cols, uint32_t generation)
      : words(tile::global<uint32_t>(address) + generation % 2 * (cols / 16 * STEP_WORDS)) {}
  __device__ value_view(const mk_gpu_buffer &b, uint32_t generation) : value_view(b.address, b.cols, generation) {}
  // Where the words of pair `pair` (elements 2 pair and 2 pair + 1) of a line lie.
  __device__ uint32_t *word(uint32_t line, uint32_t pair) const {
    return words + pair / 8 * STEP_WORDS + (line % 8 * 4 + pair % 4) * 4 + line / 8 * 2 + pair / 4 % 2;
  }
  // The same in a step that may have few lines.
  __device__ uint32_t *word(uint32_t line, uint32_t pair, bool few) const {
    return few ? words + pair / 16 * STEP_WORDS + (line * 4 + pair % 4) * 4 + pair / 4 % 4 : word(line, pair);
  }
};

// What COMBINE makes of the parts of some lines; where a line has one span in use, ATTENTION itself writes it.
__device__ inline value_view combined_value(const mk_gpu_buffer &parts, uint32_t generation) {
  uint32_t heads = parts.grid_cols / parts.spans;
  return value_view(combined_address(parts), heads * (parts.tile_cols - 2), generation);
}

// The tokens of a split come in pieces. Spans are a power of two of pieces (refuse.c). Gives the piece after `piece`,
// which may begin after the last token.
__device__ inline uint32_t piece_after(uint32_t piece, uint32_t span, uint32_t splits) {
  piece += MK_GPU_PIECE_TOKENS;
  return piece + ((piece & (span - 1)) == 0 ? (splits - 1) * span : 0);
}

// How many pages of a piece are loaded, by fours: those with tokens before `end`. A block of heads of 64 dims is one
// page, of 128 dims two.
__device__ inline uint32_t piece_pages(uint32_t piece, uint32_t end, uint32_t pages_per_block) {
  return pages_per_block * PIECE_BLOCKS > CHUNK_PAGES && end - piece > MK_GPU_PIECE_TOKENS / 2 ? 2 * CHUNK_PAGES
                                                                                               : 0 + CHUNK_PAGES;
}
static_assert(PIECE_BLOCKS == CHUNK_PAGES, "a piece is one chunk or two");

// The line of the lane's sum number `i` of a line tile.
__device__ inline uint32_t line_of(uint32_t lane, uint32_t tile, uint32_t i) {
  return tile * 8 + tile::lane_column(lane) + i % 2;
}

// Makes the state of a step from its rows: lane l has row l in `row` (idle beyond the program's rows), with tokens as
// they are. A whole warp.
__device__ inline void put_rows(uint32_t lane, const mk_step_row &row, uint32_t stop, volatile rows_state &to) {
  bool active = (row.flags & MK_ROW_ACTIVE) != 0;
  uint32_t actives = tile::lanes_where(active);
  uint32_t first = 0, count = 0, start = 0, place = 0;
#pragma unroll 1
  for (uint32_t l = 0; l < MK_MAX_ROWS; l++) {
    uint32_t slot = tile::from_lane(row.slot, l), position = tile::from_lane(row.position, l);
    if ((actives >> l & 1) != 0) {
      start += slot < lane ? 1 : 0;
      first = slot == lane && count == 0 ? position : first;
      count += slot == lane ? 1 : 0;
      place += slot < row.slot || (slot == row.slot && l < lane) ? 1 : 0;
    }
  }
  uint32_t chooses = tile::lanes_where(active && (row.flags & MK_ROW_CHOOSES) != 0);
  uint32_t slots = tile::lanes_where(count != 0);
  if (lane < MK_MAX_ROWS) {
    to.rows[lane].slot = row.slot;
    to.rows[lane].position = row.position;
    to.rows[lane].token = row.token;
    to.rows[lane].flags = row.flags;
    to.slot_first[lane] = first;
    to.slot_start[lane] = start;
    to.slot_count[lane] = count;
    if (active) {
      to.order[place] = lane;
    }
  }
  if (lane == 0) {
    to.active = actives;
    to.chooses = chooses;
    to.slots = slots;
    to.stop = stop;
  }
}

// Forgets the residuals that are kept, at the start of a launch. Called by a whole warp.
__device__ inline void clear_residuals() {
  if (tile::lane() < 2 * RESIDUAL_TILES) {
    rows_shared()->residual_tags[tile::group_of_lane<RESIDUAL_TILES>(tile::lane())]
                                [tile::place_in_group<RESIDUAL_TILES>(tile::lane())] = 0;
  }
}

// Row `lane` of a step of the plan.
__device__ inline mk_step_row planned_row(const device &d, uint32_t lane, const uint32_t *step) {
  mk_step_row row = {};
  if (lane < d.params.rows) {
    uint4 words = tile::view<uint4>(step)[lane];
    row = {words.x, words.y, words.z, words.w};
  }
  return row;
}

}  // namespace mk
