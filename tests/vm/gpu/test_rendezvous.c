/* How the processes of ranks find each other, and who is sent away. Over a driver and an NCCL without GPUs. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/rank_process.h"
#include "vm/gpu/image.h"
#include "vm/gpu/machine_internal.h"

FAKE_GPU_IMAGE

/* What a process is started with. */
typedef struct started {
  char address[64];
  uint32_t ranks, deadline_s, uuid;
  uint64_t model;
  const char *version;
  bool dies; /* once it has met the others */
  int nccl;  /* its version; 0: the usual one */
} started;

static started usual(const char *address, uint32_t ranks) {
  started s = {.ranks = ranks, .deadline_s = 10, .model = 17, .version = "1.0"};
  snprintf(s.address, sizeof s.address, "%s", address);
  return s;
}

static mk_status meet(uint32_t rank, void *user) {
  const started *s = user;
  rank_world world;
  mk_group *group;
  rank_world_start(&world, s->uuid != 0 ? s->uuid - 1 : rank, 8, false);
  world.cuda->uuid = (uint8_t)(s->uuid != 0 ? s->uuid : rank + 1);
  world.nccl->version = s->nccl != 0 ? s->nccl : world.nccl->version;
  const mk_group_options options = {
      .rank = rank, .ranks = s->ranks, .address = s->address, .deadline_s = s->deadline_s, .version = s->version};
  MK_TRY(mk_group_open(&options, s->model, 0, &group));
  RANK_MUST(!s->dies);
  mk_status status = rank == 0 ? mk_group_lead(group) : mk_group_follow(group);
  mk_group_end(group, status);
  mk_group_free(group);
  return status;
}

static void expect(rank_process *process, int code, const char *why) {
  const int have = rank_finish(process);
  cr_assert_eq(have, code, "code %d: %s", have, process->message);
  cr_assert_not_null(strstr(process->message, why), "%s", process->message);
}

typedef struct three {
  started as[3];
  rank_process ranks[3];
} three;

static three three_usual(void) {
  three t;
  char address[32];
  rank_address(address);
  for (int r = 0; r < 3; r++) {
    t.as[r] = usual(address, 3);
  }
  return t;
}

static void start_three(three *t) {
  for (uint32_t r = 0; r < 3; r++) {
    rank_start(&t->ranks[r], meet, r, &t->as[r]);
  }
}

/* Whatever order they come in. */
Test(gpu_rendezvous, all_meet) {
  three t = three_usual();
  for (uint32_t r = 3; r-- > 0;) {
    rank_start(&t.ranks[r], meet, r, &t.as[r]);
    (void)nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
  }
  for (int r = 0; r < 3; r++) {
    expect(&t.ranks[r], MK_OK, "");
  }
}

/* One rank does not fit: all of them hear which, and why, long before the deadline. */
static void expect_misfit(three *t, mk_status status, const char *name, const char *why) {
  const time_t since = time(NULL);
  start_three(t);
  for (int r = 0; r < 3; r++) {
    expect(&t->ranks[r], (int)status, name);
    cr_assert_not_null(strstr(t->ranks[r].message, why), "%s", t->ranks[r].message);
  }
  cr_assert_lt(time(NULL) - since, 8);
}

Test(gpu_rendezvous, another_program) {
  three t = three_usual();
  t.as[2].model = 18;
  expect_misfit(&t, MK_ERR_USAGE, "rank 2 (", "has another program or other weights than rank 0");
}

Test(gpu_rendezvous, another_mkvm) {
  three t = three_usual();
  t.as[1].version = "1.1";
  expect_misfit(&t, MK_ERR_USAGE, "rank 1 (", "is of mkvm 1.1, and rank 0 of 1.0");
}

Test(gpu_rendezvous, another_number_of_ranks) {
  three t = three_usual();
  t.as[1].ranks = 4;
  expect_misfit(&t, MK_ERR_USAGE, "rank 1 (", "was started with --ranks 4, and rank 0 with --ranks 3");
}

Test(gpu_rendezvous, another_nccl) {
  three t = three_usual();
  t.as[1].nccl = 22803;
  expect_misfit(&t, MK_ERR_USAGE, "rank 1 (", "has NCCL 2.28.3, and rank 0 2.28.9");
}

Test(gpu_rendezvous, two_ranks_on_one_gpu) {
  three t = three_usual();
  t.as[2].uuid = 1;
  expect_misfit(&t, MK_ERR_USAGE, "rank 2 (", "has the GPU of rank 0 (a GPU that is none, cuda:0)");
}

Test(gpu_rendezvous, a_rank_comes_twice) {
  three t = three_usual();
  for (uint32_t r = 0; r < 3; r++) {
    t.as[r].uuid = r + 1; /* other GPUs */
    rank_start(&t.ranks[r], meet, r == 2 ? 1 : r, &t.as[r]);
  }
  for (int r = 0; r < 3; r++) {
    expect(&t.ranks[r], MK_ERR_USAGE, "has come twice: rank 1 (");
  }
}

Test(gpu_rendezvous, a_rank_out_of_range) {
  started s = usual("127.0.0.1:1", 3), more = usual("127.0.0.1:1", 9);
  rank_process process;
  rank_start(&process, meet, 3, &s);
  expect(&process, MK_ERR_USAGE, "rank 3 of 3: there are 2 to 8 ranks, counted from 0");
  rank_start(&process, meet, 0, &more);
  expect(&process, MK_ERR_USAGE, "rank 0 of 9: there are 2 to 8 ranks, counted from 0");
}

Test(gpu_rendezvous, addresses_that_are_none) {
  static const char *const bad[] = {"", "host", ":1", "127.0.0.1:", "127.0.0.1:x", "[]:1"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    started s = usual(bad[i], 2);
    rank_process process;
    rank_start(&process, meet, 0, &s);
    expect(&process, MK_ERR_USAGE, "is no HOST:PORT, such as 127.0.0.1:29500");
  }
  started s = usual("192.0.2.1:29500", 2); /* an address of no host */
  rank_process process;
  rank_start(&process, meet, 0, &s);
  expect(&process, MK_ERR_RUNTIME, "the address has to be one of this host");
}

/* ---- Others at the port ---- */

static int listen_somewhere(char address[32]) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof at;
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 8) == 0 &&
            getsockname(fd, (struct sockaddr *)&at, &size) == 0);
  snprintf(address, 32, "127.0.0.1:%u", ntohs(at.sin_port));
  return fd;
}

Test(gpu_rendezvous, the_address_is_taken) {
  char address[32];
  const int fd = listen_somewhere(address);
  started s = usual(address, 2);
  rank_process process;
  rank_start(&process, meet, 0, &s);
  expect(&process, MK_ERR_RUNTIME, "rank 0 cannot listen at 127.0.0.1:");
  cr_assert_not_null(strstr(process.message, "somebody else does, maybe another run: choose another port"));
  close(fd);
}

Test(gpu_rendezvous, nobody_listens) {
  char address[32];
  rank_address(address);
  started s = usual(address, 2);
  s.deadline_s = 1;
  rank_process process;
  rank_start(&process, meet, 1, &s);
  expect(&process, MK_ERR_RUNTIME, "rank 0 does not listen at 127.0.0.1:");
}

Test(gpu_rendezvous, who_listens_says_nothing) {
  char address[32];
  const int fd = listen_somewhere(address);
  started s = usual(address, 2);
  s.deadline_s = 1;
  rank_process process;
  rank_start(&process, meet, 1, &s);
  expect(&process, MK_ERR_RUNTIME, "has not answered for 3 s; is it rank 0?");
  close(fd);
}

Test(gpu_rendezvous, who_listens_is_somebody_else) {
  char address[32];
  const int fd = listen_somewhere(address);
  started s = usual(address, 2);
  rank_process process;
  rank_start(&process, meet, 1, &s);
  const int other = accept(fd, NULL, NULL);
  cr_assert_eq(write(other, "HTTP/1.1 400 Bad Request\r\n", 26), 26);
  expect(&process, MK_ERR_RUNTIME, "is not rank 0 of mkvm; choose another port");
  close(other);
  close(fd);
}

Test(gpu_rendezvous, ranks_that_do_not_come) {
  three t = three_usual();
  for (uint32_t r = 0; r < 2; r++) {
    t.as[r].deadline_s = 1;
    rank_start(&t.ranks[r], meet, r, &t.as[r]);
  }
  for (int r = 0; r < 2; r++) {
    expect(&t.ranks[r], MK_ERR_RUNTIME, "rank 2 did not come to 127.0.0.1:");
  }
}

static int connect_to(const char *address) {
  struct sockaddr_in at = {.sin_family = AF_INET,
                           .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)},
                           .sin_port = htons((uint16_t)atoi(strchr(address, ':') + 1))};
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  for (int tries = 0; connect(fd, (struct sockaddr *)&at, sizeof at) != 0; tries++) {
    cr_assert_lt(tries, 500);
    (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
  return fd;
}

/* Strangers who send rubbish, nothing, a part of what a rank says, or leave, and more of them than there is room for:
 * the ranks meet beside them. */
Test(gpu_rendezvous, strangers_hold_nobody_up) {
  enum { MANY = 50 };
  three t = three_usual();
  int fds[MANY];
  rank_start(&t.ranks[0], meet, 0, &t.as[0]);
  for (int i = 0; i < MANY; i++) {
    fds[i] = connect_to(t.as[0].address);
    const char *says = i % 4 == 0 ? "GET / HTTP/1.0\r\n\r\n" : i % 4 == 1 ? "mkvmrank" : "mkvm";
    if (i % 4 != 3) {
      cr_assert_gt(send(fds[i], says, strlen(says), MSG_NOSIGNAL), 0);
    }
    if (i % 5 == 0) {
      close(fds[i]);
      fds[i] = -1;
    }
  }
  rank_start(&t.ranks[1], meet, 1, &t.as[1]);
  rank_start(&t.ranks[2], meet, 2, &t.as[2]);
  for (int r = 0; r < 3; r++) {
    expect(&t.ranks[r], MK_OK, "");
  }
  for (int i = 0; i < MANY; i++) {
    if (fds[i] >= 0) {
      close(fds[i]);
    }
  }
}

/* A rank of another protocol is one all the same, and all are told. */
Test(gpu_rendezvous, another_protocol) {
  three t = three_usual();
  const struct {
    char magic[8];
    uint32_t protocol, bytes;
  } hello = {"mkvmrank", 99, 4};
  rank_start(&t.ranks[0], meet, 0, &t.as[0]);
  const int fd = connect_to(t.as[0].address);
  cr_assert_eq(send(fd, &hello, sizeof hello, MSG_NOSIGNAL), (ssize_t)sizeof hello);
  expect(&t.ranks[0], MK_ERR_USAGE, "a rank of another mkvm has come to 127.0.0.1:");
  close(fd);
}

/* ---- Who dies meanwhile ---- */

Test(gpu_rendezvous, a_rank_dies_before_all_have_come) {
  three t = three_usual();
  rank_start(&t.ranks[0], meet, 0, &t.as[0]);
  rank_start(&t.ranks[1], meet, 1, &t.as[1]);
  (void)nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
  cr_assert_eq(kill(t.ranks[1].pid, SIGKILL), 0);
  cr_assert_eq(rank_finish(&t.ranks[1]), 1000 + SIGKILL);
  expect(&t.ranks[0], MK_ERR_RUNTIME, "rank 1 (");
  cr_assert_not_null(strstr(t.ranks[0].message, ") was gone before all ranks had come"), "%s", t.ranks[0].message);
}

Test(gpu_rendezvous, rank_0_dies_before_all_have_come) {
  three t = three_usual();
  rank_start(&t.ranks[0], meet, 0, &t.as[0]);
  rank_start(&t.ranks[1], meet, 1, &t.as[1]);
  (void)nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
  cr_assert_eq(kill(t.ranks[0].pid, SIGKILL), 0);
  cr_assert_eq(rank_finish(&t.ranks[0]), 1000 + SIGKILL);
  expect(&t.ranks[1], MK_ERR_RUNTIME, "rank 0, or whoever listens at 127.0.0.1:");
}

Test(gpu_rendezvous, a_rank_dies_after_all_have_come) {
  three t = three_usual();
  t.as[1].dies = true;
  start_three(&t);
  cr_assert_eq(rank_finish(&t.ranks[1]), 99);
  expect(&t.ranks[0], MK_ERR_DEVICE, "rank 1 (");
  expect(&t.ranks[2], MK_ERR_DEVICE, "rank 1 (");
  cr_assert_not_null(strstr(t.ranks[2].message, ") is gone"), "%s", t.ranks[2].message);
}
