/* What orders an instruction, as text, and its place on the critical path. */
#include "vm/verify/explain.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/model.h"
#include "tests/support/text.h"
#include "vm/verify/critical_path.h"

#define EDITS(...)              \
  (const test_edit[]) {         \
    __VA_ARGS__, { NULL, NULL } \
  }

typedef struct told {
  mk_status status;
  char *text;
} told;

static told explain(const mk_program *program, uint32_t uid) {
  told t;
  size_t length;
  FILE *out = open_memstream(&t.text, &length);
  t.status = mk_explain(program, uid, out);
  fclose(out);
  return t;
}

static void expect_text(const char *name, const test_edit *edits, uint32_t uid, mk_status status,
                        const char *const *words) {
  mk_program *program = test_assemble(name, edits);
  told t = explain(program, uid);
  cr_assert_eq(t.status, status, "status %d: %s", t.status, mk_error_message());
  for (; *words != NULL; words++) {
    cr_expect_not_null(strstr(t.text, *words), "`%s` is not in:\n%s", *words, t.text);
  }
  free(t.text);
  mk_program_free(program);
}
#define WORDS(...) \
  (const char *const[]) { __VA_ARGS__, NULL }

Test(explain, the_whole_text) {
  mk_program *program = test_assemble("layer.mks", NULL);
  told t = explain(program, 7);
  cr_assert_eq(t.status, MK_OK, "%s", mk_error_message());
  cr_assert_str_eq(
      t.text,
      "SM 0 position 6 #7 linear_add, one of 9 in its queue\n"
      "  #7 linear_add x=act[0:1,0:4] weight=w_down[2:4,0:2] residual_in=residual[0:1,2:4] "
      "residual_out=residual[0:1,2:4] "
      "out=y[0:1,2:4] wait=glus>=2 wait=moved>=2 signal=freed+1 pages=2 resident=64\n"
      "queue order: every role takes it after its part of SM 0 position 5 #6 glu, before its part of SM 0 position 7 "
      "#8 head\n"
      "  loader    2 pages, loaded ahead as far as the ring of 12 is free\n"
      "  consumer  after the loader's part of it, and after its waits and stamps\n"
      "  storer    after the consumer's part of it; later than that by at most 2 instructions\n"
      "waits for 2 of 2 on counter glus (relaxed: a hint that orders nothing), signalled by SM 0 position 5 #6 glu, "
      "SM 1 position 4 #16 glu\n"
      "waits for 2 of 2 on counter moved (release), signalled by SM 0 position 4 #5 reduce_add, SM 1 position 3 #15 "
      "reduce_add\n"
      "reads x, act[0:1,0:4]: waits for the stamps of SM 0 position 5 #6 glu, SM 1 position 4 #16 glu\n"
      "reads weight, w_down[2:4,0:2]: weight, constant\n"
      "reads residual_in, residual[0:1,2:4]: plain, no stamps; written by SM 1 position 3 #15 reduce_add (before)\n"
      "writes residual_out, residual[0:1,2:4]: plain, no stamps; read by nobody else\n"
      "  also written by SM 1 position 3 #15 reduce_add (before)\n"
      "writes out, y[0:1,2:4]: stamped; read by SM 0 position 7 #8 head, SM 1 position 6 #18 head\n"
      "reads the step state of its SM, which SM 0 position 8 #9 next moves on\n"
      "signals counter freed by 1, waited for by SM 0 position 7 #8 head, SM 1 position 6 #18 head\n"
      "critical path: step 7 of 9 on the longest chain, which costs 29 (22 before it, 3 itself, 4 after it)\n"
      "  after SM 0 position 5 #6 glu, through queue order\n"
      "  before SM 0 position 7 #8 head, through queue order\n"
      "  cost: 1 for an instruction and 1 for each page that it streams at the last position; one epoch; a chain "
      "follows\n"
      "  queue order, stamps and counters\n",
      "%s", t.text);
  free(t.text);
  mk_program_free(program);
}

Test(explain, other_instructions) {
  expect_text("layer.mks", NULL, 2, MK_OK,
              WORDS("reads and appends to kv, kv[0:1,0:1]: blocks, no stamps; read by nobody else\n  also written by "
                    "nobody else\n",
                    "the KV cache only after the previous epoch's next of this SM",
                    "reads table, table[0:1,0:1]: input, constant"));
  expect_text("layer.mks", NULL, 3, MK_OK,
              WORDS("waits for the stamps (of the rows in use at the position) of SM 0 position 1 #2 attention, SM 1 "
                    "position 1 #12"));
  expect_text("layer.mks", NULL, 19, MK_OK,
              WORDS("last of the epoch\n", "moves on the step state of its SM\n", "writes no ring\n",
                    "waits for no counter\n", "signals no counter\n", "critical path: step 9 of 9 on"));
  expect_text("layer.mks", NULL, 1, MK_OK,
              WORDS("every role takes it first, before its part of SM 0 position 1 #2 attention",
                    "step 1 of 9 on the longest chain"));
  expect_text(
      "two_ranks.mks", NULL, 11, MK_OK,
      WORDS("rank 1 SM 0 position 0 #11 reduce_add, one of 3", "signalled by rank 0 SM 0 position 1 #2 reduce_add\n",
            "after rank 0 SM 0 position 1 #2 reduce_add, through counter summed\n"));
  expect_text("one_tile.mks", NULL, 12, MK_OK,
              WORDS("written by SM 0 position 1 #2 reduce_add (before), SM 0 position 3 #4 reduce_add (after), SM 1 "
                    "position 0 #11 "
                    "reduce_add (before)\n"));
}

/* A counter that can get there without some signal does not order after it. */
Test(explain, threshold_below_the_total) {
  expect_text("layer.mks", EDITS({"#6 glu x=x", "#6 glu wait=heads>=1 x=x"}), 6, MK_OK,
              WORDS("waits for 1 of 2 on counter heads (relaxed: a hint that orders nothing), signalled by SM 0 "
                    "position 0 #1 qkv (may "
                    "still be missing), SM 1 position 0 #11 qkv (may still be missing)\n"));
}

/* When only the order cannot be proven, the text is there: it tells what is missing. */
Test(explain, program_that_is_rejected) {
  expect_text("one_tile.mks", EDITS({" wait=written>=1", ""}), 12, MK_ERR_REJECTED,
              WORDS("waits for no counter\n", "critical path: step"));
  cr_assert_eq(strncmp(mk_error_message(), "R01: ", 5), 0, "%s", mk_error_message());
  expect_text("layer.mks", EDITS({"#6 glu", "#6 glu wait=late>=1"}, {"#17 linear_add", "#17 linear_add signal=late+1"}),
              6, MK_ERR_REJECTED, WORDS("critical path: none, the program deadlocks\n"));
  cr_assert_eq(strncmp(mk_error_message(), "D01: ", 5), 0, "%s", mk_error_message());
  mk_program *program = test_assemble("layer.mks", EDITS({"#16 glu", "#6 glu"}));
  told t = explain(program, 6);
  cr_assert_eq(t.status, MK_ERR_REJECTED);
  cr_assert_str_empty(t.text);
  free(t.text);
  mk_program_free(program);
}

Test(explain, unknown_uid) {
  mk_program *program = test_assemble("layer.mks", NULL);
  told t = explain(program, 10);
  cr_assert_eq(t.status, MK_ERR_USAGE);
  cr_assert_str_eq(mk_error_message(),
                   "no instruction has uid 10; the program's 17 instructions have uids from 1 to 19");
  cr_assert_str_empty(t.text);
  free(t.text);
  mk_program_free(program);
  mk_machine machine = mk_machine_latency(1);
  cr_assert_eq(mk_program_new(&machine, &program), MK_OK);
  program->ranges.batch = (mk_range){1, 1};
  t = explain(program, 0);
  cr_assert_eq(t.status, MK_ERR_USAGE, "%s", mk_error_message());
  cr_assert_not_null(strstr(mk_error_message(), "no instructions"));
  free(t.text);
  mk_program_free(program);
}

static mk_program *compile(const mk_config *config, uint32_t sms, uint32_t max_seq) {
  mk_graph *graph;
  mk_program *program;
  cr_assert_eq(mk_llama_graph(config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &(mk_compile_options){.sms = sms, .max_seq = max_seq}, &program), MK_OK, "%s",
               mk_error_message());
  mk_graph_free(graph);
  return program;
}

/* 10,760 instructions: long lists are cut, and every opcode can be explained. */
Test(explain, large_program) {
  mk_config config;
  cr_assert_eq(mk_synth_shape("llama-3.2-1b", &config), MK_OK);
  mk_program *program = compile(&config, 132, 4096);
  bool seen[MK_OP_COUNT] = {false};
  for (size_t i = program->instruction_count; i-- > 0;) {
    const mk_instruction *in = &program->instructions[i];
    if (!seen[in->opcode]) {
      told t = explain(program, in->uid);
      cr_assert_eq(t.status, MK_OK, "%s", mk_error_message());
      cr_expect_not_null(strstr(t.text, " more\n"), "%s", t.text);
      cr_expect_not_null(strstr(t.text, "critical path: step "), "%s", t.text);
      seen[in->opcode] = true;
      free(t.text);
    }
  }
  mk_program_free(program);
}

/* The chains are chains: neighbours are one edge apart, costs add up, ranks rise. */
static void expect_chains(const mk_program *program, uint64_t longest) {
  mk_verifier v = {.program = program};
  mk_critical_path path;
  cr_assert_eq(mk_verify_structure(&v), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_verify_access(&v), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_critical_path_find(&v, &path), MK_OK, "%s", mk_error_message());
  cr_assert(!path.cyclic);
  uint64_t most = 0;
  for (uint32_t i = 0; i < program->instruction_count; i++) {
    const mk_chain *head = &path.head[i], *tail = &path.tail[i];
    uint64_t own = mk_chain_cost(&program->instructions[i]), all = head->cost + own + tail->cost;
    most = all > most ? all : most;
    if (head->neighbour != MK_NONE_INDEX) {
      uint32_t n = head->neighbour;
      cr_assert_lt(path.rank[n], path.rank[i]);
      cr_assert_eq(path.head[n].cost + mk_chain_cost(&program->instructions[n]), head->cost);
      cr_assert(head->via != MK_VIA_QUEUE || n + 1 == i);
    }
    if (tail->neighbour != MK_NONE_INDEX) {
      uint32_t n = tail->neighbour;
      cr_assert_gt(path.rank[n], path.rank[i]);
      cr_assert_eq(path.tail[n].cost + mk_chain_cost(&program->instructions[n]), tail->cost);
    }
    bool first = i == program->queues[v.queue_of[i]].first;
    cr_assert(first || head->cost >= path.head[i - 1].cost + mk_chain_cost(&program->instructions[i - 1]));
    cr_assert(head->neighbour != MK_NONE_INDEX || head->cost == 0);
  }
  cr_assert_eq(path.longest, most);
  cr_assert(longest == 0 || path.longest == longest, "%d, not %d", (int)path.longest, (int)longest);
  mk_critical_path_free(&path);
  mk_verify_free(&v);
}

Test(critical_path, of_hand_written_programs) {
  static const struct {
    const char *name;
    uint64_t longest;
  } cases[] = {{"layer.mks", 7 + 5 + 1 + 5 + 1 + 3 + 3 + 3 + 1},
               {"two_sms.mks", 2 + 1 + 2 + 1},
               {"two_ranks.mks", 2 + 1 + 1 + 3 + 1}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mk_program *program = test_assemble(cases[i].name, NULL);
    expect_chains(program, cases[i].longest);
    mk_program_free(program);
  }
}

Test(critical_path, of_compiled_programs) {
  static const uint32_t sms[] = {1, 3, 16, 132};
  for (size_t which = 0; which < TEST_MODELS; which++) {
    mk_config config = test_model_config(which);
    mk_program *program = compile(&config, sms[which % 4], 600);
    expect_chains(program, 0);
    mk_program_free(program);
  }
}

Test(explain, every_allocation_may_fail) {
  mk_program *program = test_assemble("layer.mks", NULL);
  FILE *out = fopen("/dev/null", "w");
  mk_status status = MK_ERR_RUNTIME;
  uint64_t n = 0;
  while (status != MK_OK) {
    n++;
    mk_alloc_fail_at(n, n % 2 == 0);
    status = mk_explain(program, 7, out);
    mk_alloc_fail_at(0, false);
    cr_assert(status == MK_OK || status == MK_ERR_RUNTIME, "%s", mk_error_message());
  }
  cr_assert_gt(n, 30);
  fclose(out);
  mk_program_free(program);
}

Test(explain, stream_that_cannot_be_written) {
  mk_program *program = test_assemble("layer.mks", NULL);
  FILE *out = fopen("/dev/full", "w");
  cr_assert_not_null(out);
  setbuf(out, NULL);
  cr_assert_eq(mk_explain(program, 7, out), MK_ERR_RUNTIME);
  cr_assert_not_null(strstr(mk_error_message(), "cannot be written"));
  fclose(out);
  mk_program_free(program);
}
