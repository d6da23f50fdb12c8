/* Programs and work lists of MLA decode: what is compiled is accepted; every list passes the checker, takes as long as
 * it says, and the makespan placement never ends later than the naive one. */
#include <criterion/criterion.h>
#include <string.h>

#include "scheduler/mla_compile.h"
#include "scheduler/mla_schedule.h"
#include "tests/support/numbers.h"
#include "vm/verify/mla_check.h"
#include "vm/verify/verify.h"

enum { MOST_SEQUENCES = 300, MOST_PAGES = 1100 };

typedef struct planner {
  mk_program *program;
  mk_mla_geometry g;
  mk_mla_scheduler *scheduler;
  mk_mla_checker *checker;
  uint32_t *work, *again;
  uint64_t *ready;
  size_t words;
} planner;

static planner start(uint32_t heads, uint32_t new_tokens, uint32_t sms, const mk_mla_costs *costs) {
  mk_mla_shape shape = {.heads = heads,
                        .new_tokens = new_tokens,
                        .max_sequences = MOST_SEQUENCES,
                        .max_pages = MOST_PAGES,
                        .pool_pages = 1,
                        .scale = 1};
  planner p;
  cr_assert_eq(mk_mla_compile(&shape, sms, &p.program), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_verify(p.program, NULL), MK_OK, "%s", mk_error_message());
  cr_assert(mk_mla_geometry_of(p.program, &p.g));
  cr_assert_eq(mk_mla_scheduler_new(p.program, costs, &p.scheduler), MK_OK);
  cr_assert_eq(mk_mla_checker_new(p.program, &p.checker), MK_OK);
  p.words = (size_t)p.g.sms * p.g.list_words;
  cr_assert_eq(mk_alloc(p.words, sizeof *p.work, &p.work), MK_OK);
  cr_assert_eq(mk_alloc(p.words, sizeof *p.again, &p.again), MK_OK);
  cr_assert_eq(mk_alloc(p.g.slots, sizeof *p.ready, &p.ready), MK_OK);
  return p;
}

static void stop(planner *p) {
  mk_free(p->work);
  mk_free(p->again);
  mk_free(p->ready);
  mk_mla_checker_free(p->checker);
  mk_mla_scheduler_free(p->scheduler);
  mk_program_free(p->program);
}

static mk_mla_summary expect_plan(planner *p, const mk_mla_costs *costs, mk_mla_placement placement,
                                  const uint32_t *lengths, uint32_t sequences) {
  mk_mla_summary summary, second;
  cr_assert_eq(mk_mla_schedule(p->scheduler, placement, lengths, sequences, p->work, &summary), MK_OK, "%s",
               mk_error_message());
  cr_assert_eq(mk_mla_check_list(p->checker, p->work, sequences), MK_OK, "%u sequences on %u SMs: %s", sequences,
               p->g.sms, mk_error_message());
  cr_assert_eq(summary.makespan, mk_mla_simulate(&p->g, costs, p->work, lengths, p->ready));
  memset(p->again, 0, p->words * sizeof *p->again);
  cr_assert_eq(mk_mla_schedule(p->scheduler, placement, lengths, sequences, p->again, &second), MK_OK);
  cr_assert_eq(memcmp(&summary, &second, sizeof summary), 0);
  for (uint32_t sm = 0; sm < p->g.sms; sm++) {
    const uint32_t *row = p->work + (size_t)sm * p->g.list_words, *other = p->again + (size_t)sm * p->g.list_words;
    cr_assert_eq(memcmp(row, other, (MK_MLA_LIST_HEAD + MK_MLA_ENTRY * (row[0] + row[1])) * sizeof *row), 0);
  }
  return summary;
}

static void expect_both(planner *p, const mk_mla_costs *costs, const uint32_t *lengths, uint32_t sequences) {
  mk_mla_summary naive = expect_plan(p, costs, MK_MLA_NAIVE, lengths, sequences);
  mk_mla_summary makespan = expect_plan(p, costs, MK_MLA_MAKESPAN, lengths, sequences);
  /* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): there is a sequence at least */
  cr_assert_leq(makespan.makespan, naive.makespan, "%u sequences (%u, ...) on %u SMs", sequences, lengths[0], p->g.sms);
}

static const uint32_t sm_counts[] = {1, 2, 7, 64, 132, 1024};

Test(mla_schedule, random_batches) {
  uint64_t seed = 1;
  for (size_t i = 0; i < sizeof sm_counts / sizeof sm_counts[0]; i++) {
    for (uint32_t kind = 0; kind < 4; kind++) { /* the last: blocks of 52 rows */
      static const uint32_t heads[] = {8, 16, 128, 104}, tokens[] = {1, 4, 3, 6};
      planner p = start(heads[kind], tokens[kind], sm_counts[i], NULL);
      for (uint32_t round = 0; round < 40; round++) {
        uint32_t lengths[MOST_SEQUENCES], most = 1u << test_random_below(&seed, 17);
        uint32_t sequences = 1 + test_random_below(&seed, round % 2 == 0 ? 10 : MOST_SEQUENCES);
        for (uint32_t q = 0; q < sequences; q++) {
          lengths[q] = test_random_below(&seed, test_random_below(&seed, 4) == 0 ? most : most / 20 + 1);
        }
        expect_both(&p, &mk_mla_default_costs, lengths, sequences);
      }
      stop(&p);
    }
  }
}

/* Rows of the list have room even where all that is small comes to few SMs. */
Test(mla_schedule, a_few_giants_and_many_empty) {
  uint32_t lengths[MOST_SEQUENCES] = {0};
  for (size_t i = 0; i < sizeof sm_counts / sizeof sm_counts[0]; i++) {
    planner p = start(128, 8, sm_counts[i], NULL);
    for (uint32_t giants = 0; giants < 12; giants++) {
      expect_both(&p, &mk_mla_default_costs, lengths, MOST_SEQUENCES);
      lengths[giants * 7] = MOST_PAGES * MK_MLA_PAGE_TOKENS;
    }
    stop(&p);
  }
}

Test(mla_schedule, costs_of_every_kind) {
  static const mk_mla_costs costs[] = {{1, 1, 1, 1, 1, 1},
                                       {0, 1, 0, 0, 0, 0},
                                       {1000000, 1, 0, 0, 0, 0},
                                       {0, 1, 0, 1000000, 0, 0},
                                       {0, 1, 0, 0, 1000000, 10000}};
  uint32_t lengths[] = {5000, 100, 64, 70000, 1, 0, 999};
  for (size_t i = 0; i < sizeof costs / sizeof costs[0]; i++) {
    planner p = start(16, 2, 132, &costs[i]);
    expect_both(&p, &costs[i], lengths, 7);
    stop(&p);
  }
}

/* What uneven batches are for: one long sequence among short ones takes little more than its share of all SMs. */
Test(mla_schedule, uneven_batches_come_near_their_share) {
  static const struct { uint32_t lengths[4], sequences; } batches[] = {{{4641, 45118, 1730, 1696}, 4}, {{65536}, 1}};
  static const mk_mla_costs costs = {
      .item = 1400, .page = 2600, .out_row = 50, .slot_row = 90, .reduction = 1, .unit = 14};
  planner p = start(16, 4, 132, &costs);
  for (size_t i = 0; i < 2; i++) {
    uint64_t pages = 0;
    for (uint32_t q = 0; q < batches[i].sequences; q++) {
      pages += mk_mla_pages_of(batches[i].lengths[q]);
    }
    mk_mla_summary summary = expect_plan(&p, &costs, MK_MLA_MAKESPAN, batches[i].lengths, batches[i].sequences);
    uint64_t share = pages * costs.page / 132;
    cr_assert_lt(summary.makespan, 2 * share, "%llu ns; the share is %llu", (unsigned long long)summary.makespan,
                 (unsigned long long)share);
  }
  stop(&p);
}

static mk_mla_summary expect_even(planner *p, uint32_t length, uint32_t count) {
  uint32_t lengths[132];
  for (uint32_t q = 0; q < count; q++) {
    lengths[q] = length;
  }
  return expect_plan(p, &mk_mla_default_costs, MK_MLA_MAKESPAN, lengths, count);
}

Test(mla_schedule, even_batches_are_not_cut) {
  planner p = start(16, 4, 132, NULL);
  cr_assert_eq(expect_even(&p, 4096, 132).slots, 0);
  stop(&p);
}

/* Sequences in two parts are reduced where these are. */
Test(mla_schedule, few_parts_are_reduced_where_they_are) {
  planner p = start(16, 4, 128, NULL);
  cr_assert_eq(expect_even(&p, 2048, 64).slots, 128);
  for (uint32_t sm = 0; sm < 128; sm++) {
    mk_mla_list list = mk_mla_list_of(p.work + (size_t)sm * p.g.list_words);
    cr_assert_eq(list.reductions, mk_mla_folds(&list), "SM %u", sm);
  }
  stop(&p);
}

/* Two SMs by hand: the simulation counts what the costs say. The reduction is of the block of the last item of its SM,
 * so that of this one's part neither writing nor reading counts; then items are the other way round. */
Test(mla_schedule, simulation_by_hand) {
  const mk_mla_costs costs = {.item = 1000, .page = 100, .out_row = 3, .slot_row = 7, .reduction = 500, .unit = 11};
  planner p = start(8, 1, 2, &costs);
  uint32_t lengths[] = {640, 100};
  const uint32_t first[] = {1, 0, 0, 0, 0, 0, 4, 0},
                 second[] = {2, 1, 0, 0, 1, 0, MK_MLA_REST, MK_MLA_OUT, 0, 4, MK_MLA_REST, 1, 0, 0, 2, 32u << 16},
                 turned[] = {2, 1, 0, 0, 0, 4, MK_MLA_REST, 1, 1, 0, MK_MLA_REST, MK_MLA_OUT, 0, 0, 2, 32u << 16};
  memcpy(p.work, first, sizeof first);
  memcpy(p.work + p.g.list_words, second, sizeof second);
  cr_assert_eq(mk_mla_check_list(p.checker, p.work, 2), MK_OK, "%s", mk_error_message());
  uint64_t items = (1000 + 2 * 100 + 8 * 3) + (1000 + 6 * 100 + 8 * 7);
  cr_assert_eq(mk_mla_simulate(&p.g, &costs, p.work, lengths, p.ready), items + 500 + 32 * 11 - 8 * 7);
  memcpy(p.work + p.g.list_words, turned, sizeof turned);
  cr_assert_eq(mk_mla_check_list(p.checker, p.work, 2), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_mla_simulate(&p.g, &costs, p.work, lengths, p.ready), items + 500 + 2 * 32 * 11);
  lengths[1] = 0;
  lengths[0] = 64 * 1000; /* grown: the last part has it all */
  items = (1000 + 8 * 3) + (1000 + 996 * 100 + 8 * 7);
  cr_assert_eq(mk_mla_simulate(&p.g, &costs, p.work, lengths, p.ready), items + 500 + 2 * 32 * 11);
  stop(&p);
}

Test(mla_schedule, batches_that_do_not_fit) {
  planner p = start(8, 1, 2, NULL);
  uint32_t lengths[MOST_SEQUENCES + 1] = {0};
  cr_assert_eq(mk_mla_schedule(p.scheduler, MK_MLA_NAIVE, lengths, MOST_SEQUENCES + 1, p.work, NULL), MK_ERR_USAGE);
  mk_mla_scheduler *scheduler;
  cr_assert_eq(mk_mla_scheduler_new(p.program, &(mk_mla_costs){.item = 5}, &scheduler), MK_ERR_USAGE);
  cr_assert_null(scheduler);
  lengths[3] = MOST_PAGES * MK_MLA_PAGE_TOKENS + 1;
  cr_assert_eq(mk_mla_schedule(p.scheduler, MK_MLA_MAKESPAN, lengths, 5, p.work, NULL), MK_ERR_USAGE);
  cr_assert_not_null(strstr(mk_error_message(), "sequence 3 has 70401 tokens"), "%s", mk_error_message());
  stop(&p);
}

static void expect_shape(mk_mla_shape shape, const char *words) {
  mk_program *program;
  cr_assert_eq(mk_mla_compile(&shape, 4, &program), MK_ERR_USAGE);
  cr_assert_null(program);
  cr_assert_not_null(strstr(mk_error_message(), words), "%s", mk_error_message());
}

Test(mla_schedule, shapes_that_are_none) {
  const mk_mla_shape good = {
      .heads = 16, .new_tokens = 4, .max_sequences = 4, .max_pages = 4, .pool_pages = 4, .scale = 1};
  mk_mla_shape s = good;
  s.heads = 12;
  expect_shape(s, "heads is 12");
  s.heads = 136;
  expect_shape(s, "heads is 136");
  s.heads = 0;
  expect_shape(s, "heads is 0");
  s = good, s.new_tokens = 9;
  expect_shape(s, "new_tokens is 9");
  s = good, s.max_sequences = 65536;
  expect_shape(s, "max_sequences is 65536; it must be from 1 to 65535");
  s = good, s.max_pages = 0;
  expect_shape(s, "max_pages is 0");
  s = good, s.pool_pages = 1u << 31;
  expect_shape(s, "pool_pages is 2147483648");
  s = good, s.scale = -1;
  expect_shape(s, "scale is -1");
  mk_program *program;
  cr_assert_eq(mk_mla_compile(&good, 0, &program), MK_ERR_USAGE);
  cr_assert_eq(mk_mla_compile(&good, 1025, &program), MK_ERR_USAGE);
}

Test(mla_schedule, largest_programs) {
  mk_program *program;
  mk_mla_shape shape = {
      .heads = 128, .new_tokens = 8, .max_sequences = 4095, .max_pages = 65530, .pool_pages = 1 << 26, .scale = 1};
  cr_assert_eq(mk_mla_compile(&shape, 132, &program), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_verify(program, NULL), MK_OK, "%s", mk_error_message());
  mk_program_free(program);
}

Test(mla_schedule, blocks_are_even) {
  for (uint32_t heads = 8; heads <= 128; heads += 8) {
    for (uint32_t tokens = 1; tokens <= 8; tokens++) {
      mk_mla_shape s = {.heads = heads, .new_tokens = tokens};
      uint32_t rows = mk_mla_block_rows(&s), blocks = mk_mla_blocks(&s), least = (heads * tokens + 63) / 64;
      cr_assert_eq(rows * blocks, heads * tokens);
      cr_assert(rows <= 64 && blocks <= least + least / 2, "%u heads, %u tokens: %u blocks of %u rows", heads, tokens,
                blocks, rows);
    }
  }
}
