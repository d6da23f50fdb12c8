/* See synth.h: writing the directory. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "models/directory.h"
#include "models/json.h"
#include "models/synth.h"
#include "models/synth_text.h"
#include "vm/draft.h"

enum { CHUNK = 1 << 19 }; /* elements per write: 1 MiB */
static const uint64_t kShardBytes = UINT64_C(5000000000);

typedef struct writer {
  const char *directory;
  const mk_config *config;
  mk_synth_options options;
  uint64_t total, done; /* bytes of tensors */
  uint16_t *chunk;
  uint64_t *starts; /* shard s has the tensors [starts[s], starts[s + 1]) */
  size_t starts_count, starts_capacity;
  mk_draft **drafts; /* the directory, and every file in it: they get their names together */
  size_t draft_count, draft_capacity;
} writer;

static uint64_t tensor_bytes(const mk_synth_tensor *tensor) { return 2 * tensor->shape[0] * tensor->shape[1]; }

/* The room to remember it is made first, so that nothing is forgotten. */
static mk_status make_directory(writer *w) {
  MK_TRY(mk_grow(&w->drafts, &w->draft_capacity, w->draft_count + 1, sizeof(mk_draft *)));
  MK_TRY(mk_draft_directory(w->directory, &w->drafts[w->draft_count]));
  w->draft_count++;
  return MK_OK;
}

static mk_status open_file(writer *w, const char *name, mk_draft **draft) {
  char *path;
  MK_TRY(mk_grow(&w->drafts, &w->draft_capacity, w->draft_count + 1, sizeof(mk_draft *)));
  MK_TRY(mk_path_join(w->directory, name, &path));
  mk_status status = mk_draft_open(path, draft);
  mk_free(path);
  MK_TRY(status);
  w->drafts[w->draft_count++] = *draft;
  return MK_OK;
}

static mk_status write_bytes(writer *w, const char *name, const mk_text *text) {
  mk_draft *draft;
  MK_TRY(open_file(w, name, &draft));
  MK_TRY(mk_draft_write(draft, text->data, text->length));
  return mk_draft_close(draft);
}

static mk_status write_json(writer *w, const char *name, mk_status (*make)(const mk_config *, mk_text *)) {
  mk_text text = {0};
  mk_status status = make(w->config, &text);
  if (status == MK_OK) {
    status = write_bytes(w, name, &text);
  }
  mk_text_free(&text);
  return status;
}

static mk_status write_tensor(writer *w, mk_draft *draft, const mk_synth_tensor *tensor) {
  uint64_t key = mk_synth_key(w->options.seed, tensor->name), count = tensor_bytes(tensor) / 2;
  for (uint64_t first = 0; first < count; first += CHUNK) {
    uint64_t size = count - first < CHUNK ? count - first : CHUNK;
    mk_synth_fill(key, first, size, tensor->offset, tensor->scale, w->chunk);
    MK_TRY(mk_draft_write(draft, w->chunk, size * 2));
    w->done += size * 2;
    if (w->options.progress != NULL && !w->options.progress(w->options.user, w->done, w->total)) {
      return mk_error(MK_ERR_RUNTIME,
                      "%s: stopped after %" PRIu64 " of %" PRIu64 " bytes, nothing is kept; start again", w->directory,
                      w->done, w->total);
    }
  }
  return MK_OK;
}

static mk_status write_header(writer *w, mk_draft *draft, uint64_t begin, uint64_t end) {
  mk_text header = {0};
  uint64_t offset = 0;
  mk_status status;
  MK_TRY_GOTO(mk_safetensors_begin(&header), done);
  for (uint64_t i = begin; i < end; i++) {
    mk_synth_tensor tensor;
    mk_synth_tensor_at(w->config, i, &tensor);
    MK_TRY_GOTO(mk_safetensors_add(&header, tensor.name, MK_TENSOR_BF16, tensor.rank, tensor.shape, offset), done);
    offset += tensor_bytes(&tensor);
  }
  MK_TRY_GOTO(mk_safetensors_end(&header), done);
  MK_TRY_GOTO(mk_draft_write(draft, header.data, header.length), done);
done:
  mk_text_free(&header);
  return status;
}

static mk_status write_shard(writer *w, const char *name, uint64_t begin, uint64_t end) {
  mk_draft *draft;
  MK_TRY(open_file(w, name, &draft));
  MK_TRY(write_header(w, draft, begin, end));
  for (uint64_t i = begin; i < end; i++) {
    mk_synth_tensor tensor;
    mk_synth_tensor_at(w->config, i, &tensor);
    MK_TRY(write_tensor(w, draft, &tensor));
  }
  return mk_draft_close(draft);
}

static mk_status add_start(writer *w, uint64_t tensor) {
  MK_TRY(mk_grow(&w->starts, &w->starts_capacity, w->starts_count + 1, sizeof *w->starts));
  w->starts[w->starts_count++] = tensor;
  return MK_OK;
}

/* Cuts the list of tensors where the next one would exceed the size of a shard; ends with the count of tensors. */
static mk_status plan_shards(writer *w) {
  uint64_t limit = w->options.shard_bytes == 0 ? kShardBytes : w->options.shard_bytes;
  uint64_t count = mk_synth_tensor_count(w->config), size = 0;
  MK_TRY(add_start(w, 0));
  for (uint64_t i = 0; i < count; i++) {
    mk_synth_tensor tensor;
    mk_synth_tensor_at(w->config, i, &tensor);
    uint64_t bytes = tensor_bytes(&tensor);
    if (size > 0 && (bytes > limit || size > limit - bytes)) {
      MK_TRY(add_start(w, i));
      size = 0;
    }
    size += bytes;
    w->total += bytes;
  }
  return add_start(w, count);
}

enum { SHARD_NAME = 64 };
static const char *shard_name(size_t index, size_t count, char name[SHARD_NAME]) {
  if (count == 1) {
    return "model.safetensors";
  }
  snprintf(name, SHARD_NAME, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

static mk_status write_index(writer *w, size_t shards) {
  mk_text text = {0};
  char name[SHARD_NAME];
  mk_status status;
  MK_TRY_GOTO(mk_text_add(&text, "{\n  \"metadata\": {\"total_size\": %" PRIu64 "},\n  \"weight_map\": {", w->total),
              done);
  for (size_t s = 0; s < shards; s++) {
    for (uint64_t i = w->starts[s]; i < w->starts[s + 1]; i++) {
      mk_synth_tensor tensor;
      mk_synth_tensor_at(w->config, i, &tensor);
      MK_TRY_GOTO(
          mk_text_add(&text, "%s\n    \"%s\": \"%s\"", i == 0 ? "" : ",", tensor.name, shard_name(s, shards, name)),
          done);
    }
  }
  MK_TRY_GOTO(mk_text_add(&text, "\n  }\n}\n"), done);
  MK_TRY_GOTO(write_bytes(w, "model.safetensors.index.json", &text), done);
done:
  mk_text_free(&text);
  return status;
}

static mk_status write_weights(writer *w) {
  char name[SHARD_NAME];
  MK_TRY(mk_alloc(CHUNK, sizeof *w->chunk, &w->chunk));
  MK_TRY(plan_shards(w));
  size_t shards = w->starts_count - 1;
  for (size_t s = 0; s < shards; s++) {
    MK_TRY(write_shard(w, shard_name(s, shards, name), w->starts[s], w->starts[s + 1]));
  }
  return shards == 1 ? MK_OK : write_index(w, shards);
}

/* config.json comes last: a directory that has one is complete. */
static mk_status write_all(writer *w) {
  MK_TRY(make_directory(w));
  if (!w->options.config_only) {
    MK_TRY(write_json(w, "tokenizer.json", mk_synth_tokenizer_json));
    MK_TRY(write_json(w, "tokenizer_config.json", mk_synth_tokenizer_config_json));
    MK_TRY(write_weights(w));
  }
  MK_TRY(write_json(w, "generation_config.json", mk_synth_generation_json));
  return write_json(w, "config.json", mk_synth_config_json);
}

mk_status mk_synth_write(const char *directory, const mk_config *config, const mk_synth_options *options) {
  MK_TRY(mk_directory_check_free(directory));
  writer w = {.directory = directory, .config = config, .options = *options};
  mk_status status = write_all(&w);
  if (status == MK_OK) {
    status = mk_drafts_finish(w.drafts, w.draft_count);
  } else {
    while (w.draft_count > 0) {
      mk_draft_drop(w.drafts[--w.draft_count]);
    }
  }
  mk_free(w.drafts);
  mk_free(w.starts);
  mk_free(w.chunk);
  return status;
}
