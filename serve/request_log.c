/* A line of JSON for each request. See server_internal.h. Whoever reads the log may stop doing so (a terminal that is
 * held, a pipe whose reader hangs), and the loop must not wait for them: what is not taken is kept, up to a limit, and
 * goes out with what comes later. */
#include <poll.h>
#include <string.h>
#include <time.h>

#include "serve/json_write.h"
#include "serve/server_internal.h"

enum {
  MOST_KEPT = 1 << 20,
  AT_ONCE = 4096 /* a pipe that takes anything takes as much */
};

static void put_time(mk_json_writer *w) {
  struct timespec now;
  struct tm utc;
  char text[40];
  clock_gettime(CLOCK_REALTIME, &now);
  gmtime_r(&now.tv_sec, &utc);
  size_t used = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  snprintf(text + used, sizeof text - used, ".%03dZ", (int)(now.tv_nsec / 1000000));
  mk_put_text(w, text);
}

static void put_milliseconds(mk_json_writer *w, const char *name, uint64_t ns) {
  if (ns != 0) {
    char text[40];
    snprintf(text, sizeof text, "%s%llu.%03u", name, (unsigned long long)(ns / 1000000), (unsigned)(ns / 1000 % 1000));
    mk_put(w, text);
  }
}

static void put_tokens(mk_json_writer *w, const mk_request_note *note) {
  if (note->prompt_tokens != 0) {
    mk_put(w, ",\"prompt_tokens\":");
    mk_put_uint(w, note->prompt_tokens);
    mk_put(w, ",\"cached_tokens\":");
    mk_put_uint(w, note->cached_tokens);
    mk_put(w, ",\"tokens\":");
    mk_put_uint(w, note->tokens);
  }
}

bool mk_server_may_say(FILE *log) {
  struct pollfd taking = {.fd = fileno(log), .events = POLLOUT};
  return taking.fd < 0 || poll(&taking, 1, 0) != 0; /* a write that fails does so at once */
}

void mk_log_flush(mk_server *server) {
  mk_bytes *kept = &server->unlogged;
  FILE *log = server->options.log;
  size_t at = 0;
  while (at < kept->length && mk_server_may_say(log)) {
    const size_t rest = kept->length - at, length = rest < AT_ONCE ? rest : AT_ONCE;
    (void)fwrite(kept->bytes + at, 1, length, log); /* a log that fails ends no request */
    (void)fflush(log);
    at += length;
  }
  if (at != 0) {
    kept->length -= at;
    memmove(kept->bytes, kept->bytes + at, kept->length);
  }
}

/* Says first how many lines there was no room for, if there were any. */
static void keep(mk_server *server, const mk_bytes *line) {
  mk_bytes *kept = &server->unlogged;
  if (kept->length + line->length > MOST_KEPT && kept->length != 0) {
    server->lines_lost++;
    return;
  }
  if (server->lines_lost != 0) {
    mk_json_writer w = mk_json_begin(kept);
    mk_put(&w, "{\"time\":");
    put_time(&w);
    mk_put(&w, ",\"lost_lines\":");
    mk_put_uint(&w, server->lines_lost);
    mk_put(&w, "}\n");
    server->lines_lost = mk_json_end(&w) == MK_OK ? 0 : server->lines_lost;
  }
  (void)mk_bytes_append(kept, line->bytes, line->length);
}

void mk_log_request(mk_server *server, const mk_request_note *note) {
  mk_bytes line = {0};
  mk_json_writer w = mk_json_begin(&line);
  if (server->options.log == NULL) {
    return;
  }
  mk_put(&w, "{\"time\":");
  put_time(&w);
  mk_put(&w, ",\"id\":");
  mk_put_text(&w, note->id);
  mk_put(&w, ",\"peer\":");
  mk_put_text(&w, note->peer);
  mk_put(&w, ",\"path\":");
  mk_put_text(&w, note->path);
  mk_put(&w, ",\"status\":");
  mk_put_int(&w, note->status);
  put_tokens(&w, note);
  if (note->reason != NULL) {
    mk_put(&w, ",\"reason\":");
    mk_put_text(&w, note->reason);
  }
  put_milliseconds(&w, ",\"queue_ms\":", note->queue_ns);
  put_milliseconds(&w, ",\"first_ms\":", note->first_ns);
  put_milliseconds(&w, ",\"total_ms\":", note->total_ns);
  if (note->prompt != NULL) {
    mk_put(&w, ",\"prompt\":");
    mk_put_string(&w, note->prompt, note->prompt_length);
    mk_put(&w, ",\"answer\":");
    mk_put_string(&w, note->answer, note->answer_length);
  }
  mk_put(&w, "}\n");
  if (mk_json_end(&w) == MK_OK) {
    mk_log_flush(server);
    keep(server, &line);
    mk_log_flush(server);
  }
  mk_free(line.bytes);
}
