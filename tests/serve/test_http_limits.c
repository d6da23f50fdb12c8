/* Clients that take their time, take no reply, send too much, or go away. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/http.h"

TestSuite(http_limits, .timeout = MK_HANG_SECONDS);

static mk_test_server server;

static void begin(void) {
  mk_test_server_options(&server);
  mk_test_server_start(&server);
}

static void end(void) { mk_test_server_stop(&server, 10); }

/* ---- Time ---- */

/* A request must be whole in time, however often a byte of it comes. */
Test(http_limits, one_byte_at_a_time) {
  static const struct {
    const char *begin, *more;
  } requests[] = {{"G", "a"},
                  {"GET /a HTTP/1.1\r\nHost: a\r\nX-A: ", "a"},
                  {"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n", "a"},
                  {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\na\r\n"}};
  mk_test_server_options(&server);
  server.options.arrive_seconds = 0.1;
  mk_test_server_start(&server);
  for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
    const int fd = mk_test_connect(&server);
    mk_test_say(fd, requests[i].begin);
    char peeked;
    size_t sent = 0;
    for (; sent < 5000 && recv(fd, &peeked, 1, MSG_PEEK | MSG_DONTWAIT) < 0; sent++) {
      mk_test_write(fd, requests[i].more + sent % strlen(requests[i].more), 1);
      usleep(5000);
    }
    cr_assert_lt(sent, 5000u, "it waits for ever");
    char *text = mk_test_hear(fd, NULL);
    cr_assert_eq(strncmp(text, "HTTP/1.1 408 ", 13), 0, "%s", text);
    cr_assert_not_null(strstr(text, "{\"error\":{"));
    free(text);
    close(fd);
  }
  cr_assert_eq(atomic_load(&server.calls), 0);
  end();
}

/* Nothing is said of a connection that just waits; and a call may take longer than any request. */
Test(http_limits, idle) {
  mk_test_server_options(&server);
  server.options.idle_seconds = server.options.arrive_seconds = 0.4;
  mk_test_server_start(&server);
  for (int i = 0; i < 2; i++) {
    const int fd = mk_test_connect(&server);
    if (i == 1) {
      mk_test_say(fd, "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
      mk_test_until(&server.calls, 1);
      usleep(600000);
      mk_test_release(&server);
      free(mk_test_hear(fd, "waited"));
    }
    char *text = mk_test_hear(fd, NULL);
    cr_assert_str_eq(text, "");
    free(text);
    close(fd);
  }
  cr_assert_eq(atomic_load(&server.gone), 0);
  end();
}

/* ---- Clients that go away ---- */

/* Before the first byte of the reply, and within it; by closing, by closing half, and by a reset. */
Test(http_limits, gone) {
  begin();
  static const char *const paths[] = {"wait", "stream", "late"};
  int calls = 0;
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    for (int way = 0; way < 4; way++) {
      char request[64];
      snprintf(request, sizeof request, "GET /%s HTTP/1.1\r\nHost: a\r\n\r\n", paths[i]);
      const int fd = mk_test_connect(&server);
      mk_test_say(fd, request);
      mk_test_until(&server.calls, ++calls);
      if (way == 1) {
        shutdown(fd, SHUT_WR);
      } else if (way == 2) {
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
        close(fd);
      } else {
        mk_test_say(fd, way == 3 ? request : ""); /* with a request that comes after it */
        close(fd);
      }
      mk_test_until(&server.gone, calls);
      if (way == 1) {
        close(fd);
      }
      mk_test_release(&server); /* of "/late" */
      mk_test_connections(&server, 0);
    }
  }
  cr_assert_eq(atomic_load(&server.gone), calls); /* once each */
  cr_assert_eq(atomic_load(&server.calls), calls);
  end();
}

/* A client that goes in the middle of a request calls nothing; one that goes after a reply's end is not told as
 * gone. */
Test(http_limits, not_gone) {
  begin();
  int fd = mk_test_connect(&server);
  mk_test_say(fd, "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf");
  close(fd);
  fd = mk_test_connect(&server);
  mk_test_say(fd, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
  free(mk_test_hear(fd, "one\n"));
  mk_test_release(&server);
  mk_test_until(&server.wakes, 1);
  close(fd);
  mk_test_connections(&server, 0);
  cr_assert_eq(atomic_load(&server.calls), 1);
  cr_assert_eq(atomic_load(&server.gone), 0);
  end();
}

/* ---- Slow readers ---- */

/* A stream that is not read is cut when too much of it waits, whatever the kernel holds besides. */
Test(http_limits, stream_not_read) {
  mk_test_server_options(&server);
  server.options.send_seconds = 1000; /* it is not that which ends it */
  mk_test_server_start(&server);
  const int fd = mk_test_connect(&server);
  mk_test_say(fd, "GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");
  for (int i = 0; i < 100 && atomic_load(&server.gone) == 0; i++) {
    mk_test_release(&server);
    usleep(1000);
  }
  mk_test_until(&server.gone, 1);
  mk_test_connections(&server, 0);
  cr_assert_eq(atomic_load(&server.gone), 1);
  close(fd);
  end();
}

/* A reply of any size may wait, but not for ever. */
Test(http_limits, reply_not_read) {
  const size_t size = (size_t)24 << 20;
  char *body = calloc(size, 1), head[128];
  cr_assert_not_null(body);
  const int length = snprintf(head, sizeof head, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n", size);
  for (int reads = 0; reads < 2; reads++) {
    mk_test_server_options(&server);
    server.options.most_body = (size_t)32 << 20;
    server.options.send_seconds = reads ? 1000 : 0.2;
    mk_test_server_start(&server);
    const int fd = mk_test_connect(&server);
    mk_test_write(fd, head, (size_t)length);
    mk_test_write(fd, body, size);
    size_t got = 0;
    for (ssize_t now; reads && got < size && (now = recv(fd, body, size, 0)) > 0; got += (size_t)now) {
    }
    cr_assert(!reads || got >= size);
    mk_test_connections(&server, (uint64_t)reads); /* it goes on, or is cut off */
    close(fd);
    mk_test_connections(&server, 0);
    cr_assert_eq(atomic_load(&server.gone), 0); /* the call was over */
    end();
  }
  free(body);
}

/* ---- Clients that send while they are answered ---- */

/* What comes early waits in the kernel but for a little, and when the stream has ended the requests are answered. */
Test(http_limits, flood_in_a_stream) {
  mk_test_server_options(&server);
  server.options.most_body = (size_t)64 << 20; /* which a body may have, and what comes early may not */
  mk_test_server_start(&server);
  const int fd = mk_test_connect(&server);
  mk_test_say(fd, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
  free(mk_test_hear(fd, "one\n"));
  static const char request[] = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
  static char many[1000 * (sizeof request - 1)];
  for (size_t i = 0; i < sizeof many; i++) {
    many[i] = request[i % (sizeof request - 1)];
  }
  size_t sent = 0;
  for (int still = 0; still < 20 && sent < (size_t)32 << 20;) { /* until nothing is taken any more */
    const size_t at = sent % sizeof many;
    const ssize_t now = send(fd, many + at, sizeof many - at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (now > 0) {
      sent += (size_t)now;
      still = 0;
    } else {
      still++;
      usleep(2000);
    }
  }
  cr_assert_gt(sent, (size_t)65536);
  cr_assert_lt(sent, (size_t)16 << 20);
  mk_test_release(&server);
  free(mk_test_hear(fd, "0\r\n\r\n"));
  for (int i = 0; i < 200; i++) {
    free(mk_test_hear(fd, "GET /a 127.0.0.1 0 -"));
  }
  close(fd);
  end();
}
