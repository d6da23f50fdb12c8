/* See checkpoint.h. The file format is described at https://github.com/huggingface/safetensors, "Format". */
#include "models/checkpoint.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/json.h"

enum {
  HEADER_LIMIT = 100000000, /* bytes: the reference reader's limit too */
  INDEX_LIMIT = 100000000,
  SHARD_LIMIT = 1000,
  CHUNK = 16384, /* elements converted at a time, small enough for the L2 cache */
};

typedef struct shard {
  char *name, *path;
  int fd;
  json_t *header;    /* owns the names of its tensors */
  size_t first, end; /* its tensors while they are being read, in file order */
} shard;

struct mk_checkpoint {
  shard *shards;
  size_t shard_count, shard_capacity;
  mk_tensor *tensors; /* sorted by name once open */
  size_t count, capacity;
};

static const struct dtype {
  const char *name;
  mk_tensor_dtype dtype;
  uint64_t bytes;
} dtypes[] = {{"BF16", MK_TENSOR_BF16, 2}, {"F16", MK_TENSOR_F16, 2}, {"F32", MK_TENSOR_F32, 4}};

static uint64_t element_bytes(mk_tensor_dtype dtype) { return dtype == MK_TENSOR_F32 ? 4 : 2; }

static mk_status parse_dtype(const json_t *entry, mk_tensor *tensor) {
  char shown[MK_JSON_SHOWN];
  const json_t *value = mk_json_get(entry, "dtype");
  const char *name = json_string_value(value);
  for (size_t i = 0; name != NULL && i < sizeof dtypes / sizeof dtypes[0]; i++) {
    if (strcmp(name, dtypes[i].name) == 0) {
      tensor->dtype = dtypes[i].dtype;
      return MK_OK;
    }
  }
  return mk_error(MK_ERR_FILE, "dtype %s is not supported; only BF16, F16 and F32 are", mk_json_show(value, shown));
}

/* Fills rank, shape and bytes; the product is checked for overflow before it is believed. */
static mk_status parse_shape(const json_t *entry, mk_tensor *tensor) {
  char shown[MK_JSON_SHOWN];
  const json_t *value = mk_json_get(entry, "shape");
  if (!json_is_array(value) || json_array_size(value) > 4) {
    return mk_error(MK_ERR_FILE, "shape %s must be a list of at most 4 sizes", mk_json_show(value, shown));
  }
  tensor->rank = (uint32_t)json_array_size(value);
  uint64_t bytes = element_bytes(tensor->dtype);
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
    return mk_error(MK_ERR_FILE, "data_offsets %s: begin lies behind end", mk_json_show(value, shown));
  }
  uint64_t first = (uint64_t)json_integer_value(begin);
  uint64_t last = (uint64_t)json_integer_value(end);
  if (last > data) {
    return mk_error(MK_ERR_FILE,
                    "data_offsets %s: end lies behind the %llu bytes of data in the file; is it truncated?",
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

static int by_name(const void *left, const void *right) {
  const mk_tensor *a = left, *b = right;
  return strcmp(a->name, b->name);
}

/* Every byte behind the header belongs to exactly one tensor. `tensors` are sorted by offset. */
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

static mk_status parse_tensors(mk_checkpoint *checkpoint, size_t file, uint64_t data_start, uint64_t data) {
  shard *s = &checkpoint->shards[file];
  const char *name;
  json_t *entry;
  s->first = s->end = checkpoint->count;
  json_object_foreach(s->header, name, entry) {
    if (strcmp(name, "__metadata__") == 0) {
      continue;
    }
    mk_tensor tensor = {.name = name, .file = (uint32_t)file};
    mk_status status = !json_is_object(entry)
                           ? mk_error(MK_ERR_FILE, "must be an object with dtype, shape and data_offsets")
                           : parse_dtype(entry, &tensor);
    status = status == MK_OK ? parse_shape(entry, &tensor) : status;
    status = status == MK_OK ? parse_offsets(entry, data, &tensor) : status;
    if (status != MK_OK) {
      return mk_error_prefix(status, "tensor %.200s", name);
    }
    MK_TRY(mk_grow(&checkpoint->tensors, &checkpoint->capacity, checkpoint->count + 1, sizeof(mk_tensor)));
    checkpoint->tensors[checkpoint->count++] = tensor;
  }
  s->end = checkpoint->count;
  mk_tensor *first = checkpoint->tensors + s->first;
  size_t count = s->end - s->first;
  if (count == 0) {
    return mk_error(MK_ERR_FILE, "the header lists no tensor");
  }
  qsort(first, count, sizeof *first, by_offset);
  MK_TRY(check_coverage(first, count, data));
  for (size_t i = 0; i < count; i++) {
    first[i].offset += data_start;
  }
  return MK_OK;
}

static mk_status read_header(mk_checkpoint *checkpoint, size_t file, uint64_t size) {
  shard *s = &checkpoint->shards[file];
  uint64_t length;
  if (size < 8) {
    return mk_error(MK_ERR_FILE, "has %llu bytes, a safetensors file starts with 8 bytes of header length",
                    (unsigned long long)size);
  }
  uint8_t raw[8];
  MK_TRY(mk_file_pread(s->fd, "header", 0, sizeof raw, raw));
  length = 0;
  for (int i = 7; i >= 0; i--) {
    length = length << 8 | raw[i];
  }
  if (length < 8) { /* {"a":{}} has 8 bytes; a header of a tensor is longer still */
    return mk_error(MK_ERR_FILE, "header length is %llu bytes: too short for any tensor", (unsigned long long)length);
  }
  if (length > HEADER_LIMIT || length > size - 8) {
    return mk_error(MK_ERR_FILE,
                    "header length is %llu bytes, the file has %llu after it (and at most %d are accepted)",
                    (unsigned long long)length, (unsigned long long)(size - 8), HEADER_LIMIT);
  }
  char *text = NULL;
  mk_status status = mk_alloc((size_t)length, 1, &text);
  status = status == MK_OK ? mk_file_pread(s->fd, "header", 8, (size_t)length, text) : status;
  if (status == MK_OK && text[0] != '{') {
    status = mk_error(MK_ERR_FILE, "the header must start with '{', not with byte 0x%02x", (unsigned char)text[0]);
  }
  if (status == MK_OK) {
    status = mk_json_parse(text, (size_t)length, &s->header);
    if (status != MK_OK) {
      mk_error_prefix(status, "header");
    }
  }
  mk_free(text);
  return status == MK_OK ? parse_tensors(checkpoint, file, 8 + length, size - 8 - length) : status;
}

static mk_status open_shard(mk_checkpoint *checkpoint, const char *directory, const char *name) {
  MK_TRY(mk_grow(&checkpoint->shards, &checkpoint->shard_capacity, checkpoint->shard_count + 1, sizeof(shard)));
  size_t file = checkpoint->shard_count++;
  shard *s = &checkpoint->shards[file];
  *s = (shard){.fd = -1};
  uint64_t size;
  MK_TRY(mk_strdup(name, &s->name));
  MK_TRY(mk_path_join(directory, name, &s->path));
  MK_TRY(mk_file_open(s->path, false, &s->fd, &size));
  mk_status status = read_header(checkpoint, file, size);
  return status == MK_OK ? MK_OK : mk_error_prefix(status, "%s", s->path);
}

static bool plain_file_name(const char *name) {
  size_t length = strlen(name);
  const char *ending = ".safetensors";
  return length > strlen(ending) && length < 256 && strcmp(name + length - strlen(ending), ending) == 0 &&
         strchr(name, '/') == NULL && strstr(name, "..") == NULL;
}

static size_t find_shard(const mk_checkpoint *checkpoint, const char *name) {
  size_t i = 0;
  while (i < checkpoint->shard_count && strcmp(checkpoint->shards[i].name, name) != 0) {
    i++;
  }
  return i;
}

/* The index and the shards' own headers must tell the same story: every listed tensor is in its shard and in no other,
 * and no shard holds a tensor that the index does not list. */
static mk_status check_index(const mk_checkpoint *checkpoint, const json_t *map) {
  for (size_t i = 0; i < checkpoint->count; i++) {
    const mk_tensor *tensor = &checkpoint->tensors[i];
    const char *file = checkpoint->shards[tensor->file].name;
    const char *listed = json_string_value(json_object_get(map, tensor->name));
    if (listed == NULL) {
      return mk_error(MK_ERR_FILE, "weight_map: tensor %.200s is in %s but not listed", tensor->name, file);
    }
    if (strcmp(listed, file) != 0) {
      return mk_error(MK_ERR_FILE, "weight_map: tensor %.200s is listed in %s but also or only in %s", tensor->name,
                      listed, file);
    }
  }
  const char *name;
  const json_t *file;
  json_object_foreach((json_t *)(uintptr_t)map, name, file) {
    if (mk_checkpoint_find(checkpoint, name) == NULL) {
      return mk_error(MK_ERR_FILE, "weight_map: tensor %.200s is not in %s", name, json_string_value(file));
    }
  }
  return MK_OK;
}

static mk_status open_listed(mk_checkpoint *checkpoint, const char *directory, const json_t *map) {
  if (!json_is_object(map) || json_object_size(map) == 0) {
    return mk_error(MK_ERR_FILE, "weight_map: must be an object of tensor name to file name");
  }
  const char *name;
  const json_t *value;
  char shown[MK_JSON_SHOWN];
  json_object_foreach((json_t *)(uintptr_t)map, name, value) {
    const char *file = json_string_value(value);
    if (file == NULL || !plain_file_name(file)) {
      return mk_error(MK_ERR_FILE,
                      "weight_map: %.200s: %s must be the name of a .safetensors file without '/' or \"..\"", name,
                      mk_json_show(value, shown));
    }
    if (find_shard(checkpoint, file) < checkpoint->shard_count) {
      continue;
    }
    if (checkpoint->shard_count == SHARD_LIMIT) {
      return mk_error(MK_ERR_FILE, "weight_map: lists more than %d files", SHARD_LIMIT);
    }
    MK_TRY(open_shard(checkpoint, directory, file));
  }
  return MK_OK;
}

static mk_status open_index(mk_checkpoint *checkpoint, const char *directory, const char *path, const char *text,
                            size_t length) {
  json_t *root = NULL;
  mk_status status = mk_json_parse(text, length, &root);
  if (status == MK_OK) {
    const json_t *map = mk_json_get(root, "weight_map");
    status = open_listed(checkpoint, directory, map);
    if (status == MK_OK) {
      qsort(checkpoint->tensors, checkpoint->count, sizeof(mk_tensor), by_name);
      status = check_index(checkpoint, map);
    }
  }
  json_decref(root);
  return status == MK_OK ? MK_OK : mk_error_prefix(status, "%s", path);
}

/* No safetensors: say what is there instead. */
static mk_status refuse_directory(const char *directory) {
  static const char *const endings[] = {".bin", ".pth", ".pt", ".gguf", ".h5", ".msgpack"};
  DIR *entries = opendir(directory);
  char found[256] = "";
  for (struct dirent *entry; entries != NULL && found[0] == '\0' && (entry = readdir(entries)) != NULL;) {
    size_t length = strlen(entry->d_name);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
      size_t tail = strlen(endings[i]);
      if (length > tail && strcmp(entry->d_name + length - tail, endings[i]) == 0) {
        snprintf(found, sizeof found, "%s", entry->d_name);
      }
    }
  }
  if (entries != NULL) {
    closedir(entries);
  }
  if (found[0] != '\0') {
    return mk_error(MK_ERR_FILE, "%s: %s is not supported; convert it to model.safetensors", directory, found);
  }
  return mk_error(MK_ERR_FILE, "%s: neither model.safetensors nor model.safetensors.index.json is there", directory);
}

static mk_status open_directory(mk_checkpoint *checkpoint, const char *directory, const char *single,
                                const char *index) {
  if (access(single, F_OK) == 0) {
    MK_TRY(open_shard(checkpoint, directory, "model.safetensors"));
    qsort(checkpoint->tensors, checkpoint->count, sizeof(mk_tensor), by_name);
    return MK_OK;
  }
  char *text = NULL;
  size_t length;
  MK_TRY(mk_file_read(index, true, INDEX_LIMIT, &text, &length));
  mk_status status =
      text == NULL ? refuse_directory(directory) : open_index(checkpoint, directory, index, text, length);
  mk_free(text);
  return status;
}

mk_status mk_checkpoint_open(const char *directory, mk_checkpoint **out) {
  *out = NULL;
  mk_checkpoint *checkpoint = NULL;
  char *single = NULL, *index = NULL;
  mk_status status;
  MK_TRY_GOTO(mk_alloc(1, sizeof *checkpoint, &checkpoint), done);
  MK_TRY_GOTO(mk_path_join(directory, "model.safetensors", &single), done);
  MK_TRY_GOTO(mk_path_join(directory, "model.safetensors.index.json", &index), done);
  MK_TRY_GOTO(open_directory(checkpoint, directory, single, index), done);
  *out = checkpoint;
  checkpoint = NULL;
done:
  mk_free(single);
  mk_free(index);
  mk_checkpoint_close(checkpoint);
  return status;
}

void mk_checkpoint_close(mk_checkpoint *checkpoint) {
  if (checkpoint == NULL) {
    return;
  }
  for (size_t i = 0; i < checkpoint->shard_count; i++) {
    shard *s = &checkpoint->shards[i];
    if (s->fd >= 0) {
      close(s->fd);
    }
    json_decref(s->header);
    mk_free(s->name);
    mk_free(s->path);
  }
  mk_free(checkpoint->shards);
  mk_free(checkpoint->tensors);
  mk_free(checkpoint);
}

size_t mk_checkpoint_count(const mk_checkpoint *checkpoint) { return checkpoint->count; }

const mk_tensor *mk_checkpoint_tensor(const mk_checkpoint *checkpoint, size_t index) {
  return index < checkpoint->count ? &checkpoint->tensors[index] : NULL;
}

const mk_tensor *mk_checkpoint_find(const mk_checkpoint *checkpoint, const char *name) {
  mk_tensor key = {.name = name};
  return checkpoint->count == 0 ? NULL
                                : bsearch(&key, checkpoint->tensors, checkpoint->count, sizeof(mk_tensor), by_name);
}

/* fp32 bits to bf16, round to nearest even; a NaN stays one. */
static inline uint16_t bf16_from_bits(uint32_t bits) {
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  uint32_t quiet = bits >> 16 | 0x40u;
  return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static void convert_f32(const uint32_t *in, size_t count, uint16_t *out) {
  for (size_t i = 0; i < count; i++) {
    out[i] = bf16_from_bits(in[i]);
  }
}

/* In place. A normal half needs its exponent rebiased by 112; a subnormal one, its fraction put behind the leading one of
 * 2^-14, becomes exact when that one is subtracted (a multiplication would do for both, but meets fp32 subnormals, which
 * are slow); infinity and NaN get fp32's full exponent. */
static void convert_f16(uint16_t *values, size_t count) {
  for (size_t i = 0; i < count; i++) {
    union {
      uint32_t bits;
      float value;
    } subnormal;
    const uint32_t half = values[i];
    const uint32_t magnitude = half & 0x7fffu;
    subnormal.bits = (magnitude << 13) + 0x38800000u;
    subnormal.value -= 0x1p-14f;
    uint32_t wide = (magnitude << 13) + 0x38000000u;
    const uint32_t small =
        0u - (magnitude < 0x400u); /* masks: the compiler vectorises no branch around a subtraction */
    const uint32_t infinite = 0u - (magnitude >= 0x7c00u);
    wide = (subnormal.bits & small) | (wide & ~small) | (infinite & 0x7f800000u);
    values[i] = bf16_from_bits(wide | (half & 0x8000u) << 16);
  }
}

const char *mk_checkpoint_path(const mk_checkpoint *checkpoint, const mk_tensor *tensor) {
  return checkpoint->shards[tensor->file].path;
}

mk_status mk_tensor_read(const mk_checkpoint *checkpoint, const mk_tensor *tensor, uint64_t first, uint64_t count,
                         uint16_t *bf16_out) {
  const shard *s = &checkpoint->shards[tensor->file];
  const uint64_t unit = element_bytes(tensor->dtype);
  const uint64_t elements = tensor->bytes / unit;
  if (first > elements || count > elements - first) {
    return mk_error(MK_ERR_USAGE, "%s: tensor %.200s: elements %llu to %llu asked for, it has %llu", s->path,
                    tensor->name, (unsigned long long)first, (unsigned long long)(first + count),
                    (unsigned long long)elements);
  }
  uint64_t offset = tensor->offset + first * unit;
  mk_status status = MK_OK;
  if (tensor->dtype == MK_TENSOR_BF16) {
    status = mk_file_pread(s->fd, s->path, offset, (size_t)(count * 2), bf16_out);
  }
  uint32_t wide[CHUNK];
  for (uint64_t done = 0; tensor->dtype != MK_TENSOR_BF16 && status == MK_OK && done < count;) {
    size_t part = count - done < CHUNK ? (size_t)(count - done) : CHUNK;
    if (tensor->dtype == MK_TENSOR_F16) {
      status = mk_file_pread(s->fd, s->path, offset, part * 2, bf16_out + done);
      convert_f16(bf16_out + done, status == MK_OK ? part : 0);
    } else {
      status = mk_file_pread(s->fd, s->path, offset, part * 4, wide);
      convert_f32(wide, status == MK_OK ? part : 0, bf16_out + done);
    }
    done += part;
    offset += part * unit;
  }
  return status == MK_OK ? MK_OK : mk_error_prefix(status, "tensor %.200s", tensor->name);
}
