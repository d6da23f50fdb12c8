/* The CUDA driver, opened at run time: building and running mkvm on a machine without it needs nothing of CUDA.
 *
 * One table of the entry points that are used, made by the first mk_driver_open of the process and kept until it ends.
 * Any thread may call. Failure: MK_ERR_RUNTIME with one line that says whether the driver, the GPU or the driver's
 * version is what is missing. Names and signatures: CUDA Driver API reference manual; types are spelled here so that no
 * CUDA header is needed. */
#ifndef MK_GPU_DRIVER_H
#define MK_GPU_DRIVER_H

#include "vm/status.h"

typedef int mk_cu_result; /* 0: success */
typedef int mk_cu_device;
typedef uint64_t mk_cu_address;
typedef struct mk_cu_context *mk_cu_context_ref;
typedef struct mk_cu_module *mk_cu_module_ref;
typedef struct mk_cu_function *mk_cu_function_ref;
typedef struct mk_cu_stream *mk_cu_stream_ref;
typedef struct mk_cu_event *mk_cu_event_ref;

enum {
  MK_CU_OUT_OF_MEMORY = 2,
  MK_CU_NO_DEVICE = 100,
  MK_CU_NOT_READY = 600,
  MK_CU_PEER_ENABLED = 704, /* it was already */
  MK_CU_ATTRIBUTE_SMS = 16,
  MK_CU_ATTRIBUTE_MAJOR = 75,
  MK_CU_ATTRIBUTE_MINOR = 76,
  MK_CU_ATTRIBUTE_COOPERATIVE = 95,
  MK_CU_FUNCTION_DYNAMIC_SHARED = 8,
  MK_CU_POINTER_MEMORY_TYPE = 2, /* an attribute of an address */
  MK_CU_DEVICE_MEMORY = 2,       /* a value of it */
  MK_CU_STREAM_NON_BLOCKING = 1,
  MK_CU_HOST_MAPPED = 2,
  MK_CU_EVENT_NO_TIMING = 2,
  MK_CU_LAUNCH_COOPERATIVE = 2,  /* attributes of a launch */
  MK_CU_LAUNCH_CLUSTER = 4,      /* so many blocks next to each other run at the same time, close by */
  MK_CU_LAUNCH_PROGRAMMATIC = 6, /* it may begin before the one before it in the stream has ended */
  MK_CU_TENSOR_U64 = 4,
  MK_CU_TENSOR_BF16 = 9,
  MK_CU_TENSOR_SWIZZLE_NONE = 0,
  MK_CU_TENSOR_SWIZZLE_128 = 3,
  MK_CU_TENSOR_PROMOTE_NONE = 0, /* misses fetch what was asked for into the L2 */
};

/* Those parts of the driver's structures that are used. */
typedef struct mk_cu_launch_attribute {
  int id;
  int pad;
  union {
    int on;
    unsigned cluster[3]; /* blocks in each direction */
    char bytes[64];
  } value;
} mk_cu_launch_attribute;

typedef struct mk_cu_launch_config {
  unsigned grid[3], block[3], shared;
  mk_cu_stream_ref stream;
  mk_cu_launch_attribute *attributes;
  unsigned attribute_count;
} mk_cu_launch_config;

/* FUNCTION(member, symbol in libcuda, parameters) */
#define MK_DRIVER_FUNCTIONS(FUNCTION)                                                                                 \
  FUNCTION(init, "cuInit", (unsigned flags))                                                                          \
  FUNCTION(version, "cuDriverGetVersion", (int *version))                                                             \
  FUNCTION(device_count, "cuDeviceGetCount", (int *count))                                                            \
  FUNCTION(device_get, "cuDeviceGet", (mk_cu_device * device, int index))                                             \
  FUNCTION(device_name, "cuDeviceGetName", (char *name, int length, mk_cu_device device))                             \
  FUNCTION(device_uuid, "cuDeviceGetUuid_v2", (uint8_t * uuid, mk_cu_device device)) /* sixteen bytes */              \
  FUNCTION(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, mk_cu_device device))                \
  FUNCTION(context_retain, "cuDevicePrimaryCtxRetain", (mk_cu_context_ref * context, mk_cu_device device))            \
  FUNCTION(context_release, "cuDevicePrimaryCtxRelease_v2", (mk_cu_device device))                                    \
  FUNCTION(context_set, "cuCtxSetCurrent", (mk_cu_context_ref context))                                               \
  FUNCTION(peer_can, "cuDeviceCanAccessPeer", (int *can, mk_cu_device device, mk_cu_device peer))                     \
  FUNCTION(peer_enable, "cuCtxEnablePeerAccess", (mk_cu_context_ref peer, unsigned flags))                            \
  FUNCTION(module_load, "cuModuleLoadData", (mk_cu_module_ref * module, const void *image))                           \
  FUNCTION(module_unload, "cuModuleUnload", (mk_cu_module_ref module))                                                \
  FUNCTION(module_function, "cuModuleGetFunction",                                                                    \
           (mk_cu_function_ref * function, mk_cu_module_ref module, const char *name))                                \
  FUNCTION(function_load, "cuFuncLoad", (mk_cu_function_ref function))                                                \
  FUNCTION(function_set, "cuFuncSetAttribute", (mk_cu_function_ref function, int attribute, int value))               \
  FUNCTION(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor",                                                  \
           (int *blocks, mk_cu_function_ref function, int threads, size_t shared))                                    \
  FUNCTION(cluster_occupancy, "cuOccupancyMaxActiveClusters",                                                         \
           (int *clusters, mk_cu_function_ref function, const mk_cu_launch_config *config))                           \
  FUNCTION(pointer_attribute, "cuPointerGetAttribute", (void *value, int attribute, mk_cu_address address))           \
  FUNCTION(memory_info, "cuMemGetInfo_v2", (size_t * available, size_t * total))                                      \
  FUNCTION(memory_new, "cuMemAlloc_v2", (mk_cu_address * address, size_t bytes))                                      \
  FUNCTION(memory_free, "cuMemFree_v2", (mk_cu_address address))                                                      \
  FUNCTION(host_new, "cuMemHostAlloc", (void **memory, size_t bytes, unsigned flags))                                 \
  FUNCTION(host_free, "cuMemFreeHost", (void *memory))                                                                \
  FUNCTION(host_address, "cuMemHostGetDevicePointer_v2", (mk_cu_address * address, void *memory, unsigned flags))     \
  FUNCTION(upload_async, "cuMemcpyHtoDAsync_v2",                                                                      \
           (mk_cu_address to, const void *from, size_t bytes, mk_cu_stream_ref stream))                               \
  FUNCTION(download_async, "cuMemcpyDtoHAsync_v2",                                                                    \
           (void *to, mk_cu_address from, size_t bytes, mk_cu_stream_ref stream))                                     \
  FUNCTION(fill_async, "cuMemsetD8Async",                                                                             \
           (mk_cu_address address, unsigned char value, size_t bytes, mk_cu_stream_ref stream))                       \
  FUNCTION(stream_new, "cuStreamCreate", (mk_cu_stream_ref * stream, unsigned flags))                                 \
  FUNCTION(stream_free, "cuStreamDestroy_v2", (mk_cu_stream_ref stream))                                              \
  FUNCTION(stream_wait, "cuStreamSynchronize", (mk_cu_stream_ref stream))                                             \
  FUNCTION(stream_after, "cuStreamWaitEvent", (mk_cu_stream_ref stream, mk_cu_event_ref event, unsigned flags))       \
  FUNCTION(event_new, "cuEventCreate", (mk_cu_event_ref * event, unsigned flags))                                     \
  FUNCTION(event_free, "cuEventDestroy_v2", (mk_cu_event_ref event))                                                  \
  FUNCTION(event_record, "cuEventRecord", (mk_cu_event_ref event, mk_cu_stream_ref stream))                           \
  FUNCTION(event_query, "cuEventQuery", (mk_cu_event_ref event))                                                      \
  FUNCTION(event_wait, "cuEventSynchronize", (mk_cu_event_ref event))                                                 \
  FUNCTION(event_elapsed, "cuEventElapsedTime", (float *milliseconds, mk_cu_event_ref start, mk_cu_event_ref end))    \
  FUNCTION(                                                                                                           \
      launch, "cuLaunchKernel",                                                                                       \
      (mk_cu_function_ref function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,              \
       unsigned block_y, unsigned block_z, unsigned shared, mk_cu_stream_ref stream, void **arguments, void **extra)) \
  FUNCTION(launch_cooperative, "cuLaunchCooperativeKernel",                                                           \
           (mk_cu_function_ref function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,         \
            unsigned block_y, unsigned block_z, unsigned shared, mk_cu_stream_ref stream, void **arguments))          \
  FUNCTION(launch_with, "cuLaunchKernelEx",                                                                           \
           (const mk_cu_launch_config *config, mk_cu_function_ref function, void **arguments, void **extra))          \
  FUNCTION(tensor_map, "cuTensorMapEncodeTiled",                                                                      \
           (void *map, int type, unsigned rank, void *address, const uint64_t *sizes, const uint64_t *strides,        \
            const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill))        \
  FUNCTION(error_name, "cuGetErrorName", (mk_cu_result result, const char **name))                                    \
  FUNCTION(error_text, "cuGetErrorString", (mk_cu_result result, const char **text))

typedef struct mk_driver {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): parts of a declaration */
#define MK_DRIVER_MEMBER(member, symbol, parameters) mk_cu_result(*member) parameters;
  MK_DRIVER_FUNCTIONS(MK_DRIVER_MEMBER)
#undef MK_DRIVER_MEMBER
  int driver_version; /* 1000 major + 10 minor of the newest CUDA it runs */
  int devices;
} mk_driver;

/* *out is valid until the process ends. */
mk_status mk_driver_open(const mk_driver **out);

/* MK_OK for result 0; else MK_ERR_DEVICE and "<what>: <the driver's words>". */
mk_status mk_driver_check(const mk_driver *driver, mk_cu_result result, const char *what);

/* The device of that index, when it is one that the device image runs on (compute capability 9.0). */
mk_status mk_driver_device(const mk_driver *driver, uint32_t index, mk_cu_device *out);

#endif
