/* What tests/support/mixture.h compares, over GPUs that are none (tests/support/fake_gpu.h): machines that agree, and
 * machines of which one does something else, which has to be found where it is. The kernel makes logits from all tokens
 * up to the row's, as it finds them in the KV cache. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "models/synth.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/mixture.h"

FAKE_GPU_IMAGE

enum { VOCAB = 37, BLOCK_TOKENS = 64 };

static const mixture_work work = {.prompts = {1, 17, 63, 130, 70}, .sequences = 5, .generated = 12};

/* What a machine of so many rows does at a position (0: no machine). */
typedef struct fault {
  uint32_t rows, position;
  bool flips, forgets; /* a bit of the logits; to write the cache */
  float value;         /* not 0: a logit */
} fault;

typedef struct kernel {
  mk_plan_buffers buffers[BESIDE_MACHINES];
  size_t logits[BESIDE_MACHINES];
  fault fault;
  float one_row; /* factor of the logits of one row */
} kernel;

static void *memory_of(const mk_gpu_params *params, size_t buffer) {
  return (void *)(uintptr_t)params->buffers[buffer].address;
}

static void put_logits(const kernel *k, const mk_gpu_params *params, uint64_t text, bool hit, float *logits) {
  for (uint32_t v = 0; v < VOCAB; v++) {
    logits[v] = (float)(mk_synth_mix(text + v) >> 40) / (float)(1 << 23) - 1;
    logits[v] *= params->rows <= 1 ? k->one_row : 1;
  }
  if (hit && k->fault.flips) {
    uint32_t bits = mk_float_param(logits[VOCAB - 1]) ^ 1;
    logits[VOCAB - 1] = mk_param_float(bits);
  }
  if (hit && k->fault.value != 0) {
    logits[VOCAB / 2] = k->fault.value;
  }
}

static void run_row(const kernel *k, const mk_gpu_params *params, uint32_t machine, uint32_t line,
                    const mk_step_row *row) {
  const mk_plan_buffers *at = &k->buffers[machine];
  const uint32_t *table = memory_of(params, at->table);
  uint64_t *texts = memory_of(params, at->kv), text = 7;
  bool hit = k->fault.rows == beside_rows(machine) && k->fault.position == row->position;
  table += (size_t)row->slot * params->buffers[at->table].cols;
  if (row->position != 0) {
    uint32_t before = row->position - 1;
    text = texts[table[before / BLOCK_TOKENS] * BLOCK_TOKENS + before % BLOCK_TOKENS];
  }
  text = mk_synth_mix(text ^ ((uint64_t)row->token << 32 | row->position));
  if (!hit || !k->fault.forgets) {
    texts[table[row->position / BLOCK_TOKENS] * BLOCK_TOKENS + row->position % BLOCK_TOKENS] = text;
  }
  if ((row->flags & MK_ROW_CHOOSES) != 0) {
    put_logits(k, params, text, hit, (float *)memory_of(params, k->logits[machine]) + (size_t)line * VOCAB);
  }
}

static bool run_step(void *user, const mk_gpu_params *params, uint32_t step) {
  uint32_t rows = params->rows <= 1 ? 1 : params->rows, machine = 0;
  const mk_step_row *plan = (const mk_step_row *)(const void *)params->plan + (size_t)step * rows;
  while (beside_rows(machine) != rows) {
    machine++;
  }
  for (uint32_t line = 0; line < rows; line++) {
    if ((plan[line].flags & MK_ROW_ACTIVE) != 0) {
      run_row(user, params, machine, line, &plan[line]);
    }
    params->token_ring[(size_t)step * rows + line] = (uint64_t)(params->first_epoch + step + 1) << 32;
  }
  *params->epochs_done = step + 1;
  return step + 1 == params->epochs || *params->stop != 0;
}

static mixture_result results[MIXTURE_RESULTS];
static uint32_t count;

static mk_status run(const fault *planted, float one_row, const mixture_demands *demands) {
  static kernel k;
  fake_gpu unused;
  mk_config config;
  beside *machines;
  fake_cuda *cuda = fake_gpu_start(&unused);
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  config.vocab = VOCAB;
  const mk_gpu_options gpu = {0};
  beside_options options = {.config = &config, .gpu = &gpu, .sms = FAKE_CUDA_SMS};
  mixture_needs(&work, &options.max_seq, &options.blocks);
  cr_assert_eq(beside_open(&options, &machines), MK_OK, "%s", mk_error_message());
  k = (kernel){.fault = *planted, .one_row = one_row};
  for (uint32_t i = 0; i < BESIDE_MACHINES; i++) {
    const mk_program *program = beside_program(machines, i);
    cr_assert_eq(mk_plan_find(program, &k.buffers[i]), MK_OK);
    k.logits[i] = (size_t)mk_program_find_buffer(program, "logits");
  }
  cuda->kernel = run_step;
  cuda->user = &k;
  mk_status status = mixture_run(machines, &work, demands, results, &count);
  beside_close(machines);
  cr_assert_eq(cuda->live, 0);
  return status;
}

static const mixture_result *find(const char *mix, const char *reference) {
  const mixture_result *found = NULL;
  for (uint32_t i = 0; i < count; i++) {
    if (strcmp(results[i].mix, mix) == 0 && strcmp(results[i].reference, reference) == 0) {
      found = &results[i];
    }
  }
  cr_assert_not_null(found, "no mix %s beside %s", mix, reference);
  return found;
}

static const mixture_demands all = {MIXTURE_ALWAYS, MIXTURE_ALWAYS, MIXTURE_ALWAYS};

Test(gpu_mixture, machines_that_agree) {
  cr_assert_eq(run(&(fault){0}, 1, &all), MK_OK, "%s", mk_error_message());
  cr_assert_eq(count, MIXTURE_MIXES - 1 + 8, "every mix beside one row, eight beside two rows");
  for (uint32_t i = 0; i < count; i++) {
    const mixture_result *r = &results[i];
    cr_expect(r->compared != 0 && r->demanded == r->compared, "%s: %u", r->mix, r->compared);
    cr_expect(r->differing == 0 && r->same_up_to == MIXTURE_ALWAYS && r->worst == 0 && r->error == 0, "%s", r->mix);
  }
  cr_expect_eq(find("16 rows", "one row")->compared, 1 + 17 + 63 + 130 + 70 + 5 * 12, "every token's logits");
}

Test(gpu_mixture, a_bit_of_one_machine) {
  cr_assert_eq(run(&(fault){.rows = 8, .position = 60, .flips = true}, 1, &all), MK_OK, "%s", mk_error_message());
  cr_expect_eq(find("4 rows", "one row")->differing, 0);
  cr_expect_eq(find("16 rows", "two rows")->differing, 0);
  static const char *const references[] = {"one row", "two rows"};
  for (uint32_t i = 0; i < 2; i++) {
    const mixture_result *r = find("8 rows", references[i]);
    cr_expect(r->differing == 3 && r->wrong == 3, "three sequences come to position 60: %u", r->wrong);
    cr_expect(r->position == 60 && r->rows == 8 && r->same_up_to == 60 && r->sequence == 2, "position %u, %u rows",
              r->position, r->rows);
    cr_expect(r->worst > 0 && r->worst < 1e-6, "%g", r->worst);
  }
}

/* A later row reads what the cache held before: of another sequence, or position. */
Test(gpu_mixture, a_token_that_is_not_written) {
  cr_assert_eq(run(&(fault){.rows = 4, .position = 20, .forgets = true}, 1, &all), MK_OK, "%s", mk_error_message());
  const mixture_result *r = find("4 rows", "two rows");
  cr_expect(r->position == 21 && r->same_up_to == 21 && r->rows == 4 && r->wrong == r->differing && r->wrong > 100,
            "position %u", r->position);
  cr_expect_gt(r->worst, 0.1);
  cr_expect_eq(find("8 rows", "two rows")->differing, 0);
}

Test(gpu_mixture, one_row_that_rounds_otherwise) {
  const mixture_demands several = {.several = MIXTURE_ALWAYS}, short_ones = {.one_row = 40, .several = MIXTURE_ALWAYS};
  cr_assert_eq(run(&(fault){0}, 1.001F, &several), MK_OK, "%s", mk_error_message());
  for (uint32_t i = 0; i < count; i++) {
    const mixture_result *r = &results[i];
    bool one_row = strcmp(r->reference, "one row") == 0;
    cr_expect_eq(r->wrong, 0, "%s", r->mix);
    cr_expect_eq(r->demanded, one_row ? 0 : r->compared, "%s", r->mix);
    cr_expect_eq(r->differing != 0, one_row, "%s", r->mix);
  }
  const mixture_result *r = find("16 rows", "one row");
  cr_expect(r->same_up_to == 0 && fabs(r->worst - 1e-3) < 1e-5 && fabs(r->error - 1e-3) < 1e-5, "%g, %g", r->worst,
            r->error);
  cr_assert_eq(run(&(fault){0}, 1.001F, &short_ones), MK_OK, "%s", mk_error_message());
  r = find("16 rows", "one row");
  cr_expect(r->demanded == 13 + 29 + 3 * 40 && r->wrong == r->demanded, "%u of %u", r->wrong, r->demanded);
}

Test(gpu_mixture, not_a_number) {
  cr_assert_eq(run(&(fault){.rows = 16, .position = 30, .value = NAN}, 1, &all), MK_OK, "%s", mk_error_message());
  const mixture_result *r = find("16 rows", "one row");
  cr_expect(isnan(r->worst) && isnan(r->error) && r->wrong == 3, "%g, %g, %u", r->worst, r->error, r->wrong);
  cr_assert_eq(run(&(fault){.rows = 2, .position = 30, .value = INFINITY}, 1, &all), MK_ERR_DEVICE);
  cr_assert_str_eq(mk_error_message(), "two rows, sequence 2, position 30: the logits are not numbers");
  cr_assert_eq(run(&(fault){0}, 0, &all), MK_ERR_DEVICE);
  cr_assert_str_eq(mk_error_message(), "one row, sequence 0, position 0: the logits are all zero");
}
