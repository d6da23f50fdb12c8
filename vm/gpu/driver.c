/* See driver.h. */
#include "vm/gpu/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "vm/gpu/image.h"

static mk_driver driver_table;
static char driver_problem[512]; /* "" when the table is complete */
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

static bool find_functions(void *library) {
#define MK_DRIVER_FIND(member, symbol, parameters)                                                        \
  {                                                                                                       \
    void *found = dlsym(library, symbol);                                                                 \
    if (found == NULL) {                                                                                  \
      snprintf(driver_problem, sizeof driver_problem,                                                     \
               "the NVIDIA driver is too old: it has no " symbol "; install one for CUDA %d.%d or newer", \
               mk_gpu_image_cuda_version() / 1000, mk_gpu_image_cuda_version() % 1000 / 10);              \
      return false;                                                                                       \
    }                                                                                                     \
    memcpy(&driver_table.member, &found, sizeof found);                                                   \
  }
  MK_DRIVER_FUNCTIONS(MK_DRIVER_FIND)
#undef MK_DRIVER_FIND
  return true;
}

static void start_driver(void) {
  const char *name = "unknown error";
  mk_cu_result result = driver_table.init(0);
  if (result == MK_CU_NO_DEVICE) {
    snprintf(driver_problem, sizeof driver_problem, "there is no NVIDIA GPU that this process may use");
    return;
  }
  if (result != 0) {
    (void)driver_table.error_name(result, &name);
    snprintf(driver_problem, sizeof driver_problem, "the NVIDIA driver does not start: cuInit gives %d (%s)", result,
             name);
    return;
  }
  if (driver_table.version(&driver_table.driver_version) != 0 ||
      driver_table.device_count(&driver_table.devices) != 0) {
    snprintf(driver_problem, sizeof driver_problem, "the NVIDIA driver does not tell its version and devices");
    return;
  }
  /* Machine code of one CUDA major version loads on every driver of that version, whatever the minor one. */
  int needed = mk_gpu_image_cuda_version() / 1000 * 1000;
  if (driver_table.driver_version < needed) {
    snprintf(driver_problem, sizeof driver_problem,
             "the NVIDIA driver is too old: it runs CUDA %d.%d; install one for CUDA %d.0 or newer",
             driver_table.driver_version / 1000, driver_table.driver_version % 1000 / 10, needed / 1000);
  } else if (driver_table.devices == 0) {
    snprintf(driver_problem, sizeof driver_problem, "there is no NVIDIA GPU that this process may use");
  }
}

static void open_once(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(driver_problem, sizeof driver_problem, "there is no NVIDIA driver (%s)", dlerror());
    return;
  }
  if (find_functions(library)) {
    start_driver();
  }
}

mk_status mk_driver_open(const mk_driver **out) {
  int failed = pthread_once(&driver_once, open_once);
  if (failed != 0) {
    return mk_error(MK_ERR_RUNTIME, "the NVIDIA driver cannot be opened: %s", strerror(failed));
  }
  if (driver_problem[0] != '\0') {
    return mk_error(MK_ERR_RUNTIME, "%s; device cpu needs none", driver_problem);
  }
  *out = &driver_table;
  return MK_OK;
}

mk_status mk_driver_check(const mk_driver *driver, mk_cu_result result, const char *what) {
  if (result == 0) {
    return MK_OK;
  }
  const char *name = NULL, *text = NULL;
  (void)driver->error_name(result, &name);
  (void)driver->error_text(result, &text);
  return mk_error(MK_ERR_DEVICE, "%s: the NVIDIA driver gives %d (%s: %s)", what, result, name == NULL ? "?" : name,
                  text == NULL ? "?" : text);
}

mk_status mk_driver_device(const mk_driver *driver, uint32_t index, mk_cu_device *out) {
  if (index >= (uint32_t)driver->devices) {
    return mk_error(MK_ERR_RUNTIME, "there is no GPU %u; this machine has %d, counted from 0", index, driver->devices);
  }
  char name[128] = "?";
  int major = 0, minor = 0, cooperative = 0;
  MK_TRY(mk_driver_check(driver, driver->device_get(out, (int)index), "finding the GPU"));
  (void)driver->device_name(name, sizeof name, *out);
  MK_TRY(mk_driver_check(driver, driver->device_attribute(&major, MK_CU_ATTRIBUTE_MAJOR, *out), "asking the GPU"));
  MK_TRY(mk_driver_check(driver, driver->device_attribute(&minor, MK_CU_ATTRIBUTE_MINOR, *out), "asking the GPU"));
  MK_TRY(mk_driver_check(driver, driver->device_attribute(&cooperative, MK_CU_ATTRIBUTE_COOPERATIVE, *out),
                         "asking the GPU"));
  if (major != 9 || minor != 0) {
    return mk_error(MK_ERR_RUNTIME,
                    "GPU %u (%s) has compute capability %d.%d; mkvm needs 9.0 (H100, H200); device cpu needs none",
                    index, name, major, minor);
  }
  if (cooperative == 0) {
    return mk_error(MK_ERR_RUNTIME, "GPU %u (%s) does not take cooperative launches here; mkvm needs them", index,
                    name);
  }
  return MK_OK;
}
