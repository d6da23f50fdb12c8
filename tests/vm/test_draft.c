/* Drafts: a file has its name when it is complete, and nothing of it stays otherwise, whatever ends the process. */
#include "vm/draft.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[32], a[64], b[64], inner[64];

static void make(void) {
  snprintf(directory, sizeof directory, "/tmp/mk-draft-XXXXXX");
  cr_assert_not_null(mkdtemp(directory));
  snprintf(a, sizeof a, "%s/a", directory);
  snprintf(b, sizeof b, "%s/b", directory);
  snprintf(inner, sizeof inner, "%s/inner", directory);
}

/* Fails when a test left anything that it does not know of. */
static void drop(void) {
  unlink(a);
  unlink(b);
  cr_expect_eq(rmdir(directory), 0, "something is left in %s", directory);
}

TestSuite(draft, .init = make, .fini = drop);

static mk_draft *begun(const char *path, const char *text) {
  mk_draft *draft;
  cr_assert_eq(mk_draft_open(path, &draft), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_draft_write(draft, text, strlen(text)), MK_OK, "%s", mk_error_message());
  return draft;
}

static void expect_content(const char *path, const char *want) {
  char text[64] = "";
  FILE *file = fopen(path, "r");
  cr_assert_not_null(file, "%s", path);
  cr_assert_not_null(fgets(text, sizeof text, file));
  fclose(file);
  cr_assert_str_eq(text, want);
}

Test(draft, has_its_name_when_it_is_finished) {
  mk_draft *drafts[] = {begun(a, "one"), begun(b, "a long one")};
  cr_assert_eq(mk_draft_write_at(drafts[0], 1, "NE", 2), MK_OK);
  cr_assert_eq(mk_draft_write(drafts[0], "!", 1), MK_OK);
  cr_assert_neq(access(a, F_OK), 0);
  cr_assert_eq(mk_drafts_finish(drafts, 2), MK_OK, "%s", mk_error_message());
  expect_content(a, "oNE!");
  expect_content(b, "a long one");
}

Test(draft, takes_the_place_of_a_file) {
  mk_draft *draft = begun(a, "before");
  cr_assert_eq(mk_drafts_finish(&draft, 1), MK_OK);
  draft = begun(a, "now");
  expect_content(a, "before");
  cr_assert_eq(mk_drafts_finish(&draft, 1), MK_OK);
  expect_content(a, "now");
}

Test(draft, two_of_one_file) {
  mk_draft *first = begun(a, "first"), *second = begun(a, "second");
  cr_assert_eq(mk_drafts_finish(&second, 1), MK_OK);
  mk_draft_drop(first);
  expect_content(a, "second");
}

Test(draft, none_has_its_name_when_one_cannot) {
  mk_draft *drafts[] = {begun(a, "one"), begun(b, "two")};
  cr_assert_eq(mkdir(b, 0700), 0);
  cr_assert_eq(mk_drafts_finish(drafts, 2), MK_ERR_RUNTIME);
  cr_assert_eq(strncmp(mk_error_message(), b, strlen(b)), 0, "%s", mk_error_message());
  cr_assert_neq(access(a, F_OK), 0);
  cr_assert_eq(rmdir(b), 0);
}

Test(draft, directory_goes_when_it_was_made) {
  mk_draft *folder, *again, *draft;
  char file[80];
  snprintf(file, sizeof file, "%s/file", inner);
  cr_assert_eq(mk_draft_directory(inner, &folder), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_draft_directory(inner, &again), MK_OK, "%s", mk_error_message());
  draft = begun(file, "x");
  mk_draft_drop(again);
  cr_assert_eq(access(inner, F_OK), 0, "it was there");
  mk_draft_drop(draft);
  mk_draft_drop(folder);
  cr_assert_neq(access(inner, F_OK), 0);
  cr_assert_eq(mk_draft_directory("/nowhere/at/all", &folder), MK_ERR_RUNTIME);
  cr_assert_not_null(strstr(mk_error_message(), "/nowhere/at/all: cannot be created"), "%s", mk_error_message());
}

Test(draft, refuses_what_is_no_file) {
  mk_draft *draft;
  cr_assert_eq(mk_draft_open("/dev/full", &draft), MK_ERR_RUNTIME);
  cr_assert_not_null(strstr(mk_error_message(), "/dev/full: is not a regular file"), "%s", mk_error_message());
  cr_assert_eq(mk_draft_open(directory, &draft), MK_ERR_RUNTIME);
  cr_assert_eq(mk_draft_open("/nowhere/file", &draft), MK_ERR_RUNTIME);
  cr_assert_not_null(strstr(mk_error_message(), "create the directory"), "%s", mk_error_message());
}

Test(draft, says_that_there_is_no_room) {
  mk_draft *draft = begun(a, "");
  struct rlimit old, limit;
  static const char data[20000];
  signal(SIGXFSZ, SIG_IGN);
  cr_assert_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
  limit = (struct rlimit){.rlim_cur = 10000, .rlim_max = old.rlim_max};
  cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
  mk_status status = mk_draft_write(draft, data, sizeof data), reserved = mk_draft_reserve(draft, 20000);
  cr_assert_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
  cr_assert(status == MK_ERR_RUNTIME && reserved == MK_ERR_RUNTIME);
  cr_assert_not_null(strstr(mk_error_message(), "free some space"), "%s", mk_error_message());
  mk_draft_drop(draft);
}

Test(draft, memory_may_run_out) {
  mk_draft *draft;
  for (uint64_t n = 1; n <= 3; n++) {
    mk_alloc_fail_at(n, false);
    cr_assert_eq(mk_draft_open(a, &draft), MK_ERR_RUNTIME);
    cr_assert_null(draft);
  }
  for (uint64_t n = 1; n <= 2; n++) {
    mk_alloc_fail_at(n, false);
    cr_assert_eq(mk_draft_directory(inner, &draft), MK_ERR_RUNTIME);
  }
  mk_alloc_fail_at(0, false);
}

static void abandon(int signal_number) {
  /* NOLINTNEXTLINE(bugprone-signal-handler,cert-sig30-c): made for handlers */
  mk_drafts_abandon();
  _exit(signal_number);
}

/* A process that makes and finishes drafts without a pause, and is ended at some moment of it. */
static void work(void) {
  signal(SIGTERM, abandon);
  for (;;) {
    mk_draft *folder, *drafts[2];
    char path[80];
    snprintf(path, sizeof path, "%s/x", inner);
    if (mk_draft_directory(inner, &folder) != MK_OK || mk_draft_open(path, &drafts[0]) != MK_OK ||
        mk_draft_open(b, &drafts[1]) != MK_OK || mk_draft_write(drafts[1], "whole", 5) != MK_OK) {
      _exit(1);
    }
    mk_draft_drop(drafts[0]);
    drafts[0] = folder;
    if (mk_drafts_finish(drafts, 2) != MK_OK || unlink(b) != 0 || rmdir(inner) != 0) {
      _exit(1);
    }
  }
}

/* The moments between a file's name and the next draft are the work's own: a whole file, or an empty directory, may
 * stand then. */
Test(draft, a_signal_leaves_none_at_any_moment) {
  for (int round = 0; round < 300; round++) {
    int status;
    pid_t child = fork();
    if (child == 0) {
      work();
    }
    usleep(500 + (useconds_t)round * 7);
    cr_assert_eq(kill(child, SIGTERM), 0);
    cr_assert_eq(waitpid(child, &status, 0), child);
    bool before = WIFSIGNALED(status); /* it came before the handler */
    cr_assert(before || (WIFEXITED(status) && WEXITSTATUS(status) == SIGTERM), "status %d", status);
    if (access(b, F_OK) == 0) {
      expect_content(b, "whole");
      unlink(b);
    }
    rmdir(inner);
    cr_assert_eq(rmdir(directory), 0, "round %d: something is left in %s", round, directory);
    cr_assert_eq(mkdir(directory, 0700), 0);
  }
}
