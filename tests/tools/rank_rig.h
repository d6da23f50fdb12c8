/* The command as ranks of several processes, over a driver and an NCCL without GPUs (tests/fake_nccl/command.c): a
 * model for them, and their start and end. Failures fail the running test. */
#ifndef MK_TEST_RANK_RIG_H
#define MK_TEST_RANK_RIG_H

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/process.h"
#include "tests/support/rank_process.h"

static inline void sleep_ms(uint32_t ms) {
  (void)nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}, NULL);
}

enum { RANKS = 2, MOST = 24, SIGNALLED = 1000 };

static char folder[] = "/tmp/mk-processes-XXXXXX";

static inline void make_model(void) {
  char command[512];
  cr_assert_not_null(mkdtemp(folder));
  snprintf(command, sizeof command, "%s synth --like tiny -o %s/m --seed 3 >/dev/null 2>&1", MK_COMMAND, folder);
  cr_assert_eq(system(command), 0);
}

static inline void drop_model(void) {
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  cr_expect_eq(system(command), 0);
}

/* The processes of a command. */
typedef struct ranks {
  char address[32];
  pid_t pids[RANKS];
  int out[RANKS], err[RANKS];
  test_result results[RANKS];
} ranks;

static inline void start_rank(ranks *r, uint32_t rank, const char *const *arguments, const char *slow_ms) {
  char number[8], model[64];
  const char *all[MOST] = {arguments[0]};
  size_t count = 1;
  snprintf(number, sizeof number, "%u", rank);
  snprintf(model, sizeof model, "%s/m", folder);
  for (size_t i = 1; arguments[i] != NULL; i++) {
    all[count++] = strcmp(arguments[i], "MODEL") == 0 ? model : arguments[i];
  }
  const char *const more[] = {"--sms", "4", "--ranks", "2", "--rank", number, "--rendezvous", r->address};
  const size_t first = strcmp(arguments[0], "serve") == 0 ? 2 : 0; /* which asks for all SMs */
  for (size_t i = first; i < sizeof more / sizeof more[0]; i++) {
    all[count++] = more[i];
  }
  unsetenv("BXFI_MAP"); /* the command has Criterion in it, and is no test */
  setenv("MK_FAKE_RANK", number, 1);
  setenv("MK_FAKE_RANKS", "2", 1);
  setenv("MK_FAKE_SLOW", slow_ms, 1);
  const int in = open("/dev/null", O_RDONLY);
  r->out[rank] = test_scratch_file();
  r->err[rank] = test_scratch_file();
  r->pids[rank] = test_start(MK_RANK_COMMAND, all, in, r->out[rank], r->err[rank]);
  close(in);
}

static inline void start(ranks *r, const char *const *arguments, const char *slow_ms) {
  rank_address(r->address);
  for (uint32_t rank = RANKS; rank-- > 0;) {
    start_rank(r, rank, arguments, slow_ms);
  }
}

static inline void finish(ranks *r) {
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    size_t length;
    r->results[rank].code = test_finish(r->pids[rank]);
    r->results[rank].out = test_slurp(r->out[rank], &r->results[rank].out_length);
    r->results[rank].err = test_slurp(r->err[rank], &length);
    close(r->out[rank]);
    close(r->err[rank]);
  }
}

static inline void drop(ranks *r) {
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    test_drop(&r->results[rank]);
  }
}

#endif
