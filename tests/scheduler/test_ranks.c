/* Programs of several ranks: what they compute is what those of one compute, bit for bit, whichever ranks come late,
 * and what a rank has is its share. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "instructions/sampling_host.h"
#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/place.h"
#include "tests/support/effort.h"
#include "tests/support/prompts.h"
#include "vm/verify/verify.h"

TestSuite(ranks, .timeout = MK_HANG_SECONDS);

#define COMMON .max_position = 1024, .rms_eps = 1e-5f, .rope_theta = 10000
enum {
  TWO_HEADS,
  ODD,
  ONE_HEAD,
  PARTS,
  SHAPES,
  WIDE = SHAPES,
  WIDE_ODD,
  WIDE_KIN,
  WIDE_AFTER,
  WINDOWED,
  GEMMA,
  ALL_SHAPES
};
static const mk_config shapes[ALL_SHAPES] = {
    [TWO_HEADS] = {.hidden = 128,
                   .intermediate = 160,
                   .layers = 2,
                   .heads = 4,
                   .kv_heads = 2,
                   .head_dim = 64,
                   .vocab = 99,
                   COMMON},
    /* Nothing in whole tiles but the heads; three heads over any number of ranks. */
    [ODD] = {.hidden = 203,
             .intermediate = 331,
             .layers = 1,
             .heads = 3,
             .kv_heads = 3,
             .head_dim = 128,
             .vocab = 131,
             COMMON},
    [ONE_HEAD] = {.hidden = 96,
                  .intermediate = 272,
                  .layers = 1,
                  .heads = 4,
                  .kv_heads = 1,
                  .head_dim = 64,
                  .vocab = 77,
                  .tied = true,
                  COMMON},
    /* K of o and down in parts. */
    [PARTS] = {.hidden = 64,
               .intermediate = 1040,
               .layers = 1,
               .heads = 8,
               .kv_heads = 8,
               .head_dim = 64,
               .vocab = 210,
               .tied = true,
               COMMON},
    /* Of the wide form each rank needs a unit of eight row tiles of gate and up. */
    [WIDE] = {.hidden = 128,
              .intermediate = 700,
              .layers = 2,
              .heads = 4,
              .kv_heads = 2,
              .head_dim = 64,
              .vocab = 99,
              COMMON},
    [WIDE_ODD] = {.hidden = 203,
                  .intermediate = 667,
                  .layers = 1,
                  .heads = 3,
                  .kv_heads = 3,
                  .head_dim = 128,
                  .vocab = 131,
                  COMMON},
    /* With an offset before each addition. */
    [WIDE_KIN] = {.hidden = 203,
                  .intermediate = 667,
                  .layers = 2,
                  .heads = 4,
                  .kv_heads = 2,
                  .head_dim = 64,
                  .vocab = 99,
                  .qkv_bias = true,
                  .o_bias = true,
                  .mlp_bias = true,
                  .embedding_multiplier = 12,
                  .residual_multiplier = 0.22,
                  .logits_scaling = 7,
                  COMMON},
    /* With norms of what is added, and rows of q, k and v that ranks share as they come. */
    [WIDE_AFTER] = {.hidden = 203,
                    .intermediate = 667,
                    .layers = 2,
                    .heads = 4,
                    .kv_heads = 2,
                    .head_dim = 64,
                    .vocab = 99,
                    .norm_after = true,
                    .qk_norm = MK_QK_NORM_ALL,
                    .qkv_bias = true,
                    .o_bias = true,
                    COMMON},
    [WINDOWED] = {.hidden = 96,
                  .intermediate = 272,
                  .layers = 2,
                  .heads = 4,
                  .kv_heads = 1,
                  .head_dim = 64,
                  .vocab = 77,
                  .tied = true,
                  .window = 39,
                  .windowed = {2},
                  COMMON},
    /* As Gemma 3 has it: norms on both sides, of 1 + w, and heads of 256 that are normed. */
    [GEMMA] = {.hidden = 96,
               .intermediate = 272,
               .layers = 2,
               .heads = 4,
               .kv_heads = 2,
               .head_dim = 256,
               .vocab = 77,
               .tied = true,
               .qk_norm = MK_QK_NORM_HEAD,
               .norm_around = true,
               .norm_plus_one = true,
               .gelu = true,
               .embedding_multiplier = 9.8125,
               .attention_multiplier = 0.0625,
               .window = 39,
               .windowed = {1},
               .rope_local_theta = 100,
               COMMON},
};

typedef struct form { /* of a program, and what it is asked to compute */
  uint32_t rows, slots, context, steps;
  bool sampling;
  mk_dtype kv;
} form;

static mk_status try_compile(const mk_config *config, const form *f, uint32_t ranks, uint32_t sms, mk_program **out) {
  mk_config copy = *config;
  mk_graph *graph;
  const mk_compile_options options = {.sms = sms,
                                      .ranks = ranks,
                                      .max_seq = f->context,
                                      .rows = f->rows,
                                      .slots = f->slots,
                                      .kv = f->kv,
                                      .sampling = f->sampling};
  mk_config_set_context(&copy, f->context);
  cr_assert_eq(mk_llama_graph(&copy, &graph), MK_OK, "%s", mk_error_message());
  mk_status status = mk_compile(graph, &options, out);
  mk_graph_free(graph);
  return status;
}

static mk_program *compile(const mk_config *config, const form *f, uint32_t ranks, uint32_t sms) {
  mk_program *program;
  cr_assert_eq(try_compile(config, f, ranks, sms, &program), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_verify(program, NULL), MK_OK, "%u ranks of %u SMs, %u rows: %s", ranks, sms, f->rows,
               mk_error_message());
  return program;
}

/* Each slot goes on by some rows a step, of given tokens; in the last steps by one row, which goes on from what the
 * slot has chosen. */
static mk_step_row *make_plan(const mk_program *p, const form *f) {
  enum { LAST = 4 };
  uint32_t positions[MK_MOST_ROWS] = {0};
  mk_step_row *plan;
  cr_assert_eq(mk_alloc((size_t)f->steps * f->rows, sizeof *plan, &plan), MK_OK);
  for (uint32_t step = 0; step < f->steps; step++) {
    const bool last = step + LAST >= f->steps;
    const uint32_t share = last ? 1 : f->rows / f->slots;
    uint32_t line = 0;
    for (uint32_t slot = 0; slot < f->slots; slot++) {
      const uint32_t some = share == 1 || f->slots == 1 ? share : 1 + (step * 7 + slot * 3) % share;
      for (uint32_t i = 0; i < some; i++, line++) {
        const bool chosen = last && step + LAST != f->steps;
        mk_step_row *row = &plan[(size_t)step * f->rows + line];
        *row = (mk_step_row){.slot = slot, .position = positions[slot]++, .flags = MK_ROW_ACTIVE};
        row->token = chosen ? MK_TOKEN_CHOSEN : test_prompt_token(p, slot * 1009 + row->position);
        row->flags |= chosen ? 0 : MK_ROW_PROMPT;
        row->flags |= i + 1 == some && (last || f->slots > 1 || f->rows == 1) ? MK_ROW_CHOOSES : 0;
      }
    }
  }
  return plan;
}

typedef struct seen { /* of a run */
  const mk_program *program;
  mk_cpu *cpu;
  const mk_step_row *plan;
  uint64_t hash; /* of all logits and choices */
  uint32_t chosen;
} seen;

static bool look(void *user, uint32_t step, const uint32_t *results) {
  seen *s = user;
  const uint32_t rows = mk_program_rows(s->program), vocab = s->program->ranges.token.high + 1;
  const float *logits = mk_cpu_memory(s->cpu, (size_t)MK_OPERAND_BUFFER(s->program, HEAD, logits));
  for (uint32_t line = 0; line < rows; line++) {
    if ((s->plan[(size_t)step * rows + line].flags & MK_ROW_CHOOSES) == 0) {
      continue;
    }
    for (uint32_t i = 0; i < vocab; i++) {
      cr_assert(isfinite(logits[(size_t)line * vocab + i]), "step %u, line %u: logit %u is no number", step, line, i);
      s->hash = (s->hash ^ mk_float_param(logits[(size_t)line * vocab + i])) * 0x100000001b3u;
    }
    s->hash = (s->hash ^ results[line]) * 0x100000001b3u;
    s->chosen++;
  }
  return true;
}

static void fill_inputs(const mk_program *p, mk_cpu *cpu, const form *f) {
  mk_plan_buffers found;
  cr_assert_eq(mk_plan_find(p, &found), MK_OK, "%s", mk_error_message());
  uint32_t *table = mk_cpu_memory(cpu, found.table), count = mk_program_slots(p) * p->buffers[found.table].cols;
  for (uint32_t i = 0; i < count; i++) {
    table[i] = count - 1 - i;
  }
  for (uint32_t slot = 0; f->sampling && slot < f->rows; slot++) {
    const mk_sampling choice = {
        .temperature = 0.9, .top_p = 0.8, .top_k = slot % 2 == 0 ? 20 : 0, .repetition = 1, .seed = slot + 1};
    uint32_t *words = mk_cpu_memory(cpu, (size_t)mk_program_find_buffer(p, "sampling"));
    mk_sampling_words(&choice, p->ranges.token.high + 1, words + (size_t)slot * MK_SAMPLING_WORDS);
  }
}

static uint64_t run(const mk_program *p, const form *f, const mk_cpu_options *options) {
  seen s = {.program = p, .cpu = test_prompt_machine(p, options), .hash = 0xcbf29ce484222325u};
  mk_step_row *plan = make_plan(p, f);
  fill_inputs(p, s.cpu, f);
  s.plan = plan;
  cr_assert_eq(mk_cpu_run_plan(s.cpu, plan, f->steps, look, &s), MK_OK, "%u ranks, seed %llu: %s", p->machine.ranks,
               (unsigned long long)options->seed, mk_error_message());
  cr_assert_gt(s.chosen, 0);
  mk_cpu_free(s.cpu);
  mk_free(plan);
  return s.hash;
}

/* The bits of one rank, on 2, 3, 4 and 8: greedy on threads, and `hostile` times where pushes come late. */
static void expect_bits(const mk_config *config, const form *f, uint32_t hostile) {
  static const uint32_t ranks[] = {2, 3, 4, 8}, sms[] = {3, 2, 1, 2};
  mk_program *one = compile(config, f, 1, 3);
  const uint64_t want = run(one, f, &(mk_cpu_options){.threads = 1});
  mk_program_free(one);
  for (uint32_t i = 0; i < 4; i++) {
    mk_program *p = compile(config, f, ranks[i], sms[i]);
    cr_assert_eq(run(p, f, &(mk_cpu_options){.threads = 3}), want, "%u ranks", ranks[i]);
    /* When several draw, each looks at what all have, round by round. */
    for (uint64_t seed = 1; seed <= hostile && (!f->sampling || ranks[i] * sms[i] <= 6); seed++) {
      const mk_cpu_options options = {.seed = seed, .adversarial = seed % 3 != 0, .check_races = true};
      cr_assert_eq(run(p, f, &options), want, "%u ranks, seed %llu", ranks[i], (unsigned long long)seed);
    }
    mk_program_free(p);
  }
}

static void expect_form(uint32_t shape, form f) { expect_bits(&shapes[shape], &f, test_effort(2, 12)); }

Test(ranks, one_row) {
  for (uint32_t shape = 0; shape < SHAPES; shape++) {
    expect_form(shape, (form){.rows = 1, .slots = 1, .context = 64, .steps = 9});
  }
}

/* Several splits in use, which with more ranks than heads lie on several ranks. */
Test(ranks, one_row_over_spans) {
  const form f = {.rows = 1, .slots = 1, .context = 1024, .steps = 530};
  expect_bits(&shapes[ONE_HEAD], &f, 0);
  expect_bits(&shapes[ODD], &f, 0);
  const form hostile = {.rows = 1, .slots = 1, .context = 1024, .steps = 262};
  expect_bits(&shapes[ONE_HEAD], &hostile, test_effort(0, 1));
}

Test(ranks, several_rows) {
  for (uint32_t shape = 0; shape < SHAPES; shape++) {
    expect_form(shape, (form){.rows = 4, .slots = 4, .context = 64, .steps = 7});
    expect_form(shape, (form){.rows = 16, .slots = 3, .context = 128, .steps = 7});
  }
}

Test(ranks, several_rows_over_units) {
  const form f = {.rows = 16, .slots = 2, .context = 1024, .steps = 60};
  expect_bits(&shapes[ONE_HEAD], &f, 0);
}

Test(ranks, prompts_of_a_form_of_their_own) {
  expect_form(TWO_HEADS, (form){.rows = 64, .slots = 1, .context = 320, .steps = 7});
  expect_form(ODD, (form){.rows = 8, .slots = 1, .context = 128, .steps = 9});
}

Test(ranks, sampling) {
  expect_form(TWO_HEADS, (form){.rows = 1, .slots = 1, .context = 64, .steps = 9, .sampling = true});
  expect_form(ODD, (form){.rows = 4, .slots = 4, .context = 64, .steps = 7, .sampling = true});
}

Test(ranks, wide_steps) {
  expect_form(WIDE, (form){.rows = 128, .slots = 1, .context = 640, .steps = 7});
  expect_form(WIDE_ODD, (form){.rows = 256, .slots = 1, .context = 1024, .steps = 6});
  expect_form(PARTS, (form){.rows = 128, .slots = 1, .context = 640, .steps = 6});
  expect_form(WIDE_KIN, (form){.rows = 128, .slots = 1, .context = 640, .steps = 6});
  expect_form(WIDE_AFTER, (form){.rows = 128, .slots = 1, .context = 640, .steps = 6});
}

Test(ranks, wide_steps_of_several_sequences) {
  expect_form(WIDE, (form){.rows = 64, .slots = 5, .context = 128, .steps = 6});
  expect_form(WIDE_ODD, (form){.rows = 256, .slots = 20, .context = 128, .steps = 6});
  expect_form(WIDE, (form){.rows = 128, .slots = 7, .context = 128, .steps = 6, .sampling = true});
  expect_form(WIDE_KIN, (form){.rows = 64, .slots = 5, .context = 128, .steps = 6, .sampling = true});
  expect_form(WIDE_AFTER, (form){.rows = 64, .slots = 5, .context = 128, .steps = 6, .sampling = true});
}

Test(ranks, a_cache_in_fp8) {
  expect_form(ONE_HEAD, (form){.rows = 1, .slots = 1, .context = 64, .steps = 9, .kv = MK_DTYPE_E4M3});
  expect_form(ODD, (form){.rows = 16, .slots = 3, .context = 128, .steps = 7, .kv = MK_DTYPE_E4M3});
  expect_form(WIDE, (form){.rows = 64, .slots = 5, .context = 128, .steps = 6, .kv = MK_DTYPE_E4M3});
}

/* Of each form, with parts of K, and with columns that are no whole strips. */
Test(ranks, quantised_weights) {
  static const struct {
    uint32_t shape, group;
    mk_codes codes;
    bool zeros;
    form of;
  } cases[] = {
      {TWO_HEADS, 64, MK_CODES_INT4, true, {.rows = 1, .slots = 1, .context = 64, .steps = 9}},
      {ODD, 0, MK_CODES_E4M3, false, {.rows = 1, .slots = 1, .context = 64, .steps = 9, .sampling = true}},
      {PARTS, 0, MK_CODES_INT8, false, {.rows = 16, .slots = 3, .context = 128, .steps = 7}},
      {ONE_HEAD, 128, MK_CODES_INT4, false, {.rows = 4, .slots = 4, .context = 64, .steps = 7, .kv = MK_DTYPE_E4M3}},
      {WIDE, 0, MK_CODES_E4M3, false, {.rows = 128, .slots = 1, .context = 640, .steps = 5}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mk_config config = shapes[cases[i].shape];
    mk_synth_quantise(&config, cases[i].codes, cases[i].group, MK_TENSOR_BF16, cases[i].zeros);
    expect_bits(&config, &cases[i].of, test_effort(1, 12));
  }
}

/* Splits that lie on several ranks, and of which some see nothing. */
Test(ranks, windows) {
  const form f = {.rows = 1, .slots = 1, .context = 1024, .steps = 530};
  expect_bits(&shapes[WINDOWED], &f, 0);
  expect_form(WINDOWED, (form){.rows = 16, .slots = 3, .context = 128, .steps = 15});
}

Test(ranks, gemma3) {
  expect_form(GEMMA, (form){.rows = 1, .slots = 1, .context = 64, .steps = 45});
  expect_form(GEMMA, (form){.rows = 16, .slots = 3, .context = 128, .steps = 15});
  expect_form(GEMMA, (form){.rows = 4, .slots = 4, .context = 64, .steps = 7, .sampling = true});
}

Test(ranks, what_is_refused) {
  const form one = {.rows = 1, .slots = 1, .context = 64}, wide = {.rows = 128, .slots = 1, .context = 64};
  mk_program *program;
  cr_assert_eq(try_compile(&shapes[TWO_HEADS], &one, 21, 1, &program), MK_ERR_USAGE);
  cr_assert_not_null(strstr(mk_error_message(), "have 20 row tiles, and each rank needs some"), "%s",
                     mk_error_message());
  cr_assert_eq(try_compile(&shapes[TWO_HEADS], &wide, 4, 1, &program), MK_ERR_USAGE);
  cr_assert_not_null(strstr(mk_error_message(), "eight neighbours of them"), "%s", mk_error_message());
  cr_assert_eq(try_compile(&shapes[TWO_HEADS], &one, MK_MAX_RANKS + 1, 1, &program), MK_ERR_USAGE);
}

/* Every tile is one rank's, and nobody has much more than others. */
Test(ranks, row_tiles_are_dealt_evenly) {
  for (uint32_t tiles = 1; tiles < 3000; tiles += 1 + tiles / 13) {
    for (uint32_t ranks = 1; ranks <= 9; ranks++) {
      uint32_t next = 0, least = tiles, most = 0;
      for (uint32_t rank = 0; rank < ranks; rank++) {
        const mk_share share = mk_rank_tiles(tiles, ranks, rank);
        cr_assert_eq(share.first, next);
        next += share.count;
        least = share.count < least ? share.count : least;
        most = share.count > most ? share.count : most;
      }
      cr_assert_eq(next, tiles);
      cr_assert(most <= least + 1 || (tiles % 8 == 0 && most == least) || most <= least + 8 + tiles / ranks / 16,
                "%u tiles over %u ranks: %u to %u", tiles, ranks, least, most);
    }
  }
}

static uint64_t readers_of(const mk_readers *readers, const mk_program *p, uint32_t opcode, uint32_t slot,
                           uint32_t rank) {
  uint64_t all = 0;
  for (uint32_t q = rank * p->machine.sms; q < (rank + 1) * p->machine.sms; q++) {
    for (uint32_t i = p->queues[q].first; i < p->queues[q].first + p->queues[q].count; i++) {
      all |= p->instructions[i].opcode == opcode ? readers->operands[(size_t)i * MK_MAX_OPERANDS + slot] : 0;
    }
  }
  return all;
}

/* What a rank alone reads is sent to nobody: q, k and v of its heads, parts of attention, and of sums. */
Test(ranks, what_stays_at_home) {
  const form f = {.rows = 1, .slots = 1, .context = 512};
  mk_program *p = compile(&shapes[PARTS], &f, 4, 3);
  mk_readers readers;
  cr_assert_eq(mk_program_readers(p, &readers), MK_OK, "%s", mk_error_message());
  for (uint32_t rank = 0; rank < 4; rank++) {
    const uint64_t own = UINT64_C(1) << rank;
    cr_assert_eq(readers_of(&readers, p, MK_OP_QKV, MK_SLOT_QKV_out, rank), own);
    cr_assert_eq(readers_of(&readers, p, MK_OP_ATTENTION, MK_SLOT_ATTENTION_out, rank), own);
    cr_assert_eq(readers_of(&readers, p, MK_OP_LINEAR_PART, MK_SLOT_LINEAR_PART_out, rank), own);
    cr_assert_eq(readers_of(&readers, p, MK_OP_COMBINE, MK_SLOT_COMBINE_out, rank), 15);
    cr_assert_eq(readers_of(&readers, p, MK_OP_GLU, MK_SLOT_GLU_out, rank), 15);
    cr_assert_eq(readers_of(&readers, p, MK_OP_HEAD, MK_SLOT_HEAD_candidate, rank), 15);
    cr_assert_eq(readers_of(&readers, p, MK_OP_HEAD, MK_SLOT_HEAD_logits, rank), 0);
  }
  mk_readers_free(&readers);
  mk_program_free(p);
}

/* Marks the row tiles of a weight that a rank's products name. */
static void mark_tiles(const mk_program *p, uint32_t rank, size_t buffer, uint8_t *tiles) {
  for (uint32_t q = rank * p->machine.sms; q < (rank + 1) * p->machine.sms; q++) {
    for (uint32_t i = p->queues[q].first; i < p->queues[q].first + p->queues[q].count; i++) {
      const mk_opcode_info *info = mk_opcode_lookup(p->instructions[i].opcode);
      for (uint32_t slot = 0; slot < info->operand_count; slot++) {
        const mk_operand *o = &p->instructions[i].operands[slot];
        if (info->operands[slot].store == MK_OPERAND_STORE_TILES && o->buffer == buffer && o->cols != 0) {
          memset(tiles + o->row, 1, o->rows);
        }
      }
    }
  }
}

/* Whether a rank of a program multiplies nothing that the rank has not in another program, beside which it runs. */
static bool has_all_tiles(const mk_program *program, const mk_program *beside) {
  static uint8_t needed[1 << 14], there[1 << 14];
  bool all = true;
  for (size_t b = 0; b < program->buffer_count; b++) {
    for (uint32_t rank = 0; rank < program->machine.ranks && program->buffers[b].kind == MK_KIND_WEIGHT; rank++) {
      memset(needed, 0, sizeof needed);
      memset(there, 0, sizeof there);
      mark_tiles(program, rank, b, needed);
      mark_tiles(beside, rank, b, there);
      for (size_t t = 0; t < sizeof needed; t++) {
        all = all && (needed[t] == 0 || there[t] != 0);
      }
    }
  }
  return all;
}

static void expect_shares(const mk_config *config, uint32_t ranks, bool shares) {
  const form narrow = {.rows = 1, .slots = 1, .context = 512}, of_prompts = {.rows = 128, .slots = 1, .context = 512};
  const form of_several = {.rows = 64, .slots = 64, .context = 512};
  mk_graph *graph;
  cr_assert_eq(mk_llama_graph(config, &graph), MK_OK, "%s", mk_error_message());
  mk_program *one = compile(config, &narrow, ranks, 4), *wide = compile(config, &of_prompts, ranks, 4);
  mk_program *shared = compile(config, &of_several, ranks, 4);
  const bool even = config->kv_heads % ranks == 0; /* else the answer is no, whether it has to be or not */
  cr_expect_eq(mk_wide_shares(graph, ranks), shares, "%u ranks, hidden %u", ranks, config->hidden);
  cr_expect(has_all_tiles(wide, one) == shares || !even, "%u ranks, hidden %u", ranks, config->hidden);
  /* Where several sequences share wide steps that program is the main one. */
  cr_expect(has_all_tiles(one, shared) == shares || !even, "%u ranks, hidden %u", ranks, config->hidden);
  cr_expect(has_all_tiles(wide, shared) || !shares, "%u ranks, hidden %u", ranks, config->hidden);
  mk_program_free(shared);
  mk_program_free(wide);
  mk_program_free(one);
  mk_graph_free(graph);
}
Test(ranks, tiles_of_wide_programs) {
  static const char *const names[] = {"llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    mk_config config;
    cr_assert_eq(mk_synth_shape(names[i], &config), MK_OK);
    config.layers = 1;
    mk_config after = config;
    after.norm_after = true;
    after.qk_norm = MK_QK_NORM_ALL;
    for (uint32_t ranks = 1; ranks <= (i == 0 ? 4 : 8); ranks *= 2) {
      expect_shares(&config, ranks, true);
      expect_shares(&after, ranks, true);
    }
    expect_shares(&config, 3, false);
  }
  expect_shares(&shapes[WIDE], 2, false); /* 64 rows of keys for a rank */
}
