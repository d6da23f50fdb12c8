/* See golden_file.h. */
#include "tests/support/golden_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct header {
  char magic[8], name[32];
  uint64_t seed;
  uint32_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, max_position, tied, llama3, original,
      prompt_count, steps, is_directory;
  double eps, theta, factor, low, high;
} header;
_Static_assert(sizeof(header) == 8 + 32 + 8 + 14 * 4 + 5 * 8, "no padding");

static uint8_t *read_all(const char *path, size_t *length) {
  FILE *file = fopen(path, "rb");
  uint8_t *bytes = NULL;
  if (file == NULL) {
    return NULL;
  }
  long end = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  rewind(file);
  if (end > 0 && (bytes = malloc((size_t)end)) != NULL && fread(bytes, 1, (size_t)end, file) != (size_t)end) {
    free(bytes);
    bytes = NULL;
  }
  *length = bytes != NULL ? (size_t)end : 0;
  fclose(file);
  return bytes;
}

static const char *check(const header *h, size_t length) {
  if (memcmp(h->magic, "MKGOLD01", sizeof h->magic) != 0) {
    return "is not a golden file";
  }
  if (h->vocab < 2 || h->vocab > MK_MAX_WIDTH || h->prompt_count == 0 || h->steps == 0 ||
      h->max_position > MK_MAX_POSITION || (uint64_t)h->prompt_count + h->steps > h->max_position) {
    return "has a vocabulary, prompt and steps that do not fit together";
  }
  uint64_t numbers = (uint64_t)h->prompt_count + h->steps + (uint64_t)h->steps * h->vocab;
  return length == sizeof *h + 4 * numbers ? NULL : "is longer or shorter than its header says";
}

/* A line: name, error over all steps, error of the worst step. */
static double find_bf16_error(const char *golden, const char *name) {
  char path[1024], line[256], found[GOLDEN_NAME];
  const char *slash = strrchr(golden, '/');
  int folder = slash == NULL ? 0 : (int)(slash - golden) + 1;
  double error = NAN, all;
  snprintf(path, sizeof path, "%.*s" GOLDEN_BF16_FILE, folder, golden);
  FILE *file = fopen(path, "r");
  if (file == NULL) {
    return INFINITY;
  }
  while (fgets(line, sizeof line, file) != NULL) {
    if (line[0] != '#' && sscanf(line, "%32s %lf %*f", found, &all) == 2 && strcmp(found, name) == 0) {
      error = all > 0 && all < 1 ? all : NAN;
    }
  }
  fclose(file);
  return error;
}

bool golden_file_read(const char *path, golden_file *out, const char **why) {
  size_t length = 0;
  header h;
  memset(out, 0, sizeof *out);
  out->bytes = read_all(path, &length);
  *why = "cannot be read, or ends early";
  if (out->bytes == NULL || length < sizeof h) {
    return false;
  }
  memcpy(&h, out->bytes, sizeof h);
  *why = check(&h, length);
  if (*why != NULL) {
    return false;
  }
  memcpy(out->name, h.name, sizeof h.name);
  out->seed = h.seed;
  out->is_directory = h.is_directory != 0;
  out->prompt_count = h.prompt_count;
  out->steps = h.steps;
  out->config = (mk_config){.hidden = h.hidden,
                            .intermediate = h.intermediate,
                            .layers = h.layers,
                            .heads = h.heads,
                            .kv_heads = h.kv_heads,
                            .head_dim = h.head_dim,
                            .vocab = h.vocab,
                            .max_position = h.max_position,
                            .rms_eps = (float)h.eps,
                            .rope_theta = h.theta,
                            .tied = h.tied != 0,
                            .rope_type = h.llama3 != 0 ? MK_ROPE_LLAMA3 : MK_ROPE_DEFAULT,
                            .rope_factor = h.factor,
                            .rope_low_freq_factor = h.low,
                            .rope_high_freq_factor = h.high,
                            .rope_original_max_position = h.original,
                            .eos_count = 1,
                            .eos = {h.vocab - 1}};
  /* The header is a multiple of four bytes, so the numbers are aligned. */
  out->tokens = (const uint32_t *)(const void *)(out->bytes + sizeof h);
  out->logits = (const float *)(const void *)(out->tokens + h.prompt_count + h.steps);
  out->bf16_error = out->is_directory ? INFINITY : find_bf16_error(path, out->name);
  return true;
}

void golden_file_free(golden_file *golden) {
  free(golden->bytes);
  golden->bytes = NULL;
}
