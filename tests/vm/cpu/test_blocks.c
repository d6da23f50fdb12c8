/* The blocks of the KV cache are places in memory: two SMs that share one are seen by the race detector, whatever rows
 * of the cache and tables they came through. */
#include <criterion/criterion.h>
#include <string.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/text.h"
#include "vm/cpu/race.h"

enum { SEEDS = 30, SPAN = 256 };

typedef struct entry {
  const char *table;
  uint32_t at, block;
} entry;

/* Three steps from `position`, with these entries in tables that else name block i at entry i; words empty: all
 * interleavings are clean. */
static void expect(const char *name, const test_edit *edits, const entry *entries, size_t count, uint32_t position,
                   const char *words) {
  mk_program *program = test_assemble(name, edits);
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    mk_cpu_options options = {.seed = seed, .adversarial = seed % 2 == 1, .check_races = true};
    mk_cpu *cpu = test_machine(program, &options);
    for (size_t i = 0; i < count; i++) {
      uint32_t *table = mk_cpu_memory(cpu, (size_t)mk_program_find_buffer(program, entries[i].table));
      table[entries[i].at] = entries[i].block;
    }
    mk_status status = test_sequence_steps(cpu, 1, position, 3);
    const char *message = status == MK_OK ? "" : mk_error_message();
    cr_assert_eq(status, words[0] == '\0' ? MK_OK : MK_ERR_DEVICE, "seed %d: %s", (int)seed, message);
    cr_assert_not_null(strstr(message, words), "seed %d: `%s` is not in: %s", (int)seed, words, message);
    mk_cpu_free(cpu);
  }
  mk_program_free(program);
}

Test(cpu_blocks, tables_that_name_no_block_twice_are_clean) {
  const entry shuffled[] = {{"table", 0, 6}, {"table", 4, 0}, {"table", 6, 4}};
  expect("layer.mks", NULL, NULL, 0, SPAN - 2, "");
  expect("layer.mks", NULL, shuffled, 3, SPAN + 30, "");
}

/* A program that declares one block for eight: the table cannot but name it again and again. */
Test(cpu_blocks, declared_range_smaller_than_positions_need) {
  const entry all[] = {{"table", 1, 0}, {"table", 2, 0}, {"table", 3, 0}, {"table", 4, 0},
                       {"table", 5, 0}, {"table", 6, 0}, {"table", 7, 0}};
  expect("attack/blocks_alias.mks", NULL, all, 7, SPAN - 2, "block 0: unordered access");
  expect("attack/blocks_alias.mks", NULL, all, 7, SPAN + 30, "operand kv of buffer kv");
}

/* SM 0 reads a block of its split to which SM 1 appends, as the table of SM 1 names it. */
static const test_edit two_tables[] = {
    {"buffer plan ", "buffer other    kind=input dtype=u32 store=plain shape=1x8 tile=1x16\nbuffer plan "},
    {"kv=kv[1:2,0:1] table=table", "kv=kv[1:2,0:1] table=other"},
    {NULL, NULL}};

Test(cpu_blocks, two_tables_with_one_block) {
  const entry same = {"other", 4, 2};
  expect("layer.mks", two_tables, NULL, 0, SPAN + 1, "");
  expect("layer.mks", two_tables, &same, 1, SPAN + 1, "block 2: unordered access");
}

/* SM 0 has taken one split for all, and so appends where SM 1 does. */
Test(cpu_blocks, two_sms_append_to_one_block) {
  const test_edit all_splits[] = {{"kv=kv[0:1,0:1] table=table out=parts[0:1,0:1] scale=0.125 splits=2",
                                   "kv=kv[0:1,0:1] table=table out=parts[0:1,0:1] scale=0.125 splits=1"},
                                  {NULL, NULL}};
  expect("layer.mks", all_splits, NULL, 0, 0, "");
  expect("layer.mks", all_splits, NULL, 0, SPAN + 1, "block 4");
  expect("layer.mks", all_splits, NULL, 0, SPAN, "appends to block 4 of head 0 of buffer kv, to which instruction");
}

/* After a run that failed, generations begin anew, and a block may be another SM's. */
Test(cpu_blocks, a_block_changes_hands_between_runs) {
  mk_program *program = test_assemble("layer.mks", NULL);
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    mk_cpu_options options = {.seed = seed, .adversarial = seed % 2 == 1, .check_races = true};
    mk_cpu *cpu = test_machine(program, &options);
    uint32_t *table = mk_cpu_memory(cpu, (size_t)mk_program_find_buffer(program, "table"));
    cr_assert_eq(test_sequence_steps(cpu, 1, 511, 2), MK_ERR_DEVICE, "there is no position 512");
    table[0] = 7;
    table[7] = 0;
    cr_assert_eq(test_sequence_steps(cpu, 1, 0, 2), MK_OK, "seed %d: %s", (int)seed, mk_error_message());
    mk_cpu_free(cpu);
  }
  mk_program_free(program);
}

/* Several rows: slots 0 and 1 at the same positions lie in units of their own, and in one block if the table says
 * so. */
enum { ROWS = 4, POSITION = 70 };

typedef struct rows_case {
  mk_program *program;
  mk_race *race;
  mk_step_state state;
  uint8_t *memory[1024];
  uint32_t *table, columns;
} rows_case;

static void start_rows(rows_case *c) {
  mk_config config;
  mk_graph *graph;
  mk_plan_buffers buffers;
  *c = (rows_case){.race = NULL};
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &(mk_compile_options){.sms = 8, .max_seq = 1024, .rows = ROWS}, &c->program), MK_OK,
               "%s", mk_error_message());
  mk_graph_free(graph);
  cr_assert_eq(mk_plan_find(c->program, &buffers), MK_OK);
  const mk_buffer *table = &c->program->buffers[buffers.table];
  c->columns = table->cols;
  cr_assert_eq(mk_alloc(table->bytes, 1, &c->table), MK_OK);
  for (uint32_t i = 0; i < table->bytes / sizeof *c->table; i++) {
    c->table[i] = i;
  }
  cr_assert_leq(c->program->buffer_count, sizeof c->memory / sizeof c->memory[0]);
  c->memory[buffers.table] = (uint8_t *)c->table;
  for (uint32_t slot = 0; slot < 2; slot++) {
    c->state.rows[slot] = (mk_step_row){.slot = slot, .position = POSITION, .flags = MK_ROW_ACTIVE};
  }
  cr_assert_eq(mk_race_new(c->program, &c->race), MK_OK);
  cr_assert_eq(mk_race_memory(c->race, c->memory), MK_OK);
}

static void stop_rows(rows_case *c) {
  mk_race_free(c->race);
  mk_free(c->table);
  mk_program_free(c->program);
}

/* The roles of all attention of the first layer's cache step, first those that load and then those that append. */
static mk_status attend(rows_case *c) {
  uint16_t cache = UINT16_MAX;
  for (mk_role role = MK_ROLE_LOADER; role <= MK_ROLE_CONSUMER; role++) {
    for (uint32_t q = 0; q < c->program->queue_count; q++) {
      for (uint32_t i = 0; i < c->program->queues[q].count; i++) {
        uint32_t index = c->program->queues[q].first + i;
        const mk_instruction *in = &c->program->instructions[index];
        uint16_t kv = in->operands[MK_SLOT_ATTENTION_kv].buffer;
        if (in->opcode != MK_OP_ATTENTION || (cache != UINT16_MAX && kv != cache)) {
          continue;
        }
        cache = kv;
        MK_TRY(mk_race_step(c->race, q, role, index, &(mk_race_use){.state = &c->state, .generation = 1}));
      }
    }
  }
  return MK_OK;
}

Test(cpu_blocks, rows_of_two_slots_with_blocks_of_their_own) {
  rows_case c;
  start_rows(&c);
  cr_assert_eq(attend(&c), MK_OK, "%s", mk_error_message());
  stop_rows(&c);
}

Test(cpu_blocks, rows_of_two_slots_in_one_block) {
  rows_case c;
  start_rows(&c);
  c.table[c.columns + POSITION / 64] = c.table[POSITION / 64];
  cr_assert_eq(attend(&c), MK_ERR_DEVICE);
  cr_assert_not_null(strstr(mk_error_message(), "block 1"), "%s", mk_error_message());
  stop_rows(&c);
}

Test(cpu_blocks, row_that_reads_where_another_slot_appends) {
  rows_case c;
  start_rows(&c);
  c.table[c.columns] = c.table[POSITION / 64]; /* slot 1 reads its first block */
  cr_assert_eq(attend(&c), MK_ERR_DEVICE);
  cr_assert_not_null(strstr(mk_error_message(), "block 1: unordered access"), "%s", mk_error_message());
  stop_rows(&c);
}

/* A row that does not take part in the step has no blocks. */
Test(cpu_blocks, idle_rows_have_none) {
  rows_case c;
  start_rows(&c);
  c.table[c.columns + POSITION / 64] = c.table[POSITION / 64];
  c.state.rows[1].flags = 0;
  cr_assert_eq(attend(&c), MK_OK, "%s", mk_error_message());
  stop_rows(&c);
}
