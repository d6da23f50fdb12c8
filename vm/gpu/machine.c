/* See machine.h. Memory: what arena.c says, one allocation for the tables that the kernel reads, and pinned host memory
 * for the token ring and the stop word. */
#include "vm/gpu/machine.h"

#include <string.h>

#include "instructions/mla.h"
#include "vm/gpu/group_internal.h"
#include "vm/gpu/image.h"

enum { DEFAULT_DEADLINE_MS = 1500 };

mk_status mk_gpu_check(const mk_gpu *gpu, mk_cu_result result, const char *what) {
  return result == 0 ? MK_OK : mk_driver_check(gpu->driver, result, what);
}

mk_status mk_gpu_enter(const mk_gpu *gpu) {
  if (gpu->lost) {
    return mk_error(MK_ERR_DEVICE, "the kernel of an earlier run never ended; start the process again");
  }
  return mk_gpu_check(gpu, gpu->driver->context_set(gpu->context), "entering the GPU's context");
}

bool mk_gpu_lost(const mk_gpu *gpu) {
  bool lost = gpu->group != NULL && gpu->group->broken != MK_OK;
  for (uint32_t r = 0; r < gpu->here && !lost; r++) {
    const mk_gpu *own = gpu->of_rank[r];
    const mk_driver *cu = own->driver;
    lost = own->lost || cu->context_set(own->context) != 0 || cu->stream_wait(own->stream) != 0;
  }
  return lost;
}

mk_status mk_gpu_copy_in(const mk_gpu *gpu, mk_cu_address to, const void *from, uint64_t bytes, const char *what) {
  MK_TRY(mk_gpu_check(gpu, gpu->driver->upload_async(to, from, bytes, gpu->stream), what));
  return mk_gpu_check(gpu, gpu->driver->stream_wait(gpu->stream), what);
}

mk_status mk_gpu_copy_out(const mk_gpu *gpu, void *to, mk_cu_address from, uint64_t bytes, const char *what) {
  MK_TRY(mk_gpu_check(gpu, gpu->driver->download_async(to, from, bytes, gpu->stream), what));
  return mk_gpu_check(gpu, gpu->driver->stream_wait(gpu->stream), what);
}

static mk_status require_image(void) {
  if (!mk_gpu_image_complete()) {
    return mk_error(MK_ERR_RUNTIME,
                    "this mkvm was built without a device image; build it where the CUDA toolkit (nvcc) is, "
                    "or use device cpu");
  }
  return MK_OK;
}

bool mk_gpu_present(uint32_t device) {
  const mk_driver *driver;
  mk_cu_device found;
  return require_image() == MK_OK && mk_driver_open(&driver) == MK_OK &&
         mk_driver_device(driver, device, &found) == MK_OK;
}

mk_status mk_gpu_load(const mk_gpu *gpu, int part, const char *name, uint32_t shared, mk_cu_module_ref *module,
                      mk_cu_function_ref *function) {
  const mk_driver *cu = gpu->driver;
  MK_TRY(mk_gpu_check(gpu, cu->module_load(module, mk_gpu_image((mk_gpu_image_part)part)), "loading the device image"));
  mk_cu_result result = cu->module_function(function, *module, name);
  /* Loads the kernel at once: a lazy load inside a launch would wait for the running kernel. */
  if (result == 0) {
    result = cu->function_load(*function);
  }
  if (result == 0) {
    result = cu->function_set(*function, MK_CU_FUNCTION_DYNAMIC_SHARED, (int)shared);
  }
  mk_status status = mk_gpu_check(gpu, result, name);
  if (status != MK_OK) {
    (void)cu->module_unload(*module);
    *module = NULL;
  }
  return status;
}

uint32_t mk_gpu_threads(const mk_gpu *gpu) {
  return gpu->mla ? MK_MLA_GPU_THREADS : gpu->rows > MK_MAX_ROWS ? MK_WIDE_GPU_THREADS : MK_GPU_THREADS;
}

uint32_t mk_gpu_shared_bytes(const mk_gpu *gpu) {
  return gpu->mla ? MK_MLA_GPU_SHARED_BYTES : gpu->rows > MK_MAX_ROWS ? MK_WIDE_GPU_SHARED_BYTES : MK_GPU_SHARED_BYTES;
}

static mk_status check_occupancy(const mk_gpu *gpu) {
  int blocks = 0;
  MK_TRY(mk_gpu_check(gpu,
                      gpu->driver->occupancy(&blocks, gpu->kernel, (int)mk_gpu_threads(gpu), mk_gpu_shared_bytes(gpu)),
                      "asking for the kernel's occupancy"));
  const uint32_t most = (uint32_t)(blocks * gpu->sms) / gpu->neighbours;
  if (most < gpu->queues) {
    return mk_error(MK_ERR_RUNTIME,
                    "the program has %u queues%s, and %s runs %d blocks at a time (%d SMs)%s; compile it for %u SMs",
                    gpu->queues, gpu->ranks > 1 ? " for each rank" : "", gpu->name, blocks * gpu->sms, gpu->sms,
                    gpu->neighbours > 1 ? " and has several ranks" : "", most);
  }
  return MK_OK;
}

static const char *kernel_name(const mk_gpu *gpu) {
  return gpu->mla ? "mk_mla_kernel" : gpu->rows > MK_MAX_ROWS ? "mk_wide_kernel" : "mk_kernel";
}

static mk_status load_kernel(mk_gpu *gpu) {
  gpu->mla = mk_program_listed(gpu->program);
  gpu->image = mk_gpu_image_of(gpu);
  return mk_gpu_load(gpu, gpu->image, kernel_name(gpu), mk_gpu_shared_bytes(gpu), &gpu->module, &gpu->kernel);
}

mk_status mk_gpu_need_recording(mk_gpu *gpu) {
  if (gpu->mla) {
    return mk_error(MK_ERR_USAGE, "a GPU records no programs with a work list; trace them on device cpu");
  }
  if (gpu->group != NULL) {
    return mk_error(MK_ERR_USAGE, "ranks in several processes are not recorded; one process (--device cuda:0-1) is");
  }
  if (!mk_gpu_image_records(gpu->image)) {
    return mk_error(MK_ERR_USAGE,
                    "of several ranks GPUs record plain Llamas in bf16 that choose greedily; trace others on device "
                    "cpu");
  }
  return gpu->recording != NULL ? MK_OK
                                : mk_gpu_load(gpu, gpu->image + 1, kernel_name(gpu), mk_gpu_shared_bytes(gpu),
                                              &gpu->recording_module, &gpu->recording);
}

static mk_status open_device(mk_gpu *gpu) {
  MK_TRY(require_image());
  MK_TRY(mk_driver_open(&gpu->driver));
  const mk_driver *cu = gpu->driver;
  MK_TRY(mk_driver_device(cu, gpu->options.device, &gpu->device));
  (void)cu->device_name(gpu->name, sizeof gpu->name, gpu->device);
  MK_TRY(mk_gpu_check(gpu, cu->device_attribute(&gpu->sms, MK_CU_ATTRIBUTE_SMS, gpu->device), "asking the GPU"));
  MK_TRY(mk_gpu_check(gpu, cu->context_retain(&gpu->context, gpu->device), "opening the GPU"));
  gpu->retained = true;
  MK_TRY(mk_gpu_enter(gpu));
  MK_TRY(load_kernel(gpu));
  MK_TRY(check_occupancy(gpu));
  MK_TRY(mk_gpu_check(gpu, cu->stream_new(&gpu->stream, MK_CU_STREAM_NON_BLOCKING), "making a stream"));
  MK_TRY(mk_gpu_check(gpu, cu->stream_new(&gpu->sending, MK_CU_STREAM_NON_BLOCKING), "making a stream"));
  MK_TRY(mk_gpu_check(gpu, cu->stream_new(&gpu->taking, MK_CU_STREAM_NON_BLOCKING), "making a stream"));
  for (mk_gpu_flight *f = gpu->flights; f < gpu->flights + MK_GPU_FLIGHTS; f++) {
    MK_TRY(mk_gpu_check(gpu, cu->event_new(&f->start, 0), "making an event"));
    MK_TRY(mk_gpu_check(gpu, cu->event_new(&f->end, 0), "making an event"));
    MK_TRY(mk_gpu_check(gpu, cu->event_new(&f->ranked, 0), "making an event"));
    MK_TRY(mk_gpu_check(gpu, cu->event_new(&f->sent, MK_CU_EVENT_NO_TIMING), "making an event"));
    MK_TRY(mk_gpu_check(gpu, cu->event_new(&f->done, MK_CU_EVENT_NO_TIMING), "making an event"));
  }
  return MK_OK;
}

static mk_status allocate(mk_gpu *gpu, const mk_gpu_tables *plan) {
  const mk_driver *cu = gpu->driver;
  const mk_program *program = gpu->program;
  MK_TRY(mk_gpu_allocate(gpu, plan->bytes));
  MK_TRY(mk_gpu_check(gpu, cu->memory_new(&gpu->tables, plan->bytes), "allocating the program"));
  MK_TRY(mk_gpu_check(gpu, cu->fill_async(gpu->tables, 0, plan->bytes, gpu->stream), "clearing memory"));
  gpu->ring_entries = 1;
  if (gpu->planned) {
    MK_TRY(mk_plan_find(program, &gpu->buffers));
    gpu->ring_entries = (uint64_t)gpu->buffers.steps * gpu->rows;
    MK_TRY(mk_gpu_check(gpu, cu->memory_new(&gpu->ahead, gpu->ring_entries * sizeof *gpu->plan), "allocating plans"));
    if (gpu->buffers.table != MK_NO_PLAN_BUFFER) {
      MK_TRY(mk_alloc(program->buffers[gpu->buffers.table].bytes, 1, &gpu->block_table));
    }
  }
  void *pinned;
  const uint64_t lists = gpu->planned ? mk_gpu_list_bytes(gpu, gpu->buffers.steps) : 0;
  uint64_t plan_at = MK_GPU_RING_AT + gpu->ring_entries * 8;
  uint64_t lists_at = plan_at + gpu->ring_entries * sizeof *gpu->plan, bytes = lists_at + lists;
  MK_TRY(mk_gpu_check(gpu, cu->host_new(&pinned, bytes, MK_CU_HOST_MAPPED), "allocating pinned memory"));
  gpu->pinned = pinned;
  gpu->plan = (mk_step_row *)(void *)((uint8_t *)pinned + plan_at);
  gpu->lists = (uint32_t *)(void *)((uint8_t *)pinned + lists_at);
  memset(pinned, 0, bytes);
  gpu->ring = (volatile uint64_t *)(void *)((uint8_t *)pinned + MK_GPU_RING_AT);
  MK_TRY(mk_gpu_check(gpu, cu->host_address(&gpu->pinned_address, pinned, 0), "mapping pinned memory"));
  return mk_gpu_check(gpu, cu->stream_wait(gpu->stream), "clearing memory");
}

static void *device_pointer(mk_cu_address address) { return (void *)(uintptr_t)address; }

mk_cu_address mk_gpu_control_of(const mk_gpu *gpu, size_t flight) {
  return gpu->control + (gpu->ranks > 1 ? 0 : flight * MK_GPU_CONTROL_STRIDE);
}

void mk_gpu_take_control(const mk_gpu *gpu, size_t flight, mk_gpu_params *params) {
  const mk_cu_address control = mk_gpu_control_of(gpu, flight);
  params->abort = device_pointer(control + offsetof(mk_gpu_control, abort));
  params->fault = device_pointer(control + offsetof(mk_gpu_control, fault));
  params->clocks = device_pointer(control + offsetof(mk_gpu_control, clocks));
  params->epochs_done = device_pointer(control + offsetof(mk_gpu_control, epochs_done));
}

static mk_status upload_tables(mk_gpu *gpu, const mk_gpu_tables *plan) {
  uint8_t *image;
  MK_TRY(mk_alloc(plan->bytes, 1, &image));
  mk_status status = mk_gpu_fill_tables(gpu, plan, image);
  if (status == MK_OK) {
    status = mk_gpu_copy_in(gpu, gpu->tables, image, plan->bytes, "copying the program to the GPU");
  }
  mk_free(image);
  if (gpu->group == NULL) {
    gpu->counters = gpu->tables + plan->counters;
    gpu->control = gpu->tables + plan->control;
  }
  gpu->params = (mk_gpu_params){
      .instructions = device_pointer(gpu->tables + plan->instructions),
      .queues = device_pointer(gpu->tables + plan->queues),
      .buffers = device_pointer(gpu->tables + plan->buffers),
      .counters = device_pointer(gpu->counters),
      .counter_totals = device_pointer(gpu->tables + plan->totals),
      .token_ring = device_pointer(gpu->pinned_address + MK_GPU_RING_AT),
      .stop = device_pointer(gpu->pinned_address + offsetof(mk_gpu_pinned, stop)),
      .deadline = (uint32_t)((uint64_t)gpu->options.deadline_ms * 1000000 / 1024),
      .skip_signal_uid = gpu->options.skip_signal_uid,
      .tokens = gpu->program->ranges.token.high == UINT32_MAX ? UINT32_MAX : gpu->program->ranges.token.high + 1,
      .plan = gpu->planned ? device_pointer(mk_gpu_address(gpu, gpu->buffers.plan)) : NULL,
      .rows = gpu->rows,
      .scratch_floats = gpu->params.scratch_floats,
      .pairs_of_steps = gpu->params.pairs_of_steps,
      .scratch = device_pointer(gpu->scratch),
      .maps = device_pointer(gpu->tables + plan->maps),
  };
  mk_gpu_take_control(gpu, 0, &gpu->params);
  if (gpu->ranks > 1) {
    gpu->params.peers = device_pointer(gpu->tables + plan->peers);
  }
  return status;
}

static mk_status open_machine(mk_gpu *gpu) {
  MK_TRY(open_device(gpu));
  MK_TRY(gpu->ranks > 1 ? mk_gpu_find_shares(gpu) : MK_OK);
  const mk_gpu_tables plan = mk_gpu_plan_tables(gpu);
  MK_TRY(allocate(gpu, &plan));
  MK_TRY(upload_tables(gpu, &plan));
  return gpu->mla ? mk_gpu_open_mla(gpu) : MK_OK;
}

/* lender: of the same rank, or NULL. */
static mk_status new_rank(const mk_program *program, const mk_gpu_options *options, uint32_t rank, const mk_gpu *lender,
                          mk_gpu **out) {
  mk_gpu *gpu;
  MK_TRY(mk_alloc(1, sizeof *gpu, &gpu));
  *out = gpu;
  gpu->program = program;
  gpu->rank = rank;
  gpu->ranks = program->machine.ranks;
  gpu->here = options->group == NULL ? gpu->ranks : 1;
  gpu->counter_bytes = program->counter_count * MK_GPU_COUNTER_STRIDE * sizeof(uint32_t);
  gpu->queues = (uint32_t)program->queue_count / gpu->ranks;
  gpu->rows = mk_program_rows(program);
  gpu->planned = !mk_program_listed(program);
  gpu->lender = lender;
  gpu->lent = lender != NULL;
  gpu->options = *options;
  gpu->options.device = mk_gpu_device_of(options, rank);
  for (uint32_t r = 0; r < gpu->ranks; r++) {
    gpu->neighbours += r == rank || (options->group == NULL && mk_gpu_device_of(options, r) == gpu->options.device);
  }
  gpu->options.devices = NULL;
  gpu->options.memory = rank == 0 || options->group != NULL ? options->memory : NULL;
  if (gpu->options.deadline_ms == 0) { /* a process may stand still for a moment before it launches */
    gpu->options.deadline_ms = options->group == NULL ? DEFAULT_DEADLINE_MS : (uint32_t)options->group->deadline_ms;
  }
  if (options->group != NULL && rank == 0) {
    MK_TRY(mk_alloc(gpu->ranks, sizeof *gpu->told, &gpu->told));
  }
  return options->group == NULL ? MK_OK : mk_group_add(options->group, gpu);
}

/* With more ranks than KV heads a head's blocks lie on several ranks, by splits, which programs of one row and of
 * several deal in another way. */
static mk_status check_lender(const mk_program *program, const mk_gpu *lender) {
  if (lender == NULL) {
    return MK_OK;
  }
  if (lender->ranks != program->machine.ranks) {
    return mk_error(MK_ERR_USAGE, "the machine beside has %u ranks, and the program %u", lender->ranks,
                    program->machine.ranks);
  }
  for (size_t b = 0; b < program->buffer_count; b++) {
    if (program->buffers[b].kind == MK_KIND_KV && program->buffers[b].cols < program->machine.ranks) {
      return mk_error(MK_ERR_USAGE,
                      "%u ranks share %u KV heads; programs beside each other need at most as many ranks as KV heads",
                      program->machine.ranks, program->buffers[b].cols);
    }
  }
  return MK_OK;
}

mk_status mk_gpu_new(const mk_program *program, const mk_gpu_options *options, mk_gpu **out) {
  return mk_gpu_new_beside(program, options, NULL, out);
}

mk_status mk_gpu_new_beside(const mk_program *program, const mk_gpu_options *options, const mk_gpu *lender,
                            mk_gpu **out) {
  mk_gpu *first = NULL;
  mk_status status = mk_gpu_check_program(program);
  *out = NULL;
  status = status != MK_OK ? status : check_lender(program, lender);
  status = status != MK_OK ? status : mk_gpu_check_peers(program, options);
  mk_group *group = options->group;
  const uint32_t here = group == NULL ? program->machine.ranks : 1, from = group == NULL ? 0 : group->rank;
  for (uint32_t i = 0; i < here && status == MK_OK; i++) {
    mk_gpu *gpu = NULL;
    status = new_rank(program, options, from + i, lender == NULL ? NULL : lender->of_rank[i], &gpu);
    if (gpu != NULL) {
      first = i == 0 ? gpu : first;
      first->of_rank[i] = gpu;
      status = status != MK_OK ? status : mk_gpu_of_rank(gpu, open_machine(gpu));
    }
  }
  status = status != MK_OK ? status : mk_gpu_connect(first);
  if (status != MK_OK) {
    mk_group_end(group, status); /* the others wait for this one */
    mk_gpu_free(first);
    return status;
  }
  for (uint32_t i = 0; i < here; i++) {
    first->of_rank[i]->lender = NULL;
  }
  *out = first;
  return MK_OK;
}

/* Each of these calls may fail where the context is broken; then there is nothing left to do about it. */
static void release_device(mk_gpu *gpu) {
  const mk_driver *cu = gpu->driver;
  (void)cu->context_set(gpu->context);
  const mk_cu_stream_ref streams[] = {gpu->taking, gpu->sending, gpu->stream}; /* before events that they wait for */
  for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
    if (streams[i] != NULL) {
      (void)cu->stream_free(streams[i]);
    }
  }
  for (const mk_gpu_flight *f = gpu->flights; f < gpu->flights + MK_GPU_FLIGHTS; f++) {
    const mk_cu_event_ref events[] = {f->start, f->end, f->ranked, f->sent, f->done};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
      if (events[i] != NULL) {
        (void)cu->event_free(events[i]);
      }
    }
  }
  mk_window_free(gpu);
  const mk_cu_address memory[] = {gpu->lent ? 0 : gpu->weights,
                                  gpu->lent ? 0 : gpu->kv,
                                  gpu->group != NULL ? 0 : gpu->work,
                                  gpu->tables,
                                  gpu->ahead,
                                  gpu->trace,
                                  gpu->flushed,
                                  gpu->ranked};
  for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
    if (memory[i] != 0) {
      (void)cu->memory_free(memory[i]);
    }
  }
  if (gpu->pinned != NULL) {
    (void)cu->host_free(gpu->pinned);
  }
  if (gpu->ranked_pinned != NULL) {
    (void)cu->host_free(gpu->ranked_pinned);
  }
  const mk_cu_module_ref modules[] = {gpu->recording_module, gpu->flush_module, gpu->rank_module, gpu->module};
  for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++) {
    if (modules[i] != NULL) {
      (void)cu->module_unload(modules[i]);
    }
  }
  (void)cu->context_release(gpu->device);
}

static void free_rank(mk_gpu *gpu, bool lost) {
  mk_group_remove(gpu);
  if (gpu->retained && !lost) {
    release_device(gpu);
  }
  mk_free(gpu->told);
  mk_free(gpu->places);
  mk_free(gpu->box_tiles);
  mk_free(gpu->shares);
  mk_free(gpu->share_of);
  mk_free(gpu->block_table);
  mk_free(gpu);
}

void mk_gpu_free(mk_gpu *gpu) {
  bool lost = false; /* a kernel that does not end may write to the memory of all ranks */
  for (uint32_t r = 0; gpu != NULL && r < gpu->here; r++) {
    lost = lost || (gpu->of_rank[r] != NULL && gpu->of_rank[r]->lost);
  }
  for (uint32_t r = gpu == NULL ? 0 : gpu->here; r-- > 0;) {
    if (gpu->of_rank[r] != NULL) {
      free_rank(gpu->of_rank[r], lost); /* the first one, which names the others, last */
    }
  }
}

mk_status mk_gpu_check_range(const mk_gpu *gpu, size_t buffer, uint64_t offset, uint64_t bytes) {
  if (buffer >= gpu->program->buffer_count) {
    return mk_error(MK_ERR_USAGE, "there is no buffer %zu; the program has %zu", buffer, gpu->program->buffer_count);
  }
  const mk_buffer *b = &gpu->program->buffers[buffer];
  if (offset > b->bytes || bytes > b->bytes - offset) {
    return mk_error(MK_ERR_USAGE, "buffer %s has %llu bytes; %llu from %llu on are not all inside", b->name,
                    (unsigned long long)b->bytes, (unsigned long long)bytes, (unsigned long long)offset);
  }
  return mk_gpu_enter(gpu);
}

typedef struct host_copy { /* of bytes of a buffer, from byte `offset` on */
  const mk_gpu *gpu;
  const void *from;
  void *to;
  uint64_t offset, bytes;
  const char *name;
} host_copy;

static mk_status copy_run_in(void *user, mk_cu_address at, uint64_t from, uint64_t bytes) {
  const host_copy *c = user;
  return mk_gpu_copy_in(c->gpu, at, (const uint8_t *)c->from + (from - c->offset), bytes, c->name);
}

static mk_status copy_run_out(void *user, mk_cu_address at, uint64_t from, uint64_t bytes) {
  const host_copy *c = user;
  return mk_gpu_copy_out(c->gpu, (uint8_t *)c->to + (from - c->offset), at, bytes, c->name);
}

static mk_status write_here(mk_gpu *gpu, size_t buffer, uint64_t offset, const void *data, uint64_t bytes) {
  for (uint32_t r = 0; r < gpu->here; r++) {
    host_copy copy = {
        .gpu = gpu->of_rank[r], .from = data, .offset = offset, .name = gpu->program->buffers[buffer].name};
    MK_TRY(mk_gpu_enter(copy.gpu));
    MK_TRY(mk_gpu_of_rank(copy.gpu, mk_gpu_each_run(copy.gpu, buffer, offset, bytes, copy_run_in, &copy)));
  }
  return MK_OK;
}

mk_status mk_gpu_write(mk_gpu *gpu, size_t buffer, uint64_t offset, const void *data, uint64_t bytes) {
  MK_TRY(mk_gpu_check_range(gpu, buffer, offset, bytes));
  if (bytes == 0) {
    return MK_OK;
  }
  if (gpu->mla) {
    mk_gpu_look_at_list(gpu, buffer, offset, data, bytes);
  }
  uint8_t *known =
      gpu->block_table != NULL && buffer == gpu->buffers.table ? (uint8_t *)gpu->block_table + offset : NULL;
  if (known != NULL && memcmp(known, data, bytes) == 0) {
    return MK_OK; /* both copies of it begin as zeros */
  }
  const mk_group_head order = {.kind = MK_ORDER_WRITE, .a = buffer, .b = offset, .bytes = bytes};
  MK_TRY(mk_gpu_order(gpu, order, data));
  MK_TRY(mk_gpu_ordered(gpu, write_here(gpu, buffer, offset, data, bytes), NULL, NULL));
  if (known != NULL) {
    memcpy(known, data, bytes);
  }
  return MK_OK;
}

/* What another process has of the bytes that are read. */
static mk_status take_runs(void *user, uint32_t rank, const void *data, uint64_t bytes) {
  const host_copy *c = user;
  (void)rank;
  return mk_group_each_run(data, bytes, c->to, c->offset, c->bytes);
}

/* Whether no other process is asked for these bytes. */
static bool is_here(const mk_gpu *gpu, size_t buffer, uint64_t offset, uint64_t bytes) {
  uint64_t from = offset;
  return gpu->group == NULL || !mk_gpu_is_dealt(gpu, buffer) ||
         (gpu->program->buffers[buffer].kind == MK_KIND_WEIGHT && mk_gpu_next_here(gpu, buffer, &from) >= bytes &&
          from == offset);
}

static mk_status read_here(const mk_gpu *gpu, size_t buffer, uint64_t offset, void *data, uint64_t bytes) {
  for (uint32_t r = mk_gpu_is_dealt(gpu, buffer) ? gpu->here : 1; r-- > 0;) { /* what several have is the first one's */
    host_copy copy = {.gpu = gpu->of_rank[r], .to = data, .offset = offset, .name = gpu->program->buffers[buffer].name};
    MK_TRY(mk_gpu_enter(copy.gpu));
    MK_TRY(mk_gpu_of_rank(copy.gpu, mk_gpu_each_run(copy.gpu, buffer, offset, bytes, copy_run_out, &copy)));
  }
  return MK_OK;
}

mk_status mk_gpu_read(mk_gpu *gpu, size_t buffer, uint64_t offset, void *data, uint64_t bytes) {
  MK_TRY(mk_gpu_check_range(gpu, buffer, offset, bytes));
  if (bytes == 0) {
    return MK_OK;
  }
  const mk_buffer *b = &gpu->program->buffers[buffer];
  if (mk_gpu_in_fragments(gpu->program, b)) {
    return offset == 0 && bytes == b->bytes
               ? mk_gpu_read_lines(gpu, buffer, data)
               : mk_error(MK_ERR_USAGE, "buffer %s is read whole: its rows do not lie one after the other", b->name);
  }
  if (is_here(gpu, buffer, offset, bytes)) {
    MK_TRY(mk_gpu_still_here(gpu));
    return read_here(gpu, buffer, offset, data, bytes);
  }
  if (!gpu->group->leads) {
    return mk_error(MK_ERR_USAGE, "parts of %s are with other processes; rank 0 alone reads it, once all follow it",
                    b->name);
  }
  host_copy others = {.to = data, .offset = offset, .bytes = bytes};
  MK_TRY(mk_gpu_order(gpu, (mk_group_head){.kind = MK_ORDER_READ, .a = buffer, .b = offset, .c = bytes}, NULL));
  return mk_gpu_ordered(gpu, read_here(gpu, buffer, offset, data, bytes), take_runs, &others);
}

static mk_status clear_rank(mk_gpu *gpu) {
  const mk_driver *cu = gpu->driver;
  MK_TRY(mk_gpu_enter(gpu));
  for (size_t b = 0; b < gpu->program->buffer_count; b++) {
    const mk_buffer *buffer = &gpu->program->buffers[b];
    bool others = gpu->lent && buffer->kind == MK_KIND_KV;
    if (buffer->kind != MK_KIND_WEIGHT && buffer->kind != MK_KIND_INPUT && buffer->bytes != 0 && !others) {
      MK_TRY(mk_gpu_clear_buffer(gpu, b));
    }
  }
  if (gpu->counter_bytes != 0) {
    MK_TRY(mk_gpu_check(gpu, cu->fill_async(gpu->counters, 0, gpu->counter_bytes, gpu->stream), "clearing counters"));
  }
  MK_TRY(mk_gpu_check(gpu, cu->fill_async(gpu->control, 0, (size_t)MK_GPU_FLIGHTS * MK_GPU_CONTROL_STRIDE, gpu->stream),
                      "clearing memory"));
  MK_TRY(mk_gpu_check(gpu, cu->stream_wait(gpu->stream), "clearing memory"));
  for (uint64_t i = 0; i < gpu->ring_entries; i++) {
    gpu->ring[i] = 0;
  }
  gpu->first_epoch = 0;
  return MK_OK;
}

static mk_status clear_here(mk_gpu *gpu) {
  for (uint32_t r = 0; r < gpu->here; r++) {
    MK_TRY(mk_gpu_of_rank(gpu->of_rank[r], clear_rank(gpu->of_rank[r])));
  }
  return MK_OK;
}

mk_status mk_gpu_clear(mk_gpu *gpu) {
  MK_TRY(mk_gpu_order(gpu, (mk_group_head){.kind = MK_ORDER_CLEAR}, NULL));
  return mk_gpu_ordered(gpu, clear_here(gpu), NULL, NULL);
}

void mk_gpu_skip_signal(mk_gpu *gpu, uint32_t uid) {
  for (uint32_t r = 0; r < gpu->here; r++) {
    gpu->of_rank[r]->params.skip_signal_uid = uid;
  }
}

void mk_gpu_delay(mk_gpu *gpu, uint32_t uid, uint32_t nanoseconds) {
  for (uint32_t r = 0; r < gpu->here; r++) {
    gpu->of_rank[r]->params.delay_uid = uid;
    gpu->of_rank[r]->params.delay_ns = nanoseconds;
  }
}

void mk_gpu_leave_out(mk_gpu *gpu, uint32_t parts) {
  for (uint32_t r = 0; r < gpu->here; r++) {
    gpu->of_rank[r]->params.left_out = parts;
  }
}

double mk_gpu_time_ms(const mk_gpu *gpu) { return (double)gpu->time_ms; }
double mk_gpu_rank_ms(const mk_gpu *gpu) { return (double)gpu->rank_ms; }
uint32_t mk_gpu_steps(const mk_gpu *gpu) { return gpu->steps; }
double mk_gpu_clock_mhz(const mk_gpu *gpu) {
  const mk_gpu_clocks *c = &gpu->ended.clocks;
  if (c->nanoseconds[1] <= c->nanoseconds[0]) {
    return 0;
  }
  return (double)(c->ticks[1] - c->ticks[0]) * 1e3 / (double)(c->nanoseconds[1] - c->nanoseconds[0]);
}
uint32_t mk_gpu_generation(const mk_gpu *gpu) { return gpu->first_epoch; }
uint64_t mk_gpu_launches(const mk_gpu *gpu) { return gpu->launches; }
const char *mk_gpu_name(const mk_gpu *gpu) { return gpu->name; }
