/* See boundary.h. */
#include "tests/support/boundary.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "models/llama.h"
#include "scheduler/compile.h"
#include "tests/support/numbers.h"
#include "vm/verify/verify.h"

void test_boundary_start(test_boundary *b, uint32_t vocab, uint32_t sms) { test_boundary_start_rows(b, vocab, sms, 1); }

void test_boundary_start_rows(test_boundary *b, uint32_t vocab, uint32_t sms, uint32_t rows) {
  mk_config config = {.hidden = 64,
                      .intermediate = 4096,
                      .layers = 1,
                      .heads = 1,
                      .kv_heads = 1,
                      .head_dim = 64,
                      .vocab = vocab,
                      .max_position = 256,
                      .rms_eps = 1e-5f,
                      .rope_theta = 10000};
  *b = (test_boundary){.vocab = vocab, .sms = sms, .rows = rows, .generation = 1};
  mk_graph *graph;
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK, "%s", mk_error_message());
  mk_compile_options options = {.sms = sms, .max_seq = 256, .rows = rows, .sampling = true};
  cr_assert_eq(mk_compile(graph, &options, &b->program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  cr_assert_eq(mk_verify(b->program, NULL), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_alloc(b->program->buffer_count, sizeof *b->memory, &b->memory), MK_OK);
  for (size_t i = 0; i < b->program->buffer_count; i++) {
    if (b->program->buffers[i].kind != MK_KIND_WEIGHT) {
      cr_assert_eq(mk_alloc_aligned(64, b->program->buffers[i].bytes, &b->memory[i]), MK_OK);
    }
  }
  size_t floats = mk_reference_scratch(b->program);
  cr_assert_eq(mk_alloc_aligned(64, floats * sizeof *b->scratch, &b->scratch), MK_OK);
  cr_assert_eq(mk_alloc(sms, sizeof *b->states, &b->states), MK_OK);
  cr_assert_eq(mk_alloc(sms, sizeof *b->at, &b->at), MK_OK);
}

void test_boundary_stop(test_boundary *b) {
  for (size_t i = 0; i < b->program->buffer_count; i++) {
    mk_free(b->memory[i]);
  }
  mk_free(b->memory);
  mk_free(b->scratch);
  mk_free(b->states);
  mk_free(b->at);
  mk_program_free(b->program);
}

void *test_boundary_memory(const test_boundary *b, const char *name) {
  int index = mk_program_find_buffer(b->program, name);
  cr_assert_geq(index, 0, "%s", name);
  return b->memory[index];
}

void *test_boundary_line(const test_boundary *b, const char *name, uint32_t line) {
  return (uint32_t *)test_boundary_memory(b, name) + (size_t)line * b->vocab;
}

void test_boundary_slot_sampling(test_boundary *b, uint32_t slot, const mk_sampling *sampling) {
  float *bias = test_boundary_line(b, "logit_bias", slot);
  uint32_t *words = test_boundary_memory(b, "sampling");
  cr_assert_eq(mk_sampling_check(sampling, b->vocab), MK_OK, "%s", mk_error_message());
  mk_sampling_words(sampling, b->vocab, words + (size_t)slot * MK_SAMPLING_WORDS);
  memset(bias, 0, b->vocab * sizeof *bias);
  for (size_t i = 0; i < sampling->bias_count; i++) {
    bias[sampling->biases[i].token] = sampling->biases[i].bias;
  }
  memset(test_boundary_line(b, "token_counts", slot), 0, b->vocab * sizeof(uint32_t));
}

void test_boundary_sampling(test_boundary *b, const mk_sampling *sampling) {
  test_boundary_slot_sampling(b, 0, sampling);
}

bool test_boundary_failed(const test_boundary *b) { return (b->states[0].results[0] & MK_RESULT_NAN) != 0; }

/* The candidate of the tokens [first, end) of one line. */
static void publish_candidate(test_boundary *b, uint64_t words[2], const float *logits, uint32_t first, uint32_t end) {
  float best = -INFINITY;
  uint32_t index = MK_CANDIDATE_NONE;
  for (uint32_t t = first; t < end; t++) {
    if (index == MK_CANDIDATE_NONE || (isnan(logits[t]) ? !isnan(best) : logits[t] > best)) {
      best = logits[t];
      index = t;
    }
  }
  words[0] = (uint64_t)b->generation << 32 | mk_float_param(best);
  words[1] = (uint64_t)b->generation << 32 | index;
}

/* What HEAD leaves of its rows; its place in the queue. */
static uint32_t publish_head(test_boundary *b, uint32_t sm, const mk_step_row *plan, const float *logits) {
  const mk_queue *q = &b->program->queues[sm];
  for (uint32_t i = q->first; i < q->first + q->count; i++) {
    const mk_instruction *in = &b->program->instructions[i];
    if (in->opcode != MK_OP_HEAD) {
      continue;
    }
    const mk_operand *rows = &in->operands[MK_SLOT_HEAD_logits], *to = &in->operands[MK_SLOT_HEAD_candidate];
    uint32_t first = rows->col * 16u, end = (rows->col + rows->cols) * 16u;
    end = end < b->vocab ? end : b->vocab;
    for (uint32_t line = 0; line < b->rows; line++) {
      uint64_t *words = (uint64_t *)(void *)b->memory[to->buffer] + (size_t)2 * (to->row * b->rows + line);
      if ((plan[line].flags & MK_ROW_ACTIVE) != 0) {
        publish_candidate(b, words, logits + (size_t)line * b->vocab, first,
                          (plan[line].flags & MK_ROW_CHOOSES) != 0 ? end : first);
      }
    }
    return i;
  }
  cr_assert_fail("SM %u has no head", sm);
  return 0;
}

/* The lines of every tile of the buffer change places, each going to the one before it, or after it. */
static void rotate(test_boundary *b, uint16_t buffer, bool back) {
  const mk_buffer *at = &b->program->buffers[buffer];
  size_t line = at->bytes / at->rows, tile = line * at->tile_rows;
  uint8_t *kept;
  cr_assert_eq(mk_alloc(1, line, &kept), MK_OK);
  for (uint8_t *p = b->memory[buffer]; p < b->memory[buffer] + at->bytes; p += tile) {
    memcpy(kept, back ? p + tile - line : p, line);
    memmove(back ? p + line : p, back ? p : p + line, tile - line);
    memcpy(back ? p : p + tile - line, kept, line);
  }
  mk_free(kept);
}

static mk_reference_result execute(test_boundary *b, mk_reference *reference, const mk_instruction *in) {
  bool faulty = b->fault.opcode != MK_OP_NONE && in->opcode == b->fault.opcode;
  uint16_t buffer = in->operands[b->fault.operand].buffer;
  if (faulty) {
    rotate(b, buffer, false);
  }
  mk_reference_result result = mk_reference_run(reference, in);
  if (faulty) {
    rotate(b, buffer, true);
  }
  return result;
}

/* The next instruction of the SM; false: it waits. */
static bool step(test_boundary *b, uint32_t sm) {
  const mk_instruction *in = &b->program->instructions[b->at[sm]];
  mk_reference reference = {.program = b->program,
                            .memory = b->memory,
                            .state = &b->states[sm],
                            .generation = b->generation,
                            .publish = b->generation,
                            .scratch = b->scratch};
  mk_reference_result result = execute(b, &reference, in);
  cr_assert_neq(result, MK_REFERENCE_FAULT, "%s", mk_error_message());
  if (result == MK_REFERENCE_WAIT) {
    return false;
  }
  b->scanned += in->opcode == MK_OP_DRAW && reference.rows_used[MK_SLOT_DRAW_scores] != 0;
  b->rounds += in->opcode == MK_OP_SIFT && reference.rows_used[MK_SLOT_SIFT_rounds] != 0;
  b->at[sm]++;
  return true;
}

static void run(test_boundary *b) {
  const mk_queue *queues = b->program->queues;
  uint32_t left = 0, stuck = 0;
  for (uint32_t sm = 0; sm < b->sms; sm++) {
    left += queues[sm].first + queues[sm].count - b->at[sm];
  }
  for (uint32_t sm = 0; left != 0; sm = b->seed == 0 ? (sm + 1) % b->sms : test_random_below(&b->seed, b->sms)) {
    bool moved = b->at[sm] != queues[sm].first + queues[sm].count && step(b, sm);
    left -= moved;
    stuck = moved ? 0 : stuck + 1;
    cr_assert_lt(stuck, 100 * b->sms, "no SM goes on");
  }
}

void test_boundary_step(test_boundary *b, const mk_step_row *plan, const float *logits) {
  memcpy(test_boundary_memory(b, "logits"), logits, (size_t)b->rows * b->vocab * sizeof *logits);
  b->generation++;
  b->scanned = b->rounds = 0;
  for (uint32_t sm = 0; sm < b->sms; sm++) {
    b->states[sm] = (mk_step_state){.step = 0};
    memcpy(b->states[sm].rows, plan, b->rows * sizeof *plan);
    b->at[sm] = publish_head(b, sm, plan, logits) + 1;
  }
  run(b);
  for (uint32_t sm = 1; sm < b->sms; sm++) {
    cr_assert_eq(memcmp(&b->states[sm], &b->states[0], sizeof b->states[0]), 0, "SM %u goes on otherwise", sm);
  }
}

uint32_t test_boundary_draw(test_boundary *b, const float *logits, uint32_t token, uint32_t position,
                            uint32_t prompt_length) {
  bool inside = position + 1 < prompt_length;
  mk_step_row plan[MK_MAX_ROWS] = {{.position = position,
                                    .token = token,
                                    .flags = MK_ROW_ACTIVE | (inside ? 0 : (uint32_t)MK_ROW_CHOOSES) |
                                             (position < prompt_length ? (uint32_t)MK_ROW_PROMPT : 0)}};
  test_boundary_step(b, plan, logits);
  return b->states[0].results[0] & ~MK_RESULT_NAN;
}
