/* Wide programs: values are plain, and what orders them are release counters and queue order. Each edge left out, or
 * sent too early, is a program that the verifier rejects; and of mutants none that it accepts fails on the CPU
 * machine. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/mutation/mutation.h"
#include "tests/support/effort.h"
#include "tests/support/mutants.h"
#include "tests/support/prompts.h"
#include "tests/support/text.h"
#include "vm/verify/verify.h"

TestSuite(verify_wide, .timeout = MK_HANG_SECONDS);

enum { SMS = 3, CONTEXT = 640, ROWS = 2 * MK_LINE_TILE, TILES = ROWS / MK_LINE_TILE };

/* The first addition of a layer is of whole products, the second one of parts. */
static const mk_config shape = {.hidden = 144,
                                .intermediate = 528,
                                .layers = 2,
                                .heads = 2,
                                .kv_heads = 1,
                                .head_dim = 64,
                                .vocab = 100,
                                .max_position = 1024,
                                .rms_eps = 1e-5f,
                                .rope_theta = 10000};

static mk_program *compile(void) { return test_prompt_program(&shape, SMS, CONTEXT, ROWS); }

/* With what other families have. */
static mk_program *compile_kin(void) {
  mk_config config = shape;
  config.embedding_multiplier = 12;
  config.residual_multiplier = 0.22;
  config.logits_scaling = 7;
  config.o_bias = true;
  config.mlp_bias = true;
  return test_prompt_program(&config, SMS, CONTEXT, ROWS);
}

/* Which norms what it adds, and heads of q and k all together. */
static mk_program *compile_after(void) {
  mk_config config = shape;
  config.norm_after = true;
  config.qk_norm = MK_QK_NORM_ALL;
  config.o_bias = true;
  return test_prompt_program(&config, SMS, CONTEXT, ROWS);
}

/* The `number`th one of that opcode. */
static mk_instruction *find(mk_program *p, mk_opcode opcode, uint32_t number) {
  for (size_t i = 0; i < p->instruction_count; i++) {
    if (p->instructions[i].opcode == opcode && number-- == 0) {
      return &p->instructions[i];
    }
  }
  cr_assert_fail("no such instruction");
  return NULL;
}

static uint32_t count(const mk_program *p, mk_opcode opcode) {
  uint32_t found = 0;
  for (size_t i = 0; i < p->instruction_count; i++) {
    found += p->instructions[i].opcode == opcode;
  }
  return found;
}

static void drop_wait(mk_instruction *in, uint32_t number) {
  memmove(&in->waits[number], &in->waits[number + 1], (MK_MAX_WAITS - 1 - number) * sizeof in->waits[0]);
  in->waits[MK_MAX_WAITS - 1] = (mk_wait){0};
  in->wait_count--;
}

/* By one of these rules: which access the order is missed at first depends on the program. */
static void expect_order_rejected(mk_program *p, const char *what, const mk_instruction *in) {
  mk_verify_report report;
  cr_assert_eq(mk_verify(p, &report), MK_ERR_REJECTED, "%s of #%u %s: it was accepted", what, in->uid,
               mk_opcode_lookup(in->opcode)->name);
  cr_assert(strcmp(report.rule, "R01") == 0 || strcmp(report.rule, "R02") == 0 || strcmp(report.rule, "R03") == 0 ||
                strcmp(report.rule, "E04") == 0,
            "%s of #%u: %s", what, in->uid, mk_error_message());
}

Test(verify_wide, unchanged_program_is_accepted) {
  mk_program *p = compile();
  cr_assert_eq(mk_verify(p, NULL), MK_OK, "%s", mk_error_message());
  cr_assert(count(p, MK_OP_LINEAR_PART) != 0 && count(p, MK_OP_LINEAR_ADD) != 0);
  for (size_t c = 0; c < p->counter_count; c++) {
    cr_assert_eq(p->counters[c].kind, MK_COUNTER_RELEASE);
  }
  mk_program_free(p);
}

/* Whether both tell of the same value, of any tile of its lines: whoever made one of them may have made the other
 * before. */
static bool of_same_value(const mk_program *p, uint32_t a, uint32_t b) {
  const char *first = p->counters[a].name, *second = p->counters[b].name;
  const char *end = strrchr(first, '.');
  const size_t length = end == NULL ? strlen(first) : (size_t)(end - first);
  return a == b || (strncmp(first, second, length) == 0 && second[length] == '.');
}

/* Each wait by itself is needed, but where an earlier instruction of the queue has made it, or one for another tile. */
static void leave_out_waits(mk_program *(*make)(void), const mk_opcode *needed, uint32_t opcodes) {
  uint32_t tried = 0;
  for (uint32_t o = 0; o < opcodes; o++) {
    mk_program *base = make();
    const uint32_t all = count(base, needed[o]), step = all / test_effort(6, 60) + 1;
    mk_program_free(base);
    for (uint32_t n = 0; n < all; n += step) {
      mk_program *p = make();
      mk_instruction *in = find(p, needed[o], n);
      const uint32_t wait = n % in->wait_count;
      bool known = false;
      for (const mk_instruction *other = in - 1; other >= p->instructions; other--) {
        for (uint32_t w = 0; w < other->wait_count; w++) {
          known |= of_same_value(p, in->waits[wait].counter, other->waits[w].counter);
        }
      }
      if (!known) {
        drop_wait(in, wait);
        expect_order_rejected(p, "wait", in);
        tried++;
      }
      mk_program_free(p);
    }
  }
  cr_assert_gt(tried, 5);
}
Test(verify_wide, a_wait_left_out) {
  static const mk_opcode needed[] = {MK_OP_QKV,         MK_OP_APPEND,     MK_OP_ATTEND,    MK_OP_GLU,
                                     MK_OP_LINEAR_PART, MK_OP_LINEAR_ADD, MK_OP_REDUCE_ADD};
  static const mk_opcode after[] = {MK_OP_QKV, MK_OP_NORM_HEADS,  MK_OP_APPEND,  MK_OP_ATTEND,
                                    MK_OP_GLU, MK_OP_LINEAR_PART, MK_OP_SQUARES, MK_OP_ADD_NORMED};
  leave_out_waits(compile, needed, sizeof needed / sizeof needed[0]);
  leave_out_waits(compile_after, after, sizeof after / sizeof after[0]);
}
static void wait_for_less(mk_program *(*make)(void), mk_opcode opcode) {
  mk_program *p = make();
  mk_instruction *in = find(p, opcode, 0);
  in->waits[0].threshold--;
  expect_order_rejected(p, "threshold", in);
  mk_program_free(p);
}
Test(verify_wide, a_wait_for_all_signals_but_one) {
  static const mk_opcode opcodes[] = {MK_OP_QKV, MK_OP_APPEND, MK_OP_GLU, MK_OP_REDUCE_ADD};
  static const mk_opcode after[] = {MK_OP_QKV, MK_OP_NORM_HEADS, MK_OP_GLU, MK_OP_ADD_NORMED};
  for (uint32_t o = 0; o < sizeof opcodes / sizeof opcodes[0]; o++) {
    wait_for_less(compile, opcodes[o]);
  }
  for (uint32_t o = 0; o < sizeof after / sizeof after[0]; o++) {
    wait_for_less(compile_after, after[o]);
  }
}

static void relax_counters(mk_program *(*make)(void)) {
  mk_program *base = make();
  const size_t counters = base->counter_count;
  mk_program_free(base);
  for (size_t c = 0; c < counters; c++) {
    mk_program *p = make();
    p->counters[c].kind = MK_COUNTER_RELAXED;
    if (strcmp(p->counters[c].name, "candidates") == 0) { /* with several layers, others make a boundary of their own */
      mk_program_free(p);
      continue;
    }
    expect_order_rejected(p, p->counters[c].name, p->instructions);
    mk_program_free(p);
  }
}
Test(verify_wide, a_counter_that_orders_nothing) {
  relax_counters(compile);
  relax_counters(compile_after);
}

/* The sum is there, but not what is made of it. */
static void too_early(mk_opcode adds) {
  mk_program *p = compile();
  mk_instruction *add = find(p, adds, 0), *norm = add + 1;
  cr_assert_eq(norm->opcode, MK_OP_NORM);
  add->signals[0] = norm->signals[0];
  add->signal_count = 1;
  norm->signals[0] = (mk_signal){0};
  norm->signal_count = 0;
  expect_order_rejected(p, "signal", norm);
  mk_program_free(p);
}
Test(verify_wide, a_signal_before_the_norm) {
  too_early(MK_OP_REDUCE_ADD);
  too_early(MK_OP_LINEAR_ADD);
}

/* A norm moved before the sum that it is for, in the same queue. */
Test(verify_wide, a_norm_before_its_sum) {
  mk_program *p = compile();
  mk_instruction *add = find(p, MK_OP_LINEAR_ADD, 0), moved = add[0];
  add[0] = add[1];
  add[1] = moved;
  expect_order_rejected(p, "norm", &add[0]);
  mk_program_free(p);
}

/* What a sum begins from, which the queue alone orders. */
Test(verify_wide, an_offset_after_its_sum) {
  mk_program *p = compile_kin();
  mk_instruction *offset = find(p, MK_OP_OFFSET, 0), *norm = find(p, MK_OP_NORM, 0), moved = *offset;
  while (norm < offset || norm->opcode != MK_OP_NORM) {
    norm++;
  }
  memmove(offset, offset + 1, (size_t)(norm - offset) * sizeof *offset);
  *norm = moved;
  expect_order_rejected(p, "offset", norm);
  mk_program_free(p);
}
/* Two SMs begin each other's sums. */
Test(verify_wide, an_offset_of_another_unit) {
  mk_program *p = compile_kin();
  mk_instruction *a = find(p, MK_OP_OFFSET, 0), *b = a + p->queues[0].count, kept = *a;
  while (b->opcode != MK_OP_OFFSET) {
    b++;
  }
  cr_assert_eq(a->layer, b->layer);
  *a = *b;
  *b = kept;
  expect_order_rejected(p, "offset", a);
  mk_program_free(p);
}

/* k and v are there, and not yet in the cache. */
Test(verify_wide, attention_that_waits_for_q_alone) {
  mk_program *p = compile();
  const mk_instruction *append = find(p, MK_OP_APPEND, 0);
  for (uint32_t i = 0; i < count(p, MK_OP_ATTEND); i++) {
    mk_instruction *in = find(p, MK_OP_ATTEND, i);
    if (in->layer == append->layer) {
      memcpy(in->waits, append->waits, sizeof in->waits);
      in->wait_count = append->wait_count;
    }
  }
  expect_order_rejected(p, "wait", append);
  mk_program_free(p);
}

/* The loader has the next instruction's blocks before that one's waits are over: what its own consumer has waited
 * for before tells it nothing. */
Test(verify_wide, a_loader_that_does_not_wait) {
  mk_program *p = test_prompt_program(&shape, 1, CONTEXT, ROWS);
  uint32_t dropped = 0;
  for (size_t i = 1; i < p->instruction_count; i++) {
    mk_instruction *in = &p->instructions[i];
    if (in->opcode == MK_OP_ATTEND && in[-1].opcode == MK_OP_ATTEND && dropped++ == 0) {
      drop_wait(in, 0);
    }
  }
  mk_verify_report report;
  cr_assert_gt(dropped, 0);
  /* Loaders go in order, so what this one has waited for stands. */
  cr_assert_eq(mk_verify(p, &report), MK_OK, "%s", mk_error_message());
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_instruction *in = &p->instructions[i];
    if (in->opcode == MK_OP_ATTEND && in->wait_count != 0) {
      drop_wait(in, 0);
      break;
    }
  }
  expect_order_rejected(p, "wait", find(p, MK_OP_ATTEND, 0));
  mk_program_free(p);
}

Test(verify_wide, a_wait_for_another_tile_of_lines) {
  mk_program *p = compile();
  mk_instruction *in = find(p, MK_OP_GLU, 0);
  in->waits[0].counter = (uint16_t)(in->waits[0].counter + 1 - 2 * in->operands[MK_SLOT_GLU_x].row);
  expect_order_rejected(p, "wait", in);
  mk_program_free(p);
}

/* A step boundary that nothing but stamps makes: an SM that has a part in some tile of lines alone may still read
 * what the next step writes. */
static mk_program *compile_boundary(void) {
  mk_config config = shape;
  config.layers = 1;
  config.intermediate = 1040;
  mk_program *p = test_prompt_program(&config, 60, CONTEXT, MK_MOST_ROWS);
  cr_assert_eq(mk_verify(p, NULL), MK_OK, "%s", mk_error_message());
  return p;
}
Test(verify_wide, a_next_that_does_not_wait) {
  mk_program *p = compile_boundary();
  for (uint32_t i = 0; i < count(p, MK_OP_NEXT); i++) {
    drop_wait(find(p, MK_OP_NEXT, i), 0);
  }
  expect_order_rejected(p, "wait", find(p, MK_OP_NEXT, 0));
  mk_program_free(p);
}
Test(verify_wide, heads_that_do_not_wait_for_all_tiles_of_lines) {
  mk_program *p = compile_boundary();
  for (uint32_t i = 0; i < count(p, MK_OP_HEAD); i++) {
    find(p, MK_OP_HEAD, i)->waits[0].threshold--;
  }
  expect_order_rejected(p, "wait", find(p, MK_OP_HEAD, 0));
  mk_program_free(p);
}

#define REJECTS(name, rule_id, words, ...)                                                               \
  Test(verify_wide, name) {                                                                              \
    mk_program *p = compile();                                                                           \
    mk_verify_report report;                                                                             \
    __VA_ARGS__;                                                                                         \
    cr_assert_eq(mk_verify(p, &report), MK_ERR_REJECTED, "it was accepted");                             \
    cr_assert_str_eq(report.rule, rule_id, "%s", mk_error_message());                                    \
    cr_assert_not_null(strstr(mk_error_message(), words), "`%s` not in: %s", words, mk_error_message()); \
    mk_program_free(p);                                                                                  \
  }

REJECTS(squares_of_another_tile_of_lines, "S10", "tile of lines",
        find(p, MK_OP_QKV, 0)->operands[MK_SLOT_QKV_squares].row ^= 1)
REJECTS(squares_of_some_chains, "S10", "squares: number of columns",
        find(p, MK_OP_GLU, 0)->operands[MK_SLOT_GLU_squares].cols--)
REJECTS(squares_beside_a_gain, "S10", "there can be no gain", {
  mk_instruction *in = find(p, MK_OP_GLU, 0);
  in->operands[MK_SLOT_GLU_gain] = find(p, MK_OP_NORM, 0)->operands[MK_SLOT_NORM_gain];
})
#define REJECTS_KIN(name, rule_id, words, ...) \
  REJECTS(name, rule_id, words, mk_program_free(p); p = compile_kin(); __VA_ARGS__)
REJECTS_KIN(biases_that_are_not_there, "S10", "there can be no gain but that which the biases follow",
            memset(&find(p, MK_OP_GLU, 0)->operands[MK_SLOT_GLU_gain], 0, sizeof(mk_operand)))
REJECTS_KIN(biases_of_another_width, "S09", "number of columns of gain before the biases",
            find(p, MK_OP_GLU, 0)->params[MK_PARAM_GLU_width]--)
REJECTS_KIN(a_norm_by_biases, "S10", "gain: number of tiles of 16 columns", {
  uint32_t number = 0;
  while (find(p, MK_OP_NORM, number)->params[MK_PARAM_NORM_gains] == 0) {
    number++;
  }
  find(p, MK_OP_NORM, number)->params[MK_PARAM_NORM_gains] = 0;
})
REJECTS(a_norm_of_more_than_its_gain, "S09", "it must be below the number of columns of gain",
        find(p, MK_OP_NORM, 0)->params[MK_PARAM_NORM_gains] = 144)
#define REJECTS_AFTER(name, rule_id, words, ...) \
  REJECTS(name, rule_id, words, mk_program_free(p); p = compile_after(); __VA_ARGS__)
REJECTS_AFTER(a_bare_norm_of_some_columns, "S09", "gains is 144; it must be 0 where there is no gain",
              find(p, MK_OP_NORM, 0)->params[MK_PARAM_NORM_gains] = 144)
REJECTS_AFTER(squares_of_another_chain, "S10", "parts: first column", {
  mk_instruction *in = find(p, MK_OP_SQUARES, 0);
  in->operands[MK_SLOT_SQUARES_squares].col ^= 1;
})
REJECTS_AFTER(squares_of_half_a_chain, "S10", "parts: number of columns", {
  mk_instruction *in = find(p, MK_OP_SQUARES, 0);
  cr_assert_eq(in->operands[MK_SLOT_SQUARES_parts].cols, 8);
  in->operands[MK_SLOT_SQUARES_parts].cols = 4;
})
REJECTS_AFTER(squares_of_no_columns, "S09", "width is 0; it must be above 0, and at most the columns of parts",
              find(p, MK_OP_SQUARES, 0)->params[MK_PARAM_SQUARES_width] = 0)
REJECTS_AFTER(squares_with_other_biases, "S09", "number of columns of gain before the biases",
              find(p, MK_OP_SQUARES, 0)->params[MK_PARAM_SQUARES_width]--)
REJECTS_AFTER(squares_of_one_part, "S10", "parts: number of rows", {
  mk_instruction *in = find(p, MK_OP_SQUARES, 0);
  while (in->opcode != MK_OP_SQUARES || in->operands[MK_SLOT_SQUARES_parts].rows == 1) {
    in++;
  }
  in->operands[MK_SLOT_SQUARES_parts].rows = 1;
})
REJECTS_AFTER(squares_of_parts_of_another_tile, "S10", "tile of lines",
              find(p, MK_OP_SQUARES, 0)->operands[MK_SLOT_SQUARES_squares].row ^= 1)
REJECTS_AFTER(a_sum_by_some_chains, "S10", "squares: number of columns",
              find(p, MK_OP_ADD_NORMED, 0)->operands[MK_SLOT_ADD_NORMED_squares].cols--)
REJECTS_AFTER(a_sum_of_other_columns, "S10", "parts: first column", {
  mk_instruction *in = find(p, MK_OP_ADD_NORMED, 0);
  while (in->opcode != MK_OP_ADD_NORMED || in->operands[MK_SLOT_ADD_NORMED_parts].col == 0) {
    in++;
  }
  in->operands[MK_SLOT_ADD_NORMED_parts].col = 0;
})
REJECTS_AFTER(a_sum_with_biases_that_are_not_there, "S09", "width is 144; it must be the number of columns of gain",
              { find(p, MK_OP_ADD_NORMED, 0)->params[MK_PARAM_ADD_NORMED_biased] = 0; })
REJECTS(a_head_without_a_norm, "S10", "gain and squares: both are empty", {
  mk_instruction *in = find(p, MK_OP_HEAD, 0);
  memset(&in->operands[MK_SLOT_HEAD_squares], 0, sizeof in->operands[0]);
})
REJECTS(a_width_of_other_squares, "S10", "squares: number of columns in the buffer", {
  mk_instruction *in = find(p, MK_OP_HEAD, 0); /* which has no weight that would tell */
  memset(&in->operands[MK_SLOT_HEAD_weight], 0, sizeof in->operands[0]);
  memset(&in->operands[MK_SLOT_HEAD_logits], 0, sizeof in->operands[0]);
  in->operands[MK_SLOT_HEAD_logits].buffer = find(p, MK_OP_HEAD, 1)->operands[MK_SLOT_HEAD_logits].buffer;
  in->params[MK_PARAM_HEAD_width] = 500;
})
REJECTS(a_norm_of_another_chain, "S10", "x: first column", {
  mk_instruction *in = find(p, MK_OP_NORM, 0);
  in->operands[MK_SLOT_NORM_squares].col ^= 1;
})
REJECTS(a_norm_of_half_a_chain, "S10", "out: number of columns", {
  mk_instruction *in = find(p, MK_OP_NORM, 0);
  cr_assert_eq(in->operands[MK_SLOT_NORM_out].cols, 8);
  in->operands[MK_SLOT_NORM_out].cols = 4;
})
REJECTS(a_norm_of_two_tiles_of_lines, "S10", "tile of lines",
        find(p, MK_OP_NORM, 0)->operands[MK_SLOT_NORM_out].row ^= 1)
REJECTS(an_append_of_one_tile_of_lines, "S10", "k: number of rows",
        find(p, MK_OP_APPEND, 0)->operands[MK_SLOT_APPEND_k].rows = 1)
REJECTS(an_append_of_half_a_head, "S10", "v: number of columns",
        find(p, MK_OP_APPEND, 0)->operands[MK_SLOT_APPEND_v].cols = 2)
REJECTS(attention_of_another_tile_of_lines, "S10", "tile of lines",
        find(p, MK_OP_ATTEND, 0)->operands[MK_SLOT_ATTEND_q].row ^= 1)
REJECTS(attention_of_two_heads, "S10", "q: number of columns",
        find(p, MK_OP_ATTEND, 0)->operands[MK_SLOT_ATTEND_q].cols = 8)
REJECTS(a_scale_of_zero, "S09", "scale is 0", find(p, MK_OP_ATTEND, 0)->params[MK_PARAM_ATTEND_scale] = 0)
REJECTS(pages_that_nobody_loads, "P01", "pages is", find(p, MK_OP_ATTEND, 0)->pages--)
REJECTS(a_cache_of_two_splits, "S10", "number of rows in the buffer", {
  mk_buffer *kv = &p->buffers[find(p, MK_OP_APPEND, 0)->operands[MK_SLOT_APPEND_kv].buffer];
  kv->rows = 2;
})
REJECTS(a_table_that_is_too_short, "B03", "table: ", p->ranges.position.high = CONTEXT)
REJECTS(another_table, "B05", "another instruction finds blocks", {
  mk_instruction *in = find(p, MK_OP_ATTEND, 0);
  mk_buffer table = p->buffers[in->operands[MK_SLOT_ATTEND_table].buffer];
  memset(table.name, 0, sizeof table.name);
  memcpy(table.name, "other", 5);
  cr_assert_eq(mk_program_add_buffer(p, &table, &in->operands[MK_SLOT_ATTEND_table].buffer), MK_OK);
})

/* With up to 64 rows several storers finish an instruction. */
Test(verify_wide, fewer_rows_have_no_release_counters) {
  mk_verify_report report;
  mk_program *p = test_prompt_program(&shape, SMS, CONTEXT, MK_PROMPT_ROWS);
  cr_assert_eq(mk_verify(p, NULL), MK_OK, "%s", mk_error_message());
  p->counters[0].kind = MK_COUNTER_RELEASE;
  cr_assert_eq(mk_verify(p, &report), MK_ERR_REJECTED);
  cr_assert_str_eq(report.rule, "E05", "%s", mk_error_message());
  mk_program_free(p);
}

/* Mutants. */

static mk_status run(const mk_program *p, mk_cpu_options options, uint64_t *hash) {
  mk_cpu *cpu = test_prompt_machine(p, &options);
  mk_status status = test_prompt_run(p, cpu, 0, 290, NULL, NULL); /* whole, then one tile of lines of two */
  status = status == MK_OK ? test_prompt_run(p, cpu, 290, 10, NULL, NULL) : status;
  *hash = test_memory_hash(cpu, p);
  mk_cpu_free(cpu);
  return status;
}

static const mutant_rig rig = {.base = compile, .run = run, .seeds = 3};
static const mutant_rig rig_of_kin = {.base = compile_kin, .run = run, .seeds = 3};
static const mutant_rig rig_of_norms_after = {.base = compile_after, .run = run, .seeds = 3};

Test(verify_wide, unchanged_program_runs) { mutants_expect_sound(&rig, 1); }
Test(verify_wide, unchanged_program_of_kin_runs) { mutants_expect_sound(&rig_of_kin, 1); }
Test(verify_wide, unchanged_program_with_norms_after_runs) { mutants_expect_sound(&rig_of_norms_after, 1); }

static void expect_mutants(const mutant_rig *of) {
  const uint32_t mutants = test_effort(4, 40);
  const mutant_counts counts = mutants_expect(of, 5, mutants);
  cr_assert_gt(counts.accepted, 0);
  cr_assert_gt(counts.rejected, mutants * MUTATION_CLASSES / 2);
  cr_assert_gt(counts.failing, mutants, "%u of %u rejected mutants fail", counts.failing, counts.rejected);
}
Test(verify_wide, what_is_accepted_never_fails) { expect_mutants(&rig); }
Test(verify_wide, what_is_accepted_of_kin_never_fails) { expect_mutants(&rig_of_kin); }
Test(verify_wide, what_is_accepted_with_norms_after_never_fails) { expect_mutants(&rig_of_norms_after); }

/* The loader copies what is multiplied, and the cache: what its consumer has seen, or has written itself in a program
 * of one queue, tells it nothing. */
static void drop_waits(mk_instruction *in) {
  memset(in->waits, 0, sizeof in->waits);
  in->wait_count = 0;
}
#define LOADER_REJECTED(name, sms, ...)                                \
  Test(verify_wide, name) {                                            \
    mk_program *p = test_prompt_program(&shape, sms, CONTEXT, ROWS);   \
    cr_assert_eq(mk_verify(p, NULL), MK_OK, "%s", mk_error_message()); \
    __VA_ARGS__;                                                       \
    expect_order_rejected(p, #name, p->instructions);                  \
    mk_program_free(p);                                                \
  }
LOADER_REJECTED(an_input_that_the_loader_does_not_wait_for, 1, drop_waits(find(p, MK_OP_LINEAR_ADD, 0)))
LOADER_REJECTED(an_input_of_which_all_but_one_are_waited_for, 1, find(p, MK_OP_LINEAR_ADD, 0)->waits[0].threshold--)
/* One who writes it signals another counter, for which nobody waits. */
LOADER_REJECTED(an_input_with_two_counters, SMS, {
  mk_instruction *attend = find(p, MK_OP_ATTEND, 0);
  uint16_t second;
  cr_assert_eq(mk_program_add_counter(p, "second", MK_COUNTER_RELEASE, &second), MK_OK);
  p->counters[attend->signals[0].counter].total--;
  p->counters[second].total = 1;
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_wait *wait = &p->instructions[i].waits[0];
    if (p->instructions[i].wait_count != 0 && wait->counter == attend->signals[0].counter) {
      wait->threshold--;
    }
  }
  attend->signals[0].counter = second;
})
/* An earlier instruction has made the wait; but in a step that leaves its tile of lines out its loader does not. */
LOADER_REJECTED(a_cache_that_another_tile_of_lines_waits_for, 1, {
  mk_instruction *in = find(p, MK_OP_ATTEND, 2);
  cr_assert_neq(in->operands[MK_SLOT_ATTEND_q].row, in[-2].operands[MK_SLOT_ATTEND_q].row);
  drop_waits(in);
})
