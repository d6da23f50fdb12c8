/* See quantise.h. */
#include "tools/lib/quantise.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "instructions/dequantise.h"
#include "instructions/reference.h"
#include "models/directory.h"
#include "models/family.h"
#include "models/json.h"
#include "models/safetensors_write.h"
#include "vm/draft.h"

enum { CHUNK = 1 << 20 /* bytes */, CONFIG_LIMIT = 16 << 20, CODES_IN_WORD = 8, MOST_PARTS = 3, SMALLEST_GROUP = 32 };

typedef struct writer {
  const mk_quantise_options *options;
  const char *from, *to;
  mk_directory directory;
  mk_draft **all; /* the directory, and every file in it: they get their names together */
  size_t count, capacity;
  mk_quantise_result *result;
  uint64_t done;
} writer;

/* The room to remember a draft is made first, so that nothing is forgotten. */
static mk_status open_file(writer *w, const char *name, mk_draft **out) {
  char *path;
  MK_TRY(mk_grow(&w->all, &w->capacity, w->count + 1, sizeof(mk_draft *)));
  MK_TRY(mk_path_join(w->to, name, &path));
  mk_status status = mk_draft_open(path, out);
  mk_free(path);
  MK_TRY(status);
  w->all[w->count++] = *out;
  return MK_OK;
}

static bool is_module(const mk_wanted_tensor *want) { return mk_family_is_module(want) && want->weight->of_layer; }

static bool is_quantised(const writer *w, const mk_wanted_tensor *want) {
  return is_module(want) && (w->options->codes != MK_CODES_INT4 || want->shape[1] % SMALLEST_GROUP == 0);
}

/* The widest groups that divide every row that is quantised. */
static uint32_t choose_group(const writer *w) {
  const mk_config *config = &w->directory.config;
  for (uint32_t group = 128; group > SMALLEST_GROUP; group /= 2) {
    bool divides = true;
    for (uint64_t i = 0, count = mk_family_tensor_count(config); i < count; i++) {
      mk_wanted_tensor want;
      mk_family_tensor_at(config, i, &want);
      divides = divides && (!is_quantised(w, &want) || want.shape[1] % group == 0);
    }
    if (divides) {
      return group;
    }
  }
  return SMALLEST_GROUP;
}

static void count_modules(writer *w) {
  for (uint64_t i = 0, count = mk_family_tensor_count(&w->directory.config); i < count; i++) {
    mk_wanted_tensor want;
    mk_family_tensor_at(&w->directory.config, i, &want);
    w->result->modules += is_quantised(w, &want);
    w->result->left += is_module(&want) && !is_quantised(w, &want);
  }
}

typedef struct part { /* a tensor to be written */
  const char *suffix; /* in place of "weight" */
  mk_tensor_dtype dtype;
  uint32_t rank;
  uint64_t shape[2];
} part;

static uint64_t bytes_of(const part *p) { return mk_tensor_dtype_bytes(p->dtype) * p->shape[0] * p->shape[1]; }

static uint64_t groups_of(const writer *w, uint64_t cols) {
  return w->options->codes == MK_CODES_INT4 ? (cols + w->result->group - 1) / w->result->group : 1;
}

/* What a tensor of the family's table becomes. */
static uint32_t parts_of(const writer *w, const mk_wanted_tensor *want, const mk_tensor *tensor,
                         part parts[MOST_PARTS]) {
  const uint64_t rows = want->shape[0], cols = want->shape[1];
  if (!is_quantised(w, want)) {
    parts[0] = (part){NULL, tensor->dtype, tensor->rank, {rows, cols}};
    return 1;
  }
  const part scales = {"weight_scale", MK_TENSOR_BF16, 2, {rows, groups_of(w, cols)}};
  if (w->options->codes == MK_CODES_E4M3) {
    parts[0] = (part){"weight", MK_TENSOR_E4M3, 2, {rows, cols}};
    parts[1] = scales;
    return 2;
  }
  parts[0] = (part){"weight_packed", MK_TENSOR_I32, 2, {rows, (cols + CODES_IN_WORD - 1) / CODES_IN_WORD}};
  parts[1] = scales;
  parts[2] = (part){"weight_shape", MK_TENSOR_I64, 1, {2, 1}};
  return 3;
}

static mk_status write_header(const writer *w, mk_draft *file) {
  const mk_config *config = &w->directory.config;
  mk_text header = {0};
  mk_status status;
  uint64_t offset = 0;
  MK_TRY_GOTO(mk_safetensors_begin(&header), done);
  for (uint64_t i = 0, count = mk_family_tensor_count(config); i < count; i++) {
    mk_wanted_tensor want;
    part parts[MOST_PARTS];
    char name[MK_TENSOR_NAME], full[MK_TENSOR_NAME + 16];
    mk_family_tensor_at(config, i, &want);
    mk_family_tensor_name(config, &want, name);
    const mk_tensor *tensor = mk_checkpoint_find(w->directory.checkpoint, name);
    w->result->before += tensor->bytes;
    for (uint32_t p = 0, most = parts_of(w, &want, tensor, parts); p < most; p++) {
      snprintf(full, sizeof full, "%s", name);
      if (parts[p].suffix != NULL) {
        snprintf(full, sizeof full, "%.*s%s", (int)(strlen(name) - strlen("weight")), name, parts[p].suffix);
      }
      MK_TRY_GOTO(mk_safetensors_add(&header, full, parts[p].dtype, parts[p].rank, parts[p].shape, offset), done);
      offset += bytes_of(&parts[p]);
    }
  }
  w->result->after = offset;
  MK_TRY_GOTO(mk_safetensors_end(&header), done);
  MK_TRY_GOTO(mk_draft_reserve(file, header.length + offset), done);
  MK_TRY_GOTO(mk_draft_write(file, header.data, header.length), done);
done:
  mk_text_free(&header);
  return status;
}

static mk_status put(writer *w, mk_draft *file, const void *data, uint64_t bytes) {
  MK_TRY(mk_draft_write(file, data, bytes));
  w->done += bytes;
  if (w->options->progress != NULL) {
    w->options->progress(w->options->user, w->done, w->result->after);
  }
  return MK_OK;
}

static mk_status copy_tensor(writer *w, mk_draft *file, const mk_tensor *tensor) {
  const uint64_t unit = mk_tensor_unit(tensor), count = tensor->bytes / unit;
  void *chunk;
  mk_status status = MK_OK;
  MK_TRY(mk_alloc(CHUNK, 1, &chunk));
  for (uint64_t first = 0; status == MK_OK && first < count; first += CHUNK / unit) {
    const uint64_t now = count - first < CHUNK / unit ? count - first : CHUNK / unit;
    status = mk_tensor_read_raw(w->directory.checkpoint, tensor, first, now, chunk);
    if (status == MK_OK) {
      status = put(w, file, chunk, now * unit);
    }
  }
  mk_free(chunk);
  return status;
}

/* A scale as bf16 that is no zero: so that a row of zeros can be divided by it. */
static float scale_of(const uint16_t *x, uint64_t count, float most, uint16_t *bits) {
  float largest = 0;
  for (uint64_t i = 0; i < count; i++) {
    largest = fmaxf(largest, fabsf(mk_bf16_to_float(x[i])));
  }
  *bits = mk_float_to_bf16(largest / most);
  if (mk_bf16_to_float(*bits) == 0) {
    *bits = 0x3f80;
  }
  return mk_bf16_to_float(*bits);
}

static void quantise_bytes(const uint16_t *x, uint64_t cols, uint8_t *codes, uint16_t *scale) {
  const float step = scale_of(x, cols, 448, scale);
  for (uint64_t k = 0; k < cols; k++) {
    codes[k] = mk_float_to_e4m3(mk_bf16_to_float(x[k]) / step);
  }
}

static void quantise_nibbles(const uint16_t *x, uint64_t cols, uint32_t group, uint32_t *words, uint16_t *scales) {
  memset(words, 0, (cols + CODES_IN_WORD - 1) / CODES_IN_WORD * sizeof *words);
  for (uint64_t first = 0; first < cols; first += group) {
    const uint64_t count = cols - first < group ? cols - first : group;
    const float step = scale_of(x + first, count, 7.5f, &scales[first / group]);
    for (uint64_t k = first; k < first + count; k++) {
      const float q = fminf(fmaxf(rintf(mk_bf16_to_float(x[k]) / step), -8), 7);
      words[k / CODES_IN_WORD] |= (uint32_t)((int)q + 8) << 4 * (k % CODES_IN_WORD);
    }
  }
}

static mk_status write_rows(writer *w, mk_draft *file, const mk_tensor *tensor, uint16_t *row, void *codes,
                            uint16_t *scales) {
  const uint64_t rows = tensor->shape[0], cols = tensor->shape[1], groups = groups_of(w, cols);
  const bool nibbles = w->options->codes == MK_CODES_INT4;
  for (uint64_t r = 0; r < rows; r++) {
    MK_TRY(mk_tensor_read(w->directory.checkpoint, tensor, r * cols, cols, row));
    for (uint64_t k = 0; k < cols; k++) {
      if (!isfinite(mk_bf16_to_float(row[k]))) {
        return mk_error(MK_ERR_FILE, "%s: tensor %.200s: element [%llu, %llu] is not a finite number",
                        mk_checkpoint_path(w->directory.checkpoint, tensor), tensor->name, (unsigned long long)r,
                        (unsigned long long)k);
      }
    }
    if (nibbles) {
      quantise_nibbles(row, cols, w->result->group, codes, scales + r * groups);
    } else {
      quantise_bytes(row, cols, codes, scales + r);
    }
    MK_TRY(put(w, file, codes, nibbles ? (cols + CODES_IN_WORD - 1) / CODES_IN_WORD * sizeof(uint32_t) : cols));
  }
  return put(w, file, scales, rows * groups * sizeof *scales);
}

static mk_status write_module(writer *w, mk_draft *file, const mk_tensor *tensor) {
  const uint64_t rows = tensor->shape[0], cols = tensor->shape[1];
  const int64_t shape[2] = {(int64_t)rows, (int64_t)cols};
  uint16_t *row = NULL, *scales = NULL;
  void *codes = NULL;
  mk_status status;
  MK_TRY_GOTO(mk_alloc(cols, sizeof *row, &row), done);
  MK_TRY_GOTO(mk_alloc(cols + sizeof(uint32_t), 1, &codes), done);
  MK_TRY_GOTO(mk_alloc(rows * groups_of(w, cols), sizeof *scales, &scales), done);
  MK_TRY_GOTO(write_rows(w, file, tensor, row, codes, scales), done);
  if (w->options->codes == MK_CODES_INT4) {
    status = put(w, file, shape, sizeof shape);
  }
done:
  mk_free(row);
  mk_free(codes);
  mk_free(scales);
  return status;
}

static mk_status write_weights(writer *w) {
  const mk_config *config = &w->directory.config;
  mk_draft *file;
  MK_TRY(open_file(w, "model.safetensors", &file));
  MK_TRY(write_header(w, file));
  for (uint64_t i = 0, count = mk_family_tensor_count(config); i < count; i++) {
    mk_wanted_tensor want;
    char name[MK_TENSOR_NAME];
    mk_family_tensor_at(config, i, &want);
    mk_family_tensor_name(config, &want, name);
    const mk_tensor *tensor = mk_checkpoint_find(w->directory.checkpoint, name);
    MK_TRY(is_quantised(w, &want) ? write_module(w, file, tensor) : copy_tensor(w, file, tensor));
  }
  return mk_draft_close(file);
}

/* The names of modules that are not quantised; NULL: there is no memory. */
static json_t *list_ignored(const writer *w) {
  const mk_config *config = &w->directory.config;
  json_t *names = json_pack("[s]", "lm_head");
  for (uint64_t i = 0, count = mk_family_tensor_count(config); names != NULL && i < count; i++) {
    mk_wanted_tensor want;
    char name[MK_TENSOR_NAME];
    mk_family_tensor_at(config, i, &want);
    if (!is_module(&want) || is_quantised(w, &want)) {
      continue;
    }
    mk_family_tensor_name(config, &want, name);
    if (json_array_append_new(names, json_stringn(name, strlen(name) - strlen(".weight"))) != 0) {
      json_decref(names);
      names = NULL;
    }
  }
  return names;
}

static json_t *describe(const writer *w) {
  const bool nibbles = w->options->codes == MK_CODES_INT4;
  json_t *weights = json_pack("{s:i, s:s, s:b, s:s, s:b, s:s, s:n}", "num_bits", nibbles ? 4 : 8, "type",
                              nibbles ? "int" : "float", "symmetric", 1, "strategy", nibbles ? "group" : "channel",
                              "dynamic", 0, "observer", "minmax", "actorder");
  if (weights != NULL) {
    (void)json_object_set_new(weights, "group_size", nibbles ? json_integer(w->result->group) : json_null());
  }
  return json_pack("{s:s, s:s, s:s, s:o, s:n, s:n, s:{s:{s:[s], s:o, s:n, s:n}}}", "quant_method", "compressed-tensors",
                   "format", nibbles ? "pack-quantized" : "float-quantized", "quantization_status", "compressed",
                   "ignore", list_ignored(w), "kv_cache_scheme", "global_compression_ratio", "config_groups", "group_0",
                   "targets", "Linear", "weights", weights, "input_activations", "output_activations");
}

static mk_status write_config(writer *w) {
  char *path = NULL, *text = NULL, *out = NULL;
  size_t length;
  json_t *root = NULL;
  mk_draft *file;
  mk_status status;
  MK_TRY_GOTO(mk_path_join(w->from, "config.json", &path), done);
  MK_TRY_GOTO(mk_file_read(path, false, CONFIG_LIMIT, &text, &length), done);
  MK_TRY_GOTO(mk_json_parse(text, length, &root), done);
  if (json_object_set_new(root, "quantization_config", describe(w)) == 0) {
    out = json_dumps(root, JSON_INDENT(2));
  }
  if (out == NULL) {
    status = mk_error(MK_ERR_RUNTIME, "config.json cannot be made: there is no memory");
    goto done;
  }
  MK_TRY_GOTO(open_file(w, "config.json", &file), done);
  MK_TRY_GOTO(mk_draft_write(file, out, strlen(out)), done);
  MK_TRY_GOTO(mk_draft_write(file, "\n", 1), done);
  status = mk_draft_close(file);
done:
  free(out);
  json_decref(root);
  mk_free(text);
  mk_free(path);
  return status;
}

static mk_status copy_file(writer *w, const char *name, const char *path) {
  char *chunk;
  mk_draft *file;
  FILE *source = fopen(path, "rb");
  if (source == NULL) {
    return mk_error(MK_ERR_RUNTIME, "%s: cannot be read: %s", path, strerror(errno));
  }
  mk_status status = mk_alloc(CHUNK, 1, &chunk);
  if (status == MK_OK) {
    status = open_file(w, name, &file);
    for (size_t got; status == MK_OK && (got = fread(chunk, 1, CHUNK, source)) != 0;) {
      status = mk_draft_write(file, chunk, got);
    }
    if (status == MK_OK) {
      status = ferror(source) != 0 ? mk_error(MK_ERR_RUNTIME, "%s: cannot be read", path) : mk_draft_close(file);
    }
  }
  mk_free(chunk);
  (void)fclose(source);
  return status;
}

/* Weights, and what describes them, is written anew. */
static bool is_copied(const char *name) {
  static const char *const endings[] = {
      ".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pth", ".pt", ".gguf", ".h5", ".msgpack"};
  for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
    const size_t length = strlen(name), tail = strlen(endings[i]);
    if (length >= tail && strcmp(name + length - tail, endings[i]) == 0) {
      return false;
    }
  }
  return name[0] != '.' && strcmp(name, "config.json") != 0;
}

/* What a copy would replace may be of another model, or none's. */
static mk_status check_file(writer *w, const char *name, const char *path) {
  char *to;
  struct stat info;
  (void)path;
  MK_TRY(mk_path_join(w->to, name, &to));
  mk_status status = lstat(to, &info) == 0
                         ? mk_error(MK_ERR_USAGE,
                                    "%s: exists already, and the model has a file of that name; choose a "
                                    "new directory",
                                    to)
                         : MK_OK;
  mk_free(to);
  return status;
}

static mk_status visit_others(writer *w, mk_status (*visit)(writer *w, const char *name, const char *path)) {
  DIR *folder = opendir(w->from);
  mk_status status = folder != NULL ? MK_OK : mk_error(MK_ERR_RUNTIME, "%s: %s", w->from, strerror(errno));
  for (const struct dirent *entry; status == MK_OK && (entry = readdir(folder)) != NULL;) {
    struct stat info;
    char *path;
    status = mk_path_join(w->from, entry->d_name, &path);
    if (status == MK_OK && is_copied(entry->d_name) && stat(path, &info) == 0 && S_ISREG(info.st_mode)) {
      status = visit(w, entry->d_name, path);
    }
    mk_free(path);
  }
  if (folder != NULL) {
    closedir(folder);
  }
  return status;
}

/* config.json comes last: a directory that has one is complete. */
static mk_status write_all(writer *w) {
  MK_TRY(visit_others(w, check_file));
  MK_TRY(mk_grow(&w->all, &w->capacity, 1, sizeof(mk_draft *)));
  MK_TRY(mk_draft_directory(w->to, &w->all[0]));
  w->count = 1;
  MK_TRY(write_weights(w));
  MK_TRY(visit_others(w, copy_file));
  return write_config(w);
}

mk_status mk_quantise_directory(const char *from, const char *to, const mk_quantise_options *options,
                                mk_quantise_result *result) {
  writer w = {.options = options, .from = from, .to = to, .result = result};
  *result = (mk_quantise_result){.group = 0};
  MK_TRY(mk_directory_check_free(to));
  MK_TRY(mk_directory_open(from, MK_WEIGHTS_NEEDED, NULL, &w.directory));
  mk_status status = MK_OK;
  if (w.directory.config.quant.layout != MK_QUANT_NONE) {
    status = mk_error(MK_ERR_USAGE, "%s: its weights are quantised already (%s); start from a bf16, fp16 or fp32 model",
                      from, mk_codes_name((mk_codes)w.directory.config.quant.codes));
  }
  if (status == MK_OK && w.directory.config.naming != MK_NAMES_PLAIN) {
    status = mk_error(MK_ERR_USAGE, "%s: has parts for images, which would be lost; start from a text model", from);
  }
  if (status == MK_OK) {
    result->group = options->codes == MK_CODES_INT4 ? choose_group(&w) : 0;
    count_modules(&w);
    status = write_all(&w);
  }
  if (status == MK_OK) {
    status = mk_drafts_finish(w.all, w.count);
  } else {
    while (w.count > 0) {
      mk_draft_drop(w.all[--w.count]);
    }
  }
  mk_free(w.all);
  mk_directory_close(&w.directory);
  return status;
}
