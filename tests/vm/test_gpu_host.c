/* The host's side of the GPU machine, over a driver without a GPU (tests/fake_cuda): what a launch finds in memory, what comes back, and what is left
 * when a call of the driver fails. */
#include <criterion/criterion.h>
#include <string.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/fake_gpu.h"
#include "vm/gpu/machine.h"

FAKE_GPU_IMAGE

enum { ROWS = 4, STEPS = 5 };

static mk_program *compile_rows(uint32_t rows) {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  mk_compile_options options = {.sms = 4, .max_seq = 64, .rows = rows};
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

static mk_program *compile(void) { return compile_rows(ROWS); }

static mk_status write_table(mk_gpu *gpu, const mk_program *program) {
  size_t table = (size_t)mk_program_find_buffer(program, "block_table");
  uint32_t entries = program->buffers[table].rows * program->buffers[table].cols, *blocks;
  MK_TRY(mk_alloc(entries, sizeof *blocks, &blocks));
  for (uint32_t i = 0; i < entries; i++) {
    blocks[i] = i;
  }
  mk_status status = mk_gpu_write(gpu, table, 0, blocks, (uint64_t)entries * sizeof *blocks);
  mk_free(blocks);
  return status;
}

/* Two sequences of `first` and first + 1 as their first tokens; the second one begins a step later. */
static void make_plan(uint32_t first, mk_step_row plan[STEPS][ROWS]) {
  memset(plan, 0, STEPS * sizeof *plan);
  for (uint32_t step = 0; step < STEPS; step++) {
    for (uint32_t slot = 0; slot < 2 && slot <= step; slot++) {
      plan[step][1 + slot] = (mk_step_row){.slot = slot,
                                           .position = step - slot,
                                           .token = step == slot ? first + slot : MK_TOKEN_CHOSEN,
                                           .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
    }
  }
}

typedef struct told {
  uint32_t results[STEPS][ROWS], steps;
  uint32_t most; /* then the launch is to stop */
} told;

static bool take_step(void *user, uint32_t step, const uint32_t *results) {
  told *t = user;
  cr_assert_eq(step, t->steps);
  memcpy(t->results[t->steps++], results, sizeof t->results[0]);
  return t->steps < t->most;
}

static void expect_results(const told *t, uint32_t first) {
  uint32_t chosen[2] = {first, first + 1};
  for (uint32_t step = 0; step < t->steps; step++) {
    for (uint32_t line = 0; line < ROWS; line++) {
      bool active = (line == 1 || line == 2) && line - 1 <= step;
      uint32_t slot = line - 1;
      if (active) {
        chosen[slot] = fake_gpu_choice(chosen[slot], step - slot);
      }
      cr_assert_eq(t->results[step][line], active ? chosen[slot] : FAKE_GPU_NOTHING, "step %u, row %u", step, line);
    }
  }
}

/* Each launch runs by its own plan, however late the GPU gets to it. */
Test(gpu_host, a_launch_finds_what_was_written_before_it) {
  fake_gpu kernel;
  fake_cuda *cuda = fake_gpu_start(&kernel);
  mk_program *program = compile();
  mk_gpu *gpu;
  mk_step_row plan[STEPS][ROWS];
  cr_assert_eq(mk_gpu_new(program, &(mk_gpu_options){0}, &gpu), MK_OK, "%s", mk_error_message());
  cr_assert_eq(write_table(gpu, program), MK_OK, "%s", mk_error_message());
  for (uint32_t first = 3; first < 40; first += 9) {
    told t = {.most = UINT32_MAX};
    make_plan(first, plan);
    cr_assert_eq(mk_gpu_run_plan(gpu, plan[0], STEPS, take_step, &t), MK_OK, "%s", mk_error_message());
    cr_assert_eq(t.steps, STEPS);
    cr_assert_eq(mk_gpu_steps(gpu), STEPS);
    expect_results(&t, first);
  }
  mk_gpu_free(gpu);
  cr_assert_eq(cuda->live, 0);
  mk_program_free(program);
}

Test(gpu_host, what_is_written_is_what_is_read) {
  fake_gpu kernel;
  fake_cuda *cuda = fake_gpu_start(&kernel);
  mk_program *program = compile();
  mk_gpu *gpu;
  uint32_t words[4] = {1, 2, 3, 4}, back[4] = {0};
  size_t table = (size_t)mk_program_find_buffer(program, "block_table");
  cr_assert_eq(mk_gpu_new(program, &(mk_gpu_options){0}, &gpu), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_gpu_read(gpu, table, 0, back, sizeof back), MK_OK);
  cr_assert_eq(back[0] | back[1] | back[2] | back[3], 0, "everything is zero at first");
  cr_assert_eq(mk_gpu_write(gpu, table, 0, words, sizeof words), MK_OK);
  memset(words, 0xff, sizeof words); /* the caller's again */
  cr_assert_eq(mk_gpu_read(gpu, table, 4, back, 12), MK_OK);
  cr_assert(back[0] == 2 && back[1] == 3 && back[2] == 4);
  cr_assert_eq(mk_gpu_read(gpu, table, program->buffers[table].bytes - 4, back, 8), MK_ERR_USAGE);
  mk_gpu_free(gpu);
  cr_assert_eq(cuda->live, 0);
  mk_program_free(program);
}

Test(gpu_host, a_launch_that_is_stopped_goes_on_from_there) {
  fake_gpu kernel;
  fake_cuda *cuda = fake_gpu_start(&kernel);
  mk_program *program = compile();
  mk_gpu *gpu;
  mk_step_row plan[STEPS][ROWS];
  cr_assert_eq(mk_gpu_new(program, &(mk_gpu_options){0}, &gpu), MK_OK, "%s", mk_error_message());
  cr_assert_eq(write_table(gpu, program), MK_OK);
  told t = {.most = 2};
  make_plan(5, plan);
  cr_assert_eq(mk_gpu_run_plan(gpu, plan[0], STEPS, take_step, &t), MK_OK, "%s", mk_error_message());
  cr_assert_eq(t.steps, 2, "what comes after the stop is not told");
  cr_assert_leq(mk_gpu_steps(gpu), 3);
  cr_assert_eq(mk_gpu_generation(gpu), mk_gpu_steps(gpu), "the next launch's stamps follow on");
  expect_results(&t, 5);
  t = (told){.most = UINT32_MAX};
  make_plan(8, plan);
  cr_assert_eq(mk_gpu_run_plan(gpu, plan[0], STEPS, take_step, &t), MK_OK, "%s", mk_error_message());
  cr_assert_eq(t.steps, STEPS);
  expect_results(&t, 8);
  mk_gpu_free(gpu);
  cr_assert_eq(cuda->live, 0);
  mk_program_free(program);
}

Test(gpu_host, a_fault_is_told_and_the_next_launch_works) {
  fake_gpu kernel;
  fake_cuda *cuda = fake_gpu_start(&kernel);
  mk_program *program = compile();
  kernel.fault_at = 2;
  mk_gpu *gpu;
  mk_step_row plan[STEPS][ROWS];
  cr_assert_eq(mk_gpu_new(program, &(mk_gpu_options){0}, &gpu), MK_OK, "%s", mk_error_message());
  cr_assert_eq(write_table(gpu, program), MK_OK);
  make_plan(5, plan);
  told t = {.most = UINT32_MAX};
  cr_assert_eq(mk_gpu_run_plan(gpu, plan[0], STEPS, take_step, &t), MK_ERR_DEVICE);
  cr_assert_not_null(strstr(mk_error_message(), "SM 3"), "%s", mk_error_message());
  cr_assert_not_null(strstr(mk_error_message(), "step 2 of the launch"), "%s", mk_error_message());
  cr_assert_eq(t.steps, 2);
  cr_assert_eq(mk_gpu_generation(gpu), 0, "the machine has been cleared");
  kernel.fault_at = UINT32_MAX;
  t = (told){.most = UINT32_MAX};
  cr_assert_eq(mk_gpu_run_plan(gpu, plan[0], STEPS, take_step, &t), MK_OK, "%s", mk_error_message());
  cr_assert_eq(t.steps, STEPS);
  expect_results(&t, 5);
  mk_gpu_free(gpu);
  cr_assert_eq(cuda->live, 0);
  mk_program_free(program);
}

/* *calls: to the driver, all but those that end it. */
static mk_status use_machine(const mk_program *program, const fake_cuda *cuda, told *t, uint32_t *calls) {
  mk_gpu *gpu;
  mk_step_row plan[STEPS][ROWS];
  make_plan(5, plan);
  MK_TRY(mk_gpu_new(program, &(mk_gpu_options){0}, &gpu));
  mk_status status = write_table(gpu, program);
  if (status == MK_OK) {
    status = mk_gpu_run_plan(gpu, plan[0], STEPS, take_step, t);
  }
  if (status == MK_OK) {
    uint32_t word;
    status = mk_gpu_read(gpu, (size_t)mk_program_find_buffer(program, "block_table"), 0, &word, sizeof word);
  }
  *calls = cuda->calls;
  mk_gpu_free(gpu);
  return status;
}

/* From the first call of the driver to the last one: an error, and nothing is left behind. */
Test(gpu_host, every_call_that_fails_is_an_error_and_leaves_nothing) {
  fake_gpu kernel;
  fake_cuda *cuda = fake_gpu_start(&kernel);
  mk_program *program = compile();
  told t = {.most = UINT32_MAX};
  uint32_t calls, before;
  cr_assert_eq(use_machine(program, cuda, &t, &calls), MK_OK, "%s", mk_error_message());
  cr_assert_gt(calls, 30);
  for (uint32_t n = 1; n <= calls; n++) {
    t = (told){.most = UINT32_MAX};
    cuda->calls = 0;
    cuda->fail_at = n;
    mk_status status = use_machine(program, cuda, &t, &before);
    cr_assert_eq(cuda->live, 0, "call %u of %u: %u things are left", n, calls, cuda->live);
    cr_assert(status == MK_ERR_DEVICE || status == MK_ERR_RUNTIME, "call %u of %u failed, and that gave %d", n, calls,
              (int)status);
    cr_assert_not_null(strstr(mk_error_message(), "memory"), "call %u: %s", n, mk_error_message());
  }
  mk_program_free(program);
}

typedef struct heard {
  uint32_t tokens[STEPS], count, position;
} heard;

static bool take_token(void *user, uint32_t position, uint32_t token) {
  heard *h = user;
  cr_assert_eq(position, h->position + h->count);
  h->tokens[h->count++] = token;
  return true;
}

Test(gpu_host, tokens_of_one_row_come_in_order) {
  fake_gpu kernel;
  fake_cuda *cuda = fake_gpu_start(&kernel);
  mk_program *program = compile_rows(1);
  mk_gpu *gpu;
  cr_assert_eq(mk_gpu_new(program, &(mk_gpu_options){0}, &gpu), MK_OK, "%s", mk_error_message());
  for (uint32_t position = 0; position < 20; position += 7) {
    heard h = {.position = position};
    uint32_t token = 11;
    cr_assert_eq(mk_gpu_run(gpu, token, position, 0, STEPS, take_token, &h), MK_OK, "%s", mk_error_message());
    cr_assert_eq(h.count, STEPS);
    for (uint32_t i = 0; i < STEPS; i++) {
      token = fake_gpu_choice(token, position + i);
      cr_assert_eq(h.tokens[i], token, "position %u, step %u", position, i);
    }
  }
  kernel.nan_at = 2;
  cr_assert_eq(mk_gpu_run(gpu, 11, 4, 0, STEPS, NULL, NULL), MK_ERR_DEVICE);
  cr_assert_str_eq(mk_error_message(), "the logits at position 6 are not numbers (NaN)");
  cr_assert_eq(mk_gpu_run(gpu, 11, 62, 0, STEPS, NULL, NULL), MK_ERR_USAGE, "beyond the context");
  mk_gpu_free(gpu);
  cr_assert_eq(cuda->live, 0);
  mk_program_free(program);
}

/* Machines that mkvm does not run on: one line that says why, and nothing taken. */
static void expect_no_machine(const fake_cuda *cuda, uint32_t device, const char *why) {
  mk_program *program = compile();
  mk_gpu *gpu;
  cr_assert_eq(mk_gpu_new(program, &(mk_gpu_options){.device = device}, &gpu), MK_ERR_RUNTIME);
  cr_assert_null(gpu);
  cr_assert_not_null(strstr(mk_error_message(), why), "%s", mk_error_message());
  cr_assert_null(strchr(mk_error_message(), '\n'));
  cr_assert_eq(cuda->live, 0);
  mk_program_free(program);
}

#define UNFIT(name, device, why, ...)                               \
  Test(gpu_host, name) {                                            \
    fake_gpu kernel;                                                \
    fake_cuda *cuda = fake_gpu_start(&kernel);                      \
    __VA_ARGS__;                                                    \
    expect_no_machine(cuda, device, why);                           \
    cr_assert_eq(mk_gpu_present(device), cuda->blocks_per_sm == 0); \
  }

UNFIT(no_gpu, 0, "there is no NVIDIA GPU that this process may use; --device cpu needs none", cuda->start = 100)
UNFIT(a_driver_that_does_not_start, 0, "the NVIDIA driver does not start: cuInit gives 999", cuda->start = 999)
UNFIT(no_gpu_left, 0, "there is no NVIDIA GPU that this process may use", cuda->devices = 0)
UNFIT(an_old_driver, 0, "it runs CUDA 12.8; install one for CUDA 13.0 or newer", cuda->version = 12080)
UNFIT(another_architecture, 0, "has compute capability 8.0; mkvm needs 9.0 (H100, H200)", cuda->major = 8)
UNFIT(a_gpu_that_is_not_there, 3, "there is no GPU 3; this machine has 1, counted from 0", (void)cuda)
UNFIT(no_cooperative_launches, 0, "does not take cooperative launches", cuda->cooperative = 0)
UNFIT(too_few_sms, 0, "runs 0 blocks at a time (8 SMs)", cuda->blocks_per_sm = 0)
