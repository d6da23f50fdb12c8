/* See fake_cuda.h. */
#include "tests/fake_cuda/fake_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "vm/gpu/driver.h"
#include "vm/gpu/pack.h"

enum { MOST_STREAMS = 64, MOST_PINNED = 16 };

typedef enum task_kind { COPY, FILL, RECORD, WAIT, KERNEL, RANK, PACK } task_kind;

struct mk_cu_event {
  mk_cu_stream_ref stream; /* NULL: never recorded */
  uint32_t records;        /* of it, so far */
  uint32_t pending;        /* those that are still in the stream */
};

typedef struct task {
  struct task *next;
  task_kind kind;
  void *to;
  const void *from;
  size_t bytes;
  unsigned char value;
  mk_cu_event_ref event;
  uint32_t record; /* WAIT: of which record */
  mk_gpu_params params;
  uint32_t step;
  _Alignas(8) unsigned char staged
      []; /* a copy's data, as the driver takes it from pageable memory at once; parameters of a ranking, or packing */
} task;

struct mk_cu_stream {
  task *first, *last;
  bool used;
  bool at_work; /* then it is asked for by a stream that it waits for itself: not now */
};

static fake_cuda state = {
    .version = 13000, .devices = 1, .major = 9, .cooperative = 1, .blocks_per_sm = 1, .memory = (size_t)1 << 32};
static struct mk_cu_stream streams[MOST_STREAMS]; /* 0: the one that has no name */
static char packs;                                /* mk_pack_rows, as the driver names it */
static struct {
  uint8_t *start;
  size_t bytes;
} pinned[MOST_PINNED];

fake_cuda *fake_cuda_state(void) { return &state; }

enum { INVALID_VALUE = 1, ILLEGAL_ADDRESS = 700 }; /* CUDA_ERROR_... */

#define CALL()                            \
  do {                                    \
    if (state.broken) {                   \
      return ILLEGAL_ADDRESS;             \
    }                                     \
    if (++state.calls == state.fail_at) { \
      return MK_CU_OUT_OF_MEMORY;         \
    }                                     \
  } while (0)

static mk_cu_stream_ref stream_of(mk_cu_stream_ref stream) { return stream == NULL ? &streams[0] : stream; }

static task *put(mk_cu_stream_ref stream, task_kind kind, size_t staged) {
  task *t = calloc(1, sizeof *t + staged);
  stream = stream_of(stream);
  if (t == NULL) {
    abort();
  }
  t->kind = kind;
  if (stream->last == NULL) {
    stream->first = t;
  } else {
    stream->last->next = t;
  }
  stream->last = t;
  return t;
}

static bool go_on(mk_cu_stream_ref stream);

static void pack_rows(const mk_gpu_pack *pack) {
  for (uint32_t row = 0; row < pack->rows; row++) {
    for (uint32_t pair = 0; pair < (pack->cols + 1) / 2; pair++) {
      mk_gpu_pack_pair(pack, row, pair);
    }
  }
}

/* What the task does, a step of it if it is a kernel; true: it is done. */
static bool work_on(task *t) {
  switch (t->kind) {
    case COPY:
      memcpy(t->to, t->from, t->bytes);
      break;
    case FILL:
      memset(t->to, t->value, t->bytes);
      break;
    case RECORD:
      t->event->pending--;
      break;
    case WAIT: /* which cannot be for its own stream */
      if (t->event->records - t->event->pending < t->record) {
        (void)go_on(t->event->stream);
      }
      return t->event->records - t->event->pending >= t->record;
    case RANK:
      state.rank(state.user, (const mk_gpu_rank *)(const void *)t->staged, (uint32_t)t->bytes);
      break;
    case PACK:
      pack_rows((const mk_gpu_pack *)(const void *)t->staged);
      break;
    case KERNEL:
      return state.kernel == NULL || state.kernel(state.user, &t->params, t->step++);
  }
  return true;
}

/* Works as far as a step of a kernel; true: nothing is left to do. */
static bool go_on(mk_cu_stream_ref stream) {
  if (stream->at_work) {
    return false;
  }
  stream->at_work = true;
  while (stream->first != NULL && work_on(stream->first)) {
    task *t = stream->first;
    stream->first = t->next;
    stream->last = stream->first == NULL ? NULL : stream->last;
    free(t);
  }
  stream->at_work = false;
  return stream->first == NULL;
}

mk_cu_result cuInit(unsigned flags) {
  (void)flags;
  return state.start;
}
mk_cu_result cuDriverGetVersion(int *version) {
  *version = state.version;
  return 0;
}
mk_cu_result cuDeviceGetCount(int *count) {
  *count = state.devices;
  return 0;
}
mk_cu_result cuDeviceGet(mk_cu_device *device, int index) {
  CALL();
  *device = index;
  return 0;
}
mk_cu_result cuDeviceGetName(char *name, int length, mk_cu_device device) {
  (void)device;
  strncpy(name, "a GPU that is none", (size_t)length);
  return 0;
}
mk_cu_result cuDeviceGetUuid_v2(uint8_t *uuid, mk_cu_device device) {
  CALL();
  memset(uuid, 0, 16);
  uuid[0] = (uint8_t)device;
  uuid[1] = state.uuid;
  return 0;
}
mk_cu_result cuDeviceGetAttribute(int *value, int attribute, mk_cu_device device) {
  CALL();
  (void)device;
  *value = attribute == MK_CU_ATTRIBUTE_SMS           ? FAKE_CUDA_SMS
           : attribute == MK_CU_ATTRIBUTE_MAJOR       ? state.major
           : attribute == MK_CU_ATTRIBUTE_COOPERATIVE ? state.cooperative
                                                      : 0;
  return 0;
}

mk_cu_result cuDevicePrimaryCtxRetain(mk_cu_context_ref *context, mk_cu_device device) {
  CALL();
  (void)device;
  *context = (mk_cu_context_ref)(void *)&state;
  state.live++;
  return 0;
}
mk_cu_result cuDevicePrimaryCtxRelease_v2(mk_cu_device device) {
  (void)device;
  state.live--;
  return 0;
}
mk_cu_result cuCtxSetCurrent(mk_cu_context_ref context) {
  CALL();
  (void)context;
  return 0;
}

mk_cu_result cuDeviceCanAccessPeer(int *can, mk_cu_device device, mk_cu_device peer) {
  CALL();
  (void)device, (void)peer;
  *can = !state.no_peers;
  return 0;
}
mk_cu_result cuCtxEnablePeerAccess(mk_cu_context_ref peer, unsigned flags) {
  CALL();
  (void)peer, (void)flags;
  return state.peer_calls++ == 0 ? 0 : MK_CU_PEER_ENABLED;
}

mk_cu_result cuModuleLoadData(mk_cu_module_ref *module, const void *image) {
  CALL();
  (void)image;
  *module = (mk_cu_module_ref)(void *)&state;
  state.live++;
  return 0;
}
mk_cu_result cuModuleUnload(mk_cu_module_ref module) {
  (void)module;
  state.live--;
  return 0;
}
mk_cu_result cuModuleGetFunction(mk_cu_function_ref *function, mk_cu_module_ref module, const char *name) {
  CALL();
  static char ranks;
  (void)module;
  *function = (mk_cu_function_ref)(void *)(strcmp(name, "mk_rank_logits") == 0 ? &ranks
                                           : strcmp(name, "mk_pack_rows") == 0 ? &packs
                                                                               : (char *)&state);
  state.ranks = (void *)&ranks;
  return 0;
}
mk_cu_result cuFuncLoad(mk_cu_function_ref function) {
  CALL();
  (void)function;
  return 0;
}
mk_cu_result cuFuncSetAttribute(mk_cu_function_ref function, int attribute, int value) {
  CALL();
  (void)function;
  (void)attribute;
  (void)value;
  return 0;
}
mk_cu_result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, mk_cu_function_ref function, int threads,
                                                         size_t shared) {
  CALL();
  (void)function;
  (void)threads;
  (void)shared;
  *blocks = state.blocks_per_sm;
  return 0;
}
mk_cu_result cuOccupancyMaxActiveClusters(int *clusters, mk_cu_function_ref function,
                                          const mk_cu_launch_config *config) {
  CALL();
  (void)function;
  (void)config;
  *clusters = 0;
  return 0;
}

static mk_cu_result new_memory(void **memory, size_t bytes) {
  *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  state.live += *memory != NULL;
  return *memory != NULL ? 0 : MK_CU_OUT_OF_MEMORY;
}
static mk_cu_result free_memory(void *memory) {
  free(memory);
  state.live--;
  return 0;
}

mk_cu_result cuPointerGetAttribute(void *value, int attribute, mk_cu_address address) {
  const unsigned type = MK_CU_DEVICE_MEMORY;
  CALL();
  (void)attribute;
  memcpy(value, &type, sizeof type);
  return address < FAKE_CUDA_NO_MEMORY ? INVALID_VALUE : 0;
}
mk_cu_result cuMemGetInfo_v2(size_t *available, size_t *total) {
  CALL();
  *available = *total = state.memory;
  return 0;
}
mk_cu_result cuMemAlloc_v2(mk_cu_address *address, size_t bytes) {
  void *memory;
  CALL();
  mk_cu_result result = new_memory(&memory, bytes);
  *address = (mk_cu_address)(uintptr_t)memory;
  return result;
}
mk_cu_result cuMemFree_v2(mk_cu_address address) { return free_memory((void *)(uintptr_t)address); }
mk_cu_result cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
  CALL();
  (void)flags;
  for (uint32_t i = 0; i < MOST_PINNED; i++) {
    if (pinned[i].start == NULL) {
      mk_cu_result result = new_memory(memory, bytes);
      pinned[i].start = *memory;
      pinned[i].bytes = bytes;
      return result;
    }
  }
  return MK_CU_OUT_OF_MEMORY;
}
static bool is_pinned(const void *memory) {
  const uint8_t *at = memory;
  for (uint32_t i = 0; i < MOST_PINNED; i++) {
    if (pinned[i].start != NULL && at >= pinned[i].start && at < pinned[i].start + pinned[i].bytes) {
      return true;
    }
  }
  return false;
}
mk_cu_result cuMemFreeHost(void *memory) {
  for (uint32_t i = 0; i < MOST_PINNED; i++) {
    pinned[i].start = pinned[i].start == memory ? NULL : pinned[i].start;
  }
  return free_memory(memory);
}
mk_cu_result cuMemHostGetDevicePointer_v2(mk_cu_address *address, void *memory, unsigned flags) {
  CALL();
  (void)flags;
  *address = (mk_cu_address)(uintptr_t)memory;
  return 0;
}

mk_cu_result cuMemcpyHtoDAsync_v2(mk_cu_address to, const void *from, size_t bytes, mk_cu_stream_ref stream) {
  CALL();
  task *t = put(stream, COPY, bytes);
  memcpy(t->staged, from, bytes);
  t->to = (void *)(uintptr_t)to;
  t->from = is_pinned(from) ? from : t->staged; /* of pinned memory what is there when its turn comes */
  t->bytes = bytes;
  return 0;
}
mk_cu_result cuMemcpyDtoHAsync_v2(void *to, mk_cu_address from, size_t bytes, mk_cu_stream_ref stream) {
  CALL();
  task *t = put(stream, COPY, 0);
  t->to = to;
  t->from = (const void *)(uintptr_t)from;
  t->bytes = bytes;
  while (!is_pinned(to) && !go_on(stream_of(stream))) { /* to pageable memory it comes back when it is done */
  }
  return 0;
}
mk_cu_result cuMemsetD8Async(mk_cu_address address, unsigned char value, size_t bytes, mk_cu_stream_ref stream) {
  CALL();
  task *t = put(stream, FILL, 0);
  t->to = (void *)(uintptr_t)address;
  t->value = value;
  t->bytes = bytes;
  return 0;
}

mk_cu_result cuStreamCreate(mk_cu_stream_ref *stream, unsigned flags) {
  CALL();
  (void)flags;
  for (uint32_t i = 1; i < MOST_STREAMS; i++) {
    if (!streams[i].used) {
      streams[i].used = true;
      *stream = &streams[i];
      state.live++;
      return 0;
    }
  }
  return MK_CU_OUT_OF_MEMORY;
}
mk_cu_result cuStreamDestroy_v2(mk_cu_stream_ref stream) {
  while (!go_on(stream)) {
  }
  stream->used = false;
  state.live--;
  return 0;
}
mk_cu_result cuStreamSynchronize(mk_cu_stream_ref stream) {
  CALL();
  while (!go_on(stream_of(stream))) {
  }
  return 0;
}

mk_cu_result cuEventCreate(mk_cu_event_ref *event, unsigned flags) {
  CALL();
  (void)flags;
  *event = calloc(1, sizeof **event);
  state.live++;
  return 0;
}
mk_cu_result cuEventDestroy_v2(mk_cu_event_ref event) {
  if (event->stream != NULL) {
    while (event->pending != 0 && !go_on(event->stream)) {
    }
  }
  free(event);
  state.live--;
  return 0;
}
mk_cu_result cuEventRecord(mk_cu_event_ref event, mk_cu_stream_ref stream) {
  CALL();
  put(stream, RECORD, 0)->event = event;
  event->stream = stream_of(stream);
  event->records++;
  event->pending++;
  return 0;
}
mk_cu_result cuStreamWaitEvent(mk_cu_stream_ref stream, mk_cu_event_ref event, unsigned flags) {
  CALL();
  (void)flags;
  if (event->pending != 0 && event->stream != stream_of(stream)) {
    task *t = put(stream, WAIT, 0);
    t->event = event;
    t->record = event->records;
  }
  return 0;
}
mk_cu_result cuEventQuery(mk_cu_event_ref event) {
  CALL();
  if (event->pending != 0) {
    (void)go_on(event->stream);
  }
  return event->pending == 0 ? 0 : MK_CU_NOT_READY;
}
mk_cu_result cuEventSynchronize(mk_cu_event_ref event) {
  CALL();
  while (event->pending != 0) {
    (void)go_on(event->stream);
  }
  return 0;
}
mk_cu_result cuEventElapsedTime(float *milliseconds, mk_cu_event_ref start, mk_cu_event_ref end) {
  CALL();
  *milliseconds = 1.0f;
  return start->pending == 0 && end->pending == 0 ? 0 : MK_CU_NOT_READY;
}

mk_cu_result cuLaunchKernel(mk_cu_function_ref function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                            mk_cu_stream_ref stream, void **arguments, void **extra) {
  CALL();
  (void)grid_x, (void)grid_z, (void)block_x, (void)block_y, (void)block_z, (void)shared, (void)extra;
  if ((void *)function == state.ranks && state.rank != NULL) {
    task *t = put(stream, RANK, sizeof(mk_gpu_rank));
    memcpy(t->staged, arguments[0], sizeof(mk_gpu_rank));
    t->bytes = grid_y;
  } else if ((void *)function == &packs) {
    memcpy(put(stream, PACK, sizeof(mk_gpu_pack))->staged, arguments[0], sizeof(mk_gpu_pack));
  }
  return 0;
}
mk_cu_result cuLaunchCooperativeKernel(mk_cu_function_ref function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                       mk_cu_stream_ref stream, void **arguments) {
  CALL();
  (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
  (void)shared;
  memcpy(&put(stream, KERNEL, 0)->params, arguments[0], sizeof(mk_gpu_params));
  return 0;
}
mk_cu_result cuLaunchKernelEx(const mk_cu_launch_config *config, mk_cu_function_ref function, void **arguments,
                              void **extra) {
  CALL();
  (void)config, (void)function, (void)arguments, (void)extra;
  return 0;
}
/* What the driver asks of a map without interleaving. */
static bool map_is_sound(int type, unsigned rank, const void *address, const uint64_t *sizes, const uint64_t *strides,
                         const uint32_t *box, const uint32_t *steps, int swizzle) {
  const uint32_t unit = type == MK_CU_TENSOR_U64 ? 8 : type == MK_CU_TENSOR_BF16 ? 2 : 0;
  bool sound = unit != 0 && rank >= 1 && rank <= FAKE_MAP_RANK && (uintptr_t)address % 16 == 0 &&
               box[0] * unit % 16 == 0 && (swizzle != MK_CU_TENSOR_SWIZZLE_128 || box[0] * unit <= 128);
  for (unsigned d = 0; d < rank; d++) {
    sound = sound && sizes[d] >= 1 && sizes[d] <= UINT64_C(1) << 32 && box[d] >= 1 && box[d] <= 256 && steps[d] == 1;
    sound = sound && (d + 1 == rank || (strides[d] % 16 == 0 && strides[d] < UINT64_C(1) << 40));
  }
  return sound;
}

mk_cu_result cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *sizes,
                                    const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                                    int swizzle, int promotion, int fill) {
  CALL();
  (void)promotion, (void)fill;
  if (interleave != 0 || !map_is_sound(type, rank, address, sizes, strides, box, steps, swizzle)) {
    return INVALID_VALUE;
  }
  fake_map m = {.address = address, .type = type, .rank = (int)rank};
  memcpy(m.sizes, sizes, rank * sizeof *sizes);
  memcpy(m.strides, strides, (rank - 1) * sizeof *strides);
  memcpy(m.box, box, rank * sizeof *box);
  memcpy(map, &m, sizeof m);
  return 0;
}
mk_cu_result cuGetErrorName(mk_cu_result result, const char **name) {
  *name = result == MK_CU_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
  return 0;
}
mk_cu_result cuGetErrorString(mk_cu_result result, const char **text) {
  *text = result == MK_CU_OUT_OF_MEMORY ? "out of memory" : "an error";
  return 0;
}
