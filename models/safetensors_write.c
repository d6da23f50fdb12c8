/* See safetensors_write.h. A safetensors file: u64 length of the JSON (little-endian), the JSON padded with spaces to a
 * multiple of 8, the data of the tensors without holes. */
#include "models/safetensors_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

mk_status mk_text_add(mk_text *text, const char *format, ...) {
  char small[256];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(small, sizeof small, format, arguments);
  va_end(arguments);
  if (length < 0) {
    return mk_error(MK_ERR_RUNTIME, "text \"%s\" cannot be formatted", format);
  }
  size_t more = (size_t)length;
  MK_TRY(mk_grow(&text->data, &text->capacity, text->length + more + 1, 1));
  if (more < sizeof small) {
    memcpy(text->data + text->length, small, more + 1);
  } else {
    va_start(arguments, format);
    vsnprintf(text->data + text->length, more + 1, format, arguments);
    va_end(arguments);
  }
  text->length += more;
  return MK_OK;
}

void mk_text_free(mk_text *text) {
  mk_free(text->data);
  *text = (mk_text){0};
}

mk_status mk_safetensors_begin(mk_text *header) {
  return mk_text_add(header, "????????{\"__metadata__\":{\"format\":\"pt\"}");
}

mk_status mk_safetensors_add(mk_text *header, const char *name, mk_tensor_dtype dtype, uint32_t rank,
                             const uint64_t *shape, uint64_t offset) {
  uint64_t bytes = mk_tensor_dtype_bytes(dtype);
  MK_TRY(mk_text_add(header, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", name, mk_tensor_dtype_name(dtype)));
  for (uint32_t i = 0; i < rank; i++) {
    bytes *= shape[i];
    MK_TRY(mk_text_add(header, "%s%" PRIu64, i == 0 ? "" : ",", shape[i]));
  }
  return mk_text_add(header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, offset + bytes);
}

mk_status mk_safetensors_end(mk_text *header) {
  MK_TRY(mk_text_add(header, "}"));
  MK_TRY(mk_text_add(header, "%*s", (int)(-header->length & 7), ""));
  uint64_t length = header->length - 8;
  for (int i = 0; i < 8; i++) {
    header->data[i] = (char)(length >> (8 * i));
  }
  return MK_OK;
}
