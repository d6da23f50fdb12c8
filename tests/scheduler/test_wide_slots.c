/* Wide programs of several slots: whoever is beside it, and wherever its lines lie, a sequence has the bits that it has
 * alone, token by token. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/effort.h"
#include "tests/support/prompts.h"
#include "vm/program/attend_list.h"
#include "vm/verify/verify.h"

TestSuite(wide_slots, .timeout = MK_HANG_SECONDS);

enum { CONTEXT = 320, SEQUENCES = 24, STEPS = 6 };

#define COMMON .max_position = 1024, .rms_eps = 1e-5f, .rope_theta = 10000
static const mk_config shapes[] = {
    {.hidden = 128, .intermediate = 160, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 64, .vocab = 99, COMMON},
    /* Nothing in whole tiles but the heads; groups of three. */
    {.hidden = 203, .intermediate = 331, .layers = 1, .heads = 3, .kv_heads = 1, .head_dim = 128, .vocab = 131, COMMON},
    {.hidden = 72, .intermediate = 272, .layers = 1, .heads = 2, .kv_heads = 2, .head_dim = 64, .vocab = 77, COMMON},
};

/* Token i of a sequence, of which there are SEQUENCES: those of other slots are of the same. */
static uint32_t token_of(const mk_program *program, uint32_t sequence, uint32_t i) {
  return test_prompt_token(program, sequence * 1009 + i);
}

static uint32_t length_of(uint32_t sequence) { return sequence < 3 ? CONTEXT : 20 + sequence * 7; }

typedef struct alone { /* logits of every position of each sequence, one row a step */
  mk_program *program;
  float *logits; /* [SEQUENCES][CONTEXT][vocab] */
  uint32_t sequence;
  mk_cpu *cpu;
} alone;

static float *logits_at(const alone *a, uint32_t sequence, uint32_t position) {
  return a->logits + ((size_t)sequence * CONTEXT + position) * (a->program->ranges.token.high + 1);
}

static bool keep(void *user, uint32_t step, const uint32_t *results) {
  const alone *a = user;
  (void)results;
  memcpy(logits_at(a, a->sequence, step), test_prompt_logits(a->program, a->cpu, 1),
         (a->program->ranges.token.high + 1) * sizeof(float));
  return true;
}

static void run_alone(const mk_config *config, alone *a) {
  mk_step_row plan[CONTEXT];
  a->program = test_prompt_program(config, 3, CONTEXT, 1);
  a->cpu = test_prompt_machine(a->program, &(mk_cpu_options){.threads = 1});
  cr_assert_eq(mk_alloc((size_t)SEQUENCES * CONTEXT * config->vocab, sizeof *a->logits, &a->logits), MK_OK);
  for (a->sequence = 0; a->sequence < SEQUENCES; a->sequence++) {
    const uint32_t length = length_of(a->sequence);
    for (uint32_t i = 0; i < length; i++) {
      plan[i] = (mk_step_row){
          .position = i, .token = token_of(a->program, a->sequence, i), .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
    }
    cr_assert_eq(mk_cpu_run_plan(a->cpu, plan, length, keep, a), MK_OK, "%s", mk_error_message());
  }
}

static void free_alone(alone *a) {
  mk_cpu_free(a->cpu);
  mk_program_free(a->program);
  mk_free(a->logits);
}

static mk_status compile(const mk_config *config, mk_compile_options options, mk_program **out) {
  mk_config copy = *config;
  mk_graph *graph;
  mk_config_set_context(&copy, options.max_seq);
  cr_assert_eq(mk_llama_graph(&copy, &graph), MK_OK, "%s", mk_error_message());
  mk_status status = mk_compile(graph, &options, out);
  mk_graph_free(graph);
  return status;
}

static mk_program *program_of(const mk_config *config, uint32_t sms, uint32_t rows, uint32_t slots) {
  mk_program *p;
  const mk_compile_options options = {.sms = sms, .max_seq = CONTEXT, .rows = rows, .slots = slots};
  cr_assert_eq(compile(config, options, &p), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_verify(p, NULL), MK_OK, "%u rows, %u slots, %u SMs: %s", rows, slots, sms, mk_error_message());
  return p;
}

static mk_cpu *machine_of(const mk_program *p, const mk_cpu_options *options) {
  mk_cpu *cpu = test_prompt_machine(p, options);
  mk_plan_buffers found;
  cr_assert_eq(mk_plan_find(p, &found), MK_OK, "%s", mk_error_message());
  uint32_t *table = mk_cpu_memory(cpu, found.table), count = mk_program_slots(p) * p->buffers[found.table].cols;
  for (uint32_t i = 0; i < count; i++) {
    table[i] = count - 1 - i;
  }
  return cpu;
}

static uint32_t below(uint64_t *random, uint32_t n) {
  *random = *random * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((*random >> 33) % n);
}

/* Lines of a step: idle ones, runs of a prompt, and single rows, of slots in any order. false: all have come to their
 * ends. */
static bool draw_step(const mk_program *p, mk_step_row *rows, uint32_t *positions, uint64_t *random) {
  const uint32_t count = mk_program_rows(p), slots = mk_program_slots(p);
  const uint32_t most = below(random, 3) == 0 ? count : 1 + below(random, 40), gaps = below(random, 2) == 0 ? 8 : 500;
  memset(rows, 0, count * sizeof *rows);
  for (uint32_t line = below(random, 5) == 0 ? below(random, count) : 0, run; line < count; line += run) {
    const uint32_t slot = below(random, slots), sequence = slot % SEQUENCES;
    const uint32_t left = length_of(sequence) - positions[slot];
    run = 1 + below(random, most);
    run = run < count - line ? run : count - line;
    for (uint32_t i = 0; i < run && i < left && below(random, gaps) != 0; i++) {
      const uint32_t at = positions[slot]++;
      rows[line + i] = (mk_step_row){.slot = slot,
                                     .position = at,
                                     .token = token_of(p, sequence, at),
                                     .flags = MK_ROW_ACTIVE | (below(random, 3) != 0 ? (uint32_t)MK_ROW_CHOOSES : 0)};
    }
  }
  bool any = false;
  for (uint32_t line = 0; line < count; line++) {
    any = any || rows[line].flags != 0;
  }
  for (uint32_t slot = 0; slot < slots && !any; slot++) {
    const uint32_t at = positions[slot], sequence = slot % SEQUENCES;
    any = at < length_of(sequence);
    if (any) {
      positions[slot]++;
      rows[count - 1] = (mk_step_row){
          .slot = slot, .position = at, .token = token_of(p, sequence, at), .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
    }
  }
  return any;
}

typedef struct company {
  const mk_program *program;
  mk_cpu *cpu;
  const alone *alone;
  const mk_step_row *plan;
  uint32_t chosen;
} company;

static bool compare(void *user, uint32_t step, const uint32_t *results) {
  company *c = user;
  const uint32_t rows = mk_program_rows(c->program), vocab = c->program->ranges.token.high + 1;
  const float *logits = mk_cpu_memory(c->cpu, (size_t)MK_OPERAND_BUFFER(c->program, HEAD, logits));
  for (uint32_t line = 0; line < rows; line++) {
    const mk_step_row *row = &c->plan[(size_t)step * rows + line];
    if ((row->flags & MK_ROW_ACTIVE) == 0 || (row->flags & MK_ROW_CHOOSES) == 0) {
      cr_assert_eq(results[line], MK_CANDIDATE_NONE);
      continue;
    }
    const float *want = logits_at(c->alone, row->slot % SEQUENCES, row->position),
                *have = logits + (size_t)line * vocab;
    uint32_t best = 0;
    for (uint32_t i = 0; i < vocab; i++) {
      cr_assert(mk_float_param(have[i]) == mk_float_param(want[i]) && isfinite(want[i]),
                "%u rows, step %u, line %u, slot %u, position %u: logit %u is %a, not %a", rows, step, line, row->slot,
                row->position, i, (double)have[i], (double)want[i]);
      best = want[i] > want[best] ? i : best;
    }
    cr_assert_eq(results[line], best);
    c->chosen++;
  }
  return true;
}

/* Launches of a random plan; those that the plan's check refuses are none that we draw. */
static uint32_t expect_alike(const alone *a, const mk_program *p, const mk_cpu_options *options, uint64_t random) {
  const uint32_t rows = mk_program_rows(p);
  uint32_t positions[MK_MOST_ROWS] = {0};
  mk_step_row *plan;
  company c = {.program = p, .cpu = machine_of(p, options), .alone = a};
  cr_assert_eq(mk_alloc((size_t)STEPS * rows, sizeof *plan, &plan), MK_OK);
  uint32_t steps = 0;
  while (steps < STEPS && draw_step(p, plan + (size_t)steps * rows, positions, &random)) {
    steps++;
  }
  c.plan = plan;
  cr_assert_eq(mk_cpu_run_plan(c.cpu, plan, steps, compare, &c), MK_OK, "%s", mk_error_message());
  mk_free(plan);
  mk_cpu_free(c.cpu);
  return c.chosen;
}

static void expect_shape(const mk_config *config, uint64_t seed) {
  static const uint32_t sms[] = {1, 5, 60};
  alone a = {0};
  uint32_t chosen = 0;
  run_alone(config, &a);
  for (uint32_t rows = MK_PROMPT_ROWS; rows <= MK_MOST_SHARED_ROWS; rows *= 2) {
    for (uint32_t i = 0; i < 3; i++) {
      if (test_is_quick() && (i + rows / MK_PROMPT_ROWS) % 3 != 0) {
        continue;
      }
      mk_program *p = program_of(config, sms[i], rows, i == 0 ? 2 : i == 1 ? rows : rows / 2 + 1);
      const mk_cpu_options races = {.seed = ++seed, .adversarial = seed % 2 == 0, .check_races = true};
      const mk_cpu_options threads = {.threads = 4};
      chosen += expect_alike(&a, p, &races, seed);
      chosen += expect_alike(&a, p, &threads, seed + 1000);
      mk_program_free(p);
    }
  }
  cr_assert_gt(chosen, 50);
  free_alone(&a);
}

Test(wide_slots, groups_of_two) { expect_shape(&shapes[0], 1); }
Test(wide_slots, nothing_in_whole_tiles_and_groups_of_three) { expect_shape(&shapes[1], 100); }
Test(wide_slots, no_groups) { expect_shape(&shapes[2], 200); }
Test(wide_slots, biases_and_norms_of_heads) {
  mk_config c = shapes[1];
  c.qkv_bias = true;
  c.qk_norm = MK_QK_NORM_HEAD;
  expect_shape(&c, 300);
}

Test(wide_slots, factors) {
  mk_config c = shapes[1];
  c.embedding_multiplier = 12;
  c.residual_multiplier = 0.22;
  c.attention_multiplier = 0.1;
  c.logits_scaling = 7;
  expect_shape(&c, 400);
}

Test(wide_slots, all_biases) {
  mk_config c = shapes[1];
  c.qkv_bias = true;
  c.o_bias = true;
  c.mlp_bias = true;
  expect_shape(&c, 500);
}

Test(wide_slots, norms_after_and_over_all_heads) {
  for (uint32_t i = 0; i < 2; i++) {
    mk_config c = shapes[i];
    c.norm_after = true;
    c.qk_norm = MK_QK_NORM_ALL;
    c.qkv_bias = i == 1;
    c.o_bias = i == 1;
    expect_shape(&c, 600 + 100 * i);
  }
}

static void expect_wide(const mk_config *config, mk_compile_options options, bool wide) {
  mk_program *p;
  options.sms = 4;
  options.max_seq = 128;
  cr_assert_eq(compile(config, options, &p), MK_OK, "%s", mk_error_message());
  cr_assert_eq(MK_OPERAND_BUFFER(p, ATTEND, work) >= 0, wide, "%u rows, %u slots", options.rows, options.slots);
  cr_assert_eq(mk_verify(p, NULL), MK_OK, "%s", mk_error_message());
  mk_program_free(p);
}

/* Fewer rows, other families and one slot have no work lists; 1,024 rows are of one slot. */
Test(wide_slots, which_programs_have_lists) {
  mk_config c = shapes[0];
  mk_program *p;
  expect_wide(&c, (mk_compile_options){.rows = 64, .slots = 2}, true);
  expect_wide(&c, (mk_compile_options){.rows = 128}, true);
  expect_wide(&c, (mk_compile_options){.rows = 512, .slots = 200}, true);
  expect_wide(&c, (mk_compile_options){.rows = 64}, false);
  expect_wide(&c, (mk_compile_options){.rows = 32}, false);
  expect_wide(&c, (mk_compile_options){.rows = 256, .slots = 1}, false);
  cr_assert_eq(compile(&c, (mk_compile_options){.sms = 4, .max_seq = 128, .rows = 1024, .slots = 2}, &p), MK_ERR_USAGE);
  c.qkv_bias = true;
  expect_wide(&c, (mk_compile_options){.rows = 128}, true);
  c.norm_after = true;
  expect_wide(&c, (mk_compile_options){.rows = 128}, true);
  c.gelu = true;
  expect_wide(&c, (mk_compile_options){.rows = 128}, false);
}

static mk_program *compile_like(const char *shape, uint32_t rows) {
  mk_config config;
  mk_graph *graph;
  mk_program *p;
  cr_assert_eq(mk_synth_shape(shape, &config), MK_OK);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK, "%s", mk_error_message());
  const mk_compile_options options = {.sms = MK_DEFAULT_SMS, .max_seq = 4096, .rows = rows, .slots = rows};
  cr_assert_eq(mk_compile(graph, &options, &p), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return p;
}

/* In each layer the units of an opcode are dealt evenly to the SMs in use, whose last one decides when all are done. */
static void expect_even(const char *shape, uint32_t rows, uint32_t opcode) {
  mk_program *p = compile_like(shape, rows);
  enum { LAYERS = 32 };
  uint32_t units[LAYERS] = {0}, most[LAYERS] = {0}, sms = 0;
  for (uint32_t q = 0; q < p->queue_count; q++) {
    uint32_t own[LAYERS] = {0};
    sms += p->queues[q].count != 0;
    for (uint32_t i = p->queues[q].first; i < p->queues[q].first + p->queues[q].count; i++) {
      if (p->instructions[i].opcode == opcode) {
        own[p->instructions[i].layer]++;
      }
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
      units[layer] += own[layer];
      most[layer] = own[layer] > most[layer] ? own[layer] : most[layer];
    }
  }
  for (uint32_t layer = 0; layer < LAYERS; layer++) {
    cr_assert_lt(most[layer] * sms, units[layer] + sms, "%s, %u rows, opcode %u, layer %u: %u of %u units on an SM",
                 shape, rows, opcode, layer, most[layer], units[layer]);
  }
  mk_program_free(p);
}

Test(wide_slots, units_are_dealt_evenly) {
  static const uint32_t opcodes[] = {MK_OP_QKV, MK_OP_APPEND, MK_OP_ATTEND, MK_OP_GLU};
  for (size_t i = 0; i < sizeof opcodes / sizeof opcodes[0]; i++) {
    expect_even("llama-3.2-1b", 64, opcodes[i]);
    expect_even("llama-3.2-1b", 256, opcodes[i]);
    expect_even("llama-3.1-8b", 64, opcodes[i]);
  }
}

/* What a step of so many rows takes beside weights and cache: 512 of 8B have a gigabyte. */
Test(wide_slots, memory_of_a_step) {
  mk_program *p = compile_like("llama-3.1-8b", 512);
  uint64_t bytes = 0;
  for (size_t b = 0; b < p->buffer_count; b++) {
    const bool other = p->buffers[b].kind == MK_KIND_WEIGHT || p->buffers[b].kind == MK_KIND_KV;
    bytes += other ? 0 : p->buffers[b].bytes;
  }
  cr_assert_lt(bytes, UINT64_C(400) << 20, "%llu bytes", (unsigned long long)bytes);
  mk_program_free(p);
}
