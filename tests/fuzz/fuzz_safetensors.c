/* A whole safetensors file: of an accepted one, every byte after the header belongs to exactly one tensor. */
#include "models/safetensors_read.h"
#include "tests/fuzz/support.h"

static void check_tensors(const mk_safetensors_header *header, uint64_t data) {
  uint64_t at = 0;
  for (size_t i = 0; i < header->count; i++) {
    const mk_tensor *tensor = &header->tensors[i];
    __extension__ unsigned __int128 bytes = tensor->dtype == MK_TENSOR_F32 ? 4 : 2;
    fuzz_require(tensor->rank <= 4, "rank %u", tensor->rank);
    for (size_t d = 0; d < 4; d++) {
      fuzz_require(d < tensor->rank || tensor->shape[d] == 1, "size %zu of rank %u", d, tensor->rank);
      fuzz_require(tensor->shape[d] < UINT64_C(1) << 63 && bytes <= UINT64_MAX, "the product of the sizes overflows");
      bytes *= tensor->shape[d];
    }
    fuzz_require(tensor->offset == at && tensor->bytes == bytes, "tensor %s lies at %llu, %llu bytes", tensor->name,
                 (unsigned long long)tensor->offset, (unsigned long long)tensor->bytes);
    at += tensor->bytes;
  }
  fuzz_require(at == data, "tensors end at %llu of %llu", (unsigned long long)at, (unsigned long long)data);
}

/* Where the last brace ends: mutations that change the length of the header get past the length before it. */
static size_t header_end(const uint8_t *data, size_t size) {
  while (size > MK_SAFETENSORS_LEAD && data[size - 1] != '}') {
    size--;
  }
  return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  size_t length;
  mk_status status = mk_safetensors_header_length(data, size, &length);
  fuzz_expect_parsed(status);
  if (size < MK_SAFETENSORS_LEAD) {
    return 0;
  }
  fuzz_require(status != MK_OK || length <= size - MK_SAFETENSORS_LEAD, "a header of %zu bytes", length);
  const size_t end = status == MK_OK ? MK_SAFETENSORS_LEAD + length : header_end(data, size);
  mk_safetensors_header header;
  status = mk_safetensors_header_parse((const char *)data + MK_SAFETENSORS_LEAD, end - MK_SAFETENSORS_LEAD, size - end,
                                       &header);
  fuzz_expect_parsed(status);
  if (status == MK_OK) {
    check_tensors(&header, size - end);
    mk_safetensors_header_free(&header);
  }
  return 0;
}
