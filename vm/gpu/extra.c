/* See extra.h. Each call loads its small kernel, runs it to the end and unloads it. */
#include "vm/gpu/extra.h"

#include <string.h>

#include "vm/gpu/bandwidth.h"
#include "vm/gpu/group_internal.h"
#include "vm/gpu/image.h"

enum { FILL_BLOCKS_PER_SM = 8, BANDWIDTH_RUNS = 3 };

static mk_status run_kernel(const mk_gpu *gpu, mk_cu_function_ref function, uint32_t blocks, uint32_t threads,
                            uint32_t shared, void *argument, float *milliseconds) {
  const mk_driver *cu = gpu->driver;
  void *arguments[] = {argument};
  MK_TRY(mk_gpu_check(gpu, cu->event_record(gpu->flights[0].start, gpu->stream), "starting a kernel"));
  MK_TRY(mk_gpu_check(gpu, cu->launch(function, blocks, 1, 1, threads, 1, 1, shared, gpu->stream, arguments, NULL),
                      "starting a kernel"));
  MK_TRY(mk_gpu_check(gpu, cu->event_record(gpu->flights[0].end, gpu->stream), "starting a kernel"));
  MK_TRY(mk_gpu_check(gpu, cu->stream_wait(gpu->stream), "running a kernel"));
  return mk_gpu_check(gpu, cu->event_elapsed(milliseconds, gpu->flights[0].start, gpu->flights[0].end),
                      "timing a kernel");
}

typedef struct filling { /* of a buffer of one rank */
  const mk_gpu *gpu;
  mk_cu_function_ref function;
  mk_gpu_fill fill;
  uint64_t unit_bytes;
} filling;

static mk_status fill_run(void *user, mk_cu_address at, uint64_t from, uint64_t bytes) {
  filling *f = user;
  float milliseconds;
  f->fill.address = at - from;
  f->fill.first = from / f->unit_bytes;
  f->fill.units = (from + bytes) / f->unit_bytes;
  return run_kernel(f->gpu, f->function, (uint32_t)f->gpu->sms * FILL_BLOCKS_PER_SM, MK_GPU_FILL_THREADS, 0, &f->fill,
                    &milliseconds);
}

/* Fills what the rank has of the buffer. */
static mk_status fill_rank(const mk_gpu *gpu, size_t buffer, const mk_gpu_fill *fill, uint64_t unit_bytes,
                           uint64_t bytes) {
  filling f = {.gpu = gpu, .fill = *fill, .unit_bytes = unit_bytes};
  mk_cu_module_ref module;
  MK_TRY(mk_gpu_enter(gpu));
  MK_TRY(mk_gpu_load(gpu, MK_GPU_IMAGE_FILL, "mk_fill_hash", 0, &module, &f.function));
  mk_status status = mk_gpu_each_run(gpu, buffer, 0, bytes, fill_run, &f);
  (void)gpu->driver->module_unload(module);
  return status;
}

mk_status mk_gpu_fill_hash(mk_gpu *gpu, size_t buffer, const mk_gpu_fill *fill) {
  if (buffer >= gpu->program->buffer_count) {
    return mk_error(MK_ERR_USAGE, "there is no buffer %zu; the program has %zu", buffer, gpu->program->buffer_count);
  }
  const mk_buffer *b = &gpu->program->buffers[buffer];
  bool vector = fill->order == MK_GPU_FILL_VECTOR;
  if (b->kind != MK_KIND_WEIGHT || b->dtype != MK_DTYPE_BF16 || (b->store == MK_STORE_TILES) == vector ||
      b->cols != fill->cols || fill->source_count == 0 || fill->source_count > MK_GPU_FILL_SOURCES) {
    return mk_error(MK_ERR_USAGE, "buffer %s is no weight of this shape: %u rows, %u columns", b->name, b->rows,
                    b->cols);
  }
  mk_gpu_fill whole = *fill;
  const uint64_t unit_bytes = vector ? sizeof(uint16_t) : 16;
  whole.grid_cols = mk_buffer_grid_cols(b);
  MK_TRY(mk_gpu_still_here(gpu));
  for (uint32_t r = 0; r < gpu->here; r++) {
    MK_TRY(mk_gpu_of_rank(gpu->of_rank[r], fill_rank(gpu->of_rank[r], buffer, &whole, unit_bytes,
                                                     vector ? b->cols * unit_bytes : b->bytes)));
  }
  return MK_OK;
}

static mk_status measure(const mk_gpu *gpu, uint64_t bytes, double *bytes_per_second) {
  mk_bandwidth_params params = {.chunks = bytes / MK_BANDWIDTH_CHUNK};
  mk_cu_module_ref module = NULL;
  mk_cu_function_ref function;
  mk_status status = mk_gpu_check(gpu, gpu->driver->memory_new(&params.address, bytes), "allocating memory to read");
  if (status != MK_OK) {
    return status;
  }
  MK_TRY_GOTO(mk_gpu_check(gpu, gpu->driver->fill_async(params.address, 0x5a, bytes, gpu->stream), "filling memory"),
              done);
  MK_TRY_GOTO(mk_gpu_load(gpu, MK_GPU_IMAGE_BANDWIDTH, "mk_read_bandwidth", MK_BANDWIDTH_SHARED, &module, &function),
              done);
  for (uint32_t run = 0; run < BANDWIDTH_RUNS; run++) {
    float milliseconds;
    MK_TRY_GOTO(run_kernel(gpu, function, (uint32_t)gpu->sms, 32, MK_BANDWIDTH_SHARED, &params, &milliseconds), done);
    double rate = (double)(params.chunks * MK_BANDWIDTH_CHUNK) / ((double)milliseconds * 1e-3);
    *bytes_per_second = rate > *bytes_per_second ? rate : *bytes_per_second;
  }
done:
  if (module != NULL) {
    (void)gpu->driver->module_unload(module);
  }
  (void)gpu->driver->memory_free(params.address);
  return status;
}

static mk_status read_bandwidth(const mk_gpu *gpu, uint64_t bytes, double *bytes_per_second) {
  const uint64_t gibibyte = UINT64_C(1) << 30;
  size_t available = 0, total = 0;
  MK_TRY(mk_gpu_enter(gpu));
  MK_TRY(mk_gpu_check(gpu, gpu->driver->memory_info(&available, &total), "asking for free memory"));
  bytes = bytes == 0 ? 8 * gibibyte : bytes;
  bytes = bytes < available / 2 ? bytes : available / 2;
  if (bytes < gibibyte) {
    return mk_error(MK_ERR_RUNTIME, "%s has %.2f GB free; measuring its read bandwidth takes 2.2 or more", gpu->name,
                    (double)available / 1e9);
  }
  return measure(gpu, bytes, bytes_per_second);
}

static mk_status read_here(mk_gpu *gpu, uint64_t bytes, double *bytes_per_second) {
  for (uint32_t r = 0; r < gpu->here; r++) {
    double rate = 0;
    MK_TRY(mk_gpu_of_rank(gpu->of_rank[r], read_bandwidth(gpu->of_rank[r], bytes, &rate)));
    *bytes_per_second += rate;
  }
  return MK_OK;
}

/* That of another process's GPU. */
static mk_status add_rate(void *user, uint32_t rank, const void *data, uint64_t bytes) {
  double rate = 0;
  (void)rank;
  memcpy(&rate, data, bytes < sizeof rate ? bytes : sizeof rate);
  *(double *)user += rate;
  return MK_OK;
}

mk_status mk_gpu_read_bandwidth(mk_gpu *gpu, uint64_t bytes, double *bytes_per_second) {
  *bytes_per_second = 0;
  MK_TRY(mk_gpu_order(gpu, (mk_group_head){.kind = MK_ORDER_BANDWIDTH, .a = bytes}, NULL));
  return mk_gpu_ordered(gpu, read_here(gpu, bytes, bytes_per_second), add_rate, bytes_per_second);
}

static mk_status start_reading(mk_gpu *gpu, uint64_t bytes) {
  const mk_driver *cu = gpu->driver;
  mk_bandwidth_params params = {.address = gpu->flushed, .chunks = bytes / MK_BANDWIDTH_CHUNK};
  void *arguments[] = {&params};
  if (gpu->flush_module == NULL) {
    MK_TRY(mk_gpu_load(gpu, MK_GPU_IMAGE_BANDWIDTH, "mk_read_bandwidth", MK_BANDWIDTH_SHARED, &gpu->flush_module,
                       &gpu->flush));
  }
  return mk_gpu_check(
      gpu,
      cu->launch(gpu->flush, (unsigned)gpu->sms, 1, 1, 32, 1, 1, MK_BANDWIDTH_SHARED, gpu->stream, arguments, NULL),
      "flushing the L2");
}

mk_status mk_gpu_start_empty(mk_gpu *gpu) { return start_reading(gpu, 0); }

mk_status mk_gpu_flush(mk_gpu *gpu, bool written) {
  const size_t bytes = (size_t)256 << 20; /* several times the L2 */
  const mk_driver *cu = gpu->driver;
  if (gpu->flushed == 0) {
    MK_TRY(mk_gpu_check(gpu, cu->memory_new(&gpu->flushed, bytes), "allocating memory to flush the L2 with"));
  }
  return written ? mk_gpu_check(gpu, cu->fill_async(gpu->flushed, 0, bytes, gpu->stream), "flushing the L2")
                 : start_reading(gpu, bytes);
}

mk_status mk_gpu_count(uint32_t *count, int *cuda_version) {
  const mk_driver *cu;
  MK_TRY(mk_driver_open(&cu));
  *count = (uint32_t)cu->devices;
  *cuda_version = cu->driver_version;
  return MK_OK;
}

mk_status mk_gpu_describe(uint32_t device, mk_gpu_description *out) {
  enum { HIGHEST_SM_CLOCK = 13, HIGHEST_MEMORY_CLOCK = 36 };
  const mk_driver *cu;
  mk_cu_device id;
  mk_cu_context_ref context;
  size_t available = 0, total = 0;
  *out = (mk_gpu_description){0};
  MK_TRY(mk_driver_open(&cu));
  MK_TRY(mk_driver_check(cu, cu->device_get(&id, (int)device), "finding the GPU"));
  MK_TRY(mk_driver_check(cu, cu->device_name(out->name, sizeof out->name, id), "asking the GPU for its name"));
  const struct {
    int attribute;
    int *value;
  } asked[] = {{MK_CU_ATTRIBUTE_MAJOR, &out->major},
               {MK_CU_ATTRIBUTE_MINOR, &out->minor},
               {MK_CU_ATTRIBUTE_SMS, &out->sms},
               {HIGHEST_SM_CLOCK, &out->sm_khz},
               {HIGHEST_MEMORY_CLOCK, &out->memory_khz}};
  for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
    if (cu->device_attribute(asked[i].value, asked[i].attribute, id) != 0) {
      *asked[i].value = 0;
    }
  }
  if (cu->context_retain(&context, id) != 0) { /* others use it alone, or it is full: the rest is still worth telling */
    return MK_OK;
  }
  if (cu->context_set(context) == 0 && cu->memory_info(&available, &total) == 0) {
    out->memory_bytes = total;
    out->free_bytes = available;
  }
  (void)cu->context_set(NULL);
  return mk_driver_check(cu, cu->context_release(id), "closing the GPU");
}

mk_status mk_gpu_usable(uint32_t device) {
  const mk_driver *cu;
  mk_cu_device id;
  if (!mk_gpu_image_complete()) {
    return mk_error(MK_ERR_RUNTIME, "this mkvm was built without a device image");
  }
  MK_TRY(mk_driver_open(&cu));
  return mk_driver_device(cu, device, &id);
}
