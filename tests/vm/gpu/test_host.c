/* The host's side of the GPU machine, over a driver without a GPU (tests/fake_cuda): what a launch finds in memory,
 * what comes back, and what is left when a call of the driver fails. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/fake_gpu.h"
#include "vm/gpu/machine.h"
#include "vm/program/attend_list.h"

FAKE_GPU_IMAGE

enum { ROWS = 4, STEPS = 5 };

static mk_program *compile(uint32_t rows) {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  mk_compile_options options = {.sms = 4, .max_seq = 64, .rows = rows, .slots = rows};
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

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

/* A machine for a program of so many rows. */
typedef struct rig {
  fake_gpu kernel;
  fake_cuda *cuda;
  mk_program *program;
  mk_gpu *gpu;
} rig;

static void start(rig *r, uint32_t rows) {
  r->cuda = fake_gpu_start(&r->kernel);
  r->program = compile(rows);
  cr_assert_eq(mk_gpu_new(r->program, &(mk_gpu_options){0}, &r->gpu), MK_OK, "%s", mk_error_message());
  cr_assert_eq(rows > 1 ? write_table(r->gpu, r->program) : MK_OK, MK_OK, "%s", mk_error_message());
}

static void stop(rig *r) {
  mk_gpu_free(r->gpu);
  cr_assert_eq(r->cuda->live, 0);
  mk_program_free(r->program);
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
      cr_assert_eq(t->results[step][line], active ? chosen[slot] : MK_CANDIDATE_NONE, "step %u, row %u", step, line);
    }
  }
}

static mk_status run_plan(rig *r, uint32_t first, uint32_t most, told *t) {
  mk_step_row plan[STEPS][ROWS];
  *t = (told){.most = most};
  make_plan(first, plan);
  return mk_gpu_run_plan(r->gpu, plan[0], STEPS, take_step, t);
}

static void expect_whole_launch(rig *r, uint32_t first) {
  told t;
  cr_assert_eq(run_plan(r, first, UINT32_MAX, &t), MK_OK, "%s", mk_error_message());
  cr_assert_eq(t.steps, STEPS);
  cr_assert_eq(mk_gpu_steps(r->gpu), STEPS);
  expect_results(&t, first);
}

/* Each launch runs by its own plan, however late the GPU gets to it. */
Test(gpu_host, a_launch_finds_what_was_written_before_it) {
  rig r;
  start(&r, ROWS);
  for (uint32_t first = 3; first < 40; first += 9) {
    expect_whole_launch(&r, first);
  }
  stop(&r);
}

/* A step of a prompt's chunk among generating rows, and one of these alone, `first` positions further on. */
enum { MANY_ROWS = 64, CHUNK = 5, MANY_STEPS = 2 };
static void plan_many(uint32_t first, mk_step_row *plan) {
  memset(plan, 0, MANY_STEPS * MANY_ROWS * sizeof *plan);
  for (uint32_t slot = 0; slot < 3; slot++) {
    plan[slot] = (mk_step_row){.slot = slot, .position = first, .token = slot, .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
    plan[MANY_ROWS + slot] = (mk_step_row){
        .slot = slot, .position = first + 1, .token = MK_TOKEN_CHOSEN, .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
  }
  for (uint32_t i = 0; i < CHUNK; i++) {
    plan[9 + i] = (mk_step_row){.slot = 7, .position = first + i, .token = i, .flags = MK_ROW_ACTIVE};
  }
}

/* The kernel goes by them: those of a launch's steps are there with its plan. */
Test(gpu_host, work_lists_come_with_the_plan) {
  rig r;
  mk_plan_buffers buffers;
  mk_step_row plan[MANY_STEPS * MANY_ROWS];
  start(&r, MANY_ROWS);
  cr_assert_eq(mk_plan_find(r.program, &buffers), MK_OK, "%s", mk_error_message());
  const mk_buffer *work = &r.program->buffers[buffers.work];
  uint32_t *wanted = calloc(1, work->bytes), *found = calloc(1, work->bytes);
  for (uint32_t first = 0; first < 30; first += 10) {
    plan_many(first, plan);
    cr_assert_eq(mk_gpu_run_plan(r.gpu, plan, MANY_STEPS, NULL, NULL), MK_OK, "%s", mk_error_message());
    cr_assert_eq(mk_gpu_read(r.gpu, buffers.work, 0, found, work->bytes), MK_OK, "%s", mk_error_message());
    cr_assert_eq(mk_attend_lists(r.program, &buffers, plan, MANY_STEPS, wanted), MK_OK);
    cr_assert_arr_eq(found, wanted, MANY_STEPS * work->cols * sizeof *wanted, "from position %u on", first);
    cr_assert_gt(wanted[0], 3, "a chunk is an item, or several, among others");
    cr_assert_eq(wanted[work->cols], 3);
  }
  free(wanted);
  free(found);
  stop(&r);
}

Test(gpu_host, what_is_written_is_what_is_read) {
  rig r;
  uint32_t words[4] = {1, 2, 3, 4}, back[4] = {0};
  start(&r, 1);
  size_t plan = (size_t)mk_program_find_buffer(r.program, "plan");
  uint64_t bytes = r.program->buffers[plan].bytes;
  cr_assert_eq(mk_gpu_read(r.gpu, plan, 0, back, sizeof back), MK_OK);
  cr_assert_eq(back[0] | back[1] | back[2] | back[3], 0, "everything is zero at first");
  cr_assert_eq(mk_gpu_write(r.gpu, plan, 0, words, sizeof words), MK_OK);
  memset(words, 0xff, sizeof words); /* the caller's again */
  cr_assert_eq(mk_gpu_read(r.gpu, plan, 4, back, 12), MK_OK);
  cr_assert(back[0] == 2 && back[1] == 3 && back[2] == 4);
  cr_assert_eq(mk_gpu_read(r.gpu, plan, bytes - 4, back, 8), MK_ERR_USAGE);
  stop(&r);
}

Test(gpu_host, a_launch_that_is_stopped_goes_on_from_there) {
  rig r;
  told t;
  start(&r, ROWS);
  cr_assert_eq(run_plan(&r, 5, 2, &t), MK_OK, "%s", mk_error_message());
  cr_assert_eq(t.steps, 2, "what comes after the stop is not told");
  cr_assert_leq(mk_gpu_steps(r.gpu), 3);
  cr_assert_eq(mk_gpu_generation(r.gpu), mk_gpu_steps(r.gpu), "the next launch's stamps follow on");
  expect_results(&t, 5);
  expect_whole_launch(&r, 8);
  stop(&r);
}

Test(gpu_host, a_fault_is_told_and_the_next_launch_works) {
  rig r;
  told t;
  start(&r, ROWS);
  r.kernel.fault_at = 2;
  cr_assert_eq(run_plan(&r, 5, UINT32_MAX, &t), MK_ERR_DEVICE);
  cr_assert_not_null(strstr(mk_error_message(), "SM 3"), "%s", mk_error_message());
  cr_assert_not_null(strstr(mk_error_message(), "step 2 of the launch"), "%s", mk_error_message());
  cr_assert_eq(t.steps, 2);
  cr_assert_eq(mk_gpu_generation(r.gpu), 0, "the machine has been cleared");
  r.kernel.fault_at = UINT32_MAX;
  expect_whole_launch(&r, 5);
  stop(&r);
}

/* *calls: to the driver, all but those that end it. */
static mk_status use_machine(rig *r, uint32_t *calls) {
  told t;
  uint32_t word;
  *calls = 0;
  MK_TRY(mk_gpu_new(r->program, &(mk_gpu_options){0}, &r->gpu));
  mk_status status = write_table(r->gpu, r->program);
  status = status == MK_OK ? run_plan(r, 5, UINT32_MAX, &t) : status;
  size_t table = (size_t)mk_program_find_buffer(r->program, "block_table");
  status = status == MK_OK ? mk_gpu_read(r->gpu, table, 0, &word, sizeof word) : status;
  *calls = r->cuda->calls;
  mk_gpu_free(r->gpu);
  return status;
}

/* The verifier rejects such a program; a machine that is handed one all the same has no word for its instruction. */
Test(gpu_host, what_has_no_word_is_refused) {
  fake_gpu kernel;
  fake_cuda *cuda = fake_gpu_start(&kernel);
  mk_program *program = compile(1);
  mk_gpu *gpu;
  program->instructions[0].operands[MK_SLOT_QKV_gain].cols--;
  cr_assert_eq(mk_gpu_new(program, &(mk_gpu_options){0}, &gpu), MK_ERR_FILE);
  cr_assert_not_null(strstr(mk_error_message(), "gain: tiles [0:1,0:"), "%s", mk_error_message());
  cr_assert_eq(cuda->live, 0);
  mk_program_free(program);
}

/* From the first call of the driver to the last one: an error, and nothing is left. */
Test(gpu_host, every_call_that_fails_is_an_error_and_leaves_nothing) {
  rig r = {.program = compile(ROWS)};
  uint32_t calls, before;
  r.cuda = fake_gpu_start(&r.kernel);
  cr_assert_eq(use_machine(&r, &calls), MK_OK, "%s", mk_error_message());
  cr_assert_gt(calls, 30);
  for (uint32_t n = 1; n <= calls; n++) {
    r.cuda->calls = 0;
    r.cuda->fail_at = n;
    mk_status status = use_machine(&r, &before);
    cr_assert_eq(r.cuda->live, 0, "call %u of %u: %u things are left", n, calls, r.cuda->live);
    cr_assert(status == MK_ERR_DEVICE || status == MK_ERR_RUNTIME, "call %u of %u failed, and that gave %d", n, calls,
              (int)status);
    cr_assert_not_null(strstr(mk_error_message(), "memory"), "call %u: %s", n, mk_error_message());
  }
  mk_program_free(r.program);
}

/* One step each, with its token given; the next one is queued before the end of the one before is waited for. */
Test(gpu_host, a_launch_that_is_queued_ahead_has_a_plan_of_its_own) {
  enum { LAUNCHES = 7 };
  rig r;
  mk_ranking found[2] = {{.most = 3}, {.most = 3}};
  const mk_gpu_rank_row row = {.line = 1, .token = MK_TOKEN_CHOSEN};
  start(&r, ROWS);
  const size_t logits = (size_t)mk_program_find_buffer(r.program, "logits");
  const mk_gpu_ranks ranks[] = {{.buffer = logits, .rows = &row, .count = 1, .most = 3, .out = &found[0]},
                                {.buffer = logits, .rows = &row, .count = 1, .most = 3, .out = &found[1]}};
  for (uint32_t i = 0; i < LAUNCHES; i++) {
    mk_step_row plan[STEPS][ROWS] = {0};
    told t = {.most = UINT32_MAX};
    plan[0][1] = (mk_step_row){.position = 2 * i, .token = 5 + i, .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
    cr_assert_eq(mk_gpu_enqueue(r.gpu, plan[0], 1, &ranks[i % 2]), MK_OK, "%s", mk_error_message());
    cr_assert_eq(mk_gpu_follow(r.gpu, take_step, &t), MK_OK, "%s", mk_error_message());
    cr_assert_eq(t.results[0][1], fake_gpu_choice(5 + i, 2 * i), "launch %u", i);
    if (i != 0) {
      cr_assert_eq(mk_gpu_finish(r.gpu), MK_OK, "%s", mk_error_message());
      cr_assert_eq(found[(i - 1) % 2].rank, fake_gpu_choice(4 + i, 2 * (i - 1)) + 1, "launch %u", i - 1);
      cr_assert_gt(mk_gpu_rank_ms(r.gpu), 0);
    }
  }
  cr_assert_eq(mk_gpu_finish(r.gpu), MK_OK, "%s", mk_error_message());
  expect_whole_launch(&r, 3);
  cr_assert_eq(mk_gpu_rank_ms(r.gpu), 0);
  mk_step_row plan[STEPS][ROWS];
  make_plan(3, plan);
  cr_assert_eq(mk_gpu_enqueue(r.gpu, plan[0], 1, NULL), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_gpu_enqueue(r.gpu, plan[0], 1, NULL), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_gpu_enqueue(r.gpu, plan[0], 1, NULL), MK_ERR_USAGE);
  cr_assert_str_eq(mk_error_message(), "2 launches are queued; wait for the end of one");
  stop(&r);
}

typedef struct heard {
  uint32_t tokens[STEPS], count;
} heard;

static bool take_token(void *user, uint32_t step, const uint32_t *results) {
  heard *h = user;
  cr_assert_eq(step, h->count);
  h->tokens[h->count++] = results[0];
  return true;
}

static mk_status run_sequence(rig *r, uint32_t position, const uint32_t *given, uint32_t count, heard *h) {
  mk_step_row plan[STEPS];
  mk_plan_sequence(plan, STEPS, position, given, count, MK_ROW_PROMPT);
  return mk_gpu_run_plan(r->gpu, plan, STEPS, h == NULL ? NULL : take_token, h);
}

Test(gpu_host, tokens_of_one_row_come_in_order) {
  rig r;
  start(&r, 1);
  for (uint32_t position = 0; position < 20; position += 7) {
    heard h = {.count = 0};
    uint32_t token = 11;
    cr_assert_eq(run_sequence(&r, position, &token, 1, &h), MK_OK, "%s", mk_error_message());
    cr_assert_eq(h.count, STEPS);
    for (uint32_t i = 0; i < STEPS; i++) {
      token = fake_gpu_choice(token, position + i);
      cr_assert_eq(h.tokens[i], token, "position %u, step %u", position, i);
    }
  }
  const uint32_t prompt[] = {11, 12};
  heard inside = {.count = 0};
  cr_assert_eq(run_sequence(&r, 3, prompt, 2, &inside), MK_OK, "%s", mk_error_message());
  cr_assert_eq(inside.tokens[0], MK_CANDIDATE_NONE, "the plan gives the next token");
  cr_assert_eq(inside.tokens[1], fake_gpu_choice(12, 4));
  cr_assert_eq(mk_gpu_run(r.gpu), MK_ERR_USAGE, "it takes a plan");
  r.kernel.nan_at = 2;
  heard failed = {.count = 0};
  mk_step_row plan[STEPS];
  mk_plan_sequence(plan, STEPS, 4, prompt, 1, MK_ROW_PROMPT);
  cr_assert_eq(mk_gpu_run_plan(r.gpu, plan, STEPS, take_token, &failed), MK_OK, "%s", mk_error_message());
  cr_assert_eq(failed.count, STEPS);
  cr_assert_eq(mk_plan_check_results(r.program, &plan[1], &failed.tokens[1]), MK_OK);
  cr_assert_eq(mk_plan_check_results(r.program, &plan[2], &failed.tokens[2]), MK_ERR_DEVICE);
  cr_assert_str_eq(mk_error_message(), "the logits at position 6 are not numbers (NaN)");
  cr_assert_eq(run_sequence(&r, 62, prompt, 1, NULL), MK_ERR_USAGE, "beyond the context");
  stop(&r);
}

/* Machines that mkvm does not run on: one line that says why, and nothing taken. */
static void expect_no_machine(const fake_cuda *cuda, uint32_t device, const char *why) {
  mk_program *program = compile(ROWS);
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

UNFIT(no_gpu, 0, "there is no NVIDIA GPU that this process may use; device cpu needs none", cuda->start = 100)
UNFIT(a_driver_that_does_not_start, 0, "the NVIDIA driver does not start: cuInit gives 999", cuda->start = 999)
UNFIT(no_gpu_left, 0, "there is no NVIDIA GPU that this process may use", cuda->devices = 0)
UNFIT(an_old_driver, 0, "it runs CUDA 12.8; install one for CUDA 13.0 or newer", cuda->version = 12080)
UNFIT(another_architecture, 0, "has compute capability 8.0; mkvm needs 9.0 (H100, H200)", cuda->major = 8)
UNFIT(a_gpu_that_is_not_there, 3, "there is no GPU 3; this machine has 1, counted from 0", (void)cuda)
UNFIT(no_cooperative_launches, 0, "does not take cooperative launches", cuda->cooperative = 0)
UNFIT(too_few_sms, 0, "runs 0 blocks at a time (8 SMs)", cuda->blocks_per_sm = 0)
