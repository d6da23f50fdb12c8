/* Quantised checkpoints of every format (goldens/quantised; quantised.py makes them): their weights are what a
 * dequantiser in numpy makes of them, the machine has the bits of a bf16 model with these weights, and transformers'
 * logits. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>

#include "engine/quantised.h"
#include "models/directory.h"
#include "models/family.h"
#include "models/llama.h"
#include "models/safetensors_write.h"
#include "scheduler/compile.h"
#include "tests/oracle/golden.h"
#include "vm/file.h"
#include "vm/program/asm.h"
#include "vm/program/disasm.h"
#include "vm/program/strips.h"
#include "vm/verify/verify.h"

#define FOLDER GOLDEN_FOLDER "/quantised"
enum { MOST = 24, LEAST = 12, MOST_TOKENS = 64 };

typedef struct model_name {
  char text[32];
} model_name;

static size_t list(model_name names[MOST]) {
  size_t count = 0;
  DIR *folder = opendir(FOLDER);
  for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
    if (entry->d_name[0] != '.' && count < MOST) {
      snprintf(names[count++].text, sizeof names->text, "%.31s", entry->d_name);
    }
  }
  if (folder != NULL) {
    closedir(folder);
  }
  return count;
}

Test(quantised, every_format_has_a_golden) {
  model_name names[MOST];
  cr_expect_geq(list(names), LEAST);
}

typedef struct model {
  mk_directory directory;
  golden golden; /* prompt and tokens, one after the other; logits */
  uint32_t tokens[2 * MOST_TOKENS], sums;
  float *logits; /* the golden's */
  char path[512];
} model;

static uint32_t numbers(char *text, uint32_t *out) {
  uint32_t count = 0;
  for (char *at = strtok(text, " \n"); at != NULL && count < MOST_TOKENS; at = strtok(NULL, " \n")) {
    out[count++] = (uint32_t)strtoul(at, NULL, 10);
  }
  return count;
}

/* A tensor of the family's table as bf16; the caller frees it. */
static uint16_t *values_of(const model *m, const mk_wanted_tensor *want, const char *name) {
  const mk_checkpoint *checkpoint = m->directory.checkpoint;
  const uint64_t count = want->shape[0] * want->shape[1];
  uint16_t *out = malloc(count * sizeof *out);
  if (!mk_quant_has(&m->directory.config, want)) {
    cr_assert_eq(mk_tensor_read(checkpoint, mk_checkpoint_find(checkpoint, name), 0, count, out), MK_OK);
    return out;
  }
  mk_quantised module;
  uint8_t *codes = malloc(want->shape[1]);
  cr_assert_eq(mk_quantised_open(checkpoint, &m->directory.config, name, &module), MK_OK, "%s", mk_error_message());
  for (uint32_t r = 0; r < module.rows; r++) {
    cr_assert_eq(mk_quantised_row(&module, r, codes, out + (size_t)r * module.cols), MK_OK);
  }
  free(codes);
  mk_quantised_close(&module);
  return out;
}

static void check_sum(model *m, const char *name, uint64_t sum) {
  mk_wanted_tensor want;
  cr_assert_eq(mk_family_find(&m->directory.config, name, &want), MK_TENSOR_WANTED, "%s", name);
  cr_assert(mk_quant_has(&m->directory.config, &want), "%s is not quantised", name);
  uint16_t *values = values_of(m, &want, name);
  cr_expect_eq(mk_fnv1a(values, want.shape[0] * want.shape[1] * sizeof *values), sum,
               "%s: %s is not what numpy makes of it", m->path, name);
  free(values);
  m->sums++;
}

static void start(model *m, const char *name) {
  char line[1024], file[600], tensor[128];
  golden *g = &m->golden;
  snprintf(m->path, sizeof m->path, "%s/%s", FOLDER, name);
  cr_assert_eq(mk_directory_open(m->path, MK_WEIGHTS_NEEDED, NULL, &m->directory), MK_OK, "%s", mk_error_message());
  snprintf(file, sizeof file, "%s/golden.txt", m->path);
  FILE *text = fopen(file, "r");
  cr_assert_not_null(text, "%s", file);
  while (fgets(line, sizeof line, text) != NULL) {
    uint64_t sum;
    if (sscanf(line, "sum %127s %" SCNx64, tensor, &sum) == 2) {
      check_sum(m, tensor, sum);
    } else if (strncmp(line, "prompt ", 7) == 0) {
      g->prompt_count = numbers(line + 7, m->tokens);
    } else if (strncmp(line, "tokens ", 7) == 0) {
      g->steps = numbers(line + 7, m->tokens + g->prompt_count);
    }
  }
  fclose(text);
  g->config = m->directory.config;
  g->tokens = m->tokens;
  g->step_error = g->bf16_error = GOLDEN_ERROR;
  const size_t count = (size_t)g->steps * g->config.vocab;
  float *logits = malloc(count * sizeof *logits);
  snprintf(file, sizeof file, "%s/logits.bin", m->path);
  FILE *values = fopen(file, "rb");
  cr_assert_not_null(values, "%s", file);
  cr_assert_eq(fread(logits, sizeof *logits, count, values), count);
  fclose(values);
  g->logits = logits;
  m->logits = logits;
}

static void stop(model *m) {
  free(m->logits);
  mk_directory_close(&m->directory);
}

static FILE *create(const char *folder, const char *name) {
  char path[TEST_PATH + 32];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "wb");
  cr_assert_not_null(file, "%s", path);
  return file;
}

/* The same model with the weights that its codes stand for, in bf16. */
static void write_plain(const model *m, const char *folder) {
  const mk_config *config = &m->directory.config;
  char path[600], name[MK_TENSOR_NAME];
  mk_wanted_tensor want;
  mk_text header = {0};
  uint64_t offset = 0;
  snprintf(path, sizeof path, "%s/config.json", m->path);
  json_t *root = json_load_file(path, 0, NULL);
  cr_assert_not_null(root, "%s", path);
  cr_assert_eq(json_object_del(root, "quantization_config"), 0);
  FILE *file = create(folder, "config.json");
  cr_assert_eq(json_dumpf(root, file, 0), 0);
  fclose(file);
  json_decref(root);
  cr_assert_eq(mk_safetensors_begin(&header), MK_OK);
  for (uint64_t i = 0; i < mk_family_tensor_count(config); i++) {
    mk_family_tensor_at(config, i, &want);
    mk_family_tensor_name(config, &want, name);
    cr_assert_eq(mk_safetensors_add(&header, name, MK_TENSOR_BF16, want.rank, want.shape, offset), MK_OK);
    offset += want.shape[0] * want.shape[1] * 2;
  }
  cr_assert_eq(mk_safetensors_end(&header), MK_OK);
  file = create(folder, "model.safetensors");
  cr_assert_eq(fwrite(header.data, 1, header.length, file), header.length);
  for (uint64_t i = 0; i < mk_family_tensor_count(config); i++) {
    mk_family_tensor_at(config, i, &want);
    mk_family_tensor_name(config, &want, name);
    uint16_t *values = values_of(m, &want, name);
    const size_t count = want.shape[0] * want.shape[1];
    cr_assert_eq(fwrite(values, sizeof *values, count, file), count);
    free(values);
  }
  fclose(file);
  mk_text_free(&header);
}

typedef struct heard {
  float *logits;
  uint32_t vocab, steps;
} heard;

static bool hear(void *user, uint32_t token, const float *logits) {
  heard *h = user;
  (void)token;
  memcpy(h->logits + (size_t)h->steps++ * h->vocab, logits, h->vocab * sizeof *logits);
  return true;
}

/* All logits of a greedy run; the caller frees them. */
static float *run(const model *m, const char *path, const mk_engine_options *options) {
  const golden *g = &m->golden;
  mk_engine *engine;
  heard h = {.vocab = g->config.vocab, .logits = calloc((size_t)g->steps * g->config.vocab, sizeof(float))};
  cr_assert_eq(mk_engine_open(path, options, &engine), MK_OK, "%s: %s", path, mk_error_message());
  cr_assert_eq(mk_engine_generate(engine, g->tokens, g->prompt_count, g->steps, hear, &h), MK_OK, "%s",
               mk_error_message());
  cr_assert_eq(h.steps, g->steps);
  mk_engine_close(engine);
  return h.logits;
}

static void expect_bits(const model *m, const float *want, const mk_engine_options *options, const char *what) {
  float *got = run(m, m->path, options);
  cr_expect_arr_eq(got, want, (size_t)m->golden.steps * m->golden.config.vocab * sizeof *got, "%s, %s", m->path, what);
  free(got);
}

ParameterizedTestParameters(quantised, bits_are_those_of_bf16_and_logits_those_of_transformers) {
  static model_name names[MOST];
  size_t count = list(names);
  return cr_make_param_array(model_name, names, count);
}

ParameterizedTest(const model_name *name, quantised, bits_are_those_of_bf16_and_logits_those_of_transformers) {
  const mk_engine_options plain = {.device = "cpu", .max_seq = 64};
  char folder[] = "/tmp/mkvm_quantised_XXXXXX";
  golden_result result;
  mk_engine *engine;
  model m = {.sums = 0};
  start(&m, name->text);
  cr_expect_eq(m.sums, 7);
  cr_assert_not_null(mkdtemp(folder));
  write_plain(&m, folder);
  float *want = run(&m, folder, &plain);
  test_model_remove(folder);
  expect_bits(&m, want, &plain, "one row");
  expect_bits(&m, want, &(mk_engine_options){.device = "cpu", .max_seq = 64, .rows = 8, .kv_blocks = 8}, "8 rows");
  expect_bits(&m, want, &(mk_engine_options){.device = "cpu", .max_seq = 64, .rows = 128, .kv_blocks = 8}, "128 rows");
  expect_bits(&m, want,
              &(mk_engine_options){.device = "cpu", .max_seq = 64, .sms = 3, .check_races = true, .adversarial = true},
              "3 SMs, checked");
  free(want);
  cr_assert_eq(mk_engine_open(m.path, &plain, &engine), MK_OK);
  cr_assert_eq(golden_compare(&m.golden, engine, m.golden.steps, &result), MK_OK, "%s", mk_error_message());
  mk_engine_close(engine);
  golden_print(name->text, "", &result);
  cr_expect(result.passed, "%s: %s", name->text, result.why);
  stop(&m);
}

/* Buffers of quantised weights go through the program file and the text unharmed, and the verifier looks at them. */
ParameterizedTestParameters(quantised, programs) {
  static model_name names[MOST];
  size_t count = list(names);
  return cr_make_param_array(model_name, names, count);
}

ParameterizedTest(const model_name *name, quantised, programs) {
  model m = {.sums = 0};
  mk_graph *graph;
  mk_program *program, *back;
  mk_verify_report report;
  void *bytes, *again;
  size_t length, other;
  start(&m, name->text);
  cr_assert_eq(mk_llama_graph(&m.directory.config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &(mk_compile_options){.sms = 3, .max_seq = 64}, &program), MK_OK);
  uint32_t quantised = 0;
  for (size_t i = 0; i < program->buffer_count; i++) {
    const mk_buffer *b = &program->buffers[i];
    quantised += mk_dtype_is_quantised(b->dtype);
    cr_expect(b->dtype == MK_DTYPE_BF16 || !mk_dtype_is_quantised(b->dtype) ||
                  b->bytes < (uint64_t)b->rows * (b->cols + 127) / 128 * 128 * 2 * 3 / 4,
              "%s", b->name);
  }
  cr_expect_eq(quantised, strstr(name->text, "ordered") != NULL ? 1 : 4 /* o has one group, and so no order */,
               "%s: %u quantised buffers", name->text, quantised);
  cr_expect_eq(mk_verify(program, &report), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_program_serialize(program, &bytes, &length), MK_OK);
  cr_assert_eq(mk_program_parse(bytes, length, &back), MK_OK, "%s", mk_error_message());
  mk_program_free(back);
  char *text;
  FILE *stream = open_memstream(&text, &other);
  cr_assert_eq(mk_disassemble(program, stream), MK_OK);
  fclose(stream);
  cr_assert_eq(mk_assemble(text, other, &back), MK_OK, "%s", mk_error_message());
  free(text);
  cr_assert_eq(mk_program_serialize(back, &again, &other), MK_OK);
  cr_expect(other == length && memcmp(bytes, again, length) == 0, "%s: the text makes another program", name->text);
  mk_free(bytes);
  mk_free(again);
  mk_program_free(back);
  for (size_t i = 0; i < program->buffer_count; i++) {
    mk_buffer *b = &program->buffers[i], good = *b;
    if (!mk_dtype_is_quantised(b->dtype)) {
      continue;
    }
    b->scale_cols = 48;
    cr_expect_eq(mk_verify(program, &report), MK_ERR_REJECTED);
    cr_expect_not_null(strstr(mk_error_message(), "S02"), "%s", mk_error_message());
    *b = good;
    b->scale = b->scale == MK_SCALE_F32 ? MK_SCALE_BF16 : MK_SCALE_F32; /* other bytes */
    cr_expect_eq(mk_verify(program, &report), MK_ERR_REJECTED);
    *b = good;
    b->zeros = 2;
    cr_expect_eq(mk_verify(program, &report), MK_ERR_REJECTED);
    *b = good;
    b->kind = MK_KIND_INPUT;
    cr_expect_eq(mk_verify(program, &report), MK_ERR_REJECTED);
    *b = good;
    break;
  }
  mk_program_free(program);
  mk_graph_free(graph);
  stop(&m);
}
