/* See directory.h. */
#include "models/directory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "models/family.h"
#include "models/json.h"

enum { CHUNK_BYTES = 1 << 20 };

/* `count` elements of both from `first` on; *same as in compare. */
static mk_status compare_chunk(const mk_checkpoint *checkpoint, const mk_tensor *const tensors[2], uint64_t first,
                               uint64_t count, void *const chunks[2], bool *same) {
  const bool raw = tensors[0]->dtype == tensors[1]->dtype;
  for (size_t i = 0; i < 2; i++) {
    MK_TRY(raw ? mk_tensor_read_raw(checkpoint, tensors[i], first, count, chunks[i])
               : mk_tensor_read(checkpoint, tensors[i], first, count, chunks[i]));
  }
  *same = memcmp(chunks[0], chunks[1], (size_t)(count * (raw ? mk_tensor_unit(tensors[0]) : 2))) == 0;
  return MK_OK;
}

/* Two tensors of one shape: have they the same values? */
static mk_status compare(const mk_checkpoint *checkpoint, const mk_tensor *const tensors[2],
                         const volatile sig_atomic_t *cancel, bool *same) {
  const uint64_t elements = tensors[0]->shape[0] * tensors[0]->shape[1], step = CHUNK_BYTES / sizeof(uint32_t);
  char *memory;
  MK_TRY(mk_alloc(2, CHUNK_BYTES, &memory));
  void *const chunks[2] = {memory, memory + CHUNK_BYTES};
  mk_status status = MK_OK;
  *same = true;
  for (uint64_t first = 0; status == MK_OK && *same && first < elements; first += step) {
    const uint64_t left = elements - first;
    status = cancel != NULL && *cancel != 0
                 ? mk_error(MK_ERR_RUNTIME, "interrupted while lm_head.weight was compared with the embedding table")
                 : compare_chunk(checkpoint, tensors, first, left < step ? left : step, chunks, same);
  }
  mk_free(memory);
  return status;
}

static const mk_tensor *find_plain(const mk_directory *directory, const char *plain) {
  char name[MK_TENSOR_NAME];
  mk_family_stored_name(&directory->config, plain, name);
  return mk_checkpoint_find(directory->checkpoint, name);
}

/* Which of the two namings a model with parts for images has. */
static void settle_naming(mk_directory *directory) {
  mk_config other = directory->config;
  mk_wanted_tensor want;
  other.naming = MK_NAMES_INNER;
  for (size_t i = 0; directory->config.naming == MK_NAMES_WITHIN && i < mk_checkpoint_count(directory->checkpoint);
       i++) {
    if (mk_family_find(&other, mk_checkpoint_tensor(directory->checkpoint, i)->name, &want) == MK_TENSOR_WANTED) {
      directory->config.naming = MK_NAMES_INNER;
    }
  }
}

static mk_status settle_head(mk_directory *directory, const volatile sig_atomic_t *cancel) {
  const mk_tensor *const tensors[2] = {find_plain(directory, "model.embed_tokens.weight"),
                                       find_plain(directory, "lm_head.weight")};
  if (!directory->config.tied || tensors[1] == NULL) {
    return MK_OK;
  }
  bool same;
  MK_TRY(compare(directory->checkpoint, tensors, cancel, &same));
  directory->head = same ? MK_HEAD_TIED_EQUAL : MK_HEAD_TIED_DIFFERS;
  directory->config.tied = same;
  return MK_OK;
}

static mk_status has_weights(const char *path, bool *out) {
  static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
  *out = false;
  for (size_t i = 0; i < 2 && !*out; i++) {
    char *file;
    MK_TRY(mk_path_join(path, names[i], &file));
    *out = mk_file_is_there(file);
    mk_free(file);
  }
  return MK_OK;
}

/* A configuration that the weights do not bear out is refused before anything is made of its size. */
static mk_status open_all(const char *path, mk_weights_wanted wanted, const volatile sig_atomic_t *cancel,
                          mk_directory *out) {
  bool weights = true;
  MK_TRY(mk_config_load(path, &out->config));
  out->head = out->config.tied ? MK_HEAD_TIED : MK_HEAD_UNTIED;
  if (wanted == MK_WEIGHTS_IF_THERE) {
    MK_TRY(has_weights(path, &weights));
  }
  if (!weights) {
    return MK_OK;
  }
  MK_TRY(mk_checkpoint_open(path, &out->checkpoint));
  settle_naming(out);
  MK_TRY(mk_checkpoint_check(out->checkpoint, &out->config));
  MK_TRY(mk_quant_settle(out->checkpoint, &out->config));
  MK_TRY(settle_head(out, cancel));
  out->survey = mk_checkpoint_look(out->checkpoint, &out->config);
  return MK_OK;
}

mk_status mk_directory_open(const char *path, mk_weights_wanted wanted, const volatile sig_atomic_t *cancel,
                            mk_directory *out) {
  *out = (mk_directory){.checkpoint = NULL};
  mk_status status = open_all(path, wanted, cancel, out);
  if (status != MK_OK) {
    mk_directory_close(out);
  }
  return status;
}

void mk_directory_close(mk_directory *directory) {
  mk_checkpoint_close(directory->checkpoint);
  directory->checkpoint = NULL;
}

mk_status mk_directory_check_free(const char *directory) {
  static const char *const names[] = {"config.json",
                                      "tokenizer.json",
                                      "model.safetensors",
                                      "model.safetensors.index.json",
                                      "generation_config.json",
                                      "tokenizer_config.json",
                                      "added_tokens.json",
                                      "special_tokens_map.json",
                                      "chat_template.jinja",
                                      "additional_chat_templates"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", directory, names[i]) >= (int)sizeof path) {
      return mk_error(MK_ERR_USAGE, "%.64s...: the path is too long; choose a shorter one", directory);
    }
    struct stat info;
    if (lstat(path, &info) == 0) {
      return mk_error(MK_ERR_USAGE, "%s: exists already; choose a new directory, or remove the model there first",
                      path);
    }
    if (errno != ENOENT) {
      return mk_error(MK_ERR_RUNTIME, "%s: cannot be examined: %s; choose another directory", path, strerror(errno));
    }
  }
  return MK_OK;
}

static const char *plural(uint64_t count) { return count == 1 ? "" : "s"; }

static const char *note_rounding(const mk_checkpoint_survey *survey, char line[MK_NOTE_SIZE]) {
  const size_t halves = survey->used[MK_TENSOR_F16], floats = survey->used[MK_TENSOR_F32];
  const size_t all = halves + floats + survey->used[MK_TENSOR_BF16];
  int used;
  if (halves + floats == 0) {
    return NULL;
  }
  if (halves != 0 && floats != 0) {
    used = snprintf(line, MK_NOTE_SIZE, "%zu tensor%s of fp16 and %zu of fp32", halves, plural(halves), floats);
  } else {
    used = snprintf(line, MK_NOTE_SIZE, "%zu tensor%s of %s", halves + floats, plural(halves + floats),
                    halves != 0 ? "fp16" : "fp32");
  }
  snprintf(line + used, (size_t)(MK_NOTE_SIZE - used), " (of %zu) rounded to bf16, in which mkvm computes", all);
  return line;
}

static uint32_t count_bits(const uint16_t *bits, uint32_t layers) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < layers; i++) {
    count += (uint32_t)__builtin_popcount(bits[i]);
  }
  return count;
}

static const char *note_quantised(const mk_directory *directory, char line[MK_NOTE_SIZE]) {
  static const char *const formats[] = {[MK_QUANT_NONE] = "",
                                        [MK_QUANT_PLAIN] = "compressed-tensors",
                                        [MK_QUANT_BLOCKS] = "compressed-tensors",
                                        [MK_QUANT_PACKED] = "compressed-tensors",
                                        [MK_QUANT_AWQ] = "AWQ",
                                        [MK_QUANT_GPTQ] = "GPTQ"};
  const mk_config *c = &directory->config;
  const mk_quant *q = &c->quant;
  char scales[64];
  if (q->layout == MK_QUANT_NONE) {
    return NULL;
  }
  snprintf(scales, sizeof scales, "%s", q->by_tensor ? "tensor" : "row");
  if (q->layout == MK_QUANT_BLOCKS) {
    snprintf(scales, sizeof scales, "%u x %u block", q->block, q->group);
  } else if (q->group != 0) {
    snprintf(scales, sizeof scales, "%u columns of each row", q->group);
  }
  snprintf(line, MK_NOTE_SIZE, "%u matrices are %s with a scale for each %s%s (%s), all else is bf16",
           count_bits(q->modules, c->layers) + q->head, mk_codes_name((mk_codes)q->codes), scales,
           q->zeros ? ", and zeros" : "", q->inverse ? "fp8" : formats[q->layout]);
  return line;
}

static const char *note_ordered(const mk_directory *directory, char line[MK_NOTE_SIZE]) {
  const mk_config *c = &directory->config;
  const uint32_t count = count_bits(c->quant.ordered, c->layers);
  snprintf(
      line, MK_NOTE_SIZE,
      "%u quantised matrices have their columns in groups by a list (activation order): they are expanded to bf16, "
      "with four times the memory",
      count);
  return count != 0 ? line : NULL;
}

const char *mk_directory_note(const mk_directory *directory, mk_note note, char line[MK_NOTE_SIZE]) {
  const mk_checkpoint_survey *survey = &directory->survey;
  switch (note) {
    case MK_NOTE_HEAD:
      snprintf(line, MK_NOTE_SIZE,
               "tie_word_embeddings is true, but the stored lm_head.weight differs from model.embed_tokens.weight: "
               "computed untied, with the stored one");
      return directory->head == MK_HEAD_TIED_DIFFERS ? line : NULL;
    case MK_NOTE_ROUNDING:
      return note_rounding(survey, line);
    case MK_NOTE_ASIDE:
      snprintf(line, MK_NOTE_SIZE, "%zu tensor%s of %u layer%s beyond num_hidden_layers %u left aside",
               survey->tensors_aside, plural(survey->tensors_aside), survey->layers_aside, plural(survey->layers_aside),
               directory->config.layers);
      return survey->tensors_aside != 0 ? line : NULL;
    case MK_NOTE_IMAGES:
      snprintf(line, MK_NOTE_SIZE,
               "images are not read: the text model alone is computed, %zu tensor%s beside it left aside",
               survey->tensors_beside, plural(survey->tensors_beside));
      return directory->config.naming != MK_NAMES_PLAIN ? line : NULL;
    case MK_NOTE_QUANTISED:
      return note_quantised(directory, line);
    case MK_NOTE_ORDERED:
      return note_ordered(directory, line);
    case MK_NOTES:
      break;
  }
  return NULL;
}
