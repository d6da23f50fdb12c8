/* The recorder over several ranks at the host's side, over a driver without a GPU: what the blocks of each rank leave
 * in its own memory becomes one trace on one clock. The kernel of these tests leaves notes by made-up clocks. */
#include <criterion/criterion.h>
#include <string.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/fake_gpu.h"
#include "vm/gpu/machine.h"
#include "vm/gpu/machine_internal.h"

FAKE_GPU_IMAGE

enum {
  RANKS = 2,
  SMS = 4,
  STEPS = 5,
  FIRST = 1,
  RECORDED = 3,
  STEP_NS = 100000,
  WORK_NS = 10000,   /* from a boundary on, later by rank and SM */
  ROUND_TICKS = 1600 /* from a question for the time to its answer */
};

static const double kHalfRoundNs = 400; /* of which one way takes half, at two ticks a nanosecond */

typedef struct rig {
  fake_gpu kernel;
  fake_cuda *cuda;
  bool (*usual)(void *user, const mk_gpu_params *params, uint32_t step);
  mk_program *program;
  mk_gpu *gpu;
  int64_t wrong;      /* ticks by which a rank takes the other clock wrongly */
  bool silent;        /* rank 0 does not answer */
  bool leaves_no_end; /* one track has no last boundary */
} rig;

static rig *running;

/* Two ticks a nanosecond, on clocks that began at different times. */
static uint64_t clock_of(uint32_t rank, uint32_t sm, uint64_t ns) {
  return 2 * ns + rank * UINT64_C(7000000000) + sm * UINT64_C(1234567) + 1;
}

static uint64_t boundary_ns(uint32_t step) { return 1000000 + (uint64_t)step * STEP_NS; }
static uint64_t work_ns(uint32_t rank, uint32_t sm) { return WORK_NS + rank * 1000 + sm * 100; }

static void put(const mk_gpu_trace *trace, uint32_t sm, const mk_gpu_note *note) {
  mk_trace_sm *of = &trace->sms[sm];
  const uint32_t at = of->notes[MK_ROLE_CONSUMER]++, track = sm * MK_TRACE_ROLES + MK_ROLE_CONSUMER;
  of->records[MK_ROLE_CONSUMER] += note->records;
  trace->notes[at / MK_GPU_TRACK_TURN * trace->stride + track * MK_GPU_TRACK_TURN + at % MK_GPU_TRACK_TURN] = *note;
}

static void put_boundary(const mk_gpu_trace *trace, uint32_t rank, uint32_t sm, uint32_t step) {
  const uint64_t now = clock_of(rank, sm, boundary_ns(step));
  put(trace, sm,
      &(mk_gpu_note){.since = (uint32_t)(now >> 32),
                     .now = (uint32_t)now,
                     .uid = step,
                     .activity = MK_ACTIVITY_BOUNDARY,
                     .records = 1});
}

/* What an SM notes of a step, and of the boundary after the last one. */
static void put_step(const mk_gpu_trace *trace, uint32_t rank, uint32_t sm, uint32_t step) {
  const bool end = step == trace->first_epoch + trace->epochs;
  if (step < trace->first_epoch || step > trace->first_epoch + trace->epochs ||
      (end && running->leaves_no_end && sm == 1)) {
    return;
  }
  put_boundary(trace, rank, sm, step);
  if (!end) {
    const uint64_t now = clock_of(rank, sm, boundary_ns(step) + work_ns(rank, sm));
    const mk_queue *queue = &running->program->queues[rank * SMS + sm];
    put(trace, sm,
        &(mk_gpu_note){.now = (uint32_t)now,
                       .uid = running->program->instructions[queue->first].uid,
                       .activity = MK_ACTIVITY_WORK,
                       .records = 1});
  }
}

static void look_at_clocks(const mk_gpu_params *params, uint32_t rank, uint32_t which, uint64_t ns) {
  mk_gpu_clock_offset *offset = (mk_gpu_clock_offset *)(void *)(params->trace.beacons + 2);
  params->clocks->nanoseconds[which] = ns + 77 * rank; /* of the GPU's own clock, which agrees with no other */
  params->clocks->ticks[which] = clock_of(rank, 0, ns);
  for (uint32_t sm = 0; sm < SMS; sm++) {
    mk_trace_sm *of = &params->trace.sms[sm];
    of->seen_at[which] = clock_of(rank, sm, ns);
    of->offset[which] = (int64_t)(clock_of(rank, sm, ns) - clock_of(rank, 0, ns));
    of->looks[which] = 1;
  }
  if (rank != 0 && !running->silent) {
    offset->seen_at[which] = clock_of(rank, 0, ns);
    offset->offset[which] = (int64_t)(clock_of(rank, 0, ns) - clock_of(0, 0, ns)) + running->wrong;
    offset->round[which] = ROUND_TICKS;
  }
}

static bool leave_notes(void *user, const mk_gpu_params *params, uint32_t step) {
  const mk_gpu_trace *trace = &params->trace;
  const uint32_t rank = params->peers->rank;
  if (trace->capacity != 0) {
    if (step == 0) {
      look_at_clocks(params, rank, 0, boundary_ns(0) - 500);
    }
    for (uint32_t sm = 0; sm < SMS; sm++) {
      put_step(trace, rank, sm, step);
    }
    if (step + 1 == STEPS) {
      look_at_clocks(params, rank, 1, boundary_ns(STEPS) + 500);
    }
  }
  return running->usual(user, params, step);
}

static void start(rig *r, bool draws) {
  mk_config config;
  mk_graph *graph;
  const mk_compile_options options = {.sms = SMS, .ranks = RANKS, .max_seq = 256, .sampling = draws};
  *r = (rig){0};
  running = r;
  r->cuda = fake_gpu_start(&r->kernel);
  r->cuda->devices = RANKS;
  r->kernel.ranks = RANKS;
  r->usual = r->cuda->kernel;
  r->cuda->kernel = leave_notes;
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &options, &r->program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  cr_assert_eq(mk_gpu_new(r->program, &(mk_gpu_options){0}, &r->gpu), MK_OK, "%s", mk_error_message());
}

static void stop(rig *r) {
  mk_gpu_free(r->gpu);
  cr_assert_eq(r->cuda->live, 0);
  mk_program_free(r->program);
}

static mk_status record(rig *r, mk_trace **trace) {
  mk_step_row plan[STEPS];
  const uint32_t first = 11;
  mk_plan_sequence(plan, STEPS, 0, &first, 1, MK_ROW_PROMPT);
  MK_TRY(mk_gpu_trace_on(r->gpu, FIRST, RECORDED, 100));
  MK_TRY(mk_gpu_run_plan(r->gpu, plan, STEPS, NULL, NULL));
  return mk_gpu_trace_take(r->gpu, trace);
}

/* The record of the n-th step's work, and how far it is from where it belongs. */
static double off_by(const mk_trace *trace, uint32_t rank, uint32_t sm, uint32_t n) {
  const mk_trace_track *track = mk_trace_track_of(trace, rank * SMS + sm, MK_ROLE_CONSUMER);
  cr_assert_gt(track->count, 2 * n + 1);
  const mk_trace_record *record = &track->records[2 * n + 1];
  cr_assert_eq(record->activity, MK_ACTIVITY_WORK);
  cr_assert_eq(record->epoch, FIRST + n);
  cr_assert_eq(record->uid, trace->program->instructions[trace->program->queues[rank * SMS + sm].first].uid);
  return (double)record->time - (double)(n * STEP_NS + work_ns(rank, sm));
}

static double most_off(const mk_trace *trace) {
  double most = 0;
  for (uint32_t i = 0; i < RANKS * SMS * RECORDED; i++) {
    const double off = off_by(trace, i / SMS / RECORDED, i / RECORDED % SMS, i % RECORDED);
    most = off > most ? off : -off > most ? -off : most;
  }
  return most;
}

/* Half the way there and back is what is not known; the boundaries set right what was taken wrongly within that. */
Test(gpu_ranks_trace, one_trace_on_one_clock) {
  for (int64_t wrong = -700; wrong <= 700; wrong += 700) {
    rig r;
    mk_trace *trace;
    start(&r, false);
    r.wrong = wrong;
    cr_assert_eq(record(&r, &trace), MK_OK, "%s", mk_error_message());
    cr_assert_eq(trace->sms, RANKS * SMS);
    cr_assert_eq(trace->first_step, FIRST);
    cr_assert_eq(trace->steps, RECORDED);
    cr_assert_eq(trace->launch_steps, STEPS);
    cr_assert_leq(most_off(trace), 1.0, "%f ns", most_off(trace));
    cr_assert_float_eq(trace->alignment_ns, kHalfRoundNs, 1.0, "%f ns", trace->alignment_ns);
    mk_trace_free(trace);
    stop(&r);
  }
}

/* Where a track lacks a boundary, the questions and answers are all there is, and they are as good as is said. */
Test(gpu_ranks_trace, without_all_boundaries) {
  rig r;
  mk_trace *trace;
  start(&r, false);
  r.wrong = ROUND_TICKS / 2;
  r.leaves_no_end = true;
  cr_assert_eq(record(&r, &trace), MK_OK, "%s", mk_error_message());
  cr_assert_leq(most_off(trace), trace->alignment_ns + 1);
  cr_assert_geq(most_off(trace), kHalfRoundNs - 1, "it is wrong by as much");
  mk_trace_free(trace);
  stop(&r);
}

Test(gpu_ranks_trace, a_rank_that_heard_no_clock) {
  rig r;
  mk_trace *trace = NULL;
  start(&r, false);
  r.silent = true;
  cr_assert_eq(record(&r, &trace), MK_ERR_DEVICE);
  cr_assert_null(trace);
  cr_assert_not_null(strstr(mk_error_message(), "rank 1, cuda:1: rank 0 never told its time"), "%s",
                     mk_error_message());
  stop(&r);
}

/* The recorder goes off on all ranks, and what it had is free; without it nothing is noted. */
Test(gpu_ranks_trace, on_and_off) {
  rig r;
  mk_trace *trace;
  start(&r, false);
  const uint32_t live = r.cuda->live;
  cr_assert_eq(record(&r, &trace), MK_OK);
  mk_trace_free(trace);
  cr_assert_eq(mk_gpu_trace_off(r.gpu), MK_OK);
  cr_assert_eq(r.cuda->live, live + RANKS, "the modules of kernels that record stay, and nothing else");
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    cr_assert_eq(r.gpu->of_rank[rank]->trace, 0);
  }
  cr_assert_eq(mk_gpu_trace_take(r.gpu, &trace), MK_ERR_USAGE);
  stop(&r);
}

/* Whatever fails while it goes on, on either rank, leaves it off. */
Test(gpu_ranks_trace, calls_that_fail) {
  rig r;
  start(&r, false);
  uint32_t failed = 0;
  for (uint32_t n = 1; n < 100; n++) {
    r.cuda->fail_at = r.cuda->calls + n;
    if (mk_gpu_trace_on(r.gpu, FIRST, RECORDED, 100) == MK_OK) {
      break;
    }
    failed++;
    cr_assert_eq(r.gpu->of_rank[0]->trace, 0);
    cr_assert_eq(r.gpu->of_rank[1]->trace, 0);
  }
  cr_assert_gt(failed, 5);
  r.cuda->fail_at = 0;
  mk_trace *trace;
  cr_assert_eq(record(&r, &trace), MK_OK, "%s", mk_error_message());
  mk_trace_free(trace);
  stop(&r);
}

Test(gpu_ranks_trace, kernels_that_do_not_record_are_named) {
  rig r;
  start(&r, true);
  cr_assert_eq(mk_gpu_trace_on(r.gpu, FIRST, RECORDED, 100), MK_ERR_USAGE);
  cr_assert_not_null(strstr(mk_error_message(), "of several ranks GPUs record plain Llamas in bf16"), "%s",
                     mk_error_message());
  stop(&r);
}
