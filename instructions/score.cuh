// SCORE on the device: penalties and bias, and the count of the step's token; score.c.
// Consumers only, a thread per token. Waits: the release counter of this SM's HEAD, whose storer has written the logits. Publishes scores
// and this SM's highest one.
#pragma once
#include "instructions/search.cuh"

namespace mk {

__device__ inline void consume_SCORE(consumer &c, const mk_instruction &in) {
  const mk_operand &logits = in.operands[MK_SLOT_SCORE_logits];
  const uint32_t *words = reinterpret_cast<const uint32_t *>(c.d.buffer(in.operands[MK_SLOT_SCORE_sampling]).address);
  const float *from = reinterpret_cast<const float *>(c.d.buffer(logits).address);
  const float *bias = reinterpret_cast<const float *>(c.d.buffer(in.operands[MK_SLOT_SCORE_bias]).address);
  uint32_t *counts = reinterpret_cast<uint32_t *>(c.d.buffer(in.operands[MK_SLOT_SCORE_counts]).address);
  uint64_t *scores = reinterpret_cast<uint64_t *>(c.d.buffer(in.operands[MK_SLOT_SCORE_scores]).address);
  uint32_t first = logits.col * 16, end = min(first + logits.cols * 16u, c.d.buffer(logits).cols);
  bool inside = inside_prompt(c), given = c.position < c.d.params.prompt_length;
  float best = -INFINITY;
  uint32_t index = MK_CANDIDATE_NONE;
#pragma unroll 2
  for (uint32_t token = first + c.warp * 32 + c.lane; token < end; token += MK_GPU_CONSUMER_WARPS * 32) {
    float logit = __ldcg(from + token);
    uint32_t count = __ldcg(counts + token);
    float added = __ldg(bias + token);
    if (token == token_of(c)) {
      count = given ? count | MK_COUNT_PROMPT : count + 1;
      counts[token] = count;
    }
    float score = inside ? 0.0f : mk_sample_score(words, logit, count, added);
    if (publishes(c.d)) {
      tile::store_stamped(scores + token, __float_as_uint(score), c.d.generation());
    }
    if (!inside && candidate_above(score, token, best, index)) {
      best = score;
      index = token;
    }
  }
  best_of_block(c, PLACE_SCORE, best, index);
  if (c.warp == 0 && c.lane == 0 && publishes(c.d)) {
    uint64_t *peak = stamped_row(c.d, in.operands[MK_SLOT_SCORE_peak]);
    tile::store_stamped(peak, __float_as_uint(best), c.d.generation());
    tile::store_stamped(peak + 1, index, c.d.generation());
  }
}

}  // namespace mk
