/* See checkpoint.h. */
#include "models/checkpoint.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/json.h"
#include "models/safetensors_read.h"

enum {
  INDEX_LIMIT = 100000000, /* bytes */
  CHUNK = 16384,           /* elements converted at a time, small enough for the L2 cache */
};

typedef struct shard {
  char *name, *path;
  int fd;
  json_t *names; /* the header, which owns the names of its tensors */
} shard;

struct mk_checkpoint {
  char *source; /* the weights or the index */
  shard *shards;
  size_t shard_count, shard_capacity;
  mk_tensor *tensors; /* sorted by name once open */
  size_t count, capacity;
};

static uint64_t element_bytes(mk_tensor_dtype dtype) { return mk_tensor_dtype_bytes(dtype); }

static int by_name(const void *left, const void *right) {
  const mk_tensor *a = left, *b = right;
  return strcmp(a->name, b->name);
}

/* Takes over what the header says; offsets count from the start of the file from here on. */
static mk_status add_tensors(mk_checkpoint *checkpoint, size_t file, const mk_safetensors_header *header,
                             uint64_t data_start) {
  size_t first = checkpoint->count;
  MK_TRY(mk_grow(&checkpoint->tensors, &checkpoint->capacity, first + header->count, sizeof(mk_tensor)));
  for (size_t i = 0; i < header->count; i++) {
    mk_tensor *tensor = &checkpoint->tensors[first + i];
    *tensor = header->tensors[i];
    tensor->file = (uint32_t)file;
    tensor->offset += data_start;
  }
  checkpoint->count += header->count;
  return MK_OK;
}

static mk_status read_header(mk_checkpoint *checkpoint, size_t file, uint64_t size) {
  shard *s = &checkpoint->shards[file];
  uint8_t lead[MK_SAFETENSORS_LEAD] = {0};
  size_t length;
  MK_TRY(mk_file_pread(s->fd, "header", 0, size < sizeof lead ? (size_t)size : sizeof lead, lead));
  MK_TRY(mk_safetensors_header_length(lead, size, &length));
  char *text = NULL;
  mk_safetensors_header header = {0};
  uint64_t data_start = sizeof lead + length;
  mk_status status;
  MK_TRY_GOTO(mk_alloc(length, 1, &text), done);
  MK_TRY_GOTO(mk_file_pread(s->fd, "header", sizeof lead, length, text), done);
  MK_TRY_GOTO(mk_safetensors_header_parse(text, length, size - data_start, &header), done);
  MK_TRY_GOTO(add_tensors(checkpoint, file, &header, data_start), done);
  s->names = json_incref(header.root);
done:
  mk_safetensors_header_free(&header);
  mk_free(text);
  return status;
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

static mk_status open_listed(mk_checkpoint *checkpoint, const char *directory, const mk_safetensors_index *index) {
  for (size_t i = 0; i < index->count; i++) {
    MK_TRY(open_shard(checkpoint, directory, index->files[i]));
  }
  qsort(checkpoint->tensors, checkpoint->count, sizeof(mk_tensor), by_name);
  return check_index(checkpoint, index->map);
}

static mk_status open_index(mk_checkpoint *checkpoint, const char *directory, const char *path, const char *text,
                            size_t length) {
  mk_safetensors_index index;
  mk_status status = mk_safetensors_index_parse(text, length, &index);
  if (status == MK_OK) {
    status = open_listed(checkpoint, directory, &index);
    mk_safetensors_index_free(&index);
  }
  return status == MK_OK ? MK_OK : mk_error_prefix(status, "%s", path);
}

enum { ENTRY_SIZE = 256 };

/* The first file of weights in another format; "": there is none. */
static void find_other(const char *directory, char found[ENTRY_SIZE]) {
  static const char *const endings[] = {".bin", ".pth", ".pt", ".gguf", ".h5", ".msgpack"};
  DIR *entries = opendir(directory);
  found[0] = '\0';
  for (struct dirent *entry; entries != NULL && found[0] == '\0' && (entry = readdir(entries)) != NULL;) {
    size_t length = strlen(entry->d_name);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
      size_t tail = strlen(endings[i]);
      if (length > tail && strcmp(entry->d_name + length - tail, endings[i]) == 0 &&
          strcmp(entry->d_name, "training_args.bin") != 0) {
        snprintf(found, ENTRY_SIZE, "%s", entry->d_name);
      }
    }
  }
  if (entries != NULL) {
    closedir(entries);
  }
}

bool mk_checkpoint_is_other(const char *directory) {
  char found[ENTRY_SIZE];
  find_other(directory, found);
  return found[0] != '\0';
}

/* No safetensors: say what is there instead. */
static mk_status refuse_directory(const char *directory) {
  char found[ENTRY_SIZE];
  find_other(directory, found);
  if (found[0] != '\0') {
    return mk_error(MK_ERR_FILE, "%s: %s is not supported; convert it to model.safetensors", directory, found);
  }
  return mk_error(MK_ERR_FILE, "%s: neither model.safetensors nor model.safetensors.index.json is there", directory);
}

static mk_status open_single(mk_checkpoint *checkpoint, const char *directory) {
  MK_TRY(open_shard(checkpoint, directory, "model.safetensors"));
  qsort(checkpoint->tensors, checkpoint->count, sizeof(mk_tensor), by_name);
  return MK_OK;
}

static mk_status open_shards(mk_checkpoint *checkpoint, const char *directory) {
  char *text = NULL;
  size_t length;
  MK_TRY(mk_path_join(directory, "model.safetensors.index.json", &checkpoint->source));
  MK_TRY(mk_file_read(checkpoint->source, true, INDEX_LIMIT, &text, &length));
  mk_status status =
      text == NULL ? refuse_directory(directory) : open_index(checkpoint, directory, checkpoint->source, text, length);
  mk_free(text);
  return status;
}

mk_status mk_checkpoint_open(const char *directory, mk_checkpoint **out) {
  *out = NULL;
  mk_checkpoint *checkpoint;
  MK_TRY(mk_alloc(1, sizeof *checkpoint, &checkpoint));
  mk_status status = mk_path_join(directory, "model.safetensors", &checkpoint->source);
  if (status == MK_OK && mk_file_is_there(checkpoint->source)) {
    status = open_single(checkpoint, directory);
  } else if (status == MK_OK) {
    mk_free(checkpoint->source);
    checkpoint->source = NULL;
    status = open_shards(checkpoint, directory);
  }
  if (status != MK_OK) {
    mk_checkpoint_close(checkpoint);
    return status;
  }
  *out = checkpoint;
  return MK_OK;
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
    json_decref(s->names);
    mk_free(s->name);
    mk_free(s->path);
  }
  mk_free(checkpoint->source);
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

/* In place. A normal half needs its exponent rebiased by 112; a subnormal one, its fraction put below the leading one
 * of 2^-14, becomes exact when that one is subtracted (a multiplication would do for both, but meets fp32 subnormals,
 * which are slow); infinity and NaN get fp32's full exponent. */
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

const char *mk_checkpoint_source(const mk_checkpoint *checkpoint) { return checkpoint->source; }

uint64_t mk_tensor_unit(const mk_tensor *tensor) { return element_bytes(tensor->dtype); }

static mk_status check_range(const mk_checkpoint *checkpoint, const mk_tensor *tensor, uint64_t first, uint64_t count) {
  const uint64_t elements = tensor->bytes / element_bytes(tensor->dtype);
  if (first > elements || count > elements - first) {
    return mk_error(MK_ERR_USAGE, "%s: tensor %.200s: elements %llu to %llu asked for, it has %llu",
                    mk_checkpoint_path(checkpoint, tensor), tensor->name, (unsigned long long)first,
                    (unsigned long long)(first + count), (unsigned long long)elements);
  }
  return MK_OK;
}

mk_status mk_tensor_read_raw(const mk_checkpoint *checkpoint, const mk_tensor *tensor, uint64_t first, uint64_t count,
                             void *out) {
  const shard *s = &checkpoint->shards[tensor->file];
  const uint64_t unit = element_bytes(tensor->dtype);
  MK_TRY(check_range(checkpoint, tensor, first, count));
  mk_status status = mk_file_pread(s->fd, s->path, tensor->offset + first * unit, (size_t)(count * unit), out);
  return status == MK_OK ? MK_OK : mk_error_prefix(status, "tensor %.200s", tensor->name);
}

mk_status mk_tensor_read(const mk_checkpoint *checkpoint, const mk_tensor *tensor, uint64_t first, uint64_t count,
                         uint16_t *bf16_out) {
  const shard *s = &checkpoint->shards[tensor->file];
  const uint64_t unit = element_bytes(tensor->dtype);
  MK_TRY(check_range(checkpoint, tensor, first, count));
  if (tensor->dtype > MK_TENSOR_F32) {
    return mk_error(MK_ERR_USAGE, "tensor %.200s: is %s, which bf16 is not made of", tensor->name,
                    mk_tensor_dtype_name(tensor->dtype));
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
