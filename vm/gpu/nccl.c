/* See nccl.h. */
#include "vm/gpu/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mk_nccl nccl_table;
static char nccl_problem[512]; /* "" when the table is complete */
static pthread_once_t nccl_once = PTHREAD_ONCE_INIT;

static bool find_functions(void *library) {
#define MK_NCCL_FIND(result, member, symbol, parameters)                                                           \
  {                                                                                                                \
    void *found = dlsym(library, symbol);                                                                          \
    if (found == NULL) {                                                                                           \
      snprintf(nccl_problem, sizeof nccl_problem, "NCCL is too old: it has no " symbol "; install 2.28 or newer"); \
      return false;                                                                                                \
    }                                                                                                              \
    memcpy(&nccl_table.member, &found, sizeof found);                                                              \
  }
  MK_NCCL_FUNCTIONS(MK_NCCL_FIND)
#undef MK_NCCL_FIND
  void *found = dlsym(library, "ncclGetPeerDevicePointer");
  memcpy(&nccl_table.peer_pointer, &found, sizeof found);
  return true;
}

/* Asked first: an old NCCL is named by its version, and not by what it does not have. */
static bool check_version(void *library) {
  void *found = dlsym(library, "ncclGetVersion");
  mk_nccl_result (*get_version)(int *version);
  int version = 0;
  memcpy(&get_version, &found, sizeof found);
  if (found == NULL || get_version(&version) != 0) {
    snprintf(nccl_problem, sizeof nccl_problem, "NCCL does not tell its version; install 2.28 or newer");
    return false;
  }
  const int major = version / 10000, minor = version / 100 % 100, patch = version % 100;
  if (version < MK_NCCL_OLDEST) { /* before 2.9 it is 1000 major + 100 minor + patch, which is smaller */
    snprintf(nccl_problem, sizeof nccl_problem, "NCCL %d.%d.%d is too old: it has no windows; install 2.28 or newer",
             version < 10000 ? version / 1000 : major, version < 10000 ? version / 100 % 10 : minor, patch);
    return false;
  }
  if (version >= MK_NCCL_TELLS_PEERS && dlsym(library, "ncclGetPeerDevicePointer") == NULL) {
    snprintf(nccl_problem, sizeof nccl_problem,
             "NCCL %d.%d.%d has no ncclGetPeerDevicePointer, and how its windows lie in memory is not known; install "
             "2.28, or another newer one",
             major, minor, patch);
    return false;
  }
  nccl_table.version = version;
  return true;
}

static void open_once(void) {
  /* Read when the library starts: nothing here uses multicast. */
  (void)setenv("NCCL_NVLS_ENABLE", "0", 1);
  void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(nccl_problem, sizeof nccl_problem, "there is no NCCL (%s)", dlerror());
    return;
  }
  (void)(check_version(library) && find_functions(library));
}

mk_status mk_nccl_open(const mk_nccl **out) {
  int failed = pthread_once(&nccl_once, open_once);
  if (failed != 0) {
    return mk_error(MK_ERR_RUNTIME, "NCCL cannot be opened: %s", strerror(failed));
  }
  if (nccl_problem[0] != '\0') {
    return mk_error(MK_ERR_RUNTIME,
                    "%s; ranks that are processes need it, ranks of one process (--device cuda:0-3) do "
                    "not",
                    nccl_problem);
  }
  *out = &nccl_table;
  return MK_OK;
}

mk_status mk_nccl_check(const mk_nccl *nccl, mk_nccl_result result, const char *what) {
  if (result == 0) {
    return MK_OK;
  }
  const char *text = nccl->error_text(result), *last = nccl->last_error(NULL);
  return mk_error(MK_ERR_DEVICE, "%s: NCCL gives %d (%s%s%s)", what, result, text == NULL ? "?" : text,
                  last == NULL || last[0] == '\0' ? "" : "; ", last == NULL ? "" : last);
}
