/* Several ranks at the host's side of the GPU machine, over a driver without a GPU (tests/fake_cuda): what each rank
 * has of weights and cache, what its words say, what comes back, and which GPUs are refused. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/fake_gpu.h"
#include "vm/gpu/machine.h"
#include "vm/gpu/machine_internal.h"
#include "vm/program/attend_list.h"

FAKE_GPU_IMAGE

enum { STEPS = 5 };

static mk_program *compile_slots(uint32_t ranks, uint32_t rows, uint32_t slots, bool sampling) {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  mk_compile_options options = {
      .sms = 4, .ranks = ranks, .max_seq = 256, .rows = rows, .slots = slots, .sampling = sampling};
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

static mk_program *compile(uint32_t ranks, uint32_t rows, bool sampling) {
  return compile_slots(ranks, rows, rows, sampling);
}

typedef struct rig {
  fake_gpu kernel;
  fake_cuda *cuda;
  mk_program *program;
  mk_gpu *gpu;
} rig;

static void start_program(rig *r, uint32_t ranks, bool draws) {
  r->cuda = fake_gpu_start(&r->kernel);
  r->cuda->devices = (int)ranks;
  r->kernel.ranks = ranks;
  r->program = compile(ranks, 1, draws);
  cr_assert_eq(mk_gpu_new(r->program, &(mk_gpu_options){0}, &r->gpu), MK_OK, "%s", mk_error_message());
}

static void start(rig *r, uint32_t ranks) { start_program(r, ranks, false); }

static void stop(rig *r) {
  mk_gpu_free(r->gpu);
  cr_assert_eq(r->cuda->live, 0);
  mk_program_free(r->program);
}

typedef struct heard {
  uint32_t tokens[STEPS], count;
} heard;

static bool take_token(void *user, uint32_t step, const uint32_t *results) {
  heard *h = user;
  h->tokens[step] = results[0];
  h->count++;
  return true;
}

static mk_status run(rig *r, uint32_t first, heard *h) {
  mk_step_row plan[STEPS];
  *h = (heard){.count = 0};
  mk_plan_sequence(plan, STEPS, 0, &first, 1, MK_ROW_PROMPT);
  return mk_gpu_run_plan(r->gpu, plan, STEPS, take_token, h);
}

static void expect_tokens(rig *r, uint32_t first) {
  heard h;
  uint32_t token = first;
  cr_assert_eq(run(r, first, &h), MK_OK, "%s", mk_error_message());
  cr_assert_eq(h.count, STEPS);
  for (uint32_t i = 0; i < STEPS; i++) {
    token = fake_gpu_choice(token, i);
    cr_assert_eq(h.tokens[i], token, "step %u", i);
  }
}

Test(gpu_ranks, every_rank_runs_a_launch_and_the_first_one_tells_tokens) {
  rig r;
  start(&r, 3);
  cr_assert_eq(mk_gpu_rank_count(r.gpu), 3);
  expect_tokens(&r, 11);
  expect_tokens(&r, 12);
  for (uint32_t rank = 0; rank < 3; rank++) {
    cr_assert_geq(r.kernel.at_work[rank], 2 * STEPS, "rank %u", rank);
  }
  cr_assert_eq(mk_gpu_generation(r.gpu), 2 * STEPS);
  stop(&r);
}

/* Of what the host gives, a rank has all parameters and biases, and the counts of its own row tiles. */
Test(gpu_ranks, ranks_that_draw_share_the_counts) {
  rig r;
  uint32_t counts[300], back[300] = {0};
  start_program(&r, 2, true);
  const size_t buffer = (size_t)mk_program_find_buffer(r.program, "token_counts");
  for (uint32_t i = 0; i < 300; i++) {
    counts[i] = i + 1;
  }
  cr_assert_eq(mk_gpu_write(r.gpu, buffer, 0, counts, sizeof counts), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_gpu_read(r.gpu, buffer, 0, back, sizeof back), MK_OK, "%s", mk_error_message());
  cr_assert_arr_eq(back, counts, sizeof back);
  cr_assert(mk_gpu_is_dealt(r.gpu, buffer));
  cr_assert_not(mk_gpu_is_dealt(r.gpu, (size_t)mk_program_find_buffer(r.program, "logit_bias")));
  expect_tokens(&r, 11);
  stop(&r);
}

/* A fault on any rank is told with its rank, and the next launch is whole. */
Test(gpu_ranks, a_fault_names_its_rank) {
  for (uint32_t faulty = 0; faulty < 3; faulty++) {
    rig r;
    heard h;
    char name[40];
    start(&r, 3);
    r.kernel.fault_at = 2;
    r.kernel.faulty = faulty;
    cr_assert_eq(run(&r, 11, &h), MK_ERR_DEVICE);
    snprintf(name, sizeof name, "rank %u (cuda:%u), SM 3", faulty, faulty);
    cr_assert_not_null(strstr(mk_error_message(), name), "%s", mk_error_message());
    cr_assert_eq(mk_gpu_generation(r.gpu), 0, "all ranks have been cleared");
    r.kernel.fault_at = UINT32_MAX;
    expect_tokens(&r, 12);
    stop(&r);
  }
}

/* A rank has each row tile of a weight that its queues multiply, at the address that its descriptor gives the tile, and
 * no memory for others. */
Test(gpu_ranks, a_rank_has_its_share_of_weights) {
  rig r;
  uint64_t bytes = 0, all = 0;
  start(&r, 2);
  for (uint32_t rank = 0; rank < 2; rank++) {
    const mk_gpu *gpu = r.gpu->of_rank[rank];
    const uint8_t *words = (const uint8_t *)gpu->params.instructions, *buffers = (const uint8_t *)gpu->params.buffers;
    for (uint32_t q = 0; q < r.program->machine.sms; q++) {
      const mk_queue *queue = &r.program->queues[rank * r.program->machine.sms + q];
      cr_assert_eq(gpu->params.queues[q].first, queue->first);
      for (uint32_t i = queue->first; i < queue->first + queue->count; i++) {
        const mk_instruction *in = &r.program->instructions[i];
        mk_instruction_word word;
        memcpy(&word, words + i * sizeof word, sizeof word);
        if (in->opcode != MK_OP_QKV || in->operands[MK_SLOT_QKV_weight].rows == 0) {
          continue;
        }
        mk_gpu_buffer b;
        const mk_operand *part = &word.parts[MK_PART_QKV_weight];
        memcpy(&b, buffers + part->buffer * sizeof b, sizeof b);
        const uint64_t row_tile = (uint64_t)b.grid_cols * 512, at = b.address + part->row * row_tile;
        cr_assert_eq(part->row, in->operands[MK_SLOT_QKV_weight].row, "tiles keep their numbers");
        cr_assert_geq(at, gpu->weights);
        cr_assert_eq((word.parts[MK_PART_QKV_out].flags >> MK_GPU_READERS_SHIFT) & 1u << rank, 1u << rank);
        /* What is written to these bytes of the buffer is there. */
        uint8_t one = (uint8_t)(17 + rank + i), other = 0;
        cr_assert_eq(mk_gpu_write(r.gpu, in->operands[MK_SLOT_QKV_weight].buffer, part->row * row_tile, &one, 1),
                     MK_OK);
        cr_assert_eq(*(const uint8_t *)(uintptr_t)at, one);
        cr_assert_eq(mk_gpu_read(r.gpu, in->operands[MK_SLOT_QKV_weight].buffer, part->row * row_tile, &other, 1),
                     MK_OK);
        cr_assert_eq(other, one);
      }
    }
  }
  for (size_t b = 0; b < r.program->buffer_count; b++) {
    const mk_buffer *buffer = &r.program->buffers[b];
    if (buffer->rank == MK_RANK_DEALT && buffer->kind == MK_KIND_KV) {
      bytes += mk_gpu_share_bytes(r.gpu->of_rank[0], b) + mk_gpu_share_bytes(r.gpu->of_rank[1], b);
      all += buffer->bytes;
    }
  }
  cr_assert_eq(bytes, all, "of the cache each head is on one rank");
  stop(&r);
}

/* Whatever is written to a dealt buffer, at any offset, is read again: weights, caches and logits. */
Test(gpu_ranks, what_is_written_is_read) {
  rig r;
  start(&r, 2);
  for (size_t b = 0; b < r.program->buffer_count; b++) {
    const mk_buffer *buffer = &r.program->buffers[b];
    if (buffer->rank != MK_RANK_DEALT || buffer->bytes < 8) {
      continue;
    }
    uint8_t *in = NULL, *out = NULL;
    cr_assert_eq(mk_alloc(buffer->bytes, 1, &in), MK_OK);
    cr_assert_eq(mk_alloc(buffer->bytes, 1, &out), MK_OK);
    for (uint64_t i = 0; i < buffer->bytes; i++) {
      in[i] = (uint8_t)(i * 7 + i / 251 + b);
    }
    const uint64_t half = buffer->bytes / 3 / 4 * 4;
    cr_assert_eq(mk_gpu_write(r.gpu, b, 0, in, half), MK_OK, "%s", mk_error_message());
    cr_assert_eq(mk_gpu_write(r.gpu, b, half, in + half, buffer->bytes - half), MK_OK, "%s", mk_error_message());
    cr_assert_eq(mk_gpu_read(r.gpu, b, 0, out, buffer->bytes), MK_OK, "%s", mk_error_message());
    cr_assert_eq(memcmp(in, out, buffer->bytes), 0, "buffer %s", buffer->name);
    mk_free(in);
    mk_free(out);
  }
  stop(&r);
}

static void expect_refused(const mk_program *program, const mk_gpu_options *options, mk_status status,
                           const char *why) {
  mk_gpu *gpu;
  cr_assert_eq(mk_gpu_new(program, options, &gpu), status, "%s", mk_error_message());
  cr_assert_null(gpu);
  cr_assert_not_null(strstr(mk_error_message(), why), "%s", mk_error_message());
}

/* Several ranks on a GPU have to find room at the same time: of 8 SMs two times 4, and not three times. */
Test(gpu_ranks, ranks_that_share_a_gpu) {
  static const uint32_t devices[] = {0, 0, 0};
  rig r = {.gpu = NULL};
  r.cuda = fake_gpu_start(&r.kernel);
  mk_program *three = compile(3, 1, false);
  expect_refused(three, &(mk_gpu_options){.devices = devices}, MK_ERR_RUNTIME,
                 "and has several ranks; compile it for 2");
  cr_assert_eq(r.cuda->live, 0);
  mk_program_free(three);
  r.program = compile(2, 1, false);
  r.kernel.ranks = 2;
  cr_assert_eq(mk_gpu_new(r.program, &(mk_gpu_options){.devices = devices}, &r.gpu), MK_OK, "%s", mk_error_message());
  expect_tokens(&r, 11);
  stop(&r);
}

/* Nothing is taken before. */
static void expect_no_gpus(int devices, const char *why) {
  fake_gpu kernel;
  fake_cuda *cuda = fake_gpu_start(&kernel);
  mk_program *program = compile(2, 1, false);
  cuda->devices = devices;
  cuda->no_peers = true;
  expect_refused(program, &(mk_gpu_options){0}, MK_ERR_RUNTIME, why);
  cr_assert_eq(cuda->live, 0);
  mk_program_free(program);
}
Test(gpu_ranks, more_ranks_than_gpus) {
  expect_no_gpus(1, "the program has 2 ranks, from cuda:0 on, and this machine has 1 GPUs: there is no cuda:1");
}
Test(gpu_ranks, gpus_out_of_reach) { expect_no_gpus(2, "cuda:0 cannot reach the memory of cuda:1"); }

Test(gpu_ranks, programs_that_gpus_do_not_share_yet) {
  mk_program *many = compile(9, 1, false);
  expect_refused(many, &(mk_gpu_options){0}, MK_ERR_FILE, "9 ranks; this machine has at most 8");
  mk_program *remote = compile(2, 1, false);
  remote->buffers[mk_program_find_buffer(remote, "token_ring")].rank = 1;
  expect_refused(remote, &(mk_gpu_options){0}, MK_ERR_FILE, "of rank 0 has buffer token_ring of rank 1");
  mk_program *wide = compile_slots(2, 128, 1, false), *drawing = compile_slots(2, 64, 64, true);
  for (size_t c = 0; c < wide->counter_count; c++) {
    wide->counters[c].rank = wide->counters[c].kind == MK_COUNTER_RELEASE ? 1 : wide->counters[c].rank;
  }
  expect_refused(wide, &(mk_gpu_options){0}, MK_ERR_FILE, "of rank 0 waits for counter");
  expect_refused(drawing, &(mk_gpu_options){0}, MK_ERR_FILE, "is not yet in wide steps on a GPU");
  mk_program_free(drawing);
  mk_program_free(wide);
  mk_program_free(remote);
  mk_program_free(many);
}

static const void *in_memory(const mk_gpu *gpu, size_t buffer) {
  return (const void *)(uintptr_t)mk_gpu_address(gpu, buffer); /* device memory is memory */
}

/* The shares of attention that a rank's queues have are of the KV heads that lie there, and what they make goes to both
 * ranks. */
static void expect_shares_of_attention(const rig *r, const mk_gpu *gpu) {
  const uint8_t *words = (const uint8_t *)gpu->params.instructions, *buffers = (const uint8_t *)gpu->params.buffers;
  uint32_t shares = 0;
  for (uint32_t q = 0; q < gpu->queues; q++) {
    for (uint32_t i = 0; i < gpu->params.queues[q].count; i++) {
      mk_instruction_word word;
      mk_gpu_buffer kv;
      memcpy(&word, words + (gpu->params.queues[q].first + i) * sizeof word, sizeof word);
      if (word.opcode != MK_OP_ATTEND) {
        continue;
      }
      const mk_operand *part = &word.parts[MK_PART_ATTEND_kv], *out = &word.parts[MK_PART_ATTEND_out];
      memcpy(&kv, buffers + part->buffer * sizeof kv, sizeof kv);
      const uint64_t head = (uint64_t)MK_BLOCK_TOKENS * kv.head_dim * 2 * sizeof(uint16_t);
      cr_assert_eq(kv.cols, 1, "of two heads a rank has one");
      cr_assert_geq(kv.address + part->col * head, gpu->kv);
      cr_assert_eq(out->flags >> MK_GPU_READERS_SHIFT, 3);
      cr_assert_eq(part->col, gpu->rank);
      shares++;
    }
  }
  cr_assert_gt(shares, 0, "%u SMs", r->program->machine.sms);
}

/* Wide steps of several sequences: every rank has the kernel for them, the plan and its work lists. */
Test(gpu_ranks, several_sequences_share_wide_steps) {
  enum { ROWS = 64, SLOTS = 20, WIDE_STEPS = 3 };
  rig r = {.program = compile_slots(2, ROWS, ROWS, false)};
  static mk_step_row plan[WIDE_STEPS * ROWS];
  mk_plan_buffers found;
  uint32_t *lists;
  r.cuda = fake_gpu_start(&r.kernel);
  r.cuda->devices = 2;
  r.kernel.ranks = 2;
  cr_assert_eq(mk_gpu_new(r.program, &(mk_gpu_options){0}, &r.gpu), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_plan_find(r.program, &found), MK_OK);
  for (uint32_t step = 0; step < WIDE_STEPS; step++) {
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
      plan[step * ROWS + slot] =
          (mk_step_row){.slot = slot, .position = step, .token = 3 + slot, .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
    }
  }
  const mk_buffer *table = &r.program->buffers[found.table];
  for (uint32_t slot = 0; slot < SLOTS; slot++) {
    cr_assert_eq(mk_gpu_write(r.gpu, found.table, (uint64_t)slot * table->cols * sizeof slot, &slot, sizeof slot),
                 MK_OK);
  }
  const uint64_t bytes = mk_gpu_list_bytes(r.gpu, WIDE_STEPS);
  cr_assert_neq(bytes, 0);
  cr_assert_eq(mk_alloc(bytes, 1, &lists), MK_OK);
  cr_assert_eq(mk_attend_lists(r.program, &found, plan, WIDE_STEPS, lists), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_gpu_run_plan(r.gpu, plan, WIDE_STEPS, NULL, NULL), MK_OK, "%s", mk_error_message());
  for (uint32_t rank = 0; rank < 2; rank++) {
    const mk_gpu *gpu = r.gpu->of_rank[rank];
    cr_assert_eq(gpu->image, MK_GPU_IMAGE_WIDE_SLOTS_RANKS);
    cr_assert_eq(memcmp(in_memory(gpu, found.work), lists, bytes), 0, "the lists of rank %u", rank);
    cr_assert_eq(memcmp(in_memory(gpu, found.plan), plan, sizeof plan), 0, "the plan of rank %u", rank);
    expect_shares_of_attention(&r, gpu);
  }
  mk_free(lists);
  stop(&r);
}

/* Of two ranks, from the first call of the driver to the last one: an error, and nothing is left. */
Test(gpu_ranks, every_call_that_fails_is_an_error_and_leaves_nothing) {
  rig r = {.program = compile(2, 1, false)};
  heard h;
  r.cuda = fake_gpu_start(&r.kernel);
  r.cuda->devices = 2;
  r.kernel.ranks = 2;
  for (uint32_t n = 0, calls = 1; n <= calls; n++) {
    r.cuda->calls = 0;
    r.cuda->fail_at = n;
    mk_status status = mk_gpu_new(r.program, &(mk_gpu_options){0}, &r.gpu);
    status = status != MK_OK ? status : run(&r, 11, &h);
    calls = n == 0 ? r.cuda->calls : calls;
    mk_gpu_free(r.gpu);
    cr_assert_eq(r.cuda->live, 0, "call %u of %u: %u things are left", n, calls, r.cuda->live);
    cr_assert_eq(status == MK_OK, n == 0, "call %u of %u", n, calls);
  }
  mk_program_free(r.program);
}
