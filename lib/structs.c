/* Structs that callers fill, or have filled: their defaults, and their sizes in older and newer versions. See
 * include/mkvm.h, "ABI". */
#include <string.h>

#include "lib/internal.h"
#include "mk_version.h"

mk_status mkvm_take_struct(const char *name, const void *given, size_t least, void *own, size_t own_size) {
  size_t size;
  memcpy(&size, given, sizeof size);
  if (size < least || size > 16 * own_size) {
    return mk_error(MK_ERR_USAGE, "%s: its size is %zu; begin with %s_init", name, size, name);
  }
  for (size_t i = own_size; i < size; i++) {
    if (((const char *)given)[i] != 0) {
      return mk_error(MK_ERR_USAGE,
                      "%s: a member that libmkvm " MK_VERSION
                      " does not know is set, at byte %zu; use a newer "
                      "libmkvm",
                      name, i);
    }
  }
  memcpy(own, given, size < own_size ? size : own_size);
  return MK_OK;
}

void mkvm_give_struct(const void *own, size_t own_size, void *out, size_t size) {
  memset(out, 0, size);
  memcpy(out, own, size < own_size ? size : own_size);
  memcpy(out, &size, sizeof size);
}

void mkvm_options_init_size(mkvm_options *options, size_t size) {
  const mkvm_options usual = {.max_batch = 1, .prefix_tokens = UINT64_MAX};
  mkvm_give_struct(&usual, sizeof usual, options, size);
}

void mkvm_sampling_init_size(mkvm_sampling *sampling, size_t size) {
  const mkvm_sampling usual = {.top_p = 1, .repetition_penalty = 1};
  mkvm_give_struct(&usual, sizeof usual, sampling, size);
}

void mkvm_request_init_size(mkvm_request *request, size_t size) {
  const mkvm_request usual = {.size = size};
  mkvm_give_struct(&usual, sizeof usual, request, size);
}
