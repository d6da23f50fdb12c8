/* See upload.h. Everything goes through the machine's stream, in order: the copy into a slot's device memory, then the
 * kernel that reads it. So the host waits for nothing but an event: the one after the last use of the slot that it
 * fills next. */
#include "vm/gpu/upload.h"

#include "vm/gpu/group_internal.h"
#include "vm/gpu/image.h"

enum { SLOTS = 2, USUAL_ROOM = 32 << 20, BLOCKS_PER_SM = 8 };

typedef struct slot {
  void *pinned;
  mk_cu_address staged;
  mk_cu_event_ref taken; /* the GPU has read `pinned` */
  bool used;
} slot;

/* Of several ranks in this process, each has an upload, and the first one's has the pinned memory that is filled. */
struct mk_gpu_upload {
  mk_gpu *gpu;                               /* of one rank */
  mk_gpu_upload *of_rank[MK_GPU_MOST_RANKS]; /* of the first one: all of them, itself first */
  bool first;
  size_t room;
  mk_cu_module_ref module;
  mk_cu_function_ref kernel;
  slot slots[SLOTS];
  uint32_t current; /* the slot that begin gave out last */
};

static mk_status open_slot(mk_gpu_upload *upload, slot *s) {
  const mk_gpu *gpu = upload->gpu;
  if (upload->first) {
    MK_TRY(mk_gpu_check(gpu, gpu->driver->host_new(&s->pinned, upload->room, 0), "allocating pinned memory"));
  }
  MK_TRY(mk_gpu_check(gpu, gpu->driver->memory_new(&s->staged, upload->room), "allocating memory to load through"));
  return mk_gpu_check(gpu, gpu->driver->event_new(&s->taken, MK_CU_EVENT_NO_TIMING), "making an event");
}

static mk_status open_upload(mk_gpu_upload *upload) {
  MK_TRY(mk_gpu_enter(upload->gpu));
  MK_TRY(mk_gpu_load(upload->gpu, MK_GPU_IMAGE_PACK, "mk_pack_rows", 0, &upload->module, &upload->kernel));
  for (uint32_t i = 0; i < SLOTS; i++) {
    MK_TRY(open_slot(upload, &upload->slots[i]));
  }
  return MK_OK;
}

mk_status mk_gpu_upload_new(mk_gpu *gpu, size_t room, mk_gpu_upload **out) {
  mk_gpu_upload *first = NULL;
  mk_status status = MK_OK;
  *out = NULL;
  for (uint32_t r = 0; r < gpu->here && status == MK_OK; r++) {
    mk_gpu_upload *upload = NULL;
    status = mk_alloc(1, sizeof *upload, &upload);
    if (status == MK_OK) {
      first = r == 0 ? upload : first;
      upload->first = r == 0;
      first->of_rank[r] = upload;
      upload->gpu = gpu->of_rank[r];
      upload->room = room == 0 ? (size_t)USUAL_ROOM : room;
      status = mk_gpu_of_rank(upload->gpu, open_upload(upload));
    }
  }
  if (status != MK_OK) {
    mk_gpu_upload_free(first);
    return status;
  }
  *out = first;
  return MK_OK;
}

static void free_rank(mk_gpu_upload *upload) {
  const mk_gpu *gpu = upload->gpu;
  const mk_driver *cu = gpu->driver;
  if (!gpu->lost && cu->context_set(gpu->context) == 0) {
    (void)cu->stream_wait(gpu->stream); /* what is under way reads the slots */
    for (uint32_t i = 0; i < SLOTS; i++) {
      slot *s = &upload->slots[i];
      if (s->taken != NULL) {
        (void)cu->event_free(s->taken);
      }
      if (s->staged != 0) {
        (void)cu->memory_free(s->staged);
      }
      if (s->pinned != NULL) {
        (void)cu->host_free(s->pinned);
      }
    }
    if (upload->module != NULL) {
      (void)cu->module_unload(upload->module);
    }
  }
  mk_free(upload);
}

void mk_gpu_upload_free(mk_gpu_upload *upload) {
  for (uint32_t r = upload == NULL ? 0 : MK_GPU_MOST_RANKS; r-- > 0;) {
    if (upload->of_rank[r] != NULL) {
      free_rank(upload->of_rank[r]); /* the first one, which names the others, last */
    }
  }
}

size_t mk_gpu_upload_room(const mk_gpu_upload *upload) { return upload->room; }

/* Goes on to the next slot, when the rank's GPU has taken in what lay there. */
static mk_status begin_rank(mk_gpu_upload *upload) {
  const mk_gpu *gpu = upload->gpu;
  MK_TRY(mk_gpu_enter(gpu));
  upload->current = (upload->current + 1) % SLOTS;
  slot *s = &upload->slots[upload->current];
  return s->used ? mk_gpu_check(gpu, gpu->driver->event_wait(s->taken), "waiting for weights to be copied") : MK_OK;
}

mk_status mk_gpu_upload_begin(mk_gpu_upload *upload, void **memory) {
  MK_TRY(mk_gpu_still_here(upload->gpu));
  for (uint32_t r = 0; r < upload->gpu->here; r++) {
    MK_TRY(mk_gpu_of_rank(upload->of_rank[r]->gpu, begin_rank(upload->of_rank[r])));
  }
  *memory = upload->slots[upload->current].pinned;
  return MK_OK;
}

static mk_status find_weight(const mk_gpu_upload *upload, size_t buffer, const mk_buffer **out) {
  const mk_program *program = upload->gpu->program;
  if (buffer >= program->buffer_count) {
    return mk_error(MK_ERR_USAGE, "there is no buffer %zu; the program has %zu", buffer, program->buffer_count);
  }
  *out = &program->buffers[buffer];
  return (*out)->kind == MK_KIND_WEIGHT ? MK_OK : mk_error(MK_ERR_USAGE, "buffer %s holds no weights", (*out)->name);
}

static mk_status copy(mk_gpu_upload *upload, mk_cu_address to, const void *from, size_t bytes) {
  const mk_gpu *gpu = upload->gpu;
  slot *s = &upload->slots[upload->current];
  MK_TRY(mk_gpu_check(gpu, gpu->driver->upload_async(to, from, bytes, gpu->stream), "copying weights to the GPU"));
  MK_TRY(mk_gpu_check(gpu, gpu->driver->event_record(s->taken, gpu->stream), "copying weights to the GPU"));
  s->used = true;
  return MK_OK;
}

typedef struct uploaded { /* bytes of a weight, from byte `offset` on */
  mk_gpu_upload *upload;
  const uint8_t *from;
  uint64_t offset;
} uploaded;

static mk_status copy_run(void *user, mk_cu_address at, uint64_t from, uint64_t bytes) {
  const uploaded *u = user;
  return copy(u->upload, at, u->from + (from - u->offset), (size_t)bytes);
}

mk_status mk_gpu_upload_bytes(mk_gpu_upload *upload, size_t buffer, uint64_t offset, size_t bytes) {
  const mk_buffer *b = NULL;
  MK_TRY(find_weight(upload, buffer, &b));
  if (offset > b->bytes || bytes > b->bytes - offset || bytes > upload->room) {
    return mk_error(MK_ERR_USAGE, "weight %s has %llu bytes; %zu from %llu on are not all inside, or more than %zu",
                    b->name, (unsigned long long)b->bytes, bytes, (unsigned long long)offset, upload->room);
  }
  for (uint32_t r = 0; r < upload->gpu->here && bytes != 0; r++) {
    uploaded u = {.upload = upload->of_rank[r], .from = upload->slots[upload->current].pinned, .offset = offset};
    MK_TRY(mk_gpu_enter(u.upload->gpu));
    MK_TRY(mk_gpu_of_rank(u.upload->gpu, mk_gpu_each_run(u.upload->gpu, buffer, offset, bytes, copy_run, &u)));
  }
  return MK_OK;
}

/* Checks the rows: every address that the kernel reads or writes follows from these. */
static mk_status check_rows(const mk_gpu_upload *upload, const mk_buffer *b, const mk_gpu_pack *pack) {
  bool vector = pack->order == MK_GPU_FILL_VECTOR;
  if (b->dtype != MK_DTYPE_BF16 || b->cols != pack->cols || (b->store == MK_STORE_TILES) == vector ||
      pack->dtype > MK_GPU_PACK_F32 || pack->order > MK_GPU_FILL_VECTOR) {
    return mk_error(MK_ERR_USAGE, "weight %s has no rows of %u columns to be packed", b->name, pack->cols);
  }
  uint32_t most = vector ? 1 : pack->source < MK_GPU_FILL_SOURCES ? pack->source_rows[pack->source] : 0;
  if (pack->first_row > most || pack->rows > most - pack->first_row ||
      (pack->order == MK_GPU_FILL_GLU && pack->source > 1) ||
      (pack->order == MK_GPU_FILL_ROPE &&
       (pack->head_dim == 0 || pack->head_dim % 16 != 0 || pack->rotary > pack->head_dim || pack->rotary % 2 != 0))) {
    return mk_error(MK_ERR_USAGE, "weight %s: source %u has %u rows; %u from %u on are not all there", b->name,
                    pack->source, most, pack->rows, pack->first_row);
  }
  uint64_t row_bytes = pack->cols * mk_gpu_pack_unit(pack->dtype);
  if (pack->rows > upload->room / (row_bytes == 0 ? 1 : row_bytes)) {
    return mk_error(MK_ERR_USAGE, "weight %s: %u rows of %llu bytes are more than %zu", b->name, pack->rows,
                    (unsigned long long)row_bytes, upload->room);
  }
  return MK_OK;
}

static bool has_row(const mk_gpu *gpu, size_t buffer, const mk_gpu_pack *pack, uint32_t row) {
  const uint32_t tile = mk_gpu_pack_row(pack, row) / MK_TILE;
  bool has = false;
  for (size_t s = gpu->share_of[buffer]; s < gpu->share_of[buffer + 1]; s++) {
    has = has || (tile >= gpu->shares[s].unit && tile < gpu->shares[s].unit + gpu->shares[s].units);
  }
  return has;
}

void mk_gpu_upload_trim(const mk_gpu_upload *upload, size_t buffer, mk_gpu_pack *pack) {
  const mk_gpu *gpu = upload->gpu;
  if (gpu->group == NULL || buffer >= gpu->program->buffer_count || !mk_gpu_is_dealt(gpu, buffer)) {
    return;
  }
  while (pack->rows != 0 && !has_row(gpu, buffer, pack, pack->first_row)) {
    pack->first_row++;
    pack->rows--;
  }
  while (pack->rows != 0 && !has_row(gpu, buffer, pack, pack->first_row + pack->rows - 1)) {
    pack->rows--;
  }
}

/* Rows [first, first + count) of those in the slot that is filled, which begin at `from`, become rows of the weight,
 * whose row tile 0 would lie at `to`. */
static mk_status pack_rows(mk_gpu_upload *upload, const mk_buffer *b, const mk_gpu_pack *pack, uint32_t first,
                           uint32_t count, const uint8_t *from, mk_cu_address to) {
  const mk_gpu *gpu = upload->gpu;
  const uint64_t row_bytes = pack->cols * mk_gpu_pack_unit(pack->dtype);
  mk_gpu_pack part = *pack;
  part.to = to;
  part.from = upload->slots[upload->current].staged + first * row_bytes;
  part.grid_cols = mk_buffer_grid_cols(b);
  part.packed_rows = b->rows;
  part.first_row += first;
  part.rows = count;
  MK_TRY(copy(upload, part.from, from + first * row_bytes, (size_t)(count * row_bytes)));
  void *arguments[] = {&part};
  uint32_t most = (uint32_t)gpu->sms * BLOCKS_PER_SM;
  return mk_gpu_check(gpu,
                      gpu->driver->launch(upload->kernel, part.rows < most ? part.rows : most, 1, 1,
                                          MK_GPU_PACK_THREADS, 1, 1, 0, gpu->stream, arguments, NULL),
                      "packing weights");
}

/* Packs those of the rows that belong to a share of the rank, neighbours together. */
static mk_status pack_share(mk_gpu_upload *upload, const mk_buffer *b, const mk_gpu_pack *pack, const uint8_t *from,
                            const mk_gpu_share *share) {
  for (uint32_t row = 0, end; row < pack->rows; row = end) {
    bool here = false;
    for (end = row; end < pack->rows; end++) {
      const uint32_t tile = mk_gpu_pack_row(pack, pack->first_row + end) / MK_TILE;
      const bool inside = tile >= share->unit && tile < share->unit + share->units;
      if (end > row && inside != here) {
        break;
      }
      here = inside;
    }
    MK_TRY(here ? pack_rows(upload, b, pack, row, end - row, from, mk_gpu_share_base(share)) : MK_OK);
  }
  return MK_OK;
}

mk_status mk_gpu_upload_rows(mk_gpu_upload *upload, size_t buffer, const mk_gpu_pack *pack) {
  const mk_buffer *b = NULL;
  const uint8_t *from = upload->slots[upload->current].pinned;
  MK_TRY(find_weight(upload, buffer, &b));
  MK_TRY(check_rows(upload, b, pack));
  if (pack->rows == 0 || pack->cols == 0) {
    return MK_OK;
  }
  for (uint32_t r = 0; r < upload->gpu->here; r++) {
    mk_gpu_upload *own = upload->of_rank[r];
    const mk_gpu *gpu = own->gpu;
    MK_TRY(mk_gpu_enter(gpu));
    if (!mk_gpu_is_dealt(gpu, buffer)) {
      MK_TRY(mk_gpu_of_rank(gpu, pack_rows(own, b, pack, 0, pack->rows, from, mk_gpu_address(gpu, buffer))));
      continue;
    }
    for (size_t s = gpu->share_of[buffer]; s < gpu->share_of[buffer + 1]; s++) {
      MK_TRY(mk_gpu_of_rank(gpu, pack_share(own, b, pack, from, &gpu->shares[s])));
    }
  }
  return MK_OK;
}

mk_status mk_gpu_upload_end(mk_gpu_upload *upload) {
  for (uint32_t r = 0; r < upload->gpu->here; r++) {
    const mk_gpu *gpu = upload->of_rank[r]->gpu;
    MK_TRY(mk_gpu_enter(gpu));
    MK_TRY(mk_gpu_of_rank(gpu, mk_gpu_check(gpu, gpu->driver->stream_wait(gpu->stream), "packing weights")));
  }
  return MK_OK;
}
