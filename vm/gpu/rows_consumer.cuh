// Linear instructions of several rows per step, as the consumers do them.
//
// A K chunk is four pages. Group g of the warps has page g of each chunk, warp i of the group K steps 8 i to 8 i + 7 of
// that page. For each chunk a warp fetches its 128 elements of x, of all lines, right into the registers from which
// products take them as B fragments, and multiplies them by every row tile of the instruction. These eight K steps are
// one chain of the canon (docs/NUMERICS.md); the storers add the chains in the order of K. The columns of a product do
// not depend on each other, so a line has the same bits whichever lines are beside it, and as in a program of one row.
#pragma once
#include "instructions/linear_operands.cuh"
#include "vm/gpu/rows.cuh"

namespace mk {

enum { BATCH_STEPS = 8 };  // K steps of a page that are read before they are multiplied

struct rows_consumer : consumer {
  results_cursor sums = {d.warp / HALF_WARPS};  // where this warp is in the ring of results
  instruction_cursor hand;                      // in the ring of instructions
};
// While something is recorded, drawn for another family than Llama, or quantised, registers are too few: the epoch and
// `hand` then lie in shared memory, in words that the kernel of one row uses.
constexpr bool REGISTERS_SUFFICE = !MK_GPU_RECORDS && !MK_GPU_QUANTISED && !(MK_GPU_FAMILIES && MK_GPU_SAMPLES);
__device__ inline instruction_cursor at_hand(const rows_consumer &c) {
  return REGISTERS_SUFFICE ? c.hand : at_hand(static_cast<const consumer &>(c));
}
__device__ inline void set_at_hand(rows_consumer &c, const instruction_cursor &cursor) {
  c.hand = REGISTERS_SUFFICE ? cursor : instruction_cursor{};
  if (!REGISTERS_SUFFICE) {
    set_at_hand(static_cast<const consumer &>(c), cursor);
  }
}
__device__ inline void put_down_epoch(const rows_consumer &c) {
  if (!REGISTERS_SUFFICE) {
    c.d.words()->at_step[c.warp].position = c.d.epoch;
    __syncwarp();
  }
}
__device__ inline void look_up_epoch(rows_consumer &c) {
  if constexpr (!REGISTERS_SUFFICE) {
    c.d.epoch = c.d.words()->at_step[c.warp].position;
  }
}

// What this warp has of x: [K step][line tile] B fragments, of one line tile where lines are few.
template <uint32_t tiles>
struct line_fragments {
  tile::vector_tile value[WARP_STEPS][tiles];
  float squares[LINE_TILES];  // sums of x^2: this lane's share, then this warp's
};

// The first step of x that is this warp's, in the chunk that begins with step `chunk`.
__device__ inline uint32_t first_step(const consumer &c, uint32_t chunk) { return chunk + c.warp * WARP_STEPS; }
static_assert(CHUNK_STEPS == MK_GPU_CONSUMER_WARPS * WARP_STEPS, "all warps have a part of a chunk");

__device__ inline bool has_line(uint32_t active, const consumer &c, uint32_t tile) {
  uint32_t line = tile * 8 + tile::lane_row(c.lane);
  return (active >> line & 1) != 0;
}

// Fetches the rows of the embedding that the lines' tokens name.
template <uint32_t tiles>
__device__ inline void fetch_token_rows(const consumer &c, const mk_gpu_buffer &x, uint32_t step, uint32_t steps,
                                        line_fragments<tiles> &to) {
  const volatile rows_state &state = rows_of(c.d);
  uint32_t active = state.active, t = tile::lane_of_quad(c.lane);
#pragma unroll
  for (uint32_t n = 0; n < tiles; n++) {
    uint32_t row = has_line(active, c, n) ? state.rows[n * 8 + tile::lane_row(c.lane)].token : 0;
    const uint32_t *words = tile::global<const uint32_t>(x.address) +
                            (static_cast<uint64_t>(row / 16) * x.grid_cols + step) * STEP_WORDS +
                            (row % 8 * 4 + t) * 4 + row % 16 / 8;
#pragma unroll
    for (uint32_t s = 0; s < WARP_STEPS; s++) {
      to.value[s][n].word[0] = s < steps ? words[s * STEP_WORDS] : 0;
      to.value[s][n].word[1] = s < steps ? words[s * STEP_WORDS + 2] : 0;
    }
  }
}

// Loads the words of a value for those of the warp's steps that `which` has a bit for: all of them are under way
// together.
template <uint32_t tiles>
__device__ inline void load_lines(const consumer &c, const mk_gpu_buffer &x, uint32_t step, uint32_t which,
                                  line_fragments<tiles> &to) {
  const uint32_t *from = value_view(x, c.d.generation()).words + step * tiles / LINE_TILES * STEP_WORDS + c.lane * 4;
  if constexpr (tiles == 1) {
    which = has_line(rows_of(c.d).active, c, 0) ? which : 0;  // of lines that are not there nothing is read
#pragma unroll
    for (uint32_t s = 0; s < WARP_STEPS; s += 2) {
      tile::load_relaxed_quad_if((which >> s & 3) != 0, from + s / 2 * STEP_WORDS, to.value[s][0].word,
                                 to.value[s + 1][0].word);
    }
  } else {
#pragma unroll
    for (uint32_t s = 0; s < WARP_STEPS; s++) {
      tile::load_relaxed_quad_if((which >> s & 1) != 0, from + s * STEP_WORDS, to.value[s][0].word,
                                 to.value[s][1].word);
    }
  }
}
// A bit for each of the warp's steps that exists, where `steps` are left.
__device__ inline uint32_t steps_there(uint32_t steps) { return (1u << min(steps, WARP_STEPS + 0u)) - 1; }

// A bit for each of these steps in which a word of an active line is not there yet. Whether there is any is known by
// half of the instructions, and mostly there is none: words of other steps are there, or 0.
template <uint32_t tiles>
__device__ inline uint32_t late_steps(const consumer &c, const line_fragments<tiles> &x, uint32_t which) {
  uint32_t active = rows_of(c.d).active, late = 0;
  bool some = false;
#pragma unroll
  for (uint32_t n = 0; n < tiles; n++) {
    uint32_t most = 0;
#pragma unroll
    for (uint32_t s = 0; s < WARP_STEPS; s++) {
      most = max(most, max(x.value[s][n].word[0], x.value[s][n].word[1]));
    }
    some = some || (has_line(active, c, n) && most == EMPTY_WORD);
  }
  if (!tile::any_lane(some)) {
    return 0;
  }
#pragma unroll
  for (uint32_t s = 0; s < WARP_STEPS; s++) {
#pragma unroll
    for (uint32_t n = 0; n < tiles; n++) {
      uint32_t most = max(x.value[s][n].word[0], x.value[s][n].word[1]);
      late |= has_line(active, c, n) && most == EMPTY_WORD ? 1u << s : 0;
    }
  }
  return tile::or_lanes(late & which);
}

// Fetches a warp's steps of a value, until all words of active lines are there. `loaded`: they have been loaded
// already, perhaps too early. What is late is loaded again, and only that: a look at all words takes as many of the
// SM's bytes as the weights that come meanwhile.
template <uint32_t tiles>
__device__ inline void fetch_lines(const consumer &c, const mk_operand &operand, const mk_gpu_buffer &x, uint32_t step,
                                   uint32_t steps, bool loaded, line_fragments<tiles> &to) {
  uint32_t late = steps_there(steps);
  if (steps < WARP_STEPS && !loaded) {
#pragma unroll
    for (uint32_t s = 0; s < WARP_STEPS; s++) {
#pragma unroll
      for (uint32_t n = 0; n < tiles; n++) {
        to.value[s][n] = {{0, 0}};
      }
    }
  }
  wait_generation(c.d, operand.buffer, [&](uint32_t want) {
    if (!loaded) {
      load_lines(c, x, step, late, to);
    }
    loaded = false;
    late = late_steps(c, to, late);
    return late != 0 ? want ^ (want - 1) : 0;
  });
}

// Multiplies by the gains of this lane's elements, words t and t + 4 of a step. The squares of each word are added over
// the steps as a tree (docs/NUMERICS.md): a sum of one, two or four steps waits until the next sum of as many steps is
// there.
template <uint32_t tiles>
__device__ inline void scale_lines(const uint32_t (&gains)[WARP_STEPS][2], line_fragments<tiles> &x) {
#pragma unroll
  for (uint32_t n = 0; n < tiles; n++) {
    float word_squares[2];
#pragma unroll
    for (uint32_t b = 0; b < 2; b++) {
      float waiting[3];
#pragma unroll
      for (uint32_t s = 0; s < WARP_STEPS; s++) {
        uint32_t &word = x.value[s][n].word[b];
        float sum = square_of_pair(word);
        word = tile::multiply_bf16(word, gains[s][b]);
        if (s % 2 == 0) {
          waiting[0] = sum;
          continue;
        }
        sum = waiting[0] + sum;
        if (s % 4 == 1) {
          waiting[1] = sum;
          continue;
        }
        sum = waiting[1] + sum;
        if (s == 3) {
          waiting[2] = sum;
          continue;
        }
        word_squares[b] = waiting[2] + sum;
      }
    }
    x.squares[n] = word_squares[0] + word_squares[1];
  }
}
static_assert(WARP_STEPS == 8, "a tree of eight steps");

// How many steps x has, from the operand's start; and how many steps its buffer has before that.
__device__ inline uint32_t steps_of(const mk_instruction_word &in) {
  return in.parts[LINEAR_X].cols * device::slot_of(in).buffers[LINEAR_X].tile_cols / 16;
}
__device__ inline uint32_t steps_before(const mk_instruction_word &in) {
  return in.parts[LINEAR_X].col * device::slot_of(in).buffers[LINEAR_X].tile_cols / 16;
}
// What a warp has to do in a linear instruction; the same for all lanes, and worked out before x is there.
struct linear_work {
  uint32_t steps;  // of x, from the operand's start
  uint32_t rows;   // row tiles
  bool normed;

  __device__ uint32_t left(uint32_t step) const { return step < steps ? steps - step : 0; }  // from this step on
  // If x is long, the words of the next chunk are under way while the sums of this one are handed over.
  __device__ bool loads_ahead() const { return steps > CHUNK_STEPS && !normed; }
};

// Fetches this warp's part of x, from step `step` on. The gains are under way while x is waited for. `loaded`: its
// words have been loaded already.
template <uint32_t tiles>
__device__ inline void fetch_chunk(const consumer &c, const mk_instruction_word &in, const linear_work &work,
                                   uint32_t step, bool loaded, line_fragments<tiles> &to) {
  const mk_operand &operand = in.parts[LINEAR_X];
  const mk_gpu_buffer &x = device::slot_of(in).buffers[LINEAR_X];
  uint32_t gains[WARP_STEPS][2], gained = work.normed ? steps_there(work.left(step)) : 0;
  const uint32_t *gain =
      tile::global<const uint32_t>(whole_buffer(in, LINEAR_GAIN).address) + step * 8 + tile::lane_of_quad(c.lane);
#pragma unroll
  for (uint32_t i = 0; i < WARP_STEPS * 2; i++) {
    gains[i / 2][i % 2] = (gained >> i / 2 & 1) != 0 ? __ldg(gain + i * 4) : 0;
  }
  if ((operand.flags & MK_OPERAND_TOKEN_ROW) != 0) {
    fetch_token_rows(c, x, steps_before(in) + step, work.left(step), to);
  } else {
    fetch_lines(c, operand, x, steps_before(in) + step, work.left(step), loaded, to);
  }
  to.squares[0] = to.squares[1] = 0.0f;
  if (work.normed) {
    scale_lines(gains, to);
  }
}

// Whether x is no embedding row, which other families take without a norm, too.
__device__ inline bool is_value(const mk_instruction_word &in) {
  return !MK_GPU_FAMILIES || (in.parts[LINEAR_X].flags & MK_OPERAND_TOKEN_ROW) == 0;
}

__device__ inline bool is_later_half(const consumer &c) { return c.warp >= HALF_WARPS; }

// These come before and after a warp writes its part of its half's next result.
__device__ inline void begin_result(const rows_consumer &c) {
  const results_cursor at = c.sums;
  wait_phase(c.d, RESULT_EMPTY + at.slot(), at.phase() ^ 1, MK_ACTIVITY_RESULT_EMPTY, at.slot());
}
__device__ inline void end_result(rows_consumer &c) {
  __syncwarp();
  if (c.lane == 0) {
    tile::arrive(c.d.barrier(RESULT_FULL + c.sums.slot()));
  }
  c.sums.advance(HALVES);
}

// Waits until the storers have taken all results. While an SM's sixteen warps look for values, again and again, its
// storers have to wait for each access to shared memory; and what the storers still hold belongs to the values that are
// looked for.
__device__ inline void wait_for_storers(const rows_consumer &c) {
  // The last result is the later half's. Its slot is waited for when that slot's turn comes again. Before that, the
  // result two earlier is waited for, as otherwise the phase of an older filling could be taken for the one meant: with
  // three slots, that result's is the warp's own next slot.
  results_cursor last = c.sums;
  if (!is_later_half(c)) {
    wait_phase(c.d, RESULT_EMPTY + last.slot(), last.phase() ^ 1, MK_ACTIVITY_RESULT_EMPTY, last.slot());
    last.next();
  }
  last.next();
  wait_phase(c.d, RESULT_EMPTY + last.slot(), last.phase() ^ 1, MK_ACTIVITY_RESULT_EMPTY, last.slot());
}
static_assert(MK_GPU_RESULT_SLOTS == 3, "what wait_for_storers counts on");

// Hands the sums of this warp, and `squares` of its lines, to the storers. Where lines are few nobody asks for the
// others' sums.
template <uint32_t tiles>
__device__ inline void put_sums(rows_consumer &c, const tile::sum_tile (&sums)[tiles],
                                const float (&squares)[LINE_TILES]) {
  begin_result(c);
  uint32_t slot = c.sums.slot(), place = c.warp % HALF_WARPS;
  float4 *result = tile::view<float4>(rows_result(slot)) + place * LINE_TILES * 32 + c.lane;
  float *line_squares =
      tile::view<float>(rows_result(slot) + ROWS_SQUARES_AT) + place * MK_MAX_ROWS + tile::lane_row(c.lane);
#pragma unroll
  for (uint32_t n = 0; n < tiles; n++) {
    result[n * 32] = make_float4(sums[n].value[0], sums[n].value[1], sums[n].value[2], sums[n].value[3]);
    if (tile::lane_of_quad(c.lane) == 0) {
      line_squares[n * 8] = squares[n];
    }
  }
  end_result(c);
}

// Adds to the sums BATCH_STEPS steps of a page times x, from step `first` of the warp's on; `left`: how many steps
// there are.
template <uint32_t tiles>
__device__ inline void multiply_steps(const line_fragments<tiles> &x, uint32_t first, uint32_t left,
                                      tile::sum_tile (&sums)[tiles], tile::weight_tile (&weights)[BATCH_STEPS]) {
#pragma unroll
  for (uint32_t i = 0; i < BATCH_STEPS; i++) {
    if (first + i >= left) {
      tile::zero(weights[i]);  // after the last step lies an older page
    }
#pragma unroll
    for (uint32_t n = 0; n < tiles; n++) {
      tile::multiply_add(sums[n], weights[i], x.value[first + i][n]);
    }
  }
}

// The same of a strip, which is all that the warp has of a page of quantised weights.
template <typename form>
__device__ inline void multiply_strip(rows_consumer &c, const form &of, const mk_gpu_buffer &b,
                                      const line_fragments<LINE_TILES> &x, uint32_t left,
                                      tile::sum_tile (&sums)[LINE_TILES]) {
  ring_cursor<MK_GPU_RING_PAGES> at = c.pages;
  at.advance(group_of(c));
  tile::zero(sums[0]);
  tile::zero(sums[1]);
  wait_phase(c.d, PAGE_FULL + at.slot(), at.phase(), MK_ACTIVITY_PAGE_FULL, at.slot());
  tile::forget(c.lane);
  tile::forget(c.warp);
  if (left != 0) {  // else an older page lies here
    of.template each<false>(
        b, lane_strip(c.d.page(at.slot()) + rank_of(c) * b.strip_bytes, c.lane), left, [] {},
        [&](uint32_t i, const tile::weight_tile &step) {
#pragma unroll
          for (uint32_t n = 0; n < LINE_TILES; n++) {
            tile::multiply_add(sums[n], step, x.value[i][n]);
          }
        });
  }
  release_page(c, at.slot(), PAGE_RELEASES);
  c.pages.advance(CHUNK_PAGES);
}

// One row tile's page of this chunk.
template <uint32_t tiles>
__device__ inline void multiply_page(rows_consumer &c, const line_fragments<tiles> &x, uint32_t left,
                                     tile::sum_tile (&sums)[tiles]) {
  ring_cursor<MK_GPU_RING_PAGES> at = c.pages;
  at.advance(group_of(c));
  tile::weight_tile weights[BATCH_STEPS];
#pragma unroll
  for (uint32_t n = 0; n < tiles; n++) {
    tile::zero(sums[n]);
  }
  wait_phase(c.d, PAGE_FULL + at.slot(), at.phase(), MK_ACTIVITY_PAGE_FULL, at.slot());
  const uint8_t *page = c.d.page(at.slot()) + rank_of(c) * (WARP_STEPS * 512);
#pragma unroll
  for (uint32_t batch = 0; batch < WARP_STEPS / BATCH_STEPS; batch++) {
#pragma unroll
    for (uint32_t i = 0; i < BATCH_STEPS; i++) {
      tile::load(weights[i], page + (batch * BATCH_STEPS + i) * 512);
    }
    if (batch + 1 == WARP_STEPS / BATCH_STEPS) {
      release_page(c, at.slot(), PAGE_RELEASES);
    }
    multiply_steps(x, batch * BATCH_STEPS, left, sums, weights);
  }
  c.pages.advance(CHUNK_PAGES);
}

// How many row tiles of a linear instruction are computed in this step: those of a HEAD only where some row chooses.
__device__ inline uint32_t rows_to_do(const device &d, const mk_instruction_word &in, const mk_operand &weight) {
  return in.opcode == only<&opcode_row::logits> && rows_of(d).chooses == 0 ? 0 : weight.rows;
}

template <uint32_t tiles>
__device__ __forceinline__ void consume_linear_of(rows_consumer &c, const mk_instruction_word &in) {
  line_fragments<tiles> x = {};  // otherwise its registers would stay taken from one instruction to the next
  linear_work work = {tile::uniform(steps_of(in)), 0, tile::uniform(has_norm(in))};
  work.rows = tile::uniform(rows_to_do(c.d, in, in.parts[LINEAR_WEIGHT]));
#pragma unroll 1
  for (uint32_t chunk = 0; chunk < work.steps; chunk += CHUNK_STEPS) {
    tile::forget(c.lane);
    tile::forget(c.warp);
    bool last = chunk + CHUNK_STEPS >= work.steps;
    if (chunk == 0) {
      wait_for_storers(c);
    }
    fetch_chunk(c, in, work, first_step(c, chunk), chunk != 0 && work.loads_ahead(), x);
#pragma unroll
    for (uint32_t n = 0; n < LINE_TILES; n++) {
      x.squares[n] = tile::sum_group<4>(x.squares[n]);
    }
    uint32_t left = work.left(first_step(c, chunk));
    auto each_row = [&](auto multiply) {
      tile::sum_tile sums[tiles];
#pragma unroll 1
      for (uint32_t row = 0; row < work.rows; row++) {
        multiply(sums);
        if (row + 1 == work.rows && !last && work.loads_ahead() && is_value(in)) {
          uint32_t next = first_step(c, chunk + CHUNK_STEPS);
          // Steps that are not there count for nothing in this chunk, since their weights are 0.
          load_lines(c, device::slot_of(in).buffers[LINEAR_X], steps_before(in) + next, steps_there(work.left(next)),
                     x);
        }
        put_sums(c, sums, x.squares);
      }
    };
    if constexpr (MK_GPU_QUANTISED) {
      const mk_gpu_buffer &b = device::slot_of(in).buffers[LINEAR_WEIGHT];
      tile::forget(left);
      with_form<true>(
          b, [&](const auto &form) { each_row([&](auto &sums) { multiply_strip(c, form, b, x, left, sums); }); });
    } else {
      each_row([&](auto &sums) { multiply_page(c, x, left, sums); });
    }
    if (work.rows == 0 && last) {
      // One empty result, whose words nobody uses, tells the storers that everything before it on this SM is done.
      begin_result(c);
      end_result(c);
    }
  }
}

__device__ __forceinline__ void consume_linear(rows_consumer &c, const mk_instruction_word &in) {
  if constexpr (KNOWS_FEW_LINES) {
    if (tile::uniform(has_few_lines(c.d))) {
      consume_linear_of<1>(c, in);
      return;
    }
  }
  consume_linear_of<LINE_TILES>(c, in);
}

}  // namespace mk
