/* Programs with several tiles of lines are verified by one run with all tiles, which is replayed for each tile by
 * itself (order.c). Here a run is made for each tile, too, of programs with random changes: it says what the replay
 * says, of the same instruction. */
#include <criterion/criterion.h>
#include <string.h>

#include "models/llama.h"
#include "scheduler/compile.h"
#include "tests/mutation/edits.h"
#include "tests/support/effort.h"
#include "vm/verify/run.h"

TestSuite(verify_runs, .timeout = MK_HANG_SECONDS);

enum { CONTEXT = 1024, MUTANTS = 600 };

static const mk_config shape = {.hidden = 144,
                                .intermediate = 528,
                                .layers = 3,
                                .heads = 2,
                                .kv_heads = 1,
                                .head_dim = 64,
                                .vocab = 100,
                                .max_position = CONTEXT,
                                .rms_eps = 1e-5f,
                                .rope_theta = 10000};

static mk_program *compile(const mk_compile_options *options) {
  mk_config config = shape;
  mk_graph *graph;
  mk_program *p;
  mk_config_set_context(&config, CONTEXT);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_compile(graph, options, &p), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return p;
}

/* Whether what comes before the runs accepts it; the verifier is then what runs ask for. */
static bool prepare(mk_verifier *v) {
  return mk_verify_structure(v) == MK_OK && mk_verify_boundary(v) == MK_OK && mk_verify_listed(v) == MK_OK &&
         mk_verify_shares(v) == MK_OK && mk_verify_caches(v) == MK_OK && mk_verify_access(v) == MK_OK;
}

static mk_status run_each_tile(mk_verifier *v, uint32_t tiles) {
  mk_status status = mk_run_in_order(v, MK_ALL_LINES);
  for (uint32_t tile = 0; tile < tiles && status == MK_OK; tile++) {
    status = mk_run_in_order(v, tile);
  }
  return status;
}

typedef struct counts {
  uint32_t accepted, rejected, by_tile;
} counts;

/* Verifies the program both ways. */
static void compare(const mk_program *p, uint64_t state, counts *seen) {
  const uint32_t rows = mk_program_rows(p), tiles = rows / mk_line_tile(rows);
  mk_verifier v = {.program = p, .report = {.uid = MK_NO_PLACE}}, all = v;
  mk_verify_report report;
  const bool prepared = prepare(&v);
  const mk_status one = mk_verify(p, &report);
  if (prepared) {
    cr_assert_eq(run_each_tile(&v, tiles), one, "state %llu: %s", (unsigned long long)state, mk_error_message());
    cr_assert_str_eq(v.report.rule, report.rule, "state %llu", (unsigned long long)state);
    cr_assert_eq(v.report.uid, report.uid, "state %llu", (unsigned long long)state);
    seen->accepted += one == MK_OK;
    seen->rejected += one != MK_OK;
    if (one != MK_OK && prepare(&all)) {
      seen->by_tile += mk_run_in_order(&all, MK_ALL_LINES) == MK_OK;
    }
    mk_verify_free(&all);
  }
  mk_verify_free(&v);
}

static void compare_mutants(mk_compile_options options) {
  const uint32_t mutants = test_repeats(MUTANTS / 10, MUTANTS);
  uint64_t random = 0x9e3779b97f4a7c15u * (options.rows + options.slots);
  counts seen = {0};
  for (uint32_t i = 0; i < mutants; i++) {
    mk_program *p = compile(&options);
    const uint64_t state = random;
    for (uint32_t edits = edit_draw(&random, 3); edits > 0; edits--) {
      edit_orders[edit_draw(&random, (uint32_t)edit_order_count)].change(p, &random);
    }
    compare(p, state, &seen);
    mk_program_free(p);
  }
  cr_expect_gt(seen.accepted, mutants / 10);
  cr_expect_gt(seen.rejected, mutants / 10);
  cr_log_info("%u accepted, %u rejected, of them %u by a tile alone", seen.accepted, seen.rejected, seen.by_tile);
}

Test(verify_runs, two_tiles_of_one_slot) {
  compare_mutants((mk_compile_options){.sms = 5, .max_seq = CONTEXT, .rows = 256, .slots = 1});
}

Test(verify_runs, eight_tiles_of_one_slot) {
  compare_mutants((mk_compile_options){.sms = 8, .max_seq = CONTEXT, .rows = 1024, .slots = 1});
}

Test(verify_runs, tiles_of_two_ranks) {
  compare_mutants((mk_compile_options){.sms = 4, .max_seq = CONTEXT, .rows = 512, .slots = 1, .ranks = 2});
}

Test(verify_runs, tiles_of_several_slots) {
  compare_mutants((mk_compile_options){.sms = 6, .max_seq = CONTEXT, .rows = 512, .slots = 8});
}
