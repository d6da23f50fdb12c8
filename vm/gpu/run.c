/* One launch of the GPU machine: start the kernel, hand tokens to the caller while it runs, see how it ended. See
 * machine.h. */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "vm/gpu/group_internal.h"
#include "vm/program/attend_list.h"

enum {
  POLLS_PER_QUERY = 4096, /* looks at the ring from one question to the driver to the next */
  LOST_MS = 30000,        /* after the kernel's own deadline: by then it no longer ends */
};

/* The caller's function, told what the rows of a step chose. */
typedef struct listener {
  mk_step_fn fn; /* NULL: nobody is */
  void *user;
} listener;

static mk_status start_mla(mk_gpu *gpu, const mk_gpu_params *params) {
  mk_gpu_mla_params mla;
  mk_gpu_mla_launch launch;
  void *arguments[] = {&mla};
  mk_gpu_mla_launch_of(gpu, gpu->paired, &launch);
  memcpy(&mla.queries, gpu->maps[0], sizeof mla.queries);
  memcpy(&mla.pages, gpu->maps[1], sizeof mla.pages);
  mla.common = *params;
  mla.inputs = gpu->inputs;
  mla.queue_length = gpu->program->queues[0].count;
  return mk_gpu_check(gpu, gpu->driver->launch_with(&launch.config, gpu->kernel, arguments, NULL),
                      "launching the kernel");
}

/* Or stands still, of which the same kernel knows. */
static bool is_recorded(const mk_gpu *gpu, const mk_gpu_params *params) {
  return gpu->trace != 0 || params->delay_uid != 0;
}

mk_status mk_gpu_start(mk_gpu *gpu, mk_gpu_params *params) {
  void *arguments[] = {params};
  gpu->launches++;
  if (gpu->mla) {
    return start_mla(gpu, params);
  }
  const bool records = is_recorded(gpu, params);
  MK_TRY(records ? mk_gpu_need_recording(gpu) : MK_OK);
  return mk_gpu_check(
      gpu,
      gpu->driver->launch_cooperative(records ? gpu->recording : gpu->kernel, gpu->queues, 1, 1, mk_gpu_threads(gpu), 1,
                                      1, mk_gpu_shared_bytes(gpu), gpu->stream, arguments),
      "launching the kernel");
}

static mk_status start_launch(mk_gpu *gpu, mk_gpu_flight *f) {
  const mk_driver *cu = gpu->driver;
  MK_TRY(mk_gpu_check(gpu, cu->event_record(f->start, gpu->stream), "preparing a launch"));
  MK_TRY(mk_gpu_start(gpu, &f->params));
  return mk_gpu_check(gpu, cu->event_record(f->end, gpu->stream), "launching the kernel");
}

static bool is_ranked(const mk_gpu_flight *f) { return f->ranks != NULL && f->ranks->count != 0; }

/* The control comes to the host beside the kernel of a launch that is queued next. */
static mk_status close_launch(mk_gpu *gpu, mk_gpu_flight *f) {
  const mk_driver *cu = gpu->driver;
  const size_t index = (size_t)(f - gpu->flights);
  mk_gpu_control *control = &gpu->pinned->control[index];
  if (is_ranked(f)) {
    MK_TRY(mk_gpu_start_ranks(gpu, f));
    MK_TRY(mk_gpu_check(gpu, cu->event_record(f->ranked, gpu->stream), "launching the kernel"));
  }
  MK_TRY(
      mk_gpu_check(gpu, cu->stream_after(gpu->taking, is_ranked(f) ? f->ranked : f->end, 0), "launching the kernel"));
  MK_TRY(mk_gpu_check(gpu, cu->download_async(control, mk_gpu_control_of(gpu, index), sizeof *control, gpu->taking),
                      "launching the kernel"));
  return mk_gpu_check(gpu, cu->event_record(f->done, gpu->taking), "launching the kernel");
}

/* Of the launch alone. */
static mk_status look_for_end(mk_gpu *gpu, const mk_gpu_flight *f, uint64_t last_ms, bool *ended) {
  mk_cu_result result = gpu->driver->event_query(f->done);
  *ended = result == 0;
  if (result != 0 && result != MK_CU_NOT_READY) {
    return mk_gpu_check(gpu, result, "the kernel failed");
  }
  uint64_t silent = mk_group_now_ms() - last_ms;
  if (!*ended && silent > gpu->options.deadline_ms + (uint64_t)LOST_MS) {
    gpu->lost = true;
    return mk_error(MK_ERR_DEVICE, "the kernel gave no token for %llu ms and does not end; start the process again",
                    (unsigned long long)silent);
  }
  return MK_OK;
}

/* And whether the processes of other ranks still live. */
static mk_status look_around(mk_gpu *gpu, const mk_gpu_flight *f, uint64_t last_ms, bool *ended) {
  MK_TRY(look_for_end(gpu, f, last_ms, ended));
  return *ended || gpu->group == NULL ? MK_OK : mk_group_watch(gpu->group, true);
}

/* The words of step `step` of the launch, if all of them are there. */
static bool look_at_ring(const mk_gpu *gpu, const mk_gpu_params *params, uint32_t step, uint32_t *words) {
  const volatile uint64_t *ring = gpu->ring + (size_t)step * gpu->rows;
  for (uint32_t i = 0; i < gpu->rows; i++) {
    uint64_t word = __atomic_load_n(&ring[i], __ATOMIC_ACQUIRE);
    if (word >> 32 != params->first_epoch + step + 1) {
      return false;
    }
    words[i] = (uint32_t)word;
  }
  return true;
}

/* Hands out tokens until all are there, or the kernel has ended; makes no driver call that waits. */
static mk_status follow(mk_gpu *gpu, const mk_gpu_flight *f, const listener *to) {
  uint32_t seen = 0, words[MK_MOST_ROWS] = {0};
  uint64_t last = mk_group_now_ms();
  bool ended = false;
  for (uint32_t polls = 0; seen < f->params.epochs; polls++) {
    if (look_at_ring(gpu, &f->params, seen, words)) {
      if (to->fn != NULL && !to->fn(to->user, seen, words)) {
        __atomic_store_n(&gpu->pinned->stop, 1, __ATOMIC_SEQ_CST);
        return MK_OK;
      }
      seen++;
      last = mk_group_now_ms();
    } else if (ended) {
      return MK_OK; /* the ring was looked at once more after the end: nothing is coming */
    } else if (polls % POLLS_PER_QUERY != 0) {
      sched_yield();
    } else {
      MK_TRY(look_around(gpu, f, last, &ended));
    }
  }
  return MK_OK;
}

static const char *opcode_of(const mk_program *program, uint32_t uid) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    if (program->instructions[i].uid == uid) {
      const mk_opcode_info *info = mk_opcode_lookup(program->instructions[i].opcode);
      return info == NULL || info->name == NULL ? "?" : info->name;
    }
  }
  return "none yet";
}

static const char *edge_name(const mk_program *program, const mk_gpu_fault *fault) {
  uint32_t edge = fault->edge;
  if (fault->activity == MK_ACTIVITY_COUNTER) {
    return edge < program->counter_count ? program->counters[edge].name : "?";
  }
  return edge < program->buffer_count ? program->buffers[edge].name : "?";
}

static void describe_edge(const mk_program *program, const mk_gpu_fault *fault, char *text, size_t size) {
  static const char *const patterns[] = {
#define MK_ACTIVITY(NAME, name, kind, edge) [MK_ACTIVITY_##NAME] = (edge),
#include "vm/trace/activities.def"
  };
  const char *pattern = fault->activity < MK_ACTIVITY_COUNT ? patterns[fault->activity] : "an unknown edge";
  const char *place = strchr(pattern, '%');
  int before = place == NULL ? (int)strlen(pattern) : (int)(place - pattern);
  bool named = place != NULL && place[1] == 's';
  char number[16];
  snprintf(number, sizeof number, "%u", fault->edge);
  int n = snprintf(text, size, "%.*s%s%s", before, pattern,
                   place == NULL ? ""
                   : named       ? edge_name(program, fault)
                                 : number,
                   place == NULL ? "" : place + 2);
  if (n < 0 || (size_t)n >= size) {
    return;
  }
  const char *what = fault->activity == MK_ACTIVITY_STAMP ? "generation " : "";
  if (named) {
    snprintf(text + n, size - (size_t)n, ": have %s%u, want %u", what, fault->have, fault->want);
  } else {
    snprintf(text + n, size - (size_t)n, " (phase %u)", fault->want);
  }
}

/* The GPU of a rank, in this process or another one. */
static uint32_t device_of(const mk_gpu *gpu, uint32_t rank) {
  const bool away = gpu->group != NULL && rank != gpu->rank;
  return away                 ? gpu->group->peers[rank].who.device
         : gpu->group != NULL ? gpu->options.device
                              : gpu->of_rank[rank]->options.device;
}

/* Reports the first fault, of a rank; afterwards the machine is as new, but for weights and inputs. */
static mk_status report_fault(mk_gpu *gpu, uint32_t of, const mk_gpu_fault *fault) {
  bool token = fault->activity == MK_GPU_FAULT_TOKEN, block = fault->activity == MK_GPU_FAULT_BLOCK;
  char what[256], edge[192];
  if (token) {
    snprintf(what, sizeof what, "came to token %u of a vocabulary of %u", fault->have, fault->want);
  } else if (block) {
    snprintf(what, sizeof what, "found block %u in its table, of a cache of %u", fault->have, fault->want);
  } else {
    describe_edge(gpu->program, fault, edge, sizeof edge);
    snprintf(what, sizeof what, "waited %u ms for %s", gpu->options.deadline_ms, edge);
  }
  char rank[40] = "";
  if (gpu->ranks > 1) {
    snprintf(rank, sizeof rank, "rank %u (cuda:%u), ", of, device_of(gpu, of));
  }
  MK_TRY(mk_gpu_clear(gpu));
  return mk_error(MK_ERR_DEVICE,
                  "%s: %sSM %u, %s, instruction %u (%s), step %u of the launch, %s; the machine is cleared and can run "
                  "again",
                  token || block ? "an index out of range" : "the program stands still", rank, fault->sm,
                  mk_trace_role_name(fault->role), fault->uid, opcode_of(gpu->program, fault->uid), fault->epoch, what);
}

static mk_status check_unplanned(const mk_gpu *gpu) {
  return gpu->planned ? mk_error(MK_ERR_USAGE, "the program goes from step to step by a plan; run it with one") : MK_OK;
}

/* Generations must not wrap round to one that an old word carries. */
static mk_status check_generation(const mk_gpu *gpu, uint32_t steps) {
  return gpu->first_epoch <= UINT32_MAX / 2 && steps <= UINT32_MAX / 2
             ? MK_OK
             : mk_error(MK_ERR_DEVICE,
                        "the machine has run %u steps since it was cleared; clear it and start from position 0",
                        gpu->first_epoch);
}

/* Of the plan that is sent. */
static mk_status send_lists(mk_gpu *gpu, uint32_t steps) {
  const uint64_t bytes = mk_gpu_list_bytes(gpu, steps);
  if (bytes == 0) {
    return MK_OK;
  }
  MK_TRY(mk_attend_lists(gpu->program, &gpu->buffers, gpu->plan, steps, gpu->lists));
  return mk_gpu_check(gpu,
                      gpu->driver->upload_async(mk_gpu_address(gpu, gpu->buffers.work), gpu->lists, bytes, gpu->stream),
                      "sending the work lists");
}

static mk_gpu_flight *flight_of(mk_gpu *gpu, uint32_t number) { return &gpu->flights[number % MK_GPU_FLIGHTS]; }

/* Sends the plan, so that only the kernel waits for it. While another launch runs, it goes past what is queued after
 * that one, to a place of its own, so that the kernel begins when the rankings have been made. Work lists have one
 * place, so they wait for that launch. */
static mk_status send_plan(mk_gpu *gpu, mk_gpu_flight *f, const mk_step_row *plan, uint32_t steps) {
  const mk_driver *cu = gpu->driver;
  const uint64_t rows = (uint64_t)steps * gpu->rows, bytes = rows * sizeof *plan;
  const bool beside = gpu->in_flight != 0 && mk_gpu_list_bytes(gpu, 1) == 0;
  f->ahead = gpu->in_flight != 0 && !flight_of(gpu, gpu->queued - 1)->ahead;
  const mk_cu_address to = f->ahead ? gpu->ahead : mk_gpu_address(gpu, gpu->buffers.plan);
  f->params.plan = (const uint32_t *)(uintptr_t)to;
  memcpy(gpu->plan, plan, bytes);
  MK_TRY(send_lists(gpu, steps));
  MK_TRY(mk_gpu_check(gpu, cu->upload_async(to, gpu->plan, bytes, beside ? gpu->sending : gpu->stream),
                      "sending the plan"));
  if (!beside) {
    return MK_OK;
  }
  MK_TRY(mk_gpu_check(gpu, cu->event_record(f->sent, gpu->sending), "sending the plan"));
  return mk_gpu_check(gpu, cu->stream_after(gpu->stream, f->sent, 0), "sending the plan");
}

static mk_status queue_rank(mk_gpu *gpu, const mk_step_row *plan, uint32_t steps, const mk_gpu_ranks *ranks) {
  mk_gpu_flight *f = flight_of(gpu, gpu->queued);
  MK_TRY(mk_gpu_enter(gpu));
  f->params = gpu->params;
  mk_gpu_take_control(gpu, (size_t)(f - gpu->flights), &f->params);
  f->params.epochs = steps;
  f->params.first_epoch = gpu->first_epoch;
  f->params.first_epoch += gpu->in_flight == 0 ? 0 : flight_of(gpu, gpu->queued - 1)->params.epochs;
  f->ranks = ranks;
  f->first_position = plan == NULL ? 0 : plan->position;
  __atomic_store_n(&gpu->pinned->stop, 0, __ATOMIC_SEQ_CST);
  MK_TRY(plan == NULL ? MK_OK : send_plan(gpu, f, plan, steps));
  MK_TRY(is_recorded(gpu, &f->params) ? mk_gpu_need_recording(gpu) : MK_OK);
  return mk_gpu_trace_prepare(gpu);
}

static mk_status start_rank(mk_gpu *gpu) {
  MK_TRY(mk_gpu_enter(gpu));
  return start_launch(gpu, flight_of(gpu, gpu->queued));
}

static mk_status close_rank(mk_gpu *gpu) {
  MK_TRY(mk_gpu_enter(gpu));
  MK_TRY(close_launch(gpu, flight_of(gpu, gpu->queued)));
  gpu->queued++;
  gpu->in_flight++;
  return MK_OK;
}

mk_status mk_gpu_prepare(mk_gpu *gpu, const mk_step_row *plan, uint32_t steps, const mk_gpu_ranks *ranks) {
  const uint32_t most = gpu->ranks > 1 ? 1 : MK_GPU_FLIGHTS;
  if (gpu->in_flight == most) {
    return mk_error(MK_ERR_USAGE, "%u launches are queued; wait for the end of one", most);
  }
  MK_TRY(check_generation(gpu, 0));
  for (uint32_t r = 0; r < gpu->here; r++) {
    MK_TRY(mk_gpu_of_rank(gpu->of_rank[r], queue_rank(gpu->of_rank[r], plan, steps, ranks)));
  }
  return MK_OK;
}

static mk_status begin_here(mk_gpu *gpu) {
  for (uint32_t r = 0; r < gpu->here; r++) {
    MK_TRY(mk_gpu_of_rank(gpu->of_rank[r], start_rank(gpu->of_rank[r])));
  }
  for (uint32_t r = 0; r < gpu->here; r++) {
    MK_TRY(mk_gpu_of_rank(gpu->of_rank[r], close_rank(gpu->of_rank[r])));
  }
  return MK_OK;
}

/* In a group: beside a kernel that runs, whose controllers all watch this word. */
static void raise_abort(const mk_gpu *gpu) {
  static const uint32_t one = 1;
  const mk_driver *cu = gpu->driver;
  (void)cu->upload_async(gpu->control + offsetof(mk_gpu_control, abort), &one, sizeof one, gpu->sending);
  (void)cu->stream_wait(gpu->sending);
}

mk_status mk_gpu_begin(mk_gpu *gpu) {
  const mk_status status = begin_here(gpu);
  if (status != MK_OK && gpu->group != NULL) { /* the kernel may run, and others will not follow it */
    raise_abort(gpu);
    (void)gpu->driver->stream_wait(gpu->stream);
  }
  return status;
}

mk_status mk_gpu_look(mk_gpu *gpu) {
  bool ended;
  return gpu->in_flight == 0 ? MK_OK : look_for_end(gpu, flight_of(gpu, gpu->queued - 1), mk_group_now_ms(), &ended);
}

/* The kernels of all ranks start one right after the other, as they wait for each other: so all ranks are ready before
 * the first one starts. One that then does not start ends the launch, and with it its group. */
static mk_status queue(mk_gpu *gpu, const mk_step_row *plan, uint32_t steps, const mk_gpu_ranks *ranks) {
  const uint64_t bytes = plan == NULL ? 0 : (uint64_t)steps * gpu->rows * sizeof *plan;
  MK_TRY(mk_gpu_order(gpu, (mk_group_head){.kind = MK_ORDER_PREPARE, .a = steps, .bytes = bytes}, plan));
  MK_TRY(mk_gpu_ordered(gpu, mk_gpu_prepare(gpu, plan, steps, ranks), NULL, NULL));
  MK_TRY(mk_gpu_order(gpu, (mk_group_head){.kind = MK_ORDER_START}, NULL));
  const mk_status status = mk_gpu_ordered(gpu, mk_gpu_begin(gpu), NULL, NULL);
  return status == MK_OK || gpu->group == NULL ? status : mk_group_break(gpu->group, status, "%s", mk_error_message());
}

/* Waits for the end of a rank's launch. */
static mk_status wait_rank(mk_gpu *gpu) {
  mk_gpu_flight *f = flight_of(gpu, gpu->queued - gpu->in_flight);
  const uint64_t since = mk_group_now_ms();
  MK_TRY(mk_gpu_enter(gpu));
  for (bool ended = false; !ended;) {
    MK_TRY(look_around(gpu, f, since, &ended));
  }
  gpu->ended = gpu->pinned->control[f - gpu->flights];
  gpu->last_position = f->first_position;
  gpu->steps = 0;
  gpu->time_ms = gpu->rank_ms = 0;
  MK_TRY(mk_gpu_check(gpu, gpu->driver->event_elapsed(&gpu->time_ms, f->start, f->end), "timing the kernel"));
  return is_ranked(f)
             ? mk_gpu_check(gpu, gpu->driver->event_elapsed(&gpu->rank_ms, f->end, f->ranked), "timing the rankings")
             : MK_OK;
}

/* A rank's launch. */
static const mk_gpu_control *how_it_ended(const mk_gpu *gpu, uint32_t rank) {
  return gpu->group == NULL ? &gpu->of_rank[rank]->ended : rank == gpu->rank ? &gpu->ended : &gpu->told[rank];
}

/* What goes wrong on one rank ends the launch on all of them. The rank on which a wait was too long is told; others
 * have only been told to leave. */
static mk_status look_for_faults(mk_gpu *gpu) {
  bool failed = false;
  for (uint32_t r = 0; r < gpu->ranks; r++) {
    const mk_gpu_control *ended = how_it_ended(gpu, r);
    failed = failed || ended->abort != 0;
    if (ended->fault.claimed != 0) {
      return report_fault(gpu, r, &ended->fault);
    }
  }
  return failed ? report_fault(gpu, gpu->rank, &gpu->ended.fault) : MK_OK;
}

/* Whatever fails, nothing that is queued is followed any more. A launch of a group that broke is ended: there is nobody
 * left to wait for. */
static mk_status ended(mk_gpu *gpu, mk_status status) {
  if (status != MK_OK && gpu->group != NULL && gpu->group->broken != MK_OK) {
    mk_gpu_abandon(gpu);
    return mk_error(gpu->group->broken, "%s", gpu->group->why);
  }
  for (uint32_t r = 0; r < gpu->here && status != MK_OK; r++) {
    gpu->of_rank[r]->in_flight = 0;
  }
  return status;
}

static void count_steps(mk_gpu *gpu) {
  mk_gpu_flight *f = flight_of(gpu, gpu->queued - gpu->in_flight);
  gpu->in_flight--;
  gpu->steps = gpu->ended.epochs_done;
  gpu->first_epoch += gpu->steps;
  if (gpu->steps == f->params.epochs) {
    mk_gpu_take_ranks(gpu, f);
  }
}

static mk_status wait_here(mk_gpu *gpu) {
  for (uint32_t r = 0; r < gpu->here; r++) {
    MK_TRY(mk_gpu_of_rank(gpu->of_rank[r], wait_rank(gpu->of_rank[r])));
  }
  return MK_OK;
}

static mk_status take_end(void *user, uint32_t rank, const void *data, uint64_t bytes) {
  const mk_gpu *gpu = user;
  memcpy(&gpu->told[rank], data, bytes < sizeof gpu->told[rank] ? bytes : sizeof gpu->told[rank]);
  return MK_OK;
}

/* Waits for the end of the launch that was queued first, on all ranks. */
static mk_status finish(mk_gpu *gpu) {
  MK_TRY(mk_gpu_order(gpu, (mk_group_head){.kind = MK_ORDER_FINISH}, NULL));
  MK_TRY(mk_gpu_ordered(gpu, wait_here(gpu), take_end, gpu));
  MK_TRY(look_for_faults(gpu));
  for (uint32_t r = 0; r < gpu->here; r++) {
    count_steps(gpu->of_rank[r]);
  }
  for (uint32_t r = 0; r < gpu->ranks; r++) {
    if (how_it_ended(gpu, r)->epochs_done != gpu->steps) {
      return mk_error(MK_ERR_DEVICE, "rank %u made %u steps of a launch, and rank 0 %u; clear the machine", r,
                      how_it_ended(gpu, r)->epochs_done, gpu->steps);
    }
  }
  return MK_OK;
}

/* Of another rank than 0, in its process: rank 0 hears how it went, and has the machine cleared after a fault. */
mk_status mk_gpu_end(mk_gpu *gpu) {
  MK_TRY(ended(gpu, gpu->in_flight == 0 ? mk_error(MK_ERR_USAGE, "nothing was launched") : wait_here(gpu)));
  if (gpu->ended.abort != 0 || gpu->ended.fault.claimed != 0) {
    gpu->in_flight = 0;
  } else {
    count_steps(gpu);
  }
  return MK_OK;
}

void mk_gpu_abandon(mk_gpu *gpu) {
  const uint64_t since = mk_group_now_ms();
  bool over = gpu->in_flight == 0;
  if (over || mk_gpu_enter(gpu) != MK_OK) {
    return;
  }
  raise_abort(gpu);
  while (!over && look_for_end(gpu, flight_of(gpu, gpu->queued - 1), since, &over) == MK_OK) {
    sched_yield();
  }
  gpu->in_flight = 0;
}

mk_status mk_gpu_enqueue(mk_gpu *gpu, const mk_step_row *plan, uint32_t steps, const mk_gpu_ranks *ranks) {
  if (!gpu->planned) {
    return mk_error(MK_ERR_USAGE, "the program follows a work list; it takes no plan");
  }
  if (ranks != NULL && gpu->ranks > 1) {
    return mk_error(MK_ERR_USAGE, "the logits of a step lie on %u GPUs; read them to rank tokens", gpu->ranks);
  }
  if (ranks != NULL && ranks->count > MK_MOST_SHARED_ROWS) {
    return mk_error(MK_ERR_USAGE, "rankings of %u rows of a step; there may be %d", ranks->count, MK_MOST_SHARED_ROWS);
  }
  if (!gpu->options.unchecked_plans) {
    MK_TRY(mk_plan_check_found(gpu->program, &gpu->buffers, plan, steps, gpu->block_table));
  }
  return ended(gpu, queue(gpu, plan, steps, ranks));
}

mk_status mk_gpu_follow(mk_gpu *gpu, mk_step_fn fn, void *user) {
  const listener to = {.fn = fn, .user = user};
  MK_TRY(gpu->ranks == 1 ? MK_OK : mk_gpu_enter(gpu)); /* another rank's context was the last one */
  return ended(gpu,
               gpu->in_flight == 0 ? MK_OK : mk_gpu_of_rank(gpu, follow(gpu, flight_of(gpu, gpu->queued - 1), &to)));
}

mk_status mk_gpu_finish(mk_gpu *gpu) { return ended(gpu, gpu->in_flight == 0 ? MK_OK : finish(gpu)); }

mk_status mk_gpu_run(mk_gpu *gpu) {
  MK_TRY(check_unplanned(gpu));
  MK_TRY(ended(gpu, queue(gpu, NULL, 1, NULL)));
  MK_TRY(mk_gpu_follow(gpu, NULL, NULL));
  return mk_gpu_finish(gpu);
}

mk_status mk_gpu_run_plan(mk_gpu *gpu, const mk_step_row *plan, uint32_t steps, mk_step_fn fn, void *user) {
  MK_TRY(mk_gpu_enqueue(gpu, plan, steps, NULL));
  MK_TRY(mk_gpu_follow(gpu, fn, user));
  return mk_gpu_finish(gpu);
}

/* Queues launches of one step each, between what begins and ends them all. */
static mk_status begin_launches(mk_gpu *gpu, uint32_t launches) {
  MK_TRY(check_unplanned(gpu));
  MK_TRY(check_generation(gpu, launches));
  MK_TRY(mk_gpu_enter(gpu));
  return mk_gpu_check(gpu, gpu->driver->fill_async(gpu->control, 0, sizeof(mk_gpu_control), gpu->stream),
                      "preparing a launch");
}

static mk_status start_step(mk_gpu *gpu) {
  mk_gpu_params params = gpu->params;
  params.epochs = 1;
  params.first_epoch = gpu->first_epoch++;
  return mk_gpu_start(gpu, &params);
}

static mk_status end_launches(mk_gpu *gpu) {
  const mk_driver *cu = gpu->driver;
  mk_gpu_control *control = &gpu->pinned->control[0];
  MK_TRY(mk_gpu_check(gpu, cu->download_async(control, gpu->control, sizeof *control, gpu->stream),
                      "launching the kernel"));
  MK_TRY(mk_gpu_check(gpu, cu->stream_wait(gpu->stream), "the kernel failed"));
  gpu->ended = *control;
  return control->fault.claimed != 0 || control->abort != 0 ? report_fault(gpu, gpu->rank, &control->fault) : MK_OK;
}

static mk_status microseconds_between(const mk_gpu *gpu, mk_cu_event_ref start, mk_cu_event_ref end, double *out) {
  float milliseconds;
  MK_TRY(mk_gpu_check(gpu, gpu->driver->event_elapsed(&milliseconds, start, end), "timing the kernel"));
  *out = (double)milliseconds * 1e3;
  return MK_OK;
}

mk_status mk_gpu_repeat(mk_gpu *gpu, uint32_t launches, double *microseconds) {
  const mk_driver *cu = gpu->driver;
  *microseconds = 0;
  MK_TRY(begin_launches(gpu, launches));
  MK_TRY(mk_gpu_check(gpu, cu->event_record(gpu->flights[0].start, gpu->stream), "preparing a launch"));
  for (uint32_t i = 0; i < launches; i++) {
    MK_TRY(start_step(gpu));
  }
  MK_TRY(mk_gpu_check(gpu, cu->event_record(gpu->flights[0].end, gpu->stream), "launching the kernel"));
  MK_TRY(end_launches(gpu));
  return microseconds_between(gpu, gpu->flights[0].start, gpu->flights[0].end, microseconds);
}

/* Times each launch; events: two for each. */
static mk_status time_each(mk_gpu *gpu, mk_gpu_before before, bool empty, uint32_t launches, mk_cu_event_ref *events,
                           double *microseconds) {
  const mk_driver *cu = gpu->driver;
  for (uint32_t i = 0; i < 2 * launches; i++) {
    MK_TRY(mk_gpu_check(gpu, cu->event_new(&events[i], 0), "making an event"));
  }
  MK_TRY(begin_launches(gpu, launches));
  for (uint32_t i = 0; i < launches; i++) {
    if (before != MK_GPU_BEFORE_NOTHING) {
      MK_TRY(mk_gpu_flush(gpu, before == MK_GPU_BEFORE_WRITTEN));
    }
    MK_TRY(mk_gpu_check(gpu, cu->event_record(events[(size_t)2 * i], gpu->stream), "preparing a launch"));
    MK_TRY(empty ? mk_gpu_start_empty(gpu) : start_step(gpu));
    MK_TRY(mk_gpu_check(gpu, cu->event_record(events[2 * i + 1], gpu->stream), "launching the kernel"));
  }
  MK_TRY(end_launches(gpu));
  for (uint32_t i = 0; i < launches; i++) {
    MK_TRY(microseconds_between(gpu, events[(size_t)2 * i], events[2 * i + 1], &microseconds[i]));
  }
  return MK_OK;
}

mk_status mk_gpu_time_each(mk_gpu *gpu, mk_gpu_before before, bool empty, uint32_t launches, double *microseconds) {
  mk_cu_event_ref *events;
  MK_TRY(mk_gpu_enter(gpu));
  MK_TRY(mk_alloc((size_t)2 * launches, sizeof(mk_cu_event_ref), &events));
  mk_status status = time_each(gpu, before, empty, launches, events, microseconds);
  for (uint32_t i = 0; i < 2 * launches && events[i] != NULL; i++) {
    (void)gpu->driver->event_free(events[i]);
  }
  mk_free(events);
  return status;
}
