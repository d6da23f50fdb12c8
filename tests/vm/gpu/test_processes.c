/* Ranks that are processes: what they share, how they end, and what is left when one is killed or stands still. Over a
 * driver and an NCCL without GPUs. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/effort.h"
#include "tests/support/rank_process.h"
#include "vm/gpu/machine.h"
#include "vm/gpu/machine_internal.h"

FAKE_GPU_IMAGE

enum { STEPS = 5, RANKS = 3, LAUNCHES = 3 };

/* What all ranks of a test are to do; each process has its own copy, and changes it as it likes. */
typedef struct plan_of_test {
  char address[32];
  uint32_t ranks, deadline_s, launches;
  bool tells_peers;
  bool quantised; /* weights in int4 with zeros, the KV cache in fp8 */
  void (*tamper)(rank_world *world, uint32_t rank);
  uint32_t again;      /* opens and closes all so often more */
  uint32_t fault_rank; /* comes to a fault in the second launch; UINT32_MAX: none */
  uint32_t stop_after; /* rank 0 wants no more after so many steps; 0: all */
  int ready;           /* a pipe: a byte once rank 0 has made a launch; 0: none */
  uint32_t *calls;     /* memory of all processes: how many calls of its driver rank 1 made; NULL: nobody asks */
} plan_of_test;

static void start_plan(plan_of_test *p, uint32_t ranks) {
  *p = (plan_of_test){.ranks = ranks, .deadline_s = 20, .launches = LAUNCHES, .fault_rank = UINT32_MAX};
  rank_address(p->address);
}

static mk_program *compile(uint32_t ranks, uint32_t rows, bool quantised) {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  const mk_compile_options options = {.sms = 4,
                                      .ranks = ranks,
                                      .max_seq = 256,
                                      .rows = rows,
                                      .slots = rows,
                                      .kv = quantised ? MK_DTYPE_E4M3 : MK_DTYPE_BF16};
  RANK_MUST(mk_synth_shape("tiny", &config) == MK_OK);
  if (quantised) {
    mk_synth_quantise(&config, MK_CODES_INT4, 64, MK_TENSOR_F16, true);
  }
  RANK_MUST(mk_llama_graph(&config, &graph) == MK_OK);
  RANK_MUST(mk_compile(graph, &options, &program) == MK_OK);
  mk_graph_free(graph);
  return program;
}

typedef struct heard {
  const plan_of_test *test;
  uint32_t tokens[STEPS], count;
} heard;

static bool take_token(void *user, uint32_t step, const uint32_t *results) {
  heard *h = user;
  h->tokens[step] = results[0];
  h->count++;
  return h->count != h->test->stop_after;
}

static void sleep_ms(uint32_t ms) {
  (void)nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}, NULL);
}

/* One launch of rank 0's, whose tokens have to be right. */
static mk_status launch(mk_gpu *gpu, const plan_of_test *p, uint32_t first) {
  mk_step_row plan[STEPS];
  heard h = {.test = p};
  uint32_t token = first;
  mk_plan_sequence(plan, STEPS, 0, &first, 1, MK_ROW_PROMPT);
  MK_TRY(mk_gpu_run_plan(gpu, plan, STEPS, take_token, &h));
  RANK_MUST(h.count == (p->stop_after == 0 ? STEPS : p->stop_after));
  for (uint32_t i = 0; i < h.count; i++) {
    token = fake_gpu_choice(token, i);
    RANK_MUST(h.tokens[i] == token);
  }
  return MK_OK;
}

/* A fault is told, and the machine works again. */
static mk_status launch_with_fault(mk_gpu *gpu, const plan_of_test *p) {
  char name[40];
  RANK_MUST(launch(gpu, p, 11) == MK_ERR_DEVICE);
  snprintf(name, sizeof name, "rank %u (cuda:%u), SM 3", p->fault_rank, p->fault_rank);
  RANK_MUST(strstr(mk_error_message(), name) != NULL);
  RANK_MUST(!mk_gpu_lost(gpu));
  return MK_OK;
}

static mk_status write_and_read_buffer(mk_gpu *gpu, size_t buffer, uint64_t bytes) {
  uint8_t *in = NULL, *out = NULL;
  const uint64_t half = bytes / 3 / 4 * 4;
  RANK_MUST(mk_alloc(bytes, 1, &in) == MK_OK);
  RANK_MUST(mk_alloc(bytes, 1, &out) == MK_OK);
  for (uint64_t i = 0; i < bytes; i++) {
    in[i] = (uint8_t)(i * 7 + i / 251 + buffer);
  }
  mk_status status = mk_gpu_write(gpu, buffer, 0, in, half);
  status = status == MK_OK ? mk_gpu_write(gpu, buffer, half, in + half, bytes - half) : status;
  status = status == MK_OK ? mk_gpu_read(gpu, buffer, 0, out, bytes) : status;
  RANK_MUST(status != MK_OK || memcmp(in, out, bytes) == 0);
  mk_free(in);
  mk_free(out);
  return status;
}

/* What rank 0 writes and reads is what all have. */
static mk_status write_and_read(mk_gpu *gpu, const mk_program *program) {
  for (size_t b = 0; b < program->buffer_count; b++) {
    const mk_buffer *buffer = &program->buffers[b];
    if (buffer->rank != MK_RANK_DEALT || buffer->bytes < 8) {
      continue;
    }
    MK_TRY(write_and_read_buffer(gpu, b, buffer->bytes));
  }
  return MK_OK;
}

static mk_status work(mk_group *group, mk_gpu *gpu, const mk_program *program, const plan_of_test *p,
                      rank_world *world) {
  const uint32_t rank = mk_group_rank(group);
  if (rank != 0) {
    world->kernel.faulty = p->fault_rank;
    world->kernel.fault_at = p->fault_rank == rank ? 2 : UINT32_MAX;
    return mk_group_follow(group);
  }
  MK_TRY(mk_group_lead(group));
  RANK_MUST(mk_gpu_trace_on(gpu, 0, 1, 100) == MK_ERR_USAGE); /* of one process alone */
  MK_TRY(write_and_read(gpu, program));
  MK_TRY(mk_gpu_clear(gpu));
  if (p->fault_rank != UINT32_MAX) {
    return launch_with_fault(gpu, p);
  }
  for (uint32_t i = 0; i < p->launches; i++) {
    if (p->ready != 0 && i == 1) {
      RANK_MUST(write(p->ready, "x", 1) == 1);
    }
    MK_TRY(launch(gpu, p, 11 + i));
  }
  RANK_MUST(p->stop_after != 0 || mk_gpu_generation(gpu) == p->launches * STEPS);
  return MK_OK;
}

static mk_status run_rank(uint32_t rank, void *user) {
  const plan_of_test *p = user;
  rank_world world = {0};
  rank_world_start(&world, rank, p->ranks, p->tells_peers);
  if (p->tamper != NULL) {
    p->tamper(&world, rank);
  }
  mk_program *program = compile(p->ranks, 1, p->quantised);
  mk_status status = MK_OK;
  for (uint32_t i = 0; i <= p->again && status == MK_OK; i++) {
    const mk_group_options options = {
        .rank = rank, .ranks = p->ranks, .address = p->address, .deadline_s = p->deadline_s, .version = "a test"};
    mk_group *group = NULL;
    mk_gpu *gpu = NULL;
    status = mk_group_open(&options, 1, rank, &group);
    if (status == MK_OK) {
      status = mk_gpu_new(program, &(mk_gpu_options){.group = group}, &gpu);
      status = status == MK_OK ? work(group, gpu, program, p, &world) : status;
      mk_group_end(group, status);
      mk_gpu_free(gpu);
    }
    mk_group_free(group);
  }
  mk_program_free(program);
  if (p->calls != NULL && rank == 1) {
    *p->calls = world.cuda->calls;
  }
  rank_world_end(&world);
  return status;
}

static void start_all(rank_process *ranks, plan_of_test *p) {
  for (uint32_t r = 0; r < p->ranks; r++) {
    rank_start(&ranks[r], run_rank, r, p);
  }
}

static void expect_all(rank_process *ranks, const plan_of_test *p) {
  for (uint32_t r = 0; r < p->ranks; r++) {
    const int code = rank_finish(&ranks[r]);
    cr_assert_eq(code, MK_OK, "rank %u: code %d, %s", r, code, ranks[r].message);
  }
}

static void expect_failure(rank_process *process, int code, const char *why) {
  const int have = rank_finish(process);
  cr_assert_eq(have, code, "code %d: %s", have, process->message);
  cr_assert_not_null(strstr(process->message, why), "%s", process->message);
}

static void run_well(uint32_t ranks, bool tells_peers, bool quantised) {
  plan_of_test p;
  rank_process processes[MK_GPU_MOST_RANKS];
  start_plan(&p, ranks);
  p.tells_peers = tells_peers;
  p.quantised = quantised;
  start_all(processes, &p);
  expect_all(processes, &p);
}

/* Launches, writes and reads, whether NCCL tells where the others' memory is or its structure does. */
Test(gpu_processes, ranks_run_launches_over_windows_of_2_28) { run_well(RANKS, false, false); }
Test(gpu_processes, ranks_run_launches_over_windows_that_nccl_tells_of) { run_well(RANKS, true, false); }
Test(gpu_processes, eight_ranks) { run_well(MK_GPU_MOST_RANKS, false, false); }
Test(gpu_processes, ranks_share_quantised_weights) { run_well(RANKS, false, true); }

Test(gpu_processes, rank_0_stops_a_launch_for_all) {
  plan_of_test p;
  rank_process processes[RANKS];
  start_plan(&p, RANKS);
  p.stop_after = 2;
  start_all(processes, &p);
  expect_all(processes, &p);
}

Test(gpu_processes, a_fault_on_another_rank_is_told_and_cleared) {
  plan_of_test p;
  rank_process processes[RANKS];
  start_plan(&p, RANKS);
  p.fault_rank = 2;
  start_all(processes, &p);
  expect_all(processes, &p);
}

/* Fifty times all of it: in each process, and of the processes nothing is left (rank_world_end, waitpid). */
Test(gpu_processes, fifty_starts_and_stops) {
  plan_of_test p;
  rank_process processes[2];
  start_plan(&p, 2);
  p.again = 49;
  p.launches = 1;
  start_all(processes, &p);
  expect_all(processes, &p);
}

/* ---- Who is gone, and who stands still ---- */

typedef struct watched { /* ranks that make launches */
  plan_of_test plan;
  rank_process ranks[RANKS];
  int pipe[2];
} watched;

static void start_watched(watched *w, uint32_t deadline_s, uint32_t launches) {
  char byte;
  start_plan(&w->plan, RANKS);
  cr_assert_eq(pipe(w->pipe), 0);
  w->plan.ready = w->pipe[1];
  w->plan.deadline_s = deadline_s;
  w->plan.launches = launches;
  start_all(w->ranks, &w->plan);
  cr_assert_eq(read(w->pipe[0], &byte, 1), 1);
}

static void expect_gone(watched *w, uint32_t rank) {
  char name[64];
  for (uint32_t r = 0; r < RANKS; r++) {
    if (r == rank) {
      cr_assert_eq(rank_finish(&w->ranks[r]), 1000 + SIGKILL);
      continue;
    }
    snprintf(name, sizeof name, "rank %u (", rank);
    expect_failure(&w->ranks[r], MK_ERR_DEVICE, name);
    snprintf(name, sizeof name, ", process %d) is gone", (int)w->ranks[rank].pid);
    cr_assert_not_null(strstr(w->ranks[r].message, name), "%s", w->ranks[r].message);
  }
}

static void kill_one(uint32_t rank) {
  watched w;
  start_watched(&w, 20, 1000000);
  cr_assert_eq(kill(w.ranks[rank].pid, SIGKILL), 0);
  /* Not by the deadline: the line closes. */
  struct timespec start, end;
  clock_gettime(CLOCK_MONOTONIC, &start);
  expect_gone(&w, rank);
  clock_gettime(CLOCK_MONOTONIC, &end);
  cr_assert_lt(end.tv_sec - start.tv_sec, 15);
}

Test(gpu_processes, rank_2_is_killed) { kill_one(2); }
Test(gpu_processes, rank_1_is_killed) { kill_one(1); }
Test(gpu_processes, rank_0_is_killed) { kill_one(0); }

static void stop_one(uint32_t rank) {
  watched w;
  start_watched(&w, 20, 40);
  cr_assert_eq(kill(w.ranks[rank].pid, SIGSTOP), 0);
  sleep_ms(3000);
  cr_assert_eq(kill(w.ranks[rank].pid, SIGCONT), 0);
  expect_all(w.ranks, &w.plan);
}

/* Three seconds are no fault. */
Test(gpu_processes, rank_1_stands_still_for_a_while) { stop_one(1); }
Test(gpu_processes, rank_0_stands_still_for_a_while) { stop_one(0); }

static void stop_for_good(uint32_t rank) {
  watched w;
  char name[40];
  start_watched(&w, 3, 1000000);
  cr_assert_eq(kill(w.ranks[rank].pid, SIGSTOP), 0);
  snprintf(name, sizeof name, "rank %u (", rank);
  for (uint32_t r = 0; r < RANKS; r++) {
    if (r != rank) {
      expect_failure(&w.ranks[r], MK_ERR_DEVICE, name);
      cr_assert_not_null(strstr(w.ranks[r].message, "has said nothing for 3 s"), "%s", w.ranks[r].message);
    }
  }
  cr_assert_eq(kill(w.ranks[rank].pid, SIGKILL), 0);
  cr_assert_eq(rank_finish(&w.ranks[rank]), 1000 + SIGKILL);
}

/* Longer than the deadline is. */
Test(gpu_processes, rank_2_stands_still_for_good) { stop_for_good(2); }
Test(gpu_processes, rank_0_stands_still_for_good) { stop_for_good(0); }

/* ---- NCCL ---- */

static void run_badly(void (*tamper)(rank_world *world, uint32_t rank), bool tells_peers, int code, const char *why) {
  plan_of_test p;
  rank_process processes[RANKS];
  start_plan(&p, RANKS);
  p.deadline_s = 5;
  p.tamper = tamper;
  p.tells_peers = tells_peers;
  start_all(processes, &p);
  for (uint32_t r = 0; r < RANKS; r++) {
    expect_failure(&processes[r], code, why);
  }
}

static void make_old(rank_world *world, uint32_t rank) {
  (void)rank;
  world->nccl->version = 22703;
}
Test(gpu_processes, nccl_is_too_old) {
  run_badly(make_old, false, MK_ERR_RUNTIME, "NCCL 2.27.3 is too old: it has no windows; install 2.28 or newer");
}

static void make_unknown(rank_world *world, uint32_t rank) {
  (void)rank;
  world->nccl->version = 22902;
}
Test(gpu_processes, nccl_does_not_tell_of_peers) {
  run_badly(make_unknown, false, MK_ERR_RUNTIME, "NCCL 2.29.2 has no ncclGetPeerDevicePointer");
}

static void make_layout_other(rank_world *world, uint32_t rank) { world->nccl->other_layout = rank == 1; }
Test(gpu_processes, windows_lie_in_memory_in_another_way) {
  run_badly(make_layout_other, false, MK_ERR_RUNTIME, "rank 1");
}

static void refuse_windows(rank_world *world, uint32_t rank) {
  (void)rank;
  world->nccl->no_windows = true;
}
Test(gpu_processes, a_window_cannot_be_registered) {
  run_badly(refuse_windows, false, MK_ERR_DEVICE, "registering a window: NCCL gives 3 (internal error)");
}

static void make_asymmetric(rank_world *world, uint32_t rank) {
  (void)rank;
  world->nccl->no_symmetry = true;
}
Test(gpu_processes, no_symmetric_memory) {
  run_badly(make_asymmetric, false, MK_ERR_RUNTIME, "registering a window: NCCL has no symmetric memory here");
}

static void take_handles_of_the_host(rank_world *world, uint32_t rank) {
  (void)rank;
  world->nccl->host_handles = true;
}
Test(gpu_processes, windows_that_are_no_memory_of_the_gpu) {
  run_badly(take_handles_of_the_host, false, MK_ERR_RUNTIME, "registering a window: NCCL has no symmetric memory here");
}

static void put_apart(rank_world *world, uint32_t rank) {
  (void)rank;
  world->nccl->out_of_reach = true;
}
Test(gpu_processes, gpus_out_of_reach) { run_badly(put_apart, false, MK_ERR_RUNTIME, "does not reach the memory"); }
Test(gpu_processes, gpus_out_of_reach_as_nccl_tells) {
  run_badly(put_apart, true, MK_ERR_RUNTIME, "does not reach the memory");
}

static void mislead(rank_world *world, uint32_t rank) { world->nccl->wrong_place = rank == 2; }
Test(gpu_processes, memory_is_not_where_it_is_said_to_be) {
  run_badly(mislead, true, MK_ERR_DEVICE, "is not where NCCL tells that it is");
}

static void take_memory(rank_world *world, uint32_t rank) { world->nccl->most_memory = rank == 1 ? 4096 : 0; }
Test(gpu_processes, one_rank_has_no_memory_for_a_window) {
  run_badly(take_memory, false, MK_ERR_DEVICE,
            "rank 1, cuda:1: allocating the working memory that all ranks see: NCCL gives 1 (unhandled cuda error)");
}

/* ---- A driver that fails ---- */

static uint32_t failing_call;
static void fail_on_rank_1(rank_world *world, uint32_t rank) { world->cuda->fail_at = rank == 1 ? failing_call : 0; }

/* Of one of two ranks, from the first call of the driver to the last one, every eighth of them and all of those by
 * which it ends: both end with an error, but for these, and nothing is left in either (rank_world_end). */
Test(gpu_processes, every_call_that_fails_on_one_rank_ends_both) {
  const uint32_t step = 24 / test_effort(1, 3); /* calls from one to the next */
  uint32_t *calls = mmap(NULL, sizeof *calls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  cr_assert_neq((void *)calls, MAP_FAILED);
  bool reached = true, ends = false; /* ends: the call is one of those by which it ends */
  for (failing_call = 1; reached; failing_call += ends ? 1 : step) {
    plan_of_test p;
    rank_process processes[2];
    start_plan(&p, 2);
    p.launches = 1;
    p.deadline_s = 2;
    p.tamper = fail_on_rank_1;
    p.calls = calls;
    start_all(processes, &p);
    const int first = rank_finish(&processes[0]), second = rank_finish(&processes[1]);
    cr_assert(first < 99 && second < 99, "call %u: codes %d and %d: %s; %s", failing_call, first, second,
              processes[0].message, processes[1].message);
    cr_assert_eq(first != MK_OK, second != MK_OK, "call %u: codes %d and %d: %s; %s", failing_call, first, second,
                 processes[0].message, processes[1].message);
    reached = *calls >= failing_call;
    ends = second == MK_OK;
  }
  cr_assert_gt(failing_call, 400, "there are some 500 calls");
  munmap(calls, sizeof *calls);
}

/* Where a communicator hangs, it does so in all processes; in the one that stays in NCCL its memory stays, too. */
static mk_status run_hanging(uint32_t rank, void *user) {
  const plan_of_test *p = user;
  rank_world world = {0};
  mk_group *group;
  mk_gpu *gpu = NULL;
  rank_world_start(&world, rank, p->ranks, false);
  world.nccl->hangs = rank == 1;
  mk_program *program = compile(p->ranks, 1, p->quantised);
  const mk_group_options options = {
      .rank = rank, .ranks = p->ranks, .address = p->address, .deadline_s = 2, .version = "a test"};
  MK_TRY(mk_group_open(&options, 1, rank, &group));
  const mk_status status = mk_gpu_new(program, &(mk_gpu_options){.group = group}, &gpu);
  mk_group_end(group, status);
  return status;
}
Test(gpu_processes, nccl_hangs) {
  plan_of_test p;
  rank_process processes[RANKS];
  start_plan(&p, RANKS);
  for (uint32_t r = 0; r < RANKS; r++) {
    rank_start(&processes[r], run_hanging, r, &p);
  }
  for (uint32_t r = 0; r < RANKS; r++) {
    expect_failure(&processes[r], MK_ERR_DEVICE, "opening NCCL's communicator: NCCL does not come back (waited 2 s)");
  }
}

/* No library by that name but the machine's own, if there is one: then it is taken, and this is no test. */
static mk_status open_nccl(uint32_t rank, void *user) {
  const mk_nccl *nccl;
  (void)rank, (void)user;
  return mk_nccl_open(&nccl);
}
Test(gpu_processes, nccl_is_missing) {
  rank_process process;
  rank_start(&process, open_nccl, 0, NULL);
  if (rank_finish(&process) != MK_OK) {
    cr_assert_not_null(strstr(process.message, "there is no NCCL ("), "%s", process.message);
    cr_assert_not_null(strstr(process.message, "ranks that are processes need it"), "%s", process.message);
  }
}
