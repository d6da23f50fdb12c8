/* See rank_process.h. */
#include "tests/support/rank_process.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/process.h"

enum { FAILED = 99 };

void rank_must(bool good, const char *what, int line) {
  if (!good) {
    (void)dprintf(STDERR_FILENO, "line %d: %s (%s)\n", line, what, mk_error_message());
    _exit(FAILED);
  }
}

void rank_world_start(rank_world *world, uint32_t rank, uint32_t ranks, bool tells_peers) {
  void *library = dlopen(tells_peers ? MK_FAKE_NCCL_29 : MK_FAKE_NCCL_28, RTLD_NOW | RTLD_LOCAL);
  fake_nccl_state_fn *get = NULL;
  void *found = library == NULL ? NULL : dlsym(library, FAKE_NCCL_STATE);
  RANK_MUST(found != NULL);
  memcpy(&get, &found, sizeof get);
  world->nccl = get();
  world->cuda = fake_gpu_start(&world->kernel);
  world->cuda->devices = (int)ranks;
  world->cuda->uuid = (uint8_t)(rank + 1);
  world->kernel.ranks = ranks;
  world->kernel.apart = true;
}

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
static void find_leaks(void) { RANK_MUST(__lsan_do_recoverable_leak_check() == 0); }
#else
static void find_leaks(void) {}
#endif

void rank_world_end(const rank_world *world) {
  find_leaks();
  RANK_MUST(world->cuda->live == 0);
  /* What is stuck in NCCL stays there. */
  RANK_MUST(world->nccl->live == 0 || world->nccl->inside != 0 || world->nccl->slow);
}

/* Below the ports that a system gives to whoever asks for any, so that nobody else has it before the ranks do; tests
 * that run side by side begin at different ones. */
void rank_address(char address[32]) {
  enum { FIRST = 20000, PORTS = 12000, APART = 37 };
  static uint32_t next = 0;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  bool bound = false;
  for (uint32_t i = 0; i < PORTS && !bound; i++) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_geq(fd, 0);
    at.sin_port = htons((uint16_t)(FIRST + ((uint32_t)getpid() * APART + next++) % PORTS));
    bound = bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
    close(fd);
  }
  cr_assert(bound, "every port is taken");
  snprintf(address, 32, "127.0.0.1:%u", ntohs(at.sin_port));
}

void rank_start(rank_process *process, rank_fn *fn, uint32_t rank, void *user) {
  process->err = test_scratch_file();
  process->pid = fork();
  if (process->pid == 0) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind, stopped or not */
    const mk_status status = fn(rank, user);
    if (status != MK_OK) {
      (void)dprintf(process->err, "%s", mk_error_message());
    }
    _exit((int)status);
  }
  cr_assert_gt(process->pid, 0);
}

int rank_finish(rank_process *process) {
  const int code = test_finish(process->pid);
  const ssize_t length = pread(process->err, process->message, sizeof process->message - 1, 0);
  process->message[length > 0 ? length : 0] = '\0';
  close(process->err);
  return code;
}
