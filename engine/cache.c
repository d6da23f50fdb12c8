/* See cache.h. */
#include "engine/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/json.h"
#include "models/llama.h"
#include "vm/draft.h"

enum {
  VERSION = 3,
  HEADER = 64,
  ALIGNMENT = 4096,
  SAMPLE = 1024,
  SYNC_CHUNKS = 64, /* so that no call waits long for a disk: other ranks want to hear of their writer */
};

static const char kMagic[8] = {'m', 'k', 'v', 'm', 'p', 'a', 'c', 'k'};

typedef struct header {
  char magic[8];
  uint64_t version, key, chunks, payload, check;
  uint64_t unused[2];
} header;

struct mk_cache {
  char *path;
  mk_draft *folder, *draft; /* while it is written */
  int fd;                   /* while it is read */
  uint64_t *table;
  header header;
  uint64_t next, offset; /* chunk, byte of the file */
};

/* Four lanes of xor, rotation and multiplication by an odd number: a step is one to one, so a changed word changes its
 * lane. */
static uint64_t mix(uint64_t lane, uint64_t word) {
  lane ^= word;
  return (lane << 29 | lane >> 35) * UINT64_C(0x9e3779b97f4a7c15);
}

static uint64_t hash(uint64_t seed, const void *data, size_t bytes) {
  const uint8_t *at = data;
  uint64_t lanes[4] = {seed, ~seed, seed + 1, bytes}, words[4];
  for (; bytes >= sizeof words; bytes -= sizeof words, at += sizeof words) {
    memcpy(words, at, sizeof words);
    for (int i = 0; i < 4; i++) {
      lanes[i] = mix(lanes[i], words[i]);
    }
  }
  memset(words, 0, sizeof words);
  memcpy(words, at, bytes);
  uint64_t all = 0;
  for (int i = 0; i < 4; i++) {
    all = mix(all, mix(lanes[i], words[i]));
  }
  return all ^ all >> 32;
}

static uint64_t hash_text(uint64_t seed, const char *text) { return hash(seed, text, strlen(text) + 1); }

static uint64_t hash_number(uint64_t seed, uint64_t number) { return hash(seed, &number, sizeof number); }

static uint64_t hash_weight(uint64_t key, const mk_weight *weight) {
  key = hash_text(key, weight->name);
  key = hash_number(key, weight->pack);
  key = hash_number(key, (uint64_t)weight->rows << 32 | weight->cols);
  key = hash_number(key, (uint64_t)weight->rotary << 32 | weight->extras);
  key = hash_number(key, (uint64_t)weight->form.codes << 32 | weight->form.scale);
  key = hash_number(key, (uint64_t)weight->form.scale_cols << 32 | weight->form.zeros);
  for (uint32_t s = 0; s < weight->source_count; s++) {
    key = hash_text(key, weight->sources[s].tensor);
    key = hash_number(key, weight->sources[s].rows);
    key = hash_number(key, weight->sources[s].first);
    key = hash_number(key, weight->sources[s].quantised);
  }
  return key;
}

static mk_status hash_frequencies(const mk_graph *graph, uint64_t *key) {
  size_t count = graph->config.head_dim / 2;
  float *frequencies;
  MK_TRY(mk_alloc(count, sizeof *frequencies, &frequencies));
  mk_llama_frequencies(&graph->config, frequencies);
  *key = hash(*key, frequencies, count * sizeof *frequencies);
  if (graph->config.rope_local_theta != 0) {
    mk_llama_local_frequencies(&graph->config, frequencies);
    *key = hash(*key, frequencies, count * sizeof *frequencies);
  }
  *key =
      hash(*key, &graph->config.rope_attention, sizeof graph->config.rope_attention); /* may be in a vector of gains */
  mk_free(frequencies);
  return MK_OK;
}

static mk_status hash_tensor(const mk_checkpoint *checkpoint, const mk_tensor *tensor, uint64_t *key) {
  const char *path = mk_checkpoint_path(checkpoint, tensor), *name = strrchr(path, '/');
  struct stat file;
  if (stat(path, &file) != 0) {
    return mk_error(MK_ERR_RUNTIME, "%s: %s", path, strerror(errno));
  }
  uint64_t count = tensor->bytes / mk_tensor_unit(tensor);
  uint32_t sample[SAMPLE] = {0};
  const uint64_t most = sizeof sample / mk_tensor_unit(tensor);
  count = count < most ? count : most;
  MK_TRY(mk_tensor_read_raw(checkpoint, tensor, 0, count, sample));
  const uint64_t numbers[] = {(uint64_t)file.st_size,
                              (uint64_t)file.st_mtim.tv_sec,
                              (uint64_t)file.st_mtim.tv_nsec,
                              tensor->dtype,
                              tensor->offset,
                              tensor->bytes};
  *key = hash_text(hash_text(*key, name == NULL ? path : name + 1), tensor->name);
  *key = hash(*key, tensor->shape, sizeof tensor->shape);
  *key = hash(*key, numbers, sizeof numbers);
  *key = hash(*key, sample, sizeof sample);
  return MK_OK;
}

mk_status mk_cache_key(const mk_checkpoint *checkpoint, const mk_graph *graph, uint64_t *key) {
  *key = VERSION;
  for (size_t i = 0; i < graph->weight_count; i++) {
    *key = hash_weight(*key, &graph->weights[i]);
  }
  *key = hash_number(*key, graph->config.head_dim);
  MK_TRY(hash_frequencies(graph, key));
  for (size_t i = 0; i < mk_checkpoint_count(checkpoint); i++) {
    MK_TRY(hash_tensor(checkpoint, mk_checkpoint_tensor(checkpoint, i), key));
  }
  return MK_OK;
}

mk_status mk_cache_path(const char *folder, uint64_t key, char **path) {
  size_t size = strlen(folder) + 40;
  MK_TRY(mk_alloc(size, 1, path));
  snprintf(*path, size, "%s/mkvm-%016" PRIx64 ".packed", folder, key);
  return MK_OK;
}

static uint64_t data_start(uint64_t chunks) {
  return (HEADER + chunks * sizeof(uint64_t) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint64_t check_of(const mk_cache *cache) {
  uint64_t check = hash(0, &cache->header, offsetof(header, check));
  return hash(check, cache->table, cache->header.chunks * sizeof *cache->table);
}

/* fd (-1: none) is the cache's from here on, also on failure. */
static mk_status new_cache(const char *path, int fd, uint64_t key, uint64_t chunks, uint64_t payload, mk_cache **out) {
  mk_cache *cache = NULL;
  mk_status status = mk_alloc(1, sizeof *cache, &cache);
  if (status != MK_OK) {
    if (fd >= 0) {
      close(fd);
    }
    return status;
  }
  cache->fd = fd;
  cache->header = (header){.version = VERSION, .key = key, .chunks = chunks, .payload = payload};
  cache->offset = data_start(chunks);
  memcpy(cache->header.magic, kMagic, sizeof kMagic);
  *out = cache;
  MK_TRY_GOTO(mk_strdup(path, &cache->path), failed);
  MK_TRY_GOTO(mk_alloc(chunks, sizeof *cache->table, &cache->table), failed);
  return MK_OK;
failed:
  mk_cache_close(cache);
  *out = NULL;
  return status;
}

static mk_status changed(const mk_cache *cache, const char *what) {
  return mk_error(MK_ERR_FILE, "%s: %s", cache->path, what);
}

static mk_status read_header(mk_cache *cache, uint64_t size) {
  header got;
  if (size != cache->offset + cache->header.payload) {
    return mk_error(MK_ERR_FILE, "%s: has %" PRIu64 " bytes, not %" PRIu64 ": it is cut off, or no packed copy",
                    cache->path, size, cache->offset + cache->header.payload);
  }
  MK_TRY(mk_file_pread(cache->fd, cache->path, 0, sizeof got, &got));
  if (memcmp(&got, &cache->header, offsetof(header, check)) != 0) {
    return changed(cache, "its header is not that of this model's packed copy");
  }
  MK_TRY(mk_file_pread(cache->fd, cache->path, HEADER, cache->header.chunks * sizeof *cache->table, cache->table));
  return got.check == check_of(cache) ? MK_OK : changed(cache, "its header does not agree with its checksum");
}

mk_status mk_cache_open(const char *path, uint64_t key, uint64_t chunks, uint64_t payload, mk_cache **out) {
  *out = NULL;
  struct stat file;
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* O_NONBLOCK: a FIFO must not hold us up */
  if (fd < 0) {
    return errno == ENOENT ? MK_OK : mk_error(MK_ERR_RUNTIME, "%s: cannot be opened: %s", path, strerror(errno));
  }
  if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode)) {
    close(fd);
    return mk_error(MK_ERR_FILE, "%s: is not a regular file", path);
  }
  MK_TRY(new_cache(path, fd, key, chunks, payload, out));
  mk_status status = read_header(*out, (uint64_t)file.st_size);
  if (status != MK_OK) {
    mk_cache_close(*out);
    *out = NULL;
  }
  return status;
}

/* Both sides go through the same chunks, so one that is too many is a mistake of the caller. */
static mk_status check_chunk(const mk_cache *cache, size_t bytes) {
  uint64_t end = data_start(cache->header.chunks) + cache->header.payload;
  if (cache->next == cache->header.chunks || bytes > MK_CACHE_CHUNK || bytes > end - cache->offset) {
    return mk_error(MK_ERR_USAGE, "%s: a chunk of %zu bytes does not belong there", cache->path, bytes);
  }
  return MK_OK;
}

mk_status mk_cache_read(mk_cache *cache, void *memory, size_t bytes) {
  MK_TRY(check_chunk(cache, bytes));
  MK_TRY(mk_file_pread(cache->fd, cache->path, cache->offset, bytes, memory));
  if (hash(cache->next, memory, bytes) != cache->table[cache->next]) {
    return mk_error(MK_ERR_FILE, "%s: the %zu bytes at %" PRIu64 " do not agree with their checksum", cache->path,
                    bytes, cache->offset);
  }
  cache->next++;
  cache->offset += bytes;
  return MK_OK;
}

mk_status mk_cache_create(const char *folder, const char *path, uint64_t key, uint64_t chunks, uint64_t payload,
                          mk_cache **out) {
  mk_cache *cache;
  *out = NULL;
  MK_TRY(new_cache(path, -1, key, chunks, payload, &cache));
  mk_status status = mk_draft_directory(folder, &cache->folder);
  if (status == MK_OK) {
    status = mk_draft_open(path, &cache->draft);
  }
  if (status == MK_OK) {
    status = mk_draft_reserve(cache->draft, cache->offset + payload);
  }
  if (status != MK_OK) {
    mk_cache_close(cache);
    return status;
  }
  *out = cache;
  return MK_OK;
}

mk_status mk_cache_write(mk_cache *cache, const void *memory, size_t bytes) {
  MK_TRY(check_chunk(cache, bytes));
  MK_TRY(mk_draft_write_at(cache->draft, cache->offset, memory, bytes));
  cache->table[cache->next] = hash(cache->next, memory, bytes);
  cache->next++;
  cache->offset += bytes;
  return cache->next % SYNC_CHUNKS == 0 ? mk_draft_sync(cache->draft) : MK_OK;
}

mk_status mk_cache_finish(mk_cache *cache) {
  const uint64_t chunks = cache->header.chunks;
  if (cache->next != chunks || cache->offset != data_start(chunks) + cache->header.payload) {
    return mk_error(MK_ERR_USAGE, "%s: %" PRIu64 " of %" PRIu64 " chunks are written", cache->path, cache->next,
                    chunks);
  }
  cache->header.check = check_of(cache);
  MK_TRY(mk_draft_write_at(cache->draft, 0, &cache->header, sizeof cache->header));
  MK_TRY(mk_draft_write_at(cache->draft, HEADER, cache->table, chunks * sizeof *cache->table));
  MK_TRY(mk_draft_sync(cache->draft));
  mk_draft *const drafts[] = {cache->folder, cache->draft};
  cache->folder = cache->draft = NULL;
  return mk_drafts_finish(drafts, 2);
}

void mk_cache_close(mk_cache *cache) {
  if (cache == NULL) {
    return;
  }
  mk_draft_drop(cache->draft);
  mk_draft_drop(cache->folder);
  if (cache->fd >= 0) {
    close(cache->fd);
  }
  mk_free(cache->path);
  mk_free(cache->table);
  mk_free(cache);
}
