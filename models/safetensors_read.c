/* See safetensors_read.h. The file format is described at https://github.com/huggingface/safetensors, "Format". */
#include "models/safetensors_read.h"

#include <stdlib.h>
#include <string.h>

#include "models/json.h"

enum {
  HEADER_LIMIT = 100000000, /* bytes: the reference reader's limit too */
  SHARD_LIMIT = 1000,
};

mk_status mk_safetensors_header_length(const uint8_t *lead, uint64_t size, size_t *length) {
  if (size < MK_SAFETENSORS_LEAD) {
    return mk_error(MK_ERR_FILE, "has %llu bytes, a safetensors file starts with 8 bytes of header length",
                    (unsigned long long)size);
  }
  uint64_t stated = 0;
  for (int i = MK_SAFETENSORS_LEAD; i-- > 0;) {
    stated = stated << 8 | lead[i];
  }
  if (stated < 8) { /* {"a":{}} has 8 bytes; a header of a tensor is longer still */
    return mk_error(MK_ERR_FILE, "header length is %llu bytes: too short for any tensor", (unsigned long long)stated);
  }
  if (stated > HEADER_LIMIT || stated > size - MK_SAFETENSORS_LEAD) {
    return mk_error(MK_ERR_FILE,
                    "header length is %llu bytes, the file has %llu after it (and at most %d are accepted)",
                    (unsigned long long)stated, (unsigned long long)(size - MK_SAFETENSORS_LEAD), HEADER_LIMIT);
  }
  *length = (size_t)stated;
  return MK_OK;
}

static mk_status parse_dtype(const json_t *entry, mk_tensor *tensor) {
  char shown[MK_JSON_SHOWN];
  const json_t *value = mk_json_get(entry, "dtype");
  const char *name = json_string_value(value);
  for (mk_tensor_dtype i = 0; name != NULL && i < MK_TENSOR_DTYPES; i++) {
    if (strcmp(name, mk_tensor_dtype_name(i)) == 0) {
      tensor->dtype = i;
      return MK_OK;
    }
  }
  return mk_error(MK_ERR_FILE,
                  "dtype %s is not supported; only BF16, F16 and F32 are, and F8_E4M3, I8, I32 and I64 of quantised "
                  "modules",
                  mk_json_show(value, shown));
}

/* Fills rank, shape and bytes; the product is checked for overflow before it is believed. */
static mk_status parse_shape(const json_t *entry, mk_tensor *tensor) {
  char shown[MK_JSON_SHOWN];
  const json_t *value = mk_json_get(entry, "shape");
  if (!json_is_array(value) || json_array_size(value) > 4) {
    return mk_error(MK_ERR_FILE, "shape %s must be a list of at most 4 sizes", mk_json_show(value, shown));
  }
  tensor->rank = (uint32_t)json_array_size(value);
  uint64_t bytes = mk_tensor_dtype_bytes(tensor->dtype);
  for (uint32_t i = 0; i < 4; i++) {
    tensor->shape[i] = 1;
    const json_t *size = json_array_get(value, i);
    if (size == NULL) {
      continue;
    }
    if (!json_is_integer(size) || json_integer_value(size) < 0) {
      return mk_error(MK_ERR_FILE, "shape %s: every size must be a whole number of at least 0",
                      mk_json_show(value, shown));
    }
    tensor->shape[i] = (uint64_t)json_integer_value(size);
    if (__builtin_mul_overflow(bytes, tensor->shape[i], &bytes)) {
      return mk_error(MK_ERR_FILE, "shape %s: the product of the sizes does not fit 64 bits",
                      mk_json_show(value, shown));
    }
  }
  tensor->bytes = bytes;
  return MK_OK;
}

/* `data` bytes of tensors follow the header; offsets count from their start. */
static mk_status parse_offsets(const json_t *entry, uint64_t data, mk_tensor *tensor) {
  char shown[MK_JSON_SHOWN];
  const json_t *value = mk_json_get(entry, "data_offsets");
  const json_t *begin = json_array_get(value, 0);
  const json_t *end = json_array_get(value, 1);
  if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
      json_integer_value(begin) < 0) {
    return mk_error(MK_ERR_FILE, "data_offsets %s must be two whole numbers [begin, end]", mk_json_show(value, shown));
  }
  if (json_integer_value(begin) > json_integer_value(end)) {
    return mk_error(MK_ERR_FILE, "data_offsets %s: begin is greater than end", mk_json_show(value, shown));
  }
  uint64_t first = (uint64_t)json_integer_value(begin);
  uint64_t last = (uint64_t)json_integer_value(end);
  if (last > data) {
    return mk_error(MK_ERR_FILE,
                    "data_offsets %s: end is greater than the %llu bytes of data in the file; is it truncated?",
                    mk_json_show(value, shown), (unsigned long long)data);
  }
  if (last - first != tensor->bytes) {
    char shape[MK_SHAPE_SHOWN];
    return mk_error(MK_ERR_FILE, "data_offsets %s span %llu bytes, but dtype and shape %s need %llu",
                    mk_json_show(value, shown), (unsigned long long)(last - first),
                    mk_shape_show(tensor->rank, tensor->shape, shape), (unsigned long long)tensor->bytes);
  }
  tensor->offset = first;
  return MK_OK;
}

static int by_offset(const void *left, const void *right) {
  const mk_tensor *a = left, *b = right;
  if (a->offset != b->offset) {
    return a->offset < b->offset ? -1 : 1;
  }
  return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

/* Every byte after the header belongs to exactly one tensor. `tensors` are sorted by offset. */
static mk_status check_coverage(const mk_tensor *tensors, size_t count, uint64_t data) {
  uint64_t at = 0;
  for (size_t i = 0; i < count; i++) {
    if (tensors[i].offset != at) {
      return mk_error(MK_ERR_FILE,
                      "tensor %.200s: starts at byte %llu of the data, but the one before it ends at %llu: %s",
                      tensors[i].name, (unsigned long long)tensors[i].offset, (unsigned long long)at,
                      tensors[i].offset < at ? "they overlap" : "there is a hole");
    }
    at += tensors[i].bytes;
  }
  return at == data ? MK_OK
                    : mk_error(MK_ERR_FILE, "%llu bytes follow the last tensor; the header does not describe them",
                               (unsigned long long)(data - at));
}

static mk_status parse_tensor(const char *name, const json_t *entry, uint64_t data, mk_tensor *out) {
  *out = (mk_tensor){.name = name};
  mk_status status = !json_is_object(entry)
                         ? mk_error(MK_ERR_FILE, "must be an object with dtype, shape and data_offsets")
                         : parse_dtype(entry, out);
  status = status == MK_OK ? parse_shape(entry, out) : status;
  status = status == MK_OK ? parse_offsets(entry, data, out) : status;
  return status == MK_OK ? MK_OK : mk_error_prefix(status, "tensor %.200s", name);
}

static mk_status parse_tensors(mk_safetensors_header *header, uint64_t data) {
  const char *name;
  json_t *entry;
  MK_TRY(mk_alloc(json_object_size(header->root), sizeof *header->tensors, &header->tensors));
  json_object_foreach(header->root, name, entry) {
    if (strcmp(name, "__metadata__") != 0) {
      MK_TRY(parse_tensor(name, entry, data, &header->tensors[header->count++]));
    }
  }
  if (header->count == 0) {
    return mk_error(MK_ERR_FILE, "the header lists no tensor");
  }
  qsort(header->tensors, header->count, sizeof *header->tensors, by_offset);
  return check_coverage(header->tensors, header->count, data);
}

mk_status mk_safetensors_header_parse(const char *text, size_t length, uint64_t data, mk_safetensors_header *out) {
  *out = (mk_safetensors_header){0};
  if (length == 0 || text[0] != '{') {
    return mk_error(MK_ERR_FILE, "the header must start with '{', not with byte 0x%02x",
                    length == 0 ? 0 : (unsigned char)text[0]);
  }
  mk_status status = mk_json_parse(text, length, &out->root);
  if (status != MK_OK) {
    return mk_error_prefix(status, "header");
  }
  status = parse_tensors(out, data);
  if (status != MK_OK) {
    mk_safetensors_header_free(out);
  }
  return status;
}

void mk_safetensors_header_free(mk_safetensors_header *header) {
  json_decref(header->root);
  mk_free(header->tensors);
  *header = (mk_safetensors_header){0};
}

static bool plain_file_name(const char *name) {
  size_t length = strlen(name);
  const char *ending = ".safetensors";
  return length > strlen(ending) && length < 256 && strcmp(name + length - strlen(ending), ending) == 0 &&
         strchr(name, '/') == NULL && strstr(name, "..") == NULL;
}

/* Searched from the end: tensors of one file mostly stand together. */
static bool is_listed(const mk_safetensors_index *index, const char *file) {
  size_t i = index->count;
  while (i > 0 && strcmp(index->files[i - 1], file) != 0) {
    i--;
  }
  return i > 0;
}

static mk_status list_files(mk_safetensors_index *index) {
  const char *name;
  const json_t *value;
  char shown[MK_JSON_SHOWN];
  size_t capacity = 0;
  json_object_foreach((json_t *)(uintptr_t)index->map, name, value) {
    const char *file = json_string_value(value);
    if (file == NULL || !plain_file_name(file)) {
      return mk_error(MK_ERR_FILE,
                      "weight_map: %.200s: %s must be the name of a .safetensors file without '/' or \"..\"", name,
                      mk_json_show(value, shown));
    }
    if (is_listed(index, file)) {
      continue;
    }
    if (index->count == SHARD_LIMIT) {
      return mk_error(MK_ERR_FILE, "weight_map: lists more than %d files", SHARD_LIMIT);
    }
    MK_TRY(mk_grow(&index->files, &capacity, index->count + 1, sizeof *index->files));
    index->files[index->count++] = file;
  }
  return MK_OK;
}

mk_status mk_safetensors_index_parse(const char *text, size_t length, mk_safetensors_index *out) {
  *out = (mk_safetensors_index){0};
  MK_TRY(mk_json_parse(text, length, &out->root));
  out->map = mk_json_get(out->root, "weight_map");
  mk_status status = json_is_object(out->map) && json_object_size(out->map) > 0
                         ? list_files(out)
                         : mk_error(MK_ERR_FILE, "weight_map: must be an object of tensor name to file name");
  if (status != MK_OK) {
    mk_safetensors_index_free(out);
  }
  return status;
}

void mk_safetensors_index_free(mk_safetensors_index *index) {
  json_decref(index->root);
  mk_free(index->files);
  *index = (mk_safetensors_index){0};
}
