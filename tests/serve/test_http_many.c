/* Many clients, many requests, and bytes of any kind: nothing grows, nothing stays open, nobody waits for ever. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/http.h"

#ifndef MK_TEST_REQUESTS /* 100000 takes a minute */
#define MK_TEST_REQUESTS 7000
#endif

#ifdef __SANITIZE_ADDRESS__
static const bool keeps_freed = true; /* so that it can tell who uses it */
#else
static const bool keeps_freed = false;
#endif

TestSuite(http_many, .timeout = MK_HANG_SECONDS);

static mk_test_server server;

static void begin(void) {
  mk_test_server_options(&server);
  mk_test_server_start(&server);
}

static void end(void) { mk_test_server_stop(&server, 10); }

static int open_descriptors(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  cr_assert_not_null(folder);
  while (readdir(folder) != NULL) {
    count++;
  }
  closedir(folder);
  return count;
}

static size_t resident_bytes(void) {
  unsigned long all, resident;
  FILE *file = fopen("/proc/self/statm", "r");
  cr_assert(file != NULL && fscanf(file, "%lu %lu", &all, &resident) == 2);
  fclose(file);
  return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* A thousand at once, of whom some are served and all others are told so. */
Test(http_many, a_thousand) {
  enum { ALL = 1000, SERVED = 50 };
  static int fds[ALL];
  struct rlimit files;
  cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
  cr_assert_geq(files.rlim_cur, (rlim_t)4 * ALL);
  const int before = open_descriptors();
  mk_test_server_options(&server);
  server.options.most_connections = SERVED;
  mk_test_server_start(&server);
  for (int i = 0; i < ALL; i++) {
    fds[i] = mk_test_connect(&server);
    mk_test_say(fds[i], "GET /wait HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  }
  mk_test_until(&server.calls, SERVED);
  int served = 0, told = 0;
  for (int i = 0; i < ALL; i++) { /* those who were told have their answer before anybody is served */
    char first;
    if (i >= SERVED || recv(fds[i], &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1) {
      char *text = mk_test_hear(fds[i], NULL);
      told += strncmp(text, "HTTP/1.1 503 ", 13) == 0 && strstr(text, "Retry-After: 1\r\n") != NULL &&
              strstr(text, "too_many_connections") != NULL;
      free(text);
      close(fds[i]);
      fds[i] = -1;
    }
  }
  mk_test_release(&server);
  for (int i = 0; i < ALL; i++) {
    if (fds[i] >= 0) {
      char *text = mk_test_hear(fds[i], NULL);
      served += strstr(text, "waited") != NULL;
      free(text);
      close(fds[i]);
    }
  }
  cr_assert_eq(served, SERVED);
  cr_assert_geq(told, ALL - SERVED - 20, "%d", told); /* a few may have met a full queue of last words */
  mk_test_connections(&server, 0);
  free(mk_test_ask(&server, "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")); /* there is room again */
  cr_assert_eq(atomic_load(&server.calls), SERVED + 1);
  end();
  cr_assert_eq(open_descriptors(), before);
}

/* ---- Nothing grows ---- */

static void ask_in_every_way(int i) {
  static const char *const requests[] = {
      "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
      "POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
      "GET /torn HTTP/1.1\r\nHost: a\r\n\r\n",
      "nonsense\r\n\r\n",
      "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n",
      "HEAD /a HTTP/1.0\r\n\r\n",
  };
  const size_t ways = sizeof requests / sizeof *requests;
  if ((size_t)i % (ways + 1) < ways) {
    free(mk_test_ask(&server, requests[(size_t)i % (ways + 1)]));
    return;
  }
  const int fd = mk_test_connect(&server); /* goes away in the middle */
  mk_test_say(fd, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
  free(mk_test_hear(fd, "one\n"));
  close(fd);
}

Test(http_many, nothing_grows) {
  begin();
  for (int i = 0; i < 700; i++) {
    ask_in_every_way(i);
  }
  mk_test_connections(&server, 0);
  const size_t most = resident_bytes() + ((size_t)1 << 20);
  for (int i = 0; i < MK_TEST_REQUESTS; i++) {
    ask_in_every_way(i);
  }
  mk_test_connections(&server, 0);
  cr_assert(keeps_freed || resident_bytes() <= most, "%zu bytes, of %zu", resident_bytes(), most);
  for (int i = 0; open_descriptors() > 20; i++) { /* the last of those that were refused */
    cr_assert_lt(i, 1000);
    usleep(10000);
  }
  end();
}

/* Without a descriptor left connections wait, the loop does not spin, and they are served when there is one. */
Test(http_many, no_descriptors) {
  begin();
  struct rlimit files;
  cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
  const int fd = mk_test_connect(&server);
  mk_test_connections(&server, 1);
  const rlim_t before = files.rlim_cur;
  files.rlim_cur = 3;
  const int waiting = socket(AF_INET, SOCK_STREAM, 0);
  cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
  struct sockaddr_storage address;
  socklen_t size = sizeof address;
  cr_assert_eq(getpeername(fd, (struct sockaddr *)&address, &size), 0);
  cr_assert_eq(connect(waiting, (const struct sockaddr *)&address, size), 0);
  mk_test_say(waiting, "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  struct rusage used, now;
  getrusage(RUSAGE_SELF, &used);
  usleep(300000);
  getrusage(RUSAGE_SELF, &now);
  const long spent =
      (now.ru_utime.tv_sec - used.ru_utime.tv_sec + now.ru_stime.tv_sec - used.ru_stime.tv_sec) * 1000000 +
      now.ru_utime.tv_usec - used.ru_utime.tv_usec + now.ru_stime.tv_usec - used.ru_stime.tv_usec;
  cr_assert_lt(spent, 150000, "%ld us", spent);
  mk_test_say(fd, "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); /* who has one is served */
  free(mk_test_hear(fd, "GET /a"));
  close(fd);
  files.rlim_cur = before;
  cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
  char *text = mk_test_hear(waiting, NULL);
  cr_assert_not_null(strstr(text, "GET /a 127.0.0.1 0 -"));
  free(text);
  close(waiting);
  end();
}

/* ---- Bytes of any kind ---- */

static uint32_t state = 1;

static uint32_t random_below(uint32_t bound) {
  state ^= state << 13;
  state ^= state >> 17;
  state ^= state << 5;
  return state % bound;
}

Test(http_many, garbage) {
  static const char *const whole[] = {
      "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET /stream HTTP/1.1\r\nHost: a\r\n\r\n",
      "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET /torn "
      "HTTP/1.0\r\n\r\n",
      "GET /wait HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\nGET /b HTTP/1.1\r\n\r\nHEAD / HTTP/1.1\r\n\r\n"};
  mk_test_server_options(&server);
  server.options.arrive_seconds = server.options.idle_seconds = 0.1;
  mk_test_server_start(&server);
  for (int i = 0; i < 1500; i++) {
    char bytes[512];
    const char *from = whole[i % 3];
    const size_t length = strlen(from);
    memcpy(bytes, from, length);
    for (uint32_t changes = random_below(6); changes > 0; changes--) {
      const uint32_t at = random_below((uint32_t)length);
      bytes[at] = random_below(3) == 0 ? "\r\n :\0/0"[random_below(7)] : (char)random_below(256);
    }
    const int fd = mk_test_connect(&server);
    mk_test_write(fd, bytes, i % 50 == 0 ? length : random_below((uint32_t)length) + 1);
    if (i % 8 == 0) {
      mk_test_release(&server);
    }
    if (i % 100 == 0) {
      mk_test_release(&server);
      shutdown(fd, SHUT_WR);
      free(mk_test_hear(fd, NULL));
    }
    close(fd);
  }
  mk_test_release(&server);
  mk_test_connections(&server, 0);
  free(mk_test_ask(&server, "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
  end();
}
