/* How tokens rank among all that could have been chosen: what the host asks of the kernel beside the logits of a step.
 * Shared by C (vm/gpu/rank.c) and CUDA (vm/gpu/rank.cu). Plain data; all addresses are device addresses. */
#ifndef MK_GPU_RANK_H
#define MK_GPU_RANK_H

#include <stdint.h>

#include "vm/program/program.h"

enum {
  MK_GPU_RANK_THREADS = 256, /* threads of a block, which has some of one row's tokens, a part */
  MK_GPU_RANK_HELD = 16,     /* tokens of a thread */
  MK_GPU_RANK_PART = MK_GPU_RANK_THREADS * MK_GPU_RANK_HELD,
  MK_GPU_RANK_MOST = 20,   /* how many of the most probable tokens are found */
  MK_GPU_RANK_PARTS = 256, /* most parts of a row: one block merges all of them */
};

typedef struct mk_gpu_rank_row {
  uint32_t line, token; /* MK_TOKEN_CHOSEN: what the line has chosen */
} mk_gpu_rank_row;

/* A ranking by a part of the tokens, or by all of them. */
typedef struct mk_gpu_ranked {
  double sum;      /* of exp(logit - highest) */
  float highest;   /* logit */
  float logit;     /* of the token that is asked about */
  uint32_t before; /* how many tokens are more probable than that token, or as probable and of a lower index */
  uint32_t token;  /* of the first part: what the line has chosen */
  uint64_t keys[MK_GPU_RANK_MOST]; /* mk_rank_key of the most probable ones, in that order; 0: there are no more */
} mk_gpu_ranked;

typedef struct mk_gpu_rank {
  uint64_t logits;  /* [lines][vocab], fp32 */
  uint64_t parts;   /* [rows][parts] of mk_gpu_ranked */
  uint64_t arrived; /* [rows] of uint32_t: how many blocks have left their part; zero before and after a launch */
  uint64_t out;     /* [rows] of mk_gpu_ranked */
  uint64_t chosen;  /* [lines] words of the token ring in the host's memory; the lower halves are the step's results */
  uint32_t vocab, part_count;
  mk_gpu_rank_row rows[MK_MAX_ROWS]; /* by block in y */
} mk_gpu_rank;

#endif
