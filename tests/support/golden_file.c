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

typedef struct family_header {
  char magic[8], name[32];
  uint64_t seed;
  uint32_t config_length, vocab, prompt_count, steps;
  double bf16_error, bf16_worst;
} family_header;
_Static_assert(sizeof(family_header) == 8 + 32 + 8 + 4 * 4 + 2 * 8, "no padding");

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

static float widen(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double size = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
  return (float)(exponent == 31 ? (double)NAN : (bits & 0x8000) != 0 ? -size : size);
}

static const char *check_family(const family_header *h, size_t length) {
  if (h->vocab < 2 || h->vocab > MK_MAX_WIDTH || h->prompt_count == 0 || h->steps == 0 || h->config_length > 1U << 20 ||
      h->config_length % 4 != 0 || !(h->bf16_error > 0 && h->bf16_error < 1) ||
      !(h->bf16_worst > 0 && h->bf16_worst < 1)) {
    return "has a header that does not fit together";
  }
  const uint64_t rest =
      h->config_length + 4 * ((uint64_t)h->prompt_count + h->steps) + 2 * (uint64_t)h->steps * h->vocab;
  return length == sizeof *h + rest ? NULL : "is longer or shorter than its header says";
}

/* A golden of a family: config.json instead of numbers, logits in fp16. */
static bool read_family(size_t length, golden_file *out, const char **why) {
  family_header h;
  if (length < sizeof h) {
    return false;
  }
  memcpy(&h, out->bytes, sizeof h);
  *why = check_family(&h, length);
  if (*why != NULL) {
    return false;
  }
  memcpy(out->name, h.name, sizeof h.name);
  out->seed = h.seed;
  out->prompt_count = h.prompt_count;
  out->steps = h.steps;
  out->bf16_error = h.bf16_error;
  out->step_error = h.bf16_worst > GOLDEN_ERROR ? h.bf16_worst : GOLDEN_ERROR;
  out->config_text = (const char *)out->bytes + sizeof h;
  out->config_length = h.config_length;
  if (mk_config_parse(out->config_text, h.config_length, &out->config) != MK_OK || out->config.vocab != h.vocab) {
    *why = "has a config.json that is refused, or of another vocabulary";
    return false;
  }
  out->tokens = (const uint32_t *)(const void *)(out->bytes + sizeof h + h.config_length);
  const size_t count = (size_t)h.steps * h.vocab;
  const uint16_t *halves = (const uint16_t *)(const void *)(out->tokens + h.prompt_count + h.steps);
  *why = "does not fit memory";
  out->widened = malloc(count * sizeof *out->widened);
  for (size_t i = 0; out->widened != NULL && i < count; i++) {
    out->widened[i] = widen(halves[i]);
  }
  out->logits = out->widened;
  return out->widened != NULL;
}

bool golden_file_read(const char *path, golden_file *out, const char **why) {
  size_t length = 0;
  header h;
  memset(out, 0, sizeof *out);
  out->bytes = read_all(path, &length);
  *why = "cannot be read, or ends early";
  if (out->bytes == NULL || length < sizeof h.magic) {
    return false;
  }
  if (memcmp(out->bytes, "MKGOLD02", sizeof h.magic) == 0) {
    return read_family(length, out, why);
  }
  if (length < sizeof h) {
    return false;
  }
  memcpy(&h, out->bytes, sizeof h);
  out->step_error = GOLDEN_ERROR;
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
  free(golden->widened);
  golden->bytes = NULL;
  golden->widened = NULL;
}
