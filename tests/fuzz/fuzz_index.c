/* model.safetensors.index.json: the files that an accepted one names lie in its directory, each once. */
#include <string.h>

#include "models/safetensors_read.h"
#include "tests/fuzz/support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mk_safetensors_index index;
  mk_status status = mk_safetensors_index_parse((const char *)data, size, &index);
  fuzz_expect_parsed(status);
  if (status != MK_OK) {
    return 0;
  }
  fuzz_require(index.count > 0 && index.count <= json_object_size(index.map), "%zu files", index.count);
  for (size_t i = 0; i < index.count; i++) {
    fuzz_require(strchr(index.files[i], '/') == NULL && index.files[i][0] != '\0' &&
                     strcmp(index.files[i], "..") != 0 && strcmp(index.files[i], ".") != 0,
                 "file name \"%s\"", index.files[i]);
    for (size_t k = 0; k < i; k++) {
      fuzz_require(strcmp(index.files[i], index.files[k]) != 0, "\"%s\" is listed twice", index.files[i]);
    }
  }
  mk_safetensors_index_free(&index);
  return 0;
}
