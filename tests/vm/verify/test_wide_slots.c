/* Wide programs of several slots: shares of a tile of lines write what a work list says. Which they are is proven, and
 * that all else is ordered with each of them. */
#include <criterion/criterion.h>
#include <string.h>

#include "models/llama.h"
#include "scheduler/compile.h"
#include "tests/mutation/mutation.h"
#include "tests/support/effort.h"
#include "tests/support/mutants.h"
#include "tests/support/prompts.h"
#include "tests/support/text.h"
#include "vm/verify/verify.h"

TestSuite(verify_wide_slots, .timeout = MK_HANG_SECONDS);

enum { SMS = 3, CONTEXT = 128, ROWS = 2 * MK_LINE_TILE, SLOTS = 5 };

static const mk_config shape = {.hidden = 144,
                                .intermediate = 528,
                                .layers = 2,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 64,
                                .vocab = 100,
                                .max_position = 1024,
                                .rms_eps = 1e-5f,
                                .rope_theta = 10000};

static mk_program *compile(void) {
  mk_config config = shape;
  mk_graph *graph;
  mk_program *p;
  mk_config_set_context(&config, CONTEXT);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK, "%s", mk_error_message());
  const mk_compile_options options = {.sms = SMS, .max_seq = CONTEXT, .rows = ROWS, .slots = SLOTS};
  cr_assert_eq(mk_compile(graph, &options, &p), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return p;
}

/* The `number`th ATTEND of the first layer whose results are those of tile 0 and KV head 0. */
static mk_instruction *find(mk_program *p, uint32_t number) {
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_instruction *in = &p->instructions[i];
    const mk_operand *out = &in->operands[MK_SLOT_ATTEND_out];
    if (in->opcode == MK_OP_ATTEND && in->layer == 0 && out->row == 0 && out->col == 0 && number-- == 0) {
      return in;
    }
  }
  cr_assert_fail("no such share");
  return NULL;
}

static mk_instruction *find_op(mk_program *p, mk_opcode opcode) {
  for (size_t i = 0; i < p->instruction_count; i++) {
    if (p->instructions[i].opcode == opcode) {
      return &p->instructions[i];
    }
  }
  cr_assert_fail("no such instruction");
  return NULL;
}

Test(verify_wide_slots, unchanged_program_is_accepted) {
  mk_program *p = compile();
  cr_assert_eq(mk_verify(p, NULL), MK_OK, "%s", mk_error_message());
  cr_assert_gt(find(p, 0)->params[MK_PARAM_ATTEND_shares], 1);
  mk_program_free(p);
}

#define REJECTS(name, rule_id, words, ...)                                                               \
  Test(verify_wide_slots, name) {                                                                        \
    mk_program *p = compile();                                                                           \
    mk_verify_report report;                                                                             \
    __VA_ARGS__;                                                                                         \
    cr_assert_eq(mk_verify(p, &report), MK_ERR_REJECTED, "it was accepted");                             \
    cr_assert_str_eq(report.rule, rule_id, "%s", mk_error_message());                                    \
    cr_assert_not_null(strstr(mk_error_message(), words), "`%s` not in: %s", words, mk_error_message()); \
    mk_program_free(p);                                                                                  \
  }

REJECTS(a_share_twice, "L05", "this one is there twice",
        find(p, 1)->params[MK_PARAM_ATTEND_share] = find(p, 0)->params[MK_PARAM_ATTEND_share])
REJECTS(a_share_of_more, "L05", "not there", find(p, 1)->params[MK_PARAM_ATTEND_shares]++)
REJECTS(a_share_by_another_scale, "L05", "not there", find(p, 1)->params[MK_PARAM_ATTEND_scale] = mk_float_param(0.5f))
REJECTS(a_share_of_another_cache, "L05", "not there", find(p, 1)->operands[MK_SLOT_ATTEND_kv].col = 1)
REJECTS(a_share_beyond_the_last, "S09", "below the number of shares",
        find(p, 0)->params[MK_PARAM_ATTEND_share] = find(p, 0)->params[MK_PARAM_ATTEND_shares])
REJECTS(no_shares, "S09", "no work list", find(p, 0)->params[MK_PARAM_ATTEND_shares] = 0)
REJECTS(shares_without_a_list, "S09", "no work list",
        memset(&find(p, 0)->operands[MK_SLOT_ATTEND_work], 0, sizeof(mk_operand)))
REJECTS(a_share_of_another_tile_of_lines, "S10", "tile of lines", find(p, 0)->operands[MK_SLOT_ATTEND_out].row = 1)
REJECTS(a_share_of_one_head, "S10", "q: number of columns", find(p, 0)->operands[MK_SLOT_ATTEND_q].cols = 4)
REJECTS(a_list_that_is_no_input, "S08",
        "work: ", p->buffers[find(p, 0)->operands[MK_SLOT_ATTEND_work].buffer].kind = MK_KIND_ACTIVATION)
REJECTS(lists_of_other_steps, "B05", "work lists are an input of their own", {
  mk_buffer *plan = &p->buffers[find_op(p, MK_OP_NEXT)->operands[MK_SLOT_NEXT_plan].buffer];
  const uint32_t tiles = plan->cols / plan->tile_cols / 2;
  plan->cols /= 2;
  plan->bytes /= 2;
  for (size_t i = 0; i < p->instruction_count; i++) {
    if (p->instructions[i].opcode == MK_OP_NEXT) {
      p->instructions[i].operands[MK_SLOT_NEXT_plan].cols = (uint16_t)tiles;
    }
  }
})

/* All shares of two KV heads, whole teams, into the columns of one. */
REJECTS(teams_that_write_the_same, "R03", "writes tile", {
  const mk_instruction *first = find(p, 0);
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_instruction *in = &p->instructions[i];
    if (in->opcode == MK_OP_ATTEND && in->layer == 0 && in->operands[MK_SLOT_ATTEND_out].row == 0) {
      in->operands[MK_SLOT_ATTEND_out] = first->operands[MK_SLOT_ATTEND_out];
    }
  }
})
/* Somebody who is no share, and waits for the same. */
REJECTS(somebody_else_writes_the_same, "R03", "writes tile", {
  mk_instruction *in = find(p, 0);
  const uint16_t cols = 4;
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_instruction *other = &p->instructions[i];
    if (other->opcode == MK_OP_ATTEND && other->layer == 0 && other->operands[MK_SLOT_ATTEND_out].row == 0 &&
        other->operands[MK_SLOT_ATTEND_out].col != 0) { /* each of one head, and of the same columns */
      memset(&other->operands[MK_SLOT_ATTEND_work], 0, sizeof(mk_operand));
      other->params[MK_PARAM_ATTEND_share] = other->params[MK_PARAM_ATTEND_shares] = 0;
      other->operands[MK_SLOT_ATTEND_q].cols = cols;
      other->operands[MK_SLOT_ATTEND_out] = in->operands[MK_SLOT_ATTEND_out];
      other->operands[MK_SLOT_ATTEND_out].cols = cols;
    }
  }
})
REJECTS(a_reader_that_waits_for_all_shares_but_one, "R01", "reads tile", {
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_instruction *in = &p->instructions[i];
    if (in->opcode == MK_OP_LINEAR_ADD && in->layer == 0) {
      in->waits[0].threshold--;
    }
  }
})

static void expect_order_rejected(mk_program *p, const char *what) {
  mk_verify_report report;
  cr_assert_eq(mk_verify(p, &report), MK_ERR_REJECTED, "%s: it was accepted", what);
  cr_assert(strcmp(report.rule, "R01") == 0 || strcmp(report.rule, "R02") == 0 || strcmp(report.rule, "R03") == 0,
            "%s: %s", what, mk_error_message());
}

/* Whether its SM has another one that signals the same after it. */
static bool is_followed(const mk_program *p, const mk_instruction *in) {
  for (uint32_t q = 0; q < p->queue_count; q++) {
    const mk_instruction *first = &p->instructions[p->queues[q].first], *end = first + p->queues[q].count;
    for (const mk_instruction *other = in + 1; in >= first && other < end; other++) {
      if (other->signal_count != 0 && other->signals[0].counter == in->signals[0].counter) {
        return true;
      }
    }
  }
  return false;
}

/* Each share by itself is one that others have to come after: without its wait it may be late, without its signal
 * nobody knows when it is done, unless its SM has another one to do, whose signal tells. */
Test(verify_wide_slots, every_share_waits_and_is_waited_for) {
  mk_program *base = compile();
  const size_t instructions = base->instruction_count;
  uint32_t shares = 0, last = 0;
  mk_program_free(base);
  for (size_t i = 0; i < instructions; i++) {
    mk_program *p = compile();
    mk_instruction *in = &p->instructions[i];
    if (in->opcode != MK_OP_ATTEND || in->layer != 0) {
      mk_program_free(p);
      continue;
    }
    const bool followed = is_followed(p, in);
    shares++;
    p->counters[in->signals[0].counter].total--;
    for (size_t k = 0; k < p->instruction_count; k++) {
      mk_instruction *other = &p->instructions[k];
      for (uint32_t w = 0; w < other->wait_count; w++) {
        const bool same = other->waits[w].counter == in->signals[0].counter;
        other->waits[w].threshold = (uint16_t)(other->waits[w].threshold - same);
      }
    }
    in->signals[0] = (mk_signal){0};
    in->signal_count = 0;
    if (followed) {
      cr_assert_eq(mk_verify(p, NULL), MK_OK, "%s", mk_error_message());
    } else {
      expect_order_rejected(p, "signal");
      last++;
    }
    mk_program_free(p);
  }
  cr_assert_gt(last, 2, "%u of %u shares are the last ones of their SMs", last, shares);
}

/* Mutants. */

static mk_status run(const mk_program *p, mk_cpu_options options, uint64_t *hash) {
  mk_cpu *cpu = test_prompt_machine(p, &options);
  mk_plan_buffers found;
  static mk_step_row plan[2 * ROWS];
  uint32_t positions[SLOTS] = {0}, random = 9;
  cr_assert_eq(mk_plan_find(p, &found), MK_OK);
  uint32_t *table = mk_cpu_memory(cpu, found.table);
  for (uint32_t i = 0; i < p->buffers[found.table].rows * p->buffers[found.table].cols; i++) {
    table[i] = i;
  }
  memset(plan, 0, sizeof plan);
  for (uint32_t line = 0; line < 2 * ROWS; line++) { /* of the second step one tile of lines */
    random = random * 1664525u + 1013904223u;
    const uint32_t slot = line < 100 ? 0 : (random >> 16) % SLOTS;
    if (positions[slot] < CONTEXT && line < ROWS + MK_LINE_TILE && (random >> 8) % 5 != 0) {
      plan[line] = (mk_step_row){.slot = slot,
                                 .position = positions[slot]++,
                                 .token = (random >> 10) % 100,
                                 .flags = MK_ROW_ACTIVE | (line % 3 == 0 ? (uint32_t)MK_ROW_CHOOSES : 0)};
    }
  }
  mk_status status = mk_cpu_run_plan(cpu, plan, 2, NULL, NULL);
  *hash = test_memory_hash(cpu, p);
  mk_cpu_free(cpu);
  return status;
}

static const mutant_rig rig = {.base = compile, .run = run, .seeds = 3};

Test(verify_wide_slots, unchanged_program_runs) { mutants_expect_sound(&rig, 1); }

Test(verify_wide_slots, what_is_accepted_never_fails) {
  const uint32_t mutants = test_effort(3, 30);
  const mutant_counts counts = mutants_expect(&rig, 11, mutants);
  cr_assert_gt(counts.accepted, 0);
  cr_assert_gt(counts.rejected, mutants * MUTATION_CLASSES / 2);
  cr_assert_gt(counts.failing, mutants / 2, "%u of %u rejected mutants fail", counts.failing, counts.rejected);
}
