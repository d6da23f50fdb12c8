/* See load.h. */
#include "engine/load.h"

#include <stdio.h>
#include <string.h>

#include "engine/cache.h"
#include "engine/synth_weights.h"
#include "engine/weights.h"
#include "vm/file.h"

typedef struct loader {
  const mk_load *load;
  mk_gpu_upload *upload; /* GPU alone, but not for hash weights, which are made there */
  uint64_t total;        /* bytes of all weights that this process has */
  uint64_t done;         /* of those that are complete */
  uint64_t partly;       /* of the checkpoint, of the weight at hand */
  uint64_t bytes;        /* of the weight at hand */
} loader;

static mk_status interrupted(const mk_load *load) {
  return load->cancel != NULL && *load->cancel != 0
             ? mk_error(MK_ERR_RUNTIME, "interrupted while the weights were loaded")
             : MK_OK;
}

static void show(const loader *l, uint64_t done) {
  if (l->load->progress != NULL) {
    l->load->progress(l->load->user, done, l->total);
  }
}

static void notice(const mk_load *load, const char *text) {
  char line[1024];
  if (load->notice != NULL) {
    snprintf(line, sizeof line, "%s; %s", mk_error_message(), text);
    load->notice(load->user, line);
  }
}

static size_t buffer_of(const mk_load *load, const mk_weight *weight) {
  return (size_t)(weight - load->graph->weights); /* compile.h */
}

/* The bytes of a weight that this process has: mk_gpu_next_here. */
static uint64_t next_here(const mk_load *load, size_t buffer, uint64_t *offset) {
  return load->gpu != NULL ? mk_gpu_next_here(load->gpu, buffer, offset)
                           : load->program->buffers[buffer].bytes - *offset;
}

static uint64_t bytes_here(const mk_load *load, size_t buffer) {
  uint64_t bytes = 0, offset = 0;
  for (uint64_t run; (run = next_here(load, buffer, &offset)) != 0; offset += run) {
    bytes += run;
  }
  return bytes;
}

/* A weight of fp32 has twice the bytes that it is packed into: so it counts for one byte less than all until it is
 * complete. */
static mk_status tick(void *user, uint64_t bytes) {
  loader *l = user;
  l->partly += bytes;
  show(l, l->done + (l->partly < l->bytes ? l->partly : l->bytes - 1));
  return interrupted(l->load);
}

static mk_status make_weight(loader *l, const mk_weight *weight, size_t buffer) {
  const mk_load *load = l->load;
  if (load->gpu != NULL) {
    return load->checkpoint == NULL
               ? mk_synth_weights_fill_gpu(load->graph, weight, load->synth_seed, load->gpu, buffer)
               : mk_weights_upload(load->checkpoint, load->graph, weight, l->upload, buffer, tick, l);
  }
  void *memory = mk_cpu_memory(load->cpu, buffer);
  return load->checkpoint == NULL ? mk_synth_weights_fill(load->graph, weight, load->synth_seed, memory)
                                  : mk_weights_pack(load->checkpoint, load->graph, weight, memory, tick, l);
}

static mk_status from_source(loader *l) {
  const mk_load *load = l->load;
  for (size_t i = 0; i < load->graph->weight_count; i++) {
    size_t buffer = buffer_of(load, &load->graph->weights[i]);
    l->bytes = bytes_here(load, buffer);
    l->partly = 0;
    MK_TRY(interrupted(load));
    MK_TRY(make_weight(l, &load->graph->weights[i], buffer));
    l->done += l->bytes;
    show(l, l->done);
  }
  return MK_OK;
}

/* The chunks of a packed copy: weight by weight, in the order of the graph, of each what this process has. */
typedef struct piece {
  size_t weight, buffer;
  uint64_t offset;
  size_t bytes;
} piece;

static bool next_piece(const mk_load *load, piece *p) {
  p->offset += p->bytes;
  for (;; p->weight++, p->offset = 0) {
    if (p->weight == load->graph->weight_count) {
      return false;
    }
    p->buffer = buffer_of(load, &load->graph->weights[p->weight]);
    uint64_t left = next_here(load, p->buffer, &p->offset);
    if (left != 0) {
      p->bytes = left < MK_CACHE_CHUNK ? (size_t)left : MK_CACHE_CHUNK;
      return true;
    }
  }
}

static uint64_t count_pieces(const mk_load *load) {
  uint64_t count = 0;
  for (piece p = {0}; next_piece(load, &p);) {
    count++;
  }
  return count;
}

/* A rank that is a process has a copy of its own, of its share of the weights: ranks write and read theirs side by
 * side, and a copy is found again by whoever has that share. All weights have the key of the model. */
static uint64_t key_of_share(const loader *l, uint64_t key) {
  uint64_t all = 0;
  for (size_t i = 0; i < l->load->graph->weight_count; i++) {
    all += l->load->program->buffers[buffer_of(l->load, &l->load->graph->weights[i])].bytes;
  }
  for (piece p = {0}; all != l->total && next_piece(l->load, &p);) {
    const uint64_t parts[] = {key, p.weight, p.offset, p.bytes};
    key = mk_fnv1a(parts, sizeof parts);
  }
  return key;
}

/* *good: the copy's chunk is in place, or on its way to the GPU; else the copy is no good, and mk_error_message says
 * why. */
static mk_status take_piece(loader *l, mk_cache *cache, const piece *p, bool *good) {
  const mk_load *load = l->load;
  void *memory = NULL;
  MK_TRY(interrupted(load));
  if (load->gpu != NULL) {
    MK_TRY(mk_gpu_upload_begin(l->upload, &memory));
  } else {
    memory = (uint8_t *)mk_cpu_memory(load->cpu, p->buffer) + p->offset;
  }
  *good = mk_cache_read(cache, memory, p->bytes) == MK_OK;
  if (*good && load->gpu != NULL) {
    MK_TRY(mk_gpu_upload_bytes(l->upload, p->buffer, p->offset, p->bytes));
  }
  return MK_OK;
}

/* Clears what a bad chunk has left in the padding of the CPU's buffers. A GPU gets good chunks alone. */
static void clear_cpu(const mk_load *load) {
  for (size_t i = 0; load->cpu != NULL && i < load->graph->weight_count; i++) {
    size_t buffer = buffer_of(load, &load->graph->weights[i]);
    memset(mk_cpu_memory(load->cpu, buffer), 0, load->program->buffers[buffer].bytes);
  }
}

static mk_status from_copy(loader *l, mk_cache *cache, bool *good) {
  *good = true;
  for (piece p = {0}; *good && next_piece(l->load, &p);) {
    MK_TRY(take_piece(l, cache, &p, good));
    l->done += p.bytes;
    if (*good) {
      show(l, l->done);
    }
  }
  if (!*good) {
    notice(l->load, "packing the weights again");
    clear_cpu(l->load);
    l->done = 0;
  }
  return MK_OK;
}

static mk_status read_copy(loader *l, const char *path, uint64_t key, bool *good) {
  mk_cache *cache;
  *good = false;
  if (mk_cache_open(path, key, count_pieces(l->load), l->total, &cache) != MK_OK) {
    notice(l->load, "packing the weights again");
    return MK_OK;
  }
  if (cache == NULL) {
    return MK_OK;
  }
  mk_status status = from_copy(l, cache, good);
  mk_cache_close(cache);
  return status;
}

/* *good as in take_piece. */
static mk_status put_piece(const mk_load *load, mk_cache *cache, const piece *p, void *memory, bool *good) {
  const void *from = memory;
  MK_TRY(interrupted(load));
  if (load->gpu != NULL) {
    MK_TRY(mk_gpu_read(load->gpu, p->buffer, p->offset, memory, p->bytes));
  } else {
    from = (const uint8_t *)mk_cpu_memory(load->cpu, p->buffer) + p->offset;
  }
  *good = mk_cache_write(cache, from, p->bytes) == MK_OK;
  return MK_OK;
}

static mk_status fill_copy(const mk_load *load, mk_cache *cache, bool *good) {
  void *memory;
  mk_status status = MK_OK;
  MK_TRY(mk_alloc(load->gpu == NULL ? 0 : MK_CACHE_CHUNK, 1, &memory));
  *good = true;
  for (piece p = {0}; status == MK_OK && *good && next_piece(load, &p);) {
    status = put_piece(load, cache, &p, memory, good);
  }
  mk_free(memory);
  return status;
}

static mk_status write_copy(const loader *l, const char *path, uint64_t key) {
  const mk_load *load = l->load;
  mk_cache *cache;
  mk_status status = MK_OK;
  bool good = mk_cache_create(load->cache, path, key, count_pieces(load), l->total, &cache) == MK_OK;
  if (good) {
    status = fill_copy(load, cache, &good);
    good = good && status == MK_OK && mk_cache_finish(cache) == MK_OK;
    mk_cache_close(cache);
  }
  if (!good && status == MK_OK) {
    notice(load, "going on without a packed copy");
  }
  return status;
}

static mk_status through_copy(loader *l) {
  uint64_t key;
  char *path;
  bool good;
  MK_TRY(mk_cache_key(l->load->checkpoint, l->load->graph, &key));
  key = key_of_share(l, key);
  MK_TRY(mk_cache_path(l->load->cache, key, &path));
  mk_status status = read_copy(l, path, key, &good);
  if (status == MK_OK && !good) {
    status = from_source(l);
    if (status == MK_OK && l->upload != NULL) {
      status = mk_gpu_upload_end(l->upload);
    }
    if (status == MK_OK) {
      status = write_copy(l, path, key);
    }
  }
  mk_free(path);
  return status;
}

mk_status mk_load_weights(const mk_load *load) {
  loader l = {.load = load};
  bool copied = load->cache != NULL && load->checkpoint != NULL;
  for (size_t i = 0; i < load->graph->weight_count; i++) {
    l.total += bytes_here(load, buffer_of(load, &load->graph->weights[i]));
  }
  if (load->gpu != NULL && load->checkpoint != NULL) {
    MK_TRY(mk_gpu_upload_new(load->gpu, 0, &l.upload));
  }
  show(&l, 0);
  mk_status status = copied ? through_copy(&l) : from_source(&l);
  if (status == MK_OK && l.upload != NULL) {
    status = mk_gpu_upload_end(l.upload);
  }
  mk_gpu_upload_free(l.upload);
  return status;
}
