// Where the kernel for wide steps of several sequences keeps what its lines draw by. A warp has every eighth line, one
// after the other. What belongs to the line at hand lies in the warp's place in shared memory; of the others that is
// kept which goes on from one instruction to the next, and pivots lie in the rounds that this SM publishes. All of it
// is where APPEND and HEAD have their room: from the meeting with which SCORE begins to the end of NEXT.
#pragma once
#include "instructions/line_search.cuh"
#include "vm/gpu/wide.cuh"

namespace mk {

struct drawer {
  device d;
  uint32_t warp, lane, line;
};

enum { MOST_LINES = LINES, LINE_WORDS = MOST_LINES / 32 };
enum : uint8_t {
  LINE_IS_ACTIVE = 1,
  LINE_DRAWS = 2,     // it chooses a token
  LINE_WAITS = 4,     // for all SMs' fronts: it does that, or tells of all that SMs do in the step
  LINE_SEARCHES = 8,  // for the end of top-k or top-p
  LINE_WEIGHS = 16,
};

struct line_parameters {
  uint64_t key;                               // of the noise
  uint32_t words[MK_SAMPLING_FREQUENCY + 1];  // of its slot
  uint32_t counted;                           // whether there are `lines`
  uint32_t lines[LINE_WORDS];  // a bit for each line whose token counts for this one and is one of this SM's
};

// Of a line that is not at hand: the same of its search.
struct kept_line {
  uint64_t winner;  // after DRAW: the choice
  float highest, bound;
  uint8_t flags;  // the upper byte
  uint8_t state, is;
};

struct search_area {
  kept_line kept[MOST_LINES];
  line_search at_hand[MK_GPU_CONSUMER_WARPS];
  line_parameters parameters[MK_GPU_CONSUMER_WARPS];
  warp_tallies of_warps;
  uint32_t vocab, first_token, end_token;  // this SM's tokens
};
static_assert(sizeof(search_area) <= MK_GPU_ACTIVATION_BYTES, "there is room");
static_assert((MK_FRONT_OVERFLOW | MK_FRONT_STOP) >> 24 << 24 == (MK_FRONT_OVERFLOW | MK_FRONT_STOP), "a byte does");

__device__ inline search_area &area() { return *tile::view<search_area>(shared_memory + MK_GPU_ACTIVATION_AT); }
__device__ inline warp_tallies &tallies_of_warps() { return area().of_warps; }
__device__ inline void consumers_meet(const drawer &) { consumers_meet(); }

// Of the line at hand: its number, its search, and what it draws by.
__device__ inline uint32_t line_at_hand(const drawer &c) { return c.line; }
__device__ inline line_search &search_of(const drawer &c) { return area().at_hand[c.warp]; }
__device__ inline line_parameters &parameters_of(const drawer &c) { return area().parameters[c.warp]; }

__device__ inline bool line_is(uint32_t line, uint32_t what) {
  return (static_cast<uint32_t>(area().kept[line].is) & what) != 0;
}
// Whether it is the one line whose front tells that its SM has done all that it does in the step: the last active one.
__device__ inline bool tells_of_all(const drawer &c) { return c.line + 1 == lines_of(c.d).count; }
__device__ inline bool is_to_stop(const drawer &c) {
  return blockIdx.x == 0 && tile::load_system(c.d.params.stop) != 0;
}
__device__ inline bool line_chooses(const drawer &c) { return line_is(c.line, LINE_DRAWS); }
// Whether a line's search goes on, and whether it asks for sums of weights.
__device__ inline bool line_is_open(uint32_t line) {
  return tile::uniform(line_is(line, LINE_SEARCHES) && area().kept[line].state == MK_SIFT_OPEN);
}
__device__ inline bool line_has_weights(uint32_t line) { return tile::uniform(line_is(line, LINE_WEIGHS)); }

// By one lane, of the line at hand: its choice in the form of NEXT, and whether a front says that the launch stops.
__device__ inline void keep_choice(const drawer &c, uint32_t choice, uint32_t stop) {
  area().kept[c.line].winner = choice;
  wide_shared()->index[c.warp] = wide_shared()->index[c.warp] | stop;
}

// What DRAW has kept of a line that chooses, in the form that the host gets: for NEXT.
__device__ inline uint32_t drawn_choice(const wide_consumer &, uint32_t line) {
  return static_cast<uint32_t>(area().kept[line].winner);
}

__device__ inline void wait_last_logits(const drawer &) {}  // all consumers have met since
__device__ inline uint32_t vocabulary_of(const drawer &) { return area().vocab; }
__device__ inline line_tokens own_tokens(const drawer &c) {
  uint32_t vocab = area().vocab, slot = min(__ldg(planned_rows(c.d) + c.line).x, MK_MOST_SHARED_ROWS - 1u);
  return {tile::uniform(area().first_token), tile::uniform(area().end_token), c.line * vocab, slot * vocab};
}

// How often a token counts for the line at hand if memory has `count` from before the step. `counted`: of its
// parameters.
__device__ inline uint32_t count_with_step(const drawer &c, uint32_t counted, uint32_t token, uint32_t count) {
#pragma unroll 1
  for (uint32_t word = 0; counted != 0 && word < LINE_WORDS; word++) {
#pragma unroll 1
    for (uint32_t left = parameters_of(c).lines[word]; left != 0; left &= left - 1) {
      uint32_t line = word * 32 + tile::lowest_bit(left);
      count = lines_of(c.d).tokens[line] == token ? counted_once_more(count, __ldg(planned_rows(c.d) + line).w) : count;
    }
  }
  return count;
}

// Whether there is such a line, which is active and has a token of this SM.
__device__ inline bool has_own_token(const drawer &c, uint32_t line, const uint4 &row) {
  uint32_t token = lines_of(c.d).tokens[line];
  return line < lines_of(c.d).count && (row.w & MK_ROW_ACTIVE) != 0 && token >= area().first_token &&
         token < area().end_token;
}

// The lines of a warp, and what it asks for ahead: a lane has the row of the plan of one of them.
struct warp_lines {
  enum { MOST = MOST_LINES / MK_GPU_CONSUMER_WARPS };
  const uint32_t *sampling;  // the buffer
  uint32_t slot, flags;
  uint32_t ahead, next;  // parameters that are on their way: of the line at which place

  __device__ warp_lines(const drawer &c, const mk_instruction_word &in, uint32_t whole)
      : sampling(start_of<const uint32_t>(in, whole_at(whole))), slot(0), flags(0), ahead(0) {
    uint32_t line = line_at(c, c.lane);
    if (c.lane < MOST && line < lines_of(c.d).count) {
      const uint4 row = __ldg(planned_rows(c.d) + line);
      slot = min(row.x, MK_MOST_SHARED_ROWS - 1u);
      flags = row.w;
    }
    next = words_of(c, 0);
  }
  __device__ static uint32_t line_at(const drawer &c, uint32_t place) { return place * MK_GPU_CONSUMER_WARPS + c.warp; }
  // A word of each lane, of the parameters of a line.
  __device__ uint32_t words_of(const drawer &c, uint32_t place) const {
    uint32_t of = tile::from_lane(slot, min(place, MOST - 1u));
    return c.lane <= MK_SAMPLING_FREQUENCY ? sampling[of * MK_SAMPLING_WORDS + c.lane] : 0;
  }
  // Takes the line at that place for the one at hand: its parameters, and sends for those of the next one.
  __device__ void take(drawer &c, uint32_t place) {
    line_parameters &p = parameters_of(c);
    c.line = line_at(c, place);
    if (tile::uniform(ahead != place)) {
      next = words_of(c, place);
    }
    __syncwarp();
    if (c.lane <= MK_SAMPLING_FREQUENCY) {
      p.words[c.lane] = next;
    }
    ahead = place + 1;
    next = words_of(c, ahead);
    __syncwarp();
    uint64_t key = mk_draw_key(mk_sampling_seed(p.words), positions_of(lines_of(c.d), 0).of(c.line) + 1);
    bool counts = tile::uniform((p.words[MK_SAMPLING_FLAGS] & MK_SAMPLE_PENALTIES) != 0);
    uint32_t own = tile::from_lane(slot, place);
#pragma unroll 1
    for (uint32_t word = 0; counts && word < LINE_WORDS; word++) {
      uint32_t line = word * 32 + c.lane;
      const uint4 row = __ldg(planned_rows(c.d) + min(line, c.d.params.rows - 1));
      uint32_t bits = tile::lanes_where(has_own_token(c, line, row) && row.x == own && line <= c.line);
      p.lines[word] = bits;
    }
    p.key = key;
    p.counted = counts;
    __syncwarp();
  }
  // The same of its search.
  __device__ void resume(const drawer &c) const {
    line_search &l = search_of(c);
    const kept_line &kept = area().kept[c.line];
    if (c.lane == 0) {
      l.winner = kept.winner;
      l.highest = kept.highest;
      l.bound = kept.bound;
      l.flags = static_cast<uint32_t>(kept.flags) << 24;
      l.state = kept.state;
    }
    __syncwarp();
  }
  __device__ void keep(const drawer &c) const {
    const line_search &l = search_of(c);
    kept_line &kept = area().kept[c.line];
    __syncwarp();
    if (c.lane == 0) {
      kept.winner = l.winner;
      kept.highest = l.highest;
      kept.bound = l.bound;
      kept.flags = static_cast<uint8_t>(l.flags >> 24);
      kept.state = l.state;
    }
    __syncwarp();
  }
};

// Done by the controller before it hands SCORE out: whether some line of the step has to search.
__device__ inline void prepare_draws(const device &d, const mk_instruction_word &in) {
  const uint32_t *sampling = start_of<const uint32_t>(in, whole_at(MK_WHOLE_SCORE_sampling));
  bool searches = false;
#pragma unroll 1
  for (uint32_t line = tile::lane(); line < d.params.rows; line += 32) {
    const uint4 row = __ldg(planned_rows(d) + line);
    if ((row.w & MK_ROW_ACTIVE) != 0 && (row.w & MK_ROW_CHOOSES) != 0) {
      searches = searches || mk_sampling_cuts(sampling + min(row.x, MK_MOST_SHARED_ROWS - 1u) * MK_SAMPLING_WORDS);
    }
  }
  wide_shared()->searching = tile::any_lane(searches);
  __syncwarp();
}
__device__ inline bool lines_search(const device &) { return tile::uniform(wide_shared()->searching != 0); }

}  // namespace mk
