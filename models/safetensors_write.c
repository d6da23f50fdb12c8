/* See safetensors_write.h. A safetensors file: u64 length of the JSON (little-endian), the JSON padded with spaces to a
 * multiple of 8, the data of the tensors without holes. */
#include "models/safetensors_write.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

mk_status mk_output_open(const char *directory, const char *name, mk_output *out) {
  *out = (mk_output){.fd = -1};
  size_t size = strlen(directory) + strlen(name) + 40;
  MK_TRY(mk_alloc(size, 1, &out->path));
  mk_status status;
  MK_TRY_GOTO(mk_alloc(size, 1, &out->temporary), failed);
  snprintf(out->path, size, "%s/%s", directory, name);
  snprintf(out->temporary, size, "%s/.%s.%ld.part", directory, name, (long)getpid());
  out->fd = open(out->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (out->fd < 0) {
    status = mk_error(MK_ERR_RUNTIME, "%s: cannot be created: %s; check the directory and its permissions",
                      out->temporary, strerror(errno));
    goto failed;
  }
  return MK_OK;

failed:
  mk_free(out->temporary);
  mk_free(out->path);
  *out = (mk_output){.fd = -1};
  return status;
}

mk_status mk_output_write(mk_output *output, const void *data, size_t bytes) {
  const char *at = data;
  while (bytes > 0) {
    ssize_t put = write(output->fd, at, bytes);
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      int reason = put == 0 ? ENOSPC : errno;
      return mk_error(MK_ERR_RUNTIME, "%s: writing failed after %" PRIu64 " bytes: %s; %s", output->path,
                      output->written, strerror(reason),
                      reason == ENOSPC || reason == EDQUOT || reason == EFBIG
                          ? "free some space or choose another directory"
                          : "check the disk");
    }
    at += put;
    bytes -= (size_t)put;
    output->written += (uint64_t)put;
  }
  return MK_OK;
}

mk_status mk_output_commit(mk_output *output) {
  mk_status status = MK_OK;
  int closed = close(output->fd); /* network file systems report a full disk here */
  output->fd = -1;
  if (closed != 0 || rename(output->temporary, output->path) != 0) {
    status = mk_error(MK_ERR_RUNTIME, "%s: cannot be completed: %s; check the disk and the directory", output->path,
                      strerror(errno));
  }
  if (status == MK_OK) {
    mk_free(output->temporary);
    output->temporary = NULL;
  }
  mk_output_discard(output);
  return status;
}

void mk_output_discard(mk_output *output) {
  if (output->fd >= 0) {
    close(output->fd);
  }
  if (output->temporary != NULL) {
    unlink(output->temporary);
  }
  mk_free(output->temporary);
  mk_free(output->path);
  *output = (mk_output){.fd = -1};
}

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

mk_status mk_safetensors_add(mk_text *header, const char *name, uint32_t rank, const uint64_t *shape, uint64_t offset) {
  uint64_t bytes = 2;
  MK_TRY(mk_text_add(header, ",\"%s\":{\"dtype\":\"BF16\",\"shape\":[", name));
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
