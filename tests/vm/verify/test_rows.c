/* Programs of several rows per step: what the verifier asks of them beyond those of one row, each thing broken alone,
 * and mutants: none that it accepts fails on the CPU machine. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "instructions/sampling_host.h"
#include "tests/mutation/mutation.h"
#include "tests/support/effort.h"
#include "tests/support/model.h"
#include "tests/support/mutants.h"
#include "tests/support/text.h"
#include "vm/cpu/machine.h"
#include "vm/verify/verify.h"

enum { ROWS = 4, SMS = 3, CONTEXT = 600, STEPS = 4, SEEDS = 4 };

static mk_program *compile(uint32_t rows) { return test_small_program(SMS, CONTEXT, rows); }
static mk_program *compile_drawing(uint32_t rows) { return test_small_sampling_program(SMS, CONTEXT, rows); }

/* What breaks. */

static mk_instruction *find(mk_program *p, mk_opcode opcode) {
  for (size_t i = 0; i < p->instruction_count; i++) {
    if (p->instructions[i].opcode == opcode) {
      return &p->instructions[i];
    }
  }
  cr_assert_fail("no such instruction");
  return NULL;
}

static mk_buffer *buffer_of(mk_program *p, mk_opcode opcode, uint32_t slot) {
  return &p->buffers[find(p, opcode)->operands[slot].buffer];
}

static void resize(mk_buffer *b, uint32_t rows, uint32_t cols) {
  b->rows = rows;
  b->cols = cols;
  b->bytes = mk_buffer_bytes(b);
}

#define REJECTS(name, rule_id, words, ...) REJECTS_OF(ROWS, name, rule_id, words, __VA_ARGS__)
#define REJECTS_OF(rows, name, rule_id, words, ...)                                                      \
  Test(verify_rows, name) {                                                                              \
    mk_program *p = compile(rows);                                                                       \
    mk_verify_report report;                                                                             \
    __VA_ARGS__;                                                                                         \
    cr_assert_eq(mk_verify(p, &report), MK_ERR_REJECTED, "it was accepted");                             \
    cr_assert_str_eq(report.rule, rule_id, "%s", mk_error_message());                                    \
    cr_assert_not_null(strstr(mk_error_message(), words), "`%s` not in: %s", words, mk_error_message()); \
    mk_program_free(p);                                                                                  \
  }

Test(verify_rows, every_number_is_accepted) {
  for (uint32_t rows = 1; rows <= MK_MOST_SHARED_ROWS; rows *= 2) {
    mk_program *p = compile(rows);
    cr_assert_eq(mk_verify(p, NULL), MK_OK, "%u rows: %s", rows, mk_error_message());
    cr_assert(mk_program_rows(p) == rows && mk_program_slots(p) == (rows == MK_PROMPT_ROWS ? 1 : rows));
    mk_program_free(p);
  }
}

REJECTS(fewer_rows_than_lines, "S02", "with 2 rows per step", {
  p->ranges.batch.high = ROWS / 2;
  p->ranges.slot.high = ROWS / 2 - 1;
})
REJECTS(more_rows_than_lines, "S02", "with 8 rows per step", p->ranges.batch.high = ROWS * 2)
REJECTS(no_row_active, "S01", "at least one is active", p->ranges.batch.low = 0)
REJECTS(all_rows_active, "S01", "at least one is active", p->ranges.batch.low = ROWS)
REJECTS(seventeen_rows, "S01", "1, 2, 4, ... or 1024 rows", p->ranges.batch.high = 17)
REJECTS(too_many_rows, "S01", "1, 2, 4, ... or 1024 rows", p->ranges.batch.high = 2048)
REJECTS(more_slots_than_rows, "S01", "4 rows are of slots 0 to 3 at most", p->ranges.slot.high = ROWS)
REJECTS(no_slot_0, "S01", "slot is 1 to 3", p->ranges.slot.low = 1)
/* Lines in tiles of their own: an instruction would write one of them. */
REJECTS(lines_in_several_tiles, "S10", "number of rows", buffer_of(p, MK_OP_GLU, MK_SLOT_GLU_out)->tile_rows = 1)
REJECTS(a_table_of_too_few_slots, "S10", "table: number of rows", {
  mk_buffer *table = buffer_of(p, MK_OP_ATTENTION, MK_SLOT_ATTENTION_table);
  resize(table, ROWS - 1, table->cols);
  for (size_t i = 0; i < p->instruction_count; i++) {
    if (p->instructions[i].opcode == MK_OP_ATTENTION) {
      p->instructions[i].operands[MK_SLOT_ATTENTION_table].rows--;
    }
  }
})
REJECTS(a_plan_of_half_a_step, "B03", "a launch whole steps", {
  mk_buffer *plan = buffer_of(p, MK_OP_NEXT, MK_SLOT_NEXT_plan);
  resize(plan, 1, plan->cols - 2 * 4);
})
REJECTS(a_ring_that_the_plan_outruns, "B03", "ring: 64 tokens", {
  mk_buffer *ring = buffer_of(p, MK_OP_NEXT, MK_SLOT_NEXT_ring);
  resize(ring, 1, 64);
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_operand *o = &p->instructions[i].operands[MK_SLOT_NEXT_ring];
    o->cols = p->instructions[i].opcode == MK_OP_NEXT && o->cols != 0 ? 1 : o->cols;
  }
})
REJECTS(candidates_of_some_sms, "S10", "candidates", find(p, MK_OP_NEXT)->operands[MK_SLOT_NEXT_candidates].rows--)
REJECTS(plans_that_differ, "N04", "all SMs must agree", {
  uint16_t other;
  mk_buffer plan = *buffer_of(p, MK_OP_NEXT, MK_SLOT_NEXT_plan);
  memset(plan.name, 0, sizeof plan.name);
  memcpy(plan.name, "other", 5);
  cr_assert_eq(mk_program_add_buffer(p, &plan, &other), MK_OK);
  find(p, MK_OP_NEXT)->operands[MK_SLOT_NEXT_plan].buffer = other;
})
/* Words that are written only where a position reaches them, waited for by another count of positions. */
REJECTS(a_combine_of_another_span, "S11", "of spans of", find(p, MK_OP_COMBINE)->params[MK_PARAM_COMBINE_span] /= 2)
REJECTS(a_unit_twice, "S10", "row is", {
  mk_instruction *in = find(p, MK_OP_ATTENTION);
  in->operands[MK_SLOT_ATTENTION_kv].row ^= 1;
})
REJECTS(a_unit_of_two_owners, "R04", "also written by", {
  mk_instruction *in = find(p, MK_OP_ATTENTION);
  in->operands[MK_SLOT_ATTENTION_kv].row ^= 1;
  in->operands[MK_SLOT_ATTENTION_out].row ^= 1;
  in->pages = mk_instruction_pages(p, in);
})
REJECTS(wrong_pages, "P01", "pages", find(p, MK_OP_ATTENTION)->pages--)
/* With several rows every opcode reads the step state, one like glu too: its queue needs a next, and that after it. */
REJECTS(a_glu_after_the_next, "N02", "reads the step state after", {
  const mk_queue *q = &p->queues[0];
  mk_instruction *last = &p->instructions[q->first + q->count - 1], *glu = find(p, MK_OP_GLU), moved = *glu;
  memmove(glu, glu + 1, (size_t)(last - glu) * sizeof *glu);
  *last = moved;
})

/* Values of two tiles of lines. */
enum { TWO_TILES = 2 * MK_LINE_TILE };
REJECTS_OF(TWO_TILES, a_glu_of_two_tiles_of_lines, "S10", "tile of lines",
           find(p, MK_OP_GLU)->operands[MK_SLOT_GLU_x].row ^= 1)
REJECTS_OF(TWO_TILES, a_residual_of_another_tile_of_lines, "S10", "tile of lines",
           find(p, MK_OP_LINEAR_ADD)->operands[MK_SLOT_LINEAR_ADD_out].row ^= 1)
REJECTS_OF(TWO_TILES, a_combine_of_all_tiles_of_lines, "S10", "out: number of rows",
           find(p, MK_OP_COMBINE)->operands[MK_SLOT_COMBINE_out].rows = 2)
REJECTS_OF(TWO_TILES, attention_over_one_tile_of_lines, "S10", "q: number of rows",
           find(p, MK_OP_ATTENTION)->operands[MK_SLOT_ATTENTION_q].rows = 1)
REJECTS_OF(TWO_TILES, a_candidate_of_another_tile_of_lines, "S10", "tile of lines",
           find(p, MK_OP_HEAD)->operands[MK_SLOT_HEAD_candidate].row ^= 1)
REJECTS_OF(TWO_TILES, lines_in_one_tile, "S10", "number of rows",
           buffer_of(p, MK_OP_GLU, MK_SLOT_GLU_out)->tile_rows = TWO_TILES)
/* On one SM the candidates are as many lines as a step has, so that those of one tile of them look like a value's. */
Test(verify_rows, a_next_of_one_tile_of_lines) {
  mk_program *p = test_small_program(1, CONTEXT, TWO_TILES);
  mk_verify_report report;
  find(p, MK_OP_NEXT)->operands[MK_SLOT_NEXT_candidates].rows = 1;
  cr_assert_eq(mk_verify(p, &report), MK_ERR_REJECTED, "it was accepted");
  cr_assert_str_eq(report.rule, "S10", "%s", mk_error_message());
  cr_assert_not_null(strstr(mk_error_message(), "do not tell which tile"), "%s", mk_error_message());
  mk_program_free(p);
}
REJECTS_OF(TWO_TILES, heads_out_of_order, "N06", "for each tile of lines", {
  mk_instruction *first = find(p, MK_OP_HEAD), moved = first[0];
  cr_assert_eq(first[1].opcode, MK_OP_HEAD);
  first[0] = first[1];
  first[1] = moved;
})
REJECTS_OF(TWO_TILES, a_tile_of_lines_without_a_head, "N06", "heads end its queue", {
  mk_instruction *first = find(p, MK_OP_HEAD);
  const mk_instruction *before = first - 1;
  cr_assert_neq(before->opcode, MK_OP_HEAD);
  first[1].signals[0].amount++; /* so that the counter has as many signals */
  *first = *before;             /* once more what stands before it */
  first->uid = 100000;
  first->signal_count = 0;
  memset(first->signals, 0, sizeof first->signals);
})

/* Mutants. */

/* Ways to sample by slot: at a temperature, greedy, with all filters and penalties, with a front. */
static void fill_sampling(uint32_t *words, uint32_t vocab) {
  static const mk_sampling ways[ROWS] = {
      {.temperature = 1, .top_p = 1, .repetition = 1, .seed = 1},
      {.top_p = 1, .repetition = 1},
      {.temperature = 2, .top_k = 40, .top_p = 0.9, .min_p = 0.01, .repetition = 1.3, .presence = 1, .seed = 3},
      {.temperature = 5, .top_p = 1, .min_p = 0.2, .repetition = 1, .frequency = 2, .seed = 4}};
  for (uint32_t slot = 0; slot < ROWS; slot++) {
    mk_sampling_words(&ways[slot], vocab, words + (size_t)slot * MK_SAMPLING_WORDS);
  }
}

static void fill(mk_cpu *cpu, const mk_program *p) {
  for (size_t b = 0; b < p->buffer_count; b++) {
    const mk_buffer *buffer = &p->buffers[b];
    uint8_t *memory = mk_cpu_memory(cpu, b);
    bool wide = buffer->dtype == MK_DTYPE_F32;
    for (uint64_t i = 0; buffer->kind == MK_KIND_WEIGHT && i < buffer->bytes / (wide ? 4 : 2); i++) {
      float value = ((float)((i * 2654435761u + b * 40503u) % 1021) - 510.0f) / 4096.0f;
      if (wide) {
        ((float *)(void *)memory)[i] = fabsf(value);
      } else {
        ((uint16_t *)(void *)memory)[i] = (uint16_t)(mk_float_param(value) >> 16);
      }
    }
    if (strcmp(buffer->name, "sampling") == 0) {
      fill_sampling((uint32_t *)(void *)memory, p->ranges.token.high + 1);
    }
    for (uint64_t i = 0; strcmp(buffer->name, "block_table") == 0 && i < buffer->bytes / 4; i++) {
      ((uint32_t *)(void *)memory)[i] = (uint32_t)i;
    }
  }
}

enum { BUSY = MK_ROW_ACTIVE, CHOOSES = MK_ROW_ACTIVE | MK_ROW_CHOOSES };
/* A chunk over the border of two spans, a slot that is idle in between, tokens that are given and chosen, rows that
 * change places. */
static const mk_step_row plan[STEPS][ROWS] = {
    {{1, 254, 5, BUSY}, {3, 10, 6, CHOOSES}, {1, 255, 7, BUSY}, {1, 256, 8, CHOOSES}},
    {{1, 257, MK_TOKEN_CHOSEN, CHOOSES}, {0, 0, 0, 0}, {0, 513, 3, BUSY}, {0, 514, 4, CHOOSES}},
    {{0, 0, 0, 0}, {1, 258, MK_TOKEN_CHOSEN, CHOOSES}, {3, 11, MK_TOKEN_CHOSEN, CHOOSES}, {0, 0, 0, 0}},
    {{0, 515, MK_TOKEN_CHOSEN, CHOOSES}, {3, 12, MK_TOKEN_CHOSEN, BUSY}, {0, 0, 0, 0}, {1, 259, 9, CHOOSES}}};

static mk_status run(const mk_program *p, mk_cpu_options options, uint64_t *hash) {
  mk_cpu *cpu;
  MK_TRY(mk_cpu_new(p, &options, &cpu));
  fill(cpu, p);
  mk_status status = mk_cpu_run_plan(cpu, plan[0], STEPS, NULL, NULL);
  *hash = test_memory_hash(cpu, p);
  mk_cpu_free(cpu);
  return status;
}

/* Moved units of attention: on whichever SM, before or after its combine. */
static bool move_unit(mk_program *p, uint64_t *random) {
  mk_instruction *a = &p->instructions[mutation_draw(random, (uint32_t)p->instruction_count)];
  mk_instruction *b = &p->instructions[mutation_draw(random, (uint32_t)p->instruction_count)];
  if (a->opcode != MK_OP_ATTENTION || a == b) {
    return false;
  }
  mk_instruction kept = *a;
  *a = *b;
  *b = kept;
  return true;
}

static mk_program *greedy(void) { return compile(ROWS); }
static mk_program *drawing(void) { return compile_drawing(ROWS); }
static const mutant_rig rigs[] = {{.base = greedy, .run = run, .seeds = SEEDS, .other = move_unit},
                                  {.base = drawing, .run = run, .seeds = SEEDS, .other = move_unit}};

static void expect_mutants(const mutant_rig *rig) {
  const uint32_t mutants = test_effort(10, 40);
  const mutant_counts counts = mutants_expect(rig, 99, mutants);
  cr_assert_gt(counts.accepted, mutants / 2);
  cr_assert_gt(counts.rejected, mutants * 5 / 2);
  cr_assert_gt(counts.failing, mutants / 2, "%u of %u rejected mutants fail", counts.failing, counts.rejected);
}

Test(verify_rows, unchanged_program_runs) { mutants_expect_sound(&rigs[0], 19); }
Test(verify_rows, unchanged_program_that_draws_runs) { mutants_expect_sound(&rigs[1], 19); }
Test(verify_rows, what_is_accepted_never_fails) { expect_mutants(&rigs[0]); }
Test(verify_rows, what_is_accepted_and_draws_never_fails) { expect_mutants(&rigs[1]); }
