/* mkvm run and bench as ranks of several processes, over a driver and an NCCL without GPUs: who prints what, how they
 * end, and what does not go together. */
#include "tests/tools/rank_rig.h"

TestSuite(command_processes, .init = make_model, .fini = drop_model);

/* All end well, rank 0 prints `text`, and the others nothing. */
static void expect(const char *const *arguments, const char *text) {
  ranks r;
  start(&r, arguments, "0");
  finish(&r);
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    cr_assert_eq(r.results[rank].code, 0, "rank %u: code %d, %s", rank, r.results[rank].code, r.results[rank].err);
  }
  cr_assert_not_null(strstr(r.results[0].out, text), "%s", r.results[0].out);
  for (uint32_t rank = 1; rank < RANKS; rank++) {
    cr_assert_str_empty(r.results[rank].out);
    cr_assert_str_empty(r.results[rank].err);
  }
  drop(&r);
}

Test(command_processes, greedy) {
  expect((const char *[]){"run", "-m", "MODEL", "-p", "hello", "-n", "5", "--json", NULL},
         "\"tokens\": [293, 70, 12, 109, 291]"); /* fake_gpu_choice */
}
Test(command_processes, sampled_with_a_seed_of_its_own) {
  expect((const char *[]){"run", "-m", "MODEL", "-p", "hello", "-n", "3", "--temp", "0.8", "--json", NULL},
         "\"tokens\": [293, 70, 12]");
}
Test(command_processes, with_log_probabilities) {
  expect((const char *[]){"run", "-m", "MODEL", "-p", "hello", "-n", "2", "--json", "--logprobs", "2", NULL},
         "\"logprobs\": [");
}
Test(command_processes, several_prompts) {
  expect((const char *[]){"run", "-m", "MODEL", "-p", "hello", "-p", "you", "-n", "3", "--rows", "4", "--json", NULL},
         "{\"sequences\": [");
}
Test(command_processes, bench) {
  expect((const char *[]){"bench", "--like", "tiny", "-p", "0", "-n", "8", "-r", "2", NULL}, "tg8");
}
Test(command_processes, quantised_weights_and_a_cache_in_fp8) {
  char command[512];
  snprintf(command, sizeof command,
           "%s quantize -m %s/m -o %s/q --to int4 >/dev/null 2>&1 && rm -r %s/m && mv %s/q %s/m", MK_COMMAND, folder,
           folder, folder, folder, folder);
  cr_assert_eq(system(command), 0);
  expect((const char *[]){"run", "-m", "MODEL", "-p", "hello", "-n", "5", "--json", "--kv", "fp8", NULL},
         "\"tokens\": [293, 70, 12, 109, 291]");
  expect((const char *[]){"bench", "--like", "tiny", "--weights", "fp8", "-p", "0", "-n", "8", "-r", "2", NULL}, "tg8");
}

/* Each rank has one of its own, and none has anything to say of it. */
Test(command_processes, packed_copies) {
  char cache[64], command[128];
  snprintf(cache, sizeof cache, "%s/c", folder);
  for (int i = 0; i < 2; i++) {
    expect((const char *[]){"run", "-m", "MODEL", "-p", "hello", "-n", "5", "--json", "--cache", cache, NULL},
           "\"tokens\": [293, 70, 12, 109, 291]");
    snprintf(command, sizeof command, "test \"$(ls -A %s | grep -c packed$)\" = 2", cache);
    cr_assert_eq(system(command), 0);
  }
  expect((const char *[]){"bench", "-m", "MODEL", "-p", "0", "-n", "8", "-r", "2", "--cache", cache, NULL}, "tg8");
}

/* Its name stands before what is wrong. */
Test(command_processes, packed_copies_that_cannot_be_written) {
  ranks r;
  start(&r, (const char *[]){"run", "-m", "MODEL", "-p", "hello", "-n", "2", "--cache", "/proc/none/below", NULL}, "0");
  finish(&r);
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    cr_assert_eq(r.results[rank].code, 0, "rank %u: code %d, %s", rank, r.results[rank].code, r.results[rank].err);
    cr_assert_not_null(strstr(r.results[rank].err, rank == 0 ? "mkvm: /proc/none" : "mkvm: rank 1: /proc/none"), "%s",
                       r.results[rank].err);
  }
  drop(&r);
}

/* Requests that come and go are rank 0's alone. */
Test(command_processes, a_load) {
  expect((const char *[]){"bench", "--like", "tiny", "--load", "--requests", "5", "--concurrency", "3", "--rows", "4",
                          "--in", "5", "--out", "7", NULL},
         "5 requests came, 5 ended");
}

/* ---- Signals ---- */

/* A long generation, and what happens after two seconds of it. */
static void generate_and_signal(ranks *r, uint32_t rank, int number) {
  start(r, (const char *[]){"run", "-m", "MODEL", "-p", "hello", "-n", "200", "--json", NULL}, "50");
  sleep_ms(2000);
  cr_assert_eq(kill(r->pids[rank], number), 0);
  finish(r);
}

static void expect_interrupted(uint32_t rank) {
  ranks r;
  generate_and_signal(&r, rank, SIGINT);
  for (uint32_t i = 0; i < RANKS; i++) {
    cr_assert_eq(r.results[i].code, 0, "rank %u: code %d, %s", i, r.results[i].code, r.results[i].err);
  }
  cr_assert_not_null(strstr(r.results[0].out, "\"finish_reason\": \"interrupted\""), "%s", r.results[0].out);
  drop(&r);
}

/* Ctrl-C on any rank is one on rank 0: all end in order. */
Test(command_processes, interrupted_at_rank_0) { expect_interrupted(0); }
Test(command_processes, interrupted_at_rank_1) { expect_interrupted(1); }

static void expect_killed(uint32_t rank) {
  ranks r;
  char name[32];
  generate_and_signal(&r, rank, SIGKILL);
  snprintf(name, sizeof name, "mkvm run: rank %u (", rank);
  for (uint32_t i = 0; i < RANKS; i++) {
    cr_assert_eq(r.results[i].code, i == rank ? SIGNALLED + SIGKILL : MK_ERR_DEVICE, "rank %u: code %d, %s", i,
                 r.results[i].code, r.results[i].err);
    if (i != rank) {
      cr_assert_not_null(strstr(r.results[i].err, name), "%s", r.results[i].err);
      cr_assert_not_null(strstr(r.results[i].err, ") is gone"), "%s", r.results[i].err);
    }
  }
  drop(&r);
}

Test(command_processes, rank_0_is_killed) { expect_killed(0); }
Test(command_processes, rank_1_is_killed) { expect_killed(1); }

Test(command_processes, other_options_on_one_rank) {
  ranks r;
  char context[] = "64";
  const char *const usual[] = {"run", "-m", "MODEL", "-p", "hello", "-n", "5", NULL};
  const char *const other[] = {"run", "-m", "MODEL", "-p", "hello", "-n", "5", "-c", context, NULL};
  rank_address(r.address);
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    start_rank(&r, rank, rank == 1 ? other : usual, "0");
  }
  finish(&r);
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    cr_assert_eq(r.results[rank].code, MK_ERR_USAGE);
    cr_assert_not_null(strstr(r.results[rank].err, "rank 1 ("), "%s", r.results[rank].err);
    cr_assert_not_null(strstr(r.results[rank].err, "has another program or other weights than rank 0"));
  }
  drop(&r);
}

/* ---- Options ---- */

typedef struct refused {
  const char *const *arguments;
  const char *why;
} refused;

Test(command_processes, what_does_not_go_together) {
#define RUN(...) \
  (const char *[]) { "run", "-m", "m", __VA_ARGS__, NULL }
#define BENCH(...) \
  (const char *[]) { "bench", "--like", "tiny", __VA_ARGS__, NULL }
#define SERVE(...) \
  (const char *[]) { "serve", "-m", "m", __VA_ARGS__, NULL }
#define MET "--rendezvous", "h:1"
  const refused all[] = {
      {RUN("-p", "x", "--rank", "0"), "--rank needs --rendezvous HOST:PORT"},
      {RUN("-p", "x", "--rank-deadline", "3"), "--rank-deadline needs --rendezvous HOST:PORT"},
      {RUN("-p", "x", "--ranks", "2", MET), "--rendezvous needs --rank I"},
      {RUN("-p", "x", "--rank", "0", MET), "--rendezvous needs --ranks N, of 2 or more"},
      {RUN("-p", "x", "--rank", "2", "--ranks", "2", MET), "--rank 2: there are 2 ranks, counted from 0"},
      {RUN("-p", "x", "--rank", "0", "--ranks", "9", MET), "9 ranks; GPUs have at most 8"},
      {RUN("-p", "x", "--rank", "9", "--ranks", "9", MET), "'9' is not a whole number from 0 to 7"},
      {RUN("-p", "x", "--rank", "0", "--ranks", "2", "--device", "cpu", MET), "does not go with --device cpu"},
      {RUN("-p", "x", "--rank", "0", "--ranks", "2", "--compare", MET), "does not go with --compare"},
      {RUN("-p", "x", "--rank", "0", "--ranks", "2", "--trace", "f", MET), "does not go with --trace"},
      {RUN("--rank", "0", "--ranks", "2", MET), "does not go with a prompt on standard input"},
      {RUN("-f", "-", "--rank", "0", "--ranks", "2", MET), "does not go with a prompt on standard input"},
      {BENCH("--rank", "0", "--ranks", "2", "--sampling", MET), "does not go with --sampling"},
      {SERVE("--rank", "0", MET), "--rendezvous needs --ranks N, of 2 or more"},
      {SERVE("--ranks", "2"), "--ranks needs --rendezvous HOST:PORT"},
      {SERVE("--rank", "1", "--ranks", "2", "--device", "cpu", MET), "does not go with --device cpu"},
      {BENCH("--rank", "0", "--ranks", "2", "--breakdown", MET), "does not go with --trace and --breakdown"},
  };
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    test_result r = test_process(MK_COMMAND, all[i].arguments);
    cr_assert_eq(r.code, MK_ERR_USAGE, "%zu: code %d, %s", i, r.code, r.err);
    cr_assert_not_null(strstr(r.err, all[i].why), "%zu: %s", i, r.err);
    test_drop(&r);
  }
}
